//! The browser that the test of `zinc serve`'s page drives: the machine's own Chromium.
//!
//! ```text
//!  APT ─► chromium (and a font, without which there is nothing to see)
//! ```

use super::models::install_packages;
use crate::process::found;

/// Installs Chromium where there is none.
pub(crate) fn install() -> Result<(), String> {
    if found("chromium") {
        return Ok(());
    }
    let by_hand = "Chromium is missing: install it (Debian: apt-get install chromium fonts-dejavu-core)";
    install_packages(&["chromium", "fonts-dejavu-core"], by_hand)
}
