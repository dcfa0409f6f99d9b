//! What a kernel template is, and what it sees and gives.

use crate::select::{Finder, Region};
use crate::{Choices, CompileError, Cuts};
use std::sync::Arc;
use zinc_ir::device::Caps;
use zinc_ir::graph::{Graph, NodeId, Rows, WeightId};
use zinc_ir::kernel::Kernel;
use zinc_ir::plan::{Bucket, Input, KvLayout};

/// Everything a template may look at.
pub struct Ctx<'a> {
    /// The graph, tail included.
    pub graph: &'a Arc<Graph>,
    /// The device's abilities.
    pub caps: &'a Caps,
    /// Sizes.
    pub bucket: Bucket,
    /// KV layout.
    pub kv: &'a Arc<KvLayout>,
    /// The user's decisions.
    pub choices: &'a Choices,
    /// The value that leaves the device.
    pub output: Option<NodeId>,
    /// Kernels list all cuts that they can have.
    pub lists_cuts: bool,
}

/// A kernel template: a pattern over the graph and an emitter.
pub struct Template {
    /// Name, after what it computes.
    pub name: &'static str,
    /// One line for `zinc explain`.
    pub summary: &'static str,
    /// Part of the fused set (left out when [`Choices::fuse`] is off).
    pub fused: bool,
    /// The nodes of the region that ends in `node`, in any order, or nothing. All must be uncovered. A value
    /// but the last one's that is read outside gets its place in scratch too: the launches have to write it.
    pub matches: fn(&Finder<'_>, NodeId) -> Option<Vec<NodeId>>,
    /// Emits the launches of a region. Never called for native devices.
    pub emit: fn(&Ctx<'_>, &Region) -> Result<Emission, CompileError>,
}

/// What a launch argument stands for before buffers are placed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Operand {
    /// A value of the graph, F32 [rows, cols] (U32 for argmax and sample).
    Value(NodeId),
    /// A weight in its device layout.
    Weight(WeightId),
    /// A step input.
    Input(Input),
    /// The K area of a KV layer.
    KvK(u32),
    /// The V area of a KV layer.
    KvV(u32),
    /// The tokens that a step leaves to the next one.
    Chain,
    /// So many counters of arrived tiles, zero before and after the launch.
    Counters(u32),
    /// Scratch of this region: index into [`Emission::temps`].
    Temp(usize),
}

/// How a launch uses an argument.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Reads only.
    Read,
    /// Writes only.
    Write,
    /// Both.
    ReadWrite,
    /// Reads what it has written itself, and nothing else.
    WriteRead,
}

/// A launch before buffers are placed.
pub struct LaunchSketch {
    /// The kernel; its address arguments are `args`, in order.
    pub kernel: Kernel,
    /// Tiles.
    pub grid: [u32; 3],
    /// Arguments.
    pub args: Vec<(Operand, Access)>,
}

/// The launches of a region, in order; each depends on the one before.
pub struct Emission {
    /// Launches.
    pub launches: Vec<LaunchSketch>,
    /// Bytes of each region-local scratch buffer.
    pub temps: Vec<u64>,
    /// How the work is cut, where there is a choice.
    pub cuts: Option<Cuts>,
}

impl Ctx<'_> {
    /// Rows of a value in this bucket.
    pub fn rows(&self, id: NodeId) -> u32 {
        match self.graph.node(id).shape.rows {
            Rows::Tokens => self.bucket.tokens,
            Rows::Outputs => self.bucket.outputs,
        }
    }
    /// Does the value leave the device? That is the output, and the logits beside it ([`zinc_ir::plan::Tail::Mixed`]).
    pub fn leaves(&self, id: NodeId) -> bool {
        Some(id) == self.output || Some(id) == self.logits_beside()
    }
    /// The logits that [`zinc_ir::plan::Tail::Mixed`] gives beside the tokens.
    pub fn logits_beside(&self) -> Option<NodeId> {
        self.bucket.logits_beside(self.graph, self.output)
    }
    /// Columns of a value.
    pub fn cols(&self, id: NodeId) -> u32 {
        self.graph.node(id).shape.cols
    }
    /// Bytes of a value.
    pub fn value_bytes(&self, id: NodeId) -> u64 {
        let row = match self.quantized(id) {
            Some((_, _, wide)) => crate::kernels::quantized_row_bytes(self.cols(id), wide),
            None if self.halves(id) => self.cols(id) * 2,
            None => self.cols(id) * 4,
        };
        self.rows(id) as u64 * row as u64
    }
    /// Lanes of a workgroup: about `wanted`, in whole subgroups, as far as the device allows.
    pub fn lanes(&self, wanted: u32) -> u32 {
        let size = self.caps.subgroup_size;
        (wanted / size * size).max(size).min(self.caps.max_workgroup / size * size)
    }
    /// Subgroups of a workgroup whose subgroups work each for itself: of about 256 lanes, but at most eight.
    pub fn subgroups(&self) -> u32 {
        let size = self.caps.subgroup_size;
        (256 / size).clamp(1, 8).min(self.caps.max_workgroup / size).max(1)
    }
    /// How the input `x` of a product is kept, in words.
    pub(crate) fn input_words(&self, x: NodeId) -> &'static str {
        match self.quantized(x) {
            Some((_, _, true)) => "f16",
            Some((_, _, false)) => "q8",
            None => "f32",
        }
    }
    /// The error for a node no template can do.
    pub fn unsupported(&self, node: NodeId, why: impl Into<String>) -> CompileError {
        CompileError::Unsupported { op: self.graph.op(node).name().to_string(), node: node.0, why: why.into() }
    }
}

/// Emits a region, or nothing for devices that run regions natively.
pub(crate) fn emit(ctx: &Ctx<'_>, region: &Region) -> Result<Emission, CompileError> {
    if ctx.caps.native {
        return Ok(Emission { launches: vec![], temps: vec![], cuts: None });
    }
    (region.template.emit)(ctx, region)
}
