//! The device is lost while clients are served: they notice a pause at most, and their answers are what they would have
//! been. Where it does not come back, they are told. The same of a device whose steps fail.

mod client;

use client::*;
use serde_json::{Value, json};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use zinc_conformance::{Fuse, LosingDevice};
use zinc_cpu::CpuDevice;

const CLIENTS: usize = 8;

/// Opens devices that are lost when the fuse burns.
fn losing(fuse: &Fuse) -> Open {
    let fuse = fuse.clone();
    Box::new(move || Ok(Box::new(LosingDevice::new(Box::new(CpuDevice::new(1)?), &fuse))))
}

fn serve_on(open: Open) -> Running {
    let server = start(config(USUAL), move || load_on("llama", USUAL, open));
    server.wait_until("the model is loaded", |s| s.get("/health").status == 200);
    server
}

/// Requests of all kinds: drawn on the device or by the host, greedy, with log-probabilities, with a rule, several choices.
fn request(i: usize) -> Value {
    let mut body =
        json!({"prompt": "word ".repeat(1 + i), "max_tokens": 30, "seed": i, "ignore_eos": true, "stream": true});
    let more = match i % 6 {
        0 => json!({"temperature": 0}),
        1 => json!({"temperature": 0.9, "logprobs": 2}),
        2 => json!({"structured_outputs": {"regex": "[a-z ]{10,40}"}, "ignore_eos": false}),
        3 => json!({"n": 2}),
        4 => json!({"frequency_penalty": 0.5, "presence_penalty": 0.5}),
        _ => json!({}),
    };
    for (key, value) in more.as_object().expect("an object") {
        body[key] = value.clone();
    }
    body
}

/// Everything that comes of a request but its id and time, by choice: what is in flight at a time may differ.
fn answer(server: &Running, i: usize) -> Vec<Vec<Value>> {
    let mut choices = vec![vec![]; 2];
    for event in server.open("/v1/completions", &request(i)).events() {
        assert_eq!(event["error"], Value::Null, "request {i}");
        for choice in event["choices"].as_array().expect("choices") {
            choices[choice["index"].as_u64().expect("a number") as usize].push(choice.clone());
        }
    }
    choices
}

#[test]
fn clients_notice_nothing_but_a_pause() {
    let fuse = Fuse::default();
    let server = serve_on(losing(&fuse));
    let alone: Vec<_> = (0..CLIENTS).map(|i| answer(&server, i)).collect();
    for (losses, call) in [1, 10, 40].into_iter().enumerate() {
        fuse.light(call);
        std::thread::scope(|scope| {
            for (i, expected) in alone.iter().enumerate() {
                let server = &server;
                scope.spawn(move || assert_eq!(answer(server, i), *expected, "request {i}, lost at call {call}"));
            }
        });
        assert_eq!(
            (fuse.losses(), server.metric("zinc_device_losses_total")),
            (losses as u64 + 1, losses as f64 + 1.0)
        );
        server.wait_until("nothing is held", |s| s.metric("vllm:kv_cache_usage_perc") == 0.0);
    }
    assert_eq!(server.get("/health").status, 200);
    assert_eq!(server.metric("zinc_step_errors_total"), 0.0);
}

#[test]
fn health_tells_of_the_pause_and_requests_wait_for_its_end() {
    let fuse = Fuse::default();
    let (go_on, wait) = mpsc::channel::<()>();
    let (mut inner, mut first) = (losing(&fuse), true);
    let server = serve_on(Box::new(move || {
        if !std::mem::replace(&mut first, false) {
            wait.recv()?;
        }
        inner()
    }));
    let expected = answer(&server, 0);
    fuse.light(5);
    std::thread::scope(|scope| {
        let before = scope.spawn(|| answer(&server, 0));
        server.wait_until("the device is lost", |s| s.get("/health").status == 503);
        let health = server.get("/health");
        let error = health.json()["error"].clone();
        assert_eq!((error["code"].as_str(), health.header("retry-after")), (Some("device_lost"), Some("5")));
        assert!(error["message"].as_str().is_some_and(|m| m.starts_with("device lost, recovering")), "{error}");
        assert_eq!(server.get("/live").status, 200);
        let meanwhile = scope.spawn(|| answer(&server, 0));
        go_on.send(()).expect("it waits");
        assert_eq!(before.join().expect("an answer"), expected);
        assert_eq!(meanwhile.join().expect("an answer"), expected);
    });
    assert_eq!(server.get("/health").status, 200);
}

/// What clients see when the device is gone for good.
fn gone(server: &Running, told: &str) {
    let health = server.get("/health");
    let message = health.json()["error"]["message"].as_str().expect("a message").to_owned();
    assert!(health.status == 503 && message.contains("started again") && message.contains(told), "{message}");
    let reply = server.post("/v1/completions", &json!({"prompt": "x", "max_tokens": 1}));
    assert_eq!((reply.status, reply.json()["error"]["code"].as_str()), (503, Some("device_lost")));
}

#[test]
fn a_device_that_does_not_come_back_ends_answers_with_a_word() {
    let fuse = Fuse::default();
    let (mut inner, present) = (losing(&fuse), Arc::new(AtomicBool::new(true)));
    let seen = present.clone();
    let server =
        serve_on(Box::new(move || if seen.load(Ordering::SeqCst) { inner() } else { Err("the slot is empty".into()) }));
    present.store(false, Ordering::SeqCst);
    fuse.light(12);
    let events = server.open("/v1/completions", &request(5)).events();
    let error = &events.last().expect("an event")["error"];
    assert_eq!(error["code"], "device_lost", "{error}");
    gone(&server, "the slot is empty");
    assert_eq!(server.metric("zinc_device_losses_total"), 1.0);
}

#[test]
fn a_device_that_is_lost_again_and_again_is_given_up() {
    let fuse = Fuse::default();
    let (mut inner, again) = (losing(&fuse), fuse.clone());
    let server = serve_on(Box::new(move || {
        again.light(3);
        inner()
    }));
    let body = json!({"prompt": "x", "max_tokens": 40, "ignore_eos": true});
    let reply = server.post("/v1/completions", &body);
    assert_eq!((reply.status, reply.json()["error"]["code"].as_str()), (503, Some("device_lost")));
    gone(&server, "4 times within 10 minutes");
    assert_eq!(fuse.losses(), 4);
}

#[test]
fn steps_that_fail_now_and_then_change_no_answer() {
    let fuse = Fuse::default();
    let server = serve_on(losing(&fuse));
    let alone: Vec<_> = (0..CLIENTS).map(|i| answer(&server, i)).collect();
    // Enough steps for everyone to get a token before the next failure.
    fuse.fail_one_of(25);
    std::thread::scope(|scope| {
        for (i, expected) in alone.iter().enumerate() {
            let server = &server;
            scope.spawn(move || (0..4).for_each(|_| assert_eq!(answer(server, i), *expected, "request {i}")));
        }
    });
    assert!(server.metric("zinc_step_errors_total") >= 3.0);
    assert_eq!(server.metric("zinc_device_losses_total"), 0.0);
    server.wait_until("nothing is held", |s| s.metric("vllm:kv_cache_usage_perc") == 0.0);
}

#[test]
fn a_device_whose_steps_all_fail_ends_answers_with_a_word_and_is_asked_again() {
    let fuse = Fuse::default();
    let server = serve_on(losing(&fuse));
    let body = json!({"prompt": "x", "max_tokens": 3, "ignore_eos": true});
    fuse.fail_one_of(1);
    let reply = server.post("/v1/completions", &body);
    let message = reply.json()["error"]["message"].as_str().expect("a message").to_owned();
    assert!(reply.status == 500 && message.contains("this step fails"), "{} {message}", reply.status);
    assert_eq!(server.metric("zinc_step_errors_total"), 2.0, "it was tried twice");
    fuse.fail_one_of(0);
    assert_eq!(server.post("/v1/completions", &body).ok()["usage"]["completion_tokens"], 3);
}
