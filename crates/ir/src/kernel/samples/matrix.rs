//! Cooperative matrices.

use super::super::{ArgKind, Builder, Kernel, MatrixMemory, MatrixType, MatrixUse, Scalar, Type, Val};
use super::{Compare, Sample, f16_bytes, f32_bytes, input, noise, output};

/// `D = A × B + C` of one matrix shape `[m, n, k]`, F16 into F32: row- and column-major, through global and shared
/// memory, with the accumulator carried by a loop. Rows must be a power of two of bytes long. And what each lane holds of
/// an accumulator, where it can be dealt out.
pub fn matrix(subgroup_size: u32, shape: [u8; 3]) -> Vec<Sample> {
    let product = |a_column, b_column, staged| {
        let [m, n, k] = shape.map(u32::from);
        Product { subgroup: subgroup_size, m, n, k, a_column, b_column, staged }.sample()
    };
    let [m, n, _] = shape.map(u32::from);
    let mut samples = vec![
        product(false, false, None),
        product(true, false, None),
        product(false, true, None),
        product(true, true, None),
        product(false, true, Some(Scalar::F16)),
        product(false, true, Some(Scalar::U32)),
    ];
    if (m * n).is_multiple_of(subgroup_size) {
        samples.push(elements(subgroup_size, m, n));
    }
    samples
}

/// Each subgroup makes `((c · f - c) + (c - f)) / 2 · c` of a block of C and of F, whose columns are all one and the same,
/// the first part of it lane by lane.
fn elements(subgroup: u32, m: u32, n: u32) -> Sample {
    let b = Builder::new(format!("matrix_elements_{m}x{n}"), subgroup * GROUPS, subgroup);
    let (pc, pf, pd) = (b.arg("c", ArgKind::Read), b.arg("f", ArgKind::Read), b.arg("d", ArgKind::Write));
    let ty = MatrixType { scalar: Scalar::F32, rows: m as u8, cols: n as u8, usage: MatrixUse::Acc };
    let row = (b.tile(0) * GROUPS + b.subgroup_id()) * m;
    let own = block(row, b.u32(0), n, false, 4);
    let c = b.matrix_load(ty, global(pc, own), b.u32(n), false);
    let f = b.matrix_load(ty, global(pf, row * 4), b.u32(0), true);
    let pairs = b.matrix_elements(c).into_iter().zip(b.matrix_elements(f));
    let each: Vec<Val<'_>> = pairs.map(|(c, f)| c * f - c).collect();
    let first = b.matrix_compose(ty, &each);
    let d = (first + (c - f)) / b.matrix_splat(ty, b.f32(2.0)) * c;
    b.matrix_store(d, global(pd, own), b.u32(n), false);
    let rows = m * GROUPS * TILES;
    let (cs, fs) = (eighths(rows * n, 4), eighths(rows, 5));
    let of = |(i, c): (usize, &f32)| {
        let f = fs[i / n as usize];
        ((c * f - c) + (c - f)) / 2.0 * c
    };
    let ds: Vec<f32> = cs.iter().enumerate().map(of).collect();
    Sample {
        kernel: b.finish(),
        buffers: vec![
            input("c", f32_bytes(&cs)),
            input("f", f32_bytes(&fs)),
            output("d", f32_bytes(&ds), Compare::Exact),
        ],
        words: vec![],
        grid: [TILES, 1, 1],
    }
}

/// Subgroups per tile, tiles, steps of k.
const GROUPS: u32 = 2;
const TILES: u32 = 2;
const STEPS: u32 = 3;

/// Each subgroup makes one m×n block. A is rows × depth, B is depth × n, C and D are rows × n and row-major.
struct Product {
    subgroup: u32,
    m: u32,
    n: u32,
    k: u32,
    a_column: bool,
    b_column: bool,
    /// B goes through shared memory: as halves, or two to a word.
    staged: Option<Scalar>,
}

/// Where element (row, col) lies, for `ld` elements between rows or columns.
fn at(row: u32, col: u32, ld: u32, column_major: bool) -> usize {
    (if column_major { col * ld + row } else { row * ld + col }) as usize
}

/// Byte offset of the block that starts at (row, col), as [`at`].
fn block<'b>(row: Val<'b>, col: Val<'b>, ld: u32, column_major: bool, size: u32) -> Val<'b> {
    let (line, place) = if column_major { (col, row) } else { (row, col) };
    (line * ld + place) * size
}

fn global(base: Val<'_>, offset: Val<'_>) -> MatrixMemory {
    MatrixMemory::Global { base: base.value(), offset: offset.value() }
}

/// Multiples of 1/8 in ±1: exact products and sums.
fn eighths(len: u32, seed: u32) -> Vec<f32> {
    (0..len).map(|i| (noise(i + seed) % 17) as f32 / 8.0 - 1.0).collect()
}

impl Product {
    fn depth(&self) -> u32 {
        self.k * STEPS
    }
    fn rows(&self) -> u32 {
        self.m * GROUPS * TILES
    }
    fn lda(&self) -> u32 {
        if self.a_column { self.rows() } else { self.depth() }
    }
    fn ldb(&self) -> u32 {
        if self.b_column { self.depth() } else { self.n }
    }

    fn kernel(&self) -> Kernel {
        let order = |column: bool| if column { "column" } else { "row" };
        let staging = match self.staged {
            Some(Scalar::U32) => "_words",
            Some(_) => "_shared",
            None => "",
        };
        let Product { m, n, k, a_column, b_column, .. } = *self;
        let name = format!("matrix_{m}x{n}x{k}_{}_{}{staging}", order(a_column), order(b_column));
        let b = Builder::new(name, self.subgroup * GROUPS, self.subgroup);
        let (pa, pb) = (b.arg("a", ArgKind::Read), b.arg("b", ArgKind::Read));
        let (pc, pd) = (b.arg("c", ArgKind::Read), b.arg("d", ArgKind::Write));
        let ty = |scalar, rows: u32, cols: u32, usage| MatrixType { scalar, rows: rows as u8, cols: cols as u8, usage };
        let ta = ty(Scalar::F16, m, k, MatrixUse::A);
        let tb = ty(Scalar::F16, k, n, MatrixUse::B);
        let tc = ty(Scalar::F32, m, n, MatrixUse::Acc);
        let stage = self.staged.map(|s| (b.shared("stage", Type::Vec(s, 1), k * n * 2 / s.bytes()), s));
        let row = (b.tile(0) * GROUPS + b.subgroup_id()) * m;
        let zero = b.u32(0);
        let own = block(row, zero, n, false, 4);
        let first = b.matrix_load(tc, global(pc, own), b.u32(n), false);
        let sum = b.for_(zero, b.u32(self.depth()), k, &[first], |kk, sum| {
            let offset = block(row, kk, self.lda(), a_column, 2);
            let a = b.matrix_load(ta, global(pa, offset), b.u32(self.lda()), a_column);
            let right = match stage {
                Some(stage) => self.staged_load(&b, stage, tb, pb, kk),
                None => {
                    let offset = block(kk, zero, self.ldb(), b_column, 2);
                    b.matrix_load(tb, global(pb, offset), b.u32(self.ldb()), b_column)
                }
            };
            vec![b.matrix_mul_add(a, right, sum[0])]
        });
        // Ones times zeros: adds nothing, and shows both splats.
        let none = b.matrix_splat(tb, b.f16_bits(0));
        let ones = b.matrix_splat(ta, b.f16_bits(0x3c00));
        let sum = b.matrix_mul_add(ones, none, sum[0]);
        b.matrix_store(sum, global(pd, own), b.u32(n), false);
        b.finish()
    }

    /// The tile copies the k×n block at row `kk` of column-major B, dense, then each subgroup loads it.
    fn staged_load<'b>(
        &self,
        b: &'b Builder,
        (stage, scalar): (u32, Scalar),
        tb: MatrixType,
        pb: Val<'b>,
        kk: Val<'b>,
    ) -> Val<'b> {
        let (n, each) = (self.n, scalar.bytes() / 2);
        let line = self.k / each;
        b.for_(b.local_id(), b.u32(line * n), self.subgroup * GROUPS, &[], |i, _| {
            let offset = block(i % line * each + kk, i / line, self.ldb(), true, 2);
            b.shared_store(stage, i, b.load(Type::Vec(scalar, 1), pb, offset, scalar.bytes() as u8));
            vec![]
        });
        b.barrier();
        let memory = MatrixMemory::Shared { array: stage, index: b.u32(0).value() };
        let right = b.matrix_load(tb, memory, b.u32(line), true);
        b.barrier();
        right
    }

    fn sample(&self) -> Sample {
        let (rows, depth, n) = (self.rows(), self.depth(), self.n);
        let (a, b, c) = (eighths(rows * depth, 1), eighths(depth * n, 2), eighths(rows * n, 3));
        let mut d = vec![];
        for row in 0..rows {
            for col in 0..n {
                let left = |i| a[at(row, i, self.lda(), self.a_column)];
                let right = |i| b[at(i, col, self.ldb(), self.b_column)];
                d.push(c[at(row, col, n, false)] + (0..depth).map(|i| left(i) * right(i)).sum::<f32>());
            }
        }
        Sample {
            kernel: self.kernel(),
            buffers: vec![
                input("a", f16_bytes(&a)),
                input("b", f16_bytes(&b)),
                input("c", f32_bytes(&c)),
                output("d", f32_bytes(&d), Compare::Exact),
            ],
            words: vec![],
            grid: [TILES, 1, 1],
        }
    }
}
