//! Which pages are on disk, how large they are, and when each was used.
//!
//! ```text
//! folder ─read─► entries ─add, touch─► … ─make_room─► the ones unused for longest, of one time the deepest first
//! ```

use crate::file::{is_part, parse_name};
use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::io;
use std::path::Path;
use std::time::SystemTime;
use zinc_engine::PageName;

/// A page on disk.
struct Entry {
    depth: u32,
    bytes: u64,
    used: u64,
}

/// When a page was used, and how deep it is: the order of eviction. A page is of no use without those before it.
type Age = (u64, Reverse<u32>, PageName);

/// All pages of a folder.
pub(crate) struct Index {
    entries: HashMap<PageName, Entry>,
    oldest: BTreeSet<Age>,
    bytes: u64,
    limit: u64,
    /// Counts uses.
    clock: u64,
}

impl Index {
    /// Lists a folder. Remains of writers that died are deleted; files that are no pages stay and do not count.
    pub(crate) fn read(folder: &Path, limit: u64) -> io::Result<Index> {
        let mut found: Vec<(SystemTime, Reverse<u32>, PageName, u64)> = vec![];
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            // Another process may be deleting it.
            let (name, Ok(data)) = (entry.file_name(), entry.metadata()) else { continue };
            let Some(name) = name.to_str().filter(|_| data.is_file()) else { continue };
            if is_part(name) {
                fs::remove_file(entry.path()).ok();
            } else if let Some((depth, page)) = parse_name(name) {
                found.push((data.modified().unwrap_or(SystemTime::UNIX_EPOCH), Reverse(depth), page, data.len()));
            }
        }
        found.sort();
        let mut index = Index { entries: HashMap::new(), oldest: BTreeSet::new(), bytes: 0, limit, clock: 0 };
        for (_, Reverse(depth), name, bytes) in found {
            index.add(name, depth, bytes);
        }
        Ok(index)
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn limit(&self) -> u64 {
        self.limit
    }

    pub(crate) fn has(&self, name: PageName) -> bool {
        self.entries.contains_key(&name)
    }

    pub(crate) fn depth(&self, name: PageName) -> Option<u32> {
        self.entries.get(&name).map(|entry| entry.depth)
    }

    /// Counts a page that has been written.
    pub(crate) fn add(&mut self, name: PageName, depth: u32, bytes: u64) {
        self.forget(name);
        self.clock += 1;
        self.entries.insert(name, Entry { depth, bytes, used: self.clock });
        self.oldest.insert((self.clock, Reverse(depth), name));
        self.bytes += bytes;
    }

    /// A page is used now; false if there is none of that name.
    pub(crate) fn touch(&mut self, name: PageName) -> bool {
        let Some(entry) = self.entries.get_mut(&name) else { return false };
        self.oldest.remove(&(entry.used, Reverse(entry.depth), name));
        self.clock += 1;
        entry.used = self.clock;
        self.oldest.insert((entry.used, Reverse(entry.depth), name));
        true
    }

    /// A page is not there any more.
    pub(crate) fn forget(&mut self, name: PageName) {
        if let Some(entry) = self.entries.remove(&name) {
            self.oldest.remove(&(entry.used, Reverse(entry.depth), name));
            self.bytes -= entry.bytes;
        }
    }

    /// Forgets pages until there is room for so many bytes more, and names them: their files are to be deleted.
    pub(crate) fn make_room(&mut self, bytes: u64) -> Vec<(u32, PageName)> {
        let mut evicted = vec![];
        while self.bytes.saturating_add(bytes) > self.limit {
            let Some(&(_, Reverse(depth), name)) = self.oldest.first() else { break };
            self.forget(name);
            evicted.push((depth, name));
        }
        evicted
    }
}
