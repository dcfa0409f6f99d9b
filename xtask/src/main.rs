//! `cargo xtask COMMAND`: everything a developer runs that is not `cargo` itself.
//!
//! ```text
//!  setup ─► target/zinc-test/{mesa-26.1, mesa-25.0, models, python}
//!  test  ─► setup ► rows of JOBS, each on the host or inside one driver set ─► "N passed, N failed"
//!  ci    ─► fmt ► clippy ► tidy ► doc ► test
//! ```
//!
//! One file per command; this one only finds the row of [`COMMANDS`].

mod bless;
mod ci;
mod demo;
mod drivers;
mod kernels_diff;
mod process;
mod setup;
mod test;
mod tidy;

use std::process::ExitCode;

/// One command of xtask.
struct Command {
    name: &'static str,
    /// What follows the name, for the help text.
    arguments: &'static str,
    about: &'static str,
    run: fn(&[String]) -> Result<ExitCode, String>,
}

const COMMANDS: &[Command] = &[
    Command {
        name: "demo",
        arguments: "[PROMPT]",
        about: "build Zinc, obtain a small model, and answer a prompt",
        run: demo::command,
    },
    Command {
        name: "test",
        arguments: "[--fast] [--job NAME]",
        about: "set up what the tests need and run them all (--fast: fmt, clippy and host tests only)",
        run: test::command,
    },
    Command {
        name: "ci",
        arguments: "[--checks]",
        about: "fmt, clippy, tidy and docs, then `test` (not with --checks)",
        run: ci::command,
    },
    Command {
        name: "setup",
        arguments: "[--mirror URL] [--only drivers|models|python|browser]",
        about: "fetch driver sets, test models and Python packages into target/zinc-test; install Chromium",
        run: setup::command,
    },
    Command {
        name: "vk",
        arguments: "DRIVER -- PROGRAM [ARGS]",
        about: "run a program, or the test binaries of a `cargo` command, with one driver set",
        run: drivers::command,
    },
    Command {
        name: "tidy",
        arguments: "[--report]",
        about: "check what the compiler does not: arrows between crates, forbidden words, sizes",
        run: tidy::command,
    },
    Command {
        name: "bless",
        arguments: "",
        about: "accept the present output of the snapshot tests",
        run: bless::command,
    },
    Command {
        name: "kernels-diff",
        arguments: "BASE",
        about: "show how the generated kernels differ from those of a commit",
        run: kernels_diff::command,
    },
    Command {
        name: drivers::ENTER,
        arguments: "DRIVER PROGRAM [ARGS]",
        about: "what `vk` gives cargo as its runner: run one program with one driver set",
        run: drivers::enter,
    },
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let wanted = arguments.first().map_or("help", String::as_str);
    let Some(command) = COMMANDS.iter().find(|command| command.name == wanted) else {
        return help(wanted);
    };
    match (command.run)(&arguments[1..]) {
        Ok(code) => code,
        Err(message) => {
            eprintln!("error: {message}");
            ExitCode::FAILURE
        }
    }
}

fn help(wanted: &str) -> ExitCode {
    let asked = matches!(wanted, "help" | "--help" | "-h");
    if !asked {
        eprintln!("error: there is no command `{wanted}`");
    }
    println!("cargo xtask COMMAND");
    for command in COMMANDS {
        println!("  {:<48} {}", format!("{} {}", command.name, command.arguments), command.about);
    }
    println!("drivers for `vk`:");
    for (name, about) in drivers::names() {
        println!("  {name:<48} {about}");
    }
    if asked { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
