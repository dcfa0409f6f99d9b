//! Products of a mixture of experts, in which each row goes to the experts that its route names.
//!
//! ```text
//! [route] [rms_norm] ─► gate, up by each expert ─► glu ─[quantize]─►     EXPERT_GLU: tiles of rows × experts × tokens
//! ```
//!
//! One launch serves all chosen experts: the expert enters the number of a weight's row. Each workgroup of EXPERT_GLU
//! chooses the experts from the router's logits anew, which costs less than to wait for a launch that does it once; its
//! first one writes the route down for the way back ([`super::expert_down`]).

use super::args::{Args, single};
use super::dot::{self, InputKind, Inputs, Norm, WeightRow};
use super::dot_blocks::Flight;
use super::expert_tile::{Ending, Launch, Tile};
use super::matvec::{source_of, with_ending};
use super::quantize::RowLayout;
use super::route::Choice;
use super::tables;
use crate::select::Finder;
use crate::template::{Ctx, Emission, Operand, Template};
use crate::{CompileError, Region};
use zinc_ir::graph::{Activation, NodeId, Op, Routing, Weight, WeightId};
use zinc_ir::kernel::{Builder, Type, Val};

pub(super) static GLU: Template = Template {
    name: "expert_glu",
    summary: "[route] [norm] · (gate, up) of the chosen experts and the gated unit",
    fused: true,
    matches: match_glu,
    emit,
};

pub(super) static MATMUL: Template = Template {
    name: "expert_matmul",
    summary: "x · W of the chosen experts",
    fused: false,
    matches: |f, node| matches!(f.op(node), Op::ExpertMatMul { .. }).then(|| vec![node]),
    emit,
};

/// Rows are short: few turns of the loop, if any.
const FLIGHT: Flight = Flight { units: 2, ahead: true };

/// Input, route and weight of an expert product with a kernel.
pub(super) fn product(f: &Finder<'_>, node: NodeId) -> Option<(NodeId, NodeId, WeightId)> {
    match *f.op(node) {
        Op::ExpertMatMul { x, route, weight } if dot::supported(f.ctx.graph.weight_of(weight)) => {
            Some((x, route, weight))
        }
        _ => None,
    }
}

fn match_glu(f: &Finder<'_>, node: NodeId) -> Option<Vec<NodeId>> {
    let (value, mut nodes) = with_ending(f, node);
    let Op::Glu { gate, up, .. } = *f.op(value) else { return None };
    if gate == up || !f.private(gate, &[value]) || !f.private(up, &[value]) {
        return None;
    }
    let ((x, route, w), (other_x, other_route, other)) = (product(f, gate)?, product(f, up)?);
    let (w, other) = (f.ctx.graph.weight_of(w), f.ctx.graph.weight_of(other));
    if (x, route, w.cols) != (other_x, other_route, other.cols) {
        return None;
    }
    nodes.extend([gate, up]);
    if matches!(*f.op(x), Op::RmsNorm { group, .. } if group == w.cols) && f.private(x, &nodes) {
        nodes.push(x);
    }
    // The products of the way back read it too: it is another value of this region.
    if f.open(route) {
        nodes.push(route);
    }
    Some(nodes)
}

/// What a region of products by experts computes.
struct Products {
    /// One, or gate and up.
    weights: Vec<WeightId>,
    activation: Option<Activation>,
    /// The value read, and a norm in front.
    x: NodeId,
    norm: Option<(WeightId, f32)>,
    route: NodeId,
    /// The region chooses the experts.
    chooses: bool,
    /// The value computed, and its quantization if the region ends in one.
    out: NodeId,
    quantized: Option<NodeId>,
}

impl Products {
    fn of(ctx: &Ctx<'_>, region: &Region) -> Option<Products> {
        let product = |node: NodeId| match *ctx.graph.op(node) {
            Op::ExpertMatMul { x, route, weight } => Some((x, route, weight)),
            _ => None,
        };
        let (out, quantized) = match *ctx.graph.op(region.last()) {
            Op::Quantize { x, .. } => (x, Some(region.last())),
            _ => (region.last(), None),
        };
        let (activation, nodes) = match *ctx.graph.op(out) {
            Op::Glu { gate, up, act } => (Some(act), vec![gate, up]),
            _ => (None, vec![out]),
        };
        let found = nodes.into_iter().map(product).collect::<Option<Vec<_>>>()?;
        let (x, route, _) = found[0];
        let source = source_of(ctx, region, x);
        Some(Products {
            weights: found.iter().map(|p| p.2).collect(),
            activation,
            x: source.x,
            norm: source.norm,
            route,
            chooses: region.nodes.contains(&route),
            out,
            quantized,
        })
    }

    /// Declares the input of this tile's token; `cols` of its columns meet the weights.
    fn inputs<'b>(&self, ctx: &Ctx<'_>, b: &'b Builder, args: &Args<'b>, cols: u32) -> Inputs<'b> {
        let base = args.read("x", Operand::Value(self.x));
        let (kind, bytes) =
            row_kind(ctx, self.x, self.norm.map(|(w, eps)| (args.read("norm", Operand::Weight(w)), eps)));
        let column = (ctx.cols(self.x) != cols).then(|| b.tile(1) * cols);
        Inputs { base, rows: vec![b.tile(2) * bytes], column, kind }
    }
}

/// What the rows of `x` are, with a norm in front, and their bytes.
pub(super) fn row_kind<'b>(ctx: &Ctx<'_>, x: NodeId, norm: Option<(Val<'b>, f32)>) -> (InputKind<'b>, u32) {
    let cols = ctx.cols(x);
    match ctx.quantized(x) {
        Some((_, eps, wide)) => {
            let layout = RowLayout { cols, wide };
            (InputKind::Blocks(layout, eps), layout.bytes())
        }
        None => (InputKind::Floats(norm.map(|(weight, eps)| Norm { weight, eps })), cols * 4),
    }
}

fn emit(ctx: &Ctx<'_>, region: &Region) -> Result<Emission, CompileError> {
    let p = Products::of(ctx, region).ok_or_else(|| ctx.unsupported(region.last(), "pattern"))?;
    let weights: Vec<&Weight> = p.weights.iter().map(|w| ctx.graph.weight_of(*w)).collect();
    if let Some(w) = weights.iter().find(|w| !dot::supported(w)) {
        let why = format!("{} of {} columns in {} has no kernel", w.name, w.cols, w.format.name);
        return Err(ctx.unsupported(p.out, why));
    }
    let Routing { experts, used } = ctx.graph.routing(p.route);
    let (sg, m, cols, n) = (ctx.caps.subgroup_size, weights[0].rows / experts, weights[0].cols, ctx.rows(p.out));
    let names: Vec<_> = weights.iter().map(|w| w.format.name).collect();
    let (what, input) = (region.template.name, ctx.input_words(p.x));
    let what = format!("{what} {} {m}x{cols} {used}of{experts} n{n} {input}", names.join("+"));
    let free_flight = ctx.quantized(p.x).is_some();
    let launch =
        Launch { what, m, weights: &weights, copies: used * n, quantized: p.quantized, flight: FLIGHT, free_flight };
    let cuts = launch.cuts(ctx);
    let tile = Tile { cut: cuts.used, sets: weights.len() as u32 };
    let formats: Vec<_> = weights.iter().map(|w| w.format.name.to_lowercase()).collect();
    let name = format!("{}_{}_{m}x{cols}_{used}of{experts}", region.template.name, formats.join("_"));
    let grid = [m.div_ceil(tile.cut.tile()), used, n];
    let emission = single(name, tile.lanes(sg), sg, grid, |b, args| {
        tables::fill(b, &weights, tile.lanes(sg));
        let inputs = p.inputs(ctx, b, args, cols);
        let bases: Vec<Val<'_>> = p.weights.iter().map(|w| args.read("weight", Operand::Weight(*w))).collect();
        let expert = p.expert(ctx, b, args, tile.lanes(sg));
        let y = region.gives.contains(&p.out).then(|| args.write("y", Operand::Value(p.out)));
        let quantized = p.quantized.map(|q| (q, args.write("quantized", Operand::Value(q)), None));
        let (row, column, activation) = (b.tile(2), b.tile(1) * m, p.activation);
        let ending = Ending { m, row, column, cols: used * m, y, quantized, activation, residual: None };
        tile.run(ctx, b, &ending, |index| {
            let mut rows = vec![];
            for (weight, base) in weights.iter().zip(&bases) {
                rows.extend(index.iter().map(|i| WeightRow { weight, base: *base, row: expert * m + *i }));
            }
            dot::dot(b, sg, tile.cut.flight(), &rows, &inputs).into_iter().map(|of_row| of_row[0]).collect()
        });
    });
    Ok(Emission { cuts: Some(cuts), ..emission })
}

impl Products {
    /// The expert of this tile. Where the region chooses, the first tile of a token writes its route down.
    fn expert<'b>(&self, ctx: &Ctx<'_>, b: &'b Builder, args: &Args<'b>, lanes: u32) -> Val<'b> {
        let used = ctx.graph.routing(self.route).used;
        if !self.chooses {
            let route = args.read("route", Operand::Value(self.route));
            return b.load(Type::U32, route, (b.tile(2) * (2 * used) + used + b.tile(1)) * 4, 4);
        }
        let choice = Choice::new(ctx, b, args, self.route);
        let y = args.write("route", Operand::Value(self.route));
        let first = (b.tile(0) | b.tile(1)).eq(0);
        choice.choose(b, b.tile(2), first.select(b.u32(used), b.tile(1) + 1));
        b.if_(first, || choice.store(b, lanes, y, b.tile(2)));
        choice.expert(b, b.tile(1))
    }
}
