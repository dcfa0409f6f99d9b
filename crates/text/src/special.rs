//! Tokens that are found in a text as they stand, before any merging.
//!
//! ```text
//! text ─► text | token | text | token …
//! ```
//!
//! Longer tokens are looked for first, each over the whole text, so a longer one further right
//! wins over a shorter one that overlaps it from the left: no left-to-right scan gives that.

use aho_corasick::{AhoCorasick, AhoCorasickBuilder, MatchKind};

use crate::vocabulary::{Flags, Vocabulary};
use std::collections::BTreeSet;

/// A part of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part<'t> {
    Text(&'t str),
    Token(u32),
}

/// Finds the tokens of a vocabulary that are control, unknown or user-defined.
pub(crate) struct SpecialTokens {
    /// Longest first; each with its text.
    tokens: Vec<Special>,
    /// Says which of `tokens` a text holds at all: there can be thousands.
    present: AhoCorasick,
}

struct Special {
    id: u32,
    text: String,
    flags: Flags,
}

impl SpecialTokens {
    pub(crate) fn new(vocabulary: &Vocabulary) -> Result<Self, aho_corasick::BuildError> {
        let mut tokens: Vec<Special> = vocabulary
            .with_flags(Flags::FOUND_WHOLE)
            .filter_map(|id| {
                let text = vocabulary.text(id)?.to_owned();
                Some(Special { id, text, flags: vocabulary.flags(id)? })
            })
            .collect();
        tokens.sort_by_key(|token| std::cmp::Reverse(token.text.len()));
        let present =
            AhoCorasickBuilder::new().match_kind(MatchKind::Standard).build(tokens.iter().map(|token| &token.text))?;
        Ok(SpecialTokens { tokens, present })
    }

    /// `text` with `mark` inside every control or unknown token that it spells, so that none is found there; `None` if it
    /// spells none. A token of one character stays.
    pub(crate) fn mark(&self, text: &str, mark: char) -> Option<String> {
        let hidden = |found: &aho_corasick::Match| self.tokens[found.pattern().as_usize()].flags.any(Flags::HIDDEN);
        let inside = |found: aho_corasick::Match| {
            let first = text[found.range()].chars().next().map_or(0, char::len_utf8);
            (found.len() > first).then_some(found.start() + first)
        };
        let places: BTreeSet<usize> =
            self.present.find_overlapping_iter(text).filter(hidden).filter_map(inside).collect();
        if places.is_empty() {
            return None;
        }
        let mut marked = String::with_capacity(text.len() + places.len() * mark.len_utf8());
        let mut from = 0;
        for place in places {
            marked.push_str(&text[from..place]);
            marked.push(mark);
            from = place;
        }
        marked.push_str(&text[from..]);
        Some(marked)
    }

    /// Cuts `text`; with `parse_special` off, only user-defined tokens are found. No part is an
    /// empty text.
    pub(crate) fn partition<'t>(&self, text: &'t str, parse_special: bool) -> Vec<Part<'t>> {
        if text.is_empty() {
            return Vec::new();
        }
        let mut here = vec![false; self.tokens.len()];
        for found in self.present.find_overlapping_iter(text) {
            here[found.pattern().as_usize()] = true;
        }
        let mut parts = vec![Part::Text(text)];
        for (token, _) in self.tokens.iter().zip(here).filter(|&(_, here)| here) {
            if !parse_special && token.flags.any(Flags::HIDDEN) {
                continue;
            }
            let mut cut = Vec::with_capacity(parts.len());
            for part in parts {
                match part {
                    Part::Text(text) => token.cut(text, &mut cut),
                    Part::Token(_) => cut.push(part),
                }
            }
            parts = cut;
        }
        parts
    }
}

impl Special {
    fn cut<'t>(&self, mut text: &'t str, out: &mut Vec<Part<'t>>) {
        while let Some((before, after)) = text.split_once(self.text.as_str()) {
            if !before.is_empty() {
                out.push(Part::Text(before));
            }
            out.push(Part::Token(self.id));
            text = after;
            if self.flags.any(Flags::STRIPS_RIGHT) {
                // What isspace of C says, which is not `char::is_ascii_whitespace` (no \v there).
                text = after.trim_start_matches([' ', '\t', '\n', '\x0b', '\x0c', '\r']);
            }
        }
        if !text.is_empty() {
            out.push(Part::Text(text));
        }
    }
}
