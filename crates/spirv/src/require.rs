//! What a kernel asks of a device, and where its launch arguments go.

use std::collections::BTreeSet;
use zinc_ir::kernel::{ArgKind, Kernel, MatrixUse, Op, Scalar, Type};

/// Bytes of push constants that every Vulkan device has.
pub const PUSH_BYTES: u32 = 128;

/// Where launch arguments lie: U64 addresses first, 8-byte aligned, then U32 words. Up to [`PUSH_BYTES`] of them are
/// the push constants. More lie in memory, and the push constants are their address.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PushLayout {
    /// Byte offset of each argument, in the order of [`Kernel::args`].
    pub offsets: Vec<u32>,
    /// Total bytes, a multiple of 4.
    pub bytes: u32,
}

impl PushLayout {
    /// Do the arguments lie in memory (8-byte aligned)?
    pub fn in_memory(&self) -> bool {
        self.bytes > PUSH_BYTES
    }
    /// Bytes of push constants.
    pub fn push_bytes(&self) -> u32 {
        if self.in_memory() { 8 } else { self.bytes }
    }
}

/// The layout of the arguments of `kernel`.
pub fn push_layout(kernel: &Kernel) -> PushLayout {
    let mut layout = PushLayout { offsets: vec![0; kernel.args.len()], bytes: 0 };
    for word in [false, true] {
        for (i, arg) in kernel.args.iter().enumerate().filter(|(_, a)| (a.kind == ArgKind::Word) == word) {
            debug_assert!(arg.kind != ArgKind::Word || word);
            layout.offsets[i] = layout.bytes;
            layout.bytes += if word { 4 } else { 8 };
        }
    }
    layout
}

/// One multiply-add shape a kernel uses: `(m, n, k, type of A and B, type of C)`.
pub type MatrixShape = (u8, u8, u8, Scalar, Scalar);

/// What a device must offer to run a kernel, beyond the contract every usable device meets.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Requirements {
    /// Lanes per workgroup.
    pub workgroup_size: u32,
    /// Exact subgroup size.
    pub subgroup_size: u32,
    /// Bytes of workgroup memory.
    pub shared_bytes: u32,
    /// Bytes of push constants.
    pub push_bytes: u32,
    /// Uses 8-bit integers.
    pub int8: bool,
    /// Uses 16-bit integers.
    pub int16: bool,
    /// Uses F16.
    pub float16: bool,
    /// Loads or stores 8-bit elements in global memory.
    pub storage8: bool,
    /// Loads or stores 16-bit elements in global memory.
    pub storage16: bool,
    /// Uses the packed 4×8-bit dot product.
    pub dot: bool,
    /// Uses subgroup reductions.
    pub subgroup_arithmetic: bool,
    /// Uses subgroup shuffles.
    pub subgroup_shuffle: bool,
    /// Uses device-scope atomics.
    pub atomics: bool,
    /// Uses any subgroup operation, lane or subgroup index.
    pub subgroups: bool,
    /// Uses cooperative matrices.
    pub matrix: bool,
    /// Multiply-add shapes.
    pub shapes: BTreeSet<MatrixShape>,
}

/// What `kernel` needs.
pub fn requirements(kernel: &Kernel) -> Requirements {
    let mut r = Requirements {
        workgroup_size: kernel.workgroup_size,
        subgroup_size: kernel.subgroup_size,
        shared_bytes: kernel.shared_bytes(),
        push_bytes: push_layout(kernel).push_bytes(),
        ..Requirements::default()
    };
    for ty in kernel.types.iter().copied().chain(kernel.shared.iter().map(|s| s.ty)) {
        r.scalar(ty);
        r.matrix |= matches!(ty, Type::Matrix(_));
    }
    for (op, ty) in kernel.ops.iter().zip(&kernel.types) {
        r.op(kernel, op, *ty);
    }
    r
}

impl Requirements {
    fn scalar(&mut self, ty: Type) {
        match ty.scalar() {
            Some(Scalar::I8 | Scalar::U8) => self.int8 = true,
            Some(Scalar::U16) => self.int16 = true,
            Some(Scalar::F16) => self.float16 = true,
            _ => {}
        }
    }

    fn storage(&mut self, ty: Option<&Type>) {
        match ty.and_then(|t| t.scalar()) {
            Some(Scalar::I8 | Scalar::U8) => self.storage8 = true,
            Some(Scalar::U16 | Scalar::F16) => self.storage16 = true,
            _ => {}
        }
    }

    fn op(&mut self, kernel: &Kernel, op: &Op, ty: Type) {
        use zinc_ir::kernel::Builtin::{Lane, SubgroupId};
        match op {
            Op::Load { .. } | Op::MatrixLoad { .. } => self.storage(Some(&ty)),
            Op::Store { value, .. } | Op::MatrixStore { value, .. } => {
                self.storage(kernel.types.get(value.0 as usize));
            }
            Op::AtomicAdd { .. } | Op::GridBarrier { .. } => self.atomics = true,
            Op::Dot4 { .. } => self.dot = true,
            Op::SubgroupReduce(..) => self.subgroup_arithmetic = true,
            Op::SubgroupShuffle(..) | Op::SubgroupShuffleXor(..) => self.subgroup_shuffle = true,
            Op::Builtin(Lane | SubgroupId) | Op::SubgroupBarrier => self.subgroups = true,
            Op::MatrixMulAdd(a, _, c) => {
                let types = (kernel.types.get(a.0 as usize), kernel.types.get(c.0 as usize));
                if let (Some(Type::Matrix(a)), Some(Type::Matrix(c))) = types
                    && a.usage == MatrixUse::A
                {
                    self.shapes.insert((a.rows, c.cols, a.cols, a.scalar, c.scalar));
                }
            }
            _ => {}
        }
        self.subgroups |= self.subgroup_arithmetic || self.subgroup_shuffle || self.matrix;
    }
}
