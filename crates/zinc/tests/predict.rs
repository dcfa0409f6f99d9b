//! `zinc predict` as a user meets it.

use std::process::{Command, Output};

fn predict(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_zinc")).arg("predict").args(arguments).output().expect("zinc starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}

/// Every number as one `#`, runs of spaces as one.
fn form(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        let c = if c.is_ascii_digit() { '#' } else { c };
        let number = c == '#' || (c == '.' && out.ends_with('#'));
        if !(number && out.ends_with('#') || c == ' ' && out.ends_with(' ')) {
            out.push(c);
        }
    }
    out
}

#[test]
fn the_report_has_this_form() {
    let out = predict(&["--gpu", "rx9070xt", "--shape", "llama3.2-1b:q4_k_m"]);
    assert!(out.status.success(), "{}", text(&out.stderr));
    let form = form(&text(&out.stdout));
    let expected = [
        "model llama#-#b:q#_k_m\n",
        "card Radeon RX # XT: # GiB, # GB/s, of which a streaming read reaches #\n",
        "with activations f#, K and V f#\n",
        "memory # GiB of # usable: weights #, K and V of # tokens #, scratch #\n fits; K and V of up to # tokens would\n",
        "context tok/s range ms/token limited by\n # # # to # # memory # %",
        "\n # # # to # # memory # %",
        "launches at # count MB µs GB/s\n",
        "matvec_glu # # # #\n",
        "\nbasis ",
    ];
    let mut rest = form.as_str();
    for part in expected {
        let at = rest.find(part).unwrap_or_else(|| panic!("{part:?} is missing, or not in its place:\n{form}"));
        rest = &rest[at + part.len()..];
    }
}

#[test]
fn what_does_not_fit_is_said_with_what_is_missing() {
    let out = text(&predict(&["--gpu", "rx7600xt", "--shape", "qwen2.5-32b:q4_k_m"]).stdout);
    assert!(out.contains("does not fit: 5.") && out.contains("GiB are missing"), "{out}");
    let out = text(&predict(&["--gpu", "rx7600xt", "--shape", "llama3.1-8b:q4_k_m", "-c", "131072"]).stdout);
    assert!(out.contains("does not fit") && out.contains("tokens of context would"), "{out}");
}

#[test]
fn a_context_of_0_is_what_the_model_was_trained_for() {
    let line = ["--gpu", "rx7900xtx", "--shape", "llama3.2-1b:q4_k_m", "-c"];
    let of = |context: &str| text(&predict(&[&line[..], &[context]].concat()).stdout);
    assert!(of("0").contains("131072 tokens") && of("0") == of("131072"), "{}", of("0"));
}

#[test]
fn an_unknown_card_is_answered_with_the_known_ones() {
    let out = predict(&["--gpu", "rtx5090", "--shape", "tiny"]);
    assert_eq!(out.status.code(), Some(2));
    let message = text(&out.stderr);
    assert!(
        ["rtx5090", "rx7600xt", "rx7900xtx", "rx9070xt", "h200"].iter().all(|name| message.contains(name)),
        "{message}"
    );
    assert!(text(&predict(&["--gpu", "list"]).stdout).contains("rx7900xtx"));
    let list: serde_json::Value =
        serde_json::from_str(&text(&predict(&["--gpu", "list", "--json"]).stdout)).expect("JSON");
    let named = |card: &serde_json::Value| card["name"] == "rx7900xtx" && card["memory_gib"] == 24.0;
    assert!(list.as_array().expect("cards").iter().any(named), "{list}");
}

#[test]
fn json_says_the_same() {
    let out = predict(&["--gpu", "h200", "--shape", "tiny:q8_0", "--json"]);
    let value: serde_json::Value = serde_json::from_slice(&out.stdout).expect("JSON");
    assert_eq!(value["memory"]["fits"], true);
    let first = &value["decode"][0];
    assert_eq!((&first["context"], first["launches"].as_array().is_some()), (&serde_json::json!(128), true));
    let number = |key: &str| first[key].as_f64().expect("a number");
    assert!((number("tokens_per_second") * number("us") / 1e6 - 1.0).abs() < 1e-9);
    let shares = first["us_by_limit"].as_object().expect("an object").values().map(|v| v.as_f64().expect("a number"));
    assert!((shares.sum::<f64>() / number("us") - 1.0).abs() < 1e-9);
}
