//! What llama.cpp's server has beside OpenAI's paths: tokens, templates, settings, slots.

use super::{Reply, aside, chat, parameters};
use crate::app::App;
use crate::bodies::receive;
use crate::error::{ApiError, json_response};
use crate::fields::Fields;
use crate::guard::Visit;
use crate::model::TemplateOptions;
use axum::extract::{Request, State};
use serde_json::{Value, json};
use std::sync::Arc;

/// `/tokenize`: text to token ids.
pub(super) async fn tokenize(State(app): State<Arc<App>>, visit: Visit, request: Request) -> Reply {
    let (model, body) = receive(&app, &visit, request).await?;
    aside(move || {
        let mut fields = Fields::read(&body)?;
        let content: String = fields.need("content")?;
        let add_special = fields.take("add_special")?.unwrap_or(false);
        let parse_special = fields.take("parse_special")?.unwrap_or(true);
        let with_pieces = fields.take("with_pieces")?.unwrap_or(false);
        fields.finish()?;
        let ids = model.tokenizer.encode(&content, add_special, parse_special);
        let ids = ids.map_err(|error| ApiError::invalid(error.to_string()))?;
        let tokens: Value = match with_pieces {
            false => ids.into(),
            true => {
                // A piece that is a part of a character is given as its bytes.
                let piece = |id: &u32| {
                    let bytes = model.tokenizer.token_bytes(*id, true).unwrap_or_default();
                    let piece = std::str::from_utf8(&bytes).map_or_else(|_| json!(bytes.as_ref()), |text| json!(text));
                    json!({"id": id, "piece": piece})
                };
                ids.iter().map(piece).collect()
            }
        };
        Ok(json_response(&json!({"tokens": tokens})))
    })
    .await
}

/// `/detokenize`: token ids to text.
pub(super) async fn detokenize(State(app): State<Arc<App>>, visit: Visit, request: Request) -> Reply {
    let (model, body) = receive(&app, &visit, request).await?;
    aside(move || {
        let mut fields = Fields::read(&body)?;
        let tokens: Vec<u32> = fields.need("tokens")?;
        fields.finish()?;
        let content = model.tokenizer.decode(&tokens, true);
        let content = content.map_err(|error| ApiError::parameter("tokens", error.to_string()))?;
        Ok(json_response(&json!({"content": content})))
    })
    .await
}

/// `/apply-template`: messages to a prompt.
pub(super) async fn apply_template(State(app): State<Arc<App>>, visit: Visit, request: Request) -> Reply {
    let (model, body) = receive(&app, &visit, request).await?;
    aside(move || {
        let mut fields = Fields::read(&body)?;
        let mut messages = chat::messages(&mut fields)?;
        let tools = chat::tools(&mut fields, &model, &mut messages)?.and_then(|tools| tools.for_template());
        let add_generation_prompt = fields.take("add_generation_prompt")?.unwrap_or(true);
        let mut variables = parameters::template_variables(&mut fields)?;
        parameters::reasoning(&mut fields, &model, &mut variables)?;
        fields.finish()?;
        let options = TemplateOptions { add_generation_prompt, tools, variables };
        let prompt = model.render(messages.into(), options)?;
        Ok(json_response(&json!({"prompt": prompt.text()})))
    })
    .await
}

/// `/props`: the server's settings.
pub(super) async fn props(State(app): State<Arc<App>>) -> Reply {
    let model = app.model()?;
    let s = &model.sampling;
    // As people write it: 0.8 and not the F32 next to it.
    let short = |x: f32| x.to_string().parse::<f64>().unwrap_or(x.into());
    Ok(json_response(&json!({
        "default_generation_settings": {
            "n_ctx": model.context,
            "params": {
                "temperature": short(s.temperature),
                "top_k": s.top_k,
                "top_p": short(s.top_p),
                "min_p": short(s.min_p),
                "typical_p": short(s.typical_p),
                "repeat_penalty": short(s.repeat_penalty),
                "repeat_last_n": s.repeat_last_n,
                "frequency_penalty": short(s.frequency_penalty),
                "presence_penalty": short(s.presence_penalty),
            },
        },
        "total_slots": model.parallel,
        "model_alias": model.name(),
        "chat_template": model.template_source(),
        "bos_token": model.bos,
        "eos_token": model.eos,
        "modalities": {"vision": false, "audio": false},
        "build_info": parameters::fingerprint(),
    })))
}

/// `/slots`: what the engine is at.
pub(super) async fn slots(State(app): State<Arc<App>>) -> Reply {
    let model = app.model()?;
    let busy = app.snapshot().slots;
    let rows = busy.iter().filter(|slot| slot.started).enumerate().map(|(id, slot)| {
        json!({
            "id": id,
            "n_ctx": model.context,
            "is_processing": true,
            "id_task": slot.number,
            "n_prompt_tokens": slot.prompt,
            "n_decoded": slot.generated,
        })
    });
    let mut rows: Vec<Value> = rows.collect();
    for id in rows.len()..model.parallel as usize {
        rows.push(json!({"id": id, "n_ctx": model.context, "is_processing": false}));
    }
    Ok(json_response(&rows))
}
