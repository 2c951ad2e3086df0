//! A short list, which lies on the stack as long as it is short.
//!
//! # Safety
//!
//! While `many` is empty, the first `count` places of `few` hold elements, and the others none. Otherwise none does.

use std::mem::MaybeUninit;
use std::ops::{Deref, DerefMut};
use std::slice;

/// A list; its first [`FEW`] elements ask for no memory.
pub(crate) struct Few<T> {
    few: [MaybeUninit<T>; FEW],
    count: usize,
    /// All of them, once they are more.
    many: Vec<T>,
}

/// Most calls are about fewer descriptors than that.
const FEW: usize = 8;

impl<T> Few<T> {
    /// An empty list.
    #[inline]
    pub(crate) fn new() -> Self {
        Self { few: [const { MaybeUninit::uninit() }; FEW], count: 0, many: Vec::new() }
    }

    #[inline]
    pub(crate) fn push(&mut self, element: T) {
        match self.few.get_mut(self.count) {
            Some(place) if self.many.is_empty() => {
                place.write(element);
                self.count += 1;
            }
            _ => self.push_many(element),
        }
    }

    #[cold]
    fn push_many(&mut self, element: T) {
        if self.many.is_empty() {
            self.many.reserve(2 * FEW);
            for place in self.few.iter().take(std::mem::take(&mut self.count)) {
                // SAFETY: it holds an element, which is moved, and counts as empty from now on.
                self.many.push(unsafe { place.assume_init_read() });
            }
        }
        self.many.push(element);
    }
}

impl<T> FromIterator<T> for Few<T> {
    #[inline]
    fn from_iter<I: IntoIterator<Item = T>>(all: I) -> Self {
        let (mut list, all) = (Self::new(), all.into_iter());
        if all.size_hint().0 > FEW {
            list.many.extend(all);
        } else {
            all.for_each(|element| list.push(element));
        }
        list
    }
}

impl<T> Deref for Few<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        if !self.many.is_empty() {
            return &self.many;
        }
        // SAFETY: so many hold elements.
        unsafe { slice::from_raw_parts(self.few.as_ptr().cast(), self.count) }
    }
}

impl<T> DerefMut for Few<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        if !self.many.is_empty() {
            return &mut self.many;
        }
        // SAFETY: so many hold elements, which are ours alone.
        unsafe { slice::from_raw_parts_mut(self.few.as_mut_ptr().cast(), self.count) }
    }
}

impl<T> Drop for Few<T> {
    #[inline]
    fn drop(&mut self) {
        for place in self.few.iter_mut().take(self.count) {
            // SAFETY: it holds an element, and is looked at for the last time.
            unsafe { place.assume_init_drop() };
        }
    }
}
