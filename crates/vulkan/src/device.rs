//! The logical device: one compute queue and the features of the contract.
//!
//! ```text
//! Instance ─► physical device ─(contract)─► Gpu ─► memory, pipelines, recordings (each holds an Arc of it)
//! ```

use crate::error::VulkanError;
use crate::instance::Instance;
use crate::report::{DeviceReport, extensions, report};
use ash::vk;
use std::ffi::CStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A logical device. Everything made from it keeps it alive.
pub(crate) struct Gpu {
    pub(crate) instance: Arc<Instance>,
    pub(crate) physical: vk::PhysicalDevice,
    pub(crate) report: DeviceReport,
    pub(crate) raw: ash::Device,
    /// Family of the queue; compute queues can also copy.
    pub(crate) family: u32,
    /// Valid bits of its timestamps; 0: it has none.
    pub(crate) timestamp_bits: u32,
    /// Statistics of compiled pipelines, if the driver gives them.
    pub(crate) executable: Option<ash::khr::pipeline_executable_properties::Device>,
    pub(crate) memory_types: vk::PhysicalDeviceMemoryProperties,
    pub(crate) has_budget: bool,
    /// Bytes of device memory this Gpu has allocated.
    pub(crate) used: AtomicU64,
    /// The layout of all pipelines: push constants only.
    pub(crate) layout: vk::PipelineLayout,
    /// The device did not answer in time: it may still use whatever was made from it, so nothing is freed any more.
    pub(crate) abandoned: AtomicBool,
}

impl Gpu {
    /// Opens device `index` of the loader's list.
    pub(crate) fn open(index: usize, validation: bool) -> Result<Arc<Gpu>, VulkanError> {
        let instance = Instance::open(validation)?;
        let devices = instance.physical_devices()?;
        let missing = VulkanError::NoDevice { wanted: index, count: devices.len() };
        let physical = *devices.get(index).ok_or(missing)?;
        let report = report(&instance, physical, index);
        if let Err(reason) = &report.usable {
            return Err(VulkanError::NotUsable { name: report.name.clone(), reason: reason.clone() });
        }
        let extensions = extensions(&instance, physical);
        let has = |name: &CStr| extensions.contains(&name);
        let (family, timestamp_bits) = compute_family(&instance, physical);
        let raw = create(&instance, physical, family, &extensions)?;
        let executable = has(ash::khr::pipeline_executable_properties::NAME)
            .then(|| ash::khr::pipeline_executable_properties::Device::new(&instance.raw, &raw));
        // SAFETY: `physical` belongs to the living instance.
        let memory_types = unsafe { instance.raw.get_physical_device_memory_properties(physical) };
        let layout = layout(&raw, report.push_bytes.min(256))?;
        Ok(Arc::new(Gpu {
            has_budget: has(ash::ext::memory_budget::NAME),
            instance,
            physical,
            report,
            raw,
            family,
            timestamp_bits,
            executable,
            memory_types,
            used: AtomicU64::new(0),
            layout,
            abandoned: AtomicBool::new(false),
        }))
    }
}

impl Gpu {
    /// See the field.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Relaxed)
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        if self.is_abandoned() {
            // The device outlives us, so its instance must too.
            std::mem::forget(self.instance.clone());
            return;
        }
        // SAFETY: whatever was made from the device holds an Arc of it, so nothing is left and nothing runs.
        unsafe {
            self.raw.destroy_pipeline_layout(self.layout, None);
            self.raw.destroy_device(None);
        }
    }
}

/// The family with compute and the fewest other abilities beside copies: on many GPUs that is an asynchronous
/// compute queue, which no desktop competes for; but a graphics queue is taken if it is the only one with
/// timestamps.
fn compute_family(instance: &Instance, physical: vk::PhysicalDevice) -> (u32, u32) {
    // SAFETY: `physical` belongs to the living instance.
    let families = unsafe { instance.raw.get_physical_device_queue_family_properties(physical) };
    let rank = |f: &vk::QueueFamilyProperties| {
        let graphics = f.queue_flags.contains(vk::QueueFlags::GRAPHICS);
        (f.timestamp_valid_bits == 0, graphics)
    };
    let computes = families.iter().enumerate().filter(|(_, f)| f.queue_flags.contains(vk::QueueFlags::COMPUTE));
    computes.min_by_key(|(_, f)| rank(f)).map_or((0, 0), |(i, f)| (i as u32, f.timestamp_valid_bits))
}

fn create(
    instance: &Instance,
    physical: vk::PhysicalDevice,
    family: u32,
    extensions: &[&CStr],
) -> Result<ash::Device, VulkanError> {
    let v10 = vk::PhysicalDeviceFeatures::default().shader_int64(true).shader_int16(true);
    let mut v11 = vk::PhysicalDeviceVulkan11Features::default().storage_buffer16_bit_access(true);
    let mut v12 = vk::PhysicalDeviceVulkan12Features::default()
        .storage_buffer8_bit_access(true)
        .shader_int8(true)
        .shader_float16(true)
        .buffer_device_address(true)
        .scalar_block_layout(true)
        .vulkan_memory_model(true)
        .vulkan_memory_model_device_scope(true)
        .timeline_semaphore(true)
        .host_query_reset(true);
    let mut v13 = vk::PhysicalDeviceVulkan13Features::default()
        .subgroup_size_control(true)
        .compute_full_subgroups(true)
        .synchronization2(true)
        .maintenance4(true)
        .shader_integer_dot_product(true);
    let mut matrix = vk::PhysicalDeviceCooperativeMatrixFeaturesKHR::default().cooperative_matrix(true);
    let mut executable =
        vk::PhysicalDevicePipelineExecutablePropertiesFeaturesKHR::default().pipeline_executable_info(true);
    // Only what is used is switched on; the others are read as properties alone.
    let used = [
        ash::ext::memory_budget::NAME,
        ash::khr::cooperative_matrix::NAME,
        ash::khr::pipeline_executable_properties::NAME,
    ];
    let names: Vec<_> = extensions.iter().filter(|e| used.contains(e)).map(|e| e.as_ptr()).collect();
    let queues = [vk::DeviceQueueCreateInfo::default().queue_family_index(family).queue_priorities(&[1.0])];
    let mut info = vk::DeviceCreateInfo::default()
        .queue_create_infos(&queues)
        .enabled_extension_names(&names)
        .enabled_features(&v10)
        .push_next(&mut v11)
        .push_next(&mut v12)
        .push_next(&mut v13);
    if extensions.contains(&ash::khr::cooperative_matrix::NAME) {
        info = info.push_next(&mut matrix);
    }
    if extensions.contains(&ash::khr::pipeline_executable_properties::NAME) {
        info = info.push_next(&mut executable);
    }
    // SAFETY: the contract was checked: every feature and extension asked for exists; `info` lives until the return.
    unsafe { instance.raw.create_device(physical, &info, None) }.map_err(VulkanError::of("vkCreateDevice"))
}

fn layout(device: &ash::Device, push_bytes: u32) -> Result<vk::PipelineLayout, VulkanError> {
    let ranges =
        [vk::PushConstantRange { stage_flags: vk::ShaderStageFlags::COMPUTE, offset: 0, size: push_bytes & !3 }];
    let info = vk::PipelineLayoutCreateInfo::default().push_constant_ranges(&ranges);
    // SAFETY: the device is alive and the range is within its limit.
    unsafe { device.create_pipeline_layout(&info, None) }.map_err(VulkanError::of("vkCreatePipelineLayout"))
}
