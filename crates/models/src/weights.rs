//! Where a graph's weights come from: the mapped file, or seeds.
//!
//! ```text
//! WeightId ─GgufWeights─► bytes in the map        WeightId ─SyntheticWeights─► seed of the tensor
//! ```

use crate::ModelError;
use std::sync::Arc;
use zinc_gguf::{Gguf, TensorInfo};
use zinc_ir::device::WeightSource;
use zinc_ir::graph::{Graph, Weight, WeightId};

/// The weights of a graph in its file.
#[derive(Debug)]
pub struct GgufWeights {
    gguf: Arc<Gguf>,
    /// For each weight of the graph, its position in the file's directory.
    tensors: Vec<usize>,
}

impl GgufWeights {
    /// Finds every weight of `graph` in the file it was opened from.
    ///
    /// # Errors
    /// [`ModelError::ForeignGraph`] if the graph is of another file.
    pub fn new(gguf: Arc<Gguf>, graph: &Graph) -> Result<GgufWeights, ModelError> {
        let tensors = graph.weights().iter().map(|w| position(&gguf, w)).collect::<Result<_, _>>()?;
        Ok(GgufWeights { gguf, tensors })
    }

    /// The file.
    pub fn gguf(&self) -> &Arc<Gguf> {
        &self.gguf
    }
}

fn position(gguf: &Gguf, weight: &Weight) -> Result<usize, ModelError> {
    let fits = |t: &TensorInfo| t.ty.id() == weight.format.ggml_type && t.bytes as u64 == weight.bytes();
    let found = gguf.tensors().iter().position(|t| t.name == weight.name && fits(t));
    found.ok_or_else(|| ModelError::ForeignGraph { name: weight.name.clone() })
}

impl WeightSource for GgufWeights {
    fn bytes(&self, weight: WeightId) -> Option<&[u8]> {
        let tensor = &self.gguf.tensors()[*self.tensors.get(weight.index())?];
        Some(self.gguf.data(tensor))
    }
}

/// Weights that a device makes from seeds; see [`zinc_ir::synthetic`].
#[derive(Clone, Debug)]
pub struct SyntheticWeights {
    seeds: Vec<u64>,
}

impl SyntheticWeights {
    /// One seed for each weight of `graph`, from its name (FNV-1a) and `seed`.
    pub fn new(graph: &Graph, seed: u64) -> SyntheticWeights {
        let of = |name: &str| {
            let start = 0xcbf2_9ce4_8422_2325 ^ seed;
            name.bytes().fold(start, |hash, byte| (hash ^ byte as u64).wrapping_mul(0x0000_0100_0000_01b3))
        };
        SyntheticWeights { seeds: graph.weights().iter().map(|w| of(&w.name)).collect() }
    }
}

impl WeightSource for SyntheticWeights {
    fn bytes(&self, _: WeightId) -> Option<&[u8]> {
        None
    }
    fn synthetic(&self, weight: WeightId) -> Option<u64> {
        self.seeds.get(weight.index()).copied()
    }
}
