//! A chunk's K and V from their pages to shared memory, and from there as matrices.
//!
//! ```text
//! page ─► registers of all lanes ─► keys[token][element], values[token][element] ─► B (columns = tokens | rows = tokens)
//! ```

use super::{Kernel, Run};
use zinc_ir::kernel::{MatrixMemory, Type, Val};
use zinc_ir::plan::PAGE_TOKENS;

impl<'b> Kernel<'b> {
    /// Words of a chunk's K and V for this lane to stage. Tokens that the run does not see repeat one that it does.
    pub(super) fn fetch(&self, run: &Run<'b>, first: Val<'b>) -> Vec<Val<'b>> {
        let (b, t) = (self.b, &self.tile);
        let last = run.sees[1].max(b.u32(1)) - 1;
        // A chunk behind the last is asked for, too: it is the last once more.
        let first = first.min(last / t.chunk * t.chunk);
        let page = self.word(self.io.pages, run.sequence * self.pages_per_sequence + first / PAGE_TOKENS);
        let lines = (page * self.spec.kv_heads + b.tile(1)) * PAGE_TOKENS;
        let mut words = vec![];
        for (width, area) in t.widths.into_iter().zip([self.io.k, self.io.v]) {
            for i in self.items(width) {
                let (local, word) = (i / (width / 8), i % (width / 8));
                let token = (first + local).max(run.sees[0]).min(last) % PAGE_TOKENS;
                let at = (lines + token) * width + word * 8;
                words.push(b.load_at(Type::U32X4, area, at * 2, 0, 16, true));
            }
        }
        words
    }

    /// This lane's words of a chunk of lines of `width` elements; the last ones may come twice.
    fn items(&self, width: u32) -> Vec<Val<'b>> {
        let (b, lanes) = (self.b, self.tile.lanes());
        let count = self.tile.chunk * (width / 8);
        let item = |i: u32| {
            let item = b.local_id() + i * lanes;
            if (i + 1) * lanes <= count { item } else { item.min(b.u32(count - 1)) }
        };
        (0..count.div_ceil(lanes)).map(item).collect()
    }

    /// Stores what [`Kernel::fetch`] gave.
    pub(super) fn stage(&self, words: &[Val<'b>]) {
        let (b, t) = (self.b, &self.tile);
        let mut words = words.iter();
        for (width, array) in t.widths.into_iter().zip([self.keys, self.values]) {
            let count = t.chunk * (width / 8);
            for (i, (item, value)) in self.items(width).into_iter().zip(words.by_ref()).enumerate() {
                let put = || b.shared_store(array, item / (width / 8) * t.line(width) + item % (width / 8), *value);
                match (i as u32 + 1) * t.lanes() <= count {
                    true => put(),
                    false => b.if_((b.local_id() + i as u32 * t.lanes()).lt(count), put),
                }
            }
        }
    }

    /// Elements `i * k ..` of tokens `j * n ..` of the staged K, which lie as columns.
    pub(super) fn load_keys(&self, i: u32, j: u32) -> Val<'b> {
        let (b, t) = (self.b, &self.tile);
        let line = t.line(t.widths[0]);
        let index = b.u32(j * t.n() * line + i * (t.k() / 8)).value();
        b.matrix_load(self.types[1], MatrixMemory::Shared { array: self.keys, index }, b.u32(line), true)
    }

    /// Elements `j * n ..` of tokens `i * k ..` of the staged V.
    pub(super) fn load_values(&self, i: u32, j: u32) -> Val<'b> {
        let (b, t) = (self.b, &self.tile);
        let line = t.line(t.widths[1]);
        let index = b.u32(i * t.k() * line + j * (t.n() / 8)).value();
        b.matrix_load(self.types[1], MatrixMemory::Shared { array: self.values, index }, b.u32(line), false)
    }
}
