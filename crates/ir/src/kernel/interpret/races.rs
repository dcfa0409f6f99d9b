//! Who touched what in this launch, and which touches nothing orders.
//!
//! ```text
//! (tile, barrier interval, lane) + (read | write | atomic) ─► Cell of the place ─► conflict?
//! ```
//!
//! Two accesses are ordered when one lane makes both, or when one tile makes both in different barrier intervals.
//! Everything else races if one writes and not both are atomic. A [`Cell`] keeps a summary per kind of access that
//! is as good as the full history: older intervals of a tile are ordered before anything it does later, and of
//! several lanes or tiles only "more than one" matters.

use super::FaultKind;
use super::memory::{Access, Memory};

/// No tile number of a launch reaches this.
pub(super) const MAX_TILES: u32 = u32::MAX - 15;
const NOBODY: u32 = u32::MAX;
const MANY: u32 = u32::MAX - 1;

/// Who makes an access.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Who {
    pub(super) tile: u32,
    /// Barriers passed.
    pub(super) interval: u32,
    /// Lane in the workgroup, or [`Who::UNKNOWN_LANE`].
    pub(super) lane: u32,
}

impl Who {
    /// Some lane of a subgroup: which one touches which element of a matrix is not specified.
    pub(super) const UNKNOWN_LANE: u32 = MANY;
    const NOBODY: Who = Who { tile: NOBODY, interval: 0, lane: 0 };

    fn is_nobody(self) -> bool {
        self.tile == NOBODY
    }

    /// This earlier access and one by `later` have no order.
    fn unordered(self, later: Who) -> bool {
        !self.is_nobody()
            && (self.tile != later.tile
                || (self.interval == later.interval && (self.lane != later.lane || self.lane == MANY)))
    }

    fn join(self, later: Who) -> Who {
        if self.is_nobody() {
            later
        } else if self.tile != later.tile {
            Who { tile: MANY, ..later }
        } else if self.interval != later.interval || self.lane == later.lane {
            later
        } else {
            Who { lane: MANY, ..later }
        }
    }

    fn describe(self) -> String {
        let lane = if self.lane == MANY { "several lanes".to_string() } else { format!("lane {}", self.lane) };
        match self.tile {
            MANY => "several tiles".to_string(),
            tile => format!("{lane} of tile {tile} (in linear order)"),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum How {
    Read,
    /// With the promise that nothing writes there.
    ReadOnly,
    Write,
    Atomic,
}

pub(super) enum Conflict {
    Race(String),
    Promise,
}

/// The history of one place.
#[derive(Clone, Copy)]
pub(super) struct Cell {
    writer: Who,
    reader: Who,
    atomic: Who,
    promised: bool,
}

impl Cell {
    pub(super) const NEW: Cell =
        Cell { writer: Who::NOBODY, reader: Who::NOBODY, atomic: Who::NOBODY, promised: false };

    pub(super) fn touch(&mut self, who: Who, how: How) -> Result<(), Conflict> {
        let against: &[Who] = match how {
            How::Read | How::ReadOnly => &[self.writer, self.atomic],
            How::Write => &[self.writer, self.reader, self.atomic],
            How::Atomic => &[self.writer, self.reader],
        };
        if let Some(other) = against.iter().find(|o| o.unordered(who)) {
            return Err(Conflict::Race(other.describe()));
        }
        match how {
            How::Read | How::ReadOnly => {
                self.promised |= how == How::ReadOnly;
                self.reader = self.reader.join(who);
                let written = !self.writer.is_nobody() || !self.atomic.is_nobody();
                if self.promised && written { Err(Conflict::Promise) } else { Ok(()) }
            }
            How::Write | How::Atomic if self.promised => Err(Conflict::Promise),
            How::Write => {
                self.writer = who;
                Ok(())
            }
            How::Atomic => {
                self.atomic = self.atomic.join(who);
                Ok(())
            }
        }
    }
}

/// Bytes of global memory per page of cells.
const PAGE: u64 = 1024;

/// Cells for `PAGE` bytes, one per `granule` bytes.
struct Page {
    granule: u64,
    cells: Vec<Cell>,
}

impl Page {
    /// Splits cells until an access of this granule touches whole cells. Exact: so far all were whole.
    fn refine(&mut self, granule: u64) {
        if granule < self.granule {
            let copies = (self.granule / granule) as usize;
            self.cells = self.cells.iter().flat_map(|c| std::iter::repeat_n(*c, copies)).collect();
            self.granule = granule;
        }
    }
}

/// History of global memory in one launch. Read-only ranges need none: nothing can write there.
pub(super) struct Shadow {
    /// Per range, pages made on first touch.
    ranges: Vec<Vec<Option<Box<Page>>>>,
}

impl Shadow {
    pub(super) fn new(memory: &Memory) -> Shadow {
        Shadow { ranges: (0..memory.len()).map(|_| vec![]).collect() }
    }

    /// Records an access to `bytes` at `(range, offset)`.
    pub(super) fn touch(
        &mut self,
        memory: &Memory,
        (index, offset): (usize, usize),
        bytes: u32,
        who: Who,
        how: How,
    ) -> Result<(), FaultKind> {
        let range = memory.range(index);
        if range.access == Access::Read {
            return Ok(());
        }
        let (first, end) = (offset as u64, offset as u64 + bytes as u64);
        let granule = 1 << (first | bytes as u64).trailing_zeros().min(2);
        let pages = &mut self.ranges[index];
        if pages.is_empty() {
            pages.resize_with(range.bytes.len().div_ceil(PAGE as usize), || None);
        }
        let mut at = first;
        while at < end {
            let page = pages[(at / PAGE) as usize]
                .get_or_insert_with(|| Box::new(Page { granule: 4, cells: vec![Cell::NEW; PAGE as usize / 4] }));
            page.refine(granule);
            let cell = &mut page.cells[(at % PAGE / page.granule) as usize];
            if let Err(conflict) = cell.touch(who, how) {
                let label = range.label.clone();
                return Err(match conflict {
                    Conflict::Race(other) => FaultKind::GlobalRace { label, offset: at, other },
                    Conflict::Promise => FaultKind::BrokenPromise { label, offset: at },
                });
            }
            at += page.granule;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conflicts(a: (Who, How), b: (Who, How)) -> bool {
        let writes = |h| matches!(h, How::Write | How::Atomic);
        let both_atomic = a.1 == How::Atomic && b.1 == How::Atomic;
        let promise = (a.1 == How::ReadOnly && writes(b.1)) || (b.1 == How::ReadOnly && writes(a.1));
        let unordered = a.0.tile != b.0.tile || (a.0.interval == b.0.interval && a.0.lane != b.0.lane);
        promise || (unordered && !both_atomic && (writes(a.1) || writes(b.1)))
    }

    /// The summary finds a conflict exactly where comparing with every earlier access does.
    #[test]
    fn the_summary_is_as_good_as_the_history() {
        let mut state = 1u64;
        let mut random = |n: u64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) % n
        };
        let mut found = 0;
        for _ in 0..20_000 {
            let (mut cell, mut history): (Cell, Vec<(Who, How)>) = (Cell::NEW, vec![]);
            let mut who = Who { tile: 0, interval: 0, lane: 0 };
            // Mostly reads, or mostly atomics: else the first pair decides.
            let favourite = [How::Read, How::ReadOnly, How::Atomic][random(3) as usize];
            for _ in 0..12 {
                match random(8) {
                    0 => who = Who { tile: who.tile + 1, interval: 0, lane: 0 },
                    1 | 2 => who.interval += 1,
                    _ => {}
                }
                who.lane = random(3) as u32;
                let how =
                    if random(4) == 0 { [How::Read, How::Write, How::Atomic][random(3) as usize] } else { favourite };
                let expected = history.iter().any(|earlier| conflicts(*earlier, (who, how)));
                assert_eq!(cell.touch(who, how).is_err(), expected, "{history:?} then {who:?} {how:?}");
                if expected {
                    found += 1;
                    break;
                }
                history.push((who, how));
            }
        }
        assert!((1_000..19_000).contains(&found), "{found}");
    }
}
