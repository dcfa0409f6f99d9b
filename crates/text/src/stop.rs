//! Stop strings in a text that comes in pieces.
//!
//! ```text
//! pieces ─► held back while they may be the start of a stop string ─► text, until one is whole
//! ```

use std::sync::Arc;
use thiserror::Error;

/// A list of stop strings that cannot be used: the index of an empty one (counted from 1 in the message).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("stop string {} is empty and would stop every text at once; leave it out", .0 + 1)]
pub struct StopError(pub usize);

/// What a piece of text led to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stopped {
    /// Text to show now: never a part of a stop string.
    pub text: String,
    /// The number of the stop string that was found; the text then ends here.
    pub stop: Option<usize>,
}

/// Finds the stop string that is whole first; of those that end together, the longest.
///
/// How the text was cut into pieces makes no difference.
#[derive(Clone, Debug)]
pub struct StopMatcher {
    stops: Arc<[String]>,
    held: String,
    found: Option<usize>,
}

impl StopMatcher {
    /// Takes the stop strings; an empty list stops nothing. Clones of the matcher share them.
    ///
    /// # Errors
    /// The number of a stop string that is empty.
    pub fn new(stops: impl Into<Arc<[String]>>) -> Result<Self, StopError> {
        let stops = stops.into();
        match stops.iter().position(String::is_empty) {
            Some(number) => Err(StopError(number)),
            None => Ok(StopMatcher { stops, held: String::new(), found: None }),
        }
    }

    /// Takes the next piece. After a stop string was found all further text is dropped, and the
    /// same stop string is reported.
    pub fn push(&mut self, piece: &str) -> Stopped {
        if self.found.is_some() {
            return Stopped { text: String::new(), stop: self.found };
        }
        self.held.push_str(piece);
        // Whatever was shown before cannot begin a stop string, so one lies wholly in `held`.
        let first = self.stops.iter().enumerate().filter_map(|(number, stop)| {
            let start = self.held.find(stop.as_str())?;
            Some((start + stop.len(), start, number))
        });
        if let Some((_, start, number)) = first.min() {
            self.found = Some(number);
            let mut text = std::mem::take(&mut self.held);
            text.truncate(start);
            return Stopped { text, stop: self.found };
        }
        let rest = self.held.split_off(self.held.len() - self.unsure());
        Stopped { text: std::mem::replace(&mut self.held, rest), stop: None }
    }

    /// Ends the text: gives what was held back, unless a stop string was found.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// Bytes at the end of `held` that a stop string may begin with.
    fn unsure(&self) -> usize {
        // `held` is whole characters, so it cannot end with half of one: the cut is a boundary.
        let overlap = |stop: &String| {
            let longest = self.held.len().min(stop.len() - 1);
            (1..=longest).rev().find(|&len| self.held.as_bytes().ends_with(&stop.as_bytes()[..len]))
        };
        self.stops.iter().filter_map(overlap).max().unwrap_or(0)
    }
}
