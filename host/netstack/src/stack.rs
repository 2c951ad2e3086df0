//! [`Netstack`]: frames in, frames out, time.

use crate::hops::{Ends, Hops};
use crate::link::{AGAIN, Link, Sent};
use crate::packet::Headings;
use adverb_sys::netdev::{self, Address, Interface};
use adverb_sys::netlink::Changes;
use adverb_sys::random;
use adverb_sys::routes::Routes;
use adverb_tcpip::Time;
use adverb_tcpip::ethernet::Mac;
use adverb_tcpip::frame::{Checksums, Frame};
use adverb_tcpip::icmp::{IcmpError, Report};
use adverb_tcpip::stack::{ConnectionId, Event, Later, Outcome, Stack, Taken, Transmit};
use adverb_tcpip::tcp::{Config, Connection, Piece};
use adverb_xdp::Socket;
use adverb_xdp::socket::Incoming;
use std::io;
use std::net::IpAddr;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, BorrowedFd, RawFd};
use std::time::Duration;

/// TCP on one interface.
#[derive(Debug)]
pub struct Netstack {
    incoming: Vec<Incoming>,
    link: Link,
    tcp: Stack<Vec<u8>>,
    /// What is left to be taken of the last segment.
    later: Option<Later>,
    headings: Headings,
    index: u32,
    interface: Interface,
    changes: Changes,
    /// They have changed since they were read.
    changed: bool,
    leaves_strangers: bool,
    /// When to look whether interfaces, addresses or routes have changed.
    look_at: Time,
    limits: Limits,
    counters: Counters,
}

/// How much there may be.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Limits {
    /// Connections, in whatever state.
    pub connections_max: usize,
    /// Frames that a step takes from each queue.
    pub frames_each: usize,
    /// Segments that a step sends.
    pub segments: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { connections_max: CONNECTIONS_MAX, frames_each: 64, segments: 256 }
    }
}

/// What has been counted since the begin.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Counters {
    /// Frames that came.
    pub received: u64,
    /// Of these, those that were damaged.
    pub damaged: u64,
    /// Of these, those that nothing here was meant by.
    pub unknown: u64,
    /// Packets that left, or wait for a hardware address.
    pub sent: u64,
    /// Packets that had no way to leave.
    pub lost: u64,
}

impl Netstack {
    /// One that has these sockets of the interface with this number.
    ///
    /// # Errors
    ///
    /// `NotFound` if there is no such interface, or no socket; `Unsupported` if it has no hardware address; no descriptors
    /// left.
    pub fn new(index: u32, sockets: Vec<Socket>, limits: Limits) -> io::Result<Self> {
        Self::with(index, sockets, limits, Changes::subscribe_with_routes()?, Routes::open()?)
    }

    /// The same, with descriptors of which none that stays open has a number below `least`: a library leaves low ones to
    /// its program.
    ///
    /// # Errors
    ///
    /// Those of [`Netstack::new`].
    pub fn new_above(
        index: u32,
        sockets: Vec<Socket>,
        limits: Limits,
        least: RawFd,
    ) -> io::Result<Self> {
        let (changes, routes) = (Changes::subscribe_above(least)?, Routes::open_above(least)?);
        Self::with(index, sockets, limits, changes, routes)
    }

    fn with(
        index: u32,
        sockets: Vec<Socket>,
        limits: Limits,
        changes: Changes,
        routes: Routes,
    ) -> io::Result<Self> {
        let interface = find(index)?;
        let mac = interface.mac.ok_or(io::ErrorKind::Unsupported)?;
        let (mut incoming, mut outgoing) = (Vec::new(), None);
        for socket in sockets {
            incoming.push(socket.incoming);
            outgoing.get_or_insert(socket.outgoing);
        }
        let outgoing = outgoing.ok_or(io::ErrorKind::NotFound)?;
        Ok(Self {
            incoming,
            link: Link::new(outgoing, Hops::new(index, routes), Mac(mac)),
            tcp: Stack::new(limits.connections_max, [random::number(), random::number()]),
            later: None,
            headings: Headings::default(),
            index,
            interface,
            changes,
            changed: false,
            leaves_strangers: false,
            look_at: Time::ZERO,
            limits,
            counters: Counters::default(),
        })
    }

    /// The connections.
    pub fn tcp(&mut self) -> &mut Stack<Vec<u8>> {
        self.catch_up();
        &mut self.tcp
    }

    /// How many connections there are, in whatever state.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.tcp.len()
    }

    /// What [`Stack::poll_event`] has to tell of what has been taken by now.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.tcp.poll_event()
    }

    /// Lets a program call its connection, as [`Stack::with`] does, for [`Connection::send`] and what changes nothing: that has
    /// precedence over what the last segment says of our stream, if that has just come.
    pub fn with_sender<R>(
        &mut self,
        id: ConnectionId,
        now: Time,
        call: impl FnOnce(&mut Connection<Vec<u8>>) -> R,
    ) -> Option<R> {
        if self.later.as_ref().is_some_and(|later| later.came().plus(LATER) <= now) {
            self.catch_up();
        }
        self.tcp.with(id, call)
    }

    /// Takes what is left of the last segment.
    #[inline]
    fn catch_up(&mut self) {
        if let Some(later) = self.later.take() {
            self.tcp.on_later(&later);
        }
    }

    /// What has been counted since the begin.
    #[must_use]
    pub const fn counters(&self) -> Counters {
        self.counters
    }

    /// A connection's usual choices, on this interface.
    #[must_use]
    pub fn config(&self) -> Config {
        Config { mtu: u16::try_from(self.mtu()).unwrap_or(u16::MAX), ..Config::default() }
    }

    /// The longest packet: the interface may take longer ones by now than when frames were cut for it.
    fn mtu(&self) -> u32 {
        self.interface.mtu.min(self.link.packet_bytes_max())
    }

    /// Why packets may come by the interface that its frames do not bring here; `None` if they bring all. Asks the kernel.
    #[must_use]
    pub fn shortfall(&self) -> Option<&'static str> {
        if self.interface.mtu > self.link.packet_bytes_max() {
            return Some("packets of the interface may be longer than a frame");
        }
        let queues = netdev::receive_queues(self.link.hops.as_fd(), &self.interface.name)?;
        let has_all = usize::try_from(queues).is_ok_and(|queues| queues <= self.incoming.len());
        (!has_all).then_some("the interface has queues on which this process has no socket")
    }

    /// The addresses of the interface.
    #[must_use]
    pub fn addresses(&self) -> &[Address] {
        &self.interface.addresses
    }

    /// The address from which packets to `to` leave, where a program has not chosen one with `from`; `None` if they leave by
    /// another interface, or not at all.
    #[must_use]
    pub fn source_for(&self, to: IpAddr, from: Option<IpAddr>) -> Option<IpAddr> {
        self.link.hops.route(to, from).ok()?.source
    }

    /// Descriptors that can be read when frames have come.
    pub fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.incoming.iter().map(AsFd::as_fd)
    }

    /// All of its descriptors: these, and those by which it asks the kernel.
    pub fn all_fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.fds().chain([self.changes.as_fd(), self.link.hops.as_fd()])
    }

    /// Segments of no connection here are dropped from now on, rather than answered with a reset: another implementation
    /// may be about to carry it on. A connection whose segments are to leave by another interface is left to that:
    /// [`Connection::is_left`].
    pub const fn leave_strangers(&mut self) {
        self.leaves_strangers = true;
    }

    /// Gives a connection bytes to send, and says how many it takes: 0 if there is no room; `None` if it is gone. They
    /// leave with the next step.
    pub fn send(&mut self, id: ConnectionId, bytes: &[u8], now: Time) -> Option<usize> {
        self.tcp().with(id, |connection| write(connection, bytes, now))
    }

    /// Hands the frames that were written to the kernel.
    pub fn flush(&mut self) {
        self.link.flush();
    }

    /// There is something to do at once: frames have come, were written and not flushed, or may be to be written.
    #[inline]
    #[must_use]
    pub fn is_due(&self) -> bool {
        self.link.written() > 0
            || self.incoming.iter().any(Incoming::has_any)
            || self.later.is_some()
            || self.tcp.is_ready()
    }

    /// Frames that were written, and leave with the next flush.
    #[must_use]
    pub const fn unflushed(&self) -> usize {
        self.link.written()
    }

    /// Takes frames that have come, does what is due, and sends what there is to send, up to a bound; says whether there
    /// was anything. Events are told by [`Stack::poll_event`].
    pub fn step(&mut self, now: Time) -> bool {
        let is_busy = self.step_unflushed(now);
        self.link.flush();
        is_busy
    }

    /// The same, but what it writes leaves with a later flush: one call for several steps.
    pub fn step_unflushed(&mut self, now: Time) -> bool {
        let has_received = self.take_in(now);
        self.send_out(now) || has_received
    }

    /// The first half of such a step: takes frames that have come, and does what is due; says whether any have. What a
    /// program does about that before the second half leaves with it.
    pub fn take_in(&mut self, now: Time) -> bool {
        self.take_in_by(now, |_, _| false)
    }

    /// The same. `read` may give a connection's next bytes to its program, where nothing else waits for that: it says whether
    /// the program has all of them, of which the stack tells nothing then. What else the last of such segments says may be
    /// left to the next step, or the next call of [`Netstack::tcp`] or [`Netstack::send_out`].
    pub fn take_in_by(&mut self, now: Time, read: impl FnMut(ConnectionId, &[u8]) -> bool) -> bool {
        if now >= self.look_at {
            self.look(now);
        }
        self.catch_up();
        let received = self.receive(now, read);
        if self.tcp.next_deadline().is_some_and(|deadline| deadline <= now) {
            self.catch_up();
            self.tcp.on_time(now);
        }
        self.link.release(now);
        let lost = self.link.take_lost();
        self.counters.lost += u64::try_from(lost).unwrap_or(0);
        received > 0
    }

    /// The second half: sends what there is to send, up to a bound, with a later flush; says whether there was anything.
    pub fn send_out(&mut self, now: Time) -> bool {
        self.catch_up();
        self.transmit(now, Stack::is_ready) > 0
    }

    /// The same, but what need not be done at once is left to the next [`Netstack::send_out`], until which
    /// [`Netstack::is_due`] says that there is something to do.
    pub fn send_urgent(&mut self, now: Time) -> bool {
        self.transmit(now, |tcp| tcp.is_urgent(now)) > 0
    }

    /// When [`Netstack::step`] is to be called, if no frames come before.
    #[must_use]
    pub fn next_deadline(&self, now: Time) -> Option<Time> {
        // A segment for which there was no room has no other time.
        let unsent = (self.tcp.is_ready() || self.later.is_some()).then(|| now.plus(AGAIN));
        let deadlines = [self.tcp.next_deadline(), self.link.next_deadline(now), unsent];
        deadlines.into_iter().flatten().min()
    }

    fn receive(&mut self, now: Time, mut read: impl FnMut(ConnectionId, &[u8]) -> bool) -> usize {
        let Self { incoming, tcp, later, counters, limits, leaves_strangers, .. } = self;
        let refuses = !*leaves_strangers;
        let mut received = 0;
        for incoming in incoming {
            received += incoming.receive(limits.frames_each, |bytes| {
                take(bytes, (&mut *tcp, &mut *later), counters, refuses, now, &mut read);
                ControlFlow::Continue(())
            });
        }
        counters.received += u64::try_from(received).unwrap_or(0);
        received
    }

    fn transmit(&mut self, now: Time, has_more: impl Fn(&Stack<Vec<u8>>) -> bool) -> usize {
        let Self { link, tcp, headings, counters, limits, leaves_strangers, .. } = self;
        let mut sent = 0;
        while sent < limits.segments && has_more(tcp) && link.has_room() {
            let Some(transmit) = tcp.poll_transmit(now) else { break };
            sent += 1;
            let tuple = &transmit.tuple;
            // One that cannot leave is as one that the network has lost.
            let became = match transmit.whole_payload() {
                Some(whole) => {
                    emit((&mut *link, &mut *headings), &transmit, std::iter::once(whole), now)
                }
                None => emit((&mut *link, &mut *headings), &transmit, transmit.payload(), now),
            };
            counters.sent += u64::from(became == Some(Sent::Taken));
            counters.lost += u64::from(became != Some(Sent::Taken));
            if became == Some(Sent::Elsewhere) && *leaves_strangers {
                let tuple = *tuple;
                tcp.leave(&tuple);
            } else if became == Some(Sent::Size) {
                // A connection may have been told of longer packets than there are frames for.
                let report = Report::TooBig { mtu: link.packet_bytes_max() };
                let (tuple, seq) = (*tuple, transmit.header.seq);
                tcp.on_icmp(&IcmpError { report, protocol: PROTOCOL_TCP, tuple, seq });
            }
        }
        sent
    }

    /// Looks whether interfaces, addresses or routes have changed.
    #[cold]
    fn look(&mut self, now: Time) {
        self.look_at = now.plus(LOOKS_EVERY);
        self.changed |= self.changes.drain().unwrap_or(true);
        if !self.changed {
            return;
        }
        self.link.hops.forget();
        match find(self.index) {
            Ok(interface) => {
                if let Some(mac) = interface.mac {
                    self.link.set_mac(Mac(mac));
                }
                self.interface = interface;
                self.changed = false;
            }
            // If the interface is gone, the kernel tells when there is one again; else the next look may succeed.
            Err(error) => self.changed = error.kind() != io::ErrorKind::NotFound,
        }
    }
}

/// Sends a segment with this payload, if it has a header.
#[inline]
fn emit<'a>(
    (link, headings): (&mut Link, &mut Headings),
    transmit: &Transmit<'_, Vec<u8>>,
    payload: impl Iterator<Item = &'a [u8]> + Clone,
    now: Time,
) -> Option<Sent> {
    let Transmit { tuple, header, .. } = transmit;
    let bytes = transmit.payload_bytes();
    let headers = headings.of_segment(tuple, header, payload.clone(), bytes)?;
    let ends = Ends { from: tuple.local, to: tuple.remote };
    Some(link.send(ends, &headers, payload, now))
}

/// Takes a frame that has come. What is not for a socket here was for one a moment ago: the interface's steering sends
/// only what is claimed.
fn take(
    bytes: &[u8],
    (tcp, later): (&mut Stack<Vec<u8>>, &mut Option<Later>),
    counters: &mut Counters,
    refuses: bool,
    now: Time,
    read: &mut impl FnMut(ConnectionId, &[u8]) -> bool,
) {
    if let Some(later) = later.take() {
        tcp.on_later(&later);
    }
    let known = match Frame::parse(bytes, Checksums::Complete) {
        Ok(Frame::Tcp { tuple, header, payload }) => {
            let payload = bytes.get(payload).unwrap_or_default();
            let len = payload.len();
            if len > 0
                && let Some(taken) =
                    tcp.on_expected(&tuple, &header, len, now, |id| read(id, payload))
            {
                *later = match taken {
                    Taken::Later(left) => Some(left),
                    Taken::Whole => None,
                };
                return;
            }
            let outcome = tcp.on_segment(tuple, &header, Piece::whole(payload.to_vec()), now);
            if outcome == Outcome::Unknown && refuses {
                tcp.refuse_unknown(tuple, &header, len);
            }
            outcome == Outcome::Taken
        }
        Ok(Frame::IcmpError(error)) => tcp.on_icmp(&error) == Outcome::Taken,
        Ok(Frame::Arp(_) | Frame::Neighbour(_) | Frame::Udp { .. }) => false,
        Err(_) => {
            counters.damaged += 1;
            return;
        }
    };
    counters.unknown += u64::from(!known);
}

fn write(connection: &mut Connection<Vec<u8>>, bytes: &[u8], now: Time) -> usize {
    let mut taken = 0;
    for chunk in bytes.chunks(CHUNK_BYTES) {
        let room = usize::try_from(connection.send_room()).unwrap_or(usize::MAX);
        let part = chunk.get(..room.min(chunk.len())).unwrap_or_default();
        if part.is_empty() || connection.send(part.to_vec(), now).is_err() {
            break;
        }
        taken += part.len();
    }
    taken
}

fn find(index: u32) -> io::Result<Interface> {
    let all = netdev::interfaces()?;
    let found = all.into_iter().find(|interface| interface.index == index);
    found.ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// Bytes that are kept together until all of them are acknowledged.
const CHUNK_BYTES: usize = 64 << 10;
pub(crate) const CONNECTIONS_MAX: usize = 16_384;
const PROTOCOL_TCP: u8 = 6;
/// For how long what a program sends has precedence over what came before.
const LATER: Duration = Duration::from_millis(1);
const LOOKS_EVERY: Duration = Duration::from_millis(20);
