//! Attention over paged K and V, row by row: the context cut into splits, which the last of them merges.
//!
//! ```text
//! tile (split, part of a KV head's query heads, row):
//!     team of lanes: tokens t, t + teams, …   s_g = scale · q_g · K_t ─► running (max, sum, Σ p·V) per query head
//!     teams ─► one (max, sum, Σ p·V)
//! one split: Σ p·V / sum is the answer;  several: they go to scratch, and the tile that comes last combines them in order
//! the answer [─► quantize | halve]
//! ```
//!
//! The query heads that share a KV head are computed together, so K and V are read once. Teams never wait for each
//! other before the end: what a step costs is latency, and every token's K and V are asked for at once. Split
//! boundaries are fixed positions: the same tokens give the same sums in any batch and in any context bucket. Tiles of
//! splits in which a row sees nothing end at once, so that a batch costs what its sequences are long, not what its bucket is.

use super::args::{Args, launch};
use super::kv::Cache;
use super::matvec::shared_quad;
use super::quantize::{self, Blocks};
use super::rows::for_items;
use super::{arrival, halve};
use crate::select::Finder;
use crate::template::{Ctx, Emission, Operand, Template};
use crate::{CompileError, Region};
use zinc_ir::graph::{AttentionSpec, NodeId, Op};
use zinc_ir::kernel::{Builder, Type, Val};
use zinc_ir::plan::{Bucket, COUNTERS, Input, KvTypes, PAGE_TOKENS};
use zinc_ir::quant::UNIT;

pub(super) static ATTENTION: Template = Template {
    name: "attention",
    summary: "softmax(q·Kᵀ)·V over cache pages, split over the context and merged",
    fused: false,
    matches: match_attention,
    emit,
};

fn match_attention(f: &Finder<'_>, node: NodeId) -> Option<Vec<NodeId>> {
    let spec = |id| match *f.op(id) {
        Op::Attention { spec, .. } => Some(spec),
        _ => None,
    };
    if let Some((value, quantized)) = quantize::ending(f, node)
        && let Some(spec) = spec(value)
        && f.private(value, &[quantized])
        && spec.head_dim.is_multiple_of(UNIT)
        && (spec.heads / spec.kv_heads).is_multiple_of(heads_at_once(spec.heads / spec.kv_heads))
    {
        return Some(vec![value, quantized]);
    }
    if let Some((value, halves)) = halve::ending(f, node)
        && spec(value).is_some()
        && f.private(value, &[halves])
    {
        return Some(vec![value, halves]);
    }
    spec(node).map(|_| vec![node])
}

/// Most rows of a batch that go row by row.
const MOST_ROWS: u32 = 256;

/// Do rows go one by one, and not in tiles? Rows of one sequence share K and V in tiles; but where a step has as many
/// sequences as rows, there is nothing to share.
pub(super) fn row_by_row(ctx: &Ctx<'_>) -> bool {
    let Bucket { tokens, sequences, .. } = ctx.bucket;
    let apart = sequences == tokens && tokens <= MOST_ROWS;
    (tokens <= super::MATVEC_ROWS || apart) && !ctx.choices.invariant
}

/// Tokens per split.
const SPLIT: u32 = 256;
/// Most bytes that the splits of a batch hand over.
const MOST_PARTIAL_BYTES: u64 = 256 << 20;
/// The score of a token that is not there: finite, since drivers need not honour infinities.
pub(super) const NONE: f32 = -1e30;
/// Splits whose results a lane of the last tile loads at once.
const MERGED: u32 = 8;
/// Query heads that a lane has registers for.
const MOST_HEADS: u32 = 6;

/// How many tiles of [`zinc_ir::device::Caps::parallel_tiles`] make one compute unit's share.
const TILES_PER_UNIT: u32 = 8;

/// Most query heads per tile out of a group that shares a KV head.
fn heads_at_once(group: u32) -> u32 {
    group.div_ceil(group.div_ceil(MOST_HEADS))
}

/// The geometry of one kernel.
#[derive(Clone, Copy)]
struct Shape {
    spec: AttentionSpec,
    /// Query heads per KV head.
    group: u32,
    /// Query heads per tile.
    heads: u32,
    /// Lanes that share a token.
    team: u32,
    /// Elements of a head per lane.
    each: u32,
    /// Tokens a team takes at once.
    at_once: u32,
    /// Lanes per workgroup.
    lanes: u32,
    subgroup: u32,
    splits: u32,
    context: u32,
    max_shared: u32,
}

fn shape(ctx: &Ctx<'_>, node: NodeId, spec: AttentionSpec) -> Result<Shape, CompileError> {
    if !spec.head_dim.is_multiple_of(8) {
        return Err(ctx.unsupported(node, format!("head size {} is not a multiple of 8", spec.head_dim)));
    }
    let subgroup = ctx.caps.subgroup_size;
    let mut team = 1;
    while team * 2 <= subgroup && spec.head_dim.is_multiple_of(team * 2 * 8) {
        team *= 2;
    }
    let each = spec.head_dim / team;
    let rows = ctx.bucket.tokens;
    let group = spec.heads / spec.kv_heads;
    // Splits are counted for each row and part of a KV head's group, at most as many as it has heads.
    let countable = rows as u64 * spec.heads as u64 <= COUNTERS as u64;
    let splits = ctx.bucket.context.div_ceil(SPLIT);
    // With so many rows and splits that their results would fill the memory, the rows alone fill the device.
    let bytes = rows as u64 * (spec.heads * (spec.head_dim + 2)) as u64 * splits as u64 * 4;
    let few = rows <= super::MATVEC_ROWS || (countable && bytes <= MOST_PARTIAL_BYTES);
    let splits = if row_by_row(ctx) && few { splits } else { 1 };
    // Fewer heads a tile are less work one after the other; K and V are then read again, from the cache. That pays
    // while compute units would have nothing to do.
    let mut heads = heads_at_once(group);
    let tiles = |heads: u32| splits * spec.kv_heads * group.div_ceil(heads) * rows;
    while heads > 1 && tiles(heads) * TILES_PER_UNIT < ctx.caps.parallel_tiles {
        heads = (1..heads).rev().find(|h| group.is_multiple_of(*h)).unwrap_or(1);
    }
    // A page's worth of teams, as far as one head's sums of all subgroups fit the shared memory; the same for all
    // batches, so that sums are.
    let mut lanes = ctx.lanes((PAGE_TOKENS * team).min(512));
    let bytes = |lanes: u32| (lanes / subgroup * (spec.head_dim + 2) + heads_at_once(group) * spec.head_dim) * 4;
    while lanes / 2 >= subgroup && bytes(lanes) > ctx.caps.max_shared_bytes {
        lanes = lanes / 2 / subgroup * subgroup;
    }
    Ok(Shape {
        spec,
        group,
        heads,
        team,
        each,
        at_once: if each <= 8 { 2 } else { 1 },
        lanes,
        subgroup,
        splits,
        context: ctx.bucket.context,
        max_shared: ctx.caps.max_shared_bytes,
    })
}

impl Shape {
    fn teams(&self) -> u32 {
        self.lanes / self.team
    }
    fn subgroups(&self) -> u32 {
        self.lanes / self.subgroup
    }
    /// Tiles per KV head.
    fn parts(&self) -> u32 {
        self.group.div_ceil(self.heads)
    }
    /// Heads whose sums of all subgroups fit the shared memory together.
    fn gathered(&self) -> u32 {
        let per_head = self.subgroups() * (self.spec.head_dim + 2) * 4;
        let values = self.heads * self.spec.head_dim * 4;
        (self.max_shared.saturating_sub(values + 1024) / per_head).clamp(1, self.heads)
    }
}

/// Where the answer goes.
#[derive(Clone, Copy)]
struct Answer<'b> {
    /// F32 rows.
    value: Option<Val<'b>>,
    /// The quantizing node, its rows.
    quantized: Option<(NodeId, Val<'b>)>,
    /// The rows as halves.
    halves: Option<Val<'b>>,
}

fn answer<'b>(ctx: &Ctx<'_>, args: &Args<'b>, value: NodeId, region: &Region) -> Answer<'b> {
    let ending = region.nodes.iter().copied().find(|n| *n != value);
    let halves = ending.filter(|n| ctx.halves(*n));
    let quantized = ending.filter(|_| halves.is_none());
    Answer {
        value: region.gives.contains(&value).then(|| args.write("y", Operand::Value(value))),
        quantized: quantized.map(|q| (q, args.write("quantized", Operand::Value(q)))),
        halves: halves.map(|h| args.write("halves", Operand::Value(h))),
    }
}

fn emit(ctx: &Ctx<'_>, region: &Region) -> Result<Emission, CompileError> {
    // An attention, perhaps with its rows in another form behind it.
    let node = region.nodes[0];
    let (q, layer, spec) = operands(ctx, node)?;
    let s = shape(ctx, node, spec)?;
    let rows = ctx.rows(node);
    let name = format!("attention_{}x{}x{}_{}_{}", spec.heads, spec.kv_heads, spec.head_dim, kv_words(ctx), s.splits);
    let grid = [s.splits, spec.kv_heads * s.parts(), rows];
    let counters = rows * spec.kv_heads * s.parts();
    if s.splits > 1 && counters > COUNTERS {
        return Err(ctx.unsupported(node, format!("{} heads of {rows} rows are more than can be counted", spec.heads)));
    }
    let product = launch(name.to_lowercase(), s.lanes, s.subgroup, grid, |b, args| {
        let io = Io::read(ctx, args, q, layer);
        let parts = (s.splits > 1).then(|| Parts {
            partial: args.write_read("partial", Operand::Temp(0)),
            counters: args.read_write("counters", Operand::Counters(counters)),
        });
        body(ctx, b, &s, &io, parts, answer(ctx, args, node, region));
    });
    let partial = rows as u64 * (spec.heads * s.splits * (spec.head_dim + 2)) as u64 * 4;
    let temps = if s.splits > 1 { vec![partial] } else { vec![] };
    Ok(Emission { launches: vec![product], temps, cuts: None })
}

/// What several splits need to become one answer.
#[derive(Clone, Copy)]
struct Parts<'b> {
    /// Results of splits, see [`partial_at`].
    partial: Val<'b>,
    counters: Val<'b>,
}

/// The query, layer and sizes of an attention over a cache.
pub(super) fn operands(ctx: &Ctx<'_>, node: NodeId) -> Result<(NodeId, u32, AttentionSpec), CompileError> {
    let Op::Attention { q, append, spec } = *ctx.graph.op(node) else {
        return Err(ctx.unsupported(node, "pattern"));
    };
    let Op::KvAppend { layer, .. } = *ctx.graph.op(append) else {
        return Err(ctx.unsupported(node, "its append is no kv_append"));
    };
    Ok((q, layer, spec))
}

/// What an attention kernel reads.
pub(super) struct Io<'b> {
    pub q: Val<'b>,
    pub visible: Val<'b>,
    pub sequence: Val<'b>,
    pub pages: Val<'b>,
    pub k: Val<'b>,
    pub v: Val<'b>,
    pub types: KvTypes,
}

impl<'b> Io<'b> {
    pub(super) fn read(ctx: &Ctx<'_>, args: &Args<'b>, q: NodeId, layer: u32) -> Io<'b> {
        Io {
            types: ctx.kv.types,
            q: args.read("q", Operand::Value(q)),
            visible: args.read("visible", Operand::Input(Input::Visible)),
            sequence: args.read("sequence", Operand::Input(Input::Sequence)),
            pages: args.read("pages", Operand::Input(Input::Pages)),
            k: args.read("k_cache", Operand::KvK(layer)),
            v: args.read("v_cache", Operand::KvV(layer)),
        }
    }
}

impl<'b> Io<'b> {
    pub(super) fn k(&self, spec: &AttentionSpec) -> Cache<'b> {
        Cache { base: self.k, ty: self.types.k, heads: spec.kv_heads, head_dim: spec.head_dim }
    }
    pub(super) fn v(&self, spec: &AttentionSpec) -> Cache<'b> {
        Cache { base: self.v, ty: self.types.v, heads: spec.kv_heads, head_dim: spec.head_dim }
    }
}

/// Types of K and V for a kernel's name.
pub(super) fn kv_words(ctx: &Ctx<'_>) -> String {
    ctx.kv.types.to_string().replace('/', "_")
}

/// The first token that a row sees whose last is `visible - 1`.
pub(super) fn lowest<'b>(b: &'b Builder, spec: &AttentionSpec, visible: Val<'b>) -> Val<'b> {
    match spec.window {
        Some(w) => visible.gt(w).select(visible - w, b.u32(0)),
        None => b.u32(0),
    }
}

/// Word offset of the partial result of (row, head, split): accumulators, then maximum and sum.
fn partial_at<'b>(s: &Shape, row: Val<'b>, head: Val<'b>, split: Val<'b>) -> Val<'b> {
    ((row * s.spec.heads + head) * s.splits + split) * (s.spec.head_dim + 2)
}

fn body<'b>(ctx: &Ctx<'_>, b: &'b Builder, s: &Shape, io: &Io<'b>, parts: Option<Parts<'b>>, answer: Answer<'b>) {
    let (split, part, row) = (b.tile(0), b.tile(1), b.tile(2));
    let visible = b.load(Type::U32, io.visible, row * 4, 4);
    let sequence = b.load(Type::U32, io.sequence, row * 4, 4);
    let table = sequence * (s.context / PAGE_TOKENS);
    let lowest = lowest(b, &s.spec, visible);
    let per_split = if s.splits == 1 { s.context } else { SPLIT };
    let start = (split * per_split).max(lowest / PAGE_TOKENS * PAGE_TOKENS);
    let end = (split * per_split + per_split).min(visible);
    // The first split takes part for a row that sees nothing: there has to be an answer.
    let used = [lowest / per_split, (visible.max(b.u32(1)) - 1) / per_split];
    let (within, team) = (b.local_id() % s.team, b.local_id() / s.team);
    let kv_head = part / s.parts();
    let first = (part % s.parts()) * s.heads;
    let tile = Tile { b, s, io, row, kv_head, first, table, within, team, range: [lowest, end], used };
    let run = || {
        let q = tile.load_q();
        let quads = (s.heads * s.each / 4) as usize;
        let mut init: Vec<Val<'b>> = vec![b.f32x4(0.0); quads];
        init.extend(vec![b.f32(NONE); s.heads as usize]);
        init.extend(vec![b.f32(0.0); s.heads as usize]);
        let state = b.for_(start, end, s.teams() * s.at_once, &init, |base, state| tile.fold(&q, base, state));
        let state = tile.over_subgroup(state);
        tile.finish(ctx, &state, split, parts, answer);
    };
    match s.splits {
        1 => run(),
        _ => b.if_(split.ge(used[0]) & split.le(used[1]), run),
    }
}

/// One (row, part of a KV head's group), and this lane's place in it.
struct Tile<'a, 'b> {
    b: &'b Builder,
    s: &'a Shape,
    io: &'a Io<'b>,
    row: Val<'b>,
    kv_head: Val<'b>,
    /// First query head within the group.
    first: Val<'b>,
    /// First entry of the row's page table.
    table: Val<'b>,
    /// Lane within its team.
    within: Val<'b>,
    team: Val<'b>,
    /// Tokens from the first on and below the second are visible here.
    range: [Val<'b>; 2],
    /// First and last split in which the row sees something.
    used: [Val<'b>; 2],
}

impl<'b> Tile<'_, 'b> {
    /// Query head `g` of the tile. The last tile of a group may be short: see [`Tile::if_exists`].
    fn head(&self, g: Val<'b>) -> Val<'b> {
        self.kv_head * self.s.group + self.first + g
    }

    /// Page of token `t`, and its place there.
    fn token(&self, t: Val<'b>) -> [Val<'b>; 2] {
        let page = self.b.load_at(Type::U32, self.io.pages, (self.table + t / PAGE_TOKENS) * 4, 0, 4, true);
        [page, t % PAGE_TOKENS]
    }

    /// This lane's part of every query head of the tile, times the scale.
    fn load_q(&self) -> Vec<Vec<Val<'b>>> {
        let (b, s) = (self.b, self.s);
        (0..s.heads)
            .map(|g| {
                // Surplus heads of a short tile repeat the group's last.
                let local = (self.first + g).min(b.u32(s.group - 1));
                let head =
                    self.kv_head * s.group + if s.group.is_multiple_of(s.heads) { self.first + g } else { local };
                let at = (self.row * s.spec.heads + head) * s.spec.head_dim + self.within * s.each;
                let quad = |i| b.load_at(Type::F32X4, self.io.q, at * 4, i * 16, 16, true) * s.spec.scale;
                (0..s.each / 4).map(quad).collect()
            })
            .collect()
    }

    /// This lane's elements of the K or V of a token.
    fn load_kv(&self, cache: Cache<'b>, [page, token]: [Val<'b>; 2]) -> Vec<Val<'b>> {
        let line = cache.line(page, self.kv_head, token);
        cache.load(self.b, line, self.within * self.s.each, self.s.each)
    }

    /// Folds the team's tokens from `base` on into (Σ p·V, maxima, sums).
    fn fold(&self, q: &[Vec<Val<'b>>], base: Val<'b>, state: &[Val<'b>]) -> Vec<Val<'b>> {
        let (b, s) = (self.b, self.s);
        let (heads, quads) = (s.heads as usize, (s.each / 4) as usize);
        let (acc, rest) = state.split_at(heads * quads);
        let (maxima, sums) = rest.split_at(heads);
        let [lowest, end] = self.range;
        let tokens: Vec<Val<'b>> = (0..s.at_once).map(|u| base + self.team + u * s.teams()).collect();
        let places: Vec<[Val<'b>; 2]> = tokens.iter().map(|t| self.token(t.min(end - 1))).collect();
        let seen: Vec<Val<'b>> = tokens.iter().map(|t| t.lt(end) & t.ge(lowest)).collect();
        let keys: Vec<Vec<Val<'b>>> = places.iter().map(|at| self.load_kv(self.io.k(&s.spec), *at)).collect();
        let values: Vec<Vec<Val<'b>>> = places.iter().map(|at| self.load_kv(self.io.v(&s.spec), *at)).collect();
        let (mut next, mut next_max, mut next_sum) = (vec![], vec![], vec![]);
        for g in 0..heads {
            let scores: Vec<Val<'b>> =
                keys.iter().zip(&seen).map(|(k, seen)| seen.select(self.score(&q[g], k), b.f32(NONE))).collect();
            let max = scores.iter().fold(maxima[g], |m, s| m.max(*s));
            let keep = (maxima[g] - max).exp();
            let shares: Vec<Val<'b>> =
                scores.iter().zip(&seen).map(|(s, seen)| seen.select((*s - max).exp(), b.f32(0.0))).collect();
            next_sum.push(shares.iter().fold(sums[g] * keep, |sum, p| sum + *p));
            next_max.push(max);
            for i in 0..quads {
                let kept = acc[g * quads + i] * keep.splat(4);
                next.push(shares.iter().zip(&values).fold(kept, |a, (p, v)| b.fma(p.splat(4), v[i], a)));
            }
        }
        next.extend(next_max);
        next.extend(next_sum);
        next
    }

    /// q · k over the team.
    fn score(&self, q: &[Val<'b>], k: &[Val<'b>]) -> Val<'b> {
        let mut sum = q[0] * k[0];
        for i in 1..k.len() {
            sum = self.b.fma(q[i], k[i], sum);
        }
        let (mut sum, mut step) = (sum.sum_lanes(), 1);
        while step < self.s.team {
            sum = sum + sum.shuffle_xor(step);
            step *= 2;
        }
        sum
    }

    /// Combines the states of a subgroup's teams: afterwards all have the same.
    fn over_subgroup(&self, state: Vec<Val<'b>>) -> Vec<Val<'b>> {
        let s = self.s;
        let (heads, quads) = (s.heads as usize, (s.each / 4) as usize);
        let (mut state, mut step) = (state, s.team);
        while step < s.subgroup {
            let (acc, rest) = state.split_at(heads * quads);
            let (maxima, sums) = rest.split_at(heads);
            let (mut next, mut next_max, mut next_sum) = (vec![], vec![], vec![]);
            for g in 0..heads {
                let max = maxima[g].max(maxima[g].shuffle_xor(step));
                let keep = (maxima[g] - max).exp();
                let sum = sums[g] * keep;
                next_sum.push(sum + sum.shuffle_xor(step));
                next_max.push(max);
                for quad in &acc[g * quads..(g + 1) * quads] {
                    let kept = *quad * keep.splat(4);
                    let lanes: Vec<Val<'b>> = (0..4).map(|i| kept.lane(i) + kept.lane(i).shuffle_xor(step)).collect();
                    next.push(self.b.compose(&lanes));
                }
            }
            next.extend(next_max);
            next.extend(next_sum);
            state = next;
            step *= 2;
        }
        state
    }

    /// Combines the subgroups and stores the answer, or the partial result and in the last tile the answer.
    fn finish(&self, ctx: &Ctx<'_>, state: &[Val<'b>], split: Val<'b>, parts: Option<Parts<'b>>, answer: Answer<'b>) {
        let (b, s) = (self.b, self.s);
        let values = answer.quantized.map(|_| b.shared("values", Type::F32, s.heads * s.spec.head_dim));
        let Some(Parts { partial, counters }) = parts else {
            self.gather(state, |g, e, [_, sum, total]| {
                self.put(answer, values, g, e, sum, total);
            });
            return self.quantize(ctx, answer, values);
        };
        let dim = s.spec.head_dim;
        self.gather(state, |g, e, [max, sum, total]| {
            let at = partial_at(s, self.row, self.head(g), split);
            b.store(partial, (at + e) * 4, total, 4);
            b.if_(e.eq(0), || {
                b.store(partial, (at + dim) * 4, max, 4);
                b.store(partial, (at + dim + 1) * 4, sum, 4);
            });
        });
        let counter = self.row * (s.spec.kv_heads * s.parts()) + b.tile(1);
        arrival::last(b, counters, counter, self.used[1] - self.used[0] + 1, || {
            for_items(b, s.lanes, s.heads * dim, |i| {
                let (g, e) = (i / dim, i % dim);
                self.if_exists(g, || {
                    let [sum, total] = self.merge(partial, g, e);
                    self.put(answer, values, g, e, sum, total);
                });
            });
            self.quantize(ctx, answer, values);
        });
    }

    /// Does query head `g` of the tile exist? Asked only where the last tile of a group may be short.
    fn if_exists(&self, g: Val<'b>, then: impl FnOnce()) {
        match self.s.group.is_multiple_of(self.s.heads) {
            true => then(),
            false => self.b.if_((self.first + g).lt(self.s.group), then),
        }
    }

    /// Combines the subgroups; `each` takes (head of the tile, element, [maximum, sum, Σ p·V]) in some lane.
    fn gather(&self, state: &[Val<'b>], each: impl Fn(Val<'b>, Val<'b>, [Val<'b>; 3])) {
        let (b, s) = (self.b, self.s);
        let (dim, at_once) = (s.spec.head_dim, s.gathered());
        let quads = (s.each / 4) as usize;
        let rest = &state[s.heads as usize * quads..];
        let (maxima, sums) = rest.split_at(s.heads as usize);
        let gather = b.shared("gather", Type::F32, s.subgroups() * at_once * dim);
        let notes = b.shared("notes", Type::F32, s.subgroups() * at_once * 2);
        for from in (0..s.heads).step_by(at_once as usize) {
            let count = at_once.min(s.heads - from);
            if from > 0 {
                b.barrier();
            }
            // The first team of each subgroup speaks for it.
            b.if_(b.lane().lt(s.team), || {
                for g in 0..count {
                    let place = b.subgroup_id() * at_once + g;
                    for i in 0..quads {
                        let quad = state[(from + g) as usize * quads + i];
                        for e in 0..4 {
                            let at = place * dim + self.within * s.each + (i as u32 * 4 + e);
                            b.shared_store(gather, at, quad.lane(e as u8));
                        }
                    }
                    b.if_(b.lane().eq(0), || {
                        b.shared_store(notes, place * 2, maxima[(from + g) as usize]);
                        b.shared_store(notes, place * 2 + 1, sums[(from + g) as usize]);
                    });
                }
            });
            b.barrier();
            for_items(b, s.lanes, count * dim, |i| {
                let (g, e) = (i / dim, i % dim);
                self.if_exists(g + from, || each(g + from, e, self.combine(gather, notes, at_once, g, e)));
            });
        }
    }

    /// Stores the answer of element `e` of head `g` of the tile: `total` / `sum`.
    fn put(&self, answer: Answer<'b>, values: Option<u32>, g: Val<'b>, e: Val<'b>, sum: Val<'b>, total: Val<'b>) {
        let (b, s) = (self.b, self.s);
        // No visible token (padding): 0, not 0/0.
        let value = sum.gt(0.0).select(total / sum, b.f32(0.0));
        let at = (self.row * s.spec.heads + self.head(g)) * s.spec.head_dim + e;
        if let Some(y) = answer.value {
            b.store(y, at * 4, value, 4);
        }
        if let Some(halves) = answer.halves {
            halve::store(b, halves, at, value);
        }
        if let Some(values) = values {
            b.shared_store(values, g * s.spec.head_dim + e, value);
        }
    }

    /// Quantizes the answer, if that is asked for.
    fn quantize(&self, ctx: &Ctx<'_>, answer: Answer<'b>, values: Option<u32>) {
        let (b, s) = (self.b, self.s);
        if let (Some((node, base)), Some(values)) = (answer.quantized, values) {
            b.barrier();
            let first = (self.kv_head * s.group + self.first) * s.spec.head_dim;
            let run = (first, s.heads * s.spec.head_dim);
            Blocks::new(ctx, b, node, (base, None), run, s.lanes)
                .store(self.row, |column| shared_quad(b, values, column));
        }
    }

    /// Sum and Σ p·V of element `e` of head `g` over the used splits, in order, by groups at fixed places.
    fn merge(&self, partial: Val<'b>, g: Val<'b>, e: Val<'b>) -> [Val<'b>; 2] {
        let (b, s) = (self.b, self.s);
        let (dim, head) = (s.spec.head_dim, self.head(g));
        let init = [b.f32(NONE), b.f32(0.0), b.f32(0.0)];
        let [first, last] = self.used;
        let state = b.for_(first / MERGED * MERGED, last + 1, MERGED, &init, |base, state| {
            let place = |i: u32| ((base + i).max(first).min(last), (base + i).ge(first) & (base + i).le(last));
            let splits = (0..MERGED).map(place);
            let read = |at: Val<'b>| b.load_at(Type::F32, partial, at * 4, 0, 4, false);
            let of_split = |(split, real): (Val<'b>, Val<'b>)| {
                let at = partial_at(s, self.row, head, split);
                (real.select(read(at + dim), b.f32(NONE)), read(at + (dim + 1)), read(at + e))
            };
            let loaded: Vec<_> = splits.map(of_split).collect();
            let max = loaded.iter().fold(state[0], |max, split| max.max(split.0));
            let keep = (state[0] - max).exp();
            let (mut sum, mut total) = (state[1] * keep, state[2] * keep);
            for (own, of_sum, of_total) in loaded {
                // One that is none weighs exactly nothing, whatever was read in its place.
                let weight = (own - max).exp();
                sum = b.fma(weight, of_sum, sum);
                total = b.fma(weight, of_total, total);
            }
            vec![max, sum, total]
        });
        [state[1], state[2]]
    }

    /// [maximum, sum, Σ p·V] of element `e` of gathered head `g` over the subgroups.
    fn combine(&self, gather: u32, notes: u32, heads: u32, g: Val<'b>, e: Val<'b>) -> [Val<'b>; 3] {
        let (b, s) = (self.b, self.s);
        let places: Vec<Val<'b>> = (0..s.subgroups()).map(|i| g + i * heads).collect();
        let maxima: Vec<Val<'b>> = places.iter().map(|p| b.shared_load(notes, *p * 2)).collect();
        let max = maxima.iter().copied().reduce(Val::max).expect("a subgroup");
        let (mut sum, mut total) = (b.f32(0.0), b.f32(0.0));
        for (place, own) in places.iter().zip(&maxima) {
            let weight = (*own - max).exp();
            sum = b.fma(weight, b.shared_load(notes, *place * 2 + 1), sum);
            total = b.fma(weight, b.shared_load(gather, *place * s.spec.head_dim + e), total);
        }
        [max, sum, total]
    }
}
