//! Parameters that chats and completions share.

use crate::error::ApiError;
use crate::fields::Fields;
use crate::grammar::Grammar;
use crate::keys::salt;
use crate::model::{Model, Reasoning};
use serde_json::{Map, Number, Value, json};
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::Arc;
use zinc_engine::{Salt, Sampling, Share};

/// Parameters that say something about the client, or choose among things of which there is only one here.
const WITHOUT_EFFECT: &[&str] = &[
    "user",
    "metadata",
    "store",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "cache_prompt",
    "id_slot",
    "request_id",
];

/// Most bytes of a stop text: each piece of each answer is compared with all of it.
const STOP_BYTES: usize = 1024;

/// How an answer is to be sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Streaming {
    pub(super) on: bool,
    /// A last event with the number of tokens.
    pub(super) usage: bool,
}

/// A number that does not come twice.
pub(super) fn fresh() -> u64 {
    RandomState::new().hash_one(())
}

/// `stream` and `stream_options`.
pub(super) fn streaming(fields: &mut Fields) -> Result<Streaming, ApiError> {
    let on = fields.take("stream")?.unwrap_or(false);
    let mut options = fields.object("stream_options")?;
    let usage = options.take("include_usage")?.unwrap_or(false);
    options.ignore(&["include_obfuscation"]);
    options.refuse(&[("continuous_usage_stats", json!(false))])?;
    options.finish()?;
    Ok(Streaming { on, usage })
}

/// How tokens are chosen: what is asked for, otherwise the server's own settings. And is the seed one that was asked for?
pub(super) fn sampling(fields: &mut Fields, model: &Model) -> Result<(Sampling, bool), ApiError> {
    let given = &model.sampling;
    let seed = seed(fields)?;
    let top_k = fields.count("top_k", -1, i32::MAX as i64)?;
    // vLLM's name goes before llama.cpp's.
    let repeat = fields.number("repetition_penalty", f32::MIN_POSITIVE, 100.0)?;
    let repeat_llama = fields.number("repeat_penalty", f32::MIN_POSITIVE, 100.0)?;
    let last = fields.count("repeat_last_n", -1, i32::MAX as i64)?;
    let sampling = Sampling {
        temperature: fields.number("temperature", 0.0, 100.0)?.unwrap_or(given.temperature),
        top_k: top_k.map_or(given.top_k, |k| k.max(0) as u32),
        top_p: fields.number("top_p", 0.0, 1.0)?.unwrap_or(given.top_p),
        min_p: fields.number("min_p", 0.0, 1.0)?.unwrap_or(given.min_p),
        typical_p: fields.number("typical_p", 0.0, 1.0)?.unwrap_or(given.typical_p),
        repeat_penalty: repeat.or(repeat_llama).unwrap_or(given.repeat_penalty),
        frequency_penalty: fields.number("frequency_penalty", -100.0, 100.0)?.unwrap_or(given.frequency_penalty),
        presence_penalty: fields.number("presence_penalty", -100.0, 100.0)?.unwrap_or(given.presence_penalty),
        repeat_last_n: last.map_or(given.repeat_last_n, |n| n as i32),
        bias: bias(fields, model)?,
        seed: seed.unwrap_or_else(fresh),
    };
    sampling.check().map_err(|error| ApiError::invalid(error.to_string()))?;
    Ok((sampling, seed.is_some()))
}

/// `priority`, as vLLM has it: lower is earlier, 0 is usual. Whose the request is comes later.
pub(super) fn share(fields: &mut Fields) -> Result<Share, ApiError> {
    let priority = fields.count("priority", i32::MIN.into(), i32::MAX.into())?.unwrap_or(0) as i32;
    Ok(Share { priority, ..Share::default() })
}

/// `cache_salt`, as vLLM has it: only requests of the same salt know this one's prompt.
pub(super) fn cache_salt(fields: &mut Fields) -> Result<Option<Salt>, ApiError> {
    const NAME: &str = "cache_salt";
    match fields.take::<String>(NAME)? {
        Some(text) if text.is_empty() => Err(ApiError::parameter(NAME, "`cache_salt` must not be empty")),
        text => Ok(text.map(|text| salt::of_text(&text))),
    }
}

/// `seed`: any whole number of 64 bits, but -1, which stands for none.
fn seed(fields: &mut Fields) -> Result<Option<u64>, ApiError> {
    const NAME: &str = "seed";
    let wrong = || ApiError::parameter(NAME, "`seed` must be a whole number of 64 bits");
    let Some(number) = fields.take::<Number>(NAME)? else { return Ok(None) };
    match (number.as_i64(), number.as_u64()) {
        (Some(-1), _) => Ok(None),
        (_, Some(seed)) => Ok(Some(seed)),
        (Some(seed), None) => Ok(Some(seed as u64)),
        (None, None) => Err(wrong()),
    }
}

/// `chat_template_kwargs`: variables for the chat template, but those that the server itself gives it.
pub(super) fn template_variables(fields: &mut Fields) -> Result<Map<String, Value>, ApiError> {
    const NAME: &str = "chat_template_kwargs";
    const RESERVED: [&str; 5] = ["messages", "tools", "add_generation_prompt", "bos_token", "eos_token"];
    let variables = fields.object(NAME)?.rest();
    match RESERVED.iter().find(|name| variables.contains_key(**name)) {
        Some(name) => Err(ApiError::parameter(NAME, format!("`{NAME}` may not set `{name}`, which the server sets"))),
        None => Ok(variables),
    }
}

/// How reasoning is treated, and what the template is told of that: `reasoning_format`, a budget under llama.cpp's or
/// vLLM's name, `reasoning_effort`.
pub(super) fn reasoning(
    fields: &mut Fields,
    model: &Model,
    variables: &mut Map<String, Value>,
) -> Result<Reasoning, ApiError> {
    const FORMAT: &str = "reasoning_format";
    let apart = match fields.take::<String>(FORMAT)?.as_deref() {
        None => model.reasoning.apart,
        Some("auto" | "deepseek") => true,
        Some("none") => false,
        Some(other) => {
            let message = format!("`{FORMAT}` may be auto, deepseek or none, not `{other}`");
            return Err(ApiError::parameter(FORMAT, message));
        }
    };
    let mut budget = model.reasoning.budget;
    for name in ["reasoning_budget", "thinking_budget_tokens", "thinking_token_budget"] {
        if let Some(given) = fields.count(name, -1, i64::from(u32::MAX))? {
            budget = u32::try_from(given).ok();
        }
    }
    if let Some(effort) = fields.take::<String>("reasoning_effort")? {
        if effort == "none" {
            budget = Some(0);
        }
        variables.insert("reasoning_effort".into(), effort.into());
    }
    if budget == Some(0) {
        // The names that templates know it by.
        for name in ["enable_thinking", "thinking"] {
            variables.entry(name).or_insert(false.into());
        }
    }
    Ok(Reasoning { apart, budget })
}

/// `logit_bias`: an object from token id to what is added.
fn bias(fields: &mut Fields, model: &Model) -> Result<Arc<[(u32, f32)]>, ApiError> {
    const NAME: &str = "logit_bias";
    let given: Option<Map<String, Value>> = fields.take(NAME)?;
    let mut rows = vec![];
    for (token, value) in given.into_iter().flatten() {
        let id = token.parse::<u32>().ok().filter(|id| *id < model.vocabulary);
        let id = id.ok_or_else(|| {
            let message = format!("`logit_bias` names `{token}`, which is no token id below {}", model.vocabulary);
            ApiError::parameter(NAME, message)
        })?;
        let value = value.as_f64().filter(|v| v.abs() <= 100.0).ok_or_else(|| {
            ApiError::parameter(NAME, format!("`logit_bias` of token {id} must be a number between -100 and 100"))
        })?;
        rows.push((id, value as f32));
    }
    Ok(rows.into())
}

/// `stop`: a text or several.
pub(super) fn stops(fields: &mut Fields) -> Result<Vec<String>, ApiError> {
    const NAME: &str = "stop";
    let stops = match fields.take::<Value>(NAME)? {
        None => vec![],
        Some(Value::String(text)) => vec![text],
        Some(Value::Array(list)) => {
            let texts = list.into_iter().map(|v| v.as_str().map(str::to_owned)).collect::<Option<Vec<String>>>();
            texts.ok_or_else(|| ApiError::parameter(NAME, "`stop` must be a text or a list of texts"))?
        }
        Some(_) => return Err(ApiError::parameter(NAME, "`stop` must be a text or a list of texts")),
    };
    if stops.len() > 16 {
        return Err(ApiError::parameter(NAME, "`stop` may have 16 texts at most"));
    }
    if stops.iter().any(|stop| stop.len() > STOP_BYTES) {
        return Err(ApiError::parameter(NAME, format!("a stop text may have {STOP_BYTES} bytes at most")));
    }
    match stops.iter().any(String::is_empty) {
        true => Err(ApiError::parameter(NAME, "a stop text must not be empty")),
        false => Ok(stops),
    }
}

/// `ignore_eos`: go on after the end. What follows a grammar has an end that nothing can follow.
pub(super) fn ignore_eos(fields: &mut Fields, grammar: &Option<(Grammar, &'static str)>) -> Result<bool, ApiError> {
    const NAME: &str = "ignore_eos";
    match (fields.take(NAME)?.unwrap_or(false), grammar) {
        (true, Some((_, name))) => {
            Err(ApiError::parameter(NAME, format!("`{NAME}` cannot be used with `{name}`, whose text has an end")))
        }
        (ignore, _) => Ok(ignore),
    }
}

/// `n`: answers per prompt.
pub(super) fn answers(fields: &mut Fields) -> Result<usize, ApiError> {
    Ok(fields.count("n", 1, 128)?.unwrap_or(1) as usize)
}

/// A limit of tokens under one of these names.
pub(super) fn limit(fields: &mut Fields, names: &[&str]) -> Result<Option<u32>, ApiError> {
    let mut limit = None;
    for name in names {
        let value = fields.count(name, 0, u32::MAX as i64)?;
        limit = limit.or(value.map(|n| n as u32));
    }
    Ok(limit)
}

/// What the answer must be, and the parameter that says so: OpenAI's `response_format`, llama.cpp's `json_schema`, or
/// vLLM's `structured_outputs`.
pub(super) fn grammar(fields: &mut Fields) -> Result<Option<(Grammar, &'static str)>, ApiError> {
    const FORMAT: &str = "response_format";
    const OUTPUTS: &str = "structured_outputs";
    let mut found = vec![];
    let mut format = fields.object(FORMAT)?;
    match format.take::<String>("type")?.as_deref() {
        None | Some("text") => {}
        Some("json_object") => found.push((Grammar::object(), FORMAT)),
        Some("json_schema") => {
            let mut inner = format.object("json_schema")?;
            inner.ignore(&["name", "description", "strict"]);
            found.push((Grammar::Schema(inner.need("schema")?), FORMAT));
            inner.finish()?;
        }
        Some(other) => {
            let message = format!("`response_format` may be text, json_object or json_schema, not `{other}`");
            return Err(ApiError::parameter(FORMAT, message));
        }
    }
    format.finish()?;
    found.extend(fields.take::<Value>("json_schema")?.map(|schema| (Grammar::Schema(schema), "json_schema")));
    let mut outputs = fields.object(OUTPUTS)?;
    found.extend(outputs.take("json")?.map(|schema| (Grammar::Schema(schema), OUTPUTS)));
    found.extend(outputs.take("regex")?.map(|regex| (Grammar::Regex(regex), OUTPUTS)));
    found.extend(outputs.take("choice")?.map(|texts| (Grammar::Choice(texts), OUTPUTS)));
    found.extend(outputs.take("grammar")?.map(|lark| (Grammar::Lark(lark), OUTPUTS)));
    outputs.finish()?;
    let grammar = found.pop();
    match found.pop() {
        Some((_, name)) => Err(ApiError::parameter(name, "an answer can follow one grammar only, and there are two")),
        None => Ok(grammar),
    }
}

/// Drops what has no effect, refuses what is not there, and what nobody knows.
pub(super) fn finish(mut fields: Fields, refused: &[(&str, Value)]) -> Result<(), ApiError> {
    fields.ignore(WITHOUT_EFFECT);
    fields.refuse(refused)?;
    // What a text is made of, as vLLM and llama.cpp let one choose.
    fields.refuse(&[
        ("best_of", json!(1)),
        ("use_beam_search", json!(false)),
        ("grammar", json!("")),
        ("guided_json", json!({})),
        ("guided_regex", json!("")),
        ("guided_choice", json!([])),
        ("guided_grammar", json!("")),
        ("lora", json!([])),
        ("stop_token_ids", json!([])),
        ("min_tokens", json!(0)),
        ("skip_special_tokens", json!(true)),
        ("include_stop_str_in_output", json!(false)),
    ])?;
    fields.finish()
}

/// `usage` as OpenAI writes it.
pub(super) fn usage(usage: crate::generation::Usage) -> Value {
    json!({
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.completion,
        "total_tokens": usage.prompt + usage.completion,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
    })
}

/// `system_fingerprint`: equal seeds give equal texts where this is equal.
pub(super) fn fingerprint() -> &'static str {
    concat!("zinc-", env!("CARGO_PKG_VERSION"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(value: Value) -> Fields {
        Fields::read(value.to_string().as_bytes()).expect("an object")
    }

    #[test]
    fn a_seed_is_any_number_of_64_bits_and_minus_one_is_none() {
        let read = |value: Value| seed(&mut fields(json!({"seed": value})));
        for (given, expected) in [(json!(7), 7), (json!(u64::MAX - 1), u64::MAX - 1), (json!(-2), u64::MAX - 1)] {
            assert_eq!(read(given).expect("a seed"), Some(expected));
        }
        assert_eq!((read(json!(-1)).expect("none"), read(Value::Null).expect("none")), (None, None));
        assert!(read(json!(1.5)).is_err() && read(json!("x")).is_err());
    }

    #[test]
    fn variables_of_a_template_leave_the_servers_own_alone() {
        let read = |name: &str| template_variables(&mut fields(json!({"chat_template_kwargs": {name: true}})));
        assert!(read("enable_thinking").is_ok_and(|v| v.len() == 1));
        assert!(["messages", "tools", "bos_token", "add_generation_prompt"].iter().all(|name| read(name).is_err()));
    }
}
