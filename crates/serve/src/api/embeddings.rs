//! OpenAI's `/v1/embeddings`: a decoder's hidden states, pooled.

use super::prompts::{self, Prompt};
use super::{Reply, aside, parameters};
use crate::app::App;
use crate::bodies::receive;
use crate::error::{ApiError, json_response};
use crate::fields::Fields;
use crate::generation::Generation;
use crate::guard::Visit;
use crate::model::Model;
use crate::pooling::{Pooling, unit};
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::Response;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::Serialize;
use serde_json::json;
use std::sync::Arc;
use zinc_engine::{Salt, Sampling, Share};
use zinc_text::TextStart;

/// Most inputs of a request: OpenAI's own limit.
const INPUTS: usize = 2048;

/// Most inputs that wait in the queue at the same time: a request with many leaves room for others.
const GROUP: usize = 32;

/// How numbers are written.
#[derive(Clone, Copy)]
enum Form {
    Float,
    /// Little-endian F32.
    Base64,
}

/// A request, read.
struct Asked {
    /// Under which name the model was asked for.
    name: String,
    inputs: Vec<Prompt>,
    pooling: Pooling,
    form: Form,
    dimensions: usize,
    share: Share,
    salt: Option<Salt>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Numbers {
    Float(Vec<f32>),
    Base64(String),
}

#[derive(Serialize)]
struct Row {
    object: &'static str,
    index: usize,
    embedding: Numbers,
}

#[derive(Serialize)]
struct Tokens {
    prompt_tokens: u64,
    total_tokens: u64,
}

#[derive(Serialize)]
struct List {
    object: &'static str,
    data: Vec<Row>,
    model: String,
    usage: Tokens,
}

pub(super) async fn create(State(app): State<Arc<App>>, visit: Visit, request: Request) -> Reply {
    let (model, body) = receive(&app, &visit, request).await?;
    let worker = model.clone();
    let prepare = move || {
        let asked = read(Fields::read(&body)?, &worker)?;
        let encode = |input: Prompt| Ok(input.encode(&worker, "input", worker.special_in_content)?.0);
        let inputs = asked.inputs.into_iter().map(encode).collect::<Result<Vec<Arc<[u32]>>, ApiError>>()?;
        Ok((asked.name, asked.form, asked.dimensions, (asked.pooling, asked.share, asked.salt), inputs))
    };
    let (name, form, dimensions, how, inputs) = aside(prepare).await?;
    // One that does not fit is found before the others are computed.
    inputs.iter().try_for_each(|input| app.fits(&model, input.len(), Some(0)))?;
    let reserved = inputs.iter().map(|input| input.len() as u64).sum();
    // All groups are one request, which keeps its room from one to the next: it is refused as a whole, or not at all.
    let charge = app.admit(&visit, 1, GROUP.min(inputs.len()), reserved)?;
    let mut vectors = vec![];
    let mut tokens = 0;
    for group in inputs.chunks(charge.sequences()) {
        let (count, group) = (group.len(), generation(group, how));
        let mut answer = app.submit(&visit, &model, group, TextStart::Beginning, charge.clone())?;
        let mut found = vec![None; count];
        while let Some(delta) = answer.next().await {
            let delta = delta?;
            found[delta.choice] = delta.embedding.or(found[delta.choice].take());
        }
        tokens += answer.usage().prompt;
        vectors.extend(found);
    }
    let vectors: Option<Vec<Vec<f32>>> = vectors.into_iter().collect();
    let vectors = vectors.ok_or_else(|| ApiError::internal("a text gave no embedding"))?;
    let usage = Tokens { prompt_tokens: tokens, total_tokens: tokens };
    aside(move || Ok(respond(name, vectors, form, dimensions, usage))).await
}

/// Reads the parameters.
fn read(mut fields: Fields, model: &Model) -> Result<Asked, ApiError> {
    let name = model.answers_to(fields.take("model")?)?;
    let inputs = prompts::read(&mut fields, "input", INPUTS)?;
    if inputs.iter().any(|input| matches!(input, Prompt::Text(text) if text.is_empty())) {
        return Err(ApiError::parameter("input", "an input of `input` has no tokens: its text is empty"));
    }
    let form = match fields.take::<String>("encoding_format")?.as_deref() {
        None | Some("float") => Form::Float,
        Some("base64") => Form::Base64,
        Some(other) => {
            let message = format!("`encoding_format` may be float or base64, not `{other}`");
            return Err(ApiError::parameter("encoding_format", message));
        }
    };
    let width = model.width as usize;
    let dimensions = fields.count("dimensions", 1, width as i64)?.map_or(width, |n| n as usize);
    let pooling = model.pooling.ok_or_else(|| {
        ApiError::invalid("the model's file names a pooling that decoders do not have; start the server with --pooling")
    })?;
    let (share, salt) = (parameters::share(&mut fields)?, parameters::cache_salt(&mut fields)?);
    fields.ignore(&["user"]);
    fields.refuse(&[
        ("input_type", json!("")),
        ("truncate_prompt_tokens", json!(-1)),
        ("add_special_tokens", json!(true)),
        ("embd_normalize", json!(2)),
    ])?;
    fields.finish()?;
    Ok(Asked { name, inputs, pooling, form, dimensions, share, salt })
}

/// What gives the embeddings of these texts.
fn generation(inputs: &[Arc<[u32]>], (pooling, share, salt): (Pooling, Share, Option<Salt>)) -> Generation {
    Generation {
        prompts: inputs.to_vec(),
        n: 1,
        predict: Some(0),
        sampling: Sampling::default(),
        seeded: false,
        stops: vec![],
        ignore_eos: false,
        logprobs: None,
        guide: None,
        reasoning: None,
        first_call: None,
        echo: None,
        share,
        salt,
        pooling: Some(pooling),
    }
}

fn respond(name: String, vectors: Vec<Vec<f32>>, form: Form, dimensions: usize, usage: Tokens) -> Response<Body> {
    let write = |vector: Vec<f32>| {
        let vector = unit(vector, dimensions);
        match form {
            Form::Float => Numbers::Float(vector),
            Form::Base64 => {
                let bytes: Vec<u8> = vector.iter().flat_map(|x| x.to_le_bytes()).collect();
                Numbers::Base64(BASE64_STANDARD.encode(bytes))
            }
        }
    };
    let row = |(index, vector)| Row { object: "embedding", index, embedding: write(vector) };
    let data = vectors.into_iter().enumerate().map(row).collect();
    json_response(&List { object: "list", data, model: name, usage })
}
