//! Float arithmetic: exact where Vulkan demands it, within its precision elsewhere.

use super::super::{Builder, Scalar, Type, Val};
use super::elementwise::{N, elementwise};
use super::{Compare, Sample, f16_bytes, f16s, f32_bytes, small};

type Op1 = for<'b> fn(Val<'b>) -> Val<'b>;
type Op2 = for<'b> fn(Val<'b>, Val<'b>) -> Val<'b>;
/// An operator in kernels and in Rust.
type Binary<T> = (Op2, fn(T, T) -> T);
type Unary = (Op1, fn(f32) -> f32);

const COMPARE: [Op2; 6] =
    [|a, b| a.eq(b), |a, b| a.ne(b), |a, b| a.lt(b), |a, b| a.le(b), |a, b| a.gt(b), |a, b| a.ge(b)];

pub(super) fn samples(subgroup: u32) -> Vec<Sample> {
    let mut samples = vec![exact(subgroup), halves(subgroup), half_vectors(subgroup), fma(subgroup)];
    samples.extend(approximate(subgroup));
    samples
}

/// In ±1024 with every 16th pair equal.
fn pairs() -> (Vec<f32>, Vec<f32>) {
    let xs: Vec<f32> = (0..N).map(|i| small(i) * 1024.0 + 0.25).collect();
    let ys = (0..N).map(|i| if i % 16 == 0 { xs[i as usize] } else { small(i + 9999) * 1024.0 + 0.25 });
    let ys = ys.collect();
    (xs, ys)
}

fn compare_regions(xs: &[f32], ys: &[f32]) -> Vec<u8> {
    let all: [fn(&f32, &f32) -> bool; 6] = [f32::eq, f32::ne, f32::lt, f32::le, f32::gt, f32::ge];
    all.iter().flat_map(|f| xs.iter().zip(ys).flat_map(|(x, y)| (f(x, y) as u32).to_le_bytes())).collect()
}

fn exact(subgroup: u32) -> Sample {
    let binary: [Binary<f32>; 5] = [
        (|a, b| a + b, |x, y| x + y),
        (|a, b| a - b, |x, y| x - y),
        (|a, b| a * b, |x, y| x * y),
        (|a, b| a.min(b), f32::min),
        (|a, b| a.max(b), f32::max),
    ];
    let unary: [Unary; 4] = [
        (|a| -a, |x| -x),
        (|a| a.abs(), f32::abs),
        (|a| a.floor(), f32::floor),
        (|a| a.round_even(), f32::round_ties_even),
    ];
    let (mut xs, ys) = pairs();
    // Halves, to see where ties go.
    for (i, x) in xs.iter_mut().enumerate().skip(1).step_by(4) {
        *x = i as f32 / 2.0 - 60.0;
    }
    let mut expected = vec![];
    for (_, f) in binary {
        expected.extend(xs.iter().zip(&ys).flat_map(|(x, y)| f(*x, *y).to_le_bytes()));
    }
    for (_, f) in unary {
        expected.extend(xs.iter().flat_map(|x| f(*x).to_le_bytes()));
    }
    expected.extend(compare_regions(&xs, &ys));
    elementwise(
        "f32_exact",
        subgroup,
        &[(Type::F32, f32_bytes(&xs)), (Type::F32, f32_bytes(&ys))],
        |_, v| {
            let mut out: Vec<Val> = binary.iter().map(|(op, _)| op(v[0], v[1])).collect();
            out.extend(unary.iter().map(|(op, _)| op(v[0])));
            out.extend(COMPARE.iter().map(|op| op(v[0], v[1])));
            out
        },
        // Floor and rounding may give -0 or 0 on a device; comparison as numbers allows it, the bools are exact.
        expected,
        Compare::F32 { abs: 0.0, rel: 0.0 },
    )
}

fn halves(subgroup: u32) -> Sample {
    let binary: [Binary<f32>; 5] = [
        (|a, b| a + b, |x, y| x + y),
        (|a, b| a - b, |x, y| x - y),
        (|a, b| a * b, |x, y| x * y),
        (|a, b| a.min(b), f32::min),
        (|a, b| a.max(b), f32::max),
    ];
    let (xs, ys) = pairs();
    // F16 values whose products stay below its maximum.
    let halves = |v: Vec<f32>| f16s(&f16_bytes(&v.iter().map(|x| x / 8.0).collect::<Vec<_>>()));
    let (xs, ys) = (halves(xs), halves(ys));
    let mut expected = vec![];
    for (_, f) in binary {
        expected.extend(f16_bytes(&xs.iter().zip(&ys).map(|(x, y)| f(*x, *y)).collect::<Vec<_>>()));
    }
    expected.extend(f16_bytes(&xs.iter().map(|x| -x).collect::<Vec<_>>()));
    expected.extend(compare_regions(&xs, &ys));
    elementwise(
        "f16_exact",
        subgroup,
        &[(Type::F16, f16_bytes(&xs)), (Type::F16, f16_bytes(&ys))],
        |_, v| {
            let mut out: Vec<Val> = binary.iter().map(|(op, _)| op(v[0], v[1])).collect();
            out.push(-v[0]);
            out.extend(COMPARE.iter().map(|op| op(v[0], v[1])));
            out
        },
        expected,
        Compare::Exact,
    )
}

fn half_vectors(subgroup: u32) -> Sample {
    let xs: Vec<f32> = (0..N * 2).map(|i| small(i) * 4.0).collect();
    let xs = f16s(&f16_bytes(&xs));
    let ys: Vec<f32> = xs.iter().map(|x| x / 3.0).collect();
    let mut expected = f16_bytes(&ys);
    expected.extend(f16_bytes(&xs.iter().map(|x| x * x + 0.5).collect::<Vec<_>>()));
    elementwise(
        "f16_vectors",
        subgroup,
        &[(Type::Vec(Scalar::F16, 2), f16_bytes(&xs))],
        |b, v| {
            let splat = |bits| b.f16_bits(bits).splat(2);
            vec![v[0] / splat(0x4200), b.fma(v[0], v[0], splat(0x3800))]
        },
        expected,
        Compare::F16 { abs: 1e-3, rel: 2e-3 },
    )
}

/// Precision as of multiplication and addition: a device need not fuse.
fn fma(subgroup: u32) -> Sample {
    let [a, b, c] = [1, 5_000, 10_000].map(|s| (0..N * 4).map(|i| small(i + s)).collect::<Vec<f32>>());
    let expected: Vec<f32> = (0..a.len()).map(|i| a[i].mul_add(b[i], c[i])).collect();
    elementwise(
        "f32x4_fma",
        subgroup,
        &[a, b, c].map(|v| (Type::F32X4, f32_bytes(&v))),
        |k, v| vec![k.fma(v[0], v[1], v[2])],
        f32_bytes(&expected),
        Compare::F32 { abs: 2e-7, rel: 1e-6 },
    )
}

/// One function: name, how to build it, what it is, the range of operands, tolerance.
struct Row {
    name: &'static str,
    op: Op2,
    f: fn(f64, f64) -> f64,
    from: f32,
    to: f32,
    abs: f32,
    rel: f32,
}

/// The second operand is the first in reverse order.
fn approximate(subgroup: u32) -> Vec<Sample> {
    let row = |name, op, f, (from, to), (abs, rel)| Row { name, op, f, from, to, abs, rel };
    let pi = std::f32::consts::PI;
    let rows = [
        row("div", |a, b| a / b, |x, y| x / y, (0.5, 20.0), (0.0, 4e-7)),
        row("exp", |a, _| a.exp(), |x, _| x.exp(), (-10.0, 10.0), (0.0, 4e-6)),
        row("exp2", |a, _| a.exp2(), |x, _| x.exp2(), (-10.0, 10.0), (0.0, 4e-6)),
        row("log", |a, _| a.log(), |x, _| x.ln(), (0.01, 100.0), (1e-6, 1e-6)),
        row("sqrt", |a, _| a.sqrt(), |x, _| x.sqrt(), (0.01, 100.0), (0.0, 1e-6)),
        row("inv_sqrt", |a, _| a.inv_sqrt(), |x, _| x.sqrt().recip(), (0.01, 100.0), (0.0, 1e-6)),
        row("sin", |a, _| a.sin(), |x, _| x.sin(), (-pi, pi), (6e-4, 0.0)),
        row("cos", |a, _| a.cos(), |x, _| x.cos(), (-pi, pi), (6e-4, 0.0)),
        row("tanh", |a, _| a.tanh(), |x, _| x.tanh(), (-4.0, 4.0), (2e-6, 1e-5)),
        row("pow", |a, b| a.pow(b), |x, y| x.powf(y), (0.25, 4.0), (0.0, 2e-5)),
    ];
    rows.into_iter().map(|r| approximate_one(subgroup, r)).collect()
}

fn approximate_one(subgroup: u32, r: Row) -> Sample {
    let xs: Vec<f32> = (0..N).map(|i| r.from + (r.to - r.from) * (i as f32 + 0.5) / N as f32).collect();
    let ys: Vec<f32> = xs.iter().rev().copied().collect();
    let expected: Vec<f32> = xs.iter().zip(&ys).map(|(x, y)| (r.f)(*x as f64, *y as f64) as f32).collect();
    elementwise(
        &format!("f32_{}", r.name),
        subgroup,
        &[(Type::F32, f32_bytes(&xs)), (Type::F32, f32_bytes(&ys))],
        |_: &Builder, v| vec![(r.op)(v[0], v[1])],
        f32_bytes(&expected),
        Compare::F32 { abs: r.abs, rel: r.rel },
    )
}
