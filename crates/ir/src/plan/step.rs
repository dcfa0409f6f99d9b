//! A step: what the host gives a plan to run once, and what comes back.
//!
//! ```text
//! Step { rows, pages, outputs, draws } ─► device ─► StepOutput { logits | tokens | best }
//!          ▲ a row's token may be named as an output of the step before: Step::chained(row)
//! ```
//!
//! A chained token never visits the host: the step before leaves its tokens in [`super::Buffer::Chain`], and the
//! embedding reads them there. So a step can be handed over before the results of the one before are read.

use super::{Bucket, NO_SLOT, PAGE_TOKENS, Tail};
use crate::sample::Draw;

/// Marks a token of a [`Step`] as an output row of the step submitted just before; see [`Step::chained`].
pub const CHAINED: u32 = 1 << 31;
/// Output rows whose tokens the next step can name.
pub const CHAIN_ROWS: u32 = 1024;

/// Host-side inputs of one step. All per-row vectors have the same length, at most the bucket's `tokens`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Step {
    /// Token id of each row, or [`Step::chained`].
    pub tokens: Vec<u32>,
    /// Position of each row in its sequence.
    pub positions: Vec<u32>,
    /// Page-table row of each row.
    pub sequence: Vec<u32>,
    /// Where the row's K and V go: page × [`PAGE_TOKENS`] + token in page, or [`NO_SLOT`].
    pub slots: Vec<u32>,
    /// Rows whose logits are wanted, at most the bucket's `outputs`.
    pub outputs: Vec<u32>,
    /// Pages of each sequence, in order of position.
    pub pages: Vec<Vec<u32>>,
    /// How each output's token is drawn, if the tail draws ([`Tail::draws`]); otherwise empty.
    pub draws: Vec<Draw>,
}

/// What a step gives.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum StepOutput {
    /// No output rows were asked for.
    #[default]
    None,
    /// F32 `[outputs of the step, vocabulary]`, row-major.
    Logits(Vec<f32>),
    /// One token per output row; `u32::MAX` where no logit is a number.
    Tokens(Vec<u32>),
    /// The `k` best of each output row, best first: two arrays of `[outputs of the step, k]`.
    Best {
        /// Candidates per row.
        k: usize,
        /// Their token ids.
        tokens: Vec<u32>,
        /// Their logits.
        logits: Vec<f32>,
    },
    /// F32 `[outputs of the step, width]`, row-major: what the output matrix would read.
    Hidden(Vec<f32>),
    /// What [`Tail::Mixed`] gives.
    Mixed {
        /// As of [`StepOutput::Tokens`], of all output rows.
        tokens: Vec<u32>,
        /// As of [`StepOutput::Logits`], of the first output rows.
        logits: Vec<f32>,
    },
}

impl StepOutput {
    /// Takes in the words that kernels leave in [`super::Buffer::Output`] for the first `rows` output rows. What it
    /// held before gives its memory, so that steps of one kind allocate nothing.
    pub fn read(&mut self, tail: Tail, rows: usize, words: impl Iterator<Item = u32>) {
        if rows == 0 {
            *self = StepOutput::None;
            return;
        }
        match tail {
            Tail::Logits | Tail::Hidden => {
                let mut values = self.take_logits();
                values.extend(words.map(f32::from_bits));
                *self = StepOutput::of_rows(tail, values);
            }
            Tail::Greedy | Tail::Sample(_) | Tail::Mixed { .. } => {
                let mut tokens = self.take_tokens();
                tokens.extend(words);
                *self = StepOutput::Tokens(tokens);
            }
            Tail::Best(k) => {
                let (mut tokens, mut logits) = (self.take_tokens(), self.take_logits());
                let k = k as usize;
                for (i, word) in words.enumerate() {
                    if i % (2 * k) < k {
                        logits.push(f32::from_bits(word));
                    } else {
                        tokens.push(word);
                    }
                }
                *self = StepOutput::Best { k, tokens, logits };
            }
        }
    }

    /// Takes in what kernels leave of [`Tail::Mixed`]; memory as in [`StepOutput::read`].
    pub fn read_mixed(&mut self, from: impl Iterator<Item = u32>, beside: impl Iterator<Item = f32>) {
        let (mut tokens, mut logits) = (self.take_tokens(), self.take_logits());
        tokens.extend(from);
        logits.extend(beside);
        *self = if tokens.is_empty() { StepOutput::None } else { StepOutput::Mixed { tokens, logits } };
    }

    /// Becomes these rows of logits, or of hidden states if that is the tail; `values` gets memory of what it was before.
    pub fn exchange_rows(&mut self, tail: Tail, values: &mut Vec<f32>) {
        let spare = self.take_logits();
        *self = StepOutput::of_rows(tail, std::mem::replace(values, spare));
    }

    fn of_rows(tail: Tail, values: Vec<f32>) -> StepOutput {
        if tail == Tail::Hidden { StepOutput::Hidden(values) } else { StepOutput::Logits(values) }
    }

    fn take_logits(&mut self) -> Vec<f32> {
        let mut taken = match self {
            StepOutput::Logits(values)
            | StepOutput::Hidden(values)
            | StepOutput::Best { logits: values, .. }
            | StepOutput::Mixed { logits: values, .. } => std::mem::take(values),
            _ => vec![],
        };
        taken.clear();
        taken
    }

    fn take_tokens(&mut self) -> Vec<u32> {
        let mut taken = match self {
            StepOutput::Tokens(tokens) | StepOutput::Best { tokens, .. } | StepOutput::Mixed { tokens, .. } => {
                std::mem::take(tokens)
            }
            _ => vec![],
        };
        taken.clear();
        taken
    }
}

/// A step that does not fit its plan: a bug of the caller.
#[derive(Debug, thiserror::Error, PartialEq)]
pub enum StepError {
    /// More rows, outputs, sequences or context than the bucket has.
    #[error("step has {got} {what}, the plan was made for {limit}")]
    TooLarge {
        /// What is too many.
        what: &'static str,
        /// How many.
        got: usize,
        /// The bucket's number.
        limit: usize,
    },
    /// Per-row vectors differ in length, or an index points nowhere.
    #[error("step is inconsistent: {0}")]
    Inconsistent(&'static str),
}

impl Step {
    /// The token that the step submitted just before gives for its output row `row`, below [`CHAIN_ROWS`]. That step's
    /// tail must choose tokens ([`Tail::chains`]).
    pub const fn chained(row: u32) -> u32 {
        CHAINED | row
    }

    /// How many output rows the step before must have, at least; 0: the step does not depend on it.
    pub fn chain(&self) -> u32 {
        self.tokens.iter().filter(|t| **t & CHAINED != 0).map(|t| (t & !CHAINED) + 1).max().unwrap_or(0)
    }

    /// Checks the step against a bucket.
    pub fn check(&self, bucket: &Bucket) -> Result<(), StepError> {
        let rows = self.tokens.len();
        let longest = self.positions.iter().map(|p| *p as usize + 1).max().unwrap_or(0);
        let limits = [
            ("token rows", rows, bucket.tokens as usize),
            ("output rows", self.outputs.len(), bucket.outputs as usize),
            ("sequences", self.pages.len(), bucket.sequences as usize),
            ("tokens of context", longest, bucket.context as usize),
            ("chained rows", self.chain() as usize, CHAIN_ROWS as usize),
        ];
        if let Some(&(what, got, limit)) = limits.iter().find(|(_, got, limit)| got > limit) {
            return Err(StepError::TooLarge { what, got, limit });
        }
        if [self.positions.len(), self.sequence.len(), self.slots.len()] != [rows; 3] {
            return Err(StepError::Inconsistent("per-row vectors differ in length"));
        }
        if self.outputs.iter().any(|r| *r as usize >= rows) {
            return Err(StepError::Inconsistent("an output row does not exist"));
        }
        if bucket.tail.draws() && self.draws.len() != self.outputs.len() {
            return Err(StepError::Inconsistent("not every output has a draw"));
        }
        let reachable = |row: usize| {
            let pages = self.pages.get(self.sequence[row] as usize).map_or(0, Vec::len);
            (self.positions[row] / PAGE_TOKENS) < pages as u32
        };
        if !(0..rows).all(reachable) {
            return Err(StepError::Inconsistent("a row's position has no page"));
        }
        Ok(())
    }

    /// Checks that no index points outside a vocabulary and a pool.
    pub(super) fn check_indices(&self, vocabulary: u32, pages: u32) -> Result<(), StepError> {
        if self.tokens.iter().any(|t| t & CHAINED == 0 && *t >= vocabulary) {
            return Err(StepError::Inconsistent("a token is not in the vocabulary"));
        }
        if self.pages.iter().flatten().any(|p| *p >= pages) {
            return Err(StepError::Inconsistent("a page is not in the pool"));
        }
        if self.slots.iter().any(|s| *s != NO_SLOT && s / PAGE_TOKENS >= pages) {
            return Err(StepError::Inconsistent("a KV slot is not in the pool"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_reuse_their_memory_and_split_candidates() {
        let mut output = StepOutput::None;
        let words = [1.0f32.to_bits(), 0.5f32.to_bits(), 7, 9, 2.0f32.to_bits(), 0.0f32.to_bits(), 1, 3];
        output.read(Tail::Best(2), 2, words.into_iter());
        let best = StepOutput::Best { k: 2, tokens: vec![7, 9, 1, 3], logits: vec![1.0, 0.5, 2.0, 0.0] };
        assert_eq!(output, best);
        output.read(Tail::Greedy, 1, [5].into_iter());
        assert_eq!(output, StepOutput::Tokens(vec![5]));
        let StepOutput::Tokens(tokens) = &output else { panic!("just compared") };
        assert!(tokens.capacity() >= 4);
        output.read(Tail::Greedy, 0, [].into_iter());
        assert_eq!(output, StepOutput::None);
    }

    #[test]
    fn a_step_says_how_far_it_reaches_back() {
        let mut step = Step { tokens: vec![3, Step::chained(4), Step::chained(0)], ..Step::default() };
        assert_eq!(step.chain(), 5);
        step.tokens.truncate(1);
        assert_eq!(step.chain(), 0);
    }
}
