//! The parts that architectures are built of. Each part states its tensors and appends its nodes.
//!
//! ```text
//! (ModelSpec, layer) ─tensors─► [Expected]        (ModelSpec, Graph, x) ─► Graph + y
//! ```
//!
//! The order of nodes is part of the contract: the compiler fuses a norm, the projections that read it, their biases,
//! norms and rotations, and the append to the cache, in the order written here; in an `add`, the residual is `a`.

pub(crate) mod attention;
pub(crate) mod embed;
pub(crate) mod ffn;
pub(crate) mod moe;
pub(crate) mod rope;

use crate::ModelSpec;
use zinc_ir::graph::{Graph, NodeId, WeightId};

/// Declares a tensor of the spec in the graph.
fn weight(spec: &ModelSpec, g: &mut Graph, name: &str) -> WeightId {
    let t = spec.tensors.get(name).unwrap_or_else(|| panic!("{name}: describe let this tensor be absent"));
    g.weight(name, t.rows, t.cols, t.format)
}

/// x · `part.weight`ᵀ, plus `part.bias` where the model has one.
fn linear(spec: &ModelSpec, g: &mut Graph, x: NodeId, part: &str) -> NodeId {
    let w = weight(spec, g, &format!("{part}.weight"));
    let y = g.matmul(x, w);
    let bias = format!("{part}.bias");
    if !spec.has(&bias) {
        return y;
    }
    let b = weight(spec, g, &bias);
    g.bias(y, b)
}

/// Root-mean-square norm by `part.weight`, over groups as long as that.
pub(crate) fn norm(spec: &ModelSpec, g: &mut Graph, x: NodeId, part: &str) -> NodeId {
    let w = weight(spec, g, &format!("{part}.weight"));
    g.rms_norm(x, w, spec.norm_eps)
}
