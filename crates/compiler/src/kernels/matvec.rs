//! Mat-vec kernels for 1 to 8 rows: `[norm] · W [+ bias]`, with residual or gated-unit epilogues.
//!
//! ```text
//! x ─[select_rows]─[rms_norm]─► matmul ─[bias]─► y              MATVEC
//!                               matmul ─[bias]─► add(a, ·)      RESIDUAL
//!             [rms_norm]─► gate matmul, up matmul ─► glu        GLU
//! ```
//!
//! A tile is a run of weight rows; each subgroup takes [`Shape::rows`] of them at a time.

use super::args::{Args, launch};
use super::dot::{self, Inputs, Norm, WeightRow};
use super::quantize;
use crate::select::Finder;
use crate::template::{Ctx, Emission, Operand, Template};
use crate::{CompileError, LaunchSketch, Region};
use zinc_ir::graph::{Activation, NodeId, Op, Weight, WeightId};
use zinc_ir::kernel::{Builder, Type, Val};
use zinc_ir::plan::{ActPrecision, Input};

pub(super) static MATVEC: Template = Template {
    name: "matvec",
    summary: "[select rows] [norm] · W [+ bias], few rows",
    fused: false,
    matches: match_matvec,
    emit,
};

pub(super) static RESIDUAL: Template = Template {
    name: "matvec_residual",
    summary: "x · W [+ bias] + residual, few rows",
    fused: true,
    matches: match_residual,
    emit,
};

pub(super) static GLU: Template = Template {
    name: "matvec_glu",
    summary: "[norm] · (gate, up) and the gated unit, few rows",
    fused: true,
    matches: match_glu,
    emit,
};

/// Walks `[bias](matmul)` down from `node`; draws the nodes into `nodes` and gives the product.
pub(super) fn match_product(f: &Finder<'_>, node: NodeId, nodes: &mut Vec<NodeId>) -> Option<NodeId> {
    let mut at = node;
    if let Op::Bias { x, .. } = *f.op(at) {
        nodes.push(at);
        at = x;
        if !f.private(at, nodes) {
            return None;
        }
    }
    match f.op(at) {
        Op::MatMul { .. } => {
            nodes.push(at);
            Some(at)
        }
        _ => None,
    }
}

/// Draws the norm (and row selection) in front of products that all read `x` into `nodes`, if nothing else reads it.
pub(super) fn match_prologue(f: &Finder<'_>, x: NodeId, nodes: &mut Vec<NodeId>) {
    if !f.ctx.choices.fuse {
        return;
    }
    let mut at = x;
    match *f.op(at) {
        Op::RmsNorm { x: inner, group, .. } if group == f.ctx.cols(at) && f.private(at, nodes) => {
            nodes.push(at);
            at = inner;
        }
        _ => {}
    }
    if matches!(f.op(at), Op::SelectRows { .. }) && f.private(at, nodes) {
        nodes.push(at);
    }
}

fn product_input(f: &Finder<'_>, product: NodeId) -> Option<NodeId> {
    match *f.op(product) {
        Op::MatMul { x, weight } if dot::supported(f.ctx.graph.weight_of(weight)) => Some(x),
        _ => None,
    }
}

fn match_matvec(f: &Finder<'_>, node: NodeId) -> Option<Vec<NodeId>> {
    if !f.few_rows(node) {
        return None;
    }
    let mut nodes = vec![];
    let product = match (f.ctx.choices.fuse, f.op(node)) {
        (false, Op::MatMul { .. }) => {
            nodes.push(node);
            node
        }
        (false, _) => return None,
        (true, _) => match_product(f, node, &mut nodes)?,
    };
    match_prologue(f, product_input(f, product)?, &mut nodes);
    Some(nodes)
}

fn match_residual(f: &Finder<'_>, node: NodeId) -> Option<Vec<NodeId>> {
    let Op::Add { b, .. } = *f.op(node) else { return None };
    if !f.few_rows(node) || !f.private(b, &[node]) {
        return None;
    }
    let mut nodes = vec![node];
    let product = match_product(f, b, &mut nodes)?;
    product_input(f, product)?;
    Some(nodes)
}

fn match_glu(f: &Finder<'_>, node: NodeId) -> Option<Vec<NodeId>> {
    let Op::Glu { gate, up, .. } = *f.op(node) else { return None };
    let open = |id| f.private(id, &[node]) && matches!(f.op(id), Op::MatMul { .. });
    if !f.few_rows(node) || gate == up || !open(gate) || !open(up) {
        return None;
    }
    let (x, other) = (product_input(f, gate)?, product_input(f, up)?);
    if x != other {
        return None;
    }
    let mut nodes = vec![node, gate, up];
    match_prologue(f, x, &mut nodes);
    Some(nodes)
}

/// What a region computes, read back from its nodes.
pub(super) struct Parts {
    /// Products, one or (gate, up).
    pub(super) products: Vec<WeightId>,
    pub(super) bias: Option<WeightId>,
    pub(super) residual: Option<NodeId>,
    pub(super) activation: Option<Activation>,
    pub(super) source: Source,
}

/// Where a product's input rows come from.
pub(super) struct Source {
    /// The value read.
    pub(super) x: NodeId,
    /// Norm in front: weight and epsilon.
    pub(super) norm: Option<(WeightId, f32)>,
    /// Rows are picked by the step's outputs.
    pub(super) select: bool,
}

/// Finds the prologue of a product inside a region.
pub(super) fn source_of(ctx: &Ctx<'_>, region: &Region, x: NodeId) -> Source {
    let mut source = Source { x, norm: None, select: false };
    while region.nodes.contains(&source.x) {
        source.x = match *ctx.graph.op(source.x) {
            Op::RmsNorm { x, weight, eps, .. } => {
                source.norm = Some((weight, eps));
                x
            }
            Op::SelectRows { x } => {
                source.select = true;
                x
            }
            _ => break,
        };
    }
    source
}

pub(super) fn parts(ctx: &Ctx<'_>, region: &Region) -> Parts {
    let mut products = vec![];
    let (mut bias, mut residual, mut activation, mut input) = (None, None, None, None);
    for &node in &region.nodes {
        match *ctx.graph.op(node) {
            Op::MatMul { x, weight } => {
                products.push((node, weight));
                input = Some(x);
            }
            Op::Bias { weight, .. } => bias = Some(weight),
            Op::Add { a, .. } => residual = Some(a),
            Op::Glu { gate, act, .. } => {
                activation = Some(act);
                products.sort_by_key(|(node, _)| *node != gate);
            }
            _ => {}
        }
    }
    let input = input.expect("a mat-vec region has a product");
    Parts {
        products: products.into_iter().map(|p| p.1).collect(),
        bias,
        residual,
        activation,
        source: source_of(ctx, region, input),
    }
}

/// How the work is cut.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    /// Subgroups per workgroup.
    pub(super) subgroups: u32,
    /// Weight rows a subgroup multiplies at a time.
    pub(super) rows: u32,
    /// How many times.
    pub(super) turns: u32,
}

impl Shape {
    /// Rows per tile.
    pub(super) fn tile(self) -> u32 {
        self.subgroups * self.rows * self.turns
    }
    /// A shape for `m` weight rows and `n` input rows. Four rows of one weight read the inputs half as often as two, but
    /// pay only where there are tiles to spare (docs/internals/performance.md); so do turns.
    pub(super) fn choose(ctx: &Ctx<'_>, weights: &[&Weight], m: u32, n: u32) -> Shape {
        let subgroups = ctx.subgroups();
        let spare = m.div_ceil(subgroups * 4) >= ctx.caps.parallel_tiles;
        let rows = match n {
            1 if weights.len() == 1 && spare => 4,
            1 | 2 => 2,
            _ => 1,
        };
        let tiles = m.div_ceil(subgroups * rows);
        let turns = (tiles / (ctx.caps.parallel_tiles.max(1) * 4)).clamp(1, 8);
        Shape { subgroups, rows, turns }
    }
}

/// How a region's products get their inputs: straight from a value, or through a launch that quantizes first.
pub(super) struct Feed {
    source: Source,
    rows: u32,
    bytes: bool,
}

impl Feed {
    /// Decides by the plan's activation precision and the formats of the weights.
    pub(super) fn new(ctx: &Ctx<'_>, source: Source, rows: u32, weights: &[&Weight]) -> Feed {
        let bytes = ctx.choices.act == ActPrecision::Q8 && dot::takes_bytes(weights);
        Feed { source, rows, bytes }
    }

    /// Declares the arguments.
    pub(super) fn inputs<'b>(&self, ctx: &Ctx<'_>, b: &'b Builder, args: &Args<'b>) -> Inputs<'b> {
        let n = self.rows;
        if self.bytes {
            let base = args.read("x", Operand::Temp(0));
            let bytes = quantize::row_bytes(ctx.cols(self.source.x));
            return Inputs { base, rows: (0..n).map(|i| b.u32(i * bytes)).collect(), norm: None, bytes: true };
        }
        let base = args.read("x", Operand::Value(self.source.x));
        let bytes = ctx.cols(self.source.x) * 4;
        let norm = self.source.norm.map(|(w, eps)| Norm { weight: args.read("norm", Operand::Weight(w)), eps });
        let rows = if self.source.select {
            let picks = args.read("outputs", Operand::Input(Input::Outputs));
            (0..n).map(|i| b.load(Type::U32, picks, b.u32(i * 4), 4) * bytes).collect()
        } else {
            (0..n).map(|i| b.u32(i * bytes)).collect()
        };
        Inputs { base, rows, norm, bytes: false }
    }

    /// The whole emission, given the launch that multiplies.
    pub(super) fn emission(&self, ctx: &Ctx<'_>, product: LaunchSketch) -> Emission {
        if !self.bytes {
            return Emission { launches: vec![product], temps: vec![] };
        }
        let bytes = (self.rows * quantize::row_bytes(ctx.cols(self.source.x))) as u64;
        Emission { launches: vec![quantize::quantize(ctx, &self.source, self.rows, 0), product], temps: vec![bytes] }
    }
}

fn emit(ctx: &Ctx<'_>, region: &Region) -> Result<Emission, CompileError> {
    let parts = parts(ctx, region);
    let out = region.last();
    let (m, n) = (ctx.cols(out), ctx.rows(out));
    let weights: Vec<_> = parts.products.iter().map(|w| ctx.graph.weight_of(*w)).collect();
    let shape = Shape::choose(ctx, &weights, m, n);
    let sg = ctx.caps.subgroup_size;
    let formats: Vec<_> = weights.iter().map(|w| w.format.name.to_lowercase()).collect();
    let name = format!("{}_{}_{m}x{}x{n}", region.template.name, formats.join("_"), weights[0].cols);
    let grid = [m.div_ceil(shape.tile()), 1, 1];
    let feed = Feed::new(ctx, parts.source, n, &weights);
    let product = launch(name, shape.subgroups * sg, sg, grid, |b, args| {
        let inputs = feed.inputs(ctx, b, args);
        let bases: Vec<Val<'_>> = parts.products.iter().map(|w| args.read("weight", Operand::Weight(*w))).collect();
        let bias = parts.bias.map(|w| args.read("bias", Operand::Weight(w)));
        let residual = parts.residual.map(|a| args.read("residual", Operand::Value(a)));
        let y = args.write("y", Operand::Value(out));
        let first = b.tile(0) * shape.tile() + b.subgroup_id() * shape.rows;
        b.for_(b.u32(0), b.u32(shape.turns), 1, &[], |turn, _| {
            let row0 = first + turn * (shape.subgroups * shape.rows);
            let index: Vec<Val<'_>> = (0..shape.rows).map(|r| (row0 + r).min(b.u32(m - 1))).collect();
            let rows: Vec<WeightRow<'_, '_>> = weights
                .iter()
                .zip(&bases)
                .flat_map(|(weight, base)| index.iter().map(|&row| WeightRow { weight, base: *base, row }))
                .collect();
            let sums = dot::dot(b, sg, &rows, &inputs);
            b.if_(b.lane().eq(0), || {
                for r in 0..shape.rows as usize {
                    b.if_((row0 + r as u32).lt(m), || {
                        for j in 0..n {
                            let at = index[r] * 4 + j * m * 4;
                            let mut value = sums[r][j as usize];
                            if let Some(act) = parts.activation {
                                let up = sums[shape.rows as usize + r][j as usize];
                                value = activate(act, value) * up;
                            }
                            if let Some(bias) = bias {
                                value = value + b.load(Type::F32, bias, index[r] * 4, 4);
                            }
                            if let Some(a) = residual {
                                value = value + b.load(Type::F32, a, at, 4);
                            }
                            b.store(y, at, value, 4);
                        }
                    });
                }
            });
            vec![]
        });
    });
    Ok(feed.emission(ctx, product))
}

/// The activation of a gated unit.
pub(super) fn activate<'b>(act: Activation, x: Val<'b>) -> Val<'b> {
    match act {
        Activation::Silu => x / ((-x).exp() + 1.0),
        Activation::GeluTanh => {
            let inner = (x * x * x * 0.044715 + x) * 0.797_884_6;
            // tanh through exp of a non-positive number: some drivers' tanh overflows for large arguments.
            let e = (inner.abs() * -2.0).exp();
            let t = (-e + 1.0) / (e + 1.0);
            let tanh = inner.lt(0.0).select(-t, t);
            x * 0.5 * (tanh + 1.0)
        }
    }
}
