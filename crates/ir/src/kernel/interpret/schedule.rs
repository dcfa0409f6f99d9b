//! Who runs when: tiles in random order, subgroups of a tile interleaved at random.
//!
//! ```text
//! seed ─► order of tiles ─► loop { pick a subgroup, run it for some accesses; all at one barrier: next interval }
//! ```

use super::super::inst::{Kernel, Value};
use super::super::text;
use super::access::SharedArray;
use super::execute::{Machine, Pause, Stop, Subgroup};
use super::lower::Program;
use super::memory::Memory;
use super::races::Shadow;
use super::{Fault, FaultKind, Options};

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u32) -> u32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((x ^ (x >> 31)) >> 32) as u32 % n
    }
}

pub(super) fn launch(
    kernel: &Kernel,
    args: &[u64],
    grid: [u32; 3],
    tiles: u32,
    memory: &mut Memory,
    options: &Options,
) -> Result<(), Fault> {
    let program = Program::new(kernel);
    let mut random = Random(options.seed);
    let shadow = options.check_races.then(|| Shadow::new(memory));
    let shared = kernel.shared.iter().map(SharedArray::new).collect();
    let mut machine = Machine { program: &program, memory, shadow, shared, tile: 0, interval: 0 };
    let count = kernel.workgroup_size / kernel.subgroup_size;
    let mut subgroups: Vec<Subgroup> = (0..count).map(|i| Subgroup::new(&program, i, args)).collect();
    let mut order: Vec<u32> = (0..tiles).collect();
    for left in (1..tiles).rev() {
        order.swap(left as usize, random.below(left + 1) as usize);
    }
    for linear in order {
        let tile = [linear % grid[0], linear / grid[0] % grid[1], linear / grid[0] / grid[1]];
        machine.tile = linear;
        machine.interval = 0;
        subgroups.iter_mut().for_each(|s| s.restart(&program, tile));
        one_tile(&mut machine, &mut subgroups, &mut random).map_err(|stop| {
            let op = stop.at.map(|v| text::line_of(kernel, v)).unwrap_or_default();
            Fault { kernel: kernel.name.as_str().into(), op: op.into(), tile, lane: stop.lane, kind: stop.kind }
        })?;
    }
    Ok(())
}

fn one_tile(machine: &mut Machine, subgroups: &mut [Subgroup], random: &mut Random) -> Result<(), Stop> {
    loop {
        let runnable: Vec<usize> = (0..subgroups.len()).filter(|i| subgroups[*i].pause == Pause::Preempted).collect();
        if runnable.is_empty() {
            if barrier(subgroups)? {
                return Ok(());
            }
            machine.interval += 1;
            continue;
        }
        let s = &mut subgroups[runnable[random.below(runnable.len() as u32) as usize]];
        // Alone there is nobody to let in; otherwise mostly short runs, sometimes nearly to the barrier.
        let scale = 1 << random.below(7);
        let accesses = if runnable.len() == 1 { u32::MAX } else { 1 + random.below(scale) };
        s.pause = machine.advance(s, accesses)?;
    }
}

/// Everybody waits or is done. True when all are done; otherwise all must wait at one barrier, and pass it.
fn barrier(subgroups: &mut [Subgroup]) -> Result<bool, Stop> {
    let waits = |s: &Subgroup| match s.pause {
        Pause::Barrier(at) => Some(at),
        _ => None,
    };
    let Some((first, at)) = subgroups.iter().find_map(|s| Some((s.first, waits(s)?))) else { return Ok(true) };
    let fail = |lane: u32, at: Value, detail: &str| {
        Err(Stop { at: Some(at), lane, kind: FaultKind::BarrierDivergence(detail.to_string()) })
    };
    for s in subgroups.iter() {
        match waits(s) {
            None => return fail(s.first, at, "this lane's subgroup ends without reaching it"),
            Some(other) if other != at => {
                let detail = format!("lane {first} of the tile waits at another barrier");
                return fail(s.first, other, &detail);
            }
            _ => {}
        }
    }
    subgroups.iter_mut().for_each(|s| s.pause = Pause::Preempted);
    Ok(false)
}
