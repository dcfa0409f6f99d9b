//! When requests are sent.
//!
//! ```text
//! closed loop:  C at a time; the end of one is the beginning of the next
//! open loop:    at random times, R a second on average, however the server keeps up; at most C at a time if that is said
//! ```

use super::client::{Client, Outcome};
use crate::interrupt::Interrupt;
use anyhow::{Result, anyhow};
use hyper::body::Bytes;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use zinc_engine::Random;

/// How often Ctrl-C is looked at.
const LOOK: Duration = Duration::from_millis(100);

/// When requests are sent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Pace {
    /// Requests a second on average, at random times; `None`: as soon as they may.
    pub(crate) rate: Option<f64>,
    /// Most at the same time.
    pub(crate) most: Option<u32>,
}

/// What came of a run.
#[derive(Debug)]
pub(crate) struct Driven {
    pub(crate) outcomes: Vec<Outcome>,
    /// From the first request to the end of the last answer.
    pub(crate) time: Duration,
}

/// Sends all requests and reads all answers, in the order in which they end.
pub(crate) async fn drive(
    client: &Arc<Client>,
    requests: Vec<(&'static str, Bytes)>,
    pace: Pace,
    seed: u64,
    interrupt: &Interrupt,
) -> Result<Driven> {
    let room = Arc::new(Semaphore::new(pace.most.map_or(requests.len().max(1), |most| most as usize)));
    let mut arrivals = Random::new(seed);
    let mut running = JoinSet::new();
    let mut outcomes = Vec::with_capacity(requests.len());
    let start = Instant::now();
    let mut at = Duration::ZERO;
    for (path, body) in requests {
        if let Some(rate) = pace.rate {
            // Times between arrivals of a Poisson process.
            at += Duration::from_secs_f64(-(1.0 - arrivals.unit()).ln() / rate);
            while let Some(left) = at.checked_sub(start.elapsed()).filter(|left| !left.is_zero()) {
                interrupt.check()?;
                tokio::time::sleep(left.min(LOOK)).await;
            }
        }
        let permit = loop {
            interrupt.check()?;
            if let Ok(permit) = tokio::time::timeout(LOOK, room.clone().acquire_owned()).await {
                break permit?;
            }
        };
        let client = client.clone();
        running.spawn(async move {
            let outcome = client.stream(path, body, start).await;
            drop(permit);
            outcome
        });
        while let Some(ended) = running.try_join_next() {
            outcomes.push(ended.map_err(|_| anyhow!("a request's task died"))?);
        }
    }
    while !running.is_empty() {
        interrupt.check()?;
        if let Ok(Some(ended)) = tokio::time::timeout(LOOK, running.join_next()).await {
            outcomes.push(ended.map_err(|_| anyhow!("a request's task died"))?);
        }
    }
    let time = outcomes.iter().map(|outcome| outcome.sent + outcome.whole).max().unwrap_or_default();
    Ok(Driven { outcomes, time })
}
