//! Matrix products: y = x·Wᵀ with everything that belongs to the same pass over the weights.
//!
//! ```text
//! Activations ─┐
//! [Product]  ──┴─► (row tile, token chunk) claimed by any thread ─► kernel ─► [TT][16] ─finish─► out
//!                  Q, K, V or gate+up share one claim loop                     bias, residual, GLU
//! ```

pub(crate) mod activations;
pub(crate) mod experts;
pub(crate) mod format;
pub(crate) mod kernels;
pub(crate) mod levels;
pub(crate) mod packed;

use crate::Pool;
use crate::memory::SharedPtr;
use crate::rows::gate;
use crate::scratch::Scratch;
use activations::{Activations, Group};
use format::{BLOCK, TILE};
use packed::Packed;
use zinc_ir::graph::Activation;
use zinc_ir::plan::ActPrecision;

/// Token groups that are multiplied with a row tile before the next tile: keeps the
/// activations of a chunk (about 128 tokens) in the second-level cache.
const CHUNK_GROUPS: usize = 8;

/// One product of a claim loop: `out[t·stride + row] = finish(Σ_k x[t][k]·w[row][k])`.
pub struct Product<'a> {
    /// Weights; its columns are those of the activations.
    pub weights: &'a Packed,
    /// Multiplies with a second matrix of the same shape: out = act(weights·x) · (up·x).
    pub glu: Option<(&'a Packed, Activation)>,
    /// Added to each row.
    pub bias: Option<&'a [f32]>,
    /// Adds to what `out` holds (a residual) instead of replacing it.
    pub accumulate: bool,
    /// First output.
    pub out: &'a mut [f32],
    /// From one token's outputs to the next token's.
    pub stride: usize,
}

/// Runs the products in one claim loop. They may not overlap in their outputs.
///
/// # Panics
/// When shapes do not match: it is the caller's plan that guarantees them.
pub fn multiply(pool: &Pool, x: &Activations, products: &mut [Product<'_>]) {
    let jobs = Scratch::of(products.iter_mut().map(|p| Job::new(p, x)));
    let tiles: usize = jobs.iter().map(|j| j.weights.tiles()).sum();
    let chunks = x.groups().div_ceil(CHUNK_GROUPS);
    pool.for_each_chunk(tiles * chunks, |_, range| {
        for item in range {
            let (chunk, mut tile) = (item / tiles, item % tiles);
            for j in &*jobs {
                if tile < j.weights.tiles() {
                    j.run(tile, x, chunk);
                    break;
                }
                tile -= j.weights.tiles();
            }
        }
    });
}

/// A [`Product`] whose output several threads write.
struct Job<'a> {
    weights: &'a Packed,
    glu: Option<(&'a Packed, Activation)>,
    bias: Option<&'a [f32]>,
    accumulate: bool,
    out: SharedPtr<f32>,
    stride: usize,
}

impl<'a> Job<'a> {
    fn new(p: &'a mut Product<'_>, x: &Activations) -> Job<'a> {
        let rows = p.weights.rows();
        assert_eq!(p.weights.cols(), x.cols(), "columns of weights and activations");
        assert!(p.weights.takes_integers() || x.precision() != ActPrecision::Q8, "integer activations");
        let need = if x.tokens() == 0 { 0 } else { (x.tokens() - 1) * p.stride + rows };
        assert!(p.out.len() >= need && p.stride >= rows, "output of {rows} rows is too short");
        if let Some((up, _)) = &p.glu {
            assert_eq!((up.rows(), up.cols()), (rows, x.cols()), "shape of the up matrix");
            assert!(up.takes_integers() || x.precision() != ActPrecision::Q8, "integer activations");
        }
        assert!(p.bias.is_none_or(|b| b.len() == rows), "length of the bias");
        Job {
            weights: p.weights,
            glu: p.glu,
            bias: p.bias,
            accumulate: p.accumulate,
            out: SharedPtr(p.out.as_mut_ptr()),
            stride: p.stride,
        }
    }

    fn run(&self, tile: usize, x: &Activations, chunk: usize) {
        let groups = chunk * CHUNK_GROUPS..x.groups().min((chunk + 1) * CHUNK_GROUPS);
        let mut sums = [0f32; 16 * TILE];
        let mut ups = [0f32; 16 * TILE];
        for g in groups {
            let group = x.group(g);
            tile_product(self.weights, tile, x.precision(), &group, &mut sums);
            if let Some(bias) = self.bias {
                let bias = &bias[tile * TILE..];
                for token in sums.chunks_exact_mut(TILE).take(group.tokens) {
                    token.iter_mut().zip(bias).for_each(|(s, b)| *s += b);
                }
            }
            if let Some((up, act)) = &self.glu {
                tile_product(up, tile, x.precision(), &group, &mut ups);
                let n = group.width * TILE;
                gate(self.weights.isa(), *act, &mut sums[..n], &ups[..n]);
            }
            self.store(tile, &group, &sums);
        }
    }

    fn store(&self, tile: usize, group: &Group, sums: &[f32; 16 * TILE]) {
        let count = TILE.min(self.weights.rows() - tile * TILE);
        for t in 0..group.tokens {
            // SAFETY: rows `tile·16..+count` of token `first + t`: within `out` by the check in
            // `new`, and no other tile or token group has them.
            let out = unsafe {
                let first = self.out.get().add((group.first + t) * self.stride + tile * TILE);
                std::slice::from_raw_parts_mut(first, count)
            };
            let sums = &sums[t * TILE..t * TILE + count];
            if self.accumulate {
                out.iter_mut().zip(sums).for_each(|(o, s)| *o += s);
            } else {
                out.copy_from_slice(sums);
            }
        }
    }
}

fn tile_product(w: &Packed, tile: usize, precision: ActPrecision, group: &Group, out: &mut [f32; 16 * TILE]) {
    let mut args = w.tile_args(tile);
    (args.xq, args.xs, args.out) = (group.xq, group.xs, out.as_mut_ptr());
    let index = group.width.trailing_zeros() as usize;
    let kernel = match (precision, w.kernels().int) {
        (ActPrecision::Q8, Some(int)) => int[index],
        _ => w.kernels().float[index],
    };
    debug_assert!(args.blocks * BLOCK >= w.cols());
    // SAFETY: `w` was packed for an available instruction set; its planes have `blocks` blocks,
    // and so have the activations of a matrix with as many columns (checked in `Job::new`).
    unsafe { kernel(args) }
}
