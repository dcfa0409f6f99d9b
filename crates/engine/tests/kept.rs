//! A store of pages behind the engine: whatever it has, lacks or loses, sequences give what they give alone, and no page is lost.

mod fake;

use fake::*;
use proptest::prelude::*;
use std::collections::HashMap;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use zinc_engine::{Engine, Event, KeptPage, Options, PageName, PageStore, Request, Sampling};

/// Pages in memory, for several engines one after the other.
#[derive(Clone, Default)]
struct Memory {
    pages: Arc<Mutex<HashMap<PageName, KeptPage>>>,
    /// One page of so many is not there when it is fetched; 0: all are.
    misses: u64,
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
        assert!(page.before.is_some() == (page.depth > 0) && !page.bytes.is_empty());
        self.pages.lock().unwrap().insert(page.name, page);
    }

    fn fetch(&mut self, names: Vec<PageName>) -> Receiver<Vec<u8>> {
        let (to, pages) = channel();
        for name in names {
            let lost = self.misses > 0 && mix(name[0] as u64, name[1] as u64).is_multiple_of(self.misses);
            match self.pages.lock().unwrap().get(&name).filter(|_| !lost) {
                Some(page) => to.send(page.bytes.clone()).unwrap(),
                None => break,
            }
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
fn finish(engine: &mut Engine, outcomes: &mut HashMap<zinc_engine::SequenceId, Outcome>) -> u32 {
    let mut known = 0;
    while !engine.is_idle() {
        let events = engine.step(&mut |_| ()).unwrap();
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
    ) {
        let (pages, in_flight) = (Some(pages), Some(in_flight));
        let options = Options { context: 256, rows: 40, sequences: 3, pages, in_flight, ..Options::default() };
        let store = Memory { misses, ..Memory::default() };
        for round in 0..3 {
            let mut engine = keeping(options.clone(), &store);
            let (mut outcomes, mut expected) = (HashMap::new(), vec![]);
            for (i, (length, token, predict, cancelled)) in prompts.iter().enumerate() {
                let sampling = Sampling { temperature: 1.0, top_k: 30, seed: i as u64, ..Sampling::default() };
                // The last token tells prompts of one beginning apart.
                let mut prompt = vec![*token; *length];
                prompt.push(i as u32);
                let request = Request { prompt, predict: Some(*predict), sampling, ..Request::default() };
                let id = engine.submit(request.clone()).unwrap();
                record(&mut outcomes, engine.step(&mut |_| ()).unwrap());
                match *cancelled {
                    true => engine.cancel(id),
                    false => expected.push((id, request)),
                }
            }
            finish(&mut engine, &mut outcomes);
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
        let known = finish(&mut engine, &mut outcomes);
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
fn a_lost_device_takes_its_pages_with_it() {
    let store = Memory::default();
    let options = Options { context: 256, ..Options::default() };
    let request = Request { prompt: (0..100).collect(), predict: Some(20), ..Request::default() };
    let mut engine = keeping(options, &store);
    engine.submit(request.clone()).unwrap();
    finish(&mut engine, &mut HashMap::new());
    engine.forget_prefixes();
    let id = engine.submit(request.clone()).unwrap();
    engine.replace_device(&mut || Ok(fake_device()), &NoWeights, &mut |_| ()).unwrap();
    let mut outcomes = HashMap::new();
    assert_eq!(finish(&mut engine, &mut outcomes), 0, "what was on its way is computed");
    assert_eq!(outcomes[&id], solo(&request, 256));
}
