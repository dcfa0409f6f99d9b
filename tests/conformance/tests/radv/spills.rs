//! Every kernel of real shapes: none may spill; the table says what the compiler made of each.

use std::collections::BTreeMap;
use std::sync::Arc;
use zinc_compiler::{Choices, compile};
use zinc_ir::device::Caps;
use zinc_ir::kernel::Kernel;
use zinc_ir::plan::{ActPrecision, Bucket, KvLayout, KvType, Tail};

/// Shapes and format mixes: every weight format at least once.
const SHAPES: &[&str] = &[
    "llama3.1-8b:q4_k_m",
    "qwen2.5-32b:q4_k_m",
    "qwen3-30b-a3b:q4_k_m",
    "llama3.1-8b:q5_k_m",
    "llama3.1-8b:q3_k_m",
    "llama3.1-8b:iq4_xs",
    "qwen2.5-32b:iq3_m",
    "llama3.1-8b:iq3_xxs",
    "llama3.1-8b:iq4_nl",
    "llama3.1-8b:mxfp4",
    "llama3.1-8b:q8_0",
    "llama3.1-8b:q4_0",
    "smollm2-135m:q4_1",
    "smollm2-135m:q5_0",
    "smollm2-135m:q5_1",
    "smollm2-135m:f16",
    "smollm2-135m:bf16",
    "smollm2-135m:f32",
];

/// Adds the distinct kernels of a shape's decode, small-batch and prompt plans.
fn collect(shape: &str, caps: &Caps, kernels: &mut BTreeMap<String, Kernel>) {
    let (model, _) = zinc_models::synthetic(shape, Some(1)).unwrap_or_else(|e| panic!("{shape}: {e}"));
    let kv = Arc::new(KvLayout::new(&model.graph, KvType::F16, 128));
    for (tokens, act) in [
        (1, ActPrecision::F32),
        (1, ActPrecision::F16),
        (1, ActPrecision::Q8),
        (4, ActPrecision::F32),
        (4, ActPrecision::F16),
        (6, ActPrecision::Q8),
        (8, ActPrecision::F32),
        (8, ActPrecision::F16),
        (8, ActPrecision::Q8),
        (16, ActPrecision::F16),
        (64, ActPrecision::F16),
        (512, ActPrecision::F32),
        (512, ActPrecision::F16),
    ] {
        let bucket = Bucket { tokens, outputs: 1, context: 4096, sequences: 4, tail: Tail::Greedy };
        let choices = Choices { act, ..Choices::default() };
        let plan = compile(&model.graph, &kv, bucket, caps, &choices).unwrap_or_else(|e| panic!("{shape}: {e}"));
        for kernel in plan.kernels {
            kernels.entry(kernel.to_string()).or_insert(kernel);
        }
    }
}

#[test]
fn no_kernel_spills() {
    let Some((family, device)) = crate::device() else { return };
    let mut kernels = BTreeMap::new();
    for shape in SHAPES {
        collect(shape, &device.caps(device.subgroup_size), &mut kernels);
    }
    let kernels: Vec<Kernel> = kernels.into_values().collect();
    let stats = zinc_vulkan::compile_only(device.index, &kernels, false).expect("every kernel compiles");
    println!("{family}: {} kernels on {}", stats.len(), device.name);
    println!(
        "{:<64} {:>5} {:>5} {:>6} {:>9} {:>8} {:>8}",
        "kernel", "VGPR", "SGPR", "spills", "occupancy", "LDS", "cycles"
    );
    let show = |v: Option<u64>| v.map_or("?".to_string(), |v| v.to_string());
    let mut spilled = vec![];
    for s in &stats {
        println!(
            "{:<64} {:>5} {:>5} {:>6} {:>9} {:>8} {:>8}",
            s.kernel,
            show(s.vgprs),
            show(s.sgprs),
            show(s.spills),
            show(s.occupancy),
            show(s.shared),
            show(s.inverse_throughput)
        );
        assert!(s.vgprs.is_some() && s.spills.is_some(), "{}: the driver tells no registers: {:?}", s.kernel, s.raw);
        if s.spills != Some(0) || s.scratch.unwrap_or(0) != 0 {
            spilled.push(s.kernel.clone());
        }
    }
    assert!(spilled.is_empty(), "kernels that spill: {spilled:?}");
}
