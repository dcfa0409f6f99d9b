//! Where a model comes from: a file, the default model, or a shape with made-up weights.
//!
//! ```text
//! ModelArgs ─► Source { name, model (spec, graph), weights } ─► tokenizer, chat template
//! ```

use crate::args::ModelArgs;
use crate::default_model;
use crate::failure::usage;
use crate::interrupt::Interrupt;
use crate::output::plain;
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use zinc_gguf::Gguf;
use zinc_ir::device::WeightSource;
use zinc_models::{GgufWeights, Model};
use zinc_text::{Tokenizer, chat_template_source};

/// A model that can be loaded onto a device.
pub(crate) struct Source {
    /// Name for reports: the model's own, or the file's.
    pub(crate) name: String,
    /// Numbers and computation.
    pub(crate) model: Model,
    /// The file, if there is one.
    pub(crate) gguf: Option<Arc<Gguf>>,
    /// Weights.
    pub(crate) weights: Box<dyn WeightSource + Send>,
}

/// The model file that the arguments name, which may have to be obtained first.
pub(crate) fn file(arguments: &ModelArgs, interrupt: Option<&Interrupt>) -> Result<PathBuf> {
    match arguments.path.as_ref().or(arguments.model.as_ref()) {
        Some(path) => Ok(path.clone()),
        None => default_model::obtain(interrupt),
    }
}

/// Opens a model file.
pub(crate) fn gguf(path: &Path) -> Result<Gguf> {
    // Its errors name the file.
    Gguf::open(path).context("cannot open the model")
}

impl Source {
    /// Opens what the arguments name.
    pub(crate) fn open(arguments: &ModelArgs, interrupt: Option<&Interrupt>) -> Result<Source> {
        match &arguments.shape {
            Some(shape) => Source::shape(shape, arguments.layers),
            None => Source::file(&file(arguments, interrupt)?),
        }
    }

    /// Only the tokenizer of what the arguments name; works for models that cannot be run, too.
    pub(crate) fn open_tokenizer(arguments: &ModelArgs) -> Result<Tokenizer> {
        if arguments.shape.is_some() {
            return Source::open(arguments, None)?.tokenizer();
        }
        Tokenizer::from_metadata(gguf(&file(arguments, None)?)?.metadata()).context("cannot use the model's tokenizer")
    }

    fn file(path: &Path) -> Result<Source> {
        let gguf = Arc::new(gguf(path)?);
        let model = zinc_models::open(&gguf).with_context(|| format!("cannot use the model {}", path.display()))?;
        let weights = Box::new(GgufWeights::new(gguf.clone(), &model.graph)?);
        let stem = || path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let name = plain(&model.spec.name.clone().filter(|name| !name.is_empty()).unwrap_or_else(stem));
        Ok(Source { name, model, gguf: Some(gguf), weights })
    }

    fn shape(shape: &str, layers: Option<u32>) -> Result<Source> {
        let (model, weights) = zinc_models::synthetic(shape, layers).map_err(|e| usage(e.to_string()))?;
        let cut = layers.map(|n| format!(" ({n} layers)")).unwrap_or_default();
        let name = format!("{}{cut}", model.spec.name.as_deref().unwrap_or(shape));
        Ok(Source { name, model, gguf: None, weights: Box::new(weights) })
    }

    /// The model's tokenizer; of a shape, a vocabulary of bytes.
    pub(crate) fn tokenizer(&self) -> Result<Tokenizer> {
        let tokenizer = match &self.gguf {
            Some(gguf) => Tokenizer::from_metadata(gguf.metadata()),
            None => Tokenizer::synthetic(self.model.spec.vocab as usize),
        };
        tokenizer.context("cannot use the model's tokenizer")
    }

    /// What the file says of how embeddings are made.
    pub(crate) fn pooling_type(&self) -> Result<Option<u32>> {
        let key = format!("{}.pooling_type", self.model.spec.architecture);
        match &self.gguf {
            Some(gguf) => Ok(gguf.metadata().u32(&key)?),
            None => Ok(None),
        }
    }

    /// The model's own chat template.
    pub(crate) fn chat_template(&self) -> Result<Option<&str>> {
        match &self.gguf {
            Some(gguf) => Ok(chat_template_source(gguf.metadata())?),
            None => Ok(None),
        }
    }
}
