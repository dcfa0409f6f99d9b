//! Arithmetic on columns: one u64 per lane, a vector value is its columns one after the other.
//!
//! ```text
//! (operator, element type) ─► function on bits ─► applied to every lane, active or not
//! ```
//!
//! Inactive lanes compute garbage that nothing reads, which is faster than asking. So nothing here fails; what is
//! undefined is found by the `undefined_*` functions, which the caller asks for active lanes only. Bits above the
//! element's width are always 0.

use super::super::inst::*;
use super::{FaultKind, float};
use Scalar::*;
use std::cell::Cell;

pub(super) type Column = [Cell<u64>];

fn map1(a: &Column, d: &Column, f: impl Fn(u64) -> u64) {
    for (a, d) in a.iter().zip(d) {
        d.set(f(a.get()));
    }
}

fn map2(a: &Column, b: &Column, d: &Column, f: impl Fn(u64, u64) -> u64) {
    for ((a, b), d) in a.iter().zip(b).zip(d) {
        d.set(f(a.get(), b.get()));
    }
}

pub(super) fn f32_of(bits: u64) -> f32 {
    f32::from_bits(bits as u32)
}

pub(super) fn of_f32(x: f32) -> u64 {
    x.to_bits() as u64
}

fn i32_of(bits: u64) -> i32 {
    bits as u32 as i32
}

fn of_i32(x: i32) -> u64 {
    x as u32 as u64
}

/// All bits that the scalar has.
fn mask(s: Scalar) -> u64 {
    match s {
        Bool => 1,
        U64 => u64::MAX,
        _ => (1 << (s.bytes() * 8)) - 1,
    }
}

pub(super) fn unary(op: UnOp, s: Scalar, a: &Column, d: &Column) {
    match (op, s) {
        (UnOp::Not, _) => map1(a, d, |x| !x & mask(s)),
        (UnOp::Neg, I32) => map1(a, d, |x| of_i32(i32_of(x).wrapping_neg())),
        (UnOp::Neg, F16) => map1(a, d, |x| x ^ 0x8000),
        _ => {
            let f: fn(f32) -> f32 = match op {
                UnOp::Neg | UnOp::Not => |x| -x,
                UnOp::Abs => f32::abs,
                UnOp::Exp => f32::exp,
                UnOp::Exp2 => f32::exp2,
                UnOp::Log => f32::ln,
                UnOp::Sqrt => f32::sqrt,
                UnOp::InvSqrt => |x| 1.0 / x.sqrt(),
                UnOp::Sin => f32::sin,
                UnOp::Cos => f32::cos,
                UnOp::Tanh => f32::tanh,
                UnOp::Floor => f32::floor,
                UnOp::RoundEven => f32::round_ties_even,
            };
            map1(a, d, |x| of_f32(f(f32_of(x))));
        }
    }
}

pub(super) fn binary(op: BinOp, s: Scalar, a: &Column, b: &Column, d: &Column) {
    match s {
        F32 => floats(op, a, b, d, f32_of, of_f32),
        // An F16 result of one F32 operation on F16 operands rounds as if computed exactly.
        F16 => floats(op, a, b, d, float::to_f32, |x| float::from_f64(x as f64)),
        I32 => signed(op, a, b, d),
        _ => unsigned(op, s, a, b, d),
    }
}

fn floats(op: BinOp, a: &Column, b: &Column, d: &Column, get: impl Fn(u64) -> f32, put: impl Fn(f32) -> u64) {
    let num = |f: fn(f32, f32) -> f32| map2(a, b, d, |x, y| put(f(get(x), get(y))));
    let cmp = |f: fn(&f32, &f32) -> bool| map2(a, b, d, |x, y| f(&get(x), &get(y)) as u64);
    match op {
        // The three that weights are multiplied with are worth a loop without a call.
        BinOp::Add => map2(a, b, d, |x, y| put(get(x) + get(y))),
        BinOp::Sub => map2(a, b, d, |x, y| put(get(x) - get(y))),
        BinOp::Mul => map2(a, b, d, |x, y| put(get(x) * get(y))),
        BinOp::Div => num(|x, y| x / y),
        BinOp::Min => num(f32::min),
        BinOp::Max => num(f32::max),
        BinOp::Pow => num(f32::powf),
        BinOp::Eq => cmp(f32::eq),
        BinOp::Ne => cmp(f32::ne),
        BinOp::Lt => cmp(f32::lt),
        BinOp::Le => cmp(f32::le),
        BinOp::Gt => cmp(f32::gt),
        BinOp::Ge => cmp(f32::ge),
        // Refused by the verifier.
        BinOp::Rem | BinOp::And | BinOp::Or | BinOp::Xor | BinOp::Shl | BinOp::Shr => {}
    }
}

fn signed(op: BinOp, a: &Column, b: &Column, d: &Column) {
    let num = |f: fn(i32, i32) -> i32| map2(a, b, d, |x, y| of_i32(f(i32_of(x), i32_of(y))));
    let cmp = |f: fn(&i32, &i32) -> bool| map2(a, b, d, |x, y| f(&i32_of(x), &i32_of(y)) as u64);
    match op {
        BinOp::Div => num(|x, y| x.checked_div(y).unwrap_or(0)),
        BinOp::Rem => num(|x, y| x.checked_rem(y).unwrap_or(0)),
        BinOp::Min => num(i32::min),
        BinOp::Max => num(i32::max),
        BinOp::Shr => num(|x, y| x.checked_shr(y as u32).unwrap_or(0)),
        BinOp::Lt => cmp(i32::lt),
        BinOp::Le => cmp(i32::le),
        BinOp::Gt => cmp(i32::gt),
        BinOp::Ge => cmp(i32::ge),
        // Two's complement: the rest has the same bits as unsigned.
        _ => unsigned(op, U32, a, b, d),
    }
}

fn unsigned(op: BinOp, s: Scalar, a: &Column, b: &Column, d: &Column) {
    let mask = mask(s);
    let width = s.bytes() as u64 * 8;
    match op {
        BinOp::Add => map2(a, b, d, |x, y| x.wrapping_add(y) & mask),
        BinOp::Sub => map2(a, b, d, |x, y| x.wrapping_sub(y) & mask),
        BinOp::Mul => map2(a, b, d, |x, y| x.wrapping_mul(y) & mask),
        BinOp::Div => map2(a, b, d, |x, y| x.checked_div(y).unwrap_or(0)),
        BinOp::Rem => map2(a, b, d, |x, y| x.checked_rem(y).unwrap_or(0)),
        BinOp::Min => map2(a, b, d, u64::min),
        BinOp::Max => map2(a, b, d, u64::max),
        BinOp::And => map2(a, b, d, |x, y| x & y),
        BinOp::Or => map2(a, b, d, |x, y| x | y),
        BinOp::Xor => map2(a, b, d, |x, y| x ^ y),
        BinOp::Shl => map2(a, b, d, |x, y| if y < width { x << y & mask } else { 0 }),
        BinOp::Shr => map2(a, b, d, |x, y| if y < width { x >> y } else { 0 }),
        BinOp::Eq => map2(a, b, d, |x, y| (x == y) as u64),
        BinOp::Ne => map2(a, b, d, |x, y| (x != y) as u64),
        BinOp::Lt => map2(a, b, d, |x, y| (x < y) as u64),
        BinOp::Le => map2(a, b, d, |x, y| (x <= y) as u64),
        BinOp::Gt => map2(a, b, d, |x, y| (x > y) as u64),
        BinOp::Ge => map2(a, b, d, |x, y| (x >= y) as u64),
        BinOp::Pow => {}
    }
}

/// True for operators that are undefined for some operands.
pub(super) fn is_partial(op: BinOp, s: Scalar) -> bool {
    matches!(op, BinOp::Shl | BinOp::Shr) || (matches!(op, BinOp::Div | BinOp::Rem) && !s.is_float())
}

/// The fault of these operands, if any.
pub(super) fn undefined_binary(op: BinOp, s: Scalar, x: u64, y: u64) -> Option<FaultKind> {
    match op {
        BinOp::Shl | BinOp::Shr => {
            let width = s.bytes() * 8;
            (y >= width as u64).then_some(FaultKind::Shift { by: y, width })
        }
        BinOp::Div | BinOp::Rem if s == I32 => {
            let (dividend, divisor) = (i32_of(x), i32_of(y));
            // Vulkan leaves the remainder open when either operand is negative.
            let negative = op == BinOp::Rem && (dividend < 0 || divisor < 0);
            let bad = dividend.checked_div(divisor).is_none() || negative;
            bad.then_some(FaultKind::Division { dividend: dividend as i64, divisor: divisor as i64 })
        }
        BinOp::Div | BinOp::Rem if !s.is_float() => {
            (y == 0).then_some(FaultKind::Division { dividend: x as i64, divisor: 0 })
        }
        _ => None,
    }
}

pub(super) fn fma(s: Scalar, a: &Column, b: &Column, c: &Column, d: &Column) {
    for (((a, b), c), d) in a.iter().zip(b).zip(c).zip(d) {
        let (a, b, c) = (a.get(), b.get(), c.get());
        d.set(match s {
            // The product of two F16 is exact in f64; where the sum is not, the discarded part is far below the
            // spacing of the result and cannot make or break a tie.
            F16 => {
                let f = |x| float::to_f32(x) as f64;
                float::from_f64(f(a) * f(b) + f(c))
            }
            _ => of_f32(f32_of(a).mul_add(f32_of(b), f32_of(c))),
        });
    }
}

pub(super) fn dot4(a: &Column, b: &Column, acc: &Column, d: &Column, a_signed: bool) {
    for (((a, b), acc), d) in a.iter().zip(b).zip(acc).zip(d) {
        let (a, b) = ((a.get() as u32).to_le_bytes(), (b.get() as u32).to_le_bytes());
        let mut sum = i32_of(acc.get());
        for (x, y) in a.into_iter().zip(b) {
            let x = if a_signed { x as i8 as i32 } else { x as i32 };
            sum = sum.wrapping_add(x * (y as i8 as i32));
        }
        d.set(of_i32(sum));
    }
}

/// Sign-extended integer value of up to 32 bits, or the bits of a U64.
fn integer(s: Scalar, bits: u64) -> i64 {
    match s {
        I8 => bits as u8 as i8 as i64,
        I32 => bits as u32 as i32 as i64,
        _ => bits as i64,
    }
}

pub(super) fn convert(from: Scalar, to: Scalar, a: &Column, d: &Column) {
    match (from, to) {
        (F32, F16) => map1(a, d, |x| float::from_f64(f32_of(x) as f64)),
        (F16, F32) => map1(a, d, |x| of_f32(float::to_f32(x))),
        (F32, _) => map1(a, d, |x| truncate(f32_of(x), to)),
        (F16, _) => map1(a, d, |x| truncate(float::to_f32(x), to)),
        (U64, F32) => map1(a, d, |x| of_f32(x as f32)),
        (U64, F16) => map1(a, d, |x| float::from_f64(x as f64)),
        (_, F32) => map1(a, d, |x| of_f32(integer(from, x) as f32)),
        (_, F16) => map1(a, d, |x| float::from_f64(integer(from, x) as f64)),
        _ => map1(a, d, |x| integer(from, x) as u64 & mask(to)),
    }
}

/// Toward zero; saturates where it is undefined.
fn truncate(x: f32, to: Scalar) -> u64 {
    match to {
        I8 => x as i8 as u8 as u64,
        U8 => x as u8 as u64,
        U16 => x as u16 as u64,
        I32 => of_i32(x as i32),
        U32 => x as u32 as u64,
        _ => x as u64,
    }
}

/// The fault of converting `bits`, if any: the truncated value must fit.
pub(super) fn undefined_convert(from: Scalar, to: Scalar, bits: u64) -> Option<FaultKind> {
    if !from.is_float() || to.is_float() {
        return None;
    }
    let value = if from == F32 { f32_of(bits) } else { float::to_f32(bits) };
    let whole = value.trunc() as f64;
    let (low, end, name) = match to {
        I8 => (-128.0, 128.0, "i8"),
        U8 => (0.0, 256.0, "u8"),
        U16 => (0.0, 65536.0, "u16"),
        I32 => (-2147483648.0, 2147483648.0, "i32"),
        U32 => (0.0, 4294967296.0, "u32"),
        _ => (0.0, 18446744073709551616.0, "u64"),
    };
    (!(low..end).contains(&whole)).then_some(FaultKind::Conversion { value, to: name })
}

/// Same bytes in memory order, cut into other elements.
pub(super) fn bitcast(from: Scalar, to: Scalar, a: &Column, d: &Column, lanes: usize) {
    if from.bytes() == to.bytes() {
        return map1(a, d, |x| x);
    }
    // One wide element is several narrow ones; their columns follow each other.
    let (narrow, wide, cut) = if from.bytes() > to.bytes() { (to, a, true) } else { (from, d, false) };
    let columns = (if cut { d } else { a }).chunks_exact(lanes);
    let per_wide = (from.bytes().max(to.bytes()) / narrow.bytes()) as usize;
    for (i, narrow_column) in columns.enumerate() {
        let wide_column = &wide[i / per_wide * lanes..][..lanes];
        let shift = (i % per_wide) as u32 * narrow.bytes() * 8;
        for (n, w) in narrow_column.iter().zip(wide_column) {
            if cut {
                n.set((w.get() >> shift) & mask(narrow));
            } else {
                let lower = if shift == 0 { 0 } else { w.get() };
                w.set(lower | n.get() << shift);
            }
        }
    }
}

/// Folds `values` in order.
pub(super) fn reduce(op: ReduceOp, s: Scalar, values: &Column) -> u64 {
    let mut all = values.iter().map(Cell::get);
    let first = all.next().unwrap_or(0);
    let f: fn(u64, u64) -> u64 = match (op, s) {
        (ReduceOp::Add, F32) => |x, y| of_f32(f32_of(x) + f32_of(y)),
        (ReduceOp::Min, F32) => |x, y| of_f32(f32_of(x).min(f32_of(y))),
        (ReduceOp::Max, F32) => |x, y| of_f32(f32_of(x).max(f32_of(y))),
        (ReduceOp::Add, _) => |x, y| x.wrapping_add(y) & u32::MAX as u64,
        (ReduceOp::Min, I32) => |x, y| of_i32(i32_of(x).min(i32_of(y))),
        (ReduceOp::Max, I32) => |x, y| of_i32(i32_of(x).max(i32_of(y))),
        (ReduceOp::Min, _) => u64::min,
        (ReduceOp::Max, _) => u64::max,
    };
    all.fold(first, f)
}
