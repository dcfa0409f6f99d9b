//! Q4_0: 32 weights, `d · (q - 8)`. Block: d (half), 16 bytes of nibbles (low: 0..16, high: 16..32).

use super::*;

pub(super) static FORMAT: QuantFormat = QuantFormat {
    name: "Q4_0",
    ggml_type: 2,
    block_elems: 32,
    block_bytes: 18,
    decode_block,
    planes: &[Plane { offset: 2, bytes: 16 }, Plane { offset: 0, bytes: 2 }],
    tables: &[],
    emit_unit,
    emit_pair: None,
};

fn decode_block(block: &[u8], out: &mut [f32]) {
    let d = super::half(block, 0);
    for (i, &q) in block[2..18].iter().enumerate() {
        out[i] = ((q & 15) as i32 - 8) as f32 * d;
        out[i + 16] = ((q >> 4) as i32 - 8) as f32 * d;
    }
}

fn emit_unit<'b>(u: &Unit<'b>) -> [Run<'b>; 2] {
    let quants = u.load16(0, 16, u.b.u32(0), 0);
    let scale = u.load_f16(1, 2, 0);
    let bias = scale * -8.0;
    [0, 1].map(|run| Run { col: u.b.u32(run * 16), weights: Weights::nibbles(quants, run == 1, scale, bias) })
}
