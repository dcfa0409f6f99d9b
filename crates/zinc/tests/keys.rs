//! `zinc keys`: makes keys that `zinc serve` takes, and reads what it writes about them.

#![cfg(unix)]

mod program;
mod served;

use program::*;
use served::Served;

#[test]
fn keys_are_made_limited_served_and_summed_up() {
    let folder = scratch("made");
    let (file, ledger) = (folder.join("keys").display().to_string(), folder.join("ledger").display().to_string());
    std::fs::write(&file, "# ours\nsk-plain name=plain").expect("written");
    let make = |arguments: &[&str]| zinc(&[&["keys", "new", &file], arguments].concat());
    let key = stdout(&make(&["--name", "alice", "rpm=2", "expires=2999-01-31"])).trim().to_owned();
    assert!(key.starts_with("sk-") && key.len() == 51, "{key}");
    assert_ne!(stdout(&make(&["--name", "bob"])).trim(), key);
    assert!(!std::fs::read_to_string(&file).expect("text").contains(&key), "the file has only its digest");
    let listed = stdout(&zinc(&["keys", "list", &file]));
    assert_eq!(listed, "plain\nalice  rpm=2 expires=2999-01-31\nbob\n");
    fails(&make(&["--name", "x", "rmp=2"]), 2, &["`rmp` is not known", "rpm"]);
    fails(&make(&["--name", "x y"]), 2, &["`x y`"]);
    fails(&zinc(&["keys", "usage", "no-such-ledger"]), 1, &["no-such-ledger"]);

    let served = Served::start(&[&model("llama"), "--api-key-file", &file, "--ledger", &ledger]);
    let ask = || {
        let body = r#"{"prompt": "x", "max_tokens": 3, "ignore_eos": true}"#;
        let request =
            ureq::post(format!("{}/v1/completions", served.base)).header("Authorization", format!("Bearer {key}"));
        request.config().http_status_as_error(false).build().send(body).expect("an answer").status().as_u16()
    };
    assert_eq!([ask(), ask(), ask()], [200, 200, 429]);
    served.stop();
    let used = stdout(&zinc(&["keys", "usage", &ledger, "--json"]));
    let used: serde_json::Value = serde_json::from_str(&used).expect("JSON");
    let row = &used[0];
    assert_eq!((&row["key"], &row["requests"], &row["completion_tokens"]), (&"alice".into(), &2.into(), &6.into()));
    assert!(stdout(&zinc(&["keys", "usage", &ledger])).lines().any(|l| l.starts_with("alice")));
}
