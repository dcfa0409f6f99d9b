//! What launches move and compute at least: weights, K and V, and values once each.
//!
//! A launch is charged for what its arguments name, and for the arithmetic of the weights and caches among them: of a
//! region with several launches each has its own share. Step inputs (ids, page tables, rotations) are a few words and
//! left out.

use crate::Region;
use crate::template::{Access, Ctx, Operand};
use zinc_ir::graph::{NodeId, Op, Routing, WeightId};
use zinc_ir::plan::Cost;

/// Of a region as a whole, for devices that run it themselves; and the attention in it.
pub(crate) fn of_region(ctx: &Ctx<'_>, region: &Region) -> (Cost, Option<NodeId>) {
    let mut args: Vec<(Operand, Access)> = vec![];
    for &node in &region.nodes {
        let op = ctx.graph.op(node);
        let outside = op.inputs().into_iter().filter(|input| !region.nodes.contains(input));
        args.extend(outside.map(|input| (Operand::Value(input), Access::Read)));
        args.extend(op.weight().map(|w| (Operand::Weight(w), Access::Read)));
        match *op {
            Op::KvAppend { layer, .. } => {
                args.extend([(Operand::KvK(layer), Access::Write), (Operand::KvV(layer), Access::Write)]);
            }
            Op::Attention { append, .. } => {
                if let Op::KvAppend { layer, .. } = *ctx.graph.op(append) {
                    args.extend([(Operand::KvK(layer), Access::Read), (Operand::KvV(layer), Access::Read)]);
                }
            }
            _ => {}
        }
    }
    args.extend(region.gives.iter().map(|node| (Operand::Value(*node), Access::Write)));
    of_launch(ctx, region, &args, &[])
}

/// Of a launch with these arguments; and the attention whose K and V it reads.
pub(crate) fn of_launch(
    ctx: &Ctx<'_>,
    region: &Region,
    args: &[(Operand, Access)],
    temps: &[u64],
) -> (Cost, Option<NodeId>) {
    let mut cost = Cost::default();
    let attends = region.nodes.iter().copied().find(|node| match *ctx.graph.op(*node) {
        Op::Attention { append, .. } => match *ctx.graph.op(append) {
            Op::KvAppend { layer, .. } => args.contains(&(Operand::KvK(layer), Access::Read)),
            _ => false,
        },
        _ => false,
    });
    for (i, arg) in args.iter().enumerate() {
        if args[..i].contains(arg) {
            continue;
        }
        let once = moved(ctx, region, *arg, temps);
        cost.bytes += if arg.1 == Access::ReadWrite { 2 * once } else { once };
    }
    if let Some(Op::Attention { spec, .. }) = attends.map(|node| ctx.graph.op(node)) {
        let attention = Cost::of_attention(spec, ctx.kv.types, &ctx.bucket);
        cost.bytes += attention.bytes;
        cost.flops += attention.flops;
    }
    cost.flops += region.nodes.iter().map(|node| products(ctx, *node, args)).sum::<u64>();
    (cost, attends)
}

/// Bytes of one argument. K and V that are read are counted with their attention.
fn moved(ctx: &Ctx<'_>, region: &Region, (operand, access): (Operand, Access), temps: &[u64]) -> u64 {
    match operand {
        Operand::Value(node) => value(ctx, region, node),
        Operand::Weight(w) => weight(ctx, region, w),
        Operand::KvK(layer) | Operand::KvV(layer) if access == Access::Write => {
            let area = ctx.kv.layers[layer as usize];
            let ty = if matches!(operand, Operand::KvK(_)) { ctx.kv.types.k } else { ctx.kv.types.v };
            ctx.bucket.tokens as u64 * area.heads as u64 * ty.bytes(area.head_dim) as u64
        }
        Operand::KvK(_) | Operand::KvV(_) | Operand::Input(_) | Operand::Chain | Operand::Counters(_) => 0,
        Operand::Temp(i) => temps.get(i).copied().unwrap_or(0),
    }
}

/// A value; only the rows that are wanted, where the region selects some.
fn value(ctx: &Ctx<'_>, region: &Region, node: NodeId) -> u64 {
    let selected = region.nodes.iter().any(|n| matches!(*ctx.graph.op(*n), Op::SelectRows { x } if x == node));
    if !selected {
        return ctx.value_bytes(node);
    }
    let rows = ctx.bucket.tokens.min(ctx.bucket.outputs) as u64;
    ctx.value_bytes(node) / ctx.rows(node).max(1) as u64 * rows
}

/// A weight; only the rows that are picked, where the region picks some, and of experts' matrices as many as can be
/// chosen: of few rows, most have experts of their own.
fn weight(ctx: &Ctx<'_>, region: &Region, w: WeightId) -> u64 {
    let weight = ctx.graph.weight_of(w);
    let by_experts = region.nodes.iter().find_map(|n| match *ctx.graph.op(*n) {
        Op::ExpertMatMul { route, weight, .. } if weight == w => Some((ctx.rows(*n), ctx.graph.routing(route))),
        _ => None,
    });
    if let Some((rows, Routing { experts, used })) = by_experts {
        return weight.bytes() / experts as u64 * (rows as u64 * used as u64).min(experts as u64);
    }
    let picked = region.nodes.iter().any(|n| matches!(*ctx.graph.op(*n), Op::Embed { table } if table == w));
    match picked {
        true => (ctx.bucket.tokens.min(weight.rows) as u64) * (weight.bytes() / weight.rows.max(1) as u64),
        false => weight.bytes(),
    }
}

/// Operations of a node's product, if its weight is among the arguments.
fn products(ctx: &Ctx<'_>, node: NodeId, args: &[(Operand, Access)]) -> u64 {
    match *ctx.graph.op(node) {
        Op::MatMul { weight: w, .. } if args.contains(&(Operand::Weight(w), Access::Read)) => {
            let weight = ctx.graph.weight_of(w);
            2 * ctx.rows(node) as u64 * weight.rows as u64 * weight.cols as u64
        }
        Op::ExpertMatMul { weight: w, route, .. } if args.contains(&(Operand::Weight(w), Access::Read)) => {
            let (weight, Routing { experts, used }) = (ctx.graph.weight_of(w), ctx.graph.routing(route));
            2 * ctx.rows(node) as u64 * used as u64 * (weight.rows / experts) as u64 * weight.cols as u64
        }
        _ => 0,
    }
}
