//! K and V that outlive the engine: full pages of sequences that have gone are given to a store, and a prompt that begins like one
//! of them is given its pages back.
//!
//! ```text
//! sequence goes ─► unsaved pages ─Device.save_page─► PageStore.save
//! submit ─► PageStore.has? ─fetch─► restoring ─Device.load_page─► prefix cache, and the sequence's own ─► Scheduler
//! ```
//!
//! One page at a time leaves the device, beside its steps, and a few a step come in: no step waits for a disk. A sequence whose
//! pages are on their way is not the scheduler's yet. They come for one sequence at a time, the most urgent one: what has come
//! for it need not be read again for the next. It owns its pages from then on, also while it waits to be admitted, so that those of
//! one prompt make no place for those of another that comes later; and takes none that running sequences are about to need. Where
//! those come to need more, and there is no other page, it gives its pages back.

use crate::engine::Engine;
use crate::pool::KvPool;
use crate::prefix::Gone;
use crate::sequence::{Sequence, SequenceId};
use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::Duration;
use zinc_ir::graph::Graph;
use zinc_ir::plan::PAGE_TOKENS;

const PAGE: usize = PAGE_TOKENS as usize;

/// Pages that come in beside one step.
const PAGES_A_STEP: usize = 4;

/// How long a step waits for a page where there is nothing else to do: whoever calls has commands to look after.
const PATIENCE: Duration = Duration::from_millis(5);

/// Names a full page by everything that its K and V depend on.
pub type PageName = [u8; 16];

/// A full page on its way to a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptPage {
    /// Its name.
    pub name: PageName,
    /// That of the page before it; of the first one, its sequence's salt, if it has one.
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
    /// The name of the page of these tokens after the page `before`; before the first one is its sequence's salt, if it has
    /// one.
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

/// A sequence that waits for pages from the store. Of all that do, the first owns those that have come.
struct Restoring {
    sequence: Sequence,
    /// Of its leading full pages, up to the first that neither the prefix cache nor the store had when it came.
    names: Vec<PageName>,
}

impl Restoring {
    /// The least comes first.
    fn rank(&self) -> (i32, SequenceId) {
        (self.sequence.share.priority, self.sequence.id)
    }
}

/// What is on its way to the first of those that wait.
struct Coming {
    pages: Receiver<Vec<u8>>,
    /// The scheduler's preemptions before.
    preemptions: u64,
}

/// The engine's side of a store.
pub(crate) struct Keeper {
    /// Dropped before the store, which may be waiting for its pages to be taken.
    coming: Option<Coming>,
    store: Box<dyn PageStore>,
    unsaved: VecDeque<Unsaved>,
    /// The page that the device copies.
    saving: Option<KeptPage>,
    /// In the order of [`Restoring::rank`].
    restoring: VecDeque<Restoring>,
    /// Memory of the last page.
    bytes: Vec<u8>,
    /// Pages saved, and given back.
    counts: (u64, u64),
}

impl Keeper {
    /// Names of the leading pages of a sequence, of which the first `known` need not be in the store, but the others must.
    fn names(&self, sequence: &Sequence, known: usize) -> Vec<PageName> {
        let mut names: Vec<PageName> = vec![];
        for tokens in sequence.tokens[..sequence.adoptable()].chunks_exact(PAGE) {
            let name = self.store.name(names.last().copied().or(sequence.salt), tokens);
            if names.len() >= known && !self.store.has(name) {
                break;
            }
            names.push(name);
        }
        names
    }

    /// Nothing comes any more until the next step. What has come stays in the prefix cache as long as nobody needs its place.
    fn stop(&mut self, pool: &mut KvPool) {
        self.coming = None;
        if let Some(front) = self.restoring.front_mut() {
            front.sequence.release_pages(pool);
        }
    }

    /// Takes note of pages of sequences that have gone.
    fn note(&mut self, gone: &mut Vec<Gone>, most: usize) {
        let (mut before, mut depth) = (None, 0);
        for Gone { key, page, tokens, first, salt } in gone.drain(..) {
            if first {
                (before, depth) = (salt, 0);
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
            coming: None,
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
    pub(crate) fn restoring(&self) -> impl Iterator<Item = &Sequence> {
        self.keeper.iter().flat_map(|keeper| &keeper.restoring).map(|restoring| &restoring.sequence)
    }

    /// Takes in a sequence: if the store has pages of it, those come first.
    pub(crate) fn enter(&mut self, sequence: Sequence) {
        if let Some(keeper) = &mut self.keeper {
            let known = self.scheduler.prefixes.known(&sequence);
            let names = keeper.names(&sequence, known);
            if names.len() > known {
                let new = Restoring { sequence, names };
                let place = keeper.restoring.partition_point(|other| other.rank() < new.rank());
                if place == 0 {
                    keeper.stop(&mut self.pool);
                }
                keeper.restoring.insert(place, new);
                return;
            }
        }
        self.scheduler.add(sequence);
    }

    /// Drops a sequence that waits for its pages; true if there was one.
    pub(crate) fn cancel_restoring(&mut self, id: SequenceId) -> bool {
        let Some(keeper) = &mut self.keeper else { return false };
        let Some(place) = keeper.restoring.iter().position(|r| r.sequence.id == id) else { return false };
        if place == 0 {
            keeper.stop(&mut self.pool);
        }
        keeper.restoring.remove(place);
        true
    }

    /// What is on its way comes anew, as far as the prefix cache does not know it by then.
    pub(crate) fn restore_anew(&mut self) {
        if let Some(keeper) = &mut self.keeper {
            keeper.stop(&mut self.pool);
        }
    }

    /// Takes in what pages have come, a few of them. Waits a moment for one if there is nothing else to do.
    pub(crate) fn restore(&mut self) {
        if self.is_in_the_way() {
            self.restore_anew();
            self.hand_over();
            return;
        }
        for i in 0..PAGES_A_STEP {
            self.begin_restoring();
            let Some(coming) = self.keeper.as_ref().and_then(|keeper| keeper.coming.as_ref()) else { return };
            let next = match i == 0 && self.scheduler.is_idle() && self.flight.is_empty() {
                true => coming.pages.recv_timeout(PATIENCE).map_err(|error| match error {
                    RecvTimeoutError::Timeout => TryRecvError::Empty,
                    RecvTimeoutError::Disconnected => TryRecvError::Disconnected,
                }),
                false => coming.pages.try_recv(),
            };
            match next {
                Ok(bytes) if self.take_page(&bytes) => {}
                Err(TryRecvError::Empty) => return,
                // That was all, or there is no room for more.
                Ok(_) | Err(TryRecvError::Disconnected) => self.hand_over(),
            }
        }
    }

    /// Has nobody been able to run since pages are coming, because of the room that they take?
    fn is_in_the_way(&self) -> bool {
        let coming = self.keeper.as_ref().and_then(|keeper| keeper.coming.as_ref());
        let (running, waiting) = self.scheduler.sequences();
        running == 0 && waiting > 0 && coming.is_some_and(|coming| coming.preemptions < self.scheduler.preemptions())
    }

    /// Has pages come for the first sequence that waits, if they do not yet. Sequences that lack none by now go to the scheduler.
    fn begin_restoring(&mut self) {
        loop {
            let Engine { keeper: Some(keeper), scheduler, pool, .. } = self else { return };
            let (None, Some(front)) = (&keeper.coming, keeper.restoring.front_mut()) else { return };
            scheduler.prefixes.adopt(&mut front.sequence, pool);
            let lacking = front.names.iter().skip(front.sequence.pages.len()).copied();
            let names: Vec<PageName> = lacking.take_while(|name| keeper.store.has(*name)).collect();
            if !names.is_empty() {
                let pages = keeper.store.fetch(names);
                keeper.coming = Some(Coming { pages, preemptions: scheduler.preemptions() });
                return;
            }
            self.hand_over();
        }
    }

    /// Gives the first sequence that waits to the scheduler, with its pages.
    fn hand_over(&mut self) {
        let Some(keeper) = &mut self.keeper else { return };
        keeper.coming = None;
        if let Some(Restoring { mut sequence, .. }) = keeper.restoring.pop_front() {
            sequence.holds = !sequence.pages.is_empty();
            self.scheduler.add(sequence);
        }
    }

    /// Puts a page into the pool, for the sequence that waits for it; false if no other can follow it, or there is no room.
    fn take_page(&mut self, bytes: &[u8]) -> bool {
        let Engine { keeper: Some(keeper), scheduler, pool, device, .. } = self else { return false };
        let Some(front) = keeper.restoring.front_mut() else { return false };
        if !scheduler.make_room_for(&front.sequence, pool) {
            return false;
        }
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
        scheduler.prefixes.restore(&mut front.sequence, page, pool);
        keeper.counts.1 += 1;
        front.sequence.pages.len() < front.names.len()
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
        keeper.stop(&mut self.pool);
        for restoring in std::mem::take(&mut keeper.restoring) {
            self.scheduler.add(restoring.sequence);
        }
    }
}
