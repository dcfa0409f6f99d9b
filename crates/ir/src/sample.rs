//! Drawing a token from the best candidates, the same to the bit on every device.
//!
//! ```text
//! logits, best first ─top-k─► ─top-p─► ─min-p─► ─temperature─► weights (integers) ─unit─► which one
//! ```
//!
//! A weight is e^(logit − best) in units of 2⁻²⁴. It is made of F32 sums and products, which are rounded the same way
//! everywhere, and of integers, whose sums do not depend on their order: so the kernel that samples on a GPU
//! (`compiler::kernels::top_k`), the CPU device and the engine's own sampler agree on every draw. Candidates less
//! likely than 2⁻²⁵ of the best have weight 0.

/// How one token is drawn.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Draw {
    /// Uniform in [0, 1), a multiple of 2⁻²⁴.
    pub unit: f32,
    /// 1 / temperature, within [`Draw::INVERSE`].
    pub inverse_temperature: f32,
    /// Keep the smallest set of best candidates whose probability reaches this; 1: all.
    pub top_p: f32,
    /// Keep candidates whose logit is at least the best one's plus this; [`Draw::NO_MIN_P`]: all.
    pub min_p_log: f32,
    /// Keep the best k.
    pub top_k: u32,
}

impl Draw {
    /// Words of a draw in a step's inputs; a power of two.
    pub const WORDS: usize = 8;
    /// Limits of the inverse temperature: far from what F32 cannot hold.
    pub const INVERSE: [f32; 2] = [1e-30, 1e30];
    /// A minimum that everything reaches.
    pub const NO_MIN_P: f32 = -1e30;
    /// The best candidate, whatever the unit.
    pub const GREEDY: Draw =
        Draw { unit: 0.0, inverse_temperature: 1.0, top_p: 1.0, min_p_log: Draw::NO_MIN_P, top_k: 1 };

    /// As kernels read it.
    pub fn words(&self) -> [u32; Draw::WORDS] {
        let floats = [self.unit, self.inverse_temperature, self.top_p, self.min_p_log].map(f32::to_bits);
        [floats[0], floats[1], floats[2], floats[3], self.top_k, 0, 0, 0]
    }
}

/// log₂ e.
pub const LOG2_E: f32 = std::f32::consts::LOG2_E;
/// No exponent is lower: e⁻¹⁰⁰ has weight 0.
pub const LOWEST: f32 = -100.0;
/// 2^f for f in [0, 1), as a polynomial, highest power first; off by less than one part in 3 million.
pub const POWER: [f32; 6] = [1.789_665_7e-3, 9.196_808e-3, 5.565_865_7e-2, 2.402_068_8e-1, 6.931_476e-1, 1.0];
/// Fractional bits of a weight.
pub const WEIGHT_BITS: u32 = 24;

/// e^x in units of 2⁻²⁴, for x ≤ 0.
pub fn weight(x: f32) -> u32 {
    let t = x.max(LOWEST) * LOG2_E;
    let n = t.floor();
    let f = t - n;
    let mut power = POWER[0];
    for c in &POWER[1..] {
        power = power * f + *c;
    }
    // Twice the weight, cut off, then halved and rounded.
    let doubled = (power * (1u32 << (WEIGHT_BITS + 1)) as f32) as u32;
    let down = ((-n) as u32).min(31);
    ((doubled >> down) + 1) >> 1
}

/// How far a logit is below the best one; also where both are infinite.
pub fn distance(logit: f32, best: f32) -> f32 {
    if logit == best { 0.0 } else { logit - best }
}

/// Which of `logits` (best first; `f32::MIN` or less: not a candidate) is drawn; none if there is no candidate.
pub fn pick(logits: &[f32], draw: &Draw) -> Option<usize> {
    let valid = logits.iter().take(draw.top_k as usize).take_while(|x| **x > f32::MIN).count();
    let best = *logits.first().filter(|_| valid > 0)?;
    let plain = |i: usize| weight(distance(logits[i], best));
    let mut kept = valid;
    if draw.top_p < 1.0 {
        let total: u32 = (0..valid).map(plain).sum();
        let mass = total as f32 * draw.top_p;
        let mut sum = 0;
        let below = (0..valid).map(plain).take_while(|w| {
            sum += w;
            (sum as f32) < mass
        });
        kept = (below.count() + 1).min(valid);
    }
    let least = best + draw.min_p_log;
    kept = logits[..kept].iter().filter(|x| **x >= least).count().max(1);
    let tempered = |i: usize| weight(distance(logits[i], best) * draw.inverse_temperature);
    let total: u32 = (0..kept).map(tempered).sum();
    let point = draw.unit * total as f32;
    let mut sum = 0;
    // Rounding may put the point on the total: then the last one that has weight is drawn.
    let passed = (0..kept).take_while(|i| {
        sum += tempered(*i);
        sum as f32 <= point && (sum as f32) < total as f32
    });
    Some(passed.count())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_exponentials() {
        for i in 0..2000 {
            let x = -(i as f32) * 0.01;
            let (got, want) = (weight(x) as f64, (x as f64).exp() * (1 << WEIGHT_BITS) as f64);
            assert!((got - want).abs() <= 0.51 + want * 2e-6, "e^{x}: {got} for {want}");
        }
        assert_eq!([weight(0.0), weight(-30.0), weight(f32::MIN), weight(f32::NEG_INFINITY)], [1 << 24, 0, 0, 0]);
    }

    #[test]
    fn picks_narrow_in_order() {
        let logits = [0.5f32, 0.3, 0.2].map(f32::ln);
        let plain = Draw { top_k: 3, ..Draw::GREEDY };
        let picks = |draw: Draw| [0.0, 0.49, 0.51, 0.79, 0.81, 0.999].map(|unit| pick(&logits, &Draw { unit, ..draw }));
        assert_eq!(picks(plain), [0, 0, 1, 1, 2, 2].map(Some));
        assert_eq!(picks(Draw::GREEDY), [Some(0); 6]);
        assert_eq!(picks(Draw { top_p: 0.6, ..plain }), [0, 0, 0, 1, 1, 1].map(Some));
        assert_eq!(picks(Draw { min_p_log: 0.7f32.ln(), ..plain }), [Some(0); 6]);
        assert_eq!(picks(Draw { inverse_temperature: 1e30, ..plain }), [Some(0); 6]);
        assert_eq!(picks(Draw { inverse_temperature: 1e-30, ..plain }), [0, 1, 1, 2, 2, 2].map(Some));
        assert_eq!(pick(&[f32::MIN; 3], &plain), None);
        assert_eq!(pick(&[1.0, f32::MIN], &Draw { unit: 0.999, ..plain }), Some(0));
        let infinite = [f32::INFINITY, f32::INFINITY, 1.0];
        assert_eq!([0.1, 0.6, 0.99].map(|unit| pick(&infinite, &Draw { unit, ..plain })), [0, 1, 1].map(Some));
    }
}
