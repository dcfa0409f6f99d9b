//! The device against plain f64 evaluation of small graphs: fused and op by op, alone and in company.

use std::collections::HashMap;
use std::sync::Arc;
use zinc_cpu::{CpuDevice, Isa};
use zinc_ir::device::{Device, DeviceError, ProgramId, WeightSource};
use zinc_ir::graph::{Activation, AttentionSpec, Graph, NodeId, Op, Pairing, Rope, WeightId};
use zinc_ir::plan::{
    ActPrecision, Bucket, Entry, InputLayout, KvLayout, KvType, Launch, NO_SLOT, PAGE_TOKENS, Plan, Step, StepError,
    StepOutput, Tail, rotations,
};
use zinc_ir::quant::{self, QuantFormat};
use zinc_ir::synthetic::Recipe;

const VOCABULARY: u32 = 40;
const WIDTH: u32 = 64;

/// All weights from seeds, as bytes.
struct Bytes(Vec<Vec<u8>>);

impl Bytes {
    fn new(graph: &Graph) -> Bytes {
        let make = |(i, w): (usize, &zinc_ir::graph::Weight)| {
            let mut bytes = vec![0; w.bytes() as usize];
            Recipe::of(w).fill(i as u64 + 1, 0, &mut bytes);
            bytes
        };
        Bytes(graph.weights().iter().enumerate().map(make).collect())
    }
    fn values(&self, graph: &Graph, id: WeightId) -> Vec<f32> {
        let w = graph.weight_of(id);
        let mut out = vec![0f32; (w.rows * w.cols) as usize];
        w.format.decode(&self.0[id.index()], &mut out);
        out
    }
}

impl WeightSource for Bytes {
    fn bytes(&self, weight: WeightId) -> Option<&[u8]> {
        self.0.get(weight.index()).map(|b| &b[..])
    }
}

/// The same weights as seeds only.
struct Seeds;

impl WeightSource for Seeds {
    fn bytes(&self, _: WeightId) -> Option<&[u8]> {
        None
    }
    fn synthetic(&self, weight: WeightId) -> Option<u64> {
        Some(weight.0 as u64 + 1)
    }
}

/// Two layers with everything in them: biases, head norms, both pairings, a window, both gates, tied logits.
fn model(format: &'static QuantFormat, table: &'static QuantFormat) -> Arc<Graph> {
    let mut g = Graph::new();
    let table = g.weight("embd", VOCABULARY, WIDTH, table);
    let mut x = g.embed(table);
    x = g.scale(x, 1.5);
    let rope = g.rope_table(Rope { inv_freq: vec![1.0, 0.3, 0.1, 0.02], magnitude: 1.1 });
    for (layer, (pairing, act, window)) in
        [(Pairing::Adjacent, Activation::Silu, None), (Pairing::Halves, Activation::GeluTanh, Some(5))]
            .into_iter()
            .enumerate()
    {
        g.enter_layer(Some(layer as u32));
        let matrix = |g: &mut Graph, name: &str, rows, cols| g.weight(format!("{layer}.{name}"), rows, cols, format);
        let vector = |g: &mut Graph, name: &str, cols| g.weight(format!("{layer}.{name}"), 1, cols, quant::F32);
        let norm = vector(&mut g, "norm", WIDTH);
        let n = g.rms_norm(x, norm, 1e-5);
        let head = |g: &mut Graph, name: &str, rows: u32| {
            let w = g.weight(format!("{layer}.{name}"), rows, WIDTH, format);
            let bias = g.weight(format!("{layer}.{name}.bias"), 1, rows, quant::F32);
            let y = g.matmul(n, w);
            g.bias(y, bias)
        };
        let (q, k, v) = (head(&mut g, "q", 64), head(&mut g, "k", 32), head(&mut g, "v", 32));
        let head_norm = vector(&mut g, "head_norm", 16);
        let q = g.rms_norm(q, head_norm, 1e-6);
        let (q, k) = (g.rope(q, 16, pairing, rope), g.rope(k, 16, pairing, rope));
        let append = g.kv_append(k, v, 16);
        let spec = AttentionSpec { heads: 4, kv_heads: 2, head_dim: 16, scale: 0.25, window };
        let attended = g.attention(q, append, spec);
        let o = matrix(&mut g, "o", WIDTH, 64);
        let o = g.matmul(attended, o);
        x = g.add(x, o);
        let norm = vector(&mut g, "ffn_norm", WIDTH);
        let n = g.rms_norm(x, norm, 1e-5);
        let (gate, up) = (matrix(&mut g, "gate", 96, WIDTH), matrix(&mut g, "up", 96, WIDTH));
        let (gate, up) = (g.matmul(n, gate), g.matmul(n, up));
        let h = g.glu(gate, up, act);
        let down = matrix(&mut g, "down", WIDTH, 96);
        let y = g.matmul(h, down);
        // Norm after the block, and the residual on the other side, as gemma has it.
        let y = if layer == 1 {
            let norm = vector(&mut g, "post_norm", WIDTH);
            g.rms_norm(y, norm, 1e-5)
        } else {
            y
        };
        x = if layer == 1 { g.add(y, x) } else { g.add(x, y) };
    }
    g.enter_layer(None);
    let x = g.select_rows(x);
    let norm = g.weight("final_norm", 1, WIDTH, quant::F32);
    let n = g.rms_norm(x, norm, 1e-5);
    let logits = g.matmul(n, table);
    g.set_logits(logits);
    Arc::new(g)
}

/// A plan whose launches are given; the real ones come from the compiler.
fn plan(graph: &Arc<Graph>, kv: &Arc<KvLayout>, act: ActPrecision, greedy: bool, regions: Vec<Vec<NodeId>>) -> Plan {
    let tail = if greedy { Tail::Greedy } else { Tail::Logits };
    let bucket = Bucket { tokens: 80, outputs: 80, context: 96, sequences: 3, tail };
    let launch = |region: Vec<NodeId>| {
        Entry::Launch(Launch {
            template: "test",
            region,
            layer: u32::MAX,
            kernel: None,
            grid: [1; 3],
            args: vec![],
            reads: vec![],
            writes: vec![],
            attends: None,
            bytes: 0,
            flops: 0,
        })
    };
    let mut graph = graph.clone();
    let mut regions = regions;
    let mut output = graph.logits();
    if greedy {
        let mut with_tail = (*graph).clone();
        output = Some(with_tail.argmax(output.unwrap()));
        graph = Arc::new(with_tail);
        regions.push(vec![output.unwrap()]);
    }
    Plan {
        inputs: InputLayout::new(&graph, bucket),
        graph,
        bucket,
        act,
        kv: kv.clone(),
        output,
        kernels: vec![],
        entries: regions.into_iter().map(launch).collect(),
        scratch_bytes: 0,
        output_bytes: 0,
    }
}

fn one_by_one(graph: &Graph) -> Vec<Vec<NodeId>> {
    graph.ids().map(|n| vec![n]).collect()
}

fn all_in_one(graph: &Graph) -> Vec<Vec<NodeId>> {
    vec![graph.ids().collect()]
}

/// Every node's value for a whole sequence, in f64.
fn reference(graph: &Graph, weights: &Bytes, tokens: &[u32]) -> Vec<Vec<f64>> {
    let mut values: HashMap<NodeId, Vec<Vec<f64>>> = HashMap::new();
    for id in graph.ids() {
        let weight = |w: WeightId| weights.values(graph, w).into_iter().map(f64::from).collect::<Vec<_>>();
        let rows = |n: &NodeId| values[n].clone();
        let map = |n: &NodeId, f: &dyn Fn(usize, &mut Vec<f64>)| {
            let mut rows = values[n].clone();
            rows.iter_mut().enumerate().for_each(|(t, r)| f(t, r));
            rows
        };
        let value = match graph.op(id) {
            Op::Embed { table } => {
                let w = weight(*table);
                tokens.iter().map(|t| w[*t as usize * WIDTH as usize..][..WIDTH as usize].to_vec()).collect()
            }
            Op::SelectRows { x } => rows(x),
            Op::Quantize { .. } | Op::Halve { .. } => unreachable!("only devices that run kernels have it"),
            Op::Scale { x, factor } => map(x, &|_, r| r.iter_mut().for_each(|x| *x *= *factor as f64)),
            Op::RmsNorm { x, weight: w, eps, group } => {
                let w = weight(*w);
                map(x, &|_, r| {
                    for part in r.chunks_mut(*group as usize) {
                        let mean = part.iter().map(|x| x * x).sum::<f64>() / part.len() as f64;
                        let factor = 1.0 / (mean + *eps as f64).sqrt();
                        part.iter_mut().zip(&w).for_each(|(x, w)| *x *= factor * w);
                    }
                })
            }
            Op::MatMul { x, weight: w } => {
                let (w, cols) = (weight(*w), graph.weight_of(*w).cols as usize);
                let product = |r: &Vec<f64>| {
                    let dot = |w: &[f64]| w.iter().zip(r).map(|(w, x)| w * x).sum();
                    w.chunks(cols).map(dot).collect()
                };
                values[x].iter().map(product).collect()
            }
            Op::Bias { x, weight: w } => {
                let w = weight(*w);
                map(x, &|_, r| r.iter_mut().zip(&w).for_each(|(x, w)| *x += w))
            }
            Op::Add { a, b } => map(a, &|t, r| r.iter_mut().zip(&values[b][t]).for_each(|(x, y)| *x += y)),
            Op::Glu { gate, up, act } => map(gate, &|t, r| {
                for (g, u) in r.iter_mut().zip(&values[up][t]) {
                    let inner = (2.0 / std::f64::consts::PI).sqrt() * (*g + 0.044715 * g.powi(3));
                    *g = u * match act {
                        Activation::Silu => *g / (1.0 + (-*g).exp()),
                        Activation::GeluTanh => 0.5 * *g * (1.0 + inner.tanh()),
                    };
                }
            }),
            Op::Rope { x, head_dim, pairing, rope } => {
                let rope = &graph.ropes()[rope.index()];
                let n = rope.inv_freq.len();
                map(x, &|t, r| {
                    let mut turn = vec![0.0; 2 * rope.inv_freq.len()];
                    rotations(&rope.inv_freq, rope.magnitude, t as u32, &mut turn);
                    for head in r.chunks_mut(*head_dim as usize) {
                        for i in 0..n {
                            let (a, b) = match pairing {
                                Pairing::Adjacent => (2 * i, 2 * i + 1),
                                Pairing::Halves => (i, i + n),
                            };
                            let (c, s) = (turn[i] as f64, turn[n + i] as f64);
                            (head[a], head[b]) = (head[a] * c - head[b] * s, head[a] * s + head[b] * c);
                        }
                    }
                })
            }
            Op::KvAppend { .. } => vec![],
            Op::Attention { q, append, spec } => {
                let Op::KvAppend { k, v, .. } = graph.op(*append) else { unreachable!() };
                let (dim, group) = (spec.head_dim as usize, (spec.heads / spec.kv_heads) as usize);
                let head = |t: usize, h: usize| -> Vec<f64> {
                    let from = spec.window.map_or(0, |w| (t + 1).saturating_sub(w as usize));
                    let q = &values[q][t][h * dim..][..dim];
                    let at = h / group * dim;
                    let score = |p: usize| {
                        let k = &values[k][p][at..at + dim];
                        (q.iter().zip(k).map(|(q, k)| q * k).sum::<f64>() * spec.scale as f64).exp()
                    };
                    let weights: Vec<f64> = (from..=t).map(score).collect();
                    let sum: f64 = weights.iter().sum();
                    let value = |d| (from..=t).zip(&weights).map(|(p, w)| w * values[v][p][at + d]).sum::<f64>() / sum;
                    (0..dim).map(value).collect()
                };
                (0..tokens.len()).map(|t| (0..spec.heads as usize).flat_map(|h| head(t, h)).collect()).collect()
            }
            Op::Route { .. } | Op::ExpertMatMul { .. } | Op::ExpertSum { .. } => {
                unreachable!("the model has no experts")
            }
            Op::Argmax { .. } | Op::TopK { .. } | Op::Sample { .. } => {
                unreachable!("what the compiler adds")
            }
        };
        values.insert(id, value);
    }
    values.remove(&graph.logits().unwrap()).unwrap()
}

fn tokens(n: usize, seed: u32) -> Vec<u32> {
    (0..n as u32).map(|i| (i * 7 + seed * 13 + i * i % 5) % VOCABULARY).collect()
}

/// Rows `from..` of a sequence with the pages given.
fn rows(step: &mut Step, ids: &[u32], from: usize, pages: &[u32]) {
    let sequence = step.pages.len() as u32;
    step.pages.push(pages.to_vec());
    for (p, id) in ids.iter().enumerate().skip(from) {
        step.tokens.push(*id);
        step.positions.push(p as u32);
        step.sequence.push(sequence);
        step.slots.push(pages[p / PAGE_TOKENS as usize] * PAGE_TOKENS + p as u32 % PAGE_TOKENS);
        step.outputs.push(step.tokens.len() as u32 - 1);
    }
}

fn device(isa: Isa, graph: &Arc<Graph>, kv: &Arc<KvLayout>, source: &dyn WeightSource) -> CpuDevice {
    let mut device = CpuDevice::with_isa(2, isa).unwrap();
    device.load(graph, kv, source, &mut |_| ()).unwrap();
    device
}

fn logits(device: &mut CpuDevice, program: ProgramId, step: &Step) -> Vec<f32> {
    match device.run(program, step).unwrap() {
        StepOutput::Logits(logits) => logits,
        other => panic!("logits expected, not {other:?}"),
    }
}

fn worst(got: &[f32], want: &[Vec<f64>]) -> f64 {
    let want = want.iter().flatten();
    got.iter().zip(want).map(|(a, b)| (*a as f64 - b).abs()).fold(0.0, f64::max)
}

#[test]
fn graphs_are_computed_as_defined() {
    let q8_0 = quant::by_name("Q8_0").unwrap();
    for (format, table) in [(quant::F32, quant::F16), (q8_0, q8_0), (quant::F16, q8_0)] {
        let graph = model(format, table);
        let weights = Bytes::new(&graph);
        let ids = tokens(70, 1);
        let want = reference(&graph, &weights, &ids);
        let size = want.iter().flatten().fold(0f64, |m, x| m.max(x.abs()));
        assert!(size > 0.5, "logits of size {size} show nothing");
        for isa in Isa::available() {
            for ty in [KvType::F32, KvType::F16] {
                let kv = Arc::new(KvLayout::new(&graph, ty, 5));
                let mut device = device(isa, &graph, &kv, &weights);
                for regions in [one_by_one(&graph), all_in_one(&graph)] {
                    for (act, most) in [(ActPrecision::F32, 1e-4), (ActPrecision::F16, 1e-2), (ActPrecision::Q8, 6e-2)]
                    {
                        let most = if ty == KvType::F16 { f64::max(most, 1e-2) } else { most };
                        let plan = Arc::new(plan(&graph, &kv, act, false, regions.clone()));
                        let program = device.prepare(&plan, &mut |_| ()).unwrap();
                        let mut step = Step::default();
                        rows(&mut step, &ids, 0, &[4, 1, 3]);
                        let got = logits(&mut device, program, &step);
                        let off = worst(&got, &want) / size;
                        assert!(off < most, "{} {} {act:?} {ty:?}: off by {off}", isa.name(), format.name);
                    }
                }
            }
        }
    }
}

#[test]
fn fused_and_batched_steps_give_the_same_bits() {
    let format = quant::by_name("Q4_1").unwrap();
    let graph = model(format, quant::by_name("Q8_0").unwrap());
    let weights = Bytes::new(&graph);
    let kv = Arc::new(KvLayout::new(&graph, KvType::F16, 8));
    for isa in Isa::available() {
        let mut device = device(isa, &graph, &kv, &weights);
        let fused = Arc::new(plan(&graph, &kv, ActPrecision::Q8, false, all_in_one(&graph)));
        let plain = Arc::new(plan(&graph, &kv, ActPrecision::Q8, false, one_by_one(&graph)));
        let fused = device.prepare(&fused, &mut |_| ()).unwrap();
        let plain = device.prepare(&plain, &mut |_| ()).unwrap();
        let (a, b) = (tokens(40, 1), tokens(33, 2));
        let mut whole = Step::default();
        rows(&mut whole, &a, 0, &[0, 1]);
        let alone = logits(&mut device, fused, &whole);
        assert_eq!(alone, logits(&mut device, plain, &whole), "{}: op by op", isa.name());
        // Token by token, in another place, beside another sequence.
        let width = VOCABULARY as usize;
        for n in 1..=a.len() {
            let mut step = Step::default();
            rows(&mut step, &b[..n.min(b.len())], n.min(b.len()) - 1, &[7, 2]);
            rows(&mut step, &a[..n], n - 1, &[5, 3]);
            let got = logits(&mut device, fused, &step);
            assert_eq!(got[width..], alone[(n - 1) * width..n * width], "{} token {n}", isa.name());
        }
    }
}

#[test]
fn greedy_tail_pages_and_profiles() {
    let graph = model(quant::F32, quant::F32);
    let weights = Bytes::new(&graph);
    let kv = Arc::new(KvLayout::new(&graph, KvType::F32, 6));
    let mut device = device(Isa::best(), &graph, &kv, &weights);
    let greedy = Arc::new(plan(&graph, &kv, ActPrecision::F32, true, all_in_one(&graph)));
    let program = device.prepare(&greedy, &mut |_| ()).unwrap();
    assert_eq!(device.profile(program, true), None);
    let ids = tokens(20, 3);
    let want = reference(&graph, &weights, &ids);
    let mut step = Step::default();
    rows(&mut step, &ids[..19], 0, &[2]);
    device.run(program, &step).unwrap();
    // The last token continues on a copy of the page.
    device.copy_pages(&[(2, 5)]).unwrap();
    let mut step = Step::default();
    rows(&mut step, &ids, 19, &[5]);
    let best = want[19].iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).unwrap().0 as u32;
    assert_eq!(device.run(program, &step).unwrap(), StepOutput::Tokens(vec![best]));
    let times = device.profile(program, false).unwrap();
    assert_eq!(times.len(), 2);
    assert!(times[0].as_nanos() > 0);
    // Without outputs nothing comes back; a row without a slot leaves the cache alone.
    let mut quiet = step.clone();
    quiet.outputs.clear();
    quiet.slots = vec![NO_SLOT];
    assert_eq!(device.run(program, &quiet).unwrap(), StepOutput::None);
}

#[test]
fn synthetic_weights_are_those_of_the_definition() {
    let graph = model(quant::F16, quant::by_name("Q8_0").unwrap());
    let kv = Arc::new(KvLayout::new(&graph, KvType::F32, 2));
    let mut step = Step::default();
    rows(&mut step, &tokens(9, 4), 0, &[1]);
    let mut results = vec![];
    for source in [&Bytes::new(&graph) as &dyn WeightSource, &Seeds] {
        let mut device = device(Isa::best(), &graph, &kv, source);
        let plan = Arc::new(plan(&graph, &kv, ActPrecision::F32, false, all_in_one(&graph)));
        let program = device.prepare(&plan, &mut |_| ()).unwrap();
        results.push(logits(&mut device, program, &step));
    }
    assert_eq!(results[0], results[1]);
}

#[test]
fn bad_steps_are_errors() {
    let graph = model(quant::F32, quant::F32);
    let kv = Arc::new(KvLayout::new(&graph, KvType::F32, 2));
    let mut empty = CpuDevice::new(1).unwrap();
    let plan = Arc::new(plan(&graph, &kv, ActPrecision::F32, false, all_in_one(&graph)));
    assert!(matches!(empty.prepare(&plan, &mut |_| ()), Err(DeviceError::Misuse(_))));
    let mut device = device(Isa::best(), &graph, &kv, &Seeds);
    let program = device.prepare(&plan, &mut |_| ()).unwrap();
    let mut good = Step::default();
    rows(&mut good, &tokens(3, 1), 0, &[1]);
    type Damage = fn(&mut Step);
    let damages: [Damage; 4] =
        [|s| s.tokens[1] = VOCABULARY, |s| s.pages[0][0] = 2, |s| s.slots[0] = 2 * PAGE_TOKENS, |s| s.sequence[2] = 1];
    for damage in damages {
        let mut bad = good.clone();
        damage(&mut bad);
        let error = device.run(program, &bad).unwrap_err();
        assert!(matches!(error, DeviceError::Step(StepError::Inconsistent(_))), "{error}");
    }
    assert!(device.run(program, &good).is_ok());
    assert!(matches!(device.copy_pages(&[(0, 2)]), Err(DeviceError::Misuse(_))));
    assert!(matches!(device.run(ProgramId(9), &good), Err(DeviceError::Misuse(_))));
}
