//! Tables that decoding looks up.
//!
//! ```text
//! kernel's start: entries ─► shared array of the table's name      unit: look_up ─► shared array, or the entry computed
//! ```

use super::Unit;
use crate::kernel::{Builder, Val};

/// A table of words that decoding looks up, in workgroup memory where a kernel has put it there.
pub struct Table {
    /// Name of its shared array.
    pub name: &'static str,
    /// Entries, U32 each: a power of two.
    pub entries: u32,
    /// Emits the value of an entry (U32).
    pub entry: for<'b> fn(&'b Builder, Val<'b>) -> Val<'b>,
}

impl<'b> Unit<'b> {
    /// The entry that bits `shift .. shift + bits` of `word` name.
    ///
    /// The kernel's shared array of the table's name, if there is one, holds every entry several times: entry e of copy
    /// c is element `e · copies + c`. Each lane reads the copy of its number. Without an array the entry is computed.
    pub fn look_up(&self, table: &Table, word: Val<'b>, shift: u32, bits: u32) -> Val<'b> {
        let Some((array, len)) = self.b.shared_array(table.name) else {
            return (table.entry)(self.b, (word >> shift) & ((1 << bits) - 1));
        };
        // One shift brings the bits to where they count entries of all copies.
        let copies = len / table.entries;
        let spread = copies.trailing_zeros();
        let moved = if shift >= spread { word >> (shift - spread) } else { word << (spread - shift) };
        let whole = shift + bits == 32 && spread == 0;
        let at = if whole { moved } else { moved & (((1 << bits) - 1) << spread) };
        self.b.shared_load(array, at | (self.b.lane() & (copies - 1)))
    }

    /// Entry `index`; see [`Unit::look_up`].
    pub fn look_up_at(&self, table: &Table, index: Val<'b>) -> Val<'b> {
        let Some((array, len)) = self.b.shared_array(table.name) else { return (table.entry)(self.b, index) };
        let copies = len / table.entries;
        self.b.shared_load(array, (index * copies) | (self.b.lane() & (copies - 1)))
    }
}
