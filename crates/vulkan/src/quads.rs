//! Which lane holds which element of a matrix A is a driver's own affair, but can be looked at.
//!
//! ```text
//! shared memory: element number (0 to 255) of each element ─load─► A ─what each lane holds─► compared with quad_place
//! ```

use crate::direct::KernelArg;
use crate::error::VulkanError;
use crate::report::DeviceReport;
use crate::vulkan_device::VulkanDevice;
use zinc_ir::device::Caps;
use zinc_ir::kernel::{ArgKind, Builder, Kernel, MatrixMemory, MatrixType, MatrixUse, Scalar, Type, Val, quad_place};

/// Lanes that matrices in quads are for.
const LANES: u32 = 32;
const A: MatrixType = MatrixType { scalar: Scalar::F16, rows: 16, cols: 16, usage: MatrixUse::A };
/// Elements of a lane.
const EACH: u32 = 8;

/// How lanes hold 16×16 matrices A of halves.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Quads {
    /// There are none, or none for subgroups of 32 lanes.
    Absent,
    /// In quads, so that kernels may write straight into them.
    Held,
    /// In another way: kernels fill them from workgroup memory.
    Otherwise,
    /// They could not be looked at, for this reason: used as if held in another way, which is right, but slower for batches.
    Unknown(String),
}

impl DeviceReport {
    /// Does opening the device tell more of [`Quads`] than that there are none?
    pub fn may_have_quads(&self) -> bool {
        worth_a_look(&self.caps(self.subgroup_size))
    }
}

/// Are there 16×16 matrices A of halves, for subgroups that could hold them in quads?
fn worth_a_look(caps: &Caps) -> bool {
    let square = |s: &zinc_ir::device::MatrixShape| s.input == A.scalar && (s.m, s.k) == (A.rows, A.cols);
    caps.subgroup_size == LANES && caps.matrices.iter().any(square)
}

/// Looks how `device` holds matrices A. An error only if it is lost: what cannot be looked at can be done without.
pub(crate) fn look(device: &mut VulkanDevice, caps: &Caps) -> Result<Quads, VulkanError> {
    if !worth_a_look(caps) {
        return Ok(Quads::Absent);
    }
    match in_quads(device) {
        Ok(true) => Ok(Quads::Held),
        Ok(false) => Ok(Quads::Otherwise),
        Err(error @ VulkanError::Lost { .. }) => Err(error),
        Err(error) => {
            tracing::warn!(
                %error,
                "how this device holds matrices could not be looked at; results stay right, but batches of up to 128 rows \
                 are slower than they could be"
            );
            Ok(Quads::Unknown(error.to_string()))
        }
    }
}

fn in_quads(device: &mut VulkanDevice) -> Result<bool, VulkanError> {
    let mut memory = [vec![0u8; (LANES * EACH * 4) as usize]];
    device.run_kernel(&kernel(), [1; 3], &[KernelArg::Memory { index: 0, offset: 0 }], &mut memory)?;
    let held = memory[0].chunks_exact(4).map(|w| u32::from_le_bytes([w[0], w[1], w[2], w[3]]));
    Ok(held.eq(expected()))
}

/// Numbers of the elements that lane 0 holds in quads, then lane 1, …
fn expected() -> impl Iterator<Item = u32> {
    (0..LANES * EACH).map(|i| quad_place(i / EACH, i % EACH)).map(|(row, col)| row * A.cols as u32 + col)
}

/// Stores the numbers of the elements that each lane holds. Argument: result.
fn kernel() -> Kernel {
    let b = Builder::new("look_at_matrix", LANES, LANES);
    let result = b.arg("result", ArgKind::Write);
    let tile = b.shared("tile", Type::U32X4, A.elements() / EACH);
    let number = |i: u32| (b.local_id() * EACH + i).to_f32().to(Scalar::F16);
    let four = |first: u32| b.compose(&[0, 1, 2, 3].map(|i| number(first + i))).bitcast(Type::Vec(Scalar::U32, 2));
    let words: Vec<Val<'_>> = [four(0), four(4)].iter().flat_map(|w| [w.lane(0), w.lane(1)]).collect();
    b.shared_store(tile, b.local_id(), b.compose(&words));
    b.barrier();
    let memory = MatrixMemory::Shared { array: tile, index: b.u32(0).value() };
    let a = b.matrix_load(A, memory, b.u32(A.cols as u32 / EACH), false);
    for (i, element) in (0..).zip(b.matrix_elements(a)) {
        b.store(result, (b.local_id() * EACH + i) * 4, element.to_f32().to(Scalar::U32), 4);
    }
    b.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use zinc_ir::kernel::interpret::{Access, Memory, Options, run};

    /// The interpreter holds them in quads: the kernel finds that out.
    #[test]
    fn the_kernel_reports_what_lanes_hold() {
        let kernel = kernel();
        zinc_ir::kernel::verify(&kernel).expect("sound");
        let mut memory = Memory::new();
        let result = memory.bind("result", vec![0; (LANES * EACH * 4) as usize], Access::ReadWrite);
        run(&kernel, &[result], [1; 3], &mut memory, &Options::default()).expect("runs");
        let words = memory.bytes(result).expect("bound").chunks_exact(4);
        assert!(words.map(|w| u32::from_le_bytes(w.try_into().expect("four"))).eq(expected()));
    }
}
