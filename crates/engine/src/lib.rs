//! Runs sequences of tokens through a model: paging, batching, sampling.
//!
//! ```text
//! Request ─submit─► Scheduler ─Batch─► Device ─logits or ids─► Sampler ─► Event
//!                      │  ▲
//!                   KvPool pages, PrefixCache
//! ```
//!
//! Load once, then call [`Engine::step`] until it is idle. The engine starts no thread and owns no clock; text lives
//! in the caller.

mod bucket;
mod engine;
mod pool;
mod prefix;
mod random;
mod sampler;
mod scheduler;
mod sequence;

pub use bucket::context_bucket;
pub use engine::{Engine, EngineError, Options, Program, Ran};
pub use random::Random;
pub use sampler::{Sampling, SamplingError, argmax};
pub use sequence::{Event, Finish, Request, SequenceId};
