//! The Python packages that tests talk to Zinc with: clients that Zinc did not write.
//!
//! ```text
//!  PyPI ─pip install --target─► target/zinc-test/python/openai-VERSION (and what checks JSON against schemas)
//! ```
//!
//! A folder of its own and no virtual environment: Debian's Python has no `venv` unless one more package is installed.

use super::models::python_with_pip;
use crate::process::{at, run, step, test_folder};
use std::fs;
use std::process::Command;

/// OpenAI's own client, for the tour of `zinc serve`.
const OPENAI: &str = "3.57.0";
/// What says whether an answer is what its schema describes.
const JSONSCHEMA: &str = "4.26.0";

/// Installs what is not there yet.
pub(crate) fn all() -> Result<(), String> {
    let folder = test_folder().join("python");
    let done = folder.join(format!("openai-{OPENAI}-jsonschema-{JSONSCHEMA}"));
    if done.is_dir() {
        return Ok(());
    }
    let packages = [format!("openai=={OPENAI}"), format!("jsonschema=={JSONSCHEMA}")];
    step(&format!("pip install {}", packages.join(" ")));
    let part = folder.join("part");
    if part.exists() {
        fs::remove_dir_all(&part).map_err(at(&part))?;
    }
    let mut pip = Command::new(python_with_pip()?);
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-warn-conflicts"]);
    run(pip.args(["--root-user-action", "ignore", "--target"]).arg(&part).args(&packages))?;
    // The final name only when all of it is there.
    fs::rename(&part, &done).map_err(at(&done))
}
