//! Cached K and V in memory: pages of 32 tokens.
//!
//! ```text
//! K: [page][kv head][padded dim][32 tokens]      V: [page][kv head][32 tokens][padded dim]
//! ```
//! Inside a page the CPU keeps K transposed, so that scores need no sums across lanes. Heads are padded to 16 elements.

use crate::Isa;
use crate::scratch::Scratch;
use crate::simd::Lanes;
use zinc_ir::plan::{KV_BLOCK, KvType};

/// Tokens of a page.
pub(crate) const PAGE: usize = zinc_ir::plan::PAGE_TOKENS as usize;

/// Element of cached K and V.
pub(crate) trait KvElement: Copy + Send + Sync + 'static {
    /// # Safety
    /// The features of `V`; 16 elements at `p`.
    unsafe fn load<V: Lanes>(p: *const Self) -> V::F;
    /// A value as element.
    fn of(x: f32) -> Self;
    /// Values rounded to elements.
    fn convert(isa: Isa, x: &[f32]) -> Scratch<Self>;
    /// Appends the bytes of elements.
    fn save(elements: &[Self], bytes: &mut Vec<u8>);
    /// Takes elements from the bytes that [`KvElement::save`] gives, and gives the rest of them; `None`: there are too few.
    fn load_from<'a>(elements: &mut [Self], bytes: &'a [u8]) -> Option<&'a [u8]>;
}

impl KvElement for f32 {
    #[inline(always)]
    unsafe fn load<V: Lanes>(p: *const f32) -> V::F {
        // SAFETY: the caller's promise.
        unsafe { V::load(p) }
    }
    fn of(x: f32) -> f32 {
        x
    }
    fn convert(_: Isa, x: &[f32]) -> Scratch<f32> {
        Scratch::of(x.iter().copied())
    }
    fn save(elements: &[f32], bytes: &mut Vec<u8>) {
        bytes.extend(elements.iter().flat_map(|x| x.to_le_bytes()));
    }
    fn load_from<'a>(elements: &mut [f32], bytes: &'a [u8]) -> Option<&'a [u8]> {
        let (mine, rest) = bytes.split_at_checked(elements.len() * 4)?;
        elements.iter_mut().zip(mine.as_chunks::<4>().0).for_each(|(x, b)| *x = f32::from_le_bytes(*b));
        Some(rest)
    }
}

/// Halves as bits.
impl KvElement for u16 {
    #[inline(always)]
    unsafe fn load<V: Lanes>(p: *const u16) -> V::F {
        // SAFETY: the caller's promise.
        unsafe { V::load_f16(p) }
    }
    fn of(x: f32) -> u16 {
        half::f16::from_f32(x).to_bits()
    }
    fn convert(isa: Isa, x: &[f32]) -> Scratch<u16> {
        let mut out = Scratch::filled(x.len(), 0);
        crate::rows::to_f16(isa, x, &mut out);
        out
    }
    fn save(elements: &[u16], bytes: &mut Vec<u8>) {
        bytes.extend(elements.iter().flat_map(|x| x.to_le_bytes()));
    }
    fn load_from<'a>(elements: &mut [u16], bytes: &'a [u8]) -> Option<&'a [u8]> {
        let (mine, rest) = bytes.split_at_checked(elements.len() * 2)?;
        elements.iter_mut().zip(mine.as_chunks::<2>().0).for_each(|(x, b)| *x = u16::from_le_bytes(*b));
        Some(rest)
    }
}

/// One layer's K or V: `[page][kv head][padded dim · 32]`.
#[derive(Clone, Copy)]
pub(crate) struct Area {
    pub(crate) heads: usize,
    /// Elements of a head.
    pub(crate) dim: usize,
    pub(crate) pages: usize,
}

impl Area {
    /// Elements of a head with padding.
    pub(crate) fn padded(&self) -> usize {
        self.dim.next_multiple_of(16)
    }
    /// Elements of one head of one page.
    pub(crate) fn head(&self) -> usize {
        self.padded() * PAGE
    }
    /// Elements of a page.
    pub(crate) fn page(&self) -> usize {
        self.heads * self.head()
    }
    /// Elements of the area.
    pub(crate) fn elements(&self) -> usize {
        self.pages * self.page()
    }
}

/// Writes a token's K (`[head][dim]`) and V into slot `slot` (page · 32 + token in page).
///
/// # Panics
/// When the slot or a length is out of range.
pub(crate) fn append<E: KvElement>(area: &Area, k_cache: &mut [E], v_cache: &mut [E], slot: usize, k: &[E], v: &[E]) {
    let (page, token) = (slot / PAGE, slot % PAGE);
    assert!(page < area.pages, "KV page {page} of {}", area.pages);
    let width = area.padded();
    for h in 0..area.heads {
        let at = page * area.page() + h * area.head();
        let row = h * area.dim..(h + 1) * area.dim;
        let k_page = k_cache[at..at + area.head()].chunks_exact_mut(PAGE);
        k_page.zip(&k[row.clone()]).for_each(|(tokens, x)| tokens[token] = *x);
        v_cache[at + token * width..][..area.dim].copy_from_slice(&v[row]);
    }
}

/// One layer's K or V as the device layout has it ([`zinc_ir::plan::KvLayout`]), in any type: attention takes the values of
/// a page of a head out of it first.
pub(crate) struct Stored {
    ty: KvType,
    area: Area,
    bytes: Vec<u8>,
}

impl Stored {
    /// Zero pages.
    pub(crate) fn new(ty: KvType, area: Area) -> Stored {
        let page = area.heads * PAGE * ty.bytes(area.dim as u32) as usize;
        Stored { ty, area, bytes: vec![0; area.pages * page] }
    }

    /// Bytes of one head of one page, and of its values.
    fn head_bytes(&self) -> [usize; 2] {
        [self.ty.bytes(self.area.dim as u32), self.ty.value_bytes(self.area.dim as u32)].map(|n| PAGE * n as usize)
    }

    /// Writes a token's values (`[head][dim]`) into slot `slot`.
    ///
    /// # Panics
    /// When the slot or the length is out of range.
    pub(crate) fn append(&mut self, slot: usize, x: &[f32]) {
        let (page, token) = (slot / PAGE, slot % PAGE);
        assert!(page < self.area.pages, "KV page {page} of {}", self.area.pages);
        let (dim, ty, [head_bytes, value_bytes]) = (self.area.dim, self.ty, self.head_bytes());
        for (h, x) in x.chunks_exact(dim).enumerate() {
            let head = &mut self.bytes[(page * self.area.heads + h) * head_bytes..][..head_bytes];
            let (values, scales) = head.split_at_mut(value_bytes);
            let line = &mut values[token * (value_bytes / PAGE)..][..value_bytes / PAGE];
            match ty {
                KvType::F32 => line.chunks_exact_mut(4).zip(x).for_each(|(to, x)| to.copy_from_slice(&x.to_le_bytes())),
                KvType::F16 => {
                    let half = |x: &f32| half::f16::from_f32(*x).to_le_bytes();
                    line.chunks_exact_mut(2).zip(x).for_each(|(to, x)| to.copy_from_slice(&half(x)));
                }
                KvType::Q8_0 | KvType::Q4_0 => {
                    let scales = &mut scales[token * (dim / BLOCK * 2)..];
                    let blocks = x.as_chunks::<BLOCK>().0.iter().zip(scales.chunks_exact_mut(2));
                    for ((x, scale), to) in blocks.zip(line.chunks_exact_mut(ty.value_bytes(KV_BLOCK) as usize)) {
                        let (bits, stored) = ty.quantize(x);
                        scale.copy_from_slice(&bits.to_le_bytes());
                        match ty {
                            KvType::Q8_0 => to.copy_from_slice(&stored),
                            _ => to.iter_mut().zip(stored.chunks_exact(2)).for_each(|(to, s)| *to = s[0] | s[1] << 4),
                        }
                    }
                }
            }
        }
    }

    /// Gives (token, element, value) of one head of a page to `each`.
    pub(crate) fn read(&self, page: usize, head: usize, mut each: impl FnMut(usize, usize, f32)) {
        let (dim, [head_bytes, value_bytes]) = (self.area.dim, self.head_bytes());
        let all = &self.bytes[(page * self.area.heads + head) * head_bytes..][..head_bytes];
        let (values, scales) = all.split_at(value_bytes);
        for (token, line) in values.chunks_exact(value_bytes / PAGE).enumerate() {
            for e in 0..dim {
                let scale = || {
                    let at = (token * (dim / BLOCK) + e / BLOCK) * 2;
                    u16::from_le_bytes([scales[at], scales[at + 1]])
                };
                let value = match self.ty {
                    KvType::F32 => f32::from_le_bytes([0, 1, 2, 3].map(|i| line[e * 4 + i])),
                    KvType::F16 => half::f16::from_le_bytes([line[e * 2], line[e * 2 + 1]]).to_f32(),
                    KvType::Q8_0 => self.ty.value(scale(), line[e]),
                    KvType::Q4_0 => self.ty.value(scale(), (line[e / 2] >> (e % 2 * 4)) & 15),
                };
                each(token, e, value);
            }
        }
    }

    /// The bytes of a page.
    pub(crate) fn page(&mut self, page: usize) -> &mut [u8] {
        let size = self.area.heads * self.head_bytes()[0];
        &mut self.bytes[page * size..(page + 1) * size]
    }

    /// Copies a page onto another.
    pub(crate) fn copy_page(&mut self, from: usize, to: usize) {
        let size = self.area.heads * self.head_bytes()[0];
        self.bytes.copy_within(from * size..(from + 1) * size, to * size);
    }
}

/// Elements of a quantized block.
const BLOCK: usize = KV_BLOCK as usize;
