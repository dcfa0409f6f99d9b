//! The KV pool: who owns which page.
//!
//! ```text
//! KvPool ─alloc─► Page (one owner) ─share─► Page (one more owner of the same page) ─release─► back, free at count 0
//! ```
//!
//! A [`Page`] is a handle that cannot be copied: whoever holds one owns one reference, so no page can be given to two
//! sequences by mistake, and a page is lost only if a handle is dropped without [`KvPool::release`].

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

/// Reference counts of all pages and the list of free ones. Memory itself lives on the device.
#[derive(Debug)]
pub(crate) struct KvPool {
    counts: Vec<u32>,
    free: Vec<u32>,
}

impl KvPool {
    /// A pool of `pages` free pages of [`PAGE_TOKENS`] tokens.
    pub(crate) fn new(pages: u32) -> KvPool {
        KvPool { counts: vec![0; pages as usize], free: (0..pages).rev().collect() }
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

    /// How many handles of a page there are.
    pub(crate) fn owners(&self, page: &Page) -> u32 {
        self.counts[page.0 as usize]
    }

    /// Takes a free page; its content is undefined. `None` when all are in use.
    pub(crate) fn alloc(&mut self) -> Option<Page> {
        let number = self.free.pop()?;
        debug_assert_eq!(self.counts[number as usize], 0);
        self.counts[number as usize] = 1;
        Some(Page(number))
    }

    /// A second owner of a page whose content both only read.
    pub(crate) fn share(&mut self, page: &Page) -> Page {
        self.counts[page.0 as usize] += 1;
        Page(page.0)
    }

    /// Gives a handle back; the last one frees the page.
    pub(crate) fn release(&mut self, page: Page) {
        let count = &mut self.counts[page.0 as usize];
        debug_assert!(*count > 0, "page {} released without an owner", page.0);
        *count -= 1;
        if *count == 0 {
            self.free.push(page.0);
        }
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
        let second = pool.share(&pages[1]);
        assert_eq!(pool.owners(&second), 2);
        for page in pages {
            pool.release(page);
        }
        assert_eq!(pool.free(), 2);
        pool.release(second);
        assert_eq!((pool.free(), pool.pages()), (3, 3));
    }

    #[test]
    fn a_page_holds_page_tokens() {
        assert_eq!([0, 1, 32, 33, 64].map(KvPool::pages_for), [0, 1, 1, 2, 2]);
    }
}
