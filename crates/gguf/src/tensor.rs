//! The tensor types of ggml as one table, and where a tensor lies.

use std::fmt;
use std::str::FromStr;

use crate::GgufError;

/// One row of the table of tensor types.
struct Row {
    ty: TensorType,
    id: u32,
    name: &'static str,
    block_elements: usize,
    block_bytes: usize,
}

/// Declares the enum and its table from the same rows, so that they cannot part.
macro_rules! tensor_types {
    ($($name:ident = $id:literal, $elements:literal, $bytes:literal;)*) => {
        /// How a tensor's elements are stored, as ggml numbers and names it.
        ///
        /// Block formats store `block_elements` consecutive elements of a row in `block_bytes` bytes.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[allow(non_camel_case_types, missing_docs)] // named as in ggml
        pub enum TensorType { $($name),* }

        const ROWS: &[Row] = &[$(
            Row {
                ty: TensorType::$name,
                id: $id,
                name: stringify!($name),
                block_elements: $elements,
                block_bytes: $bytes,
            },
        )*];
    };
}

tensor_types! {
    // name    id  elements  bytes
    F32     =  0,   1,   4;
    F16     =  1,   1,   2;
    Q4_0    =  2,  32,  18;
    Q4_1    =  3,  32,  20;
    Q5_0    =  6,  32,  22;
    Q5_1    =  7,  32,  24;
    Q8_0    =  8,  32,  34;
    Q8_1    =  9,  32,  36;
    Q2_K    = 10, 256,  84;
    Q3_K    = 11, 256, 110;
    Q4_K    = 12, 256, 144;
    Q5_K    = 13, 256, 176;
    Q6_K    = 14, 256, 210;
    Q8_K    = 15, 256, 292;
    IQ2_XXS = 16, 256,  66;
    IQ2_XS  = 17, 256,  74;
    IQ3_XXS = 18, 256,  98;
    IQ1_S   = 19, 256,  50;
    IQ4_NL  = 20,  32,  18;
    IQ3_S   = 21, 256, 110;
    IQ2_S   = 22, 256,  82;
    IQ4_XS  = 23, 256, 136;
    I8      = 24,   1,   1;
    I16     = 25,   1,   2;
    I32     = 26,   1,   4;
    I64     = 27,   1,   8;
    F64     = 28,   1,   8;
    IQ1_M   = 29, 256,  56;
    BF16    = 30,   1,   2;
    TQ1_0   = 34, 256,  54;
    TQ2_0   = 35, 256,  66;
    MXFP4   = 39,  32,  17;
    NVFP4   = 40,  64,  36;
    Q1_0    = 41, 128,  18;
    Q2_0    = 42,  64,  18;
}

impl TensorType {
    fn row(self) -> &'static Row {
        // The table is declared in the order of the variants.
        &ROWS[self as usize]
    }

    /// Every type, by id.
    pub fn all() -> impl ExactSizeIterator<Item = Self> {
        ROWS.iter().map(|row| row.ty)
    }

    /// The type with ggml's id, if it still exists.
    pub fn from_id(id: u32) -> Option<Self> {
        ROWS.iter().find(|row| row.id == id).map(|row| row.ty)
    }

    /// ggml's id, as in the file.
    pub fn id(self) -> u32 {
        self.row().id
    }

    /// ggml's name: `F16`, `Q4_K` …
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// Elements in one block; 1 for plain types.
    pub fn block_elements(self) -> usize {
        self.row().block_elements
    }

    /// Bytes of one block; the element's size for plain types.
    pub fn block_bytes(self) -> usize {
        self.row().block_bytes
    }

    /// Bytes that `elements` consecutive elements take; `None` unless they are whole blocks whose
    /// size fits into `usize`.
    pub fn bytes_for(self, elements: usize) -> Option<usize> {
        let row = self.row();
        if !elements.is_multiple_of(row.block_elements) {
            return None;
        }
        (elements / row.block_elements).checked_mul(row.block_bytes)
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for TensorType {
    type Err = UnknownTensorType;

    /// Finds a type by its name, in upper or lower case.
    fn from_str(name: &str) -> Result<Self, UnknownTensorType> {
        let row = ROWS.iter().find(|row| row.name.eq_ignore_ascii_case(name));
        row.map(|row| row.ty).ok_or_else(|| UnknownTensorType { name: name.to_owned() })
    }
}

/// A name that is no tensor type's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no tensor type is named {name:?}; use a name of ggml such as F16, Q8_0 or Q4_K")]
pub struct UnknownTensorType {
    /// The name given.
    pub name: String,
}

/// What a type id that is not in the table means to the owner of the file.
fn unknown_type_hint(id: u32) -> &'static str {
    match id {
        4 | 5 | 31..=33 | 36..=38 => "which ggml has removed; get the model in a current type such as Q4_K_M or Q8_0",
        _ => "which this program does not know; the file is damaged or newer than this program",
    }
}

/// A tensor of an opened file. Only [`crate::Gguf`] makes these.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TensorInfo {
    /// The name, such as `blk.0.attn_q.weight`; unique in the model.
    pub name: String,
    /// 0 to 4 dimensions in ggml's order: `shape[0]` runs fastest and is the row length. None is 0.
    pub shape: Vec<usize>,
    /// How the elements are stored.
    pub ty: TensorType,
    /// Where the data starts, in bytes from the start of the part's file.
    pub offset: u64,
    /// The data's size in bytes.
    pub bytes: usize,
    /// Which part of a split model holds the data, counted from 0; 0 in a single file.
    pub part: usize,
}

impl TensorInfo {
    /// The number of elements: the product of the dimensions, 1 without any.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }
}

/// Looks up a type id read for `tensor`.
pub(crate) fn type_of(tensor: &str, id: u32) -> Result<TensorType, GgufError> {
    TensorType::from_id(id).ok_or_else(|| GgufError::TensorType {
        tensor: tensor.to_owned(),
        id,
        hint: unknown_type_hint(id),
    })
}

/// The bytes of a tensor of this type and shape, or what is wrong with its shape.
pub(crate) fn checked_bytes(tensor: &str, ty: TensorType, shape: &[usize]) -> Result<usize, GgufError> {
    if shape.len() > 4 {
        return Err(GgufError::Dimensions { tensor: tensor.to_owned(), count: shape.len() as u64 });
    }
    if let Some(dimension) = shape.iter().position(|&n| n == 0) {
        return Err(GgufError::ZeroDimension { tensor: tensor.to_owned(), dimension });
    }
    let row = shape.first().copied().unwrap_or(1);
    if !row.is_multiple_of(ty.block_elements()) {
        return Err(GgufError::PartialBlock { tensor: tensor.to_owned(), ty, row: row as u64 });
    }
    let elements = shape.iter().try_fold(1_usize, |product, &n| product.checked_mul(n));
    elements.and_then(|n| ty.bytes_for(n)).ok_or_else(|| GgufError::TensorTooLarge { tensor: tensor.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_the_order_of_the_variants_and_ids_are_unique() {
        for (i, row) in ROWS.iter().enumerate() {
            assert_eq!(row.ty as usize, i);
            assert_eq!(TensorType::from_id(row.id), Some(row.ty));
            assert_eq!(row.name.to_lowercase().parse(), Ok(row.ty));
        }
        assert!(ROWS.is_sorted_by_key(|row| row.id));
    }

    #[test]
    fn shapes_are_checked() {
        let bytes = |ty, shape: &[usize]| checked_bytes("t", ty, shape);
        assert_eq!(bytes(TensorType::Q4_K, &[512, 3]).unwrap(), 2 * 144 * 3);
        assert_eq!(bytes(TensorType::F32, &[]).unwrap(), 4);
        assert!(matches!(bytes(TensorType::Q4_0, &[48]), Err(GgufError::PartialBlock { row: 48, .. })));
        assert!(matches!(bytes(TensorType::F32, &[1; 5]), Err(GgufError::Dimensions { count: 5, .. })));
        assert!(matches!(bytes(TensorType::F32, &[4, 0]), Err(GgufError::ZeroDimension { dimension: 1, .. })));
        let huge = [usize::MAX / 2, 2, 2];
        assert!(matches!(bytes(TensorType::F32, &huge), Err(GgufError::TensorTooLarge { .. })));
        // The element count fits, the byte count does not.
        assert!(matches!(bytes(TensorType::F32, &[usize::MAX / 2]), Err(GgufError::TensorTooLarge { .. })));
    }
}
