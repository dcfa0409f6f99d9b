//! The plan's text form: a header, then one line per launch and barrier.

use super::{Buffer, Entry, Launch, LaunchArg, Plan, Span};
use std::fmt::{Display, Formatter, Result};

impl Display for Plan {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let b = self.bucket;
        writeln!(
            f,
            "plan for {} token rows, {} output rows, context {}, {} sequences, tail {:?}; activations {:?}, KV {:?}",
            b.tokens, b.outputs, b.context, b.sequences, b.tail, self.act, self.kv.types
        )?;
        let (bytes, flops) = self.launches().fold((0, 0), |(b, f), l| (b + l.bytes, f + l.flops));
        writeln!(
            f,
            "{} launches, {} barriers, {} kernels; scratch {} bytes; moves at least {bytes} bytes, {flops} FLOPs",
            self.launches().count(),
            self.barriers(),
            self.kernels.len(),
            self.scratch_bytes
        )?;
        let mut layer = u32::MAX;
        for (i, entry) in self.entries.iter().enumerate() {
            match entry {
                Entry::Barrier => writeln!(f, "{i:5}  barrier")?,
                Entry::Launch(launch) => {
                    if launch.layer != layer {
                        layer = launch.layer;
                        if layer == u32::MAX { writeln!(f, "outside layers:")? } else { writeln!(f, "layer {layer}:")? }
                    }
                    write!(f, "{i:5}  ")?;
                    self.write_launch(f, launch)?;
                }
            }
        }
        Ok(())
    }
}

impl Plan {
    fn write_launch(&self, f: &mut Formatter<'_>, launch: &Launch) -> Result {
        write!(f, "{}", launch.template)?;
        if let Some(kernel) = launch.kernel {
            let [x, y, z] = launch.grid;
            write!(f, " [{}] grid {x}x{y}x{z}", self.kernels[kernel.0 as usize].name)?;
        }
        if !launch.region.is_empty() {
            let nodes: Vec<String> = launch.region.iter().map(|n| format!("%{}", n.0)).collect();
            write!(f, " covers {}", nodes.join(" "))?;
        }
        writeln!(f, "; {} bytes, {} FLOPs", launch.bytes, launch.flops)?;
        for (i, arg) in launch.args.iter().enumerate() {
            let name = launch.kernel.map(|k| self.kernels[k.0 as usize].args[i].name.as_str()).unwrap_or("arg");
            match *arg {
                LaunchArg::Word(w) => writeln!(f, "         {name} = {w}")?,
                LaunchArg::Address { buffer, offset } => {
                    let holds = |s: &&Span| s.buffer == buffer && s.offset <= offset && offset < s.offset + s.bytes;
                    let read = launch.reads.iter().find(holds);
                    let write = launch.writes.iter().find(holds);
                    let access = match (read, write) {
                        (Some(_), Some(_)) => "reads and writes",
                        (_, Some(_)) => "writes",
                        _ => "reads",
                    };
                    let bytes = read.or(write).map_or(0, |s| s.bytes);
                    write!(f, "         {name} {access} ")?;
                    match buffer {
                        Buffer::Weight(w) => writeln!(f, "{}", self.graph.weight_of(w).name)?,
                        other => writeln!(f, "{other:?} {offset}..{}", offset + bytes)?,
                    }
                }
            }
        }
        Ok(())
    }
}
