//! `zinc logits`: every position's logits, for comparison with other implementations.

use crate::args::{ComputeArgs, ModelArgs};
use crate::commands::detokenize::parse_ids;
use crate::interrupt::Interrupt;
use crate::output::say;
use crate::progress::{Meter, Unit};
use crate::prompt::read_file;
use crate::session::{Needs, Session};
use anyhow::{Context, Result, bail};
use clap::Args;
use safetensors::tensor::{Dtype, TensorView, serialize};
use std::path::PathBuf;
use zinc_engine::{Event, Finish, Request};

/// Writes the logits of every position as `logits` [tokens, vocabulary], F32, in a safetensors file.
#[derive(Args, Debug)]
pub(crate) struct Arguments {
    #[command(flatten)]
    model: ModelArgs,
    /// Token ids: a JSON array, or numbers separated by spaces
    #[arg(long, value_name = "FILE")]
    tokens: PathBuf,
    /// Where to write
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    #[command(flatten)]
    compute: ComputeArgs,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let ids = parse_ids(&read_file(&arguments.tokens)?)?;
    let interrupt = Interrupt::install()?;
    let needs = Needs::Exactly(ids.len().max(1) as u32);
    let mut session = Session::open(&arguments.model, &arguments.compute, needs, &interrupt)?;
    let rows = ids.len();
    let logits = all_logits(&mut session, ids, 0, &interrupt)?;
    let width = session.engine.vocabulary() as usize;
    let bytes: Vec<u8> = logits.iter().flat_map(|x| x.to_le_bytes()).collect();
    let view = TensorView::new(Dtype::F32, vec![rows, width], &bytes)?;
    let file = serialize([("logits", view)], None)?;
    // Written in place: `serialize_to_file` would put a new file, readable by its owner only, where a link or even
    // /dev/null is.
    std::fs::write(&arguments.output, file).with_context(|| format!("cannot write {}", arguments.output.display()))?;
    if logits.iter().any(|x| x.is_nan()) {
        say!("warning: some logits are no numbers; the model file may be damaged");
    }
    say!("wrote {rows} x {width} logits to {}", arguments.output.display());
    Ok(())
}

/// The logits after every token from position `from` on, row after row.
pub(crate) fn all_logits(session: &mut Session, ids: Vec<u32>, from: u32, interrupt: &Interrupt) -> Result<Vec<f32>> {
    let (first, total) = (from as u64, ids.len() as u64);
    let request = Request { prompt: ids, predict: Some(0), logits_from: Some(from), ..Request::default() };
    session.engine.submit(request)?;
    let mut all = vec![];
    let mut meter = Meter::new();
    let mut rows = first;
    while !session.engine.is_idle() {
        session.engine.prepare_step(&mut |p| meter.device(p))?;
        for event in session.engine.step(&mut |_| ())? {
            match event {
                Event::Logits { logits, .. } => {
                    all.extend_from_slice(&logits);
                    rows += 1;
                }
                Event::Finished { reason: Finish::NoNumbers, .. } => bail!("the model gave no numbers as logits"),
                Event::Started { .. } | Event::Finished { .. } | Event::Token { .. } | Event::Hidden { .. } => {}
            }
        }
        meter.show("computing", Unit::Pieces, rows, total);
        interrupt.check()?;
    }
    Ok(all)
}
