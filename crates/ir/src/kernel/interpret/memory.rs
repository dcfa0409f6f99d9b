//! Global memory: ranges of bytes at 64-bit addresses.
//!
//! ```text
//! address ─► range (bounds, access, written?) ─► bytes
//! ```

use super::FaultKind;

/// What kernels may do with a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Loads only.
    Read,
    /// Everything.
    ReadWrite,
}

/// Why a range cannot be bound.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{label:?} at {base:#x} overlaps {other:?} or wraps around: bind it elsewhere")]
pub struct BindError {
    /// Range.
    pub label: String,
    /// Its address.
    pub base: u64,
    /// The range in the way.
    pub other: String,
}

#[derive(Clone, Debug)]
pub(super) struct Range {
    pub(super) base: u64,
    pub(super) bytes: Vec<u8>,
    pub(super) label: String,
    pub(super) access: Access,
    /// For ranges bound without content: which bytes were written.
    written: Option<Vec<bool>>,
}

/// The memory that a launch can reach.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    /// By address.
    ranges: Vec<Range>,
    /// The range found last: accesses come in runs.
    last: usize,
}

impl Memory {
    /// No ranges.
    pub fn new() -> Memory {
        Memory::default()
    }

    /// Binds bytes at a fresh address, a multiple of 256 above 2^32 with a gap to every other range.
    pub fn bind(&mut self, label: impl Into<String>, bytes: Vec<u8>, access: Access) -> u64 {
        self.push(label.into(), bytes, access, None)
    }

    /// Binds `len` bytes that kernels must write before they read.
    pub fn bind_uninitialised(&mut self, label: impl Into<String>, len: usize) -> u64 {
        self.push(label.into(), vec![0xcd; len], Access::ReadWrite, Some(vec![false; len]))
    }

    fn push(&mut self, label: String, bytes: Vec<u8>, access: Access, written: Option<Vec<bool>>) -> u64 {
        let end = self.ranges.last().map_or(1 << 32, |r| r.base + r.bytes.len() as u64);
        // Never adjacent: running off one range must not land in the next.
        let base = (end + 4096).next_multiple_of(256);
        self.ranges.push(Range { base, bytes, label, access, written });
        base
    }

    /// Binds bytes at an address of the caller's choice.
    ///
    /// # Errors
    /// When the range overlaps another or the end of the address space.
    pub fn bind_at(
        &mut self,
        base: u64,
        label: impl Into<String>,
        bytes: Vec<u8>,
        access: Access,
    ) -> Result<(), BindError> {
        let label = label.into();
        let len = bytes.len() as u64;
        let fail = |label: String, other: &str| Err(BindError { label, base, other: other.to_string() });
        // Half of the address space is kept free so that `bind` can always go behind the last range.
        let Some(end) = base.checked_add(len).filter(|end| *end < 1 << 63) else { return fail(label, "the end") };
        if let Some(r) = self.ranges.iter().find(|r| base < r.base + r.bytes.len() as u64 && r.base < end) {
            return fail(label, &r.label);
        }
        let at = self.ranges.partition_point(|r| r.base < base);
        self.ranges.insert(at, Range { base, bytes, label, access, written: None });
        Ok(())
    }

    /// The bytes of the range bound at `base`.
    pub fn bytes(&self, base: u64) -> Option<&[u8]> {
        self.ranges.iter().find(|r| r.base == base).map(|r| &r.bytes[..])
    }

    /// The same, to change them between launches.
    pub fn bytes_mut(&mut self, base: u64) -> Option<&mut [u8]> {
        self.ranges.iter_mut().find(|r| r.base == base).map(|r| &mut r.bytes[..])
    }

    pub(super) fn range(&self, index: usize) -> &Range {
        &self.ranges[index]
    }

    pub(super) fn len(&self) -> usize {
        self.ranges.len()
    }

    /// The range that holds all of `address..address + bytes`, and where in it.
    pub(super) fn find(&mut self, address: u64, bytes: u32) -> Result<(usize, usize), FaultKind> {
        let holds = |r: &Range| {
            let offset = address.checked_sub(r.base)?;
            let end = offset.checked_add(bytes as u64)?;
            (end <= r.bytes.len() as u64).then_some(offset as usize)
        };
        if let Some(offset) = self.ranges.get(self.last).and_then(holds) {
            return Ok((self.last, offset));
        }
        let index = self.ranges.partition_point(|r| r.base <= address).checked_sub(1);
        if let Some(offset) = index.and_then(|i| holds(&self.ranges[i])) {
            self.last = index.unwrap_or_default();
            return Ok((self.last, offset));
        }
        let nearest = match index.map(|i| &self.ranges[i]) {
            Some(r) => format!("{:?} has {} bytes from {:#x}", r.label, r.bytes.len(), r.base),
            None => "no range starts before it".to_string(),
        };
        Err(FaultKind::OutOfBounds { address, bytes, nearest })
    }

    /// The bytes to read, all of them written before.
    pub(super) fn read(&self, at: (usize, usize), bytes: usize) -> Result<&[u8], FaultKind> {
        let range = &self.ranges[at.0];
        if let Some(written) = &range.written
            && let Some(hole) = written[at.1..at.1 + bytes].iter().position(|w| !w)
        {
            let offset = (at.1 + hole) as u64;
            return Err(FaultKind::Uninitialised { label: range.label.clone(), offset });
        }
        Ok(&range.bytes[at.1..at.1 + bytes])
    }

    /// The bytes to write to.
    pub(super) fn write(&mut self, at: (usize, usize), bytes: usize) -> Result<&mut [u8], FaultKind> {
        let range = &mut self.ranges[at.0];
        if range.access == Access::Read {
            return Err(FaultKind::ReadOnlyRange { label: range.label.clone() });
        }
        if let Some(written) = &mut range.written {
            written[at.1..at.1 + bytes].fill(true);
        }
        Ok(&mut range.bytes[at.1..at.1 + bytes])
    }
}

/// A little-endian element of 1, 2, 4 or 8 bytes.
pub(super) fn get(bytes: &[u8]) -> u64 {
    match *bytes {
        [a] => a as u64,
        [a, b] => u16::from_le_bytes([a, b]) as u64,
        [a, b, c, d] => u32::from_le_bytes([a, b, c, d]) as u64,
        _ => bytes.iter().rev().fold(0, |x, b| x << 8 | *b as u64),
    }
}

/// The reverse of [`get`].
pub(super) fn put(bytes: &mut [u8], x: u64) {
    let n = bytes.len();
    bytes.copy_from_slice(&x.to_le_bytes()[..n]);
}
