//! Products whose sizes fit no tile, against plain sums over decoded weights.

use std::sync::Arc;
use zinc_compiler::Choices;
use zinc_conformance::{Chunk, Driver, InterpretedDevice, gpu_caps};
use zinc_ir::device::WeightSource;
use zinc_ir::graph::{Activation, Graph, WeightId};
use zinc_ir::plan::{ActPrecision, KvType, StepOutput, Tail};
use zinc_ir::quant;

/// Random blocks of each weight, in the file's layout.
struct RandomWeights(Vec<Vec<u8>>);

impl RandomWeights {
    fn new(graph: &Graph) -> RandomWeights {
        let mut state = 12345u32;
        let mut next = move || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state >> 16
        };
        let of = graph.weights().iter().map(|w| {
            let blocks = w.rows * w.cols / w.format.block_elems;
            let mut block = |_| match w.format.name {
                "F32" => (next() as f32 / 65536.0 - 0.5).to_le_bytes().to_vec(),
                "F16" => ((next() as u16 & 0x83ff) | 0x3000).to_le_bytes().to_vec(),
                // A scale of about 1/128, 1/512, then any bytes.
                "Q8_0" => [0, 0x20].into_iter().chain((0..32).map(|_| next() as u8)).collect(),
                "Q4_0" => [0, 0x28].into_iter().chain((0..16).map(|_| next() as u8)).collect(),
                other => panic!("no random {other}"),
            };
            (0..blocks).flat_map(&mut block).collect()
        });
        RandomWeights(of.collect())
    }

    /// x · Wᵀ in F64.
    fn product(&self, graph: &Graph, w: WeightId, x: &[Vec<f64>]) -> Vec<Vec<f64>> {
        let rows = self.rows(graph, w);
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum();
        x.iter().map(|x| rows.iter().map(|w| dot(x, w)).collect()).collect()
    }

    fn rows(&self, graph: &Graph, w: WeightId) -> Vec<Vec<f64>> {
        let weight = graph.weight_of(w);
        let mut values = vec![0.0; (weight.rows * weight.cols) as usize];
        weight.format.decode(&self.0[w.index()], &mut values);
        values.chunks(weight.cols as usize).map(|row| row.iter().map(|v| *v as f64).collect()).collect()
    }
}

impl WeightSource for RandomWeights {
    fn bytes(&self, weight: WeightId) -> Option<&[u8]> {
        Some(&self.0[weight.index()])
    }
}

/// x = embed; h = silu(x·G) · (x·U); y = (h·D + bias) + x; logits = y·H of the selected rows.
struct Case {
    graph: Graph,
    table: WeightId,
    weights: [WeightId; 5],
}

const WIDTH: u32 = 96;

fn case(format: &'static quant::QuantFormat) -> Case {
    let mut g = Graph::new();
    let table = g.weight("table", 40, WIDTH, quant::F32);
    let gate = g.weight("gate", 160, WIDTH, format);
    let up = g.weight("up", 160, WIDTH, format);
    let down = g.weight("down", WIDTH, 160, format);
    let bias = g.weight("bias", 1, WIDTH, quant::F32);
    let head = g.weight("head", 37, WIDTH, format);
    let x = g.embed(table);
    let (a, b) = (g.matmul(x, gate), g.matmul(x, up));
    let h = g.glu(a, b, Activation::Silu);
    let d = g.matmul(h, down);
    let d = g.bias(d, bias);
    let y = g.add(x, d);
    let y = g.select_rows(y);
    let logits = g.matmul(y, head);
    g.set_logits(logits);
    Case { graph: g, table, weights: [gate, up, down, bias, head] }
}

fn expected(c: &Case, weights: &RandomWeights, tokens: &[u32]) -> Vec<f64> {
    let [gate, up, down, bias, head] = c.weights;
    let table = weights.rows(&c.graph, c.table);
    let x: Vec<Vec<f64>> = tokens.iter().map(|t| table[*t as usize].clone()).collect();
    let pair = |(a, b): (Vec<f64>, Vec<f64>)| a.iter().zip(&b).map(|(a, b)| a / (1.0 + (-a).exp()) * b).collect();
    let (a, b) = (weights.product(&c.graph, gate, &x), weights.product(&c.graph, up, &x));
    let h: Vec<Vec<f64>> = a.into_iter().zip(b).map(pair).collect();
    let bias = &weights.rows(&c.graph, bias)[0];
    let add = |(d, x): (Vec<f64>, &Vec<f64>)| d.iter().zip(bias).zip(x).map(|((d, b), x)| d + b + x).collect();
    let y: Vec<Vec<f64>> = weights.product(&c.graph, down, &h).into_iter().zip(&x).map(add).collect();
    weights.product(&c.graph, head, &y).concat()
}

fn check(format: &str, subgroup: u32, rows: usize, choices: Choices, tolerance: f64) {
    let c = case(quant::by_name(format).expect("a format"));
    let weights = RandomWeights::new(&c.graph);
    let tokens: Vec<u32> = (0..rows as u32).map(|i| i * 7 % 40).collect();
    let graph = Arc::new(c.graph.clone());
    let mut device = InterpretedDevice::new(gpu_caps(subgroup), rows as u64);
    let mut driver = Driver::new(&mut device, &graph, &weights, KvType::F32, choices, 1, 64);
    let chunk = Chunk { sequence: 0, tokens: &tokens };
    let StepOutput::Logits(got) = driver.step(&[chunk], rows as u32 + 1, Tail::Logits) else {
        panic!("asked for logits");
    };
    let expected = expected(&c, &weights, &tokens);
    let largest = expected.iter().fold(0.0, |m: f64, e| m.max(e.abs()));
    let worst = expected.iter().zip(&got).map(|(e, g)| (e - *g as f64).abs()).fold(0.0, f64::max);
    println!("{format}, subgroups of {subgroup}, {rows} rows: {worst:.1e} of {largest:.1e}");
    assert_eq!(got.len(), expected.len());
    assert!(worst <= tolerance * largest, "{format}, {rows} rows: off by {worst} of {largest}");
}

#[test]
fn multiply_adds() {
    for (format, subgroup, rows) in [("F32", 4, 9), ("F16", 8, 13), ("Q8_0", 32, 21), ("Q4_0", 64, 33)] {
        check(format, subgroup, rows, Choices::default(), 2e-6);
        check(format, subgroup, rows, Choices { fuse: false, ..Choices::default() }, 2e-6);
    }
}

#[test]
fn matrices() {
    for (format, subgroup, rows) in [("F16", 4, 9), ("F32", 8, 13), ("Q4_0", 32, 21), ("Q8_0", 64, 33)] {
        let choices = Choices { act: ActPrecision::F16, ..Choices::default() };
        check(format, subgroup, rows, choices.clone(), 2e-3);
        check(format, subgroup, rows, Choices { fuse: false, ..choices }, 2e-3);
    }
}

/// A rest of less than a step is a branch of its own here.
#[test]
fn few_rows_with_quantized_inputs_in_wide_subgroups() {
    for (format, rows) in [("Q8_0", 3), ("Q4_0", 8), ("Q4_0", 2)] {
        let choices = Choices { act: ActPrecision::F16, ..Choices::default() };
        check(format, 64, rows, choices.clone(), 2e-3);
    }
}
