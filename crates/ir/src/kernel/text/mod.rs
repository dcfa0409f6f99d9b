//! Kernels as text: what `explain` prints, filetests compare and fingerprints are taken of.
//!
//! ```text
//! Kernel ──Display──► text ──parse──► Kernel (prints the same)
//! ```
//!
//! Values are numbered by appearance, so the text does not depend on handles or on unused constants. Constants,
//! arguments and builtins appear where they are used:
//!
//! ```text
//! kernel scale workgroup 64 subgroup 32
//! arg x read
//! arg y write
//! {
//!   %0: u32 = shl tile.0, 6
//!   %1: u32 = add %0, local_id
//!   %2: u32 = shl %1, 2
//!   %3: f32 = load [$x + %2] align 4 readonly
//!   %4: f32 = mul %3, 2.0
//!   store [$y + %2] align 4, %4
//! }
//! ```
//!
//! Literals: `7` is u32, `2.0` and `1e-5` are f32, `true` is bool, the rest is marked (`-3_i32`, `9_u64`,
//! `0x3c00_f16`, `0x7fc00000_f32`). `#` starts a comment.

mod lexer;
mod names;
mod parse;
mod print;

pub use parse::{ParseError, parse};

use super::inst::{Kernel, Value};
use std::fmt;

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&print::Printer::print(self).text)
    }
}

impl Kernel {
    /// Identity of the kernel: equal for kernels that differ only in name, value numbering and unused constants.
    /// Stable over runs, machines and compilers (FNV-1a, 128 bits, over the text without the name).
    pub fn fingerprint(&self) -> u128 {
        let printed = print::Printer::print(self);
        fnv128(&printed.text.as_bytes()[printed.name_end..])
    }
}

fn fnv128(bytes: &[u8]) -> u128 {
    const OFFSET: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    bytes.iter().fold(OFFSET, |h, b| (h ^ *b as u128).wrapping_mul(PRIME))
}

/// The line of the kernel's text that `v` is on; empty when it is on none.
pub(super) fn line_of(kernel: &Kernel, v: Value) -> String {
    let printed = print::Printer::print(kernel);
    let start = printed.starts.iter().find(|(op, _)| *op == v).map(|(_, start)| *start);
    let line = start.and_then(|s| printed.text[s..].lines().next());
    line.unwrap_or_default().trim().to_string()
}
