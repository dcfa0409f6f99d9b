//! KV pages on their way between device and host.
//!
//! ```text
//! save:  pool ─copy─► host memory, which the host reads once the copy has ended      (one page at a time)
//! load:  bytes ─► one of a few pieces of host memory ─copy─► pool                     (before all later steps)
//! ```
//!
//! A page's bytes are those of its K and then its V, layer after layer.

use crate::device::Gpu;
use crate::error::VulkanError;
use crate::memory::{Buffer, Place};
use crate::model::Model;
use crate::replay::{Command, Queue, Recording};
use std::sync::Arc;
use zinc_ir::device::DeviceError;

/// Pages that may be on their way to the device.
const LOADS: usize = 4;

/// Host memory for one page, and the commands that copy it.
struct Carrier {
    memory: Buffer,
    recording: Recording,
    /// Number of the submission that used it last.
    submitted: u64,
}

impl Carrier {
    fn new(gpu: &Arc<Gpu>, bytes: u64, place: Place) -> Result<Carrier, VulkanError> {
        let memory = Buffer::new(gpu, bytes, place, "a KV page on its way")?;
        Ok(Carrier { memory, recording: Recording::new(gpu)?, submitted: 0 })
    }
}

/// What carries pages.
#[derive(Default)]
pub(crate) struct Carriers {
    out: Option<Carrier>,
    /// `out` holds a page, or will.
    saving: bool,
    into: Vec<Carrier>,
    /// The next of `into` to be used.
    next: usize,
}

/// Offset in the page's bytes, buffer and offset there, and length, of each piece of a page.
fn pieces(model: &Model, page: u32) -> Result<Vec<(u64, &Buffer, u64, u64)>, DeviceError> {
    let kv = &model.kv;
    if page >= kv.pages {
        return Err(DeviceError::Misuse("a page beyond the pool"));
    }
    let (mut at, mut pieces) = (0, vec![]);
    for area in &kv.layers {
        for (start, ty) in [(area.k, kv.types.k), (area.v, kv.types.v)] {
            let bytes = area.page_bytes(ty) as u64;
            let place = model.kv_place(start + page as u64 * bytes);
            let (buffer, offset) = place.ok_or(DeviceError::Misuse("a page beyond the pool"))?;
            pieces.push((at, buffer, offset, bytes));
            at += bytes;
        }
    }
    Ok(pieces)
}

fn page_bytes(model: &Model) -> u64 {
    model.kv.bytes / model.kv.pages.max(1) as u64
}

impl Carriers {
    /// Begins to copy a page to the host.
    pub(crate) fn save(
        &mut self,
        gpu: &Arc<Gpu>,
        queue: &mut Queue,
        model: &Model,
        page: u32,
    ) -> Result<(), DeviceError> {
        if self.saving {
            return Err(DeviceError::Misuse("a page is being saved already"));
        }
        let carrier = match &mut self.out {
            Some(carrier) => carrier,
            none => none.insert(Carrier::new(gpu, page_bytes(model), Place::ReadBack)?),
        };
        let mut commands = vec![Command::FullBarrier];
        commands.extend(pieces(model, page)?.into_iter().map(|(to_offset, from, from_offset, bytes)| Command::Copy {
            from,
            from_offset,
            to: &carrier.memory,
            to_offset,
            bytes,
        }));
        commands.push(Command::ToHost);
        carrier.recording.record(&commands, false)?;
        carrier.submitted = queue.submit(&carrier.recording)?;
        self.saving = true;
        Ok(())
    }

    /// Takes the saved page, if it is there.
    pub(crate) fn saved(&mut self, queue: &Queue, wait: bool, bytes: &mut Vec<u8>) -> Result<bool, DeviceError> {
        let Some(carrier) = self.out.as_ref().filter(|_| self.saving) else {
            return Err(DeviceError::Misuse("no page is being saved"));
        };
        if !wait && !queue.has_ended(carrier.submitted)? {
            return Ok(false);
        }
        queue.wait(carrier.submitted, "saving a KV page")?;
        self.saving = false;
        bytes.clear();
        bytes.extend_from_slice(&carrier.memory.host()[..carrier.memory.bytes as usize]);
        Ok(true)
    }

    /// Puts a page's bytes into the pool, before all steps that are submitted from now on.
    pub(crate) fn load(
        &mut self,
        gpu: &Arc<Gpu>,
        queue: &mut Queue,
        model: &Model,
        page: u32,
        bytes: &[u8],
    ) -> Result<(), DeviceError> {
        if bytes.len() as u64 != page_bytes(model) {
            return Err(DeviceError::Misuse("not the bytes of a page"));
        }
        if self.into.len() < LOADS {
            self.next = self.into.len();
            self.into.push(Carrier::new(gpu, bytes.len() as u64, Place::Upload)?);
        }
        let carrier = &mut self.into[self.next];
        self.next = (self.next + 1) % LOADS;
        queue.wait(carrier.submitted, "loading a KV page")?;
        carrier.memory.host_mut()[..bytes.len()].copy_from_slice(bytes);
        let mut commands = vec![Command::FullBarrier];
        commands.extend(pieces(model, page)?.into_iter().map(|(from_offset, to, to_offset, bytes)| Command::Copy {
            from: &carrier.memory,
            from_offset,
            to,
            to_offset,
            bytes,
        }));
        commands.push(Command::FullBarrier);
        carrier.recording.record(&commands, false)?;
        carrier.submitted = queue.submit(&carrier.recording)?;
        Ok(())
    }
}
