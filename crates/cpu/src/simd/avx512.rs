//! [`Lanes`] on AVX-512 with VNNI: one register each.

use super::Lanes;
use std::arch::x86_64::*;

/// AVX-512 F, BW, DQ, VL, VNNI (and AVX2, FMA, F16C).
#[derive(Clone, Copy)]
pub(crate) struct Avx512;

// SAFETY: one intrinsic each, with the features named above.
#[allow(unsafe_op_in_unsafe_fn)]
unsafe impl Lanes for Avx512 {
    type F = __m512;
    type I = __m512i;
    type B = __m512i;

    #[inline(always)]
    unsafe fn splat(x: f32) -> __m512 {
        _mm512_set1_ps(x)
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> __m512 {
        _mm512_loadu_ps(p)
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: __m512) {
        _mm512_storeu_ps(p, v);
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> __m512 {
        _mm512_cvtph_ps(_mm256_loadu_si256(p.cast()))
    }
    #[inline(always)]
    unsafe fn store_f16(p: *mut u16, v: __m512) {
        _mm256_storeu_si256(p.cast(), _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v));
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> __m512 {
        let bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()));
        _mm512_castsi512_ps(_mm512_slli_epi32::<16>(bits))
    }
    #[inline(always)]
    unsafe fn load_u8(p: *const u8) -> __m512 {
        _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(p.cast())))
    }
    #[inline(always)]
    unsafe fn load_i8(p: *const u8) -> __m512 {
        _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(p.cast())))
    }
    #[inline(always)]
    unsafe fn add(a: __m512, b: __m512) -> __m512 {
        _mm512_add_ps(a, b)
    }
    #[inline(always)]
    unsafe fn sub(a: __m512, b: __m512) -> __m512 {
        _mm512_sub_ps(a, b)
    }
    #[inline(always)]
    unsafe fn mul(a: __m512, b: __m512) -> __m512 {
        _mm512_mul_ps(a, b)
    }
    #[inline(always)]
    unsafe fn div(a: __m512, b: __m512) -> __m512 {
        _mm512_div_ps(a, b)
    }
    #[inline(always)]
    unsafe fn max(a: __m512, b: __m512) -> __m512 {
        _mm512_max_ps(a, b)
    }
    #[inline(always)]
    unsafe fn min(a: __m512, b: __m512) -> __m512 {
        _mm512_min_ps(a, b)
    }
    #[inline(always)]
    unsafe fn abs(a: __m512) -> __m512 {
        _mm512_abs_ps(a)
    }
    #[inline(always)]
    unsafe fn fma(a: __m512, b: __m512, c: __m512) -> __m512 {
        _mm512_fmadd_ps(a, b, c)
    }
    #[inline(always)]
    unsafe fn sum(a: __m512) -> f32 {
        let b = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps::<1>(a));
        super::avx2::sum8(b)
    }
    #[inline(always)]
    unsafe fn top(a: __m512) -> f32 {
        _mm512_reduce_max_ps(a)
    }
    #[inline(always)]
    unsafe fn zero_i() -> __m512i {
        _mm512_setzero_si512()
    }
    #[inline(always)]
    unsafe fn to_f(a: __m512i) -> __m512 {
        _mm512_cvtepi32_ps(a)
    }
    #[inline(always)]
    unsafe fn to_i(a: __m512) -> __m512i {
        _mm512_cvtps_epi32(a)
    }
    #[inline(always)]
    unsafe fn exp2i(n: __m512i) -> __m512 {
        let biased = _mm512_add_epi32(n, _mm512_set1_epi32(127));
        _mm512_castsi512_ps(_mm512_slli_epi32::<23>(biased))
    }
    #[inline(always)]
    unsafe fn store_i8(p: *mut i8, v: __m512i) {
        _mm_storeu_si128(p.cast(), _mm512_cvtepi32_epi8(v));
    }
    #[inline(always)]
    unsafe fn sum_i(a: __m512i) -> i32 {
        _mm512_reduce_add_epi32(a)
    }
    #[inline(always)]
    unsafe fn prefetch(p: *const u8) {
        _mm_prefetch::<_MM_HINT_T0>(p.cast());
    }
    #[inline(always)]
    unsafe fn load_b(p: *const u8) -> __m512i {
        _mm512_loadu_si512(p.cast())
    }
    #[inline(always)]
    unsafe fn low4(a: __m512i) -> __m512i {
        _mm512_and_si512(a, _mm512_set1_epi8(15))
    }
    #[inline(always)]
    unsafe fn high4(a: __m512i) -> __m512i {
        _mm512_and_si512(_mm512_srli_epi16::<4>(a), _mm512_set1_epi8(15))
    }
    #[inline(always)]
    unsafe fn pick16(a: __m512i, table: &[u8; 16]) -> __m512i {
        _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast())), a)
    }
    #[inline(always)]
    unsafe fn bit4(a: __m512i, mask: u64) -> __m512i {
        _mm512_mask_add_epi8(a, mask, a, _mm512_set1_epi8(16))
    }
    #[inline(always)]
    unsafe fn bits45<const FIELD: i32>(a: __m512i, b: __m512i) -> __m512i {
        // Brings the field to bits 4 and 5; what crosses bytes is masked away.
        let moved = match FIELD {
            0 => _mm512_slli_epi16::<4>(b),
            1 => _mm512_slli_epi16::<2>(b),
            2 => b,
            _ => _mm512_srli_epi16::<2>(b),
        };
        // a | (moved & 0x30)
        _mm512_ternarylogic_epi32::<0xF8>(a, moved, _mm512_set1_epi8(0x30))
    }
    #[inline(always)]
    unsafe fn byte_f<const J: i32>(a: __m512i) -> __m512 {
        let low = match J {
            0 => _mm512_and_si512(a, _mm512_set1_epi32(255)),
            1 => _mm512_and_si512(_mm512_srli_epi32::<8>(a), _mm512_set1_epi32(255)),
            2 => _mm512_and_si512(_mm512_srli_epi32::<16>(a), _mm512_set1_epi32(255)),
            _ => _mm512_srli_epi32::<24>(a),
        };
        _mm512_cvtepi32_ps(low)
    }
    #[inline(always)]
    unsafe fn dot<const WIDE: bool>(acc: __m512i, w: __m512i, x: *const i8) -> __m512i {
        _mm512_dpbusd_epi32(acc, w, _mm512_set1_epi32(x.cast::<i32>().read_unaligned()))
    }
}
