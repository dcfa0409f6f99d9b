//! What every request passes through: its number, its key, and where it comes from.
//!
//! ```text
//! request ─ span with x-request-id ─ host, origin ─ key ─► handler ─► x-request-id, one line in the log
//! ```

use crate::app::App;
use crate::bodies::see_off;
use crate::error::{ApiError, clip};
use crate::keys::Caller;
use crate::trace::Parent;
use axum::body::Body;
use axum::extract::{FromRequestParts, Request, State};
use axum::http::request::Parts;
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, Method, Response, Uri, header};
use axum::middleware::Next;
use axum::response::IntoResponse;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;
use tracing::Instrument;

const REQUEST_ID: &str = "x-request-id";

/// Headers that decide who asks and for what. One that comes twice may mean one thing here and another to a proxy in front.
const ONCE: [&str; 4] = ["host", "origin", "authorization", "x-api-key"];

/// Most bytes of a path in the log.
const PATH_BYTES: usize = 200;

/// Whose request it is, and how it is called.
#[derive(Clone, Debug)]
pub(crate) struct Visit {
    pub(crate) caller: Caller,
    /// The request's name.
    pub(crate) request: Arc<str>,
    /// What is done, as traces call it.
    pub(crate) operation: &'static str,
    /// The span it belongs to.
    pub(crate) parent: Option<Parent>,
}

impl<S: Sync> FromRequestParts<S> for Visit {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Visit, ApiError> {
        parts.extensions.get().cloned().ok_or_else(|| ApiError::internal("nobody was asked for a key here"))
    }
}

/// The name of a request on its way to [`Visit`].
#[derive(Clone)]
struct Named(Arc<str>);

/// Names the request, refuses pages of other sites, and writes a line about how it went.
pub(crate) async fn accompany(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response<Body> {
    let start = Instant::now();
    let id: Arc<str> = request_id(request.headers()).into();
    request.extensions_mut().insert(Named(id.clone()));
    let (method, path) = (request.method().clone(), clip(request.uri().path().to_owned(), PATH_BYTES));
    let span = tracing::info_span!("http", request_id = %id);
    let mut response = match admit_site(&app, request.headers(), request.uri()) {
        Ok(()) => next.run(request).instrument(span.clone()).await,
        Err(error) => {
            see_off(&app, request);
            error.into_response()
        }
    };
    if let Ok(value) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(REQUEST_ID, value);
    }
    let headers_ms = start.elapsed().as_millis() as u64;
    let status = response.status().as_u16();
    // Those who watch a server ask every few seconds.
    match matches!(path.as_str(), "/health" | "/ready" | "/live" | "/metrics" | "/slots") {
        true => tracing::debug!(parent: &span, %method, path, status, headers_ms, "request"),
        false => tracing::info!(parent: &span, %method, path, status, headers_ms, "request"),
    }
    response
}

/// The client's own name for the request, if it is one; otherwise a new one.
fn request_id(headers: &HeaderMap) -> String {
    let given = headers.get(REQUEST_ID).and_then(|v| v.to_str().ok());
    match given.filter(|id| !id.is_empty() && id.len() <= 128 && id.bytes().all(|b| b.is_ascii_graphic())) {
        Some(id) => id.to_owned(),
        None => format!("req-{:016x}", RandomState::new().hash_one(())),
    }
}

/// May a page of this site ask under this name?
fn admit_site(app: &App, headers: &HeaderMap, uri: &Uri) -> Result<(), ApiError> {
    if let Some(name) = ONCE.iter().find(|name| headers.get_all(**name).iter().nth(1).is_some()) {
        return Err(ApiError::invalid(format!("the header `{name}` comes more than once")));
    }
    if app.only_host().is_some_and(|host| !names_this_machine(headers, uri, host)) {
        return Err(ApiError::forbidden(
            "without keys this server answers to localhost only; ask for that, or start it with --api-key, or \
                    with --allow-anyone",
        ));
    }
    if same_site(headers) { Ok(()) } else { Err(ApiError::forbidden("pages of other sites may not use this server")) }
}

/// Is the request for this machine? A page can have its own site's name lead here once it is in a browser, so that the
/// browser takes this server for that site.
fn names_this_machine(headers: &HeaderMap, uri: &Uri, own: &str) -> bool {
    let named = match (uri.authority(), headers.get(header::HOST)) {
        // As a proxy is asked: this goes before the header.
        (Some(authority), _) => Some(authority.clone()),
        (None, Some(host)) => host.to_str().ok().and_then(|host| host.parse::<Authority>().ok()),
        // Browsers always name it.
        (None, None) => return true,
    };
    let Some(named) = named else { return false };
    let host = named.host();
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
        || ["localhost", own].iter().any(|name| host.eq_ignore_ascii_case(name))
}

/// Browsers name the site of the page that asks. Only a page that this server itself gave out may ask.
fn same_site(headers: &HeaderMap) -> bool {
    let text = |name| headers.get(name).and_then(|v| v.to_str().ok());
    let Some(origin) = headers.get(header::ORIGIN) else { return true };
    let host = origin.to_str().ok().and_then(|o| o.split_once("://")).map(|(_, host)| host);
    host.is_some() && host == text(header::HOST)
}

/// Lets only those in who have a key, if there are keys, and no more often than it says.
pub(crate) async fn ask_for_key(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response<Body> {
    let caller = match app.caller(key(request.headers())) {
        Ok(caller) => caller,
        Err(error) => {
            see_off(&app, request);
            return error.into_response();
        }
    };
    // Whoever looks at the server does not use it.
    let admitted = if request.method() == Method::GET { Ok(()) } else { caller.admit() };
    let name = request.extensions().get().map_or_else(|| "".into(), |Named(id)| id.clone());
    let (operation, parent) = (operation(request.uri().path()), Parent::read(request.headers()));
    request.extensions_mut().insert(Visit { caller: caller.clone(), request: name, operation, parent });
    let mut response = match admitted {
        Ok(()) => next.run(request).await,
        Err(refusal) => {
            see_off(&app, request);
            ApiError::refused(&refusal, &app.pace).into_response()
        }
    };
    for (name, value) in caller.headers() {
        if let Ok(value) = HeaderValue::from_str(&value) {
            response.headers_mut().insert(name, value);
        }
    }
    response
}

/// What a path is for, in the words of OpenTelemetry's conventions.
fn operation(path: &str) -> &'static str {
    match path.rsplit('/').next() {
        Some("embeddings") => "embeddings",
        Some("completions") if !path.ends_with("/chat/completions") => "text_completion",
        _ => "chat",
    }
}

/// The key in a request's headers.
fn key(headers: &HeaderMap) -> Option<&str> {
    let text = |name: header::HeaderName| headers.get(name).and_then(|v| v.to_str().ok());
    let bearer = text(header::AUTHORIZATION).and_then(|value| {
        let (scheme, key) = value.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then_some(key.trim())
    });
    bearer.or(text(header::HeaderName::from_static("x-api-key")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(rows: &[(&'static str, &'static str)]) -> HeaderMap {
        rows.iter().map(|(k, v)| (header::HeaderName::from_static(k), HeaderValue::from_static(v))).collect()
    }

    #[test]
    fn keys_come_in_two_headers() {
        assert_eq!(key(&headers(&[("authorization", "Bearer sk-1")])), Some("sk-1"));
        assert_eq!(key(&headers(&[("authorization", "bearer  sk-1 ")])), Some("sk-1"));
        assert_eq!(key(&headers(&[("authorization", "Basic sk-1"), ("x-api-key", "sk-2")])), Some("sk-2"));
        assert_eq!(key(&headers(&[])), None);
    }

    #[test]
    fn pages_of_other_sites_are_strangers() {
        let asks = |origin| same_site(&headers(&[("host", "127.0.0.1:8080"), ("origin", origin)]));
        assert!(asks("http://127.0.0.1:8080") && same_site(&headers(&[("host", "x")])));
        assert!(!asks("http://evil.example") && !asks("null") && !asks("http://127.0.0.1:80"));
    }

    #[test]
    fn only_this_machines_names_lead_to_an_open_server() {
        let leads = |host| names_this_machine(&headers(&[("host", host)]), &Uri::from_static("/"), "box.lan");
        assert!(
            ["127.0.0.1:8080", "[::1]:80", "localhost", "LocalHost:1", "127.9.9.9", "Box.lan:8080"].map(leads)
                == [true; 6]
        );
        assert!(
            ["evil.example", "192.168.0.1:8080", "localhost.evil.example", "127.0.0.1.evil", "", "a b"].map(leads)
                == [false; 6]
        );
        let whole = |uri| names_this_machine(&headers(&[("host", "localhost")]), &Uri::from_static(uri), "box.lan");
        assert!(whole("http://box.lan:8080/x") && !whole("http://evil.example/x"));
        assert!(names_this_machine(&headers(&[]), &Uri::from_static("/"), "box.lan"));
    }

    #[test]
    fn a_client_may_name_its_request() {
        assert_eq!(request_id(&headers(&[("x-request-id", "abc-1")])), "abc-1");
        assert!(request_id(&headers(&[("x-request-id", "a b")])).starts_with("req-"));
    }
}
