//! The prefix cache: K and V of sequences, for later ones that begin with the same tokens.
//!
//! ```text
//! running sequence ─share─┐
//! one that goes ────keep──┴► entries, one per full page ─adopt─► pages of a new sequence
//!                               └─ idle for longest ─evict─► free page
//! ```
//!
//! A page depends on every token before it as well as on its own, so an entry is found by the hash of the whole prefix
//! and then compared token by token. The hash begins with the sequence's salt: those of different salts share nothing, so
//! that nobody can tell from the time of an answer, or from its count of cached tokens, what others have asked. Only full pages are kept whose step the device has ended: they are never written
//! again, hence can be shared. Layers with a sliding window have the same pages as all others, so what is found serves
//! them, too.
//!
//! A model with a recurrent state, too, will need that state at the end of a page to go on from there: an entry then
//! carries the number of a checkpoint beside that of its page, taken where a step ends with the page (a sequence's `split`
//! cuts steps so), and adopting ends at the last entry that has one. Nothing else here depends on what a prefix consists of.
//!
//! Entries own no pages. A sequence gives its pages back from the last to the first, so of a prefix that nobody uses the
//! end is evicted first: the beginning is of use without it, but not the other way round.

use crate::pool::{KvPool, Page};
use crate::sequence::{Salt, Sequence};
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use zinc_ir::plan::PAGE_TOKENS;

const PAGE: usize = PAGE_TOKENS as usize;

/// One full page: its own tokens, and the key of the page before it, or of its sequence's salt.
#[derive(Debug)]
struct Entry {
    before: u64,
    tokens: Box<[u32]>,
    page: u32,
}

/// Full pages by the hash of all tokens up to their end.
#[derive(Debug, Default)]
pub(crate) struct PrefixCache {
    entries: HashMap<u64, Entry>,
    /// The key of a page's entry.
    keys: HashMap<u32, u64>,
    /// Full pages of sequences that have gone, from the first on, for whoever takes them; `None`: nobody does.
    pub(crate) gone: Option<Vec<Gone>>,
    /// Has a seed of its own, so that nobody can make up prompts whose pages have the same key.
    hasher: RandomState,
}

/// A full page of a sequence that has gone.
#[derive(Debug)]
pub(crate) struct Gone {
    /// Of its entry.
    pub(crate) key: u64,
    pub(crate) page: u32,
    pub(crate) tokens: [u32; PAGE],
    /// It is the sequence's first page; the others follow the one before them.
    pub(crate) first: bool,
    /// The sequence's.
    pub(crate) salt: Option<Salt>,
}

impl PrefixCache {
    /// What stands before the first page of a sequence.
    fn root(&self, salt: Option<Salt>) -> u64 {
        salt.map_or(0, |salt| self.hasher.hash_one(salt))
    }

    /// Leading pages of a sequence that it has, and what stands for them.
    fn shared(&self, sequence: &Sequence) -> (usize, u64) {
        match sequence.shared {
            (0, _) => (0, self.root(sequence.salt)),
            shared => shared,
        }
    }

    /// Key of a page with these tokens after the pages that `before` stands for.
    fn key(&self, before: u64, tokens: &[u32]) -> u64 {
        self.hasher.hash_one((before, tokens))
    }

    /// Takes note of the full pages of a sequence that goes, and gives all of its pages back: it has none afterwards.
    pub(crate) fn keep(&mut self, sequence: &mut Sequence, pool: &mut KvPool) {
        let full = sequence.computed / PAGE;
        let mut before = self.root(sequence.salt);
        for (page, tokens) in sequence.pages.iter().zip(sequence.tokens.chunks_exact(PAGE)).take(full) {
            // An equal page noted earlier gives way, so that the pages of a prefix go together.
            before = self.note(before, tokens, page, true, pool);
            let number = page.number();
            if let (Some(gone), Ok(tokens)) = (&mut self.gone, tokens.try_into()) {
                let first = number == sequence.pages[0].number();
                gone.push(Gone { key: before, page: number, tokens, first, salt: sequence.salt });
            }
        }
        sequence.release_pages(pool);
    }

    /// Takes note of the full pages of a running sequence's prompt, as far as it has been computed.
    pub(crate) fn share(&mut self, sequence: &mut Sequence, pool: &mut KvPool) {
        let full = sequence.computed.min(sequence.prompt) / PAGE;
        while sequence.shared.0 < full {
            let (i, before) = self.shared(sequence);
            let tokens = &sequence.tokens[i * PAGE..(i + 1) * PAGE];
            sequence.shared = (i + 1, self.note(before, tokens, &sequence.pages[i], false, pool));
        }
    }

    /// Makes an entry for a page with these [`PAGE`] tokens after those that `before` stands for, and gives its key. An
    /// equal page noted earlier stays unless this one is to `replace` it.
    fn note(&mut self, before: u64, tokens: &[u32], page: &Page, replace: bool, pool: &mut KvPool) -> u64 {
        let this = self.key(before, tokens);
        if let Some(entry) = self.entries.get(&this) {
            let equal = entry.before == before && *entry.tokens == *tokens;
            if equal && (!replace || entry.page == page.number()) {
                return this;
            }
            self.keys.remove(&entry.page);
            pool.forget(entry.page);
        }
        self.keys.insert(pool.remember(page), this);
        self.entries.insert(this, Entry { before, tokens: tokens.into(), page: page.number() });
        this
    }

    /// Gives a sequence the pages of its longest known prefix behind those that it has, all of which it shares.
    pub(crate) fn adopt(&mut self, sequence: &mut Sequence, pool: &mut KvPool) {
        let (count, mut before) = self.shared(sequence);
        debug_assert_eq!(count, sequence.pages.len());
        for tokens in sequence.tokens[..sequence.adoptable()].chunks_exact(PAGE).skip(count) {
            let this = self.key(before, tokens);
            let Some(entry) = self.entries.get(&this) else { break };
            if entry.before != before || *entry.tokens != *tokens {
                break;
            }
            sequence.pages.push(pool.retake(entry.page));
            before = this;
        }
        sequence.cached = sequence.pages.len() * PAGE;
        sequence.computed = sequence.cached;
        sequence.shared = (sequence.pages.len(), before);
    }

    /// How many leading pages of a sequence it has.
    pub(crate) fn known(&self, sequence: &Sequence) -> usize {
        let (mut known, mut before) = (0, self.root(sequence.salt));
        for tokens in sequence.tokens[..sequence.adoptable()].chunks_exact(PAGE) {
            let this = self.key(before, tokens);
            match self.entries.get(&this) {
                Some(entry) if entry.before == before && *entry.tokens == *tokens => {
                    (known, before) = (known + 1, this)
                }
                _ => break,
            }
        }
        known
    }

    /// Is the page still that of the entry with this key?
    pub(crate) fn holds(&self, key: u64, page: u32) -> bool {
        self.entries.get(&key).is_some_and(|entry| entry.page == page)
    }

    /// Takes in a page that has come from elsewhere, the next full one of a sequence that has none but those shared; it is
    /// the sequence's.
    pub(crate) fn restore(&mut self, sequence: &mut Sequence, page: Page, pool: &mut KvPool) {
        let (i, before) = self.shared(sequence);
        let tokens = &sequence.tokens[i * PAGE..(i + 1) * PAGE];
        // An equal page noted meanwhile gives way, so that the pages of a prefix go together.
        sequence.shared = (i + 1, self.note(before, tokens, &page, true, pool));
        sequence.pages.push(page);
        sequence.cached = sequence.pages.len() * PAGE;
        sequence.computed = sequence.cached;
    }

    /// The pages that it knows.
    pub(crate) fn pages(&self) -> impl Iterator<Item = u32> {
        self.keys.keys().copied()
    }

    /// Frees one idle page; false if there is none.
    pub(crate) fn evict(&mut self, pool: &mut KvPool) -> bool {
        let Some(page) = pool.evict() else { return false };
        if let Some(key) = self.keys.remove(&page) {
            self.entries.remove(&key);
        }
        true
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self, pool: &mut KvPool) {
        self.entries.clear();
        for (page, _) in self.keys.drain() {
            pool.forget(page);
        }
    }
}
