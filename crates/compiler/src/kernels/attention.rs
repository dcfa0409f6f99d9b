//! Attention over paged K and V: the context cut into splits, and a merge of the splits.
//!
//! ```text
//! tile (row, KV head, split): for each run of CHUNK tokens
//!     scores[g][t] = scale · q_g · K_t   ─►   running max and sum   ─►   acc_g += Σ p_t · V_t
//! one split: acc / sum is the answer;  several: (acc, max, sum) go to scratch and `merge` combines them in order
//! ```
//!
//! The `g` query heads that share a KV head are computed together, so K and V are read once. A token's row of K is
//! shared by `team` lanes (16-byte loads each), teams take tokens in turn. Chunk boundaries are fixed positions: the
//! same tokens give the same partial sums in any batch and in any context bucket.

use super::args::{Args, launch};
use super::rows::for_items;
use crate::template::{Ctx, Emission, Operand, Template};
use crate::{CompileError, Region};
use zinc_ir::graph::{AttentionSpec, NodeId, Op};
use zinc_ir::kernel::{Builder, Scalar, Type, Val};
use zinc_ir::plan::{Input, KvType, PAGE_TOKENS};

pub(super) static ATTENTION: Template = Template {
    name: "attention",
    summary: "softmax(q·Kᵀ)·V over cache pages, split over the context and merged",
    fused: false,
    matches: |f, node| matches!(f.op(node), Op::Attention { .. }).then(|| vec![node]),
    emit,
};

/// Tokens between two updates of the running maximum; a split is a whole number of chunks.
const CHUNK: u32 = 128;
/// The score of a token that is not there: finite, since drivers need not honour infinities.
pub(super) const NONE: f32 = -1e30;
/// Chunks per split when the context is split.
const SPLIT_CHUNKS: u32 = 2;

/// The geometry of one kernel.
#[derive(Clone, Copy)]
struct Shape {
    spec: AttentionSpec,
    kv: KvType,
    /// Query heads per KV head.
    group: u32,
    /// Lanes that share a token.
    team: u32,
    /// Elements of a head per lane.
    each: u32,
    /// Lanes per workgroup.
    lanes: u32,
    subgroup: u32,
    splits: u32,
    context: u32,
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
    let lanes = ctx.lanes(128);
    let rows = ctx.bucket.tokens;
    let split = SPLIT_CHUNKS * CHUNK;
    let splits = if rows > super::MATVEC_ROWS { 1 } else { ctx.bucket.context.div_ceil(split) };
    let group = spec.heads / spec.kv_heads;
    let each = spec.head_dim / team;
    Ok(Shape { spec, kv: ctx.kv.ty, group, team, each, lanes, subgroup, splits, context: ctx.bucket.context })
}

fn emit(ctx: &Ctx<'_>, region: &Region) -> Result<Emission, CompileError> {
    let node = region.last();
    let (q, layer, spec) = operands(ctx, node)?;
    let s = shape(ctx, node, spec)?;
    let rows = ctx.rows(node);
    let name = format!("attention_{}x{}x{}_{:?}_{}", spec.heads, spec.kv_heads, spec.head_dim, s.kv, s.splits);
    let grid = [s.splits, spec.kv_heads, rows];
    let partial = launch(name.to_lowercase(), s.lanes, s.subgroup, grid, |b, args| {
        let out = if s.splits == 1 { ("y", Operand::Value(node)) } else { ("partial", Operand::Temp(0)) };
        let io = Io::declare(args, q, layer, out);
        body(b, &s, &io);
    });
    if s.splits == 1 {
        return Ok(Emission { launches: vec![partial], temps: vec![] });
    }
    let partial_bytes = rows as u64 * (spec.heads * s.splits * (spec.head_dim + 2)) as u64 * 4;
    Ok(Emission { launches: vec![partial, merge(node, &s, rows)], temps: vec![partial_bytes] })
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

/// What an attention kernel reads and writes.
pub(super) struct Io<'b> {
    pub q: Val<'b>,
    pub visible: Val<'b>,
    pub sequence: Val<'b>,
    pub pages: Val<'b>,
    pub k: Val<'b>,
    pub v: Val<'b>,
    pub out: Val<'b>,
}

impl<'b> Io<'b> {
    pub(super) fn declare(args: &Args<'b>, q: NodeId, layer: u32, out: (&str, Operand)) -> Io<'b> {
        Io {
            q: args.read("q", Operand::Value(q)),
            visible: args.read("visible", Operand::Input(Input::Visible)),
            sequence: args.read("sequence", Operand::Input(Input::Sequence)),
            pages: args.read("pages", Operand::Input(Input::Pages)),
            k: args.read("k_cache", Operand::KvK(layer)),
            v: args.read("v_cache", Operand::KvV(layer)),
            out: args.write(out.0, out.1),
        }
    }
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

fn body<'b>(b: &'b Builder, s: &Shape, io: &Io<'b>) {
    let (split, kv_head, row) = (b.tile(0), b.tile(1), b.tile(2));
    let scores = b.shared("scores", Type::F32, s.group * CHUNK);
    let gather = b.shared("gather", Type::F32, s.lanes / s.team * s.spec.head_dim);
    let visible = b.load(Type::U32, io.visible, row * 4, 4);
    let sequence = b.load(Type::U32, io.sequence, row * 4, 4);
    let table = sequence * (s.context / PAGE_TOKENS);
    let lowest = lowest(b, &s.spec, visible);
    let per_split = if s.splits == 1 { s.context.next_multiple_of(CHUNK) } else { SPLIT_CHUNKS * CHUNK };
    let start = (split * per_split).max(lowest / CHUNK * CHUNK);
    let end = (split * per_split + per_split).min(visible);
    let (within, team) = (b.local_id() % s.team, b.local_id() / s.team);
    let tile = Tile { b, s, io, row, kv_head, split, table, within, team, scores, gather };
    let q = tile.load_q();
    let group = s.group as usize;
    let quads = (s.each / 4) as usize;
    let mut init: Vec<Val<'b>> = vec![b.f32x4(0.0); group * quads];
    init.extend(vec![b.f32(NONE); group]);
    init.extend(vec![b.f32(0.0); group]);
    let state = b.for_(start, end, CHUNK, &init, |chunk, state| {
        let last = (chunk + CHUNK).min(end);
        let range = Range { chunk, last, lowest };
        tile.score(&q, range);
        b.barrier();
        let next = tile.fold(range, state);
        b.barrier();
        next
    });
    tile.finish(&state);
}

/// Tokens `chunk .. last` of a chunk, of which those from `lowest` on are visible.
#[derive(Clone, Copy)]
struct Range<'b> {
    chunk: Val<'b>,
    last: Val<'b>,
    lowest: Val<'b>,
}

/// One (row, KV head, split), and this lane's place in it.
struct Tile<'a, 'b> {
    b: &'b Builder,
    s: &'a Shape,
    io: &'a Io<'b>,
    row: Val<'b>,
    kv_head: Val<'b>,
    split: Val<'b>,
    /// First entry of the row's page table.
    table: Val<'b>,
    /// Lane within its team.
    within: Val<'b>,
    team: Val<'b>,
    /// Shared `[query head][token of the chunk]`.
    scores: u32,
    /// Shared `[team][element]`.
    gather: u32,
}

impl<'b> Tile<'_, 'b> {
    /// Element offset of this lane's part of token `t` in K or V.
    fn token(&self, t: Val<'b>) -> Val<'b> {
        let (b, s) = (self.b, self.s);
        let page = b.load(Type::U32, self.io.pages, (self.table + t / PAGE_TOKENS) * 4, 4);
        ((page * s.spec.kv_heads + self.kv_head) * PAGE_TOKENS + t % PAGE_TOKENS) * s.spec.head_dim
            + self.within * s.each
    }

    /// This lane's part of every query head of the group, times the scale.
    fn load_q(&self) -> Vec<Vec<Val<'b>>> {
        let (b, s) = (self.b, self.s);
        (0..s.group)
            .map(|g| {
                let head = self.kv_head * s.group + g;
                let at = (self.row * s.spec.heads + head) * s.spec.head_dim + self.within * s.each;
                let quad = |i| b.load_at(Type::F32X4, self.io.q, at * 4, i * 16, 16, true) * s.spec.scale;
                (0..s.each / 4).map(quad).collect()
            })
            .collect()
    }

    /// This lane's elements of a K or V row, from element offset `at`.
    fn load_kv(&self, base: Val<'b>, at: Val<'b>) -> Vec<Val<'b>> {
        let (b, quads) = (self.b, self.s.each / 4);
        match self.s.kv {
            KvType::F32 => (0..quads).map(|i| b.load_at(Type::F32X4, base, at * 4, i * 16, 16, true)).collect(),
            KvType::F16 => {
                let words: Vec<Val<'b>> =
                    (0..quads / 2).map(|i| b.load_at(Type::U32X4, base, at * 2, i * 16, 16, true)).collect();
                let half2 = |w: Val<'b>| w.bitcast(Type::Vec(Scalar::F16, 2)).to_f32();
                (0..quads as usize)
                    .map(|i| {
                        let word = words[i / 2];
                        let (lo, hi) = (half2(word.lane((i % 2 * 2) as u8)), half2(word.lane((i % 2 * 2 + 1) as u8)));
                        b.compose(&[lo.lane(0), lo.lane(1), hi.lane(0), hi.lane(1)])
                    })
                    .collect()
            }
        }
    }

    /// Scores of the chunk's tokens into shared memory; tokens outside the visible range get [`NONE`].
    fn score(&self, q: &[Vec<Val<'b>>], range: Range<'b>) {
        let (b, s) = (self.b, self.s);
        b.for_(b.u32(0), b.u32(CHUNK), s.lanes / s.team, &[], |base, _| {
            let local = base + self.team;
            let t = range.chunk + local;
            let valid = t.lt(range.last) & t.ge(range.lowest) & local.lt(CHUNK);
            let k = self.load_kv(self.io.k, self.token(t.min(range.last - 1)));
            for (g, q) in q.iter().enumerate() {
                let mut sum = q[0] * k[0];
                for i in 1..k.len() {
                    sum = b.fma(q[i], k[i], sum);
                }
                let mut sum = sum.sum_lanes();
                let mut step = 1;
                while step < s.team {
                    sum = sum + sum.shuffle_xor(step);
                    step *= 2;
                }
                let score = valid.select(sum, b.f32(NONE));
                b.if_(self.within.eq(0) & local.lt(CHUNK), || {
                    b.shared_store(self.scores, local + g as u32 * CHUNK, score);
                });
            }
            vec![]
        });
    }

    /// Folds a chunk into (accumulators, maxima, sums).
    fn fold(&self, range: Range<'b>, state: &[Val<'b>]) -> Vec<Val<'b>> {
        let (b, s) = (self.b, self.s);
        let (group, quads) = (s.group as usize, (s.each / 4) as usize);
        let (acc, rest) = state.split_at(group * quads);
        let (maxima, sums) = rest.split_at(group);
        let (mut next_max, mut next_sum, mut scaled) = (vec![], vec![], vec![]);
        for g in 0..group {
            let at = g as u32 * CHUNK;
            let own = b.for_(b.lane(), b.u32(CHUNK), s.subgroup, &[b.f32(NONE)], |i, best| {
                vec![best[0].max(b.shared_load(self.scores, i + at))]
            });
            // Every chunk holds a visible token, so `max` is a real score.
            let max = own[0].subgroup_max().max(maxima[g]);
            let sum = b.for_(b.lane(), b.u32(CHUNK), s.subgroup, &[b.f32(0.0)], |i, sum| {
                vec![sum[0] + (b.shared_load(self.scores, i + at) - max).exp()]
            });
            let keep = (maxima[g] - max).exp();
            next_sum.push(b.fma(sums[g], keep, sum[0].subgroup_add()));
            next_max.push(max);
            scaled.extend(acc[g * quads..(g + 1) * quads].iter().map(|a| *a * keep.splat(4)));
        }
        let mut next = b.for_(self.team + range.chunk, range.last, s.lanes / s.team, &scaled, |t, acc| {
            let v = self.load_kv(self.io.v, self.token(t));
            let mut acc = acc.to_vec();
            for g in 0..group {
                let score = b.shared_load(self.scores, t - range.chunk + g as u32 * CHUNK);
                let p = (score - next_max[g]).exp().splat(4);
                for i in 0..quads {
                    acc[g * quads + i] = b.fma(p, v[i], acc[g * quads + i]);
                }
            }
            acc
        });
        next.extend(next_max);
        next.extend(next_sum);
        next
    }

    /// Adds up the teams' accumulators and stores the answer or the partial result.
    fn finish(&self, state: &[Val<'b>]) {
        let (b, s, io) = (self.b, self.s, self.io);
        let (row, split) = (self.row, self.split);
        let (group, quads, dim) = (s.group as usize, (s.each / 4) as usize, s.spec.head_dim);
        let (acc, rest) = state.split_at(group * quads);
        let (maxima, sums) = rest.split_at(group);
        for g in 0..group {
            for (i, quad) in acc[g * quads..(g + 1) * quads].iter().enumerate() {
                for e in 0..4 {
                    let at = self.team * dim + self.within * s.each + (i as u32 * 4 + e);
                    b.shared_store(self.gather, at, quad.lane(e as u8));
                }
            }
            b.barrier();
            let head = self.kv_head * s.group + g as u32;
            for_items(b, s.lanes, dim, |e| {
                let total = b.for_(b.u32(0), b.u32(s.lanes / s.team), 1, &[b.f32(0.0)], |team, sum| {
                    vec![sum[0] + b.shared_load(self.gather, team * dim + e)]
                });
                if s.splits == 1 {
                    // No visible token (padding): 0, not 0/0.
                    let value = sums[g].gt(0.0).select(total[0] / sums[g], b.f32(0.0));
                    b.store(io.out, ((row * s.spec.heads + head) * dim + e) * 4, value, 4);
                } else {
                    b.store(io.out, (partial_at(s, row, head, split) + e) * 4, total[0], 4);
                }
            });
            if s.splits > 1 {
                b.if_(b.local_id().eq(0), || {
                    let at = (partial_at(s, row, head, split) + dim) * 4;
                    b.store(io.out, at, maxima[g], 4);
                    b.store(io.out, at + 4, sums[g], 4);
                });
            }
            b.barrier();
        }
    }
}

/// Combines the splits of each (row, head), in order.
fn merge(node: NodeId, s: &Shape, rows: u32) -> crate::LaunchSketch {
    let (dim, sg) = (s.spec.head_dim, s.subgroup);
    let lanes = dim.next_multiple_of(sg).min(s.lanes);
    let name = format!("attention_merge_{}x{dim}_{}", s.spec.heads, s.splits);
    launch(name, lanes, sg, [s.spec.heads, rows, 1], |b, args| {
        let from = args.read("partial", Operand::Temp(0));
        let y = args.write("y", Operand::Value(node));
        let (head, row) = (b.tile(0), b.tile(1));
        let at = |split, e: u32| (partial_at(s, row, head, split) + e) * 4;
        let max = b.for_(b.u32(0), b.u32(s.splits), 1, &[b.f32(NONE)], |split, max| {
            vec![max[0].max(b.load(Type::F32, from, at(split, dim), 4))]
        })[0];
        for_items(b, lanes, dim, |e| {
            let zero = [b.f32(0.0), b.f32(0.0)];
            let total = b.for_(b.u32(0), b.u32(s.splits), 1, &zero, |split, acc| {
                let weight = (b.load(Type::F32, from, at(split, dim), 4) - max).exp();
                let sum = b.load(Type::F32, from, at(split, dim + 1), 4);
                let value = b.load(Type::F32, from, at(split, 0) + e * 4, 4);
                vec![b.fma(weight, value, acc[0]), b.fma(weight, sum, acc[1])]
            });
            let value = total[1].gt(0.0).select(total[0] / total[1], b.f32(0.0));
            b.store(y, ((row * s.spec.heads + head) * dim + e) * 4, value, 4);
        });
    })
}
