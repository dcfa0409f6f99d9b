//! Finds the best cuts of a model's kernels for a device, with proof that they compute the same.
//!
//! ```text
//! model ─part─► some layers that have every kernel ─load─► device under test        trusted device ─► expected logits
//! round: each key's next cut ─compiler's statistics─► ─► logits as expected? ─► launch times over rotating weights
//!             ▲  near the best so far                        └─ no: bisect, quarantine
//!             └──────────────────────────────────────────────────────────────────────┘
//! end: best against rule, in turns ─► Record
//! ```
//!
//! A wrong cut is never timed, and one that loses the device is found on trial in the record at the next start. Nothing
//! here names a device, a file or a clock.

mod record;
mod search;
mod statistics;
mod trial;

pub use record::{FORMAT, OnTrial, Quarantined, Record, Verdict};
pub use search::{Ending, Event, Host, KeyReport, Report, tune};
pub use trial::{Model, Off};

use std::time::Duration;
use zinc_compiler::CompileError;
use zinc_ir::device::DeviceError;
use zinc_ir::plan::{ActPrecision, KvTypes};

/// What is tuned, and for how long.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Precision of inputs of products.
    pub act: ActPrecision,
    /// Element type of cached K and V.
    pub kv: KvTypes,
    /// Token rows per step: 1 to [`zinc_compiler::kernels::CUT_ROWS`].
    pub rows: u32,
    /// Time to spend once the model is loaded.
    pub budget: Duration,
}

/// Why nothing could be tuned.
#[derive(Debug, thiserror::Error)]
pub enum TuneError {
    /// No kernel of the plan has cuts to choose from.
    #[error("there is nothing to tune: no kernel of this model has a choice on this device")]
    Nothing,
    /// The device gives no times of single launches.
    #[error("the device has no clock for single launches, so nothing can be tuned on it")]
    NoClock,
    /// So many rows use other kernels.
    #[error("steps of {rows} rows have no kernels to tune; give 1 to {most}")]
    Rows {
        /// Rows asked for.
        rows: u32,
        /// Most that can be tuned.
        most: u32,
    },
    /// The kernels by rule are wrong already.
    #[error(
        "the kernels that the rules choose differ from the CPU by {off} (allowed: {allowed}); nothing is tuned on top \
         of that, please report it with the output of `zinc devices`"
    )]
    RulesDiffer {
        /// By how much.
        off: Off,
        /// How much is to be expected of the precision.
        allowed: Off,
    },
    /// The model does not compile.
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// One of the devices failed before anything was on trial.
    #[error(transparent)]
    Device(#[from] DeviceError),
}
