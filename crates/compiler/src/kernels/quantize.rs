//! Rows of block-scaled integers: the inputs of mat-vecs with integer weights.
//!
//! ```text
//! block of 32: scale = max|x·gain| / top, q = round(x·gain / scale)          top = 127, or 32512 for two bytes
//! row: cols high bytes │ [cols low bytes] │ per block (scale, scale·Σq of its first 16, of its last 16, Σx²) as F32,
//!      in the order of `RowLayout::place` and `note`
//! ```
//!
//! Two bytes split as q = 256·high + low, both signed: two integer dot products instead of one. Readers apply a norm's
//! factor 1/√(mean x² + eps) to finished sums; they find Σx² on their way. Producers quantize in their epilogue with
//! [`Blocks`]; the template here is for values whose producer does not.

use super::args::single;
use super::rows::workgroup;
use crate::select::Finder;
use crate::template::{Ctx, Emission, Operand, Template};
use crate::{CompileError, Region};
use zinc_ir::graph::{NodeId, Op};
use zinc_ir::kernel::{Builder, Scalar, Type, Val};
use zinc_ir::quant::UNIT;

pub(super) static QUANTIZE: Template = Template {
    name: "quantize",
    summary: "rows to block-scaled integers",
    fused: false,
    matches: |f, node| matches!(f.op(node), Op::Quantize { .. }).then(|| vec![node]),
    emit,
};

/// Bytes of what a block carries besides its integers.
const BLOCK_NOTES: u32 = 16;

/// Where things are in a quantized row.
#[derive(Clone, Copy)]
pub(crate) struct RowLayout {
    /// Columns.
    pub(crate) cols: u32,
    /// Two bytes per value.
    pub(crate) wide: bool,
}

impl RowLayout {
    /// Byte offset of the notes.
    pub(crate) fn notes(self) -> u32 {
        self.cols * if self.wide { 2 } else { 1 }
    }
    /// Where column `col`'s byte is. In each 64 columns the four pieces of 16 bytes are rotated, by one more every 128
    /// columns: lanes that read 64 columns each, a piece at a time, then meet no bank twice in eight lanes. Moves by
    /// whole multiples of 512 columns keep it: place(col + 512) = place(col) + 512.
    pub(crate) fn place<'b>(self, col: Val<'b>) -> Val<'b> {
        if !self.turns() {
            return col;
        }
        let piece = ((col >> 4) + (col >> 7)) & 3;
        (col & !63u32) + (piece << 4) + (col & 15)
    }
    /// Which note block `block` has: the two of 64 columns change places every 256 columns.
    pub(crate) fn note<'b>(self, block: Val<'b>) -> Val<'b> {
        if !self.turns() {
            return block;
        }
        block ^ ((block >> 3) & 1)
    }
    fn turns(self) -> bool {
        self.cols.is_multiple_of(64)
    }
    /// Bytes of a row.
    pub(crate) fn bytes(self) -> u32 {
        self.notes() + self.cols / UNIT * BLOCK_NOTES
    }
}

/// The quantized value that a region ends in: (value behind it, its node).
pub(super) fn ending(f: &Finder<'_>, node: NodeId) -> Option<(NodeId, NodeId)> {
    match *f.op(node) {
        Op::Quantize { x, .. } if f.ctx.choices.fuse && f.open(x) && !f.ctx.leaves(x) => Some((x, node)),
        _ => None,
    }
}

/// Writes quantized blocks of a run of columns, a team of lanes per block.
pub(super) struct Blocks<'b> {
    b: &'b Builder,
    layout: RowLayout,
    base: Val<'b>,
    /// First column of the run, a multiple of 32.
    first: Val<'b>,
    /// Columns, a multiple of 32.
    count: u32,
    lanes: u32,
    subgroup: u32,
    /// Lanes per block: 2, 4 or 8, within a subgroup.
    team: u32,
    /// Gain of this lane's values where it has but one turn: read before it is needed.
    gains: Gains<'b>,
}

enum Gains<'b> {
    None,
    Ready(Vec<Val<'b>>),
    At(Val<'b>),
}

impl<'b> Blocks<'b> {
    /// For columns `first .. first + count` of rows of `node` (a `Quantize`) at `base`, by a workgroup of `lanes`.
    /// `gain` is the address of the norm's weight. Call it early: it reads the gain.
    pub(super) fn new(
        ctx: &Ctx<'_>,
        b: &'b Builder,
        node: NodeId,
        (base, gain): (Val<'b>, Option<Val<'b>>),
        (first, count): (Val<'b>, u32),
        lanes: u32,
    ) -> Blocks<'b> {
        debug_assert!(count.is_multiple_of(UNIT), "part of a block");
        let wide = matches!(ctx.graph.op(node), Op::Quantize { wide: true, .. });
        let subgroup = ctx.caps.subgroup_size;
        let team = subgroup.min(8);
        let layout = RowLayout { cols: ctx.cols(node), wide };
        let mut blocks = Blocks { b, layout, base, first, count, lanes, subgroup, team, gains: Gains::None };
        blocks.gains = match gain {
            None => Gains::None,
            Some(at) if blocks.items() <= lanes => {
                let column = blocks.column(b.local_id().min(b.u32(blocks.items() - 1)));
                Gains::Ready(blocks.quads(|quad| blocks.load_gain(at, column + quad * 4)))
            }
            Some(at) => Gains::At(at),
        };
        blocks
    }

    /// Teams' lanes over all blocks.
    fn items(&self) -> u32 {
        self.count / UNIT * self.team
    }

    /// First column, within the run, of item `i`.
    fn column(&self, i: Val<'b>) -> Val<'b> {
        i * (UNIT / self.team)
    }

    fn quads(&self, f: impl Fn(u32) -> Val<'b>) -> Vec<Val<'b>> {
        (0..UNIT / self.team / 4).map(f).collect()
    }

    fn load_gain(&self, at: Val<'b>, column: Val<'b>) -> Val<'b> {
        self.b.load(Type::F32X4, at, (self.first + column) * 4, 16)
    }

    /// Quantizes row `row`; `quad(c)` gives the four values from column `c` of the run.
    pub(super) fn store(&self, row: Val<'b>, quad: impl Fn(Val<'b>) -> Val<'b>) {
        let (b, items) = (self.b, self.items());
        // Whole subgroups take part, since the lanes of a team exchange values; surplus lanes repeat the last item.
        let turn = |start: Val<'b>| {
            let item = start + b.local_id();
            let busy = (start + b.subgroup_id() * self.subgroup).lt(items);
            b.if_(busy, || self.item(row, item.min(b.u32(items - 1)), item.lt(items), &quad));
        };
        if items <= self.lanes {
            return turn(b.u32(0));
        }
        b.for_(b.u32(0), b.u32(items), self.lanes, &[], |start, _| {
            turn(start);
            vec![]
        });
    }

    fn item(&self, row: Val<'b>, item: Val<'b>, real: Val<'b>, quad: &impl Fn(Val<'b>) -> Val<'b>) {
        let (b, layout) = (self.b, self.layout);
        let column = self.column(item);
        let raw = self.quads(|i| quad(column + i * 4));
        let scaled: Vec<Val<'b>> = match &self.gains {
            Gains::None => raw.clone(),
            Gains::Ready(gains) => raw.iter().zip(gains).map(|(x, g)| *x * *g).collect(),
            Gains::At(at) => {
                let gain = |i: usize| self.load_gain(*at, column + i as u32 * 4);
                raw.iter().enumerate().map(|(i, x)| *x * gain(i)).collect()
            }
        };
        let squares = raw.iter().map(|x| *x * *x).reduce(|a, x| a + x).expect("a quad").sum_lanes();
        let squares = self.over_team(squares, self.team, |a, x| a + x);
        let peak = scaled.iter().map(|x| x.abs()).reduce(|m, x| m.max(x)).expect("a quad");
        let peak = peak.lane(0).max(peak.lane(1)).max(peak.lane(2).max(peak.lane(3)));
        let peak = self.over_team(peak, self.team, Val::max);
        let top = if layout.wide { 32512.0 } else { 127.0 };
        // A block of zeros has scale 0 and integers 0.
        let inverse = peak.gt(0.0).select(b.f32(top) / peak, b.f32(0.0));
        let scale = peak * (1.0 / top);
        let at = row * layout.bytes() + layout.place(self.first + column);
        let mut sum = b.i32(0);
        for (i, x) in scaled.iter().enumerate() {
            let q = (*x * inverse.splat(4)).round_even().to(Scalar::I32);
            let lanes = [0, 1, 2, 3].map(|k| q.lane(k));
            sum = lanes.iter().fold(sum, |s, q| s + *q);
            let words = self.words(lanes);
            b.if_(real, || {
                b.store(self.base, at + i as u32 * 4, words[0], 4);
                if layout.wide {
                    b.store(self.base, at + (layout.cols + i as u32 * 4), words[1], 4);
                }
            });
        }
        let half = self.over_team(sum.to_f32(), self.team / 2, |a, x| a + x) * scale;
        let other = half.shuffle_xor(self.team / 2);
        let notes = row * layout.bytes() + layout.notes() + layout.note((self.first + column) / UNIT) * BLOCK_NOTES;
        b.if_(real & (item % self.team).eq(0), || {
            b.store(self.base, notes, b.compose(&[scale, half, other, squares]), 16);
        });
    }

    /// Four integers as a word of (high) bytes and a word of low bytes.
    fn words(&self, q: [Val<'b>; 4]) -> [Val<'b>; 2] {
        let pack = |bytes: [Val<'b>; 4]| {
            let byte = |k: usize| bytes[k].bitcast(Type::U32) & 0xff;
            byte(0) | (byte(1) << 8) | (byte(2) << 16) | (byte(3) << 24)
        };
        if !self.layout.wide {
            return [pack(q), self.b.u32(0)];
        }
        let high = q.map(|q| (q + self.b.i32(128)) >> self.b.i32(8));
        [pack(high), pack(q)]
    }

    fn over_team(&self, x: Val<'b>, team: u32, f: impl Fn(Val<'b>, Val<'b>) -> Val<'b>) -> Val<'b> {
        let (mut x, mut step) = (x, 1);
        while step < team {
            x = f(x, x.shuffle_xor(step));
            step *= 2;
        }
        x
    }
}

/// Columns per tile of the plain template.
const TILE: u32 = 1024;

fn emit(ctx: &Ctx<'_>, region: &Region) -> Result<Emission, CompileError> {
    let out = region.last();
    let Op::Quantize { x, norm, wide } = *ctx.graph.op(out) else { return Err(ctx.unsupported(out, "pattern")) };
    let cols = ctx.cols(out);
    // The largest tile that divides the row.
    let count = (1..=TILE / UNIT).rev().map(|n| n * UNIT).find(|n| cols.is_multiple_of(*n)).unwrap_or(UNIT);
    let lanes = workgroup(ctx, count / UNIT * ctx.caps.subgroup_size.min(8));
    let name = format!("quantize_{}_{cols}", if wide { "2" } else { "1" });
    Ok(single(name, lanes, ctx.caps.subgroup_size, [cols / count, ctx.rows(out), 1], |b, args| {
        let from = args.read("x", Operand::Value(x));
        let gain = norm.map(|(w, _)| args.read("norm", Operand::Weight(w)));
        let y = args.write("y", Operand::Value(out));
        let first = b.tile(0) * count;
        let row = b.tile(1);
        let blocks = Blocks::new(ctx, b, out, (y, gain), (first, count), lanes);
        blocks.store(row, |column| b.load(Type::F32X4, from, (row * cols + first + column) * 4, 16));
    }))
}
