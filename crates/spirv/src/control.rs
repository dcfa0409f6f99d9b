//! Structured control flow. A value that leaves a branch or a loop is a phi; there are no variables.

use crate::EmitError;
use crate::emitter::Emitter;
use rspirv::dr::Operand;
use rspirv::spirv::{self, Word};
use zinc_ir::kernel::{Block, Op, Type, Value};

impl<'k> Emitter<'k> {
    pub(crate) fn branch(&mut self, to: Word) {
        self.inst(spirv::Op::Branch, None, None, vec![Operand::IdRef(to)]);
    }

    pub(crate) fn branch_if(&mut self, cond: Word, yes: Word, no: Word) {
        let operands = [cond, yes, no].map(Operand::IdRef).to_vec();
        self.inst(spirv::Op::BranchConditional, None, None, operands);
    }

    pub(crate) fn selection_merge(&mut self, merge: Word) {
        let operands = vec![Operand::IdRef(merge), Operand::SelectionControl(spirv::SelectionControl::NONE)];
        self.inst(spirv::Op::SelectionMerge, None, None, operands);
    }

    pub(crate) fn loop_merge(&mut self, merge: Word, next: Word, control: spirv::LoopControl) {
        let operands = vec![Operand::IdRef(merge), Operand::IdRef(next), Operand::LoopControl(control)];
        self.inst(spirv::Op::LoopMerge, None, None, operands);
    }

    pub(crate) fn if_(&mut self, op: &'k Op) -> Result<(), EmitError> {
        let Op::If { cond, then, then_yield, otherwise, else_yield, results } = op else { return Ok(()) };
        let cond = self.id(*cond)?;
        let merge = self.b.id();
        let yes = if then.is_empty() && then_yield.is_empty() { merge } else { self.b.id() };
        let no = if otherwise.is_empty() && else_yield.is_empty() { merge } else { self.b.id() };
        if yes == merge && no == merge {
            return Ok(());
        }
        self.selection_merge(merge);
        self.branch_if(cond, yes, no);
        let then = self.branch_body(yes, merge, then, then_yield)?;
        let otherwise = self.branch_body(no, merge, otherwise, else_yield)?;
        self.open(merge);
        let ((Some(a), Some(b)), false) = ((then, otherwise), results.is_empty()) else { return Ok(()) };
        for ((result, x), y) in results.iter().zip(a.0).zip(b.0) {
            let ty = self.type_of(*result)?;
            let ty = self.ty(ty);
            let phi = self.value(spirv::Op::Phi, ty, &[x, a.1, y, b.1]);
            self.define(*result, phi);
        }
        Ok(())
    }

    /// One branch of an `If`; gives what it yields and the label it ends in. A branch to the merge block is none.
    fn branch_body(
        &mut self,
        label: Word,
        merge: Word,
        body: &'k Block,
        yields: &[Value],
    ) -> Result<Option<(Vec<Word>, Word)>, EmitError> {
        if label == merge {
            return Ok(None);
        }
        self.open(label);
        self.block(body)?;
        let ids = self.all(yields)?;
        let end = self.label;
        self.branch(merge);
        Ok(Some((ids, end)))
    }

    pub(crate) fn for_(&mut self, op: &'k Op) -> Result<(), EmitError> {
        let Op::For { start, end, step, index, init, carried, body, body_yield, results, unroll } = op else {
            return Ok(());
        };
        let (start, end, step, init) = (self.id(*start)?, self.id(*end)?, self.id(*step)?, self.all(init)?);
        let [header, test, inside, next, merge] = [(); 5].map(|()| self.b.id());
        let before = self.label;
        self.branch(header);
        self.open(header);
        let at = self.block_index();
        let index_phi = self.loop_phi(*index, start, before)?;
        for ((value, first), result) in carried.iter().zip(&init).zip(results) {
            let phi = self.loop_phi(*value, *first, before)?;
            // The header dominates the merge block: after the loop its phis hold the last carried values.
            self.define(*result, phi);
        }
        let control = if *unroll { spirv::LoopControl::UNROLL } else { spirv::LoopControl::DONT_UNROLL };
        self.loop_merge(merge, next, control);
        self.branch(test);
        self.open(test);
        let bool_ty = self.ty(Type::BOOL);
        let more = self.value(spirv::Op::ULessThan, bool_ty, &[index_phi, end]);
        self.branch_if(more, inside, merge);
        self.open(inside);
        self.block(body)?;
        let yielded = self.all(body_yield)?;
        self.branch(next);
        self.open(next);
        let u32_ty = self.ty(Type::U32);
        let following = self.value(spirv::Op::IAdd, u32_ty, &[index_phi, step]);
        self.branch(header);
        for (phi, value) in self.instructions(at).iter_mut().zip(std::iter::once(following).chain(yielded)) {
            phi.operands.extend([Operand::IdRef(value), Operand::IdRef(next)]);
        }
        self.open(merge);
        Ok(())
    }

    /// A phi in a loop header; the value it gets from the loop's end is added when that is known.
    fn loop_phi(&mut self, v: Value, first: Word, before: Word) -> Result<Word, EmitError> {
        let ty = self.type_of(v)?;
        let ty = self.ty(ty);
        let phi = self.value(spirv::Op::Phi, ty, &[first, before]);
        self.define(v, phi);
        Ok(phi)
    }
}
