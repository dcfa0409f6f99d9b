//! The report as a table and as JSON: one row per kind of launch, then gaps, host, and what they add up to.

use super::{Kind, Part, Roofline};
use serde_json::{Value, json};
use std::fmt::Write;

/// A size in decimal units.
pub(crate) fn bytes(n: f64) -> String {
    let units = [(1e9, "GB"), (1e6, "MB"), (1e3, "kB")];
    match units.iter().find(|(size, _)| n >= *size) {
        Some((size, name)) => format!("{:.*} {name}", if n / size < 100.0 { 1 } else { 0 }, n / size),
        None => format!("{n:.0} B"),
    }
}

/// A rate in units of a billion, with about three digits.
pub(crate) fn giga(rate: f64) -> String {
    let giga = rate / 1e9;
    format!("{giga:.*}", if giga < 100.0 { 1 } else { 0 })
}

impl Roofline {
    /// Kinds, the one that takes longest first.
    pub(crate) fn rows(&self) -> Vec<(&'static str, Kind)> {
        let mut rows: Vec<(&'static str, Kind)> = self.kinds.iter().map(|(name, kind)| (*name, *kind)).collect();
        rows.sort_by(|a, b| b.1.work.total_cmp(&a.1.work));
        rows
    }

    /// The report in words.
    pub(crate) fn table(&self, test: &str) -> String {
        let mut out = String::new();
        self.write(test, &mut out).ok();
        out
    }

    fn write(&self, test: &str, out: &mut String) -> std::fmt::Result {
        let (l, all) = (&self.limits, self.tokens.max(1) as f64);
        let micros = |seconds: f64| format!("{:.1}", seconds * 1e6 / all);
        let share = |seconds: f64| format!("{:.1} %", 100.0 * seconds / self.wall.max(1e-12));
        write!(out, "\n{test} against measured limits: read {} GB/s, ", giga(l.read))?;
        write!(out, "multiply-adds {} GFLOP/s, byte dot products {} GOP/s", giga(l.fma), giga(l.dot4))?;
        match l.matrix {
            Some(rate) => writeln!(out, ", matrices {} GFLOP/s", giga(rate))?,
            None => writeln!(out)?,
        }
        writeln!(
            out,
            "| launch | per token | MB | MFLOP | µs | share | GB/s | GFLOP/s | of limit | µs at limit | limit |"
        )?;
        writeln!(out, "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |")?;
        for (name, k) in self.rows() {
            let rate = |n: u64| format!("{:.1}", n as f64 / k.work.max(1e-12) / 1e9);
            let attained = format!("{:.0} %", 100.0 * k.attained());
            // A launch that is hardly longer than a gap says nothing of rates.
            let [bytes, flops, attained] = match k.tells() {
                true => [rate(k.bytes), rate(k.flops), attained],
                false => ["–"; 3].map(String::from),
            };
            writeln!(
                out,
                "| {name} | {} | {:.3} | {:.2} | {} | {} | {bytes} | {flops} | {attained} | {} | {} |",
                count(k.launches as f64 / all),
                k.bytes as f64 / 1e6 / all,
                k.flops as f64 / 1e6 / all,
                micros(k.work),
                share(k.work),
                micros(k.limit()),
                if k.by_memory() { "memory" } else { "arithmetic" },
            )?;
        }
        let launches = self.kinds.values().map(|k| k.launches).sum::<u64>() as f64 / all;
        let (bytes, limit) =
            self.kinds.values().fold((0.0, 0.0), |(b, l), k| (b + k.bytes as f64 / 1e6 / all, l + k.limit()));
        let mut row = |name: &str, count: &str, bytes: &str, time: f64, limit: &str| {
            writeln!(out, "| {name} | {count} | {bytes} | | {} | {} | | | | {limit} | |", micros(time), share(time))
        };
        row("launch gaps", &count(launches), "", self.gaps(), "")?;
        row("host", "", "", self.host(), "")?;
        row("sum of parts", "", &format!("{bytes:.3}"), self.parts(), &micros(limit))?;
        row("wall, no profile", "", "", self.wall, "")?;
        write!(out, "parts against wall: {:+.1} %", 100.0 * self.difference())?;
        writeln!(out, " (taken off the profile: {} µs of timestamps)", micros(self.stamps))?;
        if let Some(warning) = self.warning() {
            writeln!(out, "warning: {warning}")?;
        }
        writeln!(out, "{test} is {}", self.sentence())
    }

    /// The report for programs; times are seconds per token.
    pub(crate) fn json(&self) -> Value {
        let all = self.tokens.max(1) as f64;
        let kinds = self.rows().into_iter().map(|(name, k)| {
            json!({
                "launch": name,
                "launches": k.launches as f64 / all,
                "bytes": k.bytes as f64 / all,
                "flops": k.flops as f64 / all,
                "seconds": k.work / all,
                "gap_seconds": k.gap / all,
                "limit_seconds": k.limit() / all,
                "of_limit": k.tells().then(|| k.attained()),
                "limited_by": if k.by_memory() { "memory" } else { "arithmetic" },
            })
        });
        let parts = self.split().into_iter().map(|(part, time)| (name(part).to_string(), json!(time / all)));
        json!({
            "limits": {
                "read_bytes_per_second": self.limits.read,
                "fma_per_second": self.limits.fma,
                "dot4_per_second": self.limits.dot4,
                "matrix_per_second": self.limits.matrix,
            },
            "launches": kinds.collect::<Vec<_>>(),
            "gap_seconds": self.gaps() / all,
            "host_seconds": self.host() / all,
            "sum_seconds": self.parts() / all,
            "timestamp_seconds": self.stamps / all,
            "profiled_seconds": self.profiled / all,
            "wall_seconds": self.wall / all,
            "difference": self.difference(),
            "parts": parts.collect::<serde_json::Map<_, _>>(),
            "warning": self.warning(),
            "sentence": self.sentence(),
        })
    }
}

fn name(part: Part) -> &'static str {
    match part {
        Part::Memory => "memory_seconds",
        Part::Arithmetic => "arithmetic_seconds",
        Part::BelowLimit => "below_limit_seconds",
        Part::Gaps => "gap_seconds",
        Part::Host => "host_seconds",
    }
}

/// Launches per token: whole where it is.
fn count(n: f64) -> String {
    if n.fract() < 1e-9 { format!("{n:.0}") } else { format!("{n:.2}") }
}

#[cfg(test)]
mod tests {
    use super::super::tests::sample;

    #[test]
    fn the_table_looks_like_this() {
        let expected = "
tg2 against measured limits: read 1.0 GB/s, multiply-adds 10.0 GFLOP/s, byte dot products 40.0 GOP/s
| launch | per token | MB | MFLOP | µs | share | GB/s | GFLOP/s | of limit | µs at limit | limit |
| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |
| matvec | 2 | 0.034 | 0.07 | 38.0 | 38.4 % | 0.9 | 1.8 | 89 % | 34.0 | memory |
| rms_norm | 1 | 0.001 | 0.00 | 38.0 | 38.4 % | 0.0 | 0.0 | 3 % | 1.0 | memory |
| launch gaps | 3 |  | | 4.0 | 4.0 % | | | |  | |
| host |  |  | | 20.0 | 20.2 % | | | |  | |
| sum of parts |  | 0.035 | | 100.0 | 101.0 % | | | | 35.0 | |
| wall, no profile |  |  | | 99.0 | 100.0 % | | | |  | |
parts against wall: +1.0 % (taken off the profile: 0.0 µs of timestamps)
tg2 is bound by occupancy: 41 % of the time launches run below their limits (latency, too little in flight); reading at the limit 35 %, the host 20 %, launch gaps 4 %.
";
        assert_eq!(sample().table("tg2"), expected);
    }

    #[test]
    fn json_has_the_same_figures() {
        let value = sample().json();
        let near = |value: &serde_json::Value, wanted: f64| {
            assert!((value.as_f64().expect("a number") - wanted).abs() < 1e-9, "{value} is not {wanted}");
        };
        near(&value["launches"][0]["bytes"], 34_000.0);
        near(&value["sum_seconds"], 100e-6);
        near(&value["parts"]["host_seconds"], 20e-6);
        near(&value["difference"], 1.0 / 99.0);
        assert!(value["warning"].is_null());
    }
}
