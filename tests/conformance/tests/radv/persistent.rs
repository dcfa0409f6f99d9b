//! A layer of a real shape as one persistent kernel: the compiler needs about as many registers for it as for its
//! largest body, and spills nothing.

use std::sync::Arc;
use zinc_compiler::{Choices, compile};
use zinc_conformance::{even_cuts, layers_as_one};
use zinc_ir::device::Caps;
use zinc_ir::kernel::Kernel;
use zinc_ir::plan::{ActPrecision, Bucket, KvLayout, KvType, Tail};

#[test]
fn a_persistent_layer_needs_the_registers_of_its_largest_body() {
    let Some((family, device)) = crate::device() else { return };
    let size = device.subgroup_size;
    let caps = Caps { max_workgroup: 2 * size, ..device.caps(size) };
    for shape in ["llama3.1-8b:q4_k_m", "qwen3-30b-a3b:q4_k_m", "llama3.1-8b:q8_0"] {
        let (model, _) = zinc_models::synthetic(shape, Some(1)).unwrap_or_else(|e| panic!("{shape}: {e}"));
        let kv = Arc::new(KvLayout::new(&model.graph, KvType::F16, 128));
        let bucket = Bucket { tokens: 1, outputs: 1, context: 4096, sequences: 1, tail: Tail::Greedy };
        let choices =
            even_cuts(&model.graph, &kv, bucket, &caps, Choices { act: ActPrecision::F16, ..Choices::default() });
        let plan = compile(&model.graph, &kv, bucket, &caps, &choices).expect("compiles");
        let of_layer = plan.launches().filter(|l| l.layer == 0).filter_map(|l| l.kernel);
        let mut kernels: Vec<Kernel> = of_layer.map(|k| plan.kernels[k.0 as usize].clone()).collect();
        let one = layers_as_one(&plan, 96).kernels.into_iter().find(|k| k.has_grid_barrier());
        kernels.push(one.expect("the layer has barriers"));
        let stats = zinc_vulkan::compile_only(device.index, &kernels, false).expect("every kernel compiles");
        let (one, bodies) = stats.split_last().expect("kernels were compiled");
        let largest = bodies.iter().filter_map(|s| s.vgprs).max().expect("the driver tells registers");
        let registers = one.vgprs.expect("the driver tells registers");
        println!("{family}, {shape}: {registers} registers, its largest body {largest}; waves {:?}", one.occupancy);
        assert!(registers <= largest + 16, "{shape}: {registers} registers, its largest body {largest}");
        assert_eq!((one.spills, one.scratch.unwrap_or(0)), (Some(0), 0), "{shape}");
    }
}
