//! `zinc detokenize`: token ids to text.

use crate::args::ModelArgs;
use crate::failure::usage;
use crate::prompt;
use crate::source::Source;
use anyhow::Result;
use clap::Args;
use std::io::Write;
use std::path::PathBuf;

/// Turns token ids into text: numbers separated by spaces or commas, or a JSON array.
#[derive(Args, Debug)]
pub(crate) struct Arguments {
    #[command(flatten)]
    model: ModelArgs,
    /// Token ids, such as "1, 2, 3"; without them, -f or standard input
    #[arg(long, value_name = "IDS")]
    ids: Option<String>,
    /// Read the ids from a file
    #[arg(short, long, value_name = "FILE", conflicts_with = "ids")]
    file: Option<PathBuf>,
    /// Spell special tokens out
    #[arg(long)]
    special: bool,
    /// Print a JSON string
    #[arg(long)]
    json: bool,
}

/// Reads token ids: numbers with anything of `[],` and white space between.
pub(crate) fn parse_ids(text: &str) -> Result<Vec<u32>> {
    let words = text.split(|c: char| c.is_whitespace() || ",[]".contains(c)).filter(|w| !w.is_empty());
    words.map(|w| w.parse().map_err(|_| usage(format!("`{w}` is no token id")))).collect()
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let ids = parse_ids(&prompt::text(arguments.ids.as_deref(), arguments.file.as_deref())?)?;
    let tokenizer = Source::open_tokenizer(&arguments.model)?;
    let mut out = std::io::stdout().lock();
    if arguments.json {
        let text = tokenizer.decode(&ids, arguments.special)?;
        writeln!(out, "{}", serde_json::to_string(&text)?)?;
    } else {
        out.write_all(&tokenizer.decode_bytes(&ids, arguments.special)?)?;
        writeln!(out)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_read_in_any_usual_form() {
        assert_eq!(parse_ids("[1, 2,\n3]").unwrap(), [1, 2, 3]);
        assert_eq!(parse_ids("4 5").unwrap(), [4, 5]);
        assert!(parse_ids("").unwrap().is_empty());
        assert!(parse_ids("1 -2").is_err());
    }
}
