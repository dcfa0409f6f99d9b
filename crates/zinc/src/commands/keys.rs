//! `zinc keys`: API keys for `zinc serve`.
//!
//! ```text
//! new: random bytes ─► the key, shown once; its digest and rules ─► FILE     usage: LEDGER ─► sums by name
//! ```

use crate::failure::usage;
use crate::output::print_line;
use crate::prompt::read_file;
use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use serde_json::json;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use zinc_serve::{Entry, Keys, Ledger, Rules, spell_digest};

/// Makes API keys for `zinc serve --api-key-file`, lists what they may, sums up what they have used.
///
/// A file of keys has one a line: the key, or `sha256:` and its digest, and behind it what it may, as WHAT=VALUE:
///
/// name=NAME (what it uses is counted under it; keys of one name share that), weight=N (share of the engine beside others; 1),
/// priority=N (whoever has a lower one comes first; 0), rpm=N (requests a minute), tpm=N (tokens a minute),
/// tokens-per-day=N, tokens-per-month=N (both UTC), tokens=N (in all), parallel=N (answers at the same time), cache=own (prompts
/// of other names are not known to it, nor its own to them: with the usual cache=shared, time tells whether a prompt is new),
/// expires=YEAR-MONTH-DAY (the last day).
#[derive(Args, Debug)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand, Debug)]
enum Action {
    /// Make a key, print it, and add its digest to a file: it cannot be shown again
    New {
        /// File of keys; it is made if it is not there
        file: PathBuf,
        /// Whose key it is
        #[arg(long, value_name = "NAME")]
        name: String,
        /// What it may, as in `rpm=60 tokens-per-day=1000000`
        #[arg(value_name = "WHAT=VALUE")]
        rules: Vec<String>,
    },
    /// List the names of a file of keys, and what they may
    List {
        /// File of keys
        file: PathBuf,
    },
    /// Sum up what has been used, by name
    Usage {
        /// The file that `zinc serve --ledger` writes
        ledger: PathBuf,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    match &arguments.action {
        Action::New { file, name, rules } => new(file, name, rules),
        Action::List { file } => list(&keys_of(file)?),
        Action::Usage { ledger, json } => used(&Ledger::entries(ledger)?, *json),
    }
}

/// The keys of a file.
pub(super) fn keys_of(path: &Path) -> Result<Keys> {
    Keys::lines(&read_file(path)?).with_context(|| path.display().to_string())
}

fn new(file: &Path, name: &str, rules: &[String]) -> Result<()> {
    if name.contains(char::is_whitespace) {
        return Err(usage(format!("the name `{name}` has white space in it; names are letters, digits, and - _ . @")));
    }
    let mut random = [0; 24];
    getrandom::fill(&mut random).context("the system gives no random numbers")?;
    let key: String = random.iter().fold("sk-".into(), |key, byte| format!("{key}{byte:02x}"));
    let line = format!("{} name={name} {}", spell_digest(&key), rules.join(" "));
    let line = line.trim_end();
    Keys::lines(line).map_err(|error| usage(error.to_string()))?;
    let mut text = if file.exists() { read_file(file)? } else { String::new() };
    Keys::lines(&text).with_context(|| file.display().to_string())?;
    // The last line may have no end.
    text = if text.is_empty() || text.ends_with('\n') { String::new() } else { "\n".into() };
    let mut options = std::fs::File::options();
    options.append(true).create(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let written = options.open(file).and_then(|mut f| writeln!(f, "{text}{line}").and_then(|()| f.sync_all()));
    written.with_context(|| format!("cannot write {}", file.display()))?;
    print_line(&key)
}

fn list(keys: &Keys) -> Result<()> {
    let width = keys.rules().map(|rules| rules.name.len()).max().unwrap_or(0);
    let line = |rules: &Rules| format!("{:width$}  {}", rules.name, rules.limits());
    print_line(&keys.rules().map(|rules| line(rules).trim_end().to_owned()).collect::<Vec<_>>().join("\n"))
}

/// What one name has used.
#[derive(Default)]
struct Sum {
    requests: u64,
    prompt: u64,
    cached: u64,
    completion: u64,
    seconds: f64,
    joules: Option<f64>,
}

fn used(entries: &[Entry], as_json: bool) -> Result<()> {
    let mut sums: BTreeMap<&str, Sum> = BTreeMap::new();
    for entry in entries {
        let sum = sums.entry(&entry.key).or_default();
        sum.requests += 1;
        sum.prompt += entry.prompt_tokens;
        sum.cached += entry.cached_tokens;
        sum.completion += entry.completion_tokens;
        sum.seconds += entry.seconds;
        sum.joules = entry.joules.map(|joules| joules + sum.joules.unwrap_or(0.0)).or(sum.joules);
    }
    if as_json {
        let row = |(name, s): (&&str, &Sum)| {
            json!({
                "key": name, "requests": s.requests, "prompt_tokens": s.prompt, "cached_tokens": s.cached,
                "completion_tokens": s.completion, "seconds": s.seconds, "joules": s.joules,
            })
        };
        return print_line(&serde_json::to_string_pretty(&sums.iter().map(row).collect::<Vec<_>>())?);
    }
    let width = sums.keys().map(|name| name.len()).max().unwrap_or(0).max("key".len());
    let mut out = format!(
        "{:width$} {:>9} {:>13} {:>13} {:>13} {:>11} {:>11}\n",
        "key", "requests", "prompt", "of it cached", "generated", "seconds", "joules"
    );
    for (name, s) in sums {
        let joules = s.joules.map_or("-".into(), |joules| format!("{joules:.0}"));
        writeln!(
            out,
            "{name:width$} {:>9} {:>13} {:>13} {:>13} {:>11.1} {joules:>11}",
            s.requests, s.prompt, s.cached, s.completion, s.seconds
        )?;
    }
    print_line(out.trim_end())
}
