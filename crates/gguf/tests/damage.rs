//! Damaged files: each kind of damage gives its own error, and thousands of random mutations of a
//! valid file never panic.

use zinc_gguf::{Array, Gguf, GgufError, GgufWriter, Strings, TensorType, Value};

/// Alignment 32, three keys, two tensors.
fn sample() -> Vec<u8> {
    let mut w = GgufWriter::new();
    w.set("general.architecture", "llama");
    w.set("tokenizer.ggml.tokens", vec!["a", "bb", ""]);
    w.set("flags", vec![true, false]);
    w.set("nested", Array::Array(vec![Array::U8(vec![1, 2]), Array::String(Strings::new())]));
    w.set("scores", vec![0.5_f32, -1.0]);
    w.tensor("a.weight", &[32, 2], TensorType::Q8_0, vec![1; 68]).unwrap();
    w.tensor("b.bias", &[3], TensorType::F32, vec![2; 12]).unwrap();
    w.to_bytes().unwrap()
}

/// Where `needle` starts in `bytes`; it must be there once.
fn find(bytes: &[u8], needle: &[u8]) -> usize {
    let hits: Vec<_> = (0..bytes.len()).filter(|&i| bytes[i..].starts_with(needle)).collect();
    assert_eq!(hits.len(), 1);
    hits[0]
}

/// The sample with `new` written at `at`.
fn patched(at: usize, new: &[u8]) -> Vec<u8> {
    let mut bytes = sample();
    bytes[at..at + new.len()].copy_from_slice(new);
    bytes
}

fn error(bytes: Vec<u8>) -> GgufError {
    Gguf::from_bytes(bytes).expect_err("a damaged file")
}

#[test]
fn other_files_are_recognised() {
    assert!(error(Vec::new()).to_string().contains("empty"));
    assert!(error(b"<!DOCTYPE html>".to_vec()).to_string().contains("web page"));
    assert!(error(b"tjgg\x03\0\0\0".to_vec()).to_string().contains("GGJT"));
    assert!(matches!(error(patched(4, &3_u32.to_be_bytes())), GgufError::BigEndian { version: 3 }));
    assert!(matches!(error(patched(4, &1_u32.to_le_bytes())), GgufError::Version { version: 1 }));
    assert!(matches!(error(patched(4, &0_u32.to_le_bytes())), GgufError::Version { version: 0 }));
}

#[test]
fn what_is_no_file_is_said_so() {
    let folder = Gguf::open(std::env::temp_dir()).expect_err("a folder");
    assert!(matches!(folder, GgufError::NoFile { what: "a folder", .. }), "{folder}");
    #[cfg(unix)]
    assert!(Gguf::open("/dev/null").expect_err("a device").to_string().contains("not a file"));
}

#[test]
fn a_file_cut_anywhere_is_an_error_that_names_a_field() {
    let whole = sample();
    for length in 0..whole.len() {
        // The padding after the last tensor may be missing.
        let last = Gguf::from_bytes(whole.clone()).unwrap().tensors().last().unwrap().clone();
        let result = Gguf::from_bytes(whole[..length].to_vec());
        // Only the padding after the last tensor may be missing.
        if length as u64 >= last.offset + last.bytes as u64 {
            assert!(result.is_ok(), "{length}");
            continue;
        }
        let error = result.expect_err("a cut file");
        let known = matches!(
            error,
            GgufError::NotGguf { .. }
                | GgufError::Truncated { .. }
                | GgufError::Count { .. }
                | GgufError::OutOfFile { .. }
        );
        assert!(known, "{length}: {error}");
    }
    let scores = find(&whole, b"scores");
    let text = error(whole[..scores + 24].to_vec()).to_string();
    assert!(text.contains("\"scores\""), "{text}");
}

#[test]
fn counts_beyond_the_file_are_refused_before_anything_is_allocated() {
    for at in [8, 16, 24] {
        let e = error(patched(at, &u64::MAX.to_le_bytes()));
        assert!(matches!(e, GgufError::Count { count: u64::MAX, .. }), "{e}");
        let e = error(patched(at, &(1_u64 << 40).to_le_bytes()));
        assert!(matches!(e, GgufError::Count { .. }), "{e}");
    }
    let tokens = find(&sample(), b"tokenizer.ggml.tokens") + 21 + 8;
    let e = error(patched(tokens, &u64::MAX.to_le_bytes()));
    assert!(e.to_string().contains("\"tokenizer.ggml.tokens\""), "{e}");
}

#[test]
fn wrong_values_and_types_in_the_metadata_are_named() {
    let bytes = sample();
    let key = find(&bytes, b"flags");
    assert!(matches!(error(patched(key + 5, &[13])), GgufError::ValueType { id: 13, .. }));
    assert!(matches!(error(patched(key + 5 + 4 + 4 + 8, &[2])), GgufError::Bool { value: 2, .. }));
    assert!(matches!(error(patched(key, &[0xff])), GgufError::Utf8 { .. }));

    let mut deep = Array::U8(vec![]);
    for _ in 0..7 {
        deep = Array::Array(vec![deep]);
    }
    let write = |array: Array| GgufWriter::new().set("deep", array).to_bytes().unwrap();
    assert!(Gguf::from_bytes(write(deep.clone())).is_ok());
    let e = error(write(Array::Array(vec![deep])));
    assert!(matches!(e, GgufError::Nesting { limit: 8, .. }), "{e}");
}

#[test]
fn doubled_names_are_errors() {
    let double = |a: &str, b: &str| {
        let mut bytes = GgufWriter::new().set("key.a", 1_u8).set("key.b", 1_u8).to_bytes().unwrap();
        let at = find(&bytes, a.as_bytes());
        bytes[at..at + b.len()].copy_from_slice(b.as_bytes());
        bytes
    };
    assert!(matches!(error(double("key.b", "key.a")), GgufError::DuplicateKey { .. }));

    let mut w = GgufWriter::new();
    w.tensor("t0", &[1], TensorType::F32, vec![0; 4]).unwrap();
    w.tensor("t1", &[1], TensorType::F32, vec![0; 4]).unwrap();
    let mut bytes = w.to_bytes().unwrap();
    let at = find(&bytes, b"t1");
    bytes[at + 1] = b'0';
    assert!(matches!(error(bytes), GgufError::DuplicateTensor { .. }));
    w.tensor("t0", &[1], TensorType::F32, vec![0; 4]).unwrap();
    assert!(matches!(w.to_bytes(), Err(GgufError::DuplicateTensor { .. })));
}

#[test]
fn impossible_tensors_are_named() {
    let bytes = sample();
    let a = find(&bytes, b"a.weight") + 8; // dimensions, 32, 2, type, offset
    let b = find(&bytes, b"b.bias") + 6; // dimensions, 3, type, offset
    assert!(matches!(error(patched(a, &[5])), GgufError::Dimensions { count: 5, .. }));
    assert!(matches!(error(patched(a + 4, &[31])), GgufError::PartialBlock { row: 31, .. }));
    assert!(matches!(error(patched(a + 4, &[0])), GgufError::ZeroDimension { dimension: 0, .. }));
    let e = error(patched(a + 12, &u64::MAX.to_le_bytes()));
    assert!(matches!(e, GgufError::TensorTooLarge { .. }), "{e}");
    let e = error(patched(a + 20, &[31]));
    assert!(e.to_string().contains("removed"), "{e}");
    assert!(matches!(error(patched(a + 20, &[99])), GgufError::TensorType { id: 99, .. }));
    assert!(matches!(error(patched(b + 16, &[8])), GgufError::Misaligned { offset: 8, .. }));
    assert!(matches!(error(patched(b + 16, &[64])), GgufError::Overlap { .. }));
    assert!(matches!(error(patched(b + 16, &[0, 1])), GgufError::OutOfFile { offset: 256, .. }));
    let e = error(patched(b + 16, &(u64::MAX - 31).to_le_bytes()));
    assert!(matches!(e, GgufError::OutOfFile { .. }), "{e}");
}

#[test]
fn alignments_are_checked_when_read_and_when_written() {
    let mut w = GgufWriter::new();
    w.set_alignment(64);
    w.tensor("t", &[1], TensorType::F32, vec![0; 4]).unwrap();
    let bytes = w.to_bytes().unwrap();
    assert_eq!(Gguf::from_bytes(bytes.clone()).unwrap().tensors()[0].offset % 64, 0);
    let at = find(&bytes, b"general.alignment") + 17 + 4;
    for bad in [0_u32, 4, 48, 1 << 31] {
        let mut bytes = bytes.clone();
        bytes[at..at + 4].copy_from_slice(&bad.to_le_bytes());
        assert!(matches!(error(bytes), GgufError::Alignment { .. }));
        assert!(w.set_alignment(bad).to_bytes().is_err());
    }
}

/// Uses everything an opened file offers.
fn walk(gguf: &Gguf) -> usize {
    let m = gguf.metadata();
    let mut seen = 0;
    for (key, value) in m.iter() {
        assert_eq!(m.get(key).map(Value::ty), Some(value.ty()));
        let found = [
            m.u32(key).is_ok(),
            m.f32(key).is_ok(),
            m.strings(key).is_ok_and(|s| s.is_some_and(|s| s.iter().count() == s.len())),
            m.u32_per_layer(key, 3).is_ok(),
        ];
        seen += found.iter().filter(|&&ok| ok).count();
    }
    for t in gguf.tensors() {
        assert_eq!(gguf.data(t).len(), t.bytes);
        seen += t.elements();
    }
    seen
}

/// xorshift64*, so that every run tries the same damage.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
}

/// Damages `bytes` in one of the ways that files get damaged, or that attackers try.
fn mutate(bytes: &mut Vec<u8>, random: &mut Random) {
    const NUMBERS: [u64; 8] = [0, 1, 0x7fff_ffff, 0xffff_ffff, 1 << 32, i64::MAX as u64, u64::MAX, u64::MAX - 31];
    if bytes.is_empty() {
        return;
    }
    let at = random.below(bytes.len());
    match random.below(6) {
        0 => bytes[at] ^= 1 << random.below(8),
        1 => bytes[at] = random.next() as u8,
        2 => bytes.truncate(at),
        3 => {
            let number = NUMBERS[random.below(NUMBERS.len())].to_le_bytes();
            let n = number.len().min(bytes.len() - at);
            bytes[at..at + n].copy_from_slice(&number[..n]);
        }
        4 => {
            let n = random.below(bytes.len() - at).min(64);
            let piece = bytes[at..at + n].to_vec();
            bytes.splice(at..at, piece);
        }
        _ => {
            let n = random.below(bytes.len() - at).min(16);
            bytes.drain(at..at + n);
        }
    }
}

#[test]
fn thousands_of_mutations_never_panic() {
    let original = sample();
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let (mut opened, mut refused) = (0, 0);
    for _ in 0..30_000 {
        let mut bytes = original.clone();
        for _ in 0..=random.below(3) {
            mutate(&mut bytes, &mut random);
        }
        match Gguf::from_bytes(bytes) {
            Ok(gguf) => {
                walk(&gguf);
                opened += 1;
            }
            Err(error) => {
                assert!(!error.to_string().is_empty());
                refused += 1;
            }
        }
    }
    // Both kinds must occur often, or the mutations test nothing.
    assert!(opened > 1_000 && refused > 10_000, "{opened} opened, {refused} refused");
}
