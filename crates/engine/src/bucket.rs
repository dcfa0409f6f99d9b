//! Buckets: the few sizes that plans are made for.
//!
//! ```text
//! 21 sequences generate, 300 tokens of context at most   ──► plan for 24 rows, outputs and sequences, 1024 tokens
//! 300 rows of prompts and of 2 sequences that generate   ──► plan for 384 rows, 4 outputs, 4 sequences
//! ```
//!
//! A plan has its sizes as constants, so every size needs its own; rounding up keeps their number small. Rows cost time,
//! so they are rounded finely: by eight rows at most up to 64, by 16 up to 128, by half of their number beyond. Beside
//! prompts, outputs and sequences cost next to nothing and are rounded to powers of four. Contexts grow by four, too:
//! attention skips what lies beyond a row's position anyway.

use zinc_ir::plan::{Bucket, PAGE_TOKENS, Tail};

/// Smallest context bucket.
const LEAST_CONTEXT: u32 = 256;

/// The context that a plan for `context` tokens is made for, where no sequence is longer than `limit`.
pub fn context_bucket(context: u32, limit: u32) -> u32 {
    let mut reach = LEAST_CONTEXT;
    while reach < context {
        reach = reach.saturating_mul(4);
    }
    reach.min(limit).next_multiple_of(PAGE_TOKENS)
}

/// The largest sizes; buckets never exceed them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Limits {
    /// Token rows of a step.
    pub(crate) rows: u32,
    /// Output rows of a step that gives logits or tokens.
    pub(crate) outputs: u32,
    /// Output rows of a step that gives hidden states.
    pub(crate) hidden: u32,
    /// Sequences of a step.
    pub(crate) sequences: u32,
    /// Tokens of a sequence.
    pub(crate) context: u32,
    /// Best logits that the device is asked for in place of all; 0: it is always asked for all.
    pub(crate) candidates: u32,
}

impl Limits {
    /// The context after this one's end, unless this is the largest.
    pub(crate) fn next_context(&self, context: u32) -> Option<u32> {
        let next = context_bucket(context + 1, self.context);
        (next > context).then_some(next)
    }

    /// Output rows of a step that gives hidden states, or does not.
    pub(crate) fn most_outputs(&self, hidden: bool) -> u32 {
        if hidden { self.hidden } else { self.outputs }
    }

    /// The bucket for a step of these sizes, each within its limit.
    pub(crate) fn bucket(&self, rows: u32, outputs: u32, sequences: u32, context: u32, tail: Tail) -> Bucket {
        let tokens = rows_bucket(rows).min(self.rows);
        let context = context_bucket(context, self.context);
        let most = self.most_outputs(tail == Tail::Hidden);
        if rows == outputs && rows == sequences {
            // They have one row each and generate.
            let tokens = tokens.min(most).min(self.sequences);
            let tail = rounded(tail, tokens);
            return Bucket { tokens, outputs: tokens, context, sequences: tokens, tail };
        }
        let coarse = |n: u32, limit: u32| if n == 0 { 0 } else { power_of_four(n).min(limit).min(tokens) };
        let (outputs, sequences) = (coarse(outputs, most), coarse(sequences, self.sequences));
        Bucket { tokens, outputs, context, sequences, tail: rounded(tail, outputs) }
    }

    /// The bucket for a step in which so many sequences generate.
    pub(crate) fn generating(&self, sequences: u32, context: u32, tail: Tail) -> Bucket {
        self.bucket(sequences, sequences, sequences, context, tail)
    }
}

/// The tail with logits of a power of four of output rows, or of all of them.
fn rounded(tail: Tail, outputs: u32) -> Tail {
    match tail {
        Tail::Mixed { candidates, logits } => Tail::Mixed { candidates, logits: power_of_four(logits).min(outputs) },
        other => other,
    }
}

/// Rows that a plan for `rows` is made for.
fn rows_bucket(rows: u32) -> u32 {
    match rows {
        0..=8 => rows.next_power_of_two(),
        9..=64 => rows.next_multiple_of(8),
        65..=128 => rows.next_multiple_of(16),
        _ => rows.next_multiple_of(rows.next_power_of_two() / 4),
    }
}

/// The least power of four that is not below `n`.
fn power_of_four(n: u32) -> u32 {
    let two = n.next_power_of_two();
    if two.trailing_zeros().is_multiple_of(2) { two } else { two * 2 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { rows: 100, outputs: 8, hidden: 64, sequences: 4, context: 2000, candidates: 0 };

    #[test]
    fn sizes_round_up_to_a_bucket_within_the_limits() {
        let b = LIMITS.bucket(5, 3, 3, 300, Tail::Logits);
        assert_eq!((b.tokens, b.outputs, b.sequences, b.context), (8, 4, 4, 1024));
        let b = LIMITS.bucket(97, 0, 1, 2000, Tail::Logits);
        assert_eq!((b.tokens, b.outputs, b.sequences, b.context), (100, 0, 1, 2016));
        assert_eq!(LIMITS.bucket(97, 60, 1, 2000, Tail::Hidden).outputs, 64);
        assert_eq!(LIMITS.bucket(1, 1, 1, 256, Tail::Greedy).context, 256);
        assert_eq!([256, 1024, 2016].map(|c| LIMITS.next_context(c)), [Some(1024), Some(2016), None]);
    }

    #[test]
    fn rows_are_rounded_finely_and_what_costs_little_coarsely() {
        let limits = Limits { rows: 512, outputs: 128, hidden: 512, sequences: 128, context: 2048, candidates: 0 };
        let decode = |n| {
            let b = limits.generating(n, 1, Tail::Greedy);
            assert!(b.tokens == b.outputs && b.tokens == b.sequences && b.tokens >= n, "{b:?}");
            b.tokens
        };
        assert_eq!(
            [1, 2, 3, 5, 8, 9, 16, 17, 33, 64, 65, 128].map(decode),
            [1, 2, 4, 8, 8, 16, 16, 24, 40, 64, 80, 128]
        );
        assert!((9..=128).all(|n| decode(n) <= n + 15 && decode(n) * 4 <= n * 8));
        let mixed = |rows, outputs, sequences| {
            let b = limits.bucket(rows, outputs, sequences, 1, Tail::Greedy);
            (b.tokens, b.outputs, b.sequences)
        };
        assert_eq!(mixed(512, 33, 34), (512, 64, 64));
        assert_eq!(mixed(257, 1, 1), (384, 1, 1));
        assert_eq!(mixed(385, 100, 2), (512, 128, 4));
        assert_eq!(mixed(6, 5, 5), (8, 8, 8), "never more outputs than rows");
        for rows in 1..=512 {
            for outputs in 0..=rows.min(128) {
                let (tokens, out, _) = mixed(rows, outputs, 1);
                assert!(tokens >= rows && out >= outputs && out <= tokens, "{rows} {outputs}");
            }
        }
    }

    #[test]
    fn a_small_context_is_its_own_bucket() {
        let limits = Limits { context: 33, ..LIMITS };
        assert_eq!(limits.bucket(1, 1, 1, 1, Tail::Logits).context, 64);
    }
}
