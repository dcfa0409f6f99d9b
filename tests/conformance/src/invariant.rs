//! The batch-invariant mode: the logits of a token have the same bits alone, beside other sequences, in any plan, and
//! however its prompt is cut into steps.

use crate::{Chunk, Driver, Fixture};
use zinc_compiler::Choices;
use zinc_ir::device::Device;
use zinc_ir::plan::{KvType, StepOutput, Tail};

/// A token sequence that is not the fixture's, for contexts longer than its prompt.
fn tokens(count: u32, seed: u32) -> Vec<u32> {
    (0..count).map(|i| (i * i + 7 * i + 3 + seed * 31) % 300).collect()
}

/// Logits of a step whose plan has `rows` rows; none of padding.
fn logits(driver: &mut Driver<'_>, chunks: &[Chunk<'_>], rows: usize) -> Vec<f32> {
    match driver.step(chunks, rows as u32, Tail::Logits) {
        StepOutput::Logits(logits) => logits,
        other => panic!("asked for logits, got {other:?}"),
    }
}

/// Logits of the first sequence, alone, in steps of `sizes` rows again and again; each plan has `spare` rows more.
fn alone(driver: &mut Driver<'_>, tokens: &[u32], sizes: &[usize], spare: usize) -> Vec<f32> {
    driver.clear(0);
    let (mut all, mut rest, mut sizes) = (vec![], tokens, sizes.iter().cycle());
    while !rest.is_empty() {
        let size = *sizes.next().expect("a size");
        let (now, later) = rest.split_at(size.min(rest.len()));
        all.extend(logits(driver, &[Chunk { sequence: 0, tokens: now }], size + spare));
        rest = later;
    }
    all
}

/// The same with two other sequences in each step, which take turns to be first, one of them with single tokens.
fn together(driver: &mut Driver<'_>, tokens: &[u32], others: [&[u32]; 2]) -> Vec<f32> {
    (0..3).for_each(|s| driver.clear(s));
    let (mut all, mut rest, mut done) = (vec![], tokens, 0);
    for step in 0.. {
        let (now, later) = rest.split_at((3 + step % 5).min(rest.len()));
        let mut chunks = [
            Chunk { sequence: 0, tokens: now },
            Chunk { sequence: 1, tokens: &others[0][done..done + step % 4] },
            Chunk { sequence: 2, tokens: &others[1][step..=step] },
        ];
        done += step % 4;
        chunks.rotate_left(step % 3);
        let before: usize = chunks.iter().take_while(|c| c.sequence != 0).map(|c| c.tokens.len()).sum();
        let rows = chunks.iter().map(|c| c.tokens.len()).sum();
        let got = logits(driver, &chunks, rows);
        let width = got.len() / rows;
        all.extend(&got[before * width..(before + now.len()) * width]);
        rest = later;
        if rest.is_empty() {
            return all;
        }
    }
    unreachable!("the sequence ends")
}

fn equal(what: &str, got: &[f32], expected: &[f32]) {
    assert_eq!(got.len(), expected.len(), "{what}");
    let differ = got.iter().zip(expected).filter(|(a, b)| a.to_bits() != b.to_bits()).count();
    assert!(differ == 0, "{what}: {differ} of {} logits differ", got.len());
}

/// `count` tokens of a fixture's model, in steps of each of these sizes, in plans of a multiple of `spare` rows more, and
/// beside other sequences.
pub fn invariant(
    device: &mut dyn Device,
    path: &str,
    choices: Choices,
    kv: KvType,
    count: u32,
    sizes: &[&[usize]],
    spare: usize,
) {
    let f = Fixture::open(path);
    let choices = Choices { invariant: true, ..choices };
    let (own, others) = (tokens(count, 0), [tokens(2 * count, 1), tokens(count, 2)]);
    let what = format!("{path}, {:?}, KV {kv:?}, {}", choices.act, device.description());
    let mut expected = vec![];
    // In a plan for another context, too.
    for context in [count, count + 256] {
        let mut driver = Driver::new(device, &f.graph, &f.weights, kv, choices.clone(), 3, context);
        for (i, sizes) in sizes.iter().enumerate() {
            let got = alone(&mut driver, &own, sizes, if context == count { 0 } else { i * spare });
            if expected.is_empty() {
                expected = got;
                continue;
            }
            equal(&format!("{what}: steps of {sizes:?} rows, context {context}"), &got, &expected);
        }
    }
    let mut driver = Driver::new(device, &f.graph, &f.weights, kv, choices, 3, 2 * count);
    let got = together(&mut driver, &own, [&others[0], &others[1]]);
    equal(&format!("{what}: beside others"), &got, &expected);
}
