//! The model as handlers need it: names, tokenizer, chat template, sizes. The engine itself is elsewhere.

use crate::error::ApiError;
use crate::grammar::Grammars;
use crate::pooling::Pooling;
use crate::reasoning::Tags;
use crate::recovery::Revival;
use crate::runner::Power;
use crate::tools::Family;
use serde_json::{Map, Value};
use std::collections::HashSet;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use zinc_engine::{Engine, Sampling};
use zinc_text::{ChatTemplate, CivilTime, TemplateInput, Tokenizer};

/// A loaded model, as whoever loads it hands it over.
pub struct Loaded {
    /// Runs it.
    pub engine: Engine,
    /// Its tokenizer.
    pub tokenizer: Tokenizer,
    /// How a conversation becomes a prompt; without it, there are no chats.
    pub template: Option<ChatTemplate>,
    /// Names that requests may use; the first one is shown. At least one.
    pub names: Vec<String>,
    /// Tokens that the model was trained for.
    pub trained_context: u32,
    /// Sampling where a request says nothing.
    pub sampling: Sampling,
    /// Most sequences at the same time.
    pub parallel: u32,
    /// What brings the device back when it is lost; without it, the server's answers end then.
    pub revival: Option<Revival>,
    /// Tells the device's power, if it is known.
    pub power: Option<Power>,
    /// How embeddings are made; `None`: there are none.
    pub pooling: Option<Pooling>,
    /// Reasoning of models that write it.
    pub reasoning: Reasoning,
    /// May what clients send as messages spell special tokens?
    pub special_in_content: bool,
}

/// How reasoning is treated where a request does not say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reasoning {
    /// It comes apart from the answer, as `reasoning_content`; otherwise it stays in the text, tags and all.
    pub apart: bool,
    /// Most tokens of it; 0: none, and templates that can are told so.
    pub budget: Option<u32>,
}

impl Default for Reasoning {
    fn default() -> Reasoning {
        Reasoning { apart: true, budget: None }
    }
}

/// What handlers know of the model.
pub(crate) struct Model {
    pub(crate) tokenizer: Arc<Tokenizer>,
    template: Option<ChatTemplate>,
    /// How it writes calls of tools.
    pub(crate) family: &'static Family,
    pub(crate) names: Vec<String>,
    pub(crate) trained_context: u32,
    pub(crate) sampling: Sampling,
    pub(crate) parallel: u32,
    pub(crate) pooling: Option<Pooling>,
    pub(crate) special_in_content: bool,
    pub(crate) reasoning: Reasoning,
    /// How it marks reasoning, if it does.
    pub(crate) tags: Option<&'static Tags>,
    /// Values of a token's hidden state.
    pub(crate) width: u32,
    /// Tokens that fit one sequence.
    pub(crate) context: u32,
    pub(crate) vocabulary: u32,
    pub(crate) end_tokens: Arc<[u32]>,
    pub(crate) grammars: Grammars,
    /// What spells BOS and EOS; empty where there is none.
    pub(crate) bos: String,
    pub(crate) eos: String,
    /// When it was loaded, in seconds since 1970.
    pub(crate) created: u64,
}

/// Seconds since 1970.
pub(crate) fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// What a chat template is given besides the messages.
#[derive(Debug, Default)]
pub(crate) struct TemplateOptions {
    pub(crate) add_generation_prompt: bool,
    /// Tools, for templates that know them.
    pub(crate) tools: Option<Value>,
    /// Variables such as `enable_thinking`.
    pub(crate) variables: Map<String, Value>,
}

/// A prompt that a template made.
pub(crate) struct Rendered {
    text: String,
    /// It stands inside of what would be special tokens, but came from a client.
    mark: Option<char>,
}

impl Rendered {
    /// The prompt's text, without marks.
    pub(crate) fn text(&self) -> String {
        self.mark.map_or_else(|| self.text.clone(), |mark| self.text.replace(mark, ""))
    }
}

/// What Unicode says is no character, and no text should have.
fn marks() -> impl Iterator<Item = char> {
    ('\u{fdd0}'..='\u{fdef}').chain('\u{f0000}'..='\u{10ffff}')
}

/// A mark that no text in these values has, keys included; an error where all are taken.
fn free_mark<'a>(values: impl Iterator<Item = &'a Value>) -> Result<char, ApiError> {
    let mut taken = HashSet::new();
    values.for_each(|value| take_marks(value, &mut taken));
    let message = "the messages have all of the characters that would keep special tokens in them plain text; leave \
                   private characters (U+F0000 and up) out";
    marks().find(|mark| !taken.contains(mark)).ok_or_else(|| ApiError::parameter("messages", message))
}

/// Adds what could be a mark in the texts of a value.
fn take_marks(value: &Value, taken: &mut HashSet<char>) {
    let mut take = |text: &str| taken.extend(text.chars().filter(|c| *c >= '\u{fdd0}'));
    match value {
        Value::String(text) => take(text),
        Value::Array(list) => list.iter().for_each(|value| take_marks(value, taken)),
        Value::Object(map) => {
            map.keys().for_each(|key| take(key));
            map.values().for_each(|value| take_marks(value, taken));
        }
        _ => {}
    }
}

/// Replaces every text in a value, keys included, for which `change` gives another.
fn each_text(value: &mut Value, change: &mut impl FnMut(&str) -> Option<String>) {
    match value {
        Value::String(text) => {
            if let Some(new) = change(text) {
                *text = new;
            }
        }
        Value::Array(list) => list.iter_mut().for_each(|value| each_text(value, change)),
        Value::Object(map) => {
            map.values_mut().for_each(|value| each_text(value, change));
            let keys: Vec<Option<String>> = map.keys().map(|key| change(key)).collect();
            if keys.iter().any(Option::is_some) {
                let old = std::mem::take(map);
                map.extend(old.into_iter().zip(keys).map(|((key, value), new)| (new.unwrap_or(key), value)));
            }
        }
        _ => {}
    }
}

impl Model {
    /// Takes what handlers need; gives the engine back, what revives its device, and what tells its power.
    pub(crate) fn new(loaded: Loaded) -> (Model, Engine, Option<Revival>, Option<Power>) {
        let Loaded { engine, tokenizer, template, names, trained_context, sampling, parallel, revival, power, .. } =
            loaded;
        let spell = |id: Option<u32>| id.and_then(|id| tokenizer.token_text(id)).unwrap_or_default().to_owned();
        let (bos, eos) = (spell(tokenizer.bos()), spell(tokenizer.eos()));
        let end_tokens: Arc<[u32]> = tokenizer.end_of_generation_ids().collect();
        let model = Model {
            grammars: Grammars::new(&tokenizer, engine.vocabulary(), &end_tokens),
            end_tokens,
            bos,
            eos,
            tokenizer: Arc::new(tokenizer),
            family: Family::of(template.as_ref().map_or("", ChatTemplate::source)),
            tags: Tags::of(template.as_ref().map_or("", ChatTemplate::source)),
            template,
            names,
            trained_context,
            sampling,
            parallel,
            pooling: loaded.pooling,
            special_in_content: loaded.special_in_content,
            reasoning: loaded.reasoning,
            width: engine.width(),
            context: engine.context(),
            vocabulary: engine.vocabulary(),
            created: unix_seconds(),
        };
        (model, engine, revival, power)
    }

    /// The name that is shown.
    pub(crate) fn name(&self) -> &str {
        self.names.first().map_or("model", String::as_str)
    }

    /// The name to answer under: the one asked for, if it is one of this model's.
    pub(crate) fn answers_to(&self, asked: Option<String>) -> Result<String, ApiError> {
        match asked {
            None => Ok(self.name().to_owned()),
            Some(asked) if self.names.contains(&asked) => Ok(asked),
            Some(asked) => Err(ApiError::no_model(&asked, &self.names)),
        }
    }

    /// The chat template's source; empty without one.
    pub(crate) fn template_source(&self) -> &str {
        self.template.as_ref().map_or("", ChatTemplate::source)
    }

    /// The prompt for these messages. May take long: the template is foreign code.
    pub(crate) fn render(&self, mut messages: Value, mut options: TemplateOptions) -> Result<Rendered, ApiError> {
        let missing = || ApiError::invalid("the model has no chat template; start the server with --chat-template");
        let template = self.template.as_ref().ok_or_else(missing)?;
        let mut variables = Value::Object(std::mem::take(&mut options.variables));
        let mut given = [Some(&mut messages), options.tools.as_mut(), Some(&mut variables)];
        let mark = if self.special_in_content { None } else { self.mark(&mut given)? };
        let Value::Object(extra) = variables else { return Err(ApiError::internal("variables are an object")) };
        let input = TemplateInput {
            messages,
            tools: options.tools,
            add_generation_prompt: options.add_generation_prompt,
            bos_token: &self.bos,
            eos_token: &self.eos,
            extra,
            now: CivilTime::from_unix_seconds(unix_seconds() as i64),
        };
        let text = template.render(&input).map_err(|error| ApiError::parameter("messages", error.to_string()))?;
        Ok(Rendered { text, mark })
    }

    /// Marks what spells special tokens in all texts of these values, so that it stays plain text; gives the mark, if
    /// there was anything to mark. Where none is free, nothing could stay plain: an error.
    fn mark(&self, values: &mut [Option<&mut Value>]) -> Result<Option<char>, ApiError> {
        let mark = free_mark(values.iter().flatten().map(|value| &**value))?;
        let mut marked = false;
        for value in values.iter_mut().flatten() {
            each_text(value, &mut |text| {
                let new = self.tokenizer.mark_special(text, mark)?;
                marked = true;
                Some(new)
            });
        }
        Ok(marked.then_some(mark))
    }

    /// Token ids of a prompt that a template made, its special tokens parsed.
    pub(crate) fn encode_prompt(&self, prompt: &Rendered) -> Result<Arc<[u32]>, ApiError> {
        let ids = match prompt.mark {
            None => self.tokenizer.encode_prompt(&prompt.text),
            Some(mark) => self.tokenizer.encode_marked_prompt(&prompt.text, mark),
        };
        let ids = ids.map_err(|error| ApiError::invalid(error.to_string()))?;
        if ids.is_empty() { Err(ApiError::invalid("the prompt has no tokens")) } else { Ok(ids.into()) }
    }

    /// How a token is written.
    pub(crate) fn spell(&self, token: u32) -> String {
        let bytes = self.tokenizer.token_bytes(token, true).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_mark_is_one_that_no_text_has_or_an_error() {
        let mark = |value: Value| free_mark([json!("x"), value].iter()).map_err(|error| error.status.as_u16());
        assert_eq!(mark(json!(["a", {"b\u{fdd0}": 1}])), Ok('\u{fdd1}'), "keys count too");
        let mut all: String = marks().collect();
        let last = all.pop();
        assert_eq!(mark(json!({"a": [all.as_str()]})), Ok(last.expect("a mark")));
        all.extend(last);
        assert_eq!(mark(json!({"a": [all]})), Err(400), "never without a mark");
    }
}
