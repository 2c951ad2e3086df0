//! Peer page: what a device publishes to the other processes of its user: whether it sleeps,
//! the states of its queue pairs, and its registered regions.
//!
//! The owner writes; the others can map it for reading only, so that none of them can show a third process rights
//! that the owner has not granted. It is one sealed file without a name, large and almost all of it holes. A record
//! of a region is valid while its key is: a user of one says so first (`shm/guard.rs`), so that the owner can wait
//! for it after taking the key away.

use crate::registry::{BLOCK_BITS, Block};
use adverb_engine::Access;
use adverb_sys::memory::{Mapping, file_len, is_sealed};
use adverb_sys::random;
use adverb_wire::Qpn;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Places of things, in bytes. A change of any of it is a change of [`VERSION`].
mod layout {
    pub(super) const MAGIC: usize = 0;
    /// A word that only a process which can read this one's memory can find out, and where it is.
    pub(super) const PROBE: usize = 8;
    pub(super) const PROBE_ADDRESS: usize = 16;
    pub(super) const SLEEPERS: usize = 64;
    /// Of each block of numbers, which one it was of those that this process claimed; from 1.
    pub(super) const DIRECTORY: usize = 4096;
    pub(super) const QPS: usize = DIRECTORY + 4 * (1 << 16);
    pub(super) const BLOCKS_MAX: usize = 4096;
    pub(super) const REGIONS: usize = QPS + 8 * (BLOCKS_MAX << super::BLOCK_BITS);
    pub(super) const REGION: usize = 64;
    pub(super) const REGIONS_MAX: usize = 1 << 20;
    pub(super) const BYTES: usize = REGIONS + REGION * REGIONS_MAX;
}

/// Version of this layout, of the shared-memory links' and of what handshakes say: devices of different versions use
/// the network.
pub(crate) const VERSION: u32 = 3;
const MAGIC: u64 = 0x4164_7673_6865_6c00 | 1;

/// The record of one region.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record<'a> {
    /// The key in the low half, the protection domain in the high one. 0: no region.
    pub(crate) key: &'a AtomicU64,
    /// The address by which peers know the first byte.
    pub(crate) va: &'a AtomicU64,
    pub(crate) len: &'a AtomicU64,
    pub(crate) rights: &'a AtomicU64,
    /// Where the first byte is in the owner.
    pub(crate) base: &'a AtomicU64,
    /// Which of the owner's files it is in, from 1; 0 if in none.
    pub(crate) file: &'a AtomicU64,
    /// Where in the file.
    pub(crate) offset: &'a AtomicU64,
    /// A number that no other region of the owner has or had.
    pub(crate) serial: &'a AtomicU64,
}

/// What a queue pair publishes: its peer, and the peer's rights to direct access.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct QpWord(u64);

/// Its peer has to send packets.
const PACKETS: u64 = 1 << 29;
/// It has resources for READs and atomics; beside the rights, which are four bits.
const RESOURCES: u64 = 1 << 28;
const RIGHTS_SHIFT: u32 = 24;

impl QpWord {
    /// Its peer may do nothing.
    pub(crate) const CLOSED: Self = Self(0);

    /// As [`QpWord::CLOSED`], and its peer has to send packets: others may have to be given them.
    pub(crate) const ONLY_PACKETS: Self = Self(PACKETS);

    pub(crate) fn new(remote: Qpn, access: Access, resources: bool, domain: u32) -> Self {
        let resources = if resources { RESOURCES } else { 0 };
        let rights = u64::from(access.bits()) << RIGHTS_SHIFT;
        Self(u64::from(remote.get()) | rights | resources | u64::from(domain) << 32)
    }

    pub(crate) const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    pub(crate) const fn bits(self) -> u64 {
        self.0
    }

    /// Its peer.
    pub(crate) fn remote(self) -> Qpn {
        Qpn::new(u32::try_from(self.0 & 0x00ff_ffff).unwrap_or(0))
    }

    /// What its peer may do.
    pub(crate) fn access(self) -> Access {
        Access::from_bits(u32::try_from(self.0 >> RIGHTS_SHIFT & 0xf).unwrap_or(0))
    }

    /// Its peer has to send packets, and not records.
    pub(crate) const fn is_for_packets(self) -> bool {
        self.0 & PACKETS != 0
    }

    /// READs and atomics have a place.
    pub(crate) const fn has_resources(self) -> bool {
        self.0 & RESOURCES != 0
    }

    /// Its protection domain.
    pub(crate) fn domain(self) -> u32 {
        u32::try_from(self.0 >> 32).unwrap_or(0)
    }
}

/// A device's peer page, its own or a peer's.
#[derive(Debug)]
pub(crate) struct PeerPage {
    memory: Mapping,
    file: OwnedFd,
    probe: Box<AtomicU64>,
}

impl PeerPage {
    /// An empty one.
    pub(crate) fn new() -> io::Result<Self> {
        // Kernels before 5.1 cannot keep others from writing.
        let name = "adverb-peer-page";
        let (memory, file) = Mapping::memfd_for_readers(name, layout::BYTES)
            .or_else(|_| Mapping::memfd(name, layout::BYTES))?;
        let probe = Box::new(AtomicU64::new(random::number()));
        let page = Self { memory, file, probe };
        let address = std::ptr::from_ref(&*page.probe).addr();
        let value = page.probe.load(Ordering::Relaxed);
        page.memory.word(layout::PROBE).store(value, Ordering::Relaxed);
        let address = u64::try_from(address).unwrap_or(0);
        page.memory.word(layout::PROBE_ADDRESS).store(address, Ordering::Relaxed);
        page.memory.word(layout::MAGIC).store(MAGIC, Ordering::Release);
        Ok(page)
    }

    /// A peer's, from the descriptor that it sent.
    pub(crate) fn open(file: OwnedFd) -> io::Result<Self> {
        if !is_sealed(&file) || file_len(&file)? < layout::BYTES {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "not a device's peer page"));
        }
        let memory = Mapping::shared_for_reading(&file, layout::BYTES)?;
        let page = Self { memory, file, probe: Box::default() };
        if page.memory.word(layout::MAGIC).load(Ordering::Acquire) != MAGIC {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "not a device's peer page"));
        }
        Ok(page)
    }

    /// Threads of the device that sleep and want to be woken.
    #[inline]
    pub(crate) fn sleepers(&self) -> &AtomicU32 {
        self.memory.half(layout::SLEEPERS)
    }

    /// What is found at which address of the owner, by processes that may look.
    pub(crate) fn probe(&self) -> (u64, u64) {
        let load = |at| self.memory.word(at).load(Ordering::Relaxed);
        (load(layout::PROBE_ADDRESS), load(layout::PROBE))
    }

    /// Makes room for the queue pairs of a block, the one with this number of those claimed.
    pub(crate) fn add_block(&self, block: Block, number: usize) {
        if number < layout::BLOCKS_MAX {
            let number = u32::try_from(number + 1).unwrap_or(0);
            self.directory(block).store(number, Ordering::Release);
        }
    }

    fn directory(&self, block: Block) -> &AtomicU32 {
        let block = usize::try_from(block.index()).unwrap_or(0) % (1 << 16);
        self.memory.half(layout::DIRECTORY + 4 * block)
    }

    /// The word of a queue pair, if the owner has made room for it.
    #[inline]
    pub(crate) fn qp(&self, qp: Qpn) -> Option<&AtomicU64> {
        let number = self.directory(Block::of(qp)).load(Ordering::Acquire).checked_sub(1)?;
        let number = usize::try_from(number).ok().filter(|n| *n < layout::BLOCKS_MAX)?;
        let within = usize::try_from(qp.get()).ok()? % (1 << BLOCK_BITS);
        Some(self.memory.word(layout::QPS + 8 * ((number << BLOCK_BITS) + within)))
    }

    /// The record of the region with this index.
    #[inline]
    pub(crate) fn region(&self, index: u32) -> Option<Record<'_>> {
        let index = usize::try_from(index).ok().filter(|n| *n < layout::REGIONS_MAX)?;
        let words = self.memory.atomic_u64s(layout::REGIONS + layout::REGION * index)?;
        let [key, va, len, rights, base, file, offset, serial] = words;
        Some(Record { key, va, len, rights, base, file, offset, serial })
    }
}

impl AsFd for PeerPage {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_sees_what_the_owner_lays_out() {
        let mine = PeerPage::new().unwrap();
        let theirs = PeerPage::open(mine.as_fd().try_clone_to_owned().unwrap()).unwrap();
        let qp = Qpn::new(0x0012_3456);
        assert!(theirs.qp(qp).is_none());
        mine.add_block(Block::of(qp), 3);
        mine.qp(qp).unwrap().store(7, Ordering::Relaxed);
        assert_eq!(theirs.qp(qp).unwrap().load(Ordering::Relaxed), 7);
        mine.region(9).unwrap().serial.store(8, Ordering::Relaxed);
        assert_eq!(theirs.region(9).unwrap().serial.load(Ordering::Relaxed), 8);
        assert!(theirs.region(1 << 20).is_none());
        assert_eq!(mine.probe(), theirs.probe());
        assert!(Mapping::shared(theirs.as_fd(), layout::BYTES).is_err(), "others can write to it");
    }

    #[test]
    fn a_file_that_is_no_peer_page_is_refused() {
        let (_, short) = Mapping::memfd("x", 4096).unwrap();
        assert!(PeerPage::open(short).is_err());
        let (_, empty) = Mapping::memfd("x", layout::BYTES).unwrap();
        assert!(PeerPage::open(empty).is_err());
        let open = adverb_sys::memory::memfd("x", layout::BYTES).unwrap();
        assert!(PeerPage::open(open).is_err(), "it could be cut short later");
    }
}
