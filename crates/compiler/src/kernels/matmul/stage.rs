//! What a tile reads: weight units decoded, and input rows.
//!
//! ```text
//! lane i: weight line i ─emit_unit─► 32 values
//!         input line r, columns of the unit
//! ```
//!
//! Both sides are in the format's order of decoding, which need not be the order of columns.

use super::Size;
use crate::kernels::dot;
use crate::kernels::{halve, rows};
use std::cell::RefCell;
use zinc_ir::graph::Weight;
use zinc_ir::kernel::{Builder, Scalar, Type, Val};
use zinc_ir::quant::{Loads, Run, UNIT, Unit};

/// The rows of a tile: of the inputs and of the output.
pub(super) struct Lines<'b> {
    /// Row of the output that the tile's first line makes.
    pub(super) first: Val<'b>,
    /// The last row that there is, of this tile or behind it. Lines beyond repeat its input and are not stored.
    pub(super) last: Val<'b>,
    /// Which input a row reads, where the inputs are not in the order of the rows.
    pub(super) picks: Option<Picks<'b>>,
}

/// Row `r` reads input row `numbers[r] / per`.
pub(super) struct Picks<'b> {
    /// Address of U32 numbers.
    pub(super) numbers: Val<'b>,
    /// So many rows share an input.
    pub(super) per: u32,
}

/// A unit, or two, whose loads are under way.
pub(super) struct Asked<'b> {
    base: Val<'b>,
    row: Val<'b>,
    unit: Val<'b>,
    units: u32,
    /// What has been loaded, in the order of decoding.
    pub(super) loads: Vec<Val<'b>>,
}

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
    /// The row of the weights that is feature 0, if not the first.
    pub(super) first_weight: Option<Val<'b>>,
    pub(super) lines: Lines<'b>,
    /// Address of the input rows.
    pub(super) x: Val<'b>,
    /// They are halves, not F32.
    pub(super) halves: bool,
    /// Addresses of the weights.
    pub(super) bases: Vec<Val<'b>>,
}

impl<'b> Stage<'_, 'b> {
    /// Weight lines of a tile: all of the first weight, then the second's.
    pub(super) fn weight_lines(&self) -> u32 {
        self.size.sets * self.features
    }

    /// Loads what `units` units (1, or 2 of a format that [has pairs](Stage::has_pairs)) from `unit` on of weight line
    /// `line` are decoded from.
    pub(super) fn ask(&self, b: &'b Builder, line: Val<'b>, unit: Val<'b>, units: u32) -> Asked<'b> {
        let (base, row) = self.weight_row(b, line);
        let mut asked = Asked { base, row, unit, units, loads: vec![] };
        let recorder = self.unit(b, &asked, Loads::Record(RefCell::default()));
        // Only the loads are used: the decoding is pruned.
        self.emit(&recorder, units);
        if let Loads::Record(loads) = recorder.loads {
            asked.loads = loads.into_inner();
        }
        asked
    }

    /// Decodes what was asked for.
    pub(super) fn decode(&self, b: &'b Builder, asked: &Asked<'b>) -> Vec<[Run<'b>; 2]> {
        let loads = Loads::Replay(RefCell::new(asked.loads.clone().into_iter()));
        self.emit(&self.unit(b, asked, loads), asked.units)
    }

    fn unit(&self, b: &'b Builder, asked: &Asked<'b>, loads: Loads<'b>) -> Unit<'b> {
        let unit = dot::unit_at(b, self.weight, asked.base, asked.row, asked.unit);
        // Of two units, `sub` counts pairs.
        Unit { sub: if asked.units == 2 { unit.sub / 2 } else { unit.sub }, loads, ..unit }
    }

    fn emit(&self, unit: &Unit<'b>, units: u32) -> Vec<[Run<'b>; 2]> {
        match (units, self.weight.format.emit_pair) {
            (2, Some(emit)) => {
                let [low0, low1, high0, high1] = emit(unit);
                vec![[low0, high0], [low1, high1]]
            }
            _ => vec![(self.weight.format.emit_unit)(unit)],
        }
    }

    /// Unit `unit` of weight line `line`. Lines beyond the last feature repeat it; their sums are not stored.
    pub(super) fn weights(&self, b: &'b Builder, line: Val<'b>, unit: Val<'b>) -> [Run<'b>; 2] {
        let (base, row) = self.weight_row(b, line);
        (self.weight.format.emit_unit)(&dot::unit_at(b, self.weight, base, row, unit))
    }

    /// Can two units that share their scales be read as one?
    pub(super) fn has_pairs(&self) -> bool {
        self.weight.format.emit_pair.is_some()
    }

    fn weight_row(&self, b: &'b Builder, line: Val<'b>) -> (Val<'b>, Val<'b>) {
        let second = line.ge(self.features);
        let (base, feature) = match self.bases[..] {
            [one] => (one, line),
            [gate, up, ..] => (second.select(up, gate), second.select(line - self.features, line)),
            [] => unreachable!("a product has a weight"),
        };
        let row = (self.first_feature + feature).min(b.u32(self.size.features - 1));
        (base, self.first_weight.map_or(row, |first| first + row))
    }

    /// First column of the first or second half of a unit.
    pub(super) fn first_column(&self, b: &'b Builder, unit: Val<'b>, second: Val<'b>) -> Val<'b> {
        // Only the column numbers are used: the loads are pruned.
        let runs = (self.weight.format.emit_unit)(&dot::unit_at(b, self.weight, self.bases[0], b.u32(0), unit));
        let [first, other] = [0, 1].map(|r: usize| dot::first_column(self.weight.format, unit, &runs[r]));
        second.select(other, first)
    }

    /// Element offset of input line `line`. Lines beyond the last row repeat it; their sums are not stored.
    pub(super) fn input_row(&self, b: &'b Builder, line: Val<'b>) -> Val<'b> {
        let mut row = (self.lines.first + line).min(self.lines.last);
        if let Some(Picks { numbers, per }) = self.lines.picks {
            let number = b.load(Type::U32, numbers, row * 4, 4);
            row = if per == 1 { number } else { number / per };
        }
        row * self.size.cols
    }

    /// Four inputs from element `at` on, as F32.
    pub(super) fn quad(&self, b: &'b Builder, at: Val<'b>) -> Val<'b> {
        match self.halves {
            true => b.load(Type::Vec(Scalar::F16, 4), self.x, at * 2, 8).to_f32(),
            false => b.load(Type::F32X4, self.x, at * 4, 16),
        }
    }

    /// Eight inputs from element `at` on, as halves in four words.
    pub(super) fn eight_halves(&self, b: &'b Builder, at: Val<'b>) -> Val<'b> {
        match self.halves {
            true => b.load(Type::U32X4, self.x, at * 2, 16),
            false => words(b, [0, 16].map(|imm| b.load_at(Type::F32X4, self.x, at * 4, imm, 16, true))),
        }
    }

    /// A lane's items out of `items`: (number, is there one), straight-line. A last one that is none repeats the last.
    pub(super) fn items(&self, b: &'b Builder, items: u32) -> Vec<(Val<'b>, Val<'b>)> {
        (0..items.div_ceil(self.lanes)).map(|turn| rows::item(b, turn, self.lanes, items)).collect()
    }

    /// Units of a row.
    pub(super) fn units(&self) -> u32 {
        self.size.cols / UNIT
    }
}

/// Eight inputs as halves in four words.
fn words<'b>(b: &'b Builder, quads: [Val<'b>; 2]) -> Val<'b> {
    let [low, high] = quads.map(|q| halve::rounded(b, q).bitcast(Type::Vec(Scalar::U32, 2)));
    b.compose(&[low.lane(0), low.lane(1), high.lane(0), high.lane(1)])
}
