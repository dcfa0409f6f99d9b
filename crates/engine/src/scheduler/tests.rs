//! What sequences share while they run.

use super::*;
use crate::sampler::{Sampler, Sampling};
use crate::share::Share;
use std::sync::Arc;

const PAGE: usize = PAGE_TOKENS as usize;
const LIMITS: Limits = Limits { rows: 512, outputs: 8, hidden: 512, sequences: 8, context: 4096, candidates: 0 };

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
        salt: None,
        shared: (0, 0),
        holds: false,
        suspect: false,
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
    step_giving(scheduler, pool, |_| token)
}

/// As [`step`]; what each output is depends on its row.
fn step_giving(scheduler: &mut Scheduler, pool: &mut KvPool, token: impl Fn(usize) -> u32) -> (usize, Vec<u32>) {
    let (mut batch, mut events) = (Batch::new(), vec![]);
    assert!(scheduler.next_batch(pool, false, &mut batch));
    let output = match batch.hidden {
        true => StepOutput::Hidden(vec![0.5; batch.outputs.len()]),
        false => StepOutput::Tokens((0..batch.outputs.len()).map(token).collect()),
    };
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
fn nobody_waits_for_pages_of_another_salt() {
    let (mut scheduler, mut pool) = (Scheduler::new(LIMITS), KvPool::new(64));
    for (id, salt) in [None, Some([1; 16]), Some([2; 16]), Some([1; 16])].into_iter().enumerate() {
        scheduler.add(Sequence { salt, ..sequence(id as u32, 3, 4) });
    }
    assert_eq!(step(&mut scheduler, &mut pool, 5).1, [0; 3]);
    assert_eq!(scheduler.running.iter().map(|s| s.id.0).collect::<Vec<_>>(), [0, 1, 2]);
    // The last one has waited for those of its own.
    assert_eq!(step(&mut scheduler, &mut pool, 5).1, [3 * PAGE_TOKENS]);
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

#[test]
fn what_shares_a_page_with_a_sequence_without_numbers_shares_no_more() {
    let (mut scheduler, mut pool) = (Scheduler::new(LIMITS), KvPool::new(64));
    scheduler.add(sequence(0, 3, 20));
    step(&mut scheduler, &mut pool, 5);
    scheduler.add(sequence(1, 3, 20));
    assert_eq!(step(&mut scheduler, &mut pool, 5).1, [3 * PAGE_TOKENS]);
    step_giving(&mut scheduler, &mut pool, |row| if row == 1 { u32::MAX } else { 5 });
    assert_eq!(scheduler.sequences(), (1, 0), "the second one has ended");
    step(&mut scheduler, &mut pool, 5);
    scheduler.add(sequence(2, 3, 40));
    assert_eq!(step(&mut scheduler, &mut pool, 5).1, [0], "nor is there anything to wait for");
    while scheduler.sequences().0 > 1 {
        step(&mut scheduler, &mut pool, 5);
    }
    scheduler.audit(&pool, std::iter::empty()).expect("the books are right");
    assert_eq!(scheduler.running[0].id, SequenceId(2));
    assert!(!scheduler.running[0].suspect, "it has computed everything itself");
}

#[test]
fn outputs_are_left_for_those_that_generate() {
    let (mut scheduler, mut pool) = (Scheduler::new(LIMITS), KvPool::new(64));
    scheduler.add(sequence(0, 0, 20));
    let echo =
        Sequence { next_logits: Some(0), share: Share { priority: -1, ..Share::default() }, ..sequence(1, 2, 1) };
    step(&mut scheduler, &mut pool, 5);
    scheduler.add(echo);
    let mut batch = Batch::new();
    assert!(scheduler.next_batch(&mut pool, false, &mut batch));
    let parts: Vec<_> = batch.sequences().zip(batch.parts().map(|part| part.1)).collect();
    assert_eq!(parts, [(SequenceId(1), 7), (SequenceId(0), 1)]);
}

#[test]
fn hidden_states_have_a_limit_of_their_own() {
    let (mut scheduler, mut pool) = (Scheduler::new(LIMITS), KvPool::new(64));
    scheduler.add(Sequence { samples: false, hidden: true, next_logits: Some(0), ..sequence(0, 3, 0) });
    assert_eq!(step(&mut scheduler, &mut pool, 5).0, 3 * PAGE + 1);
    assert!(scheduler.is_idle());
}

#[test]
fn kinds_of_tails_take_turns_by_the_batches_that_are_run() {
    let (mut scheduler, mut pool) = (Scheduler::new(LIMITS), KvPool::new(64));
    scheduler.add(Sequence { samples: false, hidden: true, next_logits: Some(0), ..sequence(0, 1, 0) });
    scheduler.add(sequence(1, 0, 4));
    let mut batch = Batch::new();
    for _ in 0..3 {
        assert!(scheduler.next_batch(&mut pool, false, &mut batch));
        assert!(batch.hidden, "what was undone has had no turn");
        scheduler.undo(&batch);
    }
    assert!(scheduler.next_batch(&mut pool, false, &mut batch));
    assert!(scheduler.next_batch(&mut pool, true, &mut batch) && !batch.hidden);
}

/// The share of an owner.
fn of(owner: u32, priority: i32) -> Share {
    Share { owner, priority, ..Share::default() }
}

#[test]
fn a_long_prompt_is_not_preempted_by_what_it_costs_itself() {
    let (mut scheduler, mut pool) = (Scheduler::new(Limits { sequences: 1, ..LIMITS }), KvPool::new(64));
    scheduler.add(Sequence { share: of(1, 0), ..sequence(0, 40, 4) });
    scheduler.add(Sequence { share: of(2, 0), ..sequence(1, 0, 4) });
    step(&mut scheduler, &mut pool, 5);
    assert_eq!((scheduler.running[0].id, scheduler.preemptions()), (SequenceId(0), 0));
}

#[test]
fn one_that_waits_for_pages_holds_up_none_of_its_owner() {
    let (mut scheduler, mut pool) = (Scheduler::new(Limits { rows: 40, ..LIMITS }), KvPool::new(64));
    scheduler.add(sequence(0, 3, 4));
    step(&mut scheduler, &mut pool, 5);
    scheduler.add(sequence(1, 3, 4));
    scheduler.add(sequence(2, 0, 4));
    step(&mut scheduler, &mut pool, 5);
    assert_eq!(scheduler.running.iter().map(|s| s.id.0).collect::<Vec<_>>(), [0, 2]);
}

#[test]
fn nobody_gives_back_pages_in_vain() {
    let (mut scheduler, mut pool) = (Scheduler::new(Limits { rows: 48, ..LIMITS }), KvPool::new(8));
    scheduler.add(sequence(0, 6, 4));
    step(&mut scheduler, &mut pool, 5);
    // It waits for more pages of the first one, and comes before the next.
    let mut holds = sequence(1, 6, 4);
    scheduler.prefixes.adopt(&mut holds, &mut pool);
    scheduler.add(Sequence { holds: true, ..holds });
    let tokens = vec![9; 3 * PAGE];
    scheduler.add(Sequence { prompt: tokens.len(), limit: tokens.len() + 4, tokens, ..sequence(2, 0, 4) });
    step(&mut scheduler, &mut pool, 5);
    assert_eq!(scheduler.sequences(), (1, 2), "three pages are more than the first one leaves");
    let waiting: Vec<usize> = scheduler.queue.waiting().map(|s| s.pages.len()).collect();
    assert_eq!(waiting, [1, 0]);
    scheduler.audit(&pool, std::iter::empty()).expect("the books are right");
}

#[test]
fn a_page_that_others_have_too_is_no_room() {
    let (mut scheduler, mut pool) = (Scheduler::new(LIMITS), KvPool::new(8));
    scheduler.add(Sequence { share: of(1, 0), ..sequence(0, 6, 4) });
    step(&mut scheduler, &mut pool, 5);
    scheduler.add(Sequence { share: of(1, 2), ..sequence(1, 6, 4) });
    step(&mut scheduler, &mut pool, 5);
    assert_eq!((pool.free(), pool.idle()), (0, 0));
    let tokens = vec![9; PAGE + 8];
    scheduler.add(Sequence {
        share: of(1, 1),
        prompt: tokens.len(),
        limit: tokens.len() + 4,
        tokens,
        ..sequence(2, 0, 4)
    });
    step(&mut scheduler, &mut pool, 5);
    assert_eq!((scheduler.sequences(), scheduler.preemptions()), ((2, 1), 0), "it would be in vain");
}
