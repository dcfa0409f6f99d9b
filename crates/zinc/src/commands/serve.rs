//! `zinc serve`: the model as an HTTP endpoint.
//!
//! ```text
//! arguments ─► Server (its address is taken at once) ─ thread: Session ─► Loaded ─► requests
//! ```

use super::keys;
use crate::args::{ComputeArgs, ModelArgs, TemplateArgs};
use crate::failure::{usage, words};
use crate::interrupt::Interrupt;
use crate::output::say;
use crate::power;
use crate::prompt;
use crate::session::{Begun, Needs, Session};
use crate::size::Size;
use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use zinc_engine::Sampling;
use zinc_serve::{
    Collector, Config, Keys, Ledger, Loaded, LogFormat, Patience, Pooling, Reasoning, Reload, Revival, ServeError,
    Server, Tls, log_to_stderr,
};
use zinc_snapshots::{Snapshots, identity};
use zinc_text::ChatTemplate;

/// Answers OpenAI's and llama.cpp's clients over HTTP.
///
/// Paths: /v1/chat/completions, /v1/completions, /v1/embeddings, /v1/models; /tokenize, /detokenize, /apply-template, /props, /slots;
/// /health, /ready, /live, /metrics (Prometheus), /version, /openapi.json. In a browser, / is a page to chat in.
///
/// Ctrl-C or SIGTERM lets what has begun end, within --grace; the second one ends the program at once.
#[derive(Args, Debug)]
pub(crate) struct Arguments {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    template: ServedTemplate,
    #[command(flatten)]
    sampling: ServedSampling,
    #[command(flatten)]
    compute: ComputeArgs,
}

/// Who may ask, and how much at once.
#[derive(Args, Debug)]
#[command(next_help_heading = "Server")]
struct ServerArgs {
    /// Name or address to listen on; others than the own machine need keys, or --allow-anyone
    #[arg(long, default_value = "127.0.0.1", value_name = "HOST")]
    host: String,
    /// Port; 0: any free one
    #[arg(long, default_value_t = 8080, value_name = "PORT")]
    port: u16,
    /// Key that requests must bring (`Authorization: Bearer KEY`); can be given several times. Other users of the machine
    /// see it in the list of processes: better a file
    #[arg(long, value_name = "KEY")]
    api_key: Vec<String>,
    /// Read keys from a file, one a line, with names and limits behind them: `zinc keys --help`. SIGHUP has it read again
    #[arg(long, value_name = "FILE")]
    api_key_file: Option<PathBuf>,
    /// Enter what every request has used into a file, one JSON object a line. Quotas count from it, also after a restart
    #[arg(long, value_name = "FILE")]
    ledger: Option<PathBuf>,
    /// Have /metrics tell what each key has used. Anyone with a key can read it
    #[arg(long)]
    metrics_per_key: bool,
    /// Speak HTTPS: file with the server's certificate and those that vouch for it, in PEM form. SIGHUP has it read again
    #[arg(long, visible_alias = "ssl-cert-file", value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// File with the certificate's private key, in PEM form
    #[arg(long, visible_alias = "ssl-key-file", value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Let anyone who can reach the address, by whatever name, use the server without a key
    #[arg(long)]
    allow_anyone: bool,
    /// Name of the model for clients; can be given several times. Default: the file's name
    #[arg(short = 'a', long, visible_alias = "served-model-name", value_name = "NAME")]
    alias: Vec<String>,
    /// Most sequences at the same time (also -np); each has the context that -c says
    #[arg(long, visible_alias = "max-num-seqs", default_value_t = 8, value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1024))]
    parallel: u32,
    /// Most sequences that wait; requests beyond are refused with status 429
    #[arg(long, default_value_t = 256, value_name = "N", value_parser = clap::value_parser!(u32).range(..=1 << 20))]
    queue: u32,
    /// Largest request, in MiB
    #[arg(long, default_value_t = 16, value_name = "MIB", value_parser = clap::value_parser!(u32).range(1..=1024))]
    max_request: u32,
    /// Memory for all requests that are being read, in MiB, at least twice --max-request; what finds none is refused with status 503
    #[arg(long, default_value_t = 256, value_name = "MIB", value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    max_request_memory: u32,
    /// Seconds for the head of a request, or for a kept connection to send another
    #[arg(long, default_value_t = 30, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..=3600))]
    header_timeout: u32,
    /// Seconds for the body of a request
    #[arg(long, default_value_t = 60, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..=3600))]
    body_timeout: u32,
    /// Seconds that a client may read nothing of what it is sent
    #[arg(long, default_value_t = 30, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..=3600))]
    write_timeout: u32,
    /// Most connections; more wait
    #[arg(long, default_value_t = 4096, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    max_connections: u32,
    /// Most connections from one address; more are refused with status 429
    #[arg(long, default_value_t = 1024, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    max_connections_per_address: u32,
    /// Seconds that requests have to end when the server is stopped
    #[arg(long, default_value_t = 30, value_name = "SECONDS")]
    grace: u32,
    /// How embeddings are made of the hidden states of a text's tokens; default: as the model's file says, or else last
    #[arg(long, value_name = "HOW")]
    pooling: Option<Pooled>,
    /// No page to chat in at /
    #[arg(long)]
    no_webui: bool,
    /// Send a span for each request to an OpenTelemetry collector (OTLP over HTTP), as in http://127.0.0.1:4318; a client's
    /// `traceparent` is continued
    #[arg(long, value_name = "URL")]
    otlp_endpoint: Option<String>,
    /// Keep K and V of prompts and answers in this folder: after a restart, a prompt that begins like one of them need not be
    /// computed again. Holds what has been said, as tokens: nobody else should be able to read it. Several servers may share it
    #[arg(long, value_name = "DIR")]
    kv_dir: Option<PathBuf>,
    /// Most disk space for --kv-dir, such as 500MiB or 10GiB; what was not used for longest is deleted
    #[arg(long, default_value = "10GiB", value_name = "SIZE", requires = "kv_dir")]
    kv_dir_size: Size,
    /// Form of log lines
    #[arg(long, default_value = "text", value_name = "FORM")]
    log_format: Form,
}

/// Form of log lines.
#[derive(Clone, Copy, ValueEnum, Debug)]
enum Form {
    /// For people
    Text,
    /// One JSON object a line
    Json,
}

/// How hidden states become an embedding.
#[derive(Clone, Copy, ValueEnum, Debug)]
enum Pooled {
    /// The mean of all tokens'
    Mean,
    /// The last token's
    Last,
}

/// The chat template, where it is not the model's own.
#[derive(Args, Debug)]
#[command(next_help_heading = "Conversation")]
struct ServedTemplate {
    /// Use this chat template instead of the model's: a name (chatml, gemma) or Jinja source
    #[arg(long, value_name = "NAME|JINJA")]
    chat_template: Option<String>,
    /// Read the chat template from a file
    #[arg(long, value_name = "FILE", conflicts_with = "chat_template")]
    chat_template_file: Option<PathBuf>,
    /// Where reasoning goes that the model writes between tags
    #[arg(long, default_value = "auto", value_name = "FORM")]
    reasoning_format: Format,
    /// Most tokens of reasoning; the closing tag is forced then, and the answer goes on. 0: none; -1: no limit
    #[arg(long, default_value_t = -1, value_name = "N", allow_negative_numbers = true)]
    #[arg(value_parser = clap::value_parser!(i64).range(-1..=i64::from(u32::MAX)))]
    reasoning_budget: i64,
    /// Let messages spell special tokens (`<|im_end|>`), so that whoever writes a part of one can end it and speak as
    /// another role
    #[arg(long)]
    special_in_content: bool,
}

/// Where reasoning goes.
#[derive(Clone, Copy, ValueEnum, Debug)]
enum Format {
    /// Apart, if the model's template shows how it is marked
    Auto,
    /// Apart, as `reasoning_content`
    Deepseek,
    /// It stays in the answer, tags and all
    None,
}

/// How tokens are chosen where a request does not say.
#[derive(Args, Debug)]
#[command(next_help_heading = "Sampling, where a request does not say")]
struct ServedSampling {
    /// Temperature; 0: always the most likely token
    #[arg(long, default_value_t = 0.8, value_name = "T", allow_negative_numbers = true)]
    temp: f32,
    /// Choose among the K most likely tokens; 0: all
    #[arg(long, default_value_t = 40, value_name = "K")]
    top_k: u32,
    /// Choose among the most likely tokens that together have probability P; 1: all
    #[arg(long, default_value_t = 0.95, value_name = "P")]
    top_p: f32,
    /// Choose among tokens at least P times as likely as the best; 0: all
    #[arg(long, default_value_t = 0.05, value_name = "P")]
    min_p: f32,
    /// Make recent tokens less likely by this factor; 1: no
    #[arg(long, default_value_t = 1.0, value_name = "X")]
    repeat_penalty: f32,
    /// How many tokens are recent; -1: all
    #[arg(long, default_value_t = 64, value_name = "N", allow_negative_numbers = true)]
    repeat_last_n: i32,
}

impl ServedSampling {
    fn sampling(&self) -> Result<Sampling> {
        let sampling = Sampling {
            temperature: self.temp,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repeat_penalty: self.repeat_penalty,
            repeat_last_n: self.repeat_last_n,
            ..Sampling::default()
        };
        sampling.check().map_err(|error| usage(error.to_string()))?;
        Ok(sampling)
    }
}

impl ServerArgs {
    fn config(&self) -> Result<Config> {
        let given = Keys::new(self.api_key.iter().map(String::as_str)).map_err(|error| usage(error.to_string()))?;
        let mut reload = Reload::default();
        let keys = match self.api_key_file.clone() {
            None => given,
            Some(path) => {
                let all = move || keys_of(&path).map(|keys| given.clone().and(keys));
                let keys = all()?;
                reload = reload.keys(move || all().map_err(|error| words(&error)));
                keys
            }
        };
        let mut tls = None;
        if let (Some(certificate), Some(key)) = (self.tls_cert.clone(), self.tls_key.clone()) {
            tls = Some(tls_of(&certificate, &key)?);
            reload = reload.tls(move || tls_of(&certificate, &key).map_err(|error| words(&error)));
        }
        let traces = self.otlp_endpoint.as_deref().map(Collector::read).transpose();
        let traces = traces.map_err(|error| usage(error.to_string()))?;
        Ok(Config {
            host: self.host.clone(),
            port: self.port,
            keys,
            tls,
            reload,
            allow_anyone: self.allow_anyone,
            ledger: self.ledger.as_deref().map(Ledger::open).transpose()?.map(Arc::new),
            key_metrics: self.metrics_per_key,
            traces,
            patience: Patience {
                head: Duration::from_secs(self.header_timeout.into()),
                body: Duration::from_secs(self.body_timeout.into()),
                stall: Duration::from_secs(self.write_timeout.into()),
                connections: self.max_connections as usize,
                connections_per_address: self.max_connections_per_address as usize,
            },
            most_sequences: self.parallel as usize + self.queue as usize,
            max_body: (self.max_request as usize) << 20,
            max_bodies: (self.max_request_memory as usize) << 20,
            grace: Duration::from_secs(self.grace.into()),
            page: !self.no_webui,
            signals: true,
        })
    }
}

/// The keys of a file, of which there must be some.
fn keys_of(path: &Path) -> Result<Keys> {
    let keys = keys::keys_of(path)?;
    // A server that was meant to be closed must not come up open.
    if keys.is_open() { Err(usage(format!("{} has no keys", path.display()))) } else { Ok(keys) }
}

/// Time that a lost device has before it is tried a second time.
const PAUSE: Duration = Duration::from_secs(2);

/// The certificate of a file, and the key of another.
fn tls_of(certificate: &Path, key: &Path) -> Result<Tls> {
    let read = |path: &Path| std::fs::read(path).with_context(|| format!("cannot read {}", path.display()));
    let tls = Tls::from_pem(&read(certificate)?, &read(key)?);
    tls.with_context(|| format!("{} and {}", certificate.display(), key.display()))
}

pub(crate) fn run(arguments: Arguments) -> Result<()> {
    let config = arguments.server.config()?;
    let sampling = arguments.sampling.sampling()?;
    let form = match arguments.server.log_format {
        Form::Text => LogFormat::Text,
        Form::Json => LogFormat::Json,
    };
    log_to_stderr(form, arguments.compute.verbose);
    let server = Server::bind(config).map_err(|error| match error {
        ServeError::Open { .. } => usage(error.to_string()),
        error => error.into(),
    })?;
    let scheme = if arguments.server.tls_cert.is_some() { "https" } else { "http" };
    say!("listening on {scheme}://{}", server.address());
    let loaded = move || load(&arguments, sampling).map_err(|error| words(&error));
    Ok(server.run(loaded)?)
}

/// Loads the model.
fn load(arguments: &Arguments, sampling: Sampling) -> Result<Loaded> {
    // It is the server that reacts to Ctrl-C.
    let interrupt = Interrupt::default();
    let begun = Begun::new(&arguments.model, &interrupt)?;
    let source = begun.source.chat_template()?.map(str::to_owned);
    let given = TemplateArgs {
        chat_template: arguments.template.chat_template.clone(),
        chat_template_file: arguments.template.chat_template_file.clone(),
        ..TemplateArgs::default()
    };
    // A model whose own template is broken can still complete texts; one that was asked for must work.
    let own = given.chat_template.is_none() && given.chat_template_file.is_none();
    let template = match prompt::template_source(&given, source.as_deref()) {
        // Made-up weights understand any template equally well.
        Ok(None) if arguments.model.shape.is_some() => Some(ChatTemplate::builtin("chatml")?),
        Err(error) if own => {
            say!("warning: no chats: {}", words(&error));
            None
        }
        other => other?,
    };
    let parallel = arguments.server.parallel;
    let mut session = begun.load_for(&arguments.compute, Needs::Usual, parallel, &interrupt)?;
    if let Some(folder) = &arguments.server.kv_dir {
        keep_pages(&mut session, folder, arguments.server.kv_dir_size)?;
    }
    let pooling = match arguments.server.pooling {
        Some(Pooled::Mean) => Some(Pooling::Mean),
        Some(Pooled::Last) => Some(Pooling::Last),
        None => Pooling::of_file(session.source.pooling_type()?),
    };
    Ok(Loaded {
        pooling,
        special_in_content: arguments.template.special_in_content,
        reasoning: Reasoning {
            apart: !matches!(arguments.template.reasoning_format, Format::None),
            budget: u32::try_from(arguments.template.reasoning_budget).ok(),
        },
        template,
        names: names(&arguments.server.alias, &arguments.model, &session.source.name),
        trained_context: session.source.model.spec.context,
        power: session.engine.device().bus_address().and_then(|address| power::meter(&address)),
        tokenizer: session.tokenizer,
        engine: session.engine,
        sampling,
        parallel,
        revival: Some(Revival { open: session.reopen, weights: session.source.weights, pause: PAUSE }),
    })
}

/// Has the engine keep its pages in a folder of at most so many bytes.
fn keep_pages(session: &mut Session, folder: &Path, limit: Size) -> Result<()> {
    let identity = identity(&session.engine, session.source.weights.as_ref());
    let snapshots = Snapshots::open(folder, limit.0, identity)
        .with_context(|| format!("cannot keep K and V in {}", folder.display()))?;
    session.engine.keep_pages_in(Box::new(snapshots));
    Ok(())
}

/// What clients may call the model: the names given, or the file's and the one it has inside.
fn names(alias: &[String], model: &ModelArgs, inner: &str) -> Vec<String> {
    if !alias.is_empty() {
        return alias.to_vec();
    }
    let file = model.path.as_ref().or(model.model.as_ref());
    let mut names: Vec<String> =
        file.and_then(|f| f.file_stem()).map(|s| s.to_string_lossy().into_owned()).into_iter().collect();
    if !names.iter().any(|name| name == inner) {
        names.push(inner.to_owned());
    }
    names
}
