//! A million steps at random: requests come at any time, alone and in crowds, with prompts that begin alike; some are
//! aborted, also while a step of theirs is in flight; pages run out; steps fail. Whatever happens, each gets what it gets
//! alone, all of them end, and every page is where it should be.

mod fake;

use fake::*;
use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use zinc_engine::{Engine, Event, Options, Random, Request, Sampling, SequenceId, Share};

/// Steps of each of four tests, so that they can run side by side.
const STEPS: u32 = 250_000;
const WORLDS: u32 = 10;
const CONTEXT: u32 = 192;

/// A whole number below `n`.
fn below(random: &mut Random, n: u32) -> u32 {
    (random.unit() * n as f64) as u32
}

fn pick<T: Copy>(random: &mut Random, from: &[T]) -> T {
    from[below(random, from.len() as u32) as usize]
}

/// Requests, with what each of them gives alone.
fn requests(random: &mut Random, count: u32) -> Vec<(Request, Outcome)> {
    let trunks: Vec<Vec<u32>> = (0..3).map(|_| (0..128).map(|_| below(random, VOCABULARY)).collect()).collect();
    let request = |random: &mut Random| {
        let trunk = &trunks[below(random, 3) as usize];
        let shared = pick(random, &[0, 1, 31, 32, 33, 64, 70, 96, 128]);
        let own = pick(random, &[1, 1, 2, 5, 30]);
        let prompt: Vec<u32> = trunk[..shared].iter().copied().chain((0..own).map(|_| below(random, 3))).collect();
        let left = CONTEXT - prompt.len() as u32 + 1;
        let predict = pick(random, &[Some(1), Some(2), Some(9), Some(33), Some(60), Some(0), None]);
        let hidden_from = (below(random, 12) == 0).then(|| below(random, prompt.len() as u32));
        let logits_from = (below(random, 12) == 0).then(|| below(random, prompt.len() as u32));
        Request {
            predict: if hidden_from.is_some() { Some(0) } else { predict.map(|n: u32| n.min(left)) },
            sampling: Sampling {
                temperature: pick(random, &[0.0, 0.0, 0.9]),
                top_k: pick(random, &[20, 20, 0]),
                typical_p: pick(random, &[1.0, 1.0, 1.0, 0.9]),
                repeat_penalty: pick(random, &[1.0, 1.0, 1.0, 1.0, 1.3]),
                seed: random.next_u64(),
                ..Sampling::default()
            },
            end_tokens: if below(random, 2) == 0 { Arc::from([3, 4]) } else { Arc::from([]) },
            logits_from: logits_from.filter(|_| hidden_from.is_none()),
            hidden_from,
            salt: pick(random, &[None, None, Some([1; 16])]),
            split: (below(random, 12) == 0).then(|| below(random, prompt.len() as u32)),
            prompt,
            ..Request::default()
        }
    };
    (0..count).map(|_| request(random)).map(|r| (solo(&r, CONTEXT), r)).map(|(outcome, r)| (r, outcome)).collect()
}

/// The tokens that follow a prompt by the model's definition, without any engine.
fn by_definition(prompt: &[u32], count: usize) -> Vec<u32> {
    let mut hash = prompt.iter().fold(0, |hash, token| mix(hash, *token as u64 + 1));
    let next = |_| {
        let logits: Vec<f32> = logits_of(hash).collect();
        let token = zinc_engine::argmax(&logits).expect("numbers");
        hash = mix(hash, token as u64 + 1);
        token
    };
    (0..count).map(next).collect()
}

/// How far a request has come.
#[derive(Default)]
struct Live {
    request: usize,
    tokens: usize,
    logits: usize,
}

/// An engine and what has been asked of it.
struct World<'a> {
    engine: Engine,
    watch: Arc<Watch>,
    random: Random,
    requests: &'a [(Request, Outcome)],
    live: HashMap<SequenceId, Live>,
    events: Vec<Event>,
    ended: u32,
    aborted: u32,
    failures: u32,
    given_up: u32,
}

impl<'a> World<'a> {
    fn new(mut random: Random, requests: &'a [(Request, Outcome)], fault: usize) -> World<'a> {
        let options = Options {
            context: CONTEXT,
            rows: 1 + pick(&mut random, &[0, 3, 15, 40, 63]),
            sequences: 1 + below(&mut random, 8),
            pages: Some(CONTEXT / 32 + below(&mut random, 20)),
            in_flight: Some(1 + below(&mut random, 3).min(1) as usize),
            ..Options::default()
        };
        let watch = Arc::new(Watch::default());
        let mut engine = watched(options, &watch);
        engine.allow_stand_ins(below(&mut random, 2) == 0);
        watch.fault.store(fault, Ordering::Relaxed);
        let (live, events) = (HashMap::new(), vec![]);
        World { engine, watch, random, requests, live, events, ended: 0, aborted: 0, failures: 0, given_up: 0 }
    }

    fn chance(&mut self, one_of: u32) -> bool {
        below(&mut self.random, one_of) == 0
    }

    fn arrive(&mut self, request: usize) {
        let priority = pick(&mut self.random, &[0, 0, 0, 0, 0, -1, 1]);
        let weight = NonZeroU32::MIN.saturating_add(below(&mut self.random, 3));
        let share = Share { owner: below(&mut self.random, 4), weight, priority };
        let shared = Request { share, ..self.requests[request].0.clone() };
        let id = self.engine.submit(shared).expect("it fits");
        self.live.insert(id, Live { request, ..Live::default() });
    }

    fn abort(&mut self) {
        let mut ids: Vec<SequenceId> = self.live.keys().copied().collect();
        ids.sort();
        if ids.is_empty() {
            return;
        }
        let id = pick(&mut self.random, &ids);
        self.engine.cancel(id);
        self.aborted += 1;
        if let Some(live) = self.live.remove(&id).filter(|_| self.chance(2)) {
            // The client asks the same again.
            self.arrive(live.request);
        }
    }

    /// A step, and what has come of it.
    fn step(&mut self) {
        self.events.clear();
        let failed = self.engine.step_into(&mut self.events, &mut |_| ()).is_err();
        for event in std::mem::take(&mut self.events) {
            let (Event::Started { sequence, .. }
            | Event::Token { sequence, .. }
            | Event::Logits { sequence, .. }
            | Event::Hidden { sequence, .. }
            | Event::Finished { sequence, .. }) = event;
            let live = self.live.get_mut(&sequence).expect("nothing comes of what has ended");
            let alone = &self.requests[live.request].1;
            match event {
                Event::Started { .. } => {}
                Event::Token { token, .. } => {
                    assert_eq!(alone.tokens.get(live.tokens), Some(&token), "token {}", live.tokens);
                    live.tokens += 1;
                }
                Event::Logits { position, logits: row, .. } | Event::Hidden { position, state: row, .. } => {
                    assert_eq!(alone.logits.get(live.logits), Some(&(position, row)));
                    live.logits += 1;
                }
                Event::Finished { reason, .. } => {
                    let all = (alone.tokens.len(), alone.logits.len(), alone.end);
                    assert_eq!((live.tokens, live.logits, Some(reason)), all);
                    self.live.remove(&sequence);
                    self.ended += 1;
                }
            }
        }
        self.failures += u32::from(failed);
        if failed && self.chance(2) {
            for id in self.engine.recover() {
                self.live.remove(&id).expect("it was there");
                self.given_up += 1;
            }
            self.engine.audit().expect("the books are right");
        }
    }

    fn run(&mut self, steps: u32) {
        let most = 1 + below(&mut self.random, 24) as usize;
        let aborts = pick(&mut self.random, &[5, 40]);
        for step in 0..steps {
            if self.live.len() < most && (self.live.is_empty() || self.chance(6)) {
                let crowd = if self.chance(10) { most - self.live.len() } else { 1 };
                for _ in 0..crowd {
                    let request = below(&mut self.random, self.requests.len() as u32) as usize;
                    self.arrive(request);
                }
            }
            if self.chance(aborts) {
                self.abort();
            }
            if self.chance(2000) {
                self.engine.forget_prefixes();
            }
            self.step();
            if step % 8 == 0 {
                self.engine.audit().expect("the books are right");
            }
        }
        self.watch.fault.store(0, Ordering::Relaxed);
        let mut left = 0;
        while !self.engine.is_idle() {
            self.step();
            left += 1;
            assert!(left < 100_000, "{} requests never end", self.live.len());
        }
        assert!(self.live.is_empty(), "{} requests are lost", self.live.len());
        self.engine.audit().expect("the books are right");
        self.engine.forget_prefixes();
        assert_eq!(self.engine.pages().0, self.engine.pages().1, "nobody holds a page");
    }
}

/// Runs [`STEPS`] steps in several worlds; a failing device fails at one of `fault` calls.
fn steps(seed: u64, fault: usize) {
    let mut random = Random::new(seed);
    let requests = requests(&mut random, 60);
    for (request, alone) in requests.iter().filter(|(r, _)| r.sampling.is_argmax()) {
        assert_eq!(alone.tokens, by_definition(&request.prompt, alone.tokens.len()));
    }
    let (mut preempted, mut ended, mut aborted, mut failures, mut given_up) = (0, 0, 0, 0, 0);
    for world in 0..WORLDS {
        let mut world = World::new(Random::new(seed << 32 | world as u64), &requests, fault);
        world.run(STEPS / WORLDS);
        preempted += world.engine.preemptions();
        (ended, aborted) = (ended + world.ended, aborted + world.aborted);
        (failures, given_up) = (failures + world.failures, given_up + world.given_up);
    }
    println!("{ended} ended, {aborted} aborted, {preempted} preemptions, {failures} failures, {given_up} given up");
    assert!(ended > 1000 && aborted > 1000 && preempted > 10, "the test is too tame");
    assert!((failures > 100) == (fault > 0) && (given_up > 0) == (fault > 0) && given_up <= failures);
}

#[test]
fn two_hundred_and_fifty_thousand_steps() {
    steps(1, 0);
}

#[test]
fn two_hundred_and_fifty_thousand_others() {
    steps(2, 0);
}

#[test]
fn two_hundred_and_fifty_thousand_steps_of_a_device_that_fails() {
    steps(3, 100);
}

#[test]
fn two_hundred_and_fifty_thousand_steps_of_a_device_that_fails_often() {
    steps(4, 15);
}
