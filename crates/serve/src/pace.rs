//! How fast answers have ended lately, and so how long a queue will take.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What is older than this hardly counts.
const MEMORY: f64 = 30.0;

/// Seconds that a client is told to wait where nothing is known, and at most.
const UNKNOWN: f64 = 5.0;
const MOST: f64 = 300.0;

/// Answers per second, the latest counting most.
#[derive(Debug)]
pub(crate) struct Pace {
    began: Instant,
    state: Mutex<State>,
}

#[derive(Clone, Copy, Debug, Default)]
struct State {
    /// Answers per second, as if there had been none before the first one.
    rate: f64,
    /// Seconds since the first answer began to be waited for, and at the last change.
    since: Option<f64>,
    at: f64,
}

impl State {
    fn fade(&mut self, now: f64) {
        self.rate *= (-(now - self.at).max(0.0) / MEMORY).exp();
        self.at = self.at.max(now);
    }

    fn ended(&mut self, now: f64) {
        self.fade(now);
        self.since.get_or_insert(now);
        self.rate += 1.0 / MEMORY;
    }

    /// Answers per second; `None` where nothing has ended lately.
    fn rate(mut self, now: f64) -> Option<f64> {
        self.fade(now);
        // What came before the first answer is not known to have been slow.
        let seen = 1.0 - (-(now - self.since?).max(1.0) / MEMORY).exp();
        Some(self.rate / seen).filter(|rate| *rate > 1e-3)
    }

    fn wait(self, sequences: usize, now: f64) -> u32 {
        let seconds = self.rate(now).map_or(UNKNOWN, |rate| sequences as f64 / rate);
        seconds.clamp(1.0, MOST).ceil() as u32
    }
}

impl Pace {
    pub(crate) fn new() -> Pace {
        Pace { began: Instant::now(), state: Mutex::default() }
    }

    fn now(&self) -> (f64, std::sync::MutexGuard<'_, State>) {
        (self.began.elapsed().as_secs_f64(), self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// An answer has ended.
    pub(crate) fn ended(&self) {
        let (now, mut state) = self.now();
        state.ended(now);
    }

    /// Whole seconds after which so many sequences will have ended, if all goes on as it has lately.
    pub(crate) fn wait(&self, sequences: usize) -> u32 {
        let (now, state) = self.now();
        state.wait(sequences, now)
    }
}

/// A time in whole seconds, for `Retry-After`: at least one.
pub(crate) fn whole_seconds(time: Duration) -> u32 {
    time.as_secs_f64().ceil().clamp(1.0, u32::MAX.into()) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_follows_the_pace() {
        let mut state = State::default();
        assert_eq!(state.wait(100, 3.0), 5, "nothing is known");
        // Four a second, from the hundredth second on.
        let mut wait = vec![];
        for i in 0..400 {
            let now = 100.0 + i as f64 / 4.0;
            state.ended(now);
            wait.push(state.wait(100, now));
        }
        assert!(wait[40..].iter().all(|w| (22..=28).contains(w)), "{wait:?}");
        // Ten times as fast.
        (0..2400).for_each(|i| state.ended(200.0 + i as f64 / 40.0));
        assert!((2..=4).contains(&state.wait(100, 260.0)));
        assert_eq!(state.wait(1, 260.0), 1);
        assert_eq!(state.wait(usize::MAX, 260.0), 300);
        assert_eq!(state.wait(100, 4000.0), 5, "long ago is as good as never");
    }
}
