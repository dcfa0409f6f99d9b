//! Self-attention with grouped heads, rotary positions and a cache.
//!
//! ```text
//! n ─► q ─(bias)─(head norm)─rope─────────────────► attention ─► output ─► y
//! n ─► k ─(bias)─(head norm)─rope─► append to cache ─┘
//! n ─► v ─(bias)──────────────────┘
//! ```

use super::{linear, norm, rope};
use crate::ModelSpec;
use crate::check::Expected;
use zinc_ir::graph::{AttentionSpec, Graph, NodeId, Pairing};

/// Input norm and the four projections of layer `i`.
pub(crate) fn tensors(spec: &ModelSpec, i: u32) -> Vec<Expected> {
    let (q, kv) = (spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim);
    vec![
        Expected::vector(format!("blk.{i}.attn_norm.weight"), spec.width),
        Expected::matrix(format!("blk.{i}.attn_q.weight"), q, spec.width),
        Expected::matrix(format!("blk.{i}.attn_k.weight"), kv, spec.width),
        Expected::matrix(format!("blk.{i}.attn_v.weight"), kv, spec.width),
        Expected::matrix(format!("blk.{i}.attn_output.weight"), spec.width, q),
    ]
}

/// Biases of the projections to queries, keys and values.
pub(crate) fn qkv_biases(spec: &ModelSpec, i: u32) -> [Expected; 3] {
    let of = |part: &str, heads: u32| Expected::vector(format!("blk.{i}.attn_{part}.bias"), heads * spec.head_dim);
    [of("q", spec.heads), of("k", spec.kv_heads), of("v", spec.kv_heads)]
}

/// Norms over each head of the queries and keys.
pub(crate) fn head_norms(spec: &ModelSpec, i: u32) -> [Expected; 2] {
    ["q", "k"].map(|part| Expected::vector(format!("blk.{i}.attn_{part}_norm.weight"), spec.head_dim))
}

/// Attention of layer `i` over the normed input `n`, through the output projection.
pub(crate) fn attend(spec: &ModelSpec, g: &mut Graph, i: u32, n: NodeId, pairing: Pairing) -> NodeId {
    let window = spec.window(i);
    let table = g.rope_table(rope::table(window.map_or(&spec.rope, |w| &w.rope)));
    let rotated = |g: &mut Graph, part: &str| {
        let part = format!("blk.{i}.attn_{part}");
        let mut x = linear(spec, g, n, &part);
        let head_norm = format!("{part}_norm");
        if spec.has(&format!("{head_norm}.weight")) {
            x = norm(spec, g, x, &head_norm);
        }
        g.rope(x, spec.head_dim, pairing, table)
    };
    let q = rotated(g, "q");
    let k = rotated(g, "k");
    let v = linear(spec, g, n, &format!("blk.{i}.attn_v"));
    let append = g.kv_append(k, v, spec.head_dim);
    let rules = AttentionSpec {
        heads: spec.heads,
        kv_heads: spec.kv_heads,
        head_dim: spec.head_dim,
        scale: spec.attention_scale,
        window: window.map(|w| w.window),
    };
    let a = g.attention(q, append, rules);
    linear(spec, g, a, &format!("blk.{i}.attn_output"))
}
