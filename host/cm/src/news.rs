//! What the protocol tells, and what becomes of it for identifiers.

use crate::attributes::USUAL_QKEY;
use crate::kind::{EventKind, Param};
use crate::parameters::{DatagramParameters, Parameters, Private, Transport};
use crate::ports::Place;
use crate::service::Core;
use crate::state::{Stage, State};
use crate::waiting::Entry;
use adverb_cm::{Answer, Event, ListenerId};
use adverb_device::{AhAttr, Gid, Port};
use adverb_wire::cm::{
    Addressing, CommId, Reason, Rep, Req, Service, SidrRep, SidrReq, SidrStatus,
};
use adverb_wire::{Qkey, Qpn};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::sync::Arc;

impl Core {
    /// `settled`: the ports that have taken in what came, for this event and those that are told with it.
    pub(crate) fn on_event(&mut self, event: Event, settled: &mut Vec<Arc<Port>>) {
        match event {
            Event::ConnectRequest { id, local, peer, listener, request } => {
                let asked = Asked { connection: id, local: Gid(local), peer: Gid(peer), listener };
                if !self.on_request(&asked, &request) {
                    self.refuse(id);
                }
            }
            Event::ResolveRequest { id, local, peer, listener, request } => {
                let asked = Asked { connection: id, local: Gid(local), peer: Gid(peer), listener };
                if !self.on_search(&asked, &request) {
                    self.refuse_search(id);
                }
            }
            Event::ConnectResponse { id, reply } => self.on_reply(id, &reply),
            Event::Resolved { id, reply } => self.on_found(id, &reply),
            Event::Established { id } => {
                self.watch_peer(id);
                self.change(id, Stage::Established, EventKind::Established, 0, Param::None);
            }
            Event::Disconnected { id } => {
                self.forget_peer(id);
                self.take_in_what_came(id, settled);
                self.change(id, Stage::Over, EventKind::Disconnected, 0, Param::None);
            }
            Event::Rejected { id, reason, private } => {
                let private = Private::of_field(&private);
                let param = Param::Connection(Parameters { private, ..Parameters::default() });
                let status = i32::from(reason.0);
                self.change(id, Stage::Over, EventKind::Rejected, status, param);
                self.forget(id);
            }
            Event::TimewaitExit { id } => {
                self.change(id, Stage::Over, EventKind::TimewaitExit, 0, Param::None);
                self.forget(id);
            }
            Event::Unreachable { id } => {
                self.change(id, Stage::Over, EventKind::Unreachable, -ETIMEDOUT, Param::None);
                self.forget(id);
            }
        }
    }

    fn change(&mut self, id: CommId, stage: Stage, kind: EventKind, status: i32, param: Param) {
        let Some(key) = self.connections.get(&id).copied() else {
            return;
        };
        if let Some(state) = self.ids.get_mut(&key) {
            state.stage = stage;
        }
        self.tell(key, kind, status, param);
    }

    /// What the peer sent before it ended the connection completes before the event: programs destroy the queue pair on
    /// that, and its completions with it.
    fn take_in_what_came(&self, id: CommId, settled: &mut Vec<Arc<Port>>) {
        let state = self.connections.get(&id).and_then(|key| self.ids.get(key));
        if let Some(Place { port, .. }) = state.and_then(|state| state.place.as_ref())
            && !settled.iter().any(|other| Arc::ptr_eq(other, port))
        {
            port.settle_briefly();
            settled.push(Arc::clone(port));
        }
    }

    /// The protocol knows the connection no longer.
    fn forget(&mut self, id: CommId) {
        if let Some(key) = self.connections.remove(&id)
            && let Some(state) = self.ids.get_mut(&key)
        {
            state.connection = None;
        }
    }

    fn refuse(&mut self, id: CommId) {
        if let Ok((manager, _)) = self.manager() {
            let _ = manager.reject(id, Reason::INVALID_SERVICE_ID, [0; 148]);
        }
    }

    fn refuse_search(&mut self, id: CommId) {
        let answer = Answer {
            status: SidrStatus::UNSUPPORTED,
            qpn: Qpn::new(0),
            qkey: Qkey(0),
            private: [0; 136],
        };
        if let Ok((manager, now)) = self.manager() {
            let _ = manager.answer(id, &answer, now);
        }
    }

    fn on_reply(&mut self, id: CommId, reply: &Rep) {
        let key = self.connections.get(&id).copied();
        if let Some(state) = key.and_then(|key| self.ids.get_mut(&key)) {
            state.reply = Some(*reply);
        }
        let param = Param::Connection(Parameters {
            qpn: reply.qpn.get(),
            qkey: None,
            private: Private::of_field(&reply.private),
            srq: reply.srq,
            responder_resources: reply.initiator_depth,
            initiator_depth: reply.responder_resources,
            flow_control: reply.flow_control,
            retry_count: 0,
            rnr_retry_count: reply.rnr_retries.get(),
        });
        self.change(id, Stage::Responded, EventKind::ConnectResponse, 0, param);
    }

    fn on_found(&mut self, id: CommId, reply: &SidrRep) {
        let key = self.connections.get(&id).copied();
        let ah = key.and_then(|key| self.ids.get(&key)).and_then(State::ah);
        let Some(ah) = ah else {
            return;
        };
        let private = Private::of_field(&reply.private);
        if reply.status == SidrStatus::VALID {
            let (qpn, qkey) = (reply.qpn.get(), reply.qkey.0);
            let param = Param::Datagram(DatagramParameters { qpn, qkey, ah, private });
            self.change(id, Stage::Established, EventKind::Established, 0, param);
        } else {
            let param = Param::Datagram(DatagramParameters { qpn: 0, qkey: 0, ah, private });
            let status = i32::from(reply.status.0);
            self.change(id, Stage::Over, EventKind::Unreachable, status, param);
        }
        self.forget(id);
    }

    /// A peer asks for a connection; false if it is not to be had here.
    fn on_request(&mut self, asked: &Asked, request: &Req) -> bool {
        let Some((addressing, rest)) = Addressing::parse(&request.private) else {
            return false;
        };
        let transport = match request.service {
            Service::Rc => Transport::Rc,
            Service::Uc => Transport::Uc,
            Service::Xrc => Transport::Xrc,
        };
        let param = Param::Connection(Parameters {
            qpn: request.qpn.get(),
            qkey: None,
            private: Private::of_field(rest),
            srq: request.srq,
            responder_resources: request.initiator_depth,
            initiator_depth: request.responder_resources,
            flow_control: request.flow_control,
            retry_count: request.retries.get(),
            rnr_retry_count: request.rnr_retries.get(),
        });
        let wanted = Wanted { transport, source_port: addressing.source_port };
        let child = self.child_of(asked, wanted);
        child.is_some_and(|(listener, child)| {
            if let Some(state) = self.ids.get_mut(&child) {
                state.request = Some(*request);
            }
            self.announce(listener, child, param);
            true
        })
    }

    /// A peer looks for a queue pair of datagrams; false if there is none here.
    fn on_search(&mut self, asked: &Asked, request: &SidrReq) -> bool {
        let Some((addressing, rest)) = Addressing::parse(&request.private) else {
            return false;
        };
        let source_port = addressing.source_port;
        let wanted = Wanted { transport: Transport::Ud, source_port };
        let Some((listener, child)) = self.child_of(asked, wanted) else {
            return false;
        };
        let Some(ah) = self.ids.get(&child).and_then(State::ah) else {
            return false;
        };
        let private = Private::of_field(rest);
        let param = DatagramParameters { qpn: 0, qkey: USUAL_QKEY, ah, private };
        self.announce(listener, child, Param::Datagram(param));
        true
    }

    fn announce(&mut self, owner: u64, child: u64, param: Param) {
        let kind = EventKind::ConnectRequest;
        self.queue(Entry { owner, child: Some(child), membership: None, kind, status: 0, param });
    }

    /// Makes the identifier of a request, like the one that listens.
    fn child_of(&mut self, asked: &Asked, wanted: Wanted) -> Option<(u64, u64)> {
        let listener = self.listeners.get(&asked.listener).copied()?;
        let (port, gid_index) = self.ports.of_gid(asked.local)?;
        let (local_ip, scope) = (ip_of(asked.local), port.device().index);
        let place = Place { port, gid: asked.local, gid_index };
        let parent = self.ids.get(&listener)?;
        let listens = parent.local?;
        if parent.options.ipv6_only && local_ip.is_ipv4() {
            return None; // The unspecified address of IPv6 stands for no other ones.
        }
        let Wanted { transport, source_port } = wanted;
        let mut state = State::new(Arc::clone(&parent.queue), parent.space, transport, 0);
        state.stage = Stage::Requested;
        state.connection = Some(asked.connection);
        state.options = parent.options;
        state.local = Some(scoped(local_ip, listens.port(), scope));
        state.peer = Some(scoped(ip_of(asked.peer), source_port, scope));
        state.place = Some(place);
        let child = self.new_key();
        self.ids.insert(child, state);
        self.connections.insert(asked.connection, child);
        Some((listener, child))
    }
}

/// Where a request has come from, and whose it is.
struct Asked {
    connection: CommId,
    local: Gid,
    peer: Gid,
    listener: ListenerId,
}

/// What it is for.
struct Wanted {
    transport: Transport,
    source_port: u16,
}

pub(crate) fn ip_of(gid: Gid) -> IpAddr {
    gid.v4().map_or_else(|| Ipv6Addr::from(gid.0).into(), IpAddr::from)
}

fn scoped(ip: IpAddr, port: u16, scope: u32) -> SocketAddr {
    match ip {
        IpAddr::V6(ip) if ip.is_unicast_link_local() => {
            SocketAddrV6::new(ip, port, 0, scope).into()
        }
        IpAddr::V4(_) | IpAddr::V6(_) => SocketAddr::new(ip, port),
    }
}

/// The way to a group: packets pass no router.
pub(crate) fn group_ah(gid: Gid, gid_index: u8, traffic_class: u8) -> AhAttr {
    AhAttr::new(gid).gid_index(gid_index).traffic_class(traffic_class).hop_limit(1)
}

const ETIMEDOUT: i32 = 110;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::core;
    use crate::{EventQueue, Id, Space};
    use adverb_device::{CqConfig, QpCap, QpConfig, QpType};
    use std::net::UdpSocket;

    /// Goal: packets that came before the end of a connection are taken in before the program hears of that. Method: one
    /// waits in the socket, and nothing polls; it is garbage for a queue pair of this process, and is counted.
    #[test]
    fn what_came_before_a_connection_ended_is_taken_in_before_the_event() {
        let queue = EventQueue::new().unwrap();
        let mark = 0x005e_77ed; // Other tests of this process have identifiers, too.
        let id = Id::new(&queue, Space::Tcp, Transport::Rc, mark).unwrap();
        id.bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        let connection = CommId(7);
        let key = *core().ids.iter().find(|(_, state)| state.user == mark).unwrap().0;
        core().connections.insert(connection, key);
        let port = Arc::clone(&core().ids[&key].place().unwrap().port);
        let cq = port.create_cq(&CqConfig { capacity: 1, ..CqConfig::default() });
        let target = port.create_qp(&QpConfig {
            domain: port.new_domain(),
            kind: QpType::Ud,
            send_cq: (*cq).clone(),
            recv_cq: (*cq).clone(),
            srq: None,
            xrcd: None,
            events: None,
            context: 0,
            cap: QpCap {
                max_send_wr: 1,
                max_recv_wr: 1,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline: 0,
            },
            signal_all: false,
            block_self_multicast: false,
        });
        let [_, a, b, c] = target.unwrap().number().get().to_be_bytes();
        let mut packet = [0; 64];
        packet[..8].copy_from_slice(&[0x64, 0x40, 0xff, 0xff, 0, a, b, c]);

        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut core = core();
        let before = port.counters().icrc_errors;
        socket.send_to(&packet, ("127.0.0.1", adverb_wire::ROCE_PORT)).unwrap();
        core.on_event(Event::Disconnected { id: connection }, &mut Vec::new());
        assert_eq!(port.counters().icrc_errors, before + 1);
    }
}
