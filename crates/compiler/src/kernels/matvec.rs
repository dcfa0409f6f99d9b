//! Mat-vec kernels for few rows, at most 8: `[norm] · W [+ bias]`, with residual or gated-unit epilogues.
//!
//! ```text
//! x ─[select_rows]─[rms_norm]─► matmul ─[bias]─► y              MATVEC
//!                               matmul ─[bias]─► add(a, ·)      RESIDUAL
//!             [rms_norm]─► gate matmul, up matmul ─► glu        GLU
//!                               the last two: [─► quantize]
//! ```
//!
//! A tile is a run of weight rows; each subgroup takes [`Cut::rows`] of them at a time.

use super::args::{Args, launch};
use super::arrival;
use super::dot::{self, InputKind, Inputs, Norm, WeightRow};
use super::dot_blocks::few_enough;
use super::quantize::{self, Blocks, RowLayout};
use super::rows::for_items;
use super::tables;
use crate::cut::{self, Cut, Cuts, Space};
use crate::select::Finder;
use crate::template::{Ctx, Emission, Operand, Template};
use crate::{CompileError, Region};
use zinc_ir::graph::{Activation, NodeId, Op, Weight, WeightId};
use zinc_ir::kernel::{Builder, Type, Val};
use zinc_ir::plan::Input;
use zinc_ir::quant::UNIT;

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
    let (value, mut nodes) = with_ending(f, node);
    let Op::Add { b, .. } = *f.op(value) else { return None };
    if !f.few_rows(node) || !f.private(b, &[value]) {
        return None;
    }
    let product = match_product(f, b, &mut nodes)?;
    product_input(f, product)?;
    Some(nodes)
}

/// The value in front of a quantization that ends the region, or `node` itself; and the nodes so far.
pub(super) fn with_ending(f: &Finder<'_>, node: NodeId) -> (NodeId, Vec<NodeId>) {
    match quantize::ending(f, node) {
        Some((value, quantized)) => (value, vec![quantized, value]),
        None => (node, vec![node]),
    }
}

fn match_glu(f: &Finder<'_>, node: NodeId) -> Option<Vec<NodeId>> {
    let (value, mut nodes) = with_ending(f, node);
    let Op::Glu { gate, up, .. } = *f.op(value) else { return None };
    let open = |id| f.private(id, &[value]) && matches!(f.op(id), Op::MatMul { .. });
    if !f.few_rows(node) || gate == up || !open(gate) || !open(up) {
        return None;
    }
    let (x, other) = (product_input(f, gate)?, product_input(f, up)?);
    if x != other {
        return None;
    }
    nodes.extend([gate, up]);
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
    /// The value computed.
    pub(super) out: NodeId,
    /// Its quantization, if the region ends in one, with the norm's gain.
    pub(super) quantized: Option<(NodeId, Option<WeightId>)>,
    /// The same as halves, if the region ends in them.
    pub(super) halves: Option<NodeId>,
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
    let (mut out, mut quantized, mut halves) = (region.last(), None, None);
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
            Op::Quantize { x, norm, .. } => {
                (out, quantized) = (x, Some((node, norm.map(|n| n.0))));
            }
            Op::Halve { x } => (out, halves) = (x, Some(node)),
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
        out,
        quantized,
        halves,
    }
}

/// The rules.
impl Cut {
    /// A cut for `m` weight rows and `n` input rows of a tile whose subgroups work each for itself. Many subgroups with
    /// two rows and little in flight each do best (docs/internals/performance.md); with F32 inputs, which cost registers,
    /// four rows of one weight where there are tiles to spare.
    fn of_rows(ctx: &Ctx<'_>, sets: u32, m: u32, n: u32, integers: bool) -> Cut {
        let subgroups = if integers { largest(ctx) } else { ctx.subgroups() };
        let spare = m.div_ceil(subgroups * 4) >= ctx.caps.parallel_tiles;
        let rows = match n {
            1 if sets == 1 && spare && !integers => 4,
            1 | 2 => 2,
            _ => 1,
        };
        let tiles = m.div_ceil(subgroups * rows);
        let turns = if integers { 1 } else { (tiles / (ctx.caps.parallel_tiles.max(1) * 4)).clamp(1, 8) };
        Cut { subgroups, rows, turns, units: 1, ahead: few_enough(ctx.caps.subgroup_size, n), ..Cut::ONE }
    }

    /// A cut whose tile is one block of 32 rows, since the tile quantizes its rows. Where there is a tile for each
    /// compute unit and no more, its subgroups have the registers for two rows and loads ahead; where there are more,
    /// it is better that several tiles fit.
    fn of_blocks(ctx: &Ctx<'_>, sets: u32, m: u32, n: u32) -> Cut {
        let most = largest(ctx);
        let one_each = m / UNIT * TILES_PER_UNIT <= ctx.caps.parallel_tiles;
        let (subgroups, rows) = match sets * n {
            1 => (most, 2),
            _ if one_each => (most, 1),
            _ => ((most / 2).max(1), 1),
        };
        let turns = UNIT / (subgroups * rows);
        Cut { subgroups, rows, turns, units: 2, ahead: one_each && sets * n == 1, ..Cut::ONE }
    }
}

/// How many tiles of [`zinc_ir::device::Caps::parallel_tiles`] make one compute unit's share.
const TILES_PER_UNIT: u32 = 8;

/// Subgroups of the largest workgroup that is still worth having: 512 lanes, at most 16, a power of two.
fn largest(ctx: &Ctx<'_>) -> u32 {
    let most = ctx.caps.max_workgroup.min(512) / ctx.caps.subgroup_size;
    1 << most.clamp(1, 16).ilog2()
}

/// Declares the arguments of `n` input rows.
pub(super) fn inputs<'b>(ctx: &Ctx<'_>, b: &'b Builder, args: &Args<'b>, source: &Source, n: u32) -> Inputs<'b> {
    let base = args.read("x", Operand::Value(source.x));
    let cols = ctx.cols(source.x);
    let (kind, bytes) = match ctx.quantized(source.x) {
        Some((_, eps, wide)) => {
            let layout = RowLayout { cols, wide };
            (InputKind::Blocks(layout, eps), layout.bytes())
        }
        None => {
            let gain = |w| args.read("norm", Operand::Weight(w));
            (InputKind::Floats(source.norm.map(|(w, eps)| Norm { weight: gain(w), eps })), cols * 4)
        }
    };
    let rows = if source.select {
        let picks = args.read("outputs", Operand::Input(Input::Outputs));
        (0..n).map(|i| b.load(Type::U32, picks, b.u32(i * 4), 4) * bytes).collect()
    } else {
        (0..n).map(|i| b.u32(i * bytes)).collect()
    };
    Inputs { base, rows, column: None, kind }
}

/// What the values of a tile go through after their sums.
struct Finish<'a, 'b> {
    b: &'b Builder,
    m: u32,
    activation: Option<Activation>,
    bias: Option<Val<'b>>,
    residual: Option<Val<'b>>,
    y: Option<Val<'b>>,
    parts: &'a Parts,
}

impl<'a, 'b> Finish<'a, 'b> {
    fn declare(
        b: &'b Builder,
        args: &Args<'b>,
        region: &Region,
        parts: &'a Parts,
        m: u32,
        parted: bool,
    ) -> Finish<'a, 'b> {
        Finish {
            b,
            m,
            activation: parts.activation,
            bias: parts.bias.map(|w| args.read("bias", Operand::Weight(w))),
            residual: parts.residual.map(|a| args.read("residual", Operand::Value(a))),
            y: match (region.gives.contains(&parts.out), parted) {
                (true, false) => Some(args.write("y", Operand::Value(parts.out))),
                (true, true) => Some(args.write_read("y", Operand::Value(parts.out))),
                (false, false) => None,
                (false, true) => Some(args.write_read("y", Operand::Temp(0))),
            },
            parts,
        }
    }

    /// What is added to the product of row `row` and input `j`; may be read before the product is known.
    fn addend(&self, row: Val<'b>, j: Val<'b>) -> Option<Val<'b>> {
        let b = self.b;
        let bias = self.bias.map(|bias| b.load(Type::F32, bias, row * 4, 4));
        let residual = self.residual.map(|a| b.load(Type::F32, a, (row + j * self.m) * 4, 4));
        [bias, residual].into_iter().flatten().reduce(|x, y| x + y)
    }

    /// The value of a row from the sums of its sets.
    fn value(&self, sums: &[Val<'b>], addend: Option<Val<'b>>) -> Val<'b> {
        let value = match self.activation {
            Some(act) => activate(act, sums[0]) * sums[1],
            None => sums[0],
        };
        addend.map_or(value, |addend| value + addend)
    }
}

/// The cuts of a region, the rule's first.
fn cuts(ctx: &Ctx<'_>, region: &Region, parts: &Parts, weights: &[&Weight]) -> Cuts {
    let (m, n, sets) = (ctx.cols(parts.out), ctx.rows(parts.out), weights.len() as u32);
    let integers = ctx.quantized(parts.source.x).is_some();
    let table_bytes = tables::bytes(weights);
    let ends = parts.quantized.map_or(String::new(), |(node, _)| format!(" to {}", ctx.input_words(node)));
    let input = ctx.input_words(parts.source.x);
    let names: Vec<_> = weights.iter().map(|w| w.format.name).collect();
    let key = format!("{} {} {m}x{} n{n} {input}{ends}", region.template.name, names.join("+"), weights[0].cols);
    let space = |rule, turns, shared| Space { key, rule, flight: integers, turns, sets, inputs: n, shared };
    match parts.quantized {
        Some(_) => {
            let shared = |cut: Cut| (sets + 1) * n * cut.tile() * 4 + table_bytes;
            space(Cut::of_blocks(ctx, sets, m, n), &cut::blocks_or_parts(m), &shared).cuts(ctx)
        }
        None => {
            let rule = Cut::of_rows(ctx, sets, m, n, integers);
            let turns = |at_once: u32| [1, 2, 4, 8].into_iter().filter(move |t| t * at_once <= m.max(rule.tile()));
            space(rule, &|subgroups, rows| turns(subgroups * rows).collect(), &|_| table_bytes).cuts(ctx)
        }
    }
}

fn emit(ctx: &Ctx<'_>, region: &Region) -> Result<Emission, CompileError> {
    let parts = parts(ctx, region);
    let (m, n) = (ctx.cols(parts.out), ctx.rows(parts.out));
    let weights: Vec<_> = parts.products.iter().map(|w| ctx.graph.weight_of(*w)).collect();
    let cuts = cuts(ctx, region, &parts, &weights);
    let shape = cuts.used;
    let sg = ctx.caps.subgroup_size;
    let formats: Vec<_> = weights.iter().map(|w| w.format.name.to_lowercase()).collect();
    let bytes = match ctx.quantized(parts.source.x) {
        Some((_, _, true)) => "_b2",
        Some(_) => "_b1",
        None => "",
    };
    let name = format!("{}_{}_{m}x{}x{n}{bytes}", region.template.name, formats.join("_"), weights[0].cols);
    let grid = [m.div_ceil(shape.tile()), 1, 1];
    let parted = parts.quantized.is_some() && shape.tile() < UNIT;
    let product = launch(name, shape.subgroups * sg, sg, grid, |b, args| {
        let inputs = inputs(ctx, b, args, &parts.source, n);
        let bases: Vec<Val<'_>> = parts.products.iter().map(|w| args.read("weight", Operand::Weight(*w))).collect();
        let finish = Finish::declare(b, args, region, &parts, m, parted);
        tables::fill(b, &weights, shape.subgroups * sg);
        let products = Products { b, sg, shape, m, weights: &weights, bases, inputs };
        match parts.quantized {
            None => direct(&products, &finish, n),
            Some((node, gain)) => {
                let gain = gain.map(|w| args.read("gain", Operand::Weight(w)));
                let out = args.write("quantized", Operand::Value(node));
                let counters = parted.then(|| args.read_write("counters", Operand::Counters(m.div_ceil(UNIT))));
                in_blocks(ctx, &products, &finish, n, (node, out, gain), counters);
            }
        }
    });
    let temps =
        if parted && !region.gives.contains(&parts.out) { vec![u64::from(m) * u64::from(n) * 4] } else { vec![] };
    Ok(Emission { launches: vec![product], temps, cuts: Some(cuts) })
}

/// The products of a region, one set of weights or two.
struct Products<'a, 'b> {
    b: &'b Builder,
    sg: u32,
    shape: Cut,
    /// Rows of each weight.
    m: u32,
    weights: &'a [&'a Weight],
    bases: Vec<Val<'b>>,
    inputs: Inputs<'b>,
}

impl<'b> Products<'_, 'b> {
    /// Sums of the shape's rows from `row0` on, as `[set · rows + row][input]`; rows beyond the last repeat it.
    fn sums(&self, row0: Val<'b>) -> Vec<Vec<Val<'b>>> {
        let index: Vec<Val<'b>> = (0..self.shape.rows).map(|r| (row0 + r).min(self.b.u32(self.m - 1))).collect();
        let sets = self.weights.iter().zip(&self.bases);
        let rows: Vec<WeightRow<'_, 'b>> =
            sets.flat_map(|(weight, base)| index.iter().map(|&row| WeightRow { weight, base: *base, row })).collect();
        dot::dot(self.b, self.sg, self.shape.flight(), &rows, &self.inputs)
    }

    /// The sums of the tile that starts with row `first`, into shared `[set][input][row]`.
    fn store_sums(&self, first: Val<'b>, shared: u32, n: u32) {
        let (b, shape, tile) = (self.b, self.shape, self.shape.tile());
        let turn = |i: Val<'b>| {
            let local = (i * shape.subgroups + b.subgroup_id()) * shape.rows;
            let sums = self.sums(first + local);
            b.if_(b.lane().eq(0), || {
                for (k, of_row) in sums.iter().enumerate() {
                    let (set, r) = (k as u32 / shape.rows, k as u32 % shape.rows);
                    for (j, sum) in of_row.iter().enumerate() {
                        b.shared_store(shared, local + r + (set * n + j as u32) * tile, *sum);
                    }
                }
            });
        };
        if shape.turns == 1 {
            return turn(b.u32(0));
        }
        b.for_(b.u32(0), b.u32(shape.turns), 1, &[], |i, _| {
            turn(i);
            vec![]
        });
    }
}

/// Each subgroup finishes its rows by itself.
fn direct<'b>(products: &Products<'_, 'b>, finish: &Finish<'_, 'b>, n: u32) {
    let (b, shape, m) = (products.b, products.shape, products.m);
    let first = b.tile(0) * shape.tile() + b.subgroup_id() * shape.rows;
    let turn = |row0: Val<'b>| {
        let sums = products.sums(row0);
        b.if_(b.lane().eq(0), || {
            for r in 0..shape.rows {
                let row = row0 + r;
                b.if_(row.lt(m), || {
                    for j in 0..n {
                        let of_sets: Vec<Val<'b>> =
                            sums.iter().skip(r as usize).step_by(shape.rows as usize).map(|s| s[j as usize]).collect();
                        let value = finish.value(&of_sets, finish.addend(row, b.u32(j)));
                        if let Some(y) = finish.y {
                            b.store(y, (row + j * m) * 4, value, 4);
                        }
                    }
                });
            }
        });
    };
    if shape.turns == 1 {
        return turn(first);
    }
    b.for_(b.u32(0), b.u32(shape.turns), 1, &[], |i, _| {
        turn(first + i * (shape.subgroups * shape.rows));
        vec![]
    });
}

/// The tile's sums meet in shared memory, where all lanes finish them, and a block of 32 at a time is quantized.
fn in_blocks<'b>(
    ctx: &Ctx<'_>,
    products: &Products<'_, 'b>,
    finish: &Finish<'_, 'b>,
    n: u32,
    (node, out, gain): (NodeId, Val<'b>, Option<Val<'b>>),
    counters: Option<Val<'b>>,
) {
    let (b, shape) = (products.b, products.shape);
    let (tile, lanes) = (shape.tile(), shape.subgroups * ctx.caps.subgroup_size);
    let sets = finish.parts.products.len() as u32;
    let first = b.tile(0) * tile;
    let shared = b.shared("sums", Type::F32, sets * n * tile);
    let values = counters.is_none().then(|| b.shared("values", Type::F32, n * tile));
    let run = (first & !(UNIT - 1), tile.max(UNIT));
    let blocks = Blocks::new(ctx, b, node, (out, gain), run, lanes);
    // Read before the products: their latencies hide behind the weights.
    let items = n * tile;
    let place = |i: Val<'b>| (first + i % tile, i / tile);
    let early = (items <= lanes).then(|| {
        let (row, j) = place(b.local_id().min(b.u32(items - 1)));
        finish.addend(row, j)
    });
    products.store_sums(first, shared, n);
    b.barrier();
    for_items(b, lanes, items, |i| {
        let (row, j) = place(i);
        let of_sets: Vec<Val<'b>> = (0..sets).map(|set| b.shared_load(shared, i + set * items)).collect();
        let addend = early.unwrap_or_else(|| finish.addend(row, j));
        let value = finish.value(&of_sets, addend);
        if let Some(y) = finish.y {
            b.store(y, (row + j * finish.m) * 4, value, 4);
        }
        if let Some(values) = values {
            b.shared_store(values, i, value);
        }
    });
    match (values, counters, finish.y) {
        (Some(values), ..) => {
            b.barrier();
            (0..n).for_each(|j| blocks.store(b.u32(j), |column| shared_quad(b, values, column + j * tile)));
        }
        (None, Some(counters), Some(y)) => arrival::last_of_block(b, counters, first, tile, || {
            for j in 0..n {
                let quad =
                    |column: Val<'b>| b.load_at(Type::F32X4, y, (run.0 + column + j * finish.m) * 4, 0, 16, false);
                blocks.store(b.u32(j), quad);
            }
        }),
        _ => unreachable!("a part of a block leaves its values in y"),
    }
}

/// Four shared values from index `at`.
pub(super) fn shared_quad<'b>(b: &'b Builder, array: u32, at: Val<'b>) -> Val<'b> {
    b.compose(&[0, 1, 2, 3].map(|k| b.shared_load(array, at + k)))
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
