//! A device that works as long as it is told to and computes nothing: a step ends a set time after it was submitted, or
//! after the one before it has ended. It notes when it had nothing to do, and what the host did between two steps.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use zinc_ir::device::{
    Caps, Device, DeviceError, MOST_IN_FLIGHT, MemoryInfo, ProgramId, Progress, Ticket, WeightSource,
};
use zinc_ir::graph::Graph;
use zinc_ir::immediate::Immediate;
use zinc_ir::plan::{KvLayout, Plan, Step, StepOutput, Tail};

/// What the driver's compiler takes for a program.
const DRIVER: Duration = Duration::from_millis(50);

/// What a device has seen since it was last asked.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// Steps, and tokens chosen in them.
    pub(crate) steps: u64,
    pub(crate) tokens: u64,
    /// Time without a step to run, between two steps.
    pub(crate) idle: Duration,
    /// From when a step's result was there for the host to when the host submitted the next one.
    pub(crate) between: Vec<Duration>,
    /// Programs made, each of which takes a GPU as long as many steps.
    pub(crate) programs: usize,
}

pub(crate) struct TimedDevice {
    caps: Caps,
    programs: Vec<Arc<Plan>>,
    /// A plan whose kernels are being compiled, until when.
    ahead: Option<(Arc<Plan>, Instant)>,
    results: Immediate,
    /// When the step of each open ticket ends.
    ends: Vec<(Ticket, Instant)>,
    /// When the device will have done all that it was given.
    free: Option<Instant>,
    /// When the host last had a result.
    told: Option<Instant>,
    step: Duration,
    /// The tokens that it chooses, in turn.
    words: Vec<u32>,
    next: usize,
    seen: Arc<Mutex<Seen>>,
}

/// A GPU's abilities, so that making a plan costs what it costs for a GPU.
fn gpu() -> Caps {
    Caps {
        native: false,
        subgroup_size: 32,
        max_workgroup: 1024,
        max_shared_bytes: 32 << 10,
        max_grid: [65535; 3],
        parallel_tiles: 528,
        ..Caps::native()
    }
}

impl TimedDevice {
    /// Steps take `step`; the tokens chosen are `words`, in turn.
    pub(crate) fn new(step: Duration, words: Vec<u32>, seen: Arc<Mutex<Seen>>) -> TimedDevice {
        TimedDevice {
            caps: gpu(),
            programs: vec![],
            ahead: None,
            results: Immediate::default(),
            ends: vec![],
            free: None,
            told: None,
            step,
            words,
            next: 0,
            seen,
        }
    }

    fn note(&mut self, now: Instant, outputs: usize) {
        let mut seen = self.seen.lock().expect("no panic");
        seen.steps += 1;
        seen.tokens += outputs as u64;
        seen.idle += self.free.map_or(Duration::ZERO, |free| now.saturating_duration_since(free));
        seen.between.extend(self.told.take().map(|told| now - told));
    }
}

impl Device for TimedDevice {
    fn caps(&self) -> &Caps {
        &self.caps
    }
    fn description(&self) -> String {
        "a clock".into()
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
        Ok(())
    }
    fn prepare(&mut self, plan: &Arc<Plan>, _: &mut dyn FnMut(Progress)) -> Result<ProgramId, DeviceError> {
        let ahead = self.ahead.take_if(|(known, _)| Arc::ptr_eq(known, plan)).map(|(_, end)| end);
        let end = ahead.unwrap_or_else(|| Instant::now() + DRIVER);
        std::thread::sleep(end.saturating_duration_since(Instant::now()));
        self.seen.lock().expect("no panic").programs += 1;
        self.programs.push(plan.clone());
        Ok(ProgramId(self.programs.len() as u32 - 1))
    }
    fn prepare_ahead(&mut self, plan: &Arc<Plan>) -> bool {
        let known = self.ahead.as_ref().filter(|(known, _)| Arc::ptr_eq(known, plan)).map(|(_, end)| *end);
        let end = known.unwrap_or_else(|| Instant::now() + DRIVER);
        self.ahead = Some((plan.clone(), end));
        end <= Instant::now()
    }
    fn submit(&mut self, program: ProgramId, step: &Step) -> Result<Ticket, DeviceError> {
        let now = Instant::now();
        self.note(now, step.outputs.len());
        let plan = self.programs[program.0 as usize].clone();
        self.results.check(&plan, step)?;
        let output = match (step.outputs.len(), plan.bucket.tail) {
            (0, _) => StepOutput::None,
            (rows, Tail::Greedy) => {
                let first = self.next;
                self.next += rows;
                let word = |row: usize| self.words[(first + row) % self.words.len()];
                StepOutput::Tokens((0..rows).map(word).collect())
            }
            (_, tail) => return Err(DeviceError::Unsupported(format!("{tail:?}"))),
        };
        let end = self.free.map_or(now, |free| free.max(now)) + self.step;
        self.free = Some(end);
        let ticket = self.results.finish(&plan, step, output);
        self.ends.push((ticket, end));
        Ok(ticket)
    }
    fn wait(&mut self, ticket: Ticket, output: &mut StepOutput) -> Result<(), DeviceError> {
        self.results.hand_over(ticket, output)?;
        if let Some(place) = self.ends.iter().position(|(open, _)| *open == ticket) {
            let (_, end) = self.ends.remove(place);
            std::thread::sleep(end.saturating_duration_since(Instant::now()));
        }
        self.told = Some(Instant::now());
        Ok(())
    }
    fn depth(&self) -> usize {
        MOST_IN_FLIGHT
    }
    fn profile(&mut self, _: ProgramId, _: bool) -> Option<Vec<Duration>> {
        None
    }
    fn copy_pages(&mut self, _: &[(u32, u32)]) -> Result<(), DeviceError> {
        Ok(())
    }
}
