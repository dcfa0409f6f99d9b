//! The interpreter must stay fast enough for tests of whole layers.

use std::time::Instant;
use zinc_ir::kernel::interpret::{Access, Memory, Options, run};
use zinc_ir::kernel::*;

/// y = W x: one subgroup per row, four weights per load.
fn matvec(rows: u32, cols: u32) -> Kernel {
    let b = Builder::new("matvec", 128, 32);
    let (w, x, y) = (b.arg("w", ArgKind::Read), b.arg("x", ArgKind::Read), b.arg("y", ArgKind::Write));
    let row = b.tile(0) * 4u32 + b.subgroup_id();
    b.if_(row.lt(rows), || {
        let sum = b.for_(b.lane() * 4u32, b.u32(cols), 128, &[b.f32x4(0.0)], |col, sum| {
            let weights = b.load(Type::F32X4, w, (row * cols + col) * 4u32, 16);
            let xs = b.load(Type::F32X4, x, col * 4u32, 16);
            vec![b.fma(weights, xs, sum[0])]
        });
        let total = sum[0].sum_lanes().subgroup_add();
        b.if_(b.lane().eq(0u32), || b.store(y, row * 4u32, total, 4));
    });
    b.finish()
}

#[test]
fn a_matvec_of_100k_weights_is_right_and_its_time_is_shown() {
    // Not a multiple of the rows per tile; cols of the loop step.
    let (rows, cols) = (195u32, 512u32);
    let kernel = matvec(rows, cols);
    verify(&kernel).unwrap();
    let weight = |i: u32| (i.wrapping_mul(2654435761) >> 20) as f32 / 4096.0 - 0.5;
    let weights: Vec<f32> = (0..rows * cols).map(weight).collect();
    let xs: Vec<f32> = (0..cols).map(|i| weight(i + 77)).collect();
    let bytes = |v: &[f32]| v.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
    let mut memory = Memory::new();
    let args = [
        memory.bind("w", bytes(&weights), Access::Read),
        memory.bind("x", bytes(&xs), Access::Read),
        memory.bind_uninitialised("y", rows as usize * 4),
    ];
    let start = Instant::now();
    run(&kernel, &args, [rows.div_ceil(4), 1, 1], &mut memory, &Options::default()).unwrap();
    let seconds = start.elapsed().as_secs_f64();
    println!("{} weights in {:.1} ms", rows * cols, seconds * 1e3);
    let out = memory.bytes(args[2]).unwrap();
    for (row, y) in out.chunks_exact(4).enumerate() {
        let y = f32::from_le_bytes(y.try_into().unwrap()) as f64;
        let row = &weights[row * cols as usize..][..cols as usize];
        let exact: f64 = row.iter().zip(&xs).map(|(w, x)| *w as f64 * *x as f64).sum();
        assert!((y - exact).abs() < 1e-4, "{y} {exact}");
    }
}
