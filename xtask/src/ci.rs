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
    let documentation = || {
        let words = ["doc", "--workspace", "--no-deps", "--quiet"];
        cargo_step("documentation", &words, &[("RUSTDOCFLAGS", "-D warnings")])
    };
    // All of them, so that one run shows all there is to mend.
    let outcomes = [format_and_lints(), crate::tidy::check(), documentation()];
    let errors: Vec<String> = outcomes.into_iter().filter_map(Result::err).collect();
    if !errors.is_empty() {
        return Err(errors.join("\nerror: "));
    }
    if checks_only { Ok(ExitCode::SUCCESS) } else { crate::test::command(&[]) }
}

/// The two checks that need no test to run.
pub(crate) fn format_and_lints() -> Result<(), String> {
    let format = cargo_step("format", &["fmt", "--all", "--check"], &[]);
    let words = ["clippy", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"];
    let lints = cargo_step("lints", &words, &[]);
    match (format, lints) {
        (Err(one), Err(other)) => Err(format!("{one}\nerror: {other}")),
        (format, lints) => format.and(lints),
    }
}
