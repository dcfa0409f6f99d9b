//! Kernels to pipelines, on all cores, through the on-disk cache.
//!
//! ```text
//! Kernel ─emit─► SPIR-V ─key─► cached? ─► VkPipelineCache ─► vkCreateComputePipelines ─► Pipeline
//! ```

use crate::cache::{KernelCache, Key};
use crate::device::Gpu;
use crate::error::VulkanError;
use ash::vk;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use zinc_ir::kernel::Kernel;
use zinc_spirv::{PushLayout, Requirements};

/// A compiled kernel.
pub(crate) struct Pipeline {
    gpu: Arc<Gpu>,
    pub(crate) raw: vk::Pipeline,
    pub(crate) push: PushLayout,
    /// Came out of the on-disk cache.
    pub(crate) cached: bool,
}

impl Drop for Pipeline {
    fn drop(&mut self) {
        if self.gpu.is_abandoned() {
            return;
        }
        // SAFETY: owners drop pipelines only after waiting for the work that uses them.
        unsafe { self.gpu.raw.destroy_pipeline(self.raw, None) };
    }
}

/// A kernel on its way to a pipeline.
struct Job<'k> {
    kernel: &'k Kernel,
    words: Vec<u32>,
    key: Key,
}

impl<'k> Job<'k> {
    fn new(gpu: &Gpu, cache: &KernelCache, kernel: &'k Kernel) -> Result<Job<'k>, VulkanError> {
        fits(gpu, kernel, &zinc_spirv::requirements(kernel))?;
        let words = zinc_spirv::emit(kernel, gpu.report.float_modes)?;
        let key = cache.key(&words, kernel.subgroup_size);
        Ok(Job { kernel, words, key })
    }

    fn compile(&self, gpu: &Arc<Gpu>, cache: &KernelCache) -> Result<Pipeline, VulkanError> {
        let stored = cache.get(self.key);
        let cached = stored.is_some();
        let driver_cache = DriverCache::new(gpu, stored.as_deref().unwrap_or_default())?;
        let raw = create(gpu, self.kernel, &self.words, driver_cache.raw, vk::PipelineCreateFlags::empty())?;
        let push = zinc_spirv::push_layout(self.kernel);
        let pipeline = Pipeline { gpu: gpu.clone(), raw, push, cached };
        if !cached {
            cache.put(self.key, &driver_cache.data()?);
        }
        Ok(pipeline)
    }
}

/// The pipelines a device has, by the key of their shader: plans of one model share most of them.
pub(crate) type Pipelines = HashMap<Key, Arc<Pipeline>>;

/// Is told how many kernels are finished, and how many of those came from the cache; an error stops the rest.
pub(crate) type Done<'a> = &'a mut dyn FnMut(u32, u32) -> Result<(), VulkanError>;

/// Gives the pipeline of each kernel, compiling what is not in `known` yet; `done(finished, cached)` counts kernels
/// as they become ready, and stops the rest with an error of its own. The first error wins.
pub(crate) fn compile_all(
    gpu: &Arc<Gpu>,
    cache: &KernelCache,
    known: &mut Pipelines,
    kernels: &[Kernel],
    done: Done<'_>,
) -> Result<Vec<Arc<Pipeline>>, VulkanError> {
    let jobs: Vec<Job<'_>> = kernels.iter().map(|k| Job::new(gpu, cache, k)).collect::<Result<_, _>>()?;
    let keys: Vec<Key> = jobs.iter().map(|j| j.key).collect();
    let mut wanted = HashSet::new();
    let missing: Vec<Job<'_>> =
        jobs.into_iter().filter(|j| !known.contains_key(&j.key) && wanted.insert(j.key)).collect();
    let had = (keys.len() - missing.len()) as u32;
    done(had, had)?;
    for (job, pipeline) in missing.iter().zip(compile_jobs(gpu, cache, &missing, &mut |n, c| done(had + n, had + c))?) {
        known.insert(job.key, pipeline);
    }
    Ok(keys.iter().filter_map(|k| known.get(k).cloned()).collect())
}

fn compile_jobs(
    gpu: &Arc<Gpu>,
    cache: &KernelCache,
    jobs: &[Job<'_>],
    done: Done<'_>,
) -> Result<Vec<Arc<Pipeline>>, VulkanError> {
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get()).min(jobs.len());
    let next = AtomicUsize::new(0);
    let (send, receive) = mpsc::channel();
    let mut results: Vec<Option<Arc<Pipeline>>> = jobs.iter().map(|_| None).collect();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            let (send, next) = (send.clone(), &next);
            scope.spawn(move || {
                loop {
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    let Some(job) = jobs.get(i) else { return };
                    if send.send((i, job.compile(gpu, cache))).is_err() {
                        return;
                    }
                }
            });
        }
        drop(send);
        let (mut finished, mut cached) = (0, 0);
        for (i, result) in &receive {
            let pipeline = result.and_then(|pipeline| {
                finished += 1;
                cached += pipeline.cached as u32;
                done(finished, cached).map(|()| pipeline)
            });
            // On an error the remaining jobs are not started.
            let pipeline = pipeline.inspect_err(|_| next.store(jobs.len(), Ordering::Relaxed))?;
            results[i] = Some(Arc::new(pipeline));
        }
        Ok::<(), VulkanError>(())
    })?;
    Ok(results.into_iter().flatten().collect())
}

/// Compiles one kernel.
pub(crate) fn compile(gpu: &Arc<Gpu>, cache: &KernelCache, kernel: &Kernel) -> Result<Pipeline, VulkanError> {
    Job::new(gpu, cache, kernel)?.compile(gpu, cache)
}

/// Tries to make a pipeline. "Unknown error" comes and goes: under the instrumenting validation layer a run of the tests
/// in two or three met it, at another pipeline each time, and none of eight since the driver is asked again. The cause
/// is not known.
const ATTEMPTS: u32 = 4;

/// Creates the pipeline itself; `flags` ask for statistics.
pub(crate) fn create(
    gpu: &Gpu,
    kernel: &Kernel,
    words: &[u32],
    cache: vk::PipelineCache,
    flags: vk::PipelineCreateFlags,
) -> Result<vk::Pipeline, VulkanError> {
    let module = vk::ShaderModuleCreateInfo::default().code(words);
    // SAFETY: the words come from our emitter, whose modules are valid.
    let module = unsafe { gpu.raw.create_shader_module(&module, None) };
    let module = module.map_err(VulkanError::of("vkCreateShaderModule"))?;
    let mut size =
        vk::PipelineShaderStageRequiredSubgroupSizeCreateInfo::default().required_subgroup_size(kernel.subgroup_size);
    let mut stage = vk::PipelineShaderStageCreateInfo::default()
        .flags(vk::PipelineShaderStageCreateFlags::REQUIRE_FULL_SUBGROUPS)
        .stage(vk::ShaderStageFlags::COMPUTE)
        .module(module)
        .name(c"main");
    let (min, max) = gpu.report.subgroup_range;
    if gpu.report.sizes_selectable && min <= max {
        stage = stage.push_next(&mut size);
    }
    let info = vk::ComputePipelineCreateInfo::default().flags(flags).stage(stage).layout(gpu.layout);
    // SAFETY: module, layout and cache belong to this device; `info` lives until the return; the module may go after.
    let made = unsafe {
        let mut made = gpu.raw.create_compute_pipelines(cache, &[info], None);
        for _ in 1..ATTEMPTS {
            let Err((_, vk::Result::ERROR_UNKNOWN)) = made else { break };
            made = gpu.raw.create_compute_pipelines(vk::PipelineCache::null(), &[info], None);
        }
        gpu.raw.destroy_shader_module(module, None);
        made
    };
    match made {
        Ok(pipelines) => Ok(pipelines[0]),
        Err((_, e)) => Err(VulkanError::Unfit {
            kernel: kernel.name.clone(),
            reason: format!("the driver could not compile it ({e:?})"),
        }),
    }
}

/// Does the device have what a kernel needs?
pub(crate) fn fits(gpu: &Gpu, kernel: &Kernel, r: &Requirements) -> Result<(), VulkanError> {
    let d = &gpu.report;
    let (min, max) = d.subgroup_range;
    let shape = |s: &zinc_spirv::MatrixShape| d.matrices.iter().any(|m| (m.m, m.n, m.k, m.input, m.acc) == *s);
    let missing = r.shapes.iter().find(|s| !shape(s));
    let size = r.subgroup_size;
    let reason = if !(min..=max).contains(&size) || !size.is_power_of_two() {
        format!("subgroup size {size}, the device has {min} to {max}")
    } else if r.workgroup_size > d.caps(size).max_workgroup {
        format!("{} lanes per workgroup, the device has {}", r.workgroup_size, d.caps(size).max_workgroup)
    } else if r.workgroup_size == 0 || !r.workgroup_size.is_multiple_of(size) {
        format!("{} lanes per workgroup are no multiple of {size}", r.workgroup_size)
    } else if r.shared_bytes > d.shared_bytes {
        format!("{} bytes of workgroup memory, the device has {}", r.shared_bytes, d.shared_bytes)
    } else if r.push_bytes > d.push_bytes {
        format!("{} bytes of launch arguments, the device has {}", r.push_bytes, d.push_bytes)
    } else if let Some(s) = missing {
        format!("matrix shape {s:?} is not among the device's")
    } else {
        return Ok(());
    };
    Err(VulkanError::Unfit { kernel: kernel.name.clone(), reason })
}

/// A VkPipelineCache for one pipeline.
struct DriverCache<'g> {
    gpu: &'g Gpu,
    raw: vk::PipelineCache,
}

impl<'g> DriverCache<'g> {
    fn new(gpu: &'g Gpu, data: &[u8]) -> Result<DriverCache<'g>, VulkanError> {
        let info = vk::PipelineCacheCreateInfo::default().initial_data(data);
        // SAFETY: the driver checks its own header; the bytes are the ones it gave (checksummed by the file cache).
        let raw = unsafe { gpu.raw.create_pipeline_cache(&info, None) };
        Ok(DriverCache { gpu, raw: raw.map_err(VulkanError::of("vkCreatePipelineCache"))? })
    }

    fn data(&self) -> Result<Vec<u8>, VulkanError> {
        // SAFETY: the cache is alive.
        unsafe { self.gpu.raw.get_pipeline_cache_data(self.raw) }.map_err(VulkanError::of("vkGetPipelineCacheData"))
    }
}

impl Drop for DriverCache<'_> {
    fn drop(&mut self) {
        // SAFETY: no pipeline creation uses it any more.
        unsafe { self.gpu.raw.destroy_pipeline_cache(self.raw, None) };
    }
}
