//! How Python spells values: floats, and `json.dumps`.
//!
//! ```text
//! value ─JsonStyle.dump─► {"key": [1, 2.0, "text"]}
//! ```

use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind};

/// The number in `value` if it is one with a fraction.
pub(crate) fn float(value: &Value) -> Option<f64> {
    (value.kind() == ValueKind::Number && !value.is_integer()).then(|| f64::try_from(value.clone()).ok()).flatten()
}

/// `repr(number)`: the shortest digits that give the number back, with an exponent from 1e16 up
/// and below 1e-4.
pub(crate) fn spell_float(number: f64) -> String {
    if number.is_nan() {
        return "nan".to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    let scientific = format!("{number:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    match exponent.parse::<i32>() {
        Ok(exponent) if !(-4..16).contains(&exponent) => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{digits}e{sign}{:02}", exponent.abs())
        }
        _ => format!("{number:?}"),
    }
}

/// Options of `json.dumps`.
pub(crate) struct JsonStyle {
    pub(crate) ensure_ascii: bool,
    /// One level of indentation; `None`: all on one line.
    pub(crate) indent: Option<String>,
    pub(crate) item_separator: String,
    pub(crate) key_separator: String,
    pub(crate) sort_keys: bool,
}

impl Default for JsonStyle {
    fn default() -> Self {
        JsonStyle {
            ensure_ascii: false,
            indent: None,
            item_separator: ", ".to_owned(),
            key_separator: ": ".to_owned(),
            sort_keys: false,
        }
    }
}

/// Deeper values are refused; a template's own calls cannot nest so deep.
const DEPTH: usize = 200;

impl JsonStyle {
    /// `value` as JSON text.
    pub(crate) fn dump(&self, value: &Value) -> Result<String, Error> {
        let mut out = String::new();
        self.write(value, 0, &mut out)?;
        Ok(out)
    }

    fn write(&self, value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
        if depth > DEPTH {
            return Err(Error::new(ErrorKind::BadSerialization, "a value too deep for JSON"));
        }
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => out.push_str(&spell_number(value)),
            ValueKind::String => self.write_string(value.as_str().unwrap_or_default(), out),
            ValueKind::Map => {
                let mut entries = Vec::new();
                for key in value.try_iter()? {
                    entries.push((spell_key(&key)?, value.get_item(&key)?));
                }
                if self.sort_keys {
                    entries.sort_by(|a, b| a.0.cmp(&b.0));
                }
                self.write_list(['{', '}'], &entries, depth, out, |(key, value), out| {
                    self.write_string(key, out);
                    out.push_str(&self.key_separator);
                    self.write(value, depth + 1, out)
                })?;
            }
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter()?.collect();
                self.write_list(['[', ']'], &items, depth, out, |item, out| self.write(item, depth + 1, out))?;
            }
            other => {
                let message = format!("a value of the kind {other} is not JSON");
                return Err(Error::new(ErrorKind::BadSerialization, message));
            }
        }
        Ok(())
    }

    fn write_list<T>(
        &self,
        brackets: [char; 2],
        items: &[T],
        depth: usize,
        out: &mut String,
        write: impl Fn(&T, &mut String) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let new_line = |depth: usize, out: &mut String| {
            if let Some(indent) = self.indent.as_ref().filter(|_| !items.is_empty()) {
                out.push('\n');
                out.extend(std::iter::repeat_n(indent.as_str(), depth));
            }
        };
        out.push(brackets[0]);
        for (number, item) in items.iter().enumerate() {
            if number > 0 {
                out.push_str(&self.item_separator);
            }
            new_line(depth + 1, out);
            write(item, out)?;
        }
        new_line(depth, out);
        out.push(brackets[1]);
        Ok(())
    }

    fn write_string(&self, text: &str, out: &mut String) {
        out.push('"');
        for c in text.chars() {
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                c if c < ' ' || (self.ensure_ascii && c > '~') => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        out.push_str(&format!("\\u{unit:04x}"));
                    }
                }
                c => out.push(c),
            }
        }
        out.push('"');
    }
}

fn spell_number(value: &Value) -> String {
    match float(value) {
        // JSON has no words for these; Python writes its own.
        Some(number) if number.is_nan() => "NaN".to_owned(),
        Some(f64::INFINITY) => "Infinity".to_owned(),
        Some(f64::NEG_INFINITY) => "-Infinity".to_owned(),
        Some(number) => spell_float(number),
        None => value.to_string(),
    }
}

fn spell_key(key: &Value) -> Result<String, Error> {
    Ok(match key.kind() {
        ValueKind::String => key.as_str().unwrap_or_default().to_owned(),
        ValueKind::None => "null".to_owned(),
        ValueKind::Bool => if key.is_true() { "true" } else { "false" }.to_owned(),
        ValueKind::Number => spell_number(key),
        other => {
            let message = format!("a key of the kind {other} is not JSON");
            return Err(Error::new(ErrorKind::BadSerialization, message));
        }
    })
}

#[cfg(test)]
mod tests {
    use minijinja::value::Serde;

    use super::*;

    #[test]
    fn floats_are_spelled_as_in_python() {
        let cases = [
            (1.0, "1.0"),
            (0.1, "0.1"),
            (-2.5, "-2.5"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.5e300, "1.5e+300"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (1.25e-10, "1.25e-10"),
            (-0.0, "-0.0"),
            (f64::NAN, "nan"),
            (f64::NEG_INFINITY, "-inf"),
        ];
        for (number, expected) in cases {
            assert_eq!(spell_float(number), expected);
        }
    }

    #[test]
    fn json_has_pythons_separators_and_order() {
        let json = r#"{"b": [1, 2.0, {}], "a": {"x": null, "y": [true, "ä\"\n\u0001"]}, "c": []}"#;
        let value: serde_json::Value = serde_json::from_str(json).unwrap();
        let value = Value::from(Serde(&value));
        let mut style = JsonStyle::default();
        assert_eq!(style.dump(&value).unwrap(), json);
        style.sort_keys = true;
        style.ensure_ascii = true;
        style.item_separator = ",".into();
        style.key_separator = ":".into();
        let expected = r#"{"a":{"x":null,"y":[true,"\u00e4\"\n\u0001"]},"b":[1,2.0,{}],"c":[]}"#;
        assert_eq!(style.dump(&value).unwrap(), expected);
        style.indent = Some("  ".into());
        let small = Value::from(Serde([vec![1], vec![]]));
        assert_eq!(style.dump(&small).unwrap(), "[\n  [\n    1\n  ],\n  []\n]");
    }
}
