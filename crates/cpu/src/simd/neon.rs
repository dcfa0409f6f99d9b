//! [`Lanes`] on 64-bit Arm: four registers each.

use super::Lanes;
use half::f16;
use std::arch::aarch64::*;

/// Baseline NEON.
#[derive(Clone, Copy)]
pub(crate) struct Neon;

type F = [float32x4_t; 4];
type I = [int32x4_t; 4];
type B = [uint8x16_t; 4];

/// The expression for each quarter of the named registers.
macro_rules! each {
    ($i:ident => $e:expr) => {
        [{ const $i: usize = 0; $e }, { const $i: usize = 1; $e },
         { const $i: usize = 2; $e }, { const $i: usize = 3; $e }]
    };
}

// SAFETY: NEON is part of the 64-bit Arm baseline.
#[allow(unsafe_op_in_unsafe_fn)]
unsafe impl Lanes for Neon {
    type F = F;
    type I = I;
    type B = B;

    #[inline(always)]
    unsafe fn splat(x: f32) -> F {
        [vdupq_n_f32(x); 4]
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> F {
        each!(Q => vld1q_f32(p.add(4 * Q)))
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: F) {
        let _: [(); 4] = each!(Q => vst1q_f32(p.add(4 * Q), v[Q]));
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> F {
        let bits = p.cast::<[u16; 16]>().read_unaligned();
        let x: [f32; 16] = bits.map(|b| f16::from_bits(b).to_f32());
        Self::load(x.as_ptr())
    }
    #[inline(always)]
    unsafe fn store_f16(p: *mut u16, v: F) {
        let mut x = [0f32; 16];
        Self::store(x.as_mut_ptr(), v);
        p.cast::<[u16; 16]>().write_unaligned(x.map(|x| f16::from_f32(x).to_bits()));
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> F {
        each!(Q => vreinterpretq_f32_u32(vshll_n_u16::<16>(vld1_u16(p.add(4 * Q)))))
    }
    #[inline(always)]
    unsafe fn load_u8(p: *const u8) -> F {
        let x = p.cast::<[u8; 16]>().read_unaligned().map(f32::from);
        Self::load(x.as_ptr())
    }
    #[inline(always)]
    unsafe fn load_i8(p: *const u8) -> F {
        let x = p.cast::<[i8; 16]>().read_unaligned().map(f32::from);
        Self::load(x.as_ptr())
    }
    #[inline(always)]
    unsafe fn add(a: F, b: F) -> F {
        each!(Q => vaddq_f32(a[Q], b[Q]))
    }
    #[inline(always)]
    unsafe fn sub(a: F, b: F) -> F {
        each!(Q => vsubq_f32(a[Q], b[Q]))
    }
    #[inline(always)]
    unsafe fn mul(a: F, b: F) -> F {
        each!(Q => vmulq_f32(a[Q], b[Q]))
    }
    #[inline(always)]
    unsafe fn div(a: F, b: F) -> F {
        each!(Q => vdivq_f32(a[Q], b[Q]))
    }
    #[inline(always)]
    unsafe fn max(a: F, b: F) -> F {
        each!(Q => vmaxq_f32(a[Q], b[Q]))
    }
    #[inline(always)]
    unsafe fn min(a: F, b: F) -> F {
        each!(Q => vminq_f32(a[Q], b[Q]))
    }
    #[inline(always)]
    unsafe fn abs(a: F) -> F {
        each!(Q => vabsq_f32(a[Q]))
    }
    #[inline(always)]
    unsafe fn fma(a: F, b: F, c: F) -> F {
        each!(Q => vfmaq_f32(c[Q], a[Q], b[Q]))
    }
    #[inline(always)]
    unsafe fn sum(a: F) -> f32 {
        let c = vaddq_f32(vaddq_f32(a[0], a[2]), vaddq_f32(a[1], a[3]));
        let d = vadd_f32(vget_low_f32(c), vget_high_f32(c));
        vget_lane_f32::<0>(d) + vget_lane_f32::<1>(d)
    }
    #[inline(always)]
    unsafe fn top(a: F) -> f32 {
        vmaxvq_f32(vmaxq_f32(vmaxq_f32(a[0], a[1]), vmaxq_f32(a[2], a[3])))
    }
    #[inline(always)]
    unsafe fn zero_i() -> I {
        [vdupq_n_s32(0); 4]
    }
    #[inline(always)]
    unsafe fn to_f(a: I) -> F {
        each!(Q => vcvtq_f32_s32(a[Q]))
    }
    #[inline(always)]
    unsafe fn to_i(a: F) -> I {
        each!(Q => vcvtnq_s32_f32(a[Q]))
    }
    #[inline(always)]
    unsafe fn exp2i(n: I) -> F {
        each!(Q => vreinterpretq_f32_s32(vshlq_n_s32::<23>(vaddq_s32(n[Q], vdupq_n_s32(127)))))
    }
    #[inline(always)]
    unsafe fn store_i8(p: *mut i8, v: I) {
        let mut x = [0i32; 16];
        let _: [(); 4] = each!(Q => vst1q_s32(x.as_mut_ptr().add(4 * Q), v[Q]));
        p.cast::<[i8; 16]>().write_unaligned(x.map(|x| x as i8));
    }
    #[inline(always)]
    unsafe fn sum_i(a: I) -> i32 {
        vaddvq_s32(vaddq_s32(vaddq_s32(a[0], a[1]), vaddq_s32(a[2], a[3])))
    }
    #[inline(always)]
    unsafe fn load_b(p: *const u8) -> B {
        each!(Q => vld1q_u8(p.add(16 * Q)))
    }
    #[inline(always)]
    unsafe fn low4(a: B) -> B {
        each!(Q => vandq_u8(a[Q], vdupq_n_u8(15)))
    }
    #[inline(always)]
    unsafe fn high4(a: B) -> B {
        each!(Q => vshrq_n_u8::<4>(a[Q]))
    }
    #[inline(always)]
    unsafe fn pick16(a: B, table: &[u8; 16]) -> B {
        let table = vld1q_u8(table.as_ptr());
        each!(Q => vqtbl1q_u8(table, a[Q]))
    }
    #[inline(always)]
    unsafe fn bit4(a: B, mask: u64) -> B {
        let bits = vcreate_u8(0x8040_2010_0804_0201);
        let bits = vcombine_u8(bits, bits);
        each!(Q => {
            let word = (mask >> (16 * Q)) as u16;
            let bytes = vcombine_u8(vdup_n_u8(word as u8), vdup_n_u8((word >> 8) as u8));
            vorrq_u8(a[Q], vandq_u8(vtstq_u8(bytes, bits), vdupq_n_u8(16)))
        })
    }
    #[inline(always)]
    unsafe fn bits45<const FIELD: i32>(a: B, b: B) -> B {
        each!(Q => {
            let moved = match FIELD {
                0 => vshlq_n_u8::<4>(b[Q]),
                1 => vshlq_n_u8::<2>(b[Q]),
                2 => b[Q],
                _ => vshrq_n_u8::<2>(b[Q]),
            };
            vorrq_u8(a[Q], vandq_u8(moved, vdupq_n_u8(0x30)))
        })
    }
    #[inline(always)]
    unsafe fn byte_f<const J: i32>(a: B) -> F {
        each!(Q => {
            let v = vreinterpretq_u32_u8(a[Q]);
            let m = vdupq_n_u32(255);
            vcvtq_f32_u32(match J {
                0 => vandq_u32(v, m),
                1 => vandq_u32(vshrq_n_u32::<8>(v), m),
                2 => vandq_u32(vshrq_n_u32::<16>(v), m),
                _ => vshrq_n_u32::<24>(v),
            })
        })
    }
    #[inline(always)]
    unsafe fn dot<const WIDE: bool>(acc: I, w: B, x: *const i8) -> I {
        // Widening products: SDOT wants signed weights and is not in the baseline.
        let x4 = x.cast::<i32>().read_unaligned();
        let x8 = vmovl_s8(vreinterpret_s8_s32(vdup_n_s32(x4)));
        each!(Q => {
            let low = vreinterpretq_s16_u16(vmovl_u8(vget_low_u8(w[Q])));
            let high = vreinterpretq_s16_u16(vmovl_u8(vget_high_u8(w[Q])));
            let p = vpaddq_s32(
                vmull_s16(vget_low_s16(low), vget_low_s16(x8)),
                vmull_high_s16(low, x8),
            );
            let q = vpaddq_s32(
                vmull_s16(vget_low_s16(high), vget_low_s16(x8)),
                vmull_high_s16(high, x8),
            );
            vaddq_s32(acc[Q], vpaddq_s32(p, q))
        })
    }
}
