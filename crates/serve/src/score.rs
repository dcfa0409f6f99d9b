//! Log-probabilities of chosen tokens, out of a row of logits.

/// A token with its log-probability and those of the likeliest at its place.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Scored {
    pub(crate) token: u32,
    pub(crate) logprob: f32,
    /// Likeliest first; lower ids first among equals.
    pub(crate) top: Vec<(u32, f32)>,
}

/// Least log-probability that is told: JSON has no infinity.
const LEAST: f32 = -9999.0;

/// Scores `token` and the `top` likeliest by the logits as the model gave them, before any sampling setting.
pub(crate) fn score(logits: &[f32], token: u32, top: usize) -> Scored {
    let numbers = || logits.iter().copied().filter(|x| !x.is_nan());
    let largest = numbers().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = numbers().map(|x| ((x - largest) as f64).exp()).sum();
    let norm = largest as f64 + sum.ln();
    let logprob = |x: f32| {
        let p = (x as f64 - norm) as f32;
        if p.is_nan() { LEAST } else { p.max(LEAST) }
    };
    let mut order: Vec<u32> = (0..logits.len() as u32).filter(|i| !logits[*i as usize].is_nan()).collect();
    let by_rank = |a: &u32, b: &u32| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b));
    let top = top.min(order.len());
    if top > 0 && top < order.len() {
        order.select_nth_unstable_by(top - 1, by_rank);
    }
    order.truncate(top);
    order.sort_unstable_by(by_rank);
    let top = order.into_iter().map(|i| (i, logprob(logits[i as usize]))).collect();
    Scored { token, logprob: logits.get(token as usize).map_or(LEAST, |x| logprob(*x)), top }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_are_those_of_a_softmax() {
        let scored = score(&[1.0, 3.0, f32::NAN, 2.0, 3.0], 3, 3);
        let sum: f32 = [1.0f32, 3.0, 2.0, 3.0].iter().map(|x| (x - 3.0).exp()).sum();
        assert!((scored.logprob - (-1.0 - sum.ln())).abs() < 1e-6);
        assert_eq!(scored.top.iter().map(|t| t.0).collect::<Vec<_>>(), [1, 4, 3]);
        assert_eq!(score(&[0.0; 4], 1, 0).top, []);
        assert_eq!(score(&[0.0, f32::NEG_INFINITY], 1, 9).top, [(0, 0.0), (1, LEAST)]);
    }
}
