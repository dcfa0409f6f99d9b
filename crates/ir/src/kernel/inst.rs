//! The kernel IR: one compute shader as typed, structured SSA.
//!
//! ```text
//! compiler template ──Builder──► Kernel ──verify──► text | interpret | SPIR-V
//! ```
//!
//! Meaning, before the types:
//!
//! * A kernel runs a grid of *tiles*. One tile is one workgroup of `workgroup_size` lanes, cut into full
//!   subgroups of exactly `subgroup_size` lanes (`workgroup_size` is a multiple of it). Lane `l` of subgroup
//!   `s` has local id `s * subgroup_size + l`. A body never asks for a workgroup id, only for [`Builtin::Tile`]:
//!   a persistent kernel can then loop over tiles of several bodies.
//! * Every value is immutable and defined once, before use, in the block that uses it or an enclosing one.
//!   [`Op::Const`], [`Op::Arg`] and [`Op::Builtin`] are defined everywhere and listed in no block.
//!   There is no early return, no goto: only [`Op::If`] and [`Op::For`] with explicit results.
//! * Global memory is reached through 64-bit device addresses: `base + offset + imm` with a U64 base and a U32
//!   byte offset (unsigned, zero-extended). The access must lie inside one bound range and be aligned to `align`.
//! * Workgroup memory is declared as typed arrays; its content is undefined at the start of a tile.
//! * [`Op::Barrier`] is reached by every lane of the tile or by none. It orders all shared accesses, and the
//!   tile's own global accesses, before it against those after it. Without it, lanes of *different* subgroups are
//!   unordered; lanes of one subgroup are unordered too, except through subgroup operations.
//!   [`Op::SubgroupBarrier`] orders the shared accesses of one subgroup, and nothing else.
//! * Tiles are unordered, with two exceptions. [`Op::GridBarrier`] is reached by every tile of the launch or by none,
//!   and orders everything before it, of all tiles, against everything after it. An [`Op::AtomicAdd`] of
//!   [`Order::AcquireRelease`] hands on what happened before it to whoever later adds to the same word in that order:
//!   the pattern is *write, barrier, one lane adds, barrier, read*.
//! * Which lane holds which element of a matrix is unspecified, but the same for all matrices of one type, and each
//!   element of an accumulator has one lane: [`Op::MatrixElement`] and [`Op::MatrixCompose`] can compute a matrix from
//!   others of its type, element by element, and nothing that depends on where an element is. The exception is a matrix
//!   [in quads](MatrixType::in_quads), whose lanes hold what [`quad_place`] says: on devices where that is so.
//! * Subgroup operations, barriers and matrix operations need *uniform* control flow: all lanes of the subgroup
//!   (barrier: of the workgroup) are active. The verifier rejects what it cannot prove uniform.
//! * Integer arithmetic wraps. Shifts by the width or more, integer division by zero, and remainders of negative
//!   I32 are undefined (the interpreter reports them). F32 follows IEEE round-to-nearest except that FMA contraction
//!   is only where [`Op::Fma`] says so, and that denormals may flush. Bool has no memory form.

pub use super::types::{MatrixType, MatrixUse, Scalar, Type, quad_place};

/// Handle of an operation and of the value it defines.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct Value(pub u32);

/// Read-only facts about where a lane is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Builtin {
    /// Tile index along axis 0, 1 or 2 (U32, uniform over the workgroup).
    Tile(u8),
    /// Tiles of the launch along axis 0, 1 or 2 (U32, uniform over the grid).
    GridSize(u8),
    /// Lane within the workgroup, 0..workgroup_size (U32).
    LocalId,
    /// Subgroup within the workgroup (U32, uniform over the subgroup).
    SubgroupId,
    /// Lane within the subgroup (U32).
    Lane,
}

/// One-operand arithmetic, elementwise on vectors.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum UnOp {
    /// Negation (floats, I32).
    Neg,
    /// Bitwise not (integers) or logical not (Bool).
    Not,
    /// Absolute value (F32).
    Abs,
    /// e^x (F32).
    Exp,
    /// 2^x (F32).
    Exp2,
    /// Natural logarithm (F32).
    Log,
    /// Square root (F32).
    Sqrt,
    /// 1 / sqrt(x) (F32).
    InvSqrt,
    /// Sine (F32); argument reduction is the caller's job beyond ±2π·64.
    Sin,
    /// Cosine (F32).
    Cos,
    /// Hyperbolic tangent (F32).
    Tanh,
    /// Round down (F32).
    Floor,
    /// Round half to even (F32).
    RoundEven,
}

/// Two-operand arithmetic, elementwise on vectors of equal type. Comparisons give Bool vectors. Add, Sub, Mul and Div
/// take matrices of floats, too.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs)] // The names say it; semantics are in the module docs.
pub enum BinOp {
    Add,
    Sub,
    Mul,
    Div,
    Rem,
    Min,
    Max,
    And,
    Or,
    Xor,
    Shl,
    /// Logical for unsigned, arithmetic for signed operands.
    Shr,
    /// Floats: x^y.
    Pow,
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
}

impl BinOp {
    /// True for the six comparisons.
    pub const fn is_compare(self) -> bool {
        matches!(self, BinOp::Eq | BinOp::Ne | BinOp::Lt | BinOp::Le | BinOp::Gt | BinOp::Ge)
    }
}

/// Subgroup reductions; the result is the same in all lanes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs)] // The names say it.
pub enum ReduceOp {
    Add,
    Min,
    Max,
}

/// Where a matrix lives in memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum MatrixMemory {
    /// Global memory at `base + offset` bytes, both uniform over the subgroup.
    Global {
        /// U64 address.
        base: Value,
        /// U32 byte offset.
        offset: Value,
    },
    /// Shared array `array` from element `index` on. Its elements are scalars of the matrix's type, or vectors of
    /// them that divide a row (column), or U32 and vectors of U32 whose bytes hold as many; index and stride count array
    /// elements.
    Shared {
        /// Index into [`Kernel::shared`].
        array: u32,
        /// U32 first element, uniform.
        index: Value,
    },
}

/// What an atomic orders besides its own word.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Order {
    /// Nothing.
    Relaxed,
    /// What the tile did before its last barrier is handed on to every tile that adds to the same word afterwards
    /// (in this order, too), for use behind its next barrier.
    AcquireRelease,
}

/// A sequence of operations, in order.
pub type Block = Vec<Value>;

/// One operation. Its result type is `Kernel::types[value]`.
#[derive(Clone, PartialEq, Debug)]
pub enum Op {
    /// Scalar constant; bits in the low end (F16/F32 as their bit patterns).
    Const(u64),
    /// Launch argument `n` of [`Kernel::args`]: U64 or U32, uniform over the grid.
    Arg(u32),
    /// Position.
    Builtin(Builtin),
    /// Block parameter of the enclosing `For` (index or carried value), or a result of a finished `If`/`For`.
    /// Defined by that operation; never listed in a block.
    Param,
    /// Elementwise one-operand arithmetic.
    Unary(UnOp, Value),
    /// Elementwise two-operand arithmetic.
    Binary(BinOp, Value, Value),
    /// a * b + c with one rounding (F32, F16; scalars and vectors).
    Fma(Value, Value, Value),
    /// cond ? a : b. `cond` is one Bool, or a Bool vector of the same lanes.
    Select(Value, Value, Value),
    /// Value conversion to the result type (same lanes): int↔int (extend by the operand's sign, truncate),
    /// int↔float (to int: toward zero; out of range is undefined), float↔float (round to nearest even).
    Convert(Value),
    /// Same bits, other type of the same total size (U32 ↔ 2×F16, 4×U8 ↔ U32, F32 ↔ U32, …).
    Bitcast(Value),
    /// Vector from scalars.
    Compose(Vec<Value>),
    /// Scalar out of a vector.
    Extract(Value, u8),
    /// The U32 that the index (U32, in range) names: constants that are a part of the kernel.
    Table(Value, Vec<u32>),
    /// Four-way byte dot product: sum of a_i * b_i + acc (I32), bytes packed little-endian in U32.
    Dot4 {
        /// Packed bytes.
        a: Value,
        /// Packed bytes; always signed.
        b: Value,
        /// I32 accumulator.
        acc: Value,
        /// Bytes of `a` are signed.
        a_signed: bool,
    },
    /// Load from global memory.
    Load {
        /// U64 address.
        base: Value,
        /// U32 byte offset.
        offset: Value,
        /// Constant bytes added.
        imm: u32,
        /// Guaranteed alignment of the sum, a power of two ≤ 16.
        align: u8,
        /// Nothing in this launch writes the bytes: the driver may hoist, merge and reorder.
        read_only: bool,
    },
    /// Store to global memory.
    Store {
        /// U64 address.
        base: Value,
        /// U32 byte offset.
        offset: Value,
        /// Constant bytes added.
        imm: u32,
        /// Guaranteed alignment of the sum.
        align: u8,
        /// What to store.
        value: Value,
    },
    /// Adds to a U32 in global memory with device scope; gives the old value.
    AtomicAdd {
        /// U64 address.
        base: Value,
        /// U32 byte offset, a multiple of 4.
        offset: Value,
        /// U32 addend.
        value: Value,
        /// What it orders.
        order: Order,
    },
    /// Load element `index` of a shared array.
    SharedLoad {
        /// Index into [`Kernel::shared`].
        array: u32,
        /// U32 element index.
        index: Value,
    },
    /// Store element `index` of a shared array.
    SharedStore {
        /// Index into [`Kernel::shared`].
        array: u32,
        /// U32 element index.
        index: Value,
        /// Element.
        value: Value,
    },
    /// Reduction over the subgroup; scalar or vector (elementwise), I32, U32 or F32.
    SubgroupReduce(ReduceOp, Value),
    /// The value of lane `lane ^ mask`; `mask` < subgroup_size.
    SubgroupShuffleXor(Value, u32),
    /// The value of lane `lane` (U32, may differ between lanes, < subgroup_size).
    SubgroupShuffle(Value, Value),
    /// Workgroup barrier with memory ordering.
    Barrier,
    /// Barrier of the subgroup: orders its lanes' accesses to shared arrays.
    SubgroupBarrier,
    /// Barrier of the whole launch with memory ordering. Each tile adds 1 to a U32 in global memory and waits until all
    /// have, so all tiles must run at once: the launch may have no more tiles than the device holds workgroups. The
    /// word must be 0 before the launch; barriers share it, and nothing else touches it.
    GridBarrier {
        /// U64 address, the same for all tiles.
        base: Value,
        /// U32 byte offset, a multiple of 4, the same for all tiles.
        offset: Value,
    },
    /// Loads a cooperative matrix. `stride` is in elements between rows (or columns).
    MatrixLoad {
        /// Source.
        memory: MatrixMemory,
        /// U32 constant or uniform stride in elements.
        stride: Value,
        /// Memory is column-major.
        column_major: bool,
    },
    /// Stores a cooperative matrix.
    MatrixStore {
        /// Destination.
        memory: MatrixMemory,
        /// Stride in elements.
        stride: Value,
        /// Memory is column-major.
        column_major: bool,
        /// The matrix.
        value: Value,
    },
    /// All elements equal to a scalar.
    MatrixSplat(Value),
    /// a × b + c.
    MatrixMulAdd(Value, Value, Value),
    /// The lane's element number `n` of an accumulator or a matrix in quads, of [`MatrixType::elements_per_lane`].
    MatrixElement(Value, u32),
    /// A matrix from each lane's elements, in the order of [`Op::MatrixElement`].
    MatrixCompose(Vec<Value>),
    /// Structured choice; each branch ends by yielding one value per result.
    If {
        /// One Bool.
        cond: Value,
        /// Taken when true.
        then: Block,
        /// What `then` gives.
        then_yield: Vec<Value>,
        /// Taken when false.
        otherwise: Block,
        /// What `otherwise` gives.
        else_yield: Vec<Value>,
        /// [`Op::Param`] values that hold the outcome after the operation.
        results: Vec<Value>,
    },
    /// `for index in (start..end).step_by(step)` over U32, with carried values.
    For {
        /// First index (U32).
        start: Value,
        /// End, exclusive (U32). No iteration when `start >= end`; `end + step` must not overflow.
        end: Value,
        /// Step, a positive U32.
        step: Value,
        /// [`Op::Param`]: the index inside the body.
        index: Value,
        /// Initial carried values.
        init: Vec<Value>,
        /// [`Op::Param`]s: carried values inside the body.
        carried: Vec<Value>,
        /// Body.
        body: Block,
        /// Next carried values.
        body_yield: Vec<Value>,
        /// [`Op::Param`]s: carried values after the loop.
        results: Vec<Value>,
        /// Ask the driver to unroll fully (trip count must be constant).
        unroll: bool,
    },
}

impl Op {
    /// Calls `f` with each value that the operation itself reads: not what its nested blocks read or yield.
    pub fn for_each_operand(&self, mut f: impl FnMut(Value)) {
        let mut all = |values: &[Value]| values.iter().for_each(|v| f(*v));
        let memory = |m: &MatrixMemory| match m {
            MatrixMemory::Global { base, offset } => vec![*base, *offset],
            MatrixMemory::Shared { index, .. } => vec![*index],
        };
        match self {
            Op::Const(_) | Op::Arg(_) | Op::Builtin(_) | Op::Param | Op::Barrier | Op::SubgroupBarrier => {}
            Op::Unary(_, a)
            | Op::Convert(a)
            | Op::Bitcast(a)
            | Op::Extract(a, _)
            | Op::SubgroupReduce(_, a)
            | Op::SubgroupShuffleXor(a, _)
            | Op::Table(a, _)
            | Op::MatrixElement(a, _)
            | Op::MatrixSplat(a) => all(&[*a]),
            Op::Binary(_, a, b) | Op::SubgroupShuffle(a, b) => all(&[*a, *b]),
            Op::Fma(a, b, c) | Op::Select(a, b, c) | Op::MatrixMulAdd(a, b, c) => all(&[*a, *b, *c]),
            Op::Compose(parts) | Op::MatrixCompose(parts) => all(parts),
            Op::Dot4 { a, b, acc, .. } => all(&[*a, *b, *acc]),
            Op::Load { base, offset, .. } | Op::GridBarrier { base, offset } => all(&[*base, *offset]),
            Op::Store { base, offset, value, .. } | Op::AtomicAdd { base, offset, value, .. } => {
                all(&[*base, *offset, *value]);
            }
            Op::SharedLoad { index, .. } => all(&[*index]),
            Op::SharedStore { index, value, .. } => all(&[*index, *value]),
            Op::MatrixLoad { memory: m, stride, .. } => {
                all(&memory(m));
                all(&[*stride]);
            }
            Op::MatrixStore { memory: m, stride, value, .. } => {
                all(&memory(m));
                all(&[*stride, *value]);
            }
            Op::If { cond, .. } => all(&[*cond]),
            Op::For { start, end, step, init, .. } => {
                all(&[*start, *end, *step]);
                all(init);
            }
        }
    }
}

impl Op {
    /// The values that [`Op::for_each_operand`] visits, to be replaced by others.
    pub fn operands_mut(&mut self) -> Vec<&mut Value> {
        fn memory(m: &mut MatrixMemory) -> Vec<&mut Value> {
            match m {
                MatrixMemory::Global { base, offset } => vec![base, offset],
                MatrixMemory::Shared { index, .. } => vec![index],
            }
        }
        match self {
            Op::Const(_) | Op::Arg(_) | Op::Builtin(_) | Op::Param | Op::Barrier | Op::SubgroupBarrier => vec![],
            Op::Unary(_, a)
            | Op::Convert(a)
            | Op::Bitcast(a)
            | Op::Extract(a, _)
            | Op::SubgroupReduce(_, a)
            | Op::SubgroupShuffleXor(a, _)
            | Op::Table(a, _)
            | Op::MatrixElement(a, _)
            | Op::MatrixSplat(a) => vec![a],
            Op::Binary(_, a, b) | Op::SubgroupShuffle(a, b) => vec![a, b],
            Op::Fma(a, b, c) | Op::Select(a, b, c) | Op::MatrixMulAdd(a, b, c) => vec![a, b, c],
            Op::Compose(parts) | Op::MatrixCompose(parts) => parts.iter_mut().collect(),
            Op::Dot4 { a, b, acc, .. } => vec![a, b, acc],
            Op::Load { base, offset, .. } | Op::GridBarrier { base, offset } => vec![base, offset],
            Op::Store { base, offset, value, .. } | Op::AtomicAdd { base, offset, value, .. } => {
                vec![base, offset, value]
            }
            Op::SharedLoad { index, .. } => vec![index],
            Op::SharedStore { index, value, .. } => vec![index, value],
            Op::MatrixLoad { memory: m, stride, .. } => memory(m).into_iter().chain([stride]).collect(),
            Op::MatrixStore { memory: m, stride, value, .. } => memory(m).into_iter().chain([stride, value]).collect(),
            Op::If { cond, .. } => vec![cond],
            Op::For { start, end, step, init, .. } => [start, end, step].into_iter().chain(init).collect(),
        }
    }
}

/// A workgroup-shared array.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Shared {
    /// Name for people.
    pub name: String,
    /// Element type: a scalar or a vector, not Bool.
    pub ty: Type,
    /// Elements.
    pub len: u32,
}

/// What a launch argument is and may be used for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ArgKind {
    /// U64 address of bytes that are only read.
    Read,
    /// U64 address of bytes that are only written.
    Write,
    /// U64 address of bytes that are read and written.
    ReadWrite,
    /// A U32 constant of this launch (e.g. a layer number).
    Word,
}

/// A launch argument.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Arg {
    /// Name for people.
    pub name: String,
    /// Kind.
    pub kind: ArgKind,
}

/// One compute shader: a pure function of (region, caps, knobs); hashable through its text, printable, interpretable.
#[derive(Clone, PartialEq, Debug)]
pub struct Kernel {
    /// What it computes, e.g. `matvec_q4_k_glu`. Not part of its identity.
    pub name: String,
    /// Lanes per workgroup.
    pub workgroup_size: u32,
    /// Exact subgroup size the body relies on.
    pub subgroup_size: u32,
    /// Launch arguments, in order. On Vulkan: push constants (memory, when there are many), U64 first come 8-byte aligned
    /// in this order (the builder places all words after all addresses).
    pub args: Vec<Arg>,
    /// Workgroup memory.
    pub shared: Vec<Shared>,
    /// All operations; `Value(i)` names `ops[i]`.
    pub ops: Vec<Op>,
    /// Result types, same index.
    pub types: Vec<Type>,
    /// The body.
    pub body: Block,
}

impl Kernel {
    /// The operation that defines `v`.
    pub fn op(&self, v: Value) -> &Op {
        &self.ops[v.0 as usize]
    }
    /// The type of `v`.
    pub fn ty(&self, v: Value) -> Type {
        self.types[v.0 as usize]
    }
    /// Bytes of workgroup memory.
    pub fn shared_bytes(&self) -> u32 {
        self.shared.iter().map(|s| s.ty.bytes() * s.len).sum()
    }
    /// The launch argument (index into [`Kernel::args`]) that an address is computed from, followed through additions.
    pub fn argument_of(&self, base: Value) -> Option<u32> {
        let mut open = vec![base];
        // The limit keeps this short on graphs of shared sums; an address is the sum of a few terms.
        for _ in 0..64 {
            match self.op(open.pop()?) {
                Op::Arg(n) => return Some(*n),
                Op::Binary(BinOp::Add, a, b) => open.extend([*b, *a]),
                _ => {}
            }
        }
        None
    }
    /// Does it wait for other tiles? Then all tiles of a launch must run at once.
    pub fn has_grid_barrier(&self) -> bool {
        self.ops.iter().any(|op| matches!(op, Op::GridBarrier { .. }))
    }
    /// The bits of a constant, if `v` is one.
    pub fn constant(&self, v: Value) -> Option<u64> {
        match self.op(v) {
            Op::Const(bits) => Some(*bits),
            _ => None,
        }
    }
}
