//! The proof that a plan's barriers suffice and that its launches stay inside what they declare.

use super::{Buffer, Entry, Launch, LaunchArg, Plan, Span};

/// Why a plan is not safe to run.
#[derive(Debug, thiserror::Error, PartialEq)]
pub enum PlanError {
    /// Two launches touch the same bytes, at least one writing, with no barrier between.
    #[error("launches {first} ({first_name}) and {second} ({second_name}) conflict on {span:?} without a barrier")]
    Hazard {
        /// Entry index of the earlier launch.
        first: usize,
        /// Its template.
        first_name: &'static str,
        /// Entry index of the later launch.
        second: usize,
        /// Its template.
        second_name: &'static str,
        /// Bytes of the later launch in conflict.
        span: Span,
    },
    /// A span lies outside its buffer, or a launch writes what is read-only.
    #[error("launch {launch} ({name}): {what}")]
    BadSpan {
        /// Entry index.
        launch: usize,
        /// Template.
        name: &'static str,
        /// What is wrong.
        what: String,
    },
    /// An address argument is outside every span that the launch declares.
    #[error("launch {launch} ({name}): argument {arg} points at no declared span")]
    StrayArgument {
        /// Entry index.
        launch: usize,
        /// Template.
        name: &'static str,
        /// Argument index.
        arg: usize,
    },
    /// A launch reads scratch bytes that no earlier launch of the step wrote.
    #[error("launch {launch} ({name}) reads {span:?}, which nothing has written")]
    Unwritten {
        /// Entry index.
        launch: usize,
        /// Template.
        name: &'static str,
        /// The span.
        span: Span,
    },
}

/// Do two launches conflict? Gives the span of `b` that does.
pub fn conflict(a: &Launch, b: &Launch) -> Option<Span> {
    let hits = |xs: &[Span], ys: &[Span]| ys.iter().copied().find(|y| xs.iter().any(|x| x.overlaps(y)));
    hits(&a.writes, &b.reads).or_else(|| hits(&a.writes, &b.writes)).or_else(|| hits(&a.reads, &b.writes))
}

/// Proves a plan free of hazards, stray addresses, uninitialised scratch and out-of-range spans.
pub fn verify(plan: &Plan) -> Result<(), PlanError> {
    let mut open: Vec<(usize, &Launch)> = vec![];
    let mut written: Vec<Span> = vec![];
    for (i, entry) in plan.entries.iter().enumerate() {
        let launch = match entry {
            Entry::Barrier => {
                open.clear();
                continue;
            }
            Entry::Launch(l) => l,
        };
        check_spans(plan, i, launch)?;
        for span in &launch.reads {
            if span.buffer == Buffer::Scratch && !covered(span, &written) {
                return Err(PlanError::Unwritten { launch: i, name: launch.template, span: *span });
            }
        }
        for (first, earlier) in &open {
            if let Some(span) = conflict(earlier, launch) {
                return Err(PlanError::Hazard {
                    first: *first,
                    first_name: earlier.template,
                    second: i,
                    second_name: launch.template,
                    span,
                });
            }
        }
        written.extend(launch.writes.iter().filter(|s| s.buffer == Buffer::Scratch));
        open.push((i, launch));
    }
    Ok(())
}

fn check_spans(plan: &Plan, i: usize, launch: &Launch) -> Result<(), PlanError> {
    let bad = |what: String| PlanError::BadSpan { launch: i, name: launch.template, what };
    for (span, writes) in launch.reads.iter().map(|s| (s, false)).chain(launch.writes.iter().map(|s| (s, true))) {
        let size = plan.buffer_bytes(span.buffer);
        if span.offset.checked_add(span.bytes).is_none_or(|end| end > size) {
            return Err(bad(format!("{span:?} ends beyond the buffer's {size} bytes")));
        }
        if writes && matches!(span.buffer, Buffer::Weight(_) | Buffer::Inputs) {
            return Err(bad(format!("writes read-only {:?}", span.buffer)));
        }
    }
    for (arg, value) in launch.args.iter().enumerate() {
        if let LaunchArg::Address { buffer, offset } = *value {
            let inside = |s: &Span| s.buffer == buffer && s.offset <= offset && offset < s.offset + s.bytes;
            if !launch.reads.iter().chain(&launch.writes).any(inside) {
                return Err(PlanError::StrayArgument { launch: i, name: launch.template, arg });
            }
        }
    }
    Ok(())
}

/// Is every byte of `span` in one of `written`?
fn covered(span: &Span, written: &[Span]) -> bool {
    let mut at = span.offset;
    let end = span.offset + span.bytes;
    while at < end {
        let reach = written.iter().filter(|w| w.buffer == span.buffer && w.offset <= at && at < w.offset + w.bytes);
        match reach.map(|w| w.offset + w.bytes).max() {
            Some(next) => at = next,
            None => return false,
        }
    }
    true
}
