//! What the driver's compiler says about a kernel: registers, spills, occupancy. Works without hardware.
//!
//! ```text
//! Kernel ─► pipeline with statistics ─VK_KHR_pipeline_executable_properties─► KernelStats
//! ```

use crate::device::Gpu;
use crate::error::VulkanError;
use crate::pipeline::{create, fits};
use ash::vk;
use zinc_ir::device::KernelCost;
use zinc_ir::kernel::Kernel;

/// The compiler's statistics of one kernel. Fields are `None` where the driver does not tell.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct KernelStats {
    /// Kernel name.
    pub kernel: String,
    /// Vector registers per lane.
    pub vgprs: Option<u64>,
    /// Scalar registers per subgroup.
    pub sgprs: Option<u64>,
    /// Vector and scalar registers spilled to memory.
    pub spills: Option<u64>,
    /// Bytes of scratch memory per lane.
    pub scratch: Option<u64>,
    /// Bytes of workgroup memory.
    pub shared: Option<u64>,
    /// Bytes of machine code.
    pub code: Option<u64>,
    /// Subgroups resident per SIMD unit.
    pub occupancy: Option<u64>,
    /// Cycles per subgroup of the busiest unit, as the compiler estimates.
    pub inverse_throughput: Option<u64>,
    /// All statistics under the driver's names.
    pub raw: Vec<(String, f64)>,
    /// Machine code as text, if asked for and told.
    pub assembly: Option<String>,
}

/// Compiles `kernels` on device `index` (of [`crate::list_devices`]) and gives the driver's statistics, without
/// running anything: also on drivers that have no hardware. `assembly` asks for machine code too.
pub fn compile_only(index: usize, kernels: &[Kernel], assembly: bool) -> Result<Vec<KernelStats>, VulkanError> {
    let gpu = Gpu::open(index, false)?;
    all(&gpu, &kernels.iter().collect::<Vec<_>>(), assembly)
}

/// The part of the statistics that says whether a kernel is worth running. Empty if the driver gives no statistics or
/// refuses one of the kernels.
pub(crate) fn costs(gpu: &Gpu, kernels: &[&Kernel]) -> Vec<KernelCost> {
    let cost = |s: KernelStats| {
        let spills = [s.spills, s.scratch];
        let spills = spills.iter().any(Option::is_some).then(|| spills.iter().flatten().sum());
        KernelCost { registers: s.vgprs, spills, occupancy: s.occupancy }
    };
    all(gpu, kernels, false).map(|stats| stats.into_iter().map(cost).collect()).unwrap_or_default()
}

/// Statistics of kernels in their order, compiled on all cores; the first error of a kernel wins.
fn all(gpu: &Gpu, kernels: &[&Kernel], assembly: bool) -> Result<Vec<KernelStats>, VulkanError> {
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    let share = |kernels: &[&Kernel]| kernels.iter().map(|k| one(gpu, k, assembly)).collect::<Vec<_>>();
    std::thread::scope(|scope| {
        let shares = kernels.chunks(kernels.len().div_ceil(threads).max(1));
        let workers: Vec<_> = shares.map(|kernels| scope.spawn(move || share(kernels))).collect();
        let done = workers.into_iter().map(|w| w.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        done.flatten().collect()
    })
}

fn one(gpu: &Gpu, kernel: &Kernel, assembly: bool) -> Result<KernelStats, VulkanError> {
    let lacking = || VulkanError::NotUsable {
        name: gpu.report.name.clone(),
        reason: "it has no VK_KHR_pipeline_executable_properties".into(),
    };
    let ext = gpu.executable.as_ref().ok_or_else(lacking)?;
    fits(gpu, kernel, &zinc_spirv::requirements(kernel))?;
    let words = zinc_spirv::emit(kernel, gpu.report.float_modes)?;
    let mut flags = vk::PipelineCreateFlags::CAPTURE_STATISTICS_KHR;
    if assembly {
        flags |= vk::PipelineCreateFlags::CAPTURE_INTERNAL_REPRESENTATIONS_KHR;
    }
    let pipeline = create(gpu, kernel, &words, vk::PipelineCache::null(), flags)?;
    let info = vk::PipelineExecutableInfoKHR::default().pipeline(pipeline);
    // SAFETY: the pipeline was made with the capture flags; a compute pipeline has executable 0.
    let rows = unsafe { ext.get_pipeline_executable_statistics(&info) };
    let text = if assembly { machine_code(ext, &info) } else { None };
    // SAFETY: the pipeline was never submitted.
    unsafe { gpu.raw.destroy_pipeline(pipeline, None) };
    let rows = rows.map_err(VulkanError::of("vkGetPipelineExecutableStatisticsKHR"))?;
    let raw = rows.iter().filter_map(|r| Some((r.name_as_c_str().ok()?.to_string_lossy().into_owned(), number(r))));
    Ok(named(kernel, raw.collect(), text))
}

fn number(row: &vk::PipelineExecutableStatisticKHR<'_>) -> f64 {
    // SAFETY: `format` says which member of the union is set.
    unsafe {
        match row.format {
            vk::PipelineExecutableStatisticFormatKHR::INT64 => row.value.i64 as f64,
            vk::PipelineExecutableStatisticFormatKHR::UINT64 => row.value.u64 as f64,
            vk::PipelineExecutableStatisticFormatKHR::FLOAT64 => row.value.f64,
            _ => row.value.b32 as f64,
        }
    }
}

/// Finds the known statistics under the names that RADV and NVIDIA use.
fn named(kernel: &Kernel, raw: Vec<(String, f64)>, assembly: Option<String>) -> KernelStats {
    let any = |names: &[&str]| {
        let value = |name: &&str| raw.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, v)| *v as u64);
        names.iter().find_map(value)
    };
    let spills = [any(&["Spilled VGPRs"]), any(&["Spilled SGPRs"])];
    KernelStats {
        kernel: kernel.name.clone(),
        vgprs: any(&["VGPRs", "Register Count"]),
        sgprs: any(&["SGPRs"]),
        spills: spills.iter().any(Option::is_some).then(|| spills.iter().flatten().sum()),
        scratch: any(&["Scratch size", "Local Memory Size"]),
        shared: any(&["LDS size", "Shared Memory Size"]),
        code: any(&["Code size", "Binary Size"]),
        occupancy: any(&["Subgroups per SIMD"]),
        inverse_throughput: any(&["Inverse Throughput"]),
        raw,
        assembly,
    }
}

/// The last representation is the one nearest to the machine.
fn machine_code(
    ext: &ash::khr::pipeline_executable_properties::Device,
    info: &vk::PipelineExecutableInfoKHR<'_>,
) -> Option<String> {
    // SAFETY: as for the statistics.
    let sizes = unsafe { ext.get_pipeline_executable_internal_representations(info) }.ok()?;
    // The wrapper asks only for sizes (data pointers are null): a second call fills buffers of these sizes.
    let mut buffers: Vec<Vec<u8>> = sizes.iter().map(|r| vec![0; r.data_size]).collect();
    let mut rows: Vec<vk::PipelineExecutableInternalRepresentationKHR<'_>> = buffers
        .iter_mut()
        .map(|b| vk::PipelineExecutableInternalRepresentationKHR {
            data_size: b.len(),
            p_data: b.as_mut_ptr().cast(),
            ..Default::default()
        })
        .collect();
    let mut count = rows.len() as u32;
    let call = ext.fp().get_pipeline_executable_internal_representations_khr;
    // SAFETY: `rows` has `count` elements whose buffers have the stated sizes.
    let filled = unsafe { call(ext.device(), info, &mut count, rows.as_mut_ptr()) };
    filled.result().ok()?;
    let texts = rows.iter().take(count as usize).zip(0..).filter(|(r, _)| r.is_text == vk::TRUE);
    let last = texts.map(|(_, i): (_, usize)| i).last()?;
    let text = buffers.get(last)?;
    Some(String::from_utf8_lossy(text).trim_end_matches('\0').to_string())
}
