//! Layout of the registry: 32-bit words, of which every value is legal and none is believed.
//!
//! A change of any of it is a change of [`VERSION`].

use super::{BLOCK_BITS, Block, DomainName, SlotId};
use adverb_sys::udp::steering::PROBES_MAX;
use std::sync::atomic::{AtomicU32, Ordering};

pub(super) const MAGIC: u32 = 0x4164_7672;
pub(super) const VERSION: u32 = 9;
/// Processes (each with each device it has open) at once.
pub(super) const SLOT_COUNT: usize = 1024;
pub(super) const BLOCK_COUNT: usize = 1 << (24 - BLOCK_BITS);
/// Addresses in use at once.
const GROUP_COUNT: usize = 64;
/// XRC domains of files that are open at once, multicast groups, and bound ports of connection
/// management, counted once for each device of each process.
pub(super) const DOMAIN_COUNT: usize = 4096;

/// Connections to other hosts at once.
const RECORD_COUNT: usize = 16_384;

adverb_shm::layout! {
    #[derive(Debug)]
    pub(super) struct Layout {
        pub(super) magic: AtomicU32,
        pub(super) version: AtomicU32,
        /// Grows whenever a name is claimed or given up.
        pub(super) domain_changes: AtomicU32,
        /// What devices of this registry know and other users do not.
        pub(super) secret_low: AtomicU32,
        pub(super) secret_high: AtomicU32,
        /// Not 0 if there are records of devices whose slots others have.
        pub(super) orphans: AtomicU32,
        spare: [AtomicU32; 10],
        slots: [Slot; SLOT_COUNT],
        /// Of each block of queue pair numbers, one more than the slot that has it; 0 if none does.
        blocks: [AtomicU32; BLOCK_COUNT],
        pub(super) groups: [Group; GROUP_COUNT],
        pub(super) census: Census,
        pub(super) domains: [Domain; DOMAIN_COUNT],
        pub(super) records: [Record; RECORD_COUNT],
    }

    /// A device of a process.
    #[derive(Debug, Default)]
    pub(super) struct Slot {
        pub(super) pid: AtomicU32,
        pub(super) relay_port: AtomicU32,
        pub(super) relayed: AtomicU32,
        /// Version of the shared memory that the device uses, 0 if it does not; and a number that no
        /// device in this slot had before.
        pub(super) shm: AtomicU32,
        pub(super) nonce_low: AtomicU32,
        pub(super) nonce_high: AtomicU32,
        /// Another number for each device that takes the slot.
        pub(super) serial: AtomicU32,
        /// The number of its network interface.
        pub(super) interface: AtomicU32,
        /// The namespace that the process's number is of.
        pub(super) processes: AtomicU32,
        /// 1 if the device takes management datagrams, 0 if not.
        pub(super) manages: AtomicU32,
        /// Connections to other hosts that it has written down.
        pub(super) connections: AtomicU32,
        spare: [AtomicU32; 3],
        /// One more than the number of the descriptor behind which it shows its counters; 0 for none.
        pub(super) counters: AtomicU32,
        /// How often others have asked for them.
        pub(super) asked: AtomicU32,
    }

    /// The sockets of one address.
    #[derive(Debug)]
    pub(super) struct Group {
        /// The address, and the scope of one that needs it.
        pub(super) key: [AtomicU32; 5],
        pub(super) len: AtomicU32,
        /// One more than the slot of the device that gets what is for none; 0 if that is the first member.
        pub(super) server: AtomicU32,
        /// How often another device became that because the one before it did not answer.
        pub(super) takeovers: AtomicU32,
        /// The last question that it has answered.
        pub(super) answered: AtomicU32,
        pub(super) members: [AtomicU32; SLOT_COUNT],
    }

    /// Which socket of an address is whose, found out by asking.
    #[derive(Debug)]
    pub(super) struct Census {
        pub(super) nonce: AtomicU32,
        /// One more than the slot that a probe has come to.
        pub(super) seen: [AtomicU32; PROBES_MAX],
    }

    /// A connection to another host.
    #[derive(Debug)]
    pub(super) struct Record {
        /// One more than the slot of the device that has it; 0 if the place is free. And which of those that had the slot.
        pub(super) owner: AtomicU32,
        pub(super) serial: AtomicU32,
        /// Its name; 0: the record is not complete, or is taken.
        pub(super) id: AtomicU32,
        pub(super) remote_id: AtomicU32,
        pub(super) remote_qpn: AtomicU32,
        pub(super) traffic_class: AtomicU32,
        pub(super) local: [AtomicU32; 4],
        pub(super) peer: [AtomicU32; 4],
    }

    /// A claim on a name.
    #[derive(Debug)]
    pub(super) struct Domain {
        /// One more than the slot that has it; 0 if none does.
        pub(super) owner: AtomicU32,
        pub(super) name: [AtomicU32; DomainName::WORDS],
    }
}

/// Two megabytes for all processes of a user on a host together.
const _: () = assert!(size_of::<Layout>() <= 2 << 20);

impl Layout {
    /// The part of a device; of a slot that there is not, the last.
    #[inline]
    pub(super) fn slot(&self, slot: SlotId) -> &Slot {
        let [.., last] = &self.slots;
        self.slots.get(index(slot.0)).unwrap_or(last)
    }

    /// The word of a block of queue pair numbers.
    #[inline]
    pub(super) fn block(&self, block: Block) -> &AtomicU32 {
        let [.., last] = &self.blocks;
        self.blocks.get(index(block.0)).unwrap_or(last)
    }
}

impl Group {
    /// The members, in order; not necessarily alive.
    pub(super) fn listed(&self) -> impl Iterator<Item = SlotId> + '_ {
        let len = index(self.len.load(Ordering::Relaxed));
        let last = u32::try_from(SLOT_COUNT - 1).unwrap_or(0);
        let members = self.members.iter().take(len);
        members.map(move |slot| SlotId(slot.load(Ordering::Relaxed).min(last)))
    }

    pub(super) fn write(&self, members: &[SlotId]) {
        for (place, slot) in self.members.iter().zip(members) {
            place.store(slot.0, Ordering::Relaxed);
        }
        let len = u32::try_from(members.len().min(SLOT_COUNT)).unwrap_or(0);
        self.len.store(len, Ordering::Relaxed);
    }
}

/// The values of some words.
pub(super) fn load<const N: usize>(words: &[AtomicU32; N]) -> [u32; N] {
    words.each_ref().map(|word| word.load(Ordering::Relaxed))
}

/// A number of 64 bits in two words.
pub(super) fn load_halves(low: &AtomicU32, high: &AtomicU32) -> u64 {
    let [low, high] = [low, high].map(|word| u64::from(word.load(Ordering::Relaxed)));
    high << 32 | low
}

pub(super) fn index(word: u32) -> usize {
    usize::try_from(word).unwrap_or(usize::MAX)
}
