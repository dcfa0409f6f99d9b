//! A chunk's K and V from their pages to shared memory, and from there as matrices.
//!
//! ```text
//! page ─► registers of all lanes ─► keys[token][element]   ─► B, columns = tokens
//!                                ─► values[token][element] ─► B, rows = tokens   (or transposed: values[element][token])
//! ```

use super::{Kernel, PREFETCH, Run};
use zinc_ir::kernel::{MatrixMemory, Val};
use zinc_ir::plan::{KvType, PAGE_TOKENS};

/// What a lane brings at once: a word (8 elements of a token, as halves) of K, or of V; of V to be transposed those of two tokens.
#[derive(Clone, Copy)]
struct Item {
    of_values: bool,
    /// Of the lane's items of K or of V.
    number: u32,
}

/// Where a chunk's tokens are.
struct Source<'b> {
    page: Val<'b>,
    first: Val<'b>,
    /// Lowest and highest token that the run sees: those beyond repeat one of them.
    lowest: Val<'b>,
    last: Val<'b>,
}

impl<'b> Kernel<'b> {
    /// The lane's part of a chunk is small enough to wait in registers.
    pub(super) fn prefetches(&self) -> bool {
        // What is not halves is converted at once, which would wait for it.
        let halves = self.io.types == KvType::F16.into();
        halves && self.items().iter().map(|item| self.words(item.of_values)).sum::<u32>() <= PREFETCH
    }

    /// This lane's words of a chunk.
    pub(super) fn fetch(&self, run: &Run<'b>, first: Val<'b>) -> Vec<Val<'b>> {
        let source = self.source(run, first);
        self.items().iter().flat_map(|item| self.fetch_item(&source, *item)).collect()
    }

    /// Stores what [`Kernel::fetch`] gave.
    pub(super) fn put(&self, words: &[Val<'b>]) {
        self.put_items(&self.items(), words);
    }

    /// Brings this lane's part of a chunk, about [`PREFETCH`] words at once.
    pub(super) fn stage(&self, run: &Run<'b>, first: Val<'b>) {
        let source = self.source(run, first);
        for items in self.items().chunks(PREFETCH as usize) {
            let words: Vec<Val<'b>> = items.iter().flat_map(|item| self.fetch_item(&source, *item)).collect();
            self.put_items(items, &words);
        }
    }

    /// Words of an item.
    fn words(&self, of_values: bool) -> u32 {
        if of_values && self.tile.wide() { 2 } else { 1 }
    }

    /// Items of all lanes.
    fn count(&self, of_values: bool) -> u32 {
        self.tile.chunk * (self.tile.widths[usize::from(of_values)] / 8) / self.words(of_values)
    }

    /// Of this lane.
    fn items(&self) -> Vec<Item> {
        let of = |of_values| {
            let count = self.count(of_values).div_ceil(self.tile.lanes());
            (0..count).map(move |number| Item { of_values, number })
        };
        of(false).chain(of(true)).collect()
    }

    /// Number of an item among those of all lanes; beyond the last one it is none.
    fn place(&self, item: Item) -> Val<'b> {
        self.b.local_id() + item.number * self.tile.lanes()
    }

    /// Every lane has such an item.
    fn is_whole(&self, item: Item) -> bool {
        (item.number + 1) * self.tile.lanes() <= self.count(item.of_values)
    }

    fn source(&self, run: &Run<'b>, first: Val<'b>) -> Source<'b> {
        let (b, chunk) = (self.b, self.tile.chunk);
        let last = run.sees[1].max(b.u32(1)) - 1;
        // A chunk behind the last is asked for, too: it is the last once more.
        let first = first.min(last / chunk * chunk);
        let page = self.word(self.io.pages, run.sequence * self.pages_per_sequence + first / PAGE_TOKENS);
        Source { page, first, lowest: run.sees[0], last }
    }

    fn fetch_item(&self, source: &Source<'b>, item: Item) -> Vec<Val<'b>> {
        let (b, t) = (self.b, &self.tile);
        let (width, cache) = match item.of_values {
            true => (t.widths[1], self.io.v(&self.spec)),
            false => (t.widths[0], self.io.k(&self.spec)),
        };
        let place = self.place(item);
        let place = if self.is_whole(item) { place } else { place.min(b.u32(self.count(item.of_values) - 1)) };
        let load = |local: Val<'b>, word: Val<'b>| {
            let token = (source.first + local).max(source.lowest).min(source.last) % PAGE_TOKENS;
            cache.load_halves(b, cache.line(source.page, b.tile(1), token), word)
        };
        if self.words(item.of_values) == 1 {
            return vec![load(place / (width / 8), place % (width / 8))];
        }
        let (word, pair) = self.word_and_pair(place);
        [0, 1].map(|o| load(pair * 2 + o, word)).to_vec()
    }

    /// Word and pair of tokens of an item of V that is transposed: neighbours store side by side.
    fn word_and_pair(&self, place: Val<'b>) -> (Val<'b>, Val<'b>) {
        let pairs = self.tile.chunk / 2;
        (place / pairs, place % pairs)
    }

    fn put_items(&self, items: &[Item], words: &[Val<'b>]) {
        let mut rest = words;
        for item in items {
            let (own, others) = rest.split_at(self.words(item.of_values) as usize);
            rest = others;
            match self.is_whole(*item) {
                true => self.put_item(*item, own),
                false => self.b.if_(self.place(*item).lt(self.count(item.of_values)), || self.put_item(*item, own)),
            }
        }
    }

    fn put_item(&self, item: Item, words: &[Val<'b>]) {
        let (b, t) = (self.b, &self.tile);
        let place = self.place(item);
        let [even, odd] = match *words {
            [word] => {
                let (width, array) = if item.of_values { (t.widths[1], self.values) } else { (t.widths[0], self.keys) };
                return b.shared_store(array, place / (width / 8) * t.line(width) + place % (width / 8), word);
            }
            [even, odd, ..] => [even, odd],
            [] => return,
        };
        let (word, pair) = self.word_and_pair(place);
        for lane in 0..4 {
            let [even, odd] = [even, odd].map(|token| token.lane(lane));
            let elements = [(even & 0xffff) | (odd << 16), (even >> 16) | (odd & 0xffff_0000)];
            for (element, value) in (u32::from(lane) * 2..).zip(elements) {
                b.shared_store(self.values, (word * 8 + element) * (t.line(t.chunk) * 4) + pair, value);
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
        let (index, line) = match t.wide() {
            true => (j * t.n() * t.line(t.chunk) * 4 + i * (t.k() / 2), t.line(t.chunk) * 4),
            false => (i * t.k() * t.line(t.widths[1]) + j * (t.n() / 8), t.line(t.widths[1])),
        };
        let memory = MatrixMemory::Shared { array: self.values, index: b.u32(index).value() };
        b.matrix_load(self.types[1], memory, b.u32(line), t.wide())
    }
}
