//! Formats whose weights have at most sixteen levels, stored as nibbles: IQ4_NL, IQ4_XS, MXFP4, Q3_K, IQ3_XXS, IQ3_S.
//!
//! ```text
//! nibble ─pick16─► level + OFFSET (a byte) ─► the same products as any integer format
//! ```

use super::format::{Quant, Scales, half_scales, one_scale, pack_nibbles, plain_scale, put_half, put_word, word};
use crate::simd::Lanes;
use zinc_ir::quant::{grids, levels};

/// Sixteen levels plus `offset`, which makes them unsigned.
const fn above(levels: [i8; 16], offset: i8) -> [u8; 16] {
    let mut out = [0; 16];
    let mut i = 0;
    while i < 16 {
        out[i] = (levels[i] as i16 + offset as i16) as u8;
        i += 1;
    }
    out
}

/// d·level, 4 bits.
pub(crate) struct Iq4Nl;
impl Quant for Iq4Nl {
    const BITS: usize = 4;
    const OFFSET: f32 = 127.0;
    const LEVELS: Option<[u8; 16]> = Some(above(levels::IQ4, 127));
    const WIDE: bool = true;
    const S_BYTES: usize = 32;
    const FILE_BYTES: usize = 18;
    #[inline(always)]
    unsafe fn scales<V: Lanes>(s: *const u8, _: usize) -> Scales<V> {
        // SAFETY: the record holds 16 halves.
        unsafe { one_scale::<V>(s) }
    }
    fn pack(block: &[u8], row: usize, q: &mut [u8], _: &mut [u8], s: &mut [u8]) {
        put_half(s, 0, row, block);
        pack_nibbles(&block[2..], row, q);
    }
}

/// (d·scale)·level, 4 bits, 8 blocks of 32. Record: d, then 8 × signed scales.
pub(crate) struct Iq4Xs;
impl Quant for Iq4Xs {
    const BITS: usize = 4;
    const OFFSET: f32 = 127.0;
    const LEVELS: Option<[u8; 16]> = Some(above(levels::IQ4, 127));
    const WIDE: bool = true;
    const GROUP: usize = 8;
    const S_BYTES: usize = 32 + 8 * 16;
    const FILE_BYTES: usize = 136;
    #[inline(always)]
    unsafe fn scales<V: Lanes>(s: *const u8, sub: usize) -> Scales<V> {
        // SAFETY: 32 bytes of d, then 16 bytes for each block.
        unsafe { plain_scale::<V>(V::mul(V::load_f16(s.cast()), V::load_i8(s.add(32 + 16 * sub)))) }
    }
    fn pack(block: &[u8], row: usize, q: &mut [u8], _: &mut [u8], s: &mut [u8]) {
        put_half(s, 0, row, block);
        let high = u16::from_le_bytes([block[2], block[3]]);
        for b in 0..8 {
            let six = block[4 + b / 2] >> (b % 2 * 4) & 15 | ((high >> (2 * b) & 3) as u8) << 4;
            s[32 + 16 * b + row] = six.wrapping_sub(32);
            pack_nibbles(&block[8 + 16 * b..], row, &mut q[256 * b..]);
        }
    }
}

/// 2^(e − 128)·level, 4 bits. Record: e.
pub(crate) struct Mxfp4;
impl Quant for Mxfp4 {
    const BITS: usize = 4;
    const OFFSET: f32 = 12.0;
    const LEVELS: Option<[u8; 16]> = Some(above(levels::E2M1, 12));
    const S_BYTES: usize = 64;
    const FILE_BYTES: usize = 17;
    #[inline(always)]
    unsafe fn scales<V: Lanes>(s: *const u8, _: usize) -> Scales<V> {
        // SAFETY: the record holds 16 floats.
        unsafe { plain_scale::<V>(V::load(s.cast())) }
    }
    fn pack(block: &[u8], row: usize, q: &mut [u8], _: &mut [u8], s: &mut [u8]) {
        let e = block[0];
        let bits = if e < 2 { 0x0020_0000 << e } else { (e as u32 - 1) << 23 };
        s[4 * row..4 * row + 4].copy_from_slice(&bits.to_le_bytes());
        pack_nibbles(&block[1..], row, q);
    }
}

/// (d·scale)·(q − 4), 3 bits as nibbles, 16 scales of 16 columns. Record: d, then 16 × signed scales.
pub(crate) struct Q3K;
impl Quant for Q3K {
    const BITS: usize = 4;
    const OFFSET: f32 = 4.0;
    const HALVES: bool = true;
    const GROUP: usize = 8;
    const S_BYTES: usize = 288;
    const FILE_BYTES: usize = 110;
    #[inline(always)]
    unsafe fn scales<V: Lanes>(s: *const u8, sub: usize) -> Scales<V> {
        // SAFETY: such a record.
        unsafe { half_scales::<V>(s, sub) }
    }
    fn pack(block: &[u8], row: usize, q: &mut [u8], _: &mut [u8], s: &mut [u8]) {
        put_half(s, 0, row, &block[108..]);
        let six = &block[96..108];
        for i in 0..16 {
            let scale = six[i % 8] >> (i / 8 * 4) & 15 | (six[8 + i % 4] >> (i / 4 * 2) & 3) << 4;
            s[32 + 16 * i + row] = scale.wrapping_sub(32);
        }
        for b in 0..8 {
            // Block b: 2-bit field b % 4 of 32 bytes, bit b of the high bits.
            let low = &block[32 + 32 * (b / 4)..];
            let three = |unit: usize| {
                let low = word(low, unit) >> (b % 4 * 2) & 0x0303_0303;
                low | (word(block, unit) >> b & 0x0101_0101) << 2
            };
            for unit in 0..4 {
                put_word(q, 4 * b + unit, row, three(unit) | three(unit + 4) << 4);
            }
        }
    }
}

/// Packs 32 nibbles of one block, one a column.
fn pack_columns(nibbles: &[u8; 32], row: usize, q: &mut [u8]) {
    for unit in 0..4 {
        put_word(q, unit, row, word(nibbles, unit) | word(nibbles, unit + 4) << 4);
    }
}

/// Levels of IQ3_XXS: positive, then negative magnitudes.
const fn iq3_xxs() -> [i8; 16] {
    let mut out = [0; 16];
    let mut i = 0;
    while i < 8 {
        out[i] = grids::IQ3_XXS_LEVELS[i] as i8;
        out[i + 8] = -out[i];
        i += 1;
    }
    out
}

/// d·(s + 1/2)/2·level, as nibbles, 8 blocks of 32. Record: d, then 8 × s.
pub(crate) struct Iq3Xxs;
impl Quant for Iq3Xxs {
    const BITS: usize = 4;
    const OFFSET: f32 = 62.0;
    const LEVELS: Option<[u8; 16]> = Some(above(iq3_xxs(), 62));
    const GROUP: usize = 8;
    const S_BYTES: usize = 32 + 8 * 16;
    const FILE_BYTES: usize = 98;
    #[inline(always)]
    unsafe fn scales<V: Lanes>(s: *const u8, sub: usize) -> Scales<V> {
        // SAFETY: 32 bytes of d, then 16 bytes for each block.
        unsafe {
            let four = V::add(V::load_u8(s.add(32 + 16 * sub)), V::splat(0.5));
            plain_scale::<V>(V::mul(V::mul(V::load_f16(s.cast()), four), V::splat(0.5)))
        }
    }
    fn pack(block: &[u8], row: usize, q: &mut [u8], _: &mut [u8], s: &mut [u8]) {
        put_half(s, 0, row, block);
        for b in 0..8 {
            let signs = word(&block[66..98], b);
            s[32 + 16 * b + row] = (signs >> 28) as u8;
            let mut nibbles = [0; 32];
            for (k, four) in nibbles.chunks_exact_mut(4).enumerate() {
                let signs = grids::even_signs(signs >> (7 * (k / 2)) & 127) >> (k % 2 * 4);
                let digits = grids::digits(grids::IQ3_XXS[block[2 + 8 * b + k] as usize]);
                for (i, nibble) in four.iter_mut().enumerate() {
                    *nibble = digits[i] as u8 | ((signs >> i & 1) as u8) << 3;
                }
            }
            pack_columns(&nibbles, row, &mut q[256 * b..]);
        }
    }
}

/// 2·d·(1 + 2·s)·(q − 7.5): the odd levels from -15 to 15 as nibbles, 8 blocks of 32. Record: d, then 8 × s.
pub(crate) struct Iq3S;
impl Quant for Iq3S {
    const BITS: usize = 4;
    const OFFSET: f32 = 7.5;
    const GROUP: usize = 8;
    const S_BYTES: usize = 32 + 8 * 16;
    const FILE_BYTES: usize = 110;
    #[inline(always)]
    unsafe fn scales<V: Lanes>(s: *const u8, sub: usize) -> Scales<V> {
        // SAFETY: 32 bytes of d, then 16 bytes for each block.
        unsafe {
            // Exact: an integer of five bits.
            let odd = V::fma(V::load_u8(s.add(32 + 16 * sub)), V::splat(2.0), V::splat(1.0));
            plain_scale::<V>(V::mul(V::mul(V::load_f16(s.cast()), odd), V::splat(2.0)))
        }
    }
    fn pack(block: &[u8], row: usize, q: &mut [u8], _: &mut [u8], s: &mut [u8]) {
        put_half(s, 0, row, block);
        for b in 0..8 {
            s[32 + 16 * b + row] = block[106 + b / 2] >> (b % 2 * 4) & 15;
            let mut nibbles = [0; 32];
            for (k, four) in nibbles.chunks_exact_mut(4).enumerate() {
                let index = block[2 + 8 * b + k] as usize | (block[66 + b] as usize >> k & 1) << 8;
                let signs = block[74 + 4 * b + k / 2] >> (k % 2 * 4);
                let digits = grids::digits(grids::IQ3_S[index]);
                for (i, nibble) in four.iter_mut().enumerate() {
                    let magnitude = digits[i] as u8;
                    *nibble = if signs >> i & 1 == 1 { 7 - magnitude } else { 8 + magnitude };
                }
            }
            pack_columns(&nibbles, row, &mut q[256 * b..]);
        }
    }
}
