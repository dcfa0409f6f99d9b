//! Running one kernel on plain bytes: for conformance tests and measurements.

use crate::error::VulkanError;
use crate::memory::{Buffer, Place};
use crate::pipeline::{Pipeline, compile};
use crate::replay::{Command, Recording};
use crate::vulkan_device::VulkanDevice;
use std::time::Duration;
use zinc_ir::kernel::{ArgKind, Kernel};

/// An argument of a direct kernel run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KernelArg {
    /// Address of byte `offset` of memory `index`.
    Memory {
        /// Which of the memories.
        index: usize,
        /// Byte.
        offset: u64,
    },
    /// A constant.
    Word(u32),
}

impl VulkanDevice {
    /// Compiles `kernel`, copies `memory` to the device, runs `grid` tiles and copies it back. Gives the time of the
    /// launch where the device has timestamps.
    pub fn run_kernel(
        &mut self,
        kernel: &Kernel,
        grid: [u32; 3],
        args: &[KernelArg],
        memory: &mut [Vec<u8>],
    ) -> Result<Option<Duration>, VulkanError> {
        let (gpu, queue) = (self.gpu.clone(), &mut self.queue);
        let pipeline = compile(&gpu, &self.cache, kernel)?;
        let mut staging = vec![];
        let mut on_device = vec![];
        for bytes in memory.iter() {
            let mut stage = Buffer::new(&gpu, bytes.len() as u64, Place::ReadBack, "kernel memory")?;
            stage.host_mut()[..bytes.len()].copy_from_slice(bytes);
            staging.push(stage);
            on_device.push(Buffer::new(&gpu, bytes.len() as u64, Place::Device, "kernel memory")?);
        }
        let mut push = push_bytes(kernel, &pipeline, args, &on_device)?;
        let mut table = Buffer::new(&gpu, push.len() as u64, Place::Parameters, "launch arguments")?;
        if pipeline.push.in_memory() {
            table.host_mut()[..push.len()].copy_from_slice(&push);
            push = table.address.to_le_bytes().to_vec();
        }
        let copies = |to_device: bool| {
            staging.iter().zip(&on_device).map(move |(s, d)| {
                let (from, to) = if to_device { (s, d) } else { (d, s) };
                Command::Copy { from, from_offset: 0, to, to_offset: 0, bytes: s.bytes }
            })
        };
        let mut commands: Vec<Command<'_>> = copies(true).collect();
        commands.push(Command::FullBarrier);
        commands.push(Command::Launch { pipeline: &pipeline, push, grid });
        commands.push(Command::FullBarrier);
        commands.extend(copies(false));
        commands.push(Command::ToHost);
        let mut recording = Recording::new(&gpu)?;
        recording.record(&commands, true)?;
        let submitted = queue.submit(&recording)?;
        queue.wait(submitted, "running a kernel")?;
        for (bytes, stage) in memory.iter_mut().zip(&staging) {
            let len = bytes.len();
            bytes.copy_from_slice(&stage.host()[..len]);
        }
        Ok(recording.times().and_then(|t| t.first().copied()))
    }
}

/// The arguments in the layout of the kernel: push constants, or what they are the address of.
pub(crate) fn push_bytes(
    kernel: &Kernel,
    pipeline: &Pipeline,
    args: &[KernelArg],
    memory: &[Buffer],
) -> Result<Vec<u8>, VulkanError> {
    let wrong = |reason: String| VulkanError::Arguments { kernel: kernel.name.clone(), reason };
    if args.len() != kernel.args.len() {
        return Err(wrong(format!("{} arguments given, {} declared", args.len(), kernel.args.len())));
    }
    let mut push = vec![0; pipeline.push.bytes as usize];
    for ((arg, declared), at) in args.iter().zip(&kernel.args).zip(&pipeline.push.offsets) {
        let at = *at as usize;
        match (arg, declared.kind) {
            (KernelArg::Word(w), ArgKind::Word) => push[at..at + 4].copy_from_slice(&w.to_le_bytes()),
            (KernelArg::Memory { index, offset }, kind) if kind != ArgKind::Word => {
                let buffer = memory.get(*index).ok_or_else(|| wrong(format!("no memory {index}")))?;
                push[at..at + 8].copy_from_slice(&(buffer.address + offset).to_le_bytes());
            }
            _ => return Err(wrong(format!("argument {} is of the other kind", declared.name))),
        }
    }
    Ok(push)
}
