//! What can be wrong with a model, in words that say what to do.

use zinc_gguf::GgufError;

/// Why a file (or a shape) does not become a model.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The file itself is damaged, or a key has a value of the wrong kind.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// No row in [`crate::ARCHITECTURES`].
    #[error("architecture \"{found}\" is not supported; supported are: {supported}")]
    UnsupportedArchitecture {
        /// `general.architecture` of the file.
        found: String,
        /// The names there are.
        supported: String,
    },
    /// A variant of a supported architecture that Zinc cannot compute.
    #[error("this {architecture} model {what}, which is not supported yet; use another model")]
    UnsupportedVariant {
        /// Architecture.
        architecture: &'static str,
        /// What is special, e.g. "has 8 experts per layer".
        what: String,
    },
    /// A key that every such model has is absent.
    #[error("metadata key \"{key}\" is missing; the file is badly converted, get or convert it again")]
    MissingKey {
        /// Key.
        key: String,
    },
    /// A number makes no sense.
    #[error("metadata key \"{key}\" is {value}, but must be {expected}; the file is badly converted")]
    BadValue {
        /// Key.
        key: String,
        /// What the file says.
        value: String,
        /// What it must be.
        expected: String,
    },
    /// A table holds a number that makes no sense.
    #[error("tensor \"{name}\" holds {value}, but must be a table of positive numbers; the file is damaged")]
    BadTable {
        /// Name.
        name: String,
        /// The number.
        value: f32,
    },
    /// A norm, bias or table holds something that is no finite number.
    #[error("tensor \"{name}\" holds {value} at element {index}; the file is damaged, get or convert it again")]
    NotFinite {
        /// Name.
        name: String,
        /// Place in it.
        index: usize,
        /// What is there.
        value: f32,
    },
    /// A tensor that every such model has is absent.
    #[error("tensor \"{name}\" is missing, which every {architecture} model has; get or convert the file again")]
    MissingTensor {
        /// Name.
        name: String,
        /// Architecture.
        architecture: &'static str,
    },
    /// A tensor that the architecture has no use for: computing without it would give wrong results.
    #[error("tensor \"{name}\" is no part of a {architecture} model known to Zinc; this variant is not supported")]
    UnknownTensor {
        /// Name.
        name: String,
        /// Architecture.
        architecture: &'static str,
    },
    /// A tensor's shape contradicts the metadata.
    #[error("tensor \"{name}\" has shape {found:?}, but the metadata ask for {expected:?}; the file is damaged")]
    TensorShape {
        /// Name.
        name: String,
        /// Shape in the file, row length first.
        found: Vec<usize>,
        /// Shape by the metadata.
        expected: Vec<usize>,
    },
    /// A tensor is stored in a format that Zinc cannot compute with.
    #[error("tensor \"{name}\" has type {found}, which is not supported here; supported are: {supported}")]
    TensorType {
        /// Name.
        name: String,
        /// Type in the file.
        found: &'static str,
        /// Types there are.
        supported: String,
    },
    /// Rows are not whole units of 32 weights.
    #[error("tensor \"{name}\" has rows of {cols} weights as {format}, but rows must be whole groups of {group}")]
    RowLength {
        /// Name.
        name: String,
        /// Row length.
        cols: u32,
        /// Format.
        format: &'static str,
        /// Weights per group.
        group: u32,
    },
    /// A single tensor of 4 GiB or more.
    #[error(
        "tensor \"{name}\" has {bytes} bytes; the limit is {} for one tensor: use a smaller quantization",
        u32::MAX
    )]
    TensorTooLarge {
        /// Name.
        name: String,
        /// Size.
        bytes: u64,
    },
    /// The graph was made for another file.
    #[error("the file's tensor \"{name}\" does not fit the graph; open the model from this very file")]
    ForeignGraph {
        /// Name.
        name: String,
    },
    /// No such synthetic shape.
    #[error("no shape is named \"{found}\"; shapes are: {known}")]
    UnknownShape {
        /// Name given.
        found: String,
        /// Names there are.
        known: String,
    },
    /// No such format or mix of formats.
    #[error("no format or mix is named \"{found}\"; there are: {known}")]
    UnknownMix {
        /// Name given.
        found: String,
        /// Names there are.
        known: String,
    },
    /// `--layers` is zero or more than the shape has.
    #[error("shape {shape} has {has} layers; {asked} cannot be taken of them")]
    LayerCount {
        /// Shape.
        shape: String,
        /// Layers it has.
        has: u32,
        /// Layers asked for.
        asked: u32,
    },
}

/// Names separated by commas.
pub(crate) fn list<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    names.into_iter().collect::<Vec<_>>().join(", ")
}
