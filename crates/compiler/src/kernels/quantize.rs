//! 8-bit activations: `[select rows] [norm]` and quantization in one launch in front of a mat-vec.
//!
//! ```text
//! row of F32 ─[rms_norm]─► blocks of 32: scale = max|x| / 127, q = round(x / scale)
//! scratch row: cols signed bytes, then cols / 32 F32 scales, padded to 16 bytes
//! ```

use super::args::launch;
use super::matvec::Source;
use super::rows::{for_items, workgroup, workgroup_sum};
use crate::LaunchSketch;
use crate::template::{Ctx, Operand};
use zinc_ir::kernel::{Builder, Scalar, Type, Val};
use zinc_ir::plan::Input;
use zinc_ir::quant::UNIT;

/// Bytes of one quantized row.
pub(super) fn row_bytes(cols: u32) -> u32 {
    (cols + cols / UNIT * 4).next_multiple_of(16)
}

/// The launch that quantizes the `n` rows of `source` into `Operand::Temp(temp)`.
pub(super) fn quantize(ctx: &Ctx<'_>, source: &Source, n: u32, temp: usize) -> LaunchSketch {
    let (cols, sg) = (ctx.cols(source.x), ctx.caps.subgroup_size);
    let blocks = cols / UNIT;
    let lanes = workgroup(ctx, blocks);
    let norm = if source.norm.is_some() { "norm_" } else { "" };
    launch(format!("{norm}quantize_q8_{cols}"), lanes, sg, [n, 1, 1], |b, args| {
        let x = args.read("x", Operand::Value(source.x));
        let gain = source.norm.map(|(w, _)| args.read("norm", Operand::Weight(w)));
        let picks = source.select.then(|| args.read("outputs", Operand::Input(Input::Outputs)));
        let y = args.write("y", Operand::Temp(temp));
        let row = picks.map_or(b.tile(0), |p| b.load(Type::U32, p, b.tile(0) * 4, 4));
        let from = row * (cols * 4);
        let factor = source.norm.map(|(_, eps)| row_factor(b, lanes, sg, x, from, cols, eps));
        let out = b.tile(0) * row_bytes(cols);
        for_items(b, lanes, blocks, |block| {
            let quads: Vec<Val<'_>> = (0..8)
                .map(|i| {
                    let quad = b.load_at(Type::F32X4, x, from + block * 128, i * 16, 16, true);
                    match (factor, gain) {
                        (Some(f), Some(g)) => {
                            quad * f.splat(4) * b.load_at(Type::F32X4, g, block * 128, i * 16, 16, true)
                        }
                        _ => quad,
                    }
                })
                .collect();
            store_block(b, y, out + block * UNIT, out + cols + block * 4, &quads);
        });
    })
}

/// 1 / √(mean x² + eps) of a row, by the whole workgroup.
fn row_factor<'b>(b: &'b Builder, lanes: u32, sg: u32, x: Val<'b>, from: Val<'b>, cols: u32, eps: f32) -> Val<'b> {
    let squares = b.for_(b.local_id(), b.u32(cols / 4), lanes, &[b.f32x4(0.0)], |i, acc| {
        let quad = b.load(Type::F32X4, x, from + i * 16, 16);
        vec![b.fma(quad, quad, acc[0])]
    });
    let sum = workgroup_sum(b, squares[0].sum_lanes(), lanes / sg);
    (sum * (1.0 / cols as f32) + eps).inv_sqrt()
}

/// Quantizes 32 values: bytes at `at`, scale at `scale_at`.
fn store_block<'b>(b: &'b Builder, y: Val<'b>, at: Val<'b>, scale_at: Val<'b>, quads: &[Val<'b>]) {
    let peak = quads.iter().map(|q| q.abs()).reduce(|m, q| m.max(q)).expect("eight quads");
    let peak = peak.lane(0).max(peak.lane(1)).max(peak.lane(2).max(peak.lane(3)));
    // A block of zeros has scale 0 and bytes 0.
    let inverse = peak.gt(0.0).select(b.f32(127.0) / peak, b.f32(0.0));
    for (i, quad) in quads.iter().enumerate() {
        let bytes = (*quad * inverse.splat(4)).round_even().to(Scalar::I32);
        let byte = |k: u8| bytes.lane(k).bitcast(Type::U32) & 0xff;
        let word = byte(0) | (byte(1) << 8) | (byte(2) << 16) | (byte(3) << 24);
        b.store(y, at + i as u32 * 4, word, 4);
    }
    b.store(y, scale_at, peak * (1.0 / 127.0), 4);
}
