//! Launches are charged for what they move and compute: nothing twice, nothing left out, and the same arithmetic however
//! a plan is cut into launches.

use std::sync::Arc;
use zinc_compiler::{Choices, compile};
use zinc_conformance::gpu_caps;
use zinc_ir::device::Caps;
use zinc_ir::graph::Op;
use zinc_ir::plan::{ActPrecision, Bucket, Cost, KvLayout, KvType, Plan, Tail};

const SHAPES: &[&str] = &["llama3.1-8b:q4_k_m", "qwen3-0.6b:q8_0", "gemma3-270m:q4_0", "smollm2-135m:f16"];
const LAYERS: u32 = 2;

fn plan(shape: &str, tokens: u32, caps: &Caps, choices: Choices) -> Plan {
    let (model, _) = zinc_models::synthetic(shape, Some(LAYERS)).expect("a known shape");
    let kv = Arc::new(KvLayout::new(&model.graph, KvType::F16, 32));
    let bucket = Bucket { tokens, outputs: 1, context: 1024, sequences: 1, tail: Tail::Greedy };
    compile(&model.graph, &kv, bucket, caps, &choices).expect("compiles")
}

/// Weights of products with their rows, and everything that attention does, straight from the graph.
fn floor(plan: &Plan) -> Cost {
    let mut cost = Cost::default();
    for node in plan.graph.nodes() {
        match &node.op {
            Op::MatMul { weight, .. } => {
                let w = plan.graph.weight_of(*weight);
                let rows = match node.shape.rows {
                    zinc_ir::graph::Rows::Tokens => plan.bucket.tokens,
                    zinc_ir::graph::Rows::Outputs => plan.bucket.outputs,
                };
                cost.bytes += w.bytes();
                cost.flops += 2 * rows as u64 * w.rows as u64 * w.cols as u64;
            }
            Op::Attention { spec, .. } => {
                let attention = Cost::of_attention(spec, plan.kv.types, &plan.bucket);
                cost.bytes += attention.bytes;
                cost.flops += attention.flops;
            }
            _ => {}
        }
    }
    cost
}

#[test]
fn launches_are_charged_once() {
    for shape in SHAPES {
        for tokens in [1, 4, 64] {
            for act in [ActPrecision::F32, ActPrecision::F16, ActPrecision::Q8] {
                for (caps, fuse) in
                    [(gpu_caps(32), true), (gpu_caps(8), true), (gpu_caps(32), false), (Caps::native(), true)]
                {
                    let plan = plan(shape, tokens, &caps, Choices { act, fuse, ..Choices::default() });
                    let what = format!("{shape}, {tokens} rows, {act:?}, fused {fuse}, native {}", caps.native);
                    let floor = floor(&plan);
                    let (bytes, flops) = plan.launches().fold((0, 0), |(b, f), l| (b + l.bytes, f + l.flops));
                    assert_eq!(flops, floor.flops, "{what}");
                    // Beside weights and caches there are only values, a few rows per launch.
                    let widest = plan.graph.nodes().iter().map(|n| n.shape.cols as u64).max().unwrap_or(0);
                    let values =
                        plan.launches().count() as u64 * 6 * tokens as u64 * widest.min(16384) * 4 + widest * 64;
                    assert!(bytes > floor.bytes, "{what}: {bytes} of at least {}", floor.bytes);
                    assert!(bytes < floor.bytes + values, "{what}: {bytes} of {} and {values}", floor.bytes);
                }
            }
        }
    }
}

#[test]
fn every_launch_has_its_share() {
    let plan = plan("llama3.1-8b:q4_k_m", 1, &gpu_caps(32), Choices::default());
    let mut attentions = 0;
    for launch in plan.launches() {
        assert!(launch.bytes > 0, "{} moves something", launch.template);
        let Some(node) = launch.attends else { continue };
        attentions += 1;
        assert!(matches!(plan.graph.op(node), Op::Attention { .. }));
        let (full, short) = (plan.cost_at(launch, 1023, 1), plan.cost_at(launch, 0, 1));
        assert_eq!((full.bytes, full.flops), (launch.bytes, launch.flops), "the whole context is the bucket's");
        // 1023 tokens less, K and V of 8 heads of 128 halves each.
        assert_eq!(full.bytes - short.bytes, 1023 * 2 * 8 * 128 * 2);
    }
    assert_eq!(attentions, LAYERS, "one launch per layer reads the cache, also where the context is cut in parts");
    let embed = plan.launches().next().expect("a launch");
    assert!(embed.bytes < 64 << 10, "one row of the table is read, not all: {} bytes", embed.bytes);
}
