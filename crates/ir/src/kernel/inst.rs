//! The kernel IR: one compute shader as typed, structured SSA.
//!
//! ```text
//! compiler template ──Builder──► Kernel ──verify──► text | interpret | SPIR-V
//! ```
//!
//! Meaning, before the types:
//!
//! * A kernel runs a grid of *tiles*. One tile is one workgroup of `workgroup_size` lanes, cut into full
//!   subgroups of exactly `subgroup_size` lanes (`workgroup_size` is a multiple of it). Lane `l` of subgroup
//!   `s` has local id `s * subgroup_size + l`. A body never asks for a workgroup id, only for [`Builtin::Tile`]:
//!   a persistent kernel can then loop over tiles of several bodies.
//! * Every value is immutable and defined once, before use, in the block that uses it or an enclosing one.
//!   [`Op::Const`], [`Op::Arg`] and [`Op::Builtin`] are defined everywhere and listed in no block.
//!   There is no early return, no goto: only [`Op::If`] and [`Op::For`] with explicit results.
//! * Global memory is reached through 64-bit device addresses: `base + offset + imm` with a U64 base and a U32
//!   byte offset (unsigned, zero-extended). The access must lie inside one bound range and be aligned to `align`.
//! * Workgroup memory is declared as typed arrays; its content is undefined at the start of a tile.
//! * [`Op::Barrier`] is reached by every lane of the tile or by none. It orders all shared accesses, and the
//!   tile's own global accesses, before it against those after it. Without it, lanes of *different* subgroups are
//!   unordered; lanes of one subgroup are unordered too, except through subgroup operations.
//! * Subgroup operations, barriers and matrix operations need *uniform* control flow: all lanes of the subgroup
//!   (barrier: of the workgroup) are active. The verifier rejects what it cannot prove uniform.
//! * Integer arithmetic wraps. Shifts by the width or more, integer division by zero, and remainders of negative
//!   I32 are undefined (the interpreter reports them). F32 follows IEEE round-to-nearest except that FMA contraction
//!   is only where [`Op::Fma`] says so, and that denormals may flush. Bool has no memory form.

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

/// Handle of an operation and of the value it defines.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct Value(pub u32);

/// Read-only facts about where a lane is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Builtin {
    /// Tile index along axis 0, 1 or 2 (U32, uniform over the workgroup).
    Tile(u8),
    /// Lane within the workgroup, 0..workgroup_size (U32).
    LocalId,
    /// Subgroup within the workgroup (U32, uniform over the subgroup).
    SubgroupId,
    /// Lane within the subgroup (U32).
    Lane,
}

/// One-operand arithmetic, elementwise on vectors.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum UnOp {
    /// Negation (floats, I32).
    Neg,
    /// Bitwise not (integers) or logical not (Bool).
    Not,
    /// Absolute value (F32).
    Abs,
    /// e^x (F32).
    Exp,
    /// Natural logarithm (F32).
    Log,
    /// Square root (F32).
    Sqrt,
    /// 1 / sqrt(x) (F32).
    InvSqrt,
    /// Sine (F32); argument reduction is the caller's job beyond ±2π·64.
    Sin,
    /// Cosine (F32).
    Cos,
    /// Hyperbolic tangent (F32).
    Tanh,
    /// Round down (F32).
    Floor,
    /// Round half to even (F32).
    RoundEven,
}

/// Two-operand arithmetic, elementwise on vectors of equal type. Comparisons give Bool vectors.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs)] // The names say it; semantics are in the module docs.
pub enum BinOp {
    Add,
    Sub,
    Mul,
    Div,
    Rem,
    Min,
    Max,
    And,
    Or,
    Xor,
    Shl,
    /// Logical for unsigned, arithmetic for signed operands.
    Shr,
    /// Floats: x^y.
    Pow,
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
}

impl BinOp {
    /// True for the six comparisons.
    pub const fn is_compare(self) -> bool {
        matches!(self, BinOp::Eq | BinOp::Ne | BinOp::Lt | BinOp::Le | BinOp::Gt | BinOp::Ge)
    }
}

/// Subgroup reductions; the result is the same in all lanes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs)] // The names say it.
pub enum ReduceOp {
    Add,
    Min,
    Max,
}

/// Where a matrix lives in memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum MatrixMemory {
    /// Global memory at `base + offset` bytes, both uniform over the subgroup.
    Global {
        /// U64 address.
        base: Value,
        /// U32 byte offset.
        offset: Value,
    },
    /// Shared array `array` from element `index` on. Its elements are scalars of the matrix's type, or vectors of
    /// them that divide a row (column); index and stride count array elements.
    Shared {
        /// Index into [`Kernel::shared`].
        array: u32,
        /// U32 first element, uniform.
        index: Value,
    },
}

/// A sequence of operations, in order.
pub type Block = Vec<Value>;

/// One operation. Its result type is `Kernel::types[value]`.
#[derive(Clone, PartialEq, Debug)]
pub enum Op {
    /// Scalar constant; bits in the low end (F16/F32 as their bit patterns).
    Const(u64),
    /// Launch argument `n` of [`Kernel::args`]: U64 or U32, uniform over the grid.
    Arg(u32),
    /// Position.
    Builtin(Builtin),
    /// Block parameter of the enclosing `For` (index or carried value), or a result of a finished `If`/`For`.
    /// Defined by that operation; never listed in a block.
    Param,
    /// Elementwise one-operand arithmetic.
    Unary(UnOp, Value),
    /// Elementwise two-operand arithmetic.
    Binary(BinOp, Value, Value),
    /// a * b + c with one rounding (F32, F16; scalars and vectors).
    Fma(Value, Value, Value),
    /// cond ? a : b. `cond` is one Bool, or a Bool vector of the same lanes.
    Select(Value, Value, Value),
    /// Value conversion to the result type (same lanes): int↔int (extend by the operand's sign, truncate),
    /// int↔float (to int: toward zero; out of range is undefined), float↔float (round to nearest even).
    Convert(Value),
    /// Same bits, other type of the same total size (U32 ↔ 2×F16, 4×U8 ↔ U32, F32 ↔ U32, …).
    Bitcast(Value),
    /// Vector from scalars.
    Compose(Vec<Value>),
    /// Scalar out of a vector.
    Extract(Value, u8),
    /// The U32 that the index (U32, in range) names: constants that are a part of the kernel.
    Table(Value, Vec<u32>),
    /// Four-way byte dot product: sum of a_i * b_i + acc (I32), bytes packed little-endian in U32.
    Dot4 {
        /// Packed bytes.
        a: Value,
        /// Packed bytes; always signed.
        b: Value,
        /// I32 accumulator.
        acc: Value,
        /// Bytes of `a` are signed.
        a_signed: bool,
    },
    /// Load from global memory.
    Load {
        /// U64 address.
        base: Value,
        /// U32 byte offset.
        offset: Value,
        /// Constant bytes added.
        imm: u32,
        /// Guaranteed alignment of the sum, a power of two ≤ 16.
        align: u8,
        /// Nothing in this launch writes the bytes: the driver may hoist, merge and reorder.
        read_only: bool,
    },
    /// Store to global memory.
    Store {
        /// U64 address.
        base: Value,
        /// U32 byte offset.
        offset: Value,
        /// Constant bytes added.
        imm: u32,
        /// Guaranteed alignment of the sum.
        align: u8,
        /// What to store.
        value: Value,
    },
    /// Adds to a U32 in global memory with device scope, acquire-release; gives the old value.
    AtomicAdd {
        /// U64 address.
        base: Value,
        /// U32 byte offset, a multiple of 4.
        offset: Value,
        /// U32 addend.
        value: Value,
    },
    /// Load element `index` of a shared array.
    SharedLoad {
        /// Index into [`Kernel::shared`].
        array: u32,
        /// U32 element index.
        index: Value,
    },
    /// Store element `index` of a shared array.
    SharedStore {
        /// Index into [`Kernel::shared`].
        array: u32,
        /// U32 element index.
        index: Value,
        /// Element.
        value: Value,
    },
    /// Reduction over the subgroup; scalar or vector (elementwise), I32, U32 or F32.
    SubgroupReduce(ReduceOp, Value),
    /// The value of lane `lane ^ mask`; `mask` < subgroup_size.
    SubgroupShuffleXor(Value, u32),
    /// The value of lane `lane` (U32, may differ between lanes, < subgroup_size).
    SubgroupShuffle(Value, Value),
    /// Workgroup barrier with memory ordering.
    Barrier,
    /// Loads a cooperative matrix. `stride` is in elements between rows (or columns).
    MatrixLoad {
        /// Source.
        memory: MatrixMemory,
        /// U32 constant or uniform stride in elements.
        stride: Value,
        /// Memory is column-major.
        column_major: bool,
    },
    /// Stores a cooperative matrix.
    MatrixStore {
        /// Destination.
        memory: MatrixMemory,
        /// Stride in elements.
        stride: Value,
        /// Memory is column-major.
        column_major: bool,
        /// The matrix.
        value: Value,
    },
    /// All elements equal to a scalar.
    MatrixSplat(Value),
    /// a × b + c.
    MatrixMulAdd(Value, Value, Value),
    /// Structured choice; each branch ends by yielding one value per result.
    If {
        /// One Bool.
        cond: Value,
        /// Taken when true.
        then: Block,
        /// What `then` gives.
        then_yield: Vec<Value>,
        /// Taken when false.
        otherwise: Block,
        /// What `otherwise` gives.
        else_yield: Vec<Value>,
        /// [`Op::Param`] values that hold the outcome after the operation.
        results: Vec<Value>,
    },
    /// `for index in (start..end).step_by(step)` over U32, with carried values.
    For {
        /// First index (U32).
        start: Value,
        /// End, exclusive (U32). No iteration when `start >= end`; `end + step` must not overflow.
        end: Value,
        /// Step, a positive U32.
        step: Value,
        /// [`Op::Param`]: the index inside the body.
        index: Value,
        /// Initial carried values.
        init: Vec<Value>,
        /// [`Op::Param`]s: carried values inside the body.
        carried: Vec<Value>,
        /// Body.
        body: Block,
        /// Next carried values.
        body_yield: Vec<Value>,
        /// [`Op::Param`]s: carried values after the loop.
        results: Vec<Value>,
        /// Ask the driver to unroll fully (trip count must be constant).
        unroll: bool,
    },
}

impl Op {
    /// Calls `f` with each value that the operation itself reads: not what its nested blocks read or yield.
    pub fn for_each_operand(&self, mut f: impl FnMut(Value)) {
        let mut all = |values: &[Value]| values.iter().for_each(|v| f(*v));
        let memory = |m: &MatrixMemory| match m {
            MatrixMemory::Global { base, offset } => vec![*base, *offset],
            MatrixMemory::Shared { index, .. } => vec![*index],
        };
        match self {
            Op::Const(_) | Op::Arg(_) | Op::Builtin(_) | Op::Param | Op::Barrier => {}
            Op::Unary(_, a)
            | Op::Convert(a)
            | Op::Bitcast(a)
            | Op::Extract(a, _)
            | Op::SubgroupReduce(_, a)
            | Op::SubgroupShuffleXor(a, _)
            | Op::Table(a, _)
            | Op::MatrixSplat(a) => all(&[*a]),
            Op::Binary(_, a, b) | Op::SubgroupShuffle(a, b) => all(&[*a, *b]),
            Op::Fma(a, b, c) | Op::Select(a, b, c) | Op::MatrixMulAdd(a, b, c) => all(&[*a, *b, *c]),
            Op::Compose(parts) => all(parts),
            Op::Dot4 { a, b, acc, .. } => all(&[*a, *b, *acc]),
            Op::Load { base, offset, .. } => all(&[*base, *offset]),
            Op::Store { base, offset, value, .. } | Op::AtomicAdd { base, offset, value } => {
                all(&[*base, *offset, *value]);
            }
            Op::SharedLoad { index, .. } => all(&[*index]),
            Op::SharedStore { index, value, .. } => all(&[*index, *value]),
            Op::MatrixLoad { memory: m, stride, .. } => {
                all(&memory(m));
                all(&[*stride]);
            }
            Op::MatrixStore { memory: m, stride, value, .. } => {
                all(&memory(m));
                all(&[*stride, *value]);
            }
            Op::If { cond, .. } => all(&[*cond]),
            Op::For { start, end, step, init, .. } => {
                all(&[*start, *end, *step]);
                all(init);
            }
        }
    }
}

/// A workgroup-shared array.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Shared {
    /// Name for people.
    pub name: String,
    /// Element type: a scalar or a vector, not Bool.
    pub ty: Type,
    /// Elements.
    pub len: u32,
}

/// What a launch argument is and may be used for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ArgKind {
    /// U64 address of bytes that are only read.
    Read,
    /// U64 address of bytes that are only written.
    Write,
    /// U64 address of bytes that are read and written.
    ReadWrite,
    /// A U32 constant of this launch (e.g. a layer number).
    Word,
}

/// A launch argument.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Arg {
    /// Name for people.
    pub name: String,
    /// Kind.
    pub kind: ArgKind,
}

/// One compute shader: a pure function of (region, caps, knobs); hashable through its text, printable, interpretable.
#[derive(Clone, PartialEq, Debug)]
pub struct Kernel {
    /// What it computes, e.g. `matvec_q4_k_glu`. Not part of its identity.
    pub name: String,
    /// Lanes per workgroup.
    pub workgroup_size: u32,
    /// Exact subgroup size the body relies on.
    pub subgroup_size: u32,
    /// Launch arguments, in order. On Vulkan: push constants, U64 first come 8-byte aligned in this order
    /// (the builder places all words after all addresses).
    pub args: Vec<Arg>,
    /// Workgroup memory.
    pub shared: Vec<Shared>,
    /// All operations; `Value(i)` names `ops[i]`.
    pub ops: Vec<Op>,
    /// Result types, same index.
    pub types: Vec<Type>,
    /// The body.
    pub body: Block,
}

impl Kernel {
    /// The operation that defines `v`.
    pub fn op(&self, v: Value) -> &Op {
        &self.ops[v.0 as usize]
    }
    /// The type of `v`.
    pub fn ty(&self, v: Value) -> Type {
        self.types[v.0 as usize]
    }
    /// Bytes of workgroup memory.
    pub fn shared_bytes(&self) -> u32 {
        self.shared.iter().map(|s| s.ty.bytes() * s.len).sum()
    }
    /// The bits of a constant, if `v` is one.
    pub fn constant(&self, v: Value) -> Option<u64> {
        match self.op(v) {
            Op::Const(bits) => Some(*bits),
            _ => None,
        }
    }
}
