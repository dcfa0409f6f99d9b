//! How templates write kernels: Rust expressions over [`Val`]s that append operations and fold constants.
//!
//! ```text
//! let b = Builder::new("scale", 64, 32);
//! let (x, y) = (b.arg("x", ArgKind::Read), b.arg("y", ArgKind::Write));
//! let i = b.tile(0) * 64 + b.local_id();
//! let v = b.load(Type::F32, x, i * 4, 4);
//! b.store(y, i * 4, v * 2.0, 4);
//! let kernel = b.finish();
//! ```
//!
//! A builder panics on type errors: they are bugs in a template, found by its own examples.

mod splice;
mod val;

pub use splice::Leaves;
pub use val::Val;

use super::inst::*;
use std::cell::RefCell;
use std::collections::HashMap;

/// Builds one [`Kernel`]. Shared by reference by all its [`Val`]s.
pub struct Builder {
    state: RefCell<State>,
}

struct State {
    kernel: Kernel,
    /// Innermost open block last.
    blocks: Vec<Block>,
    consts: HashMap<(Type, u64), Value>,
    builtins: HashMap<Builtin, Value>,
}

impl Builder {
    /// A kernel of `workgroup_size` lanes in subgroups of `subgroup_size`.
    pub fn new(name: impl Into<String>, workgroup_size: u32, subgroup_size: u32) -> Builder {
        assert!(workgroup_size.is_multiple_of(subgroup_size), "partial subgroups are not allowed");
        let kernel = Kernel {
            name: name.into(),
            workgroup_size,
            subgroup_size,
            args: vec![],
            shared: vec![],
            ops: vec![],
            types: vec![],
            body: vec![],
        };
        Builder {
            state: RefCell::new(State {
                kernel,
                blocks: vec![vec![]],
                consts: HashMap::new(),
                builtins: HashMap::new(),
            }),
        }
    }

    /// The finished kernel.
    pub fn finish(self) -> Kernel {
        let mut state = self.state.into_inner();
        state.kernel.body = state.blocks.pop().expect("the body block");
        assert!(state.blocks.is_empty(), "unclosed block");
        state.kernel
    }

    fn define(&self, op: Op, ty: Type) -> Value {
        let mut s = self.state.borrow_mut();
        let v = Value(s.kernel.ops.len() as u32);
        s.kernel.ops.push(op);
        s.kernel.types.push(ty);
        v
    }

    fn push(&self, op: Op, ty: Type) -> Val<'_> {
        let v = self.define(op, ty);
        self.state.borrow_mut().blocks.last_mut().expect("an open block").push(v);
        Val { b: self, v }
    }

    fn wrap(&self, v: Value) -> Val<'_> {
        Val { b: self, v }
    }

    fn ty(&self, v: Value) -> Type {
        self.state.borrow().kernel.ty(v)
    }

    fn const_bits(&self, v: Value) -> Option<u64> {
        self.state.borrow().kernel.constant(v)
    }

    fn constant(&self, ty: Type, bits: u64) -> Val<'_> {
        let found = self.state.borrow().consts.get(&(ty, bits)).copied();
        let v = found.unwrap_or_else(|| {
            let v = self.define(Op::Const(bits), ty);
            self.state.borrow_mut().consts.insert((ty, bits), v);
            v
        });
        self.wrap(v)
    }

    // ---- leaves -------------------------------------------------------------------------------------------

    /// Declares the next launch argument. All addresses must be declared before the first word.
    pub fn arg(&self, name: &str, kind: ArgKind) -> Val<'_> {
        let index = {
            let mut s = self.state.borrow_mut();
            let word_before = s.kernel.args.last().is_some_and(|a| a.kind == ArgKind::Word);
            assert!(!(word_before && kind != ArgKind::Word), "address argument {name} after a word");
            s.kernel.args.push(Arg { name: name.to_string(), kind });
            s.kernel.args.len() as u32 - 1
        };
        let ty = if kind == ArgKind::Word { Type::U32 } else { Type::U64 };
        self.wrap(self.define(Op::Arg(index), ty))
    }

    /// Declares a shared array; the result is its index for `shared_load` and friends.
    pub fn shared(&self, name: &str, ty: Type, len: u32) -> u32 {
        let mut s = self.state.borrow_mut();
        s.kernel.shared.push(Shared { name: name.to_string(), ty, len });
        s.kernel.shared.len() as u32 - 1
    }

    /// Index and length of the shared array of this name.
    pub fn shared_array(&self, name: &str) -> Option<(u32, u32)> {
        let s = self.state.borrow();
        let at = s.kernel.shared.iter().position(|a| a.name == name)?;
        Some((at as u32, s.kernel.shared[at].len))
    }

    fn builtin(&self, which: Builtin) -> Val<'_> {
        let found = self.state.borrow().builtins.get(&which).copied();
        let v = found.unwrap_or_else(|| {
            let v = self.define(Op::Builtin(which), Type::U32);
            self.state.borrow_mut().builtins.insert(which, v);
            v
        });
        self.wrap(v)
    }

    /// Tile index along an axis (0, 1, 2).
    pub fn tile(&self, axis: u8) -> Val<'_> {
        self.builtin(Builtin::Tile(axis))
    }
    /// Tiles of the launch along an axis (0, 1, 2).
    pub fn grid_size(&self, axis: u8) -> Val<'_> {
        self.builtin(Builtin::GridSize(axis))
    }
    /// Lane within the workgroup.
    pub fn local_id(&self) -> Val<'_> {
        self.builtin(Builtin::LocalId)
    }
    /// Subgroup within the workgroup.
    pub fn subgroup_id(&self) -> Val<'_> {
        self.builtin(Builtin::SubgroupId)
    }
    /// Lane within the subgroup.
    pub fn lane(&self) -> Val<'_> {
        self.builtin(Builtin::Lane)
    }

    /// U32 constant.
    pub fn u32(&self, x: u32) -> Val<'_> {
        self.constant(Type::U32, x as u64)
    }
    /// I32 constant.
    pub fn i32(&self, x: i32) -> Val<'_> {
        self.constant(Type::I32, x as u32 as u64)
    }
    /// U64 constant.
    pub fn u64(&self, x: u64) -> Val<'_> {
        self.constant(Type::U64, x)
    }
    /// F32 constant.
    pub fn f32(&self, x: f32) -> Val<'_> {
        self.constant(Type::F32, x.to_bits() as u64)
    }
    /// F16 constant from its bits.
    pub fn f16_bits(&self, bits: u16) -> Val<'_> {
        self.constant(Type::F16, bits as u64)
    }
    /// Bool constant.
    pub fn bool(&self, x: bool) -> Val<'_> {
        self.constant(Type::BOOL, x as u64)
    }
    /// Four equal F32.
    pub fn f32x4(&self, x: f32) -> Val<'_> {
        self.f32(x).splat(4)
    }

    // ---- vectors ------------------------------------------------------------------------------------------

    /// Vector of 2 or 4 scalars of one type.
    pub fn compose(&self, parts: &[Val<'_>]) -> Val<'_> {
        let scalar = parts[0].ty().scalar().expect("a scalar");
        assert!(parts.iter().all(|p| p.ty() == Type::Vec(scalar, 1)), "compose needs equal scalars");
        assert!(matches!(parts.len(), 2 | 4), "vectors have 2 or 4 lanes");
        let ty = Type::Vec(scalar, parts.len() as u8);
        self.push(Op::Compose(parts.iter().map(|p| p.v).collect()), ty)
    }

    /// a * b + c, one rounding.
    pub fn fma<'b>(&'b self, a: Val<'b>, b: Val<'b>, c: Val<'b>) -> Val<'b> {
        assert!(a.ty() == b.ty() && b.ty() == c.ty(), "fma of {:?} {:?} {:?}", a.ty(), b.ty(), c.ty());
        self.push(Op::Fma(a.v, b.v, c.v), a.ty())
    }

    /// `words[index]`; see [`Op::Table`].
    pub fn table<'b>(&'b self, index: Val<'b>, words: Vec<u32>) -> Val<'b> {
        assert!(index.ty() == Type::U32 && !words.is_empty(), "a table has words and a U32 index");
        self.push(Op::Table(index.v, words), Type::U32)
    }

    /// Byte dot product plus `acc` (I32); see [`Op::Dot4`].
    pub fn dot4<'b>(&'b self, a: Val<'b>, b: Val<'b>, acc: Val<'b>, a_signed: bool) -> Val<'b> {
        assert!(a.ty() == Type::U32 && b.ty() == Type::U32 && acc.ty() == Type::I32, "dot4 operand types");
        self.push(Op::Dot4 { a: a.v, b: b.v, acc: acc.v, a_signed }, Type::I32)
    }

    // ---- memory -------------------------------------------------------------------------------------------

    /// Loads `ty` from `base + offset` bytes; nothing in the launch writes there.
    pub fn load<'b>(&'b self, ty: Type, base: Val<'b>, offset: Val<'b>, align: u8) -> Val<'b> {
        self.load_at(ty, base, offset, 0, align, true)
    }

    /// Load with a constant displacement and an explicit `read_only` promise.
    pub fn load_at<'b>(
        &'b self,
        ty: Type,
        base: Val<'b>,
        offset: Val<'b>,
        imm: u32,
        align: u8,
        read_only: bool,
    ) -> Val<'b> {
        assert!(base.ty() == Type::U64 && offset.ty() == Type::U32, "load address types");
        self.push(Op::Load { base: base.v, offset: offset.v, imm, align, read_only }, ty)
    }

    /// Stores `value` at `base + offset` bytes.
    pub fn store<'b>(&'b self, base: Val<'b>, offset: Val<'b>, value: Val<'b>, align: u8) {
        assert!(base.ty() == Type::U64 && offset.ty() == Type::U32, "store address types");
        self.push(Op::Store { base: base.v, offset: offset.v, imm: 0, align, value: value.v }, Type::Void);
    }

    /// Device-scope atomic add; gives the old value.
    pub fn atomic_add<'b>(&'b self, base: Val<'b>, offset: Val<'b>, value: Val<'b>, order: Order) -> Val<'b> {
        self.push(Op::AtomicAdd { base: base.v, offset: offset.v, value: value.v, order }, Type::U32)
    }

    /// Element `index` of shared array `array`.
    pub fn shared_load<'b>(&'b self, array: u32, index: Val<'b>) -> Val<'b> {
        let ty = self.state.borrow().kernel.shared[array as usize].ty;
        self.push(Op::SharedLoad { array, index: index.v }, ty)
    }

    /// Sets element `index` of shared array `array`.
    pub fn shared_store<'b>(&'b self, array: u32, index: Val<'b>, value: Val<'b>) {
        assert!(self.state.borrow().kernel.shared[array as usize].ty == value.ty(), "shared store type");
        self.push(Op::SharedStore { array, index: index.v, value: value.v }, Type::Void);
    }

    /// Workgroup barrier.
    pub fn barrier(&self) {
        self.push(Op::Barrier, Type::Void);
    }

    /// Barrier of the subgroup, for shared memory that only it uses; see [`Op::SubgroupBarrier`].
    pub fn subgroup_barrier(&self) {
        self.push(Op::SubgroupBarrier, Type::Void);
    }

    /// Barrier of all tiles, which count at `base + offset` bytes; see [`Op::GridBarrier`].
    pub fn grid_barrier<'b>(&'b self, base: Val<'b>, offset: Val<'b>) {
        self.push(Op::GridBarrier { base: base.v, offset: offset.v }, Type::Void);
    }

    // ---- matrices -----------------------------------------------------------------------------------------

    /// Loads a cooperative matrix.
    pub fn matrix_load<'b>(
        &'b self,
        ty: MatrixType,
        memory: MatrixMemory,
        stride: Val<'b>,
        column_major: bool,
    ) -> Val<'b> {
        self.push(Op::MatrixLoad { memory, stride: stride.v, column_major }, Type::Matrix(ty))
    }

    /// Stores a cooperative matrix.
    pub fn matrix_store<'b>(&'b self, value: Val<'b>, memory: MatrixMemory, stride: Val<'b>, column_major: bool) {
        self.push(Op::MatrixStore { memory, stride: stride.v, column_major, value: value.v }, Type::Void);
    }

    /// Matrix with all elements equal to `x`.
    pub fn matrix_splat<'b>(&'b self, ty: MatrixType, x: Val<'b>) -> Val<'b> {
        self.push(Op::MatrixSplat(x.v), Type::Matrix(ty))
    }

    /// a × b + c.
    pub fn matrix_mul_add<'b>(&'b self, a: Val<'b>, b: Val<'b>, c: Val<'b>) -> Val<'b> {
        self.push(Op::MatrixMulAdd(a.v, b.v, c.v), c.ty())
    }

    /// What this lane holds of a matrix; see [`Op::MatrixElement`].
    ///
    /// # Panics
    /// If it is no accumulator that can be dealt out evenly to the lanes, nor a matrix in quads.
    pub fn matrix_elements<'b>(&'b self, m: Val<'b>) -> Vec<Val<'b>> {
        let Type::Matrix(ty) = m.ty() else { panic!("elements of {:?}", m.ty()) };
        let subgroup = self.state.borrow().kernel.subgroup_size;
        let n = ty.elements_per_lane(subgroup).expect("a matrix that is dealt out evenly");
        (0..n).map(|i| self.push(Op::MatrixElement(m.v, i), Type::Vec(ty.scalar, 1))).collect()
    }

    /// The matrix whose elements the lanes hold, in the order of [`Builder::matrix_elements`].
    pub fn matrix_compose<'b>(&'b self, ty: MatrixType, elements: &[Val<'b>]) -> Val<'b> {
        self.push(Op::MatrixCompose(elements.iter().map(|e| e.v).collect()), Type::Matrix(ty))
    }

    // ---- control ------------------------------------------------------------------------------------------

    /// Runs `then` where `cond` holds.
    pub fn if_<'b>(&'b self, cond: Val<'b>, then: impl FnOnce()) {
        self.if_else(
            cond,
            || {
                then();
                vec![]
            },
            Vec::new,
        );
    }

    /// Chooses between two branches that each give as many values of the same types.
    pub fn if_else<'b>(
        &'b self,
        cond: Val<'b>,
        then: impl FnOnce() -> Vec<Val<'b>>,
        otherwise: impl FnOnce() -> Vec<Val<'b>>,
    ) -> Vec<Val<'b>> {
        assert!(cond.ty() == Type::BOOL, "if needs one Bool");
        match self.const_bits(cond.v) {
            Some(0) => return otherwise(),
            Some(_) => return then(),
            None => {}
        }
        let (then_block, then_yield) = self.block(then);
        let (else_block, else_yield) = self.block(otherwise);
        let types: Vec<Type> = then_yield.iter().map(|v| self.ty(*v)).collect();
        assert!(types == else_yield.iter().map(|v| self.ty(*v)).collect::<Vec<_>>(), "branches give other types");
        let results: Vec<Value> = types.iter().map(|t| self.define(Op::Param, *t)).collect();
        let op = Op::If {
            cond: cond.v,
            then: then_block,
            then_yield,
            otherwise: else_block,
            else_yield,
            results: results.clone(),
        };
        self.push(op, Type::Void);
        results.into_iter().map(|v| self.wrap(v)).collect()
    }

    /// `for index in (start..end).step_by(step)` with carried values: `body(index, carried) -> next`.
    /// Gives the carried values after the loop.
    pub fn for_<'b>(
        &'b self,
        start: Val<'b>,
        end: Val<'b>,
        step: u32,
        init: &[Val<'b>],
        body: impl FnOnce(Val<'b>, &[Val<'b>]) -> Vec<Val<'b>>,
    ) -> Vec<Val<'b>> {
        self.for_with(start, end, self.u32(step), init, false, body)
    }

    /// As [`Builder::for_`], with a step that need not be constant and an unroll request.
    pub fn for_with<'b>(
        &'b self,
        start: Val<'b>,
        end: Val<'b>,
        step: Val<'b>,
        init: &[Val<'b>],
        unroll: bool,
        body: impl FnOnce(Val<'b>, &[Val<'b>]) -> Vec<Val<'b>>,
    ) -> Vec<Val<'b>> {
        assert!(start.ty() == Type::U32 && end.ty() == Type::U32 && step.ty() == Type::U32, "loop bounds are U32");
        let types: Vec<Type> = init.iter().map(|v| v.ty()).collect();
        let index = self.define(Op::Param, Type::U32);
        let carried: Vec<Value> = types.iter().map(|t| self.define(Op::Param, *t)).collect();
        let inside: Vec<Val<'b>> = carried.iter().map(|v| self.wrap(*v)).collect();
        let (block, body_yield) = self.block(|| body(self.wrap(index), &inside));
        assert!(types == body_yield.iter().map(|v| self.ty(*v)).collect::<Vec<_>>(), "loop body gives other types");
        let results: Vec<Value> = types.iter().map(|t| self.define(Op::Param, *t)).collect();
        let op = Op::For {
            start: start.v,
            end: end.v,
            step: step.v,
            index,
            init: init.iter().map(|v| v.v).collect(),
            carried,
            body: block,
            body_yield,
            results: results.clone(),
            unroll,
        };
        self.push(op, Type::Void);
        results.into_iter().map(|v| self.wrap(v)).collect()
    }

    fn block<'b>(&'b self, f: impl FnOnce() -> Vec<Val<'b>>) -> (Block, Vec<Value>) {
        self.state.borrow_mut().blocks.push(vec![]);
        let values = f().into_iter().map(|v| v.v).collect();
        (self.state.borrow_mut().blocks.pop().expect("the block just opened"), values)
    }

    fn binary<'b>(&'b self, op: BinOp, a: Val<'b>, b: Val<'b>) -> Val<'b> {
        assert!(a.ty() == b.ty(), "{op:?} of {:?} and {:?}", a.ty(), b.ty());
        let ty = if op.is_compare() { a.ty().with_scalar(Scalar::Bool) } else { a.ty() };
        if let Some(folded) = self.fold(op, a, b) {
            return folded;
        }
        self.push(Op::Binary(op, a.v, b.v), ty)
    }

    /// Folds U32 and U64 arithmetic on constants and the identities that address computations are full of.
    fn fold<'b>(&'b self, op: BinOp, a: Val<'b>, b: Val<'b>) -> Option<Val<'b>> {
        let ty = a.ty();
        if ty != Type::U32 && ty != Type::U64 {
            return None;
        }
        let (ca, cb) = (self.const_bits(a.v), self.const_bits(b.v));
        match (op, ca, cb) {
            (BinOp::Add | BinOp::Or | BinOp::Xor, Some(0), _) => return Some(b),
            (BinOp::Add | BinOp::Sub | BinOp::Or | BinOp::Xor | BinOp::Shl | BinOp::Shr, _, Some(0)) => return Some(a),
            (BinOp::Mul, Some(1), _) => return Some(b),
            (BinOp::Mul | BinOp::Div, _, Some(1)) => return Some(a),
            (BinOp::Mul | BinOp::And, _, Some(0)) => return Some(b),
            (BinOp::Mul | BinOp::And, Some(0), _) => return Some(a),
            (BinOp::Rem, _, Some(1)) => return Some(self.constant(ty, 0)),
            (BinOp::Mul, _, Some(n)) if n.is_power_of_two() && ca.is_none() => {
                let shift = self.constant(ty, n.trailing_zeros() as u64);
                return Some(self.push(Op::Binary(BinOp::Shl, a.v, shift.v), ty));
            }
            (BinOp::Div, _, Some(n)) if n.is_power_of_two() && ca.is_none() => {
                let shift = self.constant(ty, n.trailing_zeros() as u64);
                return Some(self.push(Op::Binary(BinOp::Shr, a.v, shift.v), ty));
            }
            (BinOp::Rem, _, Some(n)) if n.is_power_of_two() && ca.is_none() => {
                let mask = self.constant(ty, n - 1);
                return Some(self.push(Op::Binary(BinOp::And, a.v, mask.v), ty));
            }
            _ => {}
        }
        let (x, y) = (ca?, cb?);
        let mask = if ty == Type::U32 { u32::MAX as u64 } else { u64::MAX };
        let bits = match op {
            BinOp::Add => x.wrapping_add(y),
            BinOp::Sub => x.wrapping_sub(y),
            BinOp::Mul => x.wrapping_mul(y),
            BinOp::Div => x.checked_div(y)?,
            BinOp::Rem => x.checked_rem(y)?,
            BinOp::Min => x.min(y),
            BinOp::Max => x.max(y),
            BinOp::And => x & y,
            BinOp::Or => x | y,
            BinOp::Xor => x ^ y,
            BinOp::Shl => x.checked_shl(y as u32)?,
            BinOp::Shr => x.checked_shr(y as u32)?,
            BinOp::Eq => return Some(self.bool(x == y)),
            BinOp::Ne => return Some(self.bool(x != y)),
            BinOp::Lt => return Some(self.bool(x < y)),
            BinOp::Le => return Some(self.bool(x <= y)),
            BinOp::Gt => return Some(self.bool(x > y)),
            BinOp::Ge => return Some(self.bool(x >= y)),
            BinOp::Pow => return None,
        };
        Some(self.constant(ty, bits & mask))
    }
}
