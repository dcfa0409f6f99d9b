//! Split models: `NAME-00001-of-00003.gguf` and its siblings.
//!
//! Each part is a complete GGUF file. Its metadata say which part it is (`split.no`, from 0), how
//! many there are (`split.count`) and how many tensors all parts have together
//! (`split.tensors.count`). The model's own metadata are in the first part.

use std::path::{Path, PathBuf};

use crate::{GgufError, Metadata};

const NUMBER: &str = "split.no";
const COUNT: &str = "split.count";
const TENSORS: &str = "split.tensors.count";

/// The number of parts that a file's metadata claim, and which of them it is (from 0). A whole
/// model is part 0 of 1.
pub(crate) fn part_of(metadata: &Metadata) -> Result<(u64, u64), GgufError> {
    let count = metadata.u64(COUNT)?.unwrap_or(1).max(1);
    Ok((metadata.u64(NUMBER)?.unwrap_or(0), count))
}

/// The paths of all `count` parts, given the path of part `number` (from 0), by its name.
pub(crate) fn part_paths(path: &Path, number: u64, count: u64) -> Result<Vec<PathBuf>, GgufError> {
    let wrong_name = || GgufError::SplitName { part: number.saturating_add(1), count };
    // Five digits: a larger count can have no such name, and a damaged one must not allocate.
    if count > 99_999 || number >= count {
        return Err(wrong_name());
    }
    let name = path.file_name().and_then(|name| name.to_str()).ok_or_else(wrong_name)?;
    let suffix = |part: u64| format!("-{part:05}-of-{count:05}.gguf");
    let prefix = name.strip_suffix(suffix(number + 1).as_str()).ok_or_else(wrong_name)?;
    Ok((1..=count).map(|part| path.with_file_name(format!("{prefix}{}", suffix(part)))).collect())
}

/// Checks that a part is the one its name says.
pub(crate) fn check_part(metadata: &Metadata, number: u64, count: u64) -> Result<(), GgufError> {
    expect(metadata, COUNT, count)?;
    expect(metadata, NUMBER, number)
}

/// Checks the first part's total against the tensors found in all parts.
pub(crate) fn check_total(metadata: &Metadata, tensors: usize) -> Result<(), GgufError> {
    expect(metadata, TENSORS, tensors as u64)
}

fn expect(metadata: &Metadata, key: &'static str, expected: u64) -> Result<(), GgufError> {
    let found = metadata.u64(key)?;
    if found == Some(expected) {
        return Ok(());
    }
    let found = found.map_or_else(|| "nothing".to_owned(), |n| n.to_string());
    Err(GgufError::Split { key, expected, found })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_siblings_follow_from_any_part() {
        let paths = part_paths(Path::new("dir/m-00002-of-00003.gguf"), 1, 3).unwrap();
        let names = ["dir/m-00001-of-00003.gguf", "dir/m-00002-of-00003.gguf", "dir/m-00003-of-00003.gguf"];
        assert_eq!(paths, names.map(PathBuf::from));
    }

    #[test]
    fn a_renamed_part_is_refused_with_the_name_it_should_have() {
        for path in ["m.gguf", "m-00001-of-00003.gguf", "m-00002-of-00004.gguf", ".."] {
            let error = part_paths(Path::new(path), 1, 3).unwrap_err();
            assert!(error.to_string().contains("NAME-00002-of-00003.gguf"), "{error}");
        }
        assert!(part_paths(Path::new("m"), u64::MAX, u64::MAX).is_err());
    }
}
