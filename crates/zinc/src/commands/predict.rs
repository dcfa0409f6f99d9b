//! `zinc predict`: does a model fit a card that need not be here, how fast will it decode, and what limits it?
//!
//! ```text
//! model + card's abilities ─compile─► plans (bytes per launch) ─card's figures─► GiB, tok/s ± , what limits it
//! ```

use crate::args::{Act, CacheType, ModelArgs};
use crate::failure::usage;
use crate::output::print_line;
use crate::session::act_name;
use crate::source::Source;
use anyhow::{Context, Result};
use clap::Args;
use serde_json::{Value, json};
use std::fmt::Write;
use std::sync::Arc;
use zinc_compiler::Choices;
use zinc_engine::context_bucket;
use zinc_ir::plan::{ActPrecision, Bucket, KvLayout, KvTypes, PAGE_TOKENS, Plan, Tail};
use zinc_predict::cards::{self, CARDS, Card};
use zinc_predict::memory::{Fit, GIB};
use zinc_predict::rates;
use zinc_predict::time::{self, Prediction, Shares};

/// Contexts that speed is given for.
const CONTEXTS: [u32; 2] = [128, 8192];
/// Token rows of the largest step, as `--ubatch-size` has it by default.
const PROMPT_ROWS: u32 = 512;

/// Predicts on a card, which need not be here: whether a model fits, its decoding speed with error bars, and what limits
/// it. From the compiled plan's bytes and launches, the card's published figures, and compiler statistics of every kernel.
#[derive(Args, Debug)]
pub(crate) struct Arguments {
    #[command(flatten)]
    model: ModelArgs,
    /// The card; `list` lists those that are known
    #[arg(long, value_name = "NAME")]
    gpu: String,
    /// Tokens of context that memory is reckoned for. Default: 8192, or as many as the model was trained for, which
    /// is what 0 says, too
    #[arg(short = 'c', long, value_name = "N", value_parser = clap::value_parser!(u32).range(..=1 << 24))]
    ctx_size: Option<u32>,
    /// Element type of cached keys
    #[arg(long, default_value = "f16", value_name = "TYPE")]
    cache_type_k: CacheType,
    /// Element type of cached values; without it, that of the keys
    #[arg(long, value_name = "TYPE")]
    cache_type_v: Option<CacheType>,
    /// How far inputs of matrix products may be rounded
    #[arg(long, default_value = "f16", value_name = "PRECISION")]
    act: Act,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Everything that is printed.
struct Report {
    model: String,
    card: &'static Card,
    act: ActPrecision,
    kv: KvTypes,
    context: u32,
    fit: Fit,
    speeds: Vec<(u32, Prediction)>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    if arguments.gpu == "list" {
        if arguments.json {
            return print_line(&serde_json::to_string_pretty(&cards_json())?);
        }
        let lines: Vec<String> = CARDS.iter().map(|c| format!("{:<10} {}", c.name, c.title)).collect();
        return print_line(&lines.join("\n"));
    }
    let card = cards::card(&arguments.gpu).map_err(|e| usage(e.to_string()))?;
    let source = Source::open(&arguments.model, None)?;
    let report = report(arguments, card, &source)?;
    match arguments.json {
        true => print_line(&serde_json::to_string_pretty(&as_json(&report))?),
        false => print_line(as_text(&report)?.trim_end()),
    }
}

fn report(arguments: &Arguments, card: &'static Card, source: &Source) -> Result<Report> {
    let trained = source.model.spec.context;
    let context = match arguments.ctx_size {
        Some(0) => trained,
        Some(n) => n,
        None => trained.min(8192),
    };
    let context = context.next_multiple_of(PAGE_TOKENS);
    let k = arguments.cache_type_k;
    let kv_type = KvTypes { k: k.into(), v: arguments.cache_type_v.unwrap_or(k).into() };
    let act = arguments.act.into();
    let graph = &source.model.graph;
    let kv = Arc::new(KvLayout::new(graph, kv_type, context / PAGE_TOKENS));
    let plan = |tokens: u32, visible: u32| -> Result<Plan> {
        let context = context_bucket(visible, context.max(visible));
        let bucket = Bucket { tokens, outputs: 1, context, sequences: 1, tail: Tail::Greedy };
        let choices = Choices { act, ..Choices::default() };
        Ok(zinc_compiler::compile(graph, &kv, bucket, &card.caps(), &choices)?)
    };
    let prompt = plan(PROMPT_ROWS.min(context), context)?;
    let fit = Fit::new(graph, &kv, prompt.scratch_bytes + prompt.inputs.bytes + prompt.output_bytes, card);
    let rates = rates::of(card.chip).context("a card without rates, please report this")?;
    let mut speeds = vec![];
    for visible in CONTEXTS.into_iter().filter(|c| *c <= context.max(CONTEXTS[0])) {
        speeds.push((visible, time::step(&plan(1, visible)?, card, rates, visible)));
    }
    Ok(Report { model: source.name.clone(), card, act, kv: kv_type, context, fit, speeds })
}

fn gib(bytes: u64) -> f64 {
    bytes as f64 / GIB
}

fn as_text(r: &Report) -> Result<String> {
    let mut out = String::new();
    let (card, fit) = (r.card, &r.fit);
    writeln!(out, "model    {}", r.model)?;
    writeln!(
        out,
        "card     {}: {} GiB, {} GB/s, of which a streaming read reaches {:.0}",
        card.title,
        card.memory_gib,
        card.published_gbps,
        card.streaming_gbps()
    )?;
    writeln!(out, "with     activations {}, K and V {}", act_name(r.act), r.kv)?;
    let (w, k, s) = (gib(fit.weights), gib(fit.kv), gib(fit.scratch));
    writeln!(
        out,
        "\nmemory   {:.2} GiB of {:.1} usable: weights {w:.2}, K and V of {} tokens {k:.2}, scratch {s:.2}",
        gib(fit.needed()),
        gib(fit.usable),
        r.context
    )?;
    if fit.missing() == 0 {
        writeln!(out, "         fits; K and V of up to {} tokens would", fit.most_context)?;
    } else if fit.most_context == 0 {
        writeln!(out, "         does not fit: {:.2} GiB are missing; take a smaller quantization", gib(fit.missing()))?;
    } else {
        let most = fit.most_context;
        writeln!(
            out,
            "         does not fit: {:.2} GiB are missing; up to {most} tokens of context would",
            gib(fit.missing())
        )?;
    }
    if fit.missing() > 0 {
        writeln!(out, "\nIf it did fit, one sequence would decode at:")?;
    }
    writeln!(out, "\ncontext  tok/s           range    ms/token  limited by")?;
    for (visible, p) in &r.speeds {
        let (rate, low, high) = p.tokens_per_second();
        let range = format!("{low:.1} to {high:.1}");
        writeln!(out, "{visible:>7}  {rate:>5.1} {range:>15}  {:>10.2}  {}", p.time.total() / 1e3, limits(&p.time))?;
    }
    if let Some((visible, p)) = r.speeds.first() {
        kinds(*visible, p, &mut out)?;
    }
    writeln!(out, "\nbasis    {}", card.basis)?;
    for unknown in &r.speeds.first().map(|s| s.1.unknown.clone()).unwrap_or_default() {
        writeln!(out, "         no arithmetic rate for {unknown}: taken as bound by memory")?;
    }
    Ok(out)
}

/// Shares of the time, the largest first.
fn limits(time: &Shares) -> String {
    let mut shares = [
        (time.memory, "memory"),
        (time.arithmetic, "arithmetic"),
        (time.launches, "launches"),
        (time.latency, "latency"),
        (time.step, "submission"),
    ];
    shares.sort_by(|a, b| b.0.total_cmp(&a.0));
    let named = shares.iter().map(|(t, name)| (100.0 * t / time.total(), name)).filter(|(percent, _)| *percent >= 1.0);
    named.map(|(percent, name)| format!("{name} {percent:.0} %")).collect::<Vec<_>>().join(", ")
}

fn kinds(visible: u32, p: &Prediction, out: &mut String) -> Result<()> {
    writeln!(out, "\nlaunches at {visible:<8} count         MB        µs   GB/s")?;
    let mut rows: Vec<_> = p.kinds.iter().collect();
    rows.sort_by(|a, b| b.1.time.total().total_cmp(&a.1.time.total()));
    for (name, k) in rows {
        let (mb, us) = (k.bytes as f64 / 1e6, k.time.total());
        writeln!(out, "{name:<20} {:>5} {mb:>10.1} {us:>9.1} {:>6.0}", k.launches, k.bytes as f64 / us / 1e3)?;
    }
    Ok(())
}

/// The cards that are known.
fn cards_json() -> Value {
    let card = |c: &Card| {
        json!({
            "name": c.name, "title": c.title, "chip": c.chip, "memory_gib": c.memory_gib,
            "published_gbps": c.published_gbps, "streaming_gbps": c.streaming_gbps(),
        })
    };
    CARDS.iter().map(card).collect()
}

fn as_json(r: &Report) -> Value {
    let speeds: Vec<Value> = r.speeds.iter().map(|(context, p)| speed_json(*context, p)).collect();
    json!({
        "model": r.model,
        "gpu": r.card.name,
        "act": act_name(r.act),
        "kv": r.kv.to_string(),
        "memory": {
            "weights": r.fit.weights, "kv": r.fit.kv, "scratch": r.fit.scratch, "context": r.context,
            "usable": r.fit.usable, "missing": r.fit.missing(), "fits": r.fit.missing() == 0,
            "most_context": r.fit.most_context,
        },
        "decode": speeds,
        "basis": r.card.basis,
    })
}

fn speed_json(context: u32, p: &Prediction) -> Value {
    let (rate, low, high) = p.tokens_per_second();
    let shares = |t: &Shares| {
        json!({
            "memory": t.memory, "arithmetic": t.arithmetic, "launches": t.launches, "latency": t.latency, "step": t.step,
        })
    };
    let kinds: Vec<Value> = p
        .kinds
        .iter()
        .map(|(name, k)| {
            json!({ "launch": name, "count": k.launches, "bytes": k.bytes, "us": k.time.total(), "us_by_limit": shares(&k.time) })
        })
        .collect();
    json!({
        "context": context, "tokens_per_second": rate, "low": low, "high": high, "us": p.time.total(),
        "us_by_limit": shares(&p.time), "bytes": p.bytes(), "launches": kinds, "unknown_rates": p.unknown,
    })
}
