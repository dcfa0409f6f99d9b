//! `zinc tokenize`: text to token ids.

use crate::args::ModelArgs;
use crate::output::print_line;
use crate::prompt;
use crate::source::Source;
use anyhow::Result;
use clap::Args;
use serde_json::json;
use std::path::PathBuf;

/// Turns text into token ids; one line per token, or with --ids or --json for programs.
#[derive(Args, Debug)]
pub(crate) struct Arguments {
    #[command(flatten)]
    model: ModelArgs,
    /// The text; without it, -f or standard input
    #[arg(short, long, value_name = "TEXT")]
    prompt: Option<String>,
    /// Read the text from a file
    #[arg(short, long, value_name = "FILE", conflicts_with = "prompt")]
    file: Option<PathBuf>,
    /// Leave out BOS and EOS even if the vocabulary wants them
    #[arg(long)]
    no_bos: bool,
    /// Take text that spells a special token for plain text
    #[arg(long)]
    no_parse_special: bool,
    /// Print only the ids, as [1, 2, 3]
    #[arg(long, conflicts_with = "json")]
    ids: bool,
    /// Print a JSON array of {id, text}
    #[arg(long)]
    json: bool,
    /// Print the number of tokens
    #[arg(long)]
    show_count: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let text = prompt::text(arguments.prompt.as_deref(), arguments.file.as_deref())?;
    let tokenizer = Source::open_tokenizer(&arguments.model)?;
    let ids = tokenizer.encode(&text, !arguments.no_bos, !arguments.no_parse_special)?;
    let piece =
        |id: u32| -> Result<String> { Ok(String::from_utf8_lossy(&tokenizer.decode_bytes(&[id], true)?).into_owned()) };
    if arguments.ids {
        print_line(&format!("{ids:?}"))?;
    } else if arguments.json {
        let rows = ids.iter().map(|id| Ok(json!({ "id": id, "text": piece(*id)? })));
        print_line(&serde_json::to_string_pretty(&rows.collect::<Result<Vec<_>>>()?)?)?;
    } else {
        for id in &ids {
            print_line(&format!("{id:6} -> {:?}", piece(*id)?))?;
        }
    }
    if arguments.show_count {
        print_line(&format!("Total number of tokens: {}", ids.len()))?;
    }
    Ok(())
}
