//! Tokens that the device chooses itself: the same as chosen on the host, and named by the next step before anyone has
//! read them.

use crate::{Chunk, Driver, Fixture};
use std::sync::Arc;
use zinc_compiler::Choices;
use zinc_ir::device::{Device, WeightSource};
use zinc_ir::graph::{Graph, WeightId};
use zinc_ir::plan::{KvType, Step, StepOutput, Tail};
use zinc_ir::quant;
use zinc_ir::sample::{Draw, pick};

/// Draws of all kinds, each with another random number.
fn draws(from: usize, count: usize) -> Vec<Draw> {
    let draw = |i: usize| {
        let unit = (i * 7919 % 4096) as f32 / 4096.0;
        let plain = Draw { unit, top_k: 40, ..Draw::GREEDY };
        match i % 6 {
            0 => plain,
            1 => Draw { inverse_temperature: 1.0 / 1.7, top_p: 0.9, ..plain },
            2 => Draw { inverse_temperature: 1.0 / 0.6, min_p_log: 0.05f32.ln(), ..plain },
            3 => Draw { inverse_temperature: 1e-30, top_k: 64, ..plain },
            4 => Draw { inverse_temperature: 1.0 / 0.8, top_p: 0.5, min_p_log: 0.1f32.ln(), top_k: 3, ..plain },
            _ => Draw::GREEDY,
        }
    };
    (from..from + count).map(draw).collect()
}

/// What the host draws from the best candidates of each row.
fn drawn_on_host(output: StepOutput, draws: &[Draw]) -> Vec<u32> {
    let StepOutput::Best { k, tokens, logits } = output else { panic!("asked for the best, got {output:?}") };
    let rows = tokens.chunks_exact(k).zip(logits.chunks_exact(k)).zip(draws);
    rows.map(|((tokens, logits), draw)| pick(logits, draw).map_or(u32::MAX, |i| tokens[i])).collect()
}

fn tokens(output: StepOutput) -> Vec<u32> {
    match output {
        StepOutput::Tokens(tokens) | StepOutput::Mixed { tokens, .. } => tokens,
        other => panic!("asked for tokens, got {other:?}"),
    }
}

/// Two sequences, whose rows change places in every step, with two steps in flight; against steps that are each read
/// before the next, sampled on the host.
pub fn chained_equals_unchained(device: &mut dyn Device, path: &str, steps: usize) {
    let f = Fixture::open(path);
    let prompts = [&f.prompt[..7], &f.prompt[5..14]];
    let mut driver = Driver::new(device, &f.graph, &f.weights, KvType::F16, Choices::default(), 2, 64);
    for tail in [Tail::Greedy, Tail::Sample(64), Tail::Mixed { candidates: 64, logits: 1 }] {
        let apart = |n: usize| if tail == Tail::Greedy { vec![Draw::GREEDY; n] } else { draws(n, n) };
        let expected = unchained(&mut driver, prompts, steps, &apart);
        let got = chained(&mut driver, prompts, steps, tail, &apart);
        assert_eq!(got, expected, "{path}, {tail:?}");
    }
}

/// In which order the sequences stand in a step.
fn order(step: usize) -> [usize; 2] {
    if step.is_multiple_of(2) { [0, 1] } else { [1, 0] }
}

fn unchained(
    driver: &mut Driver<'_>,
    prompts: [&[u32]; 2],
    steps: usize,
    draws: &dyn Fn(usize) -> Vec<Draw>,
) -> Vec<[u32; 2]> {
    (0..2).for_each(|s| driver.clear(s));
    let mut next = [0; 2];
    let mut all = vec![];
    for step in 0..=steps {
        let order = order(step);
        let chunks = order.map(|s| Chunk { sequence: s, tokens: if step == 0 { prompts[s] } else { &next[s..=s] } });
        let rows: usize = chunks.iter().map(|c| c.tokens.len()).sum();
        let chosen = drawn_on_host(driver.step(&chunks, rows as u32, Tail::Best(64)), &draws(rows));
        next[order[0]] = chosen[chunks[0].tokens.len() - 1];
        next[order[1]] = chosen[rows - 1];
        all.push(next);
    }
    all
}

fn chained(
    driver: &mut Driver<'_>,
    prompts: [&[u32]; 2],
    steps: usize,
    tail: Tail,
    draws: &dyn Fn(usize) -> Vec<Draw>,
) -> Vec<[u32; 2]> {
    (0..2).for_each(|s| driver.clear(s));
    let mut all = vec![];
    // Output row of each sequence in the step before.
    let mut rows_of = [0; 2];
    let mut before = None;
    for step in 0..=steps {
        let order = order(step);
        let names = rows_of.map(|row| [Step::chained(row as u32)]);
        let chunks = order.map(|s| Chunk { sequence: s, tokens: if step == 0 { prompts[s] } else { &names[s] } });
        let rows: usize = chunks.iter().map(|c| c.tokens.len()).sum();
        let draws = if tail == Tail::Greedy { vec![] } else { draws(rows) };
        rows_of[order[0]] = chunks[0].tokens.len() - 1;
        rows_of[order[1]] = rows - 1;
        let ticket = driver.submit(&chunks, rows as u32, tail, draws);
        if let Some((ticket, rows)) = before.replace((ticket, rows_of)) {
            let got = tokens(driver.wait(ticket));
            all.push(rows.map(|row: usize| got[row]));
        }
    }
    let (ticket, rows) = before.expect("there were steps");
    let got = tokens(driver.wait(ticket));
    all.push(rows.map(|row| got[row]));
    all
}

/// A head over a vocabulary in which many rows are equal, some of them the best.
struct Repeating {
    vocabulary: u32,
    table: Vec<u8>,
}

const WIDTH: u32 = 32;

impl Repeating {
    fn new(vocabulary: u32) -> Repeating {
        let value = |row: u32, col: u32| ((row % 997) * 31 + col * 17) % 103;
        let values = (0..vocabulary).flat_map(|row| (0..WIDTH).map(move |col| value(row, col) as f32 / 64.0 - 0.8));
        Repeating { vocabulary, table: values.flat_map(f32::to_le_bytes).collect() }
    }

    fn graph(&self) -> Arc<Graph> {
        let mut g = Graph::new();
        let table = g.weight("table", self.vocabulary, WIDTH, quant::F32);
        let x = g.embed(table);
        let x = g.select_rows(x);
        let x = g.matmul(x, table);
        g.set_logits(x);
        Arc::new(g)
    }
}

impl WeightSource for Repeating {
    fn bytes(&self, _: WeightId) -> Option<&[u8]> {
        Some(&self.table)
    }
}

/// All tails choose from the same logits, over a vocabulary of many workgroups, with ties.
pub fn tails_agree(device: &mut dyn Device, vocabulary: u32) {
    let source = Repeating::new(vocabulary);
    let graph = source.graph();
    let mut driver = Driver::new(device, &graph, &source, KvType::F32, Choices::default(), 1, 64);
    let ids = [5, vocabulary - 1, 1000, 998, 77];
    let rows = ids.len();
    let mut run = |tail: Tail| {
        driver.clear(0);
        let draws = if tail.draws() { draws(3, rows) } else { vec![] };
        let ticket = driver.submit(&[Chunk { sequence: 0, tokens: &ids }], rows as u32, tail, draws);
        driver.wait(ticket)
    };
    let StepOutput::Logits(logits) = run(Tail::Logits) else { panic!("asked for logits") };
    let ranked = logits.chunks_exact(vocabulary as usize).map(|row| {
        let mut all: Vec<(u32, f32)> = row.iter().enumerate().map(|(i, x)| (i as u32, *x)).collect();
        all.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        assert_eq!(all[0].1, all[1].1, "the best logit is there twice");
        all.truncate(64);
        all
    });
    let ranked: Vec<Vec<(u32, f32)>> = ranked.collect();
    let greedy: Vec<u32> = ranked.iter().map(|row| row[0].0).collect();
    assert_eq!(tokens(run(Tail::Greedy)), greedy, "{vocabulary}: greedy");
    let (best, values) = ranked.concat().into_iter().unzip();
    let expected = StepOutput::Best { k: 64, tokens: best, logits: values };
    assert_eq!(run(Tail::Best(64)), expected, "{vocabulary}: best");
    let drawn = drawn_on_host(expected, &draws(3, rows));
    assert_eq!(tokens(run(Tail::Sample(64))), drawn, "{vocabulary}: sampled");
    for (candidates, count, tokens) in [(64, 2, drawn), (0, rows, greedy)] {
        let logits = logits[..count * vocabulary as usize].to_vec();
        let mixed = Tail::Mixed { candidates, logits: count as u32 };
        assert_eq!(run(mixed), StepOutput::Mixed { tokens, logits }, "{vocabulary}: {mixed:?}");
    }
}
