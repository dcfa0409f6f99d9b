//! GGUF model files: memory map, metadata, tensor directory, split files, and a writer.
//!
//! ```text
//! path ─open─► map of each part ─parse─► Metadata (ordered keys and values)
//!                                   └──► [TensorInfo] ─data─► &[u8] straight from the map
//! GgufWriter ─► bytes or a file
//! ```
//!
//! This crate knows bytes and names and does no arithmetic on weights. Nothing in a file is
//! trusted: every count, length, offset and alignment is checked before use, and a damaged file
//! gives a [`GgufError`] that names the field.

mod cursor;
mod error;
mod file;
mod metadata;
mod parse;
mod split;
mod tensor;
mod value;
mod writer;

pub use error::GgufError;
pub use file::Gguf;
pub use metadata::Metadata;
pub use tensor::{TensorInfo, TensorType, UnknownTensorType};
pub use value::{Array, Strings, Value, ValueType};
pub use writer::GgufWriter;
