//! Surroundings for the tests of the roles: a host that writes everything down.

use crate::access::Access;
use crate::attributes::{Attributes, Gid, Partition, RetryCount, RnrRetry, Settings};
use crate::host::{
    AccessError, AtomicOp, EmitError, FetchError, Host, Invalidator, Landing, LocalError,
    NoReceive, Payload, Range, Reach, Receive, ReceiveDone, SendDone, Target,
};
use crate::link::Capabilities;
use crate::packetizer::Path;
use crate::qp::Qp;
use crate::segment::Segment;
use crate::status::{QpEvent, QpState};
use crate::time::AckTimeout;
use crate::transport::RequestOp;
use crate::work::{Request, RequestKind, Route, To};
use adverb_wire::{
    Aeth, Bth, Extension, Feth, Headers, Imm, Msn, Opcode, Operation, Packet, Pad, PathMtu, Pkey,
    Psn, Qpn, Reth, Rkey, RnrTimer, Syndrome, Transport,
};
use alloc::collections::VecDeque;
use alloc::vec::Vec;

pub(crate) const PEER: Gid = Gid::from_v4([192, 0, 2, 1]);
pub(crate) const REMOTE: Qpn = Qpn::new(0x22);
pub(crate) const MTU: PathMtu = PathMtu::B256;
/// Both directions start here: two packets before the wrap.
pub(crate) const FIRST: Psn = Psn::new(0xff_fffe);
pub(crate) const RKEY: Rkey = Rkey(0x77);
pub(crate) const VA: u64 = 0x1000;
pub(crate) const REGION_LEN: u32 = 1 << 16;

pub(crate) const PATH: Path = Path {
    transport: Transport::Rc,
    remote: REMOTE,
    pkey: Pkey::DEFAULT,
    pkey_index: 0,
    mtu: Segment::of(MTU),
    link: Capabilities::PACKETS,
    keeps_early: false,
};

/// The longest payload of a packet over [`SHARED_MEMORY`].
pub(crate) const SEGMENT: u32 = 8192;
/// A link that can do everything.
pub(crate) const SHARED_MEMORY: Capabilities = Capabilities {
    segment: SEGMENT,
    by_reference: true,
    direct: true,
    eager: true,
    lossy: false,
    trains: false,
    keeps_early: false,
};

/// Attributes of the transition to INIT.
pub(crate) fn init() -> Attributes {
    Attributes {
        partition: Some(Partition::DEFAULT),
        port: Some(1),
        access: Some(Access::ALL),
        ..Attributes::default()
    }
}

/// Attributes of the transition to RTR.
pub(crate) fn rtr() -> Attributes {
    Attributes {
        remote_gid: Some(PEER),
        remote: Some(REMOTE),
        expected_psn: Some(FIRST),
        path_mtu: Some(MTU),
        max_dest_rd_atomic: Some(2),
        min_rnr_timer: Some(RnrTimer::new(1)),
        ..Attributes::default()
    }
}

/// Attributes of the transition to RTS.
pub(crate) fn rts() -> Attributes {
    Attributes {
        first_psn: Some(FIRST),
        timeout: AckTimeout::from_exponent(10).ok(),
        retry_count: RetryCount::new(1),
        rnr_retry: RnrRetry::new(1),
        max_rd_atomic: Some(2),
        window_packets: Some(16),
        ..Attributes::default()
    }
}

/// The way from RESET to RTS.
pub(crate) fn steps() -> [(QpState, Attributes); 3] {
    [(QpState::Init, init()), (QpState::Rtr, rtr()), (QpState::Rts, rts())]
}

/// What a queue pair is set to that has gone this way.
pub(crate) fn settings() -> Settings {
    steps().iter().fold(Settings::new(MTU), |settings, (_, step)| step.change(settings))
}

/// Takes a queue pair this way.
pub(crate) fn connect(qp: &mut Qp) {
    for (to, attributes) in steps() {
        qp.modify(to, &attributes, &mut Desk::new()).unwrap();
    }
}

/// The host: one region, and a note of everything.
#[derive(Debug)]
pub(crate) struct Desk {
    pub(crate) room: usize,
    /// Room that is made as soon as there was none.
    pub(crate) late_room: usize,
    pub(crate) emitted: Vec<(Headers, Payload)>,
    pub(crate) receives: VecDeque<Receive>,
    pub(crate) sent: Vec<SendDone>,
    pub(crate) received: Vec<ReceiveDone>,
    /// Bytes written to the region, where and how many.
    pub(crate) written: Vec<(u64, usize)>,
    pub(crate) atomics: u64,
    /// ATOMIC WRITEs, and what they wrote.
    pub(crate) written_at_once: Vec<(u64, [u8; 8])>,
    /// Keys that were invalidated, and by whom.
    pub(crate) invalidated: Vec<(Rkey, Invalidator)>,
    /// Requests whose windows were bound.
    pub(crate) bound: Vec<u64>,
    pub(crate) events: Vec<QpEvent>,
    /// Where the packets that had a route of their own went.
    pub(crate) routes: Vec<Route>,
    pub(crate) landed: Vec<(Landing, u32, usize)>,
    /// The region exists.
    pub(crate) region: bool,
    /// Local buffers are in order.
    pub(crate) local: bool,
    /// What becomes of one-sided requests to a peer on this host, when all before them is done.
    pub(crate) reach: Reach,
    /// Length of the messages that go by reference from now on, both ways.
    pub(crate) by_reference: Option<u32>,
    /// What was fetched, or why not.
    pub(crate) fetched: Vec<Target>,
    pub(crate) fetches: Result<(), FetchError>,
}

impl Desk {
    pub(crate) fn new() -> Self {
        Self {
            room: usize::MAX,
            late_room: 0,
            emitted: Vec::new(),
            receives: VecDeque::new(),
            sent: Vec::new(),
            received: Vec::new(),
            written: Vec::new(),
            atomics: 0,
            written_at_once: Vec::new(),
            invalidated: Vec::new(),
            bound: Vec::new(),
            events: Vec::new(),
            routes: Vec::new(),
            landed: Vec::new(),
            region: true,
            local: true,
            reach: Reach::Not,
            by_reference: None,
            fetched: Vec::new(),
            fetches: Ok(()),
        }
    }

    pub(crate) fn with_receives(count: u32, len: u32) -> Self {
        let receives = (0..count).map(|token| Receive { token, len }).collect();
        Self { receives, ..Self::new() }
    }

    /// What was emitted since the last look: operation, and distance from the first PSN.
    pub(crate) fn operations(&mut self) -> Vec<(Operation, i32)> {
        let emitted = core::mem::take(&mut self.emitted);
        let short = |(headers, _): (Headers, Payload)| {
            (headers.bth.opcode.operation(), headers.bth.psn.since(FIRST))
        };
        emitted.into_iter().map(short).collect()
    }

    /// The acknowledgements since the last look: distance from the first PSN, syndrome, MSN.
    pub(crate) fn acks(&mut self) -> Vec<(i32, Syndrome, u32)> {
        let emitted = core::mem::take(&mut self.emitted);
        let ack = |(headers, _): (Headers, Payload)| {
            let Extension::Aeth(Aeth { syndrome, msn }) = headers.extension else {
                return None;
            };
            Some((headers.bth.psn.since(FIRST), syndrome, msn.get()))
        };
        emitted.into_iter().filter_map(ack).collect()
    }
}

impl Host for Desk {
    fn room(&mut self) -> bool {
        let has = self.emitted.len() < self.room;
        if !has {
            self.room += core::mem::take(&mut self.late_room);
        }
        has
    }

    fn emit(
        &mut self,
        headers: &Headers,
        payload: Payload,
        route: Option<Route>,
    ) -> Result<(), EmitError> {
        assert!(self.room());
        assert!(headers.is_legal());
        match payload {
            Payload::Request { .. } if !self.local => {
                return Err(EmitError::Local(LocalError::Protection));
            }
            Payload::Region(range) => {
                self.check(range, Access::REMOTE_READ).map_err(EmitError::Remote)?;
            }
            Payload::None | Payload::Request { .. } => {}
        }
        self.emitted.push((*headers, payload));
        self.routes.extend(route);
        Ok(())
    }

    fn reach(&mut self, _index: u64, _request: &Request, all_before: bool) -> Reach {
        if all_before || self.reach == Reach::Not { self.reach } else { Reach::Later }
    }

    fn goes_by_reference(&self, _index: u64, request: &Request) -> bool {
        self.by_reference == Some(request.len)
    }

    fn by_reference(&self) -> Option<u32> {
        self.by_reference
    }

    fn fetch(&mut self, to: Target) -> Result<(), FetchError> {
        self.fetched.push(to);
        self.fetches
    }

    fn take_receive(&mut self, srq: Option<Qpn>) -> Result<Receive, NoReceive> {
        if srq.is_some_and(|srq| srq != SRQ) {
            return Err(NoReceive::NoSuchQueue);
        }
        self.receives.pop_front().ok_or(NoReceive::Empty)
    }

    fn put_back_receive(&mut self, receive: Receive, _srq: Option<Qpn>) {
        self.receives.push_front(receive);
    }

    fn grh(&self) -> [u8; 40] {
        [0x60; 40]
    }

    fn scatter(&mut self, to: Landing, offset: u32, bytes: &[u8]) -> Result<(), LocalError> {
        if !self.local {
            return Err(LocalError::Protection);
        }
        self.landed.push((to, offset, bytes.len()));
        Ok(())
    }

    fn check(&self, range: Range, _access: Access) -> Result<(), AccessError> {
        if !self.region || range.rkey != RKEY {
            return Err(AccessError::UnknownKey);
        }
        let end = range.va.checked_add(u64::from(range.len));
        let fits = range.va >= VA && end.is_some_and(|end| end <= VA + u64::from(REGION_LEN));
        if fits { Ok(()) } else { Err(AccessError::OutOfBounds) }
    }

    fn write(&mut self, rkey: Rkey, va: u64, bytes: &[u8]) -> Result<(), AccessError> {
        let len = u32::try_from(bytes.len()).unwrap();
        self.check(Range { rkey, va, len }, Access::REMOTE_WRITE)?;
        self.written.push((va, bytes.len()));
        Ok(())
    }

    fn atomic(&mut self, rkey: Rkey, va: u64, _op: AtomicOp) -> Result<u64, AccessError> {
        if !va.is_multiple_of(8) {
            return Err(AccessError::Misaligned);
        }
        self.check(Range { rkey, va, len: 8 }, Access::REMOTE_ATOMIC)?;
        self.atomics += 1;
        Ok(1000 + self.atomics)
    }

    fn atomic_write(&mut self, rkey: Rkey, va: u64, bytes: [u8; 8]) -> Result<(), AccessError> {
        if !va.is_multiple_of(8) {
            return Err(AccessError::Misaligned);
        }
        self.check(Range { rkey, va, len: 8 }, Access::REMOTE_WRITE)?;
        self.written_at_once.push((va, bytes));
        Ok(())
    }

    fn invalidate(&mut self, rkey: Rkey, by: Invalidator) -> Result<(), AccessError> {
        if rkey != RKEY {
            return Err(AccessError::UnknownKey);
        }
        self.invalidated.push((rkey, by));
        Ok(())
    }

    fn bind(&mut self, index: u64) -> Result<(), AccessError> {
        self.bound.push(index);
        if self.region { Ok(()) } else { Err(AccessError::UnknownKey) }
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

/// Headers of the packet `at` packets after the first one.
pub(crate) fn headers(operation: Operation, at: i32, extension: Extension, len: usize) -> Headers {
    let at = u32::try_from(at.rem_euclid(1 << 24)).unwrap();
    let bth = Bth {
        opcode: Opcode::of(Transport::Rc, operation).unwrap(),
        solicited: false,
        migrated: true,
        pad: Pad::for_len(len),
        pkey: Pkey::DEFAULT,
        fecn: false,
        becn: false,
        dest_qp: Qpn::new(0x11),
        ack_request: false,
        keeps_early: false,
        psn: FIRST.plus(at),
    };
    Headers { bth, deth: None, xrceth: None, extension }
}

pub(crate) const BYTES: [u8; 4096] = [0; 4096];

/// A packet with `len` bytes of payload.
pub(crate) fn packet(
    operation: Operation,
    at: i32,
    extension: Extension,
    len: usize,
) -> Packet<'static> {
    Packet { headers: headers(operation, at, extension, len), payload: &BYTES[..len] }
}

/// The same packet, with the wish to be acknowledged.
pub(crate) fn asking(mut packet: Packet<'_>) -> Packet<'_> {
    packet.headers.bth.ack_request = true;
    packet
}

pub(crate) fn send_only(at: i32) -> Packet<'static> {
    packet(Operation::SendOnly, at, Extension::None, 10)
}

pub(crate) fn read_request(at: i32, len: u32) -> Packet<'static> {
    let reth = Reth { va: VA, rkey: RKEY, len };
    packet(Operation::ReadRequest, at, Extension::Reth(reth), 0)
}

pub(crate) fn ack(at: i32, syndrome: Syndrome) -> Packet<'static> {
    let aeth = Aeth { syndrome, msn: Msn::new(0) };
    packet(Operation::Acknowledge, at, Extension::Aeth(aeth), 0)
}

/// A signaled request for `len` bytes.
pub(crate) fn request(kind: RequestKind, len: u32) -> Request {
    Request { kind, to: To::Peer, len, signaled: true, solicited: false, fence: false }
}

/// The shared receive queue that there is.
pub(crate) const SRQ: Qpn = Qpn::new(0x55);

/// A request for this operation.
pub(crate) const fn kind_of(operation: RequestOp) -> RequestKind {
    let (va, rkey, imm) = (VA, RKEY, Some(Imm(1)));
    match operation {
        RequestOp::Send => RequestKind::Send { imm: None },
        RequestOp::SendImm => RequestKind::Send { imm },
        RequestOp::SendInvalidate => RequestKind::SendInvalidate { rkey },
        RequestOp::Write => RequestKind::Write { va, rkey, imm: None },
        RequestOp::WriteImm => RequestKind::Write { va, rkey, imm },
        RequestOp::Read => RequestKind::Read { va, rkey },
        RequestOp::CompareSwap => RequestKind::CompareSwap { va, rkey, compare: 0, swap: 0 },
        RequestOp::FetchAdd => RequestKind::FetchAdd { va, rkey, add: 1 },
        RequestOp::AtomicWrite => RequestKind::AtomicWrite { va, rkey },
        RequestOp::Flush => {
            let how = Feth { placement: Feth::GLOBAL, selectivity: Feth::RANGE };
            RequestKind::Flush { va, rkey, len: 1, how }
        }
        RequestOp::LocalInvalidate => RequestKind::LocalInvalidate { rkey },
        RequestOp::BindWindow => RequestKind::BindWindow,
    }
}

pub(crate) const SEND: RequestKind = RequestKind::Send { imm: None };
pub(crate) const WRITE: RequestKind = RequestKind::Write { va: VA, rkey: RKEY, imm: None };
pub(crate) const READ: RequestKind = RequestKind::Read { va: VA, rkey: RKEY };
pub(crate) const ATOMIC: RequestKind = RequestKind::FetchAdd { va: VA, rkey: RKEY, add: 1 };
