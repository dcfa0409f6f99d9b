//! The second turn of a long chat computes only what is new, also where layers have a sliding window; and gives what a
//! server gives that computes all of it.

mod client;

use client::*;
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use zinc_serve::{Config, Keys};

const SETUP: Setup = Setup { context: 4096, parallel: 2, ..USUAL };

fn serve_model(name: &'static str) -> Running {
    let running = start(config(SETUP), move || load_model(name, SETUP));
    running.wait_until("the model is loaded", |r| r.get("/health").status == 200);
    running
}

/// What an answer took.
struct Turn {
    answer: Value,
    prompt: u64,
    cached: u64,
    /// Prompt tokens that were computed, as the metrics tell.
    computed: f64,
    steps: f64,
    time: Duration,
}

fn turn(server: &Running, messages: &[Value]) -> Turn {
    let computed = || server.metric("vllm:prompt_tokens_total") - server.metric("vllm:prefix_cache_hits_total");
    let (before, steps, start) = (computed(), server.metric("zinc_steps_total"), Instant::now());
    let body =
        json!({"messages": messages, "max_tokens": 40, "temperature": 0.0, "ignore_eos": true, "logprobs": true});
    let reply = server.post("/v1/chat/completions", &body).ok();
    let (usage, choice) = (&reply["usage"], &reply["choices"][0]);
    Turn {
        answer: json!([choice["message"]["content"], choice["logprobs"]]),
        prompt: usage["prompt_tokens"].as_u64().expect("a number"),
        cached: usage["prompt_tokens_details"]["cached_tokens"].as_u64().expect("a number"),
        computed: computed() - before,
        steps: server.metric("zinc_steps_total") - steps,
        time: start.elapsed(),
    }
}

fn second_turn_computes_only_what_is_new(model: &'static str) {
    let server = serve_model(model);
    let tale: String = (0..120).map(|i| format!("On day {i} the sea was calm. ")).collect();
    let mut messages = vec![json!({"role": "user", "content": tale})];
    let first = turn(&server, &messages);
    assert!(first.prompt > 2000 && first.cached == 0, "{} tokens, {} cached", first.prompt, first.cached);
    let answer = first.answer[0].as_str().expect("a text");
    messages.extend([json!({"role": "assistant", "content": answer}), json!({"role": "user", "content": "And then?"})]);
    let second = turn(&server, &messages);
    let new = second.prompt - first.prompt;
    println!("{model}: {} tokens, {} new, {} computed", second.prompt, new, second.computed);
    println!("first turn {:?}, second {:?}", first.time, second.time);
    assert_eq!(second.computed, (second.prompt - second.cached) as f64);
    // Up to a page of what both have in common is computed again, and what joins the prompt and the answer.
    assert!(second.prompt - second.cached < new + 64, "{} of {} cached", second.cached, second.prompt);
    // 64 rows a step.
    let (prompt_steps, expected) = (second.steps - 39.0, (second.computed / 64.0).ceil());
    assert!(prompt_steps <= expected + 1.0, "{prompt_steps} steps for {} tokens", second.computed);
    assert!(first.steps - 39.0 >= first.prompt as f64 / 64.0);
    let cold = turn(&serve_model(model), &messages);
    assert_eq!((cold.cached, cold.prompt), (0, second.prompt));
    assert_eq!(cold.answer[0], second.answer[0]);
    let logprobs = |turn: &Turn| -> Vec<f64> {
        let tokens = turn.answer[1]["content"].as_array().expect("tokens").iter();
        tokens.map(|t| t["logprob"].as_f64().expect("a number")).collect()
    };
    let (cold, warm) = (logprobs(&cold), logprobs(&second));
    assert!(cold.len() == 40 && cold.iter().zip(&warm).all(|(a, b)| (a - b).abs() < 1e-3), "{cold:?} {warm:?}");
}

#[test]
fn the_second_turn_computes_only_what_is_new() {
    second_turn_computes_only_what_is_new("llama");
}

#[test]
fn also_where_layers_have_a_sliding_window() {
    second_turn_computes_only_what_is_new("gemma3");
}

/// Tokens of a prompt that a key need not wait for.
fn cached(server: &Running, key: &str, salt: Value) -> u64 {
    let messages = json!([{"role": "user", "content": "The sea was calm. ".repeat(9)}]);
    let body = json!({"messages": messages, "max_tokens": 3, "cache_salt": salt}).to_string();
    let request = Request::new("POST", "/v1/chat/completions").header("Authorization", &format!("Bearer {key}"));
    let usage = request.body(body).send(server.address).finish().ok()["usage"].clone();
    usage["prompt_tokens_details"]["cached_tokens"].as_u64().expect("a number")
}

#[test]
fn who_does_not_know_the_salt_cannot_tell_what_was_asked() {
    let server = serve(USUAL);
    for salt in [json!(null), json!("a"), json!("b ü")] {
        assert_eq!(cached(&server, "", salt.clone()), 0, "{salt}");
        assert!(cached(&server, "", salt.clone()) >= 96, "{salt}");
    }
    for wrong in [json!(""), json!(7), json!(["a"])] {
        let reply = server.post("/v1/completions", &json!({"prompt": "x", "cache_salt": wrong}));
        assert_eq!((reply.status, reply.json()["error"]["param"].as_str()), (400, Some("cache_salt")), "{wrong}");
    }
}

#[test]
fn a_key_may_have_a_cache_of_its_own() {
    let keys = "sk-a name=a cache=own\nsk-a2 name=a cache=own\nsk-b name=b\nsk-c name=c cache=shared\nsk-d cache=own";
    let keys = Keys::lines(keys).expect("keys");
    let server = start(Config { keys, ..config(USUAL) }, || load(USUAL));
    server.wait_until("the model is loaded", |s| s.get("/health").status == 200);
    for (key, known) in [("sk-a", false), ("sk-b", false), ("sk-c", true), ("sk-d", false), ("sk-a2", true)] {
        assert_eq!(cached(&server, key, Value::Null) >= 96, known, "{key}");
    }
    let salts = ["a", "b"].map(Value::from);
    assert_eq!(salts.map(|salt| cached(&server, "sk-b", salt)), [0, 0]);
    assert_eq!(cached(&server, "sk-a", json!("b")), 0, "not even with another's salt");
    assert!(cached(&server, "sk-c", json!("b")) >= 96, "where all is shared, whoever knows the salt is let in");
}
