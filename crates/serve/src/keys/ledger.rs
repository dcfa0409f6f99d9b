//! The ledger: what every request has used, one JSON object a line, on disk before long and for good.
//!
//! ```text
//! Charge ─Entry─► channel ─► a thread: append all that has come, sync ─► FILE ─summed at the next start─► Spent
//! ```
//!
//! Whoever appends never waits for the disk; a crash loses what came since the last sync, milliseconds ago. A line that a
//! crash has cut off is dropped at the next start.

use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fs::{File, TryLockError};
use std::io::{BufRead, BufReader, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use zinc_text::CivilTime;

/// From one try to write to the next, while the disk takes nothing.
const AGAIN: Duration = Duration::from_secs(5);

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
        // An entry of an earlier day says nothing about this one.
        let (day, month) = periods(time);
        if day >= self.day {
            self.in_day = self.in_day(time) + tokens;
            self.day = day;
        }
        if month >= self.month {
            self.in_month = self.in_month(time) + tokens;
            self.month = month;
        }
        self.in_all += tokens;
    }

    /// Tokens in the day of this second.
    pub(crate) fn in_day(&self, time: u64) -> u64 {
        if periods(time).0 == self.day { self.in_day } else { 0 }
    }

    /// Tokens in the month of this second.
    pub(crate) fn in_month(&self, time: u64) -> u64 {
        if periods(time).1 == self.month { self.in_month } else { 0 }
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
    /// The file cannot be had, is in use, or has a line that is no entry (but for the last one, if it is not whole).
    pub fn open(path: &Path) -> Result<Ledger, LedgerError> {
        let failed = |source| LedgerError::File { path: path.to_owned(), source };
        let file = File::options().read(true).append(true).create(true).open(path).map_err(failed)?;
        file.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => LedgerError::InUse { path: path.to_owned() },
            TryLockError::Error(source) => failed(source),
        })?;
        let mut history: HashMap<String, Spent> = HashMap::new();
        let whole = read(path, &file, |entry| {
            let spent = history.entry(entry.key).or_default();
            spent.add(entry.prompt_tokens + entry.completion_tokens, entry.time);
        })?;
        file.set_len(whole).map_err(failed)?;
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

/// Hands out all entries; gives the number of bytes that are whole lines.
fn read(path: &Path, mut file: &File, mut take: impl FnMut(Entry)) -> Result<u64, LedgerError> {
    let failed = |source| LedgerError::File { path: path.to_owned(), source };
    file.seek(SeekFrom::Start(0)).map_err(failed)?;
    let (mut reader, mut text, mut whole) = (BufReader::new(file), vec![], 0);
    for line in 1.. {
        text.clear();
        let bytes = reader.read_until(b'\n', &mut text).map_err(failed)?;
        if text.last() != Some(&b'\n') {
            break;
        }
        if !text.trim_ascii().is_empty() {
            let entry = serde_json::from_slice(&text);
            take(entry.map_err(|source| LedgerError::Line { path: path.to_owned(), line, source })?);
        }
        whole += bytes as u64;
    }
    Ok(whole)
}

/// Appends what comes until nobody is left to say more. `length`: bytes of the file that are known to be good.
fn write(mut file: File, mut length: u64, queue: &Receiver<Entry>) {
    let mut text = vec![];
    let line = |text: &mut Vec<u8>, entry: Entry| {
        // An entry has nothing that JSON cannot say.
        serde_json::to_writer(&mut *text, &entry).ok();
        text.push(b'\n');
    };
    while let Ok(entry) = queue.recv() {
        line(&mut text, entry);
        queue.try_iter().for_each(|entry| line(&mut text, entry));
        match file.write_all(&text).and_then(|()| file.sync_data()) {
            Ok(()) => {
                length += text.len() as u64;
                text.clear();
            }
            Err(error) => {
                tracing::error!(%error, "the ledger cannot be written; its entries wait in memory");
                // Half a line must not stay in front of what is tried again.
                file.set_len(length).ok();
                std::thread::sleep(AGAIN);
            }
        }
    }
    if !text.is_empty() && file.write_all(&text).and_then(|()| file.sync_data()).is_err() {
        tracing::error!(bytes = text.len(), "the ledger's last entries are lost");
    }
}
