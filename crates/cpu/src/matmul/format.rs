//! How each weight format is packed, and what its integers mean.
//!
//! ```text
//! 16 rows of the file ──pack──► row tile = records [scales][quants][high bits] of 32 (or 256) columns
//!                                             └─► d, m    └─► 64 bytes = 16 rows × 4 k
//! ```
//! A *row tile* holds 16 rows; its records are one stream, as they are read. In a record the 16 rows lie side by side, so that one
//! 64-byte register has 4 consecutive k of each row as one dword per row: what
//! `vpdpbusd` multiplies by a broadcast of 4 activations, and also one row of an AMX
//! tile (not used yet). All integer formats are brought to four bit layouts (4, 5, 6 and 8 bits),
//! each one block of 32 k at a time:
//!
//! - nibbles (numbers, or names of sixteen levels): 4 units of 64 bytes; unit u has k 4u..4u+4 in the low and 16+4u.. in the high nibbles;
//! - fifth bits: 8 masks of 64 bits; mask j has bit 4·row + i for k = 4j + i;
//! - bits 4 and 5 of six: 2 units; unit v, field f (2 bits) belongs to k = 4·(4v + f)..;
//! - bytes: 8 units (signed bytes are stored with 128 added).
//!
//! Weight = d·(q − OFFSET) + m. Packed bytes equal the file's, but for the K formats whose
//! 6-bit scales become bytes (+2.8 % for Q4_K, +2.3 % for Q5_K), and padding to 16 rows.

use crate::simd::Lanes;

/// Rows of a row tile.
pub(crate) const TILE: usize = 16;

/// Columns of a block, the step of all integer kernels.
pub(crate) const BLOCK: usize = 32;

/// Scales of one block of 32 columns for 16 rows.
pub(crate) struct Scales<V: Lanes> {
    /// Columns 0..16 (and 16..32 unless the format has halves).
    pub(crate) d: V::F,
    /// Columns 16..32.
    pub(crate) d1: V::F,
    /// Added to every weight.
    pub(crate) m: V::F,
}

/// An integer format at compile time.
pub(crate) trait Quant: 'static {
    /// Bits of a weight: 4, 5, 6 or 8.
    const BITS: usize;
    /// Subtracted from the stored integer.
    const OFFSET: f32;
    /// What nibbles stand for, if not for themselves.
    const LEVELS: Option<[u8; 16]> = None;
    /// Integers above 127 occur.
    const WIDE: bool = Self::BITS == 8;
    /// Scales differ between the two halves of a block.
    const HALVES: bool = false;
    /// The file has a minimum per block.
    const HAS_MIN: bool = false;
    /// Blocks of 32 that share a scale record (a file block of 256 has 8).
    const GROUP: usize = 1;
    /// Bytes of the scale record of 16 rows.
    const S_BYTES: usize;
    /// Bytes of a file block (of `32·GROUP` columns).
    const FILE_BYTES: usize;

    /// Scales of block `sub` of the record at `s`.
    ///
    /// # Safety
    /// The features of `V`; `s` points to `S_BYTES` bytes.
    unsafe fn scales<V: Lanes>(s: *const u8, sub: usize) -> Scales<V>;

    /// Packs the file block `block` of row `row` (0..16) into the parts of a record, zero before.
    fn pack(block: &[u8], row: usize, q: &mut [u8], h: &mut [u8], s: &mut [u8]);
}

/// Bytes of the quants of 32 columns and 16 rows.
pub(crate) const fn q_bytes(bits: usize) -> usize {
    if bits == 8 { 512 } else { 256 }
}

/// Bytes of the high bits of 32 columns and 16 rows.
pub(crate) const fn h_bytes(bits: usize) -> usize {
    match bits {
        5 => 64,
        6 => 128,
        _ => 0,
    }
}

/// Bytes of a record: scales, quants and high bits of a scale group.
pub(crate) const fn record<Q: Quant>() -> usize {
    Q::S_BYTES + Q::GROUP * (q_bytes(Q::BITS) + h_bytes(Q::BITS))
}

/// Scales, and the 8 registers, of block `b` of the tile at `w`.
///
/// # Safety
/// The features of `V`; the tile has more than `b` blocks.
#[inline(always)]
pub(crate) unsafe fn block<V: Lanes, Q: Quant>(w: *const u8, b: usize) -> (Scales<V>, [V::B; 8]) {
    // SAFETY: parts of the record of block b.
    unsafe {
        let (q_bytes, h_bytes) = (q_bytes(Q::BITS), h_bytes(Q::BITS));
        let s = w.add(b / Q::GROUP * record::<Q>());
        let (sub, q) = (b % Q::GROUP, s.add(Q::S_BYTES));
        let h = q.add(Q::GROUP * q_bytes + sub * h_bytes);
        (Q::scales::<V>(s, sub), unpack::<V, Q>(q.add(sub * q_bytes), h))
    }
}

/// The block at `q` (and its high bits at `h`) as 8 registers: register j has columns 4j..4j+4.
///
/// # Safety
/// The features of `V`; a block at `q` and `h`.
#[inline(always)]
unsafe fn unpack<V: Lanes, Q: Quant>(q: *const u8, h: *const u8) -> [V::B; 8] {
    // SAFETY: the caller's promise: units 0..8 (bytes) or 0..4 (nibbles), masks 0..8 or units 0..2.
    unsafe {
        if Q::BITS == 8 {
            return [
                V::load_b(q),
                V::load_b(q.add(64)),
                V::load_b(q.add(128)),
                V::load_b(q.add(192)),
                V::load_b(q.add(256)),
                V::load_b(q.add(320)),
                V::load_b(q.add(384)),
                V::load_b(q.add(448)),
            ];
        }
        let u = [V::load_b(q), V::load_b(q.add(64)), V::load_b(q.add(128)), V::load_b(q.add(192))];
        let mut w = [
            V::low4(u[0]),
            V::low4(u[1]),
            V::low4(u[2]),
            V::low4(u[3]),
            V::high4(u[0]),
            V::high4(u[1]),
            V::high4(u[2]),
            V::high4(u[3]),
        ];
        if let Some(levels) = &Q::LEVELS {
            for w in &mut w {
                *w = V::pick16(*w, levels);
            }
        }
        if Q::BITS == 5 {
            let masks = h.cast::<u64>();
            for (j, w) in w.iter_mut().enumerate() {
                *w = V::bit4(*w, masks.add(j).read_unaligned());
            }
        }
        if Q::BITS == 6 {
            for v in 0..2 {
                let bits = V::load_b(h.add(64 * v));
                w[4 * v] = V::bits45::<0>(w[4 * v], bits);
                w[4 * v + 1] = V::bits45::<1>(w[4 * v + 1], bits);
                w[4 * v + 2] = V::bits45::<2>(w[4 * v + 2], bits);
                w[4 * v + 3] = V::bits45::<3>(w[4 * v + 3], bits);
            }
        }
        w
    }
}

pub(crate) fn word(bytes: &[u8], i: usize) -> u32 {
    u32::from_le_bytes([bytes[4 * i], bytes[4 * i + 1], bytes[4 * i + 2], bytes[4 * i + 3]])
}

pub(crate) fn put_word(plane: &mut [u8], unit: usize, row: usize, value: u32) {
    let at = unit * 64 + row * 4;
    plane[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

/// A 16-bit scale of `row` in column `index` of a record (columns of 16 halves).
pub(crate) fn put_half(record: &mut [u8], index: usize, row: usize, half: &[u8]) {
    let at = index * 32 + row * 2;
    record[at..at + 2].copy_from_slice(&half[..2]);
}

const NIBBLES: u32 = 0x0f0f_0f0f;

/// Nibbles of one 32-block whose low and high nibbles already are k and k + 16.
pub(crate) fn pack_nibbles(bytes: &[u8], row: usize, q: &mut [u8]) {
    for unit in 0..4 {
        put_word(q, unit, row, word(bytes, unit));
    }
}

/// Fifth bits from a word whose bit k belongs to column k.
fn pack_fifth(bits: u32, row: usize, h: &mut [u8]) {
    for j in 0..8 {
        let four = (bits >> (4 * j)) as u8 & 15;
        h[8 * j + row / 2] |= four << (4 * (row % 2));
    }
}

/// Bit 0 of the four bytes of `x` side by side.
fn gather_bits(x: u32) -> u32 {
    (x & 0x0101_0101).wrapping_mul(0x0102_0408) >> 24 & 15
}

/// The 6-bit scales and minimums of Q4_K and Q5_K as bytes: record = d, dmin, 8 × scales, 8 × minimums.
fn pack_k_scales(d_dmin: &[u8], six: &[u8], row: usize, s: &mut [u8]) {
    put_half(s, 0, row, d_dmin);
    put_half(s, 1, row, &d_dmin[2..]);
    for j in 0..8 {
        let (scale, min) = match j {
            0..4 => (six[j] & 63, six[j + 4] & 63),
            _ => (six[j + 4] & 15 | six[j - 4] >> 6 << 4, six[j + 4] >> 4 | six[j] >> 6 << 4),
        };
        s[64 + 16 * j + row] = scale;
        s[192 + 16 * j + row] = min;
    }
}

/// # Safety
/// The features of `V`; `s` is a record of `pack_k_scales`, `sub < 8`.
#[inline(always)]
unsafe fn k_scales<V: Lanes>(s: *const u8, sub: usize) -> Scales<V> {
    // SAFETY: the record has 320 bytes.
    unsafe {
        let d = V::load_f16(s.cast());
        let dmin = V::load_f16(s.add(32).cast());
        let d = V::mul(d, V::load_u8(s.add(64 + 16 * sub)));
        let min = V::mul(dmin, V::load_u8(s.add(192 + 16 * sub)));
        Scales { d, d1: d, m: V::sub(V::splat(0.0), min) }
    }
}

/// One scale for all columns of a block, and no minimum.
///
/// # Safety
/// The features of `V`.
#[inline(always)]
pub(crate) unsafe fn plain_scale<V: Lanes>(d: V::F) -> Scales<V> {
    // SAFETY: the caller's promise.
    Scales { d, d1: d, m: unsafe { V::splat(0.0) } }
}

/// Scales of Q3_K and Q6_K: d, then 16 × signed scales, two for each block.
///
/// # Safety
/// The features of `V`; `s` is such a record, `sub < 8`.
#[inline(always)]
pub(crate) unsafe fn half_scales<V: Lanes>(s: *const u8, sub: usize) -> Scales<V> {
    // SAFETY: 32 bytes of d, then 16 bytes for each half block.
    unsafe {
        let d = V::load_f16(s.cast());
        let at = s.add(32 + 32 * sub);
        Scales { d: V::mul(d, V::load_i8(at)), d1: V::mul(d, V::load_i8(at.add(16))), m: V::splat(0.0) }
    }
}

/// # Safety
/// The features of `V`; `s` holds 16 halves.
#[inline(always)]
pub(crate) unsafe fn one_scale<V: Lanes>(s: *const u8) -> Scales<V> {
    // SAFETY: the caller's promise.
    unsafe { plain_scale::<V>(V::load_f16(s.cast())) }
}

/// # Safety
/// The features of `V`; `s` holds 32 halves.
#[inline(always)]
unsafe fn scale_and_min<V: Lanes>(s: *const u8) -> Scales<V> {
    // SAFETY: the caller's promise.
    unsafe {
        let d = V::load_f16(s.cast());
        Scales { d, d1: d, m: V::load_f16(s.add(32).cast()) }
    }
}

/// d·(q − 8), 4 bits.
pub(crate) struct Q4_0;
impl Quant for Q4_0 {
    const BITS: usize = 4;
    const OFFSET: f32 = 8.0;
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

/// d·q + m, 4 bits.
pub(crate) struct Q4_1;
impl Quant for Q4_1 {
    const BITS: usize = 4;
    const OFFSET: f32 = 0.0;
    const HAS_MIN: bool = true;
    const S_BYTES: usize = 64;
    const FILE_BYTES: usize = 20;
    #[inline(always)]
    unsafe fn scales<V: Lanes>(s: *const u8, _: usize) -> Scales<V> {
        // SAFETY: the record holds 32 halves.
        unsafe { scale_and_min::<V>(s) }
    }
    fn pack(block: &[u8], row: usize, q: &mut [u8], _: &mut [u8], s: &mut [u8]) {
        put_half(s, 0, row, block);
        put_half(s, 1, row, &block[2..]);
        pack_nibbles(&block[4..], row, q);
    }
}

/// d·(q − 16), 5 bits.
pub(crate) struct Q5_0;
impl Quant for Q5_0 {
    const BITS: usize = 5;
    const OFFSET: f32 = 16.0;
    const S_BYTES: usize = 32;
    const FILE_BYTES: usize = 22;
    #[inline(always)]
    unsafe fn scales<V: Lanes>(s: *const u8, _: usize) -> Scales<V> {
        // SAFETY: the record holds 16 halves.
        unsafe { one_scale::<V>(s) }
    }
    fn pack(block: &[u8], row: usize, q: &mut [u8], h: &mut [u8], s: &mut [u8]) {
        put_half(s, 0, row, block);
        pack_fifth(word(&block[2..], 0), row, h);
        pack_nibbles(&block[6..], row, q);
    }
}

/// d·q + m, 5 bits.
pub(crate) struct Q5_1;
impl Quant for Q5_1 {
    const BITS: usize = 5;
    const OFFSET: f32 = 0.0;
    const HAS_MIN: bool = true;
    const S_BYTES: usize = 64;
    const FILE_BYTES: usize = 24;
    #[inline(always)]
    unsafe fn scales<V: Lanes>(s: *const u8, _: usize) -> Scales<V> {
        // SAFETY: the record holds 32 halves.
        unsafe { scale_and_min::<V>(s) }
    }
    fn pack(block: &[u8], row: usize, q: &mut [u8], h: &mut [u8], s: &mut [u8]) {
        put_half(s, 0, row, block);
        put_half(s, 1, row, &block[2..]);
        pack_fifth(word(&block[4..], 0), row, h);
        pack_nibbles(&block[8..], row, q);
    }
}

/// d·q with signed bytes.
pub(crate) struct Q8_0;
impl Quant for Q8_0 {
    const BITS: usize = 8;
    const OFFSET: f32 = 128.0;
    const S_BYTES: usize = 32;
    const FILE_BYTES: usize = 34;
    #[inline(always)]
    unsafe fn scales<V: Lanes>(s: *const u8, _: usize) -> Scales<V> {
        // SAFETY: the record holds 16 halves.
        unsafe { one_scale::<V>(s) }
    }
    fn pack(block: &[u8], row: usize, q: &mut [u8], _: &mut [u8], s: &mut [u8]) {
        put_half(s, 0, row, block);
        for unit in 0..8 {
            put_word(q, unit, row, word(&block[2..], unit) ^ 0x8080_8080);
        }
    }
}

/// (d·scale)·q − dmin·min, 4 bits, 8 blocks of 32.
pub(crate) struct Q4K;
impl Quant for Q4K {
    const BITS: usize = 4;
    const OFFSET: f32 = 0.0;
    const HAS_MIN: bool = true;
    const GROUP: usize = 8;
    const S_BYTES: usize = 320;
    const FILE_BYTES: usize = 144;
    #[inline(always)]
    unsafe fn scales<V: Lanes>(s: *const u8, sub: usize) -> Scales<V> {
        // SAFETY: a record of `pack_k_scales`.
        unsafe { k_scales::<V>(s, sub) }
    }
    fn pack(block: &[u8], row: usize, q: &mut [u8], _: &mut [u8], s: &mut [u8]) {
        pack_k_scales(block, &block[4..16], row, s);
        pack_k_nibbles(&block[16..144], row, q);
    }
}

/// Nibbles of Q4_K and Q5_K: 32 bytes hold one block in the low, the next in the high nibbles.
fn pack_k_nibbles(bytes: &[u8], row: usize, q: &mut [u8]) {
    for pair in 0..4 {
        let bytes = &bytes[32 * pair..][..32];
        for unit in 0..4 {
            let (a, b) = (word(bytes, unit), word(bytes, unit + 4));
            let low = a & NIBBLES | (b & NIBBLES) << 4;
            let high = a >> 4 & NIBBLES | b & !NIBBLES;
            put_word(q, 8 * pair + unit, row, low);
            put_word(q, 8 * pair + 4 + unit, row, high);
        }
    }
}

/// (d·scale)·q − dmin·min, 5 bits, 8 blocks of 32.
pub(crate) struct Q5K;
impl Quant for Q5K {
    const BITS: usize = 5;
    const OFFSET: f32 = 0.0;
    const HAS_MIN: bool = true;
    const GROUP: usize = 8;
    const S_BYTES: usize = 320;
    const FILE_BYTES: usize = 176;
    #[inline(always)]
    unsafe fn scales<V: Lanes>(s: *const u8, sub: usize) -> Scales<V> {
        // SAFETY: a record of `pack_k_scales`.
        unsafe { k_scales::<V>(s, sub) }
    }
    fn pack(block: &[u8], row: usize, q: &mut [u8], h: &mut [u8], s: &mut [u8]) {
        pack_k_scales(block, &block[4..16], row, s);
        // Bit b of high byte l belongs to column l of block b.
        for b in 0..8 {
            let bits = (0..8).fold(0, |bits, j| bits | gather_bits(word(&block[16..48], j) >> b) << (4 * j));
            pack_fifth(bits, row, &mut h[64 * b..64 * b + 64]);
        }
        pack_k_nibbles(&block[48..176], row, q);
    }
}

/// (d·scale)·(q − 32), 6 bits, 16 scales of 16 columns. Record: d, then 16 × signed scales.
pub(crate) struct Q6K;
impl Quant for Q6K {
    const BITS: usize = 6;
    const OFFSET: f32 = 32.0;
    const HALVES: bool = true;
    const GROUP: usize = 8;
    const S_BYTES: usize = 288;
    const FILE_BYTES: usize = 210;
    #[inline(always)]
    unsafe fn scales<V: Lanes>(s: *const u8, sub: usize) -> Scales<V> {
        // SAFETY: such a record.
        unsafe { half_scales::<V>(s, sub) }
    }
    fn pack(block: &[u8], row: usize, q: &mut [u8], h: &mut [u8], s: &mut [u8]) {
        put_half(s, 0, row, &block[208..]);
        for j in 0..16 {
            s[32 + 16 * j + row] = block[192 + j];
        }
        for b in 0..8 {
            // Block b: nibbles of 32 bytes (low for the first two blocks of a half), 2-bit field b % 4.
            let (half, quarter) = (b / 4, b % 4);
            let low = &block[64 * half + 32 * (quarter % 2)..][..32];
            let high = &block[128 + 32 * half..][..32];
            let shift = 4 * (quarter / 2);
            for unit in 0..4 {
                let (x, y) = (word(low, unit) >> shift, word(low, unit + 4) >> shift);
                put_word(q, 4 * b + unit, row, x & NIBBLES | (y & NIBBLES) << 4);
            }
            for v in 0..2 {
                let fields = (0..4).fold(0, |bits, f| {
                    let two = word(high, 4 * v + f) >> (2 * quarter) & 0x0303_0303;
                    bits | two << (2 * f)
                });
                put_word(h, 2 * b + v, row, fields);
            }
        }
    }
}

/// A float format at compile time: plane of 16 rows for each column.
pub(crate) trait Float: 'static {
    /// Bytes of a weight.
    const BYTES: usize;
    /// 16 weights of one column.
    ///
    /// # Safety
    /// The features of `V`; `p` points to 16 weights.
    unsafe fn load<V: Lanes>(p: *const u8) -> V::F;
}

macro_rules! float_format {
    ($(#[$doc:meta])* $name:ident, $bytes:literal, $load:ident) => {
        $(#[$doc])*
        pub(crate) struct $name;
        impl Float for $name {
            const BYTES: usize = $bytes;
            #[inline(always)]
            unsafe fn load<V: Lanes>(p: *const u8) -> V::F {
                // SAFETY: the caller's promise.
                unsafe { V::$load(p.cast()) }
            }
        }
    };
}
float_format!(
    /// 32-bit floats.
    F32, 4, load
);
float_format!(
    /// IEEE halves.
    F16, 2, load_f16
);
float_format!(
    /// The upper half of an f32.
    Bf16, 2, load_bf16
);
