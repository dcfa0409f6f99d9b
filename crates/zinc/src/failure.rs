//! How the program ends when something went wrong: a message on stderr and an exit code.

use crate::output::{plain, say};
use std::io;
use std::process::ExitCode;

/// The command line asks for something that makes no sense; exit code 2.
#[derive(Debug)]
pub(crate) struct Usage(pub(crate) String);

impl std::fmt::Display for Usage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// Ctrl-C; exit code 130.
#[derive(Debug)]
pub(crate) struct Interrupted;

impl std::fmt::Display for Interrupted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("stopped by Ctrl-C")
    }
}

impl std::error::Error for Interrupted {}

/// A usage error as an [`anyhow::Error`].
pub(crate) fn usage(message: impl Into<String>) -> anyhow::Error {
    Usage(message.into()).into()
}

/// An error and its causes as plain text, without those that the error before already ends with.
pub(crate) fn words(error: &anyhow::Error) -> String {
    let mut line = String::new();
    for cause in error.chain().map(|cause| cause.to_string()) {
        if line.is_empty() {
            line = cause;
        } else if !line.ends_with(&cause) {
            line = format!("{line}: {cause}");
        }
    }
    // Messages name what is in files.
    line.split('\n').map(plain).collect::<Vec<_>>().join("\n")
}

/// Prints an error and gives its exit code. A reader that has gone away (`zinc … | head`) is no error.
pub(crate) fn report(error: &anyhow::Error) -> ExitCode {
    let broken_pipe = |e: &(dyn std::error::Error + 'static)| {
        e.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe)
    };
    if error.chain().any(broken_pipe) {
        return ExitCode::SUCCESS;
    }
    if error.downcast_ref::<Interrupted>().is_some() {
        return ExitCode::from(130);
    }
    say!("zinc: {}", words(error));
    if error.downcast_ref::<Usage>().is_some() {
        say!("Try `zinc --help`, or `zinc help COMMAND`.");
        return ExitCode::from(2);
    }
    ExitCode::FAILURE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_said_once() {
        let inner = || io::Error::other("the disk burns");
        let plain = anyhow::Error::from(inner()).context("cannot write x");
        assert_eq!(words(&plain), "cannot write x: the disk burns");
        let told = anyhow::Error::from(inner()).context("cannot write x: the disk burns");
        assert_eq!(words(&told), "cannot write x: the disk burns");
        assert_eq!(words(&anyhow::anyhow!("no\u{1b}[31m\nmore")), "no\u{fffd}[31m\nmore", "steers no terminal");
    }
}
