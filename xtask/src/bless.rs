//! `cargo xtask bless`: accepts the present output of the snapshot tests.
//!
//! ```text
//!  BLESS=1 cargo test ─► tests/filetests/* rewritten ─► git diff, for the reviewer
//! ```

use crate::process::{run, step, workspace};
use crate::test::cargo_step;
use std::process::{Command, ExitCode};

/// Packages with tests that compare against files and rewrite them when `BLESS` is set.
const PACKAGES: &[&str] = &["zinc-conformance", "zinc-models"];

/// The command itself.
pub(crate) fn command(arguments: &[String]) -> Result<ExitCode, String> {
    if let Some(other) = arguments.first() {
        return Err(format!("bless does not know `{other}`"));
    }
    let mut words = vec!["test", "--no-fail-fast"];
    words.extend(PACKAGES.iter().flat_map(|name| ["--package", name]));
    cargo_step("running the snapshot tests with BLESS=1", &words, &[("BLESS", "1")])?;
    step("what changed");
    run(Command::new("git").current_dir(workspace()).args(["--no-pager", "diff", "--stat", "--", "tests", "crates"]))?;
    Ok(ExitCode::SUCCESS)
}
