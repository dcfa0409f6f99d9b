//! The header of one file: magic, version, metadata and tensor directory.
//!
//! ```text
//! "GGUF" · version · n tensors · n keys · keys and values · tensor directory · padding · data
//! ```
//!
//! Only the header is read; the data section is checked by arithmetic alone, so a 100 GB file
//! opens without touching its weights.

use std::collections::HashSet;

use crate::cursor::Cursor;
use crate::tensor::{checked_bytes, type_of};
use crate::{Array, GgufError, Metadata, Strings, TensorInfo, Value, ValueType};

/// The key that sets the alignment of tensor data.
pub(crate) const ALIGNMENT_KEY: &str = "general.alignment";
/// The alignment without that key.
pub(crate) const DEFAULT_ALIGNMENT: u64 = 32;

/// The largest alignment accepted, in bytes: far above any page, and small enough that a damaged
/// value cannot make a writer pad by gigabytes.
const MOST_ALIGNMENT: u64 = 1 << 20;

/// How deep arrays may nest. Real files have no array of arrays at all.
const DEEPEST: u32 = 8;
/// Key length, value type and a one-byte value.
const LEAST_ENTRY_BYTES: u64 = 8 + 4 + 1;
/// Name length, number of dimensions, type and offset.
const LEAST_TENSOR_BYTES: u64 = 8 + 4 + 4 + 8;

/// What the header of one file says.
#[derive(Debug)]
pub(crate) struct Header {
    pub(crate) version: u32,
    pub(crate) metadata: Metadata,
    pub(crate) tensors: Vec<TensorInfo>,
}

/// A directory entry before the alignment and the data section are known.
struct Entry {
    name: String,
    shape: Vec<usize>,
    ty: crate::TensorType,
    /// From the start of the data section.
    offset: u64,
    bytes: usize,
}

/// Reads and checks the header of `file`, the bytes of part `part` of a model.
pub(crate) fn header(file: &[u8], part: usize) -> Result<Header, GgufError> {
    let mut cursor = Cursor::new(file);
    let version = magic_and_version(file, &mut cursor)?;
    let tensor_count = cursor.count(LEAST_TENSOR_BYTES, format_args!("the number of tensors"))?;
    let entry_count = cursor.count(LEAST_ENTRY_BYTES, format_args!("the number of metadata keys"))?;

    let mut metadata = Metadata::new();
    for i in 0..entry_count {
        let key = cursor.string(format_args!("metadata key {i}"))?;
        let ty = value_type(&mut cursor, format_args!("metadata key {key:?}"))?;
        let value = value(&mut cursor, ty, key)?;
        metadata.insert_new(key, value)?;
    }
    let alignment = alignment(&metadata)?;

    let mut entries = Vec::new();
    let mut names = HashSet::new();
    for i in 0..tensor_count {
        let entry = entry(&mut cursor, i)?;
        if !names.insert(entry.name.clone()) {
            return Err(GgufError::DuplicateTensor { name: entry.name });
        }
        entries.push(entry);
    }

    // A file without tensors may end right after its header, without padding.
    let start = (cursor.position() as u64).next_multiple_of(alignment).min(file.len() as u64);
    let tensors = place(entries, start, file.len() as u64 - start, alignment, part)?;
    Ok(Header { version, metadata, tensors })
}

fn magic_and_version(file: &[u8], cursor: &mut Cursor<'_>) -> Result<u32, GgufError> {
    if !file.starts_with(b"GGUF") {
        return Err(GgufError::NotGguf {
            start: format!("\"{}\"", file[..file.len().min(4)].escape_ascii()),
            hint: foreign_file_hint(file),
        });
    }
    cursor.array::<4>(format_args!("the magic number"))?;
    let version = cursor.u32(format_args!("the version"))?;
    match version {
        2 | 3 => Ok(version),
        // A small number in reversed byte order.
        _ if version != 0 && version & 0xffff == 0 => Err(GgufError::BigEndian { version: version.swap_bytes() }),
        _ => Err(GgufError::Version { version }),
    }
}

/// What a file that is not GGUF most likely is.
fn foreign_file_hint(file: &[u8]) -> &'static str {
    const KNOWN: [(&[u8], &str); 6] = [
        (b"lmgg", "it is a model in the old GGML format, get the model as GGUF"),
        (b"fmgg", "it is a model in the old GGMF format, get the model as GGUF"),
        (b"tjgg", "it is a model in the old GGJT format, get the model as GGUF"),
        (b"version https://git-lfs", "it is a Git LFS pointer, fetch the file itself with `git lfs pull`"),
        (b"<", "it is a web page, the download went wrong"),
        (b"PK", "it is a ZIP archive (perhaps PyTorch weights), get the model as GGUF"),
    ];
    if file.is_empty() {
        return "the file is empty, download it again";
    }
    let row = KNOWN.iter().find(|(start, _)| file.starts_with(start));
    row.map_or("get the model as a .gguf file", |row| row.1)
}

fn value_type(cursor: &mut Cursor<'_>, field: std::fmt::Arguments<'_>) -> Result<ValueType, GgufError> {
    let id = cursor.u32(format_args!("the type of {field}"))?;
    ValueType::from_id(id).ok_or_else(|| GgufError::ValueType { field: field.to_string(), id })
}

fn value(cursor: &mut Cursor<'_>, ty: ValueType, key: &str) -> Result<Value, GgufError> {
    let field = format_args!("metadata key {key:?}");
    Ok(match ty {
        ValueType::U8 => Value::U8(u8::from_le_bytes(cursor.array(field)?)),
        ValueType::I8 => Value::I8(i8::from_le_bytes(cursor.array(field)?)),
        ValueType::U16 => Value::U16(u16::from_le_bytes(cursor.array(field)?)),
        ValueType::I16 => Value::I16(i16::from_le_bytes(cursor.array(field)?)),
        ValueType::U32 => Value::U32(cursor.u32(field)?),
        ValueType::I32 => Value::I32(i32::from_le_bytes(cursor.array(field)?)),
        ValueType::U64 => Value::U64(cursor.u64(field)?),
        ValueType::I64 => Value::I64(i64::from_le_bytes(cursor.array(field)?)),
        ValueType::F32 => Value::F32(f32::from_le_bytes(cursor.array(field)?)),
        ValueType::F64 => Value::F64(f64::from_le_bytes(cursor.array(field)?)),
        ValueType::Bool => Value::Bool(cursor.bool(field)?),
        ValueType::String => Value::String(cursor.string(field)?.to_owned()),
        ValueType::Array => Value::Array(array(cursor, key, 1)?),
    })
}

fn array(cursor: &mut Cursor<'_>, key: &str, depth: u32) -> Result<Array, GgufError> {
    let field = format_args!("the array in metadata key {key:?}");
    if depth > DEEPEST {
        return Err(GgufError::Nesting { field: field.to_string(), limit: DEEPEST });
    }
    let ty = value_type(cursor, field)?;
    let n = cursor.count(ty.least_bytes(), format_args!("the length of {field}"))?;
    Ok(match ty {
        ValueType::U8 => Array::U8(cursor.numbers(n, u8::from_le_bytes, field)?),
        ValueType::I8 => Array::I8(cursor.numbers(n, i8::from_le_bytes, field)?),
        ValueType::U16 => Array::U16(cursor.numbers(n, u16::from_le_bytes, field)?),
        ValueType::I16 => Array::I16(cursor.numbers(n, i16::from_le_bytes, field)?),
        ValueType::U32 => Array::U32(cursor.numbers(n, u32::from_le_bytes, field)?),
        ValueType::I32 => Array::I32(cursor.numbers(n, i32::from_le_bytes, field)?),
        ValueType::U64 => Array::U64(cursor.numbers(n, u64::from_le_bytes, field)?),
        ValueType::I64 => Array::I64(cursor.numbers(n, i64::from_le_bytes, field)?),
        ValueType::F32 => Array::F32(cursor.numbers(n, f32::from_le_bytes, field)?),
        ValueType::F64 => Array::F64(cursor.numbers(n, f64::from_le_bytes, field)?),
        // The vectors below grow as elements are read, so a wrong count costs nothing.
        ValueType::Bool => {
            let mut list = Vec::new();
            for i in 0..n {
                list.push(cursor.bool(format_args!("element {i} of {field}"))?);
            }
            Array::Bool(list)
        }
        ValueType::String => {
            let mut list = Strings::new();
            for i in 0..n {
                list.push(cursor.string(format_args!("element {i} of {field}"))?);
            }
            Array::String(list)
        }
        ValueType::Array => {
            let mut list = Vec::new();
            for _ in 0..n {
                list.push(array(cursor, key, depth + 1)?);
            }
            Array::Array(list)
        }
    })
}

/// The alignment of tensor data in bytes.
pub(crate) fn alignment(metadata: &Metadata) -> Result<u64, GgufError> {
    let alignment = metadata.u32(ALIGNMENT_KEY)?.map_or(DEFAULT_ALIGNMENT, u64::from);
    if !(8..=MOST_ALIGNMENT).contains(&alignment) || !alignment.is_power_of_two() {
        return Err(GgufError::Alignment { alignment });
    }
    Ok(alignment)
}

fn entry(cursor: &mut Cursor<'_>, i: usize) -> Result<Entry, GgufError> {
    let name = cursor.string(format_args!("the name of tensor {i}"))?;
    let count = cursor.u32(format_args!("the number of dimensions of tensor {name:?}"))?;
    if count > 4 {
        return Err(GgufError::Dimensions { tensor: name.to_owned(), count: count.into() });
    }
    let mut shape = Vec::with_capacity(count as usize);
    for d in 0..count {
        let n = cursor.u64(format_args!("dimension {d} of tensor {name:?}"))?;
        let n = usize::try_from(n).map_err(|_| GgufError::TensorTooLarge { tensor: name.to_owned() })?;
        shape.push(n);
    }
    let ty = type_of(name, cursor.u32(format_args!("the type of tensor {name:?}"))?)?;
    let offset = cursor.u64(format_args!("the offset of tensor {name:?}"))?;
    let bytes = checked_bytes(name, ty, &shape)?;
    Ok(Entry { name: name.to_owned(), shape, ty, offset, bytes })
}

/// Checks that every tensor lies aligned inside the data section and shares no byte with another,
/// and turns offsets in the section into offsets in the file.
fn place(
    entries: Vec<Entry>,
    start: u64,
    available: u64,
    alignment: u64,
    part: usize,
) -> Result<Vec<TensorInfo>, GgufError> {
    for e in &entries {
        if !e.offset.is_multiple_of(alignment) {
            return Err(GgufError::Misaligned { tensor: e.name.clone(), offset: e.offset, alignment });
        }
        let bytes = e.bytes as u64;
        let end = e.offset.checked_add(bytes);
        if end.is_none_or(|end| end > available) {
            return Err(GgufError::OutOfFile { tensor: e.name.clone(), offset: e.offset, bytes, available });
        }
    }
    let mut order: Vec<&Entry> = entries.iter().collect();
    order.sort_by_key(|e| e.offset);
    for pair in order.windows(2) {
        if pair[0].offset + pair[0].bytes as u64 > pair[1].offset {
            return Err(GgufError::Overlap { first: pair[0].name.clone(), second: pair[1].name.clone() });
        }
    }
    let tensors = entries.into_iter().map(|e| TensorInfo {
        name: e.name,
        shape: e.shape,
        ty: e.ty,
        // Cannot overflow: both lie inside the file.
        offset: start + e.offset,
        bytes: e.bytes,
        part,
    });
    Ok(tensors.collect())
}
