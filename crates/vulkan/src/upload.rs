//! Bytes to the device, through a ring of staging buffers.
//!
//! ```text
//! file bytes ─copied by a few threads─► slot of the ring ─copy or repack─► device buffer
//!                                       (the device works on one slot while the next is filled)
//! ```

use crate::device::Gpu;
use crate::error::VulkanError;
use crate::memory::{Buffer, Place};
use crate::pipeline::Pipeline;
use crate::repack::granule;
use crate::replay::{Command, Queue, Recording};
use std::sync::Arc;
use zinc_ir::quant::Plane;

const SLOTS: usize = 4;
const SLOT_BYTES: u64 = 16 << 20;
/// Launches without staging per submission.
const MOST_PENDING: usize = 64;

/// Where the bytes of one piece go.
pub(crate) enum Target<'a> {
    /// As they are, to `offset` of a buffer; zeros up to `padded` bytes.
    Plain { buffer: &'a Buffer, offset: u64, padded: u64 },
    /// Whole blocks, into planes.
    Planes { block_bytes: u32, planes: Vec<PlaneTarget> },
}

/// One plane of a repacked piece.
pub(crate) struct PlaneTarget {
    pub(crate) plane: Plane,
    pub(crate) pipeline: Arc<Pipeline>,
    pub(crate) lanes: u32,
    /// Device address of this piece's part of the plane.
    pub(crate) address: u64,
}

struct Slot {
    staging: Buffer,
    recording: Recording,
    /// Number of the submission that used it last.
    submitted: u64,
}

/// A command of the slot being filled. Staging is named by offset.
enum Pending<'a> {
    Copy { from: u64, to: &'a Buffer, to_offset: u64, bytes: u64 },
    Zero { buffer: &'a Buffer, offset: u64, bytes: u64 },
    Launch { pipeline: Arc<Pipeline>, push: Vec<u8>, grid: [u32; 3] },
}

/// Fills the ring and submits slots as they get full.
pub(crate) struct Uploader<'a> {
    queue: &'a mut Queue,
    slots: Vec<Slot>,
    current: usize,
    filled: u64,
    pending: Vec<Pending<'a>>,
    threads: usize,
}

impl<'a> Uploader<'a> {
    pub(crate) fn new(gpu: &Arc<Gpu>, queue: &'a mut Queue) -> Result<Uploader<'a>, VulkanError> {
        let slot = |_| {
            Ok(Slot {
                staging: Buffer::new(gpu, SLOT_BYTES, Place::Upload, "staging ring")?,
                recording: Recording::new(gpu)?,
                submitted: 0,
            })
        };
        let slots = (0..SLOTS).map(slot).collect::<Result<_, VulkanError>>()?;
        let threads = std::thread::available_parallelism().map_or(1, |n| n.get()).min(4);
        Ok(Uploader { queue, slots, current: 0, filled: 0, pending: vec![], threads })
    }

    /// Most bytes of one piece.
    pub(crate) const fn piece_bytes() -> u64 {
        // A quarter of a slot keeps copying and repacking in step, and the grid of a repack launch small.
        SLOT_BYTES / 4
    }

    /// Queues one piece of at most [`Uploader::piece_bytes`]. `fill` writes the bytes.
    pub(crate) fn piece(
        &mut self,
        bytes: u64,
        target: Target<'a>,
        fill: &(dyn Fn(u64, &mut [u8]) + Sync),
    ) -> Result<(), VulkanError> {
        if self.filled + bytes.next_multiple_of(16) > SLOT_BYTES {
            self.flush()?;
        }
        self.enter()?;
        let from = self.filled;
        let staging = &mut self.slots[self.current].staging;
        let at = staging.address + from;
        let host = staging.host_mut();
        striped(&mut host[from as usize..(from + bytes) as usize], self.threads, fill);
        host[(from + bytes) as usize..(from + bytes.next_multiple_of(4)) as usize].fill(0);
        match target {
            Target::Plain { buffer, offset, padded } => self.plain(from, bytes, buffer, offset, padded),
            Target::Planes { block_bytes, planes } => {
                let blocks = bytes / block_bytes as u64;
                self.pending.extend(planes.into_iter().map(|p| repack_launch(at, blocks, block_bytes, p)));
            }
        }
        self.filled += bytes.next_multiple_of(16);
        Ok(())
    }

    /// Queues a launch that needs no staging.
    pub(crate) fn launch(&mut self, pipeline: &Arc<Pipeline>, push: Vec<u8>, tiles: u32) -> Result<(), VulkanError> {
        if self.pending.len() >= MOST_PENDING {
            self.flush()?;
        }
        self.enter()?;
        self.pending.push(Pending::Launch { pipeline: pipeline.clone(), push, grid: [tiles, 1, 1] });
        Ok(())
    }

    /// Before the first command of a slot: its last use must be over.
    fn enter(&mut self) -> Result<(), VulkanError> {
        match self.pending.is_empty() {
            true => self.queue.wait(self.slots[self.current].submitted, "uploading weights"),
            false => Ok(()),
        }
    }

    fn plain(&mut self, from: u64, bytes: u64, buffer: &'a Buffer, offset: u64, padded: u64) {
        // Fills work on whole words. A tensor of an odd number of halves ends inside one: `piece` completed it.
        let whole = bytes.next_multiple_of(4);
        self.pending.push(Pending::Copy { from, to: buffer, to_offset: offset, bytes: whole });
        if padded > whole {
            self.pending.push(Pending::Zero { buffer, offset: offset + whole, bytes: padded - whole });
        }
    }

    /// Submits the slot being filled.
    fn flush(&mut self) -> Result<(), VulkanError> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let slot = &mut self.slots[self.current];
        let staging = &slot.staging;
        let pending = std::mem::take(&mut self.pending);
        let commands: Vec<Command<'_>> = pending
            .iter()
            .map(|p| match p {
                Pending::Copy { from, to, to_offset, bytes } => {
                    Command::Copy { from: staging, from_offset: *from, to, to_offset: *to_offset, bytes: *bytes }
                }
                Pending::Zero { buffer, offset, bytes } => Command::Zero { buffer, offset: *offset, bytes: *bytes },
                Pending::Launch { pipeline, push, grid } => {
                    Command::Launch { pipeline, push: push.clone(), grid: *grid }
                }
            })
            .collect();
        slot.recording.record(&commands, false)?;
        slot.submitted = self.queue.submit(&slot.recording)?;
        self.current = (self.current + 1) % SLOTS;
        self.filled = 0;
        Ok(())
    }

    /// Submits what is left and waits for all of it.
    pub(crate) fn finish(mut self) -> Result<(), VulkanError> {
        self.flush()?;
        self.queue.idle()
    }
}

impl Drop for Uploader<'_> {
    fn drop(&mut self) {
        // After an error slots may still be in use; their memory goes with the uploader.
        let _ = self.queue.idle();
    }
}

fn repack_launch<'a>(staged: u64, blocks: u64, block_bytes: u32, p: PlaneTarget) -> Pending<'a> {
    let count = (blocks * p.plane.bytes as u64 / granule(block_bytes, p.plane) as u64) as u32;
    let mut push = vec![];
    push.extend(staged.to_le_bytes());
    push.extend(p.address.to_le_bytes());
    push.extend(count.to_le_bytes());
    Pending::Launch { pipeline: p.pipeline, push, grid: [count.div_ceil(p.lanes), 1, 1] }
}

/// Runs `fill(offset, part)` over `out` cut into stripes, on several threads: one thread's copy out of the page cache
/// is slower than the bus, and file pages that are not cached yet are read in parallel.
fn striped(out: &mut [u8], threads: usize, fill: &(dyn Fn(u64, &mut [u8]) + Sync)) {
    if out.len() < 1 << 20 || threads < 2 {
        return fill(0, out);
    }
    let stripe = out.len().div_ceil(threads).next_multiple_of(4096);
    std::thread::scope(|scope| {
        for (i, part) in out.chunks_mut(stripe).enumerate() {
            scope.spawn(move || fill((i * stripe) as u64, part));
        }
    });
}
