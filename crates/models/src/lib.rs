//! Models: from a file's metadata to the graph of a step.
//!
//! ```text
//! Gguf ──describe───► ModelSpec ──forward──► Graph        (one row of ARCHITECTURES, one file in arch/)
//! Shape ─synthetic──────┘      weights: GgufWeights or SyntheticWeights
//! ```
//!
//! `describe` checks everything that a file can get wrong: after it, `forward` cannot fail. Nothing here knows about
//! devices.

mod arch;
mod check;
mod error;
mod keys;
mod layers;
mod shapes;
mod spec;
mod weights;

pub use error::ModelError;
pub use shapes::{MIXES, Mix, SHAPES, Shape, synthetic};
pub use spec::{Experts, ModelSpec, RopeScaling, RopeSpec, Sliding, TensorSpec};
pub use weights::{GgufWeights, SyntheticWeights};

use check::Expected;
use layers::rope;
use std::sync::Arc;
use zinc_gguf::{Gguf, Metadata};
use zinc_ir::graph::Graph;

/// One architecture: what its files hold and how it computes.
pub struct Architecture {
    /// `general.architecture` in the file.
    pub name: &'static str,
    /// The model's numbers from its metadata, and from its directory whether the output matrix is the embedding table.
    numbers: fn(&Metadata, tied: bool) -> Result<ModelSpec, ModelError>,
    /// The tensors of a model with these numbers.
    tensors: fn(&ModelSpec) -> Vec<Expected>,
    /// Appends the computation of one step. Panics on a spec that [`Architecture::describe`] would not give.
    pub forward: fn(&ModelSpec, &mut Graph),
}

/// All architectures. A new one is a file in `arch/` and a row here.
pub static ARCHITECTURES: &[&Architecture] = &[
    &arch::llama::ARCHITECTURE,
    &arch::qwen2::ARCHITECTURE,
    &arch::qwen3::ARCHITECTURE,
    &arch::qwen3moe::ARCHITECTURE,
    &arch::gemma3::ARCHITECTURE,
];

impl Architecture {
    /// The architecture of this name.
    ///
    /// # Errors
    /// [`ModelError::UnsupportedArchitecture`], which lists the names there are.
    pub fn by_name(name: &str) -> Result<&'static Architecture, ModelError> {
        let found = ARCHITECTURES.iter().copied().find(|a| a.name == name);
        found.ok_or_else(|| ModelError::UnsupportedArchitecture {
            found: name.to_owned(),
            supported: error::list(ARCHITECTURES.iter().map(|a| a.name)),
        })
    }

    /// Reads and checks a file's metadata and tensor directory.
    ///
    /// # Errors
    /// A [`ModelError`] that names the key or tensor.
    pub fn describe(&self, gguf: &Gguf) -> Result<ModelSpec, ModelError> {
        let mut spec = (self.numbers)(gguf.metadata(), gguf.tensor("output.weight").is_none())?;
        let expected = (self.tensors)(&spec);
        if let Some(divisors) = expected.iter().find(|e| e.name == rope::DIVISORS) {
            spec.rope.divisors = check::positive_table(gguf, divisors)?;
        }
        check::tensors(gguf, &mut spec, expected)?;
        Ok(spec)
    }

    /// The graph of a model of this architecture.
    fn graph(&self, spec: &ModelSpec) -> Arc<Graph> {
        let mut graph = Graph::new();
        (self.forward)(spec, &mut graph);
        Arc::new(graph)
    }
}

/// A model: its numbers and its computation.
#[derive(Clone, Debug)]
pub struct Model {
    /// Numbers.
    pub spec: ModelSpec,
    /// Computation.
    pub graph: Arc<Graph>,
}

/// Describes a file and builds its graph.
///
/// # Errors
/// A [`ModelError`] that names the architecture, key, tensor or type which is missing, wrong or not supported.
pub fn open(gguf: &Gguf) -> Result<Model, ModelError> {
    let key = "general.architecture";
    let name = gguf.metadata().str(key)?.ok_or_else(|| ModelError::MissingKey { key: key.to_owned() })?;
    let architecture = Architecture::by_name(name)?;
    let spec = architecture.describe(gguf)?;
    let graph = architecture.graph(&spec);
    Ok(Model { spec, graph })
}
