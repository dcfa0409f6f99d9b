//! Barriers are proved: taking any one out of a plan makes its verification fail.

use std::sync::Arc;
use zinc_compiler::{Choices, compile};
use zinc_conformance::{Fixture, gpu_caps};
use zinc_ir::plan::{ActPrecision, Bucket, Entry, KvLayout, KvType, PlanError, Tail, verify};

fn plans(path: &str) -> Vec<zinc_ir::plan::Plan> {
    let f = Fixture::open(path);
    let kv = Arc::new(KvLayout::new(&f.graph, KvType::F16, 64));
    let caps = gpu_caps(32);
    let mut plans = vec![];
    for tokens in [1, 8, 16] {
        for (tail, act) in [(Tail::Greedy, ActPrecision::F32), (Tail::Logits, ActPrecision::Q8)] {
            for fuse in [true, false] {
                let bucket = Bucket { tokens, outputs: tokens, context: 512, sequences: 2, tail };
                let choices = Choices { act, fuse, ..Choices::default() };
                plans.push(compile(&f.graph, &kv, bucket, &caps, &choices).expect("compiles"));
            }
        }
    }
    plans
}

#[test]
fn deleting_any_barrier_is_found() {
    for path in ["arch/llama", "arch/gemma3", "quant/Q4_K"] {
        for plan in plans(path) {
            assert_eq!(verify(&plan), Ok(()), "{path}");
            let barriers: Vec<usize> =
                (0..plan.entries.len()).filter(|i| matches!(plan.entries[*i], Entry::Barrier)).collect();
            assert!(barriers.len() > 4, "{path}: {} barriers", barriers.len());
            for at in barriers {
                let mut broken = plan.clone();
                broken.entries.remove(at);
                let found = verify(&broken);
                assert!(matches!(found, Err(PlanError::Hazard { .. })), "{path}: barrier {at} was not needed");
            }
        }
    }
}

#[test]
fn a_decode_layer_is_six_launches() {
    let f = Fixture::open("arch/llama");
    let kv = Arc::new(KvLayout::new(&f.graph, KvType::F16, 64));
    let bucket = Bucket { tokens: 1, outputs: 1, context: 1024, sequences: 1, tail: Tail::Greedy };
    let plan = compile(&f.graph, &kv, bucket, &gpu_caps(32), &Choices::default()).expect("compiles");
    let layers = f.graph.kv().len();
    for layer in 0..layers as u32 {
        let names: Vec<_> = plan.launches().filter(|l| l.layer == layer).map(|l| l.template).collect();
        assert_eq!(
            names,
            ["matvec_qkv", "attention", "attention", "matvec_residual", "matvec_glu", "matvec_residual"],
            "layer {layer}"
        );
    }
    assert_eq!(plan.launches().count(), layers * 6 + 3, "embed, lm_head and argmax beside the layers");
}
