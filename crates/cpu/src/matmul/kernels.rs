//! The two inner kernels: one row tile against one group of tokens.
//!
//! ```text
//! integer: 16 rows × 32 k (8 registers) · TT tokens × 32 int8  ─► i32 ─× d·dx─► f32 accumulators ─► out[TT][16]
//! float:   16 rows × 1 k (1 register)   · TT tokens × 1 f32    ─────────────► f32 accumulators ─► out[TT][16]
//! ```
//! What happens to one token is the same sequence of operations whatever TT is: a row's
//! result does not depend on how many tokens are computed together.

use super::format::{BLOCK, Float, Quant, block, record};
use crate::simd::{Lanes, dispatch};

/// Tokens that one call may take.
pub(crate) const GROUPS: [usize; 5] = [1, 2, 4, 8, 16];

/// How far ahead of its use a weight is asked for, for one token: hardware prefetch stops at the
/// end of each 4 KiB page. (Measured: 4.0 ms a token of SmolLM2 at 8 KiB, 4.2 at 4, 5.7 at 0.)
const AHEAD: usize = 8192;

/// One row tile and one token group. All pointers are valid for the whole call.
#[derive(Clone, Copy)]
pub(crate) struct TileArgs {
    /// The row tile.
    pub(crate) w: *const u8,
    /// Blocks of 32 columns.
    pub(crate) blocks: usize,
    /// Integer activations `[block][TT][32]`, or floats `[column][TT]` in `xs`.
    pub(crate) xq: *const i8,
    /// `[block][TT][4]`: scale, scale·sum, scale·sum of the first, of the second half; or floats.
    pub(crate) xs: *const f32,
    /// `[TT][16]` results.
    pub(crate) out: *mut f32,
}

/// A kernel for one row tile and one token group.
pub(crate) type TileFn = unsafe fn(TileArgs);

/// # Safety
/// The features of `V`; `a` describes a tile of format `Q` and a group of `TT` tokens.
#[inline(always)]
unsafe fn int_tile<V: Lanes, Q: Quant, const TT: usize>(a: TileArgs) {
    // SAFETY: indices below stay within `blocks` blocks of weights and activations.
    unsafe {
        let mut sums = [V::splat(0.0); TT];
        for b in 0..a.blocks {
            if TT == 1 {
                let step = record::<Q>() / Q::GROUP;
                let ahead = a.w.wrapping_add(b * step + AHEAD);
                for line in (0..step).step_by(64) {
                    V::prefetch(ahead.wrapping_add(line));
                }
            }
            let (s, w) = block::<V, Q>(a.w, b);
            let off = V::splat(-Q::OFFSET);
            // Weights are d·(q − OFFSET) + m = d·q + (m − OFFSET·d).
            let m = if Q::OFFSET == 0.0 { s.m } else { V::fma(s.d, off, s.m) };
            let m1 = if Q::HALVES { V::mul(s.d1, off) } else { m };
            for (t, sum) in sums.iter_mut().enumerate() {
                let x = a.xq.add((b * TT + t) * BLOCK);
                let xs = a.xs.add((b * TT + t) * 4);
                let dx = V::splat(*xs);
                let wide = Q::WIDE;
                if Q::HALVES {
                    let mut lo = V::zero_i();
                    let mut hi = V::zero_i();
                    for j in 0..4 {
                        lo = V::dot::<false>(lo, w[j], x.add(4 * j));
                        hi = V::dot::<false>(hi, w[j + 4], x.add(4 * j + 16));
                    }
                    *sum = V::fma(V::mul(V::to_f(lo), s.d), dx, *sum);
                    *sum = V::fma(V::mul(V::to_f(hi), s.d1), dx, *sum);
                    *sum = V::fma(m, V::splat(*xs.add(2)), *sum);
                    *sum = V::fma(m1, V::splat(*xs.add(3)), *sum);
                } else {
                    let mut acc = V::zero_i();
                    for (j, &w) in w.iter().enumerate() {
                        acc = if wide {
                            V::dot::<true>(acc, w, x.add(4 * j))
                        } else {
                            V::dot::<false>(acc, w, x.add(4 * j))
                        };
                    }
                    *sum = V::fma(V::mul(V::to_f(acc), s.d), dx, *sum);
                    *sum = V::fma(m, V::splat(*xs.add(1)), *sum);
                }
            }
        }
        for (t, sum) in sums.into_iter().enumerate() {
            V::store(a.out.add(16 * t), sum);
        }
    }
}

/// One column (byte `J` of register `w`) times TT tokens.
///
/// # Safety
/// The features of `V`; `x` points to the column's TT floats.
#[inline(always)]
unsafe fn column<V: Lanes, const TT: usize>(w: V::F, x: *const f32, sums: &mut [V::F; TT]) {
    // SAFETY: the caller's promise.
    unsafe {
        for (t, sum) in sums.iter_mut().enumerate() {
            *sum = V::fma(w, V::splat(*x.add(t)), *sum);
        }
    }
}

/// Integer weights decoded exactly, float activations: even and odd columns in two accumulators.
///
/// # Safety
/// As [`int_tile`], with float activations.
#[inline(always)]
unsafe fn exact_tile<V: Lanes, Q: Quant, const TT: usize>(a: TileArgs) {
    // SAFETY: indices stay within `blocks` blocks.
    unsafe {
        let mut even = [V::splat(0.0); TT];
        let mut odd = [V::splat(0.0); TT];
        for b in 0..a.blocks {
            let (s, w) = block::<V, Q>(a.w, b);
            let off = V::splat(Q::OFFSET);
            for (j, &w) in w.iter().enumerate() {
                let d = if j < 4 { s.d } else { s.d1 };
                let x = a.xs.add((b * BLOCK + 4 * j) * TT);
                column::<V, TT>(value::<V, Q, 0>(w, off, d, s.m), x, &mut even);
                column::<V, TT>(value::<V, Q, 1>(w, off, d, s.m), x.add(TT), &mut odd);
                column::<V, TT>(value::<V, Q, 2>(w, off, d, s.m), x.add(2 * TT), &mut even);
                column::<V, TT>(value::<V, Q, 3>(w, off, d, s.m), x.add(3 * TT), &mut odd);
            }
        }
        for t in 0..TT {
            V::store(a.out.add(16 * t), V::add(even[t], odd[t]));
        }
    }
}

/// Byte `J` of `w` as the exact weight: product and sum rounded one by one, as the format defines them.
///
/// # Safety
/// The features of `V`.
#[inline(always)]
unsafe fn value<V: Lanes, Q: Quant, const J: i32>(w: V::B, off: V::F, d: V::F, m: V::F) -> V::F {
    // SAFETY: the caller's promise.
    unsafe {
        let q = V::byte_f::<J>(w);
        let q = if Q::OFFSET == 0.0 { q } else { V::sub(q, off) };
        let v = V::mul(d, q);
        if Q::HAS_MIN { V::add(v, m) } else { v }
    }
}

/// # Safety
/// As [`exact_tile`]; the tile holds columns of 16 floats of format `W`.
#[inline(always)]
unsafe fn float_tile<V: Lanes, W: Float, const TT: usize>(a: TileArgs) {
    // SAFETY: `blocks · 32` columns of 16 weights and of TT activations.
    unsafe {
        let mut even = [V::splat(0.0); TT];
        let mut odd = [V::splat(0.0); TT];
        for pair in 0..a.blocks * (BLOCK / 2) {
            let w = a.w.add(pair * 32 * W::BYTES);
            let x = a.xs.add(pair * 2 * TT);
            column::<V, TT>(W::load::<V>(w), x, &mut even);
            column::<V, TT>(W::load::<V>(w.add(16 * W::BYTES)), x.add(TT), &mut odd);
        }
        for t in 0..TT {
            V::store(a.out.add(16 * t), V::add(even[t], odd[t]));
        }
    }
}

/// One row of weights as f32.
///
/// # Safety
/// As [`exact_tile`]; `out` holds `blocks · 32` floats, `row < 16`.
#[inline(always)]
unsafe fn int_row<V: Lanes, Q: Quant>(a: TileArgs, row: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        for b in 0..a.blocks {
            let (s, w) = block::<V, Q>(a.w, b);
            let off = V::splat(Q::OFFSET);
            let mut lanes = [0f32; 16];
            for (j, &w) in w.iter().enumerate() {
                let d = if j < 4 { s.d } else { s.d1 };
                let v = [
                    value::<V, Q, 0>(w, off, d, s.m),
                    value::<V, Q, 1>(w, off, d, s.m),
                    value::<V, Q, 2>(w, off, d, s.m),
                    value::<V, Q, 3>(w, off, d, s.m),
                ];
                for (i, v) in v.into_iter().enumerate() {
                    V::store(lanes.as_mut_ptr(), v);
                    *a.out.add(b * BLOCK + 4 * j + i) = lanes[row];
                }
            }
        }
    }
}

/// # Safety
/// As [`int_row`], for float formats.
#[inline(always)]
unsafe fn float_row<V: Lanes, W: Float>(a: TileArgs, row: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut lanes = [0f32; 16];
        for k in 0..a.blocks * BLOCK {
            V::store(lanes.as_mut_ptr(), W::load::<V>(a.w.add(k * 16 * W::BYTES)));
            *a.out.add(k) = lanes[row];
        }
    }
}

dispatch!(pub(crate) int_fn, int_entry [Q: Quant] [TT: usize] => int_tile(a: TileArgs));
dispatch!(pub(crate) exact_fn, exact_entry [Q: Quant] [TT: usize] => exact_tile(a: TileArgs));
dispatch!(pub(crate) float_fn, float_entry [W: Float] [TT: usize] => float_tile(a: TileArgs));
dispatch!(pub(crate) int_row_fn, int_row_entry [Q: Quant] [] => int_row(a: TileArgs, row: usize));
dispatch!(pub(crate) float_row_fn, float_row_entry [W: Float] [] => float_row(a: TileArgs, row: usize));
