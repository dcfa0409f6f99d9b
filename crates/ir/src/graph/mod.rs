//! The model as tensor operations: some fifteen ops in an arena, in topological order.
//!
//! ```text
//! Architecture.forward ──methods──► Graph ──► compiler (regions) ──► Plan
//! ```
//!
//! Every value is a matrix of F32 rows; how a plan stores it (F32, F16, q8) is the plan's business. Row counts are
//! symbolic ([`Rows`]): one graph serves every bucket of batch sizes. Weights, rotary tables and KV layers are
//! named by handles. What a batch brings (token ids, positions, page tables) is implicit: see [`crate::plan::Step`].

mod experts;
mod part;
mod text;

pub use experts::Routing;
pub use part::Part;

use crate::quant::QuantFormat;

macro_rules! handle {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
        pub struct $name(pub u32);
        impl $name {
            /// As an index.
            pub const fn index(self) -> usize {
                self.0 as usize
            }
        }
    };
}
handle! {
    /// A node and the value it computes.
    NodeId
}
handle! {
    /// A weight tensor.
    WeightId
}
handle! {
    /// A rotary-embedding frequency table.
    RopeId
}

/// How many rows a value has.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Rows {
    /// One row per token of the step.
    Tokens,
    /// One row per token whose logits are wanted.
    Outputs,
}

/// Shape of a value: symbolic rows × known columns.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Shape {
    /// Rows.
    pub rows: Rows,
    /// Columns; 0 for statements that give no value.
    pub cols: u32,
}

/// A weight as the file has it: `rows` × `cols`, row-major, each row a whole number of blocks.
#[derive(Clone, Debug)]
pub struct Weight {
    /// Tensor name in the file.
    pub name: String,
    /// Output features (1 for vectors).
    pub rows: u32,
    /// Input features, the contiguous axis.
    pub cols: u32,
    /// Block format.
    pub format: &'static QuantFormat,
}

impl Weight {
    /// Bytes in the file's layout.
    pub fn bytes(&self) -> u64 {
        self.rows as u64 * (self.cols / self.format.block_elems) as u64 * self.format.block_bytes as u64
    }
}

/// Rotary embedding (RoFormer, arXiv 2104.09864): pair `i` of a head turns by `position * inv_freq[i]`, and the
/// result is multiplied by `magnitude`. Linear, llama3 and YaRN (arXiv 2309.00071) scaling all end as another table.
#[derive(Clone, PartialEq, Debug)]
pub struct Rope {
    /// Radians per position, one per pair; rotated dims = 2 × length, dims beyond pass through.
    pub inv_freq: Vec<f32>,
    /// Factor on cos and sin (YaRN's attention factor), 1 otherwise.
    pub magnitude: f32,
}

/// Which two elements of a head make a pair.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Pairing {
    /// (2i, 2i+1): llama files ("NORM").
    Adjacent,
    /// (i, i + n_rot/2): qwen, gemma ("NEOX").
    Halves,
}

/// Activation of a gated unit.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Activation {
    /// x · sigmoid(x).
    Silu,
    /// 0.5 x (1 + tanh(√(2/π) (x + 0.044715 x³))).
    GeluTanh,
}

/// Shape and rules of one attention.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct AttentionSpec {
    /// Query heads.
    pub heads: u32,
    /// Key/value heads; divides `heads`.
    pub kv_heads: u32,
    /// Elements per head.
    pub head_dim: u32,
    /// Factor on q·k.
    pub scale: f32,
    /// Position i sees j with i - j < window; none: everything before.
    pub window: Option<u32>,
}

/// One operation.
#[derive(Clone, PartialEq, Debug)]
pub enum Op {
    /// Rows of `table` picked by the step's token ids.
    Embed {
        /// Vocabulary × width.
        table: WeightId,
    },
    /// The rows of `x` whose logits are wanted: Tokens → Outputs.
    SelectRows {
        /// Input.
        x: NodeId,
    },
    /// x · factor.
    Scale {
        /// Input.
        x: NodeId,
        /// Factor.
        factor: f32,
    },
    /// Root-mean-square norm over groups of `group` columns: x / √(mean(x²) + eps) · weight, which all groups share.
    RmsNorm {
        /// Input.
        x: NodeId,
        /// `group` factors.
        weight: WeightId,
        /// Added to the mean square.
        eps: f32,
        /// Columns per group; the whole row, or one head.
        group: u32,
    },
    /// The rows of `x`, times `norm`'s gain, as block-scaled integers: input of products with integer weights.
    /// Only the compiler writes it, for devices that run kernels, and lays the rows out. The factor 1/√(mean(x²) + eps) of
    /// the norm is left to the readers; the sums of squares travel with the rows.
    Quantize {
        /// Input.
        x: NodeId,
        /// Gain per column and epsilon of an RMS norm over the whole row.
        norm: Option<(WeightId, f32)>,
        /// Two bytes per value instead of one.
        wide: bool,
    },
    /// The rows of `x` as halves, each value rounded to the nearest that is finite: input of products on matrix units.
    /// Only the compiler writes it, for devices that run kernels.
    Halve {
        /// Input.
        x: NodeId,
    },
    /// x · Wᵀ: [n, cols] × [rows, cols] → [n, rows]. `x` may be quantized, or halves.
    MatMul {
        /// Input.
        x: NodeId,
        /// Weight.
        weight: WeightId,
    },
    /// x + weight, the same vector for every row.
    Bias {
        /// Input.
        x: NodeId,
        /// One addend per column.
        weight: WeightId,
    },
    /// a + b.
    Add {
        /// Left; where there is a residual stream, this is it.
        a: NodeId,
        /// Right.
        b: NodeId,
    },
    /// act(gate) · up.
    Glu {
        /// Gate.
        gate: NodeId,
        /// Up.
        up: NodeId,
        /// Activation.
        act: Activation,
    },
    /// Rotates each head of `x` by its row's position.
    Rope {
        /// Input, heads side by side.
        x: NodeId,
        /// Columns per head.
        head_dim: u32,
        /// Pairing.
        pairing: Pairing,
        /// Table.
        rope: RopeId,
    },
    /// Writes one K and one V row per token into layer `layer` of the cache, at the step's slots. Gives no value.
    KvAppend {
        /// Keys.
        k: NodeId,
        /// Values.
        v: NodeId,
        /// KV layer.
        layer: u32,
    },
    /// softmax(scale · q·Kᵀ) · V over the row's own sequence up to its position, reading the cache of the layer that
    /// `append` wrote. Query head h reads KV head h / (heads / kv_heads).
    Attention {
        /// Queries.
        q: NodeId,
        /// The append that must come first.
        append: NodeId,
        /// Rules.
        spec: AttentionSpec,
    },
    /// Column of the largest value of each row (lowest index on ties), as one U32 in place of an F32; `u32::MAX` for a
    /// row without a number.
    Argmax {
        /// Input.
        x: NodeId,
    },
    /// The `k` largest values of each row, best first (lower columns first among equals), then their `k` columns as
    /// U32. NaN counts as the smallest F32.
    TopK {
        /// Input.
        x: NodeId,
        /// How many; at most the columns of `x`.
        k: u32,
    },
    /// One column of each row as a U32, drawn from the `k` largest values by the step's draws ([`crate::sample`]);
    /// `u32::MAX` for a row without a number.
    Sample {
        /// Input.
        x: NodeId,
        /// How many; at most the columns of `x`.
        k: u32,
    },
    /// The router of a mixture of experts: the `k` experts with the largest logits, ordered as by `TopK`. A row has
    /// their `k` weights, the softmax of their logits, then their `k` numbers as U32.
    Route {
        /// One logit per expert.
        logits: NodeId,
        /// Experts per token.
        k: u32,
    },
    /// x · Wᵀ by each of a row's `k` experts, side by side: [n, cols] × [experts · rows, cols] → [n, k · rows]. With
    /// `k · cols` columns of `x`, each expert has its own `cols` of them.
    ExpertMatMul {
        /// Input.
        x: NodeId,
        /// Which experts: an [`Op::Route`].
        route: NodeId,
        /// Matrices of all experts, one after the other.
        weight: WeightId,
    },
    /// What a row's experts gave, weighted and added up: [n, k · cols] → [n, cols].
    ExpertSum {
        /// Input.
        x: NodeId,
        /// Which experts, with which weights.
        route: NodeId,
    },
}

/// A node: an operation and its shape.
#[derive(Clone, PartialEq, Debug)]
pub struct Node {
    /// Operation.
    pub op: Op,
    /// Shape of the value.
    pub shape: Shape,
    /// Model layer for people and reports; `u32::MAX` outside layers.
    pub layer: u32,
}

/// KV cache shape of one layer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KvShape {
    /// Heads.
    pub heads: u32,
    /// Elements per head.
    pub head_dim: u32,
}

/// A model's computation for one step. Built append-only, hence topologically ordered.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    nodes: Vec<Node>,
    weights: Vec<Weight>,
    ropes: Vec<Rope>,
    kv: Vec<KvShape>,
    layer: Option<u32>,
    logits: Option<NodeId>,
}

impl Op {
    /// The values it reads, in order.
    pub fn inputs(&self) -> Vec<NodeId> {
        let mut inputs = vec![];
        self.clone().for_each_input(|input| inputs.push(*input));
        inputs
    }

    /// Visits the values it reads, in order; they may be replaced.
    pub fn for_each_input(&mut self, mut f: impl FnMut(&mut NodeId)) {
        match self {
            Op::Embed { .. } => {}
            Op::SelectRows { x }
            | Op::Scale { x, .. }
            | Op::RmsNorm { x, .. }
            | Op::Quantize { x, .. }
            | Op::Halve { x }
            | Op::MatMul { x, .. }
            | Op::Bias { x, .. }
            | Op::Rope { x, .. }
            | Op::Argmax { x }
            | Op::TopK { x, .. }
            | Op::Sample { x, .. } => f(x),
            Op::Add { a, b } => [a, b].into_iter().for_each(f),
            Op::Glu { gate, up, .. } => [gate, up].into_iter().for_each(f),
            Op::KvAppend { k, v, .. } => [k, v].into_iter().for_each(f),
            Op::Attention { q, append, .. } => [q, append].into_iter().for_each(f),
            Op::Route { logits, .. } => f(logits),
            Op::ExpertMatMul { x, route, .. } | Op::ExpertSum { x, route } => [x, route].into_iter().for_each(f),
        }
    }
    /// Its name, as in the graph's text form.
    pub fn name(&self) -> &'static str {
        match self {
            Op::Embed { .. } => "embed",
            Op::SelectRows { .. } => "select_rows",
            Op::Scale { .. } => "scale",
            Op::RmsNorm { .. } => "rms_norm",
            Op::Quantize { .. } => "quantize",
            Op::Halve { .. } => "halve",
            Op::MatMul { .. } => "matmul",
            Op::Bias { .. } => "bias",
            Op::Add { .. } => "add",
            Op::Glu { .. } => "glu",
            Op::Rope { .. } => "rope",
            Op::KvAppend { .. } => "kv_append",
            Op::Attention { .. } => "attention",
            Op::Argmax { .. } => "argmax",
            Op::TopK { .. } => "top_k",
            Op::Sample { .. } => "sample",
            Op::Route { .. } => "route",
            Op::ExpertMatMul { .. } => "expert_matmul",
            Op::ExpertSum { .. } => "expert_sum",
        }
    }
    /// The weight it reads, if any.
    pub fn weight(&self) -> Option<WeightId> {
        match *self {
            Op::Embed { table } => Some(table),
            Op::Quantize { norm, .. } => norm.map(|n| n.0),
            Op::RmsNorm { weight, .. }
            | Op::MatMul { weight, .. }
            | Op::ExpertMatMul { weight, .. }
            | Op::Bias { weight, .. } => Some(weight),
            _ => None,
        }
    }
}

/// Building. Methods panic on shape mismatch: `forward` functions get shapes that `describe` has checked.
impl Graph {
    /// An empty graph.
    pub fn new() -> Graph {
        Graph::default()
    }

    /// Declares a weight.
    pub fn weight(&mut self, name: impl Into<String>, rows: u32, cols: u32, format: &'static QuantFormat) -> WeightId {
        let name = name.into();
        if let Some(i) = self.weights.iter().position(|w| w.name == name) {
            return WeightId(i as u32);
        }
        assert!(cols.is_multiple_of(format.block_elems), "{name}: {cols} columns are not whole {} blocks", format.name);
        self.weights.push(Weight { name, rows, cols, format });
        WeightId(self.weights.len() as u32 - 1)
    }

    /// Declares a rotary table (equal tables share a handle).
    pub fn rope_table(&mut self, rope: Rope) -> RopeId {
        let found = self.ropes.iter().position(|r| *r == rope);
        let i = found.unwrap_or_else(|| {
            self.ropes.push(rope);
            self.ropes.len() - 1
        });
        RopeId(i as u32)
    }

    /// Nodes added from here on belong to model layer `layer` (for reports); `None` outside layers.
    pub fn enter_layer(&mut self, layer: Option<u32>) {
        self.layer = layer;
    }

    fn push(&mut self, op: Op, rows: Rows, cols: u32) -> NodeId {
        self.nodes.push(Node { op, shape: Shape { rows, cols }, layer: self.layer.unwrap_or(u32::MAX) });
        NodeId(self.nodes.len() as u32 - 1)
    }

    /// Token embedding.
    pub fn embed(&mut self, table: WeightId) -> NodeId {
        let cols = self.weights[table.index()].cols;
        self.push(Op::Embed { table }, Rows::Tokens, cols)
    }

    /// Rows whose logits are wanted.
    pub fn select_rows(&mut self, x: NodeId) -> NodeId {
        let cols = self.node(x).shape.cols;
        self.push(Op::SelectRows { x }, Rows::Outputs, cols)
    }

    /// x · factor.
    pub fn scale(&mut self, x: NodeId, factor: f32) -> NodeId {
        let s = self.node(x).shape;
        self.push(Op::Scale { x, factor }, s.rows, s.cols)
    }

    /// RMS norm over groups of as many columns as `weight` has.
    pub fn rms_norm(&mut self, x: NodeId, weight: WeightId, eps: f32) -> NodeId {
        let (s, group) = (self.node(x).shape, self.weights[weight.index()].cols);
        assert!(s.cols.is_multiple_of(group), "norm of {} columns in groups of {group}", s.cols);
        self.push(Op::RmsNorm { x, weight, eps, group }, s.rows, s.cols)
    }

    /// x · Wᵀ.
    pub fn matmul(&mut self, x: NodeId, weight: WeightId) -> NodeId {
        let (s, w) = (self.node(x).shape, &self.weights[weight.index()]);
        assert!(s.cols == w.cols, "{}: {} columns, input has {}", w.name, w.cols, s.cols);
        let rows = w.rows;
        self.push(Op::MatMul { x, weight }, s.rows, rows)
    }

    /// x + bias.
    pub fn bias(&mut self, x: NodeId, weight: WeightId) -> NodeId {
        let s = self.node(x).shape;
        assert!(self.weights[weight.index()].cols == s.cols, "bias length");
        self.push(Op::Bias { x, weight }, s.rows, s.cols)
    }

    /// a + b.
    pub fn add(&mut self, a: NodeId, b: NodeId) -> NodeId {
        let s = self.node(a).shape;
        assert!(s == self.node(b).shape, "add of unequal shapes");
        self.push(Op::Add { a, b }, s.rows, s.cols)
    }

    /// act(gate) · up.
    pub fn glu(&mut self, gate: NodeId, up: NodeId, act: Activation) -> NodeId {
        let s = self.node(gate).shape;
        assert!(s == self.node(up).shape, "glu of unequal shapes");
        self.push(Op::Glu { gate, up, act }, s.rows, s.cols)
    }

    /// Rotary embedding of every head of `x`.
    pub fn rope(&mut self, x: NodeId, head_dim: u32, pairing: Pairing, rope: RopeId) -> NodeId {
        let s = self.node(x).shape;
        let rotated = 2 * self.ropes[rope.index()].inv_freq.len() as u32;
        assert!(s.cols.is_multiple_of(head_dim) && rotated <= head_dim, "rope head size");
        self.push(Op::Rope { x, head_dim, pairing, rope }, s.rows, s.cols)
    }

    /// Appends K and V to a new KV layer with heads of `head_dim`.
    pub fn kv_append(&mut self, k: NodeId, v: NodeId, head_dim: u32) -> NodeId {
        let s = self.node(k).shape;
        assert!(s == self.node(v).shape && s.cols.is_multiple_of(head_dim), "key and value shapes");
        let layer = self.kv.len() as u32;
        self.kv.push(KvShape { heads: s.cols / head_dim, head_dim });
        self.push(Op::KvAppend { k, v, layer }, s.rows, 0)
    }

    /// Attention over the layer that `append` extends.
    pub fn attention(&mut self, q: NodeId, append: NodeId, spec: AttentionSpec) -> NodeId {
        let s = self.node(q).shape;
        let Op::KvAppend { layer, .. } = self.node(append).op else { panic!("attention without an append") };
        let kv = self.kv[layer as usize];
        assert!(s.cols == spec.heads * spec.head_dim, "query width");
        assert!(kv == KvShape { heads: spec.kv_heads, head_dim: spec.head_dim }, "KV shape");
        assert!(spec.heads.is_multiple_of(spec.kv_heads), "query heads per KV head");
        self.push(Op::Attention { q, append, spec }, s.rows, s.cols)
    }

    /// Declares which value holds the logits.
    pub fn set_logits(&mut self, logits: NodeId) {
        self.logits = Some(logits);
    }

    /// Block-scaled integers of the rows of `x`.
    pub fn quantize(&mut self, x: NodeId, norm: Option<(WeightId, f32)>, wide: bool) -> NodeId {
        let s = self.node(x).shape;
        assert!(s.cols.is_multiple_of(crate::quant::UNIT), "{} columns are not whole blocks", s.cols);
        self.push(Op::Quantize { x, norm, wide }, s.rows, s.cols)
    }

    /// The rows of `x` as halves.
    pub fn halve(&mut self, x: NodeId) -> NodeId {
        let s = self.node(x).shape;
        self.push(Op::Halve { x }, s.rows, s.cols)
    }

    /// The same graph with its nodes pushed anew by `f`, which gets each operation with its inputs already renamed and
    /// gives the node that stands for it.
    pub fn rewrite(&self, mut f: impl FnMut(&mut Graph, NodeId, Node) -> NodeId) -> Graph {
        let mut graph = Graph { nodes: vec![], logits: None, layer: None, ..self.clone() };
        let mut renamed: Vec<NodeId> = vec![];
        for id in self.ids() {
            let mut node = self.node(id).clone();
            node.op.for_each_input(|input| *input = renamed[input.index()]);
            graph.layer = (node.layer != u32::MAX).then_some(node.layer);
            renamed.push(f(&mut graph, id, node));
        }
        graph.layer = None;
        graph.logits = self.logits.map(|l| renamed[l.index()]);
        graph
    }

    /// Pushes a node as it is.
    pub fn push_node(&mut self, node: Node) -> NodeId {
        self.nodes.push(node);
        NodeId(self.nodes.len() as u32 - 1)
    }

    /// The largest value's column per row.
    pub fn argmax(&mut self, x: NodeId) -> NodeId {
        let rows = self.node(x).shape.rows;
        self.push(Op::Argmax { x }, rows, 1)
    }

    /// The `k` largest values per row and their columns.
    pub fn top_k(&mut self, x: NodeId, k: u32) -> NodeId {
        let s = self.node(x).shape;
        assert!(k <= s.cols, "top {k} of {}", s.cols);
        self.push(Op::TopK { x, k }, s.rows, 2 * k)
    }

    /// A column per row, drawn from the `k` largest values.
    pub fn sample(&mut self, x: NodeId, k: u32) -> NodeId {
        let s = self.node(x).shape;
        assert!(k <= s.cols, "top {k} of {}", s.cols);
        self.push(Op::Sample { x, k }, s.rows, 1)
    }
}

/// Reading.
impl Graph {
    /// All nodes; a node's inputs have lower indices.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }
    /// All handles in order.
    pub fn ids(&self) -> impl DoubleEndedIterator<Item = NodeId> + use<> {
        (0..self.nodes.len() as u32).map(NodeId)
    }
    /// A node.
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.index()]
    }
    /// A node's operation.
    pub fn op(&self, id: NodeId) -> &Op {
        &self.nodes[id.index()].op
    }
    /// All weights.
    pub fn weights(&self) -> &[Weight] {
        &self.weights
    }
    /// A weight.
    pub fn weight_of(&self, id: WeightId) -> &Weight {
        &self.weights[id.index()]
    }
    /// All rotary tables.
    pub fn ropes(&self) -> &[Rope] {
        &self.ropes
    }
    /// KV cache shape of each KV layer.
    pub fn kv(&self) -> &[KvShape] {
        &self.kv
    }
    /// The value that holds the logits, [Outputs, vocabulary].
    pub fn logits(&self) -> Option<NodeId> {
        self.logits
    }
    /// For every node, the nodes that read it.
    pub fn users(&self) -> Vec<Vec<NodeId>> {
        let mut users = vec![vec![]; self.nodes.len()];
        for id in self.ids() {
            for input in self.op(id).inputs() {
                users[input.index()].push(id);
            }
        }
        users
    }
}
