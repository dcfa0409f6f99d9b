//! The conformance suite: the same cases on the kernel interpreter, the CPU and Vulkan.

mod drive;
mod fixture;
mod interpreted;

pub use drive::{Chunk, Driver};
pub use fixture::{Distance, Fixture, data, distance};
pub use interpreted::{InterpretedDevice, gpu_caps};
