//! A store of pages behind the engine: whatever it has, lacks or loses, sequences give what they give alone, and no page is lost.

mod fake;

use fake::*;
use proptest::prelude::*;
use std::collections::{HashMap, VecDeque};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use zinc_engine::{
    Constraint, Engine, Event, Finish, KeptPage, Options, PageName, PageStore, Request, Sampling, SequenceId, Share,
};

/// Pages in memory, for several engines one after the other.
#[derive(Clone, Default)]
struct Memory {
    pages: Arc<Mutex<HashMap<PageName, KeptPage>>>,
    /// One page of so many is not there when it is fetched; 0: all are.
    misses: u64,
    /// Pages come only when [`Memory::deliver`] is called.
    slow: bool,
    fetches: Arc<Mutex<VecDeque<Fetch>>>,
}

/// What has been asked for and not been delivered, and to whom it goes.
type Fetch = (VecDeque<PageName>, Sender<Vec<u8>>);

impl Memory {
    /// Reads so many pages, in the order in which they have been asked for.
    fn deliver(&self, pages: usize) {
        let mut fetches = self.fetches.lock().unwrap();
        for _ in 0..pages {
            if fetches.is_empty() {
                return;
            }
            // What nobody waits for any more is passed over.
            while let Some((names, to)) = fetches.front_mut() {
                let bytes = names.pop_front().and_then(|name| self.read(name));
                if bytes.is_some_and(|bytes| to.send(bytes).is_ok()) {
                    break;
                }
                fetches.pop_front();
            }
        }
    }

    fn read(&self, name: PageName) -> Option<Vec<u8>> {
        let lost = self.misses > 0 && mix(name[0] as u64, name[1] as u64).is_multiple_of(self.misses);
        self.pages.lock().unwrap().get(&name).filter(|_| !lost).map(|page| page.bytes.clone())
    }
}

impl PageStore for Memory {
    fn name(&self, before: Option<PageName>, tokens: &[u32]) -> PageName {
        let before = before.map_or(0, |name| u64::from_le_bytes(name[..8].try_into().unwrap()));
        let hash = tokens.iter().fold(mix(before, 1), |hash, t| mix(hash, *t as u64 + 1));
        let mut name = [0; 16];
        name[..8].copy_from_slice(&hash.to_le_bytes());
        name
    }

    fn has(&self, name: PageName) -> bool {
        self.pages.lock().unwrap().contains_key(&name)
    }

    fn has_room(&self) -> bool {
        true
    }

    fn save(&mut self, page: KeptPage) {
        assert_eq!(page.name, self.name(page.before, &page.tokens));
        assert!((page.before.is_some() || page.depth == 0) && !page.bytes.is_empty());
        self.pages.lock().unwrap().insert(page.name, page);
    }

    fn fetch(&mut self, names: Vec<PageName>) -> Receiver<Vec<u8>> {
        let (to, pages) = channel();
        self.fetches.lock().unwrap().push_back((names.into(), to));
        if !self.slow {
            self.deliver(usize::MAX);
        }
        pages
    }
}

fn keeping(options: Options, store: &Memory) -> Engine {
    let mut engine = engine(options);
    engine.keep_pages_in(Box::new(store.clone()));
    engine
}

/// Runs to the end; gives the tokens of the last prompt that need not be computed.
fn finish(engine: &mut Engine, store: &Memory, outcomes: &mut HashMap<SequenceId, Outcome>) -> u32 {
    let mut known = 0;
    while !engine.is_idle() {
        store.deliver(1);
        let events = engine.step(&mut |_| ()).unwrap();
        engine.audit().unwrap();
        known =
            events.iter().fold(known, |known, e| if let Event::Started { cached, .. } = e { *cached } else { known });
        record(outcomes, events);
    }
    while engine.has_unsaved() {
        engine.save_page();
    }
    engine.audit().unwrap();
    known
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    #[test]
    fn a_store_changes_no_answer(
        prompts in prop::collection::vec((1usize..150, 0u32..3, 1u32..50, prop::bool::weighted(0.2)), 1..8),
        pages in 8u32..30,
        misses in 0u64..4,
        in_flight in 1usize..3,
        slow in any::<bool>(),
        sequences in 1u32..4,
        forgets in 0usize..16,
    ) {
        let (pages, in_flight) = (Some(pages), Some(in_flight));
        let options = Options { context: 256, rows: 40, sequences, pages, in_flight, ..Options::default() };
        let store = Memory { misses, slow, ..Memory::default() };
        for round in 0..3 {
            let mut engine = keeping(options.clone(), &store);
            let (mut outcomes, mut expected, mut later) = (HashMap::new(), vec![], vec![]);
            for (i, (length, token, predict, cancelled)) in prompts.iter().enumerate() {
                let sampling = Sampling { temperature: 1.0, top_k: 30, seed: i as u64, ..Sampling::default() };
                // The last token tells prompts of one beginning apart.
                let mut prompt = vec![*token; *length];
                prompt.push(i as u32);
                let share = Share { priority: i as i32 % 2, ..Share::default() };
                let salt = [None, Some([i as u8 % 2; 16])][usize::from(i % 3 == 0)];
                let predict = Some(*predict);
                let request = Request { prompt, predict, sampling, share, salt, ..Request::default() };
                let id = engine.submit(request.clone()).unwrap();
                record(&mut outcomes, engine.step(&mut |_| ()).unwrap());
                engine.audit().unwrap();
                match *cancelled {
                    true if i % 2 == 0 => engine.cancel(id),
                    true => later.push(id),
                    false => expected.push((id, request)),
                }
                if i == forgets {
                    engine.forget_prefixes();
                    engine.audit().unwrap();
                }
            }
            later.into_iter().for_each(|id| engine.cancel(id));
            engine.audit().unwrap();
            finish(&mut engine, &store, &mut outcomes);
            for (id, request) in expected {
                prop_assert_eq!(&outcomes[&id], &solo(&request, engine.context()), "round {}", round);
            }
            engine.forget_prefixes();
            let (free, all) = engine.pages();
            prop_assert_eq!(free, all, "pages were lost");
        }
    }
}

#[test]
fn another_engine_takes_up_where_one_left_off() {
    let store = Memory::default();
    let options = Options { context: 256, ..Options::default() };
    let request = Request { prompt: (0..100).collect(), predict: Some(60), ..Request::default() };
    let run = |request: &Request| {
        let mut engine = keeping(options.clone(), &store);
        let id = engine.submit(request.clone()).unwrap();
        let mut outcomes = HashMap::new();
        let known = finish(&mut engine, &store, &mut outcomes);
        (known, outcomes.remove(&id).unwrap(), engine.kept_pages())
    };
    let (known, first, kept) = run(&request);
    assert_eq!((known, kept), (0, (4, 0)), "159 tokens have been run");
    let (known, again, kept) = run(&request);
    assert_eq!((known, &again, kept), (96, &first, (0, 3)), "nothing is saved twice");
    // The second turn of a conversation.
    let prompt = [&request.prompt[..], &first.tokens, &[7; 40]].concat();
    let (known, _, _) = run(&Request { prompt, predict: Some(1), ..Request::default() });
    assert_eq!(known, 128);
}

#[test]
fn sequences_of_different_salts_share_no_page() {
    let store = Memory::default();
    let options = Options { context: 256, sequences: 4, ..Options::default() };
    let salted = |salt: Option<u8>| Request { salt: salt.map(|salt| [salt; 16]), ..request(0, 100, 60) };
    let expected = solo(&salted(None), 256);
    let known = |engine: &mut Engine, salt| {
        let id = engine.submit(salted(salt)).unwrap();
        let mut outcomes = HashMap::new();
        let known = finish(engine, &store, &mut outcomes);
        assert_eq!(outcomes[&id], expected, "a salt changes no answer");
        known
    };
    let salts = [None, Some(1), Some(2)];
    let mut engine = keeping(options.clone(), &store);
    assert_eq!(salts.map(|salt| known(&mut engine, salt)), [0; 3]);
    assert_eq!(salts.map(|salt| known(&mut engine, salt)), [96; 3]);
    // From the store.
    let mut engine = keeping(options.clone(), &store);
    assert_eq!(salts.map(|salt| known(&mut engine, salt)), [96; 3]);
    assert_eq!((known(&mut engine, Some(3)), engine.kept_pages()), (0, (4, 9)));
    // Of sequences that run.
    let mut engine = keeping(options, &Memory::default());
    let began = [Some(1), Some(1), Some(2), None].map(|salt| {
        engine.submit(salted(salt)).unwrap();
        let events: Vec<Event> = (0..6).flat_map(|_| engine.step(&mut |_| ()).unwrap()).collect();
        started(&events)[0].1
    });
    assert_eq!((began, engine.load().running), ([0, 96, 0, 0], 4));
}

#[test]
fn a_lost_device_takes_its_pages_with_it() {
    let store = Memory::default();
    let options = Options { context: 256, ..Options::default() };
    let request = Request { prompt: (0..100).collect(), predict: Some(20), ..Request::default() };
    let mut engine = keeping(options, &store);
    engine.submit(request.clone()).unwrap();
    finish(&mut engine, &store, &mut HashMap::new());
    engine.forget_prefixes();
    let id = engine.submit(request.clone()).unwrap();
    engine.replace_device(&mut || Ok(fake_device()), &NoWeights, &mut |_| ()).unwrap();
    let mut outcomes = HashMap::new();
    assert_eq!(finish(&mut engine, &store, &mut outcomes), 0, "what was on its way is computed");
    assert_eq!(outcomes[&id], solo(&request, 256));
}

/// A request of so many tokens from `first` on.
fn request(first: u32, tokens: u32, predict: u32) -> Request {
    Request {
        prompt: (first..first + tokens).map(|t| t % VOCABULARY).collect(),
        predict: Some(predict),
        ..Request::default()
    }
}

/// A store with the pages of these requests, which gives them back only when it is told to.
fn store_of(requests: &[&Request], options: &Options) -> Memory {
    let store = Memory::default();
    for request in requests {
        let mut engine = keeping(options.clone(), &store);
        engine.submit((*request).clone()).unwrap();
        finish(&mut engine, &store, &mut HashMap::new());
    }
    Memory { slow: true, ..store }
}

/// The sequences that a step has begun, and how many of their tokens need not be computed.
fn started(events: &[Event]) -> Vec<(SequenceId, u32)> {
    let started = |event: &Event| match event {
        Event::Started { sequence, cached } => Some((*sequence, *cached)),
        _ => None,
    };
    events.iter().filter_map(started).collect()
}

#[test]
fn equal_prompts_load_each_page_once() {
    let options = Options { context: 256, sequences: 3, ..Options::default() };
    let request = request(0, 100, 20);
    let store = store_of(&[&request], &options);
    let mut engine = keeping(options, &store);
    let ids: Vec<SequenceId> = (0..3).map(|_| engine.submit(request.clone()).unwrap()).collect();
    let mut outcomes = HashMap::new();
    assert_eq!(finish(&mut engine, &store, &mut outcomes), 96);
    assert_eq!(engine.kept_pages(), (0, 3), "three prompts of one beginning");
    ids.iter().for_each(|id| assert_eq!(outcomes[id], solo(&request, 256)));
}

#[test]
fn where_there_is_no_room_for_a_prompt_its_beginning_is_restored() {
    let options = Options { context: 256, sequences: 2, pages: Some(8), ..Options::default() };
    let (long, other) = (request(0, 200, 5), request(20, 100, 20));
    let store = store_of(&[&long], &options);
    let mut engine = keeping(options, &store);
    let first = engine.submit(other.clone()).unwrap();
    let mut outcomes = HashMap::new();
    record(&mut outcomes, engine.step(&mut |_| ()).unwrap());
    assert_eq!(engine.load().pages_used, 4);
    let second = engine.submit(long.clone()).unwrap();
    assert_eq!(finish(&mut engine, &store, &mut outcomes), 128, "the pages that the other one has left");
    assert_eq!((engine.kept_pages().1, engine.preemptions()), (4, 0));
    assert_eq!(outcomes[&first], solo(&other, 256));
    assert_eq!(outcomes[&second], solo(&long, 256));
}

#[test]
fn prompts_restored_one_after_another_take_no_page_from_each_other() {
    let options = Options { context: 256, sequences: 1, pages: Some(12), ..Options::default() };
    let (long, prompts) = (request(20, 100, 60), [0, 30, 50].map(|first| request(first, 100, 5)));
    let store = store_of(&prompts.iter().collect::<Vec<_>>(), &options);
    let mut engine = keeping(options, &store);
    let runs = engine.submit(long.clone()).unwrap();
    let mut outcomes = HashMap::new();
    record(&mut outcomes, engine.step(&mut |_| ()).unwrap());
    let ids = prompts.each_ref().map(|prompt| engine.submit(prompt.clone()).unwrap());
    let (mut begun, mut held) = (vec![], 0);
    while !engine.is_idle() {
        let events = engine.step(&mut |_| ()).unwrap();
        engine.audit().unwrap();
        begun.extend(started(&events));
        held = held.max(if begun.is_empty() { engine.load().pages_used } else { 0 });
        record(&mut outcomes, events);
        store.deliver(10);
    }
    // Of the third prompt there is room for two pages, until the first sequence needs one more.
    assert_eq!((held, engine.kept_pages().1, engine.preemptions()), (12, 8, 0));
    assert_eq!(begun[..2], [(ids[0], 96), (ids[1], 96)]);
    assert_eq!((begun.len(), begun[2].0), (3, ids[2]));
    for (id, request) in ids.iter().zip(&prompts).chain([(&runs, &long)]) {
        assert_eq!(outcomes[id], solo(request, 256));
    }
}

#[test]
fn pages_under_way_are_in_the_books() {
    let options = Options { context: 256, ..Options::default() };
    let request = request(0, 150, 5);
    let store = store_of(&[&request], &options);
    let mut engine = keeping(options, &store);
    let id = engine.submit(request.clone()).unwrap();
    for come in 0..4 {
        // Returns though no page comes: there may be something else to do for whoever calls.
        assert_eq!(engine.step(&mut |_| ()).unwrap(), []);
        engine.audit().unwrap();
        assert_eq!((engine.load().pages_used, engine.load().waiting), (come, 1));
        store.deliver(1);
    }
    // Nothing of what has come is of use then.
    engine.forget_prefixes();
    engine.audit().unwrap();
    assert_eq!(engine.pages(), (8, 8));
    for _ in 0..2 {
        engine.step(&mut |_| ()).unwrap();
        store.deliver(1);
    }
    engine.step(&mut |_| ()).unwrap();
    assert_eq!(engine.load().pages_used, 2);
    engine.cancel(id);
    engine.audit().unwrap();
    assert!(engine.is_idle());
    assert_eq!((engine.load().pages_used, engine.load().pages_kept), (0, 2), "a beginning for the next one");
    engine.submit(request).unwrap();
    assert_eq!(finish(&mut engine, &store, &mut HashMap::new()), 128);
}

/// Allows nothing that has a number, after some tokens.
#[derive(Debug)]
struct NoNumbersAfter(usize);

impl Constraint for NoNumbersAfter {
    fn allowed(&mut self) -> Option<&[u32]> {
        const ALL: [u32; 4] = [u32::MAX; 4];
        Some(if self.0 > 0 { &ALL } else { &[] })
    }

    fn accept(&mut self, _: u32) -> bool {
        self.0 -= 1;
        true
    }
}

#[test]
fn what_a_sequence_without_numbers_has_shared_is_restored_anew() {
    let options = Options { context: 256, sequences: 2, ..Options::default() };
    let (short, long) = (request(0, 70, 20), request(0, 200, 5));
    let store = store_of(&[&long], &options);
    let mut engine = keeping(options, &store);
    let bad = engine.submit_within(short, Some(Box::new(NoNumbersAfter(5)))).unwrap();
    let mut outcomes: HashMap<SequenceId, Outcome> = HashMap::new();
    while outcomes.get(&bad).is_none_or(|outcome| outcome.tokens.is_empty()) {
        record(&mut outcomes, engine.step(&mut |_| ()).unwrap());
        store.deliver(10);
    }
    assert_eq!((engine.load().pages_used, engine.kept_pages().1), (3, 2));
    let good = engine.submit(long.clone()).unwrap();
    while outcomes[&bad].end.is_none() {
        record(&mut outcomes, engine.step(&mut |_| ()).unwrap());
        engine.audit().unwrap();
    }
    assert_eq!(outcomes[&bad].end, Some(Finish::NoNumbers));
    assert_eq!((engine.load().pages_used, engine.load().pages_kept, engine.load().waiting), (0, 0, 1));
    assert_eq!(finish(&mut engine, &store, &mut outcomes), 192);
    assert_eq!(engine.kept_pages(), (0, 2 + 6), "all of its pages are the store's");
    assert_eq!(outcomes[&good], solo(&long, 256));
}

#[test]
fn the_most_urgent_prompt_is_restored_first() {
    let options = Options { context: 256, ..Options::default() };
    let (calm, urgent) = (request(0, 100, 5), request(50, 100, 5));
    let store = store_of(&[&calm, &urgent], &options);
    let mut engine = keeping(options, &store);
    let of = |request: &Request, priority| Request { share: Share { priority, ..Share::default() }, ..request.clone() };
    let later = engine.submit(of(&calm, 1)).unwrap();
    engine.step(&mut |_| ()).unwrap();
    store.deliver(1);
    engine.step(&mut |_| ()).unwrap();
    let first = engine.submit(of(&urgent, 0)).unwrap();
    let mut begun = vec![];
    while !engine.is_idle() {
        begun.extend(started(&engine.step(&mut |_| ()).unwrap()));
        store.deliver(10);
    }
    assert_eq!(begun, [(first, 96), (later, 96)]);
    assert_eq!(engine.kept_pages().1, 6, "the page that had come for the other one still serves it");
}

/// An engine in which a sequence of 4 pages, soon of 5, runs, and two that are less urgent wait with 3
/// pages each, which have come from a store; and these two.
fn with_holders(options: Options, others: &[&Request]) -> (Engine, Memory, [SequenceId; 2]) {
    let of = |first, priority, predict| Request {
        share: Share { priority, ..Share::default() },
        ..request(first, 100, predict)
    };
    let (runs, holders) = (of(20, 0, 60), [30, 50].map(|first| of(first, 1, 5)));
    let store = store_of(&[&holders.each_ref()[..], others].concat(), &options);
    let mut engine = keeping(options, &store);
    let id = engine.submit(runs).unwrap();
    assert_eq!(started(&engine.step(&mut |_| ()).unwrap()), [(id, 0)]);
    let ids = holders.map(|holder| engine.submit(holder).unwrap());
    (engine, store, ids)
}

#[test]
fn an_urgent_prompt_is_restored_into_pages_of_those_that_wait() {
    let urgent = request(10, 250, 5);
    let options = Options { context: 256, sequences: 1, pages: Some(12), ..Options::default() };
    let (mut engine, store, _) = with_holders(options, &[&urgent]);
    while engine.load().pages_used < 10 {
        assert_eq!(started(&engine.step(&mut |_| ()).unwrap()), []);
        store.deliver(10);
    }
    let id = engine.submit(urgent.clone()).unwrap();
    let (mut begun, mut outcomes) = (vec![], HashMap::new());
    while !engine.is_idle() {
        let events = engine.step(&mut |_| ()).unwrap();
        engine.audit().unwrap();
        begun.extend(started(&events));
        record(&mut outcomes, events);
        store.deliver(10);
    }
    assert_eq!(begun[0], (id, 224), "there were two pages besides");
    assert_eq!(outcomes[&id], solo(&urgent, 256));
}

#[test]
fn nobody_gives_pages_back_that_are_not_enough() {
    let long = request(10, 250, 5);
    let options = Options { context: 256, sequences: 4, pages: Some(11), ..Options::default() };
    let (mut engine, store, ids) = with_holders(options, &[]);
    // Comes before those two, and needs more than what they and the one that runs leave.
    let first = engine.submit(long.clone()).unwrap();
    let (mut begun, mut outcomes, mut held) = (vec![], HashMap::new(), 0);
    while !engine.is_idle() {
        let events = engine.step(&mut |_| ()).unwrap();
        engine.audit().unwrap();
        begun.extend(started(&events));
        held = if begun.is_empty() { engine.load().pages_used } else { held };
        record(&mut outcomes, events);
        store.deliver(10);
    }
    assert_eq!(held, 3 + 3, "when the one that ran has ended");
    assert_eq!(begun[..2], [(first, 0), (ids[0], 96)], "only the last one's pages were needed");
    assert_eq!((engine.kept_pages().1, engine.preemptions()), (6, 0));
    assert_eq!(outcomes[&first], solo(&long, 256));
}

#[test]
fn pages_that_do_not_come_stop_nobody_else() {
    let options = Options { context: 256, sequences: 2, pages: Some(8), ..Options::default() };
    let (long, other) = (request(0, 200, 5), request(20, 200, 20));
    let store = store_of(&[&long], &options);
    let mut engine = keeping(options, &store);
    let waits = engine.submit(long.clone()).unwrap();
    for _ in 0..3 {
        assert_eq!(engine.step(&mut |_| ()).unwrap(), []);
        store.deliver(if engine.load().pages_used < 4 { 2 } else { 0 });
    }
    assert_eq!(engine.load().pages_used, 4);
    store.fetches.lock().unwrap().iter_mut().for_each(|(names, _)| names.clear());
    let runs = engine.submit(other.clone()).unwrap();
    let mut outcomes = HashMap::new();
    // The last fetch never ends.
    while outcomes.get(&runs).is_none_or(|outcome: &Outcome| outcome.end.is_none()) {
        record(&mut outcomes, engine.step(&mut |_| ()).unwrap());
        engine.audit().unwrap();
    }
    finish(&mut engine, &store, &mut outcomes);
    assert_eq!(outcomes[&runs], solo(&other, 256));
    assert_eq!(outcomes[&waits], solo(&long, 256));
}
