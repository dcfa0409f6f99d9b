//! Mixture of experts: sorts the step's rows by expert and multiplies.
//!
//! ```text
//! route rows [k weights][k experts] ─sort─► pairs by expert ─► Activations, Parts ─multiply_experts─► [row][k][..]
//! ```

use super::execute::{Run, each_row};
use super::program::{ExpertSpec, Slot};
use crate::matmul::experts::{ExpertProduct, Part, multiply_experts};
use crate::rows;
use crate::scratch::Scratch;
use zinc_ir::graph::Routing;
use zinc_ir::plan::ActPrecision;

/// The pairs of a step, sorted by expert.
struct Sorted {
    /// `row · k + which of the row's experts`.
    pairs: Scratch<u32>,
    /// Experts that have pairs, with how many.
    lengths: Scratch<(usize, usize)>,
}

/// Sorts the pairs of `route`, rows of `2 · used` values.
fn sort(route: &[f32], routing: Routing) -> Sorted {
    let used = routing.used as usize;
    let expert = |pair: u32| {
        let (row, which) = (pair as usize / used, pair as usize % used);
        route[row * 2 * used + used + which].to_bits()
    };
    let mut pairs = Scratch::of(0..(route.len() / 2) as u32);
    pairs.sort_unstable_by_key(|p| (expert(*p), *p));
    let chunks = pairs.chunk_by(|a, b| expert(*a) == expert(*b));
    let lengths = Scratch::of(chunks.map(|c| (expert(c[0]) as usize, c.len())));
    Sorted { pairs, lengths }
}

impl Run<'_> {
    /// Rows of `k` weights and `k` expert numbers.
    pub(super) fn route(&mut self, logits: Slot, k: usize, out: Slot, rows: usize) {
        let mut buffer = self.take(out, rows);
        let cols = self.program.slots[logits];
        let logits = &self.values.slots[logits];
        each_row(self.pool, &mut buffer, rows, |t, out| {
            let best = rows::top_k(&logits[t * cols..(t + 1) * cols], k);
            let (weights, numbers) = out.split_at_mut(k);
            for ((weight, number), (logit, expert)) in weights.iter_mut().zip(numbers).zip(best.iter()) {
                (*weight, *number) = ((logit - best[0].0).exp(), f32::from_bits(*expert));
            }
            let sum: f32 = weights.iter().sum();
            weights.iter_mut().for_each(|w| *w /= sum);
        });
        self.values.slots[out] = buffer;
    }

    /// The products of all chosen experts.
    pub(super) fn experts(&mut self, rows: usize, spec: &ExpertSpec) {
        let used = spec.routing.used as usize;
        let sorted = sort(&self.values.slots[spec.route][..rows * 2 * used], spec.routing);
        let weights = self.model.matrix(spec.weight);
        let act = match self.act {
            ActPrecision::Q8 if !weights.takes_integers() => ActPrecision::F16,
            act => act,
        };
        let (isa, cols) = (self.isa, weights.cols());
        let shared = self.program.slots[spec.x] == cols;
        let x = &self.values.slots[spec.x];
        let norm = spec.norm.map(|(weight, eps)| (self.model.vector(weight), eps));
        let read = |row: usize, out: &mut [f32]| {
            let x = &x[row * cols..(row + 1) * cols];
            match norm {
                Some((gain, eps)) => rows::rms_norm(isa, x, gain, eps, out),
                None => out.copy_from_slice(x),
            }
        };
        let part = |i: usize, groups, first| Part { expert: sorted.lengths[i].0, groups, first };
        let parts = if shared && rows == 1 {
            // One token, whom all of its experts read: one copy of it is enough.
            self.activations.fill_with(self.pool, act, 1, cols, read);
            Scratch::of((0..sorted.lengths.len()).map(|i| part(i, 0..1, i)))
        } else {
            let lengths = Scratch::of(sorted.lengths.iter().map(|l| l.1));
            self.activations.fill_segments(self.pool, act, &lengths, cols, |i, out| {
                let pair = sorted.pairs[i] as usize;
                read(if shared { pair / used } else { pair }, out);
            });
            Scratch::of((0..lengths.len()).map(|i| part(i, self.activations.segment(i), 0)))
        };
        let mut out = self.take(spec.out, rows);
        let mut product = ExpertProduct {
            weights: self.model.matrix(spec.weight),
            experts: spec.routing.experts as usize,
            glu: spec.glu.map(|(up, act)| (self.model.matrix(up), act)),
            pairs: &sorted.pairs,
            out: &mut out,
        };
        multiply_experts(self.pool, self.activations, &parts, &mut product);
        self.values.slots[spec.out] = out;
    }

    /// What the experts of each row gave, weighted and added up.
    pub(super) fn expert_sum(&mut self, x: Slot, route: Slot, out: Slot, rows: usize) {
        let mut buffer = self.take(out, rows);
        let (cols, used) = (self.program.slots[out], self.program.slots[route] / 2);
        let (x, route) = (&self.values.slots[x], &self.values.slots[route]);
        each_row(self.pool, &mut buffer, rows, |t, out| {
            out.fill(0.0);
            for which in 0..used {
                let (weight, x) = (route[t * 2 * used + which], &x[(t * used + which) * cols..][..cols]);
                out.iter_mut().zip(x).for_each(|(o, x)| *o += weight * x);
            }
        });
        self.values.slots[out] = buffer;
    }
}
