//! What attention moves and computes, for a bucket or for the step that runs in it.

use super::{Bucket, KvTypes, Launch, Plan};
use crate::graph::{AttentionSpec, Op};

/// Bytes and floating-point operations.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Cost {
    /// Bytes moved.
    pub bytes: u64,
    /// Operations; a multiply-add counts two.
    pub flops: u64,
}

impl Cost {
    /// Reading K and V, and the products with them, when every row of a bucket sees the whole context, and every
    /// sequence is read once.
    pub fn of_attention(spec: &AttentionSpec, types: impl Into<KvTypes>, bucket: &Bucket) -> Cost {
        let visible = spec.window.unwrap_or(u32::MAX).min(bucket.context) as u64;
        let sequences = bucket.sequences.min(bucket.tokens) as u64;
        let flops = bucket.tokens as u64 * visible * flops_per_pair(spec);
        Cost { bytes: sequences * visible * bytes_per_token(spec, types.into()), flops }
    }

    /// The same for `rows` new tokens of one sequence that has `past` tokens.
    pub fn of_attention_at(spec: &AttentionSpec, types: impl Into<KvTypes>, past: u32, rows: u32) -> Cost {
        let window = spec.window.unwrap_or(u32::MAX);
        let seen = |row: u32| past.saturating_add(row).saturating_add(1);
        let lowest = seen(0).saturating_sub(window);
        let tokens = past.saturating_add(rows).saturating_sub(lowest);
        let pairs: u64 = (0..rows).map(|row| seen(row).min(window) as u64).sum();
        Cost { bytes: tokens as u64 * bytes_per_token(spec, types.into()), flops: pairs * flops_per_pair(spec) }
    }
}

/// K and V of one token.
fn bytes_per_token(spec: &AttentionSpec, types: KvTypes) -> u64 {
    spec.kv_heads as u64 * types.bytes(spec.head_dim) as u64
}

/// q·K and p·V of one row and one token.
fn flops_per_pair(spec: &AttentionSpec) -> u64 {
    4 * spec.heads as u64 * spec.head_dim as u64
}

impl Plan {
    /// What a launch moves and computes in a step of `rows` new tokens of one sequence that has `past` tokens. Other
    /// than [`Launch::bytes`], this counts the context that there is, not the bucket's.
    pub fn cost_at(&self, launch: &Launch, past: u32, rows: u32) -> Cost {
        self.cost_of(launch, &[(past, rows)])
    }

    /// The same for a step of several sequences: of each, the tokens that it has, and its new ones.
    pub fn cost_of(&self, launch: &Launch, parts: &[(u32, u32)]) -> Cost {
        let whole = Cost { bytes: launch.bytes, flops: launch.flops };
        let Some(Op::Attention { spec, .. }) = launch.attends.map(|node| self.graph.op(node)) else { return whole };
        let of_bucket = Cost::of_attention(spec, self.kv.types, &self.bucket);
        let of_part = |(past, rows): &(u32, u32)| Cost::of_attention_at(spec, self.kv.types, *past, *rows);
        let now = parts
            .iter()
            .map(of_part)
            .fold(Cost::default(), |sum, part| Cost { bytes: sum.bytes + part.bytes, flops: sum.flops + part.flops });
        Cost {
            bytes: whole.bytes.saturating_sub(of_bucket.bytes) + now.bytes,
            flops: whole.flops.saturating_sub(of_bucket.flops) + now.flops,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{KvType, Tail};

    fn spec(window: Option<u32>) -> AttentionSpec {
        AttentionSpec { heads: 8, kv_heads: 2, head_dim: 16, scale: 1.0, window }
    }

    #[test]
    fn decoding_reads_the_context_once() {
        let bucket = Bucket { tokens: 1, outputs: 1, context: 64, sequences: 1, tail: Tail::Greedy };
        let full = Cost::of_attention(&spec(None), KvType::F16, &bucket);
        assert_eq!(full, Cost { bytes: 64 * 2 * 2 * 16 * 2, flops: 64 * 4 * 8 * 16 });
        assert_eq!(Cost::of_attention_at(&spec(None), KvType::F16, 63, 1), full);
        let half = Cost::of_attention_at(&spec(None), KvType::F16, 31, 1);
        assert_eq!((half.bytes * 2, half.flops * 2), (full.bytes, full.flops));
        let near = Cost::of_attention_at(&spec(Some(8)), KvType::F16, 63, 1);
        assert_eq!((near.bytes * 8, near.flops * 8), (full.bytes, full.flops));
    }

    #[test]
    fn sequences_are_read_each_and_rows_of_one_together() {
        let bucket = Bucket { tokens: 4, outputs: 4, context: 64, sequences: 4, tail: Tail::Greedy };
        let four = Cost::of_attention(&spec(None), KvType::F32, &bucket);
        let one = Cost::of_attention(&spec(None), KvType::F32, &Bucket { sequences: 1, ..bucket });
        assert_eq!((four.bytes, four.flops), (4 * one.bytes, one.flops));
        // Rows of a prompt see 1, 2, 3 and 4 tokens; with a window of 2: 1, 2, 2 and 2.
        let prompt = |window| Cost::of_attention_at(&spec(window), KvType::F32, 0, 4);
        assert_eq!(prompt(None), Cost { bytes: 4 * 2 * 2 * 16 * 4, flops: 10 * 4 * 8 * 16 });
        assert_eq!(prompt(Some(2)), Cost { bytes: 4 * 2 * 2 * 16 * 4, flops: 7 * 4 * 8 * 16 });
        // Later rows leave the first tokens behind: of 10 + 2 tokens the last 2 + 1 are seen.
        assert_eq!(Cost::of_attention_at(&spec(Some(2)), KvType::F32, 10, 2).bytes, 3 * 2 * 2 * 16 * 4);
    }
}
