//! Attention of prompts on matrices, and of batches that generate, in the interpreter: head sizes, groups and windows.

mod support;

use zinc_conformance::{
    Distance, InterpretedDevice, attention_of_batches, attention_of_prompts, attention_of_prompts_in, gpu_caps,
    quantized_cache,
};
use zinc_cpu::{CpuDevice, Isa};
use zinc_ir::device::Device;
use zinc_ir::graph::AttentionSpec;
use zinc_ir::plan::{KvType, KvTypes};
use zinc_vulkan::Options;

fn check(heads: u32, kv_heads: u32, head_dim: u32, window: Option<u32>, subgroup: u32) {
    // The factor is a power of two: queries stay exact.
    let spec = AttentionSpec { heads, kv_heads, head_dim, scale: 0.125, window };
    let mut device = InterpretedDevice::new(gpu_caps(subgroup), head_dim as u64);
    attention_of_prompts(&mut device, spec, Some("attention_matrices"));
}

#[test]
fn head_sizes_groups_and_windows() {
    check(4, 2, 64, None, 32);
    check(6, 2, 80, None, 8);
    check(5, 1, 96, Some(20), 64);
    check(14, 2, 112, None, 16);
    check(8, 1, 128, None, 32);
    check(2, 2, 128, Some(33), 64);
    check(4, 1, 256, Some(50), 32);
    check(2, 1, 256, None, 4);
}

#[test]
fn batches_row_by_row() {
    let cases = [(4, 2, 64, None, 32), (7, 1, 32, Some(300), 16), (2, 2, 96, None, 8), (4, 4, 128, Some(20), 64)];
    for (heads, kv_heads, head_dim, window, subgroup) in cases {
        let spec = AttentionSpec { heads, kv_heads, head_dim, scale: 0.125, window };
        let mut device = InterpretedDevice::new(gpu_caps(subgroup), head_dim as u64);
        attention_of_batches(&mut device, spec, KvType::F16);
    }
}

const QUANTIZED: [KvTypes; 4] = [
    KvTypes { k: KvType::Q8_0, v: KvType::Q8_0 },
    KvTypes { k: KvType::Q4_0, v: KvType::Q4_0 },
    KvTypes { k: KvType::Q8_0, v: KvType::Q4_0 },
    KvTypes { k: KvType::F16, v: KvType::Q8_0 },
];

/// Attention over what was quantized, as over what plain Rust makes of quantizing it and back; batches as alone.
fn quantized(device: &mut dyn Device, types: &[KvTypes], heads: u32, kv_heads: u32, head_dim: u32) {
    let spec = AttentionSpec { heads, kv_heads, head_dim, scale: 0.125, window: None };
    for types in types {
        attention_of_batches(device, spec, *types);
        attention_of_prompts_in(device, spec, *types, None);
    }
}

#[test]
fn quantized_in_the_interpreter() {
    for types in QUANTIZED {
        let spec = AttentionSpec { heads: 4, kv_heads: 2, head_dim: 64, scale: 0.125, window: Some(40) };
        let mut device = InterpretedDevice::new(gpu_caps(64), 7);
        attention_of_prompts_in(&mut device, spec, types, Some("attention_matrices"));
    }
    for (i, (heads, kv_heads, head_dim, subgroup)) in [(4, 2, 64, 8), (2, 1, 96, 32)].into_iter().enumerate() {
        let mut device = InterpretedDevice::new(gpu_caps(subgroup), head_dim as u64);
        quantized(&mut device, &QUANTIZED[2 * i..2 * i + 2], heads, kv_heads, head_dim);
    }
}

#[test]
fn quantized_on_the_cpu() {
    for isa in Isa::available() {
        let mut device = CpuDevice::with_isa(2, isa).expect("a device");
        quantized(&mut device, &QUANTIZED, 4, 2, 64);
        quantized(&mut device, &QUANTIZED, 2, 1, 96);
    }
}

#[test]
fn quantized_on_vulkan() {
    if let Some(mut device) = support::vulkan(&Options::default()) {
        quantized(&mut device, &QUANTIZED[..2], 4, 2, 64);
        quantized(&mut device, &QUANTIZED[2..], 4, 1, 128);
    }
}

/// How far logits may be off: twice what it is. Random weights make much of little: halves, too, are off by 0.01 there.
const MOST: [(KvTypes, Distance); 2] = [
    (KvTypes { k: KvType::Q8_0, v: KvType::Q8_0 }, Distance { max: 0.4, kl: 2e-3 }),
    (KvTypes { k: KvType::Q8_0, v: KvType::Q4_0 }, Distance { max: 5.0, kl: 0.3 }),
];

#[test]
fn logits_with_a_quantized_cache() {
    for (types, most) in MOST {
        for (path, piece) in [("arch/llama", 24), ("arch/llama", 1), ("arch/gemma3", 7), ("quant/Q8_0", 24)] {
            let mut device = CpuDevice::new(2).expect("a device");
            quantized_cache(&mut device, path, types, piece, most);
        }
        let mut device = InterpretedDevice::new(gpu_caps(8), 3);
        quantized_cache(&mut device, "arch/llama", types, 5, most);
    }
}
