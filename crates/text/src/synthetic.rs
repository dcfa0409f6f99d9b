//! A vocabulary of bytes, for models that have shapes and weights but no text of their own.
//!
//! ```text
//! ids 0..256: the bytes    ids 256..n-1: "<256>", "<257>" …    id n-1: EOS
//! ```

use crate::alphabet;
use crate::spec::TokenizerSpec;
use crate::tokenizer::{Tokenizer, TokenizerError};

impl Tokenizer {
    /// A byte-level tokenizer without merges: a text has as many ids as bytes. Tokens from 256 on
    /// never come out of a text and decode to their number, so that whatever a model with random
    /// weights picks can be shown. The last one ends generation; no BOS is added.
    ///
    /// # Errors
    /// Fewer than 257 tokens, or more than ids can count.
    pub fn synthetic(tokens: usize) -> Result<Self, TokenizerError> {
        if tokens <= 256 {
            return Err(TokenizerError::NoRoom(tokens));
        }
        let eos = u32::try_from(tokens - 1).map_err(|_| TokenizerError::TooLong("the vocabulary"))?;
        let mut texts: Vec<String> = Vec::with_capacity(tokens);
        for byte in 0..=255u8 {
            let mut text = String::new();
            alphabet::spell(&[byte], &mut text);
            texts.push(text);
        }
        texts.extend((256..eos).map(|id| format!("<{id}>")));
        texts.push("<eos>".to_owned());
        let mut kinds = vec![1; tokens];
        kinds[tokens - 1] = 3;
        Tokenizer::new(&TokenizerSpec {
            model: "gpt2",
            pre: Some("gpt-2"),
            tokens: texts.iter().map(String::as_str).collect(),
            kinds,
            eos: Some(eos),
            ..TokenizerSpec::default()
        })
    }
}
