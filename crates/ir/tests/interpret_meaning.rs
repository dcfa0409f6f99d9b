//! What the interpreter promises beyond the samples: rounding, NaN, infinities, subnormals, wrapping.

use zinc_ir::kernel::interpret::{Access, Memory, Options, run};
use zinc_ir::kernel::*;

/// The bits of `%9`, a scalar of up to 4 bytes, computed by `body` in one lane.
fn eval(body: &str) -> u32 {
    let ty = body.rsplit("%9: ").next().unwrap().split(' ').next().unwrap();
    let size = match ty {
        "u8" | "i8" => 1,
        "u16" | "f16" => 2,
        _ => 4,
    };
    let body = match ty {
        "bool" => format!("{body}\n%10: u32 = select %9, 1, 0"),
        _ => body.replace("%9:", "%10:"),
    };
    let text =
        format!("kernel one workgroup 1 subgroup 1\narg y write\n{{\n{body}\nstore [$y + 0] align {size}, %10\n}}\n");
    let kernel = parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    verify(&kernel).unwrap_or_else(|e| panic!("{e}"));
    let mut memory = Memory::new();
    let y = memory.bind("y", vec![0; 4], Access::ReadWrite);
    run(&kernel, &[y], [1, 1, 1], &mut memory, &Options::default()).unwrap_or_else(|e| panic!("{e}"));
    u32::from_le_bytes(memory.bytes(y).unwrap().try_into().unwrap())
}

#[track_caller]
fn is_f32(body: &str, expected: f32) {
    let got = f32::from_bits(eval(body));
    assert!(got.to_bits() == expected.to_bits(), "{body}: {got:?}, not {expected:?}");
}

#[test]
fn fma_rounds_once() {
    // 1 + 2^-12 squared is 1 + 2^-11 + 2^-24; the last part survives only if the product is not rounded.
    let x = 1.0f32 + 2f32.powi(-12);
    is_f32(&format!("%9: f32 = fma {x:?}, {x:?}, -1.0"), 2f32.powi(-11) + 2f32.powi(-24));
    is_f32(&format!("%0: f32 = mul {x:?}, {x:?}\n%9: f32 = sub %0, 1.0"), 2f32.powi(-11));
    // The same for F16 with 1 + 2^-6 (0x3c10): 2^-5 + 2^-12 is 0x2808; without it 0x2800.
    assert_eq!(eval("%9: f16 = fma 0x3c10_f16, 0x3c10_f16, 0xbc00_f16"), 0x2808);
    assert_eq!(eval("%0: f16 = mul 0x3c10_f16, 0x3c10_f16\n%9: f16 = sub %0, 0x3c00_f16"), 0x2800);
    // A tie that the addend breaks far below the F32 precision of the sum: 1 + 2^-11 ± 2^-24.
    assert_eq!(eval("%9: f16 = fma 0x0c00_f16, 0x1000_f16, 0x3c00_f16"), 0x3c00);
    // 33/32 * 2^-11 (0x1020 * 1) on top of 1: just above the tie.
    assert_eq!(eval("%9: f16 = fma 0x1020_f16, 0x3c00_f16, 0x3c00_f16"), 0x3c01);
    assert_eq!(eval("%9: f16 = fma 0x1000_f16, 0x3c00_f16, 0x3c00_f16"), 0x3c00);
}

#[test]
fn nan_and_infinity() {
    let (nan, inf) = ("0x7fc00000_f32", "0x7f800000_f32");
    for (op, expected) in [("eq", 0), ("lt", 0), ("le", 0), ("gt", 0), ("ge", 0), ("ne", 1)] {
        assert_eq!(eval(&format!("%9: bool = {op} {nan}, 1.0")), expected, "{op}");
        assert_eq!(eval(&format!("%9: bool = {op} {nan}, {nan}")), expected, "{op}");
    }
    is_f32(&format!("%9: f32 = min {nan}, 1.0"), 1.0);
    is_f32(&format!("%9: f32 = max 1.0, {nan}"), 1.0);
    is_f32("%9: f32 = div 1.0, 0.0", f32::INFINITY);
    is_f32("%9: f32 = exp 100.0", f32::INFINITY);
    is_f32("%9: f32 = log 0.0", f32::NEG_INFINITY);
    is_f32("%9: f32 = exp -1000.0", 0.0);
    is_f32(&format!("%9: f32 = tanh {inf}"), 1.0);
    assert!(f32::from_bits(eval("%9: f32 = sqrt -1.0")).is_nan());
    assert_eq!(eval("%9: f16 = convert 65519.0"), 0x7bff);
    assert_eq!(eval("%9: f16 = convert 65520.0"), 0x7c00);
    assert_eq!(eval("%9: f16 = mul 0x7bff_f16, 0xc000_f16"), 0xfc00);
    is_f32("%9: f32 = convert 0xfc00_f16", f32::NEG_INFINITY);
    is_f32("%9: f32 = neg 0.0", -0.0);
    assert_eq!(eval("%9: f16 = neg 0x0000_f16"), 0x8000);
}

#[test]
fn subnormals_are_kept() {
    let tiny = f32::MIN_POSITIVE;
    is_f32(&format!("%9: f32 = mul {tiny:?}, 0.5"), tiny / 2.0);
    assert_eq!(eval("%9: f16 = mul 0x0400_f16, 0x3800_f16"), 0x0200);
    assert_eq!(eval("%9: f16 = convert 5.9604645e-8"), 1);
    // Half of the smallest: a tie, to even.
    assert_eq!(eval("%9: f16 = convert 2.9802322e-8"), 0);
    is_f32("%9: f32 = convert 0x0001_f16", 2f32.powi(-24));
}

#[test]
fn rounding_functions() {
    for (x, floor, even) in [(0.5, 0.0, 0.0), (1.5, 1.0, 2.0), (2.5, 2.0, 2.0), (-0.5, -1.0, -0.0), (-1.5, -2.0, -2.0)]
    {
        is_f32(&format!("%9: f32 = floor {x:?}"), floor);
        is_f32(&format!("%9: f32 = round_even {x:?}"), even);
    }
    for x in [0.1f32, 1.0, 2.5, 3.0] {
        is_f32(&format!("%9: f32 = exp {x:?}"), x.exp());
        is_f32(&format!("%9: f32 = log {x:?}"), x.ln());
        is_f32(&format!("%9: f32 = sin {x:?}"), x.sin());
        is_f32(&format!("%9: f32 = cos {x:?}"), x.cos());
        is_f32(&format!("%9: f32 = tanh {x:?}"), x.tanh());
        is_f32(&format!("%9: f32 = sqrt {x:?}"), x.sqrt());
        is_f32(&format!("%9: f32 = inv_sqrt {x:?}"), 1.0 / x.sqrt());
        is_f32(&format!("%9: f32 = pow {x:?}, 1.7"), x.powf(1.7));
    }
}

#[test]
fn integers_wrap_and_extend() {
    assert_eq!(eval("%9: i32 = add 2147483647_i32, 1_i32"), 0x8000_0000);
    assert_eq!(eval("%9: u32 = sub 0, 1"), u32::MAX);
    assert_eq!(eval("%9: i32 = neg -2147483648_i32"), 0x8000_0000);
    assert_eq!(eval("%9: i32 = shr -8_i32, 1_i32") as i32, -4);
    assert_eq!(eval("%9: u32 = shr 4294967288, 1"), 0x7fff_fffc);
    assert_eq!(eval("%9: i32 = div -7_i32, 2_i32") as i32, -3);
    assert_eq!(eval("%9: i32 = convert 0xff_i8") as i32, -1);
    assert_eq!(eval("%9: u32 = convert 0xff_i8"), u32::MAX);
    assert_eq!(eval("%9: u32 = convert 255_u8"), 255);
    assert_eq!(eval("%9: u8 = convert -1_i32"), 255);
    is_f32("%9: f32 = convert 0x80_i8", -128.0);
    is_f32("%9: f32 = convert 4294967295", 4294967296.0);
    is_f32("%9: f32 = convert 18446744073709551615_u64", 18446744073709551616.0);
    assert_eq!(eval("%9: i32 = convert -1.99") as i32, -1);
    assert_eq!(eval("%0: u64 = convert -1_i32\n%1: u64 = shr %0, 60_u64\n%9: u32 = convert %1"), 15);
    assert_eq!(eval("%9: i32 = dot4_ss 2155905152, 2155905152, 2147483647_i32"), 0x7fff_ffffu32.wrapping_add(65536));
    assert_eq!(eval("%9: i32 = dot4_us 4294967295, 4294967295, 1_i32") as i32, 1 - 4 * 255);
}

#[test]
fn reductions_run_in_lane_order() {
    let text = "kernel sum workgroup 4 subgroup 4\narg x read\narg y write\n{\n%0: u32 = shl lane, 2\n%1: f32 = load [$x + %0] align 4\n%2: f32 = subgroup_add %1\nstore [$y + %0] align 4, %2\n}\n";
    let xs = [1e8f32, 1.0, -1e8, 1.0];
    let mut memory = Memory::new();
    let x = memory.bind("x", xs.iter().flat_map(|v| v.to_le_bytes()).collect(), Access::Read);
    let y = memory.bind_uninitialised("y", 16);
    run(&parse(text).unwrap(), &[x, y], [1, 1, 1], &mut memory, &Options::default()).unwrap();
    let expected = ((xs[0] + xs[1]) + xs[2]) + xs[3];
    assert_eq!(memory.bytes(y).unwrap(), expected.to_le_bytes().repeat(4));
}

#[test]
fn f16_accumulators_round_once_per_multiply_add() {
    // 2048 + 8 × 1: added one by one in F16, every 1 would be lost.
    let text = "kernel m workgroup 4 subgroup 4\narg y write\n{\n%0: mat.a.8x8.f16 = matrix_splat 0x3c00_f16\n%1: mat.b.8x8.f16 = matrix_splat 0x3c00_f16\n%2: mat.acc.8x8.f16 = matrix_splat 0x6800_f16\n%3: mat.acc.8x8.f16 = matrix_mul_add %0, %1, %2\n%4: mat.acc.8x8.f32 = convert %3\nmatrix_store [$y + 0] stride 8 column, %4\n}\n";
    let kernel = parse(text).unwrap();
    verify(&kernel).unwrap();
    let mut memory = Memory::new();
    let y = memory.bind_uninitialised("y", 256);
    run(&kernel, &[y], [1, 1, 1], &mut memory, &Options::default()).unwrap();
    assert_eq!(memory.bytes(y).unwrap(), 2056f32.to_le_bytes().repeat(64));
    // Bytes into I32, signed by unsigned.
    let text = "kernel m workgroup 4 subgroup 4\narg y write\n{\n%0: mat.a.8x8.u8 = matrix_splat 255_u8\n%1: mat.b.8x8.i8 = matrix_splat 0x80_i8\n%2: mat.acc.8x8.i32 = matrix_splat -5_i32\n%3: mat.acc.8x8.i32 = matrix_mul_add %0, %1, %2\nmatrix_store [$y + 0] stride 8 row, %3\n}\n";
    let y = memory.bind_uninitialised("y", 256);
    run(&parse(text).unwrap(), &[y], [1, 1, 1], &mut memory, &Options::default()).unwrap();
    assert_eq!(memory.bytes(y).unwrap(), (-5 - 8 * 255 * 128i32).to_le_bytes().repeat(64));
}

#[test]
fn which_lane_holds_which_element_depends_on_the_seed() {
    let text = "kernel m workgroup 4 subgroup 4\narg x read\narg y write\n{\n%0: mat.acc.8x8.f32 = matrix_load [$x + 0] stride 8 row\n%1: f32 = matrix_element %0, 5\n%2: u32 = shl lane, 2\nstore [$y + %2] align 4, %1\n}\n";
    let kernel = parse(text).unwrap();
    let held = |seed| {
        let mut memory = Memory::new();
        let x = memory.bind("x", (0..64).flat_map(|i| (i as f32).to_le_bytes()).collect(), Access::Read);
        let y = memory.bind("y", vec![0; 16], Access::ReadWrite);
        run(&kernel, &[x, y], [1, 1, 1], &mut memory, &Options { seed, check_races: true }).unwrap();
        memory.bytes(y).unwrap().to_vec()
    };
    assert_eq!(held(1), held(1));
    let different: std::collections::HashSet<_> = (0..8).map(held).collect();
    assert_eq!(different.len(), 8);
}
