//! What the server answers to: one module per family of wire formats.
//!
//! ```text
//! request ─body─► Fields ─► Generation ─App─► Answer ─► response in the same format
//! ```
//!
//! Another family is another file here and its rows in [`router`].

mod chat;
mod completions;
mod embeddings;
mod llama_cpp;
mod logprobs;
mod models;
mod operations;
mod parameters;
mod prompts;

use crate::app::App;
use crate::error::ApiError;
use crate::grammar::{Grammar, Rule};
use crate::model::Model;
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::{Response, header};
use axum::routing::{get, post};
use std::sync::Arc;
use std::time::Duration;

/// Time that a grammar may wait for others to be compiled.
const GRAMMAR_TIME: Duration = Duration::from_secs(3);

/// What a handler gives.
type Reply = Result<Response<Body>, ApiError>;

/// All paths that need a key, if there are keys.
pub(crate) fn router() -> Router<Arc<App>> {
    Router::new()
        .route("/v1/chat/completions", post(chat::create))
        .route("/chat/completions", post(chat::create))
        .route("/v1/completions", post(completions::create))
        .route("/v1/embeddings", post(embeddings::create))
        .route("/embeddings", post(embeddings::create))
        .route("/v1/models", get(models::list))
        .route("/v1/models/{*model}", get(models::show))
        .route("/tokenize", post(llama_cpp::tokenize))
        .route("/detokenize", post(llama_cpp::detokenize))
        .route("/apply-template", post(llama_cpp::apply_template))
        .route("/props", get(llama_cpp::props))
        .route("/slots", get(llama_cpp::slots))
        .route("/metrics", get(operations::metrics))
        .route("/version", get(operations::version))
}

/// The paths that tell anyone whether the server works.
pub(crate) fn open_router() -> Router<Arc<App>> {
    Router::new()
        .route("/health", get(operations::health))
        .route("/ready", get(operations::health))
        .route("/live", get(operations::live))
}

/// Reads a request's body, up to the server's limits of size and time.
async fn body(app: &App, request: Request) -> Result<Bytes, ApiError> {
    let declared = request.headers().get(header::CONTENT_LENGTH).and_then(|v| v.to_str().ok()?.parse::<usize>().ok());
    if declared.is_some_and(|n| n > app.max_body) {
        return Err(ApiError::too_large(app.max_body));
    }
    let read = axum::body::to_bytes(request.into_body(), app.max_body);
    match tokio::time::timeout(app.patience.body, read).await {
        Ok(Ok(bytes)) => Ok(bytes),
        // Either there was more than it may be, or the connection broke and nobody reads this.
        Ok(Err(_)) => Err(ApiError::too_large(app.max_body)),
        Err(_) => Err(ApiError::too_slow()),
    }
}

/// Runs what takes long (templates, tokenizing) beside the connections.
async fn aside<T: Send + 'static>(work: impl FnOnce() -> Result<T, ApiError> + Send + 'static) -> Result<T, ApiError> {
    let ended = |_| ApiError::internal("a template or a tokenizer has failed");
    tokio::task::spawn_blocking(work).await.map_err(ended)?
}

/// Compiles a grammar and names the parameter it came in where it is at fault; few at a time, so that those that take
/// long leave room for all else.
async fn rule(model: &Arc<Model>, grammar: Option<(Grammar, &'static str)>) -> Result<Option<Rule>, ApiError> {
    let Some((grammar, name)) = grammar else { return Ok(None) };
    let place = tokio::time::timeout(GRAMMAR_TIME, model.grammars.places.clone().acquire_owned()).await;
    let Ok(Ok(place)) = place else { return Err(ApiError::busy("other grammars are being compiled; try again later")) };
    let worker = model.clone();
    let compile = move || {
        let rule = worker.grammars.compile(grammar, name);
        drop(place);
        rule
    };
    aside(compile).await.map(Some)
}
