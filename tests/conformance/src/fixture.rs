//! The tiny models of `tests/data` with their expected values.

use std::path::PathBuf;
use std::sync::Arc;
use zinc_gguf::Gguf;
use zinc_ir::graph::Graph;
use zinc_models::GgufWeights;

/// A model with reference values.
pub struct Fixture {
    /// Its graph.
    pub graph: Arc<Graph>,
    /// Its weights.
    pub weights: GgufWeights,
    /// Tokens.
    pub prompt: Vec<u32>,
    expected: Vec<u8>,
}

/// The path of a file below `tests/data`.
pub fn data(path: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../data")).join(path)
}

impl Fixture {
    /// Opens `tests/data/PATH`.
    pub fn open(path: &str) -> Fixture {
        let gguf = Arc::new(Gguf::open(data(path).join("model.gguf")).expect("a fixture"));
        let model = zinc_models::open(&gguf).expect("a supported model");
        let weights = GgufWeights::new(gguf, &model.graph).expect("its weights");
        let expected = std::fs::read(data(path).join("expected.safetensors")).expect("expected values");
        let mut fixture = Fixture { graph: model.graph, weights, prompt: vec![], expected };
        fixture.prompt = fixture.ids("prompt");
        fixture
    }

    /// A tensor of F32.
    pub fn floats(&self, name: &str) -> Vec<f32> {
        self.words(name).into_iter().map(f32::from_bits).collect()
    }

    /// A tensor of token ids.
    pub fn ids(&self, name: &str) -> Vec<u32> {
        self.words(name)
    }

    fn words(&self, name: &str) -> Vec<u32> {
        let tensors = safetensors::SafeTensors::deserialize(&self.expected).expect("safetensors");
        let tensor = tensors.tensor(name).unwrap_or_else(|e| panic!("{name}: {e}"));
        tensor.data().chunks_exact(4).map(|w| u32::from_le_bytes([w[0], w[1], w[2], w[3]])).collect()
    }
}

/// How far two sets of logits are apart.
#[derive(Debug, Clone, Copy)]
pub struct Distance {
    /// Largest absolute difference.
    pub max: f32,
    /// Kullback-Leibler divergence of the softmax, mean over rows.
    pub kl: f64,
}

/// Compares logits, rows of `cols`.
pub fn distance(reference: &[f32], got: &[f32], cols: usize) -> Distance {
    assert_eq!(reference.len(), got.len(), "number of logits");
    let max = reference
        .iter()
        .zip(got)
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, |m: f32, d| if d > m || d.is_nan() { d } else { m });
    let log_softmax = |row: &[f32]| -> Vec<f64> {
        let top = row.iter().copied().fold(f32::MIN, f32::max) as f64;
        let sum: f64 = row.iter().map(|x| (*x as f64 - top).exp()).sum();
        row.iter().map(|x| *x as f64 - top - sum.ln()).collect()
    };
    let rows = reference.chunks(cols).zip(got.chunks(cols));
    let kls = rows.map(|(a, b)| {
        let (p, q) = (log_softmax(a), log_softmax(b));
        p.iter().zip(&q).map(|(p, q)| p.exp() * (p - q)).sum::<f64>()
    });
    let n = reference.len() / cols;
    Distance { max, kl: kls.sum::<f64>() / n as f64 }
}
