//! K and V of full pages on disk, so that a prompt that was known before a restart need not be computed again.
//!
//! ```text
//! engine ─save─► thread: write, rename, keep below the limit ─► FOLDER/00012-1f3a….zkv
//!        ◄─fetch─ thread: read, check everything  ◄───────────────────┘
//! ```
//!
//! A page is named by a hash of all that its content depends on: the model, the types and layout of K and V, and every token up to
//! the page's end. So a chat template, a tokenizer or a sampling setting cannot matter. What is damaged, cut short or of another
//! model is as if it were not there. Nothing that the engine calls here touches the disk.

mod file;
mod identity;
mod index;

pub use identity::identity;

use crate::file::{Page, file_name};
use crate::index::Index;
use std::collections::hash_map::RandomState;
use std::fs;
use std::hash::BuildHasher;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use zinc_engine::{KeptPage, PageName, PageStore};

/// Pages that may wait to be written, and pages of a prompt that may wait to be taken.
const WAITING: usize = 8;

/// What the threads share.
struct Shared {
    folder: PathBuf,
    identity: [u8; 32],
    index: Mutex<Index>,
}

impl Shared {
    fn index(&self) -> MutexGuard<'_, Index> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn path(&self, depth: u32, name: PageName) -> PathBuf {
        self.folder.join(file_name(depth, name))
    }
}

/// Pages to be read, and where to.
struct Fetch {
    names: Vec<PageName>,
    to: SyncSender<Vec<u8>>,
}

/// A folder of pages.
pub struct Snapshots {
    shared: Arc<Shared>,
    saves: Option<SyncSender<Page>>,
    /// Pages handed over and not yet written.
    unwritten: Arc<()>,
    fetches: Option<Sender<Fetch>>,
    threads: Vec<JoinHandle<()>>,
}

impl Snapshots {
    /// Takes stock of a folder, which is made if it is not there. Its files never take more than `limit` bytes. `identity` is
    /// that of the engine whose pages they are ([`identity()`]); pages of others stay until they are the oldest.
    ///
    /// # Errors
    /// The folder cannot be made or read, or there are no threads.
    pub fn open(folder: &Path, limit: u64, identity: [u8; 32]) -> io::Result<Snapshots> {
        make_private(folder)?;
        let mut index = Index::read(folder, limit)?;
        index.make_room(0).into_iter().for_each(|(depth, name)| remove(&folder.join(file_name(depth, name))));
        tracing::info!(folder = %folder.display(), pages = index.len(), bytes = index.bytes(), "pages on disk");
        let shared = Arc::new(Shared { folder: folder.to_owned(), identity, index: Mutex::new(index) });
        let (saves, to_write) = sync_channel(WAITING);
        let (fetches, to_read) = channel();
        let (writer, reader) = (shared.clone(), shared.clone());
        let threads = vec![
            Builder::new().name("zinc-kv-write".into()).spawn(move || write_all(&writer, &to_write))?,
            Builder::new().name("zinc-kv-read".into()).spawn(move || read_all(&reader, &to_read))?,
        ];
        Ok(Snapshots { shared, saves: Some(saves), unwritten: Arc::new(()), fetches: Some(fetches), threads })
    }

    /// Bytes of all pages on disk.
    pub fn bytes(&self) -> u64 {
        self.shared.index().bytes()
    }
}

impl PageStore for Snapshots {
    fn name(&self, before: Option<PageName>, tokens: &[u32]) -> PageName {
        file::name(&self.shared.identity, before.unwrap_or_default(), tokens)
    }

    fn has(&self, name: PageName) -> bool {
        self.shared.index().has(name)
    }

    fn has_room(&self) -> bool {
        // One count is the store's own.
        Arc::strong_count(&self.unwritten) <= WAITING
    }

    fn save(&mut self, page: KeptPage) {
        let page = Page { page, _waits: Some(self.unwritten.clone()) };
        // A full queue means that whoever saves has not asked for room; a page less on disk is no error.
        if let Some(saves) = &self.saves {
            saves.try_send(page).ok();
        }
    }

    fn fetch(&mut self, names: Vec<PageName>) -> Receiver<Vec<u8>> {
        let (to, pages) = sync_channel(WAITING);
        if let Some(fetches) = &self.fetches {
            fetches.send(Fetch { names, to }).ok();
        }
        pages
    }
}

impl Drop for Snapshots {
    /// Writes what waits to be written.
    fn drop(&mut self) {
        (self.saves, self.fetches) = (None, None);
        for thread in self.threads.drain(..) {
            thread.join().ok();
        }
    }
}

/// Makes a folder that only its owner may look into: pages hold the tokens of what people have said.
fn make_private(folder: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder)?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = fs::metadata(folder)?.permissions().mode() & 0o777;
        if mode & 0o077 != 0 {
            let (folder, mode) = (folder.display(), format!("{mode:03o}"));
            tracing::warn!(%folder, mode, "others may look into the folder of pages, which tell what people have said; chmod 700 it");
        }
    }
    Ok(())
}

/// Writes a new file that only its owner may read: the folder may be one that others can look into.
fn write_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut options = fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)?.write_all(bytes)
}

/// Writes pages as they come.
fn write_all(shared: &Shared, pages: &Receiver<Page>) {
    for page in pages {
        if let Err(error) = write(shared, &page) {
            tracing::warn!(%error, folder = %shared.folder.display(), "a page of K and V is not kept on disk");
        }
    }
}

fn write(shared: &Shared, page: &Page) -> io::Result<()> {
    let KeptPage { name, depth, .. } = page.page;
    let bytes = page.encode(&shared.identity);
    let size = bytes.len() as u64;
    let evicted = {
        let mut index = shared.index();
        if index.touch(name) || size > index.limit() {
            return Ok(());
        }
        index.make_room(size)
    };
    evicted.into_iter().for_each(|(depth, name)| remove(&shared.path(depth, name)));
    let path = shared.path(depth, name);
    // Renamed when it is whole: a file of this name is never half written by a process that lives. Two processes may have the
    // same number, in containers that share the folder.
    let part = path.with_extension(format!("{:016x}.part", RandomState::new().hash_one(name)));
    let written = write_private(&part, &bytes).and_then(|()| fs::rename(&part, &path));
    if written.is_err() {
        remove(&part);
    }
    written?;
    shared.index().add(name, depth, size);
    Ok(())
}

/// Reads what is asked for, one request after the other.
fn read_all(shared: &Shared, fetches: &Receiver<Fetch>) {
    for Fetch { names, to } in fetches {
        for name in names {
            // Nobody wants it any more, or it is not there: what follows is of no use without it.
            let sent = read(shared, name).is_some_and(|bytes| to.send(bytes).is_ok());
            if !sent {
                break;
            }
        }
    }
}

/// The K and V of a page. Anything but exactly what was written is deleted.
fn read(shared: &Shared, name: PageName) -> Option<Vec<u8>> {
    let depth = shared.index().depth(name)?;
    let path = shared.path(depth, name);
    match file::read(&path, &shared.identity, name) {
        Ok(bytes) => {
            shared.index().touch(name);
            Some(bytes)
        }
        Err(error) => {
            // Another process may have evicted it.
            if error.kind() != io::ErrorKind::NotFound {
                tracing::warn!(%error, file = %path.display(), "a page of K and V on disk is of no use and is deleted");
                remove(&path);
            }
            shared.index().forget(name);
            None
        }
    }
}

/// Deletes a file; one that cannot be is there at the next start.
fn remove(path: &Path) {
    fs::remove_file(path).ok();
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn nobody_else_may_read_pages() {
        let above = std::env::temp_dir().join(format!("zinc-snapshots-{}", std::process::id()));
        let folder = above.join("pages");
        let mut pages = Snapshots::open(&folder, 1 << 20, [1; 32]).expect("a folder");
        let tokens = std::array::from_fn(|i| i as u32);
        let name = pages.name(None, &tokens);
        pages.save(KeptPage { name, before: None, depth: 0, tokens, bytes: vec![7; 100] });
        drop(pages);
        let mode = |path: &Path| fs::metadata(path).expect("it is there").permissions().mode() & 0o777;
        let files: Vec<PathBuf> = fs::read_dir(&folder).expect("a list").map(|e| e.expect("a file").path()).collect();
        assert_eq!(files, [folder.join(file_name(0, name))]);
        assert_eq!([mode(&above), mode(&folder), mode(&files[0])], [0o700, 0o700, 0o600]);
        fs::remove_dir_all(&above).ok();
    }
}
