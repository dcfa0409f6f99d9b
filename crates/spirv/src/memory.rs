//! Global memory by device address, workgroup memory, matrices in both, atomics.

use crate::EmitError;
use crate::barrier::is_read_arg;
use crate::emitter::Emitter;
use rspirv::dr::Operand;
use rspirv::spirv::{self, Word};
use zinc_ir::kernel::{MatrixMemory, Op, Order, Scalar, Type, Value};

impl Emitter<'_> {
    pub(crate) fn load(&mut self, v: Value, op: &Op) -> Result<Word, EmitError> {
        let ty = self.type_of(v)?;
        match op {
            Op::Load { base, offset, imm, align, read_only } => {
                let at = self.global_at(*base, *offset, *imm, ty, *read_only)?;
                let ty = self.ty(ty);
                let access = self.global_access(*align as u32, *read_only);
                Ok(self.value_with(spirv::Op::Load, ty, [vec![Operand::IdRef(at)], access].concat()))
            }
            Op::SharedLoad { array, index } => {
                let at = self.shared_at(v, *array, *index)?;
                let ty = self.ty(ty);
                let operands = vec![Operand::IdRef(at), shared_access()];
                Ok(self.value_with(spirv::Op::Load, ty, operands))
            }
            Op::MatrixLoad { memory, stride, column_major } => {
                let operands = self.matrix_access(v, ty, memory, *stride, *column_major, None)?;
                let ty = self.ty(ty);
                Ok(self.value_with(spirv::Op::CooperativeMatrixLoadKHR, ty, operands))
            }
            Op::AtomicAdd { base, offset, value, order } => self.atomic_add(*base, *offset, *value, *order),
            other => Err(self.bad_type(v, other, ty)),
        }
    }

    pub(crate) fn store(&mut self, v: Value, op: &Op) -> Result<(), EmitError> {
        match op {
            Op::Store { base, offset, imm, align, value } => {
                let ty = self.type_of(*value)?;
                let at = self.global_at(*base, *offset, *imm, ty, false)?;
                let access = self.global_access(*align as u32, false);
                let operands = vec![Operand::IdRef(at), Operand::IdRef(self.id(*value)?)];
                self.inst(spirv::Op::Store, None, None, [operands, access].concat());
            }
            Op::SharedStore { array, index, value } => {
                let at = self.shared_at(v, *array, *index)?;
                let operands = vec![Operand::IdRef(at), Operand::IdRef(self.id(*value)?), shared_access()];
                self.inst(spirv::Op::Store, None, None, operands);
            }
            Op::MatrixStore { memory, stride, column_major, value } => {
                let (ty, id) = (self.type_of(*value)?, self.id(*value)?);
                let operands = self.matrix_access(v, ty, memory, *stride, *column_major, Some(id))?;
                self.inst(spirv::Op::CooperativeMatrixStoreKHR, None, None, operands);
            }
            other => return Err(self.bad_type(v, other, Type::Void)),
        }
        Ok(())
    }

    /// `base + offset + imm`. The order matters to ACO: a uniform base plus a zero-extended 32-bit offset plus a
    /// constant is one addressing mode of its global loads.
    fn address(&mut self, base: Value, offset: Value, imm: u32) -> Result<Word, EmitError> {
        let u64_ty = self.ty(Type::U64);
        let mut address = self.id(base)?;
        match self.kernel.constant(offset) {
            Some(0) => {}
            Some(n) => {
                let n = self.constant(Type::U64, n & u32::MAX as u64);
                address = self.value(spirv::Op::IAdd, u64_ty, &[address, n]);
            }
            None => {
                let offset = self.id(offset)?;
                let wide = self.value(spirv::Op::UConvert, u64_ty, &[offset]);
                address = self.value(spirv::Op::IAdd, u64_ty, &[address, wide]);
            }
        }
        if imm != 0 {
            let imm = self.constant(Type::U64, imm as u64);
            address = self.value(spirv::Op::IAdd, u64_ty, &[address, imm]);
        }
        Ok(address)
    }

    /// Pointer to one `ty` in global memory.
    fn global_at(
        &mut self,
        base: Value,
        offset: Value,
        imm: u32,
        ty: Type,
        read_only: bool,
    ) -> Result<Word, EmitError> {
        if ty.bytes() == 0 || ty.scalar() == Some(Scalar::Bool) {
            return Err(self.bad_type(base, "global access", ty));
        }
        let address = self.address(base, offset, imm)?;
        let block = self.global_pointer(ty, read_only);
        let block = self.value(spirv::Op::ConvertUToPtr, block, &[address]);
        let (element, zero) = (self.ty(ty), self.u32(0));
        let pointer = self.pointer(spirv::StorageClass::PhysicalStorageBuffer, element);
        Ok(self.value(spirv::Op::InBoundsAccessChain, pointer, &[block, zero]))
    }

    /// One `ty` that nothing writes, at an address that is aligned to its size.
    pub(crate) fn load_at(&mut self, address: Word, ty: Type) -> Word {
        let block = self.global_pointer(ty, true);
        let block = self.value(spirv::Op::ConvertUToPtr, block, &[address]);
        let (element, zero) = (self.ty(ty), self.u32(0));
        let pointer = self.pointer(spirv::StorageClass::PhysicalStorageBuffer, element);
        let at = self.value(spirv::Op::InBoundsAccessChain, pointer, &[block, zero]);
        let access = self.global_access(ty.bytes(), true);
        self.value_with(spirv::Op::Load, element, [vec![Operand::IdRef(at)], access].concat())
    }

    /// Memory operands of a global access. Only accesses that something in this kernel orders are non-private.
    fn global_access(&self, align: u32, read_only: bool) -> Vec<Operand> {
        let mut mask = spirv::MemoryAccess::ALIGNED;
        if !read_only && self.orders_global {
            mask |= spirv::MemoryAccess::NON_PRIVATE_POINTER;
        }
        vec![Operand::MemoryAccess(mask), Operand::LiteralBit32(align.max(1))]
    }

    fn shared_at(&mut self, v: Value, array: u32, index: Value) -> Result<Word, EmitError> {
        let declared = self.kernel.shared.get(array as usize);
        let element = declared.ok_or_else(|| self.out_of_range(v, "shared array", array))?.ty;
        let element = self.ty(element);
        let pointer = self.pointer(spirv::StorageClass::Workgroup, element);
        let (var, index) = (self.shared[array as usize], self.id(index)?);
        Ok(self.value(spirv::Op::InBoundsAccessChain, pointer, &[var, index]))
    }

    /// Operands of a matrix load (`value: None`) or store.
    fn matrix_access(
        &mut self,
        v: Value,
        ty: Type,
        memory: &MatrixMemory,
        stride: Value,
        column_major: bool,
        value: Option<Word>,
    ) -> Result<Vec<Operand>, EmitError> {
        let Type::Matrix(m) = ty else { return Err(self.bad_type(v, "matrix access", ty)) };
        let (at, access) = match memory {
            MatrixMemory::Shared { array, index } => (self.shared_at(v, *array, *index)?, vec![shared_access()]),
            MatrixMemory::Global { base, offset } => {
                let read_only = value.is_none() && is_read_arg(self.kernel, *base);
                let at = self.global_array_at(*base, *offset, m.scalar, read_only)?;
                // Vulkan asks for rows (columns) aligned to their size, up to 16 bytes.
                let row = if column_major { m.rows } else { m.cols } as u32 * m.scalar.bytes();
                (at, self.global_access(row.next_power_of_two().min(16), read_only))
            }
        };
        let layout = match column_major {
            false => spirv::CooperativeMatrixLayout::RowMajorKHR,
            true => spirv::CooperativeMatrixLayout::ColumnMajorKHR,
        };
        let (layout, stride) = (self.u32(layout as u32), self.id(stride)?);
        let ids = [Some(at), value, Some(layout), Some(stride)];
        Ok(ids.into_iter().flatten().map(Operand::IdRef).chain(access).collect())
    }

    /// Pointer to element 0 of an array of scalars in global memory: what matrix accesses want.
    fn global_array_at(
        &mut self,
        base: Value,
        offset: Value,
        scalar: Scalar,
        read_only: bool,
    ) -> Result<Word, EmitError> {
        let address = self.address(base, offset, 0)?;
        let block = self.global_array_pointer(scalar, read_only);
        let block = self.value(spirv::Op::ConvertUToPtr, block, &[address]);
        let (element, zero) = (self.ty(Type::Vec(scalar, 1)), self.u32(0));
        let pointer = self.pointer(spirv::StorageClass::PhysicalStorageBuffer, element);
        Ok(self.value(spirv::Op::InBoundsAccessChain, pointer, &[block, zero, zero]))
    }

    fn atomic_add(&mut self, base: Value, offset: Value, value: Value, order: Order) -> Result<Word, EmitError> {
        use spirv::MemorySemantics as S;
        let semantics = match order {
            Order::Relaxed => S::RELAXED,
            Order::AcquireRelease => S::ACQUIRE_RELEASE | S::UNIFORM_MEMORY | S::MAKE_AVAILABLE | S::MAKE_VISIBLE,
        };
        let (at, value) = (self.word_at(base, offset)?, self.id(value)?);
        Ok(self.atomic_increment(at, value, semantics))
    }

    /// Pointer to one U32 in global memory, for atomics.
    pub(crate) fn word_at(&mut self, base: Value, offset: Value) -> Result<Word, EmitError> {
        self.global_at(base, offset, 0, Type::U32, false)
    }

    /// Adds `value` at `at`, with device scope; gives the old value.
    pub(crate) fn atomic_increment(&mut self, at: Word, value: Word, semantics: spirv::MemorySemantics) -> Word {
        let operands = [self.atomic_operands(at, semantics), vec![Operand::IdRef(value)]].concat();
        let ty = self.ty(Type::U32);
        self.value_with(spirv::Op::AtomicIAdd, ty, operands)
    }

    /// Reads a U32, with device scope.
    pub(crate) fn atomic_load(&mut self, at: Word, semantics: spirv::MemorySemantics) -> Word {
        let operands = self.atomic_operands(at, semantics);
        let ty = self.ty(Type::U32);
        self.value_with(spirv::Op::AtomicLoad, ty, operands)
    }

    fn atomic_operands(&mut self, at: Word, semantics: spirv::MemorySemantics) -> Vec<Operand> {
        let (scope, semantics) = (self.u32(spirv::Scope::Device as u32), self.u32(semantics.bits()));
        vec![Operand::IdRef(at), Operand::IdScope(scope), Operand::IdMemorySemantics(semantics)]
    }
}

/// Lanes exchange data through workgroup memory: barriers order only non-private accesses.
fn shared_access() -> Operand {
    Operand::MemoryAccess(spirv::MemoryAccess::NON_PRIVATE_POINTER)
}
