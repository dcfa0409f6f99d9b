//! Narrow products whose weights are decoded straight into matrices, on devices that hold these
//! [in quads](zinc_ir::kernel::quad_place).
//!
//! ```text
//! lane 4g + t:  unit t of features g and g + 8 ─decode─► four columns of both = its elements of A
//! inputs:       the same four columns of units 0 to 3, side by side in the shared memory ─► B
//! ```
//!
//! In which order a product adds columns is free as long as both sides agree. So a lane takes columns that it has loaded
//! and decoded anyway, and inputs are put in that order when they are staged: weights never pass through shared memory.

use super::narrow::{Body, pairs};
use zinc_ir::device::Caps;
use zinc_ir::kernel::{MatrixMemory, Val};
use zinc_ir::quant::Run;

/// Lanes that share a line of a matrix, and so units of a line in a step.
pub(super) const LANES: u32 = 4;
/// Lines of a matrix that a lane has elements of, and how far they are apart.
pub(super) const LINES: u32 = 2;
const APART: u32 = 8;
/// Elements of the shared memory that hold a step's inputs of one row.
const STEP: u32 = 16;

impl<'b> Body<'_, 'b> {
    /// The lines of weights whose elements this lane holds, and its unit in a step.
    pub(super) fn quad_lines(&self) -> ([Val<'b>; LINES as usize], Val<'b>) {
        let lane = self.b.lane();
        let line = self.place[0] * self.t.shape.m as u32 + lane / LANES;
        ([line, line + APART], lane % LANES)
    }

    /// Reads item `i` of the inputs from unit `first` on: eight columns of four units.
    pub(super) fn read_quad_inputs(&self, first: Val<'b>, i: Val<'b>) -> Vec<Val<'b>> {
        let (t, s) = (self.t, self.s);
        let (row, run, half) = self.item(i);
        let (chunk, step) = (run / 2 / t.ahead / t.along_columns, run / 2 % t.ahead);
        let place = run / 2 / t.ahead % t.along_columns;
        let of_unit = |unit| {
            let unit = first + chunk * t.chunk() + self.unit(place, self.b.u32(unit), step);
            let col = s.first_column(self.b, unit, (run % 2).eq(1)) + half * 8;
            s.eight_halves(self.b, s.input_row(self.b, row) + col)
        };
        (0..LANES).map(of_unit).collect()
    }

    /// Row, run of 16 columns of those staged, and half of the run, of an item. Neighbours in this order touch different banks.
    fn item(&self, i: Val<'b>) -> (Val<'b>, Val<'b>, Val<'b>) {
        let rows = self.t.rows();
        (i / 2 % rows, i / (2 * rows), i % 2)
    }

    /// Keeps what [`Body::read_quad_inputs`] has read: of every four columns the first and third of all four units, then
    /// the second and fourth.
    pub(super) fn keep_quad_inputs(&self, i: Val<'b>, units: &[Val<'b>]) {
        let (b, (row, run, half)) = (self.b, self.item(i));
        let at = row * self.t.input_stride() + run * (STEP / 2) + half * 4;
        for four in 0..2 {
            let pairs = units.iter().map(|unit| pairs([unit.lane(2 * four), unit.lane(2 * four + 1)]));
            let pairs: Vec<[Val<'b>; 2]> = pairs.collect();
            for p in 0..2 {
                let piece: Vec<Val<'b>> = pairs.iter().map(|pair| pair[p]).collect();
                b.shared_store(self.memory, at + (four as u32 * 2 + p as u32), b.compose(&piece));
            }
        }
    }

    /// Adds the products of step `step` of the chunk: a unit of each of this lane's lines.
    pub(super) fn quad_step(
        &self,
        chunk: Val<'b>,
        step: u32,
        lines: [&[Run<'b>; 2]; LINES as usize],
        sums: &[Val<'b>],
    ) -> Vec<Val<'b>> {
        let (b, t) = (self.b, self.t);
        let [a, bt, _] = Caps::matrix_types(t.shape);
        let mut sums = sums.to_vec();
        for run in 0..2 {
            let pairs = lines.map(|runs| runs[run as usize].weights.half_pairs(b));
            for four in 0..4 {
                let elements = (0..8).map(|i: usize| pairs[i / 4][four as usize][i / 2 % 2].lane(i as u8 % 2));
                let w = b.matrix_compose(a, &elements.collect::<Vec<_>>());
                let step = (chunk * t.along_columns + self.place[1]) * t.ahead + step;
                let piece = step * STEP + (run * 8 + four * 2);
                for (block, sum) in (0..).zip(&mut sums) {
                    let index = piece + block * (t.shape.n as u32 * t.input_stride());
                    let memory = MatrixMemory::Shared { array: self.memory, index: index.value() };
                    let x = b.matrix_load(bt, memory, b.u32(t.input_stride()), true);
                    *sum = b.matrix_mul_add(w, x, *sum);
                }
            }
        }
        sums
    }
}
