//! Conditions and loops of one subgroup: who is active, and what moves where.
//!
//! ```text
//! (mask, frames) ─If/Else/EndIf, For/Test/Next/EndFor─► (mask, frames), parameters assigned in the active lanes
//! ```

use super::super::inst::*;
use super::FaultKind;
use super::execute::{Frame, Machine, Stop, Subgroup, lanes_of};
use super::lower::Step;
use std::cell::Cell;

impl Machine<'_, '_> {
    pub(super) fn control(&mut self, s: &mut Subgroup, step: Step) -> Result<(), Stop> {
        match step {
            Step::If { at, otherwise } => {
                let Op::If { cond, .. } = self.program.kernel.op(at) else { return Ok(()) };
                s.frames.push(s.mask);
                s.mask &= self.held(s, *cond);
                if s.mask == 0 {
                    s.pc = otherwise as usize;
                }
            }
            Step::Else { at, end } => {
                let Op::If { cond, then_yield, results, .. } = self.program.kernel.op(at) else { return Ok(()) };
                self.assign(s, then_yield, results);
                s.mask = s.frames.last().copied().unwrap_or(0) & !self.held(s, *cond);
                if s.mask == 0 {
                    s.pc = end as usize;
                }
            }
            Step::EndIf { at } => {
                let Op::If { else_yield, results, .. } = self.program.kernel.op(at) else { return Ok(()) };
                self.assign(s, else_yield, results);
                s.mask = s.frames.pop().unwrap_or(0);
            }
            Step::For { at } => {
                let Op::For { start, index, init, carried, .. } = self.program.kernel.op(at) else { return Ok(()) };
                s.frames.push(s.mask);
                self.assign(s, &[*start], &[*index]);
                self.assign(s, init, carried);
            }
            Step::Test { at, end } => return self.test(s, at, end as usize),
            Step::Next { at, test } => {
                let Op::For { step, index, carried, body_yield, .. } = self.program.kernel.op(at) else {
                    return Ok(());
                };
                self.assign(s, body_yield, carried);
                let frame = self.frame(s);
                let (index, step) = (frame.column(*index), frame.column(*step));
                for lane in lanes_of(frame.mask) {
                    index[lane].set(index[lane].get() + step[lane].get());
                }
                s.pc = test as usize;
            }
            Step::EndFor { at } => {
                let Op::For { carried, results, .. } = self.program.kernel.op(at) else { return Ok(()) };
                s.mask = s.frames.pop().unwrap_or(0);
                self.assign(s, carried, results);
            }
            Step::Op(_) | Step::Barrier(_) => {}
        }
        Ok(())
    }

    fn frame<'a>(&'a self, s: &'a mut Subgroup) -> Frame<'a> {
        Frame {
            program: self.program,
            cells: Cell::from_mut(&mut s.columns[..]).as_slice_of_cells(),
            lanes: self.program.kernel.subgroup_size as usize,
            first: s.first,
            step: s.step,
            mask: s.mask,
        }
    }

    /// Lanes (active or not) where `cond` holds.
    fn held(&self, s: &mut Subgroup, cond: Value) -> u128 {
        let frame = self.frame(s);
        let column = frame.column(cond);
        column.iter().enumerate().fold(0, |mask, (lane, c)| mask | (c.get() as u128 & 1) << lane)
    }

    fn test(&mut self, s: &mut Subgroup, at: Value, exit: usize) -> Result<(), Stop> {
        let Op::For { index, end, step, .. } = self.program.kernel.op(at) else { return Ok(()) };
        let frame = self.frame(s);
        let (index, end, step) = (frame.column(*index), frame.column(*end), frame.column(*step));
        let mut mask = 0u128;
        for lane in lanes_of(frame.mask) {
            let (end, step) = (end[lane].get(), step[lane].get());
            if index[lane].get() < end {
                if step == 0 || end + step > u32::MAX as u64 {
                    let kind = FaultKind::LoopBounds { end: end as u32, step: step as u32 };
                    return Err(Stop { at: Some(at), ..frame.stop(lane, kind) });
                }
                mask |= 1 << lane;
            }
        }
        s.mask = mask;
        if mask == 0 {
            s.pc = exit;
        }
        Ok(())
    }

    /// `to = from` in the active lanes, all at once: a value may be on both sides.
    fn assign(&self, s: &mut Subgroup, from: &[Value], to: &[Value]) {
        if s.mask == 0 || from.is_empty() {
            return;
        }
        let overlap = from.iter().enumerate().any(|(i, f)| to.iter().position(|t| t == f).is_some_and(|j| j < i));
        let kernel = self.program.kernel;
        let mut matrices = vec![];
        for f in from {
            if matches!(kernel.ty(*f), Type::Matrix(_)) {
                matrices.push(s.matrices[self.program.slot(*f)].clone());
            }
        }
        let mut matrices = matrices.into_iter();
        for t in to {
            if matches!(kernel.ty(*t), Type::Matrix(_)) {
                s.matrices[self.program.slot(*t)] = matrices.next().unwrap_or_default();
            }
        }
        let frame = self.frame(s);
        let vectors = from.iter().zip(to).filter(|(f, _)| matches!(kernel.ty(**f), Type::Vec(..)));
        if overlap {
            let saved: Vec<Vec<u64>> =
                vectors.clone().map(|(f, _)| frame.column(*f).iter().map(Cell::get).collect()).collect();
            for ((_, t), saved) in vectors.zip(saved) {
                let column = frame.column(*t);
                for start in (0..column.len()).step_by(frame.lanes) {
                    lanes_of(frame.mask).for_each(|lane| column[start + lane].set(saved[start + lane]));
                }
            }
        } else {
            vectors.for_each(|(f, t)| frame.copy(*f, *t));
        }
    }
}
