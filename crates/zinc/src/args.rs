//! The command line. Flags are spelled as llama.cpp spells them where it has them.

use crate::commands;
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use zinc_engine::Sampling;
use zinc_ir::plan::{ActPrecision, KvType};

/// Runs GGUF language models on your GPU through Vulkan, or on the CPU.
#[derive(Parser, Debug)]
#[command(version, max_term_width = 110, subcommand_required = true, arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Answer one prompt
    Run(commands::run::Arguments),
    /// Talk with a model
    Chat(commands::chat::Arguments),
    /// Answer clients over HTTP
    Serve(Box<commands::serve::Arguments>),
    /// Turn text into token ids
    Tokenize(commands::tokenize::Arguments),
    /// Turn token ids into text
    Detokenize(commands::detokenize::Arguments),
    /// Write the logits of every position of a token sequence
    Logits(commands::logits::Arguments),
    /// Measure how well a model predicts a text
    Perplexity(commands::perplexity::Arguments),
    /// Render a chat template
    Template(commands::template::Arguments),
    /// Show what a model file holds
    Inspect(commands::inspect::Arguments),
    /// List the devices, and why one cannot be used
    Devices(commands::devices::Arguments),
    /// Show what the compiler makes of a model
    Explain(commands::explain::Arguments),
    /// Predict speed and memory on a card that need not be here
    Predict(commands::predict::Arguments),
    /// Find the fastest kernels of a model for this GPU
    Tune(commands::tune::Arguments),
    /// Measure speed
    Bench(Box<commands::bench::Arguments>),
    /// Make API keys for `serve`, list what they may, sum up what they have used
    Keys(commands::keys::Arguments),
    /// Obtain the default model
    Pull(commands::pull::Arguments),
}

/// llama.cpp's short flags of more than one letter, which clap does not know.
const LONG_SPELLINGS: [(&str, &str); 10] = [
    ("-ub", "--ubatch-size"),
    ("-ngl", "--n-gpu-layers"),
    ("-fa", "--flash-attn"),
    ("-ctk", "--cache-type-k"),
    ("-ctv", "--cache-type-v"),
    ("-sys", "--system-prompt"),
    ("-sysf", "--system-prompt-file"),
    ("-tb", "--threads"),
    ("-np", "--parallel"),
    ("-npl", "--parallel"),
];

/// Replaces them by their long form, up to `--`.
pub(crate) fn long_spellings(arguments: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut verbatim = false;
    let replace = |argument: OsString| {
        verbatim |= argument == "--";
        let row = LONG_SPELLINGS.iter().find(|(short, _)| !verbatim && argument == *short);
        row.map_or(argument, |(_, long)| OsString::from(long))
    };
    arguments.map(replace).collect()
}

/// Which model.
#[derive(Args, Debug, Default)]
pub(crate) struct ModelArgs {
    /// Model file (GGUF); without one, SmolLM2-135M-Instruct, obtained on first use
    #[arg(value_name = "MODEL")]
    pub(crate) path: Option<PathBuf>,
    /// The same as MODEL
    #[arg(short = 'm', long = "model", value_name = "FILE", conflicts_with = "path")]
    pub(crate) model: Option<PathBuf>,
    /// No file: a model of this shape with made-up weights, such as llama3.1-8b or qwen2.5-32b:q4_k_m
    #[arg(long, value_name = "NAME[:FORMAT]", conflicts_with_all = ["path", "model"])]
    pub(crate) shape: Option<String>,
    /// Give the shape only this many layers
    #[arg(long, value_name = "N", requires = "shape", conflicts_with_all = ["path", "model"])]
    pub(crate) layers: Option<u32>,
}

/// How far inputs of matrix products may be rounded.
#[derive(Clone, Copy, ValueEnum, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    /// 32-bit floats
    F32,
    /// 16-bit floats
    F16,
    /// Blocks of 8-bit integers
    Q8,
}

impl From<Act> for ActPrecision {
    fn from(act: Act) -> ActPrecision {
        match act {
            Act::F32 => ActPrecision::F32,
            Act::F16 => ActPrecision::F16,
            Act::Q8 => ActPrecision::Q8,
        }
    }
}

/// Element type of cached keys and values.
#[derive(Clone, Copy, ValueEnum, Debug, PartialEq, Eq)]
pub(crate) enum CacheType {
    /// 32-bit floats
    F32,
    /// 16-bit floats
    F16,
    /// 8-bit integers with a scale for each 32
    #[value(name = "q8_0")]
    Q8_0,
    /// 4-bit integers with a scale for each 32
    #[value(name = "q4_0")]
    Q4_0,
}

impl From<CacheType> for KvType {
    fn from(ty: CacheType) -> KvType {
        match ty {
            CacheType::F32 => KvType::F32,
            CacheType::F16 => KvType::F16,
            CacheType::Q8_0 => KvType::Q8_0,
            CacheType::Q4_0 => KvType::Q4_0,
        }
    }
}

/// Where and how to compute.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Device")]
pub(crate) struct ComputeArgs {
    /// cpu, vulkan, vulkan:N or auto (a real GPU if there is one, else the CPU)
    #[arg(long, default_value = "auto", value_name = "DEVICE")]
    pub(crate) device: crate::device::Choice,
    /// CPU threads; 0: one per core
    #[arg(short = 't', long, default_value_t = 0, value_name = "N", overrides_with = "threads")]
    pub(crate) threads: usize,
    /// Most tokens of a conversation or text; 0: as many as the model was trained for. Default: that, but at most 4096,
    /// or what prompt and -n need
    #[arg(short = 'c', long, value_name = "N", value_parser = clap::value_parser!(u32).range(..=1 << 24))]
    pub(crate) ctx_size: Option<u32>,
    /// Most tokens per step
    #[arg(long, default_value_t = 512, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) ubatch_size: u32,
    /// Accepted for llama.cpp's sake; a step never has more than --ubatch-size tokens
    #[arg(short = 'b', long, value_name = "N", hide_short_help = true)]
    pub(crate) batch_size: Option<u32>,
    /// Accepted for llama.cpp's sake; a model is on the GPU as a whole (--device cpu: not at all)
    #[arg(long, visible_alias = "gpu-layers", value_name = "N", allow_negative_numbers = true, hide_short_help = true)]
    #[arg(value_parser = gpu_layers)]
    pub(crate) n_gpu_layers: Option<u32>,
    /// Accepted for llama.cpp's sake; attention is always computed that way
    #[arg(long, value_name = "on|auto", num_args = 0..=1, default_missing_value = "on", hide_short_help = true)]
    #[arg(value_parser = ["on", "auto", "1"])]
    pub(crate) flash_attn: Option<String>,
    /// Accepted for llama.cpp's sake; changes nothing
    #[arg(long, hide_short_help = true)]
    pub(crate) mlock: bool,
    /// Accepted for llama.cpp's sake; changes nothing
    #[arg(long, hide_short_help = true)]
    pub(crate) no_mmap: bool,
    /// Element type of cached keys
    #[arg(long, default_value = "f16", value_name = "TYPE")]
    pub(crate) cache_type_k: CacheType,
    /// Element type of cached values; without it, that of the keys
    #[arg(long, value_name = "TYPE")]
    pub(crate) cache_type_v: Option<CacheType>,
    /// How far inputs of matrix products may be rounded. Default: q8 on the CPU, f16 on Vulkan
    #[arg(long, value_name = "PRECISION")]
    pub(crate) act: Option<Act>,
    /// The same answer, to the last bit, alone and beside others, however the prompt is cut into steps. On a GPU few
    /// sequences are then slower: all steps go through the kernels for many rows
    #[arg(long)]
    pub(crate) batch_invariant: bool,
    /// Cut the kernels' work as the rules say, not as `zinc tune` found best
    #[arg(long)]
    pub(crate) no_tuned: bool,
    /// Neither read nor write compiled kernels on disk, nor what was tuned
    #[arg(long)]
    pub(crate) no_cache: bool,
    /// Say more on stderr
    #[arg(short, long)]
    pub(crate) verbose: bool,
}

/// Layers for the GPU, as llama.cpp counts them: there is no dividing a model, so none at all is another thing to say.
fn gpu_layers(text: &str) -> Result<u32, String> {
    match text.parse::<i64>() {
        Ok(0) => Err("a model is on the GPU as a whole; for none of it: --device cpu".into()),
        Ok(layers) => Ok(u32::try_from(layers).unwrap_or(u32::MAX)),
        Err(_) if matches!(text, "all" | "auto") => Ok(u32::MAX),
        Err(_) => Err("a number of layers, `all` or `auto`".into()),
    }
}

/// How tokens are chosen.
#[derive(Args, Debug)]
#[command(next_help_heading = "Sampling")]
pub(crate) struct SamplingArgs {
    /// Tokens to generate; -1: until the model ends or the context is full
    #[arg(short = 'n', long, default_value_t = -1, value_name = "N", allow_negative_numbers = true)]
    #[arg(value_parser = clap::value_parser!(i64).range(-1..=i64::from(u32::MAX)))]
    pub(crate) predict: i64,
    /// Temperature; 0: always the most likely token
    #[arg(long, default_value_t = 0.8, value_name = "T", allow_negative_numbers = true)]
    pub(crate) temp: f32,
    /// Choose among the K most likely tokens; 0: all
    #[arg(long, default_value_t = 40, value_name = "K")]
    pub(crate) top_k: u32,
    /// Choose among the most likely tokens that together have probability P; 1: all
    #[arg(long, default_value_t = 0.95, value_name = "P")]
    pub(crate) top_p: f32,
    /// Choose among tokens at least P times as likely as the best; 0: all
    #[arg(long, default_value_t = 0.05, value_name = "P")]
    pub(crate) min_p: f32,
    /// Choose among the tokens nearest the expected surprise, of probability P together; 1: all
    #[arg(long = "typical", default_value_t = 1.0, value_name = "P")]
    pub(crate) typical_p: f32,
    /// Make recent tokens less likely by this factor; 1: no
    #[arg(long, default_value_t = 1.0, value_name = "X")]
    pub(crate) repeat_penalty: f32,
    /// How many tokens are recent; -1: all
    #[arg(long, default_value_t = 64, value_name = "N", allow_negative_numbers = true)]
    pub(crate) repeat_last_n: i32,
    /// Subtract this from a recent token's logit for each time it occurs
    #[arg(long, default_value_t = 0.0, value_name = "X", allow_negative_numbers = true)]
    pub(crate) frequency_penalty: f32,
    /// Subtract this from a recent token's logit
    #[arg(long, default_value_t = 0.0, value_name = "X", allow_negative_numbers = true)]
    pub(crate) presence_penalty: f32,
    /// Seed; the same seed gives the same text. -1: a new one each time
    #[arg(short = 's', long, default_value_t = -1, value_name = "N", allow_negative_numbers = true)]
    pub(crate) seed: i64,
    /// Go on after the tokens that end an answer
    #[arg(long)]
    pub(crate) ignore_eos: bool,
    /// Stop where the model writes this text; can be given several times
    #[arg(short = 'r', long = "reverse-prompt", visible_alias = "stop", value_name = "TEXT")]
    pub(crate) stop: Vec<String>,
}

impl SamplingArgs {
    /// As the engine wants it.
    pub(crate) fn sampling(&self) -> Sampling {
        let fresh = || std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), ());
        Sampling {
            temperature: self.temp,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            typical_p: self.typical_p,
            repeat_penalty: self.repeat_penalty,
            frequency_penalty: self.frequency_penalty,
            presence_penalty: self.presence_penalty,
            repeat_last_n: self.repeat_last_n,
            bias: Arc::from([]),
            seed: if self.seed < 0 { fresh() } else { self.seed as u64 },
        }
    }

    /// Tokens to generate; `None`: no limit.
    pub(crate) fn limit(&self) -> Option<u32> {
        u32::try_from(self.predict).ok()
    }
}

/// How a conversation becomes a prompt.
#[derive(Args, Debug, Default)]
#[command(next_help_heading = "Conversation")]
pub(crate) struct TemplateArgs {
    /// Instructions that come before the conversation
    #[arg(long, value_name = "TEXT")]
    pub(crate) system_prompt: Option<String>,
    /// Read them from a file
    #[arg(long, value_name = "FILE", conflicts_with = "system_prompt")]
    pub(crate) system_prompt_file: Option<PathBuf>,
    /// Use this chat template instead of the model's: a name (chatml, gemma) or Jinja source
    #[arg(long, value_name = "NAME|JINJA")]
    pub(crate) chat_template: Option<String>,
    /// Read the chat template from a file
    #[arg(long, value_name = "FILE", conflicts_with = "chat_template")]
    pub(crate) chat_template_file: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn llama_cpp_spellings_are_understood() {
        let line = ["zinc", "run", "x.gguf", "-ub", "64", "-ctk", "f32", "-p", "a", "--", "-ub"];
        let got = long_spellings(line.iter().map(OsString::from));
        assert_eq!(got[3..7], ["--ubatch-size", "64", "--cache-type-k", "f32"].map(OsString::from));
        assert_eq!(got[10], "-ub");
    }

    #[test]
    fn what_is_not_needed_here_is_taken() {
        let parse = |line: &str| Cli::try_parse_from(long_spellings(line.split(' ').map(OsString::from))).map(|_| ());
        for line in
            ["-ngl 99", "-ngl -1", "--n-gpu-layers all", "-fa", "-fa on", "--flash-attn auto", "--mlock --no-mmap"]
        {
            assert!(parse(&format!("zinc run x.gguf -p a {line}")).is_ok(), "{line}");
        }
        for line in ["-ngl 0", "-ngl x", "-fa off"] {
            assert!(parse(&format!("zinc run x.gguf -p a {line}")).is_err(), "{line}");
        }
    }

    #[test]
    fn threads_may_be_given_twice() {
        // Zinc has one number of threads where llama.cpp has -t and -tb: the last one counts.
        let line = ["zinc", "run", "-t", "2", "-tb", "3"].iter().map(OsString::from);
        assert!(Cli::try_parse_from(long_spellings(line)).is_ok());
    }
}
