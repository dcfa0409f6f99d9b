//! Reductions and shuffles.

use super::super::{ArgKind, Builder, Scalar, Type, Val};
use super::{Compare, Sample, f32_bytes, input, noise, output, small, u32_bytes};

/// Subgroups per tile.
const GROUPS: u32 = 3;
const TILES: u32 = 2;

pub(super) fn samples(subgroup: u32) -> Vec<Sample> {
    vec![integers(subgroup), floats(subgroup), vectors(subgroup), shuffles(subgroup), private(subgroup)]
}

/// `results` from one 4-byte element per lane, one region per result.
fn sample(
    name: &str,
    subgroup: u32,
    (ty, bytes): (Type, Vec<u8>),
    results: impl for<'b> FnOnce(&'b Builder, Val<'b>) -> Vec<Val<'b>>,
    expected: Vec<u8>,
) -> Sample {
    let workgroup = subgroup * GROUPS;
    let b = Builder::new(name, workgroup, subgroup);
    let (x, y) = (b.arg("x", ArgKind::Read), b.arg("y", ArgKind::Write));
    let size = ty.bytes();
    let place = (b.tile(0) * workgroup + b.local_id()) * size;
    let value = b.load(ty, x, place, size as u8);
    for (region, result) in results(&b, value).into_iter().enumerate() {
        b.store(y, place + region as u32 * size * workgroup * TILES, result, size as u8);
    }
    Sample {
        kernel: b.finish(),
        buffers: vec![input("x", bytes), output("y", expected, Compare::Exact)],
        words: vec![],
        grid: [TILES, 1, 1],
    }
}

/// What `f` makes of each subgroup's elements, in every lane.
fn spread<T: Copy>(xs: &[T], subgroup: u32, f: impl Fn(&[T]) -> T) -> Vec<T> {
    let groups = xs.chunks_exact(subgroup as usize);
    groups.flat_map(|g| std::iter::repeat_n(f(g), g.len())).collect()
}

fn integers(subgroup: u32) -> Sample {
    let xs: Vec<u32> = (0..subgroup * GROUPS * TILES).map(noise).collect();
    let signed =
        |f: fn(i32, i32) -> i32| spread(&xs, subgroup, |g| g.iter().map(|x| *x as i32).reduce(f).unwrap_or(0) as u32);
    let unsigned = |f: fn(u32, u32) -> u32| spread(&xs, subgroup, |g| g.iter().copied().reduce(f).unwrap_or(0));
    let mut expected = vec![];
    for part in [
        unsigned(u32::wrapping_add),
        unsigned(u32::min),
        unsigned(u32::max),
        signed(i32::wrapping_add),
        signed(i32::min),
        signed(i32::max),
    ] {
        expected.extend(u32_bytes(&part));
    }
    sample(
        "subgroup_integers",
        subgroup,
        (Type::U32, u32_bytes(&xs)),
        |_, x| {
            let i = x.bitcast(Type::I32);
            let unsigned = [x.subgroup_add(), x.subgroup_min(), x.subgroup_max()];
            let signed = [i.subgroup_add(), i.subgroup_min(), i.subgroup_max()];
            unsigned.into_iter().chain(signed).collect()
        },
        expected,
    )
}

fn floats(subgroup: u32) -> Sample {
    // Multiples of 2^-11 below 1: sums are exact in every order.
    let xs: Vec<f32> = (0..subgroup * GROUPS * TILES).map(small).collect();
    let mut expected = vec![];
    for f in [|x: f32, y: f32| x + y, f32::min, f32::max] {
        expected.extend(f32_bytes(&spread(&xs, subgroup, |g| g.iter().copied().reduce(f).unwrap_or(0.0))));
    }
    sample(
        "subgroup_floats",
        subgroup,
        (Type::F32, f32_bytes(&xs)),
        |_, x| vec![x.subgroup_add(), x.subgroup_min(), x.subgroup_max()],
        expected,
    )
}

fn vectors(subgroup: u32) -> Sample {
    let xs: Vec<[f32; 4]> = (0..subgroup * GROUPS * TILES).map(|i| [0, 1, 2, 3].map(|c| small(i * 4 + c))).collect();
    let sum = |g: &[[f32; 4]]| g.iter().fold([0.0; 4], |s: [f32; 4], x| std::array::from_fn(|c| s[c] + x[c]));
    let mut expected = f32_bytes(spread(&xs, subgroup, sum).as_flattened());
    let swapped = |i: usize| xs[i ^ 1];
    let swapped: Vec<[f32; 4]> = (0..xs.len()).map(swapped).collect();
    expected.extend(f32_bytes(swapped.as_flattened()));
    sample(
        "subgroup_vectors",
        subgroup,
        (Type::F32X4, f32_bytes(xs.as_flattened())),
        |_, x| vec![x.subgroup_add(), x.shuffle_xor(1)],
        expected,
    )
}

/// Exchange with every power-of-two mask, broadcast, rotation, and a permutation that differs per lane.
fn shuffles(subgroup: u32) -> Sample {
    let xs: Vec<u32> = (0..subgroup * GROUPS * TILES).map(noise).collect();
    let masks: Vec<u32> = (0..subgroup.ilog2()).map(|bit| 1 << bit).chain([subgroup - 1]).collect();
    let from = |lane_of: &dyn Fn(u32) -> u32| -> Vec<u32> {
        (0..xs.len() as u32).map(|i| xs[(i / subgroup * subgroup + lane_of(i % subgroup)) as usize]).collect()
    };
    let mut expected = vec![];
    for mask in &masks {
        expected.extend(u32_bytes(&from(&|lane| lane ^ mask)));
    }
    expected.extend(u32_bytes(&from(&|_| 2)));
    expected.extend(u32_bytes(&from(&|lane| (lane + 1) % subgroup)));
    // The source lanes are data: each lane takes the lane that the value of its neighbour names.
    let named: Vec<u32> = (0..xs.len() as u32)
        .map(|i| {
            let group = i / subgroup * subgroup;
            xs[(group + xs[(i ^ 1) as usize] % subgroup) as usize]
        })
        .collect();
    expected.extend(u32_bytes(&named));
    sample(
        "subgroup_shuffles",
        subgroup,
        (Type::Vec(Scalar::U32, 1), u32_bytes(&xs)),
        |b, x| {
            let mut out: Vec<Val> = masks.iter().map(|mask| x.shuffle_xor(*mask)).collect();
            out.push(x.shuffle(b.u32(2)));
            out.push(x.shuffle((b.lane() + 1u32) % subgroup));
            out.push(x.shuffle(x.shuffle_xor(1) % subgroup));
            out
        },
        expected,
    )
}

/// Shared memory that each subgroup has for itself: three times every lane takes over what the lane opposite has, plus 1.
fn private(subgroup: u32) -> Sample {
    const TURNS: u32 = 3;
    let workgroup = subgroup * GROUPS;
    let xs: Vec<u32> = (0..workgroup * TILES).map(|i| noise(i) >> 8).collect();
    let b = Builder::new("subgroup_private", workgroup, subgroup);
    let (x, y) = (b.arg("x", ArgKind::Read), b.arg("y", ArgKind::Write));
    let array = b.shared("own", Type::U32, workgroup);
    let place = (b.tile(0) * workgroup + b.local_id()) * 4;
    let opposite = b.subgroup_id() * subgroup + (b.u32(subgroup - 1) - b.lane());
    let value = b.for_(b.u32(0), b.u32(TURNS), 1, &[b.load(Type::U32, x, place, 4)], |_, value| {
        b.shared_store(array, b.local_id(), value[0]);
        b.subgroup_barrier();
        let next = b.shared_load(array, opposite) + 1;
        b.subgroup_barrier();
        vec![next]
    });
    b.store(y, place, value[0], 4);
    let turn = |xs: Vec<u32>| -> Vec<u32> {
        xs.chunks_exact(subgroup as usize).flat_map(|g| g.iter().rev().map(|x| x + 1)).collect()
    };
    let expected = (0..TURNS).fold(xs.clone(), |xs, _| turn(xs));
    Sample {
        kernel: b.finish(),
        buffers: vec![input("x", u32_bytes(&xs)), output("y", u32_bytes(&expected), Compare::Exact)],
        words: vec![],
        grid: [TILES, 1, 1],
    }
}
