//! Reads a model's numbers from the metadata, each checked against a range that makes sense.
//!
//! ```text
//! Metadata ─Keys─► number, or an error that names the key
//! ```
//!
//! The upper limits are far above any model known; they bound what a damaged file can make us compute or allocate.

use crate::ModelError;
use crate::spec::{Experts, ModelSpec, RopeScaling, RopeSpec};
use std::collections::BTreeMap;
use zinc_gguf::Metadata;

/// Head sizes must be multiples of this: K and V rows are read in groups of 4.
const HEAD_STEP: u32 = 4;

/// Most experts of a layer. With the limits on widths, the rows of all experts together can be counted.
const MOST_EXPERTS: u32 = 1024;

/// The metadata of one architecture: keys are relative to its name.
pub(crate) struct Keys<'a> {
    pub(crate) metadata: &'a Metadata,
    pub(crate) architecture: &'static str,
}

impl<'a> Keys<'a> {
    pub(crate) fn full(&self, key: &str) -> String {
        format!("{}.{key}", self.architecture)
    }

    pub(crate) fn unsupported(&self, what: impl Into<String>) -> ModelError {
        ModelError::UnsupportedVariant { architecture: self.architecture, what: what.into() }
    }

    pub(crate) fn bad(&self, key: &str, value: impl ToString, expected: impl Into<String>) -> ModelError {
        ModelError::BadValue { key: self.full(key), value: value.to_string(), expected: expected.into() }
    }

    /// A count from 1 to `limit`, if the key is there.
    pub(crate) fn count_if(&self, key: &str, limit: u32) -> Result<Option<u32>, ModelError> {
        match self.metadata.u32(&self.full(key))? {
            Some(n) if n == 0 || n > limit => Err(self.bad(key, n, format!("from 1 to {limit}"))),
            n => Ok(n),
        }
    }

    /// A count from 1 to `limit`.
    fn count(&self, key: &str, limit: u32) -> Result<u32, ModelError> {
        self.count_if(key, limit)?.ok_or_else(|| ModelError::MissingKey { key: self.full(key) })
    }

    /// A count that may be given for each layer, but is the same in all.
    fn count_of_layers(&self, key: &str, layers: u32, limit: u32) -> Result<Option<u32>, ModelError> {
        let Some(values) = self.metadata.u32_per_layer(&self.full(key), layers as usize)? else { return Ok(None) };
        let first = values[0];
        if values.iter().any(|&v| v != first) {
            return Err(self.unsupported(format!("has a different {key} in different layers")));
        }
        if first == 0 || first > limit {
            return Err(self.bad(key, first, format!("from 1 to {limit}")));
        }
        Ok(Some(first))
    }

    /// A positive finite number, if the key is there.
    pub(crate) fn positive_if(&self, key: &str) -> Result<Option<f32>, ModelError> {
        match self.metadata.f32(&self.full(key))? {
            Some(x) if !(x.is_finite() && x > 0.0) => Err(self.bad(key, x, "a positive number")),
            x => Ok(x),
        }
    }

    /// A base of rotary frequencies; 10000 where the file says none.
    pub(crate) fn rope_base(&self, key: &str) -> Result<f32, ModelError> {
        match self.positive_if(key)? {
            Some(base) if base <= 1.0 => Err(self.bad(key, base, "above 1")),
            base => Ok(base.unwrap_or(10000.0)),
        }
    }

    /// A positive number where 0 stands for an absent key.
    pub(crate) fn nonzero_if(&self, key: &str) -> Result<Option<f32>, ModelError> {
        match self.metadata.f32(&self.full(key))? {
            Some(0.0) => Ok(None),
            _ => self.positive_if(key),
        }
    }
}

/// The numbers that all dense decoder-only models share. The tensors are filled in later.
pub(crate) fn dense(metadata: &Metadata, architecture: &'static str, tied: bool) -> Result<ModelSpec, ModelError> {
    let keys = Keys { metadata, architecture };
    if let Some(n @ 1..) = metadata.u32(&keys.full("expert_count"))? {
        return Err(keys.unsupported(format!("has {n} experts per layer (mixture of experts)")));
    }
    decoder(&keys, tied)
}

/// The same for a model whose feed-forward blocks are mixtures of experts.
pub(crate) fn mixture(metadata: &Metadata, architecture: &'static str, tied: bool) -> Result<ModelSpec, ModelError> {
    let keys = Keys { metadata, architecture };
    let mut spec = decoder(&keys, tied)?;
    let count = keys.count("expert_count", MOST_EXPERTS)?;
    let used = keys.count("expert_used_count", MOST_EXPERTS)?;
    if used > count {
        return Err(keys.bad("expert_used_count", used, format!("at most the {count} experts there are")));
    }
    if keys.nonzero_if("expert_weights_scale")?.is_some_and(|scale| scale != 1.0) {
        return Err(keys.unsupported("scales the weights of its experts (expert_weights_scale)"));
    }
    // Old files do not say it: the experts of a token are together as wide as a dense block.
    let ffn = keys.count_if("expert_feed_forward_length", 1 << 20)?.unwrap_or((spec.ffn / used).max(1));
    spec.experts = Some(Experts { count, used, ffn });
    Ok(spec)
}

fn decoder(keys: &Keys, tied: bool) -> Result<ModelSpec, ModelError> {
    let &Keys { metadata, architecture } = keys;
    reject_variants(keys)?;
    let layers = keys.count("block_count", 4096)?;
    let width = keys.count("embedding_length", 1 << 20)?;
    let missing = |key: &str| ModelError::MissingKey { key: keys.full(key) };
    let heads = keys.count_of_layers("attention.head_count", layers, 1 << 14)?;
    let heads = heads.ok_or_else(|| missing("attention.head_count"))?;
    let kv_heads = keys.count_of_layers("attention.head_count_kv", layers, 1 << 14)?.unwrap_or(heads);
    if !heads.is_multiple_of(kv_heads) {
        return Err(keys.bad("attention.head_count_kv", kv_heads, format!("a divisor of the {heads} heads")));
    }
    let head_dim = head_dim(keys, width, heads)?;
    let ffn = keys.count_of_layers("feed_forward_length", layers, 1 << 22)?;
    let norm_eps = keys.positive_if("attention.layer_norm_rms_epsilon")?;
    Ok(ModelSpec {
        architecture,
        name: metadata.str("general.name")?.map(str::to_owned),
        layers,
        width,
        heads,
        kv_heads,
        head_dim,
        ffn: ffn.ok_or_else(|| missing("feed_forward_length"))?,
        experts: None,
        vocab: vocabulary(keys)?,
        context: keys.count("context_length", 1 << 30)?,
        norm_eps: norm_eps.ok_or_else(|| missing("attention.layer_norm_rms_epsilon"))?,
        attention_scale: keys.nonzero_if("attention.scale")?.unwrap_or(1.0 / (head_dim as f32).sqrt()),
        embedding_scale: 1.0,
        rope: rope(keys, head_dim)?,
        sliding: None,
        tied,
        tensors: BTreeMap::new(),
    })
}

/// Vocabulary size: the tokenizer's, or where the file has no tokenizer what it says.
fn vocabulary(keys: &Keys) -> Result<u32, ModelError> {
    let key = "tokenizer.ggml.tokens";
    let Some(tokens) = keys.metadata.strings(key)? else { return keys.count("vocab_size", 1 << 24) };
    match u32::try_from(tokens.len()) {
        Ok(n @ 1..=0x0100_0000) => Ok(n),
        _ => Err(ModelError::BadValue {
            key: key.to_owned(),
            value: format!("an array of {}", tokens.len()),
            expected: "one of 1 to 16777216 tokens".to_owned(),
        }),
    }
}

/// Keys that change the computation in ways that no supported architecture has.
fn reject_variants(keys: &Keys) -> Result<(), ModelError> {
    let metadata = keys.metadata;
    if metadata.bool(&keys.full("attention.causal"))? == Some(false) {
        return Err(keys.unsupported("is not causal (it makes embeddings, not text)"));
    }
    for key in ["attn_logit_softcapping", "final_logit_softcapping"] {
        if keys.nonzero_if(key)?.is_some() {
            return Err(keys.unsupported(format!("caps logits ({key})")));
        }
    }
    Ok(())
}

fn head_dim(keys: &Keys, width: u32, heads: u32) -> Result<u32, ModelError> {
    let dim = match keys.count_if("attention.key_length", 1024)? {
        Some(dim) => dim,
        None if width.is_multiple_of(heads) && width / heads <= 1024 => width / heads,
        None => {
            let expected = format!("a divisor of the width {width} where no attention.key_length is given");
            return Err(keys.bad("attention.head_count", heads, expected));
        }
    };
    if !dim.is_multiple_of(HEAD_STEP) {
        return Err(keys.unsupported(format!("has heads of {dim} elements, no multiple of {HEAD_STEP}")));
    }
    match keys.count_if("attention.value_length", 1024)? {
        Some(v) if v != dim => Err(keys.unsupported(format!("has keys of {dim} but values of {v} elements"))),
        _ => Ok(dim),
    }
}

/// The rotary embedding. A missing scaling type means linear, as in old files; a missing factor means none.
fn rope(keys: &Keys, head_dim: u32) -> Result<RopeSpec, ModelError> {
    let dims = keys.count_if("rope.dimension_count", 1024)?.unwrap_or(head_dim);
    if dims > head_dim || !dims.is_multiple_of(2) {
        return Err(keys.bad("rope.dimension_count", dims, format!("even and at most the head size {head_dim}")));
    }
    let factor = match keys.nonzero_if("rope.scaling.factor")? {
        Some(factor) => Some(factor),
        None => keys.nonzero_if("rope.scale_linear")?,
    };
    let kind = keys.metadata.str(&keys.full("rope.scaling.type"))?.unwrap_or("linear");
    let scaling = match (kind, factor) {
        ("none", _) | ("linear", None) => RopeScaling::None,
        ("linear", Some(factor)) => RopeScaling::Linear { factor },
        ("yarn", factor) => yarn(keys, factor.unwrap_or(1.0))?,
        (other, _) => return Err(keys.unsupported(format!("has rope scaling of type \"{other}\""))),
    };
    Ok(RopeSpec {
        dims,
        base: keys.rope_base("rope.freq_base")?,
        scaling,
        divisors: vec![],
        magnitude: keys.positive_if("rope.scaling.attn_factor")?.unwrap_or(1.0),
    })
}

fn yarn(keys: &Keys, factor: f32) -> Result<RopeScaling, ModelError> {
    let original = keys.count_if("rope.scaling.original_context_length", 1 << 30)?;
    Ok(RopeScaling::Yarn {
        factor,
        original_context: match original {
            Some(n) => n,
            None => keys.count("context_length", 1 << 30)?,
        },
        beta_fast: keys.positive_if("rope.scaling.yarn_beta_fast")?.unwrap_or(32.0),
        beta_slow: keys.positive_if("rope.scaling.yarn_beta_slow")?.unwrap_or(1.0),
        extrapolation: match keys.metadata.f32(&keys.full("rope.scaling.yarn_ext_factor"))? {
            Some(0.0) => 0.0,
            _ => keys.positive_if("rope.scaling.yarn_ext_factor")?.unwrap_or(1.0),
        },
        log_multiplier: keys.nonzero_if("rope.scaling.yarn_log_multiplier")?.unwrap_or(0.0),
    })
}
