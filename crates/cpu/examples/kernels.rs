//! Speed of the kernels: `cargo run -p zinc-cpu --release --example kernels [-- THREADS]`.
//!
//! Prints the read rate of the memory, then for each format and instruction set GB/s of
//! packed weights for one token (decode) and GFLOP/s for 512 (prompt).

use std::time::{Duration, Instant};
use zinc_cpu::{Activations, Isa, Packed, Pool, Product, multiply};
use zinc_ir::plan::ActPrecision;
use zinc_ir::quant::{self, QuantFormat};

/// Best of the runs that fit into `budget`: seconds.
fn best(budget: Duration, mut f: impl FnMut()) -> f64 {
    let begin = Instant::now();
    let mut best = f64::MAX;
    while begin.elapsed() < budget {
        let start = Instant::now();
        f();
        best = best.min(start.elapsed().as_secs_f64());
    }
    best
}

fn read_rate(pool: &Pool, bytes: usize) -> f64 {
    let data = vec![1u64; bytes / 8];
    let sum = std::sync::atomic::AtomicU64::new(0);
    let seconds = best(Duration::from_millis(600), || {
        pool.for_each_chunk(bytes / 65536, |_, range| {
            for part in range {
                let part = &data[part * 8192..(part + 1) * 8192];
                let s = part.iter().fold(0u64, |s, v| s.wrapping_add(*v));
                sum.fetch_add(s, std::sync::atomic::Ordering::Relaxed);
            }
        });
    });
    assert_ne!(sum.into_inner(), 0);
    bytes as f64 / seconds / 1e9
}

/// Plausible weights: bytes without an f16 exponent that would make infinities or NaN.
fn weights(format: &QuantFormat, count: usize) -> Vec<u8> {
    let blocks = count / format.block_elems as usize;
    let bytes = blocks * format.block_bytes as usize;
    if format.block_elems == 1 {
        // 0.5 in F32, BF16 (0x3f00) and small in F16: no denormals, which would be slow.
        return [0, 0x3f].into_iter().cycle().take(bytes).collect();
    }
    (0..bytes).map(|i| (i as u32).wrapping_mul(2_654_435_761).to_le_bytes()[2] & 0x3b).collect()
}

fn measure(pool: &Pool, isa: Isa, format: &'static QuantFormat, precision: ActPrecision) {
    let (rows, cols) = (256, 1536);
    let bytes = weights(format, rows * cols);
    let start = Instant::now();
    let w = Packed::new(pool, isa, format, rows, cols, &bytes).expect("a valid shape");
    let packing = bytes.len() as f64 / start.elapsed().as_secs_f64() / 1e9;
    let run = |tokens: usize, milliseconds| {
        let x: Vec<f32> = (0..tokens * cols).map(|i| (i % 17) as f32 - 8.0).collect();
        let mut a = Activations::new(isa);
        a.fill(pool, precision, tokens, cols, &x, cols);
        let mut out = vec![0f32; tokens * rows];
        best(Duration::from_millis(milliseconds), || {
            let out = &mut out[..];
            let (glu, bias, accumulate) = (None, None, false);
            multiply(pool, &a, &mut [Product { weights: &w, glu, bias, accumulate, out, stride: rows }]);
        })
    };
    let gbs = w.bytes() as f64 / run(1, 150) / 1e9;
    let flops = 2.0 * (rows * cols) as f64;
    let prompt = 512.0 * flops / run(512, 300) / 1e9;
    println!(
        "{:12} {:5} {:?} {:7.1} GB/s decode {:8.1} GFLOP/s prompt  ({packing:.2} GB/s packing)",
        isa.name(),
        format.name,
        precision,
        gbs,
        prompt
    );
}

fn main() {
    let threads = std::env::args().nth(1).map_or(0, |a| a.parse().expect("a number of threads"));
    let pool = Pool::new(threads).expect("threads");
    println!(
        "{} threads; reading 16 MB {:.1}, 100 MB {:.1}, 1 GB {:.1} GB/s",
        pool.threads(),
        read_rate(&pool, 16 << 20),
        read_rate(&pool, 100 << 20),
        read_rate(&pool, 1 << 30)
    );
    let empty = best(Duration::from_millis(100), || pool.for_each_chunk(64, |_, _| {}));
    println!("an empty loop of 64 items: {:.2} µs", empty * 1e6);
    for isa in Isa::available().into_iter().rev() {
        for format in quant::FORMATS.iter().copied() {
            if isa == Isa::Scalar && format.name != "Q4_1" {
                continue;
            }
            if format.block_elems > 1 {
                measure(&pool, isa, format, ActPrecision::Q8);
            }
            if format.block_elems == 1 || format.name == "Q4_1" {
                measure(&pool, isa, format, ActPrecision::F32);
            }
        }
    }
}
