//! F32: plain 32-bit floats.

use super::*;

pub(super) static FORMAT: QuantFormat = QuantFormat {
    name: "F32",
    ggml_type: 0,
    block_elems: 1,
    block_bytes: 4,
    decode_block,
    planes: &[Plane { offset: 0, bytes: 128 }],
    tables: &[],
    emit_unit,
    emit_pair: None,
};

fn decode_block(block: &[u8], out: &mut [f32]) {
    out[0] = f32::from_le_bytes([block[0], block[1], block[2], block[3]]);
}

fn emit_unit<'b>(u: &Unit<'b>) -> [Run<'b>; 2] {
    [0, 16].map(|col| Run {
        col: u.b.u32(col),
        weights: Weights::Floats([0, 16, 32, 48].map(|at| u.load(Type::F32X4, 0, 128, u.b.u32(0), col * 4 + at, 16))),
    })
}
