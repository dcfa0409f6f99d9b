//! How a kernel's work is cut, and which cuts there are to choose from.
//!
//! ```text
//! emit(region): key, what the rule says, all legal cuts ─┬─ Choices::tuned has the key, and its cut is legal ─► that one
//!                                                        └─ else ─► the rule's
//! ```
//!
//! The rule is a guess from sizes and abilities; a tuner that can measure finds better ones for a card. Every legal cut
//! computes the same sums, in an order that only [`Cut::units`], [`Cut::columns`], [`Cut::slices`] and
//! [`Cut::staged`] change.

use crate::Ctx;
use crate::kernels::Flight;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::str::FromStr;
use zinc_ir::graph::NodeId;
use zinc_ir::plan::COUNTERS;
use zinc_ir::quant::UNIT;

/// Changes when kernels change so that a cut found best before need not be so now: stored cuts of another generation
/// are forgotten.
pub const GENERATION: u32 = 4;

/// How the work of a mat-vec, or of a narrow product on matrix units, is cut.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Cut {
    /// Subgroups per workgroup.
    pub subgroups: u32,
    /// Weight rows a subgroup multiplies at a time. On matrix units it is what a matrix has: no choice.
    pub rows: u32,
    /// How many times.
    pub turns: u32,
    /// Units of each row loaded together: 2 are a pair where the format has one.
    pub units: u32,
    /// The next units are loaded before these are multiplied. Costs registers, hence subgroups.
    pub ahead: bool,
    /// So many of the subgroups divide the columns of the same rows.
    pub columns: u32,
    /// Workgroups that divide the columns of the same rows.
    pub slices: u32,
    /// So many steps' inputs are staged together.
    pub staged: u32,
}

impl Cut {
    /// One of each.
    pub const ONE: Cut =
        Cut { subgroups: 1, rows: 1, turns: 1, units: 1, ahead: false, columns: 1, slices: 1, staged: 1 };

    /// Weight rows of a workgroup.
    pub fn tile(self) -> u32 {
        self.subgroups / self.columns * self.rows * self.turns
    }

    pub(crate) fn flight(self) -> Flight {
        Flight { units: self.units, ahead: self.ahead }
    }

    /// In how many steps (doublings, halvings, a change of [`Cut::ahead`]) one becomes the other.
    pub fn distance(self, other: Cut) -> u32 {
        let steps = |a: u32, b: u32| a.max(1).ilog2().abs_diff(b.max(1).ilog2());
        steps(self.subgroups, other.subgroups)
            + steps(self.rows, other.rows)
            + steps(self.tile(), other.tile())
            + steps(self.units, other.units)
            + steps(self.columns, other.columns)
            + steps(self.slices, other.slices)
            + steps(self.staged, other.staged)
            + u32::from(self.ahead != other.ahead)
    }
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ahead = if self.ahead { " ahead" } else { "" };
        write!(f, "{}x{}x{} u{}{ahead}", self.subgroups, self.rows, self.turns, self.units)?;
        match (self.columns, self.slices, self.staged) {
            (1, 1, 1) => Ok(()),
            (columns, slices, staged) => write!(f, " c{columns}/{slices} s{staged}"),
        }
    }
}

/// Text that is no cut.
#[derive(Clone, Debug, thiserror::Error)]
#[error("`{0}` is no cut; one looks like 16x2x1 u2 ahead, or 8x16x1 u2 c2/4 s8")]
pub struct NoCut(String);

impl FromStr for Cut {
    type Err = NoCut;
    fn from_str(text: &str) -> Result<Cut, NoCut> {
        let parse = || {
            let count = |text: &str| text.parse().ok().filter(|n: &u32| *n > 0);
            let (text, columns, slices, staged) = match text.split_once(" c") {
                Some((rest, by)) => {
                    let (by, staged) = by.split_once(" s")?;
                    let (columns, slices) = by.split_once('/')?;
                    (rest, count(columns)?, count(slices)?, count(staged)?)
                }
                None => (text, 1, 1, 1),
            };
            let (rest, ahead) = text.strip_suffix(" ahead").map_or((text, false), |rest| (rest, true));
            let (sizes, units) = rest.split_once(" u")?;
            let sizes: Vec<u32> = sizes.split('x').map(|n| n.parse().ok()).collect::<Option<_>>()?;
            let [subgroups, rows, turns] = sizes[..] else { return None };
            Some(Cut { subgroups, rows, turns, units: units.parse().ok()?, ahead, columns, slices, staged })
        };
        parse().ok_or_else(|| NoCut(text.to_string()))
    }
}

impl TryFrom<String> for Cut {
    type Error = NoCut;
    fn try_from(text: String) -> Result<Cut, NoCut> {
        text.parse()
    }
}

impl From<Cut> for String {
    fn from(cut: Cut) -> String {
        cut.to_string()
    }
}

/// Cuts found best for a device, by key.
pub type Tuned = BTreeMap<String, Cut>;

/// What can be chosen in a region.
#[derive(Clone, PartialEq, Debug)]
pub struct Cuts {
    /// All that decides which cut is best, in words: template, formats, sizes, rows, precision of inputs and output.
    pub key: String,
    /// Every legal cut, where they are asked for ([`crate::tunables`]): the rule's, then the others, those like it first.
    pub all: Vec<Cut>,
    /// The one in use.
    pub used: Cut,
}

impl Cuts {
    /// Of what the rule says and the other legal cuts, the one that the tuner found; or the rule's. The others are listed
    /// only where it matters which they are.
    pub(crate) fn new(ctx: &Ctx<'_>, key: String, rule: Cut, others: impl FnOnce() -> Vec<Cut>) -> Cuts {
        let tuned = ctx.choices.tuned.get(&key).filter(|_| !ctx.choices.invariant);
        if tuned.is_none() && !ctx.lists_cuts {
            return Cuts { key, all: vec![rule], used: rule };
        }
        let mut others = others();
        others.sort_by_key(|cut| cut.distance(rule));
        let mut known = HashSet::new();
        let all: Vec<Cut> = std::iter::once(rule).chain(others).filter(|cut| known.insert(*cut)).collect();
        let used = tuned.copied().filter(|cut| known.contains(cut)).unwrap_or(rule);
        Cuts { key, all, used }
    }
}

/// Regions of a plan that share a key.
#[derive(Clone, Debug)]
pub struct Tunable {
    /// What can be chosen for all of them.
    pub cuts: Cuts,
    /// The regions.
    pub uses: Vec<Use>,
}

/// Where a plan has a kernel with cuts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Use {
    /// Last node of the region, and of its launch's [`zinc_ir::plan::Launch::region`].
    pub node: NodeId,
    /// Model layer, `u32::MAX` outside layers.
    pub layer: u32,
    /// Bytes that it must read and write.
    pub bytes: u64,
}

/// The legal cuts of a kernel, before they are listed.
pub(crate) struct Space<'a> {
    /// See [`Cuts::key`].
    pub(crate) key: String,
    /// What the rule says.
    pub(crate) rule: Cut,
    /// [`Cut::units`] and [`Cut::ahead`] mean something.
    pub(crate) flight: bool,
    /// Turns to consider for so many (subgroups, rows).
    pub(crate) turns: &'a dyn Fn(u32, u32) -> Vec<u32>,
    /// Weights that each row has.
    pub(crate) sets: u32,
    /// Input rows.
    pub(crate) inputs: u32,
    /// Bytes of workgroup memory.
    pub(crate) shared: &'a dyn Fn(Cut) -> u32,
}

/// Most subgroups of a workgroup.
const MOST_SUBGROUPS: u32 = 32;
/// Most accumulators of a lane, and most units that it has under way.
const MOST_REGISTERS: u32 = 16;

impl Space<'_> {
    /// Lists the cuts and picks one.
    pub(crate) fn cuts(self, ctx: &Ctx<'_>) -> Cuts {
        Cuts::new(ctx, self.key.clone(), self.rule, || self.others(ctx))
    }

    fn others(&self, ctx: &Ctx<'_>) -> Vec<Cut> {
        let most = (ctx.caps.max_workgroup / ctx.caps.subgroup_size).clamp(1, MOST_SUBGROUPS);
        let powers = |most: u32| (0..=most.ilog2()).map(|p| 1 << p);
        let flights: Vec<(u32, bool)> = match self.flight {
            true => [1, 2, 4].into_iter().flat_map(|units| [(units, false), (units, true)]).collect(),
            false => vec![(self.rule.units, self.rule.ahead)],
        };
        let mut all = vec![];
        for subgroups in powers(most) {
            for rows in [1, 2, 4] {
                for turns in (self.turns)(subgroups, rows) {
                    let of = |&(units, ahead)| Cut { subgroups, rows, turns, units, ahead, ..Cut::ONE };
                    all.extend(flights.iter().map(of).filter(|cut| self.allows(ctx, *cut)));
                }
            }
        }
        all
    }

    fn allows(&self, ctx: &Ctx<'_>, cut: Cut) -> bool {
        let sums = |cut: Cut| cut.rows * self.sets * self.inputs;
        let units = |cut: Cut| cut.rows * self.sets * cut.units;
        sums(cut) <= sums(self.rule).max(MOST_REGISTERS)
            && units(cut) <= units(self.rule).max(MOST_REGISTERS)
            && cut.subgroups * ctx.caps.subgroup_size <= ctx.caps.max_workgroup
            && (self.shared)(cut) + SHARED_RESERVE <= ctx.caps.max_shared_bytes
    }
}

/// Bytes of workgroup memory left for what kernels need besides their sums.
const SHARED_RESERVE: u32 = 2048;

/// Turns that make tiles of 32 rows, or twice and four times as many: for what ends in quantized blocks.
pub(crate) fn whole_blocks(m: u32) -> impl Fn(u32, u32) -> Vec<u32> {
    of_tiles([32, 64, 128].into_iter().filter(|tile| m.is_multiple_of(*tile)).collect())
}

/// As [`whole_blocks`], or parts of blocks, as far as there are counters for the blocks: for kernels whose tiles finish
/// a block together.
pub(crate) fn blocks_or_parts(m: u32) -> impl Fn(u32, u32) -> Vec<u32> {
    let parts = [8, 16].into_iter().filter(|_| m / UNIT <= COUNTERS);
    of_tiles(parts.chain([32, 64, 128].into_iter().filter(|tile| m.is_multiple_of(*tile))).collect())
}

/// Turns of so many (subgroups, rows) that make one of these tiles.
fn of_tiles(tiles: Vec<u32>) -> impl Fn(u32, u32) -> Vec<u32> {
    move |subgroups, rows| {
        let at_once = subgroups * rows;
        tiles.iter().filter(|tile| tile.is_multiple_of(at_once)).map(|tile| tile / at_once).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CUT: Cut = Cut { subgroups: 16, rows: 2, turns: 1, units: 4, ahead: true, ..Cut::ONE };

    #[test]
    fn text_and_back() {
        for cut in [
            CUT,
            Cut { ahead: false, ..CUT },
            Cut { columns: 2, slices: 8, staged: 4, ..CUT },
            Cut { slices: 3, ..CUT },
        ] {
            assert_eq!(cut.to_string().parse::<Cut>().ok(), Some(cut));
        }
        for text in [
            "",
            "16x2 u1",
            "16x2x1",
            "16x2x1x1 u1",
            "axbxc u1",
            "16x2x1 u-1",
            "16x2x1 u1 behind",
            "16x2x1 u1 c0/1 s1",
            "16x2x1 u1 c1/0 s1",
            "16x2x1 u1 c1/1 s0",
            "16x2x1 u1 c2",
        ] {
            assert!(text.parse::<Cut>().is_err(), "{text}");
        }
    }

    #[test]
    fn distances_count_steps() {
        assert_eq!(CUT.distance(CUT), 0);
        assert_eq!(CUT.distance(Cut { ahead: false, units: 1, ..CUT }), 3);
        // The same tile by half the subgroups.
        assert_eq!(CUT.distance(Cut { subgroups: 8, turns: 2, ..CUT }), 1);
        assert_eq!(CUT.distance(Cut { subgroups: 8, ..CUT }), 2);
    }
}
