//! One host's side of connection management: commands, time, and what comes of them.
//!
//! What arrives is in `arrivals`. A connection lives in one table, which is bounded; indexes say
//! which one a peer means. Events wait in a queue that is bounded because a connection stays in
//! the table until its events have been taken, and has few.

use crate::connection::{Connection, State};
use crate::event::{Counters, Event};
use crate::request::{Accept, Answer, Connect, Error, Gid, ListenerId, Resolve};
use adverb_wire::cm::{self, CommId, ConnectionRecord, Dreq, Exponent, Message, Path, Reason};
use adverb_wire::cm::{Rej, Rep, Req, Rtu, ServiceId, SidrRep, SidrReq, Small, Subject};
use adverb_wire::{Mad, Pkey, Qkey, Qpn};
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use core::time::Duration;

/// Bounds and time-outs of a manager.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Config {
    /// The GUID that this host gives for itself.
    pub ca_guid: u64,
    /// How long an answer may take, the network included.
    pub response_timeout: Exponent,
    /// How often a message is sent again: 0 to 15.
    pub retries: Small<4>,
    /// How much longer a peer may take that a user of this side keeps waiting.
    pub service_timeout: Exponent,
    /// How long a connection that is over is remembered, and its queue pair held back.
    pub time_wait: Exponent,
    /// What the names of all connections begin with, in their upper `prefix_bits` bits.
    pub prefix: u32,
    /// How many bits those are: 0 to 16.
    pub prefix_bits: u32,
    /// How many connections there may be, those that are over included.
    pub connections_max: usize,
    /// How many listeners there may be.
    pub listeners_max: usize,
}

/// A management datagram to send from queue pair 1 to queue pair 1.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Transmit {
    /// From where.
    pub local: Gid,
    /// To where.
    pub peer: Gid,
    /// Traffic class of the packet.
    pub traffic_class: u8,
    /// What.
    pub datagram: [u8; Mad::DATAGRAM_LEN],
}

/// One host's side of connection management.
///
/// Moments are durations since an origin that the caller chose.
#[derive(Debug)]
pub struct Manager {
    pub(crate) config: Config,
    pub(crate) connections: BTreeMap<CommId, Connection>,
    pub(crate) listeners: BTreeMap<ListenerId, Listener>,
    /// Listeners by what they listen to; without an address to all of them.
    services: BTreeMap<(ServiceId, Option<Gid>), ListenerId>,
    next_listener: u64,
    /// The last name that was given to a connection, without its prefix, and what is added for the next one.
    last_name: u32,
    name_step: u32,
    /// Connections that a peer has asked for or accepted, by how it calls them.
    pub(crate) by_remote: BTreeMap<(Gid, CommId), CommId>,
    /// Connections by the peer's queue pair.
    pub(crate) by_qpn: BTreeMap<(Gid, Qpn), CommId>,
    pub(crate) counters: Counters,
    deadlines: BTreeSet<(Duration, CommId)>,
    events: VecDeque<Event>,
    outbox: VecDeque<Transmit>,
    random: u64,
}

/// Which peers may ask for connections with a service.
#[derive(Debug)]
pub(crate) struct Listener {
    service: ServiceId,
    local: Option<Gid>,
    pub(crate) backlog: usize,
    pub(crate) waiting: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            ca_guid: 0,
            response_timeout: Exponent::saturating(20),
            retries: Small::MAX,
            service_timeout: Exponent::saturating(24),
            time_wait: Exponent::saturating(19),
            prefix: 0,
            prefix_bits: 0,
            connections_max: CONNECTIONS_MAX,
            listeners_max: LISTENERS_MAX,
        }
    }
}

impl Manager {
    /// A manager without connections. `seed` has to differ from that of a manager that the host
    /// had before, so that messages to it are not taken for messages to this one.
    pub fn new(config: Config, seed: u64) -> Self {
        let mut manager = Self {
            config,
            connections: BTreeMap::new(),
            listeners: BTreeMap::new(),
            services: BTreeMap::new(),
            next_listener: 0,
            last_name: 0,
            name_step: 1,
            by_remote: BTreeMap::new(),
            by_qpn: BTreeMap::new(),
            counters: Counters::default(),
            deadlines: BTreeSet::new(),
            events: VecDeque::new(),
            outbox: VecDeque::new(),
            random: seed,
        };
        // An odd step goes through all names before one comes again.
        (manager.last_name, manager.name_step) = (manager.word(), manager.word() | 1);
        manager
    }

    /// What has been dropped or repeated.
    pub const fn counters(&self) -> Counters {
        self.counters
    }

    /// How many connections and searches there are, those that are over included.
    pub fn connections(&self) -> usize {
        self.connections.len()
    }

    /// Lets peers ask for connections with `service` at address `local`, or at all addresses; `backlog` of them at a
    /// time, at least one. A request goes to the listener of its address, if there is one; one to an IPv4 address else
    /// to that of 0.0.0.0.
    ///
    /// # Errors
    ///
    /// [`Error::InUse`] and [`Error::Full`].
    pub fn listen(
        &mut self,
        service: ServiceId,
        local: Option<Gid>,
        backlog: usize,
    ) -> Result<ListenerId, Error> {
        if self.services.contains_key(&(service, local)) {
            return Err(Error::InUse);
        }
        let max = self.config.listeners_max;
        if self.listeners.len() >= max {
            return Err(Error::Full { max });
        }
        let id = ListenerId(self.next_listener);
        self.next_listener += 1;
        let backlog = backlog.clamp(1, BACKLOG_MAX);
        self.listeners.insert(id, Listener { service, local, backlog, waiting: 0 });
        self.services.insert((service, local), id);
        Ok(id)
    }

    /// The listener that a request for `service` at `local` goes to.
    pub(crate) fn listener(&self, service: ServiceId, local: Gid) -> Option<ListenerId> {
        let at = |local| self.services.get(&(service, local)).copied();
        let any = local.starts_with(&V4_PREFIX).then_some(ANY_V4);
        at(Some(local)).or_else(|| at(Some(any?))).or_else(|| at(None))
    }

    /// Lets no more peers ask. Requests that the user has got are still its to answer.
    ///
    /// # Errors
    ///
    /// [`Error::NotFound`] if nothing listens.
    pub fn unlisten(&mut self, id: ListenerId) -> Result<(), Error> {
        let Listener { service, local, .. } = self.listeners.remove(&id).ok_or(Error::NotFound)?;
        self.services.remove(&(service, local));
        for connection in self.connections.values_mut() {
            connection.backlog = connection.backlog.filter(|place| *place != id);
        }
        Ok(())
    }

    /// Asks a peer for a connection. One event says how it went: [`Event::ConnectResponse`],
    /// [`Event::Rejected`] or [`Event::Unreachable`].
    ///
    /// # Errors
    ///
    /// [`Error::Full`].
    pub fn connect(&mut self, with: &Connect, now: Duration) -> Result<CommId, Error> {
        let (id, transaction) = self.name()?;
        let timeout = self.config.response_timeout;
        let req = Req {
            local_id: id,
            service_id: with.service_id,
            ca_guid: self.config.ca_guid,
            qkey: Qkey(0),
            qpn: with.qpn,
            responder_resources: with.responder_resources,
            initiator_depth: with.initiator_depth,
            remote_response_timeout: timeout,
            service: with.service,
            flow_control: false,
            psn: with.psn,
            local_response_timeout: timeout,
            retries: with.retries,
            pkey: Pkey::DEFAULT,
            path_mtu: with.path_mtu,
            rnr_retries: with.rnr_retries,
            cm_retries: self.config.retries,
            srq: with.srq,
            primary: with.path(),
            alternate: Path::NONE,
            private: with.private,
        };
        let mut connection = self.blank(with.local, with.peer, transaction, State::ReqSent);
        connection.traffic_class = with.traffic_class;
        connection.qpn = Some(with.qpn);
        self.connections.insert(id, connection);
        self.ask(id, Message::Req(req), now);
        Ok(id)
    }

    /// Looks for the queue pair of a service of datagrams. One event says how it went:
    /// [`Event::Resolved`] or [`Event::Unreachable`].
    ///
    /// # Errors
    ///
    /// [`Error::Full`].
    pub fn resolve(&mut self, what: &Resolve, now: Duration) -> Result<CommId, Error> {
        let (id, transaction) = self.name()?;
        let (service_id, private) = (what.service_id, what.private);
        let req = SidrReq { request_id: id, pkey: Pkey::DEFAULT, service_id, private };
        let mut connection = self.blank(what.local, what.peer, transaction, State::Asking);
        connection.traffic_class = what.traffic_class;
        self.connections.insert(id, connection);
        self.ask(id, Message::SidrReq(req), now);
        Ok(id)
    }

    /// Accepts a connection that a peer has asked for. [`Event::Established`] follows, or
    /// [`Event::Rejected`], [`Event::Unreachable`] or [`Event::Disconnected`].
    ///
    /// # Errors
    ///
    /// [`Error::NotFound`] if the peer has given up, and [`Error::State`].
    pub fn accept(&mut self, id: CommId, with: &Accept, now: Duration) -> Result<(), Error> {
        let remote_id = self.remote_id(id, State::ReqReceived)?;
        let rep = Rep {
            local_id: id,
            remote_id,
            qkey: Qkey(0),
            qpn: with.qpn,
            psn: with.psn,
            responder_resources: with.responder_resources,
            initiator_depth: with.initiator_depth,
            target_ack_delay: ACK_DELAY,
            failover: FAILOVER_UNSUPPORTED,
            flow_control: false,
            rnr_retries: with.rnr_retries,
            srq: with.srq,
            ca_guid: self.config.ca_guid,
            private: with.private,
        };
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.state = State::RepSent;
            connection.qpn = Some(with.qpn);
        }
        self.ask(id, Message::Rep(rep), now);
        Ok(())
    }

    /// Refuses a connection that a peer has asked for, or has accepted. It exists no longer.
    ///
    /// # Errors
    ///
    /// [`Error::NotFound`] and [`Error::State`].
    pub fn reject(&mut self, id: CommId, why: Reason, private: [u8; 148]) -> Result<(), Error> {
        let connection = self.connections.get(&id).ok_or(Error::NotFound)?;
        let subject = match connection.state {
            State::ReqReceived => Subject::Req,
            State::RepReceived => Subject::Rep,
            State::Asked
            | State::Asking
            | State::DreqSent
            | State::Established
            | State::Gone
            | State::RepSent
            | State::ReqSent
            | State::TimeWait => return Err(Error::State),
        };
        self.refuse(id, subject, why, private);
        self.finish(id, None);
        Ok(())
    }

    /// Answers a search for a queue pair of datagrams.
    ///
    /// # Errors
    ///
    /// [`Error::NotFound`] and [`Error::State`].
    pub fn answer(&mut self, id: CommId, with: &Answer, now: Duration) -> Result<(), Error> {
        let request_id = self.remote_id(id, State::Asked)?;
        let service_id = self.connections.get(&id).map_or(ServiceId(0), |c| c.service);
        let rep = SidrRep {
            request_id,
            status: with.status,
            information_len: 0,
            qpn: with.qpn,
            service_id,
            qkey: with.qkey,
            information: [0; 72],
            private: with.private,
        };
        self.say(id, Message::SidrRep(rep));
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.last = Some(Message::SidrRep(rep));
        }
        self.wait_out(id, now);
        Ok(())
    }

    /// Says that the queue pair of a connection that the peer has accepted is ready. It can be
    /// used from now on.
    ///
    /// # Errors
    ///
    /// [`Error::NotFound`] if the peer has given up, and [`Error::State`].
    pub fn ready(&mut self, id: CommId) -> Result<(), Error> {
        let remote_id = self.remote_id(id, State::RepReceived)?;
        let rtu = Message::Rtu(Rtu { local_id: id, remote_id, private: [0; 224] });
        self.say(id, rtu);
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.state = State::Established;
            connection.last = Some(rtu); // A repeated REP gets it again.
        }
        Ok(())
    }

    /// Says that the peer's packets arrive, although its message that it is ready has not.
    ///
    /// # Errors
    ///
    /// [`Error::NotFound`]; [`Error::State`] if the peer was not accepted.
    pub fn notify(&mut self, id: CommId) -> Result<(), Error> {
        self.remote_id(id, State::RepSent)?;
        self.establish(id);
        Ok(())
    }

    /// Ends a connection. [`Event::Disconnected`] follows, and [`Event::TimewaitExit`].
    ///
    /// # Errors
    ///
    /// [`Error::NotFound`]; [`Error::State`] if it was not established, or is over.
    pub fn disconnect(&mut self, id: CommId, now: Duration) -> Result<(), Error> {
        let remote_id = self.remote_id(id, State::Established)?;
        self.part(id, remote_id, now);
        Ok(())
    }

    /// Ends a connection whose peer is no more, as the user knows from elsewhere: nothing is sent.
    /// [`Event::Disconnected`] follows, and [`Event::TimewaitExit`].
    ///
    /// # Errors
    ///
    /// [`Error::NotFound`]; [`Error::State`] if it was not established, or is over.
    pub fn lose(&mut self, id: CommId, now: Duration) -> Result<(), Error> {
        let connection = self.connections.get(&id).ok_or(Error::NotFound)?;
        if !matches!(connection.state, State::Established | State::DreqSent) {
            return Err(Error::State);
        }
        self.tell(Event::Disconnected { id });
        self.wait_out(id, now);
        Ok(())
    }

    /// Announces the end of a connection that another manager of this host had. There are no events of it. The peer's
    /// agreement may go to still another manager: it is asked for a few times.
    ///
    /// # Errors
    ///
    /// [`Error::Full`]; [`Error::InUse`] if a connection of this manager has its name.
    pub fn part_from(&mut self, of: &ConnectionRecord, now: Duration) -> Result<(), Error> {
        let ConnectionRecord { local, peer, id, remote_id, remote_qpn, traffic_class } = *of;
        let max = self.config.connections_max;
        if self.connections.len() >= max {
            return Err(Error::Full { max });
        }
        if self.connections.contains_key(&id) {
            return Err(Error::InUse);
        }
        let transaction = self.bits();
        let connection = Connection {
            remote_id: Some(remote_id),
            remote_qpn: Some(remote_qpn),
            traffic_class,
            retries: ORPHAN_RETRIES,
            deaf: true,
            ..self.blank(local, peer, transaction, State::Established)
        };
        self.connections.insert(id, connection);
        self.part(id, remote_id, now);
        Ok(())
    }

    /// Lets go of a connection, in whatever state it is. There are no more events of it; the peer
    /// is told.
    ///
    /// # Errors
    ///
    /// [`Error::NotFound`].
    pub fn destroy(&mut self, id: CommId, now: Duration) -> Result<(), Error> {
        let connection = self.connections.get_mut(&id).ok_or(Error::NotFound)?;
        connection.deaf = true;
        if core::mem::take(&mut connection.undelivered) > 0 {
            self.events.retain(|event| event.id() != id);
        }
        let connection = self.connections.get(&id).ok_or(Error::NotFound)?;
        match (connection.state, connection.remote_id) {
            (State::Established, Some(remote_id)) => self.part(id, remote_id, now),
            (State::ReqSent, _) => self.give_up(id, Subject::Req),
            (State::RepSent | State::RepReceived, _) => {
                self.refuse(id, Subject::Rep, Reason::CONSUMER, [0; 148]);
                self.finish(id, None);
            }
            (State::ReqReceived, _) => {
                self.refuse(id, Subject::Req, Reason::CONSUMER, [0; 148]);
                self.finish(id, None);
            }
            (State::Asked | State::Asking | State::Established | State::Gone, _) => {
                self.finish(id, None);
            }
            (State::DreqSent | State::TimeWait, _) => {}
        }
        Ok(())
    }

    /// The next datagram to send.
    pub fn poll_transmit(&mut self) -> Option<Transmit> {
        self.outbox.pop_front()
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        let event = self.events.pop_front()?;
        if let Some(connection) = self.connections.get_mut(&event.id()) {
            connection.undelivered = connection.undelivered.saturating_sub(1);
        }
        self.reap(event.id());
        Some(event)
    }

    /// When [`Manager::on_time`] has something to do.
    pub fn next_deadline(&self) -> Option<Duration> {
        self.deadlines.first().map(|(at, _)| *at)
    }

    /// Sends again what was not answered in time, and forgets what is over.
    pub fn on_time(&mut self, now: Duration) {
        while let Some((at, id)) = self.deadlines.first().copied().filter(|(at, _)| *at <= now) {
            self.deadlines.remove(&(at, id));
            if let Some(connection) = self.connections.get_mut(&id) {
                connection.deadline = None;
                self.expire(id, now);
            }
        }
    }

    fn expire(&mut self, id: CommId, now: Duration) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        let waits = matches!(
            connection.state,
            State::Asking | State::DreqSent | State::RepSent | State::ReqSent
        );
        if waits && connection.tries > 0 {
            connection.tries -= 1;
            let wait = connection.wait;
            self.counters.resent += 1;
            self.repeat(id);
            self.arm(id, now.saturating_add(wait));
            return;
        }
        match connection.state {
            State::ReqSent => self.give_up(id, Subject::Req),
            State::RepSent => self.give_up(id, Subject::Rep),
            State::Asking => self.finish(id, Some(Event::Unreachable { id })),
            State::DreqSent => {
                self.tell(Event::Disconnected { id });
                self.wait_out(id, now);
            }
            State::TimeWait => {
                let search = connection.qpn.is_none();
                self.finish(id, (!search).then_some(Event::TimewaitExit { id }));
            }
            State::Asked
            | State::Established
            | State::Gone
            | State::RepReceived
            | State::ReqReceived => {}
        }
    }

    /// Tells the peer that this side has waited too long, and the user that the peer is not there.
    fn give_up(&mut self, id: CommId, subject: Subject) {
        self.refuse(id, subject, Reason::TIMEOUT, [0; 148]);
        self.finish(id, Some(Event::Unreachable { id }));
    }

    fn part(&mut self, id: CommId, remote_id: CommId, now: Duration) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        connection.state = State::DreqSent;
        let remote_qpn = connection.remote_qpn.unwrap_or(Qpn::new(0));
        let dreq = Dreq { local_id: id, remote_id, remote_qpn, private: [0; 220] };
        self.ask(id, Message::Dreq(dreq), now);
    }

    /// Sends what wants an answer, and again if none comes.
    fn ask(&mut self, id: CommId, message: Message, now: Duration) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        (connection.last, connection.tries) = (Some(message), connection.retries);
        connection.patience = PATIENCE_MAX;
        let until = now.saturating_add(connection.wait);
        self.say(id, message);
        self.arm(id, until);
    }

    /// Nothing listens at the peer. A program that listens anew for each connection may be about to: the request
    /// is sent again after a pause that doubles each time. False if that was done often enough.
    pub(crate) fn knock(&mut self, id: CommId, now: Duration) -> bool {
        let Some(connection) = self.connections.get_mut(&id).filter(|c| c.knocks > 0) else {
            return false;
        };
        let pause = KNOCK_PAUSE * (1 << (KNOCKS - connection.knocks));
        connection.knocks -= 1;
        // The peer has answered: this is none of the tries for messages that get lost.
        connection.tries = connection.tries.saturating_add(1);
        self.arm(id, now.saturating_add(pause));
        true
    }

    pub(crate) fn refuse(&mut self, id: CommId, subject: Subject, why: Reason, private: [u8; 148]) {
        let Some(connection) = self.connections.get(&id) else {
            return;
        };
        let rej = Rej {
            local_id: id,
            remote_id: connection.remote_id.unwrap_or(CommId(0)),
            subject,
            information_len: Small::ZERO,
            reason: why,
            information: [0; 72],
            private,
        };
        self.say(id, Message::Rej(rej));
    }

    pub(crate) fn establish(&mut self, id: CommId) {
        self.disarm(id);
        self.leave_backlog(id);
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.state = State::Established;
        }
        self.tell(Event::Established { id });
    }

    /// The connection is over, but not forgotten. The peer may use its queue pair's number for another one: to hold it
    /// back is up to the peer.
    pub(crate) fn wait_out(&mut self, id: CommId, now: Duration) {
        self.leave_backlog(id);
        self.unname_qpn(id);
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.state = State::TimeWait;
        }
        let wait = Duration::from_nanos(self.config.time_wait.nanos());
        self.arm(id, now.saturating_add(wait));
    }

    /// The connection is over and forgotten once its events have been taken.
    pub(crate) fn finish(&mut self, id: CommId, event: Option<Event>) {
        self.disarm(id);
        self.unname(id);
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.state = State::Gone;
        }
        event.into_iter().for_each(|event| self.tell(event));
        self.reap(id);
    }

    pub(crate) fn tell(&mut self, event: Event) {
        let Some(connection) = self.connections.get_mut(&event.id()) else {
            return;
        };
        if !connection.deaf {
            connection.undelivered += 1;
            debug_assert!(connection.undelivered <= EVENTS_MAX, "a connection has few events");
            self.events.push_back(event);
        }
    }

    fn reap(&mut self, id: CommId) {
        let over = |c: &Connection| c.state == State::Gone && c.undelivered == 0;
        if self.connections.get(&id).is_some_and(over) {
            self.leave_backlog(id);
            self.connections.remove(&id);
        }
    }

    pub(crate) fn leave_backlog(&mut self, id: CommId) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        let listener = connection.backlog.take().and_then(|name| self.listeners.get_mut(&name));
        if let Some(listener) = listener {
            listener.waiting = listener.waiting.saturating_sub(1);
        }
    }

    /// Takes the connection out of the indexes, as far as they mean this one.
    fn unname(&mut self, id: CommId) {
        let Some(connection) = self.connections.get(&id) else {
            return;
        };
        if let Some(remote) = connection.remote_id {
            let key = (connection.peer, remote);
            if self.by_remote.get(&key) == Some(&id) {
                self.by_remote.remove(&key);
            }
        }
        self.unname_qpn(id);
    }

    /// Takes the connection out of the index by queue pairs, if that means this one.
    fn unname_qpn(&mut self, id: CommId) {
        let Some(connection) = self.connections.get(&id) else {
            return;
        };
        if let Some(qpn) = connection.remote_qpn {
            let key = (connection.peer, qpn);
            if self.by_qpn.get(&key) == Some(&id) {
                self.by_qpn.remove(&key);
            }
        }
    }

    /// Sends the last message again.
    pub(crate) fn repeat(&mut self, id: CommId) {
        if let Some(message) = self.connections.get(&id).and_then(|connection| connection.last) {
            self.say(id, message);
        }
    }

    pub(crate) fn say(&mut self, id: CommId, message: Message) {
        let Some(connection) = self.connections.get(&id) else {
            return;
        };
        let Connection { local, peer, transaction, traffic_class, .. } = *connection;
        let datagram = cm::Datagram { transaction, message }.emit();
        self.transmit_raw(Transmit { local, peer, traffic_class, datagram });
    }

    pub(crate) fn transmit(&mut self, local: Gid, peer: Gid, datagram: &cm::Datagram) {
        let datagram = datagram.emit();
        self.transmit_raw(Transmit { local, peer, traffic_class: 0, datagram });
    }

    pub(crate) fn transmit_raw(&mut self, transmit: Transmit) {
        if self.outbox.len() < OUTBOX_MAX {
            self.outbox.push_back(transmit);
        } else {
            self.counters.unsent += 1;
        }
    }

    pub(crate) fn arm(&mut self, id: CommId, at: Duration) {
        self.disarm(id);
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.deadline = Some(at);
            self.deadlines.insert((at, id));
        }
    }

    pub(crate) fn disarm(&mut self, id: CommId) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        if let Some(at) = connection.deadline.take() {
            self.deadlines.remove(&(at, id));
        }
    }

    /// How the peer calls a connection that has to be in `state`.
    fn remote_id(&self, id: CommId, state: State) -> Result<CommId, Error> {
        let connection = self.connections.get(&id).ok_or(Error::NotFound)?;
        match (connection.state, connection.remote_id) {
            (State::Gone, _) => Err(Error::NotFound),
            (is, Some(remote_id)) if is == state => Ok(remote_id),
            (_, _) => Err(Error::State),
        }
    }

    /// A name for a connection that no other has, and none has had for long.
    pub(crate) fn name(&mut self) -> Result<(CommId, u64), Error> {
        let max = self.config.connections_max;
        if self.connections.len() >= max {
            return Err(Error::Full { max });
        }
        let bits = self.config.prefix_bits.min(PREFIX_BITS_MAX);
        let prefix = self.config.prefix.checked_shl(u32::BITS - bits).unwrap_or(0);
        loop {
            self.last_name = self.last_name.wrapping_add(self.name_step);
            let id = CommId(prefix | self.last_name & (u32::MAX >> bits));
            if id != CommId(0) && !self.connections.contains_key(&id) {
                return Ok((id, self.bits()));
            }
        }
    }

    pub(crate) fn blank(
        &self,
        local: Gid,
        peer: Gid,
        transaction: u64,
        state: State,
    ) -> Connection {
        Connection {
            local,
            peer,
            transaction,
            state,
            remote_id: None,
            qpn: None,
            remote_qpn: None,
            last: None,
            deadline: None,
            tries: 0,
            patience: 0,
            knocks: KNOCKS,
            service: ServiceId(0),
            backlog: None,
            traffic_class: 0,
            wait: Duration::from_nanos(self.config.response_timeout.nanos()),
            retries: self.config.retries.get(),
            undelivered: 0,
            deaf: false,
        }
    }

    const fn word(&mut self) -> u32 {
        let [.., a, b, c, d] = self.bits().to_be_bytes();
        u32::from_be_bytes([a, b, c, d])
    }

    /// SplitMix64.
    const fn bits(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.random ^ (self.random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// How an IPv4 address begins, and the unspecified one.
const V4_PREFIX: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];
const ANY_V4: Gid = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0, 0, 0];

/// So many names there are at least: 65,536, as many as connections if nothing else is said.
const PREFIX_BITS_MAX: u32 = 16;
const _: () = assert!(CONNECTIONS_MAX <= 1 << (u32::BITS - PREFIX_BITS_MAX));

/// How many connections there may be, if nothing else is said.
const CONNECTIONS_MAX: usize = 65_536;

/// How many listeners there may be, if nothing else is said.
const LISTENERS_MAX: usize = 4096;

/// How many requests may wait for the user of one listener.
const BACKLOG_MAX: usize = 4096;

/// How often the end of a connection is announced again that another manager had.
const ORPHAN_RETRIES: u8 = 3;

/// How many datagrams may wait to be sent; what finds no room is sent again later.
const OUTBOX_MAX: usize = 4096;

/// How many events of one connection may wait for its user.
const EVENTS_MAX: u8 = 5;

/// How often a peer may ask for more time before the same answer.
const PATIENCE_MAX: u8 = 16;

/// How often a peer is asked again that has said that nothing listens, and after what pause the first time: for
/// 310 ms altogether.
const KNOCKS: u8 = 5;
const KNOCK_PAUSE: Duration = Duration::from_millis(10);

/// How long acknowledgements of this side may take, beside the network: 4 ms.
const ACK_DELAY: Exponent = Exponent::saturating(10);

/// What becomes of alternate paths.
const FAILOVER_UNSUPPORTED: Small<2> = Small::saturating(1);
