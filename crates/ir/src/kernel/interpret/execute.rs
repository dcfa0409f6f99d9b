//! One subgroup, step by step.
//!
//! ```text
//! Subgroup { pc, mask, columns } ─step─► Subgroup, memory changed   until a barrier, the end, or enough accesses
//! ```

use super::super::inst::*;
use super::FaultKind;
use super::access::SharedArray;
use super::arith::{self, Column};
use super::lower::{Program, Step};
use super::memory::Memory;
use super::order::Clock;
use super::races::{Shadow, Who};
use std::cell::Cell;
use std::collections::HashMap;

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
    /// At a barrier of the workgroup or the grid with all lanes; `pc` is behind it.
    Barrier(Value),
    Done,
}

/// The state of one subgroup.
pub(super) struct Subgroup {
    /// Local id of lane 0.
    pub(super) first: u32,
    /// Barriers of its own that it has passed.
    pub(super) step: u32,
    pub(super) mask: u128,
    pub(super) frames: Vec<u128>,
    pub(super) pc: usize,
    pub(super) pause: Pause,
    pub(super) columns: Vec<u64>,
    pub(super) matrices: Vec<Vec<u64>>,
}

impl Subgroup {
    /// All lanes active at the start, leaves that do not depend on the tile set.
    pub(super) fn new(program: &Program, index: u32, args: &[u64], grid: [u32; 3]) -> Subgroup {
        let lanes = program.kernel.subgroup_size;
        let mut s = Subgroup {
            first: index * lanes,
            step: 0,
            mask: full(lanes),
            frames: vec![],
            pc: 0,
            pause: Pause::Preempted,
            columns: vec![0; program.columns],
            matrices: vec![vec![]; program.matrices],
        };
        for (i, op) in program.kernel.ops.iter().enumerate() {
            let v = Value(i as u32);
            match op {
                Op::Const(bits) => s.fill(program, v, |_| *bits),
                Op::Arg(n) => s.fill(program, v, |_| args[*n as usize]),
                Op::Builtin(Builtin::LocalId) => s.fill(program, v, |l| (index * lanes + l) as u64),
                Op::Builtin(Builtin::Lane) => s.fill(program, v, |l| l as u64),
                Op::Builtin(Builtin::GridSize(axis)) => s.fill(program, v, |_| grid[*axis as usize] as u64),
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
        self.step = 0;
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
        for (lane, c) in (0..lanes).zip(&mut self.columns[program.columns_of(v)]) {
            *c = f(lane);
        }
    }
}

fn full(lanes: u32) -> u128 {
    u128::MAX >> (128 - lanes)
}

pub(super) fn lanes_of(mut mask: u128) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let lane = mask.trailing_zeros();
        (lane < 128).then(|| {
            mask &= mask - 1;
            lane as usize
        })
    })
}

/// What the subgroups of a tile share.
pub(super) struct Tile {
    /// Linear tile number.
    pub(super) linear: u32,
    pub(super) shared: Vec<SharedArray>,
    /// Barriers that the tile has passed.
    pub(super) interval: u32,
    /// What other tiles' atomics have handed to it.
    pub(super) known: Clock,
    /// The same, since the last barrier.
    pub(super) acquired: Clock,
}

impl Tile {
    pub(super) fn new(program: &Program) -> Tile {
        let shared = program.kernel.shared.iter().map(SharedArray::new).collect();
        Tile { linear: 0, shared, interval: 0, known: Clock::default(), acquired: Clock::default() }
    }

    pub(super) fn restart(&mut self, linear: u32) {
        (self.linear, self.interval) = (linear, 0);
        self.known.clear();
        self.acquired.clear();
    }

    /// All lanes have passed a barrier.
    pub(super) fn pass_barrier(&mut self) {
        self.interval += 1;
        self.known.join(&self.acquired);
        self.acquired.clear();
    }

    /// All lanes of all tiles have passed a grid barrier: everything before it is known to everybody.
    pub(super) fn pass_grid_barrier(&mut self) {
        self.interval += 1;
        self.known.clear();
        self.acquired.clear();
    }
}

/// What all tiles share, and the tile that runs.
pub(super) struct Machine<'k, 'm> {
    pub(super) program: &'k Program<'k>,
    pub(super) memory: &'m mut Memory,
    /// None when races are not checked.
    pub(super) shadow: Option<Shadow>,
    pub(super) tile: Tile,
    /// Grid barriers that all tiles have passed.
    pub(super) epoch: u32,
    /// Decides which lane holds which element of a matrix.
    pub(super) seed: u64,
    /// Where the elements of accumulators are that the lanes hold, as far as anybody asked.
    pub(super) layouts: HashMap<MatrixType, Vec<u32>>,
}

/// One operation on one subgroup: the operands as columns.
pub(super) struct Frame<'a> {
    pub(super) program: &'a Program<'a>,
    pub(super) cells: &'a Column,
    pub(super) lanes: usize,
    pub(super) first: u32,
    pub(super) step: u32,
    pub(super) mask: u128,
}

impl<'a> Frame<'a> {
    pub(super) fn kernel(&self) -> &'a Kernel {
        self.program.kernel
    }
    pub(super) fn column(&self, v: Value) -> &'a Column {
        &self.cells[self.program.columns_of(v)]
    }
    pub(super) fn scalar(&self, v: Value) -> Scalar {
        self.kernel().ty(v).scalar().unwrap_or(Scalar::U32)
    }
    pub(super) fn stop(&self, lane: usize, kind: FaultKind) -> Stop {
        Stop { at: None, lane: self.first + lane as u32, kind }
    }
    /// Copies `from` to `to` in the active lanes.
    pub(super) fn copy(&self, from: Value, to: Value) {
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
        let is_matrix =
            matches!(kernel.ty(v), Type::Matrix(_)) || matches!(op, Op::MatrixStore { .. } | Op::MatrixElement(..));
        if is_matrix || is_of_subgroup(op) {
            let size = kernel.subgroup_size;
            if s.mask != full(size) {
                let kind = FaultKind::Divergent { active: s.mask.count_ones(), size };
                return Err(Stop { at: None, lane: s.first + (!s.mask).trailing_zeros(), kind });
            }
        }
        s.step += u32::from(matches!(op, Op::SubgroupBarrier));
        let frame = Frame {
            program: self.program,
            cells: Cell::from_mut(&mut s.columns[..]).as_slice_of_cells(),
            lanes: kernel.subgroup_size as usize,
            first: s.first,
            step: s.step,
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

    /// Who touches global memory.
    pub(super) fn who(&self, frame: &Frame, lane: usize) -> Who {
        let Tile { linear: tile, interval, .. } = self.tile;
        // Workgroups have at most 1024 lanes.
        let subgroup = (frame.first / frame.lanes as u32) as u16;
        Who { epoch: self.epoch, tile, interval, step: 0, subgroup, lane: frame.first as u16 + lane as u16 }
    }

    /// Who touches shared memory.
    pub(super) fn who_shared(&self, frame: &Frame, lane: usize) -> Who {
        Who { step: frame.step, ..self.who(frame, lane) }
    }
}

/// Does it need all lanes of the subgroup, though no matrix is in it?
fn is_of_subgroup(op: &Op) -> bool {
    matches!(op, Op::SubgroupReduce(..) | Op::SubgroupShuffle(..) | Op::SubgroupShuffleXor(..) | Op::SubgroupBarrier)
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
            if frame.program.is_partial(v) {
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
            if frame.program.is_partial(v) {
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
        Op::Table(index, words) => look_up(frame, *index, words, d)?,
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

/// The word that each lane's index names.
fn look_up(frame: &Frame, index: Value, words: &[u32], d: &Column) -> Result<(), Stop> {
    let (col, len) = (frame.column(index), words.len());
    let outside = |index: u64| (index >= len as u64).then_some(FaultKind::TableIndex { index, len });
    check(frame, index, |i| outside(col[i].get()))?;
    let word = |i: &Cell<u64>| words.get(i.get() as usize).copied().unwrap_or_default() as u64;
    col.iter().zip(d).for_each(|(i, d)| d.set(word(i)));
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
