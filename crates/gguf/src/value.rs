//! Metadata values: scalars, text, and arrays kept as typed vectors.
//!
//! A vocabulary of 256 thousand tokens is one [`Strings`] (two allocations), not 256 thousand
//! values.

use std::fmt;
use std::ops::Index;

/// One metadata value.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)] // the variants are named after their types
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    U64(u64),
    I64(i64),
    F32(f32),
    F64(f64),
    Bool(bool),
    String(String),
    Array(Array),
}

/// An array value: every element has the same type, but nested arrays may differ among themselves.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)] // the variants are named after their element types
pub enum Array {
    U8(Vec<u8>),
    I8(Vec<i8>),
    U16(Vec<u16>),
    I16(Vec<i16>),
    U32(Vec<u32>),
    I32(Vec<i32>),
    U64(Vec<u64>),
    I64(Vec<i64>),
    F32(Vec<f32>),
    F64(Vec<f64>),
    Bool(Vec<bool>),
    String(Strings),
    Array(Vec<Array>),
}

/// The type ids of metadata values, as GGUF numbers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
#[allow(missing_docs)] // the variants are named after their types
pub enum ValueType {
    U8 = 0,
    I8 = 1,
    U16 = 2,
    I16 = 3,
    U32 = 4,
    I32 = 5,
    F32 = 6,
    Bool = 7,
    String = 8,
    Array = 9,
    U64 = 10,
    I64 = 11,
    F64 = 12,
}

/// Type, name and least size of an element in the file (bytes), in the order of the ids.
const VALUE_TYPES: [(ValueType, &str, u64); 13] = [
    (ValueType::U8, "u8", 1),
    (ValueType::I8, "i8", 1),
    (ValueType::U16, "u16", 2),
    (ValueType::I16, "i16", 2),
    (ValueType::U32, "u32", 4),
    (ValueType::I32, "i32", 4),
    (ValueType::F32, "f32", 4),
    (ValueType::Bool, "bool", 1),
    (ValueType::String, "string", 8),
    (ValueType::Array, "array", 12),
    (ValueType::U64, "u64", 8),
    (ValueType::I64, "i64", 8),
    (ValueType::F64, "f64", 8),
];

impl ValueType {
    /// The type with this id, if GGUF defines one.
    pub fn from_id(id: u32) -> Option<Self> {
        VALUE_TYPES.get(usize::try_from(id).ok()?).map(|row| row.0)
    }

    /// The id in the file.
    pub fn id(self) -> u32 {
        self as u32
    }

    /// A short name: `u8`, `string`, `array` …
    pub fn name(self) -> &'static str {
        VALUE_TYPES[self as usize].1
    }

    /// The fewest bytes one value can take in a file: what bounds a count before anything is read.
    pub(crate) fn least_bytes(self) -> u64 {
        VALUE_TYPES[self as usize].2
    }
}

impl fmt::Display for ValueType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl Value {
    /// The value's type.
    pub fn ty(&self) -> ValueType {
        match self {
            Self::U8(_) => ValueType::U8,
            Self::I8(_) => ValueType::I8,
            Self::U16(_) => ValueType::U16,
            Self::I16(_) => ValueType::I16,
            Self::U32(_) => ValueType::U32,
            Self::I32(_) => ValueType::I32,
            Self::U64(_) => ValueType::U64,
            Self::I64(_) => ValueType::I64,
            Self::F32(_) => ValueType::F32,
            Self::F64(_) => ValueType::F64,
            Self::Bool(_) => ValueType::Bool,
            Self::String(_) => ValueType::String,
            Self::Array(_) => ValueType::Array,
        }
    }

    /// The number, if this is an integer of any width. `i128` holds every `u64` and `i64`.
    pub fn as_integer(&self) -> Option<i128> {
        Some(match *self {
            Self::U8(v) => v.into(),
            Self::I8(v) => v.into(),
            Self::U16(v) => v.into(),
            Self::I16(v) => v.into(),
            Self::U32(v) => v.into(),
            Self::I32(v) => v.into(),
            Self::U64(v) => v.into(),
            Self::I64(v) => v.into(),
            _ => return None,
        })
    }

    /// A name for messages: `u32`, `an array of 5 string` …
    pub(crate) fn describe(&self) -> String {
        match self {
            Self::Array(array) => format!("an array of {} {}", array.len(), array.element_type()),
            scalar => format!("a {}", scalar.ty()),
        }
    }
}

impl Array {
    /// The elements' type.
    pub fn element_type(&self) -> ValueType {
        match self {
            Self::U8(_) => ValueType::U8,
            Self::I8(_) => ValueType::I8,
            Self::U16(_) => ValueType::U16,
            Self::I16(_) => ValueType::I16,
            Self::U32(_) => ValueType::U32,
            Self::I32(_) => ValueType::I32,
            Self::U64(_) => ValueType::U64,
            Self::I64(_) => ValueType::I64,
            Self::F32(_) => ValueType::F32,
            Self::F64(_) => ValueType::F64,
            Self::Bool(_) => ValueType::Bool,
            Self::String(_) => ValueType::String,
            Self::Array(_) => ValueType::Array,
        }
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        match self {
            Self::U8(v) => v.len(),
            Self::I8(v) => v.len(),
            Self::U16(v) => v.len(),
            Self::I16(v) => v.len(),
            Self::U32(v) => v.len(),
            Self::I32(v) => v.len(),
            Self::U64(v) => v.len(),
            Self::I64(v) => v.len(),
            Self::F32(v) => v.len(),
            Self::F64(v) => v.len(),
            Self::Bool(v) => v.len(),
            Self::String(v) => v.len(),
            Self::Array(v) => v.len(),
        }
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The elements as numbers, if they are integers of any width.
    pub fn integers(&self) -> Option<Box<dyn ExactSizeIterator<Item = i128> + '_>> {
        fn widen<T: Copy + Into<i128>>(v: &[T]) -> Box<dyn ExactSizeIterator<Item = i128> + '_> {
            Box::new(v.iter().map(|&x| x.into()))
        }
        Some(match self {
            Self::U8(v) => widen(v),
            Self::I8(v) => widen(v),
            Self::U16(v) => widen(v),
            Self::I16(v) => widen(v),
            Self::U32(v) => widen(v),
            Self::I32(v) => widen(v),
            Self::U64(v) => widen(v),
            Self::I64(v) => widen(v),
            _ => return None,
        })
    }
}

/// A list of strings in one buffer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Strings {
    text: String,
    /// Where each string ends in `text`; it starts where the one before ends.
    ends: Vec<usize>,
}

impl Strings {
    /// An empty list.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a string at the end.
    pub fn push(&mut self, s: &str) {
        self.text.push_str(s);
        self.ends.push(self.text.len());
    }

    /// The number of strings.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The string at `i`, counted from 0.
    pub fn get(&self, i: usize) -> Option<&str> {
        let end = *self.ends.get(i)?;
        let start = if i == 0 { 0 } else { self.ends[i - 1] };
        Some(&self.text[start..end])
    }

    /// All strings in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &str> + DoubleEndedIterator + Clone {
        (0..self.len()).map(|i| &self[i])
    }
}

impl Index<usize> for Strings {
    type Output = str;

    fn index(&self, i: usize) -> &str {
        match self.get(i) {
            Some(s) => s,
            None => panic!("string {i} of a list of {}", self.len()),
        }
    }
}

impl<S: AsRef<str>> FromIterator<S> for Strings {
    fn from_iter<I: IntoIterator<Item = S>>(items: I) -> Self {
        let mut list = Self::new();
        for s in items {
            list.push(s.as_ref());
        }
        list
    }
}

/// `From` conversions, so that a writer can say `set("general.name", "tiny")`.
macro_rules! value_from {
    ($($from:ty => $variant:ident),* $(,)?) => {$(
        impl From<$from> for Value {
            fn from(v: $from) -> Self {
                Self::$variant(v.into())
            }
        }
        impl From<Vec<$from>> for Value {
            fn from(v: Vec<$from>) -> Self {
                Self::Array(Array::$variant(v.into_iter().collect()))
            }
        }
    )*};
}

value_from! {
    u8 => U8, i8 => I8, u16 => U16, i16 => I16, u32 => U32, i32 => I32, u64 => U64, i64 => I64,
    f32 => F32, f64 => F64, bool => Bool, String => String, &str => String,
}

impl From<Array> for Value {
    fn from(v: Array) -> Self {
        Self::Array(v)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_the_type_table_stand_at_their_ids() {
        for (i, row) in VALUE_TYPES.iter().enumerate() {
            assert_eq!(row.0.id() as usize, i);
            assert_eq!(ValueType::from_id(i as u32), Some(row.0));
        }
        assert_eq!(ValueType::from_id(13), None);
    }

    #[test]
    fn strings_keep_empty_entries_apart() {
        let list: Strings = ["", "ä", "", "bc"].into_iter().collect();
        assert_eq!(list.iter().collect::<Vec<_>>(), ["", "ä", "", "bc"]);
        assert_eq!(list.iter().next_back(), Some("bc"));
        assert_eq!(list.get(4), None);
        assert_eq!(&list[1], "ä");
    }
}
