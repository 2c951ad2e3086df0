//! Completion channels: where programs sleep until a completion queue has something for them.
//!
//! A queue that was armed puts its [`Notice`] into the channel's mail, once for each time it was
//! armed. A thread that sleeps in [`CompChannel::get`] drives the device itself, and so does one that
//! sleeps on [`CompChannel::watch`]'s descriptor, which wakes it for packets too. For programs that
//! can only be woken for events, [`CompChannel::watch_events`], the helper stands in from arming on.

use crate::objects::events::{deadline, left};
use crate::objects::notify::Mailbox;
use crate::progress::Port;
use crate::progress::standby::Standby;
use crate::sync::Mutex;
use adverb_sys::epoll::Epoll;
use adverb_sys::eventfd::EventFd;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// What a channel says about a completion queue: that it has fired.
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

/// Who needs the helper.
#[derive(Debug, Default)]
struct Interest {
    /// Queues that are armed. A queue may fire before it is counted.
    armed: i32,
    /// Queues that use the channel.
    attached: usize,
    /// The program is to be woken for events alone.
    watched: bool,
}

/// The part of a channel that completion queues share.
#[derive(Debug)]
pub(crate) struct ChannelShared {
    mail: Mailbox<Arc<Notice>>,
    bell: EventFd,
    /// The bell and the port's sockets, for programs that sleep on them; `None` if the port has too many
    /// such sets, and the helper stands in.
    set: OnceLock<Option<Arc<Epoll>>>,
    interest: Mutex<Interest>,
    standby: Arc<Standby>,
    /// Looks that have found nothing.
    idle: AtomicU32,
}

impl ChannelShared {
    /// The program may sleep on the port's sockets.
    fn has_set(&self) -> bool {
        matches!(self.set.get(), Some(Some(_)))
    }

    fn interest(&self) -> MutexGuard<'_, Interest> {
        self.interest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One more queue: its notice always finds room.
    pub(crate) fn attach(&self) {
        let mut interest = self.interest();
        interest.attached += 1;
        let room = interest.attached;
        let reserve = |mail: &mut VecDeque<Arc<Notice>>| {
            mail.reserve(room.saturating_sub(mail.len()));
        };
        self.mail.take(reserve, || drop(self.bell.drain()));
    }

    /// A queue goes, and its events with it.
    pub(crate) fn detach(&self, notice: &Arc<Notice>, was_armed: bool) {
        if was_armed {
            self.disarmed();
        }
        self.interest().attached -= 1;
        let others = |known: &Arc<Notice>| !Arc::ptr_eq(known, notice);
        self.mail.take(|mail| mail.retain(others), || drop(self.bell.drain()));
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
            Hush::ring(self);
        }
    }

    fn ring(&self) {
        let _ = self.bell.signal();
        self.mail.rang(|| drop(self.bell.drain()));
    }

    fn take(&self) -> Option<Arc<Notice>> {
        self.mail.take(next, || drop(self.bell.drain()))
    }

    /// Takes the oldest event after `drive`, which may make some.
    fn take_after(&self, drive: impl FnOnce()) -> Option<Arc<Notice>> {
        self.mail.begin_look();
        drive();
        let (notice, ring) = self.mail.end_look(next, || drop(self.bell.drain()));
        if ring {
            self.ring();
        }
        notice
    }
}

/// While one of these lives, bells that this thread is to ring wait until the last is dropped.
///
/// Whoever holds the lock of a queue pair holds one for longer: a thread that wakes wants that lock
/// next, and on the same processor it wakes at once, only to go to sleep again.
#[derive(Debug)]
pub(crate) struct Hush(PhantomData<*const ()>);

thread_local! {
    /// How many of them live.
    static HUSHES: Cell<u32> = const { Cell::new(0) };
    /// Bells that wait.
    static HUSHED: RefCell<Vec<Arc<ChannelShared>>> = const { RefCell::new(Vec::new()) };
    /// There are such.
    static WAITING: Cell<bool> = const { Cell::new(false) };
}

impl Hush {
    #[inline]
    pub(crate) fn begin() -> Self {
        HUSHES.set(HUSHES.get() + 1);
        Self(PhantomData)
    }

    /// Makes room for this thread's bells, so that none takes memory later.
    pub(crate) fn prepare() {
        let _ = HUSHED.try_with(|bells| bells.borrow_mut().reserve(BELLS));
    }

    fn ring(channel: &Arc<ChannelShared>) {
        let wait = |bells: &RefCell<Vec<_>>| bells.borrow_mut().push(Arc::clone(channel));
        // A thread that ends has no place left for them, and rings at once.
        if HUSHES.get() > 0 && HUSHED.try_with(wait).is_ok() {
            WAITING.set(true);
        } else {
            channel.ring();
        }
    }
}

impl Drop for Hush {
    #[inline]
    fn drop(&mut self) {
        let left = HUSHES.get() - 1;
        HUSHES.set(left);
        if left == 0 && WAITING.get() {
            ring_hushed();
        }
    }
}

/// Rings all bells that have waited.
#[cold]
fn ring_hushed() {
    WAITING.set(false);
    while let Ok(Some(channel)) = HUSHED.try_with(|bells| bells.borrow_mut().pop()) {
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
        let interest = self.interest.get_mut().unwrap_or_else(PoisonError::into_inner);
        if interest.watched {
            self.standby.disengage(interest.armed);
        }
    }
}

/// A completion channel. `struct ibv_comp_channel`.
#[derive(Clone, Debug)]
pub struct CompChannel {
    port: Arc<Port>,
    pub(crate) shared: Arc<ChannelShared>,
}

impl CompChannel {
    pub(crate) fn new(port: Arc<Port>, standby: Arc<Standby>) -> io::Result<Self> {
        let shared = ChannelShared {
            mail: Mailbox::new(0),
            bell: EventFd::new()?,
            set: OnceLock::new(),
            interest: Mutex::default(),
            standby,
            idle: AtomicU32::new(0),
        };
        Ok(Self { port, shared: Arc::new(shared) })
    }

    /// Takes the oldest event; if there is none, drives the device as long as something is there to
    /// do. After `None` a program can sleep on [`CompChannel::watch`]'s descriptor, whether that tells
    /// of states or of changes.
    pub fn try_get(&self) -> Option<Arc<Notice>> {
        let shared = &*self.shared;
        if shared.has_set() {
            shared.standby.bell().suspect(); // It may be what has woken the program.
        }
        let mut notice = shared.take();
        for _ in 0..STEPS_MAX {
            if notice.is_some() {
                return notice;
            }
            let mut busy = false;
            notice = shared.take_after(|| busy = self.port.drive());
            if !busy {
                break;
            }
        }
        if notice.is_some() || !shared.has_set() {
            return notice;
        }
        // What waits for the program's next call would wait for long; and what a stranger has sent
        // to be passed on, which nobody takes else, must not wake the program again and again.
        let idle = shared.idle.fetch_add(1, Ordering::Relaxed) % IDLE_MAX == IDLE_MAX - 1;
        if idle || self.port.has_deferred() {
            return shared.take_after(|| {
                self.port.help();
            });
        }
        None
    }

    /// Takes the oldest event, and drives the device until there is one, at most for `timeout`
    /// (`None`: for ever). The processor is free while nothing arrives.
    ///
    /// # Errors
    ///
    /// None in practice: those of `poll(2)`.
    pub fn get(&self, timeout: Option<Duration>) -> io::Result<Option<Arc<Notice>>> {
        let deadline = timeout.map(deadline);
        let (mut overdue, mut woken) = (false, false);
        loop {
            if let Some(notice) = self.shared.take() {
                return Ok(Some(notice));
            }
            let busy = if overdue { self.port.help() } else { self.port.drive() };
            // Who was woken for nothing has to be thorough, or the same wakes him for ever.
            overdue = woken && !busy && !overdue;
            woken = false;
            if busy || overdue {
                continue; // What came may have been more than one packet.
            }
            let left = deadline.map(left);
            if left.is_some_and(|left| left.is_zero()) {
                return Ok(None);
            }
            // An acknowledgement may wait for an answer to go with, but not for long.
            let owes = self.port.has_deferred();
            let most = if owes { Some(ACK_PATIENCE) } else { None };
            let timeout = most.into_iter().chain(left).min();
            if self.shared.mail.begin_sleep() {
                let standby = &self.shared.standby;
                standby.bell().announce();
                let slept = match self.port.has_record_left() {
                    true => Ok(true),
                    false => standby.sleep(&self.shared.bell, timeout),
                };
                standby.bell().retire();
                self.shared.mail.end_sleep();
                woken = slept?;
                overdue = owes && !woken;
            }
        }
    }

    /// A descriptor that can be read while there are events, and when a packet comes that may
    /// bring one: whoever wakes calls [`CompChannel::try_get`] until it has nothing. From now on
    /// each packet costs a call-back in the kernel. Where a device has many of them already, it is that of
    /// [`CompChannel::watch_events`].
    ///
    /// # Errors
    ///
    /// No descriptors left.
    pub fn watch(&self) -> io::Result<BorrowedFd<'_>> {
        let shared = &*self.shared;
        if shared.set.get().is_none() {
            let new = shared.standby.new_set(&shared.bell)?;
            shared.mail.watch(|| drop(shared.bell.signal()));
            let _ = shared.set.set(new);
        }
        let set = shared.set.get().and_then(Option::as_ref);
        Ok(set.map_or_else(|| self.watch_events(), |set| set.as_fd()))
    }

    /// A descriptor that can be read exactly while there are events. From now on the helper drives
    /// the device whenever a queue of this channel is armed, and a wake-up takes two steps.
    pub fn watch_events(&self) -> BorrowedFd<'_> {
        let shared = &*self.shared;
        let mut interest = shared.interest();
        if !interest.watched {
            interest.watched = true;
            shared.standby.engage(interest.armed);
            shared.mail.watch(|| drop(shared.bell.signal()));
        }
        shared.bell.as_fd()
    }
}

/// Bells of one thread that wait, as many as it has room for from the start.
const BELLS: usize = 64;
/// Looks that may find nothing before one is thorough.
const IDLE_MAX: u32 = 16;
/// Steps that one look for an event may take, so that others' traffic does not keep it for ever.
const STEPS_MAX: usize = 64;
/// How long a sleeper leaves an acknowledgement to the program's next message.
const ACK_PATIENCE: Duration = Duration::from_micros(100);
