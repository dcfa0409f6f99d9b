//! Cuts the graph into regions: for each node not yet covered, last first, the first template that matches.

use crate::CompileError;
use crate::kernels::TEMPLATES;
use crate::template::{Ctx, Template};
use zinc_ir::graph::{NodeId, Op};

/// The nodes one template covers.
pub struct Region {
    /// Which template.
    pub template: &'static Template,
    /// Its nodes, in topological order.
    pub nodes: Vec<NodeId>,
    /// Those whose values leave the region: read by others, or the step's output.
    pub gives: Vec<NodeId>,
}

impl Region {
    /// The last node: the region's value, unless it is a statement.
    pub fn last(&self) -> NodeId {
        *self.nodes.last().expect("regions are not empty")
    }
}

/// What a template's `matches` may ask.
pub struct Finder<'a> {
    /// Context.
    pub ctx: &'a Ctx<'a>,
    users: Vec<Vec<NodeId>>,
    live: Vec<bool>,
    covered: Vec<bool>,
}

impl<'a> Finder<'a> {
    fn new(ctx: &'a Ctx<'a>) -> Finder<'a> {
        let graph = ctx.graph;
        let mut live = vec![false; graph.nodes().len()];
        for id in graph.ids().rev() {
            let root = Some(id) == ctx.output || matches!(graph.op(id), Op::KvAppend { .. });
            live[id.index()] |= root;
            if live[id.index()] {
                for input in graph.op(id).inputs() {
                    live[input.index()] = true;
                }
            }
        }
        Finder { ctx, users: graph.users(), covered: vec![false; live.len()], live }
    }

    /// The operation of a node.
    pub fn op(&self, id: NodeId) -> &'a Op {
        self.ctx.graph.op(id)
    }

    /// Nodes of the step that read `id`.
    pub fn users(&self, id: NodeId) -> impl Iterator<Item = NodeId> + '_ {
        self.users[id.index()].iter().copied().filter(|u| self.live[u.index()])
    }

    /// May `id` be drawn into a region with `others`: uncovered, not the step's output, and read only by `others`?
    pub fn private(&self, id: NodeId, others: &[NodeId]) -> bool {
        !self.covered[id.index()] && !self.ctx.leaves(id) && self.users(id).all(|u| others.contains(&u))
    }

    /// Is `id` still to be covered?
    pub fn open(&self, id: NodeId) -> bool {
        self.live[id.index()] && !self.covered[id.index()]
    }

    /// Do products of this many rows go the mat-vec way?
    pub fn few_rows(&self, id: NodeId) -> bool {
        let few = self.ctx.rows(id) <= crate::kernels::matvec_rows(self.ctx.caps, self.ctx.choices);
        self.ctx.caps.native || (few && !self.ctx.choices.invariant)
    }
}

/// Covers every node the step needs. Regions come in an order in which each one's inputs are ready.
pub fn select(ctx: &Ctx<'_>) -> Result<Vec<Region>, CompileError> {
    let mut finder = Finder::new(ctx);
    let mut regions = vec![];
    for id in ctx.graph.ids().rev() {
        if !finder.open(id) {
            continue;
        }
        let found = TEMPLATES.iter().filter(|t| ctx.choices.fuse || !t.fused).find_map(|template| {
            let mut nodes = (template.matches)(&finder, id)?;
            nodes.sort();
            nodes.dedup();
            Some(Region { template, nodes, gives: vec![] })
        });
        let Some(region) = found else {
            return Err(ctx.unsupported(id, "no template matches"));
        };
        for node in &region.nodes {
            debug_assert!(!finder.covered[node.index()], "{} covers node {} twice", region.template.name, node.0);
            finder.covered[node.index()] = true;
        }
        regions.push(region);
    }
    // A region runs where its last node stands: everything it reads from outside has a lower number than one of its
    // own nodes, but perhaps a higher one than its first.
    regions.sort_by_key(Region::last);
    let mut regions = order(ctx, regions)?;
    find_given(ctx, &mut regions);
    Ok(regions)
}

fn find_given(ctx: &Ctx<'_>, regions: &mut [Region]) {
    let mut read = vec![false; ctx.graph.nodes().len()];
    for region in regions.iter() {
        for input in region.nodes.iter().flat_map(|n| ctx.graph.op(*n).inputs()) {
            read[input.index()] |= !region.nodes.contains(&input);
        }
    }
    for region in regions {
        region.gives = region.nodes.iter().copied().filter(|n| read[n.index()] || ctx.leaves(*n)).collect();
    }
}

/// Stable topological order of regions (the sort above is one already, unless a region's outside input is produced
/// by a region that ends later).
fn order(ctx: &Ctx<'_>, regions: Vec<Region>) -> Result<Vec<Region>, CompileError> {
    let mut done = vec![false; ctx.graph.nodes().len()];
    let mut waiting: Vec<Option<Region>> = regions.into_iter().map(Some).collect();
    let mut ordered = vec![];
    while ordered.len() < waiting.len() {
        let before = ordered.len();
        for slot in &mut waiting {
            let ready = slot.as_ref().is_some_and(|r| {
                let inputs = r.nodes.iter().flat_map(|n| ctx.graph.op(*n).inputs());
                inputs.into_iter().all(|i| done[i.index()] || r.nodes.contains(&i))
            });
            if ready {
                let region = slot.take().expect("ready regions exist");
                region.nodes.iter().for_each(|n| done[n.index()] = true);
                ordered.push(region);
            }
        }
        if ordered.len() == before {
            return Err(CompileError::Circular);
        }
    }
    Ok(ordered)
}
