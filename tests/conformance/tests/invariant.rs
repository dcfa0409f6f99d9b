//! The batch-invariant mode, bit for bit on logits: alone, beside others, and in steps of any size.

mod support;

use zinc_compiler::Choices;
use zinc_conformance::{InterpretedDevice, gpu_caps, invariant};
use zinc_cpu::{CpuDevice, Isa};
use zinc_ir::plan::{ActPrecision, KvType};
use zinc_vulkan::Options;

/// With a window, with experts, and with quantized weights too.
const MODELS: [&str; 4] = ["arch/llama", "arch/gemma3", "arch/qwen3moe", "quant/Q4_K"];

fn choices(act: ActPrecision) -> Choices {
    Choices { act, ..Choices::default() }
}

#[test]
fn interpreter() {
    for (i, path) in MODELS.iter().enumerate() {
        let (subgroup, act) = ([8, 32][i % 2], [ActPrecision::F32, ActPrecision::F16][i / 2]);
        let mut device = InterpretedDevice::new(gpu_caps(subgroup), 7);
        let sizes: [&[usize]; 4] = [&[32], &[1, 7, 3], &[7], &[19, 1]];
        let kv = [KvType::Q8_0, KvType::F16][i.div_ceil(2) % 2];
        invariant(&mut device, path, choices(act), kv, 20, &sizes, 1);
    }
}

const SIZES: [&[usize]; 5] = [&[64], &[1], &[7], &[32], &[9, 1, 40]];

#[test]
fn cpu() {
    for isa in Isa::available() {
        for path in MODELS {
            let mut device = CpuDevice::with_isa(2, isa).expect("a device");
            for act in [ActPrecision::F32, ActPrecision::Q8] {
                invariant(&mut device, path, choices(act), KvType::F16, 80, &SIZES, 50);
            }
        }
    }
}

#[test]
fn vulkan() {
    let options = Options { emulated_matrices: true, ..Options::default() };
    let Some(mut device) = support::vulkan(&options) else { return };
    // Compiling takes most of the time on software drivers.
    for (i, path) in MODELS[..3].iter().enumerate() {
        let act = [ActPrecision::F16, ActPrecision::F32][i % 2];
        invariant(&mut device, path, choices(act), KvType::F16, 24, &[&[24], &[1, 7]], 8);
    }
}
