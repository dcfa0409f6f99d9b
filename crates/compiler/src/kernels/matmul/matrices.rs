//! Tiles of cooperative matrices: inputs and weights as halves, sums in singles.
//!
//! ```text
//! inputs [rows][units·32]     ─A (m×k)──────────────┐
//! weights[features][units·32] ─B (k×n, column-major)┴─mul_add─► Acc (m×n) ─► shared ─epilogue─► y
//! ```
//!
//! A step reads its lines, waits until the step before is multiplied, and keeps them in shared memory. Nothing is read
//! ahead: the workgroups that share a compute unit fill each other's gaps, and registers for lines under way would leave
//! room for fewer of them. Each subgroup owns a block of accumulators; finished ones go through shared memory, because
//! which lane holds which element is the driver's secret.

use super::stage::Stage;
use super::{Epilogue, Size};
use crate::kernels::half_shapes;
use zinc_ir::device::{Caps, MatrixShape};
use zinc_ir::kernel::{Builder, MatrixMemory, Type, Val};
use zinc_ir::quant::{Run, UNIT};

/// How a tile is cut: the knobs of this kernel.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Tile {
    shape: MatrixShape,
    subgroup: u32,
    /// Subgroups along rows, then along features.
    subgroups: [u32; 2],
    /// Accumulators of a subgroup along rows, then along features.
    each: [u32; 2],
    /// Units of columns per step.
    units: u32,
}

/// What to choose from, largest first: subgroups and accumulators along rows and features.
const CUTS: &[([u32; 2], [u32; 2])] = &[
    ([2, 4], [4, 4]),
    ([2, 4], [4, 2]),
    ([2, 2], [4, 4]),
    ([2, 2], [4, 2]),
    ([2, 2], [2, 4]),
    ([2, 2], [4, 1]),
    ([2, 2], [2, 2]),
    ([1, 4], [4, 2]),
    ([1, 4], [2, 2]),
    ([1, 4], [4, 1]),
    ([1, 4], [2, 1]),
    ([1, 4], [1, 2]),
    ([1, 4], [1, 1]),
    ([1, 2], [1, 1]),
    ([1, 1], [1, 1]),
];

/// Subgroups without rows multiply nothing in tiles of experts, of which the last is half full on average.
const SKIP_EMPTY: bool = true;

/// Halves in an element of the shared memory, which is 16 bytes.
const EIGHT: u32 = 8;

impl Tile {
    pub(super) fn rows(&self) -> u32 {
        self.subgroups[0] * self.each[0] * self.shape.m as u32
    }
    pub(super) fn features(&self) -> u32 {
        self.subgroups[1] * self.each[1] * self.shape.n as u32
    }
    pub(super) fn subgroups(&self) -> u32 {
        self.subgroups[0] * self.subgroups[1]
    }
    /// F32x4 of one accumulator.
    fn quads(&self) -> u32 {
        self.shape.m as u32 * self.shape.n as u32 / 4
    }
    /// Pieces of 16 bytes from one line to the next: one more than a line, so that eight lanes on eight lines meet no
    /// memory bank twice.
    fn stride(&self) -> u32 {
        self.units * UNIT / EIGHT + 1
    }
    /// Pieces of shared memory: the lines, and afterwards at least one accumulator per subgroup and weight.
    fn pieces(&self, sets: u32) -> u32 {
        ((sets * self.features() + self.rows()) * self.stride()).max(self.subgroups() * sets * self.quads())
    }
    pub(super) fn subgroup(&self) -> u32 {
        self.subgroup
    }
    pub(super) fn lanes(&self) -> u32 {
        self.subgroups() * self.subgroup
    }
    /// Registers of a lane that hold accumulators.
    fn registers(&self, sets: u32) -> u32 {
        sets * self.each[0] * self.each[1] * 4 * self.quads() / self.subgroup
    }

    /// The cheapest tile that the device can hold, if it has half matrices with sums in singles.
    pub(super) fn choose(caps: &Caps, size: Size) -> Option<Tile> {
        let volume = |s: &MatrixShape| s.m as u32 * s.n as u32 * s.k as u32;
        let shape = half_shapes(caps).filter(|s| s.n.is_multiple_of(4)).max_by_key(volume)?;
        let tile = |(&(subgroups, each), units)| Tile { shape, subgroup: caps.subgroup_size, subgroups, each, units };
        let tiles = CUTS.iter().flat_map(|cut| [2, 1].map(|units| tile((cut, units))));
        tiles.filter(|t| t.fits(caps, size)).min_by_key(|t| t.price(caps, size))
    }

    fn fits(&self, caps: &Caps, size: Size) -> bool {
        self.lanes() <= caps.max_workgroup
            && (size.cols / UNIT).is_multiple_of(self.units)
            && (self.registers(size.sets) <= 128 || self.each == [1, 1])
            && self.pieces(size.sets) * 16 + size.table_bytes <= caps.max_shared_bytes
    }

    /// Cycles of a launch, as measured on a large card (docs/internals/performance.md): workgroups on one compute unit
    /// take turns, and one alone waits for its loads.
    fn price(&self, caps: &Caps, size: Size) -> u64 {
        let compute_units = caps.parallel_tiles.div_ceil(TILES_PER_UNIT).max(1);
        // Registers decide how many workgroups a compute unit holds; a lane needs about this many besides.
        let registers = (94 + self.registers(size.sets) * 5 / 4).min(255);
        let resident = (REGISTERS / (registers * self.lanes())).max(1);
        let tiles = size.features.div_ceil(self.features()) * size.row_tiles(self.rows());
        let lines = size.sets * self.features();
        let multiply = lines * self.rows() * UNIT / MULTIPLIES;
        let step = self.units * (multiply + lines * 2 + self.rows() * (UNIT / EIGHT) / 3);
        let together = resident.min(tiles.div_ceil(compute_units));
        let round = (together * step).max(600 + step * 3 / 2);
        let rounds = tiles.div_ceil(compute_units * resident);
        rounds as u64 * round as u64 * (size.cols / UNIT / self.units) as u64
    }
}

/// How many tiles of [`Caps::parallel_tiles`] make one compute unit's share.
const TILES_PER_UNIT: u32 = 8;
/// Registers of a compute unit.
const REGISTERS: u32 = 65536;
/// Multiply-adds per cycle of a compute unit.
const MULTIPLIES: u32 = 1024;

pub(super) fn body<'b>(b: &'b Builder, t: &Tile, s: &Stage<'_, 'b>, end: &Epilogue<'b>) {
    let memory = b.shared("tile", Type::U32X4, t.pieces(s.size.sets));
    let place = [b.subgroup_id() / t.subgroups[1], b.subgroup_id() % t.subgroups[1]];
    let mut tile = Body { b, t, s, memory, place, rows: vec![], busy: None };
    tile.rows = tile.input_items().iter().map(|(i, _)| s.input_row(b, *i / (t.units * (UNIT / EIGHT)))).collect();
    let first = || s.lines.first + place[0] * (t.each[0] * t.shape.m as u32);
    tile.busy = (SKIP_EMPTY && s.size.groups > 1 && t.subgroups[0] > 1).then(|| first().le(s.lines.last));
    let [_, _, acc] = Caps::matrix_types(t.shape);
    let count = s.size.sets * t.each[0] * t.each[1];
    let zero = vec![b.matrix_splat(acc, b.f32(0.0)); count as usize];
    let sums = b.for_(b.u32(0), b.u32(s.units() / t.units), 1, &zero, |step, sums| {
        let lines = tile.read(step);
        b.barrier();
        tile.keep(&lines);
        b.barrier();
        tile.multiply(sums)
    });
    b.barrier();
    tile.finish(end, &sums);
}

/// A kernel under construction.
struct Body<'a, 'b> {
    b: &'b Builder,
    t: &'a Tile,
    s: &'a Stage<'a, 'b>,
    /// The shared memory: weight lines, then input lines.
    memory: u32,
    /// This subgroup's place along rows and features.
    place: [Val<'b>; 2],
    /// Of this lane's pieces of inputs: the element offsets of their rows, which do not change from step to step.
    rows: Vec<Val<'b>>,
    /// Has this subgroup rows, where tiles are often not full?
    busy: Option<Val<'b>>,
}

/// What a lane has read of a step.
struct Lines<'b> {
    weights: Vec<[Run<'b>; 2]>,
    inputs: Vec<Val<'b>>,
}

impl<'b> Body<'_, 'b> {
    fn weight_items(&self) -> Vec<(Val<'b>, Val<'b>)> {
        self.s.items(self.b, self.s.weight_lines() * self.t.units)
    }

    /// Pieces of eight inputs.
    fn input_items(&self) -> Vec<(Val<'b>, Val<'b>)> {
        self.s.items(self.b, self.s.rows * self.t.units * (UNIT / EIGHT))
    }

    /// Reads step `step` from global memory.
    fn read(&self, step: Val<'b>) -> Lines<'b> {
        let (b, s, units) = (self.b, self.s, self.t.units);
        let pieces = UNIT / EIGHT;
        let weights = self.weight_items().into_iter().map(|(i, _)| s.weights(b, i / units, step * units + i % units));
        let weights = weights.collect();
        let inputs = self.input_items().into_iter().zip(&self.rows).map(|((i, _), row)| {
            let (unit, piece) = (i / pieces % units, i % pieces);
            let col = s.first_column(b, step * units + unit, piece.ge(2)) + piece % 2 * EIGHT;
            s.eight_halves(b, *row + col)
        });
        Lines { weights, inputs: inputs.collect() }
    }

    /// Keeps what was read in the shared memory.
    fn keep(&self, lines: &Lines<'b>) {
        let (b, units, stride) = (self.b, self.t.units, self.t.stride());
        for ((i, real), runs) in self.weight_items().into_iter().zip(&lines.weights) {
            let at = i / units * stride + i % units * (UNIT / EIGHT);
            let pieces: Vec<Val<'b>> = runs.iter().flat_map(|run| run.weights.halves(b)).collect();
            b.if_(real, || {
                for (p, piece) in (0..).zip(pieces) {
                    b.shared_store(self.memory, at + p, piece);
                }
            });
        }
        let pieces = units * (UNIT / EIGHT);
        for ((i, real), eight) in self.input_items().into_iter().zip(&lines.inputs) {
            let at = (i / pieces + self.s.weight_lines()) * stride + i % pieces;
            b.if_(real, || b.shared_store(self.memory, at, *eight));
        }
    }

    /// Adds the columns in the shared memory to the sums `[set][row block][feature block]`, in order.
    fn multiply(&self, sums: &[Val<'b>]) -> Vec<Val<'b>> {
        let k = self.t.shape.k as u32;
        let steps = 0..self.t.units * UNIT / k;
        let multiply = || steps.fold(sums.to_vec(), |sums, step| self.multiply_step(step * k, &sums));
        match self.busy {
            Some(busy) => self.b.if_else(busy, multiply, || sums.to_vec()),
            None => multiply(),
        }
    }

    fn multiply_step(&self, col: u32, sums: &[Val<'b>]) -> Vec<Val<'b>> {
        let (b, t, s) = (self.b, self.t, self.s);
        let [a, bt, _] = Caps::matrix_types(t.shape);
        let load = |ty, line: Val<'b>, column_major| {
            let index = (line * t.stride() + col / EIGHT).value();
            b.matrix_load(ty, MatrixMemory::Shared { array: self.memory, index }, b.u32(t.stride()), column_major)
        };
        let [m, n] = [t.shape.m as u32, t.shape.n as u32];
        let x: Vec<Val<'b>> =
            (0..t.each[0]).map(|i| load(a, (self.place[0] * t.each[0] + i) * m + s.weight_lines(), false)).collect();
        let mut next = sums.to_vec();
        for set in 0..s.size.sets {
            for j in 0..t.each[1] {
                let w = load(bt, (self.place[1] * t.each[1] + j) * n + set * s.features, true);
                for (i, x) in x.iter().enumerate() {
                    let at = ((set * t.each[0] + i as u32) * t.each[1] + j) as usize;
                    next[at] = b.matrix_mul_add(*x, w, next[at]);
                }
            }
        }
        next
    }

    /// The accumulators of every subgroup through its part of the shared memory to the epilogue, as many at a time as
    /// it holds.
    fn finish(&self, end: &Epilogue<'b>, sums: &[Val<'b>]) {
        let (b, t, sets) = (self.b, self.t, self.s.size.sets);
        let (quads, blocks) = (t.quads(), t.each[0] * t.each[1]);
        let at_once = (t.pieces(sets) / (t.subgroups() * sets * quads)).clamp(1, blocks);
        let own = b.subgroup_id() * (at_once * sets * quads);
        let per_line = t.shape.n as u32 / 4;
        for first in (0..blocks).step_by(at_once as usize) {
            let now = first..(first + at_once).min(blocks);
            for block in now.clone() {
                for set in 0..sets {
                    let index = (own + ((block - first) * sets + set) * quads).value();
                    let memory = MatrixMemory::Shared { array: self.memory, index };
                    b.matrix_store(sums[(set * blocks + block) as usize], memory, b.u32(per_line), false);
                }
            }
            b.barrier();
            for block in now.clone() {
                let [i, j] = [block / t.each[1], block % t.each[1]];
                let feature = self.s.first_feature + (self.place[1] * t.each[1] + j) * t.shape.n as u32;
                let row = self.s.lines.first + (self.place[0] * t.each[0] + i) * t.shape.m as u32;
                b.for_(b.lane(), b.u32(quads), t.subgroup, &[], |q, _| {
                    let of_set = |set: u32| {
                        let at = own + q + ((block - first) * sets + set) * quads;
                        b.shared_load(self.memory, at).bitcast(Type::F32X4)
                    };
                    let of_sets: Vec<Val<'b>> = (0..sets).map(of_set).collect();
                    end.store(b, feature + q % per_line * 4, row + q / per_line, &of_sets);
                    vec![]
                });
            }
            if now.end < blocks {
                b.barrier();
            }
        }
    }
}
