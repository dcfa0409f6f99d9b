//! Progress of loads, compiles and downloads on stderr: a bar on a terminal, plain lines otherwise, nothing for what
//! is quick.

use crate::output::say;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::time::{Duration, Instant};
use zinc_ir::device::Progress;

/// Work that ends before this is not worth a word.
const QUICK: Duration = Duration::from_millis(300);
/// Between plain lines.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// What is being counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Unit {
    /// Bytes.
    Bytes,
    /// Pieces.
    Pieces,
}

/// One piece of work at a time, shown once it takes longer than a moment.
#[derive(Debug)]
pub(crate) struct Meter {
    label: String,
    unit: Unit,
    started: Instant,
    last_line: Option<Instant>,
    bar: Option<ProgressBar>,
    terminal: bool,
}

impl Meter {
    /// Nothing going on yet.
    pub(crate) fn new() -> Meter {
        let terminal = std::io::stderr().is_terminal();
        Meter { label: String::new(), unit: Unit::Bytes, started: Instant::now(), last_line: None, bar: None, terminal }
    }

    /// Reports `done` of `total` (0: unknown) of the work named `label`; a new label begins new work.
    pub(crate) fn show(&mut self, label: &str, unit: Unit, done: u64, total: u64) {
        if self.label != label {
            self.clear();
            self.label = label.to_owned();
            self.unit = unit;
            self.started = Instant::now();
        }
        if self.started.elapsed() < QUICK {
            return;
        }
        if self.terminal {
            let bar = self.bar.get_or_insert_with(|| new_bar(label, unit, total));
            bar.set_position(done);
        } else if self.last_line.is_none_or(|t| t.elapsed() > LINE_EVERY) {
            self.last_line = Some(Instant::now());
            match unit {
                Unit::Bytes if total > 0 => say!("{label}: {} of {} MiB", done >> 20, total >> 20),
                Unit::Bytes => say!("{label}: {} MiB", done >> 20),
                Unit::Pieces => say!("{label}: {done} of {total}"),
            }
        }
    }

    /// Shows what a device reports.
    pub(crate) fn device(&mut self, progress: Progress) {
        match progress {
            Progress::Upload { done, total } => self.show("loading weights", Unit::Bytes, done, total),
            Progress::Compile { done, total, .. } => {
                self.show("compiling kernels", Unit::Pieces, done as u64, total as u64)
            }
        }
    }

    /// The work is done; takes the bar away.
    pub(crate) fn clear(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
        self.last_line = None;
        self.label.clear();
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        self.clear();
    }
}

fn new_bar(label: &str, unit: Unit, total: u64) -> ProgressBar {
    let template = match (unit, total) {
        (Unit::Bytes, 0) => "{msg}: {bytes} ({bytes_per_sec})",
        (Unit::Bytes, _) => "{msg} {bar:30} {bytes}/{total_bytes} ({bytes_per_sec}, {eta} left)",
        (Unit::Pieces, _) => "{msg} {bar:30} {pos}/{len} ({eta} left)",
    };
    let bar = ProgressBar::with_draw_target((total > 0).then_some(total), ProgressDrawTarget::stderr());
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar.set_message(label.to_owned());
    bar
}
