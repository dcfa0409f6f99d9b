//! The types of each operation, and what may be done through which argument.
//!
//! ```text
//! (Kernel, Value) ─► Ok | Problem
//! ```
//!
//! Narrower than SPIR-V on purpose: what is refused here needs an optional device feature or has another
//! spelling (8- and 16-bit integer arithmetic, Bool equality, subgroup operations on anything but 32 bits).

use super::super::inst::*;
use super::Problem;
use Scalar::*;

/// A scalar or vector of 1, 2 or 4 lanes that memory can hold.
pub(super) fn has_memory_form(ty: Type) -> bool {
    matches!(ty, Type::Vec(s, 1 | 2 | 4) if s != Bool)
}

/// Most words of a table: drivers keep it with the code.
const MAX_TABLE: usize = 4096;

fn rule(holds: bool, text: &'static str) -> Result<(), Problem> {
    if holds { Ok(()) } else { Err(Problem::Types(text)) }
}

fn is(kernel: &Kernel, v: Value, ty: Type, text: &'static str) -> Result<(), Problem> {
    rule(kernel.ty(v) == ty, text)
}

/// Checks the operation `v`; its operands are known to exist.
pub(super) fn check(kernel: &Kernel, v: Value) -> Result<(), Problem> {
    let ty = kernel.ty(v);
    if let Type::Vec(_, lanes) = ty {
        rule(matches!(lanes, 1 | 2 | 4), "vectors have 1, 2 or 4 lanes")?;
    }
    match kernel.op(v) {
        Op::Const(_) | Op::Arg(_) | Op::Builtin(_) | Op::Param => leaf(kernel, v),
        Op::Load { .. } | Op::Store { .. } | Op::AtomicAdd { .. } | Op::SharedLoad { .. } | Op::SharedStore { .. } => {
            memory(kernel, v)
        }
        Op::MatrixLoad { .. } | Op::MatrixStore { .. } | Op::MatrixSplat(_) | Op::MatrixMulAdd(..) => matrix(kernel, v),
        Op::MatrixElement(..) | Op::MatrixCompose(_) => elements(kernel, v),
        Op::If { .. } | Op::For { .. } => control(kernel, v),
        Op::Barrier | Op::SubgroupBarrier => rule(ty == Type::Void, "a barrier has no value"),
        Op::GridBarrier { base, offset } => {
            rule(ty == Type::Void, "a barrier has no value")?;
            address(kernel, *base, *offset)?;
            may_read(kernel, *base)?;
            may_write(kernel, *base)
        }
        _ => arithmetic(kernel, v),
    }
}

fn leaf(kernel: &Kernel, v: Value) -> Result<(), Problem> {
    let ty = kernel.ty(v);
    match kernel.op(v) {
        Op::Const(bits) => {
            let Type::Vec(s, 1) = ty else { return rule(false, "a constant is a scalar") };
            let width = if s == Bool { 1 } else { s.bytes() * 8 };
            rule(width == 64 || bits >> width == 0, "the bits of a constant fit its type")
        }
        Op::Arg(n) => {
            let arg = kernel.args.get(*n as usize);
            let expected = arg.map(|a| if a.kind == ArgKind::Word { Type::U32 } else { Type::U64 });
            rule(expected == Some(ty), "an argument is declared; addresses are u64, words are u32")
        }
        Op::Builtin(b) => {
            rule(!matches!(b, Builtin::Tile(3..) | Builtin::GridSize(3..)), "tiles have axes 0, 1 and 2")?;
            rule(ty == Type::U32, "builtins are u32")
        }
        _ => Ok(()),
    }
}

fn arithmetic(kernel: &Kernel, v: Value) -> Result<(), Problem> {
    let ty = kernel.ty(v);
    let of = |v: Value| kernel.ty(v);
    match kernel.op(v) {
        Op::Unary(op, a) => {
            is(kernel, *a, ty, "operand and result have one type")?;
            rule(unary_takes(*op, ty), "neg takes floats and i32; not takes i32, u32, u64 and bool; the rest take f32")
        }
        Op::Binary(op, a, b) => {
            rule(of(*a) == of(*b), "both operands have one type")?;
            let result = if op.is_compare() { of(*a).with_scalar(Bool) } else { of(*a) };
            rule(ty == result, "arithmetic gives the operands' type, a comparison gives bools")?;
            rule(binary_takes(*op, of(*a)), "this operator does not take operands of this type")
        }
        Op::Fma(a, b, c) => {
            rule([a, b, c].iter().all(|x| of(**x) == ty), "operands and result have one type")?;
            rule(matches!(ty, Type::Vec(F32 | F16, _)), "fma takes floats")
        }
        Op::Select(c, a, b) => {
            rule(of(*a) == ty && of(*b) == ty && matches!(ty, Type::Vec(..)), "both choices have the result's type")?;
            rule(of(*c) == Type::BOOL || of(*c) == ty.with_scalar(Bool), "the condition is a bool or one per lane")
        }
        Op::Convert(a) => convert(of(*a), ty),
        Op::Bitcast(a) => {
            rule(has_memory_form(of(*a)) && has_memory_form(ty), "bitcast takes types with a memory form")?;
            rule(of(*a).bytes() == ty.bytes(), "bitcast keeps the size")
        }
        Op::Compose(parts) => {
            let Type::Vec(s, n @ (2 | 4)) = ty else { return rule(false, "compose gives a vector") };
            rule(parts.len() == n as usize, "compose takes one scalar per lane")?;
            rule(parts.iter().all(|p| of(*p) == Type::Vec(s, 1)), "compose takes scalars of the vector's type")
        }
        Op::Extract(a, lane) => {
            let Type::Vec(s, n) = of(*a) else { return rule(false, "extract takes a vector") };
            rule(*lane < n && ty == Type::Vec(s, 1), "extract gives one scalar of an existing lane")
        }
        Op::Table(index, words) => {
            is(kernel, *index, Type::U32, "the index of a table is a u32")?;
            rule(ty == Type::U32, "a table gives a u32")?;
            rule((1..=MAX_TABLE).contains(&words.len()), "a table has 1 to 4096 words")
        }
        Op::Dot4 { a, b, acc, .. } => {
            is(kernel, *a, Type::U32, "dot4 packs bytes in u32")?;
            is(kernel, *b, Type::U32, "dot4 packs bytes in u32")?;
            is(kernel, *acc, Type::I32, "dot4 accumulates in i32")?;
            rule(ty == Type::I32, "dot4 gives i32")
        }
        Op::SubgroupReduce(_, a) => {
            is(kernel, *a, ty, "a reduction keeps the type")?;
            rule(matches!(ty, Type::Vec(I32 | U32 | F32, _)), "subgroup operations take i32, u32 and f32")
        }
        Op::SubgroupShuffleXor(a, mask) => {
            is(kernel, *a, ty, "a shuffle keeps the type")?;
            rule(*mask < kernel.subgroup_size, "the mask of a shuffle is below the subgroup size")?;
            rule(matches!(ty, Type::Vec(I32 | U32 | F32, _)), "subgroup operations take i32, u32 and f32")
        }
        Op::SubgroupShuffle(a, lane) => {
            is(kernel, *a, ty, "a shuffle keeps the type")?;
            is(kernel, *lane, Type::U32, "the lane of a shuffle is a u32")?;
            rule(matches!(ty, Type::Vec(I32 | U32 | F32, _)), "subgroup operations take i32, u32 and f32")
        }
        _ => Ok(()),
    }
}

fn unary_takes(op: UnOp, ty: Type) -> bool {
    let Type::Vec(s, _) = ty else { return false };
    match op {
        UnOp::Neg => matches!(s, F16 | F32 | I32),
        UnOp::Not => matches!(s, I32 | U32 | U64 | Bool),
        _ => s == F32,
    }
}

fn binary_takes(op: BinOp, ty: Type) -> bool {
    if let Type::Matrix(m) = ty {
        return m.scalar.is_float() && matches!(op, BinOp::Add | BinOp::Sub | BinOp::Mul | BinOp::Div);
    }
    let Type::Vec(s, _) = ty else { return false };
    let integer = matches!(s, I32 | U32 | U64);
    match op {
        BinOp::And | BinOp::Or | BinOp::Xor => integer || s == Bool,
        BinOp::Rem | BinOp::Shl | BinOp::Shr => integer,
        BinOp::Pow => s == F32,
        _ => integer || s.is_float(),
    }
}

fn convert(from: Type, to: Type) -> Result<(), Problem> {
    match (from, to) {
        (Type::Vec(a, n), Type::Vec(b, m)) => {
            rule(n == m, "a conversion keeps the lanes")?;
            rule(a != Bool && b != Bool, "bools do not convert: select between constants")?;
            rule(a != b, "a conversion changes the type")
        }
        (Type::Matrix(a), Type::Matrix(b)) => {
            rule(a == MatrixType { scalar: a.scalar, ..b }, "a conversion keeps the matrix shape and role")?;
            rule(a.scalar.is_float() && b.scalar.is_float() && a.scalar != b.scalar, "matrices convert between floats")
        }
        _ => rule(false, "a conversion goes between vectors or between matrices"),
    }
}

/// The argument that an address is computed from.
fn root(kernel: &Kernel, base: Value) -> Option<&Arg> {
    kernel.args.get(kernel.argument_of(base)? as usize)
}

fn may_read(kernel: &Kernel, base: Value) -> Result<(), Problem> {
    match root(kernel, base) {
        Some(a) if a.kind == ArgKind::Write => Err(Problem::ReadsWriteArg(a.name.clone())),
        _ => Ok(()),
    }
}

fn may_write(kernel: &Kernel, base: Value) -> Result<(), Problem> {
    match root(kernel, base) {
        Some(a) if a.kind == ArgKind::Read => Err(Problem::WritesReadArg(a.name.clone())),
        _ => Ok(()),
    }
}

fn address(kernel: &Kernel, base: Value, offset: Value) -> Result<(), Problem> {
    is(kernel, base, Type::U64, "an address is a u64 base")?;
    is(kernel, offset, Type::U32, "and a u32 byte offset")
}

fn access(ty: Type, align: u8) -> Result<(), Problem> {
    if !has_memory_form(ty) || ty.bytes() > 16 {
        return Err(Problem::Width(ty.bytes()));
    }
    let scalar = ty.scalar().map_or(1, Scalar::bytes);
    if !align.is_power_of_two() || align > 16 || (align as u32) < scalar {
        return Err(Problem::Align { align, scalar });
    }
    Ok(())
}

fn memory(kernel: &Kernel, v: Value) -> Result<(), Problem> {
    let ty = kernel.ty(v);
    let array = |n: &u32| kernel.shared.get(*n as usize).ok_or(Problem::UnknownArray(*n));
    match kernel.op(v) {
        Op::Load { base, offset, align, .. } => {
            address(kernel, *base, *offset)?;
            access(ty, *align)?;
            may_read(kernel, *base)
        }
        Op::Store { base, offset, align, value, .. } => {
            address(kernel, *base, *offset)?;
            rule(ty == Type::Void, "a store has no value")?;
            access(kernel.ty(*value), *align)?;
            may_write(kernel, *base)
        }
        Op::AtomicAdd { base, offset, value, .. } => {
            address(kernel, *base, *offset)?;
            is(kernel, *value, Type::U32, "atomics add u32")?;
            rule(ty == Type::U32, "atomics give the old u32")?;
            may_read(kernel, *base)?;
            may_write(kernel, *base)
        }
        Op::SharedLoad { array: n, index } => {
            rule(array(n)?.ty == ty, "a shared load gives the array's element type")?;
            is(kernel, *index, Type::U32, "a shared index is a u32")
        }
        Op::SharedStore { array: n, index, value } => {
            is(kernel, *value, array(n)?.ty, "a shared store takes the array's element type")?;
            is(kernel, *index, Type::U32, "a shared index is a u32")?;
            rule(ty == Type::Void, "a store has no value")
        }
        _ => Ok(()),
    }
}

fn matrix(kernel: &Kernel, v: Value) -> Result<(), Problem> {
    let ty = kernel.ty(v);
    let shape = |ty: Type| match ty {
        Type::Matrix(m) => {
            let sane = m.rows > 0 && m.cols > 0 && matches!(m.scalar, F16 | F32 | I8 | U8 | I32);
            rule(sane, "matrices have elements f16, f32, i8, u8 or i32 and at least one row and column")?;
            Ok(m)
        }
        _ => Err(Problem::Types("a matrix operation needs a matrix type")),
    };
    match kernel.op(v) {
        Op::MatrixLoad { memory, stride, column_major } => {
            if let MatrixMemory::Global { base, .. } = memory {
                may_read(kernel, *base)?;
            }
            matrix_memory(kernel, memory, *stride, *column_major, shape(ty)?)
        }
        Op::MatrixStore { memory, stride, column_major, value } => {
            rule(ty == Type::Void, "a store has no value")?;
            if let MatrixMemory::Global { base, .. } = memory {
                may_write(kernel, *base)?;
            }
            matrix_memory(kernel, memory, *stride, *column_major, shape(kernel.ty(*value))?)
        }
        Op::MatrixSplat(a) => {
            let m = shape(ty)?;
            is(kernel, *a, Type::Vec(m.scalar, 1), "a matrix is filled with a scalar of its element type")
        }
        Op::MatrixMulAdd(a, b, c) => {
            let (a, b, acc) = (shape(kernel.ty(*a))?, shape(kernel.ty(*b))?, shape(ty)?);
            is(kernel, *c, ty, "the accumulator keeps its type")?;
            let roles = (a.usage, b.usage, acc.usage) == (MatrixUse::A, MatrixUse::B, MatrixUse::Acc);
            rule(roles, "operands are a matrix A, a matrix B and an accumulator")?;
            let shapes = a.cols == b.rows && acc.rows == a.rows && acc.cols == b.cols;
            rule(shapes, "shapes are m×k, k×n and m×n")?;
            let floats = a.scalar == F16 && b.scalar == F16 && acc.scalar.is_float();
            let bytes = |s| matches!(s, I8 | U8);
            let integers = bytes(a.scalar) && bytes(b.scalar) && acc.scalar == I32;
            rule(floats || integers, "elements are f16×f16 into f16 or f32, or bytes into i32")
        }
        _ => Ok(()),
    }
}

/// What each lane holds of an accumulator.
fn elements(kernel: &Kernel, v: Value) -> Result<(), Problem> {
    let even = |ty: Type| match ty {
        Type::Matrix(m) => {
            let each = m.elements_per_lane(kernel.subgroup_size);
            each.map(|n| (n, Type::Vec(m.scalar, 1))).ok_or(Problem::Types("lanes hold equal parts of an accumulator"))
        }
        _ => Err(Problem::Types("a matrix operation needs a matrix type")),
    };
    match kernel.op(v) {
        Op::MatrixElement(a, i) => {
            let (n, element) = even(kernel.ty(*a))?;
            rule(*i < n, "a lane holds rows * columns / subgroup size elements")?;
            rule(kernel.ty(v) == element, "an element has the matrix's element type")
        }
        Op::MatrixCompose(parts) => {
            let (n, element) = even(kernel.ty(v))?;
            rule(parts.len() == n as usize, "a lane gives rows * columns / subgroup size elements")?;
            rule(parts.iter().all(|p| kernel.ty(*p) == element), "elements are scalars of the matrix's type")
        }
        _ => Ok(()),
    }
}

fn matrix_memory(
    kernel: &Kernel,
    memory: &MatrixMemory,
    stride: Value,
    column_major: bool,
    m: MatrixType,
) -> Result<(), Problem> {
    is(kernel, stride, Type::U32, "a stride is a u32")?;
    match memory {
        MatrixMemory::Global { base, offset } => address(kernel, *base, *offset),
        MatrixMemory::Shared { array, index } => {
            let array = kernel.shared.get(*array as usize).ok_or(Problem::UnknownArray(*array))?;
            let line = if column_major { m.rows } else { m.cols };
            let Type::Vec(scalar, lanes) = array.ty else { return rule(false, "a shared array holds vectors") };
            let elements =
                if scalar == U32 { 4 / m.scalar.bytes() } else { u32::from(scalar == m.scalar) } * lanes as u32;
            rule(
                elements > 0 && (line as u32).is_multiple_of(elements),
                "the shared array holds scalars of the matrix's type, vectors of them, or of words of them, that divide a \
                 row (column)",
            )?;
            is(kernel, *index, Type::U32, "a shared index is a u32")
        }
    }
}

fn control(kernel: &Kernel, v: Value) -> Result<(), Problem> {
    rule(kernel.ty(v) == Type::Void, "control operations have results, not a value")?;
    let types = |values: &[Value]| values.iter().map(|v| kernel.ty(*v)).collect::<Vec<_>>();
    match kernel.op(v) {
        Op::If { cond, then_yield, else_yield, results, .. } => {
            is(kernel, *cond, Type::BOOL, "a condition is one bool")?;
            let results = types(results);
            rule(types(then_yield) == results && types(else_yield) == results, "both branches yield the results' types")
        }
        Op::For { start, end, step, index, init, carried, body_yield, results, unroll, .. } => {
            for bound in [start, end, step, index] {
                is(kernel, *bound, Type::U32, "loop bounds and index are u32")?;
            }
            let carried = types(carried);
            let same = types(init) == carried && types(body_yield) == carried && types(results) == carried;
            rule(same, "initial, carried, yielded and resulting values have the same types")?;
            if kernel.constant(*step) == Some(0) {
                return Err(Problem::Loop("the step must be positive"));
            }
            if let (Some(end), Some(step)) = (kernel.constant(*end), kernel.constant(*step))
                && end + step > u32::MAX as u64
            {
                return Err(Problem::Loop("end + step must stay below 2^32"));
            }
            if *unroll && [start, end, step].iter().any(|b| kernel.constant(**b).is_none()) {
                return Err(Problem::Loop("only a loop with constant bounds can ask to be unrolled"));
            }
            Ok(())
        }
        _ => Ok(()),
    }
}
