//! Spelling of types and operators, one table each for printing and parsing.

use super::super::inst::*;

pub(super) const SCALARS: [(Scalar, &str); 9] = [
    (Scalar::Bool, "bool"),
    (Scalar::I8, "i8"),
    (Scalar::U8, "u8"),
    (Scalar::U16, "u16"),
    (Scalar::I32, "i32"),
    (Scalar::U32, "u32"),
    (Scalar::U64, "u64"),
    (Scalar::F16, "f16"),
    (Scalar::F32, "f32"),
];

pub(super) const UNARY: [(UnOp, &str); 13] = [
    (UnOp::Neg, "neg"),
    (UnOp::Not, "not"),
    (UnOp::Abs, "abs"),
    (UnOp::Exp, "exp"),
    (UnOp::Exp2, "exp2"),
    (UnOp::Log, "log"),
    (UnOp::Sqrt, "sqrt"),
    (UnOp::InvSqrt, "inv_sqrt"),
    (UnOp::Sin, "sin"),
    (UnOp::Cos, "cos"),
    (UnOp::Tanh, "tanh"),
    (UnOp::Floor, "floor"),
    (UnOp::RoundEven, "round_even"),
];

pub(super) const BINARY: [(BinOp, &str); 19] = [
    (BinOp::Add, "add"),
    (BinOp::Sub, "sub"),
    (BinOp::Mul, "mul"),
    (BinOp::Div, "div"),
    (BinOp::Rem, "rem"),
    (BinOp::Min, "min"),
    (BinOp::Max, "max"),
    (BinOp::And, "and"),
    (BinOp::Or, "or"),
    (BinOp::Xor, "xor"),
    (BinOp::Shl, "shl"),
    (BinOp::Shr, "shr"),
    (BinOp::Pow, "pow"),
    (BinOp::Eq, "eq"),
    (BinOp::Ne, "ne"),
    (BinOp::Lt, "lt"),
    (BinOp::Le, "le"),
    (BinOp::Gt, "gt"),
    (BinOp::Ge, "ge"),
];

pub(super) const REDUCE: [(ReduceOp, &str); 3] =
    [(ReduceOp::Add, "subgroup_add"), (ReduceOp::Min, "subgroup_min"), (ReduceOp::Max, "subgroup_max")];

pub(super) const BUILTINS: [(Builtin, &str); 9] = [
    (Builtin::Tile(0), "tile.0"),
    (Builtin::Tile(1), "tile.1"),
    (Builtin::Tile(2), "tile.2"),
    (Builtin::GridSize(0), "grid_size.0"),
    (Builtin::GridSize(1), "grid_size.1"),
    (Builtin::GridSize(2), "grid_size.2"),
    (Builtin::LocalId, "local_id"),
    (Builtin::SubgroupId, "subgroup_id"),
    (Builtin::Lane, "lane"),
];

pub(super) const ARG_KINDS: [(ArgKind, &str); 4] =
    [(ArgKind::Read, "read"), (ArgKind::Write, "write"), (ArgKind::ReadWrite, "readwrite"), (ArgKind::Word, "word")];

pub(super) const USES: [(MatrixUse, &str); 3] = [(MatrixUse::A, "a"), (MatrixUse::B, "b"), (MatrixUse::Acc, "acc")];

/// The spelling of `item`; `?` for what no table has (a builtin of a bad axis).
pub(super) fn spell<T: PartialEq>(table: &'static [(T, &'static str)], item: &T) -> &'static str {
    table.iter().find(|(t, _)| t == item).map_or("?", |(_, name)| name)
}

/// The item spelled `name`.
pub(super) fn find<T: Copy>(table: &[(T, &'static str)], name: &str) -> Option<T> {
    table.iter().find(|(_, n)| *n == name).map(|(t, _)| *t)
}

/// `f32`, `f32x4`, `mat.acc.8x8.f32`, `void`.
pub(super) fn spell_type(ty: Type) -> String {
    match ty {
        Type::Void => "void".to_string(),
        Type::Vec(s, 1) => spell(&SCALARS, &s).to_string(),
        Type::Vec(s, n) => format!("{}x{n}", spell(&SCALARS, &s)),
        Type::Matrix(m) => {
            format!("mat.{}.{}x{}.{}", spell(&USES, &m.usage), m.rows, m.cols, spell(&SCALARS, &m.scalar))
        }
    }
}

/// The type spelled `text`.
pub(super) fn find_type(text: &str) -> Option<Type> {
    if text == "void" {
        return Some(Type::Void);
    }
    if let Some(rest) = text.strip_prefix("mat.") {
        let mut parts = rest.split('.');
        let (usage, shape, scalar) = (parts.next()?, parts.next()?, parts.next()?);
        let (rows, cols) = shape.split_once('x')?;
        let (rows, cols) = (rows.parse().ok()?, cols.parse().ok()?);
        let matrix = MatrixType { scalar: find(&SCALARS, scalar)?, rows, cols, usage: find(&USES, usage)? };
        return parts.next().is_none().then_some(Type::Matrix(matrix));
    }
    match text.split_once('x') {
        None => Some(Type::Vec(find(&SCALARS, text)?, 1)),
        Some((scalar, lanes @ ("2" | "4"))) => Some(Type::Vec(find(&SCALARS, scalar)?, lanes.parse().ok()?)),
        Some(_) => None,
    }
}
