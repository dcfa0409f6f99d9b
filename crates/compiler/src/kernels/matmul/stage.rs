//! Brings one unit of 32 columns of a tile's weights and inputs into shared memory.
//!
//! ```text
//! lane i: weight row i ─emit_unit─► 32 values ─► weights[i][0..32]
//!         input row r, quad q ──────────────────► inputs[r][4q..4q+4]
//! ```
//!
//! Both sides are in the format's order of decoding, which need not be the order of columns.

use super::Size;
use crate::kernels::dot;
use crate::kernels::rows::for_items;
use zinc_ir::graph::Weight;
use zinc_ir::kernel::{Builder, Scalar, Type, Val};
use zinc_ir::quant::UNIT;

/// The largest finite half.
const LARGEST_HALF: f32 = 65504.0;

/// Where a tile is and what it reads.
pub(super) struct Stage<'a, 'b> {
    /// The weight; a second one has the same format and size.
    pub(super) weight: &'a Weight,
    pub(super) size: Size,
    /// Features of a tile.
    pub(super) features: u32,
    /// Input rows of a tile.
    pub(super) rows: u32,
    pub(super) lanes: u32,
    pub(super) first_feature: Val<'b>,
    pub(super) first_row: Val<'b>,
    /// Address of F32 rows.
    pub(super) x: Val<'b>,
    /// Address of row numbers, if rows are picked.
    pub(super) picks: Option<Val<'b>>,
    /// Addresses of the weights.
    pub(super) bases: Vec<Val<'b>>,
}

/// The shared arrays, one line of a unit per weight row (all of the first weight, then the second's) and input row.
pub(super) struct Arrays {
    pub(super) weights: u32,
    pub(super) inputs: u32,
    /// Quads from one line to the next: more than a line, so that lanes on different lines use different banks.
    pub(super) stride: u32,
    halves: bool,
}

/// Elements of padding after each line.
const fn padding(halves: bool) -> u32 {
    if halves { 8 } else { 4 }
}

impl Arrays {
    /// Bytes of the arrays of a tile with this many lines.
    pub(super) const fn bytes(lines: u32, halves: bool) -> u32 {
        lines * (UNIT + padding(halves)) * if halves { 2 } else { 4 }
    }

    /// Declares arrays of quads of singles or of halves.
    pub(super) fn declare(b: &Builder, stage: &Stage<'_, '_>, halves: bool) -> Arrays {
        let stride = (UNIT + padding(halves)) / 4;
        let ty = if halves { Type::Vec(Scalar::F16, 4) } else { Type::F32X4 };
        let weights = b.shared("weights", ty, stage.size.sets * stage.features * stride);
        Arrays { weights, inputs: b.shared("inputs", ty, stage.rows * stride), stride, halves }
    }

    /// Stores quad number `quad` of a line, four F32.
    fn put<'b>(&self, b: &'b Builder, array: u32, line: Val<'b>, quad: Val<'b>, value: Val<'b>) {
        // Beyond the range of halves a sum is wrong either way; infinities would make it NaN.
        let near = || value.min(b.f32x4(LARGEST_HALF)).max(b.f32x4(-LARGEST_HALF)).to(Scalar::F16);
        b.shared_store(array, line * self.stride + quad, if self.halves { near() } else { value });
    }
}

/// Stages unit `unit`. Lines beyond the last feature or row repeat it; their sums are not stored.
pub(super) fn unit<'b>(b: &'b Builder, s: &Stage<'_, 'b>, arrays: &Arrays, unit: Val<'b>) {
    for_items(b, s.lanes, s.size.sets * s.features, |line| {
        let second = line.ge(s.features);
        let (base, feature) = match s.bases[..] {
            [one] => (one, line),
            [gate, up, ..] => (second.select(up, gate), second.select(line - s.features, line)),
            [] => unreachable!("a product has a weight"),
        };
        let row = (s.first_feature + feature).min(b.u32(s.size.features - 1));
        let runs = (s.weight.format.emit_unit)(&dot::unit_at(b, s.weight, base, row, unit));
        for (r, run) in runs.iter().enumerate() {
            for (q, quad) in run.weights.values(b).into_iter().enumerate() {
                arrays.put(b, arrays.weights, line, b.u32(r as u32 * 4 + q as u32), quad);
            }
        }
    });
    // Only the column numbers are used: the loads are pruned.
    let runs = (s.weight.format.emit_unit)(&dot::unit_at(b, s.weight, s.bases[0], b.u32(0), unit));
    let [first, second] = [0, 1].map(|r: usize| dot::first_column(s.weight.format, unit, &runs[r]));
    for_items(b, s.lanes, s.rows * (UNIT / 4), |i| {
        let (line, quad) = (i / (UNIT / 4), i % (UNIT / 4));
        let mut row = (s.first_row + line).min(b.u32(s.size.rows - 1));
        if let Some(picks) = s.picks {
            row = b.load(Type::U32, picks, row * 4, 4);
        }
        let col = quad.lt(4).select(first, second) + quad % 4 * 4;
        let value = b.load(Type::F32X4, s.x, (row * s.size.cols + col) * 4, 16);
        arrays.put(b, arrays.inputs, line, quad, value);
    });
}
