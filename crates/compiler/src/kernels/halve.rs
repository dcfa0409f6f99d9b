//! Rows as halves: the inputs of products on matrix units.
//!
//! Producers write them in their epilogue with [`store`]; the template here is for values whose producer does not.

use super::args::single;
use super::rows::workgroup;
use crate::select::Finder;
use crate::template::{Ctx, Emission, Operand, Template};
use crate::{CompileError, Region};
use zinc_ir::device::{Caps, MatrixShape};
use zinc_ir::graph::{NodeId, Op};
use zinc_ir::kernel::{Builder, Scalar, Type, Val};
use zinc_ir::quant::UNIT;

pub(super) static HALVE: Template = Template {
    name: "halve",
    summary: "rows as halves",
    fused: false,
    matches: |f, node| matches!(f.op(node), Op::Halve { .. }).then(|| vec![node]),
    emit,
};

/// The largest finite half.
const LARGEST: f32 = 65504.0;

/// The shapes of matrices that products of halves use: sums in singles, and columns that divide a unit.
pub(crate) fn shapes(caps: &Caps) -> impl Iterator<Item = MatrixShape> + '_ {
    let usable = |s: &&MatrixShape| {
        s.input == Scalar::F16 && s.acc == Scalar::F32 && s.k.is_multiple_of(8) && UNIT.is_multiple_of(s.k as u32)
    };
    caps.matrices.iter().filter(usable).copied()
}

/// The value as halves that a region ends in, if it does: (value behind it, its node).
pub(super) fn ending(f: &Finder<'_>, node: NodeId) -> Option<(NodeId, NodeId)> {
    match *f.op(node) {
        Op::Halve { x } if f.ctx.choices.fuse && f.open(x) && !f.ctx.leaves(x) => Some((x, node)),
        _ => None,
    }
}

/// F32 as halves. Beyond the range of halves a sum is wrong either way; infinities would make it NaN.
pub(super) fn rounded<'b>(b: &'b Builder, value: Val<'b>) -> Val<'b> {
    let lanes = value.ty().lanes();
    let bound = |x: f32| b.f32(x).splat(lanes);
    value.min(bound(LARGEST)).max(bound(-LARGEST)).to(Scalar::F16)
}

/// Stores F32 as halves, from element `at` of `base` on, which is a multiple of their number.
pub(super) fn store<'b>(b: &'b Builder, base: Val<'b>, at: Val<'b>, value: Val<'b>) {
    b.store(base, at * 2, rounded(b, value), value.ty().lanes() * 2);
}

fn emit(ctx: &Ctx<'_>, region: &Region) -> Result<Emission, CompileError> {
    let out = region.last();
    let Op::Halve { x } = *ctx.graph.op(out) else { return Err(ctx.unsupported(out, "pattern")) };
    let cols = ctx.cols(out);
    let wide = if cols.is_multiple_of(4) { 4 } else { 1 };
    let lanes = workgroup(ctx, cols / wide);
    let grid = [(cols / wide).div_ceil(lanes), ctx.rows(out), 1];
    Ok(single(format!("halve_{cols}"), lanes, ctx.caps.subgroup_size, grid, |b, args| {
        let from = args.read("x", Operand::Value(x));
        let y = args.write("y", Operand::Value(out));
        let item = b.tile(0) * lanes + b.local_id();
        b.if_(item.lt(cols / wide), || {
            let at = b.tile(1) * cols + item * wide;
            store(b, y, at, b.load(Type::Vec(Scalar::F32, wide as u8), from, at * 4, wide as u8 * 4));
        });
    }))
}
