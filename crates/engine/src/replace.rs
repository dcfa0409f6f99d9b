//! Going on after a step has failed, or the device was lost and another one takes its place: every sequence is run again from its
//! tokens.
//!
//! ```text
//! step ─DeviceError::Lost─► replace_device: drop the device ─► open another ─► load the weights ─► step …
//!                             sequences keep tokens, random streams and constraints; K and V are computed anew
//! ```
//!
//! To a sequence it is as if its pages had been taken for others: its text stays what it would have been.

use crate::engine::{Engine, EngineError};
use crate::sequence::SequenceId;
use std::sync::Arc;
use std::time::Duration;
use zinc_ir::device::{Caps, Device, DeviceError, MemoryInfo, ProgramId, Progress, Ticket, WeightSource};
use zinc_ir::graph::Graph;
use zinc_ir::plan::{KvLayout, Plan, Step, StepOutput};

/// A sequence for which so many steps have failed since its last token is not tried again.
const MOST_FAILURES: u32 = 2;

/// What may go wrong while a device is opened.
pub type OpenError = Box<dyn std::error::Error + Send + Sync>;

impl EngineError {
    /// Is the device lost? Then nothing works until [`Engine::replace_device`] has put another in its place.
    pub fn is_device_loss(&self) -> bool {
        matches!(self, EngineError::Device(DeviceError::Lost { .. }))
    }
}

impl Engine {
    /// After an error of [`Engine::step_into`]: computes all sequences anew from their tokens, once what has failed works
    /// again. A sequence that has had a part in two failed steps since its last token may be what they failed for: it is
    /// dropped and named, and no more events of it come.
    pub fn recover(&mut self) -> Vec<SequenceId> {
        self.take_back();
        let dropped = self.scheduler.restart(MOST_FAILURES, &mut self.pool);
        self.restore_anew();
        dropped
    }

    /// Puts another device, which `open` gives, in the place of a lost one, loads the same weights onto it, and has all
    /// sequences run again from their tokens. The lost device is dropped first: its memory is needed. After an error this
    /// can be tried again, and steps fail until it succeeds.
    ///
    /// # Errors
    /// No device can be opened, or it has no room for the model.
    pub fn replace_device(
        &mut self,
        open: &mut dyn FnMut() -> Result<Box<dyn Device>, OpenError>,
        weights: &dyn WeightSource,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<(), EngineError> {
        self.forget_device();
        let caps = self.device.caps().clone();
        self.device = Box::new(Gone { caps });
        let mut device = open().map_err(EngineError::Reopen)?;
        device.load(&self.graph, &self.kv, weights, progress)?;
        self.device = device;
        Ok(())
    }

    /// Forgets all that the device holds: its programs, and K and V. Every sequence starts over.
    fn forget_device(&mut self) {
        self.take_back();
        // No sequence is to blame.
        self.scheduler.restart(u32::MAX, &mut self.pool);
        self.forget_kept();
        self.programs.clear();
        self.ran = None;
    }
}

/// Stands where the lost device was until there is another.
struct Gone {
    /// Of the device that was there.
    caps: Caps,
}

fn lost() -> DeviceError {
    DeviceError::Lost { during: "a call".into(), detail: "it has not been opened again".into() }
}

impl Device for Gone {
    fn caps(&self) -> &Caps {
        &self.caps
    }
    fn description(&self) -> String {
        "none: the device was lost".into()
    }
    fn memory(&self) -> MemoryInfo {
        MemoryInfo::default()
    }
    fn load(
        &mut self,
        _: &Arc<Graph>,
        _: &Arc<KvLayout>,
        _: &dyn WeightSource,
        _: &mut dyn FnMut(Progress),
    ) -> Result<(), DeviceError> {
        Err(lost())
    }
    fn prepare(&mut self, _: &Arc<Plan>, _: &mut dyn FnMut(Progress)) -> Result<ProgramId, DeviceError> {
        Err(lost())
    }
    fn submit(&mut self, _: ProgramId, _: &Step) -> Result<Ticket, DeviceError> {
        Err(lost())
    }
    fn wait(&mut self, _: Ticket, _: &mut StepOutput) -> Result<(), DeviceError> {
        Err(lost())
    }
    fn profile(&mut self, _: ProgramId, _: bool) -> Option<Vec<Duration>> {
        None
    }
    fn copy_pages(&mut self, _: &[(u32, u32)]) -> Result<(), DeviceError> {
        Err(lost())
    }
}
