//! Conditions and loops: results, nesting, lanes that leave early, swapped carried values.

use super::super::{ArgKind, Builder, Type};
use super::elementwise::{N, elementwise};
use super::{Compare, Sample, f32_bytes, input, noise, output, small, u32_bytes};

pub(super) fn samples(subgroup: u32) -> Vec<Sample> {
    vec![branches(subgroup), loops(subgroup), nested(subgroup), uniform_control(subgroup), masked_stores(subgroup)]
}

/// Nested choice with results of two types; one branch empty of operations.
fn branches(subgroup: u32) -> Sample {
    let xs: Vec<u32> = (0..N).map(|i| noise(i) % 100).collect();
    let outcome = |x: u32| match x {
        0..20 => (x * 2, 0.5),
        20..40 => (7, x as f32),
        _ => (x, -1.0),
    };
    let mut expected: Vec<u8> = xs.iter().flat_map(|x| outcome(*x).0.to_le_bytes()).collect();
    expected.extend(xs.iter().flat_map(|x| outcome(*x).1.to_le_bytes()));
    elementwise(
        "if_results",
        subgroup,
        &[(Type::U32, u32_bytes(&xs))],
        |b, v| {
            let x = v[0];
            b.if_else(
                x.lt(40u32),
                || b.if_else(x.lt(20u32), || vec![x * 2u32, b.f32(0.5)], || vec![b.u32(7), x.to_f32()]),
                || vec![x, b.f32(-1.0)],
            )
        },
        expected,
        Compare::Exact,
    )
}

/// Trip counts that differ per lane (some 0), carried values swapped each time, steps, an unrolled loop.
fn loops(subgroup: u32) -> Sample {
    let xs: Vec<u32> = (0..N).map(|i| noise(i) % 40).collect();
    let fibonacci = |n: u32| (0..n).fold((0u32, 1u32), |(a, b), _| (b, a.wrapping_add(b))).0;
    let mut expected: Vec<u8> = xs.iter().flat_map(|x| fibonacci(*x).to_le_bytes()).collect();
    // Exchanged an odd or even number of times.
    expected.extend(xs.iter().flat_map(|x| (if x % 2 == 0 { *x } else { 1000 }).to_le_bytes()));
    // Sum of 5, 8, 11 … below x.
    expected.extend(xs.iter().flat_map(|x| (5..*x).step_by(3).sum::<u32>().to_le_bytes()));
    // From the own element, with the own step.
    let own = |x: u32| (x..60).step_by((x % 5 + 1) as usize).map(|i| i * i).sum::<u32>();
    expected.extend(xs.iter().flat_map(|x| own(*x).to_le_bytes()));
    expected.extend(xs.iter().flat_map(|x| (x * 16 + 120).to_le_bytes()));
    elementwise(
        "for_results",
        subgroup,
        &[(Type::U32, u32_bytes(&xs))],
        |b, v| {
            let x = v[0];
            let fibonacci = b.for_(b.u32(0), x, 1, &[b.u32(0), b.u32(1)], |_, c| vec![c[1], c[0] + c[1]]);
            let swapped = b.for_(b.u32(0), x, 1, &[x, b.u32(1000)], |_, c| vec![c[1], c[0]]);
            let stepped = b.for_(b.u32(5), x, 3, &[b.u32(0)], |i, c| vec![c[0] + i]);
            let step = x % 5u32 + 1u32;
            let own = b.for_with(x, b.u32(60), step, &[b.u32(0)], false, |i, c| vec![c[0] + i * i]);
            let unrolled = b.for_with(b.u32(0), b.u32(16), b.u32(1), &[b.u32(0)], true, |i, c| vec![c[0] + x + i]);
            vec![fibonacci[0], swapped[0], stepped[0], own[0], unrolled[0]]
        },
        expected,
        Compare::Exact,
    )
}

/// A loop in a choice in a loop: counts steps of the Collatz sequence, at most 24.
fn nested(subgroup: u32) -> Sample {
    let xs: Vec<u32> = (0..N).map(|i| noise(i) % 1000 + 1).collect();
    let steps = |mut x: u32| {
        let mut count = 0u32;
        for _ in 0..24 {
            if x != 1 {
                x = if x.is_multiple_of(2) { x / 2 } else { 3 * x + 1 };
                count += 1;
            }
        }
        (x, count)
    };
    // Beside it, a triangle loop whose inner end depends on the outer index.
    let triangle = |x: u32| (0..x % 7).map(|i| (0..i).map(|j| i * j).sum::<u32>()).sum::<u32>();
    let mut expected: Vec<u8> = xs.iter().flat_map(|x| steps(*x).0.to_le_bytes()).collect();
    expected.extend(xs.iter().flat_map(|x| steps(*x).1.to_le_bytes()));
    expected.extend(xs.iter().flat_map(|x| triangle(*x).to_le_bytes()));
    elementwise(
        "nested_control",
        subgroup,
        &[(Type::U32, u32_bytes(&xs))],
        |b, v| {
            let mut out = b.for_(b.u32(0), b.u32(24), 1, &[v[0], b.u32(0)], |_, c| {
                let (x, count) = (c[0], c[1]);
                b.if_else(
                    x.ne(1u32),
                    || {
                        let next = b.if_else((x & 1u32).eq(0u32), || vec![x / 2u32], || vec![x * 3u32 + 1u32]);
                        vec![next[0], count + 1u32]
                    },
                    || vec![x, count],
                )
            });
            out.extend(b.for_(b.u32(0), v[0] % 7u32, 1, &[b.u32(0)], |i, c| {
                b.for_(b.u32(0), i, 1, &[c[0]], |j, inner| vec![inner[0] + i * j])
            }));
            out
        },
        expected,
        Compare::Exact,
    )
}

/// Subgroup operations and barriers inside uniform loops and conditions.
fn uniform_control(subgroup: u32) -> Sample {
    let (groups, rounds) = (3, 4);
    let workgroup = subgroup * groups;
    let b = Builder::new("uniform_control", workgroup, subgroup);
    let (x, y) = (b.arg("x", ArgKind::Read), b.arg("y", ArgKind::Write));
    let n = b.arg("n", ArgKind::Word);
    let sums = b.shared("sums", Type::F32, groups);
    let result = b.for_(b.u32(0), n, 1, &[b.f32(0.0)], |round, total| {
        let value = b.load(Type::F32, x, (round * workgroup + b.local_id()) * 4u32, 4);
        // Subgroup 1 works on negated values: uniform over the subgroup only.
        let sum = b.if_else(b.subgroup_id().eq(1u32), || vec![(-value).subgroup_add()], || vec![value.subgroup_add()]);
        b.if_(b.lane().eq(0u32), || b.shared_store(sums, b.subgroup_id(), sum[0]));
        b.barrier();
        let other = b.shared_load(sums, (b.subgroup_id() + 1u32) % groups);
        b.barrier();
        vec![total[0] + other]
    });
    b.store(y, b.local_id() * 4u32, result[0], 4);
    let xs: Vec<f32> = (0..workgroup * rounds).map(small).collect();
    let group_total = |g: u32| {
        let lanes = |r: u32| (0..subgroup).map(move |l| (r * workgroup + g * subgroup + l) as usize);
        let sum: f32 = (0..rounds).flat_map(lanes).map(|i| xs[i]).sum();
        if g == 1 { -sum } else { sum }
    };
    let expected: Vec<f32> = (0..workgroup).map(|l| group_total((l / subgroup + 1) % groups)).collect();
    Sample {
        kernel: b.finish(),
        buffers: vec![input("x", f32_bytes(&xs)), output("y", f32_bytes(&expected), Compare::Exact)],
        words: vec![rounds],
        grid: [1, 1, 1],
    }
}

/// Stores only from some lanes, in some rounds; the other bytes stay.
fn masked_stores(subgroup: u32) -> Sample {
    let b = Builder::new("masked_stores", subgroup, subgroup);
    let y = b.arg("y", ArgKind::Write);
    let start = b.tile(0) * subgroup;
    b.for_(b.u32(0), b.lane(), 1, &[], |i, _| {
        b.if_((i + 3u32).eq(b.lane()), || b.store(y, (start + b.lane()) * 4u32, i + 100u32, 4));
        vec![]
    });
    let tiles = 3;
    let lane = |l: u32| if l >= 3 { l + 97 } else { 0xeeee_eeee };
    let expected: Vec<u32> = (0..tiles).flat_map(|_| (0..subgroup).map(lane)).collect();
    Sample {
        kernel: b.finish(),
        buffers: vec![output("y", u32_bytes(&expected), Compare::Exact)],
        words: vec![],
        grid: [tiles, 1, 1],
    }
}
