//! Finds calls in an answer as it comes.
//!
//! ```text
//! text ─held while it may be a call─► text | call (a family's `parse` reads what is between its tags)
//! ```

use super::{Call, Family};
use crate::reasoning::overlap;
use serde_json::Value;
use std::sync::Arc;

/// A piece of an answer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Piece {
    Text(String),
    Call(Call),
}

/// Finds calls in a text that comes in pieces. What looks like a call and is none stays text.
#[derive(Clone, Debug)]
pub(crate) struct CallReader {
    family: &'static Family,
    /// Tools that can be called: each the object `function`.
    tools: Arc<[Value]>,
    /// May be the beginning of a call, or is inside of one.
    held: String,
    /// No tag begins before this byte of `held`.
    searched: usize,
    inside: bool,
    calls: usize,
    /// Nothing counts behind the first call.
    single: bool,
}

impl CallReader {
    /// `single`: nothing counts behind the first call.
    pub(super) fn new(family: &'static Family, tools: Arc<[Value]>, single: bool) -> CallReader {
        CallReader { family, tools, held: String::new(), searched: 0, inside: false, calls: 0, single }
    }

    /// Calls so far.
    pub(crate) fn calls(&self) -> usize {
        self.calls
    }

    /// Has all come that counts?
    fn is_over(&self) -> bool {
        self.single && self.calls > 0
    }

    /// Takes the next part of the text.
    pub(crate) fn push(&mut self, text: &str) -> Vec<Piece> {
        let mut pieces = vec![];
        if self.is_over() {
            return pieces;
        }
        self.held.push_str(text);
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
            if self.inside && (self.family.in_argument)(&self.held[..at]) {
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
            if self.is_over() {
                self.held.clear();
                return pieces;
            }
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
                let most = if self.single { 1 } else { usize::MAX };
                let values = serde_json::Deserializer::from_str(&held).into_iter::<Value>().take(most);
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
        let call = (self.family.parse)(text, &self.tools)?;
        self.calls += 1;
        Some(Piece::Call(call))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(family: &'static Family, text: &str, cut: usize) -> (String, Vec<(String, String)>) {
        read_some(family, text, cut, false)
    }

    fn read_some(family: &'static Family, text: &str, cut: usize, single: bool) -> (String, Vec<(String, String)>) {
        let mut reader = CallReader::new(family, ["f", "g"].map(|name| json!({"name": name})).to_vec().into(), single);
        let letters: Vec<char> = text.chars().collect();
        let mut pieces: Vec<Piece> =
            letters.chunks(cut).flat_map(|part| reader.push(&part.iter().collect::<String>())).collect();
        pieces.extend(reader.finish());
        let (mut text, mut calls) = (String::new(), vec![]);
        for piece in pieces {
            match piece {
                Piece::Text(piece) => text.push_str(&piece),
                Piece::Call(Call { name, arguments }) => calls.push((name, arguments)),
            }
        }
        assert_eq!(reader.calls(), calls.len());
        (text, calls)
    }

    fn call(name: &str, arguments: &str) -> (String, String) {
        (name.to_owned(), arguments.to_owned())
    }

    #[test]
    fn where_one_call_is_allowed_nothing_counts_behind_the_first() {
        let hermes = Family::of("{% if tools %}<tool_call>");
        let call_of = |name: &str| format!("<tool_call>{{\"name\": \"{name}\", \"arguments\": {{}}}}</tool_call>");
        let text = format!("So:\n{}\n{} and more", call_of("f"), call_of("g"));
        let llama = Family::of("{% if tools %}<|start_header_id|>");
        let row = "{\"name\": \"f\", \"parameters\": {}} {\"name\": \"g\", \"parameters\": {}}";
        for cut in 1..90 {
            assert_eq!(read_some(hermes, &text, cut, true), ("So:".into(), vec![call("f", "{}")]));
            assert_eq!(read_some(llama, row, cut, true), (String::new(), vec![call("f", "{}")]));
            assert_eq!(read(llama, row, cut).1.len(), 2);
        }
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
            let coder = Family::of("tools <function= <parameter=");
            let xml = "So:\n\n<tool_call>\n<function=f>\n<parameter=a>\nx </tool_call> y\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=g>\n</function>\n</tool_call>";
            let expected = vec![call("f", "{\"a\":\"x </tool_call> y\"}"), call("g", "{}")];
            assert_eq!(read(coder, xml, cut), ("So:".into(), expected));
            let gemma = Family::of("tools <|tool_call>call:");
            let text =
                "Hm.<|tool_call>call:f{a:<|\"|>x<tool_call|><|\"|>}<tool_call|><|tool_call>call:g{n:1}<tool_call|>";
            let expected = vec![call("f", "{\"a\":\"x<tool_call|>\"}"), call("g", "{\"n\":1}")];
            assert_eq!(read(gemma, text, cut), ("Hm.".into(), expected));
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
}
