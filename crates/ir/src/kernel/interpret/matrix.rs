//! Cooperative matrices: elements as bits, row by row, one copy per subgroup.
//!
//! Which lane holds which element is unspecified: here a permutation that the seed and the matrix's type decide. Matrices in
//! quads are dealt out as specified.
//!
//! ```text
//! memory ─load─► Vec of bits ─mul_add─► Vec of bits ─store─► memory
//! ```

use super::super::inst::*;
use super::execute::{Frame, Machine, Stop};
use super::races::{How, Who};
use super::schedule::{Random, shuffled};
use super::{FaultKind, arith, float, memory};
use Scalar::*;
use std::cell::Cell;

impl Machine<'_, '_> {
    pub(super) fn matrix(&mut self, frame: &Frame, matrices: &mut [Vec<u64>], v: Value) -> Result<(), Stop> {
        let kernel = frame.kernel();
        let place = |v: &Value| frame.program.slot(*v);
        let shape = |v: &Value| match kernel.ty(*v) {
            Type::Matrix(m) => m,
            _ => MatrixType { scalar: Scalar::F32, rows: 0, cols: 0, usage: MatrixUse::Acc },
        };
        let result = match kernel.op(v) {
            Op::MatrixSplat(x) => {
                let m = shape(&v);
                vec![self.uniform(frame, *x, "element")?; m.rows as usize * m.cols as usize]
            }
            Op::MatrixMulAdd(a, b, c) => {
                let types = [shape(a), shape(b), shape(c)];
                mul_add(types, &matrices[place(a)], &matrices[place(b)], &matrices[place(c)])
            }
            Op::Binary(op, a, b) => {
                let [mut a, mut b] = [a, b].map(|m| matrices[place(m)].clone());
                let mut d = vec![0; a.len()];
                let [a, b, d_cells] = [&mut a, &mut b, &mut d].map(|m| Cell::from_mut(&mut m[..]).as_slice_of_cells());
                arith::binary(*op, shape(&v).scalar, a, b, d_cells);
                d
            }
            Op::MatrixCompose(parts) => {
                let ty = shape(&v);
                let mut elements = vec![0; ty.elements() as usize];
                for (part, places) in parts.iter().zip(self.layout(ty, frame.lanes).chunks_exact(frame.lanes)) {
                    frame.column(*part).iter().zip(places).for_each(|(x, at)| elements[*at as usize] = x.get());
                }
                elements
            }
            Op::MatrixElement(a, i) => {
                let held =
                    self.layout(shape(a), frame.lanes).chunks_exact(frame.lanes).nth(*i as usize).unwrap_or_default();
                let elements = &matrices[place(a)];
                frame.column(v).iter().zip(held).for_each(|(d, at)| d.set(elements[*at as usize]));
                return Ok(());
            }
            Op::Convert(a) => convert(shape(a).scalar, shape(&v).scalar, &matrices[place(a)]),
            Op::MatrixLoad { memory, stride, column_major } => {
                let ty = shape(&v);
                let mut elements = vec![0; ty.rows as usize * ty.cols as usize];
                let load = Transfer { memory, stride: *stride, column_major: *column_major, ty, how: How::Read };
                self.transfer(frame, &load, &mut elements)?;
                elements
            }
            Op::MatrixStore { memory, stride, column_major, value } => {
                let ty = shape(value);
                let store = Transfer { memory, stride: *stride, column_major: *column_major, ty, how: How::Write };
                return self.transfer(frame, &store, &mut matrices[place(value)]);
            }
            _ => return Ok(()),
        };
        matrices[place(&v)] = result;
        Ok(())
    }

    /// The place of each lane's first element, then of their second ones, …
    fn layout(&mut self, ty: MatrixType, lanes: usize) -> &[u32] {
        let seed = self.seed;
        self.layouts.entry(ty).or_insert_with(|| {
            if ty.in_quads(lanes as u32) {
                let places = (0..ty.elements()).map(|i| quad_place(i % lanes as u32, i / lanes as u32));
                return places.map(|(row, col)| row * ty.cols as u32 + col).collect();
            }
            let roles = (ty.rows as u64) << 24 | (ty.cols as u64) << 16 | ty.scalar.bytes() as u64;
            shuffled(ty.elements(), &mut Random(seed ^ roles << 32))
        })
    }

    fn uniform(&self, frame: &Frame, v: Value, what: &'static str) -> Result<u64, Stop> {
        let column = frame.column(v);
        let first = column[0].get();
        match column.iter().position(|c| c.get() != first) {
            Some(lane) => Err(frame.stop(lane, FaultKind::NotUniform(what))),
            None => Ok(first),
        }
    }

    /// Moves all elements of a matrix between memory and `elements`.
    fn transfer(&mut self, frame: &Frame, t: &Transfer<'_>, elements: &mut [u64]) -> Result<(), Stop> {
        let stride = self.uniform(frame, t.stride, "stride")?;
        let unknown = |who| Who { lane: Who::UNKNOWN_LANE, ..who };
        match t.memory {
            MatrixMemory::Global { base, offset } => {
                let base = self.uniform(frame, *base, "base")?;
                let base = base.wrapping_add(self.uniform(frame, *offset, "offset")?);
                self.global_lines(t, base, stride, unknown(self.who(frame, 0)), elements)
                    .map_err(|kind| frame.stop(0, kind))
            }
            MatrixMemory::Shared { array, index } => {
                let start = self.uniform(frame, *index, "index")?;
                let who = unknown(self.who_shared(frame, 0));
                self.shared_lines(t, *array, start, stride, who, elements).map_err(|kind| frame.stop(0, kind))
            }
        }
    }

    fn global_lines(
        &mut self,
        t: &Transfer<'_>,
        base: u64,
        stride: u64,
        who: Who,
        elements: &mut [u64],
    ) -> Result<(), FaultKind> {
        let (size, line_bytes) = (t.ty.scalar.bytes(), t.line_bytes());
        for (line, first, step, count) in lines(t.ty, t.column_major) {
            let address = base.wrapping_add(line * stride * size as u64);
            let at = self.locate(address, line_bytes, t.align())?;
            let line = elements.iter_mut().skip(first).step_by(step).take(count);
            if t.how == How::Write {
                let bytes = self.memory.write(at, line_bytes as usize)?;
                bytes.chunks_exact_mut(size as usize).zip(line).for_each(|(b, x)| memory::put(b, *x));
                self.touch(at, line_bytes, who, t.how)?;
            } else {
                self.touch(at, line_bytes, who, t.how)?;
                let bytes = self.memory.read(at, line_bytes as usize)?;
                bytes.chunks_exact(size as usize).zip(line).for_each(|(b, x)| *x = memory::get(b));
            }
        }
        Ok(())
    }

    fn shared_lines(
        &mut self,
        t: &Transfer<'_>,
        array: u32,
        start: u64,
        stride: u64,
        who: Who,
        elements: &mut [u64],
    ) -> Result<(), FaultKind> {
        let declared = self.program.kernel.shared[array as usize].ty;
        let lanes = declared.lanes() as usize;
        // Matrix elements in a lane of the array: more than one where its lanes are words.
        let packed = (declared.bytes() / declared.lanes().max(1) as u32 / t.ty.scalar.bytes()).max(1) as usize;
        let bits = 8 * t.ty.scalar.bytes();
        for (line, first, step, count) in lines(t.ty, t.column_major) {
            let begin = start + line * stride;
            let (address, align) = (begin * declared.bytes() as u64, t.align());
            if !address.is_multiple_of(align as u64) {
                return Err(FaultKind::Misaligned { address, align });
            }
            let mut places = elements.iter_mut().skip(first).step_by(step).take(count);
            for i in 0..(count / (lanes * packed)) as u64 {
                for lane in self.element(array, begin + i, who, t.how)? {
                    let shifts = (0..packed as u32).map(|k| k * bits);
                    match t.how {
                        How::Write => {
                            *lane = shifts.zip(places.by_ref()).fold(0, |word, (shift, x)| word | *x << shift);
                        }
                        _ if packed == 1 => places.by_ref().take(1).for_each(|x| *x = *lane),
                        _ => {
                            let mask = (1 << bits) - 1;
                            shifts.zip(places.by_ref()).for_each(|(shift, x)| *x = *lane >> shift & mask);
                        }
                    }
                }
            }
        }
        Ok(())
    }
}

/// A load or store of a whole matrix.
struct Transfer<'a> {
    memory: &'a MatrixMemory,
    stride: Value,
    column_major: bool,
    ty: MatrixType,
    how: How,
}

impl Transfer<'_> {
    /// Bytes of a row (column) in memory.
    fn line_bytes(&self) -> u32 {
        let line = if self.column_major { self.ty.rows } else { self.ty.cols };
        line as u32 * self.ty.scalar.bytes()
    }

    /// What VK_KHR_cooperative_matrix asks of pointer and stride.
    fn align(&self) -> u32 {
        let line = self.line_bytes();
        if line.is_power_of_two() { line.min(16) } else { self.ty.scalar.bytes() }
    }
}

/// a × b + c; f32 inside, in order of k.
fn mul_add(types: [MatrixType; 3], a: &[u64], b: &[u64], c: &[u64]) -> Vec<u64> {
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
fn convert(from: Scalar, to: Scalar, a: &[u64]) -> Vec<u64> {
    a.iter().map(|x| of_number(to, number(from, *x))).collect()
}

/// `(line, first, step, count)` of each line that is contiguous in memory: element `i` of the line is element
/// `first + i * step` of the matrix.
fn lines(m: MatrixType, column_major: bool) -> impl Iterator<Item = (u64, usize, usize, usize)> {
    let (rows, cols) = (m.rows as usize, m.cols as usize);
    let count = if column_major { cols } else { rows };
    (0..count).map(
        move |line| {
            if column_major { (line as u64, line, cols, rows) } else { (line as u64, line * cols, 1, cols) }
        },
    )
}
