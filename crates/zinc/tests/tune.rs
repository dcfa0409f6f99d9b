//! `zinc tune` as a user meets it: on software Vulkan, with a tiny model.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A folder of its own for one test, empty.
fn scratch(test: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{test}.{}", std::process::id()));
    std::fs::remove_dir_all(&folder).ok();
    std::fs::create_dir_all(&folder).expect("a folder");
    folder
}

fn model(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data").join(name).join("model.gguf").display().to_string()
}

fn zinc(home: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_zinc"));
    command.args(arguments).env("XDG_CACHE_HOME", home).output().expect("zinc starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}

/// Asserts success and gives standard output, without what the validation layer says of itself.
fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{}", text(&output.stderr));
    let all = text(&output.stdout);
    all.split_inclusive('\n').filter(|line| !line.starts_with("Validation Layer")).collect()
}

/// Can something run here?
fn vulkan() -> bool {
    let set = std::env::var("ZINC_TEST_VULKAN").unwrap_or_default();
    if set.is_empty() || set.starts_with("radv:") {
        println!("not run: no Vulkan device that runs");
        return false;
    }
    true
}

/// The only file of a folder.
fn only_file(folder: &Path) -> PathBuf {
    let files: Vec<PathBuf> = std::fs::read_dir(folder).expect("a folder").flatten().map(|f| f.path()).collect();
    assert_eq!(files.len(), 1, "{files:?}");
    files[0].clone()
}

#[test]
fn what_was_tuned_is_kept_used_explained_and_forgotten() {
    if !vulkan() {
        return;
    }
    let (home, model) = (scratch("tune"), model("quant/Q4_K"));
    let tune = |budget: &str| -> serde_json::Value {
        let out = zinc(&home, &["tune", &model, "--device", "vulkan", "--budget", budget, "--json"]);
        serde_json::from_str(&stdout(&out)).expect("JSON")
    };
    // How much time a round takes is the machine's affair; a search goes on where the one before ended.
    let timed = |report: &serde_json::Value| report["searches"][0]["timed"].as_u64() > Some(0);
    let report = ["5", "25", "125", "625"].into_iter().map(tune).find(timed).expect("a round fits into ten minutes");
    let search = &report["searches"][0];
    let keys = search["keys"].as_array().expect("keys");
    assert!(keys.len() >= 4, "{report:#}");
    assert!(keys.iter().all(|k| k["result"]["rule_seconds"].as_f64() > Some(0.0)), "{report:#}");
    assert_eq!(report["quarantine"].as_array().map(Vec::len), Some(0), "{report:#}");
    assert!(search["rules_differ_from_cpu"]["rms"].as_f64() < Some(2e-2), "{report:#}");

    // A cut that was certainly found better, written by hand: it is used, and said to be.
    let file = only_file(&home.join("zinc/tuned"));
    let mut record: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).expect("kept")).expect("JSON");
    let key = keys.iter().map(|k| k["key"].as_str().expect("a key")).find(|k| k.starts_with("matvec_glu "));
    let key = key.expect("a gated unit");
    let result = &mut record["results"][key];
    let rule = result["rule"].as_str().expect("a cut").to_string();
    let other = if rule.starts_with("2x") { "4x2x4 u1" } else { "2x2x8 u1" };
    (result["cut"], result["seconds"]) = (other.into(), (result["rule_seconds"].as_f64().expect("time") / 2.0).into());
    std::fs::write(&file, record.to_string()).expect("written");
    let why =
        |more: &[&str]| stdout(&zinc(&home, &[&["explain", &model, "--device", "vulkan", "--why"], more].concat()));
    let tuned = why(&[]);
    assert!(tuned.contains(&format!("{other}: tuned: 50.0 % faster than by rule")), "{tuned}");
    assert!(tuned.contains("verified against the CPU"), "{tuned}");
    assert!(why(&["--no-tuned"]).contains(&format!("{rule}: as the rule says; not tuned")), "{tuned}");
    let kernels = |more: &[&str]| {
        let ask = ["explain", &model, "--device", "vulkan", "--stage", "kernel", "--kernel", "matvec_glu"];
        stdout(&zinc(&home, &[&ask, more].concat()))
    };
    assert_ne!(kernels(&[]), kernels(&["--no-tuned"]), "the kernels shown are those in use");

    // Answers are the same, and a barred cut is not used.
    let logits = |more: &[&str]| {
        let run = ["logits", &model, "--device", "vulkan", "--ubatch-size", "1", "--tokens"];
        let (ids, out) = (home.join("ids.json"), home.join("logits.safetensors"));
        std::fs::write(&ids, "[3, 14, 15, 92]").expect("written");
        let files = [ids.to_str().expect("a path"), "-o", out.to_str().expect("a path")];
        stdout(&zinc(&home, &[&run[..], &files[..], more].concat()));
        let bytes = std::fs::read(&out).expect("logits");
        let tensors = safetensors::SafeTensors::deserialize(&bytes).expect("safetensors");
        let data = tensors.tensor("logits").expect("logits").data().to_vec();
        data.chunks_exact(4).map(|w| f32::from_le_bytes([w[0], w[1], w[2], w[3]])).collect::<Vec<f32>>()
    };
    let (with, without) = (logits(&[]), logits(&["--no-tuned"]));
    let off = with.iter().zip(&without).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(with.len() == without.len() && off < 1e-2, "{off}");
    record["quarantine"] = serde_json::json!([{ "key": key, "cut": other, "reason": "it was wrong" }]);
    std::fs::write(&file, record.to_string()).expect("written");
    let barred = why(&[]);
    assert!(barred.contains(&format!("{other} is quarantined with this driver: it was wrong")), "{barred}");
    assert!(barred.contains(&format!("{rule}: as the rule says, although {other} was found faster")), "{barred}");

    // Damage is mentioned, and as good as nothing.
    std::fs::write(&file, "{ half a rec").expect("written");
    let damaged = zinc(&home, &["explain", &model, "--device", "vulkan", "--why"]);
    assert!(stdout(&damaged).contains("not tuned") && text(&damaged.stderr).contains("damaged"));
    let forget = ["tune", "--device", "vulkan", "--forget"];
    assert!(text(&zinc(&home, &forget).stderr).contains("is forgotten") && !file.exists());
    assert!(text(&zinc(&home, &forget).stderr).contains("nothing to forget"));
}

#[test]
fn only_gpus_are_tuned() {
    let out = zinc(&scratch("tune-cpu"), &["tune", &model("arch/llama"), "--device", "cpu"]);
    assert_eq!(out.status.code(), Some(1));
    assert!(text(&out.stderr).contains("only GPUs have kernels to tune"), "{}", text(&out.stderr));
    let out = zinc(&scratch("tune-odd"), &["tune", &model("arch/llama"), "--budget", "-1"]);
    assert_eq!(out.status.code(), Some(2));
}

/// The CPU and devices that are not here have nothing to choose, or only rules.
#[test]
fn rules_are_explained_without_a_device() {
    let home = scratch("why");
    let m = model("quant/Q4_K");
    let out = stdout(&zinc(&home, &["explain", &m, "--device-profile", "rdna3", "--why"]));
    assert!(out.contains("matvec_glu ") && out.contains("as the rule says; not tuned"), "{out}");
    assert!(out.contains("without a choice, cut by rule: ") && out.contains("attention ("), "{out}");
    let cpu = zinc(&home, &["explain", &m, "--device", "cpu", "--why"]);
    assert!(!cpu.status.success() && text(&cpu.stderr).contains("natively"));
}
