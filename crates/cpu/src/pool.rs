//! Worker threads that claim work dynamically.
//!
//! ```text
//! for_each_chunk(n, f) ─publish─► claim word (epoch, items left) ◄─claim─ workers and the caller
//!                                        └─► f(worker, range) … ─► done == n ─► return
//! ```
//! There is no static split: whoever is free takes the next items, large
//! bites first and single items last, so a core that is taken away by
//! another process costs at most the bite it holds. The caller works too. Workers
//! spin for a short while between jobs (a decode step is a chain of hundreds of
//! jobs of about 20 µs) and then sleep.

use std::any::Any;
use std::cell::Cell;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long an idle worker polls before it sleeps.
const SPIN: Duration = Duration::from_micros(150);

/// Polls between two looks at the clock (a pause is about 40 ns on recent x86).
const POLLS_PER_CLOCK: u32 = 64;

/// Why a pool could not be made.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// The operating system refused a thread.
    #[error("cannot start worker thread {index} of {threads}: {source}; ask for fewer threads (-t)")]
    Spawn {
        /// Which worker, counted from 1 (the caller is number 0).
        index: usize,
        /// How many threads were asked for, the caller included.
        threads: usize,
        /// What the operating system said.
        source: std::io::Error,
    },
}

/// Runs `(context, worker, first, end)`.
type Task = unsafe fn(*const (), usize, usize, usize);

/// One job: written while no item is claimable, read only by who claimed one.
struct Shared {
    /// High half: epoch of the job; low half: items not yet claimed.
    claim: AtomicU64,
    /// Items finished of the current job.
    done: AtomicUsize,
    /// Items of the current job.
    total: AtomicUsize,
    task: AtomicPtr<()>,
    context: AtomicPtr<()>,
    /// Parts that large bites are cut into: claims take `left / share`.
    share: AtomicU32,
    stop: AtomicBool,
    sleepers: AtomicUsize,
    bed: Mutex<()>,
    bell: Condvar,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

thread_local! {
    /// Set while this thread runs a task: a nested call then runs inline.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Persistent threads; see the module's text. Dropping it joins them.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// One job at a time: callers on several threads take turns.
    turn: Mutex<()>,
}

impl Pool {
    /// A pool in which `threads` threads work, the caller among them; 0 takes
    /// as many as the process may use at the same time.
    ///
    /// # Errors
    /// When the operating system does not give a thread.
    pub fn new(threads: usize) -> Result<Pool, PoolError> {
        let threads = match threads {
            0 => std::thread::available_parallelism().map_or(1, |n| n.get()),
            n => n,
        };
        let shared = Arc::new(Shared::new(threads));
        let mut pool = Pool { shared, workers: Vec::new(), turn: Mutex::new(()) };
        for index in 1..threads {
            let shared = Arc::clone(&pool.shared);
            let worker = std::thread::Builder::new()
                .name(format!("zinc-cpu-{index}"))
                .spawn(move || shared.work_until_stopped(index))
                .map_err(|source| PoolError::Spawn { index, threads, source })?;
            pool.workers.push(worker);
        }
        Ok(pool)
    }

    /// Threads that work, the caller included.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `f(worker, range)` until the ranges have covered `0..items` once;
    /// returns when all calls have returned. `worker` is below [`Pool::threads`]
    /// and no two calls with the same number run at the same time, so it may
    /// index scratch memory. Called from inside a task it runs inline, as
    /// worker 0 of a range that no one else sees: do not nest when `f` uses
    /// scratch by number.
    ///
    /// A panic in `f` is passed on to the caller after the job has ended.
    pub fn for_each_chunk<F>(&self, items: usize, f: F)
    where
        F: Fn(usize, Range<usize>) + Sync,
    {
        if items == 0 {
            return;
        }
        if items == 1 || self.workers.is_empty() || INSIDE.get() {
            return f(0, 0..items);
        }
        // A job has at most u32::MAX items at a time: the claim word's low half.
        let mut base = 0;
        while base < items {
            let part = (items - base).min(u32::MAX as usize);
            self.run_job(part, &|worker, r: Range<usize>| f(worker, base + r.start..base + r.end));
            base += part;
        }
    }

    fn run_job<F>(&self, items: usize, f: &F)
    where
        F: Fn(usize, Range<usize>) + Sync,
    {
        /// SAFETY of calling it: `context` is the `&F` of a job that is not over.
        unsafe fn call<F: Fn(usize, Range<usize>) + Sync>(context: *const (), worker: usize, first: usize, end: usize) {
            // SAFETY: the promise above; `F: Sync` lets several threads share it.
            let f = unsafe { &*context.cast::<F>() };
            f(worker, first..end);
        }
        // A poisoned turn only says that an earlier task panicked; the job was ended properly.
        let _turn = self.turn.lock().unwrap_or_else(|e| e.into_inner());
        let shared = &*self.shared;
        let task: Task = call::<F>;
        shared.publish(task, std::ptr::from_ref(f).cast(), items);
        let epoch = (shared.claim.load(Ordering::Relaxed) >> 32) as u32;
        while shared.claim_and_run(0, epoch) {}
        shared.wait_for_done(items);
        let panic = shared.panic.lock().unwrap_or_else(|e| e.into_inner()).take();
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        {
            let _bed = self.shared.bed.lock().unwrap_or_else(|e| e.into_inner());
            self.shared.bell.notify_all();
        }
        for worker in self.workers.drain(..) {
            // A worker's panic was already handed to the caller of its job.
            let _ = worker.join();
        }
    }
}

impl Shared {
    fn new(threads: usize) -> Shared {
        Shared {
            claim: AtomicU64::new(0),
            done: AtomicUsize::new(0),
            total: AtomicUsize::new(0),
            task: AtomicPtr::new(std::ptr::null_mut()),
            context: AtomicPtr::new(std::ptr::null_mut()),
            share: AtomicU32::new(3 * threads as u32),
            stop: AtomicBool::new(false),
            sleepers: AtomicUsize::new(0),
            bed: Mutex::new(()),
            bell: Condvar::new(),
            panic: Mutex::new(None),
        }
    }

    /// Makes a job claimable. Only while the former one has no item left and all are done.
    fn publish(&self, task: Task, context: *const (), items: usize) {
        self.task.store(task as *mut (), Ordering::Relaxed);
        self.context.store(context.cast_mut(), Ordering::Relaxed);
        self.total.store(items, Ordering::Relaxed);
        self.done.store(0, Ordering::Relaxed);
        let epoch = (self.claim.load(Ordering::Relaxed) >> 32) as u32;
        let claim = u64::from(epoch.wrapping_add(1)) << 32 | items as u64;
        // SeqCst, as is the sleeper's count: either we see the sleeper or it sees the job.
        self.claim.store(claim, Ordering::SeqCst);
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            let _bed = self.bed.lock().unwrap_or_else(|e| e.into_inner());
            self.bell.notify_all();
        }
    }

    /// Takes a bite of the job `epoch` and runs it; false when nothing is left.
    fn claim_and_run(&self, worker: usize, epoch: u32) -> bool {
        let mut word = self.claim.load(Ordering::Acquire);
        loop {
            let left = word as u32;
            if (word >> 32) as u32 != epoch || left == 0 {
                return false;
            }
            let bite = (left / self.share.load(Ordering::Relaxed)).max(1);
            let task = self.task.load(Ordering::Relaxed);
            let context = self.context.load(Ordering::Relaxed);
            let total = self.total.load(Ordering::Relaxed);
            match self.claim.compare_exchange_weak(word, word - u64::from(bite), Ordering::AcqRel, Ordering::Acquire) {
                Err(now) => word = now,
                Ok(_) => {
                    let first = total - left as usize;
                    self.run(task, context, worker, first..first + bite as usize);
                    return true;
                }
            }
        }
    }

    fn run(&self, task: *mut (), context: *mut (), worker: usize, range: Range<usize>) {
        let count = range.len();
        INSIDE.set(true);
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            // SAFETY: `task` was made from a `Task` by `publish`. The claim succeeded, so the
            // job had an unfinished item when these fields were read: they belong to it, and
            // its caller waits in `wait_for_done` (keeping `context` alive) until we are done.
            unsafe {
                let task: Task = std::mem::transmute::<*mut (), Task>(task);
                task(context, worker, range.start, range.end);
            }
        }));
        INSIDE.set(false);
        if let Err(panic) = outcome {
            *self.panic.lock().unwrap_or_else(|e| e.into_inner()) = Some(panic);
        }
        self.done.fetch_add(count, Ordering::Release);
    }

    fn wait_for_done(&self, items: usize) {
        let mut polls = 0u32;
        while self.done.load(Ordering::Acquire) != items {
            polls += 1;
            if polls.is_multiple_of(1024) {
                // The other thread may be waiting for our core.
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
        }
    }

    fn work_until_stopped(&self, index: usize) {
        let mut idle_since: Option<Instant> = None;
        let mut polls = 0u32;
        while !self.stop.load(Ordering::Relaxed) {
            let word = self.claim.load(Ordering::Acquire);
            if word as u32 != 0 {
                while self.claim_and_run(index, (word >> 32) as u32) {}
                idle_since = None;
                polls = 0;
                continue;
            }
            std::hint::spin_loop();
            polls += 1;
            if polls.is_multiple_of(POLLS_PER_CLOCK) {
                let since = *idle_since.get_or_insert_with(Instant::now);
                if since.elapsed() > SPIN {
                    self.sleep();
                    idle_since = None;
                }
            }
        }
    }

    fn sleep(&self) {
        let mut bed = self.bed.lock().unwrap_or_else(|e| e.into_inner());
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        while self.claim.load(Ordering::SeqCst) as u32 == 0 && !self.stop.load(Ordering::SeqCst) {
            bed = self.bell.wait(bed).unwrap_or_else(|e| e.into_inner());
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_item_runs_once_in_every_job() {
        for threads in [1, 2, 3, 5] {
            let pool = Pool::new(threads).unwrap();
            for items in [0usize, 1, 2, 7, 64, 1000] {
                for _ in 0..50 {
                    let hits: Vec<AtomicUsize> = (0..items).map(|_| AtomicUsize::new(0)).collect();
                    pool.for_each_chunk(items, |worker, range| {
                        assert!(worker < threads);
                        for i in range {
                            hits[i].fetch_add(1, Ordering::Relaxed);
                        }
                    });
                    assert!(hits.iter().all(|h| h.load(Ordering::Relaxed) == 1));
                }
            }
        }
    }

    #[test]
    fn a_sleeping_pool_wakes_up() {
        let pool = Pool::new(2).unwrap();
        for _ in 0..5 {
            std::thread::sleep(SPIN * 4);
            let sum = AtomicUsize::new(0);
            pool.for_each_chunk(100, |_, r| {
                sum.fetch_add(r.sum(), Ordering::Relaxed);
            });
            assert_eq!(sum.load(Ordering::Relaxed), 4950);
        }
    }

    #[test]
    fn a_nested_job_runs_inline() {
        let pool = Pool::new(2).unwrap();
        let count = AtomicUsize::new(0);
        pool.for_each_chunk(8, |_, outer| {
            for _ in outer {
                pool.for_each_chunk(10, |_, r| {
                    count.fetch_add(r.len(), Ordering::Relaxed);
                });
            }
        });
        assert_eq!(count.load(Ordering::Relaxed), 80);
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_lives_on() {
        let pool = Pool::new(2).unwrap();
        let caught = catch_unwind(AssertUnwindSafe(|| {
            pool.for_each_chunk(10, |_, r| assert!(!r.contains(&7), "planted"));
        }));
        assert!(caught.is_err());
        let count = AtomicUsize::new(0);
        pool.for_each_chunk(10, |_, r| {
            count.fetch_add(r.len(), Ordering::Relaxed);
        });
        assert_eq!(count.load(Ordering::Relaxed), 10);
    }
}
