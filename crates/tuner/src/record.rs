//! What is known of a device's kernels: which cuts are best, which have been tried, which must not be.
//!
//! ```text
//! before a round: the cuts on trial are written down ─► run ─► they are struck out
//!                          └─ the program or the device ends here: at the next start they are quarantined
//! ```

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use zinc_compiler::{Cut, GENERATION, Tuned};

/// Changes when the meaning of a field changes.
pub const FORMAT: u32 = 1;

/// All that tuning has found out about a device with a driver.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// [`FORMAT`] of the version that wrote it.
    pub format: u32,
    /// [`GENERATION`] of the kernels.
    pub generation: u32,
    /// What it holds for: device, driver and its version.
    pub identity: String,
    /// The same in words.
    pub device: String,
    /// What came out, by key.
    pub results: BTreeMap<String, Verdict>,
    /// Cuts that are never to be tried or used.
    pub quarantine: Vec<Quarantined>,
    /// Cuts that were being tried when this was written.
    pub on_trial: Vec<OnTrial>,
}

/// What came out for a key.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Verdict {
    /// The best cut; compared with the CPU before it was timed.
    pub cut: Cut,
    /// Seconds of a launch with it.
    pub seconds: f64,
    /// What the rule says.
    pub rule: Cut,
    /// Seconds of a launch by the rule, in the same run.
    pub rule_seconds: f64,
    /// Model that it was found with.
    pub model: String,
    /// Bytes that a step reads before it comes back to the same weights.
    pub rotates: u64,
    /// Cuts that were timed, or dropped for what the compiler said of them.
    pub tried: BTreeSet<Cut>,
    /// Of which dropped.
    pub dropped: u32,
}

impl Verdict {
    /// By how much of the rule's time the best cut is faster.
    pub fn gain(&self) -> f64 {
        1.0 - self.seconds / self.rule_seconds
    }
}

/// A cut that gave wrong results, or during whose trial the device was lost.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Quarantined {
    /// Key.
    pub key: String,
    /// Cut.
    pub cut: Cut,
    /// Why.
    pub reason: String,
}

/// A cut being tried.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OnTrial {
    /// Key.
    pub key: String,
    /// Cut.
    pub cut: Cut,
}

impl Record {
    /// Nothing known yet.
    pub fn new(identity: &str, device: &str) -> Record {
        Record {
            format: FORMAT,
            generation: GENERATION,
            identity: identity.into(),
            device: device.into(),
            results: BTreeMap::new(),
            quarantine: vec![],
            on_trial: vec![],
        }
    }

    /// Can it be relied on, for the device of this identity? What was stored may have been damaged, or be of other
    /// kernels.
    pub fn is_sound(&self, identity: &str) -> bool {
        let positive = |x: f64| x.is_finite() && x > 0.0;
        (self.format, self.generation) == (FORMAT, GENERATION)
            && self.identity == identity
            && self.results.values().all(|v| positive(v.seconds) && positive(v.rule_seconds))
    }

    /// The cuts to use instead of what the rules say: none that is on trial, which may just have ended badly.
    pub fn tuned(&self) -> Tuned {
        let on_trial = |key: &str, cut| self.on_trial.iter().any(|t| t.key == key && t.cut == cut);
        let barred = |key: &str, cut| self.quarantined(key, cut) || on_trial(key, cut);
        let better = self.results.iter().filter(|(key, v)| v.cut != v.rule && !barred(key, v.cut));
        better.map(|(key, v)| (key.clone(), v.cut)).collect()
    }

    /// Must a cut not be used?
    pub fn quarantined(&self, key: &str, cut: Cut) -> bool {
        self.quarantine.iter().any(|q| q.key == key && q.cut == cut)
    }

    /// Bars a cut for good.
    pub fn bar(&mut self, key: &str, cut: Cut, reason: &str) {
        if !self.quarantined(key, cut) {
            self.quarantine.push(Quarantined { key: key.into(), cut, reason: reason.into() });
        }
    }

    /// Quarantines what was on trial, and gives how many that were: nobody came back to strike them out.
    pub fn settle(&mut self, reason: &str) -> usize {
        let left = std::mem::take(&mut self.on_trial);
        for OnTrial { key, cut } in &left {
            self.bar(key, *cut, reason);
        }
        left.len()
    }
}
