//! OpenAI's `/v1/chat/completions`.

use super::{Reply, aside, logprobs, parameters};
use crate::answer::{Answer, Delta};
use crate::app::App;
use crate::error::{ApiError, json_response};
use crate::fields::Fields;
use crate::generation::{Generation, Reason, Usage};
use crate::grammar::Grammar;
use crate::model::{Model, TemplateOptions, unix_seconds};
use crate::sse::{self, Wire, event};
use axum::extract::{Request, State};
use parameters::Streaming;
use serde_json::{Value, json};
use std::sync::Arc;
use zinc_text::TextStart;

/// A request, read.
struct Asked {
    /// Under which name the model was asked for.
    name: String,
    streaming: Streaming,
    messages: Value,
    template: TemplateOptions,
    grammar: Option<(Grammar, &'static str)>,
    /// All but its prompt and its rule.
    generation: Generation,
}

/// What all parts of a response say.
struct Head {
    id: String,
    created: u64,
    name: String,
}

pub(super) async fn create(State(app): State<Arc<App>>, request: Request) -> Reply {
    let model = app.model()?;
    let asked = read(super::fields(&app, request).await?, &model)?;
    let Asked { name, streaming, messages, template, grammar, mut generation } = asked;
    let worker = model.clone();
    let prepare = move || {
        let prompt = worker.encode_prompt(&worker.render(messages, template)?)?;
        let rule = grammar.map(|(grammar, name)| worker.grammars.compile(grammar, name)).transpose()?;
        Ok((prompt, rule))
    };
    let (prompt, rule) = aside(prepare).await?;
    (generation.prompts, generation.rule) = (vec![prompt], rule);
    let scored = generation.logprobs.is_some();
    let choices = generation.n;
    let answer = app.generate(&model, generation, TextStart::Beginning)?;
    let head = Head { id: format!("chatcmpl-{:016x}", parameters::fresh()), created: unix_seconds(), name };
    if streaming.on {
        let wire = Chunks { model, head, scored, usage: streaming.usage, begun: vec![false; choices] };
        return Ok(sse::respond(answer, wire));
    }
    whole(&model, &head, answer, choices, scored).await
}

/// Reads the parameters.
fn read(mut fields: Fields, model: &Model) -> Result<Asked, ApiError> {
    let name = model.answers_to(fields.take("model")?)?;
    let messages = messages(&mut fields)?;
    let streaming = parameters::streaming(&mut fields)?;
    let logprobs: bool = fields.take("logprobs")?.unwrap_or(false);
    let top = fields.count("top_logprobs", 0, 20)?;
    if top.is_some_and(|n| n > 0) && !logprobs {
        return Err(ApiError::parameter("top_logprobs", "`top_logprobs` needs `logprobs` to be true"));
    }
    let mut variables = fields.object("chat_template_kwargs")?.rest();
    if let Some(effort) = fields.take::<String>("reasoning_effort")? {
        variables.insert("reasoning_effort".into(), effort.into());
    }
    let add_generation_prompt = fields.take("add_generation_prompt")?.unwrap_or(true);
    let grammar = parameters::grammar(&mut fields)?;
    let generation = Generation {
        prompts: vec![],
        n: parameters::answers(&mut fields)?,
        predict: parameters::limit(&mut fields, &["max_completion_tokens", "max_tokens"])?,
        sampling: parameters::sampling(&mut fields, model)?,
        stops: parameters::stops(&mut fields)?,
        ignore_eos: fields.take("ignore_eos")?.unwrap_or(false),
        logprobs: logprobs.then(|| top.unwrap_or(0) as usize),
        rule: None,
        echo: None,
    };
    parameters::finish(
        fields,
        &[
            ("tools", json!([])),
            ("tool_choice", json!("none")),
            ("functions", json!([])),
            ("function_call", json!("none")),
            ("modalities", json!(["text"])),
            ("audio", json!({})),
            ("prediction", json!({})),
            ("web_search_options", json!({})),
            ("verbosity", json!("medium")),
            ("echo", json!(false)),
            ("continue_final_message", json!(false)),
        ],
    )?;
    let template = TemplateOptions { add_generation_prompt, variables };
    Ok(Asked { name, streaming, messages, template, grammar, generation })
}

/// `messages` as chat templates expect them: contents are texts, `developer` is `system`.
pub(super) fn messages(fields: &mut Fields) -> Result<Value, ApiError> {
    const NAME: &str = "messages";
    let mut messages: Vec<Value> = fields.need(NAME)?;
    if messages.is_empty() {
        return Err(ApiError::parameter(NAME, "`messages` must have at least one message"));
    }
    for (i, message) in messages.iter_mut().enumerate() {
        let wrong = |what: &str| ApiError::parameter(&format!("messages[{i}]"), format!("messages[{i}] {what}"));
        let Some(message) = message.as_object_mut() else { return Err(wrong("must be an object")) };
        match message.get("role").and_then(Value::as_str) {
            None => return Err(wrong("must have a `role`")),
            Some("developer") => {
                message.insert("role".into(), "system".into());
            }
            Some(_) => {}
        }
        let content = match message.get("content") {
            Some(Value::Array(parts)) => Value::String(parts_text(parts).map_err(|what| wrong(&what))?),
            Some(Value::String(_)) => continue,
            None | Some(Value::Null) if message.contains_key("tool_calls") => continue,
            None | Some(_) => return Err(wrong("must have a `content`: a text, or a list of parts")),
        };
        message.insert("content".into(), content);
    }
    Ok(messages.into())
}

/// The text of a message that comes in parts.
fn parts_text(parts: &[Value]) -> Result<String, String> {
    let mut text = String::new();
    for part in parts {
        let kind = part.get("type").and_then(Value::as_str).unwrap_or_default();
        match (kind, part.get("text").and_then(Value::as_str)) {
            ("text", Some(piece)) => text.push_str(piece),
            ("text", None) => return Err("has a part of type `text` without a `text`".into()),
            _ => return Err(format!("has a part of type `{kind}`; this server takes `text` only")),
        }
    }
    Ok(text)
}

impl Head {
    fn json(&self, object: &str, choices: Value) -> Value {
        json!({
            "id": self.id,
            "object": object,
            "created": self.created,
            "model": self.name,
            "system_fingerprint": parameters::fingerprint(),
            "choices": choices,
        })
    }
}

/// One response with all that comes.
async fn whole(model: &Model, head: &Head, mut answer: Answer, choices: usize, scored: bool) -> Reply {
    let mut texts = vec![String::new(); choices];
    let mut scores = vec![vec![]; choices];
    let mut ends = vec![Reason::Stop; choices];
    while let Some(delta) = answer.next().await {
        let mut delta = delta?;
        texts[delta.choice].push_str(&delta.text);
        scores[delta.choice].append(&mut delta.scores);
        ends[delta.choice] = delta.end.unwrap_or(ends[delta.choice]);
    }
    let rows = texts.into_iter().zip(scores).zip(ends).enumerate();
    let rows = rows.map(|(index, ((text, scores), end))| {
        json!({
            "index": index,
            "message": {"role": "assistant", "content": text, "refusal": null},
            "logprobs": scored.then(|| logprobs::chat(model, &scores)),
            "finish_reason": end.word(),
        })
    });
    let mut response = head.json("chat.completion", rows.collect());
    response["usage"] = parameters::usage(answer.usage());
    Ok(json_response(&response))
}

/// A stream of chunks.
struct Chunks {
    model: Arc<Model>,
    head: Head,
    scored: bool,
    usage: bool,
    /// Choices whose role has been told.
    begun: Vec<bool>,
}

impl Chunks {
    fn chunk(&self, index: usize, delta: Value, scores: Value, end: Option<Reason>, out: &mut String) {
        let choice =
            json!({"index": index, "delta": delta, "logprobs": scores, "finish_reason": end.map(Reason::word)});
        self.write(json!([choice]), Value::Null, out);
    }

    fn write(&self, choices: Value, usage: Value, out: &mut String) {
        let mut chunk = self.head.json("chat.completion.chunk", choices);
        if self.usage {
            chunk["usage"] = usage;
        }
        event(out, &chunk);
    }
}

impl Wire for Chunks {
    fn delta(&mut self, delta: Delta, out: &mut String) {
        let index = delta.choice;
        if !std::mem::replace(&mut self.begun[index], true) {
            self.chunk(index, json!({"role": "assistant", "content": ""}), Value::Null, None, out);
        }
        if !delta.text.is_empty() || !delta.scores.is_empty() {
            let scores = if self.scored { logprobs::chat(&self.model, &delta.scores) } else { Value::Null };
            self.chunk(index, json!({"content": delta.text}), scores, None, out);
        }
        if delta.end.is_some() {
            self.chunk(index, json!({}), Value::Null, delta.end, out);
        }
    }

    fn end(&mut self, usage: Usage, out: &mut String) {
        if self.usage {
            self.write(json!([]), parameters::usage(usage), out);
        }
        out.push_str("data: [DONE]\n\n");
    }

    fn error(&mut self, error: &ApiError, out: &mut String) {
        event(out, &error.json());
        out.push_str("data: [DONE]\n\n");
    }
}
