//! Draws a token from sorted candidates in shared memory: [`zinc_ir::sample::pick`] as kernel IR.
//!
//! ```text
//! sorted values ─► weights ─sums─► how many reach top-p ─► how many reach min-p ─► tempered weights ─sums─► which
//! ```
//!
//! Each lane has its candidates; sums of integers up to each of them make every choice a count of candidates. Rounding
//! is the same as in `pick`, operation by operation.

use crate::kernels::rows::for_items;
use zinc_ir::kernel::{Builder, Scalar, Type, Val};
use zinc_ir::sample::{self, LOG2_E, LOWEST, POWER, WEIGHT_BITS};

/// The `k` first elements of two shared arrays: candidates, best first.
pub(super) struct Sorted {
    pub(super) values: u32,
    pub(super) columns: u32,
    pub(super) k: u32,
}

/// A row's [`sample::Draw`].
pub(super) struct Draw<'b> {
    unit: Val<'b>,
    inverse_temperature: Val<'b>,
    top_p: Val<'b>,
    min_p_log: Val<'b>,
    top_k: Val<'b>,
}

impl<'b> Draw<'b> {
    /// Of a row of the step's draws.
    pub(super) fn load(b: &'b Builder, draws: Val<'b>, row: Val<'b>) -> Draw<'b> {
        let word = |ty, i: u32| b.load(ty, draws, row * (sample::Draw::WORDS as u32 * 4) + i * 4, 4);
        let float = |i| word(Type::F32, i);
        Draw {
            unit: float(0),
            inverse_temperature: float(1),
            top_p: float(2),
            min_p_log: float(3),
            top_k: word(Type::U32, 4),
        }
    }
}

/// The drawn column, in every lane; `u32::MAX` if there is no candidate. The arrays are complete (a barrier was there).
pub(super) fn draw<'b>(b: &'b Builder, lanes: u32, subgroups: u32, sorted: &Sorted, draw: &Draw<'b>) -> Val<'b> {
    let k = sorted.k;
    let work = Work {
        b,
        lanes,
        subgroups,
        k,
        weights: b.shared("weights", Type::U32, k),
        sums: b.shared("sums", Type::U32, k),
        parts: b.shared("parts", Type::U32, subgroups),
    };
    let value = |i| b.shared_load(sorted.values, i);
    let best = value(b.u32(0));
    let distance = |i| {
        let v = value(i);
        v.eq(best).select(b.f32(0.0), v - best)
    };
    let valid = work.count(|i| i.lt(draw.top_k) & value(i).gt(f32::MIN));
    let total = work.sum(|i| i.lt(valid).select(weight(b, distance(i)), b.u32(0)));
    let mass = total.to_f32() * draw.top_p;
    let below = work.count(|i| i.lt(valid) & work.sum_to(i).lt(mass));
    let kept = draw.top_p.lt(1.0).select((below + 1).min(valid), valid);
    let least = best + draw.min_p_log;
    let kept = work.count(|i| i.lt(kept) & value(i).ge(least)).max(b.u32(1));
    let tempered = |i| weight(b, distance(i) * draw.inverse_temperature);
    let total = work.sum(|i| i.lt(kept).select(tempered(i), b.u32(0))).to_f32();
    let point = draw.unit * total;
    let drawn = work.count(|i| i.lt(kept) & work.sum_to(i).le(point) & work.sum_to(i).lt(total));
    valid.eq(0).select(b.u32(u32::MAX), b.shared_load(sorted.columns, drawn.min(b.u32(k - 1))))
}

/// [`sample::weight`].
fn weight<'b>(b: &'b Builder, x: Val<'b>) -> Val<'b> {
    let t = x.max(b.f32(LOWEST)) * LOG2_E;
    let n = t.floor();
    let f = t - n;
    let mut power = b.f32(POWER[0]);
    for c in &POWER[1..] {
        power = power * f + *c;
    }
    let doubled = (power * (1u32 << (WEIGHT_BITS + 1)) as f32).to(Scalar::U32);
    let down = (b.f32(0.0) - n).to(Scalar::U32).min(b.u32(31));
    ((doubled >> down) + 1) >> 1
}

/// A workgroup that counts and sums over the candidates.
struct Work<'b> {
    b: &'b Builder,
    lanes: u32,
    subgroups: u32,
    k: u32,
    /// One per candidate.
    weights: u32,
    /// Of the weights up to each candidate.
    sums: u32,
    /// One per subgroup.
    parts: u32,
}

impl<'b> Work<'b> {
    /// How many candidates have a property.
    fn count(&self, has: impl Fn(Val<'b>) -> Val<'b>) -> Val<'b> {
        let b = self.b;
        let (zero, one) = (b.u32(0), b.u32(1));
        let own =
            b.for_(b.local_id(), b.u32(self.k), self.lanes, &[zero], |i, n| vec![n[0] + has(i).select(one, zero)]);
        let own = own[0].subgroup_add();
        if self.subgroups == 1 {
            return own;
        }
        // The parts of an earlier count have been read.
        b.barrier();
        b.if_(b.lane().eq(0), || b.shared_store(self.parts, b.subgroup_id(), own));
        b.barrier();
        b.for_(zero, b.u32(self.subgroups), 1, &[zero], |s, n| vec![n[0] + b.shared_load(self.parts, s)])[0]
    }

    /// Sets the weights; gives their sum.
    fn sum(&self, weight: impl Fn(Val<'b>) -> Val<'b>) -> Val<'b> {
        let b = self.b;
        b.barrier();
        for_items(b, self.lanes, self.k, |i| b.shared_store(self.weights, i, weight(i)));
        b.barrier();
        for_items(b, self.lanes, self.k, |i| {
            // To the end, not to i: lanes stay together, and loads need not wait for each other.
            let sum = b.for_(b.u32(0), b.u32(self.k), 1, &[b.u32(0)], |j, sum| {
                vec![sum[0] + j.le(i).select(b.shared_load(self.weights, j), b.u32(0))]
            });
            b.shared_store(self.sums, i, sum[0]);
        });
        b.barrier();
        b.shared_load(self.sums, b.u32(self.k - 1))
    }

    /// Of the weights up to candidate `i`, as F32.
    fn sum_to(&self, i: Val<'b>) -> Val<'b> {
        self.b.shared_load(self.sums, i).to_f32()
    }
}
