//! The arithmetic rate of every mat-vec kernel, from the compiler's statistics, against the card's memory.
//!
//! ```text
//! cycles of (2U turns of the column loop) - cycles of (U turns)      both straight-line: no prologue, no loop weighting
//! ─────────────────────────────────────────────────────────────
//! bytes of weights of U turns                ─► bytes per clock ─► GB/s of all SIMDs  ≥  1.5 × streaming (1 row)
//! ```
//!
//! docs/internals/rdna.md explains the method and its limits.

use crate::device;
use crate::isa::{self, Cost};
use crate::single::{FAMILIES, Family, Single, single};
use crate::straight::straight;
use std::path::PathBuf;
use zinc_compiler::Choices;
use zinc_ir::device::Caps;
use zinc_ir::kernel::Kernel;
use zinc_ir::plan::ActPrecision;
use zinc_ir::quant::{FORMATS, QuantFormat, UNIT};
use zinc_predict::cards::{CARDS, Card};
use zinc_predict::rates::{ROWS, Rate, Rates, Unit};
use zinc_vulkan::KernelStats;

/// Columns of the two straight-line kernels: two and four turns of 64 lanes, each lane a unit.
const COLUMNS: [u32; 2] = [4096, 8192];
/// Columns of the kernel whose registers count: a row of many turns.
const LONG: u32 = 14336;
/// Input rows, and how much faster than memory arithmetic must be. At eight, matrix units shall take over: shown only.
const MARGIN: [(u32, f64); 4] = [(1, 1.5), (2, 1.3), (4, 1.3), (8, 0.0)];
/// Subgroups of 64 lanes that must be resident per SIMD …
const WAVES: u32 = 8;
/// … or, at half of that, bytes a compute unit's subgroups wait for at a time: twice what bandwidth times 0.7 µs of latency
/// asks of it. Kernels that hold many loads in registers have few subgroups and need no more.
const IN_FLIGHT: f64 = 14.0 * 1024.0;
/// Rates may differ from the stored ones by this much.
const TOLERANCE: f64 = 0.2;
/// Rates this many times the streaming rate count as this.
const IRRELEVANT: f64 = 4.0;

/// One kernel's figures.
struct Found {
    family: &'static str,
    format: &'static str,
    act: ActPrecision,
    /// Input rows.
    rows: u32,
    /// Of the turns that the long kernel has more.
    turns: Cost,
    /// Weights of these turns.
    bytes: f64,
    gbps: f64,
    /// Against the card's streaming rate.
    ratio: f64,
    vgprs: u32,
    waves: u32,
    /// Bytes that the resident subgroups of a compute unit can wait for at a time.
    in_flight: f64,
    spills: u64,
}

/// What is compiled of one combination.
struct Trio {
    family: &'static Family,
    format: &'static QuantFormat,
    act: ActPrecision,
    rows: u32,
    short: Single,
    long: Single,
    real: Kernel,
}

fn trio(family: &'static Family, format: &'static QuantFormat, act: ActPrecision, rows: u32, caps: &Caps) -> Trio {
    let height = match family.name {
        // Few enough that its heads are cut small.
        "matvec_qkv" => 1024,
        // Enough to fill the card.
        _ => caps.parallel_tiles * 16,
    };
    // Mat-vecs at every number of rows, also where matrix units would take over.
    let choices = Choices { act, matrices: false, ..Choices::default() };
    let of = |cols| single(family, format, [height, cols], rows, caps, &choices);
    let [short, long] = COLUMNS.map(|cols| {
        let looped = of(cols);
        Single { kernel: straight(&looped.kernel), ..looped }
    });
    Trio { family, format, act, rows, short, long, real: of(LONG).kernel }
}

fn found(card: &Card, trio: &Trio, stats: &[KernelStats]) -> Found {
    let cost = |s: &KernelStats| isa::cost(s.assembly.as_ref().expect("RADV tells the machine code"));
    let real = &stats[2];
    let vgprs = real.vgprs.expect("RADV tells registers") as u32;
    // Mesa 25.0 reports gfx12's register file too small.
    let waves = card.waves(vgprs).expect("RDNA cards have registers");
    let (turns, bytes) = (cost(&stats[1]) - cost(&stats[0]), trio.long.bytes - trio.short.bytes);
    let gbps = card.arithmetic_gbps(bytes / turns.cycles());
    Found {
        family: trio.family.name,
        format: trio.format.name,
        act: trio.act,
        rows: trio.rows,
        turns,
        bytes,
        gbps,
        ratio: gbps / card.streaming_gbps(),
        vgprs,
        waves,
        in_flight: 2.0 * waves as f64 * isa::in_flight(real.assembly.as_ref().expect("as above")),
        spills: real.spills.expect("RADV tells spills") + real.scratch.unwrap_or(0),
    }
}

fn measure(card: &Card, device: usize, caps: &Caps) -> Vec<Found> {
    let mut trios = vec![];
    for family in FAMILIES {
        for format in FORMATS.iter().copied() {
            for act in [ActPrecision::F16, ActPrecision::Q8] {
                if act == ActPrecision::Q8 && format.block_elems < UNIT {
                    continue;
                }
                // Eight rows take long to compile, and the other families do the same.
                let rows = MARGIN.iter().filter(|m| m.1 > 0.0 || family.name == "matvec_residual");
                trios.extend(rows.map(|m| trio(family, format, act, m.0, caps)));
            }
        }
    }
    let kernels: Vec<Kernel> =
        trios.iter().flat_map(|t| [t.short.kernel.clone(), t.long.kernel.clone(), t.real.clone()]).collect();
    let stats = zinc_vulkan::compile_only(device, &kernels, true).expect("every kernel compiles");
    trios.iter().zip(stats.chunks_exact(3)).map(|(t, stats)| found(card, t, stats)).collect()
}

fn act_name(act: ActPrecision) -> &'static str {
    if act == ActPrecision::Q8 { "q8" } else { "f16" }
}

fn print(card: &Card, all: &[Found]) {
    println!(
        "{}: {} SIMDs at {} GHz, streaming {:.0} GB/s; cycles and bytes are per subgroup of 64",
        card.title,
        card.simds,
        card.clock_ghz,
        card.streaming_gbps()
    );
    for family in FAMILIES {
        println!("\n{}", family.name);
        print!("| format | inputs | rows | vector | shared | bytes | loaded | GB/s | × memory ");
        println!("| VGPR | waves | KiB in flight | spills |\n|{}", " --- |".repeat(13));
        for f in all.iter().filter(|f| f.family == family.name) {
            let t = f.turns;
            print!("| {} | {} | {} | {:.0} | {:.0} ", f.format, act_name(f.act), f.rows, t.vector, t.shared);
            print!("| {:.0} | {:.0} | {:.0} | {:.2} ", f.bytes, t.loaded, f.gbps, f.ratio);
            println!("| {} | {} | {:.0} | {} |", f.vgprs, f.waves, f.in_flight / 1024.0, f.spills);
        }
    }
}

/// A kernel that may stay below the gate, and why. The figures are floors: getting worse is an error still.
struct Exception {
    /// Families it is for.
    families: &'static [&'static str],
    /// Formats; none: all.
    formats: &'static [&'static str],
    act: ActPrecision,
    /// Input rows.
    rows: &'static [u32],
    /// Times the streaming rate.
    ratio: f64,
    /// Resident subgroups.
    waves: u32,
    reason: &'static str,
}

const EXCEPTIONS: &[Exception] = &[
    Exception {
        families: &["matvec", "matvec_residual", "matvec_glu", "matvec_qkv"],
        formats: &["F32", "F16", "BF16"],
        act: ActPrecision::F16,
        rows: &[1, 2, 4],
        ratio: 1.5,
        waves: 4,
        reason: "float weights need no decoding: their registers hold loads, more than 150 KiB of them per compute unit",
    },
    Exception {
        families: &["matvec"],
        formats: &["Q3_K", "IQ3_S"],
        act: ActPrecision::F16,
        rows: &[4],
        ratio: 1.1,
        waves: 8,
        // Measured: 1.18 and 1.20 on Navi31, 1.17 and 1.19 on gfx1201, above 1.3 on Navi33.
        reason: "only output matrices take this kernel, and mixes with these formats have them in Q6_K",
    },
];

impl Exception {
    fn covers(&self, f: &Found) -> bool {
        self.families.contains(&f.family)
            && (self.formats.is_empty() || self.formats.contains(&f.format))
            && self.act == f.act
            && self.rows.contains(&f.rows)
    }
}

/// What is wrong with a kernel, in words.
fn complaint(f: &Found) -> Option<String> {
    let margin = MARGIN.iter().find(|(rows, _)| *rows == f.rows).map_or(0.0, |m| m.1);
    let exception = EXCEPTIONS.iter().find(|e| e.covers(f));
    let (ratio, waves) = exception.map_or((margin, WAVES), |e| (e.ratio, e.waves));
    let what = format!("{} {} {} x{}", f.family, f.format, act_name(f.act), f.rows);
    let because = exception.map_or(String::new(), |e| format!(" (an exception: {})", e.reason));
    if f.spills > 0 {
        return Some(format!("{what} spills"));
    }
    if f.ratio < ratio {
        return Some(format!("{what}: arithmetic at {:.2} of the memory's rate, not {ratio}{because}", f.ratio));
    }
    let enough = f.waves >= waves || (f.waves >= waves / 2 && f.in_flight >= IN_FLIGHT);
    let kib = f.in_flight / 1024.0;
    (!enough).then(|| format!("{what}: {} resident subgroups of {waves}, {kib:.1} KiB in flight{because}", f.waves))
}

/// The rates in the form in which they are stored.
fn stored(card: &Card, all: &[Found]) -> Rates {
    let mut lines: Vec<Rate> = vec![];
    for f in all {
        let Some(column) = ROWS.iter().position(|rows| *rows == f.rows) else { continue };
        let is = |l: &Rate| l.template == f.family && l.format == f.format && l.bytes == (f.act == ActPrecision::Q8);
        let at = lines.iter().position(is).unwrap_or_else(|| {
            let (template, format) = (f.family.to_string(), f.format.to_string());
            lines.push(Rate { template, format, bytes: f.act == ActPrecision::Q8, rates: [0.0; ROWS.len()] });
            lines.len() - 1
        });
        lines[at].rates[column] = f.gbps / card.arithmetic_gbps(1.0);
    }
    Rates { unit: Unit::BytesPerClock, lines, serial: vec![] }
}

/// Compares the rates with those of the file that predictions use, or writes the file.
fn check_rates(card: &Card, mut now: Rates) {
    let path = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../crates/predict/rates"));
    let path = path.join(format!("{}.txt", card.chip));
    let command = format!("BLESS=1 cargo xtask vk radv:{} -- cargo test -p zinc-conformance --test radv", card.chip);
    let text = std::fs::read_to_string(&path).expect("the file can be read");
    let before = Rates::parse(&text).expect("the file holds rates");
    if std::env::var_os("BLESS").is_some() {
        let heading =
            format!("Bytes of weights per clock of one SIMD at 1, 2 and 4 input rows, from AMD's compiler.\n{command}");
        now.serial = before.serial;
        std::fs::write(&path, now.text(&heading)).expect("the file can be written");
        return;
    }
    let mut changed = vec![];
    for line in &now.lines {
        let act = if line.bytes { ActPrecision::Q8 } else { ActPrecision::F16 };
        let what = format!("{} {} {}", line.template, line.format, act_name(act));
        match before.line(&line.template, &line.format, act).filter(|l| l.bytes == line.bytes) {
            None => changed.push(format!("{what} is not in the file")),
            Some(old) => {
                // Far above memory's rate no prediction depends on it.
                let most = IRRELEVANT * card.streaming_gbps() / card.arithmetic_gbps(1.0);
                let near = |(a, b): (&f64, &f64)| (a.min(most) / b.min(most) - 1.0).abs() <= TOLERANCE;
                if !old.rates.iter().zip(&line.rates).all(near) {
                    changed.push(format!("{what}: {:.3?}, the file has {:.3?}", line.rates, old.rates));
                }
            }
        }
    }
    assert!(changed.is_empty(), "the stored rates are out of date; run `{command}`:\n{}", changed.join("\n"));
}

#[test]
fn arithmetic_outruns_memory() {
    let Some((chip, device)) = device() else { return };
    let card = CARDS.iter().find(|c| c.chip == chip).expect("a card of this family");
    // Without hardware the driver does not know how many units there are.
    let caps = card.caps();
    assert_eq!(caps.subgroup_size, device.subgroup_size, "{}", device.name);
    let all = measure(card, device.index, &caps);
    print(card, &all);
    let complaints: Vec<String> = all.iter().filter_map(complaint).collect();
    assert!(complaints.is_empty(), "{} kernels:\n{}", complaints.len(), complaints.join("\n"));
    check_rates(card, stored(card, &all));
}
