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
    let alike = gate != up && x == other_x && w.cols == other.cols;
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
        let step = |part, weights: Vec<WeightId>| {
            let w = ctx.graph.weight_of(weights[0]);
            let (features, table_bytes) = (w.rows / routing.experts, tables::small_bytes(w.format));
            let sets = weights.len() as u32;
            let size = Size { features, rows, cols: w.cols, sets, groups: routing.experts, table_bytes };
            let way = Way::choose(ctx, size, false)?;
            // Offsets are U32.
            let addressable = rows as u64 * features as u64 * 4 <= u32::MAX as u64;
            addressable.then_some(Step { part, weights, size, way })
        };
        // Gate and up of one format share the staged inputs, as those of `super::GLU`.
        let [gate, up] = [self.gate, self.up].map(|w| ctx.graph.weight_of(w).format);
        let mut steps = match gate == up {
            true => vec![step(Part::Glu, vec![self.gate, self.up])?],
            false => vec![step(Part::Gate, vec![self.gate])?, step(Part::Up, vec![self.up])?],
        };
        steps.push(step(Part::Down, vec![self.down])?);
        Some(Plan { rows, steps })
    }
}

/// The products of a region, in order.
struct Plan {
    /// Tokens times experts of each.
    rows: u32,
    steps: Vec<Step>,
}

/// One launch of products: what, with which weights, and how.
struct Step {
    part: Part,
    weights: Vec<WeightId>,
    size: Size,
    way: Way,
}

#[derive(Clone, Copy)]
enum Part {
    /// Gate and up, and the gated unit.
    Glu,
    Gate,
    /// And the gated unit.
    Up,
    Down,
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
    let Plan { rows, steps } = mixture.plan(ctx).ok_or_else(no_tile)?;
    let (routing, tokens, mut temps) = (ctx.graph.routing(mixture.route), ctx.rows(mixture.out), Temps::default());
    let mut launches = vec![];
    let mut x = Rows { at: Operand::Value(mixture.x), halves: ctx.halves(mixture.x) };
    if let Some(of) = mixture.norm_of {
        x = temps.inputs(tokens, steps[0].size.cols, steps[0].way.takes_halves());
        let (singles, halves) = if x.halves { (None, Some(x.at)) } else { (Some(x.at), None) };
        launches.push(rows::rms_norm(ctx, mixture.x, of, singles, halves).ok_or_else(pattern)?);
    }
    let mut route = Operand::Value(mixture.route);
    if mixture.chooses {
        route = temps.words(tokens, 2 * routing.used);
        launches.push(route::choice(ctx, mixture.route, route));
    }
    let [pairs, sorted] = [(); 2].map(|()| temps.words(rows, 1));
    let order = Order { tokens, routing, route, pairs, rows: sorted, lists: lists(&steps, rows, routing, &mut temps) };
    launches.push(order.sort(ctx));
    let last = steps.last().expect("the way back");
    let h = temps.inputs(rows, last.size.cols, last.way.takes_halves());
    let d = temps.inputs(rows, last.size.features, false);
    let mut gate = None;
    for step in &steps {
        let (x, y) = match step.part {
            Part::Glu | Part::Up => (x, h),
            Part::Gate => (x, *gate.insert(temps.inputs(rows, step.size.features, false))),
            Part::Down => (h, d),
        };
        launches.push(Product { mixture: &mixture, order: &order, step, x, y, gate: gate.map(|g| g.at) }.launch(ctx));
    }
    launches.push(order.combine(ctx, d.at, mixture.residual, mixture.out));
    Ok(Emission { launches, temps: temps.0, cuts: None })
}

/// Lists of tiles for all products; one for those whose tiles have the same rows.
fn lists(steps: &[Step], rows: u32, routing: Routing, temps: &mut Temps) -> Vec<(u32, Operand)> {
    let mut tiles: Vec<u32> = steps.iter().map(|step| step.way.rows()).collect();
    tiles.sort();
    tiles.dedup();
    let list = |tile| (tile, temps.take(places(rows, routing.experts, tile) as u64 * TILE_BYTES as u64));
    tiles.into_iter().map(list).collect()
}

/// A launch of products, with what it reads and writes.
struct Product<'p> {
    mixture: &'p Mixture,
    order: &'p Order,
    step: &'p Step,
    /// Rows of tokens where a step is on the way to the experts, else sorted ones.
    x: Rows,
    /// Sorted rows.
    y: Rows,
    /// What the gates gave: F32 sorted rows.
    gate: Option<Operand>,
}

impl Product<'_> {
    fn launch(&self, ctx: &Ctx<'_>) -> LaunchSketch {
        let Step { part, weights, size, way } = self.step;
        let (name, to_experts, gated) = match part {
            Part::Glu => ("expert_glu_tiles", true, true),
            Part::Gate => ("expert_gate_tiles", true, false),
            Part::Up => ("expert_up_tiles", true, true),
            Part::Down => ("expert_down_tiles", false, false),
        };
        let list = self.order.lists.iter().find(|l| l.0 == way.rows()).expect("made for all").1;
        let weight = ctx.graph.weight_of(weights[0]);
        let format = weight.format.name.to_lowercase();
        let sizes = format!("{}of{}x{}", size.features, size.groups, size.cols);
        let name = format!("{name}_{format}_{sizes}x{}_{}", size.rows, way.name());
        // Tiles of one expert run side by side: its weights are read from memory once.
        let grid = [size.features.div_ceil(way.features()), places(size.rows, size.groups, way.rows()), 1];
        launch(name, way.lanes(), way.subgroup(ctx), grid, |b, args| {
            let tile = ExpertTile::load(b, args.read("tiles", list), b.tile(1));
            let x = args.read("x", self.x.at);
            let whose = || Picks { numbers: args.read("pairs", self.order.pairs), per: self.order.routing.used };
            let picks = to_experts.then(whose);
            let bases = weights.iter().map(|w| args.read("weight", Operand::Weight(*w))).collect();
            let gate = self.gate.filter(|_| gated).map(|gate| args.read("gate", gate));
            let y = args.write("y", self.y.at);
            b.if_(tile.used(), || {
                let last = tile.end - 1;
                let stage = Stage {
                    weight,
                    size: *size,
                    features: way.features(),
                    rows: way.rows(),
                    lanes: way.lanes(),
                    first_feature: b.tile(0) * way.features(),
                    first_weight: Some(tile.expert * size.features),
                    lines: Lines { first: tile.first, last, picks },
                    x,
                    halves: self.x.halves,
                    bases,
                };
                let end = Epilogue {
                    activation: gated.then_some(self.mixture.activation),
                    gate,
                    bias: None,
                    residual: None,
                    y: (!self.y.halves).then_some(y),
                    halves: self.y.halves.then_some(y),
                    features: size.features,
                    last_row: last,
                    ragged: [!size.features.is_multiple_of(way.features()), true],
                };
                tables::fill_small(b, weight, way.lanes());
                way.body(b, &stage, &end, None);
            });
        })
    }
}
