//! A reader over bytes that never goes past their end and never allocates before it has checked.

use std::fmt::Arguments;

use crate::GgufError;

/// The most elements an array, or bytes a string, of the metadata may have. Real files stay below
/// 2^24; the limit keeps a damaged count in a huge file from copying gigabytes of weights.
const MOST_ELEMENTS: u64 = 1 << 28;

/// A position in a file's bytes. Every method names the field it reads, for the error.
pub(crate) struct Cursor<'a> {
    bytes: &'a [u8],
    position: usize,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, position: 0 }
    }

    /// Bytes from the start of the file.
    pub(crate) fn position(&self) -> usize {
        self.position
    }

    fn remaining(&self) -> usize {
        self.bytes.len() - self.position
    }

    /// The next `count` bytes.
    fn take(&mut self, count: u64, field: Arguments<'_>) -> Result<&'a [u8], GgufError> {
        let rest = &self.bytes[self.position..];
        match usize::try_from(count).ok().and_then(|n| rest.get(..n)) {
            Some(bytes) => {
                self.position += bytes.len();
                Ok(bytes)
            }
            None => Err(GgufError::Truncated {
                field: field.to_string(),
                offset: self.position as u64,
                needed: count,
                available: rest.len() as u64,
            }),
        }
    }

    /// The next `N` bytes, for `from_le_bytes`.
    pub(crate) fn array<const N: usize>(&mut self, field: Arguments<'_>) -> Result<[u8; N], GgufError> {
        let bytes = self.take(N as u64, field)?;
        let mut array = [0; N];
        array.copy_from_slice(bytes);
        Ok(array)
    }

    pub(crate) fn u32(&mut self, field: Arguments<'_>) -> Result<u32, GgufError> {
        self.array(field).map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self, field: Arguments<'_>) -> Result<u64, GgufError> {
        self.array(field).map(u64::from_le_bytes)
    }

    /// A 64-bit count of things that take at least `least_bytes` each; refused if the rest of the
    /// file could not hold them.
    pub(crate) fn count(&mut self, least_bytes: u64, field: Arguments<'_>) -> Result<usize, GgufError> {
        let count = self.u64(field)?;
        let limit = (self.remaining() as u64 / least_bytes).min(MOST_ELEMENTS);
        match usize::try_from(count) {
            Ok(n) if count <= limit => Ok(n),
            _ => Err(GgufError::Count { field: field.to_string(), count, limit }),
        }
    }

    /// `count` numbers of `N` bytes. The vector is allocated only once the bytes are known to exist.
    pub(crate) fn numbers<const N: usize, T>(
        &mut self,
        count: usize,
        convert: fn([u8; N]) -> T,
        field: Arguments<'_>,
    ) -> Result<Vec<T>, GgufError> {
        let bytes = self.take((count as u64).saturating_mul(N as u64), field)?;
        Ok(bytes.as_chunks::<N>().0.iter().map(|&chunk| convert(chunk)).collect())
    }

    /// A string: 64-bit length, then UTF-8.
    pub(crate) fn string(&mut self, field: Arguments<'_>) -> Result<&'a str, GgufError> {
        let length = self.count(1, format_args!("the length of {field}"))?;
        let offset = self.position as u64;
        let bytes = self.take(length as u64, field)?;
        std::str::from_utf8(bytes).map_err(|_| GgufError::Utf8 { field: field.to_string(), offset })
    }

    /// A boolean: one byte, 0 or 1.
    pub(crate) fn bool(&mut self, field: Arguments<'_>) -> Result<bool, GgufError> {
        match self.array(field)? {
            [0] => Ok(false),
            [1] => Ok(true),
            [value] => Err(GgufError::Bool { field: field.to_string(), value }),
        }
    }
}
