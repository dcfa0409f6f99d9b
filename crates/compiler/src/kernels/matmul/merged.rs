//! Products of the same rows as one launch: Q, K and V; gate and up where they have two formats.
//!
//! ```text
//! x ─┬─ matmul W0 ─[bias]─► y0      grid: slices × (tiles of W0 │ tiles of W1 │ …)
//!    ├─ matmul W1 ─[bias]─► y1
//!    └─ …
//! ```
//!
//! Of few rows such products are short: apart, each pays for a launch and for a device that fills and empties.

use super::{Epilogue, Size, Way, narrow, stage_of};
use crate::kernels::args::{Args, launch};
use crate::kernels::{arrival, dot, matvec, tables};
use crate::select::Finder;
use crate::template::{Ctx, Emission, Operand, Template};
use crate::{CompileError, Region};
use zinc_ir::graph::{NodeId, Op, Weight};
use zinc_ir::kernel::{Builder, Val};

pub(in crate::kernels) static MERGED: Template = Template {
    name: "matmul_merged",
    summary: "x · (W0, W1, …) [+ biases] of a batch, in one launch",
    fused: true,
    matches,
    emit,
};

/// A product of `x` that may be merged: nothing that reads it is still to be covered.
fn sibling(f: &Finder<'_>, product: NodeId, x: NodeId) -> Option<Vec<NodeId>> {
    let Op::MatMul { x: input, weight } = *f.op(product) else { return None };
    if input != x
        || !f.open(product)
        || f.ctx.graph.is_router(product)
        || !dot::supported(f.ctx.graph.weight_of(weight))
    {
        return None;
    }
    let bias = f.users(product).find(|user| matches!(f.op(*user), Op::Bias { .. }) && f.open(*user));
    let nodes = match bias {
        Some(bias) if f.private(product, &[bias]) => vec![product, bias],
        _ => vec![product],
    };
    let end = *nodes.last()?;
    f.users(end).all(|user| !f.open(user)).then_some(nodes)
}

fn matches(f: &Finder<'_>, node: NodeId) -> Option<Vec<NodeId>> {
    if f.few_rows(node) {
        return None;
    }
    let mut last = vec![];
    let product = matvec::match_product(f, node, &mut last)?;
    let Op::MatMul { x, .. } = *f.op(product) else { return None };
    let siblings: Vec<Vec<NodeId>> = f.users(x).filter_map(|user| sibling(f, user, x)).collect();
    let weights: Vec<&Weight> = siblings.iter().map(|nodes| weight_of(f.ctx, nodes[0])).collect();
    let with_it = siblings.iter().any(|nodes| nodes.contains(&node));
    let narrow = siblings.len() > 1 && with_it && rule(f.ctx, size_of(&weights, f.ctx.rows(node))).is_some();
    narrow.then(|| siblings.concat())
}

fn weight_of<'a>(ctx: &Ctx<'a>, product: NodeId) -> &'a Weight {
    let Op::MatMul { weight, .. } = *ctx.graph.op(product) else { unreachable!("a product") };
    ctx.graph.weight_of(weight)
}

/// All products as one.
fn size_of(weights: &[&Weight], rows: u32) -> Size {
    // As many tiles as the weights have one by one, whatever tile is chosen.
    let features = weights.iter().map(|w| w.rows.next_multiple_of(narrow::MOST_FEATURES)).sum();
    Size { features, rows, cols: weights[0].cols, sets: 1, groups: 1, table_bytes: tables::all_small_bytes(weights) }
}

/// The tile that all of the products use, if they are few rows.
fn rule(ctx: &Ctx<'_>, size: Size) -> Option<narrow::Tile> {
    match Way::choose(ctx, size, false)? {
        Way::Narrow(tile) => Some(tile),
        _ => None,
    }
}

fn emit(ctx: &Ctx<'_>, region: &Region) -> Result<Emission, CompileError> {
    let products = region.nodes.iter().copied().filter(|n| matches!(ctx.graph.op(*n), Op::MatMul { .. }));
    let regions: Vec<Region> = products.map(|product| region_of(ctx, region, product)).collect();
    let weights: Vec<&Weight> = regions.iter().map(|r| weight_of(ctx, r.nodes[0])).collect();
    let rows = ctx.rows(region.last());
    let size = size_of(&weights, rows);
    let tile = rule(ctx, size).ok_or_else(|| ctx.unsupported(region.last(), "no tile fits the workgroup memory"))?;
    let (tile, cuts) = tile.tuned(ctx, size, super::key(region, &weights, size));
    let tiles = weights.iter().map(|w| w.rows.div_ceil(tile.features())).sum();
    let temps = if tile.slices() > 1 { vec![tile.handed_over(tiles)] } else { vec![] };
    let sizes = weights.iter().map(|w| w.rows.to_string()).collect::<Vec<_>>().join("_");
    let formats = weights.iter().map(|w| w.format.name.to_lowercase()).collect::<Vec<_>>().join("_");
    let way = Way::Narrow(tile);
    let name = format!("matmul_merged_{formats}_{sizes}x{}x{rows}_{}", weights[0].cols, way.name());
    let product = launch(name, tile.lanes(), tile.subgroup(), [tile.along(), tiles, 1], |b, args| {
        let slices = (!temps.is_empty()).then(|| narrow::Slices {
            partial: args.write_read("partial", Operand::Temp(0)),
            counters: args.read_write("counters", Operand::Counters(tile.counters(tiles))),
            arrived: arrival::memory(b),
        });
        tables::fill_all_small(b, &weights, tile.lanes());
        let merged = Merged { b, args, ctx, tile: &tile, way: &way, slices: slices.as_ref(), memory: tile.memory(b) };
        merged.products(&regions, 0);
    });
    Ok(Emission { launches: vec![product], temps, cuts: Some(cuts) })
}

/// The region that `product`, with its bias, would be alone.
fn region_of(ctx: &Ctx<'_>, region: &Region, product: NodeId) -> Region {
    let bias = |n: &NodeId| matches!(*ctx.graph.op(*n), Op::Bias { x, .. } if x == product);
    let mut nodes = vec![product];
    nodes.extend(region.nodes.iter().copied().filter(bias));
    let gives = region.gives.iter().copied().filter(|n| nodes.contains(n)).collect();
    Region { template: region.template, nodes, gives }
}

/// The kernel under construction.
struct Merged<'a, 'b> {
    b: &'b Builder,
    args: &'a Args<'b>,
    ctx: &'a Ctx<'a>,
    tile: &'a narrow::Tile,
    way: &'a Way,
    slices: Option<&'a narrow::Slices<'b>>,
    memory: u32,
}

impl<'b> Merged<'_, 'b> {
    /// The product that this tile belongs to, of those whose tiles begin at `first`.
    fn products(&self, regions: &[Region], first: u32) {
        let b = self.b;
        let [region, rest @ ..] = regions else { return };
        let next = first + weight_of(self.ctx, region.nodes[0]).rows.div_ceil(self.tile.features());
        let tile = b.tile(1) - first;
        match rest {
            [] => self.product(region, tile),
            _ => {
                b.if_else(
                    b.tile(1).lt(next),
                    || {
                        self.product(region, tile);
                        vec![]
                    },
                    || {
                        self.products(rest, next);
                        vec![]
                    },
                );
            }
        }
    }

    /// Tile `tile` of a product.
    fn product(&self, region: &Region, tile: Val<'b>) {
        let (b, ctx) = (self.b, self.ctx);
        let parts = matvec::parts(ctx, region);
        let weight = ctx.graph.weight_of(parts.products[0]);
        let (features, rows) = (weight.rows, ctx.rows(parts.out));
        let size = Size { features, rows, cols: weight.cols, sets: 1, groups: 1, table_bytes: 0 };
        let stage = stage_of(b, self.args, ctx, &parts, size, self.way, tile);
        let end = Epilogue::new(self.args, region, &parts, size, stage.lines.last, self.way);
        narrow::body(b, self.tile, &stage, &end, self.slices, self.memory);
    }
}
