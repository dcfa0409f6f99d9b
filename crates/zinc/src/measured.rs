//! Measured limits of devices, kept from one start to the next.
//!
//! ```text
//! identity (device, driver, version) ─► CACHE/measured/IDENTITY.json ─sound?─► Measured
//!                                                 └─ absent, damaged, another version ─► measure ─► stored
//! ```
//!
//! Two passes are made, and up to two more if the best one stays alone: on a busy machine none shows the limits. If it
//! stays alone after all, that is said, now and whenever the figures are used.

use crate::folders;
use crate::kept::{self, Found};
use crate::output::say;
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use zinc_ir::measured::{Measured, USUAL_SPREAD};
use zinc_vulkan::{DeviceReport, Options, VulkanDevice};

/// Passes at most.
const MOST_PASSES: usize = 4;

/// Whether stored figures do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Freshness {
    /// What is stored, or else measured now.
    Stored,
    /// Measured now, and stored.
    Now,
}

/// The limits of a Vulkan device.
pub(crate) fn of_gpu(report: &DeviceReport, cache: Option<PathBuf>, freshness: Freshness) -> Result<Measured> {
    stored_or(cache.clone(), &report.identity(), freshness, || {
        say!("measuring {} …", report.name);
        let options = Options { cache, ..Options::default() };
        let mut device = VulkanDevice::open(report.index, &options)?;
        in_passes(|| device.measure().with_context(|| format!("cannot measure {}", report.name)))
    })
}

/// The limits of the CPU with this number of threads (0: one per core).
pub(crate) fn of_cpu(threads: usize, cache: Option<PathBuf>, freshness: Freshness) -> Result<Measured> {
    let device = zinc_cpu::CpuDevice::new(threads)?;
    stored_or(cache, &device.identity(), freshness, || {
        say!("measuring the CPU …");
        in_passes(|| Ok(device.measure()?))
    })
}

/// What is stored of a device, if anything is.
pub(crate) fn stored(identity: &str) -> Option<Measured> {
    load(&path(&folders::cache().ok()?, identity), identity)
}

fn path(cache: &Path, identity: &str) -> PathBuf {
    cache.join("measured").join(format!("{identity}.json"))
}

fn stored_or(
    cache: Option<PathBuf>,
    identity: &str,
    freshness: Freshness,
    measure: impl FnOnce() -> Result<Measured>,
) -> Result<Measured> {
    let path = cache.map(|folder| path(&folder, identity));
    if let (Some(path), Freshness::Stored) = (&path, freshness)
        && let Some(found) = load(path, identity)
    {
        warn_if_disturbed(&found);
        return Ok(found);
    }
    let measured = measure()?;
    warn_if_disturbed(&measured);
    // Not being able to keep the figures costs a second at the next start: no error.
    if let Some(path) = &path {
        kept::write(path, &measured).ok();
    }
    Ok(measured)
}

/// Measures until the best pass is not alone.
fn in_passes(mut measure: impl FnMut() -> Result<Measured>) -> Result<Measured> {
    let mut passes = vec![measure()?, measure()?];
    loop {
        match Measured::best_of(&passes) {
            Some(best) if best.spread <= USUAL_SPREAD || passes.len() >= MOST_PASSES => return Ok(best),
            _ => passes.push(measure()?),
        }
    }
}

/// Says so if the figures are those of a machine that was busy.
fn warn_if_disturbed(measured: &Measured) {
    if measured.spread > USUAL_SPREAD {
        say!(
            "warning: the limits of {} were measured while something else was running (passes differ by {:.0} %); \
             `zinc devices --measure` measures again",
            measured.device,
            100.0 * measured.spread
        );
    }
}

/// What a file holds, if it is whole, of this version, and of this device.
fn load(path: &Path, identity: &str) -> Option<Measured> {
    match kept::read::<Measured>(path) {
        Found::Whole(measured) if measured.is_sound() && measured.identity == identity => Some(measured),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kept::{LARGEST, write as store};
    use zinc_ir::measured::{FORMAT, LaunchCost, ReadRate};

    fn figures(rate: f64) -> Measured {
        Measured {
            format: FORMAT,
            device: "a card".into(),
            identity: "card-1".into(),
            reads: vec![ReadRate { load_bytes: 16, in_flight: 4, lanes: 512, workgroups: 64, rate }],
            launches: vec![LaunchCost { workgroups: 1, dependent: 2e-6, independent: Some(1e-7) }],
            write: 1e9,
            fma: 1.25e12,
            dot4: 4e12,
            ..Measured::default()
        }
    }

    struct Folder(PathBuf);
    impl Drop for Folder {
        fn drop(&mut self) {
            std::fs::remove_dir_all(&self.0).ok();
        }
    }

    fn folder(name: &str) -> Folder {
        Folder(std::env::temp_dir().join(format!("zinc-measured-{}-{name}", std::process::id())))
    }

    /// What comes back when the rate measured now would be 7.
    fn ask(folder: &Folder, identity: &str, freshness: Freshness) -> f64 {
        let now = || Ok(Measured { identity: identity.into(), ..figures(7.0) });
        stored_or(Some(folder.0.clone()), identity, freshness, now).expect("measured").read()
    }

    #[test]
    fn figures_come_back_as_they_were_stored() {
        let folder = folder("round");
        let path = folder.0.join("measured/card-1.json");
        assert_eq!(ask(&folder, "card-1", Freshness::Stored), 7.0);
        store(&path, &figures(5.0)).expect("stored");
        assert_eq!(load(&path, "card-1"), Some(figures(5.0)));
        assert_eq!(ask(&folder, "card-1", Freshness::Stored), 5.0);
        assert_eq!(ask(&folder, "card-1", Freshness::Now), 7.0);
        assert_eq!(ask(&folder, "card-1", Freshness::Stored), 7.0, "what was measured now is kept");
        let names: Vec<_> = std::fs::read_dir(folder.0.join("measured")).expect("folder").flatten().collect();
        assert_eq!(names.len(), 1, "{names:?}");
    }

    #[test]
    fn damaged_and_foreign_files_are_measured_again() {
        let folder = folder("damage");
        let path = folder.0.join("measured/card-1.json");
        store(&path, &figures(5.0)).expect("stored");
        let whole = std::fs::read(&path).expect("there");
        let old =
            String::from_utf8_lossy(&whole).replace(&format!("\"format\": {FORMAT}"), "\"format\": 0").into_bytes();
        let negative = String::from_utf8_lossy(&whole).replace("\"rate\": 5.0", "\"rate\": -5.0").into_bytes();
        let null = String::from_utf8_lossy(&whole).replace("\"rate\": 5.0", "\"rate\": null").into_bytes();
        let foreign = String::from_utf8_lossy(&whole).replace("card-1", "card-2").into_bytes();
        let huge = vec![b' '; LARGEST as usize + 1];
        for bytes in [vec![], whole[..whole.len() / 2].to_vec(), old, negative, null, foreign, huge, b"[]".to_vec()] {
            assert_ne!(bytes, whole);
            std::fs::write(&path, bytes).expect("written");
            assert_eq!(ask(&folder, "card-1", Freshness::Stored), 7.0);
            assert_eq!(load(&path, "card-1").map(|m| m.read()), Some(7.0), "the file is replaced");
        }
    }

    #[test]
    fn passes_are_repeated_until_two_agree() {
        let passes = |rates: &[f64]| {
            let mut left = rates.iter();
            let measured = in_passes(|| Ok(figures(*left.next().expect("no more passes")))).expect("measured");
            (measured.read(), measured.spread > USUAL_SPREAD, left.len())
        };
        assert_eq!(passes(&[5.0, 4.9, 1.0]), (5.0, false, 1), "the third is not needed");
        assert_eq!(passes(&[3.0, 5.0, 4.9, 1.0]), (5.0, false, 1));
        assert_eq!(passes(&[1.0, 2.0, 3.0, 5.0]), (5.0, true, 0));
    }

    #[test]
    fn without_a_folder_nothing_is_kept() {
        let now = || Ok(figures(3.0));
        assert_eq!(stored_or(None, "card-1", Freshness::Stored, now).expect("measured").read(), 3.0);
        let file = folder("file");
        std::fs::write(&file.0, b"not a folder").expect("written");
        assert_eq!(ask(&file, "card-1", Freshness::Stored), 7.0);
        std::fs::remove_file(&file.0).expect("removed");
    }
}
