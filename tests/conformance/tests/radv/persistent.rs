//! The layers of real shapes as one persistent kernel: the compiler needs about as many registers for it as for its
//! largest body, and spills nothing.

use std::collections::BTreeSet;
use std::sync::Arc;
use zinc_compiler::{Choices, compile};
use zinc_conformance::{even_cuts, layers_as_one};
use zinc_ir::device::Caps;
use zinc_ir::kernel::Kernel;
use zinc_ir::plan::{ActPrecision, Bucket, KvLayout, KvType, Tail};

#[test]
fn persistent_layers_need_the_registers_of_their_largest_body() {
    let Some((family, device)) = crate::device() else { return };
    let size = device.subgroup_size;
    let caps = Caps { max_workgroup: 2 * size, ..device.caps(size) };
    // All 32 layers of the last.
    for (shape, layers) in
        [("qwen3-30b-a3b:q4_k_m", Some(2)), ("llama3.1-8b:q8_0", Some(1)), ("llama3.1-8b:q4_k_m", None)]
    {
        let (model, _) = zinc_models::synthetic(shape, layers).unwrap_or_else(|e| panic!("{shape}: {e}"));
        let kv = Arc::new(KvLayout::new(&model.graph, KvType::F16, 128));
        let bucket = Bucket { tokens: 1, outputs: 1, context: 4096, sequences: 1, tail: Tail::Greedy };
        let choices =
            even_cuts(&model.graph, &kv, bucket, &caps, Choices { act: ActPrecision::F16, ..Choices::default() });
        let plan = compile(&model.graph, &kv, bucket, &caps, &choices).expect("compiles");
        let of_layers: BTreeSet<u32> =
            plan.launches().filter(|l| l.layer != u32::MAX).filter_map(|l| Some(l.kernel?.0)).collect();
        let mut kernels: Vec<Kernel> = of_layers.iter().map(|k| plan.kernels[*k as usize].clone()).collect();
        let one = layers_as_one(&plan, 96).kernels.into_iter().find(|k| k.has_grid_barrier());
        kernels.push(one.expect("the layer has barriers"));
        let stats = zinc_vulkan::compile_only(device.index, &kernels, false).expect("every kernel compiles");
        let (one, bodies) = stats.split_last().expect("kernels were compiled");
        let largest = bodies.iter().filter_map(|s| s.vgprs).max().expect("the driver tells registers");
        let registers = one.vgprs.expect("the driver tells registers");
        println!(
            "{family}, {shape}: {registers} registers, its largest body {largest}; waves {:?}, code {:?} bytes",
            one.occupancy, one.code
        );
        assert!(registers <= largest + 16, "{shape}: {registers} registers, its largest body {largest}");
        assert_eq!((one.spills, one.scratch.unwrap_or(0)), (Some(0), 0), "{shape}");
    }
}
