//! The OpenAPI document says what the server does: its parameters are those that the handlers know.

mod client;

use client::*;
use serde_json::{Value, json};
use std::collections::BTreeSet;

#[test]
fn the_document_names_the_parameters_that_handlers_know() {
    let server = serve(USUAL);
    let document = server.get("/openapi.json").ok();
    let mut compared = 0;
    for (path, operations) in document["paths"].as_object().expect("paths") {
        let Some(body) = operations["post"].pointer("/requestBody/content/application~1json/schema/$ref") else {
            let status = server.get(&path.replace("{model}", "tiny")).status;
            assert_eq!(status, 200, "{path}");
            continue;
        };
        let schema = document.pointer(&body.as_str().expect("a reference")[1..]).expect("a schema");
        let told: BTreeSet<&str> =
            schema["properties"].as_object().expect("properties").keys().map(String::as_str).collect();
        let mut request = json!({"no_such_parameter": 1});
        for name in schema["required"].as_array().expect("names") {
            let name = name.as_str().expect("a name");
            request[name] = match name {
                "messages" => json!([{"role": "user", "content": "x"}]),
                "tokens" => json!([1]),
                _ => json!("x"),
            };
        }
        let reply = server.post(path, &request);
        let error = reply.json()["error"].clone();
        assert_eq!((reply.status, &error["param"]), (400, &json!("no_such_parameter")), "{path}: {error}");
        let message = error["message"].as_str().expect("a message");
        let (_, list) = message.split_once("it knows: ").expect("a list of names");
        let known: BTreeSet<&str> = list.trim_end_matches(')').split(", ").collect();
        assert_eq!(known, told, "{path}");
        let error_schema = &document["components"]["schemas"]["Error"]["properties"]["error"]["properties"];
        let (given, named) = (error.as_object().expect("an object"), error_schema.as_object().expect("an object"));
        assert!(given.keys().eq(named.keys()), "{error}");
        compared += 1;
    }
    assert_eq!(compared, 8);
    let refused =
        server.post("/v1/chat/completions", &json!({"messages": [{"role": "user", "content": "x"}], "best_of": 3}));
    assert_eq!((refused.status, refused.json()["error"]["code"].as_str()), (400, Some("unsupported_parameter")));
    assert!(matches!(document["openapi"], Value::String(ref v) if v.starts_with("3.1")));
}
