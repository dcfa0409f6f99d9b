//! The plan that will be needed next, made while the device is at work on steps of another.
//!
//! ```text
//! batch near the end of its context bucket ─► thread: compile ─► Device::prepare_ahead ─► one more program
//! ```
//!
//! Making a plan takes as long as some steps (50 to 300 ms), and the driver's compiler comes on top: in the middle of an
//! answer that is a pause. There is one such plan at a time. What goes wrong is not told here: whoever comes to need the
//! plan makes it anew, and gets the error.

use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use zinc_ir::plan::{Bucket, Plan};

/// A plan on its way.
pub(crate) struct Ahead {
    /// What it is for.
    pub(crate) bucket: Bucket,
    stage: Stage,
}

enum Stage {
    /// A thread makes it.
    Making(JoinHandle<Option<Plan>>),
    /// It is there.
    Made(Arc<Plan>),
    /// It cannot be made, or not ahead.
    Failed,
}

impl Ahead {
    /// Begins to make a plan by `make`, which gives `None` if it cannot be made.
    pub(crate) fn start(bucket: Bucket, make: impl FnOnce() -> Option<Plan> + Send + 'static) -> Ahead {
        let thread = Builder::new().name("zinc-plan".into()).spawn(make);
        Ahead { bucket, stage: thread.map_or(Stage::Failed, Stage::Making) }
    }

    /// The plan, if it is there by now.
    pub(crate) fn poll(&mut self) -> Option<Arc<Plan>> {
        if let Stage::Making(thread) = &self.stage
            && thread.is_finished()
        {
            self.wait();
        }
        match &self.stage {
            Stage::Made(plan) => Some(plan.clone()),
            Stage::Making(_) | Stage::Failed => None,
        }
    }

    /// The plan, once it is there; `None` if it could not be made.
    pub(crate) fn finish(mut self) -> Option<Arc<Plan>> {
        self.wait();
        self.poll()
    }

    fn wait(&mut self) {
        self.stage = match std::mem::replace(&mut self.stage, Stage::Failed) {
            // A thread that panicked has made no plan; whoever makes it in its place sees why.
            Stage::Making(thread) => thread.join().ok().flatten().map_or(Stage::Failed, |p| Stage::Made(Arc::new(p))),
            other => other,
        };
    }

    /// Nothing will come of it.
    pub(crate) fn has_failed(&self) -> bool {
        matches!(self.stage, Stage::Failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zinc_ir::plan::Tail;

    #[test]
    fn what_cannot_be_made_has_failed() {
        let bucket = Bucket { tokens: 1, outputs: 1, context: 256, sequences: 1, tail: Tail::Greedy };
        for make in [|| None, || panic!("a bug")] {
            let mut ahead = Ahead::start(bucket, make);
            assert!(ahead.poll().is_none(), "made or not, there is no plan");
            while !ahead.has_failed() {
                std::thread::yield_now();
                ahead.poll();
            }
            assert!(ahead.finish().is_none());
        }
    }
}
