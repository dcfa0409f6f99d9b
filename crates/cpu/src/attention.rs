//! Attention over a paged cache: softmax(scale·q·Kᵀ)·V for every query row.
//!
//! ```text
//! rows of one sequence × heads of one KV head = a block of queries
//!   └─ per span of 256 positions: pages of 32 ─► scores [q][32] ─► online softmax ─► values [q][dim]
//!        └─ spans merged in order ─► out
//! ```
//! A row's result depends only on its own context: spans are cut at the same positions whether a row comes
//! alone (spans in parallel) or in a prompt.

use crate::kv::{Area, KvElement, PAGE, Stored};
use crate::memory::SharedPtr;
use crate::scratch::Scratch;
use crate::simd::{Lanes, dispatch, exp};
use crate::{Isa, Pool};
use std::ops::Range;

/// Positions whose softmax is computed apart from the others; a multiple of [`PAGE`].
const SPAN: usize = 256;

/// Queries of a block, at most (but never less than one row's).
const BLOCK_QUERIES: usize = 48;

/// Below every score: where a running maximum starts. Finite, so that differences are numbers.
const LOWEST: f32 = -1e30;

/// What a query row may see.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row<'a> {
    /// Positions it sees.
    pub(crate) from: usize,
    /// One past the last.
    pub(crate) to: usize,
    /// Pages of its sequence.
    pub(crate) pages: &'a [u32],
}

/// K and V of a layer.
#[derive(Clone, Copy)]
pub(crate) struct Cache<'a, E> {
    pub(crate) area: Area,
    pub(crate) k: &'a [E],
    pub(crate) v: &'a [E],
    /// In place of these: K and V whose pages are made elements one by one.
    pub(crate) stored: Option<&'a [Stored; 2]>,
}

/// One attention operation.
pub(crate) struct Attention<'a, E> {
    pub(crate) isa: Isa,
    /// Query heads.
    pub(crate) heads: usize,
    pub(crate) scale: f32,
    pub(crate) cache: Cache<'a, E>,
    pub(crate) rows: &'a [Row<'a>],
}

/// Queries of one KV head: `rows` of the step, all their heads of the group.
struct Block {
    rows: Range<usize>,
    kv_head: usize,
}

/// Running softmax of a block.
struct State {
    /// Greatest score so far, per query.
    top: Scratch<f32>,
    /// Sum of exponentials, 16 lanes per query.
    sum: Scratch<f32>,
    /// Weighted values `[query][padded dim]`.
    out: Scratch<f32>,
}

impl State {
    fn new(queries: usize, width: usize) -> State {
        State {
            top: Scratch::filled(queries, LOWEST),
            sum: Scratch::filled(16 * queries, 0.0),
            out: Scratch::filled(queries * width, 0.0),
        }
    }
    fn reset(&mut self) {
        self.top.fill(LOWEST);
        self.sum.fill(0.0);
        self.out.fill(0.0);
    }
}

impl<E: KvElement> Attention<'_, E> {
    /// Computes all rows: `q` and `out` are `[row][heads · dim]`.
    ///
    /// # Panics
    /// When lengths do not fit, or a row sees a position without a page.
    pub(crate) fn run(&self, pool: &Pool, q: &[f32], out: &mut [f32])
    where
        Self: Sync,
    {
        let width = self.heads * self.cache.area.dim;
        assert_eq!(q.len(), self.rows.len() * width, "queries");
        assert_eq!(out.len(), q.len(), "outputs");
        if self.cache.stored.is_none() {
            assert_eq!(self.cache.k.len(), self.cache.area.elements(), "K area");
            assert_eq!(self.cache.v.len(), self.cache.area.elements(), "V area");
        }
        for row in self.rows {
            let seen = &row.pages[..row.to.div_ceil(PAGE)];
            assert!(seen.iter().all(|p| (*p as usize) < self.cache.area.pages), "page of a sequence");
        }
        let blocks = self.blocks();
        let spans = self.rows.iter().map(|r| r.to.div_ceil(SPAN)).max().unwrap_or(0);
        let out = SharedPtr(out.as_mut_ptr());
        if spans > 1 && blocks.len() < 4 * pool.threads() {
            return self.run_split(pool, &blocks, spans, q, out);
        }
        // The last rows see most: they go first.
        let count = blocks.len();
        pool.for_each_chunk(count, |_, range| {
            for i in range {
                let block = &blocks[count - 1 - i];
                let queries = self.gather(block, q);
                let mut total = self.state(block);
                let mut part = self.state(block);
                for span in self.spans(block) {
                    part.reset();
                    self.span(block, span, &queries, &mut part);
                    self.merge(&mut total, &part);
                }
                self.finish(block, &total, out);
            }
        });
    }

    /// Few blocks with a long context: spans in parallel, then merged in order.
    fn run_split(&self, pool: &Pool, blocks: &[Block], spans: usize, q: &[f32], out: SharedPtr<f32>) {
        let queries = Scratch::of(blocks.iter().map(|b| self.gather(b, q)));
        let mut parts = Scratch::of((0..blocks.len() * spans).map(|i| self.state(&blocks[i / spans])));
        let shared = SharedPtr(parts.as_mut_ptr());
        pool.for_each_chunk(parts.len(), |_, range| {
            for i in range {
                let (b, span) = (i / spans, i % spans);
                // SAFETY: part i is this item's alone, and `parts` outlives the loop.
                let part = unsafe { &mut *shared.get().add(i) };
                if self.spans(&blocks[b]).contains(&span) {
                    self.span(&blocks[b], span, &queries[b], part);
                }
            }
        });
        for (block, parts) in blocks.iter().zip(parts.chunks(spans)) {
            let mut total = self.state(block);
            for span in self.spans(block) {
                self.merge(&mut total, &parts[span]);
            }
            self.finish(block, &total, out);
        }
    }

    fn group(&self) -> usize {
        self.heads / self.cache.area.heads
    }

    fn state(&self, block: &Block) -> State {
        State::new(block.rows.len() * self.group(), self.cache.area.padded())
    }

    /// Cuts the rows into runs of one sequence.
    fn blocks(&self) -> Scratch<Block> {
        let most = (BLOCK_QUERIES / self.group()).max(1);
        // From one row on, the rest of its run: as many rows of its sequence as fit a block.
        let run = |first: usize| {
            let same = |r: &Row<'_>| std::ptr::eq(r.pages, self.rows[first].pages);
            first..first + self.rows[first..].iter().take(most).take_while(|r| same(r)).count()
        };
        let starts = std::iter::successors(Some(0), |first| Some(run(*first).end)).take_while(|f| *f < self.rows.len());
        let runs = Scratch::of(starts.take(self.rows.len()));
        let heads = self.cache.area.heads;
        Scratch::of((0..runs.len() * heads).map(|i| Block { rows: run(runs[i / heads]), kv_head: i % heads }))
    }

    /// Spans that any row of the block sees.
    fn spans(&self, block: &Block) -> Range<usize> {
        let rows = &self.rows[block.rows.clone()];
        let from = rows.iter().map(|r| r.from).min().unwrap_or(0);
        let to = rows.iter().map(|r| r.to).max().unwrap_or(0);
        from / SPAN..to.div_ceil(SPAN)
    }

    /// Scaled queries `[row · group + head][padded dim]`.
    fn gather(&self, block: &Block, q: &[f32]) -> Scratch<f32> {
        let (group, dim, width) = (self.group(), self.cache.area.dim, self.cache.area.padded());
        let mut queries = Scratch::filled(block.rows.len() * group * width, 0f32);
        for (i, to) in queries.chunks_exact_mut(width).enumerate() {
            let (row, head) = (block.rows.start + i / group, block.kv_head * group + i % group);
            let from = &q[(row * self.heads + head) * dim..][..dim];
            to.iter_mut().zip(from).for_each(|(to, x)| *to = x * self.scale);
        }
        queries
    }

    fn span(&self, block: &Block, span: usize, queries: &[f32], state: &mut State) {
        let group = self.group();
        let head = block.kv_head * self.cache.area.head();
        let rows = &self.rows[block.rows.clone()];
        let limit = |i: usize| (rows[i / group].from, rows[i / group].to);
        let limits = Scratch::of((0..rows.len() * group).map(limit));
        let args = SpanArgs {
            q: queries,
            limits: &limits,
            pages: self.rows[block.rows.start].pages,
            positions: span * SPAN..(span + 1) * SPAN,
            k: self.cache.k.get(head..).unwrap_or(&[]),
            v: self.cache.v.get(head..).unwrap_or(&[]),
            stored: self.cache.stored.map(|stored| (stored, block.kv_head)),
            page_stride: self.cache.area.page(),
            width: self.cache.area.padded(),
            state,
        };
        let f = span_fn::<E>(self.isa);
        // SAFETY: `isa` is available; pages were checked against the area in `run`.
        unsafe { f(args) }
    }

    /// Adds a later span's state to the total.
    fn merge(&self, total: &mut State, part: &State) {
        // SAFETY: `isa` is available; both states have the same shape.
        unsafe { merge_fn(self.isa)(total, part, self.cache.area.padded()) }
    }

    fn finish(&self, block: &Block, total: &State, out: SharedPtr<f32>) {
        let (group, dim, width) = (self.group(), self.cache.area.dim, self.cache.area.padded());
        for (i, values) in total.out.chunks_exact(width).enumerate() {
            let (row, head) = (block.rows.start + i / group, block.kv_head * group + i % group);
            // The sum's 16 lanes were folded into lane 0 by `merge`.
            let sum = total.sum[16 * i];
            let inverse = if sum > 0.0 { 1.0 / sum } else { 0.0 };
            // SAFETY: head `head` of row `row` belongs to this block alone; `out` has all rows.
            let to = unsafe { std::slice::from_raw_parts_mut(out.get().add((row * self.heads + head) * dim), dim) };
            to.iter_mut().zip(values).for_each(|(to, x)| *to = x * inverse);
        }
    }
}

/// A span of one block: everything the inner kernel reads.
struct SpanArgs<'a, E> {
    q: &'a [f32],
    /// Positions each query sees.
    limits: &'a [(usize, usize)],
    pages: &'a [u32],
    positions: Range<usize>,
    /// From the KV head's part of page 0.
    k: &'a [E],
    v: &'a [E],
    /// K and V to take the pages of this head out of.
    stored: Option<(&'a [Stored; 2], usize)>,
    page_stride: usize,
    width: usize,
    state: &'a mut State,
}

/// # Safety
/// The features of `V`; every page that a query sees lies in `k` and `v`.
#[inline(always)]
unsafe fn span_kernel<V: Lanes, E: KvElement>(a: SpanArgs<'_, E>) {
    let queries = a.limits.len();
    let first = a.limits.iter().map(|l| l.0).min().unwrap_or(0).max(a.positions.start);
    let last = a.limits.iter().map(|l| l.1).max().unwrap_or(0).min(a.positions.end);
    let mut scores = [0f32; 8 * PAGE];
    // Padding stays 0.
    let made = if a.stored.is_some() { a.width * PAGE } else { 0 };
    let mut made = [0, 1].map(|_| Scratch::filled(made, E::of(0.0)));
    for page in first / PAGE..last.div_ceil(PAGE) {
        let at = a.pages[page] as usize * a.page_stride;
        let (k, v) = match a.stored {
            Some((stored, head)) => {
                let [k, v] = &mut made;
                stored[0].read(a.pages[page] as usize, head, |token, e, x| k[e * PAGE + token] = E::of(x));
                stored[1].read(a.pages[page] as usize, head, |token, e, x| v[token * a.width + e] = E::of(x));
                (&k[..], &v[..])
            }
            None => (&a.k[at..at + a.width * PAGE], &a.v[at..at + a.width * PAGE]),
        };
        let mut query = 0;
        while query < queries {
            // SAFETY: queries `query..query+n` exist; k and v hold a whole page of the head.
            unsafe {
                let args = PageArgs {
                    q: a.q.as_ptr().add(query * a.width),
                    k: k.as_ptr(),
                    v: v.as_ptr(),
                    width: a.width,
                    limits: &a.limits[query..],
                    start: page * PAGE,
                    top: a.state.top.as_mut_ptr().add(query),
                    sum: a.state.sum.as_mut_ptr().add(16 * query),
                    out: a.state.out.as_mut_ptr().add(query * a.width),
                };
                query += match queries - query {
                    8.. => page_kernel::<V, E, 8>(args, &mut scores),
                    6.. => page_kernel::<V, E, 6>(args, &mut scores),
                    4.. => page_kernel::<V, E, 4>(args, &mut scores),
                    3 => page_kernel::<V, E, 3>(args, &mut scores),
                    2 => page_kernel::<V, E, 2>(args, &mut scores),
                    _ => page_kernel::<V, E, 1>(args, &mut scores),
                };
            }
        }
    }
}

/// One page and NQ queries.
struct PageArgs<'a, E> {
    q: *const f32,
    k: *const E,
    v: *const E,
    width: usize,
    limits: &'a [(usize, usize)],
    /// Position of the page's first token.
    start: usize,
    top: *mut f32,
    sum: *mut f32,
    out: *mut f32,
}

/// # Safety
/// The features of `V`; `a` has NQ queries and a whole page.
#[inline(always)]
unsafe fn page_kernel<V: Lanes, E: KvElement, const NQ: usize>(
    a: PageArgs<'_, E>,
    scores: &mut [f32; 8 * PAGE],
) -> usize {
    // SAFETY: the caller's promise; `scores` has NQ ≤ 8 rows of 32.
    unsafe {
        let mut acc = [[V::splat(0.0); 2]; NQ];
        for d in 0..a.width {
            let k0 = E::load::<V>(a.k.add(d * PAGE));
            let k1 = E::load::<V>(a.k.add(d * PAGE + 16));
            for (i, acc) in acc.iter_mut().enumerate() {
                let q = V::splat(*a.q.add(i * a.width + d));
                acc[0] = V::fma(k0, q, acc[0]);
                acc[1] = V::fma(k1, q, acc[1]);
            }
        }
        // Tokens of the page that any of the queries sees.
        let (mut from, mut to) = (PAGE, 0);
        for (i, acc) in acc.into_iter().enumerate() {
            let (first, last) = a.limits[i];
            let lo = first.saturating_sub(a.start).min(PAGE);
            let hi = last.saturating_sub(a.start).min(PAGE);
            (from, to) = (from.min(lo), to.max(hi));
            softmax_step::<V, E>(&a, i, acc, lo..hi, scores.as_mut_ptr().add(i * PAGE));
        }
        let mut d = 0;
        while d + 32 <= a.width {
            values::<V, E, NQ, 2>(&a, d, from..to, scores.as_ptr());
            d += 32;
        }
        if d < a.width {
            values::<V, E, NQ, 1>(&a, d, from..to, scores.as_ptr());
        }
        NQ
    }
}

/// Query `i`: new maximum, exponentials of its 32 scores into `p`, older sums and values rescaled.
///
/// # Safety
/// The features of `V`; `p` has room for 32.
#[inline(always)]
unsafe fn softmax_step<V: Lanes, E: KvElement>(
    a: &PageArgs<'_, E>,
    i: usize,
    mut score: [V::F; 2],
    seen: Range<usize>,
    p: *mut f32,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let hidden = (0..seen.start).chain(seen.end.max(seen.start)..PAGE);
        let partial = seen.len() < PAGE;
        if partial {
            V::store(p, score[0]);
            V::store(p.add(16), score[1]);
            hidden.clone().for_each(|t| *p.add(t) = LOWEST);
            score = [V::load(p), V::load(p.add(16))];
        }
        let old = *a.top.add(i);
        let new = V::top(V::max(score[0], score[1])).max(old);
        let shift = V::splat(new);
        // (No closure here: one with intrinsics in it would be compiled without their features.)
        score = [exp::<V>(V::sub(score[0], shift)), exp::<V>(V::sub(score[1], shift))];
        V::store(p, score[0]);
        V::store(p.add(16), score[1]);
        if partial {
            // Exactly nothing from positions that are not seen, whatever the page holds there.
            hidden.for_each(|t| *p.add(t) = 0.0);
            score = [V::load(p), V::load(p.add(16))];
        }
        let sum = a.sum.add(16 * i);
        let mut total = V::load(sum);
        if new > old {
            let shrink = V::splat((old - new).exp());
            total = V::mul(total, shrink);
            for d in (0..a.width).step_by(16) {
                let o = a.out.add(i * a.width + d);
                V::store(o, V::mul(V::load(o), shrink));
            }
            *a.top.add(i) = new;
        }
        V::store(sum, V::add(total, V::add(score[0], score[1])));
    }
}

/// Adds p·V for `16·W` elements from `d`.
///
/// # Safety
/// The features of `V`; `d + 16·W <= width`.
#[inline(always)]
unsafe fn values<V: Lanes, E: KvElement, const NQ: usize, const W: usize>(
    a: &PageArgs<'_, E>,
    d: usize,
    tokens: Range<usize>,
    p: *const f32,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut acc = [[V::splat(0.0); W]; NQ];
        for (i, acc) in acc.iter_mut().enumerate() {
            for (w, acc) in acc.iter_mut().enumerate() {
                *acc = V::load(a.out.add(i * a.width + d + 16 * w));
            }
        }
        for t in tokens {
            let mut v = [V::splat(0.0); W];
            for (w, v) in v.iter_mut().enumerate() {
                *v = E::load::<V>(a.v.add(t * a.width + d + 16 * w));
            }
            for (i, acc) in acc.iter_mut().enumerate() {
                let p = V::splat(*p.add(i * PAGE + t));
                for (w, acc) in acc.iter_mut().enumerate() {
                    *acc = V::fma(p, v[w], *acc);
                }
            }
        }
        for (i, acc) in acc.into_iter().enumerate() {
            for (w, acc) in acc.into_iter().enumerate() {
                V::store(a.out.add(i * a.width + d + 16 * w), acc);
            }
        }
    }
}

/// Adds `part` to `total`; in `total` lane 0 of a sum is the whole sum.
///
/// # Safety
/// The features of `V`; states of the same shape.
#[inline(always)]
unsafe fn merge_states<V: Lanes>(total: &mut State, part: &State, width: usize) {
    for i in 0..total.top.len() {
        let (a, b) = (total.top[i], part.top[i]);
        let top = a.max(b);
        let (ca, cb) = ((a - top).exp(), (b - top).exp());
        // SAFETY: 16 lanes of query i, and `width` (a multiple of 16) of its values.
        unsafe {
            let sum = V::sum(V::load(part.sum.as_ptr().add(16 * i)));
            total.sum[16 * i] = total.sum[16 * i] * ca + sum * cb;
            let (ca, cb) = (V::splat(ca), V::splat(cb));
            for d in (i * width..(i + 1) * width).step_by(16) {
                let o = total.out.as_mut_ptr().add(d);
                let added = V::mul(V::load(part.out.as_ptr().add(d)), cb);
                V::store(o, V::fma(V::load(o), ca, added));
            }
        }
        total.top[i] = top;
    }
}

dispatch!(span_fn, span_entry [E: KvElement] [] => span_kernel(a: SpanArgs<'_, E>));
dispatch!(merge_fn, merge_entry [] [] => merge_states(total: &mut State, part: &State, width: usize));

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv::append;

    /// The definition, in f64.
    fn reference(a: &Attention<'_, f32>, q: &[f32], row: usize, head: usize) -> Vec<f64> {
        let (dim, group) = (a.cache.area.dim, a.heads / a.cache.area.heads);
        let r = &a.rows[row];
        let at = |p: usize| r.pages[p / PAGE] as usize * a.cache.area.page() + head / group * a.cache.area.head();
        let k = |p: usize, d: usize| a.cache.k[at(p) + d * PAGE + p % PAGE] as f64;
        let v = |p: usize, d: usize| a.cache.v[at(p) + p % PAGE * a.cache.area.padded() + d] as f64;
        let q = &q[(row * a.heads + head) * dim..][..dim];
        let scores: Vec<f64> =
            (r.from..r.to).map(|p| (0..dim).map(|d| q[d] as f64 * k(p, d)).sum::<f64>() * a.scale as f64).collect();
        let top = scores.iter().fold(f64::MIN, |m, s| m.max(*s));
        let weights: Vec<f64> = scores.iter().map(|s| (s - top).exp()).collect();
        let sum: f64 = weights.iter().sum();
        let value = |d| (r.from..r.to).zip(&weights).map(|(p, w)| w * v(p, d)).sum::<f64>() / sum;
        (0..dim).map(value).collect()
    }

    fn random(state: &mut u64) -> f32 {
        *state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (*state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    fn check(dim: usize, heads: usize, kv_heads: usize, context: usize, new: usize, window: usize) {
        let area = Area { heads: kv_heads, dim, pages: context.div_ceil(PAGE) + 3 };
        let mut seed = (dim * 1000 + context) as u64;
        // What no row sees is poisoned.
        let mut k = vec![f32::NAN; area.elements()];
        let mut v = vec![f32::NAN; area.elements()];
        let pages: Vec<u32> = (0..context.div_ceil(PAGE) as u32).map(|p| area.pages as u32 - 1 - p).collect();
        if area.padded() != dim {
            // Padding is zero in a real cache.
            k.fill(0.0);
            v.fill(0.0);
        }
        for p in 0..context {
            let mut row = |scale: f32| -> Vec<f32> { (0..kv_heads * dim).map(|_| random(&mut seed) * scale).collect() };
            let (key, value) = (row(2.0), row(1.0));
            let slot = pages[p / PAGE] as usize * PAGE + p % PAGE;
            append(&area, &mut k, &mut v, slot, &key, &value);
        }
        let rows: Vec<Row<'_>> = (context - new..context)
            .map(|p| Row { from: (p + 1).saturating_sub(window), to: p + 1, pages: &pages })
            .collect();
        let q: Vec<f32> = (0..new * heads * dim).map(|_| random(&mut seed)).collect();
        for isa in Isa::available() {
            for threads in [1, 2] {
                let pool = Pool::new(threads).unwrap();
                let cache = Cache { area, k: &k, v: &v, stored: None };
                let a = Attention { isa, heads, scale: 0.4, cache, rows: &rows };
                let mut out = vec![f32::NAN; q.len()];
                a.run(&pool, &q, &mut out);
                for row in 0..new {
                    for head in 0..heads {
                        let want = reference(&a, &q, row, head);
                        let got = &out[(row * heads + head) * dim..][..dim];
                        for (got, want) in got.iter().zip(want) {
                            let near = (*got as f64 - want).abs() < 3e-5;
                            assert!(near, "{} row {row} head {head}: {got} for {want}", isa.name());
                        }
                    }
                    // Alone it is the same, bit for bit.
                    let width = heads * dim;
                    let mut alone = vec![0f32; width];
                    let one = Attention { rows: &rows[row..row + 1], ..a };
                    one.run(&pool, &q[row * width..(row + 1) * width], &mut alone);
                    assert_eq!(alone, &out[row * width..(row + 1) * width], "{}", isa.name());
                }
            }
        }
    }

    #[test]
    fn agrees_with_the_definition() {
        check(64, 9, 3, 70, 40, usize::MAX);
        check(64, 4, 4, 600, 3, usize::MAX);
        check(16, 2, 1, 33, 33, 8);
        check(24, 3, 1, 300, 20, 100);
        check(128, 8, 1, 40, 9, usize::MAX);
        check(8, 7, 1, 513, 1, usize::MAX);
        check(80, 2, 2, 90, 5, 33);
    }
}
