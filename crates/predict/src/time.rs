//! The time of a decode step on a card, launch by launch.
//!
//! ```text
//! products   launch + ramp + max(bytes / streaming, bytes / arithmetic)
//! others     launch + latency + bytes / (share · streaming)
//! ─────────────────────────────────────────────────────────────── Σ + cost of a step
//! ```
//!
//! The ramp is the saturation law bytes / (bytes + streaming · ramp) written as a sum: a small launch ends before its loads
//! fill the memory system.

use crate::cards::{Card, Figure};
use crate::rates::{Rates, Unit};
use std::collections::{BTreeMap, BTreeSet};
use zinc_ir::graph::{NodeId, Op};
use zinc_ir::plan::{Entry, Launch, Plan};

/// Cost of a launch that does not wait for the one before, in µs.
const INDEPENDENT_US: f64 = 0.2;
/// Latencies may be off by this share.
const LATENCY_SPREAD: f64 = 0.3;
/// Arithmetic rates come from a model of the compiler's output; they may be off by this share.
const ARITHMETIC_SPREAD: f64 = 0.2;

/// Time that is bound by one thing, in µs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Shares {
    /// Memory.
    pub memory: f64,
    /// Arithmetic in excess of memory.
    pub arithmetic: f64,
    /// Launches waiting for each other, with their ramps.
    pub launches: f64,
    /// Latencies of launches with little work.
    pub latency: f64,
    /// Beyond launches: submission and answer.
    pub step: f64,
}

impl Shares {
    /// All of it.
    pub fn total(&self) -> f64 {
        self.memory + self.arithmetic + self.launches + self.latency + self.step
    }

    fn add(&mut self, other: Shares) {
        self.memory += other.memory;
        self.arithmetic += other.arithmetic;
        self.launches += other.launches;
        self.latency += other.latency;
        self.step += other.step;
    }
}

/// All launches of one template.
#[derive(Clone, Debug, Default)]
pub struct Kind {
    /// How many.
    pub launches: usize,
    /// Bytes moved.
    pub bytes: u64,
    /// Their time.
    pub time: Shares,
}

/// What a step is expected to take.
#[derive(Clone, Debug)]
pub struct Prediction {
    /// By template.
    pub kinds: BTreeMap<&'static str, Kind>,
    /// All together, with the cost of a step.
    pub time: Shares,
    /// Half-width of the total, in µs.
    pub spread: f64,
    /// Products ("template format") whose arithmetic rate is unknown: counted as bound by memory.
    pub unknown: Vec<String>,
}

impl Prediction {
    /// Tokens per second of one sequence, and the least and the most it may be.
    pub fn tokens_per_second(&self) -> (f64, f64, f64) {
        let total = self.time.total();
        (1e6 / total, 1e6 / (total + self.spread), 1e6 / (total - self.spread).max(total * 0.1))
    }

    /// Bytes that a step moves.
    pub fn bytes(&self) -> u64 {
        self.kinds.values().map(|k| k.bytes).sum()
    }
}

/// Predicts a step of `plan`, compiled for `card`, at `visible` tokens of context.
pub fn step(plan: &Plan, card: &Card, rates: &Rates, visible: u32) -> Prediction {
    let mut kinds: BTreeMap<&'static str, Kind> = BTreeMap::new();
    let (mut waits, mut products) = (0, 0);
    let mut unknown = BTreeSet::new();
    let mut waiting = true;
    for entry in &plan.entries {
        let Entry::Launch(launch) = entry else {
            waiting = true;
            continue;
        };
        let bytes = plan.cost_at(launch, visible.saturating_sub(1), 1).bytes;
        let mut time =
            Shares { launches: if waiting { card.launch_us.value } else { INDEPENDENT_US }, ..Shares::default() };
        waits += waiting as usize;
        waiting = false;
        match arithmetic_us(plan, launch, card, rates, &mut unknown) {
            Some(arithmetic) => {
                products += 1;
                time.launches += card.ramp_us.value;
                time.memory = micros(bytes as f64, card.streaming_gbps());
                time.arithmetic = (arithmetic - time.memory).max(0.0);
            }
            None => {
                let line = rates.serial.iter().find(|s| s.template == launch.template);
                let (us, share) = line.map_or((card.ramp_us.value, 1.0), |s| (s.us, s.share));
                time.latency = us;
                time.memory = micros(bytes as f64, card.streaming_gbps() * share);
            }
        }
        let kind = kinds.entry(launch.template).or_default();
        kind.launches += 1;
        kind.bytes += bytes;
        kind.time.add(time);
    }
    let mut time = Shares { step: card.step_us.value, ..Shares::default() };
    kinds.values().for_each(|k| time.add(k.time));
    let relative = |f: Figure| f.spread / f.value;
    let spreads = [
        time.memory * relative(card.streaming) + time.arithmetic * ARITHMETIC_SPREAD,
        waits as f64 * card.launch_us.spread,
        products as f64 * card.ramp_us.spread,
        time.latency * LATENCY_SPREAD,
        card.step_us.spread,
        time.total() * card.unproven,
        if unknown.is_empty() { 0.0 } else { time.memory * 0.5 },
    ];
    let spread = spreads.iter().map(|s| s * s).sum::<f64>().sqrt();
    Prediction { kinds, time, spread, unknown: unknown.into_iter().collect() }
}

fn micros(bytes: f64, gbps: f64) -> f64 {
    bytes / gbps / 1e3
}

/// Time of a launch's matrix products with all data at hand; `None` if it has no products.
fn arithmetic_us(
    plan: &Plan,
    launch: &Launch,
    card: &Card,
    rates: &Rates,
    unknown: &mut BTreeSet<String>,
) -> Option<f64> {
    let mut sum = None;
    let is_expert = |node: &&NodeId| matches!(plan.graph.op(**node), Op::ExpertMatMul { .. });
    let experts = launch.region.iter().filter(is_expert).count() as u64;
    for node in &launch.region {
        let (weight, bytes) = match *plan.graph.op(*node) {
            Op::MatMul { weight, .. } => (plan.graph.weight_of(weight), plan.graph.weight_of(weight).bytes()),
            // Of the experts' weights the launch counts those it reads.
            Op::ExpertMatMul { weight, .. } => (plan.graph.weight_of(weight), launch.bytes / experts),
            _ => continue,
        };
        // Experts' kernels work as the plain product does.
        let line = |template| rates.line(template, weight.format.name, plan.act);
        let us = match line(launch.template).or_else(|| (experts > 0).then(|| line("matvec_residual"))?) {
            Some(line) => {
                let rate = line.at(plan.bucket.tokens);
                let gbps = if rates.unit == Unit::Gbps { rate } else { card.arithmetic_gbps(rate) };
                micros(bytes as f64, gbps)
            }
            None => {
                unknown.insert(format!("{} {}", launch.template, weight.format.name));
                0.0
            }
        };
        *sum.get_or_insert(0.0) += us;
    }
    sum
}
