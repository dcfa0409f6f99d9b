//! What those who run a server ask it: does it work, how busy is it.

use super::Reply;
use crate::app::App;
use crate::error::{ApiError, json_response};
use crate::metrics::render_keys;
use crate::recovery::Lost;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderValue, Response, header};
use serde_json::json;
use std::sync::Arc;
use zinc_ir::plan::PAGE_TOKENS;

/// `/health`, `/ready`: 200 if a request would be taken now.
pub(super) async fn health(State(app): State<Arc<App>>) -> Reply {
    app.model()?;
    if let Some(Lost::Recovering(why)) = app.snapshot().lost {
        return Err(ApiError::recovering(&why));
    }
    match app.is_full() {
        true => Err(ApiError::unavailable("the server's queue is full")),
        false => Ok(json_response(&json!({"status": "ok"}))),
    }
}

/// `/live`: 200 as long as the process answers at all.
pub(super) async fn live() -> Response<Body> {
    json_response(&json!({"status": "ok"}))
}

/// `/version`.
pub(super) async fn version() -> Response<Body> {
    json_response(&json!({"version": env!("CARGO_PKG_VERSION")}))
}

/// `/metrics`.
pub(super) async fn metrics(State(app): State<Arc<App>>) -> Reply {
    let snapshot = app.snapshot();
    let model = app.loaded().ok_or_else(|| ApiError::unavailable("the model is being loaded"))?;
    let (load, bodies) = (&snapshot.load, app.bodies.bytes());
    let mut page = app.metrics.render(model.name(), load, snapshot.preemptions, PAGE_TOKENS, bodies);
    if app.key_metrics {
        render_keys(&app.accounts.all(), &mut page);
    }
    let mut response = Response::new(Body::from(page));
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    Ok(response)
}
