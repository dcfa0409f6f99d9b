//! Prompts as completions and embeddings take them: a text, token ids, or a list of either.

use crate::error::ApiError;
use crate::fields::Fields;
use crate::model::Model;
use serde_json::Value;
use std::sync::Arc;

/// A prompt: text, or token ids.
pub(super) enum Prompt {
    Text(String),
    Tokens(Vec<u32>),
}

/// The parameter `name`, with `most` prompts at most.
pub(super) fn read(fields: &mut Fields, name: &str, most: usize) -> Result<Vec<Prompt>, ApiError> {
    let wrong =
        || ApiError::parameter(name, format!("`{name}` must be a text, a list of token ids, or a list of either"));
    let ids = |list: &[Value]| {
        let ids = list.iter().map(|v| v.as_u64().and_then(|id| u32::try_from(id).ok()));
        ids.collect::<Option<Vec<u32>>>().map(Prompt::Tokens)
    };
    let prompts = match fields.need::<Value>(name)? {
        Value::String(text) => vec![Prompt::Text(text)],
        Value::Array(list) if list.first().is_some_and(Value::is_number) => vec![ids(&list).ok_or_else(wrong)?],
        Value::Array(list) => {
            let one = |value: Value| match value {
                Value::String(text) => Some(Prompt::Text(text)),
                Value::Array(list) => ids(&list),
                _ => None,
            };
            list.into_iter().map(one).collect::<Option<Vec<Prompt>>>().ok_or_else(wrong)?
        }
        _ => return Err(wrong()),
    };
    match prompts.len() {
        0 => Err(ApiError::parameter(name, format!("`{name}` must have at least one prompt"))),
        n if n > most => Err(ApiError::parameter(name, format!("`{name}` may have {most} prompts at most"))),
        _ => Ok(prompts),
    }
}

impl Prompt {
    /// Token ids and text of a prompt that came as the parameter `name`; with `special`, special tokens may be written
    /// out in a text.
    pub(super) fn encode(self, model: &Model, name: &str, special: bool) -> Result<(Arc<[u32]>, String), ApiError> {
        let wrong = |error: zinc_text::TokenizerError| ApiError::parameter(name, error.to_string());
        let (ids, text) = match self {
            Prompt::Text(text) => (model.tokenizer.encode(&text, true, special).map_err(wrong)?, text),
            Prompt::Tokens(ids) => {
                let text = model.tokenizer.decode(&ids, false).map_err(wrong)?;
                (ids, text)
            }
        };
        match ids.is_empty() {
            true => Err(ApiError::parameter(name, "a prompt has no tokens")),
            false => Ok((ids.into(), text)),
        }
    }
}
