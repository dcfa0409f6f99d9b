//! Row operations: norms, gates, rotations, sums, greatest value.
//!
//! Everything here works on one row at a time; the caller claims rows.

use crate::Isa;
use crate::scratch::Scratch;
use crate::simd::{Lanes, dispatch, exp};
use zinc_ir::graph::{Activation, Pairing};

/// `gate[i] = act(gate[i]) · up[i]`.
///
/// # Panics
/// When the lengths differ.
pub(crate) fn gate(isa: Isa, act: Activation, gate: &mut [f32], up: &[f32]) {
    assert_eq!(gate.len(), up.len(), "gate and up");
    let f = match act {
        Activation::Silu => silu_mul_fn(isa),
        Activation::GeluTanh => gelu_mul_fn(isa),
    };
    // SAFETY: `isa` is one of `Isa::available`.
    unsafe { f(gate, up) }
}

/// Each group of `weight.len()` values: x / √(mean(x²) + eps) · weight, from `x` into `out`.
///
/// # Panics
/// When the lengths differ or are not whole groups.
pub(crate) fn rms_norm(isa: Isa, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    assert!(x.len() == out.len() && x.len().is_multiple_of(weight.len()), "norm of whole groups");
    let f = norm_fn(isa);
    for (x, out) in x.chunks_exact(weight.len()).zip(out.chunks_exact_mut(weight.len())) {
        // SAFETY: `isa` is available; three slices of the same length.
        unsafe { f(x, weight, eps, out) }
    }
}

/// Turns the pairs of every head of `row`; `turn` has the cosines, then the sines, of all pairs.
///
/// # Panics
/// When a head has fewer elements than the pairs take.
pub(crate) fn rope(isa: Isa, row: &mut [f32], head_dim: usize, pairing: Pairing, turn: &[f32]) {
    let (cos, sin) = turn.split_at(turn.len() / 2);
    let f = match pairing {
        Pairing::Adjacent => rope_adjacent_fn(isa),
        Pairing::Halves => rope_halves_fn(isa),
    };
    for head in row.chunks_exact_mut(head_dim) {
        // SAFETY: `isa` is available; the kernel indexes with checks.
        unsafe { f(&mut head[..2 * cos.len()], cos, sin) }
    }
}

/// out += x.
pub(crate) fn add(isa: Isa, out: &mut [f32], x: &[f32]) {
    // SAFETY: `isa` is available; the kernel indexes with checks.
    unsafe { add_fn(isa)(out, x) }
}

/// out *= factor.
pub(crate) fn scale(out: &mut [f32], factor: f32) {
    out.iter_mut().for_each(|x| *x *= factor);
}

/// Rounds to halves (as bits).
///
/// # Panics
/// When the lengths differ.
pub(crate) fn to_f16(isa: Isa, x: &[f32], out: &mut [u16]) {
    assert_eq!(x.len(), out.len(), "halves");
    // SAFETY: `isa` is available; equal lengths.
    unsafe { to_f16_fn(isa)(x, out) }
}

/// Rounds to halves in place.
pub(crate) fn round_f16(isa: Isa, x: &mut [f32]) {
    // SAFETY: `isa` is available.
    unsafe { round_f16_fn(isa)(x) }
}

/// Index of the greatest value, the lowest on ties; 0 when no value is greater than -∞.
pub(crate) fn argmax(isa: Isa, row: &[f32]) -> u32 {
    // SAFETY: `isa` is available.
    let top = unsafe { top_fn(isa)(row) };
    row.iter().position(|x| *x == top).unwrap_or(0) as u32
}

/// The `k` greatest values with their places, best first, lower places first among equals; NaN counts as the smallest
/// number. `k` is at most the length of the row.
pub(crate) fn top_k(row: &[f32], k: usize) -> Scratch<(f32, u32)> {
    let number = |x: f32| if x.is_nan() { f32::MIN } else { x.max(f32::MIN) };
    let mut all = Scratch::of(row.iter().enumerate().map(|(i, x)| (number(*x), i as u32)));
    let order = |a: &(f32, u32), b: &(f32, u32)| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1));
    if k < all.len() {
        all.select_nth_unstable_by(k, order);
        all.truncate(k);
    }
    all.sort_unstable_by(order);
    all
}

/// # Safety
/// The features of `V`; slices of one length.
#[inline(always)]
unsafe fn norm<V: Lanes>(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let whole = x.len() / 16 * 16;
    // SAFETY: 16 values from each index below `whole`.
    unsafe {
        let mut sum = V::splat(0.0);
        for i in (0..whole).step_by(16) {
            let v = V::load(x.as_ptr().add(i));
            sum = V::fma(v, v, sum);
        }
        let rest: f32 = x[whole..].iter().map(|x| x * x).sum();
        let mean = (V::sum(sum) + rest) / x.len() as f32;
        let factor = 1.0 / (mean + eps).sqrt();
        for i in (0..whole).step_by(16) {
            let v = V::mul(V::load(x.as_ptr().add(i)), V::splat(factor));
            V::store(out.as_mut_ptr().add(i), V::mul(v, V::load(weight.as_ptr().add(i))));
        }
        for i in whole..x.len() {
            out[i] = x[i] * factor * weight[i];
        }
    }
}

/// Plain loops, compiled with the features of `V`.
///
/// # Safety
/// The features of `V`.
#[inline(always)]
unsafe fn rope_halves<V: Lanes>(head: &mut [f32], cos: &[f32], sin: &[f32]) {
    let (first, second) = head.split_at_mut(cos.len());
    for (((a, b), c), s) in first.iter_mut().zip(second).zip(cos).zip(sin) {
        (*a, *b) = (*a * c - *b * s, *a * s + *b * c);
    }
}

/// As [`rope_halves`], for neighbours.
///
/// # Safety
/// The features of `V`.
#[inline(always)]
unsafe fn rope_adjacent<V: Lanes>(head: &mut [f32], cos: &[f32], sin: &[f32]) {
    for ((pair, c), s) in head.chunks_exact_mut(2).zip(cos).zip(sin) {
        let (a, b) = (pair[0], pair[1]);
        (pair[0], pair[1]) = (a * c - b * s, a * s + b * c);
    }
}

/// # Safety
/// The features of `V`.
#[inline(always)]
unsafe fn add_row<V: Lanes>(out: &mut [f32], x: &[f32]) {
    out.iter_mut().zip(x).for_each(|(o, x)| *o += x);
}

/// # Safety
/// The features of `V`; equal lengths.
#[inline(always)]
unsafe fn halves<V: Lanes>(x: &[f32], out: &mut [u16]) {
    let whole = x.len() / 16 * 16;
    // SAFETY: 16 values from each index below `whole`.
    unsafe {
        for i in (0..whole).step_by(16) {
            V::store_f16(out.as_mut_ptr().add(i), V::load(x.as_ptr().add(i)));
        }
    }
    for i in whole..x.len() {
        out[i] = half::f16::from_f32(x[i]).to_bits();
    }
}

/// # Safety
/// The features of `V`.
#[inline(always)]
unsafe fn round<V: Lanes>(x: &mut [f32]) {
    let whole = x.len() / 16 * 16;
    let mut bits = [0u16; 16];
    // SAFETY: 16 values from each index below `whole`.
    unsafe {
        for i in (0..whole).step_by(16) {
            let at = x.as_mut_ptr().add(i);
            V::store_f16(bits.as_mut_ptr(), V::load(at));
            V::store(at, V::load_f16(bits.as_ptr()));
        }
    }
    for x in &mut x[whole..] {
        *x = half::f16::from_f32(*x).to_f32();
    }
}

/// # Safety
/// The features of `V`.
#[inline(always)]
unsafe fn top<V: Lanes>(row: &[f32]) -> f32 {
    let whole = row.len() / 16 * 16;
    let rest = row[whole..].iter().fold(f32::NEG_INFINITY, |m, x| m.max(*x));
    // SAFETY: 16 values from each index below `whole`.
    unsafe {
        let mut top = V::splat(rest);
        for i in (0..whole).step_by(16) {
            // The running maximum second: a NaN in the row is passed over.
            top = V::max(V::load(row.as_ptr().add(i)), top);
        }
        V::top(top)
    }
}

/// x·sigmoid(x).
///
/// # Safety
/// The features of `V`.
#[inline(always)]
unsafe fn silu<V: Lanes>(x: V::F) -> V::F {
    // SAFETY: the caller's promise.
    unsafe {
        let e = exp::<V>(V::sub(V::splat(0.0), x));
        V::div(x, V::add(V::splat(1.0), e))
    }
}

/// # Safety
/// The features of `V`.
#[inline(always)]
unsafe fn gelu<V: Lanes>(x: V::F) -> V::F {
    // SAFETY: the caller's promise. 0.5·(1 + tanh(u)) = sigmoid(2u).
    unsafe {
        let cube = V::mul(V::mul(x, x), x);
        let u = V::fma(cube, V::splat(0.044_715), x);
        let u = V::mul(u, V::splat(-2.0 * 0.797_884_6));
        V::div(x, V::add(V::splat(1.0), exp::<V>(u)))
    }
}

/// Applies a 16-lane step to whole rows; the rest goes through a padded copy.
macro_rules! gated {
    ($name:ident, $act:ident) => {
        /// # Safety
        /// The features of `V`; equal lengths.
        #[inline(always)]
        unsafe fn $name<V: Lanes>(gate: &mut [f32], up: &[f32]) {
            let whole = gate.len() / 16 * 16;
            // SAFETY: 16 values from each index below `whole`; the rest in arrays of 16.
            unsafe {
                for i in (0..whole).step_by(16) {
                    let g = gate.as_mut_ptr().add(i);
                    let y = V::mul($act::<V>(V::load(g)), V::load(up.as_ptr().add(i)));
                    V::store(g, y);
                }
                if whole < gate.len() {
                    let (mut g, mut u) = ([0f32; 16], [0f32; 16]);
                    let n = gate.len() - whole;
                    g[..n].copy_from_slice(&gate[whole..]);
                    u[..n].copy_from_slice(&up[whole..]);
                    let y = V::mul($act::<V>(V::load(g.as_ptr())), V::load(u.as_ptr()));
                    V::store(g.as_mut_ptr(), y);
                    gate[whole..].copy_from_slice(&g[..n]);
                }
            }
        }
    };
}
gated!(silu_mul, silu);
gated!(gelu_mul, gelu);
dispatch!(silu_mul_fn, silu_mul_entry [] [] => silu_mul(gate: &mut [f32], up: &[f32]));
dispatch!(gelu_mul_fn, gelu_mul_entry [] [] => gelu_mul(gate: &mut [f32], up: &[f32]));
dispatch!(norm_fn, norm_entry [] [] => norm(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]));
dispatch!(rope_halves_fn, rope_halves_entry [] [] => rope_halves(head: &mut [f32], cos: &[f32], sin: &[f32]));
dispatch!(rope_adjacent_fn, rope_adjacent_entry [] [] => rope_adjacent(head: &mut [f32], cos: &[f32], sin: &[f32]));
dispatch!(add_fn, add_entry [] [] => add_row(out: &mut [f32], x: &[f32]));
dispatch!(to_f16_fn, to_f16_entry [] [] => halves(x: &[f32], out: &mut [u16]));
dispatch!(round_f16_fn, round_f16_entry [] [] => round(x: &mut [f32]));
dispatch!(top_fn, top_entry [] [] => top(row: &[f32]) -> f32);

#[cfg(test)]
mod tests {
    use super::*;

    fn values(n: usize) -> Vec<f32> {
        (0..n).map(|i| ((i * 37 % 101) as f32 - 50.0) / 17.0).collect()
    }

    #[test]
    fn norms_in_groups() {
        for isa in Isa::available() {
            for group in [1usize, 7, 16, 40] {
                let (x, weight) = (values(group * 3), values(group));
                let mut out = vec![0f32; x.len()];
                rms_norm(isa, &x, &weight, 1e-5, &mut out);
                for (g, x) in x.chunks(group).enumerate() {
                    let mean = x.iter().map(|x| (*x as f64).powi(2)).sum::<f64>() / group as f64;
                    for i in 0..group {
                        let want = x[i] as f64 / (mean + 1e-5).sqrt() * weight[i] as f64;
                        assert!((out[g * group + i] as f64 - want).abs() < 1e-5 * (1.0 + want.abs()));
                    }
                }
            }
        }
    }

    #[test]
    fn rotations_turn_their_partners() {
        let turn = [0.6f32, 0.8, 0.8, -0.6]; // two pairs: (cos, cos), (sin, sin)
        for isa in Isa::available() {
            let mut halves = [1f32, 2., 3., 4., 9.];
            rope(isa, &mut halves, 5, Pairing::Halves, &turn);
            let near = |got: &[f32], want: &[f32]| {
                assert!(got.iter().zip(want).all(|(a, b)| (a - b).abs() < 1e-6), "{got:?} {want:?}");
            };
            near(&halves, &[0.6 - 2.4, 1.6 + 2.4, 0.8 + 1.8, -1.2 + 3.2, 9.]);
            let mut adjacent = [1f32, 2., 3., 4., 9.];
            rope(isa, &mut adjacent, 5, Pairing::Adjacent, &turn);
            near(&adjacent, &[0.6 - 1.6, 0.8 + 1.2, 2.4 + 2.4, -1.8 + 3.2, 9.]);
        }
    }

    #[test]
    fn the_first_greatest_wins() {
        for isa in Isa::available() {
            let mut row = values(203);
            row[40] = 7.0;
            row[190] = 7.0;
            assert_eq!(argmax(isa, &row), 40);
            row[202] = 8.0;
            assert_eq!(argmax(isa, &row), 202);
            row[3] = f32::NAN;
            assert_eq!(argmax(isa, &row), 202);
            assert_eq!(argmax(isa, &[f32::NEG_INFINITY; 3]), 0);
        }
    }
}
