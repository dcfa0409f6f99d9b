//! `zinc serve` as a process of its own.
#![allow(dead_code)] // Each test file uses its part.

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A running `zinc serve`.
pub(crate) struct Served {
    child: Child,
    /// As in `http://127.0.0.1:1234`.
    pub(crate) base: String,
    /// Key for `/metrics`, if one is needed.
    pub(crate) key: String,
}

impl Served {
    /// Starts it, and waits until it answers.
    pub(crate) fn start(arguments: &[&str]) -> Served {
        let served = Served::begin(arguments);
        served.wait_until("the model is loaded", |s| ureq::get(format!("{}/health", s.base)).call().is_ok());
        served
    }

    /// Starts it, and waits until it has said where it listens.
    pub(crate) fn begin(arguments: &[&str]) -> Served {
        let mut child = Command::new(env!("CARGO_BIN_EXE_zinc"))
            .args(["serve", "--port", "0", "--device", "cpu"])
            .args(arguments)
            .stderr(Stdio::piped())
            .spawn()
            .expect("zinc starts");
        let mut said = BufReader::new(child.stderr.take().expect("a pipe"));
        let mut line = String::new();
        said.read_line(&mut line).expect("a line");
        let base = line.trim().strip_prefix("listening on ").unwrap_or_else(|| panic!("an address, not {line:?}"));
        let base = base.to_owned();
        // Whoever writes a log must not wait for a reader.
        std::thread::spawn(move || said.read_to_end(&mut vec![]));
        Served { child, base, key: String::new() }
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.base.rsplit('/').next().and_then(|a| a.parse().ok()).expect("an address")
    }

    /// Its process.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// What `/metrics` says at one moment.
    pub(crate) fn metrics(&self) -> String {
        let request = ureq::get(format!("{}/metrics", self.base)).header("x-api-key", &self.key);
        request.call().expect("a page").into_body().read_to_string().expect("text")
    }

    /// The sum of the values of `/metrics` whose lines begin so and say that.
    pub(crate) fn metric(&self, begins: &str, says: &str) -> f64 {
        sum(&self.metrics(), begins, says)
    }

    /// Answers that have ended so.
    pub(crate) fn finished(&self, how: &str) -> f64 {
        self.metric("vllm:request_success_total", &format!("finished_reason=\"{how}\""))
    }

    /// No sequence runs or waits, and no page is held but for later prompts.
    pub(crate) fn holds_nothing(&self) -> bool {
        let (page, names) =
            (self.metrics(), ["vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"]);
        names.iter().all(|name| sum(&page, name, "") == 0.0)
    }

    /// Waits until something holds. The limit is for what never will: a busy machine may be slow.
    pub(crate) fn wait_until(&self, what: &str, holds: impl Fn(&Served) -> bool) {
        let start = Instant::now();
        while !holds(self) {
            assert!(start.elapsed() < Duration::from_secs(120), "waited too long until {what}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Tells it to stop, and waits until it has.
    pub(crate) fn stop(self) -> Option<i32> {
        let kill = format!("kill -TERM {}", self.child.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().expect("sh").success());
        self.end()
    }

    /// Waits for its end, for two minutes at most.
    pub(crate) fn end(mut self) -> Option<i32> {
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(120) {
            if let Some(status) = self.child.try_wait().expect("a status") {
                return status.code();
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("it does not end");
    }
}

/// The sum of the values of those lines of `/metrics` that begin so and say that.
pub(crate) fn sum(page: &str, begins: &str, says: &str) -> f64 {
    let lines: Vec<&str> = page.lines().filter(|l| l.starts_with(begins) && l.contains(says)).collect();
    assert!(!lines.is_empty(), "{begins} … {says} is not in\n{page}");
    lines.iter().map(|l| l.rsplit(' ').next().and_then(|v| v.parse::<f64>().ok()).expect("a number")).sum()
}

impl Drop for Served {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
