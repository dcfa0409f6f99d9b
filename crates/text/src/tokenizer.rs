//! Text to token ids.
//!
//! ```text
//! text ─special tokens─► parts ─scheme─► words ─merge─► symbols ─vocabulary─► ids
//! ```
//!
//! Three schemes cover the files there are: SentencePiece (merge by the score of the result, over
//! the whole text), byte-level BPE (cut into words, merge by rank over bytes), and Gemma 4's BPE
//! (merge by rank over whole lines of characters).

use std::collections::BTreeSet;
use std::ops::Range;

use hashbrown::HashMap;
use thiserror::Error;

use crate::alphabet;
use crate::merge::{Merger, priority_of_score};
use crate::pretokenizer::{self, PreTokenizer};
use crate::spec::TokenizerSpec;
use crate::special::{Part, SpecialTokens};
use crate::strings::MergeTable;
use crate::vocabulary::Vocabulary;

/// The character that SentencePiece writes for a space.
pub(crate) const SPACE: &str = "\u{2581}";

/// A tokenizer cannot be built or cannot encode.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TokenizerError {
    /// The metadata has a key of another type.
    #[error("the vocabulary in the model file cannot be read: {0}")]
    Metadata(#[from] zinc_gguf::GgufError),
    /// A key that no vocabulary can be without.
    #[error("the model file has no `{key}`: it holds no vocabulary that Zinc can use")]
    Missing {
        /// The metadata key.
        key: &'static str,
    },
    /// `tokenizer.ggml.model` names a scheme that is not here.
    #[error("`tokenizer.ggml.model` is `{0}`, which Zinc does not know (it knows: {known})", known = MODELS.join(", "))]
    UnknownModel(String),
    /// `tokenizer.ggml.pre` names a pre-tokenizer that is not here.
    #[error(
        "`tokenizer.ggml.pre` is `{name}`, which Zinc does not know; another cut would give wrong \
         ids (it knows: {known})"
    )]
    UnknownPreTokenizer {
        /// The name in the file.
        name: String,
        /// All names that would do.
        known: String,
    },
    /// An array is not as long as the vocabulary.
    #[error("`{key}` has {found} entries for {tokens} tokens: the file is damaged")]
    Length {
        /// The metadata key.
        key: &'static str,
        /// Entries in it.
        found: usize,
        /// Tokens in the vocabulary.
        tokens: usize,
    },
    /// A special token's id is outside the vocabulary.
    #[error("`{key}` is {id}, but the vocabulary has {tokens} tokens: the file is damaged")]
    IdOutOfRange {
        /// The metadata key.
        key: &'static str,
        /// The id.
        id: u32,
        /// Tokens in the vocabulary.
        tokens: usize,
    },
    /// A merge is not two parts.
    #[error(
        "entry {0} of `tokenizer.ggml.merges` is not two parts with a space between: the file is \
         damaged"
    )]
    BadMerge(usize),
    /// More than 4 GiB of text at once, or of token texts.
    #[error("{0} is longer than 4 GiB; cut it into parts")]
    TooLong(&'static str),
    /// BOS or EOS is wanted, but the vocabulary has none.
    #[error("the vocabulary wants {0} added to a text but names no such token; encode without special tokens")]
    NoSpecialToken(&'static str),
    /// The text holds something that no token spells.
    #[error("the vocabulary has no token for the byte 0x{0:02X} and no unknown token")]
    NoToken(u8),
    /// An id that is not in the vocabulary.
    #[error("token {id} is not in the vocabulary, which has {tokens} tokens")]
    NoSuchId {
        /// The id.
        id: u32,
        /// Tokens in the vocabulary.
        tokens: usize,
    },
    /// A synthetic vocabulary is smaller than the bytes and EOS.
    #[error("a synthetic vocabulary of {0} tokens has no room for 256 bytes and EOS; take 257 or more")]
    NoRoom(usize),
    /// The table of special tokens is too large to be searched for.
    #[error("the special tokens of this vocabulary cannot be searched for: {0}")]
    SpecialTokens(String),
    /// A row of the table of pre-tokenizers is wrong (a fault in Zinc).
    #[error("the pre-tokenizer's rules do not compile, which is a fault in Zinc: {0}")]
    Rules(String),
}

const MODELS: [&str; 3] = ["llama", "gpt2", "gemma4"];

/// Turns text into token ids and back, exactly as the model was trained with.
///
/// Holds no state between calls; share it freely.
pub struct Tokenizer {
    pub(crate) vocabulary: Vocabulary,
    pub(crate) scheme: Scheme,
    special: SpecialTokens,
    bos: Option<u32>,
    eos: Option<u32>,
    unk: Option<u32>,
    add_bos: bool,
    add_eos: bool,
    pub(crate) add_space_prefix: bool,
    pub(crate) clean_spaces: bool,
}

/// How words become ids.
pub(crate) enum Scheme {
    /// Merge by the score of the token that results.
    SentencePiece {
        /// What [`priority_of_score`] makes of each token's score.
        priorities: Vec<u32>,
    },
    /// Merge bytes by rank.
    ByteLevel { merges: MergeTable, cut: PreTokenizer, ignore_merges: bool },
    /// Merge characters by rank over whole lines.
    Lines { merges: MergeTable, cut: PreTokenizer },
}

impl Tokenizer {
    /// Builds a tokenizer.
    ///
    /// # Errors
    /// An unknown model or pre-tokenizer (the message lists those there are), and arrays or ids
    /// that do not fit the number of tokens.
    pub fn new(spec: &TokenizerSpec<'_>) -> Result<Self, TokenizerError> {
        check(spec)?;
        let sentence_piece = spec.model == "llama";
        let (scheme, row) = match spec.model {
            "llama" => {
                let scored = spec.scores.iter().copied().chain(std::iter::repeat(0.0));
                let priorities = scored.take(spec.tokens.len()).map(priority_of_score).collect();
                (Scheme::SentencePiece { priorities }, None)
            }
            "gpt2" => {
                let row = pretokenizer::row(spec.pre).ok_or_else(|| TokenizerError::UnknownPreTokenizer {
                    name: spec.pre.unwrap_or_default().to_owned(),
                    known: pretokenizer::known_names().join(", "),
                })?;
                let (merges, cut) = merges_and_cut(spec, row)?;
                let ignore_merges = row.ignore_merges;
                (Scheme::ByteLevel { merges, cut, ignore_merges }, Some(row))
            }
            "gemma4" => {
                let (merges, cut) = merges_and_cut(spec, &pretokenizer::LINES)?;
                (Scheme::Lines { merges, cut }, Some(&pretokenizer::LINES))
            }
            other => return Err(TokenizerError::UnknownModel(other.to_owned())),
        };
        // A SentencePiece file that does not name its special tokens has them at these ids.
        let usual =
            |given: Option<u32>, id: u32| given.or((sentence_piece && (id as usize) < spec.tokens.len()).then_some(id));
        let eos = usual(spec.eos, 2);
        let vocabulary = Vocabulary::new(spec, eos).map_err(|_| TokenizerError::TooLong("the vocabulary"))?;
        let special =
            SpecialTokens::new(&vocabulary).map_err(|error| TokenizerError::SpecialTokens(error.to_string()))?;
        let add_bos = spec.add_bos.unwrap_or(row.is_none_or(|row| row.add_bos));
        Ok(Tokenizer {
            // Early Gemma 4 files deny the BOS without which the model talks nonsense.
            add_bos: add_bos || spec.model == "gemma4",
            add_eos: spec.add_eos.unwrap_or(false),
            add_space_prefix: spec.add_space_prefix.unwrap_or(sentence_piece),
            clean_spaces: row.is_some_and(|row| row.clean_spaces),
            bos: usual(spec.bos, 1),
            eos,
            unk: usual(spec.unk, 0),
            vocabulary,
            scheme,
            special,
        })
    }

    /// The ids of `text`. `add_special` puts BOS before it and EOS after it where the vocabulary
    /// wants them; with `parse_special`, text that spells a control token becomes that token (never
    /// do that to what a user wrote). An empty text gives no ids but the added ones.
    ///
    /// # Errors
    /// A text of 4 GiB or more; a vocabulary that cannot spell some byte of the text; a missing
    /// BOS or EOS that the vocabulary says to add.
    pub fn encode(&self, text: &str, add_special: bool, parse_special: bool) -> Result<Vec<u32>, TokenizerError> {
        // A quarter: spelling a byte takes two bytes, a space three, and an index more is a sentinel.
        if u32::try_from(text.len()).is_ok_and(|len| len < u32::MAX / 4) {
            self.encode_short(text, add_special, parse_special, None)
        } else {
            Err(TokenizerError::TooLong("the text"))
        }
    }

    /// The ids of a prompt that a chat template made: special tokens are parsed, and BOS comes first
    /// where the vocabulary wants it, but once, whether or not the template wrote it, too. No EOS.
    ///
    /// # Errors
    /// As [`Self::encode`].
    pub fn encode_prompt(&self, prompt: &str) -> Result<Vec<u32>, TokenizerError> {
        self.with_bos(self.encode(prompt, false, true)?)
    }

    /// As [`Self::encode_prompt`], of a prompt in which [`Self::mark_special`] has marked what is plain text: the marks go
    /// away, and what they were in becomes no special token.
    ///
    /// # Errors
    /// As [`Self::encode`].
    pub fn encode_marked_prompt(&self, prompt: &str, mark: char) -> Result<Vec<u32>, TokenizerError> {
        if u32::try_from(prompt.len()).is_ok_and(|len| len < u32::MAX / 4) {
            self.with_bos(self.encode_short(prompt, false, true, Some(mark))?)
        } else {
            Err(TokenizerError::TooLong("the text"))
        }
    }

    /// `text` with `mark`, a character that occurs in no token, inside everything that spells a special token; `None` if
    /// nothing does. For texts of others that go into a prompt: templates see the same text but for the marks.
    pub fn mark_special(&self, text: &str, mark: char) -> Option<String> {
        self.special.mark(text, mark)
    }

    fn with_bos(&self, mut ids: Vec<u32>) -> Result<Vec<u32>, TokenizerError> {
        if self.add_bos {
            let bos = self.bos.ok_or(TokenizerError::NoSpecialToken("BOS"))?;
            if ids.first() != Some(&bos) {
                ids.insert(0, bos);
            }
        }
        Ok(ids)
    }

    fn encode_short(
        &self,
        text: &str,
        add_special: bool,
        parse_special: bool,
        mark: Option<char>,
    ) -> Result<Vec<u32>, TokenizerError> {
        let mut encoder = Encoder {
            tokenizer: self,
            merger: Merger::default(),
            buffer: String::new(),
            words: HashMap::new(),
            ids: Vec::with_capacity(text.len() / 4 + 2),
        };
        if add_special && self.add_bos {
            encoder.ids.push(self.bos.ok_or(TokenizerError::NoSpecialToken("BOS"))?);
        }
        let mut after_special = true;
        for part in self.special.partition(text, parse_special) {
            match (part, mark) {
                (Part::Text(text), Some(mark)) if text.contains(mark) => {
                    // Without its marks it may spell user-defined tokens, which plain text has, too.
                    let text = text.replace(mark, "");
                    for part in self.special.partition(&text, false) {
                        encoder.encode_part(part, &mut after_special)?;
                    }
                }
                (part, _) => encoder.encode_part(part, &mut after_special)?,
            }
        }
        if add_special && self.add_eos {
            encoder.ids.push(self.eos.ok_or(TokenizerError::NoSpecialToken("EOS"))?);
        }
        Ok(encoder.ids)
    }

    /// Number of tokens; ids are below it.
    pub fn vocab_size(&self) -> usize {
        self.vocabulary.len()
    }

    /// The token that begins a text.
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// The token that ends a text.
    pub fn eos(&self) -> Option<u32> {
        self.eos
    }

    /// The token that ends a turn of a conversation.
    pub fn eot(&self) -> Option<u32> {
        self.vocabulary.eot
    }

    /// The token for what cannot be spelled.
    pub fn unk(&self) -> Option<u32> {
        self.unk
    }

    /// Whether a text begins with BOS in this vocabulary.
    pub fn adds_bos(&self) -> bool {
        self.add_bos
    }

    /// Whether generation ends with this token: EOS, EOT, EOM and their like.
    pub fn is_end_of_generation(&self, id: u32) -> bool {
        self.vocabulary.ends().contains(&id)
    }

    /// All tokens for which [`Self::is_end_of_generation`] holds, ascending.
    pub fn end_of_generation_ids(&self) -> impl Iterator<Item = u32> {
        self.vocabulary.ends().iter().copied()
    }

    /// The token whose text in the file is exactly `text`, for example `<|im_start|>`.
    pub fn token_by_text(&self, text: &str) -> Option<u32> {
        self.vocabulary.find(text.as_bytes())
    }

    /// The token's text as the file spells it (`Ġthe`, `▁the`, `<0x0A>`), which is not what it
    /// decodes to.
    pub fn token_text(&self, id: u32) -> Option<&str> {
        self.vocabulary.text(id)
    }
}

/// The lengths and ids of `spec` against its number of tokens.
fn check(spec: &TokenizerSpec<'_>) -> Result<(), TokenizerError> {
    let tokens = spec.tokens.len();
    if tokens == 0 {
        return Err(TokenizerError::Missing { key: "tokenizer.ggml.tokens" });
    }
    if u32::try_from(tokens).is_err() {
        return Err(TokenizerError::TooLong("the vocabulary"));
    }
    let lengths = [("tokenizer.ggml.scores", spec.scores.len()), ("tokenizer.ggml.token_type", spec.kinds.len())];
    for (key, found) in lengths {
        if found != 0 && found < tokens {
            return Err(TokenizerError::Length { key, found, tokens });
        }
    }
    let ids = [
        ("tokenizer.ggml.bos_token_id", spec.bos),
        ("tokenizer.ggml.eos_token_id", spec.eos),
        ("tokenizer.ggml.eot_token_id", spec.eot),
        ("tokenizer.ggml.eom_token_id", spec.eom),
        ("tokenizer.ggml.unknown_token_id", spec.unk),
        ("tokenizer.ggml.fim_pad_token_id", spec.fim_pad),
        ("tokenizer.ggml.fim_rep_token_id", spec.fim_rep),
        ("tokenizer.ggml.fim_sep_token_id", spec.fim_sep),
    ];
    for (key, id) in ids {
        if let Some(id) = id.filter(|&id| id as usize >= tokens) {
            return Err(TokenizerError::IdOutOfRange { key, id, tokens });
        }
    }
    Ok(())
}

fn merges_and_cut(
    spec: &TokenizerSpec<'_>,
    row: &pretokenizer::Row,
) -> Result<(MergeTable, PreTokenizer), TokenizerError> {
    let merges = MergeTable::new(&spec.merges).map_err(TokenizerError::BadMerge)?;
    let cut = PreTokenizer::new(row).map_err(|error| TokenizerError::Rules(error.to_string()))?;
    Ok((merges, cut))
}

/// One call of [`Tokenizer::encode`].
struct Encoder<'t> {
    tokenizer: &'t Tokenizer,
    merger: Merger,
    buffer: String,
    /// Words seen before, and where in `ids` theirs are: a text repeats most of its words.
    words: HashMap<String, Range<usize>>,
    ids: Vec<u32>,
}

impl Encoder<'_> {
    /// Appends the ids of a part; `after_special`: the part before was a token, or there was none.
    fn encode_part(&mut self, part: Part<'_>, after_special: &mut bool) -> Result<(), TokenizerError> {
        match part {
            Part::Text(text) => self.encode_text(text, *after_special)?,
            Part::Token(id) => self.ids.push(id),
        }
        *after_special = matches!(part, Part::Token(_));
        Ok(())
    }

    /// Appends the ids of a text that holds no special token.
    fn encode_text(&mut self, text: &str, after_special: bool) -> Result<(), TokenizerError> {
        match &self.tokenizer.scheme {
            Scheme::SentencePiece { priorities } => {
                let spaced = if self.tokenizer.add_space_prefix && after_special {
                    format!("{SPACE}{}", text.replace(' ', SPACE))
                } else {
                    text.replace(' ', SPACE)
                };
                let vocabulary = &self.tokenizer.vocabulary;
                self.merge_word(&spaced, |_, _, both| vocabulary.find(both).map(|id| priorities[id as usize]))
            }
            Scheme::ByteLevel { merges, cut, ignore_merges } => {
                let mut result = Ok(());
                cut.for_each_word(text, |word| {
                    if result.is_ok() {
                        result = self.encode_word(word, merges, *ignore_merges);
                    }
                });
                result
            }
            Scheme::Lines { merges, cut } => {
                let spaced = text.replace(' ', SPACE);
                let mut result = Ok(());
                cut.for_each_word(&spaced, |line| {
                    if result.is_ok() {
                        result = self.encode_line(line, merges);
                    }
                });
                result
            }
        }
    }

    /// A word of a byte-level vocabulary.
    fn encode_word(&mut self, word: &str, merges: &MergeTable, ignore_merges: bool) -> Result<(), TokenizerError> {
        if let Some(seen) = self.words.get(word) {
            self.ids.extend_from_within(seen.clone());
            return Ok(());
        }
        let start = self.ids.len();
        let mut spelled = std::mem::take(&mut self.buffer);
        spelled.clear();
        alphabet::spell(word.as_bytes(), &mut spelled);
        let whole = self.tokenizer.vocabulary.find(spelled.as_bytes()).filter(|_| ignore_merges);
        let result = match whole {
            Some(id) => {
                self.ids.push(id);
                Ok(())
            }
            None => self.merge_word(&spelled, |left, right, _| merges.rank(left, right)),
        };
        self.buffer = spelled;
        self.words.insert(word.to_owned(), start..self.ids.len());
        result
    }

    /// A line of Gemma 4. Line ends are no characters of its merges: a run of them that is a
    /// token is that token.
    fn encode_line(&mut self, line: &str, merges: &MergeTable) -> Result<(), TokenizerError> {
        if line.starts_with('\n')
            && let Some(id) = self.tokenizer.vocabulary.find(line.as_bytes())
        {
            self.ids.push(id);
            return Ok(());
        }
        self.merge_word(line, |left, right, _| merges.rank(left, right))
    }

    /// Merges `word` and appends the ids of what it becomes: a token each, or else its bytes.
    fn merge_word(
        &mut self,
        word: &str,
        priority: impl Fn(&[u8], &[u8], &[u8]) -> Option<u32>,
    ) -> Result<(), TokenizerError> {
        let Encoder { tokenizer, merger, ids, .. } = self;
        let mut result = Ok(());
        merger.merge(word, priority, |range| {
            let symbol = &word[range];
            match tokenizer.vocabulary.find(symbol.as_bytes()) {
                Some(id) => ids.push(id),
                None => {
                    if let Err(error) = tokenizer.spell_out(symbol, ids) {
                        result = Err(error);
                    }
                }
            }
        });
        result
    }
}

impl Tokenizer {
    /// The ids of a symbol that is no token: one for each of its bytes that is a token.
    fn spell_out(&self, symbol: &str, ids: &mut Vec<u32>) -> Result<(), TokenizerError> {
        let find = |text: &[u8]| self.vocabulary.find(text);
        for c in symbol.chars() {
            let mut utf8 = [0; 4];
            let utf8 = c.encode_utf8(&mut utf8).as_bytes();
            if matches!(self.scheme, Scheme::ByteLevel { .. }) {
                // Here a character stands for a byte. Some vocabularies lack rare bytes (control characters, the first
                // bytes of rare scripts); what their models learned from leaves these out. The unknown token would be
                // wrong: it often is <|endoftext|>, which plain text must never become.
                ids.extend(find(utf8));
                continue;
            }
            for &byte in utf8 {
                let id = self.vocabulary.byte_token(byte).or_else(|| find(&[byte])).or(self.unk);
                ids.push(id.ok_or(TokenizerError::NoToken(byte))?);
            }
        }
        Ok(())
    }
}

/// For a message that names what there is.
pub(crate) fn no_such_id(id: u32, vocabulary: &Vocabulary) -> TokenizerError {
    TokenizerError::NoSuchId { id, tokens: vocabulary.len() }
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ends: &BTreeSet<u32> = self.vocabulary.ends();
        f.debug_struct("Tokenizer")
            .field("tokens", &self.vocabulary.len())
            .field("bos", &self.bos)
            .field("eos", &self.eos)
            .field("ends", ends)
            .finish_non_exhaustive()
    }
}
