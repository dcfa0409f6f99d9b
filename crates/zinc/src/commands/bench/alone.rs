//! The engine without a server, under the same load: what a server's figures are compared with.
//!
//! ```text
//! Ask … ─so many at a time─► Engine.step … ─► tokens per second, time per step of all
//! ```

use crate::interrupt::Interrupt;
use crate::load::{Ask, Prompt};
use crate::progress::Meter;
use anyhow::Result;
use std::time::{Duration, Instant};
use zinc_engine::{Engine, Event, Request, Sampling};

/// What the engine did by itself.
#[derive(Clone, Debug, Default)]
pub(super) struct Alone {
    pub(super) tokens: u64,
    /// Without compiling.
    pub(super) time: Duration,
    /// Times of the steps in which all sequences generated, in milliseconds.
    pub(super) steps: Vec<f64>,
}

impl Alone {
    /// Generated tokens per second.
    pub(super) fn rate(&self) -> f64 {
        if self.time.is_zero() { 0.0 } else { self.tokens as f64 / self.time.as_secs_f64() }
    }
}

/// Runs requests, `concurrency` at a time. No prompt is found in the prefix cache, and none is left there.
pub(super) fn run(
    engine: &mut Engine,
    asks: &[Ask],
    concurrency: usize,
    temperature: f32,
    interrupt: &Interrupt,
) -> Result<Alone> {
    engine.forget_prefixes();
    let mut waiting = asks.iter();
    let mut alone = Alone::default();
    let (mut meter, mut events, mut running) = (Meter::new(), vec![], 0);
    loop {
        while running < concurrency
            && let Some(ask) = waiting.next()
        {
            engine.submit(request(ask, temperature))?;
            running += 1;
        }
        if engine.is_idle() {
            break;
        }
        let (before, known) = (Instant::now(), engine.programs());
        engine.prepare_step(&mut |p| meter.device(p))?;
        let start = if engine.programs() > known { Instant::now() } else { before };
        meter.clear();
        engine.step_into(&mut events, &mut |_| ())?;
        let took = start.elapsed();
        alone.time += took;
        for event in events.drain(..) {
            match event {
                Event::Token { .. } => alone.tokens += 1,
                Event::Finished { .. } => running -= 1,
                Event::Started { .. } | Event::Logits { .. } | Event::Hidden { .. } => {}
            }
        }
        if engine.ran().is_some_and(|ran| ran.parts.len() == concurrency && ran.rows as usize == concurrency) {
            alone.steps.push(took.as_secs_f64() * 1e3);
        }
        interrupt.check()?;
    }
    engine.forget_prefixes();
    Ok(alone)
}

fn request(ask: &Ask, temperature: f32) -> Request {
    let prompt = match &ask.prompt {
        Prompt::Tokens(ids) => ids.clone(),
        // Only random requests are run here.
        Prompt::Text(_) | Prompt::Messages(_) => vec![],
    };
    let sampling = Sampling { temperature, ..Sampling::default() };
    Request { prompt, predict: ask.output, sampling, ..Request::default() }
}
