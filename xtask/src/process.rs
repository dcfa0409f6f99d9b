//! Running other programs, and where the project's folders are.
//!
//! ```text
//!  Command ─run──────► its output on the terminal, or an error naming the command
//!          ─capture──► its standard output as text
//! ```

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The folder that holds the workspace's `Cargo.toml`.
pub(crate) fn workspace() -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.parent().unwrap_or(own).to_path_buf()
}

/// The folder below which everything that setup fetches lies, however cargo's target folder is set.
pub(crate) fn test_folder() -> PathBuf {
    workspace().join("target").join("zinc-test")
}

/// The reference values that the tests compare with, beside the project; they are not part of it.
pub(crate) fn shared_fixtures() -> PathBuf {
    workspace().join("..").join("shared").join("fixtures")
}

/// The cargo that started us, so that a nested build takes the same toolchain.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(workspace());
    // `cargo run` sets it for us; build scripts that look at it would run again whenever cargo is started by hand.
    command.env_remove("CARGO_MANIFEST_DIR");
    command
}

/// Runs to the end with the terminal's own input and output.
pub(crate) fn run(command: &mut Command) -> Result<(), String> {
    let status = command.status().map_err(|error| cannot_start(command, &error))?;
    if status.success() { Ok(()) } else { Err(format!("`{}` ended with {status}", shown(command))) }
}

/// Runs to the end and returns standard output; standard error is in the message when it fails.
pub(crate) fn capture(command: &mut Command) -> Result<String, String> {
    let output = command.stdin(Stdio::null()).output().map_err(|error| cannot_start(command, &error))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("`{}` ended with {}\n{}", shown(command), output.status, said.trim_end()))
}

/// Whether a program of this name is in PATH.
pub(crate) fn found(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// Says on standard error what is being done.
pub(crate) fn step(text: &str) {
    eprintln!("» {text}");
}

/// An error of the file system with the path it is about.
pub(crate) fn at(path: &Path) -> impl FnOnce(std::io::Error) -> String + '_ {
    move |error| format!("{}: {error}", path.display())
}

fn cannot_start(command: &Command, error: &std::io::Error) -> String {
    let program = command.get_program().to_string_lossy();
    format!("cannot start `{program}`: {error}; is it installed and in PATH?")
}

/// A command as one could type it.
pub(crate) fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let quoted = words.map(|word| {
        let word = word.to_string_lossy();
        if word.contains(char::is_whitespace) { format!("{word:?}") } else { word.into_owned() }
    });
    quoted.collect::<Vec<_>>().join(" ")
}
