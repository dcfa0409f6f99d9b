//! What a tokenizer is built from: the `tokenizer.*` metadata of a GGUF file as plain data.

/// Everything that decides how text becomes ids. `Default` is an empty vocabulary; take it and
/// fill in what there is.
///
/// Tokens and merges are borrowed: a vocabulary holds hundreds of thousands.
#[derive(Clone, Debug, Default)]
pub struct TokenizerSpec<'a> {
    /// `tokenizer.ggml.model`: `llama`, `gpt2` or `gemma4`.
    pub model: &'a str,
    /// `tokenizer.ggml.pre`: the name of the pre-tokenizer of a `gpt2` vocabulary.
    pub pre: Option<&'a str>,
    /// Token texts in the order of their ids, as the file spells them.
    pub tokens: Vec<&'a str>,
    /// One score a token (`llama` only), or empty: all 0.
    pub scores: Vec<f32>,
    /// One [`TokenKind`] number a token, or empty: all normal.
    pub kinds: Vec<i32>,
    /// Lines "left right", best first (`gpt2` and `gemma4`).
    pub merges: Vec<&'a str>,
    /// Token that begins a text.
    pub bos: Option<u32>,
    /// Token that ends a text.
    pub eos: Option<u32>,
    /// Token that ends a turn of a conversation.
    pub eot: Option<u32>,
    /// Token that ends a message that another of the same speaker follows.
    pub eom: Option<u32>,
    /// Token for what the vocabulary cannot spell.
    pub unk: Option<u32>,
    /// Fill-in-the-middle: padding token (ends generation).
    pub fim_pad: Option<u32>,
    /// Fill-in-the-middle: token before a repository's name (ends generation).
    pub fim_rep: Option<u32>,
    /// Fill-in-the-middle: token between files (ends generation).
    pub fim_sep: Option<u32>,
    /// Whether a text begins with BOS; `None`: by model and pre-tokenizer.
    pub add_bos: Option<bool>,
    /// Whether a text ends with EOS; `None`: no.
    pub add_eos: Option<bool>,
    /// Whether a space goes before a text; `None`: by model.
    pub add_space_prefix: Option<bool>,
    /// `general.name`. Phi-3 is known by it: nothing else in its file says that its special
    /// tokens swallow the white space after them.
    pub general_name: Option<&'a str>,
}

/// What kind of token one is, as `tokenizer.ggml.token_type` numbers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenKind {
    /// A piece of text.
    Normal = 1,
    /// Stands for what cannot be spelled.
    Unknown = 2,
    /// Steers the model and is no text: found in a text only where special tokens are parsed.
    Control = 3,
    /// A piece of text that is always found whole.
    UserDefined = 4,
    /// Takes room in the table only.
    Unused = 5,
    /// A single byte, for what is not in the vocabulary otherwise.
    Byte = 6,
}

impl TokenKind {
    /// The kind with this number; unknown numbers count as unused, as llama.cpp has it.
    pub fn from_number(number: i32) -> Self {
        match number {
            1 => TokenKind::Normal,
            2 => TokenKind::Unknown,
            3 => TokenKind::Control,
            4 => TokenKind::UserDefined,
            6 => TokenKind::Byte,
            _ => TokenKind::Unused,
        }
    }
}
