//! The cases: tiny models with reference logits, and how near a device has to come.

use crate::{Chunk, Distance, Driver, Fixture, distance};
use zinc_compiler::Choices;
use zinc_ir::device::{Device, WeightSource};
use zinc_ir::graph::Op;
use zinc_ir::plan::{ActPrecision, KvType, KvTypes, StepOutput, Tail};

/// Fixtures of `tests/data/arch`, each with the largest difference that llama.cpp, with its F16 inputs of products,
/// has from transformers.
pub const ARCHITECTURES: &[(&str, f32)] = &[
    ("llama", 1.2e-2),
    ("llama_linear", 6.3e-3),
    ("qwen2", 6.8e-3),
    ("qwen2_yarn", 9.8e-3),
    ("qwen3", 9.6e-3),
    ("qwen3moe", 6.3e-3),
    ("gemma3", 1.7e-2),
];

/// Fixtures of `tests/data/quant` that are whole models.
pub const FORMATS: &[&str] = &[
    "F16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ3_XXS", "IQ3_S", "IQ4_NL",
    "IQ4_XS", "MXFP4",
];

/// Largest allowed difference and mean divergence for a precision; `f16` is a reference implementation's own error.
fn limits(act: ActPrecision, kv: KvType, f16: f32) -> Distance {
    match (act, kv) {
        (ActPrecision::F32, KvType::F32) => Distance { max: 1e-3, kl: 1e-8 },
        (ActPrecision::Q8, _) => Distance { max: 2.0, kl: 5e-3 },
        _ => Distance { max: 3.0 * f16, kl: 5e-5 },
    }
}

fn judge(what: &str, got: Distance, limit: Distance) {
    println!("{what}: max {:.1e}, KL {:.1e}", got.max, got.kl);
    assert!(got.max < limit.max && got.kl < limit.kl, "{what}: {got:?}, allowed {limit:?}");
}

/// All positions of an architecture's prompt, `piece` rows a step, against transformers.
pub fn architecture(device: &mut dyn Device, name: &str, choices: Choices, kv: KvType, piece: usize) {
    let f16 = ARCHITECTURES.iter().find(|a| a.0 == name).expect("a listed architecture").1;
    let f = Fixture::open(&format!("arch/{name}"));
    let label = format!("{name}, {:?}, KV {kv:?}, {piece} rows a step, {}", choices.act, device.description());
    let limit = limits(choices.act, kv, f16);
    let mut driver = Driver::new(device, &f.graph, &f.weights, kv, choices, 1, 64);
    let got = driver.logits(&f.prompt, piece);
    judge(&label, distance(&f.floats("logits_hf"), &got, 512), limit);
}

/// The hidden states of all positions of an architecture's prompt: they are as wide as the model, and the output matrix
/// makes transformers' logits of them. It has more rows than columns, so no other states give the same.
pub fn hidden_states(device: &mut dyn Device, name: &str, choices: Choices, piece: usize) {
    let f16 = ARCHITECTURES.iter().find(|a| a.0 == name).expect("a listed architecture").1;
    let f = Fixture::open(&format!("arch/{name}"));
    let label = format!("{name}, hidden states, {:?}, {piece} rows a step, {}", choices.act, device.description());
    let limit = limits(choices.act, KvType::F32, f16);
    let mut driver = Driver::new(device, &f.graph, &f.weights, KvType::F32, choices, 1, 64);
    let Some(Op::MatMul { weight, .. }) = f.graph.logits().map(|l| f.graph.op(l)) else { panic!("{name} has logits") };
    let matrix = f.graph.weight_of(*weight);
    let (rows, width) = (matrix.rows as usize, matrix.cols as usize);
    assert!(rows > width);
    let mut weights = vec![0.0; rows * width];
    matrix.format.decode(f.weights.bytes(*weight).expect("from a file"), &mut weights);
    let mut got = vec![];
    for tokens in f.prompt.chunks(piece) {
        let output = driver.step(&[Chunk { sequence: 0, tokens }], piece as u32, Tail::Hidden);
        let StepOutput::Hidden(states) = output else { panic!("asked for hidden states, got {output:?}") };
        assert_eq!(states.len(), tokens.len() * width);
        for state in states.chunks_exact(width) {
            let dot = |row: &[f32]| row.iter().zip(state).map(|(w, x)| *w as f64 * *x as f64).sum::<f64>() as f32;
            got.extend(weights.chunks_exact(width).map(dot));
        }
    }
    judge(&label, distance(&f.floats("logits_hf"), &got, rows), limit);
}

/// All positions of a model's prompt with K and V in other types, against those with K and V in F32: logits differ by
/// `most` at most.
pub fn quantized_cache(device: &mut dyn Device, path: &str, types: KvTypes, piece: usize, most: Distance) {
    let f = Fixture::open(path);
    let mut logits = |types: KvTypes| {
        let mut driver = Driver::new(device, &f.graph, &f.weights, types, Choices::default(), 1, 64);
        driver.logits(&f.prompt, piece)
    };
    let (expected, got) = (logits(KvType::F32.into()), logits(types));
    let width = expected.len() / f.prompt.len();
    let off = distance(&expected, &got, width);
    judge(&format!("{path}, K and V in {types}, {piece} rows a step"), off, most);
    assert!(off.max > 0.0, "{path}: K and V in {types} change nothing");
}

/// The first `rows` positions of a weight format's prompt, against llama.cpp on the dequantized file.
pub fn format(device: &mut dyn Device, name: &str, choices: Choices, piece: usize, rows: usize) {
    let f = Fixture::open(&format!("quant/{name}"));
    let label = format!("{name}, {:?}, {piece} rows a step, {}", choices.act, device.description());
    let limit = limits(choices.act, KvType::F32, 1.2e-2);
    let mut driver = Driver::new(device, &f.graph, &f.weights, KvType::F32, choices, 1, 64);
    let got = driver.logits(&f.prompt[..rows], piece);
    let expected = &f.floats("logits_dequant_f32")[..got.len()];
    // No figure of divergence is known for F32 here beyond the largest difference.
    judge(&label, distance(expected, &got, 320), Distance { kl: limit.kl.max(1e-6), ..limit });
}
