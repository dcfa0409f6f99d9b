//! The kernel that brings one plane of a weight into its device layout.
//!
//! ```text
//! blocks as in the file (staging) ──one launch per plane──► plane: the same bytes of every block, together
//! ```

use zinc_ir::kernel::{ArgKind, Builder, Kernel, Scalar, Type};
use zinc_ir::quant::Plane;

/// Copies bytes `plane.offset .. + plane.bytes` of blocks of `block_bytes`. Arguments: address of the first block,
/// address of its place in the plane, number of elements of [`granule`] bytes to copy.
pub(crate) fn repack(block_bytes: u32, plane: Plane, lanes: u32, subgroup_size: u32) -> Kernel {
    let granule = granule(block_bytes, plane);
    let ty = Type::Vec(
        match granule {
            4 => Scalar::U32,
            2 => Scalar::U16,
            _ => Scalar::U8,
        },
        1,
    );
    let b = Builder::new(format!("repack_{block_bytes}_{}_{}", plane.offset, plane.bytes), lanes, subgroup_size);
    let (from, to) = (b.arg("from", ArgKind::Read), b.arg("to", ArgKind::Write));
    let count = b.arg("count", ArgKind::Word);
    let i = b.tile(0) * lanes + b.local_id();
    b.if_(i.lt(count), || {
        let per_block = plane.bytes / granule;
        let at = (i / per_block) * block_bytes + (i % per_block) * granule;
        let value = b.load_at(ty, from, at, plane.offset, granule as u8, true);
        b.store(to, i * granule, value, granule as u8);
    });
    b.finish()
}

/// Bytes copied at a time: the largest of 4, 2, 1 to which blocks and plane are aligned.
pub(crate) fn granule(block_bytes: u32, plane: Plane) -> u32 {
    let all = block_bytes | plane.offset | plane.bytes;
    1 << all.trailing_zeros().min(2)
}
