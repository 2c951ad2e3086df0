//! Queue pairs that meet by connection management, as `--connector cm` asks.
//!
//! The client's end listens: the server hears of it by the control connection, with everything else, and asks.

use adverb::verbs::cm::{EventKind, EventQueue, Id, IdTransport, Parameters, Space, prepare};
use adverb::verbs::{AckTimeout, PathMtu, Qp, QpLimits, QpState, Rc};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use crate::failure::{Doing, Failure};

/// An end that listens.
#[derive(Debug)]
pub(super) struct Listener {
    id: Id,
    queue: EventQueue,
}

/// What keeps two queue pairs connected: they part when it is dropped.
#[derive(Debug)]
pub(super) struct Tie {
    id: Id,
    #[expect(dead_code, reason = "events of the identifier go there")]
    queue: EventQueue,
}

impl Listener {
    /// Listens at an address of this host, for one peer.
    pub(super) fn bind(at: IpAddr) -> Result<Self, Failure> {
        let (id, queue) = identifier()?;
        id.bind(SocketAddr::new(at, 0)).doing(MEETING)?;
        id.listen(1).doing(MEETING)?;
        Ok(Self { id, queue })
    }

    pub(super) fn local(&self) -> SocketAddr {
        self.id.local()
    }

    /// Connects a queue pair to the one that asks. `news` fails if the other side will not ask any more.
    pub(super) fn accept(
        self,
        qp: &Qp<Rc>,
        mut news: impl FnMut() -> Result<(), Failure>,
    ) -> Result<Tie, Failure> {
        let end = Instant::now() + PATIENCE;
        let id = loop {
            let event = self.queue.next(Some(LOOK)).doing(MEETING)?;
            if let Some(event) = event.filter(|event| event.kind == EventKind::ConnectRequest) {
                break event.id;
            }
            news()?;
            if Instant::now() > end {
                return Err(Failure::failed(format!("{MEETING}: the server does not ask")));
            }
        };
        set_up(&id, qp)?;
        id.accept(&parameters(qp)).doing(MEETING)?;
        wait(&self.queue, EventKind::Established)?;
        Ok(Tie { id, queue: self.queue })
    }
}

impl Tie {
    /// Connects a queue pair to the one of a listener.
    pub(super) fn new(
        to: SocketAddr,
        qp: &Qp<Rc>,
        traffic_class: u8,
        timeout: AckTimeout,
    ) -> Result<Self, Failure> {
        let (id, queue) = identifier()?;
        id.set_tos(traffic_class).doing(MEETING)?;
        id.set_ack_timeout(timeout.exponent()).doing(MEETING)?;
        id.resolve_addr(None, to).doing(MEETING)?;
        wait(&queue, EventKind::AddrResolved)?;
        id.resolve_route().doing(MEETING)?;
        wait(&queue, EventKind::RouteResolved)?;
        id.connect(&parameters(qp)).doing(MEETING)?;
        wait(&queue, EventKind::ConnectResponse)?;
        set_up(&id, qp)?;
        id.ready().doing(MEETING)?;
        Ok(Self { id, queue })
    }

    /// The path MTU that both sides keep to.
    pub(super) fn mtu(&self) -> Option<PathMtu> {
        self.id.path().map(|path| path.mtu)
    }
}

fn identifier() -> Result<(Id, EventQueue), Failure> {
    let queue = EventQueue::new().doing(MEETING)?;
    let id = Id::new(&queue, Space::Tcp, IdTransport::Rc, 0).doing(MEETING)?;
    Ok((id, queue))
}

fn parameters(qp: &Qp<Rc>) -> Parameters {
    let (responder_resources, initiator_depth) = (READS, READS);
    let qpn = qp.number().get();
    Parameters { qpn, responder_resources, initiator_depth, ..Parameters::default() }
}

/// Moves a queue pair to RTS, as the two sides have agreed.
fn set_up(id: &Id, qp: &Qp<Rc>) -> Result<(), Failure> {
    let mut states = [QpState::Init, QpState::Rtr, QpState::Rts].into_iter();
    states.try_for_each(|state| prepare(id, qp, state)).doing(MEETING)
}

/// Waits for an event. Any other one is a failure.
fn wait(queue: &EventQueue, kind: EventKind) -> Result<(), Failure> {
    let event = queue.next(Some(PATIENCE)).doing(MEETING)?;
    let event =
        event.ok_or_else(|| Failure::failed(format!("{MEETING}: the other side is silent")))?;
    match event.kind == kind {
        true => Ok(()),
        false => {
            let (kind, status) = (event.kind, event.status);
            Err(Failure::failed(format!("{MEETING}: {kind:?}, status {status}")))
        }
    }
}

const MEETING: &str = "connecting by connection management";
/// From one look at what the other side says to the next.
const LOOK: Duration = Duration::from_millis(20);
/// How long the other side may take for each of its parts.
const PATIENCE: Duration = Duration::from_secs(20);
/// READs of one side on their way at once, at most. Software devices alone have connection management here.
const READS: u8 = QpLimits::RD_ATOMIC_MAX;
