//! A node: one queue pair, and everything around it that a device would provide.

use crate::memory::{Memory, Region, Target};
use crate::receives::Receives;
use adverb_engine::{
    Access, AccessError, AtomicOp, Attributes, Datagram, EmitError, Gid, Host, Invalidator,
    Landing, LocalError, NoReceive, Payload, Qp, QpEvent, Range, Receive, ReceiveDone, Request,
    RequestKind, Route, SendDone, To,
};
use adverb_wire::{Feth, Flow, Grh, Headers, Imm, Packet, Qpn, Rkey};
use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;

/// A request with its local bytes.
#[derive(Clone, Debug)]
pub struct Work {
    /// What the transport is told; its length is that of `bytes`.
    pub request: Request,
    /// What is sent or written, or where a READ or an atomic lands.
    pub bytes: Vec<u8>,
    /// No region covers the local bytes from this offset on.
    pub readable: usize,
    /// The window that a bind request binds, and what it opens.
    pub window: Option<Window>,
}

/// Target of a memory window's binding. Simulated windows are regions whose bytes are another's.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Window {
    /// The key that the window will have.
    pub rkey: Rkey,
    /// The region behind it.
    pub region: usize,
    /// First byte.
    pub va: u64,
    /// Number of bytes.
    pub len: u32,
    /// What peers may do.
    pub access: Access,
}

impl Work {
    /// A request with local bytes; signaled, neither fenced nor solicited.
    pub fn new(kind: RequestKind, bytes: Vec<u8>) -> Self {
        let len = u32::try_from(bytes.len()).expect("a simulated message is short");
        let to = To::Peer;
        let request = Request { kind, to, len, signaled: true, solicited: false, fence: false };
        Self { request, bytes, readable: usize::MAX, window: None }
    }

    /// A SEND.
    pub fn send(bytes: Vec<u8>) -> Self {
        Self::new(RequestKind::Send { imm: None }, bytes)
    }

    /// A SEND with immediate data.
    pub fn send_imm(bytes: Vec<u8>, imm: u32) -> Self {
        Self::new(RequestKind::Send { imm: Some(Imm(imm)) }, bytes)
    }

    /// A SEND that invalidates a key of the receiver's.
    pub fn send_invalidate(bytes: Vec<u8>, rkey: Rkey) -> Self {
        Self::new(RequestKind::SendInvalidate { rkey }, bytes)
    }

    /// An ATOMIC WRITE.
    pub fn atomic_write(to: Target, bytes: [u8; 8]) -> Self {
        Self::new(RequestKind::AtomicWrite { va: to.va, rkey: to.rkey }, bytes.to_vec())
    }

    /// A FLUSH of so many bytes.
    pub fn flush(to: Target, len: u32, how: Feth) -> Self {
        Self::new(RequestKind::Flush { va: to.va, rkey: to.rkey, len, how }, Vec::new())
    }

    /// The invalidation of a key of this side's.
    pub fn local_invalidate(rkey: Rkey) -> Self {
        Self::new(RequestKind::LocalInvalidate { rkey }, Vec::new())
    }

    /// The binding of a window.
    pub fn bind(window: Window) -> Self {
        let mut work = Self::new(RequestKind::BindWindow, Vec::new());
        work.window = Some(window);
        work
    }

    /// A WRITE.
    pub fn write(to: Target, bytes: Vec<u8>) -> Self {
        Self::new(RequestKind::Write { va: to.va, rkey: to.rkey, imm: None }, bytes)
    }

    /// A WRITE with immediate data.
    pub fn write_imm(to: Target, bytes: Vec<u8>, imm: u32) -> Self {
        Self::new(RequestKind::Write { va: to.va, rkey: to.rkey, imm: Some(Imm(imm)) }, bytes)
    }

    /// A READ of `len` bytes.
    pub fn read(from: Target, len: usize) -> Self {
        Self::new(RequestKind::Read { va: from.va, rkey: from.rkey }, vec![0; len])
    }

    /// A COMPARE AND SWAP.
    pub fn compare_swap(at: Target, compare: u64, swap: u64) -> Self {
        let kind = RequestKind::CompareSwap { va: at.va, rkey: at.rkey, compare, swap };
        Self::new(kind, vec![0; 8])
    }

    /// A FETCH AND ADD.
    pub fn fetch_add(at: Target, add: u64) -> Self {
        Self::new(RequestKind::FetchAdd { va: at.va, rkey: at.rkey, add }, vec![0; 8])
    }

    /// As a datagram.
    #[must_use]
    pub fn to(mut self, to: Datagram) -> Self {
        self.request.to = To::Datagram(to);
        self
    }

    /// Into a shared receive queue of the peer's.
    #[must_use]
    pub fn into_srq(mut self, srq: Qpn) -> Self {
        self.request.to = To::SharedQueue(srq);
        self
    }

    /// Without a completion unless it fails.
    #[must_use]
    pub fn unsignaled(mut self) -> Self {
        self.request.signaled = false;
        self
    }

    /// After all READs and atomics before it.
    #[must_use]
    pub fn fenced(mut self) -> Self {
        self.request.fence = true;
        self
    }

    /// With an event for the peer.
    #[must_use]
    pub fn solicited(mut self) -> Self {
        self.request.solicited = true;
        self
    }

    /// With local bytes that no region covers from `offset` on.
    #[must_use]
    pub fn unreadable_from(mut self, offset: usize) -> Self {
        self.readable = offset;
        self
    }
}

/// One queue pair with its surroundings.
#[derive(Debug)]
pub struct Node {
    pub(crate) qp: Qp,
    pub(crate) around: Around,
    /// Everything that the queue pair may be set to.
    pub(crate) all: Attributes,
}

impl Node {
    /// The queue pair.
    pub fn qp(&self) -> &Qp {
        &self.qp
    }

    /// The bytes of a region.
    ///
    /// # Panics
    ///
    /// If there is no such region.
    pub fn memory(&self, region: usize) -> &[u8] {
        &self.region(region).bytes
    }

    pub(crate) fn region(&self, region: usize) -> &Region {
        self.around.memory.regions.get(region).expect("the region exists")
    }

    /// A region, to change it behind the transport's back.
    ///
    /// # Panics
    ///
    /// If there is no such region.
    pub fn region_mut(&mut self, region: usize) -> &mut Region {
        self.around.memory.regions.get_mut(region).expect("the region exists")
    }

    /// Registers another region.
    pub fn register(&mut self, rkey: Rkey, va: u64, len: usize, access: Access) {
        self.around.memory.register(rkey, va, len, access);
    }

    /// Every request that has ended, in the order of ending.
    pub fn sent(&self) -> &[SendDone] {
        &self.around.sent
    }

    /// Forgets the requests that have ended, with their bytes: for long runs. Says how many bytes they had in all.
    ///
    /// # Panics
    ///
    /// If one of them has failed.
    pub fn forget_ended(&mut self) -> u64 {
        let mut bytes = 0;
        for done in self.around.sent.drain(..) {
            assert_eq!(done.status, adverb_engine::WcStatus::Success, "request {}", done.index);
            bytes += u64::from(done.byte_len);
            self.around.requests.remove(&done.index);
        }
        bytes
    }

    /// Every receive that has ended, in the order of ending.
    pub fn received(&self) -> &[ReceiveDone] {
        &self.around.received
    }

    /// Local bytes of a request: what a READ or an atomic brought.
    ///
    /// # Panics
    ///
    /// If there was no such request.
    pub fn request_bytes(&self, index: u64) -> &[u8] {
        let work = self.around.requests.get(&index);
        &work.expect("the request was posted").bytes
    }

    /// The buffer of a receive, of this node or of any that shares its queue.
    ///
    /// # Panics
    ///
    /// If there was no such receive.
    pub fn receive_bytes(&self, token: u32) -> Vec<u8> {
        self.around.receives.bytes(token)
    }

    /// Receives that are posted and not taken.
    pub fn receives(&self) -> usize {
        self.around.receives.waiting(None)
    }

    /// Receives of a shared queue for XRC that are posted and not taken.
    pub fn srq_receives(&self, srq: Qpn) -> usize {
        self.around.receives.waiting(Some(srq))
    }

    /// What happened that no completion tells, in order.
    pub fn events(&self) -> &[QpEvent] {
        &self.around.events
    }

    /// Routes of the datagrams that were emitted.
    pub fn routes(&self) -> &[Route] {
        &self.around.routes
    }

    /// How often the peer's atomics were executed.
    pub fn atomics(&self) -> u64 {
        self.around.atomics
    }

    /// Datagrams that were dropped: damaged, malformed, or for another queue pair.
    pub fn refused_datagrams(&self) -> u64 {
        self.around.refused_datagrams
    }
}

/// Surroundings that a queue pair borrows for each call.
#[derive(Debug)]
pub(crate) struct Around {
    pub(crate) gid: Gid,
    /// The way out.
    pub(crate) flow: Flow,
    /// Identification of the next datagram.
    pub(crate) id: u16,
    pub(crate) memory: Memory,
    pub(crate) requests: BTreeMap<u64, Work>,
    pub(crate) receives: Receives,
    pub(crate) events: Vec<QpEvent>,
    pub(crate) routes: Vec<Route>,
    /// The network header of the packet that has arrived.
    pub(crate) grh: [u8; Grh::LEN],
    pub(crate) sent: Vec<SendDone>,
    pub(crate) received: Vec<ReceiveDone>,
    pub(crate) outbox: Vec<(Headers, Vec<u8>)>,
    pub(crate) room: usize,
    pub(crate) atomics: u64,
    pub(crate) refused_datagrams: u64,
}

impl Host for Around {
    fn room(&mut self) -> bool {
        self.outbox.len() < self.room
    }

    fn emit(
        &mut self,
        headers: &Headers,
        payload: Payload,
        route: Option<Route>,
    ) -> Result<(), EmitError> {
        assert!(self.room(), "a packet is emitted only where there is room");
        let payload = match payload {
            Payload::None => &[],
            Payload::Request { index, offset, len } => {
                self.local(index, offset, len).map_err(EmitError::Local)?
            }
            Payload::Region(range) => self.memory.read(range).map_err(EmitError::Remote)?,
        };
        let mut datagram = Vec::new();
        Packet { headers: *headers, payload }.emit_into(&self.flow, self.id, &mut datagram);
        self.id = self.id.wrapping_add(1);
        self.outbox.push((*headers, datagram));
        self.routes.extend(route);
        Ok(())
    }

    fn take_receive(&mut self, srq: Option<Qpn>) -> Result<Receive, NoReceive> {
        self.receives.take(srq)
    }

    fn put_back_receive(&mut self, receive: Receive, srq: Option<Qpn>) {
        self.receives.put_back(receive, srq);
    }

    fn grh(&self) -> [u8; 40] {
        self.grh
    }

    fn scatter(&mut self, to: Landing, offset: u32, bytes: &[u8]) -> Result<(), LocalError> {
        let at = usize::try_from(offset).map_err(|_| LocalError::Protection)?;
        let index = match to {
            Landing::Receive(receive) => {
                return self.receives.scatter(receive.token, at, bytes);
            }
            Landing::Request(index) => index,
        };
        let work = self.requests.get_mut(&index).expect("the request was posted");
        if at.saturating_add(bytes.len()) > work.readable {
            return Err(LocalError::Protection);
        }
        let target = work.bytes.get_mut(at..).and_then(|buffer| buffer.get_mut(..bytes.len()));
        target.expect("bytes land within the buffer").copy_from_slice(bytes);
        Ok(())
    }

    fn check(&self, range: Range, access: Access) -> Result<(), AccessError> {
        self.memory.check(range, access)
    }

    fn write(&mut self, rkey: Rkey, va: u64, bytes: &[u8]) -> Result<(), AccessError> {
        self.memory.write(rkey, va, bytes)
    }

    fn atomic(&mut self, rkey: Rkey, va: u64, op: AtomicOp) -> Result<u64, AccessError> {
        let found = self.memory.atomic(rkey, va, op)?;
        self.atomics += 1;
        Ok(found)
    }

    fn atomic_write(&mut self, rkey: Rkey, va: u64, bytes: [u8; 8]) -> Result<(), AccessError> {
        if !va.is_multiple_of(8) {
            return Err(AccessError::Misaligned);
        }
        self.memory.write(rkey, va, &bytes)
    }

    fn invalidate(&mut self, rkey: Rkey, by: Invalidator) -> Result<(), AccessError> {
        self.memory.invalidate(rkey, by == Invalidator::Peer)
    }

    fn bind(&mut self, index: u64) -> Result<(), AccessError> {
        let work = self.requests.get(&index).expect("the request was posted");
        self.memory.bind(&work.window.expect("a bind request has a window"))
    }

    fn event(&mut self, event: QpEvent) {
        self.events.push(event);
    }

    fn send_done(&mut self, done: SendDone) {
        self.sent.push(done);
    }

    fn receive_done(&mut self, done: ReceiveDone) {
        self.received.push(done);
    }
}

impl Around {
    /// Bytes of a request that has not ended.
    fn local(&self, index: u64, offset: u32, len: u32) -> Result<&[u8], LocalError> {
        let work = self.requests.get(&index).expect("the request was posted");
        let at = usize::try_from(offset).map_err(|_| LocalError::Protection)?;
        let len = usize::try_from(len).map_err(|_| LocalError::Protection)?;
        let end = at.checked_add(len).filter(|&end| end <= work.readable);
        let bytes = work.bytes.get(at..end.ok_or(LocalError::Protection)?);
        Ok(bytes.expect("the transport stays within the request"))
    }
}
