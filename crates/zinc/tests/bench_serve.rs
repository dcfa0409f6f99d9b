//! `zinc bench serve`: against servers started for it, and against one that runs already; what it counts, and what it says of
//! requests that fail.

mod program;
mod served;

use program::*;
use serde_json::Value;
use served::Served;

/// A shape small enough for tests: its text is nonsense, its lengths are right.
const SHAPE: [&str; 4] = ["--shape", "smollm2-135m", "--layers", "1"];

fn bench(arguments: &[&str]) -> Value {
    let output = zinc(&[&["bench", "serve", "--json"], arguments].concat());
    serde_json::from_str(&stdout(&output)).expect("JSON")
}

fn count(run: &Value, name: &str) -> u64 {
    run[name].as_u64().unwrap_or_else(|| panic!("no {name} in {run}"))
}

#[test]
fn a_shape_is_served_and_compared_with_the_engine_alone() {
    let load = ["--concurrency", "1,4", "--num-prompts", "6", "--random-input-len", "20", "--random-output-len", "9"];
    let more = ["--random-range-ratio", "0.5", "--device", "cpu", "--goodput", "ttft:600000", "tpot:600000"];
    let all = bench(&[&SHAPE[..], &load, &more].concat());
    assert_eq!(all["runs"].as_array().map(Vec::len), Some(2), "{all}");
    let mut tokens = vec![];
    for run in all["runs"].as_array().expect("runs") {
        assert_eq!((count(run, "completed"), count(run, "failed"), count(run, "good_requests")), (6, 0, 6), "{run}");
        // A text may end in half a character, so a token may have no piece of its own.
        assert!(run["itl_ms"]["p99"].is_f64() && run["ttft_ms"]["p50"].is_f64(), "{run}");
        assert!(run["alone"]["output_tokens_per_second"].as_f64().is_some_and(|rate| rate > 0.0), "{run}");
        assert!(run["overhead"].is_f64(), "{run}");
        tokens.push((count(run, "total_input_tokens"), count(run, "total_output_tokens")));
    }
    let (input, output) = tokens[0];
    assert!((60..=180).contains(&input) && (24..=78).contains(&output), "{tokens:?}");
    assert_eq!(tokens[0], tokens[1], "all runs have the same lengths");
}

#[test]
fn a_running_server_is_measured_with_its_key_and_its_refusals_are_counted() {
    let serve = ["--api-key", "sk-load", "-np", "1", "--queue", "1", "-c", "256"];
    let served = Served::start(&[&SHAPE[..], &serve].concat());
    let url = format!("{}/v1", served.base);
    let at = ["--base-url", &url, "--api-key", "sk-load", "--random-input-len", "8"];
    // One runs and one waits; the others find the queue full.
    let load = ["--concurrency", "8", "--num-prompts", "8", "--num-warmups", "0", "--random-output-len", "200"];
    let run = bench(&[&at[..], &load].concat())["runs"][0].take();
    let (done, failed) = (count(&run, "completed"), count(&run, "failed"));
    assert!(done >= 2 && failed >= 1 && done + failed == 8, "{run}");
    assert_eq!(count(&run, "total_output_tokens"), 200 * done, "{run}");
    assert!(run["failures"][0]["message"].as_str().is_some_and(|m| m.starts_with("429: ")), "{run}");
    assert!(run["alone"].is_null() && run["overhead"].is_null(), "{run}");

    let load = ["--request-rate", "200", "--max-concurrency", "2", "--num-prompts", "5", "--random-output-len", "3"];
    let run = bench(&[&at[..], &load].concat())["runs"][0].take();
    assert_eq!((count(&run, "completed"), count(&run, "total_output_tokens")), (5, 15), "{run}");

    let file = scratch("load").join("rows.jsonl");
    let rows =
        "{\"prompt\": \"abc\", \"output_tokens\": 2}\n\n{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}]}\n";
    std::fs::write(&file, rows).expect("written");
    let file = file.display().to_string();
    let data = ["--base-url", &url, "--api-key", "sk-load", "--dataset-path", &file, "--ignore-eos"];
    let load = ["--concurrency", "1", "--num-prompts", "3", "--num-warmups", "0", "--random-output-len", "4"];
    let run = bench(&[&data[..], &load].concat())["runs"][0].take();
    // Two texts of three bytes, with a chat between them.
    assert_eq!((count(&run, "completed"), count(&run, "total_output_tokens")), (3, 2 + 4 + 2), "{run}");

    let wrong = zinc(&["bench", "serve", "--base-url", &url, "--api-key", "sk-wrong"]);
    fails(&wrong, 1, &["401", "API key"]);
}

#[test]
fn what_cannot_be_measured_is_an_error() {
    // Nobody listens there; a port that was free a moment ago may be another test's by now.
    let url = "http://127.0.0.1:1";
    fails(&zinc(&["bench", "serve", "--base-url", url]), 1, &["cannot connect", "127.0.0.1:1"]);
    fails(&zinc(&["bench", "serve", "--base-url", "https://localhost"]), 2, &["https"]);
    fails(&zinc(&["bench", "serve", "--goodput", "speed:1"]), 2, &["ttft:500"]);
    fails(&zinc(&["bench", "serve", "--dataset-path", "no-such-file", "--base-url", url]), 1, &["cannot connect"]);
    let help = stdout(&zinc(&["bench", "--help"]));
    assert!(help.contains("serve"), "{help}");
}
