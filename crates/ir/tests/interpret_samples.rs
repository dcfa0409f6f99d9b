//! The samples: they verify, print and parse, and the interpreter gets them right in several orders.

use zinc_ir::kernel::interpret::Options;
use zinc_ir::kernel::samples::{all, matrix};
use zinc_ir::kernel::{parse, verify};

#[test]
fn all_samples_at_all_subgroup_sizes() {
    for subgroup in [4, 8, 16, 32, 64, 128] {
        let mut samples = all(subgroup);
        samples.extend(matrix(subgroup, [16, 16, 16]));
        samples.extend(matrix(subgroup, [16, 8, 32]));
        let mut failures = vec![];
        for sample in &samples {
            verify(&sample.kernel).unwrap_or_else(|e| panic!("{e}\n{}", sample.kernel));
            for seed in [1, 2] {
                if let Err(e) = sample.interpret(&Options { seed, check_races: true }) {
                    failures.push(e.to_string());
                    break;
                }
            }
        }
        println!("{} samples", samples.len());
        assert!(failures.is_empty(), "subgroups of {subgroup}:\n{}", failures.join("\n"));
    }
}

#[test]
fn samples_print_and_parse_to_the_same_text_and_fingerprint() {
    for sample in all(8) {
        let text = sample.kernel.to_string();
        let parsed = parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
        assert_eq!(parsed.to_string(), text);
        assert_eq!(parsed.fingerprint(), sample.kernel.fingerprint());
        verify(&parsed).unwrap_or_else(|e| panic!("{e}\n{text}"));
    }
}

#[test]
fn samples_have_different_names_and_fingerprints() {
    let samples = all(32);
    let mut seen = std::collections::HashMap::new();
    for s in &samples {
        if let Some(other) = seen.insert(s.kernel.fingerprint(), &s.kernel.name) {
            panic!("{} and {other} have one fingerprint", s.kernel.name);
        }
    }
    let names: std::collections::HashSet<_> = samples.iter().map(|s| &s.kernel.name).collect();
    assert_eq!(names.len(), samples.len());
}

/// The comparison itself can fail.
#[test]
fn a_wrong_result_is_noticed() {
    for mut sample in all(16) {
        let (index, buffer) = sample.buffers.iter_mut().enumerate().find(|(_, b)| b.expected.is_some()).unwrap();
        let mut got = buffer.expected.as_ref().unwrap().bytes.clone();
        sample.check(index, &got).unwrap();
        // The highest byte of the first element: sign and exponent for floats.
        got[3] ^= 0x42;
        sample.check(index, &got).unwrap_err();
        sample.check(index, &got[1..]).unwrap_err();
    }
}
