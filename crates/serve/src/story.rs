//! How a request went, told once it has ended: a line in the log, and a span.

use crate::generation::{Generation, Reason, Usage};
use crate::guard::Visit;
use crate::metrics::Outcome;
use crate::model::Model;
use crate::trace::{Span, Tracer};
use serde_json::{Value, json};
use std::time::Instant;

/// What is known of a request, up to its end.
pub(crate) struct Story {
    visit: Visit,
    model: String,
    predict: Option<u32>,
    /// Temperature, top-p, the seed that was asked for.
    sampling: (f32, f32, Option<u64>),
    tracer: Option<Tracer>,
    /// The HTTP request it belongs to, for the log.
    log: tracing::Span,
    pub(crate) arrived: Instant,
    pub(crate) started: Option<Instant>,
    pub(crate) first: Option<Instant>,
    /// Why its choices have ended, as clients are told.
    reasons: Vec<&'static str>,
    choices: usize,
    error: Option<String>,
}

impl Story {
    pub(crate) fn new(visit: &Visit, model: &Model, generation: &Generation, tracer: Option<Tracer>) -> Story {
        let sampling = &generation.sampling;
        Story {
            visit: visit.clone(),
            model: model.name().to_owned(),
            predict: generation.predict,
            sampling: (sampling.temperature, sampling.top_p, generation.seeded.then_some(sampling.seed)),
            tracer,
            log: tracing::Span::current(),
            arrived: Instant::now(),
            started: None,
            first: None,
            reasons: vec![],
            choices: generation.choices(),
            error: None,
        }
    }

    /// A choice has ended.
    pub(crate) fn ended(&mut self, reason: Reason) {
        self.reasons.push(reason.word());
    }

    /// It has come to nothing.
    pub(crate) fn failed(&mut self, why: &str) {
        self.error.get_or_insert_with(|| why.to_owned());
    }

    /// Tells it.
    pub(crate) fn tell(&mut self, number: u64, usage: Usage, outcome: Outcome) {
        let now = Instant::now();
        let since = |then: Option<Instant>| then.map(|t| (t - self.arrived).as_millis() as u64);
        let end = match outcome {
            Outcome::Abort => "abandoned",
            Outcome::Error => "error",
            Outcome::Stop | Outcome::Length => "done",
        };
        tracing::info!(
            parent: &self.log,
            number,
            key = self.visit.caller.account.name,
            prompt_tokens = usage.prompt,
            cached_tokens = usage.cached,
            completion_tokens = usage.completion,
            choices = self.choices,
            queue_ms = since(self.started),
            first_token_ms = since(self.first),
            total_ms = (now - self.arrived).as_millis() as u64,
            end,
            "answer"
        );
        if let Some(tracer) = self.tracer.take() {
            tracer.send(self.span(usage, outcome, now));
        }
    }

    fn span(&mut self, usage: Usage, outcome: Outcome, now: Instant) -> Span {
        let operation = self.visit.operation;
        let failed = match outcome {
            Outcome::Abort => json!("abandoned"),
            Outcome::Error => json!("server_error"),
            Outcome::Stop | Outcome::Length => Value::Null,
        };
        let several = (self.choices > 1).then_some(self.choices);
        let (temperature, top_p, seed) = self.sampling;
        let attributes = vec![
            ("gen_ai.operation.name", json!(operation)),
            ("gen_ai.provider.name", json!("zinc")),
            ("gen_ai.request.model", json!(self.model)),
            ("gen_ai.response.model", json!(self.model)),
            ("gen_ai.request.max_tokens", json!(self.predict)),
            ("gen_ai.request.temperature", json!(temperature)),
            ("gen_ai.request.top_p", json!(top_p)),
            ("gen_ai.request.seed", json!(seed)),
            ("gen_ai.request.choice.count", json!(several)),
            ("gen_ai.usage.input_tokens", json!(usage.prompt)),
            ("gen_ai.usage.cache_read.input_tokens", json!(usage.cached)),
            ("gen_ai.usage.output_tokens", json!(usage.completion)),
            ("gen_ai.response.finish_reasons", json!(self.reasons)),
            ("error.type", failed),
            ("zinc.request_id", json!(&*self.visit.request)),
            ("zinc.key", json!(self.visit.caller.account.name)),
        ];
        Span {
            parent: self.visit.parent,
            name: format!("{operation} {}", self.model),
            times: [Some(self.arrived), self.started, self.first, Some(now)],
            attributes,
            error: self.error.take(),
        }
    }
}
