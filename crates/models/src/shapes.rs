//! Shapes of published models, to be run with synthetic weights: for measuring speed without a file.
//!
//! ```text
//! "NAME[:MIX]" ─► Shape as metadata ─numbers─► ModelSpec ─Mix (a format for each tensor)─► Model + SyntheticWeights
//! ```

use crate::check::Expected;
use crate::error::list;
use crate::layers::{moe, rope};
use crate::spec::{Experts, TensorSpec};
use crate::{Architecture, Model, ModelError, ModelSpec, SyntheticWeights};
use zinc_gguf::Metadata;
use zinc_ir::quant::{self, FORMATS, QuantFormat, UNIT};

/// A model's form, as its publisher states it.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Name.
    pub name: &'static str,
    /// Architecture.
    pub architecture: &'static str,
    /// Layers.
    pub layers: u32,
    /// Width of the residual stream.
    pub width: u32,
    /// Query heads, key/value heads, elements per head.
    pub heads: [u32; 3],
    /// Width inside the (dense) feed-forward block.
    pub ffn: u32,
    /// Mixture of experts in place of that block.
    pub experts: Option<Experts>,
    /// Tokens.
    pub vocab: u32,
    /// Trained context, in tokens.
    pub context: u32,
    /// Base of the rotary frequencies.
    pub rope_base: f32,
    /// Divisor of the low rotary frequencies: llama3's rule from 8192 tokens, or linear (gemma3). 1: none.
    pub rope_factor: f32,
    /// Sliding window of five layers in six; 0: none.
    pub window: u32,
    /// No output matrix of its own.
    pub tied: bool,
}

/// Rows: name, architecture, layers, width, heads, ffn, vocabulary, context, rope base and factor, window, tied,
/// and for a mixture of experts: experts, used, width of one.
macro_rules! shapes {
    ($($name:literal $arch:ident $layers:literal $width:literal $heads:tt $ffn:literal $vocab:literal $context:literal
       $base:literal / $factor:literal $window:literal $tied:literal $(experts [$count:literal, $used:literal, $each:literal])?;)*) => {
        /// All shapes.
        pub static SHAPES: &[Shape] = &[$(Shape {
            name: $name, architecture: stringify!($arch), layers: $layers, width: $width, heads: $heads, ffn: $ffn,
            vocab: $vocab, context: $context, rope_base: $base, rope_factor: $factor, window: $window, tied: $tied,
            experts: given(&[$(Experts { count: $count, used: $used, ffn: $each })?]),
        }),*];
    };
}

const fn given(experts: &[Experts]) -> Option<Experts> {
    experts.first().copied()
}

shapes! {
    "tiny"         llama   2  256 [4, 2, 64]     512    512   4096    10000.0 / 1.0     0 false;
    "tiny-moe"     qwen3moe 2 256 [4, 2, 64]     512    512   4096    10000.0 / 1.0     0 false experts [16, 4, 256];
    "smollm2-135m" llama  30  576 [9, 3, 64]    1536  49152   8192   100000.0 / 1.0     0 true;
    "llama3.2-1b"  llama  16 2048 [32, 8, 64]   8192 128256 131072   500000.0 / 32.0    0 true;
    "llama3.2-3b"  llama  28 3072 [24, 8, 128]  8192 128256 131072   500000.0 / 32.0    0 true;
    "llama3.1-8b"  llama  32 4096 [32, 8, 128] 14336 128256 131072   500000.0 / 8.0     0 false;
    "mistral-7b"   llama  32 4096 [32, 8, 128] 14336  32768  32768  1000000.0 / 1.0     0 false;
    "qwen2.5-0.5b" qwen2  24  896 [14, 2, 64]   4864 151936  32768  1000000.0 / 1.0     0 true;
    "qwen2.5-1.5b" qwen2  28 1536 [12, 2, 128]  8960 151936  32768  1000000.0 / 1.0     0 true;
    "qwen2.5-7b"   qwen2  28 3584 [28, 4, 128] 18944 152064  32768  1000000.0 / 1.0     0 false;
    "qwen2.5-14b"  qwen2  48 5120 [40, 8, 128] 13824 152064  32768  1000000.0 / 1.0     0 false;
    "qwen2.5-32b"  qwen2  64 5120 [40, 8, 128] 27648 152064  32768  1000000.0 / 1.0     0 false;
    "qwen3-0.6b"   qwen3  28 1024 [16, 8, 128]  3072 151936  40960  1000000.0 / 1.0     0 true;
    "qwen3-8b"     qwen3  36 4096 [32, 8, 128] 12288 151936  40960  1000000.0 / 1.0     0 false;
    "qwen3-32b"    qwen3  64 5120 [64, 8, 128] 25600 151936  40960  1000000.0 / 1.0     0 false;
    "qwen3-30b-a3b" qwen3moe 48 2048 [32, 4, 128] 6144 151936 40960 1000000.0 / 1.0     0 false experts [128, 8, 768];
    "gemma3-270m"  gemma3 18  640 [4, 1, 256]   2048 262144  32768  1000000.0 / 1.0   512 true;
    "gemma3-1b"    gemma3 26 1152 [4, 1, 256]   6912 262144  32768  1000000.0 / 1.0   512 true;
    "gemma3-4b"    gemma3 34 2560 [8, 4, 256]  10240 262208 131072  1000000.0 / 8.0  1024 true;
    "gemma3-27b"   gemma3 62 5376 [32, 16, 128] 21504 262208 131072 1000000.0 / 8.0  1024 true;
}

/// A mix of formats, as llama-quantize makes it. The name of a format is a mix too: all matrices in that format.
#[derive(Debug)]
pub struct Mix {
    /// Name, as in file names.
    pub name: &'static str,
    base: &'static str,
    /// Formats of matrices that the mix treats better in some layers; nothing: `base`.
    better: fn(part: Part, layer: u32, layers: u32) -> Option<&'static str>,
    /// Format of the output matrix (the embedding table, where it is both).
    output: &'static str,
}

/// A matrix of a layer that mixes treat better than the others.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Part {
    /// Attention values.
    Values,
    /// The way back from the attention.
    Back,
    /// The way back from the feed-forward block.
    Down,
}

/// All mixes.
pub static MIXES: &[Mix] = &[
    Mix { name: "q4_k_m", base: "Q4_K", better: outer_and_each_third, output: "Q6_K" },
    Mix { name: "q4_k_s", base: "Q4_K", better: first, output: "Q6_K" },
    Mix { name: "q5_k_m", base: "Q5_K", better: outer_and_each_third, output: "Q6_K" },
    Mix { name: "q5_k_s", base: "Q5_K", better: |_, _, _| None, output: "Q6_K" },
    Mix { name: "iq3_m", base: "IQ3_S", better: iq3_m, output: "Q6_K" },
    Mix { name: "q3_k_m", base: "Q3_K", better: q3_k_m, output: "Q6_K" },
];

/// Values and the way down of the first eighth of the layers, the last, and every third between.
fn outer_and_each_third(part: Part, i: u32, n: u32) -> Option<&'static str> {
    let layer = i < n / 8 || i >= 7 * n / 8 || (i - n / 8) % 3 == 2;
    (part != Part::Back && layer).then_some("Q6_K")
}

/// Values of the first four layers, the way down of the first eighth.
fn first(part: Part, i: u32, n: u32) -> Option<&'static str> {
    let better = match part {
        Part::Values => i < 4,
        Part::Down => i < n / 8,
        Part::Back => false,
    };
    better.then_some("Q5_K")
}

/// All three in Q4_K; values of the first two layers and the way down of the first sixteenth in Q5_K.
fn q3_k_m(part: Part, i: u32, n: u32) -> Option<&'static str> {
    let best = match part {
        Part::Values => i < 2,
        Part::Down => i < n / 16,
        Part::Back => false,
    };
    Some(if best { "Q5_K" } else { "Q4_K" })
}

/// Both attention matrices and the way down of the first eighth of the layers.
fn iq3_m(part: Part, i: u32, n: u32) -> Option<&'static str> {
    (part != Part::Down || i < n / 8).then_some("Q4_K")
}

impl Mix {
    /// Format name of a matrix.
    fn pick(&self, spec: &ModelSpec, tensor: &str) -> &'static str {
        if tensor == "output.weight" || (spec.tied && tensor == "token_embd.weight") {
            return self.output;
        }
        let parts = [
            ("attn_v", Part::Values),
            ("attn_output", Part::Back),
            ("ffn_down", Part::Down),
            ("ffn_down_exps", Part::Down),
        ];
        let mut words = tensor.split('.').skip(1);
        let layer = words.next().and_then(|i| i.parse().ok()).unwrap_or(0);
        let name = words.next().unwrap_or_default();
        let part = parts.into_iter().find(|p| p.0 == name);
        part.and_then(|(_, part)| (self.better)(part, layer, spec.layers)).unwrap_or(self.base)
    }
}

/// A model of the shape `NAME` or `NAME:MIX` with synthetic weights; MIX is one of [`MIXES`] or a format of
/// [`zinc_ir::quant::FORMATS`], `q4_k_m` if not given. `layers` keeps only so many layers.
///
/// # Errors
/// [`ModelError::UnknownShape`], [`ModelError::UnknownMix`] or [`ModelError::LayerCount`], which list what there is;
/// [`ModelError::TensorTooLarge`] for F32 tables of some shapes.
pub fn synthetic(shape: &str, layers: Option<u32>) -> Result<(Model, SyntheticWeights), ModelError> {
    let (name, mix) = shape.split_once(':').unwrap_or((shape, "q4_k_m"));
    let found = SHAPES.iter().find(|s| s.name.eq_ignore_ascii_case(name));
    let shape = found.ok_or_else(|| ModelError::UnknownShape {
        found: name.to_owned(),
        known: list(SHAPES.iter().map(|s| s.name)),
    })?;
    let layers = layers.unwrap_or(shape.layers);
    if layers == 0 || layers > shape.layers {
        let (shape, has) = (shape.name.to_owned(), shape.layers);
        return Err(ModelError::LayerCount { shape, has, asked: layers });
    }
    let architecture = Architecture::by_name(shape.architecture)?;
    let mut spec = (architecture.numbers)(&shape.metadata(layers, mix), shape.tied)?;
    if shape.architecture == "llama" && shape.rope_factor != 1.0 {
        spec.rope.divisors = rope::llama3_divisors(spec.rope.dims, spec.rope.base, shape.rope_factor as f64, 8192.0);
    }
    for e in (architecture.tensors)(&spec).into_iter().filter(|e| !e.optional) {
        let whole = e.vector || e.name.ends_with(moe::ROUTER);
        let format = if whole { quant::F32 } else { format(mix, &spec, &e)? };
        let tensor = TensorSpec { rows: e.rows, cols: e.cols, format };
        if tensor.bytes() > u32::MAX as u64 {
            return Err(ModelError::TensorTooLarge { name: e.name, bytes: tensor.bytes() });
        }
        spec.tensors.insert(e.name, tensor);
    }
    let graph = architecture.graph(&spec);
    let weights = SyntheticWeights::new(&graph, 0);
    Ok((Model { spec, graph }, weights))
}

/// The format of a matrix. Rows that are not whole blocks of 256 take another format, as in llama-quantize.
fn format(mix: &str, spec: &ModelSpec, e: &Expected) -> Result<&'static QuantFormat, ModelError> {
    let row = MIXES.iter().find(|m| m.name.eq_ignore_ascii_case(mix));
    let format = quant::by_name(row.map_or(mix, |row| row.pick(spec, &e.name)));
    let format = format.ok_or_else(|| ModelError::UnknownMix {
        found: mix.to_owned(),
        known: list(MIXES.iter().map(|m| m.name).chain(FORMATS.iter().map(|f| f.name))),
    })?;
    if e.cols.is_multiple_of(format.block_elems.max(UNIT)) {
        return Ok(format);
    }
    let instead = match format.name {
        "Q3_K" | "IQ3_XXS" | "IQ3_S" | "IQ4_XS" => "IQ4_NL",
        "Q4_K" => "Q5_0",
        "Q5_K" => "Q5_1",
        _ => "Q8_0",
    };
    let other = quant::by_name(instead).filter(|f| e.cols.is_multiple_of(f.block_elems));
    let (name, cols, group) = (e.name.clone(), e.cols, format.block_elems);
    other.ok_or(ModelError::RowLength { name, cols, format: format.name, group })
}

impl Shape {
    /// The metadata that a file of this shape would have.
    fn metadata(&self, layers: u32, mix: &str) -> Metadata {
        let [heads, kv_heads, head_dim] = self.heads;
        let mut metadata = Metadata::new();
        metadata.insert("general.name", format!("{}:{}", self.name, mix.to_ascii_lowercase()));
        let mut set = |key: &str, value: u32| metadata.insert(format!("{}.{key}", self.architecture), value);
        set("block_count", layers);
        set("embedding_length", self.width);
        set("attention.head_count", heads);
        set("attention.head_count_kv", kv_heads);
        set("attention.key_length", head_dim);
        set("feed_forward_length", self.ffn);
        set("vocab_size", self.vocab);
        set("context_length", self.context);
        set("attention.sliding_window", self.window);
        if let Some(e) = self.experts {
            set("expert_count", e.count);
            set("expert_used_count", e.used);
            set("expert_feed_forward_length", e.ffn);
        }
        let mut set = |key: &str, value: f32| metadata.insert(format!("{}.{key}", self.architecture), value);
        set("attention.layer_norm_rms_epsilon", if self.architecture == "llama" { 1e-5 } else { 1e-6 });
        set("rope.freq_base", self.rope_base);
        if self.architecture != "llama" && self.rope_factor != 1.0 {
            set("rope.scaling.factor", self.rope_factor);
        }
        metadata
    }
}
