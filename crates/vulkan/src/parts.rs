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
use zinc_ir::graph::Op;
use zinc_ir::plan::{Cost, Entry, Launch, Plan, Step};

/// Bytes and operations per second of a slow device: a step is divided too often rather than too seldom the first time.
const SLOW_BYTES: f64 = 20e9;
const SLOW_FLOPS: f64 = 100e9;

/// Seconds of a slow device.
fn seconds(bytes: u64, flops: u64) -> f64 {
    bytes as f64 / SLOW_BYTES + flops as f64 / SLOW_FLOPS
}

fn cost(launch: &Launch) -> f64 {
    seconds(launch.bytes, launch.flops)
}

/// What a plan costs.
pub(crate) struct Work {
    /// Seconds of a slow device for a step that sees the bucket's whole context …
    whole: f64,
    /// … and those of them that are attention.
    attention: f64,
    /// Rows that the bucket's rows see together.
    sees: f64,
}

impl Work {
    pub(crate) fn of(plan: &Plan) -> Work {
        let attention = |launch: &Launch| match launch.attends.map(|node| plan.graph.op(node)) {
            Some(Op::Attention { spec, .. }) => {
                let Cost { bytes, flops } = Cost::of_attention(spec, plan.kv.types, &plan.bucket);
                seconds(bytes, flops)
            }
            _ => 0.0,
        };
        Work {
            whole: plan.launches().map(cost).sum(),
            attention: plan.launches().map(attention).sum(),
            sees: plan.bucket.tokens as f64 * plan.bucket.context as f64,
        }
    }

    /// Seconds of a slow device for this step, which may see far less than the bucket has room for.
    pub(crate) fn of_step(&self, step: &Step) -> f64 {
        let sees: u64 = step.positions.iter().map(|position| *position as u64 + 1).sum();
        self.whole - self.attention * (1.0 - sees as f64 / self.sees).clamp(0.0, 1.0)
    }
}

/// What part of a slow device's time this one takes, if it took `time` for what costs that `cost`.
pub(crate) fn pace(cost: f64, time: Duration) -> Option<f64> {
    (cost > 0.0).then(|| time.as_secs_f64() / cost)
}

/// Are parts that were made for pace `made` right for pace `now`? They are made again only if they are far off.
pub(crate) fn still_right(made: f64, now: f64) -> bool {
    (made / 4.0..made * 2.0).contains(&now)
}

/// The entries that parts begin with, after the first part, if no part of several launches shall take longer than
/// `longest`.
pub(crate) fn starts(plan: &Plan, longest: Duration, pace: f64) -> Vec<usize> {
    let launches = plan.entries.iter().enumerate().filter_map(|(at, entry)| match entry {
        Entry::Launch(launch) => Some((at, cost(launch) * pace)),
        Entry::Barrier => None,
    });
    divided(launches, longest.as_secs_f64())
}

fn divided(launches: impl Iterator<Item = (usize, f64)>, longest: f64) -> Vec<usize> {
    let (mut sum, mut starts) = (0.0, vec![]);
    for (at, time) in launches {
        if sum > 0.0 && sum + time > longest {
            starts.push(at);
            sum = 0.0;
        }
        sum += time;
    }
    starts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn starts_of(times: &[f64], longest: f64) -> Vec<usize> {
        divided(times.iter().copied().enumerate(), longest)
    }

    #[test]
    fn parts_are_as_long_as_they_may_be() {
        assert_eq!(starts_of(&[1.0, 1.0, 1.0, 1.0, 1.0], 2.0), [2, 4]);
        assert_eq!(starts_of(&[1.0, 5.0, 1.0], 2.0), [1, 2], "a launch is never divided");
        assert_eq!(starts_of(&[0.0, 0.0], 0.0), [0; 0]);
        assert_eq!(starts_of(&[1.0, 2.0], 1e9), [0; 0]);
    }

    #[test]
    fn a_pace_is_of_the_step_that_ran() {
        let work = Work { whole: 10.0, attention: 8.0, sees: 4.0 * 1000.0 };
        let step = |positions: &[u32]| Step { positions: positions.to_vec(), ..Step::default() };
        assert_eq!(work.of_step(&step(&[999; 4])), 10.0);
        assert_eq!(work.of_step(&step(&[499; 4])), 6.0);
        assert_eq!(work.of_step(&step(&[])), 2.0);
        assert_eq!(pace(6.0, Duration::from_secs(3)), Some(0.5));
        assert_eq!(pace(0.0, Duration::from_secs(3)), None);
        assert!(still_right(1.0, 0.3) && still_right(1.0, 1.9) && !still_right(1.0, 0.2) && !still_right(1.0, 2.1));
    }
}
