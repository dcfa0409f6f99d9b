//! Clients that come, go, stall, attack and are too many: the others notice nothing, and nothing is left behind.

mod client;

use client::*;
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::mpsc;
use std::time::Duration;
use zinc_serve::{Keys, Server};

/// A context that takes seconds to fill.
const LONG: Setup = Setup { context: 60_000, parallel: 4, pages: Some(4 * 1875), ..USUAL };

fn endless(more: Value) -> Value {
    let mut body = json!({"prompt": "The sea", "max_tokens": 59_000, "ignore_eos": true, "stream": true});
    for (key, value) in more.as_object().expect("an object") {
        body[key] = value.clone();
    }
    body
}

fn nothing_is_held(server: &Running) -> bool {
    let names = ["vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"];
    names.iter().all(|name| server.metric(name) == 0.0)
}

#[test]
fn a_client_that_leaves_leaves_nothing_behind() {
    let server = serve(LONG);
    for (i, stream) in [true, false].into_iter().enumerate() {
        let mut connections = vec![];
        for _ in 0..3 {
            let body = endless(json!({"stream": stream, "n": 2})).to_string();
            let head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length:";
            let mut connection = TcpStream::connect(server.address).expect("a connection");
            connection.write_all(format!("{head} {}\r\n\r\n{body}", body.len()).as_bytes()).expect("sent");
            connections.push(connection);
        }
        // Six sequences for four places.
        server.wait_until("all are there", |s| {
            s.metric("vllm:num_requests_running") == 4.0 && s.metric("vllm:num_requests_waiting") == 2.0
        });
        assert!(server.metric("vllm:kv_cache_usage_perc") > 0.0);
        let slots = server.get("/slots").ok();
        assert_eq!(slots.as_array().expect("slots").iter().filter(|s| s["is_processing"] == true).count(), 4);
        drop(connections);
        server.wait_until("nothing is held", nothing_is_held);
        let aborted = server.metric("vllm:request_success_total{model_name=\"tiny\",finished_reason=\"abort\"}");
        assert_eq!(aborted, 6.0 * (i + 1) as f64);
        let steps = server.metric("zinc_steps_total");
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(server.metric("zinc_steps_total"), steps, "the engine rests");
    }
}

#[test]
fn a_thousand_clients_that_leave_leave_nothing_behind() {
    let server = serve(Setup { parallel: 8, pages: Some(8 * 64), ..LONG });
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let server = &server;
            scope.spawn(move || {
                for i in 0..125 {
                    let body = endless(json!({"prompt": "word ".repeat(1 + i % 40), "seed": i, "max_tokens": 2000, "n": 1 + thread % 2}));
                    let mut response = server.open("/v1/completions", &body);
                    assert_eq!(response.status, 200);
                    // Some leave at once, some after a few tokens.
                    for _ in 0..i % 4 {
                        response.event().expect("an event");
                    }
                }
            });
        }
    });
    let ended = |how: &str| {
        server.metric(&format!("vllm:request_success_total{{model_name=\"tiny\",finished_reason=\"{how}\"}}"))
    };
    // The last ones may have left before the engine's thread heard of them.
    server.wait_until("all have ended", |_| {
        ["stop", "length", "abort", "error"].map(ended).iter().sum::<f64>() == 1500.0
    });
    server.wait_until("nothing is held", nothing_is_held);
    assert!(ended("abort") > 1000.0 && ended("error") == 0.0);
    let quick = json!({"prompt": "x", "max_tokens": 8, "ignore_eos": true});
    assert_eq!(server.post("/v1/completions", &quick).ok()["usage"]["completion_tokens"], 8);
}

#[test]
fn one_choice_may_stop_while_the_others_go_on() {
    let server = serve(LONG);
    // Each choice has its own text; most letters come up soon in one of them.
    let mut response = server.open("/v1/completions", &endless(json!({"n": 4, "stop": ["e"], "seed": 1})));
    let mut ended = 0;
    while ended < 1 {
        let event: Value = serde_json::from_str(&response.event().expect("an event")).expect("JSON");
        ended += usize::from(event["choices"][0]["finish_reason"] == "stop");
    }
    drop(response);
    server.wait_until("nothing is held", nothing_is_held);
}

#[test]
fn many_clients_get_what_each_gets_alone() {
    let server = serve(Setup { parallel: 8, pages: Some(16), ..USUAL });
    let body = |i: usize| {
        let prompt = "word ".repeat(1 + i % 13);
        let greedy = if i.is_multiple_of(3) { 0.0 } else { 0.9 };
        json!({"prompt": prompt, "max_tokens": 1 + (i * 7) % 60, "seed": i, "temperature": greedy, "ignore_eos": true})
    };
    let ask = |i: usize| -> (String, u64) {
        let mut body = body(i);
        if i.is_multiple_of(2) {
            let reply = server.post("/v1/completions", &body).ok();
            let text = reply["choices"][0]["text"].as_str().expect("a text").to_owned();
            return (text, reply["usage"]["completion_tokens"].as_u64().expect("a number"));
        }
        body["stream"] = json!(true);
        body["stream_options"] = json!({"include_usage": true});
        let mut events = server.open("/v1/completions", &body).events();
        let usage = events.pop().expect("usage");
        let text = events.iter().map(|e| e["choices"][0]["text"].as_str().expect("a text")).collect();
        (text, usage["usage"]["completion_tokens"].as_u64().expect("a number"))
    };
    const CLIENTS: usize = 64;
    let alone: Vec<(String, u64)> = (0..CLIENTS).map(ask).collect();
    assert!(alone.iter().enumerate().all(|(i, a)| a.1 == 1 + (i as u64 * 7) % 60));
    std::thread::scope(|scope| {
        for i in 0..CLIENTS {
            let (alone, ask) = (&alone, &ask);
            scope.spawn(move || {
                for round in 0..3 {
                    let which = (i + round * 17) % CLIENTS;
                    assert_eq!(ask(which), alone[which], "request {which}");
                }
            });
        }
    });
    server.wait_until("nothing is held", nothing_is_held);
    let done = server.metric("vllm:request_success_total{model_name=\"tiny\",finished_reason=\"length\"}");
    assert_eq!(done, 4.0 * CLIENTS as f64);
    // 16 pages are too few for 8 of them, if so many come to run at once; and for these two in any case.
    let long = |n: u32, seed: usize| {
        let body = json!({"prompt": "word", "max_tokens": 400, "n": n, "seed": seed, "ignore_eos": true});
        server.post("/v1/completions", &body).ok()["choices"].clone()
    };
    let both = long(2, 1);
    assert_eq!([0, 1].map(|i| both[i]["text"].clone()), [1, 2].map(|seed| long(1, seed)[0]["text"].clone()));
    assert!(server.metric("vllm:num_preemptions_total") > 0.0);
}

#[test]
fn who_does_not_read_holds_nobody_up() {
    let server = serve(LONG);
    // More than the connection takes by itself.
    let mut lazy = server.open("/v1/completions", &endless(json!({"max_tokens": 1500, "logprobs": 20})));
    lazy.event().expect("it has begun");
    // Were they held up, they would be for ever: it reads nothing before they have their answers.
    for _ in 0..20 {
        let quick = json!({"prompt": "x", "max_tokens": 8, "ignore_eos": true});
        assert_eq!(server.post("/v1/completions", &quick).ok()["usage"]["completion_tokens"], 8);
    }
    // Nor is anything lost to it, when it reads at last.
    let events = lazy.events();
    assert_eq!(events.last().expect("an event")["choices"][0]["finish_reason"], "length");
}

#[test]
fn too_many_are_sent_away_and_told_when_to_come_back() {
    let server = serve(Setup { queue: 2, parallel: 1, ..LONG });
    let held: Vec<Response> = (0..3).map(|_| server.open("/v1/completions", &endless(json!({})))).collect();
    let reply = server.post("/v1/completions", &endless(json!({})));
    assert_eq!((reply.status, reply.header("retry-after")), (429, Some("5")));
    assert_eq!(reply.json()["error"]["code"], "queue_full");
    assert_eq!(server.get("/health").status, 503);
    assert_eq!(server.get("/live").status, 200);
    assert_eq!(server.metric("zinc_requests_shed_total"), 1.0);
    drop(held);
    server.wait_until("there is room again", |s| s.get("/health").status == 200);
    let n = server.post("/v1/completions", &endless(json!({"n": 4})));
    assert_eq!((n.status, n.json()["error"]["param"].as_str()), (400, Some("n")), "more than can ever fit");
}

#[test]
fn what_is_urgent_does_not_wait_for_what_is_not() {
    let server = serve(Setup { parallel: 1, ..LONG });
    let mut held = server.open("/v1/completions", &endless(json!({})));
    held.event().expect("it has begun");
    let urgent = json!({"prompt": "x", "max_tokens": 8, "ignore_eos": true, "priority": -1});
    assert_eq!(server.post("/v1/completions", &urgent).ok()["usage"]["completion_tokens"], 8);
    held.event().expect("it goes on");
    server.wait_until("the other one has given way", |s| s.metric("vllm:num_preemptions_total") == 1.0);
    let wrong = server.post("/v1/completions", &json!({"prompt": "x", "priority": "high"}));
    assert_eq!((wrong.status, wrong.json()["error"]["param"].as_str()), (400, Some("priority")));
}

#[test]
fn while_the_model_is_loaded_clients_are_told_to_wait() {
    let (loaded, wait) = mpsc::channel::<()>();
    let server = start(config(USUAL), move || {
        wait.recv().map_err(|e| e.to_string())?;
        load(USUAL)
    });
    for path in ["/health", "/v1/models", "/metrics"] {
        let reply = server.get(path);
        assert_eq!((reply.status, reply.header("retry-after")), (503, Some("5")), "{path}");
    }
    assert_eq!(server.post("/v1/completions", &json!({"prompt": "x"})).status, 503);
    assert_eq!(server.get("/live").status, 200);
    loaded.send(()).expect("it waits");
    server.wait_until("it is loaded", |s| s.get("/health").status == 200);
    assert_eq!(server.post("/v1/completions", &json!({"prompt": "x"})).status, 200);
}

#[test]
fn a_model_that_cannot_be_loaded_ends_the_server_with_the_reason() {
    let server = start(config(USUAL), || Err("the file is upside down".into()));
    let error = server.join().expect_err("it cannot run");
    assert_eq!(error.to_string(), "the file is upside down");
}

#[test]
fn only_keys_open_a_closed_server() {
    let keys = Keys::new(["sk-right", "sk-also"]).expect("keys");
    let server = start(client::config(USUAL).with_keys(keys), || load(USUAL));
    server.wait_until("it is loaded", |s| s.get("/health").status == 200);
    let ask = |name: &str, value: &str| {
        let body = json!({"prompt": "x", "max_tokens": 1}).to_string();
        Request::new("POST", "/v1/completions").header(name, value).body(body).send(server.address).finish()
    };
    assert_eq!(ask("Authorization", "Bearer sk-right").status, 200);
    assert_eq!(ask("x-api-key", "sk-also").status, 200);
    for (name, value) in [("X-Nothing", "x"), ("Authorization", "Bearer sk-wrong"), ("Authorization", "sk-right")] {
        let reply = ask(name, value);
        assert_eq!((reply.status, reply.header("www-authenticate")), (401, Some("Bearer")), "{name}: {value}");
        assert_eq!(reply.json()["error"]["code"], "invalid_api_key");
    }
    for path in ["/v1/models", "/metrics", "/props", "/slots"] {
        assert_eq!(server.get(path).status, 401, "{path}");
    }
}

#[test]
fn a_server_that_others_reach_needs_keys_or_a_word() {
    let open = || zinc_serve::Config { host: "0.0.0.0".into(), ..config(USUAL) };
    let error = Server::bind(open()).err().expect("it would be open");
    assert!(error.to_string().contains("--allow-anyone"), "{error}");
    assert!(Server::bind(zinc_serve::Config { allow_anyone: true, ..open() }).is_ok());
    assert!(Server::bind(open().with_keys(Keys::new(["k"]).expect("a key"))).is_ok());
}

#[test]
fn strangers_and_giants_are_refused() {
    let server = serve(USUAL);
    let body = json!({"prompt": "x", "max_tokens": 1}).to_string();
    let post = || Request::new("POST", "/v1/completions");
    let reply = post().header("Origin", "http://evil.example").body(&*body).send(server.address).finish();
    assert_eq!((reply.status, reply.header("access-control-allow-origin")), (403, None));
    assert_eq!(post().header("Origin", "http://localhost").body(&*body).send(server.address).finish().status, 200);
    let named = |host: &str| {
        let head = format!("GET /live HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        let mut connection = TcpStream::connect(server.address).expect("a connection");
        connection.write_all(head.as_bytes()).expect("sent");
        let mut said = String::new();
        connection.read_to_string(&mut said).expect("an answer");
        said[9..12].to_owned()
    };
    assert_eq!(["evil.example", "localhost:1", "127.0.0.1"].map(named), ["403", "200", "200"], "names that lead here");
    let giant = post().body(" ".repeat((1 << 20) + 1)).send(server.address).finish();
    assert_eq!((giant.status, giant.json()["error"]["code"].as_str()), (413, Some("request_too_large")));
    let chunked = |chunks: &str| {
        let head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n";
        let mut connection = TcpStream::connect(server.address).expect("a connection");
        connection.write_all(format!("{head}Connection: close\r\n\r\n{chunks}").as_bytes()).ok();
        let mut said = String::new();
        connection.read_to_string(&mut said).ok();
        said.get(9..12).unwrap_or_default().to_owned()
    };
    let giant = format!("{:x}\r\n{}\r\n1\r\n \r\n", 1 << 20, " ".repeat(1 << 20));
    assert_eq!([chunked(&giant), chunked("zz\r\n{}\r\n0\r\n\r\n")], ["413", "400"], "only one of them is too large");
    assert_eq!(post().body("{").send(server.address).finish().status, 400);
    assert_eq!(server.get("/v1/completions").json()["error"]["code"], "method_not_allowed");
    assert_eq!(server.get("/v2/anything").json()["error"]["code"], "unknown_url");
    let named = Request::new("GET", "/health").header("x-request-id", "mine-1").send(server.address).finish();
    assert_eq!(named.header("x-request-id"), Some("mine-1"));
    let bytes = TcpStream::connect(server.address).and_then(|mut c| {
        c.write_all(b"\x16\x03\x01 this is no HTTP\r\n\r\n")?;
        let mut said = vec![];
        c.read_to_end(&mut said)?;
        Ok(said)
    });
    assert!(bytes.expect("an answer").starts_with(b"HTTP/1.1 400"));
}

#[test]
fn who_sends_half_a_request_holds_nobody_up() {
    let server = serve(USUAL);
    let half = |what: &str| {
        let mut connection = TcpStream::connect(server.address).expect("a connection");
        connection.write_all(what.as_bytes()).expect("sent");
        connection
    };
    let held: Vec<TcpStream> = (0..200)
        .map(|i| match i % 3 {
            0 => half(""),
            1 => half("POST /v1/completions HTTP/1.1\r\nHost: lo"),
            _ => half("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{"),
        })
        .collect();
    let reply = server.post("/v1/completions", &json!({"prompt": "x", "max_tokens": 3, "ignore_eos": true}));
    assert_eq!(reply.ok()["usage"]["completion_tokens"], 3);
    drop(held);
}

#[test]
fn a_stopped_server_lets_answers_end() {
    let server = serve(Setup { grace: Duration::from_secs(600), ..LONG });
    let body = endless(json!({"max_tokens": 3000}));
    let mut response = server.open("/v1/completions", &body);
    response.event().expect("it has begun");
    server.stop.drain();
    let events = response.events();
    assert_eq!(events.last().expect("an event")["choices"][0]["finish_reason"], "length");
    server.join().expect("a clean end");
}

#[test]
fn a_server_stopped_at_once_ends_streams_with_a_word() {
    let server = serve(LONG);
    let mut response = server.open("/v1/completions", &endless(json!({})));
    response.event().expect("it has begun");
    server.stop.now();
    let events = response.events();
    let error = &events.last().expect("an event")["error"];
    assert!(error["message"].as_str().is_some_and(|m| m.contains("shutting down")), "{error}");
    server.join().expect("a clean end");
}

/// `with_keys` for a [`zinc_serve::Config`].
trait WithKeys {
    fn with_keys(self, keys: Keys) -> Self;
}

impl WithKeys for zinc_serve::Config {
    fn with_keys(self, keys: Keys) -> Self {
        zinc_serve::Config { keys, ..self }
    }
}
