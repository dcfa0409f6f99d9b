//! The Vulkan device as the engine sees it.
//!
//! ```text
//! open ─► load: Model ─► prepare: Program (many) ─► submit: write inputs, hand over ─► wait: read output
//!                          └ of pipelines made by a thread, where it was told to prepare ahead
//! ```

use crate::ahead::Ahead;
use crate::cache::KernelCache;
use crate::device::Gpu;
use crate::error::VulkanError;
use crate::memory::{Buffer, Place};
use crate::model::{Model, Repackers};
use crate::pages::Carriers;
use crate::pipeline::{Pipeline, Pipelines, compile_all};
use crate::program::{Program, Shared};
use crate::quads::{self, Quads};
use crate::replay::{Command, Patience, Queue, Recording};
use crate::report::{DeviceReport, DeviceType};
use crate::stats::costs;
use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use zinc_ir::device::{
    Caps, Device, DeviceError, KernelCost, MOST_IN_FLIGHT, MemoryInfo, ProgramId, Progress, Ticket, WeightSource,
};
use zinc_ir::graph::Graph;
use zinc_ir::kernel::Kernel;
use zinc_ir::plan::{CHAIN_ROWS, KvLayout, Plan, Step, StepError, StepOutput};

/// How a device is opened.
#[derive(Clone, Debug)]
pub struct Options {
    /// Turn the Khronos validation layer on, if it is installed; see [`VulkanDevice::validation_messages`].
    pub validation: bool,
    /// Folder for compiled kernels; none: compile at every start.
    pub cache: Option<PathBuf>,
    /// Subgroup size kernels are made for; none: the device's own.
    pub subgroup_size: Option<u32>,
    /// Offer cooperative matrices on drivers without matrix hardware too, where they are an order of magnitude slower
    /// than plain arithmetic: for tests.
    pub emulated_matrices: bool,
    /// Longest wait without any progress before the device counts as lost.
    pub timeout: Duration,
    /// Steps that take longer are handed over in parts of about this length: a device that is busy with one submission for
    /// seconds is taken for hung by the operating system.
    pub longest_part: Duration,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            validation: false,
            cache: None,
            subgroup_size: None,
            emulated_matrices: false,
            timeout: Duration::from_secs(300),
            longest_part: Duration::from_millis(250),
        }
    }
}

/// Steps submitted and not yet waited for.
struct Flight {
    open: VecDeque<Open>,
    /// Tickets given so far.
    tickets: u64,
    /// Output rows of the last step that the next one may name.
    chained: u32,
    /// When the last step was seen to have ended, and whether it was waited for then.
    ended: Instant,
    seen: bool,
    /// Time spent waiting.
    waited: Duration,
    /// The slowest program's, see [`crate::parts`].
    pace: Option<f64>,
}

/// A step in flight.
struct Open {
    ticket: Ticket,
    program: usize,
    slot: usize,
    /// Of the queue's timeline.
    value: u64,
    /// Output rows.
    rows: usize,
    submitted: Instant,
    /// See [`crate::parts`].
    cost: f64,
}

impl Flight {
    fn new() -> Flight {
        Flight {
            open: VecDeque::with_capacity(MOST_IN_FLIGHT),
            tickets: 0,
            chained: 0,
            ended: Instant::now(),
            seen: false,
            waited: Duration::ZERO,
            pace: None,
        }
    }

    fn clear(&mut self) {
        self.open.clear();
        self.chained = 0;
        self.pace = None;
    }
}

/// A Vulkan device that runs plans.
pub struct VulkanDevice {
    // Dropped first: waits for the device, so that all below may go.
    pub(crate) queue: Queue,
    /// By their ids; none: let go of.
    programs: Vec<Option<Program>>,
    /// Shared by all programs: nothing in it outlives a step.
    scratch: Option<Buffer>,
    /// Scratch that was too small, and the last step that uses it.
    outgrown: Vec<(Buffer, Ticket)>,
    /// Tokens that one step leaves to the next.
    chain: Buffer,
    flight: Flight,
    carriers: Carriers,
    model: Option<Model>,
    repackers: Repackers,
    pipelines: Pipelines,
    /// Pipelines that a thread compiles.
    ahead: Option<Ahead>,
    pub(crate) cache: Arc<KernelCache>,
    longest_part: Duration,
    caps: Caps,
    quads: Quads,
    pub(crate) gpu: Arc<Gpu>,
}

impl VulkanDevice {
    /// Opens device `index` of [`crate::list_devices`].
    pub fn open(index: usize, options: &Options) -> Result<VulkanDevice, VulkanError> {
        let gpu = Gpu::open(index, options.validation)?;
        let report = &gpu.report;
        let unusable = |reason| VulkanError::NotUsable { name: report.name.clone(), reason };
        if report.no_hardware {
            return Err(unusable("its driver has no hardware behind it; kernels can only be compiled".into()));
        }
        let (min, max) = report.subgroup_range;
        let size = options.subgroup_size.unwrap_or(report.subgroup_size);
        if !size.is_power_of_two() || !(min..=max).contains(&size) {
            return Err(unusable(format!("it has no subgroups of {size} lanes (smallest {min}, largest {max})")));
        }
        let mut caps = report.caps(size);
        if report.device_type == DeviceType::Software && !options.emulated_matrices {
            caps.matrices.clear();
        }
        let lanes = 256.min(caps.max_workgroup / size * size);
        let mut device = VulkanDevice {
            queue: Queue::new(&gpu, options.timeout)?,
            programs: vec![],
            scratch: None,
            outgrown: vec![],
            chain: Buffer::new(&gpu, CHAIN_ROWS as u64 * 4, Place::Device, "chained tokens")?,
            flight: Flight::new(),
            carriers: Carriers::default(),
            model: None,
            repackers: Repackers::new(lanes, size),
            pipelines: Pipelines::new(),
            ahead: None,
            cache: Arc::new(KernelCache::new(options.cache.as_deref(), report)),
            longest_part: options.longest_part,
            caps: caps.clone(),
            quads: Quads::Absent,
            gpu,
        };
        device.quads = quads::look(&mut device, &caps)?;
        device.caps.quads = device.quads == Quads::Held;
        Ok(device)
    }

    /// How it holds matrices.
    pub fn quads(&self) -> &Quads {
        &self.quads
    }

    /// How long it is waited for.
    pub fn patience(&self) -> Patience {
        self.queue.patience.clone()
    }

    /// What has been handed to the device so far: steps, and whatever else.
    pub fn submissions(&self) -> u64 {
        self.queue.submissions()
    }

    /// What the device is.
    pub fn report(&self) -> &DeviceReport {
        &self.gpu.report
    }

    /// The validation layer is on.
    pub fn validated(&self) -> bool {
        self.gpu.instance.validated
    }

    /// Warnings and errors of the validation layer so far.
    pub fn validation_messages(&self) -> Vec<String> {
        self.gpu.instance.messages.all()
    }

    fn program(&mut self, id: ProgramId) -> Result<&mut Program, DeviceError> {
        self.programs.get_mut(id.0 as usize).and_then(Option::as_mut).ok_or(DeviceError::Misuse("no such program"))
    }

    /// Makes scratch at least `bytes` large; recordings with the old address become stale. Steps in flight go on with
    /// the old one.
    fn grow_scratch(&mut self, bytes: u64) -> Result<(), VulkanError> {
        if bytes == 0 || self.scratch.as_ref().is_some_and(|s| s.bytes >= bytes) {
            return Ok(());
        }
        let new = || Buffer::new(&self.gpu, bytes, Place::Device, "scratch memory of a step");
        let larger = match new() {
            Err(VulkanError::OutOfMemory { .. }) if self.flight.open.is_empty() => {
                self.queue.idle()?;
                // Without the old one there may be room; should there be none, nothing may name it any more.
                self.programs.iter_mut().flatten().for_each(Program::outdate);
                let had = self.scratch.take().map_or(0, |old| old.bytes);
                let again = |bytes| Buffer::new(&self.gpu, bytes, Place::Device, "scratch memory of a step");
                match again(bytes) {
                    Err(error) if had > 0 => {
                        self.scratch = Some(again(had)?);
                        return Err(error);
                    }
                    other => other?,
                }
            }
            other => other?,
        };
        if let Some(old) = self.scratch.replace(larger) {
            self.outgrown.push((old, Ticket(self.flight.tickets)));
        }
        self.programs.iter_mut().flatten().for_each(Program::outdate);
        Ok(())
    }

    /// The pipelines of a plan: those that were compiled ahead, or compiled now.
    fn pipelines(
        &mut self,
        plan: &Arc<Plan>,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Vec<Arc<Pipeline>>, VulkanError> {
        let total = plan.kernels.len() as u32;
        let mut done = |done, cached| progress(Progress::Compile { done, total, cached });
        let ahead = self.ahead.take_if(|ahead| Arc::ptr_eq(&ahead.plan, plan));
        if let Some(made) = ahead.and_then(|ahead| ahead.finish(&mut done)) {
            let made = made?;
            self.pipelines.extend(made.known);
            return Ok(made.pipelines);
        }
        let mut done = |finished, cached| {
            done(finished, cached);
            Ok(())
        };
        compile_all(&self.gpu, &self.cache, &mut self.pipelines, &plan.kernels, &mut done)
    }
}

impl Device for VulkanDevice {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn description(&self) -> String {
        let r = self.report();
        let kind = match r.device_type {
            DeviceType::Software => "Vulkan on the CPU",
            _ => "Vulkan",
        };
        format!("{} ({kind}, {} {}, subgroups of {})", r.name, r.driver, r.driver_info, self.caps.subgroup_size)
    }

    fn bus_address(&self) -> Option<String> {
        self.report().bus_address.clone()
    }

    fn memory(&self) -> MemoryInfo {
        let (available, total) = self.gpu.device_memory();
        MemoryInfo { total, available, used: self.gpu.used.load(std::sync::atomic::Ordering::Relaxed) }
    }

    fn load(
        &mut self,
        graph: &Arc<Graph>,
        kv: &Arc<KvLayout>,
        weights: &dyn WeightSource,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<(), DeviceError> {
        self.queue.idle()?;
        self.flight.clear();
        self.programs.clear();
        self.outgrown.clear();
        self.ahead = None;
        self.carriers = Carriers::default();
        self.model = None;
        let (gpu, queue) = (self.gpu.clone(), &mut self.queue);
        self.model = Some(Model::load(&gpu, queue, &mut self.repackers, graph, kv, weights, progress)?);
        Ok(())
    }

    fn prepare(&mut self, plan: &Arc<Plan>, progress: &mut dyn FnMut(Progress)) -> Result<ProgramId, DeviceError> {
        let Some(model) = &self.model else { return Err(DeviceError::Misuse("no model is loaded")) };
        if model.kv.as_ref() != plan.kv.as_ref() {
            return Err(DeviceError::Misuse("the plan was made for another KV layout"));
        }
        check(plan, &self.caps)?;
        let pipelines = self.pipelines(plan, progress)?;
        let parts = (self.longest_part, self.flight.pace.unwrap_or(1.0));
        let program = Program::new(&self.gpu, plan, pipelines, parts)?;
        self.grow_scratch(plan.scratch_bytes)?;
        self.programs.push(Some(program));
        Ok(ProgramId(self.programs.len() as u32 - 1))
    }

    fn release(&mut self, program: ProgramId) {
        let in_flight = self.flight.open.iter().any(|open| open.program == program.0 as usize);
        // Should waiting fail, the program stays until the device goes.
        if in_flight || self.queue.idle().is_err() {
            return;
        }
        // It may have been a wrong one, which left counters that are not zero.
        if let Some(model) = &self.model {
            model.clear_counters(&self.gpu, &mut self.queue).ok();
        }
        if let Some(place) = self.programs.get_mut(program.0 as usize) {
            *place = None;
            self.pipelines.retain(|_, pipeline| Arc::strong_count(pipeline) > 1);
        }
    }

    fn prepare_ahead(&mut self, plan: &Arc<Plan>) -> bool {
        match &self.ahead {
            Some(ahead) if Arc::ptr_eq(&ahead.plan, plan) => return ahead.is_finished(),
            Some(other) if !other.is_finished() => return false,
            _ => {}
        }
        // Nobody came for the plan before; its pipelines may serve others.
        if let Some(Ok(made)) = self.ahead.take().and_then(|other| other.finish(&mut |_, _| ())) {
            self.pipelines.extend(made.known);
        }
        self.ahead = Ahead::start(&self.gpu, &self.cache, &self.pipelines, plan).ok();
        // Without a thread there is nothing to wait for.
        self.ahead.is_none()
    }

    fn submit(&mut self, program: ProgramId, step: &Step) -> Result<Ticket, DeviceError> {
        let Self { queue, programs, scratch, chain, model, flight, .. } = self;
        let model = model.as_ref().ok_or(DeviceError::Misuse("no model is loaded"))?;
        let index = program.0 as usize;
        let program = programs.get_mut(index).and_then(Option::as_mut).ok_or(DeviceError::Misuse("no such program"))?;
        if flight.open.len() >= MOST_IN_FLIGHT {
            return Err(DeviceError::Misuse("too many steps in flight"));
        }
        if step.chain() > flight.chained {
            return Err(StepError::Inconsistent("a chained token is no output of the step before").into());
        }
        let slot = program.free_slot().ok_or(DeviceError::Misuse("the program has a step in flight"))?;
        program.record(slot, &Shared { model, scratch: scratch.as_ref(), chain })?;
        program.write_inputs(slot, step)?;
        let value = queue.submit(&program.slots[slot].recording)?;
        program.slots[slot].open = true;
        flight.tickets += 1;
        flight.chained = program.plan.chained_rows(step);
        let (ticket, rows, submitted) = (Ticket(flight.tickets), step.outputs.len(), Instant::now());
        let cost = program.cost(step);
        flight.open.push_back(Open { ticket, program: index, slot, value, rows, submitted, cost });
        Ok(ticket)
    }

    fn wait(&mut self, ticket: Ticket, output: &mut StepOutput) -> Result<(), DeviceError> {
        let Self { queue, programs, flight, outgrown, .. } = self;
        if flight.open.front().is_none_or(|open| open.ticket != ticket) {
            return Err(DeviceError::Misuse("not the oldest step in flight"));
        }
        let Some(open) = flight.open.pop_front() else { return Err(DeviceError::Misuse("no step in flight")) };
        let program = programs[open.program].as_mut().ok_or(DeviceError::Misuse("no such program"))?;
        program.slots[open.slot].open = false;
        // It began when it was there and the one before had ended.
        let begun = open.submitted.max(flight.ended);
        let asked = Instant::now();
        let left = program.expected.saturating_sub(asked - begun);
        // A time is known only where the host has seen both ends of it.
        let blocked = !queue.has_ended(open.value)?;
        let known = blocked && (flight.seen || open.submitted >= flight.ended);
        queue.wait_expecting(open.value, left, "running a step")?;
        outgrown.retain(|(_, last)| *last > ticket);
        flight.ended = Instant::now();
        flight.waited += flight.ended - asked;
        flight.seen = blocked;
        program.ran = Some(open.slot);
        if known && let Some(pace) = program.took(open.cost, flight.ended - begun) {
            flight.pace = Some(flight.pace.map_or(pace, |slowest| slowest.max(pace)));
        }
        program.slots[open.slot].output(&program.plan, open.rows, output);
        Ok(())
    }

    fn depth(&self) -> usize {
        MOST_IN_FLIGHT
    }

    fn waited(&self) -> Option<Duration> {
        Some(self.flight.waited)
    }

    fn profile(&mut self, program: ProgramId, on: bool) -> Option<Vec<Duration>> {
        let program = self.program(program).ok()?;
        let ran = program.ran.filter(|_| program.timed);
        let times = ran.and_then(|slot| program.slots[slot].recording.times());
        if program.timed != on {
            (program.timed, program.ran) = (on, None);
            program.outdate();
        }
        times
    }

    fn kernel_costs(&self, kernels: &[&Kernel]) -> Vec<KernelCost> {
        costs(&self.gpu, kernels)
    }

    fn save_page(&mut self, page: u32) -> Result<(), DeviceError> {
        let model = self.model.as_ref().ok_or(DeviceError::Misuse("no model is loaded"))?;
        self.carriers.save(&self.gpu, &mut self.queue, model, page)
    }

    fn saved_page(&mut self, wait: bool, bytes: &mut Vec<u8>) -> Result<bool, DeviceError> {
        self.carriers.saved(&self.queue, wait, bytes)
    }

    fn load_page(&mut self, page: u32, bytes: &[u8]) -> Result<(), DeviceError> {
        let model = self.model.as_ref().ok_or(DeviceError::Misuse("no model is loaded"))?;
        self.carriers.load(&self.gpu, &mut self.queue, model, page, bytes)
    }

    fn page_format(&self) -> &'static str {
        "planes"
    }

    fn copy_pages(&mut self, pairs: &[(u32, u32)]) -> Result<(), DeviceError> {
        let model = self.model.as_ref().ok_or(DeviceError::Misuse("no model is loaded"))?;
        let kv = &model.kv;
        let mut commands = vec![Command::FullBarrier];
        for area in &kv.layers {
            for (from, to) in pairs {
                if (*from).max(*to) >= kv.pages {
                    return Err(DeviceError::Misuse("a page beyond the pool"));
                }
                for (start, ty) in [(area.k, kv.types.k), (area.v, kv.types.v)] {
                    let bytes = area.page_bytes(ty) as u64;
                    let place = |page: u32| model.kv_place(start + page as u64 * bytes);
                    let (Some(from), Some(to)) = (place(*from), place(*to)) else { continue };
                    commands.push(Command::Copy {
                        from: from.0,
                        from_offset: from.1,
                        to: to.0,
                        to_offset: to.1,
                        bytes,
                    });
                }
            }
        }
        commands.push(Command::FullBarrier);
        let mut recording = Recording::new(&self.gpu)?;
        recording.record(&commands, false)?;
        let submitted = self.queue.submit(&recording)?;
        Ok(self.queue.wait(submitted, "copying KV pages")?)
    }
}

/// Does the plan fit the device, and is it free of hazards?
fn check(plan: &Plan, caps: &Caps) -> Result<(), DeviceError> {
    zinc_ir::plan::verify(plan).map_err(|e| DeviceError::Unsupported(e.to_string()))?;
    for launch in plan.launches() {
        let name = launch.template;
        let too_large = launch.grid.iter().zip(caps.max_grid).any(|(g, max)| *g > max);
        let reason = match launch.kernel {
            None => "has no kernel; the plan was made for a native device",
            Some(k) if k.0 as usize >= plan.kernels.len() => "names a kernel that does not exist",
            Some(_) if too_large => "has more tiles than the device's grid",
            Some(_) => continue,
        };
        return Err(DeviceError::Unsupported(format!("launch {name} {reason}")));
    }
    Ok(())
}
