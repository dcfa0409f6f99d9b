//! OpenAI's paths over real HTTP: what is asked for is what comes, streamed or not.

mod client;

use client::*;
use serde_json::{Value, json};

fn chat(more: Value) -> Value {
    let mut body = json!({
        "model": "tiny",
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Tell me of the sea."}],
        "max_tokens": 24,
        "seed": 7,
    });
    merge(&mut body, more);
    body
}

fn completion(more: Value) -> Value {
    let mut body = json!({"model": "tiny", "prompt": "The sea is", "max_tokens": 12, "temperature": 0});
    merge(&mut body, more);
    body
}

fn merge(body: &mut Value, more: Value) {
    for (key, value) in more.as_object().expect("an object") {
        body[key] = value.clone();
    }
}

/// What the chunks of one choice add up to: text, and why it ended.
fn join(events: &[Value], index: usize, part: impl Fn(&Value) -> Option<&str>) -> (String, String) {
    let (mut text, mut end) = (String::new(), String::new());
    for choice in events.iter().flat_map(|e| e["choices"].as_array().expect("choices")) {
        if choice["index"] == index {
            assert!(end.is_empty(), "nothing comes after the end of a choice");
            text.push_str(part(choice).unwrap_or_default());
            end.push_str(choice["finish_reason"].as_str().unwrap_or_default());
        }
    }
    (text, end)
}

#[test]
fn a_chat_is_the_same_streamed_or_not_and_the_same_again() {
    let server = serve(USUAL);
    for n in [1, 3] {
        let whole = server.post("/v1/chat/completions", &chat(json!({"n": n}))).ok();
        assert_eq!((&whole["object"], &whole["model"]), (&json!("chat.completion"), &json!("tiny")));
        let again = server.post("/v1/chat/completions", &chat(json!({"n": n}))).ok();
        assert_eq!(whole["choices"], again["choices"], "the same seed gives the same text");
        let options = json!({"n": n, "stream": true, "stream_options": {"include_usage": true}});
        let response = server.open("/v1/chat/completions", &chat(options));
        assert_eq!(response.status, 200);
        let mut events = response.events();
        let last = events.pop().expect("usage");
        assert_eq!((&last["choices"], &last["usage"]["completion_tokens"]), (&json!([]), &json!(24 * n)));
        assert_eq!(last["usage"]["prompt_tokens"], whole["usage"]["prompt_tokens"]);
        for i in 0..n {
            let (text, end) = join(&events, i, |c| c["delta"]["content"].as_str());
            assert_eq!(whole["choices"][i]["message"]["content"], text);
            assert_eq!((whole["choices"][i]["finish_reason"].as_str(), end.as_str()), (Some("length"), "length"));
            let first = events.iter().find(|e| e["choices"][0]["index"] == i).expect("a chunk");
            assert_eq!(first["choices"][0]["delta"]["role"], "assistant");
            assert_eq!((&first["object"], &first["usage"]), (&json!("chat.completion.chunk"), &Value::Null));
        }
        let texts: Vec<&Value> = (0..n).map(|i| &whole["choices"][i]["message"]["content"]).collect();
        assert!(n == 1 || texts[0] != texts[1], "choices have seeds of their own");
    }
    let other = server.post("/v1/chat/completions", &chat(json!({"seed": 8}))).ok();
    let same = server.post("/v1/chat/completions", &chat(json!({"n": 2}))).ok();
    assert_eq!(other["choices"][0]["message"], same["choices"][1]["message"], "choice 1 has the next seed");
}

#[test]
fn content_may_come_in_parts_and_a_developer_is_the_system() {
    let server = serve(USUAL);
    let plain = server.post("/apply-template", &chat(json!({"max_tokens": null, "seed": null, "model": null}))).ok();
    let parts = json!([{"type": "text", "text": "Tell me "}, {"type": "text", "text": "of the sea."}]);
    let messages = json!([{"role": "developer", "content": "Be brief."}, {"role": "user", "content": parts}]);
    let other = server.post("/apply-template", &json!({"messages": messages})).ok();
    assert_eq!(plain["prompt"], other["prompt"]);
    let expected = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nTell me of the sea.<|im_end|>\n<|im_start|>assistant\n";
    assert_eq!(plain["prompt"], expected);
}

#[test]
fn completions_take_texts_and_tokens_and_several_of_them() {
    let server = serve(USUAL);
    let one = server.post("/v1/completions", &completion(json!({}))).ok();
    assert_eq!((&one["object"], &one["usage"]["completion_tokens"]), (&json!("text_completion"), &json!(12)));
    let tokens =
        server.post("/tokenize", &json!({"content": "The sea is", "add_special": true})).ok()["tokens"].clone();
    assert_eq!(one["usage"]["prompt_tokens"], tokens.as_array().expect("ids").len());
    let by_ids = server.post("/v1/completions", &completion(json!({"prompt": tokens}))).ok();
    assert_eq!(one["choices"], by_ids["choices"]);
    let both = completion(json!({"prompt": ["The sky is", "The sea is"], "n": 2, "echo": true}));
    let both = server.post("/v1/completions", &both).ok();
    let texts: Vec<&str> = (0..4).map(|i| both["choices"][i]["text"].as_str().expect("a text")).collect();
    assert!(texts[0].starts_with("The sky is") && texts[0] == texts[1], "greedy answers are equal: {texts:?}");
    assert_eq!(texts[3], format!("The sea is{}", one["choices"][0]["text"].as_str().expect("a text")));
    let events = server.open("/v1/completions", &completion(json!({"stream": true}))).events();
    let (text, end) = join(&events, 0, |c| c["text"].as_str());
    assert_eq!((one["choices"][0]["text"].as_str(), end.as_str()), (Some(text.as_str()), "length"));
}

#[test]
fn a_stop_text_ends_the_answer_and_is_not_shown() {
    let server = serve(USUAL);
    let whole = server.post("/v1/completions", &completion(json!({}))).ok();
    let text = whole["choices"][0]["text"].as_str().expect("a text").to_owned();
    // Three characters out of its middle.
    let middle: Vec<char> = text.chars().collect();
    let stop: String = middle[middle.len() / 2..].iter().take(3).collect();
    let before = text.split(&stop).next().expect("a part").to_owned();
    for stream in [false, true] {
        let body = completion(json!({"stop": ["never that", stop], "stream": stream}));
        let (got, end) = match stream {
            true => join(&server.open("/v1/completions", &body).events(), 0, |c| c["text"].as_str()),
            false => {
                let reply = server.post("/v1/completions", &body).ok();
                let of = |key: &str| reply["choices"][0][key].as_str().expect("a text").to_owned();
                (of("text"), of("finish_reason"))
            }
        };
        assert_eq!((got.as_str(), end.as_str()), (before.as_str(), "stop"));
    }
    server.wait_until("both have ended", |s| s.metric("vllm:num_requests_running") == 0.0);
}

#[test]
fn log_probabilities_are_those_of_the_chosen_tokens() {
    let server = serve(USUAL);
    let options = json!({"temperature": 0, "logprobs": true, "top_logprobs": 3});
    let whole = server.post("/v1/chat/completions", &chat(options.clone())).ok();
    let rows = whole["choices"][0]["logprobs"]["content"].as_array().expect("rows").clone();
    assert_eq!(rows.len(), 24);
    for row in &rows {
        let top = row["top_logprobs"].as_array().expect("the likeliest");
        assert_eq!((top.len(), &top[0]["token"]), (3, &row["token"]), "greedy takes the likeliest");
        let p: Vec<f64> = top.iter().map(|t| t["logprob"].as_f64().expect("a number")).collect();
        assert!(p[0] >= p[1] && p[1] >= p[2] && p[0] <= 0.0 && p.iter().map(|p| p.exp()).sum::<f64>() <= 1.0 + 1e-5);
    }
    let plain = server.post("/v1/chat/completions", &chat(json!({"temperature": 0}))).ok();
    assert_eq!(plain["choices"][0]["message"], whole["choices"][0]["message"], "watching changes nothing");
    let mut streamed = chat(options);
    streamed["stream"] = json!(true);
    let events = server.open("/v1/chat/completions", &streamed).events();
    let chunks = events.iter().flat_map(|e| e["choices"][0]["logprobs"]["content"].as_array().cloned());
    assert_eq!(chunks.flatten().collect::<Vec<Value>>(), rows);
}

#[test]
fn an_echoed_prompt_has_log_probabilities_too() {
    let server = serve(USUAL);
    let body = completion(json!({"echo": true, "logprobs": 1, "max_tokens": 3}));
    let lists = server.post("/v1/completions", &body).ok()["choices"][0]["logprobs"].clone();
    let length = |key: &str| lists[key].as_array().expect("a list").len();
    let ids = server.post("/tokenize", &json!({"content": "The sea is", "add_special": true})).ok();
    let prompt = ids["tokens"].as_array().expect("ids").len();
    assert_eq!(["tokens", "token_logprobs", "top_logprobs", "text_offset"].map(length), [prompt + 3; 4]);
    let chosen = |i: usize| &lists["top_logprobs"][i][lists["tokens"][i].as_str().expect("a token")];
    assert!(
        (1..prompt + 3).all(|i| chosen(i) == &lists["token_logprobs"][i]),
        "the chosen one is always told: {lists}"
    );
    assert!(lists["token_logprobs"][0].is_null() && lists["token_logprobs"][1].is_number());
    // The prompt alone, scored: the same numbers, whether or not its beginning is cached by now.
    let alone = completion(json!({"echo": true, "logprobs": 1, "max_tokens": 0}));
    let alone = server.post("/v1/completions", &alone).ok()["choices"][0]["logprobs"].clone();
    assert_eq!(
        alone["token_logprobs"].as_array().map(|l| &l[..prompt]),
        lists["token_logprobs"].as_array().map(|l| &l[..prompt])
    );
    assert_eq!(alone["tokens"].as_array().expect("a list").len(), prompt);
}

#[test]
fn a_bias_forces_or_forbids_a_token() {
    let server = serve(USUAL);
    let forced = json!({"logit_bias": {"71": 100}, "max_tokens": 5, "temperature": 0});
    let reply = server.post("/v1/completions", &completion(forced)).ok();
    assert_eq!(reply["choices"][0]["text"], "hhhhh");
    let plain = server.post("/v1/completions", &completion(json!({"logprobs": 0}))).ok();
    let first = plain["choices"][0]["logprobs"]["tokens"][0].as_str().expect("a token").to_owned();
    let id = server.post("/tokenize", &json!({"content": first})).ok()["tokens"][0].to_string();
    let forbidden = server.post("/v1/completions", &completion(json!({"logit_bias": {id: -100}, "logprobs": 0}))).ok();
    assert_ne!(forbidden["choices"][0]["logprobs"]["tokens"][0], first);
}

#[test]
fn an_answer_follows_its_grammar() {
    let server = serve(USUAL);
    let schema = json!({
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 8},
            "kind": {"enum": ["cat", "dog"]},
            "age": {"type": "integer", "minimum": 0, "maximum": 99},
        },
        "required": ["name", "kind", "age"],
        "additionalProperties": false,
    });
    let format = json!({"type": "json_schema", "json_schema": {"name": "pet", "strict": true, "schema": schema}});
    for seed in 0..6 {
        // Random weights write anything, were they not held.
        let body =
            chat(json!({"response_format": format, "seed": seed, "temperature": 1.5, "max_tokens": 200, "n": 2}));
        let mut streamed = body.clone();
        streamed["stream"] = json!(true);
        let reply = server.post("/v1/chat/completions", &body).ok();
        let events = server.open("/v1/chat/completions", &streamed).events();
        for i in 0..2 {
            let text = reply["choices"][i]["message"]["content"].as_str().expect("a text");
            let pet: Value = serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"));
            assert_eq!(pet.as_object().map(|o| o.len()), Some(3), "{pet}");
            assert!(pet["name"].as_str().is_some_and(|n| n.chars().count() <= 8), "{pet}");
            assert!(pet["kind"] == "cat" || pet["kind"] == "dog", "{pet}");
            assert!(pet["age"].as_u64().is_some_and(|n| n <= 99), "{pet}");
            assert_eq!(reply["choices"][i]["finish_reason"], "stop");
            assert_eq!(join(&events, i, |c| c["delta"]["content"].as_str()).0, text);
        }
    }
    let regex = json!({"structured_outputs": {"regex": "[a-f]{4}-[0-9]{3}"}, "temperature": 1.5, "max_tokens": 50});
    let text = server.post("/v1/completions", &completion(regex)).ok()["choices"][0]["text"].clone();
    let text = text.as_str().expect("a text").as_bytes().to_vec();
    assert!(text.len() == 8 && text[..4].iter().all(|b| (b'a'..=b'f').contains(b)) && text[4] == b'-', "{text:?}");
    let choice = json!({"structured_outputs": {"choice": ["left", "right"]}, "logprobs": 1});
    let reply = server.post("/v1/completions", &completion(choice)).ok();
    assert!(["left", "right"].contains(&reply["choices"][0]["text"].as_str().expect("a text")), "{reply}");
    let lark = json!({"structured_outputs": {"grammar": "start: \"(\" /[ab]+/ \")\""}, "max_tokens": 8});
    let reply = server.post("/v1/completions", &completion(lark)).ok();
    assert!(reply["choices"][0]["text"].as_str().is_some_and(|t| t.starts_with('(')), "{reply}");
    // Cut off by the limit it is unfinished, and says so.
    let short = chat(json!({"response_format": {"type": "json_object"}, "max_tokens": 2}));
    let reply = server.post("/v1/chat/completions", &short).ok();
    assert_eq!(reply["choices"][0]["finish_reason"], "length");
    assert!(reply["choices"][0]["message"]["content"].as_str().is_some_and(|t| t.starts_with('{')), "{reply}");
}

#[test]
fn a_call_that_is_demanded_comes_and_fits_its_tool() {
    let server = serve(Setup { context: 4096, ..USUAL });
    let tool = |name: &str, parameters: Value| json!({"type": "function", "function": {"name": name, "parameters": parameters}});
    let point = json!({"type": "object", "properties": {"x": {"$ref": "#/$defs/n"}, "y": {"$ref": "#/$defs/n"}},
        "required": ["x", "y"], "additionalProperties": false, "$defs": {"n": {"type": "integer", "minimum": 0, "maximum": 9}}});
    let tools = json!([tool("go_to", point), {"type": "function", "function": {"name": "stop"}}]);
    let mut seen = std::collections::HashSet::new();
    for seed in 0..8 {
        let named = json!({"type": "function", "function": {"name": "go_to"}});
        let choice = if seed % 2 == 0 { json!("required") } else { named };
        let parallel = seed >= 4;
        let body =
            chat(json!({"tools": tools, "tool_choice": choice, "seed": seed, "temperature": 1.5, "max_tokens": 1500,
            "parallel_tool_calls": parallel}));
        let reply = server.post("/v1/chat/completions", &body).ok();
        let answer = &reply["choices"][0];
        assert_eq!(
            (&answer["finish_reason"], &answer["message"]["content"]),
            (&json!("tool_calls"), &Value::Null),
            "{reply}"
        );
        let calls = answer["message"]["tool_calls"].as_array().expect("calls").clone();
        assert!(!calls.is_empty() && (parallel || calls.len() == 1), "{reply}");
        let part = |call: &Value, key: &str| call["function"][key].as_str().expect("a text").to_owned();
        for call in &calls {
            let arguments: Value = serde_json::from_str(&part(call, "arguments")).expect("JSON");
            let fits = match part(call, "name").as_str() {
                "go_to" => ["x", "y"].iter().all(|k| arguments[k].as_u64().is_some_and(|n| n <= 9)),
                "stop" => seed % 2 == 0 && arguments == json!({}),
                _ => false,
            };
            assert!(fits && call["id"].as_str().is_some_and(|id| id.starts_with("call_")), "{call}");
            seen.insert(part(call, "name"));
        }
        let mut streamed = body.clone();
        streamed["stream"] = json!(true);
        let events = server.open("/v1/chat/completions", &streamed).events();
        let deltas = events.iter().flat_map(|e| e["choices"][0]["delta"]["tool_calls"].as_array().cloned());
        let deltas: Vec<Value> = deltas.flatten().collect();
        assert_eq!(
            deltas.iter().map(|c| c["function"].clone()).collect::<Vec<_>>(),
            calls.iter().map(|c| c["function"].clone()).collect::<Vec<_>>()
        );
        assert!(deltas.iter().enumerate().all(|(i, c)| c["index"] == i), "{deltas:?}");
        assert_eq!(join(&events, 0, |c| c["delta"]["content"].as_str()), (String::new(), "tool_calls".into()));
    }
    assert_eq!(seen.len(), 2, "both tools are called sometimes");
    // What a model is told of tools, and of calls that have been made.
    let messages = json!([{"role": "user", "content": "Go."},
        {"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": {"name": "stop", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "1", "content": "stopped"}]);
    let prompt = server.post("/apply-template", &json!({"messages": messages, "tools": tools})).ok()["prompt"].clone();
    let prompt = prompt.as_str().expect("a text");
    let parts = ["go_to", "<tool_call>\n{\"name\":\"stop\"", "<tool_response>\nstopped", "<|im_start|>user\nGo."];
    assert!(parts.iter().all(|p| prompt.contains(p)), "{prompt}");
    let both = chat(json!({"tools": tools, "response_format": {"type": "json_object"}}));
    assert_eq!(server.post("/v1/chat/completions", &both).json()["error"]["param"], "response_format");
}

#[test]
fn a_known_beginning_is_not_computed_again() {
    let server = serve(USUAL);
    let prompt = "a long tale of the sea. ".repeat(12);
    let body = completion(json!({"prompt": prompt, "max_tokens": 4}));
    let first = server.post("/v1/completions", &body).ok();
    assert_eq!(first["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    let second = server.post("/v1/completions", &body).ok();
    let tokens = |key: &str| second["usage"][key].as_u64().expect("a number");
    let cached = second["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().expect("a number");
    assert!(cached >= tokens("prompt_tokens") - 32 && cached < tokens("prompt_tokens"), "{second}");
    assert_eq!(first["choices"], second["choices"], "and gives the same answer");
    assert_eq!(server.metric("vllm:prefix_cache_hits_total"), cached as f64);
    // Nor is it by answers that begin together: three of the four take all full pages from the first one.
    let together = completion(json!({"prompt": "another tale of the land. ".repeat(12), "n": 4, "max_tokens": 4}));
    let usage = server.post("/v1/completions", &together).ok()["usage"].clone();
    let pages = (usage["prompt_tokens"].as_u64().expect("a number") - 1) / 32;
    assert_eq!(server.metric("vllm:prefix_cache_hits_total"), (cached + 3 * 32 * pages) as f64);
}

/// Path, what to add to a good request, status, `param`, `code`, and what the message says.
type Wrong = (&'static str, Value, u16, Value, Value, &'static str);

#[test]
fn what_is_wrong_is_named() {
    let server = serve(USUAL);
    const CHAT: &str = "/v1/chat/completions";
    const TEXT: &str = "/v1/completions";
    #[rustfmt::skip]
    let rows: Vec<Wrong> = vec![
        (CHAT, json!({"model": "gpt-9"}), 404, json!("model"), json!("model_not_found"), "also-tiny"),
        (CHAT, json!({"messages": null}), 400, json!("messages"), Value::Null, "missing"),
        (CHAT, json!({"messages": []}), 400, json!("messages"), Value::Null, "at least one"),
        (CHAT, json!({"messages": [{"content": "x"}]}), 400, json!("messages[0]"), Value::Null, "role"),
        (CHAT, json!({"messages": [{"role": "user"}]}), 400, json!("messages[0]"), Value::Null, "content"),
        (CHAT, json!({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}), 400, json!("messages[0]"), Value::Null, "image_url"),
        (CHAT, json!({"messages": [{"role": "assistant", "content": null, "tool_calls": []}]}), 400, json!("messages[0]"), Value::Null, "content"),
        (CHAT, json!({"messages": [{"role": "assistant", "content": "x", "tool_calls": "f"}]}), 400, json!("messages[0]"), Value::Null, "no list"),
        (CHAT, json!({"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": 1}}]}]}), 400, json!("messages[0]"), Value::Null, "arguments"),
        (CHAT, json!({"stop": ["x".repeat(1025)]}), 400, json!("stop"), Value::Null, "1024"),
        (CHAT, json!({"tools": [{"type": "function"}]}), 400, json!("tools"), Value::Null, "name"),
        (CHAT, json!({"tool_choice": "required"}), 400, json!("tool_choice"), Value::Null, "no tools"),
        (CHAT, json!({"functions": [{"name": "x"}]}), 400, json!("functions"), json!("unsupported_parameter"), "not supported"),
        (CHAT, json!({"response_format": {"type": "xml"}}), 400, json!("response_format"), Value::Null, "json_schema"),
        (CHAT, json!({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "blue"}}}}), 400, json!("response_format"), Value::Null, "cannot be used"),
        (CHAT, json!({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "object", "propertyNames": {"pattern": "a"}}}}}), 400, json!("response_format"), Value::Null, "cannot be used"),
        (CHAT, json!({"structured_outputs": {"regex": "("}}), 400, json!("structured_outputs"), Value::Null, "cannot be used"),
        (CHAT, json!({"structured_outputs": {"choice": ["a"]}, "json_schema": {}}), 400, json!("json_schema"), Value::Null, "two"),
        (CHAT, json!({"json_schema": {"type": "number", "multipleOf": 99999999}}), 400, json!("json_schema"), Value::Null, "multipleOf"),
        (CHAT, json!({"json_schema": {}, "ignore_eos": true}), 400, json!("ignore_eos"), Value::Null, "json_schema"),
        (TEXT, json!({"structured_outputs": {"choice": vec!["x"; 1001]}}), 400, json!("structured_outputs"), Value::Null, "1000"),
        (CHAT, json!({"chat_template_kwargs": {"messages": []}}), 400, json!("chat_template_kwargs"), Value::Null, "`messages`"),
        (CHAT, json!({"temprature": 1}), 400, json!("temprature"), json!("unknown_parameter"), "temprature"),
        (CHAT, json!({"temperature": "hot"}), 400, json!("temperature"), Value::Null, "invalid type"),
        (CHAT, json!({"temperature": -1}), 400, json!("temperature"), Value::Null, "between"),
        (CHAT, json!({"top_p": 1.5}), 400, json!("top_p"), Value::Null, "between 0 and 1"),
        (CHAT, json!({"n": 0}), 400, json!("n"), Value::Null, "between 1"),
        (CHAT, json!({"stop": [""]}), 400, json!("stop"), Value::Null, "empty"),
        (CHAT, json!({"top_logprobs": 2}), 400, json!("top_logprobs"), Value::Null, "logprobs"),
        (CHAT, json!({"logit_bias": {"9999": 1}}), 400, json!("logit_bias"), Value::Null, "512"),
        (CHAT, json!({"max_tokens": 5000}), 400, Value::Null, json!("context_length_exceeded"), "512"),
        (TEXT, json!({"prompt": []}), 400, json!("prompt"), Value::Null, "at least one"),
        (TEXT, json!({"prompt": {"a": 1}}), 400, json!("prompt"), Value::Null, "token ids"),
        (TEXT, json!({"prompt": [1, 99999]}), 400, json!("prompt"), Value::Null, "99999"),
        (TEXT, json!({"suffix": "x"}), 400, json!("suffix"), json!("unsupported_parameter"), "suffix"),
        (TEXT, json!({"best_of": 3}), 400, json!("best_of"), json!("unsupported_parameter"), "best_of"),
    ];
    for (path, more, status, param, code, says) in rows {
        for stream in [false, true] {
            let mut body = if path == CHAT { chat(more.clone()) } else { completion(more.clone()) };
            body["stream"] = json!(stream);
            let reply = server.post(path, &body);
            let error = reply.json()["error"].clone();
            assert_eq!((reply.status, &error["param"], &error["code"]), (status, &param, &code), "{more}: {error}");
            assert!(error["message"].as_str().is_some_and(|m| m.contains(says)), "{more}: {error}");
            assert_eq!(error["type"], "invalid_request_error");
        }
    }
    assert_eq!(server.metric("zinc_steps_total"), 0.0, "nothing of that reached the engine");
}

#[test]
fn an_overflow_says_what_is_needed_and_what_there_is() {
    let server = serve(USUAL);
    let ids: Vec<u32> = (0..600).map(|i| i % 250).collect();
    let reply = server.post("/v1/completions", &completion(json!({"prompt": ids, "max_tokens": 10})));
    let error = reply.json()["error"].clone();
    assert_eq!((reply.status, error["code"].as_str()), (400, Some("context_length_exceeded")));
    let message = error["message"].as_str().expect("a message");
    assert!(["609", "600", "10", "512"].iter().all(|n| message.contains(n)), "{message}");
    // What just fits is taken.
    let ids: Vec<u32> = (0..503).map(|i| i % 250).collect();
    let full =
        server.post("/v1/completions", &completion(json!({"prompt": ids, "max_tokens": 10, "ignore_eos": true})));
    assert_eq!(full.ok()["usage"]["total_tokens"], 513, "the last token needs no place in the context");
}

#[test]
fn models_tokens_and_settings_are_told() {
    let server = serve(USUAL);
    let models = server.get("/v1/models").ok();
    assert_eq!((models["data"][0]["id"].as_str(), models["data"][1]["id"].as_str()), (Some("tiny"), Some("also-tiny")));
    assert_eq!(server.get("/v1/models/also-tiny").ok()["max_model_len"], 512);
    assert_eq!(server.get("/v1/models/other").status, 404);
    let tokens = server.post("/tokenize", &json!({"content": "hé!", "with_pieces": true})).ok()["tokens"].clone();
    let ids: Vec<&Value> = tokens.as_array().expect("tokens").iter().map(|t| &t["id"]).collect();
    assert_eq!(server.post("/detokenize", &json!({"tokens": ids})).ok()["content"], "hé!");
    assert_eq!(server.post("/detokenize", &json!({"tokens": [70000]})).status, 400);
    let props = server.get("/props").ok();
    assert_eq!((&props["total_slots"], &props["default_generation_settings"]["n_ctx"]), (&json!(4), &json!(512)));
    assert_eq!(props["default_generation_settings"]["params"]["temperature"], 0.8);
    assert!(props["chat_template"].as_str().is_some_and(|t| t.contains("<|im_start|>")), "the one in use: {props}");
    assert_eq!(server.get("/slots").ok().as_array().map(Vec::len), Some(4));
    assert_eq!(server.get("/version").ok()["version"], env!("CARGO_PKG_VERSION"));
}
