//! What all handlers share: the model once it is there, the way to the runner, and how much room there is.

use crate::answer::{Answer, Line};
use crate::error::ApiError;
use crate::generation::Generation;
use crate::keys::Keys;
use crate::metrics::Metrics;
use crate::model::Model;
use crate::recovery::Lost;
use crate::runner::{Command, Snapshot, most_updates};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, mpsc};
use std::time::Instant;
use tokio::sync::Semaphore;
use zinc_text::TextStart;

/// A server's state.
pub(crate) struct App {
    keys: RwLock<Keys>,
    /// The host it listens on, if none but this machine is to reach it.
    local: Option<String>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) max_body: usize,
    snapshot: Arc<Mutex<Snapshot>>,
    model: OnceLock<Arc<Model>>,
    commands: mpsc::Sender<Command>,
    /// One permit for each sequence that may run or wait.
    room: Arc<Semaphore>,
    most: usize,
    next: AtomicU64,
    ending: AtomicBool,
}

impl App {
    pub(crate) fn new(
        keys: Keys,
        local: Option<String>,
        max_body: usize,
        most: usize,
        commands: mpsc::Sender<Command>,
        metrics: Arc<Metrics>,
        snapshot: Arc<Mutex<Snapshot>>,
    ) -> App {
        // tokio's own limit is beyond what memory could hold.
        let most = most.clamp(1, Semaphore::MAX_PERMITS.min(u32::MAX as usize));
        App {
            keys: RwLock::new(keys),
            local,
            metrics,
            max_body,
            snapshot,
            model: OnceLock::new(),
            commands,
            room: Arc::new(Semaphore::new(most)),
            most,
            next: AtomicU64::new(1),
            ending: AtomicBool::new(false),
        }
    }

    /// The model is there.
    pub(crate) fn set_model(&self, model: Model) {
        self.model.set(Arc::new(model)).ok();
    }

    /// Does this key open the server? `None`: no key came.
    pub(crate) fn admits(&self, key: Option<&str>) -> bool {
        let keys = self.keys.read().unwrap_or_else(PoisonError::into_inner);
        keys.is_open() || key.is_some_and(|key| keys.admit(key))
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
        self.room.available_permits() == 0
    }

    /// Most sequences that run or wait.
    pub(crate) fn most(&self) -> usize {
        self.most
    }

    /// Does a prompt of so many tokens fit, and what is asked for?
    pub(crate) fn fits(&self, model: &Model, prompt: usize, predict: Option<u32>) -> Result<(), ApiError> {
        room_for(model, prompt, predict).map(|_| ())
    }

    /// A number that no other request has.
    pub(crate) fn next_number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Hands a request to the engine.
    pub(crate) fn generate(
        &self,
        model: &Model,
        mut generation: Generation,
        start: TextStart,
    ) -> Result<Answer, ApiError> {
        let arrived = Instant::now();
        if !self.keys.read().unwrap_or_else(PoisonError::into_inner).is_open() {
            // Among strangers, one may step back, but not push in.
            generation.share.priority = generation.share.priority.max(0);
        }
        let mut updates = 0;
        for prompt in &generation.prompts {
            updates += most_updates(room_for(model, prompt.len(), generation.predict)?) * generation.n;
        }
        let choices = generation.choices();
        if choices > self.most {
            let message = format!("{choices} answers are asked for, but this server takes {} at most", self.most);
            return Err(ApiError::parameter("n", message));
        }
        let Ok(room) = self.room.clone().try_acquire_many_owned(choices as u32) else {
            self.metrics.shed.add(1);
            return Err(ApiError::overloaded());
        };
        let (sender, receiver) = tokio::sync::mpsc::channel(updates.clamp(1, Semaphore::MAX_PERMITS));
        let number = self.next_number();
        let line = Line { number, updates: receiver, commands: self.commands.clone(), arrived, room };
        let answer = Answer::new(model, &generation, start, line)?;
        let end_tokens = model.end_tokens.clone();
        let command =
            Command::Generate { number, generation: Box::new(generation), end_tokens, arrived, updates: sender };
        self.commands.send(command).map_err(|_| ApiError::unavailable("the engine has ended"))?;
        Ok(answer)
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
