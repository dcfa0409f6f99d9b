//! `zinc serve` over TLS, asked by Python's client, whose TLS is OpenSSL's.
#![cfg(unix)]

mod program;
mod served;

use program::*;
use served::Served;
use std::path::Path;
use std::process::Command;

/// Writes a certificate for this machine that vouches for itself, and its key.
fn certificate(folder: &Path, name: &str) -> [String; 2] {
    let names = ["localhost", "127.0.0.1"].map(String::from);
    let made = rcgen::generate_simple_self_signed(names).expect("a certificate");
    let write = |kind: &str, text: String| {
        let path = folder.join(format!("{name}.{kind}"));
        std::fs::write(&path, text).expect("written");
        path.display().to_string()
    };
    [write("cert", made.cert.pem()), write("key", made.signing_key.serialize_pem())]
}

/// Asks for a completion over TLS, trusting this certificate only; gives the status and the protocol, or why not.
fn ask(served: &Served, trusted: &str) -> String {
    const SCRIPT: &str = r#"
import http.client, json, ssl, sys
context = ssl.create_default_context(cafile=sys.argv[2])
context.set_alpn_protocols(["h2", "http/1.1"])
try:
    connection = http.client.HTTPSConnection("127.0.0.1", int(sys.argv[1]), context=context, timeout=60)
    body = json.dumps({"prompt": "x", "max_tokens": 3, "ignore_eos": True})
    connection.request("POST", "/v1/completions", body)
    protocol = connection.sock.selected_alpn_protocol()
    answer = connection.getresponse()
    print(answer.status, protocol, json.loads(answer.read()).get("usage", {}).get("completion_tokens"))
except ssl.SSLError as error:
    print("SSL", error.reason)
"#;
    let port = served.address().port().to_string();
    let output = Command::new("python3").args(["-c", SCRIPT, &port, trusted]).output().expect("python3 starts");
    text(&output.stdout).trim().to_owned() + &text(&output.stderr)
}

#[test]
fn a_certificate_is_served_and_read_anew() {
    if !Command::new("python3").arg("--version").output().is_ok_and(|p| p.status.success()) {
        return println!("not run: python3 absent");
    }
    let folder = scratch("tls");
    let ([cert, key], [other, other_key]) = (certificate(&folder, "one"), certificate(&folder, "two"));
    let served = Served::begin(&[&model("llama"), "--tls-cert", &cert, "--tls-key", &key]);
    assert!(served.base.starts_with("https://"), "{}", served.base);
    let works = |trusted: &str| ask(&served, trusted) == "200 http/1.1 3";
    served.wait_until("the model is loaded", |_| works(&cert));
    assert_eq!(ask(&served, &other), "SSL CERTIFICATE_VERIFY_FAILED");
    std::fs::copy(&other_key, &key).expect("copied");
    let hang_up = || {
        let kill = format!("kill -HUP {}", served.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().expect("sh").success());
    };
    hang_up();
    assert!(works(&cert), "a key that does not belong to the certificate changes nothing");
    std::fs::copy(&other, &cert).expect("copied");
    served.wait_until("the other certificate is served", |_| {
        hang_up();
        works(&other)
    });
    assert_eq!(served.stop(), Some(0));
}

#[test]
fn certificates_that_cannot_be_are_refused() {
    let folder = scratch("no-tls");
    let ([cert, key], [other, _]) = (certificate(&folder, "one"), certificate(&folder, "two"));
    let m = model("llama");
    let serve = |cert: &str, key: &str| zinc(&["serve", &m, "--port", "0", "--tls-cert", cert, "--tls-key", key]);
    fails(&serve(&other, &key), 1, &["two.cert", "do not work together"]);
    fails(&serve(&key, &key), 1, &["no certificate in PEM form"]);
    fails(&serve(&cert, &cert), 1, &["no private key in PEM form"]);
    fails(&serve(&cert, "no-such-file"), 1, &["no-such-file"]);
    fails(&zinc(&["serve", &m, "--tls-cert", &cert]), 2, &["--tls-key"]);
}
