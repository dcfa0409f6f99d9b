//! Arithmetic, conversions, vectors, subgroup and matrix arithmetic: one SPIR-V instruction each, by table.

use crate::EmitError;
use crate::emitter::Emitter;
use rspirv::dr::Operand;
use rspirv::spirv::{self, GlslStd450Op as GLOp, Op as S, Word};
use zinc_ir::kernel::{BinOp, Op, ReduceOp, Scalar, Type, UnOp, Value};

/// An instruction of the core set or of GLSL.std.450.
#[derive(Clone, Copy)]
enum Code {
    Core(S),
    Glsl(GLOp),
}
use Code::{Core, Glsl};

/// What a scalar is to arithmetic.
#[derive(Clone, Copy, PartialEq)]
enum Class {
    Bool,
    Signed,
    Unsigned,
    Float,
}

fn class(s: Scalar) -> Class {
    match s {
        Scalar::Bool => Class::Bool,
        Scalar::I8 | Scalar::I32 => Class::Signed,
        Scalar::F16 | Scalar::F32 => Class::Float,
        _ => Class::Unsigned,
    }
}

fn unary(op: UnOp, class: Class) -> Option<Code> {
    Some(match (op, class) {
        (UnOp::Neg, Class::Float) => Core(S::FNegate),
        (UnOp::Neg, Class::Signed | Class::Unsigned) => Core(S::SNegate),
        (UnOp::Not, Class::Bool) => Core(S::LogicalNot),
        (UnOp::Not, Class::Signed | Class::Unsigned) => Core(S::Not),
        (UnOp::Abs, Class::Float) => Glsl(GLOp::FAbs),
        (UnOp::Exp, Class::Float) => Glsl(GLOp::Exp),
        (UnOp::Exp2, Class::Float) => Glsl(GLOp::Exp2),
        (UnOp::Log, Class::Float) => Glsl(GLOp::Log),
        (UnOp::Sqrt, Class::Float) => Glsl(GLOp::Sqrt),
        (UnOp::InvSqrt, Class::Float) => Glsl(GLOp::InverseSqrt),
        (UnOp::Sin, Class::Float) => Glsl(GLOp::Sin),
        (UnOp::Cos, Class::Float) => Glsl(GLOp::Cos),
        (UnOp::Tanh, Class::Float) => Glsl(GLOp::Tanh),
        (UnOp::Floor, Class::Float) => Glsl(GLOp::Floor),
        (UnOp::RoundEven, Class::Float) => Glsl(GLOp::RoundEven),
        _ => return None,
    })
}

fn binary(op: BinOp, class: Class) -> Option<Code> {
    use Class::{Bool, Float, Signed, Unsigned};
    Some(match (op, class) {
        (BinOp::Add, Float) => Core(S::FAdd),
        (BinOp::Add, Signed | Unsigned) => Core(S::IAdd),
        (BinOp::Sub, Float) => Core(S::FSub),
        (BinOp::Sub, Signed | Unsigned) => Core(S::ISub),
        (BinOp::Mul, Float) => Core(S::FMul),
        (BinOp::Mul, Signed | Unsigned) => Core(S::IMul),
        (BinOp::Div, Float) => Core(S::FDiv),
        (BinOp::Div, Signed) => Core(S::SDiv),
        (BinOp::Div, Unsigned) => Core(S::UDiv),
        (BinOp::Rem, Float) => Core(S::FRem),
        (BinOp::Rem, Signed) => Core(S::SRem),
        (BinOp::Rem, Unsigned) => Core(S::UMod),
        // NMin and NMax give the other operand for a NaN; FMin and FMax would leave it open.
        (BinOp::Min, Float) => Glsl(GLOp::NMin),
        (BinOp::Min, Signed) => Glsl(GLOp::SMin),
        (BinOp::Min, Unsigned) => Glsl(GLOp::UMin),
        (BinOp::Max, Float) => Glsl(GLOp::NMax),
        (BinOp::Max, Signed) => Glsl(GLOp::SMax),
        (BinOp::Max, Unsigned) => Glsl(GLOp::UMax),
        (BinOp::And, Bool) => Core(S::LogicalAnd),
        (BinOp::And, Signed | Unsigned) => Core(S::BitwiseAnd),
        (BinOp::Or, Bool) => Core(S::LogicalOr),
        (BinOp::Or, Signed | Unsigned) => Core(S::BitwiseOr),
        (BinOp::Xor | BinOp::Ne, Bool) => Core(S::LogicalNotEqual),
        (BinOp::Xor, Signed | Unsigned) => Core(S::BitwiseXor),
        (BinOp::Shl, Signed | Unsigned) => Core(S::ShiftLeftLogical),
        (BinOp::Shr, Signed) => Core(S::ShiftRightArithmetic),
        (BinOp::Shr, Unsigned) => Core(S::ShiftRightLogical),
        (BinOp::Pow, Float) => Glsl(GLOp::Pow),
        (BinOp::Eq, Bool) => Core(S::LogicalEqual),
        (BinOp::Eq, Float) => Core(S::FOrdEqual),
        (BinOp::Eq, Signed | Unsigned) => Core(S::IEqual),
        (BinOp::Ne, Float) => Core(S::FUnordNotEqual),
        (BinOp::Ne, Signed | Unsigned) => Core(S::INotEqual),
        (BinOp::Lt, Float) => Core(S::FOrdLessThan),
        (BinOp::Lt, Signed) => Core(S::SLessThan),
        (BinOp::Lt, Unsigned) => Core(S::ULessThan),
        (BinOp::Le, Float) => Core(S::FOrdLessThanEqual),
        (BinOp::Le, Signed) => Core(S::SLessThanEqual),
        (BinOp::Le, Unsigned) => Core(S::ULessThanEqual),
        (BinOp::Gt, Float) => Core(S::FOrdGreaterThan),
        (BinOp::Gt, Signed) => Core(S::SGreaterThan),
        (BinOp::Gt, Unsigned) => Core(S::UGreaterThan),
        (BinOp::Ge, Float) => Core(S::FOrdGreaterThanEqual),
        (BinOp::Ge, Signed) => Core(S::SGreaterThanEqual),
        (BinOp::Ge, Unsigned) => Core(S::UGreaterThanEqual),
        _ => return None,
    })
}

fn reduce(op: ReduceOp, class: Class) -> Option<S> {
    Some(match (op, class) {
        (ReduceOp::Add, Class::Float) => S::GroupNonUniformFAdd,
        (ReduceOp::Add, Class::Signed | Class::Unsigned) => S::GroupNonUniformIAdd,
        (ReduceOp::Min, Class::Float) => S::GroupNonUniformFMin,
        (ReduceOp::Min, Class::Signed) => S::GroupNonUniformSMin,
        (ReduceOp::Min, Class::Unsigned) => S::GroupNonUniformUMin,
        (ReduceOp::Max, Class::Float) => S::GroupNonUniformFMax,
        (ReduceOp::Max, Class::Signed) => S::GroupNonUniformSMax,
        (ReduceOp::Max, Class::Unsigned) => S::GroupNonUniformUMax,
        _ => return None,
    })
}

impl Emitter<'_> {
    /// A constant array in a variable of the function: what drivers turn into a read of constant memory.
    fn table(&mut self, index: Value, words: &[u32]) -> Result<Word, EmitError> {
        let element = self.ty(Type::U32);
        let len = self.u32(words.len() as u32);
        let array = self.aggregate(S::TypeArray, None, vec![Operand::IdRef(element), Operand::IdRef(len)]);
        let parts = words.iter().map(|w| Operand::IdRef(self.u32(*w))).collect();
        let content = self.aggregate(S::ConstantComposite, Some(array), parts);
        let class = spirv::StorageClass::Function;
        let pointer = self.pointer(class, array);
        let variable = self.local_variable(pointer, content);
        let pointer = self.pointer(class, element);
        let index = self.id(index)?;
        let at = self.value(S::InBoundsAccessChain, pointer, &[variable, index]);
        Ok(self.value(S::Load, element, &[at]))
    }

    /// Operations without memory or control: gives the result's id.
    pub(crate) fn arithmetic(&mut self, v: Value, op: &Op) -> Result<Word, EmitError> {
        let result = self.type_of(v)?;
        match op {
            Op::Unary(un, a) => {
                let code = self.coded(v, op, *a, |c| unary(*un, c))?;
                self.apply(code, result, &[*a])
            }
            Op::Binary(bin, a, b) => self.binary(v, op, *bin, *a, *b),
            Op::Fma(a, b, c) => self.apply(Glsl(GLOp::Fma), result, &[*a, *b, *c]),
            Op::Select(c, a, b) => self.apply(Core(S::Select), result, &[*c, *a, *b]),
            Op::Convert(a) => self.convert(v, *a, result),
            Op::Bitcast(a) => {
                let (from, to, id) = (self.type_of(*a)?, self.ty(result), self.id(*a)?);
                // I32 and U32 are one SPIR-V type: nothing to do.
                Ok(if self.ty(from) == to { id } else { self.value(S::Bitcast, to, &[id]) })
            }
            Op::Compose(parts) => self.apply(Core(S::CompositeConstruct), result, parts),
            Op::MatrixSplat(a) => self.apply(Core(S::CompositeConstruct), result, &[*a]),
            Op::Extract(a, lane) => self.extract(v, *a, *lane, result),
            Op::Table(index, words) => self.table(*index, words),
            Op::Dot4 { a, b, acc, a_signed } => self.dot4(*a, *b, *acc, *a_signed),
            Op::SubgroupReduce(kind, a) => self.reduce(v, op, *kind, *a),
            Op::SubgroupShuffleXor(a, mask) => {
                let (value, mask) = (self.id(*a)?, self.u32(*mask));
                self.shuffle(S::GroupNonUniformShuffleXor, result, value, mask)
            }
            Op::SubgroupShuffle(a, lane) => {
                let (value, lane) = (self.id(*a)?, self.id(*lane)?);
                self.shuffle(S::GroupNonUniformShuffle, result, value, lane)
            }
            Op::MatrixMulAdd(a, b, c) => self.matrix_mul_add(v, *a, *b, *c),
            Op::MatrixElement(a, i) => {
                let (result, id) = (self.ty(result), self.id(*a)?);
                Ok(self.value_with(S::CompositeExtract, result, vec![Operand::IdRef(id), Operand::LiteralBit32(*i)]))
            }
            Op::MatrixCompose(parts) => self.matrix_compose(v, parts),
            other => Err(self.bad_type(v, other, result)),
        }
    }

    /// The instruction for the element type of `a`.
    fn coded<T>(&self, v: Value, op: &Op, a: Value, table: impl Fn(Class) -> Option<T>) -> Result<T, EmitError> {
        let ty = self.type_of(a)?;
        ty.scalar().and_then(|s| table(class(s))).ok_or_else(|| self.bad_type(v, op, ty))
    }

    fn apply(&mut self, code: Code, ty: Type, operands: &[Value]) -> Result<Word, EmitError> {
        let (ty, ids) = (self.ty(ty), self.all(operands)?);
        Ok(match code {
            Core(op) => self.value(op, ty, &ids),
            Glsl(op) => self.glsl(op, ty, &ids),
        })
    }

    fn binary(&mut self, v: Value, op: &Op, bin: BinOp, a: Value, b: Value) -> Result<Word, EmitError> {
        let code = self.coded(v, op, a, |c| binary(bin, c))?;
        let ty = self.type_of(v)?;
        let id = self.apply(code, ty, &[a, b])?;
        // A product feeding this sum must stay rounded: only Op::Fma is fused. Marking the sum is enough.
        if matches!(code, Core(S::FAdd | S::FSub)) {
            self.b.decorate(id, spirv::Decoration::NoContraction, []);
        }
        Ok(id)
    }

    fn convert(&mut self, v: Value, a: Value, to: Type) -> Result<Word, EmitError> {
        let from = self.type_of(a)?;
        let (Some(s), Some(d)) = (from.scalar(), to.scalar()) else { return Err(self.bad_type(v, "convert", from)) };
        let code = match (class(s), class(d)) {
            (Class::Bool, Class::Bool) => return self.id(a),
            (Class::Bool, _) | (_, Class::Bool) => return self.convert_bool(v, a, from, to),
            (Class::Float, Class::Float) => S::FConvert,
            (Class::Float, Class::Signed) => S::ConvertFToS,
            (Class::Float, _) => S::ConvertFToU,
            (Class::Signed, Class::Float) => S::ConvertSToF,
            (_, Class::Float) => S::ConvertUToF,
            (Class::Signed, _) => S::SConvert,
            _ => S::UConvert,
        };
        // Same width: the value itself (integers of one width are one SPIR-V type).
        let same = class(s) != Class::Float && class(d) != Class::Float && s.bytes() == d.bytes();
        if same || s == d {
            return self.id(a);
        }
        self.apply(Core(code), to, &[a])
    }

    /// Bool to number is 1 or 0; number to Bool is "not zero".
    fn convert_bool(&mut self, v: Value, a: Value, from: Type, to: Type) -> Result<Word, EmitError> {
        let (id, lanes) = (self.id(a)?, to.lanes());
        if lanes == 0 {
            return Err(self.bad_type(v, "convert", from));
        }
        let number = if to.scalar() == Some(Scalar::Bool) { from } else { to };
        let one_bits = match number.scalar() {
            Some(Scalar::F32) => 1.0f32.to_bits() as u64,
            Some(Scalar::F16) => 0x3c00,
            _ => 1,
        };
        let (zero, result) = (self.splat(number, 0), self.ty(to));
        if to.scalar() == Some(Scalar::Bool) {
            let float = number.scalar().is_some_and(Scalar::is_float);
            return Ok(self.value(if float { S::FUnordNotEqual } else { S::INotEqual }, result, &[id, zero]));
        }
        let one = self.splat(number, one_bits);
        Ok(self.value(S::Select, result, &[id, one, zero]))
    }

    /// Vector constant with equal lanes.
    fn splat(&mut self, ty: Type, bits: u64) -> Word {
        let one = self.constant(ty, bits);
        match ty.lanes() {
            1 => one,
            n => {
                let ty = self.ty(ty);
                self.value(S::CompositeConstruct, ty, &vec![one; n as usize])
            }
        }
    }

    fn extract(&mut self, v: Value, a: Value, lane: u8, result: Type) -> Result<Word, EmitError> {
        let ty = self.type_of(a)?;
        if lane >= ty.lanes() {
            return Err(self.out_of_range(v, "vector lane", lane as u32));
        }
        let (result, id) = (self.ty(result), self.id(a)?);
        if ty.lanes() == 1 {
            return Ok(id);
        }
        let operands = vec![Operand::IdRef(id), Operand::LiteralBit32(lane as u32)];
        Ok(self.value_with(S::CompositeExtract, result, operands))
    }

    fn dot4(&mut self, a: Value, b: Value, acc: Value, a_signed: bool) -> Result<Word, EmitError> {
        let (ty, a, b, acc) = (self.ty(Type::I32), self.id(a)?, self.id(b)?, self.id(acc)?);
        // OpSUDot takes the signed operand first.
        let (code, first, second) = if a_signed { (S::SDot, a, b) } else { (S::SUDot, b, a) };
        let format = Operand::PackedVectorFormat(spirv::PackedVectorFormat::PackedVectorFormat4x8Bit);
        let dot = self.value_with(code, ty, vec![Operand::IdRef(first), Operand::IdRef(second), format]);
        Ok(self.value(S::IAdd, ty, &[dot, acc]))
    }

    fn reduce(&mut self, v: Value, op: &Op, kind: ReduceOp, a: Value) -> Result<Word, EmitError> {
        let code = self.coded(v, op, a, |c| reduce(kind, c))?;
        let ty = self.type_of(v)?;
        let (ty, id, scope) = (self.ty(ty), self.id(a)?, self.u32(spirv::Scope::Subgroup as u32));
        let operands =
            vec![Operand::IdScope(scope), Operand::GroupOperation(spirv::GroupOperation::Reduce), Operand::IdRef(id)];
        Ok(self.value_with(code, ty, operands))
    }

    fn shuffle(&mut self, code: S, ty: Type, value: Word, lane: Word) -> Result<Word, EmitError> {
        let (ty, scope) = (self.ty(ty), self.u32(spirv::Scope::Subgroup as u32));
        let operands = vec![Operand::IdScope(scope), Operand::IdRef(value), Operand::IdRef(lane)];
        Ok(self.value_with(code, ty, operands))
    }

    /// SPIR-V makes matrices with equal elements only, and then puts in others.
    fn matrix_compose(&mut self, v: Value, parts: &[Value]) -> Result<Word, EmitError> {
        let (ty, parts) = (self.type_of(v)?, self.all(parts)?);
        let result = self.ty(ty);
        let [first, rest @ ..] = &parts[..] else { return Err(self.bad_type(v, "matrix of nothing", ty)) };
        let all = self.value(S::CompositeConstruct, result, &[*first]);
        Ok((1..).zip(rest).fold(all, |matrix, (i, part)| {
            let operands = vec![Operand::IdRef(*part), Operand::IdRef(matrix), Operand::LiteralBit32(i)];
            self.value_with(S::CompositeInsert, result, operands)
        }))
    }

    fn matrix_mul_add(&mut self, v: Value, a: Value, b: Value, c: Value) -> Result<Word, EmitError> {
        use spirv::CooperativeMatrixOperands as M;
        let (result, ids) = (self.type_of(v)?, self.all(&[a, b, c])?);
        let signs = [
            (a, M::MATRIX_A_SIGNED_COMPONENTS_KHR),
            (b, M::MATRIX_B_SIGNED_COMPONENTS_KHR),
            (c, M::MATRIX_C_SIGNED_COMPONENTS_KHR),
            (v, M::MATRIX_RESULT_SIGNED_COMPONENTS_KHR),
        ];
        let mut flags = M::NONE_KHR;
        for (value, flag) in signs {
            if self.type_of(value)?.scalar().is_some_and(Scalar::is_signed) {
                flags |= flag;
            }
        }
        let mut operands: Vec<Operand> = ids.into_iter().map(Operand::IdRef).collect();
        if flags != M::NONE_KHR {
            operands.push(Operand::CooperativeMatrixOperands(flags));
        }
        let ty = self.ty(result);
        Ok(self.value_with(S::CooperativeMatrixMulAddKHR, ty, operands))
    }
}
