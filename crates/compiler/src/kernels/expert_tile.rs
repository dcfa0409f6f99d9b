//! How a workgroup of an expert product shares its rows, and what becomes of their sums.
//!
//! ```text
//! plain:      each subgroup ─► its rows' sums ─► finished by lane 0 ─► y
//! quantized:  each subgroup ─► sums in shared memory ─barrier─► all lanes finish them ─barrier─► block of 32 quantized
//! ```

use super::dot_blocks::Flight;
use super::matvec::{activate, shared_quad};
use super::quantize::Blocks;
use super::rows::for_items;
use super::tables;
use crate::cut::{self, Cut, Cuts, Space};
use crate::template::Ctx;
use zinc_ir::graph::{Activation, NodeId, Weight};
use zinc_ir::kernel::{Builder, Type, Val};
use zinc_ir::quant::UNIT;

/// The rows of one workgroup.
#[derive(Clone, Copy)]
pub(super) struct Tile {
    /// How they are cut.
    pub(super) cut: Cut,
    /// Weights that each row has.
    pub(super) sets: u32,
}

/// What decides how a launch of expert products is best cut.
pub(super) struct Launch<'a> {
    /// Template, formats, sizes and precision of the inputs, in words.
    pub(super) what: String,
    /// Rows of an expert's matrix.
    pub(super) m: u32,
    /// One, or gate and up.
    pub(super) weights: &'a [&'a Weight],
    /// Tokens, times chosen experts where each is a tile of its own.
    pub(super) copies: u32,
    /// The node that quantizes the output.
    pub(super) quantized: Option<NodeId>,
    /// What the rules for others set: see [`Cut::units`] and [`Cut::ahead`].
    pub(super) flight: Flight,
    /// The cut may change it.
    pub(super) free_flight: bool,
}

impl Launch<'_> {
    /// Its cuts, the rule's first.
    pub(super) fn cuts(self, ctx: &Ctx<'_>) -> Cuts {
        let (m, sets) = (self.m, self.weights.len() as u32);
        let ends = self.quantized.map_or(String::new(), |node| format!(" to {}", ctx.input_words(node)));
        let key = format!("{}{ends}", self.what);
        let table_bytes = tables::bytes(self.weights);
        let shared = |cut: Cut| (sets + 1) * cut.tile() * 4 + table_bytes;
        let blocks = cut::whole_blocks(m);
        let turns = |subgroups, rows| match self.quantized {
            Some(_) => blocks(subgroups, rows),
            None => vec![1],
        };
        let rule = self.rule(ctx);
        Space { key, rule, flight: self.free_flight, turns: &turns, sets, inputs: 1, shared: &shared }.cuts(ctx)
    }

    /// Two rows share the reading of the inputs, but only where that leaves tiles enough; quantized tiles are whole
    /// blocks: one of 32 rows by about 512 lanes, so that a launch of few blocks still has many loads under way.
    fn rule(&self, ctx: &Ctx<'_>) -> Cut {
        let Flight { units, ahead } = self.flight;
        if self.quantized.is_some() {
            let size = ctx.caps.subgroup_size;
            let most = (ctx.caps.max_workgroup.min(512) / size).clamp(1, 16);
            let subgroups = 1 << most.ilog2();
            let rows = if self.weights.len() == 1 { 2 } else { 1 };
            return Cut { subgroups, rows, turns: UNIT / (subgroups * rows), units, ahead, ..Cut::ONE };
        }
        let subgroups = ctx.subgroups();
        let tiles = self.m.div_ceil(subgroups * 2) as u64 * self.copies as u64;
        let rows = if tiles >= ctx.caps.parallel_tiles as u64 { 2 } else { 1 };
        Cut { subgroups, rows, turns: 1, units, ahead, ..Cut::ONE }
    }
}

/// Where a tile's values go.
pub(super) struct Ending<'b> {
    /// Rows of an expert's matrix.
    pub(super) m: u32,
    /// Row of the output.
    pub(super) row: Val<'b>,
    /// Column of the output where the matrix's rows begin.
    pub(super) column: Val<'b>,
    /// Columns of the output.
    pub(super) cols: u32,
    /// The output as F32.
    pub(super) y: Option<Val<'b>>,
    /// And quantized: its node, address, and the gain of a norm.
    pub(super) quantized: Option<(NodeId, Val<'b>, Option<Val<'b>>)>,
    /// A row has two sums, gate and up.
    pub(super) activation: Option<Activation>,
    /// Added: F32 rows like the output.
    pub(super) residual: Option<Val<'b>>,
}

impl Tile {
    /// Lanes of the workgroup.
    pub(super) fn lanes(&self, subgroup: u32) -> u32 {
        self.cut.subgroups * subgroup
    }

    /// Writes the tile. `sums(rows)` gives the sums of some rows as `[set · rows + row]`.
    pub(super) fn run<'b>(
        &self,
        ctx: &Ctx<'_>,
        b: &'b Builder,
        ending: &Ending<'b>,
        sums: impl Fn(&[Val<'b>]) -> Vec<Val<'b>>,
    ) {
        match ending.quantized {
            None => self.direct(b, ending, sums),
            Some(quantized) => self.in_blocks(ctx, b, ending, quantized, sums),
        }
    }

    fn direct<'b>(&self, b: &'b Builder, ending: &Ending<'b>, sums: impl Fn(&[Val<'b>]) -> Vec<Val<'b>>) {
        let rows = self.cut.rows;
        let row0 = b.tile(0) * self.cut.tile() + b.subgroup_id() * rows;
        let index: Vec<Val<'b>> = (0..rows).map(|r| (row0 + r).min(b.u32(ending.m - 1))).collect();
        let sums = sums(&index);
        b.if_(b.lane().eq(0), || {
            for (r, row) in index.iter().enumerate() {
                let of_row: Vec<Val<'b>> = sums.iter().skip(r).step_by(rows as usize).copied().collect();
                b.if_((row0 + r as u32).lt(ending.m), || {
                    ending.store(b, *row, ending.value(&of_row, ending.addend(b, *row)))
                });
            }
        });
    }

    fn in_blocks<'b>(
        &self,
        ctx: &Ctx<'_>,
        b: &'b Builder,
        ending: &Ending<'b>,
        (node, base, gain): (NodeId, Val<'b>, Option<Val<'b>>),
        sums: impl Fn(&[Val<'b>]) -> Vec<Val<'b>>,
    ) {
        let (tile, rows, lanes) = (self.cut.tile(), self.cut.rows, self.lanes(ctx.caps.subgroup_size));
        let first = b.tile(0) * tile;
        let shared = b.shared("sums", Type::F32, self.sets * tile);
        let values = b.shared("values", Type::F32, tile);
        // Read before the products: their latencies hide behind the weights.
        let blocks = Blocks::new(ctx, b, node, (base, gain), (ending.column + first, tile), lanes);
        let early = (tile <= lanes).then(|| ending.addend(b, first + b.local_id().min(b.u32(tile - 1))));
        let turn = |i: Val<'b>| {
            let local = (i * self.cut.subgroups + b.subgroup_id()) * rows;
            let index: Vec<Val<'b>> = (0..rows).map(|r| first + local + r).collect();
            let sums = sums(&index);
            b.if_(b.lane().eq(0), || {
                for (k, sum) in sums.into_iter().enumerate() {
                    let (set, r) = (k as u32 / rows, k as u32 % rows);
                    b.shared_store(shared, local + (r + set * tile), sum);
                }
            });
        };
        // Straight code: the loads of a later turn need not wait for an earlier one.
        if self.cut.turns <= STRAIGHT_TURNS {
            (0..self.cut.turns).for_each(|i| turn(b.u32(i)));
        } else {
            b.for_(b.u32(0), b.u32(self.cut.turns), 1, &[], |i, _| {
                turn(i);
                vec![]
            });
        }
        b.barrier();
        for_items(b, lanes, tile, |i| {
            let of_row: Vec<Val<'b>> = (0..self.sets).map(|set| b.shared_load(shared, i + set * tile)).collect();
            let value = ending.value(&of_row, early.unwrap_or_else(|| ending.addend(b, first + i)));
            ending.store(b, first + i, value);
            b.shared_store(values, i, value);
        });
        b.barrier();
        blocks.store(ending.row, |column| shared_quad(b, values, column));
    }
}

/// Most turns without a loop.
const STRAIGHT_TURNS: u32 = 2;

impl<'b> Ending<'b> {
    /// What is added to a row; can be read before its sums are known.
    fn addend(&self, b: &'b Builder, row: Val<'b>) -> Option<Val<'b>> {
        let at = |a| b.load(Type::F32, a, (self.row * self.cols + self.column + row) * 4, 4);
        self.residual.map(at)
    }

    fn value(&self, sums: &[Val<'b>], addend: Option<Val<'b>>) -> Val<'b> {
        let value = match self.activation {
            Some(act) => activate(act, sums[0]) * sums[1],
            None => sums[0],
        };
        addend.map_or(value, |addend| value + addend)
    }

    fn store(&self, b: &'b Builder, row: Val<'b>, value: Val<'b>) {
        if let Some(y) = self.y {
            b.store(y, (self.row * self.cols + self.column + row) * 4, value, 4);
        }
    }
}
