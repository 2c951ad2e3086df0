//! Interfaces whose frames this process has: its memberships, and which socket each frame is for.
//!
//! Owners are asked when a socket first needs them, and again after a second at the earliest. The descriptors of a
//! membership have numbers that programs rarely use, and are not closed by them (`descriptors.rs`).

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::c_int;
use std::hash::Hash;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};
use std::ops::{ControlFlow, RangeInclusive};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use adverb_sockconf::Level;
use adverb_sys::fork::PerProcess;
use adverb_sys::netdev::{self, Interface};
use adverb_sys::netlink::Changes;
use adverb_sys::routes::{Neighbour, Route, Routes};
use adverb_tcpip::ethernet::Mac;
use adverb_tcpip::frame::{Checksums, Frame};
use adverb_tcpip::tuple::Tuple;
use adverb_wire::ip::Sum;
use adverb_xdp::gate::GATES;
use adverb_xdp::owner::name_of;
use adverb_xdp::socket::{Incoming, Outgoing};
use adverb_xdp::steering::Protocol;
use adverb_xdp::umem::Writer;
use adverb_xdp::{Key, Membership};

use super::own_fds::OwnFds;
use super::queue::Queue;
use crate::base::lock::Guarded;
use crate::base::{log, raw, thread};
use crate::socket::counters::{Counters, add};

/// What this process has of interfaces.
#[derive(Debug)]
pub(super) struct Process {
    uplinks: Guarded<Vec<Arc<Uplink>>>,
    /// When interfaces were last listed, which is what `()` is for, and their owners asked.
    listed: Turns<()>,
    asked: Turns<u32>,
    /// Whose a datagram is: by both ends, or by the local one.
    queues: Guarded<Queues>,
    gates: Guarded<Gates>,
    /// There was none for some socket, and it has been said.
    has_refused: AtomicBool,
    /// Counts the entries and ends of queues.
    queues_version: AtomicU64,
    /// Counts changes of the addresses of interfaces.
    addresses_version: AtomicU64,
    /// Frames have come since that was last asked, and when there were any the last time that it was.
    has_come: AtomicBool,
    came_ns: AtomicU64,
    own: OwnFds,
}

/// Numbers of gates: those that were given back, and the first that was never given.
#[derive(Debug, Default)]
struct Gates {
    free: Vec<u32>,
    next: u32,
}

impl Gates {
    fn take(&mut self) -> Option<u32> {
        self.free.pop().or_else(|| {
            let new = Some(self.next).filter(|new| *new < GATES)?;
            self.next += 1;
            Some(new)
        })
    }
}

/// Queues by the ends of what goes there.
#[derive(Debug, Default)]
struct Queues {
    all: HashMap<Key, Arc<Queue>>,
    /// Both ends of the last datagram, and its queue.
    last: Option<(Key, Arc<Queue>)>,
}

impl Queues {
    /// The queue of a datagram with these ends.
    #[inline]
    fn find(&mut self, exact: &Key) -> Option<&Arc<Queue>> {
        if self.last.as_ref().is_none_or(|(last, _)| last != exact) {
            let any = Key { remote: None, ..*exact };
            let found = self.all.get(exact).or_else(|| self.all.get(&any))?;
            self.last = Some((*exact, Arc::clone(found)));
        }
        self.last.as_ref().map(|(_, queue)| queue)
    }
}

impl Default for Process {
    fn default() -> Self {
        Self {
            uplinks: Guarded::new(Vec::new()),
            listed: Turns::default(),
            asked: Turns::default(),
            queues: Guarded::new(Queues::default()),
            gates: Guarded::new(Gates::default()),
            has_refused: AtomicBool::new(false),
            queues_version: AtomicU64::new(0),
            addresses_version: AtomicU64::new(0),
            has_come: AtomicBool::new(false),
            came_ns: AtomicU64::new(0),
            own: OwnFds::default(),
        }
    }
}

/// A child begins anew.
static PROCESS: PerProcess<Process> = PerProcess::new();
/// Some process of this family has had an interface.
static IS_ANY: AtomicBool = AtomicBool::new(false);

#[inline]
pub(super) fn process() -> &'static Process {
    PROCESS.get()
}

#[inline]
pub(super) fn is_any() -> bool {
    IS_ANY.load(Ordering::Relaxed)
}

impl Process {
    /// The interfaces whose owners give this process frames.
    pub(super) fn uplinks(&self) -> Vec<Arc<Uplink>> {
        // A thread that were cancelled in the C library would leave with the lock.
        let _stays = raw::Uncancelled::new();
        self.uplinks.with(|uplinks| {
            uplinks.retain(|uplink| !uplink.has_ended());
            // How long one owner takes keeps none of the others.
            let all = self.listed.take((), netdev::interfaces).and_then(Result::ok);
            let all = all.unwrap_or_default();
            for interface in &all {
                let is_known = uplinks.iter().any(|known| known.index == interface.index);
                if !is_known && interface.up && !interface.loopback {
                    let ask = || Uplink::ask(interface.index, &all).map(Arc::new);
                    uplinks.extend(self.asked.take(interface.index, ask).flatten());
                }
            }
            if !uplinks.is_empty() {
                IS_ANY.store(true, Ordering::Relaxed);
            }
            uplinks.clone()
        })
    }

    /// Datagrams that match go to this queue; refused if they go to another.
    pub(super) fn enter(&self, key: Key, queue: &Arc<Queue>) -> bool {
        self.queues.with(|queues| {
            self.queues_version.fetch_add(1, Ordering::AcqRel);
            queues.last = None;
            match queues.all.entry(key) {
                Entry::Occupied(_) => false,
                Entry::Vacant(place) => {
                    place.insert(Arc::clone(queue));
                    true
                }
            }
        })
    }

    pub(super) fn leave(&self, key: &Key) {
        drop(self.queues.with(|queues| {
            self.queues_version.fetch_add(1, Ordering::AcqRel);
            (queues.last.take(), queues.all.remove(key))
        }));
    }

    /// How often addresses of interfaces have changed.
    #[inline]
    pub(super) fn addresses_version(&self) -> u64 {
        self.addresses_version.load(Ordering::Acquire)
    }

    /// A gate for a socket; `None`, which is counted, if others have all of them.
    pub(super) fn take_gate(&self, counters: &Counters) -> Option<u32> {
        let gate = self.gates.with(Gates::take);
        if gate.is_none() {
            add(&counters.frames_refused, 1);
            if !self.has_refused.swap(true, Ordering::Relaxed) {
                log::print(Level::Warning, || {
                    format!("{GATES} sockets have frames: others of this process are the kernel's")
                });
            }
        }
        gate
    }

    pub(super) fn free_gate(&self, gate: u32) {
        self.gates.with(|gates| gates.free.push(gate));
    }

    /// When frames last came, as far as that is asked for now and then: the clock costs as much as a look.
    pub(super) fn came_ns(&self, now_ns: u64) -> u64 {
        if self.has_come.swap(false, Ordering::Relaxed) {
            self.came_ns.store(now_ns, Ordering::Relaxed);
        }
        self.came_ns.load(Ordering::Relaxed)
    }

    /// Whether a descriptor in a range is this library's own.
    pub(super) fn has_own(&self, fds: &RangeInclusive<c_int>) -> bool {
        *fds.end() >= FD_MIN && self.own.first(fds).is_some()
    }

    /// Calls `part` with the ends of each part of a range between those.
    pub(super) fn without_own(&self, fds: RangeInclusive<c_int>, part: impl FnMut(c_int, c_int)) {
        self.own.between(fds, part);
    }

    /// A descriptor is this library's own.
    pub(super) fn note_own(&self, fd: c_int) {
        self.own.note(fd);
        IS_ANY.store(true, Ordering::Relaxed);
    }

    /// It is about to be closed.
    pub(super) fn forget_own(&self, fd: c_int) {
        self.own.forget(fd);
    }

    /// Puts the datagram of a frame into the queue of its socket, which counts the frame in any case, as its gate has. Returns
    /// that queue.
    fn deliver(&self, frame: &[u8], datagram: Option<(Tuple, &[u8])>) -> Option<Arc<Queue>> {
        let ends = match datagram {
            Some((tuple, _)) => Some(Key {
                protocol: Protocol::Udp,
                local: SocketAddr::new(tuple.local, tuple.local_port),
                remote: Some(SocketAddr::new(tuple.remote, tuple.remote_port)),
            }),
            None => Key::of_frame(frame),
        };
        let ends = ends?;
        self.queues.with(|queues| {
            let queue = queues.find(&ends)?;
            match (datagram, ends.remote) {
                (Some((_, bytes)), Some(from)) => queue.push(from, bytes),
                (Some(_) | None, _) => queue.note_arrival(),
            }
            Some(Arc::clone(queue))
        })
    }
}

/// An interface whose frames this process has.
#[derive(Debug)]
pub(super) struct Uplink {
    pub(super) index: u32,
    membership: Membership,
    incoming: Guarded<Arrivals>,
    outgoing: Guarded<Outgoing>,
    /// The kernel has not taken all of that yet.
    has_unsent: AtomicBool,
    routes: Guarded<Routes>,
    facts: Guarded<Facts>,
    /// What the kernel tells of changes of these.
    changes: Changes,
    /// Counts changes of these.
    facts_version: AtomicU64,
    /// Its descriptors.
    fds: Vec<c_int>,
    is_over: AtomicBool,
}

/// Where the frames of an interface come in, and the sender of the last good datagram.
#[derive(Debug)]
struct Arrivals {
    sockets: Vec<Incoming>,
    last: Option<Last>,
}

/// The last datagram that was good: others that came from there to here are for the same socket, until something changes.
#[derive(Debug)]
struct Last {
    to: [u8; 6],
    tuple: Tuple,
    queue: Arc<Queue>,
    version: Version,
}

/// What this process knew of an interface, and of its sockets.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Version {
    facts: u64,
    queues: u64,
}

impl Drop for Uplink {
    fn drop(&mut self) {
        // They may be closed now.
        self.fds.iter().for_each(|fd| process().forget_own(*fd));
    }
}

/// What is known of an interface.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    pub(super) mac: [u8; 6],
    pub(super) mtu: u32,
    addresses: Vec<IpAddr>,
    /// Those of all interfaces.
    hosts: Vec<IpAddr>,
    /// When it was last looked whether they have changed, and whether they have since they were read.
    looked_ns: u64,
    is_old: bool,
}

impl Facts {
    /// Of one interface among all.
    fn of(index: u32, all: &[Interface]) -> Option<Self> {
        let Interface { mac, mtu, addresses, .. } = all.iter().find(|one| one.index == index)?;
        let addresses = addresses.iter().filter(|address| address.scope_id == 0);
        let addresses = addresses.map(|address| address.ip).collect();
        let hosts = all.iter().flat_map(|one| &one.addresses).map(|address| address.ip).collect();
        Some(Self {
            mac: (*mac)?,
            mtu: *mtu,
            addresses,
            hosts,
            looked_ns: raw::now_ns(),
            is_old: false,
        })
    }

    /// Whether nothing comes from an address by an interface: the kernel drops it.
    fn is_strange(&self, from: IpAddr) -> bool {
        from.is_unspecified()
            || from.is_loopback()
            || from.is_multicast()
            || match from {
                IpAddr::V4(ip) => {
                    let [first, ..] = ip.octets();
                    first == 0 || ip.is_broadcast() || self.hosts.contains(&from)
                }
                IpAddr::V6(_) => false,
            }
    }

    pub(super) fn has(&self, address: IpAddr) -> bool {
        self.addresses.contains(&address)
    }
}

/// When each of several is asked: once a second, and less often if it has been waited for.
#[derive(Debug)]
pub(super) struct Turns<K>(Guarded<HashMap<K, u64>>);

impl<K> Default for Turns<K> {
    fn default() -> Self {
        Self(Guarded::new(HashMap::new()))
    }
}

impl<K: Copy + Eq + Hash> Turns<K> {
    /// Calls `ask` if it is time for this one.
    pub(super) fn take<A>(&self, of: K, ask: impl FnOnce() -> A) -> Option<A> {
        let began = raw::now_ns();
        if self.0.with(|next| next.get(&of).is_some_and(|next| began < *next)) {
            return None;
        }
        let answer = ask();
        let ended = raw::now_ns();
        let pause = ended.saturating_sub(began).saturating_mul(ASK_SHARE).max(ASK_AGAIN_NS);
        self.0.with(|next| {
            // What is due says as much as what is not there.
            next.retain(|_, next| ended < *next);
            next.insert(of, ended.saturating_add(pause));
        });
        Some(answer)
    }
}

/// Asks the owner of the interface with this number for a membership, if there is one.
pub(super) fn ask_owner(index: u32) -> Option<(Membership, Vec<adverb_xdp::Socket>)> {
    let asked = Membership::ask_above(&name_of(index), FD_MIN);
    let is_refusal = |error: &&io::Error| error.kind() != ErrorKind::ConnectionRefused;
    if let Some(error) = asked.as_ref().err().filter(is_refusal) {
        log::print(Level::Debug, || format!("interface {index}: no frames: {error}"));
    }
    asked.ok()
}

impl Uplink {
    /// Asks the owner of an interface, if there is one.
    fn ask(index: u32, all: &[Interface]) -> Option<Self> {
        let facts = Facts::of(index, all)?;
        let (membership, sockets) = ask_owner(index)?;
        let (mut incoming, mut outgoing) = (Vec::new(), None);
        for socket in sockets {
            incoming.push(socket.incoming);
            outgoing.get_or_insert(socket.outgoing);
        }
        let mut fds: Vec<_> = incoming.iter().map(|one| one.as_fd().as_raw_fd()).collect();
        let routes = Routes::open_above(FD_MIN).ok()?;
        let changes = Changes::subscribe_above(FD_MIN).ok()?;
        fds.extend([routes.as_fd(), changes.as_fd()].map(|fd| fd.as_raw_fd()));
        fds.extend(membership.all_fds().map(|fd| fd.as_raw_fd()));
        let uplink = Self {
            index,
            membership,
            incoming: Guarded::new(Arrivals { sockets: incoming, last: None }),
            outgoing: Guarded::new(outgoing?),
            has_unsent: AtomicBool::new(false),
            routes: Guarded::new(routes),
            facts: Guarded::new(Facts { is_old: true, ..facts }),
            changes,
            facts_version: AtomicU64::new(0),
            fds,
            is_over: AtomicBool::new(false),
        };
        uplink.fds.iter().all(|fd| process().own.note(*fd)).then_some(uplink)
    }

    /// The owner has ended: no frames come any more, and none should be sent.
    pub(super) fn has_ended(&self) -> bool {
        if !self.is_over.load(Ordering::Relaxed) && self.membership.has_ended() {
            self.is_over.store(true, Ordering::Relaxed);
        }
        self.is_over()
    }

    /// It is known to have ended.
    pub(super) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    /// The addresses of this interface at which a socket receives that is bound to `own`; with those of IPv4, if `is_both`, where
    /// that is any of IPv6.
    pub(super) fn locals(&self, own: SocketAddr, is_both: bool) -> Vec<SocketAddr> {
        let is_its = |ip: &IpAddr| match own.ip().is_unspecified() {
            true => ip.is_ipv4() == own.is_ipv4() || is_both && ip.is_ipv4(),
            false => *ip == own.ip(),
        };
        let addresses = self.facts().addresses;
        addresses.into_iter().filter(is_its).map(|ip| SocketAddr::new(ip, own.port())).collect()
    }

    pub(super) fn claim(&self, key: Key, gate: u32, twin: BorrowedFd<'_>) -> bool {
        self.asking(|membership| membership.claim_by(key, gate, twin)).is_ok()
    }

    pub(super) fn release(&self, key: Key) {
        // An owner that has ended has released all.
        let _ = self.asking(|membership| membership.release(key));
    }

    /// Asks the owner. Handlers wait until it has answered, because they may ask, too: it answers one question at a time.
    fn asking(&self, ask: impl FnOnce(&Membership) -> io::Result<()>) -> io::Result<()> {
        let _waits = thread::Deferring::new();
        let answer = ask(&self.membership);
        if answer.is_err() {
            self.has_ended();
        }
        answer
    }

    pub(super) fn set_gate(&self, gate: u32, is_open: bool) {
        self.membership.gates().set(gate, is_open);
    }

    /// Datagrams that a gate has let through.
    pub(super) fn let_through(&self, gate: u32) -> u32 {
        self.membership.gates().let_through(gate)
    }

    /// What is known of it, not older than a second.
    pub(super) fn facts(&self) -> Facts {
        self.with_facts(|facts| facts.clone())
    }

    /// Looks once a second whether that has changed.
    pub(super) fn look_for_changes(&self) {
        self.with_facts(|_| ());
    }

    fn with_facts<A>(&self, f: impl FnOnce(&Facts) -> A) -> A {
        let _stays = raw::Uncancelled::new();
        self.facts.with(|facts| {
            let now = raw::now_ns();
            if now.saturating_sub(facts.looked_ns) > FACTS_NS {
                facts.looked_ns = now;
                facts.is_old |= self.changes.drain().unwrap_or(true);
                if facts.is_old
                    && let Ok(all) = netdev::interfaces()
                {
                    self.read_facts(facts, &all);
                }
            }
            f(facts)
        })
    }

    #[cold]
    fn read_facts(&self, facts: &mut Facts, all: &[Interface]) {
        facts.is_old = false;
        // Of one that is gone, what was known; its owner ends.
        if let Some(new) = Facts::of(self.index, all) {
            let has_changed = new.addresses != facts.addresses;
            *facts = new;
            self.facts_version.fetch_add(1, Ordering::AcqRel);
            process().addresses_version.fetch_add(has_changed.into(), Ordering::AcqRel);
        }
    }

    /// The route to an address, from another and by one interface if that is said.
    pub(super) fn route(&self, to: IpAddr, from: Option<IpAddr>, by: Option<u32>) -> Option<Route> {
        self.routes.with(|routes| routes.route(to, from, by).ok())
    }

    pub(super) fn neighbour(&self, of: IpAddr) -> Option<Neighbour> {
        self.routes.with(|routes| routes.neighbour(of, self.index).ok().flatten())
    }

    /// Gives the sockets of this process what has come. While another thread does, it is that one's to do.
    #[inline]
    pub(super) fn look(&self) {
        if self.has_unsent() {
            self.outgoing.try_with(|outgoing| self.flush(outgoing));
        }
        self.incoming.try_with(|all| self.receive(all));
    }

    /// The same until nothing is left of what has come by now, whatever other threads do.
    pub(super) fn drain(&self) {
        self.incoming.with(|all| (0..DRAIN_ROUNDS).take_while(|_| self.receive(all) > 0).count());
    }

    /// The cached queue of the last sender is not valid any more.
    pub(super) fn forget_last(&self) {
        drop(self.incoming.with(|all| all.last.take()));
    }

    fn receive(&self, all: &mut Arrivals) -> usize {
        let Arrivals { sockets, last } = all;
        let mut count = 0;
        for incoming in sockets {
            count += incoming.receive(BUDGET, |frame| {
                self.take(frame, last);
                ControlFlow::Continue(())
            });
        }
        if count > 0 {
            process().has_come.store(true, Ordering::Relaxed);
        }
        count
    }

    /// Sends a frame, unless there is no room for it; says whether the interface takes more.
    pub(super) fn send(&self, write: impl FnOnce(&mut Writer<'_>)) -> Option<bool> {
        if self.is_over() {
            return None;
        }
        self.outgoing.with(|outgoing| outgoing.send(write).ok().map(|()| self.flush(outgoing)))
    }

    /// Gives the kernel what was written. What it does not take now leaves later.
    fn flush(&self, outgoing: &mut Outgoing) -> bool {
        let flushed = outgoing.flush().map_err(|error| error.kind());
        let is_later = flushed == Err(ErrorKind::WouldBlock);
        self.has_unsent.store(is_later, Ordering::Relaxed);
        flushed.is_ok() || is_later
    }

    /// The kernel has not taken all that was sent.
    #[inline]
    pub(super) fn has_unsent(&self) -> bool {
        self.has_unsent.load(Ordering::Relaxed) && !self.is_over()
    }

    /// Waits a moment, without a lock, until the kernel has taken all that was sent: the program may not look again.
    pub(super) fn let_leave(&self) {
        if self.has_unsent() {
            let until = raw::now_ns().saturating_add(LEAVE_NS);
            loop {
                self.outgoing.with(|outgoing| self.flush(outgoing));
                if !self.has_unsent() || raw::now_ns() >= until {
                    return;
                }
                raw::nap(LEAVE_NAP_NS);
            }
        }
    }

    /// Takes a frame that has come.
    #[inline]
    fn take(&self, frame: &[u8], last: &mut Option<Last>) {
        let found = parse(frame);
        // What changes meanwhile is seen with the next frame.
        let version = self.version();
        if let Some((to, tuple, datagram)) = found
            && let Some(last) = last
            && last.version == version
            && (last.to, last.tuple) == (to, tuple)
            && is_intact(tuple.remote, tuple.local, datagram)
            && let Some(bytes) = datagram.get(UDP_BYTES..)
        {
            last.queue.push(SocketAddr::new(tuple.remote, tuple.remote_port), bytes);
            return;
        }
        let good = found.filter(|(to, tuple, datagram)| self.is_good(*to, tuple, datagram));
        let datagram =
            good.and_then(|(_, tuple, datagram)| Some((tuple, datagram.get(UDP_BYTES..)?)));
        let queue = process().deliver(frame, datagram);
        *last = good.zip(queue).map(|((to, tuple, _), queue)| Last { to, tuple, queue, version });
    }

    fn version(&self) -> Version {
        Version {
            facts: self.facts_version.load(Ordering::Acquire),
            queues: process().queues_version.load(Ordering::Acquire),
        }
    }

    /// Whether a datagram, from its header on, is for this host, undamaged, and from an address that can send.
    fn is_good(&self, to: [u8; 6], tuple: &Tuple, datagram: &[u8]) -> bool {
        let (is_its, is_strange) =
            self.facts.with(|facts| (to == facts.mac, facts.is_strange(tuple.remote)));
        let is_for_us = match Mac(to).is_group() {
            true => Mac::of_group(tuple.local) == Some(Mac(to)),
            false => is_its || to == self.facts().mac,
        };
        is_for_us && !is_strange && is_intact(tuple.remote, tuple.local, datagram)
    }
}

/// Where a frame is sent to, the ends of its datagram, and that, from its header on.
#[inline]
fn parse(frame: &[u8]) -> Option<([u8; 6], Tuple, &[u8])> {
    let (to, _) = frame.split_first_chunk::<6>()?;
    let Ok(Frame::Udp { tuple, payload }) = Frame::parse(frame, Checksums::Trusted) else {
        return None;
    };
    let header = payload.start.saturating_sub(UDP_BYTES);
    Some((*to, tuple, frame.get(header..payload.end)?))
}

/// Whether a datagram, from its header on, has a checksum that is right, or none; or one that its sender's kernel has left
/// to hardware that there is none of between virtual interfaces: the sum of the pseudo header alone.
fn is_intact(src: IpAddr, dst: IpAddr, datagram: &[u8]) -> bool {
    let Some([_, _, _, _, _, _, s0, s1]) = datagram.first_chunk::<UDP_BYTES>().copied() else {
        return false;
    };
    let written = u16::from_be_bytes([s0, s1]);
    let Some(pseudo) = pseudo(src, dst, datagram.len()) else { return false };
    written == 0 && src.is_ipv4()
        || pseudo.with(datagram).finish() == 0
        || written == !pseudo.finish()
}

/// What a checksum begins with.
pub(super) fn pseudo(src: IpAddr, dst: IpAddr, len: usize) -> Option<Sum> {
    let len = u16::try_from(len).ok()?;
    match (src, dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => Some(Sum::pseudo_v4(src, dst, UDP, len)),
        (IpAddr::V6(src), IpAddr::V6(dst)) => Some(Sum::pseudo_v6(src, dst, UDP, len)),
        (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => None,
    }
}

const UDP: u8 = 17;
pub(super) const UDP_BYTES: usize = 8;
/// Frames that are taken from one queue before others are looked at.
const BUDGET: usize = 32;
/// Rounds of those for a ring that is full.
const DRAIN_ROUNDS: usize = 1024 / BUDGET;
/// Descriptors of ours have numbers that programs rarely use.
pub(super) const FD_MIN: c_int = 1000;
const ASK_AGAIN_NS: u64 = 1_000_000_000;
/// The share of the time that may be spent on owners that do not answer.
const ASK_SHARE: u64 = 30;
/// How long the kernel is asked again to take what it has not taken, and how often.
const LEAVE_NS: u64 = 10_000_000;
const LEAVE_NAP_NS: i64 = 50_000;
const FACTS_NS: u64 = 1_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a socket for which there is no gate is counted as such, and gets one that another has given back.
    #[test]
    fn a_socket_without_a_gate_is_counted() {
        let counters = Counters::default();
        let process = Process::default();
        let refused = || counters.frames_refused.load(Ordering::Relaxed);
        assert!((0..GATES).all(|number| process.take_gate(&counters) == Some(number)));
        assert_eq!((process.take_gate(&counters), refused()), (None, 1));
        process.free_gate(7);
        assert_eq!((process.take_gate(&counters), refused()), (Some(7), 1));
    }

    /// Goal: each frame that a gate has let through has arrived, whatever its datagram is worth: a thread that wakes waits for
    /// none of those.
    #[test]
    fn a_damaged_datagram_has_arrived() {
        let process = Process::default();
        let queue = Arc::new(Queue::new(0, 1 << 20));
        let local: SocketAddr = "10.0.0.1:4791".parse().expect("an address");
        assert!(process.enter(Key { protocol: Protocol::Udp, local, remote: None }, &queue));
        let header = [0x45, 0, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 2, 10, 0, 0, 1];
        let frame = [&[0; 12], &[8, 0][..], &header, &[0, 7, 0x12, 0xb7]].concat();
        process.deliver(&frame, None);
        assert_eq!((queue.arrived(), queue.has_any()), (1, false));
        let (remote, remote_port) = ("10.0.0.2".parse().expect("an address"), 7);
        let tuple = Tuple { local: local.ip(), local_port: 4791, remote, remote_port };
        process.deliver(&frame, Some((tuple, b"1")));
        assert_eq!((queue.arrived(), queue.has_any()), (2, true));
    }
}
