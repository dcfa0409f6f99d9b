//! Both ends of a model: token ids to rows, and rows to logits.
//!
//! ```text
//! ids ─embed─(scale)─► x … x ─select─norm─output matrix (or the embedding table)─► logits
//! ```

use super::{norm, weight};
use crate::ModelSpec;
use crate::check::Expected;
use zinc_ir::graph::{Graph, NodeId};

/// Embedding table, last norm and, unless tied, output matrix.
pub(crate) fn tensors(spec: &ModelSpec) -> Vec<Expected> {
    let mut tensors = vec![
        Expected::matrix("token_embd.weight", spec.vocab, spec.width),
        Expected::vector("output_norm.weight", spec.width),
    ];
    if !spec.tied {
        tensors.push(Expected::matrix("output.weight", spec.vocab, spec.width));
    }
    tensors
}

/// The step's tokens as rows.
pub(crate) fn tokens(spec: &ModelSpec, g: &mut Graph) -> NodeId {
    g.enter_layer(None);
    let table = weight(spec, g, "token_embd.weight");
    let x = g.embed(table);
    if spec.embedding_scale == 1.0 { x } else { g.scale(x, spec.embedding_scale) }
}

/// Logits of the wanted rows of `x`.
pub(crate) fn logits(spec: &ModelSpec, g: &mut Graph, x: NodeId) {
    g.enter_layer(None);
    let x = g.select_rows(x);
    let x = norm(spec, g, x, "output_norm");
    let matrix = weight(spec, g, if spec.tied { "token_embd.weight" } else { "output.weight" });
    let logits = g.matmul(x, matrix);
    g.set_logits(logits);
}
