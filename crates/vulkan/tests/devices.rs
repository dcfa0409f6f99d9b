//! What is said about devices, and the statistics of compiled kernels.

mod support;

use support::driver;
use zinc_ir::kernel::{ArgKind, Builder, Type};
use zinc_vulkan::{Options, VulkanDevice, VulkanError, compile_only, list_devices};

#[test]
fn every_device_is_listed_with_what_matters_or_the_reason() {
    let devices = match list_devices() {
        Ok(devices) => devices,
        Err(e) => {
            assert!(driver().is_none(), "the test driver set has devices: {e}");
            assert!(e.to_string().starts_with("no Vulkan"), "{e}");
            println!("not run: {e}");
            return;
        }
    };
    for d in &devices {
        println!("{d:#?}");
        assert!(!d.name.is_empty());
        match &d.usable {
            Err(reason) => assert!(!reason.is_empty()),
            Ok(()) => {
                let (min, max) = d.subgroup_range;
                assert!((min..=max).contains(&d.subgroup_size), "{d:?}");
                assert!(d.max_workgroup >= 128 && d.shared_bytes >= 16384 && d.push_bytes >= 128);
                assert!(d.no_hardware || d.device_memory() > 0);
                assert!(d.caps(d.subgroup_size).parallel_tiles > 0);
            }
        }
    }
}

#[test]
fn an_index_beyond_the_list_is_an_error() {
    let Ok(devices) = list_devices() else { return println!("not run: no Vulkan device") };
    match VulkanDevice::open(devices.len(), &Options::default()) {
        Err(VulkanError::NoDevice { count, .. }) => assert_eq!(count, devices.len()),
        other => panic!("{:?}", other.err()),
    }
}

#[test]
fn a_subgroup_size_the_device_lacks_is_an_error() {
    let devices = list_devices().unwrap_or_default();
    let Some(d) = devices.iter().find(|d| d.usable.is_ok() && !d.no_hardware) else {
        return println!("not run: no Vulkan device");
    };
    let options = Options { subgroup_size: Some(d.subgroup_range.1 * 2), ..Options::default() };
    assert!(matches!(VulkanDevice::open(d.index, &options), Err(VulkanError::NotUsable { .. })));
}

#[test]
fn statistics_come_from_the_driver() {
    let devices = list_devices().unwrap_or_default();
    let has = |d: &&zinc_vulkan::DeviceReport| {
        d.usable.is_ok() && d.extensions.contains(&"VK_KHR_pipeline_executable_properties")
    };
    let Some(d) = devices.iter().find(has) else { return println!("not run: no driver with statistics") };
    let b = Builder::new("scale", 64, d.subgroup_size);
    let (x, y) = (b.arg("x", ArgKind::Read), b.arg("y", ArgKind::Write));
    let i = b.tile(0) * 64 + b.local_id();
    b.store(y, i * 16, b.load(Type::F32X4, x, i * 16, 16) * 2.0, 16);
    let stats = compile_only(d.index, &[b.finish()], true).expect("compiles");
    println!("{:#?}", stats[0]);
    assert_eq!(stats.len(), 1);
    assert!(!stats[0].raw.is_empty());
    if driver().is_some_and(|d| d.starts_with("radv:")) {
        let s = &stats[0];
        assert_eq!(s.spills, Some(0));
        assert!(s.vgprs.is_some_and(|v| v > 0) && s.code.is_some_and(|c| c > 0), "{s:?}");
        let assembly = s.assembly.as_deref().unwrap_or_default();
        assert!(assembly.contains("global_load_b128") || assembly.contains("global_load_dwordx4"), "{assembly}");
    }
}
