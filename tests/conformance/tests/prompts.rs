//! Prompts (more than 8 rows a step) through the generated kernels, in the interpreter.

use std::sync::Arc;
use zinc_compiler::{Choices, compile};
use zinc_conformance::{Chunk, Driver, FORMATS, Fixture, InterpretedDevice, distance, gpu_caps};
use zinc_ir::plan::{ActPrecision, Bucket, KvLayout, KvType, StepOutput, Tail};

fn logits(f: &Fixture, subgroup: u32, piece: usize, choices: Choices) -> Vec<f32> {
    let mut device = InterpretedDevice::new(gpu_caps(subgroup), 11);
    let mut driver = Driver::new(&mut device, &f.graph, &f.weights, KvType::F32, choices, 1, 64);
    driver.logits(&f.prompt, piece)
}

fn check(path: &str, reference: &str, subgroup: u32, piece: usize, choices: Choices, max: f32, kl: f64) {
    let f = Fixture::open(path);
    let expected = f.floats(reference);
    let got = logits(&f, subgroup, piece, choices);
    let d = distance(&expected, &got, expected.len() / f.prompt.len());
    println!("{path}, subgroups of {subgroup}, {piece} rows a step: {d:?}");
    assert!(d.max < max && d.kl < kl, "{path}: {d:?}");
}

fn exact(path: &str, subgroup: u32, piece: usize) {
    check(path, "logits_hf", subgroup, piece, Choices::default(), 1e-3, 1e-8);
}

#[test]
fn llama() {
    exact("arch/llama", 8, 24);
}

#[test]
fn llama_linear() {
    exact("arch/llama_linear", 4, 16);
}

#[test]
fn qwen2() {
    exact("arch/qwen2", 16, 9);
}

#[test]
fn qwen2_yarn() {
    exact("arch/qwen2_yarn", 64, 24);
}

#[test]
fn qwen3() {
    exact("arch/qwen3", 64, 24);
}

#[test]
fn qwen3moe() {
    for (subgroup, piece) in [(4, 24), (8, 9), (32, 12), (64, 24)] {
        exact("arch/qwen3moe", subgroup, piece);
    }
}

#[test]
fn gemma3() {
    exact("arch/gemma3", 32, 16);
}

#[test]
fn unfused() {
    let choices = Choices { fuse: false, ..Choices::default() };
    check("arch/qwen3", "logits_hf", 8, 24, choices, 1e-3, 1e-8);
}

/// Halves as inputs, cooperative matrices: three times what llama.cpp's own F16 products are off.
#[test]
fn matrices() {
    let choices = Choices { act: ActPrecision::F16, ..Choices::default() };
    check("arch/llama", "logits_hf", 8, 24, choices.clone(), 3.6e-2, 5e-5);
    check("arch/gemma3", "logits_hf", 32, 24, choices.clone(), 5.1e-2, 5e-5);
    check("arch/qwen3moe", "logits_hf", 16, 24, choices, 1.9e-2, 5e-5);
}

/// Weight formats, each with another subgroup size: decoded exactly, and rounded to halves for matrices.
#[test]
fn formats() {
    for (format, subgroup) in FORMATS.iter().zip([4, 8, 16, 32, 64].into_iter().cycle()) {
        let path = format!("quant/{format}");
        check(&path, "logits_dequant_f32", subgroup, 24, Choices::default(), 1e-3, 1e-8);
        let halves = Choices { act: ActPrecision::F16, ..Choices::default() };
        check(&path, "logits_dequant_f32", subgroup, 24, halves.clone(), 4e-2, 5e-5);
        // Matrices in quads.
        check(&path, "logits_dequant_f32", 32, 9, halves, 4e-2, 5e-5);
    }
}

/// Rows of two sequences share tiles; each gets the very numbers it gets alone: with halves, where the number of rows says
/// how columns are divided, in batch-invariant mode.
#[test]
fn batches_do_not_matter() {
    let singles = Choices::default();
    let halves = Choices { act: ActPrecision::F16, invariant: true, ..Choices::default() };
    for (path, subgroup, choices) in [
        ("arch/gemma3", 8, &singles),
        ("arch/qwen3", 32, &singles),
        ("arch/qwen3moe", 16, &singles),
        ("arch/gemma3", 64, &halves),
        ("arch/qwen3", 8, &halves),
        ("arch/llama", 32, &halves),
    ] {
        let f = Fixture::open(path);
        let second: Vec<u32> = f.prompt.iter().rev().copied().collect();
        let mut device = InterpretedDevice::new(gpu_caps(subgroup), 5);
        let choices = choices.clone();
        let mut driver = Driver::new(&mut device, &f.graph, &f.weights, KvType::F16, choices, 2, 64);
        let chunk = |sequence, tokens| Chunk { sequence, tokens };
        let alone = [
            rows(driver.step(&[chunk(0, &f.prompt[..10])], 10, Tail::Logits)),
            rows(driver.step(&[chunk(1, &second[..13])], 16, Tail::Logits)),
            rows(driver.step(&[chunk(0, &f.prompt[10..])], 14, Tail::Logits)),
            rows(driver.step(&[chunk(1, &second[13..])], 11, Tail::Logits)),
        ];
        driver.clear(0);
        driver.clear(1);
        let first = driver.step(&[chunk(1, &second[..13]), chunk(0, &f.prompt[..10])], 24, Tail::Logits);
        let then = driver.step(&[chunk(0, &f.prompt[10..]), chunk(1, &second[13..])], 25, Tail::Logits);
        let expected = [[&alone[1][..], &alone[0]].concat(), [&alone[2][..], &alone[3]].concat()];
        assert!(rows(first) == expected[0] && rows(then) == expected[1], "{path}: a row depends on its batch");
    }
}

/// Several chunks of tokens, windows that skip some: as one-op kernels say.
#[test]
fn long_contexts() {
    let (singles, halves) = (ActPrecision::F32, ActPrecision::F16);
    for (path, subgroup, kv, act, max, kl) in [
        ("arch/gemma3", 16, KvType::F32, singles, 2e-3, 1e-7),
        ("arch/llama", 64, KvType::F16, singles, 2e-3, 1e-7),
        ("arch/gemma3", 32, KvType::F16, halves, 5e-2, 5e-5),
        ("arch/qwen3", 8, KvType::F16, halves, 5e-2, 5e-5),
    ] {
        let f = Fixture::open(path);
        let tokens: Vec<u32> = (0..100).map(|i| (i * i + 7 * i + 3) % 512).collect();
        let run = |fuse| {
            let mut device = InterpretedDevice::new(gpu_caps(subgroup), 3);
            let choices = Choices { fuse, act, ..Choices::default() };
            let mut driver = Driver::new(&mut device, &f.graph, &f.weights, kv, choices, 1, 128);
            let got = driver.step(&[Chunk { sequence: 0, tokens: &tokens[..64] }], 64, Tail::Logits);
            [rows(got), rows(driver.step(&[Chunk { sequence: 0, tokens: &tokens[64..] }], 40, Tail::Logits))].concat()
        };
        let d = distance(&run(false), &run(true), 512);
        println!("{path}, {act:?}: {d:?}");
        assert!(d.max < max && d.kl < kl, "{path}, {act:?}: {d:?}");
    }
}

/// Logits of a whole prompt with halves in the cache and as inputs, in pieces; the plans do attention on matrices.
fn on_matrices(f: &Fixture, subgroup: u32, piece: usize, seed: u64) -> Vec<f32> {
    let caps = gpu_caps(subgroup);
    let choices = Choices { act: ActPrecision::F16, ..Choices::default() };
    let kv = Arc::new(KvLayout::new(&f.graph, KvType::F16, 2));
    let tokens = piece as u32;
    let bucket = Bucket { tokens, outputs: tokens, context: 64, sequences: 1, tail: Tail::Logits };
    let plan = compile(&f.graph, &kv, bucket, &caps, &choices).expect("the plan compiles");
    let count = plan.launches().filter(|l| l.template == "attention_matrices").count();
    assert_eq!(count, f.graph.kv().len(), "subgroups of {subgroup}:\n{plan}");
    let mut device = InterpretedDevice::new(caps, seed);
    let mut driver = Driver::new(&mut device, &f.graph, &f.weights, KvType::F16, choices, 1, 64);
    driver.logits(&f.prompt, piece)
}

/// Attention on matrices is as near to transformers as halves allow, at every subgroup size and with windows.
#[test]
fn attention_on_matrices() {
    let cases = [("arch/llama", 3.6e-2), ("arch/gemma3", 5.1e-2), ("arch/qwen3", 3.6e-2), ("arch/qwen2", 3.6e-2)];
    for ((path, max), subgroup) in cases.iter().flat_map(|c| [4, 8, 16, 32, 64].map(|s| (*c, s))) {
        let f = Fixture::open(path);
        let expected = f.floats("logits_hf");
        let got = on_matrices(&f, subgroup, if subgroup == 8 { 24 } else { 10 }, subgroup as u64);
        let d = distance(&expected, &got, expected.len() / f.prompt.len());
        println!("{path}, subgroups of {subgroup}: {d:?}");
        assert!(d.max < max && d.kl < 5e-5, "{path}, subgroups of {subgroup}: {d:?}");
    }
}

fn rows(output: StepOutput) -> Vec<f32> {
    match output {
        StepOutput::Logits(rows) => rows,
        other => panic!("asked for logits, got {other:?}"),
    }
}
