//! Connection management: queue pairs that meet by address and port, as with librdmacm.
//!
//! The easy way waits for each step: [`Listener`] takes [`Request`]s, [`Route`] leads to a peer, and both
//! become a [`Connection`], which has the queue pair. The way of librdmacm is there too: an [`Id`] does one
//! thing at a time, and an [`EventQueue`] says what has come of it. It has a descriptor to poll, and tasks can wait
//! for it (`AsyncEventQueue`, with the feature `tokio`). Then [`prepare`] moves queue pairs.
//!
//! Devices are chosen by address; [`context`] opens the one of an identifier. Only software devices take part.
//!
//! ```
//! use adverb_verbs::cm::{Listener, Route};
//! use adverb_verbs::{CqConfig, Pd, Qp, QpConfig, Rc, Work};
//! # use adverb_verbs::Context;
//!
//! fn queue_pair(context: &Context) -> Result<(Pd, Qp<Rc>), Box<dyn std::error::Error>> {
//!     let (pd, cq) = (context.alloc_pd(), context.create_cq(16)?);
//!     let qp = pd.create_qp(&QpConfig::new(&cq))?;
//!     Ok((pd, qp))
//! }
//!
//! let listener = Listener::bind("127.0.0.1:0".parse()?, 8)?;
//! let address = listener.local();
//! let client = std::thread::spawn(move || {
//!     let route = Route::resolve(address).expect("a route");
//!     let (pd, qp) = queue_pair(&route.context().expect("a device")).expect("a queue pair");
//!     let connection = route.connect(qp, b"hello").expect("a connection");
//!     let mut message = pd.buffer(4).expect("memory");
//!     message.copy_from_slice(b"ping");
//!     connection.qp().post(Work::send(message)).expect("room");
//!     connection.qp().send_cq().wait().expect("a completion");
//!     connection.wait_until_over().expect("the peer ends it");
//! });
//!
//! let request = listener.next()?;
//! assert_eq!(&request.private()[..5], b"hello");
//! let (pd, qp) = queue_pair(&request.context()?)?;
//! request.prepare(&qp)?; // Receives can be posted from now on.
//! qp.post(Work::recv(pd.buffer(4)?))?;
//! let connection = request.accept(qp, b"")?;
//! let received = connection.qp().recv_cq().wait()?.ok()?;
//! let message = received.memory.and_then(adverb_verbs::Memory::into_buf).ok_or("a buffer")?;
//! assert_eq!(message[..], *b"ping");
//! connection.disconnect()?;
//! client.join().expect("it has not panicked");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use crate::context::Context;
use crate::error::OpenError;
use crate::qp::{Modify, Qp};
use crate::transport::{Connected, Transport};
use adverb_device::{Attributes, ConnectError, QpState, QpType};
use std::fmt;
use std::io;
use std::net::SocketAddr;

#[cfg(feature = "tokio")]
pub use crate::futures::AsyncEventQueue;
/// What [`counters`] answers.
#[doc(inline)]
pub use adverb_rdmacm::Counters;
pub use adverb_rdmacm::{
    BoundDevice, DatagramParameters, Error, Event, EventKind, EventQueue, Id, Membership, Param,
    Parameters, PathInfo, Private, QpAttributes, Space, Transport as IdTransport, counters, source,
};

/// Error of connecting two queue pairs by address and port.
#[non_exhaustive]
pub enum MeetError {
    /// An identifier has refused a command.
    Command(Error),
    /// The device could not be opened.
    Device(OpenError),
    /// The queue pair could not be moved.
    QueuePair(ConnectError),
    /// The peer refuses.
    Rejected {
        /// Why: IBTA Vol. 1 §12.6.7.2; 28 is the peer's program, 8 that nothing listens there.
        reason: u16,
        /// What the peer's program says.
        private: Box<Private>,
    },
    /// The system refused something.
    System(io::Error),
    /// The peer does not answer, or there is no way to it: the negative of an error number.
    Unreachable {
        /// The number.
        status: i32,
    },
}

/// Waits for peers. `rdma_listen`.
///
/// The [module](self) has an example.
#[derive(Debug)]
pub struct Listener {
    id: Id,
    queue: EventQueue,
}

/// A peer that asks for a connection. Dropped, it is refused.
///
/// The [module](self) has an example.
#[derive(Debug)]
pub struct Request {
    id: Id,
    queue: EventQueue,
    peer: Parameters,
}

/// The way to a peer that has not been asked yet. `rdma_resolve_addr`, `rdma_resolve_route`.
///
/// The [module](self) has an example.
#[derive(Debug)]
pub struct Route {
    id: Id,
    queue: EventQueue,
}

/// Two queue pairs that have met. Dropped, it ends.
///
/// The [module](self) has an example.
#[derive(Debug)]
pub struct Connection<T: Transport> {
    id: Id,
    queue: EventQueue,
    qp: Qp<T>,
    private: Private,
}

/// Opens the device of an identifier.
///
/// # Errors
///
/// [`MeetError::Command`] if it has none yet, and [`MeetError::Device`].
///
/// # Examples
///
/// The [module](self) has an example of the easy way.
pub fn context(id: &Id) -> Result<Context, MeetError> {
    let device = id.device().ok_or(Error::State("bound to a device"))?;
    Context::open(&device.name).map_err(MeetError::Device)
}

/// Moves a queue pair to INIT, RTR or RTS as its identifier says.
///
/// # Errors
///
/// [`MeetError::Command`] and [`MeetError::QueuePair`].
///
/// # Examples
///
/// The [module](self) has an example of the easy way.
pub fn prepare<T: Transport>(id: &Id, qp: &Qp<T>, to: QpState) -> Result<(), MeetError> {
    let QpAttributes { state, attributes, ah, .. } = id.qp_attributes(to)?;
    let Attributes { partition, port, access, qkey, path_mtu, remote, .. } = attributes;
    let modify = Modify::to(state)
        .pkey_index(partition.map(|partition| partition.index))
        .port(port)
        .access(access)
        .qkey(qkey)
        .ah(ah)
        .path_mtu(path_mtu)
        .remote(remote)
        .rq_psn(attributes.expected_psn)
        .sq_psn(attributes.first_psn)
        .max_rd_atomic(attributes.max_rd_atomic)
        .max_dest_rd_atomic(attributes.max_dest_rd_atomic)
        .min_rnr_timer(attributes.min_rnr_timer)
        .timeout(attributes.timeout)
        .retry_count(attributes.retry_count)
        .rnr_retry(attributes.rnr_retry);
    qp.modify(&modify).map_err(MeetError::QueuePair)
}

/// Moves a queue pair to RTS, from wherever it is.
fn finish<T: Transport>(id: &Id, qp: &Qp<T>) -> Result<(), MeetError> {
    if qp.state() == QpState::Reset {
        prepare(id, qp, QpState::Init)?;
    }
    prepare(id, qp, QpState::Rtr)?;
    prepare(id, qp, QpState::Rts)
}

/// What a queue pair proposes.
fn parameters<T: Transport>(qp: &Qp<T>, private: &[u8], atomics: u8) -> Result<Parameters, Error> {
    let private = Private::new(private).ok_or(Error::TooLong { max: Private::MAX })?;
    let (qpn, srq) = (qp.number().get(), qp.srq().is_some());
    let depth = atomics.min(ATOMICS);
    Ok(Parameters {
        qpn,
        srq,
        private,
        responder_resources: depth,
        initiator_depth: depth,
        ..Parameters::default()
    })
}

/// What events of a connection that is being made mean; `None` for others.
fn verdict(event: &Event) -> Option<Result<Parameters, MeetError>> {
    let said = match event.param {
        Param::Connection(parameters) => parameters,
        Param::Datagram(_) | Param::Argument(_) | Param::None => Parameters::default(),
    };
    match event.kind {
        EventKind::ConnectResponse | EventKind::Established => Some(Ok(said)),
        EventKind::Rejected => {
            let reason = u16::try_from(event.status).unwrap_or(0);
            Some(Err(MeetError::Rejected { reason, private: Box::new(said.private) }))
        }
        EventKind::AddrError
        | EventKind::ConnectError
        | EventKind::Disconnected
        | EventKind::RouteError
        | EventKind::Unreachable => Some(Err(MeetError::Unreachable { status: event.status })),
        EventKind::AddrResolved
        | EventKind::RouteResolved
        | EventKind::ConnectRequest
        | EventKind::DeviceRemoval
        | EventKind::MulticastJoin
        | EventKind::MulticastError
        | EventKind::AddrChange
        | EventKind::TimewaitExit
        | _ => None,
    }
}

/// Waits until it is known what has become of a connection.
fn outcome(queue: &EventQueue) -> Result<Parameters, MeetError> {
    loop {
        let event = queue.next(None).map_err(MeetError::System)?;
        if let Some(verdict) = event.as_ref().and_then(verdict) {
            return verdict;
        }
    }
}

impl Listener {
    /// Listens at an address and port: port 0 is any free one, and the unspecified address all devices.
    /// `backlog` peers wait at a time; 0 is 1024.
    ///
    /// # Errors
    ///
    /// [`MeetError::Command`] with [`Error::AddressInUse`] or [`Error::AddressNotAvailable`]; no descriptors left.
    pub fn bind(local: SocketAddr, backlog: u32) -> Result<Self, MeetError> {
        let queue = EventQueue::new().map_err(MeetError::System)?;
        let id = Id::new(&queue, Space::Tcp, IdTransport::Rc, 0)?;
        id.bind(local)?;
        id.listen(backlog)?;
        Ok(Self { id, queue })
    }

    /// Its address and port.
    pub fn local(&self) -> SocketAddr {
        self.id.local()
    }

    /// The queue, whose descriptor can be polled for peers.
    pub fn queue(&self) -> &EventQueue {
        &self.queue
    }

    /// Waits for a peer.
    ///
    /// # Errors
    ///
    /// No descriptors left: the peer was refused.
    pub fn next(&self) -> Result<Request, MeetError> {
        loop {
            let event = self.queue.next(None).map_err(MeetError::System)?;
            if let Some(request) = event.and_then(Request::of) {
                return request;
            }
        }
    }

    /// A peer, if one waits.
    ///
    /// # Errors
    ///
    /// As [`Listener::next`].
    pub fn try_next(&self) -> Result<Option<Request>, MeetError> {
        self.queue.try_next().and_then(Request::of).transpose()
    }
}

impl Request {
    /// The request in an event, with a queue of its own.
    fn of(event: Event) -> Option<Result<Self, MeetError>> {
        let Param::Connection(peer) = event.param else {
            return None;
        };
        if event.kind != EventKind::ConnectRequest {
            return None;
        }
        let own = EventQueue::new().map_err(MeetError::System);
        Some(own.and_then(|queue| {
            event.id.migrate(&queue)?;
            Ok(Self { id: event.id, queue, peer })
        }))
    }

    /// What the peer says: 56 bytes, of which those that it did not give are 0.
    pub fn private(&self) -> &[u8] {
        self.peer.private.as_slice()
    }

    /// Address and port of the peer.
    pub fn peer(&self) -> Option<SocketAddr> {
        self.id.peer()
    }

    /// Of what transport the peer's queue pair is.
    pub fn transport(&self) -> IdTransport {
        self.id.transport()
    }

    /// Opens the device that the peer has come to.
    ///
    /// # Errors
    ///
    /// As [`context`].
    pub fn context(&self) -> Result<Context, MeetError> {
        context(&self.id)
    }

    /// Moves a queue pair of that device to INIT, so that receives can be posted before the peer sends.
    ///
    /// # Errors
    ///
    /// As [`prepare`].
    pub fn prepare<T: Transport>(&self, qp: &Qp<T>) -> Result<(), MeetError> {
        prepare(&self.id, qp, QpState::Init)
    }

    /// Agrees, with a queue pair of that device that is in RESET or INIT, and at most 196 bytes; waits until the
    /// peer is ready.
    ///
    /// # Errors
    ///
    /// [`MeetError`]: no connection has come of it.
    pub fn accept<T: Connected>(
        self,
        qp: Qp<T>,
        private: &[u8],
    ) -> Result<Connection<T>, MeetError> {
        fits::<T>(self.id.transport())?;
        finish(&self.id, &qp)?;
        let served = self.peer.responder_resources.min(self.peer.initiator_depth);
        self.id.accept(&parameters(&qp, private, served)?)?;
        outcome(&self.queue)?;
        let Self { id, queue, peer } = self;
        Ok(Connection { id, queue, qp, private: peer.private })
    }

    /// Refuses, with at most 148 bytes.
    ///
    /// # Errors
    ///
    /// [`MeetError::Command`]: too many bytes, or the peer has given up.
    pub fn reject(self, private: &[u8]) -> Result<(), MeetError> {
        Ok(self.id.reject(0, private)?)
    }
}

impl Route {
    /// Finds the way to a peer.
    ///
    /// # Errors
    ///
    /// [`MeetError::Unreachable`] if there is none; no descriptors left.
    pub fn resolve(peer: SocketAddr) -> Result<Self, MeetError> {
        Self::resolve_for(IdTransport::Rc, peer)
    }

    /// The same for unreliable connections or those of XRC.
    ///
    /// # Errors
    ///
    /// As [`Route::resolve`].
    pub fn resolve_for(transport: IdTransport, peer: SocketAddr) -> Result<Self, MeetError> {
        let queue = EventQueue::new().map_err(MeetError::System)?;
        let id = Id::new(&queue, Space::Tcp, transport, 0)?;
        id.resolve_addr(None, peer)?;
        if let Some(Err(error)) = queue.try_next().as_ref().and_then(verdict) {
            return Err(error);
        }
        id.resolve_route()?;
        Ok(Self { id, queue })
    }

    /// The identifier, for options.
    pub fn id(&self) -> &Id {
        &self.id
    }

    /// Opens the device that leads to the peer.
    ///
    /// # Errors
    ///
    /// As [`context`].
    pub fn context(&self) -> Result<Context, MeetError> {
        context(&self.id)
    }

    /// Moves a queue pair of that device to INIT, so that receives can be posted before the peer sends.
    ///
    /// # Errors
    ///
    /// As [`prepare`].
    pub fn prepare<T: Transport>(&self, qp: &Qp<T>) -> Result<(), MeetError> {
        prepare(&self.id, qp, QpState::Init)
    }

    /// Asks the peer for a connection with a queue pair of that device that is in RESET or INIT, and at most 56
    /// bytes; waits for the answer.
    ///
    /// # Errors
    ///
    /// [`MeetError`]: no connection has come of it.
    pub fn connect<T: Connected>(
        self,
        qp: Qp<T>,
        private: &[u8],
    ) -> Result<Connection<T>, MeetError> {
        fits::<T>(self.id.transport())?;
        self.id.connect(&parameters(&qp, private, ATOMICS)?)?;
        let Parameters { private, .. } = outcome(&self.queue)?;
        finish(&self.id, &qp)?;
        self.id.ready()?;
        let Self { id, queue } = self;
        Ok(Connection { id, queue, qp, private })
    }
}

impl<T: Transport> Connection<T> {
    /// The queue pair.
    pub fn qp(&self) -> &Qp<T> {
        &self.qp
    }

    /// The identifier.
    pub fn id(&self) -> &Id {
        &self.id
    }

    /// The queue of its events, whose descriptor can be polled for the end.
    pub fn queue(&self) -> &EventQueue {
        &self.queue
    }

    /// What the peer has said as it connected or accepted.
    pub fn private(&self) -> &[u8] {
        self.private.as_slice()
    }

    /// Ends the connection: work that is outstanding is flushed. The peer is told.
    ///
    /// # Errors
    ///
    /// None in practice.
    pub fn disconnect(&self) -> Result<(), MeetError> {
        self.qp.to_err();
        Ok(self.id.disconnect()?)
    }

    /// Waits until the peer has ended the connection, or has agreed to its end.
    ///
    /// # Errors
    ///
    /// None in practice: those of `poll(2)`.
    pub fn wait_until_over(&self) -> Result<(), MeetError> {
        let over =
            |event: &Event| matches!(event.kind, EventKind::Disconnected | EventKind::TimewaitExit);
        while !self.queue.next(None).map_err(MeetError::System)?.as_ref().is_some_and(over) {}
        self.qp.to_err();
        Ok(())
    }
}

/// The queue pair is of the transport that was agreed on.
fn fits<T: Transport>(agreed: IdTransport) -> Result<(), Error> {
    let own = match T::KIND {
        QpType::Rc => IdTransport::Rc,
        QpType::Uc => IdTransport::Uc,
        QpType::Ud => IdTransport::Ud,
        QpType::XrcInitiator | QpType::XrcTarget => IdTransport::Xrc,
    };
    if own == agreed { Ok(()) } else { Err(Error::Unsupported) }
}

adverb_device::debug_as_display!(MeetError);

impl fmt::Display for MeetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Command(error) => write!(f, "connection management: {error}"),
            Self::Device(error) => write!(f, "could not open the device: {error}"),
            Self::QueuePair(error) => write!(f, "could not move the queue pair: {error}"),
            Self::Rejected { reason: 8, .. } => f.write_str("nothing listens at the peer's port"),
            Self::Rejected { reason, .. } => write!(f, "the peer refuses, for reason {reason}"),
            Self::System(error) => write!(f, "connection management: {error}"),
            Self::Unreachable { status } => write!(
                f,
                "the peer cannot be reached: {}",
                io::Error::from_raw_os_error(status.saturating_neg())
            ),
        }
    }
}

adverb_device::caused! {
    MeetError: error in
    Self::Command(error),
    Self::Device(error),
    Self::QueuePair(error),
    Self::System(error),
}

adverb_device::wraps!(MeetError: Command(Error));

/// READs and atomics under way at once, each way.
const ATOMICS: u8 = 16;
