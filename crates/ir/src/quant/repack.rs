//! The kernels that bring a tensor from the file's layout into planes on the device.
//!
//! ```text
//! staged piece of the file: blocks first..first+count ─one launch per plane─► plane start + first · plane bytes
//! ```

use super::QuantFormat;
use crate::kernel::{ArgKind, Builder, Kernel, Scalar, Type};

/// Lanes per workgroup of a repack kernel.
pub const LANES: u32 = 256;

/// Copies one plane of `blocks` device blocks. Arguments: `src` (first staged block, 2-byte aligned), `dst` (where the
/// plane's bytes of that block go, 2-byte aligned), `blocks`. Grid: [`grid`].
///
/// Every plane of every format is a whole number of halfwords, at an even offset of blocks of even size.
pub fn kernel(format: &QuantFormat, plane: usize, subgroup_size: u32) -> Kernel {
    let part = format.planes[plane];
    let halves = part.bytes / 2;
    let name = format!("repack_{}_{plane}", format.name.to_lowercase());
    let b = Builder::new(name, LANES.max(subgroup_size), subgroup_size);
    let (src, dst) = (b.arg("src", ArgKind::Read), b.arg("dst", ArgKind::Write));
    let blocks = b.arg("blocks", ArgKind::Word);
    let i = (b.tile(1) * ROW + b.tile(0)) * LANES + b.local_id();
    b.if_(i.lt(blocks * halves), || {
        let from = (i / halves) * format.device_block_bytes() + (i % halves) * 2 + part.offset;
        let half = b.load(Type::Vec(Scalar::U16, 1), src, from, 2);
        b.store(dst, i * 2, half, 2);
    });
    b.finish()
}

/// Workgroups along the first grid axis before the second is used.
const ROW: u32 = 32768;

/// Tiles of [`kernel`] for a number of blocks; at most 2³¹ halfwords a launch.
pub fn grid(format: &QuantFormat, plane: usize, blocks: u32) -> [u32; 3] {
    let tiles = (blocks * (format.planes[plane].bytes / 2)).div_ceil(LANES);
    [tiles.min(ROW), tiles.div_ceil(ROW), 1]
}

#[cfg(test)]
mod tests {
    use crate::kernel::interpret::{Access, Memory, Options, run};
    use crate::quant::FORMATS;

    #[test]
    fn repack_kernels_equal_the_plain_repack() {
        for format in FORMATS.iter().filter(|f| !f.keeps_file_layout()) {
            let blocks = 37usize;
            let bytes: Vec<u8> =
                (0..blocks * format.device_block_bytes() as usize).map(|i| (i * 7 + i / 256) as u8).collect();
            let expected = format.repack(&bytes);
            let (starts, total) = format.plane_offsets(blocks as u64);
            let mut memory = Memory::new();
            let src = memory.bind("file", bytes, Access::Read);
            let dst = memory.bind("planes", vec![0; total as usize], Access::ReadWrite);
            for (plane, start) in starts.iter().enumerate() {
                let kernel = super::kernel(format, plane, 32);
                let args = [src, dst + start, blocks as u64];
                run(&kernel, &args, super::grid(format, plane, blocks as u32), &mut memory, &Options::default())
                    .unwrap_or_else(|fault| panic!("{}: {fault}", format.name));
            }
            assert_eq!(memory.bytes(dst), Some(&expected[..]), "{}", format.name);
        }
    }
}
