//! Small launches with known outcomes: what every executor of kernels must get right.
//!
//! ```text
//! all(subgroup size) ─► [Sample { kernel, buffers, words, grid }] ─► (interpreter | device) ─► Sample::check
//! ```
//!
//! The expected bytes are computed by plain Rust beside each kernel, not by the interpreter. Inputs stay where every
//! device is exact or within its stated precision: no NaN, no denormals, nothing undefined.

mod control;
mod convert;
mod elementwise;
mod floats;
mod grid;
mod integers;
mod matrix;
mod memory;
mod subgroup;

pub use matrix::matrix;

use super::inst::Kernel;
use super::interpret::{Access, Fault, Memory, Options, run};

/// One launch. Its arguments are the addresses of `buffers` in order, then `words`.
#[derive(Clone, Debug)]
pub struct Sample {
    /// What it shows; the kernel's name.
    pub kernel: Kernel,
    /// One per address argument.
    pub buffers: Vec<Buffer>,
    /// One per word argument.
    pub words: Vec<u32>,
    /// Tiles.
    pub grid: [u32; 3],
}

/// Memory of a sample.
#[derive(Clone, Debug)]
pub struct Buffer {
    /// Name of the argument.
    pub label: String,
    /// Content before the launch. An executor must align it to 256 bytes.
    pub bytes: Vec<u8>,
    /// What the kernel does with it.
    pub access: Access,
    /// Content after the launch, when it is checked.
    pub expected: Option<Expected>,
}

/// An expected content.
#[derive(Clone, Debug)]
pub struct Expected {
    /// Bytes, as many as the buffer has.
    pub bytes: Vec<u8>,
    /// How to compare.
    pub compare: Compare,
}

/// How to compare bytes.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Compare {
    /// Bit for bit.
    Exact,
    /// As F32: `|got - expected| <= abs + rel * |expected|`.
    F32 {
        /// Absolute part.
        abs: f32,
        /// Relative part.
        rel: f32,
    },
    /// As F16, likewise.
    F16 {
        /// Absolute part.
        abs: f32,
        /// Relative part.
        rel: f32,
    },
}

/// Why a sample came out wrong.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum SampleError {
    /// The interpreter found a fault.
    #[error(transparent)]
    Fault(#[from] Fault),
    /// A byte or element differs.
    #[error("sample {sample}, buffer {label:?}, element {element}: got {got}, expected {expected}")]
    Differs {
        /// Sample.
        sample: String,
        /// Buffer.
        label: String,
        /// Index of the element (of the byte for exact comparisons).
        element: usize,
        /// Found.
        got: String,
        /// Wanted.
        expected: String,
    },
    /// Another number of bytes.
    #[error("sample {sample}, buffer {label:?}: got {got} bytes, expected {expected}")]
    Length {
        /// Sample.
        sample: String,
        /// Buffer.
        label: String,
        /// Found.
        got: usize,
        /// Wanted.
        expected: usize,
    },
}

/// All samples at a subgroup size (a power of two, 4 to 128). Those with cooperative matrices use 8×8×8, F16 into
/// F32; [`matrix`] gives them for other shapes.
pub fn all(subgroup_size: u32) -> Vec<Sample> {
    let mut samples = vec![];
    samples.extend(integers::samples(subgroup_size));
    samples.extend(floats::samples(subgroup_size));
    samples.extend(convert::samples(subgroup_size));
    samples.extend(memory::samples(subgroup_size));
    samples.extend(subgroup::samples(subgroup_size));
    samples.extend(control::samples(subgroup_size));
    samples.extend(grid::samples(subgroup_size));
    samples.extend(matrix(subgroup_size, [8, 8, 8]));
    samples
}

impl Sample {
    /// Runs it in the interpreter.
    ///
    /// # Errors
    /// A fault, or the first difference.
    pub fn interpret(&self, options: &Options) -> Result<(), SampleError> {
        let mut memory = Memory::new();
        let mut args = vec![];
        for b in &self.buffers {
            args.push(memory.bind(&b.label, b.bytes.clone(), b.access));
        }
        let addresses = args.clone();
        args.extend(self.words.iter().map(|w| *w as u64));
        run(&self.kernel, &args, self.grid, &mut memory, options)?;
        for (i, address) in addresses.iter().enumerate() {
            self.check(i, memory.bytes(*address).unwrap_or_default())?;
        }
        Ok(())
    }

    /// Compares buffer number `buffer` after a launch with what is expected of it.
    ///
    /// # Errors
    /// The first difference.
    pub fn check(&self, buffer: usize, got: &[u8]) -> Result<(), SampleError> {
        let Some(buffer) = self.buffers.get(buffer) else { return Ok(()) };
        let Some(expected) = &buffer.expected else { return Ok(()) };
        let (sample, label) = (self.kernel.name.clone(), buffer.label.clone());
        if got.len() != expected.bytes.len() {
            return Err(SampleError::Length { sample, label, got: got.len(), expected: expected.bytes.len() });
        }
        let differs = |element: usize, got: String, expected: String| {
            let (sample, label) = (sample.clone(), label.clone());
            Err(SampleError::Differs { sample, label, element, got, expected })
        };
        let (abs, rel, got, expected) = match expected.compare {
            Compare::Exact => {
                let different = got.iter().zip(&expected.bytes).position(|(a, b)| a != b);
                return match different {
                    Some(i) => differs(i, format!("{:#04x}", got[i]), format!("{:#04x}", expected.bytes[i])),
                    None => Ok(()),
                };
            }
            Compare::F32 { abs, rel } => (abs, rel, f32s(got), f32s(&expected.bytes)),
            Compare::F16 { abs, rel } => (abs, rel, f16s(got), f16s(&expected.bytes)),
        };
        for (i, (g, e)) in got.iter().zip(&expected).enumerate() {
            let close = (g - e).abs() <= abs + rel * e.abs();
            if !close && g != e {
                return differs(i, g.to_string(), e.to_string());
            }
        }
        Ok(())
    }
}

fn f32s(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

fn f16s(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|b| half::f16::from_le_bytes(*b).to_f32()).collect()
}

/// Input that the kernel only reads.
fn input(label: &str, bytes: Vec<u8>) -> Buffer {
    Buffer { label: label.to_string(), bytes, access: Access::Read, expected: None }
}

/// Output that starts as 0xee bytes.
fn output(label: &str, expected: Vec<u8>, compare: Compare) -> Buffer {
    let bytes = vec![0xee; expected.len()];
    let expected = Some(Expected { bytes: expected, compare });
    Buffer { label: label.to_string(), bytes, access: Access::ReadWrite, expected }
}

/// Bytes of numbers, one after the other.
fn bytes_of<const N: usize, T: Copy>(values: &[T], to_bytes: impl Fn(T) -> [u8; N]) -> Vec<u8> {
    values.iter().flat_map(|v| to_bytes(*v)).collect()
}

fn u32_bytes(values: &[u32]) -> Vec<u8> {
    bytes_of(values, u32::to_le_bytes)
}

fn f32_bytes(values: &[f32]) -> Vec<u8> {
    bytes_of(values, f32::to_le_bytes)
}

fn f16_bytes(values: &[f32]) -> Vec<u8> {
    bytes_of(values, |v| half::f16::from_f32(v).to_le_bytes())
}

/// Well-mixed bits of `i`.
fn noise(i: u32) -> u32 {
    let x = (i ^ 0x5bd1_e995).wrapping_mul(0x9e37_79b1);
    (x ^ (x >> 15)).wrapping_mul(0x85eb_ca77).rotate_left(13)
}

/// A float in -1..1 with 12 significant bits: sums and products of few are exact in F32.
fn small(i: u32) -> f32 {
    (noise(i) >> 20) as f32 / 2048.0 - 1.0
}
