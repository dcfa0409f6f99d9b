//! Calls of Gemma 4: objects without quotes around keys, and texts between marks of their own.
//!
//! ```text
//! <|tool_call>call:get_weather{city:<|"|>Paris<|"|>,days:3}<tool_call|>
//! ```

use super::{Budget, Call, Family, literal, parameters, rooted, schema_of};
use crate::error::ApiError;
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

fn rule(name: &str, function: &Value, budget: &mut Budget) -> Result<String, ApiError> {
    let schema = schema_of(function);
    let begin = format!("<|tool_call>call:{}", function["name"].as_str().unwrap_or_default());
    let mut rules = Rules { root: &schema, text: String::new(), budget };
    let arguments = rules.object(&schema, name, 0)?;
    let rules = rules.text;
    Ok(format!(
        "{name}: {} {arguments} \"<tool_call|>\"\n{rules}\
         {name}_any: {quote} {name}_text | %json {{\"type\": [\"number\", \"boolean\", \"null\"]}} | {name}_list | {name}_map\n\
         {name}_list: \"[\" ({name}_any (\",\" {name}_any)*)? \"]\"\n\
         {name}_map: \"{{\" ({name}_pair (\",\" {name}_pair)*)? \"}}\"\n\
         {name}_pair: /[A-Za-z_][A-Za-z0-9_.-]*/ \":\" {name}_any\n\
         {name}_text[suffix={quote}]: /(?s:.*)/\n",
        literal(&begin),
        quote = literal(QUOTE)
    ))
}

/// Deepest schema that is followed; below, anything may come.
const SCHEMA_DEPTH: usize = 8;

/// The rules that a call's arguments need.
struct Rules<'a> {
    /// The schema of all arguments: what others refer to is found there.
    root: &'a Value,
    text: String,
    budget: &'a mut Budget,
}

impl Rules<'_> {
    /// An expression for what a schema allows; the rules that it needs have names that begin with `name`. Each call takes
    /// what it adds itself off the budget, so that the whole of it is counted once, and ends.
    fn expression(&mut self, schema: &Value, name: &str, depth: usize) -> Result<String, ApiError> {
        let root = self.root;
        let target = schema["$ref"].as_str().and_then(|path| root.pointer(path.strip_prefix('#')?));
        let schema = target.unwrap_or(schema);
        let call = name.split("__").next().unwrap_or(name);
        if depth > SCHEMA_DEPTH {
            return self.budget.text(format!("{call}_any"));
        }
        let fixed: Option<Vec<&Value>> = match (schema["enum"].as_array(), schema.get("const")) {
            (Some(list), _) => Some(list.iter().collect()),
            (None, only) => only.map(|value| vec![value]),
        };
        if let Some(list) = fixed.filter(|list| list.iter().all(|value| !value.is_array() && !value.is_object())) {
            let one = |value: &Value| match value.as_str() {
                Some(text) => literal(&format!("{QUOTE}{text}{QUOTE}")),
                None => literal(&value.to_string()),
            };
            let list = list.into_iter().map(one).collect::<Vec<String>>().join(" | ");
            return self.budget.text(format!("({list})"));
        }
        for word in ["anyOf", "oneOf"] {
            if let Some(list) = schema[word].as_array() {
                self.budget.take(2 + list.len() * " | ".len())?;
                let one = |(i, s): (usize, &Value)| self.expression(s, &format!("{name}__{i}"), depth + 1);
                let list: Vec<String> = list.iter().enumerate().map(one).collect::<Result<_, _>>()?;
                return Ok(format!("({})", list.join(" | ")));
            }
        }
        match schema["type"].as_str() {
            Some("string") => self.budget.text(format!("{} {call}_text", literal(QUOTE))),
            Some("integer" | "number" | "boolean" | "null") => rooted(schema, root, self.budget),
            Some("array") => {
                let item = format!("{name}__item");
                let (least, most) = (schema["minItems"].as_u64().unwrap_or(0), schema["maxItems"].as_u64());
                let whole = self.budget.text(list(&item, least, most))?;
                self.budget.take(item.len() + ": \n".len())?;
                let inner = self.expression(&schema["items"], &item, depth + 1)?;
                self.text.push_str(&format!("{item}: {inner}\n"));
                Ok(whole)
            }
            Some("object") if schema["properties"].is_object() => self.object(schema, name, depth),
            _ => self.budget.text(format!("{call}_any")),
        }
    }

    /// An object's members in the order of their names, as templates of the family write them.
    fn object(&mut self, schema: &Value, name: &str, depth: usize) -> Result<String, ApiError> {
        let required = |key: &str| schema["required"].as_array().is_some_and(|list| list.iter().any(|k| k == key));
        let mut members: Vec<(&String, &Value)> = schema["properties"].as_object().into_iter().flatten().collect();
        members.sort_by_key(|(key, _)| key.to_lowercase());
        // Of the members from the i-th on: `first_i` where none has come, `rest_i` where a comma is due.
        let count = members.len();
        self.add(&format!("{name}__first_{count}: \"\"\n{name}__rest_{count}: \"\"\n"))?;
        for (i, (key, inner)) in members.into_iter().enumerate() {
            let next = format!("{name}__rest_{}", i + 1);
            let member = format!("{name}__member_{i}");
            for (kind, comma) in [("first", ""), ("rest", "\",\" ")] {
                let without = if required(key) { String::new() } else { format!(" | {name}__{kind}_{}", i + 1) };
                self.add(&format!("{name}__{kind}_{i}: {comma}{member} {next}{without}\n"))?;
            }
            let begin = self.budget.text(format!("{member}: {} ", literal(&format!("{key}:"))))?;
            let value = self.expression(inner, &format!("{name}__{i}"), depth + 1)?;
            self.text.push_str(&format!("{begin}{value}\n"));
        }
        self.budget.text(format!("\"{{\" {name}__first_0 \"}}\""))
    }

    fn add(&mut self, text: &str) -> Result<(), ApiError> {
        self.budget.take(text.len())?;
        self.text.push_str(text);
        Ok(())
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
