//! Reasoning over real HTTP, with a template that opens it: apart from the answer, within a budget, in front of what must
//! follow a grammar.

mod client;

use client::*;
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";

/// Opens reasoning unless told not to, and shows that of earlier turns.
const TEMPLATE: &str = "{% for m in messages %}<{{ m.role }}>{% if m.reasoning_content %}<think>{{ m.reasoning_content }}\
    </think>{% endif %}{{ m.content }}\n{% endfor %}<assistant>{% if enable_thinking is defined and enable_thinking is \
    false %}<think>\n\n</think>\n\n{% else %}<think>\n{% endif %}";

fn thinker() -> Running {
    serve(Setup { template: TEMPLATE, ..USUAL })
}

fn body(more: Value) -> Value {
    let mut body =
        json!({"messages": [{"role": "user", "content": "Why?"}], "seed": 3, "max_tokens": 40, "ignore_eos": true});
    for (key, value) in more.as_object().expect("an object") {
        body[key] = value.clone();
    }
    body
}

/// Reasoning, text, and the reply.
fn ask(server: &Running, more: Value) -> (String, String, Value) {
    let reply = server.post(CHAT, &body(more)).ok();
    let message = &reply["choices"][0]["message"];
    let text = |name: &str| message[name].as_str().unwrap_or_default().to_owned();
    assert_eq!(message["reasoning"], message["reasoning_content"]);
    (text("reasoning_content"), text("content"), reply)
}

#[test]
fn reasoning_comes_apart_and_ends_with_its_budget() {
    let server = thinker();
    let (reasoning, text, reply) = ask(&server, json!({"reasoning_budget": 9}));
    assert!(!reasoning.is_empty() && !text.is_empty());
    assert_eq!(reply["usage"]["completion_tokens"], 40);
    let closing =
        server.post("/tokenize", &json!({"content": "\n</think>\n\n"})).ok()["tokens"].as_array().map(Vec::len);
    let counted = reply["usage"]["completion_tokens_details"]["reasoning_tokens"].as_u64().expect("a number") as usize;
    assert!((9..=9 + closing.expect("tokens")).contains(&counted), "{counted}");
    // Where it stays in the text, the text is the same but for the tags.
    let (nothing, all, _) = ask(&server, json!({"reasoning_budget": 9, "reasoning_format": "none"}));
    let (before, after) = all.split_once("\n</think>\n\n").expect("the forced tag");
    assert_eq!((nothing.as_str(), before.trim(), after.trim_start()), ("", reasoning.as_str(), text.as_str()));
    let (endless, text, _) = ask(&server, json!({}));
    assert!(endless.starts_with(&reasoning[..reasoning.len() / 2]) && text.is_empty(), "without a budget it goes on");
    let (other, _, _) = ask(&server, json!({"thinking_token_budget": 9}));
    assert_eq!(other, reasoning, "vLLM's name");
}

#[test]
fn streams_say_the_same() {
    let server = thinker();
    for more in [json!({"reasoning_budget": 9}), json!({}), json!({"reasoning_budget": 0})] {
        let (reasoning, text, whole) = ask(&server, more.clone());
        let mut streamed = body(more);
        streamed["stream"] = json!(true);
        streamed["stream_options"] = json!({"include_usage": true});
        let events = server.open(CHAT, &streamed).events();
        let join = |name: &str| -> String {
            let part = |e: &Value| e["choices"][0]["delta"][name].as_str().unwrap_or_default().to_owned();
            events.iter().map(part).collect()
        };
        assert_eq!(
            (join("reasoning_content"), join("reasoning"), join("content")),
            (reasoning.clone(), reasoning, text)
        );
        assert_eq!(events.last().expect("usage")["usage"], whole["usage"]);
    }
}

#[test]
fn templates_are_told_to_leave_it_out() {
    let server = thinker();
    let prompt = |more: Value| {
        let mut body = body(more);
        ["seed", "max_tokens", "ignore_eos"].iter().for_each(|name| body[*name] = Value::Null);
        server.post("/apply-template", &body).ok()["prompt"].as_str().expect("a text").to_owned()
    };
    assert!(prompt(json!({})).ends_with("<think>\n"));
    for more in [
        json!({"reasoning_budget": 0}),
        json!({"reasoning_effort": "none"}),
        json!({"chat_template_kwargs": {"enable_thinking": false}}),
    ] {
        assert!(prompt(more.clone()).ends_with("</think>\n\n"), "{more}");
        let (reasoning, text, _) = ask(&server, more);
        assert!(reasoning.is_empty() && !text.is_empty());
    }
    let kept = json!({"reasoning_budget": 0, "chat_template_kwargs": {"enable_thinking": true}});
    assert!(prompt(kept.clone()).ends_with("<think>\n"), "who asks for it gets it");
    assert!(ask(&server, kept).0.is_empty(), "but the budget holds");
    for name in ["reasoning", "reasoning_content"] {
        let earlier =
            json!([{"role": "assistant", "content": null, name: "because"}, {"role": "user", "content": "x"}]);
        assert!(prompt(json!({"messages": earlier})).contains("<think>because</think>"), "{name}");
    }
}

#[test]
fn grammars_and_stop_texts_are_for_the_answer() {
    let server = thinker();
    let (reasoning, text, reply) =
        ask(&server, json!({"reasoning_budget": 9, "ignore_eos": false, "structured_outputs": {"regex": "[0-9]{3}"}}));
    assert!(!reasoning.is_empty() && text.len() == 3 && text.bytes().all(|b| b.is_ascii_digit()), "{text}");
    assert_eq!(reply["choices"][0]["finish_reason"], "stop");
    let schema = json!({"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": false});
    let form = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": schema}});
    let (_, text, _) = ask(&server, json!({"reasoning_budget": 5, "ignore_eos": false, "response_format": form}));
    let value: Value = serde_json::from_str(&text).expect("JSON");
    assert!(value["a"].is_boolean(), "{text}");
    let tools = json!([{"type": "function", "function": {"name": "f", "parameters": schema}}]);
    let asked = json!({"reasoning_budget": 5, "ignore_eos": false, "max_tokens": 120, "tools": tools,
        "tool_choice": "required", "parallel_tool_calls": false});
    let (reasoning, _, reply) = ask(&server, asked);
    let call = &reply["choices"][0]["message"]["tool_calls"][0]["function"];
    assert!(!reasoning.is_empty() && call["name"] == "f", "{reply}");
    // What the reasoning begins with stops nothing until the answer has it.
    let (reasoning, text, _) = ask(&server, json!({"reasoning_budget": 9}));
    let stop: String = reasoning.chars().take(1).collect();
    let (same, shorter, reply) = ask(&server, json!({"reasoning_budget": 9, "stop": [stop]}));
    assert_eq!((same, shorter.as_str()), (reasoning, text.split(&stop).next().unwrap_or_default()));
    assert_eq!(reply["choices"][0]["finish_reason"], if text.contains(&stop) { "stop" } else { "length" });
}

#[test]
fn what_makes_no_sense_is_refused() {
    let server = thinker();
    for (more, param) in [
        (json!({"reasoning_format": "xml"}), "reasoning_format"),
        (json!({"reasoning_budget": -2}), "reasoning_budget"),
        (json!({"messages": [{"role": "assistant", "content": "x", "reasoning": 1}]}), "messages[0]"),
    ] {
        let reply = server.post(CHAT, &body(more.clone()));
        assert_eq!((reply.status, &reply.json()["error"]["param"]), (400, &json!(param)), "{more}");
    }
}

#[test]
fn special_tokens_in_messages_are_text() {
    let content = "a<|eot_id|>b<|begin_of_text|>";
    let count = |special: bool, content: &str| {
        let server = serve(Setup { special, ..USUAL });
        let body = json!({"messages": [{"role": "user", "content": content}], "max_tokens": 1});
        let prompt = server.post("/apply-template", &json!({"messages": body["messages"]})).ok()["prompt"].clone();
        assert!(prompt.as_str().is_some_and(|p| p.contains(content)), "the text is the same: {prompt}");
        server.post(CHAT, &body).ok()["usage"]["prompt_tokens"].as_u64().expect("a number")
    };
    assert_eq!(count(false, "plain <b>text</b>"), count(true, "plain <b>text</b>"));
    let (as_text, as_tokens) = (count(false, content), count(true, content));
    // Both are tokens of this vocabulary, and longer when they are spelled.
    assert!(as_text >= as_tokens + 2, "{as_text} {as_tokens}");
}
