//! An audit of the books: is every page where it should be?
//!
//! ```text
//! every page:  free │ idle (known, no owner) │ owned, by as many sequences as its count says
//! ```

use crate::pool::KvPool;
use crate::sequence::Sequence;
use std::collections::HashMap;
use zinc_ir::plan::PAGE_TOKENS;

/// The books are wrong: a bug of this crate.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("the engine's books are wrong: {0}")]
pub struct AuditError(
    /// What is wrong.
    pub String,
);

/// Checks the pages of all sequences and of the prefix cache, which knows the pages `known`, against the pool.
pub(crate) fn audit<'a>(
    pool: &KvPool,
    sequences: impl Iterator<Item = &'a Sequence>,
    known: impl Iterator<Item = u32>,
) -> Result<(), AuditError> {
    let wrong = |what: String| Err(AuditError(what));
    let mut owners: HashMap<u32, u32> = HashMap::new();
    for sequence in sequences {
        let id = sequence.id.0;
        if sequence.computed > sequence.cached || sequence.pages.len() < KvPool::pages_for(sequence.cached) {
            let (pages, cached, computed) = (sequence.pages.len(), sequence.cached, sequence.computed);
            return wrong(format!("sequence {id} has {pages} pages for {cached} tokens, {computed} of them computed"));
        }
        let full = sequence.computed / PAGE_TOKENS as usize;
        for (i, page) in sequence.pages.iter().enumerate() {
            *owners.entry(page.number()).or_default() += 1;
            if i >= full && (pool.owners(page.number()) != 1 || pool.is_known(page.number())) {
                return wrong(format!("page {} is shared, and sequence {id} still writes to it", page.number()));
            }
        }
    }
    let mut idle = 0;
    let mut all_known = 0;
    for page in known {
        all_known += 1;
        idle += usize::from(pool.owners(page) == 0);
        if !pool.is_known(page) {
            return wrong(format!("the prefix cache knows page {page}, which is free for others"));
        }
    }
    let numbers = 0..pool.pages() as u32;
    if numbers.clone().filter(|n| pool.is_known(*n)).count() != all_known || idle != pool.idle() {
        return wrong(format!("{} pages are idle, but the prefix cache has {idle}", pool.idle()));
    }
    if let Some(page) = numbers.clone().find(|n| pool.owners(*n) != owners.get(n).copied().unwrap_or(0)) {
        return wrong(format!("page {page} has {:?} owners, and counts {}", owners.get(&page), pool.owners(page)));
    }
    if owners.len() + pool.idle() + pool.free() != pool.pages() {
        let (owned, idle, free, pages) = (owners.len(), pool.idle(), pool.free(), pool.pages());
        return wrong(format!("{owned} pages are owned, {idle} idle, {free} free, but there are {pages}"));
    }
    Ok(())
}
