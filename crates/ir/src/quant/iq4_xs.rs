//! IQ4_XS: 256 weights in 8 sub-blocks of 32, `d · (s - 32) · level[q]`. Block: d (half), the two high bits of the
//! eight scales s (16 bits), their low nibbles (4 bytes), 128 bytes of nibbles (of each 16: low 0..16, high 16..32).

use super::*;

pub(super) static FORMAT: QuantFormat = QuantFormat {
    name: "IQ4_XS",
    ggml_type: 23,
    block_elems: 256,
    block_bytes: 136,
    decode_block,
    planes: &[Plane { offset: 8, bytes: 128 }, Plane { offset: 0, bytes: 8 }],
    tables: &[&levels::IQ4_TABLE],
    emit_unit,
    emit_pair: None,
};

fn decode_block(block: &[u8], out: &mut [f32]) {
    let d = super::half(block, 0);
    let high = u16::from_le_bytes([block[2], block[3]]);
    for (j, values) in out.chunks_exact_mut(32).enumerate() {
        let low = block[4 + j / 2] >> (j % 2 * 4) & 15;
        let scale = d * ((low as i32 | ((high >> (2 * j) & 3) as i32) << 4) - 32) as f32;
        for (i, &q) in block[8 + 16 * j..][..16].iter().enumerate() {
            values[i] = scale * levels::IQ4[q as usize & 15] as f32;
            values[i + 16] = scale * levels::IQ4[q as usize >> 4] as f32;
        }
    }
}

fn emit_unit<'b>(u: &Unit<'b>) -> [Run<'b>; 2] {
    let quants = u.load16(0, 128, u.sub * 16, 0);
    let head = u.load(Type::Vec(Scalar::U32, 2), 1, 8, u.b.u32(0), 0, 8);
    let d = head.lane(0).bitcast(Type::Vec(Scalar::F16, 2)).lane(0).to_f32();
    let low = (head.lane(1) >> (u.sub * 4)) & 15;
    let high = (head.lane(0) >> (u.sub * 2 + 16)) & 3;
    let scale = d * ((low | high << 4).to_f32() - 32.0);
    let [low, high] = levels::emit(u, &levels::IQ4_TABLE, quants);
    let run = |col, packed| Run {
        col: u.sub * 32 + col,
        weights: Weights::Bytes { packed, signed: true, nibbles: None, scale, bias: None },
    };
    [run(0, low), run(16, high)]
}
