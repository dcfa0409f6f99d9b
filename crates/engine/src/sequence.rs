//! A sequence: one request on its way through the engine.
//!
//! ```text
//! tokens:  [ cached ········ | pending ········ | ahead ]
//! pages:   [ hold K and V  ] + grown as rows are scheduled
//! ```
//!
//! A step's rows count as cached once it is scheduled: devices run steps in order. The tokens it chooses are `ahead`
//! until its result is read; the newest of them can be run by the next step all the same, which takes it from where the
//! device has put it.

use crate::pool::{KvPool, Page};
use crate::sampler::{Sampler, Sampling};
use crate::share::Share;
use std::sync::Arc;
use zinc_ir::plan::{PAGE_TOKENS, Step, Tail};

/// Names a sequence for as long as the engine lives.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct SequenceId(pub u64);

/// Keeps what sequences have computed apart from what others have: a digest of whatever is to be told apart.
pub type Salt = [u8; 16];

/// What to compute.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// Token ids, at least one.
    pub prompt: Vec<u32>,
    /// Tokens to generate at most; 0: only process the prompt; `None`: until an end token or the context is full.
    pub predict: Option<u32>,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// Tokens that end the generation.
    pub end_tokens: Arc<[u32]>,
    /// Give the logits after every token from this position on.
    pub logits_from: Option<u32>,
    /// Give the hidden state of every token from this position on (what the output matrix would read). Nothing is
    /// generated then: `predict` is 0, and there are no logits.
    pub hidden_from: Option<u32>,
    /// Run the tokens before this position in steps of their own, so that the rest can be timed alone; and take K and V
    /// of no token behind it from an earlier sequence.
    pub split: Option<u32>,
    /// Whom it is for, and how urgent it is.
    pub share: Share,
    /// Shares K and V only with sequences of the same salt; `None`: with those that have none.
    pub salt: Option<Salt>,
}

/// Says which tokens may come next in a sequence whose text must follow a grammar.
pub trait Constraint: Send + std::fmt::Debug {
    /// The tokens that may come next: token `t` if bit `t % 32` of word `t / 32` is set. `None` if none may.
    fn allowed(&mut self) -> Option<&[u32]>;
    /// Takes the token that has come (never an end token); false if it may not.
    fn accept(&mut self, token: u32) -> bool;
}

/// What a step did for a sequence.
#[derive(Clone, PartialEq, Debug)]
pub enum Event {
    /// The sequence runs now; comes once, before its first token.
    Started {
        /// Which sequence.
        sequence: SequenceId,
        /// Leading tokens of its prompt whose K and V are kept from earlier sequences.
        cached: u32,
    },
    /// The next token (never an end token).
    Token {
        /// Of which sequence.
        sequence: SequenceId,
        /// Its id.
        token: u32,
    },
    /// Logits that were asked for; each position comes once, in order.
    Logits {
        /// Of which sequence.
        sequence: SequenceId,
        /// They follow the token at this position.
        position: u32,
        /// One per vocabulary entry.
        logits: Vec<f32>,
    },
    /// A hidden state that was asked for; each position comes once, in order.
    Hidden {
        /// Of which sequence.
        sequence: SequenceId,
        /// Of the token at this position.
        position: u32,
        /// As many as [`crate::Engine::width`].
        state: Vec<f32>,
    },
    /// The sequence has left the engine.
    Finished {
        /// Which sequence.
        sequence: SequenceId,
        /// Why.
        reason: Finish,
    },
}

/// Why a sequence ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Finish {
    /// The model chose this end token.
    EndToken(u32),
    /// As many tokens as asked for.
    Length,
    /// There is no room for another token: the sequence has as many as its context.
    ContextFull {
        /// Tokens in the sequence.
        tokens: u32,
    },
    /// The model gave no number as a logit (a broken file or a device fault).
    NoNumbers,
    /// Its [`Constraint`] allows no token any more, not even one that ends it.
    NoneAllowed,
}

/// A request's state. Pages are taken and given back by the scheduler.
#[derive(Debug)]
pub(crate) struct Sequence {
    pub(crate) id: SequenceId,
    /// Prompt, then generated tokens.
    pub(crate) tokens: Vec<u32>,
    /// How many leading tokens have K and V in `pages`, or will have before any later step runs.
    pub(crate) cached: usize,
    /// How many of those the device has finished. Only they may be shown to others: a step in flight may fail.
    pub(crate) computed: usize,
    /// Tokens after `tokens` that steps in flight choose.
    pub(crate) ahead: usize,
    /// Output row of the newest of those steps.
    pub(crate) ahead_row: u32,
    pub(crate) pages: Vec<Page>,
    pub(crate) sampler: Sampler,
    pub(crate) constraint: Option<Box<dyn Constraint>>,
    pub(crate) end_tokens: Arc<[u32]>,
    /// Does it sample, or only read its prompt?
    pub(crate) samples: bool,
    /// It ends when it has this many tokens …
    pub(crate) limit: usize,
    /// … for this reason.
    pub(crate) limit_reason: Finish,
    /// Next position whose logits, or hidden state, are to be given out.
    pub(crate) next_logits: Option<usize>,
    /// It is hidden states that it gives.
    pub(crate) hidden: bool,
    /// No step has tokens from both sides of this position.
    pub(crate) split: Option<usize>,
    /// How many of the tokens are its prompt.
    pub(crate) prompt: usize,
    /// It shares pages only with sequences of the same salt.
    pub(crate) salt: Option<Salt>,
    /// Leading pages that the prefix cache has, and the key of the last of them.
    pub(crate) shared: (usize, u64),
    /// It has pages already while it waits: they came from a store.
    pub(crate) holds: bool,
    /// A page of it may be bad: nobody is given any of its pages.
    pub(crate) suspect: bool,
    /// It has been admitted at least once.
    pub(crate) started: bool,
    /// Its tokens are chosen by the host, from logits.
    pub(crate) by_host: bool,
    /// Steps with rows of it that have failed since its last token.
    pub(crate) failures: u32,
    pub(crate) share: Share,
    /// Tokens that its owner has been charged for, and what the owner had been charged for in all when a batch was begun.
    pub(crate) charged: usize,
    pub(crate) had: u64,
}

impl Sequence {
    /// Makes room for all tokens it can have, so that steps allocate nothing.
    pub(crate) fn reserve(&mut self) {
        self.tokens.reserve(self.limit.saturating_sub(self.tokens.len()));
        self.pages.reserve(KvPool::pages_for(self.limit).saturating_sub(self.pages.len()));
    }

    /// Gives all pages back, the last one first (see [`crate::prefix`]); it starts over when it runs again.
    pub(crate) fn release_pages(&mut self, pool: &mut KvPool) {
        (self.cached, self.computed, self.shared, self.suspect) = (0, 0, (0, 0), false);
        while let Some(page) = self.pages.pop() {
            pool.release(page);
        }
    }

    /// As [`Sequence::release_pages`], but for the first ones: as many as `shared` counts, which are all that it has shared.
    pub(crate) fn release_after(&mut self, shared: (usize, u64), pool: &mut KvPool) {
        while self.pages.len() > shared.0
            && let Some(page) = self.pages.pop()
        {
            pool.release(page);
        }
        (self.cached, self.shared) = (shared.0 * PAGE_TOKENS as usize, shared);
        self.computed = self.cached;
    }

    /// Tokens, those in flight included.
    pub(crate) fn len(&self) -> usize {
        self.tokens.len() + self.ahead
    }

    /// Tokens that have yet to be run, and can be. One in flight that will end the sequence need not be; one that the host
    /// has yet to choose cannot.
    pub(crate) fn pending(&self) -> usize {
        let waits = self.ahead > 0 && (self.by_host || self.len() >= self.limit);
        if waits { 0 } else { self.len() - self.cached }
    }

    /// The token at a position, for a step. In flight may be only the one that the step before chooses.
    pub(crate) fn token(&self, position: usize) -> u32 {
        self.tokens.get(position).copied().unwrap_or(Step::chained(self.ahead_row))
    }

    /// How many tokens at most will have been run when its last step of `rows` rows has been. What it chooses last need
    /// not be run.
    pub(crate) fn reach(&self, rows: usize) -> usize {
        match rows {
            1 if self.samples => self.limit.saturating_sub(1),
            1 => self.tokens.len(),
            _ => self.tokens.len() / rows * rows,
        }
    }

    /// Most leading tokens whose K and V may come from another sequence: at least one token stays to be run, and every
    /// token whose logits are wanted, or that is behind its split.
    pub(crate) fn adoptable(&self) -> usize {
        let most = [Some(self.tokens.len().saturating_sub(1)), self.next_logits, self.split];
        most.into_iter().flatten().min().unwrap_or(0)
    }

    /// Chooses the token that comes next from its logits; or says why there is none.
    pub(crate) fn choose(&mut self, logits: &[f32]) -> Result<u32, Finish> {
        let Some(constraint) = &mut self.constraint else {
            return self.sampler.sample(logits, &self.tokens).ok_or(Finish::NoNumbers);
        };
        let allowed = constraint.allowed().ok_or(Finish::NoneAllowed)?;
        let may = |token: usize| allowed.get(token / 32).is_some_and(|word| word >> (token % 32) & 1 == 1);
        // The sampler leaves out what is no number.
        let logits: Vec<f32> = logits.iter().enumerate().map(|(t, x)| if may(t) { *x } else { f32::NAN }).collect();
        let token = self.sampler.sample(&logits, &self.tokens).ok_or(Finish::NoNumbers)?;
        match self.end_tokens.contains(&token) || constraint.accept(token) {
            true => Ok(token),
            false => Err(Finish::NoneAllowed),
        }
    }

    /// Is the token after `position` the next one to be chosen?
    pub(crate) fn chooses(&self, position: usize) -> bool {
        self.samples && position + 1 == self.len()
    }

    /// Does running the token at `position` (not yet run) call for logits?
    pub(crate) fn wants_output(&self, position: usize) -> bool {
        self.chooses(position) || self.next_logits.is_some_and(|next| position >= next)
    }

    /// The most pending rows, up to `rows`, that need at most `outputs` output rows.
    pub(crate) fn rows_within(&self, rows: usize, outputs: usize) -> usize {
        let mut left = outputs;
        let before_split = self.split.and_then(|split| split.checked_sub(self.cached)).filter(|n| *n > 0);
        let rows = rows.min(before_split.unwrap_or(rows));
        let positions = self.cached..self.cached + rows.min(self.pending());
        positions
            .take_while(|p| {
                let wants = self.wants_output(*p);
                let fits = !wants || left > 0;
                left -= usize::from(wants && fits);
                fits
            })
            .count()
    }

    /// The least a step has to give for this sequence's next token; `candidates` as in `Limits`.
    pub(crate) fn tail(&self, candidates: u32) -> Tail {
        let sampling = self.sampler.sampling();
        if self.hidden {
            Tail::Hidden
        } else if self.next_logits.is_some() || self.constraint.is_some() {
            Tail::Logits
        } else if sampling.is_argmax() {
            Tail::Greedy
        } else if sampling.drawn_candidates().is_some_and(|k| k <= candidates) {
            Tail::Sample(candidates)
        } else if sampling.candidates().is_some_and(|k| k <= candidates) {
            Tail::Best(candidates)
        } else {
            Tail::Logits
        }
    }
}

/// What the output rows of a step ask for, and the tail that serves all of them.
#[derive(Default)]
pub(crate) struct Asked {
    /// Rows whose tokens the device chooses.
    device: u32,
    /// Rows of those that are drawn.
    drawn: u32,
    /// Rows whose tokens the host chooses from the best logits.
    best: u32,
    /// Rows of which all logits are wanted.
    logits: u32,
    /// It is hidden states that are wanted, of all rows.
    hidden: bool,
}

impl Asked {
    /// One more output row of a sequence with this tail.
    pub(crate) fn add(&mut self, tail: Tail) {
        match tail {
            Tail::Greedy => self.device += 1,
            Tail::Sample(_) => (self.device, self.drawn) = (self.device + 1, self.drawn + 1),
            Tail::Best(_) => self.best += 1,
            Tail::Hidden => self.hidden = true,
            Tail::Logits | Tail::Mixed { .. } => self.logits += 1,
        }
    }

    /// Rows whose tokens the host chooses, or whose logits are wanted.
    pub(crate) fn host(&self) -> u32 {
        self.best + self.logits
    }

    /// The tail; `candidates` as in `Limits`.
    pub(crate) fn tail(&self, candidates: u32) -> Tail {
        if self.hidden {
            return Tail::Hidden;
        }
        let drawn = if self.drawn > 0 { candidates } else { 0 };
        match (self.device, self.host()) {
            // One plan for "no outputs", not two.
            (0, 0) => Tail::Logits,
            (0, _) if self.logits == 0 => Tail::Best(candidates),
            (0, _) => Tail::Logits,
            (_, 0) if drawn == 0 => Tail::Greedy,
            (_, 0) => Tail::Sample(candidates),
            (_, logits) => Tail::Mixed { candidates: drawn, logits },
        }
    }
}
