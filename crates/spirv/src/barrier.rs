//! Workgroup barriers, and which of them must order global memory.
//!
//! A barrier that also orders global memory makes the hardware wait for outstanding stores, so it is asked for only
//! where the tile has a global access before it and another after it, one of them a write.

use crate::emitter::Emitter;
use rspirv::dr::Operand;
use rspirv::spirv;
use zinc_ir::kernel::{Arg, ArgKind, Block, Kernel, MatrixMemory, Op, Value};

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
        Some(Op::AtomicAdd { .. }) => Seen { reads: true, writes: true },
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

impl Emitter<'_> {
    /// Workgroup barrier `v`.
    pub(crate) fn barrier(&mut self, v: Value) {
        use spirv::MemorySemantics as S;
        let mut semantics = S::ACQUIRE_RELEASE | S::WORKGROUP_MEMORY | S::MAKE_AVAILABLE | S::MAKE_VISIBLE;
        if self.global_barriers.contains(&v) {
            semantics |= S::UNIFORM_MEMORY;
        }
        let (scope, semantics) = (self.u32(spirv::Scope::Workgroup as u32), self.u32(semantics.bits()));
        let operands = vec![Operand::IdScope(scope), Operand::IdScope(scope), Operand::IdMemorySemantics(semantics)];
        self.inst(spirv::Op::ControlBarrier, None, None, operands);
    }
}
