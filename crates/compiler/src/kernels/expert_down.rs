//! The way back from the chosen experts.
//!
//! ```text
//! down by each expert ─► weighted sum ─[add(a, ·)]─► y ─[quantize]─►     EXPERT_DOWN
//! x: │ expert a's columns │ expert b's columns │ …     one long row, shared by the lanes of a subgroup
//! ```
//!
//! A subgroup computes one output for all chosen experts, so that the sum needs neither atomics nor another launch, and is the
//! same every time.

use super::args::{Args, single};
use super::dot::{InputKind, Inputs, WeightRow};
use super::dot_blocks::{Flight, Part};
use super::dot_floats;
use super::expert_tile::{Ending, Launch, Tile};
use super::experts::{product, row_kind};
use super::matvec::with_ending;
use super::rows::workgroup;
use super::tables;
use crate::select::Finder;
use crate::template::{Ctx, Emission, Operand, Template};
use crate::{CompileError, Region};
use zinc_ir::graph::{NodeId, Op, Routing, Weight, WeightId};
use zinc_ir::kernel::{Builder, Type, Val};
use zinc_ir::quant::UNIT;

pub(super) static DOWN: Template = Template {
    name: "expert_down",
    summary: "x · W of the chosen experts, weighted sum [+ residual]",
    fused: true,
    matches: match_down,
    emit,
};

pub(super) static SUM: Template = Template {
    name: "expert_sum",
    summary: "weighted sum over the chosen experts",
    fused: false,
    matches: |f, node| matches!(f.op(node), Op::ExpertSum { .. }).then(|| vec![node]),
    emit: emit_sum,
};

fn match_down(f: &Finder<'_>, node: NodeId) -> Option<Vec<NodeId>> {
    let (value, mut nodes) = with_ending(f, node);
    let sum = match *f.op(value) {
        Op::Add { b, .. } if f.private(b, &[value]) => {
            nodes.push(b);
            b
        }
        _ => value,
    };
    let Op::ExpertSum { x, route } = *f.op(sum) else { return None };
    let (_, same_route, _) = product(f, x)?;
    if !f.private(x, &[sum]) || route != same_route {
        return None;
    }
    nodes.push(x);
    Some(nodes)
}

/// What a region computes, read back from its nodes.
struct Down {
    x: NodeId,
    route: NodeId,
    weight: WeightId,
    residual: Option<NodeId>,
    /// The value computed, and its quantization if the region ends in one, with the norm's gain.
    out: NodeId,
    quantized: Option<(NodeId, Option<WeightId>)>,
}

impl Down {
    fn of(ctx: &Ctx<'_>, region: &Region) -> Option<Down> {
        let (out, quantized) = match *ctx.graph.op(region.last()) {
            Op::Quantize { x, norm, .. } => (x, Some((region.last(), norm.map(|n| n.0)))),
            _ => (region.last(), None),
        };
        let residual = match *ctx.graph.op(out) {
            Op::Add { a, .. } => Some(a),
            _ => None,
        };
        region.nodes.iter().find_map(|node| match *ctx.graph.op(*node) {
            Op::ExpertMatMul { x, route, weight } => Some(Down { x, route, weight, residual, out, quantized }),
            _ => None,
        })
    }
}

/// The product of a subgroup's rows with the long row of inputs.
struct Long<'a, 'b> {
    b: &'b Builder,
    weight: &'a Weight,
    routing: Routing,
    subgroup: u32,
    x: Val<'b>,
    kind: InputKind<'b>,
    /// Bytes of a token's inputs.
    bytes: u32,
    route: Val<'b>,
    base: Val<'b>,
}

/// A step whose loads are under way.
struct Begun<'a, 'b> {
    rows: Vec<WeightRow<'a, 'b>>,
    inputs: Inputs<'b>,
    part: Part<'b>,
    /// Weight of the expert in the sum.
    factor: Val<'b>,
    /// False where the lane only repeats another's.
    real: Option<Val<'b>>,
    loaded: Vec<Val<'b>>,
}

impl<'a, 'b> Long<'a, 'b> {
    fn declare(ctx: &Ctx<'a>, b: &'b Builder, args: &Args<'b>, p: &Down) -> Long<'a, 'b> {
        let (kind, bytes) = row_kind(ctx, p.x, None);
        Long {
            b,
            weight: ctx.graph.weight_of(p.weight),
            routing: ctx.graph.routing(p.route),
            subgroup: ctx.caps.subgroup_size,
            x: args.read("x", Operand::Value(p.x)),
            kind,
            bytes,
            route: args.read("route", Operand::Value(p.route)),
            base: args.read("weight", Operand::Weight(p.weight)),
        }
    }

    /// Begins units `at · span ..` of the long row.
    fn begin(&self, index: &[Val<'b>], at: Val<'b>, span: u32, real: Option<Val<'b>>) -> Begun<'a, 'b> {
        let (b, weight, Routing { experts, used }) = (self.b, self.weight, self.routing);
        let each = weight.cols / (UNIT * span);
        let (which, at) = (at / each, at % each);
        let place = (b.tile(1) * (2 * used) + which) * 4;
        let factor = b.load_at(Type::F32, self.route, place, 0, 4, true);
        let expert = b.load_at(Type::U32, self.route, place, used * 4, 4, true);
        let (m, base) = (weight.rows / experts, self.base);
        let rows: Vec<_> = index.iter().map(|i| WeightRow { weight, base, row: expert * m + *i }).collect();
        let column = Some(which * weight.cols);
        let inputs = Inputs { base: self.x, rows: vec![b.tile(1) * self.bytes], column, kind: self.kind };
        let part = Part { at, span };
        let loaded = match self.kind {
            InputKind::Floats(_) => vec![],
            InputKind::Blocks(layout, _) => part.issue(b, &rows, &inputs, layout),
        };
        Begun { rows, inputs, part, factor, real, loaded }
    }

    /// Adds a step to the accumulators of the rows.
    fn end(&self, step: Begun<'a, 'b>, acc: &[Val<'b>]) -> Vec<Val<'b>> {
        let (b, Begun { rows, inputs, part, factor, real, loaded }) = (self.b, step);
        let sums = match self.kind {
            InputKind::Floats(norm) => {
                dot_floats::add_unit(b, &rows, &inputs, norm, part.at, &vec![b.f32(0.0); rows.len()])
            }
            InputKind::Blocks(layout, _) => part.sums(b, &rows, &inputs, layout, loaded),
        };
        let added = sums.into_iter().zip(acc).map(|(sum, acc)| (b.fma(sum, factor, *acc), *acc));
        added.map(|(sum, acc)| real.map_or(sum, |real| real.select(sum, acc))).collect()
    }

    /// Weighted sums of the rows `index`, the same in all lanes.
    fn sums(&self, index: &[Val<'b>]) -> Vec<Val<'b>> {
        let (b, sg, w) = (self.b, self.subgroup, self.weight);
        let each = w.cols / UNIT;
        let pairs = matches!(self.kind, InputKind::Blocks(..)) && w.format.emit_pair.is_some();
        let span = if pairs && each.is_multiple_of(2) { 2 } else { 1 };
        let units = self.routing.used * each;
        let steps = units / (sg * span);
        let full = |i: Val<'b>| self.begin(index, i * sg + b.lane(), span, None);
        let mut acc = vec![b.f32(0.0); index.len()];
        let mut begun = vec![];
        if steps > STRAIGHT {
            acc = b.for_(b.u32(0), b.u32(steps), 1, &acc, |i, acc| self.end(full(i), acc));
        } else {
            begun.extend((0..steps).map(|i| full(b.u32(i))));
        }
        // What is left is less than a step: single units, and surplus lanes repeat the last.
        let mut done = steps * sg * span;
        while done < units {
            let busy = (units - done).min(sg);
            let real = (busy < sg).then(|| b.lane().lt(busy));
            begun.push(self.begin(index, b.lane().min(b.u32(busy - 1)) + done, 1, real));
            done += busy;
        }
        let acc = begun.into_iter().fold(acc, |acc, step| self.end(step, &acc));
        acc.into_iter().map(Val::subgroup_add).collect()
    }
}

/// Most steps without a loop: their weights are all under way before the first is multiplied.
const STRAIGHT: u32 = 4;

fn emit(ctx: &Ctx<'_>, region: &Region) -> Result<Emission, CompileError> {
    let p = Down::of(ctx, region).ok_or_else(|| ctx.unsupported(region.last(), "pattern"))?;
    let w = ctx.graph.weight_of(p.weight);
    let (sg, m, n) = (ctx.caps.subgroup_size, ctx.cols(p.out), ctx.rows(p.out));
    let Routing { experts, used } = ctx.graph.routing(p.route);
    let (format, input) = (w.format.name, ctx.input_words(p.x));
    let what = format!("expert_down {format} {m}x{} {used}of{experts} n{n} {input}", w.cols);
    let (quantized, flight) = (p.quantized.map(|q| q.0), Flight { units: 1, ahead: false });
    let cuts = Launch { what, m, weights: &[w], copies: n, quantized, flight, free_flight: false }.cuts(ctx);
    let tile = Tile { cut: cuts.used, sets: 1 };
    let name = format!("expert_down_{}_{m}x{}_{used}of{experts}", w.format.name.to_lowercase(), w.cols);
    let emission = single(name, tile.lanes(sg), sg, [m.div_ceil(tile.cut.tile()), n, 1], |b, args| {
        tables::fill(b, &[w], tile.lanes(sg));
        let long = Long::declare(ctx, b, args, &p);
        let ending = p.ending(region, b, args, m);
        tile.run(ctx, b, &ending, |index| long.sums(index));
    });
    Ok(Emission { cuts: Some(cuts), ..emission })
}

impl Down {
    fn ending<'b>(&self, region: &Region, b: &'b Builder, args: &Args<'b>, m: u32) -> Ending<'b> {
        let y = region.gives.contains(&self.out).then(|| args.write("y", Operand::Value(self.out)));
        let quantized = self.quantized.map(|(node, gain)| {
            let gain = gain.map(|w| args.read("gain", Operand::Weight(w)));
            (node, args.write("quantized", Operand::Value(node)), gain)
        });
        let residual = self.residual.map(|a| args.read("residual", Operand::Value(a)));
        Ending { m, row: b.tile(1), column: b.u32(0), cols: m, y, quantized, activation: None, residual }
    }
}

/// One lane per element.
fn emit_sum(ctx: &Ctx<'_>, region: &Region) -> Result<Emission, CompileError> {
    let out = region.last();
    let Op::ExpertSum { x, route } = *ctx.graph.op(out) else { return Err(ctx.unsupported(out, "pattern")) };
    let (cols, used) = (ctx.cols(out), ctx.graph.routing(route).used);
    let lanes = workgroup(ctx, cols);
    let grid = [cols.div_ceil(lanes), ctx.rows(out), 1];
    Ok(single(format!("expert_sum_{used}x{cols}"), lanes, ctx.caps.subgroup_size, grid, |b, args| {
        let from = args.read("x", Operand::Value(x));
        let route = args.read("route", Operand::Value(route));
        let y = args.write("y", Operand::Value(out));
        let col = b.tile(0) * lanes + b.local_id();
        b.if_(col.lt(cols), || {
            let sum = b.for_(b.u32(0), b.u32(used), 1, &[b.f32(0.0)], |which, sum| {
                let factor = b.load(Type::F32, route, (b.tile(1) * (2 * used) + which) * 4, 4);
                let value = b.load(Type::F32, from, ((b.tile(1) * used + which) * cols + col) * 4, 4);
                vec![b.fma(value, factor, sum[0])]
            });
            b.store(y, (b.tile(1) * cols + col) * 4, sum[0], 4);
        });
    }))
}
