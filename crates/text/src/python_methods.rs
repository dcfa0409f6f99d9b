//! Methods and filters of Python that templates call and the engine lacks or has otherwise.
//!
//! ```text
//! value.method(args) ─here─► else minijinja-contrib's ─► else an error that names the method
//! ```

use minijinja::value::{Kwargs, Tuple, Value, ValueKind, from_args};
use minijinja::{Environment, Error, ErrorKind, State};

/// Makes `environment` behave as Python's where it does not.
pub(crate) fn install(environment: &mut Environment<'_>) {
    environment.set_unknown_method_callback(call_method);
    environment.add_filter("int", int);
    environment.add_filter("float", float);
    environment.add_filter("round", round);
    environment.add_filter("wordcount", |text: &str| text.split_whitespace().count());
    environment.add_test("sequence", |value: &Value| {
        // In Python strings and mappings have a length and items, too.
        matches!(value.kind(), ValueKind::Seq | ValueKind::String | ValueKind::Map)
    });
}

fn call_method(state: &mut State<'_, '_>, value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    let found = match (value.kind(), value.as_str()) {
        (ValueKind::String, Some(text)) => string_method(text, method, args)?,
        (ValueKind::Map, _) if method == "copy" => {
            let () = from_args(args)?;
            Some(value.clone())
        }
        (ValueKind::Seq, _) if method == "index" => {
            let (item,): (Value,) = from_args(args)?;
            let place = value.try_iter()?.position(|other| other == item);
            Some(Value::from(place.ok_or_else(|| not_found("list.index"))?))
        }
        _ => None,
    };
    match found {
        Some(result) => Ok(result),
        None => minijinja_contrib::pycompat::unknown_method_callback(state, value, method, args),
    }
}

fn not_found(what: &str) -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("{what}: not found"))
}

/// Longer paddings are refused: a template may not fill the memory.
const PADDING: usize = 1 << 16;

fn string_method(text: &str, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    let pad = |width: usize| width.saturating_sub(text.chars().count());
    let fill = |count: usize, with: &str| -> Result<String, Error> {
        if count > PADDING {
            return Err(Error::new(ErrorKind::InvalidOperation, "padding is too long"));
        }
        Ok(with.repeat(count))
    };
    Ok(Some(match method {
        "rsplit" => {
            let (separator, most): (Option<&str>, Option<i64>) = from_args(args)?;
            rsplit(text, separator, most)
        }
        "partition" | "rpartition" => {
            let (separator,): (&str,) = from_args(args)?;
            if separator.is_empty() {
                return Err(Error::new(ErrorKind::InvalidOperation, "empty separator"));
            }
            let parts = match method {
                "partition" => text.split_once(separator).map_or([text, "", ""], |(a, b)| [a, separator, b]),
                _ => text.rsplit_once(separator).map_or(["", "", text], |(a, b)| [a, separator, b]),
            };
            Value::from(Tuple::from(parts.map(Value::from)))
        }
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            Value::from(text.strip_prefix(prefix).unwrap_or(text))
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            Value::from(text.strip_suffix(suffix).unwrap_or(text))
        }
        "index" | "rindex" => {
            let (part,): (&str,) = from_args(args)?;
            let at = if method == "index" { text.find(part) } else { text.rfind(part) };
            let at = at.ok_or_else(|| not_found("substring"))?;
            Value::from(text[..at].chars().count())
        }
        "title" => {
            let () = from_args(args)?;
            Value::from(title(text))
        }
        "ljust" | "rjust" | "center" => {
            let (width, with): (usize, Option<&str>) = from_args(args)?;
            let (missing, with) = (pad(width), with.unwrap_or(" "));
            let before = match method {
                "ljust" => 0,
                "rjust" => missing,
                // Python puts the odd one before where the width is odd.
                _ => missing / 2 + (missing & width & 1),
            };
            Value::from(fill(before, with)? + text + &fill(missing - before, with)?)
        }
        "zfill" => {
            let (width,): (usize,) = from_args(args)?;
            let digits = text.trim_start_matches(['+', '-']);
            let sign = &text[..text.len() - digits.len()];
            Value::from(format!("{sign}{}{digits}", fill(pad(width), "0")?))
        }
        _ => return Ok(None),
    }))
}

fn rsplit(text: &str, separator: Option<&str>, most: Option<i64>) -> Value {
    let most = most.and_then(|most| usize::try_from(most).ok()).unwrap_or(usize::MAX);
    let mut parts = Vec::new();
    let mut rest = text;
    let mut whole = true;
    match separator {
        Some(separator) if !separator.is_empty() => {
            while let Some((before, after)) = rest.rsplit_once(separator).filter(|_| parts.len() < most) {
                parts.push(after);
                rest = before;
            }
        }
        _ => loop {
            rest = rest.trim_end();
            whole = !rest.is_empty();
            match rest.rfind(char::is_whitespace).filter(|_| whole && parts.len() < most) {
                Some(at) => {
                    let after = at + rest[at..].chars().next().map_or(0, char::len_utf8);
                    parts.push(&rest[after..]);
                    rest = &rest[..at];
                }
                None => break,
            }
        },
    }
    parts.extend(whole.then_some(rest));
    Value::from_iter(parts.into_iter().rev().map(Value::from))
}

/// Upper case after anything that is no letter, lower case after a letter.
fn title(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut in_word = false;
    for c in text.chars() {
        if in_word {
            out.extend(c.to_lowercase());
        } else {
            out.extend(c.to_uppercase());
        }
        in_word = c.is_alphabetic();
    }
    out
}

/// `value | int(default=0)`: what is no number becomes the default.
fn int(value: &Value, default: Option<Value>, named: Kwargs) -> Result<Value, Error> {
    let default = default.or(named.get("default")?).unwrap_or_else(|| Value::from(0));
    named.assert_all_used()?;
    if value.is_integer() {
        return Ok(value.clone());
    }
    let read = match value.kind() {
        ValueKind::Bool => Some(i64::from(value.is_true())),
        ValueKind::String => {
            let text = value.as_str().unwrap_or_default().trim();
            text.parse().ok().or_else(|| truncate(text.parse().ok()?))
        }
        _ => crate::python::float(value).and_then(truncate),
    };
    Ok(read.map_or(default, Value::from))
}

fn truncate(number: f64) -> Option<i64> {
    number.is_finite().then_some(number.trunc() as i64)
}

/// `value | float(default=0.0)`.
fn float(value: &Value, default: Option<Value>, named: Kwargs) -> Result<Value, Error> {
    let default = default.or(named.get("default")?).unwrap_or_else(|| Value::from(0.0));
    named.assert_all_used()?;
    let read = match value.kind() {
        ValueKind::Bool => Some(if value.is_true() { 1.0 } else { 0.0 }),
        ValueKind::String => value.as_str().and_then(|text| text.trim().parse().ok()),
        _ => f64::try_from(value.clone()).ok(),
    };
    Ok(read.map_or(default, Value::from))
}

/// `value | round(precision=0, method="common")`: halves go to the even neighbour.
fn round(value: &Value, precision: Option<i32>, method: Option<&str>, named: Kwargs) -> Result<Value, Error> {
    let precision = precision.or(named.get("precision")?).unwrap_or(0).clamp(0, 17) as usize;
    let method = method.or(named.get("method")?).unwrap_or("common");
    named.assert_all_used()?;
    if value.is_integer() && method == "common" {
        return Ok(value.clone());
    }
    let number = f64::try_from(value.clone())?;
    let scale = 10f64.powi(precision as i32);
    Ok(Value::from(match method {
        "ceil" => (number * scale).ceil() / scale,
        "floor" => (number * scale).floor() / scale,
        // Exact decimal rounding of the double, as Python's own.
        _ => format!("{number:.precision$}").parse().unwrap_or(number),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rsplit_goes_from_the_right() {
        let split = |text, separator, most| rsplit(text, separator, most).to_string();
        assert_eq!(split("a,b,c", Some(","), Some(1)), "['a,b', 'c']");
        assert_eq!(split("a,b,c", Some(","), None), "['a', 'b', 'c']");
        assert_eq!(split("", Some(","), None), "['']");
        assert_eq!(split(" a  b\u{3000}c ", None, Some(1)), "[' a  b', 'c']");
        assert_eq!(split("  ", None, None), "[]");
        assert_eq!(split(" a b ", None, None), "['a', 'b']");
    }
}
