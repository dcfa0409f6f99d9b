//! How much text a grammar of tools may become. It is counted while it is written: schemas refer to themselves and to
//! each other, so that a small one can stand for any amount of text.

use crate::error::ApiError;
use crate::grammar::BYTES;
use serde_json::Value;

/// Bytes that may still be written.
#[derive(Debug)]
pub(super) struct Budget(usize);

impl Budget {
    /// For a whole grammar.
    pub(super) fn new() -> Budget {
        Budget(BYTES)
    }

    /// Takes so many bytes off.
    ///
    /// # Errors
    /// They are not left: 400.
    pub(super) fn take(&mut self, bytes: usize) -> Result<(), ApiError> {
        self.0 = self.0.checked_sub(bytes).ok_or_else(|| {
            let message = format!(
                "`tools` would become a grammar of more than {BYTES} bytes; give fewer tools, or simpler schemas that \
                 refer to less"
            );
            ApiError::parameter("tools", message)
        })?;
        Ok(())
    }

    /// Takes a text's bytes off and gives the text.
    ///
    /// # Errors
    /// As [`Budget::take`].
    pub(super) fn text(&mut self, text: String) -> Result<String, ApiError> {
        self.take(text.len()).map(|()| text)
    }

    /// Is there room for this value as JSON? Takes nothing off.
    ///
    /// # Errors
    /// There is not: 400.
    pub(super) fn holds(&self, value: &Value) -> Result<(), ApiError> {
        Budget(self.0).take(value.to_string().len())
    }
}
