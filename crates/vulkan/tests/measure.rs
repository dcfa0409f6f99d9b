//! A device measures itself: figures are there, sound, and in an order that any machine keeps.

mod support;

use support::{device, no_messages};
use zinc_ir::device::Device;
use zinc_ir::kernel::Scalar;
use zinc_ir::measured::FORMAT;
use zinc_vulkan::Options;

#[test]
fn a_device_measures_itself() {
    let Some(mut device) = device(Options::default()) else { return };
    let used = device.memory().used;
    let measured = device.measure().expect("measures");
    println!("{measured:#?}");
    assert!(measured.is_sound(), "{measured:?}");
    assert_eq!(measured.format, FORMAT);
    assert_eq!(measured.identity, device.report().identity());
    assert!(measured.read_over >= 1 << 20);
    let widths: Vec<u32> = [4, 8, 16].into_iter().filter(|w| measured.read_by(*w).is_some()).collect();
    assert_eq!(widths, [4, 8, 16]);
    assert!(measured.launches.len() >= 2 && measured.launches[0].workgroups == 1);
    let submit = measured.submit.expect("submissions are timed");
    assert!(submit.call < submit.asleep && submit.call < submit.watching, "{submit:?}");
    let halves = device.caps().matrices.iter().filter(|s| s.input == Scalar::F16).count();
    assert_eq!(measured.matrices.len(), halves);
    assert!(measured.took > 0.0);
    assert_eq!(device.memory().used, used, "measuring gives its memory back");
    no_messages(&device);
}
