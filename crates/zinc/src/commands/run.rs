//! `zinc run`: one prompt, one answer.

use crate::args::{ComputeArgs, ModelArgs, SamplingArgs, TemplateArgs};
use crate::failure::Interrupted;
use crate::generate::{End, Settings, generate, print_speed};
use crate::interrupt::Interrupt;
use crate::output::{print, print_line};
use crate::prompt::{self, Chat};
use crate::session::{Begun, Needs, act_name};
use anyhow::{Result, bail};
use clap::Args;
use serde_json::json;
use std::path::PathBuf;
use zinc_text::TextStart;

/// Tokens of context for an answer whose length is not given.
const ROOM: u64 = 1024;

/// Answers one prompt and prints the speed on stderr.
///
/// The prompt goes through the model's chat template if it has one; --raw gives it to the model as it is.
#[derive(Args, Debug)]
pub(crate) struct Arguments {
    #[command(flatten)]
    model: ModelArgs,
    /// The prompt; without it, -f or standard input
    #[arg(short, long, value_name = "TEXT")]
    prompt: Option<String>,
    /// Read the prompt from a file
    #[arg(short, long, value_name = "FILE", conflicts_with = "prompt")]
    file: Option<PathBuf>,
    /// Continue the text as it is, without a chat template
    #[arg(long, visible_alias = "no-template")]
    raw: bool,
    /// Print one JSON object at the end instead of text as it comes
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    template: TemplateArgs,
    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    compute: ComputeArgs,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let mut settings = Settings::new(&arguments.sampling)?;
    let text = prompt::text(arguments.prompt.as_deref(), arguments.file.as_deref())?;
    let interrupt = Interrupt::install()?;
    let model = Begun::new(&arguments.model, &interrupt)?;
    interrupt.check()?;
    let chat = match arguments.raw {
        true => None,
        false => Chat::new(&arguments.template, &model.source, &model.tokenizer)?,
    };
    let ids = match &chat {
        Some(chat) => {
            let mut messages = chat.beginning();
            messages.push(prompt::message("user", &text));
            model.tokenizer.encode_prompt(&chat.render(&messages)?)?
        }
        None => {
            settings.start = TextStart::Continuation;
            // Who writes the whole prompt may write special tokens, too.
            model.tokenizer.encode(&text, true, true)?
        }
    };
    let needs = Needs::AtLeast(ids.len() as u64 + settings.predict.map_or(ROOM, u64::from));
    let mut session = model.load(&arguments.compute, needs, &interrupt)?;
    interrupt.check()?;
    let mut show = |piece: &str| if arguments.json { Ok(()) } else { print(piece) };
    let answer = generate(&mut session, ids, &settings, &interrupt, &mut show)?;
    if arguments.json {
        let value = json!({
            "text": answer.text,
            "tokens": answer.tokens,
            "end": answer.end.json(),
            "timing": answer.timing.json(),
            "act": act_name(session.act),
            "device": session.engine.device().description(),
        });
        print_line(&serde_json::to_string_pretty(&value)?)?;
    } else {
        print_line("")?;
    }
    print_speed(&session, &answer.timing);
    match answer.end {
        End::Interrupted => Err(Interrupted.into()),
        End::ContextFull(tokens) => bail!(
            "the answer is unfinished: the context of {tokens} tokens is full ({} of prompt, {} generated), and going \
             on needs at least {}; give a larger -c",
            answer.timing.prompt_tokens,
            answer.timing.generated,
            tokens as u64 + 1,
        ),
        End::Model | End::Length | End::Stop(_) => Ok(()),
    }
}
