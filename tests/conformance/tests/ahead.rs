//! The program for a longer context is there before it is needed: the step that crosses the end of a context bucket
//! compiles nothing, and the device has the next step at all times.

mod support;

use zinc_conformance::{Fixture, InterpretedDevice, gpu_caps};
use zinc_cpu::CpuDevice;
use zinc_engine::{Engine, Options, Request};
use zinc_ir::device::{Device, Progress};
use zinc_vulkan::Options as VulkanOptions;

const PROMPT: usize = 200;
/// The first context bucket ends here.
const END: u32 = 256;
/// Programs of the prompt's two sizes of step, and of generation in two contexts.
const PROGRAMS: usize = 4;

fn check(device: Box<dyn Device>) {
    let f = Fixture::open("arch/llama");
    let options = Options { context: 512, rows: 64, in_flight: Some(2), ..Options::default() };
    let mut engine = Engine::new(device, f.graph, &f.weights, options, &mut |_| ()).expect("the model loads");
    let prompt = (0..PROMPT as u32).map(|t| t * 37 % 512).collect();
    engine.submit(Request { prompt, predict: Some(80), ..Request::default() }).expect("a request");
    let (mut events, mut position) = (vec![], 0);
    while !engine.is_idle() {
        let (mut compiled, before) = (0, engine.programs());
        let mut count = |p| compiled += u32::from(matches!(p, Progress::Compile { .. }));
        engine.prepare_step(&mut count).expect("a program");
        let stopped = engine.programs() > before;
        engine.step_into(&mut events, &mut count).expect("a step");
        let ran = engine.ran().expect("a step");
        position = ran.position;
        // The programs of prompt and generation are made when they come up.
        if position < PROMPT as u32 + 2 {
            continue;
        }
        assert!(!stopped && compiled == 0, "the step at {position} stopped for a program");
        let context = ran.program.plan.bucket.context;
        assert_eq!(context > END, position >= END, "a step at {position} has a context of {context}");
        if position + 3 < PROMPT as u32 + 80 {
            assert_eq!(engine.in_flight(), 1, "the device had nothing to do after {position}");
        }
        // Real models take longer for a step.
        engine.wait_ahead();
    }
    assert!(position > END && engine.programs() == PROGRAMS, "{position}, {} programs", engine.programs());
}

#[test]
fn cpu() {
    check(Box::new(CpuDevice::new(2).expect("a device")));
}

#[test]
fn vulkan() {
    if let Some(device) = support::vulkan(&VulkanOptions::default()) {
        check(Box::new(device));
    }
}

#[test]
fn a_program_that_is_begun_and_not_needed_disturbs_nothing() {
    let f = Fixture::open("arch/llama");
    let options = Options { context: 512, rows: 8, ..Options::default() };
    let device = InterpretedDevice::new(gpu_caps(64), 5);
    let mut engine = Engine::new(Box::new(device), f.graph, &f.weights, options, &mut |_| ()).expect("loads");
    // Half of a bucket is used, and the answer may be long; but it is taken back at once.
    let request = Request { prompt: vec![1; 129], ..Request::default() };
    let id = engine.submit(request).expect("a request");
    while engine.ran().is_none_or(|ran| ran.position < 128) {
        engine.step(&mut |_| ()).expect("a step");
    }
    engine.cancel(id);
    assert!(engine.step(&mut |_| ()).expect("the rest").is_empty() && engine.is_idle());
}
