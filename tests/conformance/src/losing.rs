//! A device that gets lost when a test wants it to: from then on every call fails, until another takes its place. Or one
//! whose steps fail now and then, without harm to those after them.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;
use zinc_ir::device::{Caps, Device, DeviceError, KernelCost, MemoryInfo, ProgramId, Progress, Ticket, WeightSource};
use zinc_ir::graph::Graph;
use zinc_ir::kernel::Kernel;
use zinc_ir::plan::{KvLayout, Plan, Step, StepOutput};

/// When devices get lost. Clones are the same fuse.
#[derive(Clone, Debug, Default)]
pub struct Fuse {
    /// Calls until a device is lost; 0: none will be.
    left: Arc<AtomicI64>,
    losses: Arc<AtomicU64>,
    /// One of so many waits fails; 0: none does.
    failing: Arc<AtomicU64>,
    waits: Arc<AtomicU64>,
}

impl Fuse {
    /// The device in use is lost at the `calls`-th submission or wait from now on, or the next one if that is later.
    pub fn light(&self, calls: u32) {
        self.left.store(calls.max(1).into(), Ordering::SeqCst);
    }

    /// From now on, one of every so many steps fails; 0: none does.
    pub fn fail_one_of(&self, steps: u64) {
        self.failing.store(steps, Ordering::SeqCst);
    }

    /// Does this step fail?
    fn fails(&self) -> bool {
        let (of, step) = (self.failing.load(Ordering::SeqCst), self.waits.fetch_add(1, Ordering::SeqCst));
        of > 0 && (step + 1).is_multiple_of(of)
    }

    /// Devices lost so far.
    pub fn losses(&self) -> u64 {
        self.losses.load(Ordering::SeqCst)
    }

    /// Is this the call at which the device is lost?
    fn burns(&self) -> bool {
        let before = self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| (n > 0).then_some(n - 1));
        let burns = before == Ok(1);
        self.losses.fetch_add(burns.into(), Ordering::SeqCst);
        burns
    }
}

/// A device behind a fuse.
pub struct LosingDevice {
    inner: Box<dyn Device>,
    fuse: Fuse,
    lost: bool,
}

impl LosingDevice {
    /// `inner`, until the fuse burns.
    pub fn new(inner: Box<dyn Device>, fuse: &Fuse) -> LosingDevice {
        LosingDevice { inner, fuse: fuse.clone(), lost: false }
    }

    fn alive(&self) -> Result<(), DeviceError> {
        match self.lost {
            false => Ok(()),
            true => Err(DeviceError::Lost { during: "a test".into(), detail: "the fuse has burnt".into() }),
        }
    }

    fn call(&mut self) -> Result<(), DeviceError> {
        self.lost |= self.fuse.burns();
        self.alive()
    }
}

impl Device for LosingDevice {
    fn caps(&self) -> &Caps {
        self.inner.caps()
    }
    fn description(&self) -> String {
        self.inner.description()
    }
    fn memory(&self) -> MemoryInfo {
        self.inner.memory()
    }
    fn load(
        &mut self,
        graph: &Arc<Graph>,
        kv: &Arc<KvLayout>,
        weights: &dyn WeightSource,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<(), DeviceError> {
        self.alive()?;
        self.inner.load(graph, kv, weights, progress)
    }
    fn prepare(&mut self, plan: &Arc<Plan>, progress: &mut dyn FnMut(Progress)) -> Result<ProgramId, DeviceError> {
        self.alive()?;
        self.inner.prepare(plan, progress)
    }
    fn release(&mut self, program: ProgramId) {
        self.inner.release(program);
    }
    fn prepare_ahead(&mut self, plan: &Arc<Plan>) -> bool {
        self.lost || self.inner.prepare_ahead(plan)
    }
    fn submit(&mut self, program: ProgramId, step: &Step) -> Result<Ticket, DeviceError> {
        self.call()?;
        self.inner.submit(program, step)
    }
    fn wait(&mut self, ticket: Ticket, output: &mut StepOutput) -> Result<(), DeviceError> {
        self.call()?;
        self.inner.wait(ticket, output)?;
        match self.fuse.fails() {
            true => Err(DeviceError::Driver { call: "a test".into(), detail: "this step fails".into() }),
            false => Ok(()),
        }
    }
    fn depth(&self) -> usize {
        self.inner.depth()
    }
    fn waited(&self) -> Option<Duration> {
        self.inner.waited()
    }
    fn profile(&mut self, program: ProgramId, on: bool) -> Option<Vec<Duration>> {
        self.inner.profile(program, on)
    }
    fn kernel_costs(&self, kernels: &[&Kernel]) -> Vec<KernelCost> {
        self.inner.kernel_costs(kernels)
    }
    fn save_page(&mut self, page: u32) -> Result<(), DeviceError> {
        self.alive()?;
        self.inner.save_page(page)
    }
    fn saved_page(&mut self, wait: bool, bytes: &mut Vec<u8>) -> Result<bool, DeviceError> {
        self.alive()?;
        self.inner.saved_page(wait, bytes)
    }
    fn load_page(&mut self, page: u32, bytes: &[u8]) -> Result<(), DeviceError> {
        self.alive()?;
        self.inner.load_page(page, bytes)
    }
    fn page_format(&self) -> &'static str {
        self.inner.page_format()
    }
    fn copy_pages(&mut self, pairs: &[(u32, u32)]) -> Result<(), DeviceError> {
        self.alive()?;
        self.inner.copy_pages(pairs)
    }
}
