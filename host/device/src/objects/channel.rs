//! Completion channels: where programs sleep until a completion queue has something for them.
//!
//! A queue that was armed puts its [`Notice`] into the channel's mail, once for each time it was
//! armed. A thread that sleeps in [`CompChannel::get`] drives the device itself, and so does one that
//! sleeps on [`CompChannel::watch`]'s descriptor, which wakes it for packets too. For programs that
//! can only be woken for events, [`CompChannel::watch_events`], the helper stands in from arming on.

use crate::objects::events::{deadline, left};
use crate::objects::notice::{ChannelShared, Notice};
use crate::objects::progress::Progress;
use crate::objects::standby::Standby;
use adverb_sys::signals::Held;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// A completion channel. `struct ibv_comp_channel`.
#[derive(Clone, Debug)]
pub struct CompChannel {
    port: Arc<dyn Progress>,
    pub(crate) shared: Arc<ChannelShared>,
}

impl CompChannel {
    pub(crate) fn new(port: Arc<dyn Progress>, standby: Arc<Standby>) -> io::Result<Self> {
        Ok(Self { port, shared: Arc::new(ChannelShared::new(standby)?) })
    }

    /// Takes the oldest event; if there is none, drives the device as long as something is there to
    /// do. After `None` a program can sleep on [`CompChannel::watch`]'s descriptor, whether that tells
    /// of states or of changes.
    pub fn try_get(&self) -> Option<Arc<Notice>> {
        let shared = &*self.shared;
        if shared.has_set() {
            shared.standby.doorbell().suspect(); // It may be what has woken the program.
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
        // to be passed on, which no other thread takes, must not wake the program again and again.
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
        self.get_while(timeout, None)
    }

    /// As [`CompChannel::try_get`], and if there is none and the caller `waits`, as [`CompChannel::get`], until a signal
    /// comes whose handler asks for no restart. A signal that comes while the device is driven ends the wait, too.
    ///
    /// # Errors
    ///
    /// `Interrupted`.
    pub fn get_unless_signal(
        &self,
        waits: impl FnOnce() -> bool,
        timeout: Duration,
    ) -> io::Result<Option<Arc<Notice>>> {
        let held = Held::new();
        let notice = self.try_get();
        if notice.is_some() || !waits() {
            return Ok(notice);
        }
        self.get_while(Some(timeout), Some(&held))
    }

    fn get_while(
        &self,
        timeout: Option<Duration>,
        held: Option<&Held>,
    ) -> io::Result<Option<Arc<Notice>>> {
        let deadline = timeout.map(deadline);
        let (mut overdue, mut woken) = (false, false);
        let mut steps = 0_usize;
        loop {
            if let Some(notice) = self.shared.take() {
                return Ok(Some(notice));
            }
            let busy = if overdue { self.port.help() } else { self.port.drive() };
            // A thread that was woken for nothing has to be thorough, or the same wakes it for ever.
            overdue = woken && !busy && !overdue;
            woken = false;
            steps += 1;
            let signals = |held: &Held| {
                let doorbell = self.shared.doorbell.as_fd();
                held.readable(doorbell, std::iter::empty(), Some(Duration::ZERO))
            };
            let pauses = steps.is_multiple_of(STEPS_MAX);
            if let Some(held) = held.filter(|_| pauses) {
                signals(held)?;
            }
            if (busy || overdue) && !pauses {
                continue; // What came may have been more than one packet.
            }
            let left = deadline.map(left);
            if left.is_some_and(|left| left.is_zero()) {
                held.map_or(Ok(false), signals)?;
                return Ok(None);
            }
            if busy || overdue {
                continue;
            }
            // An acknowledgement may wait for an answer to go with, but not for long.
            let owes = self.port.has_deferred();
            let most = if owes { Some(ACK_DELAY_MAX) } else { None };
            let timeout = most.into_iter().chain(left).min();
            if self.shared.mail.begin_sleep() {
                let standby = &self.shared.standby;
                standby.doorbell().announce();
                let slept = match self.port.has_record_left() {
                    true => Ok(true),
                    false => standby.sleep(&self.shared.doorbell, timeout, held),
                };
                standby.doorbell().retire();
                self.shared.mail.end_sleep();
                woken = slept?;
                overdue = owes && !woken;
            }
        }
    }

    /// A descriptor that can be read while there are events, and when a packet comes that may
    /// bring one: the woken thread calls [`CompChannel::try_get`] until it has nothing. From now on
    /// each packet costs a call-back in the kernel. Where a device has many of them already, it is that of
    /// [`CompChannel::watch_events`].
    ///
    /// # Errors
    ///
    /// No descriptors left.
    pub fn watch(&self) -> io::Result<BorrowedFd<'_>> {
        let shared = &*self.shared;
        if shared.set.get().is_none() {
            let new = shared.standby.new_set(&shared.doorbell)?;
            shared.mail.watch(|| drop(shared.doorbell.signal()));
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
            shared.mail.watch(|| drop(shared.doorbell.signal()));
        }
        shared.doorbell.as_fd()
    }
}

/// Looks that may find nothing before one is thorough.
const IDLE_MAX: u32 = 16;
/// Steps that one look for an event may take, so that others' traffic does not keep it for ever; and those until signals
/// are let in that are held back.
const STEPS_MAX: usize = 64;
/// How long a sleeper leaves an acknowledgement to the program's next message.
const ACK_DELAY_MAX: Duration = Duration::from_micros(100);
