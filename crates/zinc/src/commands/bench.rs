//! `zinc bench`: tokens per second, as llama-bench measures them.
//!
//! ```text
//! pp N: one prompt of N tokens      tg N: N steps of one token      each: warm-up, then R runs ─► median ± deviation
//!    … @ d D: after D tokens of context, which are run in steps of their own and not timed
//!    … x S: S sequences at once, each with tokens of its own; tokens of all are counted
//! ```
//!
//! The D tokens are the same in all runs, so that K and V of them are computed once and then shared by runs. Of several
//! sequences, generation is timed after their prompts, in steps that have a row of each.
//!
//! Host time is what the thread that drives the device spends per token on choosing, building, submitting and reading
//! steps: all but waiting.
//!
//! `zinc bench serve` measures a server instead.

mod alone;
mod serve;
mod workload;

use crate::args::{ComputeArgs, ModelArgs};
use crate::device;
use crate::failure::usage;
use crate::interrupt::Interrupt;
use crate::output::{print, print_line, say};
use crate::progress::Meter;
use crate::roofline::{self, Expected, Limits, Ran, Roofline};
use crate::session::{Begun, Needs, Session, act_name};
use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use serde_json::json;
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use workload::Test;
use zinc_engine::{Program, Ran as Step};
use zinc_ir::device::ProgramId;

/// Measures prompt and generation speed of a model, or of a shape with made-up weights (--shape).
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    other: Option<Other>,
    #[command(flatten)]
    model: ModelArgs,
    /// Tokens of the prompt test; 0: leave it out
    #[arg(short = 'p', long = "n-prompt", default_value_t = 512, value_name = "N")]
    prompt: u32,
    /// Tokens of the generation test; 0: leave it out
    #[arg(short = 'n', long = "n-gen", default_value_t = 128, value_name = "N")]
    generate: u32,
    /// Tokens of context that each test starts with; they are not timed. Several depths: -d 0,4096
    #[arg(short = 'd', long = "n-depth", default_value = "0", value_name = "N", value_delimiter = ',')]
    #[arg(value_parser = clap::value_parser!(u32).range(..=1 << 24))]
    depths: Vec<u32>,
    /// Sequences at once, each with a prompt of -p tokens and -n generated after it; rates count the tokens of all.
    /// Several counts: --parallel 1,2,4,8 (also -npl)
    #[arg(long, value_name = "N", value_delimiter = ',', conflicts_with = "depths")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1024))]
    parallel: Vec<u32>,
    /// Runs of each test
    #[arg(short = 'r', long = "repetitions", default_value_t = 5, value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    repetitions: u32,
    /// Also measure single launches, and show where the time goes
    #[arg(long)]
    profile: bool,
    /// Compare every kind of launch with what the device was measured to attain (measured once, see `zinc devices
    /// --measure`), show launch gaps and the host's share, and say what limits the model
    #[arg(long)]
    roofline: bool,
    /// Draw that as a plot
    #[arg(long, value_name = "FILE", requires = "roofline")]
    svg: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    compute: ComputeArgs,
}

/// Other measurements. A model file of such a name is `./NAME`.
#[derive(Subcommand, Debug)]
enum Other {
    Serve(Box<serve::Arguments>),
}

/// Time and traffic of one kind of launch.
#[derive(Clone, Copy, Debug, Default)]
struct Kind {
    launches: usize,
    time: Duration,
    bytes: u64,
    flops: u64,
}

/// A test's results.
struct Measured {
    test: Test,
    rates: Vec<f64>,
    /// Time per step of each run, in milliseconds.
    steps: Vec<f64>,
    /// Host time per token of each run, in microseconds; none if the host computes the steps itself.
    host: Vec<f64>,
    kinds: Option<BTreeMap<&'static str, Kind>>,
    roofline: Option<Roofline>,
}

impl Measured {
    fn mean(&self) -> f64 {
        self.rates.iter().sum::<f64>() / self.rates.len() as f64
    }

    fn median(&self) -> f64 {
        median(&self.rates).unwrap_or(0.0)
    }

    /// Sample standard deviation, 0 of a single run.
    fn deviation(&self) -> f64 {
        let mean = self.mean();
        let squares: f64 = self.rates.iter().map(|r| (r - mean) * (r - mean)).sum();
        (squares / (self.rates.len().max(2) - 1) as f64).sqrt()
    }
}

fn median(values: &[f64]) -> Option<f64> {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    let (low, high) = (values.get(values.len().saturating_sub(1) / 2)?, values.get(values.len() / 2)?);
    Some((low + high) / 2.0)
}

pub(crate) fn run(arguments: Arguments) -> Result<()> {
    match arguments.other {
        Some(Other::Serve(arguments)) => serve::run(*arguments),
        None => measure_model(&arguments),
    }
}

fn measure_model(arguments: &Arguments) -> Result<()> {
    if arguments.prompt == 0 && arguments.generate == 0 {
        return Err(usage("-p 0 and -n 0 leave nothing to measure; give one of them"));
    }
    let interrupt = Interrupt::install()?;
    // Before the model takes the memory.
    let limits = match arguments.roofline {
        true => Some(Limits::new(device::limits(&arguments.compute)?)),
        false => None,
    };
    let tests = Test::all(arguments);
    let needs = tests.iter().map(Test::context).max().map_or(Needs::Usual, Needs::Exactly);
    let sequences = tests.iter().map(Test::sequences).max().unwrap_or(1);
    let rows = arguments.compute.ubatch_size;
    if sequences > rows {
        return Err(usage(format!(
            "{sequences} sequences need as many rows in a step; give --ubatch-size {sequences}"
        )));
    }
    let model = Begun::new(&arguments.model, &interrupt)?;
    let mut session = model.load_for(&arguments.compute, needs, sequences, &interrupt)?;
    let mut results = vec![];
    for test in tests {
        results.push(measure(&mut session, test, arguments, limits.as_ref(), &interrupt)?);
    }
    // Figures first: a plot that cannot be written does not lose them.
    if arguments.json { print_json(&session, &results) } else { print_table(&session, &results) }?;
    match &arguments.svg {
        Some(file) => draw(&session, &results, file),
        None => Ok(()),
    }
}

fn measure(
    session: &mut Session,
    test: Test,
    arguments: &Arguments,
    limits: Option<&Limits>,
    interrupt: &Interrupt,
) -> Result<Measured> {
    fill_contexts(session, test, interrupt)?;
    let programs = once(session, test, 0, interrupt)?.programs;
    let (mut rates, mut steps, mut host) = (vec![], vec![], vec![]);
    for repetition in 0..arguments.repetitions {
        let run = once(session, test, repetition as u64 + 1, interrupt)?;
        rates.push(run.rows as f64 / run.time.as_secs_f64());
        steps.push(run.time.as_secs_f64() * 1e3 / run.steps as f64);
        host.extend(run.host.map(|time| time.as_secs_f64() * 1e6 / run.rows as f64));
    }
    let mut measured = Measured { test, rates, steps, host, kinds: None, roofline: None };
    if !arguments.profile && limits.is_none() {
        return Ok(measured);
    }
    let Some(profile) = profile(session, test, &programs, arguments.repetitions, interrupt)? else {
        say!("warning: this device has no clock for single launches: no profile");
        return Ok(measured);
    };
    if arguments.profile {
        measured.kinds = Some(kinds(&profile.ran));
    }
    if let Some(limits) = limits {
        let tokens = profile.rows;
        let (profiled, wall) = (profile.time.as_secs_f64() / tokens as f64, 1.0 / measured.median());
        measured.roofline = Some(Roofline::new(limits, &profile.ran, tokens, profiled, wall));
    }
    Ok(measured)
}

/// What the timed steps of a run took, and the programs they used.
struct Run {
    steps: u32,
    /// Token rows of them.
    rows: u64,
    time: Duration,
    /// Of which the host did not wait.
    host: Option<Duration>,
    programs: Vec<Program>,
}

/// Computes K and V of the contexts that several sequences start with, so that they begin together.
fn fill_contexts(session: &mut Session, test: Test, interrupt: &Interrupt) -> Result<()> {
    let engine = &mut session.engine;
    let mut meter = Meter::new();
    for request in test.contexts(engine.vocabulary()) {
        engine.submit(request)?;
    }
    while !engine.is_idle() {
        engine.step(&mut |p| meter.device(p))?;
        meter.clear();
        interrupt.check()?;
    }
    Ok(())
}

/// Runs a test with its own random tokens.
fn once(session: &mut Session, test: Test, seed: u64, interrupt: &Interrupt) -> Result<Run> {
    let engine = &mut session.engine;
    if test.depth == 0 {
        engine.forget_prefixes();
    }
    for request in test.requests(engine.vocabulary(), seed) {
        engine.submit(request)?;
    }
    let mut meter = Meter::new();
    let host = engine.device().waited().map(|_| Duration::ZERO);
    let mut run = Run { steps: 0, rows: 0, time: Duration::ZERO, host, programs: vec![] };
    let mut events = vec![];
    while !engine.is_idle() {
        let (before, known, waited) = (Instant::now(), engine.programs(), engine.device().waited());
        engine.prepare_step(&mut |p| meter.device(p))?;
        // Compiling is not measured, choosing and building a step is.
        let start = if engine.programs() > known { Instant::now() } else { before };
        meter.clear();
        engine.step_into(&mut events, &mut |_| ())?;
        events.clear();
        if let Some(ran) = engine.ran().filter(|ran| test.counts(&ran.parts)) {
            let took = start.elapsed();
            let waited = engine.device().waited().zip(waited).map(|(after, before)| after - before);
            run.steps += 1;
            run.rows += ran.rows as u64;
            run.time += took;
            run.host = run.host.zip(waited).map(|(host, waited)| host + took.saturating_sub(waited));
            if run.programs.iter().all(|known| known.id != ran.program.id) {
                run.programs.push(ran.program.clone());
            }
        }
        interrupt.check()?;
    }
    match run.steps {
        0 => bail!("{}: no step had a row of every sequence; generate more tokens (-n)", test.title()),
        _ => Ok(run),
    }
}

/// A run with measuring on.
struct Profile {
    ran: Vec<Ran>,
    /// Token rows of all timed steps.
    rows: u64,
    /// Of those steps, as the host saw it.
    time: Duration,
}

/// Seed of the tokens of profiled runs.
const PROFILE_SEED: u64 = u64::MAX;

/// Most runs with measuring on.
const PROFILED: u32 = 5;

/// Runs a test with measuring of launches on, and gives the run of median time. `None` if the device cannot tell.
fn profile(
    session: &mut Session,
    test: Test,
    programs: &[Program],
    repetitions: u32,
    interrupt: &Interrupt,
) -> Result<Option<Profile>> {
    for program in programs {
        session.engine.profile(program, true);
    }
    // Programs that measure are recorded anew when they first run: that run does not count.
    profiled_run(session, test, interrupt)?;
    let runs = (0..repetitions.min(PROFILED)).map(|_| profiled_run(session, test, interrupt));
    let mut runs = runs.collect::<Result<Vec<Profile>>>()?;
    runs.sort_by_key(|run| run.time);
    let profile = runs.swap_remove(runs.len() / 2);
    for program in programs {
        session.engine.profile(program, false);
    }
    Ok((!profile.ran.is_empty()).then_some(profile))
}

fn profiled_run(session: &mut Session, test: Test, interrupt: &Interrupt) -> Result<Profile> {
    let engine = &mut session.engine;
    for request in test.requests(engine.vocabulary(), PROFILE_SEED) {
        engine.submit(request)?;
    }
    let mut profile = Profile { ran: vec![], rows: 0, time: Duration::ZERO };
    let mut known: HashMap<ProgramId, Vec<Expected>> = HashMap::new();
    while !engine.is_idle() {
        let start = Instant::now();
        engine.step(&mut |_| ())?;
        let took = start.elapsed();
        interrupt.check()?;
        // Not the program chosen last, which the device may just be starting.
        let Some(Step { program, rows, parts, .. }) = engine.ran().cloned() else { break };
        if !test.counts(&parts) {
            continue;
        }
        profile.rows += rows as u64;
        profile.time += took;
        let plan = &program.plan;
        let Some(times) = engine.profile(&program, true) else { break };
        let expected = known.entry(program.id).or_insert_with(|| roofline::expected(plan));
        for ((launch, expected), time) in plan.launches().zip(expected).zip(times) {
            let (template, cost) = (launch.template, plan.cost_of(launch, &parts));
            profile.ran.push(Ran { template, expected: *expected, seconds: time.as_secs_f64(), cost });
        }
    }
    Ok(profile)
}

/// Sums launches by template.
fn kinds(ran: &[Ran]) -> BTreeMap<&'static str, Kind> {
    let mut kinds: BTreeMap<&'static str, Kind> = BTreeMap::new();
    for launch in ran {
        let kind = kinds.entry(launch.template).or_default();
        kind.launches += 1;
        kind.time += Duration::from_secs_f64(launch.seconds);
        kind.bytes += launch.cost.bytes;
        kind.flops += launch.cost.flops;
    }
    kinds
}

/// Writes the plot of all tests.
fn draw(session: &Session, results: &[Measured], file: &Path) -> Result<()> {
    let title = format!("{} on {}", session.source.name, session.engine.device().description());
    let tests: Vec<(String, &Roofline)> =
        results.iter().filter_map(|r| Some((r.test.title(), r.roofline.as_ref()?))).collect();
    std::fs::write(file, roofline::plot(&title, &tests)).with_context(|| format!("cannot write {}", file.display()))
}

fn print_table(session: &Session, results: &[Measured]) -> Result<()> {
    let spec = &session.source.model.spec;
    print_line("| model | size | params | device | act | kv | test | t/s | ms/step | host µs/token |")?;
    print_line("| --- | ---: | ---: | --- | --- | --- | ---: | ---: | ---: | ---: |")?;
    for r in results {
        print_line(&format!(
            "| {} | {:.2} MiB | {:.2} M | {} | {} | {} | {} | {:.2} ± {:.2} | {:.3} | {} |",
            session.source.name,
            spec.weight_bytes() as f64 / (1 << 20) as f64,
            spec.parameters() as f64 / 1e6,
            session.engine.device().description(),
            act_name(session.act),
            session.kv,
            r.test.title(),
            r.median(),
            r.deviation(),
            median(&r.steps).unwrap_or(0.0),
            median(&r.host).map_or("–".into(), |host| format!("{host:.1}")),
        ))?;
    }
    for r in results {
        if let Some(kinds) = &r.kinds {
            print_kinds(r.test, kinds)?;
        }
        if let Some(roofline) = &r.roofline {
            print(&roofline.table(&r.test.title()))?;
        }
    }
    Ok(())
}

/// Where the time goes, the largest part first.
fn print_kinds(test: Test, kinds: &BTreeMap<&'static str, Kind>) -> Result<()> {
    let all: Duration = kinds.values().map(|k| k.time).sum();
    let mut rows: Vec<(&&str, &Kind)> = kinds.iter().collect();
    rows.sort_by_key(|(_, k)| std::cmp::Reverse(k.time));
    print_line(&format!("\n| {} launch | count | ms | share | GB/s | GFLOP/s |", test.title()))?;
    print_line("| --- | ---: | ---: | ---: | ---: | ---: |")?;
    for (name, k) in rows {
        let seconds = k.time.as_secs_f64().max(1e-9);
        print_line(&format!(
            "| {name} | {} | {:.3} | {:.1} % | {:.1} | {:.1} |",
            k.launches,
            seconds * 1e3,
            100.0 * seconds / all.as_secs_f64().max(1e-9),
            k.bytes as f64 / seconds / 1e9,
            k.flops as f64 / seconds / 1e9,
        ))?;
    }
    Ok(())
}

fn print_json(session: &Session, results: &[Measured]) -> Result<()> {
    let spec = &session.source.model.spec;
    let tests: Vec<_> = results
        .iter()
        .map(|r| {
            let kinds = r.kinds.as_ref().map(|kinds| {
                let rows = kinds.iter().map(|(name, k)| {
                    json!({
                        "launch": name, "count": k.launches, "seconds": k.time.as_secs_f64(),
                        "bytes": k.bytes, "flops": k.flops,
                    })
                });
                rows.collect::<Vec<_>>()
            });
            json!({
                "test": r.test.title(), "depth": r.test.depth, "sequences": r.test.sequences(),
                "tokens_per_second": r.median(), "median": r.median(), "mean": r.mean(), "deviation": r.deviation(),
                "runs": r.rates, "milliseconds_per_step": median(&r.steps), "host_microseconds_per_token": median(&r.host), "launches": kinds,
                "roofline": r.roofline.as_ref().map(Roofline::json),
            })
        })
        .collect();
    let value = json!({
        "model": session.source.name,
        "bytes": spec.weight_bytes(),
        "parameters": spec.parameters(),
        "device": session.engine.device().description(),
        "act": act_name(session.act),
        "tuned": session.tuned,
        "kv": session.kv.to_string(),
        "tests": tests,
    });
    print_line(&serde_json::to_string_pretty(&value)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deviation_is_that_of_a_sample() {
        let test = Test { name: "pp", tokens: 1, depth: 0, prompt: 1, predict: 1, parallel: None };
        let of = |rates: Vec<f64>| Measured { test, rates, steps: vec![], host: vec![], kinds: None, roofline: None };
        assert_eq!(of(vec![1.0, 3.0]).mean(), 2.0);
        assert!((of(vec![1.0, 3.0]).deviation() - 2f64.sqrt()).abs() < 1e-12);
        assert_eq!(of(vec![5.0]).deviation(), 0.0);
        assert_eq!([of(vec![9.0, 1.0, 2.0]).median(), of(vec![4.0, 1.0]).median()], [2.0, 2.5]);
    }
}
