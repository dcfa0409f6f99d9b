//! What is asked of a server: random tokens of given lengths, or the rows of a file.
//!
//! ```text
//! Lengths + seed ─random─┐
//! JSONL file ────dataset─┴─► Ask (prompt, tokens to generate) ─Settings─► path and body
//! ```

use crate::failure::usage;
use crate::prompt::read_file;
use anyhow::{Context, Result, anyhow};
use hyper::body::Bytes;
use serde_json::{Map, Value, json};
use std::path::Path;
use zinc_engine::Random;

/// A prompt, as the API takes it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Prompt {
    /// Token ids.
    Tokens(Vec<u32>),
    /// Text to go on from.
    Text(String),
    /// A conversation.
    Messages(Value),
}

/// One request.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Ask {
    pub(crate) prompt: Prompt,
    /// Tokens to generate; `None`: the server's own limit.
    pub(crate) output: Option<u32>,
}

/// What all requests of a run say.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// The model's name on the server.
    pub(crate) model: String,
    pub(crate) temperature: f32,
    /// Answers go on after the model would end them.
    pub(crate) ignore_eos: bool,
}

/// Lengths of random requests: uniform within `ratio` of the middle.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lengths {
    /// Tokens of prompts.
    pub(crate) input: u32,
    /// Tokens of answers.
    pub(crate) output: u32,
    /// 0: all the same; 0.5: from half to one and a half.
    pub(crate) ratio: f64,
}

impl Lengths {
    /// Most tokens that a request and its answer can have.
    pub(crate) fn most(&self) -> u32 {
        let most = |middle: u32| (f64::from(middle) * (1.0 + self.ratio)) as u32;
        most(self.input).saturating_add(most(self.output))
    }

    fn draw(&self, middle: u32, random: &mut Random) -> u32 {
        let (low, high) = (f64::from(middle) * (1.0 - self.ratio), f64::from(middle) * (1.0 + self.ratio));
        let (low, high) = (low.ceil().max(1.0), high.floor().max(1.0));
        (low + random.unit() * (high - low + 1.0)).min(high) as u32
    }
}

/// So many requests of random tokens; ids are below `vocabulary`. Equal seeds give equal requests, and requests of
/// different seeds have lengths of their own only if `lengths_seed` differs, too.
pub(crate) fn random(count: usize, lengths: Lengths, vocabulary: u32, lengths_seed: u64, seed: u64) -> Vec<Ask> {
    let (mut sizes, mut tokens) = (Random::new(lengths_seed), Random::new(!seed));
    let ask = |_| {
        let input = lengths.draw(lengths.input, &mut sizes);
        let output = lengths.draw(lengths.output, &mut sizes);
        let ids = (0..input).map(|_| (tokens.unit() * f64::from(vocabulary)) as u32);
        Ask { prompt: Prompt::Tokens(ids.collect()), output: Some(output) }
    };
    (0..count).map(ask).collect()
}

/// The rows of a file, one JSON object a line: `prompt` (a text or token ids) or `messages`, and `output_tokens` (or
/// `max_tokens`), without which `output` counts.
pub(crate) fn dataset(file: &Path, output: u32) -> Result<Vec<Ask>> {
    let mut asks = vec![];
    for (number, line) in read_file(file)?.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let place = || format!("{}, line {}", file.display(), number + 1);
        let row: Map<String, Value> = serde_json::from_str(line).with_context(place)?;
        asks.push(row_ask(&row, output).with_context(place)?);
    }
    if asks.is_empty() { Err(usage(format!("{} has no requests", file.display()))) } else { Ok(asks) }
}

fn row_ask(row: &Map<String, Value>, output: u32) -> Result<Ask> {
    let id = |value: &Value| value.as_u64().and_then(|n| u32::try_from(n).ok());
    let prompt = match (row.get("prompt"), row.get("messages")) {
        (Some(Value::String(text)), None) => Some(Prompt::Text(text.clone())),
        (Some(Value::Array(list)), None) => list.iter().map(id).collect::<Option<Vec<u32>>>().map(Prompt::Tokens),
        (None, Some(messages @ Value::Array(_))) => Some(Prompt::Messages(messages.clone())),
        _ => None,
    };
    let prompt = prompt.ok_or_else(|| anyhow!("needs either a `prompt` (a text or token ids) or `messages`"))?;
    let limit = match row.get("output_tokens").or(row.get("max_tokens")) {
        None => output,
        Some(value) => {
            let limit = value.as_u64().and_then(|n| u32::try_from(n).ok()).filter(|n| *n > 0);
            limit.ok_or_else(|| anyhow!("`output_tokens` must be a whole number above 0"))?
        }
    };
    Ok(Ask { prompt, output: Some(limit) })
}

impl Ask {
    /// Path and body of the request.
    pub(crate) fn request(&self, settings: &Settings) -> (&'static str, Bytes) {
        let mut body = json!({
            "model": settings.model,
            "temperature": settings.temperature,
            "stream": true,
            "stream_options": {"include_usage": true},
        });
        if let Some(output) = self.output {
            body["max_tokens"] = output.into();
        }
        if settings.ignore_eos {
            body["ignore_eos"] = true.into();
        }
        let path = match &self.prompt {
            Prompt::Messages(messages) => {
                body["messages"] = messages.clone();
                "/v1/chat/completions"
            }
            Prompt::Text(text) => {
                body["prompt"] = text.as_str().into();
                "/v1/completions"
            }
            Prompt::Tokens(ids) => {
                body["prompt"] = ids.as_slice().into();
                "/v1/completions"
            }
        };
        (path, Bytes::from(body.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LENGTHS: Lengths = Lengths { input: 100, output: 10, ratio: 0.2 };

    fn tokens(ask: &Ask) -> &[u32] {
        let Prompt::Tokens(ids) = &ask.prompt else { panic!("tokens") };
        ids
    }

    #[test]
    fn random_requests_have_the_lengths_asked_for_and_repeat() {
        let asks = random(500, LENGTHS, 50, 1, 2);
        let sizes = |pick: &dyn Fn(&Ask) -> usize| {
            let all: Vec<usize> = asks.iter().map(pick).collect();
            (*all.iter().min().expect("some"), *all.iter().max().expect("some"))
        };
        assert_eq!(sizes(&|ask| tokens(ask).len()), (80, 120));
        assert_eq!(sizes(&|ask| ask.output.expect("a limit") as usize), (8, 12));
        assert!(asks.iter().all(|ask| tokens(ask).iter().all(|id| *id < 50)));
        assert_eq!(LENGTHS.most(), 132);
        assert_eq!(asks, random(500, LENGTHS, 50, 1, 2));
        let others = random(500, LENGTHS, 50, 1, 3);
        assert!(asks.iter().zip(&others).all(|(a, b)| tokens(a).len() == tokens(b).len() && a.output == b.output));
        assert_ne!(asks, others);
        let even = Lengths { ratio: 0.0, ..LENGTHS };
        assert!(random(9, even, 50, 1, 2).iter().all(|ask| tokens(ask).len() == 100 && ask.output == Some(10)));
    }

    #[test]
    fn rows_of_a_file_are_read_or_refused() {
        let row = |text: &str| row_ask(&serde_json::from_str(text).expect("an object"), 7);
        let text = row(r#"{"prompt": "x", "output_tokens": 3}"#).expect("a text");
        assert_eq!(text, Ask { prompt: Prompt::Text("x".into()), output: Some(3) });
        assert_eq!(row(r#"{"prompt": [1, 2]}"#).expect("ids").prompt, Prompt::Tokens(vec![1, 2]));
        assert_eq!(row(r#"{"messages": []}"#).expect("a chat").output, Some(7));
        for bad in [r#"{}"#, r#"{"prompt": 1}"#, r#"{"prompt": ["x"]}"#, r#"{"prompt": "x", "output_tokens": 0}"#] {
            assert!(row(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn bodies_are_what_the_api_takes() {
        let settings = Settings { model: "m".into(), temperature: 0.0, ignore_eos: true };
        let (path, body) = Ask { prompt: Prompt::Tokens(vec![5, 6]), output: Some(2) }.request(&settings);
        let body: Value = serde_json::from_slice(&body).expect("JSON");
        assert_eq!(path, "/v1/completions");
        assert_eq!(
            body,
            json!({"model": "m", "temperature": 0.0, "stream": true, "stream_options": {"include_usage": true},
                   "max_tokens": 2, "ignore_eos": true, "prompt": [5, 6]})
        );
        let chat = Ask { prompt: Prompt::Messages(json!([])), output: None };
        let (path, body) = chat.request(&Settings { ignore_eos: false, ..settings });
        let body: Value = serde_json::from_slice(&body).expect("JSON");
        assert_eq!(path, "/v1/chat/completions");
        assert!(body.get("max_tokens").is_none() && body.get("ignore_eos").is_none() && body["messages"] == json!([]));
    }
}
