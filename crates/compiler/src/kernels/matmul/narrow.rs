//! Products of few rows on matrix units: weights stream by, inputs stay.
//!
//! ```text
//! workgroup: some features × all rows × a slice of the columns
//!     for each chunk of columns:
//!         lane: loads of its weights, a few units side by side, and of inputs
//!         inputs ─► shared memory                                                         (barrier)
//!         subgroup: m features: a unit of each lane ─► its own shared memory ─A (m×k)─┐   (barrier of the subgroup)
//!                                       inputs ─B (k×n, column-major)─────────────────┴─mul_add─► Acc (features × rows)
//! sums of subgroups and slices, in order ─epilogue─► y
//! ```
//!
//! What bounds such a product is how many weights are under way: a lane asks for all of its units of a chunk before
//! anything else. Columns are divided among the subgroups of a workgroup and, where there are too few features to fill the
//! device, among workgroups, the last of which adds their sums up.

use super::stage::{Asked, Stage};
use super::{Epilogue, Size, quads};
use crate::Ctx;
use crate::cut::{Cut, Cuts};
use crate::kernels::half_shapes;
use crate::kernels::rows::for_items;
use crate::kernels::{CUT_ROWS, arrival};
use zinc_ir::device::{Caps, MatrixShape};
use zinc_ir::kernel::{Builder, MatrixMemory, Type, Val};
use zinc_ir::plan::COUNTERS;
use zinc_ir::quant::{Run, UNIT};

/// Halves in an element of the shared memory, which is 16 bytes.
const EIGHT: u32 = 8;
/// Elements of a unit.
const PIECES: u32 = UNIT / EIGHT;

/// Most rows of a tile: more accumulators leave room for too few subgroups.
const MOST_ROWS: u32 = 64;
/// Up to so many rows the first weights, and all inputs of a lane if they are few, are loaded ahead of the barrier that
/// staging needs. With more, the registers are worth more.
const EARLY_ROWS: u32 = 32;
/// Loads of inputs that a lane has under way at a time.
const AT_ONCE: u32 = 8;

/// Subgroups along features or columns.
const POWERS: [u32; 4] = [8, 4, 2, 1];
/// Most features of a tile, and a multiple of any tile's.
pub(super) const MOST_FEATURES: u32 = POWERS[0] * 16;

/// How a tile is cut: the knobs of this kernel.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Tile {
    pub(super) shape: MatrixShape,
    /// Weights go straight into matrices.
    quads: bool,
    subgroup: u32,
    /// Tiles along rows.
    row_tiles: u32,
    /// Matrices along the rows of a tile: `n` rows each.
    blocks: u32,
    /// Weights that share the inputs.
    sets: u32,
    /// Matrices along features, of each weight: `m` features each.
    along_features: u32,
    /// Subgroups that divide the columns of the same features.
    pub(super) along_columns: u32,
    /// Units of a lane in a chunk, side by side.
    pub(super) ahead: u32,
    /// The weights of the next chunk are loaded before these are multiplied.
    next: bool,
    /// Chunks whose inputs are staged at a time: in between, nobody waits for anybody.
    staged: u32,
    /// Workgroups that divide the columns.
    slices: u32,
}

/// The shapes of matrices that go this way: the lanes of a subgroup share out the lines of a matrix evenly.
pub(super) fn shapes(caps: &Caps) -> impl Iterator<Item = MatrixShape> + '_ {
    half_shapes(caps).filter(|s| s.m.is_multiple_of(4) && caps.matrix_lanes.is_multiple_of(s.m as u32))
}

impl Tile {
    pub(super) fn features(&self) -> u32 {
        self.along_features * self.shape.m as u32
    }
    pub(super) fn rows(&self) -> u32 {
        self.blocks * self.shape.n as u32
    }
    pub(super) fn subgroups(&self) -> u32 {
        self.sets * self.along_features * self.along_columns
    }
    pub(super) fn lanes(&self) -> u32 {
        self.subgroups() * self.subgroup
    }
    pub(super) fn subgroup(&self) -> u32 {
        self.subgroup
    }
    pub(super) fn slices(&self) -> u32 {
        self.slices
    }
    /// Workgroups that share a tile of features: slices, of each tile of rows.
    pub(super) fn along(&self) -> u32 {
        self.row_tiles * self.slices
    }
    /// Which tile of rows the workgroup has. Those of the same weights run side by side.
    pub(super) fn row_tile<'b>(&self, b: &'b Builder) -> Val<'b> {
        b.tile(0) % self.row_tiles
    }
    /// Counters, where slices are added up.
    pub(super) fn counters(&self, tiles: u32) -> u32 {
        tiles * self.row_tiles
    }
    fn early(&self) -> bool {
        self.rows() <= EARLY_ROWS
    }
    /// Units of a row that a subgroup decodes in a step.
    fn units(&self) -> u32 {
        if self.quads { quads::LANES } else { self.subgroup / self.shape.m as u32 }
    }
    /// Units of columns that a workgroup's subgroups have under way.
    pub(super) fn chunk(&self) -> u32 {
        self.units() * self.ahead * self.along_columns
    }
    /// Units of columns in the shared memory.
    pub(super) fn staged_units(&self) -> u32 {
        self.chunk() * self.staged
    }
    /// Pieces from one line of weights to the next: one more than a line, against bank conflicts.
    fn weight_stride(&self) -> u32 {
        self.units() * PIECES + 1
    }
    pub(super) fn input_stride(&self) -> u32 {
        self.staged_units() * PIECES + 1
    }
    /// Pieces of the inputs that are staged at a time.
    fn inputs(&self) -> u32 {
        self.rows() * self.staged_units() * PIECES
    }
    /// Items of the inputs where weights go straight into matrices: four pieces each.
    pub(super) fn input_items(&self) -> u32 {
        self.inputs() / 4
    }
    /// Loads of inputs of a lane.
    fn loads(&self) -> u32 {
        let (items, each) = if self.quads { (self.input_items(), 4) } else { (self.inputs(), 1) };
        items.div_ceil(self.lanes()) * each
    }
    /// Pieces of a subgroup's own.
    fn own(&self) -> u32 {
        if self.quads { 0 } else { self.shape.m as u32 * self.weight_stride() }
    }
    /// F32x4 of a subgroup's accumulators.
    fn accumulators(&self) -> u32 {
        self.rows() * self.shape.m as u32 / 4
    }
    /// Pieces of shared memory: lines of inputs and weights, and afterwards the accumulators.
    fn pieces(&self) -> u32 {
        (self.rows() * self.input_stride() + self.subgroups() * self.own()).max(self.subgroups() * self.accumulators())
    }
    /// The shared memory of a workgroup.
    pub(super) fn memory(&self, b: &Builder) -> u32 {
        b.shared("tile", Type::U32X4, self.pieces())
    }
    /// F32x4 of a workgroup's sums: of each weight, row and four features.
    fn sums(&self) -> u32 {
        self.sets * self.along_features * self.accumulators()
    }
    /// Bytes of what the slices hand over, for so many tiles of features.
    pub(super) fn handed_over(&self, tiles: u32) -> u64 {
        if self.slices == 1 { 0 } else { self.counters(tiles) as u64 * self.slices as u64 * self.sums() as u64 * 16 }
    }

    /// Registers of a lane, about.
    fn registers(&self) -> u32 {
        let lines = if self.quads { quads::LINES } else { 1 };
        50 + self.rows() * self.shape.m as u32 / self.subgroup
            + 6 * lines * self.ahead * if self.next { 2 } else { 1 }
            + if self.early() { 2 * self.loads().min(AT_ONCE) } else { 0 }
    }

    fn fits(&self, caps: &Caps, size: Size) -> bool {
        let units = size.cols / UNIT;
        self.lanes() <= caps.max_workgroup
            && units.is_multiple_of(self.staged_units())
            && units / self.staged_units() >= self.slices
            && self.registers() < 255
            && self.pieces() * 16 + ARRIVAL_BYTES + size.table_bytes <= caps.max_shared_bytes
            && (self.slices == 1 || self.counters(size.features.div_ceil(self.features())) <= COUNTERS)
    }

    /// A tile for so few rows, if the device has half matrices with sums in singles.
    pub(super) fn choose(caps: &Caps, size: Size) -> Option<Tile> {
        if size.rows > CUT_ROWS || size.groups != 1 {
            return None;
        }
        let caps = &caps.for_narrow();
        let padded = |s: &MatrixShape| size.rows.next_multiple_of(s.n as u32);
        let volume = |s: &MatrixShape| s.m as u32 * s.n as u32 * s.k as u32;
        let mut shapes: Vec<MatrixShape> = shapes(caps).collect();
        shapes.sort_by_key(|s| (padded(s), u32::MAX - volume(s)));
        shapes.into_iter().find_map(|shape| Tile::of_shape(caps, size, shape))
    }

    fn of_shape(caps: &Caps, size: Size, shape: MatrixShape) -> Option<Tile> {
        let first = Tile {
            shape,
            quads: caps.quads && (shape.m, shape.k) == (16, 16) && caps.subgroup_size == 32,
            subgroup: caps.subgroup_size,
            row_tiles: size.rows.div_ceil(MOST_ROWS),
            blocks: size.rows.div_ceil(size.rows.div_ceil(MOST_ROWS) * shape.n as u32),
            sets: size.sets,
            along_features: 1,
            along_columns: 1,
            ahead: 1,
            next: false,
            staged: 1,
            slices: 1,
        };
        let even = |t: &Tile| (size.cols / UNIT).is_multiple_of(t.chunk() * t.slices);
        first.sliced(caps, size).filter(even).min_by_key(|t| t.price(caps, size))
    }

    /// All tiles of this shape that fit and stage as this one does.
    fn sliced(self, caps: &Caps, size: Size) -> impl Iterator<Item = Tile> {
        let cuts = POWERS.into_iter().flat_map(|f| POWERS.map(|c| (f, c)));
        let reads = cuts.flat_map(|(f, c)| [4, 2, 1].map(|ahead| (f, c, ahead)));
        let tiles = reads.flat_map(move |(along_features, along_columns, ahead)| {
            (1..=MOST_SLICES).map(move |slices| Tile { along_features, along_columns, ahead, slices, ..self })
        });
        tiles.filter(move |t| t.fits(caps, size))
    }

    /// All tiles of this shape that fit.
    fn others(self, caps: &Caps, size: Size) -> impl Iterator<Item = Tile> {
        let ways = STAGED.into_iter().flat_map(move |staged| [false, true].map(|next| Tile { staged, next, ..self }));
        ways.flat_map(move |way| way.sliced(caps, size))
    }

    /// What can be chosen for a product of this key, and the tile that was.
    pub(super) fn tuned(self, ctx: &Ctx<'_>, size: Size, key: String) -> (Tile, Cuts) {
        let others = || {
            let caps = &ctx.caps.for_narrow();
            let most = 2 * self.price(caps, size);
            let likely = self.others(caps, size).filter(|t| t.price(caps, size) <= most);
            likely.map(|t| t.cut()).collect()
        };
        let cuts = Cuts::new(ctx, key, self.cut(), others);
        (self.with(cuts.used), cuts)
    }

    fn cut(&self) -> Cut {
        Cut {
            subgroups: self.along_features * self.along_columns,
            rows: self.shape.m as u32,
            units: self.ahead,
            ahead: self.next,
            columns: self.along_columns,
            staged: self.staged,
            slices: self.slices,
            ..Cut::ONE
        }
    }

    fn with(self, cut: Cut) -> Tile {
        Tile {
            along_features: cut.subgroups / cut.columns,
            along_columns: cut.columns,
            ahead: cut.units,
            next: cut.ahead,
            staged: cut.staged,
            slices: cut.slices,
            ..self
        }
    }

    /// Cycles of a launch: a formula whose constants were fitted to some two thousand timings on a large card
    /// (docs/internals/performance.md).
    fn price(&self, caps: &Caps, size: Size) -> u64 {
        let compute_units = caps.parallel_tiles.div_ceil(TILES_PER_UNIT).max(1);
        let resident = (REGISTERS / (self.registers() * self.lanes())).min(SHARED / (self.pieces() * 16)).max(1);
        let tiles = size.features.div_ceil(self.features()) * self.along();
        let together = resident.min(tiles.div_ceil(compute_units));
        let lines = if self.quads { quads::LINES } else { 1 };
        let step = self.subgroups() * lines * self.ahead * (41 + self.rows() / 2);
        let chunk = step + self.rows() * self.chunk() * 9 / 2;
        let round =
            (together * chunk).max(1957 + chunk * 4 / 3) * (size.cols / UNIT / self.chunk()).div_ceil(self.slices);
        // Whoever comes last adds up what all slices have.
        let sums = self.slices * self.sums() * 4 / 20;
        let ends = 1231 + if self.slices > 1 { 2452 + sums } else { 0 };
        tiles.div_ceil(compute_units * resident) as u64 * (round + ends) as u64
    }
}

/// Bytes of shared memory that [`arrival::last`] takes.
const ARRIVAL_BYTES: u32 = 4;
/// Registers and bytes of shared memory of a compute unit.
const REGISTERS: u32 = 65536;
const SHARED: u32 = 227 << 10;
/// Chunks whose inputs may be staged together.
const STAGED: [u32; 5] = [1, 2, 4, 8, 16];
/// Most workgroups that divide columns among them.
const MOST_SLICES: u32 = 16;
/// How many tiles of [`Caps::parallel_tiles`] make one compute unit's share.
const TILES_PER_UNIT: u32 = 8;

/// Of four halves in two words, the first and third, and the second and fourth. It is its own inverse.
pub(super) fn pairs<'b>([low, high]: [Val<'b>; 2]) -> [Val<'b>; 2] {
    [low & 0xffff | high << 16, low >> 16 | high & 0xffff_0000u32]
}

/// What slices need to become one sum.
pub(super) struct Slices<'b> {
    /// Sums of slices: `[tile of features][tile of rows][slice][`[`Tile::sums`]`]` of F32x4.
    pub(super) partial: Val<'b>,
    pub(super) counters: Val<'b>,
    /// Of [`arrival::last_in`].
    pub(super) arrived: u32,
}

/// Tile (slice and rows, features), with the [memory](Tile::memory) of the workgroup.
pub(super) fn body<'b>(
    b: &'b Builder,
    t: &Tile,
    s: &Stage<'_, 'b>,
    end: &Epilogue<'b>,
    slices: Option<&Slices<'b>>,
    memory: u32,
) {
    let own = b.subgroup_id() * t.own() + t.rows() * t.input_stride();
    let place = [b.subgroup_id() / t.along_columns, b.subgroup_id() % t.along_columns];
    let tile = Body { b, t, s, memory, own, place };
    // Slices that do not come out even differ by one turn.
    let turns = s.units() / t.staged_units();
    let [from, to] = match t.slices {
        1 => [b.u32(0), b.u32(turns)],
        slices => [0, 1].map(|next| (tile.slice() + next) * turns / slices),
    };
    let sums = if t.next { tile.sums_ahead(from, to) } else { tile.sums(from, to) };
    tile.finish(end, slices, &sums);
}

/// A kernel under construction.
pub(super) struct Body<'a, 'b> {
    pub(super) b: &'b Builder,
    pub(super) t: &'a Tile,
    pub(super) s: &'a Stage<'a, 'b>,
    /// The shared memory: lines of inputs, then each subgroup's weights.
    pub(super) memory: u32,
    /// This subgroup's first piece of weights.
    own: Val<'b>,
    /// Its place along features (of all weights) and columns.
    pub(super) place: [Val<'b>; 2],
}

impl<'b> Body<'_, 'b> {
    /// The slice of the columns that is this workgroup's, and its tile of features and rows among all.
    fn slice(&self) -> Val<'b> {
        self.b.tile(0) / self.t.row_tiles
    }
    fn tile(&self) -> Val<'b> {
        self.b.tile(1) * self.t.row_tiles + self.t.row_tile(self.b)
    }

    fn zero(&self) -> Vec<Val<'b>> {
        let [_, _, acc] = Caps::matrix_types(self.t.shape);
        vec![self.b.matrix_splat(acc, self.b.f32(0.0)); self.t.blocks as usize]
    }

    /// The products of turns `from` to `to`, summed.
    fn sums(&self, from: Val<'b>, to: Val<'b>) -> Vec<Val<'b>> {
        let (b, t) = (self.b, self.t);
        b.for_(from, to, 1, &self.zero(), |turn, sums| {
            let first = turn * t.staged_units();
            let sums = if t.early() {
                let asked = self.ask(first);
                self.stage_inputs(first);
                self.multiply(b.u32(0), &asked, sums)
            } else {
                self.stage_inputs(first);
                self.multiply(b.u32(0), &self.ask(first), sums)
            };
            if t.staged == 1 {
                return sums;
            }
            b.for_(b.u32(1), b.u32(t.staged), 1, &sums, |chunk, sums| {
                let asked = self.ask(first + chunk * t.chunk());
                self.multiply(chunk, &asked, sums)
            })
        })
    }

    /// The same. While a chunk is multiplied and inputs are staged, the weights of the next are under way.
    fn sums_ahead(&self, from: Val<'b>, to: Val<'b>) -> Vec<Val<'b>> {
        let (b, t) = (self.b, self.t);
        let loads = |asked: Vec<Vec<Asked<'b>>>| asked.into_iter().flatten().flat_map(|a| a.loads).collect::<Vec<_>>();
        // Behind the last chunk there is nothing to load: the last again.
        let last = to * t.staged_units() - t.chunk();
        let step = |first: Val<'b>, chunk: Val<'b>, state: &[Val<'b>]| {
            let here = first + chunk * t.chunk();
            let (sums, loaded) = state.split_at(t.blocks as usize);
            let next = loads(self.ask((here + t.chunk()).min(last)));
            [self.multiply(chunk, &self.asked(here, loaded), sums), next].concat()
        };
        let state = [self.zero(), loads(self.ask(from * t.staged_units()))].concat();
        let state = b.for_(from, to, 1, &state, |turn, state| {
            let first = turn * t.staged_units();
            self.stage_inputs(first);
            match t.staged {
                1 => step(first, b.u32(0), state),
                staged => b.for_(b.u32(0), b.u32(staged), 1, state, |chunk, state| step(first, chunk, state)),
            }
        });
        state[..t.blocks as usize].to_vec()
    }

    /// What [`Body::ask`] gives for unit `first`, if `loaded` is what it had loaded.
    fn asked(&self, first: Val<'b>, loaded: &[Val<'b>]) -> Vec<Vec<Asked<'b>>> {
        let mut loaded = loaded.iter();
        // Nobody reads what is loaded here: it is pruned.
        let mut asked = self.ask(first);
        for load in asked.iter_mut().flatten().flat_map(|a| &mut a.loads) {
            *load = *loaded.next().expect("as many loads as were asked for");
        }
        asked
    }

    /// Brings the inputs from unit `first` on to the shared memory, when all have done with those before.
    fn stage_inputs(&self, first: Val<'b>) {
        let (b, t, s) = (self.b, self.t, self.s);
        let items = if t.quads { t.input_items() } else { t.inputs() };
        let read = |i| if t.quads { self.read_quad_inputs(first, i) } else { vec![self.read_inputs(first, i)] };
        let keep = |i, real, read: &[Val<'b>]| {
            b.if_(real, || if t.quads { self.keep_quad_inputs(i, read) } else { self.keep_inputs(i, read[0]) });
        };
        if t.early() && t.loads() <= AT_ONCE {
            let own = s.items(b, items);
            let read: Vec<Vec<Val<'b>>> = own.iter().map(|(i, _)| read(*i)).collect();
            b.barrier();
            own.into_iter().zip(&read).for_each(|((i, real), read)| keep(i, real, read));
        } else {
            b.barrier();
            let together = t.lanes() * if t.quads { AT_ONCE / 4 } else { AT_ONCE / 2 };
            b.for_(b.u32(0), b.u32(items), together, &[], |first, _| {
                let own = (0..together / t.lanes()).map(|turn| first + b.local_id() + turn * t.lanes());
                let whole = items.is_multiple_of(together);
                let own = own.map(|i| if whole { (i, b.bool(true)) } else { (i.min(b.u32(items - 1)), i.lt(items)) });
                let own: Vec<(Val<'b>, Val<'b>)> = own.collect();
                let read: Vec<Vec<Val<'b>>> = own.iter().map(|(i, _)| read(*i)).collect();
                own.into_iter().zip(&read).for_each(|((i, real), read)| keep(i, real, read));
                vec![]
            });
        }
        b.barrier();
    }

    /// Piece `i` of the inputs from unit `first` on, in the order in which weights are decoded: of each four columns the first
    /// and third, then the others.
    fn read_inputs(&self, first: Val<'b>, i: Val<'b>) -> Val<'b> {
        let (b, t, s) = (self.b, self.t, self.s);
        let (unit, piece) = (i / PIECES % t.staged_units(), i % PIECES);
        let col = s.first_column(b, first + unit, piece.ge(2)) + piece % 2 * EIGHT;
        let eight = s.eight_halves(b, s.input_row(b, i / (t.staged_units() * PIECES)) + col);
        let words = [0, 2].map(|four| pairs([eight.lane(four), eight.lane(four + 1)]));
        b.compose(&words.concat())
    }

    fn keep_inputs(&self, i: Val<'b>, eight: Val<'b>) {
        let pieces = self.t.staged_units() * PIECES;
        self.b.shared_store(self.memory, i / pieces * self.t.input_stride() + i % pieces, eight);
    }

    /// Asks for this lane's units of the chunk that starts at unit `first`: of each of its lines.
    fn ask(&self, first: Val<'b>) -> Vec<Vec<Asked<'b>>> {
        let (b, t) = (self.b, self.t);
        let (lines, within) = match t.quads {
            true => {
                let (lines, within) = self.quad_lines();
                (lines.to_vec(), within)
            }
            false => (vec![self.place[0] * t.shape.m as u32 + b.lane() / t.units()], b.lane() % t.units()),
        };
        let together = self.together();
        let unit = |i: u32| first + self.unit(self.place[1], within, b.u32(i));
        let of_line =
            |line| (0..t.ahead).step_by(together as usize).map(move |i| self.s.ask(b, line, unit(i), together));
        lines.into_iter().map(|line| of_line(line).collect()).collect()
    }

    /// Units that are loaded as one.
    fn together(&self) -> u32 {
        if self.t.ahead.is_multiple_of(2) && self.s.has_pairs() { 2 } else { 1 }
    }

    /// The unit of a chunk that is number `within` of those that a subgroup decodes in step `step`, for its place along
    /// columns. What lanes load at a time is side by side.
    pub(super) fn unit(&self, place: Val<'b>, within: Val<'b>, step: Val<'b>) -> Val<'b> {
        let (t, together) = (self.t, self.together());
        let first = place * (t.units() * t.ahead) + (step / together * t.units() + within) * together;
        first + step % together
    }

    /// Adds the products of chunk number `chunk` of those that are staged.
    fn multiply(&self, chunk: Val<'b>, asked: &[Vec<Asked<'b>>], sums: &[Val<'b>]) -> Vec<Val<'b>> {
        let decode = |a: &Asked<'b>| self.s.decode(self.b, a);
        let mut sums = sums.to_vec();
        let mut step = 0;
        for i in 0..asked[0].len() {
            let lines: Vec<Vec<[Run<'b>; 2]>> = asked.iter().map(|line| decode(&line[i])).collect();
            for of_step in 0..lines[0].len() {
                sums = match &lines[..] {
                    [one] => self.step(chunk, step, &one[of_step], &sums),
                    [low, high] => self.quad_step(chunk, step, [&low[of_step], &high[of_step]], &sums),
                    _ => unreachable!("a lane has one line or two"),
                };
                step += 1;
            }
        }
        sums
    }

    /// Adds the products of step `step` of a chunk: a unit of each lane.
    fn step(&self, chunk: Val<'b>, step: u32, runs: &[Run<'b>; 2], sums: &[Val<'b>]) -> Vec<Val<'b>> {
        let (b, t) = (self.b, self.t);
        let (line, within) = (b.lane() / t.units(), b.lane() % t.units());
        // The step before has been multiplied.
        b.subgroup_barrier();
        let at = self.own + line * t.weight_stride() + within * PIECES;
        for (p, piece) in (0..).zip(runs.iter().flat_map(|run| run.weights.paired_halves(b))) {
            b.shared_store(self.memory, at + p, piece);
        }
        b.subgroup_barrier();
        let [a, bt, _] = Caps::matrix_types(t.shape);
        let (n, k) = (t.shape.n as u32, t.shape.k as u32);
        let load = |ty, index: Val<'b>, stride: u32, column_major| {
            let memory = MatrixMemory::Shared { array: self.memory, index: index.value() };
            b.matrix_load(ty, memory, b.u32(stride), column_major)
        };
        let mut sums = sums.to_vec();
        for col in (0..t.units() * UNIT).step_by(k as usize) {
            let w = load(a, self.own + col / EIGHT, t.weight_stride(), false);
            // The unit of the lanes that have decoded this column, within those of the subgroup.
            let unit = self.unit(self.place[1], b.u32(col / UNIT), b.u32(step));
            let first = (chunk * t.chunk() + unit) * PIECES + col % UNIT / EIGHT;
            for (block, sum) in (0..).zip(&mut sums) {
                let x = load(bt, first + block * n * t.input_stride(), t.input_stride(), true);
                *sum = b.matrix_mul_add(w, x, *sum);
            }
        }
        sums
    }

    /// Adds up what the subgroups and the slices have, and hands it to the epilogue.
    fn finish(&self, end: &Epilogue<'b>, slices: Option<&Slices<'b>>, sums: &[Val<'b>]) {
        let (b, t) = (self.b, self.t);
        let per_row = t.shape.m as u32 / 4;
        b.barrier();
        for (block, sum) in (0..).zip(sums) {
            // A column of the accumulator is a row of the result.
            let index = b.subgroup_id() * t.accumulators() + block * t.shape.n as u32 * per_row;
            let memory = MatrixMemory::Shared { array: self.memory, index: index.value() };
            b.matrix_store(*sum, memory, b.u32(per_row), true);
        }
        b.barrier();
        // Item (set, features, row, four features), summed over the subgroups that share its columns.
        let of_subgroups = |item: Val<'b>| {
            let (place, quad) = (item / t.accumulators(), item % t.accumulators());
            let at = |column: u32| (place * t.along_columns + column) * t.accumulators() + quad;
            let part = |column| b.shared_load(self.memory, at(column)).bitcast(Type::F32X4);
            (0..t.along_columns).map(part).reduce(|sum, x| sum + x).expect("subgroups")
        };
        let Some(slices) = slices else { return self.store(end, of_subgroups) };
        let (number, slice) = (self.tile(), self.slice());
        let tile = number * t.slices;
        for_items(b, self.s.lanes, t.sums(), |item| {
            b.store(slices.partial, ((tile + slice) * t.sums() + item) * 16, of_subgroups(item), 16);
        });
        arrival::last_in(b, slices.arrived, slices.counters, number, b.u32(t.slices), || {
            self.store(end, |item| {
                let part = |slice: Val<'b>| {
                    let at = ((tile + slice) * t.sums() + item) * 16;
                    b.load_at(Type::F32X4, slices.partial, at, 0, 16, false)
                };
                let first = part(b.u32(0));
                (1..t.slices).fold(first, |sum, slice| sum + part(b.u32(slice)))
            });
        });
    }

    /// Hands the sums of all items to the epilogue.
    fn store(&self, end: &Epilogue<'b>, sum: impl Fn(Val<'b>) -> Val<'b>) {
        let (b, t) = (self.b, self.t);
        let per_row = t.shape.m as u32 / 4;
        for_items(b, self.s.lanes, t.along_features * t.accumulators(), |item| {
            let of_sets: Vec<Val<'b>> =
                (0..t.sets).map(|set| sum(item + set * (t.along_features * t.accumulators()))).collect();
            let (place, quad) = (item / t.accumulators(), item % t.accumulators());
            let feature = self.s.first_feature + place * t.shape.m as u32 + quad % per_row * 4;
            end.store(b, feature, self.s.lines.first + quad / per_row, &of_sets);
        });
    }
}
