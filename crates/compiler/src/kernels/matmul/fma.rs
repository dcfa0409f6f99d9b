//! Tiles of multiply-adds: each lane sums a few features times a few rows in registers.
//!
//! ```text
//! lane (i, j): features i, i+LF, i+2·LF …  ×  rows j, j+LR, …      4 columns per shared load
//! ```

use super::stage::Stage;
use super::{Epilogue, Size, Work, cost};
use crate::kernels::rows::for_items;
use zinc_ir::device::Caps;
use zinc_ir::kernel::{Builder, Type, Val};
use zinc_ir::quant::UNIT;

/// How a tile is cut: the knobs of this kernel.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Tile {
    /// Lanes along features.
    lanes_features: u32,
    /// Lanes along rows.
    lanes_rows: u32,
    /// Features per lane.
    each_features: u32,
    /// Rows per lane.
    each_rows: u32,
}

const fn tile(lanes_features: u32, lanes_rows: u32, each_features: u32, each_rows: u32) -> Tile {
    Tile { lanes_features, lanes_rows, each_features, each_rows }
}

/// Quads from one line of shared memory to the next: more than a unit, so that lanes on different lines use different
/// banks.
const STRIDE: u32 = UNIT / 4 + 1;

/// The shared arrays: a unit per weight line and input line, as quads.
struct Arrays {
    weights: u32,
    inputs: u32,
}

impl Arrays {
    fn declare(b: &Builder, s: &Stage<'_, '_>) -> Arrays {
        let lines = |name, lines: u32| b.shared(name, Type::F32X4, lines * STRIDE);
        Arrays { weights: lines("weights", s.weight_lines()), inputs: lines("inputs", s.rows) }
    }

    /// Brings unit `unit` of all lines.
    fn fill<'b>(&self, b: &'b Builder, s: &Stage<'_, 'b>, unit: Val<'b>) {
        for_items(b, s.lanes, s.weight_lines(), |line| {
            let quads = s.weights(b, line, unit).into_iter().flat_map(|run| run.weights.values(b));
            for (q, quad) in (0..).zip(quads) {
                b.shared_store(self.weights, line * STRIDE + q, quad);
            }
        });
        for_items(b, s.lanes, s.rows * (UNIT / 4), |i| {
            let (line, quad) = (i / (UNIT / 4), i % (UNIT / 4));
            let col = s.first_column(b, unit, quad.ge(4)) + quad % 4 * 4;
            let value = s.quad(b, s.input_row(b, line) + col);
            b.shared_store(self.inputs, line * STRIDE + quad, value);
        });
    }
}

/// What to choose from, largest first.
const TILES: &[Tile] = &[
    tile(16, 16, 8, 8),
    tile(16, 16, 8, 4),
    tile(16, 16, 4, 4),
    tile(16, 8, 4, 4),
    tile(16, 16, 2, 2),
    tile(16, 8, 4, 2),
    tile(8, 8, 4, 4),
    tile(16, 4, 2, 4),
    tile(16, 4, 2, 2),
    tile(32, 2, 1, 8),
];

impl Tile {
    pub(super) fn features(&self) -> u32 {
        self.lanes_features * self.each_features
    }
    pub(super) fn rows(&self) -> u32 {
        self.lanes_rows * self.each_rows
    }
    pub(super) fn lanes(&self) -> u32 {
        self.lanes_features * self.lanes_rows
    }

    /// The cheapest tile that the device can hold.
    pub(super) fn choose(caps: &Caps, size: Size) -> Option<Tile> {
        let fits = |t: &&Tile| {
            let lines = size.sets * t.features() + t.rows();
            let registers = size.sets * t.each_features * t.each_rows;
            t.lanes() <= caps.max_workgroup
                && t.lanes().is_multiple_of(caps.subgroup_size)
                && registers <= 64
                && lines * STRIDE * 16 + size.table_bytes <= caps.max_shared_bytes
        };
        let price = |t: &&Tile| {
            let each = size.sets * t.each_features;
            // A shared load of a quad costs about as much as eight multiply-adds.
            let sums = UNIT * each * t.each_rows + 2 * UNIT * (each + t.each_rows);
            cost(caps.parallel_tiles, size, &Work { lanes: t.lanes(), features: t.features(), rows: t.rows(), sums })
        };
        TILES.iter().filter(fits).min_by_key(price).copied()
    }
}

pub(super) fn body<'b>(b: &'b Builder, t: &Tile, s: &Stage<'_, 'b>, end: &Epilogue<'b>) {
    let arrays = Arrays::declare(b, s);
    let lane = [b.local_id() % t.lanes_features, b.local_id() / t.lanes_features];
    let sums = s.size.sets * t.each_features * t.each_rows;
    let zero = vec![b.f32(0.0); sums as usize];
    let sums = b.for_(b.u32(0), b.u32(s.units()), 1, &zero, |unit, sums| {
        arrays.fill(b, s, unit);
        b.barrier();
        let next = b.for_with(b.u32(0), b.u32(UNIT / 4), b.u32(1), sums, true, |quad, sums| {
            multiply(b, t, s, &arrays, lane, quad, sums)
        });
        b.barrier();
        next
    });
    let pairs = (t.each_features * t.each_rows) as usize;
    for j in 0..t.each_rows {
        for i in 0..t.each_features {
            let at = (i * t.each_rows + j) as usize;
            let of_sets: Vec<Val<'b>> = sums.iter().skip(at).step_by(pairs).copied().collect();
            let feature = s.first_feature + lane[0] + i * t.lanes_features;
            end.store(b, feature, s.lines.first + lane[1] + j * t.lanes_rows, &of_sets);
        }
    }
}

/// Adds four columns to the sums `[set][feature][row]`, in order.
fn multiply<'b>(
    b: &'b Builder,
    t: &Tile,
    s: &Stage<'_, 'b>,
    arrays: &Arrays,
    lane: [Val<'b>; 2],
    quad: Val<'b>,
    sums: &[Val<'b>],
) -> Vec<Val<'b>> {
    let four = |array: u32, line: Val<'b>| {
        let v = b.shared_load(array, line * STRIDE + quad);
        [0, 1, 2, 3].map(|k| v.lane(k))
    };
    let x: Vec<[Val<'b>; 4]> = (0..t.each_rows).map(|j| four(arrays.inputs, lane[1] + j * t.lanes_rows)).collect();
    let mut next = Vec::with_capacity(sums.len());
    for set in 0..s.size.sets {
        for i in 0..t.each_features {
            let w = four(arrays.weights, lane[0] + (set * s.features + i * t.lanes_features));
            for x in &x {
                let sum = sums[next.len()];
                next.push((0..4).fold(sum, |sum, k| b.fma(w[k], x[k], sum)));
            }
        }
    }
    next
}
