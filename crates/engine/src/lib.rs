//! Runs sequences of tokens through a model: paging, batching, sampling.
//!
//! ```text
//! Request ─submit─► Scheduler ─Batch─► Device ─logits or ids─► Sampler ─► Event
//!                      │  ▲
//!                   KvPool pages, PrefixCache
//! ```
//!
//! Load once, then call [`Engine::step`] until it is idle. The engine owns no clock, and starts no thread but the one that
//! makes the plan that will be needed next; text lives in the caller.

mod ahead;
mod audit;
mod batch;
mod bucket;
mod engine;
mod pool;
mod prefix;
mod programs;
mod random;
mod replace;
mod sampler;
mod scheduler;
mod sequence;
mod share;
mod store;

pub use audit::AuditError;
pub use bucket::context_bucket;
pub use engine::{Engine, EngineError, Load, Options, Ran};
pub use programs::Program;
pub use random::Random;
pub use replace::OpenError;
pub use sampler::{Sampling, SamplingError, argmax};
pub use sequence::{Constraint, Event, Finish, Request, Salt, SequenceId};
pub use share::Share;
pub use store::{KeptPage, PageName, PageStore};
