//! Who touched what in this launch, and which touches nothing orders.
//!
//! ```text
//! (epoch, tile, barrier interval, subgroup, its step, lane) + (read | write | atomic) ─► Cell of the place ─► conflict?
//! ```
//!
//! Two accesses are ordered when one lane makes both, when one tile makes both in different barrier intervals, when one
//! subgroup makes both (to shared memory) in different steps, which its own barriers end, when a grid barrier is between them (they are of different epochs), or when an atomic has handed the earlier one to the
//! later one's tile ([`Clock`]). Everything else races if one writes and not both are atomic. A [`Cell`] keeps a
//! summary per kind of access that is as good as the full history: older epochs are ordered before everything, older
//! intervals of a tile (steps of a subgroup) before anything it does later, and of several lanes or tiles only "more than one" matters. With
//! one exception: who has been handed the accesses of several tiles still races with them.

use super::FaultKind;
use super::memory::{Access, Memory};
use super::order::Clock;
use std::collections::HashMap;

/// No tile number of a launch reaches this.
pub(super) const MAX_TILES: u32 = u32::MAX - 15;
const NOBODY: u32 = u32::MAX;
const MANY: u32 = u32::MAX - 1;
/// Lanes or subgroups.
const SEVERAL: u16 = u16::MAX;

/// Who makes an access.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Who {
    /// Grid barriers passed by all tiles.
    pub(super) epoch: u32,
    pub(super) tile: u32,
    /// Barriers passed.
    pub(super) interval: u32,
    /// Barriers of its own that the subgroup has passed: they order shared memory only, so for global memory it is 0.
    pub(super) step: u32,
    /// Subgroup in the workgroup.
    pub(super) subgroup: u16,
    /// Lane in the workgroup, or [`Who::UNKNOWN_LANE`].
    pub(super) lane: u16,
}

impl Who {
    /// Some lane of a subgroup: which one touches which element of a matrix is not specified.
    pub(super) const UNKNOWN_LANE: u16 = SEVERAL;
    const NOBODY: Who = Who { epoch: 0, tile: NOBODY, interval: 0, step: 0, subgroup: 0, lane: 0 };

    fn is_nobody(self) -> bool {
        self.tile == NOBODY
    }

    /// This earlier access and one by `later`, whose tile knows `known`, have no order.
    fn unordered(self, later: Who, known: &Clock) -> bool {
        if self.is_nobody() || self.epoch != later.epoch {
            return false;
        }
        if self.tile != later.tile {
            return self.tile == MANY || !known.knows(self.tile, self.interval);
        }
        if self.interval != later.interval {
            return false;
        }
        if self.subgroup != later.subgroup || self.subgroup == SEVERAL {
            return true;
        }
        self.step == later.step && (self.lane != later.lane || self.lane == SEVERAL)
    }

    fn join(self, later: Who, known: &Clock) -> Who {
        if self.is_nobody() || self.epoch != later.epoch {
            later
        } else if self.tile != later.tile {
            if self.unordered(later, known) { Who { tile: MANY, ..later } } else { later }
        } else if self.interval != later.interval {
            later
        } else if self.subgroup != later.subgroup {
            // Also where this is several already: no subgroup is SEVERAL.
            Who { subgroup: SEVERAL, lane: SEVERAL, ..later }
        } else if self.step != later.step || self.lane == later.lane {
            later
        } else {
            Who { lane: SEVERAL, ..later }
        }
    }

    fn describe(self) -> String {
        let lane = if self.lane == SEVERAL { "several lanes".to_string() } else { format!("lane {}", self.lane) };
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

    pub(super) fn touch(&mut self, who: Who, how: How, known: &Clock) -> Result<(), Conflict> {
        let against: &[Who] = match how {
            How::Read | How::ReadOnly => &[self.writer, self.atomic],
            How::Write => &[self.writer, self.reader, self.atomic],
            How::Atomic => &[self.writer, self.reader],
        };
        if let Some(other) = against.iter().find(|o| o.unordered(who, known)) {
            return Err(Conflict::Race(other.describe()));
        }
        match how {
            How::Read | How::ReadOnly => {
                self.promised |= how == How::ReadOnly;
                self.reader = self.reader.join(who, known);
                let written = !self.writer.is_nobody() || !self.atomic.is_nobody();
                if self.promised && written { Err(Conflict::Promise) } else { Ok(()) }
            }
            How::Write | How::Atomic if self.promised => Err(Conflict::Promise),
            How::Write => {
                self.writer = who;
                Ok(())
            }
            How::Atomic => {
                self.atomic = self.atomic.join(who, known);
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
    /// What atomics have released, by the word they add to.
    released: HashMap<(usize, usize), Clock>,
}

impl Shadow {
    pub(super) fn new(memory: &Memory) -> Shadow {
        Shadow { ranges: (0..memory.len()).map(|_| vec![]).collect(), released: HashMap::new() }
    }

    /// What an atomic on the word at `(range, offset)` gets from those before it.
    pub(super) fn released(&mut self, at: (usize, usize)) -> &mut Clock {
        self.released.entry(at).or_default()
    }

    /// All tiles are at a grid barrier: what they have handed on goes without saying from here on.
    pub(super) fn new_epoch(&mut self) {
        self.released.clear();
    }

    /// Records an access to `bytes` at `(range, offset)` by a tile that knows `known`.
    pub(super) fn touch(
        &mut self,
        memory: &Memory,
        (index, offset): (usize, usize),
        bytes: u32,
        who: Who,
        how: How,
        known: &Clock,
    ) -> Result<(), FaultKind> {
        let range = memory.range(index);
        if range.access == Access::Read {
            return Ok(());
        }
        if how == How::Write && !self.released.is_empty() {
            // Who adds to a word after a plain store reads the store, not what was added before.
            let word = |at: usize| at / 4 * 4;
            let words = (word(offset)..offset + bytes as usize).step_by(4);
            words.for_each(|at| drop(self.released.remove(&(index, at))));
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
            if let Err(conflict) = cell.touch(who, how, known) {
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

    /// One access with what its tile knew.
    #[derive(Clone, Debug)]
    struct Act(Who, How, Clock);

    fn conflicts(a: &Act, b: &Act) -> bool {
        let writes = |h| matches!(h, How::Write | How::Atomic);
        let both_atomic = a.1 == How::Atomic && b.1 == How::Atomic;
        let promise = (a.1 == How::ReadOnly && writes(b.1)) || (b.1 == How::ReadOnly && writes(a.1));
        let unordered = if a.0.tile != b.0.tile {
            !b.2.knows(a.0.tile, a.0.interval)
        } else {
            let by_subgroup = a.0.subgroup == b.0.subgroup && a.0.step != b.0.step;
            a.0.interval == b.0.interval && a.0.lane != b.0.lane && !by_subgroup
        };
        promise || (a.0.epoch == b.0.epoch && unordered && !both_atomic && (writes(a.1) || writes(b.1)))
    }

    /// The summary finds a conflict where comparing with every earlier access does: exactly there without atomics
    /// that hand on, at least there with them.
    #[test]
    fn the_summary_is_as_good_as_the_history() {
        let mut state = 1u64;
        let mut random = |n: u64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) % n
        };
        let mut found = [0; 2];
        for round in 0..40_000 {
            let handing_on = round % 2;
            let (mut cell, mut history): (Cell, Vec<Act>) = (Cell::NEW, vec![]);
            let mut who = Who { epoch: 0, tile: 0, interval: 0, step: 0, subgroup: 0, lane: 0 };
            let mut steps = [0; 2];
            let mut known = Clock::default();
            // Mostly reads, or mostly atomics: else the first pair decides.
            let favourite = [How::Read, How::ReadOnly, How::Atomic][random(3) as usize];
            for _ in 0..12 {
                match random(11) {
                    0 => {
                        // The next tile, knowing all that this one did, or what this one was handed, or nothing.
                        match random(3) * handing_on {
                            0 => known.clear(),
                            1 => {}
                            _ => known.note(who.tile, who.interval + 1),
                        }
                        who = Who { tile: who.tile + 1, interval: 0, lane: 0, ..who };
                    }
                    1 | 2 => who.interval += 1,
                    3 if random(3) == 0 => {
                        // Any tile may be the next after a grid barrier.
                        let (epoch, interval) = (who.epoch + 1, who.interval + 1);
                        who = Who { epoch, tile: random(3) as u32, interval, ..who };
                        known.clear();
                    }
                    4 | 5 => steps[random(2) as usize] += 1,
                    _ => {}
                }
                // Lane 0 is one subgroup, lanes 1 and 2 are another.
                who.lane = random(3) as u16;
                who.subgroup = who.lane.min(1);
                who.step = steps[who.subgroup as usize];
                let how =
                    if random(4) == 0 { [How::Read, How::Write, How::Atomic][random(3) as usize] } else { favourite };
                let act = Act(who, how, known.clone());
                let expected = history.iter().any(|earlier| conflicts(earlier, &act));
                let got = cell.touch(who, how, &known).is_err();
                let agree = if handing_on == 0 { got == expected } else { got || !expected };
                assert!(agree, "{history:?} then {act:?}: {got}");
                if got {
                    found[handing_on as usize] += 1;
                    break;
                }
                history.push(act);
            }
        }
        assert!(found.iter().all(|n| (1_000..19_000).contains(n)), "{found:?}");
    }

    /// Who adds to a word after a plain store is handed nothing of what was released before the store.
    #[test]
    fn a_plain_store_to_the_word_ends_what_it_hands_on() {
        let mut memory = Memory::new();
        let base = memory.bind("counters", vec![0; 16], Access::ReadWrite);
        let word = memory.find(base + 4, 4).expect("bound");
        let mut shadow = Shadow::new(&memory);
        let who = Who { epoch: 0, tile: 2, interval: 1, step: 0, subgroup: 0, lane: 0 };
        shadow.released(word).note(2, 1);
        for (offset, bytes, stays) in [(0, 4, true), (8, 8, true), (6, 1, false)] {
            let at = (word.0, offset);
            assert!(shadow.touch(&memory, at, bytes, who, How::Write, &Clock::default()).is_ok());
            assert_eq!(shadow.released(word).knows(2, 0), stays, "{bytes} bytes at {offset}");
        }
    }
}
