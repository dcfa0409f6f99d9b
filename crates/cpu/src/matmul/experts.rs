//! Products of a mixture of experts: each row goes to the experts it was given.
//!
//! ```text
//! pairs (row, expert) ─sorted by expert─► Activations, one segment per expert
//!      (part, row tile) claimed by any thread ─► kernel ─► [TT][16] ─gate─► out[pair]
//! ```
//! An expert's weights are read once for all of its rows. As in a dense product, what a pair gets does not depend on
//! the other pairs.

use super::format::TILE;
use super::{Activations, Group, Packed, tile_product};
use crate::Pool;
use crate::memory::SharedPtr;
use crate::rows::gate;
use std::ops::Range;
use zinc_ir::graph::Activation;

/// One expert's share.
pub(crate) struct Part {
    /// Which expert.
    pub(crate) expert: usize,
    /// Its groups of the activations.
    pub(crate) groups: Range<usize>,
    /// Token t of the activations is pair `first + t` of [`ExpertProduct::pairs`].
    pub(crate) first: usize,
}

/// `out[pair] = finish(Σ_k x[k]·w[expert][row][k])` for the pairs of all parts.
pub(crate) struct ExpertProduct<'a> {
    /// Matrices of all experts, one after the other, each of whole row tiles.
    pub(crate) weights: &'a Packed,
    /// How many experts.
    pub(crate) experts: usize,
    /// Multiplies with second matrices of the same shape: out = act(weights·x) · (up·x).
    pub(crate) glu: Option<(&'a Packed, Activation)>,
    /// Row of `out` of each pair.
    pub(crate) pairs: &'a [u32],
    /// Rows as long as an expert's matrix has rows.
    pub(crate) out: &'a mut [f32],
}

/// Runs all parts in one claim loop.
///
/// # Panics
/// When shapes do not match: it is the caller's plan that guarantees them.
pub(crate) fn multiply_experts(pool: &Pool, x: &Activations, parts: &[Part], product: &mut ExpertProduct<'_>) {
    let (rows, weights) = (product.weights.rows() / product.experts, product.weights);
    assert_eq!(weights.cols(), x.cols(), "columns of weights and activations");
    assert!(rows.is_multiple_of(TILE) && rows * product.experts == weights.rows(), "experts of whole row tiles");
    if let Some((up, _)) = product.glu {
        assert_eq!((up.rows(), up.cols()), (weights.rows(), x.cols()), "shape of the up matrices");
    }
    assert!(product.pairs.iter().all(|p| (*p as usize + 1) * rows <= product.out.len()), "the output is too short");
    let job = Job {
        weights,
        glu: product.glu,
        tiles: rows / TILE,
        pairs: product.pairs,
        out: SharedPtr(product.out.as_mut_ptr()),
    };
    pool.for_each_chunk(parts.len() * job.tiles, |_, range| {
        for item in range {
            job.run(&parts[item / job.tiles], item % job.tiles, x);
        }
    });
}

struct Job<'a> {
    weights: &'a Packed,
    glu: Option<(&'a Packed, Activation)>,
    /// Row tiles of an expert.
    tiles: usize,
    pairs: &'a [u32],
    out: SharedPtr<f32>,
}

impl Job<'_> {
    fn run(&self, part: &Part, tile: usize, x: &Activations) {
        let at = part.expert * self.tiles + tile;
        let mut sums = [0f32; 16 * TILE];
        let mut ups = [0f32; 16 * TILE];
        for g in part.groups.clone() {
            let group = x.group(g);
            tile_product(self.weights, at, x.precision(), &group, &mut sums);
            if let Some((up, act)) = &self.glu {
                tile_product(up, at, x.precision(), &group, &mut ups);
                let n = group.width * TILE;
                gate(self.weights.isa(), *act, &mut sums[..n], &ups[..n]);
            }
            self.store(part, tile, &group, &sums);
        }
    }

    fn store(&self, part: &Part, tile: usize, group: &Group, sums: &[f32; 16 * TILE]) {
        let pairs = &self.pairs[part.first + group.first..][..group.tokens];
        for (pair, sums) in pairs.iter().zip(sums.chunks_exact(TILE)) {
            // SAFETY: row tile `tile` of row `pair`: within `out` by the check before the loop. Every pair is in one
            // part, and nobody else has this tile of it.
            let out = unsafe {
                let first = self.out.get().add(*pair as usize * self.tiles * TILE + tile * TILE);
                std::slice::from_raw_parts_mut(first, TILE)
            };
            out.copy_from_slice(sums);
        }
    }
}
