//! (in work)
use std::process::ExitCode;
pub(crate) fn command(_: &[String]) -> Result<ExitCode, String> {
    Err("in work".into())
}
