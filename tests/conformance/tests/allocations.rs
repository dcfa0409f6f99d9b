//! A decode step allocates nothing: neither the engine nor the device, once it has seen a few steps of the kind.
//!
//! Counted on the thread that drives the device, with the test binary's own allocator. What a driver allocates for itself
//! is not seen.

mod support;

use zinc_conformance::Fixture;
use zinc_cpu::CpuDevice;
use zinc_engine::{Engine, Event, Options, Request, Sampling};
use zinc_ir::device::Device;

/// Steps before the counting: plans are compiled, buffers find their size.
const WARM_UP: usize = 12;
/// Steps counted: more than two pages of tokens.
const COUNTED: usize = 70;

/// Allocations of [`COUNTED`] steps, and the tokens that they gave.
fn allocations(device: Box<dyn Device>, in_flight: usize, requests: Vec<Request>) -> (u64, usize) {
    let f = Fixture::open("arch/llama");
    let options = Options {
        context: 128,
        rows: 16,
        sequences: requests.len() as u32,
        in_flight: Some(in_flight),
        ..Options::default()
    };
    let mut engine = Engine::new(device, f.graph, &f.weights, options, &mut |_| ()).expect("the model loads");
    for request in requests {
        engine.submit(request).expect("a request");
    }
    let mut events: Vec<Event> = Vec::with_capacity(64);
    let mut tokens = 0;
    let mut step = |engine: &mut Engine| {
        events.clear();
        engine.step_into(&mut events, &mut |_| ()).expect("a step");
        tokens += events.iter().filter(|e| matches!(e, Event::Token { .. })).count();
        assert!(!events.iter().any(|e| matches!(e, Event::Finished { .. })), "a sequence ended too early");
    };
    (0..WARM_UP).for_each(|_| step(&mut engine));
    // A program that is made ahead is taken in at some step; here and now, so that it is none of those counted.
    engine.wait_ahead();
    let counted = allocation_counter::measure(|| (0..COUNTED).for_each(|_| step(&mut engine)));
    (counted.count_total, tokens)
}

fn greedy() -> Vec<Request> {
    vec![Request { prompt: vec![3, 1, 4], predict: Some(100), ..Request::default() }]
}

/// Prompts of different lengths, greedy and sampled.
fn ragged() -> Vec<Request> {
    let sampled =
        |seed| Sampling { temperature: 0.8, top_k: 40, top_p: 0.95, min_p: 0.02, seed, ..Sampling::default() };
    let request = |i: u64| Request {
        prompt: vec![1 + i as u32; 2 + i as usize],
        predict: Some(100),
        sampling: if i == 0 { Sampling::default() } else { sampled(i) },
        ..Request::default()
    };
    (0..4).map(request).collect()
}

fn check(name: &str, device: &dyn Fn() -> Box<dyn Device>) {
    for in_flight in [1, 2] {
        for (requests, each) in [(greedy(), 1), (ragged(), 4)] {
            let (count, tokens) = allocations(device(), in_flight, requests);
            assert!(tokens >= COUNTED * each, "{tokens} tokens are too few");
            assert_eq!(count, 0, "{name}: allocations of {COUNTED} steps of {each} sequences, {in_flight} in flight");
        }
    }
}

#[test]
fn the_counter_counts() {
    assert_eq!(allocation_counter::measure(|| drop(std::hint::black_box(vec![5u8; 9]))).count_total, 1);
}

#[test]
fn cpu() {
    // One thread: which of several finds its scratch memory when is not to be foreseen.
    check("CPU", &|| Box::new(CpuDevice::new(1).expect("a device")));
}

#[test]
fn vulkan() {
    let open = || support::vulkan(&zinc_vulkan::Options::default());
    if open().is_some() {
        check("Vulkan", &|| Box::new(open().expect("as before")));
    }
}
