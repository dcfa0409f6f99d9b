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
mod inputs;
mod kv;
mod proof;
mod step;
mod text;

pub use cost::Cost;
pub use inputs::{Input, InputLayout, rotations};
pub use kv::{KV_BLOCK, KvArea, KvLayout, KvType, KvTypes};
pub use proof::{PlanError, conflict, verify};
pub use step::{CHAIN_ROWS, CHAINED, Step, StepError, StepOutput};

use crate::graph::{Graph, NodeId, WeightId};
use crate::kernel::Kernel;
use std::sync::Arc;

/// Tokens per KV page.
pub const PAGE_TOKENS: u32 = 32;
/// "No slot": a row whose K and V are not kept (padding).
pub const NO_SLOT: u32 = u32::MAX;

/// How far inputs of matrix products (activations) may be rounded. Products accumulate in F32 or, with integer inputs,
/// exactly per block. On GPUs, products of few rows with integer weights take blocks of 32 integers: two bytes per
/// value for `F16` (the error is 2^-16 of the block's largest value, a half's is 2^-11 of the value), one for `Q8`. Few are
/// up to 8, beside matrix units 2 (`F16`) or 4 (`Q8`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ActPrecision {
    /// 32-bit floats.
    F32,
    /// Rounded to halves.
    F16,
    /// Blocks of 32 signed bytes with one scale; products with float weights, and a GPU's of many rows, do not
    /// go below halves.
    Q8,
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
    /// A token drawn from this many best logits as the step's [`crate::sample::Draw`]s say, U32 `[outputs]`.
    Sample(u32),
    /// What the output matrix would read, F32 `[outputs, width]`: embeddings are made of it. No logits are computed.
    Hidden,
    /// A token for every output row, as `Sample(candidates)` gives it, or `Greedy` where that is 0; and, F32
    /// `[logits, vocabulary]`, the logits of the first `logits` output rows.
    Mixed {
        /// Best logits that tokens are drawn from.
        candidates: u32,
        /// Output rows whose logits come.
        logits: u32,
    },
}

impl Tail {
    /// Does the device itself choose the next tokens, so that a following step can name them ([`Step::chained`])?
    pub const fn chains(self) -> bool {
        matches!(self, Tail::Greedy | Tail::Sample(_) | Tail::Mixed { .. })
    }

    /// Does a step say how each output's token is drawn?
    pub const fn draws(self) -> bool {
        matches!(self, Tail::Sample(_) | Tail::Mixed { candidates: 1.., .. })
    }
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

impl Bucket {
    /// Of a graph whose output is `output`: the logits that [`Tail::Mixed`] gives beside the tokens.
    pub fn logits_beside(&self, graph: &Graph, output: Option<NodeId>) -> Option<NodeId> {
        match self.tail {
            Tail::Mixed { .. } => graph.op(output?).inputs().first().copied(),
            _ => None,
        }
    }
    /// Where in [`Buffer::Output`] the logits of [`Tail::Mixed`] begin; before them are the tokens.
    pub const fn logits_offset(&self) -> u64 {
        (self.outputs as u64 * 4).next_multiple_of(256)
    }
}

/// A buffer a launch may name.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Buffer {
    /// A weight tensor in its device layout ([`crate::quant::QuantFormat::planes`]).
    Weight(WeightId),
    /// The KV pool. A launch may reach from one address over an area, not over several: devices may keep them apart.
    Kv,
    /// Values between launches; content does not outlive the step.
    Scratch,
    /// Step inputs, [`InputLayout`].
    Inputs,
    /// What the host reads after the step.
    Output,
    /// The tokens that the last step with a choosing tail gave, U32 `[CHAIN_ROWS]`: the one thing besides K and V that
    /// outlives a step.
    Chain,
    /// Counters of tiles that have arrived, U32 `[COUNTERS]`: zero before and after each launch.
    Counters,
}

/// Words of [`Buffer::Counters`].
pub const COUNTERS: u32 = 4096;

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
        step.check_indices(self.inputs.vocabulary, self.kv.pages)
    }

    /// The value that [`Tail::Mixed`] gives beside the tokens.
    pub fn logits_beside(&self) -> Option<NodeId> {
        self.bucket.logits_beside(&self.graph, self.output)
    }

    /// Leading bytes of [`Buffer::Output`] that the host needs.
    pub fn read_bytes(&self) -> u64 {
        match (self.bucket.tail, self.logits_beside()) {
            (Tail::Mixed { logits, .. }, Some(node)) => {
                self.bucket.logits_offset() + logits as u64 * self.graph.node(node).shape.cols as u64 * 4
            }
            _ => self.output_bytes,
        }
    }

    /// Takes the output of a step of `rows` output rows from those bytes.
    pub fn read_output(&self, rows: usize, bytes: &[u8], output: &mut StepOutput) {
        let words = |from: usize, count: usize| {
            let bytes = bytes[from..][..count * 4].chunks_exact(4);
            bytes.map(|w| u32::from_le_bytes([w[0], w[1], w[2], w[3]]))
        };
        let all = self.bucket.outputs as usize;
        let rows = rows.min(all);
        match (self.bucket.tail, self.logits_beside()) {
            (Tail::Mixed { logits, .. }, Some(node)) => {
                let count = rows.min(logits as usize) * self.graph.node(node).shape.cols as usize;
                let logits = words(self.bucket.logits_offset() as usize, count).map(f32::from_bits);
                output.read_mixed(words(0, rows), logits);
            }
            (tail, _) => output.read(tail, rows, words(0, self.output_bytes as usize / 4 / all.max(1) * rows)),
        }
    }

    /// Output rows of a step that a following one can name.
    pub fn chained_rows(&self, step: &Step) -> u32 {
        if self.bucket.tail.chains() { (step.outputs.len() as u32).min(CHAIN_ROWS) } else { 0 }
    }

    /// Size of a buffer in the device layout.
    pub fn buffer_bytes(&self, buffer: Buffer) -> u64 {
        match buffer {
            Buffer::Weight(w) => weight_bytes(&self.graph, w),
            Buffer::Kv => self.kv.bytes,
            Buffer::Scratch => self.scratch_bytes,
            Buffer::Inputs => self.inputs.bytes,
            Buffer::Output => self.output_bytes,
            Buffer::Chain => CHAIN_ROWS as u64 * 4,
            Buffer::Counters => COUNTERS as u64 * 4,
        }
    }
}

/// Bytes of a weight in its device layout. Formats without blocks are padded to whole units of 32.
pub fn weight_bytes(graph: &Graph, w: WeightId) -> u64 {
    let weight = graph.weight_of(w);
    let elems = weight.rows as u64 * weight.cols as u64;
    weight.format.plane_offsets(elems.div_ceil(weight.format.device_block() as u64)).1
}
