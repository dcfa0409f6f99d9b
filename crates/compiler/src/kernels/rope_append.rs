//! Between the products of a prompt and its attention: one launch for all heads of q, k and v.
//!
//! ```text
//! q ─[head norm]─[rope]─► q'
//! k ─[head norm]─[rope]─┐
//! v ────────────────────┴ kv_append ─► cache pages
//! ```
//!
//! A subgroup takes one head of one row; a lane takes both elements of a rotary pair, so nothing is shared.

use super::args::{Args, single};
use super::kv::Cache;
use super::rows::{Append, Dest, for_strided, pair_elements, turn};
use crate::select::Finder;
use crate::template::{Ctx, Emission, Operand, Template};
use crate::{CompileError, Region};
use zinc_ir::graph::{NodeId, Op, Pairing, RopeId, WeightId};
use zinc_ir::kernel::{Builder, Type, Val};
use zinc_ir::plan::{Input, NO_SLOT};

pub(super) static ROPE_APPEND: Template = Template {
    name: "rope_append",
    summary: "[head norm] [rope] of q and k, K and V into the cache; many rows",
    fused: true,
    matches,
    emit,
};

/// Walks `[rope]([norm](·))` down from `node`, drawing both into `nodes`, as far as nothing else reads them.
fn match_head(f: &Finder<'_>, node: NodeId, head_dim: u32, nodes: &mut Vec<NodeId>) {
    let mut at = node;
    if let Op::Rope { x, .. } = *f.op(at) {
        nodes.push(at);
        at = x;
    }
    if let Op::RmsNorm { group, .. } = *f.op(at)
        && group == head_dim
        && (at == node || f.private(at, nodes))
    {
        nodes.push(at);
    }
}

fn matches(f: &Finder<'_>, node: NodeId) -> Option<Vec<NodeId>> {
    let Op::KvAppend { k, layer, .. } = *f.op(node) else { return None };
    // Blocks of quantized K and V need 32 values of a head in one place.
    if f.few_rows(node) || f.ctx.kv.types.quantized() {
        return None;
    }
    let head_dim = f.ctx.graph.kv()[layer as usize].head_dim;
    let mut nodes = vec![node];
    if f.private(k, &nodes) {
        match_head(f, k, head_dim, &mut nodes);
    }
    let mut readers = f.users(node);
    if let (Some(Op::Attention { q, .. }), None) = (readers.next().map(|a| f.op(a)), readers.next())
        && f.open(*q)
        && f.users(*q).count() == 1
        && !f.ctx.leaves(*q)
    {
        match_head(f, *q, head_dim, &mut nodes);
    }
    Some(nodes)
}

/// The heads of q, k or v.
struct Part {
    from: NodeId,
    norm: Option<(WeightId, f32)>,
    rope: Option<(Pairing, RopeId)>,
    dest: Dest,
}

fn part(ctx: &Ctx<'_>, region: &Region, value: NodeId, dest: Dest) -> Part {
    let mut part = Part { from: value, norm: None, rope: None, dest };
    while region.nodes.contains(&part.from) {
        part.from = match *ctx.graph.op(part.from) {
            Op::Rope { x, pairing, rope, .. } => {
                part.rope = Some((pairing, rope));
                x
            }
            Op::RmsNorm { x, weight, eps, .. } => {
                part.norm = Some((weight, eps));
                x
            }
            ref other => unreachable!("matched a head with {other:?}"),
        };
    }
    part
}

fn parts(ctx: &Ctx<'_>, region: &Region) -> (Vec<Part>, u32) {
    let Append { k, v, layer, q } = Append::of(ctx, region);
    let mut parts: Vec<Part> = q.map(|q| part(ctx, region, q, Dest::Q(q))).into_iter().collect();
    parts.extend([part(ctx, region, k, Dest::K), part(ctx, region, v, Dest::V)]);
    (parts, layer)
}

fn emit(ctx: &Ctx<'_>, region: &Region) -> Result<Emission, CompileError> {
    let (parts, layer) = parts(ctx, region);
    let head_dim = ctx.graph.kv()[layer as usize].head_dim;
    let heads = |p: &Part| ctx.cols(p.from) / head_dim;
    let total: u32 = parts.iter().map(heads).sum();
    let sg = ctx.caps.subgroup_size;
    let subgroups = ctx.subgroups().min(total);
    let name = format!("rope_append_{total}x{head_dim}");
    let grid = [total.div_ceil(subgroups), ctx.bucket.tokens, 1];
    Ok(single(name, subgroups * sg, sg, grid, |b, args| {
        let slots = args.read("slots", Operand::Input(Input::Slots));
        let mut first = 0;
        let number = b.tile(0) * subgroups + b.subgroup_id();
        let row = b.tile(1);
        for p in &parts {
            let io = PartArgs::new(args, p, layer);
            let inside = number.lt(first + heads(p));
            let inside = if first == 0 { inside } else { number.ge(first) & inside };
            b.if_(inside, || {
                let place = Place { row, head: number - first, heads: heads(p), head_dim };
                body(ctx, b, p, &io, place, slots);
            });
            first += heads(p);
        }
    }))
}

struct PartArgs<'b> {
    from: Val<'b>,
    norm: Option<Val<'b>>,
    turns: Option<Val<'b>>,
    dest: Val<'b>,
}

impl<'b> PartArgs<'b> {
    fn new(args: &Args<'b>, p: &Part, layer: u32) -> PartArgs<'b> {
        PartArgs {
            from: args.read("x", Operand::Value(p.from)),
            norm: p.norm.map(|(w, _)| args.read("head_norm", Operand::Weight(w))),
            turns: p.rope.map(|(_, r)| args.read("turns", Operand::Input(Input::Rope(r)))),
            dest: p.dest.declare(args, layer),
        }
    }
}

/// The head of a subgroup.
#[derive(Clone, Copy)]
struct Place<'b> {
    row: Val<'b>,
    head: Val<'b>,
    heads: u32,
    head_dim: u32,
}

fn body<'b>(ctx: &Ctx<'_>, b: &'b Builder, p: &Part, io: &PartArgs<'b>, at: Place<'b>, slots: Val<'b>) {
    let (sg, dim) = (ctx.caps.subgroup_size, at.head_dim);
    let start = (at.row * at.heads + at.head) * dim;
    let raw = |e: Val<'b>| b.load(Type::F32, io.from, (start + e) * 4, 4);
    let factor = p.norm.map(|(_, eps)| {
        let sum = b.for_(b.lane(), b.u32(dim), sg, &[b.f32(0.0)], |e, sum| {
            let v = raw(e);
            vec![b.fma(v, v, sum[0])]
        });
        (sum[0].subgroup_add() * (1.0 / dim as f32) + eps).inv_sqrt()
    });
    let value = |e: Val<'b>| match (factor, io.norm) {
        (Some(factor), Some(gain)) => raw(e) * factor * b.load(Type::F32, gain, e * 4, 4),
        _ => raw(e),
    };
    let write = |store: &dyn Fn(Val<'b>, Val<'b>)| match (p.rope, io.turns) {
        (Some((pairing, rope)), Some(table)) => {
            let pairs = ctx.graph.ropes()[rope.index()].inv_freq.len() as u32;
            for_strided(b, b.lane(), sg, pairs, |pair| {
                let elements = pair_elements(pairing, pairs, pair);
                let [c, s] = turn(b, table, at.row, pairs, pair);
                let [u, v] = elements.map(value);
                store(elements[0], u * c - v * s);
                store(elements[1], u * s + v * c);
            });
            if 2 * pairs < dim {
                for_strided(b, b.lane(), sg, dim - 2 * pairs, |i| store(i + 2 * pairs, value(i + 2 * pairs)));
            }
        }
        _ => for_strided(b, b.lane(), sg, dim, |e| store(e, value(e))),
    };
    match p.dest {
        Dest::Q(_) => write(&|e, v| b.store(io.dest, (start + e) * 4, v, 4)),
        Dest::K | Dest::V => {
            let slot = b.load(Type::U32, slots, at.row * 4, 4);
            let ty = if matches!(p.dest, Dest::K) { ctx.kv.types.k } else { ctx.kv.types.v };
            b.if_(slot.ne(NO_SLOT), || {
                let cache = Cache { base: io.dest, ty, heads: at.heads, head_dim: dim };
                let line = cache.line_of_slot(at.head, slot);
                write(&|e, v| cache.store(b, line, e, v));
            });
        }
    }
}
