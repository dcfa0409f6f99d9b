//! What the tests of the command line share: the program, its models and its output.
#![allow(dead_code)] // Each test file uses its part.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

/// A model of `tests/data`.
pub(crate) fn model(name: &str) -> String {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/arch"))
        .join(name)
        .join("model.gguf")
        .display()
        .to_string()
}

/// A folder of its own for one test.
pub(crate) fn scratch(test: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{test}.{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    folder
}

/// Runs `zinc` with some standard input.
pub(crate) fn zinc_with(input: &str, arguments: &[&str]) -> Output {
    zinc_bytes(input.as_bytes(), arguments)
}

pub(crate) fn zinc_bytes(input: &[u8], arguments: &[&str]) -> Output {
    let home = scratch("home");
    let mut child = Command::new(env!("CARGO_BIN_EXE_zinc"))
        .args(arguments)
        .env("XDG_DATA_HOME", home.join("data"))
        .env("XDG_STATE_HOME", home.join("state"))
        .env("XDG_CACHE_HOME", home.join("cache"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("zinc starts");
    // A command that does not read its input may have ended already.
    child.stdin.take().expect("a pipe").write_all(input).ok();
    child.wait_with_output().expect("zinc ends")
}

pub(crate) fn zinc(arguments: &[&str]) -> Output {
    zinc_with("", arguments)
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}

/// Asserts success and gives standard output.
pub(crate) fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{}", text(&output.stderr));
    let all = text(&output.stdout);
    // The validation layer of a driver set announces itself here.
    all.split_inclusive('\n').filter(|line| !line.starts_with("Validation Layer")).collect()
}

/// Asserts the exit code and that the message says all of these.
pub(crate) fn fails(output: &Output, code: i32, says: &[&str]) {
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{message}");
    for what in says {
        assert!(message.contains(what), "{what:?} is not in: {message}");
    }
    assert!(!message.contains("panicked"), "{message}");
}
