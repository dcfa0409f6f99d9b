//! Where the time of a token goes, measured against what the machine attains.
//!
//! ```text
//! launches with times, bytes, FLOPs ─┐
//! measured limits ───────────────────┼─► Roofline: kinds │ launch gaps │ host ─► table, JSON, plot, one sentence
//! wall time with and without profile ┘
//! ```
//!
//! A launch's time runs from the end of the launch before to its own end. Of that, what a dependent launch costs on this
//! machine is a *gap*, and the rest is work. The *limit* of a launch is the time that its bytes take at the measured
//! streaming rate or its operations at the measured peak, whichever is longer. What a profiled token takes beyond its
//! launches is the host's. Timestamps hold launches up: what each was measured to add is taken off, and shown. Nothing else
//! is changed to fit: the sum of the parts is compared with the time per token of runs without a profile, and a difference
//! is shown.

mod svg;
mod table;

pub(crate) use svg::plot;

use std::collections::BTreeMap;
use zinc_ir::kernel::{Kernel, Op, Scalar};
use zinc_ir::measured::Measured;
use zinc_ir::plan::{ActPrecision, Cost, Entry, Plan};

/// A difference between the sum of parts and the wall time that is worth a warning.
const TOLERANCE: f64 = 0.03;

/// What does a kernel's arithmetic.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Unit {
    /// F32 multiply-adds.
    Fma,
    /// Byte dot products.
    Dot4,
    /// Cooperative matrices of halves.
    Matrix,
}

/// What is known of a launch before it runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Expected {
    pub(crate) unit: Unit,
    /// It waits for the launch before.
    pub(crate) waits: bool,
    /// Workgroups; none where the device runs regions itself.
    pub(crate) groups: Option<u32>,
}

/// What to expect of each launch of a plan, in order.
pub(crate) fn expected(plan: &Plan) -> Vec<Expected> {
    let units: Vec<Unit> = plan.kernels.iter().map(unit).collect();
    let native = if plan.act == ActPrecision::Q8 { Unit::Dot4 } else { Unit::Fma };
    // Before the first launch stands the barrier towards the step before.
    let mut waits = true;
    let mut launches = vec![];
    for entry in &plan.entries {
        match entry {
            Entry::Barrier => waits = true,
            Entry::Launch(launch) => {
                let kernel = launch.kernel.map(|k| k.0 as usize);
                let unit = kernel.and_then(|k| units.get(k).copied()).unwrap_or(native);
                let groups = kernel.map(|_| launch.grid.iter().fold(1, |n: u32, g| n.saturating_mul(*g)));
                // A device that runs regions itself runs them one after the other.
                launches.push(Expected { unit, waits: waits || kernel.is_none(), groups });
                waits = false;
            }
        }
    }
    launches
}

fn unit(kernel: &Kernel) -> Unit {
    let has = |test: fn(&Op) -> bool| kernel.ops.iter().any(test);
    if has(|op| matches!(op, Op::MatrixMulAdd(..))) {
        Unit::Matrix
    } else if has(|op| matches!(op, Op::Dot4 { .. })) {
        Unit::Dot4
    } else {
        Unit::Fma
    }
}

/// A launch that ran.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ran {
    pub(crate) template: &'static str,
    pub(crate) expected: Expected,
    /// From the end of the launch before to its own.
    pub(crate) seconds: f64,
    pub(crate) cost: Cost,
}

/// Launches of one template, summed over all tokens. Times in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Kind {
    pub(crate) launches: u64,
    pub(crate) bytes: u64,
    pub(crate) flops: u64,
    /// Time without gaps.
    pub(crate) work: f64,
    pub(crate) gap: f64,
    /// Work at the limit of memory, of those launches that memory limits.
    pub(crate) memory: f64,
    /// Work at the limit of arithmetic, of the others.
    pub(crate) arithmetic: f64,
}

impl Kind {
    /// Time that the work would take at its limits.
    pub(crate) fn limit(&self) -> f64 {
        self.memory + self.arithmetic
    }

    /// Part of the limit that is attained; above 1 where data comes out of caches.
    pub(crate) fn attained(&self) -> f64 {
        self.limit() / self.work.max(1e-12)
    }

    /// The work is long enough, beside the gaps and timestamps it was told from, to say what it attains.
    pub(crate) fn tells(&self) -> bool {
        self.work > 0.05 * self.gap && self.attained() < 10.0
    }

    /// Memory limits most of it.
    pub(crate) fn by_memory(&self) -> bool {
        self.memory >= self.arithmetic
    }

    fn add(&mut self, ran: &Ran, limits: &Limits) {
        let seconds = ran.seconds - limits.stamp(ran);
        let gap = limits.gap(&ran.expected).min(seconds);
        let memory = ran.cost.bytes as f64 / limits.read;
        let arithmetic = ran.cost.flops as f64 / limits.peak(ran.expected.unit);
        self.launches += 1;
        self.bytes += ran.cost.bytes;
        self.flops += ran.cost.flops;
        self.gap += gap;
        self.work += seconds - gap;
        if memory >= arithmetic { self.memory += memory } else { self.arithmetic += arithmetic }
    }
}

/// The measured roofs. Rates per second, the launch in seconds.
#[derive(Clone, Debug)]
pub(crate) struct Limits {
    pub(crate) read: f64,
    pub(crate) fma: f64,
    pub(crate) dot4: f64,
    /// Half matrices with sums in singles; none: there are none.
    pub(crate) matrix: Option<f64>,
    measured: Measured,
}

impl Limits {
    pub(crate) fn new(measured: Measured) -> Limits {
        let singles = measured.matrices.iter().filter(|m| m.shape.acc == Scalar::F32);
        let matrix = singles.map(|m| m.rate).max_by(f64::total_cmp);
        Limits { read: measured.read(), fma: measured.fma, dot4: measured.dot4, matrix, measured }
    }

    pub(crate) fn peak(&self, unit: Unit) -> f64 {
        match unit {
            Unit::Fma => self.fma,
            Unit::Dot4 => self.dot4,
            Unit::Matrix => self.matrix.unwrap_or(self.fma),
        }
    }

    /// What the timestamp behind a launch added to it.
    fn stamp(&self, ran: &Ran) -> f64 {
        self.measured.stamp.min(ran.seconds)
    }

    /// What a launch costs beside its work.
    fn gap(&self, expected: &Expected) -> f64 {
        // A device that runs regions itself was measured with all of its threads last.
        let groups = expected.groups.unwrap_or(u32::MAX);
        if expected.waits { self.measured.dependent_launch(groups) } else { 0.0 }
    }
}

/// The parts that a token's time falls into.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Part {
    Memory,
    Arithmetic,
    BelowLimit,
    Gaps,
    Host,
}

/// A test's launches against the limits. All sums are over `tokens` tokens.
#[derive(Clone, Debug)]
pub(crate) struct Roofline {
    pub(crate) limits: Limits,
    pub(crate) tokens: u64,
    pub(crate) kinds: BTreeMap<&'static str, Kind>,
    /// Time of the profiled tokens, by the host's clock.
    pub(crate) profiled: f64,
    /// What timestamps added to it.
    pub(crate) stamps: f64,
    /// Time of as many tokens without a profile.
    pub(crate) wall: f64,
}

impl Roofline {
    /// `profiled` and `wall` are seconds per token.
    pub(crate) fn new(limits: &Limits, ran: &[Ran], tokens: u64, profiled: f64, wall: f64) -> Roofline {
        let mut kinds: BTreeMap<&'static str, Kind> = BTreeMap::new();
        for launch in ran {
            kinds.entry(launch.template).or_default().add(launch, limits);
        }
        let stamps = ran.iter().map(|launch| limits.stamp(launch)).sum();
        let all = tokens as f64;
        Roofline { limits: limits.clone(), tokens, kinds, profiled: profiled * all, stamps, wall: wall * all }
    }

    /// Time of all launches, gaps included.
    pub(crate) fn launched(&self) -> f64 {
        self.kinds.values().map(|k| k.work + k.gap).sum()
    }

    /// Time in which no launch was under way.
    pub(crate) fn host(&self) -> f64 {
        (self.profiled - self.stamps - self.launched()).max(0.0)
    }

    pub(crate) fn gaps(&self) -> f64 {
        self.kinds.values().map(|k| k.gap).sum()
    }

    /// Sum of all parts.
    pub(crate) fn parts(&self) -> f64 {
        self.launched() + self.host()
    }

    /// By how much the sum of parts differs from the wall time, as a part of it.
    pub(crate) fn difference(&self) -> f64 {
        (self.parts() - self.wall) / self.wall.max(1e-12)
    }

    /// The warning that the figures do not fit together, if they do not.
    pub(crate) fn warning(&self) -> Option<String> {
        let difference = self.difference();
        (difference.abs() > TOLERANCE).then(|| {
            format!(
                "the parts differ from the wall time by {:+.1} % (more than {:.0} %): timestamps disturb these launches, \
                 or the machine was busy; measure again",
                100.0 * difference,
                100.0 * TOLERANCE
            )
        })
    }

    /// The five parts; they add up to [`Roofline::parts`].
    pub(crate) fn split(&self) -> [(Part, f64); 5] {
        let (mut memory, mut arithmetic, mut below) = (0.0, 0.0, 0.0);
        for kind in self.kinds.values() {
            // What caches make faster than the limit is charged as it was, not as it would have been.
            let scale = (kind.work / kind.limit().max(1e-12)).min(1.0);
            memory += kind.memory * scale;
            arithmetic += kind.arithmetic * scale;
            below += kind.work - kind.limit() * scale;
        }
        [
            (Part::Memory, memory),
            (Part::Arithmetic, arithmetic),
            (Part::BelowLimit, below.max(0.0)),
            (Part::Gaps, self.gaps()),
            (Part::Host, self.host()),
        ]
    }

    /// One sentence: what limits this model here.
    pub(crate) fn sentence(&self) -> String {
        let parts = self.split();
        let all = self.parts().max(1e-12);
        let percent = |seconds: f64| format!("{:.0} %", 100.0 * seconds / all);
        let bytes: u64 = self.kinds.values().map(|k| k.bytes).sum();
        let per_token = bytes as f64 / self.tokens.max(1) as f64;
        if per_token / self.limits.read > all {
            return format!(
                "faster than memory: {} come out of caches, so the measured reading limit of {} GB/s says nothing here",
                table::bytes(per_token),
                table::giga(self.limits.read)
            );
        }
        let Some((first, time)) = parts.iter().copied().max_by(|a, b| a.1.total_cmp(&b.1)) else {
            return String::new();
        };
        let head = match first {
            Part::Memory => format!(
                "memory-bound: {} of the time is what {} take at the {} GB/s that reading attains here",
                percent(time),
                table::bytes(per_token),
                table::giga(self.limits.read)
            ),
            Part::Arithmetic => {
                format!("bound by arithmetic: {} of the time is what the operations take at their peak", percent(time))
            }
            Part::BelowLimit => format!(
                "bound by occupancy: {} of the time launches run below their limits (latency, too little in flight)",
                percent(time)
            ),
            Part::Gaps => format!("bound by launch gaps: {} of the time passes between launches", percent(time)),
            Part::Host => format!("bound by the host: {} of the time no launch is under way", percent(time)),
        };
        let mut rest: Vec<(Part, f64)> =
            parts.into_iter().filter(|(part, t)| *part != first && t / all >= 0.005).collect();
        rest.sort_by(|a, b| b.1.total_cmp(&a.1));
        let name = |part: Part| match part {
            Part::Memory => "reading at the limit".to_string(),
            Part::Arithmetic => "arithmetic at its peak".to_string(),
            Part::BelowLimit => match self.slowest() {
                Some((kind, attained)) => {
                    format!(
                        "launches below their limits (most of it {kind}, at {:.0} % of its limit)",
                        100.0 * attained
                    )
                }
                None => "launches below their limits".to_string(),
            },
            Part::Gaps => "launch gaps".to_string(),
            Part::Host => "the host".to_string(),
        };
        let rest: Vec<String> = rest.into_iter().map(|(part, t)| format!("{} {}", name(part), percent(t))).collect();
        if rest.is_empty() { format!("{head}.") } else { format!("{head}; {}.", rest.join(", ")) }
    }

    /// The kind that loses most time below its limit, and what part of the limit it attains.
    fn slowest(&self) -> Option<(&'static str, f64)> {
        let lost = |k: &Kind| k.work - k.limit();
        let (name, kind) = self.kinds.iter().max_by(|a, b| lost(a.1).total_cmp(&lost(b.1)))?;
        (lost(kind) > 0.0).then_some((*name, kind.attained()))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use zinc_ir::measured::LaunchCost;
    use zinc_ir::measured::ReadRate;

    /// 1 GB/s, 10 GFLOP/s, 2 µs per launch.
    pub(crate) fn limits() -> Limits {
        let read = ReadRate { load_bytes: 16, in_flight: 1, lanes: 256, workgroups: 8, rate: 1e9 };
        let launch = LaunchCost { workgroups: 1, dependent: 2e-6, independent: None };
        let measured = Measured {
            reads: vec![read],
            launches: vec![launch],
            fma: 1e10,
            dot4: 4e10,
            device: "A card".into(),
            ..Measured::default()
        };
        Limits::new(measured)
    }

    fn ran(template: &'static str, micros: f64, bytes: u64, flops: u64, waits: bool) -> Ran {
        let expected = Expected { unit: Unit::Fma, waits, groups: Some(4) };
        Ran { template, expected, seconds: micros * 1e-6, cost: Cost { bytes, flops } }
    }

    /// Two tokens of 100 µs: each 20 + 20 + 40 µs of launches.
    pub(crate) fn sample() -> Roofline {
        let token = [
            ran("matvec", 20.0, 16_000, 32_000, true),
            ran("matvec", 20.0, 18_000, 36_000, false),
            ran("rms_norm", 40.0, 1_000, 0, true),
        ];
        Roofline::new(&limits(), &[token, token].concat(), 2, 100e-6, 99e-6)
    }

    #[test]
    fn parts_add_up() {
        let r = sample();
        let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-12, "{a} is not {b}");
        near(r.launched(), 160e-6);
        near(r.gaps(), 8e-6);
        near(r.host(), 40e-6);
        near(r.parts(), 200e-6);
        near(r.split().iter().map(|(_, t)| t).sum(), r.parts());
        near(r.difference(), 2.0 / 198.0);
        assert_eq!(r.warning(), None);
        let matvec = r.kinds["matvec"];
        assert_eq!((matvec.launches, matvec.bytes, matvec.flops), (4, 68_000, 136_000));
        near(matvec.gap, 4e-6);
        near(matvec.work, 76e-6);
        near(matvec.limit(), 68e-6);
        near(matvec.attained(), 68.0 / 76.0);
        assert!(matvec.by_memory());
        // Of 200 µs: 70 at memory's limit, 8 + 74 below it.
        let split = r.split().map(|(_, t)| (t * 1e7).round() / 10.0);
        assert_eq!(split, [70.0, 0.0, 82.0, 8.0, 40.0]);
    }

    #[test]
    fn the_sentence_names_the_largest_part() {
        let sentence = sample().sentence();
        assert!(sentence.starts_with("bound by occupancy: 41 % of the time"), "{sentence}");
        assert!(sentence.contains("reading at the limit 35 %, the host 20 %, launch gaps 4 %"), "{sentence}");
        let only = |ran: Ran, wall: f64| Roofline::new(&limits(), &[ran], 1, wall, wall).sentence();
        let memory = only(ran("matvec", 100.0, 90_000, 10, true), 105e-6);
        assert!(memory.starts_with("memory-bound: 86 % of the time is what 90.0 kB take at the 1.0 GB/s"), "{memory}");
        assert!(memory.contains("most of it matvec, at 92 % of its limit"), "{memory}");
        let arithmetic = only(ran("matmul", 100.0, 10, 900_000, true), 101e-6);
        assert!(arithmetic.starts_with("bound by arithmetic: 89 %"), "{arithmetic}");
        assert!(only(ran("add", 3.0, 10, 0, true), 4e-6).starts_with("bound by launch gaps: 50 %"));
        assert!(only(ran("add", 3.0, 10, 0, true), 30e-6).starts_with("bound by the host: 90 %"));
    }

    #[test]
    fn figures_that_do_not_fit_are_pointed_out() {
        let token = [ran("matvec", 120.0, 16_000, 0, true)];
        let r = Roofline::new(&limits(), &token, 1, 130e-6, 100e-6);
        assert!(r.warning().is_some_and(|w| w.contains("+30.0 %")), "{:?}", r.warning());
        // Launches that take longer than the host saw leave nothing for the host, and the sum says so.
        let r = Roofline::new(&limits(), &token, 1, 110e-6, 110e-6);
        assert_eq!(r.host(), 0.0);
        assert!(r.warning().is_some());
    }

    #[test]
    fn weights_in_a_cache_have_no_memory_limit() {
        // 200 kB at 1 GB/s would take 200 µs.
        let cached = Roofline::new(&limits(), &[ran("matvec", 100.0, 200_000, 10, true)], 1, 105e-6, 105e-6);
        assert!(cached.sentence().starts_with("faster than memory: 200 kB"), "{}", cached.sentence());
    }

    #[test]
    fn timestamps_are_taken_off() {
        let mut limits = limits();
        limits.measured.stamp = 1e-6;
        let token = [ran("matvec", 21.0, 16_000, 0, true), ran("add", 0.5, 10, 0, false)];
        let r = Roofline::new(&limits, &token, 1, 31.5e-6, 30e-6);
        let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-12, "{a} is not {b}");
        near(r.stamps, 1.5e-6);
        near(r.launched(), 20e-6);
        near(r.host(), 10e-6);
        near(r.difference(), 0.0);
    }

    #[test]
    fn caches_can_beat_memory() {
        let r = Roofline::new(&limits(), &[ran("matvec", 12.0, 40_000, 0, true)], 1, 12e-6, 12e-6);
        assert!(r.kinds["matvec"].attained() > 3.9);
        let split = r.split().map(|(_, t)| (t * 1e7).round() / 10.0);
        assert_eq!(split, [10.0, 0.0, 0.0, 2.0, 0.0]);
        assert!(r.kinds["matvec"].tells());
    }

    #[test]
    fn what_is_no_longer_than_a_gap_tells_no_rate() {
        let r = Roofline::new(&limits(), &[ran("embed", 2.0, 40_000, 0, true)], 1, 2e-6, 2e-6);
        assert!(!r.kinds["embed"].tells());
        assert!(r.table("tg1").contains("| embed | 1 | 0.040 | 0.00 | 0.0 | 0.0 % | – | – | – | 40.0 | memory |"));
    }
}
