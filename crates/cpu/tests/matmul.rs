//! Every format × instruction set × ragged shape against an f64 product of exactly decoded weights.

use half::f16;
use zinc_cpu::{Activations, Isa, Packed, Pool, Product, multiply};
use zinc_ir::graph::Activation;
use zinc_ir::plan::ActPrecision;
use zinc_ir::quant::{FORMATS, QuantFormat};

/// xorshift: enough for test data.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
    /// In -1..1.
    fn float(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }
}

/// Offsets of the 16-bit scales within a file block.
fn scale_offsets(format: &QuantFormat) -> &'static [usize] {
    match format.name {
        "Q4_0" | "Q5_0" | "Q8_0" | "IQ3_XXS" | "IQ3_S" | "IQ4_NL" | "IQ4_XS" => &[0],
        "Q3_K" => &[108],
        "Q4_1" | "Q5_1" | "Q4_K" | "Q5_K" => &[0, 2],
        "Q6_K" => &[208],
        _ => &[],
    }
}

/// Random weights in the file's layout: any bits, but sane scales.
fn weights(format: &QuantFormat, rows: usize, cols: usize, random: &mut Random) -> Vec<u8> {
    let blocks = rows * cols / format.block_elems as usize;
    let mut bytes = Vec::new();
    for _ in 0..blocks {
        let mut block: Vec<u8> = (0..format.block_bytes).map(|_| (random.next() >> 32) as u8).collect();
        match format.name {
            "F32" => block.copy_from_slice(&random.float().to_le_bytes()),
            "F16" => block.copy_from_slice(&f16::from_f32(random.float()).to_le_bytes()),
            "BF16" => block.copy_from_slice(&half::bf16::from_f32(random.float()).to_le_bytes()),
            // 2^(e - 128), within what F32 sums can hold.
            "MXFP4" => block[0] = 110 + (block[0] & 15),
            _ => {
                for &at in scale_offsets(format) {
                    let scale = f16::from_f32(random.float() * 0.01).to_le_bytes();
                    block[at..at + 2].copy_from_slice(&scale);
                }
            }
        }
        bytes.extend(block);
    }
    bytes
}

fn decode(format: &QuantFormat, bytes: &[u8], count: usize) -> Vec<f32> {
    let mut out = vec![0f32; count];
    format.decode(bytes, &mut out);
    out
}

fn product(pool: &Pool, w: &Packed, precision: ActPrecision, tokens: usize, x: &[f32]) -> Vec<f32> {
    let mut a = Activations::new(w.isa());
    a.fill(pool, precision, tokens, w.cols(), x, w.cols());
    let mut out = vec![f32::NAN; tokens * w.rows()];
    let stride = w.rows();
    let (glu, bias) = (None, None);
    let p = Product { weights: w, glu, bias, accumulate: false, out: &mut out, stride };
    multiply(pool, &a, &mut [p]);
    out
}

/// Greatest error that `precision` may add to Σ w·x, on top of rounding.
fn bound(precision: ActPrecision, w: &[f32], x: &[f32]) -> f64 {
    let mut bound = 0.0;
    for (w, x) in w.chunks(32).zip(x.chunks(32)) {
        let most = x.iter().fold(0f32, |m, x| m.max(x.abs())) as f64;
        for (w, x) in w.iter().zip(x) {
            let (w, x) = (w.abs() as f64, x.abs() as f64);
            bound += w * match precision {
                ActPrecision::F32 => 0.0,
                ActPrecision::F16 => x * 2f64.powi(-11) + 2f64.powi(-25),
                ActPrecision::Q8 => most / 127.0 * 0.5001,
            };
            bound += 1e-5 * w * x;
        }
        // Offsets and minimums cancel: their rounding counts with the sum of activations.
        if precision == ActPrecision::Q8 {
            let top = w.iter().fold(0f32, |m, w| m.max(w.abs())) as f64;
            bound += 1e-5 * top * most * w.len() as f64;
        }
    }
    bound
}

fn check(isa: Isa, format: &'static QuantFormat, rows: usize, cols: usize, tokens: usize) {
    let pool = Pool::new(2).unwrap();
    let mut random = Random(0x9E37_79B9 + (rows * 31 + cols * 7 + tokens) as u64);
    let bytes = weights(format, rows, cols, &mut random);
    let values = decode(format, &bytes, rows * cols);
    let w = Packed::new(&pool, isa, format, rows, cols, &bytes).unwrap();
    let x: Vec<f32> = (0..tokens * cols).map(|_| random.float() * 3.0).collect();
    for precision in [ActPrecision::F32, ActPrecision::F16, ActPrecision::Q8] {
        if precision == ActPrecision::Q8 && !w.takes_integers() {
            continue;
        }
        let y = product(&pool, &w, precision, tokens, &x);
        for (t, x) in x.chunks(cols).enumerate() {
            for (r, w) in values.chunks(cols).enumerate() {
                let want: f64 = w.iter().zip(x).map(|(&w, &x)| w as f64 * x as f64).sum();
                let (got, bound) = (y[t * rows + r] as f64, bound(precision, w, x));
                assert!(
                    (got - want).abs() <= bound,
                    "{} {} {precision:?} {rows}×{cols}, token {t} of {tokens}, row {r}: {got} for {want} ± {bound}",
                    isa.name(),
                    format.name
                );
            }
        }
    }
    let mut row = vec![0f32; cols];
    for r in [0, rows / 2, rows - 1] {
        w.decode_row(r, &mut row);
        assert_eq!(row, &values[r * cols..(r + 1) * cols], "{} row {r}", format.name);
    }
}

#[test]
fn all_formats_on_all_instruction_sets() {
    for isa in Isa::available() {
        for format in FORMATS.iter().copied() {
            let block = format.block_elems as usize;
            for (rows, blocks, tokens) in
                [(1, 1, 1), (16, 2, 2), (17, 3, 3), (40, 1, 5), (50, 5, 8), (33, 2, 16), (7, 4, 17), (20, 3, 33)]
            {
                check(isa, format, rows, blocks * block, tokens);
            }
        }
    }
}

#[test]
fn all_token_counts() {
    let q4_1 = zinc_ir::quant::by_name("Q4_1").unwrap();
    let f16 = zinc_ir::quant::by_name("F16").unwrap();
    for isa in Isa::available() {
        for tokens in 1..=33 {
            check(isa, q4_1, 18, 64, tokens);
            check(isa, f16, 18, 57, tokens);
        }
    }
}

#[test]
fn results_do_not_depend_on_threads_or_on_company() {
    let mut random = Random(77);
    let pools = [Pool::new(1).unwrap(), Pool::new(3).unwrap()];
    for isa in Isa::available() {
        for format in FORMATS.iter().copied() {
            let (rows, cols, tokens) = (70, 512, 37);
            let bytes = weights(format, rows, cols, &mut random);
            let x: Vec<f32> = (0..tokens * cols).map(|_| random.float()).collect();
            for precision in [ActPrecision::F32, ActPrecision::F16, ActPrecision::Q8] {
                let w = Packed::new(&pools[0], isa, format, rows, cols, &bytes).unwrap();
                if precision == ActPrecision::Q8 && !w.takes_integers() {
                    continue;
                }
                let together = product(&pools[1], &w, precision, tokens, &x);
                for t in [0, 5, 36] {
                    let alone = product(&pools[0], &w, precision, 1, &x[t * cols..(t + 1) * cols]);
                    assert_eq!(
                        alone,
                        &together[t * rows..(t + 1) * rows],
                        "{} {} {precision:?}",
                        isa.name(),
                        format.name
                    );
                }
            }
        }
    }
}

#[test]
fn finishes_and_shared_loops() {
    let pool = Pool::new(2).unwrap();
    let mut random = Random(5);
    let format = zinc_ir::quant::by_name("Q8_0").unwrap();
    let (rows, cols, tokens) = (35, 96, 19);
    for isa in Isa::available() {
        let make = |random: &mut Random| {
            let bytes = weights(format, rows, cols, random);
            Packed::new(&pool, isa, format, rows, cols, &bytes).unwrap()
        };
        let (gate, up) = (make(&mut random), make(&mut random));
        let x: Vec<f32> = (0..tokens * cols).map(|_| random.float()).collect();
        let bias: Vec<f32> = (0..rows).map(|_| random.float()).collect();
        let g = product(&pool, &gate, ActPrecision::Q8, tokens, &x);
        let u = product(&pool, &up, ActPrecision::Q8, tokens, &x);
        let mut a = Activations::new(isa);
        a.fill(&pool, ActPrecision::Q8, tokens, cols, &x, cols);
        let stride = rows + 3;
        let mut gated = vec![0f32; tokens * stride];
        let mut gelu = vec![0f32; tokens * stride];
        let residual: Vec<f32> = (0..tokens * stride).map(|_| random.float()).collect();
        let mut added = residual.clone();
        let one = |out, glu, bias, accumulate| Product { weights: &gate, glu, bias, accumulate, out, stride };
        multiply(
            &pool,
            &a,
            &mut [
                one(&mut gated, Some((&up, Activation::Silu)), None, false),
                one(&mut gelu, Some((&up, Activation::GeluTanh)), None, false),
                one(&mut added, None, Some(&bias), true),
            ],
        );
        for t in 0..tokens {
            for r in 0..rows {
                let (g, u) = (g[t * rows + r] as f64, u[t * rows + r] as f64);
                let near = |got: f32, want: f64| {
                    let got = got as f64;
                    assert!((got - want).abs() <= 2e-6 * want.abs() + 1e-6, "{got} for {want}");
                };
                near(gated[t * stride + r], g / (1.0 + (-g).exp()) * u);
                let inner = (2.0 / std::f64::consts::PI).sqrt() * (g + 0.044715 * g * g * g);
                near(gelu[t * stride + r], 0.5 * g * (1.0 + inner.tanh()) * u);
                near(added[t * stride + r], residual[t * stride + r] as f64 + g + bias[r] as f64);
            }
            for r in rows..stride {
                assert_eq!(added[t * stride + r], residual[t * stride + r], "beyond the rows");
            }
        }
    }
}

#[test]
fn wrong_shapes_are_errors() {
    let pool = Pool::new(1).unwrap();
    let format = zinc_ir::quant::by_name("Q4_K").unwrap();
    let error = Packed::new(&pool, Isa::Scalar, format, 2, 100, &[]).unwrap_err();
    assert!(error.to_string().contains("multiple of the 256"), "{error}");
    let error = Packed::new(&pool, Isa::Scalar, format, 2, 256, &[0; 100]).unwrap_err();
    assert!(error.to_string().contains("need 288 bytes"), "{error}");
}
