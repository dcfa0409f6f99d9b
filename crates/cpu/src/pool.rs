//! Worker threads that share work dynamically.
//!
//! ```text
//! for_each_chunk(n, f) ─publish─► one segment of 0..n per thread
//!        each thread: bites off the front of its own segment ─► f(worker, range)
//!                     own segment empty: takes half of what another has left, from its back
//! ```
//! A thread walks through neighbouring items (weights that hardware and software prefetch can
//! follow), and nothing is fixed: when a core is taken away by another process, the others
//! take what it has left, so that it holds up at most the bite it is working on. The
//! caller works too. When a held bite stalls short jobs again and again (more threads than
//! free cores), the caller works alone for some milliseconds before it tries once more. Workers spin for a short while between jobs (a decode step is a chain of
//! hundreds of jobs of about 20 µs) and then sleep.

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

/// A wait that is no longer part of a job's normal end: somebody holds a bite and does not run.
const STALL: Duration = Duration::from_micros(300);

/// How long the caller works alone after stalls: at first, and at most.
const ALONE: [Duration; 2] = [Duration::from_millis(4), Duration::from_millis(100)];

/// What the caller knows of stalls; under the pool's turn.
#[derive(Default)]
struct Pacing {
    alone_until: Option<Instant>,
    /// How long to work alone at the next stall; shrinks with every job that runs well.
    pause: Duration,
}

impl Pacing {
    fn alone(&mut self) -> bool {
        match self.alone_until {
            Some(until) if Instant::now() < until => true,
            _ => {
                self.alone_until = None;
                false
            }
        }
    }

    /// After a job of `worked` in which the caller then `waited` for others.
    fn learn(&mut self, worked: Duration, waited: Duration) {
        if waited > STALL && waited > worked {
            self.pause = (self.pause * 2).clamp(ALONE[0], ALONE[1]);
            self.alone_until = Some(Instant::now() + self.pause);
        } else {
            self.pause -= self.pause / 4096;
        }
    }
}

/// Most threads of a pool. Beyond some tens of thousands the system runs out of memory maps in a thread's start, where
/// the standard library can only end the process.
const MOST_THREADS: usize = 1024;

/// Why a pool could not be made.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// More threads than any machine has use for.
    #[error(
        "{threads} threads are more than the {MOST_THREADS} that can be had; ask for fewer (-t), or for 0: one per core"
    )]
    TooMany {
        /// How many were asked for.
        threads: usize,
    },
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

/// Most items of a job: a segment's bounds are 16 bits each.
const MOST_ITEMS: usize = u16::MAX as usize;

/// Part of the own segment that a bite takes: 1 / 8, at least one item.
const BITE: u32 = 8;

/// Items that belong to one thread: epoch of the job (32 bits), first and end item (16 each). On
/// a cache line of its own: only a thief disturbs the owner.
#[repr(align(128))]
struct Segment(AtomicU64);

#[derive(Clone, Copy)]
struct Span {
    epoch: u32,
    first: u32,
    end: u32,
}

impl Span {
    fn pack(self) -> u64 {
        u64::from(self.epoch) << 32 | u64::from(self.first) << 16 | u64::from(self.end)
    }
    fn unpack(word: u64) -> Span {
        let half = |shift: u32| (word >> shift) as u32 & 0xffff;
        Span { epoch: (word >> 32) as u32, first: half(16), end: half(0) }
    }
    fn left(self) -> u32 {
        self.end.saturating_sub(self.first)
    }
}

/// One job: written while no segment has an item, read only by who then takes one.
struct Shared {
    segments: Vec<Segment>,
    /// Number of the current job.
    epoch: AtomicU32,
    /// Items finished of the current job.
    done: AtomicUsize,
    task: AtomicPtr<()>,
    context: AtomicPtr<()>,
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
    turn: Mutex<Pacing>,
}

impl Pool {
    /// A pool in which `threads` threads work, the caller among them; 0 takes
    /// as many as the process may use at the same time.
    ///
    /// # Errors
    /// When more than 1024 threads are asked for, or the operating system does not give one.
    pub fn new(threads: usize) -> Result<Pool, PoolError> {
        let threads = match threads {
            0 => std::thread::available_parallelism().map_or(1, |n| n.get()).min(MOST_THREADS),
            n if n > MOST_THREADS => return Err(PoolError::TooMany { threads }),
            n => n,
        };
        let shared = Arc::new(Shared::new(threads));
        let mut pool = Pool { shared, workers: Vec::new(), turn: Mutex::default() };
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
        let mut base = 0;
        while base < items {
            let part = (items - base).min(MOST_ITEMS);
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
        let mut pacing = self.turn.lock().unwrap_or_else(|e| e.into_inner());
        if pacing.alone() {
            return f(0, 0..items);
        }
        let shared = &*self.shared;
        let task: Task = call::<F>;
        let start = Instant::now();
        shared.publish(task, std::ptr::from_ref(f).cast(), items);
        shared.work(0, shared.epoch.load(Ordering::Relaxed));
        let worked = start.elapsed();
        shared.wait_for_done(items);
        pacing.learn(worked, start.elapsed() - worked);
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
            segments: (0..threads).map(|_| Segment(AtomicU64::new(0))).collect(),
            epoch: AtomicU32::new(0),
            done: AtomicUsize::new(0),
            task: AtomicPtr::new(std::ptr::null_mut()),
            context: AtomicPtr::new(std::ptr::null_mut()),
            stop: AtomicBool::new(false),
            sleepers: AtomicUsize::new(0),
            bed: Mutex::new(()),
            bell: Condvar::new(),
            panic: Mutex::new(None),
        }
    }

    /// Makes a job's items claimable. Only when all items of the former job are done.
    fn publish(&self, task: Task, context: *const (), items: usize) {
        self.task.store(task as *mut (), Ordering::Relaxed);
        self.context.store(context.cast_mut(), Ordering::Relaxed);
        self.done.store(0, Ordering::Relaxed);
        let epoch = self.epoch.load(Ordering::Relaxed).wrapping_add(1);
        let threads = self.segments.len();
        for (i, segment) in self.segments.iter().enumerate() {
            let (first, end) = (items * i / threads, items * (i + 1) / threads);
            let span = Span { epoch, first: first as u32, end: end as u32 };
            segment.0.store(span.pack(), Ordering::Release);
        }
        // SeqCst, as is the sleeper's count: either we see the sleeper or it sees the job.
        self.epoch.store(epoch, Ordering::SeqCst);
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            let _bed = self.bed.lock().unwrap_or_else(|e| e.into_inner());
            self.bell.notify_all();
        }
    }

    /// Takes items of job `epoch` until none is left to take.
    fn work(&self, worker: usize, epoch: u32) {
        let mut finished = 0;
        loop {
            let bite = |left: u32| (left / BITE).max(1);
            while let Some(range) = self.take(worker, epoch, |s| s.first..s.first + bite(s.left())) {
                finished += range.len();
                self.run(worker, range.start as usize..range.end as usize);
            }
            let others = (1..self.segments.len()).map(|i| (worker + i) % self.segments.len());
            let half = |s: Span| s.end - s.left().div_ceil(2)..s.end;
            let Some(stolen) = others.filter_map(|other| self.take(other, epoch, half)).next() else { break };
            // The own segment is empty, so nobody but its owner writes it.
            let span = Span { epoch, first: stolen.start, end: stolen.end };
            self.segments[worker].0.store(span.pack(), Ordering::Release);
        }
        if finished > 0 {
            self.done.fetch_add(finished, Ordering::Release);
        }
    }

    /// Cuts `part` (the front or the back) off a segment, if it has items of job `epoch`.
    fn take(&self, segment: usize, epoch: u32, part: impl Fn(Span) -> Range<u32>) -> Option<Range<u32>> {
        let word = &self.segments[segment].0;
        let mut now = word.load(Ordering::Acquire);
        loop {
            let span = Span::unpack(now);
            if span.epoch != epoch || span.left() == 0 {
                return None;
            }
            let part = part(span);
            let rest = match part.start == span.first {
                true => Span { first: part.end, ..span },
                false => Span { end: part.start, ..span },
            };
            match word.compare_exchange_weak(now, rest.pack(), Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Some(part),
                Err(changed) => now = changed,
            }
        }
    }

    fn run(&self, worker: usize, range: Range<usize>) {
        let task = self.task.load(Ordering::Relaxed);
        let context = self.context.load(Ordering::Relaxed);
        INSIDE.set(true);
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            // SAFETY: `task` was made from a `Task` by `publish`. We hold unfinished items of a
            // job, so it is the current one: both fields are its own, and its caller waits in
            // `wait_for_done` (keeping `context` alive) until we are done.
            unsafe {
                let task: Task = std::mem::transmute::<*mut (), Task>(task);
                task(context, worker, range.start, range.end);
            }
        }));
        INSIDE.set(false);
        if let Err(panic) = outcome {
            *self.panic.lock().unwrap_or_else(|e| e.into_inner()) = Some(panic);
        }
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
        let mut seen = 0;
        while !self.stop.load(Ordering::Relaxed) {
            let epoch = self.epoch.load(Ordering::Acquire);
            if epoch != seen {
                self.work(index, epoch);
                (seen, idle_since, polls) = (epoch, None, 0);
                continue;
            }
            std::hint::spin_loop();
            polls += 1;
            if polls.is_multiple_of(POLLS_PER_CLOCK) {
                let since = *idle_since.get_or_insert_with(Instant::now);
                if since.elapsed() > SPIN {
                    self.sleep(seen);
                    idle_since = None;
                }
            }
        }
    }

    /// Until there is another job than `seen`.
    fn sleep(&self, seen: u32) {
        let mut bed = self.bed.lock().unwrap_or_else(|e| e.into_inner());
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        while self.epoch.load(Ordering::SeqCst) == seen && !self.stop.load(Ordering::SeqCst) {
            bed = self.bell.wait(bed).unwrap_or_else(|e| e.into_inner());
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absurd_numbers_of_threads_are_refused() {
        for threads in [MOST_THREADS + 1, 100_000, usize::MAX] {
            assert!(matches!(Pool::new(threads), Err(PoolError::TooMany { threads: n }) if n == threads));
        }
    }

    #[test]
    fn every_item_runs_once_in_every_job() {
        for threads in [1, 2, 3, 5] {
            let pool = Pool::new(threads).unwrap();
            for items in [0usize, 1, 2, 7, 64, 1000, 150_000] {
                for _ in 0..if items > 1000 { 3 } else { 50 } {
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
