//! What `zinc tune` found out, kept from one start to the next.
//!
//! ```text
//! identity (device, driver, version) ─► CACHE/tuned/IDENTITY.json ─sound?─► Record ─► cuts for the compiler
//! ```

use crate::folders;
use crate::kept::{self, Found};
use crate::output::say;
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use zinc_tuner::Record;

/// The file of a device.
pub(crate) fn path(identity: &str) -> Result<PathBuf> {
    Ok(folders::cache()?.join("tuned").join(format!("{identity}.json")))
}

/// What is stored of a device. A file that cannot be used is mentioned, and as good as none.
pub(crate) fn load(path: &Path, identity: &str) -> Option<Record> {
    match kept::read::<Record>(path) {
        Found::Absent => None,
        Found::Whole(record) if record.is_sound(identity) => Some(record),
        Found::Whole(_) | Found::Damaged => {
            say!(
                "note: {} is damaged or of another version of Zinc; nothing is tuned until `zinc tune` runs again",
                path.display()
            );
            None
        }
    }
}

/// Keeps it.
pub(crate) fn store(path: &Path, record: &Record) -> Result<()> {
    kept::write(path, record).with_context(|| format!("cannot write {}", path.display()))
}

/// Removes it; is there nothing to remove, that is fine too.
pub(crate) fn forget(path: &Path) -> Result<bool> {
    match std::fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error).with_context(|| format!("cannot remove {}", path.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sound_records_of_the_device_are_used() {
        let folder = std::env::temp_dir().join(format!("zinc-tuned-{}", std::process::id()));
        let path = folder.join("tuned/card-1.json");
        assert!(load(&path, "card-1").is_none());
        let record = Record::new("card-1", "a card");
        store(&path, &record).expect("stored");
        assert_eq!(load(&path, "card-1"), Some(record.clone()));
        assert!(load(&path, "card-2").is_none(), "another device's");
        let old = Record { generation: record.generation + 1, ..record.clone() };
        store(&path, &old).expect("stored");
        assert!(load(&path, "card-1").is_none(), "other kernels");
        let whole = serde_json::to_vec(&record).expect("JSON");
        for bytes in [vec![], whole[..whole.len() / 2].to_vec(), vec![b' '; kept::LARGEST as usize + 1]] {
            std::fs::write(&path, bytes).expect("written");
            assert!(load(&path, "card-1").is_none());
        }
        assert!(forget(&path).expect("removed") && !forget(&path).expect("nothing there"));
        std::fs::remove_dir_all(&folder).ok();
    }
}
