//! Compiled pipelines on disk, so that a second start compiles nothing.
//!
//! ```text
//! SHA-256(SPIR-V words, subgroup size, device, driver) ─► FOLDER/kernels/KEY.bin
//!   file: magic | format | key | payload length | SHA-256(payload) | payload = the driver's pipeline cache
//! ```
//!
//! The key is taken over the SPIR-V, which follows from the kernel in well under a millisecond: whatever changes the
//! shader (kernel, emitter, float modes) changes the key. A file that is truncated, damaged, of another format or
//! moved to another key counts as absent. Files appear whole or not at all (written aside, then renamed), so several
//! processes may share the folder. Failing to write is no error: the next start compiles again.

use crate::report::DeviceReport;
use sha2::{Digest, Sha256};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

const MAGIC: &[u8; 8] = b"ZINCKRNL";
const FORMAT: u32 = 1;
const HEADER: usize = 8 + 4 + 32 + 8 + 32;
/// No pipeline is near this size: a larger file is not ours.
const LARGEST: u64 = 256 << 20;

/// Name of a cache entry.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Key([u8; 32]);

/// The on-disk cache for one device and driver.
pub(crate) struct KernelCache {
    folder: Option<PathBuf>,
    device: [u8; 32],
}

impl KernelCache {
    /// A cache below `folder`; `None` disables it.
    pub(crate) fn new(folder: Option<&Path>, report: &DeviceReport) -> KernelCache {
        let mut hash = Sha256::new();
        hash.update(report.device_uuid);
        hash.update(report.driver_uuid);
        hash.update(report.pipeline_cache_uuid);
        for word in [report.vendor_id, report.device_id, report.driver_version, FORMAT] {
            hash.update(word.to_le_bytes());
        }
        hash.update(report.driver_info.as_bytes());
        KernelCache { folder: folder.map(|f| f.join("kernels")), device: hash.finalize().into() }
    }

    /// The key of a shader.
    pub(crate) fn key(&self, words: &[u32], subgroup_size: u32) -> Key {
        let mut hash = Sha256::new();
        hash.update(self.device);
        hash.update(subgroup_size.to_le_bytes());
        for word in words {
            hash.update(word.to_le_bytes());
        }
        Key(hash.finalize().into())
    }

    fn path(&self, key: Key) -> Option<PathBuf> {
        let name: String = key.0.iter().map(|b| format!("{b:02x}")).collect();
        Some(self.folder.as_ref()?.join(name + ".bin"))
    }

    /// The payload stored under `key`, if the file is whole and its own.
    pub(crate) fn get(&self, key: Key) -> Option<Vec<u8>> {
        let path = self.path(key)?;
        if std::fs::metadata(&path).ok()?.len() > LARGEST {
            return None;
        }
        parse(&std::fs::read(path).ok()?, key)
    }

    /// Stores `payload` under `key`, if it can.
    pub(crate) fn put(&self, key: Key, payload: &[u8]) {
        let Some(path) = self.path(key) else { return };
        // Losing an entry costs one compilation, so errors of the file system are not reported.
        let _ = write_whole(&path, key, payload);
    }
}

fn parse(file: &[u8], key: Key) -> Option<Vec<u8>> {
    let (header, payload) = file.split_at_checked(HEADER)?;
    let whole = &header[..8] == MAGIC
        && header[8..12] == FORMAT.to_le_bytes()
        && header[12..44] == key.0
        && header[44..52] == (payload.len() as u64).to_le_bytes()
        && header[52..84] == <[u8; 32]>::from(Sha256::digest(payload));
    whole.then(|| payload.to_vec())
}

fn write_whole(path: &Path, key: Key, payload: &[u8]) -> std::io::Result<()> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let folder = path.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder)?;
    let unique = format!(".{}-{}.part", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    let aside = folder.join(unique);
    let written = (|| {
        let mut file = std::fs::File::create(&aside)?;
        file.write_all(MAGIC)?;
        file.write_all(&FORMAT.to_le_bytes())?;
        file.write_all(&key.0)?;
        file.write_all(&(payload.len() as u64).to_le_bytes())?;
        file.write_all(&Sha256::digest(payload))?;
        file.write_all(payload)?;
        file.sync_data()?;
        std::fs::rename(&aside, path)
    })();
    if written.is_err() {
        let _ = std::fs::remove_file(&aside);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Folder(PathBuf);
    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn folder(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("zinc-cache-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        Folder(path)
    }

    fn cache(folder: Option<&Path>, device: u8) -> KernelCache {
        KernelCache { folder: folder.map(Path::to_path_buf), device: [device; 32] }
    }

    #[test]
    fn what_is_put_is_got() {
        let folder = folder("roundtrip");
        let cache = cache(Some(&folder.0), 1);
        let key = cache.key(&[1, 2, 3], 8);
        assert_eq!(cache.get(key), None);
        cache.put(key, b"pipeline");
        assert_eq!(cache.get(key).as_deref(), Some(&b"pipeline"[..]));
        cache.put(key, b"newer");
        assert_eq!(cache.get(key).as_deref(), Some(&b"newer"[..]));
    }

    #[test]
    fn shader_subgroup_and_device_all_make_the_key() {
        let (a, b) = (cache(None, 1), cache(None, 2));
        let keys = [a.key(&[1, 2], 8), a.key(&[1, 3], 8), a.key(&[1, 2], 16), b.key(&[1, 2], 8)];
        for (i, x) in keys.iter().enumerate() {
            assert!(keys[i + 1..].iter().all(|y| x != y));
        }
        assert_eq!(keys[0], a.key(&[1, 2], 8));
    }

    #[test]
    fn truncated_damaged_and_foreign_files_are_misses() {
        let folder = folder("damage");
        let cache = cache(Some(&folder.0), 1);
        let (key, other) = (cache.key(&[1], 8), cache.key(&[2], 8));
        cache.put(key, b"some payload of a driver");
        let path = cache.path(key).expect("a folder");
        let whole = std::fs::read(&path).expect("written");
        for cut in 0..whole.len() {
            std::fs::write(&path, &whole[..cut]).expect("written");
            assert_eq!(cache.get(key), None, "cut to {cut}");
        }
        for at in 0..whole.len() {
            let mut bad = whole.clone();
            bad[at] ^= 0x20;
            std::fs::write(&path, bad).expect("written");
            assert_eq!(cache.get(key), None, "byte {at} changed");
        }
        std::fs::write(cache.path(other).expect("a folder"), &whole).expect("written");
        assert_eq!(cache.get(other), None, "an entry under another key");
        std::fs::write(&path, &whole).expect("written");
        assert!(cache.get(key).is_some());
    }

    #[test]
    fn a_disabled_or_unwritable_cache_is_silent() {
        let none = cache(None, 1);
        let key = none.key(&[1], 8);
        none.put(key, b"x");
        assert_eq!(none.get(key), None);
        let file = folder("not-a-folder");
        std::fs::write(&file.0, b"a file").expect("written");
        let blocked = cache(Some(&file.0), 1);
        blocked.put(key, b"x");
        assert_eq!(blocked.get(key), None);
        let _ = std::fs::remove_file(&file.0);
    }

    #[test]
    fn no_partial_files_stay_behind() {
        let folder = folder("atomic");
        let cache = cache(Some(&folder.0), 1);
        std::thread::scope(|s| {
            for t in 0..4u32 {
                let cache = &cache;
                s.spawn(move || (0..50u32).for_each(|i| cache.put(cache.key(&[i], 8), &t.to_le_bytes())));
            }
        });
        let names = std::fs::read_dir(&folder.0).expect("folder").flatten().map(|f| f.file_name());
        let names: Vec<_> = names.collect();
        assert_eq!(names.len(), 50);
        assert!(names.iter().all(|n| n.to_string_lossy().ends_with(".bin")));
        (0..50u32).for_each(|i| assert!(cache.get(cache.key(&[i], 8)).is_some()));
    }
}
