//! The search: rounds in which every key tries its next cut, until time or cuts run out, and a duel with the rules.

use crate::record::{OnTrial, Record, Verdict};
use crate::statistics::{median, spread};
use crate::trial::{Fault, Model, Off, Program, Trial};
use crate::{Settings, TuneError};
use std::collections::BTreeSet;
use std::time::Duration;
use zinc_compiler::{Cut, Tuned};
use zinc_ir::device::{Device, KernelCost, Progress};

/// What the search needs from the program around it.
pub trait Host {
    /// Time since some fixed moment.
    fn now(&self) -> Duration;
    /// Is the search to end early, with what it has found?
    fn stop(&mut self) -> bool;
    /// Keeps the record; called before cuts are tried, so that it tells what was on trial if nobody comes back.
    fn save(&mut self, record: &Record);
    /// Shows what goes on.
    fn event(&mut self, event: Event<'_>);
}

/// What goes on.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// Weights are loaded, kernels compiled.
    Progress(Progress),
    /// The rules' kernels are right: so many keys, each with so many cuts that are to be tried.
    Begun {
        /// Keys.
        keys: usize,
        /// Cuts over all keys.
        cuts: usize,
        /// How far the rules' logits are from the trusted device's.
        off: Off,
    },
    /// A round has ended.
    Round {
        /// Its number, from 1.
        number: u32,
        /// Time spent.
        spent: Duration,
        /// Time to spend.
        budget: Duration,
        /// Part of the rules' time that the best cuts save so far.
        gain: f64,
    },
    /// A cut was quarantined.
    Barred {
        /// Key.
        key: &'a str,
        /// Cut.
        cut: Cut,
        /// Why.
        reason: &'a str,
    },
}

/// Why the search ended.
#[derive(Clone, PartialEq, Debug)]
pub enum Ending {
    /// Every legal cut has been tried.
    Complete,
    /// The time is up.
    Budget,
    /// The host asked.
    Stopped,
    /// The device was lost: what was on trial is quarantined. The message.
    Lost(String),
}

/// What came out for one key.
#[derive(Clone, Debug)]
pub struct KeyReport {
    /// The key.
    pub key: String,
    /// Launches of it in a step of the whole model.
    pub launches: usize,
    /// Legal cuts.
    pub legal: usize,
    /// What came out; none if the device was lost before anything was timed.
    pub verdict: Option<Verdict>,
}

/// What a search did.
#[derive(Clone, Debug)]
pub struct Report {
    /// Every key.
    pub keys: Vec<KeyReport>,
    /// Keys of the model that could not be tried, since no part of it that can be cut out has them.
    pub untried: Vec<String>,
    /// Rounds.
    pub rounds: u32,
    /// Cuts timed in this run.
    pub timed: u32,
    /// Cuts dropped in this run for what the compiler said of them.
    pub dropped: u32,
    /// Cuts quarantined in this run.
    pub barred: u32,
    /// Layers tried with, and layers of the model.
    pub layers: [usize; 2],
    /// Bytes that a step read before it came back to the same weights.
    pub rotates: u64,
    /// How far the rules' logits were from the trusted device's.
    pub off: Off,
    /// Time spent.
    pub spent: Duration,
    /// Why it ended.
    pub ending: Ending,
}

impl Report {
    /// Seconds that the tuned kernels of one step of the whole model take: by rule, and now.
    pub fn step_seconds(&self) -> (f64, f64) {
        let of = |f: &dyn Fn(&Verdict) -> f64| {
            let keys = self.keys.iter().filter_map(|k| Some(k.launches as f64 * f(k.verdict.as_ref()?)));
            keys.sum::<f64>()
        };
        (of(&|v| v.rule_seconds), of(&|v| v.seconds))
    }
}

/// Tunes a model's kernels on a device. `trusted` says what is right. What was found is in the record, which is kept
/// whenever it changes.
///
/// # Errors
/// Where nothing can be tuned. A device lost during a trial is no error: see [`Ending::Lost`].
pub fn tune(
    device: &mut dyn Device,
    trusted: &mut dyn Device,
    model: Model<'_>,
    settings: &Settings,
    record: &mut Record,
    host: &mut dyn Host,
) -> Result<Report, TuneError> {
    if record.settle("the program ended, or hung and was ended, while it was on trial") > 0 {
        host.save(record);
    }
    let trial = Trial::new(device, trusted, model, settings, &mut |p| host.event(Event::Progress(p)))?;
    let contests = trial.tunables.iter().map(|t| Contest::new(&t.cuts, record)).collect();
    let start = host.now();
    let (rounds, timed, dropped, barred, rule_costs) = (0, 0, 0, 0, vec![]);
    let (steps, duel) = (STEPS[0], Duration::ZERO);
    let longest_rousing = LONGEST_ROUSING.min(settings.budget / 10);
    let (fastest, least_rousing) = (f64::INFINITY, longest_rousing);
    let mut search = Search {
        trial,
        model: model.name,
        contests,
        record,
        host,
        rule_costs,
        steps,
        duel,
        fastest,
        least_rousing,
        longest_rousing,
        start,
        rounds,
        timed,
        dropped,
        barred,
    };
    let outcome = match search.run(settings.budget) {
        Ok(ending) => search.decide().map(|()| ending),
        fault => fault,
    };
    let ending = match outcome {
        Ok(ending) => ending,
        Err(Fault::Lost(error)) => {
            let reason = format!("the device was lost while it was on trial: {error}");
            search.barred += search.record.settle(&reason) as u32;
            search.keep_unfought();
            Ending::Lost(error.to_string())
        }
        Err(fault) => {
            // It has nothing to do with the cuts on trial.
            search.record.on_trial.clear();
            search.host.save(search.record);
            return Err(fault.into_error());
        }
    };
    Ok(search.report(ending))
}

/// One key's cuts.
struct Contest {
    key: String,
    /// Legal cuts, the rule's first.
    all: Vec<Cut>,
    tried: BTreeSet<Cut>,
    dropped: u32,
    best: Cut,
    /// Of the best; none until it is measured.
    seconds: Option<f64>,
    rule_seconds: f64,
    verdict: Option<Verdict>,
}

impl Contest {
    /// Goes on where an earlier search ended.
    fn new(cuts: &zinc_compiler::Cuts, record: &Record) -> Contest {
        let known = record.results.get(&cuts.key);
        let usable = |cut: &Cut| cuts.all.contains(cut) && !record.quarantined(&cuts.key, *cut);
        let best = known.map(|v| v.cut).filter(usable).unwrap_or(cuts.all[0]);
        let mut tried: BTreeSet<Cut> = known.map(|v| v.tried.clone()).unwrap_or_default();
        tried.extend([best, cuts.all[0]]);
        Contest {
            key: cuts.key.clone(),
            all: cuts.all.clone(),
            tried,
            dropped: known.map_or(0, |v| v.dropped),
            best,
            seconds: None,
            rule_seconds: 0.0,
            verdict: known.cloned(),
        }
    }

    fn left<'a>(&'a self, record: &'a Record) -> impl Iterator<Item = Cut> + 'a {
        let open = |cut: &&Cut| !self.tried.contains(cut) && !record.quarantined(&self.key, **cut);
        self.all.iter().filter(open).copied()
    }

    /// Puts the verdict on record.
    fn conclude(&mut self, wins: bool, model: &str, rotates: u64, record: &mut Record) {
        let (rule, rule_seconds) = (self.all[0], self.rule_seconds);
        let (cut, seconds) = match self.seconds {
            Some(seconds) if wins && self.best != rule => (self.best, seconds),
            _ => (rule, rule_seconds),
        };
        let (tried, dropped) = (self.tried.clone(), self.dropped);
        let verdict = Verdict { cut, seconds, rule, rule_seconds, model: model.into(), rotates, tried, dropped };
        if [seconds, rule_seconds].iter().all(|s| s.is_finite() && *s > 0.0) {
            record.results.insert(self.key.clone(), verdict.clone());
            self.verdict = Some(verdict);
        }
    }

    /// The untried cut most like the best so far; among equals the one most like the rule's.
    fn next(&self, record: &Record) -> Option<Cut> {
        self.left(record).min_by_key(|cut| cut.distance(self.best))
    }
}

/// Cuts that are tried together: index of the contest, and its cut.
type Round = Vec<(usize, Cut)>;

struct Search<'a, 'h> {
    trial: Trial<'a>,
    /// Its name.
    model: &'h str,
    contests: Vec<Contest>,
    record: &'h mut Record,
    host: &'h mut dyn Host,
    /// What the compiler says of the rules' kernels; empty if it says nothing.
    rule_costs: Vec<KernelCost>,
    /// Steps that a cut is timed in.
    steps: u32,
    /// What the duel at the end will take.
    duel: Duration,
    /// Seconds of one launch of each key by rule, at the fastest.
    fastest: f64,
    /// The device works for so long before it is trusted to be awake: long at first, when nothing is known.
    least_rousing: Duration,
    /// It works for no longer than this: [`LONGEST_ROUSING`], or a tenth of the budget.
    longest_rousing: Duration,
    start: Duration,
    rounds: u32,
    timed: u32,
    dropped: u32,
    barred: u32,
}

/// A cut is timed in about this long, in at least and at most so many steps.
const TIMING: Duration = Duration::from_millis(60);
const STEPS: [u32; 2] = [5, 40];
/// A device is awake that takes so many times its shortest time at most.
const AWAKE: f64 = 1.05;
/// Steps between two looks at whether the device is awake, most of such looks, and the longest time for all of them.
const ROUSING_STEPS: u32 = 4;
const MOST_ROUSING: u32 = 2000;
const LONGEST_ROUSING: Duration = Duration::from_millis(600);
/// Turns of a duel for each side, of half as many steps.
const TURNS: usize = 5;
/// A gain below this part is no gain.
const LEAST_GAIN: f64 = 0.02;
/// Tries to replace cuts that the compiler's statistics speak against, per round.
const MOST_DROPS: u32 = 16;

impl Search<'_, '_> {
    fn run(&mut self, budget: Duration) -> Result<Ending, Fault> {
        let cuts = self.contests.iter().map(|c| c.left(self.record).count()).sum();
        let (keys, off) = (self.contests.len(), self.trial.rules_off());
        self.host.event(Event::Begun { keys, cuts, off });
        let keys: Vec<usize> = (0..keys).collect();
        self.rule_costs = self.trial.costs(&Tuned::new(), &keys)?;
        if self.rule_costs.len() != keys.len() {
            self.rule_costs.clear();
        }
        self.time_starts()?;
        loop {
            let spent = self.host.now().saturating_sub(self.start);
            let each = spent / (self.rounds + 1);
            if self.host.stop() {
                return Ok(Ending::Stopped);
            }
            if spent + each + self.duel > budget {
                return Ok(Ending::Budget);
            }
            if self.contests.iter().all(|c| c.next(self.record).is_none()) {
                return Ok(Ending::Complete);
            }
            let round = self.choose()?;
            self.try_out(round)?;
            self.rounds += 1;
            let spent = self.host.now().saturating_sub(self.start);
            let (number, gain) = (self.rounds, self.gain());
            self.host.event(Event::Round { number, spent, budget, gain });
        }
    }

    /// Times the rules, and the best cuts of an earlier search.
    fn time_starts(&mut self) -> Result<(), Fault> {
        self.rouse()?;
        self.least_rousing = Duration::ZERO;
        let rules = self.trial.program(&Tuned::new())?;
        let before = self.host.now();
        self.trial.times(&rules, self.steps)?;
        let each = (self.host.now().saturating_sub(before) / self.steps).max(Duration::from_micros(1));
        self.steps = u32::try_from(TIMING.as_micros() / each.as_micros()).unwrap_or(u32::MAX).clamp(STEPS[0], STEPS[1]);
        self.duel = each * (2 * TURNS as u32 * (self.steps.div_ceil(2) + 1)) + self.longest_rousing;
        let times = self.time(&Tuned::new())?;
        for (contest, time) in self.contests.iter_mut().zip(times) {
            contest.rule_seconds = time;
            if contest.best == contest.all[0] {
                contest.seconds = Some(time);
            }
        }
        let open = self.contests.iter().enumerate().filter(|(_, c)| c.seconds.is_none());
        let known: Round = open.map(|(i, c)| (i, c.best)).collect();
        self.try_out(known)?;
        for contest in self.contests.iter_mut().filter(|c| c.seconds.is_none()) {
            (contest.best, contest.seconds) = (contest.all[0], Some(contest.rule_seconds));
        }
        Ok(())
    }

    /// Part of the rules' time that the best cuts save.
    fn gain(&self) -> f64 {
        let sum = |f: &dyn Fn(&Contest) -> f64| {
            let parts = self.contests.iter().zip(&self.trial.launches).map(|(c, n)| f(c) * *n as f64);
            parts.sum::<f64>()
        };
        1.0 - sum(&|c| c.seconds.unwrap_or(c.rule_seconds)) / sum(&|c| c.rule_seconds).max(1e-12)
    }

    /// The best cuts so far, with those of a round in their place.
    fn tuned(&self, round: &[(usize, Cut)]) -> Tuned {
        let measured = self.contests.iter().filter(|c| c.seconds.is_some());
        let mut tuned: Tuned = measured.map(|c| (c.key.clone(), c.best)).collect();
        for (i, cut) in round {
            tuned.insert(self.contests[*i].key.clone(), *cut);
        }
        tuned
    }

    /// Each key's next cut that the compiler's statistics do not speak against.
    fn choose(&mut self) -> Result<Round, Fault> {
        let mut round: Round = vec![];
        for _ in 0..MOST_DROPS {
            let next = |(i, c): (usize, &Contest)| Some((i, c.next(self.record)?));
            round = self.contests.iter().enumerate().filter_map(next).collect();
            // On trial from here on: the driver's compiler may be what they break.
            self.put_on_trial(&round);
            let hopeless = self.hopeless(&round)?;
            if hopeless.is_empty() {
                break;
            }
            for (i, cut) in hopeless {
                self.contests[i].tried.insert(cut);
                self.contests[i].dropped += 1;
                self.dropped += 1;
                round.retain(|(j, _)| *j != i);
            }
        }
        Ok(round)
    }

    /// Cuts of a round whose kernels spill where the rule's do not, or leave a compute unit nearly empty.
    fn hopeless(&mut self, round: &[(usize, Cut)]) -> Result<Round, Fault> {
        if self.rule_costs.is_empty() {
            return Ok(vec![]);
        }
        let keys: Vec<usize> = round.iter().map(|(i, _)| *i).collect();
        let costs = self.trial.costs(&self.tuned(round), &keys)?;
        let bad = round.iter().zip(costs).filter(|((i, _), cost)| is_hopeless(cost, &self.rule_costs[*i]));
        Ok(bad.map(|(candidate, _)| *candidate).collect())
    }

    /// Verifies the cuts of a round, then times those that are right.
    fn try_out(&mut self, round: Round) -> Result<(), Fault> {
        if round.is_empty() {
            return Ok(());
        }
        self.put_on_trial(&round);
        let good = self.sift(round.clone())?;
        // All of the right ones together are one more plan: where something was wrong, it has to be verified too.
        if good.len() == round.len() || (!good.is_empty() && self.verify(&good)?.is_ok()) {
            self.race(&good)?;
        } else {
            // Right in parts, but not together: each by itself.
            for one in good {
                if self.verify(&[one])?.is_ok() {
                    self.race(&[one])?;
                }
            }
        }
        for (i, cut) in round {
            self.contests[i].tried.insert(cut);
        }
        self.record.on_trial.clear();
        self.keep_unfought();
        Ok(())
    }

    /// Puts cuts on record before they are compiled or run: whatever happens, the next start knows what it was.
    fn put_on_trial(&mut self, round: &[(usize, Cut)]) {
        let trials = round.iter().map(|(i, cut)| OnTrial { key: self.contests[*i].key.clone(), cut: *cut });
        self.record.on_trial = trials.collect();
        self.host.save(self.record);
    }

    /// Times cuts that are right together; those faster than the best so far take its place.
    fn race(&mut self, good: &[(usize, Cut)]) -> Result<(), Fault> {
        let times = self.time(&self.tuned(good))?;
        self.timed += good.len() as u32;
        for (i, cut) in good {
            let contest = &mut self.contests[*i];
            if contest.seconds.is_none_or(|best| times[*i] < best) {
                (contest.best, contest.seconds) = (*cut, Some(times[*i]));
            }
        }
        Ok(())
    }

    /// The cuts of a round that compute what is expected; the others are quarantined.
    fn sift(&mut self, round: Round) -> Result<Round, Fault> {
        match (self.verify(&round)?, round.as_slice()) {
            (Ok(()), _) => Ok(round),
            (Err(reason), [(i, cut)]) => {
                let key = self.contests[*i].key.clone();
                self.record.bar(&key, *cut, &reason);
                self.barred += 1;
                self.host.event(Event::Barred { key: &key, cut: *cut, reason: &reason });
                Ok(vec![])
            }
            (Err(_), _) => {
                let mut first = round;
                let second = first.split_off(first.len() / 2);
                let mut good = self.sift(first)?;
                good.extend(self.sift(second)?);
                Ok(good)
            }
        }
    }

    /// Is a round right? If not, why.
    fn verify(&mut self, round: &[(usize, Cut)]) -> Result<Result<(), String>, Fault> {
        let tuned = self.tuned(round);
        let verified = match self.trial.program(&tuned) {
            Ok(program) => self.trial.verify(&program),
            Err(fault) => Err(fault),
        };
        match verified {
            Ok(()) => Ok(Ok(())),
            Err(Fault::Bad(reason)) => Ok(Err(reason)),
            Err(fault) => Err(fault),
        }
    }

    /// Runs the rules' kernels until they are as fast as they ever were, so that what is timed next meets a device that
    /// is wide awake: while kernels are compiled a GPU lowers its clock, to a sixth in the H200's case, and takes a
    /// quarter of a second of work to raise it again. Gives up after a while: a device may have become slower for good.
    fn rouse(&mut self) -> Result<(), Fault> {
        let rules = self.trial.program(&Tuned::new())?;
        self.trial.warm(&rules)?;
        let start = self.host.now();
        for _ in 0..MOST_ROUSING {
            let samples = self.trial.times(&rules, ROUSING_STEPS)?;
            let fastest = |list: &Vec<f64>| list.iter().copied().fold(f64::INFINITY, f64::min);
            let now: f64 = samples.iter().map(fastest).sum();
            let awake = now <= self.fastest * AWAKE;
            self.fastest = self.fastest.min(now);
            let spent = self.host.now().saturating_sub(start);
            if spent > self.longest_rousing || (awake && spent >= self.least_rousing) {
                break;
            }
        }
        Ok(())
    }

    /// Median seconds per launch of each key, with these cuts.
    fn time(&mut self, tuned: &Tuned) -> Result<Vec<f64>, Fault> {
        let program = self.trial.program(tuned)?;
        self.rouse()?;
        self.trial.warm(&program)?;
        Ok(self.trial.times(&program, self.steps)?.iter_mut().map(|samples| median(samples)).collect())
    }

    /// The best cuts against the rules, in turns, so that a clock that changes is no advantage for either.
    fn decide(&mut self) -> Result<(), Fault> {
        let model = self.model;
        // Each was right beside others; that all of them are right together has to be seen.
        let bests = self.contests.iter().enumerate().filter(|(_, c)| c.seconds.is_some() && c.best != c.all[0]);
        let bests: Round = bests.map(|(i, c)| (i, c.best)).collect();
        self.put_on_trial(&bests);
        if self.verify(&bests)?.is_err() {
            for contest in &mut self.contests {
                contest.conclude(false, model, self.trial.bytes(), self.record);
            }
            self.record.on_trial.clear();
            self.host.save(self.record);
            return Ok(());
        }
        let sides = [Tuned::new(), self.tuned(&[])];
        let programs = sides.iter().map(|tuned| self.trial.program(tuned)).collect::<Result<Vec<Program>, _>>()?;
        programs.iter().try_for_each(|p| self.trial.warm(p))?;
        self.rouse()?;
        // Medians by [side][key][turn].
        let mut medians = [vec![vec![]; self.contests.len()], vec![vec![]; self.contests.len()]];
        for _ in 0..TURNS {
            for (program, medians) in programs.iter().zip(&mut medians) {
                self.trial.warm(program)?;
                let mut samples = self.trial.times(program, self.steps.div_ceil(2))?;
                medians.iter_mut().zip(&mut samples).for_each(|(list, samples)| list.push(median(samples)));
            }
        }
        let rotates = self.trial.bytes();
        let [rules, best] = medians;
        for ((contest, mut rule), mut best) in self.contests.iter_mut().zip(rules).zip(best) {
            let noise = spread(&rule).max(spread(&best));
            let (rule_seconds, seconds) = (median(&mut rule), median(&mut best));
            let wins = seconds < rule_seconds * (1.0 - LEAST_GAIN.max(noise));
            (contest.seconds, contest.rule_seconds) = (Some(seconds), rule_seconds);
            contest.conclude(wins, model, rotates, self.record);
        }
        self.record.on_trial.clear();
        self.host.save(self.record);
        Ok(())
    }

    /// Without a duel, because the device is lost or the search goes on, what was found counts if it is clear.
    fn keep_unfought(&mut self) {
        let model = self.model;
        let rotates = self.trial.bytes();
        for contest in &mut self.contests {
            let wins = contest.seconds.is_some_and(|s| s < contest.rule_seconds * (1.0 - 2.0 * LEAST_GAIN));
            contest.conclude(wins, model, rotates, self.record);
        }
        self.host.save(self.record);
    }

    fn report(self, ending: Ending) -> Report {
        let keys = self.contests.into_iter().zip(&self.trial.launches);
        Report {
            keys: keys
                .map(|(c, launches)| KeyReport {
                    key: c.key,
                    launches: *launches,
                    legal: c.all.len(),
                    verdict: c.verdict,
                })
                .collect(),
            untried: self.trial.untried.clone(),
            rounds: self.rounds,
            timed: self.timed,
            dropped: self.dropped,
            barred: self.barred,
            layers: self.trial.layers,
            rotates: self.trial.bytes(),
            off: self.trial.rules_off(),
            spent: self.host.now().saturating_sub(self.start),
            ending,
        }
    }
}

/// Does the compiler speak against a kernel, compared with the rule's?
fn is_hopeless(new: &KernelCost, rule: &KernelCost) -> bool {
    let more = |new: Option<u64>, old: Option<u64>| matches!((new, old), (Some(new), Some(old)) if new > old);
    let emptier = matches!((new.occupancy, rule.occupancy), (Some(new), Some(old)) if new * 4 <= old);
    more(new.spills, rule.spills) || emptier
}
