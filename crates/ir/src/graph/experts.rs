//! Mixtures of experts in the graph.
//!
//! ```text
//! logits ─route─► [k weights][k experts] ──┬────────────────────────┬─────────────────────┐
//! x ───────────────────────────────── expert_matmul ─► [n, k·rows] ─ … ─ expert_matmul ─ expert_sum ─► [n, cols]
//! ```

use super::{Graph, NodeId, Op, WeightId};

/// Sizes of a mixture of experts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Routing {
    /// Experts there are.
    pub experts: u32,
    /// Experts that each row uses.
    pub used: u32,
}

impl Graph {
    /// How many experts a route chooses among.
    ///
    /// # Panics
    /// When the node is no [`Op::Route`].
    pub fn routing(&self, route: NodeId) -> Routing {
        let Op::Route { logits, k } = *self.op(route) else { panic!("%{} is no route", route.0) };
        Routing { experts: self.node(logits).shape.cols, used: k }
    }

    /// Does `node` choose experts? Routers stay exact: a choice that depended on the activations' precision would change
    /// a token's text for nothing.
    pub fn is_router(&self, node: NodeId) -> bool {
        self.nodes().iter().any(|n| matches!(n.op, Op::Route { logits, .. } if logits == node))
    }

    /// The `k` best experts per row and their weights.
    pub fn route(&mut self, logits: NodeId, k: u32) -> NodeId {
        let s = self.node(logits).shape;
        assert!(k > 0 && k <= s.cols, "{k} of {} experts", s.cols);
        self.push(Op::Route { logits, k }, s.rows, 2 * k)
    }

    /// x · Wᵀ by each of the row's experts.
    pub fn expert_matmul(&mut self, x: NodeId, route: NodeId, weight: WeightId) -> NodeId {
        let Routing { experts, used } = self.routing(route);
        let (s, w) = (self.node(x).shape, &self.weights[weight.index()]);
        assert!(s.rows == self.node(route).shape.rows, "{}: rows of input and route", w.name);
        assert!(s.cols == w.cols || s.cols == used * w.cols, "{}: {} columns, input has {}", w.name, w.cols, s.cols);
        assert!(w.rows.is_multiple_of(experts), "{}: {} rows for {experts} experts", w.name, w.rows);
        let cols = used * (w.rows / experts);
        self.push(Op::ExpertMatMul { x, route, weight }, s.rows, cols)
    }

    /// What the row's experts gave, weighted and added up.
    pub fn expert_sum(&mut self, x: NodeId, route: NodeId) -> NodeId {
        let (s, used) = (self.node(x).shape, self.routing(route).used);
        assert!(s.rows == self.node(route).shape.rows, "rows of input and route");
        assert!(s.cols.is_multiple_of(used), "sum of {} columns over {used} experts", s.cols);
        self.push(Op::ExpertSum { x, route }, s.rows, s.cols / used)
    }
}
