//! The CPU device: native kernels behind the shared plan.
//!
//! ```text
//! Plan ─► CpuDevice ─► Pool (claim loops) ─► kernels over `Lanes` ─► scalar │ AVX2 │ AVX-512 │ NEON
//! ```
//! Weights are packed once into tiles of 16 rows ([`Packed`]), activations are grouped and,
//! if asked, quantized ([`Activations`]), and every product claims row tiles dynamically.

mod attention;
mod device;
mod kv;
mod matmul;
mod measure;
mod memory;
mod pool;
mod rows;
mod scratch;
mod simd;

pub use device::CpuDevice;
pub use matmul::activations::Activations;
pub use matmul::packed::{PackError, Packed};
pub use matmul::{Product, multiply};
pub use pool::{Pool, PoolError};
pub use simd::Isa;
