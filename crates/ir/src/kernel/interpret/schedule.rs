//! Who runs when: tiles in random order, subgroups of a tile interleaved at random.
//!
//! ```text
//! seed ─► order of tiles ─► loop { pick a subgroup, run it for some accesses; all at one barrier: next interval }
//! ```
//!
//! A tile runs to its end before the next starts, unless the kernel has a grid barrier: then all tiles are alive from
//! the start and take turns, and when none can go on, all must be at one grid barrier or at their end.

use super::super::inst::{Kernel, Op, Value};
use super::super::text;
use super::execute::{Machine, Pause, Stop, Subgroup, Tile};
use super::lower::Program;
use super::memory::{self, Memory};
use super::races::{How, Shadow, Who};
use super::{Fault, FaultKind, Options};
use std::collections::HashMap;

/// SplitMix64.
pub(super) struct Random(pub(super) u64);

impl Random {
    fn below(&mut self, n: u32) -> u32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((x ^ (x >> 31)) >> 32) as u32 % n
    }
}

/// 0..n in random order.
pub(super) fn shuffled(n: u32, random: &mut Random) -> Vec<u32> {
    let mut order: Vec<u32> = (0..n).collect();
    for left in (1..n).rev() {
        order.swap(left as usize, random.below(left + 1) as usize);
    }
    order
}

/// A tile and how far it is.
struct Running {
    place: [u32; 3],
    tile: Tile,
    subgroups: Vec<Subgroup>,
    state: State,
}

#[derive(Clone, Copy, PartialEq)]
enum State {
    Ready,
    /// All lanes are at this grid barrier.
    Waits(Value),
    Done,
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
    let tile = Tile::new(&program);
    let (seed, layouts) = (options.seed, HashMap::new());
    let mut machine = Machine { program: &program, memory, shadow, tile, epoch: 0, seed, layouts };
    let order = shuffled(tiles, &mut random);
    let place = |linear: u32| [linear % grid[0], linear / grid[0] % grid[1], linear / grid[0] / grid[1]];
    let fault = |tile: [u32; 3], stop: Stop| {
        let op = stop.at.map(|v| text::line_of(kernel, v)).unwrap_or_default();
        Fault { kernel: kernel.name.as_str().into(), op: op.into(), tile, lane: stop.lane, kind: stop.kind }
    };
    if kernel.has_grid_barrier() {
        let start = |linear: &u32| {
            let mut running = Running::new(&program, args, grid);
            running.restart(&program, *linear, place(*linear));
            running
        };
        return together(&mut machine, order.iter().map(start).collect(), &mut random)
            .map_err(|(tile, stop)| fault(tile, stop));
    }
    let mut running = Running::new(&program, args, grid);
    for linear in order {
        running.restart(&program, linear, place(linear));
        while running.state == State::Ready {
            running.turn(&mut machine, &mut random, u32::MAX, true).map_err(|stop| fault(running.place, stop))?;
        }
    }
    Ok(())
}

/// All tiles by turns, in random order, from grid barrier to grid barrier.
fn together(machine: &mut Machine, mut tiles: Vec<Running>, random: &mut Random) -> Result<(), ([u32; 3], Stop)> {
    loop {
        let ready: Vec<usize> = (0..tiles.len()).filter(|i| tiles[*i].state == State::Ready).collect();
        if ready.is_empty() {
            if grid_barrier(machine, &mut tiles)? {
                return Ok(());
            }
            continue;
        }
        let tile = &mut tiles[ready[random.below(ready.len() as u32) as usize]];
        // Mostly a short turn, sometimes nearly to the grid barrier.
        let turns = 1 << random.below(10);
        tile.turn(machine, random, turns, ready.len() == 1).map_err(|stop| (tile.place, stop))?;
    }
}

impl Running {
    fn new(program: &Program, args: &[u64], grid: [u32; 3]) -> Running {
        let count = program.kernel.workgroup_size / program.kernel.subgroup_size;
        let subgroups = (0..count).map(|i| Subgroup::new(program, i, args, grid)).collect();
        Running { place: [0; 3], tile: Tile::new(program), subgroups, state: State::Ready }
    }

    fn restart(&mut self, program: &Program, linear: u32, place: [u32; 3]) {
        self.place = place;
        self.tile.restart(linear);
        self.subgroups.iter_mut().for_each(|s| s.restart(program, place));
        self.state = State::Ready;
    }

    /// Runs subgroups for up to `turns` turns, or until the tile waits for others or ends. `alone`: no other tile can run.
    fn turn(&mut self, machine: &mut Machine, random: &mut Random, turns: u32, alone: bool) -> Result<(), Stop> {
        std::mem::swap(&mut machine.tile, &mut self.tile);
        let outcome = self.subgroup_turns(machine, random, turns, alone);
        std::mem::swap(&mut machine.tile, &mut self.tile);
        outcome
    }

    fn subgroup_turns(
        &mut self,
        machine: &mut Machine,
        random: &mut Random,
        turns: u32,
        alone: bool,
    ) -> Result<(), Stop> {
        let subgroups = &mut self.subgroups;
        for _ in 0..turns {
            let runnable: Vec<usize> =
                (0..subgroups.len()).filter(|i| subgroups[*i].pause == Pause::Preempted).collect();
            if runnable.is_empty() {
                match barrier(subgroups)? {
                    None => {
                        self.state = State::Done;
                        return Ok(());
                    }
                    Some(at) if matches!(machine.program.kernel.op(at), Op::GridBarrier { .. }) => {
                        self.state = State::Waits(at);
                        return Ok(());
                    }
                    Some(_) => {
                        subgroups.iter_mut().for_each(|s| s.pause = Pause::Preempted);
                        machine.tile.pass_barrier();
                        continue;
                    }
                }
            }
            let s = &mut subgroups[runnable[random.below(runnable.len() as u32) as usize]];
            // Alone there is nobody to let in; otherwise mostly short runs, sometimes nearly to the barrier.
            let scale = 1 << random.below(7);
            let accesses = if alone && runnable.len() == 1 { u32::MAX } else { 1 + random.below(scale) };
            s.pause = machine.advance(s, accesses)?;
        }
        Ok(())
    }

    /// Where the counter of the grid barrier `at` is: one address for all lanes.
    fn counter(&self, program: &Program, at: Value) -> Result<u64, Stop> {
        let Op::GridBarrier { base, offset } = program.kernel.op(at) else { return Ok(0) };
        let mut found = None;
        for s in &self.subgroups {
            let (base, offset) = (&s.columns[program.columns_of(*base)], &s.columns[program.columns_of(*offset)]);
            for (lane, (base, offset)) in base.iter().zip(offset).enumerate() {
                let address = base.wrapping_add(*offset);
                if *found.get_or_insert(address) != address {
                    let detail = "its counter is at another address than for an earlier lane of the tile";
                    return Err(stop_at(at, s.first + lane as u32, detail));
                }
            }
        }
        Ok(found.unwrap_or_default())
    }
}

fn stop_at(at: Value, lane: u32, detail: impl Into<String>) -> Stop {
    Stop { at: Some(at), lane, kind: FaultKind::GridBarrier(detail.into()) }
}

/// All subgroups wait or are done. None when all are done; otherwise all must wait at one barrier: this one.
fn barrier(subgroups: &[Subgroup]) -> Result<Option<Value>, Stop> {
    let waits = |s: &Subgroup| match s.pause {
        Pause::Barrier(at) => Some(at),
        _ => None,
    };
    let Some((first, at)) = subgroups.iter().find_map(|s| Some((s.first, waits(s)?))) else { return Ok(None) };
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
    Ok(Some(at))
}

/// All tiles wait or are done. True when all are done; otherwise all must wait at one grid barrier, and pass it.
fn grid_barrier(machine: &mut Machine, tiles: &mut [Running]) -> Result<bool, ([u32; 3], Stop)> {
    let waits = |t: &Running| match t.state {
        State::Waits(at) => Some(at),
        _ => None,
    };
    let Some((first, at)) = tiles.iter().find_map(|t| Some((t.place, waits(t)?))) else { return Ok(true) };
    for t in tiles.iter() {
        match waits(t) {
            None => {
                let detail = format!("this tile ends without reaching it, and tile {first:?} waits there for ever");
                return Err((t.place, stop_at(at, 0, detail)));
            }
            Some(other) if other != at => {
                let detail = format!("tile {first:?} waits at another one");
                return Err((t.place, stop_at(other, 0, detail)));
            }
            _ => {}
        }
    }
    let counters = tiles.iter().map(|t| t.counter(machine.program, at).map_err(|stop| (t.place, stop)));
    let counters = counters.collect::<Result<Vec<u64>, _>>()?;
    if let Some(i) = counters.iter().position(|c| *c != counters[0]) {
        let detail = format!("its counter is at {:#x}, that of tile {first:?} at {:#x}", counters[i], counters[0]);
        return Err((tiles[i].place, stop_at(at, 0, detail)));
    }
    for (come, t) in tiles.iter().enumerate() {
        arrive(machine, &t.tile, counters[0], come as u32, tiles.len() as u32)
            .map_err(|kind| (t.place, Stop { at: Some(at), lane: 0, kind }))?;
    }
    machine.epoch += 1;
    if let Some(shadow) = &mut machine.shadow {
        shadow.new_epoch();
    }
    for t in tiles.iter_mut() {
        t.subgroups.iter_mut().for_each(|s| s.pause = Pause::Preempted);
        t.tile.pass_grid_barrier();
        t.state = State::Ready;
    }
    Ok(false)
}

/// Counts one tile at a grid barrier, after `come` others of `tiles`.
fn arrive(machine: &mut Machine, tile: &Tile, counter: u64, come: u32, tiles: u32) -> Result<(), FaultKind> {
    let at = machine.locate(counter, 4, 4)?;
    let old = memory::get(machine.memory.read(at, 4)?) as u32;
    if old % tiles != come || u32::MAX - old < tiles {
        let detail = format!("its counter is {old} when tile {come} of {tiles} comes: let it be 0 before the launch");
        return Err(FaultKind::GridBarrier(detail));
    }
    memory::put(machine.memory.write(at, 4)?, old as u64 + 1);
    let Tile { linear: tile_number, interval, .. } = *tile;
    let who = Who { epoch: machine.epoch, tile: tile_number, interval, step: 0, subgroup: 0, lane: 0 };
    match &mut machine.shadow {
        Some(shadow) => shadow.touch(machine.memory, at, 4, who, How::Atomic, &tile.known),
        None => Ok(()),
    }
}
