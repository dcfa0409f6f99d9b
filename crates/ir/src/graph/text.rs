//! The graph's text form: one line per node, `%n: rows×cols = op operands`.

use super::{Graph, Op, Rows};
use std::fmt::{Display, Formatter, Result};

impl Display for Graph {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        for (i, rope) in self.ropes.iter().enumerate() {
            let (n, first, last) = (rope.inv_freq.len(), rope.inv_freq.first(), rope.inv_freq.last());
            writeln!(f, "rope{i} = {n} pairs, inv_freq {first:?}..{last:?}, magnitude {}", rope.magnitude)?;
        }
        let mut layer = u32::MAX;
        for id in self.ids() {
            let node = self.node(id);
            if node.layer != layer {
                layer = node.layer;
                if layer == u32::MAX { writeln!(f, "outside layers:")? } else { writeln!(f, "layer {layer}:")? }
            }
            let rows = match node.shape.rows {
                Rows::Tokens => "T",
                Rows::Outputs => "R",
            };
            write!(f, "  %{}: {rows}x{} = ", id.0, node.shape.cols)?;
            self.write_op(f, &node.op)?;
            writeln!(f)?;
        }
        if let Some(logits) = self.logits {
            writeln!(f, "logits %{}", logits.0)?;
        }
        Ok(())
    }
}

impl Graph {
    fn write_op(&self, f: &mut Formatter<'_>, op: &Op) -> Result {
        write!(f, "{}", op.name())?;
        match op {
            Op::Embed { .. } => {}
            Op::SelectRows { x } | Op::MatMul { x, .. } | Op::Bias { x, .. } | Op::Halve { x } | Op::Argmax { x } => {
                write!(f, " %{}", x.0)?
            }
            Op::Scale { x, factor } => write!(f, " %{} by {factor}", x.0)?,
            Op::RmsNorm { x, eps, group, .. } => write!(f, " %{} groups of {group}, eps {eps}", x.0)?,
            Op::Quantize { x, norm, wide } => {
                write!(f, " %{} to {} bytes", x.0, if *wide { 2 } else { 1 })?;
                if let Some((_, eps)) = norm {
                    write!(f, ", norm eps {eps}")?;
                }
            }
            Op::Add { a, b } => write!(f, " %{} %{}", a.0, b.0)?,
            Op::Glu { gate, up, act } => write!(f, " {act:?} gate %{} up %{}", gate.0, up.0)?,
            Op::Rope { x, head_dim, pairing, rope } => {
                write!(f, " %{} heads of {head_dim}, {pairing:?}, rope{}", x.0, rope.0)?;
            }
            Op::KvAppend { k, v, layer } => write!(f, " k %{} v %{} kv layer {layer}", k.0, v.0)?,
            Op::Attention { q, append, spec } => {
                let (h, kv, d) = (spec.heads, spec.kv_heads, spec.head_dim);
                write!(f, " q %{} after %{}: {h} heads, {kv} kv, dim {d}, scale {}", q.0, append.0, spec.scale)?;
                if let Some(w) = spec.window {
                    write!(f, ", window {w}")?;
                }
            }
            Op::TopK { x, k } | Op::Sample { x, k } => write!(f, " %{}: {k}", x.0)?,
            Op::Route { logits, k } => write!(f, " %{}: {k}", logits.0)?,
            Op::ExpertMatMul { x, route, .. } | Op::ExpertSum { x, route } => {
                write!(f, " %{} by %{}", x.0, route.0)?;
            }
        }
        if let Some(w) = op.weight() {
            let w = self.weight_of(w);
            write!(f, " {} [{}x{} {}]", w.name, w.rows, w.cols, w.format.name)?;
        }
        Ok(())
    }
}
