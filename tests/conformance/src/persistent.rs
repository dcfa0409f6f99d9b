//! All layers of a model as one persistent launch: the same numbers as its separate launches, bit for bit.

use crate::{Driver, Fixture};
use std::sync::Arc;
use zinc_compiler::{Choices, Tuned, persistent, tunables};
use zinc_ir::device::{Caps, Device};
use zinc_ir::graph::Graph;
use zinc_ir::plan::{ActPrecision, Bucket, Entry, KvLayout, KvType, Plan, Tail};

/// The choices with cuts of the largest workgroups that `caps` allows: the kernels of one launch must be equal in it.
pub fn even_cuts(graph: &Arc<Graph>, kv: &Arc<KvLayout>, bucket: Bucket, caps: &Caps, choices: Choices) -> Choices {
    let subgroups = caps.max_workgroup / caps.subgroup_size;
    let tunables = tunables(graph, kv, bucket, caps, &choices).expect("the plan compiles");
    let largest = tunables.into_iter().filter_map(|t| {
        let cut = t.cuts.all.into_iter().find(|cut| cut.subgroups == subgroups)?;
        Some((t.cuts.key, cut))
    });
    Choices { tuned: Arc::new(largest.collect::<Tuned>()), ..choices }
}

/// Tokens of context for [`layers_as_one`]: with more than 256 attention is split, and the last tile merges. Tiles that
/// count each other need the workgroup to themselves: not where attention's is smaller than others.
pub fn persistent_context(caps: &Caps) -> u32 {
    if caps.max_workgroup > 128 { 256 } else { 512 }
}

/// The plan with the launches of its layers as one of `workgroups` tiles.
pub fn layers_as_one(plan: &Plan, workgroups: u32) -> Plan {
    let in_layer = |entry: &Entry| matches!(entry, Entry::Launch(l) if l.layer != u32::MAX);
    let first = plan.entries.iter().position(in_layer).expect("a layer");
    let last = plan.entries.iter().rposition(in_layer).expect("a layer");
    persistent(plan, first..last + 1, workgroups).unwrap_or_else(|e| panic!("{e}"))
}

/// Logits of the first `rows` tokens of a model's prompt, one a step, with plans for `caps` and [`even_cuts`]: by single
/// launches, and by a persistent one for each number of workgroups.
pub fn persistent_equals_launches(
    device: &mut dyn Device,
    path: &str,
    caps: &Caps,
    act: ActPrecision,
    workgroups: &[u32],
    rows: usize,
) {
    let f = Fixture::open(path);
    let kv = Arc::new(KvLayout::new(&f.graph, KvType::F16, 16));
    let context = persistent_context(caps);
    let bucket = Bucket { tokens: 1, outputs: 1, context, sequences: 1, tail: Tail::Logits };
    let choices = even_cuts(&f.graph, &kv, bucket, caps, Choices { act, ..Choices::default() });
    let mut driver = Driver::new(device, &f.graph, &f.weights, KvType::F16, choices, 1, bucket.context);
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
