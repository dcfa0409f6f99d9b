//! Who comes next: requests by priority, and those of one priority by what their owners have had.
//!
//! ```text
//! add ─► account of (priority, owner): [ waiting … ] ─next: least had─► running ─charge─► had += tokens / weight
//! ```
//!
//! This is the virtual token counter of "Fairness in Serving Large Language Models" (Sheng et al., 2024): an owner's count
//! grows by each token that is computed for it, a prompt's when it is admitted, divided by the owner's weight; who has had
//! least comes first. What the prefix cache has and what is computed again costs nothing. A sequence that runs makes place
//! for one whose owner has had less by more than its own tokens, and by more than 1024. An owner who has been away begins
//! at the least count of those who are there, so nobody saves up; counts of owners who are away are kept for as long as
//! they are above that, so nobody gets away from one by leaving.

use crate::pool::{KvPool, Leaving};
use crate::sequence::{Sequence, SequenceId};
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::num::NonZeroU32;

/// Counts are in fractions of a token, so that weights divide them.
const UNIT: u64 = 1 << 20;

/// How many tokens, divided by its weight, an owner must at least have had more than another one of the same priority
/// before a running sequence of it makes place for one of the other's. Taking turns costs at least the step in between.
const TURN: usize = 1024;

/// How many waiting sequences of an account are looked at for one that can be admitted, so that a long queue costs a step
/// no more than a short one.
const LOOK: usize = 32;

/// Whom a request is for, and how urgent it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Owners of the same priority get the same number of tokens as long as they have requests, however many.
    pub owner: u32,
    /// An owner of weight 2 gets twice as many.
    pub weight: NonZeroU32,
    /// Lower comes first: as long as there is something of a lower one, nothing else is begun.
    pub priority: i32,
}

impl Default for Share {
    /// Owner 0, weight 1, priority 0.
    fn default() -> Share {
        Share { owner: 0, weight: NonZeroU32::MIN, priority: 0 }
    }
}

/// Who comes first: the least does. Priority, what the owner has had, and the order of arrival.
pub(crate) type Rank = (i32, u64, SequenceId);

/// Names an account: priority, owner.
pub(crate) type Key = (i32, u32);

/// Where a sequence waits, until the queue changes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    key: Key,
    index: usize,
}

impl Share {
    pub(crate) fn key(&self) -> Key {
        (self.priority, self.owner)
    }
}

/// What an owner has had at one priority, and what waits.
#[derive(Debug, Default)]
struct Account {
    /// In [`UNIT`]s.
    had: u64,
    /// Sequences that wait or run.
    sequences: usize,
    /// In order of arrival.
    waiting: VecDeque<Box<Sequence>>,
}

/// Everything that waits, and the accounts of all owners.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    accounts: BTreeMap<Key, Account>,
    /// Waiting sequences that hold pages.
    holders: usize,
}

impl Queue {
    /// Takes in a new sequence.
    pub(crate) fn enter(&mut self, sequence: Box<Sequence>) {
        let key = sequence.share.key();
        if self.accounts.get(&key).is_none_or(|account| account.sequences == 0) {
            self.settle(key.0);
            let start = self.least(key.0).unwrap_or(0);
            let account = self.accounts.entry(key).or_default();
            account.had = account.had.max(start);
        }
        self.accounts.entry(key).or_default().sequences += 1;
        self.wait(sequence);
    }

    /// The least count of those of a priority who are there.
    fn least(&self, priority: i32) -> Option<u64> {
        let all = self.accounts.range((priority, 0)..=(priority, u32::MAX));
        all.filter(|(_, account)| account.sequences > 0).map(|(_, account)| account.had).min()
    }

    /// Forgets those of a priority who are away and not above the least count.
    fn settle(&mut self, priority: i32) {
        let least = self.least(priority);
        self.accounts.retain(|key, account| {
            key.0 != priority || account.sequences > 0 || least.is_some_and(|least| account.had > least)
        });
    }

    /// Where a sequence comes, or would come if it entered now.
    pub(crate) fn rank(&self, sequence: &Sequence) -> Rank {
        let key = sequence.share.key();
        let had = match self.accounts.get(&key) {
            Some(account) if account.sequences > 0 => account.had,
            away => away.map_or(0, |account| account.had).max(self.least(key.0).unwrap_or(0)),
        };
        (key.0, had, sequence.id)
    }

    /// Has a sequence wait that has entered before.
    pub(crate) fn wait(&mut self, sequence: Box<Sequence>) {
        self.holders += usize::from(sequence.holds);
        let waiting = &mut self.accounts.entry(sequence.share.key()).or_default().waiting;
        let place = waiting.partition_point(|other| other.id < sequence.id);
        waiting.insert(place, sequence);
    }

    /// A sequence is gone that does not wait, or no longer.
    pub(crate) fn leave(&mut self, sequence: &Sequence) {
        let key = sequence.share.key();
        if let Some(account) = self.accounts.get_mut(&key) {
            account.sequences -= 1;
            if account.sequences == 0 {
                self.settle(key.0);
            }
        }
    }

    /// Counts the tokens of a sequence up to this many that have not been counted.
    pub(crate) fn charge(&mut self, sequence: &mut Sequence, tokens: usize) {
        let new = tokens.saturating_sub(sequence.charged) as u64;
        if let (1.., Some(account)) = (new, self.accounts.get_mut(&sequence.share.key())) {
            account.had += (new * UNIT / u64::from(sequence.share.weight.get())).max(1);
            sequence.charged = tokens;
        }
    }

    /// What the owner of a sequence has had.
    pub(crate) fn had(&self, share: &Share) -> u64 {
        self.accounts.get(&share.key()).map_or(0, |account| account.had)
    }

    /// Should this running sequence make place for one that waits for such a share?
    pub(crate) fn yields(&self, running: &Sequence, share: &Share) -> bool {
        // To compute it again may cost all of its tokens; and it has been charged for its prompt when it was admitted.
        let lead = TURN.max(running.tokens.len()) as u64 * UNIT;
        running.share.priority > share.priority
            || (running.share.priority == share.priority && self.had(&running.share) > self.had(share) + lead)
    }

    /// The waiting sequence that comes next, apart from those `passed` over. Of an account only the first [`LOOK`] are
    /// looked at.
    pub(crate) fn next(&self, passed: &HashSet<SequenceId>) -> Option<Place> {
        let first = self.accounts.iter().filter_map(|(key, account)| {
            let mut waiting = account.waiting.iter().take(LOOK).enumerate();
            let (index, sequence) = waiting.find(|(_, sequence)| !passed.contains(&sequence.id))?;
            Some((account.had, sequence.id, Place { key: *key, index }))
        });
        first.min_by_key(|(had, id, place)| (place.key.0, *had, *id)).map(|(.., place)| place)
    }

    /// A sequence that waits.
    pub(crate) fn get(&self, place: Place) -> Option<&Sequence> {
        self.accounts.get(&place.key)?.waiting.get(place.index).map(|sequence| &**sequence)
    }

    /// As [`Queue::get`].
    pub(crate) fn get_mut(&mut self, place: Place) -> Option<&mut Sequence> {
        self.accounts.get_mut(&place.key)?.waiting.get_mut(place.index).map(|sequence| &mut **sequence)
    }

    /// Takes a sequence out, which is to run.
    pub(crate) fn take(&mut self, place: Place) -> Option<Box<Sequence>> {
        let mut sequence = self.accounts.get_mut(&place.key)?.waiting.remove(place.index)?;
        self.holders -= usize::from(std::mem::take(&mut sequence.holds));
        Some(sequence)
    }

    /// Drops a sequence if it waits.
    pub(crate) fn drop_waiting(&mut self, id: SequenceId, pool: &mut KvPool) {
        let dropped = self.accounts.values_mut().find_map(|account| {
            let place = account.waiting.iter().position(|sequence| sequence.id == id)?;
            account.waiting.remove(place)
        });
        if let Some(mut sequence) = dropped {
            self.holders -= usize::from(sequence.holds);
            sequence.release_pages(pool);
            self.leave(&sequence);
        }
    }

    /// Those that hold pages while they wait.
    fn holders(&self) -> impl Iterator<Item = (Rank, Place)> {
        // Most often there are none.
        let accounts = self.accounts.iter().take(if self.holders > 0 { usize::MAX } else { 0 });
        accounts.flat_map(|(key, account)| {
            let holders = account.waiting.iter().enumerate().filter(|(_, sequence)| sequence.holds);
            holders.map(|(index, s)| ((key.0, account.had, s.id), Place { key: *key, index }))
        })
    }

    /// Has the last of those that hold pages while they wait give them back; false if there is none.
    pub(crate) fn give_back(&mut self, pool: &mut KvPool) -> bool {
        let Some((_, last)) = self.holders().max_by_key(|(rank, _)| *rank) else { return false };
        self.release(last, pool);
        true
    }

    fn release(&mut self, place: Place, pool: &mut KvPool) {
        if let Some(sequence) = self.get_mut(place) {
            sequence.holds = false;
            sequence.release_pages(pool);
            self.holders -= 1;
        }
    }

    /// Those that hold pages and come after `rank`, the last one first, each with the number of pages that nobody owns any
    /// more once it and those before it in this order have given theirs back.
    fn room_after(&self, rank: Rank, pool: &KvPool) -> Vec<(Place, usize)> {
        let mut holders: Vec<(Rank, Place)> = self.holders().filter(|(other, _)| *other > rank).collect();
        holders.sort_unstable_by_key(|(rank, _)| std::cmp::Reverse(*rank));
        let mut leaving = Leaving::default();
        let places = holders.into_iter().map(|(_, place)| place);
        places.map(|place| (place, leaving.add(self.get(place).map_or(&[], |s| &s.pages), pool))).collect()
    }

    /// How many pages nobody owns any more once all that come after `rank` and hold some have given them back.
    pub(crate) fn most_room_after(&self, rank: Rank, pool: &KvPool) -> usize {
        self.room_after(rank, pool).last().map_or(0, |(_, room)| *room)
    }

    /// Has those that come after `rank` and hold pages give them back, from the last one on, until there are so many more
    /// that nobody owns. False if all of them have not so many: then they keep them.
    pub(crate) fn make_room(&mut self, rank: Rank, pages: usize, pool: &mut KvPool) -> bool {
        if pages == 0 {
            return true;
        }
        let holders = self.room_after(rank, pool);
        let Some(last) = holders.iter().position(|(_, room)| *room >= pages) else { return false };
        holders[..=last].iter().for_each(|(place, _)| self.release(*place, pool));
        true
    }

    /// Everything that waits.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = &Sequence> {
        self.accounts.values().flat_map(|account| account.waiting.iter().map(|sequence| &**sequence))
    }

    /// How many have entered and not left, and of how many owners there are counts.
    pub(crate) fn entered(&self) -> (usize, usize) {
        (self.accounts.values().map(|account| account.sequences).sum(), self.accounts.len())
    }

    /// How many wait.
    pub(crate) fn len(&self) -> usize {
        self.accounts.values().map(|account| account.waiting.len()).sum()
    }
}
