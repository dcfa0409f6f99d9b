//! The engine: one model on one device, many sequences.
//!
//! ```text
//! submit(Request) ─► Scheduler ─Batch─► plan for its bucket ─► Device.submit … Device.wait ─► Scheduler ─► events
//!                                                                  two batches in flight
//! ```
//!
//! While the device runs a batch, the next one is built and handed over, if the device itself chooses the tokens that
//! it goes on with; so the device never waits for the host. Plans are compiled when a bucket first comes up and kept;
//! where a longer context is going to come up, beside the running steps. The engine knows the device only as a
//! [`Device`]; text is the caller's business.

use crate::audit::AuditError;
use crate::batch::Batch;
use crate::bucket::Limits;
use crate::pool::KvPool;
use crate::programs::{Program, Programs};
use crate::replace::OpenError;
use crate::sampler::{MOST_CANDIDATES, Sampler, SamplingError};
use crate::scheduler::Scheduler;
use crate::sequence::{Constraint, Event, Finish, Request, Sequence, SequenceId};
use crate::store::Keeper;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use zinc_compiler::{Choices, CompileError};
use zinc_ir::device::{Device, DeviceError, MOST_IN_FLIGHT, Progress, Ticket, WeightSource};
use zinc_ir::graph::Graph;
use zinc_ir::plan::{Bucket, KvLayout, KvType, KvTypes, PAGE_TOKENS, StepOutput};

/// Logits, or hidden states, that one step may give back, in bytes.
const OUTPUT_BYTES: u64 = 64 << 20;

/// Sizes and precision of an engine.
#[derive(Clone, Debug)]
pub struct Options {
    /// Most tokens per sequence.
    pub context: u32,
    /// Element types of cached K and V.
    pub kv: KvTypes,
    /// Most token rows per step.
    pub rows: u32,
    /// Most sequences that run at the same time.
    pub sequences: u32,
    /// Pages of the KV pool; `None`: enough for all sequences at full length.
    pub pages: Option<u32>,
    /// The compiler's choices, activation precision among them.
    pub choices: Choices,
    /// Steps in flight; `None`: as many as the device gains from. Answers do not depend on it.
    pub in_flight: Option<usize>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            context: 4096,
            kv: KvType::F16.into(),
            rows: 512,
            sequences: 1,
            pages: None,
            choices: Choices::default(),
            in_flight: None,
        }
    }
}

/// Why the engine could not do something.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The request and what it is to generate do not fit.
    #[error(
        "the sequence needs {needed} tokens ({prompt} of prompt, {predict} to generate) but the context has \
         {available}; give a larger context (-c), a shorter prompt or fewer tokens to generate (-n)"
    )]
    Context {
        /// Tokens needed.
        needed: u64,
        /// Of which prompt.
        prompt: u64,
        /// Of which generated.
        predict: u64,
        /// Tokens there is room for.
        available: u64,
    },
    /// A request without tokens.
    #[error("the prompt has no tokens; give at least one")]
    EmptyPrompt,
    /// A token id that the vocabulary does not have.
    #[error("token {token} at position {position} is not in the vocabulary of {vocabulary} tokens")]
    UnknownToken {
        /// The id.
        token: u32,
        /// Its place in the prompt.
        position: usize,
        /// Size of the vocabulary.
        vocabulary: u32,
    },
    /// Hidden states and something else.
    #[error("a request for hidden states gives nothing else: its `predict` must be 0, and it has no logits")]
    HiddenOnly,
    /// A size of 0 in the options.
    #[error("{0} must be at least 1")]
    ZeroSize(&'static str),
    /// The graph has no logits: a bug in a model definition.
    #[error("the model's graph declares no logits")]
    NoLogits,
    /// A sampling setting without meaning.
    #[error(transparent)]
    Sampling(#[from] SamplingError),
    /// No plan for this model on this device.
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// There is no device in the place of a lost one.
    #[error("the device cannot be opened again: {0}")]
    Reopen(#[source] OpenError),
}

/// A step that the device has run.
#[derive(Clone, Debug)]
pub struct Ran {
    /// What ran.
    pub program: Program,
    /// Position of the first of its token rows, in the sequence it belongs to.
    pub position: u32,
    /// Its token rows.
    pub rows: u32,
    /// For each sequence in it: the tokens that it had before, and its token rows.
    pub parts: Vec<(u32, u32)>,
    /// Which sequences these are.
    pub sequences: Vec<SequenceId>,
}

/// How busy an engine is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Sequences that take part in steps.
    pub running: usize,
    /// Sequences that wait for room.
    pub waiting: usize,
    /// Pages of the KV pool that sequences hold: running ones, and those that have or get theirs from a store.
    pub pages_used: usize,
    /// Pages that are kept for later prompts, and given up when there is need.
    pub pages_kept: usize,
    /// All pages.
    pub pages: usize,
}

/// Values of a token's hidden state.
fn width(graph: &Graph) -> u32 {
    let graph = graph.until_hidden();
    graph.logits().map_or(0, |hidden| graph.node(hidden).shape.cols)
}

/// How many output rows of so many values a step of `rows` token rows may have.
fn outputs(width: u32, rows: u32) -> u32 {
    let affordable = u32::try_from(OUTPUT_BYTES / (u64::from(width).max(1) * 4)).unwrap_or(u32::MAX).max(1);
    // A power of two, so that the largest bucket is a common one too.
    (1 << affordable.ilog2()).min(rows)
}

/// Runs sequences of one model on one device.
pub struct Engine {
    pub(crate) device: Box<dyn Device>,
    pub(crate) graph: Arc<Graph>,
    pub(crate) kv: Arc<KvLayout>,
    limits: Limits,
    pub(crate) choices: Choices,
    vocabulary: u32,
    pub(crate) pool: KvPool,
    pub(crate) scheduler: Scheduler,
    /// Where full pages are kept beyond its own life.
    pub(crate) keeper: Option<Keeper>,
    pub(crate) programs: Programs,
    /// The batch of the next step, if it has been chosen already.
    chosen: Option<Batch>,
    /// Batches that the device has, oldest first.
    pub(crate) flight: VecDeque<InFlight>,
    depth: usize,
    /// The step that was waited for last.
    pub(crate) ran: Option<Ran>,
    /// Memory of earlier batches.
    spare: Vec<Batch>,
    output: StepOutput,
    next_id: u64,
}

/// A batch that the device has.
pub(crate) struct InFlight {
    ticket: Ticket,
    batch: Batch,
    program: Program,
}

impl Engine {
    /// Loads a model onto a device.
    pub fn new(
        mut device: Box<dyn Device>,
        graph: Arc<Graph>,
        weights: &dyn WeightSource,
        options: Options,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Engine, EngineError> {
        let sizes = [
            ("the context", options.context),
            ("the batch", options.rows),
            ("the number of sequences", options.sequences),
            ("the number of KV pages", options.pages.unwrap_or(1)),
        ];
        if let Some((what, _)) = sizes.iter().find(|(_, n)| *n == 0) {
            return Err(EngineError::ZeroSize(what));
        }
        let logits = graph.logits().ok_or(EngineError::NoLogits)?;
        let vocabulary = graph.node(logits).shape.cols;
        let sequences = options.sequences.min(options.rows);
        let pages = options.pages.unwrap_or(options.context.div_ceil(PAGE_TOKENS).saturating_mul(sequences));
        let outputs = |width: u32| outputs(width, options.rows).max(sequences);
        let kv = Arc::new(KvLayout::new(&graph, options.kv, pages));
        zinc_compiler::check_kv(&kv)?;
        device.load(&graph, &kv, weights, progress)?;
        let candidates = if vocabulary > MOST_CANDIDATES { MOST_CANDIDATES } else { 0 };
        let limits = Limits {
            rows: options.rows,
            outputs: outputs(vocabulary),
            hidden: outputs(width(&graph)),
            sequences,
            context: options.context,
            candidates,
        };
        let programs = Programs::new(graph.clone(), kv.clone(), options.choices.clone());
        let depth = options.in_flight.unwrap_or(device.depth()).clamp(1, MOST_IN_FLIGHT);
        Ok(Engine {
            device,
            graph,
            kv,
            limits,
            choices: options.choices,
            vocabulary,
            pool: KvPool::new(pages),
            scheduler: Scheduler::new(limits),
            keeper: None,
            programs,
            chosen: None,
            flight: VecDeque::with_capacity(MOST_IN_FLIGHT),
            depth,
            ran: None,
            spare: vec![],
            output: StepOutput::None,
            next_id: 0,
        })
    }

    /// Most tokens a sequence can have.
    pub fn context(&self) -> u32 {
        let pool = self.pool.pages() as u64 * PAGE_TOKENS as u64;
        (self.limits.context as u64).min(pool) as u32
    }

    /// Size of the vocabulary, the width of a row of logits.
    pub fn vocabulary(&self) -> u32 {
        self.vocabulary
    }

    /// Values of a token's hidden state.
    pub fn width(&self) -> u32 {
        width(&self.graph)
    }

    /// The KV cache's layout.
    pub fn kv(&self) -> &Arc<KvLayout> {
        &self.kv
    }

    /// The device.
    pub fn device(&self) -> &dyn Device {
        self.device.as_ref()
    }

    /// Is nothing left to do?
    pub fn is_idle(&self) -> bool {
        self.scheduler.is_idle() && self.restoring().next().is_none()
    }

    /// Pages of the KV pool that nobody holds, and all pages. Pages kept for later prompts count as held, see
    /// [`Engine::forget_prefixes`].
    pub fn pages(&self) -> (usize, usize) {
        (self.pool.free(), self.pool.pages())
    }

    /// How busy it is.
    pub fn load(&self) -> Load {
        let (running, waiting) = self.scheduler.sequences();
        let waiting = waiting + self.restoring().count();
        let (kept, pages) = (self.pool.idle(), self.pool.pages());
        Load { running, waiting, pages_used: pages - self.pool.free() - kept, pages_kept: kept, pages }
    }

    /// Checks that every page is where it should be: free, kept for later, or held by as many sequences as its count says,
    /// and that none that is shared is still written. Looks at everything; for tests.
    ///
    /// # Errors
    /// What is wrong: a bug.
    pub fn audit(&self) -> Result<(), AuditError> {
        self.scheduler.audit(&self.pool, self.restoring())
    }

    /// How often a sequence had to be run again because the KV pool was full.
    pub fn preemptions(&self) -> u64 {
        self.scheduler.preemptions()
    }

    /// Puts a request in the queue.
    pub fn submit(&mut self, request: Request) -> Result<SequenceId, EngineError> {
        self.submit_within(request, None)
    }

    /// As [`Engine::submit`]; what is generated follows `constraint`. Its tokens are chosen on the host: see
    /// [`Tail::Mixed`](zinc_ir::plan::Tail::Mixed).
    pub fn submit_within(
        &mut self,
        request: Request,
        constraint: Option<Box<dyn Constraint>>,
    ) -> Result<SequenceId, EngineError> {
        request.sampling.check()?;
        if request.prompt.is_empty() {
            return Err(EngineError::EmptyPrompt);
        }
        let foreign = request.prompt.iter().position(|t| *t >= self.vocabulary);
        if let Some(position) = foreign {
            let (token, vocabulary) = (request.prompt[position], self.vocabulary);
            return Err(EngineError::UnknownToken { token, position, vocabulary });
        }
        let hidden = request.hidden_from.is_some();
        if hidden && (request.predict != Some(0) || request.logits_from.is_some() || constraint.is_some()) {
            return Err(EngineError::HiddenOnly);
        }
        let (limit, limit_reason) = self.limit(&request)?;
        let prompt = request.prompt.len();
        let id = SequenceId(self.next_id);
        self.next_id += 1;
        self.enter(Sequence {
            id,
            tokens: request.prompt,
            cached: 0,
            computed: 0,
            ahead: 0,
            ahead_row: 0,
            pages: vec![],
            sampler: Sampler::new(request.sampling),
            constraint,
            end_tokens: request.end_tokens,
            samples: request.predict != Some(0),
            limit,
            limit_reason,
            next_logits: request.logits_from.or(request.hidden_from).map(|p| p as usize),
            hidden,
            split: request.split.map(|p| p as usize),
            prompt,
            salt: request.salt,
            shared: (0, 0),
            holds: false,
            suspect: false,
            started: false,
            by_host: false,
            failures: 0,
            share: request.share,
            charged: 0,
            had: 0,
        });
        Ok(id)
    }

    /// At how many tokens a request ends, and why. A token's K and V are needed only once a token follows it, so the
    /// last one may lie just beyond the context.
    fn limit(&self, request: &Request) -> Result<(usize, Finish), EngineError> {
        let (prompt, available) = (request.prompt.len() as u64, self.context() as u64);
        let predict = request.predict.unwrap_or(1) as u64;
        let run = prompt + predict.saturating_sub(1);
        if run > available {
            return Err(EngineError::Context { needed: run, prompt, predict, available });
        }
        Ok(match request.predict {
            Some(n) => ((prompt + n as u64) as usize, Finish::Length),
            None => (available as usize + 1, Finish::ContextFull { tokens: available as u32 }),
        })
    }

    /// Drops a sequence; no more events of it will come.
    pub fn cancel(&mut self, id: SequenceId) {
        if self.cancel_restoring(id) {
            return;
        }
        // A batch that was chosen but not run may contain it; choosing again loses nothing.
        self.unchoose();
        self.scheduler.cancel(id, &mut self.pool);
    }

    /// Forgets K and V kept of sequences that have ended, so that the next one is computed from its first token.
    pub fn forget_prefixes(&mut self) {
        self.scheduler.forget_prefixes(&mut self.pool);
        self.restore_anew();
    }

    /// Chooses the next step's rows and compiles their plan, so that the next [`Engine::step`] only runs. Gives the
    /// program whose results that will give, perhaps of a step that the device already has; `None` if there is nothing to
    /// do.
    pub fn prepare_step(&mut self, progress: &mut dyn FnMut(Progress)) -> Result<Option<Program>, EngineError> {
        self.choose();
        let chosen = match &self.chosen {
            Some(batch) => match self.programs.at_hand(batch.bucket, self.device.as_ref()) {
                None => Some(self.programs.prepare(batch.bucket, self.device.as_mut(), progress)?),
                there => there,
            },
            None => None,
        };
        Ok(self.flight.front().map(|f| f.program.clone()).or(chosen))
    }

    /// As [`Engine::step_into`], with the events in a vector of their own.
    pub fn step(&mut self, progress: &mut dyn FnMut(Progress)) -> Result<Vec<Event>, EngineError> {
        let mut events = vec![];
        self.step_into(&mut events, progress)?;
        Ok(events)
    }

    /// Runs a step and adds what came of it to `events`: nothing if the engine is idle, or if only parts of prompts were
    /// run. The device may be at work on the following step when this returns. After an error the same steps can be tried
    /// again, or all that led there, see [`Engine::recover`].
    pub fn step_into(
        &mut self,
        events: &mut Vec<Event>,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<(), EngineError> {
        self.restore();
        self.prepare_blaming(progress)?;
        loop {
            self.fill_device()?;
            self.look_ahead();
            self.save(false);
            let Some(oldest) = self.flight.pop_front() else { return Ok(()) };
            let waited = self.device.wait(oldest.ticket, &mut self.output);
            if let Err(error) = waited {
                self.take_back();
                self.scheduler.undo(&oldest.batch);
                self.scheduler.blame(&oldest.batch);
                return Err(error.into());
            }
            let step = &oldest.batch.step;
            let (position, rows) = (step.positions.first().copied().unwrap_or(0), step.tokens.len() as u32);
            let (mut parts, mut sequences) = self.ran.take().map_or_else(Default::default, |r| (r.parts, r.sequences));
            parts.clear();
            parts.extend(oldest.batch.parts());
            sequences.clear();
            sequences.extend(oldest.batch.sequences());
            self.ran = Some(Ran { program: oldest.program, position, rows, parts, sequences });
            // Nobody waits for a batch whose sequences have all ended before.
            let wanted = self.scheduler.has_part_of(&oldest.batch);
            if self.scheduler.finish_batch(&oldest.batch, &self.output, &mut self.pool, events) {
                self.restore_anew();
            }
            self.spare.push(oldest.batch);
            if wanted {
                return Ok(());
            }
            self.prepare_blaming(progress)?;
        }
    }

    /// Prepares a step; what it was for is to blame if that fails.
    fn prepare_blaming(&mut self, progress: &mut dyn FnMut(Progress)) -> Result<(), EngineError> {
        let prepared = self.prepare_step(progress);
        if let (Err(_), Some(batch)) = (&prepared, &self.chosen) {
            self.scheduler.blame(batch);
        }
        prepared.map(|_| ())
    }

    /// Chooses a batch if there is room on the device and enough is known.
    fn choose(&mut self) {
        let known = self.flight.back().is_none_or(|last| last.batch.can_be_followed());
        if self.chosen.is_some() || self.flight.len() >= self.depth || !known {
            return;
        }
        let mut batch = self.spare.pop().unwrap_or_else(Batch::new);
        let ahead = !self.flight.is_empty();
        match self.scheduler.next_batch(&mut self.pool, ahead, &mut batch) {
            true => self.chosen = Some(batch),
            false => self.spare.push(batch),
        }
    }

    /// Hands the chosen batch to the device, and the one after it, if its plan is there.
    fn fill_device(&mut self) -> Result<(), EngineError> {
        while let Some(batch) = &self.chosen {
            let bucket = batch.bucket;
            let Some(program) = self.programs.at_hand(bucket, self.device.as_ref()) else {
                // Its plan is for the next `prepare_step`, where progress is shown.
                self.unchoose();
                self.programs.begin(bucket, self.device.as_ref());
                return Ok(());
            };
            let submitted = self.device.submit(program.id, &batch.step);
            let ticket = submitted.inspect_err(|_| self.scheduler.blame(batch))?;
            if let Some(batch) = self.chosen.take() {
                self.flight.push_back(InFlight { ticket, batch, program });
            }
            self.choose();
        }
        Ok(())
    }

    /// Waits until the program that is being made ahead is there, or cannot be made; steps never do.
    pub fn wait_ahead(&mut self) {
        while self.programs.is_making() {
            self.programs.advance(self.device.as_mut());
            std::thread::yield_now();
        }
    }

    /// Makes the program that will be needed next, as far as the device need not stop for it.
    fn look_ahead(&mut self) {
        self.programs.advance(self.device.as_mut());
        let soon = self.scheduler.generating_soon(&self.limits);
        if let Some(bucket) = soon.filter(|bucket| !self.programs.has(*bucket))
            && self.programs.begin(bucket, self.device.as_ref())
        {
            return;
        }
        let Some(batch) = self.flight.back().map(|newest| &newest.batch) else { return };
        let Some(context) = self.limits.next_context(batch.bucket.context) else { return };
        let next = Bucket { context, ..batch.bucket };
        if !self.programs.has(next) && self.scheduler.outgrows(batch, batch.bucket.context) {
            self.programs.begin(next, self.device.as_ref());
        }
    }

    /// Takes the choice of the next batch back.
    fn unchoose(&mut self) {
        if let Some(batch) = self.chosen.take() {
            self.scheduler.undo(&batch);
            self.spare.push(batch);
        }
    }

    /// Takes back everything that the device was given and that nobody has waited for, the newest first.
    pub(crate) fn take_back(&mut self) {
        self.unchoose();
        for next in &self.flight {
            // Whatever it gives: it will be computed again.
            let _ = self.device.wait(next.ticket, &mut self.output);
        }
        while let Some(next) = self.flight.pop_back() {
            self.scheduler.undo(&next.batch);
        }
    }

    /// Compiles the plan of a bucket unless that has been done.
    pub fn prepare(&mut self, bucket: Bucket, progress: &mut dyn FnMut(Progress)) -> Result<Program, EngineError> {
        self.programs.prepare(bucket, self.device.as_mut(), progress)
    }

    /// From now on, or no longer, a larger program runs a step while the step's own is being made, if there is one: steps go
    /// on without a pause. Which program a step has then depends on time, and with it the last bits of logits, unless the
    /// choices are invariant to batches. At first, steps wait.
    pub fn allow_stand_ins(&mut self, allow: bool) {
        self.programs.stand_ins = allow;
    }

    /// Steps that the device has and that have not been waited for.
    pub fn in_flight(&self) -> usize {
        self.flight.len()
    }

    /// How many buckets have been compiled.
    pub fn programs(&self) -> usize {
        self.programs.len()
    }

    /// The step that the last [`Engine::step`] ended with: the device may be at work on others.
    pub fn ran(&self) -> Option<&Ran> {
        self.ran.as_ref()
    }

    /// Turns measuring of single launches on or off for a program; gives the times of its last run, in the plan's
    /// order, if the device can tell.
    pub fn profile(&mut self, program: &Program, on: bool) -> Option<Vec<Duration>> {
        self.device.profile(program.id, on)
    }
}
