//! OpenAI's `/v1/models`.

use super::Reply;
use crate::app::App;
use crate::error::{ApiError, json_response};
use crate::model::Model;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use serde_json::{Value, json};
use std::sync::Arc;

fn entry(model: &Model, name: &str) -> Value {
    json!({
        "id": name,
        "object": "model",
        "created": model.created,
        "owned_by": "zinc",
        "max_model_len": model.context,
        "meta": {"n_ctx_train": model.trained_context, "n_vocab": model.vocabulary},
    })
}

/// All names.
pub(super) async fn list(State(app): State<Arc<App>>) -> Reply {
    let model = app.model()?;
    let rows: Vec<Value> = model.names.iter().map(|name| entry(&model, name)).collect();
    Ok(json_response(&json!({"object": "list", "data": rows})))
}

/// One of them.
pub(super) async fn show(State(app): State<Arc<App>>, name: Result<Path<String>, PathRejection>) -> Reply {
    let model = app.model()?;
    let Path(name) = name.map_err(|_| ApiError::invalid("the model's name in the path is no UTF-8"))?;
    let name = model.answers_to(Some(name))?;
    Ok(json_response(&entry(&model, &name)))
}
