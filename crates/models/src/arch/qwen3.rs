//! Qwen3 (dense): as Llama, with a norm on every head of q and k, and rotated pairs half a head apart. Heads need not
//! divide the width.

use crate::check::Expected;
use crate::layers::{attention, embed, ffn, norm};
use crate::{Architecture, ModelError, ModelSpec, keys};
use zinc_gguf::Metadata;
use zinc_ir::graph::{Activation, Graph, Pairing};

pub(crate) static ARCHITECTURE: Architecture = Architecture { name: "qwen3", numbers, tensors, forward };

fn numbers(metadata: &Metadata, tied: bool) -> Result<ModelSpec, ModelError> {
    keys::dense(metadata, "qwen3", tied)
}

fn tensors(spec: &ModelSpec) -> Vec<Expected> {
    let mut tensors = embed::tensors(spec);
    for i in 0..spec.layers {
        tensors.extend(attention::tensors(spec, i));
        tensors.extend(attention::head_norms(spec, i));
        tensors.extend(ffn::tensors(spec, i));
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
        let n = norm(spec, g, x, &format!("blk.{i}.ffn_norm"));
        let f = ffn::gated(spec, g, i, n, Activation::Silu);
        x = g.add(x, f);
    }
    embed::logits(spec, g, x);
}
