//! `zinc bench`: tokens per second, as llama-bench measures them.
//!
//! ```text
//! pp N: one prompt of N tokens      tg N: N steps of one token      each: warm-up, then R runs ─► median ± deviation
//!    … @ d D: after D tokens of context, which are run in steps of their own and not timed
//! ```
//!
//! The D tokens are the same in all runs, so that K and V of them are computed once and then shared.
//!
//! Host time is what the thread that drives the device spends per token on choosing, building, submitting and reading
//! steps: all but waiting.

use crate::args::{ComputeArgs, ModelArgs};
use crate::device;
use crate::failure::usage;
use crate::interrupt::Interrupt;
use crate::output::{print, print_line, say};
use crate::progress::Meter;
use crate::roofline::{self, Expected, Limits, Ran, Roofline};
use crate::session::{Needs, Session, act_name, kv_name};
use anyhow::{Context, Result};
use clap::Args;
use serde_json::json;
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use zinc_engine::{Program, Ran as Step, Random, Request};
use zinc_ir::device::ProgramId;

/// Measures prompt and generation speed of a model, or of a shape with made-up weights (--shape).
#[derive(Args, Debug)]
pub(crate) struct Arguments {
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

/// What is measured: how a run begins, and how many tokens it counts.
#[derive(Clone, Copy, Debug)]
struct Test {
    name: &'static str,
    tokens: u32,
    /// Tokens of context before the first that is timed.
    depth: u32,
    /// Tokens of the prompt after them.
    prompt: u32,
    predict: u32,
}

impl Test {
    /// The tests that the arguments ask for.
    fn all(arguments: &Arguments) -> Vec<Test> {
        let (p, n) = (arguments.prompt, arguments.generate);
        let of = |depth| {
            let prompt = Test { name: "pp", tokens: p, depth, prompt: p, predict: 1 };
            [prompt, Test { name: "tg", tokens: n, depth, prompt: 1, predict: n }]
        };
        arguments.depths.iter().flat_map(|depth| of(*depth)).filter(|test| test.tokens > 0).collect()
    }

    /// Name, size and depth, as llama-bench writes them: `tg128 @ d8192`.
    fn title(&self) -> String {
        let depth = if self.depth > 0 { format!(" @ d{}", self.depth) } else { String::new() };
        format!("{}{}{depth}", self.name, self.tokens)
    }

    /// Tokens of context that it needs.
    fn context(&self) -> u32 {
        self.depth.saturating_add(self.tokens)
    }

    /// Its first part, the same in all runs, and `rest`.
    fn request(&self, vocabulary: u32, rest: impl FnMut() -> u32) -> Request {
        let mut random = Random::new(0);
        let depth = (0..self.depth).map(|_| token(&mut random, vocabulary));
        let prompt = depth.chain(std::iter::repeat_with(rest).take(self.prompt as usize)).collect();
        Request { prompt, predict: Some(self.predict), split: Some(self.depth), ..Request::default() }
    }
}

/// A token drawn from all of the vocabulary.
fn token(random: &mut Random, vocabulary: u32) -> u32 {
    (random.unit() * vocabulary as f64) as u32
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

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
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
    let mut session = Session::open(&arguments.model, &arguments.compute, needs, &interrupt)?;
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
    let programs = once(session, test, 0, interrupt)?.programs;
    let (mut rates, mut host) = (vec![], vec![]);
    for repetition in 0..arguments.repetitions {
        let run = once(session, test, repetition as u64 + 1, interrupt)?;
        rates.push(test.tokens as f64 / run.time.as_secs_f64());
        host.extend(run.host.map(|time| time.as_secs_f64() * 1e6 / test.tokens as f64));
    }
    let mut measured = Measured { test, rates, host, kinds: None, roofline: None };
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
        let tokens = test.tokens as u64;
        let (profiled, wall) = (profile.time.as_secs_f64() / tokens as f64, 1.0 / measured.median());
        measured.roofline = Some(Roofline::new(limits, &profile.ran, tokens, profiled, wall));
    }
    Ok(measured)
}

/// What a run took, and the programs it used.
struct Run {
    time: Duration,
    /// Of which the host did not wait.
    host: Option<Duration>,
    programs: Vec<Program>,
}

/// Runs a test with its own random tokens.
fn once(session: &mut Session, test: Test, seed: u64, interrupt: &Interrupt) -> Result<Run> {
    let engine = &mut session.engine;
    let (mut random, vocabulary) = (Random::new(!seed), engine.vocabulary());
    if test.depth == 0 {
        engine.forget_prefixes();
    }
    engine.submit(test.request(vocabulary, || token(&mut random, vocabulary)))?;
    let mut meter = Meter::new();
    let mut run =
        Run { time: Duration::ZERO, host: engine.device().waited().map(|_| Duration::ZERO), programs: vec![] };
    let mut events = vec![];
    while !engine.is_idle() {
        let (before, known, waited) = (Instant::now(), engine.programs(), engine.device().waited());
        engine.prepare_step(&mut |p| meter.device(p))?;
        // Compiling is not measured, choosing and building a step is.
        let start = if engine.programs() > known { Instant::now() } else { before };
        meter.clear();
        engine.step_into(&mut events, &mut |_| ())?;
        events.clear();
        if let Some(ran) = engine.ran().filter(|ran| ran.position >= test.depth) {
            let took = start.elapsed();
            let waited = engine.device().waited().zip(waited).map(|(after, before)| after - before);
            run.time += took;
            run.host = run.host.zip(waited).map(|(host, waited)| host + took.saturating_sub(waited));
            if run.programs.iter().all(|known| known.id != ran.program.id) {
                run.programs.push(ran.program.clone());
            }
        }
        interrupt.check()?;
    }
    Ok(run)
}

/// A run with measuring on.
struct Profile {
    ran: Vec<Ran>,
    /// Of all steps, as the host saw it.
    time: Duration,
}

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
    engine.submit(test.request(engine.vocabulary(), || 1))?;
    let mut profile = Profile { ran: vec![], time: Duration::ZERO };
    let mut known: HashMap<ProgramId, Vec<Expected>> = HashMap::new();
    while !engine.is_idle() {
        let start = Instant::now();
        engine.step(&mut |_| ())?;
        let took = start.elapsed();
        interrupt.check()?;
        // Not the program chosen last, which the device may just be starting.
        let Some(Step { program, position, rows }) = engine.ran().cloned() else { break };
        if position < test.depth {
            continue;
        }
        profile.time += took;
        let plan = &program.plan;
        let Some(times) = engine.profile(&program, true) else { break };
        let expected = known.entry(program.id).or_insert_with(|| roofline::expected(plan));
        for ((launch, expected), time) in plan.launches().zip(expected).zip(times) {
            let (template, cost) = (launch.template, plan.cost_at(launch, position, rows));
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
    print_line("| model | size | params | device | act | kv | test | t/s | host µs/token |")?;
    print_line("| --- | ---: | ---: | --- | --- | --- | ---: | ---: | ---: |")?;
    for r in results {
        print_line(&format!(
            "| {} | {:.2} MiB | {:.2} M | {} | {} | {} | {} | {:.2} ± {:.2} | {} |",
            session.source.name,
            spec.weight_bytes() as f64 / (1 << 20) as f64,
            spec.parameters() as f64 / 1e6,
            session.engine.device().description(),
            act_name(session.act),
            kv_name(session.kv),
            r.test.title(),
            r.median(),
            r.deviation(),
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
                "test": r.test.title(), "depth": r.test.depth,
                "tokens_per_second": r.median(), "median": r.median(), "mean": r.mean(), "deviation": r.deviation(),
                "runs": r.rates, "host_microseconds_per_token": median(&r.host), "launches": kinds,
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
        "kv": kv_name(session.kv),
        "tests": tests,
    });
    print_line(&serde_json::to_string_pretty(&value)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deviation_is_that_of_a_sample() {
        let test = Test { name: "pp", tokens: 1, depth: 0, prompt: 1, predict: 1 };
        let of = |rates: Vec<f64>| Measured { test, rates, host: vec![], kinds: None, roofline: None };
        assert_eq!(of(vec![1.0, 3.0]).mean(), 2.0);
        assert!((of(vec![1.0, 3.0]).deviation() - 2f64.sqrt()).abs() < 1e-12);
        assert_eq!(of(vec![5.0]).deviation(), 0.0);
        assert_eq!([of(vec![9.0, 1.0, 2.0]).median(), of(vec![4.0, 1.0]).median()], [2.0, 2.5]);
    }
}
