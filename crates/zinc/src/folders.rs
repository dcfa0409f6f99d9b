//! Where Zinc keeps things, by the XDG base directory specification.

use anyhow::{Context, Result};
use std::path::PathBuf;

/// A folder named by an XDG variable, or its default below the home folder.
fn base(variable: &str, default: &str) -> Result<PathBuf> {
    let given = std::env::var_os(variable).map(PathBuf::from).filter(|p| p.is_absolute());
    let folder = match given {
        Some(folder) => folder,
        None => std::env::home_dir()
            .filter(|home| !home.as_os_str().is_empty())
            .with_context(|| format!("there is no home folder; set HOME or {variable}"))?
            .join(default),
    };
    Ok(folder.join("zinc"))
}

/// Downloaded models.
pub(crate) fn models() -> Result<PathBuf> {
    Ok(base("XDG_DATA_HOME", ".local/share")?.join("models"))
}

/// What `chat` remembers of earlier input.
pub(crate) fn history() -> Result<PathBuf> {
    Ok(base("XDG_STATE_HOME", ".local/state")?.join("chat-history"))
}

/// What can be made again, such as compiled kernels (in a folder of that name).
pub(crate) fn cache() -> Result<PathBuf> {
    base("XDG_CACHE_HOME", ".cache")
}
