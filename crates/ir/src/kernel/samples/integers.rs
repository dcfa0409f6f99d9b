//! Integer and Bool arithmetic, exact.

use super::super::{Type, Val};
use super::elementwise::{N, elementwise};
use super::{Compare, Sample, bytes_of, noise, u32_bytes};

type Op1 = for<'b> fn(Val<'b>) -> Val<'b>;
type Op2 = for<'b> fn(Val<'b>, Val<'b>) -> Val<'b>;
/// An operator in kernels and in Rust.
type Binary<T> = (Op2, fn(T, T) -> T);

pub(super) fn samples(subgroup: u32) -> Vec<Sample> {
    let mut samples = vec![u32s(subgroup), i32s(subgroup), u64s(subgroup), bools(subgroup), dot4(subgroup)];
    samples.extend([integer_vectors(subgroup), table(subgroup)]);
    samples
}

const COMPARE: [Op2; 6] =
    [|a, b| a.eq(b), |a, b| a.ne(b), |a, b| a.lt(b), |a, b| a.le(b), |a, b| a.gt(b), |a, b| a.ge(b)];

fn compared<T: PartialOrd>(x: T, y: T) -> [bool; 6] {
    [x == y, x != y, x < y, x <= y, x > y, x >= y]
}

/// Regions of U32 0 or 1, one per comparison.
fn compare_regions<T: PartialOrd + Copy>(xs: &[T], ys: &[T]) -> Vec<u8> {
    let all: Vec<[bool; 6]> = xs.iter().zip(ys).map(|(x, y)| compared(*x, *y)).collect();
    (0..6).flat_map(|op| all.iter().flat_map(move |c| (c[op] as u32).to_le_bytes())).collect()
}

/// Operands: noise, with equal pairs and extremes among them; shift counts in range; no zero divisor.
fn operands(width: u32) -> (Vec<u64>, Vec<u64>, Vec<u64>) {
    let wide = |i: u32| (noise(i) as u64) << 32 | noise(i + 7777) as u64;
    let mask = u64::MAX >> (64 - width);
    let extremes = [0, 1, mask, mask >> 1, 1 << (width - 1)];
    let xs: Vec<u64> = (0..N).map(|i| extremes.get(i as usize).copied().unwrap_or(wide(i) & mask)).collect();
    let ys = xs.iter().enumerate().map(|(i, x)| match i % 8 {
        0 => *x,
        1 => 3,
        2 => mask - 4,
        _ => wide(i as u32 + 999) & mask,
    });
    let ys: Vec<u64> = ys.map(|y| y.max(1)).collect();
    let shifts = (0..N).map(|i| (noise(i + 55) % width) as u64).collect();
    (xs, ys, shifts)
}

fn u32s(subgroup: u32) -> Sample {
    let rows: [Binary<u32>; 10] = [
        (|a, b| a + b, u32::wrapping_add),
        (|a, b| a - b, u32::wrapping_sub),
        (|a, b| a * b, u32::wrapping_mul),
        (|a, b| a / b, |x, y| x / y),
        (|a, b| a % b, |x, y| x % y),
        (|a, b| a.min(b), u32::min),
        (|a, b| a.max(b), u32::max),
        (|a, b| a & b, |x, y| x & y),
        (|a, b| a | b, |x, y| x | y),
        (|a, b| a ^ b, |x, y| x ^ y),
    ];
    let (xs, ys, shifts) = operands(32);
    let narrow = |v: Vec<u64>| v.into_iter().map(|x| x as u32).collect::<Vec<u32>>();
    let (xs, ys, shifts) = (narrow(xs), narrow(ys), narrow(shifts));
    let mut expected = vec![];
    for (_, f) in rows {
        expected.extend(xs.iter().zip(&ys).flat_map(|(x, y)| f(*x, *y).to_le_bytes()));
    }
    expected.extend(xs.iter().zip(&shifts).flat_map(|(x, s)| (x << s).to_le_bytes()));
    expected.extend(xs.iter().zip(&shifts).flat_map(|(x, s)| (x >> s).to_le_bytes()));
    expected.extend(xs.iter().flat_map(|x| (!x).to_le_bytes()));
    expected.extend(compare_regions(&xs, &ys));
    let inputs = [xs, ys, shifts].map(|v| (Type::U32, u32_bytes(&v)));
    elementwise(
        "u32_arithmetic",
        subgroup,
        &inputs,
        |_, v| {
            let mut out: Vec<Val> = rows.iter().map(|(op, _)| op(v[0], v[1])).collect();
            out.extend([v[0] << v[2], v[0] >> v[2], !v[0]]);
            out.extend(COMPARE.iter().map(|op| op(v[0], v[1])));
            out
        },
        expected,
        Compare::Exact,
    )
}

fn i32s(subgroup: u32) -> Sample {
    let rows: [Binary<i32>; 10] = [
        (|a, b| a + b, i32::wrapping_add),
        (|a, b| a - b, i32::wrapping_sub),
        (|a, b| a * b, i32::wrapping_mul),
        (|a, b| a / b, |x, y| x / y),
        // Remainders of negative numbers are undefined.
        (|a, b| a.max(-a) % b.max(-b), |x, y| x.abs() % y.abs()),
        (|a, b| a.min(b), i32::min),
        (|a, b| a.max(b), i32::max),
        (|a, b| a & b, |x, y| x & y),
        (|a, b| a | b, |x, y| x | y),
        (|a, b| a ^ b, |x, y| x ^ y),
    ];
    let (xs, ys, shifts) = operands(32);
    let narrow = |v: Vec<u64>| v.into_iter().map(|x| x as u32 as i32).collect::<Vec<i32>>();
    let (xs, ys, shifts) = (narrow(xs), narrow(ys), narrow(shifts));
    // The smallest number by -1 is undefined, and has no absolute value.
    let ys: Vec<i32> = ys.into_iter().map(|y| if y == -1 || y == i32::MIN { 5 } else { y }).collect();
    let xs: Vec<i32> = xs.into_iter().map(|x| if x == i32::MIN { x + 1 } else { x }).collect();
    let mut expected = vec![];
    for (_, f) in rows {
        expected.extend(xs.iter().zip(&ys).flat_map(|(x, y)| f(*x, *y).to_le_bytes()));
    }
    expected.extend(xs.iter().zip(&shifts).flat_map(|(x, s)| (x << s).to_le_bytes()));
    expected.extend(xs.iter().zip(&shifts).flat_map(|(x, s)| (x >> s).to_le_bytes()));
    expected.extend(xs.iter().flat_map(|x| (!x).to_le_bytes()));
    expected.extend(xs.iter().flat_map(|x| x.wrapping_neg().to_le_bytes()));
    expected.extend(compare_regions(&xs, &ys));
    let inputs = [xs, ys, shifts].map(|v| (Type::I32, bytes_of(&v, i32::to_le_bytes)));
    elementwise(
        "i32_arithmetic",
        subgroup,
        &inputs,
        |_, v| {
            let mut out: Vec<Val> = rows.iter().map(|(op, _)| op(v[0], v[1])).collect();
            out.extend([v[0] << v[2], v[0] >> v[2], !v[0], -v[0]]);
            out.extend(COMPARE.iter().map(|op| op(v[0], v[1])));
            out
        },
        expected,
        Compare::Exact,
    )
}

fn u64s(subgroup: u32) -> Sample {
    let rows: [Binary<u64>; 10] = [
        (|a, b| a + b, u64::wrapping_add),
        (|a, b| a - b, u64::wrapping_sub),
        (|a, b| a * b, u64::wrapping_mul),
        (|a, b| a / b, |x, y| x / y),
        (|a, b| a % b, |x, y| x % y),
        (|a, b| a.min(b), u64::min),
        (|a, b| a.max(b), u64::max),
        (|a, b| a & b, |x, y| x & y),
        (|a, b| a | b, |x, y| x | y),
        (|a, b| a ^ b, |x, y| x ^ y),
    ];
    let (xs, ys, shifts) = operands(64);
    let mut expected = vec![];
    for (_, f) in rows {
        expected.extend(xs.iter().zip(&ys).flat_map(|(x, y)| f(*x, *y).to_le_bytes()));
    }
    expected.extend(xs.iter().zip(&shifts).flat_map(|(x, s)| (x << s).to_le_bytes()));
    expected.extend(xs.iter().zip(&shifts).flat_map(|(x, s)| (x >> s).to_le_bytes()));
    expected.extend(xs.iter().flat_map(|x| (!x).to_le_bytes()));
    expected.extend(compare_regions(&xs, &ys));
    let inputs = [xs, ys, shifts].map(|v| (Type::U64, bytes_of(&v, u64::to_le_bytes)));
    elementwise(
        "u64_arithmetic",
        subgroup,
        &inputs,
        |_, v| {
            let mut out: Vec<Val> = rows.iter().map(|(op, _)| op(v[0], v[1])).collect();
            out.extend([v[0] << v[2], v[0] >> v[2], !v[0]]);
            out.extend(COMPARE.iter().map(|op| op(v[0], v[1])));
            out
        },
        expected,
        Compare::Exact,
    )
}

fn bools(subgroup: u32) -> Sample {
    let xs: Vec<u32> = (0..N).map(noise).collect();
    let ops: [Binary<bool>; 3] =
        [(|a, b| a & b, |x, y| x & y), (|a, b| a | b, |x, y| x | y), (|a, b| a ^ b, |x, y| x ^ y)];
    let not: Op1 = |a| !a;
    let bits = |x: u32| (x & 1 != 0, x & 2 != 0);
    let mut expected = vec![];
    for (_, f) in ops {
        expected.extend(xs.iter().flat_map(|x| (f(bits(*x).0, bits(*x).1) as u32).to_le_bytes()));
    }
    expected.extend(xs.iter().flat_map(|x| (!bits(*x).0 as u32).to_le_bytes()));
    elementwise(
        "bool_arithmetic",
        subgroup,
        &[(Type::U32, u32_bytes(&xs))],
        |_, v| {
            let (a, b) = ((v[0] & 1u32).ne(0u32), (v[0] & 2u32).ne(0u32));
            let mut out: Vec<Val> = ops.iter().map(|(op, _)| op(a, b)).collect();
            out.push(not(a));
            out
        },
        expected,
        Compare::Exact,
    )
}

fn dot4(subgroup: u32) -> Sample {
    let [a, b, acc] = [0, 10_000, 20_000].map(|seed| (0..N).map(|i| noise(i + seed)).collect::<Vec<u32>>());
    let dot = |signed: bool, a: u32, b: u32, acc: u32| {
        let byte = |x: u32, i: u32| (x >> (8 * i)) as u8;
        let x = |i| if signed { byte(a, i) as i8 as i32 } else { byte(a, i) as i32 };
        (0..4).fold(acc as i32, |sum, i| sum.wrapping_add(x(i) * (byte(b, i) as i8 as i32)))
    };
    let mut expected = vec![];
    for signed in [true, false] {
        for i in 0..N as usize {
            expected.extend(dot(signed, a[i], b[i], acc[i]).to_le_bytes());
        }
    }
    let inputs = [(Type::U32, u32_bytes(&a)), (Type::U32, u32_bytes(&b)), (Type::I32, u32_bytes(&acc))];
    elementwise(
        "dot4",
        subgroup,
        &inputs,
        |k, v| vec![k.dot4(v[0], v[1], v[2], true), k.dot4(v[0], v[1], v[2], false)],
        expected,
        Compare::Exact,
    )
}

/// Vector arithmetic, comparison, choice per lane, compose and extract.
fn integer_vectors(subgroup: u32) -> Sample {
    let [a, b] = [0, 40_000].map(|seed| (0..N * 4).map(|i| noise(i + seed)).collect::<Vec<u32>>());
    let pairs = || a.iter().zip(&b);
    let mut expected: Vec<u8> = pairs().flat_map(|(x, y)| x.wrapping_mul(*y).to_le_bytes()).collect();
    // Larger of each pair, by comparison and choice.
    expected.extend(pairs().flat_map(|(x, y)| (*x).max(*y).to_le_bytes()));
    // One condition for the whole vector: the first elements decide.
    for i in 0..N as usize {
        let from = if a[i * 4] < b[i * 4] { &a } else { &b };
        expected.extend(u32_bytes(&from[i * 4..i * 4 + 4]));
    }
    // Lanes 3 and 1 of a.
    expected.extend((0..N as usize).flat_map(|i| u32_bytes(&[a[i * 4 + 3], a[i * 4 + 1]])));
    elementwise(
        "integer_vectors",
        subgroup,
        &[(Type::U32X4, u32_bytes(&a)), (Type::U32X4, u32_bytes(&b))],
        |k, v| {
            let whole = v[0].lane(0).lt(v[1].lane(0)).select(v[0], v[1]);
            vec![v[0] * v[1], v[0].gt(v[1]).select(v[0], v[1]), whole, k.compose(&[v[0].lane(3), v[0].lane(1)])]
        },
        expected,
        Compare::Exact,
    )
}

/// Constants by an index that differs between lanes, and by one that does not.
fn table(subgroup: u32) -> Sample {
    let words: Vec<u32> = (0..37).map(|i| noise(i + 4321)).collect();
    let indices: Vec<u32> = (0..N).map(|i| noise(i) % 37).collect();
    let mut expected: Vec<u8> = indices.iter().flat_map(|i| words[*i as usize].to_le_bytes()).collect();
    expected.extend((0..N).flat_map(|_| words[36].to_le_bytes()));
    let inputs = [(Type::U32, u32_bytes(&indices))];
    elementwise(
        "table",
        subgroup,
        &inputs,
        |b, v| vec![b.table(v[0], words.clone()), b.table(b.u32(36), words.clone())],
        expected,
        Compare::Exact,
    )
}
