//! Queue pair 1: management datagrams, by which queue pairs of two hosts meet.
//!
//! It belongs to an address, and all processes of the host that have the address share it. The kernel gives its
//! packets to any of them, which passes them on by what they say: a request to the device that has bound the port
//! that it asks for, everything else to the device whose number is in the name of the connection
//! ([`Port::connection_prefix`]). So no process has to be there for another one's connections, and none has to take
//! over when one dies: the kernel gives the next packet to another one. One that is stopped takes requests and passes
//! none on: another one takes over then (`watch.rs`).

use super::Port;
use super::watch::Watch;
use crate::link::address_vector::AddressVector;
use crate::link::errors::ConnectError;
use crate::link::udp::burst::{Route, with_burst};
use crate::link::udp::endpoint::gid_of;
use crate::memory::local::{Local, Source};
use crate::objects::inbox::{Inbox, ManagementDatagram};
use crate::registry::connections::Recorded;
use crate::registry::relay::Passed;
use crate::registry::services::ServicePort;
use crate::registry::{CONNECTION_PREFIX_BITS, DomainClaim, Member, SlotId};
use adverb_engine::{Gid, Identification, admit};
use adverb_wire::cm::{self, CommId, ConnectionRecord, Message};
use adverb_wire::{
    Bth, Deth, Extension, Flow, Headers, Mad, Marks, Opcode, Operation, Packet, Pad,
};
use adverb_wire::{Pkey, Psn, Qkey, Qpn, ROCE_PORT, Transport};
use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

/// State of queue pair 1 of a port.
#[derive(Debug, Default)]
pub(super) struct Desk {
    inbox: OnceLock<Arc<Inbox>>,
    psn: AtomicU32,
    pub(super) watch: Watch,
}

/// A port of connection management that this process has bound; free again when this is dropped.
#[derive(Debug)]
pub struct BoundService {
    port: Arc<Port>,
    claim: DomainClaim,
    service: ServicePort,
}

/// The device of this host that has a connection.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Owner(Member);

impl Port {
    /// From now on management datagrams for this process come into `inbox`; of several the first one gets them.
    pub fn take_management(&self, inbox: &Arc<Inbox>) {
        if self.desk.inbox.set(Arc::clone(inbox)).is_ok() {
            self.links.registry.set_manages();
        }
    }

    /// Opens the socket of an address, so that datagrams to it arrive.
    ///
    /// # Errors
    ///
    /// [`ConnectError`].
    pub fn open_address(&self, gid_index: u8) -> Result<(), ConnectError> {
        self.endpoint(gid_index).map(drop)
    }

    /// What names of connections have in their upper [`CONNECTION_PREFIX_BITS`] bits, so that their messages come
    /// to this device: its place in the registry.
    pub fn connection_prefix(&self) -> u32 {
        self.links.registry.slot().number()
    }

    /// The device of this host that has named a connection so.
    pub fn owner(&self, connection: CommId) -> Option<Owner> {
        let registry = &self.links.registry;
        let slot = owner_of(connection).filter(|slot| registry.manages(*slot))?;
        Some(Owner(registry.member(slot)))
    }

    /// Whether a device has not gone.
    pub fn lives(&self, owner: Owner) -> bool {
        self.links.registry.lives(owner.0)
    }

    /// Writes a connection of this process down, so that another one announces its end if this one is killed; `None` if
    /// there is no room.
    pub fn record(&self, connection: &ConnectionRecord) -> Option<Recorded> {
        self.links.registry.record(connection)
    }

    /// A connection that was written down is over.
    pub fn strike(&self, recorded: Recorded) {
        self.links.registry.strike(recorded);
    }

    /// Takes the connections that processes of this host had which were killed.
    pub fn take_orphans(&self) -> Vec<ConnectionRecord> {
        self.links.registry.take_orphans()
    }

    /// Binds a port of connection management, for all devices of this process.
    ///
    /// # Errors
    ///
    /// `AddrInUse`; `AddrNotAvailable` if either is for all addresses; the host has as many as possible.
    pub fn bind_service(self: &Arc<Self>, service: &ServicePort) -> io::Result<BoundService> {
        let claim = self.links.registry.bind_service(service)?;
        Ok(BoundService { port: Arc::clone(self), claim, service: *service })
    }

    /// Sends a management datagram, which may get lost, from the address at `gid_index` to queue pair 1 of `peer`.
    ///
    /// # Errors
    ///
    /// [`ConnectError`].
    pub fn send_management(
        &self,
        gid_index: u8,
        peer: Gid,
        marks: Marks,
        datagram: &[u8; Mad::DATAGRAM_LEN],
    ) -> Result<(), ConnectError> {
        let address_vector = AddressVector::new(self.endpoint(gid_index)?, peer, marks)?;
        let psn = Psn::new(self.desk.psn.fetch_add(1, Ordering::Relaxed) & 0x00ff_ffff);
        let len = u32::try_from(datagram.len()).unwrap_or(0);
        let source = Source::Local { local: Local::Inline(datagram), offset: 0, len, domain: 0 };
        let route = Route::new(&address_vector, self.links.regions(), &self.links.counters);
        let _ = with_burst(route, 1, |burst| burst.emit(&headers(psn), &source));
        Ok(())
    }

    /// A packet for queue pair 1 has come, on one of this port's sockets or passed on by another process.
    pub(super) fn on_management(
        &self,
        packet: &Packet<'_>,
        datagram: &[u8],
        passed: &Passed<'_>,
        relayed: bool,
    ) {
        let Some(bytes) = management_datagram(packet) else {
            return self.links.counters.dropped_management.add(1);
        };
        let (local, peer) = (gid_of(passed.target), gid_of(passed.source.ip()));
        let named = addressee(bytes);
        let owner = self.management_of(named.as_ref(), local);
        let mine = owner == Some(self.links.registry.slot());
        let is_request = !matches!(named, Some(Addressee::Connection(_)));
        if is_request && !mine && !relayed && self.has_waited(passed.target) {
            return self.links.counters.dropped_management.add(1);
        }
        let answers = self.desk.inbox.get().is_some();
        // One that can say that it is for none.
        let any = || if answers { None } else { self.links.registry.manager() };
        let to = owner.or_else(any).filter(|to| *to != self.links.registry.slot());
        // What was passed on once and is not for this device either has lost its owner meanwhile.
        let there = to.and_then(|to| Some((to, self.links.registry.relay_port(to)?)));
        if let Some((to, port)) = there.filter(|_| !relayed) {
            let one = Passed { segment: None, bytes: datagram, ..*passed };
            if self.links.relay.pass(port, one).is_ok() {
                self.links.counters.forwarded.add(1);
                return self.links.registry.note_relayed(to);
            }
        }
        let arrived = ManagementDatagram { local, peer, bytes: *bytes };
        if !self.desk.inbox.get().is_some_and(|inbox| inbox.put(arrived)) {
            self.links.counters.dropped_management.add(1);
        }
    }

    /// Another process has passed on what is for none of this port's addresses: for another port of this process.
    pub(super) fn on_stray_management(&self, passed: &Passed<'_>) {
        let flow = match (passed.source.ip(), passed.target) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                Flow::v4(from.octets(), to.octets(), passed.source.port(), ROCE_PORT)
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                Flow::v6(from.octets(), to.octets(), passed.source.port(), ROCE_PORT)
            }
            (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => return,
        };
        let parsed = Packet::parse(passed.bytes);
        if let Ok(packet) = admit(&parsed, passed.bytes, &flow, Identification::Guessed(0))
            && packet.headers.bth.dest_qp == Qpn::GSI
        {
            self.on_management(packet, passed.bytes, passed, true);
        }
    }

    /// The device that a management datagram is for, if what it says tells.
    fn management_of(&self, named: Option<&Addressee>, local: Gid) -> Option<SlotId> {
        let registry = &self.links.registry;
        match named {
            Some(Addressee::Connection(id)) => owner_of(*id)
                .filter(|slot| registry.manages(*slot) && registry.lives(registry.member(*slot))),
            Some(Addressee::Service(id)) => id
                .port()
                .and_then(|(space, port)| registry.service(space.protocol(), port, local.0)),
            None => None,
        }
    }
}

impl BoundService {
    /// Has the port to itself from now on, so that requests come to this process.
    ///
    /// # Errors
    ///
    /// As of [`Port::bind_service`]: others have bound it, which say that they share it.
    pub fn listen(&self) -> io::Result<()> {
        self.port.links.registry.own_service(self.claim, &self.service)
    }
}

impl Drop for BoundService {
    fn drop(&mut self) {
        self.port.links.registry.release_domain(self.claim);
    }
}

/// Addressee of a datagram, as the datagram names it.
enum Addressee {
    /// The connection, as the receiver names it.
    Connection(CommId),
    /// What it asks for.
    Service(cm::ServiceId),
}

fn addressee(bytes: &[u8]) -> Option<Addressee> {
    let cm::Datagram { message, .. } = cm::Datagram::parse(bytes).ok()?;
    Some(match message {
        Message::Req(req) => Addressee::Service(req.service_id),
        Message::SidrReq(req) => Addressee::Service(req.service_id),
        Message::SidrRep(rep) => Addressee::Connection(rep.request_id),
        Message::Apr(apr) => Addressee::Connection(apr.remote_id),
        Message::Drep(drep) => Addressee::Connection(drep.remote_id),
        Message::Dreq(dreq) => Addressee::Connection(dreq.remote_id),
        Message::Lap(lap) => Addressee::Connection(lap.remote_id),
        Message::Mra(mra) => Addressee::Connection(mra.remote_id),
        Message::Rej(rej) => Addressee::Connection(rej.remote_id),
        Message::Rep(rep) => Addressee::Connection(rep.remote_id),
        Message::Rtu(rtu) => Addressee::Connection(rtu.remote_id),
    })
}

fn owner_of(id: CommId) -> Option<SlotId> {
    SlotId::new(id.0 >> (u32::BITS - CONNECTION_PREFIX_BITS)).filter(|_| id != CommId(0))
}

/// The management datagram in a packet for queue pair 1.
fn management_datagram<'a>(packet: &Packet<'a>) -> Option<&'a [u8; Mad::DATAGRAM_LEN]> {
    let of_datagrams = packet.headers.bth.opcode.transport() == Transport::Ud;
    let shown = packet.headers.deth.map(|deth| deth.qkey);
    packet.payload.try_into().ok().filter(|_| of_datagrams && shown == Some(Qkey::GSI))
}

fn headers(psn: Psn) -> Headers {
    const SEND: Option<Opcode> = Opcode::of(Transport::Ud, Operation::SendOnly);
    const OPCODE: Opcode = match SEND {
        Some(opcode) => opcode,
        None => panic!("datagrams are sent in one packet"),
    };
    Headers {
        bth: Bth {
            opcode: OPCODE,
            solicited: false,
            migrated: true,
            pad: Pad::for_len(Mad::DATAGRAM_LEN),
            pkey: Pkey::DEFAULT,
            fecn: false,
            becn: false,
            dest_qp: Qpn::GSI,
            ack_request: false,
            keeps_early: false,
            psn,
        },
        deth: Some(Deth { qkey: Qkey::GSI, src_qp: Qpn::GSI }),
        xrceth: None,
        extension: Extension::None,
    }
}
