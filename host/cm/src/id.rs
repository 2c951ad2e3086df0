//! Identifiers and memberships, as programs hold them.

use crate::attributes::QpAttributes;
use crate::error::Error;
use crate::handle::{Handle, Seat};
use crate::kind::EventKind;
use crate::parameters::{BoundDevice, Parameters, PathInfo, Space, Transport};
use crate::queue::EventQueue;
use crate::service::core;
use crate::state::State;
use adverb_device::{Gid, QpState};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

/// An identifier: one end of a connection, or what listens for some. `struct rdma_cm_id`.
///
/// A handle: clones are the same identifier, which is destroyed with the last of them. Every call
/// fails with [`Error::Gone`] if it was destroyed before.
///
/// ```
/// use adverb_rdmacm::{EventKind, EventQueue, Id, Parameters, Space, Transport};
///
/// let queue = EventQueue::new()?;
/// let listener = Id::new(&queue, Space::Tcp, Transport::Rc, 1)?;
/// listener.bind("127.0.0.1:0".parse()?)?;
/// listener.listen(8)?;
///
/// let client = Id::new(&queue, Space::Tcp, Transport::Rc, 2)?;
/// client.resolve_addr(None, listener.local())?;
/// assert_eq!(queue.next(None)?.map(|event| event.kind), Some(EventKind::AddrResolved));
/// client.resolve_route()?;
/// assert_eq!(queue.next(None)?.map(|event| event.kind), Some(EventKind::RouteResolved));
/// client.connect(&Parameters { qpn: 17, ..Parameters::default() })?;
///
/// let request = queue.next(None)?.expect("a request");
/// assert_eq!((request.kind, request.listener), (EventKind::ConnectRequest, Some(listener)));
/// request.id.reject(0, b"busy")?;
/// let refused = queue.next(None)?.expect("an answer");
/// assert_eq!((refused.kind, refused.status), (EventKind::Rejected, 28));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Id(Arc<Handle>);

/// A multicast group that an identifier has joined; left when the last clone is dropped.
///
/// [`Id`] has an example.
#[derive(Clone, Debug)]
pub struct Membership(Arc<Seat>);

impl PartialEq for Id {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Id {}

impl PartialEq for Membership {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Membership {}

impl Id {
    /// Makes an identifier whose events go to `queue`. `rdma_create_id`.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] if the port space does not have the transport.
    pub fn new(
        queue: &EventQueue,
        space: Space,
        transport: Transport,
        user: u64,
    ) -> Result<Self, Error> {
        let of_datagrams = transport == Transport::Ud;
        let fits = match space {
            Space::Ib => true,
            Space::Tcp => !of_datagrams,
            Space::Ipoib | Space::Udp => of_datagrams,
        };
        if !fits {
            return Err(Error::Unsupported);
        }
        Ok(Self(core().create(Arc::clone(&queue.0), space, transport, user)))
    }

    pub(crate) const fn of(handle: Arc<Handle>) -> Self {
        Self(handle)
    }

    fn read<R>(&self, read: impl FnOnce(&State) -> R) -> Option<R> {
        core().ids.get(&self.0.0).map(read)
    }

    fn change(&self, change: impl FnOnce(&mut State)) -> Result<(), Error> {
        core().state(self.0.0).map(change)
    }

    /// Runs a command, and sends what comes of it.
    fn run<R>(
        &self,
        command: impl FnOnce(&mut crate::service::Core, u64) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let mut core = core();
        let result = command(&mut core, self.0.0);
        core.settle();
        result
    }

    /// The number that the program has given it; 0 for that of a request.
    pub fn user(&self) -> u64 {
        self.read(|state| state.user).unwrap_or(0)
    }

    /// Gives it another number.
    pub fn set_user(&self, user: u64) {
        let _ = self.change(|state| state.user = user);
    }

    /// The port space.
    pub fn space(&self) -> Space {
        self.read(|state| state.space).unwrap_or(Space::Tcp)
    }

    /// The transport: of a request what the peer asks for.
    pub fn transport(&self) -> Transport {
        self.read(|state| state.transport).unwrap_or(Transport::Rc)
    }

    /// Its address and port: unspecified and 0 while it has none.
    pub fn local(&self) -> SocketAddr {
        let none = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0);
        self.read(|state| state.local).flatten().unwrap_or(none)
    }

    /// The peer's address and port, once they are known.
    pub fn peer(&self) -> Option<SocketAddr> {
        self.read(|state| state.peer).flatten()
    }

    /// The device, once the address is one of a device.
    pub fn device(&self) -> Option<BoundDevice> {
        self.read(|state| {
            let place = state.place.as_ref()?;
            let device = place.port.device();
            let (name, guid) = (device.name.clone(), device.guid);
            Some(BoundDevice { name, guid, port: 1, gid_index: place.gid_index })
        })
        .flatten()
    }

    /// The path to the peer, once the peer's address is known.
    pub fn path(&self) -> Option<PathInfo> {
        self.read(State::path).flatten()
    }

    /// What to set on the queue pair on its way to INIT, RTR or RTS. `rdma_init_qp_attr`.
    ///
    /// # Errors
    ///
    /// [`Error::State`] while that is not known: RTR and RTS need what the peer says.
    pub fn qp_attributes(&self, to: QpState) -> Result<QpAttributes, Error> {
        core().state(self.0.0)?.qp_attributes(to)
    }

    /// Binds it to an address and port: to a device, or with the unspecified address to all of them.
    /// Port 0 is any free one. `rdma_bind_addr`.
    ///
    /// # Errors
    ///
    /// [`Error::AddressInUse`], [`Error::AddressNotAvailable`] and [`Error::State`].
    pub fn bind(&self, local: SocketAddr) -> Result<(), Error> {
        self.run(|core, key| core.bind(key, local))
    }

    /// Finds the device that leads to `peer`, and binds to it. [`EventKind::AddrResolved`] follows, or
    /// [`EventKind::AddrError`]. `rdma_resolve_addr`.
    ///
    /// # Errors
    ///
    /// [`Error::AddressInUse`], [`Error::Invalid`] and [`Error::State`].
    ///
    /// [`EventKind::AddrResolved`]: crate::EventKind::AddrResolved
    /// [`EventKind::AddrError`]: crate::EventKind::AddrError
    pub fn resolve_addr(&self, local: Option<SocketAddr>, peer: SocketAddr) -> Result<(), Error> {
        self.run(|core, key| core.resolve_addr(key, local, peer))
    }

    /// Finds the path. [`EventKind::RouteResolved`](crate::EventKind::RouteResolved) follows.
    /// `rdma_resolve_route`.
    ///
    /// # Errors
    ///
    /// [`Error::State`].
    pub fn resolve_route(&self) -> Result<(), Error> {
        self.run(|core, key| core.resolve_route(key))
    }

    /// Takes the path as given, which on RoCE there is only one of: as [`Id::resolve_route`].
    ///
    /// # Errors
    ///
    /// [`Error::State`].
    pub fn set_path(&self) -> Result<(), Error> {
        self.resolve_route()
    }

    /// Lets peers ask for connections, `backlog` of them at a time, or 1024 for 0. Each is an
    /// [`EventKind::ConnectRequest`](crate::EventKind::ConnectRequest). `rdma_listen`.
    ///
    /// # Errors
    ///
    /// [`Error::AddressInUse`], [`Error::Full`] and [`Error::State`].
    pub fn listen(&self, backlog: u32) -> Result<(), Error> {
        self.run(|core, key| core.listen(key, backlog))
    }

    /// Asks the peer for a connection, or for a queue pair of datagrams. There may be 56 bytes of
    /// private data, 180 for datagrams. `rdma_connect`.
    ///
    /// # Errors
    ///
    /// [`Error::Full`], [`Error::State`], [`Error::TooLong`] and [`Error::Unsupported`].
    pub fn connect(&self, with: &Parameters) -> Result<(), Error> {
        self.run(|core, key| core.connect(key, with))
    }

    /// Agrees to a request. There may be 196 bytes of private data, 136 for datagrams. `rdma_accept`.
    ///
    /// # Errors
    ///
    /// [`Error::State`], also if the peer has given up, and [`Error::TooLong`].
    pub fn accept(&self, with: &Parameters) -> Result<(), Error> {
        self.run(|core, key| core.accept(key, with))
    }

    /// Says that the queue pair is ready, after the peer has accepted: the connection can be used.
    /// `rdma_establish`.
    ///
    /// # Errors
    ///
    /// [`Error::State`], also if the peer has given up.
    pub fn ready(&self) -> Result<(), Error> {
        self.run(|core, key| core.ready(key))
    }

    /// Refuses a request, or a peer that has accepted, for a reason of IBTA Vol. 1 §12.6.7.2; 0 is the
    /// program's own (28). There may be 148 bytes of private data, 136 for datagrams. `rdma_reject`.
    ///
    /// # Errors
    ///
    /// [`Error::State`] and [`Error::TooLong`].
    pub fn reject(&self, reason: u8, private: &[u8]) -> Result<(), Error> {
        self.run(|core, key| core.reject(key, reason, private))
    }

    /// Ends a connection. What has ended already is no error. `rdma_disconnect`.
    ///
    /// # Errors
    ///
    /// [`Error::State`] if there was none.
    pub fn disconnect(&self) -> Result<(), Error> {
        self.run(|core, key| core.disconnect(key))
    }

    /// Says that packets of the peer have arrived, although its message that it is ready has not. False if that has
    /// come meanwhile. `rdma_notify`.
    ///
    /// # Errors
    ///
    /// [`Error::State`].
    pub fn notify_established(&self) -> Result<bool, Error> {
        self.run(|core, key| core.notify(key))
    }

    /// Queues an event of the caller's own: [`EventKind::User`] or [`EventKind::Internal`], at most 1024 at a time.
    /// `rdma_write_cm_event`.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for another kind, and [`Error::Full`].
    pub fn write_event(&self, kind: EventKind, status: i32, argument: u64) -> Result<(), Error> {
        if !matches!(kind, EventKind::User | EventKind::Internal) {
            return Err(Error::Invalid("the kind of the event"));
        }
        self.run(|core, key| core.write_event(key, kind, status, argument))
    }

    /// Ends it, whatever it is in the midst of. Its events are gone, also those that wait, and
    /// requests that wait for it are refused; a connected peer is told. `rdma_destroy_id`.
    pub fn destroy(&self) {
        crate::service::destroy(self.0.0);
    }

    /// Has its events go to another queue, also those that wait. `rdma_migrate_id`.
    ///
    /// # Errors
    ///
    /// [`Error::Gone`].
    pub fn migrate(&self, queue: &EventQueue) -> Result<(), Error> {
        self.run(|core, key| core.migrate(key, &queue.0))
    }

    /// Type of service of its packets. `RDMA_OPTION_ID_TOS`.
    ///
    /// # Errors
    ///
    /// [`Error::Gone`].
    pub fn set_tos(&self, tos: u8) -> Result<(), Error> {
        self.change(|state| state.options.tos = tos)
    }

    /// The port may be bound by others that say so too, while none of them listens. `RDMA_OPTION_ID_REUSEADDR`.
    ///
    /// # Errors
    ///
    /// [`Error::Gone`].
    pub fn set_reuse(&self, reuse: bool) -> Result<(), Error> {
        self.change(|state| state.options.reuse = reuse)
    }

    /// The unspecified address of IPv6 does not stand for those of IPv4. `RDMA_OPTION_ID_AFONLY`.
    ///
    /// # Errors
    ///
    /// [`Error::Gone`].
    pub fn set_af_only(&self, only: bool) -> Result<(), Error> {
        self.change(|state| state.options.ipv6_only = only)
    }

    /// How long acknowledgements may take: 4.096 µs × 2 to this, at most 31.
    /// `RDMA_OPTION_ID_ACK_TIMEOUT`.
    ///
    /// # Errors
    ///
    /// [`Error::Gone`], and [`Error::Invalid`] for more than 31.
    pub fn set_ack_timeout(&self, exponent: u8) -> Result<(), Error> {
        if exponent > 31 {
            return Err(Error::Invalid("a time-out of more than 31"));
        }
        self.change(|state| state.options.ack_timeout = Some(exponent))
    }

    /// Joins a multicast group; [`EventKind::MulticastJoin`](crate::EventKind::MulticastJoin) says by
    /// which address its queue pair is to be attached. `rdma_join_multicast`.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if it is no group, [`Error::Full`], [`Error::State`] while it is not bound to
    /// a device, and [`Error::Unsupported`] if it is not of datagrams.
    pub fn join(&self, group: SocketAddr, user: u64) -> Result<Membership, Error> {
        self.run(|core, key| core.join(key, group, user)).map(Membership)
    }
}

impl Membership {
    pub(crate) const fn of(seat: Arc<Seat>) -> Self {
        Self(seat)
    }

    /// The number that the program has given it.
    pub fn user(&self) -> u64 {
        core().member(&self.0).map_or(0, |member| member.user)
    }

    /// The group.
    pub fn group(&self) -> Gid {
        core().member(&self.0).map_or(Gid([0; 16]), |member| member.gid)
    }

    /// Leaves the group now; its event, if it waits, is gone. `rdma_leave_multicast`.
    pub fn leave(&self) {
        crate::service::leave(self.0.id, self.0.number);
    }
}
