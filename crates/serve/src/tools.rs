//! Tools that a model may call: what it is told of them, how it writes a call, and what makes it write one.
//!
//! ```text
//! tools, tool_choice ─► Tools ─► messages and template variables, Grammar (if a call is demanded)
//! text of the answer ─CallReader─► text | call
//! ```
//!
//! How a call is written is a matter of what the model was trained on, and its chat template shows that: a row of
//! [`FAMILIES`] each. Models whose template knows no tools are told how in a system message.

use crate::error::ApiError;
use crate::grammar::Grammar;
use serde_json::{Map, Value, json};
use std::collections::HashSet;
use std::sync::Arc;

/// How a family of models writes calls.
#[derive(Debug, PartialEq)]
pub(crate) struct Family {
    /// A template that has all of these texts belongs to the family …
    marks: &'static [&'static str],
    /// … unless it has one of these.
    foreign: &'static [&'static str],
    /// Around each call; empty: a call is the whole answer.
    tags: Option<[&'static str; 2]>,
    /// The member that holds the arguments.
    arguments: &'static str,
    /// The template itself tells the model of tools.
    native: bool,
}

const TAGS: Option<[&str; 2]> = Some(["<tool_call>", "</tool_call>"]);

/// The first that fits counts; the last one fits all.
const FAMILIES: [Family; 3] = [
    // Hermes, Qwen2.5, Qwen3.
    Family {
        marks: &["tools", "<tool_call>"],
        foreign: &["<function="],
        tags: TAGS,
        arguments: "arguments",
        native: true,
    },
    // Llama 3.1 to 3.3.
    Family {
        marks: &["tools", "<|start_header_id|>"],
        foreign: &[],
        tags: None,
        arguments: "parameters",
        native: true,
    },
    Family { marks: &[], foreign: &[], tags: TAGS, arguments: "arguments", native: false },
];

impl Family {
    /// The family of a chat template.
    pub(crate) fn of(template: &str) -> &'static Family {
        let fits = |f: &&Family| {
            f.marks.iter().all(|mark| template.contains(mark)) && !f.foreign.iter().any(|mark| template.contains(mark))
        };
        FAMILIES.iter().find(fits).unwrap_or(&FAMILIES[FAMILIES.len() - 1])
    }
}

/// Must there be a call?
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Choice {
    /// As the model likes.
    Auto,
    /// One of any.
    Required,
    /// Of this one.
    Named(String),
}

/// The tools of a request.
#[derive(Clone, Debug)]
pub(crate) struct Tools {
    family: &'static Family,
    /// As the client described them.
    list: Vec<Value>,
    choice: Choice,
    /// There may be more than one call.
    parallel: bool,
}

/// Most tools of a request.
const TOOLS: usize = 512;

/// Most calls of an answer that must have one.
const CALLS: usize = 8;

impl Tools {
    /// Reads `tools`, `tool_choice` and `parallel_tool_calls`; `None` if there are none, or they must not be called.
    pub(crate) fn read(
        family: &'static Family,
        list: Vec<Value>,
        choice: Option<Value>,
        parallel: bool,
    ) -> Result<Option<Tools>, ApiError> {
        let wrong = |message: String| ApiError::parameter("tools", message);
        if list.len() > TOOLS {
            return Err(wrong(format!("`tools` may have {TOOLS} tools at most")));
        }
        let mut names: HashSet<&str> = HashSet::new();
        for (i, tool) in list.iter().enumerate() {
            let name = tool["function"]["name"].as_str().filter(|_| tool["type"] == "function");
            let good = |n: &&str| {
                (1..=64).contains(&n.len()) && n.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-.".contains(&b))
            };
            let name = name.filter(good).ok_or_else(|| {
                wrong(format!("tools[{i}] must be of type `function` and have a `function` with a `name` of up to 64 letters, digits, `_`, `-` or `.`"))
            })?;
            if !matches!(tool["function"].get("parameters"), None | Some(Value::Null | Value::Object(_))) {
                return Err(wrong(format!("tools[{i}]: `parameters` must be a JSON schema")));
            }
            if !names.insert(name) {
                return Err(wrong(format!("two tools are called `{name}`")));
            }
        }
        let choice = match choice {
            None => Choice::Auto,
            Some(Value::String(word)) => match word.as_str() {
                "none" => return Ok(None),
                "auto" => Choice::Auto,
                "required" => Choice::Required,
                _ => return Err(ApiError::parameter("tool_choice", format!("`tool_choice` may not be `{word}`"))),
            },
            Some(object) => match object["function"]["name"].as_str() {
                Some(name) if names.contains(name) => Choice::Named(name.to_owned()),
                _ => return Err(ApiError::parameter("tool_choice", "`tool_choice` must name one of the tools")),
            },
        };
        match list.is_empty() {
            true if choice == Choice::Auto => Ok(None),
            true => Err(ApiError::parameter("tool_choice", "`tool_choice` demands a call, but there are no tools")),
            false => Ok(Some(Tools { family, list, choice, parallel })),
        }
    }

    /// What the template is to be told of the tools.
    pub(crate) fn for_template(&self) -> Option<Value> {
        self.family.native.then(|| self.list.clone().into())
    }

    /// A reader of answers.
    pub(crate) fn reader(&self) -> CallReader {
        let names = self.list.iter().filter_map(|tool| tool["function"]["name"].as_str()).map(str::to_owned).collect();
        CallReader { family: self.family, names, held: String::new(), searched: 0, inside: false, calls: 0 }
    }

    /// What the answer must be, if there must be a call.
    pub(crate) fn grammar(&self) -> Option<Grammar> {
        let wanted = |tool: &&Value| match &self.choice {
            Choice::Auto => false,
            Choice::Required => true,
            Choice::Named(name) => tool["function"]["name"] == name.as_str(),
        };
        let tools: Vec<&Value> = self.list.iter().filter(wanted).collect();
        if tools.is_empty() {
            return None;
        }
        let literal = |text: &str| Value::from(text).to_string();
        let [open, close] =
            self.family.tags.map_or([String::new(), String::new()], |[a, b]| [format!("{a}\n"), format!("\n{b}")]);
        let mut lark = match (self.family.tags, self.parallel) {
            (Some(_), true) => format!("start: call (\"\\n\" call){{0,{}}}\n", CALLS - 1),
            _ => "start: call\n".to_owned(),
        };
        let rules: Vec<String> = (0..tools.len()).map(|i| format!("call_{i}")).collect();
        lark.push_str(&format!("call: {}\n", rules.join(" | ")));
        for (i, tool) in tools.iter().enumerate() {
            let (name, arguments) = (&tool["function"]["name"], self.family.arguments);
            let begin = literal(&format!("{open}{{\"name\": {name}, \"{arguments}\": "));
            let end = literal(&format!("}}{close}"));
            // A schema of its own, so that what it refers to is found at its root.
            let schema = match &tool["function"]["parameters"] {
                Value::Null => json!({"type": "object", "properties": {}, "additionalProperties": false}),
                schema => schema.clone(),
            };
            let schema = crate::grammar::compact(schema);
            lark.push_str(&format!("call_{i}: {begin} arguments_{i} {end}\narguments_{i}: %json {schema}\n"));
        }
        Some(Grammar::Lark(lark))
    }

    /// Tells a model whose template knows no tools of them, in a system message.
    pub(crate) fn tell(&self, messages: &mut Vec<Value>) {
        if self.family.native {
            return;
        }
        let tools: Vec<String> = self.list.iter().map(|tool| tool["function"].to_string()).collect();
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
}

/// Puts earlier calls and their results into the form that the family's templates read.
pub(crate) fn history(family: &Family, messages: &mut [Value]) {
    for message in messages {
        for call in message.get_mut("tool_calls").and_then(Value::as_array_mut).into_iter().flatten() {
            // Clients send a text that is JSON, templates expect the value.
            let arguments = call["function"]["arguments"].as_str().and_then(|text| serde_json::from_str(text).ok());
            if let Some(arguments @ Value::Object(_)) = arguments {
                call["function"]["arguments"] = arguments;
            }
        }
        if !family.native {
            spell_out(message);
        }
    }
}

/// Calls and results as plain text, for templates that know roles and contents only.
fn spell_out(message: &mut Value) {
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

/// A piece of an answer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Piece {
    Text(String),
    /// A call; the arguments are JSON.
    Call {
        name: String,
        arguments: String,
    },
}

/// Finds calls in a text that comes in pieces. What looks like a call and is none stays text.
#[derive(Clone, Debug)]
pub(crate) struct CallReader {
    family: &'static Family,
    /// Tools that can be called.
    names: Arc<[String]>,
    /// May be the beginning of a call, or is inside of one.
    held: String,
    /// No tag begins before this byte of `held`.
    searched: usize,
    inside: bool,
    calls: usize,
}

impl CallReader {
    /// Calls so far.
    pub(crate) fn calls(&self) -> usize {
        self.calls
    }

    /// Takes the next part of the text.
    pub(crate) fn push(&mut self, text: &str) -> Vec<Piece> {
        self.held.push_str(text);
        let mut pieces = vec![];
        let Some([open, close]) = self.family.tags else {
            // A call is the whole answer, and begins with a brace.
            let start = self.held.trim_start();
            if !start.is_empty() && !start.starts_with('{') || self.inside {
                self.inside = true; // From here on it is text.
                pieces.push(Piece::Text(std::mem::take(&mut self.held)));
            }
            return pieces;
        };
        loop {
            let tag = if self.inside { close } else { open };
            let Some(at) = self.held[self.searched..].find(tag).map(|at| at + self.searched) else { break };
            if self.inside && ends_in_string(&self.held[..at]) {
                // An argument that speaks of tags.
                self.searched = at + tag.len();
                continue;
            }
            self.searched = 0;
            let rest = self.held.split_off(at + tag.len());
            let before = std::mem::replace(&mut self.held, rest);
            let before = &before[..at];
            if !self.inside {
                self.text(before.trim_end(), &mut pieces);
            } else if let Some(call) = self.call(before) {
                pieces.push(call);
            } else {
                pieces.push(Piece::Text(format!("{open}{before}{close}")));
            }
            self.inside = !self.inside;
        }
        if !self.inside {
            // White space before a call is no part of an answer, so it waits too.
            let certain = self.held.len() - overlap(&self.held, open);
            let certain = self.held[..certain].trim_end().len();
            let rest = self.held.split_off(certain);
            let text = std::mem::replace(&mut self.held, rest);
            self.text(&text, &mut pieces);
        }
        pieces
    }

    /// Takes the end of the text.
    pub(crate) fn finish(&mut self) -> Vec<Piece> {
        let held = std::mem::take(&mut self.held);
        match self.family.tags {
            Some([open, _]) if self.inside => vec![Piece::Text(format!("{open}{held}"))],
            Some(_) if self.calls > 0 && held.trim().is_empty() => vec![],
            None if !self.inside => {
                let values = serde_json::Deserializer::from_str(&held).into_iter::<Value>();
                let texts: Option<Vec<String>> = values.map(|v| v.ok().map(|v| v.to_string())).collect();
                let calls: Option<Vec<Piece>> =
                    texts.filter(|t| !t.is_empty()).and_then(|all| all.iter().map(|text| self.call(text)).collect());
                calls.unwrap_or_else(|| {
                    self.calls = 0;
                    vec![Piece::Text(held)]
                })
            }
            _ if held.is_empty() => vec![],
            _ => vec![Piece::Text(held)],
        }
    }

    fn text(&self, text: &str, pieces: &mut Vec<Piece>) {
        let text = if self.calls > 0 { text.trim_start() } else { text };
        if !text.is_empty() {
            pieces.push(Piece::Text(text.to_owned()));
        }
    }

    fn call(&mut self, text: &str) -> Option<Piece> {
        let mut call: Map<String, Value> = serde_json::from_str(text.trim()).ok()?;
        let name = call.get("name")?.as_str()?.to_owned();
        // Any JSON may have a name; a call is of a tool that there is, and has arguments.
        if !self.names.contains(&name) {
            return None;
        }
        let arguments = ["arguments", "parameters"].iter().find_map(|key| call.remove(*key))?;
        self.calls += 1;
        // Some models write the arguments as a text that is JSON.
        let arguments = arguments.as_str().map(str::to_owned).unwrap_or_else(|| arguments.to_string());
        Some(Piece::Call { name, arguments })
    }
}

/// Does the beginning of a JSON text end inside of a string?
fn ends_in_string(json: &str) -> bool {
    let (mut inside, mut escaped) = (false, false);
    for byte in json.bytes() {
        inside ^= byte == b'"' && !escaped;
        escaped = inside && byte == b'\\' && !escaped;
    }
    inside
}

/// Bytes at the end of a text that a tag may begin with.
fn overlap(text: &str, tag: &str) -> usize {
    (1..tag.len().min(text.len() + 1)).rev().find(|n| text.as_bytes().ends_with(&tag.as_bytes()[..*n])).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(family: &'static Family, text: &str, cut: usize) -> (String, Vec<(String, String)>) {
        let list = ["f", "g"].map(|name| json!({"function": {"name": name}})).to_vec();
        let tools = Tools { family, list, choice: Choice::Auto, parallel: true };
        let mut reader = tools.reader();
        let letters: Vec<char> = text.chars().collect();
        let mut pieces: Vec<Piece> =
            letters.chunks(cut).flat_map(|part| reader.push(&part.iter().collect::<String>())).collect();
        pieces.extend(reader.finish());
        let (mut text, mut calls) = (String::new(), vec![]);
        for piece in pieces {
            match piece {
                Piece::Text(piece) => text.push_str(&piece),
                Piece::Call { name, arguments } => calls.push((name, arguments)),
            }
        }
        assert_eq!(reader.calls(), calls.len());
        (text, calls)
    }

    fn call(name: &str, arguments: &str) -> (String, String) {
        (name.to_owned(), arguments.to_owned())
    }

    #[test]
    fn calls_are_found_however_the_text_is_cut() {
        let hermes = Family::of("{% if tools %}<tool_call>");
        let one = "I look.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"ü<\"}}\n</tool_call>\n";
        let two = format!("{one}<tool_call>{{\"name\": \"g\", \"arguments\": {{}}}}</tool_call>");
        let llama = Family::of("{% if tools %}<|start_header_id|>");
        for cut in 1..90 {
            assert_eq!(read(hermes, one, cut), ("I look.".into(), vec![call("f", "{\"a\":\"ü<\"}")]));
            assert_eq!(read(hermes, &two, cut).1, [call("f", "{\"a\":\"ü<\"}"), call("g", "{}")]);
            for plain in ["a < b <tool", "no call \n at all \n", "<tool_call>{broken</tool_call>", "x <tool_call>\n{"] {
                assert_eq!(read(hermes, plain, cut).1, []);
                let same = read(hermes, plain, cut).0;
                assert_eq!(same.replace(' ', ""), plain.replace(' ', ""), "what is no call stays");
            }
            let tag = "{\"a\":\"\\\\\\\"</tool_call>\"}";
            let inner = format!("<tool_call>{{\"name\": \"f\", \"arguments\": {tag}}}</tool_call>");
            assert_eq!(read(hermes, &inner, cut), (String::new(), vec![call("f", tag)]), "a tag inside of a string");
            let text = "{\"name\": \"f\", \"parameters\": {\"n\": 1}}";
            assert_eq!(read(llama, text, cut), (String::new(), vec![call("f", "{\"n\":1}")]));
            for plain in [
                "The answer is {}.",
                "{\"no\": \"call\"}",
                "{1",
                "{\"name\": \"f\"}",
                "{\"name\": \"x\", \"arguments\": {}}",
            ] {
                assert_eq!(read(llama, plain, cut), (plain.into(), vec![]));
            }
        }
    }

    #[test]
    fn a_template_tells_its_family() {
        assert!(!Family::of("{{ messages }}").native);
        assert!(!Family::of("tools <tool_call> <function=").native, "calls in XML are another matter");
        assert_eq!(Family::of("tools <|start_header_id|>").tags, None);
    }

    #[test]
    fn tools_that_make_no_sense_are_refused() {
        let tool = |name: &str| json!({"type": "function", "function": {"name": name}});
        let read = |list: Vec<Value>, choice| Tools::read(&FAMILIES[2], list, choice, true);
        assert!(read(vec![tool("a b")], None).is_err() && read(vec![json!({"type": "x"})], None).is_err());
        assert!(read(vec![tool("a"), tool("a")], None).is_err());
        assert!(read((0..=TOOLS).map(|i| tool(&format!("t{i}"))).collect(), None).is_err());
        assert!(read(vec![], Some(json!("required"))).is_err());
        assert!(read(vec![tool("a")], Some(json!({"type": "function", "function": {"name": "b"}}))).is_err());
        assert!(read(vec![tool("a")], Some(json!("none"))).is_ok_and(|t| t.is_none()));
        assert!(read(vec![], None).is_ok_and(|t| t.is_none()));
        let tools = read(vec![tool("a"), tool("b")], Some(json!("required"))).ok().flatten().expect("tools");
        assert!(tools.grammar().is_some());
    }

    #[test]
    fn without_help_of_the_template_calls_and_results_are_spelled_out() {
        let mut messages = vec![
            json!({"role": "user", "content": "x"}),
            json!({"role": "assistant", "content": null, "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"a\": 1}"}}]}),
            json!({"role": "tool", "tool_call_id": "1", "content": "42"}),
        ];
        let mut native = messages.clone();
        history(&FAMILIES[0], &mut native);
        assert_eq!(native[1]["tool_calls"][0]["function"]["arguments"], json!({"a": 1}));
        history(&FAMILIES[2], &mut messages);
        assert_eq!(messages[1]["content"], "<tool_call>\n{\"name\":\"f\",\"arguments\":{\"a\":1}}\n</tool_call>");
        assert_eq!(messages[2], json!({"role": "user", "content": "<tool_response>\n42\n</tool_response>"}));
    }
}
