//! Qwen3 as a mixture of experts (30B-A3B, 235B-A22B): Qwen3's attention, and in every layer a router that gives each
//! token its few experts.
//!
//! ```text
//! x ─norm─attention─(+ x)─norm─router─► chosen experts: gated SiLU ─weighted sum─(+)─► next layer
//! ```

use crate::check::Expected;
use crate::layers::{attention, embed, moe, norm};
use crate::{Architecture, ModelError, ModelSpec, keys};
use zinc_gguf::Metadata;
use zinc_ir::graph::{Activation, Graph, Pairing};

pub(crate) static ARCHITECTURE: Architecture = Architecture { name: "qwen3moe", numbers, tensors, forward };

fn numbers(metadata: &Metadata, tied: bool) -> Result<ModelSpec, ModelError> {
    keys::mixture(metadata, "qwen3moe", tied)
}

fn tensors(spec: &ModelSpec) -> Vec<Expected> {
    let mut tensors = embed::tensors(spec);
    for i in 0..spec.layers {
        tensors.extend(attention::tensors(spec, i));
        tensors.extend(attention::head_norms(spec, i));
        tensors.extend(moe::tensors(spec, i));
    }
    tensors
}

fn forward(spec: &ModelSpec, g: &mut Graph) {
    let mut x = embed::tokens(spec, g);
    for i in 0..spec.layers {
        g.enter_layer(Some(i));
        let n = norm(spec, g, x, &format!("blk.{i}.attn_norm"));
        let a = attention::attend(spec, g, i, n, Pairing::Halves);
        x = g.add(x, a);
        let f = moe::routed(spec, g, i, x, Activation::Silu);
        x = g.add(x, f);
    }
    embed::logits(spec, g, x);
}
