//! A plan made runnable: its pipelines, its buffers, and its commands recorded once.
//!
//! ```text
//! Plan ─compile_all─► pipelines ┐
//!      ─buffers─────► addresses ┴─record─► Recording ─replayed per step with new input bytes─► output bytes
//! ```

use crate::device::Gpu;
use crate::error::VulkanError;
use crate::memory::{Buffer, Place};
use crate::model::Model;
use crate::pipeline::Pipeline;
use crate::replay::{Command, Recording};
use crate::report::DeviceType;
use std::sync::Arc;
use std::time::Duration;
use zinc_ir::plan::{Buffer as PlanBuffer, Entry, Launch, LaunchArg, Plan, Step, StepOutput};

/// Outputs up to this size are written straight into host memory; larger ones into device memory first.
const DIRECT_OUTPUT: u64 = 4096;

/// A prepared plan.
pub(crate) struct Program {
    pub(crate) plan: Arc<Plan>,
    pipelines: Vec<Arc<Pipeline>>,
    inputs: Buffer,
    /// What kernels write; none: they write into `read_back`.
    output: Option<Buffer>,
    read_back: Buffer,
    pub(crate) recording: Recording,
    /// Record launches apart, with timestamps.
    pub(crate) timed: bool,
    /// The recording is out of date (scratch moved, or timing was switched).
    pub(crate) stale: bool,
    /// It has run since timing was switched.
    pub(crate) ran: bool,
    /// How long the last run took.
    pub(crate) expected: Duration,
}

impl Program {
    pub(crate) fn new(gpu: &Arc<Gpu>, plan: &Arc<Plan>, pipelines: Vec<Arc<Pipeline>>) -> Result<Program, VulkanError> {
        let unified = matches!(gpu.report.device_type, DeviceType::Software | DeviceType::Integrated);
        let direct = unified || plan.output_bytes <= DIRECT_OUTPUT;
        let output = match direct {
            true => None,
            false => Some(Buffer::new(gpu, plan.output_bytes, Place::Device, "step outputs")?),
        };
        Ok(Program {
            plan: plan.clone(),
            pipelines,
            inputs: Buffer::new(gpu, plan.inputs.bytes, Place::Parameters, "step inputs")?,
            output,
            read_back: Buffer::new(gpu, plan.output_bytes, Place::ReadBack, "step outputs")?,
            recording: Recording::new(gpu)?,
            timed: false,
            stale: true,
            ran: false,
            expected: Duration::ZERO,
        })
    }

    /// Records the plan with today's addresses.
    pub(crate) fn record(&mut self, model: &Model, scratch: Option<&Buffer>) -> Result<(), VulkanError> {
        // What earlier submissions wrote (KV, scratch) must be seen, and not be overtaken.
        let mut commands = vec![Command::FullBarrier];
        for entry in &self.plan.entries {
            match entry {
                Entry::Barrier => commands.push(Command::Barrier),
                Entry::Launch(launch) => {
                    let Some(kernel) = launch.kernel else { continue };
                    let pipeline = &self.pipelines[kernel.0 as usize];
                    let push = self.push(launch, pipeline, model, scratch)?;
                    commands.push(Command::Launch { pipeline, push, grid: launch.grid });
                }
            }
        }
        if let Some(output) = &self.output {
            let (to, bytes) = (&self.read_back, self.plan.output_bytes);
            commands.push(Command::FullBarrier);
            commands.push(Command::Copy { from: output, from_offset: 0, to, to_offset: 0, bytes });
        }
        commands.push(Command::ToHost);
        self.recording.record(&commands, self.timed)?;
        self.stale = false;
        Ok(())
    }

    /// Push constants of a launch.
    fn push(
        &self,
        launch: &Launch,
        pipeline: &Pipeline,
        model: &Model,
        scratch: Option<&Buffer>,
    ) -> Result<Vec<u8>, VulkanError> {
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
                    let base = self.address(*buffer, *offset, model, scratch);
                    let address = base.ok_or_else(|| wrong(format!("{buffer:?} has no byte {offset}")))?;
                    put(&mut push, at, &address.to_le_bytes())
                }
            }
            .ok_or_else(|| wrong("arguments are of other kinds than declared".into()))?;
        }
        Ok(push)
    }

    fn address(&self, buffer: PlanBuffer, offset: u64, model: &Model, scratch: Option<&Buffer>) -> Option<u64> {
        match buffer {
            PlanBuffer::Weight(w) => Some(model.weight_address(w, offset)),
            PlanBuffer::Kv => model.kv_address(offset),
            PlanBuffer::Scratch => Some(scratch?.address + offset),
            PlanBuffer::Inputs => Some(self.inputs.address + offset),
            PlanBuffer::Output => Some(self.output.as_ref().unwrap_or(&self.read_back).address + offset),
        }
    }

    /// Writes a step's inputs where the commands read them.
    pub(crate) fn write_inputs(&mut self, step: &Step) -> Result<(), zinc_ir::plan::StepError> {
        self.plan.check(step)?;
        let bytes = self.plan.inputs.bytes as usize;
        self.plan.inputs.write(step, &mut self.inputs.host_mut()[..bytes])
    }

    /// The output of the finished step.
    pub(crate) fn output(&self, step: &Step) -> StepOutput {
        let (rows, all) = (step.outputs.len(), self.plan.bucket.outputs as usize);
        if rows == 0 || all == 0 {
            return StepOutput::None;
        }
        let bytes = &self.read_back.host()[..self.plan.output_bytes as usize];
        let words: Vec<u32> = bytes[..bytes.len() / all * rows]
            .chunks_exact(4)
            .map(|w| u32::from_le_bytes([w[0], w[1], w[2], w[3]]))
            .collect();
        StepOutput::from_words(self.plan.bucket.tail, rows, &words)
    }
}

fn put(push: &mut [u8], at: usize, bytes: &[u8]) -> Option<()> {
    push.get_mut(at..at + bytes.len())?.copy_from_slice(bytes);
    Some(())
}
