//! Places values in scratch by lifetime, turns sketches into launches, and puts a barrier before every launch that
//! conflicts with one since the last barrier.

use crate::template::{Access, Ctx, Emission, LaunchSketch, Operand};
use crate::{CompileError, Region, cost};
use std::collections::HashMap;
use zinc_ir::graph::NodeId;
use zinc_ir::kernel::ArgKind;
use zinc_ir::plan::{
    Buffer, CHAIN_ROWS, Entry, InputLayout, KernelId, Launch, LaunchArg, Plan, Span, conflict, weight_bytes,
};

/// Alignment of values in scratch; a cache line pair of every GPU we know.
const ALIGN: u64 = 256;

pub(crate) fn schedule(
    ctx: &Ctx<'_>,
    inputs: &InputLayout,
    regions: Vec<Region>,
    emissions: Vec<Emission>,
) -> Result<Plan, CompileError> {
    let places = place(ctx, &regions, &emissions);
    let mut plan = Plan {
        graph: ctx.graph.clone(),
        bucket: ctx.bucket,
        act: ctx.choices.act,
        kv: ctx.kv.clone(),
        inputs: inputs.clone(),
        output: ctx.output,
        kernels: vec![],
        entries: vec![],
        scratch_bytes: places.bytes,
        output_bytes: match ctx.logits_beside() {
            Some(logits) => ctx.bucket.logits_offset() + ctx.value_bytes(logits),
            None => ctx.output.map_or(0, |o| ctx.value_bytes(o)),
        },
    };
    let mut known: HashMap<u128, KernelId> = HashMap::new();
    let mut since_barrier: Vec<Launch> = vec![];
    for (index, (region, emission)) in regions.iter().zip(emissions).enumerate() {
        let mut launches = vec![];
        if ctx.caps.native {
            launches.push(bare_launch(ctx, region));
        }
        let count = emission.launches.len();
        for (i, sketch) in emission.launches.into_iter().enumerate() {
            let mut launch = finish(ctx, &places, inputs, index, region, &sketch);
            if i + 1 < count {
                // The region stands at its last launch.
                launch.region = vec![];
            }
            let print = sketch.kernel.fingerprint();
            let next = KernelId(plan.kernels.len() as u32);
            let id = *known.entry(print).or_insert(next);
            if id == next {
                plan.kernels.push(sketch.kernel);
            }
            launch.kernel = Some(id);
            launches.push(launch);
        }
        for launch in launches {
            if since_barrier.iter().any(|earlier| conflict(earlier, &launch).is_some()) {
                plan.entries.push(Entry::Barrier);
                since_barrier.clear();
            }
            since_barrier.push(launch.clone());
            plan.entries.push(Entry::Launch(launch));
        }
    }
    Ok(plan)
}

/// Where each value and each region's temporaries are in scratch.
struct Places {
    values: HashMap<NodeId, u64>,
    temps: Vec<Vec<(u64, u64)>>,
    bytes: u64,
}

/// First fit over lifetimes: a value lives from its region to its last reader's region.
fn place(ctx: &Ctx<'_>, regions: &[Region], emissions: &[Emission]) -> Places {
    let mut places = Places { values: HashMap::new(), temps: vec![], bytes: 0 };
    if ctx.caps.native {
        places.temps = vec![vec![]; regions.len()];
        return places;
    }
    let mut last_use: HashMap<NodeId, usize> = HashMap::new();
    for (i, region) in regions.iter().enumerate() {
        for input in region.nodes.iter().flat_map(|n| ctx.graph.op(*n).inputs()) {
            last_use.insert(input, i);
        }
    }
    // Live blocks: (start, end, last region that needs it).
    let mut live: Vec<(u64, u64, usize)> = vec![];
    for (i, (region, emission)) in regions.iter().zip(emissions).enumerate() {
        live.retain(|block| block.2 >= i);
        let mut take = |bytes: u64, until: usize| {
            let bytes = bytes.next_multiple_of(ALIGN);
            live.sort();
            let mut at = 0;
            for block in &live {
                if at + bytes <= block.0 {
                    break;
                }
                at = at.max(block.1);
            }
            live.push((at, at + bytes, until));
            places.bytes = places.bytes.max(at + bytes);
            at
        };
        for &node in &region.nodes {
            let read_outside = last_use.get(&node).is_some_and(|last| *last > i);
            if read_outside && !ctx.leaves(node) && ctx.cols(node) > 0 {
                let at = take(ctx.value_bytes(node), last_use[&node]);
                places.values.insert(node, at);
            }
        }
        let temps = emission.temps.iter().map(|bytes| (take(*bytes, i), *bytes)).collect();
        places.temps.push(temps);
    }
    places
}

fn span_of(ctx: &Ctx<'_>, places: &Places, inputs: &InputLayout, region: usize, operand: Operand) -> Span {
    match operand {
        Operand::Value(node) if Some(node) == ctx.output => {
            Span { buffer: Buffer::Output, offset: 0, bytes: ctx.value_bytes(node) }
        }
        Operand::Value(node) if Some(node) == ctx.logits_beside() => {
            Span { buffer: Buffer::Output, offset: ctx.bucket.logits_offset(), bytes: ctx.value_bytes(node) }
        }
        Operand::Value(node) => {
            let offset = places.values[&node];
            Span { buffer: Buffer::Scratch, offset, bytes: ctx.value_bytes(node) }
        }
        Operand::Weight(w) => Span { buffer: Buffer::Weight(w), offset: 0, bytes: weight_bytes(ctx.graph, w) },
        Operand::Input(input) => {
            let (offset, bytes) = inputs.span(input);
            Span { buffer: Buffer::Inputs, offset, bytes }
        }
        Operand::KvK(layer) => {
            let area = ctx.kv.layers[layer as usize];
            Span {
                buffer: Buffer::Kv,
                offset: area.k,
                bytes: ctx.kv.pages as u64 * area.page_bytes(ctx.kv.types.k) as u64,
            }
        }
        Operand::KvV(layer) => {
            let area = ctx.kv.layers[layer as usize];
            Span {
                buffer: Buffer::Kv,
                offset: area.v,
                bytes: ctx.kv.pages as u64 * area.page_bytes(ctx.kv.types.v) as u64,
            }
        }
        Operand::Chain => Span { buffer: Buffer::Chain, offset: 0, bytes: CHAIN_ROWS as u64 * 4 },
        Operand::Counters(n) => Span { buffer: Buffer::Counters, offset: 0, bytes: n as u64 * 4 },
        Operand::Temp(i) => {
            let (offset, bytes) = places.temps[region][i];
            Span { buffer: Buffer::Scratch, offset, bytes }
        }
    }
}

fn finish(
    ctx: &Ctx<'_>,
    places: &Places,
    inputs: &InputLayout,
    index: usize,
    region: &Region,
    sketch: &LaunchSketch,
) -> Launch {
    let mut launch = bare_launch(ctx, region);
    launch.grid = sketch.grid;
    let temps: Vec<u64> = places.temps[index].iter().map(|(_, bytes)| *bytes).collect();
    let (cost, attends) = cost::of_launch(ctx, region, &sketch.args, &temps);
    (launch.bytes, launch.flops, launch.attends) = (cost.bytes, cost.flops, attends);
    debug_assert_eq!(sketch.args.len(), sketch.kernel.args.len(), "{}: arguments", sketch.kernel.name);
    for ((operand, access), arg) in sketch.args.iter().zip(&sketch.kernel.args) {
        let declared = matches!(
            (access, arg.kind),
            (Access::Read, ArgKind::Read)
                | (Access::Write, ArgKind::Write)
                | (Access::ReadWrite | Access::WriteRead, ArgKind::ReadWrite)
        );
        debug_assert!(declared, "{}: access of {}", sketch.kernel.name, arg.name);
        let span = span_of(ctx, places, inputs, index, *operand);
        launch.args.push(LaunchArg::Address { buffer: span.buffer, offset: span.offset });
        if matches!(access, Access::Read | Access::ReadWrite) {
            launch.reads.push(span);
        }
        if *access != Access::Read {
            launch.writes.push(span);
        }
    }
    launch
}

/// A region as one launch without kernel, arguments and spans: all that a native device needs, since it keeps values
/// itself and runs in order. [`finish`] adds the rest for the others.
fn bare_launch(ctx: &Ctx<'_>, region: &Region) -> Launch {
    let (cost, attends) = cost::of_region(ctx, region);
    Launch {
        template: region.template.name,
        region: region.nodes.clone(),
        layer: ctx.graph.node(region.last()).layer,
        kernel: None,
        grid: [1; 3],
        args: vec![],
        reads: vec![],
        writes: vec![],
        attends,
        bytes: cost.bytes,
        flops: cost.flops,
    }
}
