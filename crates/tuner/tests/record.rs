//! The record on its way to a file and back, whole and damaged.

use proptest::prelude::*;
use zinc_compiler::Cut;
use zinc_tuner::{OnTrial, Record, Verdict};

const RULE: Cut = Cut { subgroups: 16, rows: 2, turns: 1, units: 1, ahead: true, ..Cut::ONE };
const BETTER: Cut = Cut { subgroups: 8, ..RULE };

fn record() -> Record {
    let verdict = |cut: Cut, seconds| Verdict {
        cut,
        seconds,
        rule: RULE,
        rule_seconds: 2e-5,
        model: "a model".into(),
        rotates: 300 << 20,
        tried: [RULE, cut].into(),
        dropped: 3,
    };
    let mut record = Record::new("card-1", "a card");
    record.results.insert("better".into(), verdict(BETTER, 1.5e-5));
    record.results.insert("as the rule says".into(), verdict(RULE, 2e-5));
    record.results.insert("barred since".into(), verdict(BETTER, 1e-5));
    record.bar("barred since", BETTER, "wrong");
    record.on_trial.push(OnTrial { key: "better".into(), cut: Cut { rows: 4, ..RULE } });
    record
}

#[test]
fn a_record_comes_back_as_it_was() {
    let text = serde_json::to_string_pretty(&record()).expect("JSON");
    let back: Record = serde_json::from_str(&text).expect("a record");
    assert_eq!(back, record());
    assert!(back.is_sound("card-1") && !back.is_sound("card-2"));
    assert!(text.contains("16x2x1 u1 ahead"), "{text}");
}

#[test]
fn only_better_and_free_cuts_are_used() {
    assert_eq!(record().tuned().into_iter().collect::<Vec<_>>(), [("better".to_string(), BETTER)]);
    assert!((record().results["better"].gain() - 0.25).abs() < 1e-9);
}

#[test]
fn what_was_on_trial_is_quarantined_once() {
    let mut r = record();
    assert_eq!(r.settle("hung"), 1);
    assert!(r.quarantined("better", Cut { rows: 4, ..RULE }) && r.on_trial.is_empty());
    assert_eq!((r.settle("hung"), r.quarantine.len()), (0, 2));
    r.bar("better", Cut { rows: 4, ..RULE }, "again");
    assert_eq!(r.quarantine.len(), 2);
}

#[test]
fn other_kernels_and_impossible_times_are_not_sound() {
    let spoil = |f: fn(&mut Record)| {
        let mut record = record();
        f(&mut record);
        record.is_sound("card-1")
    };
    assert!(spoil(|_| ()));
    assert!(!spoil(|r| r.generation += 1));
    assert!(!spoil(|r| r.format += 1));
    assert!(!spoil(|r| r.results.get_mut("better").expect("there").seconds = -1.0));
    assert!(!spoil(|r| r.results.get_mut("better").expect("there").rule_seconds = f64::NAN));
}

proptest! {
    /// Damage is noticed, or leaves a record that can be used.
    #[test]
    fn damage_does_no_harm(at in any::<prop::sample::Index>(), byte in any::<u8>(), cut in any::<bool>()) {
        let mut bytes = serde_json::to_vec(&record()).expect("JSON");
        let at = at.index(bytes.len());
        if cut { bytes.truncate(at) } else { bytes[at] = byte }
        if let Ok(mut record) = serde_json::from_slice::<Record>(&bytes) {
            record.is_sound("card-1");
            record.tuned();
            record.settle("hung");
        }
    }
}
