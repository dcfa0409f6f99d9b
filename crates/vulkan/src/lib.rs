//! Vulkan as a device that runs plans, behind an interface that names no Vulkan type.
//!
//! ```text
//! list_devices ─► DeviceReport (and why one cannot be used)
//! VulkanDevice::open ─► load (weights) ─► prepare (plan → pipelines → recorded commands) ─► run (one submit)
//! compile_only ─► KernelStats (registers, spills, occupancy; needs no hardware)
//! VulkanDevice::measure ─► Measured (bandwidth, launch costs, arithmetic)
//! ```
//!
//! The loader library is opened at run time: a program that links this crate starts on machines without Vulkan.

mod ahead;
mod cache;
mod device;
mod direct;
mod error;
mod instance;
mod measure;
mod memory;
mod model;
mod pages;
mod parts;
mod pipeline;
mod program;
mod quads;
mod repack;
mod replay;
mod report;
mod stats;
mod synthesize;
mod upload;
mod vulkan_device;

pub use direct::KernelArg;
pub use error::VulkanError;
pub use quads::Quads;
pub use replay::Patience;
pub use report::{DeviceReport, DeviceType, Heap, list_devices};
pub use stats::{KernelStats, compile_only};
pub use vulkan_device::{Options, VulkanDevice};
