//! What one request uses, from its admission to its end.

use super::account::{Caller, Refusal};
use super::ledger::{Entry, Ledger};
use super::rate::Taken;
use crate::model::unix_seconds;
use crate::room::Seats;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// A request's bill, and its room. Whoever works on the request holds it, not who reads what comes of it; when the last one
/// lets go, it is settled and entered.
#[derive(Debug)]
pub(crate) struct Charge {
    caller: Caller,
    ledger: Option<Arc<Ledger>>,
    /// The request's own name.
    request: String,
    seats: Seats,
    reserved: u64,
    /// What it took of a limit per minute.
    taken: Option<Taken>,
    prompt: AtomicU64,
    cached: AtomicU64,
    completion: AtomicU64,
    /// Nanoseconds of the device.
    time: AtomicU64,
    /// Microjoules, of the time in which the device's power was known.
    energy: AtomicU64,
}

impl Charge {
    /// Reserves what a request needs at most: sequences at the same time, `least` of them or as many more as there are seats
    /// and the caller may have, and tokens, all together.
    pub(crate) fn new(
        caller: &Caller,
        ledger: Option<Arc<Ledger>>,
        request: String,
        mut seats: Seats,
        least: usize,
        reserved: u64,
    ) -> Result<Charge, Refusal> {
        let (sequences, taken) = caller.reserve(least as u64, seats.count() as u64, reserved)?;
        seats.keep(sequences as usize);
        let [prompt, cached, completion, time, energy] = [(); 5].map(|()| AtomicU64::new(0));
        let caller = caller.clone();
        Ok(Charge { caller, ledger, request, seats, reserved, taken, prompt, cached, completion, time, energy })
    }

    /// Sequences that it may have at the same time.
    pub(crate) fn sequences(&self) -> usize {
        self.seats.count()
    }

    /// A prompt runs; so many of its tokens need not be computed.
    pub(crate) fn started(&self, prompt: u64, cached: u64) {
        self.prompt.fetch_add(prompt, Relaxed);
        self.cached.fetch_add(cached, Relaxed);
    }

    /// A token was generated.
    pub(crate) fn token(&self) {
        self.completion.fetch_add(1, Relaxed);
    }

    /// The device has worked for it for so long, at this power.
    pub(crate) fn worked(&self, time: Duration, watts: Option<f32>) {
        self.time.fetch_add(time.as_nanos() as u64, Relaxed);
        self.energy.fetch_add((f64::from(watts.unwrap_or(0.0)) * time.as_secs_f64() * 1e6) as u64, Relaxed);
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        let all = [&self.prompt, &self.cached, &self.completion, &self.time, &self.energy];
        let [prompt, cached, completion, time, energy] = all.map(|counter| counter.load(Relaxed));
        let account = &self.caller.account;
        account.settle(self.sequences() as u64, self.reserved, prompt + completion, self.taken);
        if prompt == 0 {
            return; // It has never run.
        }
        account.meter.add([prompt, cached, completion, time, energy]);
        if let Some(ledger) = &self.ledger {
            ledger.append(Entry {
                time: unix_seconds(),
                key: account.name.clone(),
                request: std::mem::take(&mut self.request),
                prompt_tokens: prompt,
                cached_tokens: cached,
                completion_tokens: completion,
                seconds: time as f64 / 1e9,
                joules: (energy > 0).then_some(energy as f64 / 1e6),
            });
        }
    }
}
