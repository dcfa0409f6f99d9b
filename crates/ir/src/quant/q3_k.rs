//! Q3_K: 256 weights in 16 sub-blocks of 16, `d · (s - 32) · (q - 4)`. Block: 32 bytes whose byte l holds the high bits
//! of the weights l, l + 32, … from bit 0 up; 64 bytes with the two low bits; twelve bytes with the 6-bit scales s (low
//! nibbles of scales i and i + 8 in byte i, then two high bits of scales i, i + 4, … in byte i); d (half). Each half of
//! 128 weights: low-bit byte l (0..32) holds weights l, l + 32, l + 64, l + 96 from bit 0 up.

use super::*;

pub(super) static FORMAT: QuantFormat = QuantFormat {
    name: "Q3_K",
    ggml_type: 11,
    block_elems: 256,
    block_bytes: 110,
    decode_block,
    planes: &[
        Plane { offset: 32, bytes: 64 },
        Plane { offset: 0, bytes: 32 },
        Plane { offset: 96, bytes: 12 },
        Plane { offset: 108, bytes: 2 },
    ],
    tables: &[],
    emit_unit,
    emit_pair: None,
};

fn decode_block(block: &[u8], out: &mut [f32]) {
    let d = super::half(block, 108);
    let scales = &block[96..108];
    for (i, values) in out.chunks_exact_mut(16).enumerate() {
        let six = scales[i % 8] >> (i / 8 * 4) & 15 | (scales[8 + i % 4] >> (i / 4 * 2) & 3) << 4;
        let scale = d * (six as i32 - 32) as f32;
        for (k, value) in values.iter_mut().enumerate() {
            let (half, at) = (i / 8, i % 8 * 16 + k);
            let low = block[32 + half * 32 + at % 32] >> (at / 32 * 2) & 3;
            let high = block[at % 32] >> (i / 2) & 1;
            *value = scale * ((low | high << 2) as i32 - 4) as f32;
        }
    }
}

/// Unit `4·half + 2·pair + part`: of the bytes `16·part..` of a half, the fields `2·pair` and `2·pair + 1`. (Two units that
/// share their loads were slower: lanes side by side read bytes side by side.)
fn emit_unit<'b>(u: &Unit<'b>) -> [Run<'b>; 2] {
    let (half, pair, part) = (u.sub >> 2, (u.sub >> 1) & 1, u.sub & 1);
    let low = u.load16(0, 64, half * 32 + part * 16, 0).map(|w| w >> (pair * 4));
    // Bits 0 and 1: the high bits of the two runs.
    let high = u.load16(1, 32, part * 16, 0).map(|w| w >> (half * 4 + pair * 2));
    let d = u.load_f16(3, 2, 0);
    // The scales of the runs are 8·half + 4·pair + part, and the next but one.
    let nibbles = u.load(Type::U32, 2, 12, pair * 4, 0, 4) >> (part * 8 + half * 4);
    let tops = u.load(Type::U32, 2, 12, u.b.u32(0), 8, 4) >> (part * 8 + half * 4 + pair * 2);
    let first = half * 128 + pair * 64 + part * 16;
    [0, 1].map(|run| {
        let six = (nibbles >> (run * 16)) & 15 | ((tops >> (run * 16)) & 3) << 4;
        let scale = d * (six.to_f32() - 32.0);
        Run {
            col: first + run * 32,
            weights: Weights::Bytes {
                packed: [0, 1, 2, 3].map(|i| {
                    let high = if run == 0 { high[i] << 2 } else { high[i] << 1 };
                    (low[i] >> (run * 2)) & 0x0303_0303 | high & 0x0404_0404
                }),
                signed: false,
                nibbles: None,
                scale,
                bias: Some(scale * -4.0),
            },
        }
    })
}
