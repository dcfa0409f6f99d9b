//! What clients may take: time, connections, places in the queue; and what each key may.

mod client;

use client::*;
use serde_json::{Value, json};
use std::cell::RefCell;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use zinc_serve::{Config, Keys, Ledger, LedgerError, Patience, spell_digest};

/// A context that takes seconds to fill.
const LONG: Setup = Setup { context: 60_000, parallel: 4, pages: Some(4 * 1875), ..USUAL };

const SHORT: Duration = Duration::from_millis(200);

fn start_with(setup: Setup, change: impl FnOnce(&mut Config)) -> Running {
    let mut config = config(setup);
    change(&mut config);
    let running = start(config, move || load(setup));
    // A busy machine may let even this question come too late, or be one connection too many.
    running.wait_until("the model is loaded", |r| alone(r, "GET /health").starts_with("HTTP/1.1 200 "));
    running
}

fn patient(change: impl FnOnce(&mut Patience)) -> Running {
    start_with(LONG, |config| change(&mut config.patience))
}

fn keyed(setup: Setup, lines: &str) -> Running {
    start_with(setup, |config| config.keys = Keys::lines(lines).expect("keys"))
}

fn begin(server: &Running, text: &str) -> TcpStream {
    let mut connection = TcpStream::connect(server.address).expect("a connection");
    connection.set_read_timeout(Some(Duration::from_secs(120))).expect("a timeout");
    // It may have closed already.
    connection.write_all(text.as_bytes()).ok();
    connection
}

/// What the server says to a question that is the only one of its connection; perhaps nothing.
fn alone(server: &Running, question: &str) -> String {
    rest(begin(server, &format!("{question} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")))
}

/// All that the server says until it closes.
fn rest(mut connection: TcpStream) -> String {
    let mut said = vec![];
    // One that closes early may reset the connection, behind what it has said.
    connection.read_to_end(&mut said).ok();
    String::from_utf8(said).expect("UTF-8")
}

/// What the server says before it waits for more.
fn answer(mut connection: TcpStream) -> String {
    let (mut said, mut buffer) = (vec![], [0; 4096]);
    while !said.ends_with(b"}}") {
        let length = connection.read(&mut buffer).expect("an answer");
        assert!(length > 0, "{}", String::from_utf8_lossy(&said));
        said.extend(&buffer[..length]);
    }
    String::from_utf8(said).expect("UTF-8")
}

fn post(body: &Value) -> String {
    let body = body.to_string();
    format!("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

fn endless(stream: bool) -> Value {
    json!({"prompt": "The sea", "max_tokens": 50_000, "ignore_eos": true, "stream": stream})
}

fn quick(tokens: u32) -> Value {
    json!({"prompt": "x", "max_tokens": tokens, "ignore_eos": true})
}

fn with_key(key: &str, body: &Value) -> Request {
    Request::new("POST", "/v1/completions").header("Authorization", &format!("Bearer {key}")).body(body.to_string())
}

fn ask(server: &Running, key: &str, body: &Value) -> Reply {
    with_key(key, body).send(server.address).finish()
}

/// As [`Running::metric`], with a key.
fn metric(server: &Running, key: &str, line: &str) -> f64 {
    let request = Request::new("GET", "/metrics").header("Authorization", &format!("Bearer {key}"));
    let page = request.send(server.address).finish().text();
    let value = page.lines().find_map(|l| l.strip_prefix(line)).unwrap_or_else(|| panic!("{line} is not in\n{page}"));
    value.trim().parse().expect("a number")
}

fn scratch(test: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{test}.{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    folder
}

#[test]
fn who_sends_too_slowly_is_let_go() {
    let server = patient(|p| p.head = SHORT);
    assert_eq!(rest(begin(&server, "POST /v1/completions HTTP/1.1\r\nHost: lo")), "", "half a head");
    assert_eq!(rest(begin(&server, "")), "", "nothing");
    // On a busy machine a head may take longer than that, too.
    server.wait_until("a connection that is kept, but for nothing, is closed", |s| {
        rest(begin(s, "GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n")).starts_with("HTTP/1.1 200 ")
    });
    let server = patient(|p| p.body = SHORT);
    let half = begin(&server, "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{");
    let said = rest(half);
    assert!(said.starts_with("HTTP/1.1 408 ") && said.contains("request_timeout"), "{said}");
}

/// Waits until so many answers have been given up.
fn wait_for_aborts(server: &Running, count: f64) {
    let aborted = "vllm:request_success_total{model_name=\"tiny\",finished_reason=\"abort\"}";
    server.wait_until("it is given up", |s| s.metric(aborted) == count);
    server.wait_until("nothing runs", |s| s.metric("vllm:num_requests_running") == 0.0);
}

#[test]
fn who_reads_nothing_is_let_go() {
    let server = patient(|p| p.stall = SHORT);
    let mut body = endless(true);
    // More than the system's buffers take.
    body["logprobs"] = json!(20);
    let lazy = begin(&server, &post(&body));
    wait_for_aborts(&server, 1.0);
    drop(lazy);
}

#[test]
fn a_client_that_leaves_is_noticed_behind_bytes_that_nobody_reads() {
    let server = patient(|_| ());
    let connection = begin(&server, &(post(&endless(false)) + "GET /live HTTP/1.1\r\nHost: x\r\n\r\n and more"));
    server.wait_until("it runs", |s| s.metric("vllm:num_requests_running") == 1.0);
    drop(connection);
    wait_for_aborts(&server, 1.0);
}

#[test]
fn heads_have_an_end() {
    let server = patient(|_| ());
    let many: String = (0..200).map(|i| format!("X-{i}: x\r\n")).collect();
    for head in [many, format!("X-Long: {}\r\n", "x".repeat(200 << 10))] {
        let mut connection = TcpStream::connect(server.address).expect("a connection");
        connection.write_all(format!("GET /live HTTP/1.1\r\nHost: x\r\n{head}\r\n").as_bytes()).ok();
        let said = rest(connection);
        // It may close before it has read all, and then its answer may be lost.
        assert!(said.is_empty() || said.starts_with("HTTP/1.1 431 "), "{said}");
    }
    assert_eq!(server.get("/live").status, 200);
}

#[test]
fn an_address_has_so_many_connections() {
    let server = patient(|p| p.connections_per_address = 3);
    // One that has had an answer has a place; earlier ones may take a moment to leave theirs.
    let held = RefCell::new(vec![]);
    server.wait_until("three have a place", |s| {
        let mut connection = begin(s, "GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n");
        let mut status = [0; 12];
        if connection.read_exact(&mut status).is_ok() && status == *b"HTTP/1.1 200" {
            held.borrow_mut().push(connection);
        }
        held.borrow().len() == 3
    });
    let said = rest(TcpStream::connect(server.address).expect("a connection"));
    assert!(said.starts_with("HTTP/1.1 429 ") && said.contains("Retry-After: 2"), "{said}");
    held.borrow_mut().pop();
    server.wait_until("there is a place, and refusals are counted", |s| {
        let page = alone(s, "GET /metrics");
        page.starts_with("HTTP/1.1 200") && !page.contains("\nzinc_connections_refused_total{model_name=\"tiny\"} 0\n")
    });
}

/// A request of so many bytes, most of them white space.
fn padded(length: usize) -> String {
    let body = quick(2).to_string();
    let space = " ".repeat(length - body.len());
    body + &space
}

#[test]
fn strange_requests_get_a_plain_answer() {
    let server = start_with(USUAL, |_| ());
    let body = quick(2).to_string();
    let length = format!("Content-Length: {}\r\n", body.len());
    let ask = |target: &str, headers: &str, body: &str| {
        let head = format!("POST {target} HTTP/1.1\r\nConnection: close\r\n{headers}\r\n{body}");
        let said = rest(begin(&server, &head));
        let (head, body) = said.split_once("\r\n\r\n").expect("a head");
        let status: u16 = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
        let error = serde_json::from_str::<Value>(body).expect("JSON")["error"]["message"].take();
        (status, error.as_str().unwrap_or_default().to_owned())
    };
    let (path, host) = ("/v1/completions", "Host: localhost\r\n");
    let plain = format!("{host}{length}");
    assert_eq!(ask(path, &plain, &body).0, 200);
    for (target, headers, status, says) in [
        (path, format!("{plain}Host: evil.example\r\n"), 400, "`host` comes more than once"),
        (path, format!("{plain}X-Api-Key: a\r\nx-api-key: b\r\n"), 400, "`x-api-key` comes more than once"),
        (path, format!("{plain}Origin: http://localhost\r\nOrigin: http://a.example\r\n"), 400, "`origin`"),
        (path, format!("{plain}Content-Encoding: gzip\r\n"), 400, "send it plain"),
        ("http://evil.example/v1/completions", plain.clone(), 403, "localhost only"),
        (&format!("/{}", "a".repeat(50_000)), plain.clone(), 404, "there is nothing at POST /aaaa"),
    ] {
        let (given, error) = ask(target, &headers, &body);
        assert!(given == status && error.contains(says) && error.len() < 2100, "{given} {error}");
    }
    let long = "ä".repeat(100_000);
    for (body, status) in [
        (json!({"prompt": "x", "model": long}), 404),
        (json!({"prompt": "x", (long.as_str()): 1}), 400),
        (json!({"prompt": "x", "temperature": long}), 400),
        (json!({"prompt": "x", "structured_outputs": {"regex": "(".repeat(10_000)}}), 400),
    ] {
        let reply = server.post(path, &body);
        assert!(reply.status == status && reply.text().len() < 5000, "{} {}", reply.status, reply.text());
    }
    let reply = server.get("/v1/models/%ff");
    assert_eq!((reply.status, reply.json()["error"]["type"].as_str()), (400, Some("invalid_request_error")));
    // What is wrong with one request does not concern the next one on the connection.
    let close = format!("POST {path} HTTP/1.1\r\nConnection: close\r\n{plain}\r\n{body}");
    let said = rest(begin(&server, &format!("{}{}{close}", post(&quick(2)), post(&json!([])))));
    let statuses: Vec<&str> = said.split("HTTP/1.1 ").skip(1).map(|answer| &answer[..3]).collect();
    assert_eq!(statuses, ["200", "400", "200"]);
}

#[test]
fn all_bodies_together_take_so_much_memory() {
    const MIB: usize = 1 << 20;
    let server = start_with(USUAL, |config| {
        (config.max_body, config.max_bodies) = (MIB, 8 * MIB);
    });
    let held = |server: &Running| server.metric("zinc_request_body_bytes");
    let (whole, head) = (padded(MIB), "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n");
    let half = |_| begin(&server, &format!("{head}Content-Length: {MIB}\r\n\r\n{}", &whole[..MIB - 100]));
    let six: Vec<TcpStream> = (0..6).map(half).collect();
    server.wait_until("they are there", |s| held(s) == 6.0 * MIB as f64);
    for said in (0..4).map(|i| answer(half(i))) {
        assert!(said.starts_with("HTTP/1.1 503 ") && said.contains("no_memory_for_request"), "{said}");
    }
    let post = |body: &str| Request::new("POST", "/v1/completions").body(body).send(server.address).finish();
    let reply = post(&whole);
    assert_eq!(
        (reply.status, reply.header("retry-after")),
        (503, Some("2")),
        "also where all is sent before it is read"
    );
    assert_eq!(reply.json()["error"]["type"], "server_error");
    assert_eq!((post(&padded(60_000)).status, held(&server)), (200, 6.0 * MIB as f64), "small ones find room");
    assert_eq!(server.metric("zinc_request_bodies_refused_total"), 5.0);
    drop(six);
    server.wait_until("what is gone takes nothing", |s| held(s) == 0.0);
    // Many at the same time: each is answered in the end, and what goes wrong takes nothing, either.
    std::thread::scope(|scope| {
        for client in 0..24 {
            let (post, whole, server) = (&post, &whole, &server);
            scope.spawn(move || {
                let long = answer(begin(server, &format!("{head}Content-Length: {}\r\n\r\n", MIB + 1)));
                assert!(long.starts_with("HTTP/1.1 413 "), "{long}");
                let chunk =
                    format!("{head}Transfer-Encoding: chunked\r\n\r\n400\r\n{}\r\nnonsense\r\n", &whole[..1024]);
                let said = rest(begin(server, &chunk));
                assert!(said.starts_with("HTTP/1.1 400 "), "{said}");
                while post(whole).status == 503 {
                    std::thread::sleep(Duration::from_millis(1 + client));
                }
                let status = post(&whole.replace("max_tokens", "max_tokenz")).status;
                assert!(matches!(status, 400 | 503), "{status}");
            });
        }
    });
    server.wait_until("nothing is kept", |s| held(s) == 0.0);
}

#[test]
fn a_large_request_that_is_refused_gets_to_know_why() {
    let server = start_with(USUAL, |config| {
        config.keys = Keys::lines("sk-a name=a rpm=1\nsk-b name=b").expect("keys");
    });
    let post = |key: &str, length: usize| {
        let request = Request::new("POST", "/v1/completions").header("Authorization", &format!("Bearer {key}"));
        request.body(padded(length)).send(server.address).finish()
    };
    let most = 1 << 20;
    assert_eq!(post("sk-a", most).status, 200);
    for (key, length, status, code) in [
        ("sk-a", most, 429, "rate_limit_exceeded"),
        ("sk-x", most, 401, "invalid_api_key"),
        ("sk-b", most + 900_000, 413, "request_too_large"),
    ] {
        let reply = post(key, length);
        assert_eq!((reply.status, reply.json()["error"]["code"].as_str()), (status, Some(code)));
    }
}

#[test]
fn a_key_may_ask_so_often() {
    let server = keyed(USUAL, "sk-a name=a rpm=3 tpm=1000\nsk-b name=b");
    for left in ["2", "1", "0"] {
        let reply = ask(&server, "sk-a", &quick(1));
        assert_eq!((reply.status, reply.header("x-ratelimit-remaining-requests")), (200, Some(left)));
        assert_eq!(reply.header("x-ratelimit-limit-requests"), Some("3"));
        assert!(reply.header("x-ratelimit-reset-requests").is_some_and(|t| t.ends_with('s')));
    }
    let reply = ask(&server, "sk-a", &quick(4));
    let error = &reply.json()["error"];
    assert_eq!(
        (reply.status, &error["code"], &error["type"]),
        (429, &json!("rate_limit_exceeded"), &json!("requests"))
    );
    let wait: u32 = reply.header("retry-after").expect("when").parse().expect("seconds");
    assert!((1..=20).contains(&wait), "{wait}");
    assert_eq!(ask(&server, "sk-b", &quick(4)).status, 200, "others are not concerned");
    let reply = ask(&server, "sk-b", &quick(4));
    assert_eq!(reply.header("x-ratelimit-limit-requests"), None, "nothing limits it");
}

#[test]
fn a_key_may_have_so_many_tokens_in_a_minute_and_in_all() {
    let server = keyed(LONG, "sk-a name=a tpm=200\nsk-b name=b tokens=100\nsk-c parallel=1");
    // Long prompts take no time, so that hardly anything comes back meanwhile.
    let read = |tokens: usize| json!({"prompt": vec![json!(5); tokens - 1], "max_tokens": 1});
    assert_eq!(ask(&server, "sk-a", &read(100)).status, 200);
    let reply = ask(&server, "sk-a", &read(150));
    let error = &reply.json()["error"];
    assert_eq!((reply.status, &error["code"], &error["type"]), (429, &json!("rate_limit_exceeded"), &json!("tokens")));
    let left: u32 = reply.header("x-ratelimit-remaining-tokens").expect("how many").parse().expect("a number");
    assert!((90..150).contains(&left), "{left}");
    assert_eq!(ask(&server, "sk-b", &quick(60)).status, 200);
    let reply = ask(&server, "sk-b", &quick(60));
    assert_eq!((reply.status, reply.header("retry-after")), (429, None), "no time brings it back");
    assert_eq!(reply.json()["error"]["code"], "insufficient_quota");
    let mut one = with_key("sk-c", &endless(true)).send(server.address);
    one.event().expect("it has begun");
    assert_eq!(ask(&server, "sk-c", &quick(1)).status, 429);
    assert_eq!(ask(&server, "sk-c", &json!({"prompt": "x", "n": 2, "max_tokens": 1})).status, 400, "it never may");
    drop(one);
    server.wait_until("it is over", |s| ask(s, "sk-c", &quick(1)).status == 200);
}

#[test]
fn a_key_is_known_by_its_digest_and_expires() {
    let lines = format!("{} name=a\nsk-old expires=2020-01-01\nsk-young expires=2999-12-31", spell_digest("sk-a"));
    let server = keyed(USUAL, &lines);
    assert_eq!(ask(&server, "sk-a", &quick(1)).status, 200);
    assert_eq!(ask(&server, &spell_digest("sk-a"), &quick(1)).status, 401);
    let reply = ask(&server, "sk-old", &quick(1));
    assert_eq!((reply.status, reply.json()["error"]["code"].as_str()), (401, Some("expired_api_key")));
    assert_eq!(ask(&server, "sk-young", &quick(1)).status, 200);
}

#[test]
fn what_is_used_is_entered_and_counts_after_a_restart() {
    let path = scratch("ledger").join("ledger.jsonl");
    let open = || Ledger::open(&path).map(Arc::new);
    let serve = || {
        let ledger = Some(open().expect("a ledger"));
        start_with(USUAL, |config| {
            config.keys = Keys::lines("sk-a name=a tokens=200\nsk-b name=b").expect("keys");
            (config.ledger, config.key_metrics) = (ledger, true);
        })
    };
    let server = serve();
    assert!(matches!(open(), Err(LedgerError::InUse { .. })));
    let body = json!({"prompt": "word ".repeat(20), "max_tokens": 30, "n": 2, "ignore_eos": true});
    let usage = ask(&server, "sk-a", &body).ok()["usage"].clone();
    ask(&server, "sk-b", &quick(5)).ok();
    let number = |value: &Value| value.as_u64().expect("a number");
    let used = number(&usage["prompt_tokens"]) + number(&usage["completion_tokens"]);
    server.wait_until("it is counted", |s| metric(s, "sk-b", "zinc_key_generation_tokens_total{key=\"b\"}") == 5.0);
    assert_eq!(metric(&server, "sk-b", "zinc_key_generation_tokens_total{key=\"a\"}"), 60.0);
    assert!(metric(&server, "sk-b", "zinc_key_device_seconds_total{key=\"a\"}") > 0.0);
    server.stop.drain();
    server.join().expect("a clean end");
    let entries = Ledger::entries(&path).expect("entries");
    let [a, b] = &entries[..] else { panic!("{entries:?}") };
    assert_eq!((a.key.as_str(), a.prompt_tokens + a.completion_tokens, b.completion_tokens), ("a", used, 5));
    assert!(a.seconds > 0.0 && b.seconds > 0.0 && a.joules.is_none() && a.request.starts_with("req-"), "{a:?}");
    // A crash may cut the last line off.
    let mut text = std::fs::read_to_string(&path).expect("text");
    text.push_str("{\"time\":1,\"key\":\"a\",\"prompt_to");
    std::fs::write(&path, &text).expect("written");
    let server = serve();
    let reply = ask(&server, "sk-a", &quick(200 - used as u32));
    assert_eq!(reply.json()["error"]["code"], "insufficient_quota", "what was used before counts");
    assert_eq!(ask(&server, "sk-a", &quick(3)).status, 200);
    drop(server);
    assert_eq!(Ledger::entries(&path).expect("entries").len(), 3, "the cut line is gone");
    std::fs::write(&path, text.replace("\"key\":\"b\"", "\"key\":b")).expect("written");
    assert!(matches!(open(), Err(LedgerError::Line { line: 2, .. })));
}

#[test]
fn one_key_cannot_have_all_places() {
    let server = keyed(Setup { parallel: 2, queue: 6, ..LONG }, "sk-a name=a\nsk-b name=b\nsk-a2 name=a");
    let held: Vec<Response> = (0..6).map(|_| with_key("sk-a", &endless(true)).send(server.address)).collect();
    assert!(held.iter().all(|r| r.status == 200));
    assert_eq!(ask(&server, "sk-a2", &quick(1)).json()["error"]["code"], "queue_full");
    let other = with_key("sk-b", &endless(true)).send(server.address);
    assert_eq!(other.status, 200, "the last quarter is for those who have less than their share");
}

#[test]
fn more_than_a_share_is_given_to_whoever_is_alone_and_more_than_can_be_never() {
    let others: String = (0..7).map(|i| format!("\nsk-{i} name=k{i}")).collect();
    let server =
        keyed(Setup { parallel: 2, queue: 6, ..USUAL }, &format!("sk-a name=a\nsk-b name=b parallel=2{others}"));
    let several = |n: u32| json!({"prompt": "x", "max_tokens": 3, "ignore_eos": true, "n": n});
    assert_eq!(ask(&server, "sk-a", &several(8)).status, 200, "nobody else is there");
    for (key, n) in [("sk-a", 9), ("sk-b", 3)] {
        let reply = ask(&server, key, &several(n));
        assert_eq!((reply.status, reply.json()["error"]["param"].as_str()), (400, Some("n")), "no time helps");
    }
    assert_eq!(ask(&server, "sk-b", &several(2)).status, 200);
}

#[test]
fn embeddings_are_one_request_however_many_they_are() {
    let server = keyed(USUAL, "sk-a name=a parallel=8\nsk-b name=b tokens=100");
    let embed = |key: &str, count: usize| {
        let body = json!({"input": vec![json!([5, 6, 7]); count]}).to_string();
        let request = Request::new("POST", "/v1/embeddings").header("Authorization", &format!("Bearer {key}"));
        request.body(body).send(server.address).finish()
    };
    let reply = embed("sk-a", 70);
    assert_eq!(reply.ok()["data"].as_array().map(Vec::len), Some(70), "eight at a time");
    let before = metric(&server, "sk-a", "vllm:prompt_tokens_total{model_name=\"tiny\"}");
    assert_eq!(embed("sk-b", 70).status, 429);
    let after = metric(&server, "sk-a", "vllm:prompt_tokens_total{model_name=\"tiny\"}");
    assert_eq!(before, after, "nothing is computed and thrown away");
    assert_eq!(embed("sk-b", 30).status, 200, "nor billed");
}

#[test]
fn who_does_not_read_holds_no_place_once_all_is_computed() {
    let server = keyed(Setup { parallel: 1, queue: 0, ..LONG }, "sk-a name=a parallel=1\nsk-b name=b");
    // More than the connection takes by itself.
    let long = json!({"prompt": "x", "max_tokens": 1500, "ignore_eos": true, "stream": true, "logprobs": 20});
    let mut lazy = with_key("sk-a", &long).send(server.address);
    lazy.event().expect("it has begun");
    for key in ["sk-b", "sk-a"] {
        server.wait_until("all is computed, and there is room", |s| ask(s, key, &quick(3)).status == 200);
    }
    assert_eq!(lazy.events().last().expect("an event")["choices"][0]["finish_reason"], "length");
}

#[test]
fn ten_times_too_many_clients_get_right_answers_or_a_refusal_and_wait_no_longer() {
    let server = serve(Setup { parallel: 2, queue: 6, ..USUAL });
    let body =
        |kind: usize| json!({"prompt": "word ".repeat(1 + kind), "max_tokens": 30, "seed": kind, "ignore_eos": true});
    let text = |reply: &Reply| reply.ok()["choices"][0]["text"].clone();
    let alone: Vec<Value> = (0..8).map(|kind| text(&server.post("/v1/completions", &body(kind)))).collect();
    std::thread::scope(|scope| {
        for client in 0..80 {
            let (server, alone, body, text) = (&server, &alone, &body, &text);
            scope.spawn(move || {
                let kind = client % 8;
                loop {
                    let reply = server.post("/v1/completions", &body(kind));
                    if reply.status == 200 {
                        assert_eq!(text(&reply), alone[kind]);
                        return;
                    }
                    assert_eq!((reply.status, reply.json()["error"]["code"].as_str()), (429, Some("queue_full")));
                    let wait: u32 = reply.header("retry-after").expect("when").parse().expect("seconds");
                    assert!((1..=300).contains(&wait));
                    // Much earlier than it was told.
                    std::thread::sleep(Duration::from_millis(5));
                }
            });
        }
    });
    assert!(server.metric("zinc_requests_shed_total") > 0.0);
    // Six wait, for three rounds of two and the one that runs, of 30 tokens and a step for the prompts each.
    let within =
        |bound: &str| server.metric(&format!("zinc_request_queue_steps_bucket{{model_name=\"tiny\",le=\"{bound}\"}}"));
    assert_eq!((within("200"), within("+Inf")), (88.0, 88.0), "nobody who was let in waited for long");
}
