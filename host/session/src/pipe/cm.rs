//! A stream of bytes over a queue pair that connection management has connected.
//!
//! Each piece of the stream is a SEND of at most [`BLOCK_BYTES`]; a peer that does not read has no receive posted,
//! and the device sends again until it has. Requests carry [`MAGIC`], so that other programs on the port are refused at once.

use super::{other, unsupported};
use crate::frame::{BODY_BYTES_MAX, HEADER_BYTES};
use adverb_sys::epoll::{Epoll, Interest};
use adverb_verbs::cm::{self, EventKind, EventQueue, Id, IdTransport, Param, Parameters};
use adverb_verbs::cm::{Private, Space};
use adverb_verbs::locks::Mutex;
use adverb_verbs::{
    Buf, CompChannel, Completion, Context, Cq, CqConfig, Pd, Qp, QpConfig, QpState,
};
use adverb_verbs::{Memory, Rc, WcStatus, Work};
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

/// A stream of bytes over a queue pair.
#[derive(Debug)]
pub(crate) struct CmPipe {
    qp: Qp<Rc>,
    pd: Pd,
    /// Declared after the queue pair, so that it goes after it: the peer is told then.
    id: Id,
    events: EventQueue,
    incoming: Queue,
    outgoing: Queue,
    /// Both descriptors that say that there is something to read.
    watch: Epoll,
    input: Mutex<Input>,
    /// SENDs that have not completed.
    in_flight: Mutex<usize>,
}

/// A completion queue that wakes.
#[derive(Debug)]
struct Queue {
    cq: Cq,
    channel: CompChannel,
}

#[derive(Debug, Default)]
struct Input {
    /// A block that has come, its length, and how much of it was read.
    block: Option<(Buf, usize, usize)>,
    over: bool,
}

/// Where peers come in.
#[derive(Debug)]
pub(crate) struct CmDoor {
    id: Id,
    events: EventQueue,
}

/// The way to a peer that was not asked yet.
#[derive(Debug)]
pub(crate) struct CmWay {
    id: Id,
    events: EventQueue,
}

/// A peer that has come to a door.
#[derive(Debug)]
pub(crate) struct CmGuest {
    id: Id,
}

impl CmDoor {
    /// Listens at an address; `backlog` peers wait at a time.
    ///
    /// # Errors
    ///
    /// The address is in use, or no device has it.
    pub(crate) fn bind(local: SocketAddr, backlog: u32, class: u8) -> io::Result<Self> {
        let events = EventQueue::new()?;
        let id = new_id(&events, class)?;
        id.bind(local).map_err(command)?;
        id.listen(backlog).map_err(command)?;
        Ok(Self { id, events })
    }

    pub(crate) fn local(&self) -> SocketAddr {
        self.id.local()
    }

    /// The next peer that asks for a session, if there is one.
    pub(crate) fn next(&self) -> Option<CmGuest> {
        loop {
            let event = self.events.try_next()?;
            let (EventKind::ConnectRequest, Param::Connection(asked)) = (event.kind, event.param)
            else {
                continue;
            };
            if asked.private.as_slice().starts_with(&MAGIC) {
                return Some(CmGuest { id: event.id });
            }
            let _ = event.id.reject(0, &[]);
        }
    }
}

impl AsFd for CmDoor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }
}

impl CmGuest {
    pub(crate) fn local(&self) -> SocketAddr {
        self.id.local()
    }

    pub(crate) fn peer(&self) -> Option<SocketAddr> {
        self.id.peer()
    }

    /// Lets the peer in, without waiting for it: the stream ends if it does not come.
    ///
    /// # Errors
    ///
    /// The device has no room, or is another one; the peer was refused.
    pub(crate) fn accept(self, context: &Context, pd: &Pd) -> io::Result<CmPipe> {
        let events = EventQueue::new()?;
        self.id.migrate(&events).map_err(command)?;
        let pipe = CmPipe::new(self.id, events, context, pd)?;
        pipe.connect()?;
        pipe.id.accept(&pipe.parameters()?).map_err(command)?;
        Ok(pipe)
    }
}

impl CmWay {
    /// Finds the way to a peer, from `source`.
    ///
    /// # Errors
    ///
    /// There is none.
    pub(crate) fn find(to: SocketAddr, source: SocketAddr, class: u8) -> io::Result<Self> {
        let events = EventQueue::new()?;
        let id = new_id(&events, class)?;
        // This says why the address cannot be had, where resolving has a number for it.
        id.bind(source).map_err(command)?;
        id.resolve_addr(None, to).map_err(command)?;
        if let Some(event) = events.try_next()
            && event.kind == EventKind::AddrError
        {
            return Err(io::Error::from_raw_os_error(event.status.saturating_neg()));
        }
        id.resolve_route().map_err(command)?;
        Ok(Self { id, events })
    }

    /// The address of this side.
    pub(crate) fn local(&self) -> SocketAddr {
        self.id.local()
    }

    /// Asks the peer for a connection, and waits for its answer, at most for `patience`.
    ///
    /// # Errors
    ///
    /// `ConnectionRefused` if nothing listens or the peer refuses, `TimedOut`; the device has no room or is another one.
    pub(crate) fn connect(
        self,
        context: &Context,
        pd: &Pd,
        patience: Duration,
    ) -> io::Result<CmPipe> {
        let pipe = CmPipe::new(self.id, self.events, context, pd)?;
        pipe.id.connect(&pipe.parameters()?).map_err(command)?;
        let start = Instant::now();
        loop {
            let left = patience.saturating_sub(start.elapsed());
            let Some(event) = pipe.events.next(Some(left))? else {
                return Err(ErrorKind::TimedOut.into());
            };
            if event.kind == EventKind::ConnectResponse {
                break;
            }
            if event.kind == EventKind::Rejected {
                return Err(ErrorKind::ConnectionRefused.into());
            }
            if ends(event.kind) {
                return Err(io::Error::from_raw_os_error(event.status.saturating_neg()));
            }
        }
        pipe.connect()?;
        pipe.id.ready().map_err(command)?;
        Ok(pipe)
    }
}

impl CmPipe {
    /// A queue pair in INIT whose receives are posted.
    fn new(id: Id, events: EventQueue, context: &Context, pd: &Pd) -> io::Result<Self> {
        let device = id.device().ok_or_else(unsupported)?;
        if device.name != context.device().name {
            return Err(unsupported());
        }
        let sends = u32::try_from(SENDS).unwrap_or(u32::MAX);
        let (incoming, outgoing) = (Queue::new(context, RECEIVES)?, Queue::new(context, sends)?);
        let mut config = QpConfig::new(&outgoing.cq);
        config.recv_cq = &incoming.cq;
        (config.max_send_wr, config.max_recv_wr) = (sends, RECEIVES);
        let qp = pd.create_qp(&config).map_err(other)?;
        cm::prepare(&id, &qp, QpState::Init).map_err(other)?;
        for _ in 0..RECEIVES {
            qp.post(Work::recv(pd.buffer(BLOCK_BYTES).map_err(other)?)).map_err(other)?;
        }
        let watch = Epoll::new()?;
        watch.add(&events, 0, Interest::Readable)?;
        watch.add(incoming.channel.event_fd(), 0, Interest::Readable)?;
        incoming.cq.req_notify(false).map_err(other)?;
        Ok(Self {
            qp,
            pd: pd.clone(),
            id,
            events,
            incoming,
            outgoing,
            watch,
            input: Mutex::default(),
            in_flight: Mutex::default(),
        })
    }

    /// Moves the queue pair to RTS: the peer's is known.
    fn connect(&self) -> io::Result<()> {
        cm::prepare(&self.id, &self.qp, QpState::Rtr).map_err(other)?;
        cm::prepare(&self.id, &self.qp, QpState::Rts).map_err(other)
    }

    /// What this side proposes or agrees to: the most retries, and for ever while the peer has no receive posted.
    fn parameters(&self) -> io::Result<Parameters> {
        let private = Private::new(&MAGIC).ok_or_else(unsupported)?;
        Ok(Parameters { qpn: self.qp.number().get(), private, ..Parameters::default() })
    }

    /// Can be read when a SEND has completed.
    pub(super) fn room(&self) -> BorrowedFd<'_> {
        self.outgoing.channel.event_fd()
    }

    pub(super) fn read(&self, bytes: &mut [u8]) -> io::Result<usize> {
        let mut input = self.input.lock();
        loop {
            if let Some((block, len, at)) = input.block.take() {
                let rest = block.get(at..len).unwrap_or_default();
                let taken = rest.len().min(bytes.len());
                let (to, from) = (bytes.get_mut(..taken), rest.get(..taken));
                if let (Some(to), Some(from)) = (to, from) {
                    to.copy_from_slice(from);
                }
                if at + taken < len {
                    input.block = Some((block, len, at + taken));
                } else {
                    // A queue pair that has ended takes none; what else has come is still read.
                    let _ = self.qp.post(Work::recv(block));
                }
                if taken > 0 {
                    return Ok(taken);
                }
                continue;
            }
            // The end counts once everything from before it was taken.
            let was_over = input.over;
            input.over |= self.has_ended();
            match self.incoming.next(true)? {
                Some(Completion { wc, memory }) if wc.status == WcStatus::Success => {
                    let len = usize::try_from(wc.byte_len).unwrap_or(0);
                    let block = memory.and_then(Memory::into_buf);
                    input.block = block.map(|block| (block, len, 0));
                }
                Some(_) => input.over = true,
                None if was_over => return Ok(0),
                None if input.over => {}
                None => return Err(ErrorKind::WouldBlock.into()),
            }
        }
    }

    /// Whether an event says that the connection is over.
    fn has_ended(&self) -> bool {
        let mut over = false;
        while let Some(event) = self.events.try_next() {
            over |= ends(event.kind);
        }
        over
    }

    pub(super) fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        let mut in_flight = self.in_flight.lock();
        self.reap(&mut in_flight)?;
        if *in_flight >= SENDS {
            return Err(ErrorKind::WouldBlock.into());
        }
        let piece = bytes.get(..bytes.len().min(BLOCK_BYTES)).unwrap_or_default();
        if piece.is_empty() {
            return Ok(0);
        }
        let mut block = self.pd.buffer(piece.len()).map_err(other)?;
        block.copy_from_slice(piece);
        self.qp.post(Work::send(block)).map_err(|_| io::Error::from(ErrorKind::BrokenPipe))?;
        *in_flight += 1;
        Ok(piece.len())
    }

    /// Takes completions of SENDs, and has the next one wake.
    fn reap(&self, in_flight: &mut usize) -> io::Result<()> {
        while let Some(done) = self.outgoing.next(*in_flight > 0)? {
            *in_flight = in_flight.saturating_sub(1);
            if done.wc.status != WcStatus::Success {
                return Err(ErrorKind::BrokenPipe.into());
            }
        }
        Ok(())
    }

    pub(super) fn finish(&self, patience: Duration) {
        let start = Instant::now();
        let mut in_flight = self.in_flight.lock();
        while self.reap(&mut in_flight).is_ok() && *in_flight > 0 {
            // A peer that has ended the connection acknowledges nothing any more.
            if self.has_ended() {
                self.input.lock().over = true;
                break;
            }
            let left = patience.saturating_sub(start.elapsed()).min(LOOK);
            if left.is_zero() || self.outgoing.channel.get_event_timeout(left).is_err() {
                break;
            }
        }
        self.qp.to_err();
        let _ = self.id.disconnect(); // It may be over.
    }
}

impl AsFd for CmPipe {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.watch.as_fd()
    }
}

impl Queue {
    fn new(context: &Context, entries: u32) -> io::Result<Self> {
        let channel = context.create_comp_channel()?;
        let mut config = CqConfig::new(entries);
        config.channel = Some(&channel);
        Ok(Self { cq: context.create_cq_with(&config).map_err(other)?, channel })
    }

    /// The next completion. If there is none and `arm` says so, the next one wakes.
    fn next(&self, arm: bool) -> io::Result<Option<Completion>> {
        if let Some(found) = self.cq.next().map_err(other)? {
            return Ok(Some(found));
        }
        if !arm {
            return Ok(None);
        }
        while self.channel.try_get_event().is_some() {}
        self.cq.req_notify(false).map_err(other)?;
        // One that has come before it was armed does not wake.
        self.cq.next().map_err(other)
    }
}

fn new_id(events: &EventQueue, class: u8) -> io::Result<Id> {
    let id = Id::new(events, Space::Tcp, IdTransport::Rc, 0).map_err(command)?;
    if class != 0 {
        id.set_tos(class).map_err(command)?;
    }
    Ok(id)
}

/// Whether nothing comes after such an event.
fn ends(kind: EventKind) -> bool {
    matches!(
        kind,
        EventKind::AddrError
            | EventKind::ConnectError
            | EventKind::DeviceRemoval
            | EventKind::Disconnected
            | EventKind::Rejected
            | EventKind::RouteError
            | EventKind::TimewaitExit
            | EventKind::Unreachable
    )
}

/// Why a command was refused, with the number that the system has for it.
fn command(error: cm::Error) -> io::Error {
    if matches!(error, cm::Error::AddressInUse) {
        return io::Error::from(ErrorKind::AddrInUse);
    }
    if matches!(error, cm::Error::AddressNotAvailable) {
        return io::Error::from(ErrorKind::AddrNotAvailable);
    }
    other(error)
}

/// What requests for a session carry.
const MAGIC: [u8; 14] = *b"adverb session";
/// How often the end is looked for while last words are on their way.
const LOOK: Duration = Duration::from_millis(5);
/// The longest piece of the stream.
const BLOCK_BYTES: usize = 2048;
/// Receives that are posted.
const RECEIVES: u32 = 8;
/// SENDs on their way: an empty stream has room for the longest frame.
const SENDS: usize = 10;
const _: () = assert!(SENDS * BLOCK_BYTES >= HEADER_BYTES + BODY_BYTES_MAX);
