//! Cached K and V in memory: pages of 32 tokens.
//!
//! ```text
//! K: [page][kv head][padded dim][32 tokens]      V: [page][kv head][32 tokens][padded dim]
//! ```
//! Inside a page the CPU keeps K transposed, so that scores need no sums across lanes. Heads are padded to 16 elements.

use crate::Isa;
use crate::scratch::Scratch;
use crate::simd::Lanes;

/// Tokens of a page.
pub(crate) const PAGE: usize = zinc_ir::plan::PAGE_TOKENS as usize;

/// Element of cached K and V.
pub(crate) trait KvElement: Copy + Send + Sync + 'static {
    /// # Safety
    /// The features of `V`; 16 elements at `p`.
    unsafe fn load<V: Lanes>(p: *const Self) -> V::F;
    /// Values rounded to elements.
    fn convert(isa: Isa, x: &[f32]) -> Scratch<Self>;
}

impl KvElement for f32 {
    #[inline(always)]
    unsafe fn load<V: Lanes>(p: *const f32) -> V::F {
        // SAFETY: the caller's promise.
        unsafe { V::load(p) }
    }
    fn convert(_: Isa, x: &[f32]) -> Scratch<f32> {
        Scratch::of(x.iter().copied())
    }
}

/// Halves as bits.
impl KvElement for u16 {
    #[inline(always)]
    unsafe fn load<V: Lanes>(p: *const u16) -> V::F {
        // SAFETY: the caller's promise.
        unsafe { V::load_f16(p) }
    }
    fn convert(isa: Isa, x: &[f32]) -> Scratch<u16> {
        let mut out = Scratch::filled(x.len(), 0);
        crate::rows::to_f16(isa, x, &mut out);
        out
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
