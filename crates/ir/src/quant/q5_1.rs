//! Q5_1: 32 weights, `d · q + m`. Block: d, m (halves), fifth bits (weight i at bit i), 16 bytes of nibbles.

use super::*;

pub(super) static FORMAT: QuantFormat = QuantFormat {
    name: "Q5_1",
    ggml_type: 7,
    block_elems: 32,
    block_bytes: 24,
    decode_block,
    planes: &[Plane { offset: 8, bytes: 16 }, Plane { offset: 0, bytes: 8 }],
    tables: &[],
    emit_unit,
    emit_pair: None,
};

fn decode_block(block: &[u8], out: &mut [f32]) {
    let (d, m) = (super::half(block, 0), super::half(block, 2));
    let high = u32::from_le_bytes([block[4], block[5], block[6], block[7]]);
    for (i, &q) in block[8..24].iter().enumerate() {
        let (h0, h1) = ((high >> i & 1) << 4, (high >> (i + 16) & 1) << 4);
        out[i] = ((q & 15) as u32 | h0) as f32 * d + m;
        out[i + 16] = ((q >> 4) as u32 | h1) as f32 * d + m;
    }
}

fn emit_unit<'b>(u: &Unit<'b>) -> [Run<'b>; 2] {
    let quants = u.load16(0, 16, u.b.u32(0), 0);
    let head = u.load(Type::Vec(Scalar::U32, 2), 1, 8, u.b.u32(0), 0, 8);
    let dm = head.lane(0).bitcast(Type::Vec(Scalar::F16, 2)).to_f32();
    let high = head.lane(1);
    [0, 1].map(|run| Run {
        col: u.b.u32(run * 16),
        weights: Weights::Bytes {
            packed: [0, 1, 2, 3]
                .map(|i| (quants[i as usize] >> (run * 4)) & 0x0f0f_0f0f | fifth_bits(high >> (run * 16 + i * 4))),
            signed: false,
            nibbles: None,
            scale: dm.lane(0),
            bias: Some(dm.lane(1)),
        },
    })
}
