//! The generated kernels in the interpreter: every access checked, against transformers' logits.

use zinc_compiler::Choices;
use zinc_conformance::{Driver, Fixture, InterpretedDevice, distance, gpu_caps};
use zinc_ir::plan::KvType;

fn check(path: &str, subgroup: u32, piece: usize, choices: Choices) {
    let f = Fixture::open(path);
    let mut device = InterpretedDevice::new(gpu_caps(subgroup), 7);
    let mut driver = Driver::new(&mut device, &f.graph, &f.weights, KvType::F32, choices, 1, 64);
    let got = driver.logits(&f.prompt, piece);
    let d = distance(&f.floats("logits_hf"), &got, 512);
    println!("{path}, subgroups of {subgroup}, {piece} rows a step: {d:?}");
    assert!(d.max < 1e-3 && d.kl < 1e-8, "{path}: {d:?}");
}

#[test]
fn llama_few_rows() {
    check("arch/llama", 8, 4, Choices::default());
}

#[test]
fn llama_single_rows() {
    check("arch/llama", 32, 1, Choices::default());
}

#[test]
fn llama_unfused() {
    check("arch/llama", 4, 8, Choices { fuse: false, ..Choices::default() });
}

#[test]
fn qwen2() {
    check("arch/qwen2", 16, 3, Choices::default());
}

#[test]
fn qwen3() {
    check("arch/qwen3", 64, 2, Choices::default());
}

#[test]
fn gemma3() {
    check("arch/gemma3", 32, 4, Choices::default());
}

/// Every block format, with F32 and with 8-bit activations.
#[test]
fn formats() {
    use zinc_ir::plan::ActPrecision::{F32, Q8};
    let formats = ["F16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"];
    for (i, format) in formats.into_iter().enumerate() {
        let f = Fixture::open(&format!("quant/{format}"));
        let subgroup = [4, 8, 16, 32, 64][i % 5];
        for act in [F32, Q8] {
            let mut device = InterpretedDevice::new(gpu_caps(subgroup), i as u64);
            let choices = Choices { act, ..Choices::default() };
            let mut driver = Driver::new(&mut device, &f.graph, &f.weights, KvType::F32, choices, 1, 32);
            let prompt = &f.prompt[..4];
            let got = driver.logits(prompt, 2);
            let d = distance(&f.floats("logits_dequant_f32")[..got.len()], &got, 320);
            println!("{format} {act:?}, subgroups of {subgroup}: {d:?}");
            match act {
                Q8 => assert!(d.kl < 5e-3 && d.max < 1.0, "{format} {act:?}: {d:?}"),
                _ => assert!(d.max < 1e-3, "{format} {act:?}: {d:?}"),
            }
        }
    }
}
