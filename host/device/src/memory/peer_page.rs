//! Peer page: what a device publishes to the other processes of its user: whether it sleeps,
//! the states of its queue pairs, and its registered regions.
//!
//! The owner writes; the others can map it for reading only, so that none of them can show a third process rights
//! that the owner has not granted. It is one sealed file without a name, large and almost all of it holes. A record
//! of a region is valid while its key is: a user of one says so first (`shm/guard.rs`), so that the owner can wait
//! for it after taking the key away.

use crate::registry::{BLOCK_BITS, Block};
use adverb_engine::Access;
use adverb_shm::page::{Page, Writers};
use adverb_sys::random;
use adverb_wire::Qpn;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

adverb_shm::layout! {
    /// What a device publishes. A change of any of it is a change of [`VERSION`].
    struct Layout {
        head: Head,
        sleepers: Sleepers,
        /// Of each block of numbers, which one it was of those that this process claimed; from 1.
        directory: Directory,
        qps: [[AtomicU64; 1 << BLOCK_BITS]; BLOCKS_MAX],
        regions: [Record; REGIONS_MAX],
    }

    #[repr(align(64))]
    struct Head {
        magic: AtomicU64,
        /// A word that only a process which can read this one's memory can find out, and where it is.
        probe: AtomicU64,
        probe_address: AtomicU64,
    }

    #[repr(align(64))]
    struct Sleepers {
        count: AtomicU32,
    }

    #[repr(align(4096))]
    struct Directory {
        numbers: [AtomicU32; BLOCKS_ALL],
    }

    /// The record of one region.
    #[derive(Debug)]
    pub(crate) struct Record {
        /// The key in the low half, the protection domain in the high one. 0: no region.
        pub(crate) key: AtomicU64,
        /// The address by which peers know the first byte.
        pub(crate) va: AtomicU64,
        pub(crate) len: AtomicU64,
        pub(crate) rights: AtomicU64,
        /// Where the first byte is in the owner.
        pub(crate) base: AtomicU64,
        /// Which of the owner's files it is in, from 1; 0 if in none.
        pub(crate) file: AtomicU64,
        /// Where in the file.
        pub(crate) offset: AtomicU64,
        /// A number that no other region of the owner has or had.
        pub(crate) serial: AtomicU64,
    }
}

/// Blocks that there are, and blocks of one device.
const BLOCKS_ALL: usize = 1 << (24 - BLOCK_BITS);
const BLOCKS_MAX: usize = 4096;
const REGIONS_MAX: usize = 1 << 20;

/// Version of this layout, of the shared-memory links' and of what handshakes say: devices of different versions use
/// the network.
pub(crate) const VERSION: u32 = 4;
const MAGIC: u64 = 0x4164_7673_6865_6c00 | 1;

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
    memory: Page<Layout>,
    file: OwnedFd,
    #[expect(dead_code, reason = "held, not used: neighbours look whether they find it")]
    probe: Box<AtomicU64>,
}

impl PeerPage {
    /// An empty one.
    pub(crate) fn new() -> io::Result<Self> {
        // Kernels before 5.1 cannot keep others from writing.
        let name = "adverb-peer-page";
        let (memory, file) = Page::<Layout>::create(name, Writers::Maker)
            .or_else(|_| Page::create(name, Writers::All))?;
        let probe = Box::new(AtomicU64::new(random::number()));
        let address = u64::try_from(std::ptr::from_ref(&*probe).addr()).unwrap_or(0);
        let Head { magic, probe: word, probe_address } = &memory.head;
        word.store(probe.load(Ordering::Relaxed), Ordering::Relaxed);
        probe_address.store(address, Ordering::Relaxed);
        magic.store(MAGIC, Ordering::Release);
        Ok(Self { memory, file, probe })
    }

    /// A peer's, from the descriptor that it sent.
    pub(crate) fn open(file: OwnedFd) -> io::Result<Self> {
        let memory = Page::<Layout>::open(&file, Writers::Maker)?;
        if memory.head.magic.load(Ordering::Acquire) != MAGIC {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "not a device's peer page"));
        }
        Ok(Self { memory, file, probe: Box::default() })
    }

    /// Threads of the device that sleep and want to be woken.
    #[inline]
    pub(crate) fn sleepers(&self) -> &AtomicU32 {
        &self.memory.sleepers.count
    }

    /// What is found at which address of the owner, by processes that may look.
    pub(crate) fn probe(&self) -> (u64, u64) {
        let Head { probe, probe_address, .. } = &self.memory.head;
        (probe_address.load(Ordering::Relaxed), probe.load(Ordering::Relaxed))
    }

    /// Makes room for the queue pairs of a block, the one with this number of those claimed.
    pub(crate) fn add_block(&self, block: Block, number: usize) {
        if number < BLOCKS_MAX
            && let Some(place) = self.directory(block)
        {
            place.store(u32::try_from(number + 1).unwrap_or(0), Ordering::Release);
        }
    }

    #[inline]
    fn directory(&self, block: Block) -> Option<&AtomicU32> {
        self.memory.directory.numbers.get(usize::try_from(block.index()).ok()?)
    }

    /// The word of a queue pair, if the owner has made room for it.
    #[inline]
    pub(crate) fn qp(&self, qp: Qpn) -> Option<&AtomicU64> {
        let number = self.directory(Block::of(qp))?.load(Ordering::Acquire).checked_sub(1)?;
        let block = self.memory.qps.get(usize::try_from(number).ok()?)?;
        block.get(usize::try_from(qp.get()).ok()? % block.len())
    }

    /// The record of the region with this index.
    #[inline]
    pub(crate) fn region(&self, index: u32) -> Option<&Record> {
        self.memory.regions.get(usize::try_from(index).ok()?)
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
        assert!(
            Page::<Layout>::open(theirs.as_fd(), Writers::All).is_err(),
            "others can write to it"
        );
    }

    #[test]
    fn a_page_that_is_no_peer_page_is_refused() {
        let (_, empty) = Page::<Layout>::create("x", Writers::All).unwrap();
        assert!(PeerPage::open(empty).is_err());
    }
}
