//! The one internal request: what every wire format's request becomes.

use crate::pooling::Pooling;
use crate::reasoning::{Guide, Reader};
use crate::tools::CallReader;
use std::sync::Arc;
use zinc_engine::{Salt, Sampling, Share};

/// What to generate.
#[derive(Clone, Debug)]
pub(crate) struct Generation {
    /// Token ids of each prompt, at least one prompt.
    pub(crate) prompts: Vec<Arc<[u32]>>,
    /// Answers per prompt. Choice `i` is answer `i % n` to prompt `i / n`; its seed is `i` above the one in `sampling`.
    pub(crate) n: usize,
    /// Tokens per answer at most; `None`: until the model ends or the context is full.
    pub(crate) predict: Option<u32>,
    pub(crate) sampling: Sampling,
    /// Its seed is the request's own. One that the server has made up is nobody's business.
    pub(crate) seeded: bool,
    /// Texts that end an answer; none is empty.
    pub(crate) stops: Vec<String>,
    /// Do tokens that end generation not end it?
    pub(crate) ignore_eos: bool,
    /// Log-probabilities of generated tokens, and of so many likeliest ones beside each.
    pub(crate) logprobs: Option<usize>,
    /// What answers must follow.
    pub(crate) guide: Option<Guide>,
    /// Tells reasoning apart from answers.
    pub(crate) reasoning: Option<Reader>,
    /// Answers end with the first call that this one finds.
    pub(crate) first_call: Option<CallReader>,
    /// Answers begin with their prompt: this text, per prompt.
    pub(crate) echo: Option<Vec<String>>,
    /// Whom they are for, and how urgent they are; requests say the priority that they ask for.
    pub(crate) share: Share,
    /// They know cached prompts of this salt only; requests say the one that they ask for.
    pub(crate) salt: Option<Salt>,
    /// It is embeddings of the prompts that are wanted; `predict` is 0 then.
    pub(crate) pooling: Option<Pooling>,
}

impl Generation {
    /// Tokens that it is known to need: those of its prompts, and of its answers as many as are asked for.
    pub(crate) fn tokens(&self) -> u64 {
        let prompts: u64 = self.prompts.iter().map(|prompt| prompt.len() as u64).sum();
        prompts + self.choices() as u64 * u64::from(self.predict.unwrap_or(0))
    }

    /// All answers.
    pub(crate) fn choices(&self) -> usize {
        self.prompts.len() * self.n
    }
}

/// Why an answer ended, as clients are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// The model ended it, or a stop string.
    Stop,
    /// As many tokens as asked for, or as there is room for.
    Length,
}

impl Reason {
    /// OpenAI's word.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Reason::Stop => "stop",
            Reason::Length => "length",
        }
    }
}

/// Tokens of a request so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    /// Of the prompts.
    pub(crate) prompt: u64,
    /// Of which the prefix cache had.
    pub(crate) cached: u64,
    /// Of the answers.
    pub(crate) completion: u64,
    /// Of which reasoning.
    pub(crate) reasoning: u64,
}
