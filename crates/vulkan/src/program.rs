//! A plan made runnable: its pipelines, its buffers, and its commands recorded once per slot.
//!
//! ```text
//! Plan ─compile_all─► pipelines ┐
//!      ─buffers─────► addresses ┴─record─► Recording ─replayed per step with new input bytes─► output bytes
//! ```
//!
//! A slot is one step's inputs, read-back memory and recording (addresses are part of the recording): with two of them
//! the host writes one step's inputs while the device still reads the other's. Launches with more arguments than push
//! constants hold find them in memory of the slot, too.

use crate::device::Gpu;
use crate::error::VulkanError;
use crate::memory::{Buffer, Place};
use crate::model::Model;
use crate::parts::{self, Work};
use crate::pipeline::Pipeline;
use crate::replay::{Command, Recording};
use crate::report::DeviceType;
use std::sync::Arc;
use std::time::Duration;
use zinc_ir::device::MOST_IN_FLIGHT;
use zinc_ir::plan::{Buffer as PlanBuffer, Entry, Launch, LaunchArg, Plan, Step, StepError, StepOutput};
use zinc_spirv::PushLayout;

/// Outputs up to this size are written straight into host memory; larger ones into device memory first.
const DIRECT_OUTPUT: u64 = 4096;

/// A prepared plan.
pub(crate) struct Program {
    pub(crate) plan: Arc<Plan>,
    pipelines: Vec<Arc<Pipeline>>,
    /// What kernels write; none: they write into a slot's `read_back`.
    output: Option<Buffer>,
    pub(crate) slots: Vec<Slot>,
    /// Record launches apart, with timestamps.
    pub(crate) timed: bool,
    /// The slot that ran last, since timing was switched.
    pub(crate) ran: Option<usize>,
    /// How long the last run took.
    pub(crate) expected: Duration,
    work: Work,
    /// The longest that a part shall take.
    longest: Duration,
    /// Of the run that the parts were made for, or a guess.
    pace: f64,
    /// Entries that parts begin with.
    starts: Vec<usize>,
}

/// What one step in flight has for itself.
pub(crate) struct Slot {
    inputs: Buffer,
    read_back: Buffer,
    /// Arguments of launches that have too many for push constants.
    tables: Option<Buffer>,
    pub(crate) recording: Recording,
    /// The recording is out of date (scratch moved, or timing was switched).
    stale: bool,
    /// A step was submitted and its output not yet read.
    pub(crate) open: bool,
}

impl Slot {
    fn new(gpu: &Arc<Gpu>, plan: &Plan, pipelines: &[Arc<Pipeline>], read_bytes: u64) -> Result<Slot, VulkanError> {
        let table = |launch: &Launch| launch.kernel.map_or(0, |k| table_bytes(&pipelines[k.0 as usize].push));
        let tables = match plan.launches().map(table).sum() {
            0 => None,
            bytes => Some(Buffer::new(gpu, bytes, Place::Parameters, "launch arguments")?),
        };
        Ok(Slot {
            inputs: Buffer::new(gpu, plan.inputs.bytes, Place::Parameters, "step inputs")?,
            read_back: Buffer::new(gpu, read_bytes, Place::ReadBack, "step outputs")?,
            tables,
            recording: Recording::new(gpu)?,
            stale: true,
            open: false,
        })
    }

    /// The output of the finished step of `rows` output rows.
    pub(crate) fn output(&self, plan: &Plan, rows: usize, output: &mut StepOutput) {
        plan.read_output(rows, self.read_back.host(), output);
    }
}

/// Memory that plans share: their addresses are part of recordings.
pub(crate) struct Shared<'a> {
    pub(crate) model: &'a Model,
    pub(crate) scratch: Option<&'a Buffer>,
    pub(crate) chain: &'a Buffer,
}

impl Program {
    /// No part of a step shall take longer than `longest`, which is guessed by `pace` before the first.
    pub(crate) fn new(
        gpu: &Arc<Gpu>,
        plan: &Arc<Plan>,
        pipelines: Vec<Arc<Pipeline>>,
        (longest, pace): (Duration, f64),
    ) -> Result<Program, VulkanError> {
        let unified = matches!(gpu.report.device_type, DeviceType::Software | DeviceType::Integrated);
        let direct = unified || plan.output_bytes <= DIRECT_OUTPUT;
        let output = match direct {
            true => None,
            false => Some(Buffer::new(gpu, plan.output_bytes, Place::Device, "step outputs")?),
        };
        // Kernels may write more than the host needs.
        let read_bytes = if direct { plan.output_bytes } else { plan.read_bytes() };
        // Nothing can be chained to logits alone, which are large.
        let slots = if plan.bucket.outputs == 0 || plan.bucket.tail.chains() { MOST_IN_FLIGHT } else { 1 };
        let slots = (0..slots).map(|_| Slot::new(gpu, plan, &pipelines, read_bytes)).collect::<Result<_, _>>()?;
        let (plan, starts) = (plan.clone(), parts::starts(plan, longest, pace));
        let (work, timed, ran, expected) = (Work::of(&plan), false, None, Duration::ZERO);
        Ok(Program { plan, pipelines, output, slots, timed, ran, expected, work, longest, pace, starts })
    }

    /// What a step costs, see [`Program::took`].
    pub(crate) fn cost(&self, step: &Step) -> f64 {
        self.work.of_step(step)
    }

    /// A step of this cost took so long; gives the pace.
    pub(crate) fn took(&mut self, cost: f64, time: Duration) -> Option<f64> {
        self.expected = time;
        let pace = parts::pace(cost, time)?;
        if !parts::still_right(self.pace, pace) {
            self.pace = pace;
            let starts = parts::starts(&self.plan, self.longest, pace);
            if starts != self.starts {
                self.starts = starts;
                self.outdate();
            }
        }
        Some(pace)
    }

    /// A slot without a step in flight.
    pub(crate) fn free_slot(&self) -> Option<usize> {
        self.slots.iter().position(|s| !s.open)
    }

    /// Recordings no longer say what is to be done.
    pub(crate) fn outdate(&mut self) {
        self.slots.iter_mut().for_each(|s| s.stale = true);
    }

    /// Records the plan for a slot with today's addresses, unless that has been done.
    pub(crate) fn record(&mut self, slot: usize, shared: &Shared<'_>) -> Result<(), VulkanError> {
        let Program { plan, pipelines, output, slots, timed, starts, .. } = self;
        let Slot { inputs, read_back, tables, recording, stale, .. } = &mut slots[slot];
        if *stale {
            let places = Places { plan, pipelines, inputs, output: output.as_ref(), read_back, shared, starts };
            recording.record(&places.commands(tables.as_mut())?, *timed)?;
            *stale = false;
        }
        Ok(())
    }

    /// Writes a step's inputs where the slot's commands read them.
    pub(crate) fn write_inputs(&mut self, slot: usize, step: &Step) -> Result<(), StepError> {
        self.plan.check(step)?;
        let bytes = self.plan.inputs.bytes as usize;
        self.plan.inputs.write(step, &mut self.slots[slot].inputs.host_mut()[..bytes])
    }
}

/// Everything that commands name.
struct Places<'a> {
    plan: &'a Plan,
    pipelines: &'a [Arc<Pipeline>],
    inputs: &'a Buffer,
    output: Option<&'a Buffer>,
    read_back: &'a Buffer,
    shared: &'a Shared<'a>,
    starts: &'a [usize],
}

impl<'a> Places<'a> {
    /// The commands; `tables` is memory for [`table_bytes`] of each launch.
    fn commands(&self, mut tables: Option<&mut Buffer>) -> Result<Vec<Command<'a>>, VulkanError> {
        let mut used = 0;
        // What earlier submissions wrote (KV, scratch, the chain) must be seen, and not be overtaken.
        let mut commands = vec![Command::FullBarrier];
        for (at, entry) in self.plan.entries.iter().enumerate() {
            if self.starts.binary_search(&at).is_ok() {
                commands.push(Command::Part);
            }
            match entry {
                Entry::Barrier => commands.push(Command::Barrier),
                Entry::Launch(launch) => {
                    let Some(kernel) = launch.kernel else { continue };
                    let pipeline = &self.pipelines[kernel.0 as usize];
                    let mut push = self.arguments(launch, pipeline)?;
                    if let (true, Some(tables)) = (pipeline.push.in_memory(), &mut tables) {
                        tables.host_mut()[used..used + push.len()].copy_from_slice(&push);
                        push = (tables.address + used as u64).to_le_bytes().to_vec();
                        used += table_bytes(&pipeline.push) as usize;
                    }
                    commands.push(Command::Launch { pipeline, push, grid: launch.grid });
                }
            }
        }
        if let Some(from) = self.output {
            let (to, bytes) = (self.read_back, self.plan.read_bytes());
            commands.push(Command::FullBarrier);
            commands.push(Command::Copy { from, from_offset: 0, to, to_offset: 0, bytes });
        }
        commands.push(Command::ToHost);
        Ok(commands)
    }

    /// The arguments of a launch, in the layout of its kernel.
    fn arguments(&self, launch: &Launch, pipeline: &Pipeline) -> Result<Vec<u8>, VulkanError> {
        let wrong = |reason: String| VulkanError::Arguments { kernel: launch.template.to_string(), reason };
        if launch.args.len() != pipeline.push.offsets.len() {
            let (given, declared) = (launch.args.len(), pipeline.push.offsets.len());
            return Err(wrong(format!("{given} arguments given, {declared} declared")));
        }
        let mut push = vec![0; pipeline.push.bytes as usize];
        for (arg, at) in launch.args.iter().zip(&pipeline.push.offsets) {
            let at = *at as usize;
            match arg {
                LaunchArg::Word(w) => put(&mut push, at, &w.to_le_bytes()),
                LaunchArg::Address { buffer, offset } => {
                    let base = self.address(*buffer, *offset);
                    let address = base.ok_or_else(|| wrong(format!("{buffer:?} has no byte {offset}")))?;
                    put(&mut push, at, &address.to_le_bytes())
                }
            }
            .ok_or_else(|| wrong("arguments are of other kinds than declared".into()))?;
        }
        Ok(push)
    }

    fn address(&self, buffer: PlanBuffer, offset: u64) -> Option<u64> {
        match buffer {
            PlanBuffer::Weight(w) => Some(self.shared.model.weight_address(w, offset)),
            PlanBuffer::Kv => self.shared.model.kv_address(offset),
            PlanBuffer::Scratch => Some(self.shared.scratch?.address + offset),
            PlanBuffer::Inputs => Some(self.inputs.address + offset),
            PlanBuffer::Output => Some(self.output.unwrap_or(self.read_back).address + offset),
            PlanBuffer::Chain => Some(self.shared.chain.address + offset),
            PlanBuffer::Counters => Some(self.shared.model.counters.address + offset),
        }
    }
}

/// Bytes of memory for the arguments of a kernel, where they do not fit push constants.
fn table_bytes(layout: &PushLayout) -> u64 {
    if layout.in_memory() { layout.bytes.next_multiple_of(16) as u64 } else { 0 }
}

fn put(push: &mut [u8], at: usize, bytes: &[u8]) -> Option<()> {
    push.get_mut(at..at + bytes.len())?.copy_from_slice(bytes);
    Some(())
}
