//! The prefix cache: K and V of prompts and of sequences that have ended, for new ones that begin with the same tokens.
//!
//! ```text
//! running sequence ─share─┐
//! ended sequence ───keep──┴► entries, one per full page ─adopt─► pages of a new sequence   (oldest entries evicted first)
//! ```
//!
//! A page depends on every token before it as well as on its own, so an entry is found by the hash of the whole prefix
//! and then compared token by token. Only full pages are kept: they are never written again, hence can be shared.

use crate::pool::{KvPool, Page};
use crate::sequence::Sequence;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use zinc_ir::plan::PAGE_TOKENS;

const PAGE: usize = PAGE_TOKENS as usize;

/// One full page: its own tokens, and the key of the page before it.
#[derive(Debug)]
struct Entry {
    before: u64,
    tokens: [u32; PAGE],
    page: Page,
    /// Pages before it: later ones are evicted first, since they are of no use without the earlier.
    depth: usize,
    /// When it was last kept or adopted, in uses of the cache.
    used: u64,
}

/// Pages of ended sequences, by the hash of all tokens up to their end.
#[derive(Debug, Default)]
pub(crate) struct PrefixCache {
    entries: HashMap<u64, Entry>,
    uses: u64,
}

/// Key of a page with these tokens after the pages that `before` stands for (0: none).
fn key(before: u64, tokens: &[u32]) -> u64 {
    let mut hasher = DefaultHasher::new();
    (before, tokens).hash(&mut hasher);
    hasher.finish()
}

impl PrefixCache {
    /// Takes over an ended sequence's full pages and gives the rest back.
    pub(crate) fn keep(&mut self, sequence: Sequence, pool: &mut KvPool) {
        self.uses += 1;
        let mut before = 0;
        let full = sequence.cached / PAGE;
        for (i, page) in sequence.pages.into_iter().enumerate() {
            let tokens = sequence.tokens.get(i * PAGE..(i + 1) * PAGE);
            match tokens.and_then(|t| <[u32; PAGE]>::try_from(t).ok()) {
                Some(tokens) if i < full => {
                    let this = key(before, &tokens);
                    let entry = Entry { before, tokens, page, depth: i, used: self.uses };
                    // An equal page kept earlier gives way; its readers hold their own references.
                    if let Some(old) = self.entries.insert(this, entry) {
                        pool.release(old.page);
                    }
                    before = this;
                }
                _ => pool.release(page),
            }
        }
    }

    /// Takes part in the full pages of a running sequence's prompt, of which the first `computed` tokens have been run.
    pub(crate) fn share(&mut self, sequence: &mut Sequence, computed: usize, pool: &mut KvPool) {
        let full = computed.min(sequence.prompt) / PAGE;
        while sequence.shared.0 < full {
            let (i, before) = sequence.shared;
            let Ok(tokens) = <[u32; PAGE]>::try_from(&sequence.tokens[i * PAGE..(i + 1) * PAGE]) else { return };
            let this = key(before, &tokens);
            let known = self.entries.get(&this).is_some_and(|e| e.before == before && e.tokens == tokens);
            if !known {
                let page = pool.share(&sequence.pages[i]);
                let entry = Entry { before, tokens, page, depth: i, used: self.uses };
                if let Some(old) = self.entries.insert(this, entry) {
                    pool.release(old.page);
                }
            }
            sequence.shared = (i + 1, this);
        }
    }

    /// Gives a sequence without pages those of its longest known prefix.
    pub(crate) fn adopt(&mut self, sequence: &mut Sequence, pool: &mut KvPool) {
        self.uses += 1;
        let mut before = 0;
        for tokens in sequence.tokens[..sequence.adoptable()].chunks_exact(PAGE) {
            let this = key(before, tokens);
            let Some(entry) = self.entries.get_mut(&this) else { break };
            if entry.before != before || entry.tokens != tokens {
                break;
            }
            entry.used = self.uses;
            sequence.pages.push(pool.share(&entry.page));
            before = this;
        }
        sequence.cached = sequence.pages.len() * PAGE;
        sequence.shared = (sequence.pages.len(), before);
    }

    /// Pages that evicting everything would free.
    pub(crate) fn evictable(&self, pool: &KvPool) -> usize {
        self.entries.values().filter(|e| pool.owners(&e.page) == 1).count()
    }

    /// Frees one page: of the entries nobody else uses, the one unused for longest. False if there is none.
    pub(crate) fn evict(&mut self, pool: &mut KvPool) -> bool {
        let idle = self.entries.iter().filter(|(_, e)| pool.owners(&e.page) == 1);
        let oldest = idle.min_by_key(|(key, e)| (e.used, Reverse(e.depth), **key)).map(|(key, _)| *key);
        match oldest.and_then(|key| self.entries.remove(&key)) {
            Some(entry) => {
                pool.release(entry.page);
                true
            }
            None => false,
        }
    }

    /// Gives every page back.
    pub(crate) fn clear(&mut self, pool: &mut KvPool) {
        for (_, entry) in self.entries.drain() {
            pool.release(entry.page);
        }
    }
}
