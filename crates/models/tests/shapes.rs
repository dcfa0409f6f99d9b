//! Synthetic shapes: their sizes are those of the published models and files.

use zinc_ir::device::WeightSource;
use zinc_ir::graph::WeightId;
use zinc_models::{Experts, MIXES, ModelError, SHAPES, open, synthetic};

#[test]
fn parameters_are_as_published() {
    // Embedding tables counted once.
    for (name, parameters) in [
        ("smollm2-135m", 134_515_008),
        ("llama3.2-1b", 1_235_814_400),
        ("llama3.1-8b", 8_030_261_248),
        ("qwen2.5-0.5b", 494_032_768),
        ("qwen2.5-7b", 7_615_616_512),
        ("qwen2.5-32b", 32_763_876_352),
        ("qwen3-8b", 8_190_735_360),
        ("qwen3-30b-a3b", 30_532_122_624),
        ("gemma3-1b", 999_885_952),
    ] {
        assert_eq!(synthetic(name, None).unwrap().0.spec.parameters(), parameters, "{name}");
    }
}

#[test]
fn mixes_have_the_size_of_published_files() {
    // Sizes of the files, which have up to 8 MB of metadata.
    for (shape, file) in [
        ("llama3.1-8b:q4_k_m", 4_920_734_272_u64),
        ("llama3.1-8b:q8_0", 8_540_770_880),
        ("qwen2.5-7b:q4_k_m", 4_683_073_632),
        ("qwen2.5-32b:Q4_K_M", 19_851_335_840),
        ("smollm2-135m:q4_k_m", 105_454_432),
    ] {
        let bytes = synthetic(shape, None).unwrap().0.spec.weight_bytes();
        let rest = file.checked_sub(bytes).unwrap_or_else(|| panic!("{shape}: {bytes} is more than the file"));
        assert!(rest < 9_000_000, "{shape}: {bytes} bytes of weights, {file} in the file");
    }
}

#[test]
fn every_shape_makes_a_graph_in_every_mix() {
    for shape in SHAPES {
        for mix in MIXES.iter().map(|m| m.name).chain(["q8_0", "f16", "bf16", "q4_0", "q4_1", "q5_0", "q5_1", "q6_k"]) {
            let (model, weights) = synthetic(&format!("{}:{mix}", shape.name), Some(2)).unwrap();
            assert_eq!(model.graph.kv().len(), 2);
            let logits = model.graph.node(model.graph.logits().unwrap()).shape.cols;
            assert_eq!(logits, shape.vocab);
            let seeds = (0..model.graph.weights().len()).map(|i| weights.synthetic(WeightId(i as u32)).unwrap());
            let distinct: std::collections::BTreeSet<u64> = seeds.collect();
            assert_eq!(distinct.len(), model.graph.weights().len(), "each weight has its own seed");
            assert!(weights.bytes(WeightId(0)).is_none());
        }
    }
}

#[test]
fn values_and_down_projections_are_better_in_some_layers() {
    let spec = synthetic("llama3.1-8b", None).unwrap().0.spec;
    let better = |part: &str| {
        let is = |i: &u32| spec.tensors[&format!("blk.{i}.{part}.weight")].format.name == "Q6_K";
        (0..32).filter(is).collect::<Vec<_>>()
    };
    let expected = [0, 1, 2, 3, 6, 9, 12, 15, 18, 21, 24, 27, 28, 29, 30, 31];
    assert_eq!(better("attn_v"), expected);
    assert_eq!(better("ffn_down"), expected);
    assert_eq!(better("ffn_up"), [0; 0]);
    assert_eq!(spec.tensors["output.weight"].format.name, "Q6_K");
    assert_eq!(spec.tensors["token_embd.weight"].format.name, "Q4_K");
    // Rows of 896 are no blocks of 256.
    let small = synthetic("qwen2.5-0.5b", None).unwrap().0.spec;
    assert_eq!(small.tensors["blk.0.attn_q.weight"].format.name, "Q5_0");
    assert_eq!(small.tensors["token_embd.weight"].format.name, "Q8_0");
}

#[test]
fn a_token_reads_the_experts_it_uses() {
    let spec = synthetic("qwen3-30b-a3b:q4_k_m", None).unwrap().0.spec;
    assert_eq!(spec.experts, Some(Experts { count: 128, used: 8, ffn: 768 }));
    assert_eq!(spec.tensors["blk.0.ffn_gate_inp.weight"].format.name, "F32");
    assert_eq!(spec.tensors["blk.0.ffn_down_exps.weight"].format.name, "Q6_K");
    assert_eq!(spec.tensors["blk.6.ffn_down_exps.weight"].format.name, "Q4_K");
    // 17.28 GiB in the published file.
    let gib = spec.weight_bytes() as f64 / (1u64 << 30) as f64;
    assert!((17.26..17.29).contains(&gib), "{gib} GiB");
    let gb = spec.bytes_per_token() as f64 / 1e9;
    assert!((1.9..2.1).contains(&gb), "{gb} GB per token");
    // In a dense model, all but the table; where that is the output matrix, all.
    let dense = synthetic("llama3.1-8b", None).unwrap().0.spec;
    let table = dense.tensors["token_embd.weight"];
    assert_eq!(dense.bytes_per_token(), dense.weight_bytes() - table.bytes() + table.bytes() / table.rows as u64);
    let tied = synthetic("smollm2-135m", None).unwrap().0.spec;
    assert_eq!(tied.bytes_per_token(), tied.weight_bytes());
}

#[test]
fn rope_scaling_of_the_shapes_is_that_of_the_architecture() {
    let rope = |name: &str| synthetic(name, Some(1)).unwrap().0.spec.rope;
    // Pair i has a wavelength of 2 pi 500000^(i/64) tokens: below 8192 / 4 up to i = 28, above 8192 from i = 35.
    let divisors = rope("llama3.1-8b").divisors;
    assert_eq!(divisors.len(), 64);
    assert!(divisors[..29].iter().all(|&d| d == 1.0) && divisors[29] > 1.0);
    assert!(divisors[35] == 8.0 && divisors[63] == 8.0, "{divisors:?}");
    assert!(rope("mistral-7b").divisors.is_empty());
    assert_eq!(synthetic("gemma3-27b", Some(1)).unwrap().0.spec.attention_scale, 1.0 / 128_f32.sqrt());
    let gemma = synthetic("gemma3-27b", None).unwrap().0.spec;
    assert!((gemma.attention_scale - 1.0 / 168_f32.sqrt()).abs() < 1e-8);
    assert_eq!(gemma.sliding.unwrap().layers.iter().filter(|w| !**w).count(), 10);
}

#[test]
fn wrong_names_are_told_what_there_is() {
    let error = |shape: &str, layers| synthetic(shape, layers).unwrap_err();
    assert!(matches!(error("llama9", None), ModelError::UnknownShape { known, .. } if known.contains("llama3.1-8b")));
    assert!(matches!(error("tiny:q9", None), ModelError::UnknownMix { known, .. } if known.contains("q4_k_m, ")));
    assert!(matches!(error("tiny", Some(0)), ModelError::LayerCount { has: 2, asked: 0, .. }));
    assert!(matches!(error("tiny", Some(3)), ModelError::LayerCount { .. }));
    assert!(matches!(error("gemma3-27b:f32", Some(1)), ModelError::TensorTooLarge { .. }));
}

/// A synthetic model written to a file is the model again.
#[test]
fn a_shape_is_a_model_that_a_file_could_hold() {
    let (model, weights) = synthetic("tiny:q4_k_m", None).unwrap();
    let mut file = zinc_gguf::GgufWriter::new();
    file.set("general.architecture", "llama").set("general.name", "tiny:q4_k_m");
    let s = &model.spec;
    for (key, value) in [
        ("block_count", s.layers),
        ("embedding_length", s.width),
        ("attention.head_count", s.heads),
        ("attention.head_count_kv", s.kv_heads),
        ("attention.key_length", s.head_dim),
        ("feed_forward_length", s.ffn),
        ("vocab_size", s.vocab),
        ("context_length", s.context),
    ] {
        file.set(format!("llama.{key}"), value);
    }
    file.set("llama.attention.layer_norm_rms_epsilon", s.norm_eps);
    for (i, w) in model.graph.weights().iter().enumerate() {
        let mut bytes = vec![0; w.bytes() as usize];
        let seed = weights.synthetic(WeightId(i as u32)).unwrap();
        zinc_ir::synthetic::Recipe::of(w).fill(seed, 0, &mut bytes);
        let ty = zinc_gguf::TensorType::from_id(w.format.ggml_type).unwrap();
        let (rows, cols) = (w.rows as usize, w.cols as usize);
        let shape = if rows == 1 { vec![cols] } else { vec![cols, rows] };
        file.tensor(&w.name, &shape, ty, bytes).unwrap();
    }
    let again = open(&zinc_gguf::Gguf::from_bytes(file.to_bytes().unwrap()).unwrap()).unwrap();
    assert_eq!(again.spec, model.spec);
    assert_eq!(again.graph.to_string(), model.graph.to_string());
}
