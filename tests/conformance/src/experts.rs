//! A mixture of experts of odd sizes, with ties and a logit that is no number, against plain sums in F64.

use crate::{Chunk, Driver};
use std::sync::Arc;
use zinc_compiler::Choices;
use zinc_ir::device::{Device, WeightSource};
use zinc_ir::graph::{Activation, Graph, WeightId};
use zinc_ir::plan::{KvType, StepOutput, Tail};
use zinc_ir::quant::{self, QuantFormat};
use zinc_ir::synthetic::Recipe;

const EXPERTS: usize = 13;
const USED: usize = 5;
const VOCABULARY: usize = 40;
const OUTPUTS: usize = 37;
/// Brings a row's values to about 1: what the experts give counts as much as the residual.
const SIZE: f32 = 10.0;
const EPS: f32 = 1e-6;

/// x = SIZE · embedding; n = norm(x); y = x + Σ weight · down(silu(gate · n) · up · n) over the chosen experts;
/// logits = head · norm(y).
struct Case {
    /// Columns of x, and of an expert's gate.
    sizes: [usize; 2],
    graph: Arc<Graph>,
    bytes: Vec<Vec<u8>>,
}

impl WeightSource for Case {
    fn bytes(&self, weight: WeightId) -> Option<&[u8]> {
        Some(&self.bytes[weight.index()])
    }
}

impl Case {
    /// Weights in one format, but gates perhaps in another with blocks of the same length.
    fn new(format: &'static QuantFormat, gates: &'static QuantFormat) -> Case {
        let mut g = Graph::new();
        let sizes = if format.block_elems > 32 { [512, 256] } else { [96, 64] };
        let [width, ffn, experts] = [sizes[0], sizes[1], EXPERTS].map(|n| n as u32);
        let table = g.weight("table", VOCABULARY as u32, width, quant::F32);
        let router = g.weight("router", experts, width, quant::F32);
        let gate = g.weight("gate", experts * ffn, width, gates);
        let up = g.weight("up", experts * ffn, width, format);
        let down = g.weight("down", experts * width, ffn, format);
        let head = g.weight("head", OUTPUTS as u32, width, format);
        let gain = g.weight("gain", 1, width, quant::F32);
        let x = g.embed(table);
        let x = g.scale(x, SIZE);
        let n = g.rms_norm(x, gain, EPS);
        let logits = g.matmul(n, router);
        let route = g.route(logits, USED as u32);
        let n = g.rms_norm(x, gain, EPS);
        let (a, b) = (g.expert_matmul(n, route, gate), g.expert_matmul(n, route, up));
        let h = g.glu(a, b, Activation::Silu);
        let d = g.expert_matmul(h, route, down);
        let s = g.expert_sum(d, route);
        let y = g.add(x, s);
        let y = g.select_rows(y);
        let y = g.rms_norm(y, gain, EPS);
        let y = g.matmul(y, head);
        g.set_logits(y);
        let made = g.weights().iter().zip(1..).map(|(w, seed)| {
            let mut bytes = vec![0; w.bytes() as usize];
            Recipe::of(w).fill(seed, 0, &mut bytes);
            bytes
        });
        let mut bytes: Vec<Vec<u8>> = made.collect();
        spoil_router(&mut bytes[router.index()]);
        Case { sizes, graph: Arc::new(g), bytes }
    }

    fn rows(&self, weight: usize) -> Vec<Vec<f64>> {
        let w = &self.graph.weights()[weight];
        let mut values = vec![0.0; (w.rows * w.cols) as usize];
        w.format.decode(&self.bytes[weight], &mut values);
        values.chunks(w.cols as usize).map(|row| row.iter().map(|v| *v as f64).collect()).collect()
    }

    fn expected(&self, tokens: &[u32]) -> Vec<f64> {
        let [table, router, gate, up, down, head, gain] = [0, 1, 2, 3, 4, 5, 6].map(|w| self.rows(w));
        let [width, ffn] = self.sizes;
        let norm = |x: &[f64]| -> Vec<f64> {
            let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
            x.iter().zip(&gain[0]).map(|(x, g)| x * g / (mean + EPS as f64).sqrt()).collect()
        };
        let one = |token: &u32| {
            let x: Vec<f64> = table[*token as usize].iter().map(|x| x * SIZE as f64).collect();
            let (n, mut y) = (norm(&x), x);
            for (expert, weight) in route(&product(&router, &n)) {
                let part = |w: &[Vec<f64>], rows: usize| w[expert * rows..(expert + 1) * rows].to_vec();
                let (a, b) = (product(&part(&gate, ffn), &n), product(&part(&up, ffn), &n));
                let h: Vec<f64> = a.iter().zip(&b).map(|(a, b)| a / (1.0 + (-a).exp()) * b).collect();
                let d = product(&part(&down, width), &h);
                y.iter_mut().zip(d).for_each(|(y, d)| *y += weight * d);
            }
            product(&head, &norm(&y))
        };
        tokens.iter().flat_map(one).collect()
    }
}

/// Experts 2i and 2i + 1 have the same row, so that an odd number of chosen cuts through a tie; the last gives NaN.
fn spoil_router(bytes: &mut [u8]) {
    let row = bytes.len() / EXPERTS;
    for even in (0..EXPERTS - 1).step_by(2) {
        bytes.copy_within(even * row..(even + 1) * row, (even + 1) * row);
    }
    bytes[(EXPERTS - 1) * row..][..4].copy_from_slice(&f32::NAN.to_le_bytes());
}

fn product(rows: &[Vec<f64>], x: &[f64]) -> Vec<f64> {
    rows.iter().map(|row| row.iter().zip(x).map(|(a, b)| a * b).sum()).collect()
}

/// The chosen experts with their weights. Sums of equal rows are equal here, as on any device.
fn route(logits: &[f64]) -> Vec<(usize, f64)> {
    let mut order: Vec<usize> = (0..logits.len()).filter(|e| !logits[*e].is_nan()).collect();
    order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]).then(a.cmp(b)));
    let exp: Vec<f64> = order[..USED].iter().map(|e| logits[*e].exp()).collect();
    let sum: f64 = exp.iter().sum();
    order.into_iter().zip(exp).map(|(e, x)| (e, x / sum)).collect()
}

/// `rows` tokens in one step, through experts in a weight format; the result is off by at most `tolerance` of the
/// largest logit.
pub fn mixture_of_experts(device: &mut dyn Device, format: &str, choices: Choices, rows: usize, tolerance: f64) {
    let tokens: Vec<u32> = (0..rows).map(|i| (i * 7 % VOCABULARY) as u32).collect();
    compare(device, [format; 2], choices, &tokens, tolerance);
}

/// The same with the same token again and again: all rows are those of five experts, the others have none.
pub fn crowded_experts(device: &mut dyn Device, format: &str, choices: Choices, rows: usize, tolerance: f64) {
    compare(device, [format; 2], choices, &vec![3; rows], tolerance);
}

/// Gates in another format than the rest.
pub fn experts_of_two_formats(device: &mut dyn Device, formats: [&str; 2], choices: Choices, tolerance: f64) {
    let tokens: Vec<u32> = (0..30).map(|i| i * i % VOCABULARY as u32).collect();
    compare(device, formats, choices, &tokens, tolerance);
}

fn compare(device: &mut dyn Device, formats: [&str; 2], choices: Choices, tokens: &[u32], tolerance: f64) {
    let [format, gates] = formats.map(|name| quant::by_name(name).expect("a format"));
    let (case, rows) = (Case::new(format, gates), tokens.len());
    let what = format!("experts in {formats:?}, {rows} rows, {choices:?}, {}", device.description());
    let mut driver = Driver::new(device, &case.graph, &case, KvType::F32, choices, 1, 256);
    let output = driver.step(&[Chunk { sequence: 0, tokens }], rows as u32 + 1, Tail::Logits);
    let StepOutput::Logits(got) = output else { panic!("asked for logits") };
    let expected = case.expected(tokens);
    assert_eq!(got.len(), expected.len());
    let largest = expected.iter().fold(0.0, |m: f64, e| m.max(e.abs()));
    let off = |(e, g): (&f64, &f32)| (e - *g as f64).abs();
    let worst = expected.iter().zip(&got).map(off).fold(0.0, |m: f64, d| if d > m || d.is_nan() { d } else { m });
    println!("{what}: off by {worst:.1e} of {largest:.1e}");
    assert!(largest > 0.5 && worst <= tolerance * largest, "{what}: off by {worst} of {largest}");
}
