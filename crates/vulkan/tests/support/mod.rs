//! The Vulkan device that tests run on: chosen from outside, validated.

#![allow(dead_code)] // Each test file uses its part.

use zinc_vulkan::{Options, VulkanDevice, list_devices};

/// The driver set named by the test runner, if any.
pub(crate) fn driver() -> Option<String> {
    std::env::var("ZINC_TEST_VULKAN").ok()
}

/// Opens the first usable device, with the validation layer where it is installed. None (and a line that says so) when
/// there is none; but where the runner names a driver set, there must be one.
pub(crate) fn device(options: Options) -> Option<VulkanDevice> {
    let wanted = driver();
    if wanted.as_deref().is_some_and(|d| d.starts_with("radv:")) {
        println!("not run: the driver has no hardware");
        return None;
    }
    let devices = list_devices().unwrap_or_default();
    let found = devices.iter().find(|d| d.usable.is_ok() && !d.no_hardware);
    match (found, wanted) {
        (Some(report), _) => {
            let options = Options { validation: true, emulated_matrices: true, ..options };
            Some(VulkanDevice::open(report.index, &options).expect("a usable device opens"))
        }
        (None, Some(wanted)) => panic!("no usable device with {wanted}: {devices:?}"),
        (None, None) => {
            println!("not run: no Vulkan device");
            None
        }
    }
}

/// Fails on anything the validation layer said.
pub(crate) fn no_messages(device: &VulkanDevice) {
    let messages = device.validation_messages();
    assert!(messages.is_empty(), "the validation layer said:\n{}", messages.join("\n"));
}
