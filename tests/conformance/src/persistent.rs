//! All layers of a model as one persistent launch: the same numbers as its separate launches, bit for bit.

use crate::{Driver, Fixture};
use zinc_compiler::{Choices, persistent};
use zinc_ir::device::{Caps, Device};
use zinc_ir::plan::{Entry, KvType, Plan};

/// The plan with the launches of its layers as one of `workgroups` tiles.
pub fn layers_as_one(plan: &Plan, workgroups: u32) -> Plan {
    let in_layer = |entry: &Entry| matches!(entry, Entry::Launch(l) if l.layer != u32::MAX);
    let first = plan.entries.iter().position(in_layer).expect("a layer");
    let last = plan.entries.iter().rposition(in_layer).expect("a layer");
    persistent(plan, first..last + 1, workgroups).unwrap_or_else(|e| panic!("{e}"))
}

/// Logits of the first `rows` tokens of a model's prompt, one a step, with plans for `caps`: by single launches, and by
/// a persistent one for each number of workgroups.
pub fn persistent_equals_launches(
    device: &mut dyn Device,
    path: &str,
    caps: &Caps,
    choices: Choices,
    workgroups: &[u32],
    rows: usize,
) {
    let f = Fixture::open(path);
    // More than 256 tokens of context: attention is split, and merged in a launch of its own.
    let mut driver = Driver::new(device, &f.graph, &f.weights, KvType::F16, choices, 1, 512);
    driver.replan(caps.clone(), |plan| plan);
    let expected: Vec<u32> = driver.logits(&f.prompt[..rows], 1).into_iter().map(f32::to_bits).collect();
    for &workgroups in workgroups {
        driver.clear(0);
        driver.replan(caps.clone(), move |plan| layers_as_one(&plan, workgroups));
        let got: Vec<u32> = driver.logits(&f.prompt[..rows], 1).into_iter().map(f32::to_bits).collect();
        let differ = expected.iter().zip(&got).filter(|(a, b)| a != b).count();
        assert_eq!((got.len(), differ), (expected.len(), 0), "{path}, {workgroups} workgroups");
    }
}
