//! The engine's answers do not depend on how many steps are in flight, or on who draws the tokens.

mod support;

use std::collections::HashMap;
use zinc_conformance::{Fixture, InterpretedDevice, gpu_caps};
use zinc_cpu::CpuDevice;
use zinc_engine::{Engine, Event, Finish, Options, Request, Sampling};
use zinc_ir::device::Device;

/// Tokens and end of each request.
type Answers = Vec<(Vec<u32>, Option<Finish>)>;

fn answers(device: Box<dyn Device>, in_flight: usize, requests: &[Request]) -> Answers {
    let f = Fixture::open("arch/llama");
    let options = Options { context: 512, rows: 8, sequences: 3, in_flight: Some(in_flight), ..Options::default() };
    let mut engine = Engine::new(device, f.graph, &f.weights, options, &mut |_| ()).expect("the model loads");
    let ids: Vec<_> = requests.iter().map(|r| engine.submit(r.clone()).expect("a request")).collect();
    let mut got: HashMap<_, (Vec<u32>, Option<Finish>)> = HashMap::new();
    while !engine.is_idle() {
        for event in engine.step(&mut |_| ()).expect("a step") {
            match event {
                Event::Token { sequence, token } => got.entry(sequence).or_default().0.push(token),
                Event::Finished { sequence, reason } => got.entry(sequence).or_default().1 = Some(reason),
                Event::Started { .. } | Event::Logits { .. } | Event::Hidden { .. } => {}
            }
        }
    }
    ids.iter().map(|id| got.remove(id).expect("an answer")).collect()
}

fn requests(tokens: u32) -> Vec<Request> {
    let sampled =
        |seed| Sampling { temperature: 1.1, top_k: 40, top_p: 0.95, min_p: 0.01, seed, ..Sampling::default() };
    let request = |i: u32| Request {
        prompt: (0..3 + 5 * i).map(|t| (t * 37 + i) % 512).collect(),
        predict: Some(tokens + 3 * i),
        sampling: if i == 1 { Sampling::default() } else { sampled(i as u64) },
        // An eighth of the vocabulary: sampled answers end at some time nobody has planned for.
        end_tokens: if i == 2 { (0..512).step_by(8).collect() } else { [].into() },
        ..Request::default()
    };
    (0..4).map(request).collect()
}

/// One step at a time, two at a time, and sampled on the host, since logits are asked for.
fn check(device: &dyn Fn() -> Box<dyn Device>, tokens: u32) {
    let requests = requests(tokens);
    let alone = answers(device(), 1, &requests);
    assert!(alone.iter().all(|(tokens, end)| !tokens.is_empty() || matches!(end, Some(Finish::EndToken(_)))));
    assert_eq!(answers(device(), 2, &requests), alone, "two steps in flight");
    let mut on_host = requests;
    on_host.iter_mut().for_each(|r| r.logits_from = Some(0));
    assert_eq!(answers(device(), 2, &on_host), alone, "sampled on the host");
}

#[test]
fn cpu() {
    check(&|| Box::new(CpuDevice::new(2).expect("a device")), 300);
}

#[test]
fn interpreter() {
    check(&|| Box::new(InterpretedDevice::new(gpu_caps(64), 5)), 2);
}

#[test]
fn vulkan() {
    let open = || support::vulkan(&zinc_vulkan::Options::default());
    if open().is_some() {
        check(&|| Box::new(open().expect("as before")), 300);
    }
}
