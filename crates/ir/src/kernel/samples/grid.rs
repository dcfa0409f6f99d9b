//! Tiles that need each other: a barrier of the whole grid, and a last one that adds up what all have left.
//!
//! `grid_barrier` waits for other tiles, so all its tiles must run at once. It has two: software drivers with one thread
//! per processor run that many workgroups where there are two processors. The tiles of `last_arriver` wait for nobody;
//! it runs everywhere.

use super::super::{ArgKind, Builder, Order, Scalar, Type};
use super::{Access, Buffer, Compare, Expected, Sample, f32_bytes, input, output, small, u32_bytes};

pub(super) fn samples(subgroup: u32) -> Vec<Sample> {
    vec![grid_barrier(subgroup), last_arriver(subgroup)]
}

/// A counter that starts at 0.
fn counter(expected: u32) -> Buffer {
    let expected = Some(Expected { bytes: u32_bytes(&[expected]), compare: Compare::Exact });
    Buffer { label: "counter".to_string(), bytes: vec![0; 4], access: Access::ReadWrite, expected }
}

/// Each round every lane leaves a value and takes that of the mirrored lane of the other tile.
fn grid_barrier(subgroup: u32) -> Sample {
    let (workgroup, tiles, rounds) = (subgroup * 2, 2, 3);
    let n = workgroup * tiles;
    let b = Builder::new("grid_barrier", workgroup, subgroup);
    let (counter_at, y) = (b.arg("counter", ArgKind::ReadWrite), b.arg("y", ArgKind::ReadWrite));
    let place = b.tile(0) * workgroup + b.local_id();
    let mirrored = (b.grid_size(0) * workgroup - 1u32) - place;
    b.for_(b.u32(0), b.u32(rounds), 1, &[place], |round, value| {
        // Two halves by turns: nobody overwrites what others still read.
        let half = (round & 1u32) * n;
        b.store(y, (half + place) * 4u32, value[0], 4);
        b.grid_barrier(counter_at, b.u32(0));
        let other = b.load_at(Type::U32, y, (half + mirrored) * 4u32, 0, 4, false);
        vec![other * 3u32 + b.local_id()]
    });
    let mut values: Vec<u32> = (0..n).collect();
    let mut halves = [vec![0; n as usize], vec![0; n as usize]];
    for round in 0..rounds as usize {
        halves[round % 2].clone_from(&values);
        let next = |i: u32| halves[round % 2][(n - 1 - i) as usize] * 3 + i % workgroup;
        values = (0..n).map(next).collect();
    }
    Sample {
        kernel: b.finish(),
        buffers: vec![counter(tiles * rounds), output("y", u32_bytes(&halves.concat()), Compare::Exact)],
        words: vec![],
        grid: [tiles, 1, 1],
    }
}

/// Every tile leaves partial sums and counts itself; the one that comes last adds them up.
fn last_arriver(subgroup: u32) -> Sample {
    let (workgroup, tiles) = (subgroup * 2, 5);
    let b = Builder::new("last_arriver", workgroup, subgroup);
    let x = b.arg("x", ArgKind::Read);
    let (partial, counter_at) = (b.arg("partial", ArgKind::ReadWrite), b.arg("counter", ArgKind::ReadWrite));
    let y = b.arg("y", ArgKind::Write);
    let before = b.shared("before", Type::U32, 1);
    let place = b.tile(0) * workgroup + b.local_id();
    let two = b.load(Type::Vec(Scalar::F32, 2), x, place * 8u32, 8);
    b.store(partial, place * 4u32, two.sum_lanes(), 4);
    b.barrier();
    b.if_(b.local_id().eq(0u32), || {
        let come = b.atomic_add(counter_at, b.u32(0), b.u32(1), Order::AcquireRelease);
        b.shared_store(before, b.u32(0), come);
    });
    b.barrier();
    b.if_(b.shared_load(before, b.u32(0)).eq(b.grid_size(0) - 1u32), || {
        let sum = b.for_(b.u32(0), b.grid_size(0), 1, &[b.f32(0.0)], |tile, sum| {
            let at = (tile * workgroup + b.local_id()) * 4u32;
            vec![sum[0] + b.load_at(Type::F32, partial, at, 0, 4, false)]
        });
        b.store(y, b.local_id() * 4u32, sum[0], 4);
    });
    let n = workgroup * tiles;
    // Multiples of 2^-11 below 1: every order of addition is exact.
    let xs: Vec<f32> = (0..2 * n).map(small).collect();
    let partials: Vec<f32> = xs.chunks_exact(2).map(|two| two[0] + two[1]).collect();
    let of_lane = |l: u32| (0..tiles).map(|t| partials[(t * workgroup + l) as usize]).sum::<f32>();
    let sums: Vec<f32> = (0..workgroup).map(of_lane).collect();
    Sample {
        kernel: b.finish(),
        buffers: vec![
            input("x", f32_bytes(&xs)),
            output("partial", f32_bytes(&partials), Compare::Exact),
            counter(tiles),
            output("y", f32_bytes(&sums), Compare::Exact),
        ],
        words: vec![],
        grid: [tiles, 1, 1],
    }
}
