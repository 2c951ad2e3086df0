//! The monitor: a thread that hears of changes of the network interface and raises events for them.
//!
//! It compares what the interface is like with what it was like, from the state in which the device
//! was opened on, so that no order and no loss of the kernel's messages makes it miss a change that
//! lasts. It is started when a program first asks for asynchronous events, and ends with the port.

use crate::link::gid::{Device, GidEntry, GidTable};
use crate::objects::events::{Audience, Element, EventKind};
use adverb_sys::eventfd::EventFd;
use adverb_sys::netlink::Changes;
use adverb_sys::poll;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// The thread, seen from the port.
#[derive(Debug)]
pub(crate) struct Monitor {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    audience: Arc<Audience>,
    /// Follows before a change is told.
    gids: Arc<GidTable>,
    changes: Changes,
    wake: EventFd,
    stop: AtomicBool,
}

/// State of the interface at the last look.
#[derive(Clone, Debug, Eq, PartialEq)]
enum Seen {
    Gone,
    There { active: bool, gids: Vec<GidEntry> },
}

impl Monitor {
    /// Listens in the network namespace of the calling thread.
    pub(crate) fn start(
        device: &Device,
        gids: Arc<GidTable>,
        audience: Arc<Audience>,
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            audience,
            gids,
            changes: Changes::subscribe()?,
            wake: EventFd::new()?,
            stop: AtomicBool::new(false),
        });
        let ours = Arc::clone(&shared);
        let seen = Seen::There { active: device.active, gids: device.gids.clone() };
        let run = move || ours.run(seen);
        let thread = adverb_sys::signals::spawn("adverb-monitor", run)?;
        Ok(Self { shared, thread: Some(thread) })
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        let _ = self.shared.wake.signal();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn run(&self, mut seen: Seen) {
        while !self.stop.load(Ordering::Acquire) && seen != Seen::Gone {
            if let Ok(found) = self.gids.look() {
                let now = found.map_or(Seen::Gone, |device| Seen::There {
                    active: device.active,
                    gids: device.gids,
                });
                for (kind, element) in seen.changes_to(&now) {
                    self.audience.announce(kind, element);
                }
                seen = now;
            }
            let changes = std::iter::once(self.changes.as_fd());
            if poll::readable(&self.wake, changes, None).is_err() || self.changes.drain().is_err() {
                return;
            }
        }
    }
}

impl Seen {
    /// What there is to tell.
    fn changes_to(&self, now: &Self) -> Vec<(EventKind, Element)> {
        let port = Element::Port { number: 1 };
        let Self::There { active, gids } = self else {
            return Vec::new(); // The end was told.
        };
        let mut told = Vec::new();
        match now {
            Self::Gone => {
                if *active {
                    told.push((EventKind::PortErr, port));
                }
                told.push((EventKind::DeviceFatal, Element::Device));
            }
            Self::There { active: is_active, gids: are } => {
                if are != gids {
                    told.push((EventKind::GidChange, port));
                }
                match (active, is_active) {
                    (true, false) => told.push((EventKind::PortErr, port)),
                    (false, true) => told.push((EventKind::PortActive, port)),
                    (true, true) | (false, false) => {}
                }
            }
        }
        told
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_difference_is_told_once() {
        let there = |active| Seen::There { active, gids: Vec::new() };
        let kinds = |from: Seen, to: Seen| -> Vec<EventKind> {
            from.changes_to(&to).into_iter().map(|(kind, _)| kind).collect()
        };
        assert_eq!(kinds(there(true), there(true)), []);
        assert_eq!(kinds(there(true), there(false)), [EventKind::PortErr]);
        assert_eq!(kinds(there(false), there(true)), [EventKind::PortActive]);
        assert_eq!(kinds(there(false), Seen::Gone), [EventKind::DeviceFatal]);
        assert_eq!(kinds(there(true), Seen::Gone), [EventKind::PortErr, EventKind::DeviceFatal]);
        assert_eq!(kinds(Seen::Gone, there(true)), []);
    }
}
