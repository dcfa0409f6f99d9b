//! Experts of many rows: tiled products over rows sorted by expert.
//!
//! ```text
//! logits ─► [route] ─► sort ─► tiles of one expert's rows
//! x ─[rms_norm]─rows of a tile─► gate, up ─glu─► h [sorted rows][ffn] ─► down ─► d [sorted rows][cols]
//! d ─weighted sums─[+ residual]─► y [tokens][cols]
//! ```
//!
//! One region, six launches at most, whatever the number of experts. A launch has as many tiles as there can be; those
//! without rows end at once. What lies between the launches is scratch of the region.

use super::stage::{Lines, Picks, Stage};
use super::{Epilogue, Size, Way};
use crate::kernels::args::launch;
use crate::kernels::expert_order::{ExpertTile, Order, TILE_BYTES, places};
use crate::kernels::{experts, route, rows, tables};
use crate::select::Finder;
use crate::template::{Ctx, Emission, LaunchSketch, Operand, Template};
use crate::{CompileError, Region};
use zinc_ir::graph::{Activation, NodeId, Op, Routing, WeightId};

pub(in crate::kernels) static SORTED: Template = Template {
    name: "experts_sorted",
    summary: "[route] [norm] gate, up, gated unit, down and weighted sum of experts [+ residual], many rows",
    fused: true,
    matches,
    emit,
};

/// So many experts for each row of one that is used are too many: sorting does not pay.
const EXPERTS_PER_ROW: u32 = 4;

/// Are there rows enough to sort them?
fn many(f: &Finder<'_>, node: NodeId, Routing { experts, used }: Routing) -> bool {
    let pays = experts as u64 <= EXPERTS_PER_ROW as u64 * used as u64 * f.ctx.rows(node) as u64;
    !f.few_rows(node) && (pays || f.ctx.choices.invariant)
}

fn matches(f: &Finder<'_>, node: NodeId) -> Option<Vec<NodeId>> {
    let sum = match *f.op(node) {
        Op::Add { b, .. } if f.private(b, &[node]) => b,
        _ => node,
    };
    let Op::ExpertSum { x: down, route } = *f.op(sum) else { return None };
    if !many(f, node, f.ctx.graph.routing(route)) {
        return None;
    }
    let (h, same_route, _) = experts::product(f, down)?;
    let Op::Glu { gate, up, .. } = *f.op(h) else { return None };
    let ((x, gate_route, w), (other_x, up_route, other)) = (experts::product(f, gate)?, experts::product(f, up)?);
    let (w, other) = (f.ctx.graph.weight_of(w), f.ctx.graph.weight_of(other));
    // Gate and up share the staged inputs, as those of `super::GLU`.
    let alike = gate != up && x == other_x && w.format == other.format && w.cols == other.cols;
    let shared = w.cols == f.ctx.cols(x) && f.ctx.quantized(x).is_none() && f.ctx.quantized(h).is_none();
    if !alike || !shared || [same_route, gate_route, up_route] != [route; 3] {
        return None;
    }
    let mut nodes = vec![node, sum, down, h, gate, up];
    if ![down, h, gate, up].iter().all(|n| f.private(*n, &nodes)) {
        return None;
    }
    if f.private(route, &nodes) {
        nodes.push(route);
    }
    if matches!(f.op(x), Op::RmsNorm { .. }) && f.private(x, &nodes) {
        nodes.push(x);
    }
    Mixture::of(f.ctx, &nodes)?.plan(f.ctx).map(|_| nodes)
}

/// What a region computes, read back from its nodes.
struct Mixture {
    /// The value that experts read.
    x: NodeId,
    /// It is a norm that the region computes, of this value.
    norm_of: Option<NodeId>,
    route: NodeId,
    /// The region chooses the experts.
    chooses: bool,
    gate: WeightId,
    up: WeightId,
    activation: Activation,
    down: WeightId,
    residual: Option<NodeId>,
    out: NodeId,
}

impl Mixture {
    fn of(ctx: &Ctx<'_>, nodes: &[NodeId]) -> Option<Mixture> {
        let product = |node: NodeId| match *ctx.graph.op(node) {
            Op::ExpertMatMul { x, weight, .. } => Some((x, weight)),
            _ => None,
        };
        let find = |f: &dyn Fn(&Op) -> bool| nodes.iter().copied().find(|n| f(ctx.graph.op(*n)));
        let out = *nodes.iter().max()?;
        let residual = match *ctx.graph.op(out) {
            Op::Add { a, .. } => Some(a),
            _ => None,
        };
        let Op::ExpertSum { x: last, route } = *ctx.graph.op(find(&|op| matches!(op, Op::ExpertSum { .. }))?) else {
            return None;
        };
        let (h, down) = product(last)?;
        let Op::Glu { gate, up, act } = *ctx.graph.op(h) else { return None };
        let ((x, gate), (_, up)) = (product(gate)?, product(up)?);
        let norm_of = match *ctx.graph.op(x) {
            Op::RmsNorm { x: of, .. } if nodes.contains(&x) => Some(of),
            _ => None,
        };
        let chooses = nodes.contains(&route);
        Some(Mixture { x, norm_of, route, chooses, gate, up, activation: act, down, residual, out })
    }

    fn plan(&self, ctx: &Ctx<'_>) -> Option<Plan> {
        let routing = ctx.graph.routing(self.route);
        let rows = ctx.rows(self.out).checked_mul(routing.used)?;
        let size = |weight: WeightId, sets| {
            let w = ctx.graph.weight_of(weight);
            let (features, table_bytes) = (w.rows / routing.experts, tables::small_bytes(w.format));
            Size { features, rows, cols: w.cols, sets, groups: routing.experts, table_bytes }
        };
        let sizes = [size(self.gate, 2), size(self.down, 1)];
        // Offsets are U32.
        let addressable = sizes.iter().all(|s| rows as u64 * s.features as u64 * 4 <= u32::MAX as u64);
        let ways = [Way::choose(ctx, sizes[0], false)?, Way::choose(ctx, sizes[1], false)?];
        addressable.then_some(Plan { rows, sizes, ways })
    }
}

/// How the products of a region are done: gate and up, then down.
struct Plan {
    /// Tokens times experts of each.
    rows: u32,
    sizes: [Size; 2],
    ways: [Way; 2],
}

/// The region's scratch, as it is asked for.
#[derive(Default)]
struct Temps(Vec<u64>);

impl Temps {
    fn take(&mut self, bytes: u64) -> Operand {
        self.0.push(bytes);
        Operand::Temp(self.0.len() - 1)
    }
    /// Four bytes for each.
    fn words(&mut self, rows: u32, cols: u32) -> Operand {
        self.take(rows as u64 * cols as u64 * 4)
    }
    /// The inputs of a product.
    fn inputs(&mut self, rows: u32, cols: u32, halves: bool) -> Rows {
        let words = if halves { cols.div_ceil(2) } else { cols };
        Rows { at: self.words(rows, words), halves }
    }
}

/// Rows of F32 or of halves.
#[derive(Clone, Copy)]
struct Rows {
    at: Operand,
    halves: bool,
}

fn emit(ctx: &Ctx<'_>, region: &Region) -> Result<Emission, CompileError> {
    let pattern = || ctx.unsupported(region.last(), "pattern");
    let mixture = Mixture::of(ctx, &region.nodes).ok_or_else(pattern)?;
    let no_tile = || ctx.unsupported(region.last(), "no tile fits the workgroup memory");
    let Plan { rows, sizes, ways } = mixture.plan(ctx).ok_or_else(no_tile)?;
    let (routing, tokens, mut temps) = (ctx.graph.routing(mixture.route), ctx.rows(mixture.out), Temps::default());
    let mut launches = vec![];
    let mut x = Rows { at: Operand::Value(mixture.x), halves: ctx.halves(mixture.x) };
    if let Some(of) = mixture.norm_of {
        x = temps.inputs(tokens, sizes[0].cols, ways[0].takes_halves());
        let (singles, halves) = if x.halves { (None, Some(x.at)) } else { (Some(x.at), None) };
        launches.push(rows::rms_norm(ctx, mixture.x, of, singles, halves).ok_or_else(pattern)?);
    }
    let mut route = Operand::Value(mixture.route);
    if mixture.chooses {
        route = temps.words(tokens, 2 * routing.used);
        launches.push(route::choice(ctx, mixture.route, route));
    }
    let [pairs, sorted] = [(); 2].map(|()| temps.words(rows, 1));
    let lists = lists(&ways, rows, routing, &mut temps);
    let h = temps.inputs(rows, sizes[0].features, ways[1].takes_halves());
    let d = Rows { at: temps.words(rows, sizes[1].features), halves: false };
    let order = Order { tokens, routing, route, pairs, rows: sorted, lists: lists.clone() };
    launches.push(order.sort(ctx));
    let product = |which: usize, name, weights, x, y| {
        let (size, way) = (sizes[which], &ways[which]);
        let (activation, pairs) = match which {
            0 => (Some(mixture.activation), Some((pairs, routing.used))),
            _ => (None, None),
        };
        let tiles = lists.iter().find(|l| l.0 == way.rows()).expect("made for both").1;
        Product { name, size, way, weights, activation, tiles, x, pairs, y }.launch(ctx)
    };
    launches.push(product(0, "expert_glu_tiles", vec![mixture.gate, mixture.up], x, h));
    launches.push(product(1, "expert_down_tiles", vec![mixture.down], h, d));
    launches.push(order.combine(ctx, d.at, mixture.residual, mixture.out));
    Ok(Emission { launches, temps: temps.0, cuts: None })
}

/// Lists of tiles for both products; one where their tiles have the same rows.
fn lists(ways: &[Way; 2], rows: u32, routing: Routing, temps: &mut Temps) -> Vec<(u32, Operand)> {
    let mut tiles: Vec<u32> = ways.iter().map(Way::rows).collect();
    tiles.dedup();
    let list = |tile| (tile, temps.take(places(rows, routing.experts, tile) as u64 * TILE_BYTES as u64));
    tiles.into_iter().map(list).collect()
}

/// One launch of products.
struct Product<'p> {
    name: &'static str,
    size: Size,
    way: &'p Way,
    /// One, or gate and up.
    weights: Vec<WeightId>,
    activation: Option<Activation>,
    /// The list of its tiles.
    tiles: Operand,
    /// Sorted rows, or those of tokens if `pairs` says whose, with the experts of each.
    x: Rows,
    pairs: Option<(Operand, u32)>,
    /// Sorted rows.
    y: Rows,
}

impl Product<'_> {
    fn launch(&self, ctx: &Ctx<'_>) -> LaunchSketch {
        let Product { size, way, .. } = *self;
        let weight = ctx.graph.weight_of(self.weights[0]);
        let format = weight.format.name.to_lowercase();
        let sizes = format!("{}of{}x{}", size.features, size.groups, size.cols);
        let name = format!("{}_{format}_{sizes}x{}_{}", self.name, size.rows, way.name());
        // Tiles of one expert run side by side: its weights are read from memory once.
        let grid = [size.features.div_ceil(way.features()), places(size.rows, size.groups, way.rows()), 1];
        launch(name, way.lanes(ctx), ctx.caps.subgroup_size, grid, |b, args| {
            let tile = ExpertTile::load(b, args.read("tiles", self.tiles), b.tile(1));
            let x = args.read("x", self.x.at);
            let picks = self.pairs.map(|(pairs, per)| Picks { numbers: args.read("pairs", pairs), per });
            let bases = self.weights.iter().map(|w| args.read("weight", Operand::Weight(*w))).collect();
            let y = args.write("y", self.y.at);
            b.if_(tile.used(), || {
                let last = tile.end - 1;
                let stage = Stage {
                    weight,
                    size,
                    features: way.features(),
                    rows: way.rows(),
                    lanes: way.lanes(ctx),
                    first_feature: b.tile(0) * way.features(),
                    first_weight: Some(tile.expert * size.features),
                    lines: Lines { first: tile.first, last, picks },
                    x,
                    halves: self.x.halves,
                    bases,
                };
                let end = Epilogue {
                    activation: self.activation,
                    bias: None,
                    residual: None,
                    y: (!self.y.halves).then_some(y),
                    halves: self.y.halves.then_some(y),
                    features: size.features,
                    last_row: last,
                    ragged: [!size.features.is_multiple_of(way.features()), true],
                };
                tables::fill_small(b, weight, way.lanes(ctx));
                way.body(b, &stage, &end);
            });
        })
    }
}
