//! Loads, stores, shared memory, atomics.

use super::super::{ArgKind, Builder, Order, Scalar, Type};
use super::{Access, Buffer, Compare, Expected, Sample, f32_bytes, input, noise, output, small, u32_bytes};
use Scalar::*;

pub(super) fn samples(subgroup: u32) -> Vec<Sample> {
    let mut samples = vec![];
    for scalar in [I8, U8, U16, I32, U32, U64, F16, F32] {
        for lanes in [1, 2, 4] {
            if scalar.bytes() * lanes as u32 <= 16 {
                samples.push(copy(subgroup, Type::Vec(scalar, lanes)));
            }
        }
    }
    for ty in [Type::F32, Type::F32X4, Type::F16, Type::Vec(U8, 4), Type::U64] {
        samples.push(shared_reverse(subgroup, ty));
    }
    samples.extend([
        narrow_alignment(subgroup),
        workgroup_sum(subgroup),
        tickets(subgroup),
        atomic_histogram(subgroup),
        tiles_and_words(subgroup),
        many_arguments(subgroup),
    ]);
    samples
}

/// Bytes that are finite floats of any width.
fn finite_bytes(len: u32) -> Vec<u8> {
    (0..len).map(|i| (noise(i) % 0x3c) as u8 + 4).collect()
}

fn name_of(ty: Type) -> String {
    match ty {
        Type::Vec(s, n) => format!("{s:?}x{n}").to_lowercase(),
        _ => String::new(),
    }
}

/// Element i to place i, through a displaced load and a second one straight after.
fn copy(subgroup: u32, ty: Type) -> Sample {
    let workgroup = subgroup * 2;
    let size = ty.bytes();
    let b = Builder::new(format!("copy_{}", name_of(ty)), workgroup, subgroup);
    let (x, y) = (b.arg("x", ArgKind::Read), b.arg("y", ArgKind::Write));
    let i = b.tile(0) * workgroup + b.local_id();
    let first = b.load_at(ty, x, i * size, 4 * size, size as u8, true);
    b.store(y, i * size, first, size as u8);
    let n = workgroup * 3;
    let bytes = finite_bytes((n + 4) * size);
    let expected = bytes[4 * size as usize..].to_vec();
    Sample {
        kernel: b.finish(),
        buffers: vec![input("x", bytes), output("y", expected, Compare::Exact)],
        words: vec![],
        grid: [3, 1, 1],
    }
}

/// Vectors at addresses that are only aligned to their element.
fn narrow_alignment(subgroup: u32) -> Sample {
    let b = Builder::new("narrow_alignment", subgroup, subgroup);
    let (x, y) = (b.arg("x", ArgKind::Read), b.arg("y", ArgKind::Write));
    let i = b.lane();
    // 18-byte blocks: an F16 and 16 bytes, as in quantised weights.
    let scale = b.load(Type::F16, x, i * 18u32, 2);
    let low = b.load_at(Type::Vec(U16, 4), x, i * 18u32, 2, 2, true);
    let high = b.load_at(Type::Vec(U8, 4), x, i * 18u32, 13, 1, true);
    b.store(y, i * 14u32, scale, 2);
    b.store(y, i * 14u32 + 2u32, low, 2);
    b.store(y, i * 14u32 + 10u32, high, 1);
    let bytes = finite_bytes(subgroup * 18);
    let mut expected = vec![];
    for block in bytes.chunks_exact(18) {
        expected.extend(&block[0..10]);
        expected.extend(&block[13..17]);
    }
    Sample {
        kernel: b.finish(),
        buffers: vec![input("x", bytes), output("y", expected, Compare::Exact)],
        words: vec![],
        grid: [1, 1, 1],
    }
}

/// Each tile reverses its elements through shared memory, twice in a loop so that the array is reused.
fn shared_reverse(subgroup: u32, ty: Type) -> Sample {
    let workgroup = subgroup * 4;
    let size = ty.bytes();
    let b = Builder::new(format!("shared_reverse_{}", name_of(ty)), workgroup, subgroup);
    let (x, y) = (b.arg("x", ArgKind::Read), b.arg("y", ArgKind::Write));
    let tile = b.shared("tile", ty, workgroup);
    b.for_(b.u32(0), b.u32(2), 1, &[], |round, _| {
        let start = (b.tile(0) * 2u32 + round) * workgroup;
        let i = start + b.local_id();
        b.shared_store(tile, b.local_id(), b.load(ty, x, i * size, size as u8));
        b.barrier();
        let mirrored = b.shared_load(tile, b.u32(workgroup - 1) - b.local_id());
        b.store(y, i * size, mirrored, size as u8);
        b.barrier();
        vec![]
    });
    let bytes = finite_bytes(workgroup * 4 * size);
    let mut expected = vec![];
    for part in bytes.chunks_exact((workgroup * size) as usize) {
        part.chunks_exact(size as usize).rev().for_each(|element| expected.extend(element));
    }
    Sample {
        kernel: b.finish(),
        buffers: vec![input("x", bytes), output("y", expected, Compare::Exact)],
        words: vec![],
        grid: [2, 1, 1],
    }
}

/// Sum over the workgroup: subgroup sums meet in shared memory.
fn workgroup_sum(subgroup: u32) -> Sample {
    let (groups, tiles) = (4, 3);
    let workgroup = subgroup * groups;
    let b = Builder::new("workgroup_sum", workgroup, subgroup);
    let (x, y) = (b.arg("x", ArgKind::Read), b.arg("y", ArgKind::Write));
    let partial = b.shared("partial", Type::F32, groups);
    let i = b.tile(0) * workgroup + b.local_id();
    let sum = b.load(Type::F32, x, i * 4u32, 4).subgroup_add();
    b.if_(b.lane().eq(0u32), || b.shared_store(partial, b.subgroup_id(), sum));
    b.barrier();
    let total =
        b.for_(b.u32(0), b.u32(groups), 1, &[b.f32(0.0)], |g, total| vec![total[0] + b.shared_load(partial, g)]);
    b.if_(b.local_id().eq(0u32), || b.store(y, b.tile(0) * 4u32, total[0], 4));
    // Multiples of 2^-11 below 1: every order of addition is exact.
    let xs: Vec<f32> = (0..workgroup * tiles).map(small).collect();
    let sums: Vec<f32> = xs.chunks_exact(workgroup as usize).map(|tile| tile.iter().sum()).collect();
    Sample {
        kernel: b.finish(),
        buffers: vec![input("x", f32_bytes(&xs)), output("y", f32_bytes(&sums), Compare::Exact)],
        words: vec![],
        grid: [tiles, 1, 1],
    }
}

fn read_write(label: &str, bytes: Vec<u8>, expected: Vec<u8>) -> Buffer {
    let expected = Some(Expected { bytes: expected, compare: Compare::Exact });
    Buffer { label: label.to_string(), bytes, access: Access::ReadWrite, expected }
}

/// Every lane of every tile draws a ticket; all tickets are drawn.
fn tickets(subgroup: u32) -> Sample {
    let (workgroup, tiles) = (subgroup * 2, 5);
    let b = Builder::new("tickets", workgroup, subgroup);
    let (counter, seen) = (b.arg("counter", ArgKind::ReadWrite), b.arg("seen", ArgKind::Write));
    let ticket = b.atomic_add(counter, b.u32(4), b.u32(1), Order::Relaxed);
    b.store(seen, ticket * 4u32, ticket + 1u32, 4);
    let n = workgroup * tiles;
    Sample {
        kernel: b.finish(),
        buffers: vec![
            read_write("counter", u32_bytes(&[7, 0, 7]), u32_bytes(&[7, n, 7])),
            output("seen", u32_bytes(&(1..=n).collect::<Vec<_>>()), Compare::Exact),
        ],
        words: vec![],
        grid: [tiles, 1, 1],
    }
}

/// Counts of values below 8.
fn atomic_histogram(subgroup: u32) -> Sample {
    let (workgroup, tiles) = (subgroup * 2, 4);
    let b = Builder::new("atomic_histogram", workgroup, subgroup);
    let (x, counts) = (b.arg("x", ArgKind::Read), b.arg("counts", ArgKind::ReadWrite));
    let i = b.tile(0) * workgroup + b.local_id();
    let value = b.load(Type::U32, x, i * 4u32, 4);
    b.if_(value.lt(8u32), || {
        b.atomic_add(counts, value * 4u32, value + 1u32, Order::Relaxed);
    });
    let xs: Vec<u32> = (0..workgroup * tiles).map(|i| noise(i) % 12).collect();
    let counted = |v: u32| xs.iter().filter(|x| **x == v).count() as u32 * (v + 1);
    let expected: Vec<u32> = (0..8).map(counted).collect();
    Sample {
        kernel: b.finish(),
        buffers: vec![input("x", u32_bytes(&xs)), read_write("counts", vec![0; 32], u32_bytes(&expected))],
        words: vec![],
        grid: [tiles, 1, 1],
    }
}

/// More arguments than push constants hold, used at the top, in a loop, in a condition, and as what both give.
fn many_arguments(subgroup: u32) -> Sample {
    let (count, tiles) = (18, 2);
    let b = Builder::new("many_arguments", subgroup, subgroup);
    let inputs: Vec<_> = (0..count).map(|i| b.arg(&format!("x{i}"), ArgKind::Read)).collect();
    let y = b.arg("y", ArgKind::Write);
    let words: Vec<_> = (0..3).map(|i| b.arg(&format!("w{i}"), ArgKind::Word)).collect();
    let place = (b.tile(0) * subgroup + b.lane()) * 4u32;
    let load = |i: usize| b.load(Type::U32, inputs[i], place, 4);
    let looped = b.for_(b.u32(0), words[0], 1, &[words[1]], |turn, sum| {
        let all = (0..9).map(load).reduce(|a, x| a + x).expect("some");
        vec![sum[0] + all * (turn + 1u32)]
    });
    let chosen = b.if_else(b.lane().lt(2u32), || vec![words[2], inputs[16]], || vec![load(9), inputs[17]]);
    let rest = (10..16).map(load).reduce(|a, x| a ^ x).expect("some");
    b.store(y, place, looped[0] + chosen[0] * 7u32 + b.load(Type::U32, chosen[1], place, 4) + rest, 4);
    let n = subgroup * tiles;
    let x = |i: u32, at: u32| noise(i * n + at) % 1000;
    let words = vec![3, 11, 13];
    let expected = (0..n).map(|at| {
        let all: u32 = (0..9).map(|i| x(i, at)).sum();
        let chosen = if at % subgroup < 2 { words[2] * 7 + x(16, at) } else { x(9, at) * 7 + x(17, at) };
        words[1] + all * 6 + chosen + (10..16).fold(0, |a, i| a ^ x(i, at))
    });
    let expected: Vec<u32> = expected.collect();
    let of = |i: u32| input(&format!("x{i}"), u32_bytes(&(0..n).map(|at| x(i, at)).collect::<Vec<_>>()));
    let mut buffers: Vec<Buffer> = (0..count).map(of).collect();
    buffers.push(output("y", u32_bytes(&expected), Compare::Exact));
    Sample { kernel: b.finish(), buffers, words, grid: [tiles, 1, 1] }
}

/// All builtins and word arguments, over a grid with three axes.
fn tiles_and_words(subgroup: u32) -> Sample {
    let (groups, grid) = (2, [3, 2, 2]);
    let workgroup = subgroup * groups;
    let b = Builder::new("tiles_and_words", workgroup, subgroup);
    let out = b.arg("out", ArgKind::Write);
    let (p, q) = (b.arg("p", ArgKind::Word), b.arg("q", ArgKind::Word));
    let linear = (b.tile(2) * grid[1] + b.tile(1)) * grid[0] + b.tile(0);
    let place = (linear * workgroup + b.local_id()) * 16u32;
    let ids = b.lane() + b.subgroup_id() * 1000u32;
    let tiles = b.tile(0) + b.tile(1) * 10u32 + b.tile(2) * 100u32;
    let parts = [ids, tiles, p, q];
    b.store(out, place, b.compose(&parts), 16);
    let words = vec![0xdead_beef, 17];
    let mut expected = vec![];
    for z in 0..grid[2] {
        for y in 0..grid[1] {
            for x in 0..grid[0] {
                for l in 0..workgroup {
                    let ids = l % subgroup + l / subgroup * 1000;
                    expected.extend([ids, x + y * 10 + z * 100, words[0], words[1]]);
                }
            }
        }
    }
    Sample { kernel: b.finish(), buffers: vec![output("out", u32_bytes(&expected), Compare::Exact)], words, grid }
}
