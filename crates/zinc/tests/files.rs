//! The program and the files, terminals and pipes it reads and writes.
#![cfg(unix)]

mod program;

use program::*;
use std::io::{Read, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::{Child, Command, Stdio};

#[test]
fn folders_and_pipes_are_no_models() {
    let folder = scratch("no-file");
    let pipe = folder.join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().expect("mkfifo").success());
    let (pipe, folder) = (pipe.display().to_string(), folder.display().to_string());
    fails(&zinc(&["inspect", &pipe]), 1, &["a pipe", "not a file"]);
    fails(&zinc(&["inspect", &folder]), 1, &["a folder", ".gguf"]);
}

#[test]
fn causes_are_said_once() {
    let output = zinc(&["inspect", "no-such-file.gguf"]);
    assert_eq!(text(&output.stderr).matches("No such file").count(), 1, "{}", text(&output.stderr));
}

#[test]
fn logits_are_written_through_links_and_to_devices() {
    let (m, folder) = (model("llama"), scratch("logits-out"));
    let (ids, link, target) = (folder.join("ids"), folder.join("link"), folder.join("target"));
    std::fs::write(&ids, "1 2 3").expect("written");
    std::fs::write(&target, "old").expect("written");
    std::fs::set_permissions(&target, PermissionsExt::from_mode(0o640)).expect("permissions");
    symlink(&target, &link).expect("a link");
    let ids = ids.display().to_string();
    let to = |out: &str| zinc(&["logits", &m, "--tokens", &ids, "-o", out, "--device", "cpu"]);
    stdout(&to(&link.display().to_string()));
    assert!(link.is_symlink(), "the link is still one");
    let written = std::fs::metadata(&target).expect("the file it names");
    assert!(written.len() > 3 * 512 * 4, "{}", written.len());
    assert_eq!(written.permissions().mode() & 0o777, 0o640);
    // What /dev/stdout names here is a pipe.
    assert!(to("/dev/stdout").stdout.len() > 3 * 512 * 4);
}

#[test]
fn a_history_that_cannot_be_kept_is_a_warning() {
    let m = model("llama");
    let mut child = Command::new(env!("CARGO_BIN_EXE_zinc"))
        .args(["chat", &m, "--chat-template", "chatml", "-n", "2", "--device", "cpu"])
        .env("XDG_STATE_HOME", "/dev/null")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("zinc starts");
    child.stdin.take().expect("a pipe").write_all(b"hi\n").expect("written");
    let output = child.wait_with_output().expect("zinc ends");
    fails(&output, 0, &["warning: the history is not kept", "--no-history"]);
}

#[test]
fn conversations_at_the_same_time_keep_each_others_history() {
    let (m, state) = (model("llama"), scratch("history"));
    let chat = |line: &str| {
        let mut child = Command::new(env!("CARGO_BIN_EXE_zinc"))
            .args(["chat", &m, "--chat-template", "chatml", "-n", "1", "--device", "cpu"])
            .env("XDG_STATE_HOME", &state)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("zinc starts");
        child.stdin.as_mut().expect("a pipe").write_all(line.as_bytes()).expect("written");
        child
    };
    assert!(chat("first\n").wait().expect("zinc ends").success());
    // All have read the history, and answered, before one of them ends.
    let mut children: Vec<Child> = (0..3).map(|i| chat(&format!("line {i}\n"))).collect();
    for child in &mut children {
        child.stdout.as_mut().expect("a pipe").read_exact(&mut [0]).expect("an answer");
    }
    for child in &mut children {
        assert!(child.wait().expect("zinc ends").success());
    }
    let history = std::fs::read_to_string(state.join("zinc/chat-history")).expect("a history");
    for line in ["first", "line 0", "line 1", "line 2"] {
        assert!(history.contains(line), "{line} is not in {history}");
    }
}

#[test]
fn a_stray_byte_does_not_end_a_chat_on_a_terminal() {
    let m = model("llama");
    let chat = ["chat", &m, "--chat-template", "chatml", "-n", "2", "--device", "cpu"];
    fails(&zinc_bytes(b"\xff\nhi\n", &chat), 1, &["cannot read the next message", "UTF-8"]);
    // `script` (util-linux) runs a program on a terminal of its own.
    let line = format!("'{}' chat '{m}' --chat-template chatml -n 2 --device cpu", env!("CARGO_BIN_EXE_zinc"));
    let started = Command::new("script")
        .args(["-qec", &line, "/dev/null"])
        .env("XDG_STATE_HOME", scratch("terminal"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let Ok(mut child) = started else {
        println!("not run: there is no program `script`");
        return;
    };
    // What is typed between two prompts is lost: wait for each.
    let mut said = vec![];
    for (line, then) in [(&b"\xff\r"[..], "left out)"), (b"/system Be kind.\r", "(system prompt set"), (b"/exit\r", "")]
    {
        read_until(&mut child, "> ", &mut said);
        child.stdin.as_mut().expect("a pipe").write_all(line).expect("written");
        read_until(&mut child, then, &mut said);
    }
    assert!(child.wait().expect("script ends").success(), "{}", String::from_utf8_lossy(&said));
}

/// Reads standard output on, up to this text.
fn read_until(child: &mut Child, end: &str, said: &mut Vec<u8>) {
    let from = said.len();
    let mut byte = [0];
    while !String::from_utf8_lossy(&said[from..]).contains(end) {
        let read = child.stdout.as_mut().expect("a pipe").read_exact(&mut byte);
        read.unwrap_or_else(|e| panic!("{e} before {end:?}: {}", String::from_utf8_lossy(said)));
        said.push(byte[0]);
    }
}

/// Runs `zinc` with standard output and error closed or full; gives the exit code.
fn redirected(shell: &str, arguments: &[&str]) -> Option<i32> {
    let line = format!("\"$0\" \"$@\" {shell}");
    let mut command = Command::new("sh");
    command.args(["-c", &line, env!("CARGO_BIN_EXE_zinc")]).args(arguments);
    command.env("XDG_STATE_HOME", scratch("home").join("state"));
    command.status().expect("sh").code()
}

#[test]
fn nobody_to_tell_is_no_panic() {
    let m = model("llama");
    let run = ["run", &m, "-p", "a", "-n", "4", "--device", "cpu", "--raw"];
    // Errors can go nowhere; the exit code still tells.
    assert_eq!(redirected(">/dev/null 2>/dev/full", &run), Some(0));
    assert_eq!(redirected("2>/dev/full", &["run", "no-such-file.gguf", "-p", "a"]), Some(1));
    // Answers can go nowhere: an error, in a chat too.
    let chat = ["chat", &m, "--chat-template", "chatml", "-n", "2", "--device", "cpu"];
    assert_eq!(redirected(">/dev/full 2>/dev/null", &run), Some(1));
    assert_eq!(redirected(">/dev/full 2>/dev/null <<end\nhi\nhi\nend", &chat), Some(1));
}
