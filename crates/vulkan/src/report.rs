//! What physical devices there are, what they can do, and why one cannot be used.
//!
//! ```text
//! vkGetPhysicalDevice{Properties2, Features2, MemoryProperties, …} ─► DeviceReport ─► Caps
//! ```

use crate::error::VulkanError;
use crate::instance::Instance;
use ash::vk;
use std::ffi::CStr;
use zinc_ir::device::{Caps, MatrixShape};
use zinc_ir::kernel::Scalar;

/// How a device is attached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeviceType {
    /// A graphics card with its own memory.
    Discrete,
    /// A GPU in the processor.
    Integrated,
    /// A share of a GPU.
    Virtual,
    /// A driver that computes on the CPU.
    Software,
    /// Anything else.
    Other,
}

/// A memory heap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Heap {
    /// Bytes.
    pub bytes: u64,
    /// Memory of the device itself.
    pub device_local: bool,
    /// The CPU can write it directly.
    pub host_visible: bool,
}

/// One physical device.
#[derive(Clone, PartialEq, Debug)]
pub struct DeviceReport {
    /// Number to choose it by.
    pub index: usize,
    /// Name.
    pub name: String,
    /// PCI vendor id.
    pub vendor_id: u32,
    /// PCI device id.
    pub device_id: u32,
    /// Kind.
    pub device_type: DeviceType,
    /// Driver name, e.g. `radv`.
    pub driver: String,
    /// Driver version in its own words.
    pub driver_info: String,
    /// Driver version number.
    pub driver_version: u32,
    /// Vulkan version, e.g. `1.3.274`.
    pub api_version: String,
    /// Changes when compiled pipelines of an older driver cannot be used.
    pub pipeline_cache_uuid: [u8; 16],
    /// Identity of the device.
    pub device_uuid: [u8; 16],
    /// Identity of the driver build.
    pub driver_uuid: [u8; 16],
    /// Where it sits, in Linux's spelling (`0000:03:00.0`), where the driver tells.
    pub bus_address: Option<String>,
    /// Memory.
    pub heaps: Vec<Heap>,
    /// The driver has no hardware behind it: pipelines compile, nothing can run.
    pub no_hardware: bool,
    /// Subgroup size a shader gets unless it asks for another.
    pub subgroup_size: u32,
    /// Smallest and largest size that can be asked for; equal when there is no choice.
    pub subgroup_range: (u32, u32),
    /// Most lanes per workgroup.
    pub max_workgroup: u32,
    /// Most workgroups per axis.
    pub max_grid: [u32; 3],
    /// Bytes of workgroup memory.
    pub shared_bytes: u32,
    /// Bytes of push constants.
    pub push_bytes: u32,
    /// Largest buffer.
    pub max_buffer: u64,
    /// Largest allocation.
    pub max_allocation: u64,
    /// Compute units (AMD) or streaming multiprocessors (NVIDIA), where the driver tells.
    pub compute_units: Option<u32>,
    /// Cooperative-matrix shapes of subgroup scope whose element types Zinc has.
    pub matrices: Vec<MatrixShape>,
    /// Packed byte dot products are hardware instructions (signed, and mixed).
    pub dot4_accelerated: (bool, bool),
    /// Nanoseconds per timestamp tick, if the device has a clock.
    pub timestamp_period: Option<f32>,
    /// Optional extensions that Zinc makes use of.
    pub extensions: Vec<&'static str>,
    /// Pipelines may ask for a subgroup size.
    pub(crate) sizes_selectable: bool,
    /// Most subgroups per workgroup.
    pub(crate) max_subgroups: u32,
    /// Half conversions can be made to round to even; F32 keeps infinities.
    pub(crate) float_modes: zinc_spirv::FloatModes,
    /// Why Zinc cannot use it.
    pub usable: Result<(), String>,
}

/// Lanes of a subgroup in products of few rows on matrices, where the device would take more by itself.
const WIDE: u32 = 32;

/// Extensions that are used where they exist.
const OPTIONAL: [&CStr; 6] = [
    ash::ext::memory_budget::NAME,
    ash::khr::cooperative_matrix::NAME,
    ash::khr::pipeline_executable_properties::NAME,
    ash::amd::shader_core_properties::NAME,
    ash::nv::shader_sm_builtins::NAME,
    ash::ext::pci_bus_info::NAME,
];

/// Every physical device on this machine. An error says that there is no Vulkan at all, and why.
pub fn list_devices() -> Result<Vec<DeviceReport>, VulkanError> {
    let instance = Instance::open(false)?;
    let devices = instance.physical_devices()?;
    Ok(devices.iter().enumerate().map(|(i, d)| report(&instance, *d, i)).collect())
}

impl DeviceReport {
    /// Abilities as the compiler sees them, for kernels of `subgroup_size` lanes per subgroup.
    pub fn caps(&self, subgroup_size: u32) -> Caps {
        let parallel = match (self.device_type, self.compute_units) {
            (DeviceType::Software, _) => std::thread::available_parallelism().map_or(4, |n| n.get() as u32) * 4,
            // Eight workgroups of 256 lanes fill one compute unit or multiprocessor.
            (_, Some(units)) => units * 8,
            (DeviceType::Integrated, None) => 64,
            (_, None) => 256,
        };
        Caps {
            native: false,
            subgroup_size,
            matrix_lanes: if subgroup_size > WIDE && self.subgroup_range.0 <= WIDE { WIDE } else { subgroup_size },
            // lavapipe with subgroups of 4 has 128 lanes, not 1024: the number of subgroups is limited too.
            max_workgroup: self.max_workgroup.min(self.max_subgroups.saturating_mul(subgroup_size)),
            max_shared_bytes: self.shared_bytes,
            max_grid: self.max_grid,
            matrices: self.matrices.clone(),
            quads: false,
            parallel_tiles: parallel,
        }
    }

    /// What measured figures hold for: this device with this driver. Fit for a file's name.
    pub fn identity(&self) -> String {
        let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
        format!("{}-{}-{:x}", hex(&self.device_uuid), hex(&self.driver_uuid), self.driver_version)
    }

    /// Memory in which weights would live.
    pub fn device_memory(&self) -> u64 {
        self.heaps.iter().filter(|h| h.device_local).map(|h| h.bytes).max().unwrap_or(0)
    }
}

/// Optional extensions a device has, without those whose feature is off (lavapipe's matrices need wide vectors).
pub(crate) fn extensions(instance: &Instance, device: vk::PhysicalDevice) -> Vec<&'static CStr> {
    // SAFETY: `device` belongs to the living instance.
    let found = unsafe { instance.raw.enumerate_device_extension_properties(device) }.unwrap_or_default();
    let has = |name: &CStr| found.iter().any(|e| e.extension_name_as_c_str() == Ok(name));
    let mut matrix = vk::PhysicalDeviceCooperativeMatrixFeaturesKHR::default();
    let mut executable = vk::PhysicalDevicePipelineExecutablePropertiesFeaturesKHR::default();
    let mut all = vk::PhysicalDeviceFeatures2::default();
    if has(ash::khr::cooperative_matrix::NAME) {
        all = all.push_next(&mut matrix);
    }
    if has(ash::khr::pipeline_executable_properties::NAME) {
        all = all.push_next(&mut executable);
    }
    // SAFETY: the chain holds only structures of extensions the device has.
    unsafe { instance.raw.get_physical_device_features2(device, &mut all) };
    let off = |name: &CStr| {
        (name == ash::khr::cooperative_matrix::NAME && matrix.cooperative_matrix == vk::FALSE)
            || (name == ash::khr::pipeline_executable_properties::NAME
                && executable.pipeline_executable_info == vk::FALSE)
    };
    OPTIONAL.into_iter().filter(|name| has(name) && !off(name)).collect()
}

/// All property structures Zinc reads.
#[derive(Default)]
struct Properties {
    v10: vk::PhysicalDeviceProperties,
    v11: vk::PhysicalDeviceVulkan11Properties<'static>,
    v12: vk::PhysicalDeviceVulkan12Properties<'static>,
    v13: vk::PhysicalDeviceVulkan13Properties<'static>,
    amd: vk::PhysicalDeviceShaderCorePropertiesAMD<'static>,
    nv: vk::PhysicalDeviceShaderSMBuiltinsPropertiesNV<'static>,
    pci: Option<vk::PhysicalDevicePCIBusInfoPropertiesEXT<'static>>,
}

fn properties(instance: &Instance, device: vk::PhysicalDevice, has: &dyn Fn(&CStr) -> bool) -> Properties {
    let mut p = Properties::default();
    let (mut v11, mut v12, mut v13) = (p.v11, p.v12, p.v13);
    let (mut amd, mut nv, mut pci) = (p.amd, p.nv, vk::PhysicalDevicePCIBusInfoPropertiesEXT::default());
    let on_bus = has(ash::ext::pci_bus_info::NAME);
    let mut all = vk::PhysicalDeviceProperties2::default().push_next(&mut v11).push_next(&mut v12).push_next(&mut v13);
    if has(ash::amd::shader_core_properties::NAME) {
        all = all.push_next(&mut amd);
    }
    if has(ash::nv::shader_sm_builtins::NAME) {
        all = all.push_next(&mut nv);
    }
    if on_bus {
        all = all.push_next(&mut pci);
    }
    // SAFETY: the chain holds only structures of Vulkan 1.3 and of extensions the device has.
    unsafe { instance.raw.get_physical_device_properties2(device, &mut all) };
    p.v10 = all.properties;
    // The chain's pointers to locals must not escape.
    (p.v11, p.v12, p.v13, p.amd, p.nv) = (v11, v12, v13, amd, nv);
    p.v11.p_next = std::ptr::null_mut();
    p.v12.p_next = std::ptr::null_mut();
    p.v13.p_next = std::ptr::null_mut();
    p.amd.p_next = std::ptr::null_mut();
    p.nv.p_next = std::ptr::null_mut();
    pci.p_next = std::ptr::null_mut();
    p.pci = on_bus.then_some(pci);
    p
}

pub(crate) fn report(instance: &Instance, device: vk::PhysicalDevice, index: usize) -> DeviceReport {
    // SAFETY: `device` belongs to the living instance.
    let v10 = unsafe { instance.raw.get_physical_device_properties(device) };
    let found = extensions(instance, device);
    let old = v10.api_version < vk::API_VERSION_1_3;
    let has = |name: &CStr| !old && found.contains(&name);
    let p = if old { Properties { v10, ..Properties::default() } } else { properties(instance, device, &has) };
    let heaps = heaps(instance, device);
    let name = text(p.v10.device_name_as_c_str());
    let no_hardware = heaps.iter().all(|h| h.bytes == 0);
    let l = &p.v10.limits;
    let sizes_selectable = p.v13.required_subgroup_size_stages.contains(vk::ShaderStageFlags::COMPUTE);
    let fixed = (p.v11.subgroup_size, p.v11.subgroup_size);
    let mut report = DeviceReport {
        index,
        name,
        vendor_id: p.v10.vendor_id,
        device_id: p.v10.device_id,
        device_type: device_type(p.v10.device_type),
        driver: text(p.v12.driver_name_as_c_str()),
        driver_info: text(p.v12.driver_info_as_c_str()),
        driver_version: p.v10.driver_version,
        api_version: version(p.v10.api_version),
        pipeline_cache_uuid: p.v10.pipeline_cache_uuid,
        device_uuid: p.v11.device_uuid,
        driver_uuid: p.v11.driver_uuid,
        bus_address: p.pci.map(|pci| {
            format!("{:04x}:{:02x}:{:02x}.{:x}", pci.pci_domain, pci.pci_bus, pci.pci_device, pci.pci_function)
        }),
        heaps,
        no_hardware,
        subgroup_size: p.v11.subgroup_size,
        subgroup_range: if sizes_selectable { (p.v13.min_subgroup_size, p.v13.max_subgroup_size) } else { fixed },
        max_workgroup: l.max_compute_work_group_invocations.min(l.max_compute_work_group_size[0]),
        max_grid: l.max_compute_work_group_count,
        shared_bytes: l.max_compute_shared_memory_size,
        push_bytes: l.max_push_constants_size,
        max_buffer: p.v13.max_buffer_size,
        max_allocation: p.v11.max_memory_allocation_size,
        compute_units: compute_units(&p),
        matrices: vec![],
        dot4_accelerated: (
            p.v13.integer_dot_product4x8_bit_packed_signed_accelerated == vk::TRUE,
            p.v13.integer_dot_product4x8_bit_packed_mixed_signedness_accelerated == vk::TRUE,
        ),
        timestamp_period: (l.timestamp_period > 0.0 && l.timestamp_period.is_finite()).then_some(l.timestamp_period),
        extensions: found.iter().filter_map(|e| e.to_str().ok()).collect(),
        sizes_selectable,
        max_subgroups: p.v13.max_compute_workgroup_subgroups,
        float_modes: float_modes(&p.v12),
        usable: Ok(()),
    };
    report.usable = if old {
        Err(format!("Vulkan {} is too old; 1.3 is needed (update the driver)", report.api_version))
    } else {
        contract(instance, device, &p)
    };
    // Mesa 26.1's llvmpipe crashes when it compiles a matrix product for 512-bit vectors.
    let crashes = report.driver == "llvmpipe" && report.subgroup_size == 16;
    if has(ash::khr::cooperative_matrix::NAME) && report.usable.is_ok() && !crashes {
        report.matrices = matrices(instance, device);
    }
    report
}

fn text(name: Result<&CStr, std::ffi::FromBytesUntilNulError>) -> String {
    name.map(|t| t.to_string_lossy().into_owned()).unwrap_or_default()
}

fn version(v: u32) -> String {
    format!("{}.{}.{}", vk::api_version_major(v), vk::api_version_minor(v), vk::api_version_patch(v))
}

fn device_type(t: vk::PhysicalDeviceType) -> DeviceType {
    match t {
        vk::PhysicalDeviceType::DISCRETE_GPU => DeviceType::Discrete,
        vk::PhysicalDeviceType::INTEGRATED_GPU => DeviceType::Integrated,
        vk::PhysicalDeviceType::VIRTUAL_GPU => DeviceType::Virtual,
        vk::PhysicalDeviceType::CPU => DeviceType::Software,
        _ => DeviceType::Other,
    }
}

fn heaps(instance: &Instance, device: vk::PhysicalDevice) -> Vec<Heap> {
    // SAFETY: `device` belongs to the living instance.
    let m = unsafe { instance.raw.get_physical_device_memory_properties(device) };
    let types = m.memory_types_as_slice();
    let heap = |(i, h): (usize, &vk::MemoryHeap)| Heap {
        bytes: h.size,
        device_local: h.flags.contains(vk::MemoryHeapFlags::DEVICE_LOCAL),
        host_visible: types
            .iter()
            .any(|t| t.heap_index as usize == i && t.property_flags.contains(vk::MemoryPropertyFlags::HOST_VISIBLE)),
    };
    m.memory_heaps_as_slice().iter().enumerate().map(heap).collect()
}

fn compute_units(p: &Properties) -> Option<u32> {
    let amd = p.amd.shader_engine_count * p.amd.shader_arrays_per_engine_count * p.amd.compute_units_per_shader_array;
    Some(amd.max(p.nv.shader_sm_count)).filter(|n| *n > 0)
}

fn float_modes(v12: &vk::PhysicalDeviceVulkan12Properties<'_>) -> zinc_spirv::FloatModes {
    let apart = v12.rounding_mode_independence == vk::ShaderFloatControlsIndependence::ALL;
    zinc_spirv::FloatModes {
        rte_f16: v12.shader_rounding_mode_rte_float16 == vk::TRUE && apart,
        preserve_f32: v12.shader_signed_zero_inf_nan_preserve_float32 == vk::TRUE,
    }
}

fn scalar(t: vk::ComponentTypeKHR) -> Option<Scalar> {
    Some(match t {
        vk::ComponentTypeKHR::FLOAT16 => Scalar::F16,
        vk::ComponentTypeKHR::FLOAT32 => Scalar::F32,
        vk::ComponentTypeKHR::SINT8 => Scalar::I8,
        vk::ComponentTypeKHR::UINT8 => Scalar::U8,
        vk::ComponentTypeKHR::SINT32 => Scalar::I32,
        vk::ComponentTypeKHR::UINT32 => Scalar::U32,
        _ => return None,
    })
}

fn matrices(instance: &Instance, device: vk::PhysicalDevice) -> Vec<MatrixShape> {
    let ext = ash::khr::cooperative_matrix::Instance::new(&instance.entry, &instance.raw);
    // SAFETY: the device has the extension.
    let rows = unsafe { ext.get_physical_device_cooperative_matrix_properties(device) }.unwrap_or_default();
    let shape = |r: &vk::CooperativeMatrixPropertiesKHR<'_>| {
        let plain = r.scope == vk::ScopeKHR::SUBGROUP
            && r.a_type == r.b_type
            && r.c_type == r.result_type
            && r.saturating_accumulation == vk::FALSE;
        let small = |x: u32| u8::try_from(x).ok();
        plain.then_some(())?;
        Some(MatrixShape {
            m: small(r.m_size)?,
            n: small(r.n_size)?,
            k: small(r.k_size)?,
            input: scalar(r.a_type)?,
            acc: scalar(r.c_type)?,
        })
    };
    let mut shapes: Vec<MatrixShape> = rows.iter().filter_map(shape).collect();
    shapes.dedup();
    shapes
}

/// Checks what every usable device must have; the error lists all that is missing.
fn contract(instance: &Instance, device: vk::PhysicalDevice, p: &Properties) -> Result<(), String> {
    let mut v11 = vk::PhysicalDeviceVulkan11Features::default();
    let mut v12 = vk::PhysicalDeviceVulkan12Features::default();
    let mut v13 = vk::PhysicalDeviceVulkan13Features::default();
    let mut all = vk::PhysicalDeviceFeatures2::default().push_next(&mut v11).push_next(&mut v12).push_next(&mut v13);
    // SAFETY: the chain holds only Vulkan 1.3 structures and the device is 1.3.
    unsafe { instance.raw.get_physical_device_features2(device, &mut all) };
    let v10 = all.features;
    // SAFETY: `device` belongs to the living instance.
    let queues = unsafe { instance.raw.get_physical_device_queue_family_properties(device) };
    let compute = queues.iter().any(|q| q.queue_flags.contains(vk::QueueFlags::COMPUTE));
    let subgroup = p.v11.subgroup_supported_operations;
    let rows = [
        (v10.shader_int64 == vk::TRUE, "shaderInt64"),
        (v10.shader_int16 == vk::TRUE, "shaderInt16"),
        (v11.storage_buffer16_bit_access == vk::TRUE, "storageBuffer16BitAccess"),
        (v12.storage_buffer8_bit_access == vk::TRUE, "storageBuffer8BitAccess"),
        (v12.shader_int8 == vk::TRUE, "shaderInt8"),
        (v12.shader_float16 == vk::TRUE, "shaderFloat16"),
        (v12.buffer_device_address == vk::TRUE, "bufferDeviceAddress"),
        (v12.scalar_block_layout == vk::TRUE, "scalarBlockLayout"),
        (v12.vulkan_memory_model == vk::TRUE, "vulkanMemoryModel"),
        (v12.vulkan_memory_model_device_scope == vk::TRUE, "vulkanMemoryModelDeviceScope"),
        (v12.timeline_semaphore == vk::TRUE, "timelineSemaphore"),
        (v12.host_query_reset == vk::TRUE, "hostQueryReset"),
        (v13.subgroup_size_control == vk::TRUE, "subgroupSizeControl"),
        (v13.compute_full_subgroups == vk::TRUE, "computeFullSubgroups"),
        (v13.synchronization2 == vk::TRUE, "synchronization2"),
        (v13.maintenance4 == vk::TRUE, "maintenance4"),
        (v13.shader_integer_dot_product == vk::TRUE, "shaderIntegerDotProduct"),
        (subgroup.contains(vk::SubgroupFeatureFlags::ARITHMETIC), "subgroup arithmetic"),
        (subgroup.contains(vk::SubgroupFeatureFlags::SHUFFLE), "subgroup shuffle"),
        (compute, "a compute queue"),
    ];
    let missing: Vec<&str> = rows.iter().filter(|(there, _)| !there).map(|(_, name)| *name).collect();
    if missing.is_empty() { Ok(()) } else { Err(format!("the driver lacks {}", missing.join(", "))) }
}
