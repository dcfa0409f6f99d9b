//! Synthetic weights: the bytes of any block of any tensor from a seed, the same on every device.
//!
//! ```text
//! Weight ─of─► Recipe { fields }      (Recipe, seed, block) ─fill─► the block's bytes in the file's layout
//! ```
//!
//! For measuring speed without a file, and for tests. A matrix gets mean 0 and variance 1 / `cols`, so that numbers
//! keep their size through a model; no weight is zero, denormal or NaN. Norm weights lie around 1, biases around ± 0.01.
//!
//! # Definition
//! All arithmetic is on U32 and wraps, so that a kernel can do the same. With `mix` a fixed bijection:
//!
//! ```text
//! key(block)      = mix(mix(block ^ low half of seed) ^ high half of seed)
//! word(block, at) = mix(key(block) + (at / 4 + 1) * 0x9e3779b9)     for the word at byte `at` of the block
//! pick(block)     = key(block) & 3                                  which of four scales the block has
//! ```
//!
//! Blocks are device blocks ([`QuantFormat::device_block`]: 32 elements for F32, F16 and BF16), counted through the
//! tensor, and `at` is an offset in the file's layout: each plane of a format holds whole words of this definition.
//! What a word becomes is told by the [`Fill`] of its [`Field`].

use crate::graph::Weight;
use crate::quant::{QuantFormat, grids};
use half::{bf16, f16};

/// A part of a block and what fills it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Field {
    /// First byte in the device block, file layout. Words of the field start here: not always a multiple of 4.
    pub offset: u32,
    /// Bytes.
    pub bytes: u32,
    /// Content.
    pub fill: Fill,
}

/// How words become content; `w` is the word of the definition at the same place.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Fill {
    /// `w & !clear | set`: quants. Setting every quant's lowest bit makes symmetric formats free of zeros, with mean 0.
    Quants {
        /// Bits set.
        set: u32,
        /// Bits cleared.
        clear: u32,
    },
    /// Two bytes: the half `halves[pick]`.
    Scale {
        /// Choices.
        halves: [u16; 4],
    },
    /// The same bits everywhere.
    Constant {
        /// The word; of shorter fields its low bytes.
        word: u32,
    },
    /// One byte: an exponent, `base`, and one more in `up` of 256 blocks.
    Exponent {
        /// Smaller choice.
        base: u8,
        /// Blocks of 256 that take the larger one.
        up: u32,
    },
    /// Four bytes: scale (low) and minimum (high), `pairs[pick]`.
    ScaleMin {
        /// Choices.
        pairs: [u32; 4],
    },
    /// Twelve bytes of Q4_K and Q5_K: 6-bit scales, and minima equal to them. With `w0`, `w1` the first two words and
    /// `s(w) = (w & 0x03030303) + 0x02020202`, the words are `s(w0)`, `s(w0)`, `s(w1) * 0x11`.
    PackedScales,
    /// Signed bytes from 2 to 5: `(w & 0x03030303) + 0x02020202`.
    ByteScales,
    /// `w & sign | base + (w & mask)`: one float, or two halves, of a magnitude uniform in its bits.
    Floats {
        /// Sign bits, or 0 for positive values.
        sign: u32,
        /// Smallest magnitude.
        base: u32,
        /// Bits added to it.
        mask: u32,
    },
}

/// How a tensor's blocks are filled; the same for all tensors of one format, width and role.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Recipe {
    /// Bytes of a device block in the file's layout.
    pub block_bytes: u32,
    /// Parts, in order, covering the block.
    pub fields: Vec<Field>,
}

/// A bijection on words in which every input bit reaches every output bit.
pub const fn mix(mut x: u32) -> u32 {
    x = (x ^ (x >> 16)).wrapping_mul(0x7feb_352d);
    x = (x ^ (x >> 15)).wrapping_mul(0x846c_a68b);
    x ^ (x >> 16)
}

/// Key of a block.
pub const fn key(seed: u64, block: u32) -> u32 {
    mix(mix(block ^ seed as u32) ^ (seed >> 32) as u32)
}

/// The word at byte `at` of the block with this key.
pub const fn word(key: u32, at: u32) -> u32 {
    mix(key.wrapping_add((at / 4 + 1).wrapping_mul(0x9e37_79b9)))
}

impl Recipe {
    /// The recipe of a weight: vectors named `….bias` are biases, other single rows of F32 are norms, the rest matrices.
    pub fn of(weight: &Weight) -> Recipe {
        if weight.rows > 1 || weight.format.ggml_type != crate::quant::F32.ggml_type {
            return Recipe::matrix(weight.format, weight.cols);
        }
        let fill = if weight.name.ends_with("bias") {
            Fill::Floats { sign: 1 << 31, base: (1.0_f32 / 128.0).to_bits(), mask: 0x007f_ffff }
        } else {
            // From 0.9375 to 1.125.
            Fill::Floats { sign: 0, base: 0.9375_f32.to_bits(), mask: 0x001f_ffff }
        };
        Recipe::new(weight.format, vec![Field { offset: 0, bytes: 128, fill }])
    }

    /// The recipe of a matrix with rows of `fan_in` weights: mean 0, variance 1 / `fan_in`.
    pub fn matrix(format: &QuantFormat, fan_in: u32) -> Recipe {
        let std = 1.0 / (fan_in.max(1) as f64).sqrt();
        // Root mean square of all levels about their middle.
        let even = |levels: f64| ((levels * levels - 1.0) / 12.0).sqrt();
        // The same of the sub-block scales 2, 3, 4, 5.
        let sub = 13.5_f64.sqrt();
        let scale = |offset, rms: f64| Field { offset, bytes: 2, fill: Fill::Scale { halves: halves(std / rms) } };
        let scale_min = |rms: f64, middle: f64| {
            let pair = |d: u16| d as u32 | (f16::from_f64(f16::from_bits(d).to_f64() * middle).to_bits() as u32) << 16;
            Field { offset: 0, bytes: 4, fill: Fill::ScaleMin { pairs: halves(std / rms).map(pair) } }
        };
        let packed = Field { offset: 4, bytes: 12, fill: Fill::PackedScales };
        let fields = match format.name {
            "F32" => vec![floats(23, std, |bits| f32::from_bits(bits) as f64)],
            "F16" => vec![floats(10, std, |bits| f16::from_bits(bits as u16).to_f64())],
            "BF16" => vec![floats(7, std, |bits| bf16::from_bits(bits as u16).to_f64())],
            "Q4_0" => vec![scale(0, odd(8.0)), quants(2, 16, 0x1111_1111)],
            "Q4_1" => vec![scale_min(even(16.0), -7.5), quants(4, 16, 0)],
            "Q5_0" => vec![scale(0, odd(16.0)), quants(2, 4, 0), quants(6, 16, 0x1111_1111)],
            "Q5_1" => vec![scale_min(even(32.0), -15.5), quants(4, 4, 0), quants(8, 16, 0)],
            "Q8_0" => vec![scale(0, odd(128.0)), quants(2, 32, 0x0101_0101)],
            "Q4_K" => vec![scale_min(sub * even(16.0), 7.5), packed, quants(16, 128, 0)],
            "Q5_K" => vec![scale_min(sub * even(32.0), 15.5), packed, quants(16, 32, 0), quants(48, 128, 0)],
            // Odd scales and odd levels are never zero.
            "Q3_K" => vec![
                quants(0, 32, 0),
                quants(32, 64, 0x5555_5555),
                quants(96, 8, 0x1111_1111),
                quants(104, 4, 0),
                scale(108, odd(32.0) * odd(4.0)),
            ],
            "Q6_K" => vec![
                quants(0, 128, 0x1111_1111),
                quants(128, 64, 0),
                Field { offset: 192, bytes: 16, fill: Fill::ByteScales },
                scale(208, sub * odd(32.0)),
            ],
            other => code_book(other, std),
        };
        Recipe::new(format, fields)
    }

    fn new(format: &QuantFormat, fields: Vec<Field>) -> Recipe {
        Recipe { block_bytes: format.device_block_bytes(), fields }
    }

    /// Fills `out` with the bytes of the tensor from device block `first` on; the last block may be cut short.
    pub fn fill(&self, seed: u64, first: u32, out: &mut [u8]) {
        let size = self.block_bytes as usize;
        for (i, part) in out.chunks_mut(size).enumerate() {
            let key = key(seed, first.wrapping_add(i as u32));
            if part.len() == size {
                self.fill_block(key, part);
            } else {
                let mut whole = vec![0; size];
                self.fill_block(key, &mut whole);
                part.copy_from_slice(&whole[..part.len()]);
            }
        }
    }

    /// Fills one device block, of [`Recipe::block_bytes`], by its key.
    fn fill_block(&self, key: u32, out: &mut [u8]) {
        for field in &self.fields {
            let (offset, bytes) = (field.offset as usize, field.bytes as usize);
            let out = &mut out[offset..offset + bytes];
            if bytes < 4 {
                out.copy_from_slice(&field.word(key, 0).to_le_bytes()[..bytes]);
                continue;
            }
            for (i, out) in out.chunks_exact_mut(4).enumerate() {
                out.copy_from_slice(&field.word(key, i as u32).to_le_bytes());
            }
        }
    }
}

impl Field {
    /// Word `i` of the field in the block with this key. (A field of one or two bytes is no whole word: zero-extended.)
    pub fn word(&self, key: u32, i: u32) -> u32 {
        let w = |i: u32| word(key, self.offset + 4 * i);
        let sub = |w: u32| (w & 0x0303_0303) + 0x0202_0202;
        match self.fill {
            Fill::Quants { set, clear } => w(i) & !clear | set,
            Fill::Scale { halves } => halves[(key & 3) as usize] as u32,
            Fill::Constant { word } => word,
            Fill::Exponent { base, up } => base as u32 + (key >> 24 < up) as u32,
            Fill::ScaleMin { pairs } => pairs[(key & 3) as usize],
            Fill::PackedScales if i < 2 => sub(w(0)),
            Fill::PackedScales => sub(w(1)) * 0x11,
            Fill::ByteScales => sub(w(i)),
            Fill::Floats { sign, base, mask } => w(i) & sign | (base + (w(i) & mask)),
        }
    }
}

fn quants(offset: u32, bytes: u32, set: u32) -> Field {
    Field { offset, bytes, fill: Fill::Quants { set, clear: 0 } }
}

fn constant(offset: u32, bytes: u32, word: u32) -> Field {
    Field { offset, bytes, fill: Fill::Constant { word } }
}

/// Root mean square of the odd numbers below `half`, of both signs.
fn odd(half: f64) -> f64 {
    ((half * half - 1.0) / 3.0).sqrt()
}

/// The fields of a format whose levels come out of a table.
fn code_book(format: &str, std: f64) -> Vec<Field> {
    let scale = |halves| Field { offset: 0, bytes: 2, fill: Fill::Scale { halves } };
    // Formats whose levels have a mean: half of the blocks with a negative scale.
    let both_signs = |rms: f64| {
        let [a, b, c, d] = halves(std / rms);
        scale([a, b | 1 << 15, c | 1 << 15, d])
    };
    // Sub-blocks have the smallest scales that there are: larger ones would make the half denormal.
    match format {
        "IQ3_XXS" => vec![
            scale(halves(std / grids::rms(&grids::IQ3_XXS, grids::IQ3_XXS_LEVELS) * 4.0)),
            quants(2, 64, 0),
            Field { offset: 66, bytes: 32, fill: Fill::Quants { set: 0, clear: 0xf000_0000 } },
        ],
        "IQ3_S" => vec![
            scale(halves(std / grids::rms(&grids::IQ3_S, grids::IQ3_S_LEVELS))),
            quants(2, 64, 0),
            quants(66, 8, 0),
            quants(74, 32, 0),
            constant(106, 4, 0),
        ],
        "IQ4_NL" => vec![both_signs(IQ4_RMS), quants(2, 16, 0)],
        // 33 - 32.
        "IQ4_XS" => vec![both_signs(IQ4_RMS), constant(2, 2, 0xaaaa), constant(4, 4, 0x1111_1111), quants(8, 128, 0)],
        "MXFP4" => {
            vec![Field { offset: 0, bytes: 1, fill: exponent(std / E2M1_ODD_RMS) }, quants(1, 16, 0x1111_1111)]
        }
        other => unreachable!("{other}: a format without a recipe (every row of FORMATS is tested to have one)"),
    }
}

/// Root mean square of the levels of IQ4_NL and IQ4_XS.
const IQ4_RMS: f64 = 67.438_861;

/// Root mean square of the levels of MXFP4 with the lowest bit set: 1, 3, 6, 12.
const E2M1_ODD_RMS: f64 = 6.892_024;

/// Powers of two `2^(e - 128)` whose root mean square is `target`.
fn exponent(target: f64) -> Fill {
    let log2 = target.log2().floor();
    // Mean square: 4^log2 · (1 + 3 · up / 256).
    let up = ((target / 2f64.powf(log2)).powi(2) - 1.0) / 3.0 * 256.0;
    Fill::Exponent { base: (log2 + 128.0) as u8, up: up.round() as u32 }
}

/// Four neighbouring halves with 6 or 7 significant bits whose root mean square is about `target`. So few bits keep
/// the minima, 7.5 or 15.5 times as large, exact. Never denormal: from 65536 columns on, Q8_0 gets larger weights.
fn halves(target: f64) -> [u16; 4] {
    let target = target.max(34.0 * 2f64.powi(-19));
    let step = 2f64.powi(target.log2().floor() as i32 - 5);
    let first = (target / step - 1.5).round();
    [0.0, 1.0, 2.0, 3.0].map(|i| f16::from_f64((first + i) * step).to_bits())
}

/// Both signs and one octave of magnitudes, uniform in their bits, where the octave starts such that the root mean
/// square is `std`. `mantissa`: bits of it, 23 for single floats, fewer for two halves in a word.
fn floats(mantissa: u32, std: f64, value: fn(u32) -> f64) -> Field {
    let octave = 1_u32 << mantissa;
    let single = mantissa == 23;
    let mean_square = |base: u32| {
        let samples = (0..64).map(|i| value(base + octave / 128 * (2 * i + 1)));
        samples.map(|x| x * x).sum::<f64>() / 64.0
    };
    let last = if single { 0x7e80_0000 } else { 0x7700 };
    let base = partition_point(octave, last, |base| mean_square(base) < std * std);
    let mask = octave - 1;
    if single {
        return Field { offset: 0, bytes: 128, fill: Fill::Floats { sign: 1 << 31, base, mask } };
    }
    let twice = |half: u32| half * 0x0001_0001;
    let fill = Fill::Floats { sign: twice(1 << 15), base: twice(base), mask: twice(mask) };
    Field { offset: 0, bytes: 64, fill }
}

/// The first number from `low` up, at most `high`, that is not `below`.
fn partition_point(mut low: u32, mut high: u32, below: impl Fn(u32) -> bool) -> u32 {
    while low < high {
        let middle = low + (high - low) / 2;
        if below(middle) { low = middle + 1 } else { high = middle }
    }
    low
}
