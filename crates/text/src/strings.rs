//! Two hash tables from bytes to a number, made for cold start: one copy of the bytes, one
//! table of 4-byte entries, no allocation per string.
//!
//! ```text
//! StringTable: token text ──► id          MergeTable: (left, right) ──► rank
//! ```

use std::borrow::Cow;
use std::hash::{BuildHasher, Hasher};

use hashbrown::{DefaultHashBuilder, HashTable};

/// Strings by index, and the index by string.
pub(crate) struct StringTable {
    text: String,
    ends: Vec<u32>,
    table: HashTable<u32>,
    hasher: DefaultHashBuilder,
}

/// The strings together are longer than 4 GiB.
#[derive(Debug)]
pub(crate) struct TooLong;

impl StringTable {
    /// Takes the strings in the order of their indices. Of equal strings the last one is found.
    pub(crate) fn new<'a>(strings: impl ExactSizeIterator<Item = Cow<'a, str>>) -> Result<Self, TooLong> {
        let mut this = StringTable {
            text: String::new(),
            ends: Vec::with_capacity(strings.len()),
            table: HashTable::with_capacity(strings.len()),
            hasher: DefaultHashBuilder::default(),
        };
        for string in strings {
            this.text.push_str(&string);
            this.ends.push(u32::try_from(this.text.len()).map_err(|_| TooLong)?);
        }
        for index in 0..this.ends.len() as u32 {
            let (bytes, ends, hasher) = (this.text.as_bytes(), &this.ends, &this.hasher);
            let text = slice(bytes, ends, index);
            let same = |&other: &u32| slice(bytes, ends, other) == text;
            let rehash = |&other: &u32| hasher.hash_one(slice(bytes, ends, other));
            *this.table.entry(hasher.hash_one(text), same, rehash).or_insert(index).get_mut() = index;
        }
        Ok(this)
    }

    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    /// The string at `index`; `None` when there are not so many.
    pub(crate) fn get(&self, index: u32) -> Option<&str> {
        let end = *self.ends.get(index as usize)? as usize;
        let start = match index.checked_sub(1) {
            Some(before) => self.ends[before as usize] as usize,
            None => 0,
        };
        Some(&self.text[start..end])
    }

    pub(crate) fn find(&self, text: &[u8]) -> Option<u32> {
        self.table
            .find(self.hasher.hash_one(text), |&index| slice(self.text.as_bytes(), &self.ends, index) == text)
            .copied()
    }
}

fn slice<'a>(bytes: &'a [u8], ends: &[u32], index: u32) -> &'a [u8] {
    let index = index as usize;
    let start = if index == 0 { 0 } else { ends[index - 1] };
    &bytes[start as usize..ends[index] as usize]
}

/// The merges of a BPE vocabulary by their two sides.
///
/// It keys on text, not on ids: then building it needs no look-up of ids (a third of a second
/// for the half million merges of Gemma), and a side need not be a token.
pub(crate) struct MergeTable {
    bytes: Vec<u8>,
    ends: Vec<u32>,
    /// Where the space is, counted from the start of its merge.
    middles: Vec<u32>,
    table: HashTable<u32>,
    hasher: DefaultHashBuilder,
}

impl MergeTable {
    /// Takes lines "left right" in the order of their ranks; of equal lines the first counts. The
    /// first space that is not the line's first byte parts the sides; `Err` is the number of a
    /// line without one.
    pub(crate) fn new(lines: &[&str]) -> Result<Self, usize> {
        let mut this = MergeTable {
            bytes: Vec::with_capacity(lines.iter().map(|line| line.len()).sum()),
            ends: Vec::with_capacity(lines.len()),
            middles: Vec::with_capacity(lines.len()),
            table: HashTable::with_capacity(lines.len()),
            hasher: DefaultHashBuilder::default(),
        };
        for (number, line) in lines.iter().enumerate() {
            let line = line.as_bytes();
            let tail = line.get(1..).unwrap_or_default();
            let space = tail.iter().position(|&b| b == b' ').ok_or(number)?;
            this.bytes.extend_from_slice(line);
            this.middles.push(space as u32 + 1);
            this.ends.push(u32::try_from(this.bytes.len()).map_err(|_| number)?);
        }
        for rank in 0..lines.len() as u32 {
            let (left, right) = this.sides(rank);
            let hash = this.hash(left, right);
            // Duplicates are not worth a comparison each: a look-up takes the least rank.
            let (bytes, ends, middles, hasher) = (&this.bytes, &this.ends, &this.middles, &this.hasher);
            this.table.insert_unique(hash, rank, |&other| {
                let (left, right) = sides(bytes, ends, middles, other);
                hash_pair(hasher, left, right)
            });
        }
        Ok(this)
    }

    fn sides(&self, rank: u32) -> (&[u8], &[u8]) {
        sides(&self.bytes, &self.ends, &self.middles, rank)
    }

    fn hash(&self, left: &[u8], right: &[u8]) -> u64 {
        hash_pair(&self.hasher, left, right)
    }

    /// The rank of the merge of `left` and `right`, lower first.
    pub(crate) fn rank(&self, left: &[u8], right: &[u8]) -> Option<u32> {
        self.table.iter_hash(self.hash(left, right)).copied().filter(|&rank| self.sides(rank) == (left, right)).min()
    }
}

fn sides<'a>(bytes: &'a [u8], ends: &[u32], middles: &[u32], rank: u32) -> (&'a [u8], &'a [u8]) {
    let line = slice(bytes, ends, rank);
    let middle = middles[rank as usize] as usize;
    (&line[..middle], &line[middle + 1..])
}

fn hash_pair(hasher: &DefaultHashBuilder, left: &[u8], right: &[u8]) -> u64 {
    let mut state = hasher.build_hasher();
    state.write(left);
    state.write_u8(b' ');
    state.write(right);
    state.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_what_it_was_given() {
        let strings = ["a", "", "bc", "a", "\u{ff}"];
        let table = StringTable::new(strings.iter().map(|&s| s.into())).unwrap();
        assert_eq!(table.len(), 5);
        assert_eq!(table.find(b"a"), Some(3), "the last of equal strings");
        assert_eq!(table.find(b""), Some(1));
        assert_eq!(table.find("\u{ff}".as_bytes()), Some(4));
        assert_eq!(table.find(b"b"), None);
        assert_eq!(table.get(2), Some("bc"));
        assert_eq!(table.get(5), None);
    }

    #[test]
    fn merges_part_at_the_first_space_that_is_not_first() {
        let lines = ["a b", "  b", "a b", "ab c"];
        let table = MergeTable::new(&lines).unwrap();
        assert_eq!(table.rank(b"a", b"b"), Some(0), "the first of equal merges");
        assert_eq!(table.rank(b" ", b"b"), Some(1));
        assert_eq!(table.rank(b"ab", b"c"), Some(3));
        assert_eq!(table.rank(b"a", b"bc"), None);
        assert_eq!(MergeTable::new(&["a b", "ab"]).err(), Some(1));
        assert_eq!(MergeTable::new(&[""]).err(), Some(0));
    }
}
