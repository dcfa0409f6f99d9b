//! Experts of many rows: tiled products over rows sorted by expert.
//!
//! ```text
//! logits ─► [route] ─► sort ─► tiles of one expert's rows
//! x ─rows of a tile─► gate, up ─glu─► h [sorted rows][ffn] ─► down ─► d [sorted rows][cols] ─weighted sum─[+ residual]─► y
//! ```
//!
//! One region, five launches at most, whatever the number of experts. A launch has as many tiles as there can be; those
//! without rows end at once. What lies between the launches is scratch of the region.

use super::stage::{Lines, Picks, Stage};
use super::{Epilogue, Size, Way};
use crate::kernels::args::launch;
use crate::kernels::expert_order::{ExpertTile, Order, TILE_BYTES, places};
use crate::kernels::{MATVEC_ROWS, experts, route, tables};
use crate::select::Finder;
use crate::template::{Ctx, Emission, LaunchSketch, Operand, Template};
use crate::{CompileError, Region};
use zinc_ir::graph::{Activation, NodeId, Op, Routing, WeightId};

pub(in crate::kernels) static SORTED: Template = Template {
    name: "experts_sorted",
    summary: "[route] gate, up, gated unit, down and weighted sum of experts [+ residual], many rows",
    fused: true,
    matches,
    emit,
};

/// Rows of a step, times those experts that each uses, for every expert that there is: from so many on sorting pays.
const ROWS_PER_EXPERT: (u32, u32) = (1, 4);

/// Are there rows enough to sort them?
fn many(rows: u32, Routing { experts, used }: Routing) -> bool {
    let (numerator, denominator) = ROWS_PER_EXPERT;
    rows > MATVEC_ROWS && rows as u64 * used as u64 * denominator as u64 >= experts as u64 * numerator as u64
}

fn matches(f: &Finder<'_>, node: NodeId) -> Option<Vec<NodeId>> {
    let sum = match *f.op(node) {
        Op::Add { b, .. } if f.private(b, &[node]) => b,
        _ => node,
    };
    let Op::ExpertSum { x: down, route } = *f.op(sum) else { return None };
    if f.ctx.caps.native || !many(f.ctx.rows(node), f.ctx.graph.routing(route)) {
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
    Mixture::of(f.ctx, &nodes)?.plan(f.ctx).map(|_| nodes)
}

/// What a region computes, read back from its nodes.
struct Mixture {
    /// The value that experts read.
    x: NodeId,
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
        let chooses = nodes.contains(&route);
        Some(Mixture { x, route, chooses, gate, up, activation: act, down, residual, out })
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
        let ways = [Way::choose(ctx, sizes[0])?, Way::choose(ctx, sizes[1])?];
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
}

fn emit(ctx: &Ctx<'_>, region: &Region) -> Result<Emission, CompileError> {
    let unsupported = || ctx.unsupported(region.last(), "no tile fits the workgroup memory");
    let mixture = Mixture::of(ctx, &region.nodes).ok_or_else(|| ctx.unsupported(region.last(), "pattern"))?;
    let Plan { rows, sizes, ways } = mixture.plan(ctx).ok_or_else(unsupported)?;
    let (routing, tokens, mut temps) = (ctx.graph.routing(mixture.route), ctx.rows(mixture.out), Temps::default());
    let mut launches = vec![];
    let route = match mixture.chooses {
        true => temps.words(tokens, 2 * routing.used),
        false => Operand::Value(mixture.route),
    };
    if mixture.chooses {
        launches.push(route::choice(ctx, mixture.route, route));
    }
    let [pairs, sorted] = [(); 2].map(|()| temps.words(rows, 1));
    // Of each product; one list where both have tiles of the same rows.
    let mut lists: Vec<(u32, Operand)> = vec![];
    let of_product = ways.each_ref().map(|way| {
        let tile = way.rows();
        let known = lists.iter().find(|l| l.0 == tile).copied();
        let list = known.unwrap_or_else(|| {
            let bytes = places(rows, routing.experts, tile) as u64 * TILE_BYTES as u64;
            (tile, temps.take(bytes))
        });
        if known.is_none() {
            lists.push(list);
        }
        list.1
    });
    // F32; where products' inputs become halves, `h` does too.
    let [h, d] = sizes.map(|size| temps.words(rows, size.features));
    let order = Order { tokens, routing, route, pairs, rows: sorted, lists };
    launches.push(order.sort(ctx));
    let glu = Product {
        name: "expert_glu_tiles",
        size: sizes[0],
        way: &ways[0],
        weights: &[mixture.gate, mixture.up],
        activation: Some(mixture.activation),
        tiles: of_product[0],
        x: Operand::Value(mixture.x),
        pairs: Some((pairs, routing.used)),
        y: h,
    };
    launches.push(glu.launch(ctx));
    let down = Product {
        name: "expert_down_tiles",
        size: sizes[1],
        way: &ways[1],
        weights: &[mixture.down],
        activation: None,
        tiles: of_product[1],
        x: h,
        pairs: None,
        y: d,
    };
    launches.push(down.launch(ctx));
    launches.push(order.combine(ctx, d, mixture.residual, mixture.out));
    Ok(Emission { launches, temps: temps.0, cuts: None })
}

/// One launch of products.
struct Product<'p> {
    name: &'static str,
    size: Size,
    way: &'p Way,
    /// One, or gate and up.
    weights: &'p [WeightId],
    activation: Option<Activation>,
    /// The list of its tiles.
    tiles: Operand,
    /// F32 rows: sorted, or of tokens if `pairs` says whose, with the experts of each.
    x: Operand,
    pairs: Option<(Operand, u32)>,
    /// F32 sorted rows.
    y: Operand,
}

impl Product<'_> {
    fn launch(&self, ctx: &Ctx<'_>) -> LaunchSketch {
        let Product { size, way, .. } = *self;
        let weight = ctx.graph.weight_of(self.weights[0]);
        let format = weight.format.name.to_lowercase();
        let sizes = format!("{}of{}x{}", size.features, size.groups, size.cols);
        let name = format!("{}_{format}_{sizes}x{}_{}", self.name, size.rows, way.name());
        let grid = [size.features.div_ceil(way.features()), places(size.rows, size.groups, way.rows()), 1];
        launch(name, way.lanes(ctx), ctx.caps.subgroup_size, grid, |b, args| {
            let tile = ExpertTile::load(b, args.read("tiles", self.tiles), b.tile(1));
            let x = args.read("x", self.x);
            let picks = self.pairs.map(|(pairs, per)| Picks { numbers: args.read("pairs", pairs), per });
            let bases = self.weights.iter().map(|w| args.read("weight", Operand::Weight(*w))).collect();
            let y = args.write("y", self.y);
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
                    bases,
                };
                let end = Epilogue {
                    activation: self.activation,
                    bias: None,
                    residual: None,
                    y,
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
