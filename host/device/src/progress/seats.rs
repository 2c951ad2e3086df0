//! Adapter of the engine's port (`adverb_engine`, `port/`) to the device: it lends the schedule, and the queue
//! pairs, one at a time and under their locks.

use super::{Clock, Port};
use crate::futex_mutex::FutexGuard;
use crate::objects::completion::PollBuffer;
use crate::objects::notice::DeferredWakeups;
use crate::objects::qp::QpInner;
use adverb_engine::Time;
use adverb_engine::{Acks, Aftermath, Pacing, Qp, Schedule, Seat, Seats, Surface, follow_up};
use adverb_wire::Qpn;
use std::ops::{Deref, DerefMut};

impl Surface for Port {
    #[cold]
    fn leave_open(&self, number: Qpn) -> bool {
        self.schedule.leave_open(number)
    }

    #[inline]
    fn is_open(&self, number: Qpn) -> bool {
        self.schedule.is_open(number)
    }

    fn take_open(&self) -> Option<Qpn> {
        self.schedule.take_open()
    }

    fn schedule<R>(&self, run: impl FnOnce(&mut Schedule) -> R) -> R {
        self.schedule.with(run)
    }

    fn notice(&self, at: Time) {
        self.helper.notice(at);
    }
}

/// A queue pair that is locked, and defers wake-ups until it is let go.
pub(super) struct Locked<'a> {
    guard: FutexGuard<'a, Option<Box<QpInner>>>,
    _deferred: DeferredWakeups,
}

impl Deref for Locked<'_> {
    type Target = QpInner;

    #[inline]
    fn deref(&self) -> &QpInner {
        self.guard.as_ref().unwrap_or_else(|| unreachable!("it was there when it was locked"))
    }
}

impl DerefMut for Locked<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut QpInner {
        self.guard.as_mut().unwrap_or_else(|| unreachable!("it was there when it was locked"))
    }
}

/// A queue pair whose lock is held.
pub(super) struct Seated<'a, 't, Q> {
    pub(super) port: &'a Port,
    pub(super) number: Qpn,
    pub(super) inner: Q,
    pub(super) clock: &'a mut Clock,
    /// Where the program waits for completions.
    pub(super) poll_buffer: Option<&'a mut PollBuffer<'t>>,
}

impl<Q: DerefMut<Target = QpInner>> Seat for Seated<'_, '_, Q> {
    type Surface = Port;

    #[inline]
    fn surface(&self) -> &Port {
        self.port
    }

    #[inline]
    fn number(&self) -> Qpn {
        self.number
    }

    #[inline]
    fn parts(&mut self) -> (&mut Qp, &mut Pacing) {
        let QpInner { engine, pacing, .. } = &mut *self.inner;
        (engine, pacing)
    }

    fn now(&mut self) -> Time {
        self.clock.now()
    }

    #[inline(always)]
    fn transmit(&mut self, acks: Acks) -> Aftermath {
        let now = self.clock.for_link(&self.inner);
        self.inner.transmit(now, acks, &self.port.links)
    }

    #[inline]
    fn acknowledge(&mut self) -> Aftermath {
        match self.inner.acknowledge_eagerly() {
            true => Aftermath::default(),
            false => self.transmit(Acks::Now),
        }
    }

    #[inline]
    fn settle(&mut self) -> u32 {
        self.inner.settle(self.poll_buffer.as_deref_mut(), &self.port.links)
    }
}

/// The queue pairs of a port, for a step.
pub(super) struct Table<'a, 't> {
    pub(super) port: &'a Port,
    pub(super) clock: &'a mut Clock,
    pub(super) poll_buffer: Option<&'a mut PollBuffer<'t>>,
}

impl<'t> Seats for Table<'_, 't> {
    type Surface = Port;
    type Seat<'a>
        = Seated<'a, 't, Locked<'a>>
    where
        Self: 'a;

    fn surface(&self) -> &Port {
        self.port
    }

    #[inline(always)]
    fn seat(&mut self, number: Qpn) -> Option<Self::Seat<'_>> {
        let Self { port, clock, poll_buffer } = self;
        let deferred = DeferredWakeups::begin();
        let guard = port.table.lock(number)?;
        let inner = Locked { guard, _deferred: deferred };
        Some(Seated { port, number, inner, clock, poll_buffer: poll_buffer.as_deref_mut() })
    }
}

impl Port {
    /// Notes what a queue pair wants next that is not driven by a step.
    #[inline]
    pub(crate) fn follow_up(&self, number: Qpn, inner: &mut QpInner, aftermath: Aftermath) {
        let mut clock = Clock::new();
        let mut seat = Seated { port: self, number, inner, clock: &mut clock, poll_buffer: None };
        follow_up(&mut seat, aftermath);
    }
}
