//! What this processor's memory, thread pool and arithmetic attain.
//!
//! ```text
//! fill ─► reads by number of threads ─► empty jobs by number of threads ─► multiply-adds, byte dot products
//! ```
//!
//! The figures take the place that a GPU's have in reports: "workgroups" are threads, a launch is a job of the pool.

use crate::device::CpuDevice;
use crate::memory::{Region, SharedPtr};
use crate::simd::{Lanes, dispatch};
use crate::{Isa, Pool, PoolError};
use std::hint::black_box;
use std::ops::Range;
use std::time::Instant;
use zinc_ir::device::Device;
use zinc_ir::measured::{FORMAT, LaunchCost, Measured, ReadRate};

/// Most bytes that reads go over: more than caches hold, little enough to be quick.
const MOST_BYTES: u64 = 512 << 20;
/// Pieces of that memory: items of a job.
const PIECES: usize = 512;
/// Rounds of the arithmetic kernels per item, and items per thread: some milliseconds.
const ROUNDS: usize = 1 << 15;
const ITEMS: usize = 16;
/// Jobs that are timed at once.
const JOBS: u32 = 500;
/// Independent chains: covers latency times width of known cores, and fits into their registers.
const CHAINS: usize = 10;

impl CpuDevice {
    /// Measures the processor, in a second or two. Its own limits are found on an otherwise idle machine only.
    ///
    /// # Errors
    /// When the operating system does not give threads.
    pub fn measure(&self) -> Result<Measured, PoolError> {
        let start = Instant::now();
        let (pool, isa) = (self.pool(), self.isa());
        let bytes = MOST_BYTES.min(self.memory().available / 4) as usize & !(PIECES * 64 - 1);
        // Without memory to read there is nothing to say of it; what is stored is then not sound, and taken again.
        let mut memory = Region::new(bytes).unwrap_or_else(|_| Region::empty());
        let mut counts: Vec<usize> = (0..).map(|i| 1 << i).take_while(|n| *n < pool.threads()).collect();
        counts.push(pool.threads());
        let (mut reads, mut launches) = (vec![], vec![]);
        let write = rate(bytes, 2, || fill(pool, &mut memory, bytes));
        for threads in counts {
            let own = if threads == pool.threads() { None } else { Some(Pool::new(threads)?) };
            let pool = own.as_ref().unwrap_or(pool);
            let rate = rate(bytes, 2, || read(pool, &memory, bytes));
            let workgroups = threads as u32;
            reads.push(ReadRate { load_bytes: 64, in_flight: 1, lanes: 1, workgroups, rate });
            launches.push(LaunchCost { workgroups, dependent: job(pool), independent: None });
        }
        let items = ITEMS * pool.threads();
        let chain = |operations: usize, kernel: unsafe fn(usize)| {
            let each = |_: usize, range: Range<usize>| {
                // SAFETY: the kernel is the one of `isa`, which this processor has.
                range.for_each(|_| unsafe { kernel(ROUNDS) });
            };
            rate(operations * CHAINS * ROUNDS * items, 3, || pool.for_each_chunk(items, each))
        };
        Ok(Measured {
            format: FORMAT,
            device: self.description(),
            identity: identity(pool, isa),
            read_over: bytes as u64,
            reads,
            write,
            launches,
            stamp: 0.0,
            submit: None,
            fma: chain(16 * 2, fma_fn(isa)),
            dot4: chain(16 * 8, dot_fn(isa)),
            matrices: vec![],
            took: start.elapsed().as_secs_f64(),
            spread: 0.0,
        })
    }

    /// What measured figures hold for: this processor with this number of threads. Fit for a file's name.
    pub fn identity(&self) -> String {
        identity(self.pool(), self.isa())
    }
}

fn identity(pool: &Pool, isa: Isa) -> String {
    let model = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = model.lines().find_map(|l| l.strip_prefix("model name")).unwrap_or("cpu");
    let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
    let name: String = name.trim_start_matches(['\t', ' ', ':']).chars().map(plain).collect();
    format!("{name}-{}-{}", isa.name(), pool.threads())
}

/// `amount` per second of the quickest of some runs.
fn rate(amount: usize, runs: u32, mut run: impl FnMut()) -> f64 {
    let seconds = (0..runs).map(|_| {
        let start = Instant::now();
        run();
        start.elapsed().as_secs_f64()
    });
    amount as f64 / seconds.fold(f64::INFINITY, f64::min).max(1e-9)
}

/// Seconds of a job in which every thread has one empty item.
fn job(pool: &Pool) -> f64 {
    let jobs = || {
        (0..JOBS).for_each(|i| {
            pool.for_each_chunk(pool.threads(), |worker, range| {
                black_box((i, worker, range));
            });
        });
    };
    1.0 / rate(JOBS as usize, 3, jobs)
}

/// Writes other words everywhere.
fn fill(pool: &Pool, memory: &mut Region, bytes: usize) {
    let (to, words) = (SharedPtr(memory.as_mut_ptr().cast::<u64>()), bytes / 8 / PIECES);
    pool.for_each_chunk(PIECES, |_, pieces| {
        for i in pieces.start * words..pieces.end * words {
            // SAFETY: below `bytes`, which the region has; pieces are disjoint.
            unsafe { to.get().add(i).write((i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)) };
        }
    });
}

/// Reads everything once.
fn read(pool: &Pool, memory: &Region, bytes: usize) {
    // SAFETY: the region has `bytes` initialised bytes, page-aligned, which nobody writes now.
    let all: &[u64] = unsafe { std::slice::from_raw_parts(memory.as_ptr().cast(), bytes / 8) };
    let words = all.len() / PIECES;
    pool.for_each_chunk(PIECES, |_, pieces| {
        let part = &all[pieces.start * words..pieces.end * words];
        let (lines, _) = part.as_chunks::<8>();
        // One sum per word of a cache line: vectors on every processor.
        let sums = lines.iter().fold([0u64; 8], |sums, line| std::array::from_fn(|i| sums[i] ^ line[i]));
        black_box(sums);
    });
}

/// Chains of multiply-adds.
///
/// # Safety
/// The features of `V`.
#[inline(always)]
unsafe fn fma_chains<V: Lanes>(rounds: usize) {
    // SAFETY: the caller's promise; `out` has sixteen elements.
    unsafe {
        let (factor, addend) = (V::splat(black_box(0.999)), V::splat(black_box(0.001)));
        let mut chains: [V::F; CHAINS] = std::array::from_fn(|i| V::splat(i as f32));
        for _ in 0..rounds {
            for chain in &mut chains {
                *chain = V::fma(*chain, factor, addend);
            }
        }
        for chain in chains {
            let mut out = [0f32; 16];
            V::store(out.as_mut_ptr(), chain);
            black_box(out);
        }
    }
}

/// Chains of byte dot products; operands change from round to round, so that none is made once and added often.
///
/// # Safety
/// The features of `V`.
#[inline(always)]
unsafe fn dot_chains<V: Lanes>(rounds: usize) {
    let weights = black_box([3u8; 64]);
    let inputs = black_box([5i8; 64]);
    // SAFETY: the caller's promise; loads are of 64 and, below offset 61, of four bytes of arrays of 64.
    unsafe {
        let w = V::load_b(weights.as_ptr());
        let mut chains: [V::I; CHAINS] = [V::zero_i(); CHAINS];
        for round in 0..rounds {
            for (i, chain) in chains.iter_mut().enumerate() {
                *chain = V::dot::<false>(*chain, w, inputs.as_ptr().add((round + i) % 16 * 4));
            }
        }
        for chain in chains {
            black_box(V::sum_i(chain));
        }
    }
}

dispatch!(fma_fn, fma_entry [] [] => fma_chains(rounds: usize));
dispatch!(dot_fn, dot_entry [] [] => dot_chains(rounds: usize));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_processor_measures_itself() {
        let device = CpuDevice::new(2).expect("two threads");
        let measured = device.measure().expect("measures");
        println!("{measured:#?}");
        assert!(measured.is_sound(), "{measured:?}");
        assert_eq!(measured.identity, device.identity());
        assert_eq!(measured.reads.iter().map(|r| r.workgroups).collect::<Vec<_>>(), [1, 2]);
        assert!(measured.identity.chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c)));
    }
}
