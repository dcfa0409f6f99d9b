//! The parameters of a request, taken one by one; what nobody has taken is an error.
//!
//! ```text
//! body ─JSON object─► Fields ─take("temperature")─► Option<f32> …  ─finish─► names that nobody knows: 400
//! ```
//!
//! A parameter that is dropped without a word is a wrong answer that looks right. So every name is taken, known to have
//! no effect here, or refused.

use crate::error::ApiError;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use std::collections::BTreeSet;

/// The members of a JSON object that have not been taken yet.
#[derive(Debug)]
pub(crate) struct Fields {
    left: Map<String, Value>,
    /// Names that were asked for.
    known: BTreeSet<String>,
}

impl Fields {
    /// Reads a request's body.
    pub(crate) fn read(body: &[u8]) -> Result<Fields, ApiError> {
        match serde_json::from_slice(body) {
            Ok(Value::Object(map)) => Ok(Fields::of(map)),
            Ok(_) => Err(ApiError::invalid("the request's body must be a JSON object")),
            Err(error) => Err(ApiError::invalid(format!("the request's body is no JSON: {error}"))),
        }
    }

    fn of(left: Map<String, Value>) -> Fields {
        Fields { left, known: BTreeSet::new() }
    }

    /// Takes a parameter off, which counts as known from now on.
    fn remove(&mut self, name: &str) -> Option<Value> {
        if !self.known.contains(name) {
            self.known.insert(name.to_owned());
        }
        self.left.shift_remove(name)
    }

    /// The object inside a parameter; without it, an empty one.
    pub(crate) fn object(&mut self, name: &str) -> Result<Fields, ApiError> {
        match self.remove(name) {
            None | Some(Value::Null) => Ok(Fields::of(Map::new())),
            Some(Value::Object(map)) => Ok(Fields::of(map)),
            Some(_) => Err(ApiError::parameter(name, format!("`{name}` must be an object"))),
        }
    }

    /// All that is left.
    pub(crate) fn rest(self) -> Map<String, Value> {
        self.left
    }

    /// A parameter; `None` where it is absent or null.
    pub(crate) fn take<T: DeserializeOwned>(&mut self, name: &str) -> Result<Option<T>, ApiError> {
        match self.remove(name) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => serde_json::from_value(value)
                .map(Some)
                .map_err(|error| ApiError::parameter(name, format!("`{name}` cannot be read: {error}"))),
        }
    }

    /// A parameter that must be there.
    pub(crate) fn need<T: DeserializeOwned>(&mut self, name: &str) -> Result<T, ApiError> {
        let missing = || ApiError::parameter(name, format!("`{name}` is missing"));
        self.take(name)?.ok_or_else(missing)
    }

    /// A number between two others.
    pub(crate) fn number(&mut self, name: &str, least: f32, most: f32) -> Result<Option<f32>, ApiError> {
        let value: Option<f32> = self.take(name)?;
        match value {
            Some(x) if !(least..=most).contains(&x) => {
                Err(ApiError::parameter(name, format!("`{name}` is {x}, but must be between {least} and {most}")))
            }
            other => Ok(other),
        }
    }

    /// A whole number between two others.
    pub(crate) fn count(&mut self, name: &str, least: i64, most: i64) -> Result<Option<i64>, ApiError> {
        let value: Option<i64> = self.take(name)?;
        match value {
            Some(x) if !(least..=most).contains(&x) => {
                Err(ApiError::parameter(name, format!("`{name}` is {x}, but must be between {least} and {most}")))
            }
            other => Ok(other),
        }
    }

    /// Drops parameters that change nothing here.
    pub(crate) fn ignore(&mut self, names: &[&str]) {
        for name in names {
            self.remove(name);
        }
    }

    /// Refuses parameters that this server does not have, unless they have the value that says "off".
    pub(crate) fn refuse(&mut self, rows: &[(&str, Value)]) -> Result<(), ApiError> {
        for (name, off) in rows {
            match self.left.shift_remove(*name) {
                None | Some(Value::Null) => {}
                Some(value) if value == *off => {}
                Some(_) => return Err(ApiError::unsupported(name, "")),
            }
        }
        Ok(())
    }

    /// Nothing may be left.
    pub(crate) fn finish(self) -> Result<(), ApiError> {
        match self.left.into_iter().find(|(_, value)| !value.is_null()) {
            None => Ok(()),
            Some((name, _)) => {
                let known: Vec<&str> = self.known.iter().map(String::as_str).collect();
                Err(ApiError::unknown(&name, &known))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn fields(value: Value) -> Fields {
        Fields::read(value.to_string().as_bytes()).expect("an object")
    }

    #[test]
    fn what_nobody_takes_is_named() {
        let mut f = fields(json!({"a": 1, "b": null, "c": [1]}));
        assert_eq!(f.take::<u32>("a").expect("a number"), Some(1));
        let error = f.finish().expect_err("c is left");
        assert_eq!((error.param.as_deref(), error.code), (Some("c"), Some("unknown_parameter")));
        assert!(fields(json!({"b": null})).finish().is_ok(), "null is absent");
    }

    #[test]
    fn errors_name_the_parameter_and_what_it_may_be() {
        let mut f = fields(json!({"t": 3.0, "n": "x", "k": -1, "off": false, "on": true}));
        assert!(f.number("t", 0.0, 2.0).expect_err("too large").message.contains("between 0 and 2"));
        assert_eq!(f.take::<u32>("n").expect_err("a text").param.as_deref(), Some("n"));
        assert!(f.count("k", 0, 9).is_err());
        f.refuse(&[("off", json!(false))]).expect("off is fine");
        assert_eq!(f.refuse(&[("on", json!(false))]).expect_err("on is not").code, Some("unsupported_parameter"));
        assert!(Fields::read(b"[1]").is_err() && Fields::read(b"{").is_err());
    }
}
