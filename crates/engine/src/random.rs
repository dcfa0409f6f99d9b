//! The engine's random numbers: xoshiro256++ (Blackman and Vigna, 2019), seeded through SplitMix64.
//!
//! Written out here because `--seed` promises the same text from every build: a dependency may change its generator.

/// A generator; equal seeds give equal streams on every platform.
#[derive(Clone, Debug)]
pub struct Random {
    state: [u64; 4],
}

/// One step of SplitMix64: advances `state` and gives a number.
fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Random {
    /// The stream of a seed.
    pub fn new(seed: u64) -> Random {
        let mut s = seed;
        Random { state: std::array::from_fn(|_| split_mix(&mut s)) }
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        let s = &mut self.state;
        let result = s[0].wrapping_add(s[3]).rotate_left(23).wrapping_add(s[0]);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// Uniform in [0, 1), 24 bits: exact in F32.
    pub fn unit_f32(&mut self) -> f32 {
        (self.next_u64() >> 40) as f32 * (1.0 / (1u32 << 24) as f32)
    }

    /// Uniform in [0, 1), 53 bits.
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values of the reference C programs.
    #[test]
    fn agrees_with_the_reference_programs() {
        let mut seed = 1234567;
        let splits: Vec<u64> = (0..3).map(|_| split_mix(&mut seed)).collect();
        assert_eq!(splits, [6457827717110365317, 3203168211198807973, 9817491932198370423]);
        let mut random = Random { state: [1, 2, 3, 4] };
        let first: Vec<u64> = (0..4).map(|_| random.next_u64()).collect();
        assert_eq!(first, [41943041, 58720359, 3588806011781223, 3591011842654386]);
    }

    #[test]
    fn unit_is_uniform_enough() {
        let mut random = Random::new(7);
        let mean = (0..10_000).map(|_| random.unit()).sum::<f64>() / 10_000.0;
        assert!((mean - 0.5).abs() < 0.01, "{mean}");
        let (mut a, mut b) = (Random::new(7), Random::new(7));
        assert!((0..1000).all(|_| (a.unit() - b.unit_f32() as f64).abs() < 1e-7));
    }
}
