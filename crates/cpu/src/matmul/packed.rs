//! A weight matrix as the kernels want it, and the table of formats.
//!
//! ```text
//! rows × cols in the file's layout ──Packed::new (all threads)──► row tiles of 16, one after the other
//! ```
//! The packed copy replaces the file's bytes: after `new` the mapped file is not read again.

use super::format::*;
use super::kernels::{GROUPS, TileArgs, TileFn, exact_fn, float_fn, float_row_fn, int_fn, int_row_fn};
use super::levels::{Iq3S, Iq3Xxs, Iq4Nl, Iq4Xs, Mxfp4, Q3K};
use crate::memory::{Region, SharedPtr};
use crate::{Isa, Pool};
use zinc_ir::quant::QuantFormat;

/// Why a matrix could not be packed.
#[derive(Debug, thiserror::Error)]
pub enum PackError {
    /// The table has no row for this format.
    #[error("no CPU kernel for weight format {0}; convert the model to one of {1}")]
    Format(&'static str, String),
    /// Columns must fill whole blocks.
    #[error("{cols} columns are not a positive multiple of the {block} weights of a {format} block")]
    Columns {
        /// Columns asked for.
        cols: usize,
        /// Weights of a block.
        block: usize,
        /// Name of the format.
        format: &'static str,
    },
    /// The bytes do not match the shape.
    #[error("{rows} × {cols} weights in {format} need {need} bytes, but the tensor has {got}")]
    Size {
        /// Rows asked for.
        rows: usize,
        /// Columns asked for.
        cols: usize,
        /// Name of the format.
        format: &'static str,
        /// Bytes the shape needs.
        need: usize,
        /// Bytes given.
        got: usize,
    },
    /// The operating system gave no memory.
    #[error("no memory for {bytes} bytes of packed weights: {source}; take a smaller model or quantization")]
    Memory {
        /// Bytes asked for.
        bytes: usize,
        /// What the operating system said.
        source: std::io::Error,
    },
}

/// Kernels of one format on one instruction set; index = log2 of the token group.
#[derive(Clone, Copy)]
pub(crate) struct Kernels {
    /// Integer activations; `None` for float formats.
    pub(crate) int: Option<[TileFn; 5]>,
    /// Float activations (groups up to 8).
    pub(crate) float: [TileFn; 4],
    /// Decodes one row.
    pub(crate) row: unsafe fn(TileArgs, usize),
}

type PackFn = fn(&[u8], usize, &mut [u8], &mut [u8], &mut [u8]);

/// A row of the format table.
pub(crate) struct FormatRow {
    ggml_type: u32,
    /// Columns of a scale group: 32 or 256.
    group: usize,
    /// Bytes of a group in the file.
    file_bytes: usize,
    /// Bytes of the parts of a record.
    q: usize,
    h: usize,
    s: usize,
    pack: PackFn,
    kernels: fn(Isa) -> Kernels,
}

impl FormatRow {
    /// Bytes of 16 rows of a group.
    const fn record(&self) -> usize {
        self.s + self.q + self.h
    }
}

const fn quant_row<Q: Quant>(ggml_type: u32) -> FormatRow {
    FormatRow {
        ggml_type,
        group: BLOCK * Q::GROUP,
        file_bytes: Q::FILE_BYTES,
        q: q_bytes(Q::BITS) * Q::GROUP,
        h: h_bytes(Q::BITS) * Q::GROUP,
        s: Q::S_BYTES,
        pack: Q::pack,
        kernels: |isa| Kernels {
            int: Some([
                int_fn::<Q, { GROUPS[0] }>(isa),
                int_fn::<Q, { GROUPS[1] }>(isa),
                int_fn::<Q, { GROUPS[2] }>(isa),
                int_fn::<Q, { GROUPS[3] }>(isa),
                int_fn::<Q, { GROUPS[4] }>(isa),
            ]),
            float: [
                exact_fn::<Q, { GROUPS[0] }>(isa),
                exact_fn::<Q, { GROUPS[1] }>(isa),
                exact_fn::<Q, { GROUPS[2] }>(isa),
                exact_fn::<Q, { GROUPS[3] }>(isa),
            ],
            row: int_row_fn::<Q>(isa),
        },
    }
}

/// Transposes a piece of a row: column c goes to weight `16·c + row`.
fn pack_float<W: Float>(row_bytes: &[u8], row: usize, q: &mut [u8], _: &mut [u8], _: &mut [u8]) {
    for (c, weight) in row_bytes.chunks_exact(W::BYTES).enumerate() {
        let at = (16 * c + row) * W::BYTES;
        q[at..at + W::BYTES].copy_from_slice(weight);
    }
}

const fn float_row<W: Float>(ggml_type: u32) -> FormatRow {
    FormatRow {
        ggml_type,
        group: BLOCK,
        file_bytes: BLOCK * W::BYTES,
        q: BLOCK * 16 * W::BYTES,
        h: 0,
        s: 0,
        pack: pack_float::<W>,
        kernels: |isa| Kernels {
            int: None,
            float: [
                float_fn::<W, { GROUPS[0] }>(isa),
                float_fn::<W, { GROUPS[1] }>(isa),
                float_fn::<W, { GROUPS[2] }>(isa),
                float_fn::<W, { GROUPS[3] }>(isa),
            ],
            row: float_row_fn::<W>(isa),
        },
    }
}

/// Every format with kernels, by ggml type id.
static TABLE: [FormatRow; 17] = [
    float_row::<F32>(0),
    float_row::<F16>(1),
    float_row::<Bf16>(30),
    quant_row::<Q4_0>(2),
    quant_row::<Q4_1>(3),
    quant_row::<Q5_0>(6),
    quant_row::<Q5_1>(7),
    quant_row::<Q8_0>(8),
    quant_row::<Q3K>(11),
    quant_row::<Q4K>(12),
    quant_row::<Q5K>(13),
    quant_row::<Q6K>(14),
    quant_row::<Iq3Xxs>(18),
    quant_row::<Iq4Nl>(20),
    quant_row::<Iq3S>(21),
    quant_row::<Iq4Xs>(23),
    quant_row::<Mxfp4>(39),
];

/// Weights in row tiles; see the module's text.
pub struct Packed {
    format: &'static QuantFormat,
    row: &'static FormatRow,
    kernels: Kernels,
    isa: Isa,
    rows: usize,
    cols: usize,
    memory: Region,
}

impl std::fmt::Debug for Packed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Packed({} {}×{})", self.format.name, self.rows, self.cols)
    }
}

impl Packed {
    /// Packs `rows` × `cols` weights, row after row in the file's layout of `format`, for the
    /// instruction set `isa` (which the processor must have: take one of [`Isa::available`]).
    ///
    /// # Errors
    /// A format without kernels, a shape that does not fit the blocks or the bytes, or no memory.
    pub fn new(
        pool: &Pool,
        isa: Isa,
        format: &'static QuantFormat,
        rows: usize,
        cols: usize,
        bytes: &[u8],
    ) -> Result<Packed, PackError> {
        let row = TABLE.iter().find(|r| r.ggml_type == format.ggml_type).ok_or_else(|| {
            let names = zinc_ir::quant::FORMATS.iter().map(|f| f.name);
            PackError::Format(format.name, names.collect::<Vec<_>>().join(", "))
        })?;
        let block = format.block_elems as usize;
        if cols == 0 || !cols.is_multiple_of(block) {
            return Err(PackError::Columns { cols, block, format: format.name });
        }
        let row_bytes = cols / block * format.block_bytes as usize;
        let need = rows.saturating_mul(row_bytes);
        if need != bytes.len() {
            let got = bytes.len();
            return Err(PackError::Size { rows, cols, format: format.name, need, got });
        }
        let mut packed = Packed { format, row, kernels: (row.kernels)(isa), isa, rows, cols, memory: Region::empty() };
        let total = packed.tiles() * packed.tile_bytes();
        packed.memory = Region::new(total).map_err(|source| PackError::Memory { bytes: total, source })?;
        packed.fill(pool, bytes, row_bytes);
        Ok(packed)
    }

    fn fill(&mut self, pool: &Pool, bytes: &[u8], row_bytes: usize) {
        let tile_bytes = self.tile_bytes();
        let base = SharedPtr(self.memory.as_mut_ptr());
        let this = &*self;
        pool.for_each_chunk(self.tiles(), |_, tiles| {
            for tile in tiles {
                // SAFETY: the region has `tiles · tile_bytes` bytes, and each tile is visited once.
                let out = unsafe { std::slice::from_raw_parts_mut(base.get().add(tile * tile_bytes), tile_bytes) };
                this.pack_tile(tile, bytes, row_bytes, out);
            }
        });
    }

    fn pack_tile(&self, tile: usize, bytes: &[u8], row_bytes: usize, out: &mut [u8]) {
        let f = self.row;
        let rows = TILE.min(self.rows - tile * TILE);
        let source = &bytes[tile * TILE * row_bytes..][..rows * row_bytes];
        for (g, record) in out.chunks_exact_mut(f.record()).take(self.groups()).enumerate() {
            let (s, rest) = record.split_at_mut(f.s);
            let (q, h) = rest.split_at_mut(f.q);
            for (row, source) in source.chunks_exact(row_bytes).enumerate() {
                let block = &source[g * f.file_bytes..];
                (f.pack)(&block[..f.file_bytes.min(block.len())], row, q, h, s);
            }
        }
    }

    /// Outputs of the matrix.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Inputs of the matrix.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The weights' format in the file.
    pub fn format(&self) -> &'static QuantFormat {
        self.format
    }

    /// Bytes of the packed copy.
    pub fn bytes(&self) -> usize {
        self.tiles() * self.tile_bytes()
    }

    /// Instruction set of its kernels.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// True when integer activations can be used; float formats take rounded floats instead.
    pub fn takes_integers(&self) -> bool {
        self.kernels.int.is_some()
    }

    pub(crate) fn kernels(&self) -> &Kernels {
        &self.kernels
    }

    /// Row tiles.
    pub(crate) fn tiles(&self) -> usize {
        self.rows.div_ceil(TILE)
    }

    fn groups(&self) -> usize {
        self.cols.div_ceil(self.row.group)
    }

    /// Columns in whole blocks of 32.
    pub(crate) fn blocks(&self) -> usize {
        self.groups() * (self.row.group / BLOCK)
    }

    fn tile_bytes(&self) -> usize {
        (self.groups() * self.row.record()).next_multiple_of(64)
    }

    /// Row tile `tile`; the activations and the output are still null.
    pub(crate) fn tile_args(&self, tile: usize) -> TileArgs {
        assert!(tile < self.tiles(), "row tile {tile} of {}", self.tiles());
        // SAFETY: the tile lies in the region.
        let w = unsafe { self.memory.as_ptr().add(tile * self.tile_bytes()) };
        let (xq, xs, out) = (std::ptr::null(), std::ptr::null(), std::ptr::null_mut());
        TileArgs { w, blocks: self.blocks(), xq, xs, out }
    }

    /// Decodes row `row` (an embedding, say) into `out`, which has one value per column. Exact.
    ///
    /// # Panics
    /// When the row does not exist or `out` has another length.
    pub fn decode_row(&self, row: usize, out: &mut [f32]) {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        assert_eq!(out.len(), self.cols, "a row has {} columns", self.cols);
        let mut args = self.tile_args(row / TILE);
        let padded = self.blocks() * BLOCK;
        if padded == self.cols {
            args.out = out.as_mut_ptr();
            // SAFETY: `isa` is available, the planes are whole, `out` has `blocks · 32` values.
            unsafe { (self.kernels.row)(args, row % TILE) }
        } else {
            let mut whole = vec![0f32; padded];
            args.out = whole.as_mut_ptr();
            // SAFETY: as above.
            unsafe { (self.kernels.row)(args, row % TILE) }
            out.copy_from_slice(&whole[..self.cols]);
        }
    }
}
