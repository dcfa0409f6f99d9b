//! The middle of some measurements, and how far they lie apart.

/// The middle value; infinite if there is none.
pub(crate) fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::INFINITY)
}

/// Half of the way from the second lowest to the second highest value, as a part of the middle one: what a difference
/// must exceed.
pub(crate) fn spread(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    let middle = median(&mut values);
    match values.len() {
        0..3 => 0.0,
        n => (values[n - 2] - values[1]) / 2.0 / middle.max(1e-12),
    }
}
