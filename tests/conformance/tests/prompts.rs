//! Prompts (more than 8 rows a step) through the generated kernels, in the interpreter.

use zinc_compiler::Choices;
use zinc_conformance::{Driver, Fixture, InterpretedDevice, distance, gpu_caps};
use zinc_ir::plan::{ActPrecision, KvType};

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
    check("arch/llama", "logits_hf", 8, 24, choices, 3.6e-2, 5e-5);
    check("arch/gemma3", "logits_hf", 32, 24, choices, 5.1e-2, 5e-5);
}
