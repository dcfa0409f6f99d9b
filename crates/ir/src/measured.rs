//! What a device was measured to do: the limits that all percentages in reports are of.
//!
//! ```text
//! VulkanDevice::measure │ CpuDevice::measure ─► Measured ─► stored by the binary, printed, compared with real launches
//! ```
//!
//! Rates are per second in plain units (bytes, operations), times are seconds. A multiply-add counts as two operations.

use crate::device::MatrixShape;
use serde::{Deserialize, Serialize};

/// Changes when the meaning of a figure, or the way it is taken, changes: stored figures of another version are taken
/// again.
pub const FORMAT: u32 = 2;

/// One device's measured limits.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Measured {
    /// [`FORMAT`] of the version that measured.
    pub format: u32,
    /// The device in words.
    pub device: String,
    /// What the figures hold for: device, driver and its version.
    pub identity: String,
    /// Bytes of memory that the reads went over: more than the caches hold.
    pub read_over: u64,
    /// Streaming reads, one row per way of reading.
    pub reads: Vec<ReadRate>,
    /// Streaming writes of 16 bytes per lane, bytes per second.
    pub write: f64,
    /// What a launch costs, by number of workgroups (on the CPU: by number of threads).
    pub launches: Vec<LaunchCost>,
    /// Seconds that a timestamp behind a launch adds to it: what profiles must be freed of.
    pub stamp: f64,
    /// What a submission costs; none where nothing is submitted.
    pub submit: Option<SubmitCost>,
    /// F32 multiply-adds, operations per second.
    pub fma: f64,
    /// Four-way byte dot products, operations per second (eight each).
    pub dot4: f64,
    /// Cooperative matrices, one row per shape.
    pub matrices: Vec<MatrixRate>,
    /// Seconds that measuring took.
    pub took: f64,
    /// How far the best pass was ahead of the second best, as a part of it, in the figure where they differ most: large if
    /// the machine was busy.
    #[serde(default)]
    pub spread: f64,
}

/// A [`Measured::spread`] up to this is what idle machines have.
pub const USUAL_SPREAD: f64 = 0.1;

/// A streaming read.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct ReadRate {
    /// Bytes per load.
    pub load_bytes: u32,
    /// Loads that a lane issues before it uses the first.
    pub in_flight: u32,
    /// Lanes per workgroup.
    pub lanes: u32,
    /// Workgroups (on the CPU: threads).
    pub workgroups: u32,
    /// Bytes per second.
    pub rate: f64,
}

/// What a launch costs beside its work.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct LaunchCost {
    /// Workgroups.
    pub workgroups: u32,
    /// Seconds per launch in a chain with a barrier before each.
    pub dependent: f64,
    /// Seconds per launch in a row of launches without barriers; none where launches never overlap.
    pub independent: Option<f64>,
}

/// What a submission costs, in seconds: medians.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct SubmitCost {
    /// The submit call alone.
    pub call: f64,
    /// From the call to the result of one tiny launch, asleep in between.
    pub asleep: f64,
    /// The same, watching for it.
    pub watching: f64,
}

/// Rate of one cooperative-matrix shape.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct MatrixRate {
    /// Shape and types.
    pub shape: MatrixShape,
    /// Operations per second.
    pub rate: f64,
}

impl Measured {
    /// The highest streaming-read rate: the roof of all memory-bound work.
    pub fn read(&self) -> f64 {
        self.reads.iter().map(|r| r.rate).fold(0.0, f64::max)
    }

    /// The highest rate for loads of this many bytes.
    pub fn read_by(&self, load_bytes: u32) -> Option<f64> {
        self.reads.iter().filter(|r| r.load_bytes == load_bytes).map(|r| r.rate).max_by(f64::total_cmp)
    }

    /// Seconds that a dependent launch of `workgroups` costs beside its work: between the measured numbers along a
    /// straight line, beyond them as the nearest. 0 if nothing was measured.
    pub fn dependent_launch(&self, workgroups: u32) -> f64 {
        let rows = &self.launches;
        let at = rows.partition_point(|r| r.workgroups < workgroups);
        match (at.checked_sub(1).and_then(|i| rows.get(i)), rows.get(at)) {
            (Some(low), Some(high)) => {
                let part = f64::from(workgroups - low.workgroups) / f64::from(high.workgroups - low.workgroups);
                low.dependent + part * (high.dependent - low.dependent)
            }
            (Some(one), None) | (None, Some(one)) => one.dependent,
            (None, None) => 0.0,
        }
    }

    /// The best of some passes over the same device, with their [`Measured::spread`]; `None` of none. Whatever else the
    /// machine does can only make a pass slower.
    pub fn best_of(passes: &[Measured]) -> Option<Measured> {
        let figures = [Measured::read, |m: &Measured| m.write, |m: &Measured| m.fma, |m: &Measured| m.dot4];
        let best = passes.iter().max_by(|a, b| a.read().total_cmp(&b.read()))?;
        let ranked = figures.map(|figure| {
            let mut all: Vec<f64> = passes.iter().map(figure).collect();
            all.sort_by(|a, b| b.total_cmp(a));
            all
        });
        let spread = ranked.iter().filter_map(|all| Some((all[0] - all.get(1)?) / all[0].max(f64::MIN_POSITIVE)));
        let spread = spread.fold(0.0, f64::max);
        let (write, fma, dot4) = (ranked[1][0], ranked[2][0], ranked[3][0]);
        let took = passes.iter().map(|pass| pass.took).sum();
        Some(Measured { write, fma, dot4, spread, took, ..best.clone() })
    }

    /// Whether every figure that must be there is a positive number: what was stored may have been damaged.
    pub fn is_sound(&self) -> bool {
        let positive = |x: &f64| x.is_finite() && *x > 0.0;
        let costs = self.launches.iter().flat_map(|l| [Some(l.dependent), l.independent]).flatten();
        let rates = self.reads.iter().map(|r| r.rate).chain(self.matrices.iter().map(|m| m.rate));
        let submit = self.submit.iter().flat_map(|s| [s.call, s.asleep, s.watching]);
        let ordered = self.launches.windows(2).all(|w| w[0].workgroups < w[1].workgroups);
        let all: Vec<f64> = costs.chain(rates).chain(submit).chain([self.fma, self.dot4, self.write]).collect();
        self.format == FORMAT
            && !self.reads.is_empty()
            && !self.launches.is_empty()
            && ordered
            && self.stamp.is_finite()
            && self.stamp >= 0.0
            && all.iter().all(positive)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured() -> Measured {
        let read = |load_bytes, rate| ReadRate { load_bytes, in_flight: 2, lanes: 256, workgroups: 64, rate };
        let launch = |workgroups, dependent| LaunchCost { workgroups, dependent, independent: None };
        Measured {
            format: FORMAT,
            reads: vec![read(4, 3e9), read(16, 5e9), read(16, 4e9)],
            launches: vec![launch(1, 2e-6), launch(64, 3e-6), launch(1064, 5e-6)],
            write: 1e9,
            fma: 1e12,
            dot4: 4e12,
            ..Measured::default()
        }
    }

    #[test]
    fn the_roof_is_the_best_read() {
        assert_eq!(measured().read(), 5e9);
        assert_eq!(measured().read_by(4), Some(3e9));
        assert_eq!(measured().read_by(8), None);
    }

    #[test]
    fn launch_costs_are_interpolated() {
        let m = measured();
        let near = |n, cost: f64| assert!((m.dependent_launch(n) - cost).abs() < 1e-12, "{n}");
        near(0, 2e-6);
        near(1, 2e-6);
        near(64, 3e-6);
        near(564, 4e-6);
        near(5000, 5e-6);
        assert_eq!(Measured::default().dependent_launch(3), 0.0);
    }

    #[test]
    fn the_best_of_passes_counts_and_tells_whether_it_was_alone() {
        let slower = |by: f64| {
            let mut m = Measured { write: 1e9 / by, took: 1.0, ..measured() };
            m.reads.iter_mut().for_each(|r| r.rate /= by);
            m
        };
        let faster_arithmetic = Measured { fma: 1.05e12, ..slower(2.0) };
        let disturbed = Measured::best_of(&[measured(), faster_arithmetic.clone()]).expect("two passes");
        assert_eq!((disturbed.read(), disturbed.write, disturbed.fma), (5e9, 1e9, 1.05e12));
        assert!((disturbed.spread - 0.5).abs() < 1e-9, "{}", disturbed.spread);
        let again = Measured::best_of(&[faster_arithmetic, measured(), slower(1.02)]).expect("three passes");
        assert!(again.spread < USUAL_SPREAD && again.took == 2.0, "{again:?}");
        assert_eq!(Measured::best_of(&[measured()]).expect("one").spread, 0.0);
        assert_eq!(Measured::best_of(&[]), None);
    }

    #[test]
    fn damaged_figures_are_noticed() {
        assert!(measured().is_sound());
        assert!(!Measured::default().is_sound());
        assert!(!Measured { format: FORMAT + 1, ..measured() }.is_sound());
        assert!(!Measured { fma: f64::NAN, ..measured() }.is_sound());
        assert!(!Measured { stamp: -1e-6, ..measured() }.is_sound());
        let mut backwards = measured();
        backwards.launches.reverse();
        assert!(!backwards.is_sound());
        let mut stopped = measured();
        stopped.reads[1].rate = 0.0;
        assert!(!stopped.is_sound());
    }
}
