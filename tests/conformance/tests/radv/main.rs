//! Evidence for RDNA without a card: kernels go through the RADV compiler for one family, chosen by the driver set this
//! test runs in (`cargo xtask vk radv:navi33 -- cargo test -p zinc-conformance --test radv`).

mod gate;
mod isa;
mod persistent;
mod products;
mod prompts;
mod single;
mod spills;
mod straight;

use zinc_vulkan::DeviceReport;

/// The family and its device; `None`, with a word about it, where there is no such driver.
fn device() -> Option<(String, DeviceReport)> {
    let driver = std::env::var("ZINC_TEST_VULKAN").unwrap_or_default();
    let Some(family) = driver.strip_prefix("radv:") else {
        println!("not run: no RADV driver without hardware");
        return None;
    };
    let mut devices = zinc_vulkan::list_devices().expect("the driver set has a device").into_iter();
    let device = devices.find(|d| d.no_hardware).expect("the driver set has a RADV device");
    Some((family.to_string(), device))
}
