//! The device's power, as Linux's hwmon tells it.
//!
//! ```text
//! PCI address ─► /sys/bus/pci/devices/ADDRESS/hwmon/hwmonN/power1_{average,input} ─ a thread, ten times a second ─► watts
//! ```
//!
//! Reading it asks the card's own controller, which can take milliseconds: not something to do between two steps.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;
use zinc_serve::Power;

/// From one reading to the next.
const PERIOD: Duration = Duration::from_millis(100);

/// The meter of the device at this address; `None` if it has none.
pub(crate) fn meter(address: &str) -> Option<Power> {
    let sensor = sensor(Path::new("/sys/bus/pci/devices"), address)?;
    let now = Arc::new(AtomicU32::new(read(&sensor)?.to_bits()));
    let reader = Arc::downgrade(&now);
    let watch = move || {
        while let Some(now) = reader.upgrade() {
            now.store(read(&sensor).unwrap_or(f32::NAN).to_bits(), Relaxed);
            drop(now);
            std::thread::sleep(PERIOD);
        }
    };
    std::thread::Builder::new().name("zinc-power".into()).spawn(watch).ok()?;
    Some(Power::new(move || Some(f32::from_bits(now.load(Relaxed))).filter(|watts| watts.is_finite())))
}

/// The file that has a device's power, below the folder of all devices. Where there is an average, that is what is wanted.
fn sensor(devices: &Path, address: &str) -> Option<PathBuf> {
    let monitors = fs::read_dir(devices.join(address).join("hwmon")).ok()?.flatten().map(|entry| entry.path());
    let files = monitors.flat_map(|folder| ["power1_average", "power1_input"].map(|name| folder.join(name)));
    files.into_iter().find(|file| read(file).is_some())
}

/// Watts; the file has microwatts.
fn read(file: &Path) -> Option<f32> {
    let microwatts: f64 = fs::read_to_string(file).ok()?.trim().parse().ok()?;
    Some((microwatts / 1e6) as f32).filter(|watts| watts.is_finite() && *watts >= 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_average_is_taken_where_there_is_one() {
        let devices = std::env::temp_dir().join(format!("zinc-power-{}", std::process::id()));
        let monitor = devices.join("0000:03:00.0/hwmon/hwmon5");
        fs::create_dir_all(&monitor).expect("a folder");
        assert_eq!(sensor(&devices, "0000:03:00.0"), None);
        fs::write(monitor.join("power1_input"), "151000000\n").expect("written");
        let input = sensor(&devices, "0000:03:00.0").expect("a sensor");
        assert_eq!(read(&input), Some(151.0));
        fs::write(monitor.join("power1_average"), "?\n").expect("written");
        assert_eq!(sensor(&devices, "0000:03:00.0"), Some(input), "one that gives no number is none");
        fs::write(monitor.join("power1_average"), "90500000\n").expect("written");
        assert_eq!(read(&sensor(&devices, "0000:03:00.0").expect("a sensor")), Some(90.5));
        assert_eq!(sensor(&devices, "0000:04:00.0"), None);
        fs::remove_dir_all(&devices).expect("removed");
    }
}
