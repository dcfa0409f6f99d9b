//! The front of an attention block in one launch, for few rows, at most 8.
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
use super::dot_blocks::{Flight, few_enough};
use super::kv::Cache;
use super::matvec::{self, Source};
use super::rows::{Append, Dest, for_items, pair_elements, turn};
use super::tables;
use crate::cut::{Cut, Cuts, Space};
use crate::select::Finder;
use crate::template::{Ctx, Emission, Operand, Template};
use crate::{CompileError, Region};
use zinc_ir::graph::{NodeId, Op, Pairing, RopeId, Weight, WeightId};
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
    // Blocks of quantized K and V need 32 values of a head in one place.
    if !f.few_rows(node) || k == v || f.ctx.kv.types.quantized() {
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
struct Shape {
    head_dim: u32,
    tile: u32,
    subgroups: u32,
    rows: u32,
    flight: Flight,
}

/// Must a tile be a whole head?
fn whole(ctx: &Ctx<'_>, parts: &Parts, head_dim: u32) -> bool {
    parts.heads.iter().any(|h| h.norm.is_some() || partial(ctx, h, head_dim))
}

/// The rule.
fn rule(ctx: &Ctx<'_>, parts: &Parts, head_dim: u32, n: u32) -> Cut {
    let heads: u32 = parts.heads.iter().map(|h| ctx.graph.weight_of(h.weight).rows / head_dim).sum();
    let whole = whole(ctx, parts, head_dim);
    let mut tile = head_dim;
    while !whole && tile.is_multiple_of(4) && tile > 16 && heads * (head_dim / tile) < ctx.caps.parallel_tiles * 2 {
        tile /= 2;
    }
    let rows = if n <= 2 && tile.is_multiple_of(2) { 2 } else { 1 };
    // Whole heads are few tiles: each is then as wide as can be.
    let few = heads * (head_dim / tile) < ctx.caps.parallel_tiles / 2;
    let widest = (ctx.caps.max_workgroup / ctx.caps.subgroup_size).clamp(1, 32);
    let mut subgroups = if whole && few { widest.min(tile / rows).max(1) } else { ctx.subgroups() };
    while !(tile / rows).is_multiple_of(subgroups) {
        subgroups -= 1;
    }
    Cut {
        subgroups,
        rows,
        turns: tile / rows / subgroups,
        units: 1,
        ahead: few_enough(ctx.caps.subgroup_size, n),
        ..Cut::ONE
    }
}

/// Rows that a tile has at least.
const LEAST_TILE: u32 = 8;

/// The cuts of a region, the rule's first. A tile is a whole head, or a half, a quarter … of one with whole pairs.
fn cuts(ctx: &Ctx<'_>, parts: &Parts, head_dim: u32, n: u32) -> Cuts {
    let weights: Vec<&Weight> = parts.heads.iter().map(|h| ctx.graph.weight_of(h.weight)).collect();
    let whole = whole(ctx, parts, head_dim);
    let tiles = || {
        let halves = (0..head_dim.ilog2()).map(|i| head_dim >> i);
        let parts =
            move |tile: u32| !whole && tile >= LEAST_TILE && tile.is_multiple_of(2) && head_dim.is_multiple_of(tile);
        halves.filter(move |tile| *tile == head_dim || parts(*tile))
    };
    let turns = |subgroups: u32, rows: u32| {
        let fitting = tiles().filter(|tile| tile.is_multiple_of(subgroups * rows));
        fitting.map(|tile| tile / (subgroups * rows)).collect()
    };
    let list = |f: &dyn Fn(&Weight) -> String| weights.iter().map(|w| f(w)).collect::<Vec<_>>().join("+");
    let (formats, rows) = (list(&|w| w.format.name.to_string()), list(&|w| w.rows.to_string()));
    let heads = if whole { "whole heads" } else { "heads" };
    let (cols, input) = (weights[0].cols, ctx.input_words(parts.source.x));
    let key = format!("{} {formats} {rows}x{cols} {heads} of {head_dim} n{n} {input}", QKV.name);
    let rule = rule(ctx, parts, head_dim, n);
    let flight = ctx.quantized(parts.source.x).is_some();
    let table_bytes = tables::bytes(&weights);
    let shared = |cut: Cut| n * cut.tile() * 4 + table_bytes;
    Space { key, rule, flight, turns: &turns, sets: 1, inputs: n, shared: &shared }.cuts(ctx)
}

/// Does the rotation leave a part of the head alone? Then a tile must be a whole head.
fn partial(ctx: &Ctx<'_>, h: &Head, head_dim: u32) -> bool {
    h.rope.is_some_and(|(_, r)| 2 * ctx.graph.ropes()[r.index()].inv_freq.len() as u32 != head_dim)
}

fn emit(ctx: &Ctx<'_>, region: &Region) -> Result<Emission, CompileError> {
    let parts = parts(ctx, region);
    let n = ctx.bucket.tokens;
    let head_dim = ctx.graph.kv()[parts.layer as usize].head_dim;
    let cuts = cuts(ctx, &parts, head_dim, n);
    let Cut { subgroups, rows, .. } = cuts.used;
    let shape = Shape { head_dim, tile: cuts.used.tile(), subgroups, rows, flight: cuts.used.flight() };
    let sg = ctx.caps.subgroup_size;
    let formats: Vec<_> =
        parts.heads.iter().map(|h| ctx.graph.weight_of(h.weight).format.name.to_lowercase()).collect();
    let per_head = head_dim / shape.tile;
    let tiles = |h: &Head| ctx.graph.weight_of(h.weight).rows / shape.tile;
    let grid = [parts.heads.iter().map(tiles).sum(), 1, 1];
    let name = format!("matvec_qkv_{}_{n}", formats.join("_"));
    let lanes = subgroups * sg;
    let product = launch(name, lanes, sg, grid, |b, args| {
        let inputs = matvec::inputs(ctx, b, args, &parts.source, n);
        let slots = args.read("slots", Operand::Input(Input::Slots));
        let sums = b.shared("sums", Type::F32, n * shape.tile);
        let mut first = 0;
        let heads: Vec<Tile<'_, '_>> = parts
            .heads
            .iter()
            .map(|spec| {
                let args = head_args(args, spec, parts.layer);
                let tile = b.tile(0) - first;
                let inside = tile.lt(tiles(spec));
                let here = if first == 0 { inside } else { b.u32(first).le(b.tile(0)) & inside };
                first += tiles(spec);
                let slot = b.load(Type::U32, slots, b.u32(0), 4);
                Tile {
                    ctx,
                    b,
                    shape,
                    spec,
                    args,
                    here,
                    head: tile / per_head,
                    part: tile % per_head,
                    sums,
                    slots,
                    slot,
                }
            })
            .collect();
        let weights: Vec<_> = heads.iter().map(Tile::weight).collect();
        tables::fill(b, &weights, lanes);
        let early = EarlyTurn::load(&heads, lanes);
        for group in same_product(&heads) {
            let any = group.iter().map(|h| h.here).reduce(|a, b| a | b).expect("a head");
            b.if_(any, || products(&group, &inputs));
        }
        b.barrier();
        for head in &heads {
            b.if_(head.here, || (0..n).for_each(|row| head.finish(row, early.as_ref())));
        }
    });
    Ok(Emission { launches: vec![product], temps: vec![], cuts: Some(cuts) })
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

/// The work of a tile, if it is `here`: a part of one head.
struct Tile<'a, 'b> {
    ctx: &'a Ctx<'a>,
    b: &'b Builder,
    shape: Shape,
    spec: &'a Head,
    args: HeadArgs<'b>,
    here: Val<'b>,
    head: Val<'b>,
    part: Val<'b>,
    /// Shared `[row][tile]`: products.
    sums: u32,
    slots: Val<'b>,
    /// Slot of row 0, read before it is needed.
    slot: Val<'b>,
}

/// Are units at the same place from their rows? Planes after the first start where the weight's size says.
fn alike(a: &Weight, b: &Weight) -> bool {
    a.format == b.format && (a.format.planes.len() == 1 || a.rows == b.rows)
}

/// Heads whose products are the same code: one body, with less to fetch, selects the addresses.
fn same_product<'a, 'b>(heads: &'a [Tile<'a, 'b>]) -> Vec<Vec<&'a Tile<'a, 'b>>> {
    let mut groups: Vec<Vec<&Tile<'_, '_>>> = vec![];
    for head in heads {
        match groups.iter_mut().find(|g| alike(g[0].weight(), head.weight())) {
            Some(group) => group.push(head),
            None => groups.push(vec![head]),
        }
    }
    groups
}

/// The products of all rows of a tile into shared memory, for whichever head of the group is here.
fn products<'b>(group: &[&Tile<'_, 'b>], inputs: &Inputs<'b>) {
    let (b, shape, sums) = (group[0].b, group[0].shape, group[0].sums);
    let choose = |f: &dyn Fn(&Tile<'_, 'b>) -> Val<'b>| {
        group.iter().map(|t| (t.here, f(t))).reduce(|a, x| (x.0, x.0.select(x.1, a.1))).expect("a head").1
    };
    let base = choose(&|t| t.args.weight);
    let weight = group[0].weight();
    let turns = shape.tile / (shape.subgroups * shape.rows);
    let turn = |turn: Val<'b>| {
        let first = (turn * shape.subgroups + b.subgroup_id()) * shape.rows;
        let local: Vec<Val<'b>> = (0..shape.rows).map(|r| first + r).collect();
        let rows: Vec<WeightRow<'_, 'b>> = local
            .iter()
            .map(|i| WeightRow { weight, base, row: choose(&|t| t.head * shape.head_dim + t.element(*i)) })
            .collect();
        let values = dot::dot(b, group[0].ctx.caps.subgroup_size, shape.flight, &rows, inputs);
        b.if_(b.lane().eq(0), || {
            for (local, of_row) in local.iter().zip(&values) {
                for (j, value) in of_row.iter().enumerate() {
                    b.shared_store(sums, *local + j as u32 * shape.tile, *value);
                }
            }
        });
    };
    if turns == 1 {
        return turn(b.u32(0));
    }
    b.for_(b.u32(0), b.u32(turns), 1, &[], |i, _| {
        turn(i);
        vec![]
    });
}

/// Row 0's rotation of this lane's pair, read before the products: its latency hides behind the weights.
struct EarlyTurn<'b> {
    rope: RopeId,
    values: [Val<'b>; 2],
}

impl<'b> EarlyTurn<'b> {
    fn load(heads: &[Tile<'_, 'b>], lanes: u32) -> Option<EarlyTurn<'b>> {
        let head = heads.iter().find(|h| h.spec.rope.is_some())?;
        let (rope, table) = (head.spec.rope?.1, head.args.turns?);
        let (pairs, local) = head.pairs(rope);
        if local > lanes || heads.iter().any(|h| h.spec.rope.is_some_and(|r| r.1 != rope)) {
            return None;
        }
        let b = head.b;
        let part = heads.iter().fold(b.u32(0), |part, h| h.here.select(h.part, part));
        let pair = part * local + b.local_id().min(b.u32(local - 1));
        Some(EarlyTurn { rope, values: turn(b, table, b.u32(0), pairs, pair) })
    }
}

impl<'b> Tile<'_, 'b> {
    fn weight(&self) -> &Weight {
        self.ctx.graph.weight_of(self.spec.weight)
    }

    /// Rotary pairs of a head, and of this part.
    fn pairs(&self, rope: RopeId) -> (u32, u32) {
        let pairs = self.ctx.graph.ropes()[rope.index()].inv_freq.len() as u32;
        (pairs, if self.shape.tile == self.shape.head_dim { pairs } else { self.shape.tile / 2 })
    }

    /// Element of the head that is element `i` of the part: parts keep rotary pairs together.
    fn element(&self, i: Val<'b>) -> Val<'b> {
        let shape = self.shape;
        match self.spec.rope {
            Some((Pairing::Halves, _)) if shape.tile < shape.head_dim => {
                let half = shape.tile / 2;
                let second = i / half;
                self.part * half + i % half + second * (shape.head_dim / 2)
            }
            _ => self.part * shape.tile + i,
        }
    }

    /// Head norm, rotation and the store of one row.
    fn finish(&self, row: u32, early: Option<&EarlyTurn<'b>>) {
        let (b, shape) = (self.b, self.shape);
        let lanes = shape.subgroups * self.ctx.caps.subgroup_size;
        let factor = self.norm_factor(row);
        let value = |i: Val<'b>| {
            let v = self.sum(row, i);
            match (factor, self.args.norm) {
                (Some(f), Some(gain)) => v * f * b.load(Type::F32, gain, self.element(i) * 4, 4),
                _ => v,
            }
        };
        let (Some((pairing, rope)), Some(table)) = (self.spec.rope, self.args.turns) else {
            return for_items(b, lanes, shape.tile, |i| self.store(row, i, value(i)));
        };
        let whole = shape.tile == shape.head_dim;
        let (pairs, local_pairs) = self.pairs(rope);
        for_items(b, lanes, local_pairs, |p| {
            let elements = pair_elements(pairing, local_pairs, p);
            let [c, s] = match early {
                Some(early) if row == 0 && early.rope == rope => early.values,
                _ => turn(b, table, b.u32(row), pairs, self.part * local_pairs + p),
            };
            let [u, v] = elements.map(value);
            self.store(row, elements[0], u * c - v * s);
            self.store(row, elements[1], u * s + v * c);
        });
        if whole && 2 * pairs < shape.head_dim {
            for_items(b, lanes, shape.head_dim - 2 * pairs, |i| {
                self.store(row, i + 2 * pairs, value(i + 2 * pairs));
            });
        }
    }

    /// 1 / √(mean x² + eps) of a row of the head, if it has a norm: then the tile is the whole head.
    fn norm_factor(&self, row: u32) -> Option<Val<'b>> {
        let (b, shape) = (self.b, self.shape);
        self.spec.norm.map(|(_, eps)| {
            let sum = b.for_(b.lane(), b.u32(shape.tile), self.ctx.caps.subgroup_size, &[b.f32(0.0)], |i, acc| {
                let v = self.sum(row, i);
                vec![b.fma(v, v, acc[0])]
            });
            (sum[0].subgroup_add() * (1.0 / shape.head_dim as f32) + eps).inv_sqrt()
        })
    }

    /// Product plus bias of element `i` of the part.
    fn sum(&self, row: u32, i: Val<'b>) -> Val<'b> {
        let (b, shape) = (self.b, self.shape);
        let sum = b.shared_load(self.sums, i + row * shape.tile);
        match self.args.bias {
            Some(bias) => sum + b.load(Type::F32, bias, (self.head * shape.head_dim + self.element(i)) * 4, 4),
            None => sum,
        }
    }

    /// Stores element `i` of the part: into q, or at the row's slot of the cache if it has one.
    fn store(&self, row: u32, i: Val<'b>, v: Val<'b>) {
        let (b, ctx, head_dim) = (self.b, self.ctx, self.shape.head_dim);
        let e = self.element(i);
        match self.spec.dest {
            Dest::Q(q) => b.store(self.args.dest, (self.head * head_dim + e + row * ctx.cols(q)) * 4, v, 4),
            Dest::K | Dest::V => {
                let slot = if row == 0 { self.slot } else { b.load(Type::U32, self.slots, b.u32(row * 4), 4) };
                let heads = ctx.graph.weight_of(self.spec.weight).rows / head_dim;
                let types = ctx.kv.types;
                let ty = if matches!(self.spec.dest, Dest::K) { types.k } else { types.v };
                b.if_(slot.ne(NO_SLOT), || {
                    let cache = Cache { base: self.args.dest, ty, heads, head_dim };
                    cache.store(b, cache.line_of_slot(self.head, slot), e, v);
                });
            }
        }
    }
}
