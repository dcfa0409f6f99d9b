//! Files that are no good: each is refused with words that name the key or tensor; none panics.

use std::path::Path;
use zinc_gguf::{Array, Gguf, GgufWriter, TensorType, Value};
use zinc_models::{ModelError, open};

/// A file's metadata and tensors, open to changes.
struct Edit {
    keys: Vec<(String, Value)>,
    tensors: Vec<(String, Vec<usize>, TensorType, Vec<u8>)>,
}

fn load(name: &str) -> Edit {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../tests/data/arch/{name}/model.gguf"));
    let gguf = Gguf::open(path).unwrap();
    let tensors = gguf.tensors().iter().map(|t| (t.name.clone(), t.shape.clone(), t.ty, gguf.data(t).to_vec()));
    let keys = gguf.metadata().iter().map(|(k, v)| (k.to_owned(), v.clone()));
    Edit { keys: keys.collect(), tensors: tensors.collect() }
}

impl Edit {
    fn set(mut self, key: &str, value: impl Into<Value>) -> Edit {
        self.keys.retain(|(k, _)| k != key);
        self.keys.push((key.to_owned(), value.into()));
        self
    }
    fn unset(mut self, key: &str) -> Edit {
        self.keys.retain(|(k, _)| k != key);
        self
    }
    fn drop_tensor(mut self, name: &str) -> Edit {
        self.tensors.retain(|t| t.0 != name);
        self
    }
    /// Replaces (or adds) a tensor by zeros of another shape and type.
    fn tensor(self, name: &str, shape: &[usize], ty: TensorType) -> Edit {
        let bytes = ty.bytes_for(shape.iter().product()).unwrap();
        self.tensor_of(name, shape, ty, vec![0; bytes])
    }
    fn tensor_of(self, name: &str, shape: &[usize], ty: TensorType, data: Vec<u8>) -> Edit {
        let mut edit = self.drop_tensor(name);
        edit.tensors.push((name.to_owned(), shape.to_vec(), ty, data));
        edit
    }
    fn open(&self) -> Result<(), ModelError> {
        let mut writer = GgufWriter::new();
        for (key, value) in &self.keys {
            writer.set(key.clone(), value.clone());
        }
        for (name, shape, ty, data) in &self.tensors {
            writer.tensor(name.clone(), shape, *ty, &data[..]).unwrap();
        }
        let gguf = Gguf::from_bytes(writer.to_bytes().unwrap()).unwrap();
        open(&gguf).map(|_| ())
    }
    #[track_caller]
    fn refused(self, words: &str) {
        let error = self.open().expect_err("opened").to_string();
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn unchanged_copies_open() {
    for name in ["llama", "llama_linear", "qwen2", "qwen2_yarn", "qwen3", "qwen3moe", "gemma3"] {
        load(name).open().unwrap();
    }
}

#[test]
fn architecture() {
    load("llama").unset("general.architecture").refused("metadata key \"general.architecture\" is missing");
    load("llama")
        .set("general.architecture", "rwkv7")
        .refused("\"rwkv7\" is not supported; supported are: llama, qwen2");
}

#[test]
fn missing_keys_are_named() {
    for key in ["block_count", "embedding_length", "attention.head_count", "feed_forward_length", "context_length"] {
        load("qwen3").unset(&format!("qwen3.{key}")).refused(&format!("metadata key \"qwen3.{key}\" is missing"));
    }
    load("llama").unset("llama.attention.layer_norm_rms_epsilon").refused("llama.attention.layer_norm_rms_epsilon");
}

#[test]
fn numbers_out_of_range_are_named() {
    let bad = |key: &str, value: u32| load("llama").set(&format!("llama.{key}"), value);
    bad("block_count", 0).refused("\"llama.block_count\" is 0, but must be from 1 to");
    bad("block_count", u32::MAX).refused("llama.block_count");
    bad("embedding_length", 1 << 30).refused("llama.embedding_length");
    bad("attention.head_count", 0).refused("llama.attention.head_count");
    bad("attention.head_count_kv", 3).refused("\"llama.attention.head_count_kv\" is 3, but must be a divisor of the 4");
    bad("attention.key_length", 30).refused("heads of 30 elements");
    bad("attention.value_length", 16).refused("keys of 32 but values of 16");
    bad("rope.dimension_count", 34).refused("llama.rope.dimension_count");
    bad("rope.dimension_count", 31).refused("llama.rope.dimension_count");
    load("qwen2")
        .set("qwen2.attention.head_count", 3_u32)
        .set("qwen2.attention.head_count_kv", 3_u32)
        .refused("a divisor");
    load("llama").set("llama.attention.layer_norm_rms_epsilon", f32::NAN).refused("NaN, but must be a positive");
    load("llama").set("llama.rope.freq_base", 1.0_f32).refused("above 1");
    load("llama").set("llama.rope.freq_base", -5.0_f32).refused("llama.rope.freq_base");
    load("llama").set("llama.block_count", "two").refused("llama.block_count");
}

#[test]
fn layers_that_differ_are_refused() {
    load("llama").set("llama.attention.head_count_kv", vec![2_u32, 2]).open().unwrap();
    load("llama").set("llama.attention.head_count_kv", vec![2_u32, 4]).refused("a different attention.head_count_kv");
    load("llama").set("llama.feed_forward_length", vec![256_u32]).refused("llama.feed_forward_length");
}

#[test]
fn variants_that_compute_otherwise_are_refused() {
    load("llama").set("llama.expert_count", 8_u32).refused("has 8 experts per layer");
    load("llama").set("llama.expert_count", 0_u32).open().unwrap();
    load("qwen3").set("qwen3.attention.causal", false).refused("not causal");
    load("gemma3").set("gemma3.final_logit_softcapping", 30.0_f32).refused("final_logit_softcapping");
    load("llama").set("llama.rope.scaling.type", "longrope").refused("rope scaling of type \"longrope\"");
}

#[test]
fn mixtures_of_experts() {
    let edit = |key: &str, value: u32| load("qwen3moe").set(&format!("qwen3moe.{key}"), value);
    edit("expert_count", 0).refused("\"qwen3moe.expert_count\" is 0, but must be from 1 to");
    edit("expert_count", 16).refused("\"blk.0.ffn_gate_inp.weight\" has shape [128, 8]");
    edit("expert_used_count", 9).refused("\"qwen3moe.expert_used_count\" is 9, but must be at most the 8 experts");
    edit("expert_used_count", 0).refused("qwen3moe.expert_used_count");
    edit("expert_feed_forward_length", 64).refused("\"blk.0.ffn_gate_exps.weight\" has shape [128, 32, 8]");
    edit("expert_feed_forward_length", u32::MAX).refused("qwen3moe.expert_feed_forward_length");
    load("qwen3moe").unset("qwen3moe.expert_count").refused("metadata key \"qwen3moe.expert_count\" is missing");
    // 256 of a dense block, for two experts.
    load("qwen3moe").unset("qwen3moe.expert_feed_forward_length").refused("the metadata ask for [128, 128, 8]");
    load("qwen3moe").set("qwen3moe.expert_weights_scale", 2.5_f32).refused("expert_weights_scale");
    load("qwen3moe").drop_tensor("blk.1.ffn_down_exps.weight").refused("blk.1.ffn_down_exps.weight");
    load("qwen3moe").tensor("blk.0.ffn_up_exps.weight", &[128, 32 * 8], TensorType::F16).refused("ffn_up_exps");
}

#[test]
fn tensors_are_checked() {
    load("llama").drop_tensor("blk.1.ffn_up.weight").refused("tensor \"blk.1.ffn_up.weight\" is missing");
    load("qwen2").drop_tensor("blk.0.attn_k.bias").refused("tensor \"blk.0.attn_k.bias\" is missing");
    load("gemma3").drop_tensor("blk.5.post_ffw_norm.weight").refused("blk.5.post_ffw_norm.weight");
    load("llama").drop_tensor("token_embd.weight").refused("token_embd.weight");
    load("llama")
        .tensor("blk.0.attn_q.weight", &[128, 64], TensorType::F16)
        .refused("\"blk.0.attn_q.weight\" has shape [128, 64], but the metadata ask for [128, 128]");
    load("llama").tensor("blk.0.attn_norm.weight", &[64], TensorType::F32).refused("blk.0.attn_norm.weight");
    load("llama").tensor("blk.0.attn_norm.weight", &[128], TensorType::F16).refused("supported are: F32");
    load("llama").tensor("blk.0.attn_norm.weight", &[128, 1, 1], TensorType::F32).open().unwrap();
    load("llama").tensor("blk.0.ffn_down.weight", &[256, 128], TensorType::IQ1_S).refused("has type IQ1_S, which is");
    load("llama").tensor("blk.0.ffn_down.weight", &[256, 128], TensorType::Q4_K).open().unwrap();
    load("llama").tensor("token_embd.weight", &[128, 511], TensorType::F16).refused("token_embd.weight");
    load("llama").tensor("blk.0.attn_q_norm.weight", &[32], TensorType::F32).refused("no part of a llama model");
    load("llama").tensor("rope_freqs.weight", &[15], TensorType::F32).refused("rope_freqs.weight");
    load("llama").tensor("rope_freqs.weight", &[16], TensorType::F32).refused("table of positive numbers");
    for bad in [f32::NAN, f32::INFINITY] {
        let data: Vec<u8> = (0..128).flat_map(|i| if i == 77 { bad } else { 1.0 }.to_le_bytes()).collect();
        let norm = |name| load("llama").tensor_of(name, &[128], TensorType::F32, data.clone());
        norm("blk.0.attn_norm.weight").refused(&format!("\"blk.0.attn_norm.weight\" holds {bad} at element 77"));
        norm("output_norm.weight").refused("file is damaged");
    }
}

#[test]
fn optional_biases_are_taken() {
    for (name, len) in [("attn_q", 128), ("attn_v", 64), ("attn_output", 128), ("ffn_gate", 256), ("ffn_down", 128)] {
        load("llama").tensor(&format!("blk.0.{name}.bias"), &[len], TensorType::F32).open().unwrap();
        load("llama").tensor(&format!("blk.0.{name}.bias"), &[len + 4], TensorType::F32).refused(name);
    }
}

#[test]
fn rows_must_be_whole_groups() {
    // Width 48 in one layer: every shape agrees with the metadata, but rows are not groups of 32.
    let mut edit = load("llama").set("llama.embedding_length", 48_u32);
    for (_, shape, ty, data) in &mut edit.tensors {
        for n in shape.iter_mut().filter(|n| **n == 128) {
            *n = 48;
        }
        *data = vec![0; ty.bytes_for(shape.iter().product()).unwrap()];
    }
    // The heads' total width was 128 too.
    for layer in 0..2 {
        edit = edit.tensor(&format!("blk.{layer}.attn_q.weight"), &[48, 128], TensorType::F16);
        edit = edit.tensor(&format!("blk.{layer}.attn_output.weight"), &[128, 48], TensorType::F16);
    }
    edit.drop_tensor("rope_freqs.weight").refused("whole groups of 32");
}

#[test]
fn window_patterns_of_gemma3() {
    let key = "gemma3.attention.sliding_window_pattern";
    load("gemma3").set(key, 0_u32).refused(key);
    load("gemma3").set(key, Array::Bool(vec![true; 5])).refused("one for each of 6 layers");
    load("gemma3").set(key, Array::Bool(vec![true; 6])).open().unwrap();
    load("gemma3").set(key, Array::U32(vec![1; 6])).refused(key);
    load("gemma3").set("gemma3.attention.sliding_window", 0_u32).open().unwrap();
}

/// Every key with every kind of nonsense, and every tensor in odd shapes: an answer, never a panic.
#[test]
fn nonsense_never_panics() {
    for name in ["llama", "qwen2_yarn", "qwen3moe", "gemma3"] {
        let original = load(name);
        let numbers = [0_u32, 1, 2, 3, 5, 31, 1 << 16, u32::MAX].map(Value::U32);
        let floats =
            [0.0_f32, -1.0, f32::NAN, f32::INFINITY, f32::MIN_POSITIVE, f32::MAX, 1e-30, 1.0001].map(Value::F32);
        let others =
            [Value::Bool(false), Value::I64(-1), Value::String(String::new()), Value::Array(Array::U32(vec![]))];
        let values: Vec<Value> = numbers.into_iter().chain(floats).chain(others).collect();
        let keys: Vec<String> =
            original.keys.iter().map(|k| k.0.clone()).filter(|k| !k.starts_with("general.")).collect();
        for key in &keys {
            for value in &values {
                let _ = load(name).set(key, value.clone()).open();
            }
        }
        for (tensor, shape, ty, _) in &original.tensors {
            let product: usize = shape.iter().product();
            let odds = [vec![], vec![32], vec![product], vec![1, product], vec![32, product], vec![32, 2, 2, 2]];
            for odd in odds.into_iter().filter(|odd| odd != shape) {
                assert!(load(name).tensor(tensor, &odd, *ty).open().is_err(), "{tensor} as {odd:?}");
            }
        }
    }
}
