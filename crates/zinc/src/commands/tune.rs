//! `zinc tune`: finds the fastest kernels of a model for a GPU, and keeps them.
//!
//! ```text
//! model + GPU + the CPU as the judge ─zinc_tuner::tune─► record in the cache folder ─► every later start
//! ```

use crate::args::{ComputeArgs, ModelArgs};
use crate::device;
use crate::interrupt::Interrupt;
use crate::output::{print_line, say};
use crate::progress::{Meter, Unit};
use crate::session::act_name;
use crate::source::Source;
use crate::tuned;
use anyhow::{Context, Result};
use clap::Args;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use zinc_ir::device::Device;
use zinc_tuner::{Ending, Event, Host, Model, Record, Report, Settings, tune};
use zinc_vulkan::{Options, VulkanDevice};

/// Tries other ways to cut the work of a model's kernels, compares each with the CPU before it is timed, and keeps the
/// fastest for this GPU and driver. Later starts use them, of other models with the same sizes too.
#[derive(Args, Debug)]
pub(crate) struct Arguments {
    #[command(flatten)]
    model: ModelArgs,
    /// Seconds to spend, after loading; a second search goes on where the first one ended
    #[arg(long, default_value_t = 10.0, value_name = "SECONDS", value_parser = seconds)]
    budget: f64,
    /// Token rows of the step: sequences that are generated together
    #[arg(long, default_values_t = [1], value_delimiter = ',', value_name = "N[,N…]")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=128))]
    rows: Vec<u32>,
    /// Forget what was found on this GPU, quarantine included, before the search; without a model: only that
    #[arg(long)]
    forget: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    compute: ComputeArgs,
}

/// A number of seconds.
fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.0..=86400.0).contains(&seconds) => Ok(seconds),
        _ => Err("give a number of seconds up to 86400".into()),
    }
}

/// A cut that runs longer than this hangs.
const TIMEOUT: Duration = Duration::from_secs(20);

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let interrupt = Interrupt::install()?;
    let index = device::vulkan_index(&arguments.compute).context("only GPUs have kernels to tune")?;
    // Kernels that are tried once are not worth keeping.
    let mut device = VulkanDevice::open(index, &Options { timeout: TIMEOUT, ..Options::default() })?;
    let (identity, description) = (device.report().identity(), device.description());
    say!("device: {description}");
    let path = tuned::path(&identity)?;
    if arguments.forget {
        let was_there = tuned::forget(&path)?;
        say!("{}", if was_there { "what was found before is forgotten" } else { "there was nothing to forget" });
        if arguments.model.path.is_none() && arguments.model.model.is_none() && arguments.model.shape.is_none() {
            return Ok(());
        }
    }
    let source = Source::open(&arguments.model, Some(&interrupt))?;
    let record = tuned::load(&path, &identity).filter(|_| !arguments.compute.no_cache);
    let mut record = record.unwrap_or_else(|| Record::new(&identity, &description));
    let path = (!arguments.compute.no_cache).then_some(path);
    let mut reports = vec![];
    for rows in &arguments.rows {
        let mut desk = Desk::new(&interrupt, path.as_deref());
        let report = search(arguments, *rows, &mut device, &source, &mut record, &mut desk)?;
        let ending = report.ending.clone();
        reports.push((*rows, report));
        if matches!(ending, Ending::Stopped | Ending::Lost(_)) {
            break;
        }
    }
    let about = About { model: &source.name, device: &description, act: act_name(arguments.compute.act(false)) };
    if arguments.json { print_json(&about, &reports, &record) } else { print_table(&about, &reports, &path) }?;
    match reports.last().map(|(_, report)| &report.ending) {
        Some(Ending::Lost(why)) => {
            anyhow::bail!("the device was lost: {why}; the cuts on trial are quarantined, run zinc tune again to go on")
        }
        _ => Ok(()),
    }
}

fn search(
    arguments: &Arguments,
    rows: u32,
    device: &mut VulkanDevice,
    source: &Source,
    record: &mut Record,
    desk: &mut Desk<'_>,
) -> Result<Report> {
    let mut trusted = zinc_cpu::CpuDevice::new(arguments.compute.threads).context("cannot start the CPU device")?;
    let settings = Settings {
        act: arguments.compute.act(false),
        kv: arguments.compute.kv(),
        rows,
        budget: Duration::from_secs_f64(arguments.budget / arguments.rows.len() as f64),
    };
    let model = Model { name: &source.name, graph: &source.model.graph, weights: source.weights.as_ref() };
    let report = tune(device, &mut trusted, model, &settings, record, desk);
    desk.meter.clear();
    report.with_context(|| format!("cannot tune {}", source.name))
}

/// Shows and keeps what the search reports.
struct Desk<'a> {
    interrupt: &'a Interrupt,
    path: Option<&'a Path>,
    meter: Meter,
    start: Instant,
    stopped: bool,
    complained: bool,
}

impl<'a> Desk<'a> {
    fn new(interrupt: &'a Interrupt, path: Option<&'a Path>) -> Desk<'a> {
        let (start, meter) = (Instant::now(), Meter::new());
        Desk { interrupt, path, meter, start, stopped: false, complained: false }
    }
}

impl Host for Desk<'_> {
    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn stop(&mut self) -> bool {
        self.stopped |= self.interrupt.take();
        self.stopped
    }

    fn save(&mut self, record: &Record) {
        let Some(path) = self.path else { return };
        if let Err(error) = tuned::store(path, record)
            && !std::mem::replace(&mut self.complained, true)
        {
            self.meter.clear();
            say!("warning: {error:#}; what is found will be lost");
        }
    }

    fn event(&mut self, event: Event<'_>) {
        match event {
            Event::Progress(progress) => {
                self.interrupt.exit_if_pressed();
                self.meter.device(progress);
            }
            Event::Begun { keys, cuts, off } => {
                self.meter.clear();
                say!("{keys} kinds of launches, {cuts} cuts to try; by rule they differ from the CPU by {off}");
            }
            Event::Round { spent, budget, .. } => {
                let whole = |time: Duration| time.as_secs_f64().round() as u64;
                self.meter.show("tuning, seconds", Unit::Pieces, whole(spent), whole(budget).max(1));
            }
            Event::Barred { key, cut, reason } => {
                self.meter.clear();
                say!("quarantined: {cut} of {key}: {reason}");
            }
        }
    }
}

/// What was tuned.
struct About<'a> {
    model: &'a str,
    device: &'a str,
    act: &'a str,
}

/// Why a search ended, in words.
fn ending(ending: &Ending) -> String {
    match ending {
        Ending::Complete => "every legal cut has been tried".into(),
        Ending::Budget => "the time was up; another `zinc tune` goes on".into(),
        Ending::Stopped => "stopped by Ctrl-C; another `zinc tune` goes on".into(),
        Ending::Lost(why) => format!("the device was lost: {why}"),
    }
}

fn print_table(about: &About<'_>, reports: &[(u32, Report)], path: &Option<PathBuf>) -> Result<()> {
    print_line(&format!("{} on {}, act {}", about.model, about.device, about.act))?;
    for (rows, report) in reports {
        print_line(&format!("\n| kernel, {rows} rows | launches | by rule µs | best µs | gain | cut | tried |"))?;
        print_line("| --- | ---: | ---: | ---: | ---: | --- | ---: |")?;
        for key in &report.keys {
            let Some(v) = &key.verdict else { continue };
            print_line(&format!(
                "| {} | {} | {:.2} | {:.2} | {:.1} % | {}{} | {} of {} |",
                key.key,
                key.launches,
                v.rule_seconds * 1e6,
                v.seconds * 1e6,
                100.0 * v.gain(),
                v.cut,
                if v.cut == v.rule { " (rule)" } else { "" },
                v.tried.len(),
                key.legal,
            ))?;
        }
        let (rule, best) = report.step_seconds();
        print_line(&format!(
            "\nThese launches of a step: {:.3} ms by rule, {:.3} ms now ({:.1} % less). {} rounds in {:.1} s, {} cuts timed, \
             {} dropped for what the compiler said, {} quarantined; {}.",
            rule * 1e3,
            best * 1e3,
            100.0 * (1.0 - best / rule.max(1e-12)),
            report.rounds,
            report.spent.as_secs_f64(),
            report.timed,
            report.dropped,
            report.barred,
            ending(&report.ending),
        ))?;
        for key in &report.untried {
            print_line(&format!("Not tried: {key}."))?;
        }
        let [part, whole] = report.layers;
        print_line(&format!(
            "Timed with {part} of {whole} layers, {} MiB read between two uses of \
             a weight{}.",
            report.rotates >> 20,
            if part == whole { ", as in use" } else { "" },
        ))?;
    }
    match path {
        Some(path) => print_line(&format!("Kept in {}.", path.display())),
        None => print_line("Not kept (--no-cache)."),
    }
}

fn print_json(about: &About<'_>, reports: &[(u32, Report)], record: &Record) -> Result<()> {
    let searches: Vec<Value> = reports.iter().map(|(rows, report)| as_json(*rows, report)).collect();
    let value = json!({
        "model": about.model, "device": about.device, "identity": record.identity, "act": about.act,
        "searches": searches, "quarantine": record.quarantine,
    });
    print_line(&serde_json::to_string_pretty(&value)?)
}

fn as_json(rows: u32, report: &Report) -> Value {
    let keys = report
        .keys
        .iter()
        .map(|key| json!({ "key": key.key, "launches": key.launches, "legal_cuts": key.legal, "result": key.verdict }));
    let (rule, best) = report.step_seconds();
    json!({
        "rows": rows,
        "keys": keys.collect::<Vec<_>>(), "untried": report.untried,
        "step_seconds_by_rule": rule, "step_seconds": best,
        "rounds": report.rounds, "timed": report.timed, "dropped": report.dropped, "quarantined": report.barred,
        "layers": report.layers[0], "of_layers": report.layers[1], "rotates_bytes": report.rotates,
        "rules_differ_from_cpu": { "rms": report.off.rms, "max": report.off.max },
        "seconds": report.spent.as_secs_f64(),
        "ended": ending(&report.ending),
    })
}
