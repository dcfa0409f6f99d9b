//! Token by token to text that is valid at every moment.
//!
//! ```text
//! id ─► bytes ─► held back while they may be the start of a character ─► text
//! ```

use std::borrow::Cow;
use std::ops::Deref;

use crate::decode::without_prefix;
use crate::tokenizer::{Tokenizer, TokenizerError};

/// Where in a text the first token stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextStart {
    /// At its start: the space that SentencePiece vocabularies put there goes away.
    Beginning,
    /// After other text, whose end the first token's space is.
    Continuation,
}

/// Decodes tokens as they come. All pieces and the end together are what
/// [`Tokenizer::decode`] gives for all ids at once. The tokenizer is borrowed or shared (`&Tokenizer`, `Arc<Tokenizer>`).
pub struct StreamDecoder<T: Deref<Target = Tokenizer>> {
    tokenizer: T,
    show_special: bool,
    /// Nothing was decoded yet, and the first space goes away.
    at_start: bool,
    /// The first bytes of a character: three at most.
    held: Vec<u8>,
}

impl<T: Deref<Target = Tokenizer>> StreamDecoder<T> {
    /// Starts a text; with `show_special`, control tokens are spelled out.
    pub fn new(tokenizer: T, start: TextStart, show_special: bool) -> Self {
        let at_start = start == TextStart::Beginning && tokenizer.add_space_prefix;
        StreamDecoder { tokenizer, show_special, at_start, held: Vec::new() }
    }

    /// The text that is certain once this token is known; empty in the middle of a character.
    ///
    /// # Errors
    /// An id that is not in the vocabulary; the stream is then as it was.
    pub fn push(&mut self, id: u32) -> Result<String, TokenizerError> {
        let piece = self.tokenizer.token_bytes(id, self.show_special)?;
        self.held.extend_from_slice(without_prefix(&piece, self.at_start));
        // A start stays one over tokens without text, but not over a space that went away.
        self.at_start &= piece.is_empty();
        Ok(self.take_certain())
    }

    /// Ends the text: half a character becomes U+FFFD.
    pub fn finish(&mut self) -> String {
        let held = std::mem::take(&mut self.held);
        String::from_utf8_lossy(&held).into_owned()
    }

    /// Takes all but an unfinished character at the end.
    fn take_certain(&mut self) -> String {
        let mut certain = 0;
        loop {
            match std::str::from_utf8(&self.held[certain..]) {
                Ok(_) => certain = self.held.len(),
                Err(error) => {
                    certain += error.valid_up_to();
                    if let Some(broken) = error.error_len() {
                        certain += broken;
                        continue;
                    }
                }
            }
            break;
        }
        let rest = self.held.split_off(certain);
        let text = std::mem::replace(&mut self.held, rest);
        match String::from_utf8_lossy(&text) {
            Cow::Borrowed(text) => text.to_owned(),
            Cow::Owned(text) => text,
        }
    }
}

impl<T: Deref<Target = Tokenizer>> std::fmt::Debug for StreamDecoder<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StreamDecoder").field("held", &self.held).finish_non_exhaustive()
    }
}
