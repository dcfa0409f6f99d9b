//! Ctrl-C: a request to stop, which loops look at between steps.

use crate::failure::Interrupted;
use anyhow::{Context, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Counts how often Ctrl-C was pressed since it was last taken. The second time without a reaction ends the program at
/// once: a step of a long prompt can take a while.
#[derive(Clone, Debug, Default)]
pub(crate) struct Interrupt {
    presses: Arc<AtomicU32>,
    /// Nothing is going on that could react.
    idle: Arc<AtomicBool>,
}

impl Interrupt {
    /// Takes Ctrl-C over for the rest of the program; to be called once.
    pub(crate) fn install() -> Result<Interrupt> {
        let interrupt = Interrupt::default();
        let Interrupt { presses, idle } = interrupt.clone();
        let handler = move || {
            if presses.fetch_add(1, Ordering::SeqCst) >= 1 || idle.load(Ordering::SeqCst) {
                std::process::exit(130);
            }
        };
        ctrlc::set_handler(handler).context("cannot take over Ctrl-C")?;
        Ok(interrupt)
    }

    /// While this is set, Ctrl-C ends the program at once: for waiting on a pipe. So does one that was pressed a moment
    /// before, when there was nothing to stop any more.
    pub(crate) fn set_idle(&self, idle: bool) {
        // SeqCst, as in the handler: either it sees that nothing goes on, or the press is seen here.
        self.idle.store(idle, Ordering::SeqCst);
        if idle && self.presses.load(Ordering::SeqCst) > 0 {
            std::process::exit(130);
        }
    }

    /// Has it been pressed since the last call?
    pub(crate) fn take(&self) -> bool {
        self.presses.swap(0, Ordering::Relaxed) > 0
    }

    /// Ends the program if it was pressed: for work that cannot be left half done and leaves nothing behind.
    pub(crate) fn exit_if_pressed(&self) {
        if self.take() {
            std::process::exit(130);
        }
    }

    /// An [`Interrupted`] error if it was pressed.
    pub(crate) fn check(&self) -> Result<()> {
        if self.take() { Err(Interrupted.into()) } else { Ok(()) }
    }
}
