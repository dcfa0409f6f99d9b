//! Calls of models whose template knows no tools: they are told to write them as Hermes does, and earlier calls and
//! results become plain text.

use super::{Family, hermes};
use serde_json::{Value, json};

pub(super) static FAMILY: Family = Family {
    marks: &[],
    foreign: &[],
    tags: hermes::TAGS,
    between: "\n",
    native: false,
    parse: hermes::parse,
    in_argument: hermes::ends_in_string,
    rule: hermes::rule,
};

/// Tells a model of tools in a system message.
pub(super) fn tell(tools: &[Value], messages: &mut Vec<Value>) {
    let tools: Vec<String> = tools.iter().map(|tool| tool["function"].to_string()).collect();
    let text = format!(
        "You can call functions. These are described here, one a line:\n{}\nTo call one, write exactly this, with its \
         name and with arguments that fit its parameters:\n<tool_call>\n{{\"name\": \"NAME\", \"arguments\": {{}}}}\n\
         </tool_call>\nYou will be given its result. Where no function helps, just answer.",
        tools.join("\n")
    );
    match messages.first_mut().filter(|m| m["role"] == "system") {
        Some(system) => {
            system["content"] = format!("{}\n\n{text}", system["content"].as_str().unwrap_or_default()).into()
        }
        None => messages.insert(0, json!({"role": "system", "content": text})),
    }
}

/// Calls and results as plain text, for templates that know roles and contents only.
pub(super) fn spell_out(message: &mut Value) {
    let content = message["content"].as_str().unwrap_or_default().to_owned();
    if message["role"] == "tool" {
        *message = json!({"role": "user", "content": format!("<tool_response>\n{content}\n</tool_response>")});
        return;
    }
    let Some(Value::Array(calls)) = message.get("tool_calls").cloned() else { return };
    let call = |call: Value| {
        let call = json!({"name": call["function"]["name"], "arguments": call["function"]["arguments"]});
        format!("<tool_call>\n{call}\n</tool_call>")
    };
    let mut parts: Vec<String> = calls.into_iter().map(call).collect();
    if !content.is_empty() {
        parts.insert(0, content);
    }
    *message = json!({"role": "assistant", "content": parts.join("\n")});
}

#[cfg(test)]
mod tests {
    use super::super::history;
    use super::*;

    #[test]
    fn without_help_of_the_template_calls_and_results_are_spelled_out() {
        let mut messages = vec![
            json!({"role": "user", "content": "x"}),
            json!({"role": "assistant", "content": null, "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"a\": 1}"}}]}),
            json!({"role": "tool", "tool_call_id": "1", "content": "42"}),
        ];
        let mut native = messages.clone();
        history(&hermes::FAMILY, &mut native);
        assert_eq!(native[1]["tool_calls"][0]["function"]["arguments"], json!({"a": 1}));
        history(&FAMILY, &mut messages);
        assert_eq!(messages[1]["content"], "<tool_call>\n{\"name\":\"f\",\"arguments\":{\"a\":1}}\n</tool_call>");
        assert_eq!(messages[2], json!({"role": "user", "content": "<tool_response>\n42\n</tool_response>"}));
    }
}
