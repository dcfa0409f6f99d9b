//! Runs the works of a program, one after the other, each on all threads.

use super::DeviceError;
use super::model::{Kv, KvLayer, Model, StoredLayer};
use super::program::{Kind, ProductSpec, Program, RowOp, Slot, Work};
use crate::attention::{Attention, Cache, Row};
use crate::kv::{KvElement, append};
use crate::matmul::{Product, multiply};
use crate::memory::SharedPtr;
use crate::scratch::Scratch;
use crate::{Activations, Isa, Pool, rows};
use std::time::{Duration, Instant};
use zinc_ir::graph::{AttentionSpec, Graph, RopeId, Rows, WeightId};
use zinc_ir::plan::{ActPrecision, CHAINED, NO_SLOT, Step, StepOutput, Tail, rotations};
use zinc_ir::sample;

/// Values of a step, whose memory serves the next one, of whatever program.
#[derive(Default)]
pub(super) struct Values {
    pub(super) slots: Vec<Vec<f32>>,
    tokens: Vec<u32>,
    /// Rotations of every table: `[token][2][pairs]`.
    turns: Vec<Vec<f32>>,
}

/// One step in progress.
pub(super) struct Run<'a> {
    pub(super) pool: &'a Pool,
    pub(super) isa: Isa,
    pub(super) act: ActPrecision,
    pub(super) graph: &'a Graph,
    pub(super) model: &'a mut Model,
    pub(super) program: &'a Program,
    pub(super) values: &'a mut Values,
    pub(super) activations: &'a mut Activations,
    pub(super) step: &'a Step,
    /// Tokens of the step before.
    pub(super) chain: &'a [u32],
}

/// Computes the rotations of all rows for every table of the graph.
fn turn(pool: &Pool, graph: &Graph, step: &Step, turns: &mut Vec<Vec<f32>>) {
    let rows = step.positions.len();
    turns.resize_with(graph.ropes().len(), Vec::new);
    for (rope, table) in graph.ropes().iter().zip(turns) {
        table.resize(rows * 2 * rope.inv_freq.len(), 0.0);
        each_row(pool, table, rows, |t, out| {
            rotations(&rope.inv_freq, rope.magnitude, step.positions[t], out);
        });
    }
}

/// `f(row, values)` for all rows of a matrix, in parallel.
pub(super) fn each_row(pool: &Pool, data: &mut [f32], rows: usize, f: impl Fn(usize, &mut [f32]) + Sync) {
    let cols = data.len().checked_div(rows).unwrap_or(0);
    let base = SharedPtr(data.as_mut_ptr());
    pool.for_each_chunk(rows, |_, range| {
        for t in range {
            // SAFETY: row t of the matrix, visited once.
            f(t, unsafe { std::slice::from_raw_parts_mut(base.get().add(t * cols), cols) });
        }
    });
}

impl Run<'_> {
    /// Runs everything; adds the time of each work to its launch if asked.
    pub(super) fn run(&mut self, mut times: Option<&mut [Duration]>, output: &mut StepOutput) {
        // Never fewer: the next program may need them again.
        let slots = self.program.slots.len().max(self.values.slots.len());
        self.values.slots.resize_with(slots, Vec::new);
        turn(self.pool, self.graph, self.step, &mut self.values.turns);
        let program = self.program;
        for work in &program.works {
            let start = times.is_some().then(Instant::now);
            self.work(work);
            if let (Some(times), Some(start)) = (times.as_deref_mut(), start) {
                times[work.launch] += start.elapsed();
            }
        }
        self.output(output);
    }

    fn output(&mut self, output: &mut StepOutput) {
        let rows = self.step.outputs.len();
        let Some(slot) = self.program.output.filter(|_| rows > 0) else {
            *output = StepOutput::None;
            return;
        };
        let values = &mut self.values;
        match self.program.tail {
            Tail::Mixed { logits, .. } => {
                let Some(beside) = self.program.beside else { return };
                let count = rows.min(logits as usize) * self.program.slots[beside];
                let logits = values.slots[beside].iter().take(count).copied();
                output.read_mixed(values.tokens.iter().copied(), logits);
            }
            tail @ (Tail::Greedy | Tail::Sample(_)) => output.read(tail, rows, values.tokens.iter().copied()),
            tail @ Tail::Best(_) => output.read(tail, rows, values.slots[slot].iter().map(|x| x.to_bits())),
            tail @ (Tail::Logits | Tail::Hidden) => output.exchange_rows(tail, &mut values.slots[slot]),
        }
    }

    /// The token of a row.
    fn token(&self, row: usize) -> usize {
        match self.step.tokens[row] {
            token if token & CHAINED == 0 => token as usize,
            // What is no token (the row before had no numbers) gives some row, as on other devices.
            chained => self.chain[(chained & !CHAINED) as usize] as usize,
        }
    }

    fn count(&self, rows: Rows) -> usize {
        match rows {
            Rows::Tokens => self.step.tokens.len(),
            Rows::Outputs => self.step.outputs.len(),
        }
    }

    /// The buffer of a slot, out of the table, with `rows` rows of any content.
    pub(super) fn take(&mut self, slot: Slot, rows: usize) -> Vec<f32> {
        let mut buffer = std::mem::take(&mut self.values.slots[slot]);
        buffer.resize(rows * self.program.slots[slot], 0.0);
        buffer
    }

    fn work(&mut self, work: &Work) {
        let rows = self.count(work.rows);
        match &work.kind {
            Kind::Embed { table, out } => {
                let mut buffer = self.take(*out, rows);
                let table = self.model.matrix(*table);
                each_row(self.pool, &mut buffer, rows, |t, out| {
                    table.decode_row(self.token(t).min(table.rows() - 1), out);
                });
                self.values.slots[*out] = buffer;
            }
            Kind::Select { x, out } => {
                let mut buffer = self.take(*out, rows);
                let (cols, x) = (self.program.slots[*x], &self.values.slots[*x]);
                for (to, row) in buffer.chunks_exact_mut(cols).zip(&self.step.outputs) {
                    to.copy_from_slice(&x[*row as usize * cols..][..cols]);
                }
                self.values.slots[*out] = buffer;
            }
            Kind::Products { x, norm, list } => self.products(rows, *x, *norm, list),
            Kind::Experts(spec) => self.experts(rows, spec),
            Kind::Route { logits, k, out } => self.route(*logits, *k, *out, rows),
            Kind::ExpertSum { x, route, out } => self.expert_sum(*x, *route, *out, rows),
            Kind::Row { op, x, out } => self.row(*op, *x, *out, rows),
            Kind::Append { k, v, layer } => self.append(*k, *v, *layer),
            Kind::Attention { q, layer, spec, out } => {
                let mut buffer = self.take(*out, rows);
                match &self.model.kv {
                    Kv::F32(layers) => self.attend(layers[*layer].cache(), *q, spec, &mut buffer),
                    Kv::F16(layers) => self.attend(layers[*layer].cache(), *q, spec, &mut buffer),
                    Kv::Stored(layers) => self.attend(layers[*layer].cache(), *q, spec, &mut buffer),
                }
                self.values.slots[*out] = buffer;
            }
            Kind::Argmax { x } => self.argmax(*x, rows),
            Kind::Sample { x, k } => self.sample(*x, *k),
            Kind::TopK { x, k, out } => {
                let mut buffer = self.take(*out, rows);
                let cols = self.program.slots[*x];
                let x = &self.values.slots[*x];
                each_row(self.pool, &mut buffer, rows, |t, out| {
                    let (values, columns) = out.split_at_mut(*k);
                    let best = rows::top_k(&x[t * cols..(t + 1) * cols], *k);
                    for ((value, column), (v, c)) in values.iter_mut().zip(columns).zip(&*best) {
                        (*value, *column) = (*v, f32::from_bits(*c));
                    }
                });
                self.values.slots[*out] = buffer;
            }
        }
    }

    fn argmax(&mut self, x: Slot, rows: usize) {
        let (cols, isa) = (self.program.slots[x], self.isa);
        let Values { slots, tokens, .. } = &mut *self.values;
        let best = |row: &[f32]| match rows::argmax(isa, row) {
            best if row[best as usize] > f32::MIN => best,
            // NaN, if it was not skipped: a plain search tells whether there is a number at all.
            _ => match rows::top_k(row, 1)[0] {
                (value, best) if value > f32::MIN => best,
                _ => u32::MAX,
            },
        };
        tokens.clear();
        tokens.extend(slots[x][..rows * cols].chunks_exact(cols).map(best));
    }

    fn sample(&mut self, x: Slot, k: usize) {
        let cols = self.program.slots[x];
        let Values { slots, tokens, .. } = &mut *self.values;
        tokens.clear();
        tokens.extend(slots[x].chunks_exact(cols).zip(&self.step.draws).map(|(row, draw)| {
            let best = rows::top_k(row, k);
            let values = Scratch::of(best.iter().map(|b| b.0));
            sample::pick(&values, draw).map_or(u32::MAX, |i| best[i].1)
        }));
    }

    fn products(&mut self, rows: usize, x: Slot, norm: Option<(WeightId, f32)>, list: &[ProductSpec]) {
        let integers = self.model.matrix(list[0].weight).takes_integers();
        let act = match self.act {
            ActPrecision::Q8 if !integers => ActPrecision::F16,
            act => act,
        };
        let (isa, cols) = (self.isa, self.program.slots[x]);
        {
            let x = &self.values.slots[x][..rows * cols];
            let read = |t: usize| &x[t * cols..(t + 1) * cols];
            match norm {
                None => self.activations.fill(self.pool, act, rows, cols, x, cols),
                Some((weight, eps)) => {
                    let weight = self.model.vector(weight);
                    self.activations.fill_with(self.pool, act, rows, cols, |t, out| {
                        rows::rms_norm(isa, read(t), weight, eps, out);
                    });
                }
            }
        }
        let mut outs = Scratch::of(list.iter().map(|p| {
            let mut out = self.take(p.out, rows);
            if let Some(from) = p.residual.filter(|r| *r != p.out) {
                let size = out.len();
                out.copy_from_slice(&self.values.slots[from][..size]);
            }
            out
        }));
        let model = &*self.model;
        let mut products = Scratch::of(list.iter().zip(&mut *outs).map(|(p, out)| {
            let weights = model.matrix(p.weight);
            Product {
                weights,
                glu: p.glu.map(|(up, act)| (model.matrix(up), act)),
                bias: p.bias.map(|b| model.vector(b)),
                accumulate: p.residual.is_some(),
                out,
                stride: weights.rows(),
            }
        }));
        multiply(self.pool, self.activations, &mut products);
        drop(products);
        for (p, out) in list.iter().zip(&mut *outs) {
            self.values.slots[p.out] = std::mem::take(out);
        }
    }

    fn row(&mut self, op: RowOp, x: Slot, out: Slot, rows: usize) {
        let mut buffer = self.take(out, rows);
        if x != out {
            let size = buffer.len();
            buffer.copy_from_slice(&self.values.slots[x][..size]);
        }
        let (isa, cols, model) = (self.isa, self.program.slots[out], &*self.model);
        let slots = &self.values.slots;
        let other = |slot: Slot, t: usize| &slots[slot][t * cols..(t + 1) * cols];
        let turns = |rope: RopeId, t: usize| {
            let width = 2 * self.graph.ropes()[rope.index()].inv_freq.len();
            &self.values.turns[rope.index()][t * width..(t + 1) * width]
        };
        each_row(self.pool, &mut buffer, rows, |t, row| match op {
            RowOp::Scale(factor) => rows::scale(row, factor),
            RowOp::Norm { weight, eps } => {
                let copy = Scratch::of(row.iter().copied());
                rows::rms_norm(isa, &copy, model.vector(weight), eps, row);
            }
            RowOp::Bias(weight) => rows::add(isa, row, model.vector(weight)),
            RowOp::Add(b) => rows::add(isa, row, other(b, t)),
            RowOp::Glu(up, act) => rows::gate(isa, act, row, other(up, t)),
            RowOp::Rope { head_dim, pairing, rope } => {
                rows::rope(isa, row, head_dim, pairing, turns(rope, t));
            }
        });
        self.values.slots[out] = buffer;
    }

    fn append(&mut self, k: Slot, v: Slot, layer: usize) {
        let (k, v) = (&self.values.slots[k], &self.values.slots[v]);
        match &mut self.model.kv {
            Kv::F32(layers) => append_rows(self.isa, &mut layers[layer], self.step, k, v),
            Kv::F16(layers) => append_rows(self.isa, &mut layers[layer], self.step, k, v),
            Kv::Stored(layers) => layers[layer].append(self.step, [k, v]),
        }
    }

    fn attend<E: KvElement>(&self, cache: Cache<'_, E>, q: Slot, spec: &AttentionSpec, out: &mut [f32]) {
        let step = self.step;
        let window = spec.window.map_or(usize::MAX, |w| w as usize);
        let row = |t: usize| {
            let to = step.positions[t] as usize + 1;
            let pages = &step.pages[step.sequence[t] as usize][..];
            Row { from: to.saturating_sub(window), to, pages }
        };
        let rows = Scratch::of((0..step.tokens.len()).map(row));
        let attention = Attention { isa: self.isa, heads: spec.heads as usize, scale: spec.scale, cache, rows: &rows };
        attention.run(self.pool, &self.values.slots[q][..out.len()], out);
    }
}

impl<E> KvLayer<E> {
    fn cache(&self) -> Cache<'_, E> {
        Cache { area: self.area, k: &self.k, v: &self.v, stored: None }
    }
}

impl StoredLayer {
    /// What attention reads of it are singles.
    fn cache(&self) -> Cache<'_, f32> {
        Cache { area: self.area, k: &[], v: &[], stored: Some(&self.stored) }
    }

    fn append(&mut self, step: &Step, values: [&[f32]; 2]) {
        let cols = self.area.heads * self.area.dim;
        for (t, slot) in step.slots.iter().enumerate().filter(|(_, slot)| **slot != NO_SLOT) {
            for (stored, values) in self.stored.iter_mut().zip(values) {
                stored.append(*slot as usize, &values[t * cols..(t + 1) * cols]);
            }
        }
    }
}

fn append_rows<E: KvElement>(isa: Isa, layer: &mut KvLayer<E>, step: &Step, k: &[f32], v: &[f32]) {
    let cols = layer.area.heads * layer.area.dim;
    let size = step.tokens.len() * cols;
    let (k, v) = (E::convert(isa, &k[..size]), E::convert(isa, &v[..size]));
    for (t, slot) in step.slots.iter().enumerate().filter(|(_, slot)| **slot != NO_SLOT) {
        let row = t * cols..(t + 1) * cols;
        let (k, v) = (&k[row.clone()], &v[row]);
        append(&layer.area, &mut layer.k, &mut layer.v, *slot as usize, k, v);
    }
}

/// The bytes of a page: K and then V, layer after layer, in this device's own order.
pub(super) fn save_page(kv: &mut Kv, page: u32, pages: u32) -> Result<Vec<u8>, DeviceError> {
    fn save<E: KvElement>(layers: &[KvLayer<E>], page: usize) -> Vec<u8> {
        let mut bytes = vec![];
        for layer in layers {
            let size = layer.area.page();
            [&layer.k, &layer.v].into_iter().for_each(|all| E::save(&all[page * size..(page + 1) * size], &mut bytes));
        }
        bytes
    }
    if page >= pages {
        return Err(DeviceError::Misuse("a page to save is not in the pool"));
    }
    let page = page as usize;
    Ok(match kv {
        Kv::F32(layers) => save(layers, page),
        Kv::F16(layers) => save(layers, page),
        Kv::Stored(layers) => {
            layers.iter_mut().flat_map(|layer| &mut layer.stored).flat_map(|all| all.page(page).to_vec()).collect()
        }
    })
}

/// Puts the bytes that [`save_page`] gives into a page.
pub(super) fn load_page(kv: &mut Kv, page: u32, bytes: &[u8], pages: u32) -> Result<(), DeviceError> {
    fn load<'a, E: KvElement>(layers: &mut [KvLayer<E>], page: usize, mut bytes: &'a [u8]) -> Option<&'a [u8]> {
        for layer in layers {
            let size = layer.area.page();
            for all in [&mut layer.k, &mut layer.v] {
                bytes = E::load_from(&mut all[page * size..(page + 1) * size], bytes)?;
            }
        }
        Some(bytes)
    }
    if page >= pages {
        return Err(DeviceError::Misuse("a page to load is not in the pool"));
    }
    let page = page as usize;
    let rest = match kv {
        Kv::F32(layers) => load(layers, page, bytes),
        Kv::F16(layers) => load(layers, page, bytes),
        Kv::Stored(layers) => layers.iter_mut().flat_map(|layer| &mut layer.stored).try_fold(bytes, |bytes, all| {
            let to = all.page(page);
            let (mine, rest) = bytes.split_at_checked(to.len())?;
            to.copy_from_slice(mine);
            Some(rest)
        }),
    };
    match rest {
        Some([]) => Ok(()),
        _ => Err(DeviceError::Misuse("not the bytes of a page")),
    }
}

/// Copies pages within all layers.
pub(super) fn copy_pages(kv: &mut Kv, pairs: &[(u32, u32)], pages: u32) -> Result<(), DeviceError> {
    if pairs.iter().any(|(from, to)| from.max(to) >= &pages) {
        return Err(DeviceError::Misuse("a page to copy is not in the pool"));
    }
    fn copy<E: Copy>(layers: &mut [KvLayer<E>], pairs: &[(u32, u32)]) {
        for layer in layers {
            let size = layer.area.page();
            for &(from, to) in pairs {
                let (from, to) = (from as usize * size, to as usize * size);
                layer.k.copy_within(from..from + size, to);
                layer.v.copy_within(from..from + size, to);
            }
        }
    }
    match kv {
        Kv::F32(layers) => copy(layers, pairs),
        Kv::F16(layers) => copy(layers, pairs),
        Kv::Stored(layers) => {
            for stored in layers.iter_mut().flat_map(|layer| &mut layer.stored) {
                pairs.iter().for_each(|(from, to)| stored.copy_page(*from as usize, *to as usize));
            }
        }
    }
    Ok(())
}
