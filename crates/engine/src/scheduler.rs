//! The scheduler: which rows run next.
//!
//! ```text
//! waiting ─admit─► running ─next_batch─► Batch ─device─► StepOutput ─finish_batch─► events
//!    ▲                │    ▲                      │
//!    └───preempt──────┘    └── ahead of its result ┘
//! ```
//!
//! Sequences are admitted by priority, those of one priority by what their owners have had ([`crate::share`]), those of one
//! owner in order of arrival; each step looks at those that run in the same order. It gives every generating sequence its
//! one row first, then fills up to the row limit with pieces of prompts, of which each leaves a quarter to those behind it:
//! so a long prompt delays sequences that generate by no more than a full step, and short prompts by a few. When pages run out, the last in that order goes back to wait; so does one that runs where a more urgent one
//! waits for its place, or one whose owner has had much less. The first in the order always proceeds, and each turn brings
//! new tokens, so every sequence ends. Preempting drops neither tokens nor sampling state: its output is the same; and its
//! full pages are dropped only as others need them. A sequence whose prompt begins as one that is being run waits until
//! that beginning has been computed, and takes it from there.
//!
//! A batch can be built before the result of the one before is known, if the device itself chooses that one's tokens.
//! A sequence that turns out to have ended then has one row too many in flight: its result is dropped, and the page it
//! writes to is free (devices run steps in order, so whoever gets the page writes later).
//!
//! A step has one tail. Sequences that want hidden states and those that want logits or tokens take turns.
//!
//! Owns no clock, no channel and no device.

use crate::audit::{AuditError, audit};
use crate::batch::Batch;
use crate::bucket::Limits;
use crate::pool::{KvPool, Leaving};
use crate::prefix::PrefixCache;
use crate::sequence::{Asked, Event, Finish, Sequence, SequenceId};
use crate::share::{Place, Queue};
use std::collections::HashSet;
use zinc_ir::plan::{Bucket, PAGE_TOKENS, StepOutput};
use zinc_ir::sample::Draw;

/// Sequences waiting and running.
#[derive(Debug)]
pub(crate) struct Scheduler {
    limits: Limits,
    queue: Queue,
    /// In the order of the module's documentation when a batch was begun.
    #[expect(clippy::vec_box, reason = "they are sorted and taken out; sequences are large")]
    running: Vec<Box<Sequence>>,
    pub(crate) prefixes: PrefixCache,
    preemptions: u64,
    /// Sequences that were admitted, not yet told.
    started: Vec<Event>,
    /// Rows of each running sequence in the batch being built.
    rows: Vec<usize>,
    /// The last batch was of sequences that want hidden states.
    hidden: bool,
}

impl Scheduler {
    /// An idle scheduler. `limits.outputs` and `limits.hidden` must be at least `limits.sequences`.
    pub(crate) fn new(limits: Limits) -> Scheduler {
        Scheduler {
            limits,
            queue: Queue::default(),
            running: vec![],
            prefixes: PrefixCache::default(),
            preemptions: 0,
            started: vec![],
            rows: vec![],
            hidden: false,
        }
    }

    /// Puts a sequence in the queue. Its limit must fit the pool.
    pub(crate) fn add(&mut self, mut sequence: Sequence) {
        sequence.by_host = !sequence.tail(self.limits.candidates).chains();
        self.queue.enter(Box::new(sequence));
    }

    /// Is there nothing left to do?
    pub(crate) fn is_idle(&self) -> bool {
        self.running.is_empty() && self.queue.len() == 0
    }

    /// How often a sequence had to give its pages back.
    pub(crate) fn preemptions(&self) -> u64 {
        self.preemptions
    }

    /// Sequences that run, and that wait.
    pub(crate) fn sequences(&self) -> (usize, usize) {
        (self.running.len(), self.queue.len())
    }

    /// Pages that running sequences need for their tokens so far and do not have yet.
    pub(crate) fn promised(&self) -> usize {
        self.running.iter().map(|s| claim(s)).sum()
    }

    /// Is every page where it should be, and every sequence counted? `others` have pages, too, but have not been added.
    pub(crate) fn audit<'a>(
        &'a self,
        pool: &KvPool,
        others: impl Iterator<Item = &'a Sequence>,
    ) -> Result<(), AuditError> {
        let ((entered, owners), there) = (self.queue.entered(), self.running.len() + self.queue.len());
        if entered != there || (there == 0 && owners > 0) {
            return Err(AuditError(format!("{owners} owners have {entered} sequences, but there are {there}")));
        }
        if let Some(sequence) = self.queue.waiting().find(|s| s.holds == s.pages.is_empty()) {
            let (id, pages) = (sequence.id.0, sequence.pages.len());
            return Err(AuditError(format!("sequence {id} waits with {pages} pages, which is not how it is counted")));
        }
        let running = self.running.iter().map(|sequence| &**sequence);
        audit(pool, running.chain(self.queue.waiting()).chain(others), self.prefixes.pages())
    }

    /// Drops a sequence; unknown ids (it may just have ended) are fine.
    pub(crate) fn cancel(&mut self, id: SequenceId, pool: &mut KvPool) {
        self.started.retain(|e| !matches!(e, Event::Started { sequence, .. } if *sequence == id));
        self.queue.drop_waiting(id, pool);
        if let Some(i) = self.running.iter().position(|s| s.id == id) {
            let mut sequence = self.running.remove(i);
            self.queue.leave(&sequence);
            self.keep(&mut sequence, pool);
        }
    }

    /// Forgets the K and V kept from sequences that have ended. Those that run share theirs anew, from the first page on.
    pub(crate) fn forget_prefixes(&mut self, pool: &mut KvPool) {
        while self.queue.give_back(pool) {}
        self.prefixes.clear(pool);
        for sequence in &mut self.running {
            sequence.shared = (0, 0);
        }
    }

    /// Takes note of what a sequence that goes has computed, and takes all of its pages.
    fn keep(&mut self, sequence: &mut Sequence, pool: &mut KvPool) {
        match sequence.suspect {
            true => sequence.release_pages(pool),
            false => self.prefixes.keep(sequence, pool),
        }
    }

    /// This sequence had no numbers: what it has shared, and what it has from others, may be no better. Nobody is given
    /// any of it from now on, nor what was computed from it. Takes all of its pages.
    fn distrust(&mut self, sequence: &mut Sequence, pool: &mut KvPool) {
        let pages: HashSet<u32> = sequence.pages.iter().map(|page| page.number()).collect();
        for other in &mut self.running {
            other.suspect |= other.pages.iter().any(|page| pages.contains(&page.number()));
        }
        sequence.release_pages(pool);
        self.forget_prefixes(pool);
    }

    /// Puts the next step's work into `batch`; false when there is nothing to do. With `ahead`, the result of the batch
    /// before is still to come ([`Batch::can_be_followed`]): then nothing is preempted, and false may also mean that the
    /// result is needed first.
    pub(crate) fn next_batch(&mut self, pool: &mut KvPool, ahead: bool, batch: &mut Batch) -> bool {
        self.put_in_order();
        if !self.admit(pool, ahead) {
            return false;
        }
        self.put_in_order();
        let mut rows_left = self.limits.rows as usize;
        let wants = |hidden: bool| self.running.iter().any(|s| s.hidden == hidden && s.pending() > 0);
        let hidden = wants(true) && !(self.hidden && wants(false));
        let mut outputs_left = self.limits.most_outputs(hidden) as usize;
        // Rows kept back for sequences that generate, so that prompts before them in line do not take all; and outputs,
        // of which a prompt may want one for each token.
        let mut reserved = self.running.iter().filter(|s| s.hidden == hidden && s.pending() == 1).count();
        let mut prompts = self.running.iter().filter(|s| s.hidden == hidden && s.pending() > 1).count();
        self.rows.clear();
        for i in 0.. {
            let Some(sequence) = self.running.get(i) else { break };
            if sequence.hidden != hidden {
                self.rows.push(0);
                continue;
            }
            let (room, outputs) = if sequence.pending() == 1 {
                reserved -= 1;
                (rows_left, outputs_left)
            } else {
                prompts -= usize::from(sequence.pending() > 1);
                let room = |left: usize| {
                    let room = left.saturating_sub(reserved);
                    // A quarter is for the prompts behind it, so that short ones need not wait for the end of a long one.
                    if prompts > 0 { room - room / 4 } else { room }
                };
                (room(rows_left), room(outputs_left))
            };
            let rows = sequence.rows_within(room, outputs);
            let end = sequence.cached + rows;
            outputs_left -= (sequence.cached..end).filter(|p| sequence.wants_output(*p)).count();
            rows_left -= rows;
            if rows > 0 && !self.grow(i, end, pool, !ahead) {
                if ahead {
                    return false;
                }
                break;
            }
            self.rows.push(rows);
        }
        self.fill(batch, hidden)
    }

    /// Sorts the running sequences; most often they are in order.
    fn put_in_order(&mut self) {
        for sequence in &mut self.running {
            sequence.had = self.queue.had(&sequence.share);
        }
        self.running.sort_unstable_by_key(|s| (s.share.priority, s.had, s.id));
    }

    /// Moves waiting sequences to the running ones while there is room, or room can be made. False if it can be, but not
    /// `ahead` of a result.
    fn admit(&mut self, pool: &mut KvPool, ahead: bool) -> bool {
        let mut passed = HashSet::new();
        while let Some(place) = self.queue.next(&passed) {
            let Some(next) = self.queue.get(place) else { break };
            if self.running.iter().any(|other| will_share(other, next)) {
                passed.insert(next.id);
                continue;
            }
            if self.admit_from(place, pool) {
                continue;
            }
            let victims = self.victims(place, pool);
            if victims == 0 {
                break;
            }
            if ahead {
                return false;
            }
            (0..victims).for_each(|_| self.preempt_last(pool));
        }
        true
    }

    /// Has a sequence that waits run if its tokens so far have room.
    fn admit_from(&mut self, place: Place, pool: &mut KvPool) -> bool {
        if self.running.len() >= self.limits.sequences as usize {
            return false;
        }
        if !self.adopt_if_there_is_room(place, pool) {
            return false;
        }
        let Some(mut sequence) = self.queue.take(place) else { return false };
        sequence.reserve();
        sequence.charged = sequence.charged.max(sequence.cached);
        let tokens = sequence.tokens.len();
        self.queue.charge(&mut sequence, tokens);
        if !sequence.started {
            sequence.started = true;
            self.started.push(Event::Started { sequence: sequence.id, cached: sequence.cached as u32 });
        }
        self.running.push(sequence);
        true
    }

    /// Gives a sequence that waits the pages of its prefix, if there is room for the others that its tokens need, too. What
    /// others hold that come later is no reason to wait.
    fn adopt_if_there_is_room(&mut self, place: Place, pool: &mut KvPool) -> bool {
        let (alone, promised) = (self.running.is_empty(), self.promised());
        let lacking = |pages: usize, pool: &KvPool| match alone {
            true => 0,
            false => (promised + pages).saturating_sub(pool.free() + pool.idle()),
        };
        let Some(rank) = self.queue.get(place).map(|next| self.queue.rank(next)) else { return false };
        // It needs a page at least; most often this tells without looking for its prefix.
        let least = lacking(1, pool);
        if least > 0 && self.queue.most_room_after(rank, pool) < least {
            return false;
        }
        let Some(next) = self.queue.get_mut(place) else { return false };
        let before = next.shared;
        self.prefixes.adopt(next, pool);
        // Once it has adopted them, its pages are none that others could make room with.
        let pages = lacking(claim(next), pool);
        let fits = self.queue.make_room(rank, pages, pool);
        if let Some(next) = self.queue.get_mut(place).filter(|_| !fits) {
            next.release_after(before, pool);
        }
        fits
    }

    /// Is there a page more than running sequences are about to need, for one that has not been added yet, or do those that
    /// wait and come after it give one back?
    pub(crate) fn make_room_for(&mut self, sequence: &Sequence, pool: &mut KvPool) -> bool {
        let lacking = (self.promised() + 1).saturating_sub(pool.free() + pool.idle());
        self.queue.make_room(self.queue.rank(sequence), lacking, pool)
    }

    /// How many of the last running sequences should make place so that one that waits can run; 0 if that would not be
    /// enough, or they need not.
    fn victims(&self, place: Place, pool: &KvPool) -> usize {
        let Some(next) = self.queue.get(place) else { return 0 };
        let mut promised: usize = claim(next) + self.running.iter().map(|s| claim(s)).sum::<usize>();
        let room = pool.free() + pool.idle() + self.queue.most_room_after(self.queue.rank(next), pool);
        let mut leaving = Leaving::default();
        for (i, last) in self.running.iter().rev().enumerate() {
            if !self.queue.yields(last, &next.share) {
                return 0;
            }
            promised -= claim(last);
            let room = room + leaving.add(&last.pages, pool);
            if promised <= room || i + 1 == self.running.len() {
                return i + 1;
            }
        }
        0
    }

    /// Gives running sequence `i` pages for `tokens` tokens, preempting later ones if need be and allowed. False if that
    /// was not enough, or it was the last itself and had to go.
    fn grow(&mut self, i: usize, tokens: usize, pool: &mut KvPool, preempt: bool) -> bool {
        while self.running[i].pages.len() < KvPool::pages_for(tokens) {
            if let Some(page) = pool.alloc() {
                self.running[i].pages.push(page);
            } else if !self.prefixes.evict(pool) && !self.queue.give_back(pool) {
                if !preempt {
                    return false;
                }
                let last = self.running.len() - 1;
                self.preempt_last(pool);
                if last == i {
                    return false;
                }
            }
        }
        true
    }

    fn preempt_last(&mut self, pool: &mut KvPool) {
        if let Some(mut sequence) = self.running.pop() {
            // Its pages stay at hand as long as nobody needs them.
            self.keep(&mut sequence, pool);
            self.queue.wait(sequence);
            self.preemptions += 1;
        }
    }

    /// Builds the batch of the first `self.rows[i]` pending tokens of each running sequence, and counts them as run.
    fn fill(&mut self, batch: &mut Batch, hidden: bool) -> bool {
        batch.clear();
        let (mut asked, mut context) = (Asked::default(), 0);
        for by_host in [true, false] {
            let mine = self.running.iter_mut().zip(&self.rows).filter(|(s, rows)| **rows > 0 && s.by_host == by_host);
            for (sequence, &rows) in mine {
                let tail = sequence.tail(self.limits.candidates);
                let outputs = (sequence.cached..sequence.cached + rows).filter(|p| sequence.wants_output(*p));
                outputs.for_each(|_| asked.add(tail));
                batch.add(sequence, rows);
                let run = sequence.cached;
                self.queue.charge(sequence, run);
                context = context.max(sequence.cached as u32);
            }
        }
        batch.host_rows = asked.host() as usize;
        let tail = asked.tail(self.limits.candidates);
        if batch.parts.is_empty() {
            return false;
        }
        (batch.hidden, batch.hidden_before) = (hidden, self.hidden);
        self.hidden = hidden;
        batch.step.pages.truncate(batch.parts.len());
        if tail.draws() {
            for (row, (part, _)) in batch.outputs.iter().enumerate() {
                let id = batch.parts[*part].id;
                let sequence = self.running.iter_mut().find(|s| s.id == id);
                // The host draws its own tokens.
                let by_host = row < batch.host_rows;
                batch.step.draws.extend(sequence.map(|s| if by_host { Draw::GREEDY } else { s.sampler.draw() }));
            }
        }
        let sizes = [batch.step.tokens.len(), batch.outputs.len(), batch.parts.len()].map(|n| n as u32);
        batch.bucket = self.limits.bucket(sizes[0], sizes[1], sizes[2], context, tail);
        true
    }

    /// Forgets that a batch was built: it was not run, or failed. Later batches must have been undone before.
    pub(crate) fn undo(&mut self, batch: &Batch) {
        self.hidden = batch.hidden_before;
        for part in &batch.parts {
            let Some(sequence) = self.running.iter_mut().find(|s| s.id == part.id) else { continue };
            sequence.cached -= part.rows;
            sequence.ahead -= usize::from(part.chooses);
            sequence.ahead_row = part.ahead_row;
            sequence.sampler.rewind(part.random.clone());
        }
    }

    /// The step of this batch has failed.
    pub(crate) fn blame(&mut self, batch: &Batch) {
        for sequence in self.running.iter_mut().filter(|s| batch.parts.iter().any(|part| part.id == s.id)) {
            sequence.failures += 1;
        }
    }

    /// Forgets all K and V, so that all sequences are computed anew, without those that `failures` steps have failed for
    /// since their last token: they are dropped and named. No batch may be in use.
    pub(crate) fn restart(&mut self, failures: u32, pool: &mut KvPool) -> Vec<SequenceId> {
        while self.queue.give_back(pool) {}
        self.prefixes.clear(pool);
        let mut dropped = vec![];
        while let Some(mut sequence) = self.running.pop() {
            sequence.release_pages(pool);
            match sequence.failures >= failures {
                true => {
                    self.queue.leave(&sequence);
                    dropped.push(sequence.id);
                }
                false => self.queue.wait(sequence),
            }
        }
        self.started.retain(|e| !matches!(e, Event::Started { sequence, .. } if dropped.contains(sequence)));
        dropped
    }

    /// Has a sequence of the batch used half of a context of this many tokens, and will it need more, by steps of as many
    /// rows?
    pub(crate) fn outgrows(&self, batch: &Batch, context: u32) -> bool {
        let context = context as usize;
        batch.parts.iter().filter(|part| part.end * 2 >= context).any(|part| {
            let sequence = self.running.iter().find(|s| s.id == part.id);
            sequence.is_some_and(|s| s.reach(part.rows) > context)
        })
    }

    /// The bucket of the step in which all running sequences will generate, while some of them still read their prompts.
    pub(crate) fn generating_soon(&self, limits: &Limits) -> Option<Bucket> {
        if self.running.iter().all(|s| s.cached >= s.tokens.len()) {
            return None;
        }
        let (mut count, mut context, mut asked) = (0, 0, Asked::default());
        for sequence in self.running.iter().filter(|s| s.samples && s.limit > s.tokens.len() + 1) {
            count += 1;
            context = context.max(sequence.tokens.len() as u32 + 1);
            asked.add(sequence.tail(limits.candidates));
        }
        (count > 0).then(|| limits.generating(count, context, asked.tail(limits.candidates)))
    }

    /// Where a sequence is among those that run; most likely at or soon after `guess`.
    fn place(&self, id: SequenceId, guess: usize) -> Option<usize> {
        let (before, after) = self.running.split_at(guess.min(self.running.len()));
        let found = after.iter().position(|s| s.id == id).map(|i| before.len() + i);
        found.or_else(|| before.iter().position(|s| s.id == id))
    }

    /// Is a sequence of the batch still there?
    pub(crate) fn has_part_of(&self, batch: &Batch) -> bool {
        batch.parts.iter().any(|part| self.running.iter().any(|s| s.id == part.id))
    }

    /// Takes in what the device computed for a batch: samples where the device has not, and lets sequences that have
    /// ended go. Rows of sequences that are gone are dropped. True if one of them had no numbers: then nothing that has
    /// been shared is to be used, by sequences that have not been added yet neither.
    pub(crate) fn finish_batch(
        &mut self,
        batch: &Batch,
        output: &StepOutput,
        pool: &mut KvPool,
        events: &mut Vec<Event>,
    ) -> bool {
        events.append(&mut self.started);
        let mut distrusted = false;
        // Outputs are in the order of parts, and most often so is what runs.
        let (mut rows, mut place) = (0..0, 0);
        for (index, part) in batch.parts.iter().enumerate() {
            let mine = batch.outputs[rows.end..].iter().take_while(|(of, _)| *of == index).count();
            rows = rows.end..rows.end + mine;
            let Some(i) = self.place(part.id, place) else { continue };
            place = i;
            let sequence = &mut self.running[i];
            sequence.ahead -= usize::from(part.chooses);
            let mut ended = None;
            for row in rows.clone() {
                let position = batch.outputs[row].1;
                ended = ended.or(take_output(sequence, output, (row, batch.logits_rows()), position, events));
            }
            sequence.computed = part.end;
            if !sequence.suspect {
                self.prefixes.share(sequence, pool);
            }
            if !sequence.samples && part.end == sequence.tokens.len() {
                ended = ended.or(Some(Finish::Length));
            }
            if let Some(reason) = ended {
                let mut sequence = self.running.remove(i);
                self.queue.leave(&sequence);
                if reason == Finish::NoNumbers {
                    self.distrust(&mut sequence, pool);
                    distrusted = true;
                }
                // What it computed stays at hand for a later one that begins the same.
                self.keep(&mut sequence, pool);
                events.push(Event::Finished { sequence: part.id, reason });
            }
        }
        distrusted
    }
}

/// Pages that a sequence needs for its tokens so far and does not have yet.
fn claim(sequence: &Sequence) -> usize {
    KvPool::pages_for(sequence.tokens.len()).saturating_sub(sequence.pages.len())
}

/// Is `other` about to compute a page that `next` begins with, too?
fn will_share(other: &Sequence, next: &Sequence) -> bool {
    const PAGE: usize = PAGE_TOKENS as usize;
    let (done, all) = (other.shared.0, other.prompt.min(next.adoptable()) / PAGE);
    // Pages before have been shared: what counts is whether the first one that has not is the same.
    let may = other.salt == next.salt && !other.suspect;
    may && done < all && other.tokens[..(done + 1) * PAGE] == next.tokens[..(done + 1) * PAGE]
}

/// Handles an output row of a sequence, one of so many at most that have logits; gives the reason if that ends it.
fn take_output(
    sequence: &mut Sequence,
    output: &StepOutput,
    (row, rows): (usize, usize),
    position: u32,
    events: &mut Vec<Event>,
) -> Option<Finish> {
    let id = sequence.id;
    let is_last = sequence.samples && position as usize + 1 == sequence.tokens.len();
    let token = match output {
        StepOutput::Mixed { tokens, .. } if !sequence.by_host => tokens.get(row).copied().filter(|t| *t != u32::MAX),
        StepOutput::Tokens(tokens) => tokens.get(row).copied().filter(|t| *t != u32::MAX),
        StepOutput::Best { k, tokens, logits } => {
            let mine = row * k..(row + 1) * k;
            sequence.sampler.sample_best(&tokens[mine.clone()], &logits[mine])
        }
        StepOutput::Logits(logits) | StepOutput::Mixed { logits, .. } => {
            let width = logits.len() / rows;
            let logits = &logits[row * width..][..width];
            if sequence.next_logits.is_some_and(|next| position as usize >= next) {
                events.push(Event::Logits { sequence: id, position, logits: logits.to_vec() });
                sequence.next_logits = Some(position as usize + 1);
            }
            if !is_last {
                return None;
            }
            match sequence.choose(logits) {
                Ok(token) => Some(token),
                Err(reason) => return Some(reason),
            }
        }
        StepOutput::Hidden(states) => {
            let width = states.len() / rows;
            let state = states[row * width..][..width].to_vec();
            sequence.next_logits = Some(position as usize + 1);
            events.push(Event::Hidden { sequence: id, position, state });
            return None;
        }
        StepOutput::None => None,
    };
    let Some(token) = token else { return Some(Finish::NoNumbers) };
    if sequence.end_tokens.contains(&token) {
        return Some(Finish::EndToken(token));
    }
    sequence.tokens.push(token);
    sequence.failures = 0;
    events.push(Event::Token { sequence: id, token });
    (sequence.tokens.len() >= sequence.limit).then_some(sequence.limit_reason)
}

#[cfg(test)]
mod tests;
