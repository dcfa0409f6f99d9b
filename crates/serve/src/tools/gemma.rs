//! Calls of Gemma 4: objects without quotes around keys, and texts between marks of their own.
//!
//! ```text
//! <|tool_call>call:get_weather{city:<|"|>Paris<|"|>,days:3}<tool_call|>
//! ```

use super::{Call, Family, literal, parameters, rooted, schema_of};
use serde_json::{Map, Value};

pub(super) static FAMILY: Family = Family {
    marks: &["tools", "<|tool_call>call:"],
    foreign: &[],
    tags: Some(["<|tool_call>", "<tool_call|>"]),
    between: "",
    native: true,
    parse,
    in_argument: |text| text.matches(QUOTE).count() % 2 == 1,
    rule,
};

/// Around texts.
const QUOTE: &str = "<|\"|>";

/// Deepest nesting of arguments.
const DEPTH: usize = 64;

fn parse(text: &str, tools: &[Value]) -> Option<Call> {
    let body = text.trim().strip_prefix("call:")?;
    let (name, arguments) = body.split_at(body.find('{')?);
    let name = name.trim();
    parameters(tools, name)?;
    let mut rest = arguments;
    let arguments = value(&mut rest, DEPTH)?;
    rest.trim().is_empty().then(|| Call { name: name.to_owned(), arguments: arguments.to_string() })
}

/// Takes a value off the front of a text.
fn value(rest: &mut &str, depth: usize) -> Option<Value> {
    let depth = depth.checked_sub(1)?;
    *rest = rest.trim_start();
    if rest.starts_with(QUOTE) {
        return quoted(rest).map(Value::from);
    }
    if eat(rest, "{") {
        let mut members = Map::new();
        while !eat(rest, "}") {
            let key = match quoted(rest) {
                Some(key) => key,
                None => {
                    let end = rest.find(':')?;
                    let key = rest[..end].trim().trim_matches('"').to_owned();
                    *rest = &rest[end..];
                    key
                }
            };
            if !eat(rest, ":") {
                return None;
            }
            members.insert(key, value(rest, depth)?);
            if !eat(rest, ",") && !rest.trim_start().starts_with('}') {
                return None;
            }
        }
        return Some(members.into());
    }
    if eat(rest, "[") {
        let mut items = vec![];
        while !eat(rest, "]") {
            items.push(value(rest, depth)?);
            if !eat(rest, ",") && !rest.trim_start().starts_with(']') {
                return None;
            }
        }
        return Some(items.into());
    }
    if rest.starts_with('"') {
        // Some write texts as JSON all the same.
        let mut values = serde_json::Deserializer::from_str(rest).into_iter::<String>();
        let text = values.next()?.ok()?;
        *rest = &rest[values.byte_offset()..];
        return Some(text.into());
    }
    let end = rest.find([',', '}', ']'])?;
    let word = rest[..end].trim();
    *rest = &rest[end..];
    // What is no JSON is a text that lacks its marks.
    Some(serde_json::from_str(word).unwrap_or_else(|_| word.into()))
}

/// Takes a text between marks off the front.
fn quoted(rest: &mut &str) -> Option<String> {
    let (text, after) = rest.trim_start().strip_prefix(QUOTE)?.split_once(QUOTE)?;
    *rest = after;
    Some(text.to_owned())
}

/// Takes a sign off the front, if it is there.
fn eat(rest: &mut &str, sign: &str) -> bool {
    match rest.trim_start().strip_prefix(sign) {
        Some(after) => {
            *rest = after;
            true
        }
        None => false,
    }
}

fn rule(name: &str, function: &Value) -> String {
    let schema = schema_of(function);
    let begin = format!("<|tool_call>call:{}", function["name"].as_str().unwrap_or_default());
    let mut rules = String::new();
    let arguments = object(&schema, &schema, name, 0, &mut rules);
    format!(
        "{name}: {} {arguments} \"<tool_call|>\"\n{rules}\
         {name}_any: {quote} {name}_text | %json {{\"type\": [\"number\", \"boolean\", \"null\"]}} | {name}_list | {name}_map\n\
         {name}_list: \"[\" ({name}_any (\",\" {name}_any)*)? \"]\"\n\
         {name}_map: \"{{\" ({name}_pair (\",\" {name}_pair)*)? \"}}\"\n\
         {name}_pair: /[A-Za-z_][A-Za-z0-9_.-]*/ \":\" {name}_any\n\
         {name}_text[suffix={quote}]: /(?s:.*)/\n",
        literal(&begin),
        quote = literal(QUOTE)
    )
}

/// Deepest schema that is followed; below, anything may come.
const SCHEMA_DEPTH: usize = 8;

/// An expression for what a schema allows; rules that it needs go to `rules`, their names begin with `name`.
fn expression(schema: &Value, root: &Value, name: &str, depth: usize, rules: &mut String) -> String {
    let target = schema["$ref"].as_str().and_then(|path| root.pointer(path.strip_prefix('#')?));
    let schema = target.unwrap_or(schema);
    let call = name.split("__").next().unwrap_or(name);
    if depth > SCHEMA_DEPTH {
        return format!("{call}_any");
    }
    let json = |schema: &Value| format!("%json {}", rooted(schema, root));
    let fixed: Option<Vec<&Value>> = match (schema["enum"].as_array(), schema.get("const")) {
        (Some(list), _) => Some(list.iter().collect()),
        (None, only) => only.map(|value| vec![value]),
    };
    if let Some(list) = fixed.filter(|list| list.iter().all(|value| !value.is_array() && !value.is_object())) {
        let one = |value: &Value| match value.as_str() {
            Some(text) => literal(&format!("{QUOTE}{text}{QUOTE}")),
            None => literal(&value.to_string()),
        };
        return format!("({})", list.into_iter().map(one).collect::<Vec<String>>().join(" | "));
    }
    for word in ["anyOf", "oneOf"] {
        if let Some(list) = schema[word].as_array() {
            let one = |(i, s): (usize, &Value)| expression(s, root, &format!("{name}__{i}"), depth + 1, rules);
            return format!("({})", list.iter().enumerate().map(one).collect::<Vec<String>>().join(" | "));
        }
    }
    match schema["type"].as_str() {
        Some("string") => format!("{} {call}_text", literal(QUOTE)),
        Some("integer" | "number" | "boolean" | "null") => json(schema),
        Some("array") => {
            let item = format!("{name}__item");
            let inner = expression(&schema["items"], root, &item, depth + 1, rules);
            rules.push_str(&format!("{item}: {inner}\n"));
            let (least, most) = (schema["minItems"].as_u64().unwrap_or(0), schema["maxItems"].as_u64());
            list(&item, least, most)
        }
        Some("object") if schema["properties"].is_object() => object(schema, root, name, depth, rules),
        _ => format!("{call}_any"),
    }
}

/// A list of `least` to `most` items.
fn list(item: &str, least: u64, most: Option<u64>) -> String {
    let more = |from: u64| match most {
        Some(most) => format!("{{{},{}}}", from, most.saturating_sub(1).max(from)),
        None => format!("{{{from},}}"),
    };
    match (least, most) {
        (_, Some(0)) => "\"[]\"".to_owned(),
        (0, _) => format!("\"[\" ({item} (\",\" {item}){})? \"]\"", more(0)),
        (least, _) => format!("\"[\" {item} (\",\" {item}){} \"]\"", more(least - 1)),
    }
}

/// An object's members in the order of their names, as templates of the family write them.
fn object(schema: &Value, root: &Value, name: &str, depth: usize, rules: &mut String) -> String {
    let required = |key: &str| schema["required"].as_array().is_some_and(|list| list.iter().any(|k| k == key));
    let mut members: Vec<(&String, &Value)> = schema["properties"].as_object().into_iter().flatten().collect();
    members.sort_by_key(|(key, _)| key.to_lowercase());
    // Of the members from the i-th on: `first_i` where none has come, `rest_i` where a comma is due.
    let count = members.len();
    rules.push_str(&format!("{name}__first_{count}: \"\"\n{name}__rest_{count}: \"\"\n"));
    for (i, (key, inner)) in members.into_iter().enumerate() {
        let value = expression(inner, root, &format!("{name}__{i}"), depth + 1, rules);
        let next = format!("{name}__rest_{}", i + 1);
        let member = format!("{name}__member_{i}");
        rules.push_str(&format!("{member}: {} {value}\n", literal(&format!("{key}:"))));
        for (kind, comma) in [("first", ""), ("rest", "\",\" ")] {
            let without = if required(key) { String::new() } else { format!(" | {name}__{kind}_{}", i + 1) };
            rules.push_str(&format!("{name}__{kind}_{i}: {comma}{member} {next}{without}\n"));
        }
    }
    format!("\"{{\" {name}__first_0 \"}}\"")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(text: &str) -> Option<Value> {
        let call = parse(text, &[json!({"name": "f"})])?;
        assert_eq!(call.name, "f");
        serde_json::from_str(&call.arguments).ok()
    }

    #[test]
    fn values_of_all_kinds_are_read() {
        let text =
            "call:f{a:<|\"|>Zürich, {x}<|\"|>,b:[1,-2.5,true,null],c:{<|\"|>d e<|\"|>:{}},f:plain words, g: \"j\\n\"}";
        let expected =
            json!({"a": "Zürich, {x}", "b": [1, -2.5, true, null], "c": {"d e": {}}, "f": "plain words", "g": "j\n"});
        assert_eq!(read(text), Some(expected));
        assert_eq!(read("call:f{}"), Some(json!({})));
        let deep = format!("call:f{{a:{}{}}}", "[".repeat(100), "]".repeat(100));
        for wrong in
            ["call:g{}", "f{}", "call:f", "call:f{a}", "call:f{a:1", "call:f{a:<|\"|>x}", "call:f{} and more", &deep]
        {
            assert_eq!(read(wrong), None, "{wrong}");
        }
        assert!((FAMILY.in_argument)("call:f{a:<|\"|>x") && !(FAMILY.in_argument)("call:f{a:<|\"|>x<|\"|>"));
    }
}
