//! Who gets how much: owners of one priority share by weight however many clients they have, what is urgent overtakes, and
//! nobody waits for ever.

mod fake;

use fake::*;
use std::collections::HashMap;
use std::num::NonZeroU32;
use zinc_engine::{Engine, Event, Options, Request, SequenceId, Share};

/// An owner whose clients ask for the next answer when they have one.
#[derive(Clone, Copy)]
struct Owner {
    share: Share,
    clients: u32,
    /// Tokens of a prompt and of an answer.
    sizes: (usize, u32),
}

fn share(owner: u32, weight: u32, priority: i32) -> Share {
    Share { owner, weight: NonZeroU32::new(weight).expect("a weight"), priority }
}

/// Asks for an answer to a prompt that nobody else has.
fn ask(engine: &mut Engine, owner: &Owner, number: &mut u32) -> SequenceId {
    *number += 1;
    let (prompt, answer) = owner.sizes;
    // The first tokens say which one it is.
    let digits = (0..4).map(|i| *number / VOCABULARY.pow(i) % VOCABULARY);
    let prompt = digits.chain(std::iter::repeat(1)).take(prompt).collect();
    let request = Request { prompt, predict: Some(answer), share: owner.share, ..Request::default() };
    engine.submit(request).expect("it fits")
}

/// Lets all owners' clients ask for so many steps; gives the tokens that each owner was given, of prompts and of answers.
fn tokens(options: Options, owners: &[Owner], steps: usize) -> Vec<u64> {
    let mut engine = engine(options);
    let (mut number, mut events, mut asked) = (0, vec![], HashMap::new());
    let mut given = vec![0; owners.len()];
    for (i, owner) in owners.iter().enumerate() {
        for _ in 0..owner.clients {
            asked.insert(ask(&mut engine, owner, &mut number), i);
        }
    }
    for _ in 0..steps {
        engine.step_into(&mut events, &mut |_| ()).expect("a step");
        for event in events.drain(..) {
            match event {
                Event::Started { sequence, cached } => {
                    let owner = asked[&sequence];
                    given[owner] += owners[owner].sizes.0 as u64 - u64::from(cached);
                }
                Event::Token { sequence, .. } => given[asked[&sequence]] += 1,
                Event::Finished { sequence, .. } => {
                    let owner = asked.remove(&sequence).expect("it was asked for");
                    asked.insert(ask(&mut engine, &owners[owner], &mut number), owner);
                }
                Event::Logits { .. } | Event::Hidden { .. } => {}
            }
        }
    }
    engine.audit().expect("the books are right");
    given
}

fn options(pages: u32) -> Options {
    Options { context: 512, rows: 64, sequences: 8, pages: Some(pages), ..Options::default() }
}

#[test]
fn an_owner_with_ten_times_the_clients_gets_no_more_tokens() {
    let of = |owner, clients, sizes| Owner { share: share(owner, 1, 0), clients, sizes };
    for (sizes, pages) in [(((20, 60), (20, 60)), 128), (((150, 10), (10, 100)), 128), (((40, 80), (40, 80)), 20)] {
        let given = tokens(options(pages), &[of(1, 80, sizes.0), of(2, 8, sizes.1)], 8000);
        println!("{sizes:?}, {pages} pages: {given:?}");
        let (least, most) = (given[0].min(given[1]), given[0].max(given[1]));
        assert!(most as f64 / least as f64 <= 1.1, "{sizes:?}, {pages} pages: {given:?}");
    }
}

#[test]
fn twice_the_weight_gives_twice_the_tokens() {
    let of = |owner, weight| Owner { share: share(owner, weight, 0), clients: 20, sizes: (30, 50) };
    let given = tokens(options(128), &[of(1, 1), of(2, 2), of(3, 1)], 8000);
    println!("{given:?}");
    let ratios = [given[1] as f64 / given[0] as f64, given[1] as f64 / given[2] as f64];
    assert!(ratios.iter().all(|r| (1.9..2.1).contains(r)), "{given:?}");
}

/// How many steps it takes until a request runs that comes when all places are taken by others that go on and on.
fn steps_until_it_starts(others: Share, share: Share) -> usize {
    let mut engine = engine(Options { context: 4096, rows: 64, sequences: 4, ..Options::default() });
    let mut number = 0;
    let long = Owner { share: others, clients: 8, sizes: (10, 4000) };
    for _ in 0..long.clients {
        ask(&mut engine, &long, &mut number);
    }
    for _ in 0..20 {
        engine.step(&mut |_| ()).expect("a step");
    }
    let id = ask(&mut engine, &Owner { share, clients: 1, sizes: (10, 10) }, &mut number);
    for step in 1..4000 {
        let events = engine.step(&mut |_| ()).expect("a step");
        if events.iter().any(|e| matches!(e, Event::Started { sequence, .. } if *sequence == id)) {
            return step;
        }
    }
    panic!("it does not start");
}

#[test]
fn what_is_urgent_overtakes() {
    assert!(steps_until_it_starts(share(1, 1, 0), share(1, 1, -1)) <= 3, "even of the same owner");
    assert!(steps_until_it_starts(share(1, 1, 5), share(2, 1, 4)) <= 3);
}

#[test]
fn nobody_waits_for_long_answers_of_another_owner() {
    let steps = steps_until_it_starts(share(1, 1, 0), share(2, 1, 0));
    // Four places, so it has 1024 tokens less than the other owner after a quarter as many steps.
    assert!((200..300).contains(&steps), "{steps}");
}

#[test]
fn who_was_away_has_saved_nothing() {
    let mut engine = engine(options(128));
    let mut number = 0;
    let mut first = vec![];
    let busy = Owner { share: share(1, 1, 0), clients: 1, sizes: (10, 40) };
    let back = Owner { share: share(2, 1, 0), ..busy };
    // The second owner is there for a moment, then away while the first one has thousands of tokens.
    ask(&mut engine, &back, &mut number);
    for _ in 0..100 {
        ask(&mut engine, &busy, &mut number);
    }
    for _ in 0..400 {
        engine.step(&mut |_| ()).expect("a step");
    }
    let ids: Vec<SequenceId> = (0..40).map(|_| ask(&mut engine, &back, &mut number)).collect();
    while !engine.is_idle() {
        for event in engine.step(&mut |_| ()).expect("a step") {
            if let Event::Started { sequence, .. } = event {
                first.push(ids.contains(&sequence));
            }
        }
    }
    // They take turns as soon as it is back.
    let second = first[..20].iter().filter(|second| **second).count();
    assert!((8..=13).contains(&second), "{second} of the first 20");
}

#[test]
fn the_least_urgent_gives_its_pages_back_first() {
    let mut engine = engine(Options { context: 256, rows: 64, sequences: 4, pages: Some(10), ..Options::default() });
    let mut number = 0;
    let of = |priority| Owner { share: share(1, 1, priority), clients: 1, sizes: (60, 150) };
    let ids = [3, 0, 1].map(|priority| ask(&mut engine, &of(priority), &mut number));
    let mut ended = vec![];
    while !engine.is_idle() {
        for event in engine.step(&mut |_| ()).expect("a step") {
            if let Event::Finished { sequence, .. } = event {
                ended.push(sequence);
            }
        }
    }
    assert!(engine.preemptions() > 0);
    assert_eq!(ended, [ids[1], ids[2], ids[0]]);
}

#[test]
fn a_short_prompt_does_not_wait_for_a_long_one() {
    let mut engine = engine(Options { context: 4096, rows: 64, sequences: 4, ..Options::default() });
    let mut number = 0;
    let of = |prompt| Owner { share: Share::default(), clients: 1, sizes: (prompt, 4) };
    let long = ask(&mut engine, &of(3000), &mut number);
    engine.step(&mut |_| ()).expect("a step");
    let short = ask(&mut engine, &of(40), &mut number);
    let mut first = HashMap::new();
    for step in 1.. {
        for event in engine.step(&mut |_| ()).expect("a step") {
            if let Event::Token { sequence, .. } = event {
                first.entry(sequence).or_insert(step);
            }
        }
        if engine.is_idle() {
            break;
        }
    }
    // 16 of 64 rows are the short one's, and the long one has all of the others.
    assert_eq!(first[&short], 3);
    assert_eq!(first[&long], (3000_usize - 64 + 40 + 4).div_ceil(64));
}
