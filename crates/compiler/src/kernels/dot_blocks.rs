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
use std::cell::RefCell;
use zinc_ir::kernel::{Builder, Type, Val};
use zinc_ir::quant::{Loads, QuantFormat, Run, UNIT, Unit, Weights};

/// Are so many input rows few enough for loads ahead and for code without loops? Subgroups of 64 spill with more on RDNA
/// (docs/internals/rdna.md).
pub(super) fn few_enough(subgroup: u32, rows: u32) -> bool {
    subgroup < 64 || rows <= 4
}

/// What a lane has under way of each row's weights.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Flight {
    /// Units loaded together: 1, or 2, as a pair where the format has one.
    pub(crate) units: u32,
    /// The next ones are loaded before these are multiplied. Costs registers, hence subgroups.
    pub(crate) ahead: bool,
}

/// This lane's sums `[r][n]` over its units, then the inputs' squares `[n]` if `norm`.
pub(super) fn accumulate<'a, 'b>(
    b: &'b Builder,
    (subgroup, flight): (u32, Flight),
    rows: &[WeightRow<'a, 'b>],
    inputs: &Inputs<'b>,
    layout: RowLayout,
    norm: bool,
) -> Vec<Val<'b>> {
    let (n, r) = (inputs.rows.len(), rows.len());
    let units = rows[0].weight.cols / UNIT;
    let dot = Dot { b, subgroup, rows, inputs, layout, norm };
    let mut acc = vec![b.f32(0.0); r * n + if norm { n } else { 0 }];
    let pairs = rows.iter().all(|r| r.weight.format.emit_pair.is_some());
    let span = if pairs && flight.units.is_multiple_of(2) { 2 } else { 1 };
    let unroll = flight.units / span;
    let steps = units / (subgroup * span);
    let full = |i: Val<'b>| Step { first: i * (subgroup * span), lane: b.lane(), span, real: None };
    let fulls = |from: Val<'b>, count: u32| (0..count).map(|k| full(from + k)).collect::<Vec<_>>();
    let groups = steps / unroll;
    let mut last = vec![];
    let straight = few_enough(subgroup, n as u32);
    if (groups > 1 || groups == 1 && !straight) && !flight.ahead {
        acc = b.for_(b.u32(0), b.u32(groups * unroll), unroll, &acc, |i, acc| {
            let steps = fulls(i, unroll);
            dot.load_and_add(&steps, acc.to_vec())
        });
    } else if groups > 0 {
        // While one group is multiplied, the weights of the next are under way.
        let first = dot.issue(&fulls(b.u32(0), unroll));
        let count = first.len();
        let init: Vec<Val<'b>> = first.into_iter().chain(acc).collect();
        let end = b.u32((groups - 1) * unroll);
        let state = match groups {
            1 => init,
            _ => b.for_(b.u32(0), end, unroll, &init, |i, state| {
                let next = dot.issue(&fulls(i + unroll, unroll));
                let (now, acc) = state.split_at(count);
                let acc = dot.consume(&fulls(i, unroll), now.to_vec(), acc.to_vec());
                next.into_iter().chain(acc).collect()
            }),
        };
        acc = state[count..].to_vec();
        last.push((fulls(end, unroll), state[..count].to_vec()));
    }
    // What is left: steps that make no group, then less than a step in single units, where surplus lanes add zero.
    let mut rest = fulls(b.u32(groups * unroll), steps % unroll);
    let mut done = steps * subgroup * span;
    while done < units {
        let busy = (units - done).min(subgroup);
        if subgroup >= 64 && n > 2 && busy < subgroup {
            break;
        }
        let real = (busy < subgroup).then(|| b.lane().lt(busy));
        let lane = if busy < subgroup { b.lane().min(b.u32(busy - 1)) } else { b.lane() };
        rest.push(Step { first: b.u32(done), lane, span: 1, real });
        done += busy;
    }
    let loaded = dot.issue(&rest);
    last.push((rest, loaded));
    let acc = last.into_iter().fold(acc, |acc, (steps, loaded)| dot.consume(&steps, loaded, acc));
    if done == units {
        return acc;
    }
    // A branch of its own: with many inputs, the loads of straight code overflow the registers of wide subgroups.
    let step = [Step { first: b.u32(done), lane: b.lane(), span: 1, real: None }];
    let some = || dot.consume(&step, dot.issue(&step), acc.clone());
    b.if_else(b.lane().lt(units - done), some, || acc.clone())
}

/// One unit, or a pair, per lane.
#[derive(Clone, Copy)]
struct Step<'b> {
    /// Units of the row before it.
    first: Val<'b>,
    /// Number of the lane among those that take part.
    lane: Val<'b>,
    span: u32,
    /// False where the lane only repeats another's.
    real: Option<Val<'b>>,
}

/// One step of one row of inputs that is no part of a loop here: where each lane has weight rows of its own.
#[derive(Clone, Copy)]
pub(super) struct Part<'b> {
    /// Unit, or pair, of the weights' rows.
    pub(super) at: Val<'b>,
    /// Units: 1, or 2 as a pair.
    pub(super) span: u32,
}

impl<'b> Part<'b> {
    fn step(self, b: &'b Builder) -> [Step<'b>; 1] {
        [Step { first: b.u32(0), lane: self.at, span: self.span, real: None }]
    }

    /// Loads its weights.
    pub(super) fn issue(
        self,
        b: &'b Builder,
        rows: &[WeightRow<'_, 'b>],
        inputs: &Inputs<'b>,
        layout: RowLayout,
    ) -> Vec<Val<'b>> {
        Dot { b, subgroup: 1, rows, inputs, layout, norm: false }.issue(&self.step(b))
    }

    /// The sums of each row, from its weights.
    pub(super) fn sums(
        self,
        b: &'b Builder,
        rows: &[WeightRow<'_, 'b>],
        inputs: &Inputs<'b>,
        layout: RowLayout,
        loaded: Vec<Val<'b>>,
    ) -> Vec<Val<'b>> {
        let zero = vec![b.f32(0.0); rows.len()];
        Dot { b, subgroup: 1, rows, inputs, layout, norm: false }.consume(&self.step(b), loaded, zero)
    }
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
    /// Loads the weights of some steps.
    fn issue(&self, steps: &[Step<'b>]) -> Vec<Val<'b>> {
        let rows = steps.iter().flat_map(|step| self.rows.iter().map(move |row| (step, row)));
        rows.flat_map(|(step, row)| {
            let place = self.place(row.weight.format, step);
            let unit = self.unit(row, place, Loads::Record(RefCell::default()));
            emit(row.weight.format, &unit, step.span);
            match unit.loads {
                Loads::Record(list) => list.into_inner(),
                _ => unreachable!("made as a record"),
            }
        })
        .collect()
    }

    /// Loads and adds steps, each row's weights where they are decoded: drivers then use fewer registers than if all
    /// were loaded first.
    fn load_and_add(&self, steps: &[Step<'b>], acc: Vec<Val<'b>>) -> Vec<Val<'b>> {
        steps.iter().fold(acc, |acc, step| {
            let decode = |row: &WeightRow<'_, 'b>| {
                let place = self.place(row.weight.format, step);
                emit(row.weight.format, &self.unit(row, place, Loads::Direct), step.span)
            };
            let decoded: Vec<Vec<Run<'b>>> = self.rows.iter().map(decode).collect();
            self.add(step, &decoded, acc)
        })
    }

    /// Adds the steps whose weights are `loaded` to the accumulators.
    fn consume(&self, steps: &[Step<'b>], loaded: Vec<Val<'b>>, acc: Vec<Val<'b>>) -> Vec<Val<'b>> {
        let (mut acc, mut loaded) = (acc, loaded.into_iter());
        for step in steps {
            let decoded: Vec<Vec<Run<'b>>> = self
                .rows
                .iter()
                .map(|row| {
                    let place = self.place(row.weight.format, step);
                    let unit = self.unit(row, place, Loads::Replay(RefCell::new(std::mem::take(&mut loaded))));
                    let runs = emit(row.weight.format, &unit, step.span);
                    loaded = match unit.loads {
                        Loads::Replay(rest) => rest.into_inner(),
                        _ => unreachable!("made as a replay"),
                    };
                    runs
                })
                .collect();
            acc = self.add(step, &decoded, acc);
        }
        acc
    }

    /// Adds a step's weights times its inputs.
    fn add(&self, step: &Step<'b>, decoded: &[Vec<Run<'b>>], acc: Vec<Val<'b>>) -> Vec<Val<'b>> {
        let n = self.inputs.rows.len();
        let mut acc = acc;
        for (group, members) in by_format(self.rows).iter().enumerate() {
            let format = self.rows[members[0]].weight.format;
            let place = self.place(format, step);
            let block = format.device_block();
            let runs = &decoded[members[0]];
            let column = |run: &Run<'b>| {
                let col = place.lane_block * block + run.col;
                self.inputs.column.map_or(col, |first| col + first)
            };
            let cols: Vec<Val<'b>> = runs.iter().map(column).collect();
            for runs in sharing_a_scale(runs) {
                for j in 0..n {
                    let x = self.input(j, &runs, place.col, &cols, step.real);
                    if self.norm && group == 0 {
                        let at = self.rows.len() * n + j;
                        acc[at] = acc[at] + x.squares;
                    }
                    for &i in members {
                        acc[i * n + j] = self.add_runs(&decoded[i], &runs, &x, acc[i * n + j]);
                    }
                }
            }
        }
        acc
    }

    fn place(&self, format: &QuantFormat, step: &Step<'b>) -> Place<'b> {
        let units = format.device_block() / UNIT;
        let per_block = units / step.span;
        // Steps of 512 columns and more start at a block and keep the inputs' order; columns that begin elsewhere may not.
        if self.inputs.column.is_none() && (self.subgroup * UNIT).is_multiple_of(512) {
            let (lane_block, sub) = (step.lane / per_block, step.lane % per_block);
            return Place { block: step.first / units, col: step.first * UNIT, lane_block, sub };
        }
        let at = step.first / step.span + step.lane;
        Place { block: self.b.u32(0), col: self.b.u32(0), lane_block: at / per_block, sub: at % per_block }
    }

    fn unit(&self, row: &WeightRow<'_, 'b>, place: Place<'b>, loads: Loads<'b>) -> Unit<'b> {
        let weight = row.weight;
        let blocks = weight.cols / weight.format.device_block();
        Unit {
            b: self.b,
            base: row.base,
            planes: plane_offsets(weight),
            block: row.row * blocks + place.block + place.lane_block,
            sub: place.sub,
            turn: (self.b.lane() >> 2) & 1,
            loads,
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
                        // Unsigned levels are below 128: one product of signed bytes serves all formats.
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

/// The runs of one unit or, for `span` 2, of a pair.
fn emit<'b>(format: &QuantFormat, unit: &Unit<'b>, span: u32) -> Vec<Run<'b>> {
    match (span, format.emit_pair) {
        (2, Some(emit)) => emit(unit).into(),
        _ => (format.emit_unit)(unit).into(),
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
