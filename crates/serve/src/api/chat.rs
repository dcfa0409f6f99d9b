//! OpenAI's `/v1/chat/completions`.

use super::{Reply, aside, logprobs, parameters, rule};
use crate::answer::{Answer, Delta};
use crate::app::App;
use crate::bodies::receive;
use crate::error::{ApiError, json_response};
use crate::fields::Fields;
use crate::generation::{Generation, Reason, Usage};
use crate::grammar::{Grammar, Rule};
use crate::guard::Visit;
use crate::model::{Model, Reasoning, TemplateOptions, unix_seconds};
use crate::reasoning::{Begun, Guide, Reader, Tags, Thinking};
use crate::score::Scored;
use crate::sse::{self, ChunkWriter, Wire, event};
use crate::tools::{self, Call, CallReader, Piece, Tools};
use axum::extract::{Request, State};
use parameters::Streaming;
use serde_json::{Map, Value, json};
use std::sync::Arc;
use zinc_text::TextStart;

/// A request, read.
struct Asked {
    /// Under which name the model was asked for.
    name: String,
    streaming: Streaming,
    messages: Vec<Value>,
    tools: Option<Tools>,
    template: TemplateOptions,
    grammar: Option<(Grammar, &'static str)>,
    reasoning: Reasoning,
    /// All but its prompt and its rule.
    generation: Generation,
}

/// What all parts of a response say.
struct Head {
    id: String,
    created: u64,
    name: String,
}

pub(super) async fn create(State(app): State<Arc<App>>, visit: Visit, request: Request) -> Reply {
    let (model, body) = receive(&app, &visit, request).await?;
    let worker = model.clone();
    let prepare = move || {
        let mut asked = read(Fields::read(&body)?, &worker)?;
        let prompt = worker.render(std::mem::take(&mut asked.messages).into(), std::mem::take(&mut asked.template))?;
        asked.generation.prompts = vec![worker.encode_prompt(&prompt)?];
        // Where reasoning may begin, or has begun.
        let begun =
            worker.tags.map(|tags| (tags, tags.begun(&prompt.text()))).filter(|(_, begun)| *begun != Begun::Over);
        asked.generation.reasoning =
            begun.filter(|_| asked.reasoning.apart).map(|(tags, begun)| Reader::new(tags, begun));
        Ok((asked, begun))
    };
    let (asked, begun) = aside(prepare).await?;
    let Asked { name, streaming, tools, grammar, reasoning, mut generation, .. } = asked;
    let rule = rule(&model, grammar).await?;
    generation.guide = guide(&model, rule, begun, reasoning.budget)?;
    let scored = generation.logprobs.is_some();
    let choices = vec![Reading::new(tools.as_ref()); generation.n];
    let answer = app.generate(&visit, &model, generation, TextStart::Beginning)?;
    let head = Head { id: format!("chatcmpl-{:016x}", parameters::fresh()), created: unix_seconds(), name };
    if streaming.on {
        let writer = ChunkWriter::new(&head.json("chat.completion.chunk", json!([])), streaming.usage);
        let wire = Chunks { model, writer, scored, choices };
        return Ok(sse::respond(answer, wire));
    }
    whole(&model, &head, answer, choices, scored).await
}

/// What the answer must follow: `rule`, but for reasoning in front of it, and no more reasoning than `budget`.
fn guide(
    model: &Model,
    rule: Option<Rule>,
    begun: Option<(&'static Tags, Begun)>,
    budget: Option<u32>,
) -> Result<Option<Guide>, ApiError> {
    let Some((tags, begun)) = begun.filter(|_| rule.is_some() || budget.is_some()) else {
        return Ok(rule.map(|rule| Guide::Rule(Box::new(rule))));
    };
    let thinking = Thinking::new(tags, begun, &model.tokenizer, model.vocabulary, budget, rule);
    let thinking = thinking.map_err(|error| ApiError::internal(error.to_string()))?;
    Ok(Some(Guide::Thinking(Box::new(thinking))))
}

/// Reads the parameters.
fn read(mut fields: Fields, model: &Model) -> Result<Asked, ApiError> {
    let name = model.answers_to(fields.take("model")?)?;
    let mut messages = messages(&mut fields)?;
    let tools = tools(&mut fields, model, &mut messages)?;
    let streaming = parameters::streaming(&mut fields)?;
    let logprobs: bool = fields.take("logprobs")?.unwrap_or(false);
    let top = fields.count("top_logprobs", 0, 20)?;
    if top.is_some_and(|n| n > 0) && !logprobs {
        return Err(ApiError::parameter("top_logprobs", "`top_logprobs` needs `logprobs` to be true"));
    }
    let mut variables = parameters::template_variables(&mut fields)?;
    let reasoning = parameters::reasoning(&mut fields, model, &mut variables)?;
    let add_generation_prompt = fields.take("add_generation_prompt")?.unwrap_or(true);
    let grammar = match (parameters::grammar(&mut fields)?, &tools) {
        (Some((_, name)), Some(_)) => {
            return Err(ApiError::parameter(name, format!("`{name}` would keep the model from calling tools")));
        }
        (None, Some(tools)) => tools.grammar()?.map(|grammar| (grammar, "tools")),
        (grammar, None) => grammar,
    };
    let (sampling, seeded) = parameters::sampling(&mut fields, model)?;
    let generation = Generation {
        prompts: vec![],
        n: parameters::answers(&mut fields)?,
        predict: parameters::limit(&mut fields, &["max_completion_tokens", "max_tokens"])?,
        sampling,
        seeded,
        stops: parameters::stops(&mut fields)?,
        ignore_eos: parameters::ignore_eos(&mut fields, &grammar)?,
        logprobs: logprobs.then(|| top.unwrap_or(0) as usize),
        guide: None,
        reasoning: None,
        first_call: tools.as_ref().and_then(Tools::first_call),
        echo: None,
        share: parameters::share(&mut fields)?,
        salt: parameters::cache_salt(&mut fields)?,
        pooling: None,
    };
    parameters::finish(
        fields,
        &[
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
    let told = tools.as_ref().and_then(Tools::for_template);
    let template = TemplateOptions { add_generation_prompt, tools: told, variables };
    Ok(Asked { name, streaming, messages, tools, template, grammar, reasoning, generation })
}

/// `messages` as chat templates expect them: contents are texts, `developer` is `system`.
pub(super) fn messages(fields: &mut Fields) -> Result<Vec<Value>, ApiError> {
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
        let calls = read_calls(message).map_err(&wrong)?;
        let reasons = read_reasoning(message).map_err(&wrong)?;
        let content = match message.get("content") {
            Some(Value::Array(parts)) => Value::String(parts_text(parts).map_err(|what| wrong(&what))?),
            Some(Value::String(_)) => continue,
            None | Some(Value::Null) if calls > 0 || reasons => continue,
            None | Some(_) => return Err(wrong("must have a `content`: a text, or a list of parts")),
        };
        message.insert("content".into(), content);
    }
    Ok(messages)
}

/// Earlier reasoning under both names that templates read; is there any?
fn read_reasoning(message: &mut Map<String, Value>) -> Result<bool, &'static str> {
    const NAMES: [&str; 2] = ["reasoning_content", "reasoning"];
    for name in NAMES {
        match message.get(name) {
            Some(Value::Null) => drop(message.shift_remove(name)),
            None | Some(Value::String(_)) => {}
            Some(_) => return Err("has reasoning that is no text"),
        }
    }
    let given = NAMES.iter().find_map(|name| message.get(*name).cloned());
    for (name, text) in NAMES.iter().zip(given.iter().cycle()) {
        message.entry(*name).or_insert(text.clone());
    }
    Ok(given.is_some())
}

/// The number of calls that a message has made; an error says what is wrong with them.
fn read_calls(message: &mut Map<String, Value>) -> Result<usize, &'static str> {
    const NAME: &str = "tool_calls";
    let calls = match message.get(NAME) {
        None => return Ok(0),
        Some(Value::Null) => {
            message.shift_remove(NAME);
            return Ok(0);
        }
        Some(Value::Array(calls)) => calls,
        Some(_) => return Err("has `tool_calls` that are no list"),
    };
    let good = |call: &Value| {
        let function = &call["function"];
        (call["type"].is_null() || call["type"] == "function")
            && function["name"].is_string()
            && (function["arguments"].is_string() || function["arguments"].is_object())
    };
    match calls.iter().all(good) {
        true => Ok(calls.len()),
        false => Err("has a call in `tool_calls` without a `function` with a `name` and `arguments`"),
    }
}

/// `tools` and what belongs to them; the messages are told as far as the template does not do that.
pub(super) fn tools(fields: &mut Fields, model: &Model, messages: &mut Vec<Value>) -> Result<Option<Tools>, ApiError> {
    let list = fields.take("tools")?.unwrap_or_default();
    let (choice, parallel) = (fields.take("tool_choice")?, fields.take("parallel_tool_calls")?.unwrap_or(true));
    let tools = Tools::read(model.family, list, choice, parallel)?;
    tools::history(model.family, messages);
    if let Some(tools) = &tools {
        tools.tell(messages);
    }
    Ok(tools)
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

/// How far a choice has been read.
#[derive(Clone)]
struct Reading {
    /// Its role has been told.
    begun: bool,
    /// Looks for calls, if there are tools.
    calls: Option<CallReader>,
}

impl Reading {
    fn new(tools: Option<&Tools>) -> Reading {
        Reading { begun: false, calls: tools.map(Tools::reader) }
    }

    /// The text and the calls in what has come; `end`: nothing more will.
    fn take(&mut self, text: String, end: bool) -> Vec<Piece> {
        let Some(calls) = &mut self.calls else { return vec![Piece::Text(text)] };
        let mut pieces = calls.push(&text);
        if end {
            pieces.extend(calls.finish());
        }
        pieces
    }

    /// Calls so far.
    fn calls(&self) -> usize {
        self.calls.as_ref().map_or(0, CallReader::calls)
    }

    /// OpenAI's word for how it ended.
    fn end(&self, reason: Reason) -> &'static str {
        if reason == Reason::Stop && self.calls() > 0 { "tool_calls" } else { reason.word() }
    }
}

/// `usage`, with the tokens of reasoning.
fn usage(usage: Usage) -> Value {
    let mut value = parameters::usage(usage);
    value["completion_tokens_details"] = json!({"reasoning_tokens": usage.reasoning});
    value
}

/// A call as OpenAI writes it.
fn call(Call { name, arguments }: Call) -> Value {
    let id = format!("call_{:016x}", parameters::fresh());
    json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}})
}

/// What has come of a choice.
#[derive(Clone, Default)]
struct Message {
    reasoning: String,
    text: String,
    calls: Vec<Value>,
    scores: Vec<Scored>,
    end: Option<&'static str>,
}

/// One response with all that comes.
async fn whole(model: &Model, head: &Head, mut answer: Answer, mut choices: Vec<Reading>, scored: bool) -> Reply {
    let mut messages = vec![Message::default(); choices.len()];
    while let Some(delta) = answer.next().await {
        let mut delta = delta?;
        let (reading, message) = (&mut choices[delta.choice], &mut messages[delta.choice]);
        message.reasoning.push_str(&delta.reasoning);
        for piece in reading.take(delta.text, delta.end.is_some()) {
            match piece {
                Piece::Text(text) => message.text.push_str(&text),
                Piece::Call(made) => message.calls.push(call(made)),
            }
        }
        message.scores.append(&mut delta.scores);
        message.end = delta.end.map(|reason| reading.end(reason));
    }
    let rows = messages.into_iter().enumerate().map(|(index, m)| {
        let content = if m.text.is_empty() && !m.calls.is_empty() { Value::Null } else { m.text.into() };
        let mut message = json!({"role": "assistant", "content": content, "refusal": null});
        if !m.reasoning.is_empty() {
            message["reasoning"] = m.reasoning.as_str().into();
            message["reasoning_content"] = m.reasoning.into();
        }
        if !m.calls.is_empty() {
            message["tool_calls"] = m.calls.into();
        }
        let logprobs = scored.then(|| logprobs::chat(model, &m.scores));
        json!({"index": index, "message": message, "logprobs": logprobs, "finish_reason": m.end})
    });
    let mut response = head.json("chat.completion", rows.collect());
    response["usage"] = usage(answer.usage());
    Ok(json_response(&response))
}

/// A stream of chunks.
struct Chunks {
    model: Arc<Model>,
    writer: ChunkWriter,
    scored: bool,
    choices: Vec<Reading>,
}

impl Chunks {
    fn chunk(&self, index: usize, delta: Value, scores: Value, end: Option<&str>, out: &mut String) {
        let choice = json!({"index": index, "delta": delta, "logprobs": scores, "finish_reason": end});
        self.writer.choice(&choice, out);
    }
}

impl Wire for Chunks {
    fn delta(&mut self, delta: Delta, out: &mut String) {
        let index = delta.choice;
        if !std::mem::replace(&mut self.choices[index].begun, true) {
            self.chunk(index, json!({"role": "assistant", "content": ""}), Value::Null, None, out);
        }
        let told = self.scored && !delta.scores.is_empty();
        let mut scores = if told { logprobs::chat(&self.model, &delta.scores) } else { Value::Null };
        if !delta.reasoning.is_empty() {
            // DeepSeek's and llama.cpp's name, and vLLM's.
            let part = json!({"reasoning_content": delta.reasoning, "reasoning": delta.reasoning});
            self.chunk(index, part, scores.take(), None, out);
        }
        let mut number = self.choices[index].calls();
        let mut pieces = self.choices[index].take(delta.text, delta.end.is_some());
        if pieces.is_empty() && !scores.is_null() {
            pieces.push(Piece::Text(String::new()));
        }
        for piece in pieces {
            let part = match piece {
                // Log-probabilities may come without text.
                Piece::Text(text) if text.is_empty() && scores.is_null() => continue,
                Piece::Text(text) => json!({"content": text}),
                Piece::Call(made) => {
                    let mut call = call(made);
                    call["index"] = number.into();
                    number += 1;
                    json!({"tool_calls": [call]})
                }
            };
            self.chunk(index, part, scores.take(), None, out);
        }
        if let Some(reason) = delta.end {
            self.chunk(index, json!({}), Value::Null, Some(self.choices[index].end(reason)), out);
        }
    }

    fn end(&mut self, usage: Usage, out: &mut String) {
        self.writer.end(&self::usage(usage), out);
    }

    fn error(&mut self, error: &ApiError, out: &mut String) {
        event(out, &error.json());
        out.push_str("data: [DONE]\n\n");
    }
}
