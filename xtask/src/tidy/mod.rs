//! `cargo xtask tidy`: the rules of the design that the compiler does not check.
//!
//! ```text
//!  git ls-files ─┬─ *.rs ─► code without comments, strings and tests ─► words, sizes
//!                ├─ Cargo.toml ─► arrows between crates
//!                └─ all texts ─► machine paths, hosts, paths that documents name
//! ```

mod arrows;
mod sizes;
mod source;
mod texts;
mod words;

use crate::process::{capture, step, workspace};
use source::Source;
use std::fs;
use std::process::{Command, ExitCode};

/// One broken rule: where, and what to do.
struct Finding {
    path: String,
    /// Counted from 1; 0 when the finding is about the whole file.
    line: usize,
    message: String,
}

/// A tracked file that is text.
struct Text {
    /// From the workspace's folder, with `/`.
    path: String,
    text: String,
}

/// The command itself.
pub(crate) fn command(arguments: &[String]) -> Result<ExitCode, String> {
    match arguments {
        [] => check()?,
        [flag] if flag == "--report" => {
            for line in sizes::report(&sources(&tracked()?), 15) {
                println!("{line}");
            }
        }
        _ => return Err("usage: cargo xtask tidy [--report]".to_string()),
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs every rule; an error names how many findings were printed.
pub(crate) fn check() -> Result<(), String> {
    step("tidy");
    let texts = tracked()?;
    let sources = sources(&texts);
    let mut findings = arrows::check(&texts);
    findings.extend(words::check(&sources));
    findings.extend(sizes::check(&sources));
    findings.extend(texts::check(&texts));
    for finding in &findings {
        match finding.line {
            0 => println!("{}: {}", finding.path, finding.message),
            line => println!("{}:{line}: {}", finding.path, finding.message),
        }
    }
    for line in sizes::report(&sources, 1) {
        println!("{line}");
    }
    if findings.is_empty() { Ok(()) } else { Err(format!("tidy: {} finding(s), see above", findings.len())) }
}

/// All tracked files, and untracked ones that git would not ignore, as far as they are text.
fn tracked() -> Result<Vec<Text>, String> {
    let mut git = Command::new("git");
    // Continuous integration often runs as another user than the one who owns the files.
    git.current_dir(workspace()).args(["-c", "safe.directory=*"]);
    git.args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]);
    let names = capture(&mut git)?;
    // A file may be tracked and deleted; one that is not UTF-8 is data.
    let text = |name: &str| fs::read_to_string(workspace().join(name)).ok();
    let named = names.split('\0').filter(|name| !name.is_empty());
    Ok(named.filter_map(|name| Some(Text { path: name.to_string(), text: text(name)? })).collect())
}

fn sources(texts: &[Text]) -> Vec<Source> {
    texts.iter().filter(|text| text.path.ends_with(".rs")).map(|text| Source::read(&text.path, &text.text)).collect()
}
