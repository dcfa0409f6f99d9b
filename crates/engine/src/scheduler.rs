//! The scheduler: which rows run next.
//!
//! ```text
//! waiting ─admit─► running ─next_batch─► Batch ─device─► StepOutput ─finish_batch─► events
//!    ▲                │
//!    └───preempt──────┘   pages given back; the tokens so far are run again later
//! ```
//!
//! Sequences run in order of arrival. Each step gives every generating sequence its one row first, then fills up to
//! the row limit with pieces of prompts, so a long prompt delays the others by no more than a full step. When pages
//! run out, the youngest sequence gives back all of its pages and waits; the oldest one always proceeds, so every
//! sequence ends. Preempting drops K and V, never tokens or sampling state: its output is the same.
//!
//! Owns no clock, no channel and no device.

use crate::bucket::Limits;
use crate::pool::KvPool;
use crate::prefix::PrefixCache;
use crate::sequence::{Event, Finish, Sequence, SequenceId};
use std::collections::VecDeque;
use zinc_ir::plan::{Bucket, PAGE_TOKENS, Step, StepOutput, Tail};

/// One step's work; built once, never edited.
#[derive(Clone, Debug)]
pub(crate) struct Batch {
    /// Inputs for the device.
    pub(crate) step: Step,
    /// The plan sizes it needs.
    pub(crate) bucket: Bucket,
    /// Sequences in order of their page-table rows, and how many token rows each has.
    pub(crate) parts: Vec<(SequenceId, u32)>,
    /// For each output row: its sequence's place in `parts`, and the position of the row's token.
    pub(crate) outputs: Vec<(usize, u32)>,
}

/// Sequences waiting and running.
#[derive(Debug)]
pub(crate) struct Scheduler {
    limits: Limits,
    waiting: VecDeque<Sequence>,
    running: Vec<Sequence>,
    prefixes: PrefixCache,
    preemptions: u64,
}

impl Scheduler {
    /// An idle scheduler. `limits.outputs` must be at least 1.
    pub(crate) fn new(limits: Limits) -> Scheduler {
        Scheduler {
            limits,
            waiting: VecDeque::new(),
            running: vec![],
            prefixes: PrefixCache::default(),
            preemptions: 0,
        }
    }

    /// Puts a sequence at the end of the queue. Its limit must fit the pool.
    pub(crate) fn add(&mut self, sequence: Sequence) {
        self.waiting.push_back(sequence);
    }

    /// Is there nothing left to do?
    pub(crate) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty()
    }

    /// How often a sequence had to give its pages back.
    pub(crate) fn preemptions(&self) -> u64 {
        self.preemptions
    }

    /// Drops a sequence; unknown ids (it may just have ended) are fine.
    pub(crate) fn cancel(&mut self, id: SequenceId, pool: &mut KvPool) {
        self.waiting.retain(|s| s.id != id);
        if let Some(i) = self.running.iter().position(|s| s.id == id) {
            let sequence = self.running.remove(i);
            self.prefixes.keep(sequence, pool);
        }
    }

    /// Forgets the K and V kept from sequences that have ended.
    pub(crate) fn forget_prefixes(&mut self, pool: &mut KvPool) {
        self.prefixes.clear(pool);
    }

    /// The next step's work; `None` when there is nothing to do.
    pub(crate) fn next_batch(&mut self, pool: &mut KvPool) -> Option<Batch> {
        self.admit(pool);
        let mut rows_left = self.limits.rows as usize;
        let mut outputs_left = self.limits.outputs as usize;
        // Rows kept back for sequences that generate, so that prompts before them in line do not take all.
        let mut reserved = self.running.iter().filter(|s| s.pending() == 1).count();
        let mut chosen: Vec<usize> = vec![];
        for i in 0.. {
            let Some(sequence) = self.running.get(i) else { break };
            let room = if sequence.pending() == 1 {
                reserved -= 1;
                rows_left
            } else {
                rows_left.saturating_sub(reserved)
            };
            let rows = sequence.rows_within(room, outputs_left);
            let end = sequence.cached + rows;
            outputs_left -= (sequence.cached..end).filter(|p| sequence.wants_output(*p)).count();
            rows_left -= rows;
            if rows > 0 && !self.grow(i, end, pool) {
                break;
            }
            chosen.push(rows);
        }
        self.batch(&chosen)
    }

    /// Moves waiting sequences to the running ones while their tokens so far have room.
    fn admit(&mut self, pool: &mut KvPool) {
        let claim = |s: &Sequence| KvPool::pages_for(s.tokens.len()).saturating_sub(s.pages.len());
        let mut promised: usize = self.running.iter().map(claim).sum();
        while self.running.len() < self.limits.sequences as usize {
            let Some(next) = self.waiting.front_mut() else { break };
            if next.pages.is_empty() {
                self.prefixes.adopt(next, pool);
            }
            promised += claim(next);
            if promised > pool.free() + self.prefixes.evictable(pool) && !self.running.is_empty() {
                release_pages(next, pool);
                break;
            }
            self.running.extend(self.waiting.pop_front());
        }
    }

    /// Gives running sequence `i` pages for `tokens` tokens, preempting younger ones if need be. False if it was the
    /// youngest itself and had to go.
    fn grow(&mut self, i: usize, tokens: usize, pool: &mut KvPool) -> bool {
        while self.running[i].pages.len() < KvPool::pages_for(tokens) {
            if let Some(page) = pool.alloc() {
                self.running[i].pages.push(page);
            } else if !self.prefixes.evict(pool) {
                let youngest = self.running.len() - 1;
                self.preempt_youngest(pool);
                if youngest == i {
                    return false;
                }
            }
        }
        true
    }

    fn preempt_youngest(&mut self, pool: &mut KvPool) {
        if let Some(mut sequence) = self.running.pop() {
            release_pages(&mut sequence, pool);
            self.waiting.push_front(sequence);
            self.preemptions += 1;
        }
    }

    /// Builds the batch of the first `rows[i]` pending tokens of each running sequence.
    fn batch(&self, rows: &[usize]) -> Option<Batch> {
        let mut step = Step::default();
        let (mut parts, mut outputs) = (vec![], vec![]);
        let mut tail = Tail::Greedy;
        let mut context = 0;
        for (sequence, &rows) in self.running.iter().zip(rows).filter(|(_, rows)| **rows > 0) {
            let part = parts.len();
            for position in sequence.cached..sequence.cached + rows {
                let (page, offset) = (position / PAGE_TOKENS as usize, position % PAGE_TOKENS as usize);
                if sequence.wants_output(position) {
                    step.outputs.push(step.tokens.len() as u32);
                    outputs.push((part, position as u32));
                    tail = larger(tail, sequence.tail(self.limits.candidates));
                }
                step.tokens.push(sequence.tokens[position]);
                step.positions.push(position as u32);
                step.sequence.push(part as u32);
                step.slots.push(sequence.pages[page].number() * PAGE_TOKENS + offset as u32);
            }
            let end = sequence.cached + rows;
            let used = &sequence.pages[..KvPool::pages_for(end)];
            step.pages.push(used.iter().map(|p| p.number()).collect());
            context = context.max(end as u32);
            parts.push((sequence.id, rows as u32));
        }
        if parts.is_empty() {
            return None;
        }
        if outputs.is_empty() {
            tail = Tail::Logits; // one plan for "no outputs", not two
        }
        let sizes = [step.tokens.len(), outputs.len(), parts.len()].map(|n| n as u32);
        let bucket = self.limits.bucket(sizes[0], sizes[1], sizes[2], context, tail);
        Some(Batch { step, bucket, parts, outputs })
    }

    /// Takes in what the device computed for a batch: samples, and lets sequences that have ended go.
    pub(crate) fn finish_batch(&mut self, batch: &Batch, output: StepOutput, pool: &mut KvPool) -> Vec<Event> {
        let mut events = vec![];
        for (part, &(id, rows)) in batch.parts.iter().enumerate() {
            let Some(i) = self.running.iter().position(|s| s.id == id) else { continue };
            let sequence = &mut self.running[i];
            sequence.cached += rows as usize;
            let mine = batch.outputs.iter().enumerate().filter(|(_, (p, _))| *p == part);
            let mut ended = None;
            for (row, &(_, position)) in mine {
                ended = ended.or(take_output(sequence, &output, row, batch.outputs.len(), position, &mut events));
            }
            if !sequence.samples && sequence.pending() == 0 {
                ended = ended.or(Some(Finish::Length));
            }
            if let Some(reason) = ended {
                let mut sequence = self.running.remove(i);
                if reason == Finish::NoNumbers {
                    release_pages(&mut sequence, pool);
                }
                // What it computed stays at hand for a later one that begins the same.
                self.prefixes.keep(sequence, pool);
                events.push(Event::Finished { sequence: id, reason });
            }
        }
        events
    }
}

/// The tail that serves both: logits serve everything, the best candidates also the greedy.
fn larger(a: Tail, b: Tail) -> Tail {
    match (a, b) {
        (Tail::Logits, _) | (_, Tail::Logits) => Tail::Logits,
        (Tail::Greedy, other) | (other, _) => other,
    }
}

/// Gives all pages back; the sequence starts over when it runs again.
fn release_pages(sequence: &mut Sequence, pool: &mut KvPool) {
    sequence.cached = 0;
    for page in sequence.pages.drain(..) {
        pool.release(page);
    }
}

/// Handles one output row of a sequence; gives the reason if that ends it.
fn take_output(
    sequence: &mut Sequence,
    output: &StepOutput,
    row: usize,
    rows: usize,
    position: u32,
    events: &mut Vec<Event>,
) -> Option<Finish> {
    let id = sequence.id;
    let is_last = sequence.samples && position as usize + 1 == sequence.tokens.len();
    let token = match output {
        StepOutput::Tokens(tokens) => tokens.get(row).copied().filter(|t| *t != u32::MAX),
        StepOutput::Best { k, tokens, logits } => {
            let mine = row * k..(row + 1) * k;
            sequence.sampler.sample_best(&tokens[mine.clone()], &logits[mine])
        }
        StepOutput::Logits(logits) => {
            let width = logits.len() / rows;
            let logits = &logits[row * width..][..width];
            if sequence.next_logits.is_some_and(|next| position as usize >= next) {
                events.push(Event::Logits { sequence: id, position, logits: logits.to_vec() });
                sequence.next_logits = Some(position as usize + 1);
            }
            if !is_last {
                return None;
            }
            sequence.sampler.sample(logits, &sequence.tokens)
        }
        StepOutput::None => None,
    };
    let Some(token) = token else { return Some(Finish::NoNumbers) };
    if sequence.end_tokens.contains(&token) {
        return Some(Finish::EndToken(token));
    }
    sequence.tokens.push(token);
    events.push(Event::Token { sequence: id, token });
    (sequence.tokens.len() >= sequence.limit).then_some(sequence.limit_reason)
}
