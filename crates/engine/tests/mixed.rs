//! Sequences whose tokens the host chooses, beside others whose tokens the device chooses: all get what they get alone, and
//! the device goes on with the others while the host has yet to choose.

mod fake;

use fake::*;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use zinc_engine::{Constraint, Engine, Event, Options, Request, Sampling, SequenceId};
use zinc_ir::plan::{Bucket, Tail};

const PREDICT: u32 = 60;

/// Every third token may come, and which ones depends on how many there are.
#[derive(Debug)]
struct Thirds {
    taken: usize,
    allowed: Vec<u32>,
}

impl Constraint for Thirds {
    fn allowed(&mut self) -> Option<&[u32]> {
        self.allowed = vec![0; VOCABULARY.div_ceil(32) as usize];
        let tokens = (0..VOCABULARY as usize).filter(|t| t % 3 == self.taken % 3);
        tokens.for_each(|t| self.allowed[t / 32] |= 1 << (t % 32));
        Some(&self.allowed)
    }

    fn accept(&mut self, token: u32) -> bool {
        let may = token as usize % 3 == self.taken % 3;
        self.taken += 1;
        may
    }
}

fn rule() -> Option<Box<dyn Constraint>> {
    Some(Box::new(Thirds { taken: 0, allowed: vec![] }))
}

fn drawn(seed: u64) -> Request {
    let sampling = Sampling { temperature: 1.0, top_k: 20, seed, ..Sampling::default() };
    Request { prompt: vec![seed as u32 + 1; 5], predict: Some(PREDICT), sampling, ..Request::default() }
}

fn options() -> Options {
    Options { context: 256, sequences: 8, in_flight: Some(2), ..Options::default() }
}

/// What each request gives, and how many steps had so many rows.
fn run(
    engine: &mut Engine,
    requests: Vec<(Request, Option<Box<dyn Constraint>>)>,
) -> (Vec<Outcome>, HashMap<(u32, Tail), usize>) {
    let mut submit = |(request, rule)| engine.submit_within(request, rule).unwrap();
    let ids: Vec<SequenceId> = requests.into_iter().map(&mut submit).collect();
    let (mut outcomes, mut steps) = (HashMap::new(), HashMap::new());
    while !engine.is_idle() {
        let events: Vec<Event> = engine.step(&mut |_| ()).unwrap();
        record(&mut outcomes, events);
        let ran = engine.ran().expect("a step");
        *steps.entry((ran.rows, ran.program.plan.bucket.tail)).or_insert(0) += 1;
    }
    (ids.iter().map(|id| outcomes.remove(id).unwrap()).collect(), steps)
}

fn alone(request: Request, rule: Option<Box<dyn Constraint>>) -> Outcome {
    run(&mut engine(Options { in_flight: Some(1), ..options() }), vec![(request, rule)]).0.remove(0)
}

#[test]
fn the_device_goes_on_while_the_host_chooses_for_one() {
    let watch = Arc::new(Watch::default());
    let mut engine = watched(options(), &watch);
    // Otherwise it is made beside the first steps, and they are together until it is there.
    let bucket = Bucket { tokens: 4, outputs: 4, context: 256, sequences: 4, tail: Tail::Sample(64) };
    engine.prepare(bucket, &mut |_| ()).unwrap();
    let mut requests: Vec<_> = (0..4).map(|seed| (drawn(seed), None)).collect();
    requests.push((drawn(9), rule()));
    let (outcomes, steps) = run(&mut engine, requests);
    for (i, got) in outcomes.iter().enumerate().take(4) {
        assert_eq!(*got, alone(drawn(i as u64), None), "drawn by the device");
    }
    assert_eq!(outcomes[4], alone(drawn(9), rule()), "drawn by the host, within a rule");
    // One has its token in every second step of the others. Only its own logits came.
    let mixed = Tail::Mixed { candidates: 64, logits: 1 };
    let [with, without] = [(5, mixed), (4, Tail::Sample(64))].map(|kind| steps.get(&kind).copied().unwrap_or(0));
    let half = PREDICT as usize / 2;
    assert!(with + 3 >= half && without + 3 >= half, "{steps:?}");
    let chained = watch.chained.load(Ordering::Relaxed);
    assert!(chained + 3 >= PREDICT as usize, "of {PREDICT} steps of the others {chained} did not wait for the host");
}

#[test]
fn where_the_host_chooses_for_most_nobody_skips_a_step() {
    let mut engine = engine(options());
    let mut requests: Vec<_> = (0..3).map(|seed| (drawn(seed), rule())).collect();
    requests.push((drawn(5), None));
    let (outcomes, steps) = run(&mut engine, requests);
    assert_eq!(outcomes[3], alone(drawn(5), None));
    assert_eq!(outcomes[1], alone(drawn(1), rule()));
    let together = steps.get(&(4, Tail::Mixed { candidates: 64, logits: 4 })).copied().unwrap_or(0);
    assert!(together + 3 >= PREDICT as usize, "{steps:?}");
}

#[test]
fn wanted_logits_bring_no_others() {
    let mut engine = engine(options());
    let greedy = |logits_from| Request { sampling: Sampling::default(), logits_from, ..drawn(1) };
    let (outcomes, steps) = run(&mut engine, vec![(greedy(Some(2)), None), (greedy(None), None), (drawn(3), None)]);
    assert_eq!(outcomes[0], alone(greedy(Some(2)), None));
    assert_eq!(outcomes[0].logits.len(), 5 - 2 + PREDICT as usize - 1);
    assert_eq!((&outcomes[1].tokens, &outcomes[2]), (&outcomes[0].tokens, &alone(drawn(3), None)));
    // The last steps are its own.
    assert!(steps.keys().all(|(rows, tail)| *tail != Tail::Logits || *rows == 1), "{steps:?}");
}
