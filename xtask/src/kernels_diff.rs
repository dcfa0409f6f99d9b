//! `cargo xtask kernels-diff BASE`: how the kernels that the compiler generates differ from those of a commit.
//!
//! ```text
//!  BASE ─git worktree─► zinc explain ─► before/*.txt ─┐
//!  here ───────────────► zinc explain ─► after/*.txt ──┴─ git diff ─► terminal
//! ```

use crate::drivers::Driver;
use crate::process::{at, capture, run, step, test_folder, workspace};
use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};

/// Models whose kernels are compared: name of the file, and what `explain --shape` takes. Shapes, so that no model
/// file is needed; one for each family of layers and weight formats.
const SUBJECTS: &[(&str, &str)] = &[
    ("llama3.1-8b-q4_k_m", "llama3.1-8b:q4_k_m"),
    ("llama3.1-8b-q8_0", "llama3.1-8b:q8_0"),
    ("qwen2.5-7b-q4_k_m", "qwen2.5-7b:q4_k_m"),
];

/// The command itself.
pub(crate) fn command(arguments: &[String]) -> Result<ExitCode, String> {
    let [base] = arguments else {
        return Err("usage: cargo xtask kernels-diff BASE (a commit, such as main or HEAD~1)".to_string());
    };
    let folder = test_folder().join("kernels-diff");
    let tree = folder.join("tree");
    let mut git = Command::new("git");
    git.current_dir(workspace()).args(["rev-parse", "--verify", "--quiet"]).arg(format!("{base}^{{commit}}"));
    let commit = capture(&mut git).map_err(|_| format!("git knows no commit `{base}`"))?;
    remove_tree(&tree);
    fs::create_dir_all(&folder).map_err(at(&folder))?;
    let mut add = Command::new("git");
    add.current_dir(workspace()).args(["worktree", "add", "--quiet", "--detach"]).arg(&tree).arg(commit.trim());
    run(&mut add)?;
    let outcome = compare(base, &tree, &folder);
    remove_tree(&tree);
    outcome
}

fn compare(base: &str, tree: &Path, folder: &Path) -> Result<ExitCode, String> {
    explain(&workspace(), &folder.join("after"), "the working tree")?;
    explain(tree, &folder.join("before"), base)?;
    let mut diff = Command::new("git");
    diff.current_dir(folder).args(["--no-pager", "diff", "--no-index", "--stat", "--patch", "before", "after"]);
    let status = diff.status().map_err(|error| format!("cannot start git: {error}"))?;
    match status.code() {
        Some(0) => step("the kernels are the same"),
        Some(1) => {}
        _ => return Err(format!("git diff ended with {status}")),
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes the text of all kernels that the sources in `tree` generate.
fn explain(tree: &Path, folder: &Path, name: &str) -> Result<(), String> {
    // Kernels depend on the device's limits, so both sides see the same software device.
    let driver = Driver::parse("lavapipe")?;
    if folder.exists() {
        fs::remove_dir_all(folder).map_err(at(folder))?;
    }
    fs::create_dir_all(folder).map_err(at(folder))?;
    for (file, subject) in SUBJECTS {
        step(&format!("kernels of {subject} by {name}"));
        let words = ["run", "--quiet", "--profile", "fast", "--package", "zinc", "--", "explain"];
        let options = ["--shape", subject, "--stage", "kernel", "--device", "vulkan"];
        let words: Vec<String> = words.iter().chain(&options).map(ToString::to_string).collect();
        let mut command = driver.cargo(&words)?;
        // Both trees build into one target folder: what they share is built once.
        command.current_dir(tree).env("CARGO_TARGET_DIR", test_folder().join("kernels-diff/target"));
        let text = capture(&mut command).map_err(|error| {
            format!("{name} cannot show its kernels with `zinc explain --shape {subject} --stage kernel`:\n{error}")
        })?;
        let path = folder.join(format!("{file}.txt"));
        fs::write(&path, text).map_err(at(&path))?;
    }
    Ok(())
}

/// Removes the second working tree; says nothing when there is none.
fn remove_tree(tree: &Path) {
    let mut remove = Command::new("git");
    remove.current_dir(workspace()).args(["worktree", "remove", "--force"]).arg(tree);
    let _ = capture(&mut remove);
}
