//! Tiled products for prompts and batches: `[select rows] · W [+ bias]`, with residual or gated-unit epilogues, of more rows
//! than mat-vecs take.
//!
//! ```text
//! for each unit of 32 columns:  W[features] ─decode─► shared ┐
//!                               x[rows]     ─copy───► shared ┴─► products of a tile   (fma | matrices)
//! tile sums ─[act(gate) · up]─[+ bias]─[+ residual]─► y[rows][features]                (epilogue)
//! ```
//!
//! A tile is `features × rows` of the result. Tiles of multiply-adds and of matrices add columns in the same
//! order, whatever the tile and its place: a row's result does not depend on its batch. Narrow tiles, which batch-invariant
//! mode does without, divide the columns by the number of rows.

mod experts;
mod fma;
mod matrices;
mod merged;
mod narrow;
mod quads;
mod stage;

use super::args::{Args, launch};
use super::{arrival, dot, halve, matvec, tables};
use crate::select::Finder;
use crate::template::{Ctx, Emission, Operand, Template};
use crate::{CompileError, Cuts, Region};
use stage::{Lines, Picks, Stage};
use zinc_ir::device::Caps;
use zinc_ir::graph::{NodeId, Op, Weight};
use zinc_ir::kernel::{Builder, Val};
use zinc_ir::plan::{ActPrecision, Input};

pub(super) use experts::SORTED as EXPERTS;
pub(super) use merged::MERGED;

pub(super) static MATMUL: Template = Template {
    name: "matmul",
    summary: "[select rows] · W [+ bias], many rows",
    fused: false,
    matches: match_plain,
    emit,
};

pub(super) static RESIDUAL: Template = Template {
    name: "matmul_residual",
    summary: "x · W [+ bias] + residual, many rows",
    fused: true,
    matches: match_residual,
    emit,
};

pub(super) static GLU: Template = Template {
    name: "matmul_glu",
    summary: "x · (gate, up) and the gated unit, many rows",
    fused: true,
    matches: match_glu,
    emit,
};

/// Are there matrix units for few rows?
pub(super) fn has_narrow(caps: &Caps) -> bool {
    narrow::shapes(caps).next().is_some()
}

/// The weight and input of a product that tiles can do.
fn product<'a>(f: &Finder<'a>, node: NodeId) -> Option<(&'a Weight, NodeId)> {
    let Op::MatMul { x, weight } = *f.op(node) else { return None };
    let weight = f.ctx.graph.weight_of(weight);
    dot::supported(weight).then_some((weight, x))
}

/// Draws a row selection in front of the products in `nodes` into them.
fn match_select(f: &Finder<'_>, x: NodeId, nodes: &mut Vec<NodeId>) {
    if f.ctx.choices.fuse && matches!(f.op(x), Op::SelectRows { .. }) && f.private(x, nodes) {
        nodes.push(x);
    }
}

fn match_plain(f: &Finder<'_>, node: NodeId) -> Option<Vec<NodeId>> {
    if f.few_rows(node) {
        return None;
    }
    let mut nodes = vec![];
    let at = if f.ctx.choices.fuse { matvec::match_product(f, node, &mut nodes)? } else { node };
    let (_, x) = product(f, at)?;
    nodes.push(at);
    match_select(f, x, &mut nodes);
    Some(nodes)
}

fn match_residual(f: &Finder<'_>, node: NodeId) -> Option<Vec<NodeId>> {
    let Op::Add { b, .. } = *f.op(node) else { return None };
    if f.few_rows(node) || !f.private(b, &[node]) {
        return None;
    }
    let mut nodes = vec![node];
    let at = matvec::match_product(f, b, &mut nodes)?;
    product(f, at)?;
    Some(nodes)
}

/// Gate and up of one format share the staged inputs; of two formats they are two products.
fn match_glu(f: &Finder<'_>, node: NodeId) -> Option<Vec<NodeId>> {
    let (value, mut nodes) = match halve::ending(f, node) {
        Some((value, halves)) => (value, vec![value, halves]),
        None => (node, vec![node]),
    };
    let Op::Glu { gate, up, .. } = *f.op(value) else { return None };
    if f.few_rows(value) || gate == up || !f.private(gate, &[value]) || !f.private(up, &[value]) {
        return None;
    }
    let ((w, x), (other, same)) = (product(f, gate)?, product(f, up)?);
    nodes.extend([gate, up]);
    (w.format == other.format && x == same).then_some(nodes)
}

/// The size of a product: `features × columns` times `rows` inputs, `sets` weights of that size.
#[derive(Clone, Copy, Debug)]
struct Size {
    features: u32,
    rows: u32,
    cols: u32,
    sets: u32,
    /// So many matrices share the rows among them, one after the other: experts. 1: all rows meet the same weights.
    groups: u32,
    /// Bytes of workgroup memory that the weights' format looks up.
    table_bytes: u32,
}

impl Size {
    /// About how many tiles of `tile` rows there are; of each group, the last is half full on average.
    fn row_tiles(&self, tile: u32) -> u32 {
        match self.groups {
            1 => self.rows.div_ceil(tile),
            groups => (self.rows / tile + groups.div_ceil(2)).max(groups.min(self.rows)),
        }
    }
}

fn emit(ctx: &Ctx<'_>, region: &Region) -> Result<Emission, CompileError> {
    let parts = matvec::parts(ctx, region);
    let out = parts.out;
    let weight = ctx.graph.weight_of(parts.products[0]);
    let sets = parts.products.len() as u32;
    let table_bytes = tables::small_bytes(weight.format);
    let size = Size { features: ctx.cols(out), rows: ctx.rows(out), cols: weight.cols, sets, groups: 1, table_bytes };
    let exact = ctx.graph.is_router(out);
    let mut plan =
        Way::choose(ctx, size, exact).ok_or_else(|| ctx.unsupported(out, "no tile fits the workgroup memory"))?;
    let cuts = plan.tune(ctx, size, || key(region, &[weight], size));
    let format = weight.format.name.to_lowercase();
    let name =
        format!("{}_{format}_{}x{}x{}_{}", region.template.name, size.features, size.cols, size.rows, plan.name());
    let grid = plan.grid(size);
    let tiles = grid[1];
    let temps: Vec<u64> = plan.temps(tiles);
    let product = launch(name, plan.lanes(), plan.subgroup(ctx), grid, |b, args| {
        let stage = stage_of(b, args, ctx, &parts, size, &plan, b.tile(1));
        let end = Epilogue::new(args, region, &parts, size, stage.lines.last, &plan);
        let slices = (!temps.is_empty()).then(|| narrow::Slices {
            partial: args.write_read("partial", Operand::Temp(0)),
            counters: args.read_write("counters", Operand::Counters(plan.counters(tiles))),
            arrived: arrival::memory(b),
        });
        tables::fill_small(b, weight, plan.lanes());
        plan.body(b, &stage, &end, slices.as_ref());
    });
    Ok(Emission { launches: vec![product], temps, cuts })
}

/// What decides how a narrow product is best cut, in words.
fn key(region: &Region, weights: &[&Weight], size: Size) -> String {
    let formats: Vec<_> = weights.iter().map(|w| w.format.name).collect();
    let features: Vec<_> = weights.iter().map(|w| w.rows.to_string()).collect();
    format!("{} {} {}x{} n{} f16", region.template.name, formats.join("+"), features.join("+"), size.cols, size.rows)
}

/// What tile `tile` of features reads.
fn stage_of<'a, 'b>(
    b: &'b Builder,
    args: &Args<'b>,
    ctx: &Ctx<'a>,
    parts: &matvec::Parts,
    size: Size,
    way: &Way,
    tile: Val<'b>,
) -> Stage<'a, 'b> {
    let outputs = || args.read("outputs", Operand::Input(Input::Outputs));
    Stage {
        weight: ctx.graph.weight_of(parts.products[0]),
        size,
        features: way.features(),
        rows: way.rows(),
        lanes: way.lanes(),
        // Tiles of the same weights run side by side: they are read from memory once.
        first_feature: tile * way.features(),
        first_weight: None,
        x: args.read("x", Operand::Value(parts.source.x)),
        halves: ctx.halves(parts.source.x),
        lines: Lines {
            first: way.row_tile(b) * way.rows(),
            last: b.u32(size.rows - 1),
            picks: parts.source.select.then(|| Picks { numbers: outputs(), per: 1 }),
        },
        bases: parts.products.iter().map(|w| args.read("weight", Operand::Weight(*w))).collect(),
    }
}

/// How a product is computed.
enum Way {
    Fma(fma::Tile),
    Matrices(matrices::Tile),
    Narrow(narrow::Tile),
}

impl Way {
    /// Matrices where inputs may be rounded to halves and the device has them; else the tile that fills the device.
    fn choose(ctx: &Ctx<'_>, size: Size, exact: bool) -> Option<Way> {
        let halves = ctx.choices.act != ActPrecision::F32 && !exact && ctx.choices.matrices;
        // How a narrow tile divides columns depends on the number of rows, and so does the order of its sums.
        let narrow =
            || if ctx.choices.invariant { None } else { narrow::Tile::choose(ctx.caps, size).map(Way::Narrow) };
        let matrices = || matrices::Tile::choose(ctx.caps, size).map(Way::Matrices);
        let fma = || fma::Tile::choose(ctx.caps, size).map(Way::Fma);
        if halves { narrow().or_else(matrices).or_else(fma) } else { fma() }
    }
    /// Takes the cut that was found best for this key, where there is a choice.
    fn tune(&mut self, ctx: &Ctx<'_>, size: Size, key: impl FnOnce() -> String) -> Option<Cuts> {
        let Way::Narrow(tile) = self else { return None };
        let (tuned, cuts) = tile.tuned(ctx, size, key());
        *tile = tuned;
        Some(cuts)
    }
    /// Does it round inputs to halves?
    fn takes_halves(&self) -> bool {
        !matches!(self, Way::Fma(_))
    }
    fn features(&self) -> u32 {
        match self {
            Way::Fma(t) => t.features(),
            Way::Matrices(t) => t.features(),
            Way::Narrow(t) => t.features(),
        }
    }
    fn rows(&self) -> u32 {
        match self {
            Way::Fma(t) => t.rows(),
            Way::Matrices(t) => t.rows(),
            Way::Narrow(t) => t.rows(),
        }
    }
    fn subgroup(&self, ctx: &Ctx<'_>) -> u32 {
        match self {
            Way::Fma(_) => ctx.caps.subgroup_size,
            Way::Matrices(t) => t.subgroup(),
            Way::Narrow(t) => t.subgroup(),
        }
    }
    fn lanes(&self) -> u32 {
        match self {
            Way::Fma(t) => t.lanes(),
            Way::Matrices(t) => t.lanes(),
            Way::Narrow(t) => t.lanes(),
        }
    }
    fn body<'b>(&self, b: &'b Builder, stage: &Stage<'_, 'b>, end: &Epilogue<'b>, slices: Option<&narrow::Slices<'b>>) {
        match self {
            Way::Fma(tile) => fma::body(b, tile, stage, end),
            Way::Matrices(tile) => matrices::body(b, tile, stage, end),
            Way::Narrow(tile) => narrow::body(b, tile, stage, end, slices, tile.memory(b)),
        }
    }
    fn name(&self) -> String {
        let form = match self {
            Way::Fma(_) => "fma",
            Way::Matrices(_) => "matrices",
            Way::Narrow(_) => "narrow",
        };
        format!("{form}_{}x{}", self.features(), self.rows())
    }
    /// Which tile of rows this one is.
    fn row_tile<'b>(&self, b: &'b Builder) -> Val<'b> {
        match self {
            Way::Narrow(t) => t.row_tile(b),
            _ => b.tile(0),
        }
    }
    /// Counters of so many tiles along features.
    fn counters(&self, tiles: u32) -> u32 {
        match self {
            Way::Narrow(t) => t.counters(tiles),
            _ => 0,
        }
    }
    /// Tiles along rows, or slices of columns; along features.
    fn grid(&self, size: Size) -> [u32; 3] {
        let first = match self {
            Way::Narrow(t) => t.along(),
            _ => size.rows.div_ceil(self.rows()),
        };
        [first, size.features.div_ceil(self.features()), 1]
    }
    /// Scratch for so many tiles along features.
    fn temps(&self, tiles: u32) -> Vec<u64> {
        match self {
            Way::Narrow(t) if t.slices() > 1 => vec![t.handed_over(tiles)],
            _ => vec![],
        }
    }
}

/// What a tile costs, for choosing one.
struct Work {
    lanes: u32,
    features: u32,
    rows: u32,
    /// Cycles of a lane for the sums of one unit.
    sums: u32,
}

/// Relative time of a launch with such tiles. The device takes several at once; of the last round, half is idle on
/// average. Staging a unit costs about 60 cycles per weight row and 8 per quad of inputs, waiting at barriers 100.
fn cost(parallel_tiles: u32, size: Size, w: &Work) -> u64 {
    let at_once = (parallel_tiles.max(1) * 256 / w.lanes).max(1);
    let tiles = size.features.div_ceil(w.features) * size.row_tiles(w.rows);
    let staging = (size.sets * w.features * 60 + w.rows * 64) / w.lanes;
    (2 * tiles.max(at_once) + at_once) as u64 * (w.sums + staging + 100) as u64
}

/// What happens to finished sums.
struct Epilogue<'b> {
    activation: Option<zinc_ir::graph::Activation>,
    /// Address of the gates, F32 rows like `y`, where these are not among the sums.
    gate: Option<Val<'b>>,
    bias: Option<Val<'b>>,
    residual: Option<Val<'b>>,
    y: Option<Val<'b>>,
    /// The same as halves.
    halves: Option<Val<'b>>,
    features: u32,
    last_row: Val<'b>,
    /// Tiles may reach beyond the last feature or row.
    ragged: [bool; 2],
}

impl<'b> Epilogue<'b> {
    fn new(
        args: &Args<'b>,
        region: &Region,
        parts: &matvec::Parts,
        size: Size,
        last_row: Val<'b>,
        way: &Way,
    ) -> Epilogue<'b> {
        debug_assert!(parts.source.norm.is_none());
        Epilogue {
            activation: parts.activation,
            gate: None,
            bias: parts.bias.map(|w| args.read("bias", Operand::Weight(w))),
            residual: parts.residual.map(|a| args.read("residual", Operand::Value(a))),
            y: region.gives.contains(&parts.out).then(|| args.write("y", Operand::Value(parts.out))),
            halves: parts.halves.map(|node| args.write("halves", Operand::Value(node))),
            features: size.features,
            last_row,
            ragged: [!size.features.is_multiple_of(way.features()), !size.rows.is_multiple_of(way.rows())],
        }
    }

    /// Finishes and stores the sums of `row` from `feature` on, one vector per weight, as far as the places exist.
    fn store(&self, b: &'b Builder, feature: Val<'b>, row: Val<'b>, sums: &[Val<'b>]) {
        let lanes = sums[0].ty().lanes();
        if lanes > 1 && !self.features.is_multiple_of(lanes as u32) {
            for lane in 0..lanes {
                let sums: Vec<Val<'b>> = sums.iter().map(|s| s.lane(lane)).collect();
                self.store(b, feature + lane as u32, row, &sums);
            }
            return;
        }
        let inside = match self.ragged {
            [false, false] => b.bool(true),
            [true, false] => feature.lt(self.features),
            [false, true] => row.le(self.last_row),
            [true, true] => feature.lt(self.features) & row.le(self.last_row),
        };
        let (ty, align) = (sums[0].ty(), lanes * 4);
        b.if_(inside, || {
            let at = row * self.features + feature;
            let mut value = match (self.activation, self.gate) {
                (Some(act), None) => matvec::activate(act, sums[0]) * sums[1],
                (Some(act), Some(gate)) => matvec::activate(act, b.load(ty, gate, at * 4, align)) * sums[0],
                (None, _) => sums[0],
            };
            if let Some(bias) = self.bias {
                value = value + b.load(ty, bias, feature * 4, align);
            }
            if let Some(residual) = self.residual {
                value = value + b.load(ty, residual, at * 4, align);
            }
            if let Some(y) = self.y {
                b.store(y, at * 4, value, align);
            }
            if let Some(halves) = self.halves {
                halve::store(b, halves, at, value);
            }
        });
    }
}
