//! Products of many rows: what the compiler makes of a turn, against matrices alone and against the card's memory.
//!
//! ```text
//! machine code for 8192 columns - for 4096     both straight-line, cut as the rule cuts the kernel of a real shape
//!     ─► cycles of vector units, of matrices among them, of workgroup memory; bytes of weights
//! ```
//!
//! The figures stand in `tests/filetests/products_CHIP.txt`; docs/internals/rdna.md says what they mean.

use crate::isa::{self, Cost};
use crate::single::{FAMILIES, Family};
use crate::straight::all_straight;
use std::path::PathBuf;
use std::sync::Arc;
use zinc_compiler::{Choices, Cut, Tuned, compile, tunables};
use zinc_ir::device::Caps;
use zinc_ir::graph::Graph;
use zinc_ir::kernel::Kernel;
use zinc_ir::plan::{ActPrecision, Bucket, KvLayout, KvType, Plan, Tail};
use zinc_ir::quant::{FORMATS, QuantFormat, UNIT};
use zinc_predict::cards::{CARDS, Card};
use zinc_vulkan::KernelStats;

/// Input rows: of batches, and of a prompt.
const ROWS: [u32; 3] = [16, 64, 512];
/// Formats that are compiled at all of them; others at 16 rows.
const USUAL: [&str; 2] = ["Q4_K", "Q6_K"];
/// Rows of the weights; columns of the two straight-line kernels, and of the one whose registers count.
const HEIGHT: u32 = 14336;
const LONG: u32 = 4096;
/// Least columns that the longer of the two straight-line kernels has more: a block, and one turn of the loop.
const STEP: u32 = 256;
/// Least share of matrices in the cycles of vector units, of prompts.
const SHARE: f64 = 0.75;
/// Workgroup memory may take longer than vector units if weights are taken in so many times faster than memory has them.
const MARGIN: f64 = 1.3;
/// Figures may differ from the stored ones by this much.
const TOLERANCE: f64 = 0.2;

/// One combination.
struct Product {
    format: &'static QuantFormat,
    rows: u32,
    /// Straight-line for the two lengths, then as it is.
    kernels: [Kernel; 3],
    /// Columns that the longer one has more, and the bytes of weights that a subgroup has of them.
    columns: u32,
    bytes: f64,
}

/// The launch of gate and up, and how it can be cut.
fn plan(graph: &Arc<Graph>, rows: u32, caps: &Caps, tuned: Tuned) -> (Plan, Option<(String, Cut)>) {
    let kv = Arc::new(KvLayout::new(graph, KvType::F16, 128));
    let bucket = Bucket { tokens: rows, outputs: rows, context: 256, sequences: 1, tail: Tail::Logits };
    let choices = Choices { act: ActPrecision::F16, tuned: Arc::new(tuned), ..Choices::default() };
    let found = tunables(graph, &kv, bucket, caps, &choices).expect("compiles").into_iter();
    let cuts = found.map(|t| t.cuts).find(|c| c.key.starts_with("matmul_glu")).map(|c| (c.key, c.used));
    (compile(graph, &kv, bucket, caps, &choices).expect("compiles"), cuts)
}

fn product(family: &Family, format: &'static QuantFormat, rows: u32, caps: &Caps) -> Product {
    let graph = |cols| Arc::new((family.graph)(format, HEIGHT, cols));
    let launch = |plan: &Plan| {
        let launch = plan.launches().find(|l| l.template == "matmul_glu").expect("gate and up as one launch");
        let kernel = plan.kernels[launch.kernel.expect("a kernel").0 as usize].clone();
        let subgroups = launch.grid[1] * (kernel.workgroup_size / kernel.subgroup_size);
        (kernel, subgroups)
    };
    let (real, cuts) = plan(&graph(LONG), rows, caps, Tuned::new());
    // Slices would make trip counts depend on the workgroup.
    let cut = cuts.map(|(_, cut)| Cut { slices: 1, ..cut });
    // A lane takes units of 32 columns, and so many lanes share a line of a matrix.
    let columns = cut.map_or(STEP, |c| (c.units * c.columns * caps.matrix_lanes / c.rows * UNIT).max(STEP));
    let straight = [columns, 2 * columns].map(|cols| {
        let graph = graph(cols);
        let tuned = cut.zip(plan(&graph, rows, caps, Tuned::new()).1).map(|(cut, (key, _))| (key, cut));
        let (plan, used) = plan(&graph, rows, caps, tuned.into_iter().collect());
        assert_eq!(used.map(|(_, used)| used), cut, "{} at {rows} rows: cut in another way", format.name);
        launch(&plan)
    });
    let weights = 2.0 * HEIGHT as f64 * columns as f64;
    let bytes = weights / format.block_elems as f64 * format.block_bytes as f64 / straight[1].1 as f64;
    let [short, long] = straight.map(|(kernel, _)| all_straight(&kernel));
    Product { format, rows, kernels: [short, long, launch(&real).0], columns, bytes }
}

/// A product's figures.
struct Found {
    format: &'static str,
    rows: u32,
    columns: u32,
    /// Of the columns that the longer kernel has more, for one subgroup.
    turns: Cost,
    /// Cycles of matrices among those of vector units.
    matrices: f64,
    /// Times the streaming rate at which weights are taken in when all data is at hand.
    ratio: f64,
    vgprs: u32,
    waves: u32,
    spills: u64,
}

fn found(card: &Card, product: &Product, stats: &[KernelStats]) -> Found {
    let assembly = |s: &KernelStats| s.assembly.clone().expect("RADV tells the machine code");
    let costs = |s: &KernelStats| match product.kernels[0].subgroup_size {
        32 => isa::cost_of_32(&assembly(s)),
        _ => isa::cost(&assembly(s)),
    };
    let matrices = |s: &KernelStats| isa::matrices(&assembly(s));
    let turns = costs(&stats[1]) - costs(&stats[0]);
    let vgprs = stats[2].vgprs.expect("RADV tells registers") as u32;
    Found {
        format: product.format.name,
        rows: product.rows,
        columns: product.columns,
        turns,
        matrices: matrices(&stats[1]) - matrices(&stats[0]),
        ratio: card.arithmetic_gbps(product.bytes / turns.cycles()) / card.streaming_gbps(),
        vgprs,
        waves: 64 / product.kernels[0].subgroup_size * card.waves(vgprs).expect("RDNA cards have registers"),
        spills: stats[2].spills.expect("RADV tells spills") + stats[2].scratch.unwrap_or(0),
    }
}

/// The figures as they are stored.
fn table(card: &Card, all: &[Found]) -> String {
    let mut text = format!(
        "{}: cycles of a subgroup; weights taken in, times the streaming rate\n{:<8}{:>6}{:>8}{:>8}{:>10}{:>8}{:>9}{:>7}{:>7}\n",
        card.title, "format", "rows", "columns", "vector", "matrices", "shared", "xmemory", "VGPRs", "waves"
    );
    for Found { format, rows, columns, turns, matrices, ratio, vgprs, waves, .. } in all {
        let (vector, shared) = (turns.vector, turns.shared);
        text += &format!("{format:<8}{rows:>6}{columns:>8}{vector:>8.0}{matrices:>10.0}");
        text += &format!("{shared:>8.0}{ratio:>9.2}{vgprs:>7}{waves:>7}\n");
    }
    text
}

/// A stored table's lines: what they are of, and their figures.
fn lines(table: &str) -> Vec<(String, Vec<f64>)> {
    let line = |line: &str| {
        let mut words = line.split_whitespace();
        let what = words.by_ref().take(2).collect::<Vec<_>>().join(" at ");
        (what, words.map(|word| word.parse().expect("a figure")).collect())
    };
    table.lines().skip(2).map(line).collect()
}

/// Where the figures of a card are stored.
fn stored(card: &Card) -> PathBuf {
    let folder = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../filetests"));
    folder.join(format!("products_{}.txt", card.chip))
}

/// Compares with the stored figures, or stores these.
fn check(card: &Card, now: &str) {
    let path = stored(card);
    if std::env::var_os("BLESS").is_some() {
        return std::fs::write(&path, now).expect("the file can be written");
    }
    let before = std::fs::read_to_string(&path).expect("the file can be read");
    let near = |(a, b): (&f64, &f64)| (a / b - 1.0).abs() <= TOLERANCE;
    let changed: Vec<String> = lines(&before)
        .iter()
        .zip(&lines(now))
        .filter(|(before, now)| before.0 != now.0 || !before.1.iter().zip(&now.1).all(near))
        .map(|(before, now)| format!("{before:?} is {now:?} now"))
        .collect();
    assert_eq!(lines(&before).len(), lines(now).len(), "other products");
    assert!(changed.is_empty(), "run with BLESS=1 if that is meant:\n{}", changed.join("\n"));
}

/// What is wrong with a product, in words.
fn complaint(f: &Found) -> Option<String> {
    let what = format!("{} at {} rows", f.format, f.rows);
    let share = f.matrices / f.turns.vector;
    let least = if f.rows > 64 { SHARE } else { 0.0 };
    if f.spills > 0 {
        return Some(format!("{what} spills"));
    }
    if share < least {
        return Some(format!("{what}: matrices are {share:.2} of the vector units' cycles, not {least}"));
    }
    (f.turns.shared > f.turns.vector && f.ratio < MARGIN).then(|| format!("{what}: workgroup memory is what limits"))
}

#[test]
fn products_of_many_rows() {
    let Some((chip, device)) = crate::device() else { return };
    let card = CARDS.iter().find(|c| c.chip == chip).expect("a card of this family");
    let driver = device.caps(device.subgroup_size);
    if driver.matrices.is_empty() {
        assert!(!stored(card).exists(), "{chip} had matrices once");
        return println!("not run: {chip} has no matrices here");
    }
    let caps = Caps { matrices: driver.matrices, matrix_lanes: driver.matrix_lanes, ..card.caps() };
    let family = FAMILIES.iter().find(|f| f.name == "matvec_glu").expect("gate and up");
    let rows = |f: &QuantFormat| if USUAL.contains(&f.name) { &ROWS[..] } else { &ROWS[..1] };
    let products: Vec<Product> = FORMATS
        .iter()
        .copied()
        .flat_map(|format| rows(format).iter().map(move |rows| (format, *rows)))
        .map(|(format, rows)| product(family, format, rows, &caps))
        .collect();
    let kernels: Vec<Kernel> = products.iter().flat_map(|p| p.kernels.clone()).collect();
    let stats = zinc_vulkan::compile_only(device.index, &kernels, true).expect("every kernel compiles");
    let all: Vec<Found> = products.iter().zip(stats.chunks_exact(3)).map(|(p, s)| found(card, p, s)).collect();
    let table = table(card, &all);
    println!("{table}");
    let complaints: Vec<String> = all.iter().filter_map(complaint).collect();
    assert!(complaints.is_empty(), "{} products:\n{}", complaints.len(), complaints.join("\n"));
    check(card, &table);
}
