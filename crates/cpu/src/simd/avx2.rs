//! [`Lanes`] on AVX2 with FMA and F16C: two registers each, rows 0–7 and 8–15.

use super::Lanes;
use std::arch::x86_64::*;

/// AVX2, FMA, F16C.
#[derive(Clone, Copy)]
pub(crate) struct Avx2;

type F = [__m256; 2];
type I = [__m256i; 2];

/// Sum of 8 lanes in the order that [`Lanes::sum`] promises.
///
/// # Safety
/// AVX2.
#[inline(always)]
pub(crate) unsafe fn sum8(b: __m256) -> f32 {
    // SAFETY: the caller's promise.
    unsafe {
        let c = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps::<1>(b));
        let d = _mm_add_ps(c, _mm_movehl_ps(c, c));
        _mm_cvtss_f32(_mm_add_ss(d, _mm_shuffle_ps::<1>(d, d)))
    }
}

/// Bytes 0/255 of 32 mask bits.
#[inline(always)]
#[allow(unsafe_op_in_unsafe_fn)]
unsafe fn spread(mask: u32) -> __m256i {
    let index = _mm256_setr_epi64x(0, 0x0101_0101_0101_0101, 0x0202_0202_0202_0202, 0x0303_0303_0303_0303);
    let bits = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64 as i64);
    let bytes = _mm256_shuffle_epi8(_mm256_set1_epi32(mask as i32), index);
    _mm256_cmpeq_epi8(_mm256_and_si256(bytes, bits), bits)
}

/// The expression for rows 0–7, then for rows 8–15 of each named pair. (A closure
/// would have to be inlined before its intrinsics could be: not promised.)
macro_rules! each {
    ($a:ident $(, $b:ident)* => $e:expr) => {
        [
            { let ($a, $($b),*) = ($a[0], $($b[0]),*); $e },
            { let ($a, $($b),*) = ($a[1], $($b[1]),*); $e },
        ]
    };
}

/// Sixteen bytes widened to two registers of dwords by `widen`.
macro_rules! widened {
    ($p:expr, $widen:ident) => {{
        let v = _mm_loadu_si128($p.cast());
        [_mm256_cvtepi32_ps($widen(v)), _mm256_cvtepi32_ps($widen(_mm_unpackhi_epi64(v, v)))]
    }};
}

// SAFETY: intrinsics of the features named above.
#[allow(unsafe_op_in_unsafe_fn)]
unsafe impl Lanes for Avx2 {
    type F = F;
    type I = I;
    type B = I;

    #[inline(always)]
    unsafe fn splat(x: f32) -> F {
        [_mm256_set1_ps(x); 2]
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> F {
        [_mm256_loadu_ps(p), _mm256_loadu_ps(p.add(8))]
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: F) {
        _mm256_storeu_ps(p, v[0]);
        _mm256_storeu_ps(p.add(8), v[1]);
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> F {
        [_mm256_cvtph_ps(_mm_loadu_si128(p.cast())), _mm256_cvtph_ps(_mm_loadu_si128(p.add(8).cast()))]
    }
    #[inline(always)]
    unsafe fn store_f16(p: *mut u16, v: F) {
        _mm_storeu_si128(p.cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v[0]));
        _mm_storeu_si128(p.add(8).cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v[1]));
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> F {
        let q = [p, p.add(8)];
        each!(q => {
            let bits = _mm256_cvtepu16_epi32(_mm_loadu_si128(q.cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(bits))
        })
    }
    #[inline(always)]
    unsafe fn load_u8(p: *const u8) -> F {
        widened!(p, _mm256_cvtepu8_epi32)
    }
    #[inline(always)]
    unsafe fn load_i8(p: *const u8) -> F {
        widened!(p, _mm256_cvtepi8_epi32)
    }
    #[inline(always)]
    unsafe fn add(a: F, b: F) -> F {
        each!(a, b => _mm256_add_ps(a, b))
    }
    #[inline(always)]
    unsafe fn sub(a: F, b: F) -> F {
        each!(a, b => _mm256_sub_ps(a, b))
    }
    #[inline(always)]
    unsafe fn mul(a: F, b: F) -> F {
        each!(a, b => _mm256_mul_ps(a, b))
    }
    #[inline(always)]
    unsafe fn div(a: F, b: F) -> F {
        each!(a, b => _mm256_div_ps(a, b))
    }
    #[inline(always)]
    unsafe fn max(a: F, b: F) -> F {
        each!(a, b => _mm256_max_ps(a, b))
    }
    #[inline(always)]
    unsafe fn min(a: F, b: F) -> F {
        each!(a, b => _mm256_min_ps(a, b))
    }
    #[inline(always)]
    unsafe fn abs(a: F) -> F {
        let sign = _mm256_set1_ps(-0.0);
        [_mm256_andnot_ps(sign, a[0]), _mm256_andnot_ps(sign, a[1])]
    }
    #[inline(always)]
    unsafe fn fma(a: F, b: F, c: F) -> F {
        [_mm256_fmadd_ps(a[0], b[0], c[0]), _mm256_fmadd_ps(a[1], b[1], c[1])]
    }
    #[inline(always)]
    unsafe fn sum(a: F) -> f32 {
        sum8(_mm256_add_ps(a[0], a[1]))
    }
    #[inline(always)]
    unsafe fn top(a: F) -> f32 {
        let m = _mm256_max_ps(a[0], a[1]);
        let m = _mm_max_ps(_mm256_castps256_ps128(m), _mm256_extractf128_ps::<1>(m));
        let m = _mm_max_ps(m, _mm_movehl_ps(m, m));
        _mm_cvtss_f32(_mm_max_ss(m, _mm_shuffle_ps::<1>(m, m)))
    }
    #[inline(always)]
    unsafe fn zero_i() -> I {
        [_mm256_setzero_si256(); 2]
    }
    #[inline(always)]
    unsafe fn to_f(a: I) -> F {
        [_mm256_cvtepi32_ps(a[0]), _mm256_cvtepi32_ps(a[1])]
    }
    #[inline(always)]
    unsafe fn to_i(a: F) -> I {
        [_mm256_cvtps_epi32(a[0]), _mm256_cvtps_epi32(a[1])]
    }
    #[inline(always)]
    unsafe fn exp2i(n: I) -> F {
        let bias = _mm256_set1_epi32(127);
        each!(n => _mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_add_epi32(n, bias))))
    }
    #[inline(always)]
    unsafe fn store_i8(p: *mut i8, v: I) {
        // packs works within 128-bit halves: dwords 0-3,8-11 | 4-7,12-15; the permutation undoes it.
        let words = _mm256_packs_epi32(v[0], v[1]);
        let words = _mm256_permute4x64_epi64::<0b11_01_10_00>(words);
        let bytes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256::<1>(words));
        _mm_storeu_si128(p.cast(), bytes);
    }
    #[inline(always)]
    unsafe fn sum_i(a: I) -> i32 {
        let s = _mm256_add_epi32(a[0], a[1]);
        let s = _mm_add_epi32(_mm256_castsi256_si128(s), _mm256_extracti128_si256::<1>(s));
        let s = _mm_add_epi32(s, _mm_shuffle_epi32::<0b01_00_11_10>(s));
        let s = _mm_add_epi32(s, _mm_shuffle_epi32::<0b10_11_00_01>(s));
        _mm_cvtsi128_si32(s)
    }
    #[inline(always)]
    unsafe fn prefetch(p: *const u8) {
        _mm_prefetch::<_MM_HINT_T0>(p.cast());
    }
    #[inline(always)]
    unsafe fn load_b(p: *const u8) -> I {
        [_mm256_loadu_si256(p.cast()), _mm256_loadu_si256(p.add(32).cast())]
    }
    #[inline(always)]
    unsafe fn low4(a: I) -> I {
        let m = _mm256_set1_epi8(15);
        [_mm256_and_si256(a[0], m), _mm256_and_si256(a[1], m)]
    }
    #[inline(always)]
    unsafe fn high4(a: I) -> I {
        Self::low4([_mm256_srli_epi16::<4>(a[0]), _mm256_srli_epi16::<4>(a[1])])
    }
    #[inline(always)]
    unsafe fn pick16(a: I, table: &[u8; 16]) -> I {
        let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast()));
        [_mm256_shuffle_epi8(table, a[0]), _mm256_shuffle_epi8(table, a[1])]
    }
    #[inline(always)]
    unsafe fn bit4(a: I, mask: u64) -> I {
        let add = _mm256_set1_epi8(16);
        let mask = [mask as u32, (mask >> 32) as u32];
        each!(a, mask => _mm256_add_epi8(a, _mm256_and_si256(spread(mask), add)))
    }
    #[inline(always)]
    unsafe fn bits45<const FIELD: i32>(a: I, b: I) -> I {
        let keep = _mm256_set1_epi8(0x30);
        each!(a, b => {
            let moved = match FIELD {
                0 => _mm256_slli_epi16::<4>(b),
                1 => _mm256_slli_epi16::<2>(b),
                2 => b,
                _ => _mm256_srli_epi16::<2>(b),
            };
            _mm256_or_si256(a, _mm256_and_si256(moved, keep))
        })
    }
    #[inline(always)]
    unsafe fn byte_f<const J: i32>(a: I) -> F {
        let m = _mm256_set1_epi32(255);
        each!(a => {
            _mm256_cvtepi32_ps(match J {
                0 => _mm256_and_si256(a, m),
                1 => _mm256_and_si256(_mm256_srli_epi32::<8>(a), m),
                2 => _mm256_and_si256(_mm256_srli_epi32::<16>(a), m),
                _ => _mm256_srli_epi32::<24>(a),
            })
        })
    }
    #[inline(always)]
    unsafe fn dot<const WIDE: bool>(acc: I, w: I, x: *const i8) -> I {
        let x = _mm256_set1_epi32(x.cast::<i32>().read_unaligned());
        if !WIDE {
            let ones = _mm256_set1_epi16(1);
            return each!(acc, w => {
                let pairs = _mm256_maddubs_epi16(w, x);
                _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, ones))
            });
        }
        // maddubs would saturate its 16-bit sums (2·255·127 > 32767): even and odd bytes
        // as 16-bit lanes instead, exact in 32 bits.
        let x_even = _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(x));
        let x_odd = _mm256_srai_epi16::<8>(x);
        let low = _mm256_set1_epi16(255);
        each!(acc, w => {
            let even = _mm256_madd_epi16(_mm256_and_si256(w, low), x_even);
            let odd = _mm256_madd_epi16(_mm256_srli_epi16::<8>(w), x_odd);
            _mm256_add_epi32(acc, _mm256_add_epi32(even, odd))
        })
    }
}
