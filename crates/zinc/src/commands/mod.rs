//! One file per command.

pub(crate) mod bench;
pub(crate) mod chat;
pub(crate) mod detokenize;
pub(crate) mod devices;
pub(crate) mod explain;
pub(crate) mod inspect;
pub(crate) mod keys;
mod limits;
pub(crate) mod logits;
pub(crate) mod perplexity;
pub(crate) mod predict;
pub(crate) mod pull;
pub(crate) mod run;
pub(crate) mod serve;
pub(crate) mod template;
pub(crate) mod tokenize;
pub(crate) mod tune;

use crate::args::{Cli, Command};
use anyhow::Result;

/// Runs the command that was given.
pub(crate) fn run(cli: Cli) -> Result<()> {
    match cli.command {
        Command::Run(arguments) => run::run(&arguments),
        Command::Chat(arguments) => chat::run(&arguments),
        Command::Serve(arguments) => serve::run(*arguments),
        Command::Tokenize(arguments) => tokenize::run(&arguments),
        Command::Detokenize(arguments) => detokenize::run(&arguments),
        Command::Logits(arguments) => logits::run(&arguments),
        Command::Perplexity(arguments) => perplexity::run(&arguments),
        Command::Template(arguments) => template::run(&arguments),
        Command::Inspect(arguments) => inspect::run(&arguments),
        Command::Devices(arguments) => devices::run(&arguments),
        Command::Explain(arguments) => explain::run(&arguments),
        Command::Predict(arguments) => predict::run(&arguments),
        Command::Tune(arguments) => tune::run(&arguments),
        Command::Bench(arguments) => bench::run(*arguments),
        Command::Keys(arguments) => keys::run(&arguments),
        Command::Pull(arguments) => pull::run(&arguments),
    }
}
