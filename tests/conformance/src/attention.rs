//! Attention of prompts and of batches that generate, for sizes and batches that models bring, against sums in F64.

use crate::{Chunk, Driver};
use std::sync::Arc;
use zinc_compiler::{Choices, compile};
use zinc_ir::device::{Device, WeightSource};
use zinc_ir::graph::{AttentionSpec, Graph, WeightId};
use zinc_ir::plan::{ActPrecision, Bucket, KvLayout, KvType, KvTypes, StepOutput, Tail};
use zinc_ir::quant;

/// Tokens there are.
const VOCABULARY: u32 = 61;
const CONTEXT: u32 = 128;
const SEQUENCES: usize = 3;

/// q, k and v of each token: F32 whose values halves have, too.
struct Tables(Vec<Vec<u8>>);

impl WeightSource for Tables {
    fn bytes(&self, weight: WeightId) -> Option<&[u8]> {
        Some(&self.0[weight.index()])
    }
}

impl Tables {
    fn new(graph: &Graph) -> Tables {
        let mut state = 99u32;
        let mut next = move || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            ((state >> 16) % 129) as f32 / 64.0 - 1.0
        };
        let table = |count: u32| (0..count).flat_map(|_| next().to_le_bytes()).collect();
        Tables(graph.weights().iter().map(|w| w.rows * w.cols).map(table).collect())
    }

    fn row(&self, table: usize, token: u32) -> Vec<f64> {
        let all = &self.0[table];
        let bytes = all.len() / VOCABULARY as usize;
        let row = &all[token as usize * bytes..][..bytes];
        row.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]) as f64).collect()
    }
}

fn graph(spec: AttentionSpec) -> Graph {
    let mut g = Graph::new();
    let [q, k, v] = [("q", spec.heads), ("k", spec.kv_heads), ("v", spec.kv_heads)].map(|(name, heads)| {
        let table = g.weight(name, VOCABULARY, heads * spec.head_dim, quant::F32);
        g.embed(table)
    });
    let append = g.kv_append(k, v, spec.head_dim);
    let y = g.attention(q, append, spec);
    let y = g.select_rows(y);
    g.set_logits(y);
    g
}

/// A row as it comes out of a cache of a type: what plain Rust makes of quantizing it and back.
fn cached(ty: KvType, row: Vec<f64>) -> Vec<f64> {
    if !ty.is_quantized() {
        return row;
    }
    let back = |block: &[f64]| {
        let values: [f32; 32] = std::array::from_fn(|i| block[i] as f32);
        let (scale, stored) = ty.quantize(&values);
        stored.map(|s| ty.value(scale, s) as f64)
    };
    row.chunks_exact(32).flat_map(back).collect()
}

/// What the last of `tokens` gets.
fn expected(spec: &AttentionSpec, kv: KvTypes, tables: &Tables, tokens: &[u32]) -> Vec<f64> {
    let (d, group) = (spec.head_dim as usize, (spec.heads / spec.kv_heads) as usize);
    let first = spec.window.map_or(0, |w| tokens.len().saturating_sub(w as usize));
    let q = tables.row(0, *tokens.last().expect("a token"));
    let rows = |t: usize, ty: KvType| {
        tokens[first..].iter().map(|token| cached(ty, tables.row(t, *token))).collect::<Vec<_>>()
    };
    let [k, v] = [rows(1, kv.k), rows(2, kv.v)];
    let head = |h: usize| {
        let own = |row: &[f64]| row[h / group * d..][..d].to_vec();
        let dot = |k: &Vec<f64>| q[h * d..][..d].iter().zip(own(k)).map(|(q, k)| q * k).sum::<f64>();
        let scores: Vec<f64> = k.iter().map(|k| dot(k) * spec.scale as f64).collect();
        let max = scores.iter().copied().fold(f64::MIN, f64::max);
        let p: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
        let sum: f64 = p.iter().sum();
        (0..d).map(|e| p.iter().zip(&v).map(|(p, v)| p * own(v)[e]).sum::<f64>() / sum).collect::<Vec<f64>>()
    };
    (0..spec.heads as usize).flat_map(head).collect()
}

/// Steps of several sequences, with rows of each: short and long ones, one that waits, one that joins late.
const STEPS: [[usize; SEQUENCES]; 4] = [[40, 9, 0], [1, 0, 12], [13, 30, 1], [0, 17, 33]];

/// Ragged batches of three sequences with halves in the cache and as inputs; if a template is named, then by it.
pub fn attention_of_prompts(device: &mut dyn Device, spec: AttentionSpec, template: Option<&str>) {
    attention_of_prompts_in(device, spec, KvType::F16, template);
}

/// The same with K and V in other types.
pub fn attention_of_prompts_in(
    device: &mut dyn Device,
    spec: AttentionSpec,
    types: impl Into<KvTypes>,
    template: Option<&str>,
) {
    let types = types.into();
    let what = format!("{spec:?} in subgroups of {}", device.caps().subgroup_size);
    let graph = Arc::new(graph(spec));
    let tables = Tables::new(&graph);
    let choices = Choices { act: ActPrecision::F16, ..Choices::default() };
    let kv = Arc::new(KvLayout::new(&graph, types, 4));
    let bucket = Bucket { tokens: 64, outputs: 64, context: CONTEXT, sequences: 1, tail: Tail::Logits };
    let plan = compile(&graph, &kv, bucket, device.caps(), &choices).unwrap_or_else(|e| panic!("{what}: {e}"));
    assert!(template.is_none_or(|t| plan.launches().any(|l| l.template == t)), "{what}:\n{plan}");
    let mut driver = Driver::new(device, &graph, &tables, types, choices, SEQUENCES as u32, CONTEXT);
    let mut texts: [Vec<u32>; SEQUENCES] = Default::default();
    let mut worst = 0.0f64;
    for step in STEPS {
        let fed: Vec<Vec<u32>> = (0..SEQUENCES as u32)
            .zip(step)
            .map(|(s, rows)| {
                (0..rows as u32).map(|i| (i * i * 5 + i * 7 + s * 11 + step[0] as u32) % VOCABULARY).collect()
            })
            .collect();
        let chunks: Vec<Chunk<'_>> = fed
            .iter()
            .enumerate()
            .filter(|f| !f.1.is_empty())
            .map(|(sequence, tokens)| Chunk { sequence, tokens })
            .collect();
        let StepOutput::Logits(got) = driver.step(&chunks, 64, Tail::Logits) else { panic!("asked for logits") };
        let mut rows = got.chunks_exact((spec.heads * spec.head_dim) as usize);
        for (s, tokens) in fed.iter().enumerate() {
            for token in tokens {
                texts[s].push(*token);
                let expected = expected(&spec, types, &tables, &texts[s]);
                let got = rows.next().expect("a row for each token");
                worst = expected.iter().zip(got).map(|(e, g)| (e - *g as f64).abs()).fold(worst, f64::max);
            }
        }
    }
    println!("{what}: {worst:.1e}");
    assert!(worst < 1e-3, "{what}: off by {worst}");
}

/// Tokens before the step, of the sequences of a batch: around the ends of pages and of splits.
const LENGTHS: [usize; 12] = [0, 300, 1, 255, 31, 256, 257, 32, 511, 5, 512, 600];

/// One row of each of twelve ragged sequences, against sums in F64; and bit for bit what each gets alone.
pub fn attention_of_batches(device: &mut dyn Device, spec: AttentionSpec, kv: impl Into<KvTypes>) {
    let kv = kv.into();
    let what = format!("{spec:?}, KV {kv}, subgroups of {}", device.caps().subgroup_size);
    let graph = Arc::new(graph(spec));
    let (tables, count, width) = (Tables::new(&graph), LENGTHS.len() as u32, (spec.heads * spec.head_dim) as usize);
    let layout = Arc::new(KvLayout::new(&graph, kv, 4));
    let bucket = Bucket { tokens: count, outputs: count, context: 640, sequences: count, tail: Tail::Logits };
    let plan = compile(&graph, &layout, bucket, device.caps(), &Choices::default()).expect("the plan compiles");
    assert!(plan.launches().any(|l| l.template == "attention"), "{what}:\n{plan}");
    let mut driver = Driver::new(device, &graph, &tables, kv, Choices::default(), count, 640);
    let texts: Vec<Vec<u32>> = (0..count)
        .zip(LENGTHS)
        .map(|(s, length)| (0..=length as u32).map(|i| (i * i * 5 + i * 7 + s * 11) % VOCABULARY).collect())
        .collect();
    for (sequence, text) in texts.iter().enumerate() {
        for tokens in text[..text.len() - 1].chunks(200) {
            driver.feed(&[Chunk { sequence, tokens }], 200);
        }
    }
    let last = |sequence: usize| Chunk { sequence, tokens: &texts[sequence][LENGTHS[sequence]..] };
    let mut run = |order: &[usize]| {
        let chunks: Vec<Chunk<'_>> = order.iter().map(|s| last(*s)).collect();
        let StepOutput::Logits(got) = driver.step(&chunks, order.len() as u32, Tail::Logits) else {
            panic!("asked for logits")
        };
        order.iter().for_each(|s| driver.rewind(*s, 1));
        got
    };
    let order = [3, 11, 0, 7, 5, 10, 1, 9, 2, 8, 6, 4];
    let together = run(&order);
    let mut worst = 0.0f64;
    for (got, s) in together.chunks_exact(width).zip(order) {
        let expected = expected(&spec, kv, &tables, &texts[s]);
        worst = expected.iter().zip(got).map(|(e, g)| (e - *g as f64).abs()).fold(worst, f64::max);
        // Who sees one token gets its V, so that what the cache has of it shows, bit for bit.
        let exact = LENGTHS[s] > 0 || expected.iter().zip(got).all(|(e, g)| *e as f32 == *g);
        assert!(exact, "{what}: V is kept otherwise than it should be");
        let same = run(&[s]).iter().zip(got).all(|(a, b)| a.to_bits() == b.to_bits());
        assert!(same, "{what}: the sequence of {} tokens gets something else alone", LENGTHS[s]);
    }
    println!("{what}: {worst:.1e}");
    assert!(worst < 1e-4, "{what}: off by {worst}");
}
