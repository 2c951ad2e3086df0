//! Channels: the operations, each posted or waited for.
//!
//! This is what users see; what happens behind it, under the channel's lock, is in
//! `channel/shared.rs`. Waiting is here, without the lock.

mod shared;

pub(crate) use self::shared::{AWAITED, Request, Shared, post_probe};
use self::shared::{Failure, POSTED, State};
use crate::adapter::Adapter;
use crate::buffer::Block;
use crate::connector::Deadline;
use crate::error::{ChannelError, Route};
use crate::handler::Handler;
use crate::line::Line;
use crate::remote::RemoteBlock;
use crate::ring::{Claim, Event, Queue, Ticket};
use crate::set_up::Unlinked;
use crate::worker;
use adverb_verbs::{QpAttr, QpCounters, Qpn};
use std::fmt;
use std::hint::spin_loop;
use std::io;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

/// A way to a peer, in both directions, on which everything stays in order.
///
/// A handle: clones are the same channel. Several threads may use it at once; each event goes to one
/// of them.
///
/// The example of the [crate](crate) waits for each piece of work. Here work is posted, and its events are taken as
/// they come:
///
/// ```
/// use adverb_session::{ClientSession, Config, Operation, Queue, ServerSession};
/// use std::{thread, time::Duration};
///
/// let mut server = ServerSession::bind("127.0.0.1:0", Config::default())?;
/// let address = server.local_addr();
/// let accepting = thread::spawn(move || server.accept(Duration::from_secs(5)));
/// let client = ClientSession::new(Config::default())?.connect(address)?;
/// let server = accepting.join().expect("no panic")?;
/// server.advertise("table", &server.adapter().buffer(8, 64)?)?;
///
/// let (channel, table) = (client.channel("data")?, client.remote_buffer("table")?);
/// let buffer = client.adapter().buffer(4, 64)?;
/// for index in 0..3 {
///     channel.post_write(buffer.at(index)?, table.at(index)?)?;
/// }
/// let last = channel.post_read(buffer.at(3)?, table.at(0)?)?;
/// assert_eq!((channel.in_flight().receives, last.number), (0, 3));
/// let event = channel.wait(last)?; // Those before it keep their events.
/// assert_eq!((event.operation, event.ticket.queue), (Operation::Read, Queue::Send));
/// let mut written = 0;
/// while let Some(event) = channel.poll()? {
///     written += usize::from(event.ok()?.operation == Operation::Write);
/// }
/// assert_eq!(written, 3);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Channel {
    shared: Arc<Shared>,
    timeout: Duration,
}

/// How much a channel has on its hands.
///
/// [`Channel`] has an example.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct InFlight {
    /// Sends, WRITEs, READs and atomics posted and not done.
    pub sends: u64,
    /// Receives posted and not done.
    pub receives: u64,
    /// Events that have not been taken.
    pub events: u64,
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Channel")
            .field("name", &self.shared.name)
            .field("qp", &self.qpn())
            .field("peer", &self.shared.line.link().peer.addr)
            .finish_non_exhaustive()
    }
}

impl Channel {
    pub(crate) fn new(unlinked: Unlinked, line: &Arc<Line>, adapter: &Adapter) -> Self {
        Self {
            timeout: adapter.config().timeouts.work_limit(),
            shared: Shared::new(unlinked, line, adapter),
        }
    }

    pub(crate) fn of(shared: Arc<Shared>) -> Self {
        Self { timeout: shared.adapter.config().timeouts.work_limit(), shared }
    }

    pub(crate) fn downgrade(&self) -> Weak<Shared> {
        Arc::downgrade(&self.shared)
    }

    /// Hands what happens to `handler`, on threads as [`crate::Config::thread_mode`] says. It stays
    /// so: a second handler is not asked. [`Channel::poll`] and [`Channel::recv`] would take events
    /// from the handler; calls that wait for their own work have it as before.
    ///
    /// # Errors
    ///
    /// No thread was started.
    pub fn handle(&self, handler: Arc<dyn Handler>) -> io::Result<()> {
        self.shared.set_handler(handler);
        worker::start(&self.shared.adapter, &self.shared)
    }

    /// Its name.
    pub fn name(&self) -> &str {
        self.shared.name.as_str()
    }

    /// The same channel for calls that wait as long as `timeout`.
    #[must_use]
    pub fn with_timeout(&self, timeout: Duration) -> Self {
        Self { shared: Arc::clone(&self.shared), timeout }
    }

    /// Its queue pair's number. A channel that has lost its peer and found it again has another.
    pub fn qpn(&self) -> Qpn {
        self.shared.lock().qp.number()
    }

    /// From where to where its packets go, and how.
    pub fn route(&self) -> Route {
        self.shared.route()
    }

    /// What its queue pair is like: its state, the way to the peer, and what it can hold.
    pub fn query(&self) -> QpAttr {
        self.shared.lock().qp.query()
    }

    /// What its queue pair has counted.
    pub fn counters(&self) -> QpCounters {
        self.shared.lock().qp.counters()
    }

    /// How much it has on its hands.
    pub fn in_flight(&self) -> InFlight {
        let state = self.shared.lock();
        InFlight {
            sends: state.sends.in_flight(),
            receives: state.receives.in_flight(),
            events: state.sends.untaken() + state.receives.untaken(),
        }
    }

    /// How much more can be posted, sends and receives.
    pub fn room(&self) -> (u64, u64) {
        let state = self.shared.lock();
        (state.sends.room(), state.receives.room())
    }

    /// What ended it, if something has.
    pub fn failure(&self) -> Option<ChannelError> {
        self.shared.lock().failure.map(Failure::error)
    }

    /// Posts a receive: `block` takes one message of the peer's, or is used up by one of its WRITEs
    /// with immediate data.
    ///
    /// # Errors
    ///
    /// [`ChannelError`]; nothing was posted then.
    #[inline]
    pub fn post_recv(&self, block: Block) -> Result<Ticket, ChannelError> {
        self.shared.post_receive(block)
    }

    /// Posts a message.
    ///
    /// # Errors
    ///
    /// [`ChannelError`]; nothing was posted then.
    #[inline]
    pub fn post_send(&self, block: Block) -> Result<Ticket, ChannelError> {
        self.shared.post(block, Request::Send { imm: None }, POSTED)
    }

    /// Posts a message with immediate data.
    ///
    /// # Errors
    ///
    /// [`ChannelError`]; nothing was posted then.
    pub fn post_send_with_imm(&self, block: Block, imm: u32) -> Result<Ticket, ChannelError> {
        self.shared.post(block, Request::Send { imm: Some(imm) }, POSTED)
    }

    /// Posts a WRITE of `block` to the start of `to`.
    ///
    /// # Errors
    ///
    /// [`ChannelError`]; nothing was posted then.
    #[inline]
    pub fn post_write(&self, block: Block, to: RemoteBlock) -> Result<Ticket, ChannelError> {
        self.shared.post(block, Request::Write { to, imm: None }, POSTED)
    }

    /// Posts a WRITE of `block` to the start of `to` that uses up one of the peer's receives to tell
    /// it `imm`.
    ///
    /// # Errors
    ///
    /// [`ChannelError`]; nothing was posted then.
    pub fn post_write_with_imm(
        &self,
        block: Block,
        to: RemoteBlock,
        imm: u32,
    ) -> Result<Ticket, ChannelError> {
        self.shared.post(block, Request::Write { to, imm: Some(imm) }, POSTED)
    }

    /// Posts a READ of the start of `from` into `block`.
    ///
    /// # Errors
    ///
    /// [`ChannelError`]; nothing was posted then.
    pub fn post_read(&self, block: Block, from: RemoteBlock) -> Result<Ticket, ChannelError> {
        self.shared.post(block, Request::Read { from }, POSTED)
    }

    /// Posts an addition to the peer's 8 bytes at the start of `at`; `block`, of 8 bytes, takes what
    /// was there.
    ///
    /// # Errors
    ///
    /// [`ChannelError`]; nothing was posted then.
    pub fn post_fetch_add(
        &self,
        block: Block,
        at: RemoteBlock,
        add: u64,
    ) -> Result<Ticket, ChannelError> {
        self.shared.post(block, Request::FetchAdd { at, add }, POSTED)
    }

    /// Posts a comparison of the peer's 8 bytes at the start of `at` with `compare`, which puts
    /// `swap` in their place if they are equal; `block`, of 8 bytes, takes what was there.
    ///
    /// # Errors
    ///
    /// [`ChannelError`]; nothing was posted then.
    pub fn post_compare_swap(
        &self,
        block: Block,
        at: RemoteBlock,
        compare: u64,
        swap: u64,
    ) -> Result<Ticket, ChannelError> {
        self.shared.post(block, Request::CompareSwap { at, compare, swap }, POSTED)
    }

    /// Sends a message and waits until the peer has it.
    ///
    /// # Errors
    ///
    /// [`ChannelError`]. After [`ChannelError::Timeout`] the work goes on.
    pub fn send(&self, block: Block) -> Result<(), ChannelError> {
        self.awaited(&block, Request::Send { imm: None }).map(drop)
    }

    /// Sends a message with immediate data and waits until the peer has it.
    ///
    /// # Errors
    ///
    /// As [`Channel::send`].
    pub fn send_with_imm(&self, block: Block, imm: u32) -> Result<(), ChannelError> {
        self.awaited(&block, Request::Send { imm: Some(imm) }).map(drop)
    }

    /// Writes `block` to the start of `to` and waits until it is there.
    ///
    /// # Errors
    ///
    /// As [`Channel::send`].
    pub fn write(&self, block: Block, to: RemoteBlock) -> Result<(), ChannelError> {
        self.awaited(&block, Request::Write { to, imm: None }).map(drop)
    }

    /// Writes `block` to the start of `to`, tells the peer `imm`, and waits until both are there.
    ///
    /// # Errors
    ///
    /// As [`Channel::send`].
    pub fn write_with_imm(
        &self,
        block: Block,
        to: RemoteBlock,
        imm: u32,
    ) -> Result<(), ChannelError> {
        self.awaited(&block, Request::Write { to, imm: Some(imm) }).map(drop)
    }

    /// Reads the start of `from` into `block`.
    ///
    /// # Errors
    ///
    /// As [`Channel::send`].
    pub fn read(&self, block: Block, from: RemoteBlock) -> Result<(), ChannelError> {
        self.awaited(&block, Request::Read { from }).map(drop)
    }

    /// Adds to the peer's 8 bytes at the start of `at`, wrapping, and returns what was there, which
    /// `block` has too.
    ///
    /// # Errors
    ///
    /// As [`Channel::send`].
    pub fn fetch_add(&self, block: Block, at: RemoteBlock, add: u64) -> Result<u64, ChannelError> {
        word(&self.awaited(&block, Request::FetchAdd { at, add })?)
    }

    /// Puts `swap` in the place of the peer's 8 bytes at the start of `at` if they equal `compare`,
    /// and returns what was there, which `block` has too.
    ///
    /// # Errors
    ///
    /// As [`Channel::send`].
    pub fn compare_swap(
        &self,
        block: Block,
        at: RemoteBlock,
        compare: u64,
        swap: u64,
    ) -> Result<u64, ChannelError> {
        word(&self.awaited(&block, Request::CompareSwap { at, compare, swap })?)
    }

    /// Waits for something to arrive in the oldest of the posted receives.
    ///
    /// Post the event's block again to keep the number of receives.
    ///
    /// # Errors
    ///
    /// [`ChannelError::NothingPosted`] if nothing can arrive; otherwise as [`Channel::send`]. What
    /// arrived before the peer went comes first.
    pub fn recv(&self) -> Result<Event, ChannelError> {
        let event = self.until(|state| match state.receives.next() {
            Some(event) => Ok(Some(event)),
            None if state.receives.awaits_anything() => Ok(None),
            None => Err(ChannelError::NothingPosted),
        })?;
        self.shared.judge(event)
    }

    /// Waits for the end of posted work.
    ///
    /// # Errors
    ///
    /// [`ChannelError::Taken`] if its event has been taken; otherwise as [`Channel::send`].
    pub fn wait(&self, ticket: Ticket) -> Result<Event, ChannelError> {
        let mut state = self.shared.lock();
        state.ring(ticket.queue).claim(ticket.number, Claim::Waiter);
        // A completion for it may not come by itself.
        if ticket.queue == Queue::Send && state.unsignaled > 0 {
            self.shared.post_marker(&mut state)?;
        }
        drop(state);
        self.finish(ticket)
    }

    /// Waits until all sends, WRITEs, READs and atomics are done. Their events stay for
    /// [`Channel::poll`].
    ///
    /// # Errors
    ///
    /// [`ChannelError::Timeout`], or what ended the channel.
    pub fn drain(&self) -> Result<(), ChannelError> {
        self.nudge()?;
        self.until(|state| Ok((state.sends.in_flight() == 0).then_some(())))?;
        self.failure().map_or(Ok(()), Err)
    }

    /// All that was posted has been done.
    #[cfg(feature = "tokio")]
    pub(crate) fn is_drained(&self) -> Result<bool, ChannelError> {
        let in_flight = self.shared.lock().sends.in_flight();
        match (in_flight, self.failure()) {
            (0, None) => Ok(true),
            (0, Some(failure)) => Err(failure),
            (1.., _) => Ok(false),
        }
    }

    /// Sees to it that all that was posted completes, although not all of it asked for that.
    pub(crate) fn nudge(&self) -> Result<(), ChannelError> {
        let mut state = self.shared.lock();
        if state.unsignaled > 0 && state.failure.is_none() {
            self.shared.post_marker(&mut state)?;
        }
        Ok(())
    }

    /// Takes an event of posted work, if there is one, and does not wait.
    ///
    /// Each piece of work has one event, also after a failure. Events of one queue come in order.
    ///
    /// # Errors
    ///
    /// [`ChannelError::Poll`] alone: work that failed says so in its event, and
    /// [`Channel::failure`] says what ended the channel.
    #[inline]
    pub fn poll(&self) -> Result<Option<Event>, ChannelError> {
        if self.shared.source().is_shared() {
            return self.poll_shared();
        }
        let state = &mut *self.shared.lock();
        if state.has_untaken()
            && let Some(event) = state.next_event()
        {
            return Ok(Some(event));
        }
        self.shared.reap_one(state)
    }

    fn poll_shared(&self) -> Result<Option<Event>, ChannelError> {
        let mut state = self.shared.lock();
        if state.has_untaken()
            && let Some(event) = state.next_event()
        {
            return Ok(Some(event));
        }
        let (mut state, reaped) = self.shared.reap(state)?;
        Ok(if reaped { state.next_event() } else { None })
    }

    /// Takes events of posted work as [`Channel::poll`] does, as many as there are and `events` has room
    /// for without more memory. Returns how many it took.
    ///
    /// # Errors
    ///
    /// As [`Channel::poll`].
    #[inline]
    pub fn poll_many(&self, events: &mut Vec<Event>) -> Result<usize, ChannelError> {
        let before = events.len();
        if self.shared.source().is_shared() {
            self.poll_many_shared(events)?;
            return Ok(events.len() - before);
        }
        let state = &mut *self.shared.lock();
        if state.has_untaken() {
            state.take_events(events);
        }
        if events.len() == before {
            self.shared.reap_many(state, events)?;
        }
        Ok(events.len() - before)
    }

    fn poll_many_shared(&self, events: &mut Vec<Event>) -> Result<(), ChannelError> {
        let before = events.len();
        let mut state = self.shared.lock();
        state.take_events(events);
        if events.len() == before {
            let (mut state, reaped) = self.shared.reap(state)?;
            if reaped {
                state.take_events(events);
            }
        }
        Ok(())
    }

    /// Waits until there is an event to poll for, or `changed`, or the channel has failed.
    pub(crate) fn until_event_or(&self, changed: impl Fn() -> bool) -> Result<(), ChannelError> {
        self.until(|state| {
            let awake = state.has_event() || state.failure.is_some() || changed();
            Ok(awake.then_some(()))
        })
    }

    /// Has all waiters look once more.
    pub(crate) fn wake(&self) {
        self.shared.wake();
    }

    /// Posts work that is claimed, and waits for its end.
    #[inline]
    fn awaited(&self, block: &Block, request: Request) -> Result<Event, ChannelError> {
        loop {
            match self.shared.post(block.clone(), request, AWAITED) {
                Ok(ticket) => return self.finish(ticket),
                // Places held by other threads that wait will be free soon.
                Err(full @ ChannelError::Full { .. }) => {
                    self.until(|state| match state.sends.room() {
                        0 if state.sends.is_held_up() => Err(full),
                        0 => Ok(None),
                        1.. => Ok(Some(())),
                    })?;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Waits for the end of work that is claimed.
    #[inline]
    fn finish(&self, ticket: Ticket) -> Result<Event, ChannelError> {
        let event = self.until(|state| state.take_claimed(ticket));
        if matches!(event, Err(ChannelError::Timeout { .. })) {
            let mut state = self.shared.lock();
            state.ring(ticket.queue).claim(ticket.number, Claim::Poll);
        }
        self.shared.judge(event?)
    }

    /// Waits until `done` has an answer, or the time is over.
    #[inline]
    fn until<T>(
        &self,
        done: impl FnMut(&mut State) -> Result<Option<T>, ChannelError>,
    ) -> Result<T, ChannelError> {
        match self.shared.source().is_polled() {
            true => self.poll_until(done),
            false => self.sleep_until(done),
        }
    }

    /// Sleeps until `done` has an answer.
    fn sleep_until<T>(
        &self,
        mut done: impl FnMut(&mut State) -> Result<Option<T>, ChannelError>,
    ) -> Result<T, ChannelError> {
        let source = self.shared.source();
        let deadline = Deadline::after(self.timeout);
        loop {
            let epoch = source.bed().epoch();
            let mut state = self.shared.lock();
            if let Some(answer) = done(&mut state)? {
                return Ok(answer);
            }
            let (state, reaped) = self.shared.reap(state)?;
            if reaped {
                continue;
            }
            source.arm();
            let (mut state, reaped) = self.shared.reap(state)?;
            if reaped {
                continue;
            }
            // Others may have taken it out of a shared queue meanwhile.
            if let Some(answer) = done(&mut state)? {
                return Ok(answer);
            }
            drop(state);
            if deadline.has_passed() {
                return Err(ChannelError::Timeout { waited: self.timeout });
            }
            let slept = source.sleep(epoch, deadline.left());
            slept.map_err(|error| ChannelError::Sleep(error.kind()))?;
        }
    }

    /// Polls until `done` has an answer.
    #[inline]
    fn poll_until<T>(
        &self,
        mut done: impl FnMut(&mut State) -> Result<Option<T>, ChannelError>,
    ) -> Result<T, ChannelError> {
        let mut deadline = None;
        for spins in 1_u32.. {
            let mut state = self.shared.lock();
            if let Some(answer) = done(&mut state)? {
                return Ok(answer);
            }
            let reaped = match self.shared.source().is_shared() {
                false => {
                    let reaped = self.shared.reap_here(&mut state)?;
                    drop(state);
                    reaped
                }
                true => {
                    drop(state);
                    self.shared.source().reap()?
                }
            };
            if reaped {
                continue;
            }
            spin_loop();
            if spins.is_multiple_of(SPINS_PER_REST) {
                // The peer may be waiting for this core.
                thread::yield_now();
                let allowed = self.timeout;
                let deadline = deadline.get_or_insert_with(|| Deadline::after(allowed));
                if deadline.has_passed() {
                    break;
                }
            }
        }
        Err(ChannelError::Timeout { waited: self.timeout })
    }
}

#[cfg(feature = "tokio")]
impl Channel {
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// The event of work that is claimed, if it has ended.
    pub(crate) fn take_claimed(&self, ticket: Ticket) -> Result<Option<Event>, ChannelError> {
        self.shared.lock().take_claimed(ticket)
    }

    /// The work has no waiter any more, and its event is dropped.
    pub(crate) fn abandon(&self, ticket: Ticket) {
        self.shared.lock().ring(ticket.queue).abandon(ticket.number);
    }

    /// The oldest receive's event, if something has arrived.
    pub(crate) fn take_receive(&self) -> Result<Option<Event>, ChannelError> {
        let mut state = self.shared.lock();
        match state.receives.next() {
            Some(event) => Ok(Some(event)),
            None if state.receives.awaits_anything() => Ok(None),
            None => Err(state.failure.map_or(ChannelError::NothingPosted, Failure::error)),
        }
    }

    pub(crate) fn is_held_up(&self) -> bool {
        self.shared.lock().sends.is_held_up()
    }

    pub(crate) fn judge(&self, event: Event) -> Result<Event, ChannelError> {
        self.shared.judge(event)
    }

    /// Has a task woken when something completes.
    pub(crate) fn register(&self, waker: &std::task::Waker) {
        Shared::register(&mut self.shared.lock(), waker);
    }

    /// Takes what has completed.
    pub(crate) fn reap(&self) -> Result<(), ChannelError> {
        self.shared.reap(self.shared.lock()).map(drop)
    }
}

/// What an atomic brought.
pub(crate) fn word(event: &Event) -> Result<u64, ChannelError> {
    let mut bytes = [0; size_of::<u64>()];
    event.block.read(0, &mut bytes).map_err(|_| ChannelError::NotAWord)?;
    Ok(u64::from_ne_bytes(bytes))
}

/// Polls of one wait before it offers its core to others.
const SPINS_PER_REST: u32 = 256;
