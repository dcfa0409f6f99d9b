//! Who may know which prompts have been asked before: salts keep what the engine has computed apart.
//!
//! ```text
//! `cache_salt` of a request ─of_text─► Salt ─┐
//! name of a key with `cache=own` ────────────┴─of_key─► Salt of a sequence ─► its pages, in memory and on disk
//! ```
//!
//! A salt is the same after a restart, and says nothing about a key: only its name goes into it.

use sha2::{Digest, Sha256};
use zinc_engine::Salt;

/// The salt that a text stands for.
pub(crate) fn of_text(text: &str) -> Salt {
    digest(b"a request's", text, None)
}

/// The salt of a key that has a cache of its own, in which a request may ask for another.
pub(super) fn of_key(name: &str, asked: Option<Salt>) -> Salt {
    digest(b"a key's own", name, asked)
}

/// What one does not know cannot be met by chance or by trying: 128 bits of a hash.
fn digest(kind: &[u8; 11], text: &str, inner: Option<Salt>) -> Salt {
    let mut hash = Sha256::new();
    hash.update(kind);
    hash.update(inner.unwrap_or_default());
    hash.update(text);
    let whole: [u8; 32] = hash.finalize().into();
    std::array::from_fn(|i| whole[i])
}
