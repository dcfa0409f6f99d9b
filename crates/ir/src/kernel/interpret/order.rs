//! What tiles hand to each other through atomics.
//!
//! ```text
//! tile A: writes │ barrier │ atomic add ─► Clock of the word ─► tile B: atomic add │ barrier │ reads
//! ```
//!
//! A [`Clock`] says of each tile how many of its barrier intervals have surely happened. Whole intervals only, on both
//! sides: what the adding lane itself wrote since the last barrier counts as not handed on, and what it gets counts from
//! the next barrier on. That is narrower than a device's memory model, so it can report a race too many, never one too
//! few (in the order of atomics that this run has: another seed has another).

use std::collections::HashMap;

/// For each tile: all of its intervals below this number have happened.
#[derive(Clone, Debug, Default)]
pub(super) struct Clock(HashMap<u32, u32>);

impl Clock {
    pub(super) fn knows(&self, tile: u32, interval: u32) -> bool {
        self.0.get(&tile).is_some_and(|end| interval < *end)
    }

    pub(super) fn note(&mut self, tile: u32, end: u32) {
        let known = self.0.entry(tile).or_default();
        *known = end.max(*known);
    }

    pub(super) fn join(&mut self, other: &Clock) {
        other.0.iter().for_each(|(tile, end)| self.note(*tile, *end));
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}
