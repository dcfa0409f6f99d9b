//! Embeddings over real HTTP. What a hidden state is worth is known from transformers' logits: the output matrix makes
//! them of it, and being linear makes their mean of the mean.

mod client;

use client::*;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::Arc;
use zinc_gguf::Gguf;
use zinc_ir::device::WeightSource;
use zinc_ir::graph::Op;
use zinc_models::GgufWeights;
use zinc_serve::Pooling;

const PATH: &str = "/v1/embeddings";

/// Reference logits of the tiny llama's prompt, and its output matrix by rows.
struct Reference {
    prompt: Vec<u32>,
    logits: Vec<Vec<f64>>,
    matrix: Vec<Vec<f64>>,
}

fn reference() -> Reference {
    let folder = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/arch/llama"));
    let expected = std::fs::read(folder.join("expected.safetensors")).expect("expected values");
    let tensors = safetensors::SafeTensors::deserialize(&expected).expect("safetensors");
    let words = |name: &str| -> Vec<u32> {
        let data = tensors.tensor(name).expect("a tensor").data();
        data.chunks_exact(4).map(|w| u32::from_le_bytes([w[0], w[1], w[2], w[3]])).collect()
    };
    let gguf = Arc::new(Gguf::open(folder.join("model.gguf")).expect("a model"));
    let model = zinc_models::open(&gguf).expect("a model");
    let weights = GgufWeights::new(gguf, &model.graph).expect("its weights");
    let Some(Op::MatMul { weight, .. }) = model.graph.logits().map(|l| model.graph.op(l)) else { panic!("logits") };
    let output = model.graph.weight_of(*weight);
    let mut matrix = vec![0.0f32; (output.rows * output.cols) as usize];
    output.format.decode(weights.bytes(*weight).expect("from a file"), &mut matrix);
    let rows = |values: Vec<f32>, cols: u32| -> Vec<Vec<f64>> {
        values.chunks(cols as usize).map(|row| row.iter().map(|x| f64::from(*x)).collect()).collect()
    };
    let logits = words("logits_hf").into_iter().map(f32::from_bits).collect();
    Reference { prompt: words("prompt"), logits: rows(logits, output.rows), matrix: rows(matrix, output.cols) }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(x, y)| x * y).sum()
}

/// How far from the same direction; 0: the same.
fn apart(a: &[f64], b: &[f64]) -> f64 {
    1.0 - dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

fn vector(reply: &Value, index: usize) -> Vec<f64> {
    let row = &reply["data"][index];
    assert_eq!((&row["object"], &row["index"]), (&json!("embedding"), &json!(index)));
    row["embedding"].as_array().expect("numbers").iter().map(|x| x.as_f64().expect("a number")).collect()
}

/// What the output matrix makes of an embedding points where transformers' logits do.
fn points_as(reference: &Reference, embedding: &[f64], logits: &[f64]) {
    let made: Vec<f64> = reference.matrix.iter().map(|row| dot(row, embedding)).collect();
    assert!(apart(&made, logits) < 1e-5, "apart by {:e}", apart(&made, logits));
    assert!((dot(embedding, embedding) - 1.0).abs() < 1e-5, "its length is 1");
}

#[test]
fn embeddings_are_transformers_hidden_states_pooled() {
    let reference = reference();
    let count = reference.logits.len();
    let mean: Vec<f64> =
        (0..512).map(|t| reference.logits.iter().map(|row| row[t]).sum::<f64>() / count as f64).collect();
    for (pooling, expected) in [(Pooling::Last, &reference.logits[count - 1]), (Pooling::Mean, &mean)] {
        let server = serve(Setup { pooling, ..USUAL });
        let body = json!({"model": "tiny", "input": reference.prompt});
        let reply = server.post(PATH, &body).ok();
        assert_eq!((&reply["object"], &reply["model"]), (&json!("list"), &json!("tiny")));
        assert_eq!(reply["usage"], json!({"prompt_tokens": count, "total_tokens": count}));
        points_as(&reference, &vector(&reply, 0), expected);
        // Beside other inputs, beside a generation, and of a prompt that takes several steps.
        let endless = server
            .open("/v1/completions", &json!({"prompt": "x", "max_tokens": 400, "ignore_eos": true, "stream": true}));
        let long: Vec<u32> = reference.prompt.iter().copied().cycle().take(200).collect();
        let body = json!({"input": [reference.prompt.clone(), long.clone(), reference.prompt[..5].to_vec()]});
        let several = server.post(PATH, &body).ok();
        assert_eq!(several["usage"]["prompt_tokens"], count + 205);
        assert!(apart(&vector(&several, 0), &vector(&reply, 0)) < 1e-6);
        let again = server.post(PATH, &json!({"input": long})).ok();
        assert!(apart(&vector(&several, 1), &vector(&again, 0)) < 1e-6, "the same, whatever else runs");
        assert!(apart(&vector(&several, 2), &vector(&reply, 0)) > 1e-3);
        drop(endless);
    }
}

#[test]
fn forms_dimensions_and_texts() {
    let server = serve(USUAL);
    let one = server.post(PATH, &json!({"input": "The sea is"})).ok();
    let many = server.post(PATH, &json!({"input": ["The sea is", "a mountain"], "user": "x"})).ok();
    assert_eq!(vector(&one, 0), vector(&many, 0));
    let width = vector(&one, 0).len();
    let packed = server.post(PATH, &json!({"input": "The sea is", "encoding_format": "base64"})).ok();
    let text = packed["data"][0]["embedding"].as_str().expect("a text").to_owned();
    let bytes = base64::Engine::decode(&base64::prelude::BASE64_STANDARD, text).expect("base64");
    let floats: Vec<f64> =
        bytes.chunks_exact(4).map(|b| f64::from(f32::from_le_bytes([b[0], b[1], b[2], b[3]]))).collect();
    assert_eq!((floats.len(), apart(&floats, &vector(&one, 0)) < 1e-7), (width, true));
    let short = server.post(PATH, &json!({"input": "The sea is", "dimensions": 8})).ok();
    let short = vector(&short, 0);
    assert_eq!(short.len(), 8);
    assert!((dot(&short, &short) - 1.0).abs() < 1e-5 && apart(&short, &floats[..8]) < 1e-6);
    // More inputs than wait at the same time.
    let inputs: Vec<String> = (0..70).map(|i| format!("text {i}")).collect();
    let all = server.post(PATH, &json!({"input": inputs})).ok();
    assert_eq!(all["data"].as_array().map(Vec::len), Some(70));
    let last = server.post(PATH, &json!({"input": "text 69"})).ok();
    assert!(apart(&vector(&all, 69), &vector(&last, 0)) < 1e-6);
    assert_eq!(server.metric("vllm:kv_cache_usage_perc"), 0.0);
}

#[test]
fn what_makes_no_sense_is_refused() {
    let server = serve(USUAL);
    let rows = [
        (json!({}), "input", "missing"),
        (json!({"input": []}), "input", "at least one"),
        (json!({"input": ""}), "input", "no tokens"),
        (json!({"input": {"a": 1}}), "input", "token ids"),
        (json!({"input": [1, 99999]}), "input", "99999"),
        (json!({"input": vec!["x"; 2049]}), "input", "2048"),
        (json!({"input": "x", "encoding_format": "int8"}), "encoding_format", "base64"),
        (json!({"input": "x", "dimensions": 0}), "dimensions", "between 1"),
        (json!({"input": "x", "dimensions": 9999}), "dimensions", "between 1"),
        (json!({"input": "x", "model": "other"}), "model", "tiny"),
        (json!({"input": "x", "dimension": 3}), "dimension", "not a parameter"),
    ];
    for (body, param, says) in rows {
        let reply = server.post(PATH, &body);
        let error = reply.json()["error"].clone();
        assert_eq!(reply.status, if param == "model" { 404 } else { 400 }, "{body}: {error}");
        assert_eq!(error["param"], param, "{body}: {error}");
        assert!(error["message"].as_str().is_some_and(|m| m.contains(says)), "{body}: {error}");
    }
    let long: Vec<u32> = vec![5; 600];
    let reply = server.post(PATH, &json!({"input": ["x", "y"], "dimensions": 4}));
    assert_eq!(reply.status, 200);
    let reply = server.post(PATH, &json!({"input": [[5], long]}));
    let error = reply.json()["error"].clone();
    assert_eq!((reply.status, error["code"].as_str()), (400, Some("context_length_exceeded")), "{error}");
}
