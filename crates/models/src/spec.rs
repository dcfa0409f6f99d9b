//! What a model is, as plain data.

use std::collections::BTreeMap;
use std::fmt::{Display, Formatter, Result};
use zinc_ir::quant::QuantFormat;

/// Everything about a model but its weights. Lengths are in elements.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelSpec {
    /// Architecture, as in [`crate::ARCHITECTURES`].
    pub architecture: &'static str,
    /// Name for people (`general.name`, or the shape's), if there is one.
    pub name: Option<String>,
    /// Layers.
    pub layers: u32,
    /// Width of the residual stream.
    pub width: u32,
    /// Query heads.
    pub heads: u32,
    /// Key/value heads; divides `heads`.
    pub kv_heads: u32,
    /// Elements per head, of queries, keys and values alike.
    pub head_dim: u32,
    /// Width inside the (dense) feed-forward block.
    pub ffn: u32,
    /// The feed-forward blocks are mixtures of experts.
    pub experts: Option<Experts>,
    /// Tokens in the vocabulary.
    pub vocab: u32,
    /// Longest context the model was trained for, in tokens.
    pub context: u32,
    /// Added to the mean square in norms.
    pub norm_eps: f32,
    /// Factor on q·k.
    pub attention_scale: f32,
    /// Factor on embeddings; 1 where there is none.
    pub embedding_scale: f32,
    /// Rotary embedding (of the layers without window, where there is a window).
    pub rope: RopeSpec,
    /// Layers that see a window only.
    pub sliding: Option<Sliding>,
    /// The output matrix is the embedding table.
    pub tied: bool,
    /// The model's tensors by name.
    pub tensors: BTreeMap<String, TensorSpec>,
}

/// Mixture of experts in place of a dense feed-forward block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Experts {
    /// Experts of a layer.
    pub count: u32,
    /// Experts that a token uses.
    pub used: u32,
    /// Width inside an expert.
    pub ffn: u32,
}

/// A tensor: `rows` × `cols`, `cols` contiguous; vectors have one row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TensorSpec {
    /// Output features; those of all experts where there are several.
    pub rows: u32,
    /// Input features.
    pub cols: u32,
    /// Format.
    pub format: &'static QuantFormat,
}

/// Rotary embedding, as the metadata state it.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeSpec {
    /// Elements of a head that are rotated; the rest pass through.
    pub dims: u32,
    /// Base of the frequencies.
    pub base: f32,
    /// Stretching for contexts longer than those of the first training.
    pub scaling: RopeScaling,
    /// Divisor of each pair's frequency (llama3 scaling); empty: none.
    pub divisors: Vec<f32>,
    /// Further factor on cos and sin; 1 where there is none.
    pub magnitude: f32,
}

/// How rotary frequencies are stretched.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RopeScaling {
    /// Not.
    None,
    /// All frequencies divided by `factor`.
    Linear {
        /// Divisor.
        factor: f32,
    },
    /// YaRN (arXiv 2309.00071): low frequencies divided by `factor`, high ones kept, a ramp between.
    Yarn {
        /// Divisor.
        factor: f32,
        /// Context of the first training, in tokens.
        original_context: u32,
        /// Pairs that turn at least this often in the original context are kept.
        beta_fast: f32,
        /// Pairs that turn at most this often are divided.
        beta_slow: f32,
        /// How much of the unscaled frequency the fast pairs get back; 1 is the paper's.
        extrapolation: f32,
        /// `mscale_all_dim` of DeepSeek's variant; 0: plain.
        log_multiplier: f32,
    },
}

/// Sliding-window attention in some layers.
#[derive(Clone, Debug, PartialEq)]
pub struct Sliding {
    /// Position i sees j with i - j < window.
    pub window: u32,
    /// For every layer, whether it has the window.
    pub layers: Vec<bool>,
    /// Rotary embedding of those layers.
    pub rope: RopeSpec,
}

impl ModelSpec {
    /// Whether the model has this tensor.
    pub fn has(&self, tensor: &str) -> bool {
        self.tensors.contains_key(tensor)
    }

    /// The sliding window of a layer, if it has one.
    pub fn window(&self, layer: u32) -> Option<&Sliding> {
        self.sliding.as_ref().filter(|s| s.layers[layer as usize])
    }

    /// Number of weights.
    pub fn parameters(&self) -> u64 {
        self.tensors.values().map(|t| t.rows as u64 * t.cols as u64).sum()
    }

    /// Bytes of all weights in the file's layout.
    pub fn weight_bytes(&self) -> u64 {
        self.tensors.values().map(TensorSpec::bytes).sum()
    }

    /// Bytes of weights that one token reads: all but the embedding table (unless it is the output matrix too), and of
    /// the experts' matrices those of the chosen.
    pub fn bytes_per_token(&self) -> u64 {
        let of = |(name, tensor): (&String, &TensorSpec)| match self.experts {
            _ if name == "token_embd.weight" && !self.tied => tensor.bytes() / tensor.rows as u64,
            Some(e) if name.contains("_exps.") => tensor.bytes() / e.count as u64 * e.used as u64,
            _ => tensor.bytes(),
        };
        self.tensors.iter().map(of).sum()
    }
}

impl TensorSpec {
    /// Bytes in the file's layout.
    pub fn bytes(&self) -> u64 {
        self.rows as u64 * (self.cols / self.format.block_elems) as u64 * self.format.block_bytes as u64
    }
}

impl Display for ModelSpec {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        writeln!(f, "architecture     {}", self.architecture)?;
        if let Some(name) = &self.name {
            writeln!(f, "name             {name}")?;
        }
        writeln!(f, "layers           {}", self.layers)?;
        writeln!(f, "width            {}", self.width)?;
        writeln!(f, "heads            {} of {}, {} kv", self.heads, self.head_dim, self.kv_heads)?;
        writeln!(f, "feed-forward     {}", self.ffn)?;
        if let Some(e) = self.experts {
            writeln!(f, "experts          {} of {}, {} wide", e.used, e.count, e.ffn)?;
        }
        let tied = if self.tied { "tied" } else { "untied" };
        writeln!(f, "vocabulary       {}, {tied}", self.vocab)?;
        writeln!(f, "trained context  {}", self.context)?;
        writeln!(f, "norm eps         {:e}", self.norm_eps)?;
        writeln!(f, "attention scale  {}", self.attention_scale)?;
        if self.embedding_scale != 1.0 {
            writeln!(f, "embedding scale  {}", self.embedding_scale)?;
        }
        writeln!(f, "rope             {}", self.rope)?;
        if let Some(s) = &self.sliding {
            let full = s.layers.iter().filter(|&&windowed| !windowed).count();
            writeln!(f, "window           {} tokens but in {full} layers", s.window)?;
            writeln!(f, "rope in window   {}", s.rope)?;
        }
        let (count, bytes) = (self.tensors.len(), self.weight_bytes());
        writeln!(f, "tensors          {count}, {} parameters, {bytes} bytes", self.parameters())?;
        writeln!(f, "read per token   {} bytes", self.bytes_per_token())?;
        let mut formats: BTreeMap<u32, (&str, usize, u64)> = BTreeMap::new();
        for t in self.tensors.values() {
            let row = formats.entry(t.format.ggml_type).or_insert((t.format.name, 0, 0));
            (row.1, row.2) = (row.1 + 1, row.2 + t.bytes());
        }
        for (name, count, bytes) in formats.values() {
            writeln!(f, "  {name:<14} {count} tensors, {bytes} bytes")?;
        }
        Ok(())
    }
}

impl Display for RopeSpec {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, "{} dims, base {}", self.dims, self.base)?;
        match self.scaling {
            RopeScaling::None => {}
            RopeScaling::Linear { factor } => write!(f, ", linear scaling {factor}")?,
            RopeScaling::Yarn { factor, original_context, .. } => {
                write!(f, ", yarn scaling {factor} from {original_context} tokens")?;
            }
        }
        if !self.divisors.is_empty() {
            write!(f, ", one divisor for each pair")?;
        }
        Ok(())
    }
}
