//! `zinc bench`: tokens per second, as llama-bench measures them.
//!
//! ```text
//! pp N: one prompt of N tokens      tg N: N steps of one token      each: warm-up, then R runs ─► mean ± deviation
//! ```

use crate::args::{ComputeArgs, ModelArgs};
use crate::failure::usage;
use crate::interrupt::Interrupt;
use crate::output::print_line;
use crate::progress::Meter;
use crate::session::{Needs, Session, act_name, kv_name};
use anyhow::Result;
use clap::Args;
use serde_json::json;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use zinc_engine::{Program, Random, Request};

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
    /// Runs of each test
    #[arg(short = 'r', long = "repetitions", default_value_t = 5, value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    repetitions: u32,
    /// Also measure single launches, and show where the time goes
    #[arg(long)]
    profile: bool,
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
    prompt: u32,
    predict: u32,
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
    kinds: Option<BTreeMap<&'static str, Kind>>,
}

impl Measured {
    fn mean(&self) -> f64 {
        self.rates.iter().sum::<f64>() / self.rates.len() as f64
    }

    /// Sample standard deviation, 0 of a single run.
    fn deviation(&self) -> f64 {
        let mean = self.mean();
        let squares: f64 = self.rates.iter().map(|r| (r - mean) * (r - mean)).sum();
        (squares / (self.rates.len().max(2) - 1) as f64).sqrt()
    }
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    if arguments.prompt == 0 && arguments.generate == 0 {
        return Err(usage("-p 0 and -n 0 leave nothing to measure; give one of them"));
    }
    let interrupt = Interrupt::install()?;
    let context = arguments.prompt.max(arguments.generate).max(1);
    let mut session =
        Session::open(&arguments.model, &arguments.compute, Needs { context: Some(context) }, &interrupt)?;
    let (p, n) = (arguments.prompt, arguments.generate);
    let tests =
        [Test { name: "pp", tokens: p, prompt: p, predict: 1 }, Test { name: "tg", tokens: n, prompt: 1, predict: n }];
    let mut results = vec![];
    for test in tests.into_iter().filter(|t| t.tokens > 0) {
        results.push(measure(&mut session, test, arguments, &interrupt)?);
    }
    if arguments.json { print_json(&session, &results) } else { print_table(&session, &results) }
}

fn measure(session: &mut Session, test: Test, arguments: &Arguments, interrupt: &Interrupt) -> Result<Measured> {
    let programs = once(session, test, 0, interrupt)?.1;
    let mut rates = vec![];
    for repetition in 0..arguments.repetitions {
        let (time, _) = once(session, test, repetition as u64 + 1, interrupt)?;
        rates.push(test.tokens as f64 / time.as_secs_f64());
    }
    let kinds = if arguments.profile { profile(session, test, &programs, interrupt)? } else { None };
    Ok(Measured { test, rates, kinds })
}

/// Runs a test with its own random tokens; gives the time of all steps and the programs they used.
fn once(session: &mut Session, test: Test, seed: u64, interrupt: &Interrupt) -> Result<(Duration, Vec<Program>)> {
    let engine = &mut session.engine;
    engine.forget_prefixes();
    let mut random = Random::new(seed);
    let vocabulary = engine.vocabulary();
    let prompt = (0..test.prompt).map(|_| (random.unit() * vocabulary as f64) as u32).collect();
    engine.submit(Request { prompt, predict: Some(test.predict), ..Request::default() })?;
    let mut meter = Meter::new();
    let mut programs: Vec<Program> = vec![];
    let mut time = Duration::ZERO;
    while !engine.is_idle() {
        if let Some(program) = engine.prepare_step(&mut |p| meter.device(p))?
            && programs.last().is_none_or(|last| last.id != program.id)
        {
            programs.push(program);
        }
        meter.clear();
        let start = Instant::now();
        engine.step(&mut |_| ())?;
        time += start.elapsed();
        interrupt.check()?;
    }
    Ok((time, programs))
}

/// Runs a test once more with measuring on and sums its launches by template. `None` if the device cannot tell.
fn profile(
    session: &mut Session,
    test: Test,
    programs: &[Program],
    interrupt: &Interrupt,
) -> Result<Option<BTreeMap<&'static str, Kind>>> {
    for program in programs {
        session.engine.profile(program, true);
    }
    session.engine.forget_prefixes();
    let prompt = vec![1; test.prompt as usize];
    session.engine.submit(Request { prompt, predict: Some(test.predict), ..Request::default() })?;
    let mut kinds: BTreeMap<&'static str, Kind> = BTreeMap::new();
    while let Some(program) = session.engine.prepare_step(&mut |_| ())? {
        session.engine.step(&mut |_| ())?;
        let Some(times) = session.engine.profile(&program, true) else { break };
        for (launch, time) in program.plan.launches().zip(times) {
            let kind = kinds.entry(launch.template).or_default();
            kind.launches += 1;
            kind.time += time;
            kind.bytes += launch.bytes;
            kind.flops += launch.flops;
        }
        interrupt.check()?;
    }
    for program in programs {
        session.engine.profile(program, false);
    }
    Ok((!kinds.is_empty()).then_some(kinds))
}

fn print_table(session: &Session, results: &[Measured]) -> Result<()> {
    let spec = &session.source.model.spec;
    print_line("| model | size | params | device | act | kv | test | t/s |")?;
    print_line("| --- | ---: | ---: | --- | --- | --- | ---: | ---: |")?;
    for r in results {
        print_line(&format!(
            "| {} | {:.2} MiB | {:.2} M | {} | {} | {} | {}{} | {:.2} ± {:.2} |",
            session.source.name,
            spec.weight_bytes() as f64 / (1 << 20) as f64,
            spec.parameters() as f64 / 1e6,
            session.engine.device().description(),
            act_name(session.act),
            kv_name(session.kv),
            r.test.name,
            r.test.tokens,
            r.mean(),
            r.deviation(),
        ))?;
    }
    for r in results {
        if let Some(kinds) = &r.kinds {
            print_kinds(r.test, kinds)?;
        }
    }
    Ok(())
}

/// Where the time goes, the largest part first.
fn print_kinds(test: Test, kinds: &BTreeMap<&'static str, Kind>) -> Result<()> {
    let all: Duration = kinds.values().map(|k| k.time).sum();
    let mut rows: Vec<(&&str, &Kind)> = kinds.iter().collect();
    rows.sort_by_key(|(_, k)| std::cmp::Reverse(k.time));
    print_line(&format!("\n| {}{} launch | count | ms | share | GB/s | GFLOP/s |", test.name, test.tokens))?;
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
                "test": format!("{}{}", r.test.name, r.test.tokens),
                "tokens_per_second": r.mean(), "deviation": r.deviation(), "runs": r.rates, "launches": kinds,
            })
        })
        .collect();
    let value = json!({
        "model": session.source.name,
        "bytes": spec.weight_bytes(),
        "parameters": spec.parameters(),
        "device": session.engine.device().description(),
        "act": act_name(session.act),
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
        let test = Test { name: "pp", tokens: 1, prompt: 1, predict: 1 };
        let of = |rates: Vec<f64>| Measured { test, rates, kinds: None };
        assert_eq!(of(vec![1.0, 3.0]).mean(), 2.0);
        assert!((of(vec![1.0, 3.0]).deviation() - 2f64.sqrt()).abs() < 1e-12);
        assert_eq!(of(vec![5.0]).deviation(), 0.0);
    }
}
