//! From a plan's launches to native steps: which operations run together, and where values live.
//!
//! ```text
//! launches (regions of nodes) ─fuse─► works: products with norm before, bias, gate, residual after │ one-op works
//!                             ─place─► slots: reused after a value's last reader, in place where possible
//! ```
//! Fusion stays within a launch, so that a profile tells the truth; what is not fused runs op
//! by op, so that any region is correct.

use std::collections::HashMap;
use zinc_ir::graph::{Activation, AttentionSpec, Graph, NodeId, Op, Pairing, RopeId, Routing, Rows, WeightId};
use zinc_ir::plan::{Plan, Tail};

/// Index of a buffer.
pub(super) type Slot = usize;

/// One thing to do, and the launch whose time it is.
#[derive(Debug)]
pub(super) struct Work {
    pub(super) launch: usize,
    pub(super) rows: Rows,
    pub(super) kind: Kind,
}

#[derive(Debug)]
pub(super) enum Kind {
    /// Rows of a table by token id.
    Embed { table: WeightId, out: Slot },
    /// Rows by output index.
    Select { x: Slot, out: Slot },
    /// Products that share an input.
    Products { x: Slot, norm: Option<(WeightId, f32)>, list: Vec<ProductSpec> },
    /// Products by the experts of each row.
    Experts(ExpertSpec),
    /// The best experts of each row with their weights.
    Route { logits: Slot, k: usize, out: Slot },
    /// Weighted sum of what the experts of a row gave.
    ExpertSum { x: Slot, route: Slot, out: Slot },
    /// A row operation: `out` is `x` itself or becomes a copy of it first.
    Row { op: RowOp, x: Slot, out: Slot },
    /// K and V into the cache.
    Append { k: Slot, v: Slot, layer: usize },
    /// Attention over a layer of the cache.
    Attention { q: Slot, layer: usize, spec: AttentionSpec, out: Slot },
    /// Index of the greatest value of each row.
    Argmax { x: Slot },
    /// The k greatest values of each row and where they are.
    TopK { x: Slot, k: usize, out: Slot },
    /// One of the k greatest values of each row, drawn.
    Sample { x: Slot, k: usize },
}

#[derive(Debug)]
pub(super) struct ProductSpec {
    pub(super) weight: WeightId,
    pub(super) glu: Option<(WeightId, Activation)>,
    pub(super) bias: Option<WeightId>,
    /// Added; may be `out` itself.
    pub(super) residual: Option<Slot>,
    pub(super) out: Slot,
}

#[derive(Debug)]
pub(super) struct ExpertSpec {
    pub(super) x: Slot,
    pub(super) norm: Option<(WeightId, f32)>,
    pub(super) route: Slot,
    pub(super) routing: Routing,
    pub(super) weight: WeightId,
    pub(super) glu: Option<(WeightId, Activation)>,
    pub(super) out: Slot,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum RowOp {
    Scale(f32),
    Norm { weight: WeightId, eps: f32 },
    Bias(WeightId),
    Add(Slot),
    Glu(Slot, Activation),
    Rope { head_dim: usize, pairing: Pairing, rope: RopeId },
}

/// Works of a plan, and the columns of each slot.
pub(super) struct Program {
    pub(super) works: Vec<Work>,
    /// Columns of each slot's rows.
    pub(super) slots: Vec<usize>,
    /// Slot of the value that leaves; none without outputs.
    pub(super) output: Option<Slot>,
    /// What that value is.
    pub(super) tail: Tail,
    /// Slot of the logits that leave beside it.
    pub(super) beside: Option<Slot>,
    pub(super) launches: usize,
}

/// A work before places are known: values instead of slots.
struct Draft {
    launch: usize,
    node: NodeId,
    kind: DraftKind,
}

enum DraftKind {
    Op,
    Products { x: NodeId, norm: Option<(WeightId, f32)>, list: Vec<DraftProduct> },
    Experts(DraftExperts),
}

struct DraftExperts {
    x: NodeId,
    norm: Option<(WeightId, f32)>,
    route: NodeId,
    weight: WeightId,
    glu: Option<(WeightId, Activation)>,
    out: NodeId,
}

struct DraftProduct {
    weight: WeightId,
    glu: Option<(WeightId, Activation)>,
    bias: Option<WeightId>,
    residual: Option<NodeId>,
    out: NodeId,
}

impl Draft {
    fn reads(&self, graph: &Graph) -> Vec<NodeId> {
        match &self.kind {
            // An append gives no value to read; attention names it for the order only.
            DraftKind::Op => match *graph.op(self.node) {
                Op::Attention { q, .. } => vec![q],
                ref op => op.inputs(),
            },
            DraftKind::Products { x, list, .. } => {
                std::iter::once(*x).chain(list.iter().filter_map(|p| p.residual)).collect()
            }
            DraftKind::Experts(e) => vec![e.x, e.route],
        }
    }
}

/// Which weights can take 8-bit activations: products are grouped by it.
pub(super) type TakesIntegers<'a> = &'a dyn Fn(WeightId) -> bool;

impl Program {
    pub(super) fn new(plan: &Plan, integers: TakesIntegers<'_>) -> Program {
        let drafts = Fuser::new(plan, integers).run();
        place(plan, drafts)
    }
}

struct Fuser<'a> {
    graph: &'a Graph,
    output: Option<NodeId>,
    integers: TakesIntegers<'a>,
    /// Nodes in the order of the launches, each with its launch.
    order: Vec<(NodeId, usize)>,
    launch: HashMap<NodeId, usize>,
    users: Vec<Vec<NodeId>>,
    /// Computed by an earlier draft.
    done: Vec<bool>,
    /// Norms that the products reading them compute.
    drawn_in: Vec<bool>,
}

impl<'a> Fuser<'a> {
    fn new(plan: &'a Plan, integers: TakesIntegers<'a>) -> Fuser<'a> {
        let graph = &*plan.graph;
        let order: Vec<(NodeId, usize)> =
            plan.launches().enumerate().flat_map(|(i, launch)| launch.region.iter().map(move |n| (*n, i))).collect();
        let launch: HashMap<NodeId, usize> = order.iter().copied().collect();
        let users = graph.users().into_iter().map(|users| {
            // Nodes that no launch computes are not part of the step.
            users.into_iter().filter(|u| launch.contains_key(u)).collect()
        });
        let count = graph.nodes().len();
        Fuser {
            graph,
            output: plan.output,
            integers,
            users: users.collect(),
            order,
            launch,
            done: vec![false; count],
            drawn_in: vec![false; count],
        }
    }

    fn run(mut self) -> Vec<Draft> {
        let mut drafts = Vec::new();
        for (node, launch) in self.order.clone() {
            if self.done[node.index()] {
                continue;
            }
            let kind = match *self.graph.op(node) {
                Op::MatMul { x, weight } => self.products(x, launch, (self.integers)(weight)),
                Op::ExpertMatMul { x, route, weight } => self.experts(node, x, route, weight),
                Op::RmsNorm { .. } if self.draws_in(node, launch) => {
                    self.drawn_in[node.index()] = true;
                    continue;
                }
                _ => {
                    self.done[node.index()] = true;
                    DraftKind::Op
                }
            };
            drafts.push(Draft { launch, node, kind });
        }
        drafts
    }

    /// Is this a norm of whole rows that only products of the same launch read?
    fn draws_in(&self, node: NodeId, launch: usize) -> bool {
        let Op::RmsNorm { group, .. } = *self.graph.op(node) else { return false };
        let product = |op: &Op| matches!(op, Op::MatMul { .. } | Op::ExpertMatMul { .. });
        let reads = |user: &NodeId| self.launch[user] == launch && product(self.graph.op(*user));
        group == self.graph.node(node).shape.cols
            && Some(node) != self.output
            && self.users[node.index()].iter().all(reads)
    }

    /// All products of `x` in the launch whose weights take the same activations, with what follows them.
    fn products(&mut self, x: NodeId, launch: usize, integers: bool) -> DraftKind {
        let group: Vec<(NodeId, WeightId)> = self
            .order
            .iter()
            .filter(|(node, l)| *l == launch && !self.done[node.index()])
            .filter_map(|(node, _)| match *self.graph.op(*node) {
                Op::MatMul { x: input, weight } if input == x => Some((*node, weight)),
                _ => None,
            })
            .filter(|(_, weight)| (self.integers)(*weight) == integers)
            .collect();
        let mut list = Vec::new();
        for &(node, weight) in &group {
            if self.done[node.index()] {
                continue; // the up side of a gate
            }
            let mut p = DraftProduct { weight, glu: None, bias: None, residual: None, out: node };
            self.done[node.index()] = true;
            self.extend(&mut p, &group);
            list.push(p);
        }
        let (x, norm) = self.input(x);
        DraftKind::Products { x, norm, list }
    }

    /// What a product reads: a value, or one behind a norm that the product computes.
    fn input(&self, x: NodeId) -> (NodeId, Option<(WeightId, f32)>) {
        match *self.graph.op(x) {
            Op::RmsNorm { x: input, weight, eps, .. } if self.drawn_in[x.index()] => (input, Some((weight, eps))),
            _ => (x, None),
        }
    }

    /// A product by experts, with the up side and the gate if they are in the same launch.
    fn experts(&mut self, node: NodeId, x: NodeId, route: NodeId, weight: WeightId) -> DraftKind {
        self.done[node.index()] = true;
        let (mut glu, mut out) = (None, node);
        if let Some(user) = self.only_user(node)
            && let Op::Glu { gate, up, act } = *self.graph.op(user)
            && let Op::ExpertMatMul { x: other_x, route: other_route, weight: other } = *self.graph.op(up)
            && gate == node
            && (other_x, other_route) == (x, route)
            && !self.done[up.index()]
            && self.only_user(up) == Some(user)
            && (self.integers)(weight) == (self.integers)(other)
        {
            self.done[up.index()] = true;
            self.done[user.index()] = true;
            (glu, out) = (Some((other, act)), user);
        }
        let (x, norm) = self.input(x);
        DraftKind::Experts(DraftExperts { x, norm, route, weight, glu, out })
    }

    /// The only reader of a value, if it is in the same launch.
    fn only_user(&self, node: NodeId) -> Option<NodeId> {
        match self.users[node.index()][..] {
            [user] if self.launch[&user] == self.launch[&node] && Some(node) != self.output => Some(user),
            _ => None,
        }
    }

    /// Draws in bias, gate and residual sum.
    fn extend(&mut self, p: &mut DraftProduct, group: &[(NodeId, WeightId)]) {
        let take = |this: &mut Self, p: &mut DraftProduct, node: NodeId| {
            this.done[node.index()] = true;
            p.out = node;
        };
        while let Some(user) = self.only_user(p.out) {
            match *self.graph.op(user) {
                Op::Bias { weight, .. } if p.bias.is_none() && p.glu.is_none() => {
                    p.bias = Some(weight);
                    take(self, p, user);
                }
                Op::Glu { gate, up, act } if gate == p.out && p.bias.is_none() && p.glu.is_none() => {
                    let other = group.iter().find(|(node, _)| *node == up);
                    let Some(&(up, up_weight)) = other else { return };
                    if self.done[up.index()] || self.only_user(up) != Some(user) {
                        return;
                    }
                    p.glu = Some((up_weight, act));
                    self.done[up.index()] = true;
                    take(self, p, user);
                }
                Op::Add { a, b } if a != b => {
                    let other = if a == p.out { b } else { a };
                    if self.done[other.index()] && !group.iter().any(|g| g.0 == other) {
                        p.residual = Some(other);
                        take(self, p, user);
                    }
                    return;
                }
                _ => return,
            }
        }
    }
}

/// Gives every value a slot; a slot only ever holds values of one shape.
fn place(plan: &Plan, drafts: Vec<Draft>) -> Program {
    let graph = &*plan.graph;
    let mut last_use: HashMap<NodeId, usize> = HashMap::new();
    for (i, draft) in drafts.iter().enumerate() {
        last_use.extend(draft.reads(graph).into_iter().map(|value| (value, i)));
    }
    for leaves in [plan.output, plan.logits_beside()].into_iter().flatten() {
        last_use.insert(leaves, usize::MAX);
    }
    let mut places = Places { graph, slots: vec![], of: HashMap::new(), free: HashMap::new() };
    let mut works = Vec::new();
    for (i, draft) in drafts.iter().enumerate() {
        // A value that is read for the last time may be overwritten by the result.
        let dies = |value: NodeId| last_use.get(&value) == Some(&i);
        let kind = match &draft.kind {
            DraftKind::Products { x, norm, list } => {
                let x = places.of[x];
                let once = |r| list.iter().filter(|p| p.residual == Some(r)).count() == 1;
                let list = list.iter().map(|p| {
                    let residual = p.residual.map(|r| places.of[&r]);
                    let out = match p.residual {
                        Some(r) if dies(r) && once(r) => places.take_over(r, p.out),
                        _ => places.new_slot(p.out),
                    };
                    let (weight, glu, bias) = (p.weight, p.glu, p.bias);
                    ProductSpec { weight, glu, bias, residual, out }
                });
                Kind::Products { x, norm: *norm, list: list.collect() }
            }
            DraftKind::Experts(e) => Kind::Experts(ExpertSpec {
                x: places.of[&e.x],
                norm: e.norm,
                route: places.of[&e.route],
                routing: graph.routing(e.route),
                weight: e.weight,
                glu: e.glu,
                out: places.new_slot(e.out),
            }),
            DraftKind::Op => places.single(draft.node, &dies),
        };
        let rows = graph.node(draft.node).shape.rows;
        works.push(Work { launch: draft.launch, rows, kind });
        for value in draft.reads(graph) {
            if dies(value) {
                places.release(value);
            }
        }
    }
    let output = plan.output.map(|node| places.of[&node]);
    let beside = plan.logits_beside().map(|node| places.of[&node]);
    let slots = places.slots.iter().map(|s| s.1 as usize).collect();
    Program { works, slots, output, tail: plan.bucket.tail, beside, launches: plan.launches().count() }
}

struct Places<'a> {
    graph: &'a Graph,
    /// Shape of each slot.
    slots: Vec<(Rows, u32)>,
    of: HashMap<NodeId, Slot>,
    free: HashMap<(Rows, u32), Vec<Slot>>,
}

impl Places<'_> {
    fn new_slot(&mut self, value: NodeId) -> Slot {
        let shape = self.graph.node(value).shape;
        let key = (shape.rows, shape.cols);
        let slot = self.free.get_mut(&key).and_then(Vec::pop).unwrap_or_else(|| {
            self.slots.push(key);
            self.slots.len() - 1
        });
        self.of.insert(value, slot);
        slot
    }

    /// `value` goes where `old` was, which nobody reads any more.
    fn take_over(&mut self, old: NodeId, value: NodeId) -> Slot {
        match self.of.remove(&old) {
            Some(slot) => {
                self.of.insert(value, slot);
                slot
            }
            None => self.new_slot(value),
        }
    }

    fn release(&mut self, value: NodeId) {
        if let Some(slot) = self.of.remove(&value) {
            self.free.entry(self.slots[slot]).or_default().push(slot);
        }
    }

    fn row(&mut self, op: RowOp, x: NodeId, node: NodeId, dies: &dyn Fn(NodeId) -> bool) -> Kind {
        let from = self.of[&x];
        let out = if dies(x) { self.take_over(x, node) } else { self.new_slot(node) };
        Kind::Row { op, x: from, out }
    }

    fn single(&mut self, node: NodeId, dies: &dyn Fn(NodeId) -> bool) -> Kind {
        match *self.graph.op(node) {
            Op::Embed { table } => Kind::Embed { table, out: self.new_slot(node) },
            Op::SelectRows { x } => Kind::Select { x: self.of[&x], out: self.new_slot(node) },
            Op::Scale { x, factor } => self.row(RowOp::Scale(factor), x, node, dies),
            Op::RmsNorm { x, weight, eps, .. } => self.row(RowOp::Norm { weight, eps }, x, node, dies),
            Op::Bias { x, weight } => self.row(RowOp::Bias(weight), x, node, dies),
            // a + a: the second operand must survive the copy of the first, which it is.
            Op::Add { a, b } => self.row(RowOp::Add(self.of[&b]), a, node, &|v| v != b && dies(v)),
            Op::Glu { gate, up, act } => {
                let op = RowOp::Glu(self.of[&up], act);
                self.row(op, gate, node, &|v| v != up && dies(v))
            }
            Op::Rope { x, head_dim, pairing, rope } => {
                let op = RowOp::Rope { head_dim: head_dim as usize, pairing, rope };
                self.row(op, x, node, dies)
            }
            Op::KvAppend { k, v, layer } => Kind::Append { k: self.of[&k], v: self.of[&v], layer: layer as usize },
            Op::Attention { q, append, spec } => {
                let layer = match *self.graph.op(append) {
                    Op::KvAppend { layer, .. } => layer as usize,
                    _ => unreachable!("Graph::attention takes an append"),
                };
                Kind::Attention { q: self.of[&q], layer, spec, out: self.new_slot(node) }
            }
            Op::Argmax { x } => {
                let x = self.of[&x];
                self.new_slot(node);
                Kind::Argmax { x }
            }
            Op::Sample { x, k } => {
                let x = self.of[&x];
                self.new_slot(node);
                Kind::Sample { x, k: k as usize }
            }
            Op::TopK { x, k } => Kind::TopK { x: self.of[&x], k: k as usize, out: self.new_slot(node) },
            Op::Route { logits, k } => {
                Kind::Route { logits: self.of[&logits], k: k as usize, out: self.new_slot(node) }
            }
            Op::ExpertSum { x, route } => {
                Kind::ExpertSum { x: self.of[&x], route: self.of[&route], out: self.new_slot(node) }
            }
            Op::MatMul { .. } | Op::ExpertMatMul { .. } => unreachable!("products are drafted as such"),
            Op::Quantize { .. } | Op::Halve { .. } => unreachable!("the compiler quantizes for kernels only"),
        }
    }
}
