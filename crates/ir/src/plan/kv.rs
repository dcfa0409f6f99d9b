//! Cached K and V: their types, and where they lie.
//!
//! ```text
//! per KV layer: K area │ V area      area = pages × heads × head page      head page, 32 tokens:
//!   f32, f16     [token][head_dim]
//!   q8_0, q4_0   values [token][head_dim], then scales [token][head_dim / 32] as halves
//! ```
//!
//! So one page of one head is contiguous, and values are read by 16-byte loads. Blocks of 32 elements are quantized by
//! ggml's rules: `q8_0` to bytes (stored plus 128), `q4_0` to nibbles, element e of a token in nibble e % 8 of word e / 8.

use super::PAGE_TOKENS;
use crate::graph::Graph;
use half::f16;
use std::fmt;

/// Elements of a block of quantized K and V.
pub const KV_BLOCK: u32 = 32;

/// Element type of cached K or V.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum KvType {
    /// 32-bit floats.
    F32,
    /// Halves.
    F16,
    /// Bytes, with a half as scale of each 32: 8.5 bits per element.
    Q8_0,
    /// Nibbles, with a half as scale of each 32: 4.5 bits per element.
    Q4_0,
}

impl KvType {
    /// Its name, as llama.cpp spells it.
    pub const fn name(self) -> &'static str {
        match self {
            KvType::F32 => "f32",
            KvType::F16 => "f16",
            KvType::Q8_0 => "q8_0",
            KvType::Q4_0 => "q4_0",
        }
    }

    /// Kept as integers with scales.
    pub const fn is_quantized(self) -> bool {
        matches!(self, KvType::Q8_0 | KvType::Q4_0)
    }

    /// Bytes of the values of `elements`, without scales.
    pub const fn value_bytes(self, elements: u32) -> u32 {
        match self {
            KvType::F32 => elements * 4,
            KvType::F16 => elements * 2,
            KvType::Q8_0 => elements,
            KvType::Q4_0 => elements / 2,
        }
    }

    /// Bytes of `elements`, whole blocks of them, with scales.
    pub const fn bytes(self, elements: u32) -> u32 {
        let scales = if self.is_quantized() { elements / KV_BLOCK * 2 } else { 0 };
        self.value_bytes(elements) + scales
    }

    /// The scale of a block, as a half, and its numbers as they are stored: 1 to 255 of `q8_0`, 0 to 15 of `q4_0`. Not for
    /// types that are not quantized.
    pub fn quantize(self, block: &[f32; KV_BLOCK as usize]) -> (u16, [u8; KV_BLOCK as usize]) {
        let inverse = |scale: f32| if scale == 0.0 { 0.0 } else { 1.0 / scale };
        if self == KvType::Q8_0 {
            let largest = block.iter().fold(0.0f32, |m, x| m.max(x.abs()));
            let scale = largest / 127.0;
            let inverse = inverse(scale);
            return (f16::from_f32(scale).to_bits(), block.map(|x| (128.0 + (x * inverse).round()) as u8));
        }
        // The first of the largest, with its sign, becomes 0.
        let largest = block.iter().fold(0.0f32, |m, x| if x.abs() > m.abs() { *x } else { m });
        let scale = largest / -8.0;
        let inverse = inverse(scale);
        (f16::from_f32(scale).to_bits(), block.map(|x| (x * inverse + 8.5).min(15.0) as u8))
    }

    /// The value of a stored number of a block with this scale.
    pub fn value(self, scale: u16, stored: u8) -> f32 {
        let zero = if self == KvType::Q8_0 { 128.0 } else { 8.0 };
        (stored as f32 - zero) * f16::from_bits(scale).to_f32()
    }
}

/// The types of cached K and V.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct KvTypes {
    /// Of K.
    pub k: KvType,
    /// Of V.
    pub v: KvType,
}

impl From<KvType> for KvTypes {
    fn from(ty: KvType) -> KvTypes {
        KvTypes { k: ty, v: ty }
    }
}

impl KvTypes {
    /// One of them is kept as integers with scales.
    pub const fn quantized(self) -> bool {
        self.k.is_quantized() || self.v.is_quantized()
    }

    /// Bytes of K and V with so many elements each.
    pub const fn bytes(self, elements: u32) -> u32 {
        self.k.bytes(elements) + self.v.bytes(elements)
    }
}

/// One name, or that of K and that of V.
impl fmt::Display for KvTypes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.k == self.v {
            true => f.write_str(self.k.name()),
            false => write!(f, "{}/{}", self.k.name(), self.v.name()),
        }
    }
}

/// Where K and V live: per KV layer one K and one V area, each an array of pages `[page][kv head]`; see the module.
#[derive(Clone, Debug, PartialEq)]
pub struct KvLayout {
    /// Element types.
    pub types: KvTypes,
    /// Pages in the pool.
    pub pages: u32,
    /// Areas of each layer.
    pub layers: Vec<KvArea>,
    /// Total bytes.
    pub bytes: u64,
}

/// The two areas of one KV layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KvArea {
    /// First byte of K.
    pub k: u64,
    /// First byte of V.
    pub v: u64,
    /// Heads.
    pub heads: u32,
    /// Elements per head.
    pub head_dim: u32,
}

impl KvArea {
    /// Bytes of one page of a type.
    pub fn page_bytes(&self, ty: KvType) -> u32 {
        self.heads * PAGE_TOKENS * ty.bytes(self.head_dim)
    }
}

impl KvLayout {
    /// Lays out `pages` pages for all KV layers of a graph.
    pub fn new(graph: &Graph, types: impl Into<KvTypes>, pages: u32) -> KvLayout {
        let (types, mut bytes) = (types.into(), 0);
        let layers = graph.kv().iter().map(|shape| {
            let mut area = KvArea { k: bytes, v: 0, heads: shape.heads, head_dim: shape.head_dim };
            area.v = area.k + pages as u64 * area.page_bytes(types.k) as u64;
            bytes = area.v + pages as u64 * area.page_bytes(types.v) as u64;
            area
        });
        let layers = layers.collect();
        KvLayout { types, pages, layers, bytes }
    }

    /// Bytes of K and V per token over all layers.
    pub fn bytes_per_token(&self) -> u64 {
        self.layers.iter().map(|l| l.heads as u64 * self.types.bytes(l.head_dim) as u64).sum()
    }

    /// A head size that the types cannot keep: blocks are within a head.
    pub fn unsuitable_head(&self) -> Option<u32> {
        let mut sizes = self.layers.iter().map(|l| l.head_dim);
        sizes.find(|dim| self.types.quantized() && !dim.is_multiple_of(KV_BLOCK))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_rounded_as_ggml_rounds_them() {
        let mut block = [0.0f32; 32];
        for (i, x) in block.iter_mut().enumerate() {
            *x = (i as f32 - 13.0) / 4.0;
        }
        let (scale, stored) = KvType::Q8_0.quantize(&block);
        assert_eq!(
            (scale, stored[13], stored[31], stored[0]),
            (f16::from_f32(4.5 / 127.0).to_bits(), 128, 255, 128 - 92)
        );
        // The largest is positive: the scale is negative, and 0 stands for it.
        let (scale, stored) = KvType::Q4_0.quantize(&block);
        assert_eq!((f16::from_bits(scale).to_f32(), stored[31], stored[13], stored[0]), (-0.5625, 0, 8, 14));
        assert_eq!([KvType::Q8_0, KvType::Q4_0].map(|t| t.quantize(&[0.0; 32])), [(0, [128; 32]), (0x8000, [8; 32])]);
        // Of equal ones, the first: it is exact, and its negative is cut off.
        let ends = |first: f32| {
            let mut block = [0.0; 32];
            (block[3], block[9]) = (first, -first);
            let (scale, stored) = KvType::Q4_0.quantize(&block);
            [3, 9].map(|i: usize| KvType::Q4_0.value(scale, stored[i]))
        };
        assert_eq!([ends(8.0), ends(-8.0)], [[8.0, -7.0], [-8.0, 7.0]]);
    }

    #[test]
    fn sizes() {
        let types = KvTypes { k: KvType::Q8_0, v: KvType::Q4_0 };
        assert_eq!((types.bytes(128), types.to_string()), (4 * 34 + 4 * 18, "q8_0/q4_0".into()));
        assert_eq!(KvTypes::from(KvType::F16).bytes(80), 320);
    }
}
