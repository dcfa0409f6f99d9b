//! Fits a chip's rates to measured launch times: the output is a file of `crates/predict/rates`.
//!
//! ```text
//! fit CARD BENCH.json …      each from `zinc bench --shape NAME:FORMAT -p 0 --profile --json`, one format per shape
//! ```
//!
//! Matrix products: the rate that explains their time beyond launch and ramp best, for each template and format. Others:
//! latency and share of the streaming rate from launches of different size. Formats without a measurement keep the
//! present rates.

use serde_json::Value;
use std::collections::BTreeMap;
use std::error::Error;
use zinc_ir::quant;
use zinc_predict::cards::{self, Card};
use zinc_predict::rates::{self, ROWS, Rate, Serial, Unit};

/// Mean bytes and µs of a launch in one measured run.
type Point = (f64, f64);

/// Launches of decode runs, by template and, for products, by format and 8-bit inputs.
type Points = BTreeMap<(String, Option<(String, bool)>), Vec<Point>>;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let card = cards::card(&arguments.next().ok_or("usage: fit CARD BENCH.json …")?)?;
    let mut points = Points::new();
    for path in arguments {
        let text = std::fs::read_to_string(&path).map_err(|e| format!("{path}: {e}"))?;
        read(&serde_json::from_str(&text).map_err(|e| format!("{path}: {e}"))?, &mut points);
    }
    let mut found = rates::of(card.chip).ok_or("the card has no file")?.clone();
    found.unit = Unit::Gbps;
    for ((template, product), points) in &points {
        match product {
            Some((format, bytes)) => {
                let Some(rate) = product_rate(card, points) else {
                    eprintln!("{template} {format}: no time is left beyond launch and ramp, kept");
                    continue;
                };
                found.lines.retain(|l| !(l.template == *template && l.format == *format && l.bytes == *bytes));
                // Only one row is measured: more rows cost arithmetic in proportion beyond what decoding weights takes.
                let rates = ROWS.map(|rows| rate / (0.5 + 0.5 * rows as f64));
                found.lines.push(Rate { template: template.clone(), format: format.clone(), bytes: *bytes, rates });
            }
            None => {
                found.serial.retain(|s| s.template != *template);
                let (us, share) = serial(card, points);
                found.serial.push(Serial { template: template.clone(), us, share });
            }
        }
    }
    print!("{}", found.text("GB/s of weights of the whole card at 1, 2 and 4 input rows. See docs/internals/rdna.md."));
    Ok(())
}

/// Takes in a run: the generation test's launches.
fn read(bench: &Value, points: &mut Points) {
    let format = bench["model"].as_str().and_then(|name| quant::by_name(name.split_once(':')?.1));
    let tests = bench["tests"].as_array().into_iter().flatten();
    let launches = tests.filter(|t| t["test"].as_str().is_some_and(|name| name.starts_with("tg")));
    for launch in launches.flat_map(|t| t["launches"].as_array().into_iter().flatten()) {
        let number = |key: &str| launch[key].as_f64().filter(|x| *x > 0.0);
        let (Some(name), Some(count), Some(seconds)) = (launch["launch"].as_str(), number("count"), number("seconds"))
        else {
            continue;
        };
        let product = name.starts_with("matvec").then_some(format).flatten();
        if name.starts_with("matvec") && product.is_none() {
            continue;
        }
        let product = product.map(|f| (f.name.to_string(), bench["act"] == "q8" && f.block_elems >= quant::UNIT));
        let point = (number("bytes").unwrap_or(0.0) / count, seconds * 1e6 / count);
        points.entry((name.to_string(), product)).or_default().push(point);
    }
}

/// Least squares through the fixed cost of a launch: GB/s.
fn product_rate(card: &Card, points: &[Point]) -> Option<f64> {
    let fixed = card.launch_us.value + card.ramp_us.value;
    let (mut squares, mut products) = (0.0, 0.0);
    for (bytes, us) in points {
        squares += bytes * bytes;
        products += bytes * (us - fixed);
    }
    (products > 0.0).then(|| squares / products / 1e3)
}

/// Latency in µs and share of the streaming rate, by least squares; where sizes do not differ, all is latency.
fn serial(card: &Card, points: &[Point]) -> (f64, f64) {
    let n = points.len() as f64;
    let mean = |of: fn(&Point) -> f64| points.iter().map(of).sum::<f64>() / n;
    let (bytes, us) = (mean(|p| p.0), mean(|p| p.1));
    let spread: f64 = points.iter().map(|p| (p.0 - bytes).powi(2)).sum();
    let together: f64 = points.iter().map(|p| (p.0 - bytes) * (p.1 - us)).sum();
    let stream = 1.0 / (card.streaming_gbps() * 1e3);
    let slope = if spread > bytes * bytes * 0.01 { (together / spread).max(stream) } else { stream };
    ((us - card.launch_us.value - slope * bytes).max(0.0), stream / slope)
}
