//! Tiles of cooperative matrices: inputs and weights as halves, sums in singles.
//!
//! ```text
//! inputs[rows][32] ─A (m×k)─┐
//! weights[features][32] ─B (k×n, column-major)─┴─mul_add─► Acc (m×n) ─► shared ─epilogue─► y
//! ```
//!
//! Each subgroup owns a block of accumulators. Finished ones go through shared memory, one per subgroup at a time,
//! because which lane holds which element is the driver's secret.

use super::stage::{self, Arrays, Stage};
use super::{Epilogue, Size, Work, cost};
use zinc_ir::device::{Caps, MatrixShape};
use zinc_ir::kernel::{Builder, MatrixMemory, Scalar, Type, Val};
use zinc_ir::quant::UNIT;

/// How a tile is cut: the knobs of this kernel.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Tile {
    shape: MatrixShape,
    subgroup: u32,
    /// Subgroups along rows, then along features.
    subgroups: [u32; 2],
    /// Accumulators of a subgroup along rows, then along features.
    each: [u32; 2],
}

/// What to choose from, largest first: subgroups and accumulators along rows and features.
const CUTS: &[([u32; 2], [u32; 2])] = &[
    ([2, 2], [4, 4]),
    ([2, 2], [2, 4]),
    ([2, 2], [2, 2]),
    ([1, 4], [2, 2]),
    ([1, 4], [2, 1]),
    ([1, 4], [1, 1]),
    ([1, 2], [1, 1]),
    ([1, 1], [1, 1]),
];

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
    /// Elements of one accumulator.
    fn elements(&self) -> u32 {
        self.shape.m as u32 * self.shape.n as u32
    }

    /// The cheapest tile that the device can hold, if it has half matrices with sums in singles.
    pub(super) fn choose(caps: &Caps, size: Size) -> Option<Tile> {
        let usable = |s: &&MatrixShape| {
            s.input == Scalar::F16 && s.acc == Scalar::F32 && s.k.is_multiple_of(4) && UNIT.is_multiple_of(s.k as u32)
        };
        let volume = |s: &&MatrixShape| s.m as u32 * s.n as u32 * s.k as u32;
        let shape = *caps.matrices.iter().filter(usable).max_by_key(volume)?;
        let tiles = CUTS.iter().map(|&(subgroups, each)| Tile { shape, subgroup: caps.subgroup_size, subgroups, each });
        tiles.filter(|t| t.fits(caps, size)).min_by_key(|t| t.price(caps, size))
    }

    fn fits(&self, caps: &Caps, size: Size) -> bool {
        let lines = size.sets * self.features() + self.rows();
        let staged = size.sets * self.subgroups() * self.elements() * 4;
        let registers = size.sets * self.each[0] * self.each[1] * self.elements() / self.subgroup;
        self.subgroups() * self.subgroup <= caps.max_workgroup
            && (registers <= 128 || self.each == [1, 1])
            && Arrays::bytes(lines, true) + staged + size.table_bytes <= caps.max_shared_bytes
    }

    fn price(&self, caps: &Caps, size: Size) -> u64 {
        let [rows, features] = [self.each[0], size.sets * self.each[1]];
        // Matrix units make about eight multiply-adds per lane and cycle; a load moves its elements once.
        let multiplies = rows * features * self.elements() * UNIT / (8 * self.subgroup);
        let loads = (rows * self.shape.m as u32 + features * self.shape.n as u32) * UNIT / self.subgroup;
        let lanes = self.subgroups() * self.subgroup;
        let work = Work { lanes, features: self.features(), rows: self.rows(), sums: multiplies + loads };
        cost(caps.parallel_tiles, size, &work)
    }
}

pub(super) fn body<'b>(b: &'b Builder, t: &Tile, s: &Stage<'_, 'b>, end: &Epilogue<'b>) {
    let arrays = Arrays::declare(b, s, true);
    let [_, _, acc] = Caps::matrix_types(t.shape);
    let place = [b.subgroup_id() / t.subgroups[1], b.subgroup_id() % t.subgroups[1]];
    let count = s.size.sets * t.each[0] * t.each[1];
    let zero = vec![b.matrix_splat(acc, b.f32(0.0)); count as usize];
    let sums = b.for_(b.u32(0), b.u32(s.size.cols / UNIT), 1, &zero, |unit, sums| {
        stage::unit(b, s, &arrays, unit);
        b.barrier();
        let k = t.shape.k as u32;
        let next = (0..UNIT / k).fold(sums.to_vec(), |sums, step| multiply(b, t, s, &arrays, place, step * k, &sums));
        b.barrier();
        next
    });
    finish(b, t, s, end, place, &sums);
}

/// Adds `k` columns from column `col` to the sums `[set][row block][feature block]`.
fn multiply<'b>(
    b: &'b Builder,
    t: &Tile,
    s: &Stage<'_, 'b>,
    arrays: &Arrays,
    place: [Val<'b>; 2],
    col: u32,
    sums: &[Val<'b>],
) -> Vec<Val<'b>> {
    let [a, bt, _] = Caps::matrix_types(t.shape);
    let load = |ty, array, line: Val<'b>, column_major| {
        let index = (line * arrays.stride + col / 4).value();
        b.matrix_load(ty, MatrixMemory::Shared { array, index }, b.u32(arrays.stride), column_major)
    };
    let [m, n] = [t.shape.m as u32, t.shape.n as u32];
    let x: Vec<Val<'b>> =
        (0..t.each[0]).map(|i| load(a, arrays.inputs, (place[0] * t.each[0] + i) * m, false)).collect();
    let mut next = sums.to_vec();
    for set in 0..s.size.sets {
        for j in 0..t.each[1] {
            let line = (place[1] * t.each[1] + j) * n + set * s.features;
            let w = load(bt, arrays.weights, line, true);
            for (i, x) in x.iter().enumerate() {
                let at = ((set * t.each[0] + i as u32) * t.each[1] + j) as usize;
                next[at] = b.matrix_mul_add(*x, w, next[at]);
            }
        }
    }
    next
}

/// One accumulator of every subgroup at a time through shared memory to the epilogue.
fn finish<'b>(b: &'b Builder, t: &Tile, s: &Stage<'_, 'b>, end: &Epilogue<'b>, place: [Val<'b>; 2], sums: &[Val<'b>]) {
    let [m, n] = [t.shape.m as u32, t.shape.n as u32];
    let staged = b.shared("sums", Type::F32, s.size.sets * t.subgroups() * t.elements());
    let per_set = (t.each[0] * t.each[1]) as usize;
    for i in 0..t.each[0] {
        for j in 0..t.each[1] {
            let own = b.subgroup_id() * (s.size.sets * t.elements());
            for set in 0..s.size.sets {
                let sum = sums[set as usize * per_set + (i * t.each[1] + j) as usize];
                let index = (own + set * t.elements()).value();
                b.matrix_store(sum, MatrixMemory::Shared { array: staged, index }, b.u32(n), false);
            }
            b.barrier();
            b.for_(b.lane(), b.u32(t.elements()), t.subgroup, &[], |e, _| {
                let of_sets: Vec<Val<'b>> =
                    (0..s.size.sets).map(|set| b.shared_load(staged, own + e + set * t.elements())).collect();
                let feature = s.first_feature + (place[1] * t.each[1] + j) * n + e % n;
                let row = s.first_row + (place[0] * t.each[0] + i) * m + e / n;
                end.store(b, feature, row, &of_sets);
                vec![]
            });
            b.barrier();
        }
    }
}
