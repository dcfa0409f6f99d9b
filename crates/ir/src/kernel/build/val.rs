//! Values of a kernel under construction, and the Rust operators on them.
//!
//! ```text
//! Val ∘ (Val | number) ─► Builder: fold, or append an operation ─► Val
//! ```

use super::super::inst::*;
use super::Builder;
use std::ops;

/// A value under construction: an operand for Rust operators.
#[derive(Clone, Copy)]
pub struct Val<'b> {
    pub(super) b: &'b Builder,
    pub(super) v: Value,
}

impl<'b> Val<'b> {
    /// Its handle in the kernel.
    pub fn value(self) -> Value {
        self.v
    }
    /// Its type.
    pub fn ty(self) -> Type {
        self.b.ty(self.v)
    }

    fn unary(self, op: UnOp) -> Val<'b> {
        self.b.push(Op::Unary(op, self.v), self.ty())
    }
    /// e^x.
    pub fn exp(self) -> Val<'b> {
        self.unary(UnOp::Exp)
    }
    /// 2^x.
    pub fn exp2(self) -> Val<'b> {
        self.unary(UnOp::Exp2)
    }
    /// ln x.
    pub fn log(self) -> Val<'b> {
        self.unary(UnOp::Log)
    }
    /// √x.
    pub fn sqrt(self) -> Val<'b> {
        self.unary(UnOp::Sqrt)
    }
    /// 1/√x.
    pub fn inv_sqrt(self) -> Val<'b> {
        self.unary(UnOp::InvSqrt)
    }
    /// sin x.
    pub fn sin(self) -> Val<'b> {
        self.unary(UnOp::Sin)
    }
    /// cos x.
    pub fn cos(self) -> Val<'b> {
        self.unary(UnOp::Cos)
    }
    /// tanh x.
    pub fn tanh(self) -> Val<'b> {
        self.unary(UnOp::Tanh)
    }
    /// |x|.
    pub fn abs(self) -> Val<'b> {
        self.unary(UnOp::Abs)
    }
    /// ⌊x⌋.
    pub fn floor(self) -> Val<'b> {
        self.unary(UnOp::Floor)
    }
    /// Nearest integer, ties to even.
    pub fn round_even(self) -> Val<'b> {
        self.unary(UnOp::RoundEven)
    }

    /// Smaller of two.
    pub fn min(self, o: Val<'b>) -> Val<'b> {
        self.b.binary(BinOp::Min, self, o)
    }
    /// Larger of two.
    pub fn max(self, o: Val<'b>) -> Val<'b> {
        self.b.binary(BinOp::Max, self, o)
    }
    /// self^o (floats).
    pub fn pow(self, o: Val<'b>) -> Val<'b> {
        self.b.binary(BinOp::Pow, self, o)
    }
    /// self == o.
    pub fn eq(self, o: impl Operand<'b>) -> Val<'b> {
        self.b.binary(BinOp::Eq, self, o.lower(self))
    }
    /// self != o.
    pub fn ne(self, o: impl Operand<'b>) -> Val<'b> {
        self.b.binary(BinOp::Ne, self, o.lower(self))
    }
    /// self < o.
    pub fn lt(self, o: impl Operand<'b>) -> Val<'b> {
        self.b.binary(BinOp::Lt, self, o.lower(self))
    }
    /// self <= o.
    pub fn le(self, o: impl Operand<'b>) -> Val<'b> {
        self.b.binary(BinOp::Le, self, o.lower(self))
    }
    /// self > o.
    pub fn gt(self, o: impl Operand<'b>) -> Val<'b> {
        self.b.binary(BinOp::Gt, self, o.lower(self))
    }
    /// self >= o.
    pub fn ge(self, o: impl Operand<'b>) -> Val<'b> {
        self.b.binary(BinOp::Ge, self, o.lower(self))
    }

    /// self ? a : b.
    pub fn select(self, a: Val<'b>, b: Val<'b>) -> Val<'b> {
        assert!(a.ty() == b.ty(), "select of {:?} and {:?}", a.ty(), b.ty());
        match self.b.const_bits(self.v) {
            Some(0) => b,
            Some(_) => a,
            None => self.b.push(Op::Select(self.v, a.v, b.v), a.ty()),
        }
    }

    /// Converts the elements; see [`Op::Convert`].
    pub fn to(self, s: Scalar) -> Val<'b> {
        let ty = self.ty().with_scalar(s);
        if ty == self.ty() {
            return self;
        }
        if let (Some(bits), Type::U32, Type::U64) = (self.b.const_bits(self.v), self.ty(), ty) {
            return self.b.constant(ty, bits);
        }
        self.b.push(Op::Convert(self.v), ty)
    }
    /// To F32.
    pub fn to_f32(self) -> Val<'b> {
        self.to(Scalar::F32)
    }
    /// Same bits as `ty`.
    pub fn bitcast(self, ty: Type) -> Val<'b> {
        assert!(ty.bytes() == self.ty().bytes(), "bitcast {:?} to {ty:?}", self.ty());
        if ty == self.ty() {
            return self;
        }
        self.b.push(Op::Bitcast(self.v), ty)
    }

    /// Lane `i` of a vector (the scalar itself when it is one).
    pub fn lane(self, i: u8) -> Val<'b> {
        match self.ty() {
            Type::Vec(_, 1) => self,
            Type::Vec(s, n) => {
                assert!(i < n, "lane {i} of {n}");
                self.b.push(Op::Extract(self.v, i), Type::Vec(s, 1))
            }
            other => panic!("lane of {other:?}"),
        }
    }
    /// Vector of `n` copies.
    pub fn splat(self, n: u8) -> Val<'b> {
        if n == 1 { self } else { self.b.compose(&vec![self; n as usize]) }
    }
    /// Sum of the lanes of a vector, pairwise.
    pub fn sum_lanes(self) -> Val<'b> {
        match self.ty().lanes() {
            1 => self,
            2 => self.lane(0) + self.lane(1),
            _ => (self.lane(0) + self.lane(1)) + (self.lane(2) + self.lane(3)),
        }
    }

    /// Sum over the subgroup.
    pub fn subgroup_add(self) -> Val<'b> {
        self.b.push(Op::SubgroupReduce(ReduceOp::Add, self.v), self.ty())
    }
    /// Maximum over the subgroup.
    pub fn subgroup_max(self) -> Val<'b> {
        self.b.push(Op::SubgroupReduce(ReduceOp::Max, self.v), self.ty())
    }
    /// Minimum over the subgroup.
    pub fn subgroup_min(self) -> Val<'b> {
        self.b.push(Op::SubgroupReduce(ReduceOp::Min, self.v), self.ty())
    }
    /// The value of lane `lane ^ mask`.
    pub fn shuffle_xor(self, mask: u32) -> Val<'b> {
        self.b.push(Op::SubgroupShuffleXor(self.v, mask), self.ty())
    }
    /// The value of lane `lane`.
    pub fn shuffle(self, lane: Val<'b>) -> Val<'b> {
        self.b.push(Op::SubgroupShuffle(self.v, lane.v), self.ty())
    }
}

/// Right-hand sides of operators: another value, or a Rust number turned into a constant of the left type
/// (splat over its lanes).
pub trait Operand<'b> {
    /// The operand as a value of the type of `like`.
    fn lower(self, like: Val<'b>) -> Val<'b>;
}

impl<'b> Operand<'b> for Val<'b> {
    fn lower(self, _like: Val<'b>) -> Val<'b> {
        self
    }
}

impl<'b> Operand<'b> for u32 {
    fn lower(self, like: Val<'b>) -> Val<'b> {
        let bits = match like.ty().scalar() {
            Some(Scalar::U32 | Scalar::I32 | Scalar::U64) => self as u64,
            Some(Scalar::F32) => (self as f32).to_bits() as u64,
            other => panic!("integer operand for {other:?}"),
        };
        let ty = like.ty();
        let scalar = Type::Vec(ty.scalar().expect("a vector"), 1);
        like.b.constant(scalar, bits).splat(ty.lanes())
    }
}

impl<'b> Operand<'b> for f32 {
    fn lower(self, like: Val<'b>) -> Val<'b> {
        assert!(like.ty().scalar() == Some(Scalar::F32), "f32 operand for {:?}", like.ty());
        like.b.f32(self).splat(like.ty().lanes())
    }
}

macro_rules! operators {
    ($($trait:ident $method:ident $op:ident;)*) => {$(
        impl<'b, R: Operand<'b>> ops::$trait<R> for Val<'b> {
            type Output = Val<'b>;
            fn $method(self, rhs: R) -> Val<'b> {
                self.b.binary(BinOp::$op, self, rhs.lower(self))
            }
        }
    )*};
}
operators! {
    Add add Add;
    Sub sub Sub;
    Mul mul Mul;
    Div div Div;
    Rem rem Rem;
    BitAnd bitand And;
    BitOr bitor Or;
    BitXor bitxor Xor;
    Shl shl Shl;
    Shr shr Shr;
}

impl<'b> ops::Neg for Val<'b> {
    type Output = Val<'b>;
    fn neg(self) -> Val<'b> {
        self.unary(UnOp::Neg)
    }
}

impl<'b> ops::Not for Val<'b> {
    type Output = Val<'b>;
    fn not(self) -> Val<'b> {
        self.unary(UnOp::Not)
    }
}
