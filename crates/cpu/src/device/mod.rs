//! The device: runs plans natively.
//!
//! ```text
//! load ─► Model (packed weights, cache)   prepare ─► Program (works, slots)   submit ─► works in order ─► output
//! ```

mod execute;
mod experts;
mod model;
mod program;

use crate::{Activations, Isa, Pool, PoolError};
use execute::{Run, Values};
use model::{Model, system_memory};
use program::Program;
use std::sync::Arc;
use std::time::Duration;
use zinc_ir::device::{Caps, Device, DeviceError, MemoryInfo, ProgramId, Progress, Ticket, WeightSource};
use zinc_ir::graph::{Graph, Op};
use zinc_ir::immediate::Immediate;
use zinc_ir::plan::{KvLayout, Plan, Step, StepOutput};

/// A prepared plan.
struct Prepared {
    plan: Arc<Plan>,
    program: Program,
    /// Time of each launch in the last run, when measured.
    times: Option<Vec<Duration>>,
}

/// The CPU as a [`Device`].
pub struct CpuDevice {
    pool: Pool,
    isa: Isa,
    caps: Caps,
    model: Option<Model>,
    programs: Vec<Prepared>,
    /// Of all programs: only one runs at a time, and each by itself would hold as much as its largest step needs.
    values: Values,
    activations: Activations,
    results: Immediate,
}

impl CpuDevice {
    /// A device of `threads` threads (0: as many as the process may use) on the processor's best instructions.
    ///
    /// # Errors
    /// When the operating system does not give the threads.
    pub fn new(threads: usize) -> Result<CpuDevice, PoolError> {
        CpuDevice::with_isa(threads, Isa::best())
    }

    /// As [`CpuDevice::new`], with the instructions of `isa`, one of [`Isa::available`].
    ///
    /// # Errors
    /// When the operating system does not give the threads.
    ///
    /// # Panics
    /// When the processor does not have `isa`.
    pub fn with_isa(threads: usize, isa: Isa) -> Result<CpuDevice, PoolError> {
        assert!(Isa::available().contains(&isa), "{} is not available here", isa.name());
        Ok(CpuDevice {
            pool: Pool::new(threads)?,
            isa,
            caps: Caps::native(),
            model: None,
            programs: Vec::new(),
            values: Values::default(),
            activations: Activations::new(isa),
            results: Immediate::default(),
        })
    }

    pub(crate) fn pool(&self) -> &Pool {
        &self.pool
    }

    pub(crate) fn isa(&self) -> Isa {
        self.isa
    }

    fn prepared(&mut self, id: ProgramId) -> Result<&mut Prepared, DeviceError> {
        self.programs.get_mut(id.0 as usize).ok_or(DeviceError::Misuse("unknown program"))
    }
}

impl Device for CpuDevice {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn description(&self) -> String {
        let threads = self.pool.threads();
        let s = if threads == 1 { "" } else { "s" };
        format!("CPU, {threads} thread{s}, {}", self.isa.name())
    }

    fn memory(&self) -> MemoryInfo {
        let (total, available) = system_memory().unwrap_or_default();
        MemoryInfo { total, available, used: self.model.as_ref().map_or(0, |m| m.bytes) }
    }

    fn load(
        &mut self,
        graph: &Arc<Graph>,
        kv: &Arc<KvLayout>,
        weights: &dyn WeightSource,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<(), DeviceError> {
        self.programs.clear();
        self.values = Values::default();
        self.results = Immediate::default();
        self.model = None;
        self.model = Some(Model::load(&self.pool, self.isa, graph, kv, weights, progress)?);
        Ok(())
    }

    fn prepare(&mut self, plan: &Arc<Plan>, _progress: &mut dyn FnMut(Progress)) -> Result<ProgramId, DeviceError> {
        let model = self.model.as_ref().ok_or(DeviceError::Misuse("no model is loaded"))?;
        if *plan.kv != *model.layout {
            return Err(DeviceError::Misuse("the plan was made for another KV layout"));
        }
        for node in plan.launches().flat_map(|l| &l.region) {
            let op = plan.graph.op(*node);
            let Some(weight) = op.weight() else { continue };
            let loaded = model.weights.get(weight.index()).is_some_and(|w| match op {
                Op::MatMul { .. } | Op::ExpertMatMul { .. } | Op::Embed { .. } => w.matrix.is_some(),
                _ => w.vector.is_some(),
            });
            if !loaded {
                return Err(DeviceError::Misuse("the plan was made for another model"));
            }
        }
        let program = Program::new(plan, &|w| model.matrix(w).takes_integers());
        self.programs.push(Prepared { plan: plan.clone(), program, times: None });
        Ok(ProgramId(self.programs.len() as u32 - 1))
    }

    /// Runs the step at once: there is no other processor that could.
    fn submit(&mut self, program: ProgramId, step: &Step) -> Result<Ticket, DeviceError> {
        let prepared = self.programs.get_mut(program.0 as usize);
        let prepared = prepared.ok_or(DeviceError::Misuse("unknown program"))?;
        let model = self.model.as_mut().ok_or(DeviceError::Misuse("no model is loaded"))?;
        let plan = &*prepared.plan;
        self.results.check(plan, step)?;
        if let Some(times) = &mut prepared.times {
            times.fill(Duration::ZERO);
        }
        let mut output = self.results.output();
        let mut run = Run {
            pool: &self.pool,
            isa: self.isa,
            act: plan.act,
            graph: &plan.graph,
            model,
            program: &prepared.program,
            values: &mut self.values,
            activations: &mut self.activations,
            step,
            chain: self.results.chain(),
        };
        run.run(prepared.times.as_deref_mut(), &mut output);
        Ok(self.results.finish(plan, step, output))
    }

    fn wait(&mut self, ticket: Ticket, output: &mut StepOutput) -> Result<(), DeviceError> {
        self.results.hand_over(ticket, output)
    }

    fn profile(&mut self, program: ProgramId, on: bool) -> Option<Vec<Duration>> {
        let prepared = self.prepared(program).ok()?;
        let last = prepared.times.clone();
        if on && prepared.times.is_none() {
            prepared.times = Some(vec![Duration::ZERO; prepared.program.launches]);
        } else if !on {
            prepared.times = None;
        }
        last
    }

    fn save_page(&mut self, page: u32) -> Result<(), DeviceError> {
        let model = self.model.as_mut().ok_or(DeviceError::Misuse("no model is loaded"))?;
        self.results.save_page(execute::save_page(&mut model.kv, page, model.layout.pages)?)
    }

    fn saved_page(&mut self, _wait: bool, bytes: &mut Vec<u8>) -> Result<bool, DeviceError> {
        self.results.saved_page(bytes)
    }

    fn load_page(&mut self, page: u32, bytes: &[u8]) -> Result<(), DeviceError> {
        let model = self.model.as_mut().ok_or(DeviceError::Misuse("no model is loaded"))?;
        execute::load_page(&mut model.kv, page, bytes, model.layout.pages)
    }

    fn page_format(&self) -> &'static str {
        "cpu"
    }

    fn copy_pages(&mut self, pairs: &[(u32, u32)]) -> Result<(), DeviceError> {
        let model = self.model.as_mut().ok_or(DeviceError::Misuse("no model is loaded"))?;
        execute::copy_pages(&mut model.kv, pairs, model.layout.pages)
    }
}
