//! The link to a peer once it is up: its name, what it has advertised, and whether it is still there.
//!
//! The connection outlives the handshake: buffers are advertised over it, it says goodbye, its end
//! tells that the peer's process has ended, however that came, and a peer that is silent is asked over
//! it whether it is still there. The keeper (`keeper.rs`) listens to it.

use crate::buffer::Buffer;
use crate::connector::{self, Connector, Deadline, PEER_PATIENCE};
use crate::error::{ConnectorError, ExchangeError};
use crate::frame::{Advertisement, ChannelHello, Features, Frame, Name};
use crate::line::Line;
use crate::pipe::Pipe;
use crate::remote::RemoteBuffer;
use adverb_sys::eventfd::EventFd;
use adverb_verbs::locks::Mutex;
use adverb_verbs::{Access, Gid, PathMtu};
use std::fmt;
use std::mem;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, MutexGuard, OnceLock, PoisonError, Weak};
use std::task::Waker;
use std::time::{Duration, Instant};
use tracing::{debug, info, trace};

/// The peer of an endpoint.
///
/// [`Handler`](crate::Handler) and [`Endpoint::peer`](crate::Endpoint::peer) tell it.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct PeerInfo {
    /// The other end of the connector.
    pub addr: SocketAddr,
    /// What it calls itself.
    pub name: Name,
    /// Name of its device, there.
    pub device: Name,
    /// Identifier of its node.
    pub node_guid: u64,
    /// Address of its port.
    pub gid: Gid,
    /// Address of this side's port, which the peer was told, and its place in the device's GID table.
    pub local: (u8, Gid),
    /// The path MTU that both sides use.
    pub path_mtu: PathMtu,
    /// READs and atomics that can be under way to it at once, on each channel.
    pub reads: u8,
    /// What both sides can do that others may not.
    pub features: Features,
    /// Its queue pairs, one for each channel, in the client's order.
    pub channels: Vec<ChannelHello>,
}

/// How a peer went.
///
/// [`Handler`](crate::Handler) and [`Endpoint::departure`](crate::Endpoint::departure) tell it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Departure {
    /// It said goodbye.
    Closed,
    /// This side has closed the endpoint.
    Here,
    /// It went without a word: it was killed, or the connection to it broke.
    Lost,
    /// It was silent for longer than [`crate::Timeouts::silence`], also when it was asked: it is
    /// frozen, or cannot be reached.
    Silent,
    /// It said something on the connection that no peer says.
    Unruly,
}

impl Departure {
    const ALL: [Self; 5] = [Self::Closed, Self::Here, Self::Lost, Self::Silent, Self::Unruly];

    /// Never 0, which is a peer that is there.
    const fn code(self) -> u8 {
        match self {
            Self::Closed => 1,
            Self::Here => 2,
            Self::Lost => 3,
            Self::Unruly => 4,
            Self::Silent => 5,
        }
    }
}

impl fmt::Display for Departure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Closed => "the peer has closed the endpoint",
            Self::Here => "this side has closed the endpoint",
            Self::Lost => {
                "the peer is gone without a word: its process was killed, or the network broke"
            }
            Self::Silent => {
                "the peer does not answer: its process is stopped, or the network does not reach it"
            }
            Self::Unruly => "the peer said something that no peer says, and was hung up on",
        })
    }
}

/// The link to a peer.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) peer: Arc<PeerInfo>,
    /// How the peer went, as [`Departure::code`]; 0 while it is there.
    departed: AtomicU8,
    stream: Arc<Pipe>,
    reader: Mutex<Connector>,
    /// Held while a frame is sent.
    writer: Mutex<()>,
    state: Mutex<State>,
    /// Something has changed in `state`, or the peer has gone.
    heard: Condvar,
    /// Which of the line's links it is, from 1 on.
    number: u32,
    line: OnceLock<Weak<Line>>,
    /// Rung when the handler knows that the peer has gone.
    farewell: OnceLock<Arc<EventFd>>,
    /// Channels whose last event was handled after the peer had gone.
    pub(crate) quiet_channels: AtomicUsize,
    /// Frames that came.
    frames: AtomicU64,
    watch: Mutex<Watch>,
}

#[derive(Debug)]
struct State {
    theirs: Vec<Advertisement>,
    /// What the peer was told of stays registered for as long as it may use it.
    ours: Vec<(Name, Buffer)>,
    /// Tasks that wait for a buffer.
    wakers: Vec<Waker>,
}

/// What the keeper knows of the peer's life.
#[derive(Debug)]
struct Watch {
    /// Packets and frames that had come at the last look.
    seen: u64,
    /// When something had.
    alive: Instant,
    /// How often it was asked since, and when it was the last time.
    asked: u32,
    asked_last: Instant,
}

impl Watch {
    fn new(seen: u64) -> Self {
        let now = Instant::now();
        Self { seen, alive: now, asked: 0, asked_last: now }
    }
}

impl Link {
    pub(crate) fn new(peer: PeerInfo, connector: Connector, number: u32) -> Self {
        Self {
            peer: Arc::new(peer),
            number,
            departed: AtomicU8::new(0),
            stream: Arc::clone(connector.stream()),
            reader: Mutex::new(connector),
            writer: Mutex::new(()),
            state: Mutex::new(State { theirs: Vec::new(), ours: Vec::new(), wakers: Vec::new() }),
            heard: Condvar::new(),
            line: OnceLock::new(),
            farewell: OnceLock::new(),
            quiet_channels: AtomicUsize::new(0),
            frames: AtomicU64::new(0),
            watch: Mutex::new(Watch::new(0)),
        }
    }

    /// Tells what it is a link of, whose channels end with it. Once.
    pub(crate) fn set_line(&self, line: Weak<Line>) {
        let _ = self.line.set(line);
    }

    /// Which of the line's links it is.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// Has `bell` rung when the handler knows that the peer has gone. Once.
    pub(crate) fn ring_when_gone(&self, bell: Arc<EventFd>) {
        let _ = self.farewell.set(bell);
    }

    pub(crate) fn stream(&self) -> &Pipe {
        &self.stream
    }

    /// How the peer went, as far as is known.
    pub(crate) fn departure(&self) -> Option<Departure> {
        let code = self.departed.load(Ordering::Acquire);
        if code == 0 {
            return None;
        }
        Departure::ALL.into_iter().find(|d| d.code() == code)
    }

    /// Looks whether the peer is still there. Its channels have not ended for that yet.
    pub(crate) fn check(&self) -> Option<Departure> {
        if self.departure().is_none()
            && let Some(mut reader) = self.reader.try_lock()
        {
            self.hear(&mut reader);
        }
        self.departure()
    }

    /// Takes in what the peer has said, and ends the channels if it has gone. Returns whether it is
    /// still there.
    pub(crate) fn attend(&self) -> bool {
        if let Some(how) = self.check() {
            self.end_channels(how);
            return false;
        }
        true
    }

    /// Asks a peer that was silent for a while whether it is there, and gives it up when it was for
    /// `patience` and as many questions: time alone also passes where this process was kept from asking.
    /// Nothing is sent to one that is heard of. Returns how soon to look again.
    pub(crate) fn look_after(&self, patience: Duration) -> Duration {
        let often = patience / LOOKS_PER_SILENCE;
        let seen = self.signs_of_life();
        let mut watch = self.watch.lock();
        if seen != watch.seen {
            *watch = Watch::new(seen);
            return often;
        }
        // Looks that come for the sake of other peers do not count.
        let rest = often.saturating_sub(watch.asked_last.elapsed());
        if !rest.is_zero() {
            return rest;
        }
        let silent = watch.alive.elapsed();
        let is_over = silent >= patience && watch.asked >= LOOKS_PER_SILENCE - 1;
        if is_over && self.peer.features.contains(Features::PONG) {
            drop(watch);
            // An answer may have come while this thread slept.
            if self.attend() && self.signs_of_life() == seen {
                self.depart(Departure::Silent);
                self.end_channels(Departure::Silent);
            }
            return often;
        }
        watch.asked = watch.asked.saturating_add(1);
        watch.asked_last = Instant::now();
        drop(watch);
        debug!(peer = %self.peer.addr, ?silent, "silent: asked whether it is there");
        self.offer(&Frame::Ping);
        if silent < patience { often.min(patience - silent) } else { often }
    }

    fn signs_of_life(&self) -> u64 {
        let line = self.line.get().and_then(Weak::upgrade);
        let channels = line.as_ref().map(|line| line.channels()).unwrap_or_default();
        let packets = channels.iter().filter_map(Weak::upgrade).map(|c| c.packets_received());
        packets.fold(self.frames.load(Ordering::Relaxed), u64::wrapping_add)
    }

    fn end_channels(&self, how: Departure) {
        let Some(line) = self.line.get().and_then(Weak::upgrade) else {
            return;
        };
        for channel in line.channels().iter().filter_map(Weak::upgrade) {
            channel.end(how, self.number);
        }
        line.lost(self.number, how);
    }

    /// The handler knows that the peer has gone, and has handled all events.
    pub(crate) fn is_quiet(&self) -> bool {
        self.quiet_channels.load(Ordering::Acquire) >= self.peer.channels.len()
    }

    /// Tells the service that it is so.
    pub(crate) fn ring(&self) {
        if let Some(bell) = self.farewell.get() {
            let _ = bell.signal();
        }
    }

    /// Sends a frame that need not be sent.
    fn offer(&self, frame: &Frame) {
        // Any other frame shows as well that this side lives.
        if let Some(_writer) = self.writer.try_lock()
            && !connector::offer(&self.stream, frame)
        {
            self.depart(Departure::Lost);
        }
    }

    /// Takes in what the peer has said.
    fn hear(&self, reader: &mut Connector) {
        while self.departure().is_none() {
            let frame = reader.try_receive();
            if let Ok(Some(frame)) = &frame {
                trace!(peer = %self.peer.addr, "says {}", frame.kind());
                self.frames.fetch_add(1, Ordering::Relaxed);
            }
            match frame {
                Ok(None) => break,
                Ok(Some(Frame::Advertise(theirs))) => self.learn(theirs),
                Ok(Some(Frame::Ping)) => self.offer(&Frame::Pong),
                Ok(Some(Frame::Pong)) => {}
                Ok(Some(Frame::Bye)) => self.depart(Departure::Closed),
                Ok(Some(
                    Frame::Hello(_)
                    | Frame::Welcome(_)
                    | Frame::Ready
                    | Frame::Challenge { .. }
                    | Frame::Proof(_)
                    | Frame::Refuse(_),
                ))
                | Err(ConnectorError::Frame(_)) => self.depart(Departure::Unruly),
                Err(
                    ConnectorError::Closed
                    | ConnectorError::Refused(_)
                    | ConnectorError::Secret(_)
                    | ConnectorError::System { .. }
                    | ConnectorError::Timeout { .. }
                    | ConnectorError::Unexpected { .. },
                ) => self.depart(Departure::Lost),
            }
        }
    }

    fn learn(&self, new: Advertisement) {
        info!(
            peer = %self.peer.addr,
            name = %new.name,
            addr = format_args!("{:#x}", new.addr),
            rkey = format_args!("{:#x}", new.rkey.0),
            blocks = new.blocks,
            block_bytes = new.block_bytes,
            "the peer advertises a buffer"
        );
        let mut state = self.state.lock();
        if let Some(old) = state.theirs.iter_mut().find(|old| old.name == new.name) {
            *old = new;
        } else if state.theirs.len() < BUFFERS_MAX {
            state.theirs.push(new);
        } else {
            drop(state);
            self.depart(Departure::Unruly);
            return;
        }
        self.tell(state);
    }

    fn depart(&self, how: Departure) {
        // The first cause is the one that counts.
        let first =
            self.departed.compare_exchange(0, how.code(), Ordering::AcqRel, Ordering::Relaxed);
        if first.is_ok() {
            info!(peer = %self.peer.addr, name = %self.peer.name, "{how}");
        }
        // Under the lock, so that no thread misses it between looking and waiting.
        self.tell(self.state.lock());
    }

    /// Wakes all that wait for a buffer.
    fn tell(&self, mut state: MutexGuard<'_, State>) {
        let wakers = mem::take(&mut state.wakers);
        drop(state);
        self.heard.notify_all();
        wakers.into_iter().for_each(Waker::wake);
    }

    pub(crate) fn advertise(
        &self,
        name: &str,
        buffer: &Buffer,
        timeout: Duration,
    ) -> Result<(), ExchangeError> {
        let title = Name::new(name)?;
        let remote = Access::ALL.bits() & !Access::LOCAL_WRITE.bits();
        if buffer.access().bits() & remote == 0 {
            return Err(ExchangeError::NotShared);
        }
        let _writer = self.writer.lock();
        if let Some(how) = self.departure() {
            return Err(ExchangeError::PeerGone(how));
        }
        {
            let mut state = self.state.lock();
            if state.ours.iter().any(|(known, _)| *known == title) {
                return Err(ExchangeError::NameTaken { name: title });
            }
            if state.ours.len() >= BUFFERS_MAX {
                return Err(ExchangeError::TooMany { max: BUFFERS_MAX });
            }
            // From before the peer can know of it.
            state.ours.push((title.clone(), buffer.clone()));
        }
        let frame = Frame::Advertise(Advertisement {
            name: title,
            addr: buffer.addr(),
            rkey: buffer.rkey(),
            access: buffer.access().transport(),
            block_bytes: u64::try_from(buffer.block_bytes()).unwrap_or(u64::MAX),
            blocks: u64::try_from(buffer.blocks()).unwrap_or(u64::MAX),
        });
        let sent = connector::send(&self.stream, &frame, Deadline::after(timeout));
        info!(
            peer = %self.peer.addr,
            name,
            addr = format_args!("{:#x}", buffer.addr()),
            rkey = format_args!("{:#x}", buffer.rkey().0),
            blocks = buffer.blocks(),
            block_bytes = buffer.block_bytes(),
            "buffer advertised"
        );
        if sent.is_err() {
            // Half a frame may have gone out, and nothing can follow half a frame.
            self.depart(Departure::Lost);
        }
        sent.map_err(ExchangeError::Connector)
    }

    /// What the peer was told of, to be told again elsewhere.
    pub(crate) fn advertised(&self) -> Vec<(Name, Buffer)> {
        self.state.lock().ours.clone()
    }

    pub(crate) fn remote_buffer(
        &self,
        name: &str,
        timeout: Duration,
    ) -> Result<RemoteBuffer, ExchangeError> {
        let name = Name::new(name)?;
        let deadline = Deadline::after(timeout);
        let mut state = self.state.lock();
        loop {
            if let Some(found) = self.find(&state, &name, deadline)? {
                return Ok(found);
            }
            let waited = self.heard.wait_timeout(state, deadline.left());
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Looks for a buffer of the peer's; while there is none, `waker` is woken by the next.
    #[cfg(feature = "tokio")]
    pub(crate) fn poll_remote_buffer(
        &self,
        name: &Name,
        deadline: Deadline,
        waker: &Waker,
    ) -> Result<Option<RemoteBuffer>, ExchangeError> {
        let mut state = self.state.lock();
        let found = self.find(&state, name, deadline)?;
        if found.is_none() && !state.wakers.iter().any(|known| known.will_wake(waker)) {
            state.wakers.push(waker.clone());
        }
        Ok(found)
    }

    /// The buffer that the peer has advertised under this name; an error if it will not come any more.
    fn find(
        &self,
        state: &State,
        name: &Name,
        deadline: Deadline,
    ) -> Result<Option<RemoteBuffer>, ExchangeError> {
        if let Some(found) = state.theirs.iter().find(|known| known.name == *name) {
            return Ok(Some(RemoteBuffer::new(found, self.number)));
        }
        if let Some(how) = self.departure() {
            return Err(ExchangeError::PeerGone(how));
        }
        if deadline.has_passed() {
            return Err(ExchangeError::Timeout {
                name: name.clone(),
                known: state.theirs.iter().map(|known| known.name.clone()).collect(),
                waited: deadline.allowed,
            });
        }
        Ok(None)
    }

    /// Says goodbye, once.
    pub(crate) fn close(&self) {
        let writer = self.writer.lock();
        if self.departure().is_some() {
            return;
        }
        self.depart(Departure::Here);
        // What came from the peer is acknowledged before the peer hears that nothing more will be.
        if let Some(line) = self.line.get().and_then(Weak::upgrade) {
            line.catch_up();
        }
        self.reader.lock().part(&Frame::Bye, PEER_PATIENCE);
        drop(writer);
        self.end_channels(Departure::Here);
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.close();
    }
}

/// Buffers that each side of an endpoint can advertise.
const BUFFERS_MAX: usize = 1024;
/// How often a silent peer is asked before it is given up.
const LOOKS_PER_SILENCE: u32 = 4;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may fail")]

    use crate::{ClientSession, Config, ServerSession};
    use std::thread;
    use std::time::Duration;

    const LONG: Duration = Duration::from_secs(60);

    /// Goal: looks that come for the sake of other peers do not count as questions that had no answer.
    #[test]
    fn a_silent_peer_is_asked_once_in_its_time() {
        let config = Config::default().silence_timeout(LONG);
        let mut server = ServerSession::bind("127.0.0.1:0", config.clone()).unwrap();
        let address = server.local_addr();
        let accepting = thread::spawn(move || server.accept(LONG).unwrap());
        let link = ClientSession::new(config).unwrap().connect(address).unwrap().link();
        let patience = Duration::from_millis(800);
        link.look_after(patience);
        thread::sleep(patience / super::LOOKS_PER_SILENCE + Duration::from_millis(20));
        for _ in 0..10 {
            link.look_after(patience);
        }
        assert!(link.watch.lock().asked <= 1);
        drop(accepting.join().unwrap());
    }
}
