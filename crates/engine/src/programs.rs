//! The programs of an engine: one for each bucket that has come up, made when a step needs it, or before.
//!
//! ```text
//! bucket ─at_hand─► its program, or a larger one that stands in ─begin─► Ahead ─advance─► its program
//!    └── prepare, which waits ──────────────────────────────────────────────────────────────┘
//! ```
//!
//! A program that nobody has made yet costs a GPU's driver and the compiler as much time as many steps take, and requests
//! that come and go make buckets in all combinations. Where steps need not always be run by the same program, a larger one
//! stands in for one that is being made, and nobody waits.

use crate::ahead::Ahead;
use crate::engine::EngineError;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use zinc_compiler::Choices;
use zinc_ir::device::{Device, ProgramId, Progress};
use zinc_ir::graph::Graph;
use zinc_ir::plan::{Bucket, KvLayout, Plan};

/// A program stands in for one of so many times fewer rows at most: rows cost time, and it may be needed for a while.
const MOST_ROWS: u32 = 8;

/// A plan and its handle on the device.
#[derive(Clone, Debug)]
pub struct Program {
    /// The handle.
    pub id: ProgramId,
    /// The plan.
    pub plan: Arc<Plan>,
}

/// All programs of a model on a device.
pub(crate) struct Programs {
    graph: Arc<Graph>,
    kv: Arc<KvLayout>,
    choices: Choices,
    made: HashMap<Bucket, Program>,
    /// The one that will be needed next.
    ahead: Option<Ahead>,
    /// Buckets whose programs could not be made, ahead or where another served: each is tried once.
    failed: HashSet<Bucket>,
    /// A larger program may stand in for one that is being made.
    pub(crate) stand_ins: bool,
}

impl Programs {
    pub(crate) fn new(graph: Arc<Graph>, kv: Arc<KvLayout>, choices: Choices) -> Programs {
        let (made, failed) = (HashMap::new(), HashSet::new());
        Programs { graph, kv, choices, made, ahead: None, failed, stand_ins: false }
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.made.len()
    }

    pub(crate) fn has(&self, bucket: Bucket) -> bool {
        self.made.contains_key(&bucket)
    }

    /// The device has lost them.
    pub(crate) fn clear(&mut self) {
        self.made.clear();
        self.failed.clear();
        self.ahead = None;
    }

    /// What a step of these sizes can be run by now, if there is anything: begins to make what would be better.
    pub(crate) fn at_hand(&mut self, bucket: Bucket, device: &dyn Device) -> Option<Program> {
        if let Some(own) = self.made.get(&bucket) {
            return Some(own.clone());
        }
        // For one that cannot be made, any that is there is better than none.
        let most_rows = if self.failed.contains(&bucket) { u32::MAX } else { MOST_ROWS };
        let stand_in = self.stand_in(bucket, most_rows)?;
        self.begin(bucket, device);
        Some(stand_in)
    }

    /// The smallest program that serves for a bucket and has so many times its rows at most.
    fn stand_in(&self, bucket: Bucket, most_rows: u32) -> Option<Program> {
        let rows = bucket.tokens.saturating_mul(most_rows);
        let larger =
            self.made.iter().filter(|(other, _)| self.stand_ins && other.tokens <= rows && serves(other, &bucket));
        let least = larger.min_by_key(|(other, _)| (other.tokens, other.context, other.outputs, other.sequences));
        least.map(|(_, program)| program.clone())
    }

    /// The program of a bucket cannot be made: another runs its steps from now on, if one serves.
    fn fail(&mut self, bucket: Bucket, error: &dyn std::fmt::Display) {
        if self.failed.insert(bucket) && self.stand_in(bucket, u32::MAX).is_some() {
            tracing::warn!(%error, ?bucket, "a program cannot be made; a larger one runs its steps, more slowly");
        }
    }

    /// The program of a bucket, made now unless that has been done. If it cannot be made, one that may stand in for it.
    pub(crate) fn prepare(
        &mut self,
        bucket: Bucket,
        device: &mut dyn Device,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Program, EngineError> {
        let error = match self.make(bucket, device, progress) {
            Err(error) if !error.is_device_loss() => error,
            other => return other,
        };
        let Some(stand_in) = self.stand_in(bucket, u32::MAX) else { return Err(error) };
        self.fail(bucket, &error);
        Ok(stand_in)
    }

    fn make(
        &mut self,
        bucket: Bucket,
        device: &mut dyn Device,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Program, EngineError> {
        if let Some(program) = self.made.get(&bucket) {
            return Ok(program.clone());
        }
        let ahead = self.ahead.take_if(|ahead| ahead.bucket == bucket).and_then(Ahead::finish);
        let plan = match ahead {
            Some(plan) => plan,
            None => Arc::new(zinc_compiler::compile(&self.graph, &self.kv, bucket, device.caps(), &self.choices)?),
        };
        let id = device.prepare(&plan, progress)?;
        let program = Program { id, plan };
        self.made.insert(bucket, program.clone());
        Ok(program)
    }

    /// Begins to make the program of a bucket, unless there is one on its way, or this one has failed before. Is it this
    /// one that is on its way now?
    pub(crate) fn begin(&mut self, bucket: Bucket, device: &dyn Device) -> bool {
        if let Some(ahead) = &self.ahead {
            return ahead.bucket == bucket;
        }
        if self.failed.contains(&bucket) {
            return false;
        }
        let (graph, kv, caps) = (self.graph.clone(), self.kv.clone(), device.caps().clone());
        let choices = self.choices.clone();
        self.ahead =
            Some(Ahead::start(bucket, move || zinc_compiler::compile(&graph, &kv, bucket, &caps, &choices).ok()));
        true
    }

    /// Is one on its way?
    pub(crate) fn is_making(&self) -> bool {
        self.ahead.is_some()
    }

    /// Goes on with the one on its way, as far as the device need not stop for it.
    pub(crate) fn advance(&mut self, device: &mut dyn Device) {
        if let Some(ahead) = &mut self.ahead {
            let bucket = ahead.bucket;
            if let Some(plan) = ahead.poll()
                && device.prepare_ahead(&plan)
            {
                match device.prepare(&plan, &mut |_| ()) {
                    Ok(id) => {
                        self.made.insert(bucket, Program { id, plan });
                        self.ahead = None;
                    }
                    // Whoever needs it is told, if nothing else serves.
                    Err(error) => {
                        self.ahead = None;
                        self.fail(bucket, &error);
                    }
                }
            }
        }
        if let Some(failed) = self.ahead.take_if(|ahead| ahead.has_failed()) {
            self.fail(failed.bucket, &"it cannot be compiled");
        }
    }
}

/// Can a step for the bucket `small` be run by the program of another?
fn serves(other: &Bucket, small: &Bucket) -> bool {
    let sizes = |b: &Bucket| [b.tokens, b.outputs, b.context, b.sequences];
    let gives = |b: &Bucket| (b.tail, b.outputs == 0);
    let larger = sizes(other).iter().zip(sizes(small)).all(|(other, small)| *other >= small);
    larger && gives(other) == gives(small)
}
