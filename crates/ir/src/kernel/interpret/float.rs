//! F16 rounding with exactly one rounding step from f64.
//!
//! ```text
//! f64 ──from_f64──► F16 bits ──to_f32──► f32 (exact)
//! ```
//!
//! Every F16 operation is computed in f64 (or in f32 where that is exact enough) and rounded here. The `half` crate
//! may go through f32 for f64 input, which would round twice.

/// Nearest F16, ties to even.
pub(super) fn from_f64(x: f64) -> u64 {
    let bits = x.to_bits();
    let sign = bits >> 48 & 0x8000;
    let magnitude = x.abs();
    if magnitude.is_nan() {
        return sign | 0x7e00;
    }
    if magnitude >= 65520.0 {
        return sign | 0x7c00;
    }
    // The spacing of F16 at x is 2^(e - 10); subnormals keep the spacing of the smallest normals.
    let e = ((bits >> 52 & 0x7ff) as i64 - 1023).max(-14);
    let spacings = magnitude * f64::from_bits(((1023 + 10 - e) as u64) << 52);
    // In multiples of the spacing, normals count from 1024: a carry into the next exponent adds up by itself.
    sign | ((((e + 14) as u64) << 10) + spacings.round_ties_even() as u64)
}

/// Exact value.
pub(super) fn to_f32(bits: u64) -> f32 {
    let sign = (bits as u32 & 0x8000) << 16;
    let rest = bits as u32 & 0x7fff;
    if rest >= 0x7c00 {
        return f32::from_bits(sign | 0x7f80_0000 | (rest & 0x3ff) << 13);
    }
    // Read as f32 with the exponent field too small by 112; scaling repairs it, subnormals included.
    let scale = f32::from_bits((127 + 112) << 23);
    f32::from_bits(sign | (f32::from_bits(rest << 13) * scale).to_bits())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_half_on_every_f16_and_between() {
        for bits in 0..=u16::MAX {
            let expected = half::f16::from_bits(bits);
            let x = to_f32(bits as u64);
            if expected.is_nan() {
                assert!(x.is_nan());
                continue;
            }
            assert_eq!(x.to_bits(), expected.to_f32().to_bits());
            assert_eq!(from_f64(x as f64), bits as u64);
            // Around the midpoint to the next value: f32 rounds once in `half`.
            let next = to_f32((bits as u64).saturating_add(1));
            let middle = (x + next) / 2.0;
            for f in [middle.next_down(), middle, middle.next_up()] {
                if f.is_finite() {
                    assert_eq!(from_f64(f as f64), half::f16::from_f32(f).to_bits() as u64, "{f}");
                }
            }
        }
        assert_eq!(from_f64(1e300), 0x7c00);
        assert_eq!(from_f64(-1e-300), 0x8000);
    }

    #[test]
    fn rounds_once_from_f64() {
        // Just above a tie by less than f32 can hold: through f32 this would round to even, downwards.
        let x = 1.0 + 2f64.powi(-11) + 2f64.powi(-40);
        assert_eq!(from_f64(x), 0x3c01);
    }
}
