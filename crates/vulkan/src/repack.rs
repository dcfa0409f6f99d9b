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

#[cfg(test)]
mod tests {
    use super::*;
    use zinc_ir::kernel::interpret::{Access, Memory, Options, run};
    use zinc_ir::quant::FORMATS;

    #[test]
    fn planes_are_those_of_the_plain_repack() {
        for format in FORMATS.iter().filter(|f| !f.keeps_file_layout()) {
            let (blocks, block_bytes, lanes) = (37, format.device_block_bytes(), 64);
            let bytes: Vec<u8> = (0..blocks * block_bytes).map(|i| (i * 7 + i / 256) as u8).collect();
            let expected = format.repack(&bytes);
            let (starts, total) = format.plane_offsets(blocks as u64);
            let mut memory = Memory::new();
            let from = memory.bind("file", bytes, Access::Read);
            let to = memory.bind("planes", vec![0; total as usize], Access::ReadWrite);
            for (plane, start) in format.planes.iter().zip(starts) {
                let kernel = repack(block_bytes, *plane, lanes, 32);
                let count = blocks * plane.bytes / granule(block_bytes, *plane);
                let args = [from, to + start, count as u64];
                run(&kernel, &args, [count.div_ceil(lanes), 1, 1], &mut memory, &Options::default())
                    .unwrap_or_else(|fault| panic!("{}: {fault}", format.name));
            }
            assert!(memory.bytes(to) == Some(&expected[..]), "{}", format.name);
        }
    }
}
