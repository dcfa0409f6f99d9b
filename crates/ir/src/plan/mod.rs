//! The plan: everything a device needs to run one step of a model, with nothing left to choose.
//!
//! ```text
//! Graph + Caps + Bucket ──compiler──► Plan { launches, barriers, buffers } ──Device──► Step in, tokens or logits out
//! ```
//!
//! A [`Plan`] serves one [`Bucket`]: a number of token rows, of output rows and of context. Launch arguments, grids
//! and shapes are constants of the plan; what changes per step ([`Step`]) goes through one small input buffer with
//! the layout [`InputLayout`], so a device may record its commands once and replay them.
//!
//! Each launch declares the spans it reads and writes. [`verify`] derives every hazard from them and rejects a plan in
//! which two conflicting launches have no barrier between them: validation layers do not see accesses through device
//! addresses, so this is the proof.

mod cost;
mod proof;
mod text;

pub use cost::Cost;
pub use proof::{PlanError, conflict, verify};

use crate::graph::{Graph, NodeId, Op, RopeId, WeightId};
use crate::kernel::Kernel;
use std::sync::Arc;

/// Tokens per KV page.
pub const PAGE_TOKENS: u32 = 32;
/// "No slot": a row whose K and V are not kept (padding).
pub const NO_SLOT: u32 = u32::MAX;

/// How far inputs of matrix products (activations) may be rounded. Products accumulate in F32 or, with integer inputs,
/// exactly per block. On GPUs, products of up to 8 rows with integer weights take blocks of 32 integers: two bytes per
/// value for `F16` (the error is 2^-16 of the block's largest value, a half's is 2^-11 of the value), one for `Q8`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ActPrecision {
    /// 32-bit floats.
    F32,
    /// Rounded to halves.
    F16,
    /// Blocks of 32 signed bytes with one scale; products with float weights, and a GPU's with more than 8 rows, do not
    /// go below halves.
    Q8,
}

/// Element type of cached K and V.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum KvType {
    /// 32-bit floats.
    F32,
    /// Halves.
    F16,
}

impl KvType {
    /// Bytes per element.
    pub const fn bytes(self) -> u32 {
        match self {
            KvType::F32 => 4,
            KvType::F16 => 2,
        }
    }
}

/// What a step gives back for its output rows.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Tail {
    /// Logits, F32 `[outputs, vocabulary]`.
    Logits,
    /// The index of the largest logit, U32 `[outputs]`.
    Greedy,
    /// The this many best logits with their indices.
    Best(u32),
}

/// Sizes a plan is made for. A step may be smaller; its missing rows are padding.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Bucket {
    /// Token rows.
    pub tokens: u32,
    /// Output rows (0: no logits are computed).
    pub outputs: u32,
    /// Longest context of any row, in tokens; a multiple of [`PAGE_TOKENS`].
    pub context: u32,
    /// Sequences with a page-table row.
    pub sequences: u32,
    /// What comes back.
    pub tail: Tail,
}

/// Where K and V live: per KV layer one K and one V area, each an array of pages
/// `[page][kv head][token in page][head_dim]`, so that one page of one head is contiguous.
#[derive(Clone, Debug, PartialEq)]
pub struct KvLayout {
    /// Element type.
    pub ty: KvType,
    /// Pages in the pool.
    pub pages: u32,
    /// Areas of each layer.
    pub layers: Vec<KvArea>,
    /// Total bytes.
    pub bytes: u64,
}

/// The two areas of one KV layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KvArea {
    /// First byte of K.
    pub k: u64,
    /// First byte of V.
    pub v: u64,
    /// Heads.
    pub heads: u32,
    /// Elements per head.
    pub head_dim: u32,
}

impl KvLayout {
    /// Lays out `pages` pages for all KV layers of a graph.
    pub fn new(graph: &Graph, ty: KvType, pages: u32) -> KvLayout {
        let mut bytes = 0;
        let layers = graph.kv().iter().map(|shape| {
            let area = pages as u64 * KvLayout::page_bytes_of(shape.heads, shape.head_dim, ty) as u64;
            let k = bytes;
            bytes += 2 * area;
            KvArea { k, v: k + area, heads: shape.heads, head_dim: shape.head_dim }
        });
        let layers = layers.collect();
        KvLayout { ty, pages, layers, bytes }
    }
    /// Bytes of one page of K (or of V) of a layer.
    pub fn page_bytes_of(heads: u32, head_dim: u32, ty: KvType) -> u32 {
        heads * PAGE_TOKENS * head_dim * ty.bytes()
    }
    /// Bytes of K and V per token over all layers.
    pub fn bytes_per_token(&self) -> u64 {
        self.layers.iter().map(|l| 2 * (l.heads * l.head_dim * self.ty.bytes()) as u64).sum()
    }
}

/// Host-side inputs of one step. All per-row vectors have the same length, at most the bucket's `tokens`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Step {
    /// Token id of each row.
    pub tokens: Vec<u32>,
    /// Position of each row in its sequence.
    pub positions: Vec<u32>,
    /// Page-table row of each row.
    pub sequence: Vec<u32>,
    /// Where the row's K and V go: page × [`PAGE_TOKENS`] + token in page, or [`NO_SLOT`].
    pub slots: Vec<u32>,
    /// Rows whose logits are wanted, at most the bucket's `outputs`.
    pub outputs: Vec<u32>,
    /// Pages of each sequence, in order of position.
    pub pages: Vec<Vec<u32>>,
}

/// What a step gives.
#[derive(Clone, Debug, PartialEq)]
pub enum StepOutput {
    /// No output rows were asked for.
    None,
    /// F32 `[outputs of the step, vocabulary]`, row-major.
    Logits(Vec<f32>),
    /// One token per output row; `u32::MAX` where no logit is a number.
    Tokens(Vec<u32>),
    /// The `k` best of each output row, best first: two arrays of `[outputs of the step, k]`.
    Best {
        /// Candidates per row.
        k: usize,
        /// Their token ids.
        tokens: Vec<u32>,
        /// Their logits.
        logits: Vec<f32>,
    },
}

impl StepOutput {
    /// From the words that kernels leave in [`Buffer::Output`], for the first `rows` output rows.
    pub fn from_words(tail: Tail, rows: usize, words: &[u32]) -> StepOutput {
        if rows == 0 {
            return StepOutput::None;
        }
        match tail {
            Tail::Logits => StepOutput::Logits(words.iter().map(|w| f32::from_bits(*w)).collect()),
            Tail::Greedy => StepOutput::Tokens(words.to_vec()),
            Tail::Best(k) => {
                let k = k as usize;
                let halves = words.chunks_exact(2 * k).map(|row| row.split_at(k));
                let (mut tokens, mut logits) = (vec![], vec![]);
                for (values, columns) in halves {
                    logits.extend(values.iter().map(|w| f32::from_bits(*w)));
                    tokens.extend_from_slice(columns);
                }
                StepOutput::Best { k, tokens, logits }
            }
        }
    }
}

/// An input array of a step, for kernels.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Input {
    /// U32 `[tokens]`: token ids (0 in padding).
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
}

/// Byte layout of the input buffer of one bucket.
#[derive(Clone, Debug, PartialEq)]
pub struct InputLayout {
    bucket: Bucket,
    entries: Vec<(Input, u64, u64)>,
    inv_freq: Vec<(Vec<f32>, f32)>,
    /// Total bytes.
    pub bytes: u64,
}

impl InputLayout {
    /// Layout for a graph and a bucket.
    pub fn new(graph: &Graph, bucket: Bucket) -> InputLayout {
        let (t, r) = (bucket.tokens as u64, bucket.outputs as u64);
        let pages = bucket.sequences as u64 * (bucket.context / PAGE_TOKENS) as u64;
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
        let mut bytes = 0;
        let entries = sizes.into_iter().map(|(input, words)| {
            let at = bytes;
            bytes += (words * 4).next_multiple_of(16);
            (input, at, words * 4)
        });
        let entries = entries.collect();
        let inv_freq = graph.ropes().iter().map(|r| (r.inv_freq.clone(), r.magnitude)).collect();
        InputLayout { bucket, entries, inv_freq, bytes }
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

    /// Writes a step into `out` (of [`InputLayout::bytes`]), padding up to the bucket.
    pub fn write(&self, step: &Step, out: &mut [u8]) -> Result<(), StepError> {
        step.check(&self.bucket)?;
        out.fill(0);
        let mut put = |input: Input, values: &mut dyn Iterator<Item = u32>| {
            let (at, bytes) = self.span(input);
            let words = out[at as usize..(at + bytes) as usize].chunks_exact_mut(4);
            for (word, value) in words.zip(values) {
                word.copy_from_slice(&value.to_le_bytes());
            }
        };
        put(Input::Tokens, &mut step.tokens.iter().copied());
        put(Input::Visible, &mut step.positions.iter().map(|p| p + 1));
        put(Input::Sequence, &mut step.sequence.iter().copied());
        let padding = std::iter::repeat(NO_SLOT);
        put(Input::Slots, &mut step.slots.iter().copied().chain(padding));
        put(Input::Outputs, &mut step.outputs.iter().copied());
        let per_row = self.pages_per_sequence() as usize;
        let pages = step.pages.iter().flat_map(|p| {
            let shown = p.iter().copied().take(per_row);
            shown.chain(std::iter::repeat_n(0, per_row.saturating_sub(p.len())))
        });
        put(Input::Pages, &mut pages.into_iter());
        for (i, (inv_freq, magnitude)) in self.inv_freq.iter().enumerate() {
            let mut turns = step.positions.iter().flat_map(|&p| rotations(inv_freq, *magnitude, p)).map(f32::to_bits);
            put(Input::Rope(RopeId(i as u32)), &mut turns);
        }
        Ok(())
    }
}

/// Cosines, then sines, of all pairs at a position; computed in F64, since p · freq reaches 10⁵ radians.
pub fn rotations(inv_freq: &[f32], magnitude: f32, position: u32) -> Vec<f32> {
    let angles = || inv_freq.iter().map(move |f| position as f64 * *f as f64);
    let scaled = |x: f64| (x * magnitude as f64) as f32;
    angles().map(|a| scaled(a.cos())).chain(angles().map(|a| scaled(a.sin()))).collect()
}

/// A step that does not fit its plan: a bug of the caller.
#[derive(Debug, thiserror::Error, PartialEq)]
pub enum StepError {
    /// More rows, outputs, sequences or context than the bucket has.
    #[error("step has {got} {what}, the plan was made for {limit}")]
    TooLarge {
        /// What is too many.
        what: &'static str,
        /// How many.
        got: usize,
        /// The bucket's number.
        limit: usize,
    },
    /// Per-row vectors differ in length, or an index points nowhere.
    #[error("step is inconsistent: {0}")]
    Inconsistent(&'static str),
}

impl Step {
    /// Checks the step against a bucket.
    pub fn check(&self, bucket: &Bucket) -> Result<(), StepError> {
        let rows = self.tokens.len();
        let longest = self.positions.iter().map(|p| *p as usize + 1).max().unwrap_or(0);
        let limits = [
            ("token rows", rows, bucket.tokens as usize),
            ("output rows", self.outputs.len(), bucket.outputs as usize),
            ("sequences", self.pages.len(), bucket.sequences as usize),
            ("tokens of context", longest, bucket.context as usize),
        ];
        if let Some(&(what, got, limit)) = limits.iter().find(|(_, got, limit)| got > limit) {
            return Err(StepError::TooLarge { what, got, limit });
        }
        if [self.positions.len(), self.sequence.len(), self.slots.len()] != [rows; 3] {
            return Err(StepError::Inconsistent("per-row vectors differ in length"));
        }
        if self.outputs.iter().any(|r| *r as usize >= rows) {
            return Err(StepError::Inconsistent("an output row does not exist"));
        }
        let reachable = |row: usize| {
            let pages = self.pages.get(self.sequence[row] as usize).map_or(0, Vec::len);
            (self.positions[row] / PAGE_TOKENS) < pages as u32
        };
        if !(0..rows).all(reachable) {
            return Err(StepError::Inconsistent("a row's position has no page"));
        }
        Ok(())
    }
}

/// A buffer a launch may name.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Buffer {
    /// A weight tensor in its device layout ([`crate::quant::QuantFormat::planes`]).
    Weight(WeightId),
    /// The KV pool.
    Kv,
    /// Values between launches; content does not outlive the step.
    Scratch,
    /// Step inputs, [`InputLayout`].
    Inputs,
    /// What the host reads after the step.
    Output,
}

/// A range of bytes of a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Span {
    /// Buffer.
    pub buffer: Buffer,
    /// First byte.
    pub offset: u64,
    /// Length.
    pub bytes: u64,
}

impl Span {
    /// Do two spans share a byte?
    pub fn overlaps(&self, other: &Span) -> bool {
        self.buffer == other.buffer
            && self.offset < other.offset + other.bytes
            && other.offset < self.offset + self.bytes
    }
}

/// A launch argument.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum LaunchArg {
    /// Device address of a byte of a buffer.
    Address {
        /// Buffer.
        buffer: Buffer,
        /// Byte.
        offset: u64,
    },
    /// A 32-bit constant.
    Word(u32),
}

/// Index into [`Plan::kernels`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct KernelId(pub u32);

/// One launch: a region of the graph, and the kernel that computes it (none for devices that run regions natively).
#[derive(Clone, Debug)]
pub struct Launch {
    /// Name of the template, e.g. `matvec_qkv`.
    pub template: &'static str,
    /// Nodes computed, in topological order. A region may take several launches: then only the last one lists it,
    /// and the earlier ones have an empty region.
    pub region: Vec<NodeId>,
    /// Model layer, `u32::MAX` outside layers.
    pub layer: u32,
    /// Kernel.
    pub kernel: Option<KernelId>,
    /// Tiles along each axis.
    pub grid: [u32; 3],
    /// Arguments, as the kernel declares them.
    pub args: Vec<LaunchArg>,
    /// Everything it may read.
    pub reads: Vec<Span>,
    /// Everything it may write.
    pub writes: Vec<Span>,
    /// The attention whose K and V it reads, if it reads any: that part of its cost depends on the context.
    pub attends: Option<NodeId>,
    /// Bytes it must move at least: weights, K and V of the bucket's whole context, and values, once each.
    pub bytes: u64,
    /// Floating-point operations (a multiply-add counts two).
    pub flops: u64,
}

/// One entry of a plan.
#[derive(Clone, Debug)]
pub enum Entry {
    /// Work.
    Launch(Launch),
    /// Everything before happens before everything after.
    Barrier,
}

/// One step of a model for one bucket.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The computation (with the tail's ops added).
    pub graph: Arc<Graph>,
    /// Sizes.
    pub bucket: Bucket,
    /// Activation precision.
    pub act: ActPrecision,
    /// KV layout.
    pub kv: Arc<KvLayout>,
    /// Input layout.
    pub inputs: InputLayout,
    /// The value that goes to [`Buffer::Output`]; none if the bucket has no outputs.
    pub output: Option<NodeId>,
    /// Distinct kernels.
    pub kernels: Vec<Kernel>,
    /// Launches and barriers, in order.
    pub entries: Vec<Entry>,
    /// Bytes of scratch.
    pub scratch_bytes: u64,
    /// Bytes of output.
    pub output_bytes: u64,
}

impl Plan {
    /// The launches, in order.
    pub fn launches(&self) -> impl Iterator<Item = &Launch> {
        self.entries.iter().filter_map(|e| match e {
            Entry::Launch(l) => Some(l),
            Entry::Barrier => None,
        })
    }
    /// Number of barriers.
    pub fn barriers(&self) -> usize {
        self.entries.iter().filter(|e| matches!(e, Entry::Barrier)).count()
    }
    /// Checks a step against the bucket, the KV pool and the vocabulary: after it, no index of the step points outside.
    pub fn check(&self, step: &Step) -> Result<(), StepError> {
        step.check(&self.bucket)?;
        let tables = self.graph.nodes().iter().filter_map(|n| match n.op {
            Op::Embed { table } => Some(self.graph.weight_of(table).rows),
            _ => None,
        });
        let vocabulary = tables.min().unwrap_or(u32::MAX);
        if step.tokens.iter().any(|t| *t >= vocabulary) {
            return Err(StepError::Inconsistent("a token is not in the vocabulary"));
        }
        if step.pages.iter().flatten().any(|p| *p >= self.kv.pages) {
            return Err(StepError::Inconsistent("a page is not in the pool"));
        }
        if step.slots.iter().any(|s| *s != NO_SLOT && s / PAGE_TOKENS >= self.kv.pages) {
            return Err(StepError::Inconsistent("a KV slot is not in the pool"));
        }
        Ok(())
    }

    /// Size of a buffer in the device layout.
    pub fn buffer_bytes(&self, buffer: Buffer) -> u64 {
        match buffer {
            Buffer::Weight(w) => weight_bytes(&self.graph, w),
            Buffer::Kv => self.kv.bytes,
            Buffer::Scratch => self.scratch_bytes,
            Buffer::Inputs => self.inputs.bytes,
            Buffer::Output => self.output_bytes,
        }
    }
}

/// Bytes of a weight in its device layout. Formats without blocks are padded to whole units of 32.
pub fn weight_bytes(graph: &Graph, w: WeightId) -> u64 {
    let weight = graph.weight_of(w);
    let elems = weight.rows as u64 * weight.cols as u64;
    weight.format.plane_offsets(elems.div_ceil(weight.format.device_block() as u64)).1
}
