//! What a well-formed kernel is.
//!
//! ```text
//! Kernel ─► structure (references, scopes) ─► types (each operation) ─► uniformity (barriers, subgroup ops) ─► Ok
//! ```
//!
//! [`verify`] runs after every template; the SPIR-V emitter relies on it. The interpreter asks for
//! [`verify_structure`] only, because it finds divergence by itself while it runs.

mod structure;
mod types;
mod uniformity;

use super::inst::{Kernel, Value};
use super::text;

/// Control nesting that the verifier and the parser accept.
pub const MAX_DEPTH: usize = 64;

/// Why a kernel is not well-formed, and where.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("kernel {kernel}{}: {problem}", at(.op))]
pub struct VerifyError {
    /// Name of the kernel.
    pub kernel: String,
    /// The offending operation; `None` for the header.
    pub value: Option<Value>,
    /// Its line in the kernel's text.
    pub op: String,
    /// What is wrong.
    pub problem: Problem,
}

/// What can be wrong with a kernel.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Problem {
    /// Workgroup or subgroup size out of range.
    #[error(
        "workgroup of {workgroup} in subgroups of {subgroup}: the subgroup must be a power of two up to 128, the workgroup a multiple of it up to 1024"
    )]
    Sizes {
        /// Workgroup size.
        workgroup: u32,
        /// Subgroup size.
        subgroup: u32,
    },
    /// Argument or array name that cannot be printed and parsed.
    #[error("name {0:?} is used twice or is no identifier: rename it")]
    Name(String),
    /// Address argument after a word.
    #[error("address argument {0:?} comes after a word: declare all addresses first")]
    ArgOrder(String),
    /// Shared array of a bad type or length.
    #[error("shared array {name:?}: {rule}")]
    SharedArray {
        /// Array.
        name: String,
        /// The rule that it breaks.
        rule: &'static str,
    },
    /// `ops` and `types` differ in length, or a handle points past them.
    #[error("value {0} names no operation: the kernel was assembled wrongly")]
    UnknownValue(u32),
    /// An operation listed or a parameter claimed twice.
    #[error("value {0} is defined twice: list each operation in one block only")]
    DefinedTwice(u32),
    /// Use before the definition or outside its block.
    #[error("operand {0} is not defined here: define it earlier in this block or an enclosing one")]
    NotVisible(u32),
    /// A constant, argument, builtin or parameter listed in a block.
    #[error("constants, arguments, builtins and parameters are defined everywhere: do not list them in a block")]
    Listed,
    /// A result, index or carried value that is not an [`super::Op::Param`].
    #[error("value {0} must be a parameter to be a result, index or carried value")]
    NotParam(u32),
    /// Control nested too deeply.
    #[error("control flow is nested deeper than {MAX_DEPTH}: flatten it")]
    TooDeep,
    /// Operand or result types that the operation does not have.
    #[error("type error: {0}")]
    Types(&'static str),
    /// Alignment that is no power of two ≤ 16, or below the element's.
    #[error("align {align}: must be a power of two from the element size {scalar} to 16")]
    Align {
        /// Claimed alignment.
        align: u8,
        /// Bytes of the element.
        scalar: u32,
    },
    /// Access of more than 16 bytes, or of a type without a memory form.
    #[error("an access of {0} bytes: memory accesses are 1 to 16 bytes of a type with a memory form")]
    Width(u32),
    /// Store or atomic through a `Read` argument.
    #[error("writes through argument {0:?}, which is declared read: declare it write or readwrite")]
    WritesReadArg(String),
    /// Load or atomic through a `Write` argument.
    #[error("reads through argument {0:?}, which is declared write: declare it readwrite")]
    ReadsWriteArg(String),
    /// Array index past the declared arrays.
    #[error("no shared array number {0}")]
    UnknownArray(u32),
    /// Loop bounds that cannot be.
    #[error("loop: {0}")]
    Loop(&'static str),
    /// Control flow or an operand varies where it must not.
    #[error("{what} must be uniform over the {scope}, but this cannot be proved: {hint}")]
    NotUniform {
        /// Control flow or which operand.
        what: &'static str,
        /// `subgroup`, `workgroup` or `grid`.
        scope: &'static str,
        /// What to do.
        hint: &'static str,
    },
}

/// A problem with the operation that has it.
type Found = (Option<Value>, Problem);

/// Checks all rules.
///
/// # Errors
/// The first rule that is broken, with the operation that breaks it.
pub fn verify(kernel: &Kernel) -> Result<(), VerifyError> {
    verify_structure(kernel)?;
    uniformity::check(kernel).map_err(|found| locate(kernel, found))
}

/// Checks references, scopes and types, not uniformity.
///
/// # Errors
/// As [`verify`].
pub fn verify_structure(kernel: &Kernel) -> Result<(), VerifyError> {
    structure::check(kernel).map_err(|found| locate(kernel, found))
}

fn locate(kernel: &Kernel, (value, problem): Found) -> VerifyError {
    let op = value.map(|v| text::line_of(kernel, v)).unwrap_or_default();
    VerifyError { kernel: kernel.name.clone(), value, op, problem }
}

/// Where in a kernel, as errors say it.
pub(super) fn at(op: &str) -> String {
    if op.is_empty() { String::new() } else { format!(", at `{op}`") }
}
