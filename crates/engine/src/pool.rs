//! The KV pool: who owns which page.
//!
//! ```text
//!             alloc                     release of the last owner
//! free pages ───────► owned, counted ───┬──────────────────────────► free pages
//!     ▲                   ▲             └─ known to the prefix cache ─► idle pages ─┐
//!     │                   └────────────────────── retake ──────────────────┤
//!     └──────────────────────────────── evict, forget ─────────────────────┘
//! ```
//!
//! A [`Page`] is a handle that cannot be copied: whoever holds one owns one reference, so no page can be given to two
//! sequences by mistake, and a page is lost only if a handle is dropped without [`KvPool::release`]. The prefix cache owns
//! nothing: it knows pages by their numbers, and those that nobody owns are *idle*, to be taken again or evicted, the one
//! that has been idle for longest first. All of it takes time that grows with the logarithm of the number of idle pages.

use std::collections::{BTreeMap, HashMap};
use zinc_ir::plan::PAGE_TOKENS;

/// One reference to one page of the pool.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a dropped handle is a lost page: give it back with KvPool::release"]
pub(crate) struct Page(u32);

impl Page {
    /// The page's number in the device's pool.
    pub(crate) fn number(&self) -> u32 {
        self.0
    }
}

/// Reference counts of all pages, those that are free and those that are idle. Memory itself lives on the device.
#[derive(Debug)]
pub(crate) struct KvPool {
    counts: Vec<u32>,
    /// Pages without owners whose content nobody knows.
    free: Vec<u32>,
    /// Is the page known to the prefix cache?
    known: Vec<bool>,
    /// Known pages without owners, by the time since when.
    idle: BTreeMap<u64, u32>,
    /// Since when a page is idle, if it is.
    since: Vec<u64>,
    /// Counts pages that have become idle.
    clock: u64,
}

impl KvPool {
    /// A pool of `pages` free pages of [`PAGE_TOKENS`] tokens.
    pub(crate) fn new(pages: u32) -> KvPool {
        let count = pages as usize;
        KvPool {
            counts: vec![0; count],
            free: (0..pages).rev().collect(),
            known: vec![false; count],
            idle: BTreeMap::new(),
            since: vec![0; count],
            clock: 0,
        }
    }

    /// Pages that hold `tokens` tokens.
    pub(crate) fn pages_for(tokens: usize) -> usize {
        tokens.div_ceil(PAGE_TOKENS as usize)
    }

    /// All pages, free or not.
    pub(crate) fn pages(&self) -> usize {
        self.counts.len()
    }

    /// Free pages.
    pub(crate) fn free(&self) -> usize {
        self.free.len()
    }

    /// Pages that nobody owns, and that the prefix cache knows: they can be had by evicting them.
    pub(crate) fn idle(&self) -> usize {
        self.idle.len()
    }

    /// How many handles of a page there are.
    pub(crate) fn owners(&self, number: u32) -> u32 {
        self.counts[number as usize]
    }

    /// Can the prefix cache find the page?
    pub(crate) fn is_known(&self, number: u32) -> bool {
        self.known[number as usize]
    }

    /// Takes a free page; its content is undefined. `None` when there is none: an idle one may be evicted.
    pub(crate) fn alloc(&mut self) -> Option<Page> {
        let number = self.free.pop()?;
        debug_assert!(self.counts[number as usize] == 0 && !self.known[number as usize]);
        self.counts[number as usize] = 1;
        Some(Page(number))
    }

    /// One more owner of a known page whose content all of them only read.
    pub(crate) fn retake(&mut self, number: u32) -> Page {
        let at = number as usize;
        debug_assert!(self.known[at], "page {number} may have been given to others");
        if self.counts[at] == 0 {
            self.idle.remove(&self.since[at]);
        }
        self.counts[at] += 1;
        Page(number)
    }

    /// Gives a handle back; with the last one the page is free, or idle if it is known.
    pub(crate) fn release(&mut self, page: Page) {
        let at = page.0 as usize;
        debug_assert!(self.counts[at] > 0, "page {} released without an owner", page.0);
        self.counts[at] -= 1;
        if self.counts[at] > 0 {
            return;
        }
        if self.known[at] {
            self.clock += 1;
            self.since[at] = self.clock;
            self.idle.insert(self.clock, page.0);
        } else {
            self.free.push(page.0);
        }
    }

    /// The prefix cache can find this page from now on; its content must stay.
    pub(crate) fn remember(&mut self, page: &Page) -> u32 {
        self.known[page.0 as usize] = true;
        page.0
    }

    /// The prefix cache cannot find this page any more.
    pub(crate) fn forget(&mut self, number: u32) {
        let at = number as usize;
        debug_assert!(self.known[at], "page {number} is not known");
        self.known[at] = false;
        if self.counts[at] == 0 {
            self.idle.remove(&self.since[at]);
            self.free.push(number);
        }
    }

    /// Frees the page that has been idle for longest and gives its number, which is to be forgotten.
    pub(crate) fn evict(&mut self) -> Option<u32> {
        let (_, number) = self.idle.pop_first()?;
        self.known[number as usize] = false;
        self.free.push(number);
        Some(number)
    }
}

/// Counts what is there for others once some owners go: a page is when all of its owners do.
#[derive(Debug, Default)]
pub(crate) struct Leaving {
    /// Of each page, how many of its owners go.
    gone: HashMap<u32, u32>,
    room: usize,
}

impl Leaving {
    /// The owner of these pages goes, too; gives the number of pages that nobody owns then.
    pub(crate) fn add(&mut self, pages: &[Page], pool: &KvPool) -> usize {
        for page in pages {
            let owners = self.gone.entry(page.number()).or_default();
            *owners += 1;
            self.room += usize::from(*owners == pool.owners(page.number()));
        }
        self.room
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_come_once_and_return_with_their_last_owner() {
        let mut pool = KvPool::new(3);
        let pages: Vec<Page> = std::iter::from_fn(|| pool.alloc()).collect();
        assert_eq!(pages.iter().map(Page::number).collect::<Vec<_>>(), [0, 1, 2]);
        let number = pool.remember(&pages[1]);
        let second = pool.retake(number);
        assert_eq!(pool.owners(number), 2);
        for page in pages {
            pool.release(page);
        }
        assert_eq!((pool.free(), pool.idle()), (2, 0));
        pool.release(second);
        assert_eq!((pool.free(), pool.idle(), pool.pages()), (2, 1, 3));
        pool.forget(number);
        assert_eq!((pool.free(), pool.idle()), (3, 0));
    }

    #[test]
    fn the_page_that_has_been_idle_for_longest_goes_first() {
        let mut pool = KvPool::new(4);
        let pages: Vec<Page> = std::iter::from_fn(|| pool.alloc()).collect();
        let known: Vec<u32> = pages[..3].iter().map(|page| pool.remember(page)).collect();
        pages.into_iter().rev().for_each(|page| pool.release(page));
        assert_eq!((pool.free(), pool.idle()), (1, 3), "the last one is known to nobody");
        // Its turn has come anew.
        let again = pool.retake(known[2]);
        pool.release(again);
        assert_eq!(std::iter::from_fn(|| pool.evict()).collect::<Vec<_>>(), [1, 0, 2]);
        assert_eq!(pool.free(), 4);
    }

    #[test]
    fn a_page_holds_page_tokens() {
        assert_eq!([0, 1, 32, 33, 64].map(KvPool::pages_for), [0, 1, 1, 2, 2]);
    }
}
