//! Failures caused by a peer that breaks the rules, or never answers.
//!
//! The peer is a plain socket at an address of its own, which a queue pair takes for its peer's
//! device. Each test has a namespace of its own, because the peer needs port 4791 there.
//!
//! # Safety
//!
//! Raw requests are of regions that outlive them and lend no references.

use crate::alone::alone;
use crate::pair::{FOREVER, Setup, Side, bytes_of, eventually};
use crate::stranger::{ANOTHERS, Stranger, headers};
use adverb_verbs::{
    Access, Completion, Context, Element, EventKind, Gid, Modify, Mr, PathMtu, QpConfig, QpState,
    Qpn, RcConnect, RemoteQp, RemoteSlice, Rkey, SrqConfig, WcOpcode, WcStatus, Work,
};
use adverb_wire::{
    Aeth, Extension, Imm, Msn, Nak, Operation, Packet, Psn, ROCE_PORT, Reth, RnrTimer, Syndrome,
};
use std::time::Duration;

/// The peer: what it says it is.
const NUMBER: Qpn = Qpn::new(0x00ab_cdef);
const FIRST: Psn = Psn::new(0x00ff_fffe);
const WR_ID: u64 = 0xfeed_f00d;

/// A queue pair of the device, and the peer that it trusts.
struct Scene {
    context: Context,
    side: Side,
    peer: Stranger,
}

impl Scene {
    fn new(setup: &Setup) -> Self {
        let context = Context::open("soft_lo").expect("the loopback device");
        let side = setup.side(&context);
        Self::with(setup, context, side)
    }

    fn with(setup: &Setup, context: Context, side: Side) -> Self {
        let peer = Stranger::at_port(ANOTHERS, ROCE_PORT);
        peer.socket.set_read_timeout(Some(Duration::from_secs(20))).expect("it can");
        let mut gid = [0; 16];
        let (_, end) = gid.split_at_mut(10);
        end.copy_from_slice(&[0xff, 0xff, 127, 0, 0, 2]);
        let remote = RemoteQp { gid: Gid(gid), qpn: NUMBER, psn: FIRST };
        side.qp.connect(setup.to(RcConnect::new(remote))).expect("connected");
        Self { context, side, peer }
    }

    /// Waits for a request packet and says what it is and which number it has.
    fn request(&self) -> (Operation, Psn) {
        let mut datagram = [0; 8192];
        let (len, _) = self.peer.socket.recv_from(&mut datagram).expect("a packet");
        let packet = Packet::parse(datagram.get(..len).expect("in there")).expect("well-formed");
        (packet.headers.bth.opcode.operation(), packet.headers.bth.psn)
    }

    fn send(&self, operation: Operation, psn: Psn, extension: Extension, payload: &[u8]) {
        let headers = headers(operation, self.side.qp.number(), psn, payload.len(), extension);
        self.peer.send(&self.peer.packet(headers, payload));
    }

    /// Answers a request with an acknowledgement or a refusal.
    fn answer(&self, psn: Psn, syndrome: Syndrome) {
        self.send(Operation::Acknowledge, psn, Extension::Aeth(aeth(syndrome)), &[]);
    }

    /// Posts a SEND of 8 bytes, and another behind it.
    fn post_sends(&self) {
        for wr_id in [WR_ID, WR_ID + 1] {
            let work = Work::send(self.side.buffer(&[1; 8])).wr_id(wr_id);
            self.side.qp.post(work).expect("room");
        }
    }

    /// The first request has failed so, the second was flushed, and the queue pair is in ERR.
    fn has_failed(&self, status: WcStatus, opcode: WcOpcode) {
        self.completes(self.side.wait(), WR_ID, status, opcode);
        let flushed = WcStatus::WorkRequestFlushed;
        self.completes(self.side.wait(), WR_ID + 1, flushed, WcOpcode::Send);
        assert_eq!(self.side.qp.state(), QpState::Err);
        assert!(self.side.is_quiet());
    }

    /// Goal: what is valid in any completion is valid in a failed one, and its memory comes back.
    fn completes(&self, done: Completion, wr_id: u64, status: WcStatus, opcode: WcOpcode) {
        assert_eq!((done.wc.wr_id, done.wc.status), (wr_id, status));
        assert_eq!((done.wc.qp, done.wc.opcode), (self.side.qp.number(), opcode));
        assert_eq!(done.wc.vendor_err() == 0, status == WcStatus::Success);
        assert!(done.memory.is_some());
    }
}

fn aeth(syndrome: Syndrome) -> Aeth {
    Aeth { syndrome, msn: Msn::new(1) }
}

#[test]
fn each_refusal_has_a_status_of_its_own() {
    alone("rogue::each_refusal_has_a_status_of_its_own", || {
        for (nak, status) in [
            (Nak::InvalidRequest, WcStatus::RemoteInvalidRequest),
            (Nak::RemoteAccess, WcStatus::RemoteAccess),
            (Nak::RemoteOperation, WcStatus::RemoteOperation),
        ] {
            let scene = Scene::new(&Setup::default());
            scene.post_sends();
            let (_, psn) = scene.request();
            scene.answer(psn, Syndrome::Nak(nak));
            let done = scene.side.wait();
            assert_eq!(done.wc.vendor_err(), u32::from(Syndrome::Nak(nak).code()));
            scene.completes(done, WR_ID, status, WcOpcode::Send);
            let flushed = WcStatus::WorkRequestFlushed;
            scene.completes(scene.side.wait(), WR_ID + 1, flushed, WcOpcode::Send);
        }
    });
}

/// Goal: an answer that is none to the question ends it, whichever way it is wrong.
#[test]
fn an_answer_that_does_not_fit_is_a_bad_response() {
    alone("rogue::an_answer_that_does_not_fit_is_a_bad_response", || {
        let nowhere = RemoteSlice { addr: 0, rkey: Rkey(1) };
        for (wrong, atomic) in
            [(&[7; 4][..], false), (&[7; 12], false), (&[], false), (&[7; 8], true)]
        {
            let scene = Scene::new(&Setup::default());
            let buffer = scene.side.buffer(&[0; 8]);
            let (work, opcode) = match atomic {
                true => (Work::fetch_add(buffer, nowhere, 1).any(), WcOpcode::FetchAdd),
                false => (Work::read(buffer, nowhere).any(), WcOpcode::RdmaRead),
            };
            scene.side.qp.post(work.wr_id(WR_ID)).expect("room");
            let next = Work::send(scene.side.buffer(&[1; 8])).wr_id(WR_ID + 1);
            scene.side.qp.post(next).expect("room");
            let (_, psn) = scene.request();
            let extension = Extension::Aeth(aeth(Syndrome::ACK));
            scene.send(Operation::ReadResponseOnly, psn, extension, wrong);
            scene.has_failed(WcStatus::BadResponse, opcode);
            assert_eq!(scene.side.qp.counters().sq_num_bre, 1);
        }
    });
}

#[test]
fn a_peer_that_never_answers_exceeds_the_retries() {
    alone("rogue::a_peer_that_never_answers_exceeds_the_retries", || {
        let scene = Scene::new(&Setup { timeout: 8, retry_count: 3, ..Setup::default() });
        scene.post_sends();
        scene.has_failed(WcStatus::RetryExceeded, WcOpcode::Send);
        let counters = scene.side.qp.counters();
        assert_eq!((counters.ack_timeout, counters.completer_retry_err), (4, 3));
    });
}

/// Goal: a peer that keeps asking for the same packet is not served for ever.
#[test]
fn a_peer_that_never_gets_what_it_is_sent_exceeds_the_retries() {
    alone("rogue::a_peer_that_never_gets_what_it_is_sent_exceeds_the_retries", || {
        let scene = Scene::new(&Setup { timeout: 0, retry_count: 3, ..Setup::default() });
        scene.post_sends();
        let (_, psn) = scene.request();
        for _ in 0..4 {
            scene.answer(psn, Syndrome::Nak(Nak::SequenceError));
        }
        scene.has_failed(WcStatus::RetryExceeded, WcOpcode::Send);
        assert_eq!(scene.side.qp.counters().rcvd_seq_err, 4);
    });
}

#[test]
fn a_peer_that_is_never_ready_exceeds_the_rnr_retries() {
    alone("rogue::a_peer_that_is_never_ready_exceeds_the_rnr_retries", || {
        let scene = Scene::new(&Setup { timeout: 0, rnr_retry: 2, ..Setup::default() });
        scene.post_sends();
        let first = scene.request().1;
        scene.answer(first, Syndrome::RnrNak(RnrTimer::new(1)));
        for refusals in 1..=2 {
            eventually("it tries again", || {
                scene.context.drive();
                scene.side.qp.counters().rcvd_rnr_err == refusals
            });
            while scene.request().1 != first {}
            scene.answer(first, Syndrome::RnrNak(RnrTimer::new(1)));
        }
        scene.has_failed(WcStatus::RnrRetryExceeded, WcOpcode::Send);
    });
}

/// A WRITE with immediate data in two packets, of which the first has arrived.
fn first_half(scene: &Scene, target: &Mr, mtu: PathMtu) -> Psn {
    let mtu = usize::try_from(mtu.bytes()).expect("small");
    let reth = Reth { va: target.addr(), rkey: target.rkey(), len: len32(mtu + 8) };
    scene.send(Operation::WriteFirst, FIRST, Extension::Reth(reth), &vec![9; mtu]);
    eventually("the first half has landed", || {
        scene.context.drive();
        bytes_of(target, mtu - 1, 1) == [9]
    });
    FIRST.plus(1)
}

fn len32(len: usize) -> u32 {
    u32::try_from(len).expect("small")
}

/// Goal: a receive whose message may no longer go where it is going ends with a local access error,
/// and the owner hears no more than that.
#[test]
fn a_write_whose_region_goes_under_way_is_a_local_access_error() {
    alone("rogue::a_write_whose_region_goes_under_way_is_a_local_access_error", || {
        let setup = Setup { path_mtu: PathMtu::B256, ..Setup::default() };
        let scene = Scene::new(&setup);
        let target = scene.side.pd.allocate(4096, Access::ALL).expect("memory");
        for wr_id in [WR_ID, WR_ID + 1] {
            let work = Work::recv(scene.side.buffer(&[0; 8])).wr_id(wr_id);
            scene.side.qp.post(work).expect("room");
        }
        let psn = first_half(&scene, &target, setup.path_mtu);
        drop(target);
        scene.send(Operation::WriteLastImm, psn, Extension::Imm(Imm(5)), &[9; 8]);
        let (access, flushed) = (WcStatus::LocalAccess, WcStatus::WorkRequestFlushed);
        scene.completes(scene.side.wait(), WR_ID, access, WcOpcode::Receive);
        scene.completes(scene.side.wait(), WR_ID + 1, flushed, WcOpcode::Receive);
        assert_eq!(scene.side.qp.counters().rq_num_lae, 1);
        assert_eq!(scene.side.qp.state(), QpState::Err);
    });
}

/// Goal: a message that is broken off by another ends its receive, and the rest is flushed.
#[test]
fn a_message_within_a_message_is_an_invalid_request() {
    alone("rogue::a_message_within_a_message_is_an_invalid_request", || {
        let scene = Scene::new(&Setup { path_mtu: PathMtu::B256, ..Setup::default() });
        for wr_id in [WR_ID, WR_ID + 1] {
            let work = Work::recv(scene.side.buffer(&[0; 1024])).wr_id(wr_id);
            scene.side.qp.post(work).expect("room");
        }
        for psn in [FIRST, FIRST.plus(1)] {
            scene.send(Operation::SendFirst, psn, Extension::None, &[9; 256]);
        }
        let (invalid, flushed) = (WcStatus::RemoteInvalidRequest, WcStatus::WorkRequestFlushed);
        scene.completes(scene.side.wait(), WR_ID, invalid, WcOpcode::Receive);
        scene.completes(scene.side.wait(), WR_ID + 1, flushed, WcOpcode::Receive);
        assert_eq!(scene.request().0, Operation::Acknowledge, "the peer is told");
    });
}

/// Goal: what no completion tells, an event does: once, with the queue pair's name, and the peer is
/// refused with the code that goes with it.
#[test]
fn refusals_that_no_completion_tells_are_events() {
    alone("rogue::refusals_that_no_completion_tells_are_events", || {
        let wrong_key = Reth { va: 0, rkey: Rkey(1), len: 8 };
        let too_much = Reth { va: 0, rkey: Rkey(1), len: 0 };
        for (reth, kind, code) in [
            (wrong_key, EventKind::QpAccessErr, Nak::RemoteAccess),
            (too_much, EventKind::QpReqErr, Nak::InvalidRequest),
        ] {
            let context = Context::open("soft_lo").expect("the loopback device");
            let events = context.async_events().expect("events");
            let setup = Setup::default();
            let side = setup.side(&context);
            let scene = Scene::with(&setup, context, side);
            scene.send(Operation::WriteOnly, FIRST, Extension::Reth(reth), &[1; 8]);
            let event = events.get_timeout(FOREVER).expect("no error").expect("an event");
            assert_eq!(event.kind, kind);
            let Element::Qp { number, .. } = event.element else { panic!("{event}") };
            assert_eq!(number, scene.side.qp.number());
            let mut datagram = [0; 64];
            let (len, _) = scene.peer.socket.recv_from(&mut datagram).expect("a refusal");
            let packet = Packet::parse(datagram.get(..len).expect("in there")).expect("a packet");
            let Extension::Aeth(aeth) = packet.headers.extension else { panic!("no answer") };
            assert_eq!((aeth.syndrome, packet.headers.bth.psn), (Syndrome::Nak(code), FIRST));
            assert_eq!(scene.side.qp.state(), QpState::Err);
            assert!(scene.side.is_quiet());
            assert!(events.try_get().is_none(), "told twice");
        }
    });
}

/// Goal: a queue pair that fails ends the shared receive whose message had begun, leaves the others,
/// and only then says that it takes no more.
#[test]
fn the_last_shared_receive_ends_before_its_queue_pair_says_so() {
    alone("rogue::the_last_shared_receive_ends_before_its_queue_pair_says_so", || {
        let setup = Setup { path_mtu: PathMtu::B256, ..Setup::default() };
        let context = Context::open("soft_lo").expect("the loopback device");
        let events = context.async_events().expect("events");
        let (pd, cq) = (context.alloc_pd(), context.create_cq(16).expect("a completion queue"));
        let srq = pd.create_srq(&SrqConfig::new(8)).expect("a shared receive queue");
        let config = QpConfig::new(&cq).srq(&srq).context(77);
        let qp = pd.create_qp(&config).expect("a queue pair");
        let scene = Scene::with(&setup, context, Side { pd, cq, qp });
        let side = &scene.side;
        for wr_id in WR_ID..WR_ID + 3 {
            srq.post(Work::recv(side.buffer(&[0; 1024])).wr_id(wr_id)).expect("room");
        }
        scene.send(Operation::SendFirst, FIRST, Extension::None, &[9; 256]);
        eventually("a receive is drawn", || {
            scene.context.drive();
            srq.query().posted == 2
        });
        assert_eq!(events.try_get().map(|event| event.kind), None);
        side.qp.to_err();
        let event = events.try_get().expect("an event");
        let element = Element::Qp { number: side.qp.number(), context: 77 };
        assert_eq!((event.kind, event.element), (EventKind::LastWqeReached, element));
        let done = side.cq.next().expect("no overrun").expect("ended before the event");
        assert_eq!((done.wc.srq, done.wc.byte_len), (Some(srq.number()), 256));
        scene.completes(done, WR_ID, WcStatus::WorkRequestFlushed, WcOpcode::Receive);
        side.qp.to_err();
        assert!(side.is_quiet());
        assert!(events.try_get().is_none(), "told twice");
        assert_eq!(srq.query().posted, 2, "the others are still there");
    });
}

/// Goal: a queue pair that goes, or starts anew, in the middle of a message leaves its shared receive
/// to the others.
#[test]
fn a_shared_receive_outlives_a_queue_pair_that_goes_in_the_middle_of_a_message() {
    let name = "rogue::a_shared_receive_outlives_a_queue_pair_that_goes_in_the_middle_of_a_message";
    alone(name, || [false, true].into_iter().for_each(leave_in_the_middle));
}

fn leave_in_the_middle(by_reset: bool) {
    let setup = Setup { path_mtu: PathMtu::B256, ..Setup::default() };
    let context = Context::open("soft_lo").expect("the loopback device");
    let (pd, cq) = (context.alloc_pd(), context.create_cq(16).expect("a completion queue"));
    let srq = pd.create_srq(&SrqConfig::new(1)).expect("a shared receive queue");
    let qp = pd.create_qp(&QpConfig::new(&cq).srq(&srq));
    let side = Side { pd, cq, qp: qp.expect("a queue pair") };
    let scene = Scene::with(&setup, context, side);
    srq.post(Work::recv(scene.side.buffer(&[0; 1024])).wr_id(WR_ID)).expect("room");
    scene.send(Operation::SendFirst, FIRST, Extension::None, &[9; 256]);
    eventually("the receive is drawn", || {
        scene.context.drive();
        srq.query().posted == 0
    });
    let Scene { context: _context, side, peer: _peer } = scene;
    let Side { pd: _pd, cq, qp } = side;
    if by_reset {
        qp.modify(&Modify::to(QpState::Reset)).expect("RESET");
    } else {
        drop(qp);
    }
    assert_eq!(srq.query().posted, 1);
    assert!(cq.next().expect("no overrun").is_none());
}
