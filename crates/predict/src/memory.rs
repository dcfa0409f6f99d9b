//! Does a model fit a card?
//!
//! ```text
//! weights (device layout) + K and V of the context + scratch of the largest step   against   usable memory
//! ```

use crate::cards::Card;
use zinc_ir::graph::{Graph, WeightId};
use zinc_ir::plan::{KvLayout, PAGE_TOKENS, weight_bytes};

/// Bytes per GiB.
pub const GIB: f64 = (1u64 << 30) as f64;

/// What a model needs on a card.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fit {
    /// Bytes of weights.
    pub weights: u64,
    /// Bytes of K and V of the context.
    pub kv: u64,
    /// Bytes between launches.
    pub scratch: u64,
    /// Bytes a model can have there.
    pub usable: u64,
    /// Most tokens whose K and V would fit, 0 if the weights alone do not.
    pub most_context: u64,
}

impl Fit {
    /// Of a graph with a KV cache, whose largest step needs `scratch` bytes.
    pub fn new(graph: &Graph, kv: &KvLayout, scratch: u64, card: &Card) -> Fit {
        let weights = (0..graph.weights().len() as u32).map(|i| weight_bytes(graph, WeightId(i))).sum();
        let usable = (card.usable_gib * GIB) as u64;
        let left = usable.saturating_sub(weights + scratch);
        let pages = left / (kv.bytes_per_token() * PAGE_TOKENS as u64).max(1);
        Fit { weights, kv: kv.bytes, scratch, usable, most_context: pages * PAGE_TOKENS as u64 }
    }

    /// All of it.
    pub fn needed(&self) -> u64 {
        self.weights + self.kv + self.scratch
    }

    /// Bytes that are missing; 0 if it fits.
    pub fn missing(&self) -> u64 {
        self.needed().saturating_sub(self.usable)
    }
}
