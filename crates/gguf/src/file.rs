//! An opened model: the mapped parts, the merged tensor directory, and the bytes of a tensor.
//!
//! ```text
//! path ─► map ─► header ─split.count > 1?─► map and read the sibling parts ─► Gguf
//! ```

use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::path::{Path, PathBuf};

use crate::parse::{Header, header};
use crate::split;
use crate::{GgufError, Metadata, TensorInfo};

/// The bytes of one part.
enum Bytes {
    Map(memmap2::Mmap),
    Owned(Vec<u8>),
}

impl Bytes {
    fn as_slice(&self) -> &[u8] {
        match self {
            Self::Map(map) => map,
            Self::Owned(vec) => vec,
        }
    }
}

/// An opened GGUF model, of one file or of several parts.
pub struct Gguf {
    version: u32,
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
    index: HashMap<String, usize>,
    parts: Vec<Bytes>,
    paths: Vec<PathBuf>,
}

impl fmt::Debug for Gguf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gguf")
            .field("version", &self.version)
            .field("paths", &self.paths)
            .field("metadata_keys", &self.metadata.len())
            .field("tensors", &self.tensors.len())
            .finish()
    }
}

impl Gguf {
    /// Opens a model by memory map. Of a split model any part may be named; the others are opened
    /// too, from the same folder. No weight is read yet.
    ///
    /// The files must not be cut or overwritten while the model is open: reading a tensor would
    /// then give changed bytes, or end the process.
    ///
    /// # Errors
    /// [`GgufError::InFile`] (or [`GgufError::Io`], [`GgufError::MissingPart`]) with the part that is missing, damaged or does not
    /// belong to the others.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, GgufError> {
        let path = path.as_ref();
        let bytes = map(path)?;
        let first = header(bytes.as_slice(), 0).map_err(|e| e.in_file(path))?;
        let (number, count) = split::part_of(&first.metadata).map_err(|e| e.in_file(path))?;
        if count == 1 {
            return Self::assemble(vec![(bytes, first)], vec![path.to_owned()]);
        }
        let paths = split::part_paths(path, number, count).map_err(|e| e.in_file(path))?;
        let mut parts = Vec::new();
        for (i, path) in paths.iter().enumerate() {
            let bytes = map(path).map_err(|error| match error {
                GgufError::Io { path, source } if source.kind() == std::io::ErrorKind::NotFound => {
                    GgufError::MissingPart { path, count }
                }
                other => other,
            })?;
            let header = header(bytes.as_slice(), i).map_err(|e| e.in_file(path))?;
            split::check_part(&header.metadata, i as u64, count).map_err(|e| e.in_file(path))?;
            parts.push((bytes, header));
        }
        Self::assemble(parts, paths)
    }

    /// Reads a model from memory; for tests and fuzzing. A part of a split model is an error,
    /// since its siblings cannot be found.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self, GgufError> {
        let header = header(&bytes, 0)?;
        let (number, count) = split::part_of(&header.metadata)?;
        if count != 1 {
            return Err(GgufError::SplitName { part: number.saturating_add(1), count });
        }
        Self::assemble(vec![(Bytes::Owned(bytes), header)], Vec::new())
    }

    /// Merges the headers of all parts; the first one's metadata are the model's.
    fn assemble(parts: Vec<(Bytes, Header)>, paths: Vec<PathBuf>) -> Result<Self, GgufError> {
        let mut gguf = Self {
            version: 0,
            metadata: Metadata::new(),
            tensors: Vec::new(),
            index: HashMap::new(),
            parts: Vec::new(),
            paths,
        };
        for (i, (bytes, header)) in parts.into_iter().enumerate() {
            if i == 0 {
                gguf.version = header.version;
                gguf.metadata = header.metadata;
            }
            for tensor in header.tensors {
                if gguf.index.insert(tensor.name.clone(), gguf.tensors.len()).is_some() {
                    let error = GgufError::DuplicateTensor { name: tensor.name };
                    return Err(gguf.locate(error, i));
                }
                gguf.tensors.push(tensor);
            }
            gguf.parts.push(bytes);
        }
        if gguf.parts.len() > 1 {
            split::check_total(&gguf.metadata, gguf.tensors.len()).map_err(|e| gguf.locate(e, 0))?;
        }
        Ok(gguf)
    }

    /// Adds the path of a part to an error, if the part has one.
    fn locate(&self, error: GgufError, part: usize) -> GgufError {
        match self.paths.get(part) {
            Some(path) => error.in_file(path),
            None => error,
        }
    }

    /// The format version: 2 or 3.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// The model's metadata; of a split model those of the first part.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// All tensors in the order of the file, part after part.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// The tensor of this name.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.index.get(name).map(|&i| &self.tensors[i])
    }

    /// The tensor's bytes (`tensor.bytes` of them), straight from the map. The start is aligned in
    /// the file to `general.alignment` (at least 8).
    ///
    /// # Panics
    /// If the tensor comes from another model. For one of this model the range was checked on opening.
    pub fn data(&self, tensor: &TensorInfo) -> &[u8] {
        let start = tensor.offset as usize;
        &self.parts[tensor.part].as_slice()[start..start + tensor.bytes]
    }

    /// The size of the file, or of all parts together, in bytes.
    pub fn file_bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.as_slice().len() as u64).sum()
    }

    /// The files, in the order of the parts; empty for a model from memory.
    pub fn paths(&self) -> &[PathBuf] {
        &self.paths
    }
}

fn map(path: &Path) -> Result<Bytes, GgufError> {
    let io = |source| GgufError::Io { path: path.to_owned(), source };
    // Before opening: opening a pipe would wait for somebody to write into it.
    let kind = std::fs::metadata(path).map_err(io)?.file_type();
    if !kind.is_file() {
        let what = if kind.is_dir() { "a folder" } else { "a pipe or a device" };
        return Err(GgufError::NoFile { path: path.to_owned(), what });
    }
    let file = File::open(path).map_err(io)?;
    // SAFETY: the map is read-only and lives as long as the slices made of it. Rust cannot rule out
    // that another process changes the file meanwhile; `Gguf::open` makes that the caller's promise,
    // and no value read here is used unchecked: a change can give wrong weights or end the process
    // (a signal for pages past the new end), not memory corruption in this program.
    let map = unsafe { memmap2::Mmap::map(&file) }.map_err(io)?;
    Ok(Bytes::Map(map))
}
