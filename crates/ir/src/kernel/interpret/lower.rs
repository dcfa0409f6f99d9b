//! The structured body as flat code with jump targets, and a place for every value.
//!
//! ```text
//! If/For tree ─► [Op, If, Else, EndIf, For, Test, Next, EndFor, Barrier]    Value ─► first column or matrix slot
//! ```

use super::super::inst::*;
use super::arith;
use std::ops::Range;

/// One step. Jump targets are indices into [`Program::code`].
#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    /// Plain operation.
    Op(Value),
    /// Of the workgroup or of the grid.
    Barrier(Value),
    /// Saves the mask and narrows it to the lanes that hold the condition; none: jump.
    If { at: Value, otherwise: u32 },
    /// Gives the then-results, turns to the lanes that do not hold the condition; none: jump.
    Else { at: Value, end: u32 },
    /// Gives the else-results and restores the mask.
    EndIf { at: Value },
    /// Saves the mask, sets index and carried values.
    For { at: Value },
    /// Narrows the mask to lanes that still iterate; none: jump.
    Test { at: Value, end: u32 },
    /// Carries values to the next iteration and jumps back.
    Next { at: Value, test: u32 },
    /// Restores the mask and gives the results.
    EndFor { at: Value },
}

pub(super) struct Program<'k> {
    pub(super) kernel: &'k Kernel,
    pub(super) code: Vec<Step>,
    /// Where the columns of a vector value start and end, in u64; slot of matrices.
    places: Vec<(u32, u32)>,
    /// Operations that are undefined for some operands, constant ones considered.
    partial: Vec<bool>,
    /// Size of a subgroup's columns, in u64.
    pub(super) columns: usize,
    pub(super) matrices: usize,
}

impl<'k> Program<'k> {
    pub(super) fn new(kernel: &'k Kernel) -> Program<'k> {
        let partial = (0..kernel.ops.len() as u32).map(|i| is_partial(kernel, Value(i))).collect();
        let mut program = Program { kernel, code: vec![], places: vec![], partial, columns: 0, matrices: 0 };
        for ty in &kernel.types {
            let start = match ty {
                Type::Matrix(_) => {
                    program.matrices += 1;
                    program.matrices - 1
                }
                _ => program.columns,
            };
            program.columns += ty.lanes() as usize * kernel.subgroup_size as usize;
            program.places.push((start as u32, program.columns as u32));
        }
        program.block(&kernel.body);
        program
    }

    /// The part of a subgroup's columns that belongs to a vector value.
    pub(super) fn columns_of(&self, v: Value) -> Range<usize> {
        let (start, end) = self.places[v.0 as usize];
        start as usize..end as usize
    }

    pub(super) fn slot(&self, matrix: Value) -> usize {
        self.places[matrix.0 as usize].0 as usize
    }

    pub(super) fn is_partial(&self, v: Value) -> bool {
        self.partial[v.0 as usize]
    }

    fn here(&self) -> u32 {
        self.code.len() as u32
    }

    fn block(&mut self, block: &[Value]) {
        for &at in block {
            match self.kernel.op(at) {
                Op::Barrier | Op::GridBarrier { .. } => self.code.push(Step::Barrier(at)),
                Op::If { then, otherwise, .. } => {
                    let head = self.code.len();
                    self.code.push(Step::If { at, otherwise: 0 });
                    self.block(then);
                    let middle = self.code.len();
                    self.code.push(Step::Else { at, end: 0 });
                    self.block(otherwise);
                    self.code[head] = Step::If { at, otherwise: middle as u32 };
                    self.code[middle] = Step::Else { at, end: self.here() };
                    self.code.push(Step::EndIf { at });
                }
                Op::For { body, .. } => {
                    self.code.push(Step::For { at });
                    let test = self.here();
                    self.code.push(Step::Test { at, end: 0 });
                    self.block(body);
                    self.code.push(Step::Next { at, test });
                    self.code[test as usize] = Step::Test { at, end: self.here() };
                    self.code.push(Step::EndFor { at });
                }
                _ => self.code.push(Step::Op(at)),
            }
        }
    }
}

fn is_partial(kernel: &Kernel, v: Value) -> bool {
    let scalar = |v: Value| kernel.ty(v).scalar().unwrap_or(Scalar::U32);
    match kernel.op(v) {
        Op::Binary(op, a, b) => {
            // Any first operand will do: only I32 division looks at it, and that stays partial.
            let known = kernel.constant(*b).filter(|_| scalar(*a) != Scalar::I32 || !op_divides(*op));
            match known {
                Some(bits) => arith::undefined_binary(*op, scalar(*a), 0, bits).is_some(),
                None => arith::is_partial(*op, scalar(*a)),
            }
        }
        Op::Convert(a) => scalar(*a).is_float() && !scalar(v).is_float(),
        _ => false,
    }
}

fn op_divides(op: BinOp) -> bool {
    matches!(op, BinOp::Div | BinOp::Rem)
}
