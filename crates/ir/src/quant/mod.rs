//! Weight formats: one file and one row of [`FORMATS`] each.
//!
//! ```text
//! file bytes ──decode (plain Rust, exact)──────────────► f32      the definition
//!     └─repack into planes─► device bytes ──emit_unit──► kernel IR of the same numbers
//! ```
//!
//! A *block* is the unit of the file format. On a GPU a tensor is stored as *planes*: plane `p` holds the bytes
//! `planes[p].offset .. + bytes` of block 0, then of block 1, …, each plane starting at a multiple of 16 bytes.
//! Formats whose blocks are a multiple of 16 bytes keep the file's layout as a single plane; the others get planes
//! whose quants are 16-byte aligned, so that every format is read by 128-bit loads. Planes hold the same bytes in
//! another order: nothing is lost, and sizes agree up to the padding between planes.
//!
//! A *unit* is 32 weights, the work of one lane in one step: two runs of 16 consecutive columns, which is what the
//! nibble order of the ggml formats gives for one 16-byte load.

mod bf16;
mod f16;
mod f32;
pub mod grids;
mod iq3_s;
mod iq3_xxs;
mod iq4_nl;
mod iq4_xs;
pub mod levels;
mod mxfp4;
mod q3_k;
mod q4_0;
mod q4_1;
mod q4_k;
mod q5_0;
mod q5_1;
mod q5_k;
mod q6_k;
mod q8_0;
mod table;
pub use table::Table;

use crate::kernel::{Builder, Scalar, Type, Val};
use std::cell::RefCell;

/// Weights per unit.
pub const UNIT: u32 = 32;

/// Bytes `offset .. offset + bytes` of every block, stored together.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Plane {
    /// First byte within the file's block (within 32 elements for F32, F16 and BF16).
    pub offset: u32,
    /// Bytes per block.
    pub bytes: u32,
}

/// One weight format.
pub struct QuantFormat {
    /// Name as llama.cpp writes it, e.g. `Q4_K`.
    pub name: &'static str,
    /// ggml type id in the file.
    pub ggml_type: u32,
    /// Weights per block of the file.
    pub block_elems: u32,
    /// Bytes per block of the file.
    pub block_bytes: u32,
    /// Decodes one block: `block_bytes` bytes to `block_elems` values, bit-exact to ggml's own decoder.
    pub decode_block: fn(&[u8], &mut [f32]),
    /// Layout on a device that runs kernels. Describes blocks of [`QuantFormat::device_block`] weights.
    pub planes: &'static [Plane],
    /// What decoding looks up: kernels fill these in workgroup memory before they read the first unit.
    pub tables: &'static [&'static Table],
    /// Emits the loads and unpacking of one unit.
    pub emit_unit: for<'b> fn(&Unit<'b>) -> [Run<'b>; 2],
    /// Emits two units that share loads or scales, where that is cheaper than one by one; [`Unit::sub`] then counts
    /// pairs. Runs 0 and 2 are those of the first unit (with [`Unit::turn`] 0), 1 and 3 of the second.
    pub emit_pair: Option<for<'b> fn(&Unit<'b>) -> [Run<'b>; 4]>,
}

/// All formats with kernels. A new format is a file and a row here.
pub static FORMATS: &[&QuantFormat] = &[
    &f32::FORMAT,
    &f16::FORMAT,
    &bf16::FORMAT,
    &q4_0::FORMAT,
    &q4_1::FORMAT,
    &q5_0::FORMAT,
    &q5_1::FORMAT,
    &q8_0::FORMAT,
    &q3_k::FORMAT,
    &q4_k::FORMAT,
    &q5_k::FORMAT,
    &q6_k::FORMAT,
    &iq3_xxs::FORMAT,
    &iq3_s::FORMAT,
    &iq4_nl::FORMAT,
    &iq4_xs::FORMAT,
    &mxfp4::FORMAT,
];

/// 32-bit floats, the format of norms, biases and tables.
pub static F32: &QuantFormat = &f32::FORMAT;
/// 16-bit floats.
pub static F16: &QuantFormat = &f16::FORMAT;

/// The format of a ggml type id, if Zinc has kernels for it.
pub fn by_ggml_type(id: u32) -> Option<&'static QuantFormat> {
    FORMATS.iter().copied().find(|f| f.ggml_type == id)
}

/// The format of a name such as `q4_k`, in any case.
pub fn by_name(name: &str) -> Option<&'static QuantFormat> {
    FORMATS.iter().copied().find(|f| f.name.eq_ignore_ascii_case(name))
}

impl std::fmt::Debug for QuantFormat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

impl PartialEq for QuantFormat {
    fn eq(&self, other: &QuantFormat) -> bool {
        self.ggml_type == other.ggml_type
    }
}
impl Eq for QuantFormat {}

impl QuantFormat {
    /// Weights per block of the device layout: the file's block, or 32 for formats without blocks.
    pub const fn device_block(&self) -> u32 {
        if self.block_elems < UNIT { UNIT } else { self.block_elems }
    }

    /// Bytes of one device block in the file.
    pub const fn device_block_bytes(&self) -> u32 {
        self.device_block() / self.block_elems * self.block_bytes
    }

    /// True when the device layout is the file's.
    pub fn keeps_file_layout(&self) -> bool {
        self.planes.len() == 1
    }

    /// Start of each plane and total bytes of a tensor of `blocks` device blocks.
    pub fn plane_offsets(&self, blocks: u64) -> (Vec<u64>, u64) {
        let mut at = 0;
        let starts = self.planes.iter().map(|p| {
            let start = at;
            at += (blocks * p.bytes as u64).next_multiple_of(16);
            start
        });
        (starts.collect(), at)
    }

    /// Decodes `bytes` (whole blocks) into `out`.
    pub fn decode(&self, bytes: &[u8], out: &mut [f32]) {
        let blocks = bytes.chunks_exact(self.block_bytes as usize);
        for (block, values) in blocks.zip(out.chunks_exact_mut(self.block_elems as usize)) {
            (self.decode_block)(block, values);
        }
    }

    /// Rearranges a tensor from the file's layout into planes: what repacking kernels do on a GPU, in plain Rust.
    pub fn repack(&self, bytes: &[u8]) -> Vec<u8> {
        let block_bytes = self.device_block_bytes() as usize;
        let blocks = bytes.len() / block_bytes;
        let (starts, total) = self.plane_offsets(blocks as u64);
        let mut out = vec![0; total as usize];
        for (plane, start) in self.planes.iter().zip(starts) {
            let (from, len) = (plane.offset as usize, plane.bytes as usize);
            for (i, block) in bytes.chunks_exact(block_bytes).enumerate() {
                let to = start as usize + i * len;
                out[to..to + len].copy_from_slice(&block[from..from + len]);
            }
        }
        out
    }
}

/// Where one unit is: what [`QuantFormat::emit_unit`] reads from.
pub struct Unit<'b> {
    /// The kernel being built.
    pub b: &'b Builder,
    /// U64 address of the tensor.
    pub base: Val<'b>,
    /// Byte offset of each plane in the tensor; a tensor is below 4 GiB.
    pub planes: Vec<u32>,
    /// U32 index of the device block in the tensor.
    pub block: Val<'b>,
    /// U32 index of the unit (or pair of units) in the block.
    pub sub: Val<'b>,
    /// U32 0 or 1: which of two pieces 16 bytes apart to read first. Eight neighbouring lanes, four with each order,
    /// then touch eight different groups of memory banks where one order would touch four.
    pub turn: Val<'b>,
    /// Whether loads are emitted here, or were before.
    pub loads: Loads<'b>,
}

/// How a unit gets its bytes. Recording and replaying take apart what an emitter writes in one piece: a kernel can have
/// the loads of many units under way before it decodes the first.
pub enum Loads<'b> {
    /// Loads as the decoding asks for them.
    Direct,
    /// The same, and keeps what was loaded; nobody uses the decoding.
    Record(RefCell<Vec<Val<'b>>>),
    /// Takes what was recorded for the same unit, in the same order.
    Replay(RefCell<std::vec::IntoIter<Val<'b>>>),
}

impl<'b> Unit<'b> {
    /// Loads `ty` at byte `offset` + `imm` of this block's part of plane `plane`, whose blocks have `bytes`.
    pub fn load(&self, ty: Type, plane: usize, bytes: u32, offset: Val<'b>, imm: u32, align: u8) -> Val<'b> {
        if let Loads::Replay(recorded) = &self.loads {
            return recorded.borrow_mut().next().expect("as many loads as were recorded");
        }
        let at = self.block * bytes + offset;
        let value = self.b.load_at(ty, self.base, at, self.planes[plane] + imm, align, true);
        if let Loads::Record(list) = &self.loads {
            list.borrow_mut().push(value);
        }
        value
    }
    /// Loads 16 bytes; see [`Unit::load`].
    pub fn load16(&self, plane: usize, bytes: u32, offset: Val<'b>, imm: u32) -> [Val<'b>; 4] {
        let v = self.load(Type::U32X4, plane, bytes, offset, imm, 16);
        [0, 1, 2, 3].map(|i| v.lane(i))
    }
    /// Loads one half as F32.
    pub fn load_f16(&self, plane: usize, bytes: u32, imm: u32) -> Val<'b> {
        self.load(Type::F16, plane, bytes, self.b.u32(0), imm, 2).to_f32()
    }
}

/// Sixteen weights of consecutive columns.
pub struct Run<'b> {
    /// First column within the device block (U32).
    pub col: Val<'b>,
    /// The weights.
    pub weights: Weights<'b>,
}

/// Weights of a run, as far decoded as every use can share.
pub enum Weights<'b> {
    /// `scale · byte + bias`.
    Bytes {
        /// Sixteen bytes, little-endian in four U32.
        packed: [Val<'b>; 4],
        /// Bytes are signed; unsigned ones are below 128.
        signed: bool,
        /// The same, where the bytes are nibbles of others: a shorter way to halves.
        nibbles: Option<Nibbles<'b>>,
        /// F32.
        scale: Val<'b>,
        /// F32; none means 0.
        bias: Option<Val<'b>>,
    },
    /// Plain values, four F32×4.
    Floats([Val<'b>; 4]),
}

/// The low or the high nibbles of sixteen bytes.
#[derive(Clone, Copy)]
pub struct Nibbles<'b> {
    words: [Val<'b>; 4],
    high: bool,
}

impl<'b> Weights<'b> {
    /// `scale · nibble + bias` of the low or the high nibbles of these bytes.
    fn nibbles(words: [Val<'b>; 4], high: bool, scale: Val<'b>, bias: Val<'b>) -> Weights<'b> {
        let packed = words.map(|word| if high { word >> 4 } else { word } & 0x0f0f_0f0f);
        Weights::Bytes { packed, signed: false, nibbles: Some(Nibbles { words, high }), scale, bias: Some(bias) }
    }

    /// The integer parts (or the values, for `Floats`) as four F32×4, before scale and bias.
    pub fn levels(&self) -> [Val<'b>; 4] {
        match self {
            Weights::Floats(v) => *v,
            Weights::Bytes { packed, signed, .. } => packed.map(|word| {
                let byte = if *signed { Type::Vec(Scalar::I8, 4) } else { Type::Vec(Scalar::U8, 4) };
                word.bitcast(byte).to_f32()
            }),
        }
    }
    /// The weights as four F32×4.
    pub fn values(&self, b: &'b Builder) -> [Val<'b>; 4] {
        let levels = self.levels();
        match self {
            Weights::Floats(_) => levels,
            Weights::Bytes { scale, bias, .. } => levels.map(|q| match bias {
                Some(bias) => b.fma(q, scale.splat(4), bias.splat(4)),
                None => q * scale.splat(4),
            }),
        }
    }
}

impl<'b> Weights<'b> {
    /// The weights as halves, two to a word, eight to a piece of 16 bytes. Bytes become halves by way of the bits of
    /// 4 + byte / 256; 256 times the scale, and the bias, are rounded to halves before the one operation that applies both.
    /// So a scale is a normal half down to 2.4e-7: denormal ones would lose bits, or become 0 where a device flushes them.
    pub fn halves(&self, b: &'b Builder) -> [Val<'b>; 2] {
        let words: Vec<Val<'b>> = match self {
            Weights::Floats(quads) => quads.iter().flat_map(|q| words_of(q.to(Scalar::F16))).collect(),
            Weights::Bytes { .. } => {
                let in_order = |pairs: [Val<'b>; 2]| {
                    let [even, odd] = pairs.map(|pair| pair.bitcast(Type::U32));
                    [even & 0xffff | odd << 16, even >> 16 | odd & 0xffff_0000u32]
                };
                self.half_pairs(b).into_iter().flat_map(in_order).collect()
            }
        };
        [0, 4].map(|i| b.compose(&words[i..i + 4]))
    }

    /// The same, of each four weights in the order first, third, second, fourth: as they are decoded.
    pub fn paired_halves(&self, b: &'b Builder) -> [Val<'b>; 2] {
        let words: Vec<Val<'b>> =
            self.half_pairs(b).into_iter().flat_map(|pairs| pairs.map(|pair| pair.bitcast(Type::U32))).collect();
        [0, 4].map(|i| b.compose(&words[i..i + 4]))
    }

    /// The same as pairs of halves: of each four weights, the first and third, then the second and fourth.
    pub fn half_pairs(&self, b: &'b Builder) -> [[Val<'b>; 2]; 4] {
        match self {
            Weights::Floats(quads) => quads.map(|quad| {
                let quad = quad.to(Scalar::F16);
                [0, 1].map(|i| b.compose(&[quad.lane(i), quad.lane(i + 2)]))
            }),
            Weights::Bytes { packed, signed, nibbles, scale, bias } => {
                let scale = (*scale * 256.0).to(Scalar::F16).splat(2);
                let bias = bias.map(|bias| bias.to(Scalar::F16).splat(2));
                let scaled = |level| match bias {
                    Some(bias) => b.fma(level, scale, bias),
                    None => level * scale,
                };
                let levels = match nibbles {
                    Some(Nibbles { words, high }) => words.map(|word| nibble_pairs(b, word, *high)),
                    None => packed.map(|word| byte_pairs(b, word, *signed)),
                };
                levels.map(|pairs| pairs.map(scaled))
            }
        }
    }
}

/// Four halves as two words.
fn words_of(quad: Val<'_>) -> [Val<'_>; 2] {
    let words = quad.bitcast(Type::Vec(Scalar::U32, 2));
    [words.lane(0), words.lane(1)]
}

/// 256ths of the four bytes of a word: of bytes 0 and 2, of bytes 1 and 3.
fn byte_pairs<'b>(b: &'b Builder, word: Val<'b>, signed: bool) -> [Val<'b>; 2] {
    // 0x4400 is 4, whose neighbours are 1 / 256 apart: OR-ing a byte in adds so many. Signed bytes are moved up by 128.
    let (word, zero) = if signed { (word ^ 0x8080_8080u32, 0x4480) } else { (word, 0x4400) };
    [word, word >> 8].map(|w| above(b, w & 0x00ff_00ffu32, 0x4400, zero))
}

/// The same of the low or the high nibbles of the bytes.
fn nibble_pairs<'b>(b: &'b Builder, word: Val<'b>, high: bool) -> [Val<'b>; 2] {
    // High nibbles stay where they are: the neighbours of 0x3400, which is 1/4, are 1 / 4096 apart.
    let (mask, zero) = if high { (0x00f0_00f0u32, 0x3400) } else { (0x000f_000f, 0x4400) };
    [word, word >> 8].map(|w| above(b, w & mask, zero, zero))
}

/// How far two halves are above `zero` whose lowest bits, where those of `base` are 0, are these.
fn above<'b>(b: &'b Builder, bits: Val<'b>, base: u16, zero: u16) -> Val<'b> {
    let base = u32::from(base) * 0x1_0001;
    (bits | base).bitcast(Type::Vec(Scalar::F16, 2)) - b.f16_bits(zero).splat(2)
}

/// Spreads the low four bits of each word in `bits` to bit 4 of the four bytes of a word.
fn fifth_bits<'b>(bits: Val<'b>) -> Val<'b> {
    (((bits & 0xf) * 0x0020_4081) & 0x0101_0101) << 4
}

fn half(bytes: &[u8], at: usize) -> f32 {
    ::half::f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}
