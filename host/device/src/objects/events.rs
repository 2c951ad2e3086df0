//! Asynchronous events: what happens to an object, a port or the device without being asked for.
//!
//! Each open context has an [`EventQueue`]. Objects raise events on the queue of the context they
//! were made from; events of the port and the device go to all queues. An event that was taken and
//! belongs to an object counts as unacknowledged until it is dropped.

use crate::objects::notify::Mailbox;
use crate::registry::counters::Counters;
use crate::sync::Mutex;
use adverb_sys::eventfd::EventFd;
use adverb_sys::unix::Stream;
use adverb_sys::{clock, poll};
use adverb_wire::Qpn;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Kind of an event. `enum ibv_event_type`; IBTA Vol. 1 §11.6.3.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[non_exhaustive]
#[doc(alias = "ibv_event_type")]
#[doc(alias = "ibv_event_type_str")]
pub enum EventKind {
    /// A completion queue had no room for a completion.
    CqErr,
    /// The first message came to a queue pair in RTR.
    CommEst,
    /// The device is gone.
    DeviceFatal,
    /// The port's GID table is another.
    GidChange,
    /// A queue pair in ERR takes no more receives from its shared receive queue.
    LastWqeReached,
    /// The port carries traffic again.
    PortActive,
    /// The port carries no traffic any more.
    PortErr,
    /// A peer violated a queue pair's access rights.
    QpAccessErr,
    /// A queue pair failed for a reason that no completion can tell.
    QpFatal,
    /// A peer violated the protocol.
    QpReqErr,
    /// All requests that were under way when a queue pair went to SQD have ended.
    SqDrained,
    /// A shared receive queue failed.
    SrqErr,
    /// Fewer receives are in a shared receive queue than its limit says.
    SrqLimitReached,
}

impl EventKind {
    /// The verbs' name, such as `IBV_EVENT_CQ_ERR`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::CqErr => "IBV_EVENT_CQ_ERR",
            Self::CommEst => "IBV_EVENT_COMM_EST",
            Self::DeviceFatal => "IBV_EVENT_DEVICE_FATAL",
            Self::GidChange => "IBV_EVENT_GID_CHANGE",
            Self::LastWqeReached => "IBV_EVENT_QP_LAST_WQE_REACHED",
            Self::PortActive => "IBV_EVENT_PORT_ACTIVE",
            Self::PortErr => "IBV_EVENT_PORT_ERR",
            Self::QpAccessErr => "IBV_EVENT_QP_ACCESS_ERR",
            Self::QpFatal => "IBV_EVENT_QP_FATAL",
            Self::QpReqErr => "IBV_EVENT_QP_REQ_ERR",
            Self::SqDrained => "IBV_EVENT_SQ_DRAINED",
            Self::SrqErr => "IBV_EVENT_SRQ_ERR",
            Self::SrqLimitReached => "IBV_EVENT_SRQ_LIMIT_REACHED",
        }
    }

    /// Its number in messages between processes.
    fn code(self) -> u8 {
        let at = OF_QP.iter().position(|known| *known == self);
        at.and_then(|at| u8::try_from(at).ok()).unwrap_or(u8::MAX)
    }

    /// The event of a queue pair with this number.
    pub(crate) fn of_code(code: u8) -> Option<Self> {
        OF_QP.get(usize::from(code)).copied()
    }
}

/// Events of a queue pair, by their numbers.
const OF_QP: [EventKind; 6] = [
    EventKind::CommEst,
    EventKind::LastWqeReached,
    EventKind::QpAccessErr,
    EventKind::QpFatal,
    EventKind::QpReqErr,
    EventKind::SqDrained,
];

/// Object of an event.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Element {
    /// A completion queue.
    Cq {
        /// What its maker gave it.
        context: u64,
    },
    /// The device.
    Device,
    /// A port.
    Port {
        /// Counted from 1.
        number: u8,
    },
    /// A queue pair.
    Qp {
        /// Its number.
        number: Qpn,
        /// What its maker gave it.
        context: u64,
    },
    /// A shared receive queue.
    Srq {
        /// Its number.
        number: u32,
        /// What its maker gave it.
        context: u64,
    },
}

/// An asynchronous event. `struct ibv_async_event`.
///
/// Dropping it acknowledges it.
#[derive(Debug)]
#[doc(alias = "ibv_async_event")]
#[non_exhaustive]
pub struct AsyncEvent {
    /// What happened.
    pub kind: EventKind,
    /// To what.
    pub element: Element,
    owner: Option<Arc<Affiliation>>,
}

impl AsyncEvent {
    /// An event of a device that is not ours, which was acknowledged there already.
    pub const fn foreign(kind: EventKind, element: Element) -> Self {
        Self { kind, element, owner: None }
    }

    /// Says that the event has been dealt with.
    pub fn acknowledge(self) {}

    /// Counts as taken from now on.
    fn hand_out(self) -> Self {
        if let Some(owner) = &self.owner {
            owner.unacknowledged.fetch_add(1, Ordering::Relaxed);
        }
        self
    }
}

impl Drop for AsyncEvent {
    fn drop(&mut self) {
        if let Some(owner) = &self.owner {
            owner.unacknowledged.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl fmt::Display for AsyncEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.kind.name();
        match self.element {
            Element::Cq { context } => write!(f, "{name} (completion queue, context {context:#x})"),
            Element::Device => write!(f, "{name}"),
            Element::Port { number } => write!(f, "{name} (port {number})"),
            Element::Qp { number, .. } => write!(f, "{name} (queue pair {:#x})", number.get()),
            Element::Srq { number, .. } => write!(f, "{name} (shared receive queue {number})"),
        }
    }
}

/// Events of one context.
#[derive(Debug)]
pub struct EventQueue {
    mail: Mailbox<AsyncEvent>,
    doorbell: EventFd,
    lost: AtomicU64,
    /// Those of the port, which count what is lost too.
    counters: Arc<Counters>,
}

/// Events that wait in one queue, at most; more are lost and counted.
const EVENTS_MAX: usize = 1024;

impl EventQueue {
    #[cfg(test)]
    pub(crate) fn new() -> io::Result<Self> {
        Self::counting_in(Arc::default())
    }

    fn counting_in(counters: Arc<Counters>) -> io::Result<Self> {
        let mail = Mailbox::new(EVENTS_MAX);
        Ok(Self { mail, doorbell: EventFd::new()?, lost: AtomicU64::new(0), counters })
    }

    fn post(&self, kind: EventKind, element: Element, owner: Option<Arc<Affiliation>>) {
        let add = |events: &mut std::collections::VecDeque<AsyncEvent>| {
            if events.len() < EVENTS_MAX {
                // Counted until it is dropped, so that one that is purged counts as acknowledged.
                events.push_back(AsyncEvent { kind, element, owner }.hand_out());
            } else {
                self.lost.fetch_add(1, Ordering::Relaxed);
                self.counters.num_eqovf.add(1);
            }
        };
        if self.mail.post(add) {
            let _ = self.doorbell.signal();
            self.mail.rang(|| drop(self.doorbell.drain()));
        }
    }

    /// Events that found the queue full.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Takes the oldest event, if there is one.
    pub fn try_get(&self) -> Option<AsyncEvent> {
        self.mail.take(|events| events.pop_front(), || drop(self.doorbell.drain()))
    }

    /// Takes the oldest event; waits for it, at most for `timeout` (`None`: for ever).
    ///
    /// # Errors
    ///
    /// None in practice: those of `poll(2)`.
    pub fn get(&self, timeout: Option<Duration>) -> io::Result<Option<AsyncEvent>> {
        let deadline = timeout.map(deadline);
        loop {
            let event = self.try_get();
            if event.is_some() || deadline.is_some_and(|at| left(at).is_zero()) {
                return Ok(event);
            }
            if self.mail.begin_sleep() {
                let slept = poll::readable(&self.doorbell, std::iter::empty(), deadline.map(left));
                self.mail.end_sleep();
                slept?;
            }
        }
    }

    /// A descriptor that can be read while there are events.
    pub fn watch(&self) -> BorrowedFd<'_> {
        self.mail.watch(|| drop(self.doorbell.signal()));
        self.doorbell.as_fd()
    }
}

/// When `timeout` from now is.
pub(crate) fn deadline(timeout: Duration) -> u64 {
    let timeout = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
    clock::now_ns().saturating_add(timeout)
}

/// How long it is until `deadline`.
pub(crate) fn left(deadline: u64) -> Duration {
    Duration::from_nanos(deadline.saturating_sub(clock::now_ns()))
}

/// Where events of an object go.
#[derive(Debug)]
enum Sink {
    Nowhere,
    /// To the queue of the context that it was made from, or opened from.
    Queue(Arc<EventQueue>, Element),
    /// To another process, until that takes no more.
    Process(Box<Mutex<Option<Stream>>>),
}

/// An object's tie to where its events go.
#[derive(Debug)]
pub(crate) struct Affiliation {
    sink: Sink,
    /// Others that hear of the object.
    listeners: Mutex<Vec<Weak<Affiliation>>>,
    /// Events of this object that wait or were taken and not yet acknowledged.
    unacknowledged: AtomicU32,
}

impl Affiliation {
    pub(crate) fn new(queue: Option<Arc<EventQueue>>, element: Element) -> Arc<Self> {
        Self::of(queue.map_or(Sink::Nowhere, |queue| Sink::Queue(queue, element)))
    }

    fn of(sink: Sink) -> Arc<Self> {
        Arc::new(Self { sink, listeners: Mutex::default(), unacknowledged: AtomicU32::new(0) })
    }

    /// Says that something happened to the object.
    pub(crate) fn raise(self: &Arc<Self>, kind: EventKind) {
        match &self.sink {
            Sink::Nowhere => {}
            Sink::Queue(queue, element) => queue.post(kind, *element, Some(Arc::clone(self))),
            Sink::Process(stream) => {
                let mut stream = stream.lock();
                if stream.as_ref().is_some_and(|stream| stream.send(&[kind.code()], &[]).is_err()) {
                    *stream = None; // The other end sees that it has missed something.
                }
            }
        }
        let listeners = self.listeners.lock();
        listeners.iter().filter_map(Weak::upgrade).for_each(|listener| listener.raise(kind));
    }

    /// Has another hear of the object, too.
    pub(crate) fn listen(&self, Listener(listener): &Listener) {
        let mut listeners = self.listeners.lock();
        listeners.retain(|known| known.strong_count() > 0);
        listeners.push(Arc::downgrade(listener));
    }

    /// Events of this object that wait to be taken, or were taken and not acknowledged.
    pub(crate) fn unacknowledged(&self) -> u32 {
        self.unacknowledged.load(Ordering::Relaxed)
    }

    /// The object goes: events of it that were not taken are forgotten.
    pub(crate) fn retire(&self) {
        if let Sink::Queue(queue, _) = &self.sink
            && self.unacknowledged() > 0
        {
            let foreign = |event: &AsyncEvent| {
                event.owner.as_ref().is_none_or(|owner| !std::ptr::eq(&raw const **owner, self))
            };
            queue.mail.take(|events| events.retain(foreign), || drop(queue.doorbell.drain()));
        }
    }
}

/// One that hears of an object that another has made. Dropped, it hears no more, and what it has not taken is forgotten.
#[derive(Debug)]
pub struct Listener(Arc<Affiliation>);

impl Listener {
    /// For a queue of this process, where the object goes by another name.
    pub(crate) fn new(queue: &Arc<EventQueue>, element: Element) -> Self {
        Self(Affiliation::new(Some(Arc::clone(queue)), element))
    }

    /// For another process, which takes an event's code at a time ([`EventKind::of_code`]).
    pub(crate) fn of_process(stream: Stream) -> Self {
        Self(Affiliation::of(Sink::Process(Box::new(Mutex::new(Some(stream))))))
    }

    /// Hears of something.
    pub(crate) fn hear(&self, kind: EventKind) {
        self.0.raise(kind);
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.0.retire();
    }
}

/// All queues of a port.
#[derive(Debug, Default)]
pub(crate) struct Audience {
    queues: Mutex<Vec<Weak<EventQueue>>>,
    counters: Arc<Counters>,
}

impl Audience {
    pub(crate) fn counting_in(counters: Arc<Counters>) -> Self {
        Self { queues: Mutex::default(), counters }
    }

    /// Makes a queue that hears what happens to the port.
    pub(crate) fn join(&self) -> io::Result<Arc<EventQueue>> {
        let queue = Arc::new(EventQueue::counting_in(Arc::clone(&self.counters))?);
        let mut queues = self.queues.lock();
        queues.retain(|queue| queue.strong_count() > 0);
        queues.push(Arc::downgrade(&queue));
        Ok(queue)
    }

    /// Tells all listeners.
    pub(crate) fn announce(&self, kind: EventKind, element: Element) {
        if kind == EventKind::PortErr {
            self.counters.link_downed.add(1);
        }
        let queues = self.queues.lock();
        for queue in queues.iter().filter_map(Weak::upgrade) {
            queue.post(kind, element, None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CQ: Element = Element::Cq { context: 7 };

    #[test]
    fn an_event_counts_until_it_is_dropped() {
        let queue = Arc::new(EventQueue::new().unwrap());
        let cq = Affiliation::new(Some(Arc::clone(&queue)), CQ);
        cq.raise(EventKind::CqErr);
        let event = queue.get(None).unwrap().unwrap();
        assert_eq!((event.kind, event.element), (EventKind::CqErr, CQ));
        assert_eq!(cq.unacknowledged(), 1);
        event.acknowledge();
        assert_eq!(cq.unacknowledged(), 0);
        assert!(queue.try_get().is_none());
    }

    #[test]
    fn events_of_an_object_that_goes_are_forgotten_and_others_stay() {
        let queue = Arc::new(EventQueue::new().unwrap());
        let [one, two] = [CQ, Element::Cq { context: 8 }]
            .map(|element| Affiliation::new(Some(Arc::clone(&queue)), element));
        one.raise(EventKind::CqErr);
        two.raise(EventKind::CqErr);
        one.retire();
        assert_eq!(one.unacknowledged(), 0);
        assert_eq!(queue.try_get().unwrap().element, Element::Cq { context: 8 });
        assert!(queue.try_get().is_none());
    }

    #[test]
    fn a_full_queue_loses_the_newest_and_counts_it() {
        let audience = Audience::default();
        let queue = audience.join().unwrap();
        for _ in 0..=EVENTS_MAX {
            audience.announce(EventKind::GidChange, Element::Port { number: 1 });
        }
        assert_eq!((queue.lost(), audience.counters.num_eqovf.get()), (1, 1));
        assert_eq!(std::iter::from_fn(|| queue.try_get()).count(), EVENTS_MAX);
    }

    #[test]
    fn the_descriptor_can_be_read_while_there_are_events() {
        let audience = Audience::default();
        let queue = audience.join().unwrap();
        let ready = || {
            let fd = queue.watch();
            poll::readable(&fd, std::iter::empty(), Some(Duration::ZERO)).unwrap()
        };
        assert!(!ready());
        audience.announce(EventKind::PortErr, Element::Port { number: 1 });
        assert!(ready());
        drop(queue.try_get());
        assert!(!ready());
        assert!(queue.get(Some(Duration::from_millis(1))).unwrap().is_none());
    }

    /// Goal: a process that does not take its events holds up nothing, and learns that it has missed some.
    #[test]
    fn a_process_that_does_not_listen_hears_that_it_has_missed_events() {
        let [there, here] = Stream::one_way().unwrap();
        let listener = Listener::of_process(there);
        (0..100_000).for_each(|_| listener.hear(EventKind::QpReqErr));
        let mut code = [0; 2];
        let mut heard = 0;
        while here.recv(&mut code, &mut Vec::new()).unwrap() == 1 {
            assert_eq!(EventKind::of_code(code[0]), Some(EventKind::QpReqErr));
            heard += 1;
        }
        assert!((1..100_000).contains(&heard), "{heard}");
    }
}
