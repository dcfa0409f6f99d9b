//! Two layers as one persistent kernel: it gives what the separate launches give, and needs each of its grid barriers.

use std::path::PathBuf;
use std::sync::Arc;
use zinc_compiler::{Choices, PersistentError, compile, persistent};
use zinc_conformance::{
    Chunk, Driver, Fixture, InterpretedDevice, even_cuts, gpu_caps, layers_as_one, persistent_context,
    persistent_equals_launches,
};
use zinc_ir::device::Caps;
use zinc_ir::kernel::{Kernel, Op, Value, verify};
use zinc_ir::plan::{ActPrecision, Bucket, KvLayout, KvType, Launch, Plan, Tail};

/// Models, subgroup sizes and largest workgroups. Kernels of smaller ones run side by side: the router of the fourth,
/// attention in the last.
const CASES: &[(&str, u32, u32, ActPrecision)] = &[
    ("arch/llama", 32, 32, ActPrecision::F32),
    ("arch/llama", 8, 32, ActPrecision::F16),
    ("quant/Q4_K", 16, 32, ActPrecision::Q8),
    ("arch/qwen3moe", 16, 32, ActPrecision::F32),
    ("arch/llama", 32, 256, ActPrecision::F32),
];

fn caps(subgroup: u32, max_workgroup: u32) -> Caps {
    Caps { max_workgroup, ..gpu_caps(subgroup) }
}

/// A model, and the plan of single tokens.
fn case(path: &str, caps: &Caps, choices: Choices, even: bool) -> (Fixture, Choices, Plan) {
    let f = Fixture::open(path);
    let kv = Arc::new(KvLayout::new(&f.graph, KvType::F16, 16));
    let context = persistent_context(caps);
    let bucket = Bucket { tokens: 1, outputs: 1, context, sequences: 1, tail: Tail::Greedy };
    let choices = if even { even_cuts(&f.graph, &kv, bucket, caps, choices) } else { choices };
    let plan = compile(&f.graph, &kv, bucket, caps, &choices).expect("compiles");
    (f, choices, plan)
}

fn even_plan(path: &str, caps: &Caps, act: ActPrecision) -> Plan {
    case(path, caps, Choices { act, ..Choices::default() }, true).2
}

fn plan(path: &str, caps: &Caps) -> Plan {
    case(path, caps, Choices::default(), false).2
}

fn the_launch(plan: &Plan) -> &Launch {
    plan.launches().find(|l| l.template == "persistent").expect("a persistent launch")
}

fn the_kernel(plan: &Plan) -> &Kernel {
    &plan.kernels[the_launch(plan).kernel.expect("it has a kernel").0 as usize]
}

fn is_grid_barrier(kernel: &Kernel, v: Value) -> bool {
    matches!(kernel.op(v), Op::GridBarrier { .. })
}

#[test]
fn one_launch_gives_what_many_give() {
    for (path, subgroup, max_workgroup, act) in CASES {
        let caps = caps(*subgroup, *max_workgroup);
        for seed in [1, 2] {
            let mut device = InterpretedDevice::new(caps.clone(), seed);
            persistent_equals_launches(&mut device, path, &caps, *act, &[1, 3, 8], 2);
        }
    }
}

/// From the embedding to the token: one launch per token, besides the one that clears its counter.
#[test]
fn a_whole_step_is_one_launch() {
    for (path, subgroup) in [("arch/llama", 8), ("arch/qwen3moe", 16)] {
        let caps = caps(subgroup, subgroup);
        let mut device = InterpretedDevice::new(caps.clone(), 4);
        let (f, choices, _) = case(path, &caps, Choices::default(), true);
        let mut driver = Driver::new(&mut device, &f.graph, &f.weights, KvType::F16, choices, 1, 64);
        driver.replan(caps.clone(), |plan| plan);
        let expected = driver.greedy(&f.prompt[..2], 1, 3);
        driver.clear(0);
        driver.replan(caps, |plan| {
            let one = persistent(&plan, 0..plan.entries.len(), 5).unwrap_or_else(|e| panic!("{e}"));
            assert_eq!((one.launches().count(), one.barriers()), (2, 1));
            one
        });
        assert_eq!(driver.greedy(&f.prompt[..2], 1, 3), expected, "{path}");
    }
}

#[test]
fn the_layers_are_one_launch_with_their_bodies() {
    for (path, subgroup, max_workgroup, act) in CASES {
        let before = even_plan(path, &caps(*subgroup, *max_workgroup), *act);
        let after = layers_as_one(&before, 3);
        let layers = before.launches().filter(|l| l.layer != u32::MAX).count();
        assert_eq!(
            after.launches().count(),
            before.launches().count() - layers + 2,
            "{path}: the launch and the clear"
        );
        let (launch, kernel) = (the_launch(&after), the_kernel(&after));
        assert_eq!((launch.grid, verify(kernel)), ([3, 1, 1], Ok(())), "{path}");
        let barriers = kernel.body.iter().filter(|v| is_grid_barrier(kernel, **v)).count();
        assert_eq!(barriers, layers - 1, "{path}: every launch of a step needs the one before");
        // Weights keep their promise of being read only, values lose it.
        let loads = |read_only: bool| {
            let of = move |op: &&Op| matches!(op, Op::Load { read_only: r, .. } if *r == read_only);
            let bases = kernel.ops.iter().filter(of).filter_map(|op| match op {
                Op::Load { base, .. } => Some(&kernel.args[kernel.argument_of(*base)? as usize].name),
                _ => None,
            });
            bases.cloned().collect::<std::collections::BTreeSet<String>>()
        };
        assert!(loads(false).iter().all(|name| name == "scratch" || name.starts_with("kv")), "{path}");
        assert_eq!(loads(false).len(), 5, "{path}: scratch, and K and V of two layers");
        assert!(loads(true).iter().all(|name| name.starts_with("weight") || name == "inputs"), "{path}");
    }
}

/// With the cuts that rules choose, too: the layers of a step of a token, within the device's workgroup memory.
#[test]
fn the_layers_of_every_decode_plan_become_one_launch() {
    for path in ["arch/llama", "arch/qwen2", "arch/qwen3moe", "arch/gemma3", "quant/Q4_K", "quant/Q6_K"] {
        for (i, subgroup) in [4, 8, 16, 32, 64].into_iter().enumerate() {
            let act = [ActPrecision::F32, ActPrecision::F16, ActPrecision::Q8][i % 3];
            let caps = gpu_caps(subgroup);
            let plan = case(path, &caps, Choices { act, ..Choices::default() }, false).2;
            let bytes = the_kernel(&layers_as_one(&plan, 7)).shared_bytes();
            assert!(bytes <= caps.max_shared_bytes, "{path}, {subgroup}: {bytes} bytes of workgroup memory");
        }
    }
}

/// Writes the SPIR-V where the test runner has it validated.
#[test]
fn persistent_kernels_become_spirv() {
    let folder = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/zinc-test/spirv/persistent"));
    std::fs::create_dir_all(&folder).expect("the folder can be made");
    for (i, (path, subgroup, max_workgroup, act)) in CASES.iter().enumerate() {
        let plan = layers_as_one(&even_plan(path, &caps(*subgroup, *max_workgroup), *act), 4);
        for kernel in [the_kernel(&plan), &plan.kernels[0]] {
            let words =
                zinc_spirv::emit(kernel, zinc_spirv::FloatModes::default()).unwrap_or_else(|e| panic!("{path}: {e}"));
            let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
            std::fs::write(folder.join(format!("{i}-{}.spv", kernel.name)), bytes).expect("the file can be written");
        }
    }
}

/// What the interpreter says to one step of a model whose persistent kernel is changed.
fn outcome(path: &str, caps: &Caps, act: ActPrecision, seed: u64, change: impl Fn(&mut Kernel)) -> Result<(), String> {
    let (f, choices, _) = case(path, caps, Choices { act, ..Choices::default() }, true);
    let mut device = InterpretedDevice::new(caps.clone(), seed);
    let mut driver = Driver::new(&mut device, &f.graph, &f.weights, KvType::F16, choices, 1, persistent_context(caps));
    driver.replan(caps.clone(), |plan| {
        let mut plan = layers_as_one(&plan, 3);
        let id = the_launch(&plan).kernel.expect("it has a kernel");
        change(&mut plan.kernels[id.0 as usize]);
        plan
    });
    let chunk = Chunk { sequence: 0, tokens: &f.prompt[..1] };
    driver.try_submit(&[chunk], 1, Tail::Greedy, vec![]).map(|_| ()).map_err(|e| e.to_string())
}

#[test]
fn deleting_any_grid_barrier_is_a_race() {
    for (path, subgroup, max_workgroup, act) in CASES {
        let caps = caps(*subgroup, *max_workgroup);
        let kernel = the_kernel(&layers_as_one(&even_plan(path, &caps, *act), 3)).clone();
        let at = (0..kernel.body.len()).filter(|i| is_grid_barrier(&kernel, kernel.body[*i]));
        for at in at {
            // A tile that reads too early may also find no number, or an expert that does not exist, and fail of that.
            let found = (0..32).any(|seed| {
                let error = outcome(path, &caps, *act, seed, |kernel| {
                    kernel.body.remove(at);
                });
                error.expect_err("a race").contains("race on")
            });
            assert!(found, "{path}, without operation {at}");
        }
    }
}

/// The promises that the fused kernel takes back were really broken.
#[test]
fn a_promise_too_many_is_found() {
    let (path, subgroup, max_workgroup, act) = CASES[0];
    let error = outcome(path, &caps(subgroup, max_workgroup), act, 0, |kernel| {
        for op in &mut kernel.ops {
            if let Op::Load { read_only, .. } = op {
                *read_only = true;
            }
        }
    });
    let error = error.expect_err("a broken promise");
    assert!(error.contains("also loaded as readonly"), "{error}");
}

#[test]
fn what_does_not_become_one_launch_is_refused() {
    let mut odd = plan("arch/llama", &gpu_caps(32));
    let all = 0..odd.entries.len();
    let attention = odd.kernels.iter_mut().find(|k| k.name.starts_with("attention")).expect("one");
    attention.workgroup_size = 96;
    let error = persistent(&odd, all.clone(), 4).map(|_| ()).expect_err("96 lanes do not fit 256 evenly");
    assert!(
        matches!(&error, PersistentError::DifferentWorkgroups { wide_lanes: 256, narrow_lanes: 96, .. }),
        "{error}"
    );
    let error = error.to_string();
    assert!(error.contains("max_workgroup") && error.contains("attention"), "{error}");
    let even = even_plan("arch/llama", &caps(32, 32), ActPrecision::F32);
    for range in [1..2, 3..3, all.end..all.end + 1, 7..usize::MAX] {
        assert!(matches!(persistent(&even, range, 4), Err(PersistentError::NoLaunches(..))));
    }
    assert!(matches!(persistent(&even, 2..5, 0), Err(PersistentError::NoWorkgroups)));
    let native = plan("arch/llama", &Caps { native: true, ..gpu_caps(32) });
    assert!(matches!(persistent(&native, 0..5, 4), Err(PersistentError::NoKernel(_))));
}
