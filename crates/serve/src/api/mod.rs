//! What the server answers to: one module per family of wire formats.
//!
//! ```text
//! request ─body─► Fields ─► Generation ─App─► Answer ─► response in the same format
//! ```
//!
//! Another family is another file here, its rows in [`closed_rows`], and its paths in `openapi.json`.

mod chat;
mod completions;
mod embeddings;
mod llama_cpp;
mod logprobs;
mod models;
mod openapi;
mod operations;
mod parameters;
mod prompts;

use crate::app::App;
use crate::error::ApiError;
use crate::grammar::{Grammar, Rule};
use crate::model::Model;
use axum::Router;
use axum::body::Body;
use axum::http::Response;
use axum::routing::{MethodRouter, get, post};
use std::sync::Arc;
use std::time::Duration;

/// Time that a grammar may wait for others to be compiled.
const GRAMMAR_TIME: Duration = Duration::from_secs(3);

/// What a handler gives.
type Reply = Result<Response<Body>, ApiError>;

/// A path and what answers there.
type Row = (&'static str, MethodRouter<Arc<App>>);

/// The paths that need a key, if there are keys.
fn closed_rows() -> Vec<Row> {
    vec![
        ("/v1/chat/completions", post(chat::create)),
        ("/chat/completions", post(chat::create)),
        ("/v1/completions", post(completions::create)),
        ("/v1/embeddings", post(embeddings::create)),
        ("/embeddings", post(embeddings::create)),
        ("/v1/models", get(models::list)),
        ("/v1/models/{*model}", get(models::show)),
        ("/tokenize", post(llama_cpp::tokenize)),
        ("/detokenize", post(llama_cpp::detokenize)),
        ("/apply-template", post(llama_cpp::apply_template)),
        ("/props", get(llama_cpp::props)),
        ("/slots", get(llama_cpp::slots)),
        ("/metrics", get(operations::metrics)),
        ("/version", get(operations::version)),
    ]
}

/// The paths that tell anyone whether the server works, and what it takes.
fn open_rows() -> Vec<Row> {
    vec![
        ("/health", get(operations::health)),
        ("/ready", get(operations::health)),
        ("/live", get(operations::live)),
        ("/openapi.json", get(openapi::document)),
    ]
}

fn router_of(rows: Vec<Row>) -> Router<Arc<App>> {
    rows.into_iter().fold(Router::new(), |router, (path, answer)| router.route(path, answer))
}

/// All paths that need a key, if there are keys.
pub(crate) fn router() -> Router<Arc<App>> {
    router_of(closed_rows())
}

/// The paths that anyone may ask.
pub(crate) fn open_router() -> Router<Arc<App>> {
    router_of(open_rows())
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
