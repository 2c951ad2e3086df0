//! Receive queues of simulated nodes: one that several nodes may share, and those that XRC names.

use adverb_engine::{LocalError, NoReceive, Receive};
use adverb_wire::Qpn;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::rc::Rc;
use alloc::vec;
use alloc::vec::Vec;
use core::cell::RefCell;

/// Receive queues, perhaps those of several nodes: clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Receives(Rc<RefCell<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    own: VecDeque<Receive>,
    /// Shared queues that XRC names.
    shared: BTreeMap<Qpn, VecDeque<Receive>>,
    buffers: BTreeMap<u32, Buffer>,
}

#[derive(Debug)]
struct Buffer {
    bytes: Vec<u8>,
    /// No region covers the bytes from this offset on.
    writable: usize,
}

impl Receives {
    /// Queues a receive of `len` bytes, of which the first `writable` can be written, and returns
    /// its name.
    pub(crate) fn post(&self, srq: Option<Qpn>, len: u32, writable: usize) -> u32 {
        let mut inner = self.0.borrow_mut();
        let token = u32::try_from(inner.buffers.len()).unwrap_or(u32::MAX);
        let bytes = vec![0; usize::try_from(len).unwrap_or(0)];
        inner.buffers.insert(token, Buffer { bytes, writable });
        let queue = match srq {
            Some(srq) => inner.shared.entry(srq).or_default(),
            None => &mut inner.own,
        };
        queue.push_back(Receive { token, len });
        token
    }

    pub(crate) fn take(&self, srq: Option<Qpn>) -> Result<Receive, NoReceive> {
        let mut inner = self.0.borrow_mut();
        let queue = match srq {
            Some(srq) => inner.shared.get_mut(&srq).ok_or(NoReceive::NoSuchQueue)?,
            None => &mut inner.own,
        };
        queue.pop_front().ok_or(NoReceive::Empty)
    }

    pub(crate) fn put_back(&self, receive: Receive, srq: Option<Qpn>) {
        let mut inner = self.0.borrow_mut();
        match srq {
            Some(srq) => inner.shared.entry(srq).or_default().push_front(receive),
            None => inner.own.push_front(receive),
        }
    }

    pub(crate) fn scatter(&self, token: u32, at: usize, bytes: &[u8]) -> Result<(), LocalError> {
        let mut inner = self.0.borrow_mut();
        let buffer = inner.buffers.get_mut(&token).expect("the receive was posted");
        if at.saturating_add(bytes.len()) > buffer.writable {
            return Err(LocalError::Protection);
        }
        let target = buffer.bytes.get_mut(at..).and_then(|bytes_| bytes_.get_mut(..bytes.len()));
        target.expect("bytes land within the buffer").copy_from_slice(bytes);
        Ok(())
    }

    pub(crate) fn bytes(&self, token: u32) -> Vec<u8> {
        let inner = self.0.borrow();
        inner.buffers.get(&token).expect("the receive was posted").bytes.clone()
    }

    pub(crate) fn waiting(&self, srq: Option<Qpn>) -> usize {
        let inner = self.0.borrow();
        match srq {
            Some(srq) => inner.shared.get(&srq).map_or(0, VecDeque::len),
            None => inner.own.len(),
        }
    }

    /// Forgets the receives that wait in the queue of the node's own.
    pub(crate) fn clear(&self) {
        self.0.borrow_mut().own.clear();
    }
}
