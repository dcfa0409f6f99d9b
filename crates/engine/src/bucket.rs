//! Buckets: the few sizes that plans are made for.
//!
//! ```text
//! step of 5 rows, 2 outputs, 300 tokens of context ──► plan for 8 rows, 2 outputs, 1024 tokens
//! ```
//!
//! A plan has its sizes as constants, so every size needs its own; rounding up keeps their number small and the
//! waste below one half. Contexts grow by four: attention skips what lies beyond a row's position anyway.

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
    /// Output rows of a step.
    pub(crate) outputs: u32,
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

    /// The bucket for a step of these sizes, each within its limit.
    pub(crate) fn bucket(&self, rows: u32, outputs: u32, sequences: u32, context: u32, tail: Tail) -> Bucket {
        let power = |n: u32, limit: u32| if n == 0 { 0 } else { n.next_power_of_two().min(limit) };
        Bucket {
            tokens: power(rows, self.rows),
            outputs: power(outputs, self.outputs),
            context: context_bucket(context, self.context),
            sequences: power(sequences, self.sequences),
            tail,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { rows: 100, outputs: 8, sequences: 4, context: 2000, candidates: 0 };

    #[test]
    fn sizes_round_up_to_a_bucket_within_the_limits() {
        let b = LIMITS.bucket(5, 3, 3, 300, Tail::Logits);
        assert_eq!((b.tokens, b.outputs, b.sequences, b.context), (8, 4, 4, 1024));
        let b = LIMITS.bucket(70, 0, 1, 2000, Tail::Logits);
        assert_eq!((b.tokens, b.outputs, b.sequences, b.context), (100, 0, 1, 2016));
        assert_eq!(LIMITS.bucket(1, 1, 1, 256, Tail::Greedy).context, 256);
        assert_eq!([256, 1024, 2016].map(|c| LIMITS.next_context(c)), [Some(1024), Some(2016), None]);
    }

    #[test]
    fn a_small_context_is_its_own_bucket() {
        let limits = Limits { context: 33, ..LIMITS };
        assert_eq!(limits.bucket(1, 1, 1, 1, Tail::Logits).context, 64);
    }
}
