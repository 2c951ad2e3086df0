//! Pages: memory of several processes, with a layout that is a type.
//!
//! A page is a file in memory that can neither grow nor shrink, and the mapping of its first bytes as one value. The
//! process that makes it hands on the descriptor; the one that gets the descriptor checks seals and length before it
//! maps the file. What the bytes say is for the layout's users to check.
//!
//! # Safety
//!
//! 1. A layout is made of atomics, of bytes that are reached by pointer alone, and of arrays and structures of these. So
//!    every bit pattern is legal, and a shared reference is sound whatever other processes write there.
//! 2. A page's mapping is at least as long as its layout, and begins at a page's boundary, which is aligned for it.
//! 3. The file that is mapped cannot be cut short: it has been sealed. No access raises `SIGBUS`.

use adverb_sys::memory::{self, Mapping};
use std::cell::UnsafeCell;
use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::ops::Deref;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64};

/// What may lie in memory of several processes. Structures get it by [`layout!`](crate::layout).
///
/// # Safety
///
/// Every bit pattern is a legal value, and shared references allow what other processes do (rule 1).
pub unsafe trait Layout: Sync {}

// SAFETY: every number is legal, and every access is atomic.
unsafe impl Layout for AtomicU8 {}
// SAFETY: as above.
unsafe impl Layout for AtomicU16 {}
// SAFETY: as above.
unsafe impl Layout for AtomicU32 {}
// SAFETY: as above.
unsafe impl Layout for AtomicU64 {}
// SAFETY: each of them is legal.
unsafe impl<T: Layout, const N: usize> Layout for [T; N] {}

/// Bytes that are reached by pointer alone. Their users answer for races.
#[repr(transparent)]
pub struct Bytes<const N: usize>(UnsafeCell<[u8; N]>);

impl<const N: usize> Bytes<N> {
    /// The first of them.
    #[inline]
    pub const fn as_ptr(&self) -> *mut u8 {
        self.0.get().cast()
    }
}

impl<const N: usize> fmt::Debug for Bytes<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{N} bytes")
    }
}

// SAFETY: a shared reference gives out a pointer, and what is done with it is the user's answer.
unsafe impl<const N: usize> Sync for Bytes<N> {}
// SAFETY: every byte is legal.
unsafe impl<const N: usize> Layout for Bytes<N> {}

/// Defines structures that may lie in memory of several processes: `repr(C)`, and each field a [`page::Layout`].
///
/// [`page::Layout`]: crate::page::Layout
#[macro_export]
macro_rules! layout {
    ($(
        $(#[$attribute:meta])*
        $visible:vis struct $name:ident {
            $($(#[$about:meta])* $shown:vis $field:ident: $type:ty,)*
        }
    )+) => {$(
        $(#[$attribute])*
        #[repr(C)]
        $visible struct $name {
            $($(#[$about])* $shown $field: $type,)*
        }

        // SAFETY: each field is a legal layout, as the bounds say.
        unsafe impl $crate::page::Layout for $name where $($type: $crate::page::Layout),* {}
    )+};
}

/// Which processes can write to a page.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Writers {
    /// All that have its descriptor.
    All,
    /// The one that has made it.
    Maker,
}

/// A mapped page; `T` says what lies in it.
pub struct Page<T> {
    memory: Mapping,
    layout: PhantomData<fn() -> T>,
}

impl<T: Layout> Page<T> {
    /// A page of zeros that only this process has.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if there is no room for it.
    pub fn anonymous() -> io::Result<Self> {
        Ok(Self::of(Mapping::anonymous(size_of::<T>())?))
    }

    /// A page of zeros, and the descriptor by which others can map it. `name` is for `/proc` alone.
    ///
    /// # Errors
    ///
    /// No memory or descriptors left. `EINVAL` for [`Writers::Maker`] where the kernel is older than 5.1.
    pub fn create(name: &str, writers: Writers) -> io::Result<(Self, OwnedFd)> {
        let (memory, file) = match writers {
            Writers::All => Mapping::memfd(name, size_of::<T>())?,
            Writers::Maker => Mapping::memfd_for_readers(name, size_of::<T>())?,
        };
        Ok((Self::of(memory), file))
    }

    /// The page of another process, from its descriptor: to write to if `writers` are all. A store to a page that is
    /// its maker's ends this process.
    ///
    /// # Errors
    ///
    /// `InvalidData` if the file is too short, or could be cut short later.
    pub fn open(file: impl AsFd, writers: Writers) -> io::Result<Self> {
        if !memory::is_sealed(&file) || memory::file_len(&file)? < size_of::<T>() {
            let message = "a file in shared memory is too short, or not sealed";
            return Err(io::Error::new(io::ErrorKind::InvalidData, message));
        }
        Ok(Self::of(match writers {
            Writers::All => Mapping::shared(&file, size_of::<T>())?,
            Writers::Maker => Mapping::shared_for_reading(&file, size_of::<T>())?,
        }))
    }

    /// Of a mapping that is as long as the layout.
    fn of(memory: Mapping) -> Self {
        const { assert!(align_of::<T>() <= 4096, "a mapping is aligned for it") };
        assert!(memory.len() >= size_of::<T>(), "a mapping is as long as it was asked to be");
        Self { memory, layout: PhantomData }
    }
}

impl<T: Layout> Deref for Page<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: as long as the layout and aligned for it (rule 2), mapped as long as this is borrowed, and legal
        // whatever it says (rules 1 and 3).
        unsafe { self.memory.as_ptr().cast().as_ref() }
    }
}

impl<T> fmt::Debug for Page<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.memory.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    crate::layout! {
        struct Head {
            word: AtomicU32,
            rows: [Row; 600],
        }

        #[repr(align(64))]
        struct Row {
            number: AtomicU64,
            bytes: Bytes<8>,
        }
    }

    #[test]
    fn two_mappings_of_one_page_are_the_same_memory() {
        let (here, file) = Page::<Head>::create("page", Writers::All).unwrap();
        let there = Page::<Head>::open(&file, Writers::All).unwrap();
        here.rows[599].number.store(7, Ordering::Release);
        there.word.store(8, Ordering::Release);
        assert_eq!(there.rows[599].number.load(Ordering::Acquire), 7);
        assert_eq!(here.word.load(Ordering::Acquire), 8);
        let at = here.rows[3].bytes.as_ptr();
        // SAFETY: eight bytes that are this test's.
        unsafe { at.cast::<[u8; 8]>().write(*b"abcdefgh") };
        let at = there.rows[3].bytes.as_ptr();
        // SAFETY: as above.
        assert_eq!(&unsafe { at.cast::<[u8; 8]>().read() }, b"abcdefgh");
    }

    #[test]
    fn only_the_maker_writes_to_its_own_page() {
        let (here, file) = Page::<Head>::create("page", Writers::Maker).unwrap();
        here.word.store(9, Ordering::Release);
        assert!(Page::<Head>::open(&file, Writers::All).is_err());
        let there = Page::<Head>::open(&file, Writers::Maker).unwrap();
        assert_eq!(there.word.load(Ordering::Acquire), 9);
    }

    #[test]
    fn a_file_that_is_short_or_may_become_so_is_no_page() {
        let (_, short) = Mapping::memfd("page", 4096).unwrap();
        let open = memory::memfd("page", 1 << 20).unwrap();
        for file in [short, open] {
            for writers in [Writers::All, Writers::Maker] {
                let error = Page::<Head>::open(&file, writers).unwrap_err();
                assert_eq!(error.kind(), io::ErrorKind::InvalidData);
            }
        }
    }
}
