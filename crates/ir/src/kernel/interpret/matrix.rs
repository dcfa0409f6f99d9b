//! Cooperative matrices: elements as bits, row by row, one copy per subgroup.
//!
//! ```text
//! memory ─load─► Vec of bits ─mul_add─► Vec of bits ─store─► memory
//! ```

use super::super::inst::*;
use super::{arith, float};
use Scalar::*;

/// a × b + c; f32 inside, in order of k.
pub(super) fn mul_add(types: [MatrixType; 3], a: &[u64], b: &[u64], c: &[u64]) -> Vec<u64> {
    let [ta, tb, tc] = types;
    let (rows, inner, cols) = (ta.rows as usize, ta.cols as usize, tb.cols as usize);
    let mut out = Vec::with_capacity(rows * cols);
    let a: Vec<f32> = a.iter().map(|x| number(ta.scalar, *x)).collect();
    let b: Vec<f32> = b.iter().map(|x| number(tb.scalar, *x)).collect();
    for row in 0..rows {
        for col in 0..cols {
            let start = c[row * cols + col];
            let pairs = (0..inner).map(|k| (a[row * inner + k], b[k * cols + col]));
            out.push(match tc.scalar {
                // Bytes and their products are exact in f32.
                I32 => pairs.fold(start, |sum, (x, y)| (sum as u32).wrapping_add((x * y) as i32 as u32) as u64),
                s => of_number(s, pairs.fold(number(s, start), |sum, (x, y)| sum + x * y)),
            });
        }
    }
    out
}

fn number(s: Scalar, bits: u64) -> f32 {
    match s {
        F16 => float::to_f32(bits),
        F32 => arith::f32_of(bits),
        I8 => bits as u8 as i8 as f32,
        _ => bits as f32,
    }
}

fn of_number(s: Scalar, x: f32) -> u64 {
    if s == F16 { float::from_f64(x as f64) } else { arith::of_f32(x) }
}

/// F16 ↔ F32, element by element.
pub(super) fn convert(from: Scalar, to: Scalar, a: &[u64]) -> Vec<u64> {
    a.iter().map(|x| of_number(to, number(from, *x))).collect()
}

/// Calls `f(line, first, step, count)` for each line that is contiguous in memory: element `i` of the line is
/// element `first + i * step` of the matrix.
pub(super) fn lines(m: MatrixType, column_major: bool) -> impl Iterator<Item = (u64, usize, usize, usize)> {
    let (rows, cols) = (m.rows as usize, m.cols as usize);
    let count = if column_major { cols } else { rows };
    (0..count).map(
        move |line| {
            if column_major { (line as u64, line, cols, rows) } else { (line as u64, line * cols, 1, cols) }
        },
    )
}
