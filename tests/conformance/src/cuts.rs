//! Every legal cut of every kernel gives what the rule's gives.

use crate::{Chunk, Driver, InterpretedDevice, gpu_caps};
use std::sync::Arc;
use zinc_compiler::{Choices, Tunable, Tuned, tunables};
use zinc_ir::device::WeightSource;
use zinc_ir::graph::{Activation, Graph, WeightId};
use zinc_ir::plan::{Bucket, KvLayout, KvType, PAGE_TOKENS, StepOutput, Tail};
use zinc_ir::quant;
use zinc_ir::synthetic::Recipe;

/// Tokens that a sequence may have.
const CONTEXT: u32 = 96;

/// A model to try cuts with: one step of `tokens` in subgroups of `subgroup`.
pub struct Trial<'a> {
    /// Its graph.
    pub graph: &'a Arc<Graph>,
    /// Its weights.
    pub weights: &'a dyn WeightSource,
    /// Tokens of the step.
    pub tokens: &'a [u32],
    /// Lanes per subgroup.
    pub subgroup: u32,
    /// Precision, and nothing else.
    pub choices: Choices,
}

impl Trial<'_> {
    /// Tries every `stride`-th cut from the `first` on, of all kernels at once; logits may be off by `tolerance` of the
    /// largest. Gives what was tried and how far off it was at most.
    pub fn cuts_agree(&self, first: usize, stride: usize, tolerance: f32) -> (Vec<Tuned>, f32) {
        let tunables = self.tunables();
        assert!(!tunables.is_empty(), "nothing to tune");
        let rounds = tunables.iter().map(|t| t.cuts.all.len()).max().unwrap_or(0);
        let expected = self.logits(Tuned::new());
        let largest = expected.iter().fold(0.0, |m: f32, e| m.max(e.abs()));
        let mut worst = 0.0;
        let mut tried = vec![];
        for round in (first..rounds).step_by(stride) {
            let cut = |t: &Tunable| Some((t.cuts.key.clone(), *t.cuts.all.get(round)?));
            let tuned: Tuned = tunables.iter().filter_map(cut).collect();
            let got = self.logits(tuned.clone());
            assert_eq!(got.len(), expected.len());
            let off = expected.iter().zip(&got).map(|(e, g)| (e - g).abs());
            let off = off.fold(0.0, |m: f32, d| if d > m || d.is_nan() { d } else { m }) / largest;
            let named: Vec<String> = tuned.iter().map(|(key, cut)| format!("{key}: {cut}")).collect();
            assert!(off <= tolerance, "off by {off:.1e} of the largest:\n{}", named.join("\n"));
            worst = off.max(worst);
            tried.push(tuned);
        }
        (tried, worst)
    }

    /// What can be chosen.
    pub fn tunables(&self) -> Vec<Tunable> {
        let rows = self.tokens.len() as u32;
        let bucket = Bucket { tokens: rows, outputs: rows, context: CONTEXT, sequences: 1, tail: Tail::Logits };
        let kv = Arc::new(KvLayout::new(self.graph, KvType::F32, CONTEXT / PAGE_TOKENS));
        tunables(self.graph, &kv, bucket, &gpu_caps(self.subgroup), &self.choices).expect("the plan compiles")
    }

    fn logits(&self, tuned: Tuned) -> Vec<f32> {
        let choices = Choices { tuned: Arc::new(tuned), ..self.choices.clone() };
        let mut device = InterpretedDevice::new(gpu_caps(self.subgroup), 11);
        let mut driver = Driver::new(&mut device, self.graph, self.weights, KvType::F32, choices, 1, CONTEXT);
        let step = [Chunk { sequence: 0, tokens: self.tokens }];
        match driver.step(&step, self.tokens.len() as u32, Tail::Logits) {
            StepOutput::Logits(logits) => logits,
            other => panic!("asked for logits, got {other:?}"),
        }
    }
}

/// x = embedding; y = x + down(silu(gate · n) · up · n), n = norm(x); logits = head · norm(y): with long rows, so that
/// a lane takes many turns.
pub struct LongRows {
    /// The graph.
    pub graph: Arc<Graph>,
    bytes: Vec<Vec<u8>>,
}

impl LongRows {
    /// Rows of `cols` weights, in a format.
    pub fn new(format: &str, cols: u32) -> LongRows {
        let format = quant::by_name(format).expect("a format");
        let mut g = Graph::new();
        let table = g.weight("table", 8, cols, quant::F32);
        let gate = g.weight("gate", 256, cols, format);
        let up = g.weight("up", 256, cols, format);
        let down = g.weight("down", cols, 256, format);
        let head = g.weight("head", 37, cols, format);
        let gain = g.weight("gain", 1, cols, quant::F32);
        let x = g.embed(table);
        let n = g.rms_norm(x, gain, 1e-6);
        let (a, b) = (g.matmul(n, gate), g.matmul(n, up));
        let h = g.glu(a, b, Activation::Silu);
        let d = g.matmul(h, down);
        let y = g.add(x, d);
        let y = g.select_rows(y);
        let n = g.rms_norm(y, gain, 1e-6);
        let logits = g.matmul(n, head);
        g.set_logits(logits);
        LongRows::of(Arc::new(g))
    }

    /// Any graph, with made-up weights.
    pub fn of(graph: Arc<Graph>) -> LongRows {
        let made = graph.weights().iter().zip(1..).map(|(w, seed)| {
            let mut bytes = vec![0; w.bytes() as usize];
            Recipe::of(w).fill(seed, 0, &mut bytes);
            bytes
        });
        LongRows { bytes: made.collect(), graph }
    }
}

impl WeightSource for LongRows {
    fn bytes(&self, weight: WeightId) -> Option<&[u8]> {
        Some(&self.bytes[weight.index()])
    }
}
