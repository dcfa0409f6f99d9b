//! The Vulkan device that tests run on: chosen from outside.

use zinc_vulkan::{Options, VulkanDevice, list_devices};

/// Opens the first device that can run something. `None` (and a line that says so) when there is none; but where the
/// runner names a driver set, there must be one.
pub(crate) fn vulkan(options: &Options) -> Option<VulkanDevice> {
    let wanted = std::env::var("ZINC_TEST_VULKAN").ok();
    if wanted.as_deref().is_some_and(|d| d.starts_with("radv:")) {
        println!("not run: the driver has no hardware");
        return None;
    }
    let devices = list_devices().unwrap_or_default();
    let Some(report) = devices.iter().find(|d| d.usable.is_ok() && !d.no_hardware) else {
        assert!(wanted.is_none(), "no usable device with {wanted:?}: {devices:?}");
        println!("not run: no Vulkan device");
        return None;
    };
    Some(VulkanDevice::open(report.index, options).expect("a usable device opens"))
}
