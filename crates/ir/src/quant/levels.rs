//! Formats whose nibbles name one of sixteen levels: IQ4_NL, IQ4_XS, MXFP4.
//!
//! ```text
//! byte of two nibbles ─look up in 256 entries─► level of the low nibble | level of the high nibble << 16
//! four bytes: e0 | e1 << 8, e2 | e3 << 8 ─► four levels of the low nibbles, four of the high ones
//! ```
//!
//! A look-up of a whole byte gives two weights; the free bytes in between make putting four of them together cheap.

use super::{Table, Unit};
use crate::kernel::{Builder, Val};

/// Levels of IQ4_NL and IQ4_XS.
pub const IQ4: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];
/// Levels of MXFP4, a four-bit float: twice its values.
pub const E2M1: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

pub(super) static IQ4_TABLE: Table = Table { name: "iq4_levels", entries: 256, entry: |b, i| entry(b, i, IQ4) };
pub(super) static E2M1_TABLE: Table = Table { name: "e2m1_levels", entries: 256, entry: |b, i| entry(b, i, E2M1) };

/// Levels of both nibbles of byte `i`, in bytes 0 and 2.
fn entry<'b>(b: &'b Builder, i: Val<'b>, levels: [i8; 16]) -> Val<'b> {
    let word = |at: usize| b.u32(u32::from_le_bytes([0, 1, 2, 3].map(|k| levels[at * 4 + k] as u8)));
    let level = |nibble: Val<'b>| {
        let (odd, upper) = ((nibble & 4).ne(0), (nibble & 8).ne(0));
        let four = upper.select(odd.select(word(3), word(2)), odd.select(word(1), word(0)));
        (four >> ((nibble & 3) << 3)) & 0xff
    };
    level(i & 15) | level(i >> 4) << 16
}

/// Sixteen signed levels of the low nibbles, sixteen of the high ones.
pub(super) fn emit<'b>(u: &Unit<'b>, table: &Table, quants: [Val<'b>; 4]) -> [[Val<'b>; 4]; 2] {
    let words = quants.map(|word| {
        let e = [0, 8, 16, 24].map(|shift| u.look_up(table, word, shift, 8));
        let (front, back) = (e[0] | e[1] << 8, e[2] | e[3] << 8);
        [front & 0xffff | back << 16, front >> 16 | back & 0xffff_0000]
    });
    [0, 1].map(|run: usize| words.map(|w| w[run]))
}
