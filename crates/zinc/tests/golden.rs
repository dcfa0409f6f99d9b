//! The engine on a device against independent implementations: every tiny model of `tests/data`, every position,
//! greedy continuations, and batches.
//!
//! The device is the CPU, or Vulkan inside a driver set (`cargo xtask vk lavapipe -- cargo test -p zinc`).

mod support;

use std::collections::HashMap;
use support::{device, engine, is_cpu, record, solo};
use zinc_conformance::{ARCHITECTURES, FORMATS, Fixture, data, distance};
use zinc_engine::{Options, Request};
use zinc_ir::plan::{ActPrecision, KvType};

/// Small steps, so that prompts come in pieces: 24 tokens as 16 and 8.
fn options() -> Options {
    Options { context: 128, rows: 16, sequences: 3, ..Options::default() }
}

/// llama.cpp's own largest distance from the reference with F16 activations.
fn f16_error(name: &str) -> f32 {
    let info = std::fs::read_to_string(data(&format!("arch/{name}/info.json"))).expect("info.json");
    let info: serde_json::Value = serde_json::from_str(&info).expect("JSON");
    info["hf_vs_llamacpp_f16"]["max_abs_diff"].as_f64().expect("a number") as f32
}

#[test]
fn architectures_match_transformers() {
    let cases = [(ActPrecision::F32, KvType::F32), (ActPrecision::F16, KvType::F16), (ActPrecision::Q8, KvType::F16)];
    // The conformance suite has every case on every device; software drivers take a minute for each engine.
    let cases = if is_cpu() { &cases[..] } else { &cases[1..2] };
    for (name, _) in ARCHITECTURES {
        let fixture = Fixture::open(&format!("arch/{name}"));
        let reference = fixture.floats("logits_hf");
        for &(act, kv) in cases {
            let Some(device) = device() else { return };
            let mut engine = engine(device, &fixture.graph, &fixture.weights, act, kv, options());
            let logits = solo(
                &mut engine,
                Request {
                    prompt: fixture.prompt.clone(),
                    predict: Some(0),
                    logits_from: Some(0),
                    ..Request::default()
                },
            );
            let d = distance(&reference, &logits.logits, engine.vocabulary() as usize);
            let (max, kl) = match act {
                ActPrecision::F32 => (1e-3, 1e-8),
                // The matrices are F16: with 8 bits asked for, their inputs are halves too.
                ActPrecision::F16 | ActPrecision::Q8 => (3.0 * f16_error(name), 5e-5),
            };
            assert!(d.max < max && d.kl < kl, "{name}, {act:?}: {d:?}, allowed {max} and {kl}");
            let predict = Some(fixture.ids("greedy").len() as u32);
            let request = Request { prompt: fixture.prompt.clone(), predict, ..Request::default() };
            assert_eq!(solo(&mut engine, request).tokens, fixture.ids("greedy"), "{name}, {act:?}: greedy");
        }
    }
}

#[test]
fn formats_match_dequantized_weights() {
    // The models in F32 and BF16 are too large for this project's own test data.
    let shared = ["F32", "BF16"].map(|name| format!("../../../shared/fixtures/quant/{name}"));
    let own = FORMATS.iter().map(|name| format!("quant/{name}"));
    for name in own.chain(shared).filter(|name| is_cpu() || name.ends_with("Q4_K")) {
        if !data(&name).exists() {
            println!("not run: shared fixtures absent ({name})");
            continue;
        }
        let fixture = Fixture::open(&name);
        let reference = fixture.floats("logits_dequant_f32");
        for act in [ActPrecision::F32, ActPrecision::Q8] {
            let Some(device) = device() else { return };
            let mut engine = engine(device, &fixture.graph, &fixture.weights, act, KvType::F32, options());
            let request = Request {
                prompt: fixture.prompt.clone(),
                predict: Some(0),
                logits_from: Some(0),
                ..Request::default()
            };
            let logits = solo(&mut engine, request).logits;
            let d = distance(&reference, &logits, engine.vocabulary() as usize);
            let (max, kl) = if act == ActPrecision::F32 { (1e-3, 1e-8) } else { (f32::MAX, 5e-3) };
            assert!(d.max < max && d.kl < kl, "{name}, {act:?}: {d:?}, allowed {max} and {kl}");
            if act == ActPrecision::F32 {
                let greedy = fixture.ids("greedy_dequant_f32");
                let predict = Some(greedy.len() as u32);
                let request = Request { prompt: fixture.prompt.clone(), predict, ..Request::default() };
                assert_eq!(solo(&mut engine, request).tokens, greedy, "{name}: greedy");
            }
        }
    }
}

#[test]
fn batches_with_joins_leaves_and_preemption_change_no_token() {
    let names: &[&str] = if is_cpu() { &["llama", "qwen3", "gemma3"] } else { &["llama"] };
    for name in names {
        let fixture = Fixture::open(&format!("arch/{name}"));
        let request = |i: usize| Request {
            prompt: fixture.prompt[..24 - 5 * i].to_vec(),
            predict: Some(30 + 7 * i as u32),
            ..Request::default()
        };
        let Some(alone) = device() else { return };
        let mut alone = engine(alone, &fixture.graph, &fixture.weights, ActPrecision::F32, KvType::F32, options());
        let Some(batched) = device() else { return };
        // Four sequences of up to 80 tokens want 12 pages.
        let options = Options { pages: Some(5), sequences: 4, ..options() };
        let mut batched = engine(batched, &fixture.graph, &fixture.weights, ActPrecision::F32, KvType::F32, options);
        let (mut ids, mut outcomes) = (vec![], HashMap::new());
        for i in 0..4 {
            ids.push(batched.submit(request(i)).expect("a request that fits"));
            for _ in 0..2 {
                record(&mut outcomes, batched.step(&mut |_| ()).expect("a step"));
            }
        }
        while !batched.is_idle() {
            record(&mut outcomes, batched.step(&mut |_| ()).expect("a step"));
        }
        assert!(batched.preemptions() > 0, "five pages are too few for all four");
        for (i, id) in ids.iter().enumerate() {
            assert_eq!(outcomes[id].tokens, solo(&mut alone, request(i)).tokens, "{name}: sequence {i}");
        }
    }
}
