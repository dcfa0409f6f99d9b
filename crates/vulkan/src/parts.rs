//! How much of a step goes to the device with one submission.
//!
//! ```text
//! launches ─► seconds on a slow device ─× pace─► launch, launch │ launch │ launch, launch, launch   (parts)
//!                                         ▲
//!             pace of the last run ───────┘   of the slowest program, before the first run
//! ```
//!
//! An operating system takes a device for hung that is busy with one submission for too long: after two seconds on Windows,
//! ten on Linux with AMD. So long prompts of large models, and long contexts, are handed over in parts. A launch is never
//! divided: one that takes seconds by itself wants fewer rows (`--ubatch-size`).

use std::time::Duration;
use zinc_ir::plan::{Entry, Launch, Plan};

/// Bytes and operations per second of a slow device: a step is divided too often rather than too seldom the first time.
const SLOW_BYTES: f64 = 20e9;
const SLOW_FLOPS: f64 = 100e9;

/// Seconds of a slow device.
fn cost(launch: &Launch) -> f64 {
    launch.bytes as f64 / SLOW_BYTES + launch.flops as f64 / SLOW_FLOPS
}

/// What part of a slow device's time this one takes for a plan, if it took `time`.
pub(crate) fn pace(plan: &Plan, time: Duration) -> f64 {
    time.as_secs_f64() / plan.launches().map(cost).sum::<f64>().max(f64::MIN_POSITIVE)
}

/// The entries that parts begin with, after the first part, if no part of several launches shall take longer than
/// `longest`.
pub(crate) fn starts(plan: &Plan, longest: Duration, pace: f64) -> Vec<usize> {
    let (longest, mut sum, mut starts) = (longest.as_secs_f64(), 0.0, vec![]);
    for (at, entry) in plan.entries.iter().enumerate() {
        let Entry::Launch(launch) = entry else { continue };
        let time = cost(launch) * pace;
        if sum > 0.0 && sum + time > longest {
            starts.push(at);
            sum = 0.0;
        }
        sum += time;
    }
    starts
}
