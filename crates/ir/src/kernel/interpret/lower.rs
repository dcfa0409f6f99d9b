//! The structured body as flat code with jump targets, and a place for every value.
//!
//! ```text
//! If/For tree ─► [Op, If, Else, EndIf, For, Test, Next, EndFor, Barrier]    Value ─► first column or matrix slot
//! ```

use super::super::inst::*;

/// One step. Jump targets are indices into [`Program::code`].
#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    /// Plain operation.
    Op(Value),
    Barrier(Value),
    /// Saves the mask and narrows it to the lanes that hold the condition; none: jump.
    If {
        at: Value,
        otherwise: u32,
    },
    /// Gives the then-results, turns to the lanes that do not hold the condition; none: jump.
    Else {
        at: Value,
        end: u32,
    },
    /// Gives the else-results and restores the mask.
    EndIf {
        at: Value,
    },
    /// Saves the mask, sets index and carried values.
    For {
        at: Value,
    },
    /// Narrows the mask to lanes that still iterate; none: jump.
    Test {
        at: Value,
        end: u32,
    },
    /// Carries values to the next iteration and jumps back.
    Next {
        at: Value,
        test: u32,
    },
    /// Restores the mask and gives the results.
    EndFor {
        at: Value,
    },
}

pub(super) struct Program<'k> {
    pub(super) kernel: &'k Kernel,
    pub(super) code: Vec<Step>,
    /// First column of vector values (`lanes()` columns each), slot of matrices.
    places: Vec<u32>,
    pub(super) columns: usize,
    pub(super) matrices: usize,
}

impl<'k> Program<'k> {
    pub(super) fn new(kernel: &'k Kernel) -> Program<'k> {
        let mut program = Program { kernel, code: vec![], places: vec![], columns: 0, matrices: 0 };
        for ty in &kernel.types {
            let place = match ty {
                Type::Matrix(_) => {
                    program.matrices += 1;
                    program.matrices - 1
                }
                _ => {
                    program.columns += ty.lanes() as usize;
                    program.columns - ty.lanes() as usize
                }
            };
            program.places.push(place as u32);
        }
        program.block(&kernel.body);
        program
    }

    pub(super) fn place(&self, v: Value) -> usize {
        self.places[v.0 as usize] as usize
    }

    fn here(&self) -> u32 {
        self.code.len() as u32
    }

    fn block(&mut self, block: &[Value]) {
        for &at in block {
            match self.kernel.op(at) {
                Op::Barrier => self.code.push(Step::Barrier(at)),
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
