//! What programs ask of identifiers.

use crate::attributes::USUAL_QKEY;
use crate::ends;
use crate::error::Error;
use crate::handle::{Handle, Seat};
use crate::kind::{EventKind, Param};
use crate::news::group_ah;
use crate::parameters::{DatagramParameters, Parameters, Private, Space, Transport};
use crate::ports::{self, Place, Scoped};
use crate::service::Core;
use crate::state::{Member, Said, Stage, State, gid_of};
use crate::waiting::{Entry, Waiting};
use adverb_cm::{Accept, Answer, Connect, Resolve};
use adverb_device::{BoundService, Port, ServicePort};
use adverb_wire::cm::{Addressing, Exponent, PortSpace, Reason, Service, ServiceId};
use adverb_wire::cm::{SidrStatus, Small};
use adverb_wire::{Qkey, Qpn};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

impl Core {
    pub(crate) fn create(
        &mut self,
        queue: Arc<Waiting>,
        space: Space,
        transport: Transport,
        user: u64,
    ) -> Arc<Handle> {
        let key = self.new_key();
        let handle = Arc::new(Handle(key));
        let mut state = State::new(queue, space, transport, user);
        state.handle = Arc::downgrade(&handle);
        self.ids.insert(key, state);
        handle
    }

    /// Finds the device of an address, and has it serve.
    fn place(&mut self, local: SocketAddr) -> Result<Place, Error> {
        let place = self.ports.place(local)?;
        self.serve()?;
        Port::end_connections_at_exit(ends::disconnect_all);
        self.receive_from(&place.port);
        Ok(place)
    }

    /// Opens all addresses, and has all devices serve.
    fn open_all(&mut self) -> Result<(), Error> {
        self.ports.open_all()?;
        self.serve()?;
        Port::end_connections_at_exit(ends::disconnect_all);
        self.ports.all().iter().for_each(|port| self.receive_from(port));
        Ok(())
    }

    pub(crate) fn bind(&mut self, key: u64, local: SocketAddr) -> Result<(), Error> {
        let local = local.canonical();
        let state = self.state(key)?;
        if state.stage != Stage::Idle {
            return Err(Error::State("new"));
        }
        let (space, options) = (state.space, state.options);
        let place = if local.ip().is_unspecified() {
            self.open_all()?;
            None
        } else {
            Some(self.place(local)?)
        };
        let (bound, port) = match space.on_wire() {
            Some(space) => self.claim(space, local, options.reuse, options.ipv6_only)?,
            None => (None, local.port()),
        };
        let state = self.state(key)?;
        state.local = Some(SocketAddr::new(local.ip(), port).with_scope_of(local));
        (state.place, state.bound, state.stage) = (place, bound, Stage::Bound);
        Ok(())
    }

    /// Binds a port in the host's table; any free one for port 0.
    fn claim(
        &mut self,
        space: PortSpace,
        local: SocketAddr,
        reuse: bool,
        ipv6_only: bool,
    ) -> Result<(Option<BoundService>, u16), Error> {
        let home = self.ports.home().cloned().ok_or(Error::AddressNotAvailable)?;
        let (protocol, address) = (space.protocol(), gid_of(local).0);
        let claim = |port| {
            let service = ServicePort { protocol, port, address, ipv6_only, reuse };
            home.bind_service(&service)
        };
        for _ in 0..EPHEMERAL_TRIES {
            let port = if local.port() == 0 { ephemeral() } else { local.port() };
            match claim(port) {
                Ok(bound) => return Ok((Some(bound), port)),
                Err(error) if local.port() == 0 && is_taken(&error) => {}
                Err(error) => return Err(of_bind(error)),
            }
        }
        Err(Error::AddressInUse)
    }

    pub(crate) fn write_event(
        &mut self,
        key: u64,
        kind: EventKind,
        status: i32,
        argument: u64,
    ) -> Result<(), Error> {
        if self.state(key)?.queued >= WRITTEN_EVENTS_MAX {
            return Err(Error::Full);
        }
        self.tell(key, kind, status, Param::Argument(argument));
        Ok(())
    }

    pub(crate) fn resolve_addr(
        &mut self,
        key: u64,
        local: Option<SocketAddr>,
        peer: SocketAddr,
    ) -> Result<(), Error> {
        let state = self.state(key)?;
        if !matches!(state.stage, Stage::Idle | Stage::Bound) {
            return Err(Error::State("new or bound"));
        }
        let peer = reachable(peer.canonical());
        let said = local.map(Scoped::canonical).or(state.local);
        let said = said.filter(|local| !local.ip().is_unspecified() || local.port() != 0);
        let is_new = state.stage == Stage::Idle;
        match self.find_way(key, said, peer, is_new) {
            Ok(()) => {
                self.tell(key, EventKind::AddrResolved, 0, Param::None);
                Ok(())
            }
            Err(error @ (Error::AddressInUse | Error::Invalid(_))) => Err(error),
            Err(error) => {
                self.tell(key, EventKind::AddrError, -error.errno(), Param::None);
                Ok(())
            }
        }
    }

    fn find_way(
        &mut self,
        key: u64,
        said: Option<SocketAddr>,
        peer: SocketAddr,
        is_new: bool,
    ) -> Result<(), Error> {
        if said.is_some_and(|said| said.is_ipv4() != peer.is_ipv4() && !said.ip().is_unspecified())
        {
            return Err(Error::Invalid("an address of another family than the peer's"));
        }
        let source = match said.filter(|said| !said.ip().is_unspecified()) {
            Some(said) => said,
            None => ports::source(peer).map_err(Error::system("find a route to the peer"))?,
        };
        let place = self.place(source)?;
        let asked = said.map_or(0, |said| said.port());
        let state = self.state(key)?;
        let (space, reuse) = (state.space, state.options.reuse);
        let claimed = match space.on_wire() {
            Some(space) if asked != 0 && is_new => {
                let local = SocketAddr::new(source.ip(), asked);
                self.claim(space, local, reuse, false)?.0
            }
            _ => None,
        };
        let state = self.state(key)?;
        let port = if asked == 0 { ephemeral() } else { asked };
        state.bound = claimed.or(state.bound.take());
        state.local = Some(SocketAddr::new(source.ip(), port).with_scope_of(source));
        state.peer = Some(peer);
        (state.place, state.stage) = (Some(place), Stage::AddressResolved);
        Ok(())
    }

    pub(crate) fn resolve_route(&mut self, key: u64) -> Result<(), Error> {
        let state = self.state(key)?;
        if state.stage != Stage::AddressResolved {
            return Err(Error::State("resolved to an address"));
        }
        state.stage = Stage::RouteResolved;
        self.tell(key, EventKind::RouteResolved, 0, Param::None);
        Ok(())
    }

    pub(crate) fn listen(&mut self, key: u64, backlog: u32) -> Result<(), Error> {
        if self.state(key)?.stage == Stage::Idle {
            self.bind(key, SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0))?;
        }
        let state = self.state(key)?;
        let (Stage::Bound, Some(local)) = (state.stage, state.local) else {
            return Err(Error::State("bound"));
        };
        let space = state.space.on_wire().ok_or(Error::Unsupported)?;
        let address = match &state.place {
            Some(place) => Some(place.gid.0),
            None => local.is_ipv4().then(|| gid_of(local).0),
        };
        state.bound.as_ref().map_or(Ok(()), BoundService::listen).map_err(of_bind)?;
        let backlog = if backlog == 0 { BACKLOG } else { backlog };
        let service = ServiceId::of_port(space, local.port());
        let (manager, _) = self.manager()?;
        let backlog = usize::try_from(backlog).unwrap_or(usize::MAX);
        let listener = manager.listen(service, address, backlog)?;
        self.listeners.insert(listener, key);
        self.state(key)?.stage = Stage::Listening(listener);
        Ok(())
    }

    pub(crate) fn connect(&mut self, key: u64, with: &Parameters) -> Result<(), Error> {
        let state = self.state(key)?;
        if state.stage != Stage::RouteResolved {
            return Err(Error::State("resolved"));
        }
        let space = state.space.on_wire().ok_or(Error::Unsupported)?;
        let (Some(local), Some(peer), Some(path)) = (state.local, state.peer, state.path()) else {
            return Err(Error::State("resolved"));
        };
        let addressing =
            Addressing { source: local.ip(), source_port: local.port(), destination: peer.ip() };
        let (head, service_id) = (addressing.emit(), ServiceId::of_port(space, peer.port()));
        let (gid, peer, traffic_class) = (path.local.0, path.peer.0, path.traffic_class);
        let service = match state.transport {
            Transport::Ud => {
                let private = padded(&with.private, &head)?;
                let what = Resolve { local: gid, peer, traffic_class, service_id, private };
                let (manager, now) = self.manager()?;
                let id = manager.resolve(&what, now)?;
                return self.begin(key, id, with);
            }
            Transport::Rc => Service::Rc,
            Transport::Uc => Service::Uc,
            Transport::Xrc => Service::Xrc,
        };
        let connect = Connect {
            local: gid,
            peer,
            service_id,
            service,
            qpn: Qpn::new(with.qpn),
            psn: state.psn,
            responder_resources: with.responder_resources,
            initiator_depth: with.initiator_depth,
            retries: Small::saturating(with.retry_count),
            rnr_retries: Small::saturating(with.rnr_retry_count),
            srq: with.srq,
            path_mtu: path.mtu,
            traffic_class,
            hop_limit: path.hop_limit,
            ack_timeout: Exponent::saturating(path.ack_timeout),
            private: padded(&with.private, &head)?,
        };
        let (manager, now) = self.manager()?;
        let id = manager.connect(&connect, now)?;
        self.begin(key, id, with)
    }

    /// An identifier has asked for a connection.
    fn begin(
        &mut self,
        key: u64,
        id: adverb_wire::cm::CommId,
        with: &Parameters,
    ) -> Result<(), Error> {
        self.connections.insert(id, key);
        let state = self.state(key)?;
        (state.connection, state.stage, state.said) = (Some(id), Stage::Connecting, said(with));
        Ok(())
    }

    pub(crate) fn accept(&mut self, key: u64, with: &Parameters) -> Result<(), Error> {
        let state = self.state(key)?;
        let (Stage::Requested, Some(id)) = (state.stage, state.connection) else {
            return Err(Error::State("asked for a connection"));
        };
        let psn = state.psn;
        if state.transport == Transport::Ud {
            let answer = Answer {
                status: SidrStatus::VALID,
                qpn: Qpn::new(with.qpn),
                qkey: Qkey(with.qkey.unwrap_or(USUAL_QKEY)),
                private: padded(&with.private, &[])?,
            };
            let (manager, now) = self.manager()?;
            manager.answer(id, &answer, now)?;
            return self.end_search(key);
        }
        let accept = Accept {
            qpn: Qpn::new(with.qpn),
            psn,
            responder_resources: with.responder_resources,
            initiator_depth: with.initiator_depth,
            rnr_retries: Small::saturating(with.rnr_retry_count),
            srq: with.srq,
            private: padded(&with.private, &[])?,
        };
        let (manager, now) = self.manager()?;
        manager.accept(id, &accept, now)?;
        let state = self.state(key)?;
        (state.stage, state.said) = (Stage::Accepted, said(with));
        Ok(())
    }

    /// A search was answered: the protocol keeps what it needs to repeat that.
    fn end_search(&mut self, key: u64) -> Result<(), Error> {
        let state = self.state(key)?;
        state.stage = Stage::Established;
        if let Some(id) = state.connection.take() {
            self.connections.remove(&id);
        }
        Ok(())
    }

    pub(crate) fn ready(&mut self, key: u64) -> Result<(), Error> {
        let state = self.state(key)?;
        let (Stage::Responded, Some(id)) = (state.stage, state.connection) else {
            return Err(Error::State("accepted by the peer"));
        };
        let (manager, _) = self.manager()?;
        manager.ready(id)?;
        self.watch_peer(id);
        self.state(key)?.stage = Stage::Established;
        Ok(())
    }

    pub(crate) fn reject(&mut self, key: u64, why: u8, private: &[u8]) -> Result<(), Error> {
        let state = self.state(key)?;
        let private = Private::new(private).ok_or(Error::TooLong { max: REJ_PRIVATE })?;
        let (Stage::Requested | Stage::Responded, Some(id)) = (state.stage, state.connection)
        else {
            return Err(Error::State("asked for a connection"));
        };
        if state.transport == Transport::Ud {
            let answer = Answer {
                status: SidrStatus::REJECTED,
                qpn: Qpn::new(0),
                qkey: Qkey(0),
                private: padded(&private, &[])?,
            };
            let (manager, now) = self.manager()?;
            manager.answer(id, &answer, now)?;
            self.end_search(key)?;
        } else {
            let why = if why == 0 { Reason::CONSUMER } else { Reason(why.into()) };
            let private = padded(&private, &[])?;
            let (manager, _) = self.manager()?;
            manager.reject(id, why, private)?;
            self.connections.remove(&id);
        }
        let state = self.state(key)?;
        (state.stage, state.connection) = (Stage::Over, None);
        Ok(())
    }

    pub(crate) fn disconnect(&mut self, key: u64) -> Result<(), Error> {
        let state = self.state(key)?;
        match (state.stage, state.connection) {
            (Stage::Established, Some(id)) => {
                let (manager, now) = self.manager()?;
                // What is over by now is what was asked for.
                match manager.disconnect(id, now) {
                    Ok(()) | Err(adverb_cm::Error::State | adverb_cm::Error::NotFound) => Ok(()),
                    Err(error) => Err(error.into()),
                }
            }
            (Stage::Over, _) => Ok(()),
            (_, _) => Err(Error::State("connected")),
        }
    }

    pub(crate) fn notify(&mut self, key: u64) -> Result<bool, Error> {
        let state = self.state(key)?;
        let (Stage::Accepted | Stage::Established, Some(id)) = (state.stage, state.connection)
        else {
            return Err(Error::State("accepted"));
        };
        if state.stage == Stage::Established {
            return Ok(false);
        }
        let (manager, _) = self.manager()?;
        manager.notify(id)?;
        Ok(true)
    }

    pub(crate) fn migrate(&mut self, key: u64, queue: &Arc<Waiting>) -> Result<(), Error> {
        let state = self.state(key)?;
        let old = std::mem::replace(&mut state.queue, Arc::clone(queue));
        if Arc::ptr_eq(&old, queue) {
            return Ok(());
        }
        for entry in old.take_of(key) {
            if let Some(child) = entry.child.and_then(|child| self.ids.get_mut(&child)) {
                child.queue = Arc::clone(queue);
            }
            queue.push(entry);
        }
        Ok(())
    }

    pub(crate) fn join(
        &mut self,
        key: u64,
        group: SocketAddr,
        user: u64,
    ) -> Result<Arc<Seat>, Error> {
        let number = self.new_key();
        let state = self.state(key)?;
        if state.transport != Transport::Ud {
            return Err(Error::Unsupported);
        }
        let group = group.canonical();
        if !group.ip().is_multicast() {
            return Err(Error::Invalid("an address that is no group's"));
        }
        if state.seats.len() >= SEATS_MAX {
            return Err(Error::Full);
        }
        let place = state.place()?;
        let gid = gid_of(group);
        let ah = group_ah(gid, place.gid_index, state.options.tos);
        let seat = Arc::new(Seat { id: key, number });
        state.seats.insert(number, Member { seat: Arc::downgrade(&seat), gid, user });
        let (qpn, qkey, private) = (Qpn::MULTICAST.get(), USUAL_QKEY, Private::NONE);
        let param = Param::Datagram(DatagramParameters { qpn, qkey, ah, private });
        let (kind, membership) = (EventKind::MulticastJoin, Some(number));
        self.queue(Entry { owner: key, child: None, membership, kind, status: 0, param });
        Ok(seat)
    }

    /// What is known of a membership.
    pub(crate) fn member(&self, seat: &Seat) -> Option<&Member> {
        self.ids.get(&seat.id)?.seats.get(&seat.number)
    }
}

fn said(with: &Parameters) -> Said {
    let Parameters { responder_resources, initiator_depth, retry_count, .. } = *with;
    Said { responder_resources, initiator_depth, retry_count: retry_count.min(7) }
}

fn padded<const N: usize>(private: &Private, head: &[u8]) -> Result<[u8; N], Error> {
    private.padded(head).ok_or(Error::TooLong { max: N.saturating_sub(head.len()) })
}

/// The address that is meant: the unspecified one is this host.
fn reachable(peer: SocketAddr) -> SocketAddr {
    let ip: IpAddr = match peer.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip @ (IpAddr::V4(_) | IpAddr::V6(_)) => ip,
    };
    SocketAddr::new(ip, peer.port()).with_scope_of(peer)
}

/// The port is bound already, at the same address or at all of them.
fn is_taken(error: &io::Error) -> bool {
    [io::ErrorKind::AddrInUse, io::ErrorKind::AddrNotAvailable].contains(&error.kind())
}

/// Why a port cannot be bound or listened to.
fn of_bind(error: io::Error) -> Error {
    if error.kind() == io::ErrorKind::AddrInUse {
        Error::AddressInUse
    } else if is_taken(&error) {
        Error::AddressNotAvailable
    } else {
        Error::System { doing: "bind the port", error }
    }
}

/// A port of those that the system gives out by itself.
fn ephemeral() -> u16 {
    let number = adverb_sys::random::number() % EPHEMERAL_COUNT;
    EPHEMERAL_FIRST + u16::try_from(number).unwrap_or(0)
}

const EPHEMERAL_FIRST: u16 = 32_768;
const EPHEMERAL_COUNT: u64 = 28_232;
const EPHEMERAL_TRIES: usize = 64;
/// How many requests wait for a program that does not say.
const BACKLOG: u32 = 1024;
/// Groups of one identifier.
const SEATS_MAX: usize = 256;
/// Private data of a refusal.
const REJ_PRIVATE: usize = 148;
/// Events that may wait when a program adds one of its own.
const WRITTEN_EVENTS_MAX: usize = 1024;
