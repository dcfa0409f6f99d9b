//! `zinc serve` as a program: it says where it listens, refuses what is unsafe, ends when told to; and a tour by OpenAI's
//! own client.

mod program;
mod served;

use program::*;
use served::Served;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

#[cfg(unix)]
#[test]
fn ends_when_it_is_told_to() {
    for name in ["INT", "TERM"] {
        let served = Served::start(&[&model("llama")]);
        // The shell's own `kill`: not every system has the program.
        let kill = |name: &str| {
            let kill = format!("kill -{name} {}", served.id());
            assert!(Command::new("sh").args(["-c", &kill]).status().expect("sh").success());
        };
        kill("HUP");
        std::thread::sleep(Duration::from_millis(100));
        assert!(ureq::get(format!("{}/health", served.base)).call().is_ok(), "a closed terminal is no reason to end");
        kill(name);
        assert_eq!(served.end(), Some(0), "{name}");
    }
}

#[cfg(unix)]
#[test]
fn reads_its_keys_anew() {
    let file = scratch("reload").join("keys");
    std::fs::write(&file, "sk-old\n").expect("written");
    let served = Served::start(&[&model("llama"), "--api-key-file", &file.display().to_string()]);
    let opens = |key: &str| {
        ureq::get(format!("{}/v1/models", served.base)).header("Authorization", format!("Bearer {key}")).call().is_ok()
    };
    let hang_up = || {
        let kill = format!("kill -HUP {}", served.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().expect("sh").success());
    };
    assert!(opens("sk-old") && !opens("sk-new"));
    std::fs::write(&file, "sk-new\n").expect("written");
    assert!(opens("sk-old"), "not before it is told");
    let start = Instant::now();
    while !opens("sk-new") {
        assert!(start.elapsed() < Duration::from_secs(120), "the new key never opens");
        hang_up();
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(!opens("sk-old"));
    std::fs::write(&file, "# all gone\n").expect("written");
    hang_up();
    std::thread::sleep(Duration::from_millis(200));
    assert!(opens("sk-new") && !opens("sk-old") && !opens(""), "it does not open by itself");
}

#[test]
fn answers_under_the_names_it_is_given() {
    let served = Served::start(&[&model("llama"), "--alias", "one", "--alias", "two", "--chat-template", "chatml"]);
    let names = ureq::get(format!("{}/v1/models", served.base)).call().expect("a list").into_body().read_to_string();
    let names: serde_json::Value = serde_json::from_str(&names.expect("text")).expect("JSON");
    assert_eq!((&names["data"][0]["id"], &names["data"][1]["id"]), (&"one".into(), &"two".into()));
    let body =
        r#"{"model": "two", "messages": [{"role": "user", "content": "x"}], "max_tokens": 2, "ignore_eos": true}"#;
    let answer = ureq::post(format!("{}/v1/chat/completions", served.base)).send(body).expect("an answer");
    let answer = answer.into_body().read_to_string().expect("text");
    let answer: serde_json::Value = serde_json::from_str(&answer).expect("JSON");
    assert_eq!((&answer["model"], &answer["usage"]["completion_tokens"]), (&"two".into(), &2.into()));
}

#[test]
fn refuses_what_is_unsafe_or_cannot_be() {
    let m = model("llama");
    let serve = |more: &[&str]| zinc(&[&["serve", &m, "--device", "cpu"], more].concat());
    fails(&serve(&["--host", "0.0.0.0"]), 2, &["--api-key", "--allow-anyone"]);
    fails(&serve(&["--host", "no such host.invalid"]), 1, &["cannot listen"]);
    fails(&serve(&["--api-key", ""]), 2, &["API key 1"]);
    fails(&serve(&["--temp", "nan"]), 2, &["temperature"]);
    let file = scratch("keys").join("empty");
    std::fs::write(&file, "# none yet\n").expect("written");
    fails(&serve(&["--api-key-file", &file.display().to_string()]), 2, &["has no keys"]);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("an address").port().to_string();
    fails(&serve(&["--port", &port]), 1, &["cannot listen", &port]);
    fails(&zinc(&["serve", "no-such-file.gguf", "--port", "0", "--device", "cpu"]), 1, &["no-such-file.gguf"]);
}

/// The folder of OpenAI's Python client and the real model, if both have been set up.
fn tour_needs() -> Result<(PathBuf, PathBuf), &'static str> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/zinc-test");
    let model = folder.join("models/SmolLM2-135M-Instruct.Q4_1.gguf");
    let packages = std::fs::read_dir(folder.join("python")).ok().and_then(|entries| {
        let paths = entries.flatten().map(|e| e.path());
        paths.filter(|p| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with("openai-"))).max()
    });
    if !model.exists() {
        return Err("SmolLM2-135M-Instruct.Q4_1.gguf absent (cargo xtask setup)");
    }
    let packages = packages.ok_or("OpenAI's Python client absent (cargo xtask setup)")?;
    let python = Command::new("python3").arg("--version").output();
    if python.is_ok_and(|p| p.status.success()) { Ok((packages, model)) } else { Err("python3 absent") }
}

#[test]
fn the_official_client_finds_all_it_looks_for() {
    let (packages, model) = match tour_needs() {
        Ok(both) => both,
        Err(why) => return println!("not run: {why}"),
    };
    let model = model.display().to_string();
    let keys = scratch("tour").join("keys");
    std::fs::write(&keys, "sk-tour name=tour\nsk-slow name=slow rpm=1\n").expect("written");
    let keys = keys.display().to_string();
    let model = [&model, "-c", "2048", "-np", "4", "--alias", "smol"];
    let limits = ["--api-key-file", &keys, "--queue", "60", "--max-request", "1", "--max-request-memory", "2"];
    let served = Served::start(&[&model[..], &limits[..]].concat());
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tour/openai_tour.py");
    let output = Command::new("python3")
        .arg(script)
        .args([&served.base, "sk-tour", "sk-slow", "smol"])
        .env("PYTHONPATH", packages)
        .env("NO_PROXY", "127.0.0.1")
        .output()
        .expect("python3 starts");
    let said = text(&output.stdout);
    assert!(output.status.success(), "{said}{}", text(&output.stderr));
    println!("{said}");
    assert!(said.lines().last().is_some_and(|l| l.contains("\"steps\": 23")), "{said}");
}
