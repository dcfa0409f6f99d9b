//! Attention for prompts on cooperative matrices: each subgroup has 16 queries, and a tile's subgroups share K and V.
//!
//! ```text
//! tile (rows, KV head), for each run of rows of one sequence, for each chunk of its tokens:
//!     K, V chunk ─► shared   (the next chunk is on its way to registers meanwhile)
//!     Q·Kᵀ (A, B) ─► scores ─► shared ─lanes: maxima, e^(s - max)─► p as halves ─► shared ─► A ┐
//!     acc · keep  +  p·V ◄─────────────────────────────────────────────────────────────────────┘
//! acc / sum ─► shared ─► y
//! ```
//!
//! Which lane holds which element of a matrix is the driver's secret: scores go through shared memory that belongs to
//! one subgroup, where lanes own rows, and what a row's accumulators are to be multiplied with comes back as a matrix
//! with equal columns. Queries are rows × the query heads of the KV head. As in `attention_tiled`, chunks lie at fixed
//! positions and a token that a row does not see adds exactly nothing: a row gets the same sums in any tile and batch.

use super::args::single;
use super::attention::{Io, NONE, lowest, operands};
use crate::select::Finder;
use crate::template::{Ctx, Emission, Operand, Template};
use crate::{CompileError, Region};
use zinc_ir::device::{Caps, MatrixShape};
use zinc_ir::graph::{AttentionSpec, NodeId, Op};
use zinc_ir::kernel::{Builder, MatrixMemory, MatrixType, Scalar, Type, Val};
use zinc_ir::plan::{ActPrecision, KvType, PAGE_TOKENS};

pub(super) static ATTENTION_MATRICES: Template = Template {
    name: "attention_matrices",
    summary: "softmax(q·Kᵀ)·V over cache pages on matrices, tiles of rows; many rows",
    fused: true,
    matches,
    emit,
};

// ---- the knobs --------------------------------------------------------------------------------------------------

/// Tokens of a chunk, best first: what fits. A page's worth at most, so that a chunk has one page.
const CHUNKS: [u32; 2] = [32, 16];
/// Subgroups of a tile, best first: the first that leaves tiles for the whole device.
const SUBGROUPS: [u32; 3] = [4, 2, 1];
/// Of [`Caps::parallel_tiles`], how many tiles are enough for the device.
const ENOUGH: (u32, u32) = (1, 2);
/// Halves from one line of K or V to the next beyond the line itself, so that lines begin in different banks.
const PADDING: u32 = 8;
/// Accumulators are left alone where no maximum of the subgroup has risen.
const SKIP_RESCALING: bool = true;
/// The next chunk is loaded into registers while this one is computed.
const PREFETCH: bool = true;

/// The largest finite half.
const LARGEST_HALF: f32 = 65504.0;

/// How a tile is cut.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Tile {
    shape: MatrixShape,
    subgroup: u32,
    subgroups: u32,
    /// Tokens.
    chunk: u32,
    /// Elements of a line of K, and of a line of V and of the result.
    widths: [u32; 2],
}

impl Tile {
    fn m(&self) -> u32 {
        self.shape.m as u32
    }
    fn n(&self) -> u32 {
        self.shape.n as u32
    }
    fn k(&self) -> u32 {
        self.shape.k as u32
    }
    fn lanes(&self) -> u32 {
        self.subgroups * self.subgroup
    }
    fn queries(&self) -> u32 {
        self.subgroups * self.m()
    }
    /// Whole rows per tile when `group` heads share a KV head.
    fn rows(&self, group: u32) -> u32 {
        self.queries() / group
    }
    /// Lanes that share a query in the softmax.
    fn lanes_per_query(&self) -> u32 {
        (self.subgroup / self.m()).max(1)
    }
    /// Queries of a lane in the softmax.
    fn queries_per_lane(&self) -> u32 {
        (self.m() / self.subgroup).max(1)
    }
    /// Quads from one line of K or V to the next.
    fn line(&self, width: u32) -> u32 {
        (width + PADDING) / 4
    }
    /// Quads from one query's scores to the next: lanes on different queries use different banks.
    fn scores_line(&self) -> u32 {
        self.chunk / 4 + self.lanes_per_query()
    }
    fn shared_bytes(&self) -> u32 {
        let staged: u32 = self.widths.iter().map(|w| self.chunk * self.line(*w) * 8).sum();
        staged + self.queries() * (self.scores_line() * 16 + self.line(self.chunk) * 8 + 4)
    }

    fn fits(&self, caps: &Caps) -> bool {
        let [m, n, k] = [self.m(), self.n(), self.k()];
        let whole = |len: u32| len.is_multiple_of(n) && len.is_multiple_of(k);
        self.lanes() <= caps.max_workgroup
            && m.is_power_of_two()
            && (k / 4).is_multiple_of(self.lanes_per_query())
            && n.is_multiple_of(4)
            && whole(self.chunk)
            && self.widths.iter().all(|w| whole(*w) && w.is_multiple_of(8))
            && self.shared_bytes() <= caps.max_shared_bytes
    }

    /// The tile for `rows` rows. Shape and chunks depend on the device and the head size only.
    fn choose(caps: &Caps, spec: &AttentionSpec, rows: u32) -> Option<Tile> {
        let usable = |s: &&MatrixShape| s.input == Scalar::F16 && s.acc == Scalar::F32 && s.k.is_multiple_of(4);
        let volume = |s: &&MatrixShape| s.m as u32 * s.n as u32 * s.k as u32;
        let shape = *caps.matrices.iter().filter(usable).max_by_key(volume)?;
        let (subgroup, widths) = (caps.subgroup_size, [spec.head_dim; 2]);
        let tile = |subgroups, chunk| Tile { shape, subgroup, subgroups, chunk, widths };
        let group = spec.heads / spec.kv_heads;
        let chunk = CHUNKS.into_iter().find(|&chunk| tile(1, chunk).fits(caps))?;
        let able = SUBGROUPS.map(|subgroups| tile(subgroups, chunk)).into_iter();
        let able: Vec<Tile> = able.filter(|t| t.fits(caps) && t.rows(group) > 0).collect();
        let fills =
            |t: &&Tile| rows.div_ceil(t.rows(group)) * spec.kv_heads * ENOUGH.1 >= caps.parallel_tiles * ENOUGH.0;
        able.iter().find(fills).or(able.last()).copied()
    }
}

fn matches(f: &Finder<'_>, node: NodeId) -> Option<Vec<NodeId>> {
    let Op::Attention { append, spec, .. } = f.op(node) else { return None };
    let cached = matches!(f.op(*append), Op::KvAppend { .. });
    let halves = f.ctx.choices.act != ActPrecision::F32 && f.ctx.kv.ty == KvType::F16;
    let wanted = !f.few_rows(node) && cached && halves && f.ctx.choices.matrices;
    (wanted && Tile::choose(f.ctx.caps, spec, f.ctx.rows(node)).is_some()).then(|| vec![node])
}

fn emit(ctx: &Ctx<'_>, region: &Region) -> Result<Emission, CompileError> {
    let node = region.last();
    let (q, layer, spec) = operands(ctx, node)?;
    let rows = ctx.rows(node);
    let tile = Tile::choose(ctx.caps, &spec, rows).ok_or_else(|| ctx.unsupported(node, "no tile fits"))?;
    let per_tile = tile.rows(spec.heads / spec.kv_heads);
    let AttentionSpec { heads, kv_heads, head_dim, .. } = spec;
    let name = format!("attention_matrices_{heads}x{kv_heads}x{head_dim}_{}x{}", tile.queries(), tile.chunk);
    let grid = [rows.div_ceil(per_tile), kv_heads, 1];
    Ok(single(name, tile.lanes(), tile.subgroup, grid, |b, args| {
        let quads = Type::Vec(Scalar::F16, 4);
        let kernel = Kernel {
            b,
            tile,
            spec,
            types: Caps::matrix_types(tile.shape),
            rows,
            pages_per_sequence: ctx.bucket.context / PAGE_TOKENS,
            io: Io::read(args, q, layer),
            out: args.write("y", Operand::Value(node)),
            keys: b.shared("keys", quads, tile.chunk * tile.line(tile.widths[0])),
            values: b.shared("values", quads, tile.chunk * tile.line(tile.widths[1])),
            scores: b.shared("scores", Type::F32X4, tile.queries() * tile.scores_line()),
            weights: b.shared("weights", quads, tile.queries() * tile.line(tile.chunk)),
            factors: b.shared("factors", Type::F32, tile.queries()),
        };
        kernel.body(per_tile, grid[0]);
    }))
}

/// One kernel: its sizes, arguments and shared arrays.
struct Kernel<'b> {
    b: &'b Builder,
    tile: Tile,
    spec: AttentionSpec,
    /// Of A, B and accumulators.
    types: [MatrixType; 3],
    rows: u32,
    pages_per_sequence: u32,
    io: Io<'b>,
    out: Val<'b>,
    /// Quads `[token][element / 4]` of K, padded.
    keys: u32,
    /// The same of V.
    values: u32,
    /// Quads `[query][token / 4]`, padded; a subgroup uses the lines of its own queries. Finished sums pass through, too.
    scores: u32,
    /// As quads of halves, padded. The queries pass through, too.
    weights: u32,
    /// `[query]`: what its accumulators are to be multiplied with.
    factors: u32,
}

/// A query of this lane, which it may share with its neighbours.
#[derive(Clone, Copy)]
struct Query<'b> {
    /// Its number in the tile.
    index: Val<'b>,
    /// Its row of the step; in range even if the query is none.
    row: Val<'b>,
    /// Line of its head in q and in the result.
    line: Val<'b>,
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

/// What a loop over chunks carries.
#[derive(Clone)]
struct State<'b> {
    /// Σ p·V, a matrix per `n` elements.
    acc: Vec<Val<'b>>,
    /// Per query of the lane.
    maxima: Vec<Val<'b>>,
    /// Σ p over this lane's part of the tokens.
    sums: Vec<Val<'b>>,
}

impl<'b> State<'b> {
    fn flat(&self) -> Vec<Val<'b>> {
        [&self.acc[..], &self.maxima, &self.sums].concat()
    }
    fn like(&self, flat: &[Val<'b>]) -> State<'b> {
        let (acc, rest) = flat.split_at(self.acc.len());
        let (maxima, sums) = rest.split_at(self.maxima.len());
        State { acc: acc.to_vec(), maxima: maxima.to_vec(), sums: sums.to_vec() }
    }
}

impl<'b> Kernel<'b> {
    /// This lane among those that share its queries.
    fn part(&self) -> Val<'b> {
        self.b.lane() % self.tile.lanes_per_query()
    }
    /// First query of the subgroup.
    fn own(&self) -> Val<'b> {
        self.b.subgroup_id() * self.tile.m()
    }

    fn body(&self, per_tile: u32, tiles: u32) {
        let (b, t) = (self.b, &self.tile);
        // The last rows see most: they start first.
        let first_row = (b.u32(tiles - 1) - b.tile(0)) * per_tile;
        let end_row = (first_row + per_tile).min(b.u32(self.rows));
        let queries: Vec<Query<'b>> = (0..t.queries_per_lane()).map(|i| self.query(i, first_row, per_tile)).collect();
        let q = self.load_queries(&queries);
        let zero = b.matrix_splat(self.types[2], b.f32(0.0));
        let state = State {
            acc: vec![zero; (t.widths[1] / t.n()) as usize],
            maxima: vec![b.f32(NONE); queries.len()],
            sums: vec![b.f32(0.0); queries.len()],
        };
        let end = b.for_(first_row, end_row, 1, &state.flat(), |row, flat| {
            let sequence = self.word(self.io.sequence, row);
            let before = self.word(self.io.sequence, row.max(b.u32(1)) - 1);
            let starts = row.eq(first_row) | before.ne(sequence);
            let run = || self.run(&q, &queries, &self.run_at(sequence, row, end_row), &state.like(flat)).flat();
            b.if_else(starts, run, || flat.to_vec())
        });
        self.store(&queries, &state.like(&end));
    }

    /// An element of an array of U32 that nothing writes.
    fn word(&self, base: Val<'b>, index: Val<'b>) -> Val<'b> {
        self.b.load_at(Type::U32, base, index * 4, 0, 4, true)
    }

    /// Query number `i` of this lane.
    fn query(&self, i: u32, first_row: Val<'b>, per_tile: u32) -> Query<'b> {
        let (b, t) = (self.b, &self.tile);
        let group = self.spec.heads / self.spec.kv_heads;
        let index = self.own() + b.lane() / t.lanes_per_query() + i * t.subgroup;
        let local = index / group;
        let row = first_row + local;
        let real = local.lt(per_tile) & row.lt(self.rows);
        let row = row.min(b.u32(self.rows - 1));
        let head = b.tile(1) * group + index % group;
        let visible = self.word(self.io.visible, row);
        let sees = [lowest(b, &self.spec, visible), visible].map(|t| real.select(t, b.u32(0)));
        Query { index, row, line: row * self.spec.heads + head, sees, real }
    }

    /// How far the run that starts at `row` reaches, and what its rows see.
    fn run_at(&self, sequence: Val<'b>, row: Val<'b>, end_row: Val<'b>) -> Run<'b> {
        let b = self.b;
        let none = [b.u32(u32::MAX), b.u32(0), row, b.u32(1)];
        // A run ends at the first row of another sequence; `open` is 1 until then.
        let found = b.for_(row, end_row, 1, &none, |r, c| {
            let open = self.word(self.io.sequence, r).eq(sequence).select(c[3], b.u32(0));
            let member = open.eq(1);
            let visible = self.word(self.io.visible, r);
            // Padding sees nothing.
            let lowest = visible.eq(0).select(b.u32(u32::MAX), lowest(b, &self.spec, visible));
            let next = [c[0].min(lowest), c[1].max(visible), r + 1];
            let mut out: Vec<Val<'b>> = next.iter().zip(c).map(|(n, c)| member.select(*n, *c)).collect();
            out.push(open);
            out
        });
        Run { sequence, first: row, end: found[2], sees: [found[0], found[1]] }
    }

    /// The subgroup's queries times the scale as halves, a matrix per `k` elements.
    fn load_queries(&self, queries: &[Query<'b>]) -> Vec<Val<'b>> {
        let (b, t) = (self.b, &self.tile);
        let (line, width) = (t.line(t.chunk), t.widths[0]);
        let mut matrices = vec![];
        for from in (0..width).step_by(t.chunk as usize) {
            let columns = t.chunk.min(width - from);
            if from > 0 {
                b.subgroup_barrier();
            }
            for q in queries {
                for quad in self.quads(columns) {
                    let at = (q.line * width + quad * 4) * 4;
                    let value = b.load_at(Type::F32X4, self.io.q, at, from * 4, 16, true) * self.spec.scale;
                    b.shared_store(self.weights, q.index * line + quad, halves(b, value));
                }
            }
            b.subgroup_barrier();
            matrices.extend((0..columns / t.k()).map(|i| self.load_weights(i)));
        }
        matrices
    }

    /// Columns `i * k ..` of what the subgroup has in `weights`.
    fn load_weights(&self, i: u32) -> Val<'b> {
        let (b, t) = (self.b, &self.tile);
        let line = t.line(t.chunk);
        let index = (self.own() * line + i * (t.k() / 4)).value();
        b.matrix_load(self.types[0], MatrixMemory::Shared { array: self.weights, index }, b.u32(line), false)
    }

    /// All chunks of a run, for all queries; those of other runs are left as they are.
    fn run(&self, q: &[Val<'b>], queries: &[Query<'b>], run: &Run<'b>, state: &State<'b>) -> State<'b> {
        let (b, chunk) = (self.b, self.tile.chunk);
        let member = |q: &Query<'b>| q.row.ge(run.first) & q.row.lt(run.end);
        let queries: Vec<Query<'b>> =
            queries.iter().map(|q| Query { sees: q.sees.map(|t| member(q).select(t, b.u32(0))), ..*q }).collect();
        let all = |i: usize, f: fn(Val<'b>, Val<'b>) -> Val<'b>| {
            queries.iter().map(|q| q.sees[i]).reduce(f).expect("a query")
        };
        // Every query of the subgroup sees these tokens.
        let common = [all(0, Val::max).subgroup_max(), all(1, Val::min).subgroup_min()];
        let start = run.sees[0] / chunk * chunk;
        let flat = state.flat();
        let ahead = if PREFETCH { self.fetch(run, start) } else { vec![] };
        let end = b.for_(start, run.sees[1], chunk, &[&flat[..], &ahead].concat(), |first, carried| {
            let (flat, ahead) = carried.split_at(flat.len());
            b.barrier();
            self.stage(&if PREFETCH { ahead.to_vec() } else { self.fetch(run, first) });
            b.barrier();
            let ahead = if PREFETCH { self.fetch(run, first + chunk) } else { vec![] };
            let state = self.chunk(q, &queries, common, first, &state.like(flat));
            [&state.flat()[..], &ahead].concat()
        });
        state.like(&end[..flat.len()])
    }

    /// Quads of a chunk's K and V for this lane to stage. Tokens that the run does not see repeat one that it does.
    fn fetch(&self, run: &Run<'b>, first: Val<'b>) -> Vec<Val<'b>> {
        let (b, t) = (self.b, &self.tile);
        let last = run.sees[1].max(b.u32(1)) - 1;
        // A chunk behind the last is asked for, too: it is the last once more.
        let first = first.min(last / t.chunk * t.chunk);
        let page = self.word(self.io.pages, run.sequence * self.pages_per_sequence + first / PAGE_TOKENS);
        let lines = (page * self.spec.kv_heads + b.tile(1)) * PAGE_TOKENS;
        let mut quads = vec![];
        for (width, area) in t.widths.into_iter().zip([self.io.k, self.io.v]) {
            for i in self.items(width) {
                let (local, quad) = (i / (width / 4), i % (width / 4));
                let token = (first + local).max(run.sees[0]).min(last) % PAGE_TOKENS;
                let at = (lines + token) * width + quad * 4;
                quads.push(b.load_at(Type::Vec(Scalar::F16, 4), area, at * 2, 0, 8, true));
            }
        }
        quads
    }

    /// This lane's quads of a chunk of lines of `width` elements; the last ones may come twice.
    fn items(&self, width: u32) -> Vec<Val<'b>> {
        let (b, lanes) = (self.b, self.tile.lanes());
        let count = self.tile.chunk * (width / 4);
        let item = |i: u32| {
            let item = b.local_id() + i * lanes;
            if (i + 1) * lanes <= count { item } else { item.min(b.u32(count - 1)) }
        };
        (0..count.div_ceil(lanes)).map(item).collect()
    }

    /// Stores what [`Kernel::fetch`] gave.
    fn stage(&self, quads: &[Val<'b>]) {
        let (b, t) = (self.b, &self.tile);
        let mut quads = quads.iter();
        for (width, array) in t.widths.into_iter().zip([self.keys, self.values]) {
            let count = t.chunk * (width / 4);
            for (i, (item, value)) in self.items(width).into_iter().zip(quads.by_ref()).enumerate() {
                let put = || b.shared_store(array, item / (width / 4) * t.line(width) + item % (width / 4), *value);
                match (i as u32 + 1) * t.lanes() <= count {
                    true => put(),
                    false => b.if_((b.local_id() + i as u32 * t.lanes()).lt(count), put),
                }
            }
        }
    }

    /// The state after the chunk that starts at token `first`.
    fn chunk(
        &self,
        q: &[Val<'b>],
        queries: &[Query<'b>],
        common: [Val<'b>; 2],
        first: Val<'b>,
        state: &State<'b>,
    ) -> State<'b> {
        let (b, t) = (self.b, &self.tile);
        self.scores(q);
        b.subgroup_barrier();
        let all_seen = first.ge(common[0]) & (first + t.chunk).le(common[1]);
        let soft = |masked| self.soften(queries, masked, first, state);
        let next = b.if_else(all_seen, || soft(false), || soft(true));
        let (maxima, rest) = next.split_at(queries.len());
        let (sums, keep) = rest.split_at(queries.len());
        self.put_factors(queries, keep);
        b.subgroup_barrier();
        let p: Vec<Val<'b>> = (0..t.chunk / t.k()).map(|i| self.load_weights(i)).collect();
        let acc = match SKIP_RESCALING {
            true => {
                let least = keep.iter().copied().reduce(Val::min).expect("a query").subgroup_min();
                b.if_else(least.lt(1.0), || self.times_factors(&state.acc), || state.acc.clone())
            }
            false => self.times_factors(&state.acc),
        };
        let acc = (0..)
            .zip(acc)
            .map(|(j, sum)| (0..).zip(&p).fold(sum, |sum, (i, p)| b.matrix_mul_add(*p, self.load_values(i, j), sum)));
        State { acc: acc.collect(), maxima: maxima.to_vec(), sums: sums.to_vec() }
    }
}

impl<'b> Kernel<'b> {
    /// Q·Kᵀ of the subgroup's queries and the chunk's tokens, into `scores`.
    fn scores(&self, q: &[Val<'b>]) {
        let (b, t) = (self.b, &self.tile);
        for j in 0..t.chunk / t.n() {
            let zero = b.matrix_splat(self.types[2], b.f32(0.0));
            let sum = (0..).zip(q).fold(zero, |sum, (i, q)| b.matrix_mul_add(*q, self.load_keys(i, j), sum));
            self.put_scores(sum, j);
        }
    }

    /// Stores a matrix of the subgroup's queries as columns `j * n ..` of `scores`.
    fn put_scores(&self, matrix: Val<'b>, j: u32) {
        let (b, t) = (self.b, &self.tile);
        let index = (self.own() * t.scores_line() + j * (t.n() / 4)).value();
        let memory = MatrixMemory::Shared { array: self.scores, index };
        b.matrix_store(matrix, memory, b.u32(t.scores_line()), false);
    }

    /// Elements `i * k ..` of tokens `j * n ..` of the staged K, which lie as columns.
    fn load_keys(&self, i: u32, j: u32) -> Val<'b> {
        let (b, t) = (self.b, &self.tile);
        let line = t.line(t.widths[0]);
        let index = b.u32(j * t.n() * line + i * (t.k() / 4)).value();
        b.matrix_load(self.types[1], MatrixMemory::Shared { array: self.keys, index }, b.u32(line), true)
    }

    /// Elements `j * n ..` of tokens `i * k ..` of the staged V.
    fn load_values(&self, i: u32, j: u32) -> Val<'b> {
        let (b, t) = (self.b, &self.tile);
        let line = t.line(t.widths[1]);
        let index = b.u32(i * t.k() * line + j * (t.n() / 4)).value();
        b.matrix_load(self.types[1], MatrixMemory::Shared { array: self.values, index }, b.u32(line), false)
    }

    /// Makes weights of this lane's scores, e^(score - maximum), as halves into `weights`; gives the new maxima and sums,
    /// and by what the old sums have been multiplied. `masked`: some query does not see some token.
    fn soften(&self, queries: &[Query<'b>], masked: bool, first: Val<'b>, state: &State<'b>) -> Vec<Val<'b>> {
        let (b, t) = (self.b, &self.tile);
        let (mut maxima, mut sums, mut keeps) = (vec![], vec![], vec![]);
        for (i, q) in queries.iter().enumerate() {
            let quads: Vec<Val<'b>> = self.quads(t.chunk).collect();
            let seen = |quad: Val<'b>| {
                let from_lowest = first + quad * 4 - q.sees[0];
                let seen = [0, 1, 2, 3].map(|e| (from_lowest + e).lt(q.sees[1] - q.sees[0]));
                b.compose(&seen)
            };
            let only_seen = |quad: Val<'b>, value: Val<'b>, otherwise: f32| match masked {
                true => seen(quad).select(value, b.f32x4(otherwise)),
                false => value,
            };
            let score = |quad: &Val<'b>| b.shared_load(self.scores, q.index * t.scores_line() + *quad);
            let scores: Vec<Val<'b>> = quads.iter().map(|quad| only_seen(*quad, score(quad), NONE)).collect();
            let largest = scores.iter().copied().reduce(Val::max).expect("tokens");
            let largest = (0..4).map(|e| largest.lane(e)).reduce(Val::max).expect("lanes");
            let max = self.over_lanes(largest, Val::max).max(state.maxima[i]);
            let keep = (state.maxima[i] - max).exp();
            let mut sum = None;
            for (quad, score) in quads.iter().zip(scores) {
                let p = only_seen(*quad, (score - max.splat(4)).exp(), 0.0);
                b.shared_store(self.weights, q.index * t.line(t.chunk) + *quad, p.to(Scalar::F16));
                sum = Some(sum.map_or(p, |sum: Val<'b>| sum + p));
            }
            maxima.push(max);
            sums.push(b.fma(state.sums[i], keep, sum.expect("tokens").sum_lanes()));
            keeps.push(keep);
        }
        [maxima, sums, keeps].concat()
    }

    /// This lane's quads of a line of `columns`.
    fn quads(&self, columns: u32) -> impl Iterator<Item = Val<'b>> {
        let (part, step) = (self.part(), self.tile.lanes_per_query());
        (0..columns / 4 / step).map(move |i| part + i * step)
    }

    /// Combines what the lanes of a query have.
    fn over_lanes(&self, own: Val<'b>, f: impl Fn(Val<'b>, Val<'b>) -> Val<'b>) -> Val<'b> {
        (0..self.tile.lanes_per_query().trailing_zeros()).fold(own, |all, bit| f(all, all.shuffle_xor(1 << bit)))
    }

    /// Stores what each query's accumulators are to be multiplied with: the lanes of a query know it.
    fn put_factors(&self, queries: &[Query<'b>], factors: &[Val<'b>]) {
        for (q, factor) in queries.iter().zip(factors) {
            self.b.if_(self.part().eq(0), || self.b.shared_store(self.factors, q.index, *factor));
        }
    }

    /// Accumulators times the factors of their rows, which come as a matrix of equal columns.
    fn times_factors(&self, acc: &[Val<'b>]) -> Vec<Val<'b>> {
        let b = self.b;
        let memory = MatrixMemory::Shared { array: self.factors, index: self.own().value() };
        let factors = b.matrix_load(self.types[2], memory, b.u32(0), true);
        acc.iter().map(|sum| *sum * factors).collect()
    }

    /// Divides by the sums of weights and stores the result, a chunk's width of columns at a time.
    fn store(&self, queries: &[Query<'b>], state: &State<'b>) {
        let (b, t) = (self.b, &self.tile);
        let factors: Vec<Val<'b>> = state
            .sums
            .iter()
            .map(|sum| {
                let sum = self.over_lanes(*sum, |x, y| x + y);
                // No visible token (padding): 0, not 0/0.
                sum.gt(0.0).select(b.f32(1.0) / sum, b.f32(0.0))
            })
            .collect();
        b.subgroup_barrier();
        self.put_factors(queries, &factors);
        b.subgroup_barrier();
        let results = self.times_factors(&state.acc);
        for (piece, results) in results.chunks((t.chunk / t.n()) as usize).enumerate() {
            if piece > 0 {
                b.subgroup_barrier();
            }
            (0..).zip(results).for_each(|(j, result)| self.put_scores(*result, j));
            b.subgroup_barrier();
            for q in queries {
                for quad in self.quads(results.len() as u32 * t.n()) {
                    let value = b.shared_load(self.scores, q.index * t.scores_line() + quad);
                    b.if_(q.real, || self.put(q, quad + piece as u32 * (t.chunk / 4), value));
                }
            }
        }
    }

    /// Stores four elements of a query's result: the place for other forms of the result.
    fn put(&self, q: &Query<'b>, quad: Val<'b>, value: Val<'b>) {
        self.b.store(self.out, (q.line * self.tile.widths[1] + quad * 4) * 4, value, 16);
    }
}

/// Four singles as halves. Beyond the range of halves a sum is wrong either way; infinities would make it NaN.
fn halves<'b>(b: &'b Builder, quad: Val<'b>) -> Val<'b> {
    quad.min(b.f32x4(LARGEST_HALF)).max(b.f32x4(-LARGEST_HALF)).to(Scalar::F16)
}
