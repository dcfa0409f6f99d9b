//! Look-up tables of weight formats in workgroup memory.
//!
//! ```text
//! start of the kernel: lane l ─entry(l)─► all copies of entry l ─barrier─► units look up their lane's copy
//! ```
//!
//! Lanes that look up at random hit the same memory bank two or three at a time; copies that each use banks of their own
//! make this rarer. A kernel without a table works too: units then compute the entries where they need them.

use zinc_ir::graph::Weight;
use zinc_ir::kernel::{Builder, Type};
use zinc_ir::quant::{QuantFormat, Table};

/// Banks of workgroup memory, of 4 bytes each, on all cards that we know.
const BANKS: u32 = 32;

/// Most bytes of all copies of a table where many lanes look up at once; a table may be larger by itself. (On the H200
/// 16 copies of 1 KiB were 6 to 25 % faster than one; more leave room for fewer workgroups.)
const MOST_BYTES: u32 = 16 << 10;

/// Most bytes of a table in kernels that decode little.
const SMALL_BYTES: u32 = 2 << 10;

/// Declares and fills what the formats of `weights` look up, for kernels of `lanes` lanes that decode all the time. For
/// the start of a kernel, where all lanes are.
pub(super) fn fill(b: &Builder, weights: &[&Weight], lanes: u32) {
    let tables = distinct(weights);
    tables.iter().for_each(|table| fill_one(b, table, copies(table), lanes));
    if !tables.is_empty() {
        b.barrier();
    }
}

/// Bytes of workgroup memory that [`fill`] takes.
pub(super) fn bytes(weights: &[&Weight]) -> u32 {
    distinct(weights).iter().map(|table| table.entries * 4 * copies(table)).sum()
}

/// The tables of some weights' formats, each once.
fn distinct(weights: &[&Weight]) -> Vec<&'static Table> {
    let mut known: Vec<&'static Table> = vec![];
    for table in weights.iter().flat_map(|w| w.format.tables) {
        if !known.iter().any(|k| k.name == table.name) {
            known.push(table);
        }
    }
    known
}

/// Copies of a table where many lanes look up at once.
fn copies(table: &Table) -> u32 {
    (MOST_BYTES / (table.entries * 4)).clamp(1, BANKS)
}

/// As [`fill`] for kernels that decode little: one copy of small tables, none of others.
pub(super) fn fill_small(b: &Builder, weight: &Weight, lanes: u32) {
    if small_bytes(weight.format) > 0 {
        small(weight.format).for_each(|table| fill_one(b, table, 1, lanes));
        b.barrier();
    }
}

/// [`fill_small`] for several weights.
pub(super) fn fill_all_small(b: &Builder, weights: &[&Weight], lanes: u32) {
    let tables = distinct_small(weights);
    tables.iter().for_each(|table| fill_one(b, table, 1, lanes));
    if !tables.is_empty() {
        b.barrier();
    }
}

/// Bytes of workgroup memory that [`fill_all_small`] takes.
pub(super) fn all_small_bytes(weights: &[&Weight]) -> u32 {
    distinct_small(weights).iter().map(|t| t.entries * 4).sum()
}

fn distinct_small(weights: &[&Weight]) -> Vec<&'static Table> {
    distinct(weights).into_iter().filter(|t| t.entries * 4 <= SMALL_BYTES).collect()
}

/// Bytes of workgroup memory that [`fill_small`] takes.
pub(super) fn small_bytes(format: &QuantFormat) -> u32 {
    small(format).map(|t| t.entries * 4).sum()
}

fn small(format: &QuantFormat) -> impl Iterator<Item = &'static Table> {
    format.tables.iter().copied().filter(|t| t.entries * 4 <= SMALL_BYTES)
}

fn fill_one(b: &Builder, table: &Table, copies: u32, lanes: u32) {
    let array = b.shared(table.name, Type::U32, table.entries * copies);
    b.for_(b.local_id(), b.u32(table.entries), lanes, &[], |i, _| {
        let value = (table.entry)(b, i);
        // Starting at another copy in each row of banks, lanes store side by side.
        let first = i / (BANKS / copies);
        for c in 0..copies {
            b.shared_store(array, i * copies + ((first + c) & (copies - 1)), value);
        }
        vec![]
    });
}
