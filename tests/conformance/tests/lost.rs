//! A device that gets lost in the middle of a batch: another one takes its place, and every answer, drawn or greedy, with
//! logits or without, is what it would have been.

mod support;

use std::collections::HashMap;
use std::time::Duration;
use zinc_compiler::Choices;
use zinc_conformance::{Fixture, Fuse, InterpretedDevice, LosingDevice, gpu_caps};
use zinc_cpu::CpuDevice;
use zinc_engine::{Engine, EngineError, Event, Finish, OpenError, Options, Request, Sampling, SequenceId};
use zinc_ir::device::{Device, DeviceError};
use zinc_vulkan::{Options as VulkanOptions, VulkanDevice};

/// What came of a sequence: tokens, the logits behind each position that were asked for, and its end.
#[derive(Debug, Default, PartialEq)]
struct Outcome {
    tokens: Vec<u32>,
    logits: Vec<(u32, Vec<f32>)>,
    end: Option<Finish>,
}

fn requests(f: &Fixture, predict: u32) -> Vec<Request> {
    let drawn = |seed| Sampling { temperature: 1.0, top_k: 40, seed, ..Sampling::default() };
    let wide = Sampling { top_k: 0, ..drawn(5) };
    let of = |tokens: usize, sampling: Sampling, logits_from: Option<u32>| Request {
        prompt: f.prompt[..tokens].to_vec(),
        predict: Some(predict),
        sampling,
        logits_from,
        ..Request::default()
    };
    let asked = of(9, drawn(4), Some(4));
    vec![of(7, Sampling::default(), None), of(12, drawn(3), None), asked, of(5, wide, None)]
}

type Open<'a> = &'a mut dyn FnMut() -> Result<Box<dyn Device>, OpenError>;

/// Runs the requests together; the device is lost at its `loss`-th call, if there is one.
fn answers(f: &Fixture, open: Open<'_>, predict: u32, fuse: &Fuse, loss: Option<u32>) -> Vec<Outcome> {
    // What a row gets must not depend on which others there are, to the last bit.
    let choices = Choices { invariant: true, ..Choices::default() };
    let options = Options { context: 64, rows: 16, sequences: 4, choices, ..Options::default() };
    let device = open().expect("a device");
    let mut engine = Engine::new(device, f.graph.clone(), &f.weights, options, &mut |_| ()).expect("loads");
    let ids: Vec<SequenceId> = requests(f, predict).into_iter().map(|r| engine.submit(r).expect("a request")).collect();
    if let Some(call) = loss {
        fuse.light(call);
    }
    let mut outcomes: HashMap<SequenceId, Outcome> = HashMap::new();
    while !engine.is_idle() {
        let events = match engine.step(&mut |_| ()) {
            Err(error) if error.is_device_loss() => {
                engine.replace_device(open, &f.weights, &mut |_| ()).expect("another device");
                continue;
            }
            other => other.expect("a step"),
        };
        for event in events {
            match event {
                Event::Started { .. } | Event::Hidden { .. } => {}
                Event::Token { sequence, token } => outcomes.entry(sequence).or_default().tokens.push(token),
                Event::Logits { sequence, position, logits } => {
                    outcomes.entry(sequence).or_default().logits.push((position, logits));
                }
                Event::Finished { sequence, reason } => outcomes.entry(sequence).or_default().end = Some(reason),
            }
        }
    }
    assert_eq!(engine.load().pages_used, 0, "nothing is held");
    ids.iter().map(|id| outcomes.remove(id).expect("an answer")).collect()
}

/// Losses at these calls change nothing.
fn check(make: &mut dyn FnMut() -> Result<Box<dyn Device>, OpenError>, predict: u32, losses: &[u32]) {
    let f = Fixture::open("arch/llama");
    let fuse = Fuse::default();
    let mut open = || Ok(Box::new(LosingDevice::new(make()?, &fuse)) as Box<dyn Device>);
    let expected = answers(&f, &mut open, predict, &fuse, None);
    assert!(expected.iter().all(|o| o.tokens.len() == predict as usize && o.end == Some(Finish::Length)));
    let positions: Vec<u32> = expected[2].logits.iter().map(|(position, _)| *position).collect();
    assert_eq!(positions, (4..8 + predict).collect::<Vec<_>>(), "each position once");
    for (i, call) in losses.iter().enumerate() {
        assert_eq!(answers(&f, &mut open, predict, &fuse, Some(*call)), expected, "lost at call {call}");
        assert_eq!(fuse.losses(), i as u64 + 1);
    }
}

#[test]
fn interpreter() {
    check(&mut || Ok(Box::new(InterpretedDevice::new(gpu_caps(32), 3))), 3, &[4]);
}

#[test]
fn cpu() {
    let calls: Vec<u32> = (1..30).collect();
    check(&mut || Ok(Box::new(CpuDevice::new(1)?)), 16, &calls);
}

#[test]
fn vulkan() {
    let Some(first) = support::vulkan(&VulkanOptions::default()) else { return };
    let index = first.report().index;
    drop(first);
    let mut open = || Ok(Box::new(VulkanDevice::open(index, &VulkanOptions::default())?) as Box<dyn Device>);
    check(&mut open, 8, &[1, 9]);
}

/// A step that does not end is a loss, too, and what is in flight behind it is not waited for.
#[test]
fn a_device_that_does_not_answer_is_replaced() {
    let Some(first) = support::vulkan(&VulkanOptions::default()) else { return };
    let index = first.report().index;
    drop(first);
    let f = Fixture::open("arch/llama");
    let plain = VulkanOptions::default();
    let mut open = || Ok(Box::new(VulkanDevice::open(index, &plain)?) as Box<dyn Device>);
    let options = Options { context: 64, rows: 16, ..Options::default() };
    let request = Request { prompt: f.prompt[..9].to_vec(), predict: Some(6), ..Request::default() };
    let mut answer = |mut engine: Engine| {
        let mut tokens = vec![];
        let mut losses = 0;
        while !engine.is_idle() {
            match engine.step(&mut |_| ()) {
                Err(error) if error.is_device_loss() => {
                    losses += 1;
                    engine.replace_device(&mut open, &f.weights, &mut |_| ()).expect("another device");
                }
                other => tokens.extend(other.expect("a step").into_iter().filter_map(|e| match e {
                    Event::Token { token, .. } => Some(token),
                    _ => None,
                })),
            }
        }
        (tokens, losses)
    };
    let started = |device: Box<dyn Device>| {
        let mut engine =
            Engine::new(device, f.graph.clone(), &f.weights, options.clone(), &mut |_| ()).expect("the model loads");
        engine.submit(request.clone()).expect("a request");
        engine
    };
    let expected = answer(started(Box::new(VulkanDevice::open(index, &plain).expect("opens")))).0;
    let device = VulkanDevice::open(index, &plain).expect("opens");
    let patience = device.patience();
    let engine = started(Box::new(device));
    patience.set(Duration::ZERO);
    assert_eq!((expected.len(), answer(engine)), (6, (expected.clone(), 1)));
}

#[test]
fn without_another_device_steps_fail_until_there_is_one() {
    let f = Fixture::open("arch/llama");
    let fuse = Fuse::default();
    let mut open = || Ok(Box::new(LosingDevice::new(Box::new(CpuDevice::new(1)?), &fuse)) as Box<dyn Device>);
    let device = open().expect("a device");
    let mut engine =
        Engine::new(device, f.graph.clone(), &f.weights, Options::default(), &mut |_| ()).expect("the model loads");
    engine.submit(Request { prompt: vec![1, 2, 3], predict: Some(2), ..Request::default() }).expect("a request");
    fuse.light(1);
    let is_lost = |e: &EngineError| matches!(e, EngineError::Device(DeviceError::Lost { .. }));
    assert!(engine.step(&mut |_| ()).is_err_and(|e| is_lost(&e)));
    let refused = engine.replace_device(&mut || Err("no such device".into()), &f.weights, &mut |_| ());
    assert!(refused.is_err_and(|e| e.to_string().contains("no such device") && !e.is_device_loss()));
    assert!(engine.step(&mut |_| ()).is_err_and(|e| is_lost(&e)));
    engine.replace_device(&mut open, &f.weights, &mut |_| ()).expect("another device");
    while !engine.is_idle() {
        engine.step(&mut |_| ()).expect("a step");
    }
}
