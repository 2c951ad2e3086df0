//! The inside of a channel: posting, reaping, and noticing that the peer is gone.
//!
//! A channel is a queue pair, a completion queue of its own or a shared one (`source.rs`), and two
//! rings (`ring.rs`) that know what is in flight. Everything happens under one mutex (`adverb_sys::futex_mutex`), which
//! is not held while waiting. The queue is polled by threads that wait or poll, and by the threads of handlers;
//! each completion is noted in its ring, for the thread that it is for.
//!
//! # Safety
//!
//! 1. Addresses and keys of local memory come from the `Mr` of a [`Buffer`](crate::Buffer) and from
//!    nowhere else. An `Mr` never lends a reference to its bytes, so there is none that work could
//!    make untrue, whatever it does and whenever it ends.
//! 2. The [`Block`] that work uses lies in a ring from before the queue's lock is given back until
//!    the work has completed, and keeps the memory registered. The queue pair, and what watches it, are
//!    declared before the rings, and nothing else has it for longer than a lock, so it ends before they let
//!    go; another takes its place only when all work has ended.
//! 3. A vector of events is said to be longer by one only when the place behind its last event, which is
//!    part of its capacity, has been written.

use super::Channel;
use crate::adapter::Adapter;
use crate::buffer::Block;
use crate::config::Signal;
use crate::error::{ChannelError, Route};
use crate::frame::Name;
use crate::handler::Handler;
use crate::line::Line;
#[cfg(feature = "tokio")]
use crate::line::Stage;
use crate::link::Departure;
use crate::remote::RemoteBlock;
use crate::ring::{Claim, Event, Fate, Operation, Queue, Ring, Ticket};
use crate::set_up::Unlinked;
use crate::source::{Places, Source};
use adverb_sys::futex_mutex::{FutexGuard, FutexMutex};
use adverb_verbs::locks::Mutex;
use adverb_verbs::{
    Imm, PollError, PostError, Qp, QpCounters, Qpn, Rc, ReceiveWork, RemoteSlice, SendData,
    SendKind, SendTo, SendWork, WcOpcode, WcStatus, WorkCompletion,
};
use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock, Weak};
use std::task::Waker;
use std::thread;
use tracing::{debug, warn};

pub(crate) struct Shared {
    pub(super) name: Name,
    places: Places,
    /// The queue pair, for questions about it that must not wait for the lock of the state.
    watched: Mutex<Arc<Qp<Rc>>>,
    state: FutexMutex<State>,
    pub(super) line: Arc<Line>,
    pub(super) adapter: Adapter,
    handler: OnceLock<Arc<dyn Handler>>,
    /// Held by the thread that handles events.
    handling: Mutex<()>,
    /// To be put among those that are ready.
    itself: Weak<Self>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("name", &self.name).finish_non_exhaustive()
    }
}

pub(super) struct State {
    pub(super) qp: Arc<Qp<Rc>>,
    /// The number of the link that the queue pair belongs to.
    link: u32,
    pub(super) sends: Ring,
    pub(super) receives: Ring,
    /// Work posted since the last that asked for a completion.
    pub(super) unsignaled: u32,
    /// One piece of work in so many asks for one.
    signal_every: u32,
    /// What went wrong first.
    pub(super) failure: Option<Failure>,
    /// What it was before the peer was found again.
    before: Option<Failure>,
    /// Where completions are put when they are taken.
    completions: [WorkCompletion; COMPLETIONS_MAX],
    /// How the last probe ended that came over the channel's queue, and of which queue pair.
    probed: Option<(Qpn, WcStatus)>,
    /// Where inline data is put together.
    inline: Box<[u8]>,
    /// It is among those that are ready, for its handler.
    is_ready: bool,
    /// The handler was told that the peer is gone, or will be by another channel.
    is_quiet: bool,
    /// Tasks that wait for events.
    wakers: Vec<Waker>,
}

/// What ended a channel.
#[derive(Clone, Copy, Debug)]
pub(super) enum Failure {
    Gone(Departure),
    Work { operation: Operation, status: WcStatus },
}

impl Failure {
    pub(super) const fn error(self) -> ChannelError {
        match self {
            Self::Gone(how) => ChannelError::PeerGone(how),
            Self::Work { operation, status } => ChannelError::Broken { operation, status },
        }
    }
}

/// What is to be done with a block.
#[derive(Clone, Copy)]
pub(crate) enum Request {
    Send { imm: Option<u32> },
    Write { to: RemoteBlock, imm: Option<u32> },
    Read { from: RemoteBlock },
    FetchAdd { at: RemoteBlock, add: u64 },
    CompareSwap { at: RemoteBlock, compare: u64, swap: u64 },
}

impl Request {
    /// What the device is asked for, and the peer's block, if there is one that fits.
    #[inline(always)]
    fn parts(
        self,
        block: &Block,
    ) -> Result<(Operation, Option<RemoteBlock>, SendKind), ChannelError> {
        Ok(match self {
            Self::Send { imm } => (Operation::Send, None, SendKind::Send { imm: imm.map(Imm) }),
            Self::Write { to, imm } => {
                check_length(block, to)?;
                let RemoteSlice { addr: va, rkey } = to.start();
                (Operation::Write, Some(to), SendKind::Write { va, rkey, imm: imm.map(Imm) })
            }
            Self::Read { from } => {
                check_length(block, from)?;
                let RemoteSlice { addr: va, rkey } = from.start();
                (Operation::Read, Some(from), SendKind::Read { va, rkey })
            }
            Self::FetchAdd { at, add } => {
                check_word(block, at)?;
                let RemoteSlice { addr: va, rkey } = at.start();
                (Operation::FetchAdd, Some(at), SendKind::FetchAdd { va, rkey, add })
            }
            Self::CompareSwap { at, compare, swap } => {
                check_word(block, at)?;
                let RemoteSlice { addr: va, rkey } = at.start();
                let kind = SendKind::CompareSwap { va, rkey, compare, swap };
                (Operation::CompareSwap, Some(at), kind)
            }
        })
    }
}

/// How work is posted.
#[derive(Clone, Copy)]
pub(crate) struct Posting {
    claim: Claim,
    signal: bool,
}

pub(super) const POSTED: Posting = Posting { claim: Claim::Poll, signal: false };
pub(crate) const AWAITED: Posting = Posting { claim: Claim::Waiter, signal: true };

impl State {
    /// The event of work that a caller has claimed, if it has ended.
    #[inline]
    pub(super) fn take_claimed(&mut self, ticket: Ticket) -> Result<Option<Event>, ChannelError> {
        match self.ring(ticket.queue).take(ticket.number) {
            Fate::Pending => Ok(None),
            Fate::Done(event) => Ok(Some(event)),
            Fate::Taken => Err(ChannelError::Taken(ticket)),
        }
    }

    #[inline]
    pub(super) fn ring(&mut self, queue: Queue) -> &mut Ring {
        match queue {
            Queue::Send => &mut self.sends,
            Queue::Receive => &mut self.receives,
        }
    }

    /// A poll may get an event without looking for completions.
    #[inline]
    pub(super) fn has_untaken(&self) -> bool {
        self.sends.untaken() + self.receives.untaken() > 0
    }

    /// A poll would get an event.
    pub(super) fn has_event(&mut self) -> bool {
        self.receives.has_event() || self.sends.has_event()
    }

    #[inline]
    pub(super) fn next_event(&mut self) -> Option<Event> {
        match self.receives.next() {
            Some(event) => Some(event),
            None => self.sends.next(),
        }
    }

    /// Takes as many events as there is room for.
    #[inline]
    pub(super) fn take_events(&mut self, events: &mut Vec<Event>) {
        self.receives.take_into(events);
        self.sends.take_into(events);
    }

    /// Notes completions.
    #[inline]
    fn note(&mut self, count: usize) {
        let Self { sends, receives, failure, completions, probed, .. } = self;
        for completion in completions.iter().take(count) {
            let Told { ticket, status, arrived } = told(completion);
            if ticket == Ticket::PROBE {
                *probed = Some((completion.qp, status));
                continue;
            }
            let operation = match ticket.queue {
                Queue::Send => sends.complete(ticket.number, status, arrived),
                Queue::Receive => receives.complete(ticket.number, status, arrived),
            };
            note_cause(operation, status, failure);
        }
    }

    /// Notes completions, and takes the first event that is for polls.
    #[inline]
    fn note_and_take(&mut self, count: usize) -> Option<Event> {
        if count == 1 {
            let [completion, ..] = &self.completions;
            let Told { ticket, status, arrived } = told(completion);
            let ring = match ticket.queue {
                Queue::Send => &mut self.sends,
                Queue::Receive => &mut self.receives,
            };
            if status == WcStatus::Success && ring.is_next(ticket.number) {
                return ring.finish_next(arrived);
            }
        }
        self.note(count);
        self.next_event()
    }

    /// Notes completions, and takes events as far as there is room.
    #[inline]
    fn note_into(&mut self, count: usize, events: &mut Vec<Event>) {
        let Self { sends, receives, failure, completions, probed, .. } = self;
        for completion in completions.iter().take(count) {
            let Told { ticket, status, arrived } = told(completion);
            let ring = match ticket.queue {
                Queue::Send => &mut *sends,
                Queue::Receive => &mut *receives,
            };
            if status == WcStatus::Success
                && ring.is_next(ticket.number)
                && let Some(place) = events.spare_capacity_mut().first_mut()
                && let Some(event) = ring.finish_next(arrived)
            {
                place.write(event);
                let len = events.len() + 1;
                // SAFETY: the place is the first of the spare capacity, and was just written (rule 3).
                unsafe { events.set_len(len) };
            } else if ticket == Ticket::PROBE {
                *probed = Some((completion.qp, status));
            } else {
                let operation = ring.complete(ticket.number, status, arrived);
                note_cause(operation, status, failure);
            }
        }
        if self.has_untaken() {
            self.take_events(events);
        }
    }

    fn wake(&mut self) {
        for waker in self.wakers.drain(..) {
            waker.wake();
        }
    }
}

/// What a completion says.
struct Told {
    ticket: Ticket,
    status: WcStatus,
    /// Of a receive: what came.
    arrived: Option<(Operation, usize, Option<u32>)>,
}

#[inline(always)]
fn told(completion: &WorkCompletion) -> Told {
    let ticket = Ticket::from_wr_id(completion.wr_id);
    let arrived = match ticket.queue {
        Queue::Send => None,
        Queue::Receive => {
            let bytes = usize::try_from(completion.byte_len).unwrap_or(usize::MAX);
            let imm = completion.imm.map(|Imm(imm)| imm);
            let operation = match completion.opcode == WcOpcode::ReceiveRdmaWithImm {
                true => Operation::WriteReceived,
                false => Operation::Receive,
            };
            Some((operation, bytes, imm))
        }
    };
    Told { ticket, status: completion.status, arrived }
}

/// Notes why work has failed, if it has, and was the first to.
#[inline(always)]
fn note_cause(operation: Operation, status: WcStatus, failure: &mut Option<Failure>) {
    if status != WcStatus::Success && status != WcStatus::WorkRequestFlushed && failure.is_none() {
        warn!(%operation, ?status, "work has failed, and the channel with it");
        *failure = Some(Failure::Work { operation, status });
    }
}

impl Shared {
    pub(super) fn new(unlinked: Unlinked, line: &Arc<Line>, adapter: &Adapter) -> Arc<Self> {
        let queues = &adapter.config().queues;
        let inline = usize::try_from(queues.inline_bytes).unwrap_or(0);
        let Unlinked { name, qp, places } = unlinked;
        let number = qp.number().get();
        let qp = Arc::new(qp);
        let watched = Mutex::new(Arc::clone(&qp));
        let state = State {
            qp,
            link: line.link().number(),
            sends: Ring::new(Queue::Send, queues.send_depth),
            receives: Ring::new(Queue::Receive, queues.receive_depth),
            unsignaled: 0,
            signal_every: match queues.signal {
                Signal::All => 1,
                Signal::Every(count) => count.get(),
            },
            failure: None,
            before: None,
            completions: [NO_COMPLETION; COMPLETIONS_MAX],
            probed: None,
            inline: vec![0; inline].into(),
            is_ready: false,
            is_quiet: false,
            wakers: Vec::new(),
        };
        let shared = Arc::new_cyclic(|itself| Self {
            name,
            places,
            watched,
            state: FutexMutex::new(state),
            line: Arc::clone(line),
            adapter: adapter.clone(),
            handler: OnceLock::new(),
            handling: Mutex::new(()),
            itself: Weak::clone(itself),
        });
        shared.source().add(number, Arc::downgrade(&shared));
        shared
    }

    pub(crate) fn title(&self) -> &Name {
        &self.name
    }

    pub(crate) fn handler(&self) -> Option<&Arc<dyn Handler>> {
        self.handler.get()
    }

    #[inline]
    pub(crate) fn source(&self) -> &Arc<Source> {
        self.places.source()
    }

    /// Packets of the peer's that have come.
    pub(crate) fn packets_received(&self) -> u64 {
        self.watched.lock().counters().rcvd_pkts
    }

    /// Hands events to `handler` from now on, unless there is one.
    pub(super) fn set_handler(&self, handler: Arc<dyn Handler>) {
        let _ = self.handler.set(handler);
        self.announce(&mut self.lock());
    }

    #[inline]
    pub(super) fn lock(&self) -> FutexGuard<'_, State> {
        self.state.lock()
    }

    /// Whether work that will use `block` can be posted to a queue.
    #[inline(always)]
    fn check(
        &self,
        state: &mut State,
        queue: Queue,
        operation: Operation,
        block: &Block,
    ) -> Result<(), ChannelError> {
        if !self.adapter.is(block.buffer().adapter()) {
            return Err(ChannelError::ForeignBuffer);
        }
        if let Some(failure) = state.failure {
            return Err(failure.error());
        }
        if state.ring(queue).room() == 0 {
            let queues = &self.adapter.config().queues;
            let depth = match queue {
                Queue::Send => queues.send_depth,
                Queue::Receive => queues.receive_depth,
            };
            return Err(ChannelError::Full { operation, depth });
        }
        Ok(())
    }

    /// Posts a request for `block`.
    #[inline(always)]
    pub(crate) fn post(
        &self,
        block: Block,
        request: Request,
        how: Posting,
    ) -> Result<Ticket, ChannelError> {
        let (operation, remote, kind) = request.parts(&block)?;
        let state = &mut *self.lock();
        self.check(state, Queue::Send, operation, &block)?;
        if remote.is_some_and(|remote| !remote.is_of(state.link)) {
            return Err(ChannelError::OldBuffer);
        }
        let sges = [block.sge()];
        let outward = matches!(operation, Operation::Send | Operation::Write);
        let data = match state.inline.get_mut(..block.len()) {
            Some(inline) if outward && !inline.is_empty() => {
                block.read(0, inline).map_err(|_| ChannelError::ForeignBuffer)?;
                SendData::Inline(inline)
            }
            Some(_) | None => SendData::Gather(&sges),
        };
        let signaled =
            how.signal || state.sends.room() == 1 || state.unsignaled + 1 >= state.signal_every;
        let ticket = state.sends.next_ticket();
        let work = [SendWork {
            to: SendTo::Peer,
            wr_id: ticket.to_wr_id(),
            kind,
            data,
            signaled,
            solicited: false,
            fence: false,
            buffer: None,
        }];
        // SAFETY: `sges` is the range of a block, to which there are no references (rule 1); the
        // block is kept until the work has completed (rule 2), for which it is put into the ring
        // below, before the lock is given back.
        let posted = unsafe { state.qp.post_send(&work) };
        posted.map_err(|refused| ChannelError::Post(refused.error))?;
        state.sends.post(operation, Some(block), how.claim);
        state.unsignaled = match signaled {
            true => 0,
            false => state.unsignaled + 1,
        };
        Ok(ticket)
    }

    #[inline]
    pub(super) fn post_receive(&self, block: Block) -> Result<Ticket, ChannelError> {
        let state = &mut *self.lock();
        self.check(state, Queue::Receive, Operation::Receive, &block)?;
        let sges = [block.sge()];
        let ticket = state.receives.next_ticket();
        let work = [ReceiveWork { wr_id: ticket.to_wr_id(), sges: &sges, buffer: None }];
        // SAFETY: `sges` is the range of a block, to which there are no references (rule 1); the
        // block is put into the ring below, before the lock is given back (rule 2).
        let posted = unsafe { state.qp.post_recv(&work) };
        posted.map_err(|refused| ChannelError::Post(refused.error))?;
        state.receives.post(Operation::Receive, Some(block), Claim::Poll);
        Ok(ticket)
    }

    /// Posts a WRITE of nothing, which completes when all work before it has.
    pub(super) fn post_marker(&self, state: &mut State) -> Result<(), ChannelError> {
        let ticket = state.sends.next_ticket();
        // There is room: the work that fills the queue asks for a completion itself.
        debug_assert!(state.sends.room() > 0, "there is room while `unsignaled` is not 0");
        post_nothing(&state.qp, ticket.to_wr_id()).map_err(ChannelError::Post)?;
        state.sends.post(Operation::Write, None, Claim::Poll);
        state.unsignaled = 0;
        Ok(())
    }

    /// Takes what has completed; false if nothing had. The lock is let go meanwhile if the queue is
    /// shared.
    #[inline]
    pub(super) fn reap<'a>(
        &'a self,
        mut state: FutexGuard<'a, State>,
    ) -> Result<(FutexGuard<'a, State>, bool), ChannelError> {
        if self.source().is_shared() {
            drop(state);
            let reaped = self.source().reap()?;
            return Ok((self.lock(), reaped));
        }
        let reaped = self.reap_here(&mut state)?;
        Ok((state, reaped))
    }

    /// Takes what has completed on a queue that is the channel's own; false if nothing had.
    ///
    /// Here, as in the two calls that follow and in what calls them, neither the lock's guard nor an
    /// event is moved about: what is written in small pieces and then read in large ones is not to be
    /// had before all earlier writes are done, of which some are to memory that another processor has.
    #[inline]
    pub(super) fn reap_here(&self, state: &mut State) -> Result<bool, PollError> {
        let count = self.source().cq().poll(&mut state.completions)?;
        if count > 0 {
            state.note(count);
            self.announce(state);
        }
        Ok(count > 0)
    }

    /// As [`Shared::reap_here`], and takes an event of it.
    #[inline]
    pub(super) fn reap_one(&self, state: &mut State) -> Result<Option<Event>, ChannelError> {
        let count = self.source().cq().poll(&mut state.completions)?;
        if count == 0 {
            return Ok(None);
        }
        self.announce(state);
        Ok(state.note_and_take(count))
    }

    /// As [`Shared::reap_here`], and takes events as far as there is room.
    #[inline]
    pub(super) fn reap_many(
        &self,
        state: &mut State,
        events: &mut Vec<Event>,
    ) -> Result<(), ChannelError> {
        let count = self.source().cq().poll(&mut state.completions)?;
        if count > 0 {
            state.note_into(count, events);
            self.announce(state);
        }
        Ok(())
    }

    /// Takes what has completed on a queue that is the channel's own, and says how a probe of queue pair
    /// `qp`, which the channel does not have yet, has ended.
    pub(crate) fn probed(&self, qp: Qpn) -> Result<Option<WcStatus>, PollError> {
        let state = &mut *self.lock();
        self.reap_here(state)?;
        Ok(state.probed.take_if(|(known, _)| *known == qp).map(|(_, status)| status))
    }

    /// Takes what has completed on a queue that is the channel's own; false if nothing had.
    pub(crate) fn reap_own(&self) -> Result<bool, PollError> {
        self.reap_here(&mut self.lock())
    }

    /// Takes in a completion that came over a shared queue.
    pub(crate) fn take_in(&self, completion: &WorkCompletion) {
        let state = &mut *self.lock();
        let Told { ticket, status, arrived } = told(completion);
        let operation = state.ring(ticket.queue).complete(ticket.number, status, arrived);
        note_cause(operation, status, &mut state.failure);
        self.announce(state);
    }

    /// Something has completed: tells tasks that wait, and the threads of handlers.
    #[inline]
    fn announce(&self, state: &mut State) {
        if !state.wakers.is_empty() {
            state.wake();
        }
        if self.handler.get().is_some() && self.source().is_shared() && !state.is_ready {
            state.is_ready = true;
            if let Some(itself) = self.itself.upgrade() {
                self.source().put_ready(itself);
            }
        }
    }

    /// Has a task woken when something completes.
    #[cfg(feature = "tokio")]
    pub(super) fn register(state: &mut State, waker: &Waker) {
        if !state.wakers.iter().any(|known| known.will_wake(waker)) {
            state.wakers.push(waker.clone());
        }
    }

    /// Hands events to the handler, unless another thread does so; false if there was none.
    pub(crate) fn serve(&self) -> bool {
        let (Some(handler), Some(itself)) = (self.handler.get(), self.itself.upgrade()) else {
            return false;
        };
        let mut any = false;
        loop {
            // The thread that has it looks once more after it has let go.
            let Some(turn) = self.handling.try_lock() else {
                return any;
            };
            let channel = Channel::of(Arc::clone(&itself));
            loop {
                let mut state = self.lock();
                state.is_ready = false;
                let Some(event) = state.next_event() else {
                    break;
                };
                drop(state);
                any = true;
                handle(handler.as_ref(), &channel, event);
            }
            drop(turn);
            let mut state = self.lock();
            if !state.has_event() {
                self.say_gone(handler.as_ref(), state);
                return any;
            }
        }
    }

    /// Tells the handler, once for all channels, that the peer is gone.
    fn say_gone(&self, handler: &dyn Handler, mut state: FutexGuard<'_, State>) {
        let Some(Failure::Gone(how)) = state.failure else {
            return;
        };
        if state.is_quiet || state.sends.in_flight() + state.receives.in_flight() > 0 {
            return;
        }
        state.is_quiet = true;
        drop(state); // The handler may use the channel.
        let link = self.line.link();
        let before = link.quiet_channels.fetch_add(1, Ordering::AcqRel);
        if before + 1 == link.peer.channels.len() {
            handler.gone(&link.peer, how);
            link.ring();
        }
    }

    /// The peer is gone: ends all work. What it sent before has arrived already, and comes first.
    ///
    /// Nothing happens if the channel belongs to another link than `link` by now.
    #[cold]
    pub(crate) fn end(&self, how: Departure, link: u32) {
        let state = self.lock();
        if state.link != link || matches!(state.failure, Some(Failure::Gone(_))) {
            return;
        }
        let Ok(mut state) = self.settle(state) else {
            return; // Nothing can be learnt from the queue any more.
        };
        state.qp.to_err();
        // What failed earlier stays the cause, unless it failed because the peer was gone.
        match state.failure {
            Some(Failure::Work { status, .. }) if !is_silence(status) => {}
            Some(Failure::Work { .. } | Failure::Gone(_)) | None => {
                state.failure = Some(Failure::Gone(how));
            }
        }
        while let Ok((again, true)) = self.reap(state) {
            state = again;
        }
        self.wake();
    }

    /// Goes on with another queue pair, over the link with the number `link`. All work has ended.
    pub(crate) fn revive(&self, unlinked: Unlinked, link: u32) {
        // Its places are none: the old ones serve the new queue pair.
        let Unlinked { qp, places: _, .. } = unlinked;
        let qp = Arc::new(qp);
        let mut state = self.lock();
        while state.sends.in_flight() + state.receives.in_flight() > 0 {
            // Another thread has taken the last completions and is about to note them.
            drop(state);
            thread::yield_now();
            match self.reap(self.lock()) {
                Ok((again, _)) => state = again,
                // Completions cannot be had any more: it stays as it is.
                Err(_) => return,
            }
        }
        self.source().rename(state.qp.number().get(), qp.number().get());
        *self.watched.lock() = Arc::clone(&qp);
        let old = std::mem::replace(&mut state.qp, qp);
        state.link = link;
        state.unsignaled = 0;
        state.before = state.failure.take();
        state.is_quiet = false;
        drop(state);
        drop(old);
    }

    /// It will not be used again, if it has failed.
    #[cfg(feature = "tokio")]
    pub(crate) fn is_over(&self) -> bool {
        self.line.stage() == Stage::Over
    }

    /// Wakes all waiters, for something has changed.
    pub(crate) fn wake(&self) {
        let mut state = self.lock();
        state.wake();
        self.announce(&mut state);
        drop(state);
        self.source().bed().kick();
    }

    /// Reaps until nothing has happened for a while. One look is not enough: the device takes so
    /// many packets at a time, and another thread may be just about to take some.
    fn settle<'a>(
        &'a self,
        mut state: FutexGuard<'a, State>,
    ) -> Result<FutexGuard<'a, State>, ChannelError> {
        self.line.catch_up();
        let mut quiet = 0;
        let mut before = arrivals(&state.qp.counters());
        // Bounded, for the peer may go on sending packets although it has gone.
        for _ in 0..SETTLING_POLLS_MAX {
            if quiet == QUIET_POLLS {
                break;
            }
            let (again, reaped) = self.reap(state)?;
            state = again;
            let after = arrivals(&state.qp.counters());
            quiet = match reaped || after != before {
                true => 0,
                false => quiet + 1,
            };
            before = after;
            thread::yield_now();
        }
        Ok(state)
    }

    /// From where to where its packets go, and how.
    pub(crate) fn route(&self) -> Route {
        let peer = Arc::clone(&self.line.link().peer);
        let path = self.watched.lock().path();
        Route { local: peer.local.1, remote: peer.gid, path }
    }

    /// The event, if its work succeeded; otherwise why it failed, as far as that is known.
    pub(super) fn judge(&self, event: Event) -> Result<Event, ChannelError> {
        let (operation, status) = (event.operation, event.status);
        if status == WcStatus::Success {
            return Ok(event);
        }
        let unanswered = || match status == WcStatus::RetryExceeded {
            true => ChannelError::Unanswered { operation, route: self.route() },
            false => ChannelError::Work { operation, status },
        };
        let cause = if status == WcStatus::WorkRequestFlushed {
            let state = self.lock();
            state.failure.or(state.before).map(Failure::error)
        } else if is_silence(status) {
            self.line.link().check().map(ChannelError::PeerGone)
        } else {
            None
        };
        Err(cause.unwrap_or_else(unanswered))
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        debug!(channel = %self.name, peer = %self.line.link().peer.addr, "channel ended");
    }
}

/// Calls what the handler has for an event.
fn handle(handler: &dyn Handler, channel: &Channel, event: Event) {
    if event.status != WcStatus::Success {
        return handler.failed(channel, event);
    }
    match event.operation {
        Operation::Send => handler.sent(channel, event),
        Operation::Write => handler.written(channel, event),
        Operation::Read => handler.read(channel, event),
        Operation::FetchAdd | Operation::CompareSwap => handler.atomic(channel, event),
        Operation::Receive => handler.received(channel, event),
        Operation::WriteReceived => handler.write_received(channel, event),
    }
}

/// Has the peer's device answer on a queue pair that no channel has yet.
pub(crate) fn post_probe(qp: &Qp<Rc>) -> Result<(), PostError> {
    post_nothing(qp, Ticket::PROBE.to_wr_id())
}

/// Posts a WRITE of nothing, which the peer acknowledges.
fn post_nothing(qp: &Qp<Rc>, wr_id: u64) -> Result<(), PostError> {
    let work = SendWork {
        to: SendTo::Peer,
        wr_id,
        kind: SendKind::Write { va: 0, rkey: adverb_verbs::Rkey(0), imm: None },
        data: SendData::Gather(&[]),
        signaled: true,
        solicited: false,
        fence: false,
        buffer: None,
    };
    // SAFETY: the request has no scatter/gather entries, so there is no memory to hold.
    unsafe { qp.post_send(&[work]) }.map_err(|refused| refused.error)
}

/// It may have failed because the peer was gone.
fn is_silence(status: WcStatus) -> bool {
    status == WcStatus::RetryExceeded || status == WcStatus::RnrRetryExceeded
}

fn check_length(block: &Block, remote: RemoteBlock) -> Result<(), ChannelError> {
    match block.len() <= remote.len() {
        true => Ok(()),
        false => Err(ChannelError::TooLong { local: block.len(), remote: remote.len() }),
    }
}

fn check_word(block: &Block, remote: RemoteBlock) -> Result<(), ChannelError> {
    let word = size_of::<u64>();
    let aligned = remote.start().addr.is_multiple_of(8);
    match block.len() == word && remote.len() >= word && aligned {
        true => Ok(()),
        false => Err(ChannelError::NotAWord),
    }
}

/// Grows with each packet that brings something. One that finds no receive is refused and sent again without end, until
/// there is one: neither that nor the refusal says that more is on its way.
/// A packet that comes early does not count, because after a refusal each packet that follows is early. A message that is
/// kept for its turn shows when it completes.
fn arrivals(counters: &QpCounters) -> u64 {
    let QpCounters { rcvd_pkts, rcvd_rnr_err, send_rnr_err, .. } = counters;
    let QpCounters { out_of_seq_request, duplicate_request, .. } = counters;
    let idle = [rcvd_rnr_err, send_rnr_err, out_of_seq_request, duplicate_request];
    rcvd_pkts.wrapping_sub(idle.into_iter().sum())
}

/// Completions taken at once.
const COMPLETIONS_MAX: usize = 16;
/// Polls in a row in which nothing happens, after which nothing is on its way.
const QUIET_POLLS: u32 = 8;
/// Polls until a peer that has gone is not waited for any more.
const SETTLING_POLLS_MAX: u32 = 10_000;
const _: () = assert!(QUIET_POLLS < SETTLING_POLLS_MAX);

const NO_COMPLETION: WorkCompletion = WorkCompletion::EMPTY;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ClientSession, Config, ServerSession};
    use std::time::{Duration, Instant};

    const LONG: Duration = Duration::from_secs(60);

    /// Goal: a message that finds no receive does not keep a connection from its end. Method: for messages of one packet and
    /// of many, what is refused again and again brings nothing, on either side; what is received does.
    #[test]
    fn what_finds_no_receive_brings_nothing_however_often_it_comes() {
        let mut server = ServerSession::bind("127.0.0.1:0", Config::default()).unwrap();
        let address = server.local_addr();
        let accepting = thread::spawn(move || server.accept(LONG));
        let client = ClientSession::new(Config::default()).unwrap().connect(address).unwrap();
        let server = accepting.join().unwrap().unwrap();
        let [to, from] = [&client, &server].map(|endpoint| endpoint.channels().first().unwrap());
        let both = || [to, from].map(|channel| channel.counters());
        for len in [8, 100_000] {
            let [block, room] = [&server, &client]
                .map(|endpoint| endpoint.adapter().buffer(1, len).unwrap().at(0).unwrap());
            let before = both().each_ref().map(arrivals);
            let refused = || both().iter().map(|all| all.send_rnr_err + all.rcvd_rnr_err).sum();
            let (start, first): (_, u64) = (Instant::now(), refused());
            from.post_send(block).unwrap();
            while refused() < first + 20 {
                assert!(start.elapsed() < LONG, "it is not refused");
                let _ = to.poll().unwrap();
                let _ = from.poll().unwrap();
            }
            let after = both().each_ref().map(arrivals);
            to.post_recv(room).unwrap();
            while to.poll().unwrap().is_none() {
                assert!(start.elapsed() < LONG, "it is not received");
            }
            let [received, _] = both().each_ref().map(arrivals);
            assert_eq!((before, received > after[0]), (after, true), "{len} bytes");
            from.drain().unwrap();
        }
    }
}
