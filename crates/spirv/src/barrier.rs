//! Barriers, and which of those of a workgroup must order global memory.
//!
//! A barrier that also orders global memory makes the hardware wait for outstanding stores, so it is asked for only
//! where the tile has a global access before it and another after it, one of them a write. An atomic counts as both, so
//! that barriers around one that hands data to another tile order the data, too.
//!
//! ```text
//! grid barrier = workgroup barrier; lane 0: add 1 to the word (release), wait until all have (acquire); workgroup barrier
//! ```
//!
//! The word only grows: round r is over when it has reached r times the number of tiles.

use crate::EmitError;
use crate::emitter::Emitter;
use rspirv::dr::Operand;
use rspirv::spirv::{self, Word};
use zinc_ir::kernel::{Arg, ArgKind, Block, Kernel, MatrixMemory, Op, Order, Type, Value};

/// What orders workgroup memory.
const SHARED: spirv::MemorySemantics = spirv::MemorySemantics::ACQUIRE_RELEASE
    .union(spirv::MemorySemantics::WORKGROUP_MEMORY)
    .union(spirv::MemorySemantics::MAKE_AVAILABLE)
    .union(spirv::MemorySemantics::MAKE_VISIBLE);

#[derive(Clone, Copy, Default)]
struct Seen {
    reads: bool,
    writes: bool,
}

impl Seen {
    fn join(self, o: Seen) -> Seen {
        Seen { reads: self.reads || o.reads, writes: self.writes || o.writes }
    }
    fn conflicts(self, o: Seen) -> bool {
        (self.writes && (o.reads || o.writes)) || (self.reads && o.writes)
    }
}

/// Barriers of `kernel` that have conflicting global accesses on both sides.
pub(crate) fn global_barriers(kernel: &Kernel) -> Vec<Value> {
    let mut found = vec![];
    walk(kernel, &kernel.body, Seen::default(), Seen::default(), &mut found);
    found
}

/// Visits `block` knowing what came before and what comes after it; gives what the block itself does.
fn walk(kernel: &Kernel, block: &Block, before: Seen, after: Seen, found: &mut Vec<Value>) {
    let effects: Vec<Seen> = block.iter().map(|v| effect(kernel, *v)).collect();
    let mut behind = before;
    for (i, v) in block.iter().enumerate() {
        let ahead = effects[i + 1..].iter().fold(after, |a, e| a.join(*e));
        match kernel.ops.get(v.0 as usize) {
            Some(Op::Barrier) if behind.conflicts(ahead) => found.push(*v),
            Some(Op::If { then, otherwise, .. }) => {
                walk(kernel, then, behind, ahead, found);
                walk(kernel, otherwise, behind, ahead, found);
            }
            // The body may run before and after itself.
            Some(Op::For { body, .. }) => {
                walk(kernel, body, behind.join(effects[i]), ahead.join(effects[i]), found);
            }
            _ => {}
        }
        behind = behind.join(effects[i]);
    }
}

fn effect(kernel: &Kernel, v: Value) -> Seen {
    let all = |b: &Block| b.iter().fold(Seen::default(), |a, v| a.join(effect(kernel, *v)));
    match kernel.ops.get(v.0 as usize) {
        Some(Op::Load { read_only: false, .. }) => Seen { reads: true, writes: false },
        Some(Op::MatrixLoad { memory: MatrixMemory::Global { base, .. }, .. }) if !is_read_arg(kernel, *base) => {
            Seen { reads: true, writes: false }
        }
        Some(Op::Store { .. } | Op::MatrixStore { memory: MatrixMemory::Global { .. }, .. }) => {
            Seen { reads: false, writes: true }
        }
        Some(Op::AtomicAdd { .. } | Op::GridBarrier { .. }) => Seen { reads: true, writes: true },
        Some(Op::If { then, otherwise, .. }) => all(then).join(all(otherwise)),
        Some(Op::For { body, .. }) => all(body),
        _ => Seen::default(),
    }
}

/// `base` is a launch argument whose bytes nothing in the launch writes.
pub(crate) fn is_read_arg(kernel: &Kernel, base: Value) -> bool {
    match kernel.ops.get(base.0 as usize) {
        Some(Op::Arg(n)) => matches!(kernel.args.get(*n as usize), Some(Arg { kind: ArgKind::Read, .. })),
        _ => false,
    }
}

/// Does something in `kernel` order global accesses of different lanes? Only then must they be non-private.
pub(crate) fn orders_global(kernel: &Kernel) -> bool {
    let hands_on = |op: &Op| matches!(op, Op::GridBarrier { .. } | Op::AtomicAdd { order: Order::AcquireRelease, .. });
    kernel.ops.iter().any(hands_on) || !global_barriers(kernel).is_empty()
}

impl Emitter<'_> {
    /// Workgroup barrier `v`.
    pub(crate) fn barrier(&mut self, v: Value) {
        let global = self.global_barriers.contains(&v);
        self.workgroup_barrier(global);
    }

    /// Barrier of the launch: the word at `base + offset` counts the tiles that have come.
    pub(crate) fn grid_barrier(&mut self, base: Value, offset: Value) -> Result<(), EmitError> {
        use spirv::MemorySemantics as S;
        // What the workgroup's lanes wrote becomes available to lane 0, which hands it on.
        self.workgroup_barrier(true);
        let [u32_ty, bool_ty] = [Type::U32, Type::BOOL].map(|ty| self.ty(ty));
        let (index, zero, one) = (self.input(spirv::BuiltIn::LocalInvocationIndex), self.u32(0), self.u32(1));
        let first = self.value(spirv::Op::IEqual, bool_ty, &[index, zero]);
        let [alone, header, body, next, passed, merge] = [(); 6].map(|()| self.b.id());
        self.selection_merge(merge);
        self.branch_if(first, alone, merge);
        self.open(alone);
        let word = self.word_at(base, offset)?;
        let old = self.atomic_increment(word, one, S::RELEASE | S::UNIFORM_MEMORY | S::MAKE_AVAILABLE);
        let tiles = [0, 1, 2].map(|axis| self.input_lane(spirv::BuiltIn::NumWorkgroups, axis));
        let tiles = self.product(tiles);
        let rounds = self.value(spirv::Op::UDiv, u32_ty, &[old, tiles]);
        let round = self.value(spirv::Op::IAdd, u32_ty, &[rounds, one]);
        let wanted = self.value(spirv::Op::IMul, u32_ty, &[round, tiles]);
        self.branch(header);
        self.open(header);
        self.loop_merge(passed, next, spirv::LoopControl::DONT_UNROLL);
        self.branch(body);
        self.open(body);
        let now = self.atomic_load(word, S::ACQUIRE | S::UNIFORM_MEMORY | S::MAKE_VISIBLE);
        let done = self.value(spirv::Op::UGreaterThanEqual, bool_ty, &[now, wanted]);
        self.branch_if(done, passed, next);
        self.open(next);
        self.branch(header);
        self.open(passed);
        self.branch(merge);
        self.open(merge);
        self.workgroup_barrier(true);
        Ok(())
    }

    fn product(&mut self, [x, y, z]: [Word; 3]) -> Word {
        let u32_ty = self.ty(Type::U32);
        let plane = self.value(spirv::Op::IMul, u32_ty, &[x, y]);
        self.value(spirv::Op::IMul, u32_ty, &[plane, z])
    }

    fn workgroup_barrier(&mut self, global: bool) {
        use spirv::MemorySemantics as S;
        let mut semantics = SHARED;
        if global {
            semantics |= S::UNIFORM_MEMORY;
        }
        self.control_barrier(spirv::Scope::Workgroup, semantics);
    }

    /// Barrier of the subgroup, for workgroup memory.
    pub(crate) fn subgroup_barrier(&mut self) {
        self.control_barrier(spirv::Scope::Subgroup, SHARED);
    }

    fn control_barrier(&mut self, scope: spirv::Scope, semantics: spirv::MemorySemantics) {
        let (scope, semantics) = (self.u32(scope as u32), self.u32(semantics.bits()));
        let operands = vec![Operand::IdScope(scope), Operand::IdScope(scope), Operand::IdMemorySemantics(semantics)];
        self.inst(spirv::Op::ControlBarrier, None, None, operands);
    }
}
