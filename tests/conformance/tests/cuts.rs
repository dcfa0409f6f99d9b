//! What a tuner may choose computes the same: legal cuts of all kernels, in the interpreter.
//!
//! There are up to some four hundred cuts of a kernel; each case takes others of them.

use zinc_compiler::{Choices, Cut};
use zinc_conformance::{FORMATS, Fixture, LongRows, Trial};
use zinc_ir::plan::ActPrecision;

const ACTS: [(ActPrecision, f32); 3] = [(ActPrecision::F32, 1e-5), (ActPrecision::F16, 1e-4), (ActPrecision::Q8, 1e-3)];

fn choices(act: ActPrecision) -> Choices {
    Choices { act, ..Choices::default() }
}

#[test]
fn cuts_of_tiny_models() {
    for (i, name) in ["llama", "qwen2", "qwen3", "gemma3", "qwen3moe"].into_iter().enumerate() {
        let f = Fixture::open(&format!("arch/{name}"));
        for (j, (act, tolerance)) in ACTS.into_iter().enumerate() {
            let subgroup = [4, 8, 16, 32, 64][(i + j) % 5];
            let tokens = &f.prompt[..[1, 3, 2][(i + j) % 3]];
            // Three rows are those of matrix units where there are any.
            let choices = Choices { matrices: false, ..choices(act) };
            let trial = Trial { graph: &f.graph, weights: &f.weights, tokens, subgroup, choices };
            let (tried, worst) = trial.cuts_agree((i + j) % 3, 3, tolerance);
            println!("{name}, {act:?}, subgroups of {subgroup}: {} rounds, off by {worst:.1e}", tried.len());
        }
    }
}

#[test]
fn cuts_of_all_formats() {
    for (i, name) in FORMATS.iter().enumerate() {
        let f = Fixture::open(&format!("quant/{name}"));
        let (subgroup, rows) = ([4, 8, 16, 32, 64][i % 5], 1 + i % 2);
        let (act, tolerance) = ACTS[1];
        let tokens = &f.prompt[..rows];
        let trial = Trial { graph: &f.graph, weights: &f.weights, tokens, subgroup, choices: choices(act) };
        let (tried, worst) = trial.cuts_agree(1 + i, 23, tolerance);
        println!("{name}, subgroups of {subgroup}: {} rounds, off by {worst:.1e}", tried.len());
    }
}

/// Loops that run, with a rest.
#[test]
fn cuts_of_long_rows() {
    for (i, (format, cols)) in [("Q8_0", 2080), ("Q4_K", 3072), ("Q6_K", 1792), ("F16", 1056)].into_iter().enumerate() {
        let model = LongRows::new(format, cols);
        for (act, tolerance) in &ACTS[1..] {
            let tokens = &[3, 5][..1 + i % 2];
            let graph = &model.graph;
            let trial = Trial { graph, weights: &model, tokens, subgroup: [4, 8][i % 2], choices: choices(*act) };
            let (tried, worst) = trial.cuts_agree(1 + i, 9, *tolerance);
            println!("{format} {cols}, {act:?}: {} rounds, off by {worst:.1e}", tried.len());
        }
    }
}

/// Narrow products on matrix units: weights in quads (subgroups of 32) and through shared memory, one tile of rows and two,
/// slices that do not come out even, inputs staged for several steps, weights loaded a step ahead.
#[test]
fn cuts_of_batches() {
    let tokens: Vec<u32> = (0..70).map(|i| i % 8).collect();
    for (i, (format, subgroup, rows)) in
        [("Q4_K", 32, 5), ("Q4_K", 64, 40), ("Q8_0", 32, 40), ("Q6_K", 32, 70), ("Q4_K", 8, 70)].into_iter().enumerate()
    {
        let model = LongRows::new(format, 1280);
        let choices = choices(ActPrecision::F16);
        let trial = Trial { graph: &model.graph, weights: &model, tokens: &tokens[..rows], subgroup, choices };
        let narrow = |t: &zinc_compiler::Tunable| {
            t.cuts.all.iter().any(|c| c.staged > 1) && t.cuts.all.iter().any(|c| c.slices > 1)
        };
        assert!(trial.tunables().iter().any(narrow), "narrow products");
        let most = trial.tunables().iter().map(|t| t.cuts.all.len()).max().unwrap_or(0);
        let (tried, worst) = trial.cuts_agree(1 + i, most / 8, 1e-3);
        let cuts: Vec<&Cut> = tried.iter().flat_map(|tuned| tuned.values()).collect();
        for ahead in [false, true] {
            let has = |what: fn(&Cut) -> bool| cuts.iter().any(|c| c.ahead == ahead && what(c));
            assert!(has(|c| c.staged == 1) && has(|c| c.staged > 1) && has(|c| c.slices > 1), "{tried:?}");
        }
        println!("{format}, {rows} rows, subgroups of {subgroup}: {} rounds, off by {worst:.1e}", tried.len());
    }
}

/// Experts whose inputs and outputs are blocks of integers.
#[test]
fn cuts_of_experts_in_blocks() {
    let graph = zinc_models::synthetic("tiny-moe:q8_0", Some(1)).expect("a shape").0.graph;
    let model = LongRows::of(graph);
    for (act, tolerance) in &ACTS[1..] {
        let trial = Trial { graph: &model.graph, weights: &model, tokens: &[7], subgroup: 8, choices: choices(*act) };
        let blocks = |t: &zinc_compiler::Tunable| t.cuts.key.starts_with("expert") && t.cuts.key.contains(" to ");
        assert!(trial.tunables().iter().any(blocks), "experts that quantize");
        let (tried, worst) = trial.cuts_agree(1, 11, *tolerance);
        println!("experts, {act:?}: {} rounds, off by {worst:.1e}", tried.len());
    }
}

/// An unknown key and an illegal cut change nothing.
#[test]
fn illegal_cuts_are_ignored() {
    let model = LongRows::new("Q8_0", 256);
    let trial = |choices| Trial { graph: &model.graph, weights: &model, tokens: &[1], subgroup: 8, choices };
    let rules = trial(choices(ActPrecision::F16)).tunables();
    let illegal = Cut { subgroups: 3, rows: 5, turns: 0, units: 9, ahead: true, ..Cut::ONE };
    let mut tuned: zinc_compiler::Tuned = rules.iter().map(|t| (t.cuts.key.clone(), illegal)).collect();
    tuned.insert("no such key".into(), illegal);
    let choices = Choices { tuned: tuned.into(), ..choices(ActPrecision::F16) };
    for (got, rule) in trial(choices).tunables().iter().zip(&rules) {
        assert_eq!(got.cuts, rule.cuts);
        assert_eq!(got.cuts.used, got.cuts.all[0]);
    }
}
