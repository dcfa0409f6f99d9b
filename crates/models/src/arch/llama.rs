//! Llama and what has its form (Mistral, SmolLM2, …): RMS norms, grouped attention, gated SiLU.
//!
//! ```text
//! x ─norm─attention─(+ x)─norm─gated SiLU─(+)─► next layer
//! ```
//!
//! The converter has reordered the rows of q and k, so that a rotated pair lies side by side. A sliding window in the
//! metadata (Mistral 7B v0.1) is not applied, as in llama.cpp.

use crate::check::Expected;
use crate::layers::{attention, embed, ffn, norm, rope};
use crate::{Architecture, ModelError, ModelSpec, keys};
use zinc_gguf::Metadata;
use zinc_ir::graph::{Activation, Graph, Pairing};

pub(crate) static ARCHITECTURE: Architecture = Architecture { name: "llama", numbers, tensors, forward };

fn numbers(metadata: &Metadata, tied: bool) -> Result<ModelSpec, ModelError> {
    keys::dense(metadata, "llama", tied)
}

fn tensors(spec: &ModelSpec) -> Vec<Expected> {
    let mut tensors = embed::tensors(spec);
    tensors.push(Expected::vector(rope::DIVISORS, spec.rope.dims / 2).or_absent());
    for i in 0..spec.layers {
        tensors.extend(attention::tensors(spec, i));
        tensors.extend(ffn::tensors(spec, i));
        let biases =
            [("attn_output", spec.width), ("ffn_gate", spec.ffn), ("ffn_up", spec.ffn), ("ffn_down", spec.width)];
        let biases = biases.map(|(part, len)| Expected::vector(format!("blk.{i}.{part}.bias"), len));
        tensors.extend(attention::qkv_biases(spec, i).into_iter().chain(biases).map(Expected::or_absent));
    }
    tensors
}

fn forward(spec: &ModelSpec, g: &mut Graph) {
    let mut x = embed::tokens(spec, g);
    for i in 0..spec.layers {
        g.enter_layer(Some(i));
        let n = norm(spec, g, x, &format!("blk.{i}.attn_norm"));
        let a = attention::attend(spec, g, i, n, Pairing::Adjacent);
        x = g.add(x, a);
        let n = norm(spec, g, x, &format!("blk.{i}.ffn_norm"));
        let f = ffn::gated(spec, g, i, n, Activation::Silu);
        x = g.add(x, f);
    }
    embed::logits(spec, g, x);
}
