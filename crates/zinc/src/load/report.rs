//! What a run says of a server: percentiles of times, rates, and how many requests were served well.
//!
//! ```text
//! TTFT  until the first token             TPOT  per token after the first, mean of a request
//! ITL   between pieces, of all requests   E2E   until the last token
//! ```

use super::client::Outcome;
use super::drive::Driven;
use serde_json::{Value, json};
use std::str::FromStr;
use std::time::Duration;

/// What a good answer must keep, such as `ttft:500`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Goal {
    measure: Measure,
    /// Milliseconds at most.
    most: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Measure {
    Ttft,
    Tpot,
    E2e,
}

impl FromStr for Goal {
    type Err = String;

    fn from_str(text: &str) -> Result<Goal, String> {
        let wrong = || format!("`{text}` is no goal; goals look like ttft:500, tpot:50 or e2el:5000, in milliseconds");
        let (name, most) = text.split_once(':').ok_or_else(wrong)?;
        let measure = match name.to_ascii_lowercase().as_str() {
            "ttft" => Measure::Ttft,
            "tpot" => Measure::Tpot,
            "e2el" | "e2e" => Measure::E2e,
            _ => return Err(wrong()),
        };
        let most = most.parse::<f64>().ok().filter(|most| *most > 0.0 && most.is_finite()).ok_or_else(wrong)?;
        Ok(Goal { measure, most })
    }
}

impl Goal {
    fn is_kept(&self, outcome: &Outcome) -> bool {
        let time = match self.measure {
            Measure::Ttft => outcome.first,
            // An answer of one token has no time per further token, and so keeps any.
            Measure::Tpot => return tpot(outcome).is_none_or(|time| time * 1e3 <= self.most),
            Measure::E2e => Some(outcome.whole),
        };
        time.is_some_and(|time| time.as_secs_f64() * 1e3 <= self.most)
    }
}

/// Seconds per token after the first.
fn tpot(outcome: &Outcome) -> Option<f64> {
    let first = outcome.first.filter(|_| outcome.tokens > 1)?;
    Some(outcome.whole.saturating_sub(first).as_secs_f64() / (outcome.tokens - 1) as f64)
}

/// Times in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Percentiles {
    pub(crate) mean: f64,
    pub(crate) p50: f64,
    pub(crate) p90: f64,
    pub(crate) p99: f64,
}

impl Percentiles {
    /// Of seconds; `None` of none.
    pub(crate) fn of(seconds: impl Iterator<Item = f64>) -> Option<Percentiles> {
        let mut all: Vec<f64> = seconds.map(|s| s * 1e3).collect();
        all.sort_by(f64::total_cmp);
        let last = all.len().checked_sub(1)?;
        // Between the two nearest ranks.
        let at = |part: f64| {
            let place = part * last as f64;
            let (low, high) = (all[place as usize], all[(place as usize + 1).min(last)]);
            low + (high - low) * place.fract()
        };
        let mean = all.iter().sum::<f64>() / all.len() as f64;
        Some(Percentiles { mean, p50: at(0.5), p90: at(0.9), p99: at(0.99) })
    }

    fn json(all: Option<Percentiles>) -> Value {
        all.map_or(Value::Null, |p| json!({"mean": p.mean, "p50": p.p50, "p90": p.p90, "p99": p.p99}))
    }

    /// `p50 / p90 / p99`.
    fn text(all: Option<Percentiles>) -> String {
        all.map_or("–".into(), |p| format!("{:.2} / {:.2} / {:.2}", p.p50, p.p90, p.p99))
    }
}

/// A run's figures.
#[derive(Clone, Debug)]
pub(crate) struct Report {
    pub(crate) done: usize,
    pub(crate) failed: usize,
    /// What went wrong, each message once, with how often; the most frequent first.
    pub(crate) failures: Vec<(String, usize)>,
    pub(crate) seconds: f64,
    pub(crate) prompt_tokens: u64,
    pub(crate) output_tokens: u64,
    pub(crate) ttft: Option<Percentiles>,
    pub(crate) tpot: Option<Percentiles>,
    pub(crate) itl: Option<Percentiles>,
    pub(crate) e2e: Option<Percentiles>,
    /// Requests that kept all goals, if there are goals.
    pub(crate) good: Option<usize>,
}

impl Report {
    /// Sums a run up. Requests that failed count as such and in no time.
    pub(crate) fn new(driven: &Driven, goals: &[Goal]) -> Report {
        let done: Vec<&Outcome> = driven.outcomes.iter().filter(|o| o.failure.is_none()).collect();
        let mut failures: Vec<(String, usize)> = vec![];
        for failure in driven.outcomes.iter().filter_map(|o| o.failure.as_ref()) {
            match failures.iter_mut().find(|(text, _)| text == failure) {
                Some((_, count)) => *count += 1,
                None => failures.push((failure.clone(), 1)),
            }
        }
        failures.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        let seconds = |times: &mut dyn Iterator<Item = Duration>| Percentiles::of(times.map(|t| t.as_secs_f64()));
        let good = done.iter().filter(|o| goals.iter().all(|goal| goal.is_kept(o))).count();
        Report {
            done: done.len(),
            failed: driven.outcomes.len() - done.len(),
            failures,
            seconds: driven.time.as_secs_f64(),
            prompt_tokens: done.iter().map(|o| o.prompt).sum(),
            output_tokens: done.iter().map(|o| o.tokens).sum(),
            ttft: seconds(&mut done.iter().filter_map(|o| o.first)),
            tpot: Percentiles::of(done.iter().filter_map(|o| tpot(o))),
            itl: seconds(&mut done.iter().flat_map(|o| o.gaps.iter().copied())),
            e2e: seconds(&mut done.iter().map(|o| o.whole)),
            good: (!goals.is_empty()).then_some(good),
        }
    }

    fn per_second(&self, count: f64) -> f64 {
        if self.seconds > 0.0 { count / self.seconds } else { 0.0 }
    }

    /// Generated tokens per second.
    pub(crate) fn output_rate(&self) -> f64 {
        self.per_second(self.output_tokens as f64)
    }

    /// Heading of [`Report::row`].
    pub(crate) const HEAD: [&'static str; 2] = [
        "| load | requests | failed | req/s | out t/s | all t/s | good req/s | TTFT ms p50 / p90 / p99 | TPOT ms | ITL ms | E2E ms |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ];

    /// A row of a table.
    pub(crate) fn row(&self, load: &str) -> String {
        let good = self.good.map_or("–".into(), |good| format!("{:.2}", self.per_second(good as f64)));
        format!(
            "| {load} | {} | {} | {:.2} | {:.1} | {:.1} | {good} | {} | {} | {} | {} |",
            self.done + self.failed,
            self.failed,
            self.per_second(self.done as f64),
            self.output_rate(),
            self.per_second((self.output_tokens + self.prompt_tokens) as f64),
            Percentiles::text(self.ttft),
            Percentiles::text(self.tpot),
            Percentiles::text(self.itl),
            Percentiles::text(self.e2e),
        )
    }

    /// For programs.
    pub(crate) fn json(&self) -> Value {
        let failures: Vec<Value> = self.failures.iter().map(|(m, n)| json!({"message": m, "count": n})).collect();
        json!({
            "completed": self.done,
            "failed": self.failed,
            "failures": failures,
            "duration_seconds": self.seconds,
            "total_input_tokens": self.prompt_tokens,
            "total_output_tokens": self.output_tokens,
            "requests_per_second": self.per_second(self.done as f64),
            "output_tokens_per_second": self.output_rate(),
            "total_tokens_per_second": self.per_second((self.output_tokens + self.prompt_tokens) as f64),
            "good_requests": self.good,
            "goodput_requests_per_second": self.good.map(|good| self.per_second(good as f64)),
            "ttft_ms": Percentiles::json(self.ttft),
            "tpot_ms": Percentiles::json(self.tpot),
            "itl_ms": Percentiles::json(self.itl),
            "e2e_ms": Percentiles::json(self.e2e),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_lie_between_ranks() {
        let of = |values: &[f64]| Percentiles::of(values.iter().map(|v| v / 1e3)).expect("some");
        let close = |a: f64, b: f64| (a - b).abs() < 1e-9;
        let hundred: Vec<f64> = (0..=100).rev().map(f64::from).collect();
        let p = of(&hundred);
        assert!(close(p.mean, 50.0) && close(p.p50, 50.0) && close(p.p90, 90.0) && close(p.p99, 99.0), "{p:?}");
        assert!(close(of(&[1.0, 2.0]).p50, 1.5) && close(of(&[7.0]).p99, 7.0));
        assert_eq!(Percentiles::of(std::iter::empty()), None);
    }

    #[test]
    fn goals_are_read_and_kept_by_those_who_are_quick_enough() {
        let goals: Vec<Goal> = ["ttft:500", "TPOT:50"].iter().map(|g| g.parse().expect("a goal")).collect();
        for bad in ["ttft", "ttft:", "ttft:-1", "ttft:nan", "itl:5", ":5"] {
            assert!(bad.parse::<Goal>().is_err(), "{bad}");
        }
        let ms = Duration::from_millis;
        let of =
            |first, whole, tokens| Outcome { first: Some(ms(first)), whole: ms(whole), tokens, ..Outcome::default() };
        let lost = Outcome { failure: Some("429: full".into()), ..of(1, 1, 1) };
        // Of the third the first token is late, of the fourth the others.
        let outcomes = vec![of(400, 890, 11), of(400, 400, 1), of(501, 600, 11), of(400, 910, 11), lost.clone(), lost];
        let report = Report::new(&Driven { outcomes, time: Duration::from_secs(2) }, &goals);
        assert_eq!((report.done, report.failed, report.good), (4, 2, Some(2)));
        assert_eq!(report.failures, [("429: full".to_string(), 2)]);
        assert_eq!((report.output_tokens, report.output_rate()), (34, 17.0));
        assert_eq!(report.json()["goodput_requests_per_second"], 1.0);
    }
}
