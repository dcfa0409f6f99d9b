//! The bench: a part of a model on the device, what a trusted device computes of it, and how plans compare.

use crate::{Settings, TuneError};
use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;
use zinc_compiler::kernels::CUT_ROWS;
use zinc_compiler::{Choices, CompileError, Tunable, Tuned, compile, tunables};
use zinc_ir::device::{Device, DeviceError, KernelCost, ProgramId, Progress, WeightSource};
use zinc_ir::graph::{Graph, NodeId, Op, Part, WeightId};
use zinc_ir::kernel::Kernel;
use zinc_ir::plan::{ActPrecision, Bucket, KvLayout, KvType, PAGE_TOKENS, Plan, Step, StepOutput, Tail};

/// A model to tune.
#[derive(Clone, Copy)]
pub struct Model<'a> {
    /// Its name, for the record.
    pub name: &'a str,
    /// All of it.
    pub graph: &'a Arc<Graph>,
    /// Its tensors.
    pub weights: &'a dyn WeightSource,
}

/// A step must read this much before it comes back to the same weights: twice the largest cache of the cards we know, or
/// else the whole model, as it does in use.
const ENOUGH: u64 = 256 << 20;
/// Steps whose logits are compared, one after the other in the same sequence.
const STEPS: u32 = 2;

/// How far logits are from those expected.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Off {
    /// Root of the summed squares of differences, over that of the expected.
    pub rms: f64,
    /// Largest difference over the largest logit.
    pub max: f64,
}

impl Off {
    fn of(expected: &[f32], got: &[f32]) -> Off {
        if expected.len() != got.len() {
            return Off { rms: f64::INFINITY, max: f64::INFINITY };
        }
        let (mut squares, mut all, mut max, mut largest) = (0.0, 0.0, 0.0f64, 0.0f64);
        for (e, g) in expected.iter().zip(got) {
            let (e, d) = (f64::from(*e), f64::from(*e) - f64::from(*g));
            // A logit that is no number is as wrong as can be.
            let d = if d.is_nan() { f64::INFINITY } else { d.abs() };
            (squares, all) = (squares + d * d, all + e * e);
            (max, largest) = (max.max(d), largest.max(e.abs()));
        }
        Off { rms: (squares / all.max(f64::MIN_POSITIVE)).sqrt(), max: max / largest.max(f64::MIN_POSITIVE) }
    }

    /// What a precision may cost.
    fn allowed(act: ActPrecision) -> Off {
        match act {
            ActPrecision::F32 => Off { rms: 5e-3, max: 5e-3 },
            ActPrecision::F16 => Off { rms: 2e-2, max: 2e-2 },
            ActPrecision::Q8 => Off { rms: 1.5e-1, max: 1.5e-1 },
        }
    }

    /// What a cut may be off, given what the rules are: the same sums in another order.
    fn like(self, rules: Off) -> bool {
        self.rms <= rules.rms * 1.25 + 1e-4 && self.max <= rules.max * 1.5 + 1e-4
    }

    fn within(self, other: Off) -> bool {
        self.rms <= other.rms && self.max <= other.max
    }
}

impl fmt::Display for Off {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1e} (largest {:.1e})", self.rms, self.max)
    }
}

/// A plan on the device.
#[derive(Clone)]
pub(crate) struct Program {
    plan: Arc<Plan>,
    id: ProgramId,
}

/// Why a plan is no good.
pub(crate) enum Fault {
    /// The device is gone.
    Lost(DeviceError),
    /// The device refuses it, or its results are wrong.
    Bad(String),
    /// A bug or a lack that has nothing to do with cuts.
    Other(TuneError),
}

impl From<DeviceError> for Fault {
    fn from(error: DeviceError) -> Fault {
        match error {
            DeviceError::Lost { .. } => Fault::Lost(error),
            DeviceError::Driver { .. } | DeviceError::Unsupported(_) => Fault::Bad(error.to_string()),
            _ => Fault::Other(error.into()),
        }
    }
}

impl From<CompileError> for Fault {
    fn from(error: CompileError) -> Fault {
        Fault::Other(error.into())
    }
}

/// A part of a model, loaded, with what is expected of it.
pub(crate) struct Trial<'a> {
    pub(crate) device: &'a mut dyn Device,
    graph: Arc<Graph>,
    kv: Arc<KvLayout>,
    bucket: Bucket,
    choices: Choices,
    steps: Vec<Step>,
    expected: Vec<f32>,
    rules: Off,
    /// The last plan that was made: it is wanted more than once.
    plan: Option<(Tuned, Arc<Plan>)>,
    /// The programs on the device: by rule, and the last other one.
    programs: [Option<(Tuned, Program)>; 2],
    /// What can be chosen in the part.
    pub(crate) tunables: Vec<Tunable>,
    /// Keys of the model that the part lacks.
    pub(crate) untried: Vec<String>,
    /// Launches of each in the whole model.
    pub(crate) launches: Vec<usize>,
    /// Layers of the part, and of the whole.
    pub(crate) layers: [usize; 2],
}

impl<'a> Trial<'a> {
    /// Chooses the part, loads it, and asks the trusted device for the logits.
    pub(crate) fn new(
        device: &'a mut dyn Device,
        trusted: &mut dyn Device,
        model: Model<'_>,
        settings: &Settings,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Trial<'a>, TuneError> {
        let rows = settings.rows;
        if rows == 0 || rows > CUT_ROWS {
            return Err(TuneError::Rows { rows, most: CUT_ROWS });
        }
        let context = pages(rows) * PAGE_TOKENS;
        let bucket = Bucket { tokens: rows, outputs: rows, context, sequences: 1, tail: Tail::Logits };
        let choices = Choices { act: settings.act, ..Choices::default() };
        let layout = |graph: &Graph, ty| Arc::new(KvLayout::new(graph, ty, pages(rows)));
        let list = |graph: &Arc<Graph>, device: &dyn Device| {
            tunables(graph, &layout(graph, settings.kv), bucket, device.caps(), &choices)
        };
        let whole = list(model.graph, device)?;
        let kept = layers(&whole);
        let part = model.graph.part(|layer| kept.contains(&layer));
        let found = list(&part.graph, device)?;
        let (tunables, launches): (Vec<_>, Vec<_>) = found
            .into_iter()
            .filter(|t| t.cuts.all.len() > 1)
            .filter_map(|t| Some((whole.iter().find(|w| w.cuts.key == t.cuts.key)?.uses.len(), t)))
            .map(|(launches, t)| (t, launches))
            .unzip();
        if tunables.is_empty() {
            return Err(TuneError::Nothing);
        }
        let lacks = |w: &&Tunable| w.cuts.all.len() > 1 && !tunables.iter().any(|t| t.cuts.key == w.cuts.key);
        let untried = whole.iter().filter(lacks).map(|w| w.cuts.key.clone()).collect();
        let kv = layout(&part.graph, settings.kv);
        let weights = PartWeights { source: model.weights, ids: &part.weights };
        device.load(&part.graph, &kv, &weights, progress)?;
        let numbered =
            |graph: &Graph| graph.nodes().iter().map(|n| n.layer).filter(|l| *l != u32::MAX).collect::<BTreeSet<_>>();
        let count = |graph: &Graph| numbered(graph).len();
        let mut trial = Trial {
            device,
            graph: part.graph.clone(),
            kv,
            bucket,
            choices,
            steps: vec![],
            expected: vec![],
            rules: Off { rms: 0.0, max: 0.0 },
            plan: None,
            programs: [None, None],
            tunables,
            untried,
            launches,
            layers: [count(&part.graph), count(model.graph)],
        };
        trial.expect(trusted, &part, &weights, progress)?;
        Ok(trial)
    }

    /// Bytes that a step reads.
    pub(crate) fn bytes(&self) -> u64 {
        self.tunables.iter().flat_map(|t| &t.uses).map(|u| u.bytes).sum()
    }

    /// Asks the trusted device, and checks the rules. Among experts with nearly equal logits the devices may choose
    /// differently: then other tokens are taken.
    fn expect(
        &mut self,
        trusted: &mut dyn Device,
        part: &Part,
        weights: &dyn WeightSource,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<(), TuneError> {
        let kv = Arc::new(KvLayout::new(&part.graph, KvType::F32, pages(self.bucket.tokens)));
        trusted.load(&part.graph, &kv, weights, progress)?;
        let choices = Choices { act: ActPrecision::F32, ..Choices::default() };
        let plan = Arc::new(compile(&part.graph, &kv, self.bucket, trusted.caps(), &choices)?);
        let reference = trusted.prepare(&plan, progress)?;
        let table = part.graph.nodes().iter().find_map(|n| match n.op {
            Op::Embed { table } => Some(part.graph.weight_of(table).rows),
            _ => None,
        });
        let vocabulary = table.unwrap_or(1);
        let rules = self.program(&Tuned::new()).map_err(Fault::into_error)?;
        let allowed = Off::allowed(self.choices.act);
        let mut off = allowed;
        for attempt in 0..ATTEMPTS {
            self.steps = (0..STEPS).map(|i| step(self.bucket.tokens, i, attempt, vocabulary)).collect();
            self.expected = logits(trusted, reference, &self.steps)?;
            off = Off::of(&self.expected, &logits(self.device, rules.id, &self.steps)?);
            if off.within(allowed) {
                self.rules = off;
                return Ok(());
            }
        }
        Err(TuneError::RulesDiffer { off, allowed })
    }

    /// How far the rules' logits are off.
    pub(crate) fn rules_off(&self) -> Off {
        self.rules
    }

    /// What the compiler says of the kernels of some keys in the plan with these cuts; empty if it says nothing.
    pub(crate) fn costs(&mut self, tuned: &Tuned, keys: &[usize]) -> Result<Vec<KernelCost>, CompileError> {
        let plan = self.plan(tuned)?;
        let kernel = |key: &usize| {
            let node = self.tunables[*key].uses.first()?.node;
            let launch = plan.launches().find(|l| l.region.last() == Some(&node))?;
            plan.kernels.get(launch.kernel?.0 as usize)
        };
        let kernels: Option<Vec<&Kernel>> = keys.iter().map(kernel).collect();
        Ok(kernels.map_or(vec![], |kernels| self.device.kernel_costs(&kernels)))
    }

    /// The plan with these cuts.
    fn plan(&mut self, tuned: &Tuned) -> Result<Arc<Plan>, CompileError> {
        if let Some((_, plan)) = self.plan.as_ref().filter(|(known, _)| known == tuned) {
            return Ok(plan.clone());
        }
        let choices = Choices { tuned: Arc::new(tuned.clone()), ..self.choices.clone() };
        let plan = Arc::new(compile(&self.graph, &self.kv, self.bucket, self.device.caps(), &choices)?);
        self.plan = Some((tuned.clone(), plan.clone()));
        Ok(plan)
    }

    /// The plan with these cuts, on the device, until the next one with other cuts.
    pub(crate) fn program(&mut self, tuned: &Tuned) -> Result<Program, Fault> {
        let place = usize::from(!tuned.is_empty());
        if let Some((_, program)) = self.programs[place].as_ref().filter(|(known, _)| known == tuned) {
            return Ok(program.clone());
        }
        if let Some((_, old)) = self.programs[place].take() {
            self.device.release(old.id);
        }
        let plan = self.plan(tuned)?;
        let id = self.device.prepare(&plan, &mut |_| ())?;
        let program = Program { plan, id };
        self.programs[place] = Some((tuned.clone(), program.clone()));
        Ok(program)
    }

    /// Does it compute what is expected?
    pub(crate) fn verify(&mut self, program: &Program) -> Result<(), Fault> {
        let off = Off::of(&self.expected, &logits(self.device, program.id, &self.steps)?);
        if off.like(self.rules) {
            return Ok(());
        }
        Err(Fault::Bad(format!("its logits differ from the CPU's by {off}, the rule's by {}", self.rules)))
    }

    /// Starts measuring a program's launches.
    pub(crate) fn warm(&mut self, program: &Program) -> Result<(), Fault> {
        self.device.profile(program.id, true);
        self.last_step(program)
    }

    /// Seconds per launch of each key in `count` steps of a program that is [`Trial::warm`], as `[key][step]`.
    pub(crate) fn times(&mut self, program: &Program, count: u32) -> Result<Vec<Vec<f64>>, Fault> {
        let nodes = self.tunables.iter().enumerate().flat_map(|(i, t)| t.uses.iter().map(move |u| (u.node, i)));
        let keys: HashMap<NodeId, usize> = nodes.collect();
        let mut samples = vec![vec![]; self.tunables.len()];
        for _ in 0..count {
            self.last_step(program)?;
            let times = self.device.profile(program.id, true).ok_or(Fault::Other(TuneError::NoClock))?;
            let mut sums = vec![(0.0, 0u32); self.tunables.len()];
            for (launch, time) in program.plan.launches().zip(times) {
                if let Some(key) = launch.region.last().and_then(|node| keys.get(node)) {
                    sums[*key] = (sums[*key].0 + time.as_secs_f64(), sums[*key].1 + 1);
                }
            }
            for (list, (sum, n)) in samples.iter_mut().zip(sums) {
                list.push(sum / f64::from(n.max(1)));
            }
        }
        Ok(samples)
    }

    /// The last step again: its K and V are overwritten by the same. One row's logits are asked for: the device computes
    /// all of them, but would doze off while the host reads those of many rows.
    fn last_step(&mut self, program: &Program) -> Result<(), Fault> {
        let last = self.steps.last().expect("steps are made at the start");
        let step = Step { outputs: last.outputs[..1].to_vec(), ..last.clone() };
        Ok(self.device.run(program.id, &step).map(|_| ())?)
    }
}

impl Fault {
    /// As an error, where nothing is on trial.
    pub(crate) fn into_error(self) -> TuneError {
        match self {
            Fault::Lost(error) => error.into(),
            Fault::Bad(reason) => DeviceError::Unsupported(reason).into(),
            Fault::Other(error) => error,
        }
    }
}

/// Tokens tried before the rules count as wrong.
const ATTEMPTS: u32 = 4;

/// Layers that between them have every key, then more until a step reads enough.
fn layers(tunables: &[Tunable]) -> BTreeSet<u32> {
    let mut kept: BTreeSet<u32> = BTreeSet::new();
    for t in tunables {
        if !t.uses.iter().any(|u| u.layer == u32::MAX || kept.contains(&u.layer)) {
            kept.extend(t.uses.first().map(|u| u.layer));
        }
    }
    let uses = || tunables.iter().flat_map(|t| &t.uses);
    let others: BTreeSet<u32> = uses().map(|u| u.layer).filter(|l| *l != u32::MAX && !kept.contains(l)).collect();
    for layer in others {
        let bytes: u64 = uses().filter(|u| kept.contains(&u.layer)).map(|u| u.bytes).sum();
        if bytes >= ENOUGH {
            break;
        }
        kept.insert(layer);
    }
    kept
}

/// Pages of K and V that all steps of so many rows fill.
fn pages(rows: u32) -> u32 {
    (STEPS * rows).div_ceil(PAGE_TOKENS)
}

/// Step `number` of a sequence of made-up tokens.
fn step(rows: u32, number: u32, seed: u32, vocabulary: u32) -> Step {
    let positions: Vec<u32> = (number * rows..(number + 1) * rows).collect();
    let token = |position: &u32| {
        let mixed = (position + seed * 977 + 1).wrapping_mul(2_654_435_761);
        (mixed >> 7) % vocabulary.max(1)
    };
    Step {
        tokens: positions.iter().map(token).collect(),
        sequence: vec![0; rows as usize],
        slots: positions.clone(),
        outputs: (0..rows).collect(),
        pages: vec![(0..pages(rows)).collect()],
        draws: vec![],
        positions,
    }
}

/// The logits of all steps, run in order.
fn logits(device: &mut dyn Device, program: ProgramId, steps: &[Step]) -> Result<Vec<f32>, DeviceError> {
    let mut all = vec![];
    for step in steps {
        match device.run(program, step)? {
            StepOutput::Logits(logits) => all.extend(logits),
            _ => return Err(DeviceError::Misuse("a step for logits gave none")),
        }
    }
    Ok(all)
}

/// The weights of a part.
struct PartWeights<'a> {
    source: &'a dyn WeightSource,
    ids: &'a [WeightId],
}

impl WeightSource for PartWeights<'_> {
    fn bytes(&self, weight: WeightId) -> Option<&[u8]> {
        self.source.bytes(self.ids[weight.index()])
    }

    fn synthetic(&self, weight: WeightId) -> Option<u64> {
        self.source.synthetic(self.ids[weight.index()])
    }
}
