//! Spans of requests, as a collector of OpenTelemetry's gets them.

mod client;

use client::*;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;
use zinc_serve::{Collector, Config};

/// A collector that takes what comes, or refuses all of it; what it got comes out of the channel.
fn collector(status: &'static str) -> (Collector, Receiver<Value>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let (got, gets) = channel();
    std::thread::spawn(move || {
        for connection in listener.incoming() {
            let mut reader = BufReader::new(connection.expect("a connection"));
            let (mut line, mut length) = (String::new(), 0);
            reader.read_line(&mut line).expect("a line");
            assert!(line.starts_with("POST /v1/traces HTTP/1.1"), "{line}");
            while line.trim() != "" {
                line.clear();
                reader.read_line(&mut line).expect("a line");
                if let Some(n) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                    length = n.trim().parse().expect("a number");
                }
            }
            let mut body = vec![0; length];
            reader.read_exact(&mut body).expect("a body");
            let answer = format!("HTTP/1.1 {status}\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{{}}");
            reader.get_mut().write_all(answer.as_bytes()).expect("answered");
            if got.send(serde_json::from_slice(&body).expect("JSON")).is_err() {
                return;
            }
        }
    });
    (Collector::read(&format!("http://{address}")).expect("an address"), gets)
}

fn traced(collector: Collector) -> Running {
    let server = start(Config { traces: Some(collector), ..config(USUAL) }, || load(USUAL));
    server.wait_until("the model is loaded", |s| s.get("/health").status == 200);
    server
}

fn attribute<'a>(span: &'a Value, key: &str) -> &'a Value {
    let rows = span["attributes"].as_array().expect("attributes");
    &rows.iter().find(|row| row["key"] == key).unwrap_or_else(|| panic!("{key} is not in {span}"))["value"]
}

#[test]
fn a_request_is_a_span_with_its_phases_below_it() {
    let (collector, gets) = collector("200 OK");
    let server = traced(collector);
    let ask = |flags: &str, body: Value| {
        let parent = format!("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-{flags}");
        let request = Request::new("POST", "/v1/completions").header("traceparent", &parent);
        request.header("x-request-id", "mine").body(body.to_string()).send(server.address).finish()
    };
    let body = json!({"prompt": "The sea", "max_tokens": 5, "temperature": 0.5, "seed": 3, "ignore_eos": true});
    assert_eq!(ask("00", body.clone()).status, 200, "who samples and does not want it gets no span");
    let usage = ask("01", body).ok()["usage"].clone();
    let got = gets.recv_timeout(Duration::from_secs(120)).expect("spans");
    let resource = &got["resourceSpans"][0];
    assert_eq!(resource["resource"]["attributes"][0], json!({"key": "service.name", "value": {"stringValue": "zinc"}}));
    let spans = resource["scopeSpans"][0]["spans"].as_array().expect("spans");
    let names: Vec<&str> = spans.iter().map(|s| s["name"].as_str().expect("a name")).collect();
    assert_eq!(names, ["text_completion tiny", "queue", "prefill", "decode"]);
    let whole = &spans[0];
    assert_eq!((&whole["kind"], &whole["parentSpanId"]), (&json!(2), &json!("00f067aa0ba902b7")));
    assert!(spans.iter().all(|s| s["traceId"] == "4bf92f3577b34da6a3ce929d0e0e4736"));
    assert!(spans[1..].iter().all(|s| s["parentSpanId"] == whole["spanId"] && s["spanId"] != whole["spanId"]));
    let time = |span: &Value, end: &str| span[end].as_str().expect("a time").parse::<u128>().expect("nanoseconds");
    for (before, after) in spans[1..].iter().zip(&spans[2..]) {
        assert_eq!(time(before, "endTimeUnixNano"), time(after, "startTimeUnixNano"), "one phase after the other");
    }
    assert!(time(whole, "startTimeUnixNano") <= time(&spans[1], "startTimeUnixNano"));
    for (key, value) in [
        ("gen_ai.operation.name", json!({"stringValue": "text_completion"})),
        ("gen_ai.request.max_tokens", json!({"intValue": "5"})),
        ("gen_ai.request.temperature", json!({"doubleValue": 0.5})),
        ("gen_ai.request.seed", json!({"intValue": "3"})),
        ("gen_ai.usage.input_tokens", json!({"intValue": usage["prompt_tokens"].to_string()})),
        ("gen_ai.usage.output_tokens", json!({"intValue": "5"})),
        ("gen_ai.response.finish_reasons", json!({"arrayValue": {"values": [{"stringValue": "length"}]}})),
        ("zinc.request_id", json!({"stringValue": "mine"})),
    ] {
        assert_eq!(attribute(whole, key), &value, "{key}");
    }
    server.wait_until("it is counted", |s| s.metric("zinc_spans_sent_total") == 1.0);
    // One that the server has made up was not asked for.
    for (seed, told) in
        [(json!(null), None), (json!(-1), None), (json!(u64::MAX), Some(u64::MAX)), (json!(-2), Some(u64::MAX - 1))]
    {
        ask("01", json!({"prompt": "x", "max_tokens": 2, "seed": seed, "ignore_eos": true})).ok();
        let got = gets.recv_timeout(Duration::from_secs(60)).expect("spans");
        let rows = &got["resourceSpans"][0]["scopeSpans"][0]["spans"][0]["attributes"];
        let row = rows.as_array().expect("attributes").iter().find(|row| row["key"] == "gen_ai.request.seed");
        let row = row.and_then(|row| row["value"]["stringValue"].as_str().map(str::to_owned));
        assert_eq!(row, told.map(|seed| seed.to_string()), "{seed}");
    }
}

#[test]
fn a_collector_that_refuses_or_is_not_there_hurts_nobody() {
    let (refusing, gets) = collector("400 Bad Request");
    // Nobody listens there; a port that was free a moment ago may be another test's by now.
    let absent = Collector::read("http://127.0.0.1:1").expect("an address");
    let servers = [traced(refusing), traced(absent)];
    for server in &servers {
        let body = json!({"prompt": "x", "max_tokens": 2, "ignore_eos": true});
        assert_eq!(server.post("/v1/completions", &body).ok()["usage"]["completion_tokens"], 2);
    }
    gets.recv_timeout(Duration::from_secs(120)).expect("it was asked");
    for server in servers {
        server.wait_until("it is counted", |s| s.metric("zinc_spans_dropped_total") == 1.0);
    }
}
