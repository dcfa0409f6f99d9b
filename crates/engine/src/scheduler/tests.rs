//! What sequences share while they run.

use super::*;
use crate::sampler::{Sampler, Sampling};
use crate::share::Share;
use std::sync::Arc;

const PAGE: usize = PAGE_TOKENS as usize;
const LIMITS: Limits = Limits { rows: 512, outputs: 8, sequences: 8, context: 512, candidates: 0 };

/// A sequence that begins with `pages` pages of the same tokens and goes on with a token of its own.
fn sequence(id: u32, pages: usize, predict: usize) -> Sequence {
    let tokens: Vec<u32> = (0..pages * PAGE).map(|t| t as u32 % 7).chain([100 + id]).collect();
    Sequence {
        id: SequenceId(id.into()),
        cached: 0,
        computed: 0,
        ahead: 0,
        ahead_row: 0,
        pages: vec![],
        sampler: Sampler::new(Sampling { temperature: 0.0, ..Sampling::default() }),
        constraint: None,
        end_tokens: Arc::from([]),
        samples: true,
        limit: tokens.len() + predict,
        limit_reason: Finish::Length,
        next_logits: None,
        hidden: false,
        split: None,
        prompt: tokens.len(),
        shared: (0, 0),
        started: false,
        by_host: false,
        failures: 0,
        share: Share::default(),
        charged: 0,
        had: 0,
        tokens,
    }
}

/// Runs a step in which every output is `token`; gives its token rows and, of the sequences that began, how many tokens
/// they have taken from others.
fn step(scheduler: &mut Scheduler, pool: &mut KvPool, token: u32) -> (usize, Vec<u32>) {
    let (mut batch, mut events) = (Batch::new(), vec![]);
    assert!(scheduler.next_batch(pool, false, &mut batch));
    let output = StepOutput::Tokens(vec![token; batch.outputs.len()]);
    scheduler.finish_batch(&batch, &output, pool, &mut events);
    let cached = |event: &Event| if let Event::Started { cached, .. } = event { Some(*cached) } else { None };
    (batch.step.tokens.len(), events.iter().filter_map(cached).collect())
}

#[test]
fn all_that_begin_with_what_is_kept_run_at_once() {
    let (mut scheduler, mut pool) = (Scheduler::new(LIMITS), KvPool::new(64));
    scheduler.add(sequence(0, 3, 1));
    step(&mut scheduler, &mut pool, 5);
    assert!(scheduler.is_idle());
    for id in 1..=6 {
        scheduler.add(sequence(id, 3, 4));
    }
    assert_eq!(step(&mut scheduler, &mut pool, 5), (6, vec![3 * PAGE_TOKENS; 6]));
    assert_eq!(scheduler.sequences(), (6, 0));
}

#[test]
fn after_forgetting_the_running_sequences_share_from_their_first_page() {
    let (mut scheduler, mut pool) = (Scheduler::new(Limits { rows: 48, ..LIMITS }), KvPool::new(64));
    scheduler.add(sequence(0, 3, 20));
    step(&mut scheduler, &mut pool, 5);
    assert_eq!(scheduler.running[0].shared.0, 1);
    scheduler.forget_prefixes(&mut pool);
    for _ in 0..3 {
        step(&mut scheduler, &mut pool, 5);
    }
    assert_eq!(scheduler.sequences(), (1, 0), "it still runs");
    scheduler.add(sequence(1, 3, 1));
    assert_eq!(step(&mut scheduler, &mut pool, 5).1, [3 * PAGE_TOKENS]);
}

#[test]
fn a_sequence_without_numbers_makes_the_others_share_anew() {
    let (mut scheduler, mut pool) = (Scheduler::new(Limits { rows: 48, ..LIMITS }), KvPool::new(64));
    scheduler.add(Sequence { tokens: vec![9], prompt: 1, limit: 3, ..sequence(0, 0, 2) });
    scheduler.add(sequence(1, 3, 20));
    step(&mut scheduler, &mut pool, 5);
    assert_eq!(scheduler.running[1].shared.0, 1);
    step(&mut scheduler, &mut pool, u32::MAX);
    assert_eq!(scheduler.sequences(), (1, 0), "the first one has ended");
    for _ in 0..2 {
        step(&mut scheduler, &mut pool, 5);
    }
    scheduler.add(sequence(2, 3, 1));
    assert_eq!(step(&mut scheduler, &mut pool, 5).1, [3 * PAGE_TOKENS]);
}
