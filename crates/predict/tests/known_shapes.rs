//! Predictions for known shapes: in the right direction, and near what others have measured.

use std::sync::Arc;
use zinc_compiler::{Choices, compile};
use zinc_ir::plan::{ActPrecision, Bucket, KvLayout, KvType, Plan, Tail};
use zinc_predict::cards::{CARDS, Card, card};
use zinc_predict::memory::{Fit, GIB};
use zinc_predict::rates::{self, Rates, Unit};
use zinc_predict::time::{Prediction, step};

fn plan(shape: &str, card: &Card, context: u32) -> Plan {
    let (model, _) = zinc_models::synthetic(shape, None).unwrap_or_else(|e| panic!("{shape}: {e}"));
    let kv = Arc::new(KvLayout::new(&model.graph, KvType::F16, context / 32));
    let bucket = Bucket { tokens: 1, outputs: 1, context, sequences: 1, tail: Tail::Greedy };
    let choices = Choices { act: ActPrecision::F16, ..Choices::default() };
    compile(&model.graph, &kv, bucket, &card.caps(), &choices).expect("compiles")
}

fn predict(shape: &str, card: &Card, visible: u32) -> Prediction {
    step(&plan(shape, card, 8192), card, rates::of(card.chip).expect("rates"), visible)
}

#[test]
fn more_bandwidth_is_faster_and_more_bytes_are_slower() {
    let slow = card("rx7600xt").expect("known");
    let fast = Card { published_gbps: slow.published_gbps * 1.5, ..*slow };
    let time = |shape: &str, card: &Card, visible| predict(shape, card, visible).time.total();
    let eight = time("llama3.1-8b:q4_k_m", slow, 128);
    assert!(time("llama3.1-8b:q4_k_m", &fast, 128) < eight);
    assert!(time("llama3.1-8b:q8_0", slow, 128) > eight);
    assert!(time("qwen2.5-14b:q4_k_m", slow, 128) > eight);
    assert!(time("llama3.1-8b:q4_k_m", slow, 8192) > eight);
}

#[test]
fn no_card_beats_its_streaming_rate() {
    for card in CARDS {
        let p = predict("llama3.1-8b:q4_k_m", card, 128);
        let floor = p.bytes() as f64 / card.streaming_gbps() / 1e3;
        assert!(p.time.total() > floor, "{}", card.name);
        let (rate, low, high) = p.tokens_per_second();
        assert!(low < rate && rate < high && p.unknown.is_empty(), "{}: {:?}", card.name, p.unknown);
    }
}

/// Llama-3.1-8B Q4_K_M on an RX 9070 XT: 119.6 tokens per second with llama.cpp, 122.8 with the best engine published.
#[test]
fn a_published_figure_is_within_the_error_bar() {
    let (_, low, high) = predict("llama3.1-8b:q4_k_m", card("rx9070xt").expect("known"), 128).tokens_per_second();
    assert!(low < 119.6 && 122.8 < high, "{low} to {high}");
}

#[test]
fn slow_arithmetic_and_unknown_formats_show() {
    let card = card("rx9070xt").expect("known");
    let plan = plan("llama3.2-1b:q8_0", card, 256);
    let rates = |text: &str| Rates::parse(text).expect("rates");
    let unknown = step(&plan, card, &rates("unit GB/s\n"), 128);
    assert!(!unknown.unknown.is_empty() && unknown.time.arithmetic == 0.0);
    let mut slow = rates("unit GB/s\n");
    for line in rates::of(card.chip).expect("rates").lines.iter().filter(|l| l.format == "Q8_0") {
        slow.lines.push(rates::Rate { rates: [200.0; 3], ..line.clone() });
    }
    assert_eq!(slow.unit, Unit::Gbps);
    let slow = step(&plan, card, &slow, 128);
    assert!(slow.unknown.is_empty() && slow.time.arithmetic > slow.time.memory);
}

#[test]
fn what_is_missing_is_told() {
    let card = card("rx7600xt").expect("known");
    let (model, _) = zinc_models::synthetic("qwen2.5-32b:q4_k_m", None).expect("a shape");
    let kv = KvLayout::new(&model.graph, KvType::F16, 8192 / 32);
    let fit = Fit::new(&model.graph, &kv, 0, card);
    let missing = fit.needed() as f64 / GIB - card.usable_gib;
    assert!((fit.missing() as f64 / GIB - missing).abs() < 0.01 && missing > 5.0, "{fit:?}");
    assert_eq!(fit.most_context, 0);
    let (model, _) = zinc_models::synthetic("llama3.1-8b:q4_k_m", None).expect("a shape");
    let fit = Fit::new(&model.graph, &KvLayout::new(&model.graph, KvType::F16, 4), 0, card);
    assert_eq!(fit.missing(), 0);
    // 128 KiB of K and V per token.
    let left = (fit.usable - fit.weights) / (128 << 10);
    assert!(fit.most_context <= left && fit.most_context + 32 > left, "{fit:?}");
}
