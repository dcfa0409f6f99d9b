//! Small JSON files in the cache folder: written whole or not at all, read with suspicion.

use anyhow::{Context, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::Write;
use std::path::Path;

/// No file of ours is near this size.
pub(crate) const LARGEST: u64 = 4 << 20;

/// What a file holds.
#[derive(Debug)]
pub(crate) enum Found<T> {
    /// There is none.
    Absent,
    /// It cannot be read, or is not what it should be.
    Damaged,
    /// This.
    Whole(T),
}

/// Reads a file.
pub(crate) fn read<T: DeserializeOwned>(path: &Path) -> Found<T> {
    let Ok(about) = std::fs::metadata(path) else { return Found::Absent };
    if about.len() > LARGEST {
        return Found::Damaged;
    }
    let parsed = std::fs::read(path).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
    parsed.map_or(Found::Damaged, Found::Whole)
}

/// Writes the file whole or not at all.
pub(crate) fn write(path: &Path, value: &impl Serialize) -> Result<()> {
    let folder = path.parent().context("a file lies in a folder")?;
    std::fs::create_dir_all(folder)?;
    let aside = folder.join(format!(".{}.part", std::process::id()));
    let text = serde_json::to_string_pretty(value)?;
    // On the disk before it has its name: a hanging GPU may take the machine down, and must not be forgotten.
    let whole = || {
        let mut file = std::fs::File::create(&aside)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&aside, path)
    };
    let written = whole();
    if written.is_err() {
        std::fs::remove_file(&aside).ok();
    }
    Ok(written?)
}
