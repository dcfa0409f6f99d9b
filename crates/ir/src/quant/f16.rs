//! F16: IEEE halves.

use super::*;

pub(super) static FORMAT: QuantFormat = QuantFormat {
    name: "F16",
    ggml_type: 1,
    block_elems: 1,
    block_bytes: 2,
    decode_block,
    planes: &[Plane { offset: 0, bytes: 64 }],
    tables: &[],
    emit_unit,
    emit_pair: None,
};

fn decode_block(block: &[u8], out: &mut [f32]) {
    out[0] = super::half(block, 0);
}

fn emit_unit<'b>(u: &Unit<'b>) -> [Run<'b>; 2] {
    [0, 16].map(|col| {
        // Two 16-byte loads of eight halves each.
        let words = [0, 16].map(|at| u.load16(0, 64, u.b.u32(0), col * 2 + at));
        let quad = |w: &[Val<'b>; 4], i: usize| {
            let pair = |v: Val<'b>| v.bitcast(Type::Vec(Scalar::F16, 2)).to_f32();
            let (lo, hi) = (pair(w[i]), pair(w[i + 1]));
            u.b.compose(&[lo.lane(0), lo.lane(1), hi.lane(0), hi.lane(1)])
        };
        let [a, b] = &words;
        Run { col: u.b.u32(col), weights: Weights::Floats([quad(a, 0), quad(a, 2), quad(b, 0), quad(b, 2)]) }
    })
}
