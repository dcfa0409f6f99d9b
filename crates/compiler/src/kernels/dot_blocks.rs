//! Mat-vecs with quantized inputs: integer dot products.
//!
//! ```text
//! lane: units of the row ─► bytes w · bytes x ─dot4─► Σ per scale ─► acc += Σ · scale_w · scale_x + bias_w · Σx
//! ```
//!
//! A step takes one unit per lane, or two that share their loads ([`zinc_ir::quant::QuantFormat::emit_pair`]). What
//! limits such a kernel is, in this order: bytes in flight (subgroups times steps written out one after the other);
//! conflicts between memory banks, since each lane reads 64 bytes of inputs for 36 bytes of weights
//! ([`RowLayout::place`]); integer operations per weight.

use super::dot::{Inputs, WeightRow, by_format, plane_offsets};
use super::quantize::RowLayout;
use zinc_ir::kernel::{Builder, Type, Val};
use zinc_ir::quant::{QuantFormat, Run, UNIT, Unit, Weights};

/// This lane's sums `[r][n]` over its units, then the inputs' squares `[n]` if `norm`.
pub(super) fn accumulate<'a, 'b>(
    b: &'b Builder,
    (subgroup, unroll): (u32, u32),
    rows: &[WeightRow<'a, 'b>],
    inputs: &Inputs<'b>,
    layout: RowLayout,
    norm: bool,
) -> Vec<Val<'b>> {
    let (n, r) = (inputs.rows.len(), rows.len());
    let units = rows[0].weight.cols / UNIT;
    let dot = Dot { b, subgroup, rows, inputs, layout, norm };
    let mut acc = vec![b.f32(0.0); r * n + if norm { n } else { 0 }];
    let span = if rows.iter().all(|r| r.weight.format.emit_pair.is_some()) { 2 } else { 1 };
    let steps = units / (subgroup * span);
    let step = |i: Val<'b>, acc: &[Val<'b>]| dot.add(i * (subgroup * span), b.lane(), span, None, acc);
    let looped = if steps <= unroll { 0 } else { steps / unroll * unroll };
    if looped > 0 {
        acc = b.for_(b.u32(0), b.u32(looped), unroll, &acc, |i, acc| {
            (0..unroll).fold(acc.to_vec(), |acc, k| step(i + k, &acc))
        });
    }
    acc = (looped..steps).fold(acc, |acc, i| step(b.u32(i), &acc));
    // What is left is less than a step: single units, and surplus lanes add zero.
    let mut done = steps * subgroup * span;
    while done < units {
        let busy = (units - done).min(subgroup);
        let real = (busy < subgroup).then(|| b.lane().lt(busy));
        let lane = if busy < subgroup { b.lane().min(b.u32(busy - 1)) } else { b.lane() };
        acc = dot.add(b.u32(done), lane, 1, real, &acc);
        done += busy;
    }
    acc
}

/// What all steps share.
struct Dot<'a, 'r, 'b> {
    b: &'b Builder,
    subgroup: u32,
    rows: &'r [WeightRow<'a, 'b>],
    inputs: &'r Inputs<'b>,
    layout: RowLayout,
    norm: bool,
}

/// Where a lane is in a step: what changes from step to step, and what does not and is worth computing once.
#[derive(Clone, Copy)]
struct Place<'b> {
    /// Units before the step, over the units of a block.
    block: Val<'b>,
    /// Columns before the step.
    col: Val<'b>,
    /// Block of the lane within the step.
    lane_block: Val<'b>,
    /// Its unit, or pair, in the block.
    sub: Val<'b>,
}

impl<'b> Dot<'_, '_, 'b> {
    /// Adds `span` units per lane of every row, `first` units into the row, to the accumulators; nothing where `real` is
    /// false.
    fn add(&self, first: Val<'b>, lane: Val<'b>, span: u32, real: Option<Val<'b>>, acc: &[Val<'b>]) -> Vec<Val<'b>> {
        let n = self.inputs.rows.len();
        let mut acc = acc.to_vec();
        for (group, members) in by_format(self.rows).iter().enumerate() {
            let format = self.rows[members[0]].weight.format;
            let place = self.place(format, first, lane, span);
            let decoded: Vec<Vec<Run<'b>>> = members.iter().map(|&i| self.decode(&self.rows[i], place, span)).collect();
            let block = format.device_block();
            let cols: Vec<Val<'b>> = decoded[0].iter().map(|run| place.lane_block * block + run.col).collect();
            for runs in sharing_a_scale(&decoded[0]) {
                for j in 0..n {
                    let x = self.input(j, &runs, place.col, &cols, real);
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

    fn place(&self, format: &QuantFormat, first: Val<'b>, lane: Val<'b>, span: u32) -> Place<'b> {
        let units = format.device_block() / UNIT;
        let per_block = units / span;
        // Steps of 512 columns and more start at a block and keep the inputs' order.
        if (self.subgroup * UNIT).is_multiple_of(512) {
            let (lane_block, sub) = (lane / per_block, lane % per_block);
            return Place { block: first / units, col: first * UNIT, lane_block, sub };
        }
        let at = first / span + lane;
        Place { block: self.b.u32(0), col: self.b.u32(0), lane_block: at / per_block, sub: at % per_block }
    }

    fn decode(&self, row: &WeightRow<'_, 'b>, place: Place<'b>, span: u32) -> Vec<Run<'b>> {
        let weight = row.weight;
        let blocks = weight.cols / weight.format.device_block();
        let unit = Unit {
            b: self.b,
            base: row.base,
            planes: plane_offsets(weight),
            block: row.row * blocks + place.block + place.lane_block,
            sub: place.sub,
            turn: (self.b.lane() >> 2) & 1,
        };
        match (span, weight.format.emit_pair) {
            (2, Some(emit)) => emit(&unit).into(),
            _ => (weight.format.emit_unit)(&unit).into(),
        }
    }

    /// The inputs of some runs of one scale.
    fn input(&self, j: usize, runs: &[usize], before: Val<'b>, cols: &[Val<'b>], real: Option<Val<'b>>) -> Input<'b> {
        let (b, base, start) = (self.b, self.inputs.base, self.inputs.rows[j]);
        let words = |col: Val<'b>, plane: u32| {
            let at = start + before + self.layout.place(col);
            let v = b.load_at(Type::U32X4, base, at, plane * self.layout.cols, 16, true);
            [0, 1, 2, 3].map(|i| v.lane(i))
        };
        let planes = if self.layout.wide { 2 } else { 1 };
        let bytes = (0..planes).map(|p| runs.iter().map(|r| words(cols[*r], p)).collect()).collect();
        let first = cols[runs[0]];
        let at = start + before / 2 + self.layout.note(first / UNIT) * 16;
        let notes = b.load_at(Type::F32X4, base, at, self.layout.notes(), 16, true);
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
        let Weights::Bytes { scale, bias, .. } = weights[runs[0]].weights else {
            unreachable!("float weights take float inputs")
        };
        let sums: Vec<Val<'b>> = x
            .bytes
            .iter()
            .map(|plane| {
                runs.iter().zip(plane).fold(b.i32(0), |sum, (r, x)| match &weights[*r].weights {
                    Weights::Bytes { packed, .. } => {
                        // Unsigned levels are below 128, and products of mixed signs are slow on some hardware.
                        packed.iter().zip(x).fold(sum, |sum, (w, x)| b.dot4(*w, *x, sum, true))
                    }
                    Weights::Floats(_) => sum,
                })
            })
            .collect();
        // At most 32 · 128 · 128 · 256 < 2³¹.
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
