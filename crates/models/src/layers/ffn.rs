//! Gated feed-forward block (arXiv 2002.05202): down · (act(gate · n) ⊙ up · n).

use super::linear;
use crate::ModelSpec;
use crate::check::Expected;
use zinc_ir::graph::{Activation, Graph, NodeId};

/// Input norm and the three projections of layer `i`.
pub(crate) fn tensors(spec: &ModelSpec, i: u32) -> Vec<Expected> {
    vec![
        Expected::vector(format!("blk.{i}.ffn_norm.weight"), spec.width),
        Expected::matrix(format!("blk.{i}.ffn_gate.weight"), spec.ffn, spec.width),
        Expected::matrix(format!("blk.{i}.ffn_up.weight"), spec.ffn, spec.width),
        Expected::matrix(format!("blk.{i}.ffn_down.weight"), spec.width, spec.ffn),
    ]
}

/// The block of layer `i` over the normed input `n`.
pub(crate) fn gated(spec: &ModelSpec, g: &mut Graph, i: u32, n: NodeId, act: Activation) -> NodeId {
    let gate = linear(spec, g, n, &format!("blk.{i}.ffn_gate"));
    let up = linear(spec, g, n, &format!("blk.{i}.ffn_up"));
    let x = g.glu(gate, up, act);
    linear(spec, g, x, &format!("blk.{i}.ffn_down"))
}
