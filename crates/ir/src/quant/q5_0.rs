//! Q5_0: 32 weights, `d · (q - 16)`. Block: d (half), fifth bits (32 bits, weight i at bit i), 16 bytes of nibbles.

use super::*;

pub(super) static FORMAT: QuantFormat = QuantFormat {
    name: "Q5_0",
    ggml_type: 6,
    block_elems: 32,
    block_bytes: 22,
    decode_block,
    planes: &[Plane { offset: 6, bytes: 16 }, Plane { offset: 2, bytes: 4 }, Plane { offset: 0, bytes: 2 }],
    tables: &[],
    emit_unit,
    emit_pair: None,
};

fn decode_block(block: &[u8], out: &mut [f32]) {
    let d = super::half(block, 0);
    let high = u32::from_le_bytes([block[2], block[3], block[4], block[5]]);
    for (i, &q) in block[6..22].iter().enumerate() {
        let (h0, h1) = ((high >> i & 1) << 4, (high >> (i + 16) & 1) << 4);
        out[i] = (((q & 15) as u32 | h0) as i32 - 16) as f32 * d;
        out[i + 16] = (((q >> 4) as u32 | h1) as i32 - 16) as f32 * d;
    }
}

fn emit_unit<'b>(u: &Unit<'b>) -> [Run<'b>; 2] {
    let quants = u.load16(0, 16, u.b.u32(0), 0);
    let high = u.load(Type::U32, 1, 4, u.b.u32(0), 0, 4);
    let scale = u.load_f16(2, 2, 0);
    let bias = scale * -16.0;
    [0, 1].map(|run| Run {
        col: u.b.u32(run * 16),
        weights: Weights::Bytes {
            packed: [0, 1, 2, 3]
                .map(|i| (quants[i as usize] >> (run * 4)) & 0x0f0f_0f0f | fifth_bits(high >> (run * 16 + i * 4))),
            signed: false,
            nibbles: None,
            scale,
            bias: Some(bias),
        },
    })
}
