//! Rewrites the graph before templates see it: adds the tail that a bucket asks for, and quantizes inputs of products.
//!
//! ```text
//! matmul(rms_norm(x), W)  ─►  matmul(quantize(x · gain), W)      the readers apply the norm's factor
//! matmul(x, W)            ─►  matmul(quantize(x), W)
//!                             matmul(halve(x), W)                of many rows, with matrix units
//! ```
//!
//! As a node of its own the quantized value can be drawn into the epilogue of whatever makes `x`, which then costs no
//! launch and no second pass over the row.

use crate::kernels::{MATVEC_ROWS, half_shapes, matvec_rows, takes_bytes};
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
    if matches!(bucket.tail, Tail::Logits | Tail::Hidden) {
        return (graph.clone(), Some(logits));
    }
    let mut graph = Graph::clone(graph);
    graph.enter_layer(None);
    let output = match bucket.tail {
        Tail::Logits | Tail::Hidden => logits,
        Tail::Greedy | Tail::Mixed { candidates: 0, .. } => graph.argmax(logits),
        Tail::Best(k) => graph.top_k(logits, k),
        Tail::Sample(k) | Tail::Mixed { candidates: k, .. } => graph.sample(logits, k),
    };
    (Arc::new(graph), Some(output))
}

/// Where the quantized input of a product comes from.
#[derive(Clone, Copy, PartialEq)]
struct Source {
    /// The value to quantize.
    value: NodeId,
    /// Norm between it and the product: weight and epsilon.
    norm: Option<(WeightId, f32)>,
    /// Rows are selected after the quantization.
    select: bool,
}

/// The graph with quantized inputs for the products of few rows that take them, and halves for those of many rows.
pub(crate) fn with_quantized_inputs(graph: &Arc<Graph>, bucket: &Bucket, caps: &Caps, choices: &Choices) -> Arc<Graph> {
    // The two halves of a block are summed by different lanes.
    if caps.native || caps.subgroup_size < 2 || choices.act == ActPrecision::F32 {
        return graph.clone();
    }
    let wide = choices.act == ActPrecision::F16;
    let few = |rows: Rows, most: u32| match rows {
        _ if choices.invariant => false,
        Rows::Tokens => bucket.tokens <= most,
        Rows::Outputs => bucket.outputs <= most,
    };
    let users = graph.users();
    // Experts of few rows have no matrix kernels: their inputs are worth quantizing longer.
    let for_experts = |x: NodeId| {
        let users = &users[x.index()];
        let fits = |u: &NodeId| !matches!(graph.op(*u), Op::MatMul { .. }) || graph.is_router(*u);
        users.iter().any(|u| matches!(graph.op(*u), Op::ExpertMatMul { .. })) && users.iter().all(fits)
    };
    let few_of = |x: NodeId| {
        let most = if for_experts(x) { MATVEC_ROWS } else { matvec_rows(caps, choices) };
        few(graph.node(x).shape.rows, most)
    };
    let halves = choices.matrices && half_shapes(caps).next().is_some();
    let halved = |x: NodeId| halves && !few_of(x);
    let eligible = |x: NodeId| {
        few_of(x)
            && users[x.index()].iter().all(|u| match *graph.op(*u) {
                Op::MatMul { weight, .. } | Op::ExpertMatMul { weight, .. } => takes_bytes(graph.weight_of(weight)),
                _ => true,
            })
    };
    let mut inputs: HashMap<NodeId, Source> = HashMap::new();
    // What is quantized of each value, in the order of the products.
    let mut wanted: HashMap<NodeId, Vec<Source>> = HashMap::new();
    for id in graph.ids() {
        if let Op::MatMul { x, .. } | Op::ExpertMatMul { x, .. } = *graph.op(id)
            && eligible(x)
        {
            let source = source(graph, x, few(Rows::Tokens, matvec_rows(caps, choices)) && choices.fuse);
            inputs.insert(x, source);
            let (plain, list) = (Source { select: false, ..source }, wanted.entry(source.value).or_default());
            if !list.contains(&plain) {
                list.push(plain);
            }
        }
    }
    let mut to_halve = vec![false; graph.nodes().len()];
    for id in graph.ids() {
        if let Op::MatMul { x, .. } = *graph.op(id) {
            to_halve[x.index()] |= halved(x) && !graph.is_router(id);
        }
    }
    // The quantized values so far: what they stand for, and the node; and the halves.
    let mut made: Vec<(Source, NodeId)> = vec![];
    let mut made_halves: HashMap<NodeId, NodeId> = HashMap::new();
    let rewritten = graph.rewrite(|new, old, node| {
        let mut node = node;
        if let (Op::MatMul { x: old_x, .. }, Op::MatMul { x, .. }) = (graph.op(old), &mut node.op)
            && let Some(halves) = made_halves.get(old_x)
            && !graph.is_router(old)
        {
            *x = *halves;
        }
        if let Op::MatMul { x: old_x, .. } | Op::ExpertMatMul { x: old_x, .. } = *graph.op(old)
            && let Some(source) = inputs.get(&old_x)
            && let Op::MatMul { x, .. } | Op::ExpertMatMul { x, .. } = &mut node.op
        {
            *x = find_or_select(new, &mut made, *source);
        }
        let id = new.push_node(node);
        if to_halve[old.index()] {
            made_halves.insert(old, new.halve(id));
        }
        for plain in wanted.get(&old).into_iter().flatten() {
            made.push((*plain, new.quantize(id, plain.norm, wide)));
        }
        id
    });
    Arc::new(rewritten)
}

/// The node of a quantized value, which has been made, with its selection of rows, which is made now at the latest.
fn find_or_select(graph: &mut Graph, made: &mut Vec<(Source, NodeId)>, source: Source) -> NodeId {
    let find = |made: &[(Source, NodeId)], source| made.iter().find(|m| m.0 == source).map(|m| m.1);
    if let Some(node) = find(made, source) {
        return node;
    }
    let plain = find(made, Source { select: false, ..source }).expect("quantized right behind its value");
    let selected = graph.select_rows(plain);
    made.push((source, selected));
    selected
}

/// Looks from a product's input through a norm and, if it may move behind the quantization, a selection of rows.
fn source(graph: &Graph, x: NodeId, move_select: bool) -> Source {
    let (mut value, mut norm) = (x, None);
    if let Op::RmsNorm { x: inner, weight, eps, group } = *graph.op(value)
        && group == graph.node(value).shape.cols
    {
        norm = Some((weight, eps));
        value = inner;
    }
    match *graph.op(value) {
        Op::SelectRows { x: inner } if move_select => Source { value: inner, norm, select: true },
        _ => Source { value, norm, select: false },
    }
}

impl Ctx<'_> {
    /// Is the value kept as halves?
    pub(crate) fn halves(&self, x: NodeId) -> bool {
        matches!(self.graph.op(x), Op::Halve { .. })
    }

    /// The quantization a value stands for, looking through a selection of rows: (node, norm's epsilon, wide).
    pub(crate) fn quantized(&self, x: NodeId) -> Option<(NodeId, Option<f32>, bool)> {
        match *self.graph.op(x) {
            Op::Quantize { norm, wide, .. } => Some((x, norm.map(|n| n.1), wide)),
            Op::SelectRows { x } => self.quantized(x),
            _ => None,
        }
    }
}
