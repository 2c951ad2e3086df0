//! All connections of a process or an interface: which one a segment is for, which one is due, what happened.
//!
//! A segment, a call or a deadline costs the same with ten thousand idle connections as with one: connections are found
//! by a keyed hash, deadlines wait in order, and only connections to which something has happened are asked whether they
//! have something to send.

mod agenda;
mod keyed;
mod listener;
mod slots;
mod table;

use alloc::collections::{BTreeMap, VecDeque};
use core::fmt;
use core::net::IpAddr;

pub use self::listener::Listen;
pub use self::slots::ConnectionId;

use self::agenda::Agenda;
use self::keyed::Key;
use self::listener::Listener;
use self::slots::{Slot, Slots};
use self::table::{Table, words};
use crate::icmp::IcmpError;
use crate::tcp::{
    Answer, Config, Connection, Departure, Events, Flags, Handover, Names, Piece, Seq, State, Tcp,
};
use crate::time::Time;
use crate::tuple::Tuple;

/// Connections, listeners, and what is due.
#[derive(Debug)]
pub struct Stack<B> {
    slots: Slots<B>,
    table: Table,
    /// By port, and by address: `None` is any.
    listeners: BTreeMap<(u16, Option<IpAddr>), Listener>,
    agenda: Agenda,
    /// Slots to which something has happened.
    events: VecDeque<u32>,
    /// Listeners with a connection to accept.
    acceptable: VecDeque<ListenerId>,
    /// Resets for segments that belong to no connection.
    resets: VecDeque<(Tuple, Tcp)>,
    /// Slots of connections in TIME-WAIT that the program knows no longer, by ticket: the oldest first.
    waiting: BTreeMap<u64, u32>,
    /// Tickets that have been given out: places in a line.
    tickets: u64,
    key: Key,
    counters: Counters,
}

/// The address and port of a listener; no address is any.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct ListenerId {
    /// Where it listens.
    pub port: u16,
    /// At which of our addresses.
    pub address: Option<IpAddr>,
}

/// Something has happened.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Event {
    /// A listener has connections to accept: one, or more that have come since the last event.
    Acceptable(ListenerId),
    /// To a connection.
    Connection(ConnectionId, Events),
}

/// What became of a segment.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Outcome {
    /// It was for a connection or a listener.
    Taken,
    /// There is neither. Something else may know it; [`Stack::refuse_unknown`] sends the reset if nothing does.
    Unknown,
}

/// How much of a segment has been taken whose payload the program has.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub enum Taken {
    /// All of it.
    Whole,
    /// What it says of our stream is left.
    Later(Later),
}

/// What a segment says of our stream, and that is to be taken by [`Stack::on_later`] before anything else is done but
/// [`Connection::send`] and [`Stack::poll_transmit`].
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct Later {
    id: ConnectionId,
    answer: Answer,
}

impl Later {
    /// When it came.
    pub const fn came(&self) -> Time {
        self.answer.came()
    }
}

/// Error of a program's call.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum StackError {
    /// There are as many connections as there may be.
    Full,
    /// Another connection or listener has the name.
    InUse,
    /// The other end is no port of one host.
    NotOneHost,
}

impl fmt::Display for StackError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full => "there are as many connections as there may be",
            Self::InUse => "another connection or listener has this name",
            Self::NotOneHost => "the other end is no port of one host",
        })
    }
}

impl core::error::Error for StackError {}

/// What has been done since the begin.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Counters {
    /// Segments that came.
    pub segments: u64,
    /// Tuples that were compared to find their connections.
    pub compared: u64,
    /// Connections that were asked what is due, or what there is to send.
    pub asked: u64,
    /// SYNs that a listener had no room or no time for.
    pub syns_dropped: u64,
    /// Resets that were not sent, because too many were waiting.
    pub resets_dropped: u64,
}

/// A segment to send.
#[derive(Debug)]
pub struct Transmit<'a, B> {
    /// The names of both ends.
    pub tuple: Tuple,
    /// Its header, to which [`Tcp::emit_sum`] adds the checksum.
    pub header: Tcp,
    carried: Option<(&'a Connection<B>, Departure)>,
}

impl<B: AsRef<[u8]>> Transmit<'_, B> {
    /// The payload, in pieces.
    pub fn payload(&self) -> impl Iterator<Item = &[u8]> + Clone {
        self.carried.iter().flat_map(|(connection, departure)| connection.payload(departure))
    }

    /// The payload, if it is in one piece, as that of short segments mostly is.
    pub fn whole_payload(&self) -> Option<&[u8]> {
        let (connection, departure) = self.carried.as_ref()?;
        connection.whole_payload(departure)
    }

    /// Bytes of payload.
    pub fn payload_bytes(&self) -> usize {
        self.carried.map_or(0, |(_, departure)| departure.payload_bytes())
    }
}

impl<B: AsRef<[u8]>> Stack<B> {
    /// A stack with up to so many connections. `secret` must be random: peers must not guess it.
    pub fn new(connections_max: usize, secret: [u64; 2]) -> Self {
        let key = Key(secret);
        let connections_max = connections_max.clamp(1, CONNECTIONS_MAX);
        Self {
            slots: Slots::new(connections_max),
            table: Table::new(connections_max, key),
            listeners: BTreeMap::new(),
            agenda: Agenda::default(),
            events: VecDeque::new(),
            acceptable: VecDeque::new(),
            resets: VecDeque::new(),
            waiting: BTreeMap::new(),
            tickets: 0,
            key,
            counters: Counters::default(),
        }
    }

    /// What has been done since the begin.
    pub fn counters(&self) -> Counters {
        Counters { compared: self.table.compared(), ..self.counters }
    }

    /// Connections that there are, in whatever state.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// There is no connection.
    pub fn is_empty(&self) -> bool {
        self.slots.len() == 0
    }

    /// Begins a connection.
    ///
    /// # Errors
    ///
    /// [`StackError::InUse`] if there is one of this name, [`StackError::Full`], and [`StackError::NotOneHost`] for groups, all
    /// hosts, and no address or port (RFC 9293 §3.9.2.3); nothing has been done.
    pub fn connect(
        &mut self,
        tuple: Tuple,
        config: &Config,
        now: Time,
    ) -> Result<ConnectionId, StackError> {
        if tuple.remote_port == 0 || !is_one_host(tuple.remote) {
            return Err(StackError::NotOneHost);
        }
        if self.table.find(&tuple).is_some() {
            return Err(StackError::InUse);
        }
        let connection = Connection::connect(config, self.names(&tuple, now), now);
        let slot = self.insert(tuple, connection, None).ok_or(StackError::Full)?;
        self.refresh(slot);
        Ok(self.slots.id(slot))
    }

    /// Carries on a connection that another implementation has had.
    ///
    /// # Errors
    ///
    /// Those of [`Stack::connect`].
    pub fn take_over(
        &mut self,
        tuple: Tuple,
        config: &Config,
        from: &Handover,
        now: Time,
    ) -> Result<ConnectionId, StackError> {
        if self.table.find(&tuple).is_some() {
            return Err(StackError::InUse);
        }
        let connection = Connection::resume(config, self.names(&tuple, now), from, now);
        let slot = self.insert(tuple, connection, None).ok_or(StackError::Full)?;
        self.refresh(slot);
        Ok(self.slots.id(slot))
    }

    /// Forgets a connection, of which the peer is told nothing: another implementation carries it on. A reset that is due,
    /// and for which there has been no room, leaves nevertheless.
    pub fn let_go(&mut self, id: ConnectionId) {
        if let Some(entry) = self.slots.find(id) {
            let (tuple, reset) = (entry.tuple, entry.connection.due_reset());
            self.remove(id.slot);
            if let Some(reset) = reset {
                // Nothing that a peer sends asks for it again, as for that of a stranger.
                self.refuse_within(tuple, reset, RESETS_MAX + self.slots.max());
            }
        }
    }

    /// Listens for connections.
    ///
    /// # Errors
    ///
    /// [`StackError::InUse`] if there is a listener for this port and address.
    pub fn listen(&mut self, at: ListenerId, listen: Listen, now: Time) -> Result<(), StackError> {
        let key = (at.port, at.address);
        if self.listeners.contains_key(&key) {
            return Err(StackError::InUse);
        }
        self.listeners.insert(key, Listener::new(listen, now));
        Ok(())
    }

    /// Listens no longer. Connections that were not accepted are reset.
    pub fn unlisten(&mut self, at: ListenerId) {
        self.listeners.remove(&(at.port, at.address));
        self.acceptable.retain(|acceptable| *acceptable != at);
        for slot in self.slots.of_listener(at) {
            if let Some(entry) = self.slots.get_mut(slot) {
                entry.listener = None;
                entry.connection.abort();
            }
            self.refresh(slot);
        }
    }

    /// The connection that has waited the longest to be accepted.
    pub fn accept(&mut self, at: ListenerId) -> Option<ConnectionId> {
        let slot = self.listeners.get_mut(&(at.port, at.address))?.accept()?;
        let entry = self.slots.get_mut(slot)?;
        entry.listener = None;
        if entry.connection.has_events() {
            self.note_events(slot);
        }
        Some(self.slots.id(slot))
    }

    /// Connections that wait to be accepted.
    pub fn acceptable(&self, at: ListenerId) -> usize {
        self.listeners.get(&(at.port, at.address)).map_or(0, Listener::waiting)
    }

    /// A connection, to look at.
    pub fn get(&self, id: ConnectionId) -> Option<&Connection<B>> {
        self.slots.find(id).map(|slot| &slot.connection)
    }

    /// The name of a connection.
    pub fn tuple(&self, id: ConnectionId) -> Option<Tuple> {
        self.slots.find(id).map(|slot| slot.tuple)
    }

    /// Lets a program call its connection; `None` if it is gone.
    pub fn with<R>(
        &mut self,
        id: ConnectionId,
        call: impl FnOnce(&mut Connection<B>) -> R,
    ) -> Option<R> {
        self.slots.find(id)?;
        let result = call(&mut self.slots.get_mut(id.slot)?.connection);
        self.refresh(id.slot);
        Some(result)
    }

    /// A segment has arrived.
    pub fn on_segment(
        &mut self,
        tuple: Tuple,
        header: &Tcp,
        payload: Piece<B>,
        now: Time,
    ) -> Outcome {
        self.counters.segments += 1;
        let Some(slot) = self.table.find(&tuple) else {
            return self.on_stranger(tuple, header, payload.len(), now);
        };
        let Some(entry) = self.slots.get_mut(slot) else {
            return Outcome::Unknown;
        };
        if entry.connection.yields_to(header) {
            self.remove(slot);
            return self.on_stranger(tuple, header, payload.len(), now);
        }
        let reset = entry.connection.on_segment(header, payload, now);
        if let Some(reset) = reset {
            self.refuse(tuple, reset);
        }
        self.refresh(slot);
        Outcome::Taken
    }

    /// The same of a segment whose payload is the next that a program reads, if it is of that kind: `read` gives it to the
    /// program, and says whether that has all of it. `None`: the segment was not taken, and nothing has happened.
    #[inline]
    pub fn on_expected(
        &mut self,
        tuple: &Tuple,
        header: &Tcp,
        payload_bytes: usize,
        now: Time,
        read: impl FnOnce(ConnectionId) -> bool,
    ) -> Option<Taken> {
        let slot = self.table.find(tuple)?;
        let id = self.slots.id(slot);
        let entry = self.slots.get_mut(slot).filter(|entry| entry.listener.is_none())?;
        let connection = &mut entry.connection;
        if !connection.expects(header, payload_bytes, now) || !read(id) {
            return None;
        }
        self.counters.segments += 1;
        let answer = connection.take_payload(header, payload_bytes, now);
        if connection.may_answer_later(&answer) {
            return Some(Taken::Later(Later { id, answer }));
        }
        connection.take_answer(&answer);
        self.refresh(slot);
        Some(Taken::Whole)
    }

    /// Takes the rest of a segment, which is due by now.
    pub fn on_later(&mut self, Later { id, answer }: &Later) {
        if self.slots.find(*id).is_some()
            && let Some(entry) = self.slots.get_mut(id.slot)
        {
            entry.connection.take_answer(answer);
            self.refresh(id.slot);
        }
    }

    /// Answers a segment that nothing knows with a reset, unless it is one itself.
    pub fn refuse_unknown(&mut self, tuple: Tuple, header: &Tcp, payload_bytes: usize) {
        if let Some(reset) = Connection::<B>::refuse(header, payload_bytes) {
            self.refuse(tuple, reset);
        }
    }

    /// A segment that belongs to no connection: RFC 9293 §3.10.7.1, §3.10.7.2.
    fn on_stranger(&mut self, tuple: Tuple, header: &Tcp, bytes: usize, now: Time) -> Outcome {
        let exact = (tuple.local_port, Some(tuple.local));
        let key = if self.listeners.contains_key(&exact) { exact } else { (exact.0, None) };
        let Some(listener) = self.listeners.get_mut(&key) else {
            return Outcome::Unknown;
        };
        let flags = header.flags;
        if flags.has(Flags::RST) {
            return Outcome::Taken;
        }
        if flags.has(Flags::ACK) || !flags.has(Flags::SYN) {
            self.refuse_unknown(tuple, header, bytes);
            return Outcome::Taken;
        }
        if flags.has(Flags::FIN) || !listener.admits(now) {
            self.counters.syns_dropped += 1;
            return Outcome::Taken;
        }
        let config = listener.listen.config;
        let connection = Connection::answer(&config, self.names(&tuple, now), header, now);
        let (port, address) = key;
        match self.insert(tuple, connection, Some(ListenerId { port, address })) {
            Some(slot) => {
                if let Some(listener) = self.listeners.get_mut(&key) {
                    listener.begin();
                }
                self.refresh(slot);
            }
            None => self.counters.syns_dropped += 1,
        }
        Outcome::Taken
    }

    /// The connection of these names is left to another implementation: [`Connection::leave`].
    pub fn leave(&mut self, tuple: &Tuple) {
        if let Some(slot) = self.table.find(tuple) {
            if let Some(entry) = self.slots.get_mut(slot) {
                entry.connection.leave();
            }
            self.refresh(slot);
        }
    }

    /// A router or host reports an error about one of our segments.
    pub fn on_icmp(&mut self, error: &IcmpError) -> Outcome {
        let Some(slot) = self.table.find(&error.tuple).filter(|_| error.protocol == TCP) else {
            return Outcome::Unknown;
        };
        if let Some(entry) = self.slots.get_mut(slot) {
            entry.connection.on_icmp(error.report, error.seq);
        }
        self.refresh(slot);
        Outcome::Taken
    }

    /// [`Stack::poll_transmit`] may have something.
    pub fn is_ready(&self) -> bool {
        !self.resets.is_empty() || self.agenda.first_ready().is_some()
    }

    /// The same, unless that can wait: there is but one connection to ask, which has nothing to send, and is only to be asked
    /// for its deadline.
    pub fn is_urgent(&self, now: Time) -> bool {
        let is_calm = |slot| self.slots.get(slot).is_some_and(|one| one.connection.is_calm(now));
        self.is_ready()
            && !(self.resets.is_empty() && self.agenda.only_ready().is_some_and(is_calm))
    }

    /// The next segment to send, if there is one. It must be sent.
    pub fn poll_transmit(&mut self, now: Time) -> Option<Transmit<'_, B>> {
        if let Some((tuple, header)) = self.resets.pop_front() {
            return Some(Transmit { tuple, header, carried: None });
        }
        while let Some(slot) = self.agenda.first_ready() {
            self.counters.asked += 1;
            let Some(entry) = self.slots.get_mut(slot) else {
                self.agenda.rest(None);
                continue;
            };
            if let Some(departure) = entry.connection.poll_transmit(now) {
                self.agenda.rotate();
                let entry = self.slots.get(slot)?;
                let (tuple, header) = (entry.tuple, departure.header);
                return Some(Transmit {
                    tuple,
                    header,
                    carried: Some((&entry.connection, departure)),
                });
            }
            self.agenda.rest(Some(&mut entry.noted));
            self.settle(slot);
        }
        None
    }

    /// When [`Stack::on_time`] is to be called, if [`Stack::poll_transmit`] has nothing.
    pub fn next_deadline(&self) -> Option<Time> {
        self.agenda.next()
    }

    /// Time has passed. [`Stack::poll_transmit`] may have something then.
    pub fn on_time(&mut self, now: Time) {
        while let Some(slot) = self.agenda.due(now) {
            self.counters.asked += 1;
            let Some(entry) = self.slots.get_mut(slot) else {
                continue;
            };
            entry.noted.woken();
            let deadline = entry.connection.next_deadline();
            if deadline.is_some_and(|deadline| deadline <= now) {
                entry.connection.on_time(now);
                self.refresh_woken(slot, now);
            } else {
                self.agenda.wake_at(slot, &mut entry.noted, deadline);
            }
        }
    }

    /// After a connection's deadline. What is due still must leave by `poll_transmit` first, so that time moves on.
    fn refresh_woken(&mut self, slot: u32, now: Time) {
        let Some(entry) = self.slots.get_mut(slot) else {
            return;
        };
        self.agenda.make_ready(slot, &mut entry.noted);
        let deadline = entry.connection.next_deadline().filter(|deadline| *deadline > now);
        self.agenda.wake_at(slot, &mut entry.noted, deadline);
        self.look_at(slot);
    }

    /// Something that has happened, if anything has since the last call.
    pub fn poll_event(&mut self) -> Option<Event> {
        if let Some(at) = self.acceptable.pop_front() {
            if let Some(listener) = self.listeners.get_mut(&(at.port, at.address)) {
                listener.told = false;
            }
            return Some(Event::Acceptable(at));
        }
        while let Some(slot) = self.events.pop_front() {
            let id = self.slots.id(slot);
            let Some(entry) = self.slots.get_mut(slot) else {
                continue;
            };
            entry.told = false;
            let events = entry.connection.take_events();
            if events.any() {
                return Some(Event::Connection(id, events));
            }
        }
        None
    }

    /// Something has been done to the connection.
    fn refresh(&mut self, slot: u32) {
        let Some(entry) = self.slots.get_mut(slot) else {
            return;
        };
        self.agenda.make_ready(slot, &mut entry.noted);
        self.look_at(slot);
    }

    /// The connection has nothing to send: notes its deadline, or that it is over.
    fn settle(&mut self, slot: u32) {
        let Some(entry) = self.slots.get_mut(slot) else {
            return;
        };
        let connection = &entry.connection;
        let unknown = connection.is_orphaned() || entry.listener.is_some();
        if connection.state() == State::Closed && unknown {
            if let Some(at) = entry.listener
                && let Some(listener) = self.listeners.get_mut(&(at.port, at.address))
            {
                listener.lose(entry.complete);
            }
            self.remove(slot);
            return;
        }
        let deadline = connection.next_deadline();
        self.agenda.wake_at(slot, &mut entry.noted, deadline);
    }

    /// Tells the program, or the listener, what has happened.
    fn look_at(&mut self, slot: u32) {
        let Some(entry) = self.slots.get_mut(slot) else {
            return;
        };
        let over = entry.connection.state() == State::TimeWait && entry.connection.is_orphaned();
        if over && entry.waits.is_none() {
            self.tickets += 1;
            entry.waits = Some(self.tickets);
            self.waiting.insert(self.tickets, slot);
        }
        match entry.listener {
            None => {
                if entry.connection.has_events() && !entry.connection.is_orphaned() {
                    self.note_events(slot);
                }
            }
            Some(at) if entry.connection.state().is_synchronized() && entry.complete.is_none() => {
                self.tickets += 1;
                entry.complete = Some(self.tickets);
                if let Some(listener) = self.listeners.get_mut(&(at.port, at.address)) {
                    listener.complete(self.tickets, slot);
                    if !core::mem::replace(&mut listener.told, true) {
                        self.acceptable.push_back(at);
                    }
                }
            }
            Some(_) => {}
        }
    }

    fn note_events(&mut self, slot: u32) {
        if let Some(entry) = self.slots.get_mut(slot)
            && !entry.told
        {
            entry.told = true;
            self.events.push_back(slot);
        }
    }

    fn refuse(&mut self, tuple: Tuple, reset: Tcp) {
        self.refuse_within(tuple, reset, RESETS_MAX);
    }

    fn refuse_within(&mut self, tuple: Tuple, reset: Tcp, most: usize) {
        if self.resets.len() < most {
            self.resets.push_back((tuple, reset));
        } else {
            self.counters.resets_dropped += 1;
        }
    }

    fn insert(
        &mut self,
        tuple: Tuple,
        connection: Connection<B>,
        listener: Option<ListenerId>,
    ) -> Option<u32> {
        if self.slots.is_full() {
            self.evict();
        }
        let slot = self.slots.insert(Slot::new(tuple, connection, listener))?;
        self.table.insert(tuple, slot);
        Some(slot)
    }

    /// Makes room: of the connections in TIME-WAIT that the program knows no longer, the oldest goes.
    fn evict(&mut self) {
        if let Some((_, slot)) = self.waiting.first_key_value() {
            self.remove(*slot);
        }
    }

    fn remove(&mut self, slot: u32) {
        if let Some(entry) = self.slots.remove(slot) {
            self.table.remove(slot);
            self.agenda.forget(slot, &entry.noted);
            if let Some(ticket) = entry.waits {
                self.waiting.remove(&ticket);
            }
        }
    }

    /// Ports, and a first sequence number that cannot be guessed but grows: RFC 6528 §3.
    fn names(&self, tuple: &Tuple, now: Time) -> Names {
        let low = |bits: u64| {
            let [.., b0, b1, b2, b3] = bits.to_be_bytes();
            u32::from_be_bytes([b0, b1, b2, b3])
        };
        let clock = low(now.nanos() / 4000);
        let [l0, l1, r0, r1, ports] = words(tuple);
        let first = low(self.key.hash([l0, l1, r0, r1, ports, 1])).wrapping_add(clock);
        // Time stamps must grow from one connection to the next between the same hosts: RFC 7323 §5.8.
        let stamp_origin = low(self.key.hash([l0, l1, r0, r1, 2]));
        Names {
            local_port: tuple.local_port,
            remote_port: tuple.remote_port,
            ip_header_bytes: if tuple.local.is_ipv4() { 20 } else { 40 },
            first: Seq::new(first),
            stamp_origin,
        }
    }
}

/// Whether an address is that of one host.
fn is_one_host(address: IpAddr) -> bool {
    let is_all = matches!(address, IpAddr::V4(address) if address.is_broadcast());
    !is_all && !address.is_multicast() && !address.is_unspecified()
}

/// Resets for strangers that wait to be sent; besides, there may be one of each connection.
const RESETS_MAX: usize = 64;

/// Connections of a stack, so that memory for their table stays below 256 MiB.
const CONNECTIONS_MAX: usize = 1 << 20;

const TCP: u8 = 6;

#[cfg(test)]
mod tests;
