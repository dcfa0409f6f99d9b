//! Ctrl-C stops what is going on; pressed again, it ends the program.
#![cfg(unix)]

mod program;

use program::*;
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};

/// Starts `zinc` and waits for the first byte of its answer.
fn answering(arguments: &[&str], input: &str) -> Child {
    let mut child = Command::new(env!("CARGO_BIN_EXE_zinc"))
        .args(arguments)
        .env("XDG_STATE_HOME", scratch("home").join("state"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("zinc starts");
    child.stdin.as_mut().expect("a pipe").write_all(input.as_bytes()).expect("written");
    let mut byte = [0];
    child.stdout.as_mut().expect("a pipe").read_exact(&mut byte).expect("an answer");
    child
}

/// The shell's own `kill`: not every system has the program.
fn signal(name: &str, child: &Child) {
    let kill = format!("kill -{name} {}", child.id());
    assert!(Command::new("sh").args(["-c", &kill]).status().expect("sh").success());
}

fn press(child: &Child) {
    signal("INT", child);
}

#[test]
fn stops_run_with_exit_code_130() {
    let m = model("llama");
    let endless = ["run", &m, "-p", "a", "--raw", "--ignore-eos", "-c", "100000", "--device", "cpu"];
    let child = answering(&endless, "");
    press(&child);
    let output = child.wait_with_output().expect("zinc ends");
    fails(&output, 130, &["tokens/s"]);
}

#[test]
fn ends_the_program_at_once_the_second_time() {
    // One step of a long prompt, many seconds long.
    let shape = ["bench", "--shape", "llama3.2-1b:q4_0", "--layers", "4", "-p", "4096", "-n", "0", "--ubatch-size"];
    let mut child = Command::new(env!("CARGO_BIN_EXE_zinc"))
        .args([&shape[..], &["4096", "--device", "cpu"]].concat())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("zinc starts");
    let mut byte = [0];
    child.stderr.as_mut().expect("a pipe").read_exact(&mut byte).expect("it says which device it takes");
    std::thread::sleep(std::time::Duration::from_secs(1));
    press(&child);
    std::thread::sleep(std::time::Duration::from_millis(100));
    press(&child);
    assert_eq!(child.wait().expect("zinc ends").code(), Some(130));
}

#[test]
fn stops_an_answer_but_not_the_chat() {
    let m = model("llama");
    let endless = ["chat", &m, "--chat-template", "chatml", "--ignore-eos", "-c", "100000", "--device", "cpu"];
    let mut child = answering(&endless, "hello\n");
    press(&child);
    child.stdin.as_mut().expect("a pipe").write_all(b"/system\n").expect("still there");
    let output = child.wait_with_output().expect("zinc ends");
    let said = text(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("(stopped)") && said.contains("system prompt: (none)"), "{said}");
}

#[test]
fn ends_a_chat_that_waits_for_a_pipe() {
    let m = model("llama");
    let chat = ["chat", &m, "--chat-template", "chatml", "--ignore-eos", "-n", "3", "--device", "cpu"];
    let mut child = answering(&chat, "hello\n");
    // Said when the answer is complete and the next line has been read.
    child.stdin.as_mut().expect("a pipe").write_all(b"/system\n").expect("still there");
    let mut said = String::new();
    let stderr = child.stderr.as_mut().expect("a pipe");
    while !said.contains("system prompt: (none)\n") {
        let mut byte = [0];
        stderr.read_exact(&mut byte).expect("an answer");
        said.push(byte[0] as char);
    }
    // It may or may not wait by then.
    press(&child);
    // Kept open: the end of the input would end the chat, too.
    let _input = child.stdin.take();
    assert_eq!(child.wait().expect("zinc ends").code(), Some(130));
}

#[test]
fn a_request_to_terminate_is_obeyed() {
    let m = model("llama");
    let endless = ["chat", &m, "--chat-template", "chatml", "--ignore-eos", "-c", "100000", "--device", "cpu"];
    let mut child = answering(&endless, "hello\n");
    signal("TERM", &child);
    assert!(!child.wait().expect("zinc ends").success());
}
