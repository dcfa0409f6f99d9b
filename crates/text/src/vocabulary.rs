//! The tokens: their texts, what kind each is, and which ones end generation.
//!
//! ```text
//! TokenizerSpec ─► texts (one table) + flags (a byte a token) + ids with a role
//! ```
//!
//! Files are not reliable about kinds: llama.cpp mends them by the tokens' texts, and ids would
//! differ without the same mending. The tables of names below are its.

use std::borrow::Cow;
use std::collections::BTreeSet;

use crate::spec::{TokenKind, TokenizerSpec};
use crate::strings::{StringTable, TooLong};

/// What a token is, as bits: mending adds to the kind that the file gave.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Flags(u8);

impl Flags {
    pub(crate) const NORMAL: Flags = Flags(1);
    pub(crate) const UNKNOWN: Flags = Flags(2);
    pub(crate) const CONTROL: Flags = Flags(4);
    pub(crate) const USER_DEFINED: Flags = Flags(8);
    pub(crate) const BYTE: Flags = Flags(16);
    pub(crate) const UNUSED: Flags = Flags(32);
    /// White space after the token belongs to it.
    pub(crate) const STRIPS_RIGHT: Flags = Flags(64);
    /// Not text: hidden unless special tokens are shown, found only when they are parsed.
    pub(crate) const HIDDEN: Flags = Flags(Self::CONTROL.0 | Self::UNKNOWN.0);
    /// Found in a text before any merging.
    pub(crate) const FOUND_WHOLE: Flags = Flags(Self::HIDDEN.0 | Self::USER_DEFINED.0);

    /// Whether any bit of `other` is set.
    pub(crate) fn any(self, other: Flags) -> bool {
        self.0 & other.0 != 0
    }

    fn add(&mut self, other: Flags) {
        self.0 |= other.0;
    }

    fn remove(&mut self, other: Flags) {
        self.0 &= !other.0;
    }

    fn of_kind(kind: TokenKind) -> Self {
        match kind {
            TokenKind::Normal => Self::NORMAL,
            TokenKind::Unknown => Self::UNKNOWN,
            TokenKind::Control => Self::CONTROL,
            TokenKind::UserDefined => Self::USER_DEFINED,
            TokenKind::Unused => Self::UNUSED,
            TokenKind::Byte => Self::BYTE,
        }
    }
}

/// Texts that end a turn; the first that a vocabulary has is its EOT if the file names none.
const EOT: &[&str] = &[
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "<｜end▁of▁sentence｜>",
    "<end_of_utterance>",
];

/// Texts that end generation wherever a vocabulary has them.
const END: &[&str] = &[
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
];

/// Texts of the fill-in-the-middle tokens: prefix, suffix, middle, padding, repository, file.
const FIM: [&[&str]; 6] = [
    &[
        "<|fim_prefix|>",
        "<fim-prefix>",
        "<fim_prefix>",
        "<｜fim▁begin｜>",
        "<PRE>",
        "▁<PRE>",
        "<|code_prefix|>",
        "<|prefix|>",
    ],
    &[
        "<|fim_suffix|>",
        "<fim-suffix>",
        "<fim_suffix>",
        "<｜fim▁hole｜>",
        "<SUF>",
        "▁<SUF>",
        "<|code_suffix|>",
        "<|suffix|>",
    ],
    &[
        "<|fim_middle|>",
        "<fim-middle>",
        "<fim_middle>",
        "<｜fim▁end｜>",
        "<MID>",
        "▁<MID>",
        "<|code_middle|>",
        "<|middle|>",
    ],
    &["<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"],
    &["<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"],
    &["<|file_sep|>"],
];

/// Tokens of gpt-oss that are shown as text: its answers are read by them.
const HARMONY_MARKS: [&str; 4] = ["<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"];

/// The tokens of a model.
pub(crate) struct Vocabulary {
    texts: StringTable,
    flags: Vec<Flags>,
    ends: BTreeSet<u32>,
    pub(crate) eot: Option<u32>,
}

impl Vocabulary {
    /// Takes the tokens of `spec`; its ids are below the number of tokens, and its kinds are none
    /// or one a token (the tokenizer has checked both). `eos` is the EOS, named or not.
    pub(crate) fn new(spec: &TokenizerSpec<'_>, eos: Option<u32>) -> Result<Self, TooLong> {
        let texts = StringTable::new(spec.tokens.iter().enumerate().map(|(id, &text)| {
            if text.is_empty() { Cow::Owned(format!("[EMPTY_{id}]")) } else { Cow::Borrowed(text) }
        }))?;
        let flags = if spec.kinds.is_empty() {
            vec![Flags::NORMAL; texts.len()]
        } else {
            let kinds = spec.kinds.iter().map(|&kind| TokenKind::from_number(kind));
            kinds.map(Flags::of_kind).collect()
        };
        let mut this = Vocabulary { texts, flags, ends: BTreeSet::new(), eot: spec.eot };
        this.ends.extend(eos);
        this.mend_roles(spec);
        this.mend_harmony();
        this.mend_plain_end_of_text();
        this.mend_phi3(spec.general_name.unwrap_or_default());
        Ok(this)
    }

    /// Finds the tokens with a role by their texts, makes them control tokens, and collects those
    /// that end generation.
    fn mend_roles(&mut self, spec: &TokenizerSpec<'_>) {
        let by_text = |names: &[&str]| names.iter().find_map(|name| self.find(name.as_bytes()));
        let eot = spec.eot.is_none().then(|| by_text(EOT)).flatten();
        let eom = spec.eom.is_none().then(|| by_text(&["<|eom_id|>"])).flatten();
        // The file's word about prefix, suffix and middle changes nothing here: naming one only
        // keeps another token of such a text from becoming a control token, and a vocabulary
        // has one set of them.
        let given = [None, None, None, spec.fim_pad, spec.fim_rep, spec.fim_sep];
        let fim: Vec<_> = FIM
            .iter()
            .zip(given)
            .map(|(names, given)| (given, given.is_none().then(|| by_text(names)).flatten()))
            .collect();
        let ends: Vec<_> = END.iter().filter_map(|name| self.find(name.as_bytes())).collect();

        self.eot = spec.eot.or(eot);
        let found = fim.iter().filter_map(|&(_, found)| found);
        for id in found.chain(eot).chain(eom).chain(ends.iter().copied()) {
            self.flags[id as usize].add(Flags::CONTROL);
        }
        let fim_ends = fim[3..].iter().filter_map(|&(given, found)| given.or(found));
        self.ends.extend(fim_ends);
        self.ends.extend(ends);
        self.ends.extend(self.eot.into_iter().chain(spec.eom.or(eom)));
    }

    /// gpt-oss and its kin: channel marks are text, and `<|end|>` ends a message, not the turn.
    fn mend_harmony(&mut self) {
        for mark in HARMONY_MARKS {
            if let Some(id) = self.find(mark.as_bytes()) {
                self.flags[id as usize] = Flags::USER_DEFINED;
            }
        }
        let calls = self.ends_with(&["<|call|>", "<|calls|>"]);
        if calls
            && self.ends_with(&["<|return|>", "<|flush|>"])
            && let Some(id) = self.find(b"<|end|>").filter(|id| self.ends.remove(id))
        {
            self.flags[id as usize] = Flags::USER_DEFINED;
        }
    }

    /// Gemma 4 has a plain text token `</s>`.
    fn mend_plain_end_of_text(&mut self) {
        if self.ends_with(&["<|tool_response>", "<|plamo:eos|>"])
            && let Some(id) = self.find(b"</s>").filter(|id| self.ends.remove(id))
        {
            self.flags[id as usize] = Flags::NORMAL;
        }
    }

    /// Phi-3: most special tokens swallow the white space after them.
    fn mend_phi3(&mut self, general_name: &str) {
        let name = general_name.to_lowercase();
        if !name.contains("phi-3") && !name.contains("phi3") {
            return;
        }
        for flags in self.flags.iter_mut().filter(|flags| flags.any(Flags::FOUND_WHOLE)) {
            flags.add(Flags::STRIPS_RIGHT);
        }
        if let Some(id) = self.find(b"</s>") {
            self.flags[id as usize].add(Flags::STRIPS_RIGHT);
        }
        for name in ["<unk>", "<s>", "<|endoftext|>"] {
            if let Some(id) = self.find(name.as_bytes()) {
                self.flags[id as usize].remove(Flags::STRIPS_RIGHT);
            }
        }
    }

    /// Whether one of `names` ends generation.
    fn ends_with(&self, names: &[&str]) -> bool {
        let ids = names.iter().filter_map(|name| self.find(name.as_bytes()));
        ids.into_iter().any(|id| self.ends.contains(&id))
    }

    pub(crate) fn len(&self) -> usize {
        self.texts.len()
    }

    /// The id of a token by its text as the file spells it.
    pub(crate) fn find(&self, text: &[u8]) -> Option<u32> {
        self.texts.find(text)
    }

    /// The token's text as the file spells it.
    pub(crate) fn text(&self, id: u32) -> Option<&str> {
        self.texts.get(id)
    }

    pub(crate) fn flags(&self, id: u32) -> Option<Flags> {
        self.flags.get(id as usize).copied()
    }

    /// Ids of all tokens with any of `flags`, ascending.
    pub(crate) fn with_flags(&self, flags: Flags) -> impl Iterator<Item = u32> {
        let all = self.flags.iter().enumerate();
        all.filter(move |(_, has)| has.any(flags)).map(|(id, _)| id as u32)
    }

    /// The token for one byte as SentencePiece vocabularies spell it: `<0x0A>`.
    pub(crate) fn byte_token(&self, byte: u8) -> Option<u32> {
        let hex = b"0123456789ABCDEF";
        let (high, low) = (hex[usize::from(byte >> 4)], hex[usize::from(byte & 15)]);
        self.find(&[b'<', b'0', b'x', high, low, b'>'])
    }

    /// Ids of the tokens that end generation, ascending.
    pub(crate) fn ends(&self) -> &BTreeSet<u32> {
        &self.ends
    }
}
