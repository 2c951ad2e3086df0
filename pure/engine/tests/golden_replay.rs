//! Captures of another implementation, replayed: fed with one side's packets, ours emits the
//! other side's, byte for byte.
//!
//! The captures are of two hosts with Linux's software RoCE; `wire/testdata/golden` says what each
//! one shows. The table at the end repeats what both programs did. What an implementation may
//! choose for itself is left out of the comparison, and this is all of it:
//!
//! - The IPv4 identification and the UDP source port: ours takes the ones of the packet that it is
//!   compared with, so that even the invariant CRC has to be the same.
//! - The migration bit: rxe leaves it clear; we set it, as NICs do, because a queue pair that does
//!   not use path migration is in the state "migrated".
//! - When to send again: rxe waits for its time-out where we see a hole at once. The order of
//!   packets is compared, not the moments: an answer comes when what it answers was sent.
//! - Which duplicates are acknowledged: rxe answers every duplicate packet of a SEND, we only those
//!   that ask. The table names the answers that we do not give ([`Case::unasked`]).
//! - How a message that does not fit its receive is refused: rxe says "remote operational error",
//!   the specification and NICs say "invalid request" ([`Case::refusal`]).
//! - The opcodes of a READ that is answered from the middle: rxe goes on with MIDDLE where we start
//!   again with FIRST, and an AETH with it ([`Case::resumed`]).

#![expect(clippy::indexing_slicing, reason = "a test may panic")]

use adverb_engine::{
    Access, AccessError, AckTimeout, AtomicOp, Attributes, Capabilities, Datagram as Whither,
    EmitError, GRH_LEN, Gid, Host, Identification, Invalidator, Landing, LocalError, NoReceive,
    Partition, Payload, Qp, QpEvent, QpOptions, QpState, QpType, Range, Receive, ReceiveDone,
    Request, RequestKind, RetryCount, RnrRetry, Route, SendDone, Time, To, WcStatus, admit,
};
use adverb_wire::ip::Datagram;
use adverb_wire::pcap::Reader;
use adverb_wire::{
    Extension, Grh, Headers, Imm, Nak, Operation, Packet, PathMtu, Psn, Qkey, Qpn, Rkey, RnrTimer,
    Syndrome,
};
use std::collections::VecDeque;

/// One line of the table: a capture, and the numbers that the programs printed.
struct Case {
    name: &'static str,
    kind: QpType,
    capture: &'static [u8],
    /// Instance of the program: decides on the start PSNs.
    instance: u32,
    qpn: u32,
    /// The server's region.
    rkey: u32,
    va: u64,
    mtu: PathMtu,
    ops: &'static [Op],
    /// Packets that the receiver never saw: index among those of its peer.
    lost_to_server: &'static [usize],
    lost_to_client: &'static [usize],
    /// The client spoils the key.
    spoiled: bool,
    /// The receive is posted before this packet of the client.
    receive_before: usize,
    /// Packets of the server that we would not send: they answer no question.
    unasked: &'static [usize],
    /// The code with which we refuse instead.
    refusal: Option<Nak>,
    /// Packet of the server at which it resumes a READ.
    resumed: Option<usize>,
    /// How the last request ended; those before it did well.
    end: WcStatus,
}

/// What the client's program posts, each when the one before has ended.
#[derive(Clone, Copy)]
enum Op {
    Send(u32),
    Imm(u32),
    Write(u32),
    WriteImm(u32),
    Read(u32),
    CompareSwap,
    FetchAdd,
}

/// A packet of a capture.
#[derive(Clone, Copy)]
struct Shot<'a> {
    /// Packets of the other side before this one.
    after: usize,
    datagram: Datagram<'a>,
}

/// The packets of client and server.
fn packets(case: &Case) -> (Vec<Shot<'static>>, Vec<Shot<'static>>) {
    let frames = Reader::new(case.capture).expect("a capture").map(|frame| frame.expect("a frame"));
    let mut shots = [Vec::new(), Vec::new()];
    let mut client = None;
    for frame in frames {
        let datagram = Datagram::parse(frame.ip().expect("Ethernet and IP")).expect("UDP");
        let side = usize::from(*client.get_or_insert(datagram.flow) != datagram.flow);
        let after = shots[1 - side].len();
        shots[side].push(Shot { after, datagram });
    }
    let [requests, answers] = shots;
    (requests, answers)
}

#[test]
fn our_responder_gives_the_answers_that_rxe_gave() {
    for case in CASES {
        let (requests, mut answers) = packets(case);
        let mut unasked = case.unasked.iter();
        let mut skip = unasked.next();
        let mut index = 0;
        answers.retain(|_| {
            let drop = skip == Some(&index);
            if drop {
                skip = unasked.next();
            }
            index += 1;
            !drop
        });

        let mut host = Surroundings::server(case);
        let mut qp = server(case);
        for (index, shot) in requests.iter().enumerate() {
            if index == case.receive_before {
                host.post_receives(case);
            }
            if !case.lost_to_server.contains(&index) {
                host.grh = grh_of(shot);
                feed(&mut qp, shot, Time::ZERO, &mut host);
            }
        }
        compare(case, &answers, &host.emitted);
        assert_eq!(host.received, case.received(), "{}: what the receives hold", case.name);
    }
}

#[test]
fn our_requester_sends_what_rxe_sent() {
    for case in CASES {
        let (requests, answers) = packets(case);
        let mut host = Surroundings::client();
        let mut qp = client(case);
        let mut posted = 0;
        let mut answers = answers.iter().enumerate();
        let mut next = answers.next();
        let mut now = Time::ZERO;
        loop {
            if host.sent.len() == posted && posted < case.ops.len() {
                qp.post(case.request(posted)).expect("room for one request");
                posted += 1;
            }
            while qp.transmit(now, true, &mut host) {}
            if let Some((index, shot)) = next.filter(|(_, shot)| shot.after <= host.emitted.len()) {
                if !case.lost_to_client.contains(&index) {
                    feed(&mut qp, shot, now, &mut host);
                }
                next = answers.next();
            } else if let Some(deadline) = qp.next_deadline() {
                now = deadline;
                qp.on_timer(now, &mut host);
            } else if host.sent.len() < posted || posted == case.ops.len() {
                break;
            }
        }
        compare(case, &requests, &host.emitted);
        let ends: Vec<WcStatus> = host.sent.iter().map(|done| done.status).collect();
        let mut expected = vec![WcStatus::Success; case.ops.len()];
        expected[case.ops.len() - 1] = case.end;
        assert_eq!(ends, expected, "{}", case.name);
        assert_eq!(host.landed, case.landed(), "{}: what READs and atomics brought", case.name);
    }
}

/// What a receiver sees of the network header.
fn grh_of(shot: &Shot<'_>) -> [u8; Grh::LEN] {
    let Datagram { flow, marks, payload, .. } = shot.datagram;
    Grh::emit(&flow, marks, u16::try_from(payload.len()).expect("a packet is short"))
}

fn feed(qp: &mut Qp, shot: &Shot<'_>, now: Time, host: &mut Surroundings) {
    let Datagram { flow, payload, .. } = shot.datagram;
    let parsed = Packet::parse(payload);
    let packet = admit(&parsed, payload, &flow, Identification::Guessed(0)).expect("a good packet");
    assert_eq!(packet.headers.bth.dest_qp, qp.number());
    qp.on_packet(packet, PEER, now, host);
    while qp.transmit(now, true, host) {}
}

/// Every packet that was emitted is the captured one, to the last bit of its ICRC.
fn compare(case: &Case, captured: &[Shot<'_>], emitted: &[(Headers, Vec<u8>)]) {
    for (index, (shot, (headers, payload))) in captured.iter().zip(emitted).enumerate() {
        let mut headers = *headers;
        let Datagram { flow, id, payload: expected, .. } = shot.datagram;
        let theirs = Packet::parse(expected).expect("a packet").headers;
        assert!(headers.bth.migrated && !theirs.bth.migrated, "{}", case.name);
        headers.bth.migrated = false;
        if let (Some(code), Extension::Aeth(aeth)) = (case.refusal, &mut headers.extension) {
            assert_eq!(aeth.syndrome, Syndrome::Nak(code), "{}", case.name);
            aeth.syndrome = Syndrome::Nak(Nak::RemoteOperation);
        }
        if case.resumed == Some(index) {
            assert_eq!(headers.bth.opcode.operation(), Operation::ReadResponseFirst);
            headers.bth.opcode = theirs.bth.opcode;
            headers.extension = theirs.extension;
        }
        let mut ours = Vec::new();
        Packet { headers, payload }.emit_into(&flow, id, &mut ours);
        assert_eq!(headers, theirs, "{} packet {index}", case.name);
        assert_eq!(ours, expected, "{} packet {index}", case.name);
    }
    assert_eq!(emitted.len(), captured.len(), "{}: number of packets", case.name);
}

const QKEY: Qkey = Qkey(0x1111_1111);

const PEER: Gid = Gid::from_v4([192, 0, 2, 1]);

/// A queue pair with the attributes that the program gives to both sides.
fn connected(case: &Case, first: u32, expected: u32) -> Qp {
    let options =
        QpOptions { port_mtu: case.mtu, ..QpOptions::of(case.kind, Qpn::new(case.qpn), 16) };
    let mut qp = Qp::new(options);
    qp.set_link(Capabilities { lossy: false, ..Capabilities::PACKETS }); // rxe waits for its time-out.
    let reliable = case.kind.is_reliable();
    let connected = case.kind.is_connected();
    let access = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
    let init = Attributes {
        partition: Some(Partition::DEFAULT),
        port: Some(1),
        access: connected.then_some(access),
        qkey: (!connected).then_some(QKEY),
        ..Attributes::default()
    };
    let rtr = Attributes {
        remote_gid: connected.then_some(PEER),
        remote: connected.then_some(Qpn::new(case.qpn)),
        expected_psn: connected.then_some(Psn::new(expected)),
        path_mtu: connected.then_some(case.mtu),
        max_dest_rd_atomic: reliable.then_some(1),
        min_rnr_timer: reliable.then_some(RnrTimer::new(20)),
        ..Attributes::default()
    };
    let rts = Attributes {
        first_psn: Some(Psn::new(first)),
        timeout: reliable.then_some(AckTimeout::from_exponent(17).expect("fits five bits")),
        retry_count: reliable.then_some(RetryCount::MAX),
        rnr_retry: reliable.then_some(RnrRetry::FOREVER),
        max_rd_atomic: reliable.then_some(1),
        ..Attributes::default()
    };
    let states = [(QpState::Init, init), (QpState::Rtr, rtr), (QpState::Rts, rts)];
    for (to, attributes) in states {
        qp.modify(to, &attributes, &mut Surroundings::client()).expect("the attributes needed");
    }
    qp
}

fn client(case: &Case) -> Qp {
    connected(case, 0x100 * case.instance, 0x800 + 0x100 * case.instance)
}

fn server(case: &Case) -> Qp {
    connected(case, 0x800 + 0x100 * case.instance, 0x100 * case.instance)
}

impl Case {
    /// What the client posts as its request of this number.
    fn request(&self, number: usize) -> Request {
        let imm = Some(Imm(0xdead_be00 + u32::try_from(number).expect("few requests")));
        let (va, rkey) = (self.va, Rkey(self.rkey ^ u32::from(self.spoiled)));
        let cell = va + 64;
        let (kind, len) = match self.ops[number] {
            Op::Send(len) => (RequestKind::Send { imm: None }, len),
            Op::Imm(len) => (RequestKind::Send { imm }, len),
            Op::Write(len) => (RequestKind::Write { va, rkey, imm: None }, len),
            Op::WriteImm(len) => (RequestKind::Write { va, rkey, imm }, len),
            Op::Read(len) => (RequestKind::Read { va, rkey }, len),
            Op::CompareSwap => {
                let (compare, swap) = (0x645f_5a55_504b_4641, 0x0123_4567_89ab_cdef);
                (RequestKind::CompareSwap { va: cell, rkey, compare, swap }, 8)
            }
            Op::FetchAdd => {
                (RequestKind::FetchAdd { va: cell, rkey, add: 0x1122_3344_5566_7788 }, 8)
            }
        };
        let to = match self.kind.is_connected() {
            true => To::Peer,
            false => {
                let (route, remote) = (Route(0), Qpn::new(self.qpn));
                To::Datagram(Whither { route, remote, qkey: QKEY })
            }
        };
        Request { kind, to, len, signaled: true, solicited: false, fence: false }
    }

    /// How the server's receives ended: bytes and immediate data.
    fn received(&self) -> Vec<(u32, Option<Imm>)> {
        let grh = if self.kind.is_connected() { 0 } else { GRH_LEN };
        let mut received = Vec::new();
        for (number, op) in self.ops.iter().enumerate() {
            let imm = Some(Imm(0xdead_be00 + u32::try_from(number).expect("few requests")));
            match *op {
                Op::Send(len) if len <= RECEIVE_LEN => received.push((grh + len, None)),
                Op::Imm(len) => received.push((grh + len, imm)),
                Op::WriteImm(len) => received.push((len, imm)),
                Op::Send(_) | Op::Write(_) | Op::Read(_) | Op::CompareSwap | Op::FetchAdd => {}
            }
        }
        received
    }

    /// Bytes that requests bring home: the server's pattern, unless the program says otherwise.
    fn landed(&self) -> Vec<(u64, Vec<u8>)> {
        let mut cell = cell_of(&pattern(5, 1));
        let mut landed = Vec::new();
        let mut written = 0;
        for (index, op) in (0..).zip(self.ops) {
            match *op {
                Op::Send(_) | Op::Imm(_) => {}
                Op::Write(len) | Op::WriteImm(len) => written = len,
                Op::Read(_) if self.end != WcStatus::Success => {}
                Op::Read(len) => {
                    let len = usize::try_from(len).expect("a short message");
                    let written = usize::try_from(written).expect("a short message").min(len);
                    let local = pattern(7, 3);
                    let mut bytes = pattern(5, 1)[..len].to_vec();
                    bytes[..written].copy_from_slice(&local[..written]);
                    landed.push((index, bytes));
                }
                Op::CompareSwap => {
                    landed.push((index, cell.to_le_bytes().to_vec()));
                    cell = 0x0123_4567_89ab_cdef; // The first one matches.
                }
                Op::FetchAdd => {
                    landed.push((index, cell.to_le_bytes().to_vec()));
                    cell = cell.wrapping_add(0x1122_3344_5566_7788);
                }
            }
        }
        landed
    }
}

/// Size of both programs' memory, and where the receives are in it.
const MEMORY_LEN: usize = 1 << 20;
const RECEIVE_LEN: u32 = 8192;

/// Bytes that the programs fill their memory with.
fn pattern(factor: usize, offset: usize) -> Vec<u8> {
    (0..MEMORY_LEN).map(|at| u8::try_from((at * factor + offset) % 256).expect("a byte")).collect()
}

fn cell_of(memory: &[u8]) -> u64 {
    u64::from_le_bytes(memory[64..72].try_into().expect("eight bytes"))
}

/// What a device would provide.
struct Surroundings {
    memory: Vec<u8>,
    rkey: Rkey,
    va: u64,
    receives: VecDeque<Receive>,
    emitted: Vec<(Headers, Vec<u8>)>,
    sent: Vec<SendDone>,
    /// Receives that ended well: bytes and immediate data.
    received: Vec<(u32, Option<Imm>)>,
    /// Receives are for datagrams.
    datagrams: bool,
    /// The network header of the packet that is fed.
    grh: [u8; Grh::LEN],
    /// What READs and atomics brought, by request.
    landed: Vec<(u64, Vec<u8>)>,
}

impl Surroundings {
    fn server(case: &Case) -> Self {
        let datagrams = case.kind == QpType::Ud;
        Self { rkey: Rkey(case.rkey), va: case.va, datagrams, ..Self::new(pattern(5, 1)) }
    }

    fn client() -> Self {
        Self::new(pattern(7, 3))
    }

    fn new(memory: Vec<u8>) -> Self {
        Self {
            memory,
            rkey: Rkey(0),
            va: 0,
            receives: VecDeque::new(),
            emitted: Vec::new(),
            sent: Vec::new(),
            received: Vec::new(),
            datagrams: false,
            grh: [0; Grh::LEN],
            landed: Vec::new(),
        }
    }

    fn post_receives(&mut self, case: &Case) {
        let takes = |op: &&Op| matches!(op, Op::Send(_) | Op::Imm(_) | Op::WriteImm(_));
        let count = u32::try_from(case.ops.iter().filter(takes).count()).expect("few");
        self.receives.extend((0..count).map(|token| Receive { token, len: RECEIVE_LEN }));
    }

    fn place(&self, rkey: Rkey, va: u64, len: usize) -> Result<usize, AccessError> {
        if rkey != self.rkey {
            return Err(AccessError::UnknownKey);
        }
        let at = va.checked_sub(self.va).and_then(|at| usize::try_from(at).ok());
        at.filter(|at| at + len <= MEMORY_LEN).ok_or(AccessError::OutOfBounds)
    }
}

impl Host for Surroundings {
    fn room(&mut self) -> bool {
        true
    }

    fn emit(
        &mut self,
        headers: &Headers,
        payload: Payload,
        route: Option<Route>,
    ) -> Result<(), EmitError> {
        assert_eq!(route.is_some(), headers.deth.is_some(), "datagrams have a way of their own");
        let (at, len) = match payload {
            Payload::None => (0, 0),
            Payload::Request { offset, len, .. } => (usize::try_from(offset).expect("short"), len),
            Payload::Region(range) => {
                let len = usize::try_from(range.len).expect("short");
                (self.place(range.rkey, range.va, len).map_err(EmitError::Remote)?, range.len)
            }
        };
        let len = usize::try_from(len).expect("a packet is short");
        self.emitted.push((*headers, self.memory[at..at + len].to_vec()));
        Ok(())
    }

    fn take_receive(&mut self, _srq: Option<Qpn>) -> Result<Receive, NoReceive> {
        self.receives.pop_front().ok_or(NoReceive::Empty)
    }

    fn put_back_receive(&mut self, receive: Receive, _srq: Option<Qpn>) {
        self.receives.push_front(receive);
    }

    fn grh(&self) -> [u8; 40] {
        self.grh
    }

    fn atomic_write(&mut self, rkey: Rkey, va: u64, bytes: [u8; 8]) -> Result<(), AccessError> {
        self.write(rkey, va, &bytes)
    }

    fn invalidate(&mut self, _rkey: Rkey, _by: Invalidator) -> Result<(), AccessError> {
        Err(AccessError::UnknownKey)
    }

    fn bind(&mut self, _index: u64) -> Result<(), AccessError> {
        Err(AccessError::UnknownKey)
    }

    fn event(&mut self, _event: QpEvent) {}

    fn scatter(&mut self, to: Landing, offset: u32, bytes: &[u8]) -> Result<(), LocalError> {
        let offset = usize::try_from(offset).expect("short");
        match to {
            Landing::Receive(receive) => {
                // A datagram's network header comes first; every message carries the client's
                // pattern from its start.
                if self.datagrams && offset == 0 {
                    assert_eq!(bytes, self.grh);
                    return Ok(());
                }
                let offset = offset - if self.datagrams { self.grh.len() } else { 0 };
                let sent = &pattern(7, 3)[offset..offset + bytes.len()];
                assert_eq!(bytes, sent, "receive {}", receive.token);
            }
            Landing::Request(index) => {
                if self.landed.last().is_none_or(|&(last, _)| last != index) {
                    self.landed.push((index, Vec::new()));
                }
                let (_, landed) = self.landed.last_mut().expect("just pushed");
                assert_eq!(landed.len(), offset, "data land in order");
                landed.extend_from_slice(bytes);
            }
        }
        Ok(())
    }

    fn check(&self, range: Range, _access: Access) -> Result<(), AccessError> {
        let len = usize::try_from(range.len).map_err(|_| AccessError::OutOfBounds)?;
        self.place(range.rkey, range.va, len).map(|_| ())
    }

    fn write(&mut self, rkey: Rkey, va: u64, bytes: &[u8]) -> Result<(), AccessError> {
        let at = self.place(rkey, va, bytes.len())?;
        self.memory[at..at + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn atomic(&mut self, rkey: Rkey, va: u64, op: AtomicOp) -> Result<u64, AccessError> {
        let at = self.place(rkey, va, 8)?;
        let cell = &mut self.memory[at..at + 8];
        // The capturing hosts were little-endian; so is what they called memory.
        let found = u64::from_le_bytes((&*cell).try_into().expect("eight bytes"));
        let value = match op {
            AtomicOp::CompareSwap { compare, swap } if compare == found => swap,
            AtomicOp::CompareSwap { .. } => found,
            AtomicOp::FetchAdd { add } => found.wrapping_add(add),
        };
        cell.copy_from_slice(&value.to_le_bytes());
        Ok(found)
    }

    fn send_done(&mut self, done: SendDone) {
        self.sent.push(done);
    }

    fn receive_done(&mut self, done: ReceiveDone) {
        if done.status == WcStatus::Success {
            self.received.push((done.byte_len, done.imm));
        }
    }
}

macro_rules! capture {
    ($name:literal) => {
        Case {
            name: $name,
            capture: include_bytes!(concat!("../../wire/testdata/golden/", $name, ".pcap")),
            ..PLAIN
        }
    };
}

/// What most cases have in common.
const PLAIN: Case = Case {
    name: "",
    kind: QpType::Rc,
    capture: &[],
    instance: 0,
    qpn: 0,
    rkey: 0,
    va: 0,
    mtu: PathMtu::B1024,
    ops: &[],
    lost_to_server: &[],
    lost_to_client: &[],
    spoiled: false,
    receive_before: 0,
    unasked: &[],
    refusal: None,
    resumed: None,
    end: WcStatus::Success,
};

const CASES: &[Case] = &[
    Case {
        instance: 1,
        qpn: 0x11,
        rkey: 0x228,
        va: 0x7f03_4a3c_e000,
        ops: &[Op::Send(1), Op::Send(2), Op::Send(3), Op::Send(4), Op::Send(16)],

        ..capture!("rc_send_small")
    },
    Case {
        instance: 2,
        qpn: 0x12,
        rkey: 0x362,
        va: 0x7f52_d07d_e000,
        ops: &[Op::Send(3000)],

        ..capture!("rc_send_multi")
    },
    Case {
        instance: 3,
        qpn: 0x13,
        rkey: 0x41d,
        va: 0x7f99_e9ed_2000,
        ops: &[Op::Imm(16), Op::Imm(2500)],

        ..capture!("rc_send_imm")
    },
    Case {
        instance: 4,
        qpn: 0x14,
        rkey: 0x5aa,
        va: 0x7f58_4da7_2000,
        ops: &[Op::Write(5)],

        ..capture!("rc_write_small")
    },
    Case {
        instance: 5,
        qpn: 0x15,
        rkey: 0x6eb,
        va: 0x7fae_13bd_a000,
        ops: &[Op::Write(3000)],

        ..capture!("rc_write_multi")
    },
    Case {
        instance: 6,
        qpn: 0x16,
        rkey: 0x7ab,
        va: 0x7f7b_0afa_d000,
        ops: &[Op::WriteImm(8), Op::WriteImm(2500)],

        ..capture!("rc_write_imm")
    },
    Case {
        instance: 7,
        qpn: 0x17,
        rkey: 0x8bd,
        va: 0x7f2e_8336_c000,
        ops: &[Op::Read(7)],

        ..capture!("rc_read_small")
    },
    Case {
        instance: 8,
        qpn: 0x18,
        rkey: 0x9b7,
        va: 0x7fd5_2100_f000,
        ops: &[Op::Read(3000)],

        ..capture!("rc_read_multi")
    },
    Case {
        instance: 9,
        qpn: 0x19,
        rkey: 0xad8,
        va: 0x7f3e_1416_0000,
        ops: &[Op::CompareSwap, Op::CompareSwap],

        ..capture!("rc_cmp_swap")
    },
    Case {
        instance: 10,
        qpn: 0x1a,
        rkey: 0xbd4,
        va: 0x7f83_a70d_4000,
        ops: &[Op::FetchAdd, Op::FetchAdd],

        ..capture!("rc_fetch_add")
    },
    Case {
        instance: 11,
        qpn: 0x1b,
        rkey: 0xce4,
        va: 0x7f34_8e74_c000,
        ops: &[Op::Send(0), Op::Write(0), Op::Read(0)],

        ..capture!("rc_zero_length")
    },
    Case {
        instance: 12,
        qpn: 0x1c,
        rkey: 0xd53,
        va: 0x7fba_9837_5000,
        ops: &[Op::Send(600)],
        mtu: PathMtu::B256,
        ..capture!("rc_mtu_256")
    },
    Case {
        instance: 16,
        qpn: 0x20,
        rkey: 0x119e,
        va: 0x7ff9_b5ed_3000,
        ops: &[Op::Send(16)],
        receive_before: 3,
        ..capture!("rc_rnr_nak")
    },
    Case {
        instance: 17,
        qpn: 0x21,
        rkey: 0x12f3,
        va: 0x7f2a_cbd9_2000,
        ops: &[Op::Send(5000), Op::Write(9000), Op::Read(5000)],
        mtu: PathMtu::B4096,
        ..capture!("rc_mtu_4096")
    },
    Case {
        instance: 18,
        qpn: 0x22,
        rkey: 0x13f1,
        va: 0x7f22_1761_a000,
        ops: &[Op::Send(3000), Op::Write(5), Op::Read(7), Op::FetchAdd],

        ..capture!("rc_ipv6")
    },
    Case {
        instance: 21,
        qpn: 0x27,
        rkey: 0x1862,
        va: 0x7f4b_d18d_b000,
        ops: &[Op::Send(5000)],
        lost_to_server: &[2],
        ..capture!("rc_lost_middle")
    },
    Case {
        instance: 22,
        qpn: 0x28,
        rkey: 0x1950,
        va: 0x7fc5_97cf_f000,
        ops: &[Op::Send(5000)],
        lost_to_server: &[4],
        unasked: &[0, 1, 2, 3],
        ..capture!("rc_lost_last")
    },
    Case {
        instance: 23,
        qpn: 0x29,
        rkey: 0x1adc,
        va: 0x7f5e_42c7_2000,
        ops: &[Op::Send(5000)],
        lost_to_client: &[0],
        unasked: &[1, 2, 3, 4],
        ..capture!("rc_lost_ack")
    },
    Case {
        instance: 24,
        qpn: 0x2a,
        rkey: 0x1b18,
        va: 0x7f82_9ad4_4000,
        ops: &[Op::Read(5000)],
        lost_to_client: &[3],
        resumed: Some(5),
        ..capture!("rc_lost_read")
    },
    Case {
        instance: 25,
        qpn: 0x24,
        rkey: 0x1532,
        va: 0x7f93_1e89_5000,
        ops: &[Op::Write(16)],
        spoiled: true,
        end: WcStatus::RemoteAccess,
        ..capture!("rc_nak_access")
    },
    Case {
        instance: 26,
        qpn: 0x25,
        rkey: 0x16f9,
        va: 0x7f26_be64_4000,
        ops: &[Op::Read(16)],
        spoiled: true,
        end: WcStatus::RemoteAccess,
        ..capture!("rc_nak_access_rd")
    },
    Case {
        instance: 27,
        qpn: 0x26,
        rkey: 0x17c4,
        va: 0x7f64_e367_2000,
        ops: &[Op::Send(9000)],
        refusal: Some(Nak::InvalidRequest),
        end: WcStatus::RemoteOperation,
        ..capture!("rc_nak_length")
    },
    Case {
        kind: QpType::Uc,
        instance: 13,
        qpn: 0x1d,
        rkey: 0xec6,
        va: 0x7f9f_b855_d000,
        ops: &[Op::Send(16), Op::Send(3000), Op::Imm(5)],
        ..capture!("uc_send")
    },
    Case {
        kind: QpType::Uc,
        instance: 14,
        qpn: 0x1e,
        rkey: 0xf82,
        va: 0x7f41_bae1_a000,
        ops: &[Op::Write(16), Op::Write(3000), Op::WriteImm(2500)],
        ..capture!("uc_write")
    },
    Case {
        kind: QpType::Ud,
        instance: 15,
        qpn: 0x1f,
        ops: &[Op::Send(16), Op::Send(1000), Op::Imm(5)],
        ..capture!("ud_send")
    },
    Case {
        kind: QpType::Ud,
        instance: 19,
        qpn: 0x23,
        ops: &[Op::Send(16), Op::Imm(5)],
        ..capture!("ud_ipv6")
    },
];
