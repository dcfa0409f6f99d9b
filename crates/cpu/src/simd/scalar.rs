//! [`Lanes`] in plain Rust: the meaning of every operation, and the fallback.

use super::Lanes;
use half::{bf16, f16};

/// No instruction set in particular.
#[derive(Clone, Copy)]
pub(crate) struct Scalar;

#[inline(always)]
fn map2(a: [f32; 16], b: [f32; 16], f: impl Fn(f32, f32) -> f32) -> [f32; 16] {
    std::array::from_fn(|i| f(a[i], b[i]))
}

#[inline(always)]
fn map_b(a: [u8; 64], f: impl Fn(usize, u8) -> u8) -> [u8; 64] {
    std::array::from_fn(|i| f(i, a[i]))
}

// SAFETY: needs no feature.
#[allow(unsafe_op_in_unsafe_fn)]
unsafe impl Lanes for Scalar {
    type F = [f32; 16];
    type I = [i32; 16];
    type B = [u8; 64];

    #[inline(always)]
    unsafe fn splat(x: f32) -> [f32; 16] {
        [x; 16]
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> [f32; 16] {
        p.cast::<[f32; 16]>().read_unaligned()
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: [f32; 16]) {
        p.cast::<[f32; 16]>().write_unaligned(v);
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> [f32; 16] {
        let bits = p.cast::<[u16; 16]>().read_unaligned();
        bits.map(|b| f16::from_bits(b).to_f32())
    }
    #[inline(always)]
    unsafe fn store_f16(p: *mut u16, v: [f32; 16]) {
        p.cast::<[u16; 16]>().write_unaligned(v.map(|x| f16::from_f32(x).to_bits()));
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> [f32; 16] {
        let bits = p.cast::<[u16; 16]>().read_unaligned();
        bits.map(|b| bf16::from_bits(b).to_f32())
    }
    #[inline(always)]
    unsafe fn load_u8(p: *const u8) -> [f32; 16] {
        p.cast::<[u8; 16]>().read_unaligned().map(f32::from)
    }
    #[inline(always)]
    unsafe fn load_i8(p: *const u8) -> [f32; 16] {
        p.cast::<[i8; 16]>().read_unaligned().map(f32::from)
    }
    #[inline(always)]
    unsafe fn add(a: [f32; 16], b: [f32; 16]) -> [f32; 16] {
        map2(a, b, |a, b| a + b)
    }
    #[inline(always)]
    unsafe fn sub(a: [f32; 16], b: [f32; 16]) -> [f32; 16] {
        map2(a, b, |a, b| a - b)
    }
    #[inline(always)]
    unsafe fn mul(a: [f32; 16], b: [f32; 16]) -> [f32; 16] {
        map2(a, b, |a, b| a * b)
    }
    #[inline(always)]
    unsafe fn div(a: [f32; 16], b: [f32; 16]) -> [f32; 16] {
        map2(a, b, |a, b| a / b)
    }
    #[inline(always)]
    unsafe fn max(a: [f32; 16], b: [f32; 16]) -> [f32; 16] {
        map2(a, b, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    unsafe fn min(a: [f32; 16], b: [f32; 16]) -> [f32; 16] {
        map2(a, b, |a, b| if a < b { a } else { b })
    }
    #[inline(always)]
    unsafe fn abs(a: [f32; 16]) -> [f32; 16] {
        a.map(f32::abs)
    }
    #[inline(always)]
    unsafe fn fma(a: [f32; 16], b: [f32; 16], c: [f32; 16]) -> [f32; 16] {
        // Two roundings: a fused one in software is a library call per lane.
        std::array::from_fn(|i| a[i] * b[i] + c[i])
    }
    #[inline(always)]
    unsafe fn sum(a: [f32; 16]) -> f32 {
        let b: [f32; 8] = std::array::from_fn(|i| a[i] + a[i + 8]);
        let c: [f32; 4] = std::array::from_fn(|i| b[i] + b[i + 4]);
        (c[0] + c[2]) + (c[1] + c[3])
    }
    #[inline(always)]
    unsafe fn top(a: [f32; 16]) -> f32 {
        a.into_iter().fold(a[0], |m, x| if x > m { x } else { m })
    }
    #[inline(always)]
    unsafe fn zero_i() -> [i32; 16] {
        [0; 16]
    }
    #[inline(always)]
    unsafe fn to_f(a: [i32; 16]) -> [f32; 16] {
        a.map(|x| x as f32)
    }
    #[inline(always)]
    unsafe fn to_i(a: [f32; 16]) -> [i32; 16] {
        a.map(|x| x.round_ties_even() as i32)
    }
    #[inline(always)]
    unsafe fn exp2i(n: [i32; 16]) -> [f32; 16] {
        n.map(|n| f32::from_bits((n.wrapping_add(127) << 23) as u32))
    }
    #[inline(always)]
    unsafe fn store_i8(p: *mut i8, v: [i32; 16]) {
        p.cast::<[i8; 16]>().write_unaligned(v.map(|x| x as i8));
    }
    #[inline(always)]
    unsafe fn sum_i(a: [i32; 16]) -> i32 {
        a.into_iter().fold(0, i32::wrapping_add)
    }
    #[inline(always)]
    unsafe fn load_b(p: *const u8) -> [u8; 64] {
        p.cast::<[u8; 64]>().read_unaligned()
    }
    #[inline(always)]
    unsafe fn low4(a: [u8; 64]) -> [u8; 64] {
        map_b(a, |_, x| x & 15)
    }
    #[inline(always)]
    unsafe fn high4(a: [u8; 64]) -> [u8; 64] {
        map_b(a, |_, x| x >> 4)
    }
    #[inline(always)]
    unsafe fn pick16(a: [u8; 64], table: &[u8; 16]) -> [u8; 64] {
        map_b(a, |_, x| table[x as usize & 15])
    }
    #[inline(always)]
    unsafe fn bit4(a: [u8; 64], mask: u64) -> [u8; 64] {
        map_b(a, |i, x| x + (((mask >> i) & 1) << 4) as u8)
    }
    #[inline(always)]
    unsafe fn bits45<const FIELD: i32>(a: [u8; 64], b: [u8; 64]) -> [u8; 64] {
        map_b(a, |i, x| x | (b[i] >> (2 * FIELD) & 3) << 4)
    }
    #[inline(always)]
    unsafe fn byte_f<const J: i32>(a: [u8; 64]) -> [f32; 16] {
        std::array::from_fn(|i| f32::from(a[4 * i + J as usize]))
    }
    #[inline(always)]
    unsafe fn dot<const WIDE: bool>(acc: [i32; 16], w: [u8; 64], x: *const i8) -> [i32; 16] {
        let x = x.cast::<[i8; 4]>().read_unaligned();
        std::array::from_fn(|i| {
            let part: i32 = (0..4).map(|j| i32::from(w[4 * i + j]) * i32::from(x[j])).sum();
            acc[i].wrapping_add(part)
        })
    }
}
