//! Messengers: messages of any length over a channel, with flow control that cannot fail.
//!
//! `adverb_messages` has the rules, and why no message finds the peer without a receive; the READ of an
//! offer begins when the program asks for the message. The offer stays first in line until the READ has
//! ended: a call that has no memory for it, or no time, leaves it for the next call, which goes on with
//! the same READ.
//!
//! One lock guards all of it. Each call makes progress for all callers: there is no thread here.

#[cfg(test)]
mod tests;

use crate::buffer::{Block, Buffer};
use crate::channel::Channel;
use crate::connector::Deadline;
use crate::endpoint::Endpoint;
use crate::error::{ChannelError, HAS_ONE, MessageError};
use crate::remote::{RemoteBlock, RemoteBuffer};
use crate::ring::{Event, Operation, Ticket};
use adverb_messages::{
    COUNTS_MAX, FACTS_BYTES, Facts, Flow, HEADER_BYTES, Header, Kind, OFFER_BYTES, OFFERS_MAX,
    RECEIVES_KEPT, SENDS_KEPT, Unruly,
};
use adverb_verbs::locks::Mutex;
use adverb_verbs::{Access, Rkey};
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::Waker;
use std::thread;
use std::time::Duration;

/// Settings of a messenger. Each side has its own.
///
/// [`Messenger`] has an example.
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
    theirs: Facts,
    /// Changes whenever `state` does in a way that a call may wait for.
    version: AtomicU64,
    /// Threads that have taken events from the channel and not noted them yet.
    noting: AtomicUsize,
    /// There is memory for long messages.
    #[cfg(test)]
    has_memory: std::sync::atomic::AtomicBool,
    state: Mutex<State>,
}

/// A messenger that has told the peer that it may send, and does not know what the peer can take.
pub(crate) struct Opening {
    endpoint: Endpoint,
    pub(crate) channel: Channel,
    /// What both sides advertise.
    pub(crate) title: String,
    config: MessengerConfig,
    receives: usize,
}

struct State {
    /// Blocks for what is sent, and not in use.
    blocks: Vec<Block>,
    flow: Flow,
    /// Messages that have come and have not been asked for.
    inbox: VecDeque<Arrival>,
    /// Offers that the peer has not taken, oldest first.
    offers: VecDeque<Offered>,
    /// Memory of large messages that is not in use.
    landings: Vec<Buffer>,
    failure: Option<MessageError>,
    /// Tasks that wait.
    wakers: Vec<Waker>,
}

/// Memory that the peer was offered.
enum Offered {
    /// The messenger's, for the copy of a message.
    Copy(Block),
    /// The program's, held until the peer has read it.
    Lent { _block: Block },
}

/// Something that has come.
enum Arrival {
    /// In a block of a receive.
    Message(Block, usize),
    Offer {
        remote: RemoteBuffer,
        len: usize,
        /// Of the first in line, once it was asked for.
        read: Option<Reading>,
    },
}

/// The READ of a message that was offered.
struct Reading {
    ticket: Ticket,
    block: Block,
    target: Target,
    has_ended: bool,
}

#[derive(Clone, Copy, Eq, PartialEq)]
enum Target {
    /// Memory of the messenger's: any call may take the message.
    Landing,
    /// The block of a call that waits for it.
    Awaited,
    /// The block of a call that has given up.
    Left,
}

/// Where a call wants a message to be.
enum Into<'a> {
    /// In memory of the messenger's, which has been got for it.
    Memory(&'a mut Option<Block>),
    /// In this block of the program's.
    Block(&'a Block),
}

/// What a call has taken from the inbox.
enum Taken {
    Message(Body, usize),
    /// It was read into the caller's block.
    Read(usize),
    /// Nothing yet: memory of this length is needed.
    Needs(usize),
}

/// How much a messenger has on its hands.
///
/// [`Messenger`] has an example.
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
        let opening = Opening::new(endpoint, name, config)?;
        let remote = endpoint.remote_buffer(&opening.title)?;
        let (facts, remote) = opening.facts(&remote)?;
        let limit = endpoint.adapter().config().timeouts.change();
        opening.channel.with_timeout(limit).read(facts.clone(), remote)?;
        opening.finish(&facts)
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
        let state = self.inner.state.lock();
        Window {
            granted: state.flow.credit(),
            offered: usize::try_from(state.flow.offers()).unwrap_or(usize::MAX),
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
        let offered = self.until(|inner, state| inner.offer(state, &copy, false)).map(drop);
        offered.inspect_err(|_| self.inner.give_back(&mut self.inner.state.lock(), copy))
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
            let state = &mut *self.inner.state.lock();
            return Ok(self.inner.send_copy(state, message)?.is_some());
        }
        if self.inner.next_offer(&self.inner.state.lock())?.is_none() {
            return Ok(false);
        }
        let copy = self.inner.landing(message.len())?;
        copy.write(0, message)?;
        let state = &mut *self.inner.state.lock();
        // Another thread may have taken the room meanwhile.
        let offered = self.inner.offer(state, &copy, false);
        if !matches!(offered, Ok(Some(_))) {
            self.inner.give_back(state, copy);
        }
        Ok(offered?.is_some())
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
        let number = self.until(|inner, state| inner.offer(state, block, true))?;
        self.until(|_, state| Ok(state.flow.is_taken(number).then_some(())))
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
    /// [`MessageError`]; [`MessageError::Timeout`] if none came whole within [`crate::Timeouts::work`] or
    /// what [`Messenger::with_timeout`] says, [`MessageError::Memory`] if there is no memory for a long
    /// one. Nothing is lost then: ask again. What came before the peer went comes first.
    pub fn recv(&self) -> Result<Message, MessageError> {
        let mut memory = None;
        let mut deadline = None;
        loop {
            let into = &mut memory;
            let taken = self
                .until_by(&mut deadline, |inner, state| inner.take(state, &mut Into::Memory(into)));
            if let Some(message) = self.settle(taken.map(Some), &mut memory)? {
                return Ok(message);
            }
        }
    }

    /// Takes the next message if there is one. A long one that has been offered is asked for, and taken
    /// by a later call, once it has been read.
    ///
    /// # Errors
    ///
    /// As [`Messenger::recv`].
    pub fn try_recv(&self) -> Result<Option<Message>, MessageError> {
        self.inner.progress()?;
        let mut memory = None;
        loop {
            let mut state = self.inner.state.lock();
            let taken = self.inner.take(&mut state, &mut Into::Memory(&mut memory));
            let failure = state.failure;
            drop(state);
            let is_done = matches!(taken, Ok(None));
            match self.settle(taken, &mut memory)? {
                Some(message) => return Ok(Some(message)),
                None if is_done => return failure.map_or(Ok(None), Err),
                None => {}
            }
        }
    }

    /// Waits for the next message and has it in `block`: a long one is read straight into it, a short
    /// one is copied. Returns its length.
    ///
    /// # Errors
    ///
    /// As [`Messenger::recv`], and the message is still the next: [`MessageError::TooLong`] if it does
    /// not fit, [`MessageError::NotWritable`] if the block's buffer lacks [`Access::LOCAL_WRITE`]. After
    /// [`MessageError::Timeout`] a long message may still be read into the block: ask again with it.
    pub fn recv_into(&self, block: &Block) -> Result<usize, MessageError> {
        if !block.buffer().access().contains(Access::LOCAL_WRITE) {
            return Err(MessageError::NotWritable);
        }
        let taken = self.until(|inner, state| inner.take(state, &mut Into::Block(block)));
        match taken {
            Ok(Taken::Message(body, len)) => {
                Message::new(self, body, len).copy_to(block)?;
                Ok(len)
            }
            Ok(Taken::Read(len) | Taken::Needs(len)) => Ok(len),
            Err(error) => {
                self.inner.leave(block);
                Err(error)
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
            let done = state.flow.offers() == 0 && inner.channel.in_flight().sends == 0;
            Ok(done.then_some(()))
        })
    }

    /// Sends everything, says goodbye, and ends the endpoint, other channels included. It waits as long
    /// as [`crate::Timeouts::work`] or [`Messenger::with_timeout`] says, and [`crate::Timeouts::connect`]
    /// if both are for ever.
    ///
    /// # Errors
    ///
    /// As [`Messenger::flush`]; the endpoint is closed then too.
    pub fn close(&self) -> Result<(), MessageError> {
        let most = self.inner.endpoint.adapter().config().timeouts.change();
        let most = if self.timeout == Duration::MAX { most } else { self.timeout };
        let flushed = self.with_timeout(most).flush();
        let closed = self.inner.endpoint.clone().close();
        flushed.and(closed.map_err(MessageError::Channel))
    }

    /// Has a task woken when another thread has noted something.
    #[cfg(feature = "tokio")]
    pub(crate) fn register(&self, waker: &Waker) {
        let state = &mut *self.inner.state.lock();
        if !state.wakers.iter().any(|known| known.will_wake(waker)) {
            state.wakers.push(waker.clone());
        }
    }

    /// The peer has everything that was sent.
    #[cfg(feature = "tokio")]
    pub(crate) fn is_flushed(&self) -> Result<bool, MessageError> {
        self.inner.progress()?;
        self.inner.channel.nudge()?;
        let state = &*self.inner.state.lock();
        let done = state.flow.offers() == 0 && self.inner.channel.in_flight().sends == 0;
        match (done, state.failure) {
            (true, _) => Ok(true),
            (false, None) => Ok(false),
            (false, Some(failure)) => Err(failure),
        }
    }

    /// Makes a message of what was taken, or gets the memory that it needs.
    fn settle(
        &self,
        taken: Result<Option<Taken>, MessageError>,
        memory: &mut Option<Block>,
    ) -> Result<Option<Message>, MessageError> {
        if let Some(unused) = memory.take() {
            self.inner.give_back(&mut self.inner.state.lock(), unused);
        }
        match taken? {
            Some(Taken::Message(body, len)) => Ok(Some(Message::new(self, body, len))),
            Some(Taken::Needs(len)) => {
                *memory = Some(self.inner.landing(len)?);
                Ok(None)
            }
            Some(Taken::Read(_)) | None => Ok(None),
        }
    }

    /// Makes progress until `done` has an answer, or the time is over.
    fn until<T>(
        &self,
        done: impl FnMut(&Inner, &mut State) -> Result<Option<T>, MessageError>,
    ) -> Result<T, MessageError> {
        self.until_by(&mut None, done)
    }

    /// As [`Messenger::until`], in several parts of which all have the time together.
    fn until_by<T>(
        &self,
        deadline: &mut Option<Deadline>,
        mut done: impl FnMut(&Inner, &mut State) -> Result<Option<T>, MessageError>,
    ) -> Result<T, MessageError> {
        let inner = &*self.inner;
        loop {
            let version = inner.version.load(Ordering::Acquire);
            inner.progress()?;
            {
                let state = &mut *inner.state.lock();
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

impl Opening {
    /// Posts the receives, and tells the peer that it may send.
    pub(crate) fn new(
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
        let bytes = HEADER_BYTES + config.block_bytes;
        let adapter = endpoint.adapter();
        let own = adapter.buffer_with(blocks(queues.receive_depth), bytes, Access::LOCAL_WRITE)?;
        for index in 0..own.blocks() {
            channel.post_recv(own.at(index)?)?;
        }
        // Told only now, so that the peer may send as soon as it knows.
        let facts =
            adapter.buffer_with(1, FACTS_BYTES, Access::REMOTE_READ | Access::LOCAL_WRITE)?;
        let receives = queues.receive_depth - RECEIVES_KEPT;
        let MessengerConfig { block_bytes, message_max } = config;
        facts.at(0)?.write(0, &Facts { receives, block_bytes, message_max }.emit())?;
        endpoint.advertise(&title, &facts)?;
        Ok(Self { endpoint: endpoint.clone(), channel, title, config, receives: own.blocks() })
    }

    /// Where to read what the peer says of itself, once it has advertised that, and where it is.
    pub(crate) fn facts(
        &self,
        remote: &RemoteBuffer,
    ) -> Result<(Block, RemoteBlock), MessageError> {
        let adapter = self.endpoint.adapter();
        let facts = adapter.buffer_with(1, FACTS_BYTES, Access::LOCAL_WRITE)?.at(0)?;
        Ok((facts, remote.at(0)?.first(FACTS_BYTES)?))
    }

    /// The messenger, when `facts` has what the peer says of itself.
    pub(crate) fn finish(self, facts: &Block) -> Result<Messenger, MessageError> {
        let Self { endpoint, channel, config, receives, .. } = self;
        let mut said = [0; FACTS_BYTES];
        facts.read(0, &mut said)?;
        let theirs = Facts::parse(&said, BLOCK_BYTES_MIN).map_err(unruly)?;
        let (adapter, bytes) = (endpoint.adapter(), HEADER_BYTES + config.block_bytes);
        let queues = &adapter.config().queues;
        let sends = blocks(queues.send_depth);
        let sends = adapter.buffer_with(
            sends,
            bytes.min(HEADER_BYTES + theirs.block_bytes),
            Access::LOCAL_WRITE,
        )?;
        let state = State {
            blocks: (0..sends.blocks()).map(|index| sends.at(index)).collect::<Result<_, _>>()?,
            flow: Flow::new(queues.receive_depth - RECEIVES_KEPT, theirs.receives),
            inbox: VecDeque::with_capacity(receives),
            offers: VecDeque::with_capacity(blocks(OFFERS_MAX)),
            landings: Vec::with_capacity(LANDINGS_MAX),
            failure: None,
            wakers: Vec::new(),
        };
        let timeout = adapter.config().timeouts.work_limit();
        let inner = Inner {
            channel,
            endpoint,
            config,
            theirs,
            version: AtomicU64::new(0),
            noting: AtomicUsize::new(0),
            #[cfg(test)]
            has_memory: std::sync::atomic::AtomicBool::new(true),
            state: Mutex::new(state),
        };
        Ok(Messenger { inner: Arc::new(inner), timeout })
    }
}

/// Blocks for a queue of this depth.
fn blocks(depth: u32) -> usize {
    usize::try_from(depth).unwrap_or(usize::MAX)
}

impl State {
    /// Notes what went wrong first, and returns it.
    fn fail(&mut self, error: MessageError) -> MessageError {
        *self.failure.get_or_insert(error)
    }
}

impl Inner {
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
        if state.flow.credit() == 0 || !self.has_place()? {
            return Ok(None);
        }
        self.post(state, Kind::Data, message)?;
        Ok(Some(()))
    }

    /// The number of the next offer, if there is room for one.
    fn next_offer(&self, state: &State) -> Result<Option<u32>, MessageError> {
        if let Some(failure) = state.failure {
            return Err(failure);
        }
        let number = state.flow.next_offer();
        Ok(if number.is_some() && self.has_place()? { number } else { None })
    }

    /// Offers a block, which is the program's if it `is_lent`, if there is room; returns the offer's
    /// number.
    fn offer(
        &self,
        state: &mut State,
        block: &Block,
        is_lent: bool,
    ) -> Result<Option<u32>, MessageError> {
        let Some(number) = self.next_offer(state)? else { return Ok(None) };
        let offset = u64::try_from(block.offset()).unwrap_or(u64::MAX);
        let kind = Kind::Offer {
            addr: block.buffer().addr().wrapping_add(offset),
            len: u64::try_from(block.len()).unwrap_or(u64::MAX),
            rkey: block.buffer().rkey().0,
        };
        self.post(state, kind, &[])?;
        let block = block.clone();
        state.offers.push_back(match is_lent {
            true => Offered::Lent { _block: block },
            false => Offered::Copy(block),
        });
        Ok(Some(number))
    }

    /// Takes what is first in the inbox, if it is whole. Has it read, if it was offered; it stays first
    /// until that has ended.
    fn take(&self, state: &mut State, into: &mut Into<'_>) -> Result<Option<Taken>, MessageError> {
        let (Some(Arrival::Message(_, len)) | Some(Arrival::Offer { len, .. })) =
            state.inbox.front()
        else {
            return Ok(None);
        };
        let len = *len;
        if let Into::Block(block) = into
            && len > block.len()
        {
            return Err(MessageError::TooLong { len, max: block.len() });
        }
        if let Some(Arrival::Offer { read, .. }) = state.inbox.front_mut() {
            let is_ours = |reading: &Reading| match &*into {
                Into::Memory(_) => false,
                Into::Block(block) => reading.block.starts_with(block),
            };
            match read {
                Some(reading) if reading.target == Target::Left && is_ours(reading) => {
                    reading.target = Target::Awaited;
                }
                // It ends in a block that is not ours, for a call that does not want it any more.
                Some(reading) if reading.target == Target::Left => *read = None,
                Some(_) | None => {}
            }
            match read {
                None => return self.ask(state, len, into),
                Some(reading) if !reading.has_ended => return Ok(None),
                // Another call's.
                Some(reading) if reading.target == Target::Awaited && !is_ours(reading) => {
                    return Ok(None);
                }
                Some(_) => {}
            }
        }
        Ok(match state.inbox.pop_front() {
            Some(Arrival::Message(block, len)) => Some(Taken::Message(Body::Receive(block), len)),
            Some(Arrival::Offer { read: Some(Reading { block, target, .. }), .. }) => {
                state.flow.take();
                // What cannot be told now is told with what comes next.
                let _ = self.tell(state);
                self.wake_others(state);
                Some(match target {
                    Target::Landing => Taken::Message(Body::Landing(block), len),
                    Target::Awaited | Target::Left => Taken::Read(len),
                })
            }
            Some(Arrival::Offer { read: None, .. }) | None => None,
        })
    }

    /// Posts the READ of the offer that is first in the inbox, of `len` bytes, if there is a place.
    fn ask(
        &self,
        state: &mut State,
        len: usize,
        into: &mut Into<'_>,
    ) -> Result<Option<Taken>, MessageError> {
        let (block, target) = match into {
            Into::Memory(Some(block)) if block.len() == len => (block.clone(), Target::Landing),
            Into::Memory(_) => return Ok(Some(Taken::Needs(len))),
            Into::Block(block) => ((*block).clone().first(len)?, Target::Awaited),
        };
        let Some(Arrival::Offer { remote, read, .. }) = state.inbox.front_mut() else {
            return Ok(None);
        };
        if self.channel.room().0 <= u64::from(COUNTS_MAX) {
            self.channel.nudge()?;
            return Ok(None);
        }
        let ticket = self.channel.post_read(block.clone(), remote.at(0)?)?;
        if let Into::Memory(memory) = into {
            **memory = None;
        }
        *read = Some(Reading { ticket, block, target, has_ended: false });
        self.channel.nudge()?;
        Ok(None)
    }

    /// A call that had a message read into `block` has given up.
    fn leave(&self, block: &Block) {
        let state = &mut *self.state.lock();
        if let Some(Arrival::Offer { read: Some(reading), .. }) = state.inbox.front_mut()
            && reading.target == Target::Awaited
            && reading.block.starts_with(block)
        {
            reading.target = Target::Left;
            self.wake_others(state);
        }
    }

    /// What is first in the inbox is another now, or free for another call.
    fn wake_others(&self, state: &mut State) {
        if state.inbox.is_empty() {
            return;
        }
        self.version.fetch_add(1, Ordering::AcqRel);
        state.wakers.drain(..).for_each(Waker::wake);
        self.channel.wake();
    }

    /// Posts something with the counts as they are.
    fn post(&self, state: &mut State, kind: Kind, payload: &[u8]) -> Result<(), MessageError> {
        let (header, len) = state.flow.send(kind).emit();
        let Some(block) = state.blocks.pop() else {
            // As many blocks as places in the queue: this does not happen.
            return Err(state.fail(MessageError::Unruly { what: "a block is missing" }));
        };
        block.write(0, header.get(..len).unwrap_or_default())?;
        block.write(len, payload)?;
        let posted = self.channel.post_send(block.first(len + payload.len())?);
        posted.map_err(|error| state.fail(MessageError::Channel(error)))?;
        Ok(())
    }

    /// Tells the peer the counts if it may be waiting for them, and there is a place.
    fn tell(&self, state: &mut State) -> Result<(), MessageError> {
        if !state.flow.owes_counts() || state.failure.is_some() || self.channel.room().0 == 0 {
            return Ok(());
        }
        self.post(state, Kind::Counts, &[])
    }

    /// Memory for a message that is longer than a block.
    fn landing(&self, len: usize) -> Result<Block, MessageError> {
        let state = &mut *self.state.lock();
        let fits = |buffer: &Buffer| buffer.len() >= len && buffer.len() / 2 <= len;
        let known = state.landings.iter().position(fits);
        let buffer = match known {
            Some(place) => state.landings.swap_remove(place),
            None => {
                let bytes = len.max(1).next_multiple_of(LANDING_STEP);
                let access = Access::LOCAL_WRITE | Access::REMOTE_READ;
                #[cfg(test)]
                if !self.has_memory.load(Ordering::Relaxed) {
                    return Err(MessageError::Memory { len });
                }
                let buffer = self.endpoint.adapter().buffer_with(1, bytes, access);
                buffer.map_err(|_| MessageError::Memory { len })?
            }
        };
        Ok(buffer.at(0)?.first(len)?)
    }

    /// Takes back memory that [`Inner::landing`] gave, or lets it go.
    fn give_back(&self, state: &mut State, block: Block) {
        if state.landings.len() < LANDINGS_MAX {
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
        let state = &mut *self.state.lock();
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
            Operation::Read => {
                if let Some(Arrival::Offer { read: Some(reading), .. }) = state.inbox.front_mut()
                    && reading.ticket == event.ticket
                {
                    reading.has_ended = true;
                }
            }
            Operation::Write | Operation::FetchAdd | Operation::CompareSwap => {}
        }
    }

    fn note_arrival(&self, state: &mut State, event: Event) -> Result<(), MessageError> {
        let mut start = [0; OFFER_BYTES];
        let shown = event.bytes.min(OFFER_BYTES);
        event.block.read(0, start.get_mut(..shown).unwrap_or_default())?;
        let header = Header::parse(&start, event.bytes);
        let header = header.ok_or(MessageError::Unruly { what: "a message has no header" })?;
        for _ in 0..state.flow.receive(header).map_err(unruly)? {
            if let Some(Offered::Copy(block)) = state.offers.pop_front() {
                self.give_back(state, block);
            }
        }
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
                state.flow.grant();
                let remote = RemoteBuffer::from_raw(addr, Rkey(rkey), 1, len);
                state.inbox.push_back(Arrival::Offer { remote, len, read: None });
            }
        }
        Ok(())
    }

    /// Waits until something may have changed since `version`.
    fn rest(&self, version: u64, most: Duration) -> Result<(), MessageError> {
        let changed = || {
            self.version.load(Ordering::Acquire) != version
                || self.noting.load(Ordering::Acquire) > 0
        };
        match self.channel.with_timeout(most).until_event_or(changed) {
            // The thread that notes events has taken the awaited one, perhaps.
            Ok(()) => thread::yield_now(),
            Err(ChannelError::Timeout { .. }) => {}
            Err(error) => return Err(MessageError::Channel(error)),
        }
        Ok(())
    }

    /// The program has done with the message in a receive: posts it again, and grants it.
    fn release(&self, block: Block) {
        let state = &mut *self.state.lock();
        if state.failure.is_some() {
            return;
        }
        match self.channel.post_recv(whole(block)) {
            Ok(_) => {
                state.flow.grant();
                // What cannot be told now is told with what comes next.
                let _ = self.tell(state);
            }
            Err(error) => drop(state.fail(MessageError::Channel(error))),
        }
    }
}

fn unruly(Unruly(what): Unruly) -> MessageError {
    MessageError::Unruly { what }
}

/// The whole block that `part` is the start of.
fn whole(part: Block) -> Block {
    part.buffer().at(part.index()).unwrap_or(part)
}

/// A message that was received. Dropping it grants the peer another.
///
/// [`Messenger`] has an example.
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
                let state = &mut *self.inner.state.lock();
                self.inner.give_back(state, block);
            }
            None => {}
        }
    }
}

/// An offer has to fit a block.
const BLOCK_BYTES_MIN: usize = 64;
const _: () = assert!(OFFER_BYTES <= HEADER_BYTES + BLOCK_BYTES_MIN);
/// Memory of long messages that is kept for the next one, and the steps of its sizes.
const LANDINGS_MAX: usize = 4;
const LANDING_STEP: usize = 64 << 10;
const COPY_BYTES: usize = 4096;
