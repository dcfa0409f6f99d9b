//! What `/metrics` tells, in Prometheus' text format, under the names that vLLM's dashboards know, and `zinc_*`.
//!
//! ```text
//! runner, handlers ─add, observe─► atomics ─render─► text
//! ```

use crate::keys::{Account, Meter};
use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use zinc_engine::Load;

/// Why an answer ended, as `finished_reason` spells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The model ended it, or a stop string.
    Stop,
    /// As many tokens as asked for, or as the context has.
    Length,
    /// Nobody waits for it any more.
    Abort,
    /// The engine failed.
    Error,
}

const OUTCOMES: [(Outcome, &str); 4] =
    [(Outcome::Stop, "stop"), (Outcome::Length, "length"), (Outcome::Abort, "abort"), (Outcome::Error, "error")];

/// A number that only grows.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, n: u64) {
        self.0.fetch_add(n, Relaxed);
    }

    /// For what something else counts.
    pub(crate) fn raise(&self, to: u64) {
        self.0.fetch_max(to, Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// How often a value fell into each range.
#[derive(Debug)]
pub(crate) struct Histogram {
    bounds: &'static [f64],
    /// One more than there are bounds: the last is for what is above all of them.
    counts: Vec<AtomicU64>,
    /// In millionths.
    sum: AtomicU64,
}

impl Histogram {
    fn new(bounds: &'static [f64]) -> Histogram {
        Histogram { bounds, counts: (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect(), sum: AtomicU64::new(0) }
    }

    /// Counts a value.
    pub(crate) fn observe(&self, value: f64) {
        let place = self.bounds.iter().position(|bound| value <= *bound).unwrap_or(self.bounds.len());
        self.counts[place].fetch_add(1, Relaxed);
        self.sum.fetch_add((value * 1e6) as u64, Relaxed);
    }

    /// Counts a time, in seconds.
    pub(crate) fn time(&self, time: Duration) {
        self.observe(time.as_secs_f64());
    }

    fn render(&self, out: &mut String, name: &str, labels: &str) {
        let mut total = 0;
        let bounds = self.bounds.iter().map(|b| b.to_string()).chain(["+Inf".to_owned()]);
        for (bound, count) in bounds.zip(&self.counts) {
            total += count.load(Relaxed);
            writeln!(out, "{name}_bucket{{{labels},le=\"{bound}\"}} {total}").ok();
        }
        writeln!(out, "{name}_sum{{{labels}}} {}", self.sum.load(Relaxed) as f64 / 1e6).ok();
        writeln!(out, "{name}_count{{{labels}}} {total}").ok();
    }
}

const SECONDS: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
    160.0, 640.0,
];
const GAPS: &[f64] =
    &[0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0];
const TOKENS: &[f64] = &[
    1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10000.0, 20000.0, 50000.0, 100000.0,
];

/// All counters of a server.
#[derive(Debug)]
pub(crate) struct Metrics {
    pub(crate) prompt_tokens: Counter,
    pub(crate) generation_tokens: Counter,
    /// Prompt tokens that the prefix cache was asked for.
    pub(crate) prefix_queries: Counter,
    /// Those it had.
    pub(crate) prefix_hits: Counter,
    finished: [Counter; OUTCOMES.len()],
    /// Requests that found the queue full.
    pub(crate) shed: Counter,
    /// Requests whose bodies found no memory.
    pub(crate) bodies_refused: Counter,
    /// Connections from addresses that had as many as they may.
    pub(crate) connections_refused: Counter,
    /// Spans that the collector took, and those that were lost.
    pub(crate) spans_sent: Counter,
    pub(crate) spans_dropped: Counter,
    pub(crate) steps: Counter,
    pub(crate) step_errors: Counter,
    /// Times that the device was lost.
    pub(crate) device_losses: Counter,
    /// KV pages given to the disk.
    pub(crate) pages_kept: Counter,
    /// KV pages that have come from there.
    pub(crate) pages_restored: Counter,
    pub(crate) first_token: Histogram,
    pub(crate) between_tokens: Histogram,
    pub(crate) whole: Histogram,
    pub(crate) queue: Histogram,
    /// Steps of the engine from a request's arrival to its first one.
    pub(crate) queue_steps: Histogram,
    pub(crate) prefill: Histogram,
    pub(crate) decode: Histogram,
    pub(crate) prompt_length: Histogram,
    pub(crate) generation_length: Histogram,
}

impl Metrics {
    pub(crate) fn new() -> Metrics {
        let seconds = || Histogram::new(SECONDS);
        Metrics {
            prompt_tokens: Counter::default(),
            generation_tokens: Counter::default(),
            prefix_queries: Counter::default(),
            prefix_hits: Counter::default(),
            finished: Default::default(),
            shed: Counter::default(),
            bodies_refused: Counter::default(),
            connections_refused: Counter::default(),
            spans_sent: Counter::default(),
            spans_dropped: Counter::default(),
            steps: Counter::default(),
            step_errors: Counter::default(),
            device_losses: Counter::default(),
            pages_kept: Counter::default(),
            pages_restored: Counter::default(),
            first_token: seconds(),
            between_tokens: Histogram::new(GAPS),
            whole: seconds(),
            queue: seconds(),
            queue_steps: Histogram::new(TOKENS),
            prefill: seconds(),
            decode: seconds(),
            prompt_length: Histogram::new(TOKENS),
            generation_length: Histogram::new(TOKENS),
        }
    }

    /// Counts an answer that has ended.
    pub(crate) fn finished(&self, outcome: Outcome) {
        if let Some(place) = OUTCOMES.iter().position(|(o, _)| *o == outcome) {
            self.finished[place].add(1);
        }
    }

    /// The whole page. `bodies`: bytes of requests that are being read.
    pub(crate) fn render(&self, model: &str, load: &Load, preemptions: u64, page_tokens: u32, bodies: usize) -> String {
        let label = format!("model_name=\"{}\"", escape(model));
        let mut out = String::new();
        let mut number = |name: &str, kind: &str, about: &str, labels: &str, value: f64| {
            writeln!(out, "# HELP {name} {about}\n# TYPE {name} {kind}\n{name}{{{labels}}} {value}").ok();
        };
        let usage = load.pages_used as f64 / load.pages.max(1) as f64;
        let kept = load.pages_kept as f64 / load.pages.max(1) as f64;
        for (name, about, value) in [
            ("vllm:num_requests_running", "Sequences that take part in steps.", load.running as f64),
            ("vllm:num_requests_waiting", "Sequences that wait for room.", load.waiting as f64),
            (
                "vllm:kv_cache_usage_perc",
                "Part of the KV pages that sequences hold, also such that wait with pages from the disk; 1 is all.",
                usage,
            ),
            ("zinc_kv_kept_perc", "Part of the KV pages that are kept for later prompts only.", kept),
            ("zinc_request_body_bytes", "Memory that bodies of requests take until they are parsed.", bodies as f64),
        ] {
            number(name, "gauge", about, &label, value);
        }
        let config = format!("{label},block_size=\"{page_tokens}\",num_gpu_blocks=\"{}\"", load.pages);
        number("vllm:cache_config_info", "gauge", "Sizes of the KV cache.", &config, 1.0);
        for (name, about, value) in [
            (
                "vllm:prefix_cache_queries_total",
                "Prompt tokens looked up in the prefix cache.",
                self.prefix_queries.get(),
            ),
            ("vllm:prefix_cache_hits_total", "Prompt tokens found in the prefix cache.", self.prefix_hits.get()),
            ("vllm:prompt_tokens_total", "Prompt tokens.", self.prompt_tokens.get()),
            ("vllm:generation_tokens_total", "Generated tokens.", self.generation_tokens.get()),
            ("vllm:num_preemptions_total", "Sequences run again because KV pages ran out.", preemptions),
            ("zinc_requests_shed_total", "Requests that found the queue full.", self.shed.get()),
            ("zinc_request_bodies_refused_total", "Requests whose bodies found no memory.", self.bodies_refused.get()),
            (
                "zinc_connections_refused_total",
                "Connections from addresses that had as many as they may.",
                self.connections_refused.get(),
            ),
            ("zinc_spans_sent_total", "Spans that the collector of traces took.", self.spans_sent.get()),
            ("zinc_spans_dropped_total", "Spans that could not be sent.", self.spans_dropped.get()),
            ("zinc_steps_total", "Steps of the engine.", self.steps.get()),
            ("zinc_step_errors_total", "Steps that failed.", self.step_errors.get()),
            ("zinc_device_losses_total", "Times that the device was lost.", self.device_losses.get()),
            ("zinc_kv_pages_saved_total", "KV pages given to the disk (--kv-dir).", self.pages_kept.get()),
            ("zinc_kv_pages_restored_total", "KV pages that have come from the disk.", self.pages_restored.get()),
        ] {
            number(name, "counter", about, &label, value as f64);
        }
        self.render_finished(&mut out, &label);
        self.render_histograms(&mut out, &label);
        out
    }

    fn render_finished(&self, out: &mut String, label: &str) {
        let name = "vllm:request_success_total";
        writeln!(out, "# HELP {name} Answers by how they ended.\n# TYPE {name} counter").ok();
        for ((_, reason), counter) in OUTCOMES.iter().zip(&self.finished) {
            writeln!(out, "{name}{{{label},finished_reason=\"{reason}\"}} {}", counter.get()).ok();
        }
    }

    fn render_histograms(&self, out: &mut String, label: &str) {
        for (name, about, histogram) in [
            ("vllm:time_to_first_token_seconds", "From a request's arrival to its first token.", &self.first_token),
            ("vllm:inter_token_latency_seconds", "From one token to the next.", &self.between_tokens),
            ("vllm:e2e_request_latency_seconds", "From arrival to the last token.", &self.whole),
            ("vllm:request_queue_time_seconds", "From arrival to the first step.", &self.queue),
            ("zinc_request_queue_steps", "Steps of the engine from arrival to the first step.", &self.queue_steps),
            ("vllm:request_prefill_time_seconds", "From the first step to the first token.", &self.prefill),
            ("vllm:request_decode_time_seconds", "From the first token to the last.", &self.decode),
            ("vllm:request_prompt_tokens", "Tokens of prompts.", &self.prompt_length),
            ("vllm:request_generation_tokens", "Tokens of answers.", &self.generation_length),
        ] {
            writeln!(out, "# HELP {name} {about}\n# TYPE {name} histogram").ok();
            histogram.render(out, name, label);
        }
    }
}

/// What each key has used, for `/metrics`.
pub(crate) fn render_keys(accounts: &[Arc<Account>], out: &mut String) {
    type Read = fn(&Meter) -> f64;
    const ROWS: [(&str, &str, Read); 6] = [
        ("zinc_key_requests_total", "Requests by key.", |m| m.requests.load(Relaxed) as f64),
        ("zinc_key_prompt_tokens_total", "Prompt tokens by key.", |m| m.prompt.load(Relaxed) as f64),
        ("zinc_key_cached_tokens_total", "Prompt tokens that were kept, by key.", |m| m.cached.load(Relaxed) as f64),
        ("zinc_key_generation_tokens_total", "Generated tokens by key.", |m| m.completion.load(Relaxed) as f64),
        ("zinc_key_device_seconds_total", "Time of the device by key.", |m| m.time.load(Relaxed) as f64 / 1e9),
        ("zinc_key_device_joules_total", "Energy of the device by key.", |m| m.energy.load(Relaxed) as f64 / 1e6),
    ];
    for (name, about, read) in ROWS {
        writeln!(out, "# HELP {name} {about}\n# TYPE {name} counter").ok();
        for account in accounts {
            writeln!(out, "{name}{{key=\"{}\"}} {}", escape(&account.name), read(&account.meter)).ok();
        }
    }
}

/// A label's value.
fn escape(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_what_prometheus_reads() {
        let metrics = Metrics::new();
        metrics.first_token.observe(0.03);
        metrics.first_token.observe(1e6);
        metrics.finished(Outcome::Length);
        let load = Load { running: 2, waiting: 1, pages_used: 3, pages_kept: 1, pages: 12 };
        let page = metrics.render("a \"b\"", &load, 0, 32, 0);
        for line in [
            "vllm:num_requests_running{model_name=\"a \\\"b\\\"\"} 2",
            "vllm:kv_cache_usage_perc{model_name=\"a \\\"b\\\"\"} 0.25",
            "vllm:request_success_total{model_name=\"a \\\"b\\\"\",finished_reason=\"length\"} 1",
            "vllm:time_to_first_token_seconds_bucket{model_name=\"a \\\"b\\\"\",le=\"0.02\"} 0",
            "vllm:time_to_first_token_seconds_bucket{model_name=\"a \\\"b\\\"\",le=\"0.04\"} 1",
            "vllm:time_to_first_token_seconds_bucket{model_name=\"a \\\"b\\\"\",le=\"+Inf\"} 2",
            "vllm:time_to_first_token_seconds_sum{model_name=\"a \\\"b\\\"\"} 1000000.03",
        ] {
            assert!(page.lines().any(|l| l == line), "{line} is not in\n{page}");
        }
    }
}
