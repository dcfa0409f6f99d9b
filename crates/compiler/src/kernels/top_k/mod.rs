//! The k largest values of each row, best first: what sampling needs of the logits.
//!
//! ```text
//! row ─blocks of BLOCK─► bitonic sort in shared memory ─first k of each block─► … ─► k
//! ```
//!
//! A pass leaves k candidates of every block; passes repeat until one block is left. Larger values come first, lower
//! columns among equals; NaN counts as the smallest number. Where a token is to be drawn, the last pass does that too
//! (`sample`).

pub(super) mod argmax;
mod sample;

use self::argmax::Token;
use super::args::launch;
use super::rows::for_items;
use crate::template::{Ctx, Emission, Operand, Template};
use crate::{CompileError, LaunchSketch, Region};
use zinc_ir::graph::Op;
use zinc_ir::kernel::{Builder, Type, Val};
use zinc_ir::plan::Input;

pub(super) static TOP_K: Template = Template {
    name: "top_k",
    summary: "the k largest values of each row with their columns, or a token drawn from them",
    fused: false,
    matches: |f, node| matches!(f.op(node), Op::TopK { .. } | Op::Sample { .. }).then(|| vec![node]),
    emit,
};

/// Values a workgroup sorts; k is at most half of it, so that every pass shrinks the row.
const BLOCK: u32 = 1024;

/// One pass over rows of `n` candidates.
struct Pass<'a> {
    from: Operand,
    to: To<'a>,
    /// Candidates come with their columns, behind the values; in the first pass a candidate's place is its column.
    paired: bool,
    n: u32,
    k: u32,
}

/// What becomes of the candidates.
enum To<'a> {
    /// Values and columns are stored.
    Store(Operand),
    /// A token is drawn from them.
    Draw(&'a Region),
}

fn emit(ctx: &Ctx<'_>, region: &Region) -> Result<Emission, CompileError> {
    let out = region.last();
    let (x, k, draws) = match *ctx.graph.op(out) {
        Op::TopK { x, k } => (x, k, false),
        Op::Sample { x, k } => (x, k, true),
        _ => return Err(ctx.unsupported(out, "pattern")),
    };
    if k > BLOCK / 2 || k > ctx.cols(x) {
        return Err(ctx.unsupported(out, format!("k is {k}, but at most {}", (BLOCK / 2).min(ctx.cols(x)))));
    }
    let rows = ctx.rows(out);
    let (mut launches, mut temps) = (vec![], vec![]);
    let (mut from, mut n, mut paired) = (Operand::Value(x), ctx.cols(x), false);
    loop {
        let blocks = n.div_ceil(BLOCK);
        let to = match blocks {
            1 if draws => To::Draw(region),
            1 => To::Store(Operand::Value(out)),
            _ => To::Store(Operand::Temp(temps.len())),
        };
        launches.push(pass(ctx, rows, &Pass { from, to, paired, n, k }));
        if blocks == 1 {
            return Ok(Emission { launches, temps, cuts: None });
        }
        n = blocks * k;
        (from, paired) = (Operand::Temp(temps.len()), true);
        temps.push(rows as u64 * n as u64 * 8);
    }
}

fn pass(ctx: &Ctx<'_>, rows: u32, p: &Pass<'_>) -> LaunchSketch {
    let sg = ctx.caps.subgroup_size;
    let lanes = ctx.lanes(256);
    let blocks = p.n.div_ceil(BLOCK);
    let name = match p.to {
        To::Store(_) => format!("top_{}_of_{}", p.k, p.n),
        To::Draw(_) => format!("sample_{}_of_{}", p.k, p.n),
    };
    launch(name, lanes, sg, [blocks, rows, 1], |b, args| {
        let x = args.read("x", p.from);
        let end = match p.to {
            To::Store(to) => End::Store(args.write("y", to)),
            To::Draw(region) => {
                End::Draw(args.read("draws", Operand::Input(Input::Draws)), Token::declare(args, ctx, region))
            }
        };
        let values = b.shared("values", Type::F32, BLOCK);
        let columns = b.shared("columns", Type::U32, BLOCK);
        let (block, row) = (b.tile(0), b.tile(1));
        let stride = if p.paired { 2 * p.n } else { p.n };
        for_items(b, lanes, BLOCK, |i| {
            let at = block * BLOCK + i;
            let candidate = b.if_else(
                at.lt(p.n),
                || {
                    let v = b.load(Type::F32, x, (row * stride + at) * 4, 4);
                    let number = v.eq(v).select(v.max(b.f32(f32::MIN)), b.f32(f32::MIN));
                    let column = if p.paired { b.load(Type::U32, x, (row * stride + p.n + at) * 4, 4) } else { at };
                    vec![number, column]
                },
                || vec![b.f32(f32::MIN), b.u32(u32::MAX)],
            );
            b.shared_store(values, i, candidate[0]);
            b.shared_store(columns, i, candidate[1]);
        });
        sort(b, lanes, values, columns);
        match end {
            End::Store(y) => {
                let kept = blocks * p.k;
                for_items(b, lanes, p.k, |i| {
                    let at = row * (2 * kept) + block * p.k + i;
                    b.store(y, at * 4, b.shared_load(values, i), 4);
                    b.store(y, (at + kept) * 4, b.shared_load(columns, i), 4);
                });
            }
            End::Draw(draws, token) => {
                let sorted = sample::Sorted { values, columns, k: p.k };
                let drawn = sample::draw(b, lanes, lanes / sg, &sorted, &sample::Draw::load(b, draws, row));
                b.if_(b.local_id().eq(0), || token.store(b, row, drawn));
            }
        }
    })
}

/// Arguments of what follows the sort.
enum End<'b> {
    Store(Val<'b>),
    Draw(Val<'b>, Token<'b>),
}

/// Bitonic sort of the block, best first (Batcher 1968): log² steps of disjoint exchanges with a barrier before each.
fn sort(b: &Builder, lanes: u32, values: u32, columns: u32) {
    let mut size = 2;
    while size <= BLOCK {
        let mut distance = size / 2;
        while distance > 0 {
            b.barrier();
            for_items(b, lanes, BLOCK / 2, |pair| exchange(b, values, columns, pair, size, distance));
            distance /= 2;
        }
        size *= 2;
    }
    b.barrier();
}

fn exchange<'b>(b: &'b Builder, values: u32, columns: u32, pair: Val<'b>, size: u32, distance: u32) {
    let i = pair / distance * (2 * distance) + pair % distance;
    let j = i + distance;
    let [(u, cu), (v, cv)] = [i, j].map(|at| (b.shared_load(values, at), b.shared_load(columns, at)));
    let second_first = v.gt(u).select(b.bool(true), v.eq(u) & cv.lt(cu));
    // Alternate runs are sorted the other way round, so that two neighbours form a bitonic sequence.
    let descending = (i & size).eq(0);
    let swap = descending.select(second_first, !second_first);
    b.if_(swap, || {
        b.shared_store(values, i, v);
        b.shared_store(values, j, u);
        b.shared_store(columns, i, cv);
        b.shared_store(columns, j, cu);
    });
}
