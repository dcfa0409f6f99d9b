//! Q4_K: 256 weights in 8 sub-blocks of 32, `d · s · q - dmin · m`. Block: d, dmin (halves), twelve bytes with eight
//! 6-bit scales s and eight 6-bit minima m, 128 bytes of nibbles (bytes 32j..32j+32: low for sub-block 2j, high for
//! 2j + 1).

use super::*;

pub(super) static FORMAT: QuantFormat = QuantFormat {
    name: "Q4_K",
    ggml_type: 12,
    block_elems: 256,
    block_bytes: 144,
    decode_block,
    planes: &[Plane { offset: 0, bytes: 144 }],
    tables: &[],
    emit_unit,
    emit_pair: Some(emit_pair),
};

/// Scale and minimum of sub-block `j` out of the twelve packed bytes (shared with Q5_K).
pub(super) fn scale_min(packed: &[u8], j: usize) -> (f32, f32) {
    let (s, m) = if j < 4 {
        (packed[j] & 63, packed[j + 4] & 63)
    } else {
        (packed[j + 4] & 15 | packed[j - 4] >> 6 << 4, packed[j + 4] >> 4 | packed[j] >> 6 << 4)
    };
    (s as f32, m as f32)
}

fn decode_block(block: &[u8], out: &mut [f32]) {
    let (d, dmin) = (super::half(block, 0), super::half(block, 2));
    for (j, values) in out.chunks_exact_mut(32).enumerate() {
        let (s, m) = scale_min(&block[4..16], j);
        let (scale, min) = (d * s, dmin * m);
        let quants = &block[16 + j / 2 * 32..];
        for (value, q) in values.iter_mut().zip(quants) {
            *value = scale * (q >> (j % 2 * 4) & 15) as f32 - min;
        }
    }
}

/// Scales and biases of the sub-blocks 2p and 2p + 1, p = `pair`, from the block's first 16 bytes.
pub(super) fn emit_scales<'b>(head: &[Val<'b>; 4], pair: Val<'b>) -> [(Val<'b>, Val<'b>); 2] {
    let dm = head[0].bitcast(Type::Vec(Scalar::F16, 2)).to_f32();
    let [_, s0, s1, s2] = *head;
    let low = pair.lt(2);
    let scales = low.select(s0 & 0x3f3f_3f3f, s2 & 0x0f0f_0f0f | (s0 >> 2) & 0x3030_3030);
    let mins = low.select(s1 & 0x3f3f_3f3f, (s2 >> 4) & 0x0f0f_0f0f | (s1 >> 2) & 0x3030_3030);
    let shift = (pair & 1) << 4;
    [0, 8].map(|odd| {
        let byte = |v: Val<'b>| ((v >> (shift + odd)) & 0xff).to_f32();
        (dm.lane(0) * byte(scales), -(dm.lane(1) * byte(mins)))
    })
}

fn emit_unit<'b>(u: &Unit<'b>) -> [Run<'b>; 2] {
    let head = u.load16(0, 144, u.b.u32(0), 0);
    let quants = u.load16(0, 144, u.sub * 16, 16);
    let scales = emit_scales(&head, u.sub >> 1);
    let first = (u.sub >> 1) * 64 + (u.sub & 1) * 16;
    [0, 1].map(|run| {
        let (scale, bias) = scales[run as usize];
        Run { col: first + run * 32, weights: Weights::nibbles(quants, run == 1, scale, bias) }
    })
}

/// Sub-blocks 2p and 2p + 1: all that a pair of scales is good for.
fn emit_pair<'b>(u: &Unit<'b>) -> [Run<'b>; 4] {
    let head = u.load16(0, 144, u.b.u32(0), 0);
    let half = [u.turn, u.turn ^ 1];
    let quants = half.map(|h| u.load16(0, 144, u.sub * 32 + h * 16, 16));
    let scales = emit_scales(&head, u.sub);
    [(0usize, 0), (1, 0), (0, 1), (1, 1)].map(|(i, odd)| {
        let (scale, bias) = scales[odd as usize];
        Run { col: u.sub * 64 + half[i] * 16 + odd * 32, weights: Weights::nibbles(quants[i], odd == 1, scale, bias) }
    })
}
