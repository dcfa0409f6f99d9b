//! One subgroup, step by step.
//!
//! ```text
//! Subgroup { pc, mask, columns } ─step─► Subgroup, memory changed   until a barrier, the end, or enough accesses
//! ```

use super::super::inst::*;
use super::arith::{self, Column};
use super::lower::{Program, Step};
use super::memory::{self, Memory};
use super::races::{self, Conflict, How, Shadow, Who};
use super::{FaultKind, matrix};
use std::cell::Cell;

/// A fault with the place that the launch adds to it.
pub(super) struct Stop {
    pub(super) at: Option<Value>,
    pub(super) lane: u32,
    pub(super) kind: FaultKind,
}

/// Why a subgroup handed back control.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Pause {
    /// Others may go first.
    Preempted,
    /// At a barrier with all lanes; `pc` is behind it.
    Barrier(Value),
    Done,
}

/// The state of one subgroup.
pub(super) struct Subgroup {
    /// Local id of lane 0.
    pub(super) first: u32,
    pub(super) mask: u128,
    pub(super) frames: Vec<u128>,
    pub(super) pc: usize,
    pub(super) pause: Pause,
    columns: Vec<u64>,
    matrices: Vec<Vec<u64>>,
}

impl Subgroup {
    /// All lanes active at the start, leaves that do not depend on the tile set.
    pub(super) fn new(program: &Program, index: u32, args: &[u64]) -> Subgroup {
        let lanes = program.kernel.subgroup_size;
        let mut s = Subgroup {
            first: index * lanes,
            mask: full(lanes),
            frames: vec![],
            pc: 0,
            pause: Pause::Preempted,
            columns: vec![0; program.columns * lanes as usize],
            matrices: vec![vec![]; program.matrices],
        };
        for (i, op) in program.kernel.ops.iter().enumerate() {
            let v = Value(i as u32);
            match op {
                Op::Const(bits) => s.fill(program, v, |_| *bits),
                Op::Arg(n) => s.fill(program, v, |_| args[*n as usize]),
                Op::Builtin(Builtin::LocalId) => s.fill(program, v, |l| (index * lanes + l) as u64),
                Op::Builtin(Builtin::Lane) => s.fill(program, v, |l| l as u64),
                Op::Builtin(Builtin::SubgroupId) => s.fill(program, v, |_| index as u64),
                _ => {}
            }
        }
        s
    }

    /// Back to the start, for another tile.
    pub(super) fn restart(&mut self, program: &Program, tile: [u32; 3]) {
        self.mask = full(program.kernel.subgroup_size);
        self.frames.clear();
        self.pc = 0;
        self.pause = Pause::Preempted;
        for (i, op) in program.kernel.ops.iter().enumerate() {
            if let Op::Builtin(Builtin::Tile(axis)) = op {
                self.fill(program, Value(i as u32), |_| tile[*axis as usize] as u64);
            }
        }
    }

    fn fill(&mut self, program: &Program, v: Value, f: impl Fn(u32) -> u64) {
        let lanes = program.kernel.subgroup_size;
        let start = program.place(v) * lanes as usize;
        for lane in 0..lanes {
            self.columns[start + lane as usize] = f(lane);
        }
    }
}

fn full(lanes: u32) -> u128 {
    u128::MAX >> (128 - lanes)
}

fn lanes_of(mut mask: u128) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let lane = mask.trailing_zeros();
        (lane < 128).then(|| {
            mask &= mask - 1;
            lane as usize
        })
    })
}

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

/// What the subgroups of a tile share.
pub(super) struct Machine<'k, 'm> {
    pub(super) program: &'k Program<'k>,
    pub(super) memory: &'m mut Memory,
    /// None when races are not checked.
    pub(super) shadow: Option<Shadow>,
    pub(super) shared: Vec<SharedArray>,
    /// Linear tile number.
    pub(super) tile: u32,
    /// Barriers that the tile has passed.
    pub(super) interval: u32,
}

/// One operation on one subgroup: the operands as columns.
struct Frame<'a> {
    program: &'a Program<'a>,
    cells: &'a Column,
    lanes: usize,
    first: u32,
    mask: u128,
}

impl<'a> Frame<'a> {
    fn kernel(&self) -> &'a Kernel {
        self.program.kernel
    }
    fn column(&self, v: Value) -> &'a Column {
        let start = self.program.place(v) * self.lanes;
        &self.cells[start..start + self.kernel().ty(v).lanes() as usize * self.lanes]
    }
    fn scalar(&self, v: Value) -> Scalar {
        self.kernel().ty(v).scalar().unwrap_or(Scalar::U32)
    }
    fn stop(&self, lane: usize, kind: FaultKind) -> Stop {
        Stop { at: None, lane: self.first + lane as u32, kind }
    }
    /// Copies `from` to `to` in the active lanes.
    fn copy(&self, from: Value, to: Value) {
        let (from, to) = (self.column(from), self.column(to));
        for start in (0..from.len()).step_by(self.lanes) {
            for lane in lanes_of(self.mask) {
                to[start + lane].set(from[start + lane].get());
            }
        }
    }
}

impl Machine<'_, '_> {
    /// Runs until something of [`Pause`] happens; `accesses` memory operations preempt.
    pub(super) fn advance(&mut self, s: &mut Subgroup, mut accesses: u32) -> Result<Pause, Stop> {
        let program = self.program;
        while let Some(step) = program.code.get(s.pc) {
            s.pc += 1;
            match *step {
                Step::Op(at) => {
                    self.operation(s, at).map_err(|stop| Stop { at: Some(at), ..stop })?;
                    if touches_memory(program.kernel.op(at)) {
                        accesses -= 1;
                        if accesses == 0 {
                            return Ok(Pause::Preempted);
                        }
                    }
                }
                Step::Barrier(at) => {
                    let size = program.kernel.subgroup_size;
                    if s.mask != full(size) {
                        let detail = format!("{} of {size} lanes of the subgroup reach it", s.mask.count_ones());
                        let kind = FaultKind::BarrierDivergence(detail);
                        let lane = s.first + (!s.mask).trailing_zeros();
                        return Err(Stop { at: Some(at), lane, kind });
                    }
                    return Ok(Pause::Barrier(at));
                }
                control => self.control(s, control)?,
            }
        }
        Ok(Pause::Done)
    }

    fn operation(&mut self, s: &mut Subgroup, v: Value) -> Result<(), Stop> {
        let kernel = self.program.kernel;
        let op = kernel.op(v);
        let is_matrix = matches!(kernel.ty(v), Type::Matrix(_)) || matches!(op, Op::MatrixStore { .. });
        if is_matrix || matches!(op, Op::SubgroupReduce(..) | Op::SubgroupShuffle(..) | Op::SubgroupShuffleXor(..)) {
            let size = kernel.subgroup_size;
            if s.mask != full(size) {
                let kind = FaultKind::Divergent { active: s.mask.count_ones(), size };
                return Err(Stop { at: None, lane: s.first + (!s.mask).trailing_zeros(), kind });
            }
        }
        let frame = Frame {
            program: self.program,
            cells: Cell::from_mut(&mut s.columns[..]).as_slice_of_cells(),
            lanes: kernel.subgroup_size as usize,
            first: s.first,
            mask: s.mask,
        };
        if is_matrix {
            return self.matrix(&frame, &mut s.matrices, v);
        }
        match op {
            Op::Load { .. } | Op::Store { .. } | Op::AtomicAdd { .. } => self.global(&frame, v),
            Op::SharedLoad { .. } | Op::SharedStore { .. } => self.shared(&frame, v),
            _ => compute(&frame, v),
        }
    }

    fn who(&self, frame: &Frame, lane: usize) -> Who {
        Who { tile: self.tile, interval: self.interval, lane: frame.first + lane as u32 }
    }

    // ---- control ------------------------------------------------------------------------------------------

    fn control(&mut self, s: &mut Subgroup, step: Step) -> Result<(), Stop> {
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
                matrices.push(s.matrices[self.program.place(*f)].clone());
            }
        }
        let mut matrices = matrices.into_iter();
        for t in to {
            if matches!(kernel.ty(*t), Type::Matrix(_)) {
                s.matrices[self.program.place(*t)] = matrices.next().unwrap_or_default();
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

    // ---- memory -------------------------------------------------------------------------------------------

    fn global(&mut self, frame: &Frame, v: Value) -> Result<(), Stop> {
        let kernel = frame.kernel();
        let (base, offset, imm, align, value, how) = match kernel.op(v) {
            Op::Load { base, offset, imm, align, read_only } => {
                (base, offset, *imm, *align, None, if *read_only { How::ReadOnly } else { How::Read })
            }
            Op::Store { base, offset, imm, align, value } => (base, offset, *imm, *align, Some(*value), How::Write),
            Op::AtomicAdd { base, offset, value } => (base, offset, 0, 4, Some(*value), How::Atomic),
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
                    frame.column(v)[lane].set(old);
                }
            }
        }
        Ok(())
    }

    fn locate(&mut self, address: u64, bytes: u32, align: u32) -> Result<(usize, usize), FaultKind> {
        let at = self.memory.find(address, bytes)?;
        if !address.is_multiple_of(align as u64) {
            return Err(FaultKind::Misaligned { address, align });
        }
        Ok(at)
    }

    fn touch(&mut self, at: (usize, usize), bytes: u32, who: Who, how: How) -> Result<(), FaultKind> {
        match &mut self.shadow {
            Some(shadow) => shadow.touch(self.memory, at, bytes, who, how),
            None => Ok(()),
        }
    }

    fn shared(&mut self, frame: &Frame, v: Value) -> Result<(), Stop> {
        let (array, index, value) = match frame.kernel().op(v) {
            Op::SharedLoad { array, index } => (*array, index, None),
            Op::SharedStore { array, index, value } => (*array, index, Some(frame.column(*value))),
            _ => return Ok(()),
        };
        let index = frame.column(*index);
        for lane in lanes_of(frame.mask) {
            let element = index[lane].get();
            let how = if value.is_some() { How::Write } else { How::Read };
            let who = self.who(frame, lane);
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
    fn element(&mut self, array: u32, index: u64, who: Who, how: How) -> Result<&mut [u64], FaultKind> {
        let declared = &self.program.kernel.shared[array as usize];
        let name = || declared.name.clone();
        if index >= declared.len as u64 {
            return Err(FaultKind::SharedOutOfBounds { array: name(), index, len: declared.len });
        }
        let state = &mut self.shared[array as usize];
        let (tile, written, cell) = &mut state.marks[index as usize];
        if *tile != self.tile {
            (*tile, *written, *cell) = (self.tile, false, races::Cell::NEW);
        }
        if self.shadow.is_some()
            && let Err(Conflict::Race(other)) = cell.touch(who, how)
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

    // ---- matrices -----------------------------------------------------------------------------------------

    fn matrix(&mut self, frame: &Frame, matrices: &mut [Vec<u64>], v: Value) -> Result<(), Stop> {
        let kernel = frame.kernel();
        let place = |v: &Value| frame.program.place(*v);
        let shape = |v: &Value| match kernel.ty(*v) {
            Type::Matrix(m) => m,
            _ => MatrixType { scalar: Scalar::F32, rows: 0, cols: 0, usage: MatrixUse::Acc },
        };
        let result = match kernel.op(v) {
            Op::MatrixSplat(x) => {
                let m = shape(&v);
                vec![self.uniform(frame, *x, "element")?; m.rows as usize * m.cols as usize]
            }
            Op::MatrixMulAdd(a, b, c) => {
                let types = [shape(a), shape(b), shape(c)];
                matrix::mul_add(types, &matrices[place(a)], &matrices[place(b)], &matrices[place(c)])
            }
            Op::Convert(a) => matrix::convert(shape(a).scalar, shape(&v).scalar, &matrices[place(a)]),
            Op::MatrixLoad { memory, stride, column_major } => {
                let m = shape(&v);
                let mut elements = vec![0; m.rows as usize * m.cols as usize];
                self.transfer(frame, memory, *stride, *column_major, m, &mut elements, How::Read)?;
                elements
            }
            Op::MatrixStore { memory, stride, column_major, value } => {
                let m = shape(value);
                let elements = &mut matrices[place(value)];
                return self.transfer(frame, memory, *stride, *column_major, m, elements, How::Write);
            }
            _ => return Ok(()),
        };
        matrices[place(&v)] = result;
        Ok(())
    }

    fn uniform(&self, frame: &Frame, v: Value, what: &'static str) -> Result<u64, Stop> {
        let column = frame.column(v);
        let first = column[0].get();
        match column.iter().position(|c| c.get() != first) {
            Some(lane) => Err(frame.stop(lane, FaultKind::NotUniform(what))),
            None => Ok(first),
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn transfer(
        &mut self,
        frame: &Frame,
        memory: &MatrixMemory,
        stride: Value,
        column_major: bool,
        m: MatrixType,
        elements: &mut [u64],
        how: How,
    ) -> Result<(), Stop> {
        let fail = |kind| frame.stop(0, kind);
        let stride = self.uniform(frame, stride, "stride")?;
        let who = Who { lane: Who::UNKNOWN_LANE, ..self.who(frame, 0) };
        let size = m.scalar.bytes();
        let line_bytes = if column_major { m.rows } else { m.cols } as u32 * size;
        // What VK_KHR_cooperative_matrix asks of pointer and stride.
        let align = if line_bytes.is_power_of_two() { line_bytes.min(16) } else { size };
        match memory {
            MatrixMemory::Global { base, offset } => {
                let base = self.uniform(frame, *base, "base")?;
                let base = base.wrapping_add(self.uniform(frame, *offset, "offset")?);
                for (line, first, step, count) in matrix::lines(m, column_major) {
                    let address = base.wrapping_add(line * stride * size as u64);
                    let at = self.locate(address, line_bytes, align).map_err(fail)?;
                    let line = elements.iter_mut().skip(first).step_by(step).take(count);
                    if how == How::Write {
                        let bytes = self.memory.write(at, line_bytes as usize).map_err(fail)?;
                        bytes.chunks_exact_mut(size as usize).zip(line).for_each(|(b, x)| memory::put(b, *x));
                        self.touch(at, line_bytes, who, how).map_err(fail)?;
                    } else {
                        self.touch(at, line_bytes, who, how).map_err(fail)?;
                        let bytes = self.memory.read(at, line_bytes as usize).map_err(fail)?;
                        bytes.chunks_exact(size as usize).zip(line).for_each(|(b, x)| *x = memory::get(b));
                    }
                }
            }
            MatrixMemory::Shared { array, index } => {
                let start = self.uniform(frame, *index, "index")?;
                for (line, first, step, count) in matrix::lines(m, column_major) {
                    let begin = start + line * stride;
                    if !(begin * size as u64).is_multiple_of(align as u64) {
                        return Err(fail(FaultKind::Misaligned { address: begin * size as u64, align }));
                    }
                    for (i, x) in elements.iter_mut().skip(first).step_by(step).take(count).enumerate() {
                        let element = self.element(*array, begin + i as u64, who, how).map_err(fail)?;
                        if how == How::Write {
                            element[0] = *x;
                        } else {
                            *x = element[0];
                        }
                    }
                }
            }
        }
        Ok(())
    }
}

fn touches_memory(op: &Op) -> bool {
    matches!(
        op,
        Op::Load { .. }
            | Op::Store { .. }
            | Op::AtomicAdd { .. }
            | Op::SharedLoad { .. }
            | Op::SharedStore { .. }
            | Op::MatrixLoad { .. }
            | Op::MatrixStore { .. }
    )
}

/// Operations on values alone.
fn compute(frame: &Frame, v: Value) -> Result<(), Stop> {
    let kernel = frame.kernel();
    let lanes = frame.lanes;
    let col = |v: &Value| frame.column(*v);
    let d = frame.column(v);
    match kernel.op(v) {
        Op::Unary(op, a) => arith::unary(*op, frame.scalar(*a), col(a), d),
        Op::Binary(op, a, b) => {
            let s = frame.scalar(*a);
            if arith::is_partial(*op, s) {
                check(frame, *a, |i| arith::undefined_binary(*op, s, col(a)[i].get(), col(b)[i].get()))?;
            }
            arith::binary(*op, s, col(a), col(b), d);
        }
        Op::Fma(a, b, c) => arith::fma(frame.scalar(v), col(a), col(b), col(c), d),
        Op::Select(c, a, b) => {
            let (a, b, c) = (col(a), col(b), col(c));
            for (i, d) in d.iter().enumerate() {
                d.set(if c[i % c.len()].get() != 0 { a[i].get() } else { b[i].get() });
            }
        }
        Op::Convert(a) => {
            let (from, to) = (frame.scalar(*a), frame.scalar(v));
            if from.is_float() && !to.is_float() {
                check(frame, *a, |i| arith::undefined_convert(from, to, col(a)[i].get()))?;
            }
            arith::convert(from, to, col(a), d);
        }
        Op::Bitcast(a) => arith::bitcast(frame.scalar(*a), frame.scalar(v), col(a), d, lanes),
        Op::Compose(parts) => {
            for (part, d) in parts.iter().zip(d.chunks_exact(lanes)) {
                col(part).iter().zip(d).for_each(|(a, d)| d.set(a.get()));
            }
        }
        Op::Extract(a, i) => col(a)[*i as usize * lanes..].iter().zip(d).for_each(|(a, d)| d.set(a.get())),
        Op::Dot4 { a, b, acc, a_signed } => arith::dot4(col(a), col(b), col(acc), d, *a_signed),
        Op::SubgroupReduce(op, a) => {
            for (a, d) in col(a).chunks_exact(lanes).zip(d.chunks_exact(lanes)) {
                let all = arith::reduce(*op, frame.scalar(v), a);
                d.iter().for_each(|d| d.set(all));
            }
        }
        Op::SubgroupShuffleXor(a, mask) => {
            for (a, d) in col(a).chunks_exact(lanes).zip(d.chunks_exact(lanes)) {
                d.iter().enumerate().for_each(|(lane, d)| d.set(a[lane ^ *mask as usize].get()));
            }
        }
        Op::SubgroupShuffle(a, from) => {
            let from = col(from);
            let size = lanes as u32;
            if let Some(lane) = from.iter().position(|f| f.get() >= size as u64) {
                return Err(frame.stop(lane, FaultKind::ShuffleLane { lane: from[lane].get(), size }));
            }
            for (a, d) in col(a).chunks_exact(lanes).zip(d.chunks_exact(lanes)) {
                d.iter().zip(from).for_each(|(d, from)| d.set(a[from.get() as usize].get()));
            }
        }
        _ => {}
    }
    Ok(())
}

/// Asks `undefined` for every active lane of every column of `v`.
fn check(frame: &Frame, v: Value, undefined: impl Fn(usize) -> Option<FaultKind>) -> Result<(), Stop> {
    for start in (0..frame.column(v).len()).step_by(frame.lanes) {
        for lane in lanes_of(frame.mask) {
            if let Some(kind) = undefined(start + lane) {
                return Err(frame.stop(lane, kind));
            }
        }
    }
    Ok(())
}
