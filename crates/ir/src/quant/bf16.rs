//! BF16: the upper half of 32-bit floats.

use super::*;

pub(super) static FORMAT: QuantFormat = QuantFormat {
    name: "BF16",
    ggml_type: 30,
    block_elems: 1,
    block_bytes: 2,
    decode_block,
    planes: &[Plane { offset: 0, bytes: 64 }],
    tables: &[],
    emit_unit,
    emit_pair: None,
};

fn decode_block(block: &[u8], out: &mut [f32]) {
    out[0] = f32::from_bits((u16::from_le_bytes([block[0], block[1]]) as u32) << 16);
}

fn emit_unit<'b>(u: &Unit<'b>) -> [Run<'b>; 2] {
    [0, 16].map(|col| {
        let words = [0, 16].map(|at| u.load16(0, 64, u.b.u32(0), col * 2 + at));
        let quad = |w: &[Val<'b>; 4], i: usize| {
            let pair = |v: Val<'b>| [(v << 16).bitcast(Type::F32), (v & 0xffff_0000).bitcast(Type::F32)];
            let ([a, b], [c, d]) = (pair(w[i]), pair(w[i + 1]));
            u.b.compose(&[a, b, c, d])
        };
        let [a, b] = &words;
        Run { col: u.b.u32(col), weights: Weights::Floats([quad(a, 0), quad(a, 2), quad(b, 0), quad(b, 2)]) }
    })
}
