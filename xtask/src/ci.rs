//! `cargo xtask ci`: what must be green before a change lands.
//!
//! ```text
//!  fmt ─► clippy ─► tidy ─► doc ─► test (unless --checks)
//! ```

use crate::test::cargo_step;
use std::process::ExitCode;

/// The command itself.
pub(crate) fn command(arguments: &[String]) -> Result<ExitCode, String> {
    let checks_only = match arguments {
        [] => false,
        [flag] if flag == "--checks" => true,
        _ => return Err("usage: cargo xtask ci [--checks]".to_string()),
    };
    format_and_lints()?;
    crate::tidy::check()?;
    let words = ["doc", "--workspace", "--no-deps", "--quiet"];
    cargo_step("documentation", &words, &[("RUSTDOCFLAGS", "-D warnings")])?;
    if checks_only { Ok(ExitCode::SUCCESS) } else { crate::test::command(&[]) }
}

/// The two checks that need no test to run.
pub(crate) fn format_and_lints() -> Result<(), String> {
    cargo_step("format", &["fmt", "--all", "--check"], &[])?;
    let words = ["clippy", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"];
    cargo_step("lints", &words, &[])
}
