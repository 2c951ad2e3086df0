//! Descriptors of the device: which are ours, and what is behind each.

use crate::descriptor::Descriptor;
use crate::errno::Answer;
use adverb_device::locks::Mutex;
use adverb_rdmacm::EventQueue;
use libc::c_int;
use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// An open descriptor of the device: librdmacm's event channel.
pub(super) struct Channel {
    descriptor: Descriptor,
    /// Of all channels of this process: the descriptor's number may be another's later.
    pub(super) opening: u64,
    pub(super) queue: EventQueue,
}

static OPENINGS: AtomicU64 = AtomicU64::new(1);

static CHANNELS: Mutex<BTreeMap<c_int, Arc<Channel>>> = Mutex::new(BTreeMap::new());

/// Opens the device.
pub(super) fn open(flags: c_int) -> Answer<c_int> {
    let queue = EventQueue::new()?;
    let descriptor = Descriptor::watching(queue.as_fd())?;
    if flags & libc::O_NONBLOCK != 0 {
        descriptor.set_non_blocking()?;
    }
    let number = descriptor.number();
    let opening = OPENINGS.fetch_add(1, Ordering::Relaxed);
    CHANNELS.lock().insert(number, Arc::new(Channel { descriptor, opening, queue }));
    Ok(number)
}

/// The descriptor is one of ours.
pub(super) fn is_ours(fd: c_int) -> bool {
    CHANNELS.lock().contains_key(&fd)
}

/// What is behind a descriptor, if it is one of ours.
pub(super) fn find(fd: c_int) -> Option<Arc<Channel>> {
    CHANNELS.lock().get(&fd).cloned()
}

/// Takes a descriptor out, if it is one of ours. It is closed once no call uses it any more.
pub(super) fn remove(fd: c_int) -> Option<Arc<Channel>> {
    CHANNELS.lock().remove(&fd)
}

impl Channel {
    /// The program wants to wait for events.
    pub(super) fn waits(&self) -> bool {
        !self.descriptor.is_non_blocking()
    }
}

/// The number of the kernel's device, which librdmacm expects where there is one; 0 otherwise.
pub(super) fn kernel_device() -> libc::dev_t {
    std::fs::metadata("/dev/infiniband/rdma_cm").map_or(0, |found| found.rdev())
}
