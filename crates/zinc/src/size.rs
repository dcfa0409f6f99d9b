//! Sizes in bytes, as people write them: `4096`, `500MiB`, `10GB`.

use std::str::FromStr;

/// Bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Size(pub(crate) u64);

/// Units; those with an `i`, and letters alone, are powers of two.
const UNITS: [(&str, u64); 14] = [
    ("", 1),
    ("b", 1),
    ("k", 1 << 10),
    ("kib", 1 << 10),
    ("kb", 1_000),
    ("m", 1 << 20),
    ("mib", 1 << 20),
    ("mb", 1_000_000),
    ("g", 1 << 30),
    ("gib", 1 << 30),
    ("gb", 1_000_000_000),
    ("t", 1 << 40),
    ("tib", 1 << 40),
    ("tb", 1_000_000_000_000),
];

impl FromStr for Size {
    type Err = String;
    fn from_str(text: &str) -> Result<Size, String> {
        let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let unit = unit.trim().to_ascii_lowercase();
        let bytes = UNITS.iter().find(|(name, _)| *name == unit).and_then(|(_, bytes)| {
            let number: u64 = number.parse().ok()?;
            number.checked_mul(*bytes)
        });
        bytes.map(Size).ok_or_else(|| format!("`{text}` is no size; write it like 500MiB, 10GiB or 10GB"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_spelled_like_this() {
        let of = |text: &str| text.parse().map(|Size(bytes)| bytes).ok();
        assert_eq!(
            ["7", "3k", "500MiB", "10 GB", "2t"].map(of),
            [7, 3 << 10, 500 << 20, 10_000_000_000, 2 << 40].map(Some)
        );
        assert_eq!(["", "GiB", "1.5GiB", "-1", "1XB", "99999999999T"].map(of), [None; 6]);
    }
}
