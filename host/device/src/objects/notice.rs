//! Notices of completion queues to their channel, and its doorbell.
//!
//! A queue that was armed puts its [`Notice`] into the channel's mail, once for each time it was armed.

use crate::objects::notify::Mailbox;
use crate::objects::standby::Standby;
use crate::sync::Mutex;
use adverb_sys::epoll::Epoll;
use adverb_sys::eventfd::EventFd;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard, OnceLock};

/// Notice of a channel that a completion queue has fired.
#[derive(Debug)]
pub struct Notice {
    /// The queue's name: no other queue of this process has or had it.
    id: u64,
    /// What the queue's maker gave it.
    context: u64,
    /// Times that it is in the mail; changed under the mail's lock.
    pending: AtomicU32,
    /// Events taken and not yet acknowledged.
    unacknowledged: AtomicU32,
}

impl Notice {
    pub(crate) fn new(context: u64) -> Self {
        static NAMES: AtomicU64 = AtomicU64::new(1);
        Self {
            id: NAMES.fetch_add(1, Ordering::Relaxed),
            context,
            pending: AtomicU32::new(0),
            unacknowledged: AtomicU32::new(0),
        }
    }

    /// The queue's name in this process.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// What the queue's maker gave it.
    pub fn context(&self) -> u64 {
        self.context
    }

    /// Events that were taken and not acknowledged.
    pub fn unacknowledged(&self) -> u32 {
        self.unacknowledged.load(Ordering::Relaxed)
    }

    /// Acknowledges `count` events, or as many as there are.
    pub fn acknowledge(&self, count: u32) {
        let less = |all: u32| Some(all.saturating_sub(count));
        let _ = self.unacknowledged.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }
}

/// Which waiters need the helper.
#[derive(Debug, Default)]
pub(crate) struct Interest {
    /// Queues that are armed. A queue may fire before it is counted.
    pub(crate) armed: i32,
    /// Queues that use the channel.
    attached: usize,
    /// The program is to be woken for events alone.
    pub(crate) watched: bool,
}

/// The part of a channel that completion queues share.
#[derive(Debug)]
pub(crate) struct ChannelShared {
    pub(crate) mail: Mailbox<Arc<Notice>>,
    pub(crate) doorbell: EventFd,
    /// The doorbell and the port's sockets, for programs that sleep on them; `None` if the port has too many
    /// such sets, and the helper stands in.
    pub(crate) set: OnceLock<Option<Arc<Epoll>>>,
    interest: Mutex<Interest>,
    pub(crate) standby: Arc<Standby>,
    /// Looks that have found nothing.
    pub(crate) idle: AtomicU32,
}

impl ChannelShared {
    pub(crate) fn new(standby: Arc<Standby>) -> io::Result<Self> {
        let doorbell = EventFd::new()?;
        CHANNELS.fetch_add(1, Ordering::Relaxed);
        Ok(Self {
            mail: Mailbox::new(0),
            doorbell,
            set: OnceLock::new(),
            interest: Mutex::default(),
            standby,
            idle: AtomicU32::new(0),
        })
    }

    /// The program may sleep on the port's sockets.
    pub(crate) fn has_set(&self) -> bool {
        matches!(self.set.get(), Some(Some(_)))
    }

    pub(crate) fn interest(&self) -> MutexGuard<'_, Interest> {
        self.interest.lock()
    }

    /// One more queue: its notice always finds room.
    pub(crate) fn attach(&self) {
        let mut interest = self.interest();
        interest.attached += 1;
        let room = interest.attached;
        let reserve = |mail: &mut VecDeque<Arc<Notice>>| {
            mail.reserve(room.saturating_sub(mail.len()));
        };
        self.mail.take(reserve, || drop(self.doorbell.drain()));
    }

    /// A queue goes, and its events with it.
    pub(crate) fn detach(&self, notice: &Arc<Notice>, was_armed: bool) {
        if was_armed {
            self.disarmed();
        }
        self.interest().attached -= 1;
        let others = |known: &Arc<Notice>| !Arc::ptr_eq(known, notice);
        self.mail.take(|mail| mail.retain(others), || drop(self.doorbell.drain()));
    }

    /// A queue was armed.
    pub(crate) fn armed(&self) {
        let mut interest = self.interest();
        interest.armed += 1;
        if interest.watched {
            self.standby.engage(1);
        }
    }

    fn disarmed(&self) {
        let mut interest = self.interest();
        interest.armed -= 1;
        if interest.watched {
            self.standby.disengage(1);
        }
    }

    /// An armed queue has something for its owner.
    pub(crate) fn fire(self: &Arc<Self>, notice: &Arc<Notice>) {
        self.disarmed();
        let add = |mail: &mut VecDeque<Arc<Notice>>| {
            if notice.pending.fetch_add(1, Ordering::Relaxed) == 0 {
                mail.push_back(Arc::clone(notice));
            }
        };
        if self.mail.post(add) {
            DeferredWakeups::ring(self);
        }
    }

    fn ring(&self) {
        let _ = self.doorbell.signal();
        self.mail.rang(|| drop(self.doorbell.drain()));
    }

    pub(crate) fn take(&self) -> Option<Arc<Notice>> {
        self.mail.take(next, || drop(self.doorbell.drain()))
    }

    /// Takes the oldest event after `drive`, which may make some.
    pub(crate) fn take_after(&self, drive: impl FnOnce()) -> Option<Arc<Notice>> {
        self.mail.begin_look();
        drive();
        let (notice, ring) = self.mail.end_look(next, || drop(self.doorbell.drain()));
        if ring {
            self.ring();
        }
        notice
    }
}

/// While one of these lives, doorbells that this thread is to ring wait until the last is dropped.
///
/// The holder of a queue pair's lock holds one for longer: a thread that wakes wants that lock
/// next, and on the same processor it wakes at once, only to go to sleep again.
#[derive(Debug)]
pub(crate) struct DeferredWakeups {
    /// There was a channel when it began. One that comes later rings at once.
    counts: bool,
    /// It stays with its thread.
    stays: PhantomData<*const ()>,
}

/// Channels of this process: without any there is nothing to ring, and the thread's variables are not looked at, which
/// takes a call in a library.
static CHANNELS: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// [`ONE`] for each of them that lives, and [`WAITING`].
    static DEFERRING: Cell<u32> = const { Cell::new(0) };
    /// Doorbells that wait.
    static DEFERRED: RefCell<Vec<Arc<ChannelShared>>> = const { RefCell::new(Vec::new()) };
}

const ONE: u32 = 2;
/// Doorbells wait.
const WAITING: u32 = 1;

impl DeferredWakeups {
    #[inline]
    pub(crate) fn begin() -> Self {
        let counts = CHANNELS.load(Ordering::Relaxed) > 0;
        if counts {
            defer();
        }
        Self { counts, stays: PhantomData }
    }

    /// Makes room for this thread's doorbells, so that none takes memory later.
    pub(crate) fn prepare() {
        let _ = DEFERRED.try_with(|doorbells| doorbells.borrow_mut().reserve(DOORBELLS));
    }

    fn ring(channel: &Arc<ChannelShared>) {
        let wait = |doorbells: &RefCell<Vec<_>>| doorbells.borrow_mut().push(Arc::clone(channel));
        // A thread that ends has no place left for them, and rings at once.
        let deferring = DEFERRING.get();
        if deferring >= ONE && DEFERRED.try_with(wait).is_ok() {
            DEFERRING.set(deferring | WAITING);
        } else {
            channel.ring();
        }
    }
}

impl Drop for DeferredWakeups {
    #[inline]
    fn drop(&mut self) {
        if self.counts {
            settle();
        }
    }
}

/// Doorbells wait from now on. Not inlined, as the place of the variable would be looked up without need.
#[inline(never)]
fn defer() {
    DEFERRING.set(DEFERRING.get() + ONE);
}

/// Doorbells wait no longer on account of one of them.
#[inline(never)]
fn settle() {
    let left = DEFERRING.get() - ONE;
    DEFERRING.set(left);
    if left == WAITING {
        ring_deferred();
    }
}

/// Rings all doorbells that have waited.
#[cold]
fn ring_deferred() {
    DEFERRING.set(0);
    while let Ok(Some(channel)) = DEFERRED.try_with(|doorbells| doorbells.borrow_mut().pop()) {
        channel.ring();
    }
}

/// Hands out the oldest event.
fn next(mail: &mut VecDeque<Arc<Notice>>) -> Option<Arc<Notice>> {
    let notice = mail.pop_front()?;
    notice.unacknowledged.fetch_add(1, Ordering::Relaxed);
    if notice.pending.fetch_sub(1, Ordering::Relaxed) > 1 {
        mail.push_back(Arc::clone(&notice)); // It has fired again meanwhile.
    }
    Some(notice)
}

impl Drop for ChannelShared {
    fn drop(&mut self) {
        CHANNELS.fetch_sub(1, Ordering::Relaxed);
        let interest = self.interest.get_mut();
        if interest.watched {
            self.standby.disengage(interest.armed);
        }
    }
}

/// Doorbells of one thread that wait, as many as it has room for from the start.
const DOORBELLS: usize = 64;
