//! Memory that threads share by raw pointer: packed weights and the disjoint parts of outputs.

use memmap2::MmapMut;

/// Anonymous pages, zero at first; in huge pages where the system offers them on request.
pub(crate) struct Region(Option<MmapMut>);

impl Region {
    /// No bytes.
    pub(crate) fn empty() -> Region {
        Region(None)
    }

    /// `bytes` zero bytes, aligned to a page.
    pub(crate) fn new(bytes: usize) -> std::io::Result<Region> {
        if bytes == 0 {
            return Ok(Region(None));
        }
        let map = MmapMut::map_anon(bytes)?;
        // Weights are read front to back once per step: fewer TLB misses. Refusal costs nothing.
        #[cfg(target_os = "linux")]
        let _ = map.advise(memmap2::Advice::HugePage);
        Ok(Region(Some(map)))
    }

    pub(crate) fn as_ptr(&self) -> *const u8 {
        self.0.as_ref().map_or(std::ptr::dangling(), |m| m.as_ptr())
    }

    pub(crate) fn as_mut_ptr(&mut self) -> *mut u8 {
        self.0.as_mut().map_or(std::ptr::dangling_mut(), |m| m.as_mut_ptr())
    }
}

/// A pointer whose users write disjoint parts from several threads.
pub(crate) struct SharedPtr<T>(pub(crate) *mut T);

impl<T> Clone for SharedPtr<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for SharedPtr<T> {}

// SAFETY: only an address; every dereference states why its part is nobody else's.
unsafe impl<T: Send> Send for SharedPtr<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for SharedPtr<T> {}

impl<T> SharedPtr<T> {
    /// The address. (A method, so that closures capture the wrapper and not the pointer.)
    pub(crate) fn get(self) -> *mut T {
        self.0
    }
}
