//! Command buffers recorded once and submitted many times, and the queue they go to.
//!
//! ```text
//! [Command] ─record─► Recording ─submit─► Queue (timeline semaphore counts submissions) ─wait─► done
//! ```

use crate::device::Gpu;
use crate::error::VulkanError;
use crate::memory::Buffer;
use crate::pipeline::Pipeline;
use ash::vk;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// One entry of a recording.
pub(crate) enum Command<'a> {
    /// Runs a kernel.
    Launch { pipeline: &'a Pipeline, push: Vec<u8>, grid: [u32; 3] },
    /// Launches before it happen before launches after it.
    Barrier,
    /// Everything before (launches, copies, fills, earlier submissions) happens before everything after.
    FullBarrier,
    /// Copies bytes.
    Copy { from: &'a Buffer, from_offset: u64, to: &'a Buffer, to_offset: u64, bytes: u64 },
    /// Writes zeros; offset and length are multiples of 4.
    Zero { buffer: &'a Buffer, offset: u64, bytes: u64 },
    /// Makes what was written readable by the host.
    ToHost,
    /// Notes the time at which everything before has finished.
    Stamp,
    /// What comes after is a submission of its own.
    Part,
}

/// Command buffers, one per submission, with their pool.
pub(crate) struct Recording {
    gpu: Arc<Gpu>,
    pool: vk::CommandPool,
    buffers: Vec<vk::CommandBuffer>,
    /// Those in use.
    parts: usize,
    /// Timestamps, in the order of recording.
    queries: Option<(vk::QueryPool, u32)>,
}

impl Recording {
    pub(crate) fn new(gpu: &Arc<Gpu>) -> Result<Recording, VulkanError> {
        let info = vk::CommandPoolCreateInfo::default().queue_family_index(gpu.family);
        // SAFETY: the family was used to create the device.
        let pool = unsafe { gpu.raw.create_command_pool(&info, None) };
        let pool = pool.map_err(VulkanError::of("vkCreateCommandPool"))?;
        Ok(Recording { gpu: gpu.clone(), pool, buffers: vec![], parts: 0, queries: None })
    }

    /// Begins the next part.
    fn begin(&mut self) -> Result<vk::CommandBuffer, VulkanError> {
        let device = &self.gpu.raw;
        if self.parts == self.buffers.len() {
            let info = vk::CommandBufferAllocateInfo::default().command_pool(self.pool).command_buffer_count(1);
            // SAFETY: the pool is this recording's own.
            let more = unsafe { device.allocate_command_buffers(&info) };
            self.buffers.extend(more.map_err(VulkanError::of("vkAllocateCommandBuffers"))?);
        }
        let buffer = self.buffers[self.parts];
        // SAFETY: the pool was reset; this buffer is not being recorded.
        let begun = unsafe { device.begin_command_buffer(buffer, &vk::CommandBufferBeginInfo::default()) };
        begun.map_err(VulkanError::of("vkBeginCommandBuffer"))?;
        self.parts += 1;
        Ok(buffer)
    }

    fn end(&self, buffer: vk::CommandBuffer) -> Result<(), VulkanError> {
        // SAFETY: the buffer is being recorded.
        unsafe { self.gpu.raw.end_command_buffer(buffer) }.map_err(VulkanError::of("vkEndCommandBuffer"))
    }

    /// Replaces what is recorded. With `timed`, a timestamp comes before the first launch and one after each: nothing
    /// else is added, so that launches follow each other as in an untimed recording. The device has finished the
    /// earlier content, and whatever the commands name outlives their use.
    pub(crate) fn record(&mut self, commands: &[Command<'_>], timed: bool) -> Result<(), VulkanError> {
        let launches = commands.iter().filter(|c| matches!(c, Command::Launch { .. })).count() as u32;
        let stamps = commands.iter().filter(|c| matches!(c, Command::Stamp)).count() as u32;
        self.prepare_queries(stamps + if timed && launches > 0 { launches + 1 } else { 0 })?;
        // SAFETY: the buffers are not in use (see above).
        let reset = unsafe { self.gpu.raw.reset_command_pool(self.pool, vk::CommandPoolResetFlags::empty()) };
        reset.map_err(VulkanError::of("vkResetCommandPool"))?;
        self.parts = 0;
        let mut buffer = self.begin()?;
        let (mut bound, mut stamps) = (vk::Pipeline::null(), 0);
        let mut begun = false;
        for command in commands {
            let launch = timed && matches!(command, Command::Launch { .. });
            if matches!(command, Command::Part) {
                self.end(buffer)?;
                (buffer, bound) = (self.begin()?, vk::Pipeline::null());
            }
            if (launch && !begun) || matches!(command, Command::Stamp) {
                self.timestamp(buffer, &mut stamps);
            }
            begun |= launch;
            self.put(buffer, command, &mut bound);
            if launch {
                self.timestamp(buffer, &mut stamps);
            }
        }
        self.end(buffer)
    }

    fn put(&self, cb: vk::CommandBuffer, command: &Command<'_>, bound: &mut vk::Pipeline) {
        let device = &self.gpu.raw;
        // SAFETY: `cb` is being recorded; handles are alive; ranges were checked against the buffers by the makers of
        // the commands, push constants against the layout's range when the pipeline was made.
        unsafe {
            match command {
                Command::Launch { pipeline, push, grid } => {
                    if *bound != pipeline.raw {
                        device.cmd_bind_pipeline(cb, vk::PipelineBindPoint::COMPUTE, pipeline.raw);
                        *bound = pipeline.raw;
                    }
                    if !push.is_empty() {
                        device.cmd_push_constants(cb, self.gpu.layout, vk::ShaderStageFlags::COMPUTE, 0, push);
                    }
                    device.cmd_dispatch(cb, grid[0], grid[1], grid[2]);
                }
                Command::Stamp | Command::Part => {}
                Command::Barrier => barrier(device, cb, LAUNCHES),
                Command::FullBarrier => barrier(device, cb, EVERYTHING),
                Command::ToHost => barrier(device, cb, TO_HOST),
                Command::Copy { from, from_offset, to, to_offset, bytes } => {
                    let region = vk::BufferCopy { src_offset: *from_offset, dst_offset: *to_offset, size: *bytes };
                    device.cmd_copy_buffer(cb, from.raw, to.raw, &[region]);
                }
                Command::Zero { buffer, offset, bytes } => {
                    device.cmd_fill_buffer(cb, buffer.raw, *offset, *bytes, 0);
                }
            }
        }
    }

    fn prepare_queries(&mut self, count: u32) -> Result<(), VulkanError> {
        if let Some((pool, had)) = self.queries.take() {
            if had == count {
                self.queries = Some((pool, had));
                return Ok(());
            }
            // SAFETY: the device has finished the recording that used it.
            unsafe { self.gpu.raw.destroy_query_pool(pool, None) };
        }
        if count > 0 && self.gpu.timestamp_bits > 0 {
            let info = vk::QueryPoolCreateInfo::default().query_type(vk::QueryType::TIMESTAMP).query_count(count);
            // SAFETY: timestamps are supported on this queue.
            let pool = unsafe { self.gpu.raw.create_query_pool(&info, None) };
            self.queries = Some((pool.map_err(VulkanError::of("vkCreateQueryPool"))?, count));
        }
        Ok(())
    }

    /// Puts the next timestamp.
    fn timestamp(&self, buffer: vk::CommandBuffer, next: &mut u32) {
        if let Some((pool, _)) = self.queries {
            let stage = vk::PipelineStageFlags2::ALL_COMMANDS;
            // SAFETY: they are counted before; the pool is reset before each submission.
            unsafe { self.gpu.raw.cmd_write_timestamp2(buffer, stage, pool, *next) };
        }
        *next += 1;
    }

    /// Times between neighbouring timestamps of the last submission, which has finished: of a timed recording, one per
    /// launch, from the end of the launch before to its own end. None if there are no timestamps.
    pub(crate) fn times(&self) -> Option<Vec<Duration>> {
        let (pool, count) = self.queries?;
        let mut ticks = vec![0u64; count as usize];
        let flags = vk::QueryResultFlags::TYPE_64;
        // SAFETY: the pool has `count` queries; without WAIT, unfinished ones give NOT_READY.
        unsafe { self.gpu.raw.get_query_pool_results(pool, 0, &mut ticks, flags) }.ok()?;
        let mask = if self.gpu.timestamp_bits >= 64 { u64::MAX } else { (1 << self.gpu.timestamp_bits) - 1 };
        let period = self.gpu.report.timestamp_period? as f64;
        let nanos = |w: &[u64]| Duration::from_nanos(((w[1].wrapping_sub(w[0]) & mask) as f64 * period) as u64);
        Some(ticks.windows(2).map(nanos).collect())
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        if self.gpu.is_abandoned() {
            return;
        }
        // SAFETY: owners drop recordings only after waiting for their submissions.
        unsafe {
            if let Some((pool, _)) = self.queries {
                self.gpu.raw.destroy_query_pool(pool, None);
            }
            self.gpu.raw.destroy_command_pool(self.pool, None);
        }
    }
}

/// Source and destination of a memory barrier.
type Scopes = [(vk::PipelineStageFlags2, vk::AccessFlags2); 2];

const COMPUTE: vk::PipelineStageFlags2 = vk::PipelineStageFlags2::COMPUTE_SHADER;
const READ: vk::AccessFlags2 = vk::AccessFlags2::SHADER_STORAGE_READ;
const WRITE: vk::AccessFlags2 = vk::AccessFlags2::SHADER_STORAGE_WRITE;
const WORK: vk::PipelineStageFlags2 =
    vk::PipelineStageFlags2::from_raw(COMPUTE.as_raw() | vk::PipelineStageFlags2::ALL_TRANSFER.as_raw());
const WORK_WRITE: vk::AccessFlags2 =
    vk::AccessFlags2::from_raw(WRITE.as_raw() | vk::AccessFlags2::TRANSFER_WRITE.as_raw());
const WORK_ACCESS: vk::AccessFlags2 =
    vk::AccessFlags2::from_raw(READ.as_raw() | WORK_WRITE.as_raw() | vk::AccessFlags2::TRANSFER_READ.as_raw());

const LAUNCHES: Scopes = [(COMPUTE, WRITE), (COMPUTE, vk::AccessFlags2::from_raw(READ.as_raw() | WRITE.as_raw()))];
const EVERYTHING: Scopes = [(WORK, WORK_WRITE), (WORK, WORK_ACCESS)];
const TO_HOST: Scopes = [(WORK, WORK_WRITE), (vk::PipelineStageFlags2::HOST, vk::AccessFlags2::HOST_READ)];

fn barrier(device: &ash::Device, cb: vk::CommandBuffer, [src, dst]: Scopes) {
    let barriers = [vk::MemoryBarrier2::default()
        .src_stage_mask(src.0)
        .src_access_mask(src.1)
        .dst_stage_mask(dst.0)
        .dst_access_mask(dst.1)];
    let info = vk::DependencyInfo::default().memory_barriers(&barriers);
    // SAFETY: `cb` is being recorded.
    unsafe { device.cmd_pipeline_barrier2(cb, &info) };
}

/// What it takes to be woken, with room to spare.
const WAKING: Duration = Duration::from_micros(300);

/// How long a device may do nothing, which can be changed while an engine owns the device. Clones are the same.
#[derive(Clone, Debug)]
pub struct Patience(Arc<AtomicU64>);

impl Patience {
    fn new(longest: Duration) -> Patience {
        let patience = Patience(Arc::default());
        patience.set(longest);
        patience
    }

    /// From now on the device counts as lost when no submission ends for longer than this while one is waited for; zero: when
    /// the next is waited for, however quick it is.
    pub fn set(&self, longest: Duration) {
        self.0.store(u64::try_from(longest.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    fn get(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::Relaxed))
    }
}

/// The device's queue. Submissions are numbered from 1.
pub(crate) struct Queue {
    gpu: Arc<Gpu>,
    raw: vk::Queue,
    timeline: vk::Semaphore,
    last: u64,
    /// Longest wait for a submission to end.
    pub(crate) patience: Patience,
}

impl Queue {
    pub(crate) fn new(gpu: &Arc<Gpu>, timeout: Duration) -> Result<Queue, VulkanError> {
        let mut kind = vk::SemaphoreTypeCreateInfo::default().semaphore_type(vk::SemaphoreType::TIMELINE);
        let info = vk::SemaphoreCreateInfo::default().push_next(&mut kind);
        // SAFETY: the device has timeline semaphores and one queue of its family.
        let (timeline, raw) =
            unsafe { (gpu.raw.create_semaphore(&info, None), gpu.raw.get_device_queue(gpu.family, 0)) };
        let timeline = timeline.map_err(VulkanError::of("vkCreateSemaphore"))?;
        Ok(Queue { gpu: gpu.clone(), raw, timeline, last: 0, patience: Patience::new(timeout) })
    }

    /// Hands a recording to the device, part by part; gives the number of the last. Submissions run in order.
    pub(crate) fn submit(&mut self, recording: &Recording) -> Result<u64, VulkanError> {
        if self.gpu.is_abandoned() {
            return Err(VulkanError::Lost { call: "vkQueueSubmit2", detail: "it did not answer earlier".into() });
        }
        if let Some((pool, count)) = recording.queries {
            // SAFETY: the recording is not pending.
            unsafe { self.gpu.raw.reset_query_pool(pool, 0, count) };
        }
        let before = self.last;
        for part in &recording.buffers[..recording.parts] {
            if let Err(error) = self.submit_part(*part) {
                // What has been handed over still reads the step's inputs.
                return if self.last == before { Err(error) } else { self.idle().and(Err(error)) };
            }
        }
        Ok(self.last)
    }

    fn submit_part(&mut self, part: vk::CommandBuffer) -> Result<(), VulkanError> {
        let value = self.last + 1;
        let buffers = [vk::CommandBufferSubmitInfo::default().command_buffer(part)];
        let signals = [vk::SemaphoreSubmitInfo::default()
            .semaphore(self.timeline)
            .value(value)
            .stage_mask(vk::PipelineStageFlags2::ALL_COMMANDS)];
        let info = vk::SubmitInfo2::default().command_buffer_infos(&buffers).signal_semaphore_infos(&signals);
        // SAFETY: the recording is complete and not pending; `&mut self` orders access to the queue.
        unsafe { self.gpu.raw.queue_submit2(self.raw, &[info], vk::Fence::null()) }
            .map_err(VulkanError::of("vkQueueSubmit2"))?;
        self.last = value;
        Ok(())
    }

    /// Submissions so far.
    pub(crate) fn submissions(&self) -> u64 {
        self.last
    }

    /// Waits until submission `value` has finished, as long as others before it do.
    pub(crate) fn wait(&self, value: u64, during: &'static str) -> Result<(), VulkanError> {
        if self.gpu.is_abandoned() {
            return Err(VulkanError::Lost { call: during, detail: "it did not answer earlier".into() });
        }
        let longest = self.patience.get();
        let mut ended = self.ended()?;
        while longest.is_zero() || !self.sleep(value, longest, during)? {
            let before = std::mem::replace(&mut ended, self.ended()?);
            if longest.is_zero() || ended == before {
                self.gpu.abandoned.store(true, Ordering::Relaxed);
                return Err(VulkanError::Lost { call: during, detail: format!("no answer within {longest:?}") });
            }
        }
        Ok(())
    }

    /// Waits for a submission that probably takes `expected`. Being woken costs tens of microseconds, a noticeable
    /// part of a fast token: so it sleeps for most of that time, then watches without sleeping for a while. A software
    /// device needs the core for itself and is not watched.
    pub(crate) fn wait_expecting(
        &self,
        value: u64,
        expected: Duration,
        during: &'static str,
    ) -> Result<(), VulkanError> {
        if self.gpu.report.device_type != crate::DeviceType::Software && !self.patience.get().is_zero() {
            let nap = (expected * 7 / 8).saturating_sub(WAKING);
            if (!nap.is_zero() && self.sleep(value, nap, during)?) || self.watch(value, expected / 4 + WAKING) {
                return Ok(());
            }
        }
        self.wait(value, during)
    }

    /// Sleeps until the submission has finished, at most `limit`; gives whether it has.
    fn sleep(&self, value: u64, limit: Duration, during: &'static str) -> Result<bool, VulkanError> {
        let (semaphores, values) = ([self.timeline], [value]);
        let info = vk::SemaphoreWaitInfo::default().semaphores(&semaphores).values(&values);
        let nanos = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
        // SAFETY: the semaphore is alive.
        match unsafe { self.gpu.raw.wait_semaphores(&info, nanos) } {
            Ok(()) => Ok(true),
            Err(vk::Result::TIMEOUT) => Ok(false),
            Err(e) => Err(VulkanError::of(during)(e)),
        }
    }

    /// Looks again and again, at most for `limit`; gives whether the submission has finished.
    fn watch(&self, value: u64, limit: Duration) -> bool {
        let start = Instant::now();
        while start.elapsed() < limit {
            // SAFETY: the semaphore is alive.
            if unsafe { self.gpu.raw.get_semaphore_counter_value(self.timeline) }.is_ok_and(|v| v >= value) {
                return true;
            }
            std::hint::spin_loop();
        }
        false
    }

    /// Has submission `value` finished?
    pub(crate) fn has_ended(&self, value: u64) -> Result<bool, VulkanError> {
        Ok(self.ended()? >= value)
    }

    /// The last submission that has finished.
    fn ended(&self) -> Result<u64, VulkanError> {
        // SAFETY: the semaphore is alive.
        let reached = unsafe { self.gpu.raw.get_semaphore_counter_value(self.timeline) };
        reached.map_err(VulkanError::of("vkGetSemaphoreCounterValue"))
    }

    /// Waits for everything submitted so far.
    pub(crate) fn idle(&self) -> Result<(), VulkanError> {
        self.wait(self.last, "waiting for the device")
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        if self.gpu.is_abandoned() {
            return;
        }
        // SAFETY: after the wait (or the loss of the device) nothing uses the semaphore.
        unsafe {
            let _ = self.gpu.raw.device_wait_idle();
            self.gpu.raw.destroy_semaphore(self.timeline, None);
        }
    }
}
