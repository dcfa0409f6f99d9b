//! `zinc`: runs GGUF language models from the command line.
//!
//! ```text
//! argv ─args─► command ─Session (model + tokenizer + engine on a device)─► stdout;  speed, progress, errors ─► stderr
//! ```
//!
//! Exit codes: 0 done, 1 error, 2 wrong usage, 130 stopped by Ctrl-C.

mod args;
mod commands;
mod default_model;
mod device;
mod failure;
mod folders;
mod generate;
mod interrupt;
mod kept;
mod load;
mod measured;
mod output;
mod power;
mod profiles;
mod progress;
mod prompt;
mod roofline;
mod session;
mod size;
mod source;
mod tuned;

use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = args::Cli::parse_from(args::long_spellings(std::env::args_os()));
    match commands::run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failure::report(&error),
    }
}
