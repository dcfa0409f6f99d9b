//! Launch arguments: the push constants, or memory where there are more than those hold.
//!
//! ```text
//! ≤ PUSH_BYTES: { address, address, …, word, … }             loaded at the top
//! more:         { address of them } ─► memory, same layout   each loaded in front of the statement that first uses it
//! ```
//!
//! A persistent kernel of many layers has hundreds of arguments, most of them for one phase: loaded at the top they would
//! fill the registers for the whole launch.

use crate::EmitError;
use crate::emitter::Emitter;
use rspirv::dr::Operand;
use rspirv::spirv::{self, Word};
use zinc_ir::kernel::{ArgKind, Kernel, Op, Type, Value};

impl Emitter<'_> {
    /// Declares the push constants, if there are any.
    pub(crate) fn push_block(&mut self) -> Option<Word> {
        if self.push.bytes == 0 {
            return None;
        }
        let type_of = |kind| if kind == ArgKind::Word { Type::U32 } else { Type::U64 };
        let kernel = self.kernel;
        let members: Vec<(u32, Type)> = match self.push.in_memory() {
            true => vec![(0, Type::U64)],
            false => kernel.args.iter().zip(&self.push.offsets).map(|(arg, at)| (*at, type_of(arg.kind))).collect(),
        };
        let operands = members.iter().map(|(_, ty)| Operand::IdRef(self.ty(*ty))).collect();
        let block = self.b.id();
        self.global(spirv::Op::TypeStruct, None, block, operands);
        self.b.decorate(block, spirv::Decoration::Block, []);
        for (i, (offset, _)) in members.iter().enumerate() {
            let offset = Operand::LiteralBit32(*offset);
            self.b.member_decorate(block, i as u32, spirv::Decoration::Offset, [offset]);
        }
        let block = self.variable(spirv::StorageClass::PushConstant, block);
        if self.push.in_memory() {
            self.table = Some(self.load_pushed(block, 0, Type::U64));
        }
        Some(block)
    }

    fn load_pushed(&mut self, block: Word, member: u32, ty: Type) -> Word {
        let ty = self.ty(ty);
        let pointer = self.pointer(spirv::StorageClass::PushConstant, ty);
        let member = self.u32(member);
        let at = self.value(spirv::Op::AccessChain, pointer, &[block, member]);
        self.value(spirv::Op::Load, ty, &[at])
    }

    /// Argument `n` out of the push constants.
    pub(crate) fn load_arg(&mut self, v: Value, n: u32, ty: Type, block: Option<Word>) -> Result<Word, EmitError> {
        let block = block.ok_or_else(|| self.out_of_range(v, "argument", n))?;
        if n as usize >= self.kernel.args.len() {
            return Err(self.out_of_range(v, "argument", n));
        }
        Ok(self.load_pushed(block, n, ty))
    }

    /// Loads the arguments in memory that the statement `v` of the body uses and no earlier one did.
    pub(crate) fn fetch_args(&mut self, v: Value) -> Result<(), EmitError> {
        let Some(table) = self.table else { return Ok(()) };
        let mut used = vec![];
        args_of(self.kernel, v, &mut used);
        for v in used {
            if self.id(v).is_ok() {
                continue;
            }
            let Some(Op::Arg(n)) = self.kernel.ops.get(v.0 as usize) else { continue };
            let at = self.push.offsets.get(*n as usize).copied().ok_or_else(|| self.out_of_range(v, "argument", *n))?;
            let (ty, u64_ty) = (self.type_of(v)?, self.ty(Type::U64));
            let at = self.constant(Type::U64, at as u64);
            let address = self.value(spirv::Op::IAdd, u64_ty, &[table, at]);
            let loaded = self.load_at(address, ty);
            self.define(v, loaded);
        }
        Ok(())
    }
}

/// The arguments among the operands of `v` and of everything in its blocks.
fn args_of(kernel: &Kernel, v: Value, used: &mut Vec<Value>) {
    let Some(op) = kernel.ops.get(v.0 as usize) else { return };
    let mut see = |o: Value| {
        if matches!(kernel.ops.get(o.0 as usize), Some(Op::Arg(_))) {
            used.push(o);
        }
    };
    op.for_each_operand(&mut see);
    match op {
        Op::If { then, then_yield, otherwise, else_yield, .. } => {
            then_yield.iter().chain(else_yield).copied().for_each(see);
            then.iter().chain(otherwise).for_each(|inner| args_of(kernel, *inner, used));
        }
        Op::For { body, body_yield, .. } => {
            body_yield.iter().copied().for_each(see);
            body.iter().for_each(|inner| args_of(kernel, *inner, used));
        }
        _ => {}
    }
}
