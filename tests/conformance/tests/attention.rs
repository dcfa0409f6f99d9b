//! Attention of prompts on matrices, and of batches that generate, in the interpreter: head sizes, groups and windows.

use zinc_conformance::{InterpretedDevice, attention_of_batches, attention_of_prompts, gpu_caps};
use zinc_ir::graph::AttentionSpec;
use zinc_ir::plan::KvType;

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
