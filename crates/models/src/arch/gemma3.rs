//! Gemma 3 (text): norms on both sides of each block, a norm on every head of q and k, gated GELU, scaled embeddings,
//! and five layers with a sliding window to one that sees everything.
//!
//! ```text
//! x ─norm─attention─norm─(+ x)─norm─gated GELU─norm─(+)─► next layer
//! ```
//!
//! The converter has added the 1 that belongs to Gemma's norm weights.

use crate::check::Expected;
use crate::keys::{self, Keys};
use crate::layers::{attention, embed, ffn, norm};
use crate::{Architecture, ModelError, ModelSpec, RopeScaling, RopeSpec, Sliding};
use zinc_gguf::{Metadata, Value};
use zinc_ir::graph::{Activation, Graph, Pairing};

pub(crate) static ARCHITECTURE: Architecture = Architecture { name: "gemma3", numbers, tensors, forward };

/// Every sixth layer sees everything, unless the file has another pattern.
const PERIOD: u32 = 6;
/// Layers of the 27B model, whose attention scale follows from the width rather than the head size.
const LAYERS_OF_27B: u32 = 62;

fn numbers(metadata: &Metadata, tied: bool) -> Result<ModelSpec, ModelError> {
    let mut spec = keys::dense(metadata, "gemma3", tied)?;
    let keys = Keys { metadata, architecture: "gemma3" };
    spec.embedding_scale = (spec.width as f32).sqrt();
    if spec.layers == LAYERS_OF_27B && keys.nonzero_if("attention.scale")?.is_none() {
        spec.attention_scale = (spec.heads as f32 / spec.width as f32).sqrt();
    }
    spec.sliding = sliding(&keys, &spec)?;
    Ok(spec)
}

/// The windowed layers have their own rotary base and no scaling.
fn sliding(keys: &Keys, spec: &ModelSpec) -> Result<Option<Sliding>, ModelError> {
    let Some(window @ 1..) = keys.metadata.u32(&keys.full("attention.sliding_window"))? else { return Ok(None) };
    let base = keys.rope_base("rope.freq_base_swa")?;
    let rope = RopeSpec { base, scaling: RopeScaling::None, ..spec.rope.clone() };
    Ok(Some(Sliding { window, layers: pattern(keys, spec.layers)?, rope }))
}

/// Which layers have the window: every one but each n-th, or as the file lists them.
fn pattern(keys: &Keys, layers: u32) -> Result<Vec<bool>, ModelError> {
    let key = "attention.sliding_window_pattern";
    if let Some(Value::Array(_)) = keys.metadata.get(&keys.full(key)) {
        let listed = keys.metadata.bools(&keys.full(key))?.unwrap_or_default();
        return match listed.get(..layers as usize) {
            Some(listed) => Ok(listed.to_vec()),
            None => {
                Err(keys.bad(key, format!("an array of {}", listed.len()), format!("one for each of {layers} layers")))
            }
        };
    }
    let period = keys.count_if(key, 4096)?.unwrap_or(PERIOD);
    Ok((1..=layers).map(|i| !i.is_multiple_of(period)).collect())
}

fn tensors(spec: &ModelSpec) -> Vec<Expected> {
    let mut tensors = embed::tensors(spec);
    for i in 0..spec.layers {
        tensors.extend(attention::tensors(spec, i));
        tensors.extend(attention::head_norms(spec, i));
        tensors.push(Expected::vector(format!("blk.{i}.post_attention_norm.weight"), spec.width));
        tensors.extend(ffn::tensors(spec, i));
        tensors.push(Expected::vector(format!("blk.{i}.post_ffw_norm.weight"), spec.width));
    }
    tensors
}

fn forward(spec: &ModelSpec, g: &mut Graph) {
    let mut x = embed::tokens(spec, g);
    for i in 0..spec.layers {
        g.enter_layer(Some(i));
        let n = norm(spec, g, x, &format!("blk.{i}.attn_norm"));
        let a = attention::attend(spec, g, i, n, Pairing::Halves);
        let a = norm(spec, g, a, &format!("blk.{i}.post_attention_norm"));
        x = g.add(x, a);
        let n = norm(spec, g, x, &format!("blk.{i}.ffn_norm"));
        let f = ffn::gated(spec, g, i, n, Activation::GeluTanh);
        let f = norm(spec, g, f, &format!("blk.{i}.post_ffw_norm"));
        x = g.add(x, f);
    }
    embed::logits(spec, g, x);
}
