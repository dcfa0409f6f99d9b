//! Two real models against llama.cpp and transformers: token ids, logits, greedy text and perplexity.
//!
//! Model files come from `cargo xtask setup`; reference values from the shared fixtures. What is absent is not run.

mod support;

use serde_json::Value;
use std::sync::Arc;
use support::{device, engine, is_cpu, load, real_model, root, solo};
use zinc_engine::{Engine, Options, Request};
use zinc_gguf::Gguf;
use zinc_ir::plan::{ActPrecision, KvType};
use zinc_text::Tokenizer;

/// File, reference, allowed distance of top-20 logits with F32 activations.
const MODELS: [(&str, &str, f32); 2] = [
    ("SmolLM2-135M-Instruct.Q4_1.gguf", "smollm2-135m-instruct-q4_1.json", 1e-3),
    // The reference looks GELU up in a table of halves.
    ("gemma-3-270m-q4_k_m.gguf", "gemma-3-270m-q4_k_m.json", 1e-2),
];

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().expect("an array").iter().map(|v| v.as_u64().expect("an id") as u32).collect()
}

#[test]
fn token_ids_are_exact() {
    for (file, reference, _) in MODELS {
        let Some((gguf, reference)) = real_model(file, reference) else { return };
        let tokenizer = Tokenizer::from_metadata(gguf.metadata()).expect("a tokenizer");
        for case in reference["tokenization"].as_array().expect("cases") {
            let text = case["text"].as_str().expect("a text");
            for (special, parse) in [(false, false), (false, true), (true, false), (true, true)] {
                let key = format!("ids_add{}_parse{}", special as u8, parse as u8);
                let got = tokenizer.encode(text, special, parse).expect("ids");
                assert_eq!(got, ids(&case[&key]), "{file}: {text:?} {key}");
            }
        }
    }
}

fn open(gguf: Arc<Gguf>, act: ActPrecision, context: u32) -> Option<Engine> {
    let (graph, weights) = load(gguf);
    let kv = if act == ActPrecision::F32 { KvType::F32 } else { KvType::F16 };
    Some(engine(device()?, &graph, &weights, act, kv, Options { context, ..Options::default() }))
}

#[test]
fn logits_agree_with_llama_cpp() {
    for (file, reference, allowed) in MODELS {
        let Some((gguf, reference)) = real_model(file, reference) else { return };
        let Some(mut engine) = open(gguf, ActPrecision::F32, 1024) else { return };
        for case in reference["prompts"].as_array().expect("prompts") {
            let prompt = ids(&case["ids"]);
            let last = prompt.len() as u32 - 1;
            let request = Request { prompt, predict: Some(0), logits_from: Some(last), ..Request::default() };
            let logits = solo(&mut engine, request).logits;
            for row in case["dequantized_f32"]["top20"].as_array().expect("rows") {
                let (id, value) = (row[0].as_u64().expect("an id"), row[1].as_f64().expect("a logit") as f32);
                let got = logits[id as usize];
                assert!((got - value).abs() < allowed, "{file}, {}: token {id}: {got}, not {value}", case["name"]);
            }
        }
    }
}

/// Greedy text agrees up to the first place where the reference itself was unsure.
fn compare_greedy(engine: &mut Engine, reference: &Value, kind: &str, margin: f64, file: &str) {
    for case in reference["prompts"].as_array().expect("prompts") {
        let expected = ids(&case[kind]["greedy"]);
        let margins = case[kind]["greedy_margins"].as_array().expect("margins");
        let sure = margins.iter().take_while(|m| m.as_f64().expect("a number") >= margin).count();
        let prompt = ids(&case["ids"]);
        let request = Request { prompt, predict: Some(expected.len() as u32), ..Request::default() };
        let got = solo(engine, request).tokens;
        assert_eq!(got[..sure], expected[..sure], "{file}, {kind}, {}", case["name"]);
    }
}

#[test]
fn greedy_text_agrees_with_llama_cpp() {
    for (file, reference, _) in MODELS {
        let Some((gguf, reference)) = real_model(file, reference) else { return };
        let Some(mut exact) = open(gguf.clone(), ActPrecision::F32, 1024) else { return };
        compare_greedy(&mut exact, &reference, "dequantized_f32", 0.05, file);
        // Software drivers take minutes for each; the conformance suite has eight bits on every device.
        if !is_cpu() {
            continue;
        }
        let Some(mut fast) = open(gguf, ActPrecision::Q8, 1024) else { return };
        compare_greedy(&mut fast, &reference, "quantized", 1.0, file);
    }
}

/// -log p of each next token in the second half of a chunk.
fn losses(engine: &mut Engine, chunk: &[u32], bos: Option<u32>) -> Vec<f64> {
    let mut prompt = chunk[..chunk.len() - 1].to_vec();
    if let Some(bos) = bos {
        prompt[0] = bos;
    }
    let from = chunk.len() / 2;
    let request = Request { prompt, predict: Some(0), logits_from: Some(from as u32), ..Request::default() };
    let logits = solo(engine, request).logits;
    let rows = logits.chunks_exact(engine.vocabulary() as usize).zip(&chunk[from + 1..]);
    let loss = |(row, next): (&[f32], &u32)| {
        let top = row.iter().copied().fold(f32::MIN, f32::max) as f64;
        let sum: f64 = row.iter().map(|x| (*x as f64 - top).exp()).sum();
        top + sum.ln() - row[*next as usize] as f64
    };
    rows.map(loss).collect()
}

#[test]
fn perplexity_agrees_with_llama_cpp() {
    // The running value after two chunks; `zinc perplexity` measures the whole text.
    const CHUNKS: usize = 2;
    for (file, reference, _) in MODELS {
        let Some((gguf, reference)) = real_model(file, reference) else { return };
        let text = std::fs::read_to_string(root().join("../shared/fixtures/real/text.txt")).expect("the text");
        let tokenizer = Tokenizer::from_metadata(gguf.metadata()).expect("a tokenizer");
        let ids = tokenizer.encode(&text, true, false).expect("ids");
        let bos = tokenizer.bos().filter(|_| tokenizer.adds_bos());
        let cases = [(ActPrecision::F32, "dequantized_f32", 2e-4), (ActPrecision::Q8, "quantized", 1e-2)];
        for (act, kind, allowed) in cases.into_iter().take(if is_cpu() { 2 } else { 1 }) {
            let Some(mut engine) = open(gguf.clone(), act, 512) else { return };
            let all: Vec<f64> = ids.chunks_exact(512).take(CHUNKS).flat_map(|c| losses(&mut engine, c, bos)).collect();
            let got = (all.iter().sum::<f64>() / all.len() as f64).exp();
            let expected = reference["perplexity"][kind]["cumulative_ppl_per_chunk"][CHUNKS - 1].as_f64();
            let expected = expected.expect("a number");
            let off = (got / expected - 1.0).abs();
            assert!(off < allowed, "{file}, {act:?}: perplexity {got}, not {expected} (off by {off})");
        }
    }
}
