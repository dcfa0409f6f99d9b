//! The sampler against its definitions, written out the slow way.

use super::*;
use proptest::prelude::*;

fn tokens(candidates: &[Candidate]) -> Vec<u32> {
    candidates.iter().map(|c| c.token).collect()
}

/// Frequencies of `n` draws.
fn frequencies(sampling: Sampling, logits: &[f32], n: usize) -> Vec<f64> {
    let mut sampler = Sampler::new(sampling);
    let mut counts = vec![0usize; logits.len()];
    for _ in 0..n {
        counts[sampler.sample(logits, &[]).unwrap() as usize] += 1;
    }
    counts.into_iter().map(|c| c as f64 / n as f64).collect()
}

#[test]
fn greedy_takes_the_lowest_of_equals_and_skips_nan() {
    assert_eq!(argmax(&[1.0, 3.0, f32::NAN, 3.0]), Some(1));
    assert_eq!(argmax(&[f32::NEG_INFINITY, f32::NEG_INFINITY]), Some(0));
    assert_eq!(argmax(&[f32::NAN]), None);
}

#[test]
fn draws_follow_the_softmax_at_the_temperature() {
    let logits = [0.0f32, 1.0, 2.0, -1.0];
    for temperature in [0.5f32, 1.0, 2.0] {
        let seen = frequencies(Sampling { temperature, seed: 3, ..Default::default() }, &logits, 40_000);
        let weights: Vec<f64> = logits.iter().map(|x| (*x as f64 / temperature as f64).exp()).collect();
        let sum: f64 = weights.iter().sum();
        for (seen, weight) in seen.iter().zip(weights) {
            assert!((seen - weight / sum).abs() < 0.01, "temperature {temperature}: {seen} for {}", weight / sum);
        }
    }
}

#[test]
fn extreme_settings_and_logits_still_mean_what_they_say() {
    // The smallest temperatures are as good as greedy; with the largest everything is equally likely.
    let logits = [-3e38f32, 1.0, 7.0, 6.9];
    for temperature in [f32::from_bits(1), 1e-38, 1e-30] {
        assert_eq!(
            frequencies(Sampling { temperature, seed: 5, ..Default::default() }, &logits, 100),
            [0.0, 0.0, 1.0, 0.0]
        );
    }
    let even =
        frequencies(Sampling { temperature: f32::MAX, seed: 5, ..Default::default() }, &[1.0, 2.0, 3.0, 4.0], 20_000);
    assert!(even.iter().all(|f| (f - 0.25).abs() < 0.02), "{even:?}");
    // Infinitely good tokens share all of the probability.
    let infinite = [f32::INFINITY, 1.0, f32::INFINITY, f32::NEG_INFINITY];
    let halves = frequencies(Sampling { temperature: 0.8, seed: 5, ..Default::default() }, &infinite, 20_000);
    assert!((halves[0] - 0.5).abs() < 0.02 && halves[0] + halves[2] == 1.0, "{halves:?}");
}

#[test]
fn same_seed_same_draws() {
    let logits: Vec<f32> = (0..50).map(|i| (i as f32 * 0.7).sin()).collect();
    let draws = |seed| {
        let mut s = Sampler::new(Sampling { temperature: 1.0, seed, ..Default::default() });
        (0..30).map(|_| s.sample(&logits, &[]).unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(draws(1), draws(1));
    assert_ne!(draws(1), draws(2));
}

#[test]
fn penalties_follow_their_formulas() {
    let s = Sampling {
        repeat_penalty: 2.0,
        frequency_penalty: 0.5,
        presence_penalty: 0.25,
        repeat_last_n: 3,
        ..Default::default()
    };
    // Token 0 is too old to count; token 1 occurs twice, token 2 once.
    let got = reorder(&[1.0, 4.0, -1.0, 0.5], &[0, 1, 2, 1], &s);
    assert_eq!(got, [1.0, 4.0 / 2.0 - 1.25, -2.0 - 0.75, 0.5]);
    let none = Sampling { repeat_last_n: 0, ..s.clone() };
    assert!(none.is_argmax(), "a window of nothing penalizes nothing");
    let all = Sampling { repeat_last_n: -1, ..s };
    assert_eq!(reorder(&[1.0, 0.0], &[0, 1, 1, 1, 1], &all)[0], 0.5 - 0.75);
}

#[test]
fn a_penalty_changes_the_greedy_choice() {
    let mut s = Sampler::new(Sampling { repeat_penalty: 1.5, ..Default::default() });
    assert_eq!(s.sample(&[2.0, 1.9], &[0]), Some(1));
}

#[test]
fn typical_keeps_what_is_nearest_the_entropy() {
    // p = 0.5, 0.3, 0.2: entropy 1.0297; surprises 0.693, 1.204, 1.609: nearest are 0.3, then 0.5.
    let mut c = best(&[0.5f32.ln(), 0.3f32.ln(), 0.2f32.ln()], 0);
    keep_typical(&mut c, 0.6);
    assert_eq!(tokens(&c), [0, 1]);
    let mut c = best(&[0.5f32.ln(), 0.3f32.ln(), 0.2f32.ln()], 0);
    keep_typical(&mut c, 0.2);
    assert_eq!(tokens(&c), [1]);
}

#[test]
fn min_p_is_relative_to_the_best() {
    let mut c = best(&[1.0f32.ln(), 0.5f32.ln(), 0.09f32.ln()], 0);
    keep_min_p(&mut c, 0.1);
    assert_eq!(tokens(&c), [0, 1]);
}

#[test]
fn senseless_settings_are_named() {
    let bad = Sampling { top_p: 1.5, ..Default::default() };
    assert_eq!(bad.check().unwrap_err().to_string(), "top-p is 1.5, but must be between 0 and 1");
    assert!(Sampling { repeat_penalty: 0.0, ..Default::default() }.check().is_err());
    assert!(Sampling { temperature: f32::NAN, ..Default::default() }.check().is_err());
    assert!(Sampling::default().check().is_ok());
}

proptest! {
    #[test]
    fn top_k_is_the_head_of_the_full_order(logits in prop::collection::vec(-3i32..3, 1..60), k in 1u32..70) {
        let logits: Vec<f32> = logits.into_iter().map(|x| x as f32).collect();
        let mut slow: Vec<usize> = (0..logits.len()).collect();
        slow.sort_by(|a, b| logits[*b].partial_cmp(&logits[*a]).unwrap());
        slow.truncate(k as usize);
        let fast: Vec<usize> = tokens(&best(&logits, k)).into_iter().map(|t| t as usize).collect();
        prop_assert_eq!(fast, slow);
    }

    #[test]
    fn top_p_is_the_smallest_head_that_reaches_the_mass(
        logits in prop::collection::vec(-5f32..5.0, 1..60),
        p in 0.01f32..0.99,
    ) {
        let mut kept = best(&logits, 0);
        keep_top_p(&mut kept, p);
        let sum: f64 = logits.iter().map(|x| (*x as f64).exp()).sum();
        let mass = |n: usize| kept[..n].iter().map(|c| (c.logit as f64).exp() / sum).sum::<f64>();
        prop_assert!(mass(kept.len()) >= p as f64 - 1e-9);
        prop_assert!(kept.len() == 1 || mass(kept.len() - 1) < p as f64 + 1e-9);
    }

    #[test]
    fn every_draw_is_a_candidate(logits in prop::collection::vec(-5f32..5.0, 1..60), seed in 0u64..99, k in 1u32..9) {
        let sampling = Sampling { temperature: 0.8, top_k: k, top_p: 0.9, min_p: 0.05, seed, ..Default::default() };
        let token = Sampler::new(sampling).sample(&logits, &[]).unwrap();
        prop_assert!(tokens(&best(&logits, k)).contains(&token));
    }
}

#[test]
fn the_best_logits_are_enough_for_a_small_top_k() {
    let mut random = Random::new(5);
    for seed in 0..200 {
        let logits: Vec<f32> = (0..500).map(|_| (random.unit() * 12.0) as f32).collect();
        let sampling =
            Sampling { temperature: 0.8, top_k: 1 + seed as u32 % 64, top_p: 0.9, seed, ..Sampling::default() };
        assert_eq!(sampling.candidates(), Some(sampling.top_k));
        let best = best(&logits, MOST_CANDIDATES);
        let (tokens, values): (Vec<u32>, Vec<f32>) = best.iter().map(|c| (c.token, c.logit)).unzip();
        let (mut whole, mut few) = (Sampler::new(sampling.clone()), Sampler::new(sampling));
        for _ in 0..5 {
            assert_eq!(few.sample_best(&tokens, &values), whole.sample(&logits, &[]), "seed {seed}");
        }
    }
    let penalized = Sampling { temperature: 1.0, top_k: 40, repeat_penalty: 1.1, ..Sampling::default() };
    assert_eq!(penalized.candidates(), None);
}

#[test]
fn a_bias_goes_before_penalties_and_takes_the_choice_from_the_device() {
    let s = Sampling { bias: Arc::from([(1, 3.0), (9, 1.0)]), repeat_penalty: 2.0, ..Sampling::default() };
    assert_eq!(reorder(&[1.0, 1.0], &[1], &s), [1.0, 2.0]);
    let s = Sampling { bias: Arc::from([(0, -2.0)]), ..Sampling::default() };
    assert!(!s.is_argmax() && Sampling { temperature: 1.0, top_k: 4, ..s.clone() }.candidates().is_none());
    assert_eq!(Sampler::new(s).sample(&[1.0, 0.5], &[]), Some(1));
    assert!(Sampling { bias: Arc::from([(0, f32::NAN)]), ..Sampling::default() }.check().is_err());
}
