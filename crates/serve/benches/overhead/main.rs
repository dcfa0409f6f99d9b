//! What serving costs beside the device: a real server with real clients on a device that only keeps time.
//!
//! ```text
//! cargo bench --profile fast -p zinc-serve --bench overhead [-- STREAMS:MICROSECONDS …]
//! ```
//!
//! Each run has so many clients, which stream one chat after the other, and steps that take so long. It tells how fast
//! tokens came and how fast they could have come, how much of the time the device had nothing to do, what the engine's
//! thread did from a step's result to the next submission, and (on Linux) what processor time a step and a token cost.

#[path = "../../tests/client/mod.rs"]
mod client;
mod timed;

use client::{Running, Setup, USUAL, config, load_on, start};
use serde_json::{Value, json};
use std::io::Read;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use timed::{Seen, TimedDevice};

/// Sequences, and what a step of so many takes of an 8B model on an H200, in microseconds; and 0: as fast as it goes.
const RUNS: [(usize, u64); 8] = [(1, 1900), (8, 3200), (32, 5000), (64, 8000), (1, 0), (8, 0), (32, 0), (64, 0)];

/// Seconds before figures count, and while they do.
const WARM: Duration = Duration::from_secs(2);
const MEASURED: Duration = Duration::from_secs(4);

fn main() {
    let given: Vec<(usize, u64)> = std::env::args().skip(1).filter_map(|run| read(&run)).collect();
    println!(
        "{:>7} {:>8} {:>9} {:>9} {:>6}  {:>15} {:>11} {:>11} {:>11} {:>9}",
        "streams",
        "step µs",
        "tokens/s",
        "possible",
        "idle",
        "between p50/p99",
        "engine/step",
        "HTTP/token",
        "client/tok",
        "programs"
    );
    for (streams, step) in if given.is_empty() { RUNS.to_vec() } else { given } {
        measure(streams, Duration::from_micros(step));
    }
}

/// A run, as an argument names it; others are cargo's.
fn read(run: &str) -> Option<(usize, u64)> {
    let (streams, step) = run.split_once(':')?;
    Some((streams.parse().ok()?, step.parse().ok()?))
}

fn measure(streams: usize, step: Duration) {
    let seen: Arc<Mutex<Seen>> = Arc::default();
    let server = serve(streams, step, &seen);
    let (stop, tokens) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for i in 0..streams {
            let client = std::thread::Builder::new().name("client".into());
            let (server, stop, tokens) = (&server, &stop, &tokens);
            client.spawn_scoped(scope, move || keep_asking(server, i, stop, tokens)).expect("a thread");
        }
        std::thread::sleep(WARM);
        let before = ["zinc-engine", "zinc-http", "client"].map(processor);
        let warm = std::mem::take(&mut *seen.lock().expect("no panic")).programs;
        let began = Instant::now();
        std::thread::sleep(MEASURED);
        let (seen, took) = (std::mem::take(&mut *seen.lock().expect("no panic")), began.elapsed());
        let after = ["zinc-engine", "zinc-http", "client"].map(processor);
        stop.store(true, Relaxed);
        let spent = std::array::from_fn(|i| after[i].zip(before[i]).map(|(after, before)| after - before));
        report(streams, step, (warm, seen), took, spent);
    });
    assert!(tokens.load(Relaxed) > 0, "no answer has ended");
}

fn report(
    streams: usize,
    step: Duration,
    (warm, mut seen): (usize, Seen),
    took: Duration,
    spent: [Option<Duration>; 3],
) {
    seen.between.sort_unstable();
    let at = |part: usize| seen.between.get(seen.between.len() * part / 100).map_or(0, Duration::as_micros);
    let per = |time: Option<Duration>, count: u64| {
        time.map_or("–".into(), |time| format!("{:.1} µs", time.as_secs_f64() * 1e6 / count as f64))
    };
    let possible = if step.is_zero() { "–".into() } else { format!("{:.0}", streams as f64 / step.as_secs_f64()) };
    let idle = 100.0 * seen.idle.as_secs_f64() / took.as_secs_f64();
    println!(
        "{streams:>7} {:>8} {:>9.0} {possible:>9} {idle:>5.1}%  {:>8} / {:>4} {:>11} {:>11} {:>11} {:>9}",
        step.as_micros(),
        seen.tokens as f64 / took.as_secs_f64(),
        at(50),
        at(99),
        per(spent[0], seen.steps),
        per(spent[1], seen.tokens),
        per(spent[2], seen.tokens),
        format!("{warm} + {}", seen.programs),
    );
}

/// A server with the tiny llama's tokenizer on a device that takes `step` for each step.
fn serve(streams: usize, step: Duration, seen: &Arc<Mutex<Seen>>) -> Running {
    let setup = Setup { parallel: streams as u32, rows: 512, ..USUAL };
    let seen = seen.clone();
    let server = start(config(setup), move || {
        let device = move || -> Result<Box<dyn zinc_ir::device::Device>, _> {
            Ok(Box::new(TimedDevice::new(step, WORDS.to_vec(), seen.clone())))
        };
        load_on("llama", setup, Box::new(device))
    });
    server.wait_until("the model is loaded", |r| r.get("/health").status == 200);
    server
}

/// Tokens of the tiny llama that are text.
const WORDS: [u32; 4] = [300, 310, 320, 330];

/// Streams one chat after the other, of all lengths, and counts the tokens of those that ended.
fn keep_asking(server: &Running, client: usize, stop: &AtomicBool, tokens: &AtomicU64) {
    let mut buffer = vec![0; 64 << 10];
    for turn in 0.. {
        let (words, answer) = ((client * 29 + turn * 53) % 60, 64 + (client * 37 + turn * 71) as u64 % 256);
        let body = json!({
            "messages": [{"role": "user", "content": format!("{client} {turn} {}", "word ".repeat(words))}],
            "max_tokens": answer,
            "temperature": 0,
            "ignore_eos": true,
            "stream": true,
            "stream_options": {"include_usage": true},
        });
        let mut stream =
            client::Request::new("POST", "/v1/chat/completions").body(body.to_string()).begin(server.address);
        // The end is enough to see that all has come: reading more would be this program's own cost.
        let mut end: Vec<u8> = vec![];
        loop {
            match stream.read(&mut buffer).expect("the answer") {
                0 => break,
                n => end.extend(&buffer[..n]),
            }
            end.drain(..end.len().saturating_sub(1024));
            if stop.load(Relaxed) {
                return;
            }
        }
        let end = String::from_utf8_lossy(&end);
        let mut events = end.lines().rev().filter_map(|line| line.strip_prefix("data: "));
        let usage =
            events.find_map(|data| serde_json::from_str::<Value>(data).ok()?["usage"]["completion_tokens"].as_u64());
        assert_eq!(usage, Some(answer), "{end}");
        tokens.fetch_add(answer, Relaxed);
    }
}

/// Processor time of this program's threads of this name; `None` where the system does not tell.
fn processor(name: &str) -> Option<Duration> {
    let tasks = std::fs::read_dir("/proc/self/task").ok()?;
    let nanos = tasks.flatten().filter_map(|task| {
        let comm = std::fs::read_to_string(task.path().join("comm")).ok()?;
        let time = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
        (comm.trim_end() == name).then(|| time.split(' ').next()?.parse::<u64>().ok())?
    });
    Some(Duration::from_nanos(nanos.sum())).filter(|time| !time.is_zero())
}
