//! The host's registry: which process has which queue pair numbers, and which socket in the group
//! of each address is whose; which XRC domains are open where, which multicast groups have members where, and which
//! ports of connection management are bound (`services.rs`).
//!
//! It is one file of shared memory per user and network namespace, of fixed size, made by the first process that
//! opens a device and found by the others as `rendezvous.rs` says. Everything in it is 32-bit words. Changes are
//! made under a file lock that the kernel releases when its holder dies; a process holds a lock on its own slot's byte for as long
//! as it lives, so that a dead one's things can be told and taken back. Nothing in here is ever
//! waited for on the data path.

pub(crate) mod connections;
pub(crate) mod control_message;
pub(crate) mod counters;
mod layout;
mod own;
pub(crate) mod probe;
pub(crate) mod relay;
pub(crate) mod rendezvous;
pub(crate) mod services;
pub(crate) mod serving;
pub(crate) mod stats_page;

use self::layout::{
    Census, Group, Layout, MAGIC, SLOT_COUNT, Slot, VERSION, index, load, load_halves,
};
use self::own::{Own, halves};
use self::rendezvous::Place;
use crate::sync::Mutex;
use adverb_shm::alive;
use adverb_shm::page::{Page, Writers};
use adverb_sys::fork::Kept;
use adverb_sys::lock::{self, FileLock};
use adverb_sys::memory::Mapping;
use adverb_sys::unix::Listener;
use adverb_sys::{clock, process};
use adverb_wire::Qpn;
use std::fs::{File, Metadata};
use std::io;
use std::mem;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Devices of one user and network namespace at once.
pub(crate) const SLOTS_MAX: usize = SLOT_COUNT;
/// How many of the upper bits of a connection's name say which device of the host it is of.
pub const CONNECTION_PREFIX_BITS: u32 = 10;
const _: () = assert!(SLOTS_MAX == 1 << CONNECTION_PREFIX_BITS);

/// Queue pair numbers are handed out in blocks of this many bits.
pub(crate) const BLOCK_BITS: u32 = 8;

/// A block of queue pair numbers.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Block(u32);

impl Block {
    /// Numbers that are not in use: they stand for places in a group, and ask which process is there.
    pub(crate) const PROBE: Self = Self(0xfffe);

    /// The block that a number is in.
    pub(crate) const fn of(qp: Qpn) -> Self {
        Self(qp.get() >> BLOCK_BITS)
    }

    /// Its lowest number.
    pub(crate) const fn first(self) -> Qpn {
        Qpn::new(self.0 << BLOCK_BITS)
    }

    /// All its numbers.
    pub(crate) fn numbers(self) -> impl Iterator<Item = Qpn> {
        let first = self.first().get();
        (first..first + (1 << BLOCK_BITS)).map(Qpn::new)
    }

    /// The block's own number, as steering knows it.
    pub(crate) const fn index(self) -> u32 {
        self.0
    }
}

/// A process's place in the registry.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(crate) struct SlotId(u32);

impl SlotId {
    /// No slot, of a registry that has not found one yet.
    const NONE: Self = Self(u32::MAX);

    /// The slot with this number, if there is one.
    pub(crate) fn new(number: u32) -> Option<Self> {
        (index(number) < SLOT_COUNT).then_some(Self(number))
    }

    /// Its number.
    pub(crate) const fn number(self) -> u32 {
        self.0
    }
}

/// Tells a device from all that had its slot before.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(crate) struct Member {
    pub(crate) slot: SlotId,
    pub(crate) serial: u32,
}

/// What several processes have in common is known by on this host: an XRC domain with a file by the
/// interface and the file's inode, a multicast group by the interface and its address.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct DomainName([u32; Self::WORDS]);

impl DomainName {
    pub(crate) const WORDS: usize = 5;

    /// The domain that a file stands for on the device of this interface.
    pub(crate) fn new(interface: u32, file: &Metadata) -> Self {
        let halves = |number: u64| {
            let [a, b, c, d, e, f, g, h] = number.to_ne_bytes();
            [u32::from_ne_bytes([a, b, c, d]), u32::from_ne_bytes([e, f, g, h])]
        };
        let ([d0, d1], [i0, i1]) = (halves(file.dev()), halves(file.ino()));
        Self([interface, d0, d1, i0, i1])
    }

    /// A multicast group, as it is on the network of this interface.
    pub(crate) fn of_group(interface: u32, group: [u8; 16]) -> Self {
        let [g0, g1, g2, g3] = std::array::from_fn(|n| {
            let at = 4 * n;
            group
                .get(at..)
                .and_then(<[u8]>::first_chunk)
                .map_or(0, |word| u32::from_ne_bytes(*word))
        });
        Self([interface | Self::GROUP, g0, g1, g2, g3])
    }

    /// The number of an interface has no such bit.
    const GROUP: u32 = 1 << 31;

    /// As it is in a message.
    pub(crate) const fn words(self) -> [u32; Self::WORDS] {
        self.0
    }

    /// The name in a message.
    pub(crate) const fn from_words(words: [u32; Self::WORDS]) -> Self {
        Self(words)
    }
}

/// A device's claim on an XRC domain, or its part in a multicast group: its place in the registry.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct DomainClaim(usize);

/// Slots of the sockets in the group of an address: a socket's index is its place in the list.
pub(crate) type Members = Vec<SlotId>;

/// How long others may change things, which takes them milliseconds, unless they are stopped.
const LOCK_TIMEOUT: Duration = Duration::from_secs(20);
/// Byte of the file whose lock stands for slot 0; beyond its end, so that it is nothing else.
const LOCKS_START: u64 = 1 << 32;

/// The registry, seen by one device of one process.
#[derive(Debug)]
pub(crate) struct Registry {
    /// Where this process can open the file again.
    path: PathBuf,
    /// A child of this process does not hold the slot's lock.
    kept: Kept,
    file: File,
    memory: Page<Layout>,
    slot: SlotId,
    place: Place,
    /// The namespace that this process's number is of.
    processes: u32,
    /// Where newcomers ask for the file; `None` while the device joins.
    listener: Option<Listener>,
    /// What this device has written into the file.
    own: Mutex<Own>,
}

impl Registry {
    /// Takes a slot in the registry of this user and network namespace.
    ///
    /// # Errors
    ///
    /// Other processes that have devices open do not answer, or are of another version; no memory, or no slot left.
    pub(crate) fn join() -> io::Result<Self> {
        let place = Place::current()?;
        let founding = place.found()?;
        let bytes = Mapping::whole(size_of::<Layout>());
        let file = match place.find(VERSION, bytes, slots_max())? {
            Some(file) => file,
            None => place.make(bytes)?,
        };
        let mut registry = Self::join_by(file, place)?;
        registry.listener = Some(place.listen(registry.slot.0)?);
        drop(founding);
        Ok(registry)
    }

    /// Whose registry it is.
    pub(crate) fn place(&self) -> Place {
        self.place
    }

    /// This process is a child, by `fork`, of the one that has the device.
    pub(crate) fn is_inherited(&self) -> bool {
        self.kept.is_inherited()
    }

    /// Where newcomers ask for the registry.
    pub(crate) fn listener(&self) -> Option<&Listener> {
        self.listener.as_ref()
    }

    /// Answers the newcomers that wait; says how many words of what they look at first had to be put right.
    pub(crate) fn answer_newcomers(&self) -> u64 {
        let mended = self.mend_head();
        if let Some(listener) = &self.listener {
            rendezvous::answer(listener, self.place.user(), VERSION, &self.file);
        }
        mended
    }

    /// Takes a slot in the registry that is `file`, an open file description of our own.
    fn join_by(file: File, place: Place) -> io::Result<Self> {
        let path = rendezvous::path_of(&file);
        let kept = Kept::new(&file)?;
        let exclusive = lock_file(&path)?;
        let fresh = !is_ours(&file)?;
        let memory = Page::<Layout>::open(&file, Writers::All)?;
        let (slot, processes, listener) = (SlotId::NONE, namespace(), None);
        let own = Mutex::default();
        let mut registry = Self { path, kept, file, memory, slot, place, processes, listener, own };
        registry.remember_secret(match fresh {
            true => adverb_sys::random::number(),
            false => load_halves(&registry.memory.secret_low, &registry.memory.secret_high),
        });
        registry.mend_head();
        registry.slot = registry.take_slot()?;
        drop(exclusive);
        Ok(registry)
    }

    /// This device's slot.
    pub(crate) fn slot(&self) -> SlotId {
        self.slot
    }

    fn slot_at(&self, slot: SlotId) -> &Slot {
        self.memory.slot(slot)
    }

    fn take_slot(&self) -> io::Result<SlotId> {
        // To look at a thousand locks takes the kernel several milliseconds. The numbers of processes are
        // hints alone: those of dead ones may be another process's, or of another namespace. Locks decide.
        let likely = Self::slots().filter(|slot| !self.seems_taken(*slot));
        for slot in likely.chain(Self::slots()) {
            if !lock::lock_byte(&self.file, LOCKS_START + u64::from(slot.0))? {
                continue;
            }
            self.forget_blocks_of(slot);
            self.leave_groups(slot);
            self.forget_domains_of(slot);
            let serial = self.slot_at(slot).serial.load(Ordering::Relaxed);
            self.leave_records_of(slot);
            self.set_field(slot, |slot| &slot.serial, serial.wrapping_add(1));
            self.set_field(slot, |slot| &slot.pid, std::process::id());
            self.set_field(slot, |slot| &slot.processes, self.processes);
            self.set_relay_port_of(slot, 0);
            self.set_shm_of(slot, 0, 0, 0);
            self.set_field(slot, |slot| &slot.manages, 0);
            self.set_field(slot, |slot| &slot.counters, 0);
            self.set_field(slot, |slot| &slot.asked, 0);
            return Ok(slot);
        }
        Err(io::Error::other(format!(
            "{} processes of this user have RDMA devices open already, and more is not possible",
            SLOT_COUNT
        )))
    }

    fn slots() -> impl Iterator<Item = SlotId> + Clone {
        (0..SLOT_COUNT).filter_map(|n| u32::try_from(n).ok()).map(SlotId)
    }

    /// The process that was there last has not left, and there is one of its number, or it cannot be seen.
    fn seems_taken(&self, slot: SlotId) -> bool {
        match self.slot_at(slot).pid.load(Ordering::Relaxed) {
            0 => false,
            _ => !self.pid_of(slot).is_some_and(alive::is_missing),
        }
    }

    /// The number here of the process that was in a slot last; `None` if it is of another namespace.
    fn pid_of(&self, slot: SlotId) -> Option<u32> {
        let Slot { pid, processes, .. } = self.slot_at(slot);
        let is_near = processes.load(Ordering::Relaxed) == self.processes;
        is_near.then(|| pid.load(Ordering::Relaxed))
    }

    fn is_alive(&self, slot: SlotId) -> bool {
        let byte = LOCKS_START + u64::from(slot.0);
        slot == self.slot || lock::is_byte_locked(&self.file, byte).unwrap_or(true)
    }

    /// As [`Registry::is_alive`], but the kernel is asked once for each slot: nonsense may name one everywhere.
    fn liveness(&self) -> impl FnMut(SlotId) -> bool {
        let mut known = vec![None; SLOT_COUNT];
        move |slot| match known.get_mut(index(slot.0)) {
            Some(known) => *known.get_or_insert_with(|| self.is_alive(slot)),
            None => false,
        }
    }

    fn blocks() -> impl Iterator<Item = Block> + Clone {
        (0..layout::BLOCK_COUNT).filter_map(|n| u32::try_from(n).ok()).map(Block)
    }

    fn forget_blocks_of(&self, slot: SlotId) {
        for block in Self::blocks() {
            let word = self.memory.block(block);
            if word.load(Ordering::Relaxed) == slot.0 + 1 {
                word.store(0, Ordering::Relaxed);
            }
        }
    }

    /// This device.
    pub(crate) fn me(&self) -> Member {
        self.member(self.slot)
    }

    /// The process in a slot.
    pub(crate) fn member(&self, slot: SlotId) -> Member {
        Member { slot, serial: self.slot_at(slot).serial.load(Ordering::Relaxed) }
    }

    /// A device has not gone yet.
    pub(crate) fn lives(&self, member: Member) -> bool {
        self.member(member.slot) == member && self.is_alive(member.slot)
    }

    fn forget_domains_of(&self, slot: SlotId) {
        for (place, domain) in self.memory.domains.iter().enumerate() {
            if domain.owner.load(Ordering::Relaxed) == slot.0 + 1 {
                self.vacate_domain(place);
            }
        }
    }

    /// Places of claims, and whose they are; not necessarily alive.
    fn claims(&self) -> impl Iterator<Item = (usize, Option<SlotId>, DomainName)> + '_ {
        self.memory.domains.iter().enumerate().map(|(place, domain)| {
            let owner = domain.owner.load(Ordering::Acquire);
            let name = DomainName(load(&domain.name));
            (place, owner.checked_sub(1).and_then(SlotId::new), name)
        })
    }

    /// Claims a name for this device if `allow` agrees, which is told whether a live process
    /// has claimed it.
    pub(crate) fn claim_domain(
        &self,
        name: DomainName,
        allow: impl FnOnce(bool) -> io::Result<()>,
    ) -> io::Result<DomainClaim> {
        let exclusive = lock_file(&self.path)?;
        let (mut exists, mut free) = (false, None);
        for (place, owner, known) in self.claims() {
            match owner {
                None => free = free.or(Some(place)),
                Some(owner) if known == name || free.is_none() => match self.is_alive(owner) {
                    true => exists |= known == name,
                    false => free = free.or(Some(place)),
                },
                Some(_) => {}
            }
        }
        allow(exists)?;
        let domains = &self.memory.domains;
        let place = free.ok_or_else(|| {
            let most = domains.len();
            io::Error::other(format!(
                "{most} XRC domains of files, multicast groups and ports are in use, the most possible"
            ))
        })?;
        self.write_claim(place, name);
        drop(exclusive);
        Ok(DomainClaim(place))
    }

    /// Gives a claim another name if `allow` agrees.
    fn rename_claim(
        &self,
        DomainClaim(place): DomainClaim,
        name: DomainName,
        allow: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<()> {
        let exclusive = lock_file(&self.path)?;
        allow()?;
        self.forget_claim(place);
        self.write_claim(place, name);
        drop(exclusive);
        Ok(())
    }

    fn write_claim(&self, place: usize, name: DomainName) {
        let Some(domain) = self.memory.domains.get(place) else {
            return;
        };
        for (place, word) in domain.name.iter().zip(name.0) {
            place.store(word, Ordering::Relaxed);
        }
        domain.owner.store(self.slot.0 + 1, Ordering::Release);
        self.remember_claim(place, name);
        self.memory.domain_changes.fetch_add(1, Ordering::Release);
    }

    /// Gives a claim up.
    pub(crate) fn release_domain(&self, claim: DomainClaim) {
        self.forget_claim(claim.0);
        self.vacate_domain(claim.0);
    }

    fn vacate_domain(&self, place: usize) {
        if let Some(domain) = self.memory.domains.get(place) {
            domain.owner.store(0, Ordering::Release);
        }
        self.memory.domain_changes.fetch_add(1, Ordering::Release);
    }

    /// How often names were claimed or given up.
    #[inline]
    pub(crate) fn domain_changes(&self) -> u32 {
        self.memory.domain_changes.load(Ordering::Acquire)
    }

    /// The other devices that have claimed a name; not necessarily alive.
    pub(crate) fn claimants(&self, name: DomainName) -> impl Iterator<Item = Member> + '_ {
        let others = self.holders(name).filter(|owner| *owner != self.slot);
        others.map(|owner| self.member(owner))
    }

    /// The devices that have claimed a name, this one included; not necessarily alive.
    pub(crate) fn holders(&self, name: DomainName) -> impl Iterator<Item = SlotId> + '_ {
        self.claims().filter(move |(_, _, known)| *known == name).filter_map(|(_, owner, _)| owner)
    }

    /// A device of this process has claimed a name; of processes of other namespaces it is believed.
    pub(crate) fn is_held_by(&self, name: DomainName, pid: u32) -> bool {
        self.holders(name).any(|slot| self.pid_of(slot).is_none_or(|holder| holder == pid))
    }

    /// Claims a block of queue pair numbers that no live process has.
    pub(crate) fn claim_block(&self) -> io::Result<Block> {
        let exclusive = lock_file(&self.path)?;
        // Start anywhere, so that numbers are not used again soon after their process has gone, and cannot be told before.
        // The first block holds the special numbers 0 and 1, the last the multicast number; the one
        // before is for probes.
        let count = layout::BLOCK_COUNT - 3;
        let start = usize::try_from(adverb_sys::random::number() >> 1).unwrap_or(0) % count;
        let mut is_alive = self.liveness();
        let free =
            Self::blocks().skip(1).take(count).cycle().skip(start).take(count).find(|block| {
                match self.memory.block(*block).load(Ordering::Relaxed) {
                    0 => true,
                    owner => !is_alive(SlotId(owner - 1)),
                }
            });
        let block =
            free.ok_or_else(|| io::Error::other("all queue pair numbers of this host are in use"))?;
        self.memory.block(block).store(self.slot.0 + 1, Ordering::Release);
        self.remember_block(block);
        drop(exclusive);
        Ok(block)
    }

    /// The owner of this queue pair number; not necessarily alive.
    pub(crate) fn owner(&self, qp: Qpn) -> Option<SlotId> {
        let owner = self.memory.block(Block::of(qp)).load(Ordering::Acquire);
        owner.checked_sub(1).map(SlotId)
    }

    /// Says where packets for this slot can be passed on.
    pub(crate) fn set_relay_port(&self, port: u16) {
        self.set_relay_port_of(self.slot, port);
    }

    fn set_relay_port_of(&self, slot: SlotId, port: u16) {
        self.set_field(slot, |slot| &slot.relay_port, u32::from(port));
    }

    /// Where packets for `slot` can be passed on.
    pub(crate) fn relay_port(&self, slot: SlotId) -> Option<u16> {
        let port = self.slot_at(slot).relay_port.load(Ordering::Acquire);
        u16::try_from(port).ok().filter(|port| *port != 0)
    }

    /// The process in `slot` is stopped, as far as one can see from here.
    pub(crate) fn is_stopped(&self, slot: SlotId) -> bool {
        self.pid_of(slot).is_some_and(process::is_stopped)
    }

    /// Says that other devices of the host can come by way of shared memory of this version (0: they cannot), by which
    /// number they know this device, and which network interface it is.
    pub(crate) fn set_shm(&self, version: u32, nonce: u64, interface: u32) {
        self.set_shm_of(self.slot, version, nonce, interface);
    }

    fn set_shm_of(&self, slot: SlotId, version: u32, nonce: u64, interface: u32) {
        let [low, high] = halves(nonce);
        self.set_field(slot, |slot| &slot.interface, interface);
        self.set_field(slot, |slot| &slot.nonce_low, low);
        self.set_field(slot, |slot| &slot.nonce_high, high);
        self.set_field(slot, |slot| &slot.shm, version);
    }

    /// The network interface of the device in `slot`.
    #[inline]
    pub(crate) fn interface(&self, slot: SlotId) -> u32 {
        self.slot_at(slot).interface.load(Ordering::Relaxed)
    }

    /// The number of the device in `slot`, if it is alive and uses shared memory of this version.
    pub(crate) fn shm_nonce(&self, slot: SlotId, version: u32) -> Option<u64> {
        self.last_shm_nonce(slot, version).filter(|_| self.is_alive(slot))
    }

    /// The number of the device in `slot`, if it uses shared memory of this version; not necessarily alive.
    #[inline]
    pub(crate) fn last_shm_nonce(&self, slot: SlotId, version: u32) -> Option<u64> {
        let shm = self.slot_at(slot).shm.load(Ordering::Acquire);
        (shm == version).then(|| self.nonce(slot))
    }

    /// The number by which other devices know the one in `slot`; not necessarily alive.
    #[inline]
    pub(crate) fn nonce(&self, slot: SlotId) -> u64 {
        let Slot { nonce_low, nonce_high, .. } = self.slot_at(slot);
        load_halves(nonce_low, nonce_high)
    }

    /// Says that this device takes management datagrams.
    pub(crate) fn set_manages(&self) {
        self.set_field(self.slot, |slot| &slot.manages, 1);
    }

    /// The device in a slot takes management datagrams; not necessarily alive.
    pub(crate) fn manages(&self, slot: SlotId) -> bool {
        self.slot_at(slot).manages.load(Ordering::Acquire) == 1
    }

    /// The first device that takes management datagrams, if one of those that live does, and is not stopped.
    pub(crate) fn manager(&self) -> Option<SlotId> {
        let mut managers = Self::slots().filter(|slot| self.manages(*slot) && self.is_alive(*slot));
        managers.find(|slot| !self.is_stopped(*slot))
    }

    /// No other device of this host is in the registry, as far as one can see at a glance.
    pub(crate) fn is_alone(&self) -> bool {
        Self::slots()
            .filter(|slot| *slot != self.slot)
            .all(|slot| self.slot_at(slot).pid.load(Ordering::Relaxed) == 0)
    }

    /// Says behind which descriptor of this process its counters are.
    pub(crate) fn set_counters(&self, descriptor: u32) {
        self.set_field(self.slot, |slot| &slot.counters, descriptor.saturating_add(1));
    }

    /// How often others have asked for this slot's counters.
    #[inline]
    pub(crate) fn asked(&self) -> u32 {
        self.slot_at(self.slot).asked.load(Ordering::Acquire)
    }

    /// Packets were passed on to `slot`.
    pub(crate) fn note_relayed(&self, slot: SlotId) {
        self.slot_at(slot).relayed.fetch_add(1, Ordering::Release);
    }

    /// How often packets were passed on to this slot.
    #[inline]
    pub(crate) fn relayed(&self) -> u32 {
        self.slot_at(self.slot).relayed.load(Ordering::Acquire)
    }

    /// Changes the group of an address: `change` gets its members in the order of their sockets,
    /// without those that have died, and does with the sockets what it does with the list.
    pub(crate) fn with_group<R>(
        &self,
        address: [u8; 16],
        scope: u32,
        change: impl FnOnce(&Self, &mut Members) -> io::Result<R>,
    ) -> io::Result<R> {
        let exclusive = lock_file(&self.path)?;
        self.change_group(&exclusive, address, scope, change)
    }

    /// As [`Registry::with_group`], but does nothing if another process is changing things now.
    pub(crate) fn try_with_group<R>(
        &self,
        address: [u8; 16],
        scope: u32,
        change: impl FnOnce(&Self, &mut Members) -> io::Result<R>,
    ) -> io::Result<Option<R>> {
        let Some(exclusive) = FileLock::try_lock(open_existing(&self.path)?)? else {
            return Ok(None);
        };
        self.change_group(&exclusive, address, scope, change).map(Some)
    }

    fn change_group<R>(
        &self,
        _exclusive: &FileLock,
        address: [u8; 16],
        scope: u32,
        change: impl FnOnce(&Self, &mut Members) -> io::Result<R>,
    ) -> io::Result<R> {
        let (group, mut members) = self.find_group(address, scope)?;
        let result = change(self, &mut members);
        group.write(&members);
        result
    }

    /// Finds out the places in a group, by asking: `ask` sends a probe to a place, `wait` gives
    /// the answers time and says whether there is any left. To be called within
    /// [`Registry::try_with_group`], which keeps the group as it is meanwhile.
    ///
    /// A list that was written over may leave a process out that sleeps and does not see it: one place more is asked than
    /// there are members, and one that answers is a member. The kernel delivers a probe for a place that does not exist to
    /// some socket of the group.
    ///
    /// Processes that do not answer, as a stopped one, get the places that are left: with one of
    /// them that is exact. `None` if the answers contradict each other.
    pub(crate) fn census(
        &self,
        members: &[SlotId],
        mut ask: impl FnMut(u8, u32) -> io::Result<()>,
        mut wait: impl FnMut() -> bool,
    ) -> Option<Members> {
        let mut members = members.to_vec();
        loop {
            let answers = self.ask_places(members.len(), &mut ask, &mut wait)?;
            let before = members.len();
            for slot in answers.iter().flatten() {
                if !members.contains(slot) {
                    members.push(*slot);
                }
            }
            if members.len() == before {
                return Self::places(&answers, &members);
            }
            if !wait() {
                return Some(members); // The next one begins with them.
            }
        }
    }

    /// Asks so many places and one more; says which live devices have answered.
    fn ask_places(
        &self,
        count: usize,
        ask: &mut impl FnMut(u8, u32) -> io::Result<()>,
        wait: &mut impl FnMut() -> bool,
    ) -> Option<Vec<Option<SlotId>>> {
        let Census { nonce: current, seen } = &self.memory.census;
        let seen = seen.get(..=count).or_else(|| seen.get(..count))?;
        seen.iter().for_each(|place| place.store(0, Ordering::Relaxed));
        let nonce = u32::try_from(clock::now_ns() & 0xffff_ffff).unwrap_or(0);
        current.store(nonce, Ordering::Release);
        for place in 0..seen.len() {
            ask(u8::try_from(place).ok()?, nonce).ok()?;
        }
        let answers = || seen.iter().map(|place| place.load(Ordering::Acquire));
        while answers().any(|answer| answer == 0) && wait() {}
        current.store(0, Ordering::Release);
        let mut is_alive = self.liveness();
        let slots = answers().map(|answer| answer.checked_sub(1).map(SlotId));
        Some(slots.map(|slot| slot.filter(|slot| is_alive(*slot))).collect())
    }

    /// The places of members, by what was answered at each place.
    fn places(answers: &[Option<SlotId>], members: &[SlotId]) -> Option<Members> {
        if let Some(all) = answers.iter().copied().collect::<Option<Members>>() {
            // Where one answers again the places have come to an end.
            let again = |(place, slot): (usize, &SlotId)| all.iter().take(place).any(|s| s == slot);
            let end = all.iter().enumerate().position(again).unwrap_or(all.len());
            let (places, beyond) = all.split_at(end);
            return beyond.iter().all(|slot| places.contains(slot)).then(|| places.to_vec());
        }
        let found = answers.get(..members.len())?;
        let mut silent = members.iter().filter(|member| !found.contains(&Some(**member))).copied();
        let all: Option<Members> =
            found.iter().map(|slot| slot.or_else(|| silent.next())).collect();
        all.filter(|all| members.iter().all(|member| all.contains(member)))
    }

    /// A probe for this place came here.
    pub(crate) fn answer(&self, place: u8, nonce: u32) {
        let Census { nonce: current, seen } = &self.memory.census;
        if nonce != 0
            && current.load(Ordering::Acquire) == nonce
            && let Some(seen) = seen.get(usize::from(place))
        {
            seen.store(self.slot.0 + 1, Ordering::Release);
        }
    }

    /// Where queue pair numbers of these members lead: block and place, the lowest block first.
    pub(crate) fn routes(&self, members: &[SlotId]) -> impl Iterator<Item = (Block, u32)> + '_ {
        let mut places = vec![None; SLOT_COUNT];
        for (place, slot) in (0..).zip(members) {
            if let Some(known) = places.get_mut(index(slot.0)) {
                *known = Some(place);
            }
        }
        Self::blocks().filter_map(move |block| {
            let owner = self.memory.block(block).load(Ordering::Relaxed).checked_sub(1)?;
            Some((block, (*places.get(index(owner))?)?))
        })
    }

    /// The place of a group, and its members that live.
    fn find_group(&self, address: [u8; 16], scope: u32) -> io::Result<(&Group, Members)> {
        let (key, mut is_alive) = (group_key(address, scope), self.liveness());
        for group in self.groups_of(key) {
            // An empty one may be an old place of a group that has another one now.
            let members = Self::read_members(group, &mut is_alive);
            if !members.is_empty() {
                return Ok((group, members));
            }
        }
        let groups = &self.memory.groups;
        let free = groups.iter().find(|group| !group.listed().any(&mut is_alive));
        let group = free.ok_or_else(|| {
            let most = groups.len();
            io::Error::other(format!(
                "RDMA devices are open on {most} addresses, the most possible"
            ))
        })?;
        for (place, word) in group.key.iter().zip(key) {
            place.store(word, Ordering::Relaxed);
        }
        group.len.store(0, Ordering::Relaxed);
        group.server.store(0, Ordering::Relaxed);
        Ok((group, Members::new()))
    }

    /// Where a group is, or was.
    fn groups_of(&self, key: [u32; 5]) -> impl Iterator<Item = &Group> + '_ {
        self.memory.groups.iter().filter(move |group| load(&group.key) == key)
    }

    /// This device is in the group of an address, as far as one can see at a glance.
    pub(crate) fn is_in_group(&self, address: [u8; 16], scope: u32) -> bool {
        self.groups_of(group_key(address, scope))
            .any(|group| group.listed().any(|member| member == self.slot))
    }

    /// The members of a group that live. The kernel fills a dead one's place with the last, and so
    /// does this. Each has one socket: that it is there twice is nonsense.
    fn read_members(group: &Group, mut is_alive: impl FnMut(SlotId) -> bool) -> Members {
        let mut members: Members = group.listed().collect();
        let mut is_there = vec![false; SLOT_COUNT];
        let mut at = 0;
        while let Some(member) = members.get(at) {
            let is_new =
                is_there.get_mut(index(member.0)).is_some_and(|there| !mem::replace(there, true));
            if is_new && is_alive(*member) {
                at += 1;
            } else {
                members.swap_remove(at);
            }
        }
        members
    }

    /// Takes a dead process's sockets out of all groups: it cannot be told to be dead once its slot
    /// is another process's.
    fn leave_groups(&self, slot: SlotId) {
        for group in &self.memory.groups {
            let mut members: Members = group.listed().collect();
            let before = members.len();
            while let Some(at) = members.iter().position(|member| *member == slot) {
                members.swap_remove(at);
            }
            if members.len() != before {
                group.write(&members);
            }
        }
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        if self.slot == SlotId::NONE || self.is_inherited() {
            return; // Nothing in there is ours; and if there is no slot yet, we hold the lock.
        }
        let Slot { pid, relay_port, shm, manages, counters, .. } = self.slot_at(self.slot);
        for word in [shm, relay_port, manages, pid, counters] {
            word.store(0, Ordering::Release);
        }
        if let Ok(_exclusive) = lock_file(&self.path) {
            self.forget_blocks_of(self.slot);
            self.forget_domains_of(self.slot);
        }
    }
}

/// A device of some process that shows its counters.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Exhibitor {
    slot: SlotId,
    /// Its process.
    pub(crate) pid: u32,
    /// The descriptor there.
    pub(crate) descriptor: u32,
    /// Where it can be woken.
    pub(crate) relay_port: u16,
}

/// The registry, seen by a process without a slot in it.
#[derive(Debug)]
pub(crate) struct RegistryReader {
    file: File,
    memory: Page<Layout>,
}

impl RegistryReader {
    /// Opens the registry of this user and network namespace; `None` if there is none.
    pub(crate) fn begin() -> io::Result<Option<Self>> {
        let place = Place::current()?;
        let bytes = Mapping::whole(size_of::<Layout>());
        place.find(VERSION, bytes, slots_max())?.map(Self::begin_by).transpose()
    }

    fn begin_by(file: File) -> io::Result<Self> {
        let memory = Page::<Layout>::open(&file, Writers::All)?;
        Ok(Self { file, memory })
    }

    /// Live processes of this process namespace that show their counters.
    pub(crate) fn exhibitors(&self) -> impl Iterator<Item = Exhibitor> + '_ {
        let here = namespace();
        Registry::slots().filter_map(move |slot| {
            let Slot { pid, processes, counters, relay_port, .. } = self.memory.slot(slot);
            let descriptor = counters.load(Ordering::Acquire).checked_sub(1)?;
            let relay_port = u16::try_from(relay_port.load(Ordering::Acquire)).ok()?;
            let byte = LOCKS_START + u64::from(slot.0);
            let alive = lock::is_byte_locked(&self.file, byte).ok()?;
            let pid = pid.load(Ordering::Acquire);
            let alive = alive && processes.load(Ordering::Acquire) == here;
            alive.then_some(Exhibitor { slot, pid, descriptor, relay_port })
        })
    }

    /// Asks for a process's counters; says what its answer will be called.
    pub(crate) fn ask(&self, whom: &Exhibitor) -> u32 {
        let Slot { asked, relayed, .. } = self.memory.slot(whom.slot);
        let asked = asked.fetch_add(1, Ordering::AcqRel).wrapping_add(1);
        // A driving thread there looks at what is passed on only when this says that there is some.
        relayed.fetch_add(1, Ordering::Release);
        asked
    }
}

fn slots_max() -> u32 {
    u32::try_from(SLOT_COUNT).unwrap_or(0)
}

/// What a group is known by: an address, and the scope of one that needs it.
fn group_key(address: [u8; 16], scope: u32) -> [u32; 5] {
    let [a0, a1, a2, a3, b0, b1, b2, b3, c0, c1, c2, c3, d0, d1, d2, d3] = address;
    [
        u32::from_be_bytes([a0, a1, a2, a3]),
        u32::from_be_bytes([b0, b1, b2, b3]),
        u32::from_be_bytes([c0, c1, c2, c3]),
        u32::from_be_bytes([d0, d1, d2, d3]),
        scope,
    ]
}

/// Waits for the file to be ours alone.
fn lock_file(path: &Path) -> io::Result<FileLock> {
    lock_file_within(path, LOCK_TIMEOUT)
}

fn lock_file_within(path: &Path, timeout: Duration) -> io::Result<FileLock> {
    FileLock::lock_within(&open_existing(path)?, timeout).map_err(|error| {
        if error.kind() != io::ErrorKind::TimedOut {
            return error;
        }
        let message = format!(
            "a process has kept the registry of devices locked for {timeout:?}: it is stopped perhaps"
        );
        io::Error::new(io::ErrorKind::TimedOut, message)
    })
}

/// The namespace that this process's number is of; 0 if that cannot be seen.
fn namespace() -> u32 {
    u32::try_from(alive::namespace()).unwrap_or(0) // The kernel numbers namespaces by 32 bits.
}

fn open_existing(path: &Path) -> io::Result<File> {
    File::options().read(true).write(true).open(path)
}

/// The file has been filled in.
fn is_ours(file: &File) -> io::Result<bool> {
    let mut start = [0; 8];
    file.read_exact_at(&mut start, 0)?;
    let [m0, m1, m2, m3, v0, v1, v2, v3] = start;
    let magic = u32::from_ne_bytes([m0, m1, m2, m3]);
    Ok(magic == MAGIC && u32::from_ne_bytes([v0, v1, v2, v3]) == VERSION)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A registry file of a test's own, and a new description of it whenever it is asked for.
    pub(super) struct Scratch(File);

    impl Scratch {
        pub(super) fn new() -> Self {
            Self(Place::current().unwrap().make(size_of::<Layout>()).unwrap())
        }

        fn open(&self) -> File {
            open_existing(&rendezvous::path_of(&self.0)).unwrap()
        }

        pub(super) fn join(&self) -> io::Result<Registry> {
            Registry::join_by(self.open(), Place::current().unwrap())
        }
    }

    #[test]
    fn two_devices_never_get_the_same_numbers() {
        let scratch = Scratch::new();
        let first = scratch.join().unwrap();
        let second = scratch.join().unwrap();
        assert_ne!(first.slot(), second.slot());
        assert!(!first.is_alone());
        let blocks: Vec<_> = (0..20)
            .flat_map(|_| [first.claim_block().unwrap(), second.claim_block().unwrap()])
            .collect();
        for (n, block) in blocks.iter().enumerate() {
            assert!(!blocks[..n].contains(block));
            assert!(block.first().get() > 1);
        }
        assert_eq!(first.owner(blocks[0].first()), Some(first.slot()));
        assert_eq!(first.owner(blocks[1].first()), Some(second.slot()));
    }

    /// Goal: the numbers of one process do not tell those of the next.
    /// Method: of sixteen registries one after the other, few begin with numbers just behind those of the one before.
    #[test]
    fn numbers_cannot_be_told_from_those_of_another_process() {
        let first = || Scratch::new().join().unwrap().claim_block().unwrap().index();
        let all: Vec<u32> = (0..16).map(|_| first()).collect();
        let count = u32::try_from(layout::BLOCK_COUNT).unwrap();
        let behind = |pair: &[u32]| (pair[1] + count - pair[0]) % count < count / 8;
        let close = all.windows(2).filter(|pair| behind(pair)).count();
        assert!(close < 12, "{all:?}");
    }

    #[test]
    fn what_a_gone_device_had_is_free_again() {
        let scratch = Scratch::new();
        let first = scratch.join().unwrap();
        let second = scratch.join().unwrap();
        let slot = second.slot();
        let block = second.claim_block().unwrap();
        first
            .with_group([7; 16], 0, |_, members| {
                members.push(slot);
                Ok(())
            })
            .unwrap();
        drop(second);
        assert!(first.is_alone());
        assert_eq!(first.owner(block.first()), None);
        first
            .with_group([7; 16], 0, |_, members| {
                assert!(members.is_empty());
                Ok(())
            })
            .unwrap();
        assert_eq!(scratch.join().unwrap().slot(), slot);
    }

    /// Goal: a host full of processes works, and the next one is told. Method: each handle has a slot
    /// as a process has, for locks belong to descriptors.
    #[test]
    fn a_thousand_and_more_have_places_and_numbers_of_their_own_and_the_next_is_refused() {
        let scratch = Scratch::new();
        let mut members: Vec<_> = (0..SLOT_COUNT).map(|_| scratch.join().unwrap()).collect();
        assert!(members.len() >= 1000);
        let slots: std::collections::BTreeSet<_> = members.iter().map(|m| m.slot().0).collect();
        assert_eq!(slots.len(), members.len());
        let blocks: Vec<_> = members.iter().map(|m| m.claim_block().unwrap()).collect();
        for (member, block) in members.iter().zip(&blocks) {
            assert_eq!(members[0].owner(block.first()), Some(member.slot()));
        }
        let refused = scratch.join().unwrap_err().to_string();
        assert!(refused.contains("1024 processes"), "{refused}");
        for (member, block) in members.iter().zip(&blocks) {
            assert_eq!(member.owner(block.first()), Some(member.slot()), "nothing has changed");
        }
        // The place of a device that leaves is taken again.
        let freed = members.remove(500).slot();
        assert_eq!(members[0].owner(blocks[500].first()), None);
        assert_eq!(scratch.join().unwrap().slot(), freed);
    }

    /// Goal: the number of a process that is in a slot is a hint: it may be that of one that is dead, of
    /// one that has got a dead one's number, or missing where a process is, and neither takes two to one
    /// slot nor a slot away for good. Method: with words as deaths at any instruction leave them.
    #[test]
    fn slots_are_told_by_their_locks_whatever_their_words_say() {
        let scratch = Scratch::new();
        let [first, second] = [(); 2].map(|()| scratch.join().unwrap());
        let pid = |slot| &first.slot_at(slot).pid;
        pid(second.slot()).store(0, Ordering::Relaxed); // It has locked it and not yet said so.
        let third = scratch.join().unwrap();
        assert!(third.slot() != first.slot() && third.slot() != second.slot());
        pid(third.slot()).store(DEAD, Ordering::Relaxed);
        assert_eq!(scratch.join().unwrap().slot(), SlotId(3));
        // Of those that are free the first that looks so is taken, and the rest when there is no other.
        for slot in Registry::slots().skip(3) {
            pid(slot).store(std::process::id(), Ordering::Relaxed);
            let processes = &first.slot_at(slot).processes;
            processes.store(first.processes, Ordering::Relaxed);
        }
        pid(SlotId(900)).store(DEAD, Ordering::Relaxed);
        let joined = [(); 3].map(|()| scratch.join().unwrap());
        assert_eq!(joined.each_ref().map(Registry::slot), [900, 3, 4].map(SlotId));
    }

    /// No process has such a number.
    const DEAD: u32 = 1 << 30;

    #[test]
    fn a_group_lists_its_members_in_order_and_leads_to_their_numbers() {
        let scratch = Scratch::new();
        let first = scratch.join().unwrap();
        let second = scratch.join().unwrap();
        let (a, b) = (first.claim_block().unwrap(), second.claim_block().unwrap());
        for registry in [&first, &second] {
            registry
                .with_group([1; 16], 3, |r, members| {
                    members.push(r.slot());
                    Ok(())
                })
                .unwrap();
        }
        let mut routes = first
            .with_group([1; 16], 3, |r, members| Ok(r.routes(members).collect::<Vec<_>>()))
            .unwrap();
        routes.sort_unstable_by_key(|(_, place)| *place);
        assert_eq!(routes, [(a, 0), (b, 1)]);
    }

    /// Goal: a process that takes the slot of a killed one does not inherit its place, which would
    /// put all places out.
    #[test]
    fn a_newcomer_is_not_taken_for_the_dead_process_whose_slot_it_has() {
        let scratch = Scratch::new();
        let join = |registry: &Registry| {
            let joined = registry.with_group([2; 16], 0, |r, members| {
                members.push(r.slot());
                Ok(members.clone())
            });
            joined.unwrap()
        };
        let [first, killed, third] = [(); 3].map(|()| scratch.join().unwrap());
        join(&first);
        join(&killed);
        assert_eq!(join(&third), [first.slot(), killed.slot(), third.slot()]);
        let slot = killed.slot();
        drop(killed); // It has not left the group.
        let heir = scratch.join().unwrap();
        assert_eq!(heir.slot(), slot);
        assert_eq!(join(&heir), [first.slot(), third.slot(), heir.slot()]);
    }

    #[test]
    fn a_domain_is_there_while_a_process_has_claimed_it() {
        let scratch = Scratch::new();
        let first = scratch.join().unwrap();
        let second = scratch.join().unwrap();
        let metadata = scratch.open().metadata().unwrap();
        let name = DomainName::new(1, &metadata);
        let other = DomainName::new(2, &metadata);
        assert_ne!(name, other);
        assert_eq!(DomainName::from_words(name.words()), name);
        let told = |expected| {
            move |exists: bool| {
                assert_eq!(exists, expected);
                Ok(())
            }
        };
        let changes = first.domain_changes();
        let claim = first.claim_domain(name, told(false)).unwrap();
        second.claim_domain(name, told(true)).unwrap();
        second.claim_domain(other, told(false)).unwrap();
        assert_ne!(second.domain_changes(), changes);
        assert_eq!(first.claimants(name).collect::<Vec<_>>(), [second.me()]);
        let (me, stranger) = (std::process::id(), std::process::id() + 1);
        assert!(first.is_held_by(name, me) && !first.is_held_by(name, stranger));
        let refused = first.claim_domain(name, |_| Err(io::ErrorKind::NotFound.into()));
        assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::NotFound);
        first.release_domain(claim);
        assert_eq!(second.claimants(name).count(), 0);
        let gone = second.me();
        assert!(first.lives(gone));
        drop(second);
        assert!(!first.lives(gone));
        first.claim_domain(name, told(false)).unwrap();
        let third = scratch.join().unwrap();
        assert!(third.me().slot == gone.slot && third.me() != gone);
    }

    #[test]
    fn a_census_finds_all_places_even_if_one_is_silent() {
        let scratch = Scratch::new();
        let first = scratch.join().unwrap();
        let second = scratch.join().unwrap();
        let members = [first.slot(), second.slot()];
        let swapped = first.census(
            &members,
            |place, nonce| {
                let there = if place == 0 { &second } else { &first };
                there.answer(place, nonce ^ 1); // Not an answer to this question.
                there.answer(place, nonce);
                Ok(())
            },
            || false,
        );
        assert_eq!(swapped, Some(vec![second.slot(), first.slot()]));
        let with_one_silent = first.census(
            &members,
            |place, nonce| {
                if place == 1 {
                    first.answer(place, nonce);
                }
                Ok(())
            },
            || false,
        );
        assert_eq!(with_one_silent, Some(vec![second.slot(), first.slot()]));
        let contradictory = first.census(
            &members,
            |place, nonce| {
                let there = if place == 2 { &second } else { &first };
                there.answer(place, nonce);
                Ok(())
            },
            || false,
        );
        assert_eq!(contradictory, None);
    }

    /// Goal: a census finds a socket that the list leaves out, and none where the list has one that is not there. Method:
    /// each list that nonsense can leave, for each number of sockets.
    #[test]
    fn a_census_finds_the_sockets_there_are_whatever_the_list_says() {
        let scratch = Scratch::new();
        let devices = [(); 4].map(|()| scratch.join().unwrap());
        let [a, b, c, d] = devices.each_ref().map(Registry::slot);
        for sockets in [&devices[..1], &devices[..2], &devices[..3]] {
            let there: Vec<_> = sockets.iter().map(Registry::slot).collect();
            for list in [&[][..], &[a], &[c], &[b, a], &[a, b], &[b, a, d], &[d, c, b, a]] {
                let ask = |place, nonce| {
                    let any = sockets.first().unwrap(); // Of a place that there is not.
                    sockets.get(usize::from(place)).unwrap_or(any).answer(place, nonce);
                    Ok(())
                };
                let found = devices[3].census(list, ask, || true);
                assert_eq!(found.as_ref(), Some(&there), "{list:?}");
            }
        }
        // Without time it gets further each time.
        let ask = |place, nonce| {
            devices.get(usize::from(place)).unwrap_or(&devices[0]).answer(place, nonce);
            Ok(())
        };
        let census = |list: &[SlotId]| devices[3].census(list, ask, || false).unwrap();
        assert_eq!(census(&[b]), [b, a]);
        assert_eq!(census(&[b, a]), [b, a, c]);
    }

    /// Goal: nonsense among the answers is none.
    #[test]
    fn a_census_believes_no_device_that_does_not_live() {
        let scratch = Scratch::new();
        let first = scratch.join().unwrap();
        for nonsense in [2, 1000, u32::MAX] {
            let ask = |place, nonce| {
                first.answer(place, nonce);
                first.memory.census.seen[1].store(nonsense, Ordering::Relaxed);
                Ok(())
            };
            assert_eq!(first.census(&[first.slot()], ask, || false), Some(vec![first.slot()]));
        }
    }

    /// Goal: a process that is stopped in the midst of a change blocks no other for ever, and those learn why.
    #[test]
    fn a_file_that_stays_locked_is_an_error_that_says_so() {
        let scratch = Scratch::new();
        let registry = scratch.join().unwrap();
        let kept = lock_file(&registry.path).unwrap();
        let refused = lock_file_within(&registry.path, Duration::from_millis(5)).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::TimedOut);
        assert!(refused.to_string().contains("stopped"), "{refused}");
        drop(kept);
        registry.claim_block().unwrap();
    }

    #[test]
    fn a_reader_sees_devices_that_live_and_show_something_and_asks_them() {
        let scratch = Scratch::new();
        let first = scratch.join().unwrap();
        let second = scratch.join().unwrap();
        let reader = RegistryReader::begin_by(scratch.open()).unwrap();
        assert_eq!(reader.exhibitors().count(), 0);
        second.set_counters(0);
        let found: Vec<_> = reader.exhibitors().collect();
        assert_eq!((found.len(), found[0].pid, found[0].descriptor), (1, std::process::id(), 0));
        assert_eq!((reader.ask(&found[0]), second.asked(), first.asked()), (1, 1, 0));
        drop(second);
        assert_eq!(reader.exhibitors().count(), 0);
    }
}
