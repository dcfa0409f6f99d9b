//! The front of an attention block in one launch, for 1 to 8 rows.
//!
//! ```text
//! x ─[rms_norm]─┬─ matmul Wq ─[bias]─[head norm]─[rope]────────────► q
//!               ├─ matmul Wk ─[bias]─[head norm]─[rope]─┐
//!               └─ matmul Wv ─[bias]────────────────────┴ kv_append ─► cache pages
//! ```
//!
//! One grid runs over the heads of Wq, Wk and Wv; a tile is a head, or the part of a head whose rotary pairs are
//! complete. Sums go through shared memory, because a head norm and a pair need elements of other lanes.

use super::args::{Args, launch};
use super::dot::{self, Inputs, WeightRow};
use super::matvec::{self, Source};
use super::rows::{Append, Dest, for_items, kv_offset, pair_elements, store_kv, turn};
use crate::select::Finder;
use crate::template::{Ctx, Emission, Operand, Template};
use crate::{CompileError, Region};
use zinc_ir::graph::{NodeId, Op, Pairing, RopeId, WeightId};
use zinc_ir::kernel::{Builder, Type, Val};
use zinc_ir::plan::{Input, NO_SLOT};

pub(super) static QKV: Template = Template {
    name: "matvec_qkv",
    summary: "[norm] · (Wq, Wk, Wv) [+ bias] [head norm] [rope], K and V into the cache; few rows",
    fused: true,
    matches: match_qkv,
    emit,
};

/// Walks `[rope]([norm]([bias](matmul)))` down from `node`, drawing all into `nodes`; gives the product.
fn match_head(f: &Finder<'_>, node: NodeId, nodes: &mut Vec<NodeId>) -> Option<NodeId> {
    let mut at = node;
    if let Op::Rope { x, .. } = *f.op(at) {
        nodes.push(at);
        at = x;
        if !f.private(at, nodes) {
            return None;
        }
    }
    if let Op::RmsNorm { x, group, .. } = *f.op(at) {
        let head_dim = head_dim_of(f, node)?;
        if group != head_dim {
            return None;
        }
        nodes.push(at);
        at = x;
        if !f.private(at, nodes) {
            return None;
        }
    }
    let product = matvec::match_product(f, at, nodes)?;
    let Op::MatMul { weight, .. } = *f.op(product) else { return None };
    dot::supported(f.ctx.graph.weight_of(weight)).then_some(product)
}

fn head_dim_of(f: &Finder<'_>, node: NodeId) -> Option<u32> {
    match *f.op(node) {
        Op::Rope { head_dim, .. } => Some(head_dim),
        _ => None,
    }
}

fn match_qkv(f: &Finder<'_>, node: NodeId) -> Option<Vec<NodeId>> {
    let Op::KvAppend { k, v, .. } = *f.op(node) else { return None };
    if !f.few_rows(node) || k == v {
        return None;
    }
    let mut readers = f.users(node);
    let q = match readers.next().map(|a| f.op(a)) {
        Some(Op::Attention { q, .. }) => Some(*q),
        Some(_) => return None,
        None => None, // The last layer of a step without outputs: K and V are all that is wanted.
    };
    if readers.next().is_some() {
        return None;
    }
    let mut nodes = vec![node];
    let mut products = vec![];
    for value in [k, v] {
        if !f.private(value, &nodes) {
            return None;
        }
        products.push(match_head(f, value, &mut nodes)?);
    }
    if let Some(q) = q {
        // q is the region's result, read by the attention alone.
        if !f.open(q) || f.users(q).count() != 1 {
            return None;
        }
        products.push(match_head(f, q, &mut nodes)?);
    }
    let input = |p: NodeId| f.op(p).inputs()[0];
    let x = input(products[0]);
    if products.iter().any(|p| input(*p) != x) {
        return None;
    }
    matvec::match_prologue(f, x, &mut nodes);
    Some(nodes)
}

/// One of the three products with what follows it.
struct Head {
    weight: WeightId,
    bias: Option<WeightId>,
    norm: Option<(WeightId, f32)>,
    rope: Option<(Pairing, RopeId)>,
    dest: Dest,
}

fn head(ctx: &Ctx<'_>, value: NodeId, dest: Dest) -> Head {
    let (mut bias, mut norm, mut rope, mut at) = (None, None, None, value);
    loop {
        at = match *ctx.graph.op(at) {
            Op::Rope { x, pairing, rope: table, .. } => {
                rope = Some((pairing, table));
                x
            }
            Op::RmsNorm { x, weight, eps, .. } => {
                norm = Some((weight, eps));
                x
            }
            Op::Bias { x, weight } => {
                bias = Some(weight);
                x
            }
            Op::MatMul { weight, .. } => return Head { weight, bias, norm, rope, dest },
            ref other => unreachable!("matched a head with {other:?}"),
        };
    }
}

struct Parts {
    heads: Vec<Head>,
    layer: u32,
    source: Source,
}

fn parts(ctx: &Ctx<'_>, region: &Region) -> Parts {
    let Append { k, v, layer, q } = Append::of(ctx, region);
    let mut heads = vec![];
    heads.extend(q.map(|q| head(ctx, q, Dest::Q(q))));
    heads.extend([head(ctx, k, Dest::K), head(ctx, v, Dest::V)]);
    let product = |w: WeightId| {
        region.nodes.iter().find_map(|n| match *ctx.graph.op(*n) {
            Op::MatMul { x, weight } if weight == w => Some(x),
            _ => None,
        })
    };
    let x = product(heads[0].weight).expect("the product is in the region");
    Parts { layer, source: matvec::source_of(ctx, region, x), heads }
}

/// How the work is cut: `tile` rows of one head per workgroup.
#[derive(Clone, Copy)]
struct Cut {
    head_dim: u32,
    tile: u32,
    subgroups: u32,
    rows: u32,
}

fn cut(ctx: &Ctx<'_>, parts: &Parts, head_dim: u32, n: u32) -> Cut {
    let heads: u32 = parts.heads.iter().map(|h| ctx.graph.weight_of(h.weight).rows / head_dim).sum();
    let whole = parts.heads.iter().any(|h| h.norm.is_some() || partial(ctx, h, head_dim));
    let mut tile = head_dim;
    while !whole && tile.is_multiple_of(4) && tile > 16 && heads * (head_dim / tile) < ctx.caps.parallel_tiles * 2 {
        tile /= 2;
    }
    let rows = if n <= 2 && tile.is_multiple_of(2) { 2 } else { 1 };
    let mut subgroups = ctx.subgroups();
    while !(tile / rows).is_multiple_of(subgroups) {
        subgroups -= 1;
    }
    Cut { head_dim, tile, subgroups, rows }
}

/// Does the rotation leave a part of the head alone? Then a tile must be a whole head.
fn partial(ctx: &Ctx<'_>, h: &Head, head_dim: u32) -> bool {
    h.rope.is_some_and(|(_, r)| 2 * ctx.graph.ropes()[r.index()].inv_freq.len() as u32 != head_dim)
}

fn emit(ctx: &Ctx<'_>, region: &Region) -> Result<Emission, CompileError> {
    let parts = parts(ctx, region);
    let n = ctx.bucket.tokens;
    let head_dim = ctx.graph.kv()[parts.layer as usize].head_dim;
    let cut = cut(ctx, &parts, head_dim, n);
    let sg = ctx.caps.subgroup_size;
    let formats: Vec<_> =
        parts.heads.iter().map(|h| ctx.graph.weight_of(h.weight).format.name.to_lowercase()).collect();
    let per_head = head_dim / cut.tile;
    let tiles = |h: &Head| ctx.graph.weight_of(h.weight).rows / cut.tile;
    let grid = [parts.heads.iter().map(tiles).sum(), 1, 1];
    let name = format!("matvec_qkv_{}_{n}", formats.join("_"));
    let product = launch(name, cut.subgroups * sg, sg, grid, |b, args| {
        let inputs = matvec::inputs(ctx, b, args, &parts.source, n);
        let slots = args.read("slots", Operand::Input(Input::Slots));
        let sums = b.shared("sums", Type::F32, n * cut.tile);
        let outs: Vec<HeadArgs<'_>> = parts.heads.iter().map(|h| head_args(args, h, parts.layer)).collect();
        let mut first = 0;
        for (h, out) in parts.heads.iter().zip(&outs) {
            let tile = b.tile(0) - first;
            let inside = tile.lt(tiles(h));
            let after = if first == 0 { inside } else { b.u32(first).le(b.tile(0)) & inside };
            b.if_(after, || {
                let (head, part) = (tile / per_head, tile % per_head);
                let tile = Tile { ctx, b, cut, spec: h, args: out, head, part, sums };
                tile.products(&inputs);
                b.barrier();
                (0..n).for_each(|row| tile.finish(row, slots));
            });
            first += tiles(h);
        }
    });
    Ok(Emission { launches: vec![product], temps: vec![] })
}

struct HeadArgs<'b> {
    weight: Val<'b>,
    bias: Option<Val<'b>>,
    norm: Option<Val<'b>>,
    turns: Option<Val<'b>>,
    dest: Val<'b>,
}

fn head_args<'b>(args: &Args<'b>, h: &Head, layer: u32) -> HeadArgs<'b> {
    HeadArgs {
        weight: args.read("weight", Operand::Weight(h.weight)),
        bias: h.bias.map(|w| args.read("bias", Operand::Weight(w))),
        norm: h.norm.map(|(w, _)| args.read("head_norm", Operand::Weight(w))),
        turns: h.rope.map(|(_, r)| args.read("turns", Operand::Input(Input::Rope(r)))),
        dest: h.dest.declare(args, layer),
    }
}

/// The work of a tile: a part of one head.
struct Tile<'a, 'b> {
    ctx: &'a Ctx<'a>,
    b: &'b Builder,
    cut: Cut,
    spec: &'a Head,
    args: &'a HeadArgs<'b>,
    head: Val<'b>,
    part: Val<'b>,
    /// Shared `[row][tile]`: products plus bias.
    sums: u32,
}

impl<'b> Tile<'_, 'b> {
    /// Element of the head that is element `i` of the part: parts keep rotary pairs together.
    fn element(&self, i: Val<'b>) -> Val<'b> {
        let cut = self.cut;
        match self.spec.rope {
            Some((Pairing::Halves, _)) if cut.tile < cut.head_dim => {
                let half = cut.tile / 2;
                let second = i / half;
                self.part * half + i % half + second * (cut.head_dim / 2)
            }
            _ => self.part * cut.tile + i,
        }
    }

    /// The products of all rows into shared memory.
    fn products(&self, inputs: &Inputs<'b>) {
        let (b, cut) = (self.b, self.cut);
        let weight = self.ctx.graph.weight_of(self.spec.weight);
        let turns = cut.tile / (cut.subgroups * cut.rows);
        b.for_(b.u32(0), b.u32(turns), 1, &[], |turn, _| {
            let first = (turn * cut.subgroups + b.subgroup_id()) * cut.rows;
            let local: Vec<Val<'b>> = (0..cut.rows).map(|r| first + r).collect();
            let rows: Vec<WeightRow<'_, 'b>> = local
                .iter()
                .map(|i| {
                    let row = self.head * cut.head_dim + self.element(*i);
                    WeightRow { weight, base: self.args.weight, row }
                })
                .collect();
            let values = dot::dot(b, self.ctx.caps.subgroup_size, &rows, inputs);
            b.if_(b.lane().eq(0), || {
                for (r, of_row) in values.iter().enumerate() {
                    let bias = self.args.bias.map(|base| b.load(Type::F32, base, rows[r].row * 4, 4));
                    for (j, value) in of_row.iter().enumerate() {
                        let value = bias.map_or(*value, |bias| *value + bias);
                        b.shared_store(self.sums, local[r] + j as u32 * cut.tile, value);
                    }
                }
            });
            vec![]
        });
    }

    /// Head norm, rotation and the store of one row.
    fn finish(&self, row: u32, slots: Val<'b>) {
        let (b, cut) = (self.b, self.cut);
        let lanes = cut.subgroups * self.ctx.caps.subgroup_size;
        let factor = self.norm_factor(row);
        let value = |i: Val<'b>| {
            let v = b.shared_load(self.sums, i + row * cut.tile);
            match (factor, self.args.norm) {
                (Some(f), Some(gain)) => v * f * b.load(Type::F32, gain, self.element(i) * 4, 4),
                _ => v,
            }
        };
        let (Some((pairing, rope)), Some(table)) = (self.spec.rope, self.args.turns) else {
            return for_items(b, lanes, cut.tile, |i| self.store(row, slots, i, value(i)));
        };
        let pairs = self.ctx.graph.ropes()[rope.index()].inv_freq.len() as u32;
        let whole = cut.tile == cut.head_dim;
        let local_pairs = if whole { pairs } else { cut.tile / 2 };
        for_items(b, lanes, local_pairs, |p| {
            let elements = pair_elements(pairing, local_pairs, p);
            let [c, s] = turn(b, table, b.u32(row), pairs, self.part * local_pairs + p);
            let [u, v] = elements.map(value);
            self.store(row, slots, elements[0], u * c - v * s);
            self.store(row, slots, elements[1], u * s + v * c);
        });
        if whole && 2 * pairs < cut.head_dim {
            for_items(b, lanes, cut.head_dim - 2 * pairs, |i| {
                self.store(row, slots, i + 2 * pairs, value(i + 2 * pairs));
            });
        }
    }

    /// 1 / √(mean x² + eps) of a row of the head, if it has a norm: then the tile is the whole head.
    fn norm_factor(&self, row: u32) -> Option<Val<'b>> {
        let (b, cut) = (self.b, self.cut);
        self.spec.norm.map(|(_, eps)| {
            let sum = b.for_(b.lane(), b.u32(cut.tile), self.ctx.caps.subgroup_size, &[b.f32(0.0)], |i, acc| {
                let v = b.shared_load(self.sums, i + row * cut.tile);
                vec![b.fma(v, v, acc[0])]
            });
            (sum[0].subgroup_add() * (1.0 / cut.head_dim as f32) + eps).inv_sqrt()
        })
    }

    /// Stores element `i` of the part: into q, or at the row's slot of the cache if it has one.
    fn store(&self, row: u32, slots: Val<'b>, i: Val<'b>, v: Val<'b>) {
        let (b, ctx, head_dim) = (self.b, self.ctx, self.cut.head_dim);
        let e = self.element(i);
        match self.spec.dest {
            Dest::Q(q) => b.store(self.args.dest, (self.head * head_dim + e + row * ctx.cols(q)) * 4, v, 4),
            Dest::K | Dest::V => {
                let slot = b.load(Type::U32, slots, b.u32(row * 4), 4);
                let heads = ctx.graph.weight_of(self.spec.weight).rows / head_dim;
                b.if_(slot.ne(NO_SLOT), || {
                    let at = kv_offset(heads, head_dim, ctx.kv.ty, slot, self.head, e);
                    store_kv(b, self.args.dest, at, ctx.kv.ty, v);
                });
            }
        }
    }
}
