//! The commands as a user meets them: output, exit codes and error messages, with tiny models on the CPU.

mod program;

use program::{fails, model, scratch, stdout, text, zinc, zinc_with};

#[test]
fn run_streams_an_answer_and_states_its_speed() {
    let m = model("llama");
    let greedy = ["run", &m, "-p", "the old man", "-n", "8", "--temp", "0", "--device", "cpu", "--raw", "--ignore-eos"];
    let first = zinc(&greedy);
    assert!(!stdout(&first).trim().is_empty());
    let said = text(&first.stderr);
    assert!(said.contains("tokens/s") && said.contains("act q8") && said.contains("as asked"), "{said}");
    assert_eq!(stdout(&zinc(&greedy)), stdout(&first), "greedy is the same each time");
    let from_stdin: Vec<&str> = greedy.iter().copied().filter(|a| !["-p", "the old man"].contains(a)).collect();
    assert_eq!(stdout(&zinc_with("the old man", &from_stdin)), stdout(&first));
}

#[test]
fn the_same_seed_gives_the_same_text() {
    let m = model("llama");
    let with = |seed: &str| {
        let common = ["run", &m, "-p", "a", "-n", "12", "--temp", "1.5", "--device", "cpu", "--raw", "--ignore-eos"];
        stdout(&zinc(&[&common[..], &["-s", seed, "--top-k", "0", "--min-p", "0"]].concat()))
    };
    assert_eq!(with("7"), with("7"));
    assert_ne!(with("7"), with("8"));
}

#[test]
fn run_gives_json_and_the_fixtures_greedy_tokens() {
    // The prompt of the fixture, through detokenize and back.
    let m = model("qwen2");
    let shown = stdout(&zinc(&["tokenize", &m, "-p", "some words of text", "--ids"]));
    let back = stdout(&zinc_with(&shown, &["detokenize", &m]));
    assert_eq!(back.trim_end(), "some words of text");
    let run = ["run", &m, "-p", "some words", "-n", "5", "--temp", "0", "--raw", "--ignore-eos", "--json"];
    let run = stdout(&zinc(&[&run[..], &["--device", "cpu", "--act", "f32"]].concat()));
    let value: serde_json::Value = serde_json::from_str(&run).expect("JSON");
    assert_eq!(value["tokens"].as_array().expect("tokens").len(), 5);
    assert_eq!((value["end"].as_str(), value["act"].as_str()), (Some("length"), Some("f32")));
    assert_eq!(value["timing"]["generated_tokens"], 5);
}

#[test]
fn logits_are_those_of_transformers() {
    let folder = scratch("logits");
    let expected = std::fs::read(model("llama").replace("model.gguf", "expected.safetensors")).expect("expected");
    let expected = safetensors::SafeTensors::deserialize(&expected).expect("safetensors");
    let words = |name: &str| -> Vec<u32> {
        let data = expected.tensor(name).expect("a tensor").data().to_vec();
        data.chunks_exact(4).map(|w| u32::from_le_bytes([w[0], w[1], w[2], w[3]])).collect()
    };
    let (ids, out) = (folder.join("ids.json"), folder.join("out.safetensors"));
    std::fs::write(&ids, format!("{:?}", words("prompt"))).expect("written");
    let (ids, out_name) = (ids.display().to_string(), out.display().to_string());
    let m = model("llama");
    let common = ["logits", &m, "--tokens", &ids, "-o", &out_name];
    stdout(&zinc(&[&common[..], &["--device", "cpu", "--act", "f32", "-ctk", "f32", "-ctv", "f32"]].concat()));
    let got = std::fs::read(&out).expect("an output");
    let got = safetensors::SafeTensors::deserialize(&got).expect("safetensors");
    let got = got.tensor("logits").expect("logits");
    assert_eq!(got.shape(), [24, 512]);
    let floats = got.data().chunks_exact(4).map(|w| f32::from_le_bytes([w[0], w[1], w[2], w[3]]));
    let worst = floats.zip(words("logits_hf")).map(|(a, b)| (a - f32::from_bits(b)).abs()).fold(0.0, f32::max);
    assert!(worst < 1e-3, "{worst}");
}

#[test]
fn perplexity_of_a_text() {
    let m = model("llama");
    let words = "the quick brown fox jumps over the lazy dog and ".repeat(20);
    let common = ["perplexity", &m, "-c", "64", "--chunks", "2", "--device", "cpu"];
    let out = stdout(&zinc_with(&words, &common));
    assert!(out.starts_with("[1]") && out.contains("Final estimate: PPL = "), "{out}");
    let json = stdout(&zinc_with(&words, &[&common[..], &["--json"]].concat()));
    let value: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!((value["chunks"].as_u64(), value["tokens"].as_u64()), (Some(2), Some(62)));
    fails(&zinc_with("short", &common), 1, &["less than one chunk of 64"]);
}

#[test]
fn inspect_shows_metadata_and_tensors() {
    let m = model("gemma3");
    let out = stdout(&zinc(&["inspect", &m]));
    assert!(
        out.contains("general.architecture") && out.contains("blk.0.attn_q.weight") && out.contains("usable     yes")
    );
    let value: serde_json::Value = serde_json::from_str(&stdout(&zinc(&["inspect", &m, "--json"]))).expect("JSON");
    assert_eq!(value["metadata"]["general.architecture"], "gemma3");
    assert_eq!(value["metadata"]["tokenizer.ggml.tokens"]["length"], 512);
}

#[test]
fn explain_has_every_stage() {
    let m = model("llama");
    let stage =
        |stage: &str| stdout(&zinc(&["explain", &m, "--stage", stage, "--device-profile", "plain", "--act", "q8"]));
    assert!(stage("spec").contains("architecture     llama"));
    assert!(stage("graph").contains("rms_norm"));
    let plan = stage("plan");
    assert!(plan.contains("activations q8") && plan.contains("FLOPs") && plan.contains("barrier"), "{plan}");
    assert!(stage("kernel").contains("kernel 0"));
    assert!(stage("spirv").contains("OpEntryPoint"));
    fails(&zinc(&["explain", &m, "--device-profile", "x"]), 2, &["no device profile x", "rdna3"]);
    let native = ["explain", &m, "--stage", "kernel", "--device", "cpu"];
    fails(&zinc(&native), 1, &["natively", "--device-profile"]);
}

#[test]
fn template_renders_a_conversation() {
    let folder = scratch("template");
    let (template, messages) = (folder.join("t.jinja"), folder.join("m.json"));
    std::fs::write(&template, "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}{{ extra }}")
        .unwrap();
    std::fs::write(&messages, r#"{"messages": [{"role": "user", "content": "hi"}], "extra": "!"}"#).unwrap();
    let (t, m) = (template.display().to_string(), messages.display().to_string());
    assert_eq!(stdout(&zinc(&["template", "--template", &t, "--messages", &m])), "[user] hi\n!");
    std::fs::write(&messages, "nonsense").unwrap();
    fails(&zinc(&["template", "--template", &t, "--messages", &m]), 1, &["is no JSON"]);
}

#[test]
fn chat_reads_commands_and_answers() {
    let m = model("llama");
    let chat = ["chat", &m, "--chat-template", "chatml", "-n", "4", "--temp", "0", "--device", "cpu", "--ignore-eos"];
    let lines = "/help\n/system Be brief.\n/system\nhello\n/regen\n/nothing\n/exit\n";
    let output = zinc_with(lines, &chat);
    let out = stdout(&output);
    let answers: Vec<&str> = out.lines().map(str::trim).filter(|l| !l.is_empty()).collect();
    assert!(answers.len() >= 2, "{out}");
    let said = text(&output.stderr);
    for what in ["/regen", "system prompt: Be brief.", "no command /nothing"] {
        assert!(said.contains(what), "{what:?} is not in: {said}");
    }
    fails(&zinc_with("hi\n", &["chat", &m, "--device", "cpu"]), 1, &["no chat template", "chatml"]);
}

#[test]
fn a_chat_without_room_names_clear() {
    let m = model("llama");
    let chat = ["chat", &m, "--chat-template", "chatml", "-c", "32", "--device", "cpu"];
    let out = zinc_with(&format!("{}\n", "many words ".repeat(30)), &chat);
    assert!(out.status.success());
    assert!(
        text(&out.stderr).contains("context has 32") && text(&out.stderr).contains("/clear"),
        "{}",
        text(&out.stderr)
    );
}

#[test]
fn bench_measures_a_file_and_a_shape() {
    let m = model("llama");
    let table = stdout(&zinc(&["bench", &m, "-p", "16", "-n", "4", "-r", "2", "--device", "cpu"]));
    assert!(table.contains("| pp16 |") && table.contains("| tg4 |") && table.contains("±"), "{table}");
    let shape = ["bench", "--shape", "tiny:q8_0", "-p", "16", "-n", "0", "-r", "1", "--device", "cpu", "--json"];
    let value: serde_json::Value = serde_json::from_str(&stdout(&zinc(&shape))).expect("JSON");
    assert_eq!(value["tests"][0]["test"], "pp16");
    assert!(value["tests"][0]["tokens_per_second"].as_f64().expect("a number") > 0.0);
    let runs: Vec<f64> = serde_json::from_value(value["tests"][0]["runs"].clone()).expect("numbers");
    assert_eq!(value["tests"][0]["median"], runs[0]);
    assert_eq!(value["tests"][0]["mean"], runs[0]);
    fails(&zinc(&["bench", "--shape", "nothing"]), 2, &["no shape is named", "llama3.1-8b"]);
}

#[test]
fn bench_measures_after_a_context() {
    let m = model("llama");
    let line = ["bench", &m, "-p", "16", "-n", "4", "-r", "2", "--device", "cpu", "--roofline", "--profile"];
    let table = stdout(&zinc(&[&line[..], &["-d", "0,100"]].concat()));
    for words in ["| pp16 |", "| tg4 |", "| pp16 @ d100 |", "| tg4 @ d100 launch |", "tg4 @ d100 against"] {
        assert!(table.contains(words), "{words}: {table}");
    }
    let value: serde_json::Value =
        serde_json::from_str(&stdout(&zinc(&[&line[..], &["-d", "100", "--json"]].concat()))).expect("JSON");
    let launches = |test: usize| {
        let of = |row: &serde_json::Value| row["count"].as_u64().expect("a count");
        value["tests"][test]["launches"].as_array().expect("launches").iter().map(of).sum::<u64>()
    };
    assert_eq!(
        (value["tests"][1]["test"].as_str(), value["tests"][1]["depth"].as_u64()),
        (Some("tg4 @ d100"), Some(100))
    );
    assert_eq!(launches(1) % 4, 0, "four steps are counted, and none of those before them: {value}");
    fails(&zinc(&[&line[..], &["-d", "100", "-c", "50"]].concat()), 1, &["context has 50", "-c"]);
}

#[test]
fn bench_measures_sequences_at_once() {
    let m = model("llama");
    let line = ["bench", &m, "-p", "40", "-n", "8", "-r", "2", "--device", "cpu", "-npl", "1,3"];
    let table = stdout(&zinc(&[&line[..], &["--profile", "--roofline"]].concat()));
    for words in ["| pp40 x1 |", "| tg8 @ d40 x1 |", "| pp40 x3 |", "| tg8 @ d40 x3 launch |", "tg8 @ d40 x3 against"] {
        assert!(table.contains(words), "{words}: {table}");
    }
    let value: serde_json::Value =
        serde_json::from_str(&stdout(&zinc(&[&line[..], &["--json", "--profile"]].concat()))).expect("JSON");
    let number = |v: &serde_json::Value| v.as_f64().expect("a number");
    let (alone, three) = (&value["tests"][1], &value["tests"][3]);
    assert_eq!((three["test"].as_str(), three["sequences"].as_u64()), (Some("tg8 @ d40 x3"), Some(3)));
    // A step gives one token of each sequence.
    for (test, rows) in [(alone, 1.0), (three, 3.0)] {
        let milliseconds: Vec<f64> =
            test["runs"].as_array().expect("runs").iter().map(|rate| rows * 1e3 / number(rate)).collect();
        let (a, b) = (milliseconds[0], milliseconds[1]);
        assert!((number(&test["milliseconds_per_step"]) / ((a + b) / 2.0) - 1.0).abs() < 1e-9, "{test}");
    }
    // Attention reads the K and V of three sequences; all other launches are as many.
    let of = |test: &serde_json::Value, what: &str| {
        let launches = test["launches"].as_array().expect("launches");
        let attention = launches.iter().find(|l| l["launch"] == "attention").expect("attention");
        number(&attention[what])
    };
    assert_eq!(of(three, "count"), of(alone, "count"));
    assert!(of(three, "bytes") > 2.5 * of(alone, "bytes"), "{value}");
    fails(&zinc(&[&line[..], &["-d", "10"]].concat()), 2, &["--n-depth"]);
    fails(&zinc(&[&line[..], &["--ubatch-size", "2"]].concat()), 2, &["--ubatch-size 3"]);
}

#[test]
fn bench_compares_with_measured_limits() {
    let (m, folder) = (model("llama"), scratch("roofline"));
    let file = folder.join("plot.svg").display().to_string();
    let line = ["bench", &m, "-p", "16", "-n", "4", "-r", "1", "--device", "cpu", "--roofline"];
    let table = stdout(&zinc(&[&line[..], &["--svg", &file]].concat()));
    for words in ["tg4 against measured limits", "| launch gaps |", "| host |", "| sum of parts |", "tg4 is "] {
        assert!(table.contains(words), "{words}: {table}");
    }
    let plot = std::fs::read_to_string(&file).expect("written");
    assert!(plot.starts_with("<svg") && plot.contains("<circle") && plot.trim_end().ends_with("</svg>"));
    let value: serde_json::Value =
        serde_json::from_str(&stdout(&zinc(&[&line[..], &["--json"]].concat()))).expect("JSON");
    let roofline = &value["tests"][1]["roofline"];
    let number = |v: &serde_json::Value| v.as_f64().expect("a number");
    let parts: f64 = roofline["parts"].as_object().expect("parts").values().map(number).sum();
    assert!((parts / number(&roofline["sum_seconds"]) - 1.0).abs() < 1e-6, "{roofline}");
    // So small a model may come out of caches.
    let says = |s: &str| s.contains('%') || s.contains("out of caches");
    assert!(roofline["sentence"].as_str().is_some_and(says), "{roofline}");
    fails(&zinc(&["bench", &m, "--svg", &file]), 2, &["--roofline"]);
}

#[test]
fn devices_lists_the_cpu() {
    assert!(stdout(&zinc(&["devices"])).starts_with("cpu"));
    let value: serde_json::Value = serde_json::from_str(&stdout(&zinc(&["devices", "--json"]))).expect("JSON");
    assert!(value["cpu"]["description"].is_string());
}

#[test]
fn devices_measures_the_cpu() {
    let line = ["devices", "--measure", "--device", "cpu"];
    let table = stdout(&zinc(&line));
    assert!(table.starts_with("cpu") && table.contains("streaming read") && table.contains("threads"), "{table}");
    let value: serde_json::Value =
        serde_json::from_str(&stdout(&zinc(&[&line[..], &["--json"]].concat()))).expect("JSON");
    assert!(value["cpu"]["reads"][0]["rate"].as_f64().expect("a number") > 0.0);
    assert!(stdout(&zinc(&["devices"])).contains("measured: read"), "what was measured is kept");
    fails(&zinc(&["devices", "--device", "cpu"]), 2, &["--measure"]);
}

#[test]
fn keys_and_values_are_cached_in_types_of_their_own() {
    let m = model("llama");
    let line =
        ["bench", &m, "-p", "40", "-n", "2", "-r", "1", "--device", "cpu", "-ctk", "q8_0", "-ctv", "q4_0", "--json"];
    let value: serde_json::Value = serde_json::from_str(&stdout(&zinc(&line))).expect("JSON");
    assert_eq!(value["kv"], "q8_0/q4_0");
    let fit = ["predict", "--gpu", "h200", "--shape", "llama3.1-8b:q4_0", "-c", "4096", "--json"];
    let bytes = |types: &[&str]| {
        let out = stdout(&zinc(&[&fit[..], types].concat()));
        let value: serde_json::Value = serde_json::from_str(&out).expect("JSON");
        value["memory"]["kv"].as_u64().expect("bytes")
    };
    let (half, mixed) = (bytes(&[]), bytes(&["-ctk", "q8_0", "-ctv", "q4_0"]));
    assert_eq!(mixed * 64, half * (17 + 9), "8.5 and 4.5 bits in place of 16");
    // Heads of 48 elements are not whole blocks.
    let odd = model("qwen3");
    fails(&zinc(&["run", &odd, "-p", "a", "--device", "cpu", "-ctk", "q8_0"]), 1, &["blocks of 32", "48", "f16"]);
}

#[test]
fn wrong_usage_is_exit_code_2() {
    let m = model("llama");
    fails(&zinc(&["run", &m, "--no-such-flag"]), 2, &["--no-such-flag"]);
    fails(&zinc(&["walk"]), 2, &["walk"]);
    fails(&zinc(&["run", &m, "-p", "a", "--top-p", "3"]), 2, &["top-p is 3"]);
    fails(&zinc(&["run", &m, "-p", "a", "--device", "cuda"]), 2, &["cuda", "vulkan"]);
    fails(&zinc(&["run", &m, "-p", "a", "-ctv", "q5_2"]), 2, &["q5_2", "q8_0"]);
    fails(&zinc(&["run", &m, "-p", "a", "--layers", "1"]), 2, &["--layers", "cannot be used with"]);
    fails(&zinc(&["detokenize", &m, "--ids", "1 x"]), 2, &["`x` is no token id"]);
}

#[test]
fn bad_files_and_prompts_are_explained() {
    let (m, folder) = (model("llama"), scratch("bad"));
    let run = |file: &str, more: &[&str]| {
        zinc(&[&["run", file, "-p", "a b c d e f g h", "--device", "cpu", "--raw"], more].concat())
    };
    fails(&run("no-such-file.gguf", &[]), 1, &["no-such-file.gguf"]);
    let whole = std::fs::read(&m).expect("the model");
    let file = |name: &str, bytes: &[u8]| {
        let path = folder.join(name);
        std::fs::write(&path, bytes).expect("written");
        path.display().to_string()
    };
    fails(&run(&file("cut.gguf", &whole[..whole.len() / 2]), &[]), 1, &["cut.gguf"]);
    fails(&run(&file("text.gguf", b"this is no model"), &[]), 1, &["text.gguf"]);
    fails(&run(&m, &["-c", "4"]), 1, &["needs", "context has 4", "-c"]);
    fails(&run(&m, &["-c", "64", "-n", "100"]), 1, &["100 to generate", "context has 64", "-n"]);
    fails(&run(&m, &["-n", "5000"]), 1, &["5000 to generate", "context has 4096", "-c"]);
    let out = run(&m, &["-c", "32", "--temp", "0", "--ignore-eos"]);
    fails(&out, 1, &["the context of 32 tokens is full"]);
    assert!(!out.stdout.is_empty(), "the unfinished answer is shown");
}

#[test]
fn the_context_has_room_for_what_is_to_be_generated() {
    // The fixture was trained for the usual context: make that more.
    let mut bytes = std::fs::read(model("llama")).expect("the model");
    let key = b"llama.context_length";
    let at = bytes.windows(key.len()).position(|w| w == key).expect("the key") + key.len() + 4;
    assert_eq!(bytes[at..at + 4], 4096u32.to_le_bytes());
    bytes[at..at + 4].copy_from_slice(&8192u32.to_le_bytes());
    let file = scratch("long").join("m.gguf");
    std::fs::write(&file, bytes).expect("written");
    let line = ["run", "-m", &file.display().to_string(), "-p", "a b", "--device", "cpu", "--raw", "--ignore-eos"];
    let out = zinc(&[&line[..], &["-n", "4200", "--temp", "0", "--json"]].concat());
    let value: serde_json::Value = serde_json::from_str(&stdout(&out)).expect("JSON");
    assert_eq!(value["tokens"].as_array().map(Vec::len), Some(4200));
}

#[test]
fn chunks_and_tests_of_nothing_are_wrong_usage() {
    let m = model("llama");
    fails(&zinc_with("a b c", &["perplexity", &m, "--chunks", "0", "--device", "cpu"]), 2, &["--chunks is 0"]);
    fails(&zinc(&["bench", &m, "-p", "0", "-n", "0", "--device", "cpu"]), 2, &["nothing to measure"]);
}

#[test]
fn an_empty_stop_string_is_wrong_usage() {
    let m = model("llama");
    let stops = ["-r", "x", "-r", ""];
    fails(&zinc(&[&["run", &m, "-p", "a"][..], &stops].concat()), 2, &["stop string 2 is empty"]);
    fails(&zinc(&[&["chat", &m][..], &stops].concat()), 2, &["stop string 2 is empty"]);
}

#[test]
fn names_in_a_file_do_not_steer_the_terminal() {
    // The model's name, changed in place.
    let (m, folder) = (model("llama"), scratch("escapes"));
    let mut bytes = std::fs::read(&m).expect("the model");
    let name = b"tiny-llama";
    let at = bytes.windows(name.len()).position(|w| w == name).expect("general.name");
    bytes[at..at + 4].copy_from_slice(b"\x1b[2J");
    let file = folder.join("m.gguf");
    std::fs::write(&file, bytes).expect("written");
    let file = file.display().to_string();
    for arguments in [&["inspect", &file][..], &["bench", &file, "-p", "1", "-n", "0", "-r", "1", "--device", "cpu"]] {
        let out = stdout(&zinc(arguments));
        assert!(out.contains("[2J-llama") && !out.contains('\u{1b}'), "{out:?}");
    }
}

#[test]
fn too_many_threads_are_refused() {
    let m = model("llama");
    for many in ["100000", "18446744073709551615"] {
        fails(&zinc(&["run", &m, "-p", "a", "--device", "cpu", "-t", many]), 1, &[many, "1024", "-t"]);
    }
}

#[test]
fn a_model_of_no_numbers_gives_no_answer_and_has_no_perplexity() {
    let (m, folder) = (model("gemma3"), scratch("nan"));
    let gguf = zinc_gguf::Gguf::open(&m).expect("the model");
    let start = &gguf.data(gguf.tensor("blk.0.ffn_down.weight").expect("a matrix"))[..64];
    let mut bytes = std::fs::read(&m).expect("the model");
    let at = bytes.windows(64).position(|w| w == start).expect("the tensor");
    // A NaN of 16 bits.
    bytes[at..at + 2].copy_from_slice(&0x7e00u16.to_le_bytes());
    let damaged = folder.join("nan.gguf");
    std::fs::write(&damaged, bytes).expect("written");
    let damaged = damaged.display().to_string();
    for sampling in [&["--temp", "0"][..], &["--temp", "1"], &["--temp", "1", "--top-k", "0"]] {
        let out = zinc(&[&["run", &damaged, "-p", "a b", "--raw", "--device", "cpu"], sampling].concat());
        fails(&out, 1, &["no numbers", "damaged"]);
        assert!(out.stdout.is_empty(), "{sampling:?}: a token");
    }
    let words = "a b c d e f g h ".repeat(20);
    let out = zinc_with(&words, &["perplexity", &damaged, "-c", "32", "--device", "cpu", "--json"]);
    fails(&out, 1, &["chunk 1", "no numbers", "damaged"]);
    assert!(out.stdout.is_empty(), "nothing that looks like a result");
}
