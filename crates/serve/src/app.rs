//! What all handlers share: the model once it is there, the way to the runner, and how much room there is.

use crate::Config;
use crate::answer::{Answer, Line};
use crate::bodies::Bodies;
use crate::error::ApiError;
use crate::generation::Generation;
use crate::guard::Visit;
use crate::keys::{Accounts, Caller, Charge, Keys, Rules};
use crate::listener::Patience;
use crate::metrics::Metrics;
use crate::model::{Model, unix_seconds};
use crate::pace::Pace;
use crate::recovery::Lost;
use crate::room::Room;
use crate::runner::{Command, Snapshot, most_updates};
use crate::story::Story;
use crate::tls::Certificate;
use crate::trace::Tracer;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, mpsc};
use std::time::Instant;
use tokio::sync::Semaphore;
use zinc_text::TextStart;

/// A server's state.
pub(crate) struct App {
    keys: RwLock<Keys>,
    /// Whoever has asked, and what they have used.
    pub(crate) accounts: Accounts,
    /// The host it listens on, if none but this machine is to reach it.
    local: Option<String>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) pace: Arc<Pace>,
    pub(crate) certificate: Certificate,
    pub(crate) max_body: usize,
    pub(crate) bodies: Bodies,
    pub(crate) patience: Patience,
    /// Does `/metrics` tell what each key has used?
    pub(crate) key_metrics: bool,
    snapshot: Arc<Mutex<Snapshot>>,
    model: OnceLock<Arc<Model>>,
    commands: mpsc::Sender<Command>,
    /// Where spans go, if they are wanted; set once the runtime is there.
    pub(crate) tracer: OnceLock<Tracer>,
    /// For sequences that run or wait.
    room: Room,
    next: AtomicU64,
    ending: AtomicBool,
    /// The engine's thread is at its end: it says why.
    pub(crate) engine_ended: AtomicBool,
}

impl App {
    /// `local`: the host it listens on, if none but this machine is to reach it.
    pub(crate) fn new(config: &Config, local: Option<String>, shared: Shared, commands: mpsc::Sender<Command>) -> App {
        App {
            keys: RwLock::new(config.keys.clone()),
            accounts: Accounts::new(config.ledger.clone()),
            local,
            metrics: shared.metrics,
            pace: shared.pace,
            certificate: Certificate::new(config.tls.clone()),
            max_body: config.max_body,
            bodies: Bodies::new(config.max_bodies, config.max_body),
            patience: config.patience,
            key_metrics: config.key_metrics,
            snapshot: shared.snapshot,
            model: OnceLock::new(),
            commands,
            tracer: OnceLock::new(),
            room: Room::new(config.most_sequences.max(1)),
            next: AtomicU64::new(1),
            ending: AtomicBool::new(false),
            engine_ended: AtomicBool::new(false),
        }
    }

    /// The model is there.
    pub(crate) fn set_model(&self, model: Model) {
        self.model.set(Arc::new(model)).ok();
    }

    /// Whose key this is; `None`: no key came.
    pub(crate) fn caller(&self, key: Option<&str>) -> Result<Caller, ApiError> {
        let keys = self.keys.read().unwrap_or_else(PoisonError::into_inner);
        if keys.is_open() {
            return Ok(self.accounts.caller(None, self.local.is_some()));
        }
        let none = "an API key is needed, in a header `Authorization: Bearer KEY`";
        let key = key.ok_or_else(|| ApiError::unauthorized(none))?;
        let rules = keys.find(key).ok_or_else(|| ApiError::unauthorized("the API key is wrong"))?;
        match rules.expires {
            Some(end) if unix_seconds() >= end => Err(ApiError::expired()),
            _ => Ok(self.accounts.caller(Some(rules), false)),
        }
    }

    /// Do its keys have several names?
    pub(crate) fn has_several_keys(&self) -> bool {
        let keys = self.keys.read().unwrap_or_else(PoisonError::into_inner);
        keys.are_several()
    }

    /// The host that requests must name, besides this machine's usual names: nothing else protects the server.
    pub(crate) fn only_host(&self) -> Option<&str> {
        let keys = self.keys.read().unwrap_or_else(PoisonError::into_inner);
        self.local.as_deref().filter(|_| keys.is_open())
    }

    /// Takes other keys from now on. None at all are refused where there were some: a closed server stays closed.
    pub(crate) fn set_keys(&self, keys: Keys) -> bool {
        let mut current = self.keys.write().unwrap_or_else(PoisonError::into_inner);
        let opens = keys.is_open() && !current.is_open();
        if !opens {
            *current = keys;
        }
        !opens
    }

    /// From now on there are no new answers.
    pub(crate) fn end(&self) {
        self.ending.store(true, Ordering::Relaxed);
    }

    /// Ends the answers that there are.
    pub(crate) fn end_answers(&self) {
        self.commands.send(Command::End).ok();
    }

    /// The model, if it can answer. While a lost device is being opened again it can: requests wait as in a queue.
    pub(crate) fn model(&self) -> Result<Arc<Model>, ApiError> {
        if self.ending.load(Ordering::Relaxed) {
            return Err(ApiError::unavailable("the server is shutting down"));
        }
        let loading = || ApiError::unavailable("the model is being loaded; try again soon");
        let model = self.model.get().ok_or_else(loading)?;
        match self.snapshot().lost {
            Some(Lost::ForGood(why)) => Err(ApiError::lost(&why)),
            Some(Lost::Recovering(_)) | None => Ok(model.clone()),
        }
    }

    /// The model, whether or not it can answer.
    pub(crate) fn loaded(&self) -> Option<&Arc<Model>> {
        self.model.get()
    }

    /// How the engine is doing.
    pub(crate) fn snapshot(&self) -> Snapshot {
        self.snapshot.lock().unwrap_or_else(|poison| poison.into_inner()).clone()
    }

    /// Is the queue full?
    pub(crate) fn is_full(&self) -> bool {
        self.room.is_full()
    }

    /// Does a prompt of so many tokens fit, and what is asked for?
    pub(crate) fn fits(&self, model: &Model, prompt: usize, predict: Option<u32>) -> Result<(), ApiError> {
        room_for(model, prompt, predict).map(|_| ())
    }

    /// A number that no other request has.
    pub(crate) fn next_number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Admits a request and hands it to the engine.
    pub(crate) fn generate(
        &self,
        visit: &Visit,
        model: &Model,
        generation: Generation,
        start: TextStart,
    ) -> Result<Answer, ApiError> {
        generation.prompts.iter().try_for_each(|prompt| self.fits(model, prompt.len(), generation.predict))?;
        let choices = generation.choices();
        let charge = self.admit(visit, choices, choices, generation.tokens())?;
        self.submit(visit, model, generation, start, charge)
    }

    /// Admits a request of `least` to `wanted` sequences at the same time, and of so many tokens: they are its, and it has
    /// room, until nobody holds the charge any more.
    pub(crate) fn admit(
        &self,
        visit: &Visit,
        least: usize,
        wanted: usize,
        tokens: u64,
    ) -> Result<Arc<Charge>, ApiError> {
        let most = self.room.most();
        if least > most {
            let message = format!("{least} answers are asked for, but this server takes {most} at most");
            return Err(ApiError::parameter("n", message));
        }
        let share = self.share(&visit.caller.rules);
        let seats = self.room.enter(visit.caller.account.number, share, least, wanted).ok_or_else(|| {
            self.metrics.shed.add(1);
            // When a quarter of all that run and wait have ended, there is room for others too.
            ApiError::overloaded(self.pace.wait(least.max(most / 4)))
        })?;
        let ledger = self.accounts.ledger().cloned();
        let charge = Charge::new(&visit.caller, ledger, visit.request.to_string(), seats, least, tokens);
        charge.map(Arc::new).map_err(|refusal| ApiError::refused(&refusal, &self.pace))
    }

    /// Hands a request that has been admitted, or a part of it, to the engine.
    pub(crate) fn submit(
        &self,
        visit: &Visit,
        model: &Model,
        mut generation: Generation,
        start: TextStart,
        charge: Arc<Charge>,
    ) -> Result<Answer, ApiError> {
        let arrived = Instant::now();
        generation.share = visit.caller.share(generation.share.priority);
        generation.salt = visit.caller.salt(generation.salt);
        let mut updates = 0;
        for prompt in &generation.prompts {
            updates += most_updates(room_for(model, prompt.len(), generation.predict)?) * generation.n;
        }
        let (sender, receiver) = tokio::sync::mpsc::channel(updates.clamp(1, Semaphore::MAX_PERMITS));
        let number = self.next_number();
        let story = Story::new(visit, model, &generation, self.tracer.get().cloned());
        let line = Line { number, updates: receiver, commands: self.commands.clone(), story };
        let answer = Answer::new(model, &generation, start, line)?;
        let end_tokens = model.end_tokens.clone();
        let generation = Box::new(generation);
        let command = Command::Generate { number, generation, end_tokens, arrived, charge, updates: sender };
        self.commands.send(command).map_err(|_| ApiError::unavailable("the engine has ended"))?;
        Ok(answer)
    }

    /// What these rules give of all room, if everyone who has a key wants some.
    fn share(&self, rules: &Rules) -> usize {
        let keys = self.keys.read().unwrap_or_else(PoisonError::into_inner);
        let all = keys.weights().max(u64::from(rules.weight));
        (self.room.most() as u64 * u64::from(rules.weight)).div_ceil(all) as usize
    }
}

/// What the server's parts tell each other.
#[derive(Clone)]
pub(crate) struct Shared {
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) pace: Arc<Pace>,
    pub(crate) snapshot: Arc<Mutex<Snapshot>>,
}

impl Shared {
    pub(crate) fn new() -> Shared {
        Shared { metrics: Arc::new(Metrics::new()), pace: Arc::new(Pace::new()), snapshot: Arc::default() }
    }
}

/// Tokens that can follow a prompt; an error if it does not fit, or what is asked for does not.
fn room_for(model: &Model, prompt: usize, predict: Option<u32>) -> Result<usize, ApiError> {
    // The last token's K and V are not needed, so it may lie just beyond the context.
    let (prompt, predicted, available) = (prompt as u64, predict.unwrap_or(1) as u64, model.context as u64);
    let needed = prompt + predicted.saturating_sub(1);
    if needed > available {
        return Err(ApiError::context(needed, prompt, predicted, available));
    }
    Ok(predict.map_or(available + 1 - prompt, u64::from) as usize)
}
