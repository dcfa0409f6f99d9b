//! One page as a file.
//!
//! ```text
//! magic and version │ identity │ name of the page before │ tokens │ depth, length │ K and V │ SHA-256 of all of it
//! ```
//!
//! The name of the page follows from identity, the page before and tokens, so a file under another's name is found out, too.

use sha2::{Digest, Sha256};
use std::fs::OpenOptions;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;
use zinc_engine::{KeptPage, PageName};
use zinc_ir::plan::PAGE_TOKENS;

/// The last byte counts changes of the format.
const MAGIC: [u8; 8] = *b"ZINC-KV\x01";
const TOKENS: usize = PAGE_TOKENS as usize * 4;
const IDENTITY: usize = 8;
const BEFORE: usize = IDENTITY + 32;
const WORDS: usize = BEFORE + 16;
const DEPTH: usize = WORDS + TOKENS;
const LENGTH: usize = DEPTH + 4;
const DATA: usize = LENGTH + 8;
const SUM: usize = 32;

/// A page to be written.
pub(crate) struct Page {
    pub(crate) page: KeptPage,
    /// Counts it until it is written.
    pub(crate) _waits: Option<Arc<()>>,
}

impl Page {
    /// The file's bytes.
    pub(crate) fn encode(&self, identity: &[u8; 32]) -> Vec<u8> {
        let KeptPage { before, depth, tokens, bytes: data, .. } = &self.page;
        let mut bytes = Vec::with_capacity(DATA + data.len() + SUM);
        bytes.extend(MAGIC);
        bytes.extend(identity);
        bytes.extend(before.unwrap_or_default());
        bytes.extend(tokens.iter().flat_map(|t| t.to_le_bytes()));
        bytes.extend(depth.to_le_bytes());
        bytes.extend((data.len() as u64).to_le_bytes());
        bytes.extend(data);
        let sum = Sha256::digest(&bytes);
        bytes.extend(sum);
        bytes
    }
}

/// The name of a page with these tokens after the page `before` (zeros: it is the first).
pub(crate) fn name(identity: &[u8; 32], before: PageName, tokens: &[u32]) -> PageName {
    let mut hash = Sha256::new();
    hash.update(identity);
    hash.update(before);
    tokens.iter().for_each(|t| hash.update(t.to_le_bytes()));
    let mut name = [0; 16];
    name.copy_from_slice(&hash.finalize()[..16]);
    name
}

/// What a page's file is called. Those of pages deep in a prompt sort last.
pub(crate) fn file_name(depth: u32, name: PageName) -> String {
    let hex: String = name.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{depth:05}-{hex}.zkv")
}

/// Depth and name of the page in a file that is called so; `None` for what is no page's file.
pub(crate) fn parse_name(file: &str) -> Option<(u32, PageName)> {
    let (depth, hex) = file.strip_suffix(".zkv")?.split_once('-')?;
    let (depth, mut name) = (depth.parse().ok()?, [0; 16]);
    for (i, byte) in name.iter_mut().enumerate() {
        *byte = u8::from_str_radix(hex.get(2 * i..2 * i + 2)?, 16).ok()?;
    }
    // One spelling each.
    (file_name(depth, name) == file).then_some((depth, name))
}

/// Is this the name of a page's file that is being written?
pub(crate) fn is_part(file: &str) -> bool {
    let page = |stem: &str| parse_name(&format!("{stem}.zkv")).is_some();
    file.strip_suffix(".part").and_then(|f| f.split_once('.')).is_some_and(|(stem, _)| page(stem))
}

/// The K and V of a page, which was used now.
pub(crate) fn read(path: &Path, identity: &[u8; 32], wanted: PageName) -> io::Result<Vec<u8>> {
    let mut file = OpenOptions::new().read(true).write(true).open(path)?;
    let mut bytes = vec![];
    file.read_to_end(&mut bytes)?;
    let data = check(&bytes, identity, wanted).map_err(|why| io::Error::new(io::ErrorKind::InvalidData, why))?;
    let (start, end) = (data.start, data.end);
    // For the next start. Where that is refused, the page only seems older than it is.
    file.set_modified(SystemTime::now()).ok();
    bytes.truncate(end);
    bytes.drain(..start);
    Ok(bytes)
}

/// Where the data of a whole and right file is.
fn check(bytes: &[u8], identity: &[u8; 32], wanted: PageName) -> Result<std::ops::Range<usize>, &'static str> {
    let body = bytes.len().checked_sub(SUM).filter(|body| *body >= DATA).ok_or("it is cut short")?;
    if bytes[..IDENTITY] != MAGIC {
        return Err("it is no page of this version");
    }
    if Sha256::digest(&bytes[..body])[..] != bytes[body..] {
        return Err("its checksum is wrong");
    }
    let mut length = [0; 8];
    length.copy_from_slice(&bytes[LENGTH..DATA]);
    if u64::from_le_bytes(length) != (body - DATA) as u64 {
        return Err("its length is wrong");
    }
    let mut before = [0; 16];
    before.copy_from_slice(&bytes[BEFORE..WORDS]);
    let words = bytes[WORDS..DEPTH].chunks_exact(4).map(|w| u32::from_le_bytes([w[0], w[1], w[2], w[3]]));
    let tokens: Vec<u32> = words.collect();
    if bytes[IDENTITY..BEFORE] != identity[..] || name(identity, before, &tokens) != wanted {
        return Err("it is another page");
    }
    Ok(DATA..body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        let name = name(&[7; 32], [0; 16], &[1, 2, 3]);
        for depth in [0, 12, 123_456] {
            let file = file_name(depth, name);
            assert_eq!((parse_name(&file), is_part(&file)), (Some((depth, name)), false));
            assert!(is_part(&file.replace("zkv", "77.part")));
        }
        for other in ["", ".zkv", "1-2.zkv", "00001-ü.zkv", "+0001-00000000000000000000000000000000.zkv", "notes.txt"]
        {
            assert_eq!(parse_name(other), None, "{other}");
        }
    }

    #[test]
    fn no_bit_may_be_another_and_none_may_be_missing() {
        let (identity, tokens) = ([3; 32], std::array::from_fn(|i| i as u32));
        let this = name(&identity, [9; 16], &tokens);
        let page = KeptPage { name: this, before: Some([9; 16]), depth: 4, tokens, bytes: vec![1, 2, 3, 4, 5] };
        let bytes = Page { page, _waits: None }.encode(&identity);
        assert_eq!(check(&bytes, &identity, this), Ok(DATA..DATA + 5));
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(check(&damaged, &identity, this).is_err(), "bit {bit}");
        }
        for length in 0..bytes.len() {
            assert!(check(&bytes[..length], &identity, this).is_err(), "{length} bytes");
        }
        assert!(check(&[&bytes[..], &[0]].concat(), &identity, this).is_err(), "a byte too many");
        assert!(check(&bytes, &[4; 32], this).is_err(), "another model");
        assert!(check(&bytes, &identity, [1; 16]).is_err(), "another name");
    }
}
