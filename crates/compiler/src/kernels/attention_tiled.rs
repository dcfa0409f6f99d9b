//! Attention for prompts: a tile of rows shares each chunk of K and V.
//!
//! ```text
//! tile (rows, KV head), for each run of rows of one sequence, for each chunk of its tokens:
//!     K chunk ─► shared ─► scores[query][token] ─► new maxima ─► p ─► shared ┐
//!     V chunk ─► shared ─────────────────────────────────────────────────────┴─► acc = acc · keep + p · V
//! ```
//!
//! A tile's queries are rows × the query heads of the KV head. Chunks that no row of a run sees (future, or before the
//! window) are skipped; a token that one row does not see adds exactly nothing to that row, and chunk boundaries are
//! fixed positions: a row gets the same sums in any tile and any batch.

use super::args::single;
use super::attention::{self, Io, NONE, kv_words, lowest, operands};
use super::kv::Cache;
use super::rows::for_items;
use crate::select::Finder;
use crate::template::{Ctx, Emission, Operand, Template};
use crate::{CompileError, Region};
use zinc_ir::device::Caps;
use zinc_ir::graph::{AttentionSpec, NodeId, Op};
use zinc_ir::kernel::{Builder, Type, Val};
use zinc_ir::plan::PAGE_TOKENS;

pub(super) static ATTENTION_TILED: Template = Template {
    name: "attention_tiled",
    summary: "softmax(q·Kᵀ)·V over cache pages, tiles of rows; many rows",
    fused: true,
    matches,
    emit,
};

/// Lanes along queries.
const LANES_QUERIES: u32 = 16;
/// Lanes along tokens (scores) and along a head's elements (sums).
const LANES_TOKENS: u32 = 16;
const LANES: u32 = LANES_QUERIES * LANES_TOKENS;

/// How a tile is cut: the knobs of this kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Tile {
    /// Queries per lane.
    queries: u32,
    /// Tokens per lane; a chunk is `LANES_TOKENS` times as many.
    tokens: u32,
}

impl Tile {
    fn all_queries(self) -> u32 {
        self.queries * LANES_QUERIES
    }
    fn chunk(self) -> u32 {
        self.tokens * LANES_TOKENS
    }
    /// Whole rows per tile when `group` heads share a KV head.
    fn rows(self, group: u32) -> u32 {
        self.all_queries() / group
    }
    fn shared_bytes(self, head_dim: u32) -> u32 {
        let maxima = self.all_queries() * LANES_TOKENS * 4;
        self.chunk() * (head_dim / 4 + 1) * 16 + self.all_queries() * (self.chunk() + 1) * 4 + maxima
    }

    /// The most tokens per chunk that fit, then the most queries that leave tiles for the whole device. Chunks depend
    /// on the device and the head size only.
    fn choose(caps: &Caps, spec: &AttentionSpec, rows: u32) -> Option<Tile> {
        if LANES > caps.max_workgroup || !LANES.is_multiple_of(caps.subgroup_size) || !spec.head_dim.is_multiple_of(8) {
            return None;
        }
        let group = spec.heads / spec.kv_heads;
        let fits = |t: &Tile| t.shared_bytes(spec.head_dim) <= caps.max_shared_bytes;
        let tokens = [4, 2, 1].into_iter().find(|&tokens| fits(&Tile { queries: 4, tokens }))?;
        let able: Vec<Tile> =
            [4, 2, 1].map(|queries| Tile { queries, tokens }).into_iter().filter(|t| t.rows(group) > 0).collect();
        let fills = |t: &&Tile| rows.div_ceil(t.rows(group)) * spec.kv_heads >= caps.parallel_tiles;
        able.iter().find(fills).or(able.last()).copied()
    }
}

fn matches(f: &Finder<'_>, node: NodeId) -> Option<Vec<NodeId>> {
    let Op::Attention { append, spec, .. } = f.op(node) else { return None };
    let cached = matches!(f.op(*append), Op::KvAppend { .. });
    let tiles = !f.ctx.caps.native && !attention::row_by_row(f.ctx) && cached;
    let able = tiles && Tile::choose(f.ctx.caps, spec, f.ctx.rows(node)).is_some();
    able.then(|| vec![node])
}

/// One kernel: its sizes and arguments.
struct Kernel<'b> {
    b: &'b Builder,
    tile: Tile,
    spec: AttentionSpec,
    subgroup: u32,
    rows: u32,
    pages_per_sequence: u32,
    io: Io<'b>,
    out: Val<'b>,
    /// Shared `[token][quad]`, one quad of padding per token: the chunk of K, then of V.
    chunk: u32,
    /// Shared `[query][token]`, one of padding per query.
    weights: u32,
    /// Shared `[query][lane along tokens]`, where a subgroup cannot exchange maxima itself.
    maxima: Option<u32>,
}

fn emit(ctx: &Ctx<'_>, region: &Region) -> Result<Emission, CompileError> {
    let node = region.last();
    let (q, layer, spec) = operands(ctx, node)?;
    let rows = ctx.rows(node);
    let tile = Tile::choose(ctx.caps, &spec, rows).ok_or_else(|| ctx.unsupported(node, "no tile fits"))?;
    let per_tile = tile.rows(spec.heads / spec.kv_heads);
    let name = format!(
        "attention_tiled_{}x{}x{}_{}_{}x{}",
        spec.heads,
        spec.kv_heads,
        spec.head_dim,
        kv_words(ctx),
        tile.all_queries(),
        tile.chunk()
    );
    let grid = [rows.div_ceil(per_tile), spec.kv_heads, 1];
    Ok(single(name.to_lowercase(), LANES, ctx.caps.subgroup_size, grid, |b, args| {
        let exchange = ctx.caps.subgroup_size.is_multiple_of(LANES_TOKENS);
        let kernel = Kernel {
            b,
            tile,
            spec,
            subgroup: ctx.caps.subgroup_size,
            rows,
            pages_per_sequence: ctx.bucket.context / PAGE_TOKENS,
            io: Io::read(ctx, args, q, layer),
            out: args.write("y", Operand::Value(node)),
            chunk: b.shared("chunk", Type::F32X4, tile.chunk() * (spec.head_dim / 4 + 1)),
            weights: b.shared("weights", Type::F32, tile.all_queries() * (tile.chunk() + 1)),
            maxima: (!exchange).then(|| b.shared("maxima", Type::F32, tile.all_queries() * LANES_TOKENS)),
        };
        kernel.body(per_tile, grid[0]);
    }))
}

/// A query of this lane.
#[derive(Clone, Copy)]
struct Query<'b> {
    /// Its number in the tile.
    index: Val<'b>,
    /// Its row of the step; in range even if the query is none.
    row: Val<'b>,
    /// Element offset in q and in the result.
    at: Val<'b>,
    /// First and one past the last token it sees; 0, 0 if the query is none.
    sees: [Val<'b>; 2],
    real: Val<'b>,
}

/// Rows of the tile that belong to one sequence, one after the other.
struct Run<'b> {
    sequence: Val<'b>,
    first: Val<'b>,
    end: Val<'b>,
    /// Lowest and one past the highest token that any of its rows sees.
    sees: [Val<'b>; 2],
}

impl<'b> Kernel<'b> {
    fn quads(&self) -> u32 {
        self.spec.head_dim / 4
    }
    /// Quads of a head per lane.
    fn own_quads(&self) -> u32 {
        self.quads().div_ceil(LANES_TOKENS)
    }
    fn lane_query(&self) -> Val<'b> {
        self.b.local_id() / LANES_TOKENS
    }
    fn lane_token(&self) -> Val<'b> {
        self.b.local_id() % LANES_TOKENS
    }

    /// The tokens that a row sees.
    fn sees(&self, row: Val<'b>) -> [Val<'b>; 2] {
        let visible = self.b.load(Type::U32, self.io.visible, row * 4, 4);
        [lowest(self.b, &self.spec, visible), visible]
    }

    fn body(&self, per_tile: u32, tiles: u32) {
        let b = self.b;
        // The last rows see most: they start first.
        let first_row = (b.u32(tiles - 1) - b.tile(0)) * per_tile;
        let end_row = (first_row + per_tile).min(b.u32(self.rows));
        let queries: Vec<Query<'b>> = (0..self.tile.queries).map(|i| self.query(i, first_row, per_tile)).collect();
        let mut state = vec![b.f32x4(0.0); (self.tile.queries * self.own_quads()) as usize];
        state.extend(vec![b.f32(NONE); self.tile.queries as usize]);
        state.extend(vec![b.f32(0.0); self.tile.queries as usize]);
        let state = b.for_(first_row, end_row, 1, &state, |row, state| {
            let sequence = b.load(Type::U32, self.io.sequence, row * 4, 4);
            let before = b.load(Type::U32, self.io.sequence, row.max(b.u32(1)) * 4 - 4, 4);
            let starts = row.eq(first_row) | before.ne(sequence);
            b.if_else(starts, || self.run(&queries, &self.run_at(sequence, row, end_row), state), || state.to_vec())
        });
        self.store(&queries, &state);
    }

    fn query(&self, i: u32, first_row: Val<'b>, per_tile: u32) -> Query<'b> {
        let b = self.b;
        let group = self.spec.heads / self.spec.kv_heads;
        let index = self.lane_query() + i * LANES_QUERIES;
        let local = index / group;
        let row = first_row + local;
        let real = local.lt(per_tile) & row.lt(self.rows);
        let row = row.min(b.u32(self.rows - 1));
        let head = b.tile(1) * group + index % group;
        let sees = self.sees(row).map(|t| real.select(t, b.u32(0)));
        Query { index, row, at: (row * self.spec.heads + head) * self.spec.head_dim, sees, real }
    }

    /// How far the run that starts at `row` reaches, and what its rows see.
    fn run_at(&self, sequence: Val<'b>, row: Val<'b>, end_row: Val<'b>) -> Run<'b> {
        let b = self.b;
        let [lowest, visible] = self.sees(row);
        // A run ends at the first row of another sequence; `open` is 1 until then.
        let found = b.for_(row + 1, end_row, 1, &[row + 1, lowest, visible, b.u32(1)], |r, c| {
            let same = b.load(Type::U32, self.io.sequence, r * 4, 4).eq(sequence);
            let open = same.select(c[3], b.u32(0));
            let [lowest, visible] = self.sees(r);
            let member = open.eq(1);
            let next = [r + 1, c[1].min(lowest), c[2].max(visible)];
            let mut out: Vec<Val<'b>> = next.iter().zip(c).map(|(n, c)| member.select(*n, *c)).collect();
            out.push(open);
            out
        });
        Run { sequence, first: row, end: found[0], sees: [found[1], found[2]] }
    }

    /// All chunks of a run, for all queries; those of other runs are left as they are.
    fn run(&self, queries: &[Query<'b>], run: &Run<'b>, state: &[Val<'b>]) -> Vec<Val<'b>> {
        let (b, chunk) = (self.b, self.tile.chunk());
        let queries: Vec<Query<'b>> = queries
            .iter()
            .map(|q| {
                let member = q.row.ge(run.first) & q.row.lt(run.end);
                Query { sees: q.sees.map(|t| member.select(t, b.u32(0))), ..*q }
            })
            .collect();
        b.for_(run.sees[0] / chunk * chunk, run.sees[1], chunk, state, |first, state| {
            self.stage(self.io.k(&self.spec), run, first);
            b.barrier();
            let scores = self.scores(&queries, first);
            let own: Vec<Val<'b>> =
                scores.iter().map(|s| s.iter().copied().reduce(Val::max).expect("tokens")).collect();
            self.offer_maxima(&queries, &own);
            b.barrier();
            let maxima = &state[state.len() - 2 * queries.len()..][..queries.len()];
            let next: Vec<Val<'b>> =
                queries.iter().zip(own).zip(maxima).map(|((q, own), old)| self.maximum(q, own).max(*old)).collect();
            self.weights(&queries, first, &scores, &next);
            self.stage(self.io.v(&self.spec), run, first);
            b.barrier();
            let state = self.fold(&queries, &next, state);
            b.barrier();
            state
        })
    }

    /// K or V of a chunk into shared memory. Tokens that the run does not see repeat one that it does.
    fn stage(&self, cache: Cache<'b>, run: &Run<'b>, first: Val<'b>) {
        let (b, quads) = (self.b, self.quads());
        for_items(b, LANES, self.tile.chunk() * quads, |i| {
            let (local, quad) = (i / quads, i % quads);
            let token = (first + local).max(run.sees[0]).min(run.sees[1] - 1);
            let entry = run.sequence * self.pages_per_sequence + token / PAGE_TOKENS;
            let page = b.load(Type::U32, self.io.pages, entry * 4, 4);
            let line = cache.line(page, b.tile(1), token % PAGE_TOKENS);
            let value = cache.load_quad(b, line, quad);
            b.shared_store(self.chunk, local * (quads + 1) + quad, value);
        });
    }

    /// Scores of this lane's queries and tokens, `[query][token]`; [`NONE`] where the query does not see the token.
    fn scores(&self, queries: &[Query<'b>], first: Val<'b>) -> Vec<Vec<Val<'b>>> {
        let (b, tokens) = (self.b, self.tile.tokens as usize);
        let zero = vec![b.f32(0.0); queries.len() * tokens];
        let sums = b.for_(b.u32(0), b.u32(self.quads()), 1, &zero, |quad, sums| {
            let k: Vec<[Val<'b>; 4]> = (0..self.tile.tokens)
                .map(|j| {
                    let line = self.lane_token() + j * LANES_TOKENS;
                    lanes(b.shared_load(self.chunk, line * (self.quads() + 1) + quad))
                })
                .collect();
            let mut next = Vec::with_capacity(sums.len());
            for q in queries {
                let q = lanes(b.load(Type::F32X4, self.io.q, (q.at + quad * 4) * 4, 16));
                for k in &k {
                    let sum = sums[next.len()];
                    next.push((0..4).fold(sum, |sum, e| b.fma(q[e], k[e], sum)));
                }
            }
            next
        });
        let score = |q: &Query<'b>, j: usize, sum: Val<'b>| {
            let token = first + self.lane_token() + j as u32 * LANES_TOKENS;
            seen(q, token).select(sum * self.spec.scale, b.f32(NONE))
        };
        let of_query =
            |(q, sums): (&Query<'b>, &[Val<'b>])| sums.iter().enumerate().map(|(j, sum)| score(q, j, *sum)).collect();
        queries.iter().zip(sums.chunks(tokens)).map(of_query).collect()
    }

    fn offer_maxima(&self, queries: &[Query<'b>], own: &[Val<'b>]) {
        if let Some(maxima) = self.maxima {
            for (q, own) in queries.iter().zip(own) {
                self.b.shared_store(maxima, q.index * LANES_TOKENS + self.lane_token(), *own);
            }
        }
    }

    /// Largest score of a query in the chunk: the largest of its lanes'.
    fn maximum(&self, q: &Query<'b>, own: Val<'b>) -> Val<'b> {
        debug_assert!(self.maxima.is_some() || self.subgroup.is_multiple_of(LANES_TOKENS));
        match self.maxima {
            Some(maxima) => (0..LANES_TOKENS)
                .map(|lane| self.b.shared_load(maxima, q.index * LANES_TOKENS + lane))
                .reduce(Val::max)
                .expect("lanes"),
            None => (0..LANES_TOKENS.trailing_zeros()).fold(own, |max, bit| max.max(max.shuffle_xor(1 << bit))),
        }
    }

    /// e^(score - maximum) of this lane's tokens into shared memory; exactly 0 where not seen.
    fn weights(&self, queries: &[Query<'b>], first: Val<'b>, scores: &[Vec<Val<'b>>], maxima: &[Val<'b>]) {
        let b = self.b;
        for ((q, scores), max) in queries.iter().zip(scores).zip(maxima) {
            for (j, score) in scores.iter().enumerate() {
                let local = self.lane_token() + j as u32 * LANES_TOKENS;
                let weight = seen(q, first + local).select((*score - *max).exp(), b.f32(0.0));
                b.shared_store(self.weights, q.index * (self.tile.chunk() + 1) + local, weight);
            }
        }
    }

    /// The state `(sums of V, maxima, sums of weights)` after a chunk.
    fn fold(&self, queries: &[Query<'b>], maxima: &[Val<'b>], state: &[Val<'b>]) -> Vec<Val<'b>> {
        let (b, own) = (self.b, self.own_quads() as usize);
        let (acc, rest) = state.split_at(queries.len() * own);
        let (old, sums) = rest.split_at(queries.len());
        let keep: Vec<Val<'b>> = old.iter().zip(maxima).map(|(old, new)| (*old - *new).exp()).collect();
        let mut start: Vec<Val<'b>> = acc.iter().enumerate().map(|(i, a)| *a * keep[i / own].splat(4)).collect();
        start.extend(sums.iter().zip(&keep).map(|(sum, keep)| *sum * *keep));
        let next = b.for_(b.u32(0), b.u32(self.tile.chunk()), 1, &start, |token, state| {
            let v: Vec<Val<'b>> = (0..own as u32)
                .map(|i| {
                    let quad = (self.lane_token() + i * LANES_TOKENS).min(b.u32(self.quads() - 1));
                    b.shared_load(self.chunk, token * (self.quads() + 1) + quad)
                })
                .collect();
            let mut next = state.to_vec();
            for (i, q) in queries.iter().enumerate() {
                let p = b.shared_load(self.weights, q.index * (self.tile.chunk() + 1) + token);
                for (j, v) in v.iter().enumerate() {
                    next[i * own + j] = b.fma(p.splat(4), *v, state[i * own + j]);
                }
                let sum = queries.len() * own + i;
                next[sum] = state[sum] + p;
            }
            next
        });
        let (acc, sums) = next.split_at(queries.len() * own);
        [acc, maxima, sums].concat()
    }

    fn store(&self, queries: &[Query<'b>], state: &[Val<'b>]) {
        let (b, own) = (self.b, self.own_quads());
        for (i, q) in queries.iter().enumerate() {
            let sum = state[state.len() - queries.len() + i];
            // No visible token (padding): 0, not 0/0.
            let factor = sum.gt(0.0).select(b.f32(1.0) / sum, b.f32(0.0));
            for j in 0..own {
                let quad = self.lane_token() + j * LANES_TOKENS;
                let inside =
                    if self.quads().is_multiple_of(LANES_TOKENS) { q.real } else { q.real & quad.lt(self.quads()) };
                b.if_(inside, || {
                    let value = state[i * own as usize + j as usize] * factor.splat(4);
                    b.store(self.out, (q.at + quad * 4) * 4, value, 16);
                });
            }
        }
    }
}

/// Does the query see the token?
fn seen<'b>(q: &Query<'b>, token: Val<'b>) -> Val<'b> {
    token.ge(q.sees[0]) & token.lt(q.sees[1])
}

fn lanes(quad: Val<'_>) -> [Val<'_>; 4] {
    [0, 1, 2, 3].map(|i| quad.lane(i))
}
