//! The input side of a matrix product: rows of activations, grouped and quantized for the kernels.
//!
//! ```text
//! x [tokens][cols] f32 ──fill──► groups of up to 16 (float: 8) tokens
//!     Q8:  int8 [block][token][32] and f32 [block][token]{d, d·Σq, d·Σ first half, d·Σ second half}
//!     F32: f32 [column][token]     (F16: the same, each value rounded to a half first)
//! ```

use super::format::BLOCK;
use crate::memory::SharedPtr;
use crate::scratch::Scratch;
use crate::simd::{Lanes, dispatch};
use crate::{Isa, Pool};
use zinc_ir::plan::ActPrecision;

/// Activations ready for the kernels; buffers are kept from step to step.
pub struct Activations {
    isa: Isa,
    precision: ActPrecision,
    tokens: usize,
    cols: usize,
    blocks: usize,
    groups: Vec<Place>,
    /// Number of groups up to the end of each segment.
    ends: Vec<usize>,
    q: Vec<i8>,
    s: Vec<f32>,
}

/// Where a group is: its tokens, and its slots (of which `width - tokens` are padding).
#[derive(Clone, Copy)]
struct Place {
    first: usize,
    tokens: usize,
    slot: usize,
    width: usize,
}

/// One group of tokens within [`Activations`].
#[derive(Clone, Copy)]
pub(crate) struct Group {
    pub(crate) first: usize,
    /// Tokens that exist.
    pub(crate) tokens: usize,
    /// Tokens of the kernel: a power of two, at least `tokens`.
    pub(crate) width: usize,
    pub(crate) xq: *const i8,
    pub(crate) xs: *const f32,
}

// SAFETY: only addresses of buffers that the borrowed `Activations` keeps.
unsafe impl Send for Group {}
// SAFETY: as above; they are read only.
unsafe impl Sync for Group {}

impl Activations {
    /// No tokens yet.
    pub fn new(isa: Isa) -> Activations {
        let (q, s, groups, ends) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Activations { isa, precision: ActPrecision::F32, tokens: 0, cols: 0, blocks: 0, groups, ends, q, s }
    }

    /// Tokens of a full group: what fits the registers of the instruction set.
    fn group_size(&self) -> usize {
        let wide = match self.isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => true,
            _ => false,
        };
        match (wide, self.precision) {
            (true, ActPrecision::Q8) => 16,
            (true, _) => 8,
            (false, _) => 4,
        }
    }

    /// Takes `tokens` rows of `cols` values, row t at `x[t·stride..]`.
    ///
    /// # Panics
    /// When `x` is shorter than its shape says.
    pub fn fill(&mut self, pool: &Pool, precision: ActPrecision, tokens: usize, cols: usize, x: &[f32], stride: usize) {
        assert!(stride >= cols, "stride {stride} below {cols} columns");
        assert!(tokens == 0 || x.len() >= (tokens - 1) * stride + cols, "x is too short");
        let read = |t: usize| &x[t * stride..t * stride + cols];
        self.fill_with(pool, precision, tokens, cols, |t, row: &mut [f32]| {
            row.copy_from_slice(read(t));
        });
    }

    /// As [`Activations::fill`], but asks `row(t, out)` for each row: a norm, say, can be computed on the way.
    pub fn fill_with<F>(&mut self, pool: &Pool, precision: ActPrecision, tokens: usize, cols: usize, row: F)
    where
        F: Fn(usize, &mut [f32]) + Sync,
    {
        self.fill_segments(pool, precision, &[tokens], cols, row);
    }

    /// As [`Activations::fill_with`], for segments of consecutive tokens (`lengths`) that no group crosses.
    pub(crate) fn fill_segments<F>(
        &mut self,
        pool: &Pool,
        precision: ActPrecision,
        lengths: &[usize],
        cols: usize,
        row: F,
    ) where
        F: Fn(usize, &mut [f32]) + Sync,
    {
        self.precision = precision;
        self.cols = cols;
        self.blocks = cols.div_ceil(BLOCK);
        let slots = self.place(lengths);
        let padded = self.blocks * BLOCK;
        match precision {
            ActPrecision::Q8 => {
                self.q.resize(slots * padded, 0);
                self.s.resize(slots * self.blocks * 4, 0.0);
            }
            _ => self.s.resize(slots * padded, 0.0),
        }
        let (q, s) = (SharedPtr(self.q.as_mut_ptr()), SharedPtr(self.s.as_mut_ptr()));
        let this = &*self;
        let quantize = quantize_fn(self.isa);
        pool.for_each_chunk(slots, |_, range| {
            let mut values = Scratch::filled(padded, 0f32);
            for slot in range {
                let place = this.groups[this.groups.partition_point(|g| g.slot <= slot) - 1];
                let (first, width, t) = (place.slot, place.width, slot - place.slot);
                if t < place.tokens {
                    row(place.first + t, &mut values[..cols]);
                } else {
                    values.fill(0.0);
                }
                match precision {
                    // SAFETY: slot `t` of a group of `width` that starts at slot `first`: nobody
                    // else writes it, and the buffers were sized for all slots.
                    ActPrecision::Q8 => unsafe {
                        let q = q.get().add(first * padded + t * BLOCK);
                        let s = s.get().add((first * this.blocks + t) * 4);
                        quantize(&values, width, q, s);
                    },
                    _ => {
                        if precision == ActPrecision::F16 {
                            crate::rows::round_f16(this.isa, &mut values);
                        }
                        for (k, v) in values.iter().enumerate() {
                            // SAFETY: as above, column k of the group.
                            unsafe { *s.get().add(first * padded + k * width + t) = *v };
                        }
                    }
                }
            }
        });
    }

    /// Cuts segments into groups: full ones, then one whose width is the power of two at or above the rest. Gives the
    /// number of slots.
    fn place(&mut self, lengths: &[usize]) -> usize {
        let size = self.group_size();
        self.groups.clear();
        self.ends.clear();
        let (mut first, mut slot) = (0, 0);
        for length in lengths {
            let end = first + length;
            while first < end {
                let tokens = (end - first).min(size);
                let width = tokens.next_power_of_two();
                self.groups.push(Place { first, tokens, slot, width });
                (first, slot) = (first + tokens, slot + width);
            }
            self.ends.push(self.groups.len());
        }
        self.tokens = first;
        slot
    }

    /// Tokens.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Values of a token.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// What the values were rounded to.
    pub fn precision(&self) -> ActPrecision {
        self.precision
    }

    pub(crate) fn groups(&self) -> usize {
        self.groups.len()
    }

    /// The groups of a segment.
    pub(crate) fn segment(&self, index: usize) -> std::ops::Range<usize> {
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        start..self.ends[index]
    }

    pub(crate) fn group(&self, index: usize) -> Group {
        let Place { first, tokens, slot, width } = self.groups[index];
        let padded = self.blocks * BLOCK;
        let (xq, xs) = match self.precision {
            ActPrecision::Q8 => (self.q[slot * padded..].as_ptr(), &self.s[slot * self.blocks * 4..]),
            _ => (std::ptr::null(), &self.s[slot * padded..]),
        };
        Group { first, tokens, width, xq, xs: xs.as_ptr() }
    }
}

/// Quantizes one token: block b goes to `q + b·width·32` and `s + b·width·4`.
///
/// # Safety
/// The features of `V`; `values` has whole blocks, the outputs have room for them.
#[inline(always)]
unsafe fn quantize<V: Lanes>(values: &[f32], width: usize, q: *mut i8, s: *mut f32) {
    // SAFETY: the caller's promise.
    unsafe {
        for (b, block) in values.chunks_exact(BLOCK).enumerate() {
            let x0 = V::load(block.as_ptr());
            let x1 = V::load(block.as_ptr().add(16));
            let most = V::top(V::max(V::abs(x0), V::abs(x1)));
            let scale = most / 127.0;
            let inverse = if most > 0.0 { 127.0 / most } else { 0.0 };
            let q0 = V::to_i(V::mul(x0, V::splat(inverse)));
            let q1 = V::to_i(V::mul(x1, V::splat(inverse)));
            let to = q.add(b * width * BLOCK);
            V::store_i8(to, q0);
            V::store_i8(to.add(16), q1);
            let (sum0, sum1) = (V::sum_i(q0), V::sum_i(q1));
            let to = s.add(b * width * 4);
            *to = scale;
            *to.add(1) = scale * (sum0 + sum1) as f32;
            *to.add(2) = scale * sum0 as f32;
            *to.add(3) = scale * sum1 as f32;
        }
    }
}

dispatch!(quantize_fn, quantize_entry [] [] => quantize(values: &[f32], width: usize, q: *mut i8, s: *mut f32));
