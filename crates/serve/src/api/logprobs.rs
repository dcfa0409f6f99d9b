//! Log-probabilities as OpenAI writes them: one shape for chats, another for completions.

use crate::model::Model;
use crate::score::Scored;
use serde_json::{Map, Value, json};

/// A chat's: a list of tokens, each with the likeliest at its place.
pub(super) fn chat(model: &Model, scores: &[Scored]) -> Value {
    let entry = |token: u32, logprob: f32| {
        let bytes = model.tokenizer.token_bytes(token, true).unwrap_or_default();
        json!({"token": model.spell(token), "logprob": logprob, "bytes": bytes.as_ref()})
    };
    let content: Vec<Value> = scores
        .iter()
        .map(|s| {
            let mut row = entry(s.token, s.logprob);
            row["top_logprobs"] = s.top.iter().map(|(token, logprob)| entry(*token, *logprob)).collect();
            row
        })
        .collect();
    json!({"content": content, "refusal": null})
}

/// A completion's: four lists; the place of each token in the text is counted in characters.
#[derive(Clone, Debug, Default)]
pub(super) struct Lists {
    tokens: Vec<Value>,
    logprobs: Vec<Value>,
    top: Vec<Value>,
    offsets: Vec<Value>,
}

impl Lists {
    /// Adds the first token of a prompt, which nothing comes before.
    pub(super) fn first(&mut self, model: &Model, token: u32, offset: &mut usize) {
        self.add(model, token, offset, Value::Null, Value::Null);
    }

    /// Adds a token.
    pub(super) fn push(&mut self, model: &Model, scored: &Scored, offset: &mut usize) {
        let mut top: Map<String, Value> = scored.top.iter().map(|(t, p)| (model.spell(*t), json!(p))).collect();
        // The chosen one is there even if it is none of the likeliest.
        top.entry(model.spell(scored.token)).or_insert(json!(scored.logprob));
        self.add(model, scored.token, offset, json!(scored.logprob), top.into());
    }

    fn add(&mut self, model: &Model, token: u32, offset: &mut usize, logprob: Value, top: Value) {
        let text = model.spell(token);
        self.offsets.push(json!(*offset));
        *offset += text.chars().count();
        self.tokens.push(text.into());
        self.logprobs.push(logprob);
        self.top.push(top);
    }

    /// Adds those of a later piece.
    pub(super) fn append(&mut self, mut other: Lists) {
        self.tokens.append(&mut other.tokens);
        self.logprobs.append(&mut other.logprobs);
        self.top.append(&mut other.top);
        self.offsets.append(&mut other.offsets);
    }

    pub(super) fn json(self) -> Value {
        json!({
            "tokens": self.tokens,
            "token_logprobs": self.logprobs,
            "top_logprobs": self.top,
            "text_offset": self.offsets,
        })
    }
}
