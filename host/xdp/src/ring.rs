//! A ring that this process and the kernel share: entries between a consumer's and a producer's position.
//!
//! Positions count on for ever, modulo 2³², and differ by at most the number of entries. The kernel writes one of them;
//! of the rings of a queue, so do other members. Positions that say otherwise are nonsense: the ring then counts as
//! empty, or as full, whichever means that nothing is done. What the entries say is for the caller to check.

use adverb_shm::line;
use adverb_sys::memory::Mapping;
use rustix::net::xdp::XdpRingOffset;
use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU32, Ordering};

/// A frame's bytes, as the kernel names them: from this address of the UMEM on.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Descriptor {
    pub(crate) addr: u64,
    pub(crate) len: u32,
    /// Says, if it is not 0, that the frame goes on in the next entry, or has metadata.
    pub(crate) options: u32,
}

/// A ring that is mapped.
#[derive(Debug)]
pub(crate) struct Ring {
    memory: Mapping,
    entries: u32,
    entry_bytes: usize,
    producer: usize,
    consumer: usize,
    flags: Option<usize>,
    first: usize,
}

/// What a ring holds.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Entry {
    /// Addresses: the fill and completion rings.
    Address,
    /// Descriptors: the rings of a socket.
    Descriptor,
}

impl Ring {
    /// Maps a ring of a socket; `entries` is a power of two, with which it was made.
    pub(crate) fn map(
        socket: impl AsFd,
        page_offset: u64,
        offsets: &XdpRingOffset,
        entries: u32,
        entry: Entry,
    ) -> io::Result<Self> {
        assert!(entries.is_power_of_two(), "the kernel has refused others");
        let place = |offset: u64| usize::try_from(offset).map_err(io::Error::other);
        let entry_bytes = match entry {
            Entry::Address => 8,
            Entry::Descriptor => 16,
        };
        let first = place(offsets.desc)?;
        let len = first + entry_bytes * usize::try_from(entries).map_err(io::Error::other)?;
        let memory = Mapping::shared_at(socket, page_offset, len)?;
        // A look for what has come needs no lock that keeps handlers away.
        if memory.leave_zeros_to_children().is_err() {
            memory.keep_from_children()?;
        }
        Ok(Self {
            memory,
            entries,
            entry_bytes,
            producer: place(offsets.producer)?,
            consumer: place(offsets.consumer)?,
            flags: offsets.flags.map(place).transpose()?,
            first,
        })
    }

    /// Entries that were produced and not consumed.
    #[inline]
    pub(crate) fn filled(&self) -> u32 {
        let produced = self.producer().load(Ordering::Acquire);
        let filled = produced.wrapping_sub(self.consumer().load(Ordering::Acquire));
        if filled <= self.entries { filled } else { 0 }
    }

    /// Entries that may be produced.
    #[inline]
    pub(crate) fn room(&self) -> u32 {
        let produced = self.producer().load(Ordering::Acquire);
        let filled = produced.wrapping_sub(self.consumer().load(Ordering::Acquire));
        self.entries.saturating_sub(filled)
    }

    /// Position of the next entry to be consumed.
    #[inline]
    pub(crate) fn next_consumed(&self) -> u32 {
        self.consumer().load(Ordering::Relaxed)
    }

    /// Position of the next entry to be produced.
    #[inline]
    pub(crate) fn next_produced(&self) -> u32 {
        self.producer().load(Ordering::Relaxed)
    }

    /// All entries before this position have been read.
    #[inline]
    pub(crate) fn consumed(&self, position: u32) {
        self.consumer().store(position, Ordering::Release);
    }

    /// All entries before this position have been written.
    #[inline]
    pub(crate) fn produced(&self, position: u32) {
        self.producer().store(position, Ordering::Release);
    }

    /// The kernel waits for a call before it looks at the ring.
    #[inline]
    pub(crate) fn needs_wakeup(&self) -> bool {
        let flags = self.flags.map(|at| self.memory.half(at).load(Ordering::Relaxed));
        flags.is_none_or(|flags| flags & NEED_WAKEUP != 0)
    }

    /// Asks for the line of an entry.
    #[inline]
    pub(crate) fn prefetch(&self, position: u32) {
        line::prefetch(self.memory.as_ptr().as_ptr().wrapping_add(self.place(position)));
    }

    #[inline]
    pub(crate) fn address(&self, position: u32) -> u64 {
        self.memory.word(self.place(position)).load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn set_address(&self, position: u32, addr: u64) {
        self.memory.word(self.place(position)).store(addr, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn descriptor(&self, position: u32) -> Descriptor {
        let at = self.place(position);
        let half = |offset| self.memory.half(at + offset).load(Ordering::Relaxed);
        Descriptor { addr: self.address(position), len: half(8), options: half(12) }
    }

    #[inline]
    pub(crate) fn set_descriptor(&self, position: u32, descriptor: Descriptor) {
        let Descriptor { addr, len, options } = descriptor;
        let at = self.place(position);
        self.memory.word(at).store(addr, Ordering::Relaxed);
        self.memory.half(at + 8).store(len, Ordering::Relaxed);
        self.memory.half(at + 12).store(options, Ordering::Relaxed);
    }

    #[inline]
    fn place(&self, position: u32) -> usize {
        let index = usize::try_from(position & (self.entries - 1)).unwrap_or(0);
        self.first + index * self.entry_bytes
    }

    #[inline]
    fn producer(&self) -> &AtomicU32 {
        self.memory.half(self.producer)
    }

    #[inline]
    fn consumer(&self) -> &AtomicU32 {
        self.memory.half(self.consumer)
    }
}

/// `XDP_RING_NEED_WAKEUP`.
const NEED_WAKEUP: u32 = 1;

#[cfg(test)]
mod tests {
    use super::*;
    use adverb_sys::memory::memfd;

    fn ring() -> Ring {
        let file = memfd("ring", 4096).unwrap();
        let offsets = XdpRingOffset { producer: 0, consumer: 64, desc: 128, flags: Some(68) };
        Ring::map(&file, 0, &offsets, 4, Entry::Descriptor).unwrap()
    }

    #[test]
    fn positions_wrap_and_nonsense_is_neither_full_nor_free() {
        let ring = ring();
        ring.produced(u32::MAX);
        ring.consumed(u32::MAX - 1);
        assert_eq!((ring.filled(), ring.room()), (1, 3));
        ring.produced(2);
        assert_eq!((ring.filled(), ring.room()), (4, 0));
        ring.produced(3); // More than there are.
        assert_eq!((ring.filled(), ring.room()), (0, 0));
        ring.produced(u32::MAX - 2); // Behind what was consumed.
        assert_eq!((ring.filled(), ring.room()), (0, 0));
    }

    #[test]
    fn entries_stay_within_the_ring_at_every_position() {
        let ring = ring();
        for position in [0, 3, 4, u32::MAX] {
            let descriptor = Descriptor { addr: u64::from(position), len: 7, options: 1 };
            ring.set_descriptor(position, descriptor);
            assert_eq!(ring.descriptor(position & 3), descriptor);
        }
    }
}
