//! The tokenizer's part of a GGUF file's metadata.

use zinc_gguf::Metadata;

use crate::spec::TokenizerSpec;
use crate::tokenizer::{Tokenizer, TokenizerError};

impl<'a> TokenizerSpec<'a> {
    /// Reads the `tokenizer.ggml.*` keys and `general.name`.
    ///
    /// The id of a special token that is not in the vocabulary counts as absent: some converters
    /// write -1 for "none".
    ///
    /// # Errors
    /// No model or no tokens, or a key of another type.
    pub fn from_metadata(metadata: &'a Metadata) -> Result<Self, TokenizerError> {
        let missing = |key| TokenizerError::Missing { key };
        let tokens = metadata.strings("tokenizer.ggml.tokens")?.ok_or(missing("tokenizer.ggml.tokens"))?;
        let id = |key: &str| {
            let id = metadata.get(key).and_then(|value| value.as_integer());
            id.and_then(|id| u32::try_from(id).ok()).filter(|&id| (id as usize) < tokens.len())
        };
        let model = metadata.str("tokenizer.ggml.model")?.ok_or(missing("tokenizer.ggml.model"))?;
        let merges = metadata.strings("tokenizer.ggml.merges")?;
        if merges.is_none() && model != "llama" {
            return Err(missing("tokenizer.ggml.merges"));
        }
        Ok(TokenizerSpec {
            model,
            pre: metadata.str("tokenizer.ggml.pre")?.filter(|pre| !pre.is_empty()),
            scores: metadata.f32s("tokenizer.ggml.scores")?.unwrap_or_default().to_vec(),
            kinds: metadata.i32s("tokenizer.ggml.token_type")?.unwrap_or_default(),
            merges: merges.map(|lines| lines.iter().collect()).unwrap_or_default(),
            bos: id("tokenizer.ggml.bos_token_id"),
            eos: id("tokenizer.ggml.eos_token_id"),
            eot: id("tokenizer.ggml.eot_token_id"),
            eom: id("tokenizer.ggml.eom_token_id"),
            unk: id("tokenizer.ggml.unknown_token_id"),
            fim_pad: id("tokenizer.ggml.fim_pad_token_id"),
            fim_rep: id("tokenizer.ggml.fim_rep_token_id"),
            fim_sep: id("tokenizer.ggml.fim_sep_token_id"),
            add_bos: metadata.bool("tokenizer.ggml.add_bos_token")?,
            add_eos: metadata.bool("tokenizer.ggml.add_eos_token")?,
            add_space_prefix: metadata.bool("tokenizer.ggml.add_space_prefix")?,
            general_name: metadata.str("general.name")?,
            tokens: tokens.iter().collect(),
        })
    }
}

impl Tokenizer {
    /// Builds the tokenizer of a model file.
    ///
    /// # Errors
    /// Those of [`TokenizerSpec::from_metadata`] and [`Tokenizer::new`].
    pub fn from_metadata(metadata: &Metadata) -> Result<Self, TokenizerError> {
        Tokenizer::new(&TokenizerSpec::from_metadata(metadata)?)
    }
}

/// The chat template in a model file, `tokenizer.chat_template`; `None` where it has none.
///
/// # Errors
/// The key is there but no string.
pub fn chat_template_source(metadata: &Metadata) -> Result<Option<&str>, TokenizerError> {
    Ok(metadata.str("tokenizer.chat_template")?)
}
