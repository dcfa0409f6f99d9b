//! Rotary frequencies: one table from base, divisors and scaling.
//!
//! ```text
//! RopeSpec ─► base^(-2i/dims) ─/divisors─(linear │ YaRN)─► Rope { inv_freq, magnitude }
//! ```
//!
//! Computed in F64 and rounded once. The YaRN rules are llama.cpp's: the ramp's ends are rounded outward.

use crate::{RopeScaling, RopeSpec};
use std::f64::consts::PI;
use zinc_ir::graph::Rope;

/// Divisors of the frequencies: how files state llama3's rope scaling.
pub(crate) const DIVISORS: &str = "rope_freqs.weight";

/// The table of a rotary embedding.
pub(crate) fn table(spec: &RopeSpec) -> Rope {
    let (dims, base) = (spec.dims as f64, spec.base as f64);
    let inv_freq = (0..spec.dims / 2).map(|i| {
        let divisor = spec.divisors.get(i as usize).map_or(1.0, |&d| d as f64);
        let plain = base.powf(-2.0 * i as f64 / dims) / divisor;
        (plain * kept(spec, i)) as f32
    });
    Rope { inv_freq: inv_freq.collect(), magnitude: (spec.magnitude as f64 * magnitude(spec.scaling)) as f32 }
}

/// What scaling leaves of the frequency of pair `i`.
fn kept(spec: &RopeSpec, i: u32) -> f64 {
    match spec.scaling {
        RopeScaling::None => 1.0,
        RopeScaling::Linear { factor } => 1.0 / factor as f64,
        RopeScaling::Yarn { factor, original_context, beta_fast, beta_slow, extrapolation, .. } => {
            let (dims, base) = (spec.dims as f64, spec.base as f64);
            // The pair that turns `turns` times over the original context.
            let pair =
                |turns: f32| dims * (original_context as f64 / (turns as f64 * 2.0 * PI)).ln() / (2.0 * base.ln());
            let low = pair(beta_fast).floor().max(0.0);
            let high = pair(beta_slow).ceil().min(dims - 1.0);
            let ramp = ((i as f64 - low) / (high - low).max(0.001)).clamp(0.0, 1.0);
            let fast = (1.0 - ramp) * extrapolation as f64;
            (1.0 - fast) / factor as f64 + fast
        }
    }
}

/// YaRN's factor on cos and sin.
fn magnitude(scaling: RopeScaling) -> f64 {
    let RopeScaling::Yarn { factor, log_multiplier, extrapolation, .. } = scaling else { return 1.0 };
    if extrapolation == 0.0 || factor <= 1.0 {
        return 1.0;
    }
    let of = |multiplier: f64| 1.0 + 0.1 * multiplier * (factor as f64).ln();
    if log_multiplier == 0.0 { of(1.0) } else { of(1.0) / of(log_multiplier as f64) }
}

/// The divisors that converters write for Llama 3.1 and later: 1 for pairs that turn more than 4 times in the
/// `original` context, `factor` for those that turn less than once, between them a blend of the two frequencies.
pub(crate) fn llama3_divisors(dims: u32, base: f32, factor: f64, original: f64) -> Vec<f32> {
    let divisor = |i: u32| {
        let turns = original / (2.0 * PI * (base as f64).powf(2.0 * i as f64 / dims as f64));
        let smooth = ((turns - 1.0) / (4.0 - 1.0)).clamp(0.0, 1.0);
        (1.0 / ((1.0 - smooth) / factor + smooth)) as f32
    };
    (0..dims / 2).map(divisor).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(scaling: RopeScaling) -> RopeSpec {
        RopeSpec { dims: 64, base: 1e6, scaling, divisors: vec![], magnitude: 1.0 }
    }

    fn yarn(extrapolation: f32, log_multiplier: f32) -> RopeScaling {
        let (factor, original_context) = (4.0, 32768);
        RopeScaling::Yarn { factor, original_context, beta_fast: 32.0, beta_slow: 1.0, extrapolation, log_multiplier }
    }

    #[test]
    fn yarn_keeps_fast_pairs_and_divides_slow_ones() {
        let (plain, yarn) = (table(&spec(RopeScaling::None)), table(&spec(yarn(1.0, 0.0))));
        assert_eq!(yarn.inv_freq[..10], plain.inv_freq[..10]);
        for i in 21..32 {
            assert_eq!(yarn.inv_freq[i], plain.inv_freq[i] / 4.0, "pair {i}");
        }
        assert!(yarn.inv_freq.is_sorted_by(|a, b| a > b));
    }

    #[test]
    fn yarn_without_extrapolation_is_linear() {
        let linear = table(&spec(RopeScaling::Linear { factor: 4.0 }));
        assert_eq!(table(&spec(yarn(0.0, 0.0))), linear);
    }

    #[test]
    fn magnitudes() {
        let of = |log_multiplier| table(&spec(yarn(1.0, log_multiplier))).magnitude;
        assert_eq!(of(0.0), 1.138_629_4);
        // DeepSeek's equal multipliers cancel.
        assert_eq!(of(1.0), 1.0);
        assert_eq!(table(&RopeSpec { magnitude: 1.5, ..spec(RopeScaling::None) }).magnitude, 1.5);
    }

    #[test]
    fn llama3_divisors_agree_with_a_converted_file() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/arch/llama/model.gguf");
        let gguf = zinc_gguf::Gguf::open(path).unwrap();
        let bytes = gguf.data(gguf.tensor(DIVISORS).unwrap());
        let file = bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
        let ours = llama3_divisors(32, 10000.0, 8.0, 64.0);
        assert_eq!(ours.len(), bytes.len() / 4);
        for (i, (ours, file)) in ours.iter().zip(file).enumerate() {
            assert!((ours - file).abs() <= 1e-6 * file, "pair {i}: {ours} instead of {file}");
        }
    }
}
