//! The heart of every mat-vec kernel: one subgroup multiplies a few weight rows with a few input rows.
//!
//! ```text
//! lane l: units l, l+S, l+2S … of the row ─decode─► 32 weights · 32 inputs ─fma─► acc[row][input row] ─subgroup add─► sums
//! ```
//!
//! An RMS norm in front costs no pass of its own: Σ w·(x·g) and Σ x² are accumulated in the same loop, and the factor
//! 1/√(mean x² + eps) is applied to the finished sums.

use std::collections::BTreeMap;
use zinc_ir::graph::Weight;
use zinc_ir::kernel::{Builder, Type, Val};
use zinc_ir::quant::{QuantFormat, Run, UNIT, Unit, Weights};

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
    /// Norm in front; F32 rows only.
    pub(crate) norm: Option<Norm<'b>>,
    /// Rows are 8-bit ([`super::quantize`]) instead of F32.
    pub(crate) bytes: bool,
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

/// Byte offsets of a weight's planes, and its size.
fn planes(weight: &Weight) -> (Vec<u64>, u64) {
    weight.format.plane_offsets(weight.rows as u64 * (weight.cols / weight.format.device_block()) as u64)
}

/// Where unit `unit` of row `row` is.
pub(crate) fn unit_at<'b>(b: &'b Builder, weight: &Weight, base: Val<'b>, row: Val<'b>, unit: Val<'b>) -> Unit<'b> {
    let block_elems = weight.format.device_block();
    let per_block = block_elems / UNIT;
    let block = row * (weight.cols / block_elems) + unit / per_block;
    let planes = planes(weight).0.into_iter().map(|p| p as u32).collect();
    Unit { b, base, planes, block, sub: unit % per_block }
}

/// Sums `rows[r] · inputs[n]`, the same in all lanes, as `[r][n]`; normalised if a norm is in front.
pub(crate) fn dot<'a, 'b>(
    b: &'b Builder,
    subgroup: u32,
    rows: &[WeightRow<'a, 'b>],
    inputs: &Inputs<'b>,
) -> Vec<Vec<Val<'b>>> {
    let (n, r) = (inputs.rows.len(), rows.len());
    let units = rows[0].weight.cols / UNIT;
    let (full, tail) = (units / subgroup, units % subgroup);
    let squares = if inputs.norm.is_some() { n } else { 0 };
    let zero = vec![b.f32(0.0); r * n + squares];
    let step = |unit: Val<'b>, acc: &[Val<'b>]| accumulate(b, rows, inputs, unit, acc);
    let mut acc = match full {
        0 => zero,
        _ => b.for_(b.u32(0), b.u32(full), 1, &zero, |i, acc| step(i * subgroup + b.lane(), acc)),
    };
    if tail > 0 {
        let unit = b.lane() + full * subgroup;
        acc = b.if_else(b.lane().lt(tail), || step(unit, &acc), || acc.clone());
    }
    let total: Vec<Val<'b>> = acc.into_iter().map(Val::subgroup_add).collect();
    let factors: Option<Vec<Val<'b>>> = inputs.norm.map(|norm| {
        let mean = |sum: Val<'b>| sum * (1.0 / rows[0].weight.cols as f32);
        total[r * n..].iter().map(|s| (mean(*s) + norm.eps).inv_sqrt()).collect()
    });
    let sum = |i: usize, j: usize| match &factors {
        Some(f) => total[i * n + j] * f[j],
        None => total[i * n + j],
    };
    (0..r).map(|i| (0..n).map(|j| sum(i, j)).collect()).collect()
}

/// Adds one unit of every row to the accumulators `[r][n]`, and the inputs' squares after them.
fn accumulate<'a, 'b>(
    b: &'b Builder,
    rows: &[WeightRow<'a, 'b>],
    inputs: &Inputs<'b>,
    unit: Val<'b>,
    acc: &[Val<'b>],
) -> Vec<Val<'b>> {
    let n = inputs.rows.len();
    let mut acc = acc.to_vec();
    let mut by_format: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
    for (i, row) in rows.iter().enumerate() {
        by_format.entry(row.weight.format.ggml_type).or_default().push(i);
    }
    for (group, members) in by_format.values().enumerate() {
        let format = rows[members[0]].weight.format;
        let decoded: Vec<[Run<'b>; 2]> = members
            .iter()
            .map(|&i| (format.emit_unit)(&unit_at(b, rows[i].weight, rows[i].base, rows[i].row, unit)))
            .collect();
        for run in 0..2 {
            let col = first_column(format, unit, &decoded[0][run]);
            for j in 0..n {
                let x = load_inputs(b, inputs, j, col, rows[0].weight.cols);
                if let (Some(_), 0, Input16::Floats { raw, .. }) = (inputs.norm, group, &x) {
                    let at = rows.len() * n + j;
                    acc[at] = acc[at] + dot16(b, raw, raw);
                }
                let sum = needed_sum(b, &decoded, run, &x);
                for (runs, &i) in decoded.iter().zip(members) {
                    acc[i * n + j] = add_run(b, &runs[run].weights, &x, sum, acc[i * n + j]);
                }
            }
        }
    }
    acc
}

/// First column of a run within its row.
pub(crate) fn first_column<'b>(format: &QuantFormat, unit: Val<'b>, run: &Run<'b>) -> Val<'b> {
    let block_elems = format.device_block();
    (unit / (block_elems / UNIT)) * block_elems + run.col
}

/// Sixteen F32 from byte `offset`.
pub(crate) fn load16<'b>(b: &'b Builder, base: Val<'b>, offset: Val<'b>) -> [Val<'b>; 4] {
    [0, 16, 32, 48].map(|imm| b.load_at(Type::F32X4, base, offset, imm, 16, true))
}

fn dot16<'b>(b: &'b Builder, x: &[Val<'b>; 4], y: &[Val<'b>; 4]) -> Val<'b> {
    let mut sum = x[0] * y[0];
    for k in 1..4 {
        sum = b.fma(x[k], y[k], sum);
    }
    sum.sum_lanes()
}

/// Sixteen inputs of consecutive columns.
enum Input16<'b> {
    /// F32, times the norm's gain; `raw` without it.
    Floats { raw: [Val<'b>; 4], scaled: [Val<'b>; 4] },
    /// Signed bytes and their scale.
    Bytes { packed: [Val<'b>; 4], scale: Val<'b> },
}

fn load_inputs<'b>(b: &'b Builder, inputs: &Inputs<'b>, row: usize, col: Val<'b>, cols: u32) -> Input16<'b> {
    let start = inputs.rows[row];
    if inputs.bytes {
        let words = b.load(Type::U32X4, inputs.base, start + col, 16);
        let scale = b.load_at(Type::F32, inputs.base, start + (col / UNIT) * 4, cols, 4, true);
        return Input16::Bytes { packed: [0, 1, 2, 3].map(|i| words.lane(i)), scale };
    }
    let raw = load16(b, inputs.base, start + col * 4);
    let scaled = match inputs.norm {
        Some(norm) => {
            let gain = load16(b, norm.weight, col * 4);
            [0, 1, 2, 3].map(|k| raw[k] * gain[k])
        }
        None => raw,
    };
    Input16::Floats { raw, scaled }
}

/// Σ x, needed once per input run if any weight has a bias.
fn needed_sum<'b>(b: &'b Builder, decoded: &[[Run<'b>; 2]], run: usize, x: &Input16<'b>) -> Option<Val<'b>> {
    let biased = decoded.iter().any(|d| matches!(d[run].weights, Weights::Bytes { bias: Some(_), .. }));
    biased.then(|| match x {
        Input16::Floats { scaled: x, .. } => ((x[0] + x[1]) + (x[2] + x[3])).sum_lanes(),
        Input16::Bytes { packed, scale } => {
            let ones = b.u32(0x0101_0101);
            let sum = packed.iter().fold(b.i32(0), |sum, word| b.dot4(ones, *word, sum, false));
            sum.to_f32() * *scale
        }
    })
}

/// acc + Σ w·x over a run: scale · Σ q·x + bias · Σ x.
fn add_run<'b>(b: &'b Builder, weights: &Weights<'b>, x: &Input16<'b>, sum: Option<Val<'b>>, acc: Val<'b>) -> Val<'b> {
    let product = match (weights, x) {
        (Weights::Bytes { packed: w, signed, .. }, Input16::Bytes { packed: x, scale }) => {
            let sum = w.iter().zip(x).fold(b.i32(0), |sum, (w, x)| b.dot4(*w, *x, sum, *signed));
            sum.to_f32() * *scale
        }
        (_, Input16::Floats { scaled, .. }) => dot16(b, &weights.levels(), scaled),
        (Weights::Floats(_), Input16::Bytes { .. }) => unreachable!("float weights take float inputs"),
    };
    match weights {
        Weights::Floats(_) => acc + product,
        Weights::Bytes { scale, bias, .. } => {
            let acc = b.fma(product, *scale, acc);
            match (bias, sum) {
                (Some(bias), Some(sum)) => b.fma(*bias, sum, acc),
                _ => acc,
            }
        }
    }
}

/// Do products with these weights take 8-bit inputs when the plan asks for them?
pub(crate) fn takes_bytes(weights: &[&Weight]) -> bool {
    weights.iter().all(|w| w.format.block_elems >= UNIT)
}
