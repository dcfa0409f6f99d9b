//! The device runs plans: weights arrive in their layout, steps replay, pages copy, kernels are cached.

mod support;

use std::sync::Arc;
use std::time::Duration;
use support::{device, no_messages};
use zinc_ir::device::{Device, DeviceError, Progress, WeightSource};
use zinc_ir::graph::{Graph, WeightId};
use zinc_ir::kernel::{ArgKind, Builder, Kernel, Type};
use zinc_ir::plan::*;
use zinc_ir::quant::{FORMATS, QuantFormat};
use zinc_vulkan::{Options, VulkanDevice};

const LANES: u32 = 64;

/// Most tiles of a test's launch.
const TILES: u32 = 1024;

/// Copies `count` words.
fn copy_kernel(size: u32) -> Kernel {
    let b = Builder::new("copy", LANES, size);
    let (x, y, count) = (b.arg("x", ArgKind::Read), b.arg("y", ArgKind::Write), b.arg("count", ArgKind::Word));
    let first = b.tile(0) * LANES + b.local_id();
    b.for_(first, count, TILES * LANES, &[], |i, _| {
        b.store(y, i * 4, b.load(Type::U32, x, i * 4, 4), 4);
        vec![]
    });
    b.finish()
}

/// y[i] = x[i] + n.
fn add_kernel(size: u32) -> Kernel {
    let b = Builder::new("add", LANES, size);
    let (x, y, n) = (b.arg("x", ArgKind::Read), b.arg("y", ArgKind::Write), b.arg("n", ArgKind::Word));
    let i = b.tile(0) * LANES + b.local_id();
    b.store(y, i * 4, b.load(Type::U32, x, i * 4, 4) + n, 4);
    b.finish()
}

fn span(buffer: Buffer, offset: u64, bytes: u64) -> Span {
    Span { buffer, offset, bytes }
}

/// A launch of kernel `kernel` from one span to another, with one word.
fn launch(kernel: u32, from: Span, to: Span, word: u32) -> Entry {
    let address = |s: Span| LaunchArg::Address { buffer: s.buffer, offset: s.offset };
    Entry::Launch(Launch {
        template: "test",
        region: vec![],
        layer: u32::MAX,
        kernel: Some(KernelId(kernel)),
        grid: [(to.bytes as u32 / 4).div_ceil(LANES).min(TILES), 1, 1],
        args: vec![address(from), address(to), LaunchArg::Word(word)],
        reads: vec![from],
        writes: vec![to],
        attends: None,
        bytes: from.bytes + to.bytes,
        flops: 0,
    })
}

struct Plans {
    graph: Arc<Graph>,
    kv: Arc<KvLayout>,
    kernels: Vec<Kernel>,
}

impl Plans {
    /// Adds one to a weight, and one to that.
    fn of_two_launches(&self) -> Arc<Plan> {
        let bytes = LANES as u64 * 4;
        let scratch = span(Buffer::Scratch, 0, bytes);
        let entries = vec![
            launch(0, span(Buffer::Weight(WeightId(0)), 0, bytes), scratch, 1),
            Entry::Barrier,
            launch(0, scratch, span(Buffer::Output, 0, bytes), 1),
        ];
        self.plan(1, 1, entries, bytes, bytes)
    }

    fn plan(&self, tokens: u32, outputs: u32, entries: Vec<Entry>, scratch: u64, output: u64) -> Arc<Plan> {
        let bucket = Bucket { tokens, outputs, context: PAGE_TOKENS, sequences: 1, tail: Tail::Greedy };
        Arc::new(Plan {
            graph: self.graph.clone(),
            bucket,
            act: ActPrecision::F32,
            kv: self.kv.clone(),
            inputs: InputLayout::new(&self.graph, bucket),
            output: None,
            kernels: self.kernels.clone(),
            entries,
            scratch_bytes: scratch,
            output_bytes: output,
        })
    }
}

/// A step of `tokens`, with all rows as outputs.
fn step(tokens: &[u32], outputs: u32) -> Step {
    let rows = tokens.len() as u32;
    Step {
        tokens: tokens.to_vec(),
        positions: (0..rows).collect(),
        sequence: vec![0; rows as usize],
        slots: (0..rows).collect(),
        outputs: (0..outputs).collect(),
        pages: vec![vec![0]],
        draws: vec![],
    }
}

fn tokens(output: StepOutput) -> Vec<u32> {
    match output {
        StepOutput::Tokens(t) => t,
        other => panic!("{other:?}"),
    }
}

struct Source(Vec<Vec<u8>>);
impl WeightSource for Source {
    fn bytes(&self, weight: WeightId) -> Option<&[u8]> {
        self.0.get(weight.index()).map(Vec::as_slice)
    }
}

struct Seeded;
impl WeightSource for Seeded {
    fn bytes(&self, _: WeightId) -> Option<&[u8]> {
        None
    }
    fn synthetic(&self, weight: WeightId) -> Option<u64> {
        Some(weight.0 as u64 + 0x1234_5678_9abc)
    }
}

fn noise(bytes: u64, seed: u32) -> Vec<u8> {
    let mut x = seed.wrapping_mul(2_654_435_761) | 1;
    let next = |_| {
        x ^= x << 13;
        x ^= x >> 17;
        x ^= x << 5;
        (x >> 9) as u8
    };
    (0..bytes).map(next).collect()
}

/// Plans that copy each weight of `graph` to the output, and what the device must have: checked in turn.
fn check_weights(
    device: &mut VulkanDevice,
    graph: Graph,
    source: &dyn WeightSource,
    bytes: &dyn Fn(WeightId) -> Vec<u8>,
) {
    let graph = Arc::new(graph);
    let kv = Arc::new(KvLayout::new(&graph, KvType::F16, 1));
    let mut seen = 0;
    let mut progress = |p| {
        if let Progress::Upload { done, total } = p {
            assert!(done > seen && done <= total);
            seen = done;
        }
    };
    device.load(&graph, &kv, source, &mut progress).expect("loads");
    assert_eq!(seen, graph.weights().iter().map(|w| w.bytes()).sum::<u64>());
    let plans = Plans { graph: graph.clone(), kv, kernels: vec![copy_kernel(device.caps().subgroup_size)] };
    for (i, weight) in graph.weights().iter().enumerate() {
        let id = WeightId(i as u32);
        let size = weight_bytes(&graph, id);
        let entries =
            vec![launch(0, span(Buffer::Weight(id), 0, size), span(Buffer::Output, 0, size), size as u32 / 4)];
        let plan = plans.plan(1, 1, entries, 0, size);
        let program = device.prepare(&plan, &mut |_| {}).expect("prepares");
        let got = tokens(device.run(program, &step(&[0], 1)).expect("runs"));
        let got: Vec<u8> = got.iter().flat_map(|w| w.to_le_bytes()).collect();
        let mut file = bytes(id);
        file.resize(file.len().next_multiple_of(weight.format.device_block_bytes() as usize), 0);
        assert_eq!(got.len() as u64, size);
        assert!(got == weight.format.repack(&file), "{} {}", weight.name, weight.format.name);
    }
    no_messages(device);
}

fn weights_of_every_format(cols: u32, rows: u32) -> Graph {
    let mut graph = Graph::new();
    let fits = |f: &&&QuantFormat| cols.is_multiple_of(f.block_elems);
    for format in FORMATS.iter().filter(fits) {
        graph.weight(format!("{}_{rows}x{cols}.weight", format.name), rows, cols, format);
    }
    graph
}

#[test]
fn weights_of_every_format_arrive_in_the_device_layout() {
    let Some(mut device) = device(Options::default()) else { return };
    // One piece; a short odd tail; several pieces and slots of the ring.
    for (cols, rows) in [(256, 3), (31, 1), (512, 40_000)] {
        let graph = weights_of_every_format(cols, rows);
        let source = Source(graph.weights().iter().zip(1..).map(|(w, i)| noise(w.bytes(), i)).collect());
        check_weights(&mut device, graph, &source, &|id| source.0[id.index()].clone());
    }
}

#[test]
fn synthetic_weights_are_the_defined_ones() {
    let Some(mut device) = device(Options::default()) else { return };
    let mut graph = weights_of_every_format(256, 20_000);
    graph.weight("norm.weight", 1, 4096, zinc_ir::quant::F32);
    graph.weight("q.bias", 1, 100, zinc_ir::quant::F32);
    let copy = graph.clone();
    check_weights(&mut device, graph, &Seeded, &|id| {
        let weight = copy.weight_of(id);
        let mut bytes = vec![0; weight.bytes() as usize];
        let seed = Seeded.synthetic(id).expect("a seed");
        zinc_ir::synthetic::Recipe::of(weight).fill(seed, 0, &mut bytes);
        bytes
    });
}

/// A graph with one KV layer and one small weight.
fn small(device: &mut VulkanDevice, pages: u32) -> Plans {
    let mut graph = Graph::new();
    let table = graph.weight("w.weight", 64, 32, zinc_ir::quant::F32);
    let x = graph.embed(table);
    graph.kv_append(x, x, 32);
    let graph = Arc::new(graph);
    let kv = Arc::new(KvLayout::new(&graph, KvType::F32, pages));
    device.load(&graph, &kv, &Source(vec![noise(64 * 32 * 4, 9)]), &mut |_| {}).expect("loads");
    let size = device.caps().subgroup_size;
    Plans { graph, kv, kernels: vec![add_kernel(size), copy_kernel(size)] }
}

#[test]
fn a_recorded_plan_is_replayed_with_new_inputs() {
    let Some(mut device) = device(Options::default()) else { return };
    let plans = small(&mut device, 2);
    let n = LANES;
    let bytes = n as u64 * 4;
    let bucket_inputs = plans.plan(n, n, vec![], 0, bytes).inputs.span(Input::Tokens);
    let chain = |scratch_at: u64| {
        let (a, b) = (span(Buffer::Scratch, scratch_at, bytes), span(Buffer::Scratch, scratch_at + 256, bytes));
        vec![
            launch(0, span(Buffer::Inputs, bucket_inputs.0, bytes), a, 1),
            Entry::Barrier,
            launch(0, a, b, 10),
            Entry::Barrier,
            launch(0, b, span(Buffer::Output, 0, bytes), 100),
        ]
    };
    let first = device.prepare(&plans.plan(n, n, chain(0), 512, bytes), &mut |_| {}).expect("prepares");
    // A later plan with more scratch moves it: the first must still work.
    let second =
        device.prepare(&plans.plan(n, n, chain(1 << 20), (1 << 20) + 512, bytes), &mut |_| {}).expect("prepares");
    for round in 0..5 {
        let input: Vec<u32> = (0..n / 2 + round).map(|i| (i * 3 + round) % 64).collect();
        let rows = input.len() as u32;
        let expected: Vec<u32> = input.iter().map(|t| t + 111).collect();
        let mut short = step(&input, rows);
        short.positions = (0..rows).map(|p| p % PAGE_TOKENS).collect();
        for program in [first, second] {
            assert_eq!(tokens(device.run(program, &short).expect("runs")), expected);
        }
    }
    no_messages(&device);
}

#[test]
fn two_steps_are_in_flight_and_one_reads_what_the_other_left() {
    let Some(mut device) = device(Options::default()) else { return };
    let plans = small(&mut device, 2);
    let (n, bytes) = (LANES, LANES as u64 * 4);
    let (input, _) = plans.plan(n, n, vec![], 0, bytes).inputs.span(Input::Tokens);
    let (chain, out) = (span(Buffer::Chain, 0, bytes), span(Buffer::Output, 0, bytes));
    // One leaves its tokens + 1 in the chain, the other gives what is there + 10 and leaves that.
    let first = vec![
        launch(0, span(Buffer::Inputs, input, bytes), chain, 1),
        launch(1, span(Buffer::Inputs, input, bytes), out, n),
    ];
    let scratch = span(Buffer::Scratch, 0, bytes);
    let add =
        vec![launch(0, chain, scratch, 10), Entry::Barrier, launch(1, scratch, chain, n), launch(1, scratch, out, n)];
    let [first, add] = [first, add]
        .map(|entries| device.prepare(&plans.plan(n, n, entries, bytes, bytes), &mut |_| {}).expect("prepares"));
    let rows = |value: u32| {
        let mut step = step(&[value; 3], 3);
        step.slots = vec![NO_SLOT; 3];
        step
    };
    let unlinked = device.submit(first, &rows(Step::chained(0)));
    assert!(matches!(unlinked, Err(DeviceError::Step(StepError::Inconsistent(_)))), "{unlinked:?}");
    let mut before = device.submit(first, &rows(5)).expect("a step");
    let mut output = StepOutput::None;
    for round in 0..20 {
        let next = device.submit(add, &rows(Step::chained(2))).expect("a second step");
        let third = device.submit(add, &rows(1));
        assert!(matches!(third, Err(DeviceError::Misuse(_))), "{third:?}");
        assert!(matches!(device.wait(next, &mut output), Err(DeviceError::Misuse(_))), "not the oldest");
        device.wait(before, &mut output).expect("runs");
        assert_eq!(output, StepOutput::Tokens(vec![if round == 0 { 5 } else { 6 + round * 10 }; 3]));
        before = next;
    }
    let beyond = device.submit(add, &rows(Step::chained(3)));
    assert!(matches!(beyond, Err(DeviceError::Step(_))), "{beyond:?}");
    device.wait(before, &mut output).expect("runs");
    assert_eq!(output, StepOutput::Tokens(vec![206; 3]));
    assert!(matches!(device.wait(before, &mut output), Err(DeviceError::Misuse(_))), "waited for twice");
    no_messages(&device);
}

#[test]
fn times_of_launches_are_told_when_asked_for() {
    let whole = Options::default();
    let parts = Options { longest_part: Duration::ZERO, ..Options::default() };
    for (options, submissions) in [(whole, 1), (parts, 2)] {
        let Some(mut device) = device(options) else { return };
        let plans = small(&mut device, 2);
        let program = device.prepare(&plans.of_two_launches(), &mut |_| {}).expect("prepares");
        let handed_over = device.submissions();
        let before = device.run(program, &step(&[0], 1)).expect("runs");
        assert_eq!(device.submissions() - handed_over, submissions);
        assert_eq!(device.profile(program, true), None);
        assert_eq!(device.run(program, &step(&[0], 1)).expect("runs"), before);
        let times = device.profile(program, false).expect("times");
        println!("{times:?}");
        assert_eq!(times.len(), 2);
        assert_eq!(device.run(program, &step(&[0], 1)).expect("runs"), before);
        assert_eq!(device.profile(program, false), None);
        no_messages(&device);
    }
}

/// The first guess is one part; what a step then takes makes two, while another step is in flight.
#[test]
fn parts_follow_what_steps_take() {
    let Some(mut device) = device(Options { longest_part: Duration::from_micros(2), ..Options::default() }) else {
        return;
    };
    let plans = small(&mut device, 2);
    let program = device.prepare(&plans.of_two_launches(), &mut |_| {}).expect("prepares");
    let before = device.submissions();
    let expected = device.run(program, &step(&[0], 1)).expect("runs");
    assert_eq!(device.submissions() - before, 1);
    let mut output = StepOutput::None;
    // Whether a step ends before it is waited for is the machine's to say: some do not.
    let in_two = (0..1000).any(|_| {
        let before = device.submissions();
        let [first, second] = [0; 2].map(|_| device.submit(program, &step(&[0], 1)).expect("a step"));
        for ticket in [first, second] {
            device.wait(ticket, &mut output).expect("runs");
            assert_eq!(output, expected);
        }
        device.submissions() - before == 4
    });
    assert!(in_two, "steps were never handed over in two parts");
    no_messages(&device);
}

#[test]
fn released_programs_are_gone_and_others_go_on() {
    let Some(mut device) = device(Options::default()) else { return };
    let plans = small(&mut device, 2);
    let (n, bytes) = (LANES, LANES as u64 * 4);
    let (input, _) = plans.plan(n, n, vec![], 0, bytes).inputs.span(Input::Tokens);
    let add = |word| vec![launch(0, span(Buffer::Inputs, input, bytes), span(Buffer::Output, 0, bytes), word)];
    let prepare = |device: &mut VulkanDevice, word| {
        device.prepare(&plans.plan(n, n, add(word), 0, bytes), &mut |_| {}).expect("prepares")
    };
    let [first, second] = [1, 2].map(|word| prepare(&mut device, word));
    let used = device.memory().used;
    let in_flight = device.submit(first, &step(&[5], 1)).expect("a step");
    device.release(first);
    let mut output = StepOutput::None;
    device.wait(in_flight, &mut output).expect("a program in flight is not let go of");
    assert_eq!(output, StepOutput::Tokens(vec![6]));
    device.release(first);
    assert!(matches!(device.submit(first, &step(&[5], 1)), Err(DeviceError::Misuse(_))));
    assert_eq!(device.profile(first, true), None);
    assert!(device.memory().used < used);
    assert_eq!(tokens(device.run(second, &step(&[5], 1)).expect("runs")), [7]);
    device.release(second);
    // Their kernels went too, and come again.
    let third = prepare(&mut device, 3);
    assert!(third != first && third != second);
    assert_eq!(tokens(device.run(third, &step(&[5], 1)).expect("runs")), [8]);
    no_messages(&device);
}

#[test]
fn kv_pages_start_as_zeros_persist_and_are_copied() {
    let Some(mut device) = device(Options::default()) else { return };
    let plans = small(&mut device, 3);
    let page = plans.kv.bytes / 6;
    let words = page as u32 / 4;
    let area = plans.kv.layers[0];
    let to_output = |from: u64| {
        let entries = vec![launch(1, span(Buffer::Kv, from, page), span(Buffer::Output, 0, page), words)];
        plans.plan(1, 1, entries, 0, page)
    };
    let weight = span(Buffer::Weight(WeightId(0)), 0, page.min(64 * 32 * 4));
    let fill = vec![launch(1, weight, span(Buffer::Kv, area.v + page, page), words)];
    let fill = device.prepare(&plans.plan(1, 0, fill, 0, 0), &mut |_| {}).expect("prepares");
    let [v0, v1, v2] = [0, 1, 2].map(|p| device.prepare(&to_output(area.v + p * page), &mut |_| {}).expect("prepares"));
    let k2 = device.prepare(&to_output(area.k + 2 * page), &mut |_| {}).expect("prepares");
    let read = |device: &mut VulkanDevice, program| tokens(device.run(program, &step(&[0], 1)).expect("runs"));
    assert!(read(&mut device, v1).iter().all(|w| *w == 0));
    assert_eq!(device.run(fill, &step(&[0], 0)).expect("runs"), StepOutput::None);
    let written = read(&mut device, v1);
    assert!(written.iter().any(|w| *w != 0));
    device.copy_pages(&[(1, 2)]).expect("copies");
    assert_eq!(read(&mut device, v2), written);
    assert!(read(&mut device, v0).iter().all(|w| *w == 0), "page 0 is untouched");
    assert!(read(&mut device, k2).iter().all(|w| *w == 0), "K was zero and is copied as zero");
    assert!(matches!(device.copy_pages(&[(0, 3)]), Err(DeviceError::Misuse(_))));
    no_messages(&device);
}

#[test]
fn kernels_come_from_the_cache_the_second_time() {
    let folder = std::env::temp_dir().join(format!("zinc-vulkan-cache-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    let options = Options { cache: Some(folder.clone()), ..Options::default() };
    let counts = |options: &Options| {
        let mut device = device(options.clone())?;
        let plans = small(&mut device, 1);
        let bytes = LANES as u64 * 4;
        let entries = vec![launch(0, span(Buffer::Weight(WeightId(0)), 0, bytes), span(Buffer::Output, 0, bytes), 5)];
        let plan = plans.plan(1, 1, entries, 0, bytes);
        let mut last = None;
        let program = device.prepare(&plan, &mut |p| last = Some(p)).expect("prepares");
        let out = tokens(device.run(program, &step(&[0], 1)).expect("runs"));
        let again = device.prepare(&plan, &mut |p| last = last.or(Some(p))).expect("prepares");
        assert_eq!(tokens(device.run(again, &step(&[0], 1)).expect("runs")), out);
        no_messages(&device);
        match last {
            Some(Progress::Compile { done: 2, total: 2, cached }) => Some((cached, out)),
            other => panic!("{other:?}"),
        }
    };
    let Some((cached, first)) = counts(&options) else { return };
    assert_eq!(cached, 0);
    assert_eq!(counts(&options), Some((2, first.clone())));
    for file in std::fs::read_dir(folder.join("kernels")).expect("a folder").flatten() {
        let mut bytes = std::fs::read(file.path()).expect("reads");
        let middle = bytes.len() - 1;
        bytes[middle] ^= 1;
        std::fs::write(file.path(), bytes).expect("writes");
    }
    assert_eq!(counts(&options), Some((0, first.clone())), "damaged entries are misses");
    assert_eq!(counts(&Options::default()), Some((0, first)), "no folder, no cache");
    let _ = std::fs::remove_dir_all(&folder);
}

/// Waits for a plan that is prepared ahead.
fn wait_ahead(device: &mut VulkanDevice, plan: &Arc<Plan>) {
    while !device.prepare_ahead(plan) {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

#[test]
fn a_plan_can_be_prepared_ahead_while_steps_run() {
    let Some(mut device) = device(Options::default()) else { return };
    let plans = small(&mut device, 1);
    let bytes = LANES as u64 * 4;
    let (inputs, out) = (plans.plan(LANES, LANES, vec![], 0, bytes).inputs.span(Input::Tokens), Buffer::Output);
    let add = |scratch: u64, n| {
        let between = span(Buffer::Scratch, scratch - bytes, bytes);
        let entries = vec![
            launch(0, span(Buffer::Inputs, inputs.0, bytes), between, n),
            Entry::Barrier,
            launch(0, between, span(out, 0, bytes), 100),
        ];
        plans.plan(LANES, LANES, entries, scratch, bytes)
    };
    let first = device.prepare(&add(1 << 10, 1), &mut |_| {}).expect("prepares");
    let input: Vec<u32> = (0..PAGE_TOKENS).collect();
    let expect = |output: &StepOutput, n: u32| {
        let sums: Vec<u32> = input.iter().map(|t| t + n + 100).collect();
        assert!(matches!(output, StepOutput::Tokens(tokens) if *tokens == sums), "{output:?}");
    };
    let rows = step(&input, PAGE_TOKENS);
    let mut output = StepOutput::None;
    // A plan with more scratch is prepared while a step is in flight; both steps give what they should.
    let later = add(1 << 20, 2);
    let flying = device.submit(first, &rows).expect("submits");
    wait_ahead(&mut device, &later);
    let mut reports = vec![];
    let second = device.prepare(&later, &mut |p| reports.push(p)).expect("prepares");
    assert!(matches!(reports.last(), Some(Progress::Compile { done: 2, total: 2, .. })), "{reports:?}");
    let next = device.submit(second, &rows).expect("submits");
    device.wait(flying, &mut output).expect("runs");
    expect(&output, 1);
    device.wait(next, &mut output).expect("runs");
    expect(&output, 2);
    output = device.run(first, &rows).expect("runs again, with the larger scratch");
    expect(&output, 1);
    // One that nobody comes for gives way to the next.
    wait_ahead(&mut device, &add(1 << 11, 3));
    let third = add(1 << 11, 4);
    wait_ahead(&mut device, &third);
    let third = device.prepare(&third, &mut |_| {}).expect("prepares");
    expect(&device.run(third, &rows).expect("runs"), 4);
    no_messages(&device);
}

#[test]
fn what_goes_wrong_ahead_is_told_when_the_plan_is_prepared() {
    let Some(mut device) = device(Options::default()) else { return };
    let mut plans = small(&mut device, 1);
    let bytes = LANES as u64 * 4;
    let entries = vec![launch(0, span(Buffer::Weight(WeightId(0)), 0, bytes), span(Buffer::Output, 0, bytes), 5)];
    // More lanes than any device has.
    plans.kernels = vec![Builder::new("wide", 1 << 20, device.caps().subgroup_size).finish()];
    let wide = plans.plan(1, 1, entries, 0, bytes);
    wait_ahead(&mut device, &wide);
    for _ in 0..2 {
        let refused = device.prepare(&wide, &mut |_| {});
        assert!(matches!(&refused, Err(DeviceError::Unsupported(e)) if e.contains("wide")), "{refused:?}");
    }
    no_messages(&device);
}

#[test]
fn a_device_can_be_closed_while_it_prepares_ahead() {
    for _ in 0..3 {
        let Some(mut device) = device(Options::default()) else { return };
        let mut plans = small(&mut device, 1);
        let size = device.caps().subgroup_size;
        plans.kernels = (0..64)
            .map(|i| {
                let b = Builder::new("store", LANES, size);
                let y = b.arg("y", ArgKind::Write);
                b.store(y, (b.tile(0) * LANES + b.local_id() + i) * 4, b.local_id() + i, 4);
                b.finish()
            })
            .collect();
        let _ = device.prepare_ahead(&plans.plan(1, 1, vec![], 0, 4));
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let Some(mut device) = device(Options::default()) else { return };
    let plans = small(&mut device, 1);
    let bytes = LANES as u64 * 4;
    let (w, out) = (span(Buffer::Weight(WeightId(0)), 0, bytes), span(Buffer::Output, 0, bytes));
    let race = vec![launch(0, w, out, 1), launch(0, w, out, 2)];
    let refused = device.prepare(&plans.plan(1, 1, race, 0, bytes), &mut |_| {});
    assert!(matches!(refused, Err(DeviceError::Unsupported(_))), "{refused:?}");
    let Entry::Launch(mut native) = launch(0, w, out, 1) else { unreachable!() };
    native.kernel = None;
    let refused = device.prepare(&plans.plan(1, 1, vec![Entry::Launch(native)], 0, bytes), &mut |_| {});
    assert!(matches!(refused, Err(DeviceError::Unsupported(_))), "{refused:?}");
    let good = device.prepare(&plans.plan(1, 1, vec![launch(0, w, out, 1)], 0, bytes), &mut |_| {}).expect("prepares");
    let refused = device.run(good, &step(&[0, 1], 1));
    assert!(matches!(refused, Err(DeviceError::Step(_))), "{refused:?}");
    let (total, graph) = (device.memory().total, plans.graph.clone());
    let pages = (total / KvLayout::new(&graph, KvType::F32, 1).bytes) as u32 + 1;
    let huge = Arc::new(KvLayout::new(&graph, KvType::F32, pages));
    let source = Source(vec![noise(64 * 32 * 4, 9)]);
    let refused = device.load(&graph, &huge, &source, &mut |_| {});
    assert!(matches!(refused, Err(DeviceError::OutOfMemory { .. })), "{refused:?}");
    let missing = device.load(&graph, &plans.kv, &Source(vec![]), &mut |_| {});
    assert!(matches!(&missing, Err(e) if e.to_string().contains("w.weight")), "{missing:?}");
    assert!(matches!(device.run(good, &step(&[0], 1)), Err(DeviceError::Misuse(_))));
    no_messages(&device);
}
