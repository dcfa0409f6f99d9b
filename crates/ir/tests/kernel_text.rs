//! The text form: fixed points, what it looks like, what is refused, and what does not change the fingerprint.

use zinc_ir::kernel::*;

fn scale(name: &str) -> Kernel {
    let b = Builder::new(name, 64, 32);
    let (x, y) = (b.arg("x", ArgKind::Read), b.arg("y", ArgKind::Write));
    let i = b.tile(0) * 64u32 + b.local_id();
    let v = b.load(Type::F32, x, i * 4u32, 4);
    b.store(y, i * 4u32, v * 2.0, 4);
    b.finish()
}

const SCALE: &str = "\
kernel scale workgroup 64 subgroup 32
arg x read
arg y write
{
  %0: u32 = shl tile.0, 6
  %1: u32 = add %0, local_id
  %2: u32 = shl %1, 2
  %3: f32 = load [$x + %2] align 4 readonly
  %4: u32 = shl %1, 2
  %5: f32 = mul %3, 2.0
  store [$y + %4] align 4, %5
}
";

#[test]
fn prints_as_documented() {
    assert_eq!(scale("scale").to_string(), SCALE);
}

#[test]
fn printing_and_parsing_is_a_fixed_point() {
    let parsed = parse(SCALE).unwrap();
    verify(&parsed).unwrap();
    assert_eq!(parsed.to_string(), SCALE);
    assert_eq!(parsed.fingerprint(), scale("scale").fingerprint());
}

#[test]
fn every_operation_survives() {
    let text = "\
kernel all workgroup 64 subgroup 32
arg x read
arg y readwrite
arg n word
shared s f32x4 64
shared h f16 256
{
  %0: f32x4 = load [$x + 0 + 16] align 16
  shared_store @s[local_id], %0
  barrier
  %1: f32x4 = shared_load @s[lane]
  %2: f32x4 = fma %0, %1, %1
  %3: f32 = extract %2, 3
  %4: f32 = subgroup_add %3
  %5: f32 = shuffle_xor %4, 16
  %6: f32 = shuffle %5, subgroup_id
  %7: bool = lt %6, 1e-5
  %8: f32 = select %7, -0.0, 0x7f800000_f32
  %9: i32 = convert %8
  %10: u32 = bitcast %8
  %11: i32 = dot4_us %10, 255, -3_i32
  %12: i32 = dot4_ss %10, 255, %11
  %13: u64 = convert $n
  %14: u64 = add %13, 18446744073709551615_u64
  %15: f16 = convert %8
  %16: f16 = add %15, 0x3c00_f16
  %17: f16x2 = compose %16, 0xfe00_f16
  %18: u32 = atomic_add [$y + 64], 1
  %19: mat.a.8x8.f16 = matrix_load [$x + 0] stride 8 row
  %20: mat.b.8x8.f16 = matrix_load @h[0] stride $n column
  %21: mat.acc.8x8.f32 = matrix_splat 0.0
  %22: mat.acc.8x8.f32 = matrix_mul_add %19, %20, %21
  matrix_store [$y + 128] stride 8 row, %22
  %23: f32, %24: u32 = for %25: u32 from 0 to 8 step 2 unroll with %26: f32 = 0.0, %27: u32 = %25 {
    yield %26, %27
  }
}
";
    // The last loop starts from its own index: the parser must say so.
    let error = parse(text).unwrap_err();
    assert_eq!((error.line, error.message.as_str()), (34, "%25 is used before it is defined"));
    let text = text.replace("%27: u32 = %25", "%27: u32 = %18").replace(
        "    yield %26, %27\n",
        "    %28: u32 = if %7 {
      store [$y + %25] align 4, %26
      yield %25
    } else {
      yield 7
    }
    if true {
      barrier
    }
    yield %26, %28
",
    );
    let kernel = parse(&text).unwrap();
    verify(&kernel).unwrap();
    assert_eq!(kernel.to_string(), text);
}

#[test]
fn fingerprint_ignores_the_name_and_nothing_else() {
    let other = SCALE.replace("2.0", "3.0");
    assert_eq!(scale("a").fingerprint(), scale("b").fingerprint());
    assert_ne!(parse(&other).unwrap().fingerprint(), scale("a").fingerprint());
    // A literal value: the hash is stored on disk, so it must not change between versions of the compiler.
    assert_eq!(format!("{:032x}", scale("a").fingerprint()), "ffdec5f2e336c56765c7b002f806d90e");
}

#[test]
fn handles_do_not_show() {
    // The same kernel, with constants made in another order and one never used.
    let b = Builder::new("scale", 64, 32);
    let (_, _) = (b.f32(2.0), b.u32(99));
    let (x, y) = (b.arg("x", ArgKind::Read), b.arg("y", ArgKind::Write));
    let i = b.tile(0) * 64u32 + b.local_id();
    let v = b.load(Type::F32, x, i * 4u32, 4);
    b.store(y, i * 4u32, v * 2.0, 4);
    assert_eq!(b.finish().to_string(), SCALE);
}

#[test]
fn comments_and_spacing_are_free() {
    let text = SCALE.replace("{\n", "{ # the body\n\n\n").replace(", ", " ,   ");
    assert_eq!(parse(&text).unwrap().to_string(), SCALE);
}

#[test]
fn bad_text_is_refused_with_its_line() {
    let cases = [
        ("mul %3, 2.0", "mul %3", 11, "expected `,`, found `store`"),
        ("mul %3, 2.0", "mul %9, 2.0", 10, "%9 is used before it is defined"),
        ("mul %3, 2.0", "mull %3, 2.0", 10, "no operation `mull`"),
        ("mul %3, 2.0", "mul %3, 0x1_q", 10, "`0x1_q` is no number: write e.g. 7, 2.0, -3_i32, 0x3c00_f16"),
        ("mul %3, 2.0", "mul %3, 300_u8", 10, "`300_u8` is no number: write e.g. 7, 2.0, -3_i32, 0x3c00_f16"),
        ("%5: f32", "%3: f32", 10, "%3 is defined twice"),
        ("%5: f32", "%5: f33", 10, "no type `f33`: write e.g. f32, u32x4 or mat.acc.8x8.f32"),
        ("$y", "$z", 11, "no argument `$z`: declare it with `arg`"),
        ("arg y write", "arg y wriet", 3, "no argument kind `wriet`: read, write, readwrite or word"),
        ("  store", "  %6: f32 = store", 11, "`store` has no result"),
        ("%5: f32 = ", "", 10, "`mul` has one result: write `%n: type = mul …`"),
        ("align 4,", "align 400,", 11, "expected an integer in range, found `400`"),
        ("5\n}", "5\n", 12, "expected an operation or `}`, found the end of the text"),
        ("5\n}", "5\n}\n}", 13, "expected the end of the text, found `}`"),
        ("local_id", "local?id", 6, "unexpected character '?'"),
    ];
    for (from, to, line, message) in cases {
        let error = parse(&SCALE.replace(from, to)).unwrap_err();
        assert_eq!((error.line, error.message.as_str()), (line, message), "{from} -> {to}");
    }
    for end in 0..SCALE.len() - 2 {
        assert!(parse(&SCALE[..end]).is_err(), "a prefix of {end} bytes");
    }
}

#[test]
fn deep_nesting_is_refused_not_overflown() {
    let mut text = "kernel deep workgroup 4 subgroup 4\n{\n".to_string();
    text += &"if true {\n".repeat(100_000);
    assert!(parse(&text).unwrap_err().message.contains("nested deeper"));
}
