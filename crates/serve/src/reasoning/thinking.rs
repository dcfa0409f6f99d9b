//! What tokens may come while a model reasons: any, up to a budget; then those of the closing tag; then those of the rule
//! that the answer follows.
//!
//! ```text
//! Start ─opening tag─► Inside ─closing tag─► Seam ─► Answer
//!   └── anything else ──────│──────────────────────────► ▲
//!                           └─budget used up─► Closing ──┘
//! ```

use super::{Begun, Tags};
use crate::grammar::Rule;
use std::sync::Arc;
use zinc_engine::Constraint;
use zinc_text::{Tokenizer, TokenizerError};

/// What an answer must follow.
#[derive(Clone, Debug)]
pub(crate) enum Guide {
    /// A grammar, from the first token on.
    Rule(Box<Rule>),
    /// A budget of reasoning, and perhaps a grammar behind the reasoning.
    Thinking(Box<Thinking>),
}

impl Guide {
    /// As the engine takes it.
    pub(crate) fn boxed(self) -> Box<dyn Constraint> {
        match self {
            Guide::Rule(rule) => rule,
            Guide::Thinking(thinking) => thinking,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// So many tokens of the opening tag have come, if the answer must begin with it or with what its rule allows.
    Start(usize),
    /// Reasoning.
    Inside,
    /// So many tokens of the closing tag have been forced.
    Closing(usize),
    /// Behind a tag that the model wrote itself: a blank line may come.
    Seam,
    Answer,
}

/// Follows an answer from its first token on.
#[derive(Clone, Debug)]
pub(crate) struct Thinking {
    tags: &'static Tags,
    tokenizer: Arc<Tokenizer>,
    /// Tokens of the opening tag, and of what closes by force.
    open: Arc<[u32]>,
    forced: Arc<[u32]>,
    /// A blank line, if that is one token.
    blank: Option<u32>,
    ends: Arc<[u32]>,
    words: usize,
    stage: Stage,
    /// Tokens of reasoning that are left.
    budget: Option<u32>,
    rule: Option<Rule>,
    /// The last bytes, in which a tag may begin.
    tail: Vec<u8>,
    mask: Vec<u32>,
    /// A token that may come although the rule does not allow it here.
    extra: Option<u32>,
}

impl Thinking {
    /// Begins at the end of a prompt, where reasoning has come as far as `at`. `vocabulary`: tokens that the model has.
    pub(crate) fn new(
        tags: &'static Tags,
        at: Begun,
        tokenizer: &Arc<Tokenizer>,
        vocabulary: u32,
        budget: Option<u32>,
        rule: Option<Rule>,
    ) -> Result<Thinking, TokenizerError> {
        let ids = |text| tokenizer.encode(text, false, true);
        let blank = ids("\n\n")?;
        let stage = match at {
            Begun::No => Stage::Start(0),
            Begun::Yes => Stage::Inside,
            Begun::Over => Stage::Answer,
        };
        Ok(Thinking {
            tags,
            open: ids(tags.open)?.into(),
            forced: ids(tags.forced)?.into(),
            blank: blank.first().copied().filter(|_| blank.len() == 1),
            ends: tokenizer.end_of_generation_ids().collect(),
            tokenizer: tokenizer.clone(),
            words: vocabulary.div_ceil(32) as usize,
            stage,
            budget,
            rule,
            tail: vec![],
            mask: vec![],
            extra: None,
        })
    }

    /// Tokens that the model may be made to write beyond its answer.
    fn set(&mut self, token: u32) {
        if let Some(word) = self.mask.get_mut(token as usize / 32) {
            *word |= 1 << (token % 32);
        }
    }

    /// Allows what the rule allows, and one more token.
    fn rule_and(&mut self, more: Option<u32>) -> Option<()> {
        let Some(rule) = &mut self.rule else {
            self.mask.resize(self.words, u32::MAX);
            return Some(());
        };
        self.mask.extend_from_slice(rule.allowed()?);
        let has = |token: u32| self.mask.get(token as usize / 32).is_some_and(|word| word >> (token % 32) & 1 == 1);
        self.extra = more.filter(|token| !has(*token));
        if let Some(token) = self.extra {
            self.set(token);
        }
        Some(())
    }

    /// Takes the bytes of a token; true if a tag is complete now.
    fn sees(&mut self, token: u32, tag: &str) -> bool {
        let bytes = self.tokenizer.token_bytes(token, true).unwrap_or_default();
        self.tail.extend_from_slice(&bytes);
        let found = self.tail.windows(tag.len()).any(|part| part == tag.as_bytes());
        if found {
            self.tail.clear();
        } else {
            let keep = self.tail.len().min(tag.len() - 1);
            self.tail.drain(..self.tail.len() - keep);
        }
        found
    }

    /// A token of an answer that may begin with the opening tag, and follows no rule.
    fn start_freely(&mut self, token: u32) {
        let bytes = self.tokenizer.token_bytes(token, true).unwrap_or_default();
        self.tail.extend_from_slice(&bytes);
        let start = self.tail.trim_ascii_start();
        if start.starts_with(self.tags.open.as_bytes()) {
            self.stage = Stage::Inside;
            self.tail.clear();
        } else if !self.tags.open.as_bytes().starts_with(start) {
            self.stage = Stage::Answer;
        }
    }

    fn answer(&mut self, token: u32) -> bool {
        self.stage = Stage::Answer;
        self.rule.as_mut().is_none_or(|rule| rule.accept(token))
    }
}

impl Constraint for Thinking {
    fn allowed(&mut self) -> Option<&[u32]> {
        self.mask.clear();
        self.extra = None;
        if self.stage == Stage::Inside && self.budget == Some(0) {
            self.stage = Stage::Closing(0);
        }
        match self.stage {
            Stage::Closing(at) => {
                self.mask.resize(self.words, 0);
                self.set(*self.forced.get(at)?);
            }
            Stage::Start(at) if at > 0 => {
                self.mask.resize(self.words, 0);
                self.set(*self.open.get(at)?);
            }
            Stage::Start(_) => self.rule_and(self.open.first().copied())?,
            Stage::Inside => {
                self.mask.resize(self.words, u32::MAX);
                // What must follow a rule must not end before it has begun to.
                let ends = self.ends.clone();
                for end in ends.iter().filter(|_| self.rule.is_some()) {
                    if let Some(word) = self.mask.get_mut(*end as usize / 32) {
                        *word &= !(1 << (end % 32));
                    }
                }
            }
            Stage::Seam => self.rule_and(self.blank)?,
            Stage::Answer => self.rule_and(None)?,
        }
        Some(&self.mask)
    }

    fn accept(&mut self, token: u32) -> bool {
        let extra = self.extra == Some(token);
        match self.stage {
            Stage::Start(_) if self.rule.is_none() => self.start_freely(token),
            Stage::Start(at) if at > 0 || extra => {
                self.stage = if at + 1 == self.open.len() { Stage::Inside } else { Stage::Start(at + 1) };
            }
            Stage::Inside => {
                self.budget = self.budget.map(|left| left.saturating_sub(1));
                if self.sees(token, self.tags.close) {
                    self.stage = Stage::Seam;
                }
            }
            Stage::Closing(at) => {
                self.stage = if at + 1 == self.forced.len() { Stage::Answer } else { Stage::Closing(at + 1) };
            }
            Stage::Seam if extra => self.stage = Stage::Answer,
            Stage::Start(_) | Stage::Seam | Stage::Answer => return self.answer(token),
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grammar::{Grammar, Grammars};

    const END: u32 = 299;

    /// Of a vocabulary of bytes.
    fn thinking(at: Begun, budget: Option<u32>, regex: Option<&str>) -> Thinking {
        let tokenizer = Arc::new(Tokenizer::synthetic(300).expect("a tokenizer"));
        let ends: Vec<u32> = tokenizer.end_of_generation_ids().collect();
        let grammars = Grammars::new(&tokenizer, 320, &ends);
        let rule = regex.map(|r| grammars.compile(Grammar::Regex(r.into()), "x").expect("a rule"));
        let tags = Tags::of("<think></think>").expect("tags");
        Thinking::new(tags, at, &tokenizer, 320, budget, rule).expect("tokens")
    }

    fn may(thinking: &mut Thinking, token: u32) -> bool {
        let mask = thinking.allowed().expect("something may come");
        assert!(mask.len() >= 10);
        mask[token as usize / 32] >> (token % 32) & 1 == 1
    }

    /// Writes a text as far as it may.
    fn write(thinking: &mut Thinking, text: &str) -> usize {
        text.bytes().take_while(|byte| may(thinking, u32::from(*byte)) && thinking.accept(u32::from(*byte))).count()
    }

    /// What comes where there is no choice.
    fn forced(thinking: &mut Thinking) -> String {
        let mut text = String::new();
        loop {
            let all: Vec<u8> = (0..=255).filter(|b| may(thinking, u32::from(*b))).collect();
            let [only] = all[..] else { return text };
            assert!(thinking.accept(u32::from(only)));
            text.push(char::from(only));
        }
    }

    #[test]
    fn a_budget_closes_reasoning_and_the_answer_goes_on() {
        for (at, before) in [(Begun::Yes, ""), (Begun::No, "\n<think>")] {
            let mut t = thinking(at, Some(5), None);
            assert_eq!(write(&mut t, before), before.len());
            assert_eq!(write(&mut t, "12345"), 5);
            assert_eq!(forced(&mut t), "\n</think>\n\n");
            assert!(write(&mut t, "anything, <think> too") == 21 && may(&mut t, END));
        }
        let mut t = thinking(Begun::No, Some(0), None);
        assert_eq!(write(&mut t, "no reasoning at all"), 19);
        let mut t = thinking(Begun::Yes, Some(100), None);
        assert!(write(&mut t, "short</think>") == 13 && write(&mut t, &"x".repeat(200)) == 200);
        assert_eq!(forced(&mut thinking(Begun::Yes, Some(0), None)), "\n</think>\n\n");
    }

    #[test]
    fn a_rule_holds_behind_the_reasoning() {
        let mut t = thinking(Begun::Yes, None, Some("[0-9]+"));
        assert!(!may(&mut t, END), "it cannot end before the rule is followed");
        assert_eq!(write(&mut t, "why not?</think>"), 16);
        assert_eq!(write(&mut t, "42x"), 2);
        assert!(may(&mut t, END) && !may(&mut t, u32::from(b'x')));
        let mut t = thinking(Begun::No, Some(3), Some("[0-9]+"));
        assert_eq!(write(&mut t, "<think>abc"), 10);
        assert_eq!(forced(&mut t), "\n</think>\n\n");
        assert_eq!(write(&mut t, "7 "), 1);
        let mut t = thinking(Begun::No, None, Some("[0-9]+"));
        assert_eq!((write(&mut t, "x"), write(&mut t, "4")), (0, 1), "reasoning, or the rule at once");
        assert!(!may(&mut t, u32::from(b'<')));
        let mut t = thinking(Begun::No, None, Some("<a>"));
        assert_eq!(write(&mut t, "<a>"), 3, "the rule goes before a tag that begins the same");
    }
}
