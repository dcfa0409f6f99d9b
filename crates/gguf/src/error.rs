//! Everything that can be wrong with a GGUF file, in words for the person who has the file.

use std::path::PathBuf;

use crate::TensorType;

/// Why a GGUF file could not be read or written, or why a metadata value is not what was asked for.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GgufError {
    /// The operating system refused to open, map or write the file.
    #[error("cannot open or write {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// The path names something that is no file: a folder, a pipe, a device.
    #[error("{} is {what}, not a file; name a .gguf file", path.display())]
    NoFile {
        /// The path.
        path: PathBuf,
        /// What is there.
        what: &'static str,
    },
    /// Another error, with the file in which it was found.
    #[error("{}: {source}", path.display())]
    InFile {
        /// The file.
        path: PathBuf,
        /// What is wrong in it.
        #[source]
        source: Box<GgufError>,
    },
    /// The first four bytes are not `GGUF`.
    #[error("not a GGUF file: it starts with {start}; {hint}")]
    NotGguf {
        /// The first bytes, printable.
        start: String,
        /// What the file probably is and what to do.
        hint: &'static str,
    },
    /// A file for a big-endian machine.
    #[error(
        "this GGUF file is big-endian (version {version} in reversed byte order); \
         get the little-endian file of the model, or convert it with gguf_convert_endian.py"
    )]
    BigEndian {
        /// The version, in the file's byte order.
        version: u32,
    },
    /// A version that this reader does not know.
    #[error(
        "GGUF version {version} is not supported (2 and 3 are); \
         convert the model again with a current converter"
    )]
    Version {
        /// The version field of the file.
        version: u32,
    },
    /// The file ends inside a field.
    #[error(
        "the file ends inside {field}: {needed} bytes wanted at byte {offset}, {available} there; \
         the file is cut off or damaged, download it again"
    )]
    Truncated {
        /// The field being read.
        field: String,
        /// Where the field starts, in bytes from the start of the file.
        offset: u64,
        /// Bytes that the field needs.
        needed: u64,
        /// Bytes left in the file.
        available: u64,
    },
    /// A count larger than the rest of the file, or than any sane file, can hold.
    #[error(
        "{field} is {count}, but at most {limit} are possible here; \
         the file is damaged, download it again"
    )]
    Count {
        /// The count's name.
        field: String,
        /// What the file says.
        count: u64,
        /// The most that the remaining bytes (or this reader's limit) allow.
        limit: u64,
    },
    /// Text that is not UTF-8.
    #[error("{field} at byte {offset} is not valid UTF-8; the file is damaged or badly converted")]
    Utf8 {
        /// The field being read.
        field: String,
        /// Where the text starts, in bytes from the start of the file.
        offset: u64,
    },
    /// A boolean that is neither 0 nor 1.
    #[error("{field} holds {value} where a boolean (0 or 1) belongs; the file is damaged")]
    Bool {
        /// The field being read.
        field: String,
        /// The byte found.
        value: u8,
    },
    /// A metadata value type that GGUF does not define.
    #[error("{field} has unknown value type {id} (0 to 12 exist); the file is damaged or newer than this program")]
    ValueType {
        /// The field being read.
        field: String,
        /// The type id found.
        id: u32,
    },
    /// Arrays of arrays too deep.
    #[error("{field} nests arrays deeper than {limit}; the file is damaged")]
    Nesting {
        /// The field being read.
        field: String,
        /// The depth that is still accepted.
        limit: u32,
    },
    /// The same metadata key twice.
    #[error("metadata key {key:?} appears twice; the file is damaged or badly converted")]
    DuplicateKey {
        /// The key.
        key: String,
    },
    /// `general.alignment` is unusable.
    #[error("general.alignment is {alignment}; it must be a power of two from 8 to 1048576")]
    Alignment {
        /// What the file says.
        alignment: u64,
    },
    /// A tensor with more than four dimensions.
    #[error("tensor {tensor:?} has {count} dimensions; at most 4 are possible")]
    Dimensions {
        /// The tensor.
        tensor: String,
        /// The number of dimensions found.
        count: u64,
    },
    /// A tensor dimension of zero.
    #[error("dimension {dimension} of tensor {tensor:?} is 0; the file is damaged or badly converted")]
    ZeroDimension {
        /// The tensor.
        tensor: String,
        /// Which dimension, 0 being the fastest.
        dimension: usize,
    },
    /// A tensor type id that no longer exists or is not known yet.
    #[error("tensor {tensor:?} has type {id}, {hint}")]
    TensorType {
        /// The tensor.
        tensor: String,
        /// The type id found.
        id: u32,
        /// What the id means, and what to do.
        hint: &'static str,
    },
    /// A row that is not a whole number of quantization blocks.
    #[error("rows of tensor {tensor:?} have {row} elements, not a multiple of {ty}'s block of {}", ty.block_elements())]
    PartialBlock {
        /// The tensor.
        tensor: String,
        /// Its type.
        ty: TensorType,
        /// The first dimension.
        row: u64,
    },
    /// A tensor whose size overflows.
    #[error("the dimensions of tensor {tensor:?} multiply to more than any memory holds; the file is damaged")]
    TensorTooLarge {
        /// The tensor.
        tensor: String,
    },
    /// A tensor offset that breaks the file's alignment.
    #[error(
        "tensor {tensor:?} starts at offset {offset}, not a multiple of the alignment {alignment}; the file is damaged"
    )]
    Misaligned {
        /// The tensor.
        tensor: String,
        /// Its offset in the data section, in bytes.
        offset: u64,
        /// `general.alignment` or 32.
        alignment: u64,
    },
    /// A tensor that reaches past the end of the file.
    #[error(
        "tensor {tensor:?} ({bytes} bytes at offset {offset} of the data section) reaches past the end of the file, \
         whose data section has {available} bytes; the file is cut off, download it again"
    )]
    OutOfFile {
        /// The tensor.
        tensor: String,
        /// Its offset in the data section, in bytes.
        offset: u64,
        /// Its size in bytes.
        bytes: u64,
        /// Bytes in the file's data section.
        available: u64,
    },
    /// Two tensors that share bytes.
    #[error("tensors {first:?} and {second:?} overlap; the file is damaged")]
    Overlap {
        /// The one that starts first.
        first: String,
        /// The other.
        second: String,
    },
    /// The same tensor name twice (in one file or over all parts of a split one).
    #[error("tensor {name:?} appears twice; the file is damaged, or a part belongs to another model")]
    DuplicateTensor {
        /// The name.
        name: String,
    },
    /// A part of a split model whose name does not say where the other parts are.
    #[error(
        "this is part {part} of {count} of a split model, but the file is not named \
         NAME-{part:05}-of-{count:05}.gguf; give it and the other parts their original names"
    )]
    SplitName {
        /// Which part the metadata says it is, counted from 1.
        part: u64,
        /// How many parts there are.
        count: u64,
    },
    /// A part of a split model that is not where the others are.
    #[error("this model is split into {count} files, but {} is not there; put all of them into one folder", path.display())]
    MissingPart {
        /// Where it should be.
        path: PathBuf,
        /// How many parts there are.
        count: u64,
    },
    /// A part's `split.*` key that contradicts the other parts or the file name.
    #[error(
        "{key} is {found} where {expected} belongs; the parts of this split model do not belong together, download them again"
    )]
    Split {
        /// The key.
        key: &'static str,
        /// What belongs there.
        expected: u64,
        /// What the file says (`nothing` when the key is missing).
        found: String,
    },
    /// A metadata value of another type than was asked for.
    #[error("metadata key {key:?} is {found}, but {expected} belongs there; the file is badly converted")]
    WrongType {
        /// The key.
        key: String,
        /// What was asked for.
        expected: &'static str,
        /// What the file holds.
        found: String,
    },
    /// An integer that does not fit into the type that was asked for.
    #[error(
        "metadata key {key:?} holds {value}, outside the range of {expected}; the file is damaged or badly converted"
    )]
    OutOfRange {
        /// The key.
        key: String,
        /// The value found.
        value: i128,
        /// What was asked for.
        expected: &'static str,
    },
    /// A per-layer array with too few entries.
    #[error("metadata key {key:?} has {found} entries for {needed} layers; the file is badly converted")]
    TooFewEntries {
        /// The key.
        key: String,
        /// Entries in the file.
        found: usize,
        /// Entries wanted.
        needed: usize,
    },
    /// Tensor data handed to the writer with the wrong size.
    #[error("tensor {tensor:?} needs {expected} bytes of data, but {found} were given")]
    DataSize {
        /// The tensor.
        tensor: String,
        /// Bytes that type and shape demand.
        expected: usize,
        /// Bytes given.
        found: usize,
    },
}

impl GgufError {
    /// The same error with the file's path before it.
    pub(crate) fn in_file(self, path: &std::path::Path) -> Self {
        match self {
            Self::Io { .. } | Self::NoFile { .. } | Self::MissingPart { .. } | Self::InFile { .. } => self,
            other => Self::InFile { path: path.to_owned(), source: Box::new(other) },
        }
    }
}
