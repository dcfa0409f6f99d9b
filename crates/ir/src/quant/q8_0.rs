//! Q8_0: 32 weights, `d · q`. Block: d (half), 32 signed bytes.

use super::*;

pub(super) static FORMAT: QuantFormat = QuantFormat {
    name: "Q8_0",
    ggml_type: 8,
    block_elems: 32,
    block_bytes: 34,
    decode_block,
    planes: &[Plane { offset: 2, bytes: 32 }, Plane { offset: 0, bytes: 2 }],
    tables: &[],
    emit_unit,
    emit_pair: None,
};

fn decode_block(block: &[u8], out: &mut [f32]) {
    let d = super::half(block, 0);
    for (value, &q) in out.iter_mut().zip(&block[2..34]) {
        *value = q as i8 as f32 * d;
    }
}

fn emit_unit<'b>(u: &Unit<'b>) -> [Run<'b>; 2] {
    let scale = u.load_f16(1, 2, 0);
    [u.turn, u.turn ^ 1].map(|half| Run {
        col: half * 16,
        weights: Weights::Bytes {
            packed: u.load16(0, 32, half * 16, 0),
            signed: true,
            nibbles: None,
            scale,
            bias: None,
        },
    })
}
