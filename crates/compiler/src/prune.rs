//! Drops operations of a finished kernel whose values nobody reads.
//!
//! ```text
//! stores, atomics, barriers ─► what they read ─► what that reads …;   the rest leaves its block
//! ```
//!
//! Templates may then ask a decoder for a column number without paying for its loads.

use zinc_ir::kernel::{Block, Kernel, Op, Value};

/// The kernel without dead operations.
pub(crate) fn prune(mut kernel: Kernel) -> Kernel {
    let mut body = std::mem::take(&mut kernel.body);
    let mut live = vec![false; kernel.ops.len()];
    block(&mut kernel.ops, &mut live, &mut body);
    kernel.body = body;
    kernel
}

/// One pass from the end is enough: values are defined before use, and what a loop carries round is kept as a whole.
fn block(ops: &mut [Op], live: &mut [bool], body: &mut Block) {
    let mut kept = vec![];
    for &v in body.iter().rev() {
        let at = v.0 as usize;
        if !(live[at] || has_effect(ops, v) || results(&ops[at]).iter().any(|r| live[r.0 as usize])) {
            continue;
        }
        kept.push(v);
        let mut mark = |v: &Value| live[v.0 as usize] = true;
        ops[at].for_each_operand(|o| mark(&o));
        let mut op = std::mem::replace(&mut ops[at], Op::Param);
        match &mut op {
            Op::If { then, then_yield, otherwise, else_yield, .. } => {
                then_yield.iter().chain(else_yield.iter()).for_each(mark);
                block(ops, live, then);
                block(ops, live, otherwise);
            }
            Op::For { body, body_yield, .. } => {
                body_yield.iter().for_each(mark);
                block(ops, live, body);
            }
            _ => {}
        }
        ops[at] = op;
    }
    kept.reverse();
    *body = kept;
}

fn results(op: &Op) -> &[Value] {
    match op {
        Op::If { results, .. } | Op::For { results, .. } => results,
        _ => &[],
    }
}

/// Does the operation change memory, or order it?
fn has_effect(ops: &[Op], v: Value) -> bool {
    let any = |block: &Block| block.iter().any(|v| has_effect(ops, *v));
    match &ops[v.0 as usize] {
        Op::Store { .. }
        | Op::AtomicAdd { .. }
        | Op::SharedStore { .. }
        | Op::MatrixStore { .. }
        | Op::Barrier
        | Op::SubgroupBarrier
        | Op::GridBarrier { .. } => true,
        Op::If { then, otherwise, .. } => any(then) || any(otherwise),
        Op::For { body, .. } => any(body),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zinc_ir::kernel::{ArgKind, Builder, Type, verify};

    #[test]
    fn only_what_is_read_stays() {
        let b = Builder::new("sample", 32, 32);
        let (x, y) = (b.arg("x", ArgKind::Read), b.arg("y", ArgKind::Write));
        let unused = b.load(Type::U32, x, b.u32(64), 4);
        let _ = unused + 1;
        let sums = b.for_(b.u32(0), b.u32(4), 1, &[b.u32(0)], |i, sum| {
            let _ = b.load(Type::U32, x, i * 8, 4);
            vec![sum[0] + b.load(Type::U32, x, i * 4, 4)]
        });
        // Nobody reads what this loop gives, and it stores nothing.
        b.for_(b.u32(0), b.u32(4), 1, &[b.u32(0)], |i, sum| vec![sum[0] + b.load(Type::U32, x, i * 4, 4)]);
        b.barrier();
        b.store(y, b.local_id() * 4, sums[0], 4);
        let kernel = prune(b.finish());
        verify(&kernel).expect("still well formed");
        let text = kernel.to_string();
        let count = |what: &str| text.matches(what).count();
        assert_eq!([count("load"), count("for "), count("barrier"), count("store")], [1, 1, 1, 1], "{text}");
    }
}
