//! The heart of every mat-vec kernel: one subgroup multiplies a few weight rows with a few input rows.
//!
//! ```text
//! lane l: units l, l+S, l+2S … of the row ─decode─► 32 weights · 32 inputs ─fma─► acc[row][input row] ─subgroup add─► sums
//! ```
//!
//! An RMS norm in front costs no pass of its own: Σ w·(x·g) and Σ x² are accumulated in the same loop, and the factor
//! 1/√(mean x² + eps) is applied to the finished sums.

use super::dot_blocks::{self, Flight};
use super::dot_floats;
use super::quantize::RowLayout;
use std::collections::BTreeMap;
use zinc_ir::graph::Weight;
use zinc_ir::kernel::{Builder, Type, Val};
use zinc_ir::quant::{Loads, QuantFormat, Run, UNIT, Unit};

/// A weight row to multiply with.
#[derive(Clone, Copy)]
pub(crate) struct WeightRow<'a, 'b> {
    /// The tensor.
    pub(crate) weight: &'a Weight,
    /// Its address.
    pub(crate) base: Val<'b>,
    /// Row number (U32), in range.
    pub(crate) row: Val<'b>,
}

/// The input rows.
pub(crate) struct Inputs<'b> {
    /// Address of the rows.
    pub(crate) base: Val<'b>,
    /// Byte offset of each row.
    pub(crate) rows: Vec<Val<'b>>,
    /// Column of the rows that meets the weights' first, a multiple of 32; none: the first.
    pub(crate) column: Option<Val<'b>>,
    /// What the rows are.
    pub(crate) kind: InputKind<'b>,
}

/// What input rows are.
#[derive(Clone, Copy)]
pub(crate) enum InputKind<'b> {
    /// F32, with a norm in front.
    Floats(Option<Norm<'b>>),
    /// Quantized; with the epsilon of a norm whose gain they contain.
    Blocks(RowLayout, Option<f32>),
}

/// An RMS norm folded into the product.
#[derive(Clone, Copy)]
pub(crate) struct Norm<'b> {
    /// Address of one F32 factor per column.
    pub(crate) weight: Val<'b>,
    /// Epsilon.
    pub(crate) eps: f32,
}

/// Are its rows whole device blocks, and all of its offsets U32?
pub(crate) fn supported(weight: &Weight) -> bool {
    weight.cols.is_multiple_of(weight.format.device_block()) && planes(weight).1 <= u32::MAX as u64
}

/// Byte offsets of a weight's planes; they fit U32 if the weight is [`supported`].
pub(crate) fn plane_offsets(weight: &Weight) -> Vec<u32> {
    planes(weight).0.into_iter().map(|p| p as u32).collect()
}

/// Byte offsets of a weight's planes, and its size.
fn planes(weight: &Weight) -> (Vec<u64>, u64) {
    weight.format.plane_offsets(weight.rows as u64 * (weight.cols / weight.format.device_block()) as u64)
}

/// Where unit `unit` of row `row` is.
pub(crate) fn unit_at<'b>(b: &'b Builder, weight: &Weight, base: Val<'b>, row: Val<'b>, unit: Val<'b>) -> Unit<'b> {
    let block_elems = weight.format.device_block();
    let per_block = block_elems / UNIT;
    let block = row * (weight.cols / block_elems) + unit / per_block;
    let planes = plane_offsets(weight);
    Unit { b, base, planes, block, sub: unit % per_block, turn: b.u32(0), loads: Loads::Direct }
}

/// Sums `rows[r] · inputs[n]`, the same in all lanes, as `[r][n]`; normalised if a norm is in front. `flight`
/// concerns quantized inputs.
pub(crate) fn dot<'a, 'b>(
    b: &'b Builder,
    subgroup: u32,
    flight: Flight,
    rows: &[WeightRow<'a, 'b>],
    inputs: &Inputs<'b>,
) -> Vec<Vec<Val<'b>>> {
    let (n, r) = (inputs.rows.len(), rows.len());
    let (acc, eps) = match inputs.kind {
        InputKind::Floats(norm) => (dot_floats::accumulate(b, subgroup, rows, inputs, norm), norm.map(|n| n.eps)),
        InputKind::Blocks(layout, eps) => {
            (dot_blocks::accumulate(b, (subgroup, flight), rows, inputs, layout, eps.is_some()), eps)
        }
    };
    let total: Vec<Val<'b>> = acc.into_iter().map(Val::subgroup_add).collect();
    let factors: Option<Vec<Val<'b>>> = eps.map(|eps| {
        let mean = |sum: Val<'b>| sum * (1.0 / rows[0].weight.cols as f32);
        total[r * n..].iter().map(|s| (mean(*s) + eps).inv_sqrt()).collect()
    });
    let sum = |i: usize, j: usize| match &factors {
        Some(f) => total[i * n + j] * f[j],
        None => total[i * n + j],
    };
    (0..r).map(|i| (0..n).map(|j| sum(i, j)).collect()).collect()
}

/// The rows of each format, as indices into `rows`: rows of one format share their inputs.
pub(super) fn by_format(rows: &[WeightRow<'_, '_>]) -> Vec<Vec<usize>> {
    let mut groups: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
    for (i, row) in rows.iter().enumerate() {
        groups.entry(row.weight.format.ggml_type).or_default().push(i);
    }
    groups.into_values().collect()
}

/// First column of a run of unit `unit` within its row.
pub(crate) fn first_column<'b>(format: &QuantFormat, unit: Val<'b>, run: &Run<'b>) -> Val<'b> {
    let block_elems = format.device_block();
    (unit / (block_elems / UNIT)) * block_elems + run.col
}

/// Sixteen F32 from byte `offset`.
pub(crate) fn load16<'b>(b: &'b Builder, base: Val<'b>, offset: Val<'b>) -> [Val<'b>; 4] {
    [0, 16, 32, 48].map(|imm| b.load_at(Type::F32X4, base, offset, imm, 16, true))
}

/// Do products with this weight take quantized inputs?
pub(crate) fn takes_bytes(weight: &Weight) -> bool {
    weight.format.block_elems >= UNIT && supported(weight)
}
