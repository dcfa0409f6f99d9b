//! IQ3_S: 256 weights in 8 sub-blocks of 32, `d · (1 + 2 · s) · ± grid`. Block: d (half); 64 low bytes of grid indices of
//! four weights each; 8 bytes of their ninth bits; 256 sign bits; eight times four bits of s.
//!
//! Magnitudes are odd, `2 · y + 1`. A byte y with all bits flipped is `-y - 1`, whose weight is `-(2 · y + 1)`: so kernels
//! decode `scale · (2 · byte + 1)` and a sign costs one exclusive or.

use super::*;

pub(super) static FORMAT: QuantFormat = QuantFormat {
    name: "IQ3_S",
    ggml_type: 21,
    block_elems: 256,
    block_bytes: 110,
    decode_block,
    planes: &[
        Plane { offset: 2, bytes: 64 },
        Plane { offset: 66, bytes: 8 },
        Plane { offset: 74, bytes: 32 },
        Plane { offset: 106, bytes: 4 },
        Plane { offset: 0, bytes: 2 },
    ],
    tables: &[&HALVES, &grids::SIGNS],
    emit_unit,
    emit_pair: None,
};

/// Entries `y`: half of the magnitudes, rounded down.
static HALVES: Table = Table {
    name: "iq3_s_halves",
    entries: 512,
    entry: |b, i| b.table(i, grids::IQ3_S.map(|e| grids::word(e, [0, 1, 2, 3, 4, 5, 6, 7])).to_vec()),
};

fn decode_block(block: &[u8], out: &mut [f32]) {
    let d = super::half(block, 0);
    for (j, values) in out.chunks_exact_mut(32).enumerate() {
        let scale = d * (1 + 2 * (block[106 + j / 2] >> (j % 2 * 4) & 15)) as f32;
        for (k, four) in values.chunks_exact_mut(4).enumerate() {
            let index = block[2 + 8 * j + k] as usize | (block[66 + j] as usize >> k & 1) << 8;
            let signs = block[74 + 4 * j + k / 2] >> (k % 2 * 4);
            for ((i, value), digit) in four.iter_mut().enumerate().zip(grids::digits(grids::IQ3_S[index])) {
                let magnitude = scale * grids::IQ3_S_LEVELS[digit] as f32;
                *value = if signs >> i & 1 == 1 { -magnitude } else { magnitude };
            }
        }
    }
}

fn emit_unit<'b>(u: &Unit<'b>) -> [Run<'b>; 2] {
    let indices = u.load(Type::Vec(Scalar::U32, 2), 0, 64, u.sub * 8, 0, 8);
    let ninth = u.load(Type::Vec(Scalar::U8, 1), 1, 8, u.sub, 0, 1).to(Scalar::U32);
    let signs = u.load(Type::U32, 2, 32, u.sub * 4, 0, 4);
    let scales = u.load(Type::U32, 3, 4, u.b.u32(0), 0, 4);
    let odd = ((scales >> (u.sub * 4)) & 15) * 2 + 1;
    let bias = u.load_f16(4, 2, 0) * odd.to_f32();
    let scale = bias * 2.0;
    [0, 1].map(|run: u32| Run {
        col: u.sub * 32 + run * 16,
        weights: Weights::Bytes {
            packed: [0, 1, 2, 3].map(|k: u32| {
                let at = run * 4 + k;
                let index = (indices.lane(run as u8) >> (8 * k)) & 0xff | (ninth << (8 - at)) & 0x100;
                u.look_up_at(&HALVES, index) ^ u.look_up(&grids::SIGNS, signs, 4 * at, 4)
            }),
            signed: true,
            nibbles: None,
            scale,
            bias: Some(bias),
        },
    })
}
