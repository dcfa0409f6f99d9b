//! SPIR-V words as assembly text, for people who want to see what a kernel became.

use rspirv::binary::Disassemble;

/// Words that are no SPIR-V module.
#[derive(thiserror::Error, Debug, Clone, PartialEq)]
#[error("not a SPIR-V module: {0}; pass what `emit` gave")]
pub struct DisassembleError(String);

/// The assembly text of a module.
///
/// # Errors
/// The words are no module that rspirv can read.
pub fn disassemble(words: &[u32]) -> Result<String, DisassembleError> {
    match rspirv::dr::load_words(words) {
        Ok(module) => Ok(module.disassemble()),
        Err(error) => Err(DisassembleError(error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_module_is_an_error() {
        assert!(disassemble(&[1, 2, 3]).is_err());
    }
}
