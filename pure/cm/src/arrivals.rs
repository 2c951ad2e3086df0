//! Received datagrams: which connection each means, and what it changes there.
//!
//! Everything here may be a lie. A message is believed if it comes from the address of the
//! connection's peer and names the connection by both identifiers.

use crate::connection::{Connection, State};
use crate::event::Event;
use crate::manager::{Manager, Transmit};
use crate::request::{Gid, ListenerId};
use adverb_wire::Mad;
use adverb_wire::cm::{self, Apr, CommId, Drep, Dreq, Lap, Message, Mra, Reason, Rej, Rep, Req};
use adverb_wire::cm::{Rtu, ServiceId, SidrRep, SidrReq, SidrStatus, Small, Subject};
use adverb_wire::{Qkey, Qpn};
use core::time::Duration;

/// Arrival of a datagram: addresses and time.
#[derive(Clone, Copy)]
struct Arrival {
    local: Gid,
    peer: Gid,
    transaction: u64,
    now: Duration,
}

impl Manager {
    /// Takes a datagram that came from queue pair 1 of `peer` to queue pair 1 of `local`.
    pub fn on_datagram(&mut self, local: Gid, peer: Gid, datagram: &[u8], now: Duration) {
        let Ok(cm::Datagram { transaction, message }) = cm::Datagram::parse(datagram) else {
            self.counters.malformed += 1;
            return self.refuse_attribute(local, peer, datagram);
        };
        let at = Arrival { local, peer, transaction, now };
        match message {
            Message::Req(req) => self.on_req(at, &req),
            Message::Mra(mra) => self.on_mra(at, &mra),
            Message::Rej(rej) => self.on_rej(at, &rej),
            Message::Rep(rep) => self.on_rep(at, &rep),
            Message::Rtu(rtu) => self.on_rtu(at, &rtu),
            Message::Dreq(dreq) => self.on_dreq(at, &dreq),
            Message::Drep(drep) => self.on_drep(at, &drep),
            Message::SidrReq(req) => self.on_sidr_req(at, &req),
            Message::SidrRep(rep) => self.on_sidr_rep(at, &rep),
            Message::Lap(lap) => self.on_lap(at, &lap),
            Message::Apr(_) => self.counters.unknown += 1, // Nothing here offers paths.
        }
    }

    /// Answers a request for an attribute of the class, such as ClassPortInfo: there is none.
    fn refuse_attribute(&mut self, local: Gid, peer: Gid, datagram: &[u8]) {
        if let Ok((mad, _)) = Mad::parse(datagram)
            && mad.class == Mad::COMMUNICATION
            && let Some(refusal) = mad.refusal()
        {
            let datagram = refusal.emit(&[0; Mad::DATA_LEN]);
            self.transmit_raw(Transmit { local, peer, traffic_class: 0, datagram });
        }
    }

    fn on_req(&mut self, at: Arrival, req: &Req) {
        if let Some(id) = self.by_remote.get(&(at.peer, req.local_id)).copied() {
            return self.on_req_again(at, id, req);
        }
        if let Some(id) = self.by_qpn.get(&(at.peer, req.qpn)).copied() {
            return self.on_stale(at, id, req);
        }
        let (id, listener) = match self.admit(at, req.service_id, req.local_id, State::ReqReceived)
        {
            Ok(admitted) => admitted,
            Err(Refusal::Nothing) => return self.deny(at, req, Reason::INVALID_SERVICE_ID),
            Err(Refusal::Full) => return, // It asks again, and there may be room then.
        };
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.remote_qpn = Some(req.qpn);
            connection.traffic_class = req.primary.traffic_class;
            connection.retries = req.cm_retries.get();
            let nanos = req.local_response_timeout.nanos();
            connection.wait = Duration::from_nanos(nanos.clamp(ANSWER_NANOS_MIN, ANSWER_NANOS_MAX));
        }
        self.by_qpn.insert((at.peer, req.qpn), id);
        let Arrival { local, peer, .. } = at;
        self.tell(Event::ConnectRequest { id, local, peer, listener, request: *req });
    }

    fn on_req_again(&mut self, at: Arrival, id: CommId, req: &Req) {
        let Some(connection) = self.connections.get(&id) else {
            return;
        };
        if connection.transaction != at.transaction || connection.remote_qpn != Some(req.qpn) {
            // A peer that has forgotten the connection has given its name to another one.
            return self.on_stale(at, id, req);
        }
        self.counters.duplicates += 1;
        match connection.state {
            State::ReqReceived => {
                let mra = Mra {
                    local_id: id,
                    remote_id: req.local_id,
                    subject: Subject::Req,
                    service_timeout: self.config.service_timeout,
                    private: [0; 222],
                };
                self.say(id, Message::Mra(mra));
            }
            State::RepSent => self.repeat(id),
            State::Asked
            | State::Asking
            | State::DreqSent
            | State::Established
            | State::Gone
            | State::RepReceived
            | State::ReqSent
            | State::TimeWait => {}
        }
    }

    /// The peer asks with a queue pair that is connected, as far as this side knows: it has
    /// forgotten. IBTA Vol. 1 §12.9.8.3.1.
    fn on_stale(&mut self, at: Arrival, id: CommId, req: &Req) {
        self.counters.stale += 1;
        self.deny(at, req, Reason::STALE_CONNECTION);
        let Some(connection) = self.connections.get(&id) else {
            return;
        };
        match connection.state {
            State::ReqReceived | State::RepSent | State::RepReceived => {
                let reason = Reason::STALE_CONNECTION;
                self.finish(id, Some(Event::Rejected { id, reason, private: [0; 148] }));
            }
            State::Established => {
                self.tell(Event::Disconnected { id });
                self.wait_out(id, at.now);
            }
            State::DreqSent => {
                self.tell(Event::Disconnected { id });
                self.wait_out(id, at.now);
            }
            State::Asked | State::Asking | State::Gone | State::ReqSent | State::TimeWait => {}
        }
    }

    fn on_rep(&mut self, at: Arrival, rep: &Rep) {
        let Some(connection) = self.connections.get_mut(&rep.remote_id) else {
            self.counters.unknown += 1;
            return self.disown(at, rep);
        };
        if connection.peer != at.peer || connection.transaction != at.transaction {
            self.counters.forged += 1;
            return;
        }
        let id = rep.remote_id;
        match connection.state {
            State::ReqSent => {
                if let Some(old) = self.by_qpn.get(&(at.peer, rep.qpn)).copied() {
                    return self.on_stale_rep(at, id, old, rep);
                }
                connection.state = State::RepReceived;
                connection.remote_id = Some(rep.local_id);
                connection.remote_qpn = Some(rep.qpn);
                connection.last = None;
                self.by_qpn.insert((at.peer, rep.qpn), id);
                self.disarm(id);
                self.tell(Event::ConnectResponse { id, reply: *rep });
            }
            State::RepReceived | State::Established
                if connection.remote_id == Some(rep.local_id) =>
            {
                self.counters.duplicates += 1;
                if connection.state == State::Established {
                    self.repeat(id);
                }
            }
            State::Gone => self.disown(at, rep),
            State::Asked
            | State::Asking
            | State::DreqSent
            | State::Established
            | State::RepReceived
            | State::RepSent
            | State::ReqReceived
            | State::TimeWait => self.counters.forged += 1,
        }
    }

    /// A peer accepts with a queue pair that is connected, as far as this side knows.
    fn on_stale_rep(&mut self, at: Arrival, id: CommId, old: CommId, rep: &Rep) {
        self.counters.stale += 1;
        let reason = Reason::STALE_CONNECTION;
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.remote_id = Some(rep.local_id);
        }
        self.refuse(id, Subject::Rep, reason, [0; 148]);
        self.finish(id, Some(Event::Rejected { id, reason, private: [0; 148] }));
        if self.connections.get(&old).is_some_and(|c| c.state == State::Established) {
            self.tell(Event::Disconnected { id: old });
            self.wait_out(old, at.now);
        }
    }

    fn on_rtu(&mut self, at: Arrival, rtu: &Rtu) {
        let Some(connection) = self.find(at, rtu.remote_id, rtu.local_id) else {
            return;
        };
        match connection.state {
            State::RepSent => self.establish(rtu.remote_id),
            State::Established => self.counters.duplicates += 1,
            State::Asked
            | State::Asking
            | State::DreqSent
            | State::Gone
            | State::RepReceived
            | State::ReqReceived
            | State::ReqSent
            | State::TimeWait => self.counters.unknown += 1,
        }
    }

    fn on_mra(&mut self, at: Arrival, mra: &Mra) {
        let Some(connection) = self.connections.get_mut(&mra.remote_id) else {
            self.counters.unknown += 1;
            return;
        };
        let named = connection.remote_id.is_none_or(|remote| remote == mra.local_id);
        let subject = match connection.state {
            State::ReqSent => Some(Subject::Req),
            State::RepSent => Some(Subject::Rep),
            State::Asked
            | State::Asking
            | State::DreqSent
            | State::Established
            | State::Gone
            | State::RepReceived
            | State::ReqReceived
            | State::TimeWait => None,
        };
        if connection.peer != at.peer || !named {
            self.counters.forged += 1;
        } else if subject == Some(mra.subject) && connection.patience > 0 {
            connection.patience -= 1;
            let service = mra.service_timeout.nanos().min(SERVICE_NANOS_MAX);
            let until = at
                .now
                .saturating_add(connection.wait)
                .saturating_add(Duration::from_nanos(service));
            self.arm(mra.remote_id, until);
        } else {
            self.counters.duplicates += 1;
        }
    }

    fn on_rej(&mut self, at: Arrival, rej: &Rej) {
        // A peer that gives up before it was answered does not know how this side calls it.
        let unanswered = (rej.remote_id == CommId(0))
            .then(|| self.by_remote.get(&(at.peer, rej.local_id)).copied())
            .flatten();
        let id = unanswered.unwrap_or(rej.remote_id);
        let Some(connection) = self.connections.get(&id) else {
            self.counters.unknown += 1;
            return;
        };
        let named = connection.remote_id.is_none_or(|remote| remote == rej.local_id);
        if connection.peer != at.peer || !named {
            self.counters.forged += 1;
            return;
        }
        match connection.state {
            State::ReqSent if connection.transaction != at.transaction => self.counters.forged += 1,
            state @ (State::ReqSent | State::ReqReceived | State::RepSent | State::RepReceived) => {
                let (reason, private) = (rej.reason, rej.private);
                let nothing_listens =
                    state == State::ReqSent && reason == Reason::INVALID_SERVICE_ID;
                if nothing_listens && self.knock(id, at.now) {
                    return;
                }
                self.finish(id, Some(Event::Rejected { id, reason, private }));
            }
            State::Established | State::DreqSent => {
                self.tell(Event::Disconnected { id });
                self.wait_out(id, at.now);
            }
            State::Asked | State::Asking | State::Gone | State::TimeWait => {
                self.counters.duplicates += 1;
            }
        }
    }

    fn on_dreq(&mut self, at: Arrival, dreq: &Dreq) {
        let (id, remote) = (dreq.remote_id, dreq.local_id);
        let drep = Message::Drep(Drep { local_id: id, remote_id: remote, private: [0; 224] });
        let Some(connection) = self.connections.get_mut(&id) else {
            // It is over here already: agreeing spares the peer its retries.
            self.counters.unknown += 1;
            let Arrival { local, peer, transaction, .. } = at;
            return self.transmit(local, peer, &cm::Datagram { transaction, message: drep });
        };
        let ours = connection.qpn == Some(dreq.remote_qpn);
        if connection.peer != at.peer || connection.remote_id != Some(remote) || !ours {
            self.counters.forged += 1;
            return;
        }
        match connection.state {
            State::Established | State::RepSent | State::RepReceived | State::DreqSent => {
                connection.last = Some(drep);
                self.reply(at, drep);
                self.tell(Event::Disconnected { id });
                self.wait_out(id, at.now);
            }
            State::TimeWait | State::Gone => {
                self.counters.duplicates += 1;
                self.reply(at, drep);
            }
            State::Asked | State::Asking | State::ReqReceived | State::ReqSent => {
                self.counters.forged += 1;
            }
        }
    }

    fn on_drep(&mut self, at: Arrival, drep: &Drep) {
        let id = drep.remote_id;
        let Some(connection) = self.find(at, id, drep.local_id) else {
            return;
        };
        if connection.state == State::DreqSent {
            self.tell(Event::Disconnected { id });
            self.wait_out(id, at.now);
        } else {
            self.counters.duplicates += 1;
        }
    }

    fn on_lap(&mut self, at: Arrival, lap: &Lap) {
        if self.find(at, lap.remote_id, lap.local_id).is_some() {
            let apr = Apr {
                local_id: lap.remote_id,
                remote_id: lap.local_id,
                information_len: 0,
                status: Apr::UNSUPPORTED,
                information: [0; 72],
                private: [0; 148],
            };
            self.reply(at, Message::Apr(apr));
        }
    }

    fn on_sidr_req(&mut self, at: Arrival, req: &SidrReq) {
        if let Some(id) = self.by_remote.get(&(at.peer, req.request_id)).copied() {
            self.counters.duplicates += 1;
            return self.repeat(id); // Nothing, as long as the user has not answered.
        }
        match self.admit(at, req.service_id, req.request_id, State::Asked) {
            Ok((id, listener)) => {
                let Arrival { local, peer, .. } = at;
                self.tell(Event::ResolveRequest { id, local, peer, listener, request: *req });
            }
            Err(Refusal::Nothing) => {
                let rep = SidrRep {
                    request_id: req.request_id,
                    status: SidrStatus::UNSUPPORTED,
                    information_len: 0,
                    qpn: Qpn::new(0),
                    service_id: req.service_id,
                    qkey: Qkey(0),
                    information: [0; 72],
                    private: [0; 136],
                };
                self.reply(at, Message::SidrRep(rep));
            }
            Err(Refusal::Full) => {}
        }
    }

    fn on_sidr_rep(&mut self, at: Arrival, rep: &SidrRep) {
        let id = rep.request_id;
        match self.connections.get(&id) {
            None => self.counters.unknown += 1,
            Some(c) if c.peer != at.peer || c.transaction != at.transaction => {
                self.counters.forged += 1;
            }
            Some(c) if c.state == State::Asking => {
                if rep.status == SidrStatus::UNSUPPORTED && self.knock(id, at.now) {
                    return;
                }
                self.finish(id, Some(Event::Resolved { id, reply: *rep }));
            }
            Some(_) => self.counters.duplicates += 1,
        }
    }

    /// Makes a place for what a peer asks of a listener.
    fn admit(
        &mut self,
        at: Arrival,
        service: ServiceId,
        remote: CommId,
        state: State,
    ) -> Result<(CommId, ListenerId), Refusal> {
        let place = self.listener(service, at.local).ok_or(Refusal::Nothing)?;
        let listener = self.listeners.get(&place).ok_or(Refusal::Nothing)?;
        let room = listener.waiting < listener.backlog;
        let name = if room { self.name().ok() } else { None };
        let Some((id, _)) = name else {
            self.counters.backlog_full += 1;
            return Err(Refusal::Full);
        };
        let mut connection = self.blank(at.local, at.peer, at.transaction, state);
        connection.remote_id = Some(remote);
        (connection.service, connection.backlog) = (service, Some(place));
        self.connections.insert(id, connection);
        self.by_remote.insert((at.peer, remote), id);
        if let Some(listener) = self.listeners.get_mut(&place) {
            listener.waiting += 1;
        }
        Ok((id, place))
    }

    /// The connection that a message means, if it may.
    fn find(&mut self, at: Arrival, id: CommId, remote: CommId) -> Option<&mut Connection> {
        let Some(connection) = self.connections.get_mut(&id) else {
            self.counters.unknown += 1;
            return None;
        };
        if connection.peer != at.peer || connection.remote_id != Some(remote) {
            self.counters.forged += 1;
            return None;
        }
        Some(connection)
    }

    /// Refuses a request that gets no place.
    fn deny(&mut self, at: Arrival, req: &Req, reason: Reason) {
        self.reply(at, Message::Rej(rejection(Subject::Req, req.local_id, reason)));
    }

    /// Says that nothing here has asked for a connection that a peer accepts.
    fn disown(&mut self, at: Arrival, rep: &Rep) {
        let rej = rejection(Subject::Rep, rep.local_id, Reason::INVALID_ID);
        self.reply(at, Message::Rej(Rej { local_id: rep.remote_id, ..rej }));
    }

    fn reply(&mut self, at: Arrival, message: Message) {
        let Arrival { local, peer, transaction, .. } = at;
        self.transmit(local, peer, &cm::Datagram { transaction, message });
    }
}

/// Reason why a request gets no place.
enum Refusal {
    /// There is no room.
    Full,
    /// Nothing listens.
    Nothing,
}

const fn rejection(subject: Subject, remote_id: CommId, reason: Reason) -> Rej {
    Rej {
        local_id: CommId(0),
        remote_id,
        subject,
        information_len: Small::ZERO,
        reason,
        information: [0; 72],
        private: [0; 148],
    }
}

/// How long a peer is waited for that has said how long its answers take, at least and at most: 33 ms and 17 s.
const ANSWER_NANOS_MIN: u64 = 4096 << 13;
const ANSWER_NANOS_MAX: u64 = 4096 << 22;

/// How much patience a peer can ask for at once: 69 s.
const SERVICE_NANOS_MAX: u64 = 4096 << 24;
