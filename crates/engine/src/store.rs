//! K and V that outlive the engine: full pages of sequences that have gone are given to a store, and a prompt that begins like one
//! of them is given its pages back.
//!
//! ```text
//! sequence goes ─► unsaved pages ─Device.save_page─► PageStore.save
//! submit ─► PageStore.has? ─fetch─► restoring ─Device.load_page─► prefix cache ─► Scheduler, which finds them there
//! ```
//!
//! One page at a time leaves the device, beside its steps, and a few a step come in: no step waits for a disk. A sequence whose
//! pages are on their way is not the scheduler's yet.

use crate::engine::Engine;
use crate::prefix::{Gone, PrefixCache};
use crate::sequence::{Sequence, SequenceId};
use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, TryRecvError};
use zinc_ir::graph::Graph;
use zinc_ir::plan::PAGE_TOKENS;

const PAGE: usize = PAGE_TOKENS as usize;

/// Pages that come in beside one step.
const PAGES_A_STEP: usize = 4;

/// Names a full page by everything that its K and V depend on.
pub type PageName = [u8; 16];

/// A full page on its way to a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptPage {
    /// Its name.
    pub name: PageName,
    /// That of the page before it, unless it is the first.
    pub before: Option<PageName>,
    /// Pages before it.
    pub depth: u32,
    /// Its tokens.
    pub tokens: [u32; PAGE],
    /// Its K and V in all layers, as [`zinc_ir::device::Device::saved_page`] gives them.
    pub bytes: Vec<u8>,
}

/// Keeps pages. The engine's thread calls it: nothing here may wait.
pub trait PageStore: Send {
    /// The name of the page of these tokens after the page `before`.
    fn name(&self, before: Option<PageName>, tokens: &[u32]) -> PageName;
    /// Is this page there, as far as is known?
    fn has(&self, name: PageName) -> bool;
    /// Can it take one more page now?
    fn has_room(&self) -> bool;
    /// Takes a page.
    fn save(&mut self, page: KeptPage);
    /// Begins to read pages; their bytes come in this order, up to the first that turns out not to be there.
    fn fetch(&mut self, names: Vec<PageName>) -> Receiver<Vec<u8>>;
}

/// A page that is to be saved.
struct Unsaved {
    /// Its key in the prefix cache, and its number: it may be another's by now.
    key: u64,
    page: u32,
    /// Without bytes.
    kept: KeptPage,
}

/// A sequence that waits for pages from the store.
struct Restoring {
    sequence: Sequence,
    pages: Receiver<Vec<u8>>,
    /// Leading pages that the prefix cache has, and the key of the last of them.
    done: (usize, u64),
}

/// The engine's side of a store.
pub(crate) struct Keeper {
    store: Box<dyn PageStore>,
    unsaved: VecDeque<Unsaved>,
    /// The page that the device copies.
    saving: Option<KeptPage>,
    restoring: VecDeque<Restoring>,
    /// Memory of the last page.
    bytes: Vec<u8>,
    /// Pages saved, and given back.
    counts: (u64, u64),
}

impl Keeper {
    /// What can be fetched for a sequence beyond what the prefix cache has.
    fn wanted(&self, sequence: &Sequence, prefixes: &PrefixCache) -> Option<((usize, u64), Vec<PageName>)> {
        let tokens = &sequence.tokens[..sequence.adoptable()];
        let known = prefixes.known(tokens);
        let (mut before, mut names) = (None, vec![]);
        for (i, tokens) in tokens.chunks_exact(PAGE).enumerate() {
            let name = self.store.name(before, tokens);
            if i >= known.0 {
                if !self.store.has(name) {
                    break;
                }
                names.push(name);
            }
            before = Some(name);
        }
        (!names.is_empty()).then_some((known, names))
    }

    /// Takes note of pages of sequences that have gone.
    fn note(&mut self, gone: &mut Vec<Gone>, most: usize) {
        let (mut before, mut depth) = (None, 0);
        for Gone { key, page, tokens, first } in gone.drain(..) {
            if first {
                (before, depth) = (None, 0);
            }
            let name = self.store.name(before, &tokens);
            if !self.store.has(name) && !self.unsaved.iter().any(|u| u.kept.name == name) {
                let kept = KeptPage { name, before, depth, tokens, bytes: vec![] };
                self.unsaved.push_back(Unsaved { key, page, kept });
            }
            (before, depth) = (Some(name), depth + 1);
        }
        // As many as there are pages: of more, some are other sequences' by now.
        let surplus = self.unsaved.len().saturating_sub(most);
        self.unsaved.drain(..surplus);
    }
}

impl Engine {
    /// From now on gives the pages of sequences that go to a store, and has prompts begin with what is there.
    pub fn keep_pages_in(&mut self, store: Box<dyn PageStore>) {
        self.scheduler.prefixes.gone = Some(vec![]);
        self.keeper = Some(Keeper {
            store,
            unsaved: VecDeque::new(),
            saving: None,
            restoring: VecDeque::new(),
            bytes: vec![],
            counts: (0, 0),
        });
    }

    /// All that decides about the bytes of a page besides its tokens and the weights, in words.
    pub fn kv_identity(&self) -> String {
        let (act, invariant, format) = (self.choices.act, self.choices.invariant, self.device.page_format());
        format!("{:?}, activations {act:?}, invariant {invariant}, pages {format}\n{}", self.kv.types, self.graph)
    }

    /// The model's computation.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// Pages given to the store so far, and pages that have come from it.
    pub fn kept_pages(&self) -> (u64, u64) {
        self.keeper.as_ref().map_or((0, 0), |keeper| keeper.counts)
    }

    /// Is there a page that has yet to be given to the store?
    pub fn has_unsaved(&self) -> bool {
        let keeper = self.keeper.as_ref().is_some_and(|k| k.saving.is_some() || !k.unsaved.is_empty());
        keeper || self.scheduler.prefixes.gone.as_ref().is_some_and(|gone| !gone.is_empty())
    }

    /// Where there are no steps to do it beside: has the device copy a page, waits for it and gives it to the store. False
    /// if the store is busy.
    pub fn save_page(&mut self) -> bool {
        self.save(true);
        self.save(true);
        self.keeper.as_ref().is_none_or(|keeper| keeper.store.has_room())
    }

    /// Sequences that wait for their pages.
    pub(crate) fn restoring(&self) -> usize {
        self.keeper.as_ref().map_or(0, |keeper| keeper.restoring.len())
    }

    /// Takes in a sequence: if the store has pages of it, those come first.
    pub(crate) fn enter(&mut self, sequence: Sequence) {
        if let Some(keeper) = &mut self.keeper
            && let Some((done, names)) = keeper.wanted(&sequence, &self.scheduler.prefixes)
        {
            let pages = keeper.store.fetch(names);
            keeper.restoring.push_back(Restoring { sequence, pages, done });
        } else {
            self.scheduler.add(sequence);
        }
    }

    /// Drops a sequence that waits for its pages; true if there was one.
    pub(crate) fn cancel_restoring(&mut self, id: SequenceId) -> bool {
        let Some(keeper) = &mut self.keeper else { return false };
        let before = keeper.restoring.len();
        keeper.restoring.retain(|r| r.sequence.id != id);
        keeper.restoring.len() < before
    }

    /// Takes in what pages have come, a few of them. Waits for one if there is nothing else to do.
    pub(crate) fn restore(&mut self) {
        let mut may_wait = self.scheduler.is_idle() && self.flight.is_empty();
        for _ in 0..PAGES_A_STEP {
            let Some(front) = self.keeper.as_mut().and_then(|keeper| keeper.restoring.front_mut()) else { return };
            let next = match may_wait {
                true => front.pages.recv().map_err(|_| TryRecvError::Disconnected),
                false => front.pages.try_recv(),
            };
            may_wait = false;
            match next {
                Ok(bytes) if self.take_page(&bytes) => {}
                Err(TryRecvError::Empty) => return,
                // That was all, or there is no room for more.
                Ok(_) | Err(TryRecvError::Disconnected) => {
                    let ready = self.keeper.as_mut().and_then(|keeper| keeper.restoring.pop_front());
                    ready.into_iter().for_each(|r| self.scheduler.add(r.sequence));
                }
            }
        }
    }

    /// Puts a page into the pool, for the sequence that waits for it; false if there is no room.
    fn take_page(&mut self, bytes: &[u8]) -> bool {
        let Engine { keeper: Some(keeper), scheduler, pool, device, .. } = self else { return false };
        let Some(front) = keeper.restoring.front_mut() else { return false };
        let page = match pool.alloc() {
            None if scheduler.prefixes.evict(pool) => pool.alloc(),
            other => other,
        };
        let Some(page) = page else { return false };
        if device.load_page(page.number(), bytes).is_err() {
            // What is wrong with the device, the next step tells.
            pool.release(page);
            return false;
        }
        let (index, before) = front.done;
        let tokens = &front.sequence.tokens[index * PAGE..(index + 1) * PAGE];
        front.done = (index + 1, scheduler.prefixes.restore(before, tokens, page, pool));
        keeper.counts.1 += 1;
        true
    }

    /// Gives the page that the device has copied to the store, or has it copy the next one.
    pub(crate) fn save(&mut self, wait: bool) {
        let Engine { keeper: Some(keeper), scheduler, pool, device, .. } = self else { return };
        if let Some(gone) = &mut scheduler.prefixes.gone {
            keeper.note(gone, pool.pages());
        }
        if let Some(mut page) = keeper.saving.take() {
            match device.saved_page(wait, &mut keeper.bytes) {
                Ok(true) => {
                    page.bytes = std::mem::take(&mut keeper.bytes);
                    keeper.store.save(page);
                    keeper.counts.0 += 1;
                }
                Ok(false) => {
                    keeper.saving = Some(page);
                    return;
                }
                // A page less in the store; what is wrong with the device, the next step tells.
                Err(_) => {}
            }
        }
        if !keeper.store.has_room() {
            return;
        }
        while let Some(Unsaved { key, page, kept }) = keeper.unsaved.pop_front() {
            if scheduler.prefixes.holds(key, page) {
                keeper.saving = device.save_page(page).is_ok().then_some(kept);
                return;
            }
        }
    }

    /// The device has lost its pages.
    pub(crate) fn forget_kept(&mut self) {
        let Some(keeper) = &mut self.keeper else { return };
        keeper.unsaved.clear();
        keeper.saving = None;
        for restoring in std::mem::take(&mut keeper.restoring) {
            self.scheduler.add(restoring.sequence);
        }
    }
}
