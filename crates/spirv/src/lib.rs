//! Kernels of the IR as SPIR-V 1.6 words for Vulkan 1.3.
//!
//! ```text
//! Kernel ──requirements──► Requirements (what a device must offer)
//!        ──push_layout───► PushLayout   (where launch arguments go)
//!        ──emit──────────► Vec<u32>     (module: shapes, sizes and layouts are all literals)
//! ```
//!
//! Pure and deterministic: the same kernel and modes give the same words. Three choices carry the speed:
//!
//! * Global memory is `PhysicalStorageBuffer`. Every access states its alignment, and a read-only load goes through
//!   a block member marked `NonWritable Restrict`, so that drivers may hoist, merge and use their scalar caches.
//! * A barrier orders global memory only where the kernel has global accesses to order around it.
//! * Control flow is structured with phis; there are no function-local variables and no calls.

mod arguments;
mod arith;
mod barrier;
mod control;
mod disassemble;
mod emitter;
mod memory;
mod require;

pub use disassemble::{DisassembleError, disassemble};
pub use require::{MatrixShape, PUSH_BYTES, PushLayout, Requirements, push_layout, requirements};

use zinc_ir::kernel::{Kernel, Type, Value};

/// Floating-point execution modes that a device may or may not have (VkPhysicalDeviceVulkan12Properties).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct FloatModes {
    /// Conversions to F16 round to nearest even (`shaderRoundingModeRTEFloat16`, settable apart from F32).
    pub rte_f16: bool,
    /// Infinities and NaN of F32 keep their meaning (`shaderSignedZeroInfNanPreserveFloat32`).
    pub preserve_f32: bool,
}

/// Why a kernel has no SPIR-V form: bugs of whoever built the kernel.
#[derive(thiserror::Error, Debug, Clone, PartialEq)]
pub enum EmitError {
    /// A value is used where it is not defined.
    #[error("kernel {kernel}: value {} is used before it is defined; run the kernel verifier", value.0)]
    Undefined {
        /// Kernel name.
        kernel: String,
        /// The value.
        value: Value,
    },
    /// An operation has operand or result types it is not defined for.
    #[error("kernel {kernel}: value {} ({op}) is not defined for type {ty:?}; convert its operands first", value.0)]
    BadType {
        /// Kernel name.
        kernel: String,
        /// The operation's value.
        value: Value,
        /// What it does.
        op: String,
        /// Offending type.
        ty: Type,
    },
    /// An index (argument, shared array, lane) is out of range.
    #[error("kernel {kernel}: value {} names {what} {index}, which does not exist; run the kernel verifier", value.0)]
    OutOfRange {
        /// Kernel name.
        kernel: String,
        /// The operation's value.
        value: Value,
        /// What is indexed.
        what: &'static str,
        /// The index.
        index: u32,
    },
}

/// The SPIR-V words of `kernel`; the entry point is `main`.
pub fn emit(kernel: &Kernel, modes: FloatModes) -> Result<Vec<u32>, EmitError> {
    emitter::Emitter::new(kernel, modes).run()
}
