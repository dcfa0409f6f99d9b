//! The OpenAPI document: what the paths take and give, for people and for programs that make clients of it.
//!
//! It is written by hand (`openapi.json`). Tests compare its paths with the router's, and its parameters with those that
//! the handlers know.

use super::Reply;
use axum::body::Body;
use axum::http::{HeaderValue, Response, header};
use std::sync::LazyLock;

/// With the version of this program.
static DOCUMENT: LazyLock<String> =
    LazyLock::new(|| include_str!("openapi.json").replacen("VERSION", env!("CARGO_PKG_VERSION"), 1));

/// `/openapi.json`.
pub(super) async fn document() -> Reply {
    let mut response = Response::new(Body::from(DOCUMENT.as_str()));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::super::{closed_rows, open_rows};
    use super::*;
    use serde_json::Value;
    use std::collections::BTreeSet;

    #[test]
    fn all_paths_are_in_the_document_and_no_others() {
        let document: Value = serde_json::from_str(&DOCUMENT).expect("JSON");
        assert_eq!(document["info"]["version"], env!("CARGO_PKG_VERSION"));
        let served: BTreeSet<(String, bool)> = closed_rows()
            .into_iter()
            .map(|row| (row.0, false))
            .chain(open_rows().into_iter().map(|row| (row.0, true)))
            .map(|(path, open)| (path.replace("{*", "{"), open))
            .collect();
        let paths = document["paths"].as_object().expect("paths");
        let open = |path: &Value| {
            let operations = path.as_object().expect("operations");
            assert_eq!(operations.len(), 1, "one method a path");
            operations.values().all(|operation| operation["security"] == serde_json::json!([]))
        };
        let told: BTreeSet<(String, bool)> = paths.iter().map(|(name, path)| (name.clone(), open(path))).collect();
        assert_eq!(told, served);
    }
}
