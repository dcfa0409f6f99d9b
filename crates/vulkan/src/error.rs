//! What can go wrong on the way to and on a Vulkan device.

use ash::vk;
use zinc_ir::device::DeviceError;

/// Errors of this crate.
#[derive(thiserror::Error, Debug)]
pub enum VulkanError {
    /// There is no Vulkan loader on this machine.
    #[error("no Vulkan: the loader library could not be opened ({detail}); install libvulkan1 or a GPU driver")]
    NoLoader {
        /// The dynamic linker's words.
        detail: String,
    },
    /// The loader found no driver.
    #[error("no Vulkan: no driver works on this machine ({detail}); install the driver of your GPU")]
    NoDriver {
        /// The loader's words.
        detail: String,
    },
    /// There is no device with the wanted number.
    #[error("no Vulkan device {wanted}; there are {count} (see `zinc devices`)")]
    NoDevice {
        /// Wanted index.
        wanted: usize,
        /// Devices there are.
        count: usize,
    },
    /// The device misses something Zinc needs.
    #[error("device {name} cannot be used: {reason}")]
    NotUsable {
        /// Device name.
        name: String,
        /// What is missing.
        reason: String,
    },
    /// The device was asked for something it has not.
    #[error("kernel {kernel} does not fit this device: {reason}")]
    Unfit {
        /// Kernel.
        kernel: String,
        /// What is missing.
        reason: String,
    },
    /// Not enough device memory.
    #[error("{what} needs {needed} bytes but {available} are free on the device")]
    OutOfMemory {
        /// What was to be allocated.
        what: String,
        /// Bytes.
        needed: u64,
        /// Bytes free.
        available: u64,
    },
    /// The source of a weight does not give what the graph expects.
    #[error("weight {name}: {reason}")]
    Weight {
        /// Tensor name.
        name: String,
        /// What is wrong.
        reason: String,
    },
    /// A Vulkan call failed.
    #[error("{call} failed: {result}")]
    Call {
        /// The call.
        call: &'static str,
        /// Vulkan's result code.
        result: String,
    },
    /// The driver lost the device, or it did not answer in time.
    #[error("the device was lost in {call}: {detail}")]
    Lost {
        /// Where it was noticed.
        call: &'static str,
        /// What is known.
        detail: String,
    },
    /// The device was closed while it compiled.
    #[error("compiling was stopped before its end")]
    Stopped,
    /// A kernel has no SPIR-V form.
    #[error(transparent)]
    Emit(#[from] zinc_spirv::EmitError),
    /// Arguments of a direct kernel run do not match the kernel.
    #[error("kernel {kernel}: {reason}")]
    Arguments {
        /// Kernel.
        kernel: String,
        /// What does not match.
        reason: String,
    },
}

impl VulkanError {
    /// Wraps the result of `call`.
    pub(crate) fn of(call: &'static str) -> impl Fn(vk::Result) -> VulkanError {
        move |result| match result {
            vk::Result::ERROR_DEVICE_LOST => VulkanError::Lost { call, detail: "reported by the driver".into() },
            other => VulkanError::Call { call, result: format!("{other:?}") },
        }
    }
}

impl From<VulkanError> for DeviceError {
    fn from(e: VulkanError) -> DeviceError {
        match e {
            VulkanError::OutOfMemory { what, needed, available } => {
                DeviceError::OutOfMemory { what, needed, available }
            }
            VulkanError::Lost { call, detail } => DeviceError::Lost { during: call.to_string(), detail },
            VulkanError::Unfit { .. } | VulkanError::NotUsable { .. } => DeviceError::Unsupported(e.to_string()),
            VulkanError::Call { call, result } => DeviceError::Driver { call: call.to_string(), detail: result },
            other => DeviceError::Driver { call: "kernel".to_string(), detail: other.to_string() },
        }
    }
}
