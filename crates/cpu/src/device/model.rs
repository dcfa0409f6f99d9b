//! What `load` leaves behind: weights in the kernels' form, and the cache.

use super::DeviceError;
use crate::kv::{Area, Stored};
use crate::{Isa, Packed, Pool};
use std::sync::Arc;
use zinc_ir::device::{Progress, WeightSource};
use zinc_ir::graph::{Graph, Op, Weight, WeightId};
use zinc_ir::plan::{KvLayout, KvType};
use zinc_ir::synthetic::Recipe;

/// A weight in the form its users want; a tensor used both ways is kept both ways.
#[derive(Default)]
pub(super) struct Loaded {
    /// For products and embeddings.
    pub(super) matrix: Option<Packed>,
    /// For norms and biases.
    pub(super) vector: Option<Vec<f32>>,
}

/// K and V of one layer.
pub(super) struct KvLayer<E> {
    pub(super) area: Area,
    pub(super) k: Vec<E>,
    pub(super) v: Vec<E>,
}

/// The cache, all layers.
pub(super) enum Kv {
    F32(Vec<KvLayer<f32>>),
    F16(Vec<KvLayer<u16>>),
    /// Quantized, or K and V of different types.
    Stored(Vec<StoredLayer>),
}

/// K and V of one layer in types of their own.
pub(super) struct StoredLayer {
    pub(super) area: Area,
    /// K, then V.
    pub(super) stored: [Stored; 2],
}

/// A loaded model.
pub(super) struct Model {
    pub(super) weights: Vec<Loaded>,
    pub(super) layout: Arc<KvLayout>,
    pub(super) kv: Kv,
    /// Bytes of weights and cache.
    pub(super) bytes: u64,
}

impl Model {
    pub(super) fn load(
        pool: &Pool,
        isa: Isa,
        graph: &Graph,
        layout: &Arc<KvLayout>,
        source: &dyn WeightSource,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Model, DeviceError> {
        let read = |i: usize| graph.nodes().iter().any(|n| n.op.weight() == Some(WeightId(i as u32)));
        let total: u64 = graph.weights().iter().enumerate().filter(|(i, _)| read(*i)).map(|(_, w)| w.bytes()).sum();
        check_memory(total + layout.bytes)?;
        let (mut done, mut bytes) = (0, layout.bytes);
        let mut weights = Vec::new();
        for (i, weight) in graph.weights().iter().enumerate() {
            let id = WeightId(i as u32);
            let loaded = load_weight(pool, isa, graph, id, source)?;
            bytes += loaded.matrix.as_ref().map_or(0, |m| m.bytes() as u64);
            bytes += loaded.vector.as_ref().map_or(0, |v| 4 * v.len() as u64);
            weights.push(loaded);
            done += weight.bytes();
            progress(Progress::Upload { done, total });
        }
        if let Some(head_dim) = layout.unsuitable_head() {
            let what = format!("K and V in {} with heads of {head_dim} elements", layout.types);
            return Err(DeviceError::Unsupported(what));
        }
        let kv = match (layout.types.k, layout.types.v) {
            (KvType::F32, KvType::F32) => Kv::F32(layers(layout, 0f32)),
            (KvType::F16, KvType::F16) => Kv::F16(layers(layout, 0u16)),
            (k, v) => Kv::Stored(
                areas(layout)
                    .map(|area| StoredLayer { area, stored: [k, v].map(|ty| Stored::new(ty, area)) })
                    .collect(),
            ),
        };
        Ok(Model { weights, layout: layout.clone(), kv, bytes })
    }

    pub(super) fn matrix(&self, id: WeightId) -> &Packed {
        self.weights[id.index()].matrix.as_ref().expect("loaded because the graph multiplies with it")
    }

    pub(super) fn vector(&self, id: WeightId) -> &[f32] {
        self.weights[id.index()].vector.as_deref().expect("loaded because the graph adds or scales by it")
    }
}

/// Zero pages for all layers (given by the system when first touched).
fn layers<E: Copy>(layout: &KvLayout, zero: E) -> Vec<KvLayer<E>> {
    let layer = |area: Area| KvLayer { area, k: vec![zero; area.elements()], v: vec![zero; area.elements()] };
    areas(layout).map(layer).collect()
}

/// Sizes of all layers.
fn areas(layout: &KvLayout) -> impl Iterator<Item = Area> {
    let pages = layout.pages as usize;
    layout.layers.iter().map(move |l| Area { heads: l.heads as usize, dim: l.head_dim as usize, pages })
}

fn load_weight(
    pool: &Pool,
    isa: Isa,
    graph: &Graph,
    id: WeightId,
    source: &dyn WeightSource,
) -> Result<Loaded, DeviceError> {
    let weight = graph.weight_of(id);
    let used = |f: fn(&Op) -> bool| graph.nodes().iter().any(|n| n.op.weight() == Some(id) && f(&n.op));
    let as_matrix = used(|op| matches!(op, Op::MatMul { .. } | Op::ExpertMatMul { .. } | Op::Embed { .. }));
    let as_vector = used(|op| matches!(op, Op::RmsNorm { .. } | Op::Bias { .. }));
    if !as_matrix && !as_vector {
        return Ok(Loaded::default());
    }
    let made;
    let bytes = match (source.bytes(id), source.synthetic(id)) {
        (Some(bytes), _) => bytes,
        (None, Some(seed)) => {
            made = synthesize(pool, weight, seed);
            &made[..]
        }
        (None, None) => {
            return Err(DeviceError::Misuse("a weight source gave neither bytes nor a seed"));
        }
    };
    if bytes.len() as u64 != weight.bytes() {
        let what = format!(
            "tensor {} has {} bytes where its shape needs {}; the file is damaged",
            weight.name,
            bytes.len(),
            weight.bytes()
        );
        return Err(DeviceError::Unsupported(what));
    }
    let (rows, cols) = (weight.rows as usize, weight.cols as usize);
    let mut loaded = Loaded::default();
    if as_matrix {
        let packed = Packed::new(pool, isa, weight.format, rows, cols, bytes);
        loaded.matrix = Some(packed.map_err(|e| DeviceError::Unsupported(format!("{}: {e}", weight.name)))?);
    }
    if as_vector {
        let mut values = vec![0f32; rows * cols];
        weight.format.decode(bytes, &mut values);
        loaded.vector = Some(values);
    }
    Ok(loaded)
}

/// Makes a tensor from its seed, in parallel.
fn synthesize(pool: &Pool, weight: &Weight, seed: u64) -> Vec<u8> {
    let recipe = Recipe::of(weight);
    let mut bytes = vec![0u8; weight.bytes() as usize];
    // Pieces of whole blocks, small enough to share.
    let blocks = 256;
    let piece = blocks * recipe.block_bytes as usize;
    let shared = crate::memory::SharedPtr(bytes.as_mut_ptr());
    let len = bytes.len();
    pool.for_each_chunk(len.div_ceil(piece), |_, range| {
        for i in range {
            let size = piece.min(len - i * piece);
            // SAFETY: piece i of the buffer, visited once; the buffer outlives the loop.
            let out = unsafe { std::slice::from_raw_parts_mut(shared.get().add(i * piece), size) };
            recipe.fill(seed, (i * blocks) as u32, out);
        }
    });
    bytes
}

/// Bytes of memory: in all and free for a new process; none where the system does not tell.
pub(super) fn system_memory() -> Option<(u64, u64)> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let field = |name: &str| {
        let line = text.lines().find_map(|l| l.strip_prefix(name))?;
        line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kb| kb * 1024)
    };
    Some((field("MemTotal:")?, field("MemAvailable:")?))
}

fn check_memory(needed: u64) -> Result<(), DeviceError> {
    match system_memory() {
        Some((_, available)) if needed > available => {
            let what = "the model with its KV cache".to_string();
            Err(DeviceError::OutOfMemory { what, needed, available })
        }
        _ => Ok(()),
    }
}
