//! The search on devices that are not what they seem: with times by formula, wrong cuts, cuts that lose the device.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use zinc_compiler::Cut;
use zinc_conformance::{InterpretedDevice, LongRows, gpu_caps};
use zinc_ir::device::{Caps, Device, DeviceError, KernelCost, MemoryInfo, ProgramId, Progress, Ticket, WeightSource};
use zinc_ir::graph::Graph;
use zinc_ir::kernel::Kernel;
use zinc_ir::plan::{ActPrecision, Buffer, Entry, KvLayout, KvType, Launch, LaunchArg, Plan, Step, StepOutput};
use zinc_tuner::{Ending, Event, Host, Model, Record, Report, Settings, TuneError, tune};

const SUBGROUP: u32 = 8;

/// A template and the lanes of a workgroup: what the devices here tell kernels by.
type Kind = (&'static str, u32);

fn kinds(plan: &Plan) -> Vec<Kind> {
    let lanes = |l: &Launch| Some((l.template, plan.kernels[l.kernel?.0 as usize].workgroup_size));
    plan.launches().filter_map(lanes).filter(|k| k.0.starts_with("matvec")).collect()
}

/// What became of kernels.
#[derive(Default)]
struct Seen {
    prepared: BTreeSet<Kind>,
    run: BTreeSet<Kind>,
    timed: BTreeSet<Kind>,
}

/// How a device behaves.
#[derive(Clone, Copy)]
struct Manner {
    wrong: fn(Kind) -> bool,
    loses: fn(Kind) -> bool,
    refuses: fn(Kind) -> bool,
    exhausts: fn(Kind) -> bool,
    /// Told by the compiler's statistics.
    spills: fn(&Kernel) -> bool,
}

const FINE: Manner =
    Manner { wrong: |_| false, loses: |_| false, refuses: |_| false, exhausts: |_| false, spills: |_| false };

/// Microseconds of a launch: workgroups of 32 lanes are the fastest. The rules say 64 and 128.
fn micros(kind: Kind) -> u64 {
    100 + 10 * u64::from(kind.1.ilog2().abs_diff(5))
}

/// Gives the same logits for all plans, or what its planted interpreter computes; and times by formula.
struct Fake {
    caps: Caps,
    manner: Manner,
    planted: Option<Planted>,
    /// None: released.
    plans: Vec<Option<Arc<Plan>>>,
    output: StepOutput,
    ran: usize,
    /// Microseconds.
    clock: Arc<AtomicU64>,
    seen: Arc<Mutex<Seen>>,
}

impl Fake {
    fn new(caps: Caps, manner: Manner, clock: &Arc<AtomicU64>) -> Fake {
        let (clock, seen) = (clock.clone(), Arc::default());
        Fake { caps, manner, planted: None, plans: vec![], output: StepOutput::None, ran: 0, clock, seen }
    }
}

impl Device for Fake {
    fn caps(&self) -> &Caps {
        &self.caps
    }
    fn description(&self) -> String {
        "a fake".into()
    }
    fn memory(&self) -> MemoryInfo {
        MemoryInfo::default()
    }
    fn load(
        &mut self,
        graph: &Arc<Graph>,
        kv: &Arc<KvLayout>,
        weights: &dyn WeightSource,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<(), DeviceError> {
        self.planted.as_mut().map_or(Ok(()), |planted| planted.inner.load(graph, kv, weights, progress))
    }
    fn prepare(&mut self, plan: &Arc<Plan>, progress: &mut dyn FnMut(Progress)) -> Result<ProgramId, DeviceError> {
        if kinds(plan).into_iter().any(self.manner.refuses) {
            return Err(DeviceError::Driver { call: "compile".into(), detail: "no".into() });
        }
        if kinds(plan).into_iter().any(self.manner.exhausts) {
            return Err(DeviceError::OutOfMemory { what: "a program".into(), needed: 2, available: 1 });
        }
        self.seen.lock().expect("one thread").prepared.extend(kinds(plan));
        self.plans.push(Some(plan.clone()));
        assert!(self.plans.iter().flatten().count() <= 2, "programs that nobody needs");
        let id = ProgramId(self.plans.len() as u32 - 1);
        if let Some(planted) = &mut self.planted {
            assert_eq!(planted.prepare(plan, progress)?, id);
        }
        Ok(id)
    }
    fn release(&mut self, program: ProgramId) {
        self.plans[program.0 as usize] = None;
    }
    fn submit(&mut self, program: ProgramId, step: &Step) -> Result<Ticket, DeviceError> {
        self.ran = program.0 as usize;
        let plan = self.plans[self.ran].as_ref().expect("not released");
        plan.check(step)?;
        self.seen.lock().expect("one thread").run.extend(kinds(plan));
        self.clock.fetch_add(1000, Ordering::Relaxed);
        if kinds(plan).into_iter().any(self.manner.loses) {
            return Err(DeviceError::Lost { during: "a step".into(), detail: "gone".into() });
        }
        if let Some(planted) = &mut self.planted {
            return planted.inner.submit(program, step);
        }
        let wrong = kinds(plan).into_iter().any(self.manner.wrong);
        let logits = |row: u32| (0..37).map(move |i| (i + row) as f32 + if wrong && i == 5 { 1.0 } else { 0.0 });
        self.output = StepOutput::Logits(step.outputs.iter().copied().flat_map(logits).collect());
        Ok(Ticket(1))
    }
    fn wait(&mut self, ticket: Ticket, output: &mut StepOutput) -> Result<(), DeviceError> {
        if let Some(planted) = &mut self.planted {
            return planted.inner.wait(ticket, output);
        }
        *output = std::mem::take(&mut self.output);
        Ok(())
    }
    fn profile(&mut self, program: ProgramId, _: bool) -> Option<Vec<Duration>> {
        let plan = self.plans[program.0 as usize].as_ref().expect("not released");
        self.seen.lock().expect("one thread").timed.extend(kinds(plan));
        let time = |l: &Launch| {
            let lanes = l.kernel.map_or(1, |k| plan.kernels[k.0 as usize].workgroup_size);
            // Where something is computed, what is right must not depend on what is fast.
            Duration::from_micros(if self.planted.is_some() { 5 } else { micros((l.template, lanes)) })
        };
        Some(plan.launches().map(time).collect())
    }
    fn kernel_costs(&self, kernels: &[&Kernel]) -> Vec<KernelCost> {
        let cost = |k: &&Kernel| KernelCost { spills: Some((self.manner.spills)(k).into()), ..KernelCost::default() };
        kernels.iter().map(cost).collect()
    }
    fn copy_pages(&mut self, _: &[(u32, u32)]) -> Result<(), DeviceError> {
        Ok(())
    }
}

/// Keeps what it is given.
struct Desk {
    clock: Arc<AtomicU64>,
    saved: Vec<Record>,
    barred: Vec<(String, Cut, String)>,
    rounds: u32,
    stop_after: u32,
}

impl Desk {
    fn new(clock: &Arc<AtomicU64>) -> Desk {
        Desk { clock: clock.clone(), saved: vec![], barred: vec![], rounds: 0, stop_after: u32::MAX }
    }
}

impl Host for Desk {
    fn now(&self) -> Duration {
        Duration::from_micros(self.clock.load(Ordering::Relaxed))
    }
    fn stop(&mut self) -> bool {
        self.rounds >= self.stop_after
    }
    fn save(&mut self, record: &Record) {
        self.saved.push(record.clone());
    }
    fn event(&mut self, event: Event<'_>) {
        match event {
            Event::Round { number, .. } => self.rounds = number,
            Event::Barred { key, cut, reason } => self.barred.push((key.into(), cut, reason.into())),
            _ => {}
        }
    }
}

/// A search with what it leaves behind.
struct Outcome {
    report: Report,
    desk: Desk,
    seen: Arc<Mutex<Seen>>,
}

fn settings(budget: Duration) -> Settings {
    Settings { act: ActPrecision::F16, kv: KvType::F16.into(), rows: 1, budget }
}

const LONG: Duration = Duration::from_secs(1000);

fn search(manner: Manner, record: &mut Record, budget: Duration, stop_after: u32) -> Outcome {
    let model = LongRows::new("Q8_0", 512);
    let clock = Arc::default();
    let mut desk = Desk { stop_after, ..Desk::new(&clock) };
    let mut device = Fake::new(gpu_caps(SUBGROUP), manner, &clock);
    let mut trusted = Fake::new(Caps::native(), FINE, &clock);
    let seen = device.seen.clone();
    let model = Model { name: "a model", graph: &model.graph, weights: &model };
    let report = tune(&mut device, &mut trusted, model, &settings(budget), record, &mut desk).expect("a report");
    Outcome { report, desk, seen }
}

fn empty() -> Record {
    Record::new("card-1", "a card")
}

fn lanes(record: &Record, key: &str) -> u32 {
    let found = record.results.iter().find(|(k, _)| k.starts_with(key)).expect("a result");
    found.1.cut.subgroups * SUBGROUP
}

const KEYS: [&str; 3] = ["matvec_glu ", "matvec_residual ", "matvec "];

#[test]
fn the_fastest_wins() {
    let mut record = empty();
    let out = search(FINE, &mut record, LONG, u32::MAX);
    assert_eq!(out.report.ending, Ending::Complete);
    assert_eq!(record.results.len(), KEYS.len());
    assert!(KEYS.iter().all(|key| lanes(&record, key) == 32));
    let first = record.results.values().next().expect("a result");
    assert!((first.gain() - (1.0 - 100.0 / 120.0)).abs() < 1e-9, "{first:?}");
    assert_eq!(first.model, "a model");
    let tuned = record.tuned();
    assert!(tuned.len() == 3 && tuned.values().all(|cut| cut.subgroups * SUBGROUP == 32));
    assert!(record.on_trial.is_empty() && record.quarantine.is_empty());
    assert_eq!(out.desk.saved.last(), Some(&record));
    // All that was legal has been tried.
    for key in &out.report.keys {
        assert_eq!(key.verdict.as_ref().map(|v| v.tried.len()), Some(key.legal));
    }
    let (rule, best) = out.report.step_seconds();
    assert!((best / rule - 300.0 / 350.0).abs() < 1e-9);
}

/// Nothing is tried twice, and what was best is measured again.
#[test]
fn a_second_search_goes_on_where_the_first_ended() {
    let mut record = empty();
    search(FINE, &mut record, LONG, 3);
    let tried: usize = record.results.values().map(|v| v.tried.len()).sum();
    assert_eq!(tried, 3 * 4, "the rule and one a round");
    let out = search(FINE, &mut record, LONG, 2);
    let now: usize = record.results.values().map(|v| v.tried.len()).sum();
    assert_eq!(now, tried + 3 * 2);
    assert_eq!(out.report.ending, Ending::Stopped);
    let rest = search(FINE, &mut record, LONG, u32::MAX);
    assert_eq!(rest.report.ending, Ending::Complete);
    assert_eq!(search(FINE, &mut record, LONG, u32::MAX).report.rounds, 0);
}

#[test]
fn a_wrong_cut_is_never_timed() {
    let wrong = |kind: Kind| kind == ("matvec_glu", 32);
    let mut record = empty();
    let out = search(Manner { wrong, ..FINE }, &mut record, LONG, u32::MAX);
    let seen = out.seen.lock().expect("one thread");
    assert!(seen.run.contains(&("matvec_glu", 32)) && !seen.timed.contains(&("matvec_glu", 32)));
    assert!(seen.timed.contains(&("matvec_residual", 32)), "its companions are");
    assert_ne!(lanes(&record, "matvec_glu "), 32);
    assert_eq!(lanes(&record, "matvec_residual "), 32);
    assert!(!record.quarantine.is_empty() && record.quarantine.len() == out.report.barred as usize);
    for q in &record.quarantine {
        assert!(q.key.starts_with("matvec_glu ") && q.cut.subgroups * SUBGROUP == 32, "{q:?}");
        assert!(q.reason.contains("differ from the CPU's"), "{}", q.reason);
    }
    assert_eq!(out.desk.barred.len(), record.quarantine.len());
}

#[test]
fn what_the_driver_refuses_is_quarantined() {
    let mut record = empty();
    let refuses = |kind: Kind| kind == ("matvec", 16);
    search(Manner { refuses, ..FINE }, &mut record, LONG, u32::MAX);
    assert!(!record.quarantine.is_empty());
    assert!(record.quarantine.iter().all(|q| q.key.starts_with("matvec ") && q.reason.contains("driver")));
}

#[test]
fn a_lost_device_is_not_tried_again() {
    let loses = |kind: Kind| kind == ("matvec_residual", 32);
    let mut record = empty();
    let out = search(Manner { loses, ..FINE }, &mut record, LONG, u32::MAX);
    assert!(matches!(&out.report.ending, Ending::Lost(why) if why.contains("gone")), "{:?}", out.report.ending);
    let guilty: Vec<_> = record.quarantine.iter().filter(|q| q.key.starts_with("matvec_residual ")).collect();
    assert!(guilty.len() == 1 && guilty[0].cut.subgroups * SUBGROUP == 32, "{guilty:?}");
    assert!(guilty[0].reason.contains("lost") && record.on_trial.is_empty());
    assert_eq!(record.results.len(), KEYS.len(), "what was found before is kept");
    assert_eq!(out.desk.saved.last(), Some(&record));
    let again = search(FINE, &mut record.clone(), LONG, u32::MAX);
    for k in &again.report.keys {
        let tried = &k.verdict.as_ref().expect("a verdict").tried;
        assert!(record.quarantine.iter().all(|q| q.key != k.key || !tried.contains(&q.cut)), "tried again");
    }
}

/// Memory that runs out has nothing to do with the cuts on trial.
#[test]
fn other_faults_quarantine_nothing() {
    let model = LongRows::new("Q8_0", 512);
    let clock = Arc::default();
    let manner = Manner { exhausts: |kind| kind == ("matvec_residual", 64), ..FINE };
    let mut device = Fake::new(gpu_caps(SUBGROUP), manner, &clock);
    let mut trusted = Fake::new(Caps::native(), FINE, &clock);
    let model = Model { name: "a model", graph: &model.graph, weights: &model };
    let (mut record, mut desk) = (empty(), Desk::new(&clock));
    let result = tune(&mut device, &mut trusted, model, &settings(LONG), &mut record, &mut desk);
    assert!(matches!(result, Err(TuneError::Device(DeviceError::OutOfMemory { .. }))));
    assert!(record.quarantine.is_empty() && record.on_trial.is_empty());
    assert_eq!(desk.saved.last(), Some(&record));
}

/// The program is killed in a trial: the record that lies on the disk names the cuts.
#[test]
fn a_search_that_ends_in_a_trial_is_noticed_at_the_next_start() {
    let out = search(FINE, &mut empty(), LONG, 2);
    let on_trial = out.desk.saved.iter().find(|r| !r.on_trial.is_empty()).expect("saved before the trial");
    let mut record = on_trial.clone();
    let suspects = record.on_trial.clone();
    assert_eq!(suspects.len(), 3);
    let next = search(FINE, &mut record, LONG, 1);
    assert!(suspects.iter().all(|s| record.quarantined(&s.key, s.cut)));
    let first = &next.desk.saved[0];
    assert!(first.on_trial.is_empty() && first.quarantine.len() == 3, "kept at once");
    assert!(first.quarantine[0].reason.contains("on trial"));
}

#[test]
fn the_compilers_statistics_drop_cuts_before_they_run() {
    let spills = |kernel: &Kernel| kernel.workgroup_size < 64;
    let mut record = empty();
    let out = search(Manner { spills, ..FINE }, &mut record, LONG, u32::MAX);
    assert!(out.report.dropped > 10);
    let seen = out.seen.lock().expect("one thread");
    assert!(seen.prepared.iter().all(|kind| kind.1 >= 64), "{:?}", seen.prepared);
    assert!(record.results.values().all(|v| v.cut.subgroups * SUBGROUP == 64 && v.dropped > 0));
}

#[test]
fn the_budget_is_kept() {
    let budget = Duration::from_millis(2500);
    let out = search(FINE, &mut empty(), budget, u32::MAX);
    assert_eq!(out.report.ending, Ending::Budget);
    // By this clock a step takes 1 ms, waking the device 250 at first, and a round 48.
    assert!(out.report.rounds > 5 && out.report.spent < budget + Duration::from_millis(60), "{:?}", out.report.spent);
    let nothing = search(FINE, &mut empty(), Duration::ZERO, u32::MAX);
    assert_eq!(nothing.report.rounds, 0);
}

#[test]
fn wrong_rules_and_odd_settings_are_errors() {
    let model = LongRows::new("Q8_0", 512);
    let clock = Arc::default();
    let run = |manner, rows| {
        let mut device = Fake::new(gpu_caps(SUBGROUP), manner, &clock);
        let mut trusted = Fake::new(Caps::native(), FINE, &clock);
        let model = Model { name: "a model", graph: &model.graph, weights: &model };
        let settings = Settings { rows, ..settings(LONG) };
        tune(&mut device, &mut trusted, model, &settings, &mut empty(), &mut Desk::new(&clock)).map(|_| ())
    };
    let wrong = |_: Kind| true;
    assert!(matches!(run(Manner { wrong, ..FINE }, 1), Err(TuneError::RulesDiffer { .. })));
    assert!(matches!(run(FINE, 0), Err(TuneError::Rows { .. })));
    assert!(matches!(run(FINE, 129), Err(TuneError::Rows { .. })));
    let loses = |_: Kind| true;
    assert!(matches!(run(Manner { loses, ..FINE }, 1), Err(TuneError::Device(_))));
}

/// The interpreter, whose kernels are right, with one of them planted wrong: it takes gate for up.
struct Planted {
    inner: InterpretedDevice,
    guilty: Cut,
    planted: u32,
}

impl Planted {
    fn plant(&mut self, plan: &Plan) -> Plan {
        let mut plan = plan.clone();
        let Plan { entries, kernels, .. } = &mut plan;
        for entry in entries {
            let Entry::Launch(launch) = entry else { continue };
            let Some(kernel) = launch.kernel else { continue };
            let tile = [self.guilty.subgroups * SUBGROUP, 256 / self.guilty.tile()];
            let this = [kernels[kernel.0 as usize].workgroup_size, launch.grid[0]];
            if launch.template == "matvec_glu" && this == tile {
                let is_weight = |arg: &&mut LaunchArg| matches!(arg, LaunchArg::Address { buffer: Buffer::Weight(w), .. } if w.0 == 2 || w.0 == 3);
                let pair: Vec<&mut LaunchArg> = launch.args.iter_mut().filter(is_weight).collect();
                let [gate, up] = <[_; 2]>::try_from(pair).expect("gate and up");
                std::mem::swap(gate, up);
                self.planted += 1;
            }
        }
        plan
    }

    fn prepare(&mut self, plan: &Plan, progress: &mut dyn FnMut(Progress)) -> Result<ProgramId, DeviceError> {
        let plan = Arc::new(self.plant(plan));
        self.inner.prepare(&plan, progress)
    }
}

#[test]
fn a_planted_error_is_found_in_the_interpreter() {
    let model = LongRows::new("Q8_0", 256);
    let clock: Arc<AtomicU64> = Arc::default();
    let caps = gpu_caps(SUBGROUP);
    let guilty = Cut { subgroups: 16, rows: 1, turns: 2, units: 2, ahead: false, ..Cut::ONE };
    let planted = Some(Planted { inner: InterpretedDevice::new(caps.clone(), 3), guilty, planted: 0 });
    let mut device = Fake { planted, ..Fake::new(caps.clone(), FINE, &clock) };
    // Kernels by rule are the reference here.
    let mut trusted = InterpretedDevice::new(caps, 4);
    let mut record = empty();
    let mut desk = Desk { stop_after: 12, ..Desk::new(&clock) };
    let source = Model { name: "long rows", graph: &model.graph, weights: &model };
    let report = tune(&mut device, &mut trusted, source, &settings(LONG), &mut record, &mut desk).expect("a report");
    assert!(device.planted.is_some_and(|p| p.planted > 0) && report.rounds == 12);
    assert!(!record.quarantine.is_empty() && record.quarantine.len() < 8, "{:?}", record.quarantine);
    for q in &record.quarantine {
        assert!(q.key.starts_with("matvec_glu ") && [q.cut.subgroups, q.cut.tile()] == [16, 32], "{q:?}");
    }
    assert!(report.off.rms < 1e-3, "{:?}", report.off);
}
