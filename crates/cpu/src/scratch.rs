//! Short-lived arrays without the allocator: a decode step makes hundreds of them.
//!
//! ```text
//! Scratch::filled │ Scratch::of ─block of memory from the thread's list─► [T] ─drop─► back to the list
//! ```
//!
//! After some steps of one kind the list has a block for every array that is alive at the same time, and steps allocate
//! nothing more. A block that is dropped on another thread joins that thread's list.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::{Deref, DerefMut};

/// Unit of memory; its alignment is that of every element type.
type Word = MaybeUninit<u128>;

thread_local! {
    static FREE: RefCell<Vec<Vec<Word>>> = const { RefCell::new(Vec::new()) };
}

/// A block of at least `words` words: the smallest free one that is large enough, else the largest, grown.
fn take(words: usize) -> Vec<Word> {
    let free = |list: &RefCell<Vec<Vec<Word>>>| {
        let mut list = list.borrow_mut();
        let places = || list.iter().enumerate().map(|(i, block)| (block.capacity(), i));
        let fitting = places().filter(|(capacity, _)| *capacity >= words).min();
        fitting.or(places().max()).map(|(_, i)| list.swap_remove(i))
    };
    // A thread that is ending has no list any more.
    let mut block = FREE.try_with(free).ok().flatten().unwrap_or_default();
    block.clear();
    block.reserve_exact(words);
    block
}

fn give(block: Vec<Word>) {
    let _ = FREE.try_with(|list| list.borrow_mut().push(block));
}

/// An array that gives its memory back to the thread.
pub(crate) struct Scratch<T> {
    block: Vec<Word>,
    len: usize,
    elements: PhantomData<T>,
}

impl<T> Scratch<T> {
    /// No elements, room for `capacity`.
    fn with_room(capacity: usize) -> Scratch<T> {
        const { assert!(align_of::<T>() <= align_of::<Word>()) };
        let block = take((capacity * size_of::<T>()).div_ceil(size_of::<Word>()));
        Scratch { block, len: 0, elements: PhantomData }
    }

    /// The items of an iterator that knows how many they are.
    pub(crate) fn of<I: IntoIterator<Item = T>>(items: I) -> Scratch<T> {
        let items = items.into_iter();
        let (least, most) = items.size_hint();
        let capacity = most.unwrap_or(least);
        let mut scratch = Scratch::with_room(capacity);
        for item in items {
            assert!(scratch.len < capacity, "an iterator gave more items than it said");
            // SAFETY: the block has room for `capacity` elements at the alignment of a word.
            unsafe { scratch.block.as_mut_ptr().cast::<T>().add(scratch.len).write(item) };
            scratch.len += 1;
        }
        scratch
    }
}

impl<T: Copy> Scratch<T> {
    /// `len` times `value`.
    pub(crate) fn filled(len: usize, value: T) -> Scratch<T> {
        Scratch::of(std::iter::repeat_n(value, len))
    }

    /// Keeps the first `len` elements.
    pub(crate) fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }
}

impl<T> Deref for Scratch<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        // SAFETY: the first `len` elements were written; the block is aligned and lives as long as `self`.
        unsafe { std::slice::from_raw_parts(self.block.as_ptr().cast(), self.len) }
    }
}

impl<T> DerefMut for Scratch<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as `deref`, and `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.block.as_mut_ptr().cast(), self.len) }
    }
}

impl<T> Drop for Scratch<T> {
    fn drop(&mut self) {
        let elements: *mut [T] = &mut **self;
        self.len = 0;
        // SAFETY: initialised elements, dropped once.
        unsafe { elements.drop_in_place() };
        give(std::mem::take(&mut self.block));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::rc::Rc;

    #[test]
    fn memory_comes_back_and_elements_are_dropped() {
        let first = Scratch::filled(100, 1.5f32);
        let at = first.as_ptr();
        assert_eq!(*first, [1.5; 100]);
        drop(first);
        let again = Scratch::of((0..50u64).map(|i| i * i));
        assert_eq!((again.as_ptr().cast(), again[7], again.len()), (at, 49, 50));
        let second = Scratch::filled(4, 0u8);
        assert_ne!(second.as_ptr().cast(), at);
        let (counted, none) = (Rc::new(()), Scratch::filled(0, 0u32));
        let shared = Scratch::of([counted.clone(), counted.clone()]);
        assert_eq!((Rc::strong_count(&counted), none.len(), shared.len()), (3, 0, 2));
        drop(shared);
        assert_eq!(Rc::strong_count(&counted), 1);
    }
}
