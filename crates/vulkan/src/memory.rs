//! Buffers: each has a device address and its own allocation.
//!
//! ```text
//! Place::Device      weights, KV, scratch     device memory, not mapped
//! Place::Upload      staging                  host memory the CPU writes
//! Place::Parameters  step inputs              mapped device memory where there is some, else host memory
//! Place::ReadBack    outputs                  host memory the CPU reads through its caches
//! ```

use crate::device::Gpu;
use crate::error::VulkanError;
use ash::vk;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// What a buffer is for: decides its memory type.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    Device,
    Upload,
    Parameters,
    ReadBack,
}

/// A buffer with its memory.
pub(crate) struct Buffer {
    gpu: Arc<Gpu>,
    pub(crate) raw: vk::Buffer,
    memory: vk::DeviceMemory,
    pub(crate) bytes: u64,
    /// Bytes of device memory it takes (0 in host memory).
    charged: u64,
    /// Device address of byte 0.
    pub(crate) address: u64,
    mapped: Option<std::ptr::NonNull<u8>>,
}

// SAFETY: the mapped pointer is owned by the buffer like a Box: access goes through `&self` and `&mut self`.
unsafe impl Send for Buffer {}
// SAFETY: shared access only reads.
unsafe impl Sync for Buffer {}

impl Place {
    /// Flags the memory must have, should have, and should rather not have.
    fn flags(self) -> [vk::MemoryPropertyFlags; 3] {
        use vk::MemoryPropertyFlags as F;
        let host = F::HOST_VISIBLE | F::HOST_COHERENT;
        match self {
            // Weights stay out of the CPU's window into device memory: it may be small.
            Place::Device => [F::DEVICE_LOCAL, F::empty(), F::HOST_VISIBLE],
            Place::Upload => [host, F::empty(), F::DEVICE_LOCAL | F::HOST_CACHED],
            Place::Parameters => [host, F::DEVICE_LOCAL, F::HOST_CACHED],
            Place::ReadBack => [host, F::HOST_CACHED, F::DEVICE_LOCAL],
        }
    }
}

impl Gpu {
    /// Bytes of the heap that device buffers come from that are free for this process, and its size.
    pub(crate) fn device_memory(&self) -> (u64, u64) {
        let heaps = self.memory_types.memory_heaps_as_slice();
        let local = |i: &usize| heaps[*i].flags.contains(vk::MemoryHeapFlags::DEVICE_LOCAL);
        let Some(heap) = (0..heaps.len()).filter(local).max_by_key(|i| heaps[*i].size) else { return (0, 0) };
        let size = heaps[heap].size;
        if !self.has_budget || self.report.no_hardware {
            return (size.saturating_sub(self.used.load(Ordering::Relaxed)), size);
        }
        let mut budget = vk::PhysicalDeviceMemoryBudgetPropertiesEXT::default();
        let mut all = vk::PhysicalDeviceMemoryProperties2::default().push_next(&mut budget);
        // SAFETY: the device has the extension.
        unsafe { self.instance.raw.get_physical_device_memory_properties2(self.physical, &mut all) };
        (budget.heap_budget[heap].saturating_sub(budget.heap_usage[heap]), size)
    }

    fn memory_type(&self, allowed: u32, place: Place) -> Option<u32> {
        let [must, should, rather_not] = place.flags();
        // Uncached AMD types need a feature of their own.
        let never = vk::MemoryPropertyFlags::DEVICE_UNCACHED_AMD
            | vk::MemoryPropertyFlags::DEVICE_COHERENT_AMD
            | vk::MemoryPropertyFlags::LAZILY_ALLOCATED
            | vk::MemoryPropertyFlags::PROTECTED;
        let types = self.memory_types.memory_types_as_slice();
        let fits = |i: &usize| {
            let flags = types[*i].property_flags;
            allowed & (1 << i) != 0 && flags.contains(must) && !flags.intersects(never)
        };
        let count = |f: vk::MemoryPropertyFlags| f.as_raw().count_ones() as i32;
        let cost = |i: &usize| {
            let flags = types[*i].property_flags;
            count(flags & rather_not) - 4 * count(flags & should)
        };
        (0..types.len()).filter(fits).min_by_key(cost).map(|i| i as u32)
    }
}

impl Buffer {
    /// Allocates `bytes` (at least 16). `what` names the content in errors.
    pub(crate) fn new(gpu: &Arc<Gpu>, bytes: u64, place: Place, what: &str) -> Result<Buffer, VulkanError> {
        let bytes = bytes.max(16).next_multiple_of(16);
        let too_large = |available| VulkanError::OutOfMemory { what: what.to_string(), needed: bytes, available };
        let limit = gpu.report.max_buffer.min(gpu.report.max_allocation);
        if bytes > limit {
            return Err(too_large(limit));
        }
        if place == Place::Device {
            let (available, _) = gpu.device_memory();
            if bytes > available {
                return Err(too_large(available));
            }
        }
        let raw = create(gpu, bytes)?;
        let mut buffer = Buffer {
            gpu: gpu.clone(),
            raw,
            memory: vk::DeviceMemory::null(),
            bytes,
            charged: 0,
            address: 0,
            mapped: None,
        };
        buffer.bind(place, &too_large)?;
        Ok(buffer)
    }

    /// Allocates and binds memory; on an error the buffer is dropped by the caller.
    fn bind(&mut self, place: Place, too_large: &dyn Fn(u64) -> VulkanError) -> Result<(), VulkanError> {
        let gpu = self.gpu.clone();
        // SAFETY: the buffer was just created from this device.
        let needs = unsafe { gpu.raw.get_buffer_memory_requirements(self.raw) };
        let kind = gpu.memory_type(needs.memory_type_bits, place);
        let kind = kind.ok_or(VulkanError::Call { call: "memory type", result: format!("none for {place:?}") })?;
        let mut flags = vk::MemoryAllocateFlagsInfo::default().flags(vk::MemoryAllocateFlags::DEVICE_ADDRESS);
        let info =
            vk::MemoryAllocateInfo::default().allocation_size(needs.size).memory_type_index(kind).push_next(&mut flags);
        // SAFETY: size and type come from the driver's own requirements.
        self.memory = unsafe { gpu.raw.allocate_memory(&info, None) }.map_err(|e| match e {
            vk::Result::ERROR_OUT_OF_DEVICE_MEMORY | vk::Result::ERROR_OUT_OF_HOST_MEMORY => {
                too_large(gpu.device_memory().0)
            }
            other => VulkanError::of("vkAllocateMemory")(other),
        })?;
        let flags = gpu.memory_types.memory_types_as_slice()[kind as usize].property_flags;
        if flags.contains(vk::MemoryPropertyFlags::DEVICE_LOCAL) {
            self.charged = needs.size;
            gpu.used.fetch_add(needs.size, Ordering::Relaxed);
        }
        // SAFETY: fresh buffer, fresh memory of the right type and size; the address is asked after binding.
        unsafe {
            gpu.raw.bind_buffer_memory(self.raw, self.memory, 0).map_err(VulkanError::of("vkBindBufferMemory"))?;
            let info = vk::BufferDeviceAddressInfo::default().buffer(self.raw);
            self.address = gpu.raw.get_buffer_device_address(&info);
            if place != Place::Device {
                let at = gpu.raw.map_memory(self.memory, 0, vk::WHOLE_SIZE, vk::MemoryMapFlags::empty());
                self.mapped = std::ptr::NonNull::new(at.map_err(VulkanError::of("vkMapMemory"))?.cast());
            }
        }
        Ok(())
    }

    /// The bytes of a mapped buffer; empty for `Place::Device`. The caller knows that the device is not writing.
    pub(crate) fn host(&self) -> &[u8] {
        match self.mapped {
            // SAFETY: the mapping covers the buffer and lives as long as it.
            Some(at) => unsafe { std::slice::from_raw_parts(at.as_ptr(), self.bytes as usize) },
            None => &[],
        }
    }

    /// The bytes of a mapped buffer, to write. The caller knows that the device is not using them.
    pub(crate) fn host_mut(&mut self) -> &mut [u8] {
        match self.mapped {
            // SAFETY: as `host`, and `&mut self` makes the access exclusive.
            Some(at) => unsafe { std::slice::from_raw_parts_mut(at.as_ptr(), self.bytes as usize) },
            None => &mut [],
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.gpu.is_abandoned() {
            return;
        }
        self.gpu.used.fetch_sub(self.charged, Ordering::Relaxed);
        // SAFETY: owners drop buffers only after waiting for the work that uses them; null memory is ignored.
        unsafe {
            self.gpu.raw.destroy_buffer(self.raw, None);
            self.gpu.raw.free_memory(self.memory, None);
        }
    }
}

fn create(gpu: &Gpu, bytes: u64) -> Result<vk::Buffer, VulkanError> {
    let usage = vk::BufferUsageFlags::STORAGE_BUFFER
        | vk::BufferUsageFlags::SHADER_DEVICE_ADDRESS
        | vk::BufferUsageFlags::TRANSFER_SRC
        | vk::BufferUsageFlags::TRANSFER_DST;
    let info = vk::BufferCreateInfo::default().size(bytes).usage(usage);
    // SAFETY: `bytes` is positive and within the device's limit.
    unsafe { gpu.raw.create_buffer(&info, None) }.map_err(VulkanError::of("vkCreateBuffer"))
}
