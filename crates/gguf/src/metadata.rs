//! Metadata: keys and values in the file's order, with typed lookups.
//!
//! The lookups give `Ok(None)` for a missing key, and an error that names the key when the value
//! is there but of another kind. Integers may have any width in the file, since converters differ.

use std::collections::HashMap;

use crate::{Array, GgufError, Strings, Value};

/// The metadata of a model: an ordered map from key to value.
#[derive(Clone, Debug, Default)]
pub struct Metadata {
    entries: Vec<(String, Value)>,
    index: HashMap<String, usize>,
}

impl PartialEq for Metadata {
    fn eq(&self, other: &Self) -> bool {
        self.entries == other.entries
    }
}

impl Metadata {
    /// No entries.
    pub fn new() -> Self {
        Self::default()
    }

    /// The number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// All entries in the file's order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Value)> {
        self.entries.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.index.get(key).map(|&i| &self.entries[i].1)
    }

    /// Sets a key: replaces its value in place, or appends it.
    pub fn insert(&mut self, key: impl Into<String>, value: impl Into<Value>) {
        let key = key.into();
        match self.index.get(&key) {
            Some(&i) => self.entries[i].1 = value.into(),
            None => self.append(key, value.into()),
        }
    }

    /// Appends a key that must be new.
    pub(crate) fn insert_new(&mut self, key: &str, value: Value) -> Result<(), GgufError> {
        if self.index.contains_key(key) {
            return Err(GgufError::DuplicateKey { key: key.to_owned() });
        }
        self.append(key.to_owned(), value);
        Ok(())
    }

    fn append(&mut self, key: String, value: Value) {
        self.index.insert(key.clone(), self.entries.len());
        self.entries.push((key, value));
    }

    /// An integer of any width that fits into `u32`.
    pub fn u32(&self, key: &str) -> Result<Option<u32>, GgufError> {
        self.integer(key, "u32")
    }

    /// An integer of any width that fits into `i32`.
    pub fn i32(&self, key: &str) -> Result<Option<i32>, GgufError> {
        self.integer(key, "i32")
    }

    /// An integer of any width that fits into `u64`.
    pub fn u64(&self, key: &str) -> Result<Option<u64>, GgufError> {
        self.integer(key, "u64")
    }

    /// An integer of any width that fits into `usize`.
    pub fn usize(&self, key: &str) -> Result<Option<usize>, GgufError> {
        self.integer(key, "usize")
    }

    fn integer<T: TryFrom<i128>>(&self, key: &str, expected: &'static str) -> Result<Option<T>, GgufError> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        match value.as_integer() {
            Some(value) => fit(key, value, expected).map(Some),
            None => Err(wrong_type(key, "an integer", value)),
        }
    }

    /// A floating-point number; an F64 is rounded to `f32`.
    pub fn f32(&self, key: &str) -> Result<Option<f32>, GgufError> {
        self.lookup(key, "a float", |value| match *value {
            Value::F32(v) => Some(v),
            Value::F64(v) => Some(v as f32),
            _ => None,
        })
    }

    /// A boolean.
    pub fn bool(&self, key: &str) -> Result<Option<bool>, GgufError> {
        self.lookup(key, "a bool", |value| match *value {
            Value::Bool(v) => Some(v),
            _ => None,
        })
    }

    /// A string.
    pub fn str(&self, key: &str) -> Result<Option<&str>, GgufError> {
        self.lookup(key, "a string", |value| match value {
            Value::String(v) => Some(v.as_str()),
            _ => None,
        })
    }

    /// An array of strings.
    pub fn strings(&self, key: &str) -> Result<Option<&Strings>, GgufError> {
        self.lookup(key, "an array of string", |value| match value {
            Value::Array(Array::String(v)) => Some(v),
            _ => None,
        })
    }

    /// An array of `f32`.
    pub fn f32s(&self, key: &str) -> Result<Option<&[f32]>, GgufError> {
        self.lookup(key, "an array of f32", |value| match value {
            Value::Array(Array::F32(v)) => Some(v.as_slice()),
            _ => None,
        })
    }

    /// An array of booleans.
    pub fn bools(&self, key: &str) -> Result<Option<&[bool]>, GgufError> {
        self.lookup(key, "an array of bool", |value| match value {
            Value::Array(Array::Bool(v)) => Some(v.as_slice()),
            _ => None,
        })
    }

    /// An array of integers of any width that each fit into `i32`.
    pub fn i32s(&self, key: &str) -> Result<Option<Vec<i32>>, GgufError> {
        self.integers(key, "i32")
    }

    /// An array of integers of any width that each fit into `u32`.
    pub fn u32s(&self, key: &str) -> Result<Option<Vec<u32>>, GgufError> {
        self.integers(key, "u32")
    }

    fn integers<T: TryFrom<i128>>(&self, key: &str, expected: &'static str) -> Result<Option<Vec<T>>, GgufError> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        let elements = match value {
            Value::Array(array) => array.integers(),
            _ => None,
        };
        let elements = elements.ok_or_else(|| wrong_type(key, "an array of integers", value))?;
        elements.map(|v| fit(key, v, expected)).collect::<Result<_, _>>().map(Some)
    }

    /// A per-layer setting such as `head_count_kv`: an array with one integer a layer, or one
    /// integer for all of them. Gives `layers` numbers; entries past them are ignored.
    pub fn u32_per_layer(&self, key: &str, layers: usize) -> Result<Option<Vec<u32>>, GgufError> {
        if !matches!(self.get(key), Some(Value::Array(_))) {
            return Ok(self.u32(key)?.map(|v| vec![v; layers]));
        }
        let Some(mut values) = self.u32s(key)? else {
            return Ok(None);
        };
        if values.len() < layers {
            return Err(GgufError::TooFewEntries { key: key.to_owned(), found: values.len(), needed: layers });
        }
        values.truncate(layers);
        Ok(Some(values))
    }

    fn lookup<'a, T>(
        &'a self,
        key: &str,
        expected: &'static str,
        pick: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, GgufError> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        pick(value).map(Some).ok_or_else(|| wrong_type(key, expected, value))
    }
}

fn wrong_type(key: &str, expected: &'static str, value: &Value) -> GgufError {
    GgufError::WrongType { key: key.to_owned(), expected, found: value.describe() }
}

fn fit<T: TryFrom<i128>>(key: &str, value: i128, expected: &'static str) -> Result<T, GgufError> {
    T::try_from(value).map_err(|_| GgufError::OutOfRange { key: key.to_owned(), value, expected })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Metadata {
        let mut m = Metadata::new();
        m.insert("byte", 7_u8);
        m.insert("minus", -1_i64);
        m.insert("big", u64::MAX);
        m.insert("double", 0.5_f64);
        m.insert("yes", true);
        m.insert("name", "x");
        m.insert("words", vec!["a", "b"]);
        m.insert("types", vec![1_i32, 2]);
        m.insert("kv", vec![4_u32, 8, 4]);
        m
    }

    #[test]
    fn lookups_convert_what_fits_and_name_the_key_otherwise() {
        let m = sample();
        assert_eq!(m.u32("byte").unwrap(), Some(7));
        assert_eq!(m.i32("minus").unwrap(), Some(-1));
        assert_eq!(m.u64("big").unwrap(), Some(u64::MAX));
        assert_eq!(m.f32("double").unwrap(), Some(0.5));
        assert_eq!(m.bool("yes").unwrap(), Some(true));
        assert_eq!(m.str("name").unwrap(), Some("x"));
        assert_eq!(m.strings("words").unwrap().unwrap().get(1), Some("b"));
        assert_eq!(m.u32s("types").unwrap(), Some(vec![1, 2]));
        assert_eq!(m.u32("absent").unwrap(), None);
        assert_eq!(m.strings("absent").unwrap(), None);
        assert!(matches!(m.u32("minus"), Err(GgufError::OutOfRange { value: -1, .. })));
        assert_eq!(
            m.u32("words").unwrap_err().to_string(),
            "metadata key \"words\" is an array of 2 string, but an integer belongs there; \
             the file is badly converted"
        );
        assert!(matches!(m.bool("byte"), Err(GgufError::WrongType { .. })));
    }

    #[test]
    fn per_layer_values_come_from_a_number_or_an_array() {
        let m = sample();
        assert_eq!(m.u32_per_layer("byte", 2).unwrap(), Some(vec![7, 7]));
        assert_eq!(m.u32_per_layer("kv", 2).unwrap(), Some(vec![4, 8]));
        assert_eq!(m.u32_per_layer("absent", 2).unwrap(), None);
        assert!(matches!(m.u32_per_layer("kv", 4), Err(GgufError::TooFewEntries { found: 3, needed: 4, .. })));
    }

    #[test]
    fn insert_replaces_in_place_and_keeps_the_order() {
        let mut m = sample();
        m.insert("byte", 8_u8);
        assert_eq!(m.iter().next(), Some(("byte", &Value::U8(8))));
        assert_eq!(m.len(), 9);
        assert!(matches!(m.insert_new("byte", Value::U8(1)), Err(GgufError::DuplicateKey { .. })));
    }
}
