//! Barriers are proved: taking any one out of a plan makes its verification fail.

use std::sync::Arc;
use zinc_compiler::{Choices, compile};
use zinc_conformance::{Fixture, gpu_caps};
use zinc_ir::graph::Graph;
use zinc_ir::plan::{ActPrecision, Bucket, Entry, KvLayout, KvType, PlanError, Tail, verify};

fn plans(path: &str) -> Vec<zinc_ir::plan::Plan> {
    let f = Fixture::open(path);
    let kv = Arc::new(KvLayout::new(&f.graph, KvType::F16, 64));
    let caps = gpu_caps(32);
    let mut plans = vec![];
    for tokens in [1, 8, 16] {
        let mixed = Tail::Mixed { candidates: 64, logits: 1 };
        for (tail, act) in
            [(Tail::Greedy, ActPrecision::F32), (Tail::Logits, ActPrecision::Q8), (mixed, ActPrecision::F16)]
        {
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
    for path in ["arch/llama", "arch/gemma3", "arch/qwen3moe", "quant/Q4_K"] {
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

/// The templates of each layer's launches in decoding, and how many launches there are besides.
fn decode_layers(graph: &Arc<Graph>, act: ActPrecision) -> (Vec<Vec<&'static str>>, usize) {
    let kv = Arc::new(KvLayout::new(graph, KvType::F16, 64));
    let bucket = Bucket { tokens: 1, outputs: 1, context: 1024, sequences: 1, tail: Tail::Greedy };
    let choices = Choices { act, ..Choices::default() };
    let plan = compile(graph, &kv, bucket, &gpu_caps(32), &choices).expect("compiles");
    let of = |layer| plan.launches().filter(|l| l.layer == layer).map(|l| l.template).collect::<Vec<_>>();
    let layers: Vec<_> = (0..graph.kv().len() as u32).map(of).collect();
    let rest = plan.launches().count() - layers.iter().map(Vec::len).sum::<usize>();
    (layers, rest)
}

#[test]
fn a_decode_layer_with_experts_is_six_launches() {
    let fixture = Fixture::open("arch/qwen3moe").graph;
    let shape = zinc_models::synthetic("qwen3-30b-a3b:q4_k_m", Some(2)).expect("a shape").0.graph;
    let expected = ["matvec_qkv", "attention", "matvec_residual", "router", "expert_glu", "expert_down"];
    for (graph, act) in [(&fixture, ActPrecision::F32), (&shape, ActPrecision::F32), (&shape, ActPrecision::F16)] {
        let (layers, rest) = decode_layers(graph, act);
        assert_eq!(layers, vec![expected.to_vec(); 2], "{act:?}");
        // Embedding and its quantization, output matrix, and the passes of the argmax.
        assert!((3..=5).contains(&rest), "{act:?}: {rest} launches outside layers");
    }
}

#[test]
fn experts_of_many_rows_are_six_launches() {
    let graph = zinc_models::synthetic("qwen3-30b-a3b:q4_k_m", Some(2)).expect("a shape").0.graph;
    let kv = Arc::new(KvLayout::new(&graph, KvType::F16, 64));
    for (tokens, expected) in [(8, 0), (9, 6), (64, 6), (2048, 6)] {
        let bucket = Bucket { tokens, outputs: 1, context: 2048, sequences: 1, tail: Tail::Greedy };
        for act in [ActPrecision::F32, ActPrecision::F16] {
            let choices = Choices { act, ..Choices::default() };
            let plan = compile(&graph, &kv, bucket, &gpu_caps(32), &choices).expect("compiles");
            for layer in 0..2 {
                let of_layer = plan.launches().filter(|l| l.layer == layer && l.template == "experts_sorted");
                assert_eq!(of_layer.count(), expected, "{tokens} tokens, {act:?}");
            }
        }
    }
}

#[test]
fn a_decode_layer_is_five_launches() {
    let f = Fixture::open("arch/llama");
    let kv = Arc::new(KvLayout::new(&f.graph, KvType::F16, 64));
    let bucket = Bucket { tokens: 1, outputs: 1, context: 1024, sequences: 1, tail: Tail::Greedy };
    let plan = compile(&f.graph, &kv, bucket, &gpu_caps(32), &Choices::default()).expect("compiles");
    let layers = f.graph.kv().len();
    for layer in 0..layers as u32 {
        let names: Vec<_> = plan.launches().filter(|l| l.layer == layer).map(|l| l.template).collect();
        assert_eq!(
            names,
            ["matvec_qkv", "attention", "matvec_residual", "matvec_glu", "matvec_residual"],
            "layer {layer}"
        );
    }
    assert_eq!(plan.launches().count(), layers * 5 + 3, "embed, lm_head and argmax beside the layers");
}
