//! Writes out the loops of a kernel that read weights, whatever template made them.
//!
//! ```text
//! for i from 0 to 3 { body(i) }   ─►   body(0) body(1) body(2)
//! ```

use std::collections::HashMap;
use zinc_ir::kernel::{Block, Kernel, Op, Type, Value};

/// The kernel without loops over weights.
///
/// # Panics
/// If the trip count of such a loop is no constant.
pub(crate) fn straight(kernel: &Kernel) -> Kernel {
    Writer::write(kernel, false)
}

/// The kernel without loops over weights, and without other loops in them.
///
/// # Panics
/// As [`straight`].
pub(crate) fn all_straight(kernel: &Kernel) -> Kernel {
    Writer::write(kernel, true)
}

/// Does a block read weights?
pub(crate) fn weighs(kernel: &Kernel, block: &Block) -> bool {
    block.iter().any(|v| match kernel.op(*v) {
        Op::Load { base, .. } => is_weight(kernel, *base),
        Op::If { then, otherwise, .. } => weighs(kernel, then) || weighs(kernel, otherwise),
        Op::For { body, .. } => weighs(kernel, body),
        _ => false,
    })
}

/// An argument with weights, or a choice between such.
fn is_weight(kernel: &Kernel, base: Value) -> bool {
    match kernel.op(base) {
        Op::Arg(i) => kernel.args[*i as usize].name.starts_with("weight"),
        Op::Select(_, a, b) => is_weight(kernel, *a) || is_weight(kernel, *b),
        _ => false,
    }
}

struct Writer {
    kernel: Kernel,
    /// What a value of the old kernel is called at this place.
    names: HashMap<Value, Value>,
    /// Also write out loops that read no weights, inside of such that do.
    all: bool,
    inside: bool,
}

impl Writer {
    fn write(kernel: &Kernel, all: bool) -> Kernel {
        let mut writer = Writer { kernel: kernel.clone(), names: HashMap::new(), all, inside: false };
        writer.kernel.body = writer.block(&kernel.body);
        writer.kernel
    }

    fn name(&self, v: Value) -> Value {
        self.names.get(&v).copied().unwrap_or(v)
    }

    fn push(&mut self, op: Op, ty: Type) -> Value {
        self.kernel.ops.push(op);
        self.kernel.types.push(ty);
        Value(self.kernel.ops.len() as u32 - 1)
    }

    fn constant(&self, v: Value) -> u64 {
        match self.kernel.op(v) {
            Op::Const(bits) => *bits,
            other => panic!("{}: a loop over weights up to {other:?}", self.kernel.name),
        }
    }

    /// Fresh parameters in place of these.
    fn params(&mut self, old: &mut [Value]) {
        for v in old {
            let new = self.push(Op::Param, self.kernel.ty(*v));
            self.names.insert(*v, new);
            *v = new;
        }
    }

    fn renamed(&self, values: &[Value]) -> Vec<Value> {
        values.iter().map(|v| self.name(*v)).collect()
    }

    fn block(&mut self, old: &Block) -> Block {
        let mut out = vec![];
        for &v in old {
            let op = self.kernel.op(v).clone();
            match op {
                Op::For { ref body, .. } if self.all && self.inside || weighs(&self.kernel, body) => {
                    let inside = std::mem::replace(&mut self.inside, true);
                    self.written_out(op, &mut out);
                    self.inside = inside;
                }
                op => {
                    let ty = self.kernel.ty(v);
                    let op = self.copied(op);
                    let new = self.push(op, ty);
                    self.names.insert(v, new);
                    out.push(new);
                }
            }
        }
        out
    }

    fn written_out(&mut self, op: Op, out: &mut Block) {
        let Op::For { start, end, step, index, init, carried, body, body_yield, results, .. } = op else { return };
        let [mut at, end, step] = [start, end, step].map(|v| self.constant(v));
        let mut state = self.renamed(&init);
        while at < end {
            let now = self.push(Op::Const(at), Type::U32);
            self.names.insert(index, now);
            self.names.extend(carried.iter().copied().zip(state));
            out.extend(self.block(&body));
            state = self.renamed(&body_yield);
            at += step;
        }
        self.names.extend(results.into_iter().zip(state));
    }

    /// An operation with its operands renamed and its blocks written out.
    fn copied(&mut self, mut op: Op) -> Op {
        match &mut op {
            Op::If { cond, then, then_yield, otherwise, else_yield, results } => {
                *cond = self.name(*cond);
                *then = self.block(then);
                *then_yield = self.renamed(then_yield);
                *otherwise = self.block(otherwise);
                *else_yield = self.renamed(else_yield);
                self.params(results);
            }
            Op::For { start, end, step, index, init, carried, body, body_yield, results, .. } => {
                [start, end, step].into_iter().for_each(|v| *v = self.name(*v));
                *init = self.renamed(init);
                self.params(std::slice::from_mut(index));
                self.params(carried);
                *body = self.block(body);
                *body_yield = self.renamed(body_yield);
                self.params(results);
            }
            simple => simple.operands_mut().into_iter().for_each(|v| *v = self.name(*v)),
        }
        op
    }
}

#[test]
fn loops_over_weights_are_written_out() {
    use zinc_ir::kernel::{ArgKind, Builder, verify};
    let b = Builder::new("sample", 32, 32);
    let (w, x, y) = (b.arg("weight", ArgKind::Read), b.arg("x", ArgKind::Read), b.arg("y", ArgKind::Write));
    let sums = b.for_(b.u32(0), b.u32(6), 2, &[b.u32(1)], |i, sum| {
        let inner = b.for_(b.u32(0), b.u32(4), 1, &[sum[0]], |j, s| vec![s[0] + b.load(Type::U32, x, j * 4, 4)]);
        vec![inner[0] + b.load(Type::U32, w, i * 4, 4)]
    });
    b.store(y, b.local_id() * 4, sums[0], 4);
    let looped = b.finish();
    let kernel = straight(&looped);
    verify(&kernel).expect("well formed");
    let text = kernel.to_string();
    let count = |what: &str| text.matches(what).count();
    assert_eq!([count("for "), count("[$weight"), count("[$x")], [3, 3, 3], "{text}");
    let kernel = all_straight(&looped);
    verify(&kernel).expect("well formed");
    let text = kernel.to_string();
    let count = |what: &str| text.matches(what).count();
    assert_eq!([count("for "), count("[$weight"), count("[$x")], [0, 3, 12], "{text}");
}
