//! `cargo xtask test`: the README's test command.
//!
//! ```text
//!  setup ─► each row of JOBS: cargo test on the host or in a driver set ─┐
//!           spirv-val over the kernels that the tests wrote ────────────┴─► Tally ─► "N passed, N failed"
//! ```
//!
//! The last line of standard output is that sum, alone. A test that finds something absent prints a line
//! `not run: REASON` and returns; it counts as skipped here, not as passed.

use crate::drivers::Driver;
use crate::process::{at, cargo, run, shared_fixtures, step, test_folder};
use crate::setup;
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

/// One run of cargo's tests.
struct Job {
    name: &'static str,
    /// Driver set, or `None` for the plain machine.
    driver: Option<&'static str>,
    /// What cargo is to test.
    targets: &'static [&'static str],
}

const VULKAN: &[&str] = &[
    "--package=zinc-vulkan",
    "--package=zinc-conformance",
    "--lib",
    "--test=device",
    "--test=devices",
    "--test=direct",
    "--test=samples",
    "--test=vulkan",
];
/// Instrumented shaders compile slowly: every operation of the IR, not every model.
const INSTRUMENTED: &[&str] = &["--package", "zinc-vulkan", "--tests"];
/// The engine on the device: steps in flight, allocations, programs made ahead, a lost device, pages on disk.
const ENGINE_ON_VULKAN: &[&str] = &[
    "--package=zinc-conformance",
    "--test=streams",
    "--test=allocations",
    "--test=ahead",
    "--test=lost",
    "--test=kept",
];
/// Whole models through the binary's crate.
const MODELS_ON_VULKAN: &[&str] = &["--package", "zinc", "--test", "real", "--test", "tune"];
/// Many clients for a minute, by themselves: no part of `--workspace`.
const LOAD: &[&str] = &["--package=zinc", "--test=load"];
const RADV: &[&str] = &["--package", "zinc-conformance", "--test", "radv"];

#[rustfmt::skip]
const JOBS: &[Job] = &[
    Job { name: "host", driver: None, targets: &["--workspace"] },
    Job { name: "load", driver: None, targets: LOAD },
    Job { name: "vulkan, subgroups of 4", driver: Some("lavapipe-validated:128"), targets: VULKAN },
    Job { name: "vulkan, subgroups of 8", driver: Some("lavapipe-validated:256"), targets: VULKAN },
    Job { name: "vulkan, subgroups of 16", driver: Some("lavapipe-validated:512"), targets: VULKAN },
    Job { name: "vulkan, shaders instrumented", driver: Some("lavapipe-gpu-assisted"), targets: INSTRUMENTED },
    Job { name: "engine on vulkan", driver: Some("lavapipe-validated"), targets: ENGINE_ON_VULKAN },
    Job { name: "models on vulkan", driver: Some("lavapipe-validated"), targets: MODELS_ON_VULKAN },
    // One process per family: Mesa reads the family once.
    Job { name: "compile for navi33", driver: Some("radv:navi33"), targets: RADV },
    Job { name: "compile for navi31", driver: Some("radv:navi31"), targets: RADV },
    Job { name: "compile for gfx1201", driver: Some("radv:gfx1201"), targets: RADV },
];

/// Optimised, because tests run real models.
const PROFILE: &[&str] = &["--profile", "fast"];

/// Tests write the kernels they emit here, as `*.spv`; emptied before the first job.
fn kernels_folder() -> PathBuf {
    test_folder().join("spirv")
}

/// The command itself.
pub(crate) fn command(arguments: &[String]) -> Result<ExitCode, String> {
    let mut fast = false;
    let mut only = None;
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        match argument.as_str() {
            "--fast" => fast = true,
            "--job" => only = Some(rest.next().ok_or("--job needs a part of a job's name")?.as_str()),
            other => return Err(format!("test does not know `{other}`")),
        }
    }
    let mut total = Tally::default();
    if fast {
        crate::ci::format_and_lints()?;
    } else {
        let missing = setup::all(None);
        report_missing(&missing, &mut total);
        let kernels = kernels_folder();
        if kernels.exists() {
            fs::remove_dir_all(&kernels).map_err(at(&kernels))?;
        }
    }
    if !shared_fixtures().is_dir() {
        println!("not run: tests against shared fixtures ({} is absent)", shared_fixtures().display());
    }
    let wanted = |job: &&Job| {
        only.is_none_or(|part| job.name.contains(part)) && !(fast && (job.driver.is_some() || job.targets == LOAD))
    };
    let jobs: Vec<&Job> = JOBS.iter().filter(wanted).collect();
    if jobs.is_empty() {
        return Err(format!("no job's name contains `{}`", only.unwrap_or_default()));
    }
    let mut summary = Vec::new();
    for job in jobs {
        let start = Instant::now();
        let tally = run_job(job)?;
        summary.push((job.name, tally.clone(), start.elapsed().as_secs_f32()));
        total.add(tally);
    }
    if !fast && only.is_none() {
        let start = Instant::now();
        let tally = validate_kernels()?;
        summary.push(("spirv-val", tally.clone(), start.elapsed().as_secs_f32()));
        total.add(tally);
    }
    println!();
    for (name, tally, seconds) in summary {
        println!("{name:<32} {tally}  ({seconds:.0} s)");
    }
    for (reason, count) in &total.reasons {
        println!("not run ({count}): {reason}");
    }
    println!("{total}");
    Ok(if total.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A developer may go on with what is there; in CI (`CI` is set) an incomplete set-up is a failure.
fn report_missing(missing: &setup::Missing, total: &mut Tally) {
    for (what, why) in missing.parts() {
        if let Some(why) = why {
            eprintln!("error: the {what} are missing: {why}");
            if std::env::var_os("CI").is_some() {
                total.failed += 1;
            }
        }
    }
}

fn run_job(job: &Job) -> Result<Tally, String> {
    println!("\n== {} ({})", job.name, job.driver.unwrap_or("no driver set"));
    let mut words: Vec<String> = vec!["test".into()];
    words.extend(PROFILE.iter().chain(job.targets).map(ToString::to_string));
    words.extend(["--no-fail-fast", "--", "--show-output"].map(String::from));
    let mut command = match job.driver {
        None => {
            let mut command = cargo();
            command.args(&words);
            command
        }
        Some(name) => {
            let driver = Driver::parse(name)?;
            if !driver.is_installed() {
                return Ok(Tally::skip(format!("{}: the driver set {name} is not set up", job.name)));
            }
            driver.cargo(&words)?
        }
    };
    let mut child = command.stdout(Stdio::piped()).spawn().map_err(|error| format!("cannot start cargo: {error}"))?;
    let mut reader = Reader::default();
    if let Some(output) = child.stdout.take() {
        // Bytes, not text: a test may print anything.
        for line in BufReader::new(output).split(b'\n') {
            let line = line.map_err(|error| format!("reading the tests' output: {error}"))?;
            let line = String::from_utf8_lossy(&line);
            if reader.take(&line) {
                println!("{line}");
            }
        }
    }
    let status = child.wait().map_err(|error| format!("waiting for cargo: {error}"))?;
    let mut tally = reader.tally;
    if !status.success() && tally.failed == 0 {
        // It did not build, a test binary died, or the validation layer objected.
        println!("job failed without a failed test: cargo ended with {status}");
        tally.failed = 1;
    }
    Ok(tally)
}

/// Counts of tests.
#[derive(Clone, Default, Debug, PartialEq)]
struct Tally {
    passed: usize,
    failed: usize,
    skipped: usize,
    /// Why tests were skipped, with how many each.
    reasons: BTreeMap<String, usize>,
}

impl Tally {
    fn skip(reason: String) -> Self {
        println!("not run: {reason}");
        Self { skipped: 1, reasons: BTreeMap::from([(reason, 1)]), ..Self::default() }
    }

    fn add(&mut self, other: Tally) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
        for (reason, count) in other.reasons {
            *self.reasons.entry(reason).or_default() += count;
        }
    }
}

impl std::fmt::Display for Tally {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} passed, {} failed", self.passed, self.failed)?;
        if self.skipped > 0 { write!(f, ", {} skipped", self.skipped) } else { Ok(()) }
    }
}

/// Reads what test binaries print, line by line.
#[derive(Default)]
struct Reader {
    tally: Tally,
    /// Tests of the present binary that said `not run:`.
    not_run: usize,
    part: Part,
}

#[derive(Default, Clone, Copy, PartialEq)]
enum Part {
    #[default]
    List,
    /// The output of tests that passed; true after this test's first `not run:`.
    Successes(bool),
    Failures,
}

impl Reader {
    /// Takes one line; returns whether to show it.
    fn take(&mut self, line: &str) -> bool {
        if let Some(counts) = line.strip_prefix("test result: ") {
            let number = |word: &str| {
                let before = counts.split(word).next().unwrap_or_default().trim_end();
                before.rsplit([' ', ';']).next().and_then(|digits| digits.parse().ok()).unwrap_or(0)
            };
            let passed: usize = number("passed");
            self.tally.passed += passed.saturating_sub(self.not_run);
            self.tally.failed += number("failed");
            self.tally.skipped += number("ignored") + self.not_run;
            self.not_run = 0;
            self.part = Part::List;
            return true;
        }
        match (self.part, line) {
            (Part::List, "successes:") => self.part = Part::Successes(false),
            (Part::List | Part::Successes(_), "failures:") => self.part = Part::Failures,
            (Part::Successes(_), _) if line.starts_with("---- ") => self.part = Part::Successes(false),
            (Part::Successes(seen), _) => {
                if let Some(reason) = line.strip_prefix("not run: ") {
                    *self.tally.reasons.entry(reason.to_string()).or_default() += 1;
                    if !seen {
                        self.not_run += 1;
                        self.part = Part::Successes(true);
                    }
                }
            }
            _ => {}
        }
        match self.part {
            Part::List => !(line.is_empty() || line.ends_with("... ok") || line.starts_with("running ")),
            Part::Successes(_) => false,
            Part::Failures => true,
        }
    }
}

/// Checks every kernel that the tests wrote with a `spirv-val` that knows the newest instructions.
fn validate_kernels() -> Result<Tally, String> {
    println!("\n== spirv-val");
    let folder = kernels_folder();
    let mut files = Vec::new();
    collect(&folder, &mut files);
    let driver = Driver::parse("lavapipe")?;
    if !driver.is_installed() {
        return Ok(Tally::skip("spirv-val: the driver set is not set up".to_string()));
    }
    if files.is_empty() {
        // Nothing validated must not look like everything valid.
        println!("no test wrote a kernel below {}", folder.display());
        return Ok(Tally { failed: 1, ..Tally::default() });
    }
    // One shell for many files: starting each by itself takes longer than validating it.
    let script =
        "for f; do spirv-val --target-env vulkan1.3 --scalar-block-layout \"$f\" || echo \"invalid: $f\"; done";
    let mut tally = Tally::default();
    for batch in files.chunks(200) {
        let mut command = driver.program(Path::new("sh"), None)?;
        let said = crate::process::capture(command.args(["-c", script, "sh"]).args(batch))?;
        let invalid = said.lines().filter(|line| line.starts_with("invalid: ")).count();
        print!("{said}");
        tally.failed += invalid;
        tally.passed += batch.len() - invalid;
    }
    println!("{tally}");
    Ok(tally)
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    for path in fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()) {
        if path.is_dir() {
            collect(&path, files);
        } else if path.extension().is_some_and(|kind| kind == "spv") {
            files.push(path);
        }
    }
    files.sort();
}

/// Runs one of cargo's commands with a heading.
pub(crate) fn cargo_step(heading: &str, words: &[&str], environment: &[(&str, &str)]) -> Result<(), String> {
    step(heading);
    let mut command: Command = cargo();
    run(command.args(words).envs(environment.iter().copied()))
}

#[cfg(test)]
mod tests {
    use super::{Reader, Tally};
    use std::collections::BTreeMap;

    const OUTPUT: &str = "\nrunning 4 tests\ntest a ... ok\ntest b ... ok\ntest c ... FAILED\ntest d ... ignored\n\n\
        successes:\n\n---- a stdout ----\nnot run: fixtures absent\nnot run: model absent\n\n---- b stdout ----\nfine\n\n\
        successes:\n    a\n    b\n\nfailures:\n\n---- c stdout ----\nnot run: is no excuse here\n\nfailures:\n    c\n\n\
        test result: FAILED. 2 passed; 1 failed; 1 ignored; 0 measured; 3 filtered out; finished in 0.00s\n";

    #[test]
    fn counts_and_shows() {
        let mut reader = Reader::default();
        let shown: Vec<&str> = OUTPUT.lines().filter(|line| reader.take(line)).collect();
        let reasons = BTreeMap::from([("fixtures absent".to_string(), 1), ("model absent".to_string(), 1)]);
        assert_eq!(reader.tally, Tally { passed: 1, failed: 1, skipped: 2, reasons });
        assert!(shown.contains(&"test c ... FAILED") && shown.contains(&"not run: is no excuse here"));
        assert!(!shown.contains(&"fine") && !shown.contains(&"test a ... ok"));
    }

    #[test]
    fn closing_line() {
        assert_eq!(Tally { passed: 3, ..Tally::default() }.to_string(), "3 passed, 0 failed");
        let skipped = Tally { passed: 3, failed: 1, skipped: 2, ..Tally::default() };
        assert_eq!(skipped.to_string(), "3 passed, 1 failed, 2 skipped");
    }
}
