//! Q5_K: as Q4_K with a fifth bit: after the scales come 32 bytes whose byte l holds the fifth bits of weight l of the
//! eight sub-blocks (bit j for sub-block j), then the 128 bytes of nibbles.

use super::*;

pub(super) static FORMAT: QuantFormat = QuantFormat {
    name: "Q5_K",
    ggml_type: 13,
    block_elems: 256,
    block_bytes: 176,
    decode_block,
    planes: &[Plane { offset: 0, bytes: 176 }],
    tables: &[],
    emit_unit,
    emit_pair: Some(emit_pair),
};

fn decode_block(block: &[u8], out: &mut [f32]) {
    let (d, dmin) = (super::half(block, 0), super::half(block, 2));
    let high = &block[16..48];
    for (j, values) in out.chunks_exact_mut(32).enumerate() {
        let (s, m) = q4_k::scale_min(&block[4..16], j);
        let (scale, min) = (d * s, dmin * m);
        let quants = &block[48 + j / 2 * 32..];
        for ((value, q), h) in values.iter_mut().zip(quants).zip(high) {
            let level = q >> (j % 2 * 4) & 15 | (h >> j & 1) << 4;
            *value = scale * level as f32 - min;
        }
    }
}

fn emit_unit<'b>(u: &Unit<'b>) -> [Run<'b>; 2] {
    let head = u.load16(0, 176, u.b.u32(0), 0);
    let high = u.load16(0, 176, (u.sub & 1) * 16, 16);
    let quants = u.load16(0, 176, u.sub * 16, 48);
    let scales = q4_k::emit_scales(&head, u.sub >> 1);
    let pair = u.sub >> 1;
    let first = pair * 64 + (u.sub & 1) * 16;
    [0, 1].map(|run| Run {
        col: first + run * 32,
        weights: Weights::Bytes {
            packed: [0, 1, 2, 3]
                .map(|i| (quants[i] >> (run * 4)) & 0x0f0f_0f0f | ((high[i] >> (pair * 2 + run)) & 0x0101_0101) << 4),
            signed: false,
            nibbles: None,
            scale: scales[run as usize].0,
            bias: Some(scales[run as usize].1),
        },
    })
}

/// Sub-blocks 2p and 2p + 1: all that a pair of scales is good for.
fn emit_pair<'b>(u: &Unit<'b>) -> [Run<'b>; 4] {
    let head = u.load16(0, 176, u.b.u32(0), 0);
    let half = [u.turn, u.turn ^ 1];
    let high = half.map(|h| u.load16(0, 176, h * 16, 16));
    let quants = half.map(|h| u.load16(0, 176, u.sub * 32 + h * 16, 48));
    let scales = q4_k::emit_scales(&head, u.sub);
    [(0usize, 0), (1, 0), (0, 1), (1, 1)].map(|(k, odd)| {
        let bits = high[k].map(|h| ((h >> (u.sub * 2 + odd)) & 0x0101_0101) << 4);
        let packed = [0, 1, 2, 3].map(|i| (quants[k][i] >> (odd * 4)) & 0x0f0f_0f0f | bits[i]);
        let (scale, bias) = scales[odd as usize];
        Run {
            col: u.sub * 64 + half[k] * 16 + odd * 32,
            weights: Weights::Bytes { packed, signed: false, nibbles: None, scale, bias: Some(bias) },
        }
    })
}
