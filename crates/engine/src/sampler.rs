//! The sampler: one row of logits becomes one token.
//!
//! ```text
//! logits ─bias─penalties─top-k─typical─top-p─min-p─temperature─► draw
//! ```
//!
//! The order and the meaning of each number are llama.cpp's, so that its users' settings carry over. Temperature 0 is
//! greedy: the exact maximum (lowest id on ties) after penalties; without penalties the device finds it and no logits
//! are read back ([`Sampling::is_argmax`]). With a small top-k and no penalties the device draws the token itself
//! ([`Sampler::draw`]), or, with typical-p, finds the candidates. A small top-k draws by [`zinc_ir::sample`] wherever
//! that happens, one random number a token: so the same seed gives the same tokens.

use crate::random::Random;
use std::collections::HashMap;
use std::sync::Arc;
use zinc_ir::sample::{self, Draw};

/// Settings of one sequence; `Default` is greedy without penalties.
#[derive(Clone, PartialEq, Debug)]
pub struct Sampling {
    /// Divides the logits; 0 or less: greedy.
    pub temperature: f32,
    /// Keep the best k; 0: all.
    pub top_k: u32,
    /// Keep the smallest set of best tokens whose probability reaches this; 1: all.
    pub top_p: f32,
    /// Keep tokens at least this fraction as likely as the best; 0: all.
    pub min_p: f32,
    /// Keep the tokens whose surprise is nearest the entropy, up to this mass; 1: all.
    pub typical_p: f32,
    /// Divides (multiplies, if negative) logits of recent tokens; 1: none.
    pub repeat_penalty: f32,
    /// Subtracted once per recent occurrence.
    pub frequency_penalty: f32,
    /// Subtracted if the token is recent at all.
    pub presence_penalty: f32,
    /// How many of the last tokens, prompt included, count as recent; -1: all.
    pub repeat_last_n: i32,
    /// Added to the logits of these tokens before anything else looks at them.
    pub bias: Arc<[(u32, f32)]>,
    /// Seed of the draws.
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Sampling {
        Sampling {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            typical_p: 1.0,
            repeat_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            repeat_last_n: 64,
            bias: Arc::from([]),
            seed: 0,
        }
    }
}

/// A sampling setting that means nothing.
#[derive(Debug, thiserror::Error, PartialEq)]
#[error("{setting} is {value}, but must be {allowed}")]
pub struct SamplingError {
    /// Which setting.
    pub setting: &'static str,
    /// What it was.
    pub value: f32,
    /// What it may be.
    pub allowed: &'static str,
}

impl Sampling {
    /// Is the sampled token the plain maximum of the logits?
    pub fn is_argmax(&self) -> bool {
        self.temperature <= 0.0 && !self.reorders()
    }

    /// How many of the best logits are all this setting looks at, if they are few and neither penalties nor a bias reorder
    /// them.
    pub fn candidates(&self) -> Option<u32> {
        let few = (1..=MOST_CANDIDATES).contains(&self.top_k);
        (few && self.temperature > 0.0 && !self.reorders()).then_some(self.top_k)
    }

    /// As [`Sampling::candidates`], if the device can draw one of them too.
    pub fn drawn_candidates(&self) -> Option<u32> {
        self.candidates().filter(|_| self.typical_p >= 1.0)
    }

    /// Does the order of the logits change before they are looked at?
    fn reorders(&self) -> bool {
        self.penalizes() || !self.bias.is_empty()
    }

    fn penalizes(&self) -> bool {
        let changes = self.repeat_penalty != 1.0 || self.frequency_penalty != 0.0 || self.presence_penalty != 0.0;
        changes && self.repeat_last_n != 0
    }

    /// Rejects numbers without a meaning.
    pub fn check(&self) -> Result<(), SamplingError> {
        let finite = |x: f32| x.is_finite();
        let bias = self.bias.iter().map(|b| b.1).find(|b| !finite(*b));
        let rows: [(&'static str, f32, bool, &'static str); 8] = [
            ("logit bias", bias.unwrap_or(0.0), bias.is_none(), "a number"),
            ("temperature", self.temperature, finite(self.temperature), "a number"),
            ("top-p", self.top_p, (0.0..=1.0).contains(&self.top_p), "between 0 and 1"),
            ("min-p", self.min_p, (0.0..=1.0).contains(&self.min_p), "between 0 and 1"),
            ("typical-p", self.typical_p, (0.0..=1.0).contains(&self.typical_p), "between 0 and 1"),
            (
                "repeat penalty",
                self.repeat_penalty,
                finite(self.repeat_penalty) && self.repeat_penalty > 0.0,
                "greater than 0",
            ),
            ("frequency penalty", self.frequency_penalty, finite(self.frequency_penalty), "a number"),
            ("presence penalty", self.presence_penalty, finite(self.presence_penalty), "a number"),
        ];
        match rows.into_iter().find(|row| !row.2) {
            Some((setting, value, _, allowed)) => Err(SamplingError { setting, value, allowed }),
            None => Ok(()),
        }
    }
}

/// Largest top-k that a device is asked for; a plan is made for this many whatever the setting.
pub(crate) const MOST_CANDIDATES: u32 = 64;

/// A token that may still be drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Candidate {
    token: u32,
    logit: f32,
}

/// Draws tokens for one sequence; holds its random stream.
#[derive(Clone, Debug)]
pub(crate) struct Sampler {
    sampling: Sampling,
    random: Random,
}

impl Sampler {
    /// A sampler at the beginning of its stream.
    pub(crate) fn new(sampling: Sampling) -> Sampler {
        let random = Random::new(sampling.seed);
        Sampler { sampling, random }
    }

    /// The settings.
    pub(crate) fn sampling(&self) -> &Sampling {
        &self.sampling
    }

    /// The state of the random stream.
    pub(crate) fn random(&self) -> &Random {
        &self.random
    }

    /// Goes back to an earlier state of the random stream.
    pub(crate) fn rewind(&mut self, random: Random) {
        self.random = random;
    }

    /// How the device is to draw the next token: of settings with [`Sampling::drawn_candidates`], or the best one.
    pub(crate) fn draw(&mut self) -> Draw {
        if self.sampling.is_argmax() {
            return Draw::GREEDY;
        }
        let s = &self.sampling;
        let [least, most] = Draw::INVERSE;
        Draw {
            unit: self.random.unit_f32(),
            inverse_temperature: (1.0 / s.temperature).clamp(least, most),
            top_p: s.top_p,
            min_p_log: s.min_p.ln().max(Draw::NO_MIN_P),
            top_k: s.top_k,
        }
    }

    /// Picks the token after `history` (prompt and generated tokens, oldest first) from its logits. `None` if no logit
    /// is a number.
    pub(crate) fn sample(&mut self, logits: &[f32], history: &[u32]) -> Option<u32> {
        let s = &self.sampling;
        if s.is_argmax() {
            return argmax(logits);
        }
        let reordered;
        let logits = if s.reorders() {
            reordered = reorder(logits, history, s);
            &reordered
        } else {
            logits
        };
        if s.temperature <= 0.0 {
            return argmax(logits);
        }
        self.draw_from(best(logits, s.top_k))
    }

    /// Picks a token from the best logits, best first, at least as many as [`Sampling::candidates`] says. `None` if none
    /// is a number (devices give `f32::MIN` for those).
    pub(crate) fn sample_best(&mut self, tokens: &[u32], logits: &[f32]) -> Option<u32> {
        let all = tokens.iter().zip(logits).filter(|(_, x)| **x > f32::MIN);
        let all = all.map(|(&token, &logit)| Candidate { token, logit });
        let wanted = if self.sampling.is_argmax() { 1 } else { self.sampling.top_k as usize };
        let candidates: Vec<Candidate> = all.take(wanted).collect();
        if self.sampling.is_argmax() {
            return candidates.first().map(|c| c.token);
        }
        self.draw_from(candidates)
    }

    /// Narrows candidates, best first, and draws one.
    fn draw_from(&mut self, mut candidates: Vec<Candidate>) -> Option<u32> {
        let s = &self.sampling;
        keep_typical(&mut candidates, s.typical_p);
        if (1..=MOST_CANDIDATES).contains(&s.top_k) {
            let draw = self.draw();
            let logits: Vec<f32> = candidates.iter().map(|c| c.logit).collect();
            return sample::pick(&logits, &draw).map(|i| candidates[i].token);
        }
        keep_top_p(&mut candidates, s.top_p);
        keep_min_p(&mut candidates, s.min_p);
        // Distances from the best, which small temperatures cannot turn into infinity minus infinity.
        let top = candidates.iter().map(|c| c.logit).fold(f32::NEG_INFINITY, f32::max);
        for c in &mut candidates {
            c.logit = distance(c.logit, top) / s.temperature;
        }
        draw(&candidates, self.random.unit())
    }
}

/// Index of the largest number, the lowest one on ties; `None` if there is no number.
pub fn argmax(logits: &[f32]) -> Option<u32> {
    let mut best: Option<(u32, f32)> = None;
    for (i, &x) in logits.iter().enumerate() {
        if !x.is_nan() && best.is_none_or(|(_, b)| x > b) {
            best = Some((i as u32, x));
        }
    }
    best.map(|b| b.0)
}

/// The logits with bias and penalties.
fn reorder(logits: &[f32], history: &[u32], s: &Sampling) -> Vec<f32> {
    let mut logits = logits.to_vec();
    for (token, bias) in s.bias.iter() {
        if let Some(x) = logits.get_mut(*token as usize) {
            *x += bias;
        }
    }
    if s.penalizes() {
        penalize(&mut logits, history, s);
    }
    logits
}

fn penalize(logits: &mut [f32], history: &[u32], s: &Sampling) {
    let n = if s.repeat_last_n < 0 { history.len() } else { history.len().min(s.repeat_last_n as usize) };
    let mut counts: HashMap<u32, u32> = HashMap::new();
    for token in &history[history.len() - n..] {
        *counts.entry(*token).or_default() += 1;
    }
    for (token, count) in counts {
        let Some(x) = logits.get_mut(token as usize) else { continue };
        *x = if *x <= 0.0 { *x * s.repeat_penalty } else { *x / s.repeat_penalty };
        *x -= count as f32 * s.frequency_penalty + s.presence_penalty;
    }
}

/// The `k` best candidates (all for 0), best first, lower ids first among equals; without NaN.
fn best(logits: &[f32], k: u32) -> Vec<Candidate> {
    let numbered = logits.iter().enumerate().filter(|(_, x)| !x.is_nan());
    let mut all: Vec<Candidate> = numbered.map(|(i, &logit)| Candidate { token: i as u32, logit }).collect();
    let order = |a: &Candidate, b: &Candidate| b.logit.total_cmp(&a.logit).then(a.token.cmp(&b.token));
    if k > 0 && (k as usize) < all.len() {
        all.select_nth_unstable_by(k as usize - 1, order);
        all.truncate(k as usize);
    }
    all.sort_unstable_by(order);
    all
}

/// How far a logit is above the best one: never a NaN, also where both are infinite.
fn distance(logit: f32, top: f32) -> f32 {
    if logit == top { 0.0 } else { logit - top }
}

/// Probabilities of candidates in order of rank.
fn softmax(candidates: &[Candidate]) -> Vec<f64> {
    let top = candidates.iter().map(|c| c.logit).fold(f32::NEG_INFINITY, f32::max);
    let weights: Vec<f64> = candidates.iter().map(|c| (distance(c.logit, top) as f64).exp()).collect();
    let sum: f64 = weights.iter().sum();
    weights.into_iter().map(|w| w / sum).collect()
}

/// How many of these probabilities are needed to reach `mass` (at least one).
fn reach(probabilities: impl Iterator<Item = f64>, mass: f32) -> usize {
    let mut sum = 0.0;
    let mut taken = 0;
    for p in probabilities {
        sum += p;
        taken += 1;
        if sum >= mass as f64 {
            break;
        }
    }
    taken.max(1)
}

fn keep_typical(candidates: &mut Vec<Candidate>, typical_p: f32) {
    if typical_p >= 1.0 || candidates.is_empty() {
        return;
    }
    let p = softmax(candidates);
    let entropy: f64 = p.iter().filter(|p| **p > 0.0).map(|p| -p * p.ln()).sum();
    let mut ranked: Vec<usize> = (0..p.len()).collect();
    ranked.sort_by(|a, b| (-p[*a].ln() - entropy).abs().total_cmp(&(-p[*b].ln() - entropy).abs()));
    ranked.truncate(reach(ranked.iter().map(|i| p[*i]), typical_p));
    ranked.sort_unstable();
    *candidates = ranked.into_iter().map(|i| candidates[i]).collect();
}

fn keep_top_p(candidates: &mut Vec<Candidate>, top_p: f32) {
    if top_p < 1.0 && !candidates.is_empty() {
        candidates.truncate(reach(softmax(candidates).into_iter(), top_p));
    }
}

fn keep_min_p(candidates: &mut Vec<Candidate>, min_p: f32) {
    if min_p > 0.0 && !candidates.is_empty() {
        let least = candidates[0].logit + min_p.ln();
        let kept = candidates.iter().take_while(|c| c.logit >= least).count();
        candidates.truncate(kept.max(1));
    }
}

/// The candidate at point `unit` of the cumulative distribution.
fn draw(candidates: &[Candidate], unit: f64) -> Option<u32> {
    let mut rest = unit;
    for (c, p) in candidates.iter().zip(softmax(candidates)) {
        if rest < p {
            return Some(c.token);
        }
        rest -= p;
    }
    // Rounding may leave a sliver above the sum of the probabilities.
    candidates.last().map(|c| c.token)
}

#[cfg(test)]
mod tests;
