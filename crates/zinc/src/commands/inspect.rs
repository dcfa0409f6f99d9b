//! `zinc inspect`: what a model file holds.

use crate::args::ModelArgs;
use crate::failure::usage;
use crate::output::{plain, print_line};
use crate::source;
use anyhow::Result;
use clap::Args;
use serde_json::{Map, Value as Json, json};
use std::collections::BTreeMap;
use std::fmt::Write;
use zinc_gguf::{Array, Gguf, Value};

/// Array elements and text characters shown to people.
const SHOWN: usize = 6;
const SHOWN_TEXT: usize = 120;

/// Shows metadata, tensors, sizes and formats of a GGUF file, also of one that Zinc cannot run.
#[derive(Args, Debug)]
pub(crate) struct Arguments {
    #[command(flatten)]
    model: ModelArgs,
    /// Print one JSON object with everything but long arrays' elements
    #[arg(long)]
    json: bool,
    /// Show whole arrays and texts
    #[arg(long)]
    full: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    if arguments.model.shape.is_some() {
        return Err(usage("a shape has no file; see `zinc explain --stage spec`"));
    }
    let gguf = source::gguf(&source::file(&arguments.model, None)?)?;
    let supported = zinc_models::open(&gguf).map(|_| ()).map_err(|e| e.to_string());
    let text = match arguments.json {
        true => serde_json::to_string_pretty(&as_json(&gguf, &supported, arguments.full))?,
        false => as_text(&gguf, &supported, arguments.full)?,
    };
    print_line(text.trim_end())
}

/// Tensors and bytes by format.
fn formats(gguf: &Gguf) -> BTreeMap<&'static str, (usize, u64)> {
    let mut formats = BTreeMap::new();
    for tensor in gguf.tensors() {
        let row: &mut (usize, u64) = formats.entry(tensor.ty.name()).or_default();
        *row = (row.0 + 1, row.1 + tensor.bytes as u64);
    }
    formats
}

fn as_text(gguf: &Gguf, supported: &Result<(), String>, full: bool) -> Result<String> {
    let mut out = String::new();
    for path in gguf.paths() {
        writeln!(out, "file       {}", path.display())?;
    }
    writeln!(out, "version    GGUF {}", gguf.version())?;
    writeln!(out, "size       {} bytes", gguf.file_bytes())?;
    let parameters: u64 = gguf.tensors().iter().map(|t| t.elements() as u64).sum();
    writeln!(out, "parameters {parameters}")?;
    match supported {
        Ok(()) => writeln!(out, "usable     yes")?,
        Err(reason) => writeln!(out, "usable     no: {}", plain(reason))?,
    }
    writeln!(out, "\nmetadata ({})", gguf.metadata().len())?;
    for (key, value) in gguf.metadata().iter() {
        writeln!(out, "  {:<44} {}", plain(key), plain(&shown(value, full)))?;
    }
    writeln!(out, "\nformats")?;
    for (name, (tensors, bytes)) in formats(gguf) {
        writeln!(out, "  {name:<8} {tensors:>5} tensors {bytes:>14} bytes")?;
    }
    writeln!(out, "\ntensors ({})", gguf.tensors().len())?;
    for t in gguf.tensors() {
        let shape: Vec<String> = t.shape.iter().map(usize::to_string).collect();
        writeln!(out, "  {:<32} {:<8} {:<20} {:>12} bytes", plain(&t.name), t.ty.name(), shape.join(" x "), t.bytes)?;
    }
    Ok(out)
}

/// A value on one line.
fn shown(value: &Value, full: bool) -> String {
    match value {
        Value::String(text) if !full && text.chars().count() > SHOWN_TEXT => {
            let start: String = text.chars().take(SHOWN_TEXT).collect();
            format!("{start:?} … ({} bytes)", text.len())
        }
        Value::Array(array) if !full && array.len() > SHOWN => {
            let start: Vec<String> = elements(array, SHOWN).iter().map(Json::to_string).collect();
            format!("[{}, …] ({} of {})", start.join(", "), array.len(), array.element_type().name())
        }
        _ => scalar(value, full).to_string(),
    }
}

fn as_json(gguf: &Gguf, supported: &Result<(), String>, full: bool) -> Json {
    let metadata: Map<String, Json> =
        gguf.metadata().iter().map(|(key, value)| (key.to_owned(), scalar(value, full))).collect();
    let tensors: Vec<Json> = gguf
        .tensors()
        .iter()
        .map(|t| {
            json!({
                "name": t.name, "type": t.ty.name(), "shape": t.shape,
                "bytes": t.bytes, "offset": t.offset, "part": t.part,
            })
        })
        .collect();
    let formats: Map<String, Json> = formats(gguf)
        .into_iter()
        .map(|(name, (tensors, bytes))| (name.to_owned(), json!({ "tensors": tensors, "bytes": bytes })))
        .collect();
    let paths: Vec<String> = gguf.paths().iter().map(|p| p.display().to_string()).collect();
    json!({
        "files": paths,
        "version": gguf.version(),
        "bytes": gguf.file_bytes(),
        "parameters": gguf.tensors().iter().map(|t| t.elements() as u64).sum::<u64>(),
        "usable": supported.is_ok(),
        "unusable_because": supported.as_ref().err(),
        "metadata": metadata,
        "formats": formats,
        "tensors": tensors,
    })
}

/// A value as JSON; a long array as `{"type", "length"}` unless `full`.
fn scalar(value: &Value, full: bool) -> Json {
    match value {
        Value::F32(x) => json!(x),
        Value::F64(x) => json!(x),
        Value::Bool(x) => json!(x),
        Value::String(text) => json!(text),
        Value::Array(array) if full || array.len() <= SHOWN => Json::Array(elements(array, usize::MAX)),
        Value::Array(array) => json!({ "type": array.element_type().name(), "length": array.len() }),
        integer => integer.as_integer().map_or(Json::Null, |n| match u64::try_from(n) {
            Ok(n) => json!(n),
            Err(_) => json!(n as i64),
        }),
    }
}

/// The first `most` elements.
fn elements(array: &Array, most: usize) -> Vec<Json> {
    match array {
        Array::F32(xs) => xs.iter().take(most).map(|x| json!(x)).collect(),
        Array::F64(xs) => xs.iter().take(most).map(|x| json!(x)).collect(),
        Array::Bool(xs) => xs.iter().take(most).map(|x| json!(x)).collect(),
        Array::String(xs) => xs.iter().take(most).map(|x| json!(x)).collect(),
        Array::Array(xs) => xs.iter().take(most).map(|x| Json::Array(elements(x, most))).collect(),
        integers => {
            let values = integers.integers().into_iter().flatten().take(most);
            values.map(|n| u64::try_from(n).map_or_else(|_| json!(n as i64), |n| json!(n))).collect()
        }
    }
}
