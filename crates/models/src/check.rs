//! Checks the file's tensor directory against what the architecture needs.
//!
//! ```text
//! architecture's [Expected] + Gguf ─► name → TensorSpec, or an error that names the tensor
//! ```

use crate::ModelError;
use crate::error::list;
use crate::spec::{ModelSpec, TensorSpec};
use std::collections::BTreeMap;
use zinc_gguf::{Gguf, TensorInfo};
use zinc_ir::quant::{self, FORMATS, QuantFormat, UNIT};

/// A tensor that an architecture has.
#[derive(Clone, Debug)]
pub(crate) struct Expected {
    pub(crate) name: String,
    /// Output features; 1 for vectors.
    pub(crate) rows: u32,
    /// Input features.
    pub(crate) cols: u32,
    /// Matrices in the tensor, one per expert; `rows` counts the output features of all.
    pub(crate) experts: u32,
    /// Vectors are norms, biases and tables: always F32 in files.
    pub(crate) vector: bool,
    /// Some models of the architecture lack it.
    pub(crate) optional: bool,
}

impl Expected {
    /// A `rows` × `cols` matrix.
    pub(crate) fn matrix(name: impl Into<String>, rows: u32, cols: u32) -> Expected {
        Expected { name: name.into(), rows, cols, experts: 1, vector: false, optional: false }
    }

    /// A `rows` × `cols` matrix for each of `experts`.
    pub(crate) fn stack(name: impl Into<String>, experts: u32, rows: u32, cols: u32) -> Expected {
        Expected { experts, ..Expected::matrix(name, experts * rows, cols) }
    }

    /// A vector.
    pub(crate) fn vector(name: impl Into<String>, cols: u32) -> Expected {
        Expected { name: name.into(), rows: 1, cols, experts: 1, vector: true, optional: false }
    }

    /// The same, but may be absent.
    pub(crate) fn or_absent(self) -> Expected {
        Expected { optional: true, ..self }
    }
}

/// Fills in `spec.tensors`. After this the architecture's `forward` cannot fail.
///
/// # Errors
/// A tensor is missing, unknown to the architecture, of another shape, in a format without kernels, or a vector with
/// something that is no finite number.
pub(crate) fn tensors(gguf: &Gguf, spec: &mut ModelSpec, expected: Vec<Expected>) -> Result<(), ModelError> {
    let mut tensors = BTreeMap::new();
    for e in expected {
        match gguf.tensor(&e.name) {
            Some(info) => {
                let format = checked_format(info, &e)?;
                if e.vector {
                    finite(gguf, info)?;
                }
                tensors.insert(e.name, TensorSpec { rows: e.rows, cols: e.cols, format });
            }
            None if e.optional => {}
            None => return Err(missing(&e.name, spec.architecture)),
        }
    }
    // Old converters wrote each layer's rotary table, which follows from the metadata.
    let unused = |t: &&TensorInfo| !tensors.contains_key(&t.name) && !t.name.ends_with(".attn_rot_embd.weight");
    if let Some(unknown) = gguf.tensors().iter().find(unused) {
        return Err(ModelError::UnknownTensor { name: unknown.name.clone(), architecture: spec.architecture });
    }
    spec.tensors = tensors;
    Ok(())
}

fn missing(name: &str, architecture: &'static str) -> ModelError {
    ModelError::MissingTensor { name: name.to_owned(), architecture }
}

fn checked_format(info: &TensorInfo, e: &Expected) -> Result<&'static QuantFormat, ModelError> {
    let (rows, cols) = (e.rows as usize, e.cols as usize);
    let expected = match e.experts as usize {
        _ if e.vector => vec![cols],
        1 => vec![cols, rows],
        experts => vec![cols, rows / experts, experts],
    };
    // Dimensions of 1 at the end say nothing.
    let significant = info.shape.iter().rposition(|&n| n != 1).map_or(0, |last| last + 1).max(expected.len());
    if info.shape.get(..significant) != Some(&expected[..]) {
        return Err(ModelError::TensorShape { name: info.name.clone(), found: info.shape.clone(), expected });
    }
    let format = quant::by_ggml_type(info.ty.id()).filter(|f| !e.vector || *f == quant::F32);
    let format = format.ok_or_else(|| ModelError::TensorType {
        name: info.name.clone(),
        found: info.ty.name(),
        supported: if e.vector { "F32".to_owned() } else { list(FORMATS.iter().map(|f| f.name)) },
    })?;
    let group = if e.vector { 1 } else { format.block_elems.max(UNIT) };
    if !e.cols.is_multiple_of(group) {
        let (name, cols) = (info.name.clone(), e.cols);
        return Err(ModelError::RowLength { name, cols, format: format.name, group });
    }
    let bytes = info.bytes as u64;
    if bytes > u32::MAX as u64 {
        return Err(ModelError::TensorTooLarge { name: info.name.clone(), bytes });
    }
    Ok(format)
}

/// The values of an F32 vector of the file.
fn values<'g>(gguf: &'g Gguf, info: &TensorInfo) -> impl Iterator<Item = f32> + 'g {
    gguf.data(info).chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
}

/// One NaN in a vector spoils every token's values. Matrices are not searched: that takes as long as loading them.
fn finite(gguf: &Gguf, info: &TensorInfo) -> Result<(), ModelError> {
    match values(gguf, info).enumerate().find(|(_, x)| !x.is_finite()) {
        Some((index, value)) => Err(ModelError::NotFinite { name: info.name.clone(), index, value }),
        None => Ok(()),
    }
}

/// The values of an F32 vector of the file, all of which must be positive; none if it is absent.
pub(crate) fn positive_table(gguf: &Gguf, expected: &Expected) -> Result<Vec<f32>, ModelError> {
    let Some(info) = gguf.tensor(&expected.name) else { return Ok(vec![]) };
    checked_format(info, expected)?;
    let values: Vec<f32> = values(gguf, info).collect();
    match values.iter().find(|x| !(x.is_finite() && **x > 0.0)) {
        Some(bad) => Err(ModelError::BadTable { name: expected.name.clone(), value: *bad }),
        None => Ok(values),
    }
}
