//! Completion queues, their channels, and asynchronous events, of either provider.

use crate::hw;
use adverb_device::{Arm, AsyncEvent, Completion, EventQueue, Notice, Overrun, ResizeError};
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

/// The asynchronous events of a context.
#[derive(Clone, Debug)]
pub(crate) enum Events {
    Soft(Arc<EventQueue>),
    Hw(Arc<hw::Port>),
}

impl Events {
    pub(crate) fn soft(&self) -> Option<&Arc<EventQueue>> {
        match self {
            Self::Soft(queue) => Some(queue),
            Self::Hw(_) => None,
        }
    }

    pub(crate) fn get(&self, timeout: Option<Duration>) -> io::Result<Option<AsyncEvent>> {
        match self {
            Self::Soft(queue) => queue.get(timeout),
            Self::Hw(port) => port.event(timeout),
        }
    }

    pub(crate) fn try_get(&self) -> Option<AsyncEvent> {
        match self {
            Self::Soft(queue) => queue.try_get(),
            Self::Hw(port) => port.try_event(),
        }
    }

    pub(crate) fn lost(&self) -> u64 {
        either!(self, queue => queue.lost(), else 0)
    }

    pub(crate) fn watch(&self) -> BorrowedFd<'_> {
        match self {
            Self::Soft(queue) => queue.watch(),
            Self::Hw(port) => port.context().async_fd(),
        }
    }
}

/// A completion queue had something.
#[derive(Debug)]
pub(crate) struct Wake {
    /// Which, among those of its channel.
    pub(crate) id: u64,
    /// What is to be acknowledged; nothing where that is done already.
    pub(crate) notice: Option<Arc<Notice>>,
}

impl Wake {
    pub(super) fn soft(notice: Arc<Notice>) -> Self {
        Self { id: notice.id(), notice: Some(notice) }
    }

    pub(super) fn hw(id: u64) -> Self {
        Self { id, notice: None }
    }
}

/// A completion channel.
#[derive(Clone, Debug)]
pub(crate) enum CompChannel {
    Soft(adverb_device::CompChannel),
    Hw(Arc<adverb_ibv::Channel>),
}

impl CompChannel {
    pub(super) fn soft(&self) -> Option<&adverb_device::CompChannel> {
        match self {
            Self::Soft(channel) => Some(channel),
            Self::Hw(_) => None,
        }
    }

    pub(super) fn hw(&self) -> Option<&Arc<adverb_ibv::Channel>> {
        match self {
            Self::Soft(_) => None,
            Self::Hw(channel) => Some(channel),
        }
    }

    pub(crate) fn get(&self, timeout: Option<Duration>) -> io::Result<Option<Wake>> {
        match self {
            Self::Soft(channel) => Ok(channel.get(timeout)?.map(Wake::soft)),
            Self::Hw(channel) => {
                Ok(hw::wait(timeout, || channel.take(), || channel.fd())?.map(Wake::hw))
            }
        }
    }

    pub(crate) fn try_get(&self) -> Option<Wake> {
        match self {
            Self::Soft(channel) => channel.try_get().map(Wake::soft),
            Self::Hw(channel) => channel.take().ok().flatten().map(Wake::hw),
        }
    }

    pub(crate) fn watch(&self) -> io::Result<BorrowedFd<'_>> {
        match self {
            Self::Soft(channel) => channel.watch(),
            Self::Hw(channel) => Ok(channel.fd()),
        }
    }

    pub(crate) fn watch_events(&self) -> BorrowedFd<'_> {
        match self {
            Self::Soft(channel) => channel.watch_events(),
            Self::Hw(channel) => channel.fd(),
        }
    }
}

/// A completion queue.
#[derive(Clone, Debug)]
pub(crate) enum Cq {
    Soft(adverb_device::Cq),
    Hw(Arc<hw::Cq>),
}

impl Cq {
    pub(crate) fn soft(&self) -> Option<&adverb_device::Cq> {
        match self {
            Self::Soft(cq) => Some(cq),
            Self::Hw(_) => None,
        }
    }

    /// Its name in events of its channel; `None` if it has none.
    pub(crate) fn id(&self) -> Option<u64> {
        match self {
            Self::Soft(cq) => cq.notice().map(Notice::id),
            Self::Hw(cq) => Some(cq.name()),
        }
    }

    pub(crate) fn capacity(&self) -> usize {
        either!(self, cq => cq.capacity())
    }

    pub(crate) fn resize(&self, cqe: u32) -> Result<(), ResizeError> {
        either!(self, cq => cq.resize(cqe))
    }

    /// Acknowledges events; those of hardware are acknowledged when they are taken.
    pub(crate) fn acknowledge(&self, count: u32) {
        match self {
            Self::Soft(cq) => {
                if let Some(notice) = cq.notice() {
                    notice.acknowledge(count);
                }
            }
            Self::Hw(_) => {}
        }
    }

    pub(crate) fn unacknowledged(&self) -> u32 {
        match self {
            Self::Soft(cq) => {
                let notice = cq.notice().map_or(0, Notice::unacknowledged);
                notice.saturating_add(cq.unacknowledged_async())
            }
            Self::Hw(_) => 0,
        }
    }

    /// Asks for an event; false if there is no channel for it.
    #[inline]
    pub(crate) fn arm(&self, solicited_only: bool) -> bool {
        match self {
            Self::Soft(cq) => cq.arm(if solicited_only { Arm::Solicited } else { Arm::Any }),
            Self::Hw(cq) => cq.arm(solicited_only),
        }
    }

    #[inline]
    pub(crate) fn poll(&self, out: &mut [Completion]) -> Result<usize, Overrun> {
        either!(self, cq => cq.poll(out))
    }
}
