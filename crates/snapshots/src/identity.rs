//! Whose K and V they are: a hash of everything besides tokens that decides about a page's bytes.

use sha2::{Digest, Sha256};
use zinc_engine::Engine;
use zinc_ir::device::WeightSource;
use zinc_ir::graph::WeightId;

/// Bytes of each end of a tensor that are looked at: two files of one shape, of which one was trained further, differ there.
const SAMPLE: usize = 4096;

/// The identity of a loaded model: its computation with all of its numbers, what the engine keeps of it and how, and for each
/// tensor its name, format, size and some of its bytes. Reads a few pages of a mapped file for each tensor.
pub fn identity(engine: &Engine, weights: &dyn WeightSource) -> [u8; 32] {
    let mut hash = Sha256::new();
    let mut part = |bytes: &[u8]| {
        hash.update((bytes.len() as u64).to_le_bytes());
        hash.update(bytes);
    };
    part(engine.kv_identity().as_bytes());
    for rope in engine.graph().ropes() {
        rope.inv_freq.iter().for_each(|f| part(&f.to_le_bytes()));
    }
    for (weight, i) in engine.graph().weights().iter().zip(0..) {
        let id = WeightId(i);
        part(weight.name.as_bytes());
        part(weight.format.name.as_bytes());
        part(&weight.bytes().to_le_bytes());
        match weights.bytes(id) {
            Some(bytes) => {
                part(&bytes[..SAMPLE.min(bytes.len())]);
                part(&bytes[bytes.len().saturating_sub(SAMPLE)..]);
            }
            None => part(&weights.synthetic(id).unwrap_or_default().to_le_bytes()),
        }
    }
    hash.finalize().into()
}
