//! A node: one queue pair, and everything around it that a device would provide.

use crate::memory::{Memory, Region, Target};
use adverb_engine::{
    Access, AccessError, AtomicOp, EmitError, Gid, Host, Landing, LocalError, Payload, Qp, Range,
    Receive, ReceiveDone, Request, RequestKind, SendDone,
};
use adverb_wire::{Flow, Headers, Imm, Packet, Rkey};
use alloc::collections::{BTreeMap, VecDeque};
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
}

impl Work {
    /// A request with local bytes; signaled, neither fenced nor solicited.
    pub fn new(kind: RequestKind, bytes: Vec<u8>) -> Self {
        let len = u32::try_from(bytes.len()).expect("a simulated message is short");
        let request = Request { kind, len, signaled: true, solicited: false, fence: false };
        Self { request, bytes, readable: usize::MAX }
    }

    /// A SEND.
    pub fn send(bytes: Vec<u8>) -> Self {
        Self::new(RequestKind::Send { imm: None }, bytes)
    }

    /// A SEND with immediate data.
    pub fn send_imm(bytes: Vec<u8>, imm: u32) -> Self {
        Self::new(RequestKind::Send { imm: Some(Imm(imm)) }, bytes)
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

    /// The buffer of a receive.
    ///
    /// # Panics
    ///
    /// If there was no such receive.
    pub fn receive_bytes(&self, token: u32) -> &[u8] {
        self.around.buffers.get(&token).expect("the receive was posted")
    }

    /// Receives that are posted and not taken.
    pub fn receives(&self) -> usize {
        self.around.receives.len()
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

/// What a queue pair borrows for each call.
#[derive(Debug)]
pub(crate) struct Around {
    pub(crate) gid: Gid,
    /// The way out.
    pub(crate) flow: Flow,
    /// Identification of the next datagram.
    pub(crate) id: u16,
    pub(crate) memory: Memory,
    pub(crate) requests: BTreeMap<u64, Work>,
    pub(crate) receives: VecDeque<Receive>,
    pub(crate) buffers: BTreeMap<u32, Vec<u8>>,
    pub(crate) sent: Vec<SendDone>,
    pub(crate) received: Vec<ReceiveDone>,
    pub(crate) outbox: Vec<(Headers, Vec<u8>)>,
    pub(crate) room: usize,
    pub(crate) atomics: u64,
    pub(crate) refused_datagrams: u64,
}

impl Host for Around {
    fn room(&self) -> bool {
        self.outbox.len() < self.room
    }

    fn emit(&mut self, headers: &Headers, payload: Payload) -> Result<(), EmitError> {
        assert!(self.room(), "a packet is emitted only where there is room");
        let payload = match payload {
            Payload::None => &[],
            Payload::Request { index, offset, len } => {
                self.local(index, offset, len).map_err(EmitError::Local)?
            }
            Payload::Region { range, .. } => self.memory.read(range).map_err(EmitError::Remote)?,
        };
        let mut datagram = Vec::new();
        Packet { headers: *headers, payload }.emit_into(&self.flow, self.id, &mut datagram);
        self.id = self.id.wrapping_add(1);
        self.outbox.push((*headers, datagram));
        Ok(())
    }

    fn take_receive(&mut self) -> Option<Receive> {
        self.receives.pop_front()
    }

    fn scatter(&mut self, to: Landing, offset: u32, bytes: &[u8]) -> Result<(), LocalError> {
        let (buffer, readable) = match to {
            Landing::Receive(receive) => (self.buffers.get_mut(&receive.token), usize::MAX),
            Landing::Request(index) => {
                let work = self.requests.get_mut(&index).expect("the request was posted");
                (Some(&mut work.bytes), work.readable)
            }
        };
        let at = usize::try_from(offset).map_err(|_| LocalError::Protection)?;
        if at.saturating_add(bytes.len()) > readable {
            return Err(LocalError::Protection);
        }
        let buffer = buffer.expect("the receive was posted");
        let target = buffer.get_mut(at..).and_then(|buffer| buffer.get_mut(..bytes.len()));
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
