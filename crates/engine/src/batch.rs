//! A batch: one step's rows, and whose they are.
//!
//! ```text
//! sequence, its rows ─add─► Step { tokens, positions, slots, pages, outputs } + a part per sequence, an output per row of logits
//! ```
//!
//! Parts say how sequences were before, so that a batch that was not run, or failed, can be undone.

use crate::pool::KvPool;
use crate::random::Random;
use crate::sequence::{Sequence, SequenceId};
use zinc_ir::plan::{Bucket, CHAIN_ROWS, PAGE_TOKENS, Step, Tail};

/// One step's work. Its memory serves again for later ones.
#[derive(Debug)]
pub(crate) struct Batch {
    /// Inputs for the device.
    pub(crate) step: Step,
    /// The plan sizes it needs.
    pub(crate) bucket: Bucket,
    /// Sequences in order of their page-table rows.
    pub(crate) parts: Vec<Part>,
    /// For each output row: its sequence's place in `parts`, and the position of the row's token. Rows that the host needs
    /// the logits of come first.
    pub(crate) outputs: Vec<(usize, u32)>,
    /// How many of them those are.
    pub(crate) host_rows: usize,
    /// It is of sequences that want hidden states; and so was the batch before it.
    pub(crate) hidden: bool,
    pub(crate) hidden_before: bool,
}

/// What a sequence has in a batch, and how it was before.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) id: SequenceId,
    /// Token rows.
    pub(crate) rows: usize,
    /// The rows end at this position.
    pub(crate) end: usize,
    /// The sequence's `ahead_row` before.
    pub(crate) ahead_row: u32,
    /// It chooses a token.
    pub(crate) chooses: bool,
    /// The random stream before.
    pub(crate) random: Random,
}

impl Batch {
    pub(crate) fn new() -> Batch {
        let bucket = Bucket { tokens: 0, outputs: 0, context: 0, sequences: 0, tail: Tail::Logits };
        Batch {
            step: Step::default(),
            bucket,
            parts: vec![],
            outputs: vec![],
            host_rows: 0,
            hidden: false,
            hidden_before: false,
        }
    }

    /// Should a batch be built before the result of this one is read? It would be without the sequences whose tokens the
    /// host chooses: not if they are most of them.
    pub(crate) fn can_be_followed(&self) -> bool {
        let outputs = self.outputs.len();
        // Others may have tokens on their way that only the step right behind theirs could name.
        if self.hidden {
            return false;
        }
        let chains = self.bucket.tail.chains() && outputs <= CHAIN_ROWS as usize;
        outputs == 0 || (chains && self.host_rows * 2 <= outputs)
    }

    /// Output rows whose logits the device gives, if it gives any.
    pub(crate) fn logits_rows(&self) -> usize {
        match self.bucket.tail {
            Tail::Mixed { logits, .. } => self.outputs.len().min(logits as usize),
            _ => self.outputs.len(),
        }
    }

    /// For each sequence: the tokens that it had before, and its token rows.
    pub(crate) fn parts(&self) -> impl Iterator<Item = (u32, u32)> {
        self.parts.iter().map(|part| ((part.end - part.rows) as u32, part.rows as u32))
    }

    /// The sequences of [`Batch::parts`].
    pub(crate) fn sequences(&self) -> impl Iterator<Item = SequenceId> {
        self.parts.iter().map(|part| part.id)
    }

    /// Adds the first `rows` pending tokens of a sequence, which count as run from now on.
    pub(crate) fn add(&mut self, sequence: &mut Sequence, rows: usize) {
        let (part, step) = (self.parts.len(), &mut self.step);
        let end = sequence.cached + rows;
        let chooses = sequence.chooses(end - 1);
        let ahead_row = sequence.ahead_row;
        for position in sequence.cached..end {
            let (page, offset) = (position / PAGE_TOKENS as usize, position % PAGE_TOKENS as usize);
            if sequence.wants_output(position) {
                step.outputs.push(step.tokens.len() as u32);
                self.outputs.push((part, position as u32));
            }
            step.tokens.push(sequence.token(position));
            step.positions.push(position as u32);
            step.sequence.push(part as u32);
            step.slots.push(sequence.pages[page].number() * PAGE_TOKENS + offset as u32);
        }
        if step.pages.len() == part {
            step.pages.push(vec![]);
        }
        let pages = &mut step.pages[part];
        pages.clear();
        pages.reserve(sequence.pages.capacity());
        pages.extend(sequence.pages[..KvPool::pages_for(end)].iter().map(|p| p.number()));
        if chooses {
            sequence.ahead += 1;
            sequence.ahead_row = self.outputs.len() as u32 - 1;
        }
        sequence.cached = end;
        let random = sequence.sampler.random().clone();
        self.parts.push(Part { id: sequence.id, rows, end, ahead_row, chooses, random });
    }

    pub(crate) fn clear(&mut self) {
        let step = &mut self.step;
        for rows in [&mut step.tokens, &mut step.positions, &mut step.sequence, &mut step.slots, &mut step.outputs] {
            rows.clear();
        }
        // Page-table rows stay for their memory.
        step.draws.clear();
        self.parts.clear();
        self.outputs.clear();
    }
}
