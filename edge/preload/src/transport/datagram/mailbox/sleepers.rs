//! Sleepers of a mailbox: while there are any, what comes goes through the kernel, which wakes them.
//!
//! One datagram is enough for that. So a sleeper that reads the mailbox when it wakes says so, in the word, and a sender
//! that has given one to the kernel for it puts those that follow into the mailbox, as long as the word says that it is
//! the same sleep: so a stream stays in the mailbox while its receiver waits for a processor. Only the kernel's datagram
//! wakes the sleeper. So this is done only where one thread reads, and none can take away what it is woken for; the
//! first time that another thread comes to read, its call waits until the sleeper is up.

use std::sync::atomic::Ordering;

use super::word::{COMING, GONE, KNOCKABLE, SLEEP, SLEEPERS, SLEEPERS_SHIFT, Sleep, marked};
use super::{COMING_NS, Consumer, Header, Mailbox, NAP_NS, Published};
use crate::base::raw;
use crate::base::thread::{self, Here};
use crate::base::yields::Yields;

/// How long another reader waits for a sleeper that has been woken, whether or not the program's call may wait, and for how
/// long a handler reads nothing that has interrupted it, nor a thread that holds what others need.
const SLEEPER_NS: u64 = 20_000_000;

impl Mailbox {
    /// The caller is about to sleep: from now on the kernel brings what comes. Refused if there is
    /// a record already, or about to be one.
    pub(crate) fn doze(&self) -> bool {
        self.fall_asleep(0).is_some()
    }

    /// The same, for a thread that reads what is here when the kernel has woken it. Returns whether senders know that.
    pub(crate) fn doze_to_read(&self) -> Option<bool> {
        let sleeps = &self.header().consumer.sleeps;
        let mark = match self.is_only_reader(Here::find()) {
            true => marked(sleeps.fetch_add(1, Ordering::AcqRel).wrapping_add(1)),
            false => 0,
        };
        Some(self.fall_asleep(mark)? & KNOCKABLE != 0)
    }

    /// Returns what the word says then, marked if the caller is the only sleeper.
    fn fall_asleep(&self, mark: u64) -> Option<u64> {
        let Header { published: Published { word, .. }, consumer, .. } = self.header();
        let mut now = word.load(Ordering::Acquire);
        loop {
            if now & COMING != 0 {
                self.forget_the_dead();
                return None;
            }
            let is_empty = now >> SLEEPERS_SHIFT == consumer.tail.load(Ordering::Acquire);
            if !is_empty || now & SLEEPERS == SLEEPERS {
                return None;
            }
            let new = match now & SLEEPERS {
                0 => now & !(KNOCKABLE | SLEEP) | mark,
                _ => now,
            } + 1;
            let (o, r) = (Ordering::AcqRel, Ordering::Acquire);
            match word.compare_exchange_weak(now, new, o, r) {
                Ok(_) => return Some(new),
                Err(changed) => now = changed,
            }
        }
    }

    /// From now on the kernel brings what comes, whatever is here already. What is about to be here
    /// is waited for, but not for ever: a sender may be stopped, or have written nonsense.
    pub(crate) fn hold(&self) {
        let up = |now: u64| (now & (SLEEPERS | COMING) < SLEEPERS).then(|| now + 1);
        let word = &self.header().published.word;
        let until = raw::now_ns() + COMING_NS;
        let mut yields = Yields::default();
        while let Err(now) = word.fetch_update(Ordering::AcqRel, Ordering::Acquire, up) {
            if now & COMING == 0 {
                return;
            }
            if raw::now_ns() > until {
                word.fetch_and(!COMING, Ordering::AcqRel);
            } else if !yields.give_way() {
                self.forget_the_dead();
                raw::nap(NAP_NS);
            }
        }
    }

    /// A sender has died between two steps, or none is about to publish: what was to come does not come.
    fn forget_the_dead(&self) {
        let Header { published: Published { word, .. }, producer, .. } = self.header();
        let held = producer.lock.try_hold();
        if held.is_some() || producer.lock.is_abandoned() {
            word.fetch_and(!COMING, Ordering::AcqRel);
        }
    }

    /// Whether an owner sleeps, or holds senders off.
    #[inline]
    pub(super) fn has_sleeper(&self) -> bool {
        self.header().published.word.load(Ordering::Acquire) & SLEEPERS != 0
    }

    /// A sleeper has woken up, or a hold has ended.
    pub(crate) fn awake(&self) {
        let down = |now: u64| (now & SLEEPERS > 0).then(|| now - 1);
        let _ =
            self.header().published.word.fetch_update(Ordering::AcqRel, Ordering::Acquire, down);
    }

    /// A thread has woken up that has dozed to read; `is_known`: senders knew it.
    pub(crate) fn awake_to_read(&self, is_known: bool) {
        if !is_known {
            return self.awake();
        }
        let down = |now: u64| Some((now & !(KNOCKABLE | SLEEP)) - u64::from(now & SLEEPERS > 0));
        let _ =
            self.header().published.word.fetch_update(Ordering::AcqRel, Ordering::Acquire, down);
    }

    /// The sleep that a sender may end by what it gives to the kernel, and after that put more here.
    pub(crate) fn sleep(&self) -> Option<Sleep> {
        let Header { published: Published { word, .. }, consumer, .. } = self.header();
        let bits = word.load(Ordering::Acquire) & (GONE | SLEEPERS | KNOCKABLE | SLEEP);
        let number = consumer.sleeps.load(Ordering::Acquire);
        let is_shared = consumer.is_shared.load(Ordering::Acquire) != 0;
        Sleep::of_one(self.cookie(), bits, number).filter(|_| !is_shared)
    }

    /// Before the calling thread takes what is here, and what the kernel has. If another one sleeps that the kernel has
    /// woken for records that are here, it is waited for: if it found nothing there any more, it would sleep on. That can
    /// happen to a mailbox once, when the second thread comes to read. Refused for a while to a handler that has interrupted
    /// the sleeper itself, which would wait for it in vain, and to a call that must not wait.
    #[inline]
    #[must_use]
    pub(crate) fn let_sleeper_wake(&self, here: Here, waits: bool) -> bool {
        self.is_only_reader(here) || !self.has_woken_sleeper() || self.outlast_sleeper(waits)
    }

    #[inline]
    fn has_woken_sleeper(&self) -> bool {
        self.header().published.word.load(Ordering::Acquire) & KNOCKABLE != 0 && self.has_record()
    }

    /// Whether no thread but the calling one has read here so far. A handler may have interrupted the sleep of its thread.
    #[inline]
    fn is_only_reader(&self, here: Here) -> bool {
        let consumer = &self.header().consumer;
        let (me, is_handler) = here.id_and_handler();
        if !is_handler && consumer.reader.load(Ordering::Relaxed) == me {
            return consumer.is_shared.load(Ordering::Relaxed) == 0;
        }
        self.is_first_reader(me, is_handler)
    }

    #[cold]
    fn is_first_reader(&self, me: u32, is_handler: bool) -> bool {
        let Header { published: Published { word, .. }, consumer, .. } = self.header();
        let (o, r) = (Ordering::AcqRel, Ordering::Acquire);
        if !is_handler && consumer.reader.compare_exchange(0, me, o, r).is_ok() {
            return consumer.is_shared.load(Ordering::Acquire) == 0;
        }
        if consumer.is_shared.swap(1, Ordering::AcqRel) == 0 {
            // Written even if it stays as it is: a sender that sees a later sleep sees this, too. And a sender that is about
            // to put something here for this one finds that it is over.
            let mark = marked(consumer.sleeps.fetch_add(1, Ordering::AcqRel).wrapping_add(1));
            let renew = |now: u64| match now & KNOCKABLE {
                0 => Some(now),
                _ => Some(now & !SLEEP | mark),
            };
            let _ = word.fetch_update(o, r, renew);
        }
        false
    }

    /// A call that may wait does not fail: what a program was told of once, it may never ask for again. That of a handler, or
    /// one that asks again, fails for the time being. The sleeper may have ended without having woken up, or what was to wake
    /// it may be lost.
    #[cold]
    fn outlast_sleeper(&self, waits: bool) -> bool {
        let Consumer { reader, refused_ns, .. } = &self.header().consumer;
        let is_own = reader.load(Ordering::Relaxed) == thread::id();
        if !waits || is_own && thread::is_in_handler() {
            let (now, o) = (raw::now_ns(), Ordering::Relaxed);
            let since = refused_ns.compare_exchange(0, now, o, o).err().unwrap_or(now);
            // A time far in the future was not written by a reader.
            if now.abs_diff(since) <= SLEEPER_NS {
                return false;
            }
        } else if !is_own {
            let until = raw::now_ns().saturating_add(SLEEPER_NS);
            while self.has_woken_sleeper() && raw::now_ns() <= until {
                raw::nap(NAP_NS);
            }
        }
        if self.has_woken_sleeper() {
            self.header().published.word.fetch_and(!(KNOCKABLE | SLEEP), Ordering::AcqRel);
        }
        true
    }

    /// Ends the maker's hold, once no thread can be asleep that does not know of the mailbox:
    /// `strangers` of them sleep in calls, and `watchers` epoll instances know the socket.
    #[cold]
    pub(crate) fn let_senders(&self, strangers: u32, watchers: u32) {
        let header = self.header();
        if header.consumer.hold.load(Ordering::Relaxed) != 0
            && strangers == 0
            && header.seen.load(Ordering::SeqCst) >= watchers
            && header.consumer.hold.swap(0, Ordering::AcqRel) != 0
        {
            self.awake();
        }
    }

    /// An epoll instance has got to know of the mailbox, or knows of it no longer.
    pub(crate) fn seen(&self, is_new: bool) {
        let seen = &self.header().seen;
        if is_new {
            seen.fetch_add(1, Ordering::SeqCst);
        } else {
            let down = |count: u32| count.checked_sub(1);
            let _ = seen.fetch_update(Ordering::SeqCst, Ordering::SeqCst, down);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};

    use super::super::Pushed;
    use super::*;
    use crate::base::iovec::IoCursor;

    /// Goal: a reader that must not wait gets nothing while another one is woken for what is there, and does so in time where
    /// that stays away.
    #[test]
    fn a_reader_that_must_not_wait_does_not_wait_for_a_sleeper() {
        let mailbox = &Mailbox::of_test("woken", 7);
        mailbox.let_senders(0, 0);
        let from = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 5);
        let place = mailbox.enter(1, from, None).expect("a place");
        assert!(mailbox.let_sleeper_wake(Here::find(), false));
        assert_eq!(mailbox.doze_to_read(), Some(true));
        let woken = mailbox.sleep();
        assert!(woken.is_some());
        let pushed = mailbox.push(place, 0, &mut IoCursor::new(&[]), 0, false, woken);
        assert!(matches!(pushed, Pushed::At(_)));
        let read = |mailbox: &Mailbox| mailbox.let_sleeper_wake(Here::find(), false);
        let other = || {
            let first = read(mailbox);
            while !read(mailbox) {
                raw::nap(NAP_NS);
            }
            first
        };
        let first_of_other = || std::thread::scope(|threads| threads.spawn(other).join());
        assert!(matches!(first_of_other(), Ok(false)));
        assert!(!mailbox.has_woken_sleeper());
        // A neighbour has written a time that never comes.
        let Published { word, .. } = &mailbox.header().published;
        word.fetch_or(KNOCKABLE, Ordering::AcqRel);
        mailbox.header().consumer.refused_ns.store(u64::MAX, Ordering::Relaxed);
        assert!(mailbox.has_woken_sleeper() && matches!(first_of_other(), Ok(true)));
    }
}
