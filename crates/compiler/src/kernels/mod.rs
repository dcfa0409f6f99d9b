//! The kernel templates: one file per kernel family, one row per template.
//!
//! Few rows (decode, up to [`MATVEC_ROWS`], less beside matrix units): `qkv`, `matvec` and `attention` make five launches
//! per layer.
//! `route`, `experts` and `expert_down` are those of mixtures of experts. Many rows (prompts): `matmul` tiles with the row
//! ops around it; those of experts need their rows sorted (`expert_order`). `rows` holds the one-op kernels that guarantee
//! an answer for every graph.

mod args;
mod arrival;
mod attention;
mod attention_matrices;
mod attention_tiled;
mod dot;
mod dot_blocks;
mod dot_floats;
mod expert_down;
mod expert_order;
mod expert_tile;
mod experts;
mod halve;
mod kv;
mod matmul;
mod matvec;
mod qkv;
mod quantize;
mod rope_append;
mod route;
mod rows;
mod tables;
mod top_k;

use crate::{Choices, Template};
pub(crate) use dot::takes_bytes;
pub(crate) use dot_blocks::Flight;
pub(crate) use halve::shapes as half_shapes;
use zinc_ir::device::Caps;
use zinc_ir::plan::ActPrecision;

/// Bytes of a quantized row of `cols` values.
pub(crate) fn quantized_row_bytes(cols: u32, wide: bool) -> u32 {
    quantize::RowLayout { cols, wide }.bytes()
}

/// Most rows that go through mat-vec kernels.
pub const MATVEC_ROWS: u32 = 8;

/// Most rows whose products have cuts: mat-vecs, and narrow products on matrix units.
pub const CUT_ROWS: u32 = 128;

/// Most rows that go through mat-vec kernels on a device. Where weights are decoded straight into matrices, these are faster
/// from few rows on if inputs may be rounded to halves; from how many depends on what a mat-vec takes
/// (docs/internals/performance.md). By way of workgroup memory they are not, by what AMD's compiler says of nearly all
/// quantized formats on RDNA 3 (docs/internals/rdna.md); other devices are taken to be the same.
pub(crate) fn matvec_rows(caps: &Caps, choices: &Choices) -> u32 {
    match choices.act {
        _ if !choices.matrices || !caps.quads || !matmul::has_narrow(caps) => MATVEC_ROWS,
        ActPrecision::F32 => MATVEC_ROWS,
        ActPrecision::F16 => 2,
        ActPrecision::Q8 => 4,
    }
}

/// All templates; the first match wins, so the order is the policy.
pub static TEMPLATES: &[&Template] = &[
    &qkv::QKV,
    &matmul::EXPERTS,
    &experts::GLU,
    &expert_down::DOWN,
    &route::ROUTER,
    &matvec::GLU,
    &matvec::RESIDUAL,
    &matvec::MATVEC,
    &rope_append::ROPE_APPEND,
    &matmul::GLU,
    &matmul::RESIDUAL,
    &matmul::MERGED,
    &matmul::MATMUL,
    &attention_matrices::ATTENTION_MATRICES,
    &attention_tiled::ATTENTION_TILED,
    &attention::ATTENTION,
    &rows::EMBED_SCALED,
    &rows::EMBED,
    &rows::SELECT_ROWS,
    &rows::RMS_NORM,
    &quantize::QUANTIZE,
    &halve::HALVE,
    &rows::ROPE,
    &rows::KV_APPEND,
    &rows::GLU,
    &rows::ADD,
    &rows::BIAS,
    &rows::SCALE,
    &route::ROUTE,
    &experts::MATMUL,
    &expert_down::SUM,
    &rows::ARGMAX,
    &top_k::TOP_K,
];
