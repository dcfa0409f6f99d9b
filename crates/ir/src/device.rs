//! The device: what runs plans. The engine sees only this trait; the binary chooses who implements it.
//!
//! ```text
//! load(weights, KV) once ─► prepare(plan) once per bucket ─► submit(program, step) ─Ticket─► wait ─► output
//! ```

use crate::graph::{Graph, WeightId};
use crate::kernel::{Kernel, MatrixType, Scalar};
use crate::plan::{KvLayout, Plan, Step, StepError, StepOutput};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;

/// A cooperative-matrix multiply a device offers: A (m×k) × B (k×n) + Acc (m×n).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct MatrixShape {
    /// Rows of A and Acc.
    pub m: u8,
    /// Columns of B and Acc.
    pub n: u8,
    /// Columns of A, rows of B.
    pub k: u8,
    /// Element type of A and B.
    pub input: Scalar,
    /// Element type of Acc.
    pub acc: Scalar,
}

/// What a device can do, as far as it changes which plan is best. Never a vendor's name.
#[derive(Clone, PartialEq, Debug)]
pub struct Caps {
    /// The device runs graph regions itself: plans carry no kernels.
    pub native: bool,
    /// Subgroup size kernels are made for (one that can be required).
    pub subgroup_size: u32,
    /// Lanes of a subgroup in products of few rows on matrices; see [`Caps::for_narrow`].
    pub matrix_lanes: u32,
    /// Most lanes per workgroup.
    pub max_workgroup: u32,
    /// Most bytes of workgroup memory.
    pub max_shared_bytes: u32,
    /// Most tiles per grid axis.
    pub max_grid: [u32; 3],
    /// Cooperative-matrix shapes, subgroup scope.
    pub matrices: Vec<MatrixShape>,
    /// Lanes hold 16×16 matrices A of halves as [`crate::kernel::quad_place`] says, so that they may be composed.
    pub quads: bool,
    /// Workgroups of 256 lanes that fill the device once (compute units × a few); sizes grids and splits.
    pub parallel_tiles: u32,
}

impl Caps {
    /// For devices that run regions natively.
    pub fn native() -> Caps {
        Caps {
            native: true,
            subgroup_size: 1,
            matrix_lanes: 1,
            max_workgroup: 1,
            max_shared_bytes: 0,
            max_grid: [1; 3],
            matrices: vec![],
            quads: false,
            parallel_tiles: 1,
        }
    }

    /// The same for products of few rows on matrices. A subgroup of 64 lanes that holds each line of a matrix four times
    /// reads twice as much from workgroup memory as one of 32 that holds it twice (docs/internals/rdna.md).
    pub fn for_narrow(&self) -> Caps {
        // As many subgroups as before: what limits a workgroup may be their number.
        let max_workgroup = self.max_workgroup / self.subgroup_size.max(1) * self.matrix_lanes;
        Caps { subgroup_size: self.matrix_lanes, max_workgroup, ..self.clone() }
    }

    /// The three matrix types of a shape.
    pub fn matrix_types(shape: MatrixShape) -> [MatrixType; 3] {
        use crate::kernel::MatrixUse::{A, Acc, B};
        let of = |scalar, rows, cols, usage| MatrixType { scalar, rows, cols, usage };
        [
            of(shape.input, shape.m, shape.k, A),
            of(shape.input, shape.k, shape.n, B),
            of(shape.acc, shape.m, shape.n, Acc),
        ]
    }
}

/// Where weight bytes come from: a file, or a generator.
pub trait WeightSource: Sync {
    /// The bytes of a weight in the file's layout, if they are at hand (mapped); devices copy them in pieces.
    /// `None`: the weight is synthetic, see [`WeightSource::synthetic`].
    fn bytes(&self, weight: WeightId) -> Option<&[u8]>;
    /// For weights without bytes: the seed from which a device makes the tensor, as [`crate::synthetic`] defines it.
    fn synthetic(&self, weight: WeightId) -> Option<u64> {
        let _ = weight;
        None
    }
}

/// What went wrong on a device.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// Not enough memory; nothing was changed.
    #[error(
        "{what} needs {needed} bytes but the device has {available} free; use a smaller context, batch or quantization"
    )]
    OutOfMemory {
        /// What was being allocated.
        what: String,
        /// Bytes needed.
        needed: u64,
        /// Bytes available.
        available: u64,
    },
    /// The driver lost the device (reset, time-out, unplugged).
    #[error("the device was lost while running {during}: {detail}")]
    Lost {
        /// What it was doing.
        during: String,
        /// Driver's words.
        detail: String,
    },
    /// The plan needs something the device lacks.
    #[error("unsupported on this device: {0}")]
    Unsupported(String),
    /// The driver rejected a kernel or a call.
    #[error("driver error in {call}: {detail}")]
    Driver {
        /// Call or kernel.
        call: String,
        /// Driver's words.
        detail: String,
    },
    /// The step does not fit the plan.
    #[error(transparent)]
    Step(#[from] StepError),
    /// No model is loaded, or an unknown program was named: a bug of the caller.
    #[error("device used out of order: {0}")]
    Misuse(&'static str),
}

/// Names a submitted step until its output has been read.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ticket(pub u64);

/// Steps that may be submitted and not yet waited for.
pub const MOST_IN_FLIGHT: usize = 2;

/// Handle of a prepared plan.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ProgramId(pub u32);

/// Progress of a load or of compilation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// Weight bytes on the device so far, of a total.
    Upload {
        /// Done.
        done: u64,
        /// Total.
        total: u64,
    },
    /// Kernels compiled so far, of a total; `cached` of them came from the cache.
    Compile {
        /// Done.
        done: u32,
        /// Total.
        total: u32,
        /// From cache.
        cached: u32,
    },
}

/// Memory of a device, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MemoryInfo {
    /// Total of the heap weights live in.
    pub total: u64,
    /// Free for us now (the driver's budget where it tells).
    pub available: u64,
    /// Allocated by us.
    pub used: u64,
}

/// What a device's compiler says of a kernel; `None` where it does not tell.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct KernelCost {
    /// Registers per lane.
    pub registers: Option<u64>,
    /// Registers spilled to memory, and bytes of memory per lane for them.
    pub spills: Option<u64>,
    /// Subgroups that a SIMD unit holds at a time.
    pub occupancy: Option<u64>,
}

/// Runs plans of one model.
pub trait Device: Send {
    /// Abilities.
    fn caps(&self) -> &Caps;

    /// One line for people: name, driver, and how it computes.
    fn description(&self) -> String;

    /// Where it sits on the PCI bus, in Linux's spelling (`0000:03:00.0`), if it does and that is known.
    fn bus_address(&self) -> Option<String> {
        None
    }

    /// Memory now.
    fn memory(&self) -> MemoryInfo;

    /// Takes in a model: all weights of `graph` in the device's layout, and the KV pool. Replaces an earlier model
    /// and its programs. Devices that run kernels rearrange the file's bytes into planes
    /// ([`crate::quant::QuantFormat::repack`]); elements beyond the last whole device block are padded with zeros.
    fn load(
        &mut self,
        graph: &Arc<Graph>,
        kv: &Arc<KvLayout>,
        weights: &dyn WeightSource,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<(), DeviceError>;

    /// Makes a plan of the loaded model runnable.
    fn prepare(&mut self, plan: &Arc<Plan>, progress: &mut dyn FnMut(Progress)) -> Result<ProgramId, DeviceError>;

    /// Lets go of a program that no step in flight uses. Its handle means nothing from then on.
    fn release(&mut self, program: ProgramId) {
        let _ = program;
    }

    /// Begins to do what of [`Device::prepare`] takes long, on threads of its own, so that the device can run steps of
    /// other plans meanwhile; true if it is done, so that `prepare` of this very plan will be quick. To be called until
    /// it is. One plan at a time: another one waits. What goes wrong is told by `prepare`.
    fn prepare_ahead(&mut self, plan: &Arc<Plan>) -> bool {
        let _ = plan;
        true
    }

    /// Hands a step to the device; steps run in the order of submission, each after the one before has ended. At most
    /// [`MOST_IN_FLIGHT`] tickets are open, one if the program gives logits: those must be waited for first. A step with
    /// chained tokens ([`Step::chained`]) takes them from the step submitted just before. After an error nothing of the
    /// step has happened.
    fn submit(&mut self, program: ProgramId, step: &Step) -> Result<Ticket, DeviceError>;

    /// Waits for a submitted step and puts what it gives into `output`, reusing its memory. Tickets are waited for in
    /// the order of their submission; after an error the ticket is gone.
    fn wait(&mut self, ticket: Ticket, output: &mut StepOutput) -> Result<(), DeviceError>;

    /// How many steps are best in flight: 2 for devices that work while the host prepares the next step.
    fn depth(&self) -> usize {
        1
    }

    /// Time that `wait` has spent with nothing to do, over all steps; `None` if the host computes them itself.
    fn waited(&self) -> Option<Duration> {
        None
    }

    /// Runs one step to its end and gives its output. No ticket may be open.
    fn run(&mut self, program: ProgramId, step: &Step) -> Result<StepOutput, DeviceError> {
        let ticket = self.submit(program, step)?;
        let mut output = StepOutput::None;
        self.wait(ticket, &mut output)?;
        Ok(output)
    }

    /// Time of each launch of the program's last run, in the plan's order, if the device can tell: from the end of the
    /// launch before to its own end, so that the sum is the time from the first launch to the end of the last.
    /// Steps of a program measure launches after this has been called once with `true`.
    fn profile(&mut self, program: ProgramId, on: bool) -> Option<Vec<Duration>>;

    /// What the compiler says of some kernels, in their order, without running them; empty if it says nothing or a kernel
    /// does not compile.
    fn kernel_costs(&self, kernels: &[&Kernel]) -> Vec<KernelCost> {
        let _ = kernels;
        vec![]
    }

    /// Begins to copy a KV page to the host: as the steps submitted so far leave it, whatever later ones write there. One page
    /// at a time.
    fn save_page(&mut self, page: u32) -> Result<(), DeviceError> {
        let _ = page;
        Err(DeviceError::Unsupported("saving pages".into()))
    }

    /// Puts the page that [`Device::save_page`] was last called for into `bytes`, if it is there, which `wait` waits for.
    /// False: not yet. After an error there is none.
    fn saved_page(&mut self, wait: bool, bytes: &mut Vec<u8>) -> Result<bool, DeviceError> {
        let _ = (wait, bytes);
        Err(DeviceError::Misuse("no page is being saved"))
    }

    /// Puts the bytes of a saved page into this page, before all steps that are submitted from now on.
    fn load_page(&mut self, page: u32, bytes: &[u8]) -> Result<(), DeviceError> {
        let _ = (page, bytes);
        Err(DeviceError::Unsupported("loading pages".into()))
    }

    /// Names the order of the bytes of a page: what one device saves, others load that say the same.
    fn page_format(&self) -> &'static str {
        "none"
    }

    /// Copies KV pages within the pool, for sharing a partly filled page: `(from, to)` page numbers.
    fn copy_pages(&mut self, pairs: &[(u32, u32)]) -> Result<(), DeviceError>;
}
