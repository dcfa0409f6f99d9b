//! `zinc serve` under load, as a process of its own: nothing is lost, nothing is wrong, nothing grows, and no client
//! disturbs another.
//!
//! Takes about a minute, so it is no part of `cargo test`; a job of `cargo xtask test` runs it. By hand, for longer:
//! `ZINC_LOAD_SECONDS=300 cargo test --profile fast -p zinc --test load`.
#![cfg(target_os = "linux")]

#[path = "../../serve/tests/client/http.rs"]
mod http;
mod program;
mod served;

use http::Request;
use program::model;
use serde_json::{Value, json};
use served::{Served, sum};
use std::cell::Cell;
use std::io::Write;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Tests take the machine in turns: each is about what a busy machine does.
static MACHINE: Mutex<()> = Mutex::new(());

/// Kinds of requests.
const KINDS: usize = 64;

/// Seconds of load; the first third is for warming up.
fn seconds() -> u64 {
    std::env::var("ZINC_LOAD_SECONDS").map_or(45, |s| s.parse().expect("ZINC_LOAD_SECONDS is a number"))
}

/// One of the kinds: prompts of 1 to 200 tokens, answers of 1 to 120, half of them streamed, a third greedy.
fn body(kind: usize) -> Value {
    json!({
        "prompt": format!("{kind} {}", "word ".repeat(kind * 29 % 97)),
        "max_tokens": 1 + kind * 53 % 120,
        "temperature": if kind.is_multiple_of(3) { 0.0 } else { 0.9 },
        "seed": kind,
        "ignore_eos": true,
        "stream": kind % 2 == 1,
    })
}

/// What came of a request of a kind: its text and how it ended.
fn ask(address: SocketAddr, kind: usize) -> (String, String) {
    ask_with("", address, kind)
}

/// Client `client` asks for one kind after the other until it is told to stop; answers are what they are alone.
fn keep_asking(address: SocketAddr, client: usize, alone: &[(String, String)], stop: &AtomicBool, done: &AtomicUsize) {
    let mut kind = client * 7;
    while !stop.load(Relaxed) {
        kind = (kind + 5) % KINDS;
        assert_eq!(ask(address, kind), alone[kind], "request {kind}");
        done.fetch_add(1, Relaxed);
    }
}

/// The same with a key.
fn ask_with(key: &str, address: SocketAddr, kind: usize) -> (String, String) {
    let body = body(kind);
    let request = Request::new("POST", "/v1/completions").header("x-api-key", key);
    let response = request.body(body.to_string()).send(address);
    assert_eq!(response.status, 200, "request {kind}");
    let word = |choice: &Value| choice["finish_reason"].as_str().unwrap_or_default().to_owned();
    if body["stream"] == false {
        let reply = response.finish().ok();
        let choice = &reply["choices"][0];
        return (choice["text"].as_str().expect("a text").to_owned(), word(choice));
    }
    let events = response.events();
    let choices = || events.iter().map(|e| &e["choices"][0]);
    let text = choices().map(|c| c["text"].as_str().expect("a text")).collect();
    (text, choices().map(word).collect())
}

fn start() -> Served {
    Served::start(&[&model("llama"), "-np", "16", "-c", "1024", "--queue", "2000"])
}

/// What each kind of request gives when it is alone.
fn alone(server: &Served) -> Vec<(String, String)> {
    let answers: Vec<(String, String)> = (0..KINDS).map(|kind| ask(server.address(), kind)).collect();
    assert!(answers.iter().all(|(_, end)| end == "length"));
    answers
}

/// Resident memory of a process, in KiB.
fn resident(server: &Served) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.id())).expect("its status");
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:")).expect("VmRSS");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

#[test]
fn many_clients_for_long_are_served_right_in_memory_that_does_not_grow() {
    let _turn = MACHINE.lock();
    let server = start();
    let alone = alone(&server);
    let (stop, done) = (AtomicBool::new(false), AtomicUsize::new(0));
    let began = Instant::now();
    let (warm, end) = (Duration::from_secs(seconds() / 3), Duration::from_secs(seconds()));
    // Most memory in the last tenth before warm-up has ended, and in the last tenth of all.
    let (mut before, mut after) = (0, 0);
    std::thread::scope(|scope| {
        for client in 0..64 {
            let (alone, stop, done, address) = (&alone, &stop, &done, server.address());
            scope.spawn(move || keep_asking(address, client, alone, stop, done));
        }
        while began.elapsed() < end {
            std::thread::sleep(Duration::from_millis(100));
            let (now, memory) = (began.elapsed(), resident(&server));
            if now > warm.mul_f32(0.9) && (now < warm || before == 0) {
                before = before.max(memory);
            } else if now > end.mul_f32(0.9) {
                after = after.max(memory);
            }
        }
        stop.store(true, Relaxed);
    });
    let done = done.into_inner();
    println!(
        "{done} answers of 64 clients in {} s; memory after warm-up {before} KiB, at the end {after} KiB",
        seconds()
    );
    assert!(done > 640, "ten answers for each at least");
    assert_eq!(server.finished("length"), (KINDS + done) as f64, "every answer was counted, none was lost");
    assert_eq!(["stop", "abort", "error"].map(|how| server.finished(how)), [0.0; 3]);
    server.wait_until("nothing is held", Served::holds_nothing);
    assert!(after as f64 <= before as f64 * 1.02, "memory grew from {before} to {after} KiB");
}

/// A whole request as it goes over the wire.
fn request(body: &Value) -> String {
    let body = body.to_string();
    format!("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

#[test]
fn keys_get_their_shares_however_many_clients_they_have() {
    let _turn = MACHINE.lock();
    let file = program::scratch("shares").join("keys");
    for (weight, expected) in [(1, 1.0), (3, 3.0)] {
        std::fs::write(&file, format!("sk-few name=few weight={weight}\nsk-many name=many\n")).expect("written");
        let file = file.display().to_string();
        let arguments = ["-np", "8", "-c", "1024", "--queue", "2000", "--metrics-per-key", "--api-key-file", &file];
        let mut server = Served::start(&[&[&*model("llama")], &arguments[..]].concat());
        server.key = "sk-few".into();
        // Both are known from here on.
        for key in ["sk-few", "sk-many"] {
            assert_eq!(ask_with(key, server.address(), 0).1, "length");
        }
        // What is computed counts: what the prefix cache has costs nobody anything.
        let used = || {
            let page = server.metrics();
            ["few", "many"].map(|name| {
                let counter = |kind: &str| sum(&page, &format!("zinc_key_{kind}_tokens_total"), &format!("\"{name}\""));
                counter("prompt") - counter("cached") + counter("generation")
            })
        };
        let stop = AtomicBool::new(false);
        let (few, many) = std::thread::scope(|scope| {
            for client in 0..64 {
                let key = if client % 4 == 0 { "sk-few" } else { "sk-many" };
                let (stop, address) = (&stop, server.address());
                scope.spawn(move || {
                    let mut kind = client / 4 * 7;
                    while !stop.load(Relaxed) {
                        kind = (kind + 5) % KINDS;
                        assert_eq!(ask_with(key, address, kind).1, "length");
                    }
                });
            }
            server.wait_until("both are at it", |s| {
                ["few", "many"].iter().all(|k| s.metric("zinc_key_requests_total", k) > 30.0)
            });
            let before = used();
            let since = || {
                let now = used();
                (now[0] - before[0], now[1] - before[1])
            };
            let had = Cell::new((0.0, 0.0));
            server.wait_until("both have had much", |_| {
                had.set(since());
                had.get().0 + had.get().1 > 60_000.0
            });
            stop.store(true, Relaxed);
            had.get()
        });
        let ratio = few / many / expected;
        println!("weights {weight} to 1: {few} and {many} tokens");
        assert!((0.9..1.1).contains(&ratio), "weights {weight} to 1: {few} and {many} tokens");
    }
}

/// A process that sends a request and reads what comes until it is killed.
fn client_process(server: &Served, body: &Value) -> Child {
    let script = "exec 3<>/dev/tcp/$0/$1; printf %s \"$2\" >&3; exec cat <&3";
    let address = server.address();
    let mut command = Command::new("bash");
    command.args(["-c", script, &address.ip().to_string(), &address.port().to_string(), &request(body)]);
    command.stdout(Stdio::null()).spawn().expect("bash starts")
}

fn endless(seed: usize, stream: bool) -> Value {
    json!({"prompt": "The sea", "max_tokens": 900, "ignore_eos": true, "seed": seed, "stream": stream})
}

/// Connections that begin and do not go on, of all kinds.
fn stuck(address: SocketAddr, number: usize) -> Vec<TcpStream> {
    let lazy = request(&endless(1, true));
    let begin = |i: usize| {
        let mut connection = TcpStream::connect(address).expect("a connection");
        let text = match i % 4 {
            0 => "",
            1 => "POST /v1/completions HTTP/1.1\r\nHost: lo",
            2 => "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{",
            // Reads nothing of its answer.
            _ => &lazy,
        };
        connection.write_all(text.as_bytes()).expect("sent");
        if i % 8 == 2 {
            connection.shutdown(Shutdown::Write).expect("half closed");
        }
        connection
    };
    (0..number).map(begin).collect()
}

/// Sends a byte of a head and of a body now and then, as long as it is let.
fn drip(address: SocketAddr, stop: &AtomicBool) {
    let connect = || TcpStream::connect(address).expect("a connection");
    let (mut head, mut body) = (connect(), connect());
    head.write_all(b"GET /health HTTP/1.1\r\nX-Slow: ").expect("sent");
    body.write_all(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n").expect("sent");
    while !stop.load(Relaxed) {
        // Either may be cut off meanwhile, which is right.
        head.write_all(b"x").ok();
        body.write_all(b" ").ok();
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn clients_that_leave_die_stall_or_drip_disturb_nobody_and_leave_nothing() {
    let _turn = MACHINE.lock();
    let server = start();
    let address = server.address();
    let alone = alone(&server);
    let (stop, done) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for client in 0..8 {
            let (alone, stop, done) = (&alone, &stop, &done);
            scope.spawn(move || keep_asking(address, client, alone, stop, done));
        }
        scope.spawn(|| drip(address, &stop));
        let held = stuck(address, 200);
        let leave = |thread: usize| {
            for i in 0..125 {
                let stream = i % 5 > 0;
                let body = endless(thread * 1000 + i, stream).to_string();
                let request = Request::new("POST", "/v1/completions").body(body);
                if !stream {
                    drop(request.begin(address));
                    continue;
                }
                let mut response = request.send(address);
                assert_eq!(response.status, 200);
                for _ in 0..i % 4 {
                    response.event().expect("an event");
                }
            }
        };
        let leaving: Vec<_> = (0..8).map(|thread| scope.spawn(move || leave(thread))).collect();
        for i in 0..10 {
            let mut children: Vec<Child> =
                (0..4).map(|k| client_process(&server, &endless(i * 4 + k, k % 2 == 0))).collect();
            let at = done.load(Relaxed);
            server.wait_until("the others get on", |_| done.load(Relaxed) > at);
            for child in &mut children {
                child.kill().expect("killed");
                child.wait().expect("ended");
            }
        }
        leaving.into_iter().for_each(|thread| thread.join().expect("all have left"));
        let at = done.load(Relaxed);
        server.wait_until("the others get on", |_| done.load(Relaxed) > at + 64);
        drop(held);
        stop.store(true, Relaxed);
    });
    server.wait_until("nothing is held", Served::holds_nothing);
    let done = done.into_inner();
    println!("{done} answers beside a thousand clients that left and forty that were killed");
    assert_eq!(server.finished("error"), 0.0);
    assert!(server.finished("abort") > 500.0, "{}", server.finished("abort"));
}
