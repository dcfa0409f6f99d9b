//! Bookkeeping for devices that run a step while it is being submitted: the CPU, the interpreter.
//!
//! ```text
//! submit: check ─► the device runs the step ─► finish ─Ticket─► … ─► wait: hand_over
//! ```

use crate::device::{DeviceError, MOST_IN_FLIGHT, Ticket};
use crate::plan::{Plan, Step, StepError, StepOutput};
use std::collections::VecDeque;

/// Outputs of steps that have run and were not yet waited for.
#[derive(Debug, Default)]
pub struct Immediate {
    open: VecDeque<(Ticket, StepOutput)>,
    /// Memory for later outputs.
    spare: Vec<StepOutput>,
    tickets: u64,
    chain: Vec<u32>,
    /// The page that is being saved.
    page: Option<Vec<u8>>,
}

impl Immediate {
    /// May this step be submitted?
    pub fn check(&self, plan: &Plan, step: &Step) -> Result<(), DeviceError> {
        plan.check(step)?;
        if self.open.len() >= MOST_IN_FLIGHT {
            return Err(DeviceError::Misuse("too many steps in flight"));
        }
        if step.chain() as usize > self.chain.len() {
            return Err(StepError::Inconsistent("a chained token is no output of the step before").into());
        }
        Ok(())
    }

    /// Tokens of the last step, which the next one may name.
    pub fn chain(&self) -> &[u32] {
        &self.chain
    }

    /// Memory for an output.
    pub fn output(&mut self) -> StepOutput {
        self.spare.pop().unwrap_or_default()
    }

    /// Keeps what a step gave.
    pub fn finish(&mut self, plan: &Plan, step: &Step, output: StepOutput) -> Ticket {
        self.chain.clear();
        if let StepOutput::Tokens(tokens) | StepOutput::Mixed { tokens, .. } = &output {
            self.chain.extend(tokens.iter().take(plan.chained_rows(step) as usize));
        }
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
        self.open.push_back((ticket, output));
        ticket
    }

    /// Keeps the bytes of a saved page.
    pub fn save_page(&mut self, bytes: Vec<u8>) -> Result<(), DeviceError> {
        if self.page.is_some() {
            return Err(DeviceError::Misuse("a page is being saved already"));
        }
        self.page = Some(bytes);
        Ok(())
    }

    /// Gives them.
    pub fn saved_page(&mut self, bytes: &mut Vec<u8>) -> Result<bool, DeviceError> {
        *bytes = self.page.take().ok_or(DeviceError::Misuse("no page is being saved"))?;
        Ok(true)
    }

    /// Gives the output of the oldest step.
    pub fn hand_over(&mut self, ticket: Ticket, output: &mut StepOutput) -> Result<(), DeviceError> {
        match self.open.pop_front_if(|(oldest, _)| *oldest == ticket) {
            Some((_, found)) => {
                self.spare.push(std::mem::replace(output, found));
                Ok(())
            }
            None => Err(DeviceError::Misuse("not the oldest step in flight")),
        }
    }
}
