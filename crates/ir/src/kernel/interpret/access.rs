//! Loads, stores and atomics of one subgroup, lane by lane.
//!
//! ```text
//! address or index ─► in bounds? aligned? allowed? written? raced? ─► value
//! ```

use super::super::inst::*;
use super::FaultKind;
use super::execute::{Frame, Machine, Stop, Tile, lanes_of};
use super::memory;
use super::races::{self, Conflict, How, Who};

/// A shared array. Marks of earlier tiles are told apart by their tile, so nothing is cleared between tiles.
pub(super) struct SharedArray {
    values: Vec<u64>,
    marks: Vec<(u32, bool, races::Cell)>,
}

impl SharedArray {
    pub(super) fn new(array: &Shared) -> SharedArray {
        let len = array.len as usize;
        SharedArray {
            values: vec![0; len * array.ty.lanes() as usize],
            marks: vec![(u32::MAX, false, races::Cell::NEW); len],
        }
    }
}

impl Machine<'_, '_> {
    pub(super) fn global(&mut self, frame: &Frame, v: Value) -> Result<(), Stop> {
        let kernel = frame.kernel();
        let (base, offset, imm, align, value, how) = match kernel.op(v) {
            Op::Load { base, offset, imm, align, read_only } => {
                (base, offset, *imm, *align, None, if *read_only { How::ReadOnly } else { How::Read })
            }
            Op::Store { base, offset, imm, align, value } => (base, offset, *imm, *align, Some(*value), How::Write),
            Op::AtomicAdd { base, offset, value, .. } => (base, offset, 0, 4, Some(*value), How::Atomic),
            _ => return Ok(()),
        };
        let ty = value.map_or(kernel.ty(v), |value| kernel.ty(value));
        let element = ty.scalar().map_or(1, Scalar::bytes) as usize;
        let (base, offset) = (frame.column(*base), frame.column(*offset));
        for lane in lanes_of(frame.mask) {
            let fail = |kind| frame.stop(lane, kind);
            // Wrapping would need a base near 2^64, where nothing can be bound.
            let address = base[lane].get().wrapping_add(offset[lane].get()).wrapping_add(imm as u64);
            let at = self.locate(address, ty.bytes(), align as u32).map_err(fail)?;
            let who = self.who(frame, lane);
            match how {
                How::Read | How::ReadOnly => {
                    self.touch(at, ty.bytes(), who, how).map_err(fail)?;
                    let bytes = self.memory.read(at, ty.bytes() as usize).map_err(fail)?;
                    let column = frame.column(v);
                    for (i, bytes) in bytes.chunks_exact(element).enumerate() {
                        column[i * frame.lanes + lane].set(memory::get(bytes));
                    }
                }
                How::Write => {
                    let column = value.map(|value| frame.column(value)).unwrap_or_default();
                    let bytes = self.memory.write(at, ty.bytes() as usize).map_err(fail)?;
                    for (i, bytes) in bytes.chunks_exact_mut(element).enumerate() {
                        memory::put(bytes, column[i * frame.lanes + lane].get());
                    }
                    self.touch(at, ty.bytes(), who, how).map_err(fail)?;
                }
                How::Atomic => {
                    let old = memory::get(self.memory.read(at, 4).map_err(fail)?);
                    let addend = value.map_or(0, |value| frame.column(value)[lane].get());
                    let bytes = self.memory.write(at, 4).map_err(fail)?;
                    memory::put(bytes, old.wrapping_add(addend));
                    self.touch(at, 4, who, how).map_err(fail)?;
                    if matches!(kernel.op(v), Op::AtomicAdd { order: Order::AcquireRelease, .. }) {
                        self.hand_on(at);
                    }
                    frame.column(v)[lane].set(old);
                }
            }
        }
        Ok(())
    }

    pub(super) fn locate(&mut self, address: u64, bytes: u32, align: u32) -> Result<(usize, usize), FaultKind> {
        let at = self.memory.find(address, bytes)?;
        if !address.is_multiple_of(align as u64) {
            return Err(FaultKind::Misaligned { address, align });
        }
        Ok(at)
    }

    pub(super) fn touch(&mut self, at: (usize, usize), bytes: u32, who: Who, how: How) -> Result<(), FaultKind> {
        match &mut self.shadow {
            Some(shadow) => shadow.touch(self.memory, at, bytes, who, how, &self.tile.known),
            None => Ok(()),
        }
    }

    /// An atomic of the running tile on the word at `at` acquires what was released there, and releases.
    fn hand_on(&mut self, at: (usize, usize)) {
        let Tile { linear, interval, known, acquired, .. } = &mut self.tile;
        if let Some(shadow) = &mut self.shadow {
            let released = shadow.released(at);
            acquired.join(released);
            released.join(known);
            released.note(*linear, *interval);
        }
    }

    pub(super) fn shared(&mut self, frame: &Frame, v: Value) -> Result<(), Stop> {
        let (array, index, value) = match frame.kernel().op(v) {
            Op::SharedLoad { array, index } => (*array, index, None),
            Op::SharedStore { array, index, value } => (*array, index, Some(frame.column(*value))),
            _ => return Ok(()),
        };
        let index = frame.column(*index);
        for lane in lanes_of(frame.mask) {
            let element = index[lane].get();
            let how = if value.is_some() { How::Write } else { How::Read };
            let who = self.who_shared(frame, lane);
            let values = self.element(array, element, who, how).map_err(|kind| frame.stop(lane, kind))?;
            match value {
                None => {
                    let column = frame.column(v);
                    values.iter().enumerate().for_each(|(i, x)| column[i * frame.lanes + lane].set(*x));
                }
                Some(column) => {
                    values.iter_mut().enumerate().for_each(|(i, x)| *x = column[i * frame.lanes + lane].get());
                }
            }
        }
        Ok(())
    }

    /// The scalars of a shared element, after all checks.
    pub(super) fn element(&mut self, array: u32, index: u64, who: Who, how: How) -> Result<&mut [u64], FaultKind> {
        let declared = &self.program.kernel.shared[array as usize];
        let name = || declared.name.clone();
        if index >= declared.len as u64 {
            return Err(FaultKind::SharedOutOfBounds { array: name(), index, len: declared.len });
        }
        let Tile { linear, shared, known, .. } = &mut self.tile;
        let state = &mut shared[array as usize];
        let (tile, written, cell) = &mut state.marks[index as usize];
        if *tile != *linear {
            (*tile, *written, *cell) = (*linear, false, races::Cell::NEW);
        }
        if self.shadow.is_some()
            && let Err(Conflict::Race(other)) = cell.touch(who, how, known)
        {
            return Err(FaultKind::SharedRace { array: name(), index, other });
        }
        match how {
            How::Write => *written = true,
            _ if !*written => return Err(FaultKind::SharedUninitialised { array: name(), index }),
            _ => {}
        }
        let n = declared.ty.lanes() as usize;
        Ok(&mut state.values[index as usize * n..][..n])
    }
}
