//! Attention for prompts on cooperative matrices: each subgroup has 16 queries, and a tile's subgroups share K and V.
//!
//! ```text
//! tile (rows, KV head, run of these rows that are of one sequence), for each chunk of its tokens:
//!     K, V chunk ─► shared   (the next chunk is on its way to registers meanwhile)
//!     Q·Kᵀ (A, B) ─► scores ─► shared ─lanes: maxima, 2^(s - max)─► p as halves ─► shared ─► A ┐
//!     acc · keep  +  p·V ◄─────────────────────────────────────────────────────────────────────┘
//! acc / sum ─► shared ─► y
//! ```
//!
//! Which lane holds which element of a matrix is the driver's secret: scores go through shared memory that belongs to
//! one subgroup, where lanes own rows, and what a row's accumulators are to be multiplied with comes back as a matrix
//! with equal columns. Queries are rows × the query heads of the KV head. As in `attention_tiled`, chunks lie at fixed
//! positions and a token that a row does not see adds exactly nothing: a row gets the same sums in any tile and batch. Where
//! rows of several sequences meet, each run has a tile of its own, so that they do not wait for each other; most tiles of
//! later runs then find none, and end.

mod chunk;
mod stage;

use super::args::single;
use super::attention::{self, Io, NONE, lowest, operands};
use super::halve;
use crate::select::Finder;
use crate::template::{Ctx, Emission, Operand, Template};
use crate::{CompileError, Region};
use zinc_ir::device::{Caps, MatrixShape};
use zinc_ir::graph::{AttentionSpec, NodeId, Op};
use zinc_ir::kernel::{Builder, MatrixType, Scalar, Type, Val};
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
/// How many tiles are enough for the device: one for each compute unit, of which [`Caps::parallel_tiles`] has eight.
const TILES_PER_UNIT: (u32, u32) = (1, 8);
/// Halves from one line in shared memory to the next beyond the line itself, so that lines begin in different banks.
const PADDING: u32 = 8;
/// Accumulators are left alone where no maximum of the subgroup has risen.
const SKIP_RESCALING: bool = true;
/// The next chunk is loaded into registers while this one is computed, if a lane's part of it is at most so many words of
/// 16 bytes and halves already. Otherwise, about as many are on their way at once.
const PREFETCH: u32 = 8;

/// Where tiles have so few rows, finding a run is written out: all loads at once.
const UNROLLED_ROWS: u32 = 16;
/// Known hardware with wider subgroups keeps elements of A and B several times, and gives each lane a line along `k`. So
/// queries are loaded from shared memory for each chunk, or else there would not be registers enough, and V is transposed
/// while it is staged, so that such a line is one load.
const WIDE: u32 = 32;

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
    /// 16-byte words from one line of K or V to the next.
    fn line(&self, width: u32) -> u32 {
        (width + PADDING) / 8
    }
    /// Quads of halves from one query's weights to the next.
    fn weights_line(&self) -> u32 {
        (self.chunk + PADDING) / 4
    }
    /// Quads from one query's scores to the next: lanes on different queries use different banks.
    fn scores_line(&self) -> u32 {
        self.chunk / 4 + self.lanes_per_query()
    }
    /// See [`WIDE`].
    fn wide(&self) -> bool {
        self.subgroup > WIDE
    }
    /// Bytes of the staged V.
    fn values_bytes(&self) -> u32 {
        let width = self.widths[1];
        if self.wide() { width * self.line(self.chunk) * 16 } else { self.chunk * self.line(width) * 16 }
    }
    fn shared_bytes(&self) -> u32 {
        let staged = self.chunk * self.line(self.widths[0]) * 16 + self.values_bytes();
        let queries = if self.wide() { self.queries() * self.line(self.widths[0]) * 16 } else { 0 };
        staged + queries + self.queries() * (self.scores_line() * 16 + self.weights_line() * 8 + 4)
    }

    fn fits(&self, caps: &Caps) -> bool {
        let [m, n, k] = [self.m(), self.n(), self.k()];
        let whole = |len: u32| len.is_multiple_of(n) && len.is_multiple_of(k);
        self.lanes() <= caps.max_workgroup
            && m.is_power_of_two()
            && (k / 4).is_multiple_of(self.lanes_per_query())
            && n.is_multiple_of(8)
            && whole(self.chunk)
            && self.widths.iter().all(|w| whole(*w) && w.is_multiple_of(8))
            && self.shared_bytes() <= caps.max_shared_bytes
    }

    /// The tile for `rows` rows. Shape and chunks depend on the device and the head size only.
    fn choose(caps: &Caps, spec: &AttentionSpec, rows: u32) -> Option<Tile> {
        let shape = halve::shapes(caps).max_by_key(|s| s.m as u32 * s.n as u32 * s.k as u32)?;
        let (subgroup, widths) = (caps.subgroup_size, [spec.head_dim; 2]);
        let tile = |subgroups, chunk| Tile { shape, subgroup, subgroups, chunk, widths };
        let group = spec.heads / spec.kv_heads;
        let chunk = CHUNKS.into_iter().find(|&chunk| tile(SUBGROUPS[0], chunk).fits(caps));
        let chunk = chunk.or_else(|| CHUNKS.into_iter().find(|&chunk| tile(1, chunk).fits(caps)))?;
        let able = SUBGROUPS.map(|subgroups| tile(subgroups, chunk)).into_iter();
        let able: Vec<Tile> = able.filter(|t| t.fits(caps) && t.rows(group) > 0).collect();
        let fills = |t: &&Tile| {
            rows.div_ceil(t.rows(group)) * spec.kv_heads * TILES_PER_UNIT.1 >= caps.parallel_tiles * TILES_PER_UNIT.0
        };
        able.iter().find(fills).or(able.last()).copied()
    }
}

fn matches(f: &Finder<'_>, node: NodeId) -> Option<Vec<NodeId>> {
    let halved = halve::ending(f, node);
    let (value, _) = halved.unwrap_or((node, node));
    let Op::Attention { append, spec, .. } = f.op(value) else { return None };
    let cached = matches!(f.op(*append), Op::KvAppend { .. });
    // K and V in singles are not to be rounded.
    let singles = [f.ctx.kv.types.k, f.ctx.kv.types.v].contains(&KvType::F32);
    let halves = f.ctx.choices.act != ActPrecision::F32 && !singles;
    let tiles = !f.ctx.caps.native && !attention::row_by_row(f.ctx);
    let wanted = tiles && cached && halves && f.ctx.choices.matrices;
    let able = wanted && Tile::choose(f.ctx.caps, spec, f.ctx.rows(node)).is_some();
    able.then(|| [value].into_iter().chain(halved.map(|h| h.1)).collect())
}

fn emit(ctx: &Ctx<'_>, region: &Region) -> Result<Emission, CompileError> {
    // An attention, perhaps with a rounding to halves behind it.
    let node = region.nodes[0];
    let halved = region.nodes.iter().copied().find(|n| *n != node);
    let (q, layer, spec) = operands(ctx, node)?;
    let rows = ctx.rows(node);
    let tile = Tile::choose(ctx.caps, &spec, rows).ok_or_else(|| ctx.unsupported(node, "no tile fits"))?;
    let per_tile = tile.rows(spec.heads / spec.kv_heads);
    let AttentionSpec { heads, kv_heads, head_dim, .. } = spec;
    let (kv, queries, chunk) = (attention::kv_words(ctx), tile.queries(), tile.chunk);
    let name = format!("attention_matrices_{heads}x{kv_heads}x{head_dim}_{kv}_{queries}x{chunk}");
    // Each row may be a run of its own.
    let several = ctx.bucket.sequences > 1;
    let grid = [rows.div_ceil(per_tile), kv_heads, if several { per_tile } else { 1 }];
    Ok(single(name, tile.lanes(), tile.subgroup, grid, |b, args| {
        let kernel = Kernel {
            b,
            tile,
            spec,
            types: Caps::matrix_types(tile.shape),
            rows,
            several,
            pages_per_sequence: ctx.bucket.context / PAGE_TOKENS,
            io: Io::read(ctx, args, q, layer),
            out: region.gives.contains(&node).then(|| args.write("y", Operand::Value(node))),
            out_halves: halved.map(|h| args.write("halves", Operand::Value(h))),
            keys: b.shared("keys", Type::U32X4, tile.chunk * tile.line(tile.widths[0])),
            values: match tile.wide() {
                true => b.shared("values", Type::U32, tile.values_bytes() / 4),
                false => b.shared("values", Type::U32X4, tile.values_bytes() / 16),
            },
            queries: tile.wide().then(|| {
                b.shared("queries", Type::Vec(Scalar::F16, 4), tile.queries() * tile.line(tile.widths[0]) * 2)
            }),
            scores: b.shared("scores", Type::F32X4, tile.queries() * tile.scores_line()),
            weights: b.shared("weights", Type::Vec(Scalar::F16, 4), tile.queries() * tile.weights_line()),
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
    /// The step has several sequences.
    several: bool,
    pages_per_sequence: u32,
    io: Io<'b>,
    /// The result, as it is and as halves.
    out: Option<Val<'b>>,
    out_halves: Option<Val<'b>>,
    /// Words `[token][element / 8]` of K, padded.
    keys: u32,
    /// The same of V; or transposed, U32 `[element][token / 2]`.
    values: u32,
    /// Quads of halves `[query][element / 4]`, padded, if they are not in registers.
    queries: Option<u32>,
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
    /// Line of its head in q and in the result; in range even if the query is none.
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
        let b = self.b;
        // The last rows see most: they start first.
        let first_row = (b.u32(tiles - 1) - b.tile(0)) * per_tile;
        let run = self.find_run(first_row, per_tile);
        match self.several {
            false => self.run(first_row, &run),
            true => b.if_(run.first.lt(run.end), || self.run(first_row, &run)),
        }
    }

    /// An element of an array of U32 that nothing writes.
    fn word(&self, base: Val<'b>, index: Val<'b>) -> Val<'b> {
        self.b.load_at(Type::U32, base, index * 4, 0, 4, true)
    }

    /// Query number `i` of this lane.
    fn query(&self, i: u32, first_row: Val<'b>, run: &Run<'b>) -> Query<'b> {
        let (b, t) = (self.b, &self.tile);
        let group = self.spec.heads / self.spec.kv_heads;
        let index = self.own() + b.lane() / t.lanes_per_query() + i * t.subgroup;
        let row = first_row + index / group;
        let real = row.ge(run.first) & row.lt(run.end);
        let row = row.min(b.u32(self.rows - 1));
        let head = b.tile(1) * group + index % group;
        let visible = self.word(self.io.visible, row);
        let sees = [lowest(b, &self.spec, visible), visible].map(|t| real.select(t, b.u32(0)));
        Query { index, line: row * self.spec.heads + head, sees, real }
    }

    /// The run with the tile's number along axis 2 among those of its rows; if there is none, it is empty.
    fn find_run(&self, first_row: Val<'b>, per_tile: u32) -> Run<'b> {
        let b = self.b;
        let none = [b.u32(u32::MAX), b.u32(0), b.u32(0), b.u32(0), b.u32(u32::MAX), b.u32(0)];
        let unroll = per_tile <= UNROLLED_ROWS;
        let found = b.for_with(b.u32(0), b.u32(per_tile), b.u32(1), &none, unroll, |i, c| {
            let &[number, sequence, first, end, lowest_seen, highest] = c else { unreachable!("six values") };
            let row = first_row + i;
            let exists = row.lt(self.rows);
            let row = row.min(b.u32(self.rows - 1));
            let (own, starts) = match self.several {
                true => {
                    let own = self.word(self.io.sequence, row);
                    let before = self.word(self.io.sequence, row.max(b.u32(1)) - 1);
                    (own, i.eq(0) | own.ne(before))
                }
                false => (b.u32(0), i.eq(0)),
            };
            let number = starts.select(number + 1, number);
            let member = exists & number.eq(b.tile(2));
            let visible = self.word(self.io.visible, row);
            // Padding sees nothing.
            let lowest = visible.eq(0).select(b.u32(u32::MAX), lowest(b, &self.spec, visible));
            vec![
                number,
                member.select(own, sequence),
                (member & starts).select(row, first),
                member.select(row + 1, end),
                member.select(lowest_seen.min(lowest), lowest_seen),
                member.select(highest.max(visible), highest),
            ]
        });
        Run { sequence: found[1], first: found[2], end: found[3], sees: [found[4], found[5]] }
    }

    /// The rows of a run, from beginning to end.
    fn run(&self, first_row: Val<'b>, run: &Run<'b>) {
        let (b, t) = (self.b, &self.tile);
        let queries: Vec<Query<'b>> = (0..t.queries_per_lane()).map(|i| self.query(i, first_row, run)).collect();
        let q = self.load_queries(&queries);
        let zero = b.matrix_splat(self.types[2], b.f32(0.0));
        let state = State {
            acc: vec![zero; (t.widths[1] / t.n()) as usize],
            maxima: vec![b.f32(NONE); queries.len()],
            sums: vec![b.f32(0.0); queries.len()],
        };
        let state = self.chunks(&q, &queries, run, &state);
        self.store(&queries, &state);
    }

    /// All chunks of a run, for all queries; those of other runs are left as they are.
    fn chunks(&self, q: &[Val<'b>], queries: &[Query<'b>], run: &Run<'b>, state: &State<'b>) -> State<'b> {
        let (b, chunk) = (self.b, self.tile.chunk);
        let all = |i: usize, f: fn(Val<'b>, Val<'b>) -> Val<'b>| {
            queries.iter().map(|q| q.sees[i]).reduce(f).expect("a query")
        };
        // Every query of the subgroup sees these tokens.
        let common = [all(0, Val::max).subgroup_max(), all(1, Val::min).subgroup_min()];
        let start = run.sees[0] / chunk * chunk;
        let flat = state.flat();
        let ahead = if self.prefetches() { self.fetch(run, start) } else { vec![] };
        let end = b.for_(start, run.sees[1], chunk, &[&flat[..], &ahead].concat(), |first, carried| {
            let (flat, ahead) = carried.split_at(flat.len());
            b.barrier();
            match self.prefetches() {
                true => self.put(ahead),
                false => self.stage(run, first),
            }
            b.barrier();
            let ahead = if self.prefetches() { self.fetch(run, first + chunk) } else { vec![] };
            let state = self.chunk(q, queries, common, first, &state.like(flat));
            [&state.flat()[..], &ahead].concat()
        });
        state.like(&end[..flat.len()])
    }
}
