//! The model as handlers need it: names, tokenizer, chat template, sizes. The engine itself is elsewhere.

use crate::error::ApiError;
use crate::grammar::Grammars;
use crate::recovery::Revival;
use crate::tools::Family;
use serde_json::{Map, Value};
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

impl Model {
    /// Takes what handlers need; gives the engine back, and what revives its device.
    pub(crate) fn new(loaded: Loaded) -> (Model, Engine, Option<Revival>) {
        let Loaded { engine, tokenizer, template, names, trained_context, sampling, parallel, revival } = loaded;
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
            template,
            names,
            trained_context,
            sampling,
            parallel,
            context: engine.context(),
            vocabulary: engine.vocabulary(),
            created: unix_seconds(),
        };
        (model, engine, revival)
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
    pub(crate) fn render(&self, messages: Value, options: TemplateOptions) -> Result<String, ApiError> {
        let missing = || ApiError::invalid("the model has no chat template; start the server with --chat-template");
        let template = self.template.as_ref().ok_or_else(missing)?;
        let input = TemplateInput {
            messages,
            tools: options.tools,
            add_generation_prompt: options.add_generation_prompt,
            bos_token: &self.bos,
            eos_token: &self.eos,
            extra: options.variables,
            now: CivilTime::from_unix_seconds(unix_seconds() as i64),
        };
        template.render(&input).map_err(|error| ApiError::parameter("messages", error.to_string()))
    }

    /// Token ids of a prompt that a template made, special tokens parsed.
    pub(crate) fn encode_prompt(&self, prompt: &str) -> Result<Arc<[u32]>, ApiError> {
        let ids = self.tokenizer.encode_prompt(prompt).map_err(|error| ApiError::invalid(error.to_string()))?;
        if ids.is_empty() { Err(ApiError::invalid("the prompt has no tokens")) } else { Ok(ids.into()) }
    }

    /// How a token is written.
    pub(crate) fn spell(&self, token: u32) -> String {
        let bytes = self.tokenizer.token_bytes(token, true).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}
