//! Tools that a model may call: what it is told of them, how it writes a call, and what makes it write one.
//!
//! ```text
//! tools, tool_choice ─► Tools ─► messages and template variables, Grammar (if a call is demanded)
//! text of the answer ─CallReader─► text | call
//! ```
//!
//! How a call is written is a matter of what the model was trained on, and its chat template shows that: a row of
//! [`FAMILIES`] each, and a file. Models whose template knows no tools are told how in a system message.

mod budget;
mod gemma;
mod hermes;
mod llama;
mod qwen_coder;
mod reader;
mod spelled;

pub(crate) use reader::{CallReader, Piece};

use self::budget::Budget;
use crate::error::ApiError;
use crate::grammar::Grammar;
use serde_json::{Value, json};
use std::collections::HashSet;

/// How a family of models writes calls.
#[derive(Debug)]
pub(crate) struct Family {
    /// A template that has all of these texts belongs to the family …
    marks: &'static [&'static str],
    /// … unless it has one of these.
    foreign: &'static [&'static str],
    /// Around each call; `None`: calls are the whole answer.
    tags: Option<[&'static str; 2]>,
    /// Between one call and the next.
    between: &'static str,
    /// The template itself tells the model of tools.
    native: bool,
    /// Reads a call without its tags, given the tools that there are.
    parse: fn(&str, &[Value]) -> Option<Call>,
    /// Does the beginning of a call end inside of an argument, where a closing tag closes nothing?
    in_argument: fn(&str) -> bool,
    /// Writes the Lark rule of this name for calls, tags and all, of this tool (the object `function`); all that it
    /// writes is taken off the budget, and where that is used up, it is an error.
    rule: fn(&str, &Value, &mut Budget) -> Result<String, ApiError>,
}

/// The first that fits counts; the last one fits all.
static FAMILIES: [&Family; 5] =
    [&qwen_coder::FAMILY, &gemma::FAMILY, &hermes::FAMILY, &llama::FAMILY, &spelled::FAMILY];

/// A call: the tool's name, and the arguments as JSON.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Call {
    pub(crate) name: String,
    pub(crate) arguments: String,
}

impl Family {
    /// The family of a chat template.
    pub(crate) fn of(template: &str) -> &'static Family {
        let fits = |f: &&&Family| {
            f.marks.iter().all(|mark| template.contains(mark)) && !f.foreign.iter().any(|mark| template.contains(mark))
        };
        FAMILIES.iter().find(fits).copied().unwrap_or(&spelled::FAMILY)
    }
}

/// Must there be a call?
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Choice {
    /// As the model likes.
    Auto,
    /// One of any.
    Required,
    /// Of this one.
    Named(String),
}

/// The tools of a request.
#[derive(Clone, Debug)]
pub(crate) struct Tools {
    family: &'static Family,
    /// As the client described them.
    list: Vec<Value>,
    choice: Choice,
    /// There may be more than one call.
    parallel: bool,
}

/// Most tools of a request.
const TOOLS: usize = 512;

/// Most calls of an answer that must have one.
const CALLS: usize = 8;

impl Tools {
    /// Reads `tools`, `tool_choice` and `parallel_tool_calls`; `None` if there are none, or they must not be called.
    pub(crate) fn read(
        family: &'static Family,
        list: Vec<Value>,
        choice: Option<Value>,
        parallel: bool,
    ) -> Result<Option<Tools>, ApiError> {
        let names = names(&list)?;
        let choice = match choice {
            None => Choice::Auto,
            Some(Value::String(word)) => match word.as_str() {
                "none" => return Ok(None),
                "auto" => Choice::Auto,
                "required" => Choice::Required,
                _ => return Err(ApiError::parameter("tool_choice", format!("`tool_choice` may not be `{word}`"))),
            },
            Some(object) => match object["function"]["name"].as_str() {
                Some(name) if names.contains(name) => Choice::Named(name.to_owned()),
                _ => return Err(ApiError::parameter("tool_choice", "`tool_choice` must name one of the tools")),
            },
        };
        match list.is_empty() {
            true if choice == Choice::Auto => Ok(None),
            true => Err(ApiError::parameter("tool_choice", "`tool_choice` demands a call, but there are no tools")),
            false => Ok(Some(Tools { family, list, choice, parallel })),
        }
    }

    /// What the template is to be told of the tools.
    pub(crate) fn for_template(&self) -> Option<Value> {
        self.family.native.then(|| self.list.clone().into())
    }

    /// A reader of answers.
    pub(crate) fn reader(&self) -> CallReader {
        let tools = self.list.iter().map(|tool| tool["function"].clone()).collect();
        CallReader::new(self.family, tools, !self.parallel)
    }

    /// What finds the call that ends an answer, if there may be one only.
    pub(crate) fn first_call(&self) -> Option<CallReader> {
        (!self.parallel).then(|| self.reader())
    }

    /// What the answer must be, if there must be a call.
    ///
    /// # Errors
    /// That would be more text than a grammar may have.
    pub(crate) fn grammar(&self) -> Result<Option<Grammar>, ApiError> {
        let wanted = |tool: &&Value| match &self.choice {
            Choice::Auto => false,
            Choice::Required => true,
            Choice::Named(name) => tool["function"]["name"] == name.as_str(),
        };
        let tools: Vec<&Value> = self.list.iter().filter(wanted).collect();
        if tools.is_empty() {
            return Ok(None);
        }
        let more = format!("({} call){{0,{}}}", literal(self.family.between), CALLS - 1);
        let several = self.parallel && self.family.tags.is_some();
        let mut lark = format!("start: call {}\n", if several { &more } else { "" });
        let rules: Vec<String> = (0..tools.len()).map(|i| format!("call_{i}")).collect();
        lark.push_str(&format!("call: {}\n", rules.join(" | ")));
        let mut budget = Budget::new();
        budget.take(lark.len())?;
        for (rule, tool) in rules.iter().zip(tools) {
            // What follows walks the schema, some of it more than once.
            Budget::new().holds(&tool["function"]["parameters"])?;
            lark.push_str(&(self.family.rule)(rule, &tool["function"], &mut budget)?);
        }
        Ok(Some(Grammar::Lark(lark)))
    }

    /// Tells a model whose template knows no tools of them, in a system message.
    pub(crate) fn tell(&self, messages: &mut Vec<Value>) {
        if !self.family.native {
            spelled::tell(&self.list, messages);
        }
    }
}

/// The names of the tools, which must be well described.
fn names(list: &[Value]) -> Result<HashSet<&str>, ApiError> {
    let wrong = |message: String| ApiError::parameter("tools", message);
    if list.len() > TOOLS {
        return Err(wrong(format!("`tools` may have {TOOLS} tools at most")));
    }
    let mut names: HashSet<&str> = HashSet::new();
    for (i, tool) in list.iter().enumerate() {
        let name = tool["function"]["name"].as_str().filter(|_| tool["type"] == "function");
        let good = |n: &&str| {
            (1..=64).contains(&n.len()) && n.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-.".contains(&b))
        };
        let name = name.filter(good).ok_or_else(|| {
            wrong(format!("tools[{i}] must be of type `function` and have a `function` with a `name` of up to 64 letters, digits, `_`, `-` or `.`"))
        })?;
        if !matches!(tool["function"].get("parameters"), None | Some(Value::Null | Value::Object(_))) {
            return Err(wrong(format!("tools[{i}]: `parameters` must be a JSON schema")));
        }
        if !names.insert(name) {
            return Err(wrong(format!("two tools are called `{name}`")));
        }
    }
    Ok(names)
}

/// Puts earlier calls and their results into the form that the family's templates read.
pub(crate) fn history(family: &Family, messages: &mut [Value]) {
    for message in messages {
        for call in message.get_mut("tool_calls").and_then(Value::as_array_mut).into_iter().flatten() {
            // Clients send a text that is JSON, templates expect the value.
            let arguments = call["function"]["arguments"].as_str().and_then(|text| serde_json::from_str(text).ok());
            if let Some(arguments @ Value::Object(_)) = arguments {
                call["function"]["arguments"] = arguments;
            }
        }
        if !family.native {
            spelled::spell_out(message);
        }
    }
}

/// A text in a Lark grammar: as in JSON.
fn literal(text: &str) -> String {
    Value::from(text).to_string()
}

/// The parameters of a tool that is called so; `None`: there is no such tool.
fn parameters<'a>(tools: &'a [Value], name: &str) -> Option<&'a Value> {
    tools.iter().find(|tool| tool["name"] == name).map(|tool| &tool["parameters"])
}

/// A schema inside of `root` as Lark, as one of its own: what it refers to is found at its root.
fn rooted(schema: &Value, root: &Value, budget: &mut Budget) -> Result<String, ApiError> {
    let mut schema = schema.clone();
    if let Value::Object(members) = &mut schema {
        for name in ["$defs", "definitions"] {
            if let Some(definitions) = root.get(name) {
                budget.holds(definitions)?;
                members.entry(name).or_insert_with(|| definitions.clone());
            }
        }
    }
    budget.text(format!("%json {}", crate::grammar::compact(schema)))
}

/// The schema of a tool's parameters; without any, an object without members.
fn schema_of(function: &Value) -> Value {
    match &function["parameters"] {
        Value::Null => json!({"type": "object", "properties": {}, "additionalProperties": false}),
        schema => schema.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_tells_its_family() {
        let is = |template: &str, family: &'static Family| std::ptr::eq(Family::of(template), family);
        assert!(is("{{ messages }}", &spelled::FAMILY) && is("{% if tools %}<tool_call>", &hermes::FAMILY));
        assert!(is("tools <tool_call> <arg_key>", &spelled::FAMILY), "GLM's way is another matter");
        let folder = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/fixtures/chat"));
        if !folder.exists() {
            return println!("not run: no published templates in {}", folder.display());
        }
        let families: [(&str, &'static Family); 5] = [
            ("Qwen-Qwen3-0.6B", &hermes::FAMILY),
            ("Qwen3.5-4B", &qwen_coder::FAMILY),
            ("google-gemma-4-31B-it", &gemma::FAMILY),
            ("meta-llama-Llama-3.2-3B-Instruct", &llama::FAMILY),
            ("google-gemma-2-2b-it", &spelled::FAMILY),
        ];
        for (name, family) in families {
            let template = std::fs::read_to_string(folder.join(format!("{name}.jinja"))).expect("a template");
            assert!(is(&template, family), "{name}");
        }
    }

    #[test]
    fn tools_that_make_no_sense_are_refused() {
        let tool = |name: &str| json!({"type": "function", "function": {"name": name}});
        let read = |list: Vec<Value>, choice| Tools::read(&spelled::FAMILY, list, choice, true);
        assert!(read(vec![tool("a b")], None).is_err() && read(vec![json!({"type": "x"})], None).is_err());
        assert!(read(vec![tool("a"), tool("a")], None).is_err());
        assert!(read((0..=TOOLS).map(|i| tool(&format!("t{i}"))).collect(), None).is_err());
        assert!(read(vec![], Some(json!("required"))).is_err());
        assert!(read(vec![tool("a")], Some(json!({"type": "function", "function": {"name": "b"}}))).is_err());
        assert!(read(vec![tool("a")], Some(json!("none"))).is_ok_and(|t| t.is_none()));
        assert!(read(vec![], None).is_ok_and(|t| t.is_none()));
        let tools = read(vec![tool("a"), tool("b")], Some(json!("required"))).ok().flatten().expect("tools");
        assert!(tools.grammar().is_ok_and(|grammar| grammar.is_some()));
    }

    /// Small schemas that stand for more text than memory holds.
    #[test]
    fn schemas_that_grow_without_end_are_refused_before_they_do() {
        let keys = |count: usize, schema: Value| -> Value {
            (0..count).map(|i| (format!("k{i}"), schema.clone())).collect::<serde_json::Map<_, _>>().into()
        };
        let itself = json!({"type": "object", "properties": keys(10, json!({"$ref": "#"}))});
        let either = json!({
            "type": "object", "properties": {"a": {"$ref": "#/$defs/a"}},
            "$defs": {"a": {"anyOf": vec![json!({"$ref": "#/$defs/a"}); 10]}},
        });
        let definitions = json!({
            "type": "object", "properties": keys(500, json!({"type": "integer"})), "$defs": {"a": "x".repeat(30_000)},
        });
        let large = json!({"type": "object", "description": "x".repeat(crate::grammar::BYTES)});
        let usual = json!({"type": "object", "properties": keys(20, json!({"type": "integer"}))});
        let cases: [(&Family, &Value); 8] = [
            (&gemma::FAMILY, &itself),
            (&gemma::FAMILY, &either),
            (&gemma::FAMILY, &definitions),
            (&gemma::FAMILY, &large),
            (&qwen_coder::FAMILY, &definitions),
            (&qwen_coder::FAMILY, &large),
            (&hermes::FAMILY, &large),
            (&llama::FAMILY, &large),
        ];
        let grammar = |family: &'static Family, schema: &Value| {
            let tool = json!({"type": "function", "function": {"name": "f", "parameters": schema}});
            let tools = Tools::read(family, vec![tool], Some(json!("required")), true);
            tools.ok().flatten().expect("tools").grammar()
        };
        for (family, schema) in cases {
            let family = FAMILIES.into_iter().find(|f| std::ptr::eq(*f, family)).expect("one of them");
            let error = grammar(family, schema).expect_err("too large");
            assert_eq!((error.status.as_u16(), error.param.as_deref()), (400, Some("tools")));
            assert!(grammar(family, &usual).is_ok());
        }
    }

    /// Whatever a demanded call may be, the family's own reader reads it: random walks through the grammar.
    #[test]
    fn demanded_calls_are_read_as_calls_that_fit_their_schema() {
        let city = json!({"type": "object", "required": ["city", "days"], "additionalProperties": false, "properties": {
            "city": {"type": "string", "maxLength": 6},
            "days": {"type": "integer", "minimum": 1, "maximum": 20},
            "unit": {"enum": ["c", "f"]},
            "exact": {"type": "boolean"},
            "parts": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 9}, "maxItems": 2},
        }});
        let tools = [
            json!({"type": "function", "function": {"name": "weather", "parameters": city}}),
            json!({"type": "function", "function": {"name": "now"}}),
        ];
        // What ends a free text in each family.
        let closers = ["\n</parameter>\n", "<|\"|>", "\"", "\"", "\""];
        for (number, (family, closer)) in FAMILIES.iter().zip(closers).enumerate() {
            for choice in [json!("required"), json!({"type": "function", "function": {"name": "weather"}})] {
                let tools =
                    Tools::read(family, tools.to_vec(), Some(choice.clone()), true).ok().flatten().expect("tools");
                for seed in 0..6 {
                    let grammar = tools.grammar().ok().flatten().expect("a grammar");
                    let text = crate::grammar::walk(grammar, 97 * seed + number as u64, closer);
                    let mut reader = tools.reader();
                    let mut pieces: Vec<Piece> = text.split_inclusive(' ').flat_map(|part| reader.push(part)).collect();
                    pieces.extend(reader.finish());
                    assert!(!pieces.is_empty() && reader.calls() == pieces.len(), "{number}: {text:?}: {pieces:?}");
                    for piece in pieces {
                        let Piece::Call(Call { name, arguments }) = piece else { panic!("{text:?}") };
                        let arguments: Value = serde_json::from_str(&arguments).expect("JSON");
                        if name == "now" {
                            assert!(choice == "required" && arguments == json!({}), "{text:?}");
                            continue;
                        }
                        let days = arguments["days"].as_i64().expect("a whole number");
                        assert!(name == "weather" && (1..=20).contains(&days) && arguments["city"].is_string());
                        assert!(["c", "f"].iter().any(|u| arguments["unit"] == *u) || arguments.get("unit").is_none());
                        assert!(arguments.get("exact").is_none_or(Value::is_boolean), "{text:?}");
                        assert!(arguments.get("parts").is_none_or(Value::is_array), "{text:?}");
                    }
                }
            }
        }
    }
}
