//! One answer: tokens from the engine become text as they come.
//!
//! ```text
//! prompt ids ─► Engine.step … ─token─► StreamDecoder ─► StopMatcher ─► show(piece)
//! ```

use crate::args::SamplingArgs;
use crate::device::Reopen;
use crate::failure::usage;
use crate::interrupt::Interrupt;
use crate::output::say;
use crate::progress::Meter;
use crate::session::{Session, act_name};
use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::{Duration, Instant};
use zinc_engine::{Engine, EngineError, Event, Finish, Request, Sampling};
use zinc_ir::device::WeightSource;
use zinc_text::{StopMatcher, StreamDecoder, TextStart, Tokenizer};

/// How to generate.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// Tokens at most; `None`: no limit but the context.
    pub(crate) predict: Option<u32>,
    /// How tokens are chosen.
    pub(crate) sampling: Sampling,
    /// Texts that end the answer.
    pub(crate) stops: Vec<String>,
    /// Do tokens that end generation not end it?
    pub(crate) ignore_eos: bool,
    /// Where the answer's text starts.
    pub(crate) start: TextStart,
}

/// Why an answer ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum End {
    /// The model chose to.
    Model,
    /// As many tokens as asked for.
    Length,
    /// The context is full.
    ContextFull(u32),
    /// One of the stop strings.
    Stop(String),
    /// Ctrl-C.
    Interrupted,
}

/// Tokens and time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Timing {
    /// Tokens of the prompt.
    pub(crate) prompt_tokens: usize,
    /// Time until the first token was there, without compiling.
    pub(crate) prompt: Duration,
    /// Tokens generated.
    pub(crate) generated: usize,
    /// Time from the first token to the last, without compiling.
    pub(crate) generation: Duration,
    /// Time for plans and kernels.
    pub(crate) compile: Duration,
}

/// What came of a prompt.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    /// Its text, without what the stop string cut off.
    pub(crate) text: String,
    /// Its token ids, end tokens excluded.
    pub(crate) tokens: Vec<u32>,
    /// Why it ended.
    pub(crate) end: End,
    /// How long it took.
    pub(crate) timing: Timing,
}

impl Settings {
    /// What the arguments ask for, of an answer that begins a text. To be called first: what is wrong with the arguments
    /// should not wait for a model to load.
    pub(crate) fn new(arguments: &SamplingArgs) -> Result<Settings> {
        let (sampling, stops) = (arguments.sampling(), arguments.stop.clone());
        sampling.check().map_err(|error| usage(error.to_string()))?;
        StopMatcher::new(stops.clone()).map_err(|error| usage(error.to_string()))?;
        let (predict, ignore_eos) = (arguments.limit(), arguments.ignore_eos);
        Ok(Settings { predict, sampling, stops, ignore_eos, start: TextStart::Beginning })
    }
}

impl Timing {
    fn rate(tokens: usize, time: Duration) -> f64 {
        if time.is_zero() { 0.0 } else { tokens as f64 / time.as_secs_f64() }
    }

    /// Prompt tokens per second.
    pub(crate) fn prompt_rate(&self) -> f64 {
        Timing::rate(self.prompt_tokens, self.prompt)
    }

    /// Generated tokens per second; the first one belongs to the prompt.
    pub(crate) fn generation_rate(&self) -> f64 {
        Timing::rate(self.generated.saturating_sub(1), self.generation)
    }

    /// For programs.
    pub(crate) fn json(&self) -> Value {
        json!({
            "prompt_tokens": self.prompt_tokens,
            "prompt_seconds": self.prompt.as_secs_f64(),
            "prompt_tokens_per_second": self.prompt_rate(),
            "generated_tokens": self.generated,
            "generation_seconds": self.generation.as_secs_f64(),
            "generation_tokens_per_second": self.generation_rate(),
            "compile_seconds": self.compile.as_secs_f64(),
        })
    }
}

impl End {
    /// For programs.
    pub(crate) fn json(&self) -> Value {
        match self {
            End::Model => json!("end_token"),
            End::Length => json!("length"),
            End::ContextFull(_) => json!("context_full"),
            End::Stop(_) => json!("stop"),
            End::Interrupted => json!("interrupted"),
        }
    }
}

/// One line about speed for people, on stderr.
pub(crate) fn print_speed(session: &Session, timing: &Timing) {
    let compile = match timing.compile.as_secs_f64() {
        seconds if seconds >= 0.05 => format!(", compile {seconds:.2} s"),
        _ => String::new(),
    };
    say!(
        "prompt: {} tokens, {:.1} tokens/s | generation: {} tokens, {:.1} tokens/s | load {:.2} s{compile} | act {}, kv {}",
        timing.prompt_tokens,
        timing.prompt_rate(),
        timing.generated,
        timing.generation_rate(),
        session.load_time.as_secs_f64(),
        act_name(session.act),
        session.kv,
    );
}

/// Decodes tokens to text, watching for stop strings.
struct Reader<'a> {
    decoder: StreamDecoder<&'a Tokenizer>,
    matcher: StopMatcher,
    stops: &'a [String],
    text: String,
}

impl Reader<'_> {
    /// Takes a piece of text; shows what is certain, and gives the stop string if one is whole.
    fn take(&mut self, piece: &str, show: &mut dyn FnMut(&str) -> Result<()>) -> Result<Option<String>> {
        let stopped = self.matcher.push(piece);
        self.text.push_str(&stopped.text);
        show(&stopped.text)?;
        Ok(stopped.stop.and_then(|i| self.stops.get(i).cloned()))
    }

    /// Takes what is held back.
    fn finish(&mut self, show: &mut dyn FnMut(&str) -> Result<()>) -> Result<()> {
        let last = self.decoder.finish();
        self.take(&last, show)?;
        let rest = self.matcher.finish();
        self.text.push_str(&rest);
        show(&rest)
    }
}

/// Generates an answer, handing each piece of text to `show`.
pub(crate) fn generate(
    session: &mut Session,
    prompt: Vec<u32>,
    settings: &Settings,
    interrupt: &Interrupt,
    show: &mut dyn FnMut(&str) -> Result<()>,
) -> Result<Answer> {
    let end_tokens: Arc<[u32]> = match settings.ignore_eos {
        true => Arc::from([]),
        false => session.tokenizer.end_of_generation_ids().collect(),
    };
    let mut timing = Timing { prompt_tokens: prompt.len(), ..Timing::default() };
    let sampling = settings.sampling.clone();
    let request = Request { prompt, predict: settings.predict, sampling, end_tokens, ..Request::default() };
    let matcher = StopMatcher::new(settings.stops.clone())?;
    let id = session.engine.submit(request)?;
    let mut reader = Reader {
        decoder: StreamDecoder::new(&session.tokenizer, settings.start, false),
        matcher,
        stops: &settings.stops,
        text: String::new(),
    };
    let spare = Spare { reopen: &mut session.reopen, weights: session.source.weights.as_ref(), used: false };
    let result = read_on(&mut session.engine, spare, &mut reader, &mut timing, interrupt, show);
    session.engine.cancel(id);
    let (tokens, end) = result?;
    reader.finish(show)?;
    Ok(Answer { text: reader.text, tokens, end, timing })
}

/// A device for the case that the one in use is lost; good for once an answer.
struct Spare<'a> {
    reopen: &'a mut Reopen,
    weights: &'a dyn WeightSource,
    used: bool,
}

impl Spare<'_> {
    /// Has the engine go on after this error, if a lost device is all there is to it.
    fn recover(&mut self, engine: &mut Engine, error: EngineError) -> Result<()> {
        if !error.is_device_loss() {
            return Err(error.into());
        }
        if std::mem::replace(&mut self.used, true) {
            return Err(error)
                .context("the device was lost again soon after it had been opened anew; the system's log may say why");
        }
        say!("warning: {error}; opening it again, the answer goes on");
        let mut meter = Meter::new();
        let recovered = engine.replace_device(self.reopen, self.weights, &mut |p| meter.device(p));
        meter.clear();
        recovered.with_context(|| error.to_string())
    }
}

/// Steps until the answer ends; gives its tokens and why it ended.
fn read_on(
    engine: &mut Engine,
    mut spare: Spare<'_>,
    reader: &mut Reader<'_>,
    timing: &mut Timing,
    interrupt: &Interrupt,
    show: &mut dyn FnMut(&str) -> Result<()>,
) -> Result<(Vec<u32>, End)> {
    let mut tokens = vec![];
    let mut events = vec![];
    let mut meter = Meter::new();
    loop {
        let (before, known) = (Instant::now(), engine.programs());
        let prepared = engine.prepare_step(&mut |p| meter.device(p));
        meter.clear();
        let start = if engine.programs() > known { Instant::now() } else { before };
        timing.compile += start - before;
        if let Err(error) = prepared.and_then(|_| engine.step_into(&mut events, &mut |_| ())) {
            spare.recover(engine, error)?;
            continue;
        }
        let spent = if tokens.is_empty() { &mut timing.prompt } else { &mut timing.generation };
        *spent += start.elapsed();
        let mut end = None;
        for event in events.drain(..) {
            match event {
                Event::Token { token, .. } => {
                    tokens.push(token);
                    let piece = reader.decoder.push(token)?;
                    end = end.or(reader.take(&piece, show)?.map(End::Stop));
                }
                Event::Finished { reason, .. } => end = end.or(Some(ended(reason)?)),
                Event::Started { .. } | Event::Logits { .. } | Event::Hidden { .. } => {}
            }
        }
        if interrupt.take() {
            end = end.or(Some(End::Interrupted));
        }
        timing.generated = tokens.len();
        if let Some(end) = end {
            return Ok((tokens, end));
        }
    }
}

fn ended(reason: Finish) -> Result<End> {
    Ok(match reason {
        Finish::EndToken(_) => End::Model,
        Finish::Length => End::Length,
        Finish::ContextFull { tokens } => End::ContextFull(tokens),
        // Only sequences with a constraint, which this command has none of.
        Finish::NoneAllowed => End::Model,
        Finish::NoNumbers => bail!("the model gave no numbers as logits; the file may be damaged (see `zinc inspect`)"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::ModelArgs;
    use crate::source::Source;
    use zinc_conformance::{Fuse, LosingDevice};
    use zinc_cpu::CpuDevice;
    use zinc_engine::Options;
    use zinc_ir::device::Device;
    use zinc_ir::plan::{ActPrecision, KvType};

    /// A tiny model on a device that is lost when the fuse burns, each time after as many calls again.
    fn session(fuse: &Fuse, again: Option<u32>) -> Session {
        let path = zinc_conformance::data("arch/llama").join("model.gguf");
        let source = Source::open(&ModelArgs { path: Some(path), ..ModelArgs::default() }, None).expect("a model");
        let shared = fuse.clone();
        let open = move || {
            again.into_iter().for_each(|calls| shared.light(calls));
            Ok(Box::new(LosingDevice::new(Box::new(CpuDevice::new(1)?), &shared)) as Box<dyn Device>)
        };
        let (mut reopen, graph): (Reopen, _) = (Box::new(open), source.model.graph.clone());
        let device = reopen().expect("a device");
        let engine =
            Engine::new(device, graph, source.weights.as_ref(), Options::default(), &mut |_| ()).expect("loads");
        Session {
            tokenizer: source.tokenizer().expect("a tokenizer"),
            source,
            engine,
            act: ActPrecision::F16,
            tuned: false,
            kv: KvType::F16.into(),
            load_time: Duration::ZERO,
            reopen,
        }
    }

    fn answer(session: &mut Session) -> Result<Answer> {
        let sampling = Sampling { temperature: 0.9, top_k: 40, seed: 3, ..Sampling::default() };
        let (stops, start) = (vec![], TextStart::Continuation);
        let settings = Settings { predict: Some(20), sampling, stops, ignore_eos: true, start };
        generate(session, vec![5, 6, 7], &settings, &Interrupt::default(), &mut |_| Ok(()))
    }

    #[test]
    fn an_answer_goes_on_after_the_device_was_lost_once() {
        let fuse = Fuse::default();
        let expected = answer(&mut session(&fuse, None)).expect("an answer");
        let mut losing = session(&fuse, None);
        for round in 1..=2 {
            fuse.light(13);
            let got = answer(&mut losing).expect("an answer all the same");
            assert_eq!((got.text, got.tokens), (expected.text.clone(), expected.tokens.clone()));
            assert_eq!(fuse.losses(), round);
        }
    }

    #[test]
    fn a_device_that_is_lost_again_ends_the_answer_with_the_reason() {
        let error = answer(&mut session(&Fuse::default(), Some(4))).expect_err("it is lost twice");
        assert!(format!("{error:#}").contains("lost again") && format!("{error:#}").contains("fuse"), "{error:#}");
    }
}
