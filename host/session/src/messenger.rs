//! Messengers: messages of any length over a channel, with flow control that cannot fail.
//!
//! Both sides post as many receives as they told the other of, and a side sends no more than it has
//! been granted: no message ever finds the peer without a receive. A receive is granted anew when the
//! program has done with the message in it. Grants travel in the header (`messenger/header.rs`) of
//! whatever goes the other way; if nothing does, a message of counts goes by itself when half of the
//! grants are owed. Its receive is one that is never granted: a side has at most [`COUNTS_MAX`] such
//! messages on their way, because to owe another half it must be sent messages that an earlier one
//! has allowed, and one more for each offer that the other side waits for. Places of the send queue
//! are kept for them too, so that they pass when both sides are stuck with data.
//!
//! A message that is longer than a block is offered: the receiver READs it when the program asks for
//! it, and counts it as taken.
//!
//! One lock guards all of it. Whoever calls makes progress for everybody: there is no thread here.

mod header;

use self::header::{HEADER_BYTES, Header, Kind, OFFER_BYTES};
use crate::buffer::{Block, Buffer};
use crate::channel::Channel;
use crate::connector::Deadline;
use crate::endpoint::Endpoint;
use crate::error::{ChannelError, HAS_ONE, MessageError};
use crate::remote::{RemoteBlock, RemoteBuffer};
use crate::ring::{Event, Operation};
use adverb_verbs::{Access, Rkey};
use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::thread;
use std::time::Duration;

/// Settings of a messenger. Each side has its own.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct MessengerConfig {
    /// Bytes of a message that goes at once; longer ones are offered, and read by the receiver. At
    /// least 64.
    pub block_bytes: usize,
    /// Bytes of the longest message that is received.
    pub message_max: usize,
}

impl Default for MessengerConfig {
    fn default() -> Self {
        Self { block_bytes: 8 << 10, message_max: 1 << 30 }
    }
}

/// Messages of any length over a channel.
///
/// A handle: clones are the same messenger. It takes all events of its channel: use the channel for
/// nothing else but WRITEs, READs and atomics that are waited for.
///
/// ```
/// use adverb_session::{ClientSession, Config, Messenger, MessengerConfig, ServerSession};
/// use std::{thread, time::Duration};
///
/// let config = Config::default();
/// let mut server = ServerSession::bind("127.0.0.1:0", config.clone())?;
/// let address = server.local_addr();
/// let echo = thread::spawn(move || -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
///     let endpoint = server.accept(Duration::from_secs(5))?;
///     let messenger = Messenger::open(&endpoint, "data", MessengerConfig::default())?;
///     let message = messenger.recv()?.to_vec();
///     messenger.send(&message)?;
///     messenger.flush()?;
///     Ok(())
/// });
/// let endpoint = ClientSession::new(config)?.connect(address)?;
/// let messenger = Messenger::open(&endpoint, "data", MessengerConfig::default())?;
/// let long = vec![7; 100_000]; // Much more than a block.
/// messenger.send(&long)?;
/// assert_eq!(messenger.recv()?.to_vec(), long);
/// # echo.join().expect("no panic").expect("the server is content");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Messenger {
    inner: Arc<Inner>,
    timeout: Duration,
}

struct Inner {
    channel: Channel,
    endpoint: Endpoint,
    config: MessengerConfig,
    theirs: Theirs,
    /// Changes whenever `state` does in a way that somebody may wait for.
    version: AtomicU64,
    /// Threads that have taken events from the channel and not noted them yet.
    noting: AtomicUsize,
    state: Mutex<State>,
}

/// What the peer told of itself.
#[derive(Clone, Copy, Debug)]
struct Theirs {
    receives: u32,
    block_bytes: usize,
    message_max: usize,
}

struct State {
    /// Blocks for what is sent, and not in use.
    blocks: Vec<Block>,
    /// Messages sent that used a grant.
    sent: u32,
    /// What the peer granted beyond its receives.
    granted_by_peer: u32,
    /// What was granted to the peer, and of that what it was told.
    granted: u32,
    told: u32,
    /// Offers of the peer's that were taken, and of those what it was told.
    taken: u32,
    taken_told: u32,
    /// Messages that have come and nobody has asked for.
    inbox: VecDeque<Arrival>,
    /// Offers that the peer has not taken; the oldest has the number `taken_by_peer`.
    offers: VecDeque<Block>,
    taken_by_peer: u32,
    /// Memory of large messages that is not in use.
    landings: Vec<Buffer>,
    failure: Option<MessageError>,
    /// Tasks that wait.
    wakers: Vec<Waker>,
}

/// Something that has come.
enum Arrival {
    /// In a block of a receive.
    Message(Block, usize),
    Offer {
        remote: RemoteBuffer,
        len: usize,
    },
}

/// How much a messenger has on its hands.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Window {
    /// Messages that can be sent before the peer has to grant more.
    pub granted: u32,
    /// Long messages that the peer has not taken.
    pub offered: usize,
    /// Messages that have come and wait to be asked for.
    pub waiting: usize,
}

impl fmt::Debug for Messenger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Messenger").field("channel", &self.inner.channel).finish_non_exhaustive()
    }
}

impl Messenger {
    /// Opens a messenger over the channel `name`, and waits until the peer has done so too. A channel has
    /// one, of which there can be clones.
    ///
    /// # Errors
    ///
    /// [`MessageError`], also if the channel's queues are too shallow, or if it has a messenger.
    pub fn open(
        endpoint: &Endpoint,
        name: &str,
        config: MessengerConfig,
    ) -> Result<Self, MessageError> {
        let channel = endpoint.channel(name)?;
        let title = format!("messages of {name}");
        if endpoint.has_advertised(&title) {
            return Err(MessageError::Open { what: HAS_ONE });
        }
        let queues = &endpoint.adapter().config().queues;
        for (what, depth, least) in [
            ("send_depth", queues.send_depth, SENDS_KEPT + 1),
            ("receive_depth", queues.receive_depth, RECEIVES_KEPT + 2),
        ] {
            if depth < least {
                return Err(MessageError::Shallow { what, depth, least });
            }
        }
        if config.block_bytes < BLOCK_BYTES_MIN {
            let (len, least) = (config.block_bytes, BLOCK_BYTES_MIN);
            return Err(MessageError::Block { len, least });
        }
        let place = |depth: u32| usize::try_from(depth).unwrap_or(usize::MAX);
        let bytes = HEADER_BYTES + config.block_bytes;
        let adapter = endpoint.adapter();
        let own = adapter.buffer_with(place(queues.receive_depth), bytes, Access::LOCAL_WRITE)?;
        for index in 0..own.blocks() {
            channel.post_recv(own.at(index)?)?;
        }
        // Told only now, so that the peer may send as soon as it knows.
        let facts =
            adapter.buffer_with(1, FACTS_BYTES, Access::REMOTE_READ | Access::LOCAL_WRITE)?;
        let receives = queues.receive_depth - RECEIVES_KEPT;
        let words = [u64::from(receives), word(config.block_bytes), word(config.message_max)];
        for (place, word) in words.into_iter().enumerate() {
            facts.at(0)?.write(place * size_of::<u64>(), &word.to_be_bytes())?;
        }
        endpoint.advertise(&title, &facts)?;
        let theirs = Theirs::ask(endpoint, &channel, &title)?;
        let sends = place(queues.send_depth);
        let sends = adapter.buffer_with(
            sends,
            bytes.min(HEADER_BYTES + theirs.block_bytes),
            Access::LOCAL_WRITE,
        )?;
        let state = State {
            blocks: (0..sends.blocks()).map(|index| sends.at(index)).collect::<Result<_, _>>()?,
            sent: 0,
            granted_by_peer: 0,
            granted: 0,
            told: 0,
            taken: 0,
            taken_told: 0,
            inbox: VecDeque::with_capacity(own.blocks()),
            offers: VecDeque::with_capacity(OFFERS_MAX),
            taken_by_peer: 0,
            landings: Vec::with_capacity(LANDINGS_MAX),
            failure: None,
            wakers: Vec::new(),
        };
        let timeout = adapter.config().timeouts.work;
        let inner = Inner {
            channel,
            endpoint: endpoint.clone(),
            config,
            theirs,
            version: AtomicU64::new(0),
            noting: AtomicUsize::new(0),
            state: Mutex::new(state),
        };
        Ok(Self { inner: Arc::new(inner), timeout })
    }

    /// The same messenger for calls that wait as long as `timeout`.
    #[must_use]
    pub fn with_timeout(&self, timeout: Duration) -> Self {
        Self { inner: Arc::clone(&self.inner), timeout }
    }

    /// Its endpoint.
    pub fn endpoint(&self) -> &Endpoint {
        &self.inner.endpoint
    }

    /// Its channel.
    pub fn channel(&self) -> &Channel {
        &self.inner.channel
    }

    /// How much it has on its hands.
    pub fn window(&self) -> Window {
        let state = self.inner.lock();
        Window {
            granted: self.inner.credit(&state),
            offered: state.offers.len(),
            waiting: state.inbox.len(),
        }
    }

    /// Sends a copy of `message`, when there is room for it: the memory is free for other use when
    /// this returns. [`Messenger::flush`] waits until the peer has everything.
    ///
    /// # Errors
    ///
    /// [`MessageError`]; after [`MessageError::Timeout`] it was not sent.
    pub fn send(&self, message: &[u8]) -> Result<(), MessageError> {
        self.inner.check_len(message.len())?;
        if message.len() <= self.inner.eager_max() {
            return self.until(|inner, state| inner.send_copy(state, message));
        }
        let copy = self.inner.landing(message.len())?;
        copy.write(0, message)?;
        self.until(|inner, state| inner.offer(state, &copy)).map(drop)
    }

    /// Sends a copy of `message` if there is room for it now; false if there is none.
    ///
    /// # Errors
    ///
    /// [`MessageError`]; it was not sent then.
    pub fn try_send(&self, message: &[u8]) -> Result<bool, MessageError> {
        self.inner.check_len(message.len())?;
        self.inner.progress()?;
        if message.len() <= self.inner.eager_max() {
            let state = &mut *self.inner.lock();
            return Ok(self.inner.send_copy(state, message)?.is_some());
        }
        let copy = self.inner.landing(message.len())?;
        copy.write(0, message)?;
        let state = &mut *self.inner.lock();
        Ok(self.inner.offer(state, &copy)?.is_some())
    }

    /// Sends a block without a copy: the peer reads it where it is. Returns when it has, so that the
    /// block is free for other use. Its buffer has to allow [`Access::REMOTE_READ`].
    ///
    /// # Errors
    ///
    /// [`MessageError`]; after [`MessageError::Timeout`] the peer may still read it.
    pub fn send_block(&self, block: &Block) -> Result<(), MessageError> {
        self.inner.check_len(block.len())?;
        if !block.buffer().access().contains(Access::REMOTE_READ) {
            return Err(MessageError::NotReadable);
        }
        let number = self.until(|inner, state| inner.offer(state, block))?;
        self.until(|_, state| {
            let taken = state.taken_by_peer.wrapping_sub(number).cast_signed() > 0;
            Ok(taken.then_some(()))
        })
    }

    /// Posts a WRITE of `block` to the start of `to`, when there is a place for it. A message that is
    /// sent after it tells the peer that it is there; the block is free for other use when the peer
    /// can have seen that message, or after [`Messenger::flush`].
    ///
    /// # Errors
    ///
    /// [`MessageError`]; nothing was posted then.
    pub fn write(&self, block: &Block, to: RemoteBlock) -> Result<(), MessageError> {
        self.until(|inner, state| {
            if let Some(failure) = state.failure {
                return Err(failure);
            }
            if !inner.has_place()? {
                return Ok(None);
            }
            inner.channel.post_write(block.clone(), to)?;
            Ok(Some(()))
        })
    }

    /// Waits for the next message.
    ///
    /// # Errors
    ///
    /// [`MessageError`]; [`MessageError::Timeout`] if none came within [`crate::Timeouts::work`] or
    /// what [`Messenger::with_timeout`] says: a server that may be idle for longer asks again. What came
    /// before the peer went comes first.
    pub fn recv(&self) -> Result<Message, MessageError> {
        let arrival = self.until(|_, state| Ok(state.inbox.pop_front()))?;
        self.finish(arrival)
    }

    /// Takes the next message if there is one. A long one is read now.
    ///
    /// # Errors
    ///
    /// As [`Messenger::recv`].
    pub fn try_recv(&self) -> Result<Option<Message>, MessageError> {
        self.inner.progress()?;
        let arrival = self.inner.lock().inbox.pop_front();
        match arrival {
            Some(arrival) => self.finish(arrival).map(Some),
            None => self.inner.lock().failure.map_or(Ok(None), Err),
        }
    }

    /// Waits for the next message and has it in `block`: a long one is read straight into it, a short
    /// one is copied. Returns its length.
    ///
    /// # Errors
    ///
    /// As [`Messenger::recv`]; [`MessageError::TooLong`] if it does not fit: it is still the next.
    pub fn recv_into(&self, block: &Block) -> Result<usize, MessageError> {
        let arrival = self.until(|_, state| {
            let len = match state.inbox.front() {
                Some(Arrival::Message(_, len) | Arrival::Offer { len, .. }) => *len,
                None => return Ok(None),
            };
            match len <= block.len() {
                true => Ok(state.inbox.pop_front()),
                false => Err(MessageError::TooLong { len, max: block.len() }),
            }
        })?;
        match arrival {
            Arrival::Message(from, len) => {
                let message = Message::new(self, Body::Receive(from), len);
                message.copy_to(block)?;
                Ok(len)
            }
            Arrival::Offer { remote, len } => {
                self.fetch(&remote, &block.clone().first(len)?)?;
                Ok(len)
            }
        }
    }

    /// Waits until the peer has everything that was sent; long messages once it has read them.
    ///
    /// # Errors
    ///
    /// [`MessageError`].
    pub fn flush(&self) -> Result<(), MessageError> {
        self.until(|inner, state| {
            inner.channel.nudge()?;
            let done = state.offers.is_empty() && inner.channel.in_flight().sends == 0;
            Ok(done.then_some(()))
        })
    }

    /// Sends everything, says goodbye, and ends the endpoint, other channels included.
    ///
    /// # Errors
    ///
    /// As [`Messenger::flush`]; the endpoint is closed then too.
    pub fn close(&self) -> Result<(), MessageError> {
        let flushed = self.flush();
        let closed = self.inner.endpoint.clone().close();
        flushed.and(closed.map_err(MessageError::Channel))
    }

    /// Has a task woken when somebody else has noted something.
    #[cfg(feature = "tokio")]
    pub(crate) fn register(&self, waker: &Waker) {
        let state = &mut *self.inner.lock();
        if !state.wakers.iter().any(|known| known.will_wake(waker)) {
            state.wakers.push(waker.clone());
        }
    }

    /// The peer has everything that was sent.
    #[cfg(feature = "tokio")]
    pub(crate) fn is_flushed(&self) -> Result<bool, MessageError> {
        self.inner.progress()?;
        self.inner.channel.nudge()?;
        let state = &*self.inner.lock();
        let done = state.offers.is_empty() && self.inner.channel.in_flight().sends == 0;
        match (done, state.failure) {
            (true, _) => Ok(true),
            (false, None) => Ok(false),
            (false, Some(failure)) => Err(failure),
        }
    }

    fn finish(&self, arrival: Arrival) -> Result<Message, MessageError> {
        match arrival {
            Arrival::Message(block, len) => Ok(Message::new(self, Body::Receive(block), len)),
            Arrival::Offer { remote, len } => {
                let landing = self.inner.landing(len)?;
                self.fetch(&remote, &landing)?;
                Ok(Message::new(self, Body::Landing(landing), len))
            }
        }
    }

    /// Reads what was offered, and tells the peer.
    fn fetch(&self, remote: &RemoteBuffer, to: &Block) -> Result<(), MessageError> {
        let channel = self.inner.channel.with_timeout(self.timeout);
        let read = loop {
            match channel.read(to.clone(), remote.at(0)?) {
                // Of events that nobody has taken.
                Err(ChannelError::Full { .. }) => self.inner.progress()?,
                ended => break ended,
            }
        };
        let state = &mut *self.inner.lock();
        read.map_err(|error| state.fail(MessageError::Channel(error)))?;
        state.taken = state.taken.wrapping_add(1);
        // The offer's own receive was posted again when it was noted.
        self.inner.tell(state)?;
        Ok(())
    }

    /// Makes progress until `done` has an answer, or the time is over.
    fn until<T>(
        &self,
        mut done: impl FnMut(&Inner, &mut State) -> Result<Option<T>, MessageError>,
    ) -> Result<T, MessageError> {
        let inner = &*self.inner;
        let mut deadline = None;
        loop {
            let version = inner.version.load(Ordering::Acquire);
            inner.progress()?;
            {
                let state = &mut *inner.lock();
                if let Some(answer) = done(inner, state)? {
                    return Ok(answer);
                }
                if let Some(failure) = state.failure {
                    return Err(failure);
                }
            }
            let deadline = deadline.get_or_insert_with(|| Deadline::after(self.timeout));
            if deadline.has_passed() {
                return Err(MessageError::Timeout { waited: self.timeout });
            }
            inner.rest(version, deadline.left())?;
        }
    }
}

impl Theirs {
    fn ask(endpoint: &Endpoint, channel: &Channel, title: &str) -> Result<Self, MessageError> {
        let remote = endpoint.remote_buffer(title)?;
        let facts = endpoint.adapter().buffer_with(1, FACTS_BYTES, Access::LOCAL_WRITE)?.at(0)?;
        channel.read(facts.clone(), remote.at(0)?.first(FACTS_BYTES)?)?;
        let word = |place: usize| -> Result<u64, MessageError> {
            let mut bytes = [0; size_of::<u64>()];
            facts.read(place * bytes.len(), &mut bytes)?;
            Ok(u64::from_be_bytes(bytes))
        };
        let theirs = Self {
            receives: u32::try_from(word(0)?).unwrap_or(0),
            block_bytes: usize::try_from(word(1)?).unwrap_or(usize::MAX),
            message_max: usize::try_from(word(2)?).unwrap_or(usize::MAX),
        };
        if theirs.receives < 2 || theirs.block_bytes < BLOCK_BYTES_MIN {
            return Err(MessageError::Unruly { what: "it cannot receive anything" });
        }
        Ok(theirs)
    }
}

impl State {
    /// Notes what went wrong first, and returns it.
    fn fail(&mut self, error: MessageError) -> MessageError {
        *self.failure.get_or_insert(error)
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Messages that may be sent now.
    fn credit(&self, state: &State) -> u32 {
        self.theirs.receives.wrapping_add(state.granted_by_peer).wrapping_sub(state.sent)
    }

    /// Bytes of the longest message that goes at once.
    fn eager_max(&self) -> usize {
        self.config.block_bytes.min(self.theirs.block_bytes)
    }

    fn check_len(&self, len: usize) -> Result<(), MessageError> {
        let max = self.theirs.message_max.min(Buffer::BLOCK_BYTES_MAX);
        match len <= max {
            true => Ok(()),
            false => Err(MessageError::TooLong { len, max }),
        }
    }

    /// A place in the send queue for something that is not counts.
    fn has_place(&self) -> Result<bool, MessageError> {
        let has = self.channel.room().0 > u64::from(SENDS_KEPT);
        if !has {
            self.channel.nudge()?;
        }
        Ok(has)
    }

    /// Sends a short message, if there is room.
    fn send_copy(&self, state: &mut State, message: &[u8]) -> Result<Option<()>, MessageError> {
        if let Some(failure) = state.failure {
            return Err(failure);
        }
        if self.credit(state) == 0 || !self.has_place()? {
            return Ok(None);
        }
        self.post(state, Kind::Data, message)?;
        state.sent = state.sent.wrapping_add(1);
        Ok(Some(()))
    }

    /// Offers a block, if there is room; returns the offer's number.
    fn offer(&self, state: &mut State, block: &Block) -> Result<Option<u32>, MessageError> {
        if let Some(failure) = state.failure {
            return Err(failure);
        }
        if self.credit(state) == 0 || !self.has_place()? || state.offers.len() >= OFFERS_MAX {
            return Ok(None);
        }
        let offset = u64::try_from(block.offset()).unwrap_or(u64::MAX);
        let kind = Kind::Offer {
            addr: block.buffer().addr().wrapping_add(offset),
            len: word(block.len()),
            rkey: block.buffer().rkey().0,
        };
        let ahead = u32::try_from(state.offers.len()).unwrap_or(u32::MAX);
        let number = state.taken_by_peer.wrapping_add(ahead);
        self.post(state, kind, &[])?;
        state.sent = state.sent.wrapping_add(1);
        state.offers.push_back(block.clone());
        Ok(Some(number))
    }

    /// Posts something with the counts as they are.
    fn post(&self, state: &mut State, kind: Kind, payload: &[u8]) -> Result<(), MessageError> {
        let (header, len) = Header { kind, granted: state.granted, taken: state.taken }.emit();
        let Some(block) = state.blocks.pop() else {
            // As many blocks as places in the queue: this does not happen.
            return Err(state.fail(MessageError::Unruly { what: "a block is missing" }));
        };
        block.write(0, header.get(..len).unwrap_or_default())?;
        block.write(len, payload)?;
        let posted = self.channel.post_send(block.first(len + payload.len())?);
        posted.map_err(|error| state.fail(MessageError::Channel(error)))?;
        state.told = state.granted;
        state.taken_told = state.taken;
        Ok(())
    }

    /// Tells the peer the counts if it may be waiting for them, and there is a place.
    fn tell(&self, state: &mut State) -> Result<(), MessageError> {
        let owed = state.granted.wrapping_sub(state.told);
        let receives = self.endpoint.adapter().config().queues.receive_depth - RECEIVES_KEPT;
        let due = owed >= receives.div_ceil(2) || state.taken != state.taken_told;
        if !due || state.failure.is_some() || self.channel.room().0 == 0 {
            return Ok(());
        }
        self.post(state, Kind::Counts, &[])
    }

    /// Memory for a message that is longer than a block.
    fn landing(&self, len: usize) -> Result<Block, MessageError> {
        let state = &mut *self.lock();
        let fits = |buffer: &Buffer| buffer.len() >= len && buffer.len() / 2 <= len;
        let known = state.landings.iter().position(fits);
        let buffer = match known {
            Some(place) => state.landings.swap_remove(place),
            None => {
                let bytes = len.max(1).next_multiple_of(LANDING_STEP);
                let access = Access::LOCAL_WRITE | Access::REMOTE_READ;
                self.endpoint.adapter().buffer_with(1, bytes, access)?
            }
        };
        Ok(buffer.at(0)?.first(len)?)
    }

    /// Takes back memory that [`Inner::landing`] gave, or lets it go.
    fn give_back(&self, state: &mut State, block: Block) {
        let own = block.buffer().access() == Access::LOCAL_WRITE | Access::REMOTE_READ;
        if own && block.buffer().blocks() == 1 && state.landings.len() < LANDINGS_MAX {
            state.landings.push(block.buffer().clone());
        }
    }

    /// Notes everything that has happened.
    fn progress(&self) -> Result<(), MessageError> {
        self.noting.fetch_add(1, Ordering::AcqRel);
        let noted = self.note_all();
        self.noting.fetch_sub(1, Ordering::AcqRel);
        noted
    }

    fn note_all(&self) -> Result<(), MessageError> {
        let state = &mut *self.lock();
        while let Some(event) = self.channel.poll()? {
            self.note(state, event);
            self.version.fetch_add(1, Ordering::AcqRel);
            state.wakers.drain(..).for_each(Waker::wake);
        }
        if state.failure.is_none()
            && let Some(error) = self.channel.failure()
        {
            state.fail(MessageError::Channel(error));
            self.version.fetch_add(1, Ordering::AcqRel);
        }
        self.tell(state)
    }

    fn note(&self, state: &mut State, event: Event) {
        if let Err(error) = event.clone().ok() {
            // The cause is the channel's to tell.
            state.fail(MessageError::Channel(self.channel.failure().unwrap_or(error)));
            return;
        }
        match event.operation {
            Operation::Send => state.blocks.push(whole(event.block)),
            Operation::Receive => {
                if let Err(error) = self.note_arrival(state, event) {
                    state.fail(error);
                }
            }
            // Work of the program's that it does not wait for, or a WRITE of the peer's program.
            Operation::WriteReceived => {
                if let Err(error) = self.channel.post_recv(event.block) {
                    state.fail(MessageError::Channel(error));
                }
            }
            Operation::Write | Operation::Read | Operation::FetchAdd | Operation::CompareSwap => {}
        }
    }

    fn note_arrival(&self, state: &mut State, event: Event) -> Result<(), MessageError> {
        let mut start = [0; OFFER_BYTES];
        let shown = event.bytes.min(OFFER_BYTES);
        event.block.read(0, start.get_mut(..shown).unwrap_or_default())?;
        let header = Header::parse(&start, event.bytes);
        let header = header.ok_or(MessageError::Unruly { what: "a message has no header" })?;
        self.note_counts(state, header)?;
        match header.kind {
            Kind::Counts => drop(self.channel.post_recv(event.block)?),
            Kind::Data => {
                let len = event.bytes - HEADER_BYTES;
                state.inbox.push_back(Arrival::Message(event.block, len));
            }
            Kind::Offer { addr, len, rkey } => {
                let short = usize::try_from(len).ok().filter(|len| *len <= self.config.message_max);
                let len = short.ok_or(MessageError::Unruly { what: "a message is too long" })?;
                // What was said is in hand: its receive can be granted at once.
                self.channel.post_recv(event.block)?;
                state.granted = state.granted.wrapping_add(1);
                let remote = RemoteBuffer::from_raw(addr, Rkey(rkey), 1, len);
                if state.inbox.len() >= state.inbox.capacity().max(INBOX_MIN) {
                    return Err(MessageError::Unruly { what: "it offers more than it may" });
                }
                state.inbox.push_back(Arrival::Offer { remote, len });
            }
        }
        Ok(())
    }

    /// Takes in what the peer has granted and taken.
    fn note_counts(&self, state: &mut State, header: Header) -> Result<(), MessageError> {
        let granted = header.granted.wrapping_sub(state.granted_by_peer);
        let used = state.sent.wrapping_sub(state.granted_by_peer);
        if granted > used {
            return Err(MessageError::Unruly { what: "it grants what was not used" });
        }
        state.granted_by_peer = header.granted;
        let taken = header.taken.wrapping_sub(state.taken_by_peer);
        if usize::try_from(taken).is_ok_and(|taken| taken > state.offers.len()) {
            return Err(MessageError::Unruly { what: "it takes what was not offered" });
        }
        for _ in 0..taken {
            if let Some(block) = state.offers.pop_front() {
                self.give_back(state, block);
            }
        }
        state.taken_by_peer = header.taken;
        Ok(())
    }

    /// Waits until something may have changed since `version`.
    fn rest(&self, version: u64, most: Duration) -> Result<(), MessageError> {
        let changed = || {
            self.version.load(Ordering::Acquire) != version
                || self.noting.load(Ordering::Acquire) > 0
        };
        match self.channel.with_timeout(most).until_event_or(changed) {
            // Whoever is noting has taken what we wait for, perhaps.
            Ok(()) => thread::yield_now(),
            Err(ChannelError::Timeout { .. }) => {}
            Err(error) => return Err(MessageError::Channel(error)),
        }
        Ok(())
    }

    /// The program has done with the message in a receive: posts it again, and grants it.
    fn release(&self, block: Block) {
        let state = &mut *self.lock();
        if state.failure.is_some() {
            return;
        }
        match self.channel.post_recv(whole(block)) {
            Ok(_) => {
                state.granted = state.granted.wrapping_add(1);
                // What cannot be told now is told with what comes next.
                let _ = self.tell(state);
            }
            Err(error) => drop(state.fail(MessageError::Channel(error))),
        }
    }
}

/// The whole block that `part` is the start of.
fn whole(part: Block) -> Block {
    part.buffer().at(part.index()).unwrap_or(part)
}

fn word(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

/// A message that was received. Dropping it grants the peer another.
pub struct Message {
    inner: Arc<Inner>,
    body: Option<Body>,
    len: usize,
}

enum Body {
    /// In the block of a receive, behind a header.
    Receive(Block),
    /// In memory of its own.
    Landing(Block),
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message").field("len", &self.len).finish_non_exhaustive()
    }
}

impl Message {
    fn new(messenger: &Messenger, body: Body, len: usize) -> Self {
        Self { inner: Arc::clone(&messenger.inner), body: Some(body), len }
    }

    /// Its bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// It has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies its bytes from `offset` on into `target`.
    ///
    /// # Errors
    ///
    /// [`crate::BlockError::OutOfBlock`]; nothing was copied then.
    pub fn read(&self, offset: usize, target: &mut [u8]) -> Result<(), crate::BlockError> {
        let outside = crate::BlockError::OutOfBlock { offset, len: target.len(), block: self.len };
        if offset.checked_add(target.len()).is_none_or(|end| end > self.len) {
            return Err(outside);
        }
        match &self.body {
            Some(Body::Receive(block)) => block.read(HEADER_BYTES + offset, target),
            Some(Body::Landing(block)) => block.read(offset, target),
            None => Err(outside),
        }
    }

    /// A copy of its bytes.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len];
        let copied = self.read(0, &mut bytes);
        debug_assert!(copied.is_ok(), "a message lies in its block");
        bytes
    }

    /// Copies it to the start of `block`, which is long enough.
    fn copy_to(&self, block: &Block) -> Result<(), MessageError> {
        let mut step = [0; COPY_BYTES];
        let mut done = 0;
        while done < self.len {
            let len = step.len().min(self.len - done);
            let part = step.get_mut(..len).unwrap_or_default();
            self.read(done, part)?;
            block.write(done, part)?;
            done += len;
        }
        Ok(())
    }
}

impl Drop for Message {
    fn drop(&mut self) {
        match self.body.take() {
            Some(Body::Receive(block)) => self.inner.release(block),
            Some(Body::Landing(block)) => {
                let state = &mut *self.inner.lock();
                self.inner.give_back(state, block);
            }
            None => {}
        }
    }
}

/// Messages of counts that can be on their way without an offer: see above.
const COUNTS_MAX: u32 = 2;
/// Offers that the peer has not taken.
const OFFERS_MAX: usize = 8;
/// Receives that are never granted: for counts, and one for each offer.
const RECEIVES_KEPT: u32 = COUNTS_MAX + 8;
/// Places of the send queue for counts, a READ, and the question for the peer's facts.
const SENDS_KEPT: u32 = 4;
/// An offer has to fit a block.
const BLOCK_BYTES_MIN: usize = 64;
const _: () = assert!(OFFER_BYTES <= HEADER_BYTES + BLOCK_BYTES_MIN);
/// Offers and messages that can wait even if there are few receives.
const INBOX_MIN: usize = 16;
const FACTS_BYTES: usize = 3 * size_of::<u64>();
/// Memory of long messages that is kept for the next one, and the steps of its sizes.
const LANDINGS_MAX: usize = 4;
const LANDING_STEP: usize = 64 << 10;
const COPY_BYTES: usize = 4096;
