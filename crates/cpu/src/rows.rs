//! Row operations: norms, gates, sums, softmax, rotation of heads.
//!
//! Everything here works on one row (or one head) at a time; the caller claims rows.

use crate::Isa;
use crate::simd::{Lanes, dispatch, exp};

/// The gate of a gated feed-forward layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Glu {
    /// x·sigmoid(x).
    Silu,
    /// 0.5·x·(1 + tanh(√(2/π)·(x + 0.044715·x³))), PyTorch's `gelu_pytorch_tanh`.
    GeluTanh,
}

impl Glu {
    /// `gate[i] = act(gate[i]) · up[i]`.
    ///
    /// # Panics
    /// When the lengths differ.
    pub fn apply(self, isa: Isa, gate: &mut [f32], up: &[f32]) {
        assert_eq!(gate.len(), up.len(), "gate and up");
        let f = match self {
            Glu::Silu => silu_mul_fn(isa),
            Glu::GeluTanh => gelu_mul_fn(isa),
        };
        // SAFETY: `isa` is one of `Isa::available`.
        unsafe { f(gate, up) }
    }
}

/// x·sigmoid(x).
///
/// # Safety
/// The features of `V`.
#[inline(always)]
unsafe fn silu<V: Lanes>(x: V::F) -> V::F {
    // SAFETY: the caller's promise.
    unsafe {
        let e = exp::<V>(V::sub(V::splat(0.0), x));
        V::div(x, V::add(V::splat(1.0), e))
    }
}

/// # Safety
/// The features of `V`.
#[inline(always)]
unsafe fn gelu<V: Lanes>(x: V::F) -> V::F {
    // SAFETY: the caller's promise. 0.5·(1 + tanh(u)) = sigmoid(2u).
    unsafe {
        let cube = V::mul(V::mul(x, x), x);
        let u = V::fma(cube, V::splat(0.044_715), x);
        let u = V::mul(u, V::splat(-2.0 * 0.797_884_56));
        V::div(x, V::add(V::splat(1.0), exp::<V>(u)))
    }
}

/// Applies a 16-lane step to whole rows; the rest goes through a padded copy.
macro_rules! gated {
    ($name:ident, $act:ident) => {
        /// # Safety
        /// The features of `V`; equal lengths.
        #[inline(always)]
        unsafe fn $name<V: Lanes>(gate: &mut [f32], up: &[f32]) {
            let whole = gate.len() / 16 * 16;
            // SAFETY: 16 values from each index below `whole`; the rest in arrays of 16.
            unsafe {
                for i in (0..whole).step_by(16) {
                    let g = gate.as_mut_ptr().add(i);
                    let y = V::mul($act::<V>(V::load(g)), V::load(up.as_ptr().add(i)));
                    V::store(g, y);
                }
                if whole < gate.len() {
                    let (mut g, mut u) = ([0f32; 16], [0f32; 16]);
                    let n = gate.len() - whole;
                    g[..n].copy_from_slice(&gate[whole..]);
                    u[..n].copy_from_slice(&up[whole..]);
                    let y = V::mul($act::<V>(V::load(g.as_ptr())), V::load(u.as_ptr()));
                    V::store(g.as_mut_ptr(), y);
                    gate[whole..].copy_from_slice(&g[..n]);
                }
            }
        }
    };
}
gated!(silu_mul, silu);
gated!(gelu_mul, gelu);
dispatch!(silu_mul_fn, silu_mul_entry [] [] => silu_mul(gate: &mut [f32], up: &[f32]));
dispatch!(gelu_mul_fn, gelu_mul_entry [] [] => gelu_mul(gate: &mut [f32], up: &[f32]));
