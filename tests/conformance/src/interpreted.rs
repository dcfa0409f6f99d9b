//! A device made of the kernel interpreter: slow, and unforgiving.
//!
//! Every launch sees exactly the spans it declares, each in a range of its own: an access outside them, a write to
//! something declared as read, a read of scratch nobody wrote, a race or a misaligned load is an error with the
//! kernel, operation, tile and lane.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use zinc_ir::device::{Caps, Device, DeviceError, MatrixShape, MemoryInfo, ProgramId, Progress, Ticket, WeightSource};
use zinc_ir::graph::{Graph, WeightId};
use zinc_ir::immediate::Immediate;
use zinc_ir::kernel::Scalar;
use zinc_ir::kernel::interpret::{Access, Memory, Options, run};
use zinc_ir::plan::{
    Buffer, CHAIN_ROWS, COUNTERS, Entry, KvArea, KvLayout, KvType, Launch, LaunchArg, Plan, Span, Step, StepOutput,
};

/// Abilities of an imaginary GPU with one subgroup size, and 16×16×16 (8×8×8 below 16 lanes) half matrices.
pub fn gpu_caps(subgroup_size: u32) -> Caps {
    let side = if subgroup_size < 16 { 8 } else { 16 };
    Caps {
        native: false,
        subgroup_size,
        max_workgroup: 1024,
        max_shared_bytes: 32 << 10,
        max_grid: [65535; 3],
        matrices: vec![MatrixShape { m: side, n: side, k: side, input: Scalar::F16, acc: Scalar::F32 }],
        matrix_lanes: subgroup_size.min(32),
        quads: subgroup_size == 32,
        parallel_tiles: 16,
    }
}

/// Runs plans through the interpreter.
pub struct InterpretedDevice {
    caps: Caps,
    seed: u64,
    weights: HashMap<WeightId, Arc<Vec<u8>>>,
    kv: Vec<u8>,
    layout: Option<Arc<KvLayout>>,
    plans: Vec<Arc<Plan>>,
    /// Tokens that one step leaves to the next.
    chain: Vec<u8>,
    counters: Vec<u8>,
    results: Immediate,
}

impl InterpretedDevice {
    /// A device with these abilities; `seed` orders tiles and subgroups.
    pub fn new(caps: Caps, seed: u64) -> InterpretedDevice {
        InterpretedDevice {
            caps,
            seed,
            weights: HashMap::new(),
            kv: vec![],
            layout: None,
            plans: vec![],
            chain: vec![0xff; CHAIN_ROWS as usize * 4],
            counters: vec![0; COUNTERS as usize * 4],
            results: Immediate::default(),
        }
    }

    /// The pieces of the pool that a page consists of.
    fn pieces(&self, page: u32) -> Result<Vec<std::ops::Range<usize>>, DeviceError> {
        let kv = self.layout.as_ref().filter(|kv| page < kv.pages).ok_or(DeviceError::Misuse("no such page"))?;
        let areas = kv.layers.iter().flat_map(|area| [(area.k, area, kv.types.k), (area.v, area, kv.types.v)]);
        let piece = |(start, area, ty): (u64, &KvArea, KvType)| {
            let bytes = area.page_bytes(ty) as usize;
            let at = start as usize + page as usize * bytes;
            at..at + bytes
        };
        Ok(areas.map(piece).collect())
    }

    fn launch(
        &mut self,
        plan: &Plan,
        launch: &Launch,
        buffers: &mut HashMap<Buffer, Vec<u8>>,
    ) -> Result<(), DeviceError> {
        let Some(kernel) = launch.kernel.map(|k| &plan.kernels[k.0 as usize]) else {
            return Err(DeviceError::Unsupported(format!("{} has no kernel", launch.template)));
        };
        let mut memory = Memory::new();
        let mut bound: Vec<(Span, u64, bool)> = vec![];
        for (span, writes) in spans(launch) {
            if bound.iter().any(|(s, _, _)| *s == span) {
                continue;
            }
            let range = span.offset as usize..(span.offset + span.bytes) as usize;
            let bytes = match span.buffer {
                Buffer::Weight(w) => self.weights[&w][range].to_vec(),
                Buffer::Kv => self.kv[range].to_vec(),
                Buffer::Chain => self.chain[range].to_vec(),
                Buffer::Counters => self.counters[range].to_vec(),
                other => buffers[&other][range].to_vec(),
            };
            let access = if writes { Access::ReadWrite } else { Access::Read };
            bound.push((span, memory.bind(format!("{span:?}"), bytes, access), writes));
        }
        let address = |arg: &LaunchArg| match *arg {
            LaunchArg::Word(w) => w as u64,
            LaunchArg::Address { buffer, offset } => {
                let holds = |s: &Span| s.buffer == buffer && s.offset <= offset && offset < s.offset + s.bytes;
                let (span, base, _) = bound.iter().find(|(s, _, _)| holds(s)).expect("the plan verifier checked this");
                base + (offset - span.offset)
            }
        };
        let args: Vec<u64> = launch.args.iter().map(address).collect();
        self.seed = self.seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        run(kernel, &args, launch.grid, &mut memory, &Options { seed: self.seed, check_races: true })
            .map_err(|fault| DeviceError::Driver { call: launch.template.to_string(), detail: fault.to_string() })?;
        for (span, base, writes) in &bound {
            if !writes {
                continue;
            }
            let range = span.offset as usize..(span.offset + span.bytes) as usize;
            let target = match span.buffer {
                Buffer::Kv => &mut self.kv[range],
                Buffer::Chain => &mut self.chain[range],
                Buffer::Counters => &mut self.counters[range],
                other => &mut buffers.get_mut(&other).expect("bound above")[range],
            };
            target.copy_from_slice(memory.bytes(*base).expect("bound above"));
        }
        if self.counters.iter().any(|byte| *byte != 0) {
            let detail = "it leaves counters that are not zero".to_string();
            return Err(DeviceError::Driver { call: launch.template.to_string(), detail });
        }
        Ok(())
    }
}

/// Spans of a launch, each once per use, with whether it is written.
fn spans(launch: &Launch) -> impl Iterator<Item = (Span, bool)> + '_ {
    let writes = launch.writes.iter().map(|s| (*s, true));
    writes.chain(launch.reads.iter().map(|s| (*s, false)))
}

impl Device for InterpretedDevice {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn description(&self) -> String {
        format!("kernel interpreter, subgroups of {}", self.caps.subgroup_size)
    }

    fn memory(&self) -> MemoryInfo {
        MemoryInfo { total: 1 << 40, available: 1 << 40, used: 0 }
    }

    fn load(
        &mut self,
        graph: &Arc<Graph>,
        kv: &Arc<KvLayout>,
        weights: &dyn WeightSource,
        _progress: &mut dyn FnMut(Progress),
    ) -> Result<(), DeviceError> {
        self.plans.clear();
        self.results = Immediate::default();
        self.weights.clear();
        for i in 0..graph.weights().len() as u32 {
            let id = WeightId(i);
            let bytes = weights.bytes(id).ok_or(DeviceError::Unsupported("synthetic weights".into()))?;
            let format = graph.weight_of(id).format;
            let mut padded = bytes.to_vec();
            padded.resize(bytes.len().next_multiple_of(format.device_block_bytes() as usize), 0);
            self.weights.insert(id, Arc::new(format.repack(&padded)));
        }
        // Not zero: a kernel that reads a slot nobody wrote shall be seen.
        self.kv = vec![0xff; kv.bytes as usize];
        self.layout = Some(kv.clone());
        Ok(())
    }

    fn prepare(&mut self, plan: &Arc<Plan>, _progress: &mut dyn FnMut(Progress)) -> Result<ProgramId, DeviceError> {
        self.plans.push(plan.clone());
        Ok(ProgramId(self.plans.len() as u32 - 1))
    }

    fn submit(&mut self, program: ProgramId, step: &Step) -> Result<Ticket, DeviceError> {
        let plan = self.plans.get(program.0 as usize).ok_or(DeviceError::Misuse("unknown program"))?.clone();
        self.results.check(&plan, step)?;
        let mut inputs = vec![0; plan.inputs.bytes as usize];
        plan.inputs.write(step, &mut inputs)?;
        let mut buffers = HashMap::from([
            (Buffer::Inputs, inputs),
            (Buffer::Scratch, vec![0xff; plan.scratch_bytes as usize]),
            (Buffer::Output, vec![0xff; plan.output_bytes as usize]),
        ]);
        for entry in &plan.entries {
            if let Entry::Launch(launch) = entry {
                self.launch(&plan, launch, &mut buffers)?;
            }
        }
        let mut output = self.results.output();
        plan.read_output(step.outputs.len(), &buffers[&Buffer::Output], &mut output);
        Ok(self.results.finish(&plan, step, output))
    }

    fn wait(&mut self, ticket: Ticket, output: &mut StepOutput) -> Result<(), DeviceError> {
        self.results.hand_over(ticket, output)
    }

    fn profile(&mut self, _program: ProgramId, _on: bool) -> Option<Vec<Duration>> {
        None
    }

    fn save_page(&mut self, page: u32) -> Result<(), DeviceError> {
        let pieces = self.pieces(page)?;
        self.results.save_page(pieces.into_iter().flat_map(|piece| self.kv[piece].to_vec()).collect())
    }

    fn saved_page(&mut self, _wait: bool, bytes: &mut Vec<u8>) -> Result<bool, DeviceError> {
        self.results.saved_page(bytes)
    }

    fn load_page(&mut self, page: u32, bytes: &[u8]) -> Result<(), DeviceError> {
        let pieces = self.pieces(page)?;
        if pieces.iter().map(|piece| piece.len()).sum::<usize>() != bytes.len() {
            return Err(DeviceError::Misuse("not the bytes of a page"));
        }
        let mut rest = bytes;
        for piece in pieces {
            let (head, tail) = rest.split_at(piece.len());
            self.kv[piece].copy_from_slice(head);
            rest = tail;
        }
        Ok(())
    }

    fn page_format(&self) -> &'static str {
        "planes"
    }

    fn copy_pages(&mut self, _pairs: &[(u32, u32)]) -> Result<(), DeviceError> {
        Err(DeviceError::Unsupported("page copies on the interpreter".into()))
    }
}
