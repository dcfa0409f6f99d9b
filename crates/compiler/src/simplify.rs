//! Rewrites the graph before templates see it: adds the tail that a bucket asks for, and quantizes inputs of products.
//!
//! ```text
//! matmul(rms_norm(x), W)  ─►  matmul(quantize(x · gain), W)      the readers apply the norm's factor
//! matmul(x, W)            ─►  matmul(quantize(x), W)
//! ```
//!
//! As a node of its own the quantized value can be drawn into the epilogue of whatever makes `x`, which then costs no
//! launch and no second pass over the row.

use crate::kernels::{MATVEC_ROWS, takes_bytes};
use crate::{Choices, Ctx};
use std::collections::HashMap;
use std::sync::Arc;
use zinc_ir::device::Caps;
use zinc_ir::graph::{Graph, NodeId, Op, Rows, WeightId};
use zinc_ir::plan::{ActPrecision, Bucket, Tail};

/// The graph with the bucket's tail, and the value that leaves the device (none if the bucket has no outputs).
pub(crate) fn with_tail(graph: &Arc<Graph>, bucket: &Bucket) -> (Arc<Graph>, Option<NodeId>) {
    let (Some(logits), true) = (graph.logits(), bucket.outputs > 0) else {
        return (graph.clone(), None);
    };
    if bucket.tail == Tail::Logits {
        return (graph.clone(), Some(logits));
    }
    let mut graph = Graph::clone(graph);
    graph.enter_layer(None);
    let output = match bucket.tail {
        Tail::Logits => logits,
        Tail::Greedy => graph.argmax(logits),
        Tail::Best(k) => graph.top_k(logits, k),
        Tail::Sample(k) => graph.sample(logits, k),
    };
    (Arc::new(graph), Some(output))
}

/// A value to quantize: the row, and the norm behind it.
type Wanted = (NodeId, Option<WeightId>);

/// The graph with quantized inputs for the products of few rows that take them.
pub(crate) fn with_quantized_inputs(graph: &Arc<Graph>, bucket: &Bucket, caps: &Caps, choices: &Choices) -> Arc<Graph> {
    // The two halves of a block are summed by different lanes.
    if caps.native || caps.subgroup_size < 2 || choices.act == ActPrecision::F32 {
        return graph.clone();
    }
    let wide = choices.act == ActPrecision::F16;
    let few = |rows: Rows| match rows {
        Rows::Tokens => bucket.tokens <= MATVEC_ROWS,
        Rows::Outputs => bucket.outputs <= MATVEC_ROWS,
    };
    let users = graph.users();
    let eligible = |x: NodeId| {
        few(graph.node(x).shape.rows)
            && users[x.index()].iter().all(|u| match *graph.op(*u) {
                Op::MatMul { weight, .. } | Op::ExpertMatMul { weight, .. } => takes_bytes(graph.weight_of(weight)),
                _ => true,
            })
    };
    // Product input → what is quantized for it, and whether rows are selected afterwards.
    let mut inputs: HashMap<NodeId, (NodeId, Option<(WeightId, f32)>, bool)> = HashMap::new();
    for id in graph.ids() {
        if let Op::MatMul { x, .. } | Op::ExpertMatMul { x, .. } = *graph.op(id)
            && eligible(x)
        {
            inputs.insert(x, source(graph, x, few(Rows::Tokens) && choices.fuse));
        }
    }
    let mut made: HashMap<Wanted, NodeId> = HashMap::new();
    let mut selected: HashMap<NodeId, NodeId> = HashMap::new();
    let mut wanted: HashMap<NodeId, Vec<Option<(WeightId, f32)>>> = HashMap::new();
    for (value, norm, _) in inputs.values() {
        let list = wanted.entry(*value).or_default();
        if !list.contains(norm) {
            list.push(*norm);
        }
    }
    wanted.values_mut().for_each(|list| list.sort_by_key(|norm| norm.map(|n| n.0.0)));
    let rewritten = graph.rewrite(|new, old, node| {
        let mut node = node;
        if let Op::MatMul { x: old_x, .. } | Op::ExpertMatMul { x: old_x, .. } = *graph.op(old)
            && let Some((value, norm, select)) = inputs.get(&old_x)
            && let Op::MatMul { x, .. } | Op::ExpertMatMul { x, .. } = &mut node.op
        {
            *x = made[&(*value, norm.map(|n| n.0))];
            if *select {
                *x = *selected.entry(*x).or_insert_with(|| new.select_rows(*x));
            }
        }
        let id = new.push_node(node);
        for norm in wanted.get(&old).into_iter().flatten() {
            made.insert((old, norm.map(|n| n.0)), new.quantize(id, *norm, wide));
        }
        id
    });
    Arc::new(rewritten)
}

/// The value behind a product's input, its norm, and whether the selection of rows moves behind the quantization.
fn source(graph: &Graph, x: NodeId, move_select: bool) -> (NodeId, Option<(WeightId, f32)>, bool) {
    let (mut at, mut norm) = (x, None);
    if let Op::RmsNorm { x: inner, weight, eps, group } = *graph.op(at)
        && group == graph.node(at).shape.cols
    {
        norm = Some((weight, eps));
        at = inner;
    }
    match *graph.op(at) {
        Op::SelectRows { x: inner } if move_select => (inner, norm, true),
        _ => (at, norm, false),
    }
}

impl Ctx<'_> {
    /// The quantization a value stands for, looking through a selection of rows: (node, norm's epsilon, wide).
    pub(crate) fn quantized(&self, x: NodeId) -> Option<(NodeId, Option<f32>, bool)> {
        match *self.graph.op(x) {
            Op::Quantize { norm, wide, .. } => Some((x, norm.map(|n| n.1), wide)),
            Op::SelectRows { x } => self.quantized(x),
            _ => None,
        }
    }
}
