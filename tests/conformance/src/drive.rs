//! Drives a device by hand, without engine: one or more sequences, any cut of their tokens into steps.

use std::collections::HashMap;
use std::sync::Arc;
use zinc_compiler::{Choices, compile};
use zinc_ir::device::{Caps, Device, DeviceError, ProgramId, Ticket, WeightSource};
use zinc_ir::graph::Graph;
use zinc_ir::plan::{Bucket, KvLayout, KvTypes, PAGE_TOKENS, Plan, Step, StepOutput, Tail};
use zinc_ir::sample::Draw;

/// A model on a device, with one page chain per sequence.
pub struct Driver<'d> {
    device: &'d mut dyn Device,
    graph: Arc<Graph>,
    kv: Arc<KvLayout>,
    choices: Choices,
    caps: Caps,
    change: Box<dyn Fn(Plan) -> Plan + 'd>,
    programs: HashMap<Bucket, ProgramId>,
    pages: Vec<Vec<u32>>,
    lengths: Vec<u32>,
}

/// Tokens of one sequence in a step.
pub struct Chunk<'a> {
    /// Which sequence.
    pub sequence: usize,
    /// Its next tokens.
    pub tokens: &'a [u32],
}

impl<'d> Driver<'d> {
    /// Loads a model with room for `context` tokens in each of `sequences`.
    pub fn new(
        device: &'d mut dyn Device,
        graph: &Arc<Graph>,
        weights: &dyn WeightSource,
        kv: impl Into<KvTypes>,
        choices: Choices,
        sequences: u32,
        context: u32,
    ) -> Driver<'d> {
        let each = context.div_ceil(PAGE_TOKENS);
        let kv = Arc::new(KvLayout::new(graph, kv, sequences * each));
        device.load(graph, &kv, weights, &mut |_| {}).expect("the model loads");
        let caps = device.caps().clone();
        // Pages of different sequences interleave, and each chain runs backwards: no kernel may assume order.
        let chain = |s: u32| (0..each).rev().map(|p| p * sequences + s).collect();
        let pages = (0..sequences).map(chain).collect();
        Driver {
            device,
            graph: graph.clone(),
            kv,
            choices,
            caps,
            change: Box::new(|plan| plan),
            programs: HashMap::new(),
            pages,
            lengths: vec![0; sequences as usize],
        }
    }

    /// From now on plans are made for `caps` and changed before the device gets them.
    pub fn replan(&mut self, caps: Caps, change: impl Fn(Plan) -> Plan + 'd) {
        (self.caps, self.change) = (caps, Box::new(change));
        self.programs.clear();
    }

    /// Forgets a sequence's last tokens.
    pub fn rewind(&mut self, sequence: usize, tokens: u32) {
        self.lengths[sequence] -= tokens;
    }

    /// Forgets a sequence's tokens.
    pub fn clear(&mut self, sequence: usize) {
        self.lengths[sequence] = 0;
    }

    /// Runs one step for its K and V alone.
    pub fn feed(&mut self, chunks: &[Chunk<'_>], bucket_tokens: u32) {
        let step = Step { outputs: vec![], ..self.rows_of(chunks, vec![]) };
        let bucket = Bucket { outputs: 0, ..self.bucket(bucket_tokens, Tail::Logits) };
        let program = self.program(bucket);
        let ticket = self.device.submit(program, &step).expect("the step is taken");
        self.wait(ticket);
    }

    /// Runs one step; every row gives an output. `tokens` ≥ the number of rows is the bucket.
    pub fn step(&mut self, chunks: &[Chunk<'_>], bucket_tokens: u32, tail: Tail) -> StepOutput {
        let ticket = self.submit(chunks, bucket_tokens, tail, vec![]);
        self.wait(ticket)
    }

    /// As [`Driver::step`], without waiting for the end. Tokens may be [`Step::chained`].
    pub fn submit(&mut self, chunks: &[Chunk<'_>], bucket_tokens: u32, tail: Tail, draws: Vec<Draw>) -> Ticket {
        self.try_submit(chunks, bucket_tokens, tail, draws).expect("the step is taken")
    }

    /// As [`Driver::submit`], where the device may refuse: the interpreter does with all that it finds.
    pub fn try_submit(
        &mut self,
        chunks: &[Chunk<'_>],
        bucket_tokens: u32,
        tail: Tail,
        draws: Vec<Draw>,
    ) -> Result<Ticket, DeviceError> {
        let step = self.rows_of(chunks, draws);
        let program = self.program(self.bucket(bucket_tokens, tail));
        self.device.submit(program, &step)
    }

    /// The step of some chunks; they count as run.
    fn rows_of(&mut self, chunks: &[Chunk<'_>], draws: Vec<Draw>) -> Step {
        let mut step = Step { pages: self.pages.clone(), draws, ..Step::default() };
        for chunk in chunks {
            for token in chunk.tokens {
                let position = self.lengths[chunk.sequence];
                let page = self.pages[chunk.sequence][(position / PAGE_TOKENS) as usize];
                step.outputs.push(step.tokens.len() as u32);
                step.tokens.push(*token);
                step.positions.push(position);
                step.sequence.push(chunk.sequence as u32);
                step.slots.push(page * PAGE_TOKENS + position % PAGE_TOKENS);
                self.lengths[chunk.sequence] += 1;
            }
        }
        step
    }

    fn bucket(&self, tokens: u32, tail: Tail) -> Bucket {
        let (context, sequences) = (self.pages[0].len() as u32 * PAGE_TOKENS, self.pages.len() as u32);
        Bucket { tokens, outputs: tokens, context, sequences, tail }
    }

    /// What the oldest step in flight gives.
    pub fn wait(&mut self, ticket: Ticket) -> StepOutput {
        let mut output = StepOutput::None;
        self.device.wait(ticket, &mut output).expect("the step runs");
        output
    }

    fn program(&mut self, bucket: Bucket) -> ProgramId {
        if let Some(known) = self.programs.get(&bucket) {
            return *known;
        }
        let plan = compile(&self.graph, &self.kv, bucket, &self.caps, &self.choices).expect("the plan compiles");
        let plan = (self.change)(plan);
        let program = self.device.prepare(&Arc::new(plan), &mut |_| {}).expect("the plan is prepared");
        self.programs.insert(bucket, program);
        program
    }

    /// Logits of all positions of `tokens` in sequence 0, fed in pieces of `piece` rows.
    pub fn logits(&mut self, tokens: &[u32], piece: usize) -> Vec<f32> {
        let mut all = vec![];
        for tokens in tokens.chunks(piece) {
            match self.step(&[Chunk { sequence: 0, tokens }], piece as u32, Tail::Logits) {
                StepOutput::Logits(rows) => all.extend(rows),
                other => panic!("asked for logits, got {other:?}"),
            }
        }
        all
    }

    /// Greedy continuation of sequence 0 after `prompt`.
    pub fn greedy(&mut self, prompt: &[u32], piece: usize, count: usize) -> Vec<u32> {
        let mut next = None;
        for tokens in prompt.chunks(piece) {
            next = self.best(&[Chunk { sequence: 0, tokens }], piece as u32).last().copied();
        }
        let mut out = vec![next.expect("the prompt is not empty")];
        while out.len() < count {
            let token = *out.last().expect("just filled");
            out.extend(self.best(&[Chunk { sequence: 0, tokens: &[token] }], 1));
        }
        out
    }

    /// The best token after every row.
    pub fn best(&mut self, chunks: &[Chunk<'_>], bucket_tokens: u32) -> Vec<u32> {
        match self.step(chunks, bucket_tokens, Tail::Greedy) {
            StepOutput::Tokens(tokens) => tokens,
            other => panic!("asked for tokens, got {other:?}"),
        }
    }
}
