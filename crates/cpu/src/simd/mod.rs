//! Sixteen lanes, whatever the processor: the vocabulary all kernels are written in.
//!
//! ```text
//! kernel::<V: Lanes>  ──instantiated inside #[target_feature] functions──►  Avx512 │ Avx2 │ Neon │ Scalar
//! ```
//! A kernel is one generic function over [`Lanes`]; each instruction set only says
//! what its sixteen lanes are. [`Isa`] picks at run time; [`dispatch!`] makes the
//! `#[target_feature]` entry points.
//!
//! Every method is unsafe with the same promise: the processor has the features
//! of that implementor, and pointers are valid for the sixteen (or named number
//! of) elements. Methods are `inline(always)`, so that they melt into
//! the entry point which enables the features.

pub(crate) mod scalar;

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
#[cfg(target_arch = "aarch64")]
pub(crate) mod neon;

/// An instruction set level that kernels exist for; later is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Isa {
    /// Plain Rust, whatever the compiler makes of it.
    Scalar,
    /// x86 with AVX2, FMA and F16C.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// x86 with AVX-512 F, BW, DQ, VL and VNNI.
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// 64-bit Arm.
    #[cfg(target_arch = "aarch64")]
    Neon,
}

impl Isa {
    /// The levels that this processor has, worst first; `Scalar` is always there.
    pub fn available() -> Vec<Isa> {
        let mut isas = vec![Isa::Scalar];
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c") {
                isas.push(Isa::Avx2);
                if is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512vnni")
                {
                    isas.push(Isa::Avx512);
                }
            }
        }
        #[cfg(target_arch = "aarch64")]
        isas.push(Isa::Neon);
        isas
    }

    /// The best level of this processor.
    pub fn best() -> Isa {
        Isa::available().into_iter().max().unwrap_or(Isa::Scalar)
    }

    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Isa::Scalar => "scalar",
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => "avx512-vnni",
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => "neon",
        }
    }
}

/// Makes `fn table<Types, CONSTS>(isa) -> unsafe fn(args)` from a kernel that is generic over
/// `V: Lanes` (first) and the given types and constants:
/// `dispatch!(vis table, module [T: Bound] [N: usize] => kernel(arg: Type) -> R);`
macro_rules! dispatch {
    ($(#[$meta:meta])* $vis:vis $table:ident, $entry:ident [$($gen:ident: $bound:path),*] [$($cgen:ident: $cty:ty),*] => $kernel:ident ($($arg:ident: $ty:ty),*) $(-> $ret:ty)?) => {
        $(#[$meta])*
        $vis fn $table<$($gen: $bound,)* $(const $cgen: $cty),*>(isa: $crate::Isa) -> unsafe fn($($ty),*) $(-> $ret)? {
            mod $entry {
                #[allow(unused_imports)]
                use super::*;
                pub(super) unsafe fn scalar<$($gen: $bound,)* $(const $cgen: $cty),*>($($arg: $ty),*) $(-> $ret)? {
                    // SAFETY: the caller's promise; Scalar needs no feature.
                    unsafe { $kernel::<$crate::simd::scalar::Scalar, $($gen,)* $($cgen),*>($($arg),*) }
                }
                #[cfg(target_arch = "x86_64")]
                #[target_feature(enable = "avx2,fma,f16c")]
                pub(super) unsafe fn avx2<$($gen: $bound,)* $(const $cgen: $cty),*>($($arg: $ty),*) $(-> $ret)? {
                    // SAFETY: the caller's promise; the features are enabled here.
                    unsafe { $kernel::<$crate::simd::avx2::Avx2, $($gen,)* $($cgen),*>($($arg),*) }
                }
                #[cfg(target_arch = "x86_64")]
                #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
                pub(super) unsafe fn avx512<$($gen: $bound,)* $(const $cgen: $cty),*>($($arg: $ty),*) $(-> $ret)? {
                    // SAFETY: the caller's promise; the features are enabled here.
                    unsafe { $kernel::<$crate::simd::avx512::Avx512, $($gen,)* $($cgen),*>($($arg),*) }
                }
                #[cfg(target_arch = "aarch64")]
                #[target_feature(enable = "neon")]
                pub(super) unsafe fn neon<$($gen: $bound,)* $(const $cgen: $cty),*>($($arg: $ty),*) $(-> $ret)? {
                    // SAFETY: the caller's promise; the features are enabled here.
                    unsafe { $kernel::<$crate::simd::neon::Neon, $($gen,)* $($cgen),*>($($arg),*) }
                }
            }
            match isa {
                $crate::Isa::Scalar => $entry::scalar::<$($gen,)* $($cgen),*>,
                #[cfg(target_arch = "x86_64")]
                $crate::Isa::Avx2 => $entry::avx2::<$($gen,)* $($cgen),*>,
                #[cfg(target_arch = "x86_64")]
                $crate::Isa::Avx512 => $entry::avx512::<$($gen,)* $($cgen),*>,
                #[cfg(target_arch = "aarch64")]
                $crate::Isa::Neon => $entry::neon::<$($gen,)* $($cgen),*>,
            }
        }
    };
}
pub(crate) use dispatch;

/// Sixteen f32, sixteen i32, or 64 bytes seen as 16 rows of 4.
///
/// # Safety
/// See the module's text: features and pointers are the caller's promise.
#[allow(clippy::missing_safety_doc)]
pub(crate) unsafe trait Lanes: Copy + 'static {
    /// Sixteen f32.
    type F: Copy;
    /// Sixteen i32.
    type I: Copy;
    /// 64 bytes: lane r holds 4 bytes, the k, k+1, k+2, k+3 of row r.
    type B: Copy;

    unsafe fn splat(x: f32) -> Self::F;
    unsafe fn load(p: *const f32) -> Self::F;
    unsafe fn store(p: *mut f32, v: Self::F);
    /// 16 f16 (as bits) to f32.
    unsafe fn load_f16(p: *const u16) -> Self::F;
    /// Rounds to nearest even and stores 16 f16.
    unsafe fn store_f16(p: *mut u16, v: Self::F);
    /// 16 bf16 (as bits) to f32.
    unsafe fn load_bf16(p: *const u16) -> Self::F;
    /// 16 bytes 0..=255 to f32.
    unsafe fn load_u8(p: *const u8) -> Self::F;
    /// 16 signed bytes to f32.
    unsafe fn load_i8(p: *const u8) -> Self::F;

    unsafe fn add(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn sub(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn div(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn max(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn min(a: Self::F, b: Self::F) -> Self::F;
    /// |a|.
    unsafe fn abs(a: Self::F) -> Self::F;
    /// a·b + c; one rounding where the processor can.
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// Sum of the lanes, in a fixed pairwise order that is the same on every instruction set.
    unsafe fn sum(a: Self::F) -> f32;
    /// Greatest lane.
    unsafe fn top(a: Self::F) -> f32;

    unsafe fn zero_i() -> Self::I;
    unsafe fn to_f(a: Self::I) -> Self::F;
    /// Rounds to nearest even.
    unsafe fn to_i(a: Self::F) -> Self::I;
    /// 2^n for n in -126..=127.
    unsafe fn exp2i(n: Self::I) -> Self::F;
    /// Stores the low bytes of 16 values in -128..=127.
    unsafe fn store_i8(p: *mut i8, v: Self::I);
    /// Sum of the lanes.
    unsafe fn sum_i(a: Self::I) -> i32;

    /// Asks for the cache line at `p`, which need not be valid memory.
    unsafe fn prefetch(p: *const u8) {
        let _ = p;
    }
    /// 64 bytes.
    unsafe fn load_b(p: *const u8) -> Self::B;
    /// Low four bits of each byte.
    unsafe fn low4(a: Self::B) -> Self::B;
    /// High four bits of each byte.
    unsafe fn high4(a: Self::B) -> Self::B;
    /// Entry of each byte (0..=15) in a table of sixteen.
    unsafe fn pick16(a: Self::B, table: &[u8; 16]) -> Self::B;
    /// Adds 16 to the bytes (0..=15 before) whose bit is set; bit 4·row + k of the mask is byte k of that row.
    unsafe fn bit4(a: Self::B, mask: u64) -> Self::B;
    /// a | ((b >> 2·FIELD) & 3) << 4, bytewise.
    unsafe fn bits45<const FIELD: i32>(a: Self::B, b: Self::B) -> Self::B;
    /// Byte `J` of each row as f32.
    unsafe fn byte_f<const J: i32>(a: Self::B) -> Self::F;
    /// acc[row] += Σ_j w[row][j] · x[j] with w unsigned, x the 4 signed bytes (-127..=127) at `x`.
    /// Exact; without `WIDE` every w is at most 127.
    unsafe fn dot<const WIDE: bool>(acc: Self::I, w: Self::B, x: *const i8) -> Self::I;
}

/// e^x by a degree-6 polynomial on [-ln2/2, ln2/2]: relative error below 2e-7; arguments are clamped to -87.3..=88 (1e-38..=1.6e38).
///
/// # Safety
/// The features of `V`.
#[inline(always)]
pub(crate) unsafe fn exp<V: Lanes>(x: V::F) -> V::F {
    // SAFETY: the caller's promise.
    unsafe {
        let x = V::max(V::min(x, V::splat(88.0)), V::splat(-87.3));
        let n = V::to_i(V::mul(x, V::splat(std::f32::consts::LOG2_E)));
        let nf = V::to_f(n);
        // ln 2 in two parts, so that x - n·ln 2 keeps its low bits.
        let r = V::fma(nf, V::splat(-0.693_145_75), x);
        let r = V::fma(nf, V::splat(-1.428_606_8e-6), r);
        let mut p = V::splat(1.0 / 720.0);
        p = V::fma(p, r, V::splat(1.0 / 120.0));
        p = V::fma(p, r, V::splat(1.0 / 24.0));
        p = V::fma(p, r, V::splat(1.0 / 6.0));
        p = V::fma(p, r, V::splat(0.5));
        p = V::fma(p, r, V::splat(1.0));
        p = V::fma(p, r, V::splat(1.0));
        V::mul(p, V::exp2i(n))
    }
}
