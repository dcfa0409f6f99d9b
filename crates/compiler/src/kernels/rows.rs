//! One-op kernels over rows: what fused templates leave over, and the guarantee that every graph has a plan.

use super::args::{Args, launch, single};
use super::kv::Cache;
use super::{dot, halve, tables};
// Listed among the row operations, made with the other choices of tokens.
pub(super) use super::top_k::argmax::ARGMAX;
use crate::select::Finder;
use crate::template::{Ctx, Emission, LaunchSketch, Operand, Template};
use crate::{CompileError, Region};
use zinc_ir::graph::{KvShape, NodeId, Op, Pairing};
use zinc_ir::kernel::{Builder, Scalar, Type, Val};
use zinc_ir::plan::{CHAINED, Input, KV_BLOCK, NO_SLOT};
use zinc_ir::quant::{UNIT, Weights};

macro_rules! template {
    ($name:ident, $label:literal, $summary:literal, $pattern:pat, $emit:expr) => {
        pub(super) static $name: Template = Template {
            name: $label,
            summary: $summary,
            fused: false,
            matches: |f, node| matches!(f.op(node), $pattern).then(|| vec![node]),
            emit: $emit,
        };
    };
}

pub(super) static EMBED_SCALED: Template = Template {
    name: "embed_scaled",
    summary: "embedding rows times a constant",
    fused: true,
    matches: match_embed_scaled,
    emit: emit_embed,
};
template!(EMBED, "embed", "embedding rows", Op::Embed { .. }, emit_embed);
template!(SELECT_ROWS, "select_rows", "rows whose logits are wanted", Op::SelectRows { .. }, emit_select_rows);
pub(super) static RMS_NORM: Template = Template {
    name: "rms_norm",
    summary: "[select rows] RMS norm of rows or heads [as halves]",
    fused: false,
    matches: match_rms_norm,
    emit: emit_rms_norm,
};
template!(ROPE, "rope", "rotary embedding of heads", Op::Rope { .. }, emit_rope);
template!(KV_APPEND, "kv_append", "K and V into the cache", Op::KvAppend { .. }, emit_kv_append);
template!(GLU, "glu", "activation of gate times up", Op::Glu { .. }, emit_elementwise);
template!(ADD, "add", "sum of two values", Op::Add { .. }, emit_elementwise);
template!(BIAS, "bias", "adds one vector to every row", Op::Bias { .. }, emit_elementwise);
template!(SCALE, "scale", "multiplies by a constant", Op::Scale { .. }, emit_elementwise);

fn match_embed_scaled(f: &Finder<'_>, node: NodeId) -> Option<Vec<NodeId>> {
    let Op::Scale { x, .. } = *f.op(node) else { return None };
    (matches!(f.op(x), Op::Embed { .. }) && f.private(x, &[node])).then(|| vec![x, node])
}

/// Lanes of a workgroup for `items` independent items.
pub(super) fn workgroup(ctx: &Ctx<'_>, items: u32) -> u32 {
    items.next_multiple_of(ctx.caps.subgroup_size).min(ctx.lanes(256))
}

/// Runs `body(i)` for i in 0..items, spread over the lanes of a workgroup.
pub(super) fn for_items<'b>(b: &'b Builder, lanes: u32, items: u32, body: impl FnOnce(Val<'b>)) {
    for_strided(b, b.local_id(), lanes, items, body);
}

/// Runs `body(i)` for every `stride`-th i from `first` to `items`.
pub(super) fn for_strided<'b>(b: &'b Builder, first: Val<'b>, stride: u32, items: u32, body: impl FnOnce(Val<'b>)) {
    b.for_(first, b.u32(items), stride, &[], |i, _| {
        body(i);
        vec![]
    });
}

/// Embedding: a tile per token; each lane decodes units of 32 columns.
fn emit_embed(ctx: &Ctx<'_>, region: &Region) -> Result<Emission, CompileError> {
    let out = region.last();
    let Op::Embed { table } = *ctx.graph.op(region.nodes[0]) else {
        return Err(ctx.unsupported(out, "not an embedding"));
    };
    let factor = match *ctx.graph.op(out) {
        Op::Scale { factor, .. } => factor,
        _ => 1.0,
    };
    let weight = ctx.graph.weight_of(table);
    if !dot::supported(weight) {
        let why = format!("{} columns of {} are not whole blocks", weight.cols, weight.format.name);
        return Err(ctx.unsupported(out, why));
    }
    let units = weight.cols / UNIT;
    let lanes = workgroup(ctx, units);
    let name = format!("embed_{}_{}", weight.format.name.to_lowercase(), weight.cols);
    Ok(single(name, lanes, ctx.caps.subgroup_size, [ctx.rows(out), 1, 1], |b, args| {
        let tokens = args.read("tokens", Operand::Input(Input::Tokens));
        let chain = args.read("chain", Operand::Chain);
        let base = args.read("table", Operand::Weight(table));
        let y = args.write("y", Operand::Value(out));
        let given = b.load(Type::U32, tokens, b.tile(0) * 4, 4);
        // A chained token lies where the step before has put it.
        let before = || vec![b.load(Type::U32, chain, (given & (CHAINED - 1)) * 4, 4)];
        let token = b.if_else(given.ge(CHAINED), before, || vec![given])[0].min(b.u32(weight.rows - 1));
        tables::fill_small(b, weight, lanes);
        for_items(b, lanes, units, |unit| {
            for run in (weight.format.emit_unit)(&dot::unit_at(b, weight, base, token, unit)) {
                let col = dot::first_column(weight.format, unit, &run);
                store16(b, y, (b.tile(0) * weight.cols + col) * 4, &run.weights, factor);
            }
        });
    }))
}

fn store16<'b>(b: &'b Builder, y: Val<'b>, offset: Val<'b>, weights: &Weights<'b>, factor: f32) {
    for (i, quad) in weights.values(b).into_iter().enumerate() {
        let quad = if factor == 1.0 { quad } else { quad * factor };
        b.store(y, offset + i as u32 * 16, quad, 16);
    }
}

fn emit_select_rows(ctx: &Ctx<'_>, region: &Region) -> Result<Emission, CompileError> {
    let out = region.last();
    let Op::SelectRows { x } = *ctx.graph.op(out) else { return Err(ctx.unsupported(out, "pattern")) };
    let cols = ctx.cols(out);
    let lanes = workgroup(ctx, cols);
    Ok(single(format!("select_rows_{cols}"), lanes, ctx.caps.subgroup_size, [ctx.rows(out), 1, 1], |b, args| {
        let from = args.read("x", Operand::Value(x));
        let picks = args.read("outputs", Operand::Input(Input::Outputs));
        let y = args.write("y", Operand::Value(out));
        let row = b.load(Type::U32, picks, b.tile(0) * 4, 4);
        for_items(b, lanes, cols, |i| {
            let value = b.load(Type::F32, from, (row * cols + i) * 4, 4);
            b.store(y, (b.tile(0) * cols + i) * 4, value, 4);
        });
    }))
}

/// A norm, with the selection of its rows, and as halves.
fn match_rms_norm(f: &Finder<'_>, node: NodeId) -> Option<Vec<NodeId>> {
    let (norm, mut nodes) = match halve::ending(f, node) {
        Some((value, halves)) => (value, vec![value, halves]),
        None => (node, vec![node]),
    };
    let Op::RmsNorm { x, .. } = *f.op(norm) else { return None };
    if f.ctx.choices.fuse && matches!(f.op(x), Op::SelectRows { .. }) && f.private(x, &[norm]) {
        nodes.push(x);
    }
    Some(nodes)
}

/// Quads of a group that a lane should at least have before another subgroup helps.
const NORM_QUADS: u32 = 2;

fn emit_rms_norm(ctx: &Ctx<'_>, region: &Region) -> Result<Emission, CompileError> {
    let (mut out, mut halves) = (region.last(), None);
    if let Op::Halve { x } = *ctx.graph.op(out) {
        (out, halves) = (x, Some(Operand::Value(out)));
    }
    let Op::RmsNorm { x, .. } = *ctx.graph.op(out) else { return Err(ctx.unsupported(out, "pattern")) };
    let source = match *ctx.graph.op(x) {
        Op::SelectRows { x: inner } if region.nodes.contains(&x) => inner,
        _ => x,
    };
    let y = region.gives.contains(&out).then_some(Operand::Value(out));
    let launch = rms_norm(ctx, out, source, y, halves).ok_or_else(|| ctx.unsupported(out, "pattern"))?;
    Ok(Emission { launches: vec![launch], temps: vec![], cuts: None })
}

/// The launch of the norm `node` of rows of `source`, its input or what that selects from; to F32 and to halves. A tile
/// per group of columns: a subgroup, or several for long groups.
pub(super) fn rms_norm(
    ctx: &Ctx<'_>,
    node: NodeId,
    source: NodeId,
    y: Option<Operand>,
    halves: Option<Operand>,
) -> Option<LaunchSketch> {
    let Op::RmsNorm { x, weight, eps, group } = *ctx.graph.op(node) else { return None };
    let (sg, groups) = (ctx.caps.subgroup_size, ctx.cols(node) / group);
    let wide = if group.is_multiple_of(4) { 4 } else { 1 };
    let lanes = (group / wide / NORM_QUADS).max(1).next_multiple_of(sg).min(ctx.lanes(512));
    let ty = Type::Vec(Scalar::F32, wide as u8);
    let align = wide as u8 * 4;
    Some(launch(format!("rms_norm_{group}"), lanes, sg, [ctx.rows(node) * groups, 1, 1], |b, args| {
        let from = args.read("x", Operand::Value(source));
        let picks = (source != x).then(|| args.read("outputs", Operand::Input(Input::Outputs)));
        let gain = args.read("weight", Operand::Weight(weight));
        let y = y.map(|y| args.write("y", y));
        let halves = halves.map(|to| args.write("halves", to));
        let row = b.tile(0) / groups;
        let picked = picks.map_or(row, |picks| b.load(Type::U32, picks, row * 4, 4));
        let start = (picked * groups + b.tile(0) % groups) * group;
        // What a lane has of the group stays in registers; gains are under way while lanes wait for the sum.
        let items = group / wide;
        let own: Vec<(Val<'_>, Val<'_>)> = (0..items.div_ceil(lanes)).map(|turn| item(b, turn, lanes, items)).collect();
        let load = |base, at| b.load(ty, base, at, align);
        let values: Vec<Val<'_>> = own.iter().map(|(i, _)| load(from, (start + *i * wide) * 4)).collect();
        let gains: Vec<Val<'_>> = own.iter().map(|(i, _)| load(gain, *i * (wide * 4))).collect();
        let zero = b.f32(0.0).splat(wide as u8);
        let squares = own.iter().zip(&values).fold(zero, |sum, ((_, real), v)| real.select(b.fma(*v, *v, sum), sum));
        let sum = workgroup_sum(b, squares.sum_lanes(), lanes / sg);
        let factor = (sum * (1.0 / group as f32) + eps).inv_sqrt().splat(wide as u8);
        for ((i, real), (v, gain)) in own.into_iter().zip(values.into_iter().zip(gains)) {
            b.if_(real, || {
                let (value, at) = (v * factor * gain, b.tile(0) * group + i * wide);
                if let Some(y) = y {
                    b.store(y, at * 4, value, align);
                }
                if let Some(halves) = halves {
                    halve::store(b, halves, at, value);
                }
            });
        }
    }))
}

/// Item of this lane in turn `turn`, and whether there is one; a last one that is none repeats the last.
pub(super) fn item<'b>(b: &'b Builder, turn: u32, lanes: u32, items: u32) -> (Val<'b>, Val<'b>) {
    let i = b.local_id() + turn * lanes;
    match (turn + 1) * lanes <= items {
        true => (i, b.bool(true)),
        false => (i.min(b.u32(items - 1)), i.lt(items)),
    }
}

/// Sum over all lanes of the workgroup, the same in all of them.
pub(super) fn workgroup_sum<'b>(b: &'b Builder, value: Val<'b>, subgroups: u32) -> Val<'b> {
    workgroup_sums(b, &[value], subgroups)[0]
}

/// The same for several values, with one barrier.
pub(super) fn workgroup_sums<'b>(b: &'b Builder, values: &[Val<'b>], subgroups: u32) -> Vec<Val<'b>> {
    let own: Vec<Val<'b>> = values.iter().map(|v| v.subgroup_add()).collect();
    if subgroups == 1 {
        return own;
    }
    let n = own.len() as u32;
    let parts = b.shared("parts", Type::F32, n * subgroups);
    b.if_(b.lane().eq(0), || {
        for (k, own) in own.iter().enumerate() {
            b.shared_store(parts, b.subgroup_id() * n + k as u32, *own);
        }
    });
    b.barrier();
    let zero = vec![b.f32(0.0); own.len()];
    b.for_(b.u32(0), b.u32(subgroups), 1, &zero, |i, sums| {
        sums.iter().zip(0..).map(|(sum, k)| *sum + b.shared_load(parts, i * n + k)).collect()
    })
}

/// Cosine and sine of a pair for a row.
pub(super) fn turn<'b>(b: &'b Builder, table: Val<'b>, row: Val<'b>, pairs: u32, pair: Val<'b>) -> [Val<'b>; 2] {
    [0, 1].map(|part| b.load(Type::F32, table, (row * (2 * pairs) + pair + part * pairs) * 4, 4))
}

/// The two elements of pair `pair` within a head.
pub(super) fn pair_elements<'b>(pairing: Pairing, pairs: u32, pair: Val<'b>) -> [Val<'b>; 2] {
    match pairing {
        Pairing::Adjacent => [pair * 2, pair * 2 + 1],
        Pairing::Halves => [pair, pair + pairs],
    }
}

fn emit_rope(ctx: &Ctx<'_>, region: &Region) -> Result<Emission, CompileError> {
    let out = region.last();
    let Op::Rope { x, head_dim, pairing, rope } = *ctx.graph.op(out) else {
        return Err(ctx.unsupported(out, "pattern"));
    };
    let pairs = ctx.graph.ropes()[rope.index()].inv_freq.len() as u32;
    let (cols, rest) = (ctx.cols(out), head_dim - 2 * pairs);
    let heads = cols / head_dim;
    let lanes = workgroup(ctx, heads * pairs);
    let name = format!("rope_{pairing:?}_{heads}x{head_dim}").to_lowercase();
    Ok(single(name, lanes, ctx.caps.subgroup_size, [ctx.rows(out), 1, 1], |b, args| {
        let from = args.read("x", Operand::Value(x));
        let table = args.read("turns", Operand::Input(Input::Rope(rope)));
        let y = args.write("y", Operand::Value(out));
        let row = b.tile(0);
        for_items(b, lanes, heads * pairs, |i| {
            let (head, pair) = (i / pairs, i % pairs);
            let [c, s] = turn(b, table, row, pairs, pair);
            let at = pair_elements(pairing, pairs, pair).map(|e| (row * cols + head * head_dim + e) * 4);
            let [u, v] = at.map(|at| b.load(Type::F32, from, at, 4));
            b.store(y, at[0], u * c - v * s, 4);
            b.store(y, at[1], u * s + v * c, 4);
        });
        if rest > 0 {
            for_items(b, lanes, heads * rest, |i| {
                let at = (row * cols + (i / rest) * head_dim + 2 * pairs + i % rest) * 4;
                b.store(y, at, b.load(Type::F32, from, at, 4), 4);
            });
        }
    }))
}

/// The cache append that a region ends in or holds, and the queries of its attention if the region computes those too.
pub(super) struct Append {
    pub(super) k: NodeId,
    pub(super) v: NodeId,
    pub(super) layer: u32,
    pub(super) q: Option<NodeId>,
}

impl Append {
    /// Of a region whose pattern is anchored at an append.
    pub(super) fn of(ctx: &Ctx<'_>, region: &Region) -> Append {
        let found = region.nodes.iter().find_map(|n| match *ctx.graph.op(*n) {
            Op::KvAppend { k, v, layer } => Some((*n, k, v, layer)),
            _ => None,
        });
        let (append, k, v, layer) = found.expect("the pattern's anchor");
        let q = ctx.graph.ids().find_map(|n| match *ctx.graph.op(n) {
            Op::Attention { q, append: a, .. } if a == append && region.nodes.contains(&q) => Some(q),
            _ => None,
        });
        Append { k, v, layer, q }
    }
}

/// Where a head goes.
#[derive(Clone, Copy)]
pub(super) enum Dest {
    Q(NodeId),
    K,
    V,
}

impl Dest {
    pub(super) fn declare<'b>(self, args: &Args<'b>, layer: u32) -> Val<'b> {
        match self {
            Dest::Q(q) => args.write("q", Operand::Value(q)),
            Dest::K => args.write("k_cache", Operand::KvK(layer)),
            Dest::V => args.write("v_cache", Operand::KvV(layer)),
        }
    }
}

fn emit_kv_append(ctx: &Ctx<'_>, region: &Region) -> Result<Emission, CompileError> {
    let node = region.last();
    let Op::KvAppend { k, v, layer } = *ctx.graph.op(node) else {
        return Err(ctx.unsupported(node, "pattern"));
    };
    let KvShape { heads, head_dim } = ctx.graph.kv()[layer as usize];
    let (cols, types) = (heads * head_dim, ctx.kv.types);
    let lanes = workgroup(ctx, cols);
    let name = format!("kv_append_{heads}x{head_dim}_{}_{}", types.k.name(), types.v.name());
    Ok(single(name, lanes, ctx.caps.subgroup_size, [ctx.bucket.tokens, 1, 1], |b, args| {
        let sources = [args.read("k", Operand::Value(k)), args.read("v", Operand::Value(v))];
        let slots = args.read("slots", Operand::Input(Input::Slots));
        let areas = [args.write("k_cache", Operand::KvK(layer)), args.write("v_cache", Operand::KvV(layer))];
        let row = b.tile(0);
        let slot = b.load(Type::U32, slots, row * 4, 4);
        b.if_(slot.ne(NO_SLOT), || {
            for ((source, base), ty) in sources.into_iter().zip(areas).zip([types.k, types.v]) {
                let cache = Cache { base, ty, heads, head_dim };
                // An element or a block per lane.
                let each = if ty.is_quantized() { KV_BLOCK } else { 1 };
                for_items(b, lanes, cols / each, |i| {
                    let (head, part) = (i / (head_dim / each), i % (head_dim / each));
                    let (line, at) = (cache.line_of_slot(head, slot), (row * cols + i * each) * 4);
                    if ty.is_quantized() {
                        let quad = |q: u32| b.load_at(Type::F32X4, source, at, q * 16, 16, true);
                        cache.store_block(b, line, part, &(0..KV_BLOCK / 4).map(quad).collect::<Vec<_>>());
                    } else {
                        cache.store(b, line, part, b.load(Type::F32, source, at, 4));
                    }
                });
            }
        });
    }))
}

/// GLU, add, bias and scale: one lane per element.
fn emit_elementwise(ctx: &Ctx<'_>, region: &Region) -> Result<Emission, CompileError> {
    let out = region.last();
    let (rows, cols) = (ctx.rows(out), ctx.cols(out));
    let op = ctx.graph.op(out).clone();
    let lanes = workgroup(ctx, cols);
    let name = format!("{}_{cols}", region.template.name);
    Ok(single(name, lanes, ctx.caps.subgroup_size, [cols.div_ceil(lanes), rows, 1], |b, args| {
        let operands: Vec<Val<'_>> = op.inputs().into_iter().map(|i| args.read("x", Operand::Value(i))).collect();
        let vector = op.weight().map(|w| args.read("weight", Operand::Weight(w)));
        let y = args.write("y", Operand::Value(out));
        let col = b.tile(0) * lanes + b.local_id();
        b.if_(col.lt(cols), || {
            let at = (b.tile(1) * cols + col) * 4;
            let values: Vec<Val<'_>> = operands.iter().map(|o| b.load(Type::F32, *o, at, 4)).collect();
            let value = match (&op, vector) {
                (Op::Glu { act, .. }, _) => super::matvec::activate(*act, values[0]) * values[1],
                (Op::Add { .. }, _) => values[0] + values[1],
                (Op::Bias { .. }, Some(w)) => values[0] + b.load(Type::F32, w, col * 4, 4),
                (Op::Scale { factor, .. }, _) => values[0] * *factor,
                _ => values[0],
            };
            b.store(y, at, value, 4);
        });
    }))
}
