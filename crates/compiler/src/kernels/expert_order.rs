//! The rows of a prompt in the order of their experts, and back.
//!
//! ```text
//! route [n][k experts] ─► rows sorted by expert, by token within one ─► tiles of up to so many rows of one expert
//! [sorted rows][cols] ─► weighted sum of each token's k rows [+ residual] ─► [n][cols]
//! ```
//!
//! Sorting is one launch without exchange between workgroups: each counts, for an expert of its own, the rows of that one
//! and those of all experts before it. Expert `e`, whose rows begin at `r`, has the places from `r / tile + e` on in a list
//! of tiles: room enough, whatever comes before, and what is too much stays empty. So neither order nor place depends
//! on which workgroup comes first.

use super::args::launch;
use super::rows::workgroup;
use crate::template::{Ctx, LaunchSketch, Operand};
use zinc_ir::graph::{NodeId, Routing};
use zinc_ir::kernel::{Builder, Scalar, Type, Val};

/// Most lanes that sort for an expert, and how many tokens each should at least have.
const LANES: u32 = 512;
const TOKENS: u32 = 4;

/// Bytes of an entry of a list of tiles: expert, first row, first row beyond it; empty where these are the same.
pub(super) const TILE_BYTES: u32 = 16;

/// Entries of a list of tiles of `tile` rows: the grid of those who read it.
pub(super) fn places(rows: u32, experts: u32, tile: u32) -> u32 {
    rows / tile + experts
}

/// What a tile of sorted rows is.
pub(super) struct ExpertTile<'b> {
    pub(super) expert: Val<'b>,
    pub(super) first: Val<'b>,
    pub(super) end: Val<'b>,
}

impl<'b> ExpertTile<'b> {
    /// Entry `index`, the same in all lanes, of a list.
    pub(super) fn load(b: &'b Builder, list: Val<'b>, index: Val<'b>) -> ExpertTile<'b> {
        let entry = b.load(Type::U32X4, list, index * TILE_BYTES, 16);
        ExpertTile { expert: entry.lane(0), first: entry.lane(1), end: entry.lane(2) }
    }
    /// Has it rows?
    pub(super) fn used(&self) -> Val<'b> {
        self.first.lt(self.end)
    }
}

/// Where the order of a region's rows is kept.
#[derive(Clone)]
pub(super) struct Order {
    /// Rows of the route, tokens.
    pub(super) tokens: u32,
    pub(super) routing: Routing,
    /// The route.
    pub(super) route: Operand,
    /// `token · k + which of its experts` of each sorted row, U32.
    pub(super) pairs: Operand,
    /// The sorted row of each of these, U32.
    pub(super) rows: Operand,
    /// Lists of tiles, with the rows of a tile.
    pub(super) lists: Vec<(u32, Operand)>,
}

impl Order {
    /// The launch that makes it from the route.
    pub(super) fn sort(&self, ctx: &Ctx<'_>) -> LaunchSketch {
        let Routing { experts, used } = self.routing;
        let tiles: Vec<String> = self.lists.iter().map(|l| l.0.to_string()).collect();
        let name = format!("expert_sort_{used}of{experts}x{}_{}", self.tokens, tiles.join("_"));
        let subgroup = ctx.caps.subgroup_size;
        let lanes = self.tokens.div_ceil(TOKENS).next_multiple_of(subgroup).min(ctx.lanes(LANES));
        launch(name, lanes, subgroup, [experts, 1, 1], |b, args| {
            let sorter = Sorter { b, order: self, route: args.read("route", self.route), lanes, subgroup };
            let [pairs, rows] = [("pairs", self.pairs), ("rows", self.rows)].map(|(name, to)| args.write(name, to));
            let [begin, count, own] = sorter.count();
            sorter.scatter(pairs, rows, own);
            for (tile, list) in &self.lists {
                sorter.list(*tile, args.write("tiles", *list), begin, count);
            }
        })
    }

    /// The launch that adds up what the experts gave: `x` has sorted rows, `y` one for each token.
    pub(super) fn combine(&self, ctx: &Ctx<'_>, x: Operand, residual: Option<NodeId>, out: NodeId) -> LaunchSketch {
        let (cols, used) = (ctx.cols(out), self.routing.used);
        let wide = if cols.is_multiple_of(4) { 4 } else { 1 };
        let lanes = workgroup(ctx, cols / wide);
        let (ty, align) = (Type::Vec(Scalar::F32, wide as u8), wide as u8 * 4);
        let grid = [(cols / wide).div_ceil(lanes), self.tokens, 1];
        launch(format!("expert_combine_{used}x{cols}"), lanes, ctx.caps.subgroup_size, grid, |b, args| {
            let [x, route, rows] = [("x", x), ("route", self.route), ("rows", self.rows)].map(|(n, o)| args.read(n, o));
            let residual = residual.map(|a| args.read("residual", Operand::Value(a)));
            let y = args.write("y", Operand::Value(out));
            let (token, item) = (b.tile(1), b.tile(0) * lanes + b.local_id());
            b.if_(item.lt(cols / wide), || {
                let column = item * wide;
                let mut sum = b.f32(0.0).splat(wide as u8);
                for which in 0..used {
                    let row = b.load(Type::U32, rows, (token * used + which) * 4, 4);
                    let factor = b.load(Type::F32, route, (token * (2 * used) + which) * 4, 4);
                    sum = b.fma(b.load(ty, x, (row * cols + column) * 4, align), factor.splat(wide as u8), sum);
                }
                let at = (token * cols + column) * 4;
                let value = residual.map_or(sum, |a| b.load(ty, a, at, align) + sum);
                b.store(y, at, value, align);
            });
        })
    }
}

/// A workgroup that finds the rows of one expert.
struct Sorter<'a, 'b> {
    b: &'b Builder,
    order: &'a Order,
    route: Val<'b>,
    lanes: u32,
    subgroup: u32,
}

impl<'b> Sorter<'_, 'b> {
    /// This lane's tokens: some neighbours.
    fn tokens(&self) -> [Val<'b>; 2] {
        let (b, n) = (self.b, self.order.tokens);
        let each = n.div_ceil(self.lanes);
        let first = b.local_id() * each;
        [first, (first + each).min(b.u32(n))]
    }

    /// The experts of a token.
    fn chosen(&self, token: Val<'b>) -> Vec<Val<'b>> {
        let (b, used) = (self.b, self.order.routing.used);
        let at = token * (8 * used);
        if !used.is_multiple_of(4) {
            return (0..used).map(|k| b.load(Type::U32, self.route, at + (used + k) * 4, 4)).collect();
        }
        let quads = (0..used / 4).map(|q| b.load(Type::U32X4, self.route, at + (used * 4 + q * 16), 16));
        quads.flat_map(|quad| [0, 1, 2, 3].map(|k| quad.lane(k))).collect()
    }

    /// 1 where `condition` holds, else 0.
    fn one(&self, condition: Val<'b>) -> Val<'b> {
        condition.select(self.b.u32(1), self.b.u32(0))
    }

    /// First row of the expert, how many it has, and the first of this lane's.
    fn count(&self) -> [Val<'b>; 3] {
        let (b, expert) = (self.b, self.b.tile(0));
        let [first, end] = self.tokens();
        let found = b.for_(first, end, 1, &[b.u32(0); 2], |token, sums| {
            let add = |sums: Vec<Val<'b>>, chosen: Val<'b>| {
                vec![sums[0] + self.one(chosen.lt(expert)), sums[1] + self.one(chosen.eq(expert))]
            };
            self.chosen(token).into_iter().fold(sums.to_vec(), add)
        });
        let [before, own] = [found[0], found[1]];
        let through = self.sum_through(own);
        let subgroups = self.lanes / self.subgroup;
        let parts = b.shared("counts", Type::U32, 2 * subgroups);
        let totals = [before.subgroup_add(), own.subgroup_add()];
        b.if_(b.lane().eq(0), || {
            b.shared_store(parts, b.subgroup_id() * 2, totals[0]);
            b.shared_store(parts, b.subgroup_id() * 2 + 1, totals[1]);
        });
        b.barrier();
        let sums = b.for_(b.u32(0), b.u32(subgroups), 1, &[b.u32(0); 3], |s, sums| {
            let [before, own] = [0, 1].map(|k| b.shared_load(parts, s * 2 + k));
            let earlier = s.lt(b.subgroup_id()).select(own, b.u32(0));
            vec![sums[0] + before, sums[1] + own, sums[2] + earlier]
        });
        [sums[0], sums[1], sums[0] + sums[2] + (through - own)]
    }

    /// Sum over the lanes of the subgroup up to and with this one.
    fn sum_through(&self, value: Val<'b>) -> Val<'b> {
        let (b, mut sum, mut step) = (self.b, value, 1);
        while step < self.subgroup {
            let has = b.lane().ge(step);
            let other = sum.shuffle(has.select(b.lane() - step, b.lane()));
            sum = has.select(sum + other, sum);
            step *= 2;
        }
        sum
    }

    /// Writes this lane's rows, from row `at` on.
    fn scatter(&self, pairs: Val<'b>, rows: Val<'b>, at: Val<'b>) {
        let (b, expert, used) = (self.b, self.b.tile(0), self.order.routing.used);
        let [first, end] = self.tokens();
        b.for_(first, end, 1, &[at], |token, at| {
            // One more than which of the token's experts it is; 0 for none.
            let which = self
                .chosen(token)
                .into_iter()
                .zip(1..)
                .fold(b.u32(0), |found, (chosen, number)| chosen.eq(expert).select(b.u32(number), found));
            let has = which.ne(0);
            b.if_(has, || {
                let pair = token * used + which - 1;
                b.store(pairs, at[0] * 4, pair, 4);
                b.store(rows, pair * 4, at[0], 4);
            });
            vec![at[0] + self.one(has)]
        });
    }

    /// Writes the expert's part of a list of tiles of `tile` rows.
    fn list(&self, tile: u32, list: Val<'b>, begin: Val<'b>, count: Val<'b>) {
        let (b, expert, end) = (self.b, self.b.tile(0), begin + count);
        let place = begin / tile + expert;
        let places = end / tile + expert + 1 - place;
        b.for_(b.local_id(), places, self.lanes, &[], |i, _| {
            let first = begin + i * tile;
            let entry = b.compose(&[expert, first.min(end), (first + tile).min(end), b.u32(0)]);
            b.store(list, (place + i) * TILE_BYTES, entry, 16);
            vec![]
        });
    }
}
