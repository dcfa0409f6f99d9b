//! `zinc template`: what a conversation looks like to the model.

use crate::args::{ModelArgs, TemplateArgs};
use crate::failure::usage;
use crate::output::print;
use crate::prompt::{self, read_file};
use crate::source;
use anyhow::{Context, Result, anyhow};
use clap::Args;
use serde_json::{Map, Value};
use std::path::PathBuf;
use zinc_text::{TemplateInput, Tokenizer, chat_template_source};

/// Renders a chat template, the model's or another one, and prints the prompt.
#[derive(Args, Debug)]
pub(crate) struct Arguments {
    #[command(flatten)]
    model: ModelArgs,
    /// A template file instead of a model's template; BOS and EOS are then empty unless the messages file names them
    #[arg(long, value_name = "FILE", conflicts_with_all = ["path", "model", "shape"])]
    template: Option<PathBuf>,
    /// Messages: a JSON array of {role, content}, or an object with `messages` and further variables
    #[arg(long, value_name = "FILE")]
    messages: PathBuf,
    /// Tools: a JSON array
    #[arg(long, value_name = "FILE")]
    tools: Option<PathBuf>,
    /// Do not end with the beginning of the assistant's turn
    #[arg(long)]
    no_generation_prompt: bool,
}

fn read_json(path: &std::path::Path) -> Result<Value> {
    serde_json::from_str(&read_file(path)?).with_context(|| format!("{} is no JSON", path.display()))
}

/// Messages and further variables out of the file.
fn variables(value: Value) -> Result<(Value, Map<String, Value>)> {
    match value {
        Value::Array(_) => Ok((value, Map::new())),
        Value::Object(mut map) => match map.remove("messages") {
            Some(messages) => Ok((messages, map)),
            None => Err(usage("the messages file is an object without `messages`")),
        },
        _ => Err(usage("the messages file must hold a JSON array or an object with `messages`")),
    }
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let (messages, mut extra) = variables(read_json(&arguments.messages)?)?;
    let tools = match &arguments.tools {
        Some(path) => Some(read_json(path)?),
        None => extra.remove("tools"),
    };
    let mut names = [String::new(), String::new()];
    let template = match &arguments.template {
        Some(path) => {
            let given = TemplateArgs { chat_template_file: Some(path.clone()), ..TemplateArgs::default() };
            prompt::template_source(&given, None)?
        }
        None if arguments.model.shape.is_some() => {
            return Err(usage("a shape has no chat template; give one with --template FILE"));
        }
        None => {
            let path = source::file(&arguments.model, None)?;
            let gguf = source::gguf(&path)?;
            let tokenizer = Tokenizer::from_metadata(gguf.metadata())?;
            names = prompt::ends(&tokenizer);
            prompt::template_source(&TemplateArgs::default(), chat_template_source(gguf.metadata())?)?
        }
    };
    let template = template.ok_or_else(|| anyhow!("the model has no chat template; give one with --template FILE"))?;
    for (name, key) in names.iter_mut().zip(["bos_token", "eos_token"]) {
        if let Some(Value::String(given)) = extra.remove(key) {
            *name = given;
        }
    }
    let asked = extra.remove("add_generation_prompt").and_then(|v| v.as_bool()).unwrap_or(true);
    let rendered = template.render(&TemplateInput {
        messages,
        tools,
        add_generation_prompt: asked && !arguments.no_generation_prompt,
        bos_token: &names[0],
        eos_token: &names[1],
        extra,
        now: prompt::now(),
    })?;
    print(&rendered)
}
