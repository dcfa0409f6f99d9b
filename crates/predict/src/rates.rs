//! How fast kernels take in weights when all data is at hand: one file per chip in `crates/predict/rates`.
//!
//! ```text
//! template format act   rows=1 2 4        matvec_glu Q4_K f16 2.41 1.80 1.02
//! serial template us share               serial argmax 2.0 0.01
//! ```
//!
//! RDNA's files count bytes per clock of one SIMD. They come out of AMD's compiler (`cargo xtask vk radv:CHIP -- cargo
//! test -p zinc-conformance --test radv` compares them, and writes them under `BLESS=1`). The H200's file counts GB/s and
//! comes from launch times of shapes other than those whose prediction is checked (docs/internals/rdna.md).

use std::fmt::Write;
use std::sync::LazyLock;
use zinc_ir::plan::ActPrecision;

/// Numbers of input rows that a file has columns for.
pub const ROWS: [u32; 3] = [1, 2, 4];

/// What a file counts in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    /// Bytes of weights per clock of one SIMD.
    BytesPerClock,
    /// 10⁹ bytes of weights per second on the whole card.
    Gbps,
}

/// The rates of one template with one format.
#[derive(Clone, PartialEq, Debug)]
pub struct Rate {
    /// Template name.
    pub template: String,
    /// Format name.
    pub format: String,
    /// Inputs are 8-bit.
    pub bytes: bool,
    /// One for each of [`ROWS`].
    pub rates: [f64; ROWS.len()],
}

/// A launch without matrices: it takes this long beyond the cost of any launch, plus its bytes at a share of the
/// streaming rate.
#[derive(Clone, PartialEq, Debug)]
pub struct Serial {
    /// Template name.
    pub template: String,
    /// µs.
    pub us: f64,
    /// Share of the streaming rate.
    pub share: f64,
}

/// A file's content.
#[derive(Clone, PartialEq, Debug)]
pub struct Rates {
    /// Unit of all rates.
    pub unit: Unit,
    /// Matrix products, in any order.
    pub lines: Vec<Rate>,
    /// The others.
    pub serial: Vec<Serial>,
}

/// A line that is no rate.
#[derive(Debug, thiserror::Error, PartialEq)]
#[error("rates, line {line}: expected {expected}")]
pub struct BadRate {
    line: usize,
    expected: &'static str,
}

static FILES: LazyLock<[(&str, Rates); 4]> = LazyLock::new(|| {
    let parsed = |text| Rates::parse(text).expect("a test reads every file");
    [
        ("navi33", parsed(include_str!("../rates/navi33.txt"))),
        ("navi31", parsed(include_str!("../rates/navi31.txt"))),
        ("gfx1201", parsed(include_str!("../rates/gfx1201.txt"))),
        ("h200", parsed(include_str!("../rates/h200.txt"))),
    ]
});

/// The rates of a chip, if there is a file for it.
pub fn of(chip: &str) -> Option<&'static Rates> {
    FILES.iter().find(|(name, _)| *name == chip).map(|(_, rates)| rates)
}

impl Rates {
    /// Reads a file.
    ///
    /// # Errors
    /// [`BadRate`] with the line.
    pub fn parse(text: &str) -> Result<Rates, BadRate> {
        let mut lines = text.lines().enumerate().filter(|(_, l)| !l.trim().is_empty() && !l.starts_with('#'));
        let bad = |line: usize, expected| BadRate { line: line + 1, expected };
        let unit = match lines.next() {
            Some((_, "unit bytes/clock")) => Unit::BytesPerClock,
            Some((_, "unit GB/s")) => Unit::Gbps,
            other => return Err(bad(other.map_or(0, |o| o.0), "`unit bytes/clock` or `unit GB/s` first")),
        };
        let mut rates = Rates { unit, lines: vec![], serial: vec![] };
        for (at, line) in lines {
            let words: Vec<&str> = line.split_whitespace().collect();
            if let ["serial", template, us, share] = words[..] {
                let number = |word: &str| word.parse().ok().filter(|x: &f64| *x >= 0.0);
                let (Some(us), Some(share)) = (number(us), number(share).filter(|s| *s > 0.0)) else {
                    return Err(bad(at, "serial TEMPLATE US SHARE"));
                };
                rates.serial.push(Serial { template: template.to_string(), us, share });
                continue;
            }
            let [template, format, act, numbers @ ..] = &words[..] else {
                return Err(bad(at, "TEMPLATE FORMAT ACT RATES"));
            };
            let bytes = match *act {
                "f16" => false,
                "q8" => true,
                _ => return Err(bad(at, "f16 or q8")),
            };
            let numbers: Vec<f64> = numbers.iter().filter_map(|r| r.parse().ok()).filter(|r| *r > 0.0).collect();
            let numbers = numbers.try_into().map_err(|_| bad(at, "three positive rates"))?;
            let (template, format) = (template.to_string(), format.to_string());
            rates.lines.push(Rate { template, format, bytes, rates: numbers });
        }
        Ok(rates)
    }

    /// The file's text, under a heading of `#` lines.
    pub fn text(&self, heading: &str) -> String {
        let mut out: String = heading.lines().map(|line| format!("# {line}\n")).collect();
        out += match self.unit {
            Unit::BytesPerClock => "unit bytes/clock\n",
            Unit::Gbps => "unit GB/s\n",
        };
        for line in &self.lines {
            let act = if line.bytes { "q8" } else { "f16" };
            let rates = line.rates.map(|r| format!("{r:.3}")).join(" ");
            writeln!(out, "{} {} {act} {rates}", line.template, line.format).expect("strings take text");
        }
        for line in &self.serial {
            writeln!(out, "serial {} {} {}", line.template, line.us, line.share).expect("strings take text");
        }
        out
    }

    /// The line of a template and a format; inputs of F32 are counted as halves.
    pub fn line(&self, template: &str, format: &str, act: ActPrecision) -> Option<&Rate> {
        let bytes = act == ActPrecision::Q8;
        let is = |l: &&Rate| l.template == template && l.format == format;
        let all = || self.lines.iter().filter(is);
        // Formats without 8-bit products have only a line for halves.
        all().find(|l| l.bytes == bytes).or_else(|| all().find(|l| !l.bytes))
    }
}

impl Rate {
    /// The rate at so many input rows: that of the next larger number of [`ROWS`].
    pub fn at(&self, rows: u32) -> f64 {
        self.rates[ROWS.iter().position(|r| rows <= *r).unwrap_or(ROWS.len() - 1)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cards::CARDS;

    #[test]
    fn every_card_has_rates_that_can_be_read_and_written() {
        for card in CARDS {
            let rates = of(card.chip).expect("a file for the chip");
            assert!(!rates.lines.is_empty(), "{}", card.chip);
            assert_eq!(Rates::parse(&rates.text("a\nb")).as_ref(), Ok(rates));
        }
    }

    #[test]
    fn rows_take_the_next_larger_column_and_missing_bytes_the_floats() {
        let rates = Rates::parse("unit GB/s\nmatvec F16 f16 8 4 2\n").expect("reads");
        let line = rates.line("matvec", "F16", ActPrecision::Q8).expect("a line");
        assert_eq!([1, 2, 3, 4, 8].map(|n| line.at(n)), [8.0, 4.0, 2.0, 2.0, 2.0]);
        assert_eq!(rates.line("matvec", "Q4_K", ActPrecision::F16), None);
    }

    #[test]
    fn bad_lines_are_named() {
        for (text, line) in [
            ("", 1),
            ("unit GB/s\nx", 2),
            ("unit GB/s\nx y f8 1 1 1", 2),
            ("unit GB/s\nx y q8 1 1 0", 2),
            ("unit GB/s\n\nserial x 1 0", 3),
        ] {
            assert_eq!(Rates::parse(text).map_err(|e| e.line), Err(line), "{text}");
        }
    }
}
