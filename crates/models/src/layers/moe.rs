//! Mixture of experts (arXiv 1701.06538): a router chooses a few gated blocks for each token.
//!
//! ```text
//! x ─norm─► router ─► route: k experts and their weights ─┬──────────────┬───────┐
//! x ─norm───────────────────────────► gate, up of each ───┴─glu─► down ──┴─► weighted sum ─► y
//! ```
//!
//! The norm stands twice in the graph: the router and the experts' products are far apart, and each can take it into
//! its own launch.

use super::{norm, weight};
use crate::ModelSpec;
use crate::check::Expected;
use crate::spec::Experts;
use zinc_ir::graph::{Activation, Graph, NodeId};

/// The router's matrix, which files keep in F32.
pub(crate) const ROUTER: &str = "ffn_gate_inp.weight";

fn sizes(spec: &ModelSpec) -> Experts {
    spec.experts.expect("read by keys::mixture")
}

/// Input norm, router and the three projections of all experts of layer `i`.
pub(crate) fn tensors(spec: &ModelSpec, i: u32) -> Vec<Expected> {
    let Experts { count, ffn, .. } = sizes(spec);
    vec![
        Expected::vector(format!("blk.{i}.ffn_norm.weight"), spec.width),
        Expected::matrix(format!("blk.{i}.{ROUTER}"), count, spec.width),
        Expected::stack(format!("blk.{i}.ffn_gate_exps.weight"), count, ffn, spec.width),
        Expected::stack(format!("blk.{i}.ffn_up_exps.weight"), count, ffn, spec.width),
        Expected::stack(format!("blk.{i}.ffn_down_exps.weight"), count, spec.width, ffn),
    ]
}

/// The block of layer `i` over `x`, before the residual sum.
pub(crate) fn routed(spec: &ModelSpec, g: &mut Graph, i: u32, x: NodeId, act: Activation) -> NodeId {
    let of_experts = |g: &mut Graph, x: NodeId, route: NodeId, part: &str| {
        let w = weight(spec, g, &format!("blk.{i}.ffn_{part}_exps.weight"));
        g.expert_matmul(x, route, w)
    };
    let n = norm(spec, g, x, &format!("blk.{i}.ffn_norm"));
    let router = weight(spec, g, &format!("blk.{i}.{ROUTER}"));
    let logits = g.matmul(n, router);
    let route = g.route(logits, sizes(spec).used);
    let n = norm(spec, g, x, &format!("blk.{i}.ffn_norm"));
    let gate = of_experts(g, n, route, "gate");
    let up = of_experts(g, n, route, "up");
    let h = g.glu(gate, up, act);
    let y = of_experts(g, h, route, "down");
    g.expert_sum(y, route)
}
