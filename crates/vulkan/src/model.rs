//! A model in device memory: weights in the device's layout, and the KV pool.
//!
//! ```text
//! Graph + WeightSource ─► chunks of at most 1 GiB ─► address of every weight
//! KvLayout             ─► chunks of whole layers  ─► address of every KV byte
//! ```

use crate::cache::KernelCache;
use crate::device::Gpu;
use crate::error::VulkanError;
use crate::memory::{Buffer, Place};
use crate::pipeline::{Pipeline, Pipelines, compile_all};
use crate::repack::repack;
use crate::replay::{Command, Queue, Recording};
use crate::synthesize::{items_per_block, plane_of, synthesize};
use crate::upload::{PlaneTarget, Target, Uploader};
use std::collections::HashMap;
use std::sync::Arc;
use zinc_ir::device::{Progress, WeightSource};
use zinc_ir::graph::{Graph, Weight, WeightId};
use zinc_ir::plan::{COUNTERS, KvLayout, weight_bytes};
use zinc_ir::quant::Plane;
use zinc_ir::synthetic::Recipe;

/// Weights and KV areas start at multiples of this.
const ALIGN: u64 = 256;
/// Chunks are no larger, unless one item is: drivers handle a few large allocations well, and fragmentation of device
/// memory hurts less than with one.
const CHUNK: u64 = 1 << 30;

/// Consecutive items of one address space (KV bytes), or a list of items (weights), spread over buffers.
pub(crate) struct Chunks {
    buffers: Vec<Buffer>,
    /// Per item: buffer and offset in it.
    places: Vec<(usize, u64)>,
}

impl Chunks {
    /// Packs items of the given sizes, in order.
    fn new(gpu: &Arc<Gpu>, sizes: &[u64], what: &str) -> Result<Chunks, VulkanError> {
        let mut lengths: Vec<u64> = vec![];
        let mut places = vec![];
        for size in sizes {
            let size = size.next_multiple_of(ALIGN);
            match lengths.last_mut() {
                Some(length) if *length + size <= CHUNK => *length += size,
                _ => lengths.push(size),
            }
            let chunk = lengths.len() - 1;
            places.push((chunk, lengths[chunk] - size));
        }
        let buffers = lengths.iter().map(|l| Buffer::new(gpu, *l, Place::Device, what)).collect::<Result<_, _>>()?;
        Ok(Chunks { buffers, places })
    }

    fn total(sizes: &[u64]) -> u64 {
        sizes.iter().map(|s| s.next_multiple_of(ALIGN)).sum()
    }

    fn place(&self, item: usize) -> (&Buffer, u64) {
        let (buffer, offset) = self.places[item];
        (&self.buffers[buffer], offset)
    }
}

/// Fills buffers with zeros, and waits.
fn zero<'b>(
    gpu: &Arc<Gpu>,
    queue: &mut Queue,
    buffers: impl Iterator<Item = &'b Buffer>,
    during: &'static str,
) -> Result<(), VulkanError> {
    let mut commands = vec![Command::FullBarrier];
    commands.extend(buffers.map(|buffer| Command::Zero { buffer, offset: 0, bytes: buffer.bytes }));
    commands.push(Command::FullBarrier);
    let mut recording = Recording::new(gpu)?;
    recording.record(&commands, false)?;
    let submitted = queue.submit(&recording)?;
    queue.wait(submitted, during)
}

/// A loaded model.
pub(crate) struct Model {
    pub(crate) graph: Arc<Graph>,
    pub(crate) kv: Arc<KvLayout>,
    weights: Chunks,
    pool: Chunks,
    /// [`zinc_ir::plan::Buffer::Counters`].
    pub(crate) counters: Buffer,
}

impl Model {
    /// Allocates everything and uploads the weights.
    pub(crate) fn load(
        gpu: &Arc<Gpu>,
        queue: &mut Queue,
        repackers: &mut Repackers,
        graph: &Arc<Graph>,
        kv: &Arc<KvLayout>,
        source: &dyn WeightSource,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Model, VulkanError> {
        let sizes: Vec<u64> = graph.weights().iter().zip(0..).map(|(_, i)| weight_bytes(graph, WeightId(i))).collect();
        let layers: Vec<u64> = layer_sizes(kv);
        let needed = Chunks::total(&sizes) + Chunks::total(&layers);
        let (available, _) = gpu.device_memory();
        if needed > available {
            let what = "the model's weights and KV cache".to_string();
            return Err(VulkanError::OutOfMemory { what, needed, available });
        }
        let weights = Chunks::new(gpu, &sizes, "the model's weights")?;
        let pool = Chunks::new(gpu, &layers, "the KV cache")?;
        let counters = Buffer::new(gpu, COUNTERS as u64 * 4, Place::Device, "counters")?;
        let model = Model { graph: graph.clone(), kv: kv.clone(), weights, pool, counters };
        model.zero_pool(gpu, queue)?;
        model.upload(gpu, queue, repackers, source, progress)?;
        Ok(model)
    }

    /// Device address of byte `offset` of a weight.
    pub(crate) fn weight_address(&self, weight: WeightId, offset: u64) -> u64 {
        let (buffer, at) = self.weights.place(weight.index());
        buffer.address + at + offset
    }

    /// Device address of byte `offset` of the KV pool.
    pub(crate) fn kv_address(&self, offset: u64) -> Option<u64> {
        self.kv_place(offset).map(|(buffer, at)| buffer.address + at)
    }

    /// Buffer and offset of byte `offset` of the KV pool.
    pub(crate) fn kv_place(&self, offset: u64) -> Option<(&Buffer, u64)> {
        // Layers lie in order, each K area followed by its V area.
        let layer = self.kv.layers.partition_point(|l| l.k <= offset).checked_sub(1)?;
        let (buffer, at) = self.pool.place(layer);
        let inside = offset - self.kv.layers[layer].k;
        (at + inside <= buffer.bytes).then_some((buffer, at + inside))
    }

    /// Unwritten KV rows are multiplied by a probability of zero: they must not be NaN.
    fn zero_pool(&self, gpu: &Arc<Gpu>, queue: &mut Queue) -> Result<(), VulkanError> {
        zero(gpu, queue, self.pool.buffers.iter().chain([&self.counters]), "clearing the KV cache")
    }

    /// Sets all counters to zero, as every launch leaves them that is right.
    pub(crate) fn clear_counters(&self, gpu: &Arc<Gpu>, queue: &mut Queue) -> Result<(), VulkanError> {
        zero(gpu, queue, [&self.counters].into_iter(), "clearing counters")
    }

    fn upload(
        &self,
        gpu: &Arc<Gpu>,
        queue: &mut Queue,
        repackers: &mut Repackers,
        source: &dyn WeightSource,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<(), VulkanError> {
        let weights = self.graph.weights();
        let total = weights.iter().map(Weight::bytes).sum();
        let mut done = 0;
        repackers.compile(gpu, weights)?;
        let makers = Makers::compile(gpu, repackers, weights, source)?;
        let mut uploader = Uploader::new(gpu, queue)?;
        for (weight, i) in weights.iter().zip(0..) {
            let id = WeightId(i);
            if let Some(parts) = makers.of(id) {
                self.synthesize(&mut uploader, id, weight, parts, makers.lanes)?;
                done += weight.bytes();
                progress(Progress::Upload { done, total });
                continue;
            }
            let bytes = Bytes::of(weight, id, source)?;
            let block = weight.format.device_block_bytes() as u64;
            let piece = Uploader::piece_bytes() / block * block;
            let mut at = 0;
            while at < weight.bytes() {
                let len = piece.min(weight.bytes() - at);
                let target = self.target(repackers, id, weight, at, len);
                uploader.piece(len, target, &|offset, out| bytes.copy(at + offset, out))?;
                at += len;
                done += len;
                progress(Progress::Upload { done, total });
            }
        }
        uploader.finish()
    }

    /// Launches the kernels that make a synthetic weight.
    fn synthesize(
        &self,
        uploader: &mut Uploader<'_>,
        id: WeightId,
        weight: &Weight,
        parts: &[Part],
        lanes: u32,
    ) -> Result<(), VulkanError> {
        let format = weight.format;
        let blocks = weight.bytes() / format.device_block_bytes() as u64;
        let (starts, _) = format.plane_offsets(blocks);
        for part in parts {
            let most = (LAUNCH_ITEMS / part.items) as u64;
            let mut first = 0;
            while first < blocks {
                let count = most.min(blocks - first) as u32 * part.items;
                let address = self.weight_address(id, starts[part.plane] + first * part.plane_bytes as u64);
                let mut push = address.to_le_bytes().to_vec();
                for word in [count, first as u32, part.seed as u32, (part.seed >> 32) as u32] {
                    push.extend(word.to_le_bytes());
                }
                uploader.launch(&part.pipeline, push, count.div_ceil(lanes))?;
                first += most;
            }
        }
        Ok(())
    }

    /// Where bytes `at .. at + len` of a weight's file layout go.
    fn target(&self, repackers: &Repackers, id: WeightId, weight: &Weight, at: u64, len: u64) -> Target<'_> {
        let format = weight.format;
        if format.keeps_file_layout() {
            let (buffer, offset) = self.weights.place(id.index());
            let whole = weight_bytes(&self.graph, id);
            let padded = if at + len == weight.bytes() { whole - at } else { len };
            return Target::Plain { buffer, offset: offset + at, padded };
        }
        let block_bytes = format.device_block_bytes();
        let blocks = weight.bytes().div_ceil(block_bytes as u64);
        let first = at / block_bytes as u64;
        let (starts, _) = format.plane_offsets(blocks);
        let planes = format.planes.iter().zip(starts).map(|(plane, start)| PlaneTarget {
            plane: *plane,
            pipeline: repackers.get(block_bytes, *plane),
            lanes: repackers.lanes,
            address: self.weight_address(id, start + first * plane.bytes as u64),
        });
        Target::Planes { block_bytes, planes: planes.collect() }
    }
}

/// Bytes of K and V of each layer.
fn layer_sizes(kv: &KvLayout) -> Vec<u64> {
    let ends = kv.layers.iter().skip(1).map(|l| l.k).chain([kv.bytes]);
    kv.layers.iter().zip(ends).map(|(l, end)| end - l.k).collect()
}

/// The content of one weight in the file's layout.
enum Bytes<'a> {
    Mapped(&'a [u8]),
    Synthetic { recipe: Recipe, seed: u64 },
}

impl<'a> Bytes<'a> {
    fn of(weight: &Weight, id: WeightId, source: &'a dyn WeightSource) -> Result<Bytes<'a>, VulkanError> {
        let bad = |reason: String| VulkanError::Weight { name: weight.name.clone(), reason };
        match (source.bytes(id), source.synthetic(id)) {
            (Some(bytes), _) if bytes.len() as u64 == weight.bytes() => Ok(Bytes::Mapped(bytes)),
            (Some(bytes), _) => Err(bad(format!("the file has {} bytes, {} expected", bytes.len(), weight.bytes()))),
            (None, Some(seed)) => Ok(Bytes::Synthetic { recipe: Recipe::of(weight), seed }),
            (None, None) => Err(bad("the source has neither bytes nor a seed".into())),
        }
    }

    /// Writes the bytes from `at` on. Synthetic bytes start inside a block where a stripe does.
    fn copy(&self, at: u64, out: &mut [u8]) {
        match self {
            Bytes::Mapped(bytes) => out.copy_from_slice(&bytes[at as usize..at as usize + out.len()]),
            Bytes::Synthetic { recipe, seed } => {
                let block = recipe.block_bytes as u64;
                let (first, skip) = (at / block, (at % block) as usize);
                if skip == 0 {
                    return recipe.fill(*seed, first as u32, out);
                }
                let head = out.len().min(block as usize - skip);
                let mut whole = vec![0; block as usize];
                recipe.fill(*seed, first as u32, &mut whole);
                out[..head].copy_from_slice(&whole[skip..skip + head]);
                recipe.fill(*seed, first as u32 + 1, &mut out[head..]);
            }
        }
    }
}

/// Items of one synthesizing launch: few enough for any grid.
const LAUNCH_ITEMS: u32 = 1 << 22;

/// One field of a synthetic weight and the kernel that makes it.
struct Part {
    plane: usize,
    plane_bytes: u32,
    items: u32,
    seed: u64,
    pipeline: Arc<Pipeline>,
}

/// The kernels that make the synthetic weights of a graph, by weight.
struct Makers {
    parts: HashMap<WeightId, Vec<Part>>,
    lanes: u32,
}

impl Makers {
    /// Weights with a seed and whole blocks are made on the device; others come through staging.
    fn compile(
        gpu: &Arc<Gpu>,
        repackers: &mut Repackers,
        weights: &[Weight],
        source: &dyn WeightSource,
    ) -> Result<Makers, VulkanError> {
        let (lanes, size) = (repackers.lanes, repackers.subgroup_size);
        let (mut kernels, mut wanted) = (vec![], vec![]);
        for (weight, i) in weights.iter().zip(0..) {
            let (id, whole) = (WeightId(i), weight.bytes().is_multiple_of(weight.format.device_block_bytes() as u64));
            let (None, Some(seed), true) = (source.bytes(id), source.synthetic(id), whole) else { continue };
            let fields = Recipe::of(weight).fields;
            // A field across two planes has no kernel; such a weight comes through staging.
            let places: Option<Vec<_>> = fields.iter().map(|f| plane_of(weight.format.planes, f)).collect();
            for (field, (plane, p)) in fields.iter().zip(places.unwrap_or_default()) {
                kernels.push(synthesize(field, p, lanes, size));
                wanted.push((id, plane, p.bytes, items_per_block(field), seed));
            }
        }
        let cache = KernelCache::new(None, &gpu.report);
        let pipelines = compile_all(gpu, &cache, &mut repackers.known, &kernels, &mut |_, _| Ok(()))?;
        let mut parts: HashMap<WeightId, Vec<Part>> = HashMap::new();
        for ((id, plane, plane_bytes, items, seed), pipeline) in wanted.into_iter().zip(pipelines) {
            parts.entry(id).or_default().push(Part { plane, plane_bytes, items, seed, pipeline });
        }
        Ok(Makers { parts, lanes })
    }

    fn of(&self, id: WeightId) -> Option<&[Part]> {
        self.parts.get(&id).map(Vec::as_slice)
    }
}

/// The repack kernels of the formats seen so far.
pub(crate) struct Repackers {
    pipelines: HashMap<(u32, Plane), Arc<Pipeline>>,
    known: Pipelines,
    lanes: u32,
    subgroup_size: u32,
}

impl Repackers {
    pub(crate) fn new(lanes: u32, subgroup_size: u32) -> Repackers {
        Repackers { pipelines: HashMap::new(), known: Pipelines::new(), lanes, subgroup_size }
    }

    fn compile(&mut self, gpu: &Arc<Gpu>, weights: &[Weight]) -> Result<(), VulkanError> {
        let mut missing = vec![];
        for format in weights.iter().map(|w| w.format).filter(|f| !f.keeps_file_layout()) {
            for plane in format.planes {
                let id = (format.device_block_bytes(), *plane);
                if !self.pipelines.contains_key(&id) && !missing.contains(&id) {
                    missing.push(id);
                }
            }
        }
        let kernels: Vec<_> = missing.iter().map(|(b, p)| repack(*b, *p, self.lanes, self.subgroup_size)).collect();
        // A handful of tiny kernels: not worth files in the cache.
        let cache = KernelCache::new(None, &gpu.report);
        let made = compile_all(gpu, &cache, &mut self.known, &kernels, &mut |_, _| Ok(()))?;
        self.pipelines.extend(missing.into_iter().zip(made));
        Ok(())
    }

    fn get(&self, block_bytes: u32, plane: Plane) -> Arc<Pipeline> {
        self.pipelines[&(block_bytes, plane)].clone()
    }
}
