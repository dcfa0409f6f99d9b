//! Calls of Qwen3-Coder and Qwen3.5: XML of a kind. A parameter is text as it is; its type is the schema's matter.
//!
//! ```text
//! <tool_call>
//! <function=get_weather>
//! <parameter=city>
//! Paris
//! </parameter>
//! </function>
//! </tool_call>
//! ```

use super::{Budget, Call, Family, hermes, literal, parameters, rooted, schema_of};
use crate::error::ApiError;
use serde_json::{Map, Value};

pub(super) static FAMILY: Family = Family {
    marks: &["tools", "<function=", "<parameter="],
    foreign: &[],
    tags: hermes::TAGS,
    between: "\n",
    native: true,
    parse,
    in_argument,
    rule,
};

/// Behind a parameter's value.
const VALUE_END: &str = "\n</parameter>";

fn parse(text: &str, tools: &[Value]) -> Option<Call> {
    let (name, rest) = text.trim_start().strip_prefix("<function=")?.split_once('>')?;
    let body = rest.trim_end().strip_suffix("</function>")?;
    let schema = parameters(tools, name)?;
    let mut arguments = Map::new();
    let mut rest = body.trim_start();
    while !rest.is_empty() {
        let (key, after) = rest.strip_prefix("<parameter=")?.split_once('>')?;
        let (value, after) = after.split_once("</parameter>")?;
        let value = value.strip_prefix('\n').unwrap_or(value);
        let value = value.strip_suffix('\n').unwrap_or(value);
        arguments.insert(key.to_owned(), typed(value, &schema["properties"][key]));
        rest = after.trim_start();
    }
    Some(Call { name: name.to_owned(), arguments: Value::Object(arguments).to_string() })
}

/// A parameter's value: of a schema that says text, or says nothing, it is text; else JSON, if it is any.
fn typed(value: &str, schema: &Value) -> Value {
    let plain = || Value::from(value);
    if is_text(schema) || schema.is_null() {
        return plain();
    }
    match (value.trim(), serde_json::from_str(value.trim())) {
        (_, Ok(value)) => value,
        // Templates of the family print Python's values.
        ("True", _) => true.into(),
        ("False", _) => false.into(),
        ("None", _) => Value::Null,
        _ => plain(),
    }
}

/// Is all that this schema allows a text?
fn is_text(schema: &Value) -> bool {
    schema["type"] == "string" || schema["enum"].as_array().is_some_and(|list| list.iter().all(Value::is_string))
}

/// A value goes on until its own closing tag.
fn in_argument(text: &str) -> bool {
    let last = |tag| text.rfind(tag);
    match (last("<parameter="), last("</parameter>")) {
        (Some(begin), Some(end)) => begin > end,
        (begin, _) => begin.is_some(),
    }
}

fn rule(name: &str, function: &Value, budget: &mut Budget) -> Result<String, ApiError> {
    let schema = schema_of(function);
    let required = |key: &str| schema["required"].as_array().is_some_and(|list| list.iter().any(|k| k == key));
    let begin = format!("<tool_call>\n<function={}>\n", function["name"].as_str().unwrap_or_default());
    let mut whole = format!("{name}: {}", literal(&begin));
    let mut rules = String::new();
    for (i, (key, inner)) in schema["properties"].as_object().into_iter().flatten().enumerate() {
        let rule = format!("{name}_{i}");
        whole.push_str(&budget.text(format!(" {rule}{}", if required(key) { "" } else { "?" }))?);
        let (begin, end) = (literal(&format!("<parameter={key}>\n")), literal(&format!("{VALUE_END}\n")));
        let texts = inner["enum"].as_array().filter(|_| is_text(inner));
        let parameter = match texts {
            Some(texts) => {
                let texts: Vec<String> = texts.iter().filter_map(Value::as_str).map(literal).collect();
                budget.text(format!("{rule}: {begin} ({}) {end}\n", texts.join(" | ")))?
            }
            // Free text ends with the first closing tag, so whatever is longer than it may be is cut by the model alone.
            None if is_text(inner) => {
                budget.text(format!("{rule}: {begin} {rule}_text\n{rule}_text[suffix={end}]: /(?s:.*)/\n"))?
            }
            None => {
                let parameter = budget.text(format!("{rule}: {begin} {rule}_json {end}\n{rule}_json: "))?;
                format!("{parameter}{}\n", rooted(inner, &schema, budget)?)
            }
        };
        rules.push_str(&parameter);
    }
    Ok(format!("{whole} {}\n{rules}", literal("</function>\n</tool_call>")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn parameters_have_the_types_of_their_schema() {
        let properties = json!({
            "code": {"type": "string"}, "n": {"type": "integer"}, "on": {"type": "boolean"}, "list": {"type": "array"},
            "kind": {"enum": ["1", "2"]}, "any": {"anyOf": [{"type": "string"}, {"type": "number"}]},
        });
        let tools = [json!({"name": "f", "parameters": {"properties": properties}})];
        let read =
            |text: &str| parse(text, &tools).map(|call| serde_json::from_str::<Value>(&call.arguments).expect("JSON"));
        let parameter = |key: &str, value: &str| format!("<parameter={key}>\n{value}\n</parameter>\n");
        let text = format!(
            "\n<function=f>\n{}{}{}{}{}{}{}</function>\n",
            parameter("code", "if x:\n    <b>1</b>\n"),
            parameter("n", "12"),
            parameter("on", "True"),
            parameter("list", "[1, \"a\"]"),
            parameter("kind", "2"),
            parameter("any", "12 or so"),
            parameter("unknown", "7"),
        );
        let expected = json!({
            "code": "if x:\n    <b>1</b>\n", "n": 12, "on": true, "list": [1, "a"], "kind": "2", "any": "12 or so",
            "unknown": "7",
        });
        assert_eq!(read(&text), Some(expected));
        assert_eq!(read("<function=f></function>"), Some(json!({})));
        for wrong in ["<function=g></function>", "<function=f>", "<function=f>x</function>", "{\"name\": \"f\"}"] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
        let begun = "<function=f>\n<parameter=code>\nx";
        assert!(in_argument(begun) && !in_argument(&format!("{begun}\n</parameter>")) && !in_argument("<function=f>"));
    }
}
