//! Q4_1: 32 weights, `d · q + m`. Block: d, m (halves), 16 bytes of nibbles (low: 0..16, high: 16..32).

use super::*;

pub(super) static FORMAT: QuantFormat = QuantFormat {
    name: "Q4_1",
    ggml_type: 3,
    block_elems: 32,
    block_bytes: 20,
    decode_block,
    planes: &[Plane { offset: 4, bytes: 16 }, Plane { offset: 0, bytes: 4 }],
    tables: &[],
    emit_unit,
    emit_pair: None,
};

fn decode_block(block: &[u8], out: &mut [f32]) {
    let (d, m) = (super::half(block, 0), super::half(block, 2));
    for (i, &q) in block[4..20].iter().enumerate() {
        out[i] = (q & 15) as f32 * d + m;
        out[i + 16] = (q >> 4) as f32 * d + m;
    }
}

fn emit_unit<'b>(u: &Unit<'b>) -> [Run<'b>; 2] {
    let quants = u.load16(0, 16, u.b.u32(0), 0);
    let dm = u.load(Type::Vec(Scalar::F16, 2), 1, 4, u.b.u32(0), 0, 4).to_f32();
    [0, 1]
        .map(|run| Run { col: u.b.u32(run * 16), weights: Weights::nibbles(quants, run == 1, dm.lane(0), dm.lane(1)) })
}
