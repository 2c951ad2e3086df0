//! An epoll instance from outside: seen by `poll`, and by another instance that watches it.

use std::ffi::c_int;
use std::sync::atomic::{Ordering, fence};

use super::item::{Item, Target};
use super::{BELL, Epoll, IDLE_MAX, MARK, State, crowding, kernel_control, kernel_wait};
use crate::transport::doorbell::Sleeping;

impl Epoll {
    /// Whether something in it has rings, so that the kernel's word about it is not the last.
    pub(crate) fn has_marks(&self) -> bool {
        self.count.load(Ordering::Relaxed) > 0 && self.with(|state| state.marks > 0)
    }

    /// Takes what the kernel has to report: items with bells are polled, and the rest is kept for
    /// the program's next call.
    pub(crate) fn harvest(&self, epfd: c_int) {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; EVENTS_MAX];
        let found = kernel_wait(epfd, &mut events);
        let kept = self.sift(epfd, &mut events, found);
        self.with(|state| {
            for event in events.iter().take(kept) {
                let data = event.u64;
                match state.kept.iter_mut().find(|known| { known.u64 } == data) {
                    Some(known) => known.events = event.events | { known.events },
                    None => state.kept.push(*event),
                }
            }
        });
    }

    /// Whether an item has something to report.
    pub(crate) fn is_ready(&self) -> bool {
        self.count.load(Ordering::Relaxed) > 0
            && self.with(|state| {
                if !state.kept.is_empty() {
                    return true;
                }
                let items = &state.items;
                let mut polled = state.polled.iter();
                polled.any(|at| {
                    items.get(*at).and_then(Option::as_ref).is_some_and(|item| item.due() != 0)
                })
            })
    }

    /// Arms everything, so that the kernel's instance becomes readable when something happens.
    /// Returns false if something has happened already. `own`: the caller is about to sleep on this
    /// very instance, by this descriptor, and wakes everything up again: then one bell is enough for all.
    pub(crate) fn arm(&self, own: Option<c_int>) -> bool {
        self.with(|state| {
            if let Some(epfd) = own
                && state.doorbell.number() == 0
                && state.marks > 0
            {
                state.doorbell.take();
                if let Some(fd) = state.doorbell.fd() {
                    let events = (libc::EPOLLIN | libc::EPOLLET).cast_unsigned();
                    let _ = kernel_control(epfd, libc::EPOLL_CTL_ADD, fd, events, MARK | BELL);
                }
            }
            state.is_watched |= own.is_none();
            let State { items, polled, parked, doorbell, .. } = state;
            let worth = PARK_WORTH.saturating_mul(crowding(polled));
            let number = own.map_or(0, |_| doorbell.number());
            let mut each = |f: &mut dyn FnMut(&mut Item) -> bool| {
                let mut is_quiet = true;
                for at in polled.iter() {
                    is_quiet &= items.get_mut(*at).and_then(Option::as_mut).is_none_or(&mut *f);
                }
                is_quiet
            };
            let mut is_quiet = each(&mut |item| {
                item.idle = item.idle.saturating_add(worth);
                // An item without news for long is notified for alone from now on.
                item.arm(if item.idle > IDLE_MAX { 0 } else { number })
            });
            if number != 0 {
                doorbell.set(Sleeping::InKernel);
                // A peer that has something for us sees that, or we see what it has.
                fence(Ordering::SeqCst);
                is_quiet = is_quiet && each(&mut |item| item.due() == 0);
            }
            if is_quiet {
                polled.retain(|at| {
                    let Some(item) = items.get_mut(*at).and_then(Option::as_mut) else {
                        return false;
                    };
                    item.is_polled = matches!(item.target, Target::Inner(_));
                    let is_notified_alone = item.idle > IDLE_MAX || item.is_read_by_kernel();
                    if !item.is_polled && !item.is_parked && !is_notified_alone {
                        item.is_parked = true;
                        parked.push(*at);
                    }
                    item.is_polled
                });
            }
            is_quiet
        })
    }

    /// Registers what has got rings; for a poll of this instance from outside.
    pub(crate) fn refresh(&self, epfd: c_int) {
        if self.count.load(Ordering::Relaxed) > 0 {
            self.sync(epfd);
        }
    }
}

/// To go to sleep and to wake up takes as long, for each item, as so many looks.
const PARK_WORTH: u32 = 8;

/// The most events that the kernel is asked for at a time.
const EVENTS_MAX: usize = 64;
