//! What a subgroup does with a chunk: scores, their weights, and the weighted sum of V.

use super::super::attention::NONE;
use super::super::halve;
use super::SKIP_RESCALING;
use super::{Kernel, Query, State};
use zinc_ir::kernel::{MatrixMemory, Scalar, Type, Val};

impl<'b> Kernel<'b> {
    /// The subgroup's queries times the scale (for powers of two) as halves: a matrix per `k` elements, or none if they stay in shared memory.
    pub(super) fn load_queries(&self, queries: &[Query<'b>]) -> Vec<Val<'b>> {
        let (b, t) = (self.b, &self.tile);
        let width = t.widths[0];
        if let Some(array) = self.queries {
            self.put_queries(queries, array, t.line(width) * 2, 0, width);
            b.subgroup_barrier();
            return vec![];
        }
        let mut matrices = vec![];
        for from in (0..width).step_by(t.chunk as usize) {
            let columns = t.chunk.min(width - from);
            if from > 0 {
                b.subgroup_barrier();
            }
            self.put_queries(queries, self.weights, t.weights_line(), from, columns);
            b.subgroup_barrier();
            matrices.extend((0..columns / t.k()).map(|i| self.load_own(self.weights, t.weights_line(), i)));
        }
        matrices
    }

    /// Stores elements `from .. from + columns` of the queries as lines of an array.
    fn put_queries(&self, queries: &[Query<'b>], array: u32, line: u32, from: u32, columns: u32) {
        let b = self.b;
        for q in queries {
            for quad in self.quads(columns) {
                let at = (q.line * self.tile.widths[0] + quad * 4) * 4;
                let value = b.load_at(Type::F32X4, self.io.q, at, from * 4, 16, true)
                    * (self.spec.scale * std::f32::consts::LOG2_E);
                b.shared_store(array, q.index * line + quad, halve::rounded(b, value));
            }
        }
    }

    /// Columns `i * k ..` of the subgroup's lines of an array of quads of halves.
    fn load_own(&self, array: u32, line: u32, i: u32) -> Val<'b> {
        let (b, t) = (self.b, &self.tile);
        let index = (self.own() * line + i * (t.k() / 4)).value();
        b.matrix_load(self.types[0], MatrixMemory::Shared { array, index }, b.u32(line), false)
    }

    /// The state after the chunk that starts at token `first`.
    pub(super) fn chunk(
        &self,
        q: &[Val<'b>],
        queries: &[Query<'b>],
        common: [Val<'b>; 2],
        first: Val<'b>,
        state: &State<'b>,
    ) -> State<'b> {
        let (b, t) = (self.b, &self.tile);
        self.scores(q);
        b.subgroup_barrier();
        let all_seen = first.ge(common[0]) & (first + t.chunk).le(common[1]);
        let soft = |masked| self.soften(queries, masked, first, state);
        let next = b.if_else(all_seen, || soft(false), || soft(true));
        let (maxima, rest) = next.split_at(queries.len());
        let (sums, keep) = rest.split_at(queries.len());
        self.put_factors(queries, keep);
        b.subgroup_barrier();
        let p = (0..t.chunk / t.k()).map(|i| self.load_own(self.weights, t.weights_line(), i));
        let acc = match SKIP_RESCALING {
            true => {
                let least = keep.iter().copied().reduce(Val::min).expect("a query").subgroup_min();
                b.if_else(least.lt(1.0), || self.times_factors(&state.acc), || state.acc.clone())
            }
            false => self.times_factors(&state.acc),
        };
        let acc = (0..).zip(p).fold(acc, |acc, (i, p)| {
            (0..).zip(acc).map(|(j, sum)| b.matrix_mul_add(p, self.load_values(i, j), sum)).collect()
        });
        State { acc, maxima: maxima.to_vec(), sums: sums.to_vec() }
    }

    /// Q·Kᵀ of the subgroup's queries and the chunk's tokens, into `scores`.
    fn scores(&self, q: &[Val<'b>]) {
        let (b, t) = (self.b, &self.tile);
        let zero = b.matrix_splat(self.types[2], b.f32(0.0));
        let mut sums = vec![zero; (t.chunk / t.n()) as usize];
        for i in 0..t.widths[0] / t.k() {
            let q = match self.queries {
                Some(array) => self.load_own(array, t.line(t.widths[0]) * 2, i),
                None => q[i as usize],
            };
            sums = (0..).zip(sums).map(|(j, sum)| b.matrix_mul_add(q, self.load_keys(i, j), sum)).collect();
        }
        (0..).zip(sums).for_each(|(j, sum)| self.put_scores(sum, j));
    }

    /// Stores a matrix of the subgroup's queries as columns `j * n ..` of `scores`.
    fn put_scores(&self, matrix: Val<'b>, j: u32) {
        let (b, t) = (self.b, &self.tile);
        let index = (self.own() * t.scores_line() + j * (t.n() / 4)).value();
        let memory = MatrixMemory::Shared { array: self.scores, index };
        b.matrix_store(matrix, memory, b.u32(t.scores_line()), false);
    }

    /// Makes weights of this lane's scores, 2^(score - maximum), as halves into `weights`; gives the new maxima and sums,
    /// and by what the old sums have been multiplied. `masked`: some query does not see some token.
    fn soften(&self, queries: &[Query<'b>], masked: bool, first: Val<'b>, state: &State<'b>) -> Vec<Val<'b>> {
        let (b, t) = (self.b, &self.tile);
        let (mut maxima, mut sums, mut keeps) = (vec![], vec![], vec![]);
        for (i, q) in queries.iter().enumerate() {
            let quads: Vec<Val<'b>> = self.quads(t.chunk).collect();
            let seen = |quad: Val<'b>| {
                let from_lowest = first + quad * 4 - q.sees[0];
                let seen = [0, 1, 2, 3].map(|e| (from_lowest + e).lt(q.sees[1] - q.sees[0]));
                b.compose(&seen)
            };
            let only_seen = |quad: Val<'b>, value: Val<'b>, otherwise: f32| match masked {
                true => seen(quad).select(value, b.f32x4(otherwise)),
                false => value,
            };
            let score = |quad: &Val<'b>| b.shared_load(self.scores, q.index * t.scores_line() + *quad);
            let scores: Vec<Val<'b>> = quads.iter().map(|quad| only_seen(*quad, score(quad), NONE)).collect();
            let largest = scores.iter().copied().reduce(Val::max).expect("tokens");
            let largest = (0..4).map(|e| largest.lane(e)).reduce(Val::max).expect("lanes");
            let max = self.over_lanes(largest, Val::max).max(state.maxima[i]);
            let keep = (state.maxima[i] - max).exp2();
            let mut sum = None;
            for (quad, score) in quads.iter().zip(scores) {
                let p = only_seen(*quad, (score - max.splat(4)).exp2(), 0.0);
                b.shared_store(self.weights, q.index * t.weights_line() + *quad, p.to(Scalar::F16));
                sum = Some(sum.map_or(p, |sum: Val<'b>| sum + p));
            }
            maxima.push(max);
            sums.push(b.fma(state.sums[i], keep, sum.expect("tokens").sum_lanes()));
            keeps.push(keep);
        }
        [maxima, sums, keeps].concat()
    }

    /// This lane's quads of a line of `columns`.
    fn quads(&self, columns: u32) -> impl Iterator<Item = Val<'b>> {
        let (part, step) = (self.part(), self.tile.lanes_per_query());
        (0..columns / 4 / step).map(move |i| part + i * step)
    }

    /// Combines what the lanes of a query have.
    fn over_lanes(&self, own: Val<'b>, f: impl Fn(Val<'b>, Val<'b>) -> Val<'b>) -> Val<'b> {
        (0..self.tile.lanes_per_query().trailing_zeros()).fold(own, |all, bit| f(all, all.shuffle_xor(1 << bit)))
    }

    /// Stores what each query's accumulators are to be multiplied with: the lanes of a query know it.
    fn put_factors(&self, queries: &[Query<'b>], factors: &[Val<'b>]) {
        for (q, factor) in queries.iter().zip(factors) {
            self.b.if_(self.part().eq(0), || self.b.shared_store(self.factors, q.index, *factor));
        }
    }

    /// Accumulators times the factors of their rows, which come as a matrix of equal columns.
    fn times_factors(&self, acc: &[Val<'b>]) -> Vec<Val<'b>> {
        let b = self.b;
        let memory = MatrixMemory::Shared { array: self.factors, index: self.own().value() };
        let factors = b.matrix_load(self.types[2], memory, b.u32(0), true);
        acc.iter().map(|sum| *sum * factors).collect()
    }

    /// Divides by the sums of weights and stores the result, a chunk's width of columns at a time.
    pub(super) fn store(&self, queries: &[Query<'b>], state: &State<'b>) {
        let (b, t) = (self.b, &self.tile);
        let factors: Vec<Val<'b>> = state
            .sums
            .iter()
            .map(|sum| {
                let sum = self.over_lanes(*sum, |x, y| x + y);
                // No visible token (padding): 0, not 0/0.
                sum.gt(0.0).select(b.f32(1.0) / sum, b.f32(0.0))
            })
            .collect();
        b.subgroup_barrier();
        self.put_factors(queries, &factors);
        b.subgroup_barrier();
        let results = self.times_factors(&state.acc);
        for (piece, results) in results.chunks((t.chunk / t.n()) as usize).enumerate() {
            if piece > 0 {
                b.subgroup_barrier();
            }
            (0..).zip(results).for_each(|(j, result)| self.put_scores(*result, j));
            b.subgroup_barrier();
            for q in queries {
                for quad in self.quads(results.len() as u32 * t.n()) {
                    let value = b.shared_load(self.scores, q.index * t.scores_line() + quad);
                    b.if_(q.real, || self.put_result(q, quad + piece as u32 * (t.chunk / 4), value));
                }
            }
        }
    }

    /// Stores four elements of a query's result, in the forms that are wanted.
    fn put_result(&self, q: &Query<'b>, quad: Val<'b>, value: Val<'b>) {
        let at = q.line * self.tile.widths[1] + quad * 4;
        if let Some(y) = self.out {
            self.b.store(y, at * 4, value, 16);
        }
        if let Some(y) = self.out_halves {
            halve::store(self.b, y, at, value);
        }
    }
}
