//! Writes GGUF files: for tests, and for tools that make or shrink models.
//!
//! ```text
//! set(key, value)… · tensor(name, shape, type, data)… ─check─► header · padding · data
//! ```

use std::borrow::Cow;
use std::collections::HashSet;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use crate::parse::{ALIGNMENT_KEY, alignment};
use crate::tensor::checked_bytes;
use crate::{Array, GgufError, Metadata, TensorType, Value};

/// Collects metadata and tensors, then writes them as one GGUF file.
///
/// Tensor data may be borrowed, such as from an opened [`crate::Gguf`].
#[derive(Clone, Debug)]
pub struct GgufWriter<'a> {
    version: u32,
    metadata: Metadata,
    tensors: Vec<Tensor<'a>>,
}

#[derive(Clone, Debug)]
struct Tensor<'a> {
    name: String,
    shape: Vec<usize>,
    ty: TensorType,
    data: Cow<'a, [u8]>,
}

impl Default for GgufWriter<'_> {
    fn default() -> Self {
        Self::new()
    }
}

impl<'a> GgufWriter<'a> {
    /// An empty file of version 3 with the default alignment of 32 bytes.
    pub fn new() -> Self {
        Self { version: 3, metadata: Metadata::new(), tensors: Vec::new() }
    }

    /// Chooses the format version; 2 and 3 differ only in this number.
    ///
    /// # Errors
    /// [`GgufError::Version`] for any other.
    pub fn set_version(&mut self, version: u32) -> Result<&mut Self, GgufError> {
        if !matches!(version, 2 | 3) {
            return Err(GgufError::Version { version });
        }
        self.version = version;
        Ok(self)
    }

    /// Sets a metadata key, replacing an earlier value. The alignment of tensor data is the key
    /// `general.alignment`.
    pub fn set(&mut self, key: impl Into<String>, value: impl Into<Value>) -> &mut Self {
        self.metadata.insert(key, value);
        self
    }

    /// Sets the alignment of tensor data in bytes: a power of two from 8 to 2^20 (checked on writing).
    pub fn set_alignment(&mut self, alignment: u32) -> &mut Self {
        self.set(ALIGNMENT_KEY, alignment)
    }

    /// Adds a tensor: `shape` in ggml's order (row length first), `data` as the type lays it out.
    ///
    /// # Errors
    /// If the shape is impossible for the type, or `data` has not the size that they demand.
    pub fn tensor(
        &mut self,
        name: impl Into<String>,
        shape: &[usize],
        ty: TensorType,
        data: impl Into<Cow<'a, [u8]>>,
    ) -> Result<&mut Self, GgufError> {
        let (name, data) = (name.into(), data.into());
        let expected = checked_bytes(&name, ty, shape)?;
        if data.len() != expected {
            return Err(GgufError::DataSize { tensor: name, expected, found: data.len() });
        }
        self.tensors.push(Tensor { name, shape: shape.to_vec(), ty, data });
        Ok(self)
    }

    /// The file as bytes.
    ///
    /// # Errors
    /// [`GgufError::Alignment`] or [`GgufError::DuplicateTensor`].
    pub fn to_bytes(&self) -> Result<Vec<u8>, GgufError> {
        let header = self.header()?;
        let mut bytes = Vec::new();
        self.write_to(&header, &mut bytes).expect("a vector takes all bytes");
        Ok(bytes)
    }

    /// Writes the file to `path`, replacing what was there.
    ///
    /// # Errors
    /// As [`Self::to_bytes`], or [`GgufError::Io`].
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), GgufError> {
        let path = path.as_ref();
        let header = self.header()?;
        let write = || -> io::Result<()> {
            let mut out = BufWriter::new(std::fs::File::create(path)?);
            self.write_to(&header, &mut out)?;
            out.flush()
        };
        write().map_err(|source| GgufError::Io { path: path.to_owned(), source })
    }

    /// Everything before the data section, padded.
    fn header(&self) -> Result<Header, GgufError> {
        let alignment = alignment(&self.metadata)?;
        let mut out = Vec::new();
        out.extend_from_slice(b"GGUF");
        out.extend_from_slice(&self.version.to_le_bytes());
        put_count(&mut out, self.tensors.len());
        put_count(&mut out, self.metadata.len());
        for (key, value) in self.metadata.iter() {
            put_string(&mut out, key);
            put_value(&mut out, value);
        }
        let mut names = HashSet::new();
        let mut offset = 0_u64;
        for tensor in &self.tensors {
            if !names.insert(&tensor.name) {
                return Err(GgufError::DuplicateTensor { name: tensor.name.clone() });
            }
            put_string(&mut out, &tensor.name);
            out.extend_from_slice(&(tensor.shape.len() as u32).to_le_bytes());
            for &n in &tensor.shape {
                put_count(&mut out, n);
            }
            out.extend_from_slice(&tensor.ty.id().to_le_bytes());
            out.extend_from_slice(&offset.to_le_bytes());
            // Cannot overflow: the data are in memory.
            offset += (tensor.data.len() as u64).next_multiple_of(alignment);
        }
        let padding = padding(out.len(), alignment);
        out.resize(out.len() + padding, 0);
        Ok(Header { bytes: out, alignment })
    }

    fn write_to(&self, header: &Header, out: &mut impl Write) -> io::Result<()> {
        out.write_all(&header.bytes)?;
        for tensor in &self.tensors {
            out.write_all(&tensor.data)?;
            io::copy(&mut io::Read::take(io::repeat(0), padding(tensor.data.len(), header.alignment) as u64), out)?;
        }
        Ok(())
    }
}

/// A checked and encoded header, and what its data section is aligned to.
struct Header {
    bytes: Vec<u8>,
    alignment: u64,
}

/// Bytes from `length` to the next multiple of `alignment`.
fn padding(length: usize, alignment: u64) -> usize {
    let length = length as u64;
    (length.next_multiple_of(alignment) - length) as usize
}

fn put_count(out: &mut Vec<u8>, n: usize) {
    out.extend_from_slice(&(n as u64).to_le_bytes());
}

fn put_string(out: &mut Vec<u8>, s: &str) {
    put_count(out, s.len());
    out.extend_from_slice(s.as_bytes());
}

fn put_value(out: &mut Vec<u8>, value: &Value) {
    out.extend_from_slice(&value.ty().id().to_le_bytes());
    match value {
        Value::U8(v) => out.extend_from_slice(&v.to_le_bytes()),
        Value::I8(v) => out.extend_from_slice(&v.to_le_bytes()),
        Value::U16(v) => out.extend_from_slice(&v.to_le_bytes()),
        Value::I16(v) => out.extend_from_slice(&v.to_le_bytes()),
        Value::U32(v) => out.extend_from_slice(&v.to_le_bytes()),
        Value::I32(v) => out.extend_from_slice(&v.to_le_bytes()),
        Value::U64(v) => out.extend_from_slice(&v.to_le_bytes()),
        Value::I64(v) => out.extend_from_slice(&v.to_le_bytes()),
        Value::F32(v) => out.extend_from_slice(&v.to_le_bytes()),
        Value::F64(v) => out.extend_from_slice(&v.to_le_bytes()),
        Value::Bool(v) => out.push((*v).into()),
        Value::String(v) => put_string(out, v),
        Value::Array(v) => put_array(out, v),
    }
}

fn put_array(out: &mut Vec<u8>, array: &Array) {
    fn put_all<T: Copy, const N: usize>(out: &mut Vec<u8>, v: &[T], convert: fn(T) -> [u8; N]) {
        out.extend(v.iter().flat_map(|&x| convert(x)));
    }
    out.extend_from_slice(&array.element_type().id().to_le_bytes());
    put_count(out, array.len());
    match array {
        Array::U8(v) => out.extend_from_slice(v),
        Array::I8(v) => put_all(out, v, i8::to_le_bytes),
        Array::U16(v) => put_all(out, v, u16::to_le_bytes),
        Array::I16(v) => put_all(out, v, i16::to_le_bytes),
        Array::U32(v) => put_all(out, v, u32::to_le_bytes),
        Array::I32(v) => put_all(out, v, i32::to_le_bytes),
        Array::U64(v) => put_all(out, v, u64::to_le_bytes),
        Array::I64(v) => put_all(out, v, i64::to_le_bytes),
        Array::F32(v) => put_all(out, v, f32::to_le_bytes),
        Array::F64(v) => put_all(out, v, f64::to_le_bytes),
        Array::Bool(v) => put_all(out, v, |x| [x.into()]),
        Array::String(v) => v.iter().for_each(|s| put_string(out, s)),
        Array::Array(v) => v.iter().for_each(|inner| put_array(out, inner)),
    }
}
