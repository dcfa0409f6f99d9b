//! A device that is a model of a language model: K and V of a token are the token and a hash of everything before it,
//! and the logits are pseudo-random numbers from that hash. Each row reads back its whole context through its page table
//! and checks it, so a page given to two sequences, a lost or stale one, or a wrong slot shows at once. What a failed step
//! should have written is garbage afterwards.
#![allow(dead_code)] // Each test file uses its part.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use zinc_engine::{Engine, Event, Finish, Options, Request, SequenceId, argmax};
use zinc_ir::device::{Caps, Device, DeviceError, MemoryInfo, ProgramId, Progress, Ticket, WeightSource};
use zinc_ir::graph::{AttentionSpec, Graph, WeightId};
use zinc_ir::immediate::Immediate;
use zinc_ir::plan::{CHAINED, KvLayout, NO_SLOT, PAGE_TOKENS, Plan, Step, StepOutput, Tail};
use zinc_ir::{quant, sample};

pub(crate) const VOCABULARY: u32 = 100;

/// What is in memory that no step has written.
const GARBAGE: (u32, u32, u64) = (u32::MAX, 0, 0);

pub(crate) fn mix(a: u64, b: u64) -> u64 {
    let mut z = a ^ b.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    z = (z ^ (z >> 31)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z ^ (z >> 29)
}

pub(crate) fn logits_of(hash: u64) -> impl Iterator<Item = f32> {
    (0..VOCABULARY as u64).map(move |i| (mix(hash, i + 1) % 1000) as f32 / 100.0)
}

pub(crate) struct FakeDevice {
    caps: Caps,
    /// By slot: position, token, hash of the sequence up to it.
    memory: Vec<(u32, u32, u64)>,
    /// Slots that steps in flight write to.
    open: VecDeque<Vec<u32>>,
    programs: Vec<Arc<Plan>>,
    results: Immediate,
    watch: Arc<Watch>,
}

/// What a test sees of a device, and its faults.
#[derive(Default)]
pub(crate) struct Watch {
    /// Steps with a token that the host did not know.
    pub(crate) chained: AtomicUsize,
    /// One of so many preparations, submissions and waits fails; 0: none.
    pub(crate) fault: AtomicUsize,
    calls: AtomicUsize,
    /// Plans for more context than this are refused; 0: none.
    pub(crate) refuses: AtomicUsize,
    /// Plans that give outputs are refused.
    pub(crate) refuses_outputs: AtomicBool,
    /// Nothing is ready ahead of time.
    pub(crate) busy: AtomicBool,
    /// Plans refused.
    pub(crate) refused: AtomicUsize,
}

impl Watch {
    fn call(&self) -> Result<(), DeviceError> {
        let (fault, call) = (self.fault.load(Ordering::Relaxed), self.calls.fetch_add(1, Ordering::Relaxed));
        let fails = fault > 0 && mix(call as u64, 77).is_multiple_of(fault as u64);
        if fails { Err(DeviceError::Driver { call: "test".into(), detail: "a fault".into() }) } else { Ok(()) }
    }
}

impl FakeDevice {
    fn new(watch: &Arc<Watch>) -> FakeDevice {
        FakeDevice {
            caps: Caps::native(),
            memory: vec![],
            open: VecDeque::new(),
            programs: vec![],
            results: Immediate::default(),
            watch: watch.clone(),
        }
    }

    /// Where a position of a sequence with these pages lies.
    fn slot(pages: &[u32], position: u32) -> usize {
        (pages[(position / PAGE_TOKENS) as usize] * PAGE_TOKENS + position % PAGE_TOKENS) as usize
    }

    /// Reads a context of so many tokens back.
    fn read(&self, pages: &[u32], tokens: u32) {
        let mut hash = 0;
        for position in 0..tokens {
            let (at, token, stored) = self.memory[FakeDevice::slot(pages, position)];
            hash = mix(hash, token as u64 + 1);
            assert_eq!((at, stored), (position, hash), "a page of {pages:?} belongs to another sequence");
        }
    }
}

impl Device for FakeDevice {
    fn caps(&self) -> &Caps {
        &self.caps
    }
    fn description(&self) -> String {
        "fake".into()
    }
    fn memory(&self) -> MemoryInfo {
        MemoryInfo::default()
    }
    fn load(
        &mut self,
        _: &Arc<Graph>,
        kv: &Arc<KvLayout>,
        _: &dyn WeightSource,
        _: &mut dyn FnMut(Progress),
    ) -> Result<(), DeviceError> {
        self.memory = vec![GARBAGE; (kv.pages * PAGE_TOKENS) as usize];
        Ok(())
    }
    fn prepare(&mut self, plan: &Arc<Plan>, _: &mut dyn FnMut(Progress)) -> Result<ProgramId, DeviceError> {
        self.watch.call()?;
        let most = self.watch.refuses.load(Ordering::Relaxed);
        if most > 0 && plan.bucket.context as usize > most {
            self.watch.refused.fetch_add(1, Ordering::Relaxed);
            return Err(DeviceError::Unsupported("so much context".into()));
        }
        if plan.bucket.outputs > 0 && self.watch.refuses_outputs.load(Ordering::Relaxed) {
            self.watch.refused.fetch_add(1, Ordering::Relaxed);
            return Err(DeviceError::Unsupported("outputs".into()));
        }
        self.programs.push(plan.clone());
        Ok(ProgramId(self.programs.len() as u32 - 1))
    }
    fn prepare_ahead(&mut self, _: &Arc<Plan>) -> bool {
        !self.watch.busy.load(Ordering::Relaxed)
    }
    fn submit(&mut self, program: ProgramId, step: &Step) -> Result<Ticket, DeviceError> {
        self.watch.call()?;
        let plan = self.programs[program.0 as usize].clone();
        self.results.check(&plan, step)?;
        if step.chain() > 0 {
            self.watch.chained.fetch_add(1, Ordering::Relaxed);
        }
        let slots: HashSet<u32> = step.slots.iter().copied().collect();
        assert_eq!(slots.len(), step.slots.len(), "a slot written twice in a step");
        for row in 0..step.tokens.len() {
            let (slot, position) = (step.slots[row], step.positions[row]);
            let token = match step.tokens[row] {
                token if token < CHAINED => token,
                chained => self.results.chain()[(chained - CHAINED) as usize],
            };
            assert!(slot != NO_SLOT && slot / PAGE_TOKENS < plan.kv.pages);
            let pages = &step.pages[step.sequence[row] as usize];
            let before = position.checked_sub(1).map_or(0, |p| self.memory[FakeDevice::slot(pages, p)].2);
            self.memory[slot as usize] = (position, token, mix(before, token as u64 + 1));
        }
        for (i, pages) in step.pages.iter().enumerate() {
            let last =
                (0..step.tokens.len()).filter(|row| step.sequence[*row] as usize == i).map(|r| step.positions[r]);
            self.read(pages, last.max().map_or(0, |p| p + 1));
        }
        let hash = |row: &u32| self.memory[step.slots[*row as usize] as usize].2;
        let rows: Vec<Vec<f32>> = step.outputs.iter().map(|row| logits_of(hash(row)).collect()).collect();
        let best = |row: &[f32], k: u32| {
            let mut all: Vec<(u32, f32)> = row.iter().enumerate().map(|(i, x)| (i as u32, *x)).collect();
            all.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
            all.truncate(k as usize);
            all
        };
        let greedy = || rows.iter().map(|r| argmax(r).unwrap()).collect();
        let drawn = |k: u32| {
            let draw = |(row, draw): (&Vec<f32>, &sample::Draw)| {
                let best = best(row, k);
                let logits: Vec<f32> = best.iter().map(|b| b.1).collect();
                best[sample::pick(&logits, draw).unwrap()].0
            };
            rows.iter().zip(&step.draws).map(draw).collect()
        };
        let output = match (rows.is_empty(), plan.bucket.tail) {
            (true, _) => StepOutput::None,
            (_, Tail::Logits) => StepOutput::Logits(rows.concat()),
            // Another function of the same hash.
            (_, Tail::Hidden) => StepOutput::Hidden(rows.iter().flat_map(|row| [row[0], row[1], -row[2]]).collect()),
            (_, Tail::Greedy) => StepOutput::Tokens(greedy()),
            (_, Tail::Mixed { candidates, logits }) => StepOutput::Mixed {
                tokens: if candidates == 0 { greedy() } else { drawn(candidates) },
                logits: rows[..rows.len().min(logits as usize)].concat(),
            },
            (_, Tail::Sample(k)) => StepOutput::Tokens(drawn(k)),
            (_, Tail::Best(k)) => {
                let (tokens, logits) = rows.iter().flat_map(|row| best(row, k)).unzip();
                StepOutput::Best { k: k as usize, tokens, logits }
            }
        };
        self.open.push_back(step.slots.clone());
        Ok(self.results.finish(&plan, step, output))
    }
    fn wait(&mut self, ticket: Ticket, output: &mut StepOutput) -> Result<(), DeviceError> {
        self.results.hand_over(ticket, output)?;
        let result = self.watch.call().inspect_err(|_| {
            for slot in self.open.iter().flatten() {
                self.memory[*slot as usize] = GARBAGE;
            }
        });
        self.open.pop_front();
        result
    }
    fn profile(&mut self, _: ProgramId, _: bool) -> Option<Vec<std::time::Duration>> {
        None
    }
    fn save_page(&mut self, page: u32) -> Result<(), DeviceError> {
        let slots = &self.memory[(page * PAGE_TOKENS) as usize..][..PAGE_TOKENS as usize];
        let bytes =
            |slot: &(u32, u32, u64)| [&slot.0.to_le_bytes()[..], &slot.1.to_le_bytes(), &slot.2.to_le_bytes()].concat();
        self.results.save_page(slots.iter().flat_map(bytes).collect())
    }
    fn saved_page(&mut self, _: bool, bytes: &mut Vec<u8>) -> Result<bool, DeviceError> {
        self.results.saved_page(bytes)
    }
    fn load_page(&mut self, page: u32, bytes: &[u8]) -> Result<(), DeviceError> {
        self.watch.call()?;
        let word = |b: &[u8]| u32::from_le_bytes(b.try_into().unwrap());
        for (i, slot) in bytes.chunks_exact(16).enumerate() {
            let hash = word(&slot[8..12]) as u64 | (word(&slot[12..]) as u64) << 32;
            self.memory[(page * PAGE_TOKENS) as usize + i] = (word(&slot[..4]), word(&slot[4..8]), hash);
        }
        Ok(())
    }
    fn copy_pages(&mut self, _: &[(u32, u32)]) -> Result<(), DeviceError> {
        Ok(())
    }
}

pub(crate) fn fake_device() -> Box<dyn Device> {
    Box::new(FakeDevice::new(&Arc::default()))
}

pub(crate) struct NoWeights;
impl WeightSource for NoWeights {
    fn bytes(&self, _: WeightId) -> Option<&[u8]> {
        None
    }
}

/// One attention layer, small enough to compile at once.
pub(crate) fn graph() -> Arc<Graph> {
    let format = quant::F32;
    let mut g = Graph::new();
    let table = g.weight("token_embd.weight", VOCABULARY, 32, format);
    let x = g.embed(table);
    let append = g.kv_append(x, x, 32);
    let spec = AttentionSpec { heads: 1, kv_heads: 1, head_dim: 32, scale: 1.0, window: None };
    let x = g.attention(x, append, spec);
    let x = g.select_rows(x);
    let x = g.matmul(x, table);
    g.set_logits(x);
    Arc::new(g)
}

pub(crate) fn engine(options: Options) -> Engine {
    watched(options, &Arc::default())
}

pub(crate) fn watched(options: Options, watch: &Arc<Watch>) -> Engine {
    Engine::new(Box::new(FakeDevice::new(watch)), graph(), &NoWeights, options, &mut |_| ()).unwrap()
}

/// What a request gave: tokens, logits or hidden states by position, and why it ended.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Outcome {
    pub(crate) tokens: Vec<u32>,
    pub(crate) logits: Vec<(u32, Vec<f32>)>,
    pub(crate) end: Option<Finish>,
}

pub(crate) fn record(outcomes: &mut HashMap<SequenceId, Outcome>, events: Vec<Event>) {
    for event in events {
        match event {
            Event::Started { .. } => {}
            Event::Token { sequence, token } => outcomes.entry(sequence).or_default().tokens.push(token),
            Event::Logits { sequence, position, logits: row } | Event::Hidden { sequence, position, state: row } => {
                outcomes.entry(sequence).or_default().logits.push((position, row))
            }
            Event::Finished { sequence, reason } => {
                let before = outcomes.entry(sequence).or_default().end.replace(reason);
                assert_eq!(before, None, "ended twice");
            }
        }
    }
}

pub(crate) fn solo(request: &Request, context: u32) -> Outcome {
    let mut engine = engine(Options { context, in_flight: Some(1), ..Options::default() });
    let id = engine.submit(request.clone()).unwrap();
    let mut outcomes = HashMap::new();
    while !engine.is_idle() {
        record(&mut outcomes, engine.step(&mut |_| ()).unwrap());
    }
    outcomes.remove(&id).unwrap()
}
