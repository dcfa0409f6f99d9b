//! API keys: who may ask.
//!
//! Keys are kept and compared as SHA-256 digests, in constant time and all of them: how long a comparison takes tells
//! nothing about a key.

use sha2::{Digest, Sha256};
use std::sync::Arc;
use subtle::{Choice, ConstantTimeEq};

/// The keys that open a server; without any, it is open.
#[derive(Clone, Default)]
pub struct Keys(Vec<[u8; 32]>);

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Keys({})", self.0.len())
    }
}

/// Reads the keys anew, where they come from a file.
#[derive(Clone)]
pub struct Reload(Arc<dyn Fn() -> Result<Keys, String> + Send + Sync>);

impl Reload {
    /// Takes what reads them; its error goes to the log.
    pub fn new(read: impl Fn() -> Result<Keys, String> + Send + Sync + 'static) -> Reload {
        Reload(Arc::new(read))
    }

    /// Reads them.
    pub(crate) fn read(&self) -> Result<Keys, String> {
        (self.0)()
    }
}

impl std::fmt::Debug for Reload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Reload")
    }
}

/// A key that cannot be sent in a header.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("API key {0} is empty or has characters that a header cannot carry; use letters, digits and punctuation")]
pub struct KeyError(
    /// Which one, counted from 1.
    pub usize,
);

fn digest(key: &str) -> [u8; 32] {
    Sha256::digest(key.as_bytes()).into()
}

impl Keys {
    /// Takes keys as they are.
    ///
    /// # Errors
    /// One is empty, or has white space, control or non-ASCII characters.
    pub fn new<'a>(keys: impl IntoIterator<Item = &'a str>) -> Result<Keys, KeyError> {
        let keys = keys.into_iter().enumerate().map(|(i, key)| {
            let fits = !key.is_empty() && key.bytes().all(|b| b.is_ascii_graphic());
            if fits { Ok(digest(key)) } else { Err(KeyError(i + 1)) }
        });
        keys.collect::<Result<_, _>>().map(Keys)
    }

    /// Takes the keys of a file: one a line, without empty lines and those that begin with `#`.
    ///
    /// # Errors
    /// As [`Keys::new`].
    pub fn lines(text: &str) -> Result<Keys, KeyError> {
        Keys::new(text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')))
    }

    /// Both.
    pub fn and(mut self, others: Keys) -> Keys {
        self.0.extend(others.0);
        self
    }

    /// May anyone ask?
    pub fn is_open(&self) -> bool {
        self.0.is_empty()
    }

    /// Does this key open the server?
    pub(crate) fn admit(&self, key: &str) -> bool {
        let digest = digest(key);
        let any = self.0.iter().fold(Choice::from(0), |any, known| any | known.ct_eq(&digest));
        bool::from(any)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_keys_themselves_open() {
        let keys = Keys::lines("# two\nsk-one \n\nsk-two\n").expect("keys").and(Keys::new(["sk-3"]).expect("a key"));
        assert!(["sk-one", "sk-two", "sk-3"].iter().all(|k| keys.admit(k)));
        assert!(["", "sk-", "sk-one ", "SK-ONE", "# two"].iter().all(|k| !keys.admit(k)));
        assert!(Keys::default().is_open() && !keys.is_open());
        assert_eq!(Keys::new(["a", "b c"]).err(), Some(KeyError(2)));
        assert_eq!(Keys::new([""]).err(), Some(KeyError(1)));
    }
}
