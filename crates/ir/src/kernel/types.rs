//! Types of values: scalars, vectors of them, cooperative matrices.

/// Scalar element types. 8-bit and 16-bit integers exist for memory and conversion; arithmetic is done in
/// 32 bits or more, or in floats.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub enum Scalar {
    /// Truth value; no memory form.
    Bool,
    /// Signed 8-bit integer.
    I8,
    /// Unsigned 8-bit integer.
    U8,
    /// Unsigned 16-bit integer.
    U16,
    /// Signed 32-bit integer.
    I32,
    /// Unsigned 32-bit integer.
    U32,
    /// Unsigned 64-bit integer; device addresses.
    U64,
    /// IEEE half.
    F16,
    /// IEEE single.
    F32,
}

impl Scalar {
    /// Size in memory, in bytes (Bool counts as 4 so that arithmetic on sizes stays total).
    pub const fn bytes(self) -> u32 {
        match self {
            Scalar::I8 | Scalar::U8 => 1,
            Scalar::U16 | Scalar::F16 => 2,
            Scalar::Bool | Scalar::I32 | Scalar::U32 | Scalar::F32 => 4,
            Scalar::U64 => 8,
        }
    }
    /// F16 or F32.
    pub const fn is_float(self) -> bool {
        matches!(self, Scalar::F16 | Scalar::F32)
    }
    /// I8 or I32.
    pub const fn is_signed(self) -> bool {
        matches!(self, Scalar::I8 | Scalar::I32)
    }
}

/// What a cooperative matrix is to a multiply-add: `Acc = A × B + Acc`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum MatrixUse {
    /// Left operand, M × K.
    A,
    /// Right operand, K × N.
    B,
    /// Accumulator, M × N.
    Acc,
}

/// A subgroup-wide cooperative matrix (VK_KHR_cooperative_matrix). Which lane holds which element is unspecified.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct MatrixType {
    /// Element type.
    pub scalar: Scalar,
    /// Rows.
    pub rows: u8,
    /// Columns.
    pub cols: u8,
    /// Role.
    pub usage: MatrixUse,
}

impl MatrixType {
    /// Number of elements.
    pub const fn elements(self) -> u32 {
        self.rows as u32 * self.cols as u32
    }
    /// Elements of an accumulator, or of a matrix [in quads](MatrixType::in_quads), that each lane of a subgroup holds;
    /// `None` if they cannot be dealt out evenly.
    pub const fn elements_per_lane(self, subgroup_size: u32) -> Option<u32> {
        let even = self.elements().is_multiple_of(subgroup_size) && self.elements() > 0;
        let known = matches!(self.usage, MatrixUse::Acc) || self.in_quads(subgroup_size);
        if even && known { Some(self.elements() / subgroup_size) } else { None }
    }
    /// Is this a matrix whose elements lanes may hold in quads? See [`quad_place`].
    pub const fn in_quads(self, subgroup_size: u32) -> bool {
        let halves = matches!((self.usage, self.scalar), (MatrixUse::A, Scalar::F16));
        halves && self.rows == 16 && self.cols == 16 && subgroup_size == 32
    }
}

/// Row and column of a lane's element number `element` in a 16×16 matrix A of halves whose elements are dealt out *in
/// quads*: four neighbouring lanes share two rows, eight apart, as in PTX's `mma.m16n8k16`; a device that does so says so in [`crate::device::Caps::quads`].
///
/// ```text
/// lane 4g + t   elements 0 1: row g,     columns 2t, 2t + 1        2 3: row g,     columns 2t + 8, 2t + 9
///               elements 4 5: row g + 8, columns 2t, 2t + 1        6 7: row g + 8, columns 2t + 8, 2t + 9
/// ```
pub const fn quad_place(lane: u32, element: u32) -> (u32, u32) {
    let (row, pair) = (lane / 4, lane % 4);
    (row + element / 4 * 8, pair * 2 + element % 2 + element / 2 % 2 * 8)
}

/// Type of a value.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Type {
    /// A statement: no value.
    Void,
    /// `lanes` (1, 2 or 4) scalars.
    Vec(Scalar, u8),
    /// Cooperative matrix.
    Matrix(MatrixType),
}

impl Type {
    /// One Bool.
    pub const BOOL: Type = Type::Vec(Scalar::Bool, 1);
    /// One U32.
    pub const U32: Type = Type::Vec(Scalar::U32, 1);
    /// One I32.
    pub const I32: Type = Type::Vec(Scalar::I32, 1);
    /// One U64.
    pub const U64: Type = Type::Vec(Scalar::U64, 1);
    /// One F32.
    pub const F32: Type = Type::Vec(Scalar::F32, 1);
    /// One F16.
    pub const F16: Type = Type::Vec(Scalar::F16, 1);
    /// Four F32.
    pub const F32X4: Type = Type::Vec(Scalar::F32, 4);
    /// Four U32: the widest load, 16 bytes.
    pub const U32X4: Type = Type::Vec(Scalar::U32, 4);

    /// Size in memory; 0 for `Void` and matrices.
    pub const fn bytes(self) -> u32 {
        match self {
            Type::Vec(s, n) => s.bytes() * n as u32,
            Type::Void | Type::Matrix(_) => 0,
        }
    }
    /// Element type, if the type has one.
    pub const fn scalar(self) -> Option<Scalar> {
        match self {
            Type::Vec(s, _) => Some(s),
            Type::Matrix(m) => Some(m.scalar),
            Type::Void => None,
        }
    }
    /// Number of lanes of a vector (1 for a scalar), 0 otherwise.
    pub const fn lanes(self) -> u8 {
        match self {
            Type::Vec(_, n) => n,
            _ => 0,
        }
    }
    /// Same number of lanes, other element.
    pub const fn with_scalar(self, s: Scalar) -> Type {
        match self {
            Type::Vec(_, n) => Type::Vec(s, n),
            Type::Matrix(m) => Type::Matrix(MatrixType { scalar: s, ..m }),
            Type::Void => Type::Void,
        }
    }
}
