//! Device profiles: abilities of devices that need not be here, for `zinc explain`.
//!
//! Only what the compiler asks for; see [`Caps`]. Names are for people, the compiler never sees them.

use zinc_ir::device::{Caps, MatrixShape};
use zinc_ir::kernel::Scalar;

/// A device that can be compiled for.
pub(crate) struct Profile {
    /// Name for `--device-profile`.
    pub(crate) name: &'static str,
    /// What it stands for.
    pub(crate) about: &'static str,
    /// Abilities.
    pub(crate) caps: fn() -> Caps,
}

/// All profiles.
pub(crate) static PROFILES: &[Profile] = &[
    Profile { name: "cpu", about: "runs the graph's regions natively, no kernels", caps: Caps::native },
    Profile { name: "plain", about: "any Vulkan 1.3 GPU: subgroups of 32, no matrices", caps: plain },
    Profile { name: "lavapipe", about: "Mesa's software driver: subgroups of 8, matrices of 8x8x8", caps: lavapipe },
    Profile { name: "rdna2", about: "Radeon RX 6000: subgroups of 64, no matrices", caps: rdna2 },
    Profile { name: "rdna3", about: "Radeon RX 7000: subgroups of 64, of 32 for matrices of 16x16x16", caps: rdna3 },
    Profile { name: "hopper", about: "NVIDIA H200: subgroups of 32, matrices of 16x16x16", caps: hopper },
];

/// The profile of this name.
pub(crate) fn find(name: &str) -> Option<&'static Profile> {
    PROFILES.iter().find(|p| p.name == name)
}

fn plain() -> Caps {
    Caps {
        native: false,
        subgroup_size: 32,
        matrix_lanes: 32,
        max_workgroup: 1024,
        max_shared_bytes: 32 << 10,
        max_grid: [65535; 3],
        matrices: vec![],
        quads: false,
        parallel_tiles: 256,
    }
}

/// Square matrices of `n`, halves in and floats or halves out.
fn squares(n: u8) -> Vec<MatrixShape> {
    let of = |acc| MatrixShape { m: n, n, k: n, input: Scalar::F16, acc };
    vec![of(Scalar::F32), of(Scalar::F16)]
}

fn lavapipe() -> Caps {
    Caps { subgroup_size: 8, matrix_lanes: 8, matrices: squares(8), parallel_tiles: 16, ..plain() }
}

fn rdna2() -> Caps {
    Caps { subgroup_size: 64, max_shared_bytes: 64 << 10, ..plain() }
}

fn rdna3() -> Caps {
    Caps { matrices: squares(16), ..rdna2() }
}

fn hopper() -> Caps {
    let (max_shared_bytes, max_grid) = (48 << 10, [i32::MAX as u32, 65535, 65535]);
    Caps { matrices: squares(16), quads: true, max_shared_bytes, max_grid, parallel_tiles: 132 * 8, ..plain() }
}
