//! What a bench measures: its tests, their requests, and which of their steps count.
//!
//! ```text
//!            depth (not timed)        timed
//! pp 512     –                        512 tokens of prompt
//! tg 128     –                        128 steps of one token
//!   @ d4096  4096 tokens, kept        the same after them
//!   x8       8 sequences, each with tokens of its own; tg comes after the prompts of all: its depth is the prompt
//! ```

use super::Arguments;
use zinc_engine::{Random, Request};

/// What is measured: how a run begins, and how many tokens it counts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Test {
    pub(super) name: &'static str,
    /// Tokens of a sequence that count.
    pub(super) tokens: u32,
    /// Tokens of context before the first that is timed.
    pub(super) depth: u32,
    /// Tokens of the prompt after them.
    pub(super) prompt: u32,
    pub(super) predict: u32,
    /// Sequences at once, where that was asked for.
    pub(super) parallel: Option<u32>,
}

impl Test {
    /// The tests that the arguments ask for.
    pub(super) fn all(arguments: &Arguments) -> Vec<Test> {
        let (p, n) = (arguments.prompt, arguments.generate);
        let of = |depth, after, parallel| {
            let prompt = Test { name: "pp", tokens: p, depth, prompt: p, predict: 1, parallel };
            [prompt, Test { name: "tg", tokens: n, depth: after, prompt: 1, predict: n, parallel }]
        };
        let alone = arguments.depths.iter().map(|depth| of(*depth, *depth, None));
        let together = arguments.parallel.iter().map(|count| of(0, p, Some(*count)));
        let tests: Vec<_> = if arguments.parallel.is_empty() { alone.collect() } else { together.collect() };
        tests.into_iter().flatten().filter(|test| test.tokens > 0).collect()
    }

    /// Name, size and depth, as llama-bench writes them, and the number of sequences: `tg128 @ d512 x8`.
    pub(super) fn title(&self) -> String {
        let depth = if self.depth > 0 { format!(" @ d{}", self.depth) } else { String::new() };
        let parallel = self.parallel.map_or(String::new(), |count| format!(" x{count}"));
        format!("{}{}{depth}{parallel}", self.name, self.tokens)
    }

    /// Sequences at once.
    pub(super) fn sequences(&self) -> u32 {
        self.parallel.unwrap_or(1)
    }

    /// Tokens of context that each of its sequences needs.
    pub(super) fn context(&self) -> u32 {
        self.depth.saturating_add(self.tokens)
    }

    /// Its sequences: the first part is the same in all runs, the rest is drawn from the seed.
    pub(super) fn requests(&self, vocabulary: u32, seed: u64) -> impl Iterator<Item = Request> {
        let test = *self;
        let mut random = Random::new(!seed);
        (0..self.sequences()).map(move |sequence| {
            let mut prompt = test.depth_tokens(sequence, vocabulary);
            prompt.extend((0..test.prompt).map(|_| token(&mut random, vocabulary)));
            Request { prompt, predict: Some(test.predict), split: Some(test.depth), ..Request::default() }
        })
    }

    /// Requests that leave K and V of its contexts behind, where several sequences would have to wait for each other's.
    pub(super) fn contexts(&self, vocabulary: u32) -> Vec<Request> {
        let of = |sequence| Request {
            prompt: self.depth_tokens(sequence, vocabulary),
            predict: Some(0),
            ..Request::default()
        };
        let wanted = self.depth > 0 && self.sequences() > 1;
        (0..self.sequences()).filter(|_| wanted).map(of).collect()
    }

    fn depth_tokens(&self, sequence: u32, vocabulary: u32) -> Vec<u32> {
        let mut random = Random::new(sequence as u64);
        (0..self.depth).map(|_| token(&mut random, vocabulary)).collect()
    }

    /// Does a step count that has these parts (tokens before, and rows)? Not if a context is still being read; and
    /// generation counts while all sequences are at it.
    pub(super) fn counts(&self, parts: &[(u32, u32)]) -> bool {
        let after_depth = parts.iter().all(|(past, _)| *past >= self.depth);
        after_depth && (self.prompt > 1 || parts.len() == self.sequences() as usize)
    }
}

/// A token drawn from all of the vocabulary.
fn token(random: &mut Random, vocabulary: u32) -> u32 {
    (random.unit() * vocabulary as f64) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOGETHER: Test = Test { name: "tg", tokens: 4, depth: 32, prompt: 1, predict: 4, parallel: Some(3) };

    #[test]
    fn generation_counts_once_all_prompts_are_read() {
        assert!(TOGETHER.counts(&[(32, 1), (33, 1), (40, 1)]));
        assert!(!TOGETHER.counts(&[(32, 1), (33, 1), (31, 1)]), "a prompt's last row");
        assert!(!TOGETHER.counts(&[(35, 1), (34, 1)]), "one has ended");
        let prompts = Test { name: "pp", depth: 0, prompt: 32, predict: 1, ..TOGETHER };
        assert!(prompts.counts(&[(0, 32), (0, 20)]));
    }

    #[test]
    fn sequences_have_tokens_of_their_own_that_begin_the_same_in_all_runs() {
        let [a, b] = [1, 2].map(|seed| TOGETHER.requests(1000, seed).map(|r| r.prompt).collect::<Vec<_>>());
        assert_eq!(a.len(), 3);
        assert!(a[0][..32] != a[1][..32] && a[1][..32] != a[2][..32]);
        assert!((0..3).all(|s| a[s][..32] == b[s][..32] && a[s].len() == 33));
        let contexts: Vec<Vec<u32>> = TOGETHER.contexts(1000).into_iter().map(|r| r.prompt).collect();
        assert!((0..3).all(|s| contexts[s] == a[s][..32]));
        assert_eq!((TOGETHER.title(), TOGETHER.context()), ("tg4 @ d32 x3".into(), 36));
    }
}
