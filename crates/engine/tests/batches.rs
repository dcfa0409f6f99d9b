//! Sequences that join, leave and are preempted get what they get alone.

mod fake;

use fake::*;
use proptest::prelude::*;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use zinc_engine::{Engine, EngineError, Event, Finish, Options, Request, Sampling, SequenceId};
use zinc_ir::plan::PAGE_TOKENS;

fn requests() -> impl Strategy<Value = Vec<(Request, u8, bool)>> {
    // Few different tokens, so that prompts share prefixes.
    let prompt = prop_oneof![
        prop::collection::vec(0u32..2, 1..8),
        (1usize..150, 0u32..3).prop_map(|(n, t)| vec![t; n]),
        prop::collection::vec(0..VOCABULARY, 1..150),
    ];
    let top_k = prop_oneof![Just(0), 1u32..90];
    let request =
        (prompt, prop::option::weighted(0.8, 0u32..60), any::<bool>(), 0u64..5, any::<bool>(), 0u32..200, top_k);
    let request = (request, prop::option::weighted(0.3, 0u32..160));
    let request = request.prop_map(|((prompt, predict, greedy, seed, ends, from, top_k), split)| Request {
        prompt,
        predict: if (50..80).contains(&from) { Some(0) } else { predict },
        sampling: Sampling {
            temperature: if greedy { 0.0 } else { 1.0 },
            repeat_penalty: if seed == 1 { 1.3 } else { 1.0 },
            typical_p: if seed == 2 { 0.9 } else { 1.0 },
            top_k,
            top_p: 0.95,
            min_p: 0.01,
            seed,
            ..Sampling::default()
        },
        end_tokens: if ends { Arc::from([3, 4]) } else { Arc::from([]) },
        logits_from: (from < 50).then_some(from),
        hidden_from: (50..80).contains(&from).then(|| (from - 50) * 5),
        split,
        ..Request::default()
    });
    prop::collection::vec((request, 0u8..6, prop::bool::weighted(0.1)), 1..9)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn batched_sequences_give_what_they_give_alone(
        requests in requests(),
        rows in 1u32..70,
        sequences in 1u32..6,
        pages in 8u32..30,
        in_flight in 1usize..3,
    ) {
        let (context, in_flight) = (256, Some(in_flight));
        let options = Options { context, rows, sequences, pages: Some(pages), in_flight, ..Options::default() };
        let mut engine = engine(options);
        let mut outcomes = HashMap::new();
        let mut ids = vec![];
        for (request, steps, cancelled) in &requests {
            let id = engine.submit(request.clone()).unwrap();
            for _ in 0..*steps {
                record(&mut outcomes, engine.step(&mut |_| ()).unwrap());
            }
            if *cancelled {
                engine.cancel(id);
            }
            ids.push(id);
        }
        let mut steps = 0;
        while !engine.is_idle() {
            record(&mut outcomes, engine.step(&mut |_| ()).unwrap());
            steps += 1;
            prop_assert!(steps < 100_000, "sequences never end");
        }
        engine.forget_prefixes();
        let (free, all) = engine.pages();
        prop_assert_eq!(free, all, "pages were lost");
        for ((request, _, cancelled), id) in requests.iter().zip(&ids) {
            let alone = solo(request, engine.context());
            let got = outcomes.remove(id).unwrap_or_default();
            if *cancelled && got.end.is_none() {
                prop_assert!(alone.tokens.starts_with(&got.tokens));
            } else {
                prop_assert_eq!(got, alone);
            }
        }
    }
}

#[test]
fn a_full_pool_preempts_and_changes_nothing() {
    let options = Options { context: 256, sequences: 4, pages: Some(10), rows: 64, ..Options::default() };
    let mut engine = engine(options);
    let request = |t| Request { prompt: vec![t; 40], predict: Some(100), ..Request::default() };
    let ids: Vec<SequenceId> = (0..4).map(|t| engine.submit(request(t)).unwrap()).collect();
    let mut outcomes = HashMap::new();
    while !engine.is_idle() {
        record(&mut outcomes, engine.step(&mut |_| ()).unwrap());
    }
    assert!(engine.preemptions() > 0);
    for (t, id) in ids.iter().enumerate() {
        assert_eq!(outcomes[id], solo(&request(t as u32), 256));
    }
}

#[test]
fn a_second_prompt_with_the_same_beginning_runs_only_its_end() {
    let mut engine = engine(Options { context: 512, ..Options::default() });
    let mut rows_of = |prompt: Vec<u32>| {
        engine.submit(Request { prompt, predict: Some(1), ..Request::default() }).unwrap();
        let mut rows = 0;
        while !engine.is_idle() {
            let program = engine.prepare_step(&mut |_| ()).unwrap();
            rows += program.map_or(0, |p| p.plan.bucket.tokens);
            engine.step(&mut |_| ()).unwrap();
        }
        rows
    };
    let first: Vec<u32> = (0..100).map(|i| i % VOCABULARY).collect();
    assert_eq!(rows_of(first.clone()), 112, "100, rounded up");
    assert_eq!(rows_of(first), 4, "96 of 100 tokens are in full pages");
}

#[test]
fn no_step_has_tokens_from_both_sides_of_a_split() {
    let mut engine = engine(Options { context: 512, rows: 64, ..Options::default() });
    let mut steps_of = |prompt: Vec<u32>| {
        engine.submit(Request { prompt, predict: Some(3), split: Some(100), ..Request::default() }).unwrap();
        let mut steps = vec![];
        while !engine.is_idle() {
            engine.step(&mut |_| ()).unwrap();
            steps.extend(engine.ran().map(|ran| (ran.position, ran.rows)));
        }
        steps
    };
    let prompt: Vec<u32> = (0..140).map(|i| i % VOCABULARY).collect();
    assert_eq!(steps_of(prompt.clone()), [(0, 64), (64, 36), (100, 40), (140, 1), (141, 1)]);
    let again = [(96, 4), (100, 40), (140, 1), (141, 1)];
    assert_eq!(steps_of(prompt), again, "nothing behind the split is shared");
}

#[test]
fn what_does_not_fit_says_so() {
    let mut engine = engine(Options { context: 64, ..Options::default() });
    let mut error = |request: Request| engine.submit(request).unwrap_err().to_string();
    let long = Request { prompt: vec![1; 60], predict: Some(10), ..Request::default() };
    let message = error(long);
    assert!(message.contains("needs 69 tokens") && message.contains("64"), "{message}");
    assert!(error(Request::default()).contains("no tokens"));
    let foreign = Request { prompt: vec![1, VOCABULARY], ..Request::default() };
    assert!(error(foreign).contains("token 100 at position 1"));
    let full = Request { prompt: vec![1; 60], ..Request::default() };
    let outcome = solo(&full, 64);
    assert_eq!((outcome.tokens.len(), outcome.end), (5, Some(Finish::ContextFull { tokens: 64 })));
}

#[test]
fn a_page_whose_last_token_was_never_run_is_not_shared() {
    let mut engine = engine(Options { context: 256, ..Options::default() });
    let mut run = |prompt: &[u32]| {
        let request = Request { prompt: prompt.to_vec(), predict: Some(12), ..Request::default() };
        let id = engine.submit(request).unwrap();
        let mut outcomes = HashMap::new();
        while !engine.is_idle() {
            record(&mut outcomes, engine.step(&mut |_| ()).unwrap());
        }
        outcomes.remove(&id).unwrap().tokens
    };
    // 20 and 12 tokens are one full page, but nothing ever ran the last one.
    let prompt = vec![7; PAGE_TOKENS as usize - 12];
    let mut whole = prompt.clone();
    whole.extend(run(&prompt));
    whole.push(1);
    let again = run(&whole);
    let alone = solo(&Request { prompt: whole, predict: Some(12), ..Request::default() }, 256);
    assert_eq!(again, alone.tokens);
}

#[test]
fn a_program_that_cannot_be_made_ahead_is_an_error_when_it_is_needed() {
    let watch = Arc::new(Watch::default());
    let mut engine = watched(Options { context: 512, in_flight: Some(2), ..Options::default() }, &watch);
    let request = Request { prompt: vec![1; 150], predict: Some(150), ..Request::default() };
    let id = engine.submit(request.clone()).unwrap();
    watch.refuses.store(256, Ordering::Relaxed);
    let mut outcomes = HashMap::new();
    let error = loop {
        engine.wait_ahead();
        match engine.step(&mut |_| ()) {
            Ok(events) => record(&mut outcomes, events),
            Err(error) => break error.to_string(),
        }
    };
    assert!(error.contains("so much context"), "{error}");
    assert!(watch.refused.load(Ordering::Relaxed) >= 2, "ahead, and when it was needed");
    let got = outcomes[&id].tokens.len();
    assert!((105..=107).contains(&got), "{got} tokens come before the longer context is needed");
    watch.refuses.store(0, Ordering::Relaxed);
    while !engine.is_idle() {
        record(&mut outcomes, engine.step(&mut |_| ()).unwrap());
    }
    assert_eq!(outcomes[&id], solo(&request, 512));
}

#[test]
fn the_program_of_a_batch_is_there_when_its_prompts_have_been_read() {
    let options = Options { context: 128, rows: 32, sequences: 12, in_flight: Some(2), ..Options::default() };
    let mut engine = engine(options);
    for first in 0..9 {
        let request = Request { prompt: vec![first; 60], predict: Some(60), ..Request::default() };
        engine.submit(request).unwrap();
    }
    let mut generating = 0;
    while !engine.is_idle() {
        engine.wait_ahead();
        let before = engine.programs();
        let program = engine.prepare_step(&mut |_| ()).unwrap();
        let bucket = program.map(|p| p.plan.bucket);
        if bucket.is_some_and(|b| [b.tokens, b.outputs, b.sequences] == [12; 3]) {
            assert!(generating > 0 || engine.programs() == before, "the batch waited for its program");
            generating += 1;
        }
        engine.step(&mut |_| ()).unwrap();
    }
    assert!(generating > 5, "16 rows are more than the 12 sequences there can be: {generating}");
}

#[test]
fn a_program_that_cannot_be_made_ahead_does_not_keep_others_from_it() {
    let watch = Arc::new(Watch::default());
    let mut engine = watched(Options { context: 1024, rows: 32, in_flight: Some(2), ..Options::default() }, &watch);
    watch.refuses_outputs.store(true, Ordering::Relaxed);
    let request = Request { prompt: vec![1; 600], predict: Some(5), ..Request::default() };
    let id = engine.submit(request.clone()).unwrap();
    let mut outcomes = HashMap::new();
    while engine.ran().is_none_or(|ran| ran.position < 512) {
        engine.wait_ahead();
        let (first, before) = (engine.ran().is_none(), engine.programs());
        engine.prepare_step(&mut |_| ()).unwrap();
        assert!(first || engine.programs() == before, "a step of the prompt waited for its program");
        record(&mut outcomes, engine.step(&mut |_| ()).unwrap());
    }
    assert_eq!(engine.programs(), 2, "for 256 and for 1024 tokens");
    assert_eq!(watch.refused.load(Ordering::Relaxed), 1, "the one that generates is tried once");
    watch.refuses_outputs.store(false, Ordering::Relaxed);
    while !engine.is_idle() {
        record(&mut outcomes, engine.step(&mut |_| ()).unwrap());
    }
    assert_eq!(outcomes[&id], solo(&request, 1024));
}

#[test]
fn a_larger_program_stands_in_while_a_steps_own_is_made() {
    let watch = Arc::new(Watch::default());
    let options = Options { context: 128, rows: 32, sequences: 12, in_flight: Some(2), ..Options::default() };
    let mut engine = watched(options, &watch);
    engine.allow_stand_ins(true);
    let of = |i: u32| Request { prompt: vec![i; 2], predict: Some(if i < 5 { 40 } else { 100 }), ..Request::default() };
    let ids: Vec<SequenceId> = (0..12).map(|i| engine.submit(of(i)).unwrap()).collect();
    let (mut outcomes, mut stood_in, mut own, mut known) = (HashMap::new(), 0, 0, 0);
    while !engine.is_idle() {
        record(&mut outcomes, engine.step(&mut |_| ()).unwrap());
        let Some((sequences, bucket)) = engine.ran().map(|r| (r.parts.len(), r.program.plan.bucket)) else { continue };
        if sequences == 12 && [bucket.tokens, bucket.outputs, bucket.sequences] == [12; 3] {
            // From now on no other program is made.
            watch.busy.store(true, Ordering::Relaxed);
            known = engine.programs();
        }
        if known > 0 && sequences == 7 {
            own += u32::from(bucket.tokens == 8);
            stood_in += u32::from(bucket.tokens == 12);
            assert!(own == 0 || stood_in >= 10, "its own cannot be there yet");
            assert!(stood_in > 10 || engine.programs() == known, "a step waited for its program");
            watch.busy.store(stood_in < 10, Ordering::Relaxed);
        }
        if known == 0 || stood_in >= 10 {
            engine.wait_ahead();
        }
    }
    assert!(stood_in >= 10 && own > 10, "{stood_in} steps by the larger program, {own} by their own");
    for (i, id) in ids.iter().enumerate() {
        assert_eq!(outcomes[id], solo(&of(i as u32), 128));
    }
}

#[test]
fn a_larger_program_serves_for_one_that_cannot_be_made() {
    let watch = Arc::new(Watch::default());
    let options = Options { context: 128, rows: 32, sequences: 12, in_flight: Some(2), ..Options::default() };
    let mut engine = watched(options, &watch);
    engine.allow_stand_ins(true);
    let predict = |i: u32| Some([20, 40, 60, 100][(i.min(9) / 3) as usize]);
    let of = |i: u32| Request { prompt: vec![i; 2], predict: predict(i), ..Request::default() };
    let ids: Vec<SequenceId> = (0..10).map(|i| engine.submit(of(i)).unwrap()).collect();
    let (mut outcomes, mut known, mut alone) = (HashMap::new(), 0, 0);
    while !engine.is_idle() {
        engine.wait_ahead();
        record(&mut outcomes, engine.step(&mut |_| ()).expect("there is a program that serves"));
        let Some((sequences, bucket)) = engine.ran().map(|r| (r.parts.len(), r.program.plan.bucket)) else { continue };
        if known == 0 && [bucket.tokens, bucket.outputs, bucket.sequences] == [12; 3] {
            // There is no memory for more of them.
            watch.refuses_outputs.store(true, Ordering::Relaxed);
            known = engine.programs();
        }
        alone += u32::from(sequences == 1 && bucket.tokens == 12);
    }
    assert!(alone > 10, "more than eight times its rows: {alone}");
    assert_eq!(engine.programs(), known);
    // For 8 and 4 sequences ahead, for one when it is needed: each is tried once.
    assert_eq!(watch.refused.load(Ordering::Relaxed), 3);
    for (i, id) in ids.iter().enumerate() {
        assert_eq!(outcomes[id], solo(&of(i as u32), 128));
    }
}

/// All outcomes of some requests, submitted at once.
fn outcomes(engine: &mut Engine, requests: &[Request]) -> Vec<Outcome> {
    let ids: Vec<SequenceId> = requests.iter().map(|r| engine.submit(r.clone()).unwrap()).collect();
    let mut outcomes = HashMap::new();
    let mut failures = 0;
    while !engine.is_idle() {
        match engine.step(&mut |_| ()) {
            Ok(events) => record(&mut outcomes, events),
            Err(_) => failures += 1,
        }
        assert!(failures < 10_000, "nothing gets done");
    }
    ids.iter().map(|id| outcomes.remove(id).unwrap()).collect()
}

#[test]
fn hidden_states_come_beside_others_and_alone() {
    let mut engine = engine(Options { context: 256, rows: 16, sequences: 4, ..Options::default() });
    assert_eq!(engine.width(), 32);
    let words = Request { prompt: vec![5; 20], predict: Some(100), ..Request::default() };
    let states = Request { prompt: vec![7; 60], predict: Some(0), hidden_from: Some(3), ..Request::default() };
    for wrong in [
        Request { predict: None, ..states.clone() },
        Request { predict: Some(1), ..states.clone() },
        Request { logits_from: Some(0), ..states.clone() },
    ] {
        assert!(matches!(engine.submit(wrong), Err(EngineError::HiddenOnly)));
    }
    let ids = [&words, &states, &words, &states].map(|r| engine.submit(r.clone()).unwrap());
    let (mut outcomes, mut ended) = (HashMap::new(), vec![]);
    while !engine.is_idle() {
        let events = engine.step(&mut |_| ()).unwrap();
        ended.extend(events.iter().filter_map(|e| match e {
            Event::Finished { sequence, .. } => Some(*sequence),
            _ => None,
        }));
        record(&mut outcomes, events);
    }
    for (id, request) in ids.iter().zip([&words, &states, &words, &states]) {
        assert_eq!(outcomes[id], solo(request, 256));
    }
    let positions: Vec<u32> = outcomes[&ids[1]].logits.iter().map(|(p, _)| *p).collect();
    assert_eq!(positions, (3..60).collect::<Vec<u32>>());
    assert!(ended[..2].contains(&ids[1]) && ended[..2].contains(&ids[3]), "they do not wait for what others generate");
}

fn sampled(seed: u64, prompt: u32, predict: u32) -> Request {
    let sampling = Sampling { temperature: 0.9, top_k: 20, top_p: 0.9, min_p: 0.02, seed, ..Sampling::default() };
    Request { prompt: vec![prompt; 5], predict: Some(predict), sampling, ..Request::default() }
}

#[test]
fn steps_are_handed_over_before_the_last_ones_result_is_read() {
    let requests = [
        Request { prompt: vec![3; 40], predict: Some(70), ..Request::default() },
        sampled(5, 1, 50),
        sampled(6, 2, 30),
    ];
    let watch = Arc::new(Watch::default());
    let options = |in_flight| Options { context: 256, sequences: 3, in_flight: Some(in_flight), ..Options::default() };
    let chained = outcomes(&mut watched(options(2), &watch), &requests);
    // Of 70 steps after the prompt one at each change of the bucket waits for its plan.
    let count = watch.chained.swap(0, Ordering::Relaxed);
    assert!((60..70).contains(&count), "{count} chained steps");
    assert_eq!(outcomes(&mut watched(options(1), &watch), &requests), chained);
    assert_eq!(watch.chained.load(Ordering::Relaxed), 0);
    assert_eq!(chained[1], solo(&requests[1], 256));
}

#[test]
fn a_sampler_on_the_host_draws_what_the_device_draws() {
    let (device, greedy) = (sampled(9, 4, 60), Request { prompt: vec![8; 3], predict: Some(60), ..Request::default() });
    // Beside a sequence that wants its logits, every sequence of the batch is sampled on the host.
    let logits = Request { logits_from: Some(0), ..greedy.clone() };
    let options = Options { context: 128, sequences: 2, in_flight: Some(2), ..Options::default() };
    let on_host = outcomes(&mut engine(options.clone()), &[device.clone(), logits]);
    let on_device = outcomes(&mut engine(options), &[device, greedy]);
    assert_eq!(on_host[0], on_device[0]);
    assert_eq!(on_host[1].tokens, on_device[1].tokens);
}

#[test]
fn a_step_that_failed_can_be_tried_again() {
    let requests = [
        Request { prompt: vec![3; 70], predict: Some(40), ..Request::default() },
        sampled(5, 1, 50),
        Request { sampling: Sampling { temperature: 0.8, seed: 3, ..Sampling::default() }, ..sampled(6, 2, 30) },
    ];
    for in_flight in [1, 2] {
        for fault in [3, 4, 5, 7, 16] {
            let watch = Arc::new(Watch::default());
            let options =
                Options { context: 256, rows: 32, sequences: 3, in_flight: Some(in_flight), ..Options::default() };
            let mut engine = watched(options, &watch);
            watch.fault.store(fault, Ordering::Relaxed);
            let got = outcomes(&mut engine, &requests);
            for (got, request) in got.iter().zip(&requests) {
                assert_eq!(*got, solo(request, 256), "fault {fault}, {in_flight} in flight");
            }
            engine.forget_prefixes();
            assert_eq!(engine.pages().0, engine.pages().1, "pages were lost");
        }
    }
}

/// Allows tokens that are 1 above the last one, and then the end.
#[derive(Debug)]
struct Rising {
    last: u32,
    words: [u32; 4],
}

impl zinc_engine::Constraint for Rising {
    fn allowed(&mut self) -> Option<&[u32]> {
        let next = if self.last < 20 { self.last + 1 } else { 3 };
        self.words = [0; 4];
        self.words[next as usize / 32] = 1 << (next % 32);
        (self.last != 30).then_some(&self.words)
    }

    fn accept(&mut self, token: u32) -> bool {
        let follows = token == self.last + 1;
        self.last = token;
        follows
    }
}

#[test]
fn a_constraint_decides_what_may_come() {
    let options = Options { context: 256, sequences: 3, rows: 16, pages: Some(8), ..Options::default() };
    let mut engine = engine(options);
    let request = |t: u32, temperature| Request {
        prompt: vec![t; 40],
        sampling: Sampling { temperature, top_k: 20, seed: 1, ..Sampling::default() },
        end_tokens: Arc::from([3]),
        predict: Some(30),
        ..Request::default()
    };
    let rising = |last| -> Option<Box<dyn zinc_engine::Constraint>> { Some(Box::new(Rising { last, words: [0; 4] })) };
    let free = engine.submit(request(1, 1.0)).unwrap();
    let held = engine.submit_within(request(2, 1.0), rising(9)).unwrap();
    let stuck = engine.submit_within(request(3, 0.0), rising(30)).unwrap();
    let mut outcomes = HashMap::new();
    while !engine.is_idle() {
        record(&mut outcomes, engine.step(&mut |_| ()).unwrap());
    }
    assert_eq!(outcomes[&free], solo(&request(1, 1.0), engine.context()), "others are not touched");
    assert_eq!(outcomes[&held].tokens, (10..=20).collect::<Vec<u32>>());
    assert_eq!(outcomes[&held].end, Some(Finish::EndToken(3)));
    assert_eq!((outcomes[&stuck].tokens.len(), outcomes[&stuck].end), (0, Some(Finish::NoneAllowed)));
    engine.forget_prefixes();
    assert_eq!(engine.pages(), (8, 8));
}

#[test]
fn a_beginning_that_is_being_computed_is_computed_once() {
    let options = Options { context: 256, sequences: 4, rows: 48, ..Options::default() };
    let mut engine = engine(options);
    // 100 tokens in common, three pages of them full.
    let request = |last: u32, logits_from| {
        let prompt = (0..100).map(|t| t % 7).chain([last; 8]).collect();
        Request { prompt, predict: Some(20), logits_from, ..Request::default() }
    };
    let all: Vec<Request> = (10..14).map(|t| request(t, None)).chain([request(10, Some(40))]).collect();
    let ids: Vec<SequenceId> = all.iter().map(|r| engine.submit(r.clone()).unwrap()).collect();
    let (mut outcomes, mut cached) = (HashMap::new(), HashMap::new());
    while !engine.is_idle() {
        let events = engine.step(&mut |_| ()).unwrap();
        cached.extend(events.iter().filter_map(|e| match e {
            Event::Started { sequence, cached } => Some((*sequence, *cached)),
            _ => None,
        }));
        record(&mut outcomes, events);
    }
    // Of the last one all logits from token 40 on are wanted, so one page is all it can take.
    assert_eq!(ids.iter().map(|id| cached[id]).collect::<Vec<_>>(), [0, 96, 96, 96, 32]);
    for (request, id) in all.iter().zip(&ids) {
        assert_eq!(outcomes[id], solo(request, engine.context()));
    }
    engine.forget_prefixes();
    let (free, pages) = engine.pages();
    assert_eq!(free, pages);
}
