//! A chunk's K and V from their pages to shared memory, and from there as matrices.
//!
//! ```text
//! page ─► registers of all lanes ─► keys[token][element]   ─► B, columns = tokens
//!                                ─► values[token][element] ─► B, rows = tokens   (or transposed: values[element][token])
//! ```

use super::{Kernel, Run};
use zinc_ir::kernel::{MatrixMemory, Type, Val};
use zinc_ir::plan::PAGE_TOKENS;

impl<'b> Kernel<'b> {
    /// Words (8 elements of a token) of a chunk's K and V for this lane to stage: one of K, or of V not transposed, per
    /// item; of V to be transposed those of two tokens. Tokens that the run does not see repeat one that it does.
    pub(super) fn fetch(&self, run: &Run<'b>, first: Val<'b>) -> Vec<Val<'b>> {
        let (b, t) = (self.b, &self.tile);
        let last = run.sees[1].max(b.u32(1)) - 1;
        // A chunk behind the last is asked for, too: it is the last once more.
        let first = first.min(last / t.chunk * t.chunk);
        let page = self.word(self.io.pages, run.sequence * self.pages_per_sequence + first / PAGE_TOKENS);
        let lines = (page * self.spec.kv_heads + b.tile(1)) * PAGE_TOKENS;
        let load = |area: Val<'b>, width: u32, local: Val<'b>, word: Val<'b>| {
            let token = (first + local).max(run.sees[0]).min(last) % PAGE_TOKENS;
            b.load_at(Type::U32X4, area, ((lines + token) * width + word * 8) * 2, 0, 16, true)
        };
        let [keys, values] = t.widths.map(|width| width / 8);
        let mut words = vec![];
        for i in self.items(t.chunk * keys) {
            words.push(load(self.io.k, t.widths[0], i / keys, i % keys));
        }
        for i in self.items(t.chunk * values / if t.wide() { 2 } else { 1 }) {
            match self.pair(i) {
                Some((word, pair)) => words.extend([0, 1].map(|o| load(self.io.v, t.widths[1], pair * 2 + o, word))),
                None => words.push(load(self.io.v, t.widths[1], i / values, i % values)),
            }
        }
        words
    }

    /// Word and pair of tokens of item `i` of V, if it is transposed: neighbours store side by side.
    fn pair(&self, i: Val<'b>) -> Option<(Val<'b>, Val<'b>)> {
        let pairs = self.tile.chunk / 2;
        self.tile.wide().then(|| (i / pairs, i % pairs))
    }

    /// This lane's items out of `count`; the last ones may come twice.
    fn items(&self, count: u32) -> Vec<Val<'b>> {
        let (b, lanes) = (self.b, self.tile.lanes());
        let item = |i: u32| {
            let item = b.local_id() + i * lanes;
            if (i + 1) * lanes <= count { item } else { item.min(b.u32(count - 1)) }
        };
        (0..count.div_ceil(lanes)).map(item).collect()
    }

    /// Stores what [`Kernel::fetch`] gave.
    pub(super) fn stage(&self, words: &[Val<'b>]) {
        let (b, t) = (self.b, &self.tile);
        let [keys, values] = t.widths.map(|width| width / 8);
        let (of_keys, of_values) = words.split_at((t.chunk * keys).div_ceil(t.lanes()) as usize);
        let plain = |array: u32, line: u32, each: u32, i: Val<'b>, word: Val<'b>| {
            b.shared_store(array, i / each * line + i % each, word);
        };
        self.each_item(t.chunk * keys, of_keys, 1, |i, word| plain(self.keys, t.line(t.widths[0]), keys, i, word[0]));
        if !t.wide() {
            let line = t.line(t.widths[1]);
            return self
                .each_item(t.chunk * values, of_values, 1, |i, word| plain(self.values, line, values, i, word[0]));
        }
        self.each_item(t.chunk * values / 2, of_values, 2, |i, words| {
            let Some((word, pair)) = self.pair(i) else { return };
            for e in 0..4 {
                let [even, odd] = [0, 1].map(|token: usize| words[token].lane(e));
                let first = (even & 0xffff) | (odd << 16);
                let second = (even >> 16) | (odd & 0xffff_0000);
                for (half, value) in [first, second].into_iter().enumerate() {
                    let element = word * 8 + (u32::from(e) * 2 + half as u32);
                    b.shared_store(self.values, element * (t.line(t.chunk) * 4) + pair, value);
                }
            }
        });
    }

    /// Calls `put` for each of this lane's items out of `count` with its `each` words; not for those that come twice.
    fn each_item(&self, count: u32, words: &[Val<'b>], each: usize, put: impl Fn(Val<'b>, &[Val<'b>])) {
        let (b, lanes) = (self.b, self.tile.lanes());
        for (i, (item, words)) in (0..).zip(self.items(count).into_iter().zip(words.chunks(each))) {
            match (i + 1) * lanes <= count {
                true => put(item, words),
                false => b.if_((b.local_id() + i * lanes).lt(count), || put(item, words)),
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
