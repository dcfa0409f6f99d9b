//! The page for people: a chat in the browser, out of the program itself.
//!
//! ```text
//! /, /ui/… ─► FILES (name, type, bytes) ─ETag as before?─► 304, or 200 under a strict content-security policy
//! ```
//!
//! The files are what they are in `ui/`: no build step, nothing from elsewhere. The page itself is open, like the paths
//! that say whether the server works; what it asks of the API needs the key that everyone needs.

use crate::app::App;
use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header};
use axum::routing::get;
use sha2::{Digest, Sha256};
use std::fmt::Write;
use std::sync::Arc;

/// Path, type and contents.
const FILES: &[(&str, &str, &str)] = &[
    ("/", "text/html; charset=utf-8", include_str!("ui/index.html")),
    ("/ui/app.css", "text/css; charset=utf-8", include_str!("ui/app.css")),
    ("/ui/theme.js", JAVASCRIPT, include_str!("ui/theme.js")),
    ("/ui/app.js", JAVASCRIPT, include_str!("ui/app.js")),
    ("/ui/api.js", JAVASCRIPT, include_str!("ui/api.js")),
    ("/ui/markdown.js", JAVASCRIPT, include_str!("ui/markdown.js")),
    ("/ui/store.js", JAVASCRIPT, include_str!("ui/store.js")),
    ("/ui/icon.svg", "image/svg+xml", include_str!("ui/icon.svg")),
];

const JAVASCRIPT: &str = "text/javascript; charset=utf-8";

/// Nothing but this server's own files and API, nobody's frame, and no text that becomes code or markup.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; \
    base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";

/// What every file is sent with.
static HEADERS: [(HeaderName, &str); 6] = [
    (header::CONTENT_SECURITY_POLICY, POLICY),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    // Asked for each time: what a newer program sends is seen at once, and the rest is 304.
    (header::CACHE_CONTROL, "no-cache"),
];

/// The page's paths.
pub(crate) fn router() -> Router<Arc<App>> {
    FILES.iter().fold(Router::new(), |router, (path, kind, contents)| {
        let tag = tag(contents);
        router.route(path, get(move |headers: HeaderMap| async move { answer(&headers, kind, contents, &tag) }))
    })
}

/// What tells one version of a file from another.
fn tag(contents: &str) -> Arc<str> {
    let mut tag = String::from("\"");
    for byte in &Sha256::digest(contents.as_bytes())[..12] {
        write!(tag, "{byte:02x}").ok();
    }
    tag.push('"');
    tag.into()
}

fn answer(asked: &HeaderMap, kind: &'static str, contents: &'static str, tag: &str) -> Response<Body> {
    let known = asked.get(header::IF_NONE_MATCH).and_then(|value| value.to_str().ok());
    let is_known = known.is_some_and(|list| list.split(',').any(|one| one.trim().trim_start_matches("W/") == tag));
    let mut response = match is_known {
        true => Response::new(Body::empty()),
        false => Response::new(Body::from(Bytes::from_static(contents.as_bytes()))),
    };
    if is_known {
        *response.status_mut() = StatusCode::NOT_MODIFIED;
    }
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.extend(HEADERS.iter().map(|(name, value)| (name.clone(), HeaderValue::from_static(value))));
    if let Ok(tag) = HeaderValue::from_str(tag) {
        headers.insert(header::ETAG, tag);
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_sent_once_and_then_only_confirmed() {
        let (_, kind, contents) = FILES[0];
        let tag = tag(contents);
        let of = |known: Option<&str>| {
            let known = known.map(|text| (header::IF_NONE_MATCH, HeaderValue::from_str(text).expect("a header")));
            answer(&known.into_iter().collect(), kind, contents, &tag)
        };
        assert_eq!(of(None).status(), StatusCode::OK);
        assert_eq!(of(Some("\"other\"")).status(), StatusCode::OK);
        for known in [tag.to_string(), format!("\"other\", W/{tag}")] {
            let response = of(Some(&known));
            assert_eq!(response.status(), StatusCode::NOT_MODIFIED);
            assert!(response.headers().contains_key(header::CONTENT_SECURITY_POLICY));
        }
    }

    #[test]
    fn files_name_only_files_that_there_are_and_stay_small() {
        let known = |path: &str| FILES.iter().any(|(known, _, _)| *known == path);
        for (path, _, contents) in FILES {
            for part in contents.split('"').filter(|p| p.starts_with("ui/")) {
                assert!(known(&format!("/{part}")), "{path} names {part}");
            }
            for part in contents.split('"').filter(|p| p.starts_with("./")) {
                assert!(known(&part.replacen("./", "/ui/", 1)), "{path} names {part}");
            }
            for forbidden in
                ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", " style=", "<script>"]
            {
                assert!(!contents.contains(forbidden), "{path} has {forbidden}");
            }
        }
        assert!(FILES.iter().map(|(_, _, contents)| contents.len()).sum::<usize>() < 80_000);
    }
}
