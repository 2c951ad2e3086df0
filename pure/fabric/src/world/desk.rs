//! Host of a queue pair in a world, borrowed from its process: buffers, memory, ways out.

use super::wires::{Frame, Medium, Wires};
use crate::memory::Memory;
use crate::random::Random;
use adverb_engine::{
    Access, AccessError, AtomicOp, EmitError, FetchError, Gid, Host, Invalidator, Landing,
    LocalError, NoReceive, Payload, QpEvent, Range, Reach, Receive, ReceiveDone, Request,
    RequestKind, Route, SendDone, Target, Time,
};
use adverb_wire::{Headers, Qpn, Rkey};
use alloc::collections::{BTreeMap, VecDeque};
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};

/// Longest payload of a record.
pub(super) const SEGMENT_BYTES: u32 = 512;

/// A request with its local bytes.
#[derive(Clone, Debug)]
pub(super) struct Posted {
    /// What is sent.
    pub(super) bytes: Rc<Vec<u8>>,
    /// What a READ or an atomic has brought.
    pub(super) landed: Vec<u8>,
}

/// State of one queue pair.
#[derive(Clone, Debug, Default)]
pub(super) struct Own {
    pub(super) requests: BTreeMap<u64, Posted>,
    pub(super) receives: VecDeque<Receive>,
    pub(super) buffers: BTreeMap<u32, Vec<u8>>,
    pub(super) tokens: u32,
    pub(super) sent: VecDeque<SendDone>,
    pub(super) received: VecDeque<(ReceiveDone, Vec<u8>)>,
}

impl Own {
    pub(super) fn post_receive(&mut self, len: u32) {
        self.tokens += 1;
        let bytes = alloc::vec![0; usize::try_from(len).unwrap_or(0)];
        self.buffers.insert(self.tokens, bytes);
        self.receives.push_back(Receive { token: self.tokens, len });
    }
}

/// Facts of the peer, and its memory for direct access.
#[derive(Clone, Debug)]
pub(super) struct Peer {
    pub(super) process: usize,
    pub(super) medium: Medium,
    pub(super) memory: Rc<RefCell<Memory>>,
    /// The peer lets its memory be reached.
    pub(super) open: Rc<Cell<bool>>,
}

/// A message whose bytes are not in the packet that tells of it.
#[derive(Clone, Debug)]
pub(super) struct ByReference {
    /// Nothing, if the bytes cannot be had.
    pub(super) bytes: Option<Rc<Vec<u8>>>,
    pub(super) len: u32,
}

/// An atomic operation brings what was there.
fn landed(found: Result<u64, AccessError>, posted: &mut Posted) -> bool {
    found.map(|found| posted.landed.copy_from_slice(&found.to_ne_bytes())).is_ok()
}

/// Surroundings lent for one call.
pub(super) struct Desk<'a> {
    pub(super) me: usize,
    pub(super) own: &'a mut Own,
    pub(super) peer: &'a Peer,
    pub(super) memory: &'a RefCell<Memory>,
    pub(super) wires: &'a RefCell<Wires>,
    pub(super) random: &'a RefCell<Random>,
    pub(super) now: Time,
    /// Packets that may still be emitted; none without a way out.
    pub(super) left: usize,
    /// The peer's memory is reached whenever it can be.
    pub(super) willing: bool,
    pub(super) emitted: u64,
    pub(super) published: u32,
    pub(super) by_reference: Option<ByReference>,
    pub(super) direct: u64,
    pub(super) fetched: u64,
}

impl Desk<'_> {
    fn carry(&mut self, frame: Frame) {
        self.left -= 1;
        self.emitted += 1;
        self.wires.borrow_mut().carry(self.me, self.peer.process, frame, self.now);
    }

    /// Writes an eager header, if there is room.
    pub(super) fn carry_eager(&mut self, words: [u64; 2], payload: Vec<u8>) {
        self.left = self.left.max(1);
        self.carry(Frame::Eager { words, payload });
    }

    fn bytes_of(&self, index: u64, offset: u32, len: u32) -> Vec<u8> {
        let posted = self.own.requests.get(&index).expect("the request was posted");
        let (at, len) = (usize::try_from(offset).unwrap_or(0), usize::try_from(len).unwrap_or(0));
        let bytes = posted.bytes.get(at..).and_then(|bytes| bytes.get(..len));
        bytes.expect("the transport stays within the request").to_vec()
    }
}

impl Host for Desk<'_> {
    fn room(&mut self) -> bool {
        self.left > 0 && self.wires.borrow().has_room(self.me, self.peer.process)
    }

    fn emit(
        &mut self,
        headers: &Headers,
        payload: Payload,
        _route: Option<Route>,
    ) -> Result<(), EmitError> {
        assert!(self.room(), "a packet is emitted only where there is room");
        let headers = *headers;
        let frame = match payload {
            Payload::None => Frame::Packet { headers, payload: Vec::new() },
            Payload::Request { index, len, .. }
                if len > SEGMENT_BYTES && self.peer.medium == Medium::Memory =>
            {
                let posted = self.own.requests.get(&index).expect("the request was posted");
                Frame::ByReference { headers, bytes: Some(Rc::clone(&posted.bytes)), len }
            }
            Payload::Request { index, offset, len } => {
                Frame::Packet { headers, payload: self.bytes_of(index, offset, len) }
            }
            Payload::Region(range) => {
                let memory = self.memory.borrow();
                let payload = memory.read(range).map_err(EmitError::Remote)?.to_vec();
                Frame::Packet { headers, payload }
            }
        };
        self.carry(frame);
        Ok(())
    }

    fn take_receive(&mut self, _srq: Option<Qpn>) -> Result<Receive, NoReceive> {
        self.own.receives.pop_front().ok_or(NoReceive::Empty)
    }

    fn put_back_receive(&mut self, receive: Receive, _srq: Option<Qpn>) {
        self.own.receives.push_front(receive);
    }

    fn grh(&self) -> [u8; 40] {
        [0; 40]
    }

    fn scatter(&mut self, to: Landing, offset: u32, bytes: &[u8]) -> Result<(), LocalError> {
        let own = &mut *self.own;
        let buffer = match to {
            Landing::Receive(receive) => own.buffers.get_mut(&receive.token),
            Landing::Request(index) => {
                own.requests.get_mut(&index).map(|posted| &mut posted.landed)
            }
        };
        let at = usize::try_from(offset).unwrap_or(usize::MAX);
        let place = buffer.expect("the buffer is there").get_mut(at..);
        let place = place.and_then(|place| place.get_mut(..bytes.len()));
        place.ok_or(LocalError::Protection)?.copy_from_slice(bytes);
        Ok(())
    }

    fn check(&self, range: Range, access: Access) -> Result<(), AccessError> {
        self.memory.borrow().check(range, access)
    }

    fn write(&mut self, rkey: Rkey, va: u64, bytes: &[u8]) -> Result<(), AccessError> {
        self.memory.borrow_mut().write(rkey, va, bytes)
    }

    fn atomic(&mut self, rkey: Rkey, va: u64, op: AtomicOp) -> Result<u64, AccessError> {
        self.memory.borrow_mut().atomic(rkey, va, op)
    }

    fn atomic_write(&mut self, rkey: Rkey, va: u64, bytes: [u8; 8]) -> Result<(), AccessError> {
        self.memory.borrow_mut().write(rkey, va, &bytes)
    }

    fn invalidate(&mut self, rkey: Rkey, by: Invalidator) -> Result<(), AccessError> {
        self.memory.borrow_mut().invalidate(rkey, by == Invalidator::Peer)
    }

    fn bind(&mut self, _index: u64) -> Result<(), AccessError> {
        Err(AccessError::UnknownKey)
    }

    fn reach(&mut self, index: u64, request: &Request, all_before: bool) -> Reach {
        let cut = self.wires.borrow().is_cut(self.me, self.peer.process);
        let shy = !self.willing && self.random.borrow_mut().below(8) == 0;
        if cut || !self.peer.open.get() || shy {
            return Reach::Not; // It may be refused for many reasons, as when the peer is being looked at.
        }
        if !all_before {
            let write = matches!(request.kind, RequestKind::Write { .. });
            return if write && request.len <= SEGMENT_BYTES { Reach::Not } else { Reach::Later };
        }
        let posted = self.own.requests.get_mut(&index).expect("the request was posted");
        let mut memory = self.peer.memory.borrow_mut();
        let done = match request.kind {
            RequestKind::Write { va, rkey, imm: None } => {
                memory.write(rkey, va, &posted.bytes).is_ok()
            }
            RequestKind::Read { va, rkey } => {
                let range = Range { rkey, va, len: request.len };
                let found = memory.read(range).map(|bytes| posted.landed.copy_from_slice(bytes));
                found.is_ok()
            }
            RequestKind::FetchAdd { va, rkey, add } => {
                landed(memory.atomic(rkey, va, AtomicOp::FetchAdd { add }), posted)
            }
            RequestKind::CompareSwap { va, rkey, compare, swap } => {
                landed(memory.atomic(rkey, va, AtomicOp::CompareSwap { compare, swap }), posted)
            }
            RequestKind::Send { .. }
            | RequestKind::SendInvalidate { .. }
            | RequestKind::Write { .. }
            | RequestKind::AtomicWrite { .. }
            | RequestKind::Flush { .. }
            | RequestKind::LocalInvalidate { .. }
            | RequestKind::BindWindow => false,
        };
        if !done {
            return Reach::Not;
        }
        self.direct += 1;
        Reach::Done
    }

    fn goes_by_reference(&self, _index: u64, request: &Request) -> bool {
        let carries = matches!(request.kind, RequestKind::Send { .. } | RequestKind::Write { .. });
        self.peer.medium == Medium::Memory && carries && request.len > SEGMENT_BYTES
    }

    fn by_reference(&self) -> Option<u32> {
        self.by_reference.as_ref().map(|by_reference| by_reference.len)
    }

    fn fetch(&mut self, to: Target) -> Result<(), FetchError> {
        let by_reference = self.by_reference.clone().ok_or(FetchError::Lost)?;
        let bytes = by_reference.bytes.ok_or(FetchError::Lost)?;
        let len = usize::try_from(by_reference.len).unwrap_or(usize::MAX);
        let bytes = bytes.get(..len).ok_or(FetchError::Lost)?;
        self.fetched += 1;
        match to {
            Target::Receive(receive) => {
                self.scatter(Landing::Receive(receive), 0, bytes).map_err(FetchError::Local)
            }
            Target::Region { rkey, va } => self.write(rkey, va, bytes).map_err(FetchError::Access),
        }
    }

    fn event(&mut self, _event: QpEvent) {}

    fn send_done(&mut self, done: SendDone) {
        self.published += u32::from(done.report);
        self.own.sent.push_back(done);
    }

    fn receive_done(&mut self, done: ReceiveDone) {
        self.published += 1;
        let bytes = self.own.buffers.remove(&done.receive.token).expect("a receive ends once");
        self.own.received.push_back((done, bytes));
    }
}

/// A process's address.
pub(super) fn gid(process: usize) -> Gid {
    let [.., low] = process.to_be_bytes();
    Gid::from_v4([10, 0, 0, low])
}
