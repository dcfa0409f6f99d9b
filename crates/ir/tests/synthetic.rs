//! Synthetic weights have the statistics they promise, in every format, and stay what they are.

use zinc_ir::graph::Weight;
use zinc_ir::quant::{self, FORMATS, QuantFormat};
use zinc_ir::synthetic::{Fill, Recipe, key, mix, word};

fn values(format: &'static QuantFormat, recipe: &Recipe, seed: u64, blocks: usize) -> Vec<f32> {
    let mut bytes = vec![0; blocks * format.device_block_bytes() as usize];
    recipe.fill(seed, 0, &mut bytes);
    let mut out = vec![f32::NAN; blocks * format.device_block() as usize];
    format.decode(&bytes, &mut out);
    out
}

fn mean_and_variance(values: &[f32]) -> (f64, f64) {
    let n = values.len() as f64;
    let mean = values.iter().map(|&x| x as f64).sum::<f64>() / n;
    (mean, values.iter().map(|&x| (x as f64 - mean).powi(2)).sum::<f64>() / n)
}

#[test]
fn every_format_has_mean_0_and_variance_1_by_fan_in_and_no_zero() {
    for format in FORMATS.iter().copied() {
        for fan_in in [32, 576, 4096, 14336, 28672] {
            let blocks = (1 << 18) / format.device_block() as usize;
            let values = values(format, &Recipe::matrix(format, fan_in), 7, blocks);
            assert!(values.iter().all(|x| x.is_normal()), "{format:?}: zero, denormal or NaN");
            let (mean, variance) = mean_and_variance(&values);
            let variance = variance * fan_in as f64;
            let mean = mean * (fan_in as f64).sqrt();
            assert!(
                (variance - 1.0).abs() < 0.06,
                "{format:?} with {fan_in}: variance {variance} of what it should be"
            );
            // Four standard errors.
            assert!(mean.abs() < 4.0 / (1 << 9) as f64, "{format:?} with {fan_in}: mean {mean} standard deviations");
        }
    }
}

#[test]
fn scales_are_normal_halves_up_to_very_long_rows() {
    for format in FORMATS {
        for fan_in in [1, 32, 1 << 14, 1 << 17, u32::MAX] {
            for field in Recipe::matrix(format, fan_in).fields {
                let halves = match field.fill {
                    Fill::Scale { halves } => halves.to_vec(),
                    Fill::ScaleMin { pairs } => pairs.iter().flat_map(|&p| [p as u16, (p >> 16) as u16]).collect(),
                    _ => vec![],
                };
                assert!(
                    halves.iter().all(|&h| half::f16::from_bits(h).is_normal()),
                    "{format:?} {fan_in}: {halves:x?}"
                );
            }
        }
    }
}

#[test]
fn minima_balance_scales_exactly() {
    for (name, middle) in [("Q4_1", -7.5), ("Q5_1", -15.5), ("Q4_K", 7.5), ("Q5_K", 15.5)] {
        for fan_in in 1..5000 {
            let recipe = Recipe::matrix(quant::by_name(name).unwrap(), fan_in);
            let Fill::ScaleMin { pairs } = recipe.fields[0].fill else {
                panic!("{name} starts with scale and minimum")
            };
            for pair in pairs {
                let half = |bits: u32| half::f16::from_bits(bits as u16).to_f32();
                assert_eq!(half(pair >> 16), half(pair) * middle, "{name} {fan_in}");
            }
        }
    }
}

#[test]
fn fields_cover_each_block_once() {
    for format in FORMATS {
        let recipe = Recipe::matrix(format, 4096);
        let mut at = 0;
        for field in &recipe.fields {
            assert_eq!(field.offset, at, "{format:?}");
            at += field.bytes;
        }
        assert_eq!(at, format.device_block_bytes(), "{format:?}");
        // A field lies in one plane, so that a kernel can fill plane by plane.
        for f in &recipe.fields {
            let inside =
                format.planes.iter().filter(|p| p.offset <= f.offset && f.offset + f.bytes <= p.offset + p.bytes);
            assert_eq!(inside.count(), 1, "{format:?}: field at {}", f.offset);
        }
    }
}

#[test]
fn any_part_can_be_made_alone() {
    for format in FORMATS {
        let recipe = Recipe::matrix(format, 512);
        let size = format.device_block_bytes() as usize;
        let mut all = vec![0; 12 * size + 1];
        recipe.fill(3, 0, &mut all);
        let mut part = vec![0; 5 * size];
        recipe.fill(3, 4, &mut part);
        assert_eq!(part, all[4 * size..9 * size], "{format:?}");
        let mut other = vec![0; 5 * size];
        recipe.fill(4, 4, &mut other);
        assert_ne!(part, other, "{format:?}: the seed has no effect");
        assert_ne!(all[..size], all[size..2 * size], "{format:?}: blocks repeat");
    }
}

#[test]
fn the_definition_stays() {
    // The words as the module's text defines them, worked out step by step here.
    let by_hand = |x: u32| {
        let x = ((x >> 16) ^ x) as u64 * 0x7feb_352d % (1 << 32);
        let x = (x ^ (x >> 15)) * 0x846c_a68b % (1 << 32);
        (x ^ (x >> 16)) as u32
    };
    let seed = 0x0123_4567_89ab_cdef;
    let k = by_hand(by_hand(5 ^ 0x89ab_cdef) ^ 0x0123_4567);
    assert_eq!(key(seed, 5), k);
    assert_eq!(word(k, 12), by_hand((k as u64 + 4 * 0x9e37_79b9 % (1 << 32)) as u32));
    assert_eq!(mix(0), 0);
    let mut block = [0; 34];
    Recipe::matrix(quant::by_name("Q8_0").unwrap(), 4096).fill(seed, 5, &mut block);
    assert_eq!(block[2..6], (word(k, 2) | 0x0101_0101).to_le_bytes());
    assert_eq!(block[30..34], (word(k, 30) | 0x0101_0101).to_le_bytes());
}

#[test]
fn every_bit_of_the_words_is_fair() {
    let blocks = 1 << 14;
    for at in [0, 4, 140] {
        for bit in 0..32 {
            let ones = (0..blocks).filter(|&b| word(key(99, b), at) >> bit & 1 == 1).count() as f64;
            let deviation = (ones - blocks as f64 / 2.0) / (blocks as f64 / 4.0).sqrt();
            assert!(deviation.abs() < 4.5, "bit {bit} at {at}: {deviation} standard deviations");
        }
    }
}

#[test]
fn norms_lie_around_1_and_biases_are_small() {
    let vector = |name: &str| Weight { name: name.into(), rows: 1, cols: 4096, format: quant::F32 };
    let of = |name: &str| values(quant::F32, &Recipe::of(&vector(name)), 1, 128);
    assert!(of("blk.0.attn_norm.weight").iter().all(|x| (0.9375..=1.125).contains(x)));
    let biases = of("blk.0.attn_q.bias");
    assert!(biases.iter().all(|x| x.abs() >= 1.0 / 128.0 && x.abs() < 1.0 / 64.0));
    assert!(mean_and_variance(&biases).0.abs() < 1e-3);
    let matrix = Weight { name: "blk.0.attn_q.weight".into(), rows: 64, cols: 4096, format: quant::F32 };
    assert_eq!(Recipe::of(&matrix), Recipe::matrix(quant::F32, 4096));
}
