//! What the server's tests share: a server with a tiny model on the CPU, and a plain HTTP client that can also misbehave.
#![allow(dead_code)] // Each test file uses its part.

use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use zinc_engine::{Engine, Options, Sampling};
use zinc_gguf::Gguf;
use zinc_models::GgufWeights;
use zinc_serve::{Config, Keys, Loaded, ServeError, Server, Stop};
use zinc_text::{ChatTemplate, Tokenizer};

/// How the model under test is set up.
#[derive(Clone, Copy)]
pub(crate) struct Setup {
    pub(crate) context: u32,
    pub(crate) parallel: u32,
    /// Pages of the KV pool; `None`: enough for all.
    pub(crate) pages: Option<u32>,
    pub(crate) queue: usize,
    pub(crate) grace: Duration,
}

pub(crate) const USUAL: Setup =
    Setup { context: 512, parallel: 4, pages: None, queue: 1000, grace: Duration::from_secs(5) };

/// The tiny llama of the test data, with a chat template.
pub(crate) fn load(setup: Setup) -> Result<Loaded, String> {
    let file = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/arch/llama/model.gguf"));
    let gguf = Arc::new(Gguf::open(&file).map_err(|e| e.to_string())?);
    let model = zinc_models::open(&gguf).map_err(|e| e.to_string())?;
    let weights = GgufWeights::new(gguf.clone(), &model.graph).map_err(|e| e.to_string())?;
    let device = Box::new(zinc_cpu::CpuDevice::new(1).map_err(|e| e.to_string())?);
    let Setup { context, parallel, pages, .. } = setup;
    let options = Options { context, sequences: parallel, pages, rows: 64, ..Options::default() };
    let engine = Engine::new(device, model.graph.clone(), &weights, options, &mut |_| ()).map_err(|e| e.to_string())?;
    Ok(Loaded {
        engine,
        tokenizer: Tokenizer::from_metadata(gguf.metadata()).map_err(|e| e.to_string())?,
        template: Some(ChatTemplate::builtin("chatml").map_err(|e| e.to_string())?),
        names: vec!["tiny".into(), "also-tiny".into()],
        trained_context: model.spec.context,
        sampling: Sampling { temperature: 0.8, top_k: 40, top_p: 0.95, min_p: 0.05, ..Sampling::default() },
        parallel,
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
        host: "127.0.0.1".into(),
        port: 0,
        keys: Keys::default(),
        reload: None,
        allow_anyone: false,
        most_sequences: setup.parallel as usize + setup.queue,
        max_body: 1 << 20,
        grace: setup.grace,
        signals: false,
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
    /// Waits until something holds, for half a minute at most.
    pub(crate) fn wait_until(&self, what: &str, holds: impl Fn(&Running) -> bool) {
        let start = Instant::now();
        while !holds(self) {
            assert!(start.elapsed() < Duration::from_secs(30), "waited too long until {what}");
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

/// A request to be sent.
pub(crate) struct Request {
    head: String,
    body: Option<String>,
}

impl Request {
    pub(crate) fn new(method: &str, path: &str) -> Request {
        Request { head: format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"), body: None }
    }

    pub(crate) fn header(mut self, name: &str, value: &str) -> Request {
        self.head.push_str(&format!("{name}: {value}\r\n"));
        self
    }

    pub(crate) fn body(mut self, body: impl Into<String>) -> Request {
        let body = body.into();
        self.head.push_str(&format!("Content-Type: application/json\r\nContent-Length: {}\r\n", body.len()));
        self.body = Some(body);
        self
    }

    /// Sends it and reads the response's head.
    pub(crate) fn send(self, address: SocketAddr) -> Response {
        let mut stream = TcpStream::connect(address).expect("a connection");
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
        let bytes = format!("{}\r\n{}", self.head, self.body.unwrap_or_default());
        // A server that refuses may close before it has read everything.
        stream.write_all(bytes.as_bytes()).ok();
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        reader.read_line(&mut line).expect("a status line");
        let status =
            line.split(' ').nth(1).and_then(|s| s.parse().ok()).unwrap_or_else(|| panic!("status in {line:?}"));
        let mut headers = vec![];
        loop {
            line.clear();
            reader.read_line(&mut line).expect("a header");
            match line.trim_end().split_once(": ") {
                Some((name, value)) => headers.push((name.to_ascii_lowercase(), value.to_owned())),
                None => break,
            }
        }
        let chunked = headers.iter().any(|(n, v)| n == "transfer-encoding" && v == "chunked");
        Response { status, headers, reader, chunked, buffer: vec![], ended: false }
    }
}

/// A response whose body is still to come.
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    reader: BufReader<TcpStream>,
    chunked: bool,
    buffer: Vec<u8>,
    ended: bool,
}

impl Response {
    /// Reads a little more of the body; false at its end.
    fn more(&mut self) -> bool {
        if self.ended {
            return false;
        }
        if !self.chunked {
            self.reader.read_to_end(&mut self.buffer).expect("the body");
            self.ended = true;
            return true;
        }
        let mut line = String::new();
        self.reader.read_line(&mut line).expect("a chunk's size");
        let size = usize::from_str_radix(line.trim(), 16).unwrap_or_else(|_| panic!("a size, not {line:?}"));
        let mut chunk = vec![0; size + 2];
        self.reader.read_exact(&mut chunk).expect("a chunk");
        chunk.truncate(size);
        self.buffer.extend(chunk);
        self.ended = size == 0;
        true
    }

    /// The next event's data; `None` at the end.
    pub(crate) fn event(&mut self) -> Option<String> {
        loop {
            if let Some(end) = self.buffer.windows(2).position(|w| w == b"\n\n") {
                let event = String::from_utf8(self.buffer.drain(..end + 2).collect()).expect("UTF-8");
                match event.trim_end().strip_prefix("data: ") {
                    Some(data) => return Some(data.to_owned()),
                    None => continue,
                }
            }
            if !self.more() {
                return None;
            }
        }
    }

    /// All of it.
    pub(crate) fn finish(mut self) -> Reply {
        while self.more() {}
        Reply { status: self.status, headers: self.headers, body: self.buffer }
    }

    /// All events, which must end with `[DONE]`.
    pub(crate) fn events(mut self) -> Vec<Value> {
        let mut events = vec![];
        while let Some(data) = self.event() {
            if data == "[DONE]" {
                assert_eq!(self.event(), None, "nothing comes after the end");
                return events;
            }
            events.push(serde_json::from_str(&data).expect("JSON"));
        }
        panic!("the stream has no end: {events:?}");
    }
}

/// A whole response.
pub(crate) struct Reply {
    pub(crate) status: u16,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

impl Reply {
    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.body.clone()).expect("UTF-8")
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text()).unwrap_or_else(|e| panic!("{e}: {}", self.text()))
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str())
    }

    /// The body of a 200.
    pub(crate) fn ok(&self) -> Value {
        assert_eq!(self.status, 200, "{}", self.text());
        self.json()
    }
}
