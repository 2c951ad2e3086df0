//! The inside of a channel: posting, reaping, and noticing that the peer is gone.
//!
//! A channel is a queue pair with a completion queue of its own and two rings (`ring.rs`) that know
//! what is in flight. Everything happens under one lock, which nobody holds while waiting. The queue
//! pair is polled by whoever waits or polls; whatever completes is noted in the rings, for whoever
//! it is for.
//!
//! # Safety
//!
//! 1. Addresses and keys of local memory come from the `Mr` of a [`Buffer`](crate::Buffer) and from
//!    nowhere else. An `Mr` never lends a reference to its bytes, so there is none that work could
//!    make untrue, whatever it does and whenever it ends.
//! 2. The [`Block`] that work uses lies in a ring from before the queue's lock is given back until
//!    the work has completed, and keeps the memory registered. The queue pair is declared before the
//!    rings, so it ends before they let go.

use crate::adapter::Adapter;
use crate::buffer::Block;
use crate::config::Signal;
use crate::error::ChannelError;
use crate::frame::Name;
use crate::link::{Departure, Link};
use crate::remote::RemoteBlock;
use crate::ring::{Claim, Event, Operation, Queue, Ring, Ticket};
use crate::set_up::Unlinked;
use adverb_verbs::{
    Cq, Imm, Qp, Rc, ReceiveWork, SendData, SendKind, SendTo, SendWork, WcOpcode, WcStatus,
    WorkCompletion,
};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

pub(super) struct Shared {
    pub(super) name: Name,
    pub(super) qp: Qp<Rc>,
    cq: Cq,
    state: Mutex<State>,
    pub(super) link: Arc<Link>,
    adapter: Adapter,
}

pub(super) struct State {
    pub(super) sends: Ring,
    pub(super) receives: Ring,
    /// Work posted since the last that asked for a completion.
    pub(super) unsignaled: u32,
    /// What went wrong first.
    pub(super) failure: Option<Failure>,
    /// Where completions are put when they are taken.
    completions: [WorkCompletion; COMPLETIONS_MAX],
    /// Where inline data is put together.
    inline: Box<[u8]>,
    idle_polls: u32,
    looked: Instant,
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

/// How work is posted.
#[derive(Clone, Copy)]
pub(super) struct Posting {
    claim: Claim,
    signal: bool,
}

pub(super) const POSTED: Posting = Posting { claim: Claim::Anybody, signal: false };
pub(super) const AWAITED: Posting = Posting { claim: Claim::Waiter, signal: true };

impl State {
    #[inline]
    pub(super) fn ring(&mut self, queue: Queue) -> &mut Ring {
        match queue {
            Queue::Send => &mut self.sends,
            Queue::Receive => &mut self.receives,
        }
    }

    #[inline]
    pub(super) fn next_event(&mut self) -> Option<Event> {
        match self.receives.next() {
            Some(event) => Some(event),
            None => self.sends.next(),
        }
    }

    /// Notes completions.
    fn note(&mut self, count: usize) {
        let Self { sends, receives, failure, completions, .. } = self;
        for completion in completions.iter().take(count) {
            let Ticket { queue, number } = Ticket::from_wr_id(completion.wr_id);
            let status = completion.status;
            let operation = match queue {
                Queue::Send => sends.complete(number, status, None),
                Queue::Receive => {
                    let bytes = usize::try_from(completion.byte_len).unwrap_or(usize::MAX);
                    let imm = completion.imm.map(|Imm(imm)| imm);
                    let operation = match completion.opcode == WcOpcode::ReceiveRdmaWithImm {
                        true => Operation::WriteReceived,
                        false => Operation::Receive,
                    };
                    receives.complete(number, status, Some((operation, bytes, imm)))
                }
            };
            let is_cause = status != WcStatus::Success && status != WcStatus::WorkRequestFlushed;
            if is_cause && failure.is_none() {
                *failure = Some(Failure::Work { operation, status });
            }
        }
    }
}

impl Shared {
    pub(super) fn new(unlinked: Unlinked, link: &Arc<Link>, adapter: &Adapter) -> Self {
        let queues = &adapter.config().queues;
        let inline = usize::try_from(queues.inline_bytes).unwrap_or(0);
        let Unlinked { name, qp, cq } = unlinked;
        let state = State {
            sends: Ring::new(Queue::Send, queues.send_depth),
            receives: Ring::new(Queue::Receive, queues.receive_depth),
            unsignaled: 0,
            failure: None,
            completions: [NO_COMPLETION; COMPLETIONS_MAX],
            inline: vec![0; inline].into(),
            idle_polls: 0,
            looked: Instant::now(),
        };
        Self {
            name,
            qp,
            cq,
            state: Mutex::new(state),
            link: Arc::clone(link),
            adapter: adapter.clone(),
        }
    }

    #[inline]
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn post_send(
        &self,
        block: &Block,
        imm: Option<u32>,
        how: Posting,
    ) -> Result<Ticket, ChannelError> {
        let imm = imm.map(Imm);
        self.post(Operation::Send, block, SendKind::Send { imm }, how)
    }

    pub(super) fn post_write(
        &self,
        block: &Block,
        to: RemoteBlock,
        imm: Option<u32>,
        how: Posting,
    ) -> Result<Ticket, ChannelError> {
        check_length(block, to)?;
        let kind =
            SendKind::Write { va: to.start().addr, rkey: to.start().rkey, imm: imm.map(Imm) };
        self.post(Operation::Write, block, kind, how)
    }

    pub(super) fn post_read(
        &self,
        block: &Block,
        from: RemoteBlock,
        how: Posting,
    ) -> Result<Ticket, ChannelError> {
        check_length(block, from)?;
        let kind = SendKind::Read { va: from.start().addr, rkey: from.start().rkey };
        self.post(Operation::Read, block, kind, how)
    }

    pub(super) fn post_fetch_add(
        &self,
        block: &Block,
        at: RemoteBlock,
        add: u64,
        how: Posting,
    ) -> Result<Ticket, ChannelError> {
        check_word(block, at)?;
        let kind = SendKind::FetchAdd { va: at.start().addr, rkey: at.start().rkey, add };
        self.post(Operation::FetchAdd, block, kind, how)
    }

    pub(super) fn post_compare_swap(
        &self,
        block: &Block,
        at: RemoteBlock,
        (compare, swap): (u64, u64),
        how: Posting,
    ) -> Result<Ticket, ChannelError> {
        check_word(block, at)?;
        let kind =
            SendKind::CompareSwap { va: at.start().addr, rkey: at.start().rkey, compare, swap };
        self.post(Operation::CompareSwap, block, kind, how)
    }

    /// Whether work that will use `block` can be posted to a queue.
    #[inline]
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

    #[inline]
    fn post(
        &self,
        operation: Operation,
        block: &Block,
        kind: SendKind,
        how: Posting,
    ) -> Result<Ticket, ChannelError> {
        let state = &mut *self.lock();
        self.check(state, Queue::Send, operation, block)?;
        let sges = [block.sge().map_err(|_| ChannelError::ForeignBuffer)?];
        let outward = matches!(operation, Operation::Send | Operation::Write);
        let data = match state.inline.get_mut(..block.len()) {
            Some(inline) if outward && !inline.is_empty() => {
                block.read(0, inline).map_err(|_| ChannelError::ForeignBuffer)?;
                SendData::Inline(inline)
            }
            Some(_) | None => SendData::Gather(&sges),
        };
        let signaled = how.signal
            || state.sends.room() == 1
            || match self.adapter.config().queues.signal {
                Signal::All => true,
                Signal::Every(count) => state.unsignaled + 1 >= count.get(),
            };
        let ticket = state.sends.next_ticket();
        let work = SendWork {
            to: SendTo::Peer,
            wr_id: ticket.to_wr_id(),
            kind,
            data,
            signaled,
            solicited: false,
            fence: false,
            buffer: None,
        };
        // SAFETY: `sges` is the range of a block, to which there are no references (rule 1); the
        // block is kept until the work has completed (rule 2), for which it is put into the ring
        // below, before the lock is given back.
        let posted = unsafe { self.qp.post_send(&[work]) };
        posted.map_err(|(_, error)| ChannelError::Post(error))?;
        state.sends.post(operation, Some(block.clone()), how.claim);
        state.unsignaled = match signaled {
            true => 0,
            false => state.unsignaled + 1,
        };
        Ok(ticket)
    }

    pub(super) fn post_receive(&self, block: Block) -> Result<Ticket, ChannelError> {
        let state = &mut *self.lock();
        self.check(state, Queue::Receive, Operation::Receive, &block)?;
        let sges = [block.sge().map_err(|_| ChannelError::ForeignBuffer)?];
        let ticket = state.receives.next_ticket();
        let work = ReceiveWork { wr_id: ticket.to_wr_id(), sges: &sges, buffer: None };
        // SAFETY: `sges` is the range of a block, to which there are no references (rule 1); the
        // block is put into the ring below, before the lock is given back (rule 2).
        let posted = unsafe { self.qp.post_recv(&[work]) };
        posted.map_err(|(_, error)| ChannelError::Post(error))?;
        state.receives.post(Operation::Receive, Some(block), Claim::Anybody);
        Ok(ticket)
    }

    /// Posts a WRITE of nothing, which completes when all work before it has.
    pub(super) fn post_marker(&self, state: &mut State) -> Result<(), ChannelError> {
        let ticket = state.sends.next_ticket();
        let work = SendWork {
            to: SendTo::Peer,
            wr_id: ticket.to_wr_id(),
            kind: SendKind::Write { va: 0, rkey: adverb_verbs::Rkey(0), imm: None },
            data: SendData::Gather(&[]),
            signaled: true,
            solicited: false,
            fence: false,
            buffer: None,
        };
        // There is room: the work that fills the queue asks for a completion itself.
        debug_assert!(state.sends.room() > 0, "there is room while `unsignaled` is not 0");
        // SAFETY: the request has no scatter/gather entries, so there is no memory to hold.
        let posted = unsafe { self.qp.post_send(&[work]) };
        posted.map_err(|(_, error)| ChannelError::Post(error))?;
        state.sends.post(Operation::Write, None, Claim::Anybody);
        state.unsignaled = 0;
        Ok(())
    }

    /// Takes what has completed; false if nothing had.
    #[inline]
    pub(super) fn reap(&self, state: &mut State) -> Result<bool, ChannelError> {
        let count = self.cq.poll(&mut state.completions)?;
        if count == 0 {
            return Ok(false);
        }
        state.idle_polls = 0;
        state.note(count);
        Ok(true)
    }

    /// Nothing had completed: looks now and then whether the peer is still there. True if it has
    /// gone just now, and work may have ended.
    #[inline]
    pub(super) fn idle(&self, state: &mut State) -> Result<bool, ChannelError> {
        state.idle_polls = state.idle_polls.wrapping_add(1);
        if !state.idle_polls.is_multiple_of(IDLE_POLLS_PER_CLOCK) {
            return Ok(false);
        }
        self.look(state)
    }

    #[cold]
    fn look(&self, state: &mut State) -> Result<bool, ChannelError> {
        if state.looked.elapsed() < LOOK_EVERY {
            return Ok(false);
        }
        state.looked = Instant::now();
        if matches!(state.failure, Some(Failure::Gone(_))) {
            return Ok(false);
        }
        let Some(how) = self.link.check() else {
            return Ok(false);
        };
        // What the peer sent before it went has arrived already, and comes first.
        self.settle(state)?;
        self.qp.to_err();
        // What failed earlier stays the cause, unless it failed because the peer was gone.
        match state.failure {
            Some(Failure::Work { status, .. }) if !is_silence(status) => {}
            Some(Failure::Work { .. } | Failure::Gone(_)) | None => {
                state.failure = Some(Failure::Gone(how));
            }
        }
        while self.reap(state)? {}
        Ok(true)
    }

    /// Reaps until nothing has happened for a while. One look is not enough: the device takes so
    /// many packets at a time, and another thread may be just about to take some.
    fn settle(&self, state: &mut State) -> Result<(), ChannelError> {
        let mut quiet = 0;
        let mut before = self.qp.counters();
        // Bounded, for the peer may go on sending packets although it has gone.
        for _ in 0..SETTLING_POLLS_MAX {
            if quiet == QUIET_POLLS {
                break;
            }
            let reaped = self.reap(state)?;
            let after = self.qp.counters();
            quiet = match reaped || after != before {
                true => 0,
                false => quiet + 1,
            };
            before = after;
            thread::yield_now();
        }
        Ok(())
    }

    /// The event, if its work succeeded; otherwise why it failed, as far as that is known.
    pub(super) fn judge(&self, event: Event) -> Result<Event, ChannelError> {
        let (operation, status) = (event.operation, event.status);
        if status == WcStatus::Success {
            return Ok(event);
        }
        let cause = if status == WcStatus::WorkRequestFlushed {
            self.lock().failure.map(Failure::error)
        } else if is_silence(status) {
            self.link.check().map(ChannelError::PeerGone)
        } else {
            None
        };
        Err(cause.unwrap_or(ChannelError::Work { operation, status }))
    }
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

/// Completions taken at once.
const COMPLETIONS_MAX: usize = 16;
/// Polls without a completion before the clock is looked at.
const IDLE_POLLS_PER_CLOCK: u32 = 64;
/// Polls in a row in which nothing happens, after which nothing is on its way.
const QUIET_POLLS: u32 = 8;
/// Polls until a peer that has gone is not waited for any more.
const SETTLING_POLLS_MAX: u32 = 10_000;
const _: () = assert!(QUIET_POLLS < SETTLING_POLLS_MAX);
/// Time without a completion before the peer is looked for.
const LOOK_EVERY: Duration = Duration::from_millis(5);

const NO_COMPLETION: WorkCompletion = WorkCompletion::EMPTY;
