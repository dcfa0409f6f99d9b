//! Q6_K: 256 weights in 16 sub-blocks of 16, `d · s · (q - 32)`. Block: 128 bytes of low nibbles, 64 bytes with two
//! high bits each, 16 signed scales, d (half). Each half of 128 weights: nibble byte l (0..64) holds weights l and
//! l + 64; high byte l (0..32) holds the high bits of weights l, l + 32, l + 64, l + 96 from bit 0 up.

use super::*;

pub(super) static FORMAT: QuantFormat = QuantFormat {
    name: "Q6_K",
    ggml_type: 14,
    block_elems: 256,
    block_bytes: 210,
    decode_block,
    planes: &[
        Plane { offset: 0, bytes: 128 },
        Plane { offset: 128, bytes: 64 },
        Plane { offset: 192, bytes: 16 },
        Plane { offset: 208, bytes: 2 },
    ],
    tables: &[],
    emit_unit,
    emit_pair: None,
};

fn decode_block(block: &[u8], out: &mut [f32]) {
    let d = super::half(block, 208);
    for (i, value) in out.iter_mut().enumerate() {
        let (half, at) = (i / 128, i % 128);
        let low = block[half * 64 + at % 64] >> (at / 64 * 4) & 15;
        let high = block[128 + half * 32 + at % 32] >> (at / 32 * 2) & 3;
        let scale = block[192 + i / 16] as i8 as f32;
        *value = d * scale * ((low | high << 4) as i32 - 32) as f32;
    }
}

fn emit_unit<'b>(u: &Unit<'b>) -> [Run<'b>; 2] {
    let (half, quarter) = (u.sub >> 2, u.sub & 3);
    let low = u.load16(0, 128, u.sub * 16, 0);
    let high = u.load16(1, 64, half * 32 + (quarter & 1) * 16, 0);
    let d = u.load_f16(3, 2, 0);
    // Of each byte of high bits, bits 0 and 1 are the first run's, 4 and 5 the second's.
    let shift = quarter & 2;
    let high = high.map(|word| word >> shift);
    [0, 1].map(|run| {
        let sub_scale = u.load(Type::Vec(Scalar::I8, 1), 2, 16, half * 8 + quarter, run * 4, 1).to_f32();
        let scale = d * sub_scale;
        Run {
            col: half * 128 + quarter * 16 + run * 64,
            weights: Weights::Bytes {
                packed: [0, 1, 2, 3].map(|i| match run {
                    0 => low[i] & 0x0f0f_0f0f | (high[i] << 4) & 0x3030_3030,
                    _ => (low[i] >> 4) & 0x0f0f_0f0f | high[i] & 0x3030_3030,
                }),
                signed: false,
                nibbles: None,
                scale,
                bias: Some(scale * -32.0),
            },
        }
    })
}
