//! Attention of prompts on matrices: what the compiler makes of a chunk of tokens. Most of the vector units' time belongs
//! to the matrices.

use crate::isa::{cost, matrices};
use std::sync::Arc;
use zinc_compiler::{Choices, compile};
use zinc_ir::plan::{ActPrecision, Bucket, KvLayout, KvType, Tail};

/// Least share of matrices in the cycles of vector units, over the code as it stands: what comes before the loop and
/// after it counts as much as a chunk, and of two ways to make weights both do.
const SHARE: f64 = 0.35;
/// Workgroup memory may take this much longer than the matrices, if lanes that read one place cost as much as others.
const SHARED: f64 = 2.0;

#[test]
fn attention_is_mostly_matrices() {
    let Some((family, device)) = crate::device() else { return };
    let caps = device.caps(device.subgroup_size);
    for shape in ["llama3.1-8b:q4_k_m", "qwen2.5-32b:q4_k_m"] {
        let (model, _) = zinc_models::synthetic(shape, Some(1)).unwrap_or_else(|e| panic!("{shape}: {e}"));
        let kv = Arc::new(KvLayout::new(&model.graph, KvType::F16, 128));
        let bucket = Bucket { tokens: 2048, outputs: 1, context: 4096, sequences: 1, tail: Tail::Greedy };
        let choices = Choices { act: ActPrecision::F16, ..Choices::default() };
        let plan = compile(&model.graph, &kv, bucket, &caps, &choices).expect("compiles");
        let Some(launch) = plan.launches().find(|l| l.template == "attention_matrices") else {
            assert!(caps.matrices.is_empty(), "{family} has matrices, but attention goes without:\n{plan}");
            println!("not run: {family} has no matrices here");
            return;
        };
        let kernel = plan.kernels[launch.kernel.expect("a kernel").0 as usize].clone();
        let stats = zinc_vulkan::compile_only(device.index, &[kernel], true).expect("the kernel compiles").remove(0);
        let assembly = stats.assembly.as_deref().expect("the driver gives machine code");
        let (all, of_matrices) = (cost(assembly), matrices(assembly));
        println!(
            "{family}, {}: {of_matrices} of {} vector cycles, {} of workgroup memory; {:?} registers, {:?} \
             resident subgroups",
            stats.kernel, all.vector, all.shared, stats.vgprs, stats.occupancy
        );
        assert_eq!((stats.spills, stats.scratch.unwrap_or(0)), (Some(0), 0), "{}", stats.kernel);
        assert!(of_matrices / all.vector >= SHARE, "{}: {of_matrices} of {}", stats.kernel, all.vector);
        assert!(all.shared <= of_matrices * SHARED, "{}: {} of workgroup memory", stats.kernel, all.shared);
    }
}
