//! Futures of channels and messengers.
//!
//! A future looks at its channel's state and leaves a waker there; a completion that is noted wakes
//! all of them. While all tasks wait, completions are taken by a task of the runtime, one for each
//! completion queue, which sleeps on its completion channel. With busy polling the tasks take turns in
//! polling instead, and the runtime never rests.
//!
//! A future that is dropped has taken nothing: work that it posted goes on, and its event is lost with
//! it; an event that it would have brought stays for the next call. What sets up and ends is in
//! `futures/sessions.rs`.

mod sessions;

pub use sessions::{AsyncClientSession, AsyncEndpoint, AsyncServerSession};

use crate::bed::Bed;
use crate::buffer::Block;
use crate::channel::{AWAITED, Channel, Request, Shared, word};
use crate::error::{ChannelError, MessageError};
use crate::messenger::{Message, Messenger};
use crate::remote::RemoteBlock;
use crate::ring::Event;
use crate::source::Source;
use adverb_verbs::AsyncCompChannel;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::task::{Poll, Waker};

/// A channel that tasks wait on.
///
/// Its calls are those of [`Channel`] that wait; what is posted to [`AsyncChannel::channel`] has its end
/// waited for by [`AsyncChannel::event`].
///
/// ```
/// use adverb_session::{AsyncClientSession, AsyncServerSession, ClientSession, Config};
/// use adverb_session::{ServerSession, WorkMode};
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let config = Config::default().work_mode(WorkMode::CompletionChannel);
/// let mut server = AsyncServerSession::new(ServerSession::bind("127.0.0.1:0", config.clone())?)?;
/// let address = server.session().local_addr();
/// let accepting = tokio::spawn(async move { server.accept().await });
/// let client = AsyncClientSession::new(ClientSession::new(config)?).connect(address).await?;
/// let server = accepting.await??;
///
/// let (near, far) = (client.channel("data")?, server.channel("data")?);
/// let source = client.endpoint().adapter().buffer(1, 64)?.at(0)?;
/// let sink = server.endpoint().adapter().buffer(1, 64)?.at(0)?;
/// far.channel().post_recv(sink)?;
/// source.write(0, b"hello")?;
/// near.send(source.first(5)?).await?;
/// assert_eq!(far.recv().await?.bytes, 5);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct AsyncChannel {
    channel: Channel,
}

impl AsyncChannel {
    /// Lets tasks of the current runtime wait on `channel`.
    ///
    /// # Errors
    ///
    /// No descriptors left.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    pub fn new(channel: Channel) -> io::Result<Self> {
        drive(channel.shared())?;
        Ok(Self { channel })
    }

    /// The channel.
    pub fn channel(&self) -> &Channel {
        &self.channel
    }

    /// Sends a message and waits until the peer has it.
    ///
    /// # Errors
    ///
    /// As [`Channel::send`], but it waits for as long as it takes.
    pub async fn send(&self, block: Block) -> Result<(), ChannelError> {
        self.awaited(&block, Request::Send { imm: None }).await.map(drop)
    }

    /// Sends a message with immediate data and waits until the peer has it.
    ///
    /// # Errors
    ///
    /// As [`AsyncChannel::send`].
    pub async fn send_with_imm(&self, block: Block, imm: u32) -> Result<(), ChannelError> {
        self.awaited(&block, Request::Send { imm: Some(imm) }).await.map(drop)
    }

    /// Writes `block` to the start of `to` and waits until it is there.
    ///
    /// # Errors
    ///
    /// As [`AsyncChannel::send`].
    pub async fn write(&self, block: Block, to: RemoteBlock) -> Result<(), ChannelError> {
        self.awaited(&block, Request::Write { to, imm: None }).await.map(drop)
    }

    /// Writes `block` to the start of `to`, tells the peer `imm`, and waits until both are there.
    ///
    /// # Errors
    ///
    /// As [`AsyncChannel::send`].
    pub async fn write_with_imm(
        &self,
        block: Block,
        to: RemoteBlock,
        imm: u32,
    ) -> Result<(), ChannelError> {
        self.awaited(&block, Request::Write { to, imm: Some(imm) }).await.map(drop)
    }

    /// Reads the start of `from` into `block`.
    ///
    /// # Errors
    ///
    /// As [`AsyncChannel::send`].
    pub async fn read(&self, block: Block, from: RemoteBlock) -> Result<(), ChannelError> {
        self.awaited(&block, Request::Read { from }).await.map(drop)
    }

    /// Adds to the peer's 8 bytes at the start of `at`, wrapping, and returns what was there, which
    /// `block` has too.
    ///
    /// # Errors
    ///
    /// As [`AsyncChannel::send`].
    pub async fn fetch_add(
        &self,
        block: Block,
        at: RemoteBlock,
        add: u64,
    ) -> Result<u64, ChannelError> {
        word(&self.awaited(&block, Request::FetchAdd { at, add }).await?)
    }

    /// Puts `swap` in the place of the peer's 8 bytes at the start of `at` if they equal `compare`,
    /// and returns what was there, which `block` has too.
    ///
    /// # Errors
    ///
    /// As [`AsyncChannel::send`].
    pub async fn compare_swap(
        &self,
        block: Block,
        at: RemoteBlock,
        compare: u64,
        swap: u64,
    ) -> Result<u64, ChannelError> {
        word(&self.awaited(&block, Request::CompareSwap { at, compare, swap }).await?)
    }

    /// Waits for something to arrive in the oldest of the posted receives. Cancel-safe.
    ///
    /// # Errors
    ///
    /// As [`Channel::recv`], but it waits for as long as it takes.
    pub async fn recv(&self) -> Result<Event, ChannelError> {
        let event = self.until(|channel| channel.take_receive()).await?;
        self.channel.judge(event)
    }

    /// Waits for the next event of posted work. Cancel-safe.
    ///
    /// # Errors
    ///
    /// What ended the channel, once all events are taken; otherwise as [`Channel::poll`].
    pub async fn event(&self) -> Result<Event, ChannelError> {
        self.until(|channel| match channel.poll()? {
            Some(event) => Ok(Some(event)),
            None => channel.failure().map_or(Ok(None), Err),
        })
        .await
    }

    /// Waits until all that was posted is done.
    ///
    /// # Errors
    ///
    /// As [`Channel::drain`], but it waits for as long as it takes.
    pub async fn drain(&self) -> Result<(), ChannelError> {
        self.channel.nudge()?;
        self.until(|channel| Ok(channel.is_drained()?.then_some(()))).await
    }

    /// Waits until the channel can be used: at once, or when a client has come back to its server
    /// ([`crate::Config::reconnect`]). Cancel-safe.
    ///
    /// # Errors
    ///
    /// What ended it, if it will not be used again.
    pub async fn up(&self) -> Result<(), ChannelError> {
        let channel = &self.channel;
        let is_up = || match channel.failure() {
            None => Some(Ok(())),
            Some(failure) => channel.shared().is_over().then_some(Err(failure)),
        };
        poll_fn(|context| {
            // Registered before the look, so that nothing is missed in between.
            channel.register(context.waker());
            is_up().map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }

    /// Posts work that is claimed, and waits for its end.
    async fn awaited(&self, block: &Block, request: Request) -> Result<Event, ChannelError> {
        let ticket = self
            .until(|channel| match channel.shared().post(block.clone(), request, AWAITED) {
                Ok(ticket) => Ok(Some(ticket)),
                // Places that others hold will be free soon, unless they wait for us.
                Err(full @ ChannelError::Full { .. }) if channel.is_held_up() => Err(full),
                Err(ChannelError::Full { .. }) => Ok(None),
                Err(error) => Err(error),
            })
            .await?;
        // Dropped before its end, the work's event is dropped, too.
        let claim = Claimed { channel: &self.channel, ticket };
        let event = self.until(|channel| channel.take_claimed(ticket)).await?;
        std::mem::forget(claim);
        self.channel.judge(event)
    }

    async fn until<T>(
        &self,
        mut done: impl FnMut(&Channel) -> Result<Option<T>, ChannelError>,
    ) -> Result<T, ChannelError> {
        until(&self.channel, |_| (), || done(&self.channel)).await
    }
}

/// Work with a waiter for its event.
struct Claimed<'a> {
    channel: &'a Channel,
    ticket: crate::Ticket,
}

impl Drop for Claimed<'_> {
    fn drop(&mut self) {
        self.channel.abandon(self.ticket);
    }
}

/// A messenger that tasks wait on.
///
/// [`AsyncServerSession`] has an example.
#[derive(Clone, Debug)]
pub struct AsyncMessenger {
    messenger: Messenger,
    channel: AsyncChannel,
}

impl AsyncMessenger {
    /// Lets tasks of the current runtime wait on `messenger`.
    ///
    /// # Errors
    ///
    /// No descriptors left.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    pub fn new(messenger: Messenger) -> io::Result<Self> {
        let channel = AsyncChannel::new(messenger.channel().clone())?;
        Ok(Self { messenger, channel })
    }

    /// The messenger.
    pub fn messenger(&self) -> &Messenger {
        &self.messenger
    }

    /// Sends a copy of `message`, when there is room for it. Cancel-safe: it was sent, or not at all.
    ///
    /// # Errors
    ///
    /// As [`Messenger::send`], but it waits for as long as it takes.
    pub async fn send(&self, message: &[u8]) -> Result<(), MessageError> {
        self.until(|messenger| Ok(messenger.try_send(message)?.then_some(()))).await
    }

    /// Waits for the next message. Cancel-safe: the READ of a long message goes on, and the next call
    /// takes it.
    ///
    /// # Errors
    ///
    /// As [`Messenger::recv`], but it waits for as long as it takes.
    pub async fn recv(&self) -> Result<Message, MessageError> {
        self.until(Messenger::try_recv).await
    }

    /// Waits until the peer has everything that was sent.
    ///
    /// # Errors
    ///
    /// As [`Messenger::flush`].
    pub async fn flush(&self) -> Result<(), MessageError> {
        self.until(|messenger| Ok(messenger.is_flushed()?.then_some(()))).await
    }

    /// The messages that come, one after the other, until the peer has closed the endpoint.
    pub fn messages(&self) -> Messages<'_> {
        Messages { messenger: self }
    }

    async fn until<T>(
        &self,
        mut done: impl FnMut(&Messenger) -> Result<Option<T>, MessageError>,
    ) -> Result<T, MessageError> {
        let messenger = &self.messenger;
        let register = |waker: &Waker| messenger.register(waker);
        until(self.channel.channel(), register, || done(messenger)).await
    }
}

/// Messages, one after the other.
///
/// [`AsyncServerSession`] has an example.
#[derive(Debug)]
pub struct Messages<'a> {
    messenger: &'a AsyncMessenger,
}

impl Messages<'_> {
    /// Waits for the next one; `None` when the peer has closed the endpoint. Cancel-safe.
    ///
    /// # Errors
    ///
    /// As [`AsyncMessenger::recv`].
    pub async fn next(&mut self) -> Result<Option<Message>, MessageError> {
        match self.messenger.recv().await {
            Ok(message) => Ok(Some(message)),
            Err(MessageError::Channel(ChannelError::PeerGone(crate::Departure::Closed))) => {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

/// Waits until `done` has an answer, which is asked again whenever something has happened on the channel, or, if
/// wakers are left with `register`, elsewhere.
async fn until<T, E: From<ChannelError>>(
    channel: &Channel,
    register: impl Fn(&Waker),
    mut done: impl FnMut() -> Result<Option<T>, E>,
) -> Result<T, E> {
    poll_fn(|context| {
        if let Some(answer) = done()? {
            return Poll::Ready(Ok(answer));
        }
        // Registered before the last look, so that nothing is missed in between.
        channel.register(context.waker());
        register(context.waker());
        channel.reap()?;
        if let Some(answer) = done()? {
            return Poll::Ready(Ok(answer));
        }
        if channel.shared().source().is_polled() {
            context.waker().wake_by_ref();
        }
        Poll::Pending
    })
    .await
}

/// Starts the task that takes completions, unless it runs or is not needed.
fn drive(channel: &Arc<Shared>) -> io::Result<()> {
    let source = channel.source();
    let bed = source.bed();
    let Some(events) = bed.channel() else {
        return Ok(());
    };
    let mut served = bed.served.lock();
    if served.is_none() {
        bed.share()?;
        let events = AsyncCompChannel::new(events.clone())?;
        tokio::spawn(take(Arc::clone(bed), events));
    }
    let sources = served.get_or_insert_default();
    let is_new = sources.insert(source.number(), Arc::downgrade(source)).is_none();
    drop(served);
    if is_new {
        empty(source);
    }
    Ok(())
}

/// Takes what has completed, and has the next completion raise an event.
fn empty(source: &Source) {
    source.arm();
    while matches!(source.reap(), Ok(true)) {
        source.arm();
    }
}

/// Ends the service when the task does, so that another can begin.
struct Service {
    bed: Arc<Bed>,
    ended: bool,
}

impl Drop for Service {
    fn drop(&mut self) {
        if !self.ended {
            *self.bed.served.lock() = None;
        }
    }
}

/// Takes completions for as long as there are waiters for them.
async fn take(bed: Arc<Bed>, events: AsyncCompChannel) {
    let mut service = Service { bed: Arc::clone(&bed), ended: false };
    // The queue whose event this task has taken.
    let mut fired = None;
    loop {
        let epoch = bed.epoch();
        let Some(due) = due(&bed, fired) else {
            service.ended = true; // Another may have begun.
            return;
        };
        due.iter().for_each(|source| empty(source));
        drop(due);
        let mut event = pin!(events.event());
        let woken = poll_fn(|context| {
            // Threads that sleep in the same bed may take the event.
            bed.register(context.waker());
            if bed.epoch() != epoch {
                return Poll::Ready(Ok(None));
            }
            event.as_mut().poll(context).map(|event| event.map(|event| Some(event.context())))
        });
        let Ok(number) = woken.await else {
            return; // The runtime ends.
        };
        fired = number;
        if fired.is_some() {
            bed.kick(); // Threads may sleep for the event.
        }
    }
}

/// The sources to look at: the one whose queue has fired, or all if threads have taken events; `None`,
/// and the end of the service, if there are none any more.
fn due(bed: &Bed, fired: Option<u64>) -> Option<Vec<Arc<Source>>> {
    let mut served = bed.served.lock();
    let sources = served.as_ref().filter(|sources| !sources.is_empty());
    let due = sources.map(|sources| match (bed.has_taken(), fired) {
        (true, _) => sources.values().filter_map(Weak::upgrade).collect(),
        (false, Some(number)) => sources.get(&number).and_then(Weak::upgrade).into_iter().collect(),
        (false, None) => Vec::new(),
    });
    if due.is_none() {
        *served = None;
    }
    due
}
