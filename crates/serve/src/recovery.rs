//! What the server does when the device is lost: opens it again, a few times at most, and has all answers go on.
//!
//! ```text
//! a step fails ─► /health says so ─► Revival.open, weights ─► Engine.replace_device ─► answers go on
//!                                        └ fails, or was lost too often ─► every answer ends with a 503
//! ```

use std::collections::VecDeque;
use std::time::{Duration, Instant};
use zinc_engine::{Engine, OpenError};
use zinc_ir::device::{Device, WeightSource};

/// So many losses within [`WITHIN`] are borne; one more, and something is wrong that opening the device does not mend,
/// such as a request that kills it.
const MOST_LOSSES: usize = 3;
const WITHIN: Duration = Duration::from_secs(600);

/// How often opening is tried: a driver may need a while to reset the card.
const ATTEMPTS: u32 = 5;

/// What brings a lost device back.
pub struct Revival {
    /// Opens the device again.
    pub open: Box<dyn FnMut() -> Result<Box<dyn Device>, OpenError> + Send>,
    /// The weights that the engine was made with.
    pub weights: Box<dyn WeightSource + Send>,
    /// Time before the second attempt to open it; each further attempt waits twice as long as the one before.
    pub pause: Duration,
}

/// The device is lost.
#[derive(Clone, Debug)]
pub(crate) enum Lost {
    /// It is being opened again. How it was lost.
    Recovering(String),
    /// Nothing will work until the server is started again. Why.
    ForGood(String),
}

/// Losses so far, and what to do about the next.
pub(crate) struct Recovery {
    revival: Option<Revival>,
    losses: VecDeque<Instant>,
}

impl Recovery {
    pub(crate) fn new(revival: Option<Revival>) -> Recovery {
        Recovery { revival, losses: VecDeque::new() }
    }

    /// Puts a new device into the engine, which has just lost its own; or says why not. May take long.
    pub(crate) fn run(&mut self, engine: &mut Engine, loss: &str) -> Result<(), String> {
        let Some(revival) = &mut self.revival else { return Err(loss.to_owned()) };
        let now = Instant::now();
        self.losses.retain(|then| now.duration_since(*then) < WITHIN);
        self.losses.push_back(now);
        if self.losses.len() > MOST_LOSSES {
            return Err(format!(
                "it was lost {} times within {} minutes: {loss}",
                MOST_LOSSES + 1,
                WITHIN.as_secs() / 60
            ));
        }
        let mut pause = revival.pause;
        for attempt in 1.. {
            match engine.replace_device(&mut revival.open, revival.weights.as_ref(), &mut |_| ()) {
                Ok(()) => break,
                Err(error) if attempt == ATTEMPTS => return Err(format!("{loss}; {error}")),
                Err(error) => tracing::warn!(%error, attempt, "the lost device does not come back yet"),
            }
            std::thread::sleep(pause);
            pause *= 2;
        }
        Ok(())
    }
}
