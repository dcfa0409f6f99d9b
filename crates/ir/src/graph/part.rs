//! A part of a model: some of its layers, between the same beginning and end.
//!
//! ```text
//! embedding ─► layer 0 ─► layer 1 ─► layer 2 ─► … ─► logits        whole
//! embedding ─► layer 0 ─────────────► layer 2 ─────► logits        part
//! ```
//!
//! It computes something else than the model, with the model's own tensors: enough to compare kernels with each other.

use super::{Graph, NodeId, Op, WeightId};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// A part of a graph.
#[derive(Clone, Debug)]
pub struct Part {
    /// The part as a graph of its own. It has all KV layers of the whole.
    pub graph: Arc<Graph>,
    /// Which weight of the whole each of its weights is.
    pub weights: Vec<WeightId>,
}

impl Graph {
    /// The graph up to what the output matrix reads, which takes the place of the logits: the hidden state after the
    /// last norm, `[Outputs, width]`. The same weights and KV layers.
    pub fn until_hidden(&self) -> Graph {
        let mut last = self.logits;
        while let Some(id) = last {
            let op = self.op(id);
            last = op.inputs().first().copied();
            if matches!(op, Op::MatMul { .. }) {
                break;
            }
        }
        let nodes = last.map_or(0, |id| id.index() + 1);
        Graph { nodes: self.nodes[..nodes].to_vec(), logits: last, ..self.clone() }
    }

    /// Leaves out the layers that are not to be kept. A layer that is no step from one value to one other of the same
    /// shape stays.
    pub fn part(&self, keep: impl Fn(u32) -> bool) -> Part {
        let layers: BTreeSet<u32> = self.nodes.iter().map(|n| n.layer).filter(|l| *l != u32::MAX).collect();
        let passed: HashMap<u32, Passage> =
            layers.into_iter().filter(|l| !keep(*l)).filter_map(|l| Some((l, self.passage(l)?))).collect();
        // What a left-out value is replaced by, if it is read outside.
        let mut weights: Vec<WeightId> = vec![];
        let mut renamed: Vec<Option<NodeId>> = vec![];
        let mut part = Graph { nodes: vec![], weights: vec![], logits: None, layer: None, ..self.clone() };
        for (id, node) in self.ids().zip(&self.nodes) {
            if let Some(passage) = passed.get(&node.layer) {
                renamed.push((id == passage.to).then(|| renamed[passage.from.index()]).flatten());
                continue;
            }
            let mut node = node.clone();
            node.op.for_each_input(|x| *x = renamed[x.index()].expect("only a passage's end is read outside"));
            if let Some(weight) = weight_mut(&mut node.op) {
                let known = weights.iter().position(|w| w == weight);
                *weight = WeightId(known.unwrap_or(weights.len()) as u32);
                if known.is_none() {
                    weights.extend(self.op(id).weight());
                }
            }
            renamed.push(Some(part.push_node(node)));
        }
        part.weights = weights.iter().map(|w| self.weight_of(*w).clone()).collect();
        part.logits = self.logits.and_then(|l| renamed[l.index()]);
        Part { graph: Arc::new(part), weights }
    }

    /// The one value that a layer reads and the one that it gives, if it can be left out.
    fn passage(&self, layer: u32) -> Option<Passage> {
        let inside = |id: NodeId| self.node(id).layer == layer;
        let (mut from, mut to) = (BTreeSet::new(), BTreeSet::new());
        for id in self.ids() {
            for input in self.op(id).inputs() {
                match (inside(input), inside(id)) {
                    (false, true) => from.insert(input),
                    (true, false) => to.insert(input),
                    _ => false,
                };
            }
        }
        to.extend(self.logits.filter(|l| inside(*l)));
        let (from, to) = (from.pop_first().filter(|_| from.is_empty())?, to.pop_first().filter(|_| to.is_empty())?);
        (self.node(from).shape == self.node(to).shape && from < to).then_some(Passage { from, to })
    }
}

/// What goes in and what comes out of a layer.
struct Passage {
    from: NodeId,
    to: NodeId,
}

/// The weight an operation reads, to be replaced.
fn weight_mut(op: &mut Op) -> Option<&mut WeightId> {
    match op {
        Op::Embed { table } => Some(table),
        Op::Quantize { norm, .. } => norm.as_mut().map(|n| &mut n.0),
        Op::RmsNorm { weight, .. }
        | Op::MatMul { weight, .. }
        | Op::ExpertMatMul { weight, .. }
        | Op::Bias { weight, .. } => Some(weight),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant;

    /// x0 = embedding; layer i: x + norm(x) · W_i, the last one of selected rows; logits = x · head.
    fn model(layers: u32) -> Graph {
        let mut g = Graph::new();
        let table = g.weight("table", 4, 32, quant::F32);
        let gain = g.weight("gain", 1, 32, quant::F32);
        let mut x = g.embed(table);
        for layer in 0..layers {
            g.enter_layer(Some(layer));
            let w = g.weight(format!("w{layer}"), 32, 32, quant::F32);
            let n = g.rms_norm(x, gain, 1e-6);
            let mut y = g.matmul(n, w);
            if layer + 1 == layers {
                (x, y) = (g.select_rows(x), g.select_rows(y));
            }
            x = g.add(x, y);
        }
        g.enter_layer(None);
        let head = g.weight("head", 8, 32, quant::F32);
        let logits = g.matmul(x, head);
        g.set_logits(logits);
        g
    }

    fn names(part: &Part) -> Vec<&str> {
        part.graph.weights().iter().map(|w| w.name.as_str()).collect()
    }

    #[test]
    fn layers_are_left_out() {
        let whole = model(5);
        let part = whole.part(|layer| layer == 1 || layer == 3);
        // The last layer changes the shape: it stays.
        assert_eq!(names(&part), ["table", "gain", "w1", "w3", "w4", "head"]);
        for (weight, old) in part.graph.weights().iter().zip(&part.weights) {
            assert_eq!(weight.name, whole.weight_of(*old).name);
        }
        let layers: BTreeSet<u32> = part.graph.nodes().iter().map(|n| n.layer).collect();
        assert_eq!(layers.into_iter().collect::<Vec<_>>(), [1, 3, 4, u32::MAX]);
        assert_eq!(part.graph.op(part.graph.logits().expect("logits")).name(), "matmul");
        for id in part.graph.ids() {
            assert!(part.graph.op(id).inputs().iter().all(|input| *input < id));
        }
    }

    #[test]
    fn the_whole_is_a_part() {
        let whole = model(3);
        let part = whole.part(|_| true);
        assert_eq!(part.graph.nodes().len(), whole.nodes().len());
        assert_eq!(part.graph.logits(), whole.logits());
        assert_eq!(names(&part), ["table", "gain", "w0", "w1", "w2", "head"]);
    }
}
