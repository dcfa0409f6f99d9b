//! Graphs compute what transformers computes: every op in its plainest form, in F64, one whole prompt at a time.
//!
//! ```text
//! model.gguf ─open─► Graph ─eval (this file)─► logits ─compare─ expected.safetensors
//! ```

use safetensors::SafeTensors;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use zinc_gguf::Gguf;
use zinc_ir::device::WeightSource;
use zinc_ir::graph::{Activation, AttentionSpec, Graph, Op, Pairing, Rope, Routing, WeightId};
use zinc_ir::synthetic::Recipe;
use zinc_models::{GgufWeights, open, synthetic};

/// Rows of numbers.
#[derive(Clone, Default)]
struct Matrix {
    cols: usize,
    data: Vec<f64>,
}

impl Matrix {
    fn rows(&self) -> std::slice::ChunksExact<'_, f64> {
        self.data.chunks_exact(self.cols)
    }
    fn map(&self, f: impl Fn(usize, f64) -> f64) -> Matrix {
        Matrix { cols: self.cols, data: self.data.iter().enumerate().map(|(i, &x)| f(i % self.cols, x)).collect() }
    }
    fn zip(&self, other: &Matrix, f: impl Fn(f64, f64) -> f64) -> Matrix {
        Matrix { cols: self.cols, data: self.data.iter().zip(&other.data).map(|(&a, &b)| f(a, b)).collect() }
    }
}

struct Evaluator<'a> {
    graph: &'a Graph,
    /// The weight's bytes in the file's layout.
    weights: &'a dyn Fn(WeightId) -> Vec<u8>,
    tokens: &'a [i32],
}

impl Evaluator<'_> {
    fn weight(&self, id: WeightId) -> Matrix {
        let w = self.graph.weight_of(id);
        let mut values = vec![0.0; (w.rows * w.cols) as usize];
        w.format.decode(&(self.weights)(id), &mut values);
        Matrix { cols: w.cols as usize, data: values.into_iter().map(f64::from).collect() }
    }

    /// Values of all nodes; the logits of every position are wanted.
    fn run(&self) -> Vec<Matrix> {
        let mut values: Vec<Matrix> = vec![];
        for id in self.graph.ids() {
            let of = |i: zinc_ir::graph::NodeId| &values[i.index()];
            let value = match *self.graph.op(id) {
                Op::Quantize { .. } | Op::Halve { .. } => unreachable!("only the compiler writes it"),
                Op::Embed { table } => {
                    let table = self.weight(table);
                    let row = |&t: &i32| table.data[t as usize * table.cols..][..table.cols].to_vec();
                    Matrix { cols: table.cols, data: self.tokens.iter().flat_map(row).collect() }
                }
                Op::SelectRows { x } => of(x).clone(),
                Op::Scale { x, factor } => of(x).map(|_, v| v * factor as f64),
                Op::RmsNorm { x, weight, eps, group } => norm(of(x), &self.weight(weight), eps, group as usize),
                Op::MatMul { x, weight } => matmul(of(x), &self.weight(weight)),
                Op::Bias { x, weight } => {
                    let b = self.weight(weight);
                    of(x).map(|col, v| v + b.data[col])
                }
                Op::Add { a, b } => of(a).zip(of(b), |a, b| a + b),
                Op::Glu { gate, up, act } => of(gate).zip(of(up), |g, u| activate(act, g) * u),
                Op::Rope { x, head_dim, pairing, rope } => {
                    let table = &self.graph.ropes()[rope.index()];
                    rotate(of(x), head_dim as usize, table, pairing)
                }
                Op::KvAppend { .. } => Matrix::default(),
                Op::Attention { q, append, spec } => {
                    let Op::KvAppend { k, v, .. } = *self.graph.op(append) else { panic!("no append") };
                    attend(of(q), of(k), of(v), spec)
                }
                Op::Route { logits, k } => route(of(logits), k as usize),
                Op::ExpertMatMul { x, route, weight } => {
                    let Routing { experts, used } = self.graph.routing(route);
                    expert_matmul(of(x), of(route), &self.weight(weight), experts as usize, used as usize)
                }
                Op::ExpertSum { x, route } => expert_sum(of(x), of(route)),
                Op::Argmax { .. } | Op::TopK { .. } | Op::Sample { .. } => {
                    panic!("models end in logits")
                }
            };
            values.push(value);
        }
        values
    }
}

fn norm(x: &Matrix, weight: &Matrix, eps: f32, group: usize) -> Matrix {
    let mut out = x.clone();
    for part in out.data.chunks_exact_mut(group) {
        let mean_square = part.iter().map(|v| v * v).sum::<f64>() / group as f64;
        let factor = 1.0 / (mean_square + eps as f64).sqrt();
        part.iter_mut().zip(&weight.data).for_each(|(v, w)| *v *= factor * w);
    }
    out
}

fn matmul(x: &Matrix, w: &Matrix) -> Matrix {
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let data = x.rows().flat_map(|row| w.rows().map(move |w| dot(row, w)));
    Matrix { cols: w.data.len() / w.cols, data: data.collect() }
}

/// As published: softmax over all experts, the best `k`, divided by their sum. Rows of weights, then numbers.
fn route(logits: &Matrix, k: usize) -> Matrix {
    let row = |logits: &[f64]| {
        let all: f64 = logits.iter().map(|l| l.exp()).sum();
        let mut order: Vec<usize> = (0..logits.len()).collect();
        order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]));
        let weights: Vec<f64> = order[..k].iter().map(|e| logits[*e].exp() / all).collect();
        let sum: f64 = weights.iter().sum();
        weights.iter().map(|w| w / sum).chain(order[..k].iter().map(|e| *e as f64)).collect::<Vec<_>>()
    };
    Matrix { cols: 2 * k, data: logits.rows().flat_map(row).collect() }
}

fn expert_matmul(x: &Matrix, route: &Matrix, w: &Matrix, experts: usize, used: usize) -> Matrix {
    let size = w.data.len() / experts;
    let mut data = vec![];
    for (x, route) in x.rows().zip(route.rows()) {
        for which in 0..used {
            let expert = route[used + which] as usize;
            let w = Matrix { cols: w.cols, data: w.data[expert * size..][..size].to_vec() };
            let own = if x.len() == w.cols { x } else { &x[which * w.cols..][..w.cols] };
            data.extend(matmul(&Matrix { cols: w.cols, data: own.to_vec() }, &w).data);
        }
    }
    Matrix { cols: used * (size / w.cols), data }
}

fn expert_sum(x: &Matrix, route: &Matrix) -> Matrix {
    let used = route.cols / 2;
    let cols = x.cols / used;
    let sum = |x: &[f64], route: &[f64], col: usize| (0..used).map(|i| route[i] * x[i * cols + col]).sum::<f64>();
    let rows = x.rows().zip(route.rows());
    Matrix { cols, data: rows.flat_map(|(x, r)| (0..cols).map(move |col| sum(x, r, col))).collect() }
}

fn activate(act: Activation, x: f64) -> f64 {
    match act {
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::GeluTanh => 0.5 * x * (1.0 + (0.797_884_560_802_865_4 * (x + 0.044715 * x * x * x)).tanh()),
    }
}

fn rotate(x: &Matrix, head_dim: usize, table: &Rope, pairing: Pairing) -> Matrix {
    let mut out = x.clone();
    let (heads, pairs, m) = (x.cols / head_dim, table.inv_freq.len(), table.magnitude as f64);
    for (h, (new, old)) in out.data.chunks_exact_mut(head_dim).zip(x.data.chunks_exact(head_dim)).enumerate() {
        let position = (h / heads) as f64;
        for (pair, frequency) in table.inv_freq.iter().enumerate() {
            let (i, other) = match pairing {
                Pairing::Adjacent => (2 * pair, 2 * pair + 1),
                Pairing::Halves => (pair, pair + pairs),
            };
            let (sin, cos) = (position * *frequency as f64).sin_cos();
            let (a, b) = (old[i], old[other]);
            new[i] = (a * cos - b * sin) * m;
            new[other] = (a * sin + b * cos) * m;
        }
    }
    out
}

fn attend(q: &Matrix, k: &Matrix, v: &Matrix, spec: AttentionSpec) -> Matrix {
    let dim = spec.head_dim as usize;
    let group = (spec.heads / spec.kv_heads) as usize;
    let mut out = Matrix { cols: q.cols, data: vec![0.0; q.data.len()] };
    for (i, row) in q.rows().enumerate() {
        let first = spec.window.map_or(0, |w| (i + 1).saturating_sub(w as usize));
        for h in 0..spec.heads as usize {
            let head = |m: &Matrix, j: usize| m.data[j * m.cols + h / group * dim..][..dim].to_vec();
            let query = &row[h * dim..][..dim];
            let score = |j| query.iter().zip(head(k, j)).map(|(a, b)| a * b).sum::<f64>() * spec.scale as f64;
            let weights: Vec<f64> = (first..=i).map(score).map(f64::exp).collect();
            let sum: f64 = weights.iter().sum();
            for (j, w) in weights.iter().enumerate() {
                let to = &mut out.data[i * q.cols + h * dim..][..dim];
                to.iter_mut().zip(head(v, first + j)).for_each(|(o, v)| *o += w / sum * v);
            }
        }
    }
    out
}

fn data(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data").join(path)
}

/// Largest difference between our logits and those named `reference`.
fn difference(folder: &str, reference: &str) -> f64 {
    let expected = std::fs::read(data(&format!("{folder}/expected.safetensors"))).unwrap();
    let expected = SafeTensors::deserialize(&expected).unwrap();
    let words = |name: &str| {
        let bytes = expected.tensor(name).unwrap().data().to_vec();
        bytes.chunks_exact(4).map(|b| [b[0], b[1], b[2], b[3]]).collect::<Vec<_>>()
    };
    let tokens: Vec<i32> = words("prompt").into_iter().map(i32::from_le_bytes).collect();
    let logits: Vec<f32> = words(reference).into_iter().map(f32::from_le_bytes).collect();
    let gguf = Arc::new(Gguf::open(data(&format!("{folder}/model.gguf"))).unwrap());
    let graph = open(&gguf).unwrap().graph;
    let weights = GgufWeights::new(gguf, &graph).unwrap();
    let bytes = |id| weights.bytes(id).unwrap().to_vec();
    let values = Evaluator { graph: &graph, weights: &bytes, tokens: &tokens }.run();
    let found = &values[graph.logits().unwrap().index()].data;
    assert_eq!(found.len(), logits.len());
    found.iter().zip(&logits).map(|(f, &l)| (f - l as f64).abs()).fold(0.0, f64::max)
}

#[test]
fn logits_are_those_of_transformers() {
    for name in ["llama", "llama_linear", "qwen2", "qwen2_yarn", "qwen3", "qwen3moe", "gemma3"] {
        let difference = difference(&format!("arch/{name}"), "logits_hf");
        println!("{name}: {difference:.1e}");
        assert!(difference < 1e-4, "{name}: {difference}");
    }
}

#[test]
fn logits_of_quantized_models_are_those_of_llama_cpp() {
    let formats = zinc_ir::quant::FORMATS.iter().map(|f| format!("quant/{}", f.name));
    let folders: Vec<String> = formats.filter(|f| data(f).join("model.gguf").exists()).collect();
    assert!(folders.len() >= 8, "{folders:?}");
    for folder in folders {
        let difference = difference(&folder, "logits_dequant_f32");
        println!("{folder}: {difference:.1e}");
        assert!(difference < 1e-3, "{folder}: {difference}");
    }
}

#[test]
fn logits_of_synthetic_models_are_of_ordinary_size() {
    for mix in ["q4_k_m", "q8_0", "f16", "q4_0", "q6_k"] {
        let (model, weights) = synthetic(&format!("tiny:{mix}"), None).unwrap();
        let graph = &model.graph;
        let bytes = |id: WeightId| {
            let w = graph.weight_of(id);
            let mut bytes = vec![0; w.bytes() as usize];
            Recipe::of(w).fill(weights.synthetic(id).unwrap(), 0, &mut bytes);
            bytes
        };
        let values = Evaluator { graph, weights: &bytes, tokens: &[1, 2, 3, 4, 5, 6, 7, 300] }.run();
        let logits = &values[graph.logits().unwrap().index()].data;
        let deviation = (logits.iter().map(|x| x * x).sum::<f64>() / logits.len() as f64).sqrt();
        println!("{mix}: {deviation}");
        assert!((0.8..1.25).contains(&deviation), "{mix}: {deviation}");
    }
}
