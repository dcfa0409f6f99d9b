//! `zinc bench serve`: a server under load, as its clients see it.
//!
//! ```text
//! --base-url URL ──────────────────────────────────────────┐
//! MODEL | --shape ─► Session ─► the engine alone (rates) ─► Server on a loopback port ─► load, run by run ─► table
//! ```
//!
//! A server started here shares this process with its load. Beside each run of so many requests at a time stands what the
//! engine does with the same lengths without a server, and what the server costs.

use super::alone::{self, Alone};
use super::median;
use crate::args::{ComputeArgs, ModelArgs};
use crate::failure::usage;
use crate::interrupt::Interrupt;
use crate::load::{self, Ask, Client, Goal, Lengths, Pace, Report, Settings, Target, thread_time};
use crate::output::{print_line, say};
use crate::session::{Begun, Needs, Session, act_name};
use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use hyper::StatusCode;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use zinc_engine::{Engine, Sampling};
use zinc_serve::{Config, Loaded, Patience, Reasoning, ServeError, Server, Stop};

/// Vocabulary of a server that does not tell its own: what the smallest common ones have.
const USUAL_VOCABULARY: u32 = 32_000;

/// Time between two questions to a server that has no model yet.
const LOADING: Duration = Duration::from_millis(20);

/// Names of threads whose processor time is told: ours, and those of a server's connections.
const CLIENT_THREAD: &str = "zinc-load";
const SERVER_THREADS: &str = "zinc-http";

/// Measures a server under load: time to the first token, between tokens, throughput, goodput.
///
/// With --base-url any OpenAI-compatible server; otherwise one that is started here for MODEL, or for a --shape with made-up
/// weights, and compared with the engine alone.
#[derive(Args, Debug)]
pub(crate) struct Arguments {
    #[command(flatten)]
    model: ModelArgs,
    /// Server to measure, such as http://127.0.0.1:8080
    #[arg(long, value_name = "URL", conflicts_with_all = ["path", "model", "shape"])]
    base_url: Option<String>,
    /// Key that the server wants
    #[arg(long, value_name = "KEY", requires = "base_url")]
    api_key: Option<String>,
    /// Name of the model on the server; without it, the first that /v1/models lists
    #[arg(long, value_name = "NAME", requires = "base_url")]
    served_model_name: Option<String>,
    /// Requests of a run. Default: 8 for each at a time, at least 16
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    num_prompts: Option<u32>,
    /// Requests before a run that do not count. Default: 2 for each at a time
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(..=1_000_000))]
    num_warmups: Option<u32>,
    /// Requests at a time. Several runs: --max-concurrency 1,8,64. Default: 1,8,32,64, or no limit with --request-rate
    #[arg(long, visible_alias = "concurrency", value_name = "C", value_delimiter = ',')]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1024))]
    max_concurrency: Vec<u32>,
    /// Requests a second on average, at random times (Poisson) and however the server keeps up. Several runs: 1,2,4.
    /// Without it, the end of a request is the beginning of the next
    #[arg(long, value_name = "R", value_delimiter = ',')]
    request_rate: Vec<f64>,
    /// Tokens of random prompts
    #[arg(long, default_value_t = 1024, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1 << 22))]
    random_input_len: u32,
    /// Tokens of answers
    #[arg(long, default_value_t = 128, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1 << 22))]
    random_output_len: u32,
    /// Lengths are drawn from so far around the middle: 0.5 is from half to one and a half
    #[arg(long, default_value_t = 0.0, value_name = "R")]
    random_range_ratio: f64,
    /// Ids of random tokens are below this. Default: the vocabulary that the server tells, or 32000
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    vocab_size: Option<u32>,
    /// Requests from a file instead, one JSON object a line: `prompt` or `messages`, and perhaps `output_tokens`
    #[arg(long, value_name = "FILE", conflicts_with_all = ["random_input_len", "random_range_ratio"])]
    dataset_path: Option<PathBuf>,
    /// Answers of --dataset-path go on after their end, too, as random ones do
    #[arg(long, requires = "dataset_path")]
    ignore_eos: bool,
    /// Temperature
    #[arg(long, default_value_t = 0.0, value_name = "T")]
    temperature: f32,
    /// Count requests that keep all of these, in milliseconds: ttft:500 tpot:50 e2el:5000
    #[arg(long, value_name = "NAME:MS", num_args = 1.., value_delimiter = ',')]
    goodput: Vec<Goal>,
    /// Seed of tokens, lengths and arrivals
    #[arg(long, default_value_t = 0, value_name = "N")]
    seed: u64,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    compute: ComputeArgs,
}

/// A run's load.
#[derive(Clone, Copy, Debug)]
struct Level {
    pace: Pace,
    /// Requests that count.
    count: usize,
    /// Requests before them.
    warmups: usize,
}

impl Level {
    fn title(&self) -> String {
        let most = self.pace.most.map(|most| format!("×{most}"));
        let rate = self.pace.rate.map(|rate| format!("{rate}/s"));
        [rate, most].into_iter().flatten().collect::<Vec<_>>().join(" ")
    }

    /// How many run at a time, if that does not depend on the server.
    fn closed(&self) -> Option<usize> {
        self.pace.most.filter(|_| self.pace.rate.is_none()).map(|most| most as usize)
    }
}

/// A run and what it is compared with.
struct Row {
    level: Level,
    report: Report,
    alone: Option<Alone>,
    /// Processor time per generated token, in microseconds: of the client, and of a server's connections.
    client: Option<f64>,
    http: Option<f64>,
}

impl Row {
    /// What the server takes of the engine's rate; 0.05 is 5 %.
    fn overhead(&self) -> Option<f64> {
        let alone = self.alone.as_ref().map(Alone::rate).filter(|rate| *rate > 0.0)?;
        Some(1.0 - self.report.output_rate() / alone)
    }
}

impl Arguments {
    fn check(&self) -> Result<()> {
        if !(0.0..1.0).contains(&self.random_range_ratio) {
            return Err(usage("--random-range-ratio must be at least 0 and below 1"));
        }
        if self.request_rate.iter().any(|rate| !rate.is_finite() || *rate <= 0.0) {
            return Err(usage("--request-rate must be above 0; leave it out for no pauses"));
        }
        Sampling { temperature: self.temperature, ..Sampling::default() }
            .check()
            .map_err(|error| usage(error.to_string()))
    }

    fn lengths(&self) -> Lengths {
        Lengths { input: self.random_input_len, output: self.random_output_len, ratio: self.random_range_ratio }
    }

    /// The runs: every rate with every limit.
    fn levels(&self) -> Vec<Level> {
        let mut most: Vec<Option<u32>> = self.max_concurrency.iter().map(|c| Some(*c)).collect();
        if most.is_empty() {
            most = if self.request_rate.is_empty() { [1, 8, 32, 64].map(Some).into() } else { vec![None] };
        }
        let mut rates: Vec<Option<f64>> = self.request_rate.iter().map(|r| Some(*r)).collect();
        if rates.is_empty() {
            rates.push(None);
        }
        let level = |rate, most: Option<u32>| {
            let together = most.unwrap_or(16);
            let count = self.num_prompts.unwrap_or(together.saturating_mul(8).max(16)) as usize;
            let warmups = self.num_warmups.unwrap_or(together.saturating_mul(2)) as usize;
            Level { pace: Pace { rate, most }, count, warmups }
        };
        rates.iter().flat_map(|rate| most.iter().map(move |most| level(*rate, *most))).collect()
    }

    /// Requests of a run; each `turn` has tokens of its own, so that no prompt has been seen before, and the lengths of
    /// all turns are the same.
    fn asks(&self, count: usize, vocabulary: u32, turn: u64) -> Result<Vec<Ask>> {
        match &self.dataset_path {
            Some(file) => {
                let rows = load::dataset(file, self.random_output_len)?;
                Ok(rows.iter().cycle().take(count).cloned().collect())
            }
            None => Ok(load::random(count, self.lengths(), vocabulary, self.seed, self.seed.wrapping_add(turn << 32))),
        }
    }

    /// Most sequences at the same time on a server that is started here.
    fn sequences(&self) -> u32 {
        self.levels().iter().map(|level| level.pace.most.unwrap_or(64)).max().unwrap_or(1)
    }
}

/// A server of our own.
struct Own {
    stop: Stop,
    thread: JoinHandle<Result<(), ServeError>>,
    url: String,
}

impl Own {
    /// Serves a session's model on a loopback port.
    fn start(session: Session, sequences: u32) -> Result<Own> {
        let config = Config {
            port: 0,
            // Open loops may be far ahead of the server.
            most_sequences: 1 << 20,
            patience: Patience { connections: 1 << 20, connections_per_address: 1 << 20, ..Patience::default() },
            max_body: 1 << 30,
            grace: Duration::ZERO,
            page: false,
            ..Config::default()
        };
        let server = Server::bind(config)?;
        let (stop, url) = (server.stop(), format!("http://{}", server.address()));
        let loaded = Loaded {
            template: session.source.chat_template()?.and_then(|t| zinc_text::ChatTemplate::new(t).ok()),
            names: vec![session.source.name.clone()],
            trained_context: session.source.model.spec.context,
            tokenizer: session.tokenizer,
            engine: session.engine,
            sampling: Sampling::default(),
            parallel: sequences,
            revival: None,
            pooling: None,
            reasoning: Reasoning::default(),
            special_in_content: false,
            power: None,
        };
        let thread = std::thread::Builder::new().name("zinc-server".into());
        let thread = thread.spawn(move || server.run(move || Ok::<_, ServeError>(loaded)))?;
        Ok(Own { stop, thread, url })
    }

    fn end(self) -> Result<()> {
        self.stop.now();
        Ok(self.thread.join().map_err(|_| anyhow!("the server's thread died"))??)
    }
}

/// What is measured, for the report.
struct Subject {
    title: String,
    json: Value,
}

pub(crate) fn run(arguments: Arguments) -> Result<()> {
    arguments.check()?;
    let interrupt = Interrupt::install()?;
    let levels = arguments.levels();
    let (mut own, mut alone, mut subject) = (None, vec![], None);
    let mut vocabulary = arguments.vocab_size;
    if arguments.base_url.is_none() {
        let mut session = open(&arguments, &interrupt)?;
        let known = session.tokenizer.vocab_size().min(session.engine.vocabulary() as usize) as u32;
        vocabulary = Some(vocabulary.map_or(known, |asked| asked.min(known)));
        alone = levels
            .iter()
            .map(|level| by_itself(&arguments, &mut session.engine, *level, known, &interrupt))
            .collect::<Result<_>>()?;
        subject = Some(describe(&session));
        own = Some(Own::start(session, arguments.sequences())?);
    }
    let url = own.as_ref().map(|own| own.url.clone()).or(arguments.base_url.clone()).unwrap_or_default();
    let target = Target::parse(&url, arguments.api_key.as_deref())?;
    let subject = subject.unwrap_or_else(|| Subject { title: url.clone(), json: json!({"base_url": url}) });
    let json = arguments.json;
    // The load has a thread of its own, whose processor time is told.
    let thread = std::thread::Builder::new().name(CLIENT_THREAD.into());
    let thread = thread.spawn(move || put_under_load(&arguments, target, &levels, vocabulary, &interrupt))?;
    let measured = thread.join().map_err(|_| anyhow!("the client's thread died"))?;
    let ended = own.map_or(Ok(()), Own::end);
    let reports = measured?;
    ended?;
    let mut alone = alone.into_iter();
    let rows: Vec<Row> = reports.into_iter().map(|row| Row { alone: alone.next().flatten(), ..row }).collect();
    if json { print_json(&subject, &rows) } else { print_table(&subject, &rows) }?;
    match rows.iter().all(|row| row.report.done == 0) {
        true => bail!("no request was answered"),
        false => Ok(()),
    }
}

/// Loads the model with room for all requests of a run.
fn open(arguments: &Arguments, interrupt: &Interrupt) -> Result<Session> {
    let sequences = arguments.sequences();
    if sequences > arguments.compute.ubatch_size {
        return Err(usage(format!(
            "{sequences} requests at a time need as many rows in a step; give --ubatch-size {sequences}"
        )));
    }
    let needs =
        if arguments.dataset_path.is_some() { Needs::Usual } else { Needs::Exactly(arguments.lengths().most()) };
    Begun::new(&arguments.model, interrupt)?.load_for(&arguments.compute, needs, sequences, interrupt)
}

/// The engine without a server, where that can be compared. The first time it runs the requests, it compiles.
fn by_itself(
    arguments: &Arguments,
    engine: &mut Engine,
    level: Level,
    vocabulary: u32,
    interrupt: &Interrupt,
) -> Result<Option<Alone>> {
    let Some(concurrency) = level.closed().filter(|_| arguments.dataset_path.is_none()) else { return Ok(None) };
    let asks = arguments.asks(level.count, vocabulary, 0)?;
    let warm = &asks[..level.warmups.min(asks.len())];
    alone::run(engine, warm, concurrency, arguments.temperature, interrupt)?;
    alone::run(engine, &asks, concurrency, arguments.temperature, interrupt).map(Some)
}

fn describe(session: &Session) -> Subject {
    let device = session.engine.device().description();
    let (act, kv) = (act_name(session.act), session.kv.to_string());
    let title = format!("{} on {device}, activations {act}, K and V {kv}", session.source.name);
    let json = json!({"model": session.source.name, "device": device, "act": act, "tuned": session.tuned, "kv": kv});
    Subject { title, json }
}

/// Runs all loads, one after the other.
fn put_under_load(
    arguments: &Arguments,
    target: Target,
    levels: &[Level],
    vocabulary: Option<u32>,
    interrupt: &Interrupt,
) -> Result<Vec<Row>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
    runtime.block_on(async {
        let client = Arc::new(Client::new(target));
        let (name, told) = server_model(&client, arguments.served_model_name.as_deref(), interrupt).await?;
        let vocabulary = vocabulary.or(told).unwrap_or(USUAL_VOCABULARY);
        let ignore_eos = arguments.ignore_eos || arguments.dataset_path.is_none();
        let settings = Settings { model: name, temperature: arguments.temperature, ignore_eos };
        let mut rows = vec![];
        for (turn, level) in levels.iter().enumerate() {
            let requests = |count, turn| {
                let asks = arguments.asks(count, vocabulary, turn)?;
                Ok::<_, anyhow::Error>(asks.iter().map(|ask| ask.request(&settings)).collect::<Vec<_>>())
            };
            let turn = 2 * turn as u64 + 1;
            load::drive(&client, requests(level.warmups, turn)?, level.pace, arguments.seed, interrupt).await?;
            let counted = requests(level.count, turn + 1)?;
            let before = [CLIENT_THREAD, SERVER_THREADS].map(thread_time);
            let driven = load::drive(&client, counted, level.pace, arguments.seed, interrupt).await?;
            let after = [CLIENT_THREAD, SERVER_THREADS].map(thread_time);
            let report = Report::new(&driven, &arguments.goodput);
            for (message, count) in report.failures.iter().take(3) {
                say!("{}: {count} requests failed: {message}", level.title());
            }
            let tokens = report.output_tokens.max(1) as f64;
            let [client_time, http] = [0, 1].map(|i| {
                let spent = after[i]?.checked_sub(before[i]?)?;
                Some(spent.as_secs_f64() * 1e6 / tokens).filter(|_| i == 0 || arguments.base_url.is_none())
            });
            rows.push(Row { level: *level, report, alone: None, client: client_time, http });
        }
        Ok(rows)
    })
}

/// Name and vocabulary of the server's model, once it is loaded.
async fn server_model(client: &Client, asked: Option<&str>, interrupt: &Interrupt) -> Result<(String, Option<u32>)> {
    let mut waited = Duration::ZERO;
    let list = loop {
        let (status, answer) = client.get("/v1/models").await?;
        match status {
            StatusCode::OK => break answer,
            StatusCode::SERVICE_UNAVAILABLE => {
                interrupt.check()?;
                tokio::time::sleep(LOADING).await;
                waited += LOADING;
                if waited == 50 * LOADING {
                    say!("the server is loading its model …");
                }
            }
            status => {
                let why = answer["error"]["message"].as_str().unwrap_or("no message");
                bail!("/v1/models: {}: {why}", status.as_u16());
            }
        }
    };
    let models = list["data"].as_array().map_or(&[][..], Vec::as_slice);
    let entry = models.iter().find(|model| asked.is_none_or(|name| model["id"] == name)).or(models.first());
    let entry = entry.context("the server lists no model; name one with --served-model-name")?;
    let name = asked.or(entry["id"].as_str()).context("the server's model has no id")?;
    let vocabulary = entry["meta"]["n_vocab"].as_u64().and_then(|n| u32::try_from(n).ok()).filter(|n| *n > 0);
    Ok((name.to_owned(), vocabulary))
}

fn print_table(subject: &Subject, rows: &[Row]) -> Result<()> {
    print_line(&format!("{}\n", subject.title))?;
    for line in Report::HEAD {
        print_line(line)?;
    }
    for row in rows {
        print_line(&row.report.row(&row.level.title()))?;
    }
    if rows.iter().all(|row| row.alone.is_none() && row.client.is_none()) {
        return Ok(());
    }
    print_line(
        "\n| load | engine alone t/s | served t/s | overhead | alone ms/step | served ITL ms p50 | server µs/token | client µs/token |",
    )?;
    print_line("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")?;
    let or_dash = |value: Option<f64>, digits: usize| value.map_or("–".into(), |value| format!("{value:.digits$}"));
    for row in rows {
        print_line(&format!(
            "| {} | {} | {:.1} | {} | {} | {} | {} | {} |",
            row.level.title(),
            or_dash(row.alone.as_ref().map(Alone::rate), 1),
            row.report.output_rate(),
            row.overhead().map_or("–".into(), |part| format!("{:.1} %", 100.0 * part)),
            or_dash(row.alone.as_ref().and_then(|alone| median(&alone.steps)), 3),
            or_dash(row.report.itl.map(|itl| itl.p50), 3),
            or_dash(row.http, 1),
            or_dash(row.client, 1),
        ))?;
    }
    Ok(())
}

fn print_json(subject: &Subject, rows: &[Row]) -> Result<()> {
    let runs = rows.iter().map(|row| {
        let mut run = row.report.json();
        run["max_concurrency"] = row.level.pace.most.into();
        run["request_rate"] = row.level.pace.rate.into();
        run["client_microseconds_per_token"] = row.client.into();
        run["server_microseconds_per_token"] = row.http.into();
        run["overhead"] = row.overhead().into();
        run["alone"] = row.alone.as_ref().map_or(
            Value::Null,
            |alone| json!({"output_tokens_per_second": alone.rate(), "milliseconds_per_step": median(&alone.steps)}),
        );
        run
    });
    let mut value = subject.json.clone();
    value["runs"] = runs.collect();
    print_line(&serde_json::to_string_pretty(&value)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: Arguments,
    }

    fn read(line: &[&str]) -> Arguments {
        Line::try_parse_from([&["x"], line].concat()).expect("a command line").arguments
    }

    #[test]
    fn every_rate_is_run_with_every_limit() {
        let titles = |line: &[&str]| read(line).levels().iter().map(Level::title).collect::<Vec<_>>();
        assert_eq!(titles(&[]), ["×1", "×8", "×32", "×64"]);
        assert_eq!(titles(&["--concurrency", "2,4"]), ["×2", "×4"]);
        assert_eq!(titles(&["--request-rate", "1.5,3"]), ["1.5/s", "3/s"]);
        assert_eq!(titles(&["--request-rate", "2", "--max-concurrency", "1,9"]), ["2/s ×1", "2/s ×9"]);
        let counts = |line: &[&str]| read(line).levels().iter().map(|l| (l.count, l.warmups)).collect::<Vec<_>>();
        assert_eq!(counts(&["--concurrency", "1,8"]), [(16, 2), (64, 16)]);
        assert_eq!(counts(&["--num-prompts", "5", "--num-warmups", "0"])[3], (5, 0));
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for line in [&["--random-range-ratio", "1"][..], &["--request-rate", "0"], &["--temperature", "nan"]] {
            assert!(read(line).check().is_err(), "{line:?}");
        }
        assert!(read(&["--goodput", "ttft:500", "tpot:50", "--seed", "3"]).check().is_ok());
    }
}
