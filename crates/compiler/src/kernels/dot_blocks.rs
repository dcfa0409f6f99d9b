//! Mat-vecs with quantized inputs: integer dot products.
//!
//! ```text
//! lane: units of the row ─► bytes w · bytes x ─dot4─► Σ per scale ─► acc += Σ · scale_w · scale_x + bias_w · Σx
//! ```
//!
//! A step takes one unit per lane, or two that share their loads ([`zinc_ir::quant::QuantFormat::emit_pair`]). Steps
//! are written out as straight code, up to [`STRAIGHT`] of them between two loop branches: drivers then put all loads
//! in front, and the bytes in flight are what makes a memory-bound kernel fast.

use super::dot::{Inputs, WeightRow, by_format, column_in_group, units_at};
use super::quantize::RowLayout;
use zinc_ir::kernel::{Builder, Type, Val};
use zinc_ir::quant::{Run, UNIT, Unit, Weights};

/// Most steps without a loop.
const STRAIGHT: u32 = 8;
/// Steps per iteration of a longer loop.
const UNROLL: u32 = 4;

/// This lane's sums `[r][n]` over its units, then the inputs' squares `[n]` if `norm`.
pub(super) fn accumulate<'a, 'b>(
    b: &'b Builder,
    subgroup: u32,
    rows: &[WeightRow<'a, 'b>],
    inputs: &Inputs<'b>,
    layout: RowLayout,
    norm: bool,
) -> Vec<Val<'b>> {
    let (n, r) = (inputs.rows.len(), rows.len());
    let units = rows[0].weight.cols / UNIT;
    let dot = Dot { b, rows, inputs, layout, norm };
    let zero = vec![b.f32(0.0); r * n + if norm { n } else { 0 }];
    let span = if rows.iter().all(|r| r.weight.format.emit_pair.is_some()) { 2 } else { 1 };
    let steps = units / (subgroup * span);
    let step = |i: Val<'b>, acc: &[Val<'b>]| dot.add(i * subgroup + b.lane(), span, None, acc);
    let looped = if steps <= STRAIGHT { 0 } else { steps / UNROLL };
    let mut acc = zero;
    if looped > 0 {
        acc = b.for_(b.u32(0), b.u32(looped * UNROLL), UNROLL, &acc, |i, acc| {
            (0..UNROLL).fold(acc.to_vec(), |acc, k| step(i + k, &acc))
        });
    }
    acc = (looped * UNROLL..steps).fold(acc, |acc, i| step(b.u32(i), &acc));
    // What is left is less than a step: single units, and surplus lanes add zero.
    let mut done = steps * subgroup * span;
    while done < units {
        let busy = (units - done).min(subgroup);
        let real = (busy < subgroup).then(|| b.lane().lt(busy));
        let lane = if busy < subgroup { b.lane().min(b.u32(busy - 1)) } else { b.lane() };
        acc = dot.add(lane + done, 1, real, &acc);
        done += busy;
    }
    acc
}

/// What all steps share.
struct Dot<'a, 'r, 'b> {
    b: &'b Builder,
    rows: &'r [WeightRow<'a, 'b>],
    inputs: &'r Inputs<'b>,
    layout: RowLayout,
    norm: bool,
}

impl<'b> Dot<'_, '_, 'b> {
    /// Adds step `step` of `span` units of every row to the accumulators; nothing where `real` is false.
    fn add(&self, step: Val<'b>, span: u32, real: Option<Val<'b>>, acc: &[Val<'b>]) -> Vec<Val<'b>> {
        let n = self.inputs.rows.len();
        let mut acc = acc.to_vec();
        for (group, members) in by_format(self.rows).iter().enumerate() {
            let format = self.rows[members[0]].weight.format;
            let decoded: Vec<Vec<Run<'b>>> = members.iter().map(|&i| self.decode(&self.rows[i], step, span)).collect();
            let cols: Vec<Val<'b>> =
                decoded[0].iter().map(|run| column_in_group(format, step, span, run)).collect();
            for runs in sharing_a_scale(&decoded[0]) {
                for j in 0..n {
                    let x = self.input(j, &runs, &cols, real);
                    if self.norm && group == 0 {
                        let at = self.rows.len() * n + j;
                        acc[at] = acc[at] + x.squares;
                    }
                    for (weights, &i) in decoded.iter().zip(members) {
                        acc[i * n + j] = self.add_runs(weights, &runs, &x, acc[i * n + j]);
                    }
                }
            }
        }
        acc
    }

    fn decode(&self, row: &WeightRow<'_, 'b>, step: Val<'b>, span: u32) -> Vec<Run<'b>> {
        match (span, row.weight.format.emit_pair) {
            (2, Some(emit)) => emit(&self.unit(row, step, 2)).into(),
            _ => (row.weight.format.emit_unit)(&self.unit(row, step, 1)).into(),
        }
    }

    /// Step `step` of `span` units: block, and place in the block counted in steps.
    fn unit(&self, row: &WeightRow<'_, 'b>, step: Val<'b>, span: u32) -> Unit<'b> {
        units_at(self.b, row.weight, row.base, row.row, step, span)
    }

    /// The inputs of some runs of one scale.
    fn input(&self, j: usize, runs: &[usize], cols: &[Val<'b>], real: Option<Val<'b>>) -> Input<'b> {
        let (b, base, start) = (self.b, self.inputs.base, self.inputs.rows[j]);
        let words = |col: Val<'b>, plane: u32| {
            let v = b.load_at(Type::U32X4, base, start + col, plane * self.layout.cols, 16, true);
            [0, 1, 2, 3].map(|i| v.lane(i))
        };
        let planes = if self.layout.wide { 2 } else { 1 };
        let bytes = (0..planes).map(|p| runs.iter().map(|r| words(cols[*r], p)).collect()).collect();
        let first = cols[runs[0]];
        let notes = b.load_at(Type::F32X4, base, start + (first / UNIT) * 16, self.layout.notes(), 16, true);
        let notes = match real {
            Some(real) => real.splat(4).select(notes, b.f32x4(0.0)),
            None => notes,
        };
        let (scale, squares) = (notes.lane(0), notes.lane(3));
        if runs.len() == 2 {
            return Input { bytes, scale, sum: notes.lane(1) + notes.lane(2), squares };
        }
        let second = ((first / 16) & 1).ne(0);
        // Two runs meet each block, each in its place: half of the squares each.
        Input { bytes, scale, sum: second.select(notes.lane(2), notes.lane(1)), squares: squares * 0.5 }
    }

    /// acc + Σ w·x over runs of one scale.
    fn add_runs(&self, weights: &[Run<'b>], runs: &[usize], x: &Input<'b>, acc: Val<'b>) -> Val<'b> {
        let b = self.b;
        let Weights::Bytes { signed, scale, bias, .. } = weights[runs[0]].weights else {
            unreachable!("float weights take float inputs")
        };
        let sums: Vec<Val<'b>> = x
            .bytes
            .iter()
            .map(|plane| {
                runs.iter().zip(plane).fold(b.i32(0), |sum, (r, x)| match &weights[*r].weights {
                    Weights::Bytes { packed, .. } => {
                        packed.iter().zip(x).fold(sum, |sum, (w, x)| b.dot4(*w, *x, sum, signed))
                    }
                    Weights::Floats(_) => sum,
                })
            })
            .collect();
        // At most 32 · 255 · 127 · 256 < 2³¹.
        let sum = if let [high, low] = sums[..] { (high << b.i32(8)) + low } else { sums[0] };
        let acc = b.fma(sum.to_f32() * x.scale, scale, acc);
        match bias {
            Some(bias) => b.fma(bias, x.sum, acc),
            None => acc,
        }
    }
}

/// Inputs of one or two runs.
struct Input<'b> {
    /// `[plane][run]`, four words each.
    bytes: Vec<Vec<[Val<'b>; 4]>>,
    scale: Val<'b>,
    /// scale · Σ of the integers.
    sum: Val<'b>,
    squares: Val<'b>,
}

/// Runs whose weights have the very same scale lie in one block of 32: their integer sums can be added up first.
fn sharing_a_scale(runs: &[Run<'_>]) -> Vec<Vec<usize>> {
    let scale = |r: &Run<'_>| match &r.weights {
        Weights::Bytes { scale, .. } => Some(scale.value()),
        Weights::Floats(_) => None,
    };
    let mut groups: Vec<Vec<usize>> = vec![];
    for (i, run) in runs.iter().enumerate() {
        match groups.iter_mut().find(|g| scale(&runs[g[0]]) == scale(run)) {
            Some(group) => group.push(i),
            None => groups.push(vec![i]),
        }
    }
    groups
}
