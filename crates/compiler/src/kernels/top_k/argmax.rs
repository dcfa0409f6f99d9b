//! The column of the largest value of each row: the greedy tail.
//!
//! ```text
//! row ─chunks, a workgroup each─► best (value, column) of each chunk ─one workgroup─► token, for host and next step
//! ```
//!
//! The lowest column wins among equals, whichever workgroup or lane has it. A short row is one chunk.

use crate::kernels::args::{Args, launch};
use crate::kernels::rows::workgroup;
use crate::template::{Ctx, Emission, Operand, Template};
use crate::{CompileError, LaunchSketch, Region};
use zinc_ir::graph::Op;
use zinc_ir::kernel::{Builder, Type, Val};
use zinc_ir::plan::CHAIN_ROWS;

pub(in crate::kernels) static ARGMAX: Template = Template {
    name: "argmax",
    summary: "column of the largest value",
    fused: false,
    matches: |f, node| matches!(f.op(node), Op::Argmax { .. }).then(|| vec![node]),
    emit,
};

/// Loads in flight per lane.
const LOADS: u32 = 4;

fn emit(ctx: &Ctx<'_>, region: &Region) -> Result<Emission, CompileError> {
    let out = region.last();
    let Op::Argmax { x } = *ctx.graph.op(out) else { return Err(ctx.unsupported(out, "pattern")) };
    let (rows, cols) = (ctx.rows(out), ctx.cols(x));
    let wide = if cols.is_multiple_of(4) { 4 } else { 1 };
    let lanes = workgroup(ctx, cols.div_ceil(wide * LOADS));
    let chunk = lanes * wide * LOADS;
    let chunks = cols.div_ceil(chunk);
    let sg = ctx.caps.subgroup_size;
    let first = launch(format!("argmax_{cols}"), lanes, sg, [chunks, rows, 1], |b, args| {
        let from = args.read("x", Operand::Value(x));
        let to = if chunks == 1 { End::token(args, ctx, region) } else { End::pair(args, chunks) };
        let best = chunk_best(b, from, cols, chunk, wide);
        to.store(b, workgroup_best(b, best, lanes / sg));
    });
    if chunks == 1 {
        return Ok(Emission { launches: vec![first], temps: vec![], cuts: None });
    }
    let temps = vec![rows as u64 * chunks as u64 * 8];
    Ok(Emission { launches: vec![first, merge(ctx, region, chunks)], temps, cuts: None })
}

/// A value and its column.
type Best<'b> = [Val<'b>; 2];

/// What every number beats.
fn none(b: &Builder) -> Best<'_> {
    [b.f32(f32::MIN), b.u32(u32::MAX)]
}

/// The best of a lane's part of a chunk, in ascending order of columns.
fn chunk_best<'b>(b: &'b Builder, from: Val<'b>, cols: u32, chunk: u32, wide: u32) -> Best<'b> {
    let (first, stride) = (b.tile(0) * (chunk / wide) + b.local_id(), chunk / wide / LOADS);
    let ty = Type::Vec(zinc_ir::kernel::Scalar::F32, wide as u8);
    // Beyond the end the last group is looked at again, which changes nothing.
    let groups: Vec<Val<'b>> = (0..LOADS).map(|i| (first + i * stride).min(b.u32(cols / wide - 1))).collect();
    let load = |g: &Val<'b>| b.load(ty, from, (b.tile(1) * cols + *g * wide) * 4, wide as u8 * 4);
    let values: Vec<Val<'b>> = groups.iter().map(load).collect();
    let mut best = none(b);
    for (group, values) in groups.into_iter().zip(values) {
        for i in 0..wide {
            let v = values.lane(i as u8);
            let better = v.gt(best[0]);
            best = [better.select(v, best[0]), better.select(group * wide + i, best[1])];
        }
    }
    best
}

/// The best of all lanes, known to the first one.
fn workgroup_best<'b>(b: &'b Builder, own: Best<'b>, subgroups: u32) -> Best<'b> {
    let top = own[0].subgroup_max();
    let index = own[0].eq(top).select(own[1], b.u32(u32::MAX)).subgroup_min();
    if subgroups == 1 {
        return [top, index];
    }
    let values = b.shared("best_value", Type::F32, subgroups);
    let columns = b.shared("best_column", Type::U32, subgroups);
    b.if_(b.lane().eq(0), || {
        b.shared_store(values, b.subgroup_id(), top);
        b.shared_store(columns, b.subgroup_id(), index);
    });
    b.barrier();
    let best = b.for_(b.u32(0), b.u32(subgroups), 1, &none(b), |s, best| {
        better_of(b, [best[0], best[1]], [b.shared_load(values, s), b.shared_load(columns, s)]).to_vec()
    });
    [best[0], best[1]]
}

fn better_of<'b>(b: &'b Builder, a: Best<'b>, c: Best<'b>) -> Best<'b> {
    let better = c[0].gt(a[0]).select(b.bool(true), c[0].eq(a[0]) & c[1].lt(a[1]));
    [better.select(c[0], a[0]), better.select(c[1], a[1])]
}

/// Best of the chunks' pairs: `[row]` values of all chunks, then their columns.
fn merge(ctx: &Ctx<'_>, region: &Region, chunks: u32) -> LaunchSketch {
    let sg = ctx.caps.subgroup_size;
    let lanes = workgroup(ctx, chunks);
    launch(format!("argmax_of_{chunks}_chunks"), lanes, sg, [1, ctx.rows(region.last()), 1], |b, args| {
        let from = args.read("x", Operand::Temp(0));
        let to = End::token(args, ctx, region);
        let own = b.for_(b.local_id(), b.u32(chunks), lanes, &none(b), |i, best| {
            let at = (b.tile(1) * (2 * chunks) + i) * 4;
            let pair = [b.load(Type::F32, from, at, 4), b.load(Type::U32, from, at + chunks * 4, 4)];
            better_of(b, [best[0], best[1]], pair).to_vec()
        });
        to.store(b, workgroup_best(b, [own[0], own[1]], lanes / sg));
    })
}

/// Where a workgroup's best goes.
enum End<'b> {
    Token(Token<'b>),
    Pair { to: Val<'b>, chunks: u32 },
}

impl<'b> End<'b> {
    fn token(args: &Args<'b>, ctx: &Ctx<'_>, region: &Region) -> End<'b> {
        End::Token(Token::declare(args, ctx, region))
    }

    fn pair(args: &Args<'b>, chunks: u32) -> End<'b> {
        End::Pair { to: args.write("y", Operand::Temp(0)), chunks }
    }

    fn store(self, b: &'b Builder, [value, column]: Best<'b>) {
        b.if_(b.local_id().eq(0), || match self {
            // Still `u32::MAX` if the row holds no number.
            End::Token(token) => token.store(b, b.tile(1), column),
            End::Pair { to, chunks } => {
                let at = (b.tile(1) * (2 * chunks) + b.tile(0)) * 4;
                b.store(to, at, value, 4);
                b.store(to, at + chunks * 4, column, 4);
            }
        });
    }
}

/// The two places of a chosen token: what the host reads, and what the next step's embedding may read.
pub(super) struct Token<'b> {
    output: Val<'b>,
    chain: Val<'b>,
    rows: u32,
}

impl<'b> Token<'b> {
    pub(super) fn declare(args: &Args<'b>, ctx: &Ctx<'_>, region: &Region) -> Token<'b> {
        let output = args.write("token", Operand::Value(region.last()));
        Token { output, chain: args.write("chain", Operand::Chain), rows: ctx.rows(region.last()) }
    }

    /// Stores the token of a row, by one lane.
    pub(super) fn store(&self, b: &'b Builder, row: Val<'b>, token: Val<'b>) {
        b.store(self.output, row * 4, token, 4);
        let chain = || b.store(self.chain, row * 4, token, 4);
        if self.rows <= CHAIN_ROWS { chain() } else { b.if_(row.lt(CHAIN_ROWS), chain) }
    }
}
