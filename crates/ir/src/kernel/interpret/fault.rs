//! What can go wrong in a launch.

use super::super::verify::{VerifyError, at};

/// An undefined or forbidden act of a kernel, and who did it.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[error("kernel {kernel}, tile {tile:?}, lane {lane}{}: {kind}", at(.op))]
pub struct Fault {
    /// Name of the kernel.
    pub kernel: Box<str>,
    /// The operation's line in the kernel's text; empty for faults of the launch itself.
    pub op: Box<str>,
    /// Tile.
    pub tile: [u32; 3],
    /// Lane within the workgroup (for whole-subgroup operations, its first lane).
    pub lane: u32,
    /// What happened.
    pub kind: FaultKind,
}

/// Kinds of faults.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum FaultKind {
    /// The kernel breaks a structural rule.
    #[error("not a well-formed kernel: {0}")]
    Invalid(Box<VerifyError>),
    /// Wrong number of launch arguments.
    #[error("{given} arguments given, the kernel declares {expected}")]
    ArgCount {
        /// Given to `run`.
        given: usize,
        /// Declared.
        expected: usize,
    },
    /// A word argument that does not fit 32 bits.
    #[error("word argument {name:?} is {value:#x}: pass a value below 2^32")]
    WideWord {
        /// Argument.
        name: String,
        /// Value.
        value: u64,
    },
    /// Empty or too large grid.
    #[error("a grid of {0:?} tiles: every axis must be at least 1 and the product below 2^32 - 16")]
    Grid([u32; 3]),
    /// Access outside every bound range.
    #[error("{bytes} bytes at {address:#x} are not inside one bound range ({nearest})")]
    OutOfBounds {
        /// First byte.
        address: u64,
        /// Size of the access.
        bytes: u32,
        /// The range that starts last before the address.
        nearest: String,
    },
    /// Address that breaks the claimed (or, for matrices, the required) alignment.
    #[error("address {address:#x} is not a multiple of {align}")]
    Misaligned {
        /// Address, or byte offset in the array for shared memory.
        address: u64,
        /// Alignment.
        align: u32,
    },
    /// Write to a range that was bound read-only.
    #[error("write to {label:?}, which is bound read-only")]
    ReadOnlyRange {
        /// Range.
        label: String,
    },
    /// Read of a byte of an uninitialised range that nothing wrote.
    #[error("read of {label:?} + {offset}, which was never written")]
    Uninitialised {
        /// Range.
        label: String,
        /// Byte in the range.
        offset: u64,
    },
    /// Two unordered accesses to global memory, at least one a write.
    #[error(
        "race on {label:?} + {offset} with an earlier access by {other}: order them with a barrier; when the tiles differ, with a grid barrier or in two launches"
    )]
    GlobalRace {
        /// Range.
        label: String,
        /// Byte in the range.
        offset: u64,
        /// Who else.
        other: String,
    },
    /// A `read_only` load and a write meet in one launch.
    #[error("{label:?} + {offset} is written in this launch and also loaded as readonly")]
    BrokenPromise {
        /// Range.
        label: String,
        /// Byte in the range.
        offset: u64,
    },
    /// Index past the end of a shared array.
    #[error("element {index} of shared array {array:?} of {len}")]
    SharedOutOfBounds {
        /// Array.
        array: String,
        /// Index.
        index: u64,
        /// Its length.
        len: u32,
    },
    /// Read of a shared element that this tile did not write.
    #[error("read of element {index} of shared array {array:?}, which this tile never wrote")]
    SharedUninitialised {
        /// Array.
        array: String,
        /// Index.
        index: u64,
    },
    /// Two unordered accesses to a shared element, at least one a write.
    #[error(
        "race on element {index} of shared array {array:?} with an earlier access by {other}: put a barrier between"
    )]
    SharedRace {
        /// Array.
        array: String,
        /// Index.
        index: u64,
        /// Who else.
        other: String,
    },
    /// A barrier that not all lanes of the tile reach together.
    #[error("barrier divergence: {0}")]
    BarrierDivergence(String),
    /// A grid barrier that not all tiles reach together, or that they count differently: on a device the launch would
    /// never end.
    #[error("grid barrier: {0}")]
    GridBarrier(String),
    /// Subgroup or matrix operation with inactive lanes.
    #[error("only {active} of {size} lanes of the subgroup are active")]
    Divergent {
        /// Active lanes.
        active: u32,
        /// Subgroup size.
        size: u32,
    },
    /// Operand of a matrix operation that differs between lanes.
    #[error("the {0} differs between the lanes of the subgroup")]
    NotUniform(&'static str),
    /// Shuffle from a lane that does not exist.
    #[error("shuffle from lane {lane} of {size}")]
    ShuffleLane {
        /// Asked for.
        lane: u64,
        /// Subgroup size.
        size: u32,
    },
    /// Index past the end of a table.
    #[error("word {index} of a table of {len}")]
    TableIndex {
        /// Asked for.
        index: u64,
        /// Words of the table.
        len: usize,
    },
    /// Shift by the width of the type or more.
    #[error("shift by {by} of a {width}-bit integer")]
    Shift {
        /// Shift count.
        by: u64,
        /// Width of the type.
        width: u32,
    },
    /// Integer division or remainder by zero, of the smallest I32 by -1, or a remainder of negative operands.
    #[error("integer division or remainder of {dividend} by {divisor}")]
    Division {
        /// Dividend.
        dividend: i64,
        /// Divisor.
        divisor: i64,
    },
    /// Float outside the range of the integer type that it is converted to.
    #[error("conversion of {value} to {to}, which cannot hold it")]
    Conversion {
        /// Operand.
        value: f32,
        /// Integer type.
        to: &'static str,
    },
    /// A loop with step 0, or whose end + step overflows.
    #[error("loop to {end} by {step}: the step must be positive and end + step below 2^32")]
    LoopBounds {
        /// End.
        end: u32,
        /// Step.
        step: u32,
    },
}
