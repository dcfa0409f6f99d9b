//! Calls of Hermes, Qwen2.5 and Qwen3: JSON between tags.
//!
//! ```text
//! <tool_call>
//! {"name": "get_weather", "arguments": {"city": "Paris"}}
//! </tool_call>
//! ```

use super::{Budget, Call, Family, literal, parameters, rooted, schema_of};
use crate::error::ApiError;
use serde_json::{Map, Value};

pub(super) const TAGS: Option<[&str; 2]> = Some(["<tool_call>", "</tool_call>"]);

pub(super) static FAMILY: Family = Family {
    marks: &["tools", "<tool_call>"],
    // Qwen3-Coder's and GLM's calls have the same tags around something else.
    foreign: &["<function=", "<arg_key>"],
    tags: TAGS,
    between: "\n",
    native: true,
    parse,
    in_argument: ends_in_string,
    rule,
};

/// A call in JSON.
pub(super) fn parse(text: &str, tools: &[Value]) -> Option<Call> {
    let mut call: Map<String, Value> = serde_json::from_str(text.trim()).ok()?;
    let name = call.get("name")?.as_str()?.to_owned();
    // Any JSON may have a name; a call is of a tool that there is, and has arguments.
    parameters(tools, &name)?;
    let arguments = ["arguments", "parameters"].iter().find_map(|key| call.remove(*key))?;
    // Some models write the arguments as a text that is JSON.
    let arguments = arguments.as_str().map(str::to_owned).unwrap_or_else(|| arguments.to_string());
    Some(Call { name, arguments })
}

/// Does the beginning of a JSON text end inside of a string?
pub(super) fn ends_in_string(json: &str) -> bool {
    let (mut inside, mut escaped) = (false, false);
    for byte in json.bytes() {
        inside ^= byte == b'"' && !escaped;
        escaped = inside && byte == b'\\' && !escaped;
    }
    inside
}

pub(super) fn rule(name: &str, function: &Value, budget: &mut Budget) -> Result<String, ApiError> {
    json_rule(name, function, ["<tool_call>\n", "arguments", "\n</tool_call>"], budget)
}

/// The rule of a call in JSON, between `open` and `close`, with its arguments in the member `member`.
pub(super) fn json_rule(
    name: &str,
    function: &Value,
    [open, member, close]: [&str; 3],
    budget: &mut Budget,
) -> Result<String, ApiError> {
    let begin = literal(&format!("{open}{{\"name\": {}, \"{member}\": ", function["name"]));
    let end = literal(&format!("}}{close}"));
    // A schema of its own, so that what it refers to is found at its root.
    let schema = schema_of(function);
    let call = budget.text(format!("{name}: {begin} {name}_arguments {end}\n{name}_arguments: "))?;
    Ok(format!("{call}{}\n", rooted(&schema, &schema, budget)?))
}
