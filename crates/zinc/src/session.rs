//! A model ready to answer: loaded onto a device, with its tokenizer.
//!
//! ```text
//! Source + device ─open─► Session { engine, tokenizer }
//! ```

use crate::args::{ComputeArgs, ModelArgs};
use crate::device::{self, Reopen};
use crate::interrupt::Interrupt;
use crate::output::say;
use crate::progress::Meter;
use crate::source::Source;
use anyhow::{Context, Result};
use std::time::{Duration, Instant};
use zinc_compiler::Choices;
use zinc_engine::{Engine, Options};
use zinc_ir::plan::{ActPrecision, KvTypes};
use zinc_text::Tokenizer;

/// Context when none is asked for, at most.
const DEFAULT_CONTEXT: u32 = 4096;

/// A loaded model.
pub(crate) struct Session {
    /// Where it came from.
    pub(crate) source: Source,
    /// Its tokenizer.
    pub(crate) tokenizer: Tokenizer,
    /// It runs here.
    pub(crate) engine: Engine,
    /// Activation precision.
    pub(crate) act: ActPrecision,
    /// Some kernels may be cut as `zinc tune` found best.
    pub(crate) tuned: bool,
    /// Types of cached K and V.
    pub(crate) kv: KvTypes,
    /// Time to open the file, the device, and to load the weights.
    pub(crate) load_time: Duration,
    /// Opens the device again, should it be lost.
    pub(crate) reopen: Reopen,
}

/// The context that a command needs where `-c` says nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Needs {
    /// The usual one.
    Usual,
    /// This one.
    Exactly(u32),
    /// Room for so many tokens, as far as the model was trained for them, and the usual one at least.
    AtLeast(u64),
}

impl Needs {
    /// Tokens of context for a model that was trained for `trained`; `None`: the usual.
    fn context(self, trained: u32) -> Option<u32> {
        match self {
            Needs::Usual => None,
            Needs::Exactly(n) => Some(n),
            Needs::AtLeast(n) => Some(u32::try_from(n).unwrap_or(trained).max(DEFAULT_CONTEXT).min(trained)),
        }
    }
}

/// A model that has been read, but not loaded.
pub(crate) struct Begun {
    /// Where it came from.
    pub(crate) source: Source,
    /// Its tokenizer.
    pub(crate) tokenizer: Tokenizer,
    start: Instant,
}

/// Name of a precision, as `--act` spells it.
pub(crate) fn act_name(act: ActPrecision) -> &'static str {
    match act {
        ActPrecision::F32 => "f32",
        ActPrecision::F16 => "f16",
        ActPrecision::Q8 => "q8",
    }
}

impl ComputeArgs {
    /// The types of cached K and V.
    pub(crate) fn kv(&self) -> KvTypes {
        let k = self.cache_type_k;
        KvTypes { k: k.into(), v: self.cache_type_v.unwrap_or(k).into() }
    }

    /// Tokens of context for a model that was trained for `trained`; `usual` where `-c` says nothing.
    pub(crate) fn context(&self, trained: u32, usual: Option<u32>) -> u32 {
        match self.ctx_size {
            Some(0) => trained,
            Some(n) => n,
            None => usual.unwrap_or(trained.min(DEFAULT_CONTEXT)),
        }
    }

    /// The activation precision: what was asked for, or what suits the kind of device.
    pub(crate) fn act(&self, is_cpu: bool) -> ActPrecision {
        match self.act {
            Some(act) => act.into(),
            None if is_cpu => ActPrecision::Q8,
            None => ActPrecision::F16,
        }
    }
}

impl Begun {
    /// Reads a model.
    pub(crate) fn new(model: &ModelArgs, interrupt: &Interrupt) -> Result<Begun> {
        let start = Instant::now();
        let source = Source::open(model, Some(interrupt))?;
        let tokenizer = source.tokenizer()?;
        Ok(Begun { source, tokenizer, start })
    }

    /// Loads it for one sequence; says on stderr which device it took and why.
    pub(crate) fn load(self, compute: &ComputeArgs, needs: Needs, interrupt: &Interrupt) -> Result<Session> {
        self.load_for(compute, needs, 1, interrupt)
    }

    /// The same for so many sequences at once, each with a context of its own.
    pub(crate) fn load_for(
        self,
        compute: &ComputeArgs,
        needs: Needs,
        sequences: u32,
        interrupt: &Interrupt,
    ) -> Result<Session> {
        let kv = compute.kv();
        let Begun { source, tokenizer, start } = self;
        let opened = device::open(compute)?;
        say!("device: {} ({})", opened.device.description(), opened.why);
        let act = compute.act(opened.is_cpu);
        let trained = source.model.spec.context;
        let context = compute.context(trained, needs.context(trained));
        if context > trained {
            say!("warning: the model was trained for {trained} tokens of context, not {context}");
        }
        let invariant = compute.batch_invariant;
        let tuned = !opened.tuned().is_empty() && !invariant;
        if tuned {
            say!("kernels are cut as `zinc tune` found best on this GPU (--no-tuned: by rule)");
        }
        let reopen = opened.reopen(compute);
        let choices = Choices { act, invariant, tuned: opened.tuned(), ..Choices::default() };
        let rows = compute.ubatch_size;
        let options = Options { context, kv, rows, sequences, choices, ..Options::default() };
        let mut meter = Meter::new();
        let mut progress = |p| {
            interrupt.exit_if_pressed();
            meter.device(p);
        };
        let graph = source.model.graph.clone();
        let engine = Engine::new(opened.device, graph, source.weights.as_ref(), options, &mut progress)
            .with_context(|| format!("cannot load {}", source.name))?;
        meter.clear();
        let session = Session { source, tokenizer, engine, act, tuned, kv, load_time: start.elapsed(), reopen };
        if compute.verbose {
            session.describe(context);
        }
        Ok(session)
    }
}

impl Session {
    /// Reads and loads a model.
    pub(crate) fn open(
        model: &ModelArgs,
        compute: &ComputeArgs,
        needs: Needs,
        interrupt: &Interrupt,
    ) -> Result<Session> {
        Begun::new(model, interrupt)?.load(compute, needs, interrupt)
    }

    fn describe(&self, context: u32) {
        let memory = self.engine.device().memory();
        let spec = &self.source.model.spec;
        say!("model: {}, {} parameters, {} layers", self.source.name, spec.parameters(), spec.layers);
        say!(
            "context: {context} tokens, K and V in {} ({} bytes per token); activations: {}",
            self.kv,
            self.engine.kv().bytes_per_token(),
            act_name(self.act)
        );
        say!("memory: {} MiB used, {} MiB available", memory.used >> 20, memory.available >> 20);
        say!("load: {:.2} s", self.load_time.as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_context_grows_with_the_need_up_to_what_the_model_was_trained_for() {
        let of = |n, trained| Needs::AtLeast(n).context(trained);
        assert_eq!(
            [of(10, 8192), of(5000, 8192), of(9000, 8192), of(1 << 40, 8192)],
            [4096, 5000, 8192, 8192].map(Some)
        );
        assert_eq!([of(10, 512), of(600, 512)], [Some(512), Some(512)]);
        assert_eq!([Needs::Usual.context(512), Needs::Exactly(600).context(512)], [None, Some(600)]);
    }
}
