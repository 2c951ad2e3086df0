//! Shared receive queues: receives that many queue pairs draw from.
//!
//! A queue pair draws a receive when a message begins and copies its scatter entries to itself:
//! filling the buffers takes no lock but the queue pair's own. The queue's lock is held for as long as
//! a copy takes, and nothing else is locked meanwhile. A receive that was drawn keeps its place until
//! its message has ended, so that it can always be put back, in front of all others.
//!
//! Read IBTA Vol. 1 §10.2.9 (shared receive queues) before changing this file.

use crate::memory::local::{BufferNumber, Sge, total_len};
use crate::objects::completion::CqShared;
use crate::objects::events::{Affiliation, Element, EventKind, EventQueue};
use crate::objects::progress::Progress;
use crate::objects::qp::errors::PostError;
use crate::objects::work::{ReceiveRing, ReceiveWork};
use crate::objects::xrc::Xrcd;
use crate::sync::Mutex;
use adverb_engine::Receive;
use adverb_wire::Qpn;
use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};

/// Parameters of a shared receive queue.
#[derive(Clone, Debug)]
pub struct SrqConfig {
    /// The protection domain of its buffers.
    pub domain: u32,
    /// Comes back with its events.
    pub context: u64,
    /// Receives in it at once, 1 to [`crate::QpLimits::WR_MAX`].
    pub max_wr: u32,
    /// Pieces of a receive's buffer, 1 to [`crate::QpLimits::SGE_MAX`].
    pub max_sge: u32,
    /// Where it says that its limit was reached.
    pub events: Option<Arc<EventQueue>>,
}

/// Attributes of a shared receive queue as they are. `struct ibv_srq_attr`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[doc(alias = "ibv_srq_attr")]
pub struct SrqAttr {
    /// Receives it holds.
    pub max_wr: u32,
    /// Pieces of a receive's buffer.
    pub max_sge: u32,
    /// An event is raised once there are fewer receives than this; 0 if none is asked for.
    pub srq_limit: u32,
    /// Receives in it.
    pub posted: u32,
}

/// Error of changing a shared receive queue. The caller's mistake; nothing has changed.
#[derive(Clone, Copy, Eq, PartialEq)]
#[non_exhaustive]
pub enum SrqError {
    /// The receives in the queue do not fit.
    InUse {
        /// What was asked.
        asked: u32,
        /// Receives in the queue.
        used: u32,
    },
    /// The limit is more than the queue holds.
    Limit {
        /// What was asked.
        asked: u32,
        /// What the queue holds.
        max: u32,
    },
    /// The size is outside its bounds.
    OutOfRange {
        /// What was asked.
        asked: u32,
        /// The most that is allowed.
        max: u32,
    },
}

impl fmt::Display for SrqError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InUse { asked, used } => {
                write!(f, "{used} receives are in the queue, and {asked} would not hold them")
            }
            Self::Limit { asked, max } => {
                write!(f, "a limit of {asked} receives, but the queue holds {max} at most")
            }
            Self::OutOfRange { asked, max } => {
                write!(f, "a shared receive queue holds 1 to {max} receives, not {asked}")
            }
        }
    }
}

impl std::error::Error for SrqError {}

#[derive(Debug)]
struct State {
    ring: ReceiveRing,
    max_wr: u32,
    limit: u32,
}

impl State {
    fn posted(&self) -> u32 {
        u32::try_from(self.ring.len()).unwrap_or(u32::MAX)
    }

    /// Whether the owner is to be told that there are few; not again after that.
    fn is_low(&mut self) -> bool {
        let low = self.posted() < self.limit;
        if low {
            self.limit = 0;
        }
        low
    }
}

/// The part of a shared receive queue that queue pairs share.
#[derive(Debug)]
pub(crate) struct SrqShared {
    number: u32,
    domain: u32,
    max_sge: u32,
    state: Mutex<State>,
    /// Receives whose messages are arriving. It grows under the lock only.
    drawn: AtomicU32,
    affiliation: Arc<Affiliation>,
    /// Domain and completion queue of an XRC queue.
    tie: Option<Tie>,
}

/// Domain and completion queue of an XRC queue.
#[derive(Debug)]
pub(crate) struct Tie {
    pub(crate) domain: Xrcd,
    pub(crate) cq: Arc<CqShared>,
    /// Whose number it has.
    pub(crate) port: Weak<dyn Progress>,
}

impl SrqShared {
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// The protection domain of its buffers.
    pub(crate) fn domain(&self) -> u32 {
        self.domain
    }

    /// Lends the oldest receive to `copy`, and takes it if that says so.
    fn draw(&self, into: &mut Drawn) -> Option<Receive> {
        let mut state = self.state.lock();
        let receive = state.ring.take()?;
        let sges = state.ring.sges(receive.token);
        into.used = sges.len();
        for (place, sge) in into.sges.iter_mut().zip(sges) {
            *place = *sge;
        }
        into.len = receive.len;
        (into.wr_id, into.buffer) = state.ring.finish(receive.token);
        into.held = true;
        self.drawn.fetch_add(1, Ordering::Relaxed);
        let low = state.is_low();
        drop(state);
        if low {
            self.affiliation.raise(EventKind::SrqLimitReached);
        }
        Some(Receive { token: 0, len: receive.len })
    }

    /// Takes back a receive whose message came to nothing: it is the oldest again.
    fn give_back(&self, drawn: &Drawn) {
        let sges = drawn.sges.get(..drawn.used).unwrap_or_default();
        let work = ReceiveWork { wr_id: drawn.wr_id, sges, buffer: drawn.buffer };
        let mut state = self.state.lock();
        debug_assert!(state.ring.room() > 0, "it has kept its place");
        state.ring.push_front(&work, drawn.len);
        self.drawn.fetch_sub(1, Ordering::Relaxed);
    }

    /// Receives that wait or are drawn.
    fn used(&self, state: &State) -> u32 {
        state.posted().saturating_add(self.drawn.load(Ordering::Relaxed))
    }
}

impl Drop for SrqShared {
    fn drop(&mut self) {
        self.affiliation.retire();
        if let Some(port) = self.tie.as_ref().and_then(|tie| tie.port.upgrade()) {
            port.give_number_back(Qpn::new(self.number));
        }
    }
}

/// A shared receive queue. `struct ibv_srq`.
#[derive(Clone, Debug)]
pub struct Srq {
    pub(crate) shared: Arc<SrqShared>,
}

impl Srq {
    /// Makes a queue. The caller has checked the limits.
    pub fn new(config: &SrqConfig) -> Self {
        // Beyond the numbers of queue pairs, among which those of XRC queues are.
        static NUMBERS: AtomicU32 = AtomicU32::new(1 << 24);
        Self::with_number(config, NUMBERS.fetch_add(1, Ordering::Relaxed), None)
    }

    /// Makes a queue with this number.
    pub(crate) fn with_number(config: &SrqConfig, number: u32, tie: Option<Tie>) -> Self {
        let SrqConfig { domain, context, max_wr, max_sge, .. } = *config;
        let ring = ReceiveRing::new(max_wr, max_sge);
        let element = Element::Srq { number, context };
        Self {
            shared: Arc::new(SrqShared {
                number,
                domain,
                max_sge,
                state: Mutex::new(State { ring, max_wr, limit: 0 }),
                drawn: AtomicU32::new(0),
                affiliation: Affiliation::new(config.events.clone(), element),
                tie,
            }),
        }
    }

    /// Takes an XRC queue out of its domain: targets find it no more.
    pub fn close(&self) {
        if let Some(tie) = &self.shared.tie {
            tie.domain.shared.leave(self.shared.number);
        }
    }

    /// Its number, unique in this process; that of an XRC queue, on this host.
    pub fn number(&self) -> u32 {
        self.shared.number
    }

    /// What it is like now.
    pub fn query(&self) -> SrqAttr {
        let state = self.shared.state.lock();
        SrqAttr {
            max_wr: state.max_wr,
            max_sge: self.shared.max_sge,
            srq_limit: state.limit,
            posted: state.posted(),
        }
    }

    /// Asks for one event once there are fewer than `limit` receives, which may be now; 0 takes the
    /// question back.
    ///
    /// # Errors
    ///
    /// [`SrqError::Limit`].
    pub fn arm_limit(&self, limit: u32) -> Result<(), SrqError> {
        let mut state = self.shared.state.lock();
        if limit > state.max_wr {
            return Err(SrqError::Limit { asked: limit, max: state.max_wr });
        }
        state.limit = limit;
        let low = state.is_low();
        drop(state);
        if low {
            self.shared.affiliation.raise(EventKind::SrqLimitReached);
        }
        Ok(())
    }

    /// Changes how many receives it holds; those that are there stay.
    ///
    /// # Errors
    ///
    /// [`SrqError::InUse`] and [`SrqError::OutOfRange`].
    pub fn resize(&self, max_wr: u32) -> Result<(), SrqError> {
        let (asked, max) = (max_wr, crate::QpLimits::WR_MAX);
        if !(1..=max).contains(&max_wr) {
            return Err(SrqError::OutOfRange { asked, max });
        }
        let mut ring = ReceiveRing::new(max_wr, self.shared.max_sge);
        let mut state = self.shared.state.lock();
        let used = self.shared.used(&state);
        if used > max_wr {
            return Err(SrqError::InUse { asked, used });
        }
        while let Some(receive) = state.ring.take() {
            let sges = state.ring.sges(receive.token).to_vec();
            let (wr_id, buffer) = state.ring.finish(receive.token);
            ring.push(&ReceiveWork { wr_id, sges: &sges, buffer }, receive.len);
        }
        state.ring = ring;
        state.max_wr = max_wr;
        state.limit = state.limit.min(max_wr);
        Ok(())
    }

    /// Posts receives, in order.
    ///
    /// # Errors
    ///
    /// The first mistake and the receive it is in; those before it are posted, those from it on
    /// are not.
    pub fn post_receive(&self, batch: &[ReceiveWork<'_>]) -> Result<(), (usize, PostError)> {
        let mut state = self.shared.state.lock();
        for (at, work) in batch.iter().enumerate() {
            let (count, max) = (work.sges.len(), state.ring.sges_max());
            if count > max {
                return Err((at, PostError::TooManySges { count, max }));
            }
            let len = total_len(work.sges).ok_or((at, PostError::TooLong))?;
            if self.shared.used(&state) >= state.max_wr {
                let capacity = u64::from(state.max_wr);
                return Err((at, PostError::QueueFull { capacity }));
            }
            state.ring.push(work, len);
        }
        Ok(())
    }

    /// Asynchronous events of this queue that were not acknowledged.
    pub fn unacknowledged(&self) -> u32 {
        self.shared.affiliation.unacknowledged()
    }
}

/// A queue pair's hold on a shared receive queue: the receive whose message is arriving.
#[derive(Debug)]
pub(crate) struct Drawn {
    srq: Arc<SrqShared>,
    wr_id: u64,
    buffer: Option<BufferNumber>,
    sges: Box<[Sge]>,
    used: usize,
    len: u32,
    /// There is one: it was drawn, and has neither ended nor been put back.
    held: bool,
}

impl Drawn {
    pub(crate) fn new(srq: &Srq) -> Self {
        let sges = usize::try_from(srq.shared.max_sge).unwrap_or(0);
        Self {
            srq: Arc::clone(&srq.shared),
            wr_id: 0,
            buffer: None,
            sges: std::iter::repeat_n(Sge { addr: 0, len: 0, lkey: 0 }, sges).collect(),
            used: 0,
            len: 0,
            held: false,
        }
    }

    /// Draws the oldest receive.
    pub(crate) fn take(&mut self) -> Option<Receive> {
        self.put_back(); // A queue pair that was reset has forgotten the message it had begun.
        let srq = Arc::clone(&self.srq);
        srq.draw(self)
    }

    /// The receive that was drawn, if there is one, is the oldest again.
    pub(crate) fn put_back(&mut self) {
        if std::mem::take(&mut self.held) {
            self.srq.give_back(self);
        }
    }

    /// The scatter entries of the receive that was drawn.
    pub(crate) fn sges(&self) -> &[Sge] {
        self.sges.get(..self.used).unwrap_or_default()
    }

    /// The domain of its buffers.
    pub(crate) fn domain(&self) -> u32 {
        self.srq.domain
    }

    /// The queue's number.
    pub(crate) fn number(&self) -> u32 {
        self.srq.number
    }

    /// A receive is drawn.
    pub(crate) fn is_held(&self) -> bool {
        self.held
    }

    /// Where receives of an XRC queue complete.
    pub(crate) fn cq(&self) -> Option<&Arc<CqShared>> {
        self.srq.tie.as_ref().map(|tie| &tie.cq)
    }

    /// The receive has ended: what its poster said of it, and the queue's number.
    pub(crate) fn finish(&mut self) -> (u64, Option<BufferNumber>, u32) {
        debug_assert!(self.held, "what ends was drawn");
        self.held = false;
        self.srq.drawn.fetch_sub(1, Ordering::Relaxed);
        (self.wr_id, self.buffer, self.srq.number)
    }
}

impl Drop for Drawn {
    fn drop(&mut self) {
        self.put_back();
    }
}

adverb_sys::debug_as_display!(SrqError);

#[cfg(test)]
mod tests {
    use super::*;

    fn srq(max_wr: u32) -> (Srq, Arc<EventQueue>) {
        let events = Arc::new(EventQueue::new().unwrap());
        let events = (Arc::clone(&events), events);
        let config =
            SrqConfig { domain: 1, context: 9, max_wr, max_sge: 2, events: Some(events.0) };
        (Srq::new(&config), events.1)
    }

    fn post(srq: &Srq, wr_id: u64) -> Result<(), (usize, PostError)> {
        let sges = [Sge { addr: wr_id, len: 8, lkey: 1 }];
        srq.post_receive(&[ReceiveWork { wr_id, sges: &sges, buffer: None }])
    }

    #[test]
    fn two_queue_pairs_draw_in_turn_and_end_in_any_order() {
        let (srq, _) = srq(4);
        (1..=3).for_each(|wr_id| post(&srq, wr_id).unwrap());
        let (mut one, mut two) = (Drawn::new(&srq), Drawn::new(&srq));
        assert!(one.take().is_some() && two.take().is_some());
        assert_eq!((one.sges()[0].addr, two.sges()[0].addr), (1, 2));
        assert_eq!(two.finish(), (2, None, srq.number()));
        assert_eq!(one.finish(), (1, None, srq.number()));
        assert_eq!(srq.query().posted, 1);
    }

    /// Goal: what comes to nothing is the oldest again, even if the queue was filled up meanwhile.
    #[test]
    fn a_receive_that_is_put_back_is_the_oldest_again_and_always_finds_its_place() {
        let (srq, _) = srq(2);
        (1..=2).for_each(|wr_id| post(&srq, wr_id).unwrap());
        let (mut one, mut two) = (Drawn::new(&srq), Drawn::new(&srq));
        one.take().unwrap();
        assert_eq!(post(&srq, 3), Err((0, PostError::QueueFull { capacity: 2 })));
        assert_eq!(srq.resize(1), Err(SrqError::InUse { asked: 1, used: 2 }));
        one.put_back();
        for addr in [1, 2] {
            two.take().unwrap();
            assert_eq!(two.sges()[0].addr, addr);
            two.finish();
        }
        (3..=4).for_each(|wr_id| post(&srq, wr_id).unwrap());
    }

    #[test]
    fn a_queue_pair_that_goes_or_starts_anew_leaves_the_receive_it_held_to_others() {
        let (srq, _) = srq(2);
        (1..=2).for_each(|wr_id| post(&srq, wr_id).unwrap());
        let (mut one, mut two) = (Drawn::new(&srq), Drawn::new(&srq));
        for _ in 0..2 {
            one.take().unwrap();
            assert_eq!(one.sges()[0].addr, 1);
        }
        drop(one);
        two.take().unwrap();
        assert_eq!(two.sges()[0].addr, 1);
    }

    #[test]
    fn the_limit_is_told_once_and_at_once_if_it_is_reached_already() {
        let (srq, events) = srq(4);
        (1..=3).for_each(|wr_id| post(&srq, wr_id).unwrap());
        srq.arm_limit(3).unwrap();
        assert!(events.try_get().is_none());
        let mut qp = Drawn::new(&srq);
        for _ in 0..2 {
            qp.take().unwrap();
            qp.finish();
        }
        let event = events.try_get().unwrap();
        assert_eq!(event.kind, EventKind::SrqLimitReached);
        assert!(events.try_get().is_none());
        assert_eq!(srq.query().srq_limit, 0);
        srq.arm_limit(2).unwrap();
        assert!(events.try_get().is_some());
        assert_eq!(srq.arm_limit(5), Err(SrqError::Limit { asked: 5, max: 4 }));
    }

    #[test]
    fn a_queue_keeps_its_receives_when_its_size_changes() {
        let (srq, _) = srq(3);
        (1..=3).for_each(|wr_id| post(&srq, wr_id).unwrap());
        assert_eq!(post(&srq, 4), Err((0, PostError::QueueFull { capacity: 3 })));
        assert_eq!(srq.resize(2), Err(SrqError::InUse { asked: 2, used: 3 }));
        assert!(matches!(srq.resize(0), Err(SrqError::OutOfRange { .. })));
        srq.resize(4).unwrap();
        post(&srq, 4).unwrap();
        let mut qp = Drawn::new(&srq);
        for addr in 1..=4 {
            qp.take().unwrap();
            assert_eq!(qp.sges()[0].addr, addr);
            qp.finish();
        }
    }
}
