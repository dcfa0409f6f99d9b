//! Token ids to bytes and text.
//!
//! ```text
//! id ─► its text in the file ─alphabet or spaces─► bytes ─all ids─► UTF-8 with U+FFFD for holes
//! ```

use std::borrow::Cow;

use crate::alphabet;
use crate::tokenizer::{SPACE, Scheme, Tokenizer, TokenizerError, no_such_id};
use crate::vocabulary::Flags;

impl Tokenizer {
    /// The bytes that a token stands for: a part of a character at times. Control tokens are
    /// nothing unless `show_special`, then the text that spells them.
    ///
    /// # Errors
    /// An id that is not in the vocabulary.
    pub fn token_bytes(&self, id: u32, show_special: bool) -> Result<Cow<'_, [u8]>, TokenizerError> {
        let missing = || no_such_id(id, &self.vocabulary);
        let flags = self.vocabulary.flags(id).ok_or_else(missing)?;
        let text = self.vocabulary.text(id).ok_or_else(missing)?;
        let as_it_is = Cow::Borrowed(text.as_bytes());
        Ok(if flags.any(Flags::HIDDEN) {
            if show_special { as_it_is } else { Cow::Borrowed(&[]) }
        } else if flags.any(Flags::USER_DEFINED) {
            as_it_is
        } else if flags.any(Flags::NORMAL) {
            match self.scheme {
                Scheme::ByteLevel { .. } => read_spelled(text),
                Scheme::SentencePiece { .. } | Scheme::Lines { .. } => put_spaces(text),
            }
        } else if flags.any(Flags::BYTE) {
            byte_of(text).map_or(as_it_is, |byte| Cow::Owned(vec![byte]))
        } else {
            Cow::Borrowed(&[])
        })
    }

    /// The bytes of `ids` one after the other, without the space that encoding puts before a text.
    ///
    /// # Errors
    /// An id that is not in the vocabulary.
    pub fn decode_bytes(&self, ids: &[u32], show_special: bool) -> Result<Vec<u8>, TokenizerError> {
        let mut bytes = Vec::with_capacity(ids.len() * 4);
        let mut at_start = self.add_space_prefix;
        for &id in ids {
            let piece = self.token_bytes(id, show_special)?;
            bytes.extend_from_slice(without_prefix(&piece, at_start));
            at_start &= piece.is_empty();
        }
        Ok(bytes)
    }

    /// The text of `ids`; bytes that are not UTF-8 become U+FFFD. With `show_special`, control
    /// tokens are spelled out.
    ///
    /// This is the text as the model wrote it. See [`clean_up_spaces`] for what llama.cpp makes of
    /// it in some vocabularies.
    ///
    /// # Errors
    /// An id that is not in the vocabulary.
    pub fn decode(&self, ids: &[u32], show_special: bool) -> Result<String, TokenizerError> {
        let bytes = self.decode_bytes(ids, show_special)?;
        Ok(match String::from_utf8(bytes) {
            Ok(text) => text,
            Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
        })
    }

    /// Whether llama.cpp's detokenizer passes this vocabulary's text through [`clean_up_spaces`].
    pub fn cleans_up_spaces(&self) -> bool {
        self.clean_spaces
    }
}

/// `piece` without its first space where a text starts.
pub(crate) fn without_prefix(piece: &[u8], at_start: bool) -> &[u8] {
    match piece.strip_prefix(b" ") {
        Some(rest) if at_start => rest,
        _ => piece,
    }
}

/// A text in the byte alphabet. One with other characters stands for itself, as added tokens do.
fn read_spelled(text: &str) -> Cow<'_, [u8]> {
    match text.chars().map(alphabet::read).collect::<Option<Vec<u8>>>() {
        Some(bytes) => Cow::Owned(bytes),
        None => Cow::Borrowed(text.as_bytes()),
    }
}

fn put_spaces(text: &str) -> Cow<'_, [u8]> {
    if text.contains(SPACE) {
        Cow::Owned(text.replace(SPACE, " ").into_bytes())
    } else {
        Cow::Borrowed(text.as_bytes())
    }
}

/// The byte of `<0x0A>`.
fn byte_of(text: &str) -> Option<u8> {
    let hex = text.strip_prefix("<0x")?.strip_suffix('>')?;
    u8::from_str_radix(hex, 16).ok().filter(|_| hex.len() == 2)
}

/// What llama.cpp's detokenizer does to whole texts of some vocabularies: no space before `?!.,`,
/// none around a lone apostrophe, none before `'s`, `'m`, `'re`, `'ve`. It undoes what tokenizers
/// of old did; to a model's answer it does harm, so nothing here calls it.
pub fn clean_up_spaces(text: &str) -> String {
    let marks =
        drop_spaces(text.as_bytes(), |rest| matches!(rest.first(), Some(b'?' | b'!' | b'.' | b',')).then_some(0));
    let lone = drop_spaces(&marks, |rest| rest.starts_with(b"' ").then_some(1));
    let ends = drop_spaces(&lone, |rest| {
        let short = matches!(rest, [b'\'', b's' | b'm', ..]);
        (short || rest.starts_with(b"'re") || rest.starts_with(b"'ve")).then_some(0)
    });
    // Only whole ASCII characters went away.
    String::from_utf8_lossy(&ends).into_owned()
}

/// Drops each space after which `follows` says so; its number is 1 where the byte after the next
/// goes, too.
fn drop_spaces(text: &[u8], follows: impl Fn(&[u8]) -> Option<usize>) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut at = 0;
    while at < text.len() {
        let after = &text[at + 1..];
        match follows(after).filter(|_| text[at] == b' ') {
            // The byte that follows is taken with it: it starts no other pattern.
            Some(extra) => {
                out.extend(after.first());
                at += 2 + extra;
            }
            None => {
                out.push(text[at]);
                at += 1;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spaces_go_where_llama_cpp_drops_them() {
        assert_eq!(clean_up_spaces("a ... !!! ?!?"), "a...!!!?!?");
        assert_eq!(clean_up_spaces("it 's they 're we 've I 'm"), "it's they're we've I'm");
        assert_eq!(clean_up_spaces("don 't he 'll é 'd"), "don 't he 'll é 'd");
        assert_eq!(clean_up_spaces("rock ' n"), "rock'n");
        assert_eq!(clean_up_spaces(""), "");
        assert_eq!(clean_up_spaces("  ."), " .");
    }

    #[test]
    fn bytes_and_marks_are_read() {
        assert_eq!(byte_of("<0x0A>"), Some(10));
        assert_eq!(byte_of("<0x0>"), None);
        assert_eq!(put_spaces("▁a▁▁b"), " a  b".as_bytes());
        assert_eq!(read_spelled("Ġa"), b" a".as_slice());
        assert_eq!(read_spelled("a b"), b"a b".as_slice());
    }
}
