//! IQ3_XXS: 256 weights in 8 sub-blocks of 32, `d · (s + 1/2) / 2 · ± grid`. Block: d (half); 64 grid indices of four
//! weights each; per sub-block a word with four times seven signs (the eighth makes their number even) and, on top, the
//! four bits of s.

use super::*;

pub(super) static FORMAT: QuantFormat = QuantFormat {
    name: "IQ3_XXS",
    ggml_type: 18,
    block_elems: 256,
    block_bytes: 98,
    decode_block,
    planes: &[Plane { offset: 2, bytes: 64 }, Plane { offset: 66, bytes: 32 }, Plane { offset: 0, bytes: 2 }],
    tables: &[&SIGNED],
    emit_unit,
    emit_pair: None,
};

/// Entry `index | signs << 8`: the four weights with their signs.
static SIGNED: Table = Table {
    name: "iq3_xxs_signed",
    entries: 4096,
    entry: |b, i| {
        let words = grids::IQ3_XXS.map(|e| grids::word(e, grids::IQ3_XXS_LEVELS)).to_vec();
        let mask = grids::sign_mask(i >> 8);
        // Negates bytes: none is zero, so that no carry leaves its byte.
        (b.table(i & 0xff, words) ^ mask) + (mask & 0x0101_0101)
    },
};

fn decode_block(block: &[u8], out: &mut [f32]) {
    let d = super::half(block, 0);
    for (j, values) in out.chunks_exact_mut(32).enumerate() {
        let at = 66 + 4 * j;
        let word = u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]]);
        let scale = d * (0.5 + (word >> 28) as f32) * 0.5;
        for (k, four) in values.chunks_exact_mut(4).enumerate() {
            let signs = grids::even_signs(word >> (7 * (k / 2)) & 127) >> (k % 2 * 4);
            let entry = grids::IQ3_XXS[block[2 + 8 * j + k] as usize];
            for ((i, value), digit) in four.iter_mut().enumerate().zip(grids::digits(entry)) {
                let magnitude = scale * grids::IQ3_XXS_LEVELS[digit] as f32;
                *value = if signs >> i & 1 == 1 { -magnitude } else { magnitude };
            }
        }
    }
}

/// Bit 0 of the four fields of seven bits.
const FIRST: u32 = 0x0020_4081;

fn emit_unit<'b>(u: &Unit<'b>) -> [Run<'b>; 2] {
    let indices = u.load(Type::Vec(Scalar::U32, 2), 0, 64, u.sub * 8, 0, 8);
    let word = u.load(Type::U32, 1, 32, u.sub * 4, 0, 4);
    // Parity of four fields at once: bits 4 to 6 onto 0 to 2, then 2 and 3 onto 0 and 1, then 1 onto 0.
    let upper = (word >> 4) & (7 * FIRST);
    let folded = word ^ upper;
    let folded = folded ^ (folded >> 2);
    let parity = (folded ^ (folded >> 1)) & FIRST;
    // Signs of the second four weights of each eight.
    let second = upper | parity << 3;
    let scale = u.load_f16(2, 2, 0) * ((word >> 28).to_f32() + 0.5) * 0.5;
    [0, 1].map(|run: u32| Run {
        col: u.sub * 32 + run * 16,
        weights: Weights::Bytes {
            packed: [0, 1, 2, 3].map(|k: u32| {
                let (field, signs) = ((run * 2 + k / 2) * 7, if k & 1 == 0 { word } else { second });
                let signs = if field >= 8 { signs >> (field - 8) } else { signs << (8 - field) };
                u.look_up_at(&SIGNED, (indices.lane(run as u8) >> (8 * k)) & 0xff | signs & 0xf00)
            }),
            signed: true,
            nibbles: None,
            scale,
            bias: None,
        },
    })
}
