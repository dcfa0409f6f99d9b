//! The byte alphabet of GPT-2: each of the 256 bytes has one printable character, so that a
//! byte-level vocabulary can be written as text.
//!
//! ```text
//! bytes of a word ─spell─► characters (vocabulary, merges) ─read─► bytes
//! ```

/// The character that stands for `byte`: itself where it is printable Latin-1, else one of
/// U+0100..U+0143 in the order of the bytes.
const fn char_of(byte: u8) -> char {
    let mut shift = 0u32;
    let mut below = 0u32;
    while below < byte as u32 {
        if !is_printable(below as u8) {
            shift += 1;
        }
        below += 1;
    }
    let code = if is_printable(byte) { byte as u32 } else { 0x100 + shift };
    match char::from_u32(code) {
        Some(c) => c,
        None => panic!("every code here is below the surrogates"),
    }
}

const fn is_printable(byte: u8) -> bool {
    matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff)
}

const CHARS: [char; 256] = {
    let mut table = ['\0'; 256];
    let mut byte = 0;
    while byte < 256 {
        table[byte] = char_of(byte as u8);
        byte += 1;
    }
    table
};

/// Byte by code point, 256 for "none"; code points 0..0x144.
const BYTES: [u16; 0x144] = {
    let mut table = [256u16; 0x144];
    let mut byte = 0;
    while byte < 256 {
        table[CHARS[byte] as usize] = byte as u16;
        byte += 1;
    }
    table
};

/// Appends the spelling of `bytes` to `out`.
pub(crate) fn spell(bytes: &[u8], out: &mut String) {
    out.extend(bytes.iter().map(|&byte| CHARS[usize::from(byte)]));
}

/// The byte that `c` stands for; `None` for a character outside the alphabet.
pub(crate) fn read(c: char) -> Option<u8> {
    BYTES.get(c as usize).and_then(|&byte| u8::try_from(byte).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_its_own_character() {
        for byte in 0..=255u8 {
            let mut word = String::new();
            spell(&[byte], &mut word);
            let mut chars = word.chars();
            let c = chars.next().expect("one character");
            assert!(chars.next().is_none());
            assert!(!c.is_whitespace() && !c.is_control(), "{byte}");
            assert_eq!(read(c), Some(byte));
        }
        assert_eq!(read(' '), None);
        assert_eq!(read('\u{2581}'), None);
        assert_eq!(read('\u{10ffff}'), None);
        let mut word = String::new();
        spell(" a\n".as_bytes(), &mut word);
        assert_eq!(word, "\u{120}a\u{10a}");
    }
}
