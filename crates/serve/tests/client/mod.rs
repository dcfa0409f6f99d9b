//! What the server's tests share: a server with a tiny model on the CPU, and a client.
#![allow(dead_code)] // Each test file uses its part.

mod http;

pub(crate) use http::*;

use serde_json::Value;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use zinc_engine::{Engine, OpenError, Options, Sampling};
use zinc_gguf::Gguf;
use zinc_ir::device::Device;
use zinc_ir::plan::KvTypes;
use zinc_models::GgufWeights;
use zinc_serve::{Config, Loaded, Pooling, Reasoning, Revival, ServeError, Server, Stop};
use zinc_snapshots::Snapshots;
use zinc_text::{ChatTemplate, Tokenizer};

/// How the model under test is set up.
#[derive(Clone, Copy)]
pub(crate) struct Setup {
    pub(crate) context: u32,
    pub(crate) parallel: u32,
    /// Most token rows of a step.
    pub(crate) rows: u32,
    /// Pages of the KV pool; `None`: enough for all.
    pub(crate) pages: Option<u32>,
    pub(crate) queue: usize,
    pub(crate) grace: Duration,
    pub(crate) pooling: Pooling,
    /// A chat template; empty: chatml.
    pub(crate) template: &'static str,
    /// Messages may spell special tokens.
    pub(crate) special: bool,
}

pub(crate) const USUAL: Setup = Setup {
    context: 512,
    parallel: 4,
    rows: 64,
    pages: None,
    queue: 1000,
    grace: Duration::from_secs(5),
    pooling: Pooling::Last,
    template: "",
    special: false,
};

/// Opens a device.
pub(crate) type Open = Box<dyn FnMut() -> Result<Box<dyn Device>, OpenError> + Send>;

/// The tiny llama of the test data, with a chat template, on the CPU.
pub(crate) fn load(setup: Setup) -> Result<Loaded, String> {
    load_model("llama", setup)
}

/// Another tiny model of the test data.
pub(crate) fn load_model(name: &str, setup: Setup) -> Result<Loaded, String> {
    load_on(name, setup, Box::new(|| Ok(Box::new(zinc_cpu::CpuDevice::new(1)?))))
}

/// One on any device.
pub(crate) fn load_on(name: &str, setup: Setup, open: Open) -> Result<Loaded, String> {
    load_kept(name, setup, open, None)
}

/// K and V on disk: where, how much, and in which types.
pub(crate) struct Kept {
    pub(crate) folder: PathBuf,
    pub(crate) limit: u64,
    pub(crate) kv: KvTypes,
}

/// One with K and V on disk.
pub(crate) fn load_kept(name: &str, setup: Setup, mut open: Open, kept: Option<Kept>) -> Result<Loaded, String> {
    let models = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/arch"));
    let file = models.join(name).join("model.gguf");
    let gguf = Arc::new(Gguf::open(&file).map_err(|e| e.to_string())?);
    let model = zinc_models::open(&gguf).map_err(|e| e.to_string())?;
    let weights = GgufWeights::new(gguf.clone(), &model.graph).map_err(|e| e.to_string())?;
    let device = open().map_err(|e| e.to_string())?;
    let Setup { context, parallel, rows, pages, .. } = setup;
    let kv = kept.as_ref().map_or(Options::default().kv, |kept| kept.kv);
    let options = Options { context, sequences: parallel, pages, kv, rows, ..Options::default() };
    let mut engine =
        Engine::new(device, model.graph.clone(), &weights, options, &mut |_| ()).map_err(|e| e.to_string())?;
    if let Some(Kept { folder, limit, .. }) = kept {
        let identity = zinc_snapshots::identity(&engine, &weights);
        let snapshots = Snapshots::open(&folder, limit, identity).map_err(|e| e.to_string())?;
        engine.keep_pages_in(Box::new(snapshots));
    }
    let template = match setup.template {
        "" => ChatTemplate::builtin("chatml"),
        source => ChatTemplate::new(source),
    };
    Ok(Loaded {
        engine,
        tokenizer: Tokenizer::from_metadata(gguf.metadata()).map_err(|e| e.to_string())?,
        template: Some(template.map_err(|e| e.to_string())?),
        names: vec!["tiny".into(), "also-tiny".into()],
        trained_context: model.spec.context,
        sampling: Sampling { temperature: 0.8, top_k: 40, top_p: 0.95, min_p: 0.05, ..Sampling::default() },
        parallel,
        revival: Some(Revival { open, weights: Box::new(weights), pause: Duration::ZERO }),
        pooling: Some(setup.pooling),
        special_in_content: setup.special,
        reasoning: Reasoning::default(),
        power: None,
    })
}

/// A running server; it is stopped when this goes away.
pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    pub(crate) stop: Stop,
    thread: Option<JoinHandle<Result<(), ServeError>>>,
}

pub(crate) fn config(setup: Setup) -> Config {
    Config {
        port: 0,
        most_sequences: setup.parallel as usize + setup.queue,
        max_body: 1 << 20,
        grace: setup.grace,
        ..Config::default()
    }
}

/// Starts a server whose model is loaded by `load`.
pub(crate) fn start(config: Config, load: impl FnOnce() -> Result<Loaded, String> + Send + 'static) -> Running {
    let server = Server::bind(config).expect("an address");
    let (address, stop) = (server.address(), server.stop());
    let thread = std::thread::spawn(move || server.run(load));
    Running { address, stop, thread: Some(thread) }
}

/// Starts a server and waits until it answers.
pub(crate) fn serve(setup: Setup) -> Running {
    let running = start(config(setup), move || load(setup));
    running.wait_until("the model is loaded", |r| r.get("/health").status == 200);
    running
}

impl Running {
    /// Waits until something holds. The limit is for what never will: a busy machine may be slow.
    pub(crate) fn wait_until(&self, what: &str, holds: impl Fn(&Running) -> bool) {
        let start = Instant::now();
        while !holds(self) {
            assert!(start.elapsed() < Duration::from_secs(120), "waited too long until {what}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits for the server to end, and gives what it said.
    pub(crate) fn join(mut self) -> Result<(), ServeError> {
        self.thread.take().expect("a thread").join().expect("no panic")
    }

    pub(crate) fn get(&self, path: &str) -> Reply {
        Request::new("GET", path).send(self.address).finish()
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Reply {
        Request::new("POST", path).body(body.to_string()).send(self.address).finish()
    }

    /// As [`Running::post`], up to the response's head.
    pub(crate) fn open(&self, path: &str, body: &Value) -> Response {
        Request::new("POST", path).body(body.to_string()).send(self.address)
    }

    /// The value of one line of `/metrics`.
    pub(crate) fn metric(&self, name: &str) -> f64 {
        let page = self.get("/metrics").text();
        let line = page.lines().find(|l| l.starts_with(name) && l[name.len()..].starts_with(['{', ' ', ',']));
        let line = line.unwrap_or_else(|| panic!("{name} is not in\n{page}"));
        line.rsplit(' ').next().and_then(|v| v.parse().ok()).expect("a number")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.now();
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}
