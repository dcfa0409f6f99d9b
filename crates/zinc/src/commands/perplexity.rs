//! `zinc perplexity`: how well a model predicts a text, by llama.cpp's method.
//!
//! ```text
//! text ─► ids, cut into chunks ─► second half of each: -log p(next token) ─► exp(mean)
//! ```
//!
//! Each chunk starts with an empty cache, and with BOS in place of its first token if the vocabulary wants BOS.

use crate::args::{ComputeArgs, ModelArgs};
use crate::commands::logits::all_logits;
use crate::failure::usage;
use crate::interrupt::Interrupt;
use crate::output::{print, print_line, say};
use crate::prompt;
use crate::session::{Needs, Session, act_name};
use anyhow::{Result, bail};
use clap::Args;
use serde_json::json;
use std::path::PathBuf;
use std::time::Instant;

/// Measures perplexity of a text in chunks of -c tokens (512 unless given).
#[derive(Args, Debug)]
pub(crate) struct Arguments {
    #[command(flatten)]
    model: ModelArgs,
    /// The text; without it, standard input
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Measure only the first N chunks; -1: all
    #[arg(long, default_value_t = -1, value_name = "N", allow_negative_numbers = true)]
    chunks: i64,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    compute: ComputeArgs,
}

/// Sums over predicted tokens.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    count: u64,
    loss: f64,
    loss_squared: f64,
}

impl Sums {
    /// Adds -log p of `token` under these logits.
    fn add(&mut self, logits: &[f32], token: u32) {
        let top = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max) as f64;
        let sum: f64 = logits.iter().map(|x| (*x as f64 - top).exp()).sum();
        let loss = top + sum.ln() - logits[token as usize] as f64;
        self.count += 1;
        self.loss += loss;
        self.loss_squared += loss * loss;
    }

    fn perplexity(&self) -> f64 {
        (self.loss / self.count as f64).exp()
    }

    /// Standard error of the perplexity, from that of the mean loss.
    fn error(&self) -> f64 {
        let mean = self.loss / self.count as f64;
        let variance = self.loss_squared / self.count as f64 - mean * mean;
        (variance.max(0.0) / (self.count.max(2) - 1) as f64).sqrt() * self.perplexity()
    }
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let chunk = arguments.compute.ctx_size.unwrap_or(512) as usize;
    if chunk < 4 {
        return Err(usage(format!("chunks of {chunk} tokens are too short; give -c 4 or more")));
    }
    if arguments.chunks == 0 {
        return Err(usage("--chunks is 0, so there is nothing to measure; give a number of chunks, or -1 for all"));
    }
    let text = prompt::text(None, arguments.file.as_deref())?;
    let interrupt = Interrupt::install()?;
    let needs = Needs::Exactly(chunk as u32);
    let mut session = Session::open(&arguments.model, &arguments.compute, needs, &interrupt)?;
    let ids = session.tokenizer.encode(&text, true, false)?;
    let all = ids.len() / chunk;
    let count = if arguments.chunks < 0 { all } else { all.min(arguments.chunks as usize) };
    if count == 0 {
        bail!("the text has {} tokens, less than one chunk of {chunk}; give a longer text or a smaller -c", ids.len());
    }
    let bos = session.tokenizer.bos().filter(|_| session.tokenizer.adds_bos());
    let start = Instant::now();
    let mut sums = Sums::default();
    let mut running = vec![];
    for (i, chunk) in ids.chunks_exact(chunk).take(count).enumerate() {
        measure(&mut session, chunk, bos, &mut sums, &interrupt)?;
        if !sums.loss.is_finite() {
            bail!("chunk {} has no perplexity: the model's logits are no numbers; the file may be damaged", i + 1);
        }
        running.push(sums.perplexity());
        if !arguments.json {
            print(&format!("[{}]{:.4},", i + 1, sums.perplexity()))?;
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    if arguments.json {
        let value = json!({
            "perplexity": sums.perplexity(),
            "error": sums.error(),
            "running": running,
            "tokens": sums.count,
            "chunks": count,
            "chunk_tokens": chunk,
            "act": act_name(session.act),
            "seconds": seconds,
        });
        print_line(&serde_json::to_string_pretty(&value)?)?;
    } else {
        print_line(&format!("\nFinal estimate: PPL = {:.4} +/- {:.5}", sums.perplexity(), sums.error()))?;
    }
    let rate = (count * chunk) as f64 / seconds;
    say!("{count} chunks of {chunk} tokens, {rate:.1} tokens/s | act {}", act_name(session.act));
    Ok(())
}

/// Adds the losses of a chunk's second half.
fn measure(
    session: &mut Session,
    chunk: &[u32],
    bos: Option<u32>,
    sums: &mut Sums,
    interrupt: &Interrupt,
) -> Result<()> {
    // The last token predicts nothing that is known.
    let mut ids = chunk[..chunk.len() - 1].to_vec();
    if let Some(bos) = bos {
        ids[0] = bos;
    }
    let from = chunk.len() / 2;
    session.engine.forget_prefixes();
    let logits = all_logits(session, ids, from as u32, interrupt)?;
    for (row, next) in logits.chunks_exact(session.engine.vocabulary() as usize).zip(&chunk[from + 1..]) {
        sums.add(row, *next);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uniform_logits_have_the_vocabulary_as_perplexity() {
        let mut sums = Sums::default();
        for token in 0..8 {
            sums.add(&[3.5; 8], token);
        }
        assert!((sums.perplexity() - 8.0).abs() < 1e-9);
        assert!(sums.error() < 1e-6);
    }

    #[test]
    fn the_loss_is_the_log_of_the_softmax() {
        let mut sums = Sums::default();
        sums.add(&[1.0, 2.0, 1000.0], 2);
        assert!(sums.loss.abs() < 1e-12);
        sums.add(&[0.0, 3f32.ln()], 0);
        assert!((sums.loss - 4f64.ln()).abs() < 1e-6);
    }
}
