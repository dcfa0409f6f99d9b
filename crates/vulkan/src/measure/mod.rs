//! Knowing the machine: what this device's memory, launches and arithmetic attain.
//!
//! ```text
//! fill (so that pages are there, and warm) ─► reads: load width × loads in flight × workgroups
//!                                          ─► launches: chains with and without barriers ─► submissions
//!                                          ─► arithmetic: multiply-adds, byte dot products, matrices
//! ```
//!
//! Work is timed by the GPU's own clock, submissions by the host's. Rates are the best of several runs, because whatever
//! disturbs a run makes it slower; latencies are medians, because one lucky answer says nothing of the next.

mod kernels;

use crate::cache::KernelCache;
use crate::device::Gpu;
use crate::direct::{KernelArg, push_bytes};
use crate::error::VulkanError;
use crate::memory::{Buffer, Place};
use crate::pipeline::{Pipeline, Pipelines, compile_all};
use crate::replay::{Command, Queue, Recording};
use crate::report::DeviceType;
use crate::vulkan_device::VulkanDevice;
use std::sync::Arc;
use std::time::{Duration, Instant};
use zinc_ir::device::{Caps, Device};
use zinc_ir::kernel::{Kernel, Scalar};
use zinc_ir::measured::{FORMAT, LaunchCost, MatrixRate, Measured, ReadRate, SubmitCost};

/// Load widths and loads in flight that are tried.
const WIDTHS: [u32; 3] = [4, 8, 16];
const IN_FLIGHT: [u32; 4] = [1, 2, 4, 8];
/// Workgroups per compute unit that are tried.
const PER_UNIT: [u32; 6] = [1, 2, 4, 8, 16, 64];
/// Lanes per workgroup of reads, and of everything else.
const READ_LANES: u32 = 512;
const LANES: u32 = 256;
/// Most bytes that reads go over, and the fewest: more than any GPU's caches hold.
const MOST_BYTES: u64 = 4 << 30;
const FEWEST_BYTES: u64 = 512 << 20;
/// As much on software devices, where a pass takes long.
const SOFTWARE_BYTES: u64 = 256 << 20;
/// Launches of the long and of the short chain.
const CHAIN: [usize; 2] = [160, 32];
/// Workgroups of the launches that timestamps are measured on.
const STAMPED_GROUPS: u32 = 64;
/// Submissions that are timed.
const SUBMISSIONS: usize = 24;
/// Never the result of a read: no lane stores.
const NO_MAGIC: u32 = 0x0bad_cafe;

impl VulkanDevice {
    /// Measures the device: under two seconds on a GPU, some seconds on a software device. The device's own limits are
    /// found on an otherwise idle machine only.
    ///
    /// # Errors
    /// When the device has no clock, lacks memory, or fails.
    pub fn measure(&mut self) -> Result<Measured, VulkanError> {
        let start = Instant::now();
        self.queue.idle()?;
        let report = &self.gpu.report;
        let (device, identity) = (report.name.clone(), report.identity());
        if self.gpu.timestamp_bits == 0 || report.timestamp_period.is_none() {
            let reason = "it has no timestamps to measure with".into();
            return Err(VulkanError::NotUsable { name: device, reason });
        }
        let caps = self.caps().clone();
        let mut rig = Rig::new(&self.gpu, &mut self.queue, &self.cache, caps)?;
        let (read_over, reads, write) = rig.memory()?;
        let (launches, stamp) = rig.launches()?;
        let submit = Some(rig.submissions()?);
        let (fma, dot4, matrices) = rig.arithmetic()?;
        let took = start.elapsed().as_secs_f64();
        Ok(Measured {
            format: FORMAT,
            device,
            identity,
            read_over,
            reads,
            write,
            launches,
            stamp,
            submit,
            fma,
            dot4,
            matrices,
            took,
            spread: 0.0,
        })
    }
}

/// A compiled kernel with what its push constants are made from.
struct Tool {
    kernel: Kernel,
    pipeline: Arc<Pipeline>,
}

/// What stands between the launches of a chain.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Chain {
    /// Barriers.
    Dependent,
    /// Nothing.
    Free,
    /// Barriers, and a timestamp behind every launch, as in a profile.
    Stamped,
}

/// What measuring needs of the device.
struct Rig<'d> {
    gpu: Arc<Gpu>,
    queue: &'d mut Queue,
    cache: &'d KernelCache,
    pipelines: Pipelines,
    caps: Caps,
    software: bool,
    /// Workgroups of [`LANES`] lanes, one per compute unit.
    units: u32,
    /// Memory 0 of launches: read from.
    /// Memory 1: written to.
    memory: [Buffer; 2],
    recording: Recording,
}

impl<'d> Rig<'d> {
    fn new(gpu: &Arc<Gpu>, queue: &'d mut Queue, cache: &'d KernelCache, caps: Caps) -> Result<Rig<'d>, VulkanError> {
        let software = gpu.report.device_type == DeviceType::Software;
        let most = if software { SOFTWARE_BYTES } else { MOST_BYTES };
        let limit = gpu.report.max_buffer.min(gpu.report.max_allocation);
        let bytes = most.min(gpu.device_memory().0 / 4).min(limit) & !0xffff;
        let per_unit = if software { 4 } else { 8 };
        let units = (caps.parallel_tiles / per_unit).max(1);
        let written = (units * PER_UNIT[PER_UNIT.len() - 1]).max(64) as u64 * LANES as u64 * 4;
        let memory = [
            Buffer::new(gpu, bytes, Place::Device, "memory to measure reads on")?,
            Buffer::new(gpu, written, Place::Device, "memory to measure launches on")?,
        ];
        let recording = Recording::new(gpu)?;
        let pipelines = Pipelines::new();
        Ok(Rig { gpu: gpu.clone(), queue, cache, pipelines, caps, software, units, memory, recording })
    }

    /// Lanes per workgroup, at most `wanted`.
    fn lanes(&self, wanted: u32) -> u32 {
        let size = self.caps.subgroup_size;
        (wanted.min(self.caps.max_workgroup) / size * size).max(size)
    }

    fn compile(&mut self, kernels: Vec<Kernel>) -> Result<Vec<Tool>, VulkanError> {
        let made = compile_all(&self.gpu, self.cache, &mut self.pipelines, &kernels, &mut |_, _| Ok(()))?;
        Ok(kernels.into_iter().zip(made).map(|(kernel, pipeline)| Tool { kernel, pipeline }).collect())
    }

    /// A launch of `groups` workgroups; the kernel's addresses are `buffers` of the memory.
    fn launch<'t>(
        &self,
        tool: &'t Tool,
        groups: u32,
        buffers: &[usize],
        words: &[u32],
    ) -> Result<Command<'t>, VulkanError> {
        let addresses = buffers.iter().map(|index| KernelArg::Memory { index: *index, offset: 0 });
        let args: Vec<KernelArg> = addresses.chain(words.iter().map(|w| KernelArg::Word(*w))).collect();
        let push = push_bytes(&tool.kernel, &tool.pipeline, &args, &self.memory)?;
        Ok(Command::Launch { pipeline: &tool.pipeline, push, grid: [groups, 1, 1] })
    }

    /// Runs commands; gives the seconds between their stamps (`timed`: between the ends of launches).
    fn run(&mut self, commands: &[Command<'_>], timed: bool) -> Result<Vec<f64>, VulkanError> {
        self.recording.record(commands, timed)?;
        let submitted = self.queue.submit(&self.recording)?;
        self.queue.wait(submitted, "measuring the device")?;
        let times = self.recording.times().unwrap_or_default();
        Ok(times.iter().map(Duration::as_secs_f64).collect())
    }

    /// The shortest of `runs` runs of a launch, in seconds; each waits for the one before.
    fn best(
        &mut self,
        tool: &Tool,
        groups: u32,
        buffers: &[usize],
        words: &[u32],
        runs: usize,
    ) -> Result<f64, VulkanError> {
        let mut commands = vec![Command::FullBarrier];
        for _ in 0..runs {
            commands.push(self.launch(tool, groups, buffers, words)?);
            commands.push(Command::FullBarrier);
        }
        let times = self.run(&commands, true)?;
        // A clock that stood still (its tick is longer than the launch) must not make a rate infinite.
        let tick = self.gpu.report.timestamp_period.unwrap_or(1.0) as f64 * 1e-9;
        Ok(times.into_iter().fold(f64::INFINITY, f64::min).max(tick))
    }

    /// Bytes read over, reads, and the rate of writes.
    fn memory(&mut self) -> Result<(u64, Vec<ReadRate>, f64), VulkanError> {
        let lanes = self.lanes(READ_LANES);
        let size = self.caps.subgroup_size;
        let in_flight: &[u32] = if self.software { &[1, 4] } else { &IN_FLIGHT };
        let ways: Vec<(u32, u32)> = WIDTHS.iter().flat_map(|w| in_flight.iter().map(|n| (*w, *n))).collect();
        let kernels = ways.iter().map(|(width, n)| kernels::read(lanes, size, *width, *n));
        let mut tools = self.compile(kernels.chain([kernels::fill(lanes, size)]).collect())?;
        let Some(fill) = tools.pop() else { return Ok((0, vec![], 0.0)) };
        let groups = if self.software { self.units * 4 } else { self.units * 8 };
        let step = groups * lanes * 16;
        let rounds = (self.memory[0].bytes / step as u64) as u32;
        let filled = rounds as u64 * step as u64;
        let write = filled as f64 / self.best(&fill, groups, &[0], &[rounds, step], 2)?;
        let bytes = self.enough(write, filled);
        let per_unit: &[u32] = if self.software { &[4] } else { &PER_UNIT };
        let mut reads = vec![];
        for (tool, (load_bytes, in_flight)) in tools.iter().zip(&ways) {
            for n in per_unit {
                let workgroups = self.units * n;
                let step = workgroups * lanes * in_flight * load_bytes;
                let rounds = (bytes / step as u64) as u32;
                if rounds == 0 {
                    continue;
                }
                let words = [rounds, step, NO_MAGIC];
                let runs = if self.software { 2 } else { 3 };
                let time = self.best(tool, workgroups, &[0, 1], &words, runs)?;
                let rate = rounds as f64 * step as f64 / time;
                let (load_bytes, in_flight) = (*load_bytes, *in_flight);
                reads.push(ReadRate { load_bytes, in_flight, lanes, workgroups, rate });
            }
        }
        Ok((bytes, reads, write))
    }

    /// Bytes for one pass: all that there are, or what some milliseconds take.
    fn enough(&self, rate: f64, all: u64) -> u64 {
        if self.software { all } else { ((rate * 4e-3) as u64).max(FEWEST_BYTES).min(all) }
    }

    /// Chains of the smallest launches, with barriers and without; and what timestamps add to them. Two lengths, so that
    /// what comes once per submission drops out of the difference.
    fn launches(&mut self) -> Result<(Vec<LaunchCost>, f64), VulkanError> {
        let tool = self.compile(vec![kernels::bump(self.lanes(LANES), self.caps.subgroup_size)])?;
        let Some(tool) = tool.first() else { return Ok((vec![], 0.0)) };
        let mut counts = if self.software { vec![1, 64] } else { vec![1, 64, self.units * 4, self.units * 8] };
        counts.sort_unstable();
        counts.dedup();
        let mut rows = vec![];
        for workgroups in counts {
            let dependent = self.per_launch(tool, workgroups, Chain::Dependent)?;
            let independent =
                if self.software { None } else { Some(self.per_launch(tool, workgroups, Chain::Free)?) };
            rows.push(LaunchCost { workgroups, dependent, independent });
        }
        let plain = self.per_launch(tool, STAMPED_GROUPS, Chain::Dependent)?;
        let stamp = (self.per_launch(tool, STAMPED_GROUPS, Chain::Stamped)? - plain).max(0.0);
        Ok((rows, stamp))
    }

    /// Seconds per launch.
    fn per_launch(&mut self, tool: &Tool, workgroups: u32, chain: Chain) -> Result<f64, VulkanError> {
        let runs = if self.software { 2 } else { 5 };
        let mut best = [f64::INFINITY; 2];
        for _ in 0..runs {
            for (length, best) in CHAIN.iter().zip(&mut best) {
                let mut commands = vec![Command::FullBarrier, Command::Stamp];
                for _ in 0..*length {
                    commands.push(self.launch(tool, workgroups, &[1], &[])?);
                    if chain == Chain::Stamped {
                        commands.push(Command::Stamp);
                    }
                    if chain != Chain::Free {
                        commands.push(Command::Barrier);
                    }
                }
                commands.push(Command::Stamp);
                let times = self.run(&commands, false)?;
                *best = times.iter().sum::<f64>().min(*best);
            }
        }
        let difference = (best[0] - best[1]) / (CHAIN[0] - CHAIN[1]) as f64;
        // Where a disturbed short chain took longer than a long one, the long one alone says it.
        Ok(if difference > 0.0 { difference } else { (best[0] / CHAIN[0] as f64).max(1e-9) })
    }

    fn submissions(&mut self) -> Result<SubmitCost, VulkanError> {
        let tool = self.compile(vec![kernels::bump(self.lanes(LANES), self.caps.subgroup_size)])?;
        let mut commands = vec![Command::FullBarrier];
        for tool in &tool {
            commands.push(self.launch(tool, 1, &[1], &[])?);
        }
        commands.push(Command::ToHost);
        self.recording.record(&commands, false)?;
        // The call's time, and that to the result.
        let mut times = |watches: bool| {
            let (mut calls, mut results) = (vec![], vec![]);
            for _ in 0..SUBMISSIONS {
                let start = Instant::now();
                let submitted = self.queue.submit(&self.recording)?;
                calls.push(start.elapsed().as_secs_f64());
                match watches {
                    true => self.queue.wait_expecting(submitted, Duration::ZERO, "measuring submissions")?,
                    false => self.queue.wait(submitted, "measuring submissions")?,
                }
                results.push(start.elapsed().as_secs_f64());
            }
            Ok::<_, VulkanError>((median(calls), median(results)))
        };
        let ((before, asleep), (after, watching)) = (times(false)?, times(true)?);
        // What disturbed one half of them does not count for the other: a call is shorter than what it is a part of.
        Ok(SubmitCost { call: before.min(after), asleep, watching })
    }

    /// Rates of multiply-adds, of byte dot products, and of the half matrices there are.
    fn arithmetic(&mut self) -> Result<(f64, f64, Vec<MatrixRate>), VulkanError> {
        let (lanes, size) = (self.lanes(LANES), self.caps.subgroup_size);
        let mut shapes = self.caps.matrices.clone();
        shapes.retain(|s| s.input == Scalar::F16 && matches!(s.acc, Scalar::F32 | Scalar::F16));
        let matrices = shapes.iter().map(|s| kernels::matrix(lanes, size, *s));
        let kernels = [kernels::fma(lanes, size), kernels::dot4(lanes, size)].into_iter().chain(matrices);
        let tools = self.compile(kernels.collect())?;
        let [fma, dot4, matrices @ ..] = &tools[..] else { return Ok((0.0, 0.0, vec![])) };
        let (almost_one, little) = (0.999f32.to_bits(), 0.001f32.to_bits());
        let fma = self.peak(fma, &[almost_one, little, NO_MAGIC], kernels::FMA_OPERATIONS * lanes as u64)?;
        let dot4 = self.peak(dot4, &[0x0103_0507, NO_MAGIC], kernels::DOT4_OPERATIONS * lanes as u64)?;
        let mut rates = vec![];
        for (tool, shape) in matrices.iter().zip(shapes) {
            let operations = kernels::matrix_operations(shape) * (lanes / size) as u64;
            let rate = self.peak(tool, &[little, 0], operations)?;
            rates.push(MatrixRate { shape, rate });
        }
        Ok((fma, dot4, rates))
    }

    /// The best rate of an arithmetic kernel that makes `operations` per workgroup and round. The number of rounds grows
    /// until a launch takes long enough for its start and end not to matter.
    fn peak(&mut self, tool: &Tool, words: &[u32], operations: u64) -> Result<f64, VulkanError> {
        let target = if self.software { 5e-3 } else { 1e-3 };
        let grids: &[u32] = if self.software { &[4] } else { &[2, 4, 8] };
        let mut best = 0f64;
        let mut rounds = 4u32;
        for per_unit in grids {
            let groups = self.units * per_unit;
            let mut all = vec![rounds];
            all.extend(words);
            let mut time = self.best(tool, groups, &[1], &all, 1)?;
            while time < target / 2.0 && rounds < 1 << 20 {
                rounds = (rounds as f64 * (target / time).clamp(2.0, 32.0)) as u32;
                all[0] = rounds;
                time = self.best(tool, groups, &[1], &all, 1)?;
            }
            let time = self.best(tool, groups, &[1], &all, 3)?.min(time);
            best = best.max(rounds as f64 * groups as f64 * operations as f64 / time);
        }
        Ok(best)
    }
}

/// The middle one of some numbers.
fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers.get(numbers.len() / 2).copied().unwrap_or(0.0)
}
