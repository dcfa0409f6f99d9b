//! The thread that owns the engine.
//!
//! ```text
//! handlers ─Command─► [ submit, cancel ─► Engine.step_into ─► events ] ─Update─► one channel per request
//! ```
//!
//! The engine is not asynchronous, and nothing that a client does may hold it. So channels to requests have room for all
//! that a request can ever produce: sending never waits. A request whose receiver is gone is cancelled before the next
//! step.

use crate::app::Shared;
use crate::generation::Generation;
use crate::keys::Charge;
use crate::metrics::{Metrics, Outcome};
use crate::pace::Pace;
use crate::pooling::Pooled;
use crate::reasoning::Guide;
use crate::recovery::{Lost, Recovery};
use crate::score::{Scored, score};
use std::collections::HashMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::mpsc::Sender;
use zinc_engine::{Engine, EngineError, Event, Finish, Load, Request, Sampling, SequenceId};

/// Time between two looks at how busy the engine is, while as many are being answered.
const LOOK: Duration = Duration::from_millis(50);

/// Pause where pages are to be kept on disk and the disk is busy.
const BUSY: Duration = Duration::from_millis(2);
/// Time that pages have to be kept when the server ends.
const LAST_PAGES: Duration = Duration::from_secs(3);

/// Tells the device's power.
pub struct Power(Box<dyn Fn() -> Option<f32> + Send>);

impl Power {
    /// Takes what gives the power now, in watts, without waiting for anything; `None` while it is not known.
    pub fn new(watts: impl Fn() -> Option<f32> + Send + 'static) -> Power {
        Power(Box::new(watts))
    }

    fn watts(&self) -> Option<f32> {
        (self.0)()
    }
}

impl std::fmt::Debug for Power {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Power")
    }
}

/// Names a request for the runner.
pub(crate) type RequestNumber = u64;

/// What handlers ask of the runner.
pub(crate) enum Command {
    /// Generate, and send what comes of it.
    Generate {
        number: RequestNumber,
        generation: Box<Generation>,
        /// Tokens that end generation.
        end_tokens: Arc<[u32]>,
        arrived: Instant,
        charge: Arc<Charge>,
        updates: Sender<Update>,
    },
    /// This choice has had its stop string.
    Stop { number: RequestNumber, choice: usize },
    /// End everything; the thread returns.
    End,
}

/// What came of a choice.
#[derive(Debug)]
pub(crate) struct Update {
    pub(crate) choice: usize,
    pub(crate) what: What,
}

#[derive(Debug)]
pub(crate) enum What {
    /// It runs since then; so many tokens of its prompt need not be computed.
    Started { cached: u32, began: Instant },
    /// Log-probabilities of the prompt's tokens from the second on; comes before the first token, if asked for.
    Prompt(Vec<Scored>),
    /// The prompt's embedding, not of length 1 yet.
    Embedding(Vec<f32>),
    /// The next token.
    Token(u32),
    /// The same with log-probabilities.
    Scored(Scored),
    /// It has ended.
    Finished(Finish),
    /// It ended with an error.
    Failed(Failure),
}

/// Why a request came to nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// It does not fit.
    Context { needed: u64, prompt: u64, predict: u64, available: u64 },
    /// It makes no sense to the engine.
    Invalid(String),
    /// The engine failed.
    Engine(String),
    /// The device was lost, and does not come back.
    Lost(String),
    /// The server ends.
    Ending,
}

/// How the engine is doing, as others see it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Snapshot {
    pub(crate) load: Load,
    pub(crate) preemptions: u64,
    /// One for each sequence that the engine has.
    pub(crate) slots: Vec<Slot>,
    /// The device is lost.
    pub(crate) lost: Option<Lost>,
}

/// A sequence, as `/slots` shows it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slot {
    pub(crate) number: RequestNumber,
    pub(crate) prompt: usize,
    pub(crate) generated: usize,
    pub(crate) started: bool,
}

/// A sequence and whom it is for.
struct Live {
    number: RequestNumber,
    choice: usize,
    /// The first answer to its prompt: what the prompt costs is on its bill.
    first_of_prompt: bool,
    charge: Arc<Charge>,
    /// Steps of the engine when it came.
    steps: u64,
    prompt: Arc<[u32]>,
    logprobs: Option<usize>,
    arrived: Instant,
    started: Option<Instant>,
    first: Option<Instant>,
    last: Instant,
    generated: usize,
    /// Log-probabilities of the prompt's tokens, until all are there.
    prompt_scores: Vec<Scored>,
    /// Logits that the next token is chosen from.
    logits: Option<Vec<f32>>,
    /// Hidden states so far, if an embedding is wanted.
    pooled: Option<Pooled>,
    updates: Sender<Update>,
}

/// Owns the engine.
pub(crate) struct Runner {
    engine: Engine,
    commands: Receiver<Command>,
    metrics: Arc<Metrics>,
    pace: Arc<Pace>,
    snapshot: Arc<Mutex<Snapshot>>,
    power: Option<Power>,
    /// Since when the device's time is nobody's yet.
    unbilled: Instant,
    live: HashMap<SequenceId, Live>,
    /// When others were last told how busy the engine is, and with how many.
    looked: (Instant, usize),
    recovery: Recovery,
    lost: Option<Lost>,
}

impl Runner {
    pub(crate) fn new(
        mut engine: Engine,
        recovery: Recovery,
        power: Option<Power>,
        commands: Receiver<Command>,
        shared: Shared,
    ) -> Runner {
        // Requests of all sizes come and go: steps that wait for programs would be pauses for all of them. Devices that run
        // regions themselves have theirs at once.
        engine.allow_stand_ins(!engine.device().caps().native);
        let Shared { metrics, pace, snapshot } = shared;
        let (live, unbilled, lost) = (HashMap::new(), Instant::now(), None);
        let looked = (unbilled, 0);
        let mut runner =
            Runner { engine, commands, metrics, pace, snapshot, power, unbilled, live, looked, recovery, lost };
        runner.look();
        runner
    }

    /// Works until it is told to end or nobody can tell it anything any more.
    pub(crate) fn run(mut self) {
        let mut events = vec![];
        while self.take_commands() {
            self.drop_abandoned();
            // Whoever has a token of an answer finds that answer among those that run.
            self.look_if_due();
            if !self.live.is_empty() {
                self.step(&mut events);
            }
            self.look_if_due();
        }
        self.fail_all(&Failure::Ending);
        let end = Instant::now() + LAST_PAGES;
        while self.engine.has_unsaved() && Instant::now() < end {
            if !self.engine.save_page() {
                std::thread::sleep(BUSY);
            }
        }
        self.look();
    }

    /// The next command, where there is nothing to compute; pages are kept until it comes. `None` at the end.
    fn wait_for_command(&mut self) -> Option<Command> {
        while self.engine.has_unsaved() {
            let pause = if self.engine.save_page() { Duration::ZERO } else { BUSY };
            match self.commands.recv_timeout(pause) {
                Ok(command) => return Some(command),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return None,
            }
        }
        self.look();
        self.commands.recv().ok()
    }

    /// Takes what has been asked; waits for something if there is no work. False at the end.
    fn take_commands(&mut self) -> bool {
        loop {
            let command = match self.live.is_empty() {
                true => match self.wait_for_command() {
                    Some(command) => {
                        self.unbilled = Instant::now();
                        command
                    }
                    None => return false,
                },
                false => match self.commands.try_recv() {
                    Ok(command) => command,
                    Err(TryRecvError::Empty) => return true,
                    Err(TryRecvError::Disconnected) => return false,
                },
            };
            match command {
                Command::Generate { number, generation, end_tokens, arrived, charge, updates } => {
                    self.generate(number, *generation, end_tokens, arrived, (charge, updates));
                }
                Command::Stop { number, choice } => self.stop(number, choice),
                Command::End => return false,
            }
        }
    }

    /// Submits all choices of a request.
    fn generate(
        &mut self,
        number: RequestNumber,
        generation: Generation,
        end_tokens: Arc<[u32]>,
        arrived: Instant,
        (charge, updates): (Arc<Charge>, Sender<Update>),
    ) {
        if let Some(Lost::ForGood(why)) = &self.lost {
            send(&updates, 0, What::Failed(Failure::Lost(why.clone())));
            return;
        }
        for choice in 0..generation.choices() {
            let prompt = generation.prompts[choice / generation.n].clone();
            let seed = generation.sampling.seed.wrapping_add(choice as u64);
            // What is asked of a prompt's logits: none, those of its last token, or those of all of its tokens.
            let last = prompt.len().saturating_sub(1) as u32;
            let from = generation.logprobs.map(|_| if generation.echo.is_some() { 0 } else { last });
            let request = Request {
                prompt: prompt.to_vec(),
                predict: generation.predict,
                sampling: Sampling { seed, ..generation.sampling.clone() },
                end_tokens: if generation.ignore_eos { Arc::from([]) } else { end_tokens.clone() },
                logits_from: from,
                hidden_from: generation.pooling.map(|pooling| pooling.first(prompt.len())),
                split: None,
                share: generation.share,
                salt: generation.salt,
            };
            match self.engine.submit_within(request, generation.guide.clone().map(Guide::boxed)) {
                Ok(id) => {
                    self.metrics.prompt_length.observe(prompt.len() as f64);
                    let live = Live {
                        number,
                        choice,
                        first_of_prompt: choice.is_multiple_of(generation.n),
                        charge: charge.clone(),
                        steps: self.metrics.steps.get(),
                        prompt,
                        logprobs: generation.logprobs,
                        arrived,
                        started: None,
                        first: None,
                        last: arrived,
                        generated: 0,
                        prompt_scores: vec![],
                        logits: None,
                        pooled: generation.pooling.map(|_| Pooled::default()),
                        updates: updates.clone(),
                    };
                    self.live.insert(id, live);
                }
                Err(error) => {
                    send(&updates, choice, What::Failed(failure(error)));
                    return;
                }
            }
        }
    }

    /// Ends one choice of a request, which has all it wants.
    fn stop(&mut self, number: RequestNumber, choice: usize) {
        let found = self.live.iter().find(|(_, l)| l.number == number && l.choice == choice).map(|(id, _)| *id);
        if let Some(live) = found.and_then(|id| self.live.remove(&id).inspect(|_| self.engine.cancel(id))) {
            self.count(&live, Outcome::Stop);
        }
    }

    /// Cancels what nobody waits for any more.
    fn drop_abandoned(&mut self) {
        let gone: Vec<SequenceId> =
            self.live.iter().filter(|(_, l)| l.updates.is_closed()).map(|(id, _)| *id).collect();
        for id in gone {
            self.engine.cancel(id);
            if let Some(live) = self.live.remove(&id) {
                tracing::debug!(request = live.number, generated = live.generated, "abandoned");
                self.count(&live, Outcome::Abort);
            }
        }
    }

    fn step(&mut self, events: &mut Vec<Event>) {
        events.clear();
        let began = Instant::now();
        let stepped = self.engine.step_into(events, &mut |_| ());
        let now = Instant::now();
        if stepped.is_ok() {
            // Before anyone hears of it: whoever has an answer finds its steps counted.
            self.metrics.steps.add(1);
            self.count_pages();
            self.bill(now);
            self.look_at_turns(events, began);
        }
        for event in events.drain(..) {
            self.take_event(event, began, now);
        }
        match stepped {
            Ok(()) => {}
            Err(error) if error.is_device_loss() => self.revive(&error.to_string()),
            Err(error) => self.recover(&error),
        }
    }

    /// A step has failed: all is computed anew, without what has failed before.
    fn recover(&mut self, error: &EngineError) {
        self.metrics.step_errors.add(1);
        tracing::error!(%error, live = self.live.len(), "a step failed");
        let failure = Failure::Engine(error.to_string());
        for id in self.engine.recover() {
            if let Some(live) = self.live.remove(&id) {
                self.end(live, Outcome::Error, What::Failed(failure.clone()));
            }
        }
    }

    /// Opens the lost device again: answers go on. Where that fails, they end.
    fn revive(&mut self, loss: &str) {
        self.metrics.device_losses.add(1);
        tracing::error!(loss, live = self.live.len(), "the device is lost; opening it again");
        self.lost = Some(Lost::Recovering(loss.to_owned()));
        self.look();
        let began = Instant::now();
        let back = self.recovery.run(&mut self.engine, loss);
        // Nobody pays for that.
        self.unbilled = Instant::now();
        self.lost = back.as_ref().err().cloned().map(Lost::ForGood);
        // Before any answer ends or goes on: whoever hears of that finds the same said of the device.
        self.look();
        match back {
            Ok(()) => tracing::info!(seconds = began.elapsed().as_secs_f64(), "the device is back"),
            Err(why) => {
                tracing::error!(why, live = self.live.len(), "the device is gone for good");
                self.fail_all(&Failure::Lost(why));
            }
        }
    }

    /// Puts the time since the last step on the bills of those who had rows in this one.
    fn bill(&mut self, now: Instant) {
        let time = now - std::mem::replace(&mut self.unbilled, now);
        let watts = self.power.as_ref().and_then(Power::watts);
        let Some(ran) = self.engine.ran() else { return };
        let rows: u32 = ran.parts.iter().map(|(_, rows)| rows).sum();
        for (id, (_, mine)) in ran.sequences.iter().zip(&ran.parts) {
            if let Some(live) = self.live.get(id) {
                live.charge.worked(time.mul_f64(f64::from(*mine) / f64::from(rows.max(1))), watts);
            }
        }
    }

    /// Takes what a step that took from `began` to `now` did.
    fn take_event(&mut self, event: Event, began: Instant, now: Instant) {
        let (Event::Started { sequence, .. }
        | Event::Token { sequence, .. }
        | Event::Logits { sequence, .. }
        | Event::Hidden { sequence, .. }
        | Event::Finished { sequence, .. }) = &event;
        let id = *sequence;
        let Some(live) = self.live.get_mut(&id) else { return };
        match event {
            Event::Started { cached, .. } => {
                self.metrics.queue_steps.observe((self.metrics.steps.get() - live.steps).saturating_sub(1) as f64);
                if live.first_of_prompt {
                    live.charge.started(live.prompt.len() as u64, cached.into());
                }
                self.metrics.queue.time(began.saturating_duration_since(live.arrived));
                self.metrics.prompt_tokens.add(live.prompt.len() as u64);
                self.metrics.prefix_queries.add(live.prompt.len() as u64);
                self.metrics.prefix_hits.add(cached as u64);
                live.send(What::Started { cached, began });
            }
            Event::Logits { position, logits, .. } => live.take_logits(position as usize, logits),
            Event::Hidden { state, .. } => live.pooled.iter_mut().for_each(|pooled| pooled.add(&state)),
            Event::Token { token, .. } => {
                self.metrics.generation_tokens.add(1);
                live.charge.token();
                match live.first {
                    None => {
                        self.metrics.first_token.time(now - live.arrived);
                        self.metrics.prefill.time(now - live.started.unwrap_or(live.arrived));
                        live.first = Some(now);
                    }
                    Some(_) => self.metrics.between_tokens.time(now - live.last),
                }
                live.last = now;
                live.take_token(token);
            }
            Event::Finished { reason, .. } => {
                let reason = live.embedding().map_or(reason, |there| if there { reason } else { Finish::NoNumbers });
                let outcome = match reason {
                    Finish::EndToken(_) => Outcome::Stop,
                    Finish::Length | Finish::ContextFull { .. } => Outcome::Length,
                    Finish::NoNumbers | Finish::NoneAllowed => Outcome::Error,
                };
                if let Some(live) = self.live.remove(&id) {
                    self.end(live, outcome, What::Finished(reason));
                }
            }
        }
    }

    /// Counts an answer that has ended, and says how it did. What it held is free by then, also if nobody reads that.
    fn end(&self, live: Live, outcome: Outcome, how: What) {
        self.count(&live, outcome);
        let Live { updates, choice, charge, .. } = live;
        drop(charge);
        send(&updates, choice, how);
    }

    /// Counts an answer that has ended.
    fn count(&self, live: &Live, outcome: Outcome) {
        self.metrics.finished(outcome);
        self.pace.ended();
        if outcome == Outcome::Abort {
            return;
        }
        self.metrics.generation_length.observe(live.generated as f64);
        self.metrics.whole.time(live.arrived.elapsed());
        if let Some(first) = live.first {
            self.metrics.decode.time(live.last - first);
        }
    }

    /// Ends everything with an error.
    fn fail_all(&mut self, failure: &Failure) {
        for (id, live) in std::mem::take(&mut self.live) {
            self.engine.cancel(id);
            self.end(live, Outcome::Error, What::Failed(failure.clone()));
        }
    }

    /// Counts the pages that have gone to the disk and come from there.
    fn count_pages(&self) {
        let (kept, restored) = self.engine.kept_pages();
        self.metrics.pages_kept.raise(kept);
        self.metrics.pages_restored.raise(restored);
    }

    /// Looks if sequences have begun or ended in the step that began then.
    fn look_at_turns(&mut self, events: &[Event], began: Instant) {
        let mut turns = false;
        for event in events {
            turns |= matches!(event, Event::Started { .. } | Event::Finished { .. });
            if let Event::Started { sequence, .. } = event
                && let Some(live) = self.live.get_mut(sequence)
            {
                live.started = Some(began);
            }
        }
        if turns {
            self.look();
        }
    }

    fn look_if_due(&mut self) {
        let (when, with) = self.looked;
        if self.live.len() != with || when.elapsed() >= LOOK {
            self.look();
        }
    }

    /// Tells others how the engine is doing.
    fn look(&mut self) {
        self.looked = (Instant::now(), self.live.len());
        let mut slots: Vec<Slot> = self.live.values().map(Live::slot).collect();
        slots.sort_by_key(|slot| (!slot.started, slot.number));
        let (load, preemptions) = (self.engine.load(), self.engine.preemptions());
        self.count_pages();
        let snapshot = Snapshot { load, preemptions, slots, lost: self.lost.clone() };
        *self.snapshot.lock().unwrap_or_else(|poison| poison.into_inner()) = snapshot;
    }
}

impl Live {
    fn send(&self, what: What) {
        send(&self.updates, self.choice, what);
    }

    fn slot(&self) -> Slot {
        let (prompt, started) = (self.prompt.len(), self.started.is_some());
        Slot { number: self.number, prompt, generated: self.generated, started }
    }

    /// Logits after the token at `position`: of the prompt's next token, or of the one that comes next.
    fn take_logits(&mut self, position: usize, logits: Vec<f32>) {
        let top = self.logprobs.unwrap_or(0);
        match self.prompt.get(position + 1) {
            Some(next) => {
                self.prompt_scores.push(score(&logits, *next, top));
                if position + 2 == self.prompt.len() {
                    let scores = std::mem::take(&mut self.prompt_scores);
                    self.send(What::Prompt(scores));
                }
            }
            None => self.logits = Some(logits),
        }
    }

    /// Sends the embedding, if one is wanted: is it made of numbers?
    fn embedding(&mut self) -> Option<bool> {
        let embedding = self.pooled.take()?.mean();
        Some(embedding.map(|vector| self.send(What::Embedding(vector))).is_some())
    }

    fn take_token(&mut self, token: u32) {
        self.generated += 1;
        let what = match (self.logprobs, self.logits.take()) {
            (Some(top), Some(logits)) => What::Scored(score(&logits, token, top)),
            _ => What::Token(token),
        };
        self.send(what);
    }
}

/// Sends without waiting. The channel has room for all that a request can produce; if the receiver is gone, the sequence
/// is dropped before the next step.
fn send(updates: &Sender<Update>, choice: usize, what: What) {
    updates.try_send(Update { choice, what }).ok();
}

/// Most updates of a choice with a prompt of so many tokens and as many tokens generated.
pub(crate) fn most_updates(predict: usize) -> usize {
    // Started, the prompt's log-probabilities or its embedding, and the end.
    predict + 3
}

fn failure(error: EngineError) -> Failure {
    match error {
        EngineError::Context { needed, prompt, predict, available } => {
            Failure::Context { needed, prompt, predict, available }
        }
        error @ (EngineError::EmptyPrompt | EngineError::UnknownToken { .. } | EngineError::Sampling(_)) => {
            Failure::Invalid(error.to_string())
        }
        error => Failure::Engine(error.to_string()),
    }
}
