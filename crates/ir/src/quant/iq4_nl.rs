//! IQ4_NL: 32 weights, `d · level[q]`. Block: d (half), 16 bytes of nibbles (low: 0..16, high: 16..32).

use super::*;

pub(super) static FORMAT: QuantFormat = QuantFormat {
    name: "IQ4_NL",
    ggml_type: 20,
    block_elems: 32,
    block_bytes: 18,
    decode_block,
    planes: &[Plane { offset: 2, bytes: 16 }, Plane { offset: 0, bytes: 2 }],
    tables: &[&levels::IQ4_TABLE],
    emit_unit,
    emit_pair: None,
};

fn decode_block(block: &[u8], out: &mut [f32]) {
    let d = super::half(block, 0);
    for (i, &q) in block[2..18].iter().enumerate() {
        out[i] = d * levels::IQ4[q as usize & 15] as f32;
        out[i + 16] = d * levels::IQ4[q as usize >> 4] as f32;
    }
}

fn emit_unit<'b>(u: &Unit<'b>) -> [Run<'b>; 2] {
    let quants = u.load16(0, 16, u.b.u32(0), 0);
    let scale = u.load_f16(1, 2, 0);
    let [low, high] = levels::emit(u, &levels::IQ4_TABLE, quants);
    let run = |col, packed| Run {
        col: u.b.u32(col),
        weights: Weights::Bytes { packed, signed: true, nibbles: None, scale, bias: None },
    };
    [run(0, low), run(16, high)]
}
