//! Routers of mixtures of experts: one logit per expert, and the choice of the best.
//!
//! ```text
//! x ─[rms_norm]─► matmul ─► logits          ROUTER, up to 128 rows: a workgroup per expert, all of its lanes on one row
//! logits ─k rounds of (largest, lowest number)─► k experts ─softmax─► weights                                    ROUTE
//! ```
//!
//! Choosing is so little work that it costs no launch where the experts' products can do it themselves: see
//! [`super::experts`].

use super::MATVEC_ROWS;
use super::args::{Args, launch, single};
use super::dot::{self, InputKind, Inputs, Norm, WeightRow};
use super::dot_floats;
use super::matvec::{match_prologue, source_of};
use super::rows::{for_strided, workgroup, workgroup_sums};
use crate::select::Finder;
use crate::template::{Ctx, Emission, LaunchSketch, Operand, Template};
use crate::{CompileError, Region};
use zinc_ir::graph::{NodeId, Op, Routing};
use zinc_ir::kernel::{Builder, Type, Val};
use zinc_ir::plan::Input;
use zinc_ir::quant::UNIT;

pub(super) static ROUTER: Template = Template {
    name: "router",
    summary: "[norm] · router matrix",
    fused: true,
    matches: match_router,
    emit: emit_router,
};

pub(super) static ROUTE: Template = Template {
    name: "route",
    summary: "the best experts of each row and their weights",
    fused: false,
    matches: |f, node| matches!(f.op(node), Op::Route { .. }).then(|| vec![node]),
    emit: emit_route,
};

/// Most rows that go this way: each reads the whole matrix, which the tiles of [`super::matmul`] share.
const ROUTER_ROWS: u32 = 128;

fn match_router(f: &Finder<'_>, node: NodeId) -> Option<Vec<NodeId>> {
    let Op::MatMul { x, weight } = *f.op(node) else { return None };
    // Routers are F32 in files; one in another format goes the usual way.
    let mut users = f.users(node);
    let routed = matches!((users.next(), users.next()), (Some(u), None) if matches!(f.op(u), Op::Route { .. }));
    if !routed
        || (f.ctx.rows(node) > ROUTER_ROWS && !f.ctx.choices.invariant)
        || f.ctx.quantized(x).is_some()
        || !dot::supported(f.ctx.graph.weight_of(weight))
    {
        return None;
    }
    let mut nodes = vec![node];
    match_prologue(f, x, &mut nodes);
    Some(nodes)
}

/// A router's matrix is small and its result is waited for: a whole workgroup multiplies one of its rows, one or a few
/// units a lane. Of several rows it shares the inputs between two. Always with F32 inputs, as tiles of many rows do: see
/// [`zinc_ir::graph::Graph::is_router`].
fn emit_router(ctx: &Ctx<'_>, region: &Region) -> Result<Emission, CompileError> {
    let out = region.last();
    let Op::MatMul { x, weight } = *ctx.graph.op(out) else { return Err(ctx.unsupported(out, "pattern")) };
    let (w, source) = (ctx.graph.weight_of(weight), source_of(ctx, region, x));
    let (sg, units, n) = (ctx.caps.subgroup_size, w.cols / UNIT, ctx.rows(out));
    let (lanes, each) = (workgroup(ctx, units), if n > MATVEC_ROWS { 2 } else { 1 });
    let name = format!("router_{}_{}x{}x{each}", w.format.name.to_lowercase(), w.rows, w.cols);
    Ok(single(name, lanes, sg, [w.rows.div_ceil(each), n, 1], |b, args| {
        let base = args.read("x", Operand::Value(source.x));
        let norm = source.norm.map(|(g, eps)| Norm { weight: args.read("norm", Operand::Weight(g)), eps });
        let picks = source.select.then(|| args.read("outputs", Operand::Input(Input::Outputs)));
        let matrix = args.read("weight", Operand::Weight(weight));
        let y = args.write("y", Operand::Value(out));
        let first = b.tile(0) * each;
        let row = |i: u32| (first + i).min(b.u32(w.rows - 1));
        let rows: Vec<_> = (0..each).map(|i| WeightRow { weight: w, base: matrix, row: row(i) }).collect();
        let token = picks.map_or(b.tile(1), |p| b.load(Type::U32, p, b.tile(1) * 4, 4));
        let kind = InputKind::Floats(norm);
        let inputs = Inputs { base, rows: vec![token * (w.cols * 4)], column: None, kind };
        let zero = vec![b.f32(0.0); rows.len() + norm.is_some() as usize];
        let sums = b.for_(b.local_id(), b.u32(units), lanes, &zero, |unit, acc| {
            dot_floats::add_unit(b, &rows, &inputs, norm, unit, acc)
        });
        let total = workgroup_sums(b, &sums, lanes / sg);
        let factor = norm.map(|norm| (total[rows.len()] * (1.0 / w.cols as f32) + norm.eps).inv_sqrt());
        b.if_(b.local_id().eq(0), || {
            for (i, sum) in (0..each).zip(&total) {
                let logit = factor.map_or(*sum, |f| *sum * f);
                let at = (b.tile(1) * w.rows + first + i) * 4;
                b.if_((first + i).lt(w.rows), || b.store(y, at, logit, 4));
            }
        });
    }))
}

fn emit_route(ctx: &Ctx<'_>, region: &Region) -> Result<Emission, CompileError> {
    let out = region.last();
    Ok(Emission { launches: vec![choice(ctx, out, Operand::Value(out))], temps: vec![], cuts: None })
}

/// The launch that chooses the experts of all rows and writes them to `y`: a subgroup for each.
pub(super) fn choice(ctx: &Ctx<'_>, route: NodeId, y: Operand) -> LaunchSketch {
    let (routing, lanes) = (ctx.graph.routing(route), ctx.caps.subgroup_size);
    let name = format!("route_{}_of_{}", routing.used, routing.experts);
    launch(name, lanes, lanes, [ctx.rows(route), 1, 1], |b, args| {
        let choice = Choice::new(ctx, b, args, route);
        choice.choose(b, b.tile(0), b.u32(routing.used));
        choice.store(b, lanes, args.write("y", y), b.tile(0));
    })
}

/// The choice of a row's experts, within a workgroup.
pub(super) struct Choice<'b> {
    logits: Val<'b>,
    routing: Routing,
    subgroup: u32,
    /// Shared: the logits of the chosen, best first.
    values: u32,
    /// Shared: their numbers.
    numbers: u32,
}

impl<'b> Choice<'b> {
    /// Declares the logits of `route` and shared memory.
    pub(super) fn new(ctx: &Ctx<'_>, b: &'b Builder, args: &Args<'b>, route: NodeId) -> Choice<'b> {
        let routing = ctx.graph.routing(route);
        let logits = args.read("logits", Operand::Value(ctx.graph.op(route).inputs()[0]));
        let values = b.shared("chosen_logits", Type::F32, routing.used);
        let numbers = b.shared("chosen", Type::U32, routing.used);
        Choice { logits, routing, subgroup: ctx.caps.subgroup_size, values, numbers }
    }

    /// Finds the `rounds` best experts of row `row`; both are the same in all lanes. The first subgroup does it, each
    /// lane with some neighbouring experts; the others wait.
    pub(super) fn choose(&self, b: &'b Builder, row: Val<'b>, rounds: Val<'b>) {
        let each = self.routing.experts.div_ceil(self.subgroup);
        let number = |i: usize| b.lane() * each + i as u32;
        b.if_(b.subgroup_id().eq(0), || {
            let keys: Vec<Val<'b>> = (0..each as usize).map(|i| self.key(b, row, number(i))).collect();
            b.for_(b.u32(0), rounds, 1, &keys, |round, keys| {
                let own = keys.iter().copied().reduce(Val::max).expect("a lane has experts");
                let top = own.subgroup_max();
                let none = b.u32(u32::MAX);
                let lowest = |found, (i, key): (usize, &Val<'b>)| key.eq(top).select(number(i), found);
                let best = keys.iter().enumerate().rev().fold(none, lowest).subgroup_min();
                b.if_(b.lane().eq(0), || {
                    b.shared_store(self.values, round, from_key(b, top));
                    b.shared_store(self.numbers, round, best);
                });
                let rest = |(i, key): (usize, &Val<'b>)| number(i).eq(best).select(b.u32(0), *key);
                keys.iter().enumerate().map(rest).collect()
            });
        });
        b.barrier();
    }

    /// The logit of an expert as an integer of the same order; above 0, which stands for none.
    fn key(&self, b: &'b Builder, row: Val<'b>, expert: Val<'b>) -> Val<'b> {
        let in_range = expert.lt(self.routing.experts);
        let at = row * self.routing.experts + expert.min(b.u32(self.routing.experts - 1));
        let logit = b.load(Type::F32, self.logits, at * 4, 4);
        // A NaN counts as the smallest number.
        let number = logit.eq(logit).select(logit.max(b.f32(f32::MIN)), b.f32(f32::MIN));
        let bits = number.bitcast(Type::U32);
        let negative = (bits >> 31).ne(0);
        in_range.select(bits ^ negative.select(b.u32(u32::MAX), b.u32(1 << 31)), b.u32(0))
    }

    /// Number of the expert that was found in round `which`.
    pub(super) fn expert(&self, b: &'b Builder, which: Val<'b>) -> Val<'b> {
        b.shared_load(self.numbers, which)
    }

    /// Writes row `row` of the route's value, after a choice of all that are used.
    pub(super) fn store(&self, b: &'b Builder, lanes: u32, y: Val<'b>, row: Val<'b>) {
        let used = self.routing.used;
        let exp = |i: Val<'b>| (b.shared_load(self.values, i) - b.shared_load(self.values, b.u32(0))).exp();
        for_strided(b, b.local_id(), lanes, used, |i| {
            let sum = b.for_(b.u32(0), b.u32(used), 1, &[b.f32(0.0)], |j, sum| vec![sum[0] + exp(j)]);
            let at = row * (2 * used) + i;
            b.store(y, at * 4, exp(i) / sum[0], 4);
            b.store(y, (at + used) * 4, self.expert(b, i), 4);
        });
    }
}

/// The number behind a key of [`Choice::key`].
fn from_key<'b>(b: &'b Builder, key: Val<'b>) -> Val<'b> {
    let positive = (key >> 31).ne(0);
    (key ^ positive.select(b.u32(1 << 31), b.u32(u32::MAX))).bitcast(Type::F32)
}
