//! The module under construction: types, constants, inputs, and the walk over a kernel's blocks.

use crate::require::{PushLayout, Requirements, push_layout, requirements};
use crate::{EmitError, FloatModes};
use rspirv::binary::Assemble;
use rspirv::dr::{self, Operand};
use rspirv::spirv::{self, Word};
use std::collections::HashMap;
use zinc_ir::kernel::{Builtin, Kernel, MatrixType, MatrixUse, Op, Scalar, Type, Value};

/// Things that are declared once per module and looked up by what they are.
#[derive(Clone, PartialEq, Eq, Hash)]
enum Key {
    Type(Type),
    Constant(Type, u64),
    Pointer(spirv::StorageClass, Word),
    /// Block around one member (or a runtime array of it) in physical storage; `true`: read-only.
    Global(Type, bool),
    GlobalArray(Scalar, bool),
}

pub(crate) struct Emitter<'k> {
    pub(crate) kernel: &'k Kernel,
    pub(crate) needs: Requirements,
    modes: FloatModes,
    pub(crate) push: PushLayout,
    /// Address of the arguments, where they lie in memory.
    pub(crate) table: Option<Word>,
    pub(crate) b: dr::Builder,
    keys: HashMap<Key, Word>,
    ids: Vec<Option<Word>>,
    /// Workgroup variables, by index into `Kernel::shared`.
    pub(crate) shared: Vec<Word>,
    pub(crate) glsl: Word,
    interface: Vec<Word>,
    /// Label of the block being filled.
    pub(crate) label: Word,
    /// Barriers order global memory too (see `barrier`), by value of the barrier.
    pub(crate) global_barriers: Vec<Value>,
    /// Global accesses of different lanes are ordered by something.
    pub(crate) orders_global: bool,
}

impl<'k> Emitter<'k> {
    pub(crate) fn new(kernel: &'k Kernel, modes: FloatModes) -> Self {
        let mut b = dr::Builder::new();
        b.set_version(1, 6);
        let glsl = b.ext_inst_import("GLSL.std.450");
        Emitter {
            kernel,
            needs: requirements(kernel),
            modes,
            push: push_layout(kernel),
            table: None,
            b,
            keys: HashMap::new(),
            ids: vec![None; kernel.ops.len()],
            shared: vec![],
            glsl,
            interface: vec![],
            label: 0,
            global_barriers: crate::barrier::global_barriers(kernel),
            orders_global: crate::barrier::orders_global(kernel),
        }
    }

    pub(crate) fn run(mut self) -> Result<Vec<u32>, EmitError> {
        self.capabilities();
        self.b.memory_model(spirv::AddressingModel::PhysicalStorageBuffer64, spirv::MemoryModel::Vulkan);
        self.shared_variables();
        let void = self.ty(Type::Void);
        let signature = self.b.type_function(void, []);
        let main = self.b.id();
        let function = dr::Instruction::new(
            spirv::Op::Function,
            Some(void),
            Some(main),
            vec![Operand::FunctionControl(spirv::FunctionControl::NONE), Operand::IdRef(signature)],
        );
        self.b.module_mut().functions.push(dr::Function { def: Some(function), ..dr::Function::new() });
        let entry = self.b.id();
        self.open(entry);
        self.leaves()?;
        let kernel = self.kernel;
        for v in &kernel.body {
            self.fetch_args(*v)?;
            self.block(std::slice::from_ref(v))?;
        }
        self.inst(spirv::Op::Return, None, None, vec![]);
        let end = dr::Instruction::new(spirv::Op::FunctionEnd, None, None, vec![]);
        self.b.module_mut().functions[0].end = Some(end);
        self.entry_point(main);
        Ok(self.b.module().assemble())
    }

    // ---- module header --------------------------------------------------------------------------------------

    fn capabilities(&mut self) {
        use spirv::Capability as C;
        let n = &self.needs;
        let rows = [
            (true, C::Shader),
            (true, C::PhysicalStorageBufferAddresses),
            (true, C::VulkanMemoryModel),
            (true, C::Int64),
            (n.atomics, C::VulkanMemoryModelDeviceScope),
            (n.int8, C::Int8),
            (n.int16, C::Int16),
            (n.float16, C::Float16),
            (n.storage8, C::StorageBuffer8BitAccess),
            (n.storage16, C::StorageBuffer16BitAccess),
            (n.dot, C::DotProduct),
            (n.dot, C::DotProductInput4x8BitPacked),
            (n.subgroups, C::GroupNonUniform),
            (n.subgroup_arithmetic, C::GroupNonUniformArithmetic),
            (n.subgroup_shuffle, C::GroupNonUniformShuffle),
            (n.matrix, C::CooperativeMatrixKHR),
            (self.modes.rte_f16 && n.float16, C::RoundingModeRTE),
            (self.modes.preserve_f32, C::SignedZeroInfNanPreserve),
        ];
        for (_, capability) in rows.into_iter().filter(|(needed, _)| *needed) {
            self.b.capability(capability);
        }
        if n.matrix {
            self.b.extension("SPV_KHR_cooperative_matrix");
        }
    }

    fn entry_point(&mut self, main: Word) {
        use spirv::ExecutionMode as M;
        let interface = std::mem::take(&mut self.interface);
        self.b.entry_point(spirv::ExecutionModel::GLCompute, main, "main", interface);
        self.b.execution_mode(main, M::LocalSize, [self.kernel.workgroup_size, 1, 1]);
        if self.modes.rte_f16 && self.needs.float16 {
            self.b.execution_mode(main, M::RoundingModeRTE, [16]);
        }
        if self.modes.preserve_f32 {
            self.b.execution_mode(main, M::SignedZeroInfNanPreserve, [32]);
        }
    }

    fn shared_variables(&mut self) {
        for array in &self.kernel.shared {
            let element = self.ty(array.ty);
            let len = self.u32(array.len);
            let ty = self.b.id();
            let operands = vec![Operand::IdRef(element), Operand::IdRef(len)];
            self.global(spirv::Op::TypeArray, None, ty, operands);
            let var = self.variable(spirv::StorageClass::Workgroup, ty);
            self.shared.push(var);
        }
    }

    pub(crate) fn variable(&mut self, class: spirv::StorageClass, ty: Word) -> Word {
        let pointer = self.pointer(class, ty);
        let var = self.b.id();
        self.global(spirv::Op::Variable, Some(pointer), var, vec![Operand::StorageClass(class)]);
        self.interface.push(var);
        var
    }

    // ---- types and constants --------------------------------------------------------------------------------

    pub(crate) fn global(&mut self, op: spirv::Op, ty: Option<Word>, id: Word, operands: Vec<Operand>) {
        let inst = dr::Instruction::new(op, ty, Some(id), operands);
        self.b.module_mut().types_global_values.push(inst);
    }

    /// A type or constant that is made of others, not shared with its like.
    pub(crate) fn aggregate(&mut self, op: spirv::Op, ty: Option<Word>, operands: Vec<Operand>) -> Word {
        let id = self.b.id();
        self.global(op, ty, id, operands);
        id
    }

    /// A variable of the function; these stand before all else in its first block.
    pub(crate) fn local_variable(&mut self, pointer: Word, initial: Word) -> Word {
        let id = self.b.id();
        let operands = vec![Operand::StorageClass(spirv::StorageClass::Function), Operand::IdRef(initial)];
        let variable = dr::Instruction::new(spirv::Op::Variable, Some(pointer), Some(id), operands);
        self.instructions(0).insert(0, variable);
        id
    }

    fn keyed(&mut self, key: Key, make: impl FnOnce(&mut Self) -> Word) -> Word {
        if let Some(id) = self.keys.get(&key) {
            return *id;
        }
        let id = make(self);
        self.keys.insert(key, id);
        id
    }

    /// The SPIR-V type. Integers are all declared unsigned: operations carry the sign, and I32 ↔ U32 is free.
    pub(crate) fn ty(&mut self, ty: Type) -> Word {
        let ty = match ty {
            Type::Vec(Scalar::I8, n) => Type::Vec(Scalar::U8, n),
            Type::Vec(Scalar::I32, n) => Type::Vec(Scalar::U32, n),
            Type::Matrix(m) => Type::Matrix(MatrixType { scalar: unsigned(m.scalar), ..m }),
            other => other,
        };
        self.keyed(Key::Type(ty), |e| match ty {
            Type::Void => e.b.type_void(),
            Type::Vec(s, 1) => e.scalar_type(s),
            Type::Vec(s, n) => {
                let element = e.ty(Type::Vec(s, 1));
                e.b.type_vector(element, n as u32)
            }
            Type::Matrix(m) => e.matrix_type(m),
        })
    }

    fn scalar_type(&mut self, s: Scalar) -> Word {
        match s {
            Scalar::Bool => self.b.type_bool(),
            Scalar::F16 | Scalar::F32 => self.b.type_float(s.bytes() * 8, None),
            _ => self.b.type_int(s.bytes() * 8, 0),
        }
    }

    fn matrix_type(&mut self, m: MatrixType) -> Word {
        let element = self.ty(Type::Vec(m.scalar, 1));
        let usage = match m.usage {
            MatrixUse::A => spirv::CooperativeMatrixUse::MatrixAKHR,
            MatrixUse::B => spirv::CooperativeMatrixUse::MatrixBKHR,
            MatrixUse::Acc => spirv::CooperativeMatrixUse::MatrixAccumulatorKHR,
        };
        let scope = self.u32(spirv::Scope::Subgroup as u32);
        let (rows, cols, usage) = (self.u32(m.rows as u32), self.u32(m.cols as u32), self.u32(usage as u32));
        let id = self.b.id();
        let operands = vec![
            Operand::IdRef(element),
            Operand::IdScope(scope),
            Operand::IdRef(rows),
            Operand::IdRef(cols),
            Operand::IdRef(usage),
        ];
        self.global(spirv::Op::TypeCooperativeMatrixKHR, None, id, operands);
        id
    }

    pub(crate) fn pointer(&mut self, class: spirv::StorageClass, pointee: Word) -> Word {
        self.keyed(Key::Pointer(class, pointee), |e| e.b.type_pointer(None, class, pointee))
    }

    /// Pointer to a block whose member 0 is one `ty` in global memory.
    pub(crate) fn global_pointer(&mut self, ty: Type, read_only: bool) -> Word {
        self.keyed(Key::Global(ty, read_only), |e| {
            let member = e.ty(ty);
            e.block_pointer(member, read_only)
        })
    }

    /// Pointer to a block whose member 0 is an unbounded array of `scalar`s.
    pub(crate) fn global_array_pointer(&mut self, scalar: Scalar, read_only: bool) -> Word {
        self.keyed(Key::GlobalArray(scalar, read_only), |e| {
            let element = e.ty(Type::Vec(scalar, 1));
            let array = e.b.id();
            e.global(spirv::Op::TypeRuntimeArray, None, array, vec![Operand::IdRef(element)]);
            let stride = Operand::LiteralBit32(scalar.bytes());
            e.b.decorate(array, spirv::Decoration::ArrayStride, [stride]);
            e.block_pointer(array, read_only)
        })
    }

    fn block_pointer(&mut self, member: Word, read_only: bool) -> Word {
        let block = self.b.id();
        self.global(spirv::Op::TypeStruct, None, block, vec![Operand::IdRef(member)]);
        self.b.decorate(block, spirv::Decoration::Block, []);
        self.b.member_decorate(block, 0, spirv::Decoration::Offset, [Operand::LiteralBit32(0)]);
        if read_only {
            self.b.member_decorate(block, 0, spirv::Decoration::NonWritable, []);
            self.b.member_decorate(block, 0, spirv::Decoration::Restrict, []);
        }
        self.pointer(spirv::StorageClass::PhysicalStorageBuffer, block)
    }

    pub(crate) fn u32(&mut self, x: u32) -> Word {
        self.constant(Type::U32, x as u64)
    }

    pub(crate) fn constant(&mut self, ty: Type, bits: u64) -> Word {
        let (scalar, ty) =
            (ty.scalar().unwrap_or(Scalar::U32), Type::Vec(unsigned(ty.scalar().unwrap_or(Scalar::U32)), 1));
        self.keyed(Key::Constant(ty, bits), |e| {
            let id = e.ty(ty);
            match scalar {
                Scalar::Bool if bits == 0 => e.b.constant_false(id),
                Scalar::Bool => e.b.constant_true(id),
                Scalar::U64 => e.b.constant_bit64(id, bits),
                _ => e.b.constant_bit32(id, bits as u32),
            }
        })
    }

    // ---- values and instructions ----------------------------------------------------------------------------

    /// The SPIR-V id of a value that is already defined.
    pub(crate) fn id(&self, v: Value) -> Result<Word, EmitError> {
        let found = self.ids.get(v.0 as usize).copied().flatten();
        found.ok_or_else(|| EmitError::Undefined { kernel: self.kernel.name.clone(), value: v })
    }

    /// The ids of several values.
    pub(crate) fn all(&self, values: &[Value]) -> Result<Vec<Word>, EmitError> {
        values.iter().map(|v| self.id(*v)).collect()
    }

    pub(crate) fn define(&mut self, v: Value, id: Word) {
        if let Some(slot) = self.ids.get_mut(v.0 as usize) {
            *slot = Some(id);
        }
    }

    pub(crate) fn type_of(&self, v: Value) -> Result<Type, EmitError> {
        let found = self.kernel.types.get(v.0 as usize).copied();
        found.ok_or_else(|| EmitError::Undefined { kernel: self.kernel.name.clone(), value: v })
    }

    pub(crate) fn bad_type(&self, value: Value, op: impl std::fmt::Debug, ty: Type) -> EmitError {
        EmitError::BadType { kernel: self.kernel.name.clone(), value, op: format!("{op:?}"), ty }
    }

    pub(crate) fn out_of_range(&self, value: Value, what: &'static str, index: u32) -> EmitError {
        EmitError::OutOfRange { kernel: self.kernel.name.clone(), value, what, index }
    }

    /// Starts a block; it stays current until the next one.
    pub(crate) fn open(&mut self, label: Word) {
        let mut block = dr::Block::new();
        block.label = Some(dr::Instruction::new(spirv::Op::Label, None, Some(label), vec![]));
        self.b.module_mut().functions[0].blocks.push(block);
        self.label = label;
    }

    /// Index of the block being filled.
    pub(crate) fn block_index(&self) -> usize {
        self.b.module_ref().functions[0].blocks.len() - 1
    }

    /// Instructions of block `index`.
    pub(crate) fn instructions(&mut self, index: usize) -> &mut Vec<dr::Instruction> {
        &mut self.b.module_mut().functions[0].blocks[index].instructions
    }

    pub(crate) fn inst(&mut self, op: spirv::Op, ty: Option<Word>, id: Option<Word>, operands: Vec<Operand>) {
        let index = self.block_index();
        self.instructions(index).push(dr::Instruction::new(op, ty, id, operands));
    }

    /// Appends an instruction over ids only and gives its result.
    pub(crate) fn value(&mut self, op: spirv::Op, ty: Word, operands: &[Word]) -> Word {
        self.value_with(op, ty, operands.iter().map(|w| Operand::IdRef(*w)).collect())
    }

    /// Appends an instruction with any operands and gives its result.
    pub(crate) fn value_with(&mut self, op: spirv::Op, ty: Word, operands: Vec<Operand>) -> Word {
        let id = self.b.id();
        self.inst(op, Some(ty), Some(id), operands);
        id
    }

    /// Appends a GLSL.std.450 instruction.
    pub(crate) fn glsl(&mut self, op: spirv::GlslStd450Op, ty: Word, operands: &[Word]) -> Word {
        let mut all = vec![Operand::IdRef(self.glsl), Operand::LiteralExtInstInteger(op as u32)];
        all.extend(operands.iter().map(|w| Operand::IdRef(*w)));
        self.value_with(spirv::Op::ExtInst, ty, all)
    }

    // ---- leaves ---------------------------------------------------------------------------------------------

    /// Constants, arguments and builtins: defined everywhere, so computed at the top.
    fn leaves(&mut self) -> Result<(), EmitError> {
        let block = self.push_block();
        let kernel = self.kernel;
        for (i, op) in kernel.ops.iter().enumerate() {
            let v = Value(i as u32);
            let ty = self.type_of(v)?;
            let id = match op {
                Op::Const(bits) if ty.lanes() == 1 => self.constant(ty, *bits),
                Op::Const(_) => return Err(self.bad_type(v, op, ty)),
                // Those in memory are fetched where they are needed: there may be hundreds.
                Op::Arg(_) if self.table.is_some() => continue,
                Op::Arg(n) => self.load_arg(v, *n, ty, block)?,
                Op::Builtin(b) => self.builtin(v, *b)?,
                _ => continue,
            };
            self.define(v, id);
        }
        Ok(())
    }

    fn builtin(&mut self, v: Value, which: Builtin) -> Result<Word, EmitError> {
        match which {
            Builtin::Tile(axis @ 0..=2) => Ok(self.input_lane(spirv::BuiltIn::WorkgroupId, axis as u32)),
            Builtin::GridSize(axis @ 0..=2) => Ok(self.input_lane(spirv::BuiltIn::NumWorkgroups, axis as u32)),
            Builtin::Tile(axis) | Builtin::GridSize(axis) => Err(self.out_of_range(v, "tile axis", axis as u32)),
            Builtin::SubgroupId => Ok(self.input(spirv::BuiltIn::SubgroupId)),
            Builtin::Lane => Ok(self.input(spirv::BuiltIn::SubgroupLocalInvocationId)),
            // Vulkan does not promise that subgroups are cut from consecutive local ids; the IR does. Where the
            // kernel can see subgroups, the id is therefore made from them.
            Builtin::LocalId if self.needs.subgroups => {
                let (s, l) =
                    (self.input(spirv::BuiltIn::SubgroupId), self.input(spirv::BuiltIn::SubgroupLocalInvocationId));
                let (u32t, size) = (self.ty(Type::U32), self.u32(self.kernel.subgroup_size));
                let first = self.value(spirv::Op::IMul, u32t, &[s, size]);
                Ok(self.value(spirv::Op::IAdd, u32t, &[first, l]))
            }
            Builtin::LocalId => Ok(self.input_lane(spirv::BuiltIn::LocalInvocationId, 0)),
        }
    }

    fn input_variable(&mut self, which: spirv::BuiltIn, ty: Word) -> Word {
        let var = self.variable(spirv::StorageClass::Input, ty);
        self.b.decorate(var, spirv::Decoration::BuiltIn, [Operand::BuiltIn(which)]);
        var
    }

    pub(crate) fn input(&mut self, which: spirv::BuiltIn) -> Word {
        let ty = self.ty(Type::U32);
        let var = self.builtin_variable(which, ty);
        self.value(spirv::Op::Load, ty, &[var])
    }

    pub(crate) fn input_lane(&mut self, which: spirv::BuiltIn, lane: u32) -> Word {
        let scalar = self.ty(Type::U32);
        let vector = self.uvec3();
        let var = self.builtin_variable(which, vector);
        let whole = self.value(spirv::Op::Load, vector, &[var]);
        self.value_with(spirv::Op::CompositeExtract, scalar, vec![Operand::IdRef(whole), Operand::LiteralBit32(lane)])
    }

    fn uvec3(&mut self) -> Word {
        self.ty(Type::Vec(Scalar::U32, 3))
    }

    /// One variable per builtin: SPIR-V forbids two with the same decoration.
    fn builtin_variable(&mut self, which: spirv::BuiltIn, ty: Word) -> Word {
        let wanted = Operand::BuiltIn(which);
        let found = self.b.module_ref().annotations.iter().find(|i| i.operands.get(2) == Some(&wanted));
        match found.map(|i| i.operands[0].clone()) {
            Some(Operand::IdRef(var)) => var,
            _ => self.input_variable(which, ty),
        }
    }

    // ---- the walk -------------------------------------------------------------------------------------------

    pub(crate) fn block(&mut self, block: &'k [Value]) -> Result<(), EmitError> {
        for v in block {
            let kernel = self.kernel;
            let op = kernel.ops.get(v.0 as usize);
            let op = op.ok_or_else(|| EmitError::Undefined { kernel: kernel.name.clone(), value: *v })?;
            self.op(*v, op)?;
        }
        Ok(())
    }

    fn op(&mut self, v: Value, op: &'k Op) -> Result<(), EmitError> {
        match op {
            Op::Const(_) | Op::Arg(_) | Op::Builtin(_) | Op::Param => Ok(()),
            Op::If { .. } => self.if_(op),
            Op::For { .. } => self.for_(op),
            Op::Barrier => {
                self.barrier(v);
                Ok(())
            }
            Op::SubgroupBarrier => {
                self.subgroup_barrier();
                Ok(())
            }
            Op::GridBarrier { base, offset } => self.grid_barrier(*base, *offset),
            Op::Store { .. } | Op::SharedStore { .. } | Op::MatrixStore { .. } => self.store(v, op),
            Op::Load { .. } | Op::SharedLoad { .. } | Op::MatrixLoad { .. } | Op::AtomicAdd { .. } => {
                let id = self.load(v, op)?;
                self.define(v, id);
                Ok(())
            }
            _ => {
                let id = self.arithmetic(v, op)?;
                self.define(v, id);
                Ok(())
            }
        }
    }
}

fn unsigned(s: Scalar) -> Scalar {
    match s {
        Scalar::I8 => Scalar::U8,
        Scalar::I32 => Scalar::U32,
        other => other,
    }
}
