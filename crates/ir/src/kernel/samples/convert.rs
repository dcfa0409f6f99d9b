//! Conversions between all scalars, and bitcasts.

use super::super::{Scalar, Type, Val};
use super::elementwise::{N, elementwise};
use super::{Compare, Sample, bytes_of, f16_bytes, f32_bytes, noise, small, u32_bytes};
use Scalar::*;

const SCALARS: [Scalar; 8] = [I8, U8, U16, I32, U32, U64, F16, F32];

pub(super) fn samples(subgroup: u32) -> Vec<Sample> {
    let mut samples: Vec<Sample> = SCALARS.iter().map(|from| conversions(subgroup, *from)).collect();
    samples.extend([bitcasts(subgroup), rounding(subgroup), wide_integers(subgroup)]);
    samples
}

/// Bytes of a number that fits the type. Non-negative integers for unsigned types.
fn encode(s: Scalar, x: f64) -> Vec<u8> {
    match s {
        I8 => (x as i8).to_le_bytes().to_vec(),
        U8 => (x as u8).to_le_bytes().to_vec(),
        U16 => (x as u16).to_le_bytes().to_vec(),
        I32 => (x as i32).to_le_bytes().to_vec(),
        U32 | Bool => (x as u32).to_le_bytes().to_vec(),
        U64 => (x as u64).to_le_bytes().to_vec(),
        F16 => half::f16::from_f64(x).to_le_bytes().to_vec(),
        F32 => (x as f32).to_le_bytes().to_vec(),
    }
}

/// From one type to all others, with numbers that every type can hold; fractions too from floats.
fn conversions(subgroup: u32, from: Scalar) -> Sample {
    let value = |i: u32| {
        let whole = (noise(i) % 128) as f64;
        if from.is_float() { whole + (noise(i) >> 30) as f64 / 4.0 } else { whole }
    };
    let targets: Vec<Scalar> = SCALARS.into_iter().filter(|s| *s != from).collect();
    let bytes = (0..N).flat_map(|i| encode(from, value(i))).collect();
    let mut expected = vec![];
    for to in &targets {
        let kept = |x: f64| if to.is_float() { x } else { x.trunc() };
        expected.extend((0..N).flat_map(|i| encode(*to, kept(value(i)))));
    }
    // Below zero, from signed to signed and to floats; and what truncation keeps of it.
    let signed: Vec<Scalar> = if from == I8 || from == I32 { vec![I8, I32, F32, U32] } else { vec![] };
    for to in &signed {
        expected.extend((0..N).flat_map(|i| match to {
            U32 => ((0.0 - value(i)) as i32).to_le_bytes().to_vec(),
            to => encode(*to, 0.0 - value(i)),
        }));
    }
    elementwise(
        &format!("convert_from_{from:?}").to_lowercase(),
        subgroup,
        &[(Type::Vec(from, 1), bytes)],
        |b, v| {
            let mut out: Vec<Val> = targets.iter().map(|to| v[0].to(*to)).collect();
            let negative = v[0].to(I32);
            let negative = (b.i32(0) - negative).to(from);
            out.extend(signed.iter().map(|to| negative.to(*to)));
            out
        },
        expected,
        Compare::Exact,
    )
}

/// F32 to F16 and large integers to F32: to nearest, ties to even.
fn rounding(subgroup: u32) -> Sample {
    let floats: Vec<f32> = (0..N).map(|i| 1.0 + (i * 2 + 1) as f32 / 4096.0 + small(i).abs() * 1e-4).collect();
    // Every fourth is a tie.
    let floats: Vec<f32> = floats
        .iter()
        .enumerate()
        .map(|(i, x)| if i % 4 == 0 { 1.0 + (2 * i + 1) as f32 / 2048.0 } else { *x })
        .collect();
    let integers: Vec<u32> = (0..N).map(|i| noise(i) | 1 << 31).collect();
    let mut expected = f16_bytes(&floats);
    expected.extend(f32_bytes(&integers.iter().map(|x| *x as f32).collect::<Vec<_>>()));
    expected.extend(f32_bytes(&integers.iter().map(|x| *x as i32 as f32).collect::<Vec<_>>()));
    elementwise(
        "convert_rounding",
        subgroup,
        &[(Type::F32, f32_bytes(&floats)), (Type::U32, u32_bytes(&integers))],
        |_, v| vec![v[0].to(F16), v[1].to_f32(), v[1].bitcast(Type::I32).to_f32()],
        expected,
        Compare::Exact,
    )
}

/// Truncation and extension of integers with all bits in use.
fn wide_integers(subgroup: u32) -> Sample {
    let xs: Vec<u64> = (0..N).map(|i| (noise(i) as u64) << 32 | noise(i + 321) as u64).collect();
    let mut expected = bytes_of(&xs, |x| (x as u32).to_le_bytes());
    expected.extend(bytes_of(&xs, |x| (x as i32).to_le_bytes()));
    expected.extend(bytes_of(&xs, |x| (x as u16).to_le_bytes()));
    expected.extend(bytes_of(&xs, |x| (x as u8).to_le_bytes()));
    expected.extend(bytes_of(&xs, |x| (x as i8).to_le_bytes()));
    expected.extend(bytes_of(&xs, |x| (x as i32 as i64).to_le_bytes()));
    expected.extend(bytes_of(&xs, |x| (x as i8 as i32).to_le_bytes()));
    elementwise(
        "convert_wide_integers",
        subgroup,
        &[(Type::U64, bytes_of(&xs, u64::to_le_bytes))],
        |_, v| {
            let x = v[0];
            vec![x.to(U32), x.to(I32), x.to(U16), x.to(U8), x.to(I8), x.to(I32).to(U64), x.to(I8).to(I32)]
        },
        expected,
        Compare::Exact,
    )
}

/// All results are the bytes of the input again, cut in other ways; then one real change of meaning.
fn bitcasts(subgroup: u32) -> Sample {
    // Finite F16 and F32 in every position: a device may change the bits of a NaN.
    let words: Vec<u32> = (0..N * 2).map(|i| noise(i) & 0x3bff_3bff | 0x0400_0400).collect();
    let bytes = u32_bytes(&words);
    let mut expected: Vec<u8> = bytes.repeat(5);
    let evens: Vec<u32> = words.iter().step_by(2).copied().collect();
    expected.extend(u32_bytes(&evens).repeat(4));
    expected.extend(evens.iter().flat_map(|w| (w >> 16 & 0xff).to_le_bytes()));
    elementwise(
        "bitcasts",
        subgroup,
        &[(Type::Vec(U32, 2), bytes)],
        |_, v| {
            let two = v[0];
            let one = two.lane(0);
            let bytes = one.bitcast(Type::Vec(U8, 4));
            vec![
                two.bitcast(Type::U64),
                two.bitcast(Type::Vec(F32, 2)),
                two.bitcast(Type::Vec(F16, 4)),
                two.bitcast(Type::U64).bitcast(Type::Vec(U16, 4)),
                two.bitcast(Type::Vec(F16, 4)).bitcast(Type::Vec(I32, 2)),
                one.bitcast(Type::Vec(F16, 2)),
                bytes,
                one.bitcast(Type::Vec(I8, 4)).bitcast(Type::F32),
                one.bitcast(Type::I32),
                bytes.lane(2).to(U32),
            ]
        },
        expected,
        Compare::Exact,
    )
}
