//! What the model is to read: from arguments or standard input, plain or through a chat template.
//!
//! ```text
//! -p | -f | stdin ─► text ─Chat (template)─► prompt text ─► token ids
//! ```

use crate::args::TemplateArgs;
use crate::failure::usage;
use crate::source::Source;
use anyhow::{Context, Result};
use serde_json::{Value, json};
use std::io::{IsTerminal, Read};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};
use zinc_text::{ChatTemplate, CivilTime, TemplateInput, Tokenizer};

/// A text file as it is.
pub(crate) fn read_file(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

/// The text to work on: the argument, a file's, or that of standard input unless it is a terminal.
pub(crate) fn text(prompt: Option<&str>, file: Option<&Path>) -> Result<String> {
    match (prompt, file) {
        (Some(text), _) => Ok(text.to_owned()),
        (None, Some(path)) => read_file(path),
        (None, None) if std::io::stdin().is_terminal() => {
            Err(usage("there is no text; give it with -p, with -f FILE, or through standard input"))
        }
        (None, None) => {
            let mut text = String::new();
            std::io::stdin().read_to_string(&mut text).context("cannot read standard input")?;
            Ok(text)
        }
    }
}

/// The time now, in UTC.
pub(crate) fn now() -> CivilTime {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    CivilTime::from_unix_seconds(since.as_secs() as i64)
}

/// A chat template with the names of the tokens it may write.
pub(crate) struct Chat {
    template: ChatTemplate,
    bos: String,
    eos: String,
    system: Option<String>,
}

/// The template that the arguments name, the model's otherwise; `None` if neither has one.
pub(crate) fn template_source(arguments: &TemplateArgs, model: Option<&str>) -> Result<Option<ChatTemplate>> {
    let parse = |source: &str| ChatTemplate::new(source).map(Some).map_err(anyhow::Error::from);
    match (&arguments.chat_template, &arguments.chat_template_file) {
        (Some(source), _) if source.contains('{') => parse(source),
        (Some(name), _) => Ok(Some(ChatTemplate::builtin(name)?)),
        (None, Some(path)) => parse(&read_file(path)?).with_context(|| path.display().to_string()),
        (None, None) => model.map_or(Ok(None), parse),
    }
}

/// What spells BOS and EOS; empty where the vocabulary has none.
pub(crate) fn ends(tokenizer: &Tokenizer) -> [String; 2] {
    [tokenizer.bos(), tokenizer.eos()]
        .map(|id| id.and_then(|id| tokenizer.token_text(id)).unwrap_or_default().to_owned())
}

impl Chat {
    /// The chat of a model, if it has a template or was given one.
    pub(crate) fn new(arguments: &TemplateArgs, source: &Source, tokenizer: &Tokenizer) -> Result<Option<Chat>> {
        let Some(template) = template_source(arguments, source.chat_template()?)? else { return Ok(None) };
        let system = match &arguments.system_prompt_file {
            Some(path) => Some(read_file(path)?),
            None => arguments.system_prompt.clone(),
        };
        let [bos, eos] = ends(tokenizer);
        Ok(Some(Chat { template, bos, eos, system }))
    }

    /// The messages that every conversation starts with.
    pub(crate) fn beginning(&self) -> Vec<Value> {
        self.system.iter().map(|text| message("system", text)).collect()
    }

    /// The prompt after which the model writes its answer to these messages.
    pub(crate) fn render(&self, messages: &[Value]) -> Result<String> {
        let input = TemplateInput {
            messages: messages.into(),
            add_generation_prompt: true,
            bos_token: &self.bos,
            eos_token: &self.eos,
            now: now(),
            ..TemplateInput::default()
        };
        Ok(self.template.render(&input)?)
    }
}

/// A message of a conversation.
pub(crate) fn message(role: &str, content: &str) -> Value {
    json!({ "role": role, "content": content })
}
