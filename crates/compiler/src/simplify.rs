//! Adds the tail that a bucket asks for. (Algebraic rewrites of the graph belong here too; architectures write graphs
//! that need none so far.)

use std::sync::Arc;
use zinc_ir::graph::{Graph, NodeId};
use zinc_ir::plan::{Bucket, Tail};

/// The graph with the bucket's tail, and the value that leaves the device (none if the bucket has no outputs).
pub(crate) fn with_tail(graph: &Arc<Graph>, bucket: &Bucket) -> (Arc<Graph>, Option<NodeId>) {
    let (Some(logits), true) = (graph.logits(), bucket.outputs > 0) else {
        return (graph.clone(), None);
    };
    match bucket.tail {
        Tail::Logits => (graph.clone(), Some(logits)),
        Tail::Greedy => {
            let mut graph = Graph::clone(graph);
            graph.enter_layer(None);
            let best = graph.argmax(logits);
            (Arc::new(graph), Some(best))
        }
        Tail::Best(k) => {
            let mut graph = Graph::clone(graph);
            graph.enter_layer(None);
            let best = graph.top_k(logits, k);
            (Arc::new(graph), Some(best))
        }
    }
}
