//! Kernels: the typed, structured form of one compute shader.
//!
//! ```text
//! inst (what it is) ◄─ build (how templates write it) ; verify, text, interpret (what it means)
//! ```

mod build;
mod inst;

pub use build::{Builder, Val};
pub use inst::*;
