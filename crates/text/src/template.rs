//! Chat templates: Jinja source out of a model file, rendered as transformers renders it.
//!
//! ```text
//! messages, tools, flags ─context─► Jinja (blocks trimmed, Python's spellings) ─► prompt text
//! ```
//!
//! Templates are written for Python: they use its string methods, print its `True` and `None`, and
//! dump JSON with its separators. A prompt that is off by one space is another prompt to the model.
//! A template is also foreign code: its steps and its depth of calls are limited.

use std::fmt;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Rest, Serde, Value, ValueKind};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Output, State};
use thiserror::Error as ThisError;

use crate::civil_time::CivilTime;
use crate::python;
use crate::python_methods;

/// Steps of the template engine that one rendering may take. Some templates look at all messages
/// for each message: a thousand messages then take a few million.
const STEPS: u64 = 20_000_000;

/// The name under which the one template of an environment is kept.
const NAME: &str = "chat";

/// A chat template cannot be read or rendered.
#[derive(Debug, ThisError)]
#[non_exhaustive]
pub enum TemplateError {
    /// The source is no Jinja that Zinc understands.
    #[error("the chat template does not parse{}: {message}", at_line(*.line))]
    Syntax {
        /// Line of the template, counted from 1.
        line: Option<usize>,
        /// What is wrong there.
        message: String,
    },
    /// The template itself refused these messages with `raise_exception`.
    #[error("the chat template refuses these messages: {0}")]
    Raised(String),
    /// The template failed on these messages.
    #[error("the chat template fails{}: {message}", at_line(*.line))]
    Failed {
        /// Line of the template, counted from 1.
        line: Option<usize>,
        /// What went wrong there.
        message: String,
    },
    /// No template of this name comes with Zinc.
    #[error("no chat template `{0}` comes with Zinc (it has: {known})", known = builtin_names())]
    NoSuchBuiltin(String),
}

fn at_line(line: Option<usize>) -> String {
    line.map(|line| format!(" at line {line}")).unwrap_or_default()
}

/// Templates that come with Zinc, for models whose file has none. Which one fits, only the user
/// knows: nothing here takes one by itself.
const BUILTIN: &[(&str, &str)] = &[
    (
        "chatml",
        "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + \
         '<|im_end|>' + '\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}",
    ),
    (
        // Gemma 1 to 3 know no system role: its text goes before the first message.
        "gemma",
        "{{ bos_token }}{% set n = namespace(before='') %}{% for message in messages %}\
         {% if message['role'] == 'system' %}{% set n.before = message['content'] | trim ~ '\\n\\n' %}{% else %}\
         {{ '<start_of_turn>' + ('model' if message['role'] == 'assistant' else message['role']) + '\\n' + n.before + \
         message['content'] | trim + '<end_of_turn>\\n' }}{% set n.before = '' %}{% endif %}{% endfor %}\
         {% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}",
    ),
];

fn builtin_names() -> String {
    let names: Vec<&str> = BUILTIN.iter().map(|(name, _)| *name).collect();
    names.join(", ")
}

/// What a template is rendered with, as transformers names it.
#[derive(Clone, Debug, Default)]
pub struct TemplateInput<'a> {
    /// A list of messages: objects with `role`, `content` and more.
    pub messages: serde_json::Value,
    /// A list of tools as JSON schemas; without any, the template sees `none`.
    pub tools: Option<serde_json::Value>,
    /// Whether the prompt ends with the start of the assistant's turn.
    pub add_generation_prompt: bool,
    /// The text of the BOS token, empty if there is none.
    pub bos_token: &'a str,
    /// The text of the EOS token, empty if there is none.
    pub eos_token: &'a str,
    /// Further variables such as `enable_thinking`; they go before those above.
    pub extra: serde_json::Map<String, serde_json::Value>,
    /// The time that `strftime_now` tells.
    pub now: CivilTime,
}

/// A parsed chat template.
pub struct ChatTemplate {
    environment: Environment<'static>,
    source: String,
}

impl ChatTemplate {
    /// Parses `source`.
    ///
    /// # Errors
    /// [`TemplateError::Syntax`].
    pub fn new(source: &str) -> Result<Self, TemplateError> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(|error| syntax_error(&error))?);
        environment.set_auto_escape_callback(|_| AutoEscape::None);
        environment.set_formatter(print);
        python_methods::install(&mut environment);
        environment.set_fuel(Some(STEPS));
        environment.add_filter("tojson", to_json);
        environment.add_function("raise_exception", raise_exception);
        environment.add_template_owned(NAME, without_generation_tags(source)).map_err(|error| syntax_error(&error))?;
        Ok(ChatTemplate { environment, source: source.to_owned() })
    }

    /// Its Jinja source.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The template of this name that comes with Zinc: `chatml` or `gemma`.
    ///
    /// # Errors
    /// [`TemplateError::NoSuchBuiltin`] lists the names there are.
    pub fn builtin(name: &str) -> Result<Self, TemplateError> {
        match BUILTIN.iter().find(|row| row.0 == name) {
            Some((_, source)) => ChatTemplate::new(source),
            None => Err(TemplateError::NoSuchBuiltin(name.to_owned())),
        }
    }

    /// The prompt for `input`.
    ///
    /// # Errors
    /// [`TemplateError::Raised`] with the template's own message, or [`TemplateError::Failed`].
    pub fn render(&self, input: &TemplateInput<'_>) -> Result<String, TemplateError> {
        let mut context = serde_json::Map::new();
        let mut set = |key: &str, value| context.insert(key.to_owned(), value);
        set("messages", input.messages.clone());
        set("tools", input.tools.clone().unwrap_or_default());
        set("documents", serde_json::Value::Null);
        set("add_generation_prompt", input.add_generation_prompt.into());
        set("bos_token", input.bos_token.into());
        set("eos_token", input.eos_token.into());
        context.extend(input.extra.clone());
        self.render_context(&context, input.now)
    }

    /// Renders with exactly the variables of `context`; null is Python's `None`, which counts as
    /// defined.
    ///
    /// # Errors
    /// As [`Self::render`].
    pub fn render_context(
        &self,
        context: &serde_json::Map<String, serde_json::Value>,
        now: CivilTime,
    ) -> Result<String, TemplateError> {
        let mut variables: Vec<(String, Value)> =
            context.iter().map(|(key, value)| (key.clone(), Value::from(Serde(value)))).collect();
        let strftime_now = Value::from_function(move |format: &str| now.strftime(format));
        variables.push(("strftime_now".to_owned(), strftime_now));
        let template = self.environment.get_template(NAME).map_err(|error| failure(&error))?;
        template.render(Value::from_pairs(variables)).map_err(|error| failure(&error))
    }
}

impl fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChatTemplate").finish_non_exhaustive()
    }
}

/// `source` with the tags that mark the assistant's text for training, `{% generation %}` and
/// `{% endgeneration %}`, turned into tags that do nothing.
fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some((before, tag)) = rest.split_once("{%") {
        out.push_str(before);
        out.push_str("{%");
        let name = tag.trim_start_matches(['-', '+']).trim_start();
        out.push_str(&tag[..tag.len() - name.len()]);
        rest = name;
        for (from, to) in [("generation", "if true"), ("endgeneration", "endif")] {
            if let Some(after) = name.strip_prefix(from)
                && after.trim_start().trim_start_matches(['-', '+']).starts_with("%}")
            {
                out.push_str(to);
                rest = after;
            }
        }
    }
    out + rest
}

/// The message of `raise_exception`, carried through the engine's errors.
#[derive(Debug)]
struct Raised(String);

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Raised {}

fn raise_exception(message: &Value) -> Result<Value, Error> {
    let raised = Raised(message.to_string());
    Err(Error::new(ErrorKind::InvalidOperation, "raise_exception").with_source(raised))
}

fn syntax_error(error: &Error) -> TemplateError {
    TemplateError::Syntax { line: error.line(), message: message_of(error) }
}

fn failure(error: &Error) -> TemplateError {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    let mut line = None;
    while let Some(error) = cause {
        if let Some(raised) = error.downcast_ref::<Raised>() {
            return TemplateError::Raised(raised.0.clone());
        }
        line = line.or(error.downcast_ref::<Error>().and_then(Error::line));
        cause = error.source();
    }
    TemplateError::Failed { line, message: message_of(error) }
}

/// An error's text without the place, and its causes'.
fn message_of(error: &Error) -> String {
    let mut message = match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    };
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        message.push_str(&format!("; {error}"));
        cause = error.source();
    }
    message
}

/// `{{ value }}`.
fn print(out: &mut Output<'_>, state: &mut State<'_, '_>, value: &Value) -> Result<(), Error> {
    match python::float(value) {
        Some(number) => Ok(out.write_str(&python::spell_float(number))?),
        None => minijinja::escape_formatter(out, state, value),
    }
}

/// `value | tojson(ensure_ascii, indent, separators, sort_keys)` of transformers.
fn to_json(value: &Value, positional: Rest<Value>, named: Kwargs) -> Result<Value, Error> {
    let argument = |place: usize, name: &str| -> Result<Option<Value>, Error> {
        let given = positional.get(place).cloned();
        let given = given.or(named.get::<Option<Value>>(name)?);
        Ok(given.filter(|value| !value.is_none() && !value.is_undefined()))
    };
    let flag = |given: Option<Value>| given.is_some_and(|value| value.is_true());
    let mut style = python::JsonStyle {
        ensure_ascii: flag(argument(0, "ensure_ascii")?),
        sort_keys: flag(argument(3, "sort_keys")?),
        ..python::JsonStyle::default()
    };
    if let Some(indent) = argument(1, "indent")? {
        style.indent = Some(match indent.as_str() {
            Some(text) => text.to_owned(),
            None => " ".repeat(usize::try_from(indent)?.min(64)),
        });
        style.item_separator = ",".to_owned();
    }
    if let Some(separators) = argument(2, "separators")? {
        style.item_separator = separators.get_item_by_index(0)?.to_string();
        style.key_separator = separators.get_item_by_index(1)?.to_string();
    }
    named.assert_all_used()?;
    if value.kind() == ValueKind::Undefined {
        return Err(Error::new(ErrorKind::BadSerialization, "undefined value for tojson"));
    }
    style.dump(value).map(Value::from_safe_string)
}
