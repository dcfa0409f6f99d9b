//! Cooperative matrices.

use super::super::{ArgKind, Builder, MatrixMemory, MatrixType, MatrixUse, Scalar, Type, Val};
use super::{Compare, Sample, f16_bytes, f32_bytes, input, noise, output};

/// `C = A × B + C0` of one matrix shape `[m, n, k]`, F16 into F32: row- and column-major, through global and shared
/// memory, with the accumulator carried by a loop. Rows must be a power of two of bytes long.
pub fn matrix(subgroup_size: u32, shape: [u8; 3]) -> Vec<Sample> {
    let mut samples = vec![];
    for (a_column, b_column) in [(false, false), (true, false), (false, true), (true, true)] {
        samples.push(product(subgroup_size, shape, a_column, b_column, false));
    }
    samples.push(product(subgroup_size, shape, false, true, true));
    samples
}

/// Multiples of 1/8 in ±1: exact products and sums.
fn eighths(len: usize, seed: u32) -> Vec<f32> {
    (0..len as u32).map(|i| (noise(i + seed) % 17) as f32 / 8.0 - 1.0).collect()
}

/// Where element (row, col) lies, for `ld` elements between rows or columns.
fn at(row: usize, col: usize, ld: usize, column_major: bool) -> usize {
    if column_major { col * ld + row } else { row * ld + col }
}

/// Byte offset of a block that starts at (row, col), as [`at`].
fn block<'b>(row: Val<'b>, col: Val<'b>, ld: usize, column_major: bool, size: u32) -> Val<'b> {
    let (line, place) = if column_major { (col, row) } else { (row, col) };
    (line * ld as u32 + place) * size
}

/// Steps of k.
const STEPS: usize = 3;

/// Each subgroup of a tile of two makes one m×n block, over `STEPS` blocks of k.
fn product(subgroup: u32, [m, n, k]: [u8; 3], a_column: bool, b_column: bool, staged: bool) -> Sample {
    let order = |column: bool| if column { "column" } else { "row" };
    let staging = if staged { "_shared" } else { "" };
    let name = format!("matrix_{m}x{n}x{k}_{}_{}{staging}", order(a_column), order(b_column));
    let (groups, tiles) = (2usize, 2usize);
    let (mu, nu, ku) = (m as usize, n as usize, k as usize);
    let depth = ku * STEPS;
    let rows = mu * groups * tiles;
    // A is rows × depth, B is depth × n, C is rows × n (always row-major).
    let (lda, ldb) = (if a_column { rows } else { depth }, if b_column { depth } else { nu });
    let kernel = {
        let b = Builder::new(name, subgroup * groups as u32, subgroup);
        let (pa, pb) = (b.arg("a", ArgKind::Read), b.arg("b", ArgKind::Read));
        let (pc, pd) = (b.arg("c", ArgKind::Read), b.arg("d", ArgKind::Write));
        let ty = |scalar, rows, cols, usage| MatrixType { scalar, rows, cols, usage };
        let ta = ty(Scalar::F16, m, k, MatrixUse::A);
        let tb = ty(Scalar::F16, k, n, MatrixUse::B);
        let tc = ty(Scalar::F32, m, n, MatrixUse::Acc);
        let stage = staged.then(|| b.shared("stage", Type::F16, (ku * nu) as u32));
        let row = (b.tile(0) * groups as u32 + b.subgroup_id()) * m as u32;
        let global =
            |base: Val<'_>, offset: Val<'_>| MatrixMemory::Global { base: base.value(), offset: offset.value() };
        let zero = b.u32(0);
        let first = b.matrix_load(tc, global(pc, block(row, zero, nu, false, 4)), b.u32(n as u32), false);
        let sum = b.for_(zero, b.u32(depth as u32), k as u32, &[first], |kk, sum| {
            let offset = block(row, kk, lda, a_column, 2);
            let a = b.matrix_load(ta, global(pa, offset), b.u32(lda as u32), a_column);
            let bm = match stage {
                None => {
                    let offset = block(kk, zero, ldb, b_column, 2);
                    b.matrix_load(tb, global(pb, offset), b.u32(ldb as u32), b_column)
                }
                Some(stage) => {
                    // The tile copies the k×n block, column-major and dense.
                    let lanes = subgroup * groups as u32;
                    b.for_(b.local_id(), b.u32((ku * nu) as u32), lanes, &[], |i, _| {
                        let (col, row) = (i / k as u32, i % k as u32);
                        let value = b.load(Type::F16, pb, (col * ldb as u32 + row + kk) * 2u32, 2);
                        b.shared_store(stage, i, value);
                        vec![]
                    });
                    b.barrier();
                    let memory = MatrixMemory::Shared { array: stage, index: zero.value() };
                    let bm = b.matrix_load(tb, memory, b.u32(k as u32), true);
                    b.barrier();
                    bm
                }
            };
            vec![b.matrix_mul_add(a, bm, sum[0])]
        });
        // Ones times zeros: adds nothing, and shows both splats.
        let none = b.matrix_splat(tb, b.f16_bits(0));
        let ones = b.matrix_splat(ta, b.f16_bits(0x3c00));
        let sum = b.matrix_mul_add(ones, none, sum[0]);
        b.matrix_store(sum, global(pd, block(row, zero, nu, false, 4)), b.u32(n as u32), false);
        b.finish()
    };
    let (a, bm, c) = (eighths(rows * depth, 1), eighths(depth * nu, 2), eighths(rows * nu, 3));
    let mut d = vec![];
    for row in 0..rows {
        for col in 0..nu {
            let products = (0..depth).map(|i| a[at(row, i, lda, a_column)] * bm[at(i, col, ldb, b_column)]);
            d.push(c[row * nu + col] + products.sum::<f32>());
        }
    }
    Sample {
        kernel,
        buffers: vec![
            input("a", f16_bytes(&a)),
            input("b", f16_bytes(&bm)),
            input("c", f32_bytes(&c)),
            output("d", f32_bytes(&d), Compare::Exact),
        ],
        words: vec![],
        grid: [tiles as u32, 1, 1],
    }
}
