//! The ledger: what every request has used, one JSON object a line, on disk before long and for good.
//!
//! ```text
//! Charge ─Entry─► channel ─► a thread: append all that has come, sync ─► FILE ─summed at the next start─► Spent
//! ```
//!
//! Whoever appends never waits for the disk; a crash loses what came since the last sync, milliseconds ago. It may leave a last
//! line that does not end. The next start keeps that line if it is whole but for its end; what is only the beginning of one says
//! nothing that could be counted: it is cut off, with a warning that shows it.

use crate::error::clip;
use crate::model::unix_seconds;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fs::{File, TryLockError};
use std::io::{BufRead, BufReader, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use zinc_text::CivilTime;

/// From one try to write to the next, while the disk takes nothing.
const AGAIN: Duration = Duration::from_secs(5);

/// What every entry begins with.
const BEGINNING: &[u8] = b"{\"time\":";

/// What a request has used.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// When it ended, in seconds since 1970.
    pub time: u64,
    /// Whose it was: the name of the key.
    pub key: String,
    /// The request's own name.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub request: String,
    /// Tokens of its prompts.
    pub prompt_tokens: u64,
    /// Of which the prefix cache had.
    #[serde(default)]
    pub cached_tokens: u64,
    /// Tokens that were generated.
    pub completion_tokens: u64,
    /// Its part of the device's time, in seconds.
    #[serde(default)]
    pub seconds: f64,
    /// Its part of the device's energy, where the device tells its power.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub joules: Option<f64>,
}

/// Tokens of prompts and answers that a key has used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Spent {
    /// The day of `in_day`, counted from 1970, and the month of `in_month`, counted from year 0.
    day: i64,
    month: i64,
    in_day: u64,
    in_month: u64,
    pub(crate) in_all: u64,
}

/// Day and month that a second is in.
fn periods(time: u64) -> (i64, i64) {
    let (year, month, _) = CivilTime::from_unix_seconds(time as i64).date();
    (time as i64 / 86_400, year * 12 + i64::from(month) - 1)
}

impl Spent {
    pub(crate) fn add(&mut self, tokens: u64, time: u64) {
        let (day, month) = periods(time);
        self.in_day = self.in_day(time).saturating_add(tokens);
        self.in_month = self.in_month(time).saturating_add(tokens);
        (self.day, self.month) = (self.day.max(day), self.month.max(month));
        self.in_all = self.in_all.saturating_add(tokens);
    }

    /// Adds what an entry of the past says. `now`: no entry can be of a later day, so one that is was made while the clock was
    /// wrong; it counts for no day and no month, or it would hold up all quotas until then. False for such a one.
    fn replay(&mut self, entry: &Entry, now: u64) -> bool {
        let tokens = entry.prompt_tokens.saturating_add(entry.completion_tokens);
        let possible = entry.time / 86_400 <= now / 86_400;
        match possible {
            true => self.add(tokens, entry.time),
            false => self.in_all = self.in_all.saturating_add(tokens),
        }
        possible
    }

    /// Tokens in the day of this second. A clock that has stepped back to an earlier day does not begin a new one: nobody gets
    /// a quota twice.
    pub(crate) fn in_day(&self, time: u64) -> u64 {
        if periods(time).0 <= self.day { self.in_day } else { 0 }
    }

    /// Tokens in the month of this second, likewise.
    pub(crate) fn in_month(&self, time: u64) -> u64 {
        if periods(time).1 <= self.month { self.in_month } else { 0 }
    }
}

/// Seconds until the next day and the next month begin.
pub(crate) fn until_next(time: u64) -> (u64, u64) {
    let (year, month, _) = CivilTime::from_unix_seconds(time as i64).date();
    let (year, month) = if month == 12 { (year + 1, 1) } else { (year, month + 1) };
    let next = CivilTime::from_date(year, month.into(), 1).map_or(time, |t| t.unix_seconds() as u64);
    (86_400 - time % 86_400, next - time)
}

/// Why there is no ledger.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    /// The file cannot be opened, read or written.
    #[error("the ledger {}: {source}", path.display())]
    File {
        /// Which one.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Two servers would spend the same quotas twice.
    #[error("the ledger {} is in use by another server; give each its own", path.display())]
    InUse {
        /// Which one.
        path: PathBuf,
    },
    /// It is no ledger, or was damaged.
    #[error("the ledger {}: line {line} is no entry: {source}; mend it or take it out", path.display())]
    Line {
        /// Which one.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// Why.
        source: serde_json::Error,
    },
}

/// A ledger that is open for more.
#[derive(Debug)]
pub struct Ledger {
    history: Mutex<HashMap<String, Spent>>,
    entries: Mutex<Option<Sender<Entry>>>,
    writer: Mutex<Option<JoinHandle<()>>>,
}

impl Ledger {
    /// Opens or begins a ledger, and sums it up.
    ///
    /// # Errors
    /// The file cannot be had, is in use, or has a line that is no entry (but for a last one that was cut off).
    pub fn open(path: &Path) -> Result<Ledger, LedgerError> {
        let failed = |source| LedgerError::File { path: path.to_owned(), source };
        let file = File::options().read(true).append(true).create(true).open(path).map_err(failed)?;
        file.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => LedgerError::InUse { path: path.to_owned() },
            TryLockError::Error(source) => failed(source),
        })?;
        let mut history: HashMap<String, Spent> = HashMap::new();
        let (now, mut of_the_future) = (unix_seconds(), 0);
        let End { mut whole, open, torn } = read(path, &file, |mut entry| {
            let spent = history.entry(std::mem::take(&mut entry.key)).or_default();
            of_the_future += u64::from(!spent.replay(&entry, now));
        })?;
        if of_the_future > 0 {
            let path = path.display();
            tracing::warn!(%path, entries = of_the_future, "entries of the ledger are later than now and count for no day or month; is the clock right?");
        }
        if !torn.is_empty() {
            let path = path.display();
            tracing::warn!(%path, torn, "the ledger's last entry was cut off by a crash, and is dropped");
        }
        file.set_len(whole).map_err(failed)?;
        if open {
            (&file).write_all(b"\n").map_err(failed)?;
            whole += 1;
        }
        let (entries, queue) = channel();
        let thread = std::thread::Builder::new().name("zinc-ledger".into());
        let writer = thread.spawn(move || write(file, whole, &queue)).map_err(failed)?;
        let (entries, writer) = (Mutex::new(Some(entries)), Mutex::new(Some(writer)));
        Ok(Ledger { history: Mutex::new(history), entries, writer })
    }

    /// All entries of a ledger, which may be in use.
    ///
    /// # Errors
    /// As [`Ledger::open`].
    pub fn entries(path: &Path) -> Result<Vec<Entry>, LedgerError> {
        let file = File::open(path).map_err(|source| LedgerError::File { path: path.to_owned(), source })?;
        let mut entries = vec![];
        read(path, &file, |entry| entries.push(entry))?;
        Ok(entries)
    }

    /// What a key had used when the ledger was opened; asked once for each.
    pub(crate) fn history(&self, key: &str) -> Spent {
        self.history.lock().unwrap_or_else(PoisonError::into_inner).remove(key).unwrap_or_default()
    }

    /// Adds an entry; it is written soon.
    pub(crate) fn append(&self, entry: Entry) {
        if let Some(entries) = &*self.entries.lock().unwrap_or_else(PoisonError::into_inner) {
            entries.send(entry).ok();
        }
    }

    /// Waits until all is written; what comes later is not.
    pub(crate) fn close(&self) {
        drop(self.entries.lock().unwrap_or_else(PoisonError::into_inner).take());
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner).take();
        if writer.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the ledger's thread has failed; its last entries may be lost");
        }
    }
}

/// Most of a torn entry that is shown: after a power failure it may be megabytes of nothing.
const MOST_SHOWN: usize = 400;

/// How a ledger ends.
struct End {
    /// Bytes up to the end of the last entry.
    whole: u64,
    /// The last entry lacks the end of its line.
    open: bool,
    /// Of an entry, only its beginning.
    torn: String,
}

/// Hands out all entries.
fn read(path: &Path, mut file: &File, mut take: impl FnMut(Entry)) -> Result<End, LedgerError> {
    let failed = |source| LedgerError::File { path: path.to_owned(), source };
    file.seek(SeekFrom::Start(0)).map_err(failed)?;
    let (mut reader, mut text) = (BufReader::new(file), vec![]);
    let mut end = End { whole: 0, open: false, torn: String::new() };
    let (mut is_ledger, wrong) = (false, |line, source| LedgerError::Line { path: path.to_owned(), line, source });
    for line in 1.. {
        text.clear();
        let bytes = reader.read_until(b'\n', &mut text).map_err(failed)?;
        if text.last() != Some(&b'\n') {
            match serde_json::from_slice(&text) {
                // No beginning of an entry is one: it closes a brace.
                Ok(entry) => {
                    take(entry);
                    (end.whole, end.open) = (end.whole + bytes as u64, true);
                }
                // An entry that was cut off, unless this may be a file of something else, which must not lose anything.
                Err(_) if is_ledger || text.iter().zip(BEGINNING).all(|(a, b)| a == b) => {
                    end.torn = clip(String::from_utf8_lossy(&text).into_owned(), MOST_SHOWN);
                }
                Err(source) => return Err(wrong(line, source)),
            }
            break;
        }
        if !text.trim_ascii().is_empty() {
            take(serde_json::from_slice(&text).map_err(|source| wrong(line, source))?);
            is_ledger = true;
        }
        end.whole += bytes as u64;
    }
    Ok(end)
}

/// Appends what comes until nobody is left to say more. `length`: bytes of the file that are known to be good.
fn write(mut file: File, mut length: u64, queue: &Receiver<Entry>) {
    // What waits to be written, and since the disk took it not, when that is tried again.
    let (mut text, mut again) = (vec![], None);
    loop {
        let open = gather(queue, &mut text, again);
        if !text.is_empty() {
            // Half a line must not stay in front of what is tried again.
            let cut = again.map_or(Ok(()), |_| file.set_len(length));
            match cut.and_then(|()| file.write_all(&text)).and_then(|()| file.sync_data()) {
                Ok(()) => {
                    length += text.len() as u64;
                    text.clear();
                    again = None;
                }
                Err(error) if open => {
                    tracing::error!(%error, "the ledger cannot be written; its entries wait in memory");
                    again = Some(Instant::now() + AGAIN);
                }
                Err(error) => tracing::error!(%error, bytes = text.len(), "the ledger's last entries are lost"),
            }
        }
        if !open {
            return;
        }
    }
}

/// Takes lines of what has come: waits for something, or until `end`. False if nobody is left to say more.
fn gather(queue: &Receiver<Entry>, text: &mut Vec<u8>, end: Option<Instant>) -> bool {
    loop {
        let next = match end {
            None => queue.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(end) => queue.recv_timeout(end.saturating_duration_since(Instant::now())),
        };
        let entry = match next {
            Ok(entry) => entry,
            Err(error) => return error == RecvTimeoutError::Timeout,
        };
        std::iter::once(entry).chain(queue.try_iter()).for_each(|entry| {
            // An entry has nothing that JSON cannot say.
            serde_json::to_writer(&mut *text, &entry).ok();
            text.push(b'\n');
        });
        if end.is_none_or(|end| Instant::now() >= end) {
            return true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: u64 = 86_400;
    /// 15 June 2026, noon.
    const NOON: u64 = 20_619 * DAY + DAY / 2;

    #[test]
    fn a_clock_that_steps_back_gives_no_quota_twice() {
        let mut spent = Spent::default();
        spent.add(5, NOON);
        for back in [DAY, 40 * DAY, NOON] {
            assert_eq!((spent.in_day(NOON - back), spent.in_month(NOON - back)), (5, 5), "{back} s");
        }
        spent.add(2, NOON - 40 * DAY);
        assert_eq!((spent.in_day(NOON), spent.in_month(NOON), spent.in_all), (7, 7, 7));
        assert_eq!((spent.in_day(NOON + DAY), spent.in_month(NOON + DAY)), (0, 7));
        spent.add(1, NOON + 30 * DAY);
        assert_eq!((spent.in_day(NOON + 30 * DAY), spent.in_month(NOON + 30 * DAY), spent.in_all), (1, 1, 8));
    }

    #[test]
    fn entries_of_the_future_hold_up_no_quota() {
        let entry = |time| Entry { time, prompt_tokens: 3, completion_tokens: 4, ..Entry::default() };
        let mut spent = Spent::default();
        assert!(spent.replay(&entry(NOON), NOON));
        for time in [NOON + DAY, i64::MAX as u64, u64::MAX] {
            assert!(!spent.replay(&entry(time), NOON), "{time}");
        }
        assert_eq!((spent.in_day(NOON), spent.in_month(NOON), spent.in_all), (7, 7, 28));
        assert!(spent.replay(&entry(NOON + 60), NOON), "a minute of the same day is no matter");
        assert_eq!((spent.in_day(NOON + DAY), spent.in_month(NOON + DAY)), (0, 14));
    }

    #[test]
    fn only_a_ledger_loses_a_line_that_was_cut_off() {
        let path = std::env::temp_dir().join(format!("zinc-ledger-{}", std::process::id()));
        let line = serde_json::to_string(&Entry::default()).expect("a line");
        let left = |text: &str| {
            std::fs::write(&path, text).expect("written");
            let open = Ledger::open(&path);
            if let Ok(ledger) = &open {
                ledger.close();
            }
            let left = std::fs::read_to_string(&path).expect("text");
            let sum = open.map(|ledger| ledger.history("").in_all);
            (sum.ok(), left)
        };
        let line = line.replace("\"prompt_tokens\":0", "\"prompt_tokens\":3");
        for cut in ["", "{", "{\"ti", &line[..20]] {
            assert_eq!(left(cut), (Some(0), String::new()), "{cut:?}");
            assert_eq!(left(&format!("{line}\n{cut}")), (Some(3), format!("{line}\n")), "{cut:?}");
        }
        assert_eq!(left(&line), (Some(3), format!("{line}\n")), "whole, but for the end of its line");
        let two = format!("{line}\n{line}");
        assert_eq!((left(&two), left(&two)), ((Some(6), format!("{two}\n")), (Some(6), format!("{two}\n"))));
        for other in ["my only copy", "\n\nnotes", "{\"model\": 1}", "[1, 2]"] {
            assert_eq!(left(other), (None, other.to_owned()));
        }
        std::fs::remove_file(&path).ok();
    }
}
