//! Room for sequences: so many that run or wait in all. The last quarter of it is for those who have less than their share.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// All room of a server.
pub(crate) struct Room {
    most: usize,
    held: Arc<Mutex<Held>>,
}

/// Sequences that have room.
#[derive(Debug, Default)]
struct Held {
    all: usize,
    by_owner: HashMap<u32, usize>,
}

/// Room for some sequences of an owner, free again when this goes away.
#[derive(Debug)]
pub(crate) struct Seats {
    owner: u32,
    count: usize,
    held: Arc<Mutex<Held>>,
}

impl Room {
    pub(crate) fn new(most: usize) -> Room {
        Room { most, held: Arc::default() }
    }

    /// Most sequences that run or wait.
    pub(crate) fn most(&self) -> usize {
        self.most
    }

    pub(crate) fn is_full(&self) -> bool {
        lock(&self.held).all >= self.most
    }

    /// Takes room for `least` to `wanted` sequences of an owner whose fair share is so many; `None`: there is less now.
    /// Where nobody has any, whoever comes gets what is needed at least, whatever the share: otherwise it never would.
    pub(crate) fn enter(&self, owner: u32, share: usize, least: usize, wanted: usize) -> Option<Seats> {
        let mut held = lock(&self.held);
        let free = self.most.saturating_sub(held.all);
        let mine = held.by_owner.get(&owner).copied().unwrap_or(0);
        let uncrowded = free.saturating_sub(self.most.div_ceil(4));
        let alone = if held.all == 0 { least } else { 0 };
        let count = uncrowded.max(share.saturating_sub(mine)).max(alone).min(free).min(wanted);
        if count < least.max(1) {
            return None;
        }
        held.all += count;
        held.by_owner.insert(owner, mine + count);
        Some(Seats { owner, count, held: self.held.clone() })
    }
}

impl Seats {
    /// Sequences that there is room for.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Gives back what is more than so many.
    pub(crate) fn keep(&mut self, count: usize) {
        let count = count.min(self.count);
        let mut held = lock(&self.held);
        let freed = self.count - count;
        held.all -= freed;
        if let Some(mine) = held.by_owner.get_mut(&self.owner) {
            *mine -= freed;
            if *mine == 0 {
                held.by_owner.remove(&self.owner);
            }
        }
        self.count = count;
    }
}

impl Drop for Seats {
    fn drop(&mut self) {
        self.keep(0);
    }
}

fn lock(held: &Mutex<Held>) -> MutexGuard<'_, Held> {
    held.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_quarter_is_for_those_below_their_share() {
        let room = Room::new(8);
        let enter = |owner, count| room.enter(owner, 2, count, count);
        let six = enter(1, 6).expect("three quarters are anyone's");
        assert!(enter(1, 1).is_none() && enter(2, 3).is_none(), "more than the share");
        let two = enter(2, 2).expect("the share");
        assert!(room.is_full() && enter(3, 1).is_none());
        drop(six);
        assert_eq!(room.enter(1, 2, 1, 32).expect("some").count(), 4, "as much as may be");
        drop(two);
        let held = lock(&room.held);
        assert!(held.all == 0 && held.by_owner.is_empty(), "nothing is kept");
    }

    #[test]
    fn whoever_is_alone_gets_what_can_ever_fit() {
        let room = Room::new(8);
        let all = room.enter(1, 1, 8, 8).expect("nobody else is there");
        drop(all);
        let mut some = room.enter(1, 1, 1, 32).expect("what leaves room for others");
        assert_eq!(some.count(), 6);
        assert!(room.enter(2, 1, 8, 8).is_none());
        some.keep(2);
        assert_eq!(room.enter(2, 1, 1, 32).map(|seats| seats.count()), Some(4));
        drop(some);
        assert!(room.enter(2, 1, 8, 8).is_some() && room.enter(2, 1, 9, 9).is_none());
    }
}
