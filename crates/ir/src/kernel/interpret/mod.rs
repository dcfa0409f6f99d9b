//! The meaning of a kernel, executable: a simulated GPU that also checks what real ones leave undefined.
//!
//! ```text
//! Kernel ─lower─► flat code ─┐
//! Memory, args, grid, seed ──┴─► tiles in random order ─► subgroups, interleaved ─► lanes under a mask ─► Memory
//! ```
//!
//! [`run`] either leaves the result of the launch in [`Memory`] or says where the kernel did something that is not
//! defined: see [`FaultKind`]. The order of tiles and the interleaving of subgroups between barriers follow
//! from [`Options::seed`]; races are found in every order, because accesses are compared by what orders them
//! (barriers of the workgroup and of the grid), not by when they happened. Only where tiles hand data to each other by
//! atomics does what is ordered depend on the order: see `order`, and run such a kernel with several seeds.
//!
//! Numbers: F32 operations are Rust's (denormals are kept); F16 operations round once; `min` and `max` return the
//! other operand for NaN; comparisons with NaN are false except `ne`; I32 division truncates. Reductions add in lane
//! order, matrices multiply and accumulate in f32 in order of k with one final rounding for F16 accumulators; a device
//! may use another order.
//!
//! Limits: a kernel without grid barriers has one tile at a time, and no tile can wait for another but at a grid
//! barrier. Tiles of a kernel with grid barriers are all in memory at once.

mod access;
mod arith;
mod control;
mod execute;
mod fault;
mod float;
mod lower;
mod matrix;
mod memory;
mod order;
mod races;
mod schedule;

pub use fault::{Fault, FaultKind};
pub use memory::{Access, BindError, Memory};

use super::inst::Kernel;
use super::verify::verify_structure;

/// How to run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Chooses the order of tiles and the interleaving of subgroups.
    pub seed: u64,
    /// Report races (shared and global) and broken `read_only` promises. Costs about half of the time.
    pub check_races: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options { seed: 0, check_races: true }
    }
}

/// Runs a launch of `grid` tiles. `args` are in the order of [`Kernel::args`], words in the low 32 bits.
///
/// The kernel may have non-uniform control flow around barriers and subgroup operations (which
/// [`verify`](super::verify()) refuses): that is reported when a lane is really missing.
///
/// # Errors
/// The first fault in the chosen order. Memory then holds what was written so far.
pub fn run(kernel: &Kernel, args: &[u64], grid: [u32; 3], memory: &mut Memory, options: &Options) -> Result<(), Fault> {
    let outside = |kind| Fault { kernel: kernel.name.as_str().into(), op: "".into(), tile: [0; 3], lane: 0, kind };
    verify_structure(kernel).map_err(|e| outside(FaultKind::Invalid(Box::new(e))))?;
    if args.len() != kernel.args.len() {
        let (given, expected) = (args.len(), kernel.args.len());
        return Err(outside(FaultKind::ArgCount { given, expected }));
    }
    for (arg, value) in kernel.args.iter().zip(args) {
        if arg.kind == super::ArgKind::Word && *value > u32::MAX as u64 {
            return Err(outside(FaultKind::WideWord { name: arg.name.clone(), value: *value }));
        }
    }
    let tiles = grid.iter().try_fold(1u32, |n, g| n.checked_mul(*g));
    let Some(tiles) = tiles.filter(|n| (1..races::MAX_TILES).contains(n)) else {
        return Err(outside(FaultKind::Grid(grid)));
    };
    schedule::launch(kernel, args, grid, tiles, memory, options)
}
