//! API keys: who may ask, and for how much.
//!
//! ```text
//! file of keys ─lines─► Keys ─find(key)─► Rules ─┐
//!                                  Accounts ─────┴─► Caller ─reserve─► Charge (one per request) ─► Ledger
//! ```
//!
//! Keys are kept and compared as SHA-256 digests, in constant time and all of them: how long a comparison takes tells
//! nothing about a key. A file may hold the digests in place of the keys.

mod account;
mod charge;
mod ledger;
mod rate;
mod rules;
pub(crate) mod salt;

pub(crate) use account::{Account, Accounts, Caller, Meter, Refusal};
pub(crate) use charge::Charge;
pub use ledger::{Entry, Ledger, LedgerError};
pub use rules::Rules;

use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::sync::Arc;
use subtle::{ConditionallySelectable, ConstantTimeEq};

/// What a line begins with that has a key's digest in place of the key, in capitals or not.
const DIGEST: &str = "sha256:";

/// The keys that open a server; without any, it is open.
#[derive(Clone, Default)]
pub struct Keys(Vec<([u8; 32], Arc<Rules>)>);

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Keys({})", self.0.len())
    }
}

/// Keys that make no sense.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum KeyError {
    /// One cannot be sent in a header. Which one, counted from 1.
    #[error("API key {0} is empty or has characters that a header cannot carry; use letters, digits and punctuation")]
    Characters(usize),
    /// A line of a file.
    #[error("line {line}: {what}")]
    Line {
        /// Which one, counted from 1.
        line: usize,
        /// What is wrong with it.
        what: String,
    },
}

fn digest(key: &str) -> [u8; 32] {
    Sha256::digest(key.as_bytes()).into()
}

/// How a line of a file may say a key without the key.
pub fn spell_digest(key: &str) -> String {
    let hex: String = digest(key).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{DIGEST}{hex}")
}

/// The digest that a text of 64 hexadecimal digits is.
fn read_digest(hex: &str) -> Option<[u8; 32]> {
    let mut digest = [0; 32];
    if hex.len() != 64 || !hex.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    for (byte, at) in digest.iter_mut().zip((0..64).step_by(2)) {
        *byte = u8::from_str_radix(&hex[at..at + 2], 16).ok()?;
    }
    Some(digest)
}

/// The name of a key that has none: tells nothing about it, and is the same after a restart.
fn nameless(digest: &[u8; 32]) -> String {
    let hex: String = digest[..4].iter().map(|byte| format!("{byte:02x}")).collect();
    format!("key-{hex}")
}

impl Keys {
    /// Takes keys as they are, without names and limits.
    ///
    /// # Errors
    /// One is empty, or has white space, control or non-ASCII characters.
    pub fn new<'a>(keys: impl IntoIterator<Item = &'a str>) -> Result<Keys, KeyError> {
        let keys = keys.into_iter().enumerate().map(|(i, key)| {
            let fits = !key.is_empty() && key.bytes().all(|b| b.is_ascii_graphic());
            let digest = digest(key);
            if fits {
                Ok((digest, Arc::new(Rules::named(nameless(&digest)))))
            } else {
                Err(KeyError::Characters(i + 1))
            }
        });
        keys.collect::<Result<_, _>>().map(Keys)
    }

    /// Takes the keys of a file: one a line, with its rules behind it, without empty lines and those that begin with `#`.
    /// `sha256:` and 64 hexadecimal digits stand for the key that has that digest.
    ///
    /// # Errors
    /// A key that no header can carry, a rule that is not known, or whose value makes no sense.
    pub fn lines(text: &str) -> Result<Keys, KeyError> {
        let mut keys = Keys::default();
        for (i, line) in text.lines().map(str::trim).enumerate() {
            let wrong = |what: String| KeyError::Line { line: i + 1, what };
            let mut words = line.split_whitespace();
            let Some(key) = words.next().filter(|_| !line.starts_with('#')) else { continue };
            let hex = key.split_at_checked(DIGEST.len()).filter(|(begin, _)| begin.eq_ignore_ascii_case(DIGEST));
            let digest = match hex.map(|(_, hex)| hex) {
                Some(hex) => read_digest(hex).ok_or_else(|| wrong(format!("{DIGEST} needs 64 hexadecimal digits")))?,
                None if key.bytes().all(|b| b.is_ascii_graphic()) => digest(key),
                None => return Err(wrong("the key has characters that a header cannot carry".into())),
            };
            if keys.0.iter().any(|(known, _)| *known == digest) {
                return Err(wrong("this key has been given before".into()));
            }
            let mut rules = Rules::named(nameless(&digest));
            words.try_for_each(|word| rules.set(word)).map_err(wrong)?;
            keys.0.push((digest, Arc::new(rules)));
        }
        Ok(keys)
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

    /// What each may do.
    pub fn rules(&self) -> impl Iterator<Item = &Rules> {
        self.0.iter().map(|(_, rules)| &**rules)
    }

    /// Do they have several names?
    pub(crate) fn are_several(&self) -> bool {
        self.rules().any(|rules| rules.name != self.0[0].1.name)
    }

    /// The weights of all names.
    pub(crate) fn weights(&self) -> u64 {
        let by_name: HashMap<&str, u32> = self.rules().map(|rules| (rules.name.as_str(), rules.weight)).collect();
        by_name.values().map(|weight| u64::from(*weight)).sum()
    }

    /// What this key may do, if it is one of them.
    pub(crate) fn find(&self, key: &str) -> Option<Arc<Rules>> {
        let (digest, none) = (digest(key), self.0.len() as u64);
        let mut found = none;
        for (i, (known, _)) in (0..none).zip(&self.0) {
            found.conditional_assign(&i, known.ct_eq(&digest));
        }
        self.0.get(found as usize).map(|(_, rules)| rules.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_keys_themselves_open() {
        let text = format!("# three\nsk-one \n\nsk-two name=two rpm=3\n{} name=four\n", spell_digest("sk-4"));
        let keys = Keys::lines(&text).expect("keys").and(Keys::new(["sk-3"]).expect("a key"));
        assert!(["sk-one", "sk-two", "sk-3", "sk-4"].iter().all(|k| keys.find(k).is_some()));
        assert!(
            ["", "sk-", "sk-one ", "SK-ONE", "# three", &spell_digest("sk-4")].iter().all(|k| keys.find(k).is_none())
        );
        let two = keys.find("sk-two").expect("a key");
        assert_eq!((two.name.as_str(), two.requests_per_minute), ("two", Some(3)));
        assert_eq!(keys.find("sk-4").expect("a key").name, "four");
        assert_eq!(keys.find("sk-one").expect("a key").name.len(), "key-00000000".len());
        assert!(Keys::default().is_open() && !keys.is_open());
        let capitals = Keys::lines(&spell_digest("sk-4").to_uppercase()).expect("a digest");
        assert!(capitals.find("sk-4").is_some(), "other tools write digests in capitals");
    }

    #[test]
    fn keys_that_make_no_sense_are_refused_with_their_line() {
        assert_eq!(Keys::new(["a", "b c"]).err(), Some(KeyError::Characters(2)));
        assert_eq!(Keys::new([""]).err(), Some(KeyError::Characters(1)));
        let short = format!("{DIGEST}00");
        for text in ["#\nsk-1 rpm=0", "sk-1\nsk-ü", "sk-1\nsk-1 name=b", &format!("\n{short}"), "\nSHA256:00"] {
            let error = Keys::lines(text).expect_err(text);
            assert!(matches!(error, KeyError::Line { line: 2, .. }), "{error}");
        }
    }
}
