//! MXFP4: 32 four-bit floats (sign, 2 bits exponent, 1 bit mantissa) times a power of two. Block: exponent byte e,
//! 16 bytes of nibbles (low: 0..16, high: 16..32). With levels of twice the float: `2^(e - 128) · level[q]`.

use super::*;

pub(super) static FORMAT: QuantFormat = QuantFormat {
    name: "MXFP4",
    ggml_type: 39,
    block_elems: 32,
    block_bytes: 17,
    decode_block,
    planes: &[Plane { offset: 1, bytes: 16 }, Plane { offset: 0, bytes: 1 }],
    tables: &[&levels::E2M1_TABLE],
    emit_unit,
    emit_pair: None,
};

/// 2^(e - 128); the two smallest are denormal.
const fn scale(e: u8) -> f32 {
    f32::from_bits(if e < 2 { 0x0020_0000 << e } else { (e as u32 - 1) << 23 })
}

fn decode_block(block: &[u8], out: &mut [f32]) {
    let d = scale(block[0]);
    for (i, &q) in block[1..17].iter().enumerate() {
        out[i] = levels::E2M1[q as usize & 15] as f32 * d;
        out[i + 16] = levels::E2M1[q as usize >> 4] as f32 * d;
    }
}

fn emit_unit<'b>(u: &Unit<'b>) -> [Run<'b>; 2] {
    let quants = u.load16(0, 16, u.b.u32(0), 0);
    let e = u.load(Type::Vec(Scalar::U8, 1), 1, 1, u.b.u32(0), 0, 1).to(Scalar::U32);
    let bits = e.lt(2).select(u.b.u32(0x0020_0000) << e.min(u.b.u32(1)), (e << 23) - 0x0080_0000);
    let scale = bits.bitcast(Type::F32);
    let [low, high] = levels::emit(u, &levels::E2M1_TABLE, quants);
    let run = |col, packed| Run {
        col: u.b.u32(col),
        weights: Weights::Bytes { packed, signed: true, nibbles: None, scale, bias: None },
    };
    [run(0, low), run(16, high)]
}
