//! What the engine's tests share: a device by name, and sequences run to their end.
#![allow(dead_code, missing_docs)]

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use zinc_compiler::Choices;
use zinc_engine::{Engine, Event, Finish, Options, Request, SequenceId};
use zinc_gguf::Gguf;
use zinc_ir::device::{Device, WeightSource};
use zinc_ir::graph::Graph;
use zinc_ir::plan::{ActPrecision, KvType};
use zinc_models::GgufWeights;

/// The root of the workspace.
pub(crate) fn root() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// Is the device the CPU?
pub(crate) fn is_cpu() -> bool {
    device_name().is_some_and(|name| name == "cpu")
}

/// `ZINC_TEST_DEVICE`; without it, Vulkan inside a driver set that can run, else the CPU.
fn device_name() -> Option<String> {
    let named = |variable| std::env::var(variable).ok();
    match (named("ZINC_TEST_DEVICE"), named("ZINC_TEST_VULKAN")) {
        (Some(name), _) => Some(name),
        (None, Some(set)) if set.starts_with("radv:") => None,
        (None, Some(_)) => Some("vulkan".into()),
        (None, None) => Some("cpu".into()),
    }
}

/// The device under test; `None` (and a line saying so) where nothing can run.
pub(crate) fn device() -> Option<Box<dyn Device>> {
    match device_name().as_deref() {
        None => {
            println!("not run: no hardware behind this driver");
            None
        }
        Some("cpu") => Some(Box::new(zinc_cpu::CpuDevice::new(2).expect("the CPU"))),
        Some("vulkan") => {
            let options = zinc_vulkan::Options::default();
            Some(Box::new(zinc_vulkan::VulkanDevice::open(0, &options).expect("a Vulkan device")))
        }
        Some(other) => panic!("ZINC_TEST_DEVICE is {other}; use cpu or vulkan"),
    }
}

/// A real model and its reference values; `None` (and a line saying so) if either is absent.
pub(crate) fn real_model(file: &str, reference: &str) -> Option<(Arc<Gguf>, serde_json::Value)> {
    let model = root().join("target/zinc-test/models").join(file);
    let reference = root().join("../shared/fixtures/real").join(reference);
    let Ok(reference) = std::fs::read_to_string(reference) else {
        println!("not run: shared fixtures absent");
        return None;
    };
    if !model.exists() {
        println!("not run: {file} absent (cargo xtask setup)");
        return None;
    }
    Some((Arc::new(Gguf::open(model).expect("the model")), serde_json::from_str(&reference).expect("JSON")))
}

/// The graph and the weights of a file.
pub(crate) fn open(path: &Path) -> (Arc<Graph>, GgufWeights) {
    load(Arc::new(Gguf::open(path).expect("a model")))
}

/// The graph and the weights of an opened file.
pub(crate) fn load(gguf: Arc<Gguf>) -> (Arc<Graph>, GgufWeights) {
    let model = zinc_models::open(&gguf).expect("a supported model");
    let weights = GgufWeights::new(gguf, &model.graph).expect("its weights");
    (model.graph, weights)
}

/// An engine on the device under test.
pub(crate) fn engine(
    device: Box<dyn Device>,
    graph: &Arc<Graph>,
    weights: &dyn WeightSource,
    act: ActPrecision,
    kv: KvType,
    options: Options,
) -> Engine {
    let choices = Choices { act, ..Choices::default() };
    let options = Options { kv: kv.into(), choices, ..options };
    Engine::new(device, graph.clone(), weights, options, &mut |_| ()).expect("an engine")
}

/// What a sequence gave.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Outcome {
    pub(crate) tokens: Vec<u32>,
    pub(crate) logits: Vec<f32>,
    pub(crate) end: Option<Finish>,
}

/// Files events by sequence.
pub(crate) fn record(outcomes: &mut HashMap<SequenceId, Outcome>, events: Vec<Event>) {
    for event in events {
        match event {
            Event::Started { .. } | Event::Hidden { .. } => {}
            Event::Token { sequence, token } => outcomes.entry(sequence).or_default().tokens.push(token),
            Event::Logits { sequence, logits, .. } => {
                outcomes.entry(sequence).or_default().logits.extend_from_slice(&logits)
            }
            Event::Finished { sequence, reason } => outcomes.entry(sequence).or_default().end = Some(reason),
        }
    }
}

/// Runs one request alone.
pub(crate) fn solo(engine: &mut Engine, request: Request) -> Outcome {
    engine.forget_prefixes();
    let id = engine.submit(request).expect("a request that fits");
    let mut outcomes = HashMap::new();
    while !engine.is_idle() {
        record(&mut outcomes, engine.step(&mut |_| ()).expect("a step"));
    }
    outcomes.remove(&id).expect("an outcome")
}
