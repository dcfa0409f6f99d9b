//! Tiles that finish something together: the one that comes last may read what all of them wrote.
//!
//! ```text
//! every tile: write, barrier, one lane adds 1 to the counter ─► the one that meets `parts - 1` goes on
//! ```
//!
//! This saves a launch that would do nothing else but read their results. Nobody waits; the counter is zero again when
//! the launch ends. See docs/internals/persistent.md for what orders the accesses.

use zinc_ir::kernel::{Builder, Order, Type, Val};
use zinc_ir::quant::UNIT;

/// The shared memory of [`last`].
pub(super) fn memory(b: &Builder) -> u32 {
    b.shared("arrived", Type::U32, 1)
}

/// [`last_in`] with memory of its own.
pub(super) fn last<'b>(b: &'b Builder, counters: Val<'b>, index: Val<'b>, parts: Val<'b>, then: impl FnOnce()) {
    last_in(b, memory(b), counters, index, parts, then);
}

/// Runs `then` in that one of `parts` tiles, at least one, with counter `index` that comes last. All lanes of the workgroup come here,
/// and what they have written is read by way of write-read arguments ([`super::args::Args::write_read`]).
pub(super) fn last_in<'b>(
    b: &'b Builder,
    arrived: u32,
    counters: Val<'b>,
    index: Val<'b>,
    parts: Val<'b>,
    then: impl FnOnce(),
) {
    b.barrier();
    b.if_(b.local_id().eq(0), || {
        let before = b.atomic_add(counters, index * 4, b.u32(1), Order::AcquireRelease);
        b.shared_store(arrived, b.u32(0), before);
    });
    b.barrier();
    b.if_(b.shared_load(arrived, b.u32(0)).eq(parts - 1), || {
        b.if_(b.local_id().eq(0), || {
            // Back to zero by wrapping: a plain store would not be ordered after the others' additions.
            b.atomic_add(counters, index * 4, b.u32(0) - parts, Order::Relaxed);
        });
        then();
    });
}

/// [`last`] of the tiles of `tile` rows, less than 32, that share a block of 32 rows with row `first`.
pub(super) fn last_of_block<'b>(b: &'b Builder, counters: Val<'b>, first: Val<'b>, tile: u32, then: impl FnOnce()) {
    last(b, counters, first / UNIT, b.u32(UNIT / tile), then);
}
