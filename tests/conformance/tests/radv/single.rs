//! Graphs whose decode step has one mat-vec of a wanted kind, format and row length.

use crate::straight::weighs;
use std::sync::Arc;
use zinc_compiler::{Choices, compile};
use zinc_ir::device::Caps;
use zinc_ir::graph::{self, Activation, AttentionSpec, Graph, NodeId, Pairing, Rope};
use zinc_ir::kernel::{Kernel, Op};
use zinc_ir::plan::{Bucket, KvLayout, KvType, Tail};
use zinc_ir::quant::{self, QuantFormat};

/// Elements per head.
const HEAD: u32 = 128;

/// A kind of mat-vec launch: the template's name, and a graph whose weights have `rows` rows of `cols`.
pub(crate) struct Family {
    /// Template.
    pub(crate) name: &'static str,
    pub(crate) graph: fn(&'static QuantFormat, rows: u32, cols: u32) -> Graph,
}

/// All kinds that decoding a dense layer uses.
pub(crate) static FAMILIES: &[Family] = &[
    Family { name: "matvec", graph: head },
    Family { name: "matvec_residual", graph: residual },
    Family { name: "matvec_glu", graph: glu },
    Family { name: "matvec_qkv", graph: qkv },
];

fn input(g: &mut Graph, name: &str, cols: u32) -> NodeId {
    let table = g.weight(name, 32, cols, quant::F32);
    g.embed(table)
}

fn normed(g: &mut Graph, cols: u32) -> NodeId {
    let x = input(g, "embed", cols);
    let norm = g.weight("norm", 1, cols, quant::F32);
    g.rms_norm(x, norm, 1e-5)
}

/// The product with the output matrix.
fn head(format: &'static QuantFormat, rows: u32, cols: u32) -> Graph {
    let mut g = Graph::new();
    let x = normed(&mut g, cols);
    let w = g.weight("output", rows, cols, format);
    let y = g.matmul(x, w);
    finish(g, y)
}

fn residual(format: &'static QuantFormat, rows: u32, cols: u32) -> Graph {
    let mut g = Graph::new();
    let (a, x) = (input(&mut g, "stream", rows), input(&mut g, "inner", cols));
    let w = g.weight("down", rows, cols, format);
    let y = g.matmul(x, w);
    let y = g.add(a, y);
    let norm = g.weight("norm", 1, rows, quant::F32);
    let y = g.rms_norm(y, norm, 1e-5);
    next(g, y, format)
}

fn glu(format: &'static QuantFormat, rows: u32, cols: u32) -> Graph {
    let mut g = Graph::new();
    let x = normed(&mut g, cols);
    let [gate, up] = ["gate", "up"].map(|name| {
        let w = g.weight(name, rows, cols, format);
        g.matmul(x, w)
    });
    let y = g.glu(gate, up, Activation::Silu);
    next(g, y, format)
}

fn qkv(format: &'static QuantFormat, rows: u32, cols: u32) -> Graph {
    let mut g = Graph::new();
    let x = normed(&mut g, cols);
    let rope = g.rope_table(Rope { inv_freq: vec![1.0; HEAD as usize / 2], magnitude: 1.0 });
    let [q, k, v] = ["q", "k", "v"].map(|name| {
        let w = g.weight(name, rows, cols, format);
        g.matmul(x, w)
    });
    let (q, k) = (g.rope(q, HEAD, Pairing::Halves, rope), g.rope(k, HEAD, Pairing::Halves, rope));
    let append = g.kv_append(k, v, HEAD);
    let heads = rows / HEAD;
    let spec = AttentionSpec { heads, kv_heads: heads, head_dim: HEAD, scale: 1.0, window: None };
    let y = g.attention(q, append, spec);
    finish(g, y)
}

/// A product follows, for which the launch in question prepares its result.
fn next(mut g: Graph, x: NodeId, format: &'static QuantFormat) -> Graph {
    let cols = g.node(x).shape.cols;
    let w = g.weight("next", 256, cols, format);
    let y = g.matmul(x, w);
    finish(g, y)
}

/// Every row's values are wanted, so that no kernel picks rows.
fn finish(mut g: Graph, y: NodeId) -> Graph {
    let y = g.select_rows(y);
    g.set_logits(y);
    g
}

/// One subgroup's share of a launch.
pub(crate) struct Single {
    /// The kernel.
    pub(crate) kernel: Kernel,
    /// Bytes of weights that one subgroup reads on all of the kernel's branches together.
    pub(crate) bytes: f64,
}

/// Compiles a step of `tokens` rows and takes its launch of the family.
pub(crate) fn single(
    family: &Family,
    format: &'static QuantFormat,
    size: [u32; 2],
    tokens: u32,
    caps: &Caps,
    choices: &Choices,
) -> Single {
    let graph = Arc::new((family.graph)(format, size[0], size[1]));
    let kv = Arc::new(KvLayout::new(&graph, KvType::F16, 128));
    let bucket = Bucket { tokens, outputs: tokens, context: 256, sequences: tokens, tail: Tail::Logits };
    let what = || format!("{} {} x{tokens}", family.name, format.name);
    let plan = compile(&graph, &kv, bucket, caps, choices).unwrap_or_else(|e| panic!("{}: {e}", what()));
    let launch = plan.launches().find(|l| l.template == family.name && !l.region.is_empty());
    let launch = launch.unwrap_or_else(|| panic!("{}: the plan has no such launch:\n{plan}", what()));
    let kernel = plan.kernels[launch.kernel.expect("a kernel").0 as usize].clone();
    let weights = launch.region.iter().filter_map(|node| match plan.graph.op(*node) {
        graph::Op::MatMul { weight, .. } => Some(plan.graph.weight_of(*weight).bytes()),
        _ => None,
    });
    let subgroups = launch.grid.iter().product::<u32>() * (kernel.workgroup_size / kernel.subgroup_size);
    let bytes = weights.sum::<u64>() as f64 / subgroups as f64 * branches(&kernel) as f64;
    Single { kernel, bytes }
}

/// Branches of a kernel's outermost level that read weights: a subgroup takes one of them, the compiler's statistics
/// count all.
fn branches(kernel: &Kernel) -> usize {
    let arms = kernel.body.iter().map(|v| match kernel.op(*v) {
        Op::If { then, otherwise, .. } => weighs(kernel, then) as usize + weighs(kernel, otherwise) as usize,
        _ => 0,
    });
    arms.sum::<usize>().max(1)
}
