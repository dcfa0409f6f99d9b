//! A plan's pipelines, compiled while the device runs steps of other plans.
//!
//! ```text
//! prepare_ahead ─► thread: compile_all ─► pipelines ─► prepare of the same plan
//! ```

use crate::cache::KernelCache;
use crate::device::Gpu;
use crate::error::VulkanError;
use crate::pipeline::{Pipeline, Pipelines, compile_all};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread::{Builder, JoinHandle};
use zinc_ir::plan::Plan;

/// Pipelines on their way. Dropping it stops the compiling and waits for the kernels that are under way: a process must
/// not end while its driver compiles.
pub(crate) struct Ahead {
    pub(crate) plan: Arc<Plan>,
    stop: Arc<AtomicBool>,
    /// Kernels finished, and of those the ones from the cache.
    reports: Receiver<(u32, u32)>,
    thread: Option<JoinHandle<Result<Made, VulkanError>>>,
}

/// What came of it.
pub(crate) struct Made {
    /// One for each kernel of the plan.
    pub(crate) pipelines: Vec<Arc<Pipeline>>,
    /// These, and all that were known before.
    pub(crate) known: Pipelines,
}

impl Ahead {
    /// Begins to compile what is not in `known`. An error: there is no thread to be had.
    pub(crate) fn start(
        gpu: &Arc<Gpu>,
        cache: &Arc<KernelCache>,
        known: &Pipelines,
        plan: &Arc<Plan>,
    ) -> io::Result<Ahead> {
        let (send, reports) = channel();
        let stop = Arc::new(AtomicBool::new(false));
        let (gpu, cache, stopped, work) = (gpu.clone(), cache.clone(), stop.clone(), plan.clone());
        let mut known = known.clone();
        let thread = Builder::new().name("zinc-kernels".into()).spawn(move || {
            let mut done = |done, cached| {
                // Nobody may be listening.
                let _ = send.send((done, cached));
                if stopped.load(Ordering::Relaxed) { Err(VulkanError::Stopped) } else { Ok(()) }
            };
            let pipelines = compile_all(&gpu, &cache, &mut known, &work.kernels, &mut done)?;
            Ok(Made { pipelines, known })
        })?;
        Ok(Ahead { plan: plan.clone(), stop, reports, thread: Some(thread) })
    }

    /// Is nothing left to wait for?
    pub(crate) fn is_finished(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Waits for the end, telling `done` what is finished. `None` if the thread was lost.
    pub(crate) fn finish(mut self, done: &mut dyn FnMut(u32, u32)) -> Option<Result<Made, VulkanError>> {
        let thread = self.thread.take()?;
        // They end when the thread does.
        self.reports.iter().for_each(|(finished, cached)| done(finished, cached));
        thread.join().ok()
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
