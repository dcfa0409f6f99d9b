//! What every part of Zinc shares: the tensor graph of a model, the plan made from it, the kernels in the plan,
//! the weight formats, and the trait of a device that runs plans.
//!
//! ```text
//! Graph ──(compiler)──► Plan { Launch { region of the Graph, Kernel } } ──► Device
//! ```
//!
//! This crate does no IO, starts no thread and implements no device.

pub mod device;
pub mod graph;
pub mod immediate;
pub mod kernel;
pub mod measured;
pub mod plan;
pub mod quant;
pub mod sample;
pub mod synthetic;
