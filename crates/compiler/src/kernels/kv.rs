//! Elements of cached K and V: where they lie, and how kernels write and read them. See [`zinc_ir::plan::KvLayout`].
//!
//! ```text
//! append:  32 values of a lane ─► largest ─► scale (half), 32 integers ─► two or one 16-byte stores
//! read:    words of integers ─► (integer - zero) · scale
//! ```

use super::halve;
use zinc_ir::kernel::{Builder, Scalar, Type, Val};
use zinc_ir::plan::{KV_BLOCK, KvType, PAGE_TOKENS};

/// One layer's K or V.
#[derive(Clone, Copy)]
pub(super) struct Cache<'b> {
    pub(super) base: Val<'b>,
    pub(super) ty: KvType,
    pub(super) heads: u32,
    pub(super) head_dim: u32,
}

/// Where a token of a head has its values, and its scales, as byte offsets.
#[derive(Clone, Copy)]
pub(super) struct Line<'b> {
    values: Val<'b>,
    scales: Val<'b>,
}

impl<'b> Cache<'b> {
    /// The line of a token of a page.
    pub(super) fn line(&self, page: Val<'b>, head: Val<'b>, token: Val<'b>) -> Line<'b> {
        let head_page = (page * self.heads + head) * (PAGE_TOKENS * self.ty.bytes(self.head_dim));
        let values = head_page + token * self.ty.value_bytes(self.head_dim);
        let scales = PAGE_TOKENS * self.ty.value_bytes(self.head_dim);
        Line { values, scales: head_page + scales + token * (self.head_dim / KV_BLOCK * 2) }
    }

    /// The line of a KV slot.
    pub(super) fn line_of_slot(&self, head: Val<'b>, slot: Val<'b>) -> Line<'b> {
        self.line(slot / PAGE_TOKENS, head, slot % PAGE_TOKENS)
    }

    /// Stores element `e` of a line. Not for quantized types.
    pub(super) fn store(&self, b: &'b Builder, line: Line<'b>, e: Val<'b>, value: Val<'b>) {
        let at = line.values + e * self.ty.value_bytes(1);
        match self.ty {
            KvType::F32 => b.store(self.base, at, value, 4),
            _ => b.store(self.base, at, value.to(Scalar::F16), 2),
        }
    }

    /// Quantizes block `block` of a line, given by quads, and stores it.
    pub(super) fn store_block(&self, b: &'b Builder, line: Line<'b>, block: Val<'b>, quads: &[Val<'b>]) {
        let values: Vec<Val<'b>> = quads.iter().flat_map(|quad| (0..4).map(|i| quad.lane(i))).collect();
        let (scale, words) = match self.ty {
            KvType::Q8_0 => bytes(b, &values),
            _ => nibbles(b, &values),
        };
        b.store(self.base, line.scales + block * 2, scale.to(Scalar::F16), 2);
        let at = line.values + block * self.ty.value_bytes(KV_BLOCK);
        for (i, words) in words.chunks(4).enumerate() {
            b.store(self.base, at + i as u32 * 16, b.compose(words), 16);
        }
    }

    /// `count` elements of a line as quads, from element `first` on; both multiples of 8, or of 4 where that says so.
    pub(super) fn load(&self, b: &'b Builder, line: Line<'b>, first: Val<'b>, count: u32) -> Vec<Val<'b>> {
        let at = line.values + first * self.ty.value_bytes(2) / 2;
        match self.ty {
            KvType::F32 => (0..count / 4).map(|i| b.load_at(Type::F32X4, self.base, at, i * 16, 16, true)).collect(),
            KvType::F16 => {
                let half2 = |w: Val<'b>| w.bitcast(Type::Vec(Scalar::F16, 2)).to_f32();
                let words = self.words(b, at, count * 2);
                let pairs: Vec<Val<'b>> = words.into_iter().map(half2).collect();
                let quad = |p: &[Val<'b>]| b.compose(&[p[0].lane(0), p[0].lane(1), p[1].lane(0), p[1].lane(1)]);
                pairs.chunks(2).map(quad).collect()
            }
            KvType::Q8_0 | KvType::Q4_0 => {
                let words = self.words(b, at, self.ty.value_bytes(count));
                let scales = self.scales(b, line, first, count);
                let bits = if self.ty == KvType::Q8_0 { 8 } else { 4 };
                let element = |e: u32| {
                    let word = words[(e * bits / 32) as usize];
                    (word >> (e * bits % 32)) & ((1 << bits) - 1)
                };
                let zero = b.f32(if bits == 8 { 128.0 } else { 8.0 });
                let quad = |i: u32| {
                    let values: Vec<Val<'b>> = (0..4).map(|k| element(i * 4 + k).to_f32() - zero).collect();
                    b.compose(&values) * scales[i as usize].splat(4)
                };
                (0..count / 4).map(quad).collect()
            }
        }
    }

    /// Eight elements of a line as halves, two in each of four words, from `8 · word` on.
    pub(super) fn load_halves(&self, b: &'b Builder, line: Line<'b>, word: Val<'b>) -> Val<'b> {
        if self.ty == KvType::F16 {
            return b.load_at(Type::U32X4, self.base, line.values + word * 16, 0, 16, true);
        }
        let quads = self.load(b, line, word * 8, 8);
        let pair = |quad: Val<'b>| halve::rounded(b, quad).bitcast(Type::Vec(Scalar::U32, 2));
        let [low, high] = [pair(quads[0]), pair(quads[1])];
        b.compose(&[low.lane(0), low.lane(1), high.lane(0), high.lane(1)])
    }

    /// Four elements of a line, from `4 · quad` on.
    pub(super) fn load_quad(&self, b: &'b Builder, line: Line<'b>, quad: Val<'b>) -> Val<'b> {
        match self.ty {
            KvType::F32 => b.load(Type::F32X4, self.base, line.values + quad * 16, 16),
            KvType::F16 => b.load(Type::Vec(Scalar::F16, 4), self.base, line.values + quad * 8, 8).to_f32(),
            KvType::Q8_0 | KvType::Q4_0 => {
                let scale = b.load(Type::F16, self.base, line.scales + quad / 8 * 2, 2).to_f32();
                let (bits, zero) = if self.ty == KvType::Q8_0 { (8, 128.0) } else { (4, 8.0) };
                let word = b.load(Type::U32, self.base, line.values + quad * bits / 8 * 4, 4);
                let word = if bits == 8 { word } else { word >> (quad % 2 * 16) };
                let values: Vec<Val<'b>> =
                    (0..4).map(|i| ((word >> (i * bits)) & ((1 << bits) - 1)).to_f32() - zero).collect();
                b.compose(&values) * scale.splat(4)
            }
        }
    }

    /// `count` bytes from `at` on, by the widest loads that their number allows.
    fn words(&self, b: &'b Builder, at: Val<'b>, count: u32) -> Vec<Val<'b>> {
        let width = [4, 2, 1].into_iter().find(|w| count.is_multiple_of(w * 4)).unwrap_or(1);
        let ty = if width == 1 { Type::U32 } else { Type::Vec(Scalar::U32, width as u8) };
        let load = |i: u32| b.load_at(ty, self.base, at, i * width * 4, (width * 4) as u8, true);
        let lanes = |v: Val<'b>| (0..width).map(move |i| if width == 1 { v } else { v.lane(i as u8) });
        (0..count / (width * 4)).flat_map(|i| lanes(load(i))).collect()
    }

    /// The scale of each quad.
    fn scales(&self, b: &'b Builder, line: Line<'b>, first: Val<'b>, count: u32) -> Vec<Val<'b>> {
        let load = |quad: u32| {
            let block = (first + quad * 4) / KV_BLOCK;
            b.load_at(Type::F16, self.base, line.scales + block * 2, 0, 2, true).to_f32()
        };
        // Parts that divide a block lie within one.
        if KV_BLOCK.is_multiple_of(count) {
            return vec![load(0); (count / 4) as usize];
        }
        (0..count / 4).map(load).collect()
    }
}

/// One divided by the scale; 0 of a scale of 0.
fn inverse<'b>(b: &'b Builder, scale: Val<'b>) -> Val<'b> {
    scale.ne(0.0).select(b.f32(1.0) / scale, b.f32(0.0))
}

/// Packs integers of so many bits.
fn pack<'b>(b: &'b Builder, values: &[Val<'b>], bits: u32) -> Vec<Val<'b>> {
    let word = |values: &[Val<'b>]| {
        (0..).zip(values).fold(b.u32(0), |word, (i, value)| word | (value.to(Scalar::U32) << (i * bits)))
    };
    values.chunks((32 / bits) as usize).map(word).collect()
}

/// The scale, and 32 bytes, as [`KvType::quantize`] gives them.
fn bytes<'b>(b: &'b Builder, values: &[Val<'b>]) -> (Val<'b>, Vec<Val<'b>>) {
    let largest = values.iter().fold(b.f32(0.0), |m, x| m.max(x.abs()));
    let scale = largest / 127.0;
    let inverse = inverse(b, scale);
    let integer = |x: &Val<'b>| {
        // Halves away from zero.
        let x = *x * inverse;
        let (size, whole) = (x.abs(), x.abs().floor());
        let rounded = (size - whole).ge(0.5).select(whole + 1.0, whole);
        x.lt(0.0).select(b.f32(128.0) - rounded, rounded + 128.0)
    };
    (scale, pack(b, &values.iter().map(integer).collect::<Vec<_>>(), 8))
}

/// The scale, and 32 nibbles, as [`KvType::quantize`] gives them.
fn nibbles<'b>(b: &'b Builder, values: &[Val<'b>]) -> (Val<'b>, Vec<Val<'b>>) {
    let larger = |m: Val<'b>, x: &Val<'b>| x.abs().gt(m.abs()).select(*x, m);
    let largest = values.iter().fold(b.f32(0.0), larger);
    let scale = largest / -8.0;
    let inverse = inverse(b, scale);
    let integer = |x: &Val<'b>| (*x * inverse + 8.5).floor().min(b.f32(15.0));
    (scale, pack(b, &values.iter().map(integer).collect::<Vec<_>>(), 4))
}
