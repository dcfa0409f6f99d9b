//! Several launches of a plan as one: a persistent kernel whose workgroups stay and walk through all tiles.
//!
//! ```text
//! launch, barrier, launch, launch ─► for tile in (workgroup..tiles).step_by(workgroups) { body }
//!                                    grid barrier
//!                                    for tile … { body }   for tile … { body }
//! ```
//!
//! The bodies are those of the plan's kernels, operation by operation. What changes: addresses are computed from one
//! argument per buffer (per area of the KV pool); loads lose their `read_only` promise where this launch now writes the bytes; shared arrays of
//! one type lie in one place; a workgroup takes several tiles of a kernel with smaller ones, if they come to their barriers
//! together. See `docs/internals/persistent.md`.

use std::collections::BTreeMap;
use std::ops::Range;
use zinc_ir::kernel::{Arg, ArgKind, Builder, Kernel, Leaves, Op, Type, Val, VerifyError, verify};
use zinc_ir::plan::{self, Buffer, Entry, KernelId, Launch, LaunchArg, Plan, PlanError, Span};

/// Why launches do not become one.
#[derive(Debug, thiserror::Error)]
pub enum PersistentError {
    /// The range is outside the plan or has no launch.
    #[error("entries {0:?} of a plan of {1} hold no launch: name a range with launches")]
    NoLaunches(Range<usize>, usize),
    /// No workgroups.
    #[error("a persistent launch of 0 workgroups does nothing: give at least 1")]
    NoWorkgroups,
    /// A launch without kernel: the plan was made for a device that runs regions natively.
    #[error("{0} has no kernel: make the plan for a device that runs kernels")]
    NoKernel(&'static str),
    /// A kernel has smaller workgroups than another, and several of them cannot share a workgroup: their barriers depend
    /// on the tile, or one is no divisor of the other.
    #[error(
        "{wide} has workgroups of {wide_lanes} lanes, {narrow} of {narrow_lanes} that cannot run side by side: compile \
         the plan with cuts that make them equal (`Choices::tuned`), or for a device with a smaller `max_workgroup`"
    )]
    DifferentWorkgroups {
        /// Name of the kernel with the largest workgroups.
        wide: String,
        /// Its lanes.
        wide_lanes: u32,
        /// Name of the kernel that does not fit into them.
        narrow: String,
        /// Its lanes.
        narrow_lanes: u32,
    },
    /// The kernel that came out is malformed: a bug here.
    #[error("the persistent kernel is malformed, please report this: {0}")]
    BadKernel(#[from] VerifyError),
    /// The plan that came out is unsafe: a bug here, or the plan was unsafe before.
    #[error("the plan with a persistent launch is unsafe, please report this: {0}")]
    Unsafe(#[from] PlanError),
}

/// Alignment of the counter in scratch, as that of all values there.
const ALIGN: u64 = 256;

/// The plan with its `entries` (a range of [`Plan::entries`] with launches and the barriers between them) as one launch
/// of `workgroups` tiles, all of which the device must run at once. The counter of its grid barriers is cleared by a
/// launch at the start of the plan.
///
/// # Errors
/// See [`PersistentError`]. That a device takes the kernel (workgroup memory, bytes of arguments) is not checked here.
pub fn persistent(plan: &Plan, entries: Range<usize>, workgroups: u32) -> Result<Plan, PersistentError> {
    let phases = phases(plan, entries.clone())?;
    if workgroups == 0 {
        return Err(PersistentError::NoWorkgroups);
    }
    let counter = Span { buffer: Buffer::Scratch, offset: plan.scratch_bytes.next_multiple_of(ALIGN), bytes: 4 };
    let bases = bases(plan, &phases, counter);
    let kernel = fuse(plan, &phases, &bases, counter);
    verify(&kernel)?;
    let mut new = plan.clone();
    new.scratch_bytes = counter.offset + ALIGN;
    let launch = Launch {
        template: "persistent",
        region: phases.iter().flat_map(|p| p.launch.region.iter().copied()).collect(),
        layer: u32::MAX,
        kernel: Some(KernelId(new.kernels.len() as u32)),
        grid: [workgroups, 1, 1],
        args: bases.iter().map(|(area, base)| LaunchArg::Address { buffer: area.0, offset: base.first }).collect(),
        reads: spans(&bases, false).chain(outside_reads(&phases)).collect(),
        writes: spans(&bases, true).collect(),
        attends: None,
        bytes: phases.iter().map(|p| p.launch.bytes).sum(),
        flops: phases.iter().map(|p| p.launch.flops).sum(),
    };
    let clear = clear(KernelId(new.kernels.len() as u32 + 1), counter);
    new.kernels.extend([kernel, clear_kernel(phases[0].kernel.subgroup_size)]);
    // Barriers on both sides: the launch declares all between the first and the last byte that it touches of a buffer.
    let after = plan.entries[entries.end..].iter().cloned();
    new.entries = vec![Entry::Launch(clear)];
    new.entries.extend(plan.entries[..entries.start].iter().cloned());
    new.entries.extend([Entry::Barrier, Entry::Launch(launch), Entry::Barrier]);
    new.entries.extend(after);
    tidy(&mut new);
    plan::verify(&new)?;
    Ok(new)
}

/// A launch on its way into the kernel.
struct Phase<'p> {
    launch: &'p Launch,
    kernel: &'p Kernel,
    /// The plan has a barrier between it and the launch before.
    barrier: bool,
}

fn phases(plan: &Plan, range: Range<usize>) -> Result<Vec<Phase<'_>>, PersistentError> {
    let mut phases: Vec<Phase<'_>> = vec![];
    let mut barrier = false;
    for entry in plan.entries.get(range.clone()).unwrap_or_default() {
        let Entry::Launch(launch) = entry else {
            barrier = !phases.is_empty();
            continue;
        };
        let kernel = launch.kernel.and_then(|k| plan.kernels.get(k.0 as usize));
        let kernel = kernel.ok_or(PersistentError::NoKernel(launch.template))?;
        phases.push(Phase { launch, kernel, barrier: std::mem::take(&mut barrier) });
    }
    let Some(wide) = phases.iter().map(|p| p.kernel).max_by_key(|k| k.workgroup_size) else {
        return Err(PersistentError::NoLaunches(range, plan.entries.len()));
    };
    match phases.iter().find(|p| !fits(p, wide)) {
        None => Ok(phases),
        Some(p) => Err(PersistentError::DifferentWorkgroups {
            wide: wide.name.clone(),
            wide_lanes: wide.workgroup_size,
            narrow: p.kernel.name.clone(),
            narrow_lanes: p.kernel.workgroup_size,
        }),
    }
}

/// Can a workgroup of the size of `wide`'s run tiles of the phase, one or several side by side? Side by side, they must
/// come to their barriers together: the verifier knows.
fn fits(phase: &Phase<'_>, wide: &Kernel) -> bool {
    let kernel = phase.kernel;
    let alone = |op: &Op| matches!(op, Op::AtomicAdd { .. } | Op::MatrixStore { .. } | Op::GridBarrier { .. });
    if kernel.subgroup_size != wide.subgroup_size || !wide.workgroup_size.is_multiple_of(kernel.workgroup_size) {
        return false;
    }
    if kernel.workgroup_size == wide.workgroup_size {
        return true;
    }
    let b = Builder::new("trial", wide.workgroup_size, wide.subgroup_size);
    let args = kernel.args.iter().map(|a| b.arg(&a.name, a.kind)).collect();
    let shared = overlay(&b, std::slice::from_ref(phase), wide.workgroup_size).remove(0);
    !kernel.ops.iter().any(alone) && {
        walk(&b, kernel, args, phase.launch.grid, &shared, wide.workgroup_size);
        verify(&b.finish()).is_ok()
    }
}

/// A buffer, and of the KV pool the number of the area: a device may keep areas of different layers apart.
type Area = (Buffer, usize);

fn area(plan: &Plan, buffer: Buffer, offset: u64) -> Area {
    let starts = plan.kv.layers.iter().flat_map(|l| [l.k, l.v]);
    (buffer, if buffer == Buffer::Kv { starts.filter(|start| *start <= offset).count() } else { 0 })
}

/// The part of an area that the launches touch; its first byte becomes an argument.
struct Base {
    first: u64,
    end: u64,
    written: bool,
}

fn bases(plan: &Plan, phases: &[Phase<'_>], counter: Span) -> BTreeMap<Area, Base> {
    let mut bases: BTreeMap<Area, Base> = BTreeMap::new();
    let mut add = |span: &Span, written: bool| {
        let (first, end) = (span.offset, span.offset + span.bytes);
        let base = bases.entry(area(plan, span.buffer, first)).or_insert(Base { first, end, written });
        (base.first, base.end) = (base.first.min(first), base.end.max(end));
        base.written |= written;
    };
    for launch in phases.iter().map(|p| p.launch) {
        launch.reads.iter().for_each(|span| add(span, false));
        launch.writes.iter().for_each(|span| add(span, true));
    }
    add(&counter, true);
    bases
}

/// One span per area of which something is (or nothing is) written.
fn spans(bases: &BTreeMap<Area, Base>, written: bool) -> impl Iterator<Item = Span> + '_ {
    let of = move |(area, base): (&Area, &Base)| {
        let span = Span { buffer: area.0, offset: base.first, bytes: base.end - base.first };
        (base.written == written).then_some(span)
    };
    bases.iter().filter_map(of)
}

/// Scratch that comes from earlier launches: the proof asks who has written it.
fn outside_reads<'p>(phases: &'p [Phase<'p>]) -> impl Iterator<Item = Span> + 'p {
    let mut written: Vec<Span> = vec![];
    phases.iter().flat_map(move |p| {
        let inside = |s: &Span| written.iter().any(|w| w.overlaps(s));
        let reads = p.launch.reads.iter().filter(|s| s.buffer == Buffer::Scratch && !inside(s));
        let reads: Vec<Span> = reads.copied().collect();
        written.extend(&p.launch.writes);
        reads
    })
}

fn fuse(plan: &Plan, phases: &[Phase<'_>], bases: &BTreeMap<Area, Base>, counter: Span) -> Kernel {
    let lanes = phases.iter().map(|p| p.kernel.workgroup_size).max().unwrap_or_default();
    let b = Builder::new(format!("persistent_{}", phases.len()), lanes, phases[0].kernel.subgroup_size);
    let declare = |(area, base): (&Area, &Base)| {
        let kind = if base.written { ArgKind::ReadWrite } else { ArgKind::Read };
        (*area, (b.arg(&name_of(*area), kind), base.first))
    };
    let args: BTreeMap<Area, (Val<'_>, u64)> = bases.iter().map(declare).collect();
    let value = |arg: &LaunchArg| match arg {
        LaunchArg::Address { buffer, offset } => {
            let (base, first) = args[&area(plan, *buffer, *offset)];
            base + b.u64(offset - first)
        }
        LaunchArg::Word(word) => b.u32(*word),
    };
    let shared = overlay(&b, phases, lanes);
    let counter = value(&LaunchArg::Address { buffer: counter.buffer, offset: counter.offset });
    for (phase, shared) in phases.iter().zip(shared) {
        if phase.barrier {
            b.grid_barrier(counter, b.u32(0));
        }
        let kernel = keep_promises(phase, phases);
        walk(&b, &kernel, phase.launch.args.iter().map(value).collect(), phase.launch.grid, &shared, lanes);
    }
    b.finish()
}

/// A loop over the tiles of a kernel by workgroups of `lanes` lanes, each of which takes as many at once as fit.
fn walk<'b>(b: &'b Builder, kernel: &Kernel, args: Vec<Val<'b>>, grid: [u32; 3], shared: &[u32], lanes: u32) {
    let tiles: u32 = grid.iter().product();
    let (at_once, subgroups) = (lanes / kernel.workgroup_size, kernel.workgroup_size / kernel.subgroup_size);
    let grid_here = grid.map(|n| b.u32(n));
    b.for_with(b.tile(0) * at_once, b.u32(tiles), b.grid_size(0) * at_once, &[], false, |first, _| {
        let mut leaves = Leaves {
            args,
            tile: tile(b, first, grid),
            grid: grid_here,
            local_id: b.local_id(),
            subgroup_id: b.subgroup_id(),
            shared: shared.iter().map(|array| (*array, b.u32(0))).collect(),
            only: None,
        };
        if at_once > 1 {
            let slot = b.subgroup_id() / subgroups;
            let mut i = first + slot;
            if !tiles.is_multiple_of(at_once) {
                // Who has no tile left repeats the last, for the sake of its barriers.
                leaves.only = Some(i.lt(tiles));
                i = i.min(b.u32(tiles - 1));
            }
            leaves.tile = tile(b, i, grid);
            leaves.local_id = b.local_id() % kernel.workgroup_size;
            leaves.subgroup_id = b.subgroup_id() % subgroups;
            leaves.shared = shared.iter().zip(&kernel.shared).map(|(at, array)| (*at, slot * array.len)).collect();
        }
        b.splice(kernel, &leaves);
        // The next tile, or the next phase, may write what this one still reads.
        if !kernel.shared.is_empty() {
            b.barrier();
        }
        vec![]
    });
}

fn name_of((buffer, area): Area) -> String {
    match buffer {
        Buffer::Weight(w) => format!("weight{}", w.0),
        Buffer::Kv => format!("kv{area}"),
        other => format!("{other:?}").to_lowercase(),
    }
}

/// Tile number `i` of a grid, along each axis.
fn tile<'b>(b: &'b Builder, i: Val<'b>, grid: [u32; 3]) -> [Val<'b>; 3] {
    if grid[1] == 1 && grid[2] == 1 {
        return [i, b.u32(0), b.u32(0)];
    }
    [i % grid[0], i / grid[0] % grid[1], i / (grid[0] * grid[1])]
}

/// Shared arrays for all phases, which use them one after the other: the n-th array of a type is the same for all, as
/// long as the most tiles that a workgroup of `lanes` lanes runs at once need.
fn overlay(b: &Builder, phases: &[Phase<'_>], lanes: u32) -> Vec<Vec<u32>> {
    // Type, which one of the type, elements.
    let mut arrays: Vec<(Type, usize, u32)> = vec![];
    let mut places: Vec<Vec<usize>> = vec![];
    for phase in phases {
        let mut of_phase: Vec<usize> = vec![];
        for array in &phase.kernel.shared {
            let nth = of_phase.iter().filter(|i| arrays[**i].0 == array.ty).count();
            let known = arrays.iter().position(|a| (a.0, a.1) == (array.ty, nth));
            let at = known.unwrap_or(arrays.len());
            if at == arrays.len() {
                arrays.push((array.ty, nth, 0));
            }
            arrays[at].2 = arrays[at].2.max(array.len * (lanes / phase.kernel.workgroup_size));
            of_phase.push(at);
        }
        places.push(of_phase);
    }
    let declare = |(i, (ty, _, len)): (usize, &(Type, usize, u32))| b.shared(&format!("s{i}"), *ty, *len);
    let declared: Vec<u32> = arrays.iter().enumerate().map(declare).collect();
    places.into_iter().map(|p| p.into_iter().map(|i| declared[i]).collect()).collect()
}

/// The phase's kernel, whose loads promise `read_only` no more where another phase writes the bytes.
fn keep_promises(phase: &Phase<'_>, phases: &[Phase<'_>]) -> Kernel {
    let written = |span: &Span| phases.iter().any(|p| p.launch.writes.iter().any(|w| w.overlaps(span)));
    let holds = |(arg, place): (&Arg, &LaunchArg)| {
        let LaunchArg::Address { buffer, offset } = *place else { return arg.kind == ArgKind::Read };
        let inside = |s: &&Span| s.buffer == buffer && s.offset <= offset && offset < s.offset + s.bytes;
        arg.kind == ArgKind::Read && !phase.launch.reads.iter().filter(inside).any(written)
    };
    let holds: Vec<bool> = phase.kernel.args.iter().zip(&phase.launch.args).map(holds).collect();
    let mut kernel = phase.kernel.clone();
    for op in &mut kernel.ops {
        if let Op::Load { base, read_only, .. } = op {
            *read_only &= phase.kernel.argument_of(*base).is_some_and(|n| holds[n as usize]);
        }
    }
    kernel
}

/// The launch that sets a counter to 0.
fn clear(kernel: KernelId, counter: Span) -> Launch {
    Launch {
        template: "clear",
        region: vec![],
        layer: u32::MAX,
        kernel: Some(kernel),
        grid: [1; 3],
        args: vec![LaunchArg::Address { buffer: counter.buffer, offset: counter.offset }],
        reads: vec![],
        writes: vec![counter],
        attends: None,
        bytes: counter.bytes,
        flops: 0,
    }
}

fn clear_kernel(lanes: u32) -> Kernel {
    let b = Builder::new("clear", lanes, lanes);
    let counter = b.arg("counter", ArgKind::Write);
    b.if_(b.local_id().eq(0u32), || b.store(counter, b.u32(0), b.u32(0), 4));
    b.finish()
}

/// Drops barriers that follow one another or end the plan, and kernels without a launch.
fn tidy(plan: &mut Plan) {
    plan.entries.dedup_by(|a, b| matches!((a, b), (Entry::Barrier, Entry::Barrier)));
    plan.entries.pop_if(|last| matches!(last, Entry::Barrier));
    let mut ids: BTreeMap<u32, u32> = BTreeMap::new();
    let mut kernels = vec![];
    for entry in &mut plan.entries {
        let Entry::Launch(Launch { kernel: Some(id), .. }) = entry else { continue };
        let new = *ids.entry(id.0).or_insert_with(|| {
            kernels.push(plan.kernels[id.0 as usize].clone());
            kernels.len() as u32 - 1
        });
        *id = KernelId(new);
    }
    plan.kernels = kernels;
}

#[cfg(test)]
mod tests {
    use super::*;
    use zinc_ir::kernel::interpret::{Access, Memory, Options, run};

    /// Each tile of 8 lanes reverses its words through workgroup memory.
    fn reverse() -> Kernel {
        let b = Builder::new("reverse", 8, 4);
        let (x, y) = (b.arg("x", ArgKind::Read), b.arg("y", ArgKind::Write));
        let words = b.shared("words", Type::U32, 8);
        let at = b.tile(0) * 8u32 + b.tile(1) * 16u32;
        b.shared_store(words, b.local_id(), b.load(Type::U32, x, (at + b.local_id()) * 4u32, 4));
        b.barrier();
        let mirrored = b.shared_load(words, b.u32(7) - b.local_id());
        b.store(y, (at + b.subgroup_id() * 4u32 + b.lane()) * 4u32, mirrored, 4);
        b.finish()
    }

    fn outcome(kernel: &Kernel, grid: [u32; 3], tiles: u32) -> Vec<u8> {
        let mut memory = Memory::new();
        let x = memory.bind("x", (0..tiles * 8).flat_map(u32::to_le_bytes).collect(), Access::Read);
        let y = memory.bind_uninitialised("y", tiles as usize * 32);
        run(kernel, &[x, y], grid, &mut memory, &Options::default()).unwrap_or_else(|e| panic!("{e}"));
        memory.bytes(y).expect("bound").to_vec()
    }

    /// Side by side in wider workgroups, also where the last round has too few tiles.
    #[test]
    fn small_workgroups_run_side_by_side() {
        let kernel = reverse();
        for grid in [[1, 1, 1], [2, 1, 1], [2, 3, 1]] {
            let tiles = grid.iter().product();
            let expected = outcome(&kernel, grid, tiles);
            for (lanes, workgroups) in [(8, 1), (8, 3), (16, 1), (16, 2), (32, 1), (32, 5), (64, 2)] {
                let b = Builder::new("wide", lanes, 4);
                let args = kernel.args.iter().map(|a| b.arg(&a.name, a.kind)).collect();
                let words = b.shared("words", Type::U32, lanes);
                walk(&b, &kernel, args, grid, &[words], lanes);
                let wide = b.finish();
                assert_eq!(verify(&wide), Ok(()));
                assert_eq!(outcome(&wide, [workgroups, 1, 1], tiles), expected, "{grid:?}, {lanes} × {workgroups}");
            }
        }
    }
}
