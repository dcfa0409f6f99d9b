//! x
pub(crate) fn usable() -> bool {
    false
}
