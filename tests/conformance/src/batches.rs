//! Several sequences in one batch, ragged, joining and leaving between steps: each gets the tokens it gets alone.

use crate::{Chunk, Driver, Fixture};
use zinc_compiler::Choices;
use zinc_ir::device::Device;
use zinc_ir::plan::{KvType, StepOutput, Tail};

/// Prompts of different lengths; every sequence's answer is `count` tokens.
fn alone(device: &mut dyn Device, f: &Fixture, prompts: &[&[u32]], count: usize) -> Vec<Vec<u32>> {
    let mut driver = Driver::new(device, &f.graph, &f.weights, KvType::F32, Choices::default(), 1, 64);
    let answer = |prompt: &&[u32]| {
        driver.clear(0);
        driver.greedy(prompt, 4, count)
    };
    prompts.iter().map(answer).collect()
}

/// Sequence i joins at step i; prompts go in pieces of up to 3 tokens beside the others' single tokens.
fn together(device: &mut dyn Device, f: &Fixture, prompts: &[&[u32]], count: usize) -> Vec<Vec<u32>> {
    let n = prompts.len();
    let mut driver = Driver::new(device, &f.graph, &f.weights, KvType::F32, Choices::default(), n as u32, 64);
    let mut fed = vec![0; n];
    let mut answers: Vec<Vec<u32>> = vec![vec![]; n];
    for step in 0.. {
        let mut chunks: Vec<(usize, Vec<u32>)> = vec![];
        for s in 0..n.min(step + 1) {
            let prompt = prompts[s];
            if fed[s] < prompt.len() {
                let piece = &prompt[fed[s]..(fed[s] + 3).min(prompt.len())];
                chunks.push((s, piece.to_vec()));
                fed[s] += piece.len();
            } else if answers[s].len() < count {
                chunks.push((s, vec![*answers[s].last().expect("the prompt's end gave one")]));
            }
        }
        if chunks.is_empty() {
            break;
        }
        let views: Vec<Chunk<'_>> = chunks.iter().map(|(s, t)| Chunk { sequence: *s, tokens: t }).collect();
        let rows: usize = chunks.iter().map(|c| c.1.len()).sum();
        let best = driver.best(&views, (rows as u32).next_power_of_two());
        let mut row = 0;
        for (s, tokens) in &chunks {
            row += tokens.len();
            if fed[*s] == prompts[*s].len() {
                answers[*s].push(best[row - 1]);
            }
        }
    }
    answers
}

/// Three ragged sequences of a model, alone and together.
pub fn batch_equals_solo(device: &mut dyn Device, path: &str) {
    let f = Fixture::open(path);
    let prompts: [&[u32]; 3] = [&f.prompt[..7], &f.prompt[3..5], &f.prompt[8..17]];
    let expected = alone(device, &f, &prompts, 5);
    assert_eq!(together(device, &f, &prompts, 5), expected, "{path}");
}

/// The greedy continuation of a fixture's prompt is transformers'.
pub fn greedy_equals_reference(device: &mut dyn Device, path: &str, choices: Choices, kv: KvType, piece: usize) {
    let f = Fixture::open(path);
    let mut driver = Driver::new(device, &f.graph, &f.weights, kv, choices, 1, 64);
    assert_eq!(driver.greedy(&f.prompt, piece, 16), f.ids("greedy"), "{path}");
}

/// The best candidates of every position are those of its logits.
pub fn best_candidates_are_the_logits_best(device: &mut dyn Device, path: &str, rows: usize) {
    let f = Fixture::open(path);
    let choices = Choices::default();
    let mut driver = Driver::new(device, &f.graph, &f.weights, KvType::F32, choices, 1, 64);
    let prompt = &f.prompt[..rows];
    let logits = driver.logits(prompt, rows);
    for k in [1u32, 40, 64] {
        driver.clear(0);
        let output = driver.step(&[Chunk { sequence: 0, tokens: prompt }], rows as u32, Tail::Best(k));
        let StepOutput::Best { k: got, tokens, logits: values } = output else { panic!("asked for the best") };
        let k = k as usize;
        assert_eq!((got, tokens.len(), values.len()), (k, rows * k, rows * k));
        for (row, logits) in logits.chunks_exact(logits.len() / rows).enumerate() {
            let mut all: Vec<(u32, f32)> = logits.iter().enumerate().map(|(i, x)| (i as u32, *x)).collect();
            all.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
            let mine = row * k..(row + 1) * k;
            let best: Vec<(u32, f32)> =
                tokens[mine.clone()].iter().copied().zip(values[mine].iter().copied()).collect();
            assert_eq!(best, all[..k], "{path}: row {row}, best {k}");
        }
    }
}
