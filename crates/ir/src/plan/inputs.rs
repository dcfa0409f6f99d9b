//! The input buffer of a bucket: where each array of a step lies, and how a step becomes bytes.

use super::{Bucket, NO_SLOT, PAGE_TOKENS, Step, StepError};
use crate::graph::{Graph, Op, RopeId};
use crate::sample::Draw;

/// An input array of a step, for kernels.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Input {
    /// U32 `[tokens]`: token ids (0 in padding), or [`Step::chained`].
    Tokens,
    /// U32 `[tokens]`: number of visible positions including the row's own (0 in padding).
    Visible,
    /// U32 `[tokens]`: page-table row.
    Sequence,
    /// U32 `[tokens]`: KV slot or [`NO_SLOT`].
    Slots,
    /// U32 `[outputs]`: row of each output (0 in padding).
    Outputs,
    /// U32 `[sequences][context / PAGE_TOKENS]`: page numbers.
    Pages,
    /// F32 `[tokens][2][pairs]`: cosines, then sines, of a rotary table, times its magnitude.
    Rope(RopeId),
    /// `[outputs]` [`Draw`]s as words ([`Draw::words`]); empty unless the tail samples. In padding: the best one.
    Draws,
}

/// Byte layout of the input buffer of one bucket.
#[derive(Clone, Debug, PartialEq)]
pub struct InputLayout {
    bucket: Bucket,
    entries: Vec<(Input, u64, u64)>,
    inv_freq: Vec<(Vec<f32>, f32)>,
    /// Tokens of a step are below it.
    pub(super) vocabulary: u32,
    /// Total bytes.
    pub bytes: u64,
}

impl InputLayout {
    /// Layout for a graph and a bucket.
    pub fn new(graph: &Graph, bucket: Bucket) -> InputLayout {
        let (t, r) = (bucket.tokens as u64, bucket.outputs as u64);
        let pages = bucket.sequences as u64 * (bucket.context / PAGE_TOKENS) as u64;
        let draws = if bucket.tail.draws() { r * Draw::WORDS as u64 } else { 0 };
        let mut sizes = vec![
            (Input::Tokens, t),
            (Input::Visible, t),
            (Input::Sequence, t),
            (Input::Slots, t),
            (Input::Outputs, r),
            (Input::Pages, pages),
        ];
        for (i, rope) in graph.ropes().iter().enumerate() {
            sizes.push((Input::Rope(RopeId(i as u32)), t * 2 * rope.inv_freq.len() as u64));
        }
        sizes.push((Input::Draws, draws));
        let mut bytes = 0;
        let entries = sizes.into_iter().map(|(input, words)| {
            let at = bytes;
            bytes += (words * 4).next_multiple_of(16);
            (input, at, words * 4)
        });
        let entries = entries.collect();
        let inv_freq = graph.ropes().iter().map(|r| (r.inv_freq.clone(), r.magnitude)).collect();
        let tables = graph.nodes().iter().filter_map(|n| match n.op {
            Op::Embed { table } => Some(graph.weight_of(table).rows),
            _ => None,
        });
        let vocabulary = tables.min().unwrap_or(u32::MAX);
        InputLayout { bucket, entries, inv_freq, vocabulary, bytes }
    }

    /// Offset and bytes of an input array.
    pub fn span(&self, input: Input) -> (u64, u64) {
        let entry = self.entries.iter().find(|e| e.0 == input).expect("every input has an entry");
        (entry.1, entry.2)
    }

    /// Pages per page-table row.
    pub fn pages_per_sequence(&self) -> u32 {
        self.bucket.context / PAGE_TOKENS
    }

    /// Writes a step into `out` (of [`InputLayout::bytes`]), padding up to the bucket. Each byte is written once and
    /// in order, none is read: `out` may be memory of the device behind a bus.
    pub fn write(&self, step: &Step, out: &mut [u8]) -> Result<(), StepError> {
        step.check(&self.bucket)?;
        self.put(out, Input::Tokens, step.tokens.iter().copied(), 0);
        self.put(out, Input::Visible, step.positions.iter().map(|p| p + 1), 0);
        self.put(out, Input::Sequence, step.sequence.iter().copied(), 0);
        self.put(out, Input::Slots, step.slots.iter().copied(), NO_SLOT);
        self.put(out, Input::Outputs, step.outputs.iter().copied(), 0);
        let per_row = self.pages_per_sequence() as usize;
        let pages = step.pages.iter().flat_map(|p| {
            let shown = p.iter().copied().take(per_row);
            shown.chain(std::iter::repeat_n(0, per_row.saturating_sub(p.len())))
        });
        self.put(out, Input::Pages, pages, 0);
        for (i, (inv_freq, magnitude)) in self.inv_freq.iter().enumerate() {
            let (at, bytes) = self.span(Input::Rope(RopeId(i as u32)));
            let rows = out[at as usize..(at + bytes) as usize].chunks_exact_mut(8 * inv_freq.len().max(1));
            for (i, row) in rows.enumerate() {
                match step.positions.get(i) {
                    Some(position) => write_rotations(inv_freq, *magnitude, *position, row),
                    None => row.fill(0),
                }
            }
        }
        self.put(out, Input::Draws, step.draws.iter().flat_map(Draw::words), 0);
        Ok(())
    }

    fn put(&self, out: &mut [u8], input: Input, mut values: impl Iterator<Item = u32>, padding: u32) {
        let (at, bytes) = self.span(input);
        for word in out[at as usize..(at + bytes) as usize].chunks_exact_mut(4) {
            word.copy_from_slice(&values.next().unwrap_or(padding).to_le_bytes());
        }
    }
}

/// Cosine and sine of each pair at a position, times the magnitude; computed in F64, since p · freq reaches 10⁵ radians.
fn turns(inv_freq: &[f32], magnitude: f32, position: u32) -> impl Iterator<Item = [f32; 2]> {
    inv_freq.iter().map(move |f| {
        let (sin, cos) = (position as f64 * *f as f64).sin_cos();
        [cos, sin].map(|x| (x * magnitude as f64) as f32)
    })
}

/// Writes cosines, then sines, of all pairs at a position into `out`, `[2][pairs]` F32.
pub fn rotations(inv_freq: &[f32], magnitude: f32, position: u32, out: &mut [f32]) {
    let (cosines, sines) = out.split_at_mut(inv_freq.len());
    for ((c, s), turn) in cosines.iter_mut().zip(sines).zip(turns(inv_freq, magnitude, position)) {
        [*c, *s] = turn;
    }
}

/// As [`rotations`], into bytes.
fn write_rotations(inv_freq: &[f32], magnitude: f32, position: u32, out: &mut [u8]) {
    let (cosines, sines) = out.split_at_mut(4 * inv_freq.len());
    let words = cosines.chunks_exact_mut(4).zip(sines.chunks_exact_mut(4));
    for ((c, s), turn) in words.zip(turns(inv_freq, magnitude, position)) {
        c.copy_from_slice(&turn[0].to_le_bytes());
        s.copy_from_slice(&turn[1].to_le_bytes());
    }
}
