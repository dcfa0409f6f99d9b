//! Kernels: the typed, structured form of one compute shader.
//!
//! ```text
//! inst (what it is) ◄─ build (how templates write it) ; verify, text, interpret (what it means)
//! ```

mod build;
mod inst;
pub mod interpret;
pub mod samples;
mod text;
mod types;
mod verify;

pub use build::{Builder, Leaves, Val};
pub use inst::*;
pub use text::{ParseError, parse};
pub use verify::{MAX_DEPTH, Problem, VerifyError, verify, verify_structure};
