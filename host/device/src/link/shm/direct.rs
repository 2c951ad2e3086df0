//! Direct access of a queue pair to the memory of a peer on this host.
//!
//! A WRITE, a READ or an atomic acts on the other process's registered memory directly: through
//! pages that both have mapped, or by one system call that copies between processes. The checks are
//! those that the peer's own device would make, on what it publishes (`peer_page.rs`): the queue pair's
//! state and rights, then the region's key, domain, rights and bounds. Whatever does not pass is not
//! refused here but sent, so that the peer refuses it, and everything is as it is over a network.
//!
//! # Safety
//!
//! 1. Between [`ShmLink::begin`] and the end of its [`AccessGuard`] the owner keeps a region in place whose key
//!    was seen during the access: it waits for accesses before it releases memory (`guard.rs`).
//! 2. Pages that both have mapped are of sealed files: they cannot be cut short. Offsets are checked
//!    against our own mapping of them, whatever the owner published; and what is mapped for reading is
//!    claimed for reading only.
//! 3. The bytes may change at any time: they are copied by pointer, or accessed as atomics, as
//!    all other code does (`region.rs`, rule 1).
//! 4. Local bytes are registered and pinned while they are copied (`region.rs`, rule 2).

use crate::link::shm::SEGMENT_BYTES;
use crate::link::shm::guard::AccessGuard;
use crate::link::shm::link::{InRing, LONG_BYTES, MessageBytes, PIECE_BYTES, ShmLink};
use crate::memory::import::ImportedFile;
use crate::memory::local::{Local, Sge, Source, parts};
use crate::memory::peer_page::QpWord;
use crate::memory::region::{Grip, Grips, Pin, Regions, Serial};
use adverb_engine::{Access, AccessError, AtomicOp, FetchError, LocalError, Request, RequestKind};
use adverb_shm::copying::{copy_short, copy_word, move_long};
use adverb_sys::vm::{self, Direction, Piece};
use adverb_wire::Qpn;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering, fence};

/// Place of bytes of the peer's, for as long as it keeps them in place: an access, a record, a pin.
#[derive(Clone, Copy, Debug)]
struct Place<'v> {
    spot: Spot,
    held: PhantomData<&'v [AtomicU8]>,
}

#[derive(Clone, Copy, Debug)]
enum Spot {
    /// Mapped here.
    Here(*mut u8),
    /// At this address of process `pid`.
    There { pid: u32, address: u64 },
}

impl<'v> Place<'v> {
    /// # Safety
    ///
    /// As many bytes as were claimed are there for `'v`, and can be copied as the claim says.
    unsafe fn new(spot: Spot) -> Self {
        Self { spot, held: PhantomData }
    }

    /// Bytes of our own.
    fn of(bytes: &'v mut [u8]) -> Self {
        Self { spot: Spot::Here(bytes.as_mut_ptr()), held: PhantomData }
    }

    fn of_record(near: InRing<'v>) -> Self {
        Self { spot: Spot::Here(near.start()), held: PhantomData }
    }

    fn skip(self, bytes: usize) -> Self {
        let spot = match self.spot {
            Spot::Here(start) => Spot::Here(start.wrapping_add(bytes)),
            Spot::There { pid, address } => {
                let address = address.wrapping_add(u64::try_from(bytes).unwrap_or(u64::MAX));
                Spot::There { pid, address }
            }
        };
        Self { spot, ..self }
    }
}

/// Files of neighbours that a queue pair has used lately.
#[derive(Debug, Default)]
pub(crate) struct MapCache {
    recent: [Option<CachedMap>; MAPS_CACHED],
    next: usize,
    /// A file of our own that the neighbour has; 0 is none. Numbers are not used again.
    fetchable: u64,
    /// The state of the link's imports that all this is from.
    version: u64,
}

const MAPS_CACHED: usize = 4;

#[derive(Debug)]
struct CachedMap {
    file: u64,
    pages: Arc<ImportedFile>,
}

impl MapCache {
    /// Forgets what is of another link, or was of this one.
    #[inline]
    fn renew(&mut self, shm_link: &ShmLink) {
        let version = shm_link.imports().version();
        if self.version != version {
            *self = Self { version, ..Self::default() };
        }
    }

    /// The neighbour has this file of ours.
    #[inline]
    fn can_fetch(&mut self, shm_link: &ShmLink, file: u64) -> bool {
        self.renew(shm_link);
        if self.fetchable != file && shm_link.can_fetch(file) {
            self.fetchable = file;
        }
        self.fetchable == file
    }

    /// The pages of a file, if they are mapped; they will be, otherwise.
    #[inline(always)]
    fn pages(&mut self, shm_link: &ShmLink, file: u64) -> Option<&ImportedFile> {
        self.renew(shm_link);
        let known =
            |cached: &Option<CachedMap>| cached.as_ref().is_some_and(|cached| cached.file == file);
        let at = match self.recent.iter().position(known) {
            Some(at) => at,
            None => {
                let pages = shm_link.imports().file(file)?;
                let at = self.next % MAPS_CACHED;
                self.next = at + 1;
                *self.recent.get_mut(at)? = Some(CachedMap { file, pages });
                at
            }
        };
        self.recent.get(at)?.as_ref().map(|cached| &*cached.pages)
    }
}

/// Something that keeps the peer's bytes in place.
#[derive(Debug)]
enum Hold<'a> {
    Own(#[expect(dead_code, reason = "held")] Pin<'a>),
    Neighbour,
}

/// A claim on bytes of the peer's, whose queue pair says this of itself.
#[derive(Clone, Copy, Debug)]
struct Claim {
    key: u32,
    va: u64,
    len: usize,
    rights: Access,
    domain: u32,
}

/// Direct access of one queue pair to its peer's memory, over a link.
pub(crate) struct Direct<'a> {
    pub(crate) shm_link: &'a ShmLink,
    pub(crate) regions: &'a Regions,
    pub(crate) map_cache: &'a mut MapCache,
    /// Its number, its peer's, and its protection domain.
    pub(crate) number: Qpn,
    pub(crate) peer: Option<Qpn>,
    pub(crate) domain: u32,
    pub(crate) serial: Serial,
}

/// Destination of the bytes of a message.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Sink<'a> {
    /// Into buffers of this protection domain.
    Buffers { domain: u32, sges: &'a [Sge] },
    /// Into registered memory, from this address on.
    Region { pin: &'a Pin<'a>, va: u64 },
}

impl<'a> Direct<'a> {
    /// A look ahead: it may be that the request can be carried out here.
    pub(crate) fn may_reach(&mut self, request: &Request) -> bool {
        let guard = self.shm_link.begin();
        let Some(claim) = self.claim(request) else {
            return false;
        };
        self.place(&guard, claim).is_some()
    }

    /// Carries out a one-sided request whose own bytes are these. `None` if it has to be sent.
    #[inline]
    pub(crate) fn act(&mut self, request: &Request, local: Local<'_>) -> Option<()> {
        if request.len >= LONG_BYTES {
            return self.act_at_length(request, local);
        }
        self.act_at_once(request, local)
    }

    /// The same of a long one, which the helper has to know of.
    #[inline(never)]
    fn act_at_length(&mut self, request: &Request, local: Local<'_>) -> Option<()> {
        let _copying = self.shm_link.begin_copy(request.len);
        if request.len > GUARDED_BYTES_MAX {
            self.shm_link.note_act();
            return self.act_by_parts(request, local);
        }
        self.act_at_once(request, local)
    }

    /// The same in one access.
    #[inline]
    fn act_at_once(&mut self, request: &Request, local: Local<'_>) -> Option<()> {
        let shm_link = self.shm_link;
        shm_link.note_act();
        let guard = shm_link.begin();
        let claim = self.claim(request)?;
        if claim.len == 0 {
            return Some(()); // Key and address mean nothing then. IBTA Vol. 1 §9.7.4.1.5.
        }
        let (place, _hold) = self.place(&guard, claim)?;
        let domain = self.domain;
        match request.kind {
            RequestKind::Write { .. } => {
                let bytes = Source::Local { local, offset: 0, len: request.len, domain };
                put(&bytes, self.regions, place).ok()
            }
            RequestKind::Read { .. } => {
                let Local::Gather(sges) = local else {
                    return None;
                };
                get(place, self.regions, domain, sges, 0, claim.len).ok()
            }
            RequestKind::AtomicWrite { .. } => self.write_word(place, claim.va, local),
            RequestKind::CompareSwap { compare, swap, .. } => {
                self.run_atomic(place, claim.va, local, AtomicOp::CompareSwap { compare, swap })
            }
            RequestKind::FetchAdd { add, .. } => {
                self.run_atomic(place, claim.va, local, AtomicOp::FetchAdd { add })
            }
            RequestKind::Send { .. }
            | RequestKind::SendInvalidate { .. }
            | RequestKind::Flush { .. }
            | RequestKind::LocalInvalidate { .. }
            | RequestKind::BindWindow => None,
        }
    }

    /// A long WRITE or READ, in several accesses: a peer that releases memory does not wait for all of it. What has
    /// been copied when a part is refused is sent again with the rest, and refused as a whole.
    #[cold]
    #[inline(never)]
    fn act_by_parts(&mut self, request: &Request, local: Local<'_>) -> Option<()> {
        if !self.may_reach(request) {
            return None; // Nothing is copied if any of it is out of reach.
        }
        let (shm_link, domain) = (self.shm_link, self.domain);
        let mut offset = 0;
        while offset < request.len {
            let len = (request.len - offset).min(GUARDED_BYTES_MAX);
            let guard = shm_link.begin();
            let whole = self.claim(request)?;
            let va = whole.va.checked_add(u64::from(offset))?;
            let claim = Claim { va, len: usize::try_from(len).ok()?, ..whole };
            let (place, _hold) = self.place(&guard, claim)?;
            match (request.kind, local) {
                (RequestKind::Write { .. }, _) => {
                    let bytes = Source::Local { local, offset, len, domain };
                    put(&bytes, self.regions, place).ok()?;
                }
                (RequestKind::Read { .. }, Local::Gather(sges)) => {
                    get(place, self.regions, domain, sges, offset, claim.len).ok()?;
                }
                _ => return None,
            }
            offset += len;
        }
        Some(())
    }

    /// What a request wants of the peer, if its queue pair allows that.
    #[inline(always)]
    fn claim(&self, request: &Request) -> Option<Claim> {
        let word = self.shm_link.peer_page().qp(self.peer?)?.load(Ordering::SeqCst);
        let peer = QpWord::from_bits(word);
        let (va, key, rights, brings_back) = match request.kind {
            RequestKind::Write { va, rkey, .. } | RequestKind::AtomicWrite { va, rkey } => {
                (va, rkey, Access::REMOTE_WRITE, false)
            }
            RequestKind::Read { va, rkey } => (va, rkey, Access::REMOTE_READ, true),
            RequestKind::CompareSwap { va, rkey, .. } | RequestKind::FetchAdd { va, rkey, .. } => {
                (va, rkey, Access::REMOTE_ATOMIC, true)
            }
            RequestKind::Send { .. }
            | RequestKind::SendInvalidate { .. }
            | RequestKind::Flush { .. }
            | RequestKind::LocalInvalidate { .. }
            | RequestKind::BindWindow => return None,
        };
        let allowed = peer.remote() == self.number
            && peer.access().contains(rights)
            && (peer.has_resources() || !brings_back);
        let len = usize::try_from(request.len).ok()?;
        let claim = Claim { key: key.0, va, len, rights, domain: peer.domain() };
        (allowed && !self.shm_link.is_cut()).then_some(claim)
    }

    #[inline(never)]
    fn write_word(&self, place: Place<'_>, va: u64, local: Local<'_>) -> Option<()> {
        let mut bytes = [0; 8];
        let source = Source::Local { local, offset: 0, len: 8, domain: self.domain };
        put(&source, self.regions, Place::of(&mut bytes)).ok()?;
        word_at(place, va)?.store(u64::from_ne_bytes(bytes), Ordering::Release);
        Some(())
    }

    fn run_atomic(&self, place: Place<'_>, va: u64, local: Local<'_>, op: AtomicOp) -> Option<()> {
        let Local::Gather(sges) = local else {
            return None;
        };
        let domain = self.domain;
        // The answer has to have a home before anything is changed.
        let mut old = [0; 8];
        let home = |old: &mut [u8; 8]| get(Place::of(old), self.regions, domain, sges, 0, 8).ok();
        let word = word_at(place, va)?;
        each_target(self.regions, domain, sges, 0, old.len(), |_, _| Ok(())).ok()?;
        let found = match op {
            AtomicOp::FetchAdd { add } => word.fetch_add(add, Ordering::AcqRel),
            AtomicOp::CompareSwap { compare, swap } => word
                .compare_exchange(compare, swap, Ordering::AcqRel, Ordering::Acquire)
                .unwrap_or_else(|found| found),
        };
        old = found.to_ne_bytes();
        // The region is the owner's to keep: if it went this very moment, the answer is lost, as it
        // would be if it went while the answer was under way.
        let _ = home(&mut old);
        Some(())
    }

    /// Where the bytes are that a claim is about, if it is right, and what has to be kept beside the access
    /// until they have been copied.
    #[inline(always)]
    fn place<'v>(
        &mut self,
        guard: &'v AccessGuard<'_>,
        claim: Claim,
    ) -> Option<(Place<'v>, Hold<'a>)> {
        let Claim { key, va, len, rights, domain } = claim;
        if self.shm_link.is_own() {
            // Windows of type 2 are tied to the peer's queue pair: those are for it to look at.
            let regions: &'a Regions = self.regions;
            let pin = regions.pin_remote(key, domain, self.serial).ok()?;
            let start = pin.range(va, len, rights).ok()?;
            // SAFETY: pinned as long as the pin is kept, which goes with the place.
            return Some((unsafe { Place::new(Spot::Here(start)) }, Hold::Own(pin)));
        }
        let place = neighbours_place(self.shm_link, guard, self.map_cache, claim)?;
        Some((place, Hold::Neighbour))
    }

    /// Copies the bytes of a message by reference of `total` bytes, which are in these pieces.
    #[inline(never)]
    pub(crate) fn fetch(
        &mut self,
        pieces: &[u8],
        total: u32,
        sink: Sink<'_>,
    ) -> Result<(), FetchError> {
        let shm_link = self.shm_link;
        let word = self.peer.and_then(|remote| shm_link.peer_page().qp(remote));
        let word = QpWord::from_bits(word.ok_or(FetchError::Lost)?.load(Ordering::SeqCst));
        let _copying = shm_link.begin_copy(total);
        let mut guard = shm_link.begin();
        let (mut at, mut guarded) = (0_u32, 0_u32);
        let pieces = pieces
            .chunks_exact(PIECE_BYTES)
            .flat_map(|piece| by_guards(MessageBytes::piece(piece)));
        for piece in pieces {
            let Sge { addr, len, lkey } = piece.ok_or(FetchError::Lost)?;
            if guarded > GUARDED_BYTES_MAX - len {
                (guard, guarded) = (shm_link.begin(), 0);
            }
            guarded += len;
            let size = usize::try_from(len).unwrap_or(usize::MAX);
            let claim = Claim {
                key: lkey,
                va: addr,
                len: size,
                rights: Access::NONE,
                domain: word.domain(),
            };
            let pin;
            let place = match shm_link.is_own() {
                true => {
                    pin = self.regions.pin_local(lkey, word.domain()).ok();
                    let start =
                        pin.as_ref().and_then(|pin| pin.range(addr, size, Access::NONE).ok());
                    // SAFETY: pinned until the piece has been copied.
                    start.map(|start| unsafe { Place::new(Spot::Here(start)) })
                }
                false => neighbours_place(shm_link, &guard, self.map_cache, claim),
            };
            let place = place.ok_or(FetchError::Lost)?;
            fetch_piece(self.regions, place, at, size, sink)?;
            at = at.checked_add(len).ok_or(FetchError::Lost)?;
        }
        if at == total { Ok(()) } else { Err(FetchError::Lost) }
    }
}

/// A piece of a message, in parts of which each is copied within one access.
fn by_guards(piece: Option<Sge>) -> impl Iterator<Item = Option<Sge>> {
    let Sge { addr, len, lkey } = piece.unwrap_or(Sge { addr: 0, len: 0, lkey: 0 });
    let parts = len.div_ceil(GUARDED_BYTES_MAX).max(1);
    (0..parts).map(move |part| {
        piece?;
        let offset = part * GUARDED_BYTES_MAX;
        let len = (len - offset).min(GUARDED_BYTES_MAX);
        Some(Sge { addr: addr.wrapping_add(u64::from(offset)), len, lkey })
    })
}

/// Copies the bytes of a record out of the ring.
#[inline]
pub(crate) fn fetch_near(
    near: InRing<'_>,
    regions: &Regions,
    sink: Sink<'_>,
) -> Result<(), FetchError> {
    let len = usize::try_from(near.len()).unwrap_or(usize::MAX);
    fetch_piece(regions, Place::of_record(near), 0, len, sink)
}

fn fetch_piece(
    regions: &Regions,
    from: Place<'_>,
    at: u32,
    len: usize,
    sink: Sink<'_>,
) -> Result<(), FetchError> {
    match sink {
        Sink::Buffers { domain, sges } => {
            let mut from = from;
            let mut parts = parts(sges, at, u32::try_from(len).unwrap_or(u32::MAX));
            for part in parts.by_ref() {
                let size = usize::try_from(part.len).unwrap_or(usize::MAX);
                get(from, regions, domain, &[part], 0, size)?;
                from = from.skip(size);
            }
            if parts.is_done() { Ok(()) } else { Err(FetchError::Local(LocalError::Protection)) }
        }
        Sink::Region { pin, va } => {
            let va = va.wrapping_add(u64::from(at));
            let target = pin.range(va, len, Access::REMOTE_WRITE).map_err(FetchError::Access)?;
            // SAFETY: `len` bytes of both are there: of the place as it was claimed, of the target pinned.
            unsafe { copy(from, target, len) }
        }
    }
}

/// Messages in these buffers can go by reference: they are registered bytes of ours, and the peer can reach them.
pub(crate) fn can_go_by_reference(
    shm_link: &ShmLink,
    regions: &Regions,
    domain: u32,
    sges: &[Sge],
) -> bool {
    let mut grip = Grip::new(regions);
    sges.iter().all(|sge| is_ours(&mut grip, domain, sge)) && peer_can_fetch(shm_link, sges)
}

/// Copies the bytes of a record to this buffer, which is long enough.
#[inline(always)]
pub(crate) fn land(
    near: InRing<'_>,
    sge: &Sge,
    domain: u32,
    grip: &mut Grip<'_>,
) -> Result<(), AccessError> {
    let len = usize::try_from(near.len()).unwrap_or(usize::MAX);
    if len == 0 {
        return Ok(());
    }
    let pin = grip.pin_local(sge.lkey, domain)?;
    if pin.keeps_nothing() {
        return Ok(());
    }
    let target = pin.range(sge.addr, len, Access::LOCAL_WRITE)?;
    // SAFETY: the bytes are in the ring until the record is released, and `len` of them are pinned
    // in the target (rule 4); the ring is not registered memory, so they do not overlap.
    unsafe { copy_short(near.start(), target, len) };
    Ok(())
}

/// These are registered bytes of ours: what is wrong with others, a peer could not say.
#[inline]
fn is_ours(grip: &mut Grip<'_>, domain: u32, sge: &Sge) -> bool {
    let len = usize::try_from(sge.len).unwrap_or(usize::MAX);
    let pin = grip.pin_local(sge.lkey, domain);
    sge.len == 0 || pin.is_ok_and(|pin| pin.range(sge.addr, len, Access::NONE).is_ok())
}

/// The other end can reach these bytes of ours.
#[inline]
fn peer_can_fetch(shm_link: &ShmLink, sges: &[Sge]) -> bool {
    if shm_link.is_own() || !shm_link.shares() {
        return shm_link.shares();
    }
    !shm_link.is_cut() && sges.iter().all(|sge| shm_link.can_fetch(file_of(shm_link, sge)))
}

/// The other end can reach these bytes of ours, and they are long enough that a direct copy beats the ring.
/// To be followed by an eager header, which is one record.
#[inline]
pub(crate) fn goes_by_reference(
    shm_link: &ShmLink,
    map_cache: &mut MapCache,
    domain: u32,
    grip: &mut Grip<'_>,
    sge: &Sge,
) -> bool {
    let can = sge.len >= BY_REFERENCE_MIN && shm_link.shares() && !shm_link.is_cut();
    if !can || !is_ours(grip, domain, sge) {
        return false; // And nothing is offered of what is another domain's.
    }
    shm_link.is_own()
        || match file_of(shm_link, sge) {
            0 => sge.len > SEGMENT_BYTES && shm_link.can_fetch(0),
            file => map_cache.can_fetch(shm_link, file),
        }
}

/// The shortest message that is fetched from pages that both sides have mapped, in bytes. A shorter one
/// is there sooner through the link.
const BY_REFERENCE_MIN: u32 = 512;

/// The most bytes that are copied within one access: less than a hundredth of the time that an access may last
/// (`shm/link.rs`), where memory is slow and cold.
const GUARDED_BYTES_MAX: u32 = 4 << 20;

/// The file that these bytes of ours are in; 0: none that others can map.
#[inline]
fn file_of(shm_link: &ShmLink, sge: &Sge) -> u64 {
    let index = sge.lkey >> Regions::TAG_BITS;
    shm_link.own_page().region(index).map_or(0, |record| record.file.load(Ordering::Relaxed))
}

/// Where a neighbour's bytes are, if the claim is right and they can be reached.
#[inline(always)]
fn neighbours_place<'v>(
    shm_link: &ShmLink,
    _guard: &'v AccessGuard<'_>,
    map_cache: &mut MapCache,
    claim: Claim,
) -> Option<Place<'v>> {
    let Claim { key, va, len, rights, domain } = claim;
    let record = shm_link.peer_page().region(key >> Regions::TAG_BITS)?;
    if record.key.load(Ordering::SeqCst) != u64::from(domain) << 32 | u64::from(key) {
        return None;
    }
    let value = |word: &AtomicU64| word.load(Ordering::Relaxed);
    let known = Access::from_bits(u32::try_from(value(&record.rights)).ok()?);
    let offset = va.checked_sub(value(&record.va))?;
    let bytes = u64::try_from(len).ok()?;
    if !known.contains(rights) || offset.checked_add(bytes)? > value(&record.len) {
        return None;
    }
    match value(&record.file) {
        0 => {
            let pid = shm_link.imports().process()?;
            let spot = Spot::There { pid, address: value(&record.base).checked_add(offset)? };
            // SAFETY: within the region, which the owner keeps in place (rule 1).
            Some(unsafe { Place::new(spot) })
        }
        file => {
            let ImportedFile { pages, is_writable } = map_cache.pages(shm_link, file)?;
            let start = usize::try_from(value(&record.offset).checked_add(offset)?).ok()?;
            let inside = start.checked_add(len)? <= pages.len(); // Rule 2.
            let reads = rights == Access::NONE || rights == Access::REMOTE_READ;
            let spot = Spot::Here(pages.as_ptr().as_ptr().wrapping_add(start));
            // SAFETY: within our mapping, and of rights that it has (rule 2); the cache keeps it until it is
            // renewed, which it is not while the place is in use.
            (inside && (*is_writable || reads)).then(|| unsafe { Place::new(spot) })
        }
    }
}

/// The word at `place`, which peers know by address `va`, if it can be used as an atomic.
fn word_at(place: Place<'_>, va: u64) -> Option<&AtomicU64> {
    let Spot::Here(start) = place.spot else {
        return None;
    };
    let start = start.cast::<u64>();
    let fits = va.is_multiple_of(8) && start.is_aligned();
    // SAFETY: 8 bytes were claimed and found in place for the access (rules 1 and 2), aligned as just
    // checked; all code shares them as atomics or by copies (rule 3).
    fits.then(|| unsafe { AtomicU64::from_ptr(start) })
}

/// Copies a request's bytes to `place`. The last eight of a piece come last, and at once: a
/// program that polls for them finds all before them.
#[inline(always)]
fn put(bytes: &Source<'_>, regions: &Regions, mut place: Place<'_>) -> Result<(), AccessError> {
    bytes.each_piece(&mut Grips::new(regions), |source, len| {
        match place.spot {
            Spot::Here(target) => {
                let (body, tail) = if len < TAIL { (len, 0) } else { (len - TAIL, TAIL) };
                // SAFETY: the target was claimed for all pieces together (rules 1 and 2); the source
                // is inline data or pinned (rule 4). They may overlap: a peer may be told to write
                // onto itself.
                unsafe { move_long(source, target, body) };
                if tail > 0 {
                    fence(Ordering::Release);
                    // SAFETY: the eight bytes behind the body, as above.
                    unsafe { copy_word(source.wrapping_add(body), target.wrapping_add(body)) };
                }
            }
            Spot::There { pid, address } => {
                let here = [Piece { start: source.cast_mut(), len }];
                // SAFETY: the source is inline data or pinned (rule 4), and only read.
                let copied = unsafe { vm::copy(pid, Direction::Write, &here, address) };
                copied.map_err(|_| AccessError::Denied)?;
            }
        }
        place = place.skip(len);
        Ok(())
    })
}

const TAIL: usize = 8;

/// Copies `len` bytes from `place` to local buffers, from `at` on.
fn get(
    mut place: Place<'_>,
    regions: &Regions,
    domain: u32,
    sges: &[Sge],
    at: u32,
    len: usize,
) -> Result<(), FetchError> {
    each_target(regions, domain, sges, at, len, |target, part| {
        if let Some(target) = target {
            // SAFETY: `part` bytes of both are there: of the place as it was claimed, of the target pinned.
            unsafe { copy(place, target, part) }?;
        }
        place = place.skip(part);
        Ok(())
    })
}

/// Shows each piece of `len` bytes of local buffers from `at` on, in order, while it is there; `None` for bytes
/// that are not to be kept.
fn each_target(
    regions: &Regions,
    domain: u32,
    sges: &[Sge],
    at: u32,
    len: usize,
    mut show: impl FnMut(Option<*mut u8>, usize) -> Result<(), FetchError>,
) -> Result<(), FetchError> {
    let refused = |_| FetchError::Local(LocalError::Protection);
    let mut parts = parts(sges, at, u32::try_from(len).unwrap_or(u32::MAX));
    for Sge { addr, len, lkey } in parts.by_ref() {
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        let pin = regions.pin_local(lkey, domain).map_err(refused)?;
        match pin.keeps_nothing() {
            true => show(None, len)?,
            false => {
                let target = pin.range(addr, len, Access::LOCAL_WRITE).map_err(refused)?;
                show(Some(target), len)?;
            }
        }
    }
    if parts.is_done() { Ok(()) } else { Err(FetchError::Local(LocalError::Protection)) }
}

/// Copies `len` bytes; the two places may overlap.
///
/// # Safety
///
/// `len` bytes were claimed of the place (rules 1 and 2), and as many at the target are pinned and writable (rule 4).
unsafe fn copy(from: Place<'_>, target: *mut u8, len: usize) -> Result<(), FetchError> {
    match from.spot {
        Spot::Here(source) => {
            // SAFETY: the caller's promise.
            unsafe { move_long(source, target, len) };
            Ok(())
        }
        Spot::There { pid, address } => {
            let here = [Piece { start: target, len }];
            // SAFETY: the caller's promise.
            unsafe { vm::copy(pid, Direction::Read, &here, address) }.map_err(|_| FetchError::Lost)
        }
    }
}
